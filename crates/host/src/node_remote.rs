//! A node in another process, as a device sees it: one connection, opened again whenever it breaks.
//!
//! ```text
//!             connected                        broken: the device is told
//! Connecting -----------> Up ----------------------------------------------> Waiting
//!   ^   | refused, or no answer within five seconds                            |
//!   |   +----------------------------------------------------------> Waiting   |
//!   +-------------------------- 50 ms, doubled up to 2 s ------------------------+
//! ```
//!
//! The address of a node process stands in a file of the node's folder, which may hang. So a thread
//! reads the file ([`crate::look_up`]), and a message brings the address; this is part of
//! connecting.
//!
//! The pause grows with every attempt until a node has answered something, so a node that accepts
//! and closes again is not hammered. Every attempt has a number that is part of its tokens: events
//! of an earlier connection are not mistaken for those of the present one.

use std::path::Path;

use fieldstone_block::Nanos;
use fieldstone_proto::wire::encode_request;
use fieldstone_proto::{NodeError, NodeIndex, Reply, Request};

use crate::device::NodePlace;
use crate::message::{DeviceId, Message};
use crate::token::{Kind, token};
use crate::wire_socket::{Broken, WireSocket};
use crate::{folder, look_up};
use fieldstone_uring::{Endpoint, Event, Payload, Reactor, Sender, Token};

/// The first pause before connecting again.
const PAUSE_MS_MIN: u64 = 50;
/// The longest one.
const PAUSE_MS_MAX: u64 = 2_000;
/// A connection that is not open after this long is given up.
const CONNECT_MS: u64 = 5_000;

/// What the device is told.
#[derive(Debug)]
pub enum Heard {
    /// The connection is open.
    Up,
    /// The connection is gone.
    Down,
    /// The node answered.
    Reply(Reply),
}

enum State {
    Waiting,
    Connecting,
    Up(Box<WireSocket<Reply>>),
    Closed,
}

/// A node in another process.
pub struct RemoteNode {
    device: DeviceId,
    node: NodeIndex,
    place: NodePlace,
    /// The mailbox of this core, for addresses that were read.
    mailbox: Sender<Message>,
    attempt: u16,
    state: State,
    pause_ms: u64,
    /// Requests that could not be encoded, to be answered at the next occasion.
    refused: Vec<Reply>,
}

/// The part of a token's index that says which attempt it belongs to, and the node.
#[must_use]
pub fn split_index(index: u32) -> (NodeIndex, u16) {
    let low = u16::try_from(index & 0xffff).expect("masked to 16 bits");
    let high = u16::try_from(index >> 16).expect("shifted to 16 bits");
    (NodeIndex(low), high)
}

impl RemoteNode {
    /// A node that is not connected to yet.
    #[must_use]
    pub fn new(
        device: DeviceId,
        node: NodeIndex,
        place: NodePlace,
        mailbox: Sender<Message>,
    ) -> Self {
        Self {
            device,
            node,
            place,
            mailbox,
            attempt: 0,
            state: State::Waiting,
            pause_ms: 0,
            refused: Vec::new(),
        }
    }

    fn token(&self, kind: Kind) -> Token {
        let index = u32::from(self.attempt) << 16 | u32::from(self.node.0);
        token(kind, self.device.0, index)
    }

    /// Drops the connection, if any, and opens a new one; at once if the last one did its work.
    pub fn reconnect(&mut self, reactor: &mut Reactor) {
        self.hang_up(reactor);
        if self.pause_ms == 0 {
            self.connect(reactor);
        } else {
            self.wait(reactor);
        }
    }

    fn hang_up(&mut self, reactor: &mut Reactor) {
        reactor.cancel_timer(self.token(Kind::RemoteTimer));
        match std::mem::replace(&mut self.state, State::Waiting) {
            State::Up(socket) => socket.close(reactor),
            State::Connecting => {
                reactor.cancel(self.token(Kind::RemoteConnect));
            }
            State::Waiting | State::Closed => {}
        }
        self.attempt = self.attempt.wrapping_add(1);
    }

    fn connect(&mut self, reactor: &mut Reactor) {
        self.pause_ms = (self.pause_ms * 2).clamp(PAUSE_MS_MIN, PAUSE_MS_MAX);
        let started = match &self.place {
            NodePlace::At(endpoint) => reactor.connect(endpoint, self.token(Kind::RemoteConnect)),
            NodePlace::Announced(path) => self.read_address(path),
            NodePlace::Here => Err(std::io::ErrorKind::Unsupported.into()),
        };
        match started {
            Ok(()) => {
                self.state = State::Connecting;
                let limit = reactor.now().plus(Nanos::from_ms(CONNECT_MS));
                reactor.timer(limit, self.token(Kind::RemoteTimer));
            }
            Err(error) => self.unreachable(&error, reactor),
        }
    }

    fn unreachable(&mut self, error: &std::io::Error, reactor: &mut Reactor) {
        tracing::debug!("{} cannot be reached: {error}", self.node);
        self.wait(reactor);
    }

