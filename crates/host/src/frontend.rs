//! What brings requests to devices, as the host runs it.
//!
//! A [`Frontend`] listens or attaches, turns what comes in into requests, takes completions back,
//! and drains. Every core has one of each kind; a kind that listens gets its share of the sockets
//! that are accepted. The host knows no kind of front-end: a [`FrontendKind`] makes one on each
//! core, and the front-end's place in [`HostConfig::frontends`](crate::HostConfig::frontends) is
//! its name ([`FrontendId`]) in tokens, messages and the origins of requests.
//!
//! # A turn
//!
//! ```text
//!   accept, event, mail, wake          what came in
//!            |
//!         submit  ---- requests --->  devices          until no part
//!            ^                           |             wants anything
//!        complete <--- completions ------+
//!            |
//!          flush                      what goes out, once all is answered that can be
//! ```
//!
//! The host feeds a front-end everything that a turn brought before it calls
//! [`Frontend::submit`], and calls [`Frontend::flush`] when no device wants anything more. So the
//! requests of a turn enter their devices together, and the answers of a turn leave together. A
//! flush that took output, and so made room for requests that were held back, begins another round.
//!
//! # Drain and end
//!
//! [`Frontend::drain`] ends the taking of requests: those that come later are refused, and those
//! that were handed over are answered. The drain is over when [`Frontend::in_flight`] is zero on
//! every core. [`Frontend::close`] is the last call: the core ends.

use std::fmt;
use std::sync::Arc;

use fieldstone_block::{Completion, Nanos, Request};
use fieldstone_buf::Budget;
use fieldstone_uring::{Event, Reactor, SendError, Sender, Socket, Token};

use crate::message::{Core, DeviceId, Message, Origin, Router};
use crate::notices::{Cause, Notices};
use crate::store::Mail;
use crate::strangers::Bounds;
use crate::token::{Kind, token};

/// Kinds of front-ends of one host at most: the queue of a request has four bits for them.
pub const FRONTENDS_MAX: usize = 16;

/// A front-end of the host: its place in the list that the host was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendId(pub u8);

/// A kind of front-end. Its line in [`KINDS`](crate::frontends::KINDS) registers it; one from
/// outside this crate is named to [`HostConfig::frontends`](crate::HostConfig::frontends).
#[derive(Clone, Copy)]
pub struct FrontendKind {
    /// What it is, in a word, for `status` and for [`Handle::frontend`](crate::Handle::frontend).
    pub name: &'static str,
    /// Makes it on a core. It must not block.
    pub make: fn(FrontendSetup) -> Box<dyn Frontend>,
}

impl fmt::Debug for FrontendKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("FrontendKind").field(&self.name).finish()
    }
}

/// What a front-end is made with on each core.
#[derive(Clone, Debug)]
pub struct FrontendSetup {
    /// How many connections it may have on this core.
    pub bounds: Bounds,
    /// Memory for payloads and replies, which all front-ends of all cores share.
    pub budget: Arc<Budget>,
}

/// The host has no front-end of this kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host has no front-end {0:?}")]
pub struct NoFrontend(pub String);

/// Who submits within a front-end: a connection or a queue. The completion comes back with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitter {
    /// Its place in a table of the front-end.
    pub place: u32,
    /// Tells submitters apart that used the same place.
    pub generation: u32,
}

/// What a front-end waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Something waits for room in memory, which another core may give back.
    pub waits: bool,
    /// Something holds room that others may come to wait for.
    pub holds: bool,
}

/// What a front-end tells of itself on one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontendCounts {
    /// Connections open now.
    pub connections: usize,
    /// Connections since start.
    pub accepted: u64,
}

/// What brings requests to devices, on one core. See the module's text for when each function is
/// called.
///
/// A front-end is called from its core's thread only. No function blocks: a core that blocks stops
/// every device, connection and node on it. At its end a core drops its reactor, which waits for
/// operations under way, before it drops the front-ends: so memory that the kernel writes to may
/// belong to a front-end.
pub trait Frontend {
    /// How it stands.
    fn counts(&self) -> FrontendCounts;

    /// Requests handed over and not yet answered.
    fn in_flight(&self) -> usize;

