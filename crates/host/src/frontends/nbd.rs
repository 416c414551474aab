//! The NBD connections of one core: a socket and a [`Session`] each.
//!
//! A connection has at most one receive and one send in flight. In each turn, the server decodes
//! and passes on all received requests before it answers. All answers that are ready at the end of
//! the turn leave together, up to [`SEND_BYTES_MAX`] per send. So a client with many requests in
//! flight is served in batches, and a client with a single request does not wait for others.
//!
//! The kernel writes received bytes directly into the session's buffer. This memory belongs to the
//! session. So a connection stays in its place until its receive has ended, and the worker drops
//! its reactor before its connections.
//!
//! # Bounds
//!
//! A connection is pending until the negotiation is over
//! ([`connection_table`](crate::connection_table)).
//! Payloads and replies of all connections of all cores count against one [`Budget`]. The server
//! does not receive from a connection that waits for room. A connection that holds room for which
//! others wait is closed if it neither sends the rest of its payload nor takes its replies for
//! [a while](StallLimit). No established connection is closed for being idle, or while no other
//! connection waits for room: a client may be suspended with its machine.
//!
//! # Flushes
//!
//! All connections of an export submit to the same device. So the promise of
//! `NBD_FLAG_CAN_MULTI_CONN` holds: a flush on one connection covers the writes that completed on
//! any of them.
//!
//! # Names of operations
//!
//! Operation `2 * place` is the receive of the connection at this place. Operation `2 * place + 1`
//! is its send.

use std::sync::Arc;

use bytes::Bytes;
use fieldstone_block::{Completion, Info, Nanos};
use fieldstone_buf::Budget;
use fieldstone_nbd::{Export, ExportError, ExportIndex, ExportList, Limits, Session, SessionPhase};
use slab::Slab;

use crate::connection_table::{
    Admission, ConnectionTable, PENDING_AGE_MS, SEND_BYTES_MAX, StallLimit,
};
use crate::frontend::{
    Frontend, FrontendCounts, FrontendIo, FrontendKind, FrontendSetup, NoFrontend, OfferError,
    OfferedDevice, Pressure, Submitter,
};
use crate::handle::Handle;
use crate::message::DeviceId;
use crate::notices::Cause;
use crate::store::Mail;
use crate::wire_socket::split_after;
use fieldstone_uring::{Event, Reactor, Socket, Want};

/// The kind for block devices over NBD.
pub const KIND: FrontendKind = FrontendKind {
    name: "nbd",
    about: "clients of the protocol NBD: nbd-client, qemu, libnbd",
    make: |setup| Box::new(NbdServer::new(setup)),
    offer: Some(offer_devices),
};

/// The most NBD connections of one core. Each has a receive buffer and
/// [`fieldstone_nbd::OWN_BYTES`] for requests, half a MiB together. All other memory is from the
/// budget.
pub const CONNECTIONS_MAX: usize = 1024;

/// The exports for clients, and the device of each export.
#[derive(Debug)]
pub struct Exports {
    /// The exports.
    pub list: Arc<ExportList>,
    /// Their devices, in the same order.
    pub devices: Vec<DeviceId>,
}

impl Exports {
    /// Sets the size of a device's exports. Copies the list if that is a change: connections that
    /// are open keep their list.
    fn set_size(self: &mut Arc<Self>, device: DeviceId, size_bytes: u64) {
        let of_device = |exports: &Self| {
            let sized = exports.list.as_slice().iter().zip(&exports.devices);
            let index = sized
                .into_iter()
                .position(|(export, of)| *of == device && export.size_bytes != size_bytes);
            index.and_then(|index| u32::try_from(index).ok()).map(ExportIndex)
        };
        while let Some(index) = of_device(self) {
            match self.list.resized(index, size_bytes) {
                Ok(list) => {
                    let (list, devices) = (Arc::new(list), self.devices.clone());
                    *self = Arc::new(Self { list, devices });
                }
                Err(error) => {
                    tracing::warn!("clients do not get the new size of an export: {error}");
                    return;
                }
            }
        }
    }
}

