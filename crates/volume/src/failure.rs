//! Why a volume cannot go on.
//!
//! Each kind of failure is a variant with its data. Callers recognise a failure by its variant. The
//! text of a failure is for people.

use fieldstone_block::BlockError;
use fieldstone_codes::ProfileError;
use fieldstone_proto::{Epoch, Lsn, NodeError, NodeIndex, SegmentId};
use thiserror::Error;

use crate::codec::FormatError;

/// Why a volume has failed: while it was opened, while it served, or while it closed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VolumeFailure {
    /// A node has a newer writer.
    #[error("another writer took the volume over (epoch {current})")]
    FencedOut {
        /// That writer's epoch.
        current: Epoch,
    },
    /// The pool's metadata service issues no capabilities to the volume any more.
    #[error("the metadata service refuses: {0}")]
    NotIssued(String),
    /// The volume closed without a stable journal.
    #[error(
        "the volume ends, but its journal is not stable on all of its nodes: if these nodes lose \
         power now, writes that no flush has covered may be lost. Open the volume again, and close \
         it when its nodes answer"
    )]
    JournalNotStable,
    /// The volume was about to name a checkpoint that it does not have in full.
    #[error("a segment of the new checkpoint is gone")]
    NewCheckpointGone,
    /// Nodes still count another writer as holder.
    #[error(
        "{}: stop that server, or take the volume over (`fieldstone serve --takeover`) if it \
         is gone for good",
        NodeError::InUse { current: *current }
    )]
    InUse {
        /// That writer's epoch.
        current: Epoch,
    },
    /// The volume that was to be created exists.
    #[error("the volume exists already")]
    Exists,
    /// The volume that was to be opened does not exist.
    #[error("no node has a root of the volume: it does not exist")]
    DoesNotExist,
    /// The root names a code that this release does not know.
    #[error("profile {profile}: {error}")]
    Profile {
        /// The profile, as the root has it.
        profile: String,
        /// What is wrong with it.
        error: ProfileError,
    },
    /// The checkpoint is readable, but it is no checkpoint.
    #[error("checkpoint: {0}")]
    Checkpoint(FormatError),
    /// The opening waited for nodes in vain.
    #[error(
        "only {reachable} of {all} nodes are reachable, {needed} are needed; missing: {}",
        reasons_in_brackets(missing)
    )]
    TooFewNodes {
        /// Nodes that are connected, and that the opening does not leave out.
        reachable: usize,
        /// Nodes of the pool.
        all: usize,
        /// Nodes that the opening needs.
        needed: usize,
        /// The other nodes, each with its reason.
        missing: Vec<(NodeIndex, String)>,
    },
    /// The nodes' slots are too small for a volume with this geometry.
    #[error("shards of {shard_bytes} bytes do not fit in the nodes' slots of {slot_bytes} bytes")]
    ShardsTooLarge {
        /// Size of a shard.
        shard_bytes: u32,
        /// Size of the smallest node's slots.
        slot_bytes: u32,
    },
    /// The code needs other sizes of shards, chunks or units.
    #[error(
        "{profile} cuts chunks of shards into {elements} elements of whole blocks, and shards of \
         {shard_bytes} bytes in chunks of {chunk_bytes} bytes and units of {unit_bytes} bytes do \
         not divide into those"
    )]
    ShardsDoNotDivide {
        /// The code.
        profile: String,
        /// Elements of a chunk.
        elements: u32,
        /// Size of a shard.
        shard_bytes: u32,
        /// Size of a chunk.
        chunk_bytes: usize,
        /// Size of a unit.
        unit_bytes: u32,
    },
    /// The root could not name the checkpoint of a volume of this size.
    #[error(transparent)]
    TooLarge(TooLarge),
    /// The nodes do not reserve the slots of the new volume.
    #[error(transparent)]
    NoRoom(ReservationRefusal),
    /// The opening has started over as often as it may.
    #[error("opening failed {attempts} times, at last: {last}{}", reasons_appended(left_out))]
    AttemptsFailed {
        /// The number of attempts.
        attempts: u32,
        /// Why the last one failed.
        last: AttemptFailure,
        /// The nodes that answered badly, each with its last reason.
        left_out: Vec<(NodeIndex, String)>,
    },
}

