//! What goes to stderr, messages of commands and log lines alike, is written by one thread.
//!
//! A write to stderr may fail (a full disk behind a redirection, a pipe without a reader), and it
//! may wait for as long as the reader of a pipe or a terminal likes. Neither may stop a core or the
//! end of a process. So no thread but one writes there. The others add to a buffer of bounded size:
//!
//! - A log line is added and not waited for ([`Log`]). A core logs like this.
//! - A message (`tell!`) is added and waited for, so that it stands before what the
//!   command says next on stdout. The wait is bounded, and while the reader is known to be stuck,
//!   there is none.
//! - What the buffer does not hold, and what cannot be written, is counted. The count is told as
//!   soon as stderr takes text again.
//! - [`finish`] at the end of the process gives the thread a moment for the rest.
//!
//! The thread has a descriptor of its own, and does not hold the lock of [`std::io::stderr`] while
//! it writes: what a panic says in another thread does not wait for it.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::signals;

/// Most text that waits for the reader; as much again may be on its way to it.
const BUFFER_BYTES: usize = 1 << 20;
/// How long a message waits for its reader, and the end of the process for the last ones.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many times `PATIENCE` a message waits for the thread that writes. A busy machine runs that
/// thread late, and the reader is not at fault then.
const TURNS_MAX: u32 = 30;

static STDERR: OnceLock<Arc<Lines>> = OnceLock::new();

/// Starts the thread. Without it, text is written where it stands.
pub fn start() {
    let file = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    if let Ok(lines) = file.and_then(Lines::start) {
        let _ = STDERR.set(lines);
    }
}

/// Writes a message of a command, as `eprint!` does, without a panic and without a long wait.
pub fn tell(text: fmt::Arguments<'_>) {
    match STDERR.get() {
        Some(lines) => lines.tell(text.to_string().as_bytes(), PATIENCE),
        None => drop(io::stderr().write_fmt(text)),
    }
}

/// Waits a moment until all is written. Call it before the process ends.
pub fn finish() {
    if let Some(lines) = STDERR.get() {
        lines.wait(PATIENCE);
    }
}

/// Takes log lines. Each write is one, and never waits.
#[derive(Clone, Copy, Debug)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match STDERR.get() {
            Some(lines) => lines.add(line),
            None => drop(io::stderr().write_all(line)),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the writing thread and the others share.
#[derive(Default)]
struct Buffer {
    text: Vec<u8>,
    /// Messages and lines in `text`.
    count: u64,
    /// Messages and lines that were lost and not told of yet.
    lost: u64,
    /// Number of the text that is in the making, and of the last one that was dealt with.
    current: u64,
    done: u64,
    /// A wait was in vain, and nothing has been written since.
    is_stuck: bool,
}

struct Lines {
    buffer: Mutex<Buffer>,
    /// There is text.
    come: Condvar,
    /// Text was written, or could not be.
    gone: Condvar,
}

