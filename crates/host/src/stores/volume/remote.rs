//! The volume's connection to a node in another process. It is opened again whenever it breaks.
//!
//! ```text
//!             connected                        broken: the volume is told
//! Connecting -----------> Up ----------------------------------------------> Waiting
//!   ^   | refused, or no answer within five seconds                            |
//!   |   +----------------------------------------------------------> Waiting   |
//!   +-------------------------- 50 ms, doubled up to 2 s ------------------------+
//! ```
//!
//! The address of a node process is in a file in the node's folder, and reading the folder may
//! hang. So a thread reads the file ([`crate::timed_call`]) and sends the address in a message.
//! This is part of connecting.
//!
//! The pause doubles with every attempt until the node answers a request. So a node that accepts
//! connections and closes them gets few. Every attempt has a number in its tokens, which
//! distinguishes its events from those of earlier connections.

use std::path::Path;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_proto::{NodeError, NodeIndex, Reply, Request};

use crate::message::NodePlace;
use crate::store::{Mailer, StoreIo};
use crate::wire_socket::{Broken, WireSocket};
use crate::{folder, timed_call};
use fieldstone_uring::{Address, Endpoint, Event, Payload, Reactor, Token};

/// The first pause before connecting again.
const PAUSE_MS_MIN: u64 = 50;
/// The longest pause.
const PAUSE_MS_MAX: u64 = 2_000;
/// How long an attempt to connect may take.
const CONNECT_MS: u64 = 5_000;

/// An event for the volume.
#[derive(Debug)]
pub enum RemoteEvent {
    /// The connection is open. Other nodes reach the node at this address.
    Up(Bytes),
    /// The connection is gone.
    Down,
    /// The node's answer.
    Reply(Reply),
}

/// Mail from a thread to the store: the thread has read the address of a node's process, or has
/// failed.
pub struct FoundAddress {
    /// The node.
    pub node: NodeIndex,
    /// The attempt to connect that needs the address.
    pub attempt: u16,
    /// The address.
    pub endpoint: std::io::Result<Box<Endpoint>>,
}

enum State {
    Waiting,
    Connecting,
    Up(Box<WireSocket<Reply>>),
    Closed,
}

/// A node in another process.
pub struct RemoteNode {
    node: NodeIndex,
    place: NodePlace,
    /// The literal address of the present attempt to connect.
    address: Bytes,
    /// Brings the addresses that threads have read.
    mailer: Mailer,
    attempt: u16,
    state: State,
    pause_ms: u64,
    /// Answers to requests that could not be encoded. The next flush delivers them.
    refused: Vec<Reply>,
}

/// The operation to which an event belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Receiving.
    Receive,
    /// Sending.
    Send,
    /// Connecting.
    Connect,
    /// The timer that limits connecting, or that ends the pause before it.
    Timer,
}

/// The name of an operation among the operations of a volume.
///
/// ```text
///  31       30 29      16 15    0
/// +-----------+----------+-------+
/// | operation | attempt  | node  |
/// +-----------+----------+-------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    pub operation: Operation,
    pub attempt: u16,
    pub node: NodeIndex,
}

/// Attempts are counted modulo this number. So many attempts take so long that no event of the
/// attempt with the same number can still come.
const ATTEMPTS: u16 = 1 << 14;

impl Name {
    const OPERATIONS: [Operation; 4] =
        [Operation::Receive, Operation::Send, Operation::Connect, Operation::Timer];

    pub fn of(index: u32) -> Self {
        let bits = |from: u32, mask: u32| u16::try_from(index >> from & mask).expect("masked");
        Self {
            operation: Self::OPERATIONS[usize::from(bits(30, 3))],
            attempt: bits(16, u32::from(ATTEMPTS - 1)),
            node: NodeIndex(bits(0, 0xffff)),
        }
    }

    fn index(self) -> u32 {
        (self.operation as u32) << 30 | u32::from(self.attempt) << 16 | u32::from(self.node.0)
    }
}

impl RemoteNode {
    /// A node without a connection yet.
    #[must_use]
    pub fn new(node: NodeIndex, place: NodePlace, mailer: Mailer) -> Self {
        Self {
            node,
            place,
            address: Bytes::new(),
            mailer,
            attempt: 0,
            state: State::Waiting,
            pause_ms: 0,
            refused: Vec::new(),
        }
    }

