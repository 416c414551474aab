//! The bench: one real volume, six real nodes, simulated disks, and a virtual clock.
//!
//! Nothing here is drawn by chance but the latencies of the disks, whose seed is fixed. A fault is
//! planted by changing a node's files ([`Bench::change`]), by answers that its disk gives instead of
//! doing what it is asked ([`Trouble`]), or by answers that the node gives instead of its own
//! ([`Lie`]).
//!
//! The bench hosts nodes as the server does: a node that cannot start is down for its host's reason,
//! and is tried again every two seconds. It watches all the time that no node but the victim is
//! said to be at fault.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_block::{
    Backend, BlockError, Completion, Nanos, Op, Payload, Piece, Request, RequestFlags, RequestId, Stamps,
};
use fieldstone_codes::Profile;
use fieldstone_node::{DiskError, DiskId, DiskOp, DiskOutput, FileId, Node, NodeConfig, PeerId};
use fieldstone_proto::{MasterKey, NodeError, NodeIndex, PoolId, Reply, ReplyBody, RequestBody};
use fieldstone_sim::dice::Dice;
use fieldstone_sim::disk::{DiskKind, FileKind, SimDisk};
use fieldstone_sim::schedule::Schedule;
use fieldstone_volume::{
    Geometry, NodeHealth, Opening, Phase, Provisioning, Status, Volume, VolumeConfig,
};

/// Nodes of the pool.
pub const NODES: u16 = 6;
/// Nodes that the code makes up for.
pub const M: u16 = 2;
/// Blocks of the volume.
pub const BLOCKS: u64 = 256;
/// Slots of each node: three times what the volume takes, and some for what it does meanwhile.
const SLOTS: u32 = 96;
const BLOCK_BYTES: usize = 4096;
const SHARD_BYTES: u32 = 32 << 10;
/// After this silence a volume takes a node for down.
pub const NODE_TIMEOUT_MS: u64 = 1_000;
/// How long a message is on its way.
const NETWORK_NS: u64 = 50_000;
/// How often a host tries to start a node that could not start, and a world to connect.
const HOST_RETRY_NS: u64 = 2_000_000_000;
const CONNECT_RETRY_NS: u64 = 20_000_000;
/// How long nothing happens, where nothing is to happen.
const IDLE_NS: u64 = 10_000_000;
/// Actions at one moment before a process is said to spin.
const ACTIONS_MAX: u32 = 100_000;
/// Requests in flight while everything is read or written.
const DEPTH: usize = 8;

/// Which operations of a disk go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ops {
    All,
    Reads,
    /// Writes, creations, removals, discards.
    Changes,
    Syncs,
    Creations,
    Removals,
    List,
}

/// What a disk answers instead of doing what it is asked.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub ops: Ops,
    /// On files of this kind; on all if `None`.
    pub file: Option<FileKind>,
    /// `None`: it never answers.
    pub error: Option<DiskError>,
}

impl Trouble {
    /// Only the next start of the process gets over it: operations that never end, and a disk that
    /// was full, of whose new room nobody tells the node.
    fn outlasts(&self) -> bool {
        matches!(self.error, None | Some(DiskError::NoSpace))
    }

    fn strikes(&self, op: &DiskOp) -> bool {
        let (kind, file) = match op {
            DiskOp::List => (Ops::List, None),
            DiskOp::Read { file, .. } => (Ops::Reads, Some(*file)),
            DiskOp::Write { file, .. } | DiskOp::Discard { file, .. } => {
                (Ops::Changes, Some(*file))
            }
            DiskOp::Sync { file } => (Ops::Syncs, Some(*file)),
            DiskOp::Create { file, .. } => (Ops::Creations, Some(*file)),
            DiskOp::Remove { file } => (Ops::Removals, Some(*file)),
        };
        let changes = matches!(kind, Ops::Changes | Ops::Creations | Ops::Removals);
        // Giving space back needs none.
        if self.error == Some(DiskError::NoSpace)
            && matches!(op, DiskOp::Remove { .. } | DiskOp::Discard { .. })
        {
            return false;
        }
        let ops = self.ops == Ops::All
            || self.ops == kind
            || (self.ops == Ops::Changes && changes)
            || (self.ops == Ops::Reads && kind == Ops::List);
        ops && self.file.is_none_or(|kind| file.is_some_and(|file| FileKind::of(file) == kind))
    }
}

