//! The connections of other processes to the nodes of this core, for `fieldstone node`.
//!
//! A connection becomes a link to the node, like that of an in-process device. The server receives
//! from it once the node runs. When the node goes down, the server closes the connection, and its
//! client connects again.
//!
//! # Bounds
//!
//! | | a pending connection | a client whose capability was accepted |
//! |---|---|---|
//! | stays | for a bounded time, and gives way ([`connection_table`](crate::connection_table)) | without limit |
//! | incoming payloads | share a quarter of the memory for payloads | share the rest |
//! | requests in flight | [`PENDING_REQUESTS_MAX`] | as many as the node takes |
//! | answers not taken | [`PENDING_QUEUED_BYTES_MAX`] | [`QUEUED_BYTES_MAX`] |
//!
//! Fragments of a write count as part of its request.
//!
//! The answers of a client include those that the node still owes to its requests in flight. When
//! they exceed [`OWN_BYTES`], they count in the memory that clients share.
//!
//! Without room, the server does not receive from the connection. A client that holds room for
//! which others wait, and neither sends nor takes anything for [a while](StallLimit), loses its
//! connection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fieldstone_block::Nanos;
use fieldstone_buf::{Budget, Lease};
use fieldstone_proto::wire::encode_reply;
use fieldstone_proto::{NodeError, PAYLOAD_BYTES_MAX, Reply, ReplyBody, Request, RequestBody, Tag};

use crate::connection_table::{Admission, Bounds, ConnectionTable, PENDING_AGE_MS, StallLimit};
use crate::message::{Link, LocalNodeId, Message, Router};
use crate::notices::{Cause, Notices};
use crate::token::{Kind, token};
use crate::wire_socket::{Broken, QUEUED_BYTES_MAX, WireSocket};
use fieldstone_uring::{Event, Reactor, Socket};

/// The most connections of one core to its nodes. Each volume of a server needs one connection.
pub const PEERS_MAX: usize = 4096;
/// The most requests of a pending connection that have no answer yet.
pub const PENDING_REQUESTS_MAX: usize = 16;
/// The most bytes of answers that the client of a pending connection has not taken, when the server
/// takes its next request.
pub const PENDING_QUEUED_BYTES_MAX: usize = 64 << 10;
/// Bytes of answers, owed or not taken, for which a client needs no shared memory.
pub const OWN_BYTES: usize = 256 << 10;
/// The payloads of pending connections have one part in this many of the memory for payloads.
const PENDING_SHARE: usize = 4;
/// The assumed size of an answer with a list.
const LIST_BYTES: usize = 256 << 10;

struct Peer {
    socket: WireSocket<Request>,
    node: LocalNodeId,
    up: bool,
    dirty: bool,
    /// The connection will be closed soon, and its place is already free.
    closing: bool,
    /// The node has accepted a capability of this client.
    known: bool,
    /// The tags of the requests that the node has not answered.
    in_flight: BTreeSet<Tag>,
    /// Bytes of answers that these requests ask for. Errors leave a remainder, which goes when no
    /// request is in flight.
    asked_bytes: usize,
    /// The client's part of the memory for answers.
    answers: Lease,
    waiting: bool,
    /// When the client last sent or took something, or when its turn began.
    progress: Nanos,
}

impl Peer {
    /// Bytes of answers that are queued or that the node still owes.
    fn answer_bytes(&self) -> usize {
        self.asked_bytes + self.socket.unsent_bytes()
    }

    /// Whether the server may decode another request.
    fn may_ask(&mut self) -> bool {
        if !self.known {
            return self.in_flight.len() < PENDING_REQUESTS_MAX
                && self.socket.unsent_bytes() <= PENDING_QUEUED_BYTES_MAX;
        }
        let bytes = self.answer_bytes();
        if bytes <= OWN_BYTES || bytes > QUEUED_BYTES_MAX {
            self.answers.stop_waiting();
            return bytes <= OWN_BYTES;
        }
        self.answers.grow_to(bytes)
    }

    fn settle(&mut self) {
        if self.in_flight.is_empty() {
            self.asked_bytes = 0;
        }
        if self.answers.held_bytes() > 0 {
            let bytes = self.answer_bytes();
            self.answers.shrink_to(if bytes <= OWN_BYTES { 0 } else { bytes });
        }
    }

