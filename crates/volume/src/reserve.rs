//! Requests to nodes for slots, and the return of slots.
//!
//! `provision` says how many slots the volume wants. This module asks for them: for the same number
//! on every node, because a segment takes one slot on each of its nodes. If a node grants more than
//! the others, the volume gives the excess back, so that two volumes that grow at the same time do
//! not each end with half of the slots that a segment takes. A node may not be able to grant what
//! the others have (it came back after the volume had asked them, say). It then grants what it can.
//! The volume counts with that, and asks for the rest when room is short.

use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_proto::{NodeError, NodeIndex, ReplyBody, RequestBody, SegmentKind};

use crate::calls::{CallResult, SHORT_SLOTS};
use crate::core::{Core, Ctx, Node, Shortage};
use crate::exec::Awaited;
use crate::segment::Segment;
use crate::status::{NodeHealth, Phase};

/// How often the log repeats that a node's disk is full.
const TELL_AGAIN_MS: u64 = 60_000;
/// How many numbers of slots the volume tries on a node that refuses, between the number that it
/// wants and the number that it may have already.
const TRIES_MAX: u32 = 8;
/// How long a volume that is created or grows waits while no other volume gives back spare slots.
/// The others check every 2 s, and may have to collect before they can give back.
const GIVE_BACK_MS_MAX: u64 = 20_000;
/// How often it asks meanwhile.
const GIVE_BACK_POLL_MS: u64 = 500;
/// How long a volume that closes collects to give slots back.
const CLOSE_COLLECTS_MS_MAX: u64 = 3_000;
/// How often a volume that closes asks a busy node to take slots back, and the pause before it asks
/// again.
const CLOSE_ASKS_MAX: u32 = 5;
const CLOSE_ASKS_PAUSE_MS: u64 = 100;
/// How often a change checks whether the change before it has ended.
const CHANGE_POLL_MS: u64 = 5;

/// A request for slots.
struct SlotRequest {
    node: NodeIndex,
    /// The session of the node in which the volume asked.
    session: u64,
    /// The whole reservation that the volume asked for.
    slots: u32,
    /// Those of the `slots` that the volume can do without.
    spare: u32,
    /// Slots that the volume gives back with this request. If the node does not answer that it has
    /// granted the `slots`, it still keeps them for the volume.
    given_up: u32,
}

/// Asks several nodes at once, and waits for all answers.
async fn ask_all(
    ctx: &Ctx,
    nodes: &[NodeIndex],
    mut request: impl FnMut(&mut Core, usize, NodeIndex) -> (u32, u32),
) -> (Vec<SlotRequest>, Vec<(NodeIndex, CallResult)>) {
    let (asked, calls) = ctx.with(|core| {
        let mut ask = |(index, node): (usize, &NodeIndex)| {
            let (slots, spare) = request(core, index, *node);
            let (asked, call) = core.ask(*node, slots, spare);
            (asked, (*node, call))
        };
        nodes.iter().enumerate().map(&mut ask).unzip::<_, _, Vec<_>, Vec<_>>()
    });
    let answers = ctx.wait_all(calls).await;
    (asked, answers)
}

impl Core {
    /// Sends a node the request for `slots` slots, of which the volume can do without `spare`.
    fn ask(
        &mut self,
        node: NodeIndex,
        slots: u32,
        spare: u32,
    ) -> (SlotRequest, Awaited<CallResult>) {
        let state = self.node_mut(node);
        state.give_up_slots(slots);
        // Only a known reservation says what the node keeps.
        let given_up = if state.slots_reserved > 0 { state.slots_given_up } else { 0 };
        let asked = SlotRequest { node, session: state.session, slots, spare, given_up };
        let call = self.call(node, RequestBody::Reserve { slots, spare }, Vec::new());
        (asked, call)
    }

    /// Follows the wish that the node keeps for this volume, as the node does (its `store/shares`).
    fn note_wish(&mut self, asked: &SlotRequest, answer: &CallResult) {
        let needed = asked.slots - asked.spare;
        let state = self.node_mut(asked.node);
        let wished = match answer {
            _ if state.session != asked.session => return,
            _ if needed <= state.slots_reserved => 0,
            Ok(_) if asked.slots <= state.slots_reserved => 0,
            Ok(_) if asked.slots < state.slots_wished => state.slots_wished,
            Err(NodeError::Busy) => state.slots_wished.max(needed),
            _ => 0,
        };
        state.slots_wished = wished;
    }

    /// A node did not make a reservation smaller, because it is busy or its disk has an error. The
    /// volume still has the slots that it wanted to give back.
    fn note_not_granted(&mut self, asked: &SlotRequest) {
        let state = self.node_mut(asked.node);
        // A node that has joined since has no known reservation.
        let known = state.connected && state.slots_reserved > 0;
        if known && state.session == asked.session {
            state.slots_reserved += asked.given_up;
        }
    }

    /// A node answered that the volume has reserved `slots` slots there.
    fn note_reserved(&mut self, node: NodeIndex, slots: u32) {
        let state = self.node_mut(node);
        let taken = slots.saturating_sub(state.slots_reserved);
        let given = state.slots_reserved.saturating_sub(slots);
        state.stat.slots_free = state.stat.slots_free.saturating_sub(taken) + given;
        state.slots_reserved = slots;
        state.disk_limited = false;
        self.note_short(node);
    }

    /// The node has granted all that the volume wanted, or `less` because of other volumes.
    fn note_granted(&mut self, node: NodeIndex, less: bool) {
        self.node_mut(node).granted_less = less && self.reservation.agreed;
        self.note_short(node);
    }

    /// The node has granted less than the volume has reserved on the other nodes, and its disk has
    /// no room for more. If the disks of all nodes refuse more, none of them is limited by its
    /// disk: the volume has the same number on each.
    pub fn is_limited_by_disk(&self, node: &Node) -> bool {
        node.disk_limited && node.slots_reserved < self.reservation.slots
    }

