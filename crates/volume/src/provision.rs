//! Reservations: the slots that the volume keeps for itself on every node.
//!
//! Volumes of one pool share its nodes. A node lets a volume take slots up to the volume's
//! reservation there, and keeps slots free for what volumes have reserved and do not hold (the
//! node's `store/shares`). So the room of a volume is its own: `space` counts with it, and no
//! neighbour can take what collection, checkpoints, trims or the next opening need.
//!
//! - A *thick* volume reserves what its whole size takes, when it is made or grown. If a node has
//!   not that much, the volume is not made, or does not grow. It asks for a little more where there
//!   is more: for segments that are being written, and for shards of lost nodes that are made anew
//!   on the others.
//!   When nodes have nothing left for others, volumes give back what they have beyond their needs
//!   (`slots_needed`), half of it each second.
//! - A *thin* volume reserves what it holds, what it needs to go on, and a little to grow into. It
//!   asks for more as it fills, and gives back what it no longer needs with each checkpoint. When
//!   nodes refuse, it lives with what it has: it collects, and tells users that there is no space.
//!
//! The reservation is the same number of slots on every node. A node that grants more than others
//! gives it back, so that two volumes that grow at the same time do not each end with half of what
//! a segment takes. A node that cannot grant what the others have (it came back after they were
//! asked, say) grants what it can, counts with that, and is asked for the rest when room is short.

use fieldstone_block::Nanos;
use fieldstone_proto::{BLOCK_BYTES, NodeError, NodeIndex, ReplyBody, RequestBody};

use crate::calls::SHORT_SLOTS;
use crate::core::{Core, Ctx, Node};
use crate::seam::Provisioning;
use crate::segment::Segment;
use crate::status::{NodeHealth, Phase};

/// How long a refusal counts before nodes are asked again.
const ASK_AGAIN_MS: u64 = 200;
/// Fewest segments that a volume grows by.
const GROW_SEGMENTS_MIN: u64 = 2;
/// A volume grows by one in so many of its segments.
const GROW_FRACTION: u64 = 8;
/// How often it is told that a node's disk is full.
const TELL_AGAIN_MS: u64 = 60_000;
/// How long a volume that gave back room for others asks for no more than it needs.
const YIELD_MS: u64 = 5_000;
/// Times that a smaller reservation is tried where a node refuses.
const TRIES_MAX: u32 = 8;

/// What the volume has reserved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reservation {
    /// Whether it is for the volume's whole size.
    pub provisioning: Provisioning,
    /// Slots on each node; 0 until the volume serves.
    pub slots: u32,
    /// Nodes are being asked for more.
    growing: bool,
    /// When nodes last refused.
    refused_at: Option<Nanos>,
    /// When the volume last gave back room because others had none.
    yielded_at: Option<Nanos>,
}

