//! What a volume tells about itself: state, space, protection, work in progress.

use fieldstone_accel::Counters;
use fieldstone_proto::{Epoch, NodeIndex, VolumeId};

use crate::seam::Provisioning;

/// Where a volume is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Fencing nodes, loading the checkpoint, replaying the log.
    Opening,
    /// Serving requests.
    Serving,
    /// Writing the last checkpoint.
    Closing,
    /// Looked at, as [`crate::Opening::Look`] wants it: what the status says is what was found.
    Looked,
    /// Closed: everything is stable, no node is written to any more.
    Closed,
    /// It cannot go on, for this reason. Requests fail.
    Failed(String),
}

/// How a node stands with this volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    /// It takes part in everything, and holds the volume's root.
    Up,
    /// Connected, being brought in: an opening would not count it yet.
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
    /// Slots there are.
    pub slots_total: u32,
    /// Slots that the volume has reserved there; 0 for none, or while they are not known.
    pub slots_reserved: u32,
    /// Slots that the volume may still take there.
    pub slots_free: u32,
    /// Size of a slot.
    pub slot_bytes: u32,
    /// Shards of this volume on it.
    pub shards: u32,
    /// Why it is down, if it is.
    pub reason: String,
}

/// A rebuild or scrub under way, or the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// It runs now.
    pub running: bool,
    /// Shards to do, as known at present.
    pub shards_total: u64,
    /// Shards done.
    pub shards_done: u64,
    /// Shards that could not be done (no room, or too many missing).
    pub shards_failed: u64,
    /// Bytes read from nodes for it.
    pub read_bytes: u64,
    /// Bytes that Reed-Solomon with as many data shards would have read (rebuild).
    pub reed_solomon_bytes: u64,
    /// Bytes written to nodes for it.
    pub written_bytes: u64,
    /// Shards found damaged (scrub).
    pub damaged: u64,
    /// Nanoseconds of the world's clock since it began, or that it took.
    pub elapsed_ns: u64,
}

/// A volume's state in full. Cheap enough to take once a second, not once a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Its id.
    pub volume: VolumeId,
    /// The profile, as on the command line.
    pub profile: String,
    /// Where it is in its life.
    pub phase: Phase,
    /// What an opening, a closing or users' requests wait for, for people; empty if they get on.
    pub waits_for: String,
    /// Why the device was last not made larger.
    pub grow_refused: Option<String>,
    /// Slots that it has reserved on each node.
    pub slots_reserved: u32,
    /// How much of the pool it keeps for itself.
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
    /// As many nodes as the profile asks for hold the journal, and it is not being moved. Until
    /// then the loss of fewer nodes than that is too much.
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
    /// Longest time that garbage collection held a write up.
    pub gc_pause_max_ns: u64,
    /// What places, codes and sums for it.
    pub engine: String,
    /// What that has done.
    pub engine_counters: Counters,
    /// Rebuild.
    pub rebuild: Progress,
    /// Scrub.
    pub scrub: Progress,
}
