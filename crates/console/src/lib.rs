//! The stdout, stderr and signals of the process, for all commands of `fieldstone`.
//!
//! Results go to stdout (`say!`, `put!`), all other text goes to stderr (`tell!`). `tell!` waits a
//! bounded time for the reader. No macro panics when a write fails.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
pub mod output;

pub mod signals;
pub mod stderr;
