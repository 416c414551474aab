//! NBD connections of one core: sockets around [`Session`]s.
//!
//! A connection has at most one receive and one send in flight. Per turn, everything that came in
//! is decoded and handed on before anything is answered, and all answers that are ready by the end
//! of the turn leave in one send. So a client with many requests in flight is served in batches,
//! and a client with a single request does not wait for others.
//!
//! The receive writes straight into the session's buffer. That memory belongs to the session, so a
//! connection stays in its place until its receive has come back; and the worker drops its reactor
//! before its connections.
//!
//! # Bounds
//!
//! A connection is a stranger until the negotiation is over ([`strangers`](crate::strangers)).
//! Payloads and replies of all connections of all cores are held against one [`Budget`]; a
//! connection that finds no room is not read from until there is some. A connection that holds room
//! which others wait for, and neither sends the rest of its payload nor takes its replies for
//! [a while](Patience), is closed. No connection is closed for idling, or while no other waits for
//! room: a client may be suspended with its machine.
//!
//! # Flushes
//!
//! Every connection of an export reaches the one queue of its device, so the promise of
//! `NBD_FLAG_CAN_MULTI_CONN` holds: a flush on one covers what completed on any.

use std::sync::Arc;

use bytes::Bytes;
use fieldstone_block::{Completion, Nanos};
use fieldstone_buf::Budget;
use fieldstone_nbd::{ExportList, Limits, Phase, Session};
use slab::Slab;

use crate::message::{DeviceId, LocalNodeId, Message, Origin, Router};
use crate::notices::{Cause, Notices};
use crate::strangers::{Admission, Bounds, Guests, Patience, SEND_BYTES_MAX, STRANGER_AGE_MS};
use crate::token::{Kind, token};
use crate::wire_socket::cut;
use fieldstone_uring::{Event, Reactor, Socket, Want};

/// NBD connections of one core; more are closed at once. Each has a receive buffer and
/// [`fieldstone_nbd::OWN_BYTES`] for requests, half a MiB together; the rest is of the budget.
pub const CONNECTIONS_MAX: usize = 1024;

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Block devices over NBD.
    Nbd,
    /// This storage node.
    Node(LocalNodeId),
}

/// A connection that was just accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub socket: Socket,
    /// What for.
    pub service: Service,
}

/// What is offered to clients, and which device stands behind each export.
#[derive(Debug)]
pub struct Exports {
    /// The exports.
    pub list: Arc<ExportList>,
    /// Their devices, in the same order.
    pub devices: Vec<DeviceId>,
}

struct Connection {
    socket: Option<Socket>,
    session: Session,
    exports: Arc<Exports>,
    generation: u32,
    receiving: bool,
    sending: bool,
    /// Output that was taken, and is too long for one send.
    unsent: Vec<Bytes>,
    dirty: bool,
    /// Negotiation is not over.
    stranger: bool,
    /// The connection was closed for others, and its place is given away.
    gone: bool,
    /// The connection is in the list of those that wait for room.
    waiting: bool,
    /// When the client last sent or took as much as it must where others wait for memory.
    progress: Nanos,
    /// Bytes that it sent since, if it owes a payload.
    dripped_bytes: usize,
}

/// The NBD connections of one core.
pub struct NbdServer {
    exports: Option<Arc<Exports>>,
    connections: Slab<Connection>,
    generation: u32,
    dirty: Vec<u32>,
    /// Requests are refused: the host goes down.
    shutting_down: bool,
    accepted: u64,
    guests: Guests,
    budget: Arc<Budget>,
    /// Connections that wait for room, and how often room had come back when they last tried.
    waiting: Vec<u32>,
    returns: u64,
    /// A connection holds room.
    holding: bool,
    patience: Patience,
}

impl NbdServer {
    /// A server without exports; connections are refused until there are some. Payloads and replies
    /// are held against `budget`.
    #[must_use]
    pub fn new(bounds: Bounds, budget: Arc<Budget>) -> Self {
        Self {
            guests: Guests::new(bounds.at_most(CONNECTIONS_MAX)),
            budget,
            waiting: Vec::new(),
            returns: 0,
            holding: false,
            patience: Patience::default(),
            exports: None,
            connections: Slab::new(),
            generation: 0,
            dirty: Vec::new(),
            shutting_down: false,
            accepted: 0,
        }
    }

    /// Offers these exports to connections that come from now on.
    pub fn offer(&mut self, exports: Arc<Exports>) {
        self.exports = Some(exports);
    }

