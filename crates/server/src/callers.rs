//! Clients that have a thread each, as those of the metrics and of the control socket: bounded in
//! number and in time, so that none keeps others out by being slow or silent.
//!
//! A caller is *idle* while the server waits for the client, be it for a request or for the client to
//! take an answer. When one caller too many comes, the one that has been idle longest is hung up on.
//! Callers whose request is being carried out are left alone.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{self, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A caller that was hung up on has a thread for a moment more; so many times the bound is the most
/// that there are.
const THREADS_PER_CALLER: usize = 2;
/// How long a newcomer waits for such a thread to end when there are that many.
const THREAD_LIMIT: Duration = Duration::from_secs(1);

/// A connection that can be given a time limit and hung up on from another thread.
pub trait Line: Send + Sync + 'static {
    /// Reads, for this long at most.
    fn read_within(&self, limit: Duration, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes, for this long at most.
    fn write_within(&self, limit: Duration, bytes: &[u8]) -> io::Result<usize>;
    /// Says that nothing more is written.
    fn end_of_answer(&self);
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
            fn hang_up(&self) {
                // An error means that the client was faster.
                let _ = self.shutdown(net::Shutdown::Both);
            }
        }
    };
}

line!(TcpStream);
line!(UnixStream);

/// A connection, used until a point in time: an operation that ends later fails with `TimedOut`.
pub struct Timed<S> {
    line: Arc<S>,
    deadline: Instant,
}

impl<S: Line> Timed<S> {
    /// To be used for this long from now on.
    pub fn new(line: &Arc<S>, limit: Duration) -> Self {
        Self { line: Arc::clone(line), deadline: Instant::now() + limit }
    }

    /// Sets another time limit.
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
    /// Idle callers, the one that has been idle longest first.
    idle: BTreeMap<u64, Arc<S>>,
    /// All that have a thread.
    callers: usize,
    /// Those of them that were hung up on.
    leaving: usize,
    next_place: u64,
}

/// The callers of one service.
pub struct Callers<S> {
    max: usize,
    table: Mutex<Table<S>>,
    /// A thread has ended.
    ended: Condvar,
}

impl<S: Line> Callers<S> {
    /// At most `max` at a time.
    pub fn new(max: usize) -> Arc<Self> {
        let table = Table { idle: BTreeMap::new(), callers: 0, leaving: 0, next_place: 0 };
        Arc::new(Self { max, table: Mutex::new(table), ended: Condvar::new() })
    }

    fn table(&self) -> MutexGuard<'_, Table<S>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a caller on, idle, and hangs up on another for it if there are too many; waits for a
    /// moment if the threads of too many have not ended yet. None if that is not enough: too many are
    /// being served.
    pub fn take_on(self: &Arc<Self>, line: S) -> Option<Caller<S>> {
        let threads_max = self.max * THREADS_PER_CALLER;
        let crowded = |table: &mut Table<S>| table.callers >= threads_max && table.leaving > 0;
        let waited = self.ended.wait_timeout_while(self.table(), THREAD_LIMIT, crowded);
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

    /// Hangs up on the caller that has been idle longest.
    pub fn give_way(&self) {
        self.table().hang_up_on_oldest();
    }
}

impl<S: Line> Table<S> {
    fn hang_up_on_oldest(&mut self) {
        if let Some((_, line)) = self.idle.pop_first() {
            line.hang_up();
            self.leaving += 1;
        }
    }

    /// Takes a caller out of the idle ones. False if it was hung up on.
    fn leave(&mut self, place: u64) -> bool {
        let was_idle = self.idle.remove(&place).is_some();
        if !was_idle {
            self.leaving -= 1;
        }
        was_idle
    }
}

/// One of them; its place is free when it is dropped.
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

    /// True if it was hung up on for another: nothing need be done for it any more.
    pub fn is_hung_up(&self) -> bool {
        self.place.is_some_and(|place| !self.callers.table().idle.contains_key(&place))
    }

    /// The server waits for the client from now on.
    pub fn idle(&mut self) {
        let mut table = self.callers.table();
        if let Some(place) = self.place {
            table.leave(place);
        }
        let place = table.next_place;
        table.next_place += 1;
        table.idle.insert(place, Arc::clone(&self.line));
        self.place = Some(place);
    }

    /// The client waits for the server from now on. False if it was hung up on before.
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
        // One byte every 50 ms: each is in time, all together are not.
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
