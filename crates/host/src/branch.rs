//! A part of a store that lives on another core than the store.
//!
//! A store lives on one core. If one store keeps its core busy, it may give work to other cores: a
//! [`BranchSpec`] makes a [`Branch`] there. Store and branch share nothing. They send each other
//! mail, in order: the store with [`StoreIo::send_branch`](crate::StoreIo::send_branch), the branch
//! with [`BranchIo::send_home`]. Like messages of any kind between two cores, what a turn causes
//! reaches the other core together.
//!
//! A store has at most one branch on a core. The core gives the branch its events and mail, then
//! calls [`Branch::act`] until it does nothing, and [`Branch::flush`] once. A branch that does not
//! come to an end goes on after the other parts of the core. The branch ends when the store ends
//! it, and at the latest when the store is [released](crate::Store::release).

use std::fmt::Debug;

use fieldstone_block::Nanos;
use fieldstone_uring::{Event, Reactor, Token};

use crate::device::ROUNDS_MAX;
use crate::message::{Core, DeviceId, Message, Router};
use crate::store::{Mail, StoreIo};

/// Makes a branch on its core.
pub trait BranchSpec: Debug + Send {
    /// Makes a branch. The call must not block.
    fn open(self: Box<Self>, io: &mut BranchIo<'_>) -> Box<dyn Branch>;
}

/// A part of a store on another core. The module's text says when each function is called.
pub trait Branch {
    /// An operation has ended that the branch started with the token [`BranchIo::token_of`] of
    /// `index`.
    fn event(&mut self, index: u32, event: Event, io: &mut BranchIo<'_>);

    /// Takes mail of the store.
    fn mail(&mut self, mail: Mail, io: &mut BranchIo<'_>);

    /// Does the work that there is. True if there was any.
    fn act(&mut self, io: &mut BranchIo<'_>) -> bool;

    /// Sends what [`Branch::act`] queued.
    fn flush(&mut self, io: &mut BranchIo<'_>);

    /// Gives back sockets, files and timers. Afterwards the host drops the branch.
    fn release(&mut self, io: &mut BranchIo<'_>);
}

/// The resources of a branch on its core.
pub struct BranchIo<'a> {
    /// The store's device.
    pub device: DeviceId,
    /// The time of this turn.
    pub now: Nanos,
    /// Files, sockets and timers.
    pub reactor: &'a mut Reactor,
    home: Core,
    router: &'a mut Router,
}

impl BranchIo<'_> {
    /// A token for an operation or a timer of the branch. [`Branch::event`] gets its event with the
    /// same `index`.
    #[must_use]
    pub fn token_of(device: DeviceId, index: u32) -> Token {
        // On this core, no other part has operations of the store.
        StoreIo::token_of(device, index)
    }

    /// Sends mail to the store: [`Store::mail`](crate::Store::mail) gets it.
    pub fn send_home(&mut self, mail: Mail) {
        self.router.send(self.home, Message::ToStore { device: self.device, mail });
    }
}

/// A branch on this core.
pub(crate) struct Slot {
    device: DeviceId,
    home: Core,
    branch: Box<dyn Branch>,
    dirty: bool,
}

impl Slot {
    pub(crate) fn open(
        (device, home): (DeviceId, Core),
        spec: Box<dyn BranchSpec>,
        now: Nanos,
        router: &mut Router,
        reactor: &mut Reactor,
    ) -> Self {
        let branch = spec.open(&mut BranchIo { device, now, reactor, home, router });
        Self { device, home, branch, dirty: true }
    }

    fn with(
        &mut self,
        now: Nanos,
        router: &mut Router,
        reactor: &mut Reactor,
        call: impl FnOnce(&mut dyn Branch, &mut BranchIo<'_>),
    ) {
        self.dirty = true;
        let Self { device, home, .. } = *self;
        call(&mut *self.branch, &mut BranchIo { device, now, reactor, home, router });
    }

    pub(crate) fn event(
        &mut self,
        index: u32,
        event: Event,
        now: Nanos,
        router: &mut Router,
        reactor: &mut Reactor,
    ) {
        self.with(now, router, reactor, |branch, io| branch.event(index, event, io));
    }

    pub(crate) fn mail(
        &mut self,
        mail: Mail,
        now: Nanos,
        router: &mut Router,
        reactor: &mut Reactor,
    ) {
        self.with(now, router, reactor, |branch, io| branch.mail(mail, io));
    }

    /// Runs the branch until it has no more work, in at most `ROUNDS_MAX` rounds. True if it had
    /// to run; the caller then calls again.
    pub(crate) fn pump(&mut self, now: Nanos, router: &mut Router, reactor: &mut Reactor) -> bool {
        if !self.dirty {
            return false;
        }
        let mut is_busy = false;
        self.with(now, router, reactor, |branch, io| {
            is_busy = (0..ROUNDS_MAX).all(|_| branch.act(io));
            branch.flush(io);
        });
        self.dirty = is_busy;
        true
    }

    pub(crate) fn release(mut self, now: Nanos, router: &mut Router, reactor: &mut Reactor) {
        self.with(now, router, reactor, |branch, io| branch.release(io));
    }
}