/// What a node answers to some requests instead of serving them.
#[derive(Clone, Copy)]
pub struct Lie {
    pub to: fn(&RequestBody) -> bool,
    pub result: fn(&RequestBody) -> Result<ReplyBody, NodeError>,
}

/// A node: its place, its disk, its process if it runs, and what is wrong with it.
pub struct Host {
    process: Option<Node>,
    /// Should it run?
    wanted: bool,
    pub disk: SimDisk,
    life: u64,
    incarnation: u64,
    /// Why it is down, as its host says.
    pub down: Option<String>,
    pub delay_ns: u64,
    pub silent: bool,
    pub troubles: Vec<Trouble>,
    pub lie: Option<Lie>,
    /// Who it says that it is.
    pub pool: PoolId,
    pub index: NodeIndex,
    pub key: MasterKey,
    /// Its files as they were some time ago.
    pub old: BTreeMap<FileId, Vec<u8>>,
}

struct Process {
    volume: Volume,
    number: u64,
    timer: Option<Nanos>,
    links: [Option<PeerId>; NODES as usize],
}

enum Happening {
    ToNode { node: usize, peer: PeerId, request: fieldstone_proto::Request },
    ToVolume { node: usize, peer: PeerId, reply: Reply },
    /// A connection was lost: the node's side hears of it.
    PeerLost { node: usize, peer: PeerId },
    /// The same, the volume's side.
    NodeDown { node: usize, peer: PeerId },
    Connect { node: usize, process: u64 },
    Disk { node: usize, life: u64, id: DiskId, forced: Option<DiskError> },
    Timer { process: u64, at: Nanos },
    Start { node: usize },
    Nothing,
}

pub struct Bench {
    schedule: Schedule<Happening>,
    pub nodes: Vec<Host>,
    process: Option<Process>,
    processes: u64,
    peers: u64,
    requests: u64,
    answers: BTreeMap<u64, Result<Payload, BlockError>>,
    /// By block, which write it holds; 0 for none.
    written: Vec<u32>,
    written_before: Vec<u32>,
    writes: u32,
    /// The node where the fault is.
    pub victim: Option<usize>,
    /// Another node than the victim was said to be at fault.
    pub accused: Option<String>,
    /// What was said of the victim: the reasons.
    pub told: Vec<String>,
    /// The longest that a request took.
    pub slowest_ns: u64,
    created: bool,
}

fn key() -> MasterKey {
    MasterKey([0x5e; 16])
}

impl Bench {
    /// Six nodes that run, and no volume.
    pub fn new() -> Self {
        let mut bench = Self {
            schedule: Schedule::default(),
            nodes: Vec::new(),
            process: None,
            processes: 0,
            peers: 0,
            requests: 0,
            answers: BTreeMap::new(),
            written: vec![0; BLOCKS as usize],
            written_before: Vec::new(),
            writes: 0,
            victim: None,
            accused: None,
            told: Vec::new(),
            slowest_ns: 0,
            created: false,
        };
        let kind = DiskKind {
            read_ns: 80_000,
            write_ns: 30_000,
            sync_ns: 500_000,
            sector_bytes: 512,
        };
        for index in 0..NODES {
            bench.nodes.push(Host {
                process: None,
                wanted: false,
                disk: SimDisk::new(Dice::new(1, "disk", u64::from(index)), kind, u64::MAX),
                life: 0,
                incarnation: 100 + u64::from(index),
                down: None,
                delay_ns: 0,
                silent: false,
                troubles: Vec::new(),
                lie: None,
                pool: PoolId(0xf1e1d),
                index: NodeIndex(index),
                key: key(),
                old: BTreeMap::new(),
            });
            bench.start_node(usize::from(index));
        }
        bench
    }

