//! The product's storage node (crates/node) on the hosts of the model: the third world in which
//! this state machine runs, after the real one and the seeded one.
//!
//! The node is the same code, byte for byte. It gets requests as they come out of the network, and
//! the model carries out what it asks for: disk operations are copies into the storage target, as
//! in the paper's protocols; relays and answers are messages, as long as the product's encoding of
//! them. The clock of the node is that of the model, and its deadlines are timers.
//!
//! The CPU time of a request is that of the paper's RPC protocols (dispatch, check of the
//! capability, copy, post), and in addition what the product does with the bytes: a checksum of
//! each message by its sender and by its receiver, a checksum of each block of a shard, and the
//! products of a data shard. A fragment has the dispatch of an RPC, and no check of a capability.
//!
//! So the lines differ from CPU-Ring and CPU-PBT in these ways:
//!
//! - The product passes on fragments of 32 KiB. CPU-Ring and CPU-PBT pass on chunks of the best
//!   length.
//! - Each message has a checksum, also a fragment.
//! - A write has whole blocks of 4 KiB, and each record of a journal has one more for its header. A
//!   record has up to 512 KiB of data.
//! - The answers go back through the nodes, and the first node answers the client.
//!
//! The work on a write stays on one core, and the work on several writes is on several cores. The
//! product runs a node on one core. So the model is for the latency of one write at a time.

mod host;

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_codes::Profile;
use fieldstone_node::{LinkTarget, NodeAction, NodeEvent, PeerId};
pub use fieldstone_proto::Strategy;
use fieldstone_proto::fragments::cut;
use fieldstone_proto::wire::{encode_reply, encode_request};
use fieldstone_proto::{
    BLOCK_BYTES, Capability, Column, Content, Epoch, FRAGMENT_BYTES, Factors, Fragments,
    JournalGen, Lsn, NodeIndex, Pass, Replica, Reply, ReplyBody, Request, RequestBody, Rights,
    Route, SegmentId, ShardIndex, Tag, VolumeId, crc32c_blocks,
};

use super::message;
use crate::network::fabric::{Fabric, Notice};
use crate::network::host::Source;
use crate::network::packet::{HostId, Message, MessageId, Verb, Write, WriteId};
use crate::network::time::{Ps, Rate};
use crate::network::world::{Layout, Protocol};
use host::{KEY, NodeHost, RING_BYTES, SHARD_BYTES_MAX};

/// How the product stores a write.
#[derive(Clone, Debug)]
pub enum Policy {
    /// As a record of a journal on the first `copies` nodes.
    Replicate {
        /// Who sends it to whom.
        strategy: Strategy,
        /// The number of nodes.
        copies: u16,
    },
    /// In shards of this code, whose parity the nodes make: TriEC. Each shard has a node.
    Stream(Profile),
}

/// What a message of the model stands for.
#[derive(Clone, Debug)]
enum Wire {
    Request(Request),
    Reply(Reply),
}

/// What a core does next.
#[derive(Debug)]
enum Work {
    /// The node handles an event.
    Handle(NodeEvent),
    /// The NIC gets a message for a host.
    Send(HostId, Wire),
    /// The client takes an answer.
    Answer(HostId, Reply),
}

/// A client has a volume of its own.
#[derive(Debug)]
struct Client {
    capability: Capability,
    /// Where its next record goes.
    lsn: u64,
    /// Its next segment.
    segment: u64,
}

/// Writes to the product's nodes.
#[derive(Debug)]
pub struct NodeWrites {
    layout: Layout,
    policy: Policy,
    hosts: Vec<NodeHost>,
    clients: Vec<Client>,
    /// The factors of each data shard for each parity shard.
    factors: Vec<Bytes>,
    wires: BTreeMap<MessageId, Wire>,
    works: BTreeMap<u16, Work>,
    /// Answers that each write waits for.
    writes: BTreeMap<WriteId, usize>,
    /// The data of all writes.
    pattern: Bytes,
    /// A longer write goes in fragments of this length, as in the product; 0 if all go whole.
    fragment_bytes: u32,
    next_tag: u16,
    /// Nodes that hear nothing any more.
    silent: Vec<u16>,
    /// Nodes that lack a finished write, one entry for each such write.
    pub missed: Vec<NodeIndex>,
}

