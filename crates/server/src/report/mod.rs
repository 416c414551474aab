//! The report of `status`: one structure for `--json`, for tables, for `top` and for metrics.
//!
//! The field names are an interface that scripts read. New fields may be added, but no field may be
//! renamed. Sizes are in bytes and times in nanoseconds, unless the name of the field says
//! otherwise.

mod collect;
mod io;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use collect::StoreFilter;

/// The report of a pool, from its server or from a command without a server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PoolReport {
    /// The id of the pool.
    pub pool: String,
    /// The folder of the pool.
    pub dir: String,
    /// The default code of its volumes.
    pub code: String,
    /// The process that serves the pool; absent when no process does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerReport>,
    /// Bytes of the slots that the volumes need when all are full; absent if no node answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_bytes: Option<u64>,
    /// Bytes of all slots; absent if no node answers. If more are provisioned, the pool can run
    /// full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisionable_bytes: Option<u64>,
    /// The nodes of the pool.
    pub nodes: Vec<NodeReport>,
    /// The volumes. A running server reports the volumes that it serves or is told to serve.
    pub volumes: Vec<VolumeReport>,
    /// Names of the pool's volumes that the server does not serve, and so does not report. A volume
    /// whose name cannot be read has its id here. Absent if no node answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_served: Option<Vec<String>>,
}

impl PoolReport {
    /// Adds the volumes that another server of the pool reports on.
    pub fn add_volumes_of(&mut self, other: Self) {
        for volume in other.volumes {
            // Where it is not open, there is no id.
            let known = self.volumes.iter().position(|known| known.name == volume.name);
            match known {
                Some(at) if self.volumes[at].id.is_empty() => self.volumes[at] = volume,
                Some(_) => {}
                None => self.volumes.push(volume),
            }
        }
        let volumes = &self.volumes;
        if let Some(names) = &mut self.not_served {
            names.retain(|name| volumes.iter().all(|volume| volume.name != *name));
        }
    }
}

/// The report of a serving process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServerReport {
    /// The process id.
    pub pid: u32,
    /// Time since the start.
    pub uptime_ns: u64,
    /// Its NBD addresses.
    pub listen: Vec<String>,
    /// NBD connections open now.
    pub connections: u64,
    /// NBD connections since start.
    pub connections_total: u64,
    /// CPU time that its cores have used.
    pub cpu_ns: u64,
    /// Its cores.
    pub cores: Vec<CoreReport>,
    /// The memory for parity that its nodes make.
    #[serde(default)]
    pub parity_memory: ParityMemoryReport,
}

/// The memory for parity that the nodes of a process make, all nodes together. A node in a process
/// of its own has memory of its own, which is not in this report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParityMemoryReport {
    /// Size.
    pub total_bytes: u64,
    /// Used by what parity nodes add up; at most half.
    pub sums_bytes: u64,
    /// Used by what data nodes send to them; at most half.
    pub products_bytes: u64,
    /// Sums and products since the start for which there was none.
    pub denied: u64,
}

/// One core of a server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CoreReport {
    /// Its number, from 0.
    #[serde(default)]
    pub core: u64,
    /// CPU time in user mode.
    pub user_ns: u64,
    /// CPU time in the kernel.
    pub system_ns: u64,
    /// System calls on its ring.
    pub enters: u64,
    /// Operations handed to the kernel.
    pub operations: u64,
    /// Turns of its loop since the start. A turn is the work between two waits for events.
    #[serde(default)]
    pub turns: u64,
    /// Time that it spent in turns.
    #[serde(default)]
    pub turns_busy_ns: u64,
    /// The longest turn since the start. The core did nothing else meanwhile.
    #[serde(default)]
    pub turn_max_ns: u64,
    /// The longest turn of the last 10 to 20 seconds.
    #[serde(default)]
    pub turn_max_recent_ns: u64,
}