/// Makes an export of each device, and offers them.
fn offer_devices(handle: &Handle, devices: &[OfferedDevice]) -> Result<(), OfferError> {
    let export = |offered: &OfferedDevice| {
        let mut export = Export::new(offered.name.as_str(), &offered.info);
        export.can_multi_conn = true;
        export.read_only |= offered.read_only;
        export
    };
    let refused =
        |error: ExportError| OfferError::Refused { frontend: KIND.name, reason: error.to_string() };
    let mut list = ExportList::new(devices.iter().map(export).collect()).map_err(refused)?;
    if !devices.first().is_some_and(|first| first.is_default) {
        list = list.without_default();
    }
    let devices = devices.iter().map(|offered| offered.device).collect();
    Ok(offer(handle, Exports { list: Arc::new(list), devices })?)
}

/// Offers exports to connections that come after the return. At the return every core has taken the
/// exports, has ended, or hangs.
///
/// # Errors
/// The host has no NBD front-end.
pub fn offer(handle: &Handle, exports: Exports) -> Result<(), NoFrontend> {
    let exports = Arc::new(exports);
    if !handle.mail_frontend(handle.frontend(KIND.name)?, || Box::new(Arc::clone(&exports))) {
        tracing::warn!("a core does not take the exports: it hangs");
    }
    Ok(())
}

/// The difference between the names of a connection's send and receive.
const SEND: u32 = 1;

struct Connection {
    socket: Option<Socket>,
    session: Session,
    exports: Arc<Exports>,
    generation: u32,
    receiving: bool,
    sending: bool,
    /// Output that was taken and did not fit into the last send.
    unsent: Vec<Bytes>,
    dirty: bool,
    /// The negotiation is not over.
    is_pending: bool,
    /// The connection was closed to make room for others, and its place is already free.
    gone: bool,
    /// The connection is in the list of connections that wait for room.
    waiting: bool,
    /// When the client last sent or took the amount that it must while others wait for memory.
    progress: Nanos,
    /// Bytes that the client has sent since its last progress.
    dripped_bytes: usize,
}

/// The NBD connections of one core.
struct NbdServer {
    exports: Option<Arc<Exports>>,
    connections: Slab<Connection>,
    generation: u32,
    dirty: Vec<u32>,
    /// The server refuses requests, because the host stops.
    shutting_down: bool,
    accepted: u64,
    table: ConnectionTable,
    budget: Arc<Budget>,
    /// Connections that wait for room, and the budget's number of returns at their last try.
    waiting: Vec<u32>,
    returns: u64,
    /// A connection holds room.
    holding: bool,
    stall_limit: StallLimit,
}

impl NbdServer {
    /// A server without exports. It refuses connections until it gets some. Payloads and replies
    /// count against the budget.
    fn new(setup: FrontendSetup) -> Self {
        let FrontendSetup { bounds, budget } = setup;
        Self {
            table: ConnectionTable::new(bounds.at_most(CONNECTIONS_MAX)),
            budget,
            waiting: Vec::new(),
            returns: 0,
            holding: false,
            stall_limit: StallLimit::default(),
            exports: None,
            connections: Slab::new(),
            generation: 0,
            dirty: Vec::new(),
            shutting_down: false,
            accepted: 0,
        }
    }