const WORK: u8 = 0;
const TIMER: u8 = 1;
/// What no write caused: deadlines.
const NO_WRITE: WriteId = WriteId(u32::MAX);
/// The most data of a record, as in the product.
const RECORD_BYTES_MAX: usize = 512 << 10;
const PASS: Pass = Pass(1);
const GENERATION: JournalGen = JournalGen(1);
/// How long the head of a route waits for others.
const WAIT_MS: u32 = 5_000;
/// The first peer number of nodes. Those of clients are below.
const NODES_FROM: u64 = 1 << 16;

impl NodeWrites {
    /// Nodes that are ready, each with a journal and 512 slots for each client's volume. A streamed
    /// write takes a slot for good.
    ///
    /// # Panics
    /// The policy needs more nodes than there are, or the code divides shards into elements: this
    /// model has factors only.
    pub fn new(layout: Layout, policy: Policy) -> Self {
        let key = |client: u16| KEY.derive(VolumeId(u128::from(client) + 1), Epoch(1));
        let capability = |client: u16| {
            let volume = VolumeId(u128::from(client) + 1);
            Capability::issue(&key(client), volume, Epoch(1), Rights::ALL, u64::MAX)
        };
        let client =
            |client: u16| Client { capability: capability(client), lsn: 0, segment: 1 << 40 };
        let clients: Vec<Client> = (0..layout.clients).map(client).collect();
        let writers: Vec<(PeerId, Capability)> =
            (0..).zip(&clients).map(|(peer, client)| (PeerId(peer), client.capability)).collect();
        let hosts = (0..layout.nodes).map(|node| NodeHost::new(node, &writers)).collect();
        let (factors, nodes) = match &policy {
            Policy::Replicate { copies, .. } => (Vec::new(), usize::from(*copies)),
            Policy::Stream(profile) => (factors_of(profile), profile.shards()),
        };
        assert!(nodes <= usize::from(layout.nodes), "{nodes} nodes");
        let pattern = (0..4u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8);
        Self {
            layout,
            policy,
            hosts,
            clients,
            factors,
            wires: BTreeMap::new(),
            works: BTreeMap::new(),
            writes: BTreeMap::new(),
            pattern: pattern.collect(),
            fragment_bytes: FRAGMENT_BYTES,
            next_tag: 0,
            silent: Vec::new(),
            missed: Vec::new(),
        }
    }

    /// The same with fragments of this length, or with none (0).
    pub fn with_fragments(self, fragment_bytes: u32) -> Self {
        Self { fragment_bytes, ..self }
    }

    /// From now on the node hears nothing.
    pub fn silence(&mut self, node: u16) {
        self.silent.push(node);
    }

    /// The bytes that a node has stored in its journals and shards.
    pub fn stored_bytes(&self, node: u16) -> u64 {
        self.hosts[usize::from(node)].stored_bytes
    }

    /// Bytes of a shard that a node has stored for a client.
    pub fn shard(&self, node: u16, place: u64, len_bytes: usize) -> Vec<u8> {
        self.hosts[usize::from(node)].data_at(place, len_bytes)
    }

    fn tag(&mut self) -> u16 {
        self.next_tag = self.next_tag.wrapping_add(1);
        self.next_tag
    }

    /// A core of the host works for a time, and then does this.
    fn work(&mut self, host: HostId, write: WriteId, time: Ps, work: Work, fabric: &mut Fabric) {
        let tag = self.tag();
        self.works.insert(tag, work);
        fabric.cpu(host, time, Fabric::item(WORK, write, tag));
    }

