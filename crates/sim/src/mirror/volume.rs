//! The mirror volume: it sends every request to all nodes, and sends it again after a lost
//! connection.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_block::{
    Backend, BlockError, Completion, Info, Nanos, Op, Payload, Piece, Request, Stamps,
};
use fieldstone_proto::{
    Capability, Epoch, JournalGen, Lsn, NodeError, NodeIndex, Reply, ReplyBody,
    Request as NodeRequest, RequestBody, Tag, VolumeId,
};
use fieldstone_volume::{VolumeAction, VolumeConfig, VolumeEvent, VolumeFailure, VolumePhase};
use smallvec::smallvec;

use super::{Bug, Sizes};
use crate::actor::{Health, NodeView, VolumeProcess};

/// Writes after which a volume that starves the others has taken all room.
const WRITES_TO_TAKE_ALL: u32 = 30;
const GENERATION: JournalGen = JournalGen(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Down,
    Joining,
    Up,
}

struct MirrorRequest {
    /// The block request; `None` for the volume's own.
    request: Option<Request>,
    waits_for: Vec<NodeIndex>,
    answered: bool,
}

pub(crate) struct MirrorVolume {
    bug: Bug,
    volume: VolumeId,
    epoch: u64,
    writes: u32,
    taken_by: Rc<Cell<Option<VolumeId>>>,
    now: Nanos,
    nodes: Vec<Node>,
    sizes: Sizes,
    size_bytes: u64,
    phase: VolumePhase,
    requests: BTreeMap<u64, MirrorRequest>,
    next_tag: u64,
    actions: VecDeque<VolumeAction>,
    done: Vec<Completion>,
    remembered: BTreeMap<(u64, u32), Bytes>,
}

impl MirrorVolume {
    pub fn new(
        config: &VolumeConfig,
        bug: Bug,
        epoch: u64,
        taken_by: Rc<Cell<Option<VolumeId>>>,
        sizes: Sizes,
    ) -> Self {
        let size_bytes = sizes.borrow().get(&config.volume).copied().unwrap_or_default();
        Self {
            bug,
            volume: config.volume,
            epoch,
            writes: 0,
            taken_by,
            now: Nanos(0),
            nodes: vec![Node::Down; usize::from(config.nodes)],
            sizes,
            size_bytes,
            phase: VolumePhase::Opening,
            requests: BTreeMap::new(),
            next_tag: 0,
            actions: VecDeque::new(),
            done: Vec::new(),
            remembered: BTreeMap::new(),
        }
    }

    fn send(&mut self, node: NodeIndex, tag: u64, body: RequestBody, payload: Vec<Bytes>) {
        let capability =
            Capability { volume: self.volume, epoch: Epoch(self.epoch), ..Capability::default() };
        let request = NodeRequest { tag: Tag(tag), capability, body, route: None, payload };
        self.actions.push_back(VolumeAction::Send { node, request });
    }

    fn send_request(&mut self, tag: u64, node: NodeIndex) {
        let Some(request) = self.requests[&tag].request.clone() else { return };
        let lsn = Lsn(request.offset_bytes);
        let zeroes = || Bytes::from(vec![0u8; request.len_bytes as usize]);
        let (body, payload) = match request.op {
            Op::Read | Op::Extents => (
                RequestBody::JournalRead {
                    generation: GENERATION,
                    offset_bytes: request.offset_bytes,
                    len_bytes: request.len_bytes,
                },
                vec![],
            ),
            Op::Write => (
                RequestBody::JournalAppend { generation: GENERATION, lsn },
                vec![request.data.clone()],
            ),
            Op::Trim | Op::WriteZeroes => {
                (RequestBody::JournalAppend { generation: GENERATION, lsn }, vec![zeroes()])
            }
            Op::Flush => (RequestBody::JournalSync { generation: GENERATION }, vec![]),
        };
        self.send(node, tag, body, payload);
    }

    fn complete(&mut self, request: &Request, result: Result<Payload, BlockError>) {
        let stamps = Stamps::default();
        self.done.push(Completion { stamps, ..Completion::of(request, result) });
    }

    fn up(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        let nodes = self.nodes.clone();
        (0..nodes.len()).filter(move |i| nodes[*i] == Node::Up).map(|i| NodeIndex(i as u16))
    }