    /// The node did not grant a reservation because its disk has no room.
    fn note_disk_limited(&mut self, node: NodeIndex) {
        self.node_mut(node).disk_limited = true;
        self.note_short(node);
    }

    /// Notes the answers of nodes to requests for slots. A node that was lost since the volume
    /// asked may be an empty replacement, which has granted nothing.
    fn note_answers(&mut self, asked: &[SlotRequest], answers: &[(NodeIndex, CallResult)]) {
        for (asked, (node, answer)) in asked.iter().zip(answers) {
            if answer.is_err() {
                self.note_not_granted(asked);
            }
            self.note_wish(asked, answer);
            match answer {
                Ok(_) if self.node(*node).session != asked.session => {}
                Ok(_) => {
                    self.node_mut(*node).granted_less = false;
                    self.note_reserved(*node, asked.slots);
                }
                Err(NodeError::Io(_)) => self.note_disk_limited(*node),
                Err(_) => {}
            }
        }
    }

    /// Enough nodes have granted slots that the volume can do without the others.
    fn is_enough(&self, nodes: usize) -> bool {
        nodes + usize::from(self.config.missing_max) >= self.nodes.len()
    }

    /// A node reports that nothing is left of the volume's reservation there. If the volume's own
    /// shards are not the reason, the node takes no shards, as if it were lost. There are two such
    /// cases:
    /// - its disk is full: its file system has less room than the size of the node says; or
    /// - it granted less than the others, because other volumes have reserved its slots. That is no
    ///   fault of the node, so no segment may have fewer shards for this reason: the volume leaves
    ///   the node out only if a segment still finds enough other nodes.
    pub fn note_short(&mut self, node: NodeIndex) {
        let state = self.node(node);
        let claimed = state.slots_claimed.len() as u64;
        let moving = self.segments.unsealed() + self.segments_freeing + claimed;
        let lacks = || u64::from(self.slots_known(node)) + moving < u64::from(state.slots_reserved);
        let little = state.slots_free <= SHORT_SLOTS;
        let full = little && (self.is_limited_by_disk(state) || lacks());
        let others = self.nodes_that(|n| n.health == NodeHealth::Up && !n.is_short());
        let others = others.iter().filter(|other| **other != node).count();
        let wide = others >= self.layout.width();
        let shortage = match full {
            true => Shortage::DiskFull,
            false if little && state.granted_less && wide => Shortage::OtherVolumes,
            false => Shortage::None,
        };
        let (reason, warning) = match shortage {
            Shortage::None => ("", ""),
            Shortage::DiskFull => {
                ("its disk is full", "its disk has less room than the node's size says")
            }
            Shortage::OtherVolumes => {
                ("other volumes have reserved its room", "other volumes have its room")
            }
        };
        let now = self.now;
        let state = self.node_mut(node);
        if state.shortage == shortage {
            return;
        }
        state.reason = reason.into();
        state.shortage = shortage;
        if shortage != Shortage::None {
            let again = Nanos::from_ms(TELL_AGAIN_MS);
            if state.short_told_at.is_none_or(|at| now.since(at) >= again) {
                state.short_told_at = Some(now);
                tracing::warn!("{node}: {warning}");
            }
        }
    }

    /// The reservation of a node that the volume makes smaller, to `slots` slots: at least those
    /// that it has taken there since the node granted more, and may be about to take.
    fn slots_to_keep(&self, node: NodeIndex, slots: u32) -> u32 {
        let state = self.node(node);
        slots.max(self.slots_min_on(state).min(state.slots_reserved))
    }

    /// Two bounds of the present reservation on a node, the larger one first; neither is more than
    /// `wanted`. If the node has granted slots since it connected, both are that number: the slots
    /// that the volume is giving up are the node's only when the node has answered. Otherwise they
    /// are the number of slots that the volume knows it has there, with and without slots that
    /// shards under way may take.
    fn slots_granted_before(&mut self, node: NodeIndex, wanted: u32) -> (u32, u32) {
        let moving = self.segments.unsealed() + self.segments_freeing;
        let moving = u32::try_from(moving).unwrap_or(u32::MAX);
        let least = self.slots_known(node);
        let state = self.node_mut(node);
        if state.slots_reserved > 0 {
            let granted = state.slots_reserved.saturating_add(state.slots_given_up).min(wanted);
            return (granted, granted);
        }
        let given = least.saturating_sub(wanted).min(state.slots_free);
        state.slots_free -= given;
        state.slots_given_up += given;
        (least.saturating_add(moving).min(wanted), least.min(wanted))
    }

    /// Slots that the volume holds on a node, plus slots that it may still take there.
    fn slots_known(&self, node: NodeIndex) -> u32 {
        self.shards_on(node).saturating_add(self.node(node).slots_free)
    }

    /// The nodes that keep more than `slots` slots for the volume, or more than it needs there.
    fn nodes_with_more_than(&self, slots: u32) -> Vec<NodeIndex> {
        let more = |node: &NodeIndex| match self.node(*node).slots_reserved {
            // It has just joined, and may keep the reservation from before.
            0 => self.slots_known(*node) > slots.max(self.slots_closed_on(*node)),
            reserved => reserved > slots,
        };
        self.up_nodes().into_iter().filter(more).collect()
    }

    /// Slots that the volume needs on a node at least while it is closed: its shards take these,
    /// and the next opening.
    fn slots_closed_on(&self, node: NodeIndex) -> u32 {
        let free = u32::try_from(self.slots_always_free()).unwrap_or(u32::MAX);
        self.shards_on(node).saturating_add(free)
    }

    /// Shards of the volume on a node.
    pub fn shards_on(&self, node: NodeIndex) -> u32 {
        self.shards_such(node, |_| true)
    }

    /// The same, without those of checkpoints.
    fn data_shards_on(&self, node: NodeIndex) -> u32 {
        self.shards_such(node, |segment| segment.kind == SegmentKind::Data)
    }

