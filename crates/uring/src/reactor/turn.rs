//! The turn: submit, wait, collect.

use std::io;
use std::os::fd::RawFd;

use fieldstone_block::Nanos;
use io_uring::{EnterFlags, cqueue, opcode, squeue, types};

use super::start::user_data;
use super::{Holder, QUIET_MAX, Queued, Reactor};
use crate::clock;
use crate::event::{Event, Payload};
use crate::op::{Op, Step};
use crate::socket::Socket;

/// User data of the poll that watches the bell. No flight has this value: it would need the last
/// slot of 2^32.
const BELL: u64 = u64::MAX;
/// User data of cancellations. The reactor does not need their results.
const CANCEL: u64 = u64::MAX - 1;
/// Send buffer of accepted Unix sockets. The system's 208 KiB hold one answer of 128 KiB. With
/// several answers in flight, each would wait until the client wakes up and reads the one before.
const UNIX_SEND_BYTES: u32 = 1 << 20;
/// [`Reactor::submit_early`] submits no fewer operations: each call of the kernel costs about as
/// much as one of them.
const EARLY_MIN: usize = 3;
/// How often a poll checks for work between two readings of the clock.
const CHECKS_PER_CLOCK: u32 = 8;
/// How many times in a row a step may fail with `EINTR` or `EAGAIN`.
const MAX_REPEATS: u8 = 16;

/// A completion queue entry, copied out of the ring.
#[derive(Clone, Copy)]
pub(super) struct KernelResult {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// How long a turn may last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnLimit {
    None,
    Until(Nanos),
    Endless,
}

/// Whether an `io_uring_enter` may sleep.
enum Sleep {
    No,
    For(Nanos),
    Endless,
}

/// Whether the reactor polled before a wait.
#[derive(PartialEq, Eq)]
enum Polled {
    No,
    /// There is work: results, deferred work of the kernel, or mail.
    Found,
    InVain,
}

/// How an `io_uring_enter` ended.
#[derive(PartialEq, Eq)]
enum Entered {
    Normally,
    /// A signal came.
    Interrupted,
    /// The kernel accepts no more entries before the reactor takes completions.
    Congested,
}

impl Reactor {
    /// Submits the started operations and waits until there is at least one event. Appends the
    /// events to `events` and returns their number. May return without an event when a signal
    /// interrupts it. With no operation in flight, no timer and no mailbox it waits forever.
    ///
    /// # Errors
    /// The kernel refuses the ring itself. Operations report their errors in their events.
    pub fn turn(&mut self, events: &mut Vec<Event>) -> io::Result<usize> {
        self.run(events, TurnLimit::Endless)
    }

    /// As [`Reactor::turn`], but waits at most until `deadline`.
    ///
    /// # Errors
    /// As [`Reactor::turn`].
    pub fn turn_until(&mut self, events: &mut Vec<Event>, deadline: Nanos) -> io::Result<usize> {
        self.run(events, TurnLimit::Until(deadline))
    }

    /// As [`Reactor::turn`], but never waits. Makes no system call if no operation was started and
    /// none completed.
    ///
    /// # Errors
    /// As [`Reactor::turn`].
    pub fn turn_nowait(&mut self, events: &mut Vec<Event>) -> io::Result<usize> {
        self.run(events, TurnLimit::None)
    }

    /// Submits the started operations now if they are several, and lets the kernel work while the
    /// caller goes on. If the ring fails, the next turn says so.
    pub fn submit_early(&mut self) {
        if self.ring.submission().len() >= EARLY_MIN {
            drop(self.enter(&Sleep::No));
        }
    }

