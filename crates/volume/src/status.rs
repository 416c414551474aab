//! The status that a volume reports: state, space, protection, work in progress.

use fieldstone_proto::{Epoch, NodeIndex, VolumeId};

use crate::interface::Provisioning;

/// The phases of a volume's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumePhase {
    /// Fencing nodes, loading the checkpoint, replaying the log.
    Opening,
    /// Serving requests.
    Serving,
    /// Writing the last checkpoint.
    Closing,
    /// An inspection ([`crate::OpenMode::Inspect`]) is complete: the status says what it found.
    Inspected,
    /// Closed: everything is stable, and the volume writes to no node any more.
    Closed,
    /// The volume cannot go on, for this reason. Requests fail.
    Failed(String),
}

/// The state of a node for this volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    /// The node takes part in everything, and holds the volume's root.
    Up,
    /// The node is connected and joins. An opening would not count it yet.
    Joining,
    /// Not connected or failed.
    Down,
}

/// A node as the volume sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeIndex,
    /// Its health.
    pub health: NodeHealth,
    /// Slots of the node.
    pub slots_total: u32,
    /// Slots that the volume has reserved on the node; 0 for none, or while they are not known.
    pub slots_reserved: u32,
    /// Slots that the volume may still take on the node.
    pub slots_free: u32,
    /// Size of a slot.
    pub slot_bytes: u32,
    /// Shards of this volume on the node.
    pub shards: u32,
    /// Why the node is down, if it is.
    pub reason: String,
    /// An opening that did not end has fenced the node. The next opening uses the node again.
    pub fenced: bool,
}

/// A rebuild or scrub under way, or the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The rebuild or scrub runs.
    pub running: bool,
    /// Shards to do, as far as known now.
    pub shards_total: u64,
    /// Shards done.
    pub shards_done: u64,
    /// Shards that could not be done (no room, or too many shards missing).
    pub shards_failed: u64,
    /// Bytes read from nodes for this work.
    pub read_bytes: u64,
    /// Bytes that Reed-Solomon with as many data shards would have read (rebuild).
    pub reed_solomon_bytes: u64,
    /// Bytes written to nodes for this work.
    pub written_bytes: u64,
    /// Shards found damaged (scrub).
    pub damaged: u64,
    /// Nanoseconds of the world's clock since it began, or its duration if it has ended.
    pub elapsed_ns: u64,
}

/// A volume's state in full. Cheap enough to take once a second, but not for every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Its id.
    pub volume: VolumeId,
    /// The profile, as on the command line.
    pub profile: String,
    /// The phase of the volume's life.
    pub phase: VolumePhase,
    /// Why an opening, a closing or users' requests wait, as text for people; empty if they make
    /// progress.
    pub waits_for: String,
    /// Why the volume last refused to grow the device.
    pub grow_refused: Option<String>,
    /// Slots that the volume has reserved on each node.
    pub slots_reserved: u32,
    /// How much of the pool the volume keeps for itself.
    pub provisioning: Provisioning,
    /// The writer's epoch.
    pub epoch: Epoch,
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
    /// Shards missing.
    pub shards_missing: u64,
    /// Segments with fewer shards than reading needs.
    pub segments_lost: u64,
    /// Dead segments that wait for the next checkpoint.
    pub segments_pending_free: u64,
    /// Bytes of the log that only the journal holds.
    pub journal_used_bytes: u64,
    /// Size of the journal ring.
    pub journal_ring_bytes: u64,
    /// The journal is on as many nodes as the profile asks for, and it is not moving. Otherwise the
    /// volume may not survive the loss of that many nodes.
    pub journal_whole: bool,
    /// The nodes that hold the journal.
    pub journal_nodes: Vec<NodeIndex>,
    /// Nodes.
    pub nodes: Vec<NodeStatus>,
    /// Bytes that users wrote.
    pub user_written_bytes: u64,
    /// Bytes that garbage collection moved.
    pub moved_bytes: u64,
    /// Bytes sent to nodes: journals and shards.
    pub sent_bytes: u64,
    /// Reads that needed decoding.
    pub degraded_reads: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// The longest time that a write waited for garbage collection.
    pub gc_pause_max_ns: u64,
    /// Rebuild.
    pub rebuild: Progress,
    /// Scrub.
    pub scrub: Progress,
}