    fn send(&mut self, from: HostId, to: HostId, write: WriteId, wire: Wire, fabric: &mut Fabric) {
        let tag = self.tag();
        let (payload, encoded) = match &wire {
            Wire::Request(request) => {
                let payload: usize = request.payload.iter().map(Bytes::len).sum();
                (payload, encode_request(request))
            }
            Wire::Reply(reply) => (0, encode_reply(reply)),
        };
        let encoded: usize = encoded.expect("in bounds").iter().map(Bytes::len).sum();
        let mut sent = message(from, to, Verb::Send, write, tag, payload as u64);
        sent.header_bytes = (encoded - payload) as u64;
        self.wires.insert(sent.id, wire);
        fabric.post(from, sent, u32::from(to.0), Source::Memory);
    }

    /// A core makes checksums of a request, in so many passes over its bytes, and sends it, in
    /// fragments if its route allows them.
    fn send_request(
        &mut self,
        from: HostId,
        to: HostId,
        write: WriteId,
        request: Request,
        passes: u64,
        fabric: &mut Fabric,
    ) {
        for request in cut(request) {
            let payload: usize = request.payload.iter().map(Bytes::len).sum();
            let checksum = Rate::gbit(fabric.constants.checksum_gbit).time(passes * payload as u64);
            let time = checksum + fabric.post_time();
            self.work(from, write, time, Work::Send(to, Wire::Request(request)), fabric);
        }
    }

    fn peer(&self, host: HostId) -> PeerId {
        match host.0 < self.layout.clients {
            true => PeerId(u64::from(host.0)),
            false => PeerId(NODES_FROM + u64::from(self.layout.rank(host))),
        }
    }

    fn host_of(&self, peer: PeerId) -> HostId {
        match peer.0 < NODES_FROM {
            true => HostId(peer.0 as u16),
            false => self.layout.node((peer.0 - NODES_FROM) as u16),
        }
    }

    /// The CPU has a message of the host.
    fn received(&mut self, host: HostId, message: Message, fabric: &mut Fabric) {
        let Some(wire) = self.wires.remove(&message.id) else { return };
        let is_client = host.0 < self.layout.clients;
        if !is_client && self.silent.contains(&self.layout.rank(host)) {
            return;
        }
        let poll = Ps::ns(fabric.constants.poll_ns);
        let (time, work) = match wire {
            Wire::Request(request) => {
                let time = self.request_time(&request, message, fabric);
                let peer = self.peer(message.from);
                (time, Work::Handle(NodeEvent::Request { peer, request }))
            }
            // The end of a write has the client's poll.
            Wire::Reply(reply) if is_client => (Ps::ZERO, Work::Answer(message.from, reply)),
            Wire::Reply(reply) => {
                let node = NodeIndex(self.layout.rank(message.from));
                let from = LinkTarget { node, address: Bytes::new() };
                (poll, Work::Handle(NodeEvent::Relayed { from, reply }))
            }
        };
        self.work(host, message.write, time, work, fabric);
    }

    /// The CPU time of a request before the node's state machine has it.
    fn request_time(&self, request: &Request, message: Message, fabric: &Fabric) -> Ps {
        let payload_bytes = message.payload_bytes;
        let checksum = |bytes| Rate::gbit(fabric.constants.checksum_gbit).time(bytes);
        let has_capability = request.has_answer();
        let seen = fabric.dispatch_time(has_capability) + checksum(payload_bytes);
        let from_client = message.from.0 < self.layout.clients;
        match &self.policy {
            Policy::Replicate { .. } => seen,
            // The data is read once more to be added up. The sum's blocks are checked.
            Policy::Stream(_) if !from_client => {
                seen + fabric.copy_time(payload_bytes) + checksum(payload_bytes)
            }
            Policy::Stream(profile) => {
                // The blocks are checked. The products are made, with checksums of their blocks.
                let made = payload_bytes * profile.m() as u64;
                let products = Rate::gbit(fabric.constants.multiply_gbit).time(made);
                seen + checksum(payload_bytes) + products + checksum(made)
            }
        }
    }