    /// Number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Connections accepted since start.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Requests submitted and not yet answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.connections.iter().map(|(_, connection)| connection.session.in_flight()).sum()
    }

    /// Takes a connection over.
    pub fn accept(
        &mut self,
        socket: Socket,
        reactor: &mut Reactor,
        now: Nanos,
        notices: &mut Notices,
    ) {
        let Some(exports) = self.exports.clone() else { return };
        match self.guests.admit() {
            Admission::Welcome => {}
            Admission::InPlaceOf(oldest) => {
                let line = format_args!(
                    "closed an NBD connection that had not chosen an export: others came"
                );
                notices.say(Cause::GaveWay, now, line);
                self.dismiss(oldest, reactor);
            }
            Admission::Full => {
                let count = self.guests.count();
                let line = format_args!(
                    "refused an NBD connection: {count} clients are connected to this core, and a \
                     core takes {CONNECTIONS_MAX}, or its share of half the limit on open files \
                     (ulimit -n)"
                );
                notices.say(Cause::Full, now, line);
                return;
            }
        }
        self.accepted += 1;
        self.generation = self.generation.wrapping_add(1);
        let session = Session::new(Arc::clone(&exports.list), Limits::default());
        let mut session = session.with_budget(&self.budget);
        if self.shutting_down {
            session.shut_down();
        }
        let index = self.connections.insert(Connection {
            socket: Some(socket),
            session,
            exports,
            generation: self.generation,
            receiving: false,
            sending: false,
            unsent: Vec::new(),
            dirty: false,
            stranger: true,
            gone: false,
            waiting: false,
            progress: now,
            dripped_bytes: 0,
        });
        self.guests.arrived(name_of(index), now);
        self.mark(index);
    }

    /// Closes a connection, whatever is under way on it.
    fn dismiss(&mut self, index: u32, reactor: &mut Reactor) {
        let Some(connection) = self.connections.get_mut(index as usize) else { return };
        if !std::mem::replace(&mut connection.gone, true) {
            self.guests.gone(index);
        }
        connection.session.disconnect();
        connection.unsent.clear();
        if let Some(socket) = connection.socket.take() {
            reactor.close(socket);
        }
        self.mark(index as usize);
    }

    fn mark(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if !std::mem::replace(&mut connection.dirty, true) {
            self.dirty.push(name_of(index));
        }
    }

    /// A receive came back.
    pub fn received(&mut self, index: u32, event: &Event, now: Nanos) {
        let index = index as usize;
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.receiving = false;
        let owes = connection.session.awaits_payload();
        match event.result {
            Ok(len_bytes) => {
                connection.session.received(len_bytes as usize, now);
                connection.dripped_bytes += len_bytes as usize;
            }
            // The peer is gone; an orderly end would have been zero bytes.
            Err(_) => connection.session.disconnect(),
        }
        let paid = !(owes && connection.session.awaits_payload());
        // A client that takes nothing makes no progress by what it sends.
        if !connection.sending && (paid || connection.dripped_bytes >= SEND_BYTES_MAX) {
            connection.progress = now;
            connection.dripped_bytes = 0;
        }
        self.mark(index);
    }

    /// A send came back.
    pub fn sent(&mut self, index: u32, event: &Event, now: Nanos) {
        let index = index as usize;
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.sending = false;
        connection.progress = now;
        if event.result.is_err() {
            connection.session.disconnect();
            connection.unsent.clear();
        }
        if connection.unsent.is_empty() {
            connection.session.sent();
        }
        self.mark(index);
    }

    /// A device answered.
    pub fn complete(&mut self, origin: Origin, completion: Completion) {
        let index = origin.connection as usize;
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.generation == origin.generation {
            connection.session.complete(completion);
            self.mark(index);
        }
    }

    /// Hands the requests of all changed connections to their devices. True if there were any.
    pub fn pump_requests(&mut self, router: &mut Router) -> bool {
        self.try_again();
        let mut any = false;
        for index in &self.dirty {
            let connection = &mut self.connections[*index as usize];
            let generation = connection.generation;
            let origin = Origin { core: router.me, connection: *index, generation };
            while let Some((export, request)) = connection.session.next_request() {
                let Some(device) = connection.exports.devices.get(export.0 as usize) else {
                    connection.session.disconnect();
                    break;
                };
                let to = device.core(router.cores());
                router.send(to, Message::Submit { device: *device, origin, request });
                any = true;
            }
        }
        any
    }

    /// Sends what is ready, receives what is wanted, closes what is over. True if that made room
    /// for requests that were held back.
    pub fn pump_sockets(&mut self, reactor: &mut Reactor, notices: &mut Notices) -> bool {
        let mut again = Vec::new();
        for index in std::mem::take(&mut self.dirty) {
            let connection = &mut self.connections[index as usize];
            connection.dirty = false;
            if connection.start_io(index, reactor, notices) {
                again.push(index);
            }
            if connection.stranger && matches!(connection.session.phase(), Phase::Transmission(_)) {
                connection.stranger = false;
                self.guests.introduced(index);
            }
            self.holding |= connection.session.holds_room();
            if connection.session.waits_for_room() && !connection.waiting {
                connection.waiting = true;
                self.waiting.push(index);
            }
            if connection.is_over() {
                if !connection.gone {
                    self.guests.gone(index);
                }
                self.connections.remove(index as usize);
            }
        }
        for index in &again {
            if self.connections.contains(*index as usize) {
                self.mark(*index as usize);
            }
        }
        !again.is_empty()
    }

    /// Lets those try again that wait for room, if some has come back.
    fn try_again(&mut self) {
        if self.waiting.is_empty() || self.returns == self.budget.returns() {
            return;
        }
        self.returns = self.budget.returns();
        for index in std::mem::take(&mut self.waiting) {
            if let Some(connection) = self.connections.get_mut(index as usize) {
                connection.waiting = false;
                self.mark(index as usize);
            }
        }
    }

    /// Makes room for descriptors: closes strangers, the oldest first.
    pub fn give_way(&mut self, count: usize, reactor: &mut Reactor) {
        for _ in 0..count {
            let Some(oldest) = self.guests.oldest() else { return };
            self.dismiss(oldest, reactor);
        }
    }

    /// Closes the connections whose time is over.
    pub fn watch(&mut self, now: Nanos, reactor: &mut Reactor, notices: &mut Notices) {
        while let Some(index) = self.guests.overdue(now) {
            let seconds = STRANGER_AGE_MS / 1000;
            let line =
                format_args!("closed an NBD connection: no export was chosen within {seconds} s");
            notices.say(Cause::Silent, now, line);
            self.dismiss(index, reactor);
        }
        if !std::mem::take(&mut self.holding) {
            return;
        }
        let limit = self.patience.limit(self.budget.is_wanted(), now);
        let mut stalled = Vec::new();
        for (index, connection) in &self.connections {
            self.holding |= connection.session.holds_room();
            if limit.is_some_and(|limit| connection.is_stalled(limit, now)) {
                stalled.push(name_of(index));
            }
        }
        for index in stalled {
            let line = format_args!(
                "closed an NBD connection: it kept memory that others wait for, and was silent"
            );
            notices.say(Cause::Stalled, now, line);
            self.dismiss(index, reactor);
        }
    }

    /// When strangers must have gone; the owner watches then.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.guests.deadline()
    }

    /// Whether a connection waits for room, and whether a connection holds room.
    #[must_use]
    pub fn pressure(&self) -> (bool, bool) {
        (!self.waiting.is_empty(), self.holding)
    }

    /// Refuses requests from now on; those in flight are still answered.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
        for (_, connection) in &mut self.connections {
            connection.session.shut_down();
        }
    }

    /// Ends every connection.
    pub fn close_all(&mut self, reactor: &mut Reactor) {
        for (_, connection) in &mut self.connections {
            connection.session.disconnect();
            if let Some(socket) = connection.socket.take() {
                reactor.close(socket);
            }
        }
    }
}

