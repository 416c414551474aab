//! The `fieldstone` command: protected block devices over NBD, and the tools for them.
//!
//! This crate reads arguments and prints results. `command/` has one file per subcommand. The
//! other modules have the tables and progress bars that several subcommands share. The work of
//! the commands is in `fieldstone-server`, that of the benchmarks in `fieldstone-bench`.
//!
//! Exit codes: 0: done. 1: an error; the message on stderr says what happened, to which thing, and
//! what to do. 2: the command line is invalid. 130: a second SIGINT or SIGTERM ended the command at
//! once. Results go to stdout (`print_line!`), all other messages to stderr (`eprint_line!`).

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
                eprint_line!("fieldstone: {error:#}");
            }
            ExitCode::FAILURE
        }
    };
    stderr::finish();
    code
}

/// True if a reader such as `head` closed the pipe at stdout. The command then prints no message.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
