//! `fieldstone bench`: the registry of benchmarks. Each benchmark is one file of this folder.

use std::path::PathBuf;

/// Options of `fieldstone bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The benchmark to run, or LIST to list them all.
    #[arg(value_name = "LIST|NAME", default_value = "LIST")]
    name: String,
    /// Also write the JSON lines to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the results as a page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// One benchmark: its name, what it measures, and how to run it.
struct Bench {
    name: &'static str,
    about: &'static str,
    run: fn(&Args) -> anyhow::Result<()>,
}

/// Every benchmark there is.
const BENCHES: &[Bench] = &[];

/// Lists the benchmarks or runs one.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.name == "LIST" {
        for bench in BENCHES {
            println!("{:<16} {}", bench.name, bench.about);
        }
        return Ok(());
    }
    match BENCHES.iter().find(|bench| bench.name == args.name) {
        Some(bench) => (bench.run)(args),
        None => anyhow::bail!(
            "there is no benchmark named {:?}; `fieldstone bench LIST` lists them",
            args.name
        ),
    }
}
