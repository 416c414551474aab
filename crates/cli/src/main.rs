//! The `fieldstone` command: a protected block device over NBD, and the tools around it.
//!
//! One file per subcommand, under `command/`. What several of them share lies beside them: the
//! pool's folder (`pool/`), the conversation with a running server (`control/`), tables and bars.
//!
//! Exit codes: 0 done, 1 an error (told on stderr: what happened, to which thing, what to do),
//! 2 the command line makes no sense. Results go to stdout (`say!`), everything else to stderr
//! (`tell!`).

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;

mod accelerator;
mod bench;
mod callers;
mod command;
mod control;
mod engine;
mod listen;
mod logging;
mod metrics;
mod nbd_disk;
mod pool;
mod progress;
mod quickstart;
mod report;
mod signals;
mod stderr;
mod target;

use std::process::ExitCode;

use clap::Parser;

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