/// The name of a place in the table.
fn name_of(index: usize) -> u32 {
    u32::try_from(index).expect("descriptors are fewer than 2^32")
}

impl Connection {
    /// True if output was taken, after which the session may go on decoding.
    fn start_io(&mut self, index: u32, reactor: &mut Reactor, notices: &mut Notices) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut took = false;
        if !self.sending {
            let mut out = std::mem::take(&mut self.unsent);
            if out.is_empty() {
                self.session.output(&mut out);
                took = !out.is_empty() && !self.session.wants_input();
            }
            if !out.is_empty() {
                self.unsent = cut(&mut out, SEND_BYTES_MAX);
                reactor.send(socket, out, token(Kind::NbdSend, 0, index));
                self.sending = true;
                self.progress = reactor.now();
            }
        }
        if !self.receiving && self.session.wants_input() {
            let space = self.session.receive_space();
            let len_bytes = u32::try_from(space.len()).unwrap_or(u32::MAX);
            let place = space.as_mut_ptr();
            let token = token(Kind::NbdReceive, 0, index);
            // SAFETY: the session promises that the space stays where it is and untouched until
            // `received` is called, however it is moved, as long as it is not dropped. It is called
            // only with this receive's event, and the connection is removed only when `receiving`
            // is false. The worker drops the reactor first, which waits for the receive to end.
            unsafe { reactor.recv_raw(socket, place, len_bytes, Want::Any, token) };
            self.receiving = true;
        }
        if self.session.phase() == Phase::Closed
            && !self.sending
            && let Some(socket) = self.socket.take()
        {
            if let Some(violation) = self.session.violation() {
                let line = format_args!("closed an NBD connection: {violation}");
                notices.say(Cause::BadMessage, reactor.now(), line);
            }
            reactor.close(socket);
        }
        took
    }

    /// True if it keeps others waiting and it is the client's turn to do something.
    fn is_stalled(&self, limit: Nanos, now: Nanos) -> bool {
        let its_turn = self.sending || (self.receiving && self.session.awaits_payload());
        its_turn && self.session.holds_room() && self.progress.plus(limit) <= now
    }

    /// True when nothing refers to the connection any more. A device that still works on requests
    /// of the connection holds their payloads. These count as long as the connection is there.
    fn is_over(&self) -> bool {
        let idle = self.session.in_flight() == 0;
        self.socket.is_none() && !self.sending && !self.receiving && idle
    }
}