    /// What the node of a host wants to be done.
    fn drain(&mut self, host: HostId, write: WriteId, fabric: &mut Fabric) {
        let node = usize::from(self.layout.rank(host));
        let post = fabric.post_time();
        while let Some(action) = self.hosts[node].next_action() {
            match action {
                NodeAction::Disk { id, op } => {
                    let (bytes, result) = self.hosts[node].carry_out(op);
                    let time = fabric.copy_time(bytes);
                    let work = Work::Handle(NodeEvent::Disk { id, result });
                    self.work(host, write, time, work, fabric);
                }
                NodeAction::Relay { to, request } => {
                    let to = self.layout.node(to.node.0);
                    // A fragment that goes on unchanged has its checksum.
                    let is_copy = matches!(self.policy, Policy::Replicate { .. });
                    let passes = if is_copy && !request.has_answer() { 0 } else { 1 };
                    self.send_request(host, to, write, request, passes, fabric);
                }
                NodeAction::Reply { peer, reply } => {
                    let to = self.host_of(peer);
                    self.work(host, write, post, Work::Send(to, Wire::Reply(reply)), fabric);
                }
                NodeAction::CloseLink { .. } => {}
            }
        }
        if let Some(due_ns) = self.hosts[node].timer_to_set() {
            let wait = Ps::ns(due_ns) - fabric.now();
            fabric.after(host, wait, Fabric::item(TIMER, NO_WRITE, 0));
        }
    }

    fn handle(&mut self, host: HostId, write: WriteId, event: NodeEvent, fabric: &mut Fabric) {
        let node = usize::from(self.layout.rank(host));
        self.hosts[node].handle(now_ns(fabric), event);
        self.drain(host, write, fabric);
    }

    /// The node answered the client.
    fn answered(&mut self, node: HostId, reply: &Reply, fabric: &mut Fabric) {
        let write = WriteId((reply.tag.0 >> 8) as u32);
        let Some(waiting) = self.writes.get_mut(&write) else { return };
        match &reply.result {
            Ok(ReplyBody::Outcomes(outcomes)) => {
                let missed = outcomes.iter().filter(|outcome| outcome.result.is_err());
                self.missed.extend(missed.map(|outcome| outcome.node));
            }
            Ok(_) => {}
            Err(_) => self.missed.push(NodeIndex(self.layout.rank(node))),
        }
        *waiting -= 1;
        if *waiting == 0 {
            self.writes.remove(&write);
            fabric.finish(write);
        }
    }

    /// The requests of a write, each with its node.
    fn requests(&mut self, write: &Write) -> Vec<(u16, RequestBody, Option<Route>, Bytes)> {
        let client = &mut self.clients[write.client.index()];
        match &self.policy {
            Policy::Replicate { strategy, copies } => {
                let mut requests = Vec::new();
                let mut left = in_blocks(write.bytes);
                while left > 0 {
                    let record = left.min(RECORD_BYTES_MAX);
                    left -= record;
                    // The record's header is a block.
                    let data = self.pattern.slice(..BLOCK_BYTES + record);
                    let len = data.len() as u64;
                    if client.lsn % RING_BYTES + len > RING_BYTES {
                        client.lsn = client.lsn.next_multiple_of(RING_BYTES);
                    }
                    let lsn = Lsn(client.lsn);
                    client.lsn += len;
                    let body = RequestBody::JournalAppend { generation: GENERATION, lsn };
                    let nodes = 0..*copies;
                    if *strategy == Strategy::Flat || *copies < 2 {
                        requests.extend(nodes.map(|node| (node, body.clone(), None, data.clone())));
                        continue;
                    }
                    let route = route(*strategy, nodes.map(|node| (node, 0)), Content::Same);
                    requests.push((0, body, Some(route), data));
                }
                requests
            }
            Policy::Stream(profile) => {
                let (k, m) = (profile.k() as u16, profile.m() as u16);
                let len = in_blocks(write.bytes.div_ceil(u64::from(k)));
                assert!(len as u64 <= SHARD_BYTES_MAX, "a shard is within a slot");
                let segment = SegmentId(client.segment);
                client.segment += 1;
                let shard = |index: u16| {
                    let data = self.pattern.slice(usize::from(index) * BLOCK_BYTES..).slice(..len);
                    let factors = Factors::Scalars(self.factors[usize::from(index)].clone());
                    let column = Column { index: index as u8, count: k as u8, factors };
                    let nodes = std::iter::once((index, index as u8))
                        .chain((k..k + m).map(|node| (node, node as u8)));
                    let route = route(Strategy::Primary, nodes, Content::Column(column));
                    let body = RequestBody::ShardWrite {
                        segment,
                        shard: ShardIndex(index as u8),
                        offset_bytes: 0,
                        checksums: crc32c_blocks(&data),
                        seal: None,
                        data_first: false,
                    };
                    (index, body, Some(route), data)
                };
                (0..k).map(shard).collect()
            }
        }
    }
}

