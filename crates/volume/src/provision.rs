//! Reservations: the slots that the volume keeps for itself on every node.
//!
//! Volumes of one pool share its nodes. A node lets a volume take slots up to the volume's
//! reservation there. It keeps as many slots free as volumes have reserved and do not hold (the
//! node's `store/allotments`). So the room of a volume is its own: `space` counts with it, and no
//! other volume can take slots that collection, checkpoints, trims or the next opening need.
//!
//! - A *thick* volume reserves the slots for its whole size when it is created or grows. If a node
//!   does not have that many, the volume is not created, or does not grow. It asks for a few more
//!   where there are more: for segments that are being written, and for shards of lost nodes that
//!   it rebuilds on the others.
//! - A *thin* volume reserves the slots that it holds, those that it needs to go on, and a few to
//!   grow into. It asks for more as it fills, and with each checkpoint it gives back those that it
//!   no longer needs. When nodes refuse, it works with the slots that it has: it collects, and its
//!   users get the error that there is no space.
//!
//! # Idle slots
//! Collection costs less if the volume may hold more garbage: with one slot of garbage for each
//! slot of data, overwritten segments often die before collection moves them. So a volume also
//! reserves slots that no volume needs, under three conditions:
//!
//! - It leaves a third as many unclaimed as it takes, so that a small volume can be created at
//!   once. With several volumes, each has the same share. When another volume reserves more, this
//!   one gives back until the shares are equal again.
//! - It takes no more idle slots than it needs for its data: with more, collection becomes little
//!   cheaper, and a lost node has more shards to rebuild.
//! - It gives them back. When nodes have nothing left for others, each volume gives back half of
//!   the slots beyond its needs (`slots_needed`). When a volume that is created or grows lacks
//!   slots on a node, the others give back as many as it lacks.
//!
//! Slots to give back may hold garbage. The volume then sets itself a *goal*: it collects until
//! that many slots are free, and gives back what each checkpoint frees. Meanwhile users' writes go
//! on. A volume that closes collects for some seconds, and keeps only the slots that it needs or
//! still holds.
//!
//! # A node that came back empty
//! Such a node does not know how many slots it had promised to each volume, and some of these
//! volumes may be closed. So no volume may take slots there that were promised to another one. The
//! volume's *level* on a node is the smallest number of slots that another node has granted, of
//! those nodes that are no larger. A volume raises its reservation on a single node only up to its
//! level there; beyond that, it asks all nodes together. Take a node that has kept its promises:
//! each volume's level on the empty node is at most what this node has granted. So the levels of
//! all volumes fit into the empty node together, in any order of asking.
//!
//! There are three exceptions. A thick volume asks for the slots of its whole size, which every
//! node has promised. A thin volume asks for the slots that its data takes, but not for more than
//! most of the other nodes have granted: users' blocks must be rebuilt. When rebuild still lacks
//! room, the volume also asks for slots that only some of the other nodes have granted. Until the
//! volume uses these slots, it gives them to any volume that needs them.
//!
//! A volume that has more than this on one node gives slots back when another volume lacks slots
//! there. If these slots hold garbage, it first collects segments that have shards on that node.
//!
//! The module `reserve` asks nodes for slots and gives slots back.

use fieldstone_block::Nanos;
use fieldstone_proto::{BLOCK_BYTES, NodeIndex};

use crate::core::VolumeCore;
use crate::interface::Provisioning;
use crate::node::Node;
use crate::reserve::{reserve_at_start, reserve_missing, reserve_more, reserve_on, reserve_on_low};
use crate::status::{NodeHealth, VolumePhase};

/// How long a refusal counts before the volume asks nodes again.
const ASK_AGAIN_MS: u64 = 200;
/// Fewest segments that a volume grows by.
const GROW_SEGMENTS_MIN: u64 = 2;
/// A volume grows by one in this many of its segments.
const GROW_FRACTION: u64 = 8;
/// Of the idle slots that a volume could reserve, it leaves one in this many unclaimed.
const UNCLAIMED_FRACTION: u32 = 4;
/// How long a volume, after a release for other volumes, asks only for slots that it needs, and
/// collects to release the rest.
const RELEASE_MS: u64 = 5_000;

