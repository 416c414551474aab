//! Accepts and bounds the clients that have a thread each: those of the metrics, of the control
//! socket and of the metadata service. Bounds their number and time, so that a slow or silent
//! client does not keep other clients out.
//!
//! A caller is *idle* or *busy*. A new caller is idle. A service calls [`Caller::busy`] while it
//! carries out a request. The metrics leave their callers idle. If there are too many callers, the
//! server closes the connection of the caller that has been idle longest. It keeps the connections
//! of busy callers.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{self, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A caller keeps its thread for a moment after the server has closed its connection. There are at
/// most this many times `max` threads.
const THREADS_PER_CALLER: usize = 2;
/// How long a new caller waits for such a thread to end when there are that many threads.
const THREAD_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause before the next accept after a failure, for example without free descriptors.
const RETRY_ACCEPT: Duration = Duration::from_millis(100);

/// A connection whose operations have a time limit, and that another thread can close.
pub trait Line: Send + Sync + 'static {
    /// Reads, for at most `limit`.
    fn read_within(&self, limit: Duration, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes, for at most `limit`.
    fn write_within(&self, limit: Duration, bytes: &[u8]) -> io::Result<usize>;
    /// Ends the sending direction: the answer is complete.
    fn end_of_answer(&self);
    /// Ends the receiving direction: the client's next request is not read.
    fn end_of_requests(&self);
    /// Ends both directions.
    fn hang_up(&self);
}

macro_rules! line {
    ($stream:ty) => {
        impl Line for $stream {
            fn read_within(&self, limit: Duration, buffer: &mut [u8]) -> io::Result<usize> {
                self.set_read_timeout(Some(limit))?;
                (&mut &*self).read(buffer)
            }
            fn write_within(&self, limit: Duration, bytes: &[u8]) -> io::Result<usize> {
                self.set_write_timeout(Some(limit))?;
                (&mut &*self).write(bytes)
            }
            fn end_of_answer(&self) {
                let _ = self.shutdown(net::Shutdown::Write);
            }
            fn end_of_requests(&self) {
                let _ = self.shutdown(net::Shutdown::Read);
            }
            fn hang_up(&self) {
                // The client may have closed the connection already.
                let _ = self.shutdown(net::Shutdown::Both);
            }
        }
    };
}

line!(TcpStream);
line!(UnixStream);

/// A connection with a deadline. An operation after the deadline fails with `TimedOut`.
pub struct Timed<S> {
    line: Arc<S>,
    deadline: Instant,
}

impl<S: Line> Timed<S> {
    /// The connection, with its deadline after `limit` from now.
    pub fn new(line: &Arc<S>, limit: Duration) -> Self {
        Self { line: Arc::clone(line), deadline: Instant::now() + limit }
    }

    /// Sets the deadline to `limit` from now.
    pub fn limit(&mut self, limit: Duration) {
        self.deadline = Instant::now() + limit;
    }

    fn rest(&self) -> io::Result<Duration> {
        let rest = self.deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(rest) }
    }
}

impl<S: Line> Read for Timed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.line.read_within(self.rest()?, buffer)
    }
}

