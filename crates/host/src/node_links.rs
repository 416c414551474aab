//! Links of this core's nodes to other nodes, over which they pass writes on.
//!
//! ```text
//!  LocalNode --Relay--> NodeLinks --+--> a node of this process: LinkOpen, ToNode
//!      ^                            +--> a node of another process: a socket
//!      +---- Relayed, LinkLost ----------< answers
//! ```
//!
//! A link opens with the first request, and stays open until it breaks, its node gives it up, or it
//! is idle ([`IDLE_MS`]). A node of this process has no address.
//!
//! # Addresses
//! The writer of a volume has named the address of any other node. A writer may err or be hostile,
//! and any process may listen there: the control socket of a server, for example, which takes
//! commands in lines of text. So nothing that a writer has chosen leaves over a new connection
//! before the other end has shown that it is the node of this number and pool: this end asks it to
//! identify itself, with a request that is always the same. An address is only connected to if it
//! is literal: a name might block.
//!
//! # Bounds
//! A core has at most [`LINKS_MAX`] links, and no more than the process has descriptors for; one
//! more takes the place of the one that was used least recently. A link on which more than
//! [`QUEUED_BYTES_MAX`] wait is lost. A request that waits for a link to open counts there with its
//! payload and with what it takes beside the payload, because a contribution to parity may have no
//! payload (its node had no memory for the product). Payloads have leases. What requests take
//! beside them has none, so all links of a core together hold at most [`HELD_BYTES_MAX`] of it:
//! beyond that the core loses the link for which most waits. Answers have at most
//! [`ANSWER_BODY_BYTES_MAX`], and no payload. The node bounds the time for which a request may
//! wait.

mod waiting;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use fieldstone_block::Nanos;
use fieldstone_node::{LinkTarget, NodeEvent};
use fieldstone_proto::route::REPLICAS_MAX;
use fieldstone_proto::wire::{TEXT_BYTES_MAX, encode_request};
use fieldstone_proto::{
    Capability, NodeIndex, PoolId, Reply, ReplyBody, Request, RequestBody, Tag,
};

use crate::message::{Link, LocalNodeId, Message, NodeMail, Router};
use crate::token::{Kind, token};
use crate::wire_socket::{Broken, QUEUED_BYTES_MAX, WireSocket};
use fieldstone_uring::{Address, Endpoint, Event, Payload, Reactor};
use waiting::{HELD_BYTES_MAX, Waiting};

/// The most links of a core.
pub const LINKS_MAX: usize = 1024;

/// One link for this many connections of clients that a core may have.
const CONNECTIONS_PER_LINK: usize = 4;

/// A link that was not used for this long is closed.
pub const IDLE_MS: u64 = 60_000;

/// The longest body of an answer: an outcome for each node of a route, with a text of the longest
/// length.
pub const ANSWER_BODY_BYTES_MAX: usize = REPLICAS_MAX * (TEXT_BYTES_MAX + 64);

/// The tag of the first request on a connection. Nodes never use it for what they pass on.
const GREETING: Tag = Tag(u64::MAX);

/// The nodes of this process by their numbers.
pub type LocalNodes = Arc<[(PoolId, NodeIndex)]>;

enum State {
    /// A node of this process. Requests wait until it is up.
    Local {
        node: LocalNodeId,
        up: bool,
        waiting: Waiting,
    },
    /// The socket is not connected yet.
    Connecting(Waiting),
    /// The other end has not shown who it is yet.
    Greeting(Box<WireSocket<Reply>>, Waiting),
    Socket(Box<WireSocket<Reply>>),
}

impl State {
    /// The requests that wait for the link to open.
    fn waiting(&self) -> Option<&Waiting> {
        match self {
            Self::Local { waiting, .. }
            | Self::Connecting(waiting)
            | Self::Greeting(_, waiting) => Some(waiting),
            Self::Socket(_) => None,
        }
    }

    /// What the requests that wait for the link hold beside their payloads.
    fn held_bytes(&self) -> usize {
        self.waiting().map_or(0, Waiting::held_bytes)
    }
}

struct NodeLink {
    from: LocalNodeId,
    to: LinkTarget,
    state: State,
    used_at: Nanos,
    dirty: bool,
}

/// The links of the nodes of one core.
pub struct NodeLinks {
    nodes: LocalNodes,
    links_max: usize,
    links: BTreeMap<u32, NodeLink>,
    /// The number of each link.
    numbers: BTreeMap<(u32, LinkTarget), u32>,
    /// What all requests that wait for links hold beside their payloads.
    held_bytes: usize,
    next: u32,
    dirty: Vec<u32>,
}

