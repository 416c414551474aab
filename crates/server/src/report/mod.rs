//! What `status` tells: one structure for `--json`, for tables, for `top` and for metrics.
//!
//! The field names are an interface: scripts read them. Fields are added, never renamed. All sizes
//! are in bytes and all times in nanoseconds unless a name says otherwise.

mod collect;
mod io;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use collect::Stores;

/// A pool as its server, or an offline look at it, sees it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PoolReport {
    /// The pool's id.
    pub pool: String,
    /// Its folder.
    pub dir: String,
    /// The default code of its volumes.
    pub code: String,
    /// The process that serves the pool; absent when no process does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerReport>,
    /// Bytes of slots that its volumes would take when all are full; absent when no node answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_bytes: Option<u64>,
    /// Bytes of slots that there are: with more provisioned, the pool can run full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisionable_bytes: Option<u64>,
    /// Its nodes.
    pub nodes: Vec<NodeReport>,
    /// Its volumes; of a running server, those that it serves.
    pub volumes: Vec<VolumeReport>,
}

/// A serving process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServerReport {
    /// Its process number.
    pub pid: u32,
    /// How long it has run.
    pub uptime_ns: u64,
    /// Where it listens for NBD.
    pub listen: Vec<String>,
    /// NBD connections open now.
    pub connections: u64,
    /// NBD connections since start.
    pub connections_total: u64,
    /// CPU time that its cores have used.
    pub cpu_ns: u64,
    /// Its cores.
    pub cores: Vec<CoreReport>,
}

/// One core of a server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CoreReport {
    /// CPU time in user mode.
    pub user_ns: u64,
    /// CPU time in the kernel.
    pub system_ns: u64,
    /// System calls on its ring.
    pub enters: u64,
    /// Operations handed to the kernel.
    pub operations: u64,
}

/// A node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its place in the pool.
    pub node: u16,
    /// "up", "joining" or "down".
    pub state: String,
    /// Where it is: a folder or an address.
    pub place: String,
    /// Why it is down.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
    /// Tells the node from an empty one in its place: 16 hexadecimal digits.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub incarnation: String,
    /// Bytes of its slots.
    pub total_bytes: u64,
    /// Bytes of slots that are free.
    pub free_bytes: u64,
}

/// A volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Its code.
    pub code: String,
    /// "opening", "serving", "closing", "closed" or "failed".
    pub phase: String,
    /// Why it failed.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
    /// What its opening, its closing or users' requests wait for.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub waits_for: String,
    /// "healthy", "degraded" (shards are missing) or "lost" (too many are).
    pub protection: String,
    /// Its writer's epoch.
    pub epoch: u64,
    /// Size of the device.
    pub size_bytes: u64,
    /// Bytes that hold data.
    pub live_bytes: u64,
    /// Bytes that could hold data before the pool is full.
    pub capacity_bytes: u64,
    /// Memory of the extent map.
    pub map_bytes: u64,
    /// Segments that hold data.
    pub segments: u64,
    /// Of those, segments with a missing shard.
    pub segments_degraded: u64,
    /// Segments with fewer shards than reading needs.
    pub segments_lost: u64,
    /// Dead segments that wait for the next checkpoint.
    pub segments_pending_free: u64,
    /// Shards missing.
    pub shards_missing: u64,
    /// Bytes of the log that only the journal holds.
    pub journal_used_bytes: u64,
    /// Size of the journal ring.
    pub journal_ring_bytes: u64,
    /// The journal is on as many nodes as the profile asks for, and is not being moved.
    pub journal_whole: bool,
    /// The nodes that hold the journal.
    pub journal_nodes: Vec<u16>,
    /// Bytes that users wrote.
    pub user_written_bytes: u64,
    /// Bytes that garbage collection moved.
    pub moved_bytes: u64,
    /// Bytes sent to nodes.
    pub sent_bytes: u64,
    /// Reads that needed decoding.
    pub degraded_reads: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Longest time that garbage collection held a write up.
    pub gc_pause_max_ns: u64,
    /// What places, codes and sums for it.
    #[serde(default)]
    pub engine: EngineReport,
    /// How each node stands with this volume.
    pub nodes: Vec<VolumeNodeReport>,
    /// The rebuild under way, or the last one.
    pub rebuild: ProgressReport,
    /// The scrub under way, or the last one.
    pub scrub: ProgressReport,
    /// Requests and where their time goes; absent when the volume is not being served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoReport>,
}

