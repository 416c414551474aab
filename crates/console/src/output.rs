//! The output of commands on stdout. A command goes on when its reader has closed the pipe
//! (`head`): the command may be a server, or have work left. If a write fails for another reason (a
//! full disk), the first failure is reported on stderr, and the exit code is a failure.

use std::fmt;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

static IS_LOST: AtomicBool = AtomicBool::new(false);

/// True if a write to stdout has failed for another reason than a closed pipe.
pub fn is_lost() -> bool {
    IS_LOST.load(Ordering::Relaxed)
}

/// Writes to stdout and flushes, like `print!`, but does not panic.
pub fn print(text: fmt::Arguments<'_>) {
    let written = io::stdout().write_fmt(text);
    if let Err(error) = written.and_then(|()| io::stdout().flush())
        && error.kind() != io::ErrorKind::BrokenPipe
        && !IS_LOST.swap(true, Ordering::Relaxed)
    {
        let text = format_args!("fieldstone: cannot write to stdout: {error}\n");
        crate::stderr::print(text);
    }
}

/// Like `print!`, but does not panic.
#[macro_export]
macro_rules! print_text {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Like `println!`, but does not panic.
#[macro_export]
macro_rules! print_line {
    () => { $crate::output::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($text)*))) };
}

/// Like `eprintln!`, but does not panic and waits only a bounded time: see `stderr`.
#[macro_export]
macro_rules! eprint_line {
    ($($text:tt)*) => {
        $crate::stderr::print(format_args!("{}\n", format_args!($($text)*)))
    };
}
