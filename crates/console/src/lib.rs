//! The stdout, stderr and signals of the process, for all commands of `fieldstone`.
//!
//! Results go to stdout (`print_line!`, `print_text!`), all other text goes to stderr
//! (`eprint_line!`). `eprint_line!` waits a bounded time for the reader. No macro panics when a
//! write fails.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
pub mod output;

pub mod signals;
pub mod stderr;
