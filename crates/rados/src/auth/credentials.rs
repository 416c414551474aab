//! What all connections of a client share: its key, its global id, its tickets.
//!
//! Connections to monitors fill it, connections to OSDs read it, renewals keep it fresh. Copies are
//! the same object.
//!
//! **The global id** is what the cluster calls this client: watches and locks belong to it. A
//! monitor gives it at the first connection. A later connection to any monitor keeps it, and proves
//! with the old ticket that it is the same client. Monitors refuse a client that names a global id
//! without a ticket (`auth_allow_insecure_global_id_reclaim = false`).
//!
//! **Several monitors at once.** Each monitor gives a global id, tickets and a challenge of its
//! own, and a renewal of the ticket for monitors needs the challenge of the session over which it
//! goes. So what a monitor gave counts only once the client has chosen its connection
//! ([`ClientAuth::commit`]).
//!
//! **The clock.** Tickets age by a clock that only goes forwards: it adds up the steps of the wall
//! clock, and leaves out steps backwards. So a wall clock that is set back does not make a ticket
//! seem good for longer than it is, except by the time between two calls.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::authorizer::AuthorizerAuth;
use super::monitor::{MonitorAuth, OldTicket};
use super::none::{NoneAuth, NoneServiceAuth};
use super::ticket::{Ticket, later};
use super::wire::{NamedTicket, TicketBlob};
use super::{AuthError, ClientAuth, CryptoKey, Entity, Mode};
use crate::encoding::{EntityKind, Time};

/// The services for which a client wants tickets.
pub const SERVICES: [EntityKind; 2] = [EntityKind::Osd, EntityKind::Manager];

/// A renewal that was not answered for so long, or that failed, may be tried again.
pub const RENEWAL_RETRY_S: u64 = 20;

const SECOND: u64 = 1_000_000_000;

fn nanos_of(time: Time) -> u64 {
    u64::from(time.seconds) * SECOND + u64::from(time.nanos)
}

/// What is due for renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The tickets that are due or missing: `Auth` is the one for the monitors.
    pub kinds: Vec<EntityKind>,
}

/// What the connections share.
pub(super) struct Shared {
    pub(super) entity: Entity,
    /// None with the method none.
    pub(super) key: Option<CryptoKey>,
    pub(super) rng: ChaCha20Rng,
    /// The wall clock when it was last told; `None` before.
    wall: Option<Time>,
    /// The clock of the tickets. It begins with the first wall clock.
    pub(super) clock: Time,
    /// 0 until a monitor gave one.
    pub(super) global_id: u64,
    pub(super) tickets: BTreeMap<EntityKind, Ticket>,
    /// The services for which the monitors gave no ticket when they were asked. Their absence alone
    /// is no reason to ask again.
    pub(super) absent: Vec<EntityKind>,
    /// The challenge of the monitor whose session is open.
    pub(super) server_challenge: u64,
    /// A renewal began at this time, and did not yet bring all that it asks for.
    pub(super) renewal_began: Option<Time>,
    /// The services that the renewal asks for.
    pub(super) renewal_asks: Vec<EntityKind>,
}

/// What all connections of a client share. Copies are the same object.
#[derive(Clone)]
pub struct Credentials(pub(super) Rc<RefCell<Shared>>);

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = self.0.borrow();
        write!(f, "Credentials({}, global id {})", shared.entity, shared.global_id)
    }
}

impl Shared {
    /// The ticket that proves to a monitor that the client owns its global id.
    pub(super) fn old_ticket(&self) -> Option<OldTicket> {
        let ticket = self.tickets.get(&EntityKind::Auth)?;
        (self.global_id != 0 && !ticket.blob.bytes.is_empty())
            .then(|| (ticket.blob.clone(), ticket.session_key.clone()))
    }