    /// A socket was accepted by a listener whose sockets go to this front-end. One that does not
    /// listen gets none.
    fn accept(&mut self, _socket: Socket, _io: &mut FrontendIo<'_>) {}

    /// An operation has come back that it started with the token [`FrontendIo::token`] of `index`.
    fn event(&mut self, _index: u32, _event: Event, _io: &mut FrontendIo<'_>) {}

    /// Another thread tells something; the two agree on the type.
    fn mail(&mut self, _mail: Mail, _io: &mut FrontendIo<'_>) {}

    /// Another thread has put something where this front-end is to look, at its place `index`.
    fn wake(&mut self, _index: u32, _io: &mut FrontendIo<'_>) {}

    /// A device answers.
    fn complete(&mut self, to: Submitter, completion: Completion);

    /// Hands the requests that have come in to their devices. True if there were any.
    fn submit(&mut self, io: &mut FrontendIo<'_>) -> bool;

    /// Lets out what is ready, takes in what is wanted, and lets go of what is over. True if that
    /// made room for requests that were held back.
    fn flush(&mut self, io: &mut FrontendIo<'_>) -> bool;

    /// Refuses requests from now on. Those in flight are still answered.
    fn drain(&mut self);

    /// The core ends: lets go of everything. What is in flight is not answered any more.
    fn close(&mut self, io: &mut FrontendIo<'_>);

    /// Lets go of up to `count` descriptors of connections that have not shown what they are for.
    fn give_way(&mut self, _count: usize, _io: &mut FrontendIo<'_>) {}

    /// Looks after what takes too long: at its [`Frontend::deadline`], and soon while there is
    /// [`Frontend::pressure`].
    fn watch(&mut self, _io: &mut FrontendIo<'_>) {}

    /// When [`Frontend::watch`] has to be called, if at all.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Whether something waits for room, and whether something holds it.
    fn pressure(&self) -> Pressure {
        Pressure::default()
    }
}

/// What a front-end works with on its core.
pub struct FrontendIo<'a> {
    /// The front-end.
    pub frontend: FrontendId,
    /// The time of this turn.
    pub now: Nanos,
    /// Sockets, files and timers.
    pub reactor: &'a mut Reactor,
    pub(crate) router: &'a mut Router,
    pub(crate) notices: &'a mut Notices,
}

impl FrontendIo<'_> {
    /// The core.
    #[must_use]
    pub fn core(&self) -> Core {
        self.router.me
    }

    /// A token for an operation or a timer of this front-end. Its event comes to
    /// [`Frontend::event`] with the same `index`.
    #[must_use]
    pub fn token(&self, index: u32) -> Token {
        token(Kind::Frontend, u32::from(self.frontend.0), index)
    }

    /// Hands a request to a device. The request's name has to be unique among those of its
    /// submitter; the completion bears it.
    pub fn submit(&mut self, from: Submitter, device: DeviceId, request: Request) {
        let origin = Origin { core: self.router.me, frontend: self.frontend, submitter: from };
        let to = device.core(self.router.cores());
        self.router.send(to, Message::Submit { device, origin, request });
    }

    /// Writes a line that strangers can cause, or counts it if there are too many.
    pub fn say(&mut self, cause: Cause, line: fmt::Arguments<'_>) {
        self.notices.say(cause, self.now, line);
    }
}

/// Tells a front-end on one core something from another thread. Cheap to clone; outliving the host
/// is harmless.
#[derive(Clone, Debug)]
pub struct FrontendMailer {
    pub(crate) frontend: FrontendId,
    pub(crate) sender: Sender<Message>,
}

/// Why a front-end was not woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WakeError {
    /// The core does not keep up. Try again later.
    #[error("the core does not keep up with its mail")]
    Full,
    /// The core has ended.
    #[error("the core has ended")]
    Gone,
}

impl FrontendMailer {
    /// Has [`Frontend::wake`] called with `index`. Nothing is allocated.
    ///
    /// # Errors
    /// The core does not take it.
    pub fn wake(&self, index: u32) -> Result<(), WakeError> {
        let frontend = self.frontend;
        self.sender.send(Message::WakeFrontend { frontend, index }).map_err(|error| match error {
            SendError::Full(_) => WakeError::Full,
            SendError::Closed(_) => WakeError::Gone,
        })
    }
}