    /// Begins to read where the node's process listens; [`RemoteNode::found`] goes on.
    fn read_address(&self, path: &Path) -> std::io::Result<()> {
        let (device, node, attempt) = (self.device, self.node, self.attempt);
        let (mailbox, folder) = (self.mailbox.clone(), path.to_path_buf());
        let read = move || -> std::io::Result<Box<Endpoint>> {
            let address = folder::announced(&folder).ok_or(std::io::ErrorKind::NotFound)?;
            // A literal address: its process wrote down what it is bound to.
            Endpoint::resolve(&address).map(Box::new)
        };
        let tell = move |endpoint| {
            let found = Message::Found { device, node, attempt, endpoint };
            // If the core takes nothing, the time limit of connecting passes, and all begins anew.
            let _ = mailbox.send(found);
        };
        look_up::begin(&path.to_string_lossy(), read, tell)
    }

    /// The node's address was read, or could not be.
    pub fn found(
        &mut self,
        attempt: u16,
        endpoint: std::io::Result<Box<Endpoint>>,
        reactor: &mut Reactor,
    ) {
        if attempt != self.attempt || !matches!(self.state, State::Connecting) {
            return;
        }
        let token = self.token(Kind::RemoteConnect);
        // The time limit set before holds for this as well.
        if let Err(error) = endpoint.and_then(|endpoint| reactor.connect(&endpoint, token)) {
            self.unreachable(&error, reactor);
        }
    }

    fn wait(&mut self, reactor: &mut Reactor) {
        self.state = State::Waiting;
        let next = reactor.now().plus(Nanos::from_ms(self.pause_ms.max(PAUSE_MS_MIN)));
        reactor.timer(next, self.token(Kind::RemoteTimer));
    }

    /// Queues a request; [`RemoteNode::flush`] sends it. Without a connection it is dropped: the
    /// device has been told that there is none.
    pub fn send(&mut self, request: &Request) {
        let State::Up(socket) = &mut self.state else { return };
        match encode_request(request) {
            Ok(parts) => socket.push(parts),
            Err(error) => {
                let result = Err(NodeError::Invalid(error.to_string()));
                self.refused.push(Reply { tag: request.tag, result, slots_free: 0 });
            }
        }
    }

    /// Sends what is queued and keeps receiving. Answers that are known already go to `heard`.
    pub fn flush(&mut self, reactor: &mut Reactor, heard: &mut Vec<Heard>) {
        if let State::Up(socket) = &mut self.state {
            socket.start_io(reactor);
        }
        heard.extend(self.refused.drain(..).map(Heard::Reply));
    }

    /// Something happened to one of its sockets or to its timer.
    pub fn event(
        &mut self,
        kind: Kind,
        attempt: u16,
        event: Event,
        reactor: &mut Reactor,
        heard: &mut Vec<Heard>,
    ) {
        if attempt != self.attempt || matches!(self.state, State::Closed) {
            return;
        }
        let broken = match (kind, &mut self.state) {
            (Kind::RemoteConnect, State::Connecting) => {
                return self.connected(event, reactor, heard);
            }
            (Kind::RemoteTimer, State::Connecting) => {
                self.hang_up(reactor);
                return self.wait(reactor);
            }
            (Kind::RemoteTimer, State::Waiting) => return self.connect(reactor),
            (Kind::RemoteReceive, State::Up(socket)) => {
                let mut answered = false;
                let result = socket.received(event).and_then(|()| {
                    while let Some(reply) = socket.next_message()? {
                        answered = true;
                        heard.push(Heard::Reply(reply));
                    }
                    Ok(())
                });
                if answered {
                    self.pause_ms = 0;
                }
                result
            }
            (Kind::RemoteSend, State::Up(socket)) => socket.sent(event),
            _ => return,
        };
        match broken {
            Ok(()) => self.flush(reactor, heard),
            Err(error) => {
                match &error {
                    Broken::Wire(error) => {
                        tracing::warn!("{} is not understood: {error}", self.node);
                    }
                    other => tracing::info!("the connection to {} is lost: {other}", self.node),
                }
                self.hang_up(reactor);
                self.wait(reactor);
                heard.push(Heard::Down);
            }
        }
    }

    fn connected(&mut self, event: Event, reactor: &mut Reactor, heard: &mut Vec<Heard>) {
        reactor.cancel_timer(self.token(Kind::RemoteTimer));
        match (event.result, event.payload) {
            (Ok(_), Payload::Socket(socket)) => {
                let (receive, send) =
                    (self.token(Kind::RemoteReceive), self.token(Kind::RemoteSend));
                let mut socket = Box::new(WireSocket::new(socket, receive, send));
                socket.start_io(reactor);
                self.state = State::Up(socket);
                heard.push(Heard::Up);
            }
            (Ok(_), _) => self.wait(reactor),
            (Err(error), _) => {
                tracing::debug!("{} cannot be reached: {error}", self.node);
                self.wait(reactor);
            }
        }
    }

    /// Hangs up for good.
    pub fn close(&mut self, reactor: &mut Reactor) {
        self.hang_up(reactor);
        self.state = State::Closed;
    }
}