    /// Closes a connection, even with operations under way.
    fn dismiss(&mut self, index: u32, reactor: &mut Reactor) {
        let Some(connection) = self.connections.get_mut(index as usize) else { return };
        if !std::mem::replace(&mut connection.gone, true) {
            self.table.gone(index);
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

    /// If room was given back, lets the connections that wait for room try again.
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

    /// Closes the connections that hold memory for which others wait, and are silent for too long.
    fn dismiss_stalled(&mut self, io: &mut FrontendIo<'_>) {
        if !std::mem::take(&mut self.holding) {
            return;
        }
        let limit = self.stall_limit.current(self.budget.is_wanted(), io.now);
        let mut stalled = Vec::new();
        for (index, connection) in &self.connections {
            self.holding |= connection.session.holds_room();
            if limit.is_some_and(|limit| connection.is_stalled(limit, io.now)) {
                stalled.push(name_of(index));
            }
        }
        for index in stalled {
            let line = format_args!(
                "closed an NBD connection: it kept memory that others wait for, and was silent"
            );
            io.say(Cause::Stalled, line);
            self.dismiss(index, io.reactor);
        }
    }
}

impl Frontend for NbdServer {
    fn counts(&self) -> FrontendCounts {
        FrontendCounts { connections: self.connections.len(), accepted: self.accepted }
    }

    fn in_flight(&self) -> usize {
        self.connections.iter().map(|(_, connection)| connection.session.in_flight()).sum()
    }

    fn accept(&mut self, socket: Socket, io: &mut FrontendIo<'_>) {
        let Some(exports) = self.exports.clone() else { return };
        match self.table.admit() {
            Admission::Welcome => {}
            Admission::InPlaceOf(oldest) => {
                let line = format_args!(
                    "closed an NBD connection that had not chosen an export: others came"
                );
                io.say(Cause::GaveWay, line);
                self.dismiss(oldest, io.reactor);
            }
            Admission::Full => {
                let count = self.table.count();
                let line = format_args!(
                    "refused an NBD connection: {count} clients are connected to this core, and a \
                     core takes {CONNECTIONS_MAX}, or its share of half the limit on open files \
                     (ulimit -n)"
                );
                io.say(Cause::Full, line);
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
            is_pending: true,
            gone: false,
            waiting: false,
            progress: io.now,
            dripped_bytes: 0,
        });
        self.table.arrived(name_of(index), io.now);
        self.mark(index);
    }

    fn event(&mut self, index: u32, event: Event, io: &mut FrontendIo<'_>) {
        let (place, is_send) = ((index / 2) as usize, index % 2 == SEND);
        let Some(connection) = self.connections.get_mut(place) else { return };
        if is_send {
            connection.sent(&event, io.now);
        } else {
            connection.received(&event, io.now);
        }
        self.mark(place);
    }

    /// Takes the exports for connections that come from now on. A device may have changed since the
    /// list was made.
    fn mail(&mut self, mail: Mail, io: &mut FrontendIo<'_>) {
        let Ok(exports) = mail.downcast::<Arc<Exports>>() else { return };
        let mut exports = *exports;
        for device in exports.devices.clone() {
            if let Some(info) = io.device_info(device) {
                exports.set_size(device, info.size_bytes);
            }
        }
        self.exports = Some(exports);
    }

    /// Offers the new size to connections that come from now on. The protocol has no message for a
    /// connection that is open: it keeps its size.
    fn device_changed(&mut self, device: DeviceId, info: &Info, _: &mut FrontendIo<'_>) {
        if let Some(exports) = &mut self.exports {
            exports.set_size(device, info.size_bytes);
        }
    }

    fn complete(&mut self, to: Submitter, completion: Completion) {
        let index = to.place as usize;
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.generation == to.generation {
            connection.session.complete(completion);
            self.mark(index);
        }
    }

    fn submit(&mut self, io: &mut FrontendIo<'_>) -> bool {
        self.try_again();
        let mut any = false;
        for index in &self.dirty {
            let connection = &mut self.connections[*index as usize];
            let from = Submitter { place: *index, generation: connection.generation };
            while let Some((export, request)) = connection.session.next_request() {
                let Some(device) = connection.exports.devices.get(export.0 as usize) else {
                    connection.session.disconnect();
                    break;
                };
                io.submit(from, *device, request);
                any = true;
            }
        }
        any
    }

    fn flush(&mut self, io: &mut FrontendIo<'_>) -> bool {
        let mut again = Vec::new();
        for index in std::mem::take(&mut self.dirty) {
            let connection = &mut self.connections[index as usize];
            connection.dirty = false;
            if connection.start_io(index, io) {
                again.push(index);
            }
            if connection.is_pending
                && matches!(connection.session.phase(), SessionPhase::Transmission(_))
            {
                connection.is_pending = false;
                self.table.introduced(index);
            }
            self.holding |= connection.session.holds_room();
            if connection.session.waits_for_room() && !connection.waiting {
                connection.waiting = true;
                self.waiting.push(index);
            }
            if connection.is_over() {
                if !connection.gone {
                    self.table.gone(index);
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

    fn drain(&mut self) {
        self.shutting_down = true;
        for (_, connection) in &mut self.connections {
            connection.session.shut_down();
        }
    }

    fn close(&mut self, io: &mut FrontendIo<'_>) {
        for (_, connection) in &mut self.connections {
            connection.session.disconnect();
            if let Some(socket) = connection.socket.take() {
                io.reactor.close(socket);
            }
        }
    }

    /// Closes up to `count` pending connections, the oldest first.
    fn evict_oldest(&mut self, count: usize, io: &mut FrontendIo<'_>) {
        for _ in 0..count {
            let Some(oldest) = self.table.oldest() else { return };
            self.dismiss(oldest, io.reactor);
        }
    }

    /// Closes pending connections whose time is over, and stalled connections.
    fn watch(&mut self, io: &mut FrontendIo<'_>) {
        while let Some(index) = self.table.overdue(io.now) {
            let seconds = PENDING_AGE_MS / 1000;
            let line =
                format_args!("closed an NBD connection: no export was chosen within {seconds} s");
            io.say(Cause::Silent, line);
            self.dismiss(index, io.reactor);
        }
        self.dismiss_stalled(io);
    }

    /// When the time of the oldest pending connection is over.
    fn deadline(&self) -> Option<Nanos> {
        self.table.deadline()
    }

    fn pressure(&self) -> Pressure {
        Pressure { waits: !self.waiting.is_empty(), holds: self.holding }
    }
}

/// The id of a place in the table.
fn name_of(index: usize) -> u32 {
    u32::try_from(index).expect("descriptors are fewer than 2^32")
}

impl Connection {
    /// Takes the end of a receive.
    fn received(&mut self, event: &Event, now: Nanos) {
        self.receiving = false;
        let owes = self.session.awaits_payload();
        match event.result {
            Ok(len_bytes) => {
                self.session.received(len_bytes as usize, now);
                self.dripped_bytes += len_bytes as usize;
            }
            // The connection is broken. An orderly end would have been zero bytes.
            Err(_) => self.session.disconnect(),
        }
        let paid = !(owes && self.session.awaits_payload());
        // While a send is under way, received bytes are no progress: the client must take its
        // replies.
        if !self.sending && (paid || self.dripped_bytes >= SEND_BYTES_MAX) {
            self.progress = now;
            self.dripped_bytes = 0;
        }
    }

    /// Takes the end of a send.
    fn sent(&mut self, event: &Event, now: Nanos) {
        self.sending = false;
        self.progress = now;
        if event.result.is_err() {
            self.session.disconnect();
            self.unsent.clear();
        }
        if self.unsent.is_empty() {
            self.session.sent();
        }
    }

    /// True if this took output and so allows the session to decode more.
    fn start_io(&mut self, place: u32, io: &mut FrontendIo<'_>) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut took = false;
        if !self.sending {
            let mut out = std::mem::take(&mut self.unsent);
            if out.is_empty() {
                self.session.output(&mut out);
                took = !out.is_empty() && !self.session.wants_input();
            }
            if !out.is_empty() {
                self.unsent = split_after(&mut out, SEND_BYTES_MAX);
                let token = io.token(2 * place + SEND);
                // Most sends end at once, and nothing waits for them.
                match self.unsent.is_empty() && self.session.wants_input() {
                    true => io.reactor.send_quietly(socket, out, token),
                    false => io.reactor.send(socket, out, token),
                }
                self.sending = true;
                self.progress = io.now;
            }
        } else {
            io.reactor.hear_sends();
        }
        if !self.receiving && self.session.wants_input() {
            let space = self.session.receive_space();
            let len_bytes = u32::try_from(space.len()).unwrap_or(u32::MAX);
            let start = space.as_mut_ptr();
            let token = io.token(2 * place);
            // SAFETY: the session promises that the space stays in place and is not touched until
            // the call of `received`, even if the session moves, as long as the session is not
            // dropped. Only the event of this receive causes that call, and the connection is
            // removed only when `receiving` is false. The worker drops the reactor first, which
            // waits for the end of the receive.
            unsafe { io.reactor.recv_raw(socket, start, len_bytes, Want::Any, token) };
            self.receiving = true;
        }
        if self.session.phase() == SessionPhase::Closed
            && !self.sending
            && let Some(socket) = self.socket.take()
        {
            if let Some(violation) = self.session.violation() {
                let line = format_args!("closed an NBD connection: {violation}");
                io.say(Cause::BadMessage, line);
            }
            io.reactor.close(socket);
        }
        took
    }

    /// True if the client holds room, must act next, and has made no progress for `limit`.
    fn is_stalled(&self, limit: Nanos, now: Nanos) -> bool {
        let its_turn = self.sending || (self.receiving && self.session.awaits_payload());
        its_turn && self.session.holds_room() && self.progress.plus(limit) <= now
    }

    /// True if the connection has ended and nothing refers to it. A device that still works on the
    /// connection's requests holds their payloads, and these count until the connection is removed.
    fn is_over(&self) -> bool {
        let idle = self.session.in_flight() == 0;
        self.socket.is_none() && !self.sending && !self.receiving && idle
    }
}
