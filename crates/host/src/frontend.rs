//! The interface between the host and a front-end: the part that brings requests to devices.
//!
//! A [`Frontend`] listens or attaches, makes requests from its input, takes completions back, and
//! drains. Every core has one of each kind. A kind that listens gets its share of the accepted
//! sockets. The host knows no kind of front-end: a [`FrontendKind`] makes one on each core. The
//! front-end's place in [`HostConfig::frontends`](crate::HostConfig::frontends) is its name
//! ([`FrontendId`]) in tokens, messages and the origins of requests.
//!
//! # A turn
//!
//! ```text
//!   accept, event, mail, wake          input
//!            |
//!         submit  ---- requests --->  devices          until no part
//!            ^                           |             wants anything
//!        complete <--- completions ------+
//!            |
//!          flush                      output, when no part wants anything
//! ```
//!
//! The host gives a front-end everything that a turn brought before it calls [`Frontend::submit`].
//! It calls [`Frontend::flush`] when no device has more work. So the requests of a turn enter their
//! devices together, and the answers of a turn leave together. A flush may take output, and so make
//! room for requests that were held back. Then another round begins.
//!
//! # Devices change
//!
//! The size of a device may change while it is open. The host tells every front-end on every core
//! ([`Frontend::device_changed`]), in the turn in which the device changes on the device's core.
//! [`FrontendIo::device_info`] tells the present properties at any time. So a front-end that learns
//! of a device later than a change of it misses nothing.
//!
//! # Drain and end
//!
//! [`Frontend::drain`] ends the taking of requests. The front-end refuses later requests, and still
//! answers the requests that it has handed over. The drain is over when [`Frontend::in_flight`] is
//! zero on every core. [`Frontend::close`] is the last call, when the core ends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use fieldstone_block::{Completion, Info, Nanos, Request};
use fieldstone_buf::Budget;
use fieldstone_uring::{Event, Reactor, SendError, Sender, Socket, Token, WakeUp};

use crate::connection_table::Bounds;
use crate::handle::Handle;
use crate::message::{Core, DeviceId, Message, Origin, Router};
use crate::notices::{Cause, Notices};
use crate::store::Mail;
use crate::token::{Kind, token};

/// The most kinds of front-ends of one host: the queue of a request has four bits for the kind.
pub const FRONTENDS_MAX: usize = 16;

/// A front-end of the host: its place in the list with which the host was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendId(pub u8);

/// A kind of front-end. Its line in [`KINDS`](crate::frontends::KINDS) registers it. A host takes a
/// kind from outside this crate through [`HostConfig::frontends`](crate::HostConfig::frontends).
#[derive(Clone, Copy)]
pub struct FrontendKind {
    /// The name, one word: for `status`, for [`Handle::frontend`](crate::Handle::frontend), and for
    /// the addresses of `fieldstone serve --listen NAME:ADDR`.
    pub name: &'static str,
    /// The clients, in a few words, for the help.
    pub about: &'static str,
    /// Makes a front-end on a core. The call must not block.
    pub make: fn(FrontendSetup) -> Box<dyn Frontend>,
    /// Offers devices to clients that connect. `None` if clients do not connect: those of a program
    /// attach to a device by a call.
    pub offer: Option<Offer>,
}

/// Offers these devices to clients that connect after the return, instead of those of the call
/// before.
pub type Offer = fn(&Handle, &[OfferedDevice]) -> Result<(), OfferError>;

/// An open device, as clients find it.
#[derive(Clone, Debug)]
pub struct OfferedDevice {
    /// The device.
    pub device: DeviceId,
    /// The name by which clients ask for it; unique among the devices that are offered.
    pub name: String,
    /// Its present properties.
    pub info: Info,
    /// Clients may not write, whatever the device can do.
    pub read_only: bool,
    /// Clients that ask for no name get this device. That is the first one or none.
    pub is_default: bool,
}

/// Why devices were not offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// The host has no such front-end.
    #[error(transparent)]
    NoFrontend(#[from] NoFrontend),
    /// The front-end's protocol cannot express a device.
    #[error("{frontend} cannot offer a device: {reason}")]
    Refused {
        /// The name of the front-end's kind.
        frontend: &'static str,
        /// What the protocol does not allow.
        reason: String,
    },
}

impl fmt::Debug for FrontendKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("FrontendKind").field(&self.name).finish()
    }
}

/// The input for making a front-end on a core.
#[derive(Clone, Debug)]
pub struct FrontendSetup {
    /// How many connections the front-end may have on this core.
    pub bounds: Bounds,
    /// Memory for payloads and replies, which all front-ends of all cores share.
    pub budget: Arc<Budget>,
}

/// The host has no front-end of this kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host has no front-end {0:?}")]
pub struct NoFrontend(pub String);

/// A submitter within a front-end: a connection or a queue. The completion comes back with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitter {
    /// The submitter's place in a table of the front-end.
    pub place: u32,
    /// Distinguishes submitters that used the same place.
    pub generation: u32,
}

/// The front-end's need of shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Something waits for room in the shared memory. Another core may give the room back.
    pub waits: bool,
    /// Something holds room that others may have to wait for.
    pub holds: bool,
}

/// A front-end's counts on one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontendCounts {
    /// Connections that are open now.
    pub connections: usize,
    /// Connections that were accepted since the start.
    pub accepted: u64,
}

