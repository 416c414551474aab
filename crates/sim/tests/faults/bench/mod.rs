//! The bench: one real volume, six real nodes, simulated disks, and a virtual clock.
//!
//! Only the latencies of the disks are random, and their seed is fixed. A test injects a fault by
//! changing a node's files ([`Bench::change`]), by answers that its disk gives instead of carrying
//! operations out ([`InjectedError`]), or by answers that replace the node's own ([`Lie`]).
//!
//! The bench hosts nodes as the server does: a node that cannot start is down for its host's
//! reason, and the host tries again every two seconds. The bench always checks that the volume
//! blames no node except the victim.

mod inject;
mod nodes;
mod requests;
mod volume;

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_block::{
    Backend, BlockError, Completion, Nanos, Op, Payload, Piece, QueueId, ReadDestination, Request,
    RequestFlags, RequestId, Stamps,
};
use fieldstone_codes::Profile;
use fieldstone_node::{DiskError, DiskId, DiskOutput, FileId, Node, NodeConfig, PeerId};
use fieldstone_proto::{MasterKey, NodeIndex, PoolId, Reply, RequestBody};
use fieldstone_sim::disk::{DiskKind, NodeFileKind, SimDisk};
use fieldstone_sim::random::RandomStream;
use fieldstone_sim::schedule::Schedule;
use fieldstone_volume::{
    Geometry, NodeHealth, OpenMode, Provisioning, Status, Volume, VolumeConfig, VolumePhase,
};

pub use inject::{InjectedError, Lie, Ops};

/// Nodes of the pool.
pub const NODES: u16 = 6;
/// Nodes whose loss the code survives.
pub const M: u16 = 2;
/// Blocks of the volume.
pub const BLOCKS: u64 = 256;
/// Slots of each node: three times the number that the volume takes, and some for its work
/// meanwhile.
const SLOTS: u32 = 96;
const BLOCK_BYTES: usize = 4096;
const SHARD_BYTES: u32 = 32 << 10;
/// After this silence a volume counts a node as down.
pub const NODE_TIMEOUT_MS: u64 = 1_000;
/// The delay of a message.
const NETWORK_NS: u64 = 50_000;
/// How often a host tries to start a node that could not start. Below: how often a world tries to
/// connect.
const HOST_RETRY_NS: u64 = 2_000_000_000;
const CONNECT_RETRY_NS: u64 = 20_000_000;
/// The step of time when there is no event.
const IDLE_NS: u64 = 10_000_000;
/// Actions at one moment after which a process counts as spinning.
const ACTIONS_MAX: u32 = 100_000;
/// Requests in flight when the bench reads or writes everything.
const DEPTH: usize = 8;

/// A node: its place, its disk, its process if it runs, and its faults.
pub struct Host {
    process: Option<Node>,
    /// Whether it should run.
    wanted: bool,
    pub disk: SimDisk,
    life: u64,
    incarnation: u64,
    /// The host's reason why the node is down.
    pub down: Option<String>,
    pub delay_ns: u64,
    pub silent: bool,
    pub injected_errors: Vec<InjectedError>,
    pub lie: Option<Lie>,
    /// Its process dies at requests that match, and is started again.
    pub dies_at: Option<fn(&RequestBody) -> bool>,
    /// The identity that the node reports.
    pub pool: PoolId,
    pub index: NodeIndex,
    pub key: MasterKey,
    /// Its files at an earlier time.
    pub old: BTreeMap<FileId, Vec<u8>>,
}

struct Process {
    volume: Volume,
    number: u64,
    timer: Option<Nanos>,
    links: [Option<PeerId>; NODES as usize],
}

enum Happening {
    ToNode {
        node: usize,
        peer: PeerId,
        request: fieldstone_proto::Request,
    },
    ToVolume {
        node: usize,
        peer: PeerId,
        reply: Reply,
    },
    /// A connection was lost; the node's side learns of it.
    PeerLost {
        node: usize,
        peer: PeerId,
    },
    /// The same for the volume's side.
    NodeDown {
        node: usize,
        peer: PeerId,
    },
    Connect {
        node: usize,
        process: u64,
    },
    Disk {
        node: usize,
        life: u64,
        id: DiskId,
        forced: Option<DiskError>,
    },
    Timer {
        process: u64,
        at: Nanos,
    },
    Start {
        node: usize,
    },
    Nothing,
}