fn link(number: u32) -> Link {
    Link { device: Link::NODE, attempt: number }
}

impl NodeLinks {
    /// No links yet, on core number `core`, which may have this many connections of clients.
    #[must_use]
    pub fn new(nodes: LocalNodes, core: usize, connections: usize) -> Self {
        // Numbers differ between cores, because nodes of all cores have links to one node.
        let next = u32::try_from(core).unwrap_or_default();
        let (links, numbers, dirty) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let links_max = (connections / CONNECTIONS_PER_LINK).clamp(REPLICAS_MAX, LINKS_MAX);
        Self { nodes, links_max, links, numbers, held_bytes: 0, next, dirty }
    }

    /// Passes a request on.
    pub fn relay(
        &mut self,
        from: LocalNodeId,
        to: LinkTarget,
        request: Request,
        now: Nanos,
        router: &mut Router,
        reactor: &mut Reactor,
    ) {
        let number = match self.numbers.get(&(from.number, to.clone())) {
            Some(number) => *number,
            // The link is gone, and with it the write to which this belongs.
            None if !request.has_answer() => return,
            None => match self.open(from, &to, now, router, reactor) {
                Ok(number) => number,
                Err(why) => {
                    tracing::debug!("{from} has no link to {}: {why}", to.node);
                    return tell(from, NodeEvent::LinkLost { to }, router);
                }
            },
        };
        let Some(found) = self.links.get_mut(&number) else { return };
        found.used_at = now;
        let queued = match &mut found.state {
            State::Local { node, up: true, .. } => {
                let (node, core) = (*node, node.core(router.cores()));
                router.send(core, Message::ToNode { node, link: link(number), request });
                return;
            }
            State::Local { waiting, .. }
            | State::Connecting(waiting)
            | State::Greeting(_, waiting) => {
                self.held_bytes += waiting.push(request);
                waiting.bytes()
            }
            State::Socket(socket) => match socket.push_request(request) {
                Ok(()) => socket.unsent_bytes(),
                Err(why) => return self.lose(number, &why.to_string(), router, reactor),
            },
        };
        match queued > QUEUED_BYTES_MAX {
            true => self.lose(number, "it does not take requests", router, reactor),
            false => self.mark(number),
        }
        self.make_room(router, reactor);
    }

    /// Loses the links for which most waits, until all links hold no more than they may.
    fn make_room(&mut self, router: &mut Router, reactor: &mut Reactor) {
        while self.held_bytes > HELD_BYTES_MAX {
            let held = |(number, found): (&u32, &NodeLink)| (found.state.held_bytes(), *number);
            let Some((_, number)) = self.links.iter().map(held).max() else { return };
            self.lose(number, "too many requests wait for it", router, reactor);
        }
    }

    fn open(
        &mut self,
        from: LocalNodeId,
        to: &LinkTarget,
        now: Nanos,
        router: &mut Router,
        reactor: &mut Reactor,
    ) -> Result<u32, String> {
        if self.links.len() >= self.links_max
            && let Some((&oldest, _)) = self.links.iter().min_by_key(|(_, link)| link.used_at)
        {
            self.lose(oldest, "others are used more", router, reactor);
        }
        let number = self.next;
        self.next = number.wrapping_add(u32::try_from(router.cores()).unwrap_or(1));
        let state = if to.address.is_empty() {
            let node = self.local(from, to.node).ok_or("it is not of this process")?;
            let open = Message::LinkOpen { node, link: link(number), core: router.me };
            router.send(node.core(router.cores()), open);
            State::Local { node, up: false, waiting: Waiting::default() }
        } else {
            let endpoint = endpoint(&to.address)?;
            let connect = token(Kind::LinkConnect, 0, number);
            reactor.connect(&endpoint, connect).map_err(|error| error.to_string())?;
            State::Connecting(Waiting::default())
        };
        let opened = NodeLink { from, to: to.clone(), state, used_at: now, dirty: false };
        self.links.insert(number, opened);
        self.numbers.insert((from.number, to.clone()), number);
        Ok(number)
    }

    /// The node of the same pool with this index, if it is of this process.
    fn local(&self, from: LocalNodeId, index: NodeIndex) -> Option<LocalNodeId> {
        let (pool, _) = self.nodes.get(from.number as usize)?;
        let number = self.nodes.iter().position(|node| *node == (*pool, index))?;
        Some(LocalNodeId { number: u32::try_from(number).ok()?, index })
    }

