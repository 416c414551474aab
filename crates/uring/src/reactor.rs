//! The reactor: one ring, its operations in flight, timers and mailboxes.
//!
//! # A turn
//!
//! The caller starts operations at any time. Starting only writes them to the submission queue.
//! [`Reactor::turn`] then makes one `io_uring_enter`, which submits all of them and waits for the
//! first completion, the nearest timer, or a message from another core. All operations that have
//! completed by then come back as [`Event`]s, in one batch.
//!
//! ```text
//!    start ops ──> submission queue ──┐               ┌──> events ──> state machines ──> start ops
//!                  (backlog if full)  └─ enter, once ─┘
//! ```
//!
//! A send to a socket with room ends within the system call that submits it. If its event ended the
//! turn, each turn that sends would be followed by one that has nothing to do. So the event of a
//! quiet send ([`Reactor::send_quietly`]) waits for the next other one: the turn asks the kernel
//! for one result more than there are such sends. A quiet send never waits for room: the kernel
//! reports at once that there is none, and the rest is sent as usual. Otherwise a peer that does
//! not read would make the events of all others late.
//!
//! If the kernel finishes an operation only in part (a short read, a partial send), the reactor
//! continues it in the next turn. It reports the operation once, when it is whole.
//!
//! # Ownership
//!
//! All memory that the kernel may touch belongs to the operation: its buffers, its vectors, and a
//! handle on its file or socket. So neither memory nor a descriptor's number can be reused while
//! the kernel uses it. Safe code cannot take the memory away: it comes back only in the event.
//! [`Reactor::recv_raw`] is the one exception, and therefore `unsafe`.
//!
//! Dropping a reactor cancels the operations in flight and waits until the kernel has ended them.
//! Operations that were started but not yet submitted may or may not have happened. A disk
//! operation cannot be cancelled once it runs. If some have not returned after [`DRAIN_LIMIT_MS`]
//! (a dead device), the reactor leaks their memory on purpose, which is always safe. Raw receives
//! have no such limit: their memory is the caller's, and cancelling a receive always succeeds.
//!
//! # Order
//!
//! Operations in flight together may complete in any order, with one exception: sends on one socket
//! go out one after the other, in the order in which they were started. If a send fails after a
//! part of it went out, the reactor ends the sending side of its socket, so that no message can
//! follow a half one. Two receives on one socket at a time would share the stream in an unspecified
//! way.
//!
//! # Bounds
//!
//! | what | bound | when reached |
//! |---|---|---|
//! | submission queue | [`ReactorOptions::entries`] | the rest waits in the backlog |
//! | operations in flight, with the backlog | [`ReactorOptions::max_operations`] | `ENOBUFS` |
//! | bytes of one operation | [`MAX_TRANSFER_BYTES`] | `EINVAL` |
//! | completions | none needed: the kernel keeps what does not fit its queue | |
//! | messages in a mailbox | [`Reactor::mailbox`] | [`SendError::Full`](crate::SendError::Full) |
//! | repeats of a step that failed with `EINTR` or `EAGAIN` | 16 in a row | the error is reported |

mod drain;
mod inline;
mod poll;
mod start;
mod turn;

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

use fieldstone_block::Nanos;
use io_uring::IoUring;
use slab::Slab;

use crate::clock;
use crate::event::{Event, Token};
use crate::gather::ListPool;
use crate::mailbox::{self, Bell, Inbox, Mailbox, Sender};
use crate::op::Op;
use crate::ring::{self, TaskRun};
use crate::thread;
use crate::timer::Timers;

pub use inline::{Inlined, Unsure};
pub use start::Space;

/// The largest number of bytes of one operation.
pub const MAX_TRANSFER_BYTES: usize = 1 << 30;
/// How long the drop of a reactor waits for disk operations that do not return.
pub const DRAIN_LIMIT_MS: u64 = 10_000;
/// How long the event of a quiet send waits for another event, at most.
pub const QUIET_MAX: Nanos = Nanos::from_ms(5);
/// The completions that the ring itself holds, as a multiple of its submission entries.
const COMPLETIONS_PER_ENTRY: u32 = 8;

/// Options for a reactor.
#[derive(Clone, Copy, Debug)]
pub struct ReactorOptions {
    /// Entries of the submission queue: the largest number that one system call submits. Rounded up
    /// to a power of two, at most 32768.
    pub entries: u32,
    /// Pin the calling thread to this CPU.
    pub cpu: Option<usize>,
    /// The largest number of operations in flight, including those that wait for the queue.
    pub max_operations: usize,
    /// The best completion mode to try. Lower it only to test the other modes.
    pub task_run: TaskRun,
    /// Poll for some microseconds before sleeping, while this pays (see `poll`). Has no effect on a
    /// machine with one CPU.
    pub poll: bool,
}

impl Default for ReactorOptions {
    fn default() -> Self {
        Self {
            entries: 256,
            cpu: None,
            max_operations: 65_536,
            task_run: TaskRun::Deferred,
            poll: true,
        }
    }
}

/// The counters of a reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// System calls: `io_uring_enter`.
    pub enters: u64,
    /// System calls that were allowed to sleep.
    pub waits: u64,
    /// Polls before sleeping that found an event.
    pub polls_found: u64,
    /// Polls before sleeping that found none.
    pub polls_in_vain: u64,
    /// Entries handed to the kernel.
    pub sqes: u64,
    /// Results taken from the kernel.
    pub cqes: u64,
    /// Steps that continued a short read, write, send or receive.
    pub continuations: u64,
    /// Writes made without the ring.
    pub inline_writes: u64,
    /// How often the eventfd woke this reactor for mail.
    pub wakes: u64,
    /// The largest number of operations that ever waited for the submission queue.
    pub backlog_peak: u64,
}

