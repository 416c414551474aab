//! `fieldstone gpu bench`: coding on a GPU, beside the limits of its memory and of its link.
//!
//! A program that reads and writes each byte once can at best be as fast as the card's own copy of
//! as many bytes. A job on data of the host can at best be as fast as its copies through the link.
//! Both limits are measured in the same rounds as the work. The CPU's row says from which size on a
//! card is worth its way.
//!
//! | file | one idea |
//! |---|---|
//! | `case` | the cases, their maps and sizes |
//! | `arena` | memory of the card full of noise, and the card's clock |
//! | `check` | the bytes of a program, compared with the CPU's |
//! | `on_card` | programs and copies on the card |
//! | `link` | copies through the link, both ways |
//! | `host` | jobs, the link and the CPU |
//! | `device` | what else this needs of crate gpu |
//! | `measure` | the cases, one after the other |
//! | `rows` | targets and rows |
//! | `text` | the report |

mod arena;
mod case;
mod check;
mod device;
mod host;
mod link;
mod measure;
mod on_card;
mod rows;
mod text;

use std::path::PathBuf;

use anyhow::{Context, bail};
use fieldstone_console::signals::Signals;
use fieldstone_gf::Kernel;
use fieldstone_gpu::Card;

use self::case::Case;
use self::measure::Results;
use super::choice::{Choice, chosen};
use super::{machine, report};

/// Options of `gpu bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write the rows to this file as JSON, one per line; - for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only these: CASE, CODE or CASE/CODE, with * for anything. May be repeated.
    #[arg(long, value_name = "CHOICE", value_delimiter = ',')]
    only: Vec<Choice>,
    /// The number of the card.
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: u32,
    /// Rounds of a few milliseconds for each contender; the report has medians over the rounds.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 9,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    rounds: u32,
    /// List the cases, and measure nothing.
    #[arg(long)]
    list: bool,
}

/// Runs the benchmark.
///
/// # Errors
/// There is no card, it has failed or computes other bytes than the CPU, or the run was
/// interrupted.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let cases = case::all();
    if args.list {
        cases.iter().for_each(|case| print_line!("{}", case.name()));
        return Ok(());
    }
    let cases = choose(cases, &args.only)?;
    let signals = Signals::install()?;
    let card = Card::open(args.gpu).with_context(|| format!("cannot use GPU {}", args.gpu))?;
    let machine = machine::describe();
    let bar = super::case_bar("gpu bench", cases.len());
    let results = measure::measure(&card, &cases, args.rounds, &signals, &bar);
    bar.finish_and_clear();
    tell(args, &card, &machine, &results?)
}

/// The cases that the choices take.
fn choose(cases: Vec<Case>, only: &[Choice]) -> anyhow::Result<Vec<Case>> {
    for choice in only {
        if !cases.iter().any(|case| choice.takes(&case.name(), case.code)) {
            bail!("--only {} takes nothing; --list prints the cases", choice.text());
        }
    }
    let is_chosen = |case: &Case| chosen(only, &case.name(), case.code);
    Ok(cases.into_iter().filter(is_chosen).collect())
}

/// Prints the report and writes the rows.
fn tell(args: &Args, card: &Card, machine: &[String], results: &Results) -> anyhow::Result<()> {
    let rows = rows::rows(&results.cases, card.info());
    let mut setting = vec![
        report::made_by(),
        format!("medians of {} interleaved rounds; kernel {}", args.rounds, Kernel::best()),
    ];
    setting.extend_from_slice(machine);
    setting.push(format!("load at the end: {}", machine::load()));
    let text = text::report(&results.cases, &rows, &results.missing, card.info(), &setting);
    report::print(args.json.as_deref(), &text, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_cases_and_codes() {
        let count = |text: &str| {
            let only: Vec<Choice> = text.split(',').map(|t| t.parse().expect("one")).collect();
            choose(case::all(), &only).map(|cases| cases.len())
        };
        assert_eq!(count("clay:8+4").expect("some"), 3 * 8);
        assert_eq!(count("card-encode-*/rs:4+2").expect("some"), 8);
        assert_eq!(count("*-16M").expect("some"), 6 * 3 + 3 * 2);
        assert_eq!(count("method-*,host-*-1G").expect("some"), 3 + 6);
        assert!(count("rs:5+2").is_err());
    }
}