    fn run(&mut self, events: &mut Vec<Event>, limit: TurnLimit) -> io::Result<usize> {
        let before = events.len();
        loop {
            self.refill();
            let mut sleep = self.sleep(limit);
            let polled = self.poll(&sleep)?;
            match polled {
                Polled::No => {}
                Polled::Found => sleep = Sleep::No,
                Polled::InVain => sleep = self.sleep(limit),
            }
            if !matches!(sleep, Sleep::No)
                && self.bell.as_ref().is_some_and(|bell| !bell.try_sleep())
            {
                sleep = Sleep::No;
            }
            let slept_at = self.now;
            let entered = self.enter(&sleep);
            self.now = clock::now();
            if polled == Polled::No && matches!(sleep, Sleep::For(_) | Sleep::Endless) {
                self.polling.slept(self.now.since(slept_at));
            }
            // This comes before the return of an error: the bell must not stay in its sleeping
            // state.
            self.collect_mail(events);
            let entered = entered?;
            let taken = self.reap(events);
            while let Some(token) = self.timers.pop_due(self.now) {
                events.push(Event { token, result: Ok(0), payload: Payload::Timer });
            }
            events.extend(self.local.drain(..));
            if entered == Entered::Congested && taken == 0 && events.len() == before {
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
            let over = match limit {
                TurnLimit::None => true,
                TurnLimit::Until(deadline) => deadline <= self.now,
                TurnLimit::Endless => false,
            };
            if over || events.len() > before || entered == Entered::Interrupted {
                return Ok(events.len() - before);
            }
        }
    }

    /// Decides whether the next `io_uring_enter` may sleep, and how long.
    fn sleep(&mut self, limit: TurnLimit) -> Sleep {
        if limit == TurnLimit::None || !self.local.is_empty() || !self.backlog.is_empty() {
            return Sleep::No;
        }
        let limit = match limit {
            TurnLimit::Until(deadline) => Some(deadline),
            _ => None,
        };
        let deadline = match (limit, self.timers.nearest()) {
            (Some(limit), Some(timer)) => limit.min(timer),
            (limit, timer) => match limit.or(timer) {
                Some(deadline) => deadline,
                None => return Sleep::Endless,
            },
        };
        match deadline.since(self.fresh_now()) {
            Nanos(0) => Sleep::No,
            rest => Sleep::For(rest),
        }
    }

    /// Polls before a wait, if that pays: submits the queue, and then looks for work without system
    /// calls.
    fn poll(&mut self, sleep: &Sleep) -> io::Result<Polled> {
        let limit = match (self.polling.limit(), sleep) {
            (None, _) | (_, Sleep::No) => return Ok(Polled::No),
            (Some(limit), Sleep::For(rest)) => limit.min(*rest),
            (Some(limit), Sleep::Endless) => limit,
        };
        if self.has_work() {
            // The wait will end at once.
            return Ok(Polled::No);
        }
        if self.enter(&Sleep::No)? != Entered::Normally || self.has_work() {
            return Ok(Polled::Found);
        }
        let end = clock::now().plus(limit);
        loop {
            for _ in 0..CHECKS_PER_CLOCK {
                if self.has_work() {
                    self.polling.found();
                    self.counters.polls_found += 1;
                    return Ok(Polled::Found);
                }
                std::hint::spin_loop();
            }
            if clock::now() >= end {
                self.polling.in_vain();
                self.counters.polls_in_vain += 1;
                return Ok(Polled::InVain);
            }
        }
    }

    /// True if a turn that does not wait would find something.
    fn has_work(&mut self) -> bool {
        let queue = self.ring.submission();
        let kernel_has_work = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        let quiet = if self.hears_sends { 0 } else { self.quiet_sent as usize };
        kernel_has_work
            || self.ring.completion().len() > quiet
            || self.bell.as_ref().is_some_and(|bell| bell.has_rung())
    }

    /// How many results the next `io_uring_enter` waits for, and for how long.
    fn wanted(&mut self, sleep: &Sleep) -> (u32, Option<Nanos>) {
        self.quiet_sent += std::mem::take(&mut self.quiet_queued);
        let quiet = if self.hears_sends { 0 } else { self.quiet_sent };
        match *sleep {
            Sleep::No => (0, None),
            Sleep::For(rest) if quiet > 0 => (1 + quiet, Some(rest.min(QUIET_MAX))),
            Sleep::Endless if quiet > 0 => (1 + quiet, Some(QUIET_MAX)),
            Sleep::For(rest) => (1, Some(rest)),
            Sleep::Endless => (1, None),
        }
    }

    /// One `io_uring_enter`: submits the queue, runs the kernel's deferred work, and sleeps if
    /// allowed. Makes no call if there is no work.
    fn enter(&mut self, sleep: &Sleep) -> io::Result<Entered> {
        let no_iowait = self.ring.params().is_feature_no_iowait();
        let queue = self.ring.submission();
        let to_submit = u32::try_from(queue.len()).expect("at most 32768 entries");
        let kernel_has_work = queue.taskrun() || queue.cq_overflow();
        drop(queue);

        let may_sleep = !matches!(sleep, Sleep::No);
        if to_submit == 0 && !kernel_has_work && !may_sleep {
            return Ok(Entered::Normally);
        }
        let mut flags = EnterFlags::EXT_ARG;
        if may_sleep || kernel_has_work {
            flags |= EnterFlags::GETEVENTS;
        }
        if may_sleep && no_iowait {
            // A server that waits for its clients is idle and does not wait for a disk.
            flags |= EnterFlags::NO_IOWAIT;
        }
        let (wanted, limit) = self.wanted(sleep);
        let timeout = limit.map(|Nanos(nanos)| {
            types::Timespec::new()
                .sec(nanos / 1_000_000_000)
                .nsec(u32::try_from(nanos % 1_000_000_000).expect("below 10^9"))
        });
        let mut args = types::SubmitArgs::new();
        if let Some(timeout) = &timeout {
            args = args.timespec(timeout);
        }
        self.counters.enters += 1;
        self.counters.waits += u64::from(may_sleep);
        let submitter = self.ring.submitter();
        // SAFETY: the flags say that the argument is extended, which `args` is; it and the
        // timeout it points to outlive the call. Every queued entry points only to memory that its
        // flight owns (see `put`).
        let outcome = unsafe { submitter.enter(to_submit, wanted, flags.bits(), Some(&args)) };
        match outcome {
            Ok(submitted) => {
                self.counters.sqes += submitted as u64;
                Ok(Entered::Normally)
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME) => Ok(Entered::Normally),
                Some(libc::EINTR) => Ok(Entered::Interrupted),
                Some(libc::EBUSY | libc::EAGAIN) => Ok(Entered::Congested),
                _ => Err(error),
            },
        }
    }

