//! The sockets of a Ceph client: one for each of its links.
//!
//! At most one receive and one send of a link are in flight. Bytes that the client queues during a
//! send leave together in the next one, so whatever a turn causes leaves in one send per OSD. The
//! end of a send matters only if more bytes wait for it, so other sends are quiet.
//!
//! The client numbers its links, and uses a number again after the link is closed. So each socket
//! has an attempt number in its tokens, and an event of an earlier socket is recognised and
//! dropped.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_rados::client::LinkId;
use fieldstone_uring::{Address, Endpoint, Event, Payload, Reactor, Socket, Token, Want};

use crate::wire_socket::split_after;

/// Size of the first receive buffer of a link.
const RECEIVE_BYTES_MIN: usize = 64 << 10;
/// Largest size of a receive buffer: a reply of this length is not copied.
const RECEIVE_BYTES_MAX: usize = 1 << 20;
/// The most bytes of one send.
const SEND_BYTES_MAX: usize = 4 << 20;
/// Attempts are counted modulo this number. So many attempts take so long that no event of the
/// attempt with the same number can still come.
const ATTEMPTS: u16 = 1 << 14;

/// An event of a link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// Bytes arrived.
    Received(LinkId, Bytes),
    /// The connection is gone, for this reason.
    Broken(LinkId, String),
}

/// The operation to which an event belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Receive,
    Send,
    Connect,
    /// The timer of the client; it belongs to no link.
    Timer,
}

/// The name of an operation among those of a client.
///
/// ```text
///  31       30 29      16 15    0
/// +-----------+----------+-------+
/// | operation | attempt  | link  |
/// +-----------+----------+-------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) operation: Operation,
    attempt: u16,
    link: LinkId,
}

impl Name {
    /// The timer of the client.
    pub(crate) const TIMER: Name =
        Name { operation: Operation::Timer, attempt: 0, link: LinkId(0) };

    pub(crate) fn of(index: u32) -> Self {
        use Operation::{Connect, Receive, Send, Timer};
        Self {
            operation: [Receive, Send, Connect, Timer][(index >> 30) as usize],
            attempt: (index >> 16) as u16 % ATTEMPTS,
            link: LinkId(index as u16),
        }
    }

    pub(crate) fn index(self) -> u32 {
        (self.operation as u32) << 30 | u32::from(self.attempt) << 16 | u32::from(self.link.0)
    }
}

/// The socket of one link.
struct Link {
    attempt: u16,
    /// `None` while it is being connected.
    socket: Option<Socket>,
    out: Vec<Bytes>,
    sending: bool,
    receiving: bool,
    receive_bytes: usize,
}

/// The sockets of a client.
#[derive(Default)]
pub(crate) struct Sockets {
    links: BTreeMap<LinkId, Link>,
    /// Links that may have something to start. So a turn costs nothing for the others.
    stirred: Vec<LinkId>,
    /// Links whose next receive waits until input is wanted again.
    held_back: Vec<LinkId>,
    attempts: u16,
    /// Links that could not even begin to connect.
    refused: Vec<(LinkId, String)>,
}

impl Sockets {
    /// Connects a link.
    pub(crate) fn open(
        &mut self,
        link: LinkId,
        address: SocketAddr,
        reactor: &mut Reactor,
        token: impl Fn(u32) -> Token,
    ) {
        self.attempts = (self.attempts + 1) % ATTEMPTS;
        let attempt = self.attempts;
        let name = Name { operation: Operation::Connect, attempt, link };
        let connected = Endpoint::resolve(&Address::from(address))
            .and_then(|endpoint| reactor.connect(&endpoint, token(name.index())));
        if let Err(error) = connected {
            self.refused.push((link, format!("{address}: {error}")));
            return;
        }
        let state = Link {
            attempt,
            socket: None,
            out: Vec::new(),
            sending: false,
            receiving: false,
            receive_bytes: RECEIVE_BYTES_MIN,
        };
        self.links.insert(link, state);
    }

    /// A link that could not begin to connect.
    pub(crate) fn refused(&mut self) -> Option<LinkEvent> {
        self.refused.pop().map(|(link, why)| LinkEvent::Broken(link, why))
    }

