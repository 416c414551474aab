//! What every command of `fieldstone` shares of its process: stdout, stderr and signals.
//!
//! Results go to stdout (`say!`, `put!`), everything else to stderr (`tell!`). Neither makes a
//! command panic or wait for long, whatever becomes of its readers.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
pub mod output;

pub mod signals;
pub mod stderr;
