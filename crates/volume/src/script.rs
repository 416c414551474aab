//! A scripted world: a volume that serves, on nodes whose answers the test writes.
//!
//! Nothing answers by itself. [`Script::sent`] gives the requests since the last call, and the test
//! answers them in any order, or not at all. So a test shows one interleaving, step by step.

use fieldstone_accel::{Job, JobId, execute};
use fieldstone_block::{
    Backend, Completion, Nanos, Op, QueueId, ReadDestination, RequestFlags, RequestId, Stamps,
};
use fieldstone_codes::Profile;
use fieldstone_proto::{
    BLOCK_BYTES, Capability, Epoch, JournalGen, Lsn, MasterKey, NodeError, NodeIndex, NodeStat,
    Reply, ReplyBody, Request, RequestBody, SegmentKind, VolumeId,
};

use crate::core::{Ctx, VolumeCore};
use crate::interface::{
    Authority, Geometry, OpenMode, Provisioning, ReadPolicy, VolumeAction, VolumeConfig,
    VolumeEvent,
};
use crate::root::Root;
use crate::segment::{Segment, SegmentIndex, State};
use crate::shape::Shape;
use crate::status::{NodeHealth, VolumePhase};
use crate::volume::Volume;

/// The nodes that have the journal.
pub const JOURNAL: [NodeIndex; 3] = [NodeIndex(0), NodeIndex(1), NodeIndex(2)];

/// Slots of each node.
pub const SLOTS: u32 = 100;

const GEOMETRY: Geometry = Geometry {
    size_bytes: 8 << 20,
    shard_bytes: 65536,
    unit_bytes: 4096,
    chunk_bytes: 0,
    ring_bytes: 1 << 20,
};

/// The volume under test, and its clock.
pub struct Script {
    pub volume: Volume,
    /// Jobs that wait for their results.
    pub jobs: Vec<(JobId, Job)>,
    /// The nodes to which the volume wants new connections.
    pub reconnects: Vec<NodeIndex>,
    /// The epochs for which the volume has asked for a capability.
    pub asked: Vec<Epoch>,
    /// Answers to the users' requests.
    pub completions: Vec<Completion>,
    now: Nanos,
}

/// A request that waits for its answer.
pub struct Sent {
    pub node: NodeIndex,
    pub request: Request,
}

impl Script {
    /// A volume that begins to open. No node of its `nodes` nodes is connected yet.
    pub fn opening(nodes: u16, opening: OpenMode) -> Self {
        Self::opening_with(nodes, opening, Authority::Secrets(MasterKey([7; 16]).into()))
    }

    /// The same, for a volume that has no secret of the pool.
    pub fn opening_without_secrets(nodes: u16, opening: OpenMode) -> Self {
        Self::opening_with(nodes, opening, Authority::World)
    }

    fn opening_with(nodes: u16, opening: OpenMode, authority: Authority) -> Self {
        let config = VolumeConfig {
            volume: VolumeId(0x77),
            opening,
            nodes,
            missing_max: 2,
            authority,
            wall_offset_ns: 0,
            node_timeout_ms: 1000,
            fragment_bytes: 0,
            replicate: fieldstone_proto::Strategy::Flat,
            encode: fieldstone_proto::Encode::Client,
            reads: ReadPolicy::Primary,
            auto_rebuild: true,
            rebuild_limit_bytes_per_second: 0,
        };
        Self {
            volume: Volume::new(config, Nanos(0)),
            jobs: Vec::new(),
            reconnects: Vec::new(),
            asked: Vec::new(),
            completions: Vec::new(),
            now: Nanos(0),
        }
    }

    /// A volume rs:4+2 that serves on `nodes` nodes. Every node is up and has the volume's root.
    pub fn serving(nodes: u16) -> Self {
        Self::serving_as(nodes, Profile::rs(4, 2).expect("in bounds"), GEOMETRY)
    }

    /// The same with a code and chunks of its shards.
    pub fn serving_in_chunks(nodes: u16, code: &str, chunk_bytes: u32) -> Self {
        let profile = code.parse().expect("the name of a code");
        Self::serving_as(nodes, profile, Geometry { chunk_bytes, ..GEOMETRY })
    }

