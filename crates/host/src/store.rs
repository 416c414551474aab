//! The interface between the host and a store: the part that stores the bytes of a device.
//!
//! A [`Store`] is a [`Backend`] with a life cycle. It lives on one core, owns its sockets, files
//! and timers, and reports its status. The host knows no kind of store: a [`StoreSpec`] makes the
//! store on the core where the store will live.
//!
//! ```text
//!            serves                close             all is stable
//! Opening ----------> Serving ----------> Closing ------------------> Closed
//!    |                   |                   |
//!    +-------------------+-------------------+--> Failed
//! ```
//!
//! # A turn
//!
//! The host gives a store the events of the turn ([`Store::event`], [`Store::mail`], requests).
//! Then it calls [`Store::act`] and [`Backend::poll`] until neither does anything, and
//! [`Store::flush`] once. So everything that a turn causes leaves together. A store that does not
//! come to an end goes on in a later round, after the other parts of the core.
//!
//! The host reads [`Backend::info`] in each round. If a property has changed, it tells the
//! front-ends ([`Frontend::device_changed`](crate::Frontend::device_changed)).
//!
//! A store that is too much for one core may have [branches](crate::branch) on others.

use std::any::Any;
use std::fmt::Debug;

use fieldstone_block::{Backend, Counter, Nanos, Settings};
use fieldstone_uring::{Event, Reactor, Sender, Token};

use crate::branch::BranchSpec;
use crate::message::{Core, DeviceId, Message, Router};
use crate::token::{Kind, token};

/// A message to a store or a front-end, or the status of a store. Both sides agree on the type.
pub type Mail = Box<dyn Any + Send>;

/// The phase of a store's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The store does not take requests yet.
    Opening,
    /// The store takes requests.
    Serving,
    /// The store takes no more requests, and makes stable what it has acknowledged.
    Closing,
    /// Everything that the store acknowledged is stable, and the store needs nothing more.
    Closed,
    /// The store cannot continue, for this reason.
    Failed(String),
}

/// Makes a store on its core.
pub trait StoreSpec: Debug + Send {
    /// Makes a store that begins to open. The call must not block.
    fn open(self: Box<Self>, io: &mut StoreIo<'_>) -> Box<dyn Store>;

    /// True if the store's data goes with the process.
    fn is_volatile(&self) -> bool {
        false
    }
}

/// A store of a device's bytes. The module's text says when each function is called.
pub trait Store: Backend {
    /// The kind of the store in one word, for `status`.
    fn kind(&self) -> &'static str;

    /// The present phase.
    fn phase(&self) -> Phase;

    /// Begins to close.
    fn close(&mut self);

    /// Gives back sockets, files and timers, and ends the store's branches. Afterwards the host
    /// drops the store.
    fn release(&mut self, _io: &mut StoreIo<'_>) {}

    /// An operation has ended that the store started with the token [`StoreIo::token`] of `index`.
    fn event(&mut self, _index: u32, _event: Event, _io: &mut StoreIo<'_>) {}

    /// Takes a message from another part or a thread.
    fn mail(&mut self, _mail: Mail, _io: &mut StoreIo<'_>) {}

    /// Takes the present difference between the time of day, in nanoseconds since 1970, and the
    /// clock of the turns. The host tells it when the store opens, and before any other event after
    /// a change by a tenth of a second or more.
    fn set_wall_clock(&mut self, _offset_ns: u64, _now: Nanos) {}

    /// The secrets of a pool have changed ([`SharedKeys`](crate::SharedKeys)).
    fn keys_changed(&mut self) {}

    /// Starts the operations that the store needs. True if there were any.
    fn act(&mut self, _io: &mut StoreIo<'_>) -> bool {
        false
    }

    /// Sends the messages that [`Store::act`] queued.
    fn flush(&mut self, _io: &mut StoreIo<'_>) {}

    /// The reason why requests wait at the time `now`, as text for people; empty if there is no
    /// particular reason.
    fn waits_for(&self, _now: Nanos) -> String {
        String::new()
    }

    /// The store's counters, for `status` and the metrics.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    /// The status at the time `now`, in the store's own type, for a program that has the host;
    /// `None` if the store has no such type.
    fn status(&self, _now: Nanos) -> Option<Mail> {
        None
    }

    /// The store's calls, each with its options.
    fn calls(&self) -> &'static [Call] {
        &[]
    }

    /// Carries out one of the store's [`Store::calls`], or starts it.
    ///
    /// # Errors
    /// The store has no such call, an option is wrong, or the store refuses. Then nothing has
    /// changed.
    fn call(&mut self, call: Settings) -> Result<(), String> {
        Err(format!("it does not know {:?}", call.layer()))
    }
}

/// A call to a store, written as `name:option=value,…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name of the call.
    pub name: &'static str,
    /// The names of its options.
    pub options: &'static [&'static str],
    /// The effect of the call, in one sentence.
    pub about: &'static str,
}

/// The resources of a store on its core.
pub struct StoreIo<'a> {
    /// The store's device.
    pub device: DeviceId,
    /// The time of this turn.
    pub now: Nanos,
    /// Files, sockets and timers.
    pub reactor: &'a mut Reactor,
    pub(crate) router: &'a mut Router,
}

impl StoreIo<'_> {
    /// A token for an operation or a timer of this store. [`Store::event`] gets its event with the
    /// same `index`.
    #[must_use]
    pub fn token(&self, index: u32) -> Token {
        Self::token_of(self.device, index)
    }

    /// As [`StoreIo::token`], for a store that lends its reactor meanwhile.
    #[must_use]
    pub fn token_of(device: DeviceId, index: u32) -> Token {
        token(Kind::Store, device.0, index)
    }

    /// The core of the store, and the number of cores.
    #[must_use]
    pub fn cores(&self) -> (Core, usize) {
        (self.router.me, self.router.cores())
    }

    /// Makes a branch of the store on another core, where it has none.
    pub fn open_branch(&mut self, core: Core, spec: Box<dyn BranchSpec>) {
        let (device, home) = (self.device, self.router.me);
        debug_assert_ne!(core, home, "a branch is on another core");
        self.router.send(core, Message::BranchOpen { device, home, spec });
    }

    /// Sends mail to the branch on a core.
    pub fn send_branch(&mut self, core: Core, mail: Mail) {
        self.router.send(core, Message::ToBranch { device: self.device, mail });
    }

    /// Ends the branch on a core, after the mail that was sent to it.
    pub fn close_branch(&mut self, core: Core) {
        self.router.send(core, Message::BranchClose { device: self.device });
    }

    /// A sender of messages to this store, for other threads.
    #[must_use]
    pub fn mailer(&self) -> Mailer {
        Mailer { device: self.device, sender: self.router.own_sender() }
    }
}

/// Sends messages to a store from another thread. It is cheap to clone, and may outlive the store.
#[derive(Clone, Debug)]
pub struct Mailer {
    device: DeviceId,
    sender: Sender<Message>,
}

impl Mailer {
    /// Sends a message to the store. The message is lost if the core's mailbox is full or the core
    /// has ended: the store needs a time limit.
    pub fn send(&self, mail: Mail) {
        let _ = self.sender.send(Message::ToStore { device: self.device, mail });
    }
}
