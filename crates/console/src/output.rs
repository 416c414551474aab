//! What commands say on stdout. A reader that has gone (`head`) is no reason to stop: the command
//! may be a server, or have something left to do. What is lost for another reason (a full disk) is
//! said once, and the exit code tells.

use std::fmt;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

static IS_LOST: AtomicBool = AtomicBool::new(false);

/// True when output was lost although its reader was still there.
pub fn is_lost() -> bool {
    IS_LOST.load(Ordering::Relaxed)
}

/// Writes to stdout, as `print!` does, without a panic.
pub fn put(text: fmt::Arguments<'_>) {
    let written = io::stdout().write_fmt(text);
    if let Err(error) = written.and_then(|()| io::stdout().flush())
        && error.kind() != io::ErrorKind::BrokenPipe
        && !IS_LOST.swap(true, Ordering::Relaxed)
    {
        let text = format_args!("fieldstone: cannot write to stdout: {error}\n");
        crate::stderr::tell(text);
    }
}

/// `print!`, without a panic.
#[macro_export]
macro_rules! put {
    ($($text:tt)*) => { $crate::output::put(format_args!($($text)*)) };
}

/// `println!`, without a panic.
#[macro_export]
macro_rules! say {
    () => { $crate::output::put(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::put(format_args!("{}\n", format_args!($($text)*))) };
}

/// `eprintln!`, without a panic and without a long wait: see `stderr`.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => {
        $crate::stderr::tell(format_args!("{}\n", format_args!($($text)*)))
    };
}