    fn serving_as(nodes: u16, profile: Profile, geometry: Geometry) -> Self {
        let mut script = Self::opening(nodes, OpenMode::Inspect);
        script.volume = Volume::without_tasks(&script.volume);
        script.core(|core| {
            core.config.opening = OpenMode::Open { takeover: false };
            core.adopt(Shape::new("v".into(), profile, geometry));
            core.set_epoch(Epoch(1));
            core.life.put_in(VolumePhase::Serving);
            core.committed.start_after(1);
            core.committed.set_root(root(core));
            core.log.start_at(JournalGen(1), JOURNAL.to_vec(), Lsn(0));
            core.reservation.slots = SLOTS;
            core.reservation.agreed = true;
            for (index, node) in (0..).map(NodeIndex).zip(&mut core.nodes) {
                node.health = NodeHealth::Up;
                node.link.connected = true;
                node.reason.clear();
                node.stat = stat(index);
                node.root_version = 1;
                (node.slots.free, node.slots.reserved) = (SLOTS, SLOTS);
            }
        });
        script
    }

    /// From now on the volume has no secret of the pool, and asks for its capabilities.
    pub fn ask_the_world(&mut self) {
        self.core(|core| core.config.authority = Authority::World);
    }

    /// Issues what the volume has asked for, with this lifetime.
    pub fn issue(&mut self, lifetime_ms: u64) {
        let key = |epoch| MasterKey([7; 16]).derive(VolumeId(0x77), epoch);
        for epoch in std::mem::take(&mut self.asked) {
            let rights = fieldstone_proto::Rights::ALL;
            let capability =
                Capability::issue(&key(epoch), VolumeId(0x77), epoch, rights, u64::MAX);
            let lifetime_ns = Nanos::from_ms(lifetime_ms).0;
            self.volume.handle(VolumeEvent::Issued { capability, lifetime_ns }, self.now);
        }
    }

    /// Works on the state of the volume.
    pub fn core<R>(&mut self, work: impl FnOnce(&mut VolumeCore) -> R) -> R {
        self.volume.ctx().with(work)
    }