    fn start(&mut self, request: Request) {
        self.next_tag += 1;
        let tag = self.next_tag;
        if self.bug == Bug::Forgets && tag.is_multiple_of(100) {
            return;
        }
        if self.refuses(&request) {
            return self.complete(&request, Err(BlockError::NoSpace));
        }
        if self.keeps_waiting(&request) {
            return;
        }
        let key = (request.offset_bytes, request.len_bytes);
        if self.bug == Bug::ServesStale
            && request.op == Op::Read
            && tag.is_multiple_of(7)
            && let Some(data) = self.remembered.get(&key).cloned()
        {
            let payload = Payload::Data(smallvec![Piece::Data(data)]);
            return self.complete(&request, Ok(payload));
        }
        let changes = matches!(request.op, Op::Write | Op::Trim | Op::WriteZeroes);
        let early = self.bug == Bug::AcknowledgesEarly && changes;
        let skipped = self.bug == Bug::LosesFlush && request.op == Op::Flush;
        if early || skipped {
            self.complete(&request, Ok(Payload::None));
        }
        if skipped {
            return;
        }
        let all = (0..self.nodes.len() as u16).map(NodeIndex);
        let waits_for: Vec<_> = match request.op {
            Op::Read | Op::Extents => vec![NodeIndex(0)],
            _ => all.collect(),
        };
        self.requests
            .insert(tag, MirrorRequest { request: Some(request), waits_for, answered: early });
        for node in self.up() {
            if self.requests[&tag].waits_for.contains(&node) {
                self.send_request(tag, node);
            }
        }
    }

    fn refuses(&mut self, request: &Request) -> bool {
        self.writes += u32::from(request.op == Op::Write);
        match self.bug {
            Bug::FullEarly => request.op == Op::Write && self.writes.is_multiple_of(20),
            Bug::RefusesTrims => request.op == Op::Trim,
            _ => false,
        }
    }

    fn keeps_waiting(&mut self, request: &Request) -> bool {
        let taken_by = self.taken_by.get();
        match self.bug {
            Bug::DropsTrims => request.op == Op::Trim,
            Bug::Starves if request.op == Op::Write => {
                if taken_by.is_none() && self.writes == WRITES_TO_TAKE_ALL {
                    self.taken_by.set(Some(self.volume));
                }
                taken_by.is_some_and(|volume| volume != self.volume)
            }
            _ => false,
        }
    }

    fn joined(&mut self, node: NodeIndex) {
        self.nodes[usize::from(node.0)] = Node::Up;
        let tags: Vec<u64> = self.requests.keys().copied().collect();
        for tag in tags {
            if self.requests[&tag].waits_for.contains(&node) {
                self.send_request(tag, node);
            }
        }
        if self.bug == Bug::NeverReopens && self.epoch > 1 {
            return;
        }
        if self.phase == VolumePhase::Opening && self.nodes.iter().all(|node| *node == Node::Up) {
            self.phase = VolumePhase::Serving;
        }
    }

    fn replied(&mut self, node: NodeIndex, reply: Reply) {
        let fenced = matches!(reply.result, Err(NodeError::Fenced { .. }));
        if reply.tag.0 == 0 && !fenced {
            return;
        }
        if self.nodes[usize::from(node.0)] == Node::Joining && !fenced {
            // Its journal is made. The volume asked it for nothing else.
            return self.joined(node);
        }
        if let Err(NodeError::Fenced { current, .. }) = reply.result
            && self.bug != Bug::IgnoresFence
        {
            self.phase = VolumePhase::Failed(VolumeFailure::FencedOut { current });
            for (_, in_flight) in std::mem::take(&mut self.requests) {
                if let Some(request) = in_flight.request.filter(|_| !in_flight.answered) {
                    self.complete(&request, Err(BlockError::Fenced("by another".to_owned())));
                }
            }
            return;
        }
        let Some(in_flight) = self.requests.get_mut(&reply.tag.0) else { return };
        in_flight.waits_for.retain(|waits| *waits != node);
        if !in_flight.waits_for.is_empty() && !fenced {
            return;
        }
        let Some(in_flight) = self.requests.remove(&reply.tag.0) else { return };
        let Some(request) = in_flight.request.filter(|_| !in_flight.answered) else { return };
        let changes = matches!(request.op, Op::Write | Op::Trim | Op::WriteZeroes);
        if changes && request.flags.fua && self.bug != Bug::LosesFlush {
            let mut sync = request;
            sync.op = Op::Flush;
            sync.flags.fua = false;
            return self.start(sync);
        }
        let payload = match (request.op, reply.result) {
            (Op::Read, Ok(ReplyBody::Data(data))) => {
                self.remembered.insert((request.offset_bytes, request.len_bytes), data.clone());
                Payload::Data(smallvec![Piece::Data(data)])
            }
            (Op::Extents, _) => Payload::Extents(vec![fieldstone_block::Extent {
                len_bytes: u64::from(request.len_bytes),
                kind: fieldstone_block::ExtentKind::Data,
            }]),
            _ => Payload::None,
        };
        self.complete(&request, Ok(payload));
    }
}

