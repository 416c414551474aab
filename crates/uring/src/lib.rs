//! The real world: one io_uring reactor per core.
//!
//! All code that reads a clock, opens a file or touches a socket lives here. The state machines of
//! the other crates see only events and actions. A [`Reactor`] turns their actions into io_uring
//! operations, and the kernel's completions back into events.
//!
//! # Rules
//!
//! - **One reactor per core, one ring per reactor, no shared state.** A [`Reactor`] is not `Send`.
//!   Cores talk through [`Mailbox`]es.
//! - **One system call per turn.** Operations are queued in user space; [`Reactor::turn`] hands
//!   all of them to the kernel and waits for the first completion in a single `io_uring_enter`.
//! - **A short wait is a poll.** While completions come within some microseconds, one at a time, a
//!   turn polls for them before it sleeps (`reactor/poll.rs`).
//! - **Idle costs nothing.** Only the nearest timer of the caller bounds a longer wait. A reactor
//!   at rest does not poll and has no timer of its own, so an idle server does not wake up.
//! - **Operations own the memory that the kernel touches.** Buffers, gather lists and descriptors
//!   move into the reactor and come back in the [`Event`]. [`reactor`] says what happens at
//!   shutdown.
//! - **Every queue is bounded.** [`ReactorOptions`] and [`Reactor::mailbox`] give the bounds.
//!
//! # Kernels
//!
//! The oldest kernel that works is Linux 5.15. Newer kernels save system calls and interrupts. The
//! reactor sets the ring up with the best flags that the kernel supports (`ring`). Accepting is
//! multishot from 5.19 on, and waiting does not count as I/O wait from 6.15 on.

mod address;
mod clock;
mod event;
mod file;
mod gather;
mod listener;
mod lock;
mod mailbox;
mod op;
pub mod reactor;
mod ring;
mod socket;
mod thread;
mod timer;

pub use address::{Address, AddressError, Endpoint};
pub use clock::{now as monotonic_now, wall_offset_ns};
pub use event::{Event, Payload, Token};
pub use file::{Caching, Creation, File, FileOptions, open_regular, sync_directory};
pub use listener::{ListenError, Listener};
pub use lock::{Holder, Life, LockError, LockFile};
pub use mailbox::{Mailbox, SendError, Sender, WakeUp};
pub use op::Want;
pub use reactor::{Counters, Inlined, QUIET_MAX, Reactor, ReactorOptions, Space, Unsure};
pub use ring::TaskRun;
pub use socket::{Shutdown, Socket};
pub use thread::{
    ThreadUsage, allowed_cpus, open_files, pin_to_cpu, raise_open_files, start_thread, thread_usage,
};
