//! A Ceph client in the real world: its sockets and timer, on a reactor.
//!
//! The client itself ([`fieldstone_rados::client`]) does no I/O. [`Carrier`] moves its bytes, or
//! those of its [`Branch`] on another core. A store has a carrier on its core, and one for each
//! branch; [`run`] has one in the calling thread, for commands.

mod settings;
pub(crate) mod sockets;

pub mod run;

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_rados::client::{Action, Branch, Client, LinkId};
use fieldstone_rados::encoding::Time;
use fieldstone_uring::{Event, Reactor, Token};

use sockets::{LinkEvent, Name, Operation, Sockets};

pub use run::Session;
pub use settings::CephSettings;

/// What a carrier moves the bytes of.
pub(crate) trait Machine {
    fn received(&mut self, link: LinkId, bytes: Bytes, now: Nanos);
    fn broken(&mut self, link: LinkId, why: String);
    fn run(&mut self, now: Nanos) -> bool;
    fn poll_action(&mut self) -> Option<Action>;
    fn outgoing(&mut self, parts: &mut Vec<Bytes>, send: impl FnMut(LinkId, &mut Vec<Bytes>));
    fn deadline(&self) -> Option<Nanos>;
    /// False while no more bytes are to be received.
    fn wants_input(&self) -> bool;
}

impl Machine for Client {
    fn received(&mut self, link: LinkId, bytes: Bytes, now: Nanos) {
        Client::received(self, link, bytes, now);
    }

    fn broken(&mut self, link: LinkId, why: String) {
        Client::broken(self, link, why);
    }

    fn run(&mut self, now: Nanos) -> bool {
        Client::run(self, now, wall_clock())
    }

    fn poll_action(&mut self) -> Option<Action> {
        Client::poll_action(self)
    }

    fn outgoing(&mut self, parts: &mut Vec<Bytes>, send: impl FnMut(LinkId, &mut Vec<Bytes>)) {
        Client::outgoing(self, parts, send);
    }

    fn deadline(&self) -> Option<Nanos> {
        Client::deadline(self)
    }

    fn wants_input(&self) -> bool {
        true
    }
}

impl Machine for Branch {
    fn received(&mut self, link: LinkId, bytes: Bytes, now: Nanos) {
        Branch::received(self, link, bytes, now);
    }

    fn broken(&mut self, link: LinkId, why: String) {
        Branch::broken(self, link, why);
    }

    fn run(&mut self, now: Nanos) -> bool {
        Branch::run(self, now)
    }

    fn poll_action(&mut self) -> Option<Action> {
        Branch::poll_action(self)
    }

    fn outgoing(&mut self, parts: &mut Vec<Bytes>, send: impl FnMut(LinkId, &mut Vec<Bytes>)) {
        Branch::outgoing(self, parts, send);
    }

    fn deadline(&self) -> Option<Nanos> {
        Branch::deadline(self)
    }

    fn wants_input(&self) -> bool {
        Branch::wants_input(self)
    }
}

/// Moves the bytes of a client, or of a branch of one.
pub(crate) struct Carrier<M = Client> {
    pub(crate) machine: M,
    sockets: Sockets,
    /// When the timer is due; `None` without a timer.
    armed: Option<Nanos>,
    parts: Vec<Bytes>,
}

impl<M: Machine> Carrier<M> {
    pub(crate) fn new(machine: M) -> Self {
        Self { machine, sockets: Sockets::default(), armed: None, parts: Vec::new() }
    }

    /// Takes an event of an operation that [`Carrier::act`] or [`Carrier::flush`] started with the
    /// token of `index`.
    pub(crate) fn event(
        &mut self,
        index: u32,
        event: Event,
        reactor: &mut Reactor,
        token: impl Fn(u32) -> Token,
    ) {
        let name = Name::of(index);
        if name.operation == Operation::Timer {
            self.armed = None;
            return;
        }
        let event = self.sockets.event(name, event);
        self.link_event(event, reactor, token);
    }

    fn link_event(
        &mut self,
        event: Option<LinkEvent>,
        reactor: &mut Reactor,
        token: impl Fn(u32) -> Token,
    ) {
        match event {
            Some(LinkEvent::Received(link, bytes)) => {
                self.machine.received(link, bytes, reactor.now());
            }
            Some(LinkEvent::Broken(link, why)) => {
                self.sockets.close(link, reactor, token);
                self.machine.broken(link, why);
            }
            None => {}
        }
    }

    /// Runs the machine, and opens and closes sockets. True if there was anything to do.
    pub(crate) fn act(&mut self, reactor: &mut Reactor, token: impl Fn(u32) -> Token) -> bool {
        let mut did = self.machine.run(reactor.now());
        while let Some(action) = self.machine.poll_action() {
            did = true;
            match action {
                Action::Connect(link, address) => {
                    self.sockets.open(link, address, reactor, &token);
                }
                Action::Close(link) => self.sockets.close(link, reactor, &token),
            }
        }
        while let Some(event) = self.sockets.refused() {
            did = true;
            self.link_event(Some(event), reactor, &token);
        }
        did
    }

    /// Starts the sends and receives of this turn, and sets the timer.
    pub(crate) fn flush(&mut self, reactor: &mut Reactor, token: impl Fn(u32) -> Token) {
        let Self { machine, sockets, parts, .. } = self;
        machine.outgoing(parts, |link, parts| sockets.send(link, parts));
        self.sockets.start(self.machine.wants_input(), reactor, &token);
        if let Some(due) = self.machine.deadline()
            && self.armed.is_none_or(|armed| due < armed)
        {
            reactor.timer(due, token(Name::TIMER.index()));
            self.armed = Some(due);
        }
    }

    /// True while bytes are on their way out.
    pub(crate) fn is_sending(&self) -> bool {
        self.sockets.is_sending()
    }

    /// Closes all sockets, and the timer.
    pub(crate) fn release(&mut self, reactor: &mut Reactor, token: impl Fn(u32) -> Token) {
        self.sockets.close_all(reactor, &token);
        if self.armed.take().is_some() {
            reactor.cancel_timer(token(Name::TIMER.index()));
        }
    }
}

/// The time of day.
pub(crate) fn wall_clock() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as u32, nanos: since.subsec_nanos() }
}