    fn token(&self, operation: Operation, io: &StoreIo<'_>) -> Token {
        io.token(Name { operation, attempt: self.attempt, node: self.node }.index())
    }

    /// Closes the connection, if there is one, and opens a new one: at once if it is the first one
    /// or the node has answered on the last one, otherwise after a pause.
    pub fn reconnect(&mut self, io: &mut StoreIo<'_>) {
        self.hang_up(io);
        if self.pause_ms == 0 {
            self.connect(io);
        } else {
            self.wait(io);
        }
    }

    fn hang_up(&mut self, io: &mut StoreIo<'_>) {
        io.reactor.cancel_timer(self.token(Operation::Timer, io));
        match std::mem::replace(&mut self.state, State::Waiting) {
            State::Up(socket) => socket.close(io.reactor),
            State::Connecting => {
                io.reactor.cancel(self.token(Operation::Connect, io));
            }
            State::Waiting | State::Closed => {}
        }
        self.attempt = (self.attempt + 1) % ATTEMPTS;
    }

    fn connect(&mut self, io: &mut StoreIo<'_>) {
        self.pause_ms = (self.pause_ms * 2).clamp(PAUSE_MS_MIN, PAUSE_MS_MAX);
        let started = match &self.place {
            NodePlace::At(endpoint) => {
                self.address = endpoint.literal().to_string().into();
                io.reactor.connect(endpoint, self.token(Operation::Connect, io))
            }
            NodePlace::Announced(path) => self.read_address(path),
            NodePlace::Listed(directory, node) => match directory.address(*node) {
                Some(address) => self.resolve(address),
                None => Err(std::io::ErrorKind::NotFound.into()),
            },
            NodePlace::Here(_) => Err(std::io::ErrorKind::Unsupported.into()),
        };
        match started {
            Ok(()) => {
                self.state = State::Connecting;
                let limit = io.reactor.now().plus(Nanos::from_ms(CONNECT_MS));
                io.reactor.timer(limit, self.token(Operation::Timer, io));
            }
            Err(error) => self.unreachable(&error, io),
        }
    }

    fn unreachable(&mut self, error: &std::io::Error, io: &mut StoreIo<'_>) {
        tracing::debug!("{} cannot be reached: {error}", self.node);
        self.wait(io);
    }

    /// Begins to read the address of the node's process; [`RemoteNode::found`] continues.
    fn read_address(&self, path: &Path) -> std::io::Result<()> {
        let folder = path.to_path_buf();
        // The address is literal: the process has written the address to which it is bound.
        self.find(&path.to_string_lossy(), move || folder::announced(&folder))
    }

    /// Begins to resolve an address; [`RemoteNode::found`] continues.
    fn resolve(&self, address: Address) -> std::io::Result<()> {
        self.find(&address.to_string(), move || Some(address))
    }

    fn find(
        &self,
        name: &str,
        address: impl FnOnce() -> Option<Address> + Send + 'static,
    ) -> std::io::Result<()> {
        let (node, attempt, mailer) = (self.node, self.attempt, self.mailer.clone());
        let read = move || -> std::io::Result<Box<Endpoint>> {
            let address = address().ok_or(std::io::ErrorKind::NotFound)?;
            Endpoint::resolve(&address).map(Box::new)
        };
        // If the core does not take the mail, the time limit of connecting passes, and a new
        // attempt begins.
        let answered = move |endpoint| {
            mailer.send(Box::new(FoundAddress { node, attempt, endpoint }));
        };
        timed_call::begin(name, read, answered)
    }

    /// Takes the address of the node, or the reason why it could not be read.
    pub fn found(
        &mut self,
        attempt: u16,
        endpoint: std::io::Result<Box<Endpoint>>,
        io: &mut StoreIo<'_>,
    ) {
        if attempt != self.attempt || !matches!(self.state, State::Connecting) {
            return;
        }
        let token = self.token(Operation::Connect, io);
        // The time limit that was set before also limits this step.
        let connect = |endpoint: Box<Endpoint>| {
            self.address = endpoint.literal().to_string().into();
            io.reactor.connect(&endpoint, token)
        };
        if let Err(error) = endpoint.and_then(connect) {
            self.unreachable(&error, io);
        }
    }