/// Why an attempt to open a volume failed, where another attempt may succeed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AttemptFailure {
    /// A node answered with an error.
    #[error("{node}: {error}")]
    Node {
        /// The node.
        node: NodeIndex,
        /// Its error.
        error: NodeError,
    },
    /// A node connected that has a copy of the journal.
    #[error("{0} came while the volume was opened")]
    NodeCame(NodeIndex),
    /// A node that took part was lost.
    #[error("a node was lost")]
    NodeLost,
    /// The log does not reach as far as it was once stored.
    #[error(
        "the log is readable up to position {end}, but was stored up to {trimmed}: too many nodes \
         are missing or damaged; bring them back"
    )]
    LogCutShort {
        /// Where the readable part ends.
        end: Lsn,
        /// Where it was once stored up to.
        trimmed: Lsn,
    },
    /// A record's blocks are on nodes that may still come.
    #[error("blocks of the record at position {end} cannot be read while nodes are missing")]
    RecordCutShort {
        /// The position of the record.
        end: Lsn,
    },
    /// The footer of a segment that is replayed is unreadable.
    #[error("replaying segments: {0}")]
    Footer(BlockError),
    /// A segment of the checkpoint is unreadable.
    #[error("the checkpoint (segment {segment}) cannot be read: {error}")]
    CheckpointUnreadable {
        /// The segment.
        segment: SegmentId,
        /// Why it is unreadable.
        error: BlockError,
    },
    /// The segments of the checkpoint hold fewer bytes than the root says.
    #[error("the checkpoint is shorter than the root says")]
    CheckpointCutShort,
    /// Shards of a segment that was being written could not be made.
    #[error("a segment that was being written is not whole")]
    SegmentNotWhole,
    /// The new checkpoint was not stored.
    #[error("the checkpoint could not be written")]
    CheckpointNotWritten,
    /// A segment of the new checkpoint was lost before a root named it.
    #[error("a segment of the new checkpoint is gone")]
    NewCheckpointGone,
    /// Too few of the connected nodes have a root of the volume.
    #[error(
        "only {knowing} of the nodes know the volume, {needed} are needed: the others are empty"
    )]
    TooFewKnow {
        /// Nodes that have a root.
        knowing: usize,
        /// Nodes that must have one.
        needed: usize,
    },
    /// The newest root was put on the other nodes again, and too few took it.
    #[error("too few nodes took the root that was found")]
    FoundRootNotTaken,
    /// The root that would have committed the opening was not.
    #[error("too few nodes took the root")]
    RootNotTaken,
    /// The replayed changes do not fit in the journal's ring, and were not stored in segments.
    #[error("what was replayed could not be stored")]
    ReplayNotStored,
    /// No journal was made.
    #[error(transparent)]
    Journal(JournalRefusal),
    /// The slots of a new volume were not reserved because nodes were lost.
    #[error(transparent)]
    Reservation(ReservationRefusal),
}

/// Why the volume could not make a journal.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a journal could not be made{}", full_nodes(full))]
pub struct JournalRefusal {
    /// The nodes that lately had no room for one.
    pub full: Vec<NodeIndex>,
}

/// The root could not name the checkpoint of a volume of this size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "a volume of {size_bytes} bytes is too large for segments of {segment_bytes} bytes: its \
     checkpoint could have more segments than its root can name; {fit_bytes} bytes fit"
)]
pub struct TooLarge {
    /// The size.
    pub size_bytes: u64,
    /// Size of a segment's data.
    pub segment_bytes: u64,
    /// The largest power of two that fits.
    pub fit_bytes: u64,
}

/// Why the nodes do not reserve the slots of a size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReservationRefusal {
    /// A node has not that many.
    #[error(
        "{node} has {free_bytes} bytes that no volume has reserved, and {wanted_bytes} more are \
         wanted on each node; {}",
        advice(*later)
    )]
    NodeLacksRoom {
        /// The node.
        node: NodeIndex,
        /// What it has.
        free_bytes: u64,
        /// What it was asked for.
        wanted_bytes: u64,
        /// Other volumes should have given slots back, and have not.
        later: bool,
    },
    /// The nodes that have room are too few.
    #[error("{granted} nodes have room for it, which is too few; {}", node_error(last.as_ref()))]
    TooFewNodes {
        /// Nodes that granted the slots.
        granted: usize,
        /// The last error of another node.
        last: Option<(NodeIndex, NodeError)>,
        /// Nodes were lost on the way. The reservation may succeed without them, or when they are
        /// back.
        nodes_lost: bool,
    },
}