    fn waits_for_room(&self) -> bool {
        self.socket.waits_for_room() || (self.known && self.socket.has_input())
    }

    fn holds_room(&self) -> bool {
        self.socket.awaits_payload() || self.answers.held_bytes() > 0
    }

    /// True if the client holds room, must act next, and has done nothing for `limit`.
    fn is_stalled(&self, limit: Nanos, now: Nanos) -> bool {
        let its_turn =
            self.socket.awaits_payload() || (self.holds_room() && self.socket.is_sending());
        its_turn && self.progress.plus(limit) <= now
    }
}

/// The size that an answer to this request counts for.
fn answer_bytes(body: &RequestBody) -> usize {
    match body {
        RequestBody::ShardRead { len_bytes, .. } | RequestBody::JournalRead { len_bytes, .. } => {
            (*len_bytes as usize).min(PAYLOAD_BYTES_MAX)
        }
        RequestBody::ListVolumes | RequestBody::ShardList { .. } => LIST_BYTES,
        _ => 0,
    }
}

/// The size that was counted for this answer's request.
fn answered_bytes(reply: &Reply) -> usize {
    match &reply.result {
        Ok(ReplyBody::Data(data)) => data.len(),
        Ok(ReplyBody::Volumes(_) | ReplyBody::Shards { .. }) => LIST_BYTES,
        _ => 0,
    }
}

/// The connections of one core to its nodes.
pub struct NodeServer {
    peers: BTreeMap<u32, Peer>,
    last: u32,
    dirty: Vec<u32>,
    /// Connections to close at the end of the next pump.
    broken: Vec<u32>,
    table: ConnectionTable,
    /// The memory for clients' payloads and answers, and the memory for those of pending
    /// connections.
    clients: Arc<Budget>,
    pending_payloads: Arc<Budget>,
    /// Connections that wait for room, and the budgets' number of returns at their last try.
    waiting: Vec<u32>,
    returns: u64,
    holding: bool,
    stall_limit: StallLimit,
}

fn link(attempt: u32) -> Link {
    Link { device: Link::SOCKET, attempt }
}

impl NodeServer {
    /// A server without connections. The payloads of all connections together take `memory_bytes`.
    #[must_use]
    pub fn new(bounds: Bounds, memory_bytes: usize) -> Self {
        let pending_bytes = (memory_bytes / PENDING_SHARE).max(PAYLOAD_BYTES_MAX);
        let clients_bytes = memory_bytes.saturating_sub(pending_bytes).max(PAYLOAD_BYTES_MAX);
        Self {
            peers: BTreeMap::new(),
            last: 0,
            dirty: Vec::new(),
            broken: Vec::new(),
            table: ConnectionTable::new(bounds.at_most(PEERS_MAX)),
            clients: Budget::new(clients_bytes),
            pending_payloads: Budget::new(pending_bytes),
            waiting: Vec::new(),
            returns: 0,
            holding: false,
            stall_limit: StallLimit::default(),
        }
    }

    /// Takes an accepted connection.
    pub fn accept(
        &mut self,
        socket: Socket,
        node: LocalNodeId,
        router: &mut Router,
        now: Nanos,
        notices: &mut Notices,
    ) {
        match self.table.admit() {
            Admission::Welcome => {}
            Admission::InPlaceOf(oldest) => {
                let line = format_args!(
                    "closed a connection to {node} that had not shown a capability: others came"
                );
                notices.say(Cause::GaveWay, now, line);
                self.part(oldest);
            }
            Admission::Full => {
                let count = self.table.count();
                let line = format_args!(
                    "refused a connection to {node}: {count} clients are connected; raise the \
                     limit on open files (ulimit -n) for more"
                );
                notices.say(Cause::Full, now, line);
                return;
            }
        }
        self.last = self.last.wrapping_add(1);
        let attempt = self.last;
        self.table.arrived(attempt, now);
        let receive = token(Kind::PeerReceive, 0, attempt);
        let send = token(Kind::PeerSend, 0, attempt);
        let payloads = Lease::new(&self.pending_payloads);
        let peer = Peer {
            socket: WireSocket::pending(socket, receive, send, payloads),
            node,
            up: false,
            dirty: false,
            closing: false,
            known: false,
            in_flight: BTreeSet::new(),
            asked_bytes: 0,
            answers: Lease::new(&self.clients),
            waiting: false,
            progress: now,
        };
        self.peers.insert(attempt, peer);
        let core = router.me;
        let to = node.core(router.cores());
        router.send(to, Message::LinkOpen { node, link: link(attempt), core });
    }

