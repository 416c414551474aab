//! One thread writes all text for stderr: messages of commands and log lines.
//!
//! A write to stderr may fail: the disk behind a redirection is full, or a pipe has no reader. A
//! write may also wait for the reader of a pipe or a terminal, without a bound. Neither may stop a
//! core or the end of a process. So only this thread writes to stderr. The other threads add text
//! to a buffer of bounded size:
//!
//! - A thread adds a log line and does not wait ([`Log`]). A core logs like this.
//! - A command adds a message (`eprint_line!`) and waits until it is written. So the message stands
//!   before the next output of the command on stdout. The wait is bounded. There is no wait while
//!   the reader is known to be stuck.
//! - Texts that do not fit into the buffer, and texts whose write failed, are counted as lost. The
//!   thread writes the count as soon as stderr takes text again.
//! - [`finish`] at the end of the process waits for the remaining text, for a bounded time.
//!
//! The thread has its own descriptor, and does not hold the lock of [`std::io::stderr`] while it
//! writes. So a panic in another thread prints its message without waiting for this thread.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fieldstone_uring::start_thread;

/// Bytes that wait for the thread. The thread may be writing as many more.
const BUFFER_BYTES: usize = 1 << 20;
/// How long a message, or the end of the process, waits for the reader.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many times `PATIENCE` a message waits until the thread takes its text. A busy machine may
/// run the thread late, although the reader is ready.
const WAITS_MAX: u32 = 30;

static STDERR: OnceLock<Arc<Lines>> = OnceLock::new();

/// Starts the thread. If it cannot start, each thread writes its own text to stderr.
pub fn start() {
    let file = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    if let Ok(lines) = file.and_then(Lines::start) {
        let _ = STDERR.set(lines);
    }
}

/// Writes a message of a command, like `eprint!`, but does not panic and waits only a bounded time.
pub fn print(text: fmt::Arguments<'_>) {
    match STDERR.get() {
        Some(lines) => lines.print(text.to_string().as_bytes(), PATIENCE),
        None => drop(io::stderr().write_fmt(text)),
    }
}

/// Waits for a bounded time until all text is written. Call this before the process ends.
pub fn finish() {
    if let Some(lines) = STDERR.get() {
        lines.wait(PATIENCE);
    }
}

/// Writer for log lines. Each `write` is one line, and does not wait for the thread.
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

/// The state that the thread shares with the others.
#[derive(Default)]
struct Buffer {
    text: Vec<u8>,
    /// Messages and log lines in `text`.
    count: u64,
    /// Messages and log lines that were lost, and that no written note has counted yet.
    lost: u64,
    /// Number of the text that is being collected. The numbers begin at 1.
    current: u64,
    /// Number of the last text whose write has succeeded or failed.
    done: u64,
    /// A wait ended without success, and the thread has finished no write since.
    is_stuck: bool,
}

struct Lines {
    buffer: Mutex<Buffer>,
    /// Wakes the thread: `text` is not empty.
    come: Condvar,
    /// Wakes the waiting threads: a write has succeeded or failed.
    gone: Condvar,
}

impl Lines {
    fn start(writer: impl Write + Send + 'static) -> io::Result<Arc<Self>> {
        let buffer = Buffer { current: 1, ..Buffer::default() };
        let (come, gone) = (Condvar::new(), Condvar::new());
        let lines = Arc::new(Self { buffer: Mutex::new(buffer), come, gone });
        let shared = Arc::clone(&lines);
        // The thread must not take signals. The command installs the thread for signals later.
        start_thread("stderr", move || shared.write_all_to(writer))?;
        Ok(lines)
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        // The code under the lock does not panic.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message or a log line, if there is room.
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

    /// Adds a message, and waits until it is written or the time is over.
    fn print(&self, text: &[u8], patience: Duration) {
        self.add(text);
        self.wait(patience);
    }

    /// Waits until the text that was added is written. Does not wait while the reader is stuck.
    fn wait(&self, patience: Duration) {
        let mut buffer = self.lock();
        let last = if buffer.text.is_empty() { buffer.current - 1 } else { buffer.current };
        for _ in 0..WAITS_MAX {
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
                // These texts did not fit into the full buffer, so the buffered text is older.
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

/// Writes everything. Waits when another process has made the terminal non-blocking.
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

    /// Before each write, the test sends whether the write succeeds. After the sender is dropped,
    /// all writes succeed.
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
        lines.print(b"first\n", Duration::from_millis(50));
        assert!(start.elapsed() >= Duration::from_millis(50), "a message is waited for");
        // The reader is stuck now. There is no more wait, and the buffer stays within its bound.
        let line = [b'x'; 1023];
        for _ in 0..BUFFER_BYTES / line.len() + 10 {
            lines.add(&line);
        }
        lines.print(b"last, and too much\n", LONG);
        lines.wait(LONG);
        assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
        drop(go_on);
        assert_eq!(text.recv_timeout(LONG).as_deref(), Ok("first\n"));
        let second = text.recv_timeout(LONG).expect("written");
        assert!(second.len() < BUFFER_BYTES + 100);
        let lost = "xfieldstone: 11 messages were lost: stderr took no more\n";
        assert!(second.ends_with(lost), "{:?}", &second[second.len() - 100..]);
        lines.print(b"again\n", LONG);
        assert_eq!(text.try_recv().as_deref(), Ok("again\n"), "a message is waited for again");
    }

    #[test]
    fn a_disk_that_is_full_stops_no_thread() {
        let (lines, go_on, text) = started();
        go_on.send(false).expect("it waits");
        lines.print(b"lost\n", LONG);
        assert!(text.try_recv().is_err());
        drop(go_on);
        lines.print(b"there\n", LONG);
        let there = text.try_recv().expect("written");
        assert_eq!(there, "there\nfieldstone: 1 messages were lost: stderr took no more\n");
    }
}