/// A node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeReport {
    /// The number of the node in the pool.
    pub node: u16,
    /// "up" or "down".
    pub state: String,
    /// The folder or address of the node.
    pub place: String,
    /// The reason why it is down.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
    /// The incarnation of the node, 16 hexadecimal digits. An empty node in its place has another
    /// incarnation.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub incarnation: String,
    /// Bytes of all slots.
    pub total_bytes: u64,
    /// Bytes of the free slots.
    pub free_bytes: u64,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// The client of the pool that has the volume open on its own machine, and so reports on it.
    /// Absent for a volume that the reporting process has open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Its code.
    pub code: String,
    /// "opening", "serving", "closing", "closed" or "failed".
    pub phase: String,
    /// The reason for the failure, or for the last failed opening.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
    /// The reason why the last growth was refused, if it was.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub grow_refused: String,
    /// The reason why the opening, the closing or users' requests wait.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub waits_for: String,
    /// "healthy", "degraded" (shards or copies of the journal are missing), "lost" (too many shards
    /// are missing), "unknown" (the volume is not open), or "none" (a store that needs no pool).
    pub protection: String,
    /// The epoch of the volume's writer.
    pub epoch: u64,
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// Bytes that hold data.
    pub live_bytes: u64,
    /// Bytes that can hold data before the pool is full.
    pub capacity_bytes: u64,
    /// Memory of the extent map in bytes.
    pub map_bytes: u64,
    /// Segments whose shards are on nodes: of data and of checkpoints.
    pub segments: u64,
    /// Of those, segments with a missing shard.
    pub segments_degraded: u64,
    /// Of the segments, those with too few shards to be read.
    pub segments_lost: u64,
    /// Of the segments, dead ones that wait for the next checkpoint.
    pub segments_pending_free: u64,
    /// Shards of those segments that are missing.
    pub shards_missing: u64,
    /// Bytes of the log that are only in the journal.
    pub journal_used_bytes: u64,
    /// Size of the journal ring in bytes.
    pub journal_ring_bytes: u64,
    /// The journal is on as many nodes as the code asks for, and is not being moved.
    pub journal_whole: bool,
    /// The nodes that hold the journal.
    pub journal_nodes: Vec<u16>,
    /// Bytes that users wrote.
    pub user_written_bytes: u64,
    /// Bytes that garbage collection moved.
    pub moved_bytes: u64,
    /// Bytes sent to nodes.
    pub sent_bytes: u64,
    /// How the records of the journal reach its nodes: "flat", "ring", "tree" or "primary".
    #[serde(default)]
    pub replicate: String,
    /// Records of the journal that nodes passed on to each other.
    #[serde(default)]
    pub appends_relayed: u64,
    /// Records that the volume sent to a node itself, because no other node had reached it.
    #[serde(default)]
    pub appends_sent_again: u64,
    /// Writes of copies of shards that nodes passed on to each other.
    #[serde(default)]
    pub copies_relayed: u64,
    /// Copies that the volume sent to a node itself, because no other node had reached it.
    #[serde(default)]
    pub copies_sent_again: u64,
    /// Parity shards, or pieces of them, that data nodes passed on to the parity nodes.
    #[serde(default)]
    pub parities_relayed: u64,
    /// Those that the volume sent to a node itself, because the data node had not reached it.
    #[serde(default)]
    pub parities_sent_again: u64,
    /// Who makes the parity of new segments: "client" or "stream".
    #[serde(default)]
    pub encode: String,
    /// Parity shards, or pieces of them, that nodes made.
    #[serde(default)]
    pub parities_streamed: u64,
    /// Those that the volume made itself because a node did not get all contributions.
    #[serde(default)]
    pub parities_coded_again: u64,
    /// Reads that needed decoding.
    pub degraded_reads: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Shards that reads and scrubs have found damaged since the volume was opened.
    #[serde(default)]
    pub shards_damaged: u64,
    /// Longest time for which garbage collection delayed a write.
    pub gc_pause_max_ns: u64,
    /// The work of the volume's accelerator engine.
    #[serde(default)]
    pub engine: EngineReport,
    /// The nodes as the volume sees them.
    pub nodes: Vec<VolumeNodeReport>,
    /// The running rebuild, or the last one.
    pub rebuild: ProgressReport,
    /// The running scrub, or the last one.
    pub scrub: ProgressReport,
    /// Requests and their latencies; absent if the device is not open or no server serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoReport>,
}

impl VolumeReport {
    /// True for a volume of a pool, false for a store that needs no pool, such as a file.
    #[must_use]
    pub fn is_of_pool(&self) -> bool {
        self.protection != "none"
    }
}