    pub fn now(&self) -> Nanos {
        self.schedule.now()
    }

    // Nodes.

    pub fn start_node(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        host.wanted = true;
        if host.process.is_some() {
            return;
        }
        let mut process = Node::new(NodeConfig {
            pool: host.pool,
            node: host.index,
            incarnation: host.incarnation,
            key: host.key,
            slot_bytes: SHARD_BYTES,
            slots: SLOTS,
            verify_payload: false,
        });
        process.start(0);
        host.life += 1;
        host.process = Some(process);
        self.pump_node(node);
    }

    /// The process of the node dies; its disk keeps what it wrote.
    pub fn stop_node(&mut self, node: usize) {
        self.nodes[node].wanted = false;
        self.node_dies(node);
    }

    fn node_dies(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        if host.process.take().is_none() {
            return;
        }
        host.life += 1;
        host.disk.kill();
        if let Some(peer) = self.process.as_ref().and_then(|process| process.links[node]) {
            self.schedule.after(NETWORK_NS, Happening::NodeDown { node, peer });
        }
    }

    /// The node gets an empty disk, and is another from now on.
    pub fn replace_node(&mut self, node: usize) {
        self.stop_node(node);
        self.nodes[node].disk.wipe();
        self.nodes[node].incarnation += 1000;
        self.start_node(node);
    }

    /// Nothing goes wrong any more with what the node does from now on.
    pub fn lift(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        let hangs = host.delay_ns > HOST_RETRY_NS
            || host.troubles.iter().any(Trouble::outlasts);
        host.troubles.clear();
        host.lie = None;
        host.delay_ns = 0;
        host.silent = false;
        let wrong = (host.pool, host.index, host.key)
            != (PoolId(0xf1e1d), NodeIndex(node as u16), key());
        (host.pool, host.index, host.key) = (PoolId(0xf1e1d), NodeIndex(node as u16), key());
        // Operations that never end, and a process that is somebody else, end with the process.
        if hangs || wrong || host.process.is_none() {
            self.stop_node(node);
            self.start_node(node);
        }
    }

    fn pump_node(&mut self, node: usize) {
        for round in 0.. {
            assert!(round < ACTIONS_MAX, "node {node} spins");
            let host = &mut self.nodes[node];
            let life = host.life;
            let Some(action) = host.process.as_mut().and_then(Node::next_action) else { break };
            match action {
                fieldstone_node::Action::Disk { id, op } => {
                    let trouble = host.troubles.iter().find(|trouble| trouble.strikes(&op));
                    if let Some(Trouble { error, .. }) = trouble {
                        let Some(error) = error.clone() else { continue };
                        let delay_ns = host.delay_ns + NETWORK_NS;
                        let happening = Happening::Disk { node, life, id, forced: Some(error) };
                        self.schedule.after(delay_ns, happening);
                        continue;
                    }
                    let delay_ns = host.disk.submit(id, op) + host.delay_ns;
                    self.schedule
                        .after(delay_ns, Happening::Disk { node, life, id, forced: None });
                }
                fieldstone_node::Action::Reply { peer, reply } => {
                    self.schedule.after(NETWORK_NS, Happening::ToVolume { node, peer, reply });
                }
            }
        }
        let host = &mut self.nodes[node];
        let failure = host.process.as_ref().and_then(Node::failure).map(str::to_owned);
        if let Some(reason) = failure {
            host.down = Some(reason);
            self.node_dies(node);
            self.schedule.after(HOST_RETRY_NS, Happening::Start { node });
        } else if host.process.as_ref().is_some_and(Node::is_ready) {
            host.down = None;
        }
    }

    fn node_event(&mut self, node: usize, event: fieldstone_node::Event) {
        let now = self.now();
        let host = &mut self.nodes[node];
        if let Some(process) = &mut host.process {
            process.handle(now.0, event);
            self.pump_node(node);
        }
    }