impl VolumeReport {
    /// True when every shard is there, on nodes that are all up.
    pub fn is_whole(&self) -> bool {
        self.phase == "serving"
            && self.protection == "healthy"
            && !self.rebuild.running
            && self.nodes.iter().all(|node| node.state == "up")
    }
}

/// The heavy steps of a volume, and who did them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EngineReport {
    /// The device, or "software".
    pub name: String,
    /// By kind: "code", "place" and "checksum".
    pub kinds: Vec<EngineKindReport>,
}

/// Heavy steps of one kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EngineKindReport {
    /// "code", "place" or "checksum".
    pub kind: String,
    /// Jobs.
    pub jobs: u64,
    /// Bytes that they read.
    pub bytes: u64,
    /// Jobs given to the device.
    pub device_jobs: u64,
    /// Of those, jobs that software had to repeat.
    pub device_failures: u64,
    /// Jobs that the device would do but had no room for.
    pub device_full: u64,
}

/// A node as a volume sees it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VolumeNodeReport {
    /// Its place in the pool.
    pub node: u16,
    /// "up", "joining" or "down".
    pub state: String,
    /// Why it is down.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
    /// Shards of the volume on it.
    pub shards: u32,
}

/// A rebuild or scrub.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProgressReport {
    /// It runs now.
    pub running: bool,
    /// Shards to do, as known at present.
    pub shards_total: u64,
    /// Shards done.
    pub shards_done: u64,
    /// Shards that could not be done.
    pub shards_failed: u64,
    /// Shards found damaged.
    pub damaged: u64,
    /// Bytes read from nodes.
    pub read_bytes: u64,
    /// Bytes that Reed-Solomon with as many data shards would have read for a rebuild.
    #[serde(default)]
    pub reed_solomon_bytes: u64,
    /// Bytes written to nodes.
    pub written_bytes: u64,
    /// Time since it began, or that it took.
    pub elapsed_ns: u64,
}

/// What a served device has done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct IoReport {
    /// Requests that are not answered yet.
    #[serde(default)]
    pub in_flight: u64,
    /// For how long the oldest of them has been waiting.
    #[serde(default)]
    pub oldest_ns: u64,
    /// Requests completed, by kind.
    pub requests: Vec<OpReport>,
    /// Where the time goes: one row per stage, the last row is the whole.
    pub stages: Vec<StageReport>,
    /// Reads answered from the cache.
    pub cache_hits: u64,
    /// Reads that were not.
    pub cache_misses: u64,
    /// Bytes that the cache holds.
    pub cache_bytes: u64,
    /// Requests that the scheduler merged into others.
    pub merged: u64,
    /// The layers, from the one next to the clients to the one next to the volume.
    #[serde(default)]
    pub layers: Vec<LayerReport>,
}

/// A layer of a device: see `docs/layers.md`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LayerReport {
    /// Its name.
    pub name: String,
    /// The options in force, as on the command line.
    pub options: BTreeMap<String, String>,
    /// What it has counted.
    pub counters: Vec<CounterReport>,
}

/// A number that a layer counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CounterReport {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: u64,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OpReport {
    /// "read", "write", "flush", "trim", "write-zeroes" or "extents".
    pub op: String,
    /// How many.
    pub count: u64,
    /// How many failed.
    pub errors: u64,
    /// Bytes that they moved.
    pub bytes: u64,
}

/// The latency of one stage.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StageReport {
    /// "read" or "write".
    pub op: String,
    /// The stage's name, or "total".
    pub stage: String,
    /// Requests measured.
    pub count: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
}