    fn mark(&mut self, number: u32) {
        if let Some(found) = self.links.get_mut(&number)
            && !std::mem::replace(&mut found.dirty, true)
        {
            self.dirty.push(number);
        }
    }

    /// A node gives a link up.
    pub fn close(
        &mut self,
        from: LocalNodeId,
        to: LinkTarget,
        router: &mut Router,
        reactor: &mut Reactor,
    ) {
        if let Some(number) = self.numbers.get(&(from.number, to)).copied() {
            self.remove(number, router, reactor);
        }
    }

    /// A node is down, and all its links with it.
    pub fn close_all(&mut self, from: LocalNodeId, router: &mut Router, reactor: &mut Reactor) {
        let of_node = |(number, found): (&u32, &NodeLink)| {
            (found.from.number == from.number).then_some(*number)
        };
        for number in self.links.iter().filter_map(of_node).collect::<Vec<_>>() {
            self.remove(number, router, reactor);
        }
    }

    fn remove(
        &mut self,
        number: u32,
        router: &mut Router,
        reactor: &mut Reactor,
    ) -> Option<(LocalNodeId, LinkTarget)> {
        let NodeLink { from, to, state, .. } = self.links.remove(&number)?;
        self.numbers.remove(&(from.number, to.clone()));
        self.held_bytes -= state.held_bytes();
        match state {
            State::Local { node, .. } => {
                let close = Message::LinkClose { node, link: link(number) };
                router.send(node.core(router.cores()), close);
            }
            State::Connecting(_) => {
                reactor.cancel(token(Kind::LinkConnect, 0, number));
            }
            State::Greeting(socket, _) | State::Socket(socket) => socket.close(reactor),
        }
        Some((from, to))
    }

    /// A link is gone: closes it, and tells its node.
    fn lose(&mut self, number: u32, why: &str, router: &mut Router, reactor: &mut Reactor) {
        if let Some((from, to)) = self.remove(number, router, reactor) {
            tracing::debug!("the link from {from} to {} is lost: {why}", to.node);
            tell(from, NodeEvent::LinkLost { to }, router);
        }
    }

    /// Closes the links that were not used for a while. Their nodes wait for no answer: a request
    /// waits for a shorter time.
    pub fn close_idle(&mut self, now: Nanos, router: &mut Router, reactor: &mut Reactor) {
        let idle = |found: &NodeLink| found.used_at.plus(Nanos::from_ms(IDLE_MS)) <= now;
        let numbers = self.links.iter().filter(|(_, found)| idle(found)).map(|(number, _)| *number);
        for number in numbers.collect::<Vec<_>>() {
            self.lose(number, "it is idle", router, reactor);
        }
    }

    /// Takes mail from a node of this process.
    pub fn mail(&mut self, mail: NodeMail, router: &mut Router, reactor: &mut Reactor) {
        match mail {
            NodeMail::Up(_, of) => {
                let Some(found) = self.links.get_mut(&of.attempt) else { return };
                let State::Local { node, up, waiting } = &mut found.state else { return };
                *up = true;
                let (node, core) = (*node, node.core(router.cores()));
                self.held_bytes -= waiting.held_bytes();
                for request in std::mem::take(waiting).into_requests() {
                    router.send(core, Message::ToNode { node, link: of, request });
                }
            }
            NodeMail::Down(_, of) => self.lose(of.attempt, "the node is down", router, reactor),
            NodeMail::Reply(_, of, reply) => {
                if let Some(found) = self.links.get(&of.attempt) {
                    let event = NodeEvent::Relayed { from: found.to.clone(), reply };
                    tell(found.from, event, router);
                }
            }
        }
    }

    /// A connection to the node of another process has opened, or could not.
    pub fn connected(
        &mut self,
        number: u32,
        event: Event,
        router: &mut Router,
        reactor: &mut Reactor,
    ) {
        let Some(found) = self.links.get_mut(&number) else { return };
        let State::Connecting(waiting) = &mut found.state else { return };
        let socket = match (event.result, event.payload) {
            (Ok(_), Payload::Socket(socket)) => socket,
            (Ok(_), _) => return self.lose(number, "no connection", router, reactor),
            (Err(error), _) => return self.lose(number, &error.to_string(), router, reactor),
        };
        let receive = token(Kind::LinkReceive, 0, number);
        let send = token(Kind::LinkSend, 0, number);
        let mut socket =
            Box::new(WireSocket::short_answers(socket, receive, send, ANSWER_BODY_BYTES_MAX));
        match encode_request(&greeting()) {
            Ok(parts) => socket.push(parts),
            Err(error) => return self.lose(number, &error.to_string(), router, reactor),
        }
        found.state = State::Greeting(socket, std::mem::take(waiting));
        self.mark(number);
    }