    /// Queues bytes.
    pub(crate) fn send(&mut self, link: LinkId, parts: &mut Vec<Bytes>) {
        match self.links.get_mut(&link) {
            Some(state) => {
                state.out.append(parts);
                self.stirred.push(link);
            }
            None => parts.clear(),
        }
    }

    /// Starts sends and, if input is wanted, receives, as far as possible.
    pub(crate) fn start(
        &mut self,
        wants_input: bool,
        reactor: &mut Reactor,
        token: impl Fn(u32) -> Token,
    ) {
        if wants_input {
            self.stirred.append(&mut self.held_back);
        }
        for link in self.stirred.drain(..) {
            let Some(state) = self.links.get_mut(&link) else { continue };
            let Some(socket) = &state.socket else { continue };
            let named = |operation| {
                let name = Name { operation, attempt: state.attempt, link };
                token(name.index())
            };
            if !state.sending && !state.out.is_empty() {
                let rest = split_after(&mut state.out, SEND_BYTES_MAX);
                let parts = std::mem::replace(&mut state.out, rest);
                state.sending = true;
                reactor.send_quietly(socket, parts, named(Operation::Send));
            }
            if !state.out.is_empty() {
                reactor.hear_sends();
            }
            if !state.receiving && !wants_input {
                if !self.held_back.contains(&link) {
                    self.held_back.push(link);
                }
            } else if !state.receiving {
                state.receiving = true;
                let buffer = AlignedBuf::stale(state.receive_bytes);
                reactor.recv(socket, buffer, Want::Any, named(Operation::Receive));
            }
        }
    }

    /// Takes an event of an operation of a link.
    pub(crate) fn event(&mut self, name: Name, event: Event) -> Option<LinkEvent> {
        let link = name.link;
        let state = self.links.get_mut(&link).filter(|state| state.attempt == name.attempt)?;
        self.stirred.push(link);
        let broken = |why: String| Some(LinkEvent::Broken(link, why));
        match (name.operation, event.result, event.payload) {
            (Operation::Connect, Ok(_), Payload::Socket(socket)) => {
                state.socket = Some(socket);
                None
            }
            (Operation::Send, Ok(_), _) => {
                state.sending = false;
                None
            }
            (Operation::Receive, Ok(0), _) => broken("the peer closed the connection".to_owned()),
            (Operation::Receive, Ok(count), Payload::Buffer(mut buffer)) => {
                state.receiving = false;
                let count = count as usize;
                // A full buffer means that more could have come at once.
                if count == buffer.len() {
                    state.receive_bytes = (state.receive_bytes * 2).min(RECEIVE_BYTES_MAX);
                } else if count < state.receive_bytes / 8 {
                    state.receive_bytes = (state.receive_bytes / 2).max(RECEIVE_BYTES_MIN);
                }
                buffer.truncate(count);
                Some(LinkEvent::Received(link, buffer.freeze()))
            }
            (_, Err(error), _) => broken(error.to_string()),
            _ => broken("an operation ended without its result".to_owned()),
        }
    }

    /// True while bytes wait to be sent, or are being sent.
    pub(crate) fn is_sending(&self) -> bool {
        self.links.values().any(|state| state.sending || !state.out.is_empty())
    }

    /// Closes a link.
    pub(crate) fn close(
        &mut self,
        link: LinkId,
        reactor: &mut Reactor,
        token: impl Fn(u32) -> Token,
    ) {
        self.refused.retain(|(refused, _)| *refused != link);
        let Some(state) = self.links.remove(&link) else { return };
        match state.socket {
            Some(socket) => reactor.close(socket),
            None => {
                let name = Name { operation: Operation::Connect, attempt: state.attempt, link };
                reactor.cancel(token(name.index()));
            }
        }
    }

    /// Closes all links.
    pub(crate) fn close_all(&mut self, reactor: &mut Reactor, token: impl Fn(u32) -> Token) {
        while let Some((&link, _)) = self.links.first_key_value() {
            self.close(link, reactor, &token);
        }
    }
}