    fn request_arrives(&mut self, node: usize, peer: PeerId, request: fieldstone_proto::Request) {
        let host = &self.nodes[node];
        if host.silent {
            return;
        }
        if let Some(lie) = host.lie.filter(|lie| (lie.to)(&request.body)) {
            let (tag, result) = (request.tag, (lie.result)(&request.body));
            let reply = Reply { tag, result, slots_free: SLOTS / 2 };
            self.schedule.after(NETWORK_NS, Happening::ToVolume { node, peer, reply });
            return;
        }
        self.node_event(node, fieldstone_node::Event::Request { peer, request });
    }

    // Files.

    /// The files of the node of this kind, the newest last.
    pub fn files(&self, node: usize, kind: FileKind) -> Vec<FileId> {
        let files = self.nodes[node].disk.files();
        files.into_iter().filter(|file| FileKind::of(*file) == kind).collect()
    }

    /// The newest file of the kind.
    pub fn file(&self, node: usize, kind: FileKind) -> FileId {
        let files = self.files(node, kind);
        *files.last().unwrap_or_else(|| panic!("node {node} has no file of the kind {kind:?}"))
    }

    pub fn bytes(&self, node: usize, kind: FileKind) -> Vec<u8> {
        self.nodes[node].disk.bytes(self.file(node, kind)).expect("it is listed")
    }

    /// Changes the newest file of the kind beneath the node.
    pub fn change(&mut self, node: usize, kind: FileKind, change: impl FnOnce(&mut Vec<u8>)) {
        let file = self.file(node, kind);
        let before = self.bytes(node, kind);
        let mut bytes = before.clone();
        change(&mut bytes);
        assert_ne!(before, bytes, "the fault changes nothing");
        self.nodes[node].disk.put(file, &bytes);
    }

    /// Keeps a copy of every file of every node, for faults that bring old files back.
    pub fn remember_files(&mut self) {
        for host in &mut self.nodes {
            let files = host.disk.files();
            host.old =
                files.into_iter().filter_map(|id| Some((id, host.disk.bytes(id)?))).collect();
        }
    }

    // The volume.

    /// Starts a process of the volume; `nodes_missing` of the nodes may be away.
    pub fn start_volume(&mut self) {
        let geometry = Geometry {
            size_bytes: BLOCKS * BLOCK_BYTES as u64,
            shard_bytes: SHARD_BYTES,
            unit_bytes: BLOCK_BYTES as u32,
            ring_bytes: 256 << 10,
        };
        let profile = Profile::Rs { k: 4, m: usize::from(M) };
        let opening = match std::mem::replace(&mut self.created, true) {
            true => Opening::Open { takeover: false },
            false => Opening::Create {
                name: "v".into(),
                profile,
                geometry,
                provisioning: Provisioning::Thick,
            },
        };
        let config = VolumeConfig {
            volume: fieldstone_proto::VolumeId(7),
            opening,
            nodes: NODES,
            missing_max: M,
            key: key(),
            wall_offset_ns: 0,
            node_timeout_ms: NODE_TIMEOUT_MS,
            auto_rebuild: true,
            rebuild_limit_bytes_per_second: 0,
        };
        self.processes += 1;
        let volume = Volume::new(config, self.now());
        let links = [None; NODES as usize];
        self.process = Some(Process { volume, number: self.processes, timer: None, links });
        for node in 0..usize::from(NODES) {
            self.connect_later(node, NETWORK_NS);
        }
        self.pump_volume();
    }

    /// The process of the volume dies.
    pub fn kill_volume(&mut self) {
        let Some(process) = self.process.take() else { return };
        for (node, peer) in process.links.into_iter().enumerate() {
            if let Some(peer) = peer {
                self.schedule.after(NETWORK_NS, Happening::PeerLost { node, peer });
            }
        }
    }

    pub fn volume(&mut self) -> &mut Volume {
        &mut self.process.as_mut().expect("a process of the volume runs").volume
    }

    pub fn status(&self) -> Status {
        self.process.as_ref().expect("a process of the volume runs").volume.status()
    }

    pub fn phase(&self) -> Phase {
        self.process.as_ref().expect("a process of the volume runs").volume.phase()
    }

