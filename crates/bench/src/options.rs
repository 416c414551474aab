//! The options that the benchmarks of block devices share.

use std::path::PathBuf;

use fieldstone_units as units;

use crate::choice::Choice;

/// The load, its length, and the folder of the run.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Options of nbd, rbd and deliba2")]
pub struct LoadOptions {
    /// Size of each device or image. [default: nbd 1G, others 256M]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub size: Option<u64>,
    /// The folder in which the run makes its own folder for all files and removes it at the end.
    /// For nbd, it must be on the file system to be measured. [default: the folder for temporary
    /// files]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Length of one cell, in seconds. [default: 3, with --sweep 1, deliba2 0.5]
    #[arg(long, visible_alias = "seconds", value_name = "SECONDS", value_parser = seconds)]
    pub runtime: Option<f64>,
    /// Rounds; the report has medians over the rounds, with --sweep means. [default: 3, with
    /// --sweep 4, deliba2 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Run only these: CASE, CONTENDER or CASE/CONTENDER, with * for anything. May be repeated.
    #[arg(long, value_name = "CHOICE", value_delimiter = ',')]
    pub only: Vec<Choice>,
    /// Cores of our servers and clients, and in deliba2-fig7 the most cores. [default: 1,
    /// deliba2-fig7 the CPUs, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cores: Option<u16>,
}

impl LoadOptions {
    /// Cores of our servers and clients.
    pub fn cores(&self) -> u16 {
        self.cores.unwrap_or(1)
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds between 0.1 and 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_times_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "inf", "4000", "x"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