    /// A receive has ended.
    pub fn received(
        &mut self,
        number: u32,
        event: Event,
        router: &mut Router,
        reactor: &mut Reactor,
    ) {
        let Some(found) = self.links.get_mut(&number) else { return };
        let (State::Greeting(socket, _) | State::Socket(socket)) = &mut found.state else { return };
        let mut replies = Vec::new();
        let result = socket.received(event).and_then(|()| {
            while let Some(reply) = socket.next_message()? {
                replies.push(reply);
            }
            Ok(())
        });
        for reply in replies {
            if let Err(why) = self.take_reply(number, reply, router) {
                return self.lose(number, &why, router, reactor);
            }
        }
        self.settle(number, result, router, reactor);
    }

    /// An answer came over a socket. The first one shows who the other end is; then the requests
    /// that waited for it leave.
    ///
    /// # Errors
    /// The other end is not the node of the link.
    fn take_reply(&mut self, number: u32, reply: Reply, router: &mut Router) -> Result<(), String> {
        let Some(found) = self.links.get_mut(&number) else { return Ok(()) };
        if !matches!(found.state, State::Greeting(..)) {
            let event = NodeEvent::Relayed { from: found.to.clone(), reply };
            tell(found.from, event, router);
            return Ok(());
        }
        let pool = self.nodes.get(found.from.number as usize).map(|(pool, _)| *pool);
        match reply.result {
            Ok(ReplyBody::Stat(stat)) if reply.tag == GREETING => {
                if Some(stat.pool) != pool || stat.node != found.to.node {
                    return Err(format!("{} of pool {} is at its address", stat.node, stat.pool));
                }
            }
            other => return Err(format!("the other end is no node: {other:?}")),
        }
        let state = std::mem::replace(&mut found.state, State::Connecting(Waiting::default()));
        let State::Greeting(mut socket, waiting) = state else { return Ok(()) };
        self.held_bytes -= waiting.held_bytes();
        for request in waiting.into_requests() {
            socket.push_request(request).map_err(|error| error.to_string())?;
        }
        found.state = State::Socket(socket);
        Ok(())
    }

    /// A send has ended.
    pub fn sent(&mut self, number: u32, event: Event, router: &mut Router, reactor: &mut Reactor) {
        let Some(found) = self.links.get_mut(&number) else { return };
        let (State::Greeting(socket, _) | State::Socket(socket)) = &mut found.state else { return };
        let result = socket.sent(event);
        self.settle(number, result, router, reactor);
    }

    fn settle(
        &mut self,
        number: u32,
        result: Result<(), Broken>,
        router: &mut Router,
        reactor: &mut Reactor,
    ) {
        match result {
            Ok(()) => self.mark(number),
            Err(error) => self.lose(number, &error.to_string(), router, reactor),
        }
    }

    /// Starts sends and receives.
    pub fn pump(&mut self, reactor: &mut Reactor) {
        for number in std::mem::take(&mut self.dirty) {
            let Some(found) = self.links.get_mut(&number) else { continue };
            found.dirty = false;
            if let State::Greeting(socket, _) | State::Socket(socket) = &mut found.state {
                socket.start_io(reactor);
            }
        }
    }
}

/// The first request on a connection. It needs no capability, and has nothing of the writer's.
fn greeting() -> Request {
    Request {
        tag: GREETING,
        capability: Capability::default(),
        body: RequestBody::Identify,
        route: None,
        payload: Vec::new(),
    }
}

/// The endpoint of a literal address.
fn endpoint(address: &[u8]) -> Result<Endpoint, String> {
    let text = std::str::from_utf8(address).map_err(|_| "its address is no text")?;
    let address: Address = text.parse().map_err(|error| format!("{error}"))?;
    if let Address::Tcp { host, .. } = &address
        && host.parse::<IpAddr>().is_err()
    {
        return Err(format!("{address} is not literal"));
    }
    Endpoint::resolve(&address).map_err(|error| error.to_string())
}

/// Hands an event to a node of this core.
fn tell(node: LocalNodeId, event: NodeEvent, router: &mut Router) {
    let me = router.me;
    router.send(me, Message::ToLinkedNode { node, event: Box::new(event) });
}

#[cfg(test)]
mod tests;
