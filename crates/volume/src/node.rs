//! A node as the volume sees it.
//!
//! Each part of the state has one concern and one lifetime: the [`Link`] lives as long as a
//! connection, the [`NodeSlots`] follow the node's answers about room, the [`NodeAttempt`] begins
//! anew with each attempt to open the volume, and [`NodeReads`] bounds the reads in flight.

use std::collections::{BTreeMap, VecDeque};

use fieldstone_block::Nanos;
use fieldstone_proto::{Epoch, NodeIndex, NodeStat, SegmentId, Tag};

use crate::core::VolumeCore;
use crate::read::QueuedRun;
use crate::relay::NodeRelay;
use crate::status::NodeHealth;

/// When a node has at most this many slots left, its disk may be what limits the volume.
pub const SHORT_SLOTS: u32 = 8;

/// A node as the volume sees it.
pub struct Node {
    /// Its health.
    pub health: NodeHealth,
    /// Why the node is down.
    pub reason: String,
    /// Since when the volume does not use the node; only while the volume serves.
    pub down_since: Option<Nanos>,
    /// The epoch of the requests to the node: the writer's. An inspection uses the node's own.
    pub epoch: Epoch,
    /// An opening that did not end has fenced the node. The next opening uses the node again.
    pub fenced: bool,
    /// The last state that the node reported.
    pub stat: NodeStat,
    /// Version of the root that the node took last in this session; 0 for none.
    pub root_version: u64,
    /// The node could not make a journal. The volume prefers other nodes.
    pub refuses_journals: bool,
    /// Calls in the order in which they were made, to find those that take too long.
    pub in_flight: VecDeque<(Nanos, Tag)>,
    /// The connection.
    pub link: Link,
    /// The volume's room on the node.
    pub slots: NodeSlots,
    /// Users' reads.
    pub reads: NodeReads,
    /// The node as a part of routes.
    pub relay: NodeRelay,
    /// What the present attempt to open the volume knows of the node.
    pub attempt: NodeAttempt,
}

/// The connection to a node.
#[derive(Debug, Default)]
pub struct Link {
    /// A connection is open.
    pub connected: bool,
    /// Rises with every connection, so that a join of an older connection ends.
    pub session: u64,
    /// When the last connection opened.
    pub connected_at: Nanos,
    /// How long the volume leaves the node alone after its next failure.
    pub reconnect_after: Nanos,
}

/// The volume's slots on a node.
#[derive(Debug, Default)]
pub struct NodeSlots {
    /// Slots that the volume may still take, from the node's last reply.
    pub free: u32,
    /// The segments whose shards are on their way to the node, and the number of requests for each.
    /// The node's reports of free slots do not count these requests yet.
    pub claimed: BTreeMap<SegmentId, u32>,
    /// Slots that the volume has reserved, as far as the volume knows; 0 for none.
    pub reserved: u32,
    /// Slots that the volume has given up. The node counts them as free until it answers the
    /// request with the smaller reservation.
    pub given_up: u32,
    /// When the node last came back to the volume's use; `None` if it was always there. It has
    /// joined and has then granted slots, or the opening has found it empty, or its disk was full
    /// and is not any more.
    pub back_since: Option<Nanos>,
    /// The last request for a reservation.
    pub asked: Option<Tag>,
    /// The node reported that no slot is free.
    pub full: bool,
    /// The node reported another number of free slots, and few are left: the volume is about to
    /// look for the reason.
    pub changed: bool,
    /// The node did not grant a reservation because its disk has no room. See
    /// [`VolumeCore::is_limited_by_disk`](crate::core::VolumeCore::is_limited_by_disk).
    pub disk_limited: bool,
    /// The node granted less than the volume has reserved on the other nodes.
    pub granted_less: bool,
    /// The number of slots in total that the node has announced to other volumes as this volume's
    /// need, because they can spare the lacking slots; 0 for none.
    pub announced: u32,
    /// Slots of the reservation that the volume can do without, as far as the node knows.
    pub spare: u32,
    /// Slots that the volume had reserved before the node's last connection was lost.
    pub before: u32,
    /// Why the volume has no room left, if its own shards are not the reason.
    pub shortage: Shortage,
    /// When the log last warned that the node has no room left.
    pub warned_at: Option<Nanos>,
}

/// Why a volume has no room left on a node, other than because of its own shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shortage {
    /// There is room, or the volume's own shards take it.
    #[default]
    None,
    /// The node's disk is full.
    DiskFull,
    /// Other volumes have reserved the room.
    OtherVolumes,
}

/// Users' reads on a node.
#[derive(Default)]
pub struct NodeReads {
    /// Requests that wait for the node's answer.
    pub in_flight: u32,
    /// Blocks that they ask for.
    pub blocks_in_flight: u32,
    /// Runs of pieces that wait until fewer are in flight.
    pub waiting: VecDeque<QueuedRun>,
}

/// The state of a node in an attempt to open the volume.
#[derive(Debug, Default)]
pub struct NodeAttempt {
    /// Why the opening goes on without the node.
    pub left_out: Option<String>,
    /// How often the node answered that it is busy.
    pub busy_answers: u32,
    /// How often the connection was lost.
    pub losses: u32,
    /// The node did not answer in time.
    pub late: bool,
    /// Why the opening has last left the node out, also if the node got another chance since.
    pub last_reason: Option<String>,
}

impl Default for Node {
    /// A node that was never connected.
    fn default() -> Self {
        Self {
            health: NodeHealth::Down,
            reason: "not connected yet".into(),
            down_since: None,
            epoch: Epoch(0),
            fenced: false,
            stat: NodeStat::default(),
            root_version: 0,
            refuses_journals: false,
            in_flight: VecDeque::new(),
            link: Link::default(),
            slots: NodeSlots::default(),
            reads: NodeReads::default(),
            relay: NodeRelay::default(),
            attempt: NodeAttempt::default(),
        }
    }
}