impl Lines {
    fn start(writer: impl Write + Send + 'static) -> io::Result<Arc<Self>> {
        let buffer = Buffer { current: 1, ..Buffer::default() };
        let (come, gone) = (Condvar::new(), Condvar::new());
        let lines = Arc::new(Self { buffer: Mutex::new(buffer), come, gone });
        let shared = Arc::clone(&lines);
        // Signals are for the thread that waits for them, which a command starts later.
        let _blocked = signals::block_all();
        std::thread::Builder::new()
            .name("stderr".to_owned())
            .spawn(move || shared.write_all_to(writer))?;
        Ok(lines)
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        // No code that can panic runs under the lock.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message or a line, if there is room.
    fn add(&self, text: &[u8]) {
        let mut buffer = self.lock();
        if buffer.text.len() + text.len() > BUFFER_BYTES {
            buffer.lost += 1;
            return;
        }
        buffer.text.extend_from_slice(text);
        buffer.count += 1;
        self.come.notify_one();
    }

    /// Adds a message and waits until it is written.
    fn tell(&self, text: &[u8], patience: Duration) {
        self.add(text);
        self.wait(patience);
    }

    /// Waits until all that was added is written. Does not wait for a reader that is stuck.
    fn wait(&self, patience: Duration) {
        let mut buffer = self.lock();
        let last = if buffer.text.is_empty() { buffer.current - 1 } else { buffer.current };
        for _ in 0..TURNS_MAX {
            let waits = |buffer: &mut Buffer| buffer.done < last && !buffer.is_stuck;
            let waited = self.gone.wait_timeout_while(buffer, patience, waits);
            buffer = waited.unwrap_or_else(PoisonError::into_inner).0;
            let at_reader = buffer.done + 1 < buffer.current;
            if at_reader || buffer.is_stuck || buffer.done >= last {
                break;
            }
        }
        buffer.is_stuck = buffer.done < last;
    }

    fn write_all_to(&self, mut writer: impl Write) {
        loop {
            let buffer = self.lock();
            let waited = self.come.wait_while(buffer, |buffer| buffer.text.is_empty());
            let mut buffer = waited.unwrap_or_else(PoisonError::into_inner);
            let mut text = mem::take(&mut buffer.text);
            let (count, lost) = (mem::take(&mut buffer.count), mem::take(&mut buffer.lost));
            let current = buffer.current;
            buffer.current += 1;
            drop(buffer);
            if lost > 0 {
                // The buffer was full when they were lost: its text is older than they.
                let note = format!("fieldstone: {lost} messages were lost: stderr took no more\n");
                text.extend_from_slice(note.as_bytes());
            }
            let is_written = write_patiently(&mut writer, &text).is_ok();
            let mut buffer = self.lock();
            if !is_written {
                buffer.lost += lost + count;
            }
            buffer.done = current;
            buffer.is_stuck = false;
            self.gone.notify_all();
        }
    }
}

/// Writes everything, also where the other side of a terminal has made it non-blocking.
fn write_patiently(writer: &mut impl Write, mut text: &[u8]) -> io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(10);
    while !text.is_empty() {
        match writer.write(text) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => text = &text[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    use super::*;

    /// Each write waits for a word from the test: whether it succeeds. Then it never waits again.
    struct Reader(Receiver<bool>, Sender<String>);

    impl Write for Reader {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            if !self.0.recv().unwrap_or(true) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let _ = self.1.send(String::from_utf8_lossy(text).into_owned());
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn started() -> (Arc<Lines>, Sender<bool>, Receiver<String>) {
        let (go_on, may_go_on) = channel();
        let (read, text) = channel();
        (Lines::start(Reader(may_go_on, read)).expect("a thread"), go_on, text)
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_reader_that_is_stuck_stops_no_thread_and_is_told_what_was_lost() {
        let (lines, go_on, text) = started();
        let start = Instant::now();
        lines.tell(b"first\n", Duration::from_millis(50));
        assert!(start.elapsed() >= Duration::from_millis(50), "a message is waited for");
        // It is stuck now. No patience is used up any more, and no memory beyond the bound.
        let line = [b'x'; 1023];
        for _ in 0..BUFFER_BYTES / line.len() + 10 {
            lines.add(&line);
        }
        lines.tell(b"last, and too much\n", LONG);
        lines.wait(LONG);
        assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
        drop(go_on);
        assert_eq!(text.recv_timeout(LONG).as_deref(), Ok("first\n"));
        let second = text.recv_timeout(LONG).expect("written");
        assert!(second.len() < BUFFER_BYTES + 100);
        let lost = "xfieldstone: 11 messages were lost: stderr took no more\n";
        assert!(second.ends_with(lost), "{:?}", &second[second.len() - 100..]);
        lines.tell(b"again\n", LONG);
        assert_eq!(text.try_recv().as_deref(), Ok("again\n"), "a message is waited for again");
    }

    #[test]
    fn a_disk_that_is_full_stops_no_thread() {
        let (lines, go_on, text) = started();
        go_on.send(false).expect("it waits");
        lines.tell(b"lost\n", LONG);
        assert!(text.try_recv().is_err());
        drop(go_on);
        lines.tell(b"there\n", LONG);
        let there = text.try_recv().expect("written");
        assert_eq!(there, "there\nfieldstone: 1 messages were lost: stderr took no more\n");
    }
}