    fn shards_such(&self, node: NodeIndex, such: impl Fn(&Segment) -> bool) -> u32 {
        let holds = |segment: &Segment| segment.shards.contains(&Some(node));
        let counts = |segment: &Segment| holds(segment) && such(segment);
        let held = self.segments.iter().filter(|(_, segment)| counts(segment)).count();
        u32::try_from(held).unwrap_or(u32::MAX)
    }
}

/// Reserves the same number of slots on all nodes that have granted as much as the others:
/// `wanted`, or as many of these as all nodes have. True if it is more than before.
pub async fn reserve_more(ctx: &Ctx, wanted: u32) -> bool {
    let (nodes, before) = ctx.with(|core| {
        let slots = core.slots_common();
        let asks = |node: &Node| {
            let equal = node.slots_reserved >= slots || node.disk_limited;
            node.health == NodeHealth::Up && equal
        };
        (core.nodes_that(asks), slots)
    });
    reserve_together(ctx, nodes, before, wanted, true).await
}

/// Reserves more slots on the nodes that have granted less than the others. The volume may ask none
/// of them alone, so it asks them together. The smallest number that one of them has granted grows.
pub async fn reserve_on_low(ctx: &Ctx) -> bool {
    let (nodes, least, wanted) = ctx.with(|core| {
        let nodes = core.low_nodes();
        let granted = nodes.iter().map(|node| core.node(*node).slots_reserved);
        (nodes.clone(), granted.min().unwrap_or(0), core.reservation.slots)
    });
    !nodes.is_empty() && reserve_together(ctx, nodes, least, wanted, false).await
}

/// Reserves the same number of slots on all of these nodes: `wanted`, or as many of these beyond
/// `least` as all of the nodes have. True if it is more than `least`. A node that has granted more
/// keeps more. `by_most`: it counts only if most nodes of the pool grant it. Otherwise only a full
/// disk may refuse it.
async fn reserve_together(
    ctx: &Ctx,
    nodes: Vec<NodeIndex>,
    least: u32,
    wanted: u32,
    by_most: bool,
) -> bool {
    let granted = |core: &mut Core| -> Vec<u32> {
        nodes.iter().map(|node| core.node(*node).slots_reserved).collect()
    };
    let before = ctx.with(granted);
    let mut slots = wanted;
    for _ in 0..TRIES_MAX {
        if slots <= least {
            break;
        }
        let (asked, answers) = ask_all(ctx, &nodes, |core, index, node| {
            // After a refusal, nodes that granted more get a smaller reservation: from here on,
            // their answers say how much is left of that one.
            let slots = core.slots_to_keep(node, slots.max(before[index]));
            (slots, core.slots_spare_on_all(node, slots))
        })
        .await;
        let refused = answers.iter().any(|(_, answer)| others_have_it(answer));
        let enough = ctx.with(|core| {
            core.note_answers(&asked, &answers);
            let good = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
            let all = answers.iter().all(|(_, a)| matches!(a, Ok(_) | Err(NodeError::Io(_))));
            if by_most { core.is_enough(good) } else { all && good > 0 }
        });
        if !refused {
            // A full disk is like a lost node: the other nodes go on.
            if !enough {
                break;
            }
            ctx.with(|core| {
                core.reservation.slots = core.reservation.slots.max(slots);
                // From here on, nodes that did not grant it have less than the others.
                nodes.iter().for_each(|node| core.note_short(*node));
            });
            return true;
        }
        slots = least + (slots - least) / 2;
    }
    // Slots that only some nodes have granted are of no use.
    for (node, before) in nodes.into_iter().zip(before) {
        // This request also withdraws the wish of the growth, and says what the volume can spare.
        // A node without a known reservation gets its own request when it has joined. A node with
        // a full disk keeps what it has.
        let (kept, asks) = ctx.with(|core| {
            let state = core.node(node);
            let kept = core.slots_to_keep(node, before);
            let full = state.disk_limited && state.slots_reserved <= kept;
            (kept, state.slots_reserved > 0 && !full)
        });
        if asks {
            reserve_on(ctx, node, kept).await;
        }
        learn_room(ctx, node).await;
    }
    false
}

/// The next number to ask for after a node has refused `slots` slots the `attempt`th time. The
/// volume's present reservation on the node lies between `least` and `most`. Down to `most`, each
/// try halves the rest. From there on, each try is one slot smaller. A node grants the present
/// reservation, and any smaller number. With a smaller number the volume gives slots away that
/// segments in flight need.
fn next_try(slots: u32, attempt: u32, most: u32, least: u32) -> u32 {
    if slots <= most {
        return slots.saturating_sub(1).max(least);
    }
    if attempt + 1 >= TRIES_MAX { most } else { most + (slots - most) / 2 }
}

/// Reserves `wanted` slots on one node, or as many as the node grants.
///
/// If the volume needs more than the node grants, and other volumes can spare slots there, the node
/// tells them so from the first refusal on, until it has granted a request for all slots that the
/// volume then needs. A request for the present reservation would end this, so the volume does not
/// send one.
pub async fn reserve_on(ctx: &Ctx, node: NodeIndex, wanted: u32) {
    let (most, least) = ctx.with(|core| core.slots_granted_before(node, wanted));
    let mut slots = wanted;
    // Whether the node's disk is the reason for the last refusal.
    let mut by_disk = false;
    for attempt in 1.. {
        let (asked, call) = ctx.with(|core| {
            let spare = core.slots_spare(node, slots);
            core.ask(node, slots, spare)
        });
        let answer = call.await;
        ctx.with(|core| {
            if answer.is_err() {
                core.note_not_granted(&asked);
            }
            core.note_wish(&asked, &answer);
        });
        match answer {
            Ok(_) => {
                return ctx.with(|core| {
                    core.note_reserved(node, slots);
                    core.note_granted(node, slots < wanted.max(core.reservation.slots));
                    if by_disk {
                        core.note_disk_limited(node);
                    }
                });
            }
            Err(NodeError::NoSpace | NodeError::Busy) if slots > least => by_disk = false,
            Err(NodeError::Io(_)) if slots > least => by_disk = true,
            Err(_) if by_disk => return ctx.with(|core| core.note_disk_limited(node)),
            Err(_) => return,
        }
        slots = next_try(slots, attempt, most, least);
        let waits = ctx.with(|core| {
            let state = core.node(node);
            let same = state.session == asked.session && state.slots_reserved == slots;
            let waits = same && !by_disk && state.slots_wished > slots;
            if waits {
                core.node_mut(node).disk_limited = false;
                core.note_granted(node, true);
            }
            waits
        });
        if waits {
            return;
        }
    }
}