impl Backend for MirrorVolume {
    fn info(&self) -> Info {
        Info {
            size_bytes: self.size_bytes,
            block_bytes: 4096,
            preferred_bytes: 4096,
            read_ahead_bytes: 0,
            read_only: false,
        }
    }

    fn submit(&mut self, request: Request, _now: Nanos) {
        match self.phase {
            VolumePhase::Serving => self.start(request),
            _ => self.complete(&request, Err(BlockError::ShuttingDown)),
        }
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        self.now = now;
        out.append(&mut self.done);
    }

    fn deadline(&self) -> Option<Nanos> {
        (self.bug == Bug::Spins).then_some(self.now)
    }
}

impl VolumeProcess for MirrorVolume {
    fn handle(&mut self, event: VolumeEvent, _now: Nanos) {
        match event {
            _ if matches!(self.phase, VolumePhase::Failed(_)) => {}
            VolumeEvent::NodeUp(node) => {
                self.nodes[usize::from(node.0)] = Node::Joining;
                self.send(node, 0, RequestBody::Fence { takeover: true }, vec![]);
                let create =
                    RequestBody::JournalCreate { generation: GENERATION, ring_bytes: 64 << 20 };
                self.send(node, u64::MAX, create, vec![]);
            }
            VolumeEvent::NodeDown(node) => {
                self.nodes[usize::from(node.0)] = Node::Down;
                // The world connects again by itself. Asking for that must do no harm.
                self.actions.push_back(VolumeAction::Reconnect { node });
            }
            VolumeEvent::Reply { node, reply } => self.replied(node, reply),
            VolumeEvent::JobDone { .. } => {} // it gives no jobs
            VolumeEvent::NodeAt(..) => {}     // its requests have no routes
            VolumeEvent::Issued { .. } | VolumeEvent::NotIssued(_) | VolumeEvent::Renew => {}
            VolumeEvent::WallClock { .. } => {} // mirrors check no capabilities
        }
    }

    fn next_action(&mut self) -> Option<VolumeAction> {
        self.actions.pop_front()
    }

    fn phase(&self) -> VolumePhase {
        self.phase.clone()
    }

    fn health(&self) -> Health {
        let view = |node: &Node| NodeView { up: *node == Node::Up, shards: 0, fenced: false };
        Health {
            phase: self.phase.clone(),
            whole: self.nodes.iter().all(|node| *node == Node::Up),
            scrubbing: false,
            scrub_failed: 0,
            nodes: self.nodes.iter().map(view).collect(),
            degraded: 0,
            missing: 0,
            lost: 0,
            unsealed: 0,
            rebuilding: false,
            journal_whole: true,
        }
    }

    fn describe_health(&self) -> String {
        format!("{} jobs", self.requests.len())
    }

    fn request_close(&mut self) {
        self.phase = VolumePhase::Closed;
    }

    fn request_scrub(&mut self) {}

    fn request_grow(&mut self, size_bytes: u64) {
        if self.bug == Bug::NeverGrows {
            return;
        }
        self.size_bytes = self.size_bytes.max(size_bytes);
        if self.bug != Bug::ForgetsGrowth {
            self.sizes.borrow_mut().insert(self.volume, self.size_bytes);
        }
    }

    fn grow_refused(&self) -> Option<String> {
        None
    }
}
