//! `coverage FOLDER [PERCENT]`: prints the line coverage that test benches wrote to a folder. It
//! fails if the coverage is below PERCENT.

use std::path::PathBuf;
use std::process::ExitCode;

use fieldstone_verilate::coverage::Lines;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(folder) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: coverage FOLDER [PERCENT]");
        return ExitCode::FAILURE;
    };
    let wanted = arguments.next().and_then(|percent| percent.to_string_lossy().parse().ok());
    let mut lines = Lines::default();
    if let Err(error) = lines.add_folder(&folder) {
        eprintln!("{}: {error}", folder.display());
        return ExitCode::FAILURE;
    }
    let (executed, all) = lines.total();
    let share = 100.0 * executed as f64 / all.max(1) as f64;
    print!("{}", lines.table());
    println!("{:<28} {share:>6.1} % of {all:>4}", "all");
    if share < wanted.unwrap_or(0.0) {
        eprintln!("less than {} %", wanted.unwrap_or(0.0));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