    fn collect_mail(&mut self, events: &mut Vec<Event>) {
        if !self.bell.as_ref().is_some_and(|bell| bell.answer()) {
            return;
        }
        self.inboxes.retain(|(_, inbox)| !inbox.is_closed());
        for (token, inbox) in &self.inboxes {
            if inbox.is_waiting() {
                events.push(Event { token: *token, result: Ok(0), payload: Payload::Mail });
            }
        }
    }

    /// Takes every result that the kernel has posted, and returns their number.
    fn reap(&mut self, events: &mut Vec<Event>) -> usize {
        let mut results = std::mem::take(&mut self.results);
        self.read_results(&mut results);
        (self.quiet_sent, self.hears_sends) = (0, false);
        let count = results.len();
        for result in results.drain(..) {
            self.settle(result, events);
        }
        self.results = results;
        count
    }

    fn read_results(&mut self, results: &mut Vec<KernelResult>) {
        let before = results.len();
        results.extend(self.ring.completion().map(|entry| KernelResult {
            user_data: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }));
        self.counters.cqes += (results.len() - before) as u64;
    }

    fn settle(&mut self, result: KernelResult, events: &mut Vec<Event>) {
        match result.user_data {
            CANCEL => return,
            BELL => {
                self.counters.wakes += 1;
                if !cqueue::more(result.flags) {
                    self.enqueue(Queued::WatchBell);
                }
                return;
            }
            _ => {}
        }
        let (key, flight) = self.flight_of(result.user_data);
        if matches!(flight.op, Op::Accept { .. }) {
            self.settle_accept(key, result, events);
            return;
        }
        let transient = matches!(-result.result, libc::EINTR | libc::EAGAIN);
        if transient && flight.op.is_repeatable() && flight.repeats < MAX_REPEATS {
            flight.repeats += 1;
            if flight.cancelled {
                self.finish(key, Err(io::Error::from_raw_os_error(libc::ECANCELED)), events);
            } else {
                flight.op.end_quiet();
                self.enqueue(Queued::Step(key));
            }
            return;
        }
        flight.repeats = 0;
        match flight.op.advance(result.result) {
            Step::Again if flight.cancelled => {
                self.finish(key, Err(io::Error::from_raw_os_error(libc::ECANCELED)), events);
            }
            Step::Again => {
                flight.op.end_quiet();
                self.counters.continuations += 1;
                self.enqueue(Queued::Step(key));
            }
            Step::Done(result) => self.finish(key, result, events),
        }
    }

