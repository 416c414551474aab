//! What stores a device's bytes, as the host runs it.
//!
//! A [`Store`] is a [`Backend`] with a life. It lives on one core, owns its sockets, files and
//! timers, and tells of itself in numbers. The host knows no kind of store: a [`StoreSpec`] makes
//! one on the core where it is to live.
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
//! The host feeds a store what came in ([`Store::event`], [`Store::mail`], requests). Then it calls
//! [`Store::act`] and [`Backend::poll`] until neither does anything, and [`Store::flush`] once. So
//! what one turn brought leaves together.

use std::any::Any;
use std::fmt::Debug;

use fieldstone_block::{Backend, Nanos, Settings};
use fieldstone_uring::{Event, Reactor, Sender, Token};

use crate::message::{DeviceId, Message, Router};
use crate::token::{Kind, token};

/// What another part or thread tells a store; the two agree on the type.
pub type Mail = Box<dyn Any + Send>;

/// Where a store is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It does not take requests yet.
    Opening,
    /// It takes requests.
    Serving,
    /// It takes no more requests, and makes stable what it took.
    Closing,
    /// Everything that it acknowledged is stable, and it needs nothing any more.
    Closed,
    /// It could not go on, for this reason.
    Failed(String),
}

/// Makes a store on its core.
pub trait StoreSpec: Debug + Send {
    /// A store that begins to open. It must not block.
    fn open(self: Box<Self>, io: &mut StoreIo<'_>) -> Box<dyn Store>;
}

/// What stores a device's bytes. See the module's text for when each function is called.
pub trait Store: Backend {
    /// What it is, in a word, for `status`.
    fn kind(&self) -> &'static str;

    /// Where it is in its life.
    fn phase(&self) -> Phase;

    /// Begins to close.
    fn close(&mut self);

    /// Lets go of sockets, files and timers. The device is forgotten.
    fn release(&mut self, _io: &mut StoreIo<'_>) {}

    /// An operation has come back that it started with the token [`StoreIo::token`] of `index`.
    fn event(&mut self, _index: u32, _event: Event, _io: &mut StoreIo<'_>) {}

    /// Another part or a thread tells something.
    fn mail(&mut self, _mail: Mail, _io: &mut StoreIo<'_>) {}

    /// Starts what it wants done. True if there was anything.
    fn act(&mut self, _io: &mut StoreIo<'_>) -> bool {
        false
    }

    /// Sends what [`Store::act`] queued.
    fn flush(&mut self, _io: &mut StoreIo<'_>) {}

    /// What requests that are not answered wait for, for people; empty if nothing in particular.
    fn waits_for(&self) -> String {
        String::new()
    }

    /// How it stands, in a type of its own; `None` if there is nothing to tell.
    fn status(&self) -> Option<Mail> {
        None
    }

    /// The calls that it takes, each with its options.
    fn calls(&self) -> &'static [Call] {
        &[]
    }

    /// Carries out one of its [`Store::calls`], or starts it.
    ///
    /// # Errors
    /// There is no such call, an option is wrong, or the store refuses. Then nothing has changed.
    fn call(&mut self, call: Settings) -> Result<(), String> {
        Err(format!("it does not know {:?}", call.layer()))
    }
}

/// A call that a store takes, as `name:option=value,…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// The names of its options.
    pub options: &'static [&'static str],
    /// What it does, in one sentence.
    pub about: &'static str,
}

/// What a store works with on its core.
pub struct StoreIo<'a> {
    /// Its device.
    pub device: DeviceId,
    /// The time of this turn.
    pub now: Nanos,
    /// Files, sockets and timers.
    pub reactor: &'a mut Reactor,
    pub(crate) router: &'a mut Router,
}

impl StoreIo<'_> {
    /// A token for an operation or a timer of this store. Its event comes to [`Store::event`] with
    /// the same `index`.
    #[must_use]
    pub fn token(&self, index: u32) -> Token {
        token(Kind::Store, self.device.0, index)
    }

    /// Tells this store something from another thread.
    #[must_use]
    pub fn mailer(&self) -> Mailer {
        Mailer { device: self.device, sender: self.router.own_sender() }
    }
}

/// Tells a store something from another thread. Cheap to clone; outliving the store is harmless.
#[derive(Clone, Debug)]
pub struct Mailer {
    device: DeviceId,
    sender: Sender<Message>,
}

impl Mailer {
    /// Tells the store. What a core does not take, because it hangs or has ended, is lost: the
    /// store needs a time limit.
    pub fn send(&self, mail: Mail) {
        let _ = self.sender.send(Message::ToStore { device: self.device, mail });
    }
}