impl ReservationRefusal {
    /// Another attempt may succeed, because nodes were lost in this one.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, ReservationRefusal::TooFewNodes { nodes_lost: true, .. })
    }
}

/// Nodes with their reasons, as a list.
pub fn reasons_in_brackets(nodes: &[(NodeIndex, String)]) -> String {
    let texts = nodes.iter().map(|(node, reason)| format!("{node} ({reason})"));
    texts.collect::<Vec<_>>().join(", ")
}

/// Nodes with their reasons, to append to an error.
fn reasons_appended(nodes: &[(NodeIndex, String)]) -> String {
    nodes.iter().map(|(node, reason)| format!("; {node}: {reason}")).collect()
}

fn full_nodes(nodes: &[NodeIndex]) -> String {
    let names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    if names.is_empty() { String::new() } else { format!(": no space on {}", names.join(", ")) }
}

fn node_error(of: Option<&(NodeIndex, NodeError)>) -> String {
    of.map(|(node, error)| format!("{node}: {error}")).unwrap_or_default()
}

fn advice(later: bool) -> &'static str {
    match later {
        true => "other volumes can give back more, but have not done so yet: try again later",
        false => {
            "make it smaller or thin, remove other volumes, or serve the others for some seconds: \
             a volume that was not closed, or closed with much garbage, gives back what it does \
             not need"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators, and the scenarios of the command line, read these sentences.
    #[test]
    fn failures_say_what_an_operator_can_do() {
        let says = |failure: VolumeFailure, text: &str| assert_eq!(failure.to_string(), text);
        let node = NodeIndex;
        says(
            VolumeFailure::InUse { current: Epoch(7) },
            "the volume is in use by another writer (epoch 7): stop that server, or take the \
             volume over (`fieldstone serve --takeover`) if it is gone for good",
        );
        says(
            VolumeFailure::FencedOut { current: Epoch(8) },
            "another writer took the volume over (epoch 8)",
        );
        says(
            VolumeFailure::JournalNotStable,
            "the volume ends, but its journal is not stable on all of its nodes: if these nodes \
             lose power now, writes that no flush has covered may be lost. Open the volume again, \
             and close it when its nodes answer",
        );
        says(
            VolumeFailure::TooFewNodes {
                reachable: 4,
                all: 6,
                needed: 5,
                missing: vec![(node(1), "not connected yet".into()), (node(3), "late".into())],
            },
            "only 4 of 6 nodes are reachable, 5 are needed; missing: node.1 (not connected yet), \
             node.3 (late)",
        );
        says(
            VolumeFailure::AttemptsFailed {
                attempts: 64,
                last: AttemptFailure::Node { node: node(2), error: NodeError::Busy },
                left_out: vec![(node(2), "the node is busy".into())],
            },
            "opening failed 64 times, at last: node.2: the node is busy; node.2: the node is busy",
        );
        says(
            VolumeFailure::NoRoom(ReservationRefusal::NodeLacksRoom {
                node: node(0),
                free_bytes: 1,
                wanted_bytes: 2,
                later: true,
            }),
            "node.0 has 1 bytes that no volume has reserved, and 2 more are wanted on each node; \
             other volumes can give back more, but have not done so yet: try again later",
        );
        says(
            VolumeFailure::NoRoom(ReservationRefusal::TooFewNodes {
                granted: 3,
                last: Some((node(5), NodeError::NoSpace)),
                nodes_lost: false,
            }),
            "3 nodes have room for it, which is too few; node.5: no space on the node",
        );
        let full = |full: Vec<NodeIndex>| JournalRefusal { full }.to_string();
        assert_eq!(full(Vec::new()), "a journal could not be made");
        assert_eq!(
            full(vec![node(1), node(2)]),
            "a journal could not be made: no space on node.1, node.2"
        );
    }
}
