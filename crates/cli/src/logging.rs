//! Logging through `tracing` to stderr. No thread that logs waits for stderr, and a failed write to
//! stderr ends no thread: see [`stderr`].

use std::io::IsTerminal;

use fieldstone_console::stderr;
use tracing_subscriber::EnvFilter;

/// Starts logging. The level is warnings, or nothing if `quiet`; each `-v` raises it.
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
        // `tracing` reports its own errors with `eprintln!`, which panics if stderr fails.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
