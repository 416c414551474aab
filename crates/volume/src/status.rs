//! The status that a volume reports: state, space, protection, work in progress.

use fieldstone_proto::{Encode, Epoch, KeyGeneration, NodeIndex, Strategy, VolumeId};

use crate::failure::VolumeFailure;
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
    /// Closed: everything that the volume acknowledged is stable.
    Closed,
    /// The volume cannot go on, for this reason. Requests fail.
    Failed(VolumeFailure),
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
    /// The incarnation of the node when it last joined; 0 before. An empty node in its place has
    /// another incarnation.
    pub incarnation: u64,
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
    /// Damaged shards that the scrub found, or that it found still missing when it began. A rebuild
    /// makes them again before the scrub ends, if there is room.
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
    /// The oldest generation of the pool's secret that the volume's requests need: of those under
    /// way, and of the next one.
    pub key_generation: KeyGeneration,
    /// Size of the device.
    pub size_bytes: u64,
    /// Bytes that hold data.
    pub live_bytes: u64,
    /// Bytes that could hold data before the pool is full.
    pub capacity_bytes: u64,
    /// Memory of the extent map.
    pub map_bytes: u64,
    /// Segments whose shards are on nodes: of data and of checkpoints.
    pub segments: u64,
    /// Of those, segments with a missing shard.
    pub segments_degraded: u64,
    /// Shards of those segments that are missing.
    pub shards_missing: u64,
    /// Of the segments, those with fewer shards than reading needs.
    pub segments_lost: u64,
    /// Of the segments, dead ones that wait for the next checkpoint.
    pub segments_pending_free: u64,
    /// Complete segments whose shards are still being written. The journal holds their blocks.
    pub segments_unsealed: u64,
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
    /// How the records of the journal reach its nodes.
    pub replicate: Strategy,
    /// Records of the journal that nodes passed on to each other.
    pub appends_relayed: u64,
    /// Records that the volume sent to a node itself, because no other node had reached it.
    pub appends_sent_again: u64,
    /// Writes of copies that nodes passed on to each other.
    pub copies_relayed: u64,
    /// Copies that the volume sent to a node itself, because no other node had reached it.
    pub copies_sent_again: u64,
    /// Parity shards, or pieces of them, that data nodes passed on to the parity nodes.
    pub parities_relayed: u64,
    /// Those that the volume sent to a node itself, because the data node had not reached it.
    pub parities_sent_again: u64,
    /// Who makes the parity of new segments.
    pub encode: Encode,
    /// Parity shards, or pieces of them, that nodes made.
    pub parities_streamed: u64,
    /// Those that the volume made itself because a node did not get all contributions.
    pub parities_coded_again: u64,
    /// Reads that needed decoding.
    pub degraded_reads: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Shards that reads and scrubs have found damaged since the volume was opened.
    pub shards_damaged: u64,
    /// The longest time that a write waited for garbage collection.
    pub gc_pause_max_ns: u64,
    /// Rebuild.
    pub rebuild: Progress,
    /// Scrub.
    pub scrub: Progress,
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::{NodeIndex, SegmentKind};

    use super::NodeHealth;
    use crate::script::Script;

    /// The numbers of segments are of one set: none of the parts exceeds the whole.
    #[test]
    fn degraded_and_dead_segments_are_some_of_the_segments() {
        let mut script = Script::serving(8);
        let whole = script.add_segment(&[0, 1, 2, 3, 4, 5].map(Some));
        let dead = script.add_segment(&[0, 1, 2, 3, 4, 5].map(Some));
        let checkpoint = script.add_segment(&[0, 1, 2, 3, 4, 5].map(Some));
        script.core(|core| {
            core.segments.get_mut(dead).expect("added").live_blocks = 0;
            let segment = core.segments.get_mut(checkpoint).expect("added");
            (segment.kind, segment.live_blocks) = (SegmentKind::Checkpoint, 0);
        });
        let numbers = |script: &Script| {
            let status = script.volume.status();
            (status.segments, status.segments_degraded, status.segments_lost, status.shards_missing)
        };
        assert_eq!(numbers(&script), (3, 0, 0, 0));
        assert_eq!(script.volume.status().segments_pending_free, 1);
        script.core(|core| core.node_mut(NodeIndex(4)).health = NodeHealth::Down);
        assert_eq!(numbers(&script), (3, 3, 0, 3));
        script.core(|core| {
            core.segments.get_mut(whole).expect("added").shards[0] = None;
            core.segments.get_mut(whole).expect("added").shards[1] = None;
        });
        assert_eq!(numbers(&script), (3, 3, 1, 5));
    }
}
