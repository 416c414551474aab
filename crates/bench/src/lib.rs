//! All benchmarks: the list behind `fieldstone bench`, and the helpers that the benchmarks share.
//!
//! Each benchmark is one folder. `nbd/` and `rbd/` run as `fieldstone bench nbd` and `bench rbd`.
//! Other commands call the others, for example `fieldstone code bench` calls `code/`. Each
//! benchmark prints tables on stdout and writes rows as JSON lines (`row`). Contenders take turns
//! within one run. Comparisons have medians and ratios, or means where the papers have them. A peer
//! that is not installed is reported as missing.
//!
//! A benchmark of whole programs starts this program again, like a user. `generator` is the client
//! in such a program that has a device inside its own process.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate fieldstone_console;

mod case;
pub mod chart;
mod choice;
mod client;
pub mod code;
mod course;
pub mod crush;
mod deliba2;
mod fio;
mod folder;
pub mod fpga;
mod generator;
pub mod gpu;
mod interleaving;
mod library;
mod machine;
mod msr;
mod nbd;
mod nic;
mod options;
mod pools;
mod process;
mod rbd;
mod report;
mod row;
mod speeds;
mod stats;
mod subject;
pub mod table;
mod usage;

use std::io::IsTerminal;
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Options of `fieldstone bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The benchmark to run, or LIST to list the benchmarks.
    #[arg(value_name = "LIST|NAME", default_value = "LIST")]
    name: String,
    /// Write the rows to this file as JSON, one per line; - for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the results as an HTML page in this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The job of `bench generate`, which other benchmarks start.
    #[arg(long, value_name = "JSON", hide = true)]
    load: Option<String>,
    #[command(flatten)]
    shared: options::LoadOptions,
    #[command(flatten)]
    nbd: nbd::Options,
    #[command(flatten)]
    rbd: rbd::Options,
    #[command(flatten)]
    deliba2: deliba2::Options,
}

/// One benchmark: its name, a description and its function.
#[derive(Clone, Copy)]
struct Benchmark {
    name: &'static str,
    about: &'static str,
    run: fn(&Args) -> anyhow::Result<()>,
}

/// The benchmarks of `fieldstone bench`.
const BENCHES: &[Benchmark] = &[
    Benchmark {
        name: "nbd",
        about: "our NBD servers against nbdkit, qemu-nbd and the raw disk; \
                --sweep for the papers' grid",
        run: nbd::run,
    },
    Benchmark {
        name: "rbd",
        about: "our client of Ceph against librbd, librados and rbd-nbd, on your cluster and on \
                one without storage",
        run: rbd::run,
    },
    Benchmark {
        name: "msr-throughput",
        about: "Zigzag {6,4,8} by CPU, GPU and FPGA over the size of objects, \
                beside the MSR paper's numbers",
        run: msr::run,
    },
    nic::FIG4,
    nic::FIG6,
    nic::FIG7,
    nic::FIG9,
    nic::FIG10,
    nic::FIG11,
    nic::FIG15,
    nic::FIG16,
    nic::TABLE1,
    nic::TABLE2,
];

/// All benchmarks: those of [`BENCHES`], and one for each figure of DeLiBA-2.
fn benches() -> impl Iterator<Item = Benchmark> {
    let deliba2 = |(name, about)| Benchmark { name, about, run: deliba2::run };
    BENCHES.iter().copied().chain(deliba2::names().map(deliba2))
}

/// The name under which a benchmark starts this program as a client of its own.
const GENERATE: &str = "generate";

/// Lists the benchmarks or runs one.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.name == "LIST" {
        for bench in benches() {
            print_line!("{:<16} {}", bench.name, bench.about);
        }
        return Ok(());
    }
    if args.name == GENERATE {
        return generator::run(args.load.as_deref());
    }
    match benches().find(|bench| bench.name == args.name) {
        Some(bench) => (bench.run)(args),
        None => anyhow::bail!(
            "there is no benchmark named {:?}; `fieldstone bench LIST` lists them",
            args.name
        ),
    }
}

/// A progress bar on stderr that counts cases. It is hidden if stderr is no terminal. `name` is the
/// name of the command.
fn case_bar(name: &str, cases: usize) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(cases as u64), target);
    let template = format!("{name} [{{bar:32}}] {{pos}}/{{len}}  ETA {{eta}}  {{msg}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_options_of_all_benchmarks_fit_together() {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            _options: super::Args,
        }
        <Program as clap::CommandFactory>::command().debug_assert();
    }
}