impl Core {
    /// Slots on each node that the whole volume takes.
    fn slots_whole(&self, size_bytes: u64) -> u32 {
        let slots = self.shape().slots_for(size_bytes / BLOCK_BYTES as u64);
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Segments that the journal holds at most: so many are being written when users write as fast
    /// as they can.
    fn ring_segments(&self) -> u64 {
        let segment_bytes = u64::from(self.layout.segment_blocks()) * BLOCK_BYTES as u64;
        self.geometry.ring_bytes.div_ceil(segment_bytes.max(1))
    }

    /// Segments that the volume grows by when it asks for more.
    fn grow_segments(&self) -> u64 {
        let own = self.segments.len() as u64;
        GROW_SEGMENTS_MIN.max(own / GROW_FRACTION).max(self.ring_segments() / 2)
    }

    /// Slots on each node beyond which the volume never asks for more: what it takes whole when
    /// the shards of lost nodes are made anew on the others, and what is being written.
    pub fn slots_most(&self) -> u32 {
        let blocks = self.geometry.size_bytes / BLOCK_BYTES as u64;
        let writing = self.shape().slots(2 * self.ring_segments());
        let slots = self.shape().slots_for_with_losses(blocks).saturating_add(writing);
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Slots on each node that the volume wants at present.
    fn slots_wanted(&self) -> u32 {
        let now = self.slots_with(self.grow_segments());
        let now = u32::try_from(now).unwrap_or(u32::MAX);
        let now = now.min(self.slots_most());
        match self.reservation.provisioning {
            Provisioning::Thick => now.max(self.slots_whole(self.geometry.size_bytes)),
            Provisioning::Thin => now,
        }
    }

    /// Slots on each node with which the volume can go on for ever: a thick one with all of its
    /// size, a thin one with what it holds.
    fn slots_needed(&self) -> u32 {
        let blocks = match self.reservation.provisioning {
            Provisioning::Thick => self.geometry.size_bytes / BLOCK_BYTES as u64,
            Provisioning::Thin => self.map.used_blocks(),
        };
        let slots = match self.nodes_up() == self.nodes.len() {
            true => self.shape().slots_for(blocks),
            false => self.shape().slots_for_with_losses(blocks),
        };
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Slots on each node that the volume has reserved beyond what it needs.
    fn slots_surplus(&self) -> u32 {
        self.reservation.slots.saturating_sub(self.slots_needed())
    }

    /// Nodes have nothing left for others: the volume gives back half of what it has beyond its
    /// needs. Collection sees to it that the volume can do without.
    fn yield_room(&mut self) {
        let surplus = self.slots_surplus();
        if surplus == 0 || self.growing() || self.phase != Phase::Serving {
            return;
        }
        let slots = (self.reservation.slots - surplus.div_ceil(2)).max(self.slots_least());
        if slots < self.reservation.slots {
            self.reservation.yielded_at = Some(self.now);
            self.set_reservation(slots);
        }
    }

    /// Slots on each node below which the volume never goes: what it holds or is about to hold,
    /// garbage included, with what it always leaves free. An opening may have to do with it.
    fn slots_least(&self) -> u32 {
        let held = |node: &Node| node.slots_reserved.saturating_sub(node.slots_free);
        let up = self.nodes.iter().filter(|node| node.health == NodeHealth::Up);
        let held = up.map(held).max().unwrap_or(0);
        let least = u32::try_from(self.slots_least_known()).unwrap_or(u32::MAX);
        least.max(held.saturating_add(u32::try_from(self.slots_always_free()).unwrap_or(u32::MAX)))
    }

    fn set_reservation(&mut self, slots: u32) {
        self.reservation.growing = true;
        self.reservation.slots = slots;
        self.spawn_with(move |ctx| async move {
            for node in ctx.with(|core| core.up_nodes()) {
                reserve_on(&ctx, node, slots).await;
            }
            ctx.with(|core| {
                core.reservation.growing = false;
                core.consider_gc();
            });
        });
    }

    /// Slots of a node that the volume could still reserve.
    pub fn slots_to_gain(&self, node: &Node) -> u64 {
        if node.slots_reserved == 0 {
            return 0;
        }
        let more = self.slots_most().saturating_sub(node.slots_reserved);
        u64::from(more.min(node.stat.slots_free))
    }

    /// Nodes are being asked for more room.
    pub fn growing(&self) -> bool {
        self.reservation.growing
    }

    /// Does what can be done against a lack of room: collects, and asks nodes for more.
    pub fn make_room(&mut self) {
        self.grow_reservation();
        self.start_gc();
    }

    /// Asks nodes for more room, if there may be more and none has refused just now.
    pub fn grow_reservation(&mut self) {
        let reserved = self.reservation.slots;
        let most = self.slots_most();
        let refused = self.reservation.refused_at;
        let patient = refused.is_some_and(|at| self.now.since(at) < Nanos::from_ms(ASK_AGAIN_MS));
        if self.growing() || patient || self.phase != Phase::Serving {
            return;
        }
        if self.nodes_with_less().iter().any(|node| !self.node(*node).disk_limited) {
            self.reservation.growing = true;
            return self.spawn_with(|ctx| async move {
                let gained = reserve_missing(&ctx).await;
                ctx.with(|core| core.asked_for_more(gained));
            });
        }
        let yielded = self.reservation.yielded_at;
        let yields = yielded.is_some_and(|at| self.now.since(at) < Nanos::from_ms(YIELD_MS));
        let step = u32::try_from(self.shape().slots(self.grow_segments())).unwrap_or(u32::MAX);
        if reserved >= most || (yields && self.slots_surplus() >= step) {
            return;
        }
        let step = step.max(1);
        let wanted = self.slots_wanted().max(reserved.saturating_add(step)).min(most);
        self.reservation.growing = true;
        self.spawn_with(move |ctx| async move {
            let grown = reserve_more(&ctx, wanted).await;
            ctx.with(|core| core.asked_for_more(grown));
        });
    }

    fn asked_for_more(&mut self, gained: bool) {
        self.reservation.growing = false;
        self.reservation.refused_at = (!gained).then_some(self.now);
        if gained {
            self.gc_stuck = false;
        }
    }

    /// The nodes that could not grant as much as the others have.
    pub fn nodes_with_less(&self) -> Vec<NodeIndex> {
        let reserved = self.reservation.slots;
        self.nodes_that(|n| n.health == NodeHealth::Up && n.slots_reserved < reserved)
    }

    /// Gives back what the volume no longer needs.
    pub fn shrink_reservation(&mut self) {
        let wanted = self.slots_wanted();
        let step = self.shape().slots(self.grow_segments());
        let spare = u64::from(self.reservation.slots.saturating_sub(wanted));
        let more = |node: &Node| node.slots_reserved > self.reservation.slots;
        let uneven = self.nodes.iter().any(|node| node.health == NodeHealth::Up && more(node));
        if self.growing() || (spare <= step && !uneven) || self.phase != Phase::Serving {
            return;
        }
        let wanted = if spare <= step { self.reservation.slots } else { wanted };
        self.set_reservation(wanted);
    }

    /// The node said that the volume has reserved `slots` slots there.
    fn note_reserved(&mut self, node: NodeIndex, slots: u32) {
        let state = self.node_mut(node);
        let taken = slots.saturating_sub(state.slots_reserved);
        let given = state.slots_reserved.saturating_sub(slots);
        state.stat.slots_free = state.stat.slots_free.saturating_sub(taken) + given;
        state.slots_reserved = slots;
        state.disk_limited = false;
        self.note_short(node);
    }

    /// The node did not grant a reservation because its disk has no room.
    fn note_disk_limited(&mut self, node: NodeIndex) {
        self.node_mut(node).disk_limited = true;
        self.note_short(node);
    }

    /// A node says that nothing is left of what the volume has reserved there. If the volume does
    /// not hold as much, the node's disk is full: its file system has less room than the size of
    /// the node says.
    pub fn note_short(&mut self, node: NodeIndex) {
        let state = self.node(node);
        let claimed = state.slots_claimed.len() as u64;
        let moving = self.segments.unsealed() + self.segments_freeing + claimed;
        let lacks = || u64::from(self.slots_known(node)) + moving < u64::from(state.slots_reserved);
        let short = state.slots_free <= SHORT_SLOTS && (state.disk_limited || lacks());
        let now = self.now;
        let state = self.node_mut(node);
        if short && !state.short {
            state.reason = "its disk is full".into();
            let again = Nanos::from_ms(TELL_AGAIN_MS);
            if state.short_told_at.is_none_or(|at| now.since(at) >= again) {
                state.short_told_at = Some(now);
                tracing::warn!("{node}: its disk has less room than the node's size says");
            }
        } else if state.short && !short {
            state.reason.clear();
        }
        self.node_mut(node).short = short;
    }

    /// Slots that the volume holds on a node, and may still take there.
    fn slots_known(&self, node: NodeIndex) -> u32 {
        let holds = |segment: &Segment| segment.shards.contains(&Some(node));
        let held = self.segments.iter().filter(|(_, segment)| holds(segment)).count();
        u32::try_from(held).unwrap_or(u32::MAX).saturating_add(self.node(node).slots_free)
    }
}

/// Reserves the same number of slots on all nodes that are up: `wanted`, or as much of it as all of
/// them have. True if it is more than before.
async fn reserve_more(ctx: &Ctx, wanted: u32) -> bool {
    let (nodes, before) = ctx.with(|core| (core.up_nodes(), core.reservation.slots));
    let mut slots = wanted;
    for _ in 0..TRIES_MAX {
        let answers = ctx.call_all(&nodes, &RequestBody::Reserve { slots }).await;
        let refused = answers.iter().any(|(_, answer)| *answer == Err(NodeError::NoSpace));
        ctx.with(|core| {
            for (node, answer) in &answers {
                match answer {
                    Ok(_) => core.note_reserved(*node, slots),
                    // A disk that is full is like a node that is lost: the others go on.
                    Err(NodeError::Io(_)) => core.note_disk_limited(*node),
                    Err(_) => {}
                }
            }
        });
        if !refused {
            ctx.with(|core| core.reservation.slots = slots);
            return slots > before;
        }
        slots = before + (slots - before) / 2;
        if slots == before {
            break;
        }
    }
    // What some have granted beyond the others is of no use.
    for node in nodes {
        let more = ctx.with(|core| core.node(node).slots_reserved > before);
        if more {
            reserve_on(ctx, node, before).await;
        }
        learn_room(ctx, node).await;
    }
    false
}

/// Reserves `wanted` slots on one node, or as many as it grants.
async fn reserve_on(ctx: &Ctx, node: NodeIndex, wanted: u32) {
    let known = ctx.with(|core| core.slots_known(node)).min(wanted);
    let mut slots = wanted;
    for _ in 0..TRIES_MAX {
        match ctx.call(node, RequestBody::Reserve { slots }).await {
            Ok(_) => {
                return ctx.with(|core| {
                    let limited = core.node(node).disk_limited && slots < wanted;
                    core.note_reserved(node, slots);
                    if limited {
                        core.note_disk_limited(node);
                    }
                });
            }
            Err(NodeError::NoSpace) if slots > known => slots = known + (slots - known) / 2,
            Err(NodeError::Io(_)) if slots > known => {
                ctx.with(|core| core.note_disk_limited(node));
                slots = known + (slots - known) / 2;
            }
            Err(_) => return,
        }
    }
}

/// Asks the nodes that have granted less than the others for the rest. True if any has granted
/// more.
pub async fn reserve_missing(ctx: &Ctx) -> bool {
    let (nodes, slots) = ctx.with(|core| (core.nodes_with_less(), core.reservation.slots));
    let mut gained = false;
    for node in nodes {
        let before = ctx.with(|core| core.node(node).slots_reserved);
        reserve_on(ctx, node, slots).await;
        gained |= ctx.with(|core| core.node(node).slots_reserved > before);
    }
    gained
}

async fn learn_room(ctx: &Ctx, node: NodeIndex) {
    if let Ok(ReplyBody::Stat(stat)) = ctx.call(node, RequestBody::Stat).await {
        ctx.with(|core| core.node_mut(node).stat = stat);
    }
}

/// Reserves on a node that has joined what the volume has reserved on the others.
pub async fn reserve_joined(ctx: &Ctx, node: NodeIndex) {
    let slots = ctx.with(|core| core.reservation.slots);
    if slots > 0 {
        reserve_on(ctx, node, slots).await;
    }
    learn_room(ctx, node).await;
}

impl Core {
    /// The volume begins to serve: it reserves what it wants by its present state.
    pub fn start_reservation(&mut self) {
        self.reservation.slots = self.slots_wanted();
        self.reservation.growing = true;
        self.spawn_with(reserve_at_start);
    }
}

async fn reserve_at_start(ctx: Ctx) {
    let nodes = ctx.with(|core| core.up_nodes());
    let wanted = ctx.with(|core| core.reservation.slots);
    for node in &nodes {
        reserve_on(&ctx, *node, wanted).await;
        learn_room(&ctx, *node).await;
    }
    // What one node grants beyond the others is of no use to this volume, and may be to others.
    ctx.with(|core| {
        let granted = |node: &NodeIndex| {
            let state = core.node(*node);
            (!state.disk_limited).then_some(state.slots_reserved)
        };
        let common = nodes.iter().filter_map(granted).min().unwrap_or(wanted);
        let slots = common.max(core.slots_needed()).max(core.slots_least()).min(wanted);
        core.set_reservation(slots);
    });
}

/// Gives back room if others need it.
pub async fn yield_if_needed(ctx: &Ctx) {
    if ctx.with(|core| core.slots_surplus() == 0 || core.growing()) {
        return;
    }
    for node in ctx.with(|core| core.up_nodes()) {
        learn_room(ctx, node).await;
    }
    ctx.with(|core| {
        let short = |node: &Node| node.health == NodeHealth::Up && node.stat.slots_free == 0;
        if core.nodes.iter().any(short) {
            core.yield_room();
        }
    });
}

/// Reserves what a volume of `size_bytes` wants from the moment that it has that size.
///
/// # Errors
/// A node has not that much: which, and what it has. Nothing is reserved beyond what was before.
pub async fn reserve_for_size(ctx: &Ctx, size_bytes: u64) -> Result<(), String> {
    let (nodes, before, wanted) = ctx.with(|core| {
        let wanted = match core.reservation.provisioning {
            Provisioning::Thick => core.slots_whole(size_bytes),
            Provisioning::Thin => core.slots_wanted().max(core.reservation.slots),
        };
        let up = |node: &Node| node.health == NodeHealth::Up;
        (core.nodes_that(up), core.reservation.slots, wanted)
    });
    let answers = ctx.call_all(&nodes, &RequestBody::Reserve { slots: wanted }).await;
    let refused = answers
        .iter()
        .find(|(_, answer)| *answer == Err(NodeError::NoSpace))
        .map(|(node, _)| *node);
    ctx.with(|core| {
        for (node, answer) in &answers {
            if answer.is_ok() {
                core.note_reserved(*node, wanted);
            }
        }
    });
    let Some(refused) = refused else {
        ctx.with(|core| core.reservation.slots = wanted);
        return Ok(());
    };
    learn_room(ctx, refused).await;
    let (free_bytes, wanted_bytes) = ctx.with(|core| {
        let stat = core.node(refused).stat;
        let bytes = |slots: u32| u64::from(slots) * u64::from(stat.slot_bytes);
        let mine = core.node(refused).slots_reserved;
        (bytes(stat.slots_free), bytes(wanted.saturating_sub(mine)))
    });
    for (node, answer) in answers {
        if answer.is_ok() {
            reserve_on(ctx, node, before).await;
        }
    }
    Err(format!(
        "{refused} has {free_bytes} bytes that no volume has reserved, and {wanted_bytes} more are \
         wanted on each node; make it smaller, remove other volumes, or make it thin"
    ))
}
