//! Logs: through `tracing` to stderr, quiet unless asked. No thread that logs waits for stderr, nor
//! is it ended by a stderr that fails: see [`stderr`].

use std::io::IsTerminal;

use fieldstone_console::stderr;
use tracing_subscriber::EnvFilter;

/// Starts logging: warnings by default, or nothing if `quiet`; more with every `-v`.
/// `FIELDSTONE_LOG` overrides both.
pub fn start(verbose: u8, quiet: bool) {
    stderr::start();
    let level = match verbose {
        0 if quiet => "off",
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter =
        EnvFilter::try_from_env("FIELDSTONE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| stderr::Log)
        // It would tell with a panic.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