impl VolumeReport {
    /// True if the volume serves, no shard is missing, no rebuild runs, and all nodes are up.
    pub fn is_whole(&self) -> bool {
        self.phase == "serving"
            && self.protection == "healthy"
            && !self.rebuild.running
            && self.nodes.iter().all(|node| node.state == "up")
    }
}

/// The coding, placement and checksum jobs of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineReport {
    /// The name of the device, or "software".
    pub name: String,
    /// The jobs by kind: "code", "place" and "checksum".
    pub kinds: Vec<EngineKindReport>,
}

/// The jobs of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineKindReport {
    /// "code", "place" or "checksum".
    pub kind: String,
    /// Number of jobs.
    pub jobs: u64,
    /// Bytes that the jobs read.
    pub bytes: u64,
    /// Jobs that the device got.
    pub device_jobs: u64,
    /// Jobs of the device that failed, and that software repeated.
    pub device_failures: u64,
    /// Of these, jobs whose result was wrong.
    #[serde(default)]
    pub device_wrong: u64,
    /// Of these, jobs that the device had for too long.
    #[serde(default)]
    pub device_late: u64,
    /// Jobs for which the device had no room.
    pub device_full: u64,
}

/// A node as a volume sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeNodeReport {
    /// The number of the node in the pool.
    pub node: u16,
    /// "up", "joining" or "down".
    pub state: String,
    /// The incarnation of the node that the volume joined last, as in [`NodeReport`].
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub incarnation: String,
    /// The reason why it is down.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
    /// Shards of the volume on it.
    pub shards: u32,
}

/// The progress of a rebuild or scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressReport {
    /// True while it runs.
    pub running: bool,
    /// Shards to process, as far as known.
    pub shards_total: u64,
    /// Shards processed.
    pub shards_done: u64,
    /// Shards that could not be processed.
    pub shards_failed: u64,
    /// Damaged shards that the scrub found, or that it found still missing when it began.
    pub damaged: u64,
    /// Bytes read from nodes.
    pub read_bytes: u64,
    /// Bytes that a rebuild with a Reed-Solomon code of as many data shards would have read.
    #[serde(default)]
    pub reed_solomon_bytes: u64,
    /// Bytes written to nodes.
    pub written_bytes: u64,
    /// Time since its start, or its duration.
    pub elapsed_ns: u64,
}

/// The requests of a served device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoReport {
    /// Requests without an answer.
    #[serde(default)]
    pub in_flight: u64,
    /// Time since the arrival of the oldest request without an answer; 0 if there is none.
    #[serde(default)]
    pub oldest_ns: u64,
    /// Requests completed, by kind.
    pub requests: Vec<OpReport>,
    /// Latencies of the stages, one row for each. For each kind of request, the total is the last
    /// row.
    pub stages: Vec<StageReport>,
    /// Reads answered from the cache.
    pub cache_hits: u64,
    /// Reads not answered from the cache.
    pub cache_misses: u64,
    /// Bytes that the cache holds.
    pub cache_bytes: u64,
    /// Requests that the scheduler merged into other requests.
    pub merged: u64,
    /// The layers, in the order from the clients to the store.
    #[serde(default)]
    pub layers: Vec<LayerReport>,
    /// The counters of the store. A volume has none here: they are fields of its report.
    #[serde(default)]
    pub store: Vec<CounterReport>,
}

/// A layer of a device: see `docs/layers.md`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerReport {
    /// Its name.
    pub name: String,
    /// The options in effect, as on the command line.
    pub options: BTreeMap<String, String>,
    /// The counters of the layer.
    pub counters: Vec<CounterReport>,
}

/// A counter of a layer or a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterReport {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: u64,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpReport {
    /// "read", "write", "flush", "trim", "write-zeroes" or "extents".
    pub op: String,
    /// Number of requests.
    pub count: u64,
    /// Number of failed requests.
    pub errors: u64,
    /// Bytes that the requests moved.
    pub bytes: u64,
}

/// The latency of one stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReport {
    /// The kind of request, as in [`OpReport`].
    pub op: String,
    /// The stage's name, or "total".
    pub stage: String,
    /// Number of requests measured.
    pub count: u64,
    /// Mean latency.
    #[serde(default)]
    pub mean_ns: u64,
    /// Median latency.
    pub p50_ns: u64,
    /// 99th percentile of the latency.
    pub p99_ns: u64,
    /// 99.9th percentile of the latency.
    pub p999_ns: u64,
}