/// A part that brings requests to devices, on one core. The module's text says when each function
/// is called.
///
/// Only the core's thread calls a front-end. No function may block: a core that blocks stops every
/// device, connection and node on it. At its end a core drops its reactor before the front-ends,
/// and the reactor waits for operations under way. So a front-end may own memory that the kernel
/// writes to.
pub trait Frontend {
    /// The present counts.
    fn counts(&self) -> FrontendCounts;

    /// Number of requests that the front-end handed over and that have no answer yet.
    fn in_flight(&self) -> usize;

    /// A listener whose sockets go to this front-end has accepted a socket. A front-end that does
    /// not listen gets none.
    fn accept(&mut self, _socket: Socket, _io: &mut FrontendIo<'_>) {}

    /// An operation has ended that the front-end started with the token [`FrontendIo::token`] of
    /// `index`.
    fn event(&mut self, _index: u32, _event: Event, _io: &mut FrontendIo<'_>) {}

    /// Takes a message from another thread. Both sides agree on the type.
    fn mail(&mut self, _mail: Mail, _io: &mut FrontendIo<'_>) {}

    /// Another thread asks the front-end to look at its place `index`.
    fn wake(&mut self, _index: u32, _io: &mut FrontendIo<'_>) {}

    /// A device has begun to serve, or its properties have changed, for example its size. `info`
    /// has the present ones. The front-end ignores devices that it does not know. There is no
    /// default: a front-end that tells its clients a size must tell them of a change, or must say
    /// in its documentation that clients learn it only when they come again.
    fn device_changed(&mut self, device: DeviceId, info: &Info, io: &mut FrontendIo<'_>);

    /// Takes the answer of a device.
    fn complete(&mut self, to: Submitter, completion: Completion);

    /// Hands the requests that have arrived to their devices. True if there were any.
    fn submit(&mut self, io: &mut FrontendIo<'_>) -> bool;

    /// Sends ready output, starts receives, and drops connections that have ended. True if this
    /// made room for requests that were held back.
    fn flush(&mut self, io: &mut FrontendIo<'_>) -> bool;

    /// Refuses requests from now on. The front-end still answers the requests in flight.
    fn drain(&mut self);

    /// The core ends: gives everything back. Requests in flight get no answer.
    fn close(&mut self, io: &mut FrontendIo<'_>);

    /// Closes up to `count` connections that have not shown their purpose yet.
    fn evict_oldest(&mut self, _count: usize, _io: &mut FrontendIo<'_>) {}

    /// Looks for connections that take too long. The host calls it at the [`Frontend::deadline`],
    /// and soon while there is [`Frontend::pressure`].
    fn watch(&mut self, _io: &mut FrontendIo<'_>) {}

    /// When the host must call [`Frontend::watch`]; `None` if that is not necessary.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Whether something waits for room, and whether something holds room.
    fn pressure(&self) -> Pressure {
        Pressure::default()
    }
}

/// The resources of a front-end on its core.
pub struct FrontendIo<'a> {
    /// The front-end.
    pub frontend: FrontendId,
    /// The time of this turn.
    pub now: Nanos,
    /// Sockets, files and timers.
    pub reactor: &'a mut Reactor,
    pub(crate) router: &'a mut Router,
    pub(crate) notices: &'a mut Notices,
    pub(crate) infos: &'a BTreeMap<DeviceId, Info>,
}

impl FrontendIo<'_> {
    /// The properties of a device that serves, of any core, as this core knows them. `None` if it
    /// does not serve yet or is forgotten.
    #[must_use]
    pub fn device_info(&self, device: DeviceId) -> Option<&Info> {
        self.infos.get(&device)
    }

    /// The core.
    #[must_use]
    pub fn core(&self) -> Core {
        self.router.me
    }

    /// A token for an operation or a timer of this front-end. [`Frontend::event`] gets its event
    /// with the same `index`.
    #[must_use]
    pub fn token(&self, index: u32) -> Token {
        token(Kind::Frontend, u32::from(self.frontend.0), index)
    }

    /// Hands a request to a device. The request's id must be unique among the requests of its
    /// submitter. The completion has the same id.
    pub fn submit(&mut self, from: Submitter, device: DeviceId, request: Request) {
        let origin = Origin { core: self.router.me, frontend: self.frontend, submitter: from };
        let to = device.core(self.router.cores());
        self.router.send(to, Message::Submit { device, origin, request });
    }

    /// Writes a log line that clients can cause, or only counts it if there are too many.
    pub fn say(&mut self, cause: Cause, line: fmt::Arguments<'_>) {
        self.notices.say(cause, self.now, line);
    }
}

/// Wakes a front-end on one core from another thread. It is cheap to clone, and may outlive the
/// host.
#[derive(Clone, Debug)]
pub struct FrontendMailer {
    pub(crate) frontend: FrontendId,
    pub(crate) sender: Sender<Message>,
}

/// Why a front-end was not woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WakeError {
    /// The core's mailbox is full. Try again later.
    #[error("the core does not keep up with its mail")]
    Full,
    /// The core has ended.
    #[error("the core has ended")]
    Gone,
}

impl FrontendMailer {
    /// Makes the core call [`Frontend::wake`] with `index`. If the core sleeps, it wakes up when
    /// the returned [`WakeUp`] is dropped: after the caller has released what the core needs.
    /// Allocates no memory.
    ///
    /// # Errors
    /// The core does not take the message.
    pub fn wake(&self, index: u32) -> Result<WakeUp<'_>, WakeError> {
        let frontend = self.frontend;
        self.sender.put(Message::WakeFrontend { frontend, index }).map_err(|error| match error {
            SendError::Full(_) => WakeError::Full,
            SendError::Closed(_) => WakeError::Gone,
        })
    }
}