    fn connect_later(&mut self, node: usize, delay_ns: u64) {
        let Some(process) = &self.process else { return };
        let number = process.number;
        self.schedule.after(delay_ns, Happening::Connect { node, process: number });
    }

    fn connect(&mut self, node: usize, number: u64) {
        // As the hosts of nodes do, whether in the server or in a process of their own.
        let runs = self.nodes[node].process.as_ref().is_some_and(Node::is_ready);
        let Some(process) = self.process.as_mut().filter(|process| process.number == number)
        else {
            return;
        };
        if process.links[node].is_some() {
            return;
        }
        if !runs {
            return self.connect_later(node, CONNECT_RETRY_NS);
        }
        self.peers += 1;
        process.links[node] = Some(PeerId(self.peers));
        self.volume_event(fieldstone_volume::Event::NodeUp(NodeIndex(node as u16)));
    }

    fn volume_event(&mut self, event: fieldstone_volume::Event) {
        let now = self.now();
        if let Some(process) = &mut self.process {
            process.volume.handle(event, now);
            self.pump_volume();
        }
    }

    pub fn pump_volume(&mut self) {
        let now = self.now();
        let mut completions: Vec<Completion> = Vec::new();
        for round in 0.. {
            assert!(round < ACTIONS_MAX, "the volume spins");
            let Some(process) = &mut self.process else { return };
            process.volume.poll(now, &mut completions);
            let mut rests = completions.is_empty();
            for completion in completions.drain(..) {
                self.answers.insert(completion.id.0, completion.result);
            }
            while let Some(action) = process.volume.next_action() {
                rests = false;
                match action {
                    fieldstone_volume::Action::Send { node, request } => {
                        let node = usize::from(node.0);
                        if let Some(peer) = process.links[node] {
                            let happening = Happening::ToNode { node, peer, request };
                            self.schedule.after(NETWORK_NS, happening);
                        }
                    }
                    fieldstone_volume::Action::Reconnect { node } => {
                        let node = usize::from(node.0);
                        if let Some(peer) = process.links[node].take() {
                            self.schedule.after(NETWORK_NS, Happening::PeerLost { node, peer });
                        }
                        let number = process.number;
                        let happening = Happening::Connect { node, process: number };
                        self.schedule.after(CONNECT_RETRY_NS, happening);
                    }
                }
            }
            if rests {
                break;
            }
        }
        if let Some(process) = &mut self.process
            && let Some(deadline) = process.volume.deadline()
        {
            let at = deadline.max(now.plus(Nanos(1000)));
            if process.timer.is_none_or(|timer| at < timer) {
                process.timer = Some(at);
                let number = process.number;
                self.schedule.at(at, Happening::Timer { process: number, at });
            }
        }
        self.watch();
    }

    /// Notes what the volume says of its nodes.
    fn watch(&mut self) {
        let Some(victim) = self.victim else { return };
        let status = self.status();
        let serves = status.phase == Phase::Serving;
        for (index, node) in status.nodes.iter().enumerate() {
            let reason = node.reason.as_str();
            if index == victim {
                let host = self.nodes[index].down.as_deref();
                let reason = host.unwrap_or(reason);
                let new = !reason.is_empty() && self.told.iter().all(|told| told != reason);
                if new {
                    self.told.push(reason.to_owned());
                }
                continue;
            }
            let innocent = matches!(reason, "" | "not connected yet" | "the connection is gone");
            if !innocent || (serves && node.health == NodeHealth::Down) {
                let text = format!("{} {:?} ({reason})", node.node, node.health);
                self.accused.get_or_insert(text);
            }
        }
    }

    /// Nothing goes wrong with what the node does.
    pub fn is_sound(&self, node: usize) -> bool {
        let host = &self.nodes[node];
        host.troubles.is_empty() && host.lie.is_none() && host.delay_ns == 0 && !host.silent
    }