    fn wait(&mut self, io: &mut StoreIo<'_>) {
        self.state = State::Waiting;
        let next = io.reactor.now().plus(Nanos::from_ms(self.pause_ms.max(PAUSE_MS_MIN)));
        io.reactor.timer(next, self.token(Operation::Timer, io));
    }

    /// Queues a request, in fragments if its route allows them; [`RemoteNode::flush`] sends it.
    /// Drops the request if there is no connection, which the volume has been told.
    pub fn send(&mut self, request: Request) {
        let State::Up(socket) = &mut self.state else { return };
        let tag = request.tag;
        if let Err(error) = socket.push_request(request) {
            let result = Err(NodeError::Invalid(error.to_string()));
            self.refused.push(Reply { tag, result, slots_free: 0 });
        }
    }

    /// Sends queued requests and continues to receive. Adds the answers that are already known to
    /// `events`.
    pub fn flush(&mut self, reactor: &mut Reactor, events: &mut Vec<RemoteEvent>) {
        if let State::Up(socket) = &mut self.state {
            socket.start_io(reactor);
        }
        events.extend(self.refused.drain(..).map(RemoteEvent::Reply));
    }

    /// Takes an event of the node's socket or timer.
    pub fn event(
        &mut self,
        what: Name,
        event: Event,
        io: &mut StoreIo<'_>,
        events: &mut Vec<RemoteEvent>,
    ) {
        if what.attempt != self.attempt || matches!(self.state, State::Closed) {
            return;
        }
        let broken = match (what.operation, &mut self.state) {
            (Operation::Connect, State::Connecting) => {
                return self.connected(event, io, events);
            }
            (Operation::Timer, State::Connecting) => {
                self.hang_up(io);
                return self.wait(io);
            }
            (Operation::Timer, State::Waiting) => return self.connect(io),
            (Operation::Receive, State::Up(socket)) => {
                let mut answered = false;
                let result = socket.received(event).and_then(|()| {
                    while let Some(reply) = socket.next_message()? {
                        answered = true;
                        events.push(RemoteEvent::Reply(reply));
                    }
                    Ok(())
                });
                if answered {
                    self.pause_ms = 0;
                }
                result
            }
            (Operation::Send, State::Up(socket)) => socket.sent(event),
            _ => return,
        };
        match broken {
            Ok(()) => self.flush(io.reactor, events),
            Err(error) => {
                match &error {
                    Broken::Wire(error) => {
                        tracing::warn!("{} is not understood: {error}", self.node);
                    }
                    // The node has answered over this connection, so its loss is news. An address
                    // that accepts connections and closes them gives no warning: it may do so for
                    // ever.
                    other if self.pause_ms == 0 => {
                        let place = self.place.remote().unwrap_or_default();
                        tracing::warn!("the connection to {}{place} is lost: {other}", self.node);
                    }
                    other => tracing::info!("the connection to {} is lost: {other}", self.node),
                }
                self.hang_up(io);
                self.wait(io);
                events.push(RemoteEvent::Down);
            }
        }
    }

    fn connected(&mut self, event: Event, io: &mut StoreIo<'_>, events: &mut Vec<RemoteEvent>) {
        io.reactor.cancel_timer(self.token(Operation::Timer, io));
        match (event.result, event.payload) {
            (Ok(_), Payload::Socket(socket)) => {
                let (receive, send) =
                    (self.token(Operation::Receive, io), self.token(Operation::Send, io));
                let mut socket = Box::new(WireSocket::new(socket, receive, send));
                socket.start_io(io.reactor);
                self.state = State::Up(socket);
                events.push(RemoteEvent::Up(self.address.clone()));
            }
            (Ok(_), _) => self.wait(io),
            (Err(error), _) => {
                tracing::debug!("{} cannot be reached: {error}", self.node);
                self.wait(io);
            }
        }
    }

    /// Closes the connection for ever.
    pub fn close(&mut self, io: &mut StoreIo<'_>) {
        self.hang_up(io);
        self.state = State::Closed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written() {
        for operation in Name::OPERATIONS {
            for (attempt, node) in [(0, 0), (ATTEMPTS - 1, u16::MAX), (7, 300)] {
                let name = Name { operation, attempt, node: NodeIndex(node) };
                assert_eq!(Name::of(name.index()), name);
            }
        }
    }
}
