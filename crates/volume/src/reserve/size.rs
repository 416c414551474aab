//! The slots of a whole device: a volume is created, or it grows.

use fieldstone_proto::{NodeError, NodeIndex};

use super::request::{ask_all, others_have_it, refresh_stat, reserve_on};
use crate::core::{Ctx, VolumeCore};
use crate::failure::ReservationRefusal;
use crate::node::Node;
use crate::status::NodeHealth;

/// How long a volume that is created or grows waits while no other volume gives back spare slots.
/// The others check every 2 s, and may have to collect before they can give back.
const RELEASE_WAIT_MS_MAX: u64 = 20_000;
/// How often it asks meanwhile.
const RELEASE_POLL_MS: u64 = 500;

/// Reserves the slots of a thick volume of `size_bytes`, or of a thin one that is being created.
/// Waits for other volumes if they can spare the lacking slots. A growth has begun a change of the
/// reservation; a creation needs none.
///
/// A growth requests what the new size takes, and more only on nodes that have granted more
/// already. Segments that are being written may take more slots for a moment, but these come from
/// the reservation that the volume has.
///
/// # Errors
/// A node does not have that many: which one, and how many it has. A serving volume then has its
/// old reservation.
pub async fn reserve_for_size(
    ctx: &Ctx,
    size_bytes: u64,
    thin: bool,
) -> Result<(), ReservationRefusal> {
    let (nodes, before, wanted) = ctx.with(|core| {
        let wanted = match thin {
            true => core.slots_at_creation(),
            false => core.slots_whole(size_bytes),
        };
        let before = core.reservation.slots;
        let min_slots = if before == 0 { core.slots_min() } else { 0 };
        (core.up_nodes(), before, wanted.max(min_slots))
    });
    let result = ask_for(ctx, nodes, wanted).await;
    ctx.with(|core| {
        core.reservation.stop_waiting();
        match &result {
            Ok(()) => core.reservation.slots = wanted.max(before),
            // A volume whose creation fails is removed.
            Err(_) if core.life.is_opening() => {}
            Err(_) => core.set_reservation(before),
        }
    });
    result
}

/// Asks nodes for `wanted` slots until they grant them. The volume needs all of these slots. It
/// keeps those that a node has granted beyond.
async fn ask_for(ctx: &Ctx, nodes: Vec<NodeIndex>, wanted: u32) -> Result<(), ReservationRefusal> {
    let mut asked = nodes;
    let mut granted = 0;
    let mut last = None;
    let (mut later, mut nodes_lost) = (false, false);
    let mut lacking_min = u32::MAX;
    let mut vain_ms = 0;
    loop {
        let (requests, answers) = ask_all(ctx, &asked, |core, _, node| {
            let granted = match core.node(node).slots.reserved {
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
                Err(error) if !others_have_it(answer) => last = Some((*node, error.clone())),
                Err(_) => {}
            }
        }
        nodes_lost |= answers.iter().any(|(_, answer)| *answer == Err(NodeError::Unreachable));
        later |= answers.iter().any(|(_, answer)| *answer == Err(NodeError::Busy));
        asked = answers.iter().filter(|(_, a)| others_have_it(a)).map(|(node, _)| *node).collect();
        let Some(first) = asked.first().copied() else { break };
        for node in &asked {
            refresh_stat(ctx, *node).await;
        }
        if !later
            || vain_ms >= RELEASE_WAIT_MS_MAX
            || ctx.with(|core| core.life.is_asked_to_close())
        {
            return Err(ctx.with(|core| core.why_refused(first, wanted, later)));
        }
        ctx.with(|core| core.reservation.wait_for_others());
        ctx.sleep_ms(RELEASE_POLL_MS).await;
        reserve_joined_meanwhile(ctx, &asked, wanted).await;
        let lacking = |node: &NodeIndex| ctx.with(|core| core.node(*node).stat.slots_lacking);
        let lacking = asked.iter().map(lacking).max().unwrap_or(0);
        // As long as other volumes give slots back, more may come.
        vain_ms = if lacking < lacking_min { 0 } else { vain_ms + RELEASE_POLL_MS };
        lacking_min = lacking_min.min(lacking);
    }
    match ctx.with(|core| core.is_enough(granted)) {
        true => Ok(()),
        false => Err(ReservationRefusal::TooFewNodes { granted, last, nodes_lost }),
    }
}

/// Reserves slots on the nodes that joined while the volume waits: rebuild waits for them.
async fn reserve_joined_meanwhile(ctx: &Ctx, asked: &[NodeIndex], wanted: u32) {
    if ctx.with(|core| !core.life.serves()) {
        return;
    }
    let joined = |node: &Node| node.health == NodeHealth::Up && node.slots.reserved == 0;
    for node in ctx.with(|core| core.nodes_that(joined)) {
        // It may have granted the larger number already, before it was lost.
        let wanted = if asked.contains(&node) { 0 } else { wanted };
        let slots = ctx.with(|core| core.slots_to_ask(node, core.reservation.slots.max(wanted)));
        reserve_on(ctx, node, slots).await;
        ctx.with(VolumeCore::start_rebuild);
    }
}

impl VolumeCore {
    /// The reason why a node refused `wanted` slots. `later`: other volumes should have given some
    /// back.
    fn why_refused(&self, node: NodeIndex, wanted: u32, later: bool) -> ReservationRefusal {
        let state = self.node(node);
        let bytes = |slots: u32| u64::from(slots) * u64::from(state.stat.slot_bytes);
        let free_bytes = bytes(state.stat.slots_free);
        let wanted_bytes = bytes(wanted.saturating_sub(state.slots.reserved));
        ReservationRefusal::NodeLacksRoom { node, free_bytes, wanted_bytes, later }
    }
}
