//! Asking nodes for slots, and giving slots back.
//!
//! `provision` says how many slots the volume wants. Here the volume asks for them: for the same
//! number on every node, since a segment takes one slot of each of its nodes. A node that grants
//! more than others gives it back, so that two volumes that grow at the same time do not each end
//! with half of what a segment takes. A node that cannot grant what the others have (it came back
//! after they were asked, say) grants what it can, counts with that, and is asked for the rest when
//! room is short.

use fieldstone_block::Nanos;
use fieldstone_proto::{NodeError, NodeIndex, ReplyBody, RequestBody};

use crate::calls::{CallResult, SHORT_SLOTS};
use crate::core::{Core, Ctx, Node};
use crate::seam::Provisioning;
use crate::segment::Segment;
use crate::status::NodeHealth;

/// How often it is told that a node's disk is full.
const TELL_AGAIN_MS: u64 = 60_000;
/// Times that a smaller reservation is tried where a node refuses.
const TRIES_MAX: u32 = 8;
/// How long a volume that is made or grown waits for others to give back what they can spare.
/// Others look every 4 s and give back within some seconds.
const GIVE_BACK_MS_MAX: u64 = 20_000;
/// How often it asks meanwhile.
const GIVE_BACK_POLL_MS: u64 = 500;

impl Core {
    /// What the volume asks a node when it wants `slots` slots.
    fn request_for(&self, slots: u32) -> RequestBody {
        RequestBody::Reserve { slots, spare: slots.saturating_sub(self.slots_needed()) }
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
pub async fn reserve_more(ctx: &Ctx, wanted: u32) -> bool {
    let (nodes, before) = ctx.with(|core| (core.up_nodes(), core.reservation.slots));
    let mut slots = wanted;
    for _ in 0..TRIES_MAX {
        let body = ctx.with(|core| core.request_for(slots));
        let answers = ctx.call_all(&nodes, &body).await;
        let refused = answers.iter().any(|(_, answer)| others_have_it(answer));
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
    // Slots that some nodes granted beyond the others are of no use.
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
pub async fn reserve_on(ctx: &Ctx, node: NodeIndex, wanted: u32) {
    // Answers tell what is left of the smaller reservation from here on.
    ctx.with(|core| {
        let state = core.node_mut(node);
        state.slots_reserved = state.slots_reserved.min(wanted);
    });
    let known = ctx.with(|core| core.slots_known(node)).min(wanted);
    let mut slots = wanted;
    for _ in 0..TRIES_MAX {
        let body = ctx.with(|core| core.request_for(slots));
        match ctx.call(node, body).await {
            Ok(_) => {
                return ctx.with(|core| {
                    let limited = core.node(node).disk_limited && slots < wanted;
                    core.note_reserved(node, slots);
                    if limited {
                        core.note_disk_limited(node);
                    }
                });
            }
            Err(NodeError::NoSpace | NodeError::Busy) if slots > known => {
                slots = known + (slots - known) / 2;
            }
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

/// The node cannot grant a reservation because of other volumes.
fn others_have_it(answer: &CallResult) -> bool {
    matches!(answer, Err(NodeError::NoSpace | NodeError::Busy))
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

/// Reserves on all nodes the most that all of them grant, when the volume begins to serve.
pub async fn reserve_at_start(ctx: Ctx) {
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

/// Gives back room if other volumes need it.
pub async fn yield_if_needed(ctx: &Ctx) {
    if ctx.with(|core| !core.has_spare_slots() || core.growing()) {
        return;
    }
    for node in ctx.with(|core| core.up_nodes()) {
        learn_room(ctx, node).await;
    }
    ctx.with(|core| {
        let up = |node: &&Node| node.health == NodeHealth::Up;
        let up: Vec<&Node> = core.nodes.iter().filter(up).collect();
        let lacking = up.iter().map(|node| node.stat.slots_lacking).max().unwrap_or(0);
        // Where the disk is full, giving back makes no room.
        let full = |node: &&Node| node.stat.slots_free == 0 && !node.disk_limited && !node.short;
        let nothing_left = up.iter().any(full);
        if lacking > 0 || nothing_left {
            core.yield_room(lacking);
        }
    });
}

/// Gives back the slots that the volume can do without, when the volume closes: later no other
/// volume could ask for them.
pub async fn give_back_spare(ctx: &Ctx) {
    let (nodes, reserved, slots) = ctx.with(|core| {
        let slots = core.slots_needed().max(core.slots_least());
        (core.up_nodes(), core.reservation.slots, slots)
    });
    if slots < reserved {
        let body = ctx.with(|core| core.request_for(slots));
        ctx.call_all(&nodes, &body).await;
    }
}

/// Reserves what a volume of `size_bytes` wants from the moment that it has that size. Waits for
/// other volumes if they can spare what is lacking.
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
    let mut asked = nodes.clone();
    let mut waited_ms = 0;
    let mut later = false;
    let refused = loop {
        // All of it is needed.
        let body = RequestBody::Reserve { slots: wanted, spare: 0 };
        let answers = ctx.call_all(&asked, &body).await;
        ctx.with(|core| {
            for (node, _) in answers.iter().filter(|(_, answer)| answer.is_ok()) {
                core.note_reserved(*node, wanted);
            }
        });
        later |= answers.iter().any(|(_, answer)| *answer == Err(NodeError::Busy));
        asked = answers.iter().filter(|(_, a)| others_have_it(a)).map(|(node, _)| *node).collect();
        let Some(first) = asked.first() else {
            ctx.with(|core| core.reservation.slots = wanted);
            return Ok(());
        };
        if !later || waited_ms >= GIVE_BACK_MS_MAX {
            break *first;
        }
        ctx.sleep_ms(GIVE_BACK_POLL_MS).await;
        waited_ms += GIVE_BACK_POLL_MS;
    };
    learn_room(ctx, refused).await;
    let (free_bytes, wanted_bytes) = ctx.with(|core| {
        let stat = core.node(refused).stat;
        let bytes = |slots: u32| u64::from(slots) * u64::from(stat.slot_bytes);
        let mine = core.node(refused).slots_reserved;
        (bytes(stat.slots_free), bytes(wanted.saturating_sub(mine)))
    });
    for node in nodes {
        reserve_on(ctx, node, before).await;
    }
    Err(format!(
        "{refused} has {free_bytes} bytes that no volume has reserved, and {wanted_bytes} more are \
         wanted on each node; make it smaller or thin, remove other volumes, or serve those that were \
         not closed: they give back what they can spare"
    ))
}
