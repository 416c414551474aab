//! A small world for one node: a disk with faults, and a way to run requests.

use std::collections::BTreeMap;

use crate::disk::{Disk, Faults};
use bytes::Bytes;
use fieldstone_node::{
    LinkTarget, Node, NodeAction, NodeConfig, NodeEvent, ParityMemory, PeerId, limits,
};
use fieldstone_proto::{
    Capability, Epoch, MasterKey, NodeError, NodeIndex, PoolId, Reply, ReplyBody, Request,
    RequestBody, Rights, Route, Tag, VolumeId,
};
use rand_chacha::ChaCha8Rng;

pub const KEY: MasterKey = MasterKey([9; 16]);
pub const NOW_NS: u64 = 1_000;

/// Longer writes to shards go to the disk in pieces.
pub const PIECE_BYTES: usize = 8192;

pub fn config(slot_bytes: u32, slots: u32) -> NodeConfig {
    NodeConfig {
        pool: PoolId(1),
        node: NodeIndex(0),
        incarnation: 77,
        keys: KEY.into(),
        slot_bytes,
        slots,
        verify_payload: true,
        piece_bytes: PIECE_BYTES,
        parity_memory: ParityMemory::new(limits::PARITY_MEMORY_BYTES),
    }
}

/// A node and its disk.
pub struct World {
    pub node: Node,
    pub disk: Disk,
    pub rng: ChaCha8Rng,
    pub replies: BTreeMap<Tag, (PeerId, Reply)>,
    /// Requests that the node has passed on to other nodes.
    pub relayed: Vec<(LinkTarget, Request)>,
    /// Links that the node has given up.
    pub closed: Vec<LinkTarget>,
    /// The node's clock.
    pub now_ns: u64,
    next_tag: u64,
}

impl World {
    pub fn new(config: NodeConfig, rng: ChaCha8Rng) -> Self {
        let node = Node::new(config);
        let disk = Disk::default();
        let (replies, relayed, closed) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut world =
            Self { node, disk, rng, replies, relayed, closed, now_ns: NOW_NS, next_tag: 0 };
        world.start();
        world
    }

    /// Starts the node and runs it until it is ready; faults are off meanwhile.
    pub fn start(&mut self) {
        let faults = std::mem::take(&mut self.disk.faults);
        self.node.start(NOW_NS);
        self.settle();
        assert!(self.node.is_ready(), "{:?}", self.node.failure());
        self.disk.faults = faults;
    }

    /// Starts the node on a disk whose syncs fail. Each of them drops some writes that it should
    /// cover.
    pub fn start_without_syncs(&mut self) {
        let faults = Faults { sync_one_in: 1, ..Faults::default() };
        let faults = std::mem::replace(&mut self.disk.faults, faults);
        self.node.start(NOW_NS);
        self.settle();
        assert!(!self.node.is_ready());
        self.disk.faults = faults;
    }

    /// Starts the node on a disk where every sync of `file` fails.
    pub fn start_without_sync_of(&mut self, file: fieldstone_node::FileId) {
        let faults = Faults { sync_of: Some(file), ..Faults::default() };
        let faults = std::mem::replace(&mut self.disk.faults, faults);
        self.node.start(NOW_NS);
        self.settle();
        assert!(self.node.is_ready(), "{:?}", self.node.failure());
        self.disk.faults = faults;
    }

    /// The node's process dies. Operations in flight may have happened or not.
    pub fn crash(&mut self, power_loss: bool) {
        self.pump();
        self.disk.crash(power_loss, &mut self.rng);
        let config = self.node_config();
        self.node = Node::new(config);
    }

    fn node_config(&self) -> NodeConfig {
        let stat = self.node.stat();
        config(stat.slot_bytes, stat.slots_total)
    }

    /// Sends a request.
    pub fn send(
        &mut self,
        peer: PeerId,
        cap: Capability,
        body: RequestBody,
        payload: &Bytes,
    ) -> Tag {
        self.send_routed(peer, cap, body, None, payload)
    }

    /// Sends a request with a route.
    pub fn send_routed(
        &mut self,
        peer: PeerId,
        cap: Capability,
        body: RequestBody,
        route: Option<Route>,
        payload: &Bytes,
    ) -> Tag {
        let request = self.routed(cap, body, route, payload);
        let tag = request.tag;
        self.node.handle(self.now_ns, NodeEvent::Request { peer, request });
        self.pump();
        tag
    }

    /// A request with a tag of its own.
    pub fn routed(
        &mut self,
        cap: Capability,
        body: RequestBody,
        route: Option<Route>,
        payload: &Bytes,
    ) -> Request {
        self.next_tag += 1;
        let tag = Tag(self.next_tag);
        let payload = if payload.is_empty() { vec![] } else { vec![payload.clone()] };
        Request { tag, capability: cap, body, route: route.map(Box::new), payload }
    }

    /// Carries out the node's actions: disk operations and replies.
    pub fn pump(&mut self) {
        while let Some(action) = self.node.next_action() {
            match action {
                NodeAction::Disk { id, op } => self.disk.submit(id, op),
                NodeAction::Relay { to, request } => self.relayed.push((to, request)),
                NodeAction::CloseLink { to } => self.closed.push(to),
                NodeAction::Reply { peer, reply } => {
                    let before = self.replies.insert(reply.tag, (peer, reply));
                    assert!(before.is_none(), "two replies for one request");
                }
            }
        }
    }

    /// Completes one disk operation at random; false if there is none.
    pub fn step(&mut self) -> bool {
        let Some((id, result)) = self.disk.complete_one(&mut self.rng) else { return false };
        self.node.handle(self.now_ns, NodeEvent::Disk { id, result });
        self.pump();
        self.node.assert_consistent();
        true
    }

    /// Runs until nothing is in flight.
    pub fn settle(&mut self) {
        self.pump();
        while self.step() {}
        assert_eq!(self.node.in_flight(), (0, 0), "something hangs");
    }

    /// Sends a request and runs until everything has ended.
    pub fn call(
        &mut self,
        peer: PeerId,
        cap: Capability,
        body: RequestBody,
        payload: &Bytes,
    ) -> Result<ReplyBody, NodeError> {
        let tag = self.send(peer, cap, body, payload);
        self.settle();
        self.take(tag).expect("every request is answered")
    }

    /// Sends a request and runs until it has ended, while others wait.
    pub fn call_beside(
        &mut self,
        peer: PeerId,
        cap: Capability,
        body: RequestBody,
    ) -> Result<ReplyBody, NodeError> {
        let tag = self.send(peer, cap, body, &Bytes::new());
        while self.step() {}
        self.take(tag).expect("it does not wait for others")
    }

    /// The result of a request, if there is one.
    pub fn take(&mut self, tag: Tag) -> Option<Result<ReplyBody, NodeError>> {
        self.replies.remove(&tag).map(|(_, reply)| reply.result)
    }
}

/// A capability for everything.
pub fn cap(volume: VolumeId, epoch: Epoch) -> Capability {
    Capability::issue(&KEY.derive(volume, epoch), volume, epoch, Rights::ALL, u64::MAX)
}