/// The volume's reservation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reservation {
    /// Whether the reservation covers the volume's whole size.
    pub provisioning: Provisioning,
    /// Slots on each node; 0 until the volume serves.
    pub slots: u32,
    /// The volume has asked every node for `slots`. Until then `slots` is only the number that it
    /// wants.
    pub agreed: bool,
    /// The volume is asking nodes for more slots, or giving some back.
    pub changing: bool,
    /// Nodes have refused, and the change under way waits until other volumes give slots back.
    pub waits_for_others: bool,
    /// When nodes last refused.
    refused_at: Option<Nanos>,
    /// When nodes last refused rebuild slots that they keep too few of. Such a refusal does not
    /// stop other requests: rebuild asks again and again, and the volume would never grow.
    rebuild_refused_at: Option<Nanos>,
    /// When the volume last released slots because other volumes lacked some.
    released_at: Option<Nanos>,
    /// The number of slots on each node that it then wanted to keep.
    pub goal: u32,
}

/// Idle slots that a volume may have, when it has `idle` of them, `unclaimed` more are left, and it
/// needs `needed` slots for its data: see the module's essay.
fn share_of_idle(idle: u32, unclaimed: u32, needed: u32) -> u32 {
    let shared = idle.saturating_add(unclaimed);
    (shared - shared.div_ceil(UNCLAIMED_FRACTION)).min(needed)
}

/// The slots that the volume holds on a node, as far as the node's last answer says.
fn held_on(node: &Node) -> u32 {
    node.slots.reserved.saturating_sub(node.slots.free)
}

/// The largest number of slots that most nodes grant, when the nodes grant these numbers.
fn granted_by_most(granted: &[u32]) -> Option<u32> {
    let mut granted = granted.to_vec();
    granted.sort_unstable();
    granted.get(granted.len().saturating_sub(1) / 2).copied()
}