/// The factors of each data shard, for all parity shards.
fn factors_of(profile: &Profile) -> Vec<Bytes> {
    let matrix = profile.code().encode().to_matrix().expect("a code of one element");
    let column = |at: usize| (0..matrix.rows()).map(|row| matrix.row(row)[at]).collect();
    (0..matrix.columns()).map(column).collect()
}

fn route(strategy: Strategy, nodes: impl Iterator<Item = (u16, u8)>, content: Content) -> Route {
    let replica = |(node, shard)| Replica {
        node: NodeIndex(node),
        pass: PASS,
        shard: ShardIndex(shard),
        address: Bytes::new(),
    };
    let replicas = nodes.map(replica).collect();
    Route { strategy, rank: 0, wait_ms: WAIT_MS, replicas, content, ..Route::default() }
}

/// Bytes of the blocks of a write.
fn in_blocks(bytes: u64) -> usize {
    (bytes.max(1) as usize).next_multiple_of(BLOCK_BYTES)
}

fn now_ns(fabric: &Fabric) -> u64 {
    fabric.now().0 / 1000
}

impl Protocol for NodeWrites {
    fn issue(&mut self, write: Write, fabric: &mut Fabric) {
        let requests = self.requests(&write);
        let capability = self.clients[write.client.index()].capability;
        self.writes.insert(write.id, requests.len());
        for (at, (node, body, route, data)) in (0u64..).zip(requests) {
            // The client makes the checksums of a shard's blocks, and that of the message.
            let passes = if route.as_ref().is_some_and(|r| r.column().is_some()) { 2 } else { 1 };
            let fragments = Fragments::Allowed(self.fragment_bytes);
            let route = route.map(|route| Box::new(Route { fragments, ..route }));
            let request = Request {
                tag: Tag(u64::from(write.id.0) << 8 | at),
                capability,
                body,
                route,
                payload: vec![data],
            };
            let to = self.layout.node(node);
            self.send_request(write.client, to, write.id, request, passes, fabric);
        }
    }

    fn on(&mut self, notice: Notice, fabric: &mut Fabric) {
        match notice {
            Notice::Received(host, message) => self.received(host, message, fabric),
            Notice::Done(host, item) if item.step == TIMER => {
                let node = usize::from(self.layout.rank(host));
                self.hosts[node].timer_fired(now_ns(fabric));
                self.handle(host, NO_WRITE, NodeEvent::Tick, fabric);
            }
            Notice::Done(host, item) => match self.works.remove(&item.tag) {
                Some(Work::Handle(event)) => self.handle(host, item.write, event, fabric),
                Some(Work::Send(to, wire)) => self.send(host, to, item.write, wire, fabric),
                Some(Work::Answer(node, reply)) => self.answered(node, &reply, fabric),
                None => {}
            },
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