pub struct Bench {
    schedule: Schedule<Happening>,
    pub nodes: Vec<Host>,
    process: Option<Process>,
    processes: u64,
    /// The volume's process is stopped until then.
    stopped_until: Nanos,
    peers: u64,
    requests: u64,
    answers: BTreeMap<u64, Result<Payload, BlockError>>,
    /// The number of the last write to each block; 0 for none.
    written: Vec<u32>,
    written_before: Vec<u32>,
    writes: u32,
    /// The node with the fault.
    pub victim: Option<usize>,
    /// The volume blamed another node than the victim.
    pub accused: Option<String>,
    /// The reasons that the volume gave for the victim.
    pub told: Vec<String>,
    /// The longest time of a request.
    pub slowest_ns: u64,
    created: bool,
}

fn key() -> MasterKey {
    MasterKey([0x5e; 16])
}

impl Bench {
    /// Six running nodes, and no volume.
    pub fn new() -> Self {
        let mut bench = Self {
            schedule: Schedule::default(),
            nodes: Vec::new(),
            process: None,
            processes: 0,
            stopped_until: Nanos(0),
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
        let kind =
            DiskKind { read_ns: 80_000, write_ns: 30_000, sync_ns: 500_000, sector_bytes: 512 };
        for index in 0..NODES {
            bench.nodes.push(Host {
                process: None,
                wanted: false,
                disk: SimDisk::new(RandomStream::new(1, "disk", u64::from(index)), kind, u64::MAX),
                life: 0,
                incarnation: 100 + u64::from(index),
                down: None,
                delay_ns: 0,
                silent: false,
                injected_errors: Vec::new(),
                lie: None,
                dies_at: None,
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

    fn step(&mut self) {
        let Some(happening) = self.schedule.next_event() else {
            // No event is left. Time goes on all the same.
            return self.schedule.after(IDLE_NS, Happening::Nothing);
        };
        if let Some(delay_ns) = self.held_back_ns(&happening) {
            return self.schedule.after(delay_ns, happening);
        }
        match happening {
            Happening::Nothing => {}
            Happening::ToNode { node, peer, request } => {
                self.request_arrives(node, peer, request);
            }
            Happening::ToVolume { node, peer, reply } => {
                let links = self.process.as_ref().map(|process| process.links);
                if links.is_some_and(|links| links[node] == Some(peer)) {
                    let node = NodeIndex(node as u16);
                    self.volume_event(fieldstone_volume::VolumeEvent::Reply { node, reply });
                }
            }
            Happening::PeerLost { node, peer } => {
                self.node_event(node, fieldstone_node::NodeEvent::PeerLost { peer });
            }
            Happening::NodeDown { node, peer } => {
                let Some(process) = &mut self.process else { return };
                if process.links[node] == Some(peer) {
                    process.links[node] = None;
                    let down = fieldstone_volume::VolumeEvent::NodeDown(NodeIndex(node as u16));
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

    /// How long an event waits because the process that it concerns is stopped.
    fn held_back_ns(&self, happening: &Happening) -> Option<u64> {
        let left_ns = self.stopped_until.since(self.now()).0;
        let behind_timers_ns = match happening {
            Happening::Timer { .. } => 0,
            Happening::ToVolume { .. } | Happening::NodeDown { .. } | Happening::Connect { .. } => {
                1
            }
            _ => return None,
        };
        (left_ns > 0).then_some(left_ns + behind_timers_ns)
    }

    fn disk_ends(&mut self, node: usize, life: u64, id: DiskId, forced: Option<DiskError>) {
        let host = &mut self.nodes[node];
        if host.life != life {
            return;
        }
        let result: Option<Result<DiskOutput, DiskError>> =
            forced.map_or_else(|| host.disk.complete(id), |error| Some(Err(error)));
        if let Some(result) = result {
            self.node_event(node, fieldstone_node::NodeEvent::Disk { id, result });
        }
    }

    /// Goes on until `done`, for at most `ns_max`. Returns whether `done` became true.
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
}

/// The volume uses all nodes, every shard is in its place, and no rebuild runs.
pub fn is_whole(bench: &Bench) -> bool {
    let status = bench.status();
    let running = (0..usize::from(NODES)).all(|node| bench.nodes[node].down.is_none());
    running
        && status.phase == VolumePhase::Serving
        && status.nodes.iter().all(|node| node.health == NodeHealth::Up)
        && status.segments_degraded == 0
        && status.shards_missing == 0
        && !status.rebuild.running
        && !status.scrub.running
        && status.journal_whole
}