    pub(super) fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Takes the tickets of a reply, and says if all came that were asked for. Kinds that this
    /// client does not know are passed over.
    pub(super) fn take_tickets(
        &mut self,
        tickets: Vec<NamedTicket>,
        asked: &[EntityKind],
        arrived: Time,
    ) -> bool {
        self.absent.extend(asked);
        for (kind, service, blob) in tickets {
            let kind = u8::try_from(kind).ok().and_then(EntityKind::of);
            let wanted = kind.filter(|kind| *kind == EntityKind::Auth || SERVICES.contains(kind));
            if let Some(kind) = wanted {
                self.tickets.insert(kind, Ticket::new(service, blob, arrived));
                self.absent.retain(|&absent| absent != kind);
            }
        }
        self.absent.sort_unstable();
        self.absent.dedup();
        !asked.iter().any(|kind| self.absent.contains(kind))
    }

    /// The wall clock shows this time.
    fn tell_time(&mut self, wall: Time) {
        let step = match self.wall.replace(wall) {
            Some(before) => nanos_of(wall).saturating_sub(nanos_of(before)),
            None => nanos_of(wall),
        };
        let nanos = nanos_of(self.clock).saturating_add(step);
        let seconds = u32::try_from(nanos / SECOND).unwrap_or(u32::MAX);
        self.clock = Time { seconds, nanos: (nanos % SECOND) as u32 };
    }

    /// Makes a ticket that a service refused invalid, unless a newer one came meanwhile.
    pub(super) fn drop_ticket(&mut self, kind: EntityKind, refused: &TicketBlob) {
        if self.tickets.get(&kind).is_some_and(|ticket| ticket.blob == *refused) {
            self.tickets.remove(&kind);
            self.absent.retain(|&absent| absent != kind);
        }
    }

    /// Forgets who the client was: the next connection to a monitor gets a new global id.
    pub(super) fn forget(&mut self) {
        self.global_id = 0;
        self.tickets.clear();
        self.absent.clear();
        self.renewal_began = None;
    }

    /// The tickets that are due for renewal, or missing.
    fn due(&self) -> Vec<EntityKind> {
        let due = |kind: &EntityKind| match self.tickets.get(kind) {
            Some(ticket) => ticket.is_due(self.clock),
            None => !self.absent.contains(kind),
        };
        [EntityKind::Auth].into_iter().chain(SERVICES).filter(due).collect()
    }
}

impl Credentials {
    /// The credentials of an entity with a key, or without one for clusters that use the method
    /// none. All random numbers come from the seed: it must be secret and new for each client.
    #[must_use]
    pub fn new(entity: Entity, key: Option<CryptoKey>, seed: [u8; 32]) -> Self {
        Self(Rc::new(RefCell::new(Shared {
            entity,
            key,
            rng: ChaCha20Rng::from_seed(seed),
            wall: None,
            clock: Time::default(),
            global_id: 0,
            tickets: BTreeMap::new(),
            absent: Vec::new(),
            server_challenge: 0,
            renewal_began: None,
            renewal_asks: Vec::new(),
        })))
    }

    /// The entity.
    #[must_use]
    pub fn entity(&self) -> Entity {
        self.0.borrow().entity.clone()
    }

    /// What the cluster calls this client; 0 before the first monitor answered.
    #[must_use]
    pub fn global_id(&self) -> u64 {
        self.0.borrow().global_id
    }