/// Asks the nodes that have granted less than the others for the rest. True if any node has granted
/// more.
pub async fn reserve_missing(ctx: &Ctx) -> bool {
    let nodes = ctx.with(|core| core.nodes_with_less());
    let mut gained = false;
    for node in nodes {
        let (before, slots) = ctx.with(|core| {
            let slots = core.slots_to_ask(node, core.reservation.slots);
            (core.node(node).slots_reserved, slots)
        });
        if slots > before {
            reserve_on(ctx, node, slots).await;
        }
        gained |= ctx.with(|core| core.node(node).slots_reserved > before);
    }
    gained
}

/// Asks single nodes for slots that rebuild needs, if the nodes together grant no more. True if any
/// node has granted more.
pub async fn reserve_for_rebuild(ctx: &Ctx) -> bool {
    let mut gained = false;
    for node in ctx.with(|core| core.low_nodes()) {
        let (before, slots) =
            ctx.with(|core| (core.node(node).slots_reserved, core.slots_for_rebuild(node)));
        if slots > before {
            reserve_on(ctx, node, slots).await;
        }
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

/// Reserves on a node that has joined as many slots as the volume may ask it for.
pub async fn reserve_joined(ctx: &Ctx, node: NodeIndex) {
    begin_change(ctx).await;
    let slots = ctx.with(|core| match core.reservation.slots {
        0 => 0,
        slots => core.slots_to_ask(node, slots.max(core.slots_min())),
    });
    if slots > 0 && ctx.with(|core| core.phase == Phase::Serving) {
        reserve_on(ctx, node, slots).await;
    }
    learn_room(ctx, node).await;
    ctx.with(|core| core.reservation.changing = false);
}

/// Reserves the largest number that all nodes grant, when the volume begins to serve. First it asks
/// the nodes that have data of the volume: they know its reservation, and those of other volumes.
/// The others may have come back empty.
pub async fn reserve_at_start(ctx: Ctx) {
    let (nodes, wanted) = ctx.with(|core| {
        let mut nodes = core.up_nodes();
        nodes.sort_by_key(|node| core.data_shards_on(*node) == 0);
        (nodes, core.reservation.slots)
    });
    let is_new = ctx.with(|core| nodes.iter().all(|node| core.data_shards_on(*node) == 0));
    for node in &nodes {
        let slots = ctx.with(|core| match core.data_shards_on(*node) {
            0 if !is_new => core.slots_to_ask(*node, wanted),
            _ => wanted,
        });
        reserve_on(&ctx, *node, slots).await;
        learn_room(&ctx, *node).await;
    }
    // Slots that one node grants beyond the others are of no use to this volume, but other volumes
    // may need them.
    ctx.with(|core| {
        let granted = |node: &NodeIndex| {
            let state = core.node(*node);
            // A node without any was lost meanwhile, or came back empty into a full pool.
            (!state.disk_limited && state.slots_reserved > 0).then_some(state.slots_reserved)
        };
        let common = nodes.iter().filter_map(granted).min().unwrap_or(wanted);
        let slots = common.max(core.slots_needed()).min(wanted);
        core.set_reservation(slots);
    });
}

/// An opening asks for the slots of its checkpoint on nodes that have fewer: the earlier writer may
/// have died while it asked a node. `held` says how many slots the volume held at most.
pub async fn reserve_for_checkpoint(ctx: &Ctx, held: &BTreeMap<NodeIndex, u32>) {
    for node in ctx.with(|core| core.up_nodes()) {
        let slots = ctx.with(|core| {
            let checkpoint = u32::try_from(core.checkpoint_segments()).unwrap_or(u32::MAX);
            let state = core.node(node);
            // If a node has slots that no volume has reserved, its disk has room for all reserved
            // slots. So fewer slots are left only because fewer are reserved, and a request for
            // this many makes no reservation smaller.
            let lacks = state.slots_free < checkpoint && state.stat.slots_free > 0;
            let held = held.get(&node).copied().unwrap_or(0);
            lacks.then(|| held.saturating_add(checkpoint))
        });
        if let Some(slots) = slots {
            // A node that refuses takes no shard of the checkpoint.
            let _ = ctx.call(node, RequestBody::Reserve { slots, spare: 0 }).await;
        }
    }
}

/// Asks the nodes that had no room how much they have now: a volume that sends nothing to such a
/// node would never learn of new room. True if there are any such nodes.
pub async fn ask_full_nodes(ctx: &Ctx) -> bool {
    let full = |node: &Node| node.full || node.is_short() || node.disk_limited;
    let nodes = ctx.with(|core| core.nodes_that(|n| n.health == NodeHealth::Up && full(n)));
    for node in &nodes {
        learn_room(ctx, *node).await;
        // Shards that the last answers counted as under way may have arrived.
        ctx.with(|core| core.note_short(*node));
    }
    ask_limited_nodes(ctx).await;
    !nodes.is_empty()
}

/// Asks nodes again whose disks had no room for as many slots as the others reserved: no other
/// answer reports that such a disk has room again.
async fn ask_limited_nodes(ctx: &Ctx) {
    let nodes = ctx.with(|core| {
        if core.reservation_changes() || core.phase != Phase::Serving {
            return Vec::new();
        }
        let limited = |n: &Node| n.health == NodeHealth::Up && core.is_limited_by_disk(n);
        let nodes = core.nodes_that(limited);
        core.reservation.changing = !nodes.is_empty();
        nodes
    });
    if nodes.is_empty() {
        return;
    }
    for node in nodes {
        let slots = ctx.with(|core| core.slots_to_ask(node, core.reservation.slots));
        reserve_on(ctx, node, slots).await;
    }
    ctx.with(|core| core.reservation.changing = false);
}

/// Gives back room if other volumes need it.
pub async fn yield_if_needed(ctx: &Ctx) {
    if ctx.with(|core| !core.may_give_slots() || core.reservation_changes()) {
        return;
    }
    for node in ctx.with(|core| core.up_nodes()) {
        learn_room(ctx, node).await;
    }
    let nodes = ctx.with(|core| {
        let nodes = core.nodes_with_more();
        if !nodes.is_empty() {
            core.yield_on_nodes();
        }
        nodes
    });
    if !nodes.is_empty() {
        for (node, slots) in nodes {
            // Users' writes may have taken slots since the volume chose this number.
            let slots = ctx.with(|core| core.slots_to_keep(node, slots));
            reserve_on(ctx, node, slots).await;
        }
        return ctx.with(|core| core.reservation.changing = false);
    }
    ctx.with(|core| {
        let up = |node: &&Node| node.health == NodeHealth::Up;
        let up: Vec<&Node> = core.nodes.iter().filter(up).collect();
        // A smaller reservation gives a node nothing back that has granted no more than needed.
        let needed = core.slots_needed();
        let more = |node: &NodeIndex| core.node(*node).slots_reserved > needed;
        let lacking = core.up_nodes().into_iter().filter(more);
        let lacking = lacking.map(|node| core.slots_lacking(node)).max().unwrap_or(0);
        // If the disk is full, giving slots back makes no room.
        let full =
            |node: &&Node| node.stat.slots_free == 0 && !node.disk_limited && !node.is_short();
        let nothing_left = up.iter().any(full);
        let half = if nothing_left { core.half_of_surplus() } else { 0 };
        let less = if lacking > 0 { lacking } else { half.max(core.slots_beyond_share()) };
        core.yield_room(less);
    });
}

/// Frees slots that the volume can do without and that hold garbage, before it closes: later
/// nothing frees them until the volume is opened again.
pub async fn give_back_garbage(ctx: &Ctx) {
    let begun = ctx.with(|core| core.now);
    let mut asked = false;
    while ctx.with(|core| {
        let late = core.now.since(begun) >= Nanos::from_ms(CLOSE_COLLECTS_MS_MAX);
        if !asked && !core.reservation_changes() {
            core.give_back_all();
            asked = true;
        }
        core.phase == Phase::Serving && !late && (!asked || core.is_giving_back())
    }) {
        ctx.sleep_ms(CHANGE_POLL_MS).await;
    }
}

/// Gives back slots that the volume can do without when it closes: later no other volume could ask
/// for them. The next opening asks for more again if nodes are lost then.
pub async fn give_back_spare(ctx: &Ctx) {
    begin_change(ctx).await;
    let slots = ctx.with(|core| {
        let slots = core.slots_needed_without_losses().max(core.slots_min());
        let kept = slots - slots.min(core.slots_needed_without_losses());
        if kept > 0 {
            let name = &core.name;
            tracing::info!(volume = %name, "closes with {kept} slots of garbage on each node");
        }
        slots
    });
    for _ in 0..CLOSE_ASKS_MAX {
        let nodes = ctx.with(|core| core.nodes_with_more_than(slots));
        // The volume needs all that it keeps: from now on it has no writer to give any back.
        let (asked, answers) =
            ask_all(ctx, &nodes, |core, _, node| (slots.max(core.slots_closed_on(node)), 0)).await;
        ctx.with(|core| core.note_answers(&asked, &answers));
        if answers.iter().all(|(_, answer)| answer.is_ok()) {
            break;
        }
        ctx.sleep_ms(CLOSE_ASKS_PAUSE_MS).await;
    }
    ctx.with(|core| core.reservation.changing = false);
}

/// Waits until no other change of the reservation is under way, and begins one. The caller ends the
/// change.
pub async fn begin_change(ctx: &Ctx) {
    while ctx.with(|core| std::mem::replace(&mut core.reservation.changing, true)) {
        ctx.sleep_ms(CHANGE_POLL_MS).await;
    }
}

/// Why the volume cannot reserve a size.
pub struct Refused {
    /// The reason, for people.
    pub why: String,
    /// Nodes were lost on the way. The reservation may succeed without them, or when they are back.
    pub nodes_lost: bool,
}

/// Reserves the slots of a thick volume of `size_bytes`, or of a thin one that is being created.
/// Waits for other volumes if they can spare the lacking slots. The caller has begun a change.
///
/// A growth requests what the new size takes, and more only on nodes that have granted more
/// already. Segments that are being written may take more slots for a moment, but these come from
/// the reservation that the volume has.
///
/// # Errors
/// A node does not have that many: which one, and how many it has. A serving volume then has its
/// old reservation.
pub async fn reserve_for_size(ctx: &Ctx, size_bytes: u64, thin: bool) -> Result<(), Refused> {
    let (nodes, before, wanted) = ctx.with(|core| {
        let wanted = if thin { core.slots_wanted() } else { core.slots_whole(size_bytes) };
        let before = core.reservation.slots;
        let least = if before == 0 { core.slots_min() } else { 0 };
        (core.up_nodes(), before, wanted.max(least))
    });
    let result = ask_for(ctx, nodes, wanted).await;
    ctx.with(|core| {
        core.reservation.waits_for_others = false;
        match &result {
            Ok(()) => core.reservation.slots = wanted.max(before),
            // A volume whose creation fails is removed.
            Err(_) if core.phase == Phase::Opening => {}
            Err(_) => core.set_reservation(before),
        }
    });
    result
}

/// Asks nodes for `wanted` slots until they grant them. The volume needs all of these slots. It
/// keeps those that a node has granted beyond.
async fn ask_for(ctx: &Ctx, nodes: Vec<NodeIndex>, wanted: u32) -> Result<(), Refused> {
    let mut asked = nodes;
    let mut granted = 0;
    let mut reason = String::new();
    let (mut later, mut nodes_lost) = (false, false);
    let mut lacking_min = u32::MAX;
    let mut vain_ms = 0;
    loop {
        let (requests, answers) = ask_all(ctx, &asked, |core, _, node| {
            let granted = match core.node(node).slots_reserved {
                // It has just joined, and may have a reservation from before.
                0 => core.slots_level(node).unwrap_or(0).max(core.slots_kept(node)),
                granted => granted,
            };
            let slots = wanted.max(granted);
            (slots, slots - wanted)
        })
        .await;
        ctx.with(|core| core.note_answers(&requests, &answers));
        for (node, answer) in &answers {
            match answer {
                Ok(_) => granted += 1,
                Err(error) if !others_have_it(answer) => reason = format!("{node}: {error}"),
                Err(_) => {}
            }
        }
        nodes_lost |= answers.iter().any(|(_, answer)| *answer == Err(NodeError::Unreachable));
        later |= answers.iter().any(|(_, answer)| *answer == Err(NodeError::Busy));
        asked = answers.iter().filter(|(_, a)| others_have_it(a)).map(|(node, _)| *node).collect();
        let Some(first) = asked.first().copied() else { break };
        for node in &asked {
            learn_room(ctx, *node).await;
        }
        if !later || vain_ms >= GIVE_BACK_MS_MAX || ctx.with(|core| core.closing) {
            let why = ctx.with(|core| core.why_refused(first, wanted, later));
            return Err(Refused { why, nodes_lost: false });
        }
        ctx.with(|core| core.reservation.waits_for_others = true);
        ctx.sleep_ms(GIVE_BACK_POLL_MS).await;
        reserve_joined_meanwhile(ctx, &asked, wanted).await;
        let lacking = |node: &NodeIndex| ctx.with(|core| core.node(*node).stat.slots_lacking);
        let lacking = asked.iter().map(lacking).max().unwrap_or(0);
        // As long as other volumes give slots back, more may come.
        vain_ms = if lacking < lacking_min { 0 } else { vain_ms + GIVE_BACK_POLL_MS };
        lacking_min = lacking_min.min(lacking);
    }
    match ctx.with(|core| core.is_enough(granted)) {
        true => Ok(()),
        false => {
            let why = format!("{granted} nodes have room for it, which is too few; {reason}");
            Err(Refused { why, nodes_lost })
        }
    }
}

/// Reserves slots on the nodes that joined while the volume waits: rebuild waits for them.
async fn reserve_joined_meanwhile(ctx: &Ctx, asked: &[NodeIndex], wanted: u32) {
    if ctx.with(|core| core.phase != Phase::Serving) {
        return;
    }
    let joined = |node: &Node| node.health == NodeHealth::Up && node.slots_reserved == 0;
    for node in ctx.with(|core| core.nodes_that(joined)) {
        // It may have granted the larger number already, before it was lost.
        let wanted = if asked.contains(&node) { 0 } else { wanted };
        let slots = ctx.with(|core| core.slots_to_ask(node, core.reservation.slots.max(wanted)));
        reserve_on(ctx, node, slots).await;
        ctx.with(Core::start_rebuild);
    }
}

impl Core {
    /// The reason why a node refused `wanted` slots. `later`: other volumes should have given some
    /// back.
    fn why_refused(&self, node: NodeIndex, wanted: u32, later: bool) -> String {
        let state = self.node(node);
        let bytes = |slots: u32| u64::from(slots) * u64::from(state.stat.slot_bytes);
        let free_bytes = bytes(state.stat.slots_free);
        let wanted_bytes = bytes(wanted.saturating_sub(state.slots_reserved));
        let advice = match later {
            true => "other volumes can give back more, but have not done so yet: try again later",
            false => {
                "make it smaller or thin, remove other volumes, or serve the others for some \
                 seconds: a volume that was not closed, or closed with much garbage, gives back \
                 what it does not need"
            }
        };
        format!(
            "{node} has {free_bytes} bytes that no volume has reserved, and {wanted_bytes} more \
             are wanted on each node; {advice}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::script::{SLOTS, Script, Sent};
    use crate::seam::Provisioning;

    const NODE: NodeIndex = NodeIndex(3);

    #[test]
    fn a_smaller_reservation_keeps_the_slots_that_are_taken_and_being_taken() {
        let mut script = Script::serving(8);
        script.core(|core| {
            // The volume holds 60 of the node's slots.
            core.node_mut(NODE).slots_free = SLOTS - 60;
            let free = u32::try_from(core.slots_always_free()).expect("small");
            assert_eq!(core.slots_to_keep(NODE, 10), 60 + free);
            assert_eq!(core.slots_to_keep(NODE, 90), 90);
            core.segments_freeing = 5;
            assert_eq!(core.slots_to_keep(NODE, 10), 60 + free + 5, "these may still be there");
            core.node_mut(NODE).slots_free = 0;
            assert_eq!(core.slots_to_keep(NODE, 10), SLOTS, "never more than the node granted");
        });
    }

    #[test]
    fn a_reservation_does_not_count_for_the_replacement_of_the_node() {
        let mut script = Script::serving(8);
        script.core(|core| {
            let granted = [(NODE, Ok(ReplyBody::Done))];
            let (asked, _) = core.ask(NODE, SLOTS, 0);
            let state = core.node_mut(NODE);
            (state.session, state.slots_reserved) = (state.session + 1, 0);
            core.note_answers(&[asked], &granted);
            assert_eq!(core.node(NODE).slots_reserved, 0);
            let (asked, _) = core.ask(NODE, SLOTS, 0);
            core.note_answers(&[asked], &granted);
            assert_eq!(core.node(NODE).slots_reserved, SLOTS);
        });
    }

    #[test]
    fn slots_that_were_taken_while_the_volume_gives_some_back_stay() {
        let mut script = Script::serving(8);
        script.core(|core| {
            grants(core, &[60; 8]);
            let free = u32::try_from(core.slots_always_free()).expect("small");
            core.nodes.iter_mut().for_each(|node| node.give_up_slots(40));
            assert_eq!(core.slots_to_ask(NODE, 50), 40);
            // Segments have taken 38 slots there meanwhile.
            core.node_mut(NODE).slots_free = 2;
            assert_eq!(core.slots_to_ask(NODE, 50), 38 + free);
            core.node_mut(NODE).slots_given_up = 0;
            assert_eq!(core.slots_to_ask(NODE, 50), 40, "it does not ask for more than it had");
        });
    }

    #[test]
    fn slots_that_a_busy_node_did_not_take_back_are_given_back_later() {
        let mut script = Script::serving(8);
        script.core(|core| core.set_reservation(60));
        for _ in 0..8 {
            let sent = script.sent_one();
            assert!(matches!(sent.request.body, RequestBody::Reserve { slots: 60, .. }));
            match sent.node {
                NODE => script.answer(&sent, Err(NodeError::Busy)),
                _ => script.done(&sent),
            }
        }
        assert!(script.sent().is_empty());
        script.core(|core| {
            let reserved: Vec<u32> = core.nodes.iter().map(|node| node.slots_reserved).collect();
            assert_eq!(reserved, [60, 60, 60, SLOTS, 60, 60, 60, 60]);
            core.set_reservation(60);
        });
        for _ in 0..8 {
            let sent = script.sent_one();
            script.done(&sent);
        }
        script.sent();
        script.core(|core| assert_eq!(core.node(NODE).slots_reserved, 60));
    }

    #[test]
    fn slots_that_are_being_given_up_are_not_given_away_by_a_refusal() {
        let mut script = Script::serving(8);
        script.core(|core| {
            grants(core, &[SLOTS; 8]);
            let state = core.node_mut(NODE);
            (state.slots_reserved, state.slots_free) = (67, 67);
            state.give_up_slots(60);
        });
        script.start(|ctx| async move { reserve_on(&ctx, NODE, 70).await });
        let reserved = |sent: &Sent| match sent.request.body {
            RequestBody::Reserve { slots, .. } => slots,
            _ => panic!("{:?}", sent.request.body),
        };
        for slots in [70, 68, 67] {
            let sent = script.sent_one();
            assert_eq!(reserved(&sent), slots);
            match slots {
                67 => script.done(&sent),
                _ => script.answer(&sent, Err(NodeError::NoSpace)),
            }
        }
        script.sent();
        script.core(|core| assert_eq!(core.node(NODE).slots_reserved, 67));
    }

    #[test]
    fn a_volume_that_closes_gives_slots_back_on_every_node() {
        let mut script = Script::serving(8);
        let busy = NodeIndex(5);
        script.core(|core| {
            // This node has just joined, and keeps what it had granted.
            core.node_mut(NODE).slots_reserved = 0;
        });
        script.start(|ctx| async move { give_back_spare(&ctx).await });
        let sent = script.sent();
        assert_eq!(sent.len(), 8);
        for sent in &sent {
            match sent.node == busy {
                true => script.answer(sent, Err(NodeError::Busy)),
                false => script.done(sent),
            }
        }
        assert!(script.sent().is_empty());
        script.wait_ms(CLOSE_ASKS_PAUSE_MS);
        let sent = script.sent_one();
        assert_eq!(sent.node, busy);
        script.done(&sent);
        assert!(script.sent().is_empty());
        script.core(|core| assert!(!core.reservation_changes()));
    }

    fn grants(core: &mut Core, granted: &[u32; 8]) {
        for (node, granted) in core.nodes.iter_mut().zip(granted) {
            (node.slots_reserved, node.slots_free) = (*granted, *granted);
        }
    }

    #[test]
    fn a_node_that_came_back_empty_is_asked_for_what_every_other_node_granted() {
        let mut script = Script::serving(8);
        script.core(|core| {
            grants(core, &[60, 57, 60, 0, 60, 60, 60, 60]);
            assert_eq!(core.slots_to_ask(NODE, SLOTS), 57);
            assert_eq!(core.slots_to_ask(NODE, 40), 40);
            core.node_mut(NodeIndex(1)).stat.slots_total = SLOTS + 1;
            assert_eq!(core.slots_to_ask(NODE, SLOTS), 60, "a larger node may grant others more");
            core.node_mut(NodeIndex(5)).disk_limited = true;
            core.node_mut(NodeIndex(5)).slots_reserved = 20;
            assert_eq!(core.slots_to_ask(NODE, SLOTS), 60, "a full disk tells nothing");
            let state = core.node_mut(NODE);
            (state.slots_reserved, state.slots_free) = (70, 70);
            assert_eq!(core.slots_to_ask(NODE, SLOTS), 70, "it keeps what it has");
            assert_eq!(core.nodes_with_more(), [], "no other volume lacks slots");
            core.node_mut(NODE).stat.slots_lacking = 4;
            assert_eq!(core.nodes_with_more(), [(NODE, 66)]);
            core.node_mut(NODE).stat.slots_lacking = 40;
            core.reservation.slots = 60;
            assert_eq!(core.nodes_with_more(), [(NODE, 60)]);
            core.reservation.slots = SLOTS;
            assert!(core.slots_needed() < 30);
            assert_eq!(core.nodes_with_more(), [(NODE, 30)], "it granted less than was wanted");
        });
    }

    #[test]
    fn every_node_is_asked_for_the_whole_size_of_a_thick_volume() {
        let mut script = Script::serving(8);
        script.core(|core| {
            let whole = core.slots_whole(core.geometry.size_bytes);
            core.reservation.provisioning = Provisioning::Thick;
            grants(core, &[whole, whole, whole, 0, whole, whole - 3, whole, whole]);
            assert!(core.lacks_promised_slots());
            assert_eq!(core.slots_to_ask(NODE, SLOTS), whole);
            assert_eq!(core.slots_to_ask(NodeIndex(5), whole), whole);
            assert_eq!(core.slots_spare(NODE, whole + 7), 7);
            assert_eq!(core.nodes_with_less(), [NODE, NodeIndex(5)]);
        });
    }

    #[test]
    fn a_refused_wish_stays_with_the_node() {
        let mut script = Script::serving(8);
        let whole = script.core(|core| {
            core.reservation.provisioning = Provisioning::Thick;
            let whole = core.slots_whole(core.geometry.size_bytes);
            core.reservation.slots = whole;
            grants(core, &[whole; 8]);
            core.node_mut(NODE).slots_reserved = whole - 9;
            whole
        });
        script.start(move |ctx| async move { reserve_on(&ctx, NODE, whole).await });
        loop {
            let sent = script.sent();
            let [sent] = &sent[..] else { break };
            let RequestBody::Reserve { slots, spare } = sent.request.body else { panic!() };
            assert!(slots > whole - 9 && spare == 0, "{slots}");
            script.answer(sent, Err(NodeError::Busy));
        }
        script.core(|core| {
            assert_eq!(core.node(NODE).slots_reserved, whole - 9);
            assert!(core.awaits_others() && core.outdated_wishes().is_empty());
            core.node_mut(NODE).stat.slots_lacking = 11;
            assert_eq!(core.slots_lacking(NODE), 2, "others lack these");
            core.reservation.slots = whole - 9;
            assert_eq!(core.outdated_wishes(), [NODE]);
        });
        script.start(move |ctx| async move { reserve_on(&ctx, NODE, whole - 9).await });
        let sent = script.sent_one();
        assert_eq!(sent.request.body, RequestBody::Reserve { slots: whole - 9, spare: 0 });
        script.done(&sent);
        script.sent();
        assert!(!script.core(|core| core.awaits_others()), "the volume has withdrawn its wish");
    }

    #[test]
    fn a_node_that_reconnects_keeps_what_it_granted() {
        let mut script = Script::serving(8);
        script.add_segment(&[Some(0), Some(1), Some(2), Some(3), None, None]);
        script.core(|core| {
            grants(core, &[60, 20, 60, 0, 60, 60, 60, 60]);
            core.node_mut(NODE).slots_before = 50;
            core.node_mut(NODE).slots_free = 49;
            assert_eq!(core.slots_to_ask(NODE, 60), 50);
            core.node_mut(NODE).slots_free = 9;
            let known = core.slots_kept(NODE);
            assert!((10..20).contains(&known), "it has forgotten its reservation: {known}");
            core.node_mut(NodeIndex(4)).slots_reserved = 0;
            assert_eq!(core.slots_to_ask(NodeIndex(4), 60), 20, "it has no shard");
            assert_eq!(core.slots_for_rebuild(NodeIndex(4)), core.slots_needed().min(60));
        });
    }

    #[test]
    fn a_node_that_refuses_does_not_keep_the_others_from_growing() {
        let mut script = Script::serving(8);
        script.core(|core| {
            // The volume wants 43, but no node has granted more than 40.
            core.reservation.slots = 43;
            grants(core, &[40, 40, 40, 30, 40, 40, 40, 40]);
            assert_eq!(core.slots_common(), 40);
        });
        script.start(|ctx| async move { assert!(reserve_more(&ctx, 50).await) });
        let sent = script.sent();
        assert_eq!(sent.len(), 7);
        assert!(sent.iter().all(|sent| sent.node != NODE));
        sent.iter().for_each(|sent| script.done(sent));
        script.sent();
        script.core(|core| assert_eq!((core.slots_common(), core.reservation.slots), (50, 50)));
    }

    #[test]
    fn two_nodes_that_granted_less_grow_together() {
        let mut script = Script::serving(8);
        script.core(|core| {
            core.reservation.slots = 60;
            grants(core, &[60, 60, 60, 40, 60, 44, 60, 60]);
            assert_eq!(core.slots_to_ask(NODE, 60), 44);
            assert_eq!(core.slots_to_ask(NodeIndex(5), 60), 44);
        });
        script.start(|ctx| async move { assert!(reserve_on_low(&ctx).await) });
        let reserved = |sent: &Sent| match sent.request.body {
            RequestBody::Reserve { slots, .. } => (sent.node, slots),
            _ => panic!("{:?}", sent.request.body),
        };
        let sent = script.sent();
        let asked: Vec<_> = sent.iter().map(reserved).collect();
        assert_eq!(asked, [(NODE, 60), (NodeIndex(5), 60)]);
        script.answer(&sent[0], Err(NodeError::NoSpace));
        script.done(&sent[1]);
        // The next try asks both for the middle between the smaller grant and 60.
        let sent = script.sent();
        assert_eq!(sent.iter().map(reserved).collect::<Vec<_>>(), [(NODE, 50), (NodeIndex(5), 50)]);
        sent.iter().for_each(|sent| script.answer(sent, Err(NodeError::NoSpace)));
        let sent = script.sent();
        assert_eq!(sent.iter().map(reserved).collect::<Vec<_>>(), [(NODE, 45), (NodeIndex(5), 45)]);
        sent.iter().for_each(|sent| script.done(sent));
        script.sent();
        script.core(|core| {
            assert_eq!(core.node(NODE).slots_reserved, 45);
            assert_eq!(core.reservation.slots, 60);
        });
    }

    /// No matter how many slots the node has reserved for the volume, the volume ends with this
    /// number.
    #[test]
    fn no_slot_is_given_away_by_asking() {
        for (wanted, most, least) in [(47, 40, 34), (47, 47, 34), (40, 34, 34), (6, 5, 0)] {
            for has in least..=most {
                let (mut slots, mut attempt) = (wanted, 1);
                while slots > has {
                    assert!(slots > least, "{wanted} {most} {least} {has}");
                    slots = next_try(slots, attempt, most, least);
                    attempt += 1;
                }
                assert_eq!(slots, has, "{wanted} {most} {least}");
                assert!(attempt <= 1 + TRIES_MAX + (most - least));
            }
        }
    }
}