    fn mark(&mut self, attempt: u32) {
        if let Some(peer) = self.peers.get_mut(&attempt)
            && !std::mem::replace(&mut peer.dirty, true)
        {
            self.dirty.push(attempt);
        }
    }

    /// Closes a connection in the next pump. Its place becomes free at once.
    fn part(&mut self, attempt: u32) {
        if let Some(peer) = self.peers.get_mut(&attempt)
            && !std::mem::replace(&mut peer.closing, true)
        {
            self.table.gone(attempt);
            self.broken.push(attempt);
        }
    }

    /// The node runs, and takes requests. The time of pending connections begins again.
    pub fn link_up(&mut self, link: Link, now: Nanos) {
        if let Some(peer) = self.peers.get_mut(&link.attempt) {
            peer.up = true;
            if !peer.known && !peer.closing {
                self.table.arrived(link.attempt, now);
            }
        }
        self.mark(link.attempt);
    }

    /// The node has accepted a capability of this client.
    pub fn link_known(&mut self, link: Link) {
        if let Some(peer) = self.peers.get_mut(&link.attempt) {
            peer.known = true;
            peer.socket.introduce(Lease::new(&self.clients));
            self.table.introduced(link.attempt);
        }
        self.mark(link.attempt);
    }

    /// The node is down.
    pub fn link_down(&mut self, link: Link) {
        self.part(link.attempt);
    }

    /// A receive has ended.
    pub fn received(&mut self, attempt: u32, event: Event, now: Nanos, notices: &mut Notices) {
        let Some(peer) = self.peers.get_mut(&attempt) else { return };
        peer.progress = now;
        let result = peer.socket.received(event);
        self.settle(attempt, result, now, notices);
    }

    /// A send has ended.
    pub fn sent(&mut self, attempt: u32, event: Event, now: Nanos, notices: &mut Notices) {
        let Some(peer) = self.peers.get_mut(&attempt) else { return };
        peer.progress = now;
        let result = peer.socket.sent(event);
        peer.settle();
        self.settle(attempt, result, now, notices);
    }

    fn settle(
        &mut self,
        attempt: u32,
        result: Result<(), Broken>,
        now: Nanos,
        notices: &mut Notices,
    ) {
        match result {
            Ok(()) => self.mark(attempt),
            Err(error) => {
                match &error {
                    Broken::Closed => {}
                    // The bytes are no message, or one of a newer release: the operator must know.
                    Broken::Wire(_) | Broken::TagInUse(_) => {
                        let line = format_args!("closed a connection: {error}");
                        notices.say(Cause::BadMessage, now, line);
                    }
                    Broken::Io(error) => {
                        let line = format_args!("closed a connection: {error}");
                        notices.say(Cause::Lost, now, line);
                    }
                }
                self.part(attempt);
            }
        }
    }

    /// Takes the node's answer.
    pub fn reply(&mut self, link: Link, reply: &Reply, now: Nanos, notices: &mut Notices) {
        let Some(peer) = self.peers.get_mut(&link.attempt) else { return };
        peer.in_flight.remove(&reply.tag);
        peer.socket.forget_fragments(reply.tag);
        peer.asked_bytes = peer.asked_bytes.saturating_sub(answered_bytes(reply));
        if let Err(NodeError::Capability(error)) = &reply.result {
            let line = format_args!("{} refused a request: {error}", peer.node);
            notices.say(Cause::Capability, now, line);
        }
        let parts = encode_reply(reply).or_else(|error| {
            let result = Err(NodeError::Io(format!("the answer cannot be sent: {error}")));
            encode_reply(&Reply { tag: reply.tag, result, slots_free: reply.slots_free })
        });
        match parts {
            Ok(parts) => {
                if !peer.socket.is_sending() {
                    // From now on the client must act next.
                    peer.progress = now;
                }
                peer.socket.push(parts);
            }
            Err(error) => tracing::error!("an answer is lost: {error}"),
        }
        peer.settle();
        self.mark(link.attempt);
    }