    /// What the volume says of itself, for failures.
    pub fn describe(&self) -> String {
        let status = self.status();
        let down: Vec<String> = (self.nodes.iter().zip(&status.nodes))
            .filter(|(host, node)| host.down.is_some() || node.health != NodeHealth::Up)
            .map(|(host, node)| format!("{} {:?} {} {:?}", node.node, node.health, node.reason, host.down))
            .collect();
        format!(
            "{:?}, degraded {}, missing {}, rebuilding {}, scrubbing {}, journal whole {}, not up: {down:?}",
            status.phase, status.segments_degraded, status.shards_missing, status.rebuild.running,
            status.scrub.running, status.journal_whole,
        )
    }

    // Time.

    fn step(&mut self) {
        let Some(happening) = self.schedule.next_event() else {
            // All rest. Time goes by all the same.
            return self.schedule.after(IDLE_NS, Happening::Nothing);
        };
        match happening {
            Happening::Nothing => {}
            Happening::ToNode { node, peer, request } => {
                self.request_arrives(node, peer, request);
            }
            Happening::ToVolume { node, peer, reply } => {
                let links = self.process.as_ref().map(|process| process.links);
                if links.is_some_and(|links| links[node] == Some(peer)) {
                    let node = NodeIndex(node as u16);
                    self.volume_event(fieldstone_volume::Event::Reply { node, reply });
                }
            }
            Happening::PeerLost { node, peer } => {
                self.node_event(node, fieldstone_node::Event::PeerLost { peer });
            }
            Happening::NodeDown { node, peer } => {
                let Some(process) = &mut self.process else { return };
                if process.links[node] == Some(peer) {
                    process.links[node] = None;
                    let down = fieldstone_volume::Event::NodeDown(NodeIndex(node as u16));
                    self.volume_event(down);
                }
            }
            Happening::Connect { node, process } => self.connect(node, process),
            Happening::Disk { node, life, id, forced } => self.disk_ends(node, life, id, forced),
            Happening::Timer { process, at } => {
                let due = |found: &&mut Process| found.number == process && found.timer == Some(at);
                if let Some(process) = self.process.as_mut().filter(|process| due(process)) {
                    process.timer = None;
                    self.pump_volume();
                }
            }
            Happening::Start { node } => {
                if self.nodes[node].wanted {
                    self.start_node(node);
                }
            }
        }
    }

    fn disk_ends(&mut self, node: usize, life: u64, id: DiskId, forced: Option<DiskError>) {
        let host = &mut self.nodes[node];
        if host.life != life {
            return;
        }
        let result: Option<Result<DiskOutput, DiskError>> =
            forced.map_or_else(|| host.disk.complete(id), |error| Some(Err(error)));
        if let Some(result) = result {
            self.node_event(node, fieldstone_node::Event::Disk { id, result });
        }
    }

    /// Goes on until `done`, for `ns_max` at most. Says whether it came to that.
    pub fn until(&mut self, ns_max: u64, done: impl Fn(&Self) -> bool) -> bool {
        let limit = self.now().plus(Nanos(ns_max));
        while !done(self) {
            if self.now() > limit {
                return false;
            }
            self.step();
        }
        true
    }

    /// Lets this time go by.
    pub fn pass(&mut self, ns: u64) {
        let end = self.now().plus(Nanos(ns));
        while self.now() < end {
            self.step();
        }
    }

    // Requests.

    fn submit(&mut self, op: Op, block: u64, blocks: u64) -> u64 {
        self.requests += 1;
        let id = self.requests;
        let mut data = Bytes::new();
        if op == Op::Write {
            self.writes += 1;
            self.written_before.clone_from(&self.written);
            let mut bytes = Vec::new();
            for at in block..block + blocks {
                self.written[at as usize] = self.writes;
                bytes.extend(content(at, self.writes));
            }
            data = bytes.into();
        }
        let request = Request {
            id: RequestId(id),
            op,
            offset_bytes: block * BLOCK_BYTES as u64,
            len_bytes: (blocks * BLOCK_BYTES as u64) as u32,
            flags: RequestFlags::default(),
            data,
            stamps: Stamps::default(),
        };
        let now = self.now();
        self.volume().submit(request, now);
        self.pump_volume();
        id
    }