    /// An accept has one result per connection. After the last result of a multishot it must be
    /// renewed.
    fn settle_accept(&mut self, key: usize, result: KernelResult, events: &mut Vec<Event>) {
        let flight = &mut self.flights[key];
        let Op::Accept { listener, multishot } = &mut flight.op else {
            unreachable!("the caller looked");
        };
        if result.result >= 0 {
            let socket = accepted(result.result, listener.is_tcp());
            let payload = Payload::Socket(socket);
            events.push(Event { token: flight.token, result: Ok(0), payload });
            if cqueue::more(result.flags) {
                return;
            }
        } else {
            match -result.result {
                // A kernel before 5.19.
                libc::EINVAL if *multishot => {
                    *multishot = false;
                    self.multishot_accept = false;
                }
                // That connection is gone. The next one may work.
                libc::ECONNABORTED | libc::EPROTO | libc::EINTR | libc::EAGAIN => {}
                error => {
                    self.finish(key, Err(io::Error::from_raw_os_error(error)), events);
                    return;
                }
            }
        }
        if self.flights[key].cancelled {
            self.finish(key, Err(io::Error::from_raw_os_error(libc::ECANCELED)), events);
        } else {
            self.enqueue(Queued::Step(key));
        }
    }

    /// The flight that a result belongs to.
    fn flight_of(&mut self, user_data: u64) -> (usize, &mut super::Flight) {
        let key = (user_data & u64::from(u32::MAX)) as usize;
        let flight = self.flights.get_mut(key).expect("a flight lives until its last result");
        assert_eq!(
            u64::from(flight.generation),
            user_data >> 32,
            "a slot is freed only by a result"
        );
        (key, flight)
    }

    fn finish(&mut self, key: usize, result: io::Result<u32>, events: &mut Vec<Event>) {
        let flight = self.flights.remove(key);
        let lane = flight.op.send_lane();
        let payload = flight.op.finish(&result, &mut self.lists);
        events.push(Event { token: flight.token, result, payload });
        if let Some(lane) = lane {
            self.next_in_lane(lane, key);
        }
    }

    /// The send `key` at the front of a lane is over: starts the next.
    fn next_in_lane(&mut self, lane: usize, key: usize) {
        let front = self.lanes[lane].pop_front();
        assert_eq!(front, Some(key), "only the front of a lane is under way");
        self.hears_sends |= self.lanes[lane].len() > 1;
        if let Some(next) = self.lanes[lane].front() {
            let next = *next;
            self.enqueue(Queued::Step(next));
        }
    }

    /// Puts an entry into the submission queue, or into the backlog if there is no room.
    pub(super) fn enqueue(&mut self, queued: Queued) {
        if !self.backlog.is_empty() || !self.put(queued) {
            if let Queued::Step(key) = queued {
                self.flights[key].holder = Holder::Backlog;
            }
            self.backlog.push_back(queued);
            let peak = self.backlog.len() as u64;
            self.counters.backlog_peak = self.counters.backlog_peak.max(peak);
        }
    }

    /// Moves the backlog into the submission queue, as far as there is room.
    pub(super) fn refill(&mut self) {
        while let Some(queued) = self.backlog.front() {
            let queued = *queued;
            if let Queued::Step(key) = queued
                && self.flights[key].cancelled
            {
                self.backlog.pop_front();
                let mut events = Vec::new();
                self.finish(key, Err(io::Error::from_raw_os_error(libc::ECANCELED)), &mut events);
                self.local.extend(events);
            } else if self.put(queued) {
                self.backlog.pop_front();
            } else {
                return;
            }
        }
    }

    /// Writes an entry to the submission queue; false if it is full.
    fn put(&mut self, queued: Queued) -> bool {
        let mut queue = self.ring.submission();
        if queue.is_full() {
            return false;
        }
        let entry = match queued {
            Queued::Step(key) => {
                let flight = &mut self.flights[key];
                flight.holder = Holder::Kernel;
                self.quiet_queued += u32::from(flight.op.begin_quietly());
                let name = user_data(key, flight.generation);
                flight.op.entry().user_data(name)
            }
            Queued::Cancel(name) => opcode::AsyncCancel::new(name).build().user_data(CANCEL),
            Queued::WatchBell => match &self.bell {
                Some(bell) => watch(bell.raw()),
                None => unreachable!("only queued once there is a bell"),
            },
        };
        // SAFETY: what the entry points to is owned by its flight, which stays in the slab until
        // its last result is in (or is leaked, see `drain`); the bell and cancellations point to
        // no memory.
        unsafe { queue.push(&entry) }.expect("not full, as just seen");
        true
    }

    /// During shutdown the tokens and sockets of results are useless. This only frees memory that
    /// the kernel no longer uses.
    pub(super) fn discard_results(&mut self) {
        let mut results = std::mem::take(&mut self.results);
        self.read_results(&mut results);
        for result in results.drain(..) {
            if matches!(result.user_data, CANCEL | BELL) {
                continue;
            }
            let (key, flight) = self.flight_of(result.user_data);
            if matches!(flight.op, Op::Accept { .. }) && result.result >= 0 {
                drop(accepted(result.result, false));
            }
            if !cqueue::more(result.flags) {
                self.flights.remove(key);
            }
        }
        self.results = results;
    }

