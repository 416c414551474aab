//! NBD connections of one core: sockets around [`Session`]s.
//!
//! A connection has at most one receive and one send in flight. Per turn, everything that came in
//! is decoded and handed on before anything is answered, and all answers that are ready by the end
//! of the turn leave in one send. So a client with many requests in flight is served in batches,
//! and one with a single request waits for nobody.
//!
//! The receive writes straight into the session's buffer. That memory belongs to the session, so a
//! connection stays in its place until its receive has come back; and the worker drops its reactor
//! before its connections.
//!
//! Every connection of an export reaches the one queue of its device, so the promise of
//! `NBD_FLAG_CAN_MULTI_CONN` holds: a flush on one covers what completed on any.

use std::sync::Arc;

use bytes::Bytes;
use fieldstone_block::{Completion, Nanos};
use fieldstone_nbd::{ExportList, Limits, Phase, Session};
use fieldstone_proto::NodeIndex;
use slab::Slab;

use super::message::{DeviceId, Message, Origin, Router};
use super::token::{Kind, token};
use crate::{Event, Reactor, Socket, Want};

/// NBD connections of one core; more are closed at once. Each may hold
/// [`Limits::max_memory_bytes`], so this is no promise of memory but a guard against a client that
/// connects in a loop.
pub const CONNECTIONS_MAX: usize = 1024;

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Block devices over NBD.
    Nbd,
    /// This storage node.
    Node(NodeIndex),
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
    dirty: bool,
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
}

impl NbdServer {
    /// A server without exports; connections are refused until there are some.
    #[must_use]
    pub fn new() -> Self {
        Self {
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
    pub fn accept(&mut self, socket: Socket) {
        let Some(exports) = self.exports.clone() else { return };
        if self.connections.len() >= CONNECTIONS_MAX {
            tracing::warn!("refused an NBD connection: there are {CONNECTIONS_MAX} already");
            return;
        }
        self.accepted += 1;
        self.generation = self.generation.wrapping_add(1);
        let mut session = Session::new(Arc::clone(&exports.list), Limits::default());
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
            dirty: false,
        });
        self.mark(index);
    }

    fn mark(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if !std::mem::replace(&mut connection.dirty, true) {
            self.dirty.push(u32::try_from(index).expect("descriptors are fewer than 2^32"));
        }
    }

    /// A receive came back.
    pub fn received(&mut self, index: u32, event: &Event, now: Nanos) {
        let index = index as usize;
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.receiving = false;
        match event.result {
            Ok(len_bytes) => connection.session.received(len_bytes as usize, now),
            // The peer is gone; an orderly end would have been zero bytes.
            Err(_) => connection.session.disconnect(),
        }
        self.mark(index);
    }

    /// A send came back.
    pub fn sent(&mut self, index: u32, event: &Event) {
        let index = index as usize;
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.sending = false;
        if event.result.is_err() {
            connection.session.disconnect();
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
    pub fn pump_sockets(&mut self, reactor: &mut Reactor) -> bool {
        let mut again = Vec::new();
        for index in std::mem::take(&mut self.dirty) {
            let connection = &mut self.connections[index as usize];
            connection.dirty = false;
            if connection.start_io(index, reactor) {
                again.push(index);
            }
            if connection.is_over() {
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

impl Default for NbdServer {
    fn default() -> Self {
        Self::new()
    }
}

impl Connection {
    /// True if output was taken, after which the session may go on decoding.
    fn start_io(&mut self, index: u32, reactor: &mut Reactor) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut took = false;
        if !self.sending {
            let mut out: Vec<Bytes> = Vec::new();
            self.session.output(&mut out);
            if !out.is_empty() {
                reactor.send(socket, out, token(Kind::NbdSend, 0, index));
                self.sending = true;
                took = !self.session.wants_input();
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
                tracing::info!("closed an NBD connection: {violation}");
            }
            reactor.close(socket);
        }
        took
    }

    /// True when nothing refers to the connection any more.
    fn is_over(&self) -> bool {
        self.socket.is_none() && !self.sending && !self.receiving
    }
}