    /// The last write was refused: its blocks hold what they held before.
    pub fn forget_write(&mut self) {
        self.written.clone_from(&self.written_before);
    }

    /// One request; its answer, if it comes within `ns_max`.
    pub fn request(
        &mut self,
        op: Op,
        block: u64,
        blocks: u64,
        ns_max: u64,
    ) -> Option<Result<Payload, BlockError>> {
        let id = self.submit(op, block, blocks);
        self.until(ns_max, |bench| bench.answers.contains_key(&id));
        self.answers.remove(&id)
    }

    /// Does `op` to these blocks, `step` at a time, several at once. Reads must show what was written.
    pub fn sweep(
        &mut self,
        op: Op,
        blocks: std::ops::Range<u64>,
        step: u64,
        ns_max: u64,
    ) -> Result<(), String> {
        let mut waiting: Vec<(u64, u64, Nanos)> = Vec::new();
        let mut next = blocks.start;
        while next < blocks.end || !waiting.is_empty() {
            while next < blocks.end && waiting.len() < DEPTH {
                let id = self.submit(op, next, step);
                waiting.push((id, next, self.now()));
                next += step;
            }
            let oldest = waiting.iter().map(|(_, _, since)| *since).min().unwrap_or_default();
            let left_ns = ns_max.saturating_sub(self.now().since(oldest).0);
            let answered = |bench: &Self| {
                waiting.iter().any(|(id, ..)| bench.answers.contains_key(id))
            };
            if !self.until(left_ns, answered) {
                return Err(format!("{op:?} unanswered for {} ms", ns_max / 1_000_000));
            }
            let mut left = Vec::new();
            for (id, block, since) in waiting {
                let Some(answer) = self.answers.remove(&id) else {
                    left.push((id, block, since));
                    continue;
                };
                self.slowest_ns = self.slowest_ns.max(self.now().since(since).0);
                let payload = answer.map_err(|error| format!("{op:?} of block {block}: {error}"))?;
                if op == Op::Read {
                    self.compare(block, step, payload)?;
                }
            }
            waiting = left;
        }
        Ok(())
    }

    fn compare(&self, block: u64, blocks: u64, payload: Payload) -> Result<(), String> {
        let Payload::Data(pieces) = payload else {
            return Err(format!("a read of block {block} gave no data"));
        };
        let found: Vec<u8> = pieces.iter().flat_map(bytes_of).collect();
        for (at, found) in (block..block + blocks).zip(found.chunks(BLOCK_BYTES)) {
            if found != content(at, self.written[at as usize]) {
                return Err(format!("block {at} does not read as it was written"));
            }
        }
        Ok(())
    }

    pub fn flush(&mut self, ns_max: u64) -> Result<(), String> {
        match self.request(Op::Flush, 0, 0, ns_max) {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(format!("flush: {error}")),
            None => Err(format!("a flush is unanswered for {} ms", ns_max / 1_000_000)),
        }
    }
}

fn bytes_of(piece: &Piece) -> Vec<u8> {
    match piece {
        Piece::Data(data) => data.to_vec(),
        Piece::Zeroes(len_bytes) => vec![0; *len_bytes as usize],
    }
}

/// What write number `write` puts in block `block`.
fn content(block: u64, write: u32) -> Vec<u8> {
    let word = if write == 0 { 0 } else { block << 32 | u64::from(write) };
    word.to_le_bytes().repeat(BLOCK_BYTES / 8)
}

/// All nodes are used, every shard is in its place, and nothing is being made anew.
pub fn is_whole(bench: &Bench) -> bool {
    let status = bench.status();
    let running =
        (0..usize::from(NODES)).all(|node| bench.nodes[node].down.is_none());
    running
        && status.phase == Phase::Serving
        && status.nodes.iter().all(|node| node.health == NodeHealth::Up)
        && status.segments_degraded == 0
        && status.shards_missing == 0
        && !status.rebuild.running
        && !status.scrub.running
        && status.journal_whole
}