impl Node {
    /// The volume has no room left on the node, and its own shards are not the reason.
    pub fn is_short(&self) -> bool {
        self.slots.shortage != Shortage::None
    }

    /// The volume has no room left on the node because the node's disk is full.
    pub fn is_disk_full(&self) -> bool {
        self.slots.shortage == Shortage::DiskFull
    }
}

impl NodeSlots {
    /// The node answered the request `tag`, and reported its free slots. True if the volume may
    /// take more of them than before.
    pub fn answered(&mut self, tag: Tag, reported: u32) -> bool {
        if self.asked == Some(tag) {
            (self.asked, self.given_up) = (None, 0);
        }
        let free = reported.saturating_sub(self.given_up);
        let before = std::mem::replace(&mut self.free, free);
        self.full = reported == 0;
        self.changed |= before != free && before.min(free) <= SHORT_SLOTS;
        before < free
    }

    /// The node has joined. It may be another node than before, so nothing is known of what it
    /// keeps for the volume until it answers a request for a reservation. If it has shards of the
    /// volume, it is the same one, and what it kept before is a hint.
    pub fn joined(&mut self, has_shards: bool, now: Nanos) {
        let before = if self.reserved > 0 { self.reserved } else { self.before };
        self.before = if has_shards { before } else { 0 };
        (self.reserved, self.given_up) = (0, 0);
        (self.announced, self.spare) = (0, 0);
        (self.disk_limited, self.granted_less) = (false, false);
        (self.shortage, self.back_since) = (Shortage::None, Some(now));
    }

    /// The volume is about to reduce its reservation to `slots` slots.
    pub fn give_up(&mut self, slots: u32) {
        let given = self.reserved.saturating_sub(slots);
        self.reserved -= given;
        self.given_up += given;
        self.free = self.free.saturating_sub(given);
    }
}

impl VolumeCore {
    /// Number of nodes that serve this volume now.
    #[must_use]
    pub fn nodes_up(&self) -> usize {
        self.nodes.iter().filter(|node| node.health == NodeHealth::Up).count()
    }

    /// The number of nodes that the volume needs to take writes.
    #[must_use]
    pub fn nodes_needed(&self) -> usize {
        usize::from(self.config.nodes.saturating_sub(self.config.missing_max)).max(1)
    }

    /// True when enough nodes are up to take writes.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.nodes_up() >= self.nodes_needed()
    }

    /// The nodes in this state, ascending.
    pub fn nodes_that(&self, test: impl Fn(&Node) -> bool) -> Vec<NodeIndex> {
        (0u16..).map(NodeIndex).zip(&self.nodes).filter(|(_, n)| test(n)).map(|(i, _)| i).collect()
    }

    /// The nodes that serve, ascending.
    #[must_use]
    pub fn up_nodes(&self) -> Vec<NodeIndex> {
        self.nodes_that(|node| node.health == NodeHealth::Up)
    }

    /// The present sessions of `nodes`.
    #[must_use]
    pub fn sessions_of(&self, nodes: &[NodeIndex]) -> Vec<u64> {
        nodes.iter().map(|node| self.node(*node).link.session).collect()
    }

    /// Looks a node up.
    #[must_use]
    pub fn node(&self, node: NodeIndex) -> &Node {
        &self.nodes[usize::from(node.0)]
    }

    /// Looks a node up, to change.
    pub fn node_mut(&mut self, node: NodeIndex) -> &mut Node {
        &mut self.nodes[usize::from(node.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(free: u32, reserved: u32) -> NodeSlots {
        NodeSlots { free, reserved, ..NodeSlots::default() }
    }

    /// The node keeps slots that the volume gives up until it answers the very request with the
    /// smaller reservation. Until then its reports count too many.
    #[test]
    fn given_up_slots_are_not_free_whatever_the_node_reports_meanwhile() {
        let mut slots = slots(50, 60);
        slots.give_up(40);
        assert_eq!((slots.reserved, slots.given_up, slots.free), (40, 20, 30));
        slots.asked = Some(Tag(7));
        assert!(!slots.answered(Tag(6), 50), "an older answer");
        assert_eq!((slots.given_up, slots.free), (20, 30));
        assert!(!slots.answered(Tag(7), 30));
        assert_eq!((slots.given_up, slots.free), (0, 30));
        assert!(slots.answered(Tag(8), 31));
    }

    #[test]
    fn only_a_change_of_a_small_number_is_worth_a_look() {
        for (before, after, changed) in
            [(60, 50, false), (60, 8, true), (8, 60, true), (9, 60, false), (8, 8, false)]
        {
            let mut slots = slots(before, 60);
            slots.answered(Tag(1), after);
            assert_eq!(slots.changed, changed, "{before} {after}");
        }
    }

    #[test]
    fn a_node_that_joins_keeps_only_a_hint_of_its_reservation() {
        let mut slots = slots(50, 60);
        slots.disk_limited = true;
        slots.shortage = Shortage::DiskFull;
        slots.joined(true, Nanos(5));
        assert_eq!((slots.reserved, slots.before, slots.back_since), (0, 60, Some(Nanos(5))));
        assert!(!slots.disk_limited && slots.shortage == Shortage::None);
        slots.joined(true, Nanos(6));
        assert_eq!(slots.before, 60, "it was lost before it answered");
        slots.joined(false, Nanos(7));
        assert_eq!(slots.before, 0, "an empty replacement");
    }
}