    /// Passes the requests of a connection to the node, as long as there is room.
    fn take_requests(&mut self, attempt: u32, router: &mut Router) -> Result<(), Broken> {
        let Some(peer) = self.peers.get_mut(&attempt) else { return Ok(()) };
        let node = peer.node;
        while peer.socket.has_input() && peer.may_ask() {
            let Some(request) = peer.socket.next_message()? else { break };
            // The answer gives the memory for fragments back, so it must be that of their request.
            if request.has_answer() && !peer.in_flight.insert(request.tag) {
                return Err(Broken::TagInUse(request.tag.0));
            }
            peer.asked_bytes += answer_bytes(&request.body);
            let to = node.core(router.cores());
            router.send(to, Message::ToNode { node, link: link(attempt), request });
        }
        self.holding |= peer.holds_room();
        if peer.waits_for_room() && !std::mem::replace(&mut peer.waiting, true) {
            self.waiting.push(attempt);
        }
        Ok(())
    }

    /// Passes requests on, starts sends and receives, and closes connections.
    pub fn pump(
        &mut self,
        router: &mut Router,
        reactor: &mut Reactor,
        now: Nanos,
        notices: &mut Notices,
    ) {
        self.try_again();
        for attempt in std::mem::take(&mut self.dirty) {
            match self.peers.get_mut(&attempt) {
                Some(peer) => peer.dirty = false,
                None => continue,
            }
            if let Err(error) = self.take_requests(attempt, router) {
                self.settle(attempt, Err(error), now, notices);
                continue;
            }
            if let Some(peer) = self.peers.get_mut(&attempt)
                && peer.up
                && !peer.closing
            {
                peer.socket.start_io(reactor);
            }
        }
        for attempt in std::mem::take(&mut self.broken) {
            if let Some(peer) = self.peers.remove(&attempt) {
                let to = peer.node.core(router.cores());
                router.send(to, Message::LinkClose { node: peer.node, link: link(attempt) });
                peer.socket.close(reactor);
            }
        }
    }

    /// If room was given back, lets the connections that wait for room try again.
    fn try_again(&mut self) {
        let returns = self.clients.returns().wrapping_add(self.pending_payloads.returns());
        if self.waiting.is_empty() || returns == self.returns {
            return;
        }
        self.returns = returns;
        for attempt in std::mem::take(&mut self.waiting) {
            if let Some(peer) = self.peers.get_mut(&attempt) {
                peer.waiting = false;
                self.mark(attempt);
            }
        }
    }

    /// Frees descriptors: closes up to `count` pending connections, the oldest first.
    pub fn evict_oldest(&mut self, count: usize) {
        for _ in 0..count {
            let Some(oldest) = self.table.oldest() else { return };
            self.part(oldest);
        }
    }

    /// Closes pending connections whose time is over, and stalled clients.
    pub fn watch(&mut self, now: Nanos, notices: &mut Notices) {
        while let Some(attempt) = self.table.overdue(now) {
            let seconds = PENDING_AGE_MS / 1000;
            let line = format_args!("closed a connection: no valid capability within {seconds} s");
            notices.say(Cause::Silent, now, line);
            self.part(attempt);
        }
        if !std::mem::take(&mut self.holding) {
            return;
        }
        let wanted = self.clients.is_wanted() || self.pending_payloads.is_wanted();
        let limit = self.stall_limit.current(wanted, now);
        let mut stalled = Vec::new();
        for (attempt, peer) in &self.peers {
            self.holding |= peer.holds_room();
            if limit.is_some_and(|limit| peer.is_stalled(limit, now)) {
                stalled.push(*attempt);
            }
        }
        for attempt in stalled {
            let line = format_args!(
                "closed a connection: it kept memory that others wait for, and was silent"
            );
            notices.say(Cause::Stalled, now, line);
            self.part(attempt);
        }
    }

    /// When the owner must call [`NodeServer::watch`] for pending connections.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.table.deadline()
    }

    /// Whether a connection waits for room, and whether a connection holds room.
    #[must_use]
    pub fn pressure(&self) -> (bool, bool) {
        (!self.waiting.is_empty(), self.holding)
    }

    /// Closes every connection.
    pub fn close_all(&mut self, reactor: &mut Reactor) {
        for (_, peer) in std::mem::take(&mut self.peers) {
            peer.socket.close(reactor);
        }
    }
}