    /// Submits and waits up to `nanos`, during shutdown.
    pub(super) fn enter_draining(&mut self, nanos: Nanos) -> io::Result<()> {
        self.enter(&Sleep::For(nanos)).map(|_| ())
    }
}

/// Wraps a connection that the kernel just accepted.
fn accepted(raw: RawFd, tcp: bool) -> Socket {
    // SAFETY: the kernel made the descriptor for this result, and no other code has seen it.
    let socket = unsafe { Socket::from_fresh(raw) };
    // The kernel sizes TCP buffers itself.
    let tuned = if tcp { socket.tune_tcp() } else { socket.set_send_buffer(UNIX_SEND_BYTES) };
    if let Err(error) = tuned {
        tracing::debug!(%error, "an accepted connection stays as the system made it");
    }
    socket
}

/// The multishot poll that completes once for every write to the bell's eventfd.
fn watch(bell: RawFd) -> squeue::Entry {
    opcode::PollAdd::new(types::Fd(bell), libc::POLLIN as u32).multi(true).build().user_data(BELL)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;
    use std::time::Duration;

    use fieldstone_buf::AlignedBuf;

    use super::*;
    use crate::reactor::poll::Polling;
    use crate::thread::allowed_cpus;
    use crate::{Caching, File, ReactorOptions, TaskRun, Token};

    /// How long the other thread waits before it sends: far less than the longest poll.
    const DELAY: Duration = Duration::from_millis(5);

    /// A reactor that polls before its first wait, and far longer than [`DELAY`].
    fn polling_reactor(task_run: TaskRun) -> Reactor {
        let options = ReactorOptions { entries: 4, task_run, ..ReactorOptions::default() };
        let mut reactor = Reactor::new(options).expect("io_uring");
        reactor.polling = Polling::at_once(Nanos::from_ms(10_000));
        reactor
    }

    /// Runs one turn, whose event ends a poll, so that no system call sleeps.
    fn turn_without_sleep(reactor: &mut Reactor) -> Event {
        let mut events = Vec::new();
        while events.is_empty() {
            reactor.turn(&mut events).expect("the ring works");
        }
        let counters = reactor.counters();
        assert_eq!((counters.polls_found, counters.polls_in_vain), (1, 0), "{counters:?}");
        assert_eq!(counters.waits, 0, "{counters:?}");
        events.pop().expect("one event")
    }

    /// A thread that is pinned polls as another does: the machine has other CPUs.
    #[test]
    fn a_pinned_reactor_polls() {
        let allowed = allowed_cpus().expect("the system knows");
        let options = ReactorOptions { cpu: Some(allowed[0]), ..ReactorOptions::default() };
        let mut reactor = Reactor::new(options).expect("a ring");
        (0..4).for_each(|_| reactor.polling.slept(Nanos(1000)));
        assert_eq!(reactor.polling.limit().is_some(), allowed.len() > 1);
    }

    #[test]
    fn mail_ends_a_poll() {
        let mut reactor = polling_reactor(TaskRun::Deferred);
        let (sender, mailbox) = reactor.mailbox::<u8>(1, Token(1)).expect("descriptors");
        let other = thread::spawn(move || {
            thread::sleep(DELAY);
            sender.send(7).expect("room for one");
        });
        assert!(matches!(turn_without_sleep(&mut reactor).payload, Payload::Mail));
        other.join().expect("no panic");
        let mut mail = Vec::new();
        mailbox.drain(&mut mail);
        assert_eq!(mail, [7]);
        assert_eq!(reactor.counters().wakes, 0, "the sender did not have to wake the reactor");
    }

    #[test]
    fn a_completion_ends_a_poll() {
        for task_run in [TaskRun::Deferred, TaskRun::Cooperative, TaskRun::Interrupting] {
            let mut reactor = polling_reactor(task_run);
            let (from, mut to) = std::io::pipe().expect("descriptors");
            let from = File::from_descriptor(from.into(), Caching::Buffered);
            reactor.read(&from, 0, AlignedBuf::zeroed(3), Token(1));
            let other = thread::spawn(move || {
                thread::sleep(DELAY);
                to.write_all(b"abc").expect("the reader lives");
            });
            let event = turn_without_sleep(&mut reactor);
            other.join().expect("no panic");
            assert_eq!(event.result.expect("read"), 3);
        }
    }
}