/// Which queue holds an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// In the submission queue or in the kernel: a completion will come.
    Kernel,
    /// Waiting for room in the submission queue.
    Backlog,
    /// A send that waits for the one before it on the same socket.
    Lane,
}

/// An operation in flight.
struct Flight {
    op: Op,
    token: Token,
    /// Distinguishes this flight from earlier ones in the same slot.
    generation: u32,
    holder: Holder,
    cancelled: bool,
    /// Number of `EINTR` and `EAGAIN` in a row.
    repeats: u8,
}

/// An entry that waits for room in the submission queue.
#[derive(Clone, Copy)]
enum Queued {
    /// The next step of the flight in this slot.
    Step(usize),
    /// The cancellation of the flight with this user data.
    Cancel(u64),
    /// The poll that watches the bell.
    WatchBell,
}

/// One core's connection to the kernel. Not `Send`: it stays on the thread that made it.
pub struct Reactor {
    ring: IoUring,
    task_run: TaskRun,
    max_operations: usize,
    flights: Slab<Flight>,
    generation: u32,
    /// In order. While this is not empty, no other entry goes to the submission queue.
    backlog: VecDeque<Queued>,
    /// Sends per descriptor number. The front one is under way, the others wait.
    lanes: Vec<VecDeque<usize>>,
    lists: ListPool,
    timers: Timers,
    /// Events that need no kernel: refused and cancelled operations, empty transfers.
    local: VecDeque<Event>,
    bell: Option<Arc<Bell>>,
    inboxes: Vec<(Token, Arc<dyn Inbox>)>,
    /// False once the kernel has refused multishot accepts.
    multishot_accept: bool,
    results: Vec<turn::KernelResult>,
    polling: poll::Polling,
    /// Quiet sends in the submission queue.
    quiet_queued: u32,
    /// Quiet sends that the kernel has got since the last look at its results.
    quiet_sent: u32,
    /// Something waits for the end of a send.
    hears_sends: bool,
    now: Nanos,
    counters: Counters,
    not_send: PhantomData<*const ()>,
}

impl Reactor {
    /// Sets up a ring for the calling thread, pins the thread if `cpu` is set, and makes its timers
    /// precise.
    ///
    /// # Errors
    /// The CPU does not exist, or the kernel refuses the ring. The text gives the reason.
    pub fn new(options: ReactorOptions) -> io::Result<Self> {
        if let Some(cpu) = options.cpu {
            thread::pin_to_cpu(cpu).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot run on CPU {cpu}: {error}"))
            })?;
        }
        thread::sharpen_timers();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let entries = options.entries.max(1);
        let completions = entries.saturating_mul(COMPLETIONS_PER_ENTRY);
        let (ring, task_run) = ring::set_up(entries, completions, options.task_run)?;
        Ok(Self {
            ring,
            task_run,
            max_operations: options.max_operations,
            flights: Slab::new(),
            generation: 0,
            backlog: VecDeque::new(),
            lanes: Vec::new(),
            lists: ListPool::default(),
            timers: Timers::default(),
            local: VecDeque::new(),
            bell: None,
            inboxes: Vec::new(),
            multishot_accept: true,
            results: Vec::new(),
            polling: poll::Polling::new(options.poll && cpus > 1),
            quiet_queued: 0,
            quiet_sent: 0,
            hears_sends: false,
            now: clock::now(),
            counters: Counters::default(),
            not_send: PhantomData,
        })
    }

    /// The time at which the current turn collected its events. Cheap; use it to stamp them.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Reads the clock; [`Reactor::now`] returns the same until the next turn.
    pub fn fresh_now(&mut self) -> Nanos {
        self.now = clock::now();
        self.now
    }

    /// The counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How the kernel runs completions on this ring.
    #[must_use]
    pub fn task_run(&self) -> TaskRun {
        self.task_run
    }

    /// Operations in flight, including those that wait for the queue.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Sets the token's timer. A token has one timer, so this moves a timer that was set. When the
    /// timer is due (not earlier than `deadline`), a turn reports
    /// [`Payload::Timer`](crate::Payload::Timer).
    pub fn timer(&mut self, deadline: Nanos, token: Token) {
        self.timers.set(deadline, token);
    }

    /// Removes the token's timer; false if it had none. No event follows.
    pub fn cancel_timer(&mut self, token: Token) -> bool {
        self.timers.cancel(token)
    }

    /// Makes a mailbox for up to `capacity` messages from any thread. When the mailbox becomes
    /// non-empty, a turn reports [`Payload::Mail`](crate::Payload::Mail) with this token. The mail
    /// wakes a sleeping reactor.
    ///
    /// # Errors
    /// No descriptors are left (the first mailbox of a reactor takes one).
    pub fn mailbox<T: Send + 'static>(
        &mut self,
        capacity: usize,
        token: Token,
    ) -> io::Result<(Sender<T>, Mailbox<T>)> {
        let bell = match &self.bell {
            Some(bell) => Arc::clone(bell),
            None => {
                let bell = Arc::new(Bell::new()?);
                self.bell = Some(Arc::clone(&bell));
                self.enqueue(Queued::WatchBell);
                bell
            }
        };
        let (sender, mailbox, inbox) = mailbox::make(capacity, bell);
        self.inboxes.push((token, inbox));
        Ok((sender, mailbox))
    }
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactor")
            .field("task_run", &self.task_run)
            .field("in_flight", &self.flights.len())
            .field("backlog", &self.backlog.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