    /// Starts a task of the volume.
    pub fn start<T: Future<Output = ()> + 'static>(
        &mut self,
        make: impl FnOnce(Ctx) -> T + 'static,
    ) {
        self.core(|core| core.spawn_with(make));
    }

    /// Lets time pass.
    pub fn wait_ms(&mut self, ms: u64) {
        self.now = self.now.plus(Nanos::from_ms(ms));
    }

    /// Runs the volume. Gives the requests that it has sent since the last call.
    pub fn sent(&mut self) -> Vec<Sent> {
        self.volume.poll(self.now, &mut self.completions);
        let mut sent = Vec::new();
        while let Some(action) = self.volume.next_action() {
            match action {
                VolumeAction::Send { node, request } => sent.push(Sent { node, request }),
                VolumeAction::Job { id, job } => self.jobs.push((id, job)),
                VolumeAction::Issue { epoch } => self.asked.push(epoch),
                VolumeAction::Reconnect { node } => self.reconnects.push(node),
            }
        }
        sent
    }

    /// As [`Script::sent`], where one request is expected.
    pub fn sent_one(&mut self) -> Sent {
        let mut sent = self.sent();
        let bodies: Vec<&RequestBody> = sent.iter().map(|sent| &sent.request.body).collect();
        assert_eq!(sent.len(), 1, "{bodies:?}");
        sent.remove(0)
    }

    /// A node answers a request.
    pub fn answer(&mut self, sent: &Sent, result: Result<ReplyBody, NodeError>) {
        self.answer_with_room(sent, result, SLOTS);
    }

    /// A node answers a request, and has this number of free slots.
    pub fn answer_with_room(
        &mut self,
        sent: &Sent,
        result: Result<ReplyBody, NodeError>,
        slots_free: u32,
    ) {
        let reply = Reply { tag: sent.request.tag, result, slots_free };
        self.volume.handle(VolumeEvent::Reply { node: sent.node, reply }, self.now);
    }

    /// The world does the jobs that wait.
    pub fn do_jobs(&mut self) {
        for (id, job) in std::mem::take(&mut self.jobs) {
            let result = execute(&job);
            self.volume.handle(VolumeEvent::JobDone { id, result }, self.now);
        }
    }

    /// A node answers that it has done what a request asks for.
    pub fn done(&mut self, sent: &Sent) {
        self.answer(sent, Ok(ReplyBody::Done));
    }

    /// A user writes `blocks` blocks from block `first` on.
    pub fn write(&mut self, first: u64, blocks: u32) {
        self.submit(Op::Write, first, blocks);
    }

    /// The volume takes a user's request; see [`request`].
    pub fn submit(&mut self, op: Op, first: u64, blocks: u32) {
        self.volume.submit(request(op, first, blocks), self.now);
    }

    /// The connection to a node breaks, and a new one is open at once.
    pub fn reconnect(&mut self, node: NodeIndex) {
        self.volume.handle(VolumeEvent::NodeDown(node), self.now);
        self.volume.handle(VolumeEvent::NodeUp(node), self.now);
    }

    /// Adds a durable segment of data with its shards on these nodes.
    pub fn add_segment(&mut self, shards: &[Option<u16>]) -> SegmentIndex {
        self.add(SegmentKind::Data, shards)
    }

    /// Adds a durable segment of a checkpoint with its shards on these nodes.
    pub fn add_checkpoint(&mut self, shards: &[Option<u16>]) -> SegmentIndex {
        self.add(SegmentKind::Checkpoint, shards)
    }

    fn add(&mut self, kind: SegmentKind, shards: &[Option<u16>]) -> SegmentIndex {
        self.core(|core| {
            let id = core.segments.next_id(Epoch(0));
            core.segments.insert(Segment {
                shard_bytes: GEOMETRY.shard_bytes,
                shards: shards.iter().map(|node| node.map(NodeIndex)).collect(),
                live_blocks: u32::from(kind == SegmentKind::Data),
                ..Segment::new(id, kind, State::Durable, shards.len())
            })
        })
    }
}

/// A user's request for `blocks` blocks from block `first` on.
pub fn request(op: Op, first: u64, blocks: u32) -> fieldstone_block::Request {
    let block = BLOCK_BYTES as u32;
    let written_bytes = if op == Op::Write { blocks * block } else { 0 };
    fieldstone_block::Request {
        id: RequestId(first),
        op,
        offset_bytes: first * u64::from(block),
        len_bytes: blocks * block,
        flags: RequestFlags::default(),
        data: vec![7; written_bytes as usize].into(),
        destination: ReadDestination::default(),
        queue: QueueId::default(),
        stamps: Stamps::default(),
    }
}

/// Every node has granted these slots, and holds none of them.
pub fn grants(core: &mut VolumeCore, granted: &[u32; 8]) {
    for (node, granted) in core.nodes.iter_mut().zip(granted) {
        (node.slots.reserved, node.slots.free) = (*granted, *granted);
    }
}

/// The answer to `Stat`.
pub fn stat(node: NodeIndex) -> NodeStat {
    NodeStat { node, slot_bytes: GEOMETRY.shard_bytes, slots_total: SLOTS, ..NodeStat::default() }
}

fn root(core: &VolumeCore) -> Root {
    Root {
        version: 1,
        volume: core.config.volume,
        epoch: core.writer.epoch(),
        put_by: core.writer.epoch(),
        geometry: GEOMETRY,
        generation: JournalGen(1),
        journal_nodes: JOURNAL.to_vec(),
        checkpoint_lsn: Lsn(0),
        checkpoint_bytes: 0,
        trimmed: Lsn(0),
        checkpoint_segments: Vec::new(),
        clean: false,
        provisioning: Provisioning::Thin,
        name: core.shape.name().to_owned(),
        profile: core.shape.profile().to_string(),
    }
}
