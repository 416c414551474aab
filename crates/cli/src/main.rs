//! The `fieldstone` command: a protected block device over NBD, and the tools around it.
//!
//! Arguments and printing: one file per subcommand, under `command/`, and beside them what several
//! share, tables and bars. What commands do is in `fieldstone-server`, what benchmarks do in
//! `fieldstone-bench`.
//!
//! Exit codes: 0 done, 1 an error (told on stderr: what happened, to which thing, what to do),
//! 2 the command line makes no sense. Results go to stdout (`say!`), everything else to stderr
//! (`tell!`).

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate fieldstone_console;

mod command;
mod logging;
mod nbd_disk;
mod progress;
mod quickstart;
mod report;

use std::process::ExitCode;

use clap::Parser;
use fieldstone_console::{output, stderr};

fn main() -> ExitCode {
    let options = command::Options::parse();
    logging::start(options.verbose, options.command.is_quiet());
    let code = match options.command.run() {
        Ok(()) if output::is_lost() => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !is_broken_pipe(&error) {
                tell!("fieldstone: {error:#}");
            }
            ExitCode::FAILURE
        }
    };
    stderr::finish();
    code
}

/// A reader such as `head` closed our stdout: nothing that deserves a message.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