    /// True if the client has a key, so that it speaks cephx.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.0.borrow().key.is_some()
    }

    /// Tells the time. Tickets age by its steps forwards.
    pub fn set_wall_clock(&self, wall: Time) {
        self.0.borrow_mut().tell_time(wall);
    }

    /// True if there is a ticket for this service that is good now. Without a key no ticket is
    /// needed: true.
    #[must_use]
    pub fn has_ticket(&self, kind: EntityKind) -> bool {
        let shared = self.0.borrow();
        let valid = |ticket: &Ticket| ticket.is_valid(shared.clock);
        shared.key.is_none() || shared.tickets.get(&kind).is_some_and(valid)
    }

    /// The authentication of a connection to a monitor, with the modes that the client accepts, the
    /// best first.
    #[must_use]
    pub fn monitor_auth(&self, modes: &[Mode]) -> Box<dyn ClientAuth> {
        if self.has_key() {
            Box::new(MonitorAuth::new(self.clone(), modes))
        } else {
            Box::new(NoneAuth::monitor(self.clone(), modes))
        }
    }

    /// The authentication of a connection to a service, with the modes that the client accepts, the
    /// best first. It shares nothing with these credentials, so it may go to another core.
    ///
    /// # Errors
    /// There is no good ticket: one has to come from a monitor first.
    pub fn service_auth(
        &self,
        kind: EntityKind,
        modes: &[Mode],
    ) -> Result<Box<dyn ClientAuth + Send>, AuthError> {
        let shared = &mut *self.0.borrow_mut();
        let (entity, global_id) = (shared.entity.clone(), shared.global_id);
        if shared.key.is_none() {
            return Ok(Box::new(NoneServiceAuth::new(entity, global_id, modes)));
        }
        let service = kind.name();
        let Some(ticket) = shared.tickets.get(&kind) else {
            return Err(AuthError::other(format!(
                "{entity} has no ticket for the service {service}"
            )));
        };
        if !ticket.is_valid(shared.clock) {
            return Err(AuthError::other(format!(
                "the ticket of {entity} for the service {service} has expired"
            )));
        }
        let ticket = ticket.clone();
        let mut seed = [0; 32];
        shared.rng.fill_bytes(&mut seed);
        let rng = ChaCha20Rng::from_seed(seed);
        Ok(Box::new(AuthorizerAuth::new((entity, global_id), rng, kind, ticket, modes)))
    }

    /// What the client shows to a service at present; `None` without a ticket.
    #[must_use]
    pub fn ticket_blob(&self, kind: EntityKind) -> Option<TicketBlob> {
        self.0.borrow().tickets.get(&kind).map(|ticket| ticket.blob.clone())
    }

    /// A service refused this ticket: it is invalid from now on, unless a newer one came meanwhile.
    pub fn ticket_refused(&self, kind: EntityKind, refused: &TicketBlob) {
        self.0.borrow_mut().drop_ticket(kind, refused);
    }

    /// What is due for renewal at this time, if no renewal is on its way. It also sets the clock.
    #[must_use]
    pub fn renewal_due(&self, wall: Time) -> Option<Renewal> {
        let mut shared = self.0.borrow_mut();
        shared.tell_time(wall);
        let waits = |began: Time| shared.clock < later(began, RENEWAL_RETRY_S);
        if shared.key.is_none() || shared.global_id == 0 || shared.renewal_began.is_some_and(waits)
        {
            return None;
        }
        let kinds = shared.due();
        (!kinds.is_empty()).then_some(Renewal { kinds })
    }

    /// When the next ticket is due for renewal, by the wall clock. `None` if there is none.
    #[must_use]
    pub fn renewal_at(&self) -> Option<Time> {
        let shared = self.0.borrow();
        let at = shared.tickets.values().filter_map(Ticket::renew_at).min()?;
        let wait_s = u64::from(at.seconds.saturating_sub(shared.clock.seconds));
        Some(later(shared.wall.unwrap_or_default(), wait_s))
    }

    /// The payload of a request for new tickets, for the open session with a monitor. `None` if the
    /// client has no session key yet, or needs none.
    #[must_use]
    pub fn begin_renewal(&self) -> Option<bytes::Bytes> {
        let mut shared = self.0.borrow_mut();
        let due = shared.due();
        let payload = super::renewal::request(&mut shared, &due)?;
        shared.renewal_began = Some(shared.clock);
        Some(payload)
    }

    /// Takes the monitor's answer to a request for new tickets: its result and payload.
    ///
    /// # Errors
    /// The monitor refuses, or the answer cannot be read. The tickets stay as they were. A new
    /// session with a monitor brings new tickets in any case.
    pub fn finish_renewal(&self, result: i32, payload: bytes::Bytes) -> Result<(), AuthError> {
        let mut shared = self.0.borrow_mut();
        super::renewal::take(&mut shared, result, payload)
    }

    /// The session with the monitor broke: a renewal that was on its way is not answered any more.
    pub fn abandon_renewal(&self) {
        self.0.borrow_mut().renewal_began = None;
    }

    /// Makes the ticket for a service invalid, so that [`renewal_due`](Self::renewal_due) asks for
    /// a new one.
    pub fn invalidate(&self, kind: EntityKind) {
        let mut shared = self.0.borrow_mut();
        if let Some(ticket) = shared.tickets.get(&kind).cloned() {
            shared.drop_ticket(kind, &ticket.blob);
        }
    }
}