impl VolumeCore {
    /// Slots on each node that the whole volume takes.
    pub fn slots_whole(&self, size_bytes: u64) -> u32 {
        let slots = self.capacity_params().slots_for(size_bytes / BLOCK_BYTES as u64);
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Segments that the journal holds at most. This many are being written when users write as
    /// fast as they can.
    pub fn ring_segments(&self) -> u64 {
        let segment_bytes = u64::from(self.layout.segment_blocks()) * BLOCK_BYTES as u64;
        self.geometry.ring_bytes.div_ceil(segment_bytes.max(1))
    }

    /// Segments that the volume grows by when it asks for more.
    fn grow_segments(&self) -> u64 {
        let own = self.segments.len() as u64;
        GROW_SEGMENTS_MIN.max(own / GROW_FRACTION).max(self.ring_segments() / 2)
    }

    /// Slots on each node beyond which the volume never asks for more.
    pub fn slots_max(&self) -> u32 {
        self.slots_useful().saturating_add(self.slots_idle_max())
    }

    /// Idle slots on each node that the volume may have.
    fn slots_idle_max(&self) -> u32 {
        share_of_idle(self.slots_idle(), self.slots_unclaimed(), self.slots_needed())
    }

    /// Slots on each node that the volume has reserved beyond those that it can have a use for.
    fn slots_idle(&self) -> u32 {
        self.reservation.slots.saturating_sub(self.slots_useful())
    }

    /// The volume has reserved slots that it can have no use for but cheap collection.
    pub fn has_idle_slots(&self) -> bool {
        self.slots_idle() > 0
    }

    /// Slots that no volume has reserved, on the node with the fewest.
    fn slots_unclaimed(&self) -> u32 {
        let known = |node: &&Node| node.health == NodeHealth::Up && node.slots.reserved > 0;
        self.nodes.iter().filter(known).map(|node| node.stat.slots_free).min().unwrap_or(0)
    }

    /// Idle slots on each node that the volume has beyond its share of them, because other volumes
    /// have reserved more since it took them. 0 if there are fewer than the volume grows by: such
    /// differences come and go.
    pub fn slots_beyond_share(&self) -> u32 {
        let beyond = self.slots_idle().saturating_sub(self.slots_idle_max());
        if beyond > self.step() { beyond } else { 0 }
    }

    /// The largest number of slots on each node that the volume can use: its full size after the
    /// loss of the tolerated nodes, and the segments that it is writing.
    fn slots_useful(&self) -> u32 {
        let blocks = self.geometry.size_bytes / BLOCK_BYTES as u64;
        let writing = self.capacity_params().slots(2 * self.ring_segments());
        let slots = self.capacity_params().slots_for_with_losses(blocks).saturating_add(writing);
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Slots on each node that the volume wants at present.
    pub fn slots_wanted(&self) -> u32 {
        let now = self.slots_with(self.grow_segments());
        let now = u32::try_from(now).unwrap_or(u32::MAX);
        let now = now.min(self.slots_max()).max(self.slots_min());
        match self.reservation.provisioning {
            Provisioning::Thick => now.max(self.slots_whole(self.geometry.size_bytes)),
            Provisioning::Thin => now,
        }
    }

    /// Slots on each node with which the volume can go on for ever: a thick volume with its whole
    /// size, a thin volume with the data that it holds. While a node is lost, or its disk is full,
    /// the other nodes take the shards of that node: the volume needs more slots on each of them. A
    /// node that granted less because of other volumes does not change the number. Otherwise, in a
    /// full pool, all volumes would need more slots for that reason, and no volume would give any
    /// back.
    pub fn slots_needed(&self) -> u32 {
        let full = |node: &Node| self.is_limited_by_disk(node) || node.is_disk_full();
        let lost = |node: &Node| node.health != NodeHealth::Up || full(node);
        match self.nodes.iter().any(lost) {
            false => self.slots_needed_without_losses(),
            true => {
                let slots = self.capacity_params().slots_for_with_losses(self.blocks_provisioned());
                u32::try_from(slots).unwrap_or(u32::MAX)
            }
        }
    }

    /// The same when every node takes shards.
    pub fn slots_needed_without_losses(&self) -> u32 {
        let slots = self.capacity_params().slots_for(self.blocks_provisioned());
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Blocks that the volume must have room for.
    fn blocks_provisioned(&self) -> u64 {
        match self.reservation.provisioning {
            Provisioning::Thick => self.geometry.size_bytes / BLOCK_BYTES as u64,
            Provisioning::Thin => self.map.used_blocks(),
        }
    }

    /// Slots on each node that the volume has reserved beyond what it needs.
    fn slots_surplus(&self) -> u32 {
        self.reservation.slots.saturating_sub(self.slots_needed())
    }

    /// Whether the volume has reserved more than it needs, or more on single nodes than it may ask
    /// them for.
    pub fn may_release_slots(&self) -> bool {
        let more = |node: &NodeIndex| self.node(*node).slots.reserved > self.slots_alone(*node);
        self.slots_surplus() > 0 || self.up_nodes().iter().any(more)
    }

    /// Gives back `less` slots on each node, or the slots beyond the volume's needs if these are
    /// fewer. Collection frees those that hold garbage.
    pub fn release_slots(&mut self, less: u32) {
        let less = less.min(self.slots_surplus());
        if less == 0 || self.reservation_changes() || self.phase != VolumePhase::Serving {
            return;
        }
        self.reservation.released_at = Some(self.now);
        self.reservation.goal = self.reservation.slots - less;
        self.pursue_goal();
        self.consider_gc();
    }

    /// The volume gives slots back on single nodes.
    pub fn release_on_nodes(&mut self) {
        self.reservation.changing = true;
        self.reservation.released_at = Some(self.now);
        self.reservation.goal = self.reservation.slots;
    }

    /// Half of the slots that the volume has beyond its needs.
    pub fn half_of_surplus(&self) -> u32 {
        self.slots_surplus().div_ceil(2)
    }

    /// Slots on each node that the volume still has to give back. It may need more than when it set
    /// its goal: it may have grown since.
    fn slots_to_release(&self) -> u32 {
        match self.released_lately() {
            true => self.reservation.slots.saturating_sub(self.goal()),
            false => 0,
        }
    }

    fn goal(&self) -> u32 {
        self.reservation.goal.max(self.slots_needed())
    }

    /// The volume released slots for other volumes lately.
    fn released_lately(&self) -> bool {
        let released = self.reservation.released_at;
        released.is_some_and(|at| self.now.since(at) < Nanos::from_ms(RELEASE_MS))
    }

    /// Segments that collection has to free so that the volume can give back its slots.
    pub fn segments_to_release(&self) -> u64 {
        let params = self.capacity_params();
        u64::from(self.slots_to_release()) * params.nodes / params.width
    }

    /// Gives back the slots that are free of those that the volume wants to give back. It keeps
    /// enough for users' writes while collection goes on.
    pub fn pursue_goal(&mut self) {
        let marks = self.marks_at_rest();
        let writing = u32::try_from(self.capacity_params().slots(marks.low - marks.reserve));
        let min_slots = self.slots_min().saturating_add(writing.unwrap_or(u32::MAX));
        let slots = self.goal().max(min_slots);
        let gives = self.slots_to_release() > 0 && slots < self.reservation.slots;
        if gives && !self.reservation_changes() && self.phase == VolumePhase::Serving {
            self.set_reservation(slots);
        }
    }

    /// Begins to give back all slots that the volume does not need while it is closed.
    pub fn release_unneeded(&mut self) {
        let needed = self.slots_needed_without_losses();
        self.release_slots(self.reservation.slots.saturating_sub(needed));
    }

    /// Collection may still free slots for [`Self::release_slots`].
    pub fn is_releasing(&self) -> bool {
        self.slots_to_release() > 0 && (self.collection.is_running() || self.reservation_changes())
    }

    /// The volume never reserves fewer slots on each node: the slots that it holds or is about to
    /// hold, with garbage, and those that it always leaves free. An opening may have to work with
    /// this number.
    pub fn slots_min(&self) -> u32 {
        let up = self.nodes.iter().filter(|node| node.health == NodeHealth::Up);
        let held = up.map(held_on).max().unwrap_or(0);
        let min_slots = u32::try_from(self.slots_min_known()).unwrap_or(u32::MAX);
        min_slots
            .max(held.saturating_add(u32::try_from(self.slots_always_free()).unwrap_or(u32::MAX)))
    }

    /// The number of slots on a node that the volume can release if it has `slots` there. These are
    /// the slots beyond its needs, also if they hold garbage: the volume can release those after a
    /// collection. And these are the slots beyond [`Self::slots_alone`] that the volume neither
    /// holds nor is about to take.
    pub fn slots_spare(&self, node: NodeIndex, slots: u32) -> u32 {
        let holds = self.slots_min_on(self.node(node));
        slots.saturating_sub(self.slots_needed().min(self.slots_alone(node).max(holds)))
    }

    /// The same when the volume asks all nodes for as many slots together. A thick volume needs
    /// more than its whole size while nodes are lost.
    pub fn slots_spare_on_all(&self, node: NodeIndex, slots: u32) -> u32 {
        match self.reservation.provisioning {
            Provisioning::Thick => slots.saturating_sub(self.slots_needed()),
            Provisioning::Thin => self.slots_spare(node, slots),
        }
    }

    /// The nodes on which other volumes lack slots, and on which the volume has more than it may
    /// ask for, each with the number of slots that it keeps there. They include a node that has
    /// granted less than the volume has reserved, if the node has granted more than the volume
    /// needs: a smaller reservation on all nodes would take long to come down to this number.
    pub fn nodes_with_more(&self) -> Vec<(NodeIndex, u32)> {
        if self.reservation_changes() {
            return Vec::new();
        }
        let kept = |index: NodeIndex| {
            let node = self.node(index);
            let kept = self.slots_kept_for_others(index)?.max(self.slots_min_on(node));
            (kept < node.slots.reserved).then_some((index, kept))
        };
        self.up_nodes().into_iter().filter_map(kept).collect()
    }

    /// The same, where the volume has to collect first: its garbage lies in the slots that it could
    /// give back.
    pub fn crowded_nodes(&self) -> Vec<(NodeIndex, u32)> {
        let kept = |index: NodeIndex| {
            let kept = self.slots_kept_for_others(index)?;
            (kept < self.slots_min_on(self.node(index))).then_some((index, kept))
        };
        self.up_nodes().into_iter().filter_map(kept).collect()
    }

    /// Slots that the volume keeps on a node on which other volumes lack slots, if these are fewer
    /// than it has, and if it holds no garbage there.
    fn slots_kept_for_others(&self, index: NodeIndex) -> Option<u32> {
        let reserved = self.node(index).slots.reserved;
        let less = reserved.saturating_sub(self.slots_lacking(index));
        let min_slots = match reserved < self.reservation.slots {
            true => self.slots_alone(index).min(self.slots_needed()),
            false => self.slots_alone(index),
        };
        let kept = less.max(min_slots);
        (kept < reserved).then_some(kept)
    }

    /// What other nodes have granted: those that are up, are no larger than this node, and whose
    /// disks have room for more. If no such node is up, the numbers that the absent ones had
    /// granted, each at least the smallest number of a node that is up.
    fn granted_by_others(&self, node: NodeIndex) -> Vec<u32> {
        let size = self.node(node).stat.slots_total;
        let counts = |(index, other): &(NodeIndex, &Node)| {
            *index != node && other.slots.reserved > 0 && !other.slots.disk_limited
        };
        let others = || (0..).map(NodeIndex).zip(&self.nodes).filter(counts);
        let up = || others().filter(|(_, other)| other.health == NodeHealth::Up);
        let comparable = |(_, other): &(NodeIndex, &Node)| other.stat.slots_total <= size;
        let slots = |(_, other): (NodeIndex, &Node)| other.slots.reserved;
        let granted: Vec<u32> = up().filter(comparable).map(slots).collect();
        if !granted.is_empty() {
            return granted;
        }
        let min_slots = up().map(slots).min().unwrap_or(0);
        let absent = others().filter(|(_, other)| other.health != NodeHealth::Up);
        absent.filter(comparable).map(|other| slots(other).max(min_slots)).collect()
    }

    /// Slots that most nodes have granted, up to the volume's reservation. The volume grows from
    /// here, so a few nodes that refuse more do not keep the others from growing.
    pub fn slots_common(&self) -> u32 {
        let counts = |node: &&Node| {
            node.health == NodeHealth::Up && !node.slots.disk_limited && node.slots.reserved > 0
        };
        let granted = self.nodes.iter().filter(counts).map(|node| node.slots.reserved);
        let granted: Vec<u32> = granted.collect();
        granted_by_most(&granted).unwrap_or(u32::MAX).min(self.reservation.slots)
    }

    /// The volume's level on a node, if other nodes tell it: see the module's essay.
    pub fn slots_level(&self, node: NodeIndex) -> Option<u32> {
        self.granted_by_others(node).into_iter().min()
    }

    /// Slots that the volume may ask this node alone for: its level, or what the exceptions to it
    /// permit.
    pub fn slots_alone(&self, node: NodeIndex) -> u32 {
        let granted = self.granted_by_others(node);
        let Some(level) = granted.iter().min() else { return u32::MAX };
        let permitted = match self.reservation.provisioning {
            Provisioning::Thick => self.slots_whole(self.geometry.size_bytes),
            Provisioning::Thin => granted_by_most(&granted).unwrap_or(0).min(self.slots_needed()),
        };
        permitted.max(*level)
    }

    /// The size of the request to this node when the volume wants `slots` on every node: the larger
    /// of [`Self::slots_alone`] and [`Self::slots_kept`], but at most `slots`.
    pub fn slots_to_ask(&self, node: NodeIndex, slots: u32) -> u32 {
        slots.min(self.slots_alone(node).max(self.slots_kept(node)))
    }

    /// The smallest reservation that the volume sends to this node alone: the number of slots that
    /// the node has granted. While a release is in progress, the number may rise again to
    /// [`Self::slots_min_on`], up to the granted and the released slots together.
    ///
    /// A node that has just joined may have granted slots before. Then the number covers at least
    /// the volume's shards there and the slots that it needs there to go on.
    pub fn slots_kept(&self, node: NodeIndex) -> u32 {
        let state = self.node(node);
        if state.slots.reserved > 0 {
            let granted = state.slots.reserved.saturating_add(state.slots.given_up);
            return state.slots.reserved.max(self.slots_min_on(state).min(granted));
        }
        let shards = self.shards_on(node);
        let min_slots = shards.saturating_add(self.slots_min_on(state));
        // A node that has its shards has kept the reservation.
        let kept = if shards > 0 { state.slots.before } else { 0 };
        min_slots.max(kept.min(shards.saturating_add(state.slots.free)))
    }

    /// Slots that rebuild may ask one node for, where the nodes together grant no more: users'
    /// blocks come first. The volume can release them again to another volume that lacks slots.
    pub fn slots_for_rebuild(&self, node: NodeIndex) -> u32 {
        let most = self.granted_by_others(node).into_iter().max().unwrap_or(0);
        self.slots_needed().min(most).min(self.reservation.slots)
    }

    /// The slots on a node that the volume holds or may be about to take, and those that it always
    /// leaves free. Every segment that has begun may come to this node.
    pub fn slots_min_on(&self, node: &Node) -> u32 {
        let moving = self.segments.unsealed() + self.segments_freeing + self.slots_always_free();
        held_on(node).saturating_add(u32::try_from(moving).unwrap_or(u32::MAX))
    }

    /// Sets the reservation to `slots` slots on every node, but never to fewer than the volume
    /// holds.
    pub fn set_reservation(&mut self, slots: u32) {
        let slots = slots.max(self.slots_min());
        self.reservation.changing = true;
        self.reservation.slots = slots;
        self.reservation.agreed = true;
        // From here on users can only count on the remaining slots.
        for node in self.nodes.iter_mut().filter(|node| node.health == NodeHealth::Up) {
            node.slots.give_up(slots);
        }
        self.spawn_with(move |ctx| async move {
            for node in ctx.with(|core| core.up_nodes()) {
                let slots = ctx.with(|core| {
                    let min_slots = core.slots_min();
                    core.reservation.slots = core.reservation.slots.max(min_slots);
                    core.slots_to_ask(node, core.reservation.slots)
                });
                reserve_on(&ctx, node, slots).await;
            }
            ctx.with(|core| {
                core.reservation.changing = false;
                core.pursue_goal();
                core.consider_gc();
            });
        });
    }

    /// The volume begins to serve: it reserves the slots that its present state asks for.
    pub fn start_reservation(&mut self) {
        self.reservation.slots = self.slots_wanted();
        self.reservation.changing = true;
        self.spawn_with(reserve_at_start);
    }

    /// A node keeps fewer slots for the volume than the volume needs there: it came back empty, and
    /// other volumes had taken more than their share.
    pub fn lacks_promised_slots(&self) -> bool {
        let promised = self.slots_needed_without_losses().min(self.reservation.slots);
        let lacks = |node: &NodeIndex| {
            let state = self.node(*node);
            !state.slots.disk_limited && state.slots.reserved < self.slots_to_ask(*node, promised)
        };
        self.up_nodes().iter().any(lacks)
    }

    /// True if a node has announced this volume's need to the other volumes, so that those may
    /// release slots.
    pub fn awaits_others(&self) -> bool {
        self.nodes.iter().any(|node| node.health == NodeHealth::Up && node.slots.announced > 0)
    }

    /// Slots that other volumes wait for on a node, as far as the node's last answer says.
    pub fn slots_lacking(&self, node: NodeIndex) -> u32 {
        let state = self.node(node);
        let own = state.slots.announced.saturating_sub(state.slots.reserved);
        state.stat.slots_lacking.saturating_sub(own)
    }

    /// The nodes on which this volume's announced need is larger than its present need.
    pub fn stale_announcements(&self) -> Vec<NodeIndex> {
        let stale = |node: &NodeIndex| {
            let wanted = self.slots_to_ask(*node, self.reservation.slots);
            self.node(*node).slots.announced > wanted - self.slots_spare(*node, wanted)
        };
        let announces = |node: &NodeIndex| self.node(*node).slots.announced > 0;
        self.up_nodes().into_iter().filter(announces).filter(stale).collect()
    }

    /// Asks the nodes for slots that they keep too few of, however much room is left: another
    /// volume may need tomorrow the slots that it can spare today.
    pub fn claim_promised_slots(&mut self) {
        if self.reservation_changes() || self.phase != VolumePhase::Serving {
            return;
        }
        let stale = self.stale_announcements();
        let lacks = self.lacks_promised_slots() && !self.was_refused_lately();
        if !lacks && stale.is_empty() {
            return;
        }
        self.reservation.changing = true;
        self.spawn_with(move |ctx| async move {
            for node in stale {
                // A node that was lost meanwhile announces nothing, and its reservation is unknown.
                let (announces, granted) = ctx.with(|core| {
                    let state = core.node(node);
                    (state.slots.announced > 0, state.slots.reserved)
                });
                if announces {
                    reserve_on(&ctx, node, granted).await;
                }
            }
            if !lacks {
                return ctx.with(|core| core.reservation.changing = false);
            }
            let gained = reserve_missing(&ctx).await;
            ctx.with(|core| core.asked_for_more(gained));
        });
    }

    /// Slots of a node that the volume could still reserve.
    pub fn slots_to_gain(&self, node: &Node) -> u64 {
        if node.slots.reserved == 0 {
            return 0;
        }
        let more = self.slots_useful().saturating_sub(node.slots.reserved);
        u64::from(more.min(node.stat.slots_free))
    }

    /// The volume is asking nodes for more room, or giving some back. One change of the reservation
    /// ends before the next begins.
    pub fn reservation_changes(&self) -> bool {
        self.reservation.changing
    }

    /// Nodes may be about to grant slots, so it is too early to refuse a write. A volume that grows
    /// may wait for other volumes for 20 s and more, and writes do not wait with it.
    pub fn is_asking_nodes(&self) -> bool {
        self.reservation.changing && !self.reservation.waits_for_others
    }

    /// Acts against a lack of room: collects, and asks nodes for more.
    pub fn make_room(&mut self) {
        self.grow_reservation();
        self.start_gc();
    }

    /// Asks nodes for more room, if there may be more and no node has refused just now. It first
    /// asks single nodes that have granted less than the others, then these nodes together, then
    /// all.
    pub fn grow_reservation(&mut self) {
        if self.reservation_changes()
            || self.was_refused_lately()
            || self.phase != VolumePhase::Serving
        {
            return;
        }
        let missing =
            self.nodes_with_less().iter().any(|node| !self.node(*node).slots.disk_limited);
        let low = !self.low_nodes().is_empty();
        let more = self.may_grow();
        if !missing && !low && !more {
            return;
        }
        let step = self.slots_common().saturating_add(self.step().max(1));
        let wanted = self.slots_wanted().max(step).min(self.slots_max());
        self.reservation.changing = true;
        self.spawn_with(move |ctx| async move {
            let gained = (missing && reserve_missing(&ctx).await)
                || (low && reserve_on_low(&ctx).await)
                || (more && reserve_more(&ctx, wanted).await);
            ctx.with(|core| core.asked_for_more(gained));
        });
    }

    /// Slots on each node by which the reservation grows.
    fn step(&self) -> u32 {
        u32::try_from(self.capacity_params().slots(self.grow_segments())).unwrap_or(u32::MAX)
    }

    /// The volume may ask all nodes for more. For a while after a release, the volume asks only for
    /// slots that it needs.
    fn may_grow(&self) -> bool {
        // A thick volume can work with the slots that it needs as soon as collection has made room.
        // A thin one grows with its data.
        let thick = self.reservation.provisioning == Provisioning::Thick;
        let can_wait = self.slots_surplus() >= self.step() || (thick && !self.starved());
        self.slots_common() < self.slots_max() && !(self.released_lately() && can_wait)
    }

    /// Nodes have refused to grant more, and the volume does not ask again yet.
    pub fn was_refused_lately(&self) -> bool {
        self.is_lately(self.reservation.refused_at)
    }

    /// The refusal at this time was too recent to ask again.
    fn is_lately(&self, refused_at: Option<Nanos>) -> bool {
        refused_at.is_some_and(|at| self.now.since(at) < Nanos::from_ms(ASK_AGAIN_MS))
    }

    /// Rebuild lacks room, and some nodes keep fewer slots for the volume than the others.
    pub fn rebuild_asks_for_room(&self) -> bool {
        let less = || !self.nodes_with_less().is_empty() || !self.low_nodes().is_empty();
        let asks = self.rebuild.lacks_room && less();
        asks && !self.reservation_changes() && !self.is_lately(self.reservation.rebuild_refused_at)
    }

    /// The nodes have answered a request for rebuild's room.
    pub fn rebuild_asked_for_room(&mut self, gained: bool) {
        self.reservation.rebuild_refused_at = (!gained).then_some(self.now);
        match gained {
            true => self.asked_for_more(true),
            false => self.reservation.changing = false,
        }
    }

    /// The nodes have answered a request for more slots.
    pub fn asked_for_more(&mut self, gained: bool) {
        self.reservation.changing = false;
        self.reservation.refused_at = (!gained).then_some(self.now);
        if gained {
            self.collection.note_change();
        }
    }

    /// The nodes that could not grant as many slots as the volume may ask them for.
    pub fn nodes_with_less(&self) -> Vec<NodeIndex> {
        let slots = self.reservation.slots;
        let less =
            |node: &NodeIndex| self.node(*node).slots.reserved < self.slots_to_ask(*node, slots);
        self.up_nodes().into_iter().filter(less).collect()
    }

    /// The nodes that have granted less than the volume has reserved. Empty for a while after the
    /// volume released slots for other volumes.
    pub fn low_nodes(&self) -> Vec<NodeIndex> {
        let reserved = self.reservation.slots;
        let low = |node: &Node| {
            let asks = node.health == NodeHealth::Up && !node.slots.disk_limited;
            asks && node.slots.reserved > 0 && node.slots.reserved < reserved
        };
        if self.released_lately() { Vec::new() } else { self.nodes_that(low) }
    }

    /// Releases the slots that the volume no longer needs. A thick volume that users write to keeps
    /// its idle slots: it would take them again at once.
    pub fn shrink_reservation(&mut self, at_rest: bool) {
        let keeps = !at_rest && self.reservation.provisioning == Provisioning::Thick;
        let idle = if keeps { self.reservation.slots.min(self.slots_max()) } else { 0 };
        let wanted = self.slots_wanted().max(idle);
        let step = self.step();
        let spare = self.reservation.slots.saturating_sub(wanted);
        let more = |node: &Node| node.slots.reserved > self.reservation.slots;
        let uneven = self.nodes.iter().any(|node| node.health == NodeHealth::Up && more(node));
        if self.reservation_changes()
            || (spare <= step && !uneven)
            || self.phase != VolumePhase::Serving
        {
            return;
        }
        let wanted = if spare <= step { self.reservation.slots } else { wanted };
        self.set_reservation(wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::{granted_by_most, share_of_idle};

    #[test]
    fn slots_that_one_node_grants_beyond_the_others_are_left_out() {
        assert_eq!(granted_by_most(&[66, 68, 66]), Some(66));
        assert_eq!(granted_by_most(&[66, 60, 66]), Some(66), "one node grants less");
        assert_eq!(granted_by_most(&[68, 66]), Some(66));
        assert_eq!(granted_by_most(&[70, 60, 70, 60]), Some(60), "half of the nodes are not most");
        assert_eq!(granted_by_most(&[]), None, "all disks are full");
    }

    #[test]
    fn a_volume_leaves_a_quarter_of_the_idle_slots() {
        assert_eq!(share_of_idle(0, 100, 1000), 75);
        assert_eq!(share_of_idle(75, 25, 1000), 75, "it keeps them");
        assert_eq!(share_of_idle(75, 5, 1000), 60, "another volume took 20");
        assert_eq!(share_of_idle(75, 0, 1000), 56);
        assert_eq!(share_of_idle(0, 1, 1000), 0, "the last one stays unclaimed");
        assert_eq!(share_of_idle(0, 100, 8), 8, "more would be of little use");
    }

    #[test]
    fn volumes_come_to_equal_shares() {
        let mut idle = [0u32; 4];
        let pot = 1000;
        for _ in 0..20 {
            for volume in 0..idle.len() {
                let unclaimed = pot - idle.iter().sum::<u32>();
                idle[volume] = share_of_idle(idle[volume], unclaimed, u32::MAX);
            }
        }
        let share = pot * 3 / (3 * 4 + 1); // four shares, and a third of one is unclaimed
        assert!(idle.iter().all(|idle| idle.abs_diff(share) <= 4), "{idle:?}");
    }
}