impl<S: Line> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.write_within(self.rest()?, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Table<S> {
    /// Idle callers. The caller that has been idle longest is the first.
    idle: BTreeMap<u64, Arc<S>>,
    /// Callers that have a thread.
    callers: usize,
    /// Callers whose connection was closed to make room, and whose thread has not ended.
    leaving: usize,
    next_place: u64,
    /// No caller may send another request.
    ending: bool,
}

/// The callers of one service.
pub struct Callers<S> {
    max: usize,
    table: Mutex<Table<S>>,
    /// Wakes new callers that wait: a thread has ended.
    ended: Condvar,
}

impl<S: Line> Callers<S> {
    /// Allows at most `max` callers at a time.
    pub fn new(max: usize) -> Arc<Self> {
        let table =
            Table { idle: BTreeMap::new(), callers: 0, leaving: 0, next_place: 0, ending: false };
        Arc::new(Self { max, table: Mutex::new(table), ended: Condvar::new() })
    }

    fn table(&self) -> MutexGuard<'_, Table<S>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes on each connection of a listener, and serves it in a thread of its own, until `ending`
    /// is set and one more connection comes. Closes connections to make room where that is needed,
    /// also when the system has no descriptor for the next one.
    pub fn serve_each(
        self: &Arc<Self>,
        incoming: impl Iterator<Item = io::Result<S>>,
        ending: &AtomicBool,
        name: &str,
        serve: impl Fn(Caller<S>) -> anyhow::Result<()> + Clone + Send + 'static,
    ) {
        for stream in incoming {
            if ending.load(Ordering::Acquire) {
                return;
            }
            let Ok(stream) = stream else {
                self.evict_oldest();
                std::thread::sleep(RETRY_ACCEPT);
                continue;
            };
            let Some(caller) = self.take_on(stream) else { continue };
            let (serve, who) = (serve.clone(), name.to_owned());
            let run = move || {
                if let Err(error) = serve(caller) {
                    tracing::debug!("a {who} went away: {error:#}");
                }
            };
            if let Err(error) = std::thread::Builder::new().name(name.to_owned()).spawn(run) {
                tracing::debug!("no thread for a {name}: {error}");
            }
        }
    }

    /// Accepts a connection as an idle caller. If there are too many callers, closes the connection
    /// of the caller that has been idle longest. If too many threads have not ended, waits up to
    /// `THREAD_TIMEOUT` for one. None if there are still too many threads, or if all callers are
    /// busy.
    pub fn take_on(self: &Arc<Self>, line: S) -> Option<Caller<S>> {
        let threads_max = self.max * THREADS_PER_CALLER;
        let crowded = |table: &mut Table<S>| table.callers >= threads_max && table.leaving > 0;
        let waited = self.ended.wait_timeout_while(self.table(), THREAD_TIMEOUT, crowded);
        let (mut table, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let busy = table.callers - table.idle.len() - table.leaving;
        if busy + table.idle.len() >= self.max {
            table.hang_up_on_oldest();
        }
        if busy >= self.max || table.callers >= threads_max {
            return None;
        }
        table.callers += 1;
        drop(table);
        let mut caller = Caller { callers: Arc::clone(self), line: Arc::new(line), place: None };
        caller.idle();
        Some(caller)
    }

    /// Closes the connection of the caller that has been idle longest.
    fn evict_oldest(&self) {
        self.table().hang_up_on_oldest();
    }

    /// Takes no more requests: a caller that is idle has none, and a busy one gets its answer.
    pub fn end(&self) {
        let mut table = self.table();
        table.ending = true;
        table.idle.values().for_each(|line| line.end_of_requests());
    }
}

impl<S: Line> Table<S> {
    fn hang_up_on_oldest(&mut self) {
        if let Some((_, line)) = self.idle.pop_first() {
            line.hang_up();
            self.leaving += 1;
        }
    }

    /// Removes a caller from the idle ones. False if its connection was closed to make room.
    fn leave(&mut self, place: u64) -> bool {
        let was_idle = self.idle.remove(&place).is_some();
        if !was_idle {
            self.leaving -= 1;
        }
        was_idle
    }
}

/// An accepted caller. Dropping it frees its place.
pub struct Caller<S: Line> {
    callers: Arc<Callers<S>>,
    line: Arc<S>,
    place: Option<u64>,
}

impl<S: Line> Caller<S> {
    /// The connection.
    pub fn line(&self) -> &Arc<S> {
        &self.line
    }

    /// True if the connection of this idle caller was closed to make room. Then it needs no answer.
    pub fn is_hung_up(&self) -> bool {
        self.place.is_some_and(|place| !self.callers.table().idle.contains_key(&place))
    }

    /// Marks the caller as idle: the server waits for the client.
    pub fn idle(&mut self) {
        let mut table = self.callers.table();
        if let Some(place) = self.place {
            table.leave(place);
        }
        if table.ending {
            self.line.end_of_requests();
        }
        let place = table.next_place;
        table.next_place += 1;
        table.idle.insert(place, Arc::clone(&self.line));
        self.place = Some(place);
    }

    /// Marks the caller as busy: the client waits for the server. False if its connection was
    /// closed to make room.
    pub fn busy(&mut self) -> bool {
        let place = self.place.take();
        place.is_some_and(|place| self.callers.table().leave(place))
    }
}

impl<S: Line> Drop for Caller<S> {
    fn drop(&mut self) {
        let mut table = self.callers.table();
        if let Some(place) = self.place {
            table.leave(place);
        }
        table.callers -= 1;
        self.callers.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Default)]
    struct Phone(AtomicBool);

    impl Line for Phone {
        fn read_within(&self, _: Duration, _: &mut [u8]) -> io::Result<usize> {
            Ok(0)
        }
        fn write_within(&self, _: Duration, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }
        fn end_of_answer(&self) {}
        fn end_of_requests(&self) {}
        fn hang_up(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn is_hung_up(caller: &Caller<Phone>) -> bool {
        caller.line().0.load(Ordering::Relaxed)
    }

    #[test]
    fn the_one_that_is_idle_longest_makes_room_and_a_busy_one_stays() {
        let callers = Callers::new(3);
        let take_on = || callers.take_on(Phone::default());
        let mut all: Vec<_> = (0..3).map(|_| take_on().expect("room")).collect();
        assert!(all[0].busy());
        all[1].idle();
        let newcomer = take_on().expect("room is made");
        assert_eq!(all.iter().map(is_hung_up).collect::<Vec<_>>(), [false, false, true]);
        assert!(!is_hung_up(&newcomer));
        drop(all.remove(2));
        assert!(all[1].is_hung_up() == is_hung_up(&all[1]) && !newcomer.is_hung_up());
        drop(newcomer);
        let next = take_on().expect("a place was free");
        assert!(!is_hung_up(&all[1]) && !is_hung_up(&next));
    }

    #[test]
    fn threads_are_bounded_also_while_those_hung_up_on_have_not_ended() {
        let callers = Callers::new(2);
        let kept: Vec<_> = (0..6).filter_map(|_| callers.take_on(Phone::default())).collect();
        assert_eq!(kept.len(), 4);
        let late = {
            let callers = Arc::clone(&callers);
            std::thread::spawn(move || callers.take_on(Phone::default()).is_some())
        };
        drop(kept);
        assert!(late.join().expect("no panic"), "it waits for those who leave");
        let table = callers.table();
        assert_eq!((table.callers, table.leaving), (0, 0));
        drop(table);
        let mut busy: Vec<_> = (0..2).filter_map(|_| callers.take_on(Phone::default())).collect();
        assert!(busy.iter_mut().all(Caller::busy));
        assert!(callers.take_on(Phone::default()).is_none(), "both are being served");
        busy[0].idle();
        assert!(callers.take_on(Phone::default()).is_some() && is_hung_up(&busy[0]));
    }

    #[test]
    fn a_time_limit_covers_all_that_is_read() {
        let (left, mut right) = UnixStream::pair().expect("descriptors");
        let line = Arc::new(left);
        let mut timed = Timed::new(&line, Duration::from_millis(300));
        let begun = Instant::now();
        let mut bytes = 0;
        // Writes one byte every 50 ms. Each read is in time, but all reads together take too long.
        let error = loop {
            right.write_all(b"x").expect("taken");
            std::thread::sleep(Duration::from_millis(50));
            match timed.read(&mut [0; 1]) {
                Ok(count) => bytes += count,
                Err(error) => break error,
            }
        };
        assert!((1..20).contains(&bytes), "{bytes} bytes in {:?}", begun.elapsed());
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
