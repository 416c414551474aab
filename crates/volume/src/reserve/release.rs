//! Slots that the volume gives back: to other volumes that need them, and when it closes.

use fieldstone_block::Nanos;
use fieldstone_proto::NodeIndex;

use super::request::{CHANGE_POLL_MS, ask_all, begin_change, refresh_stat, reserve_on};
use crate::core::{Ctx, VolumeCore};
use crate::node::Node;
use crate::status::NodeHealth;

/// How long a volume that closes collects to give slots back.
const CLOSE_COLLECTS_MS_MAX: u64 = 3_000;
/// How often a volume that closes asks a busy node to take slots back, and the pause before it asks
/// again.
const CLOSE_ASKS_MAX: u32 = 5;
const CLOSE_ASKS_PAUSE_MS: u64 = 100;

impl VolumeCore {
    /// The nodes that keep more than `slots` slots for the volume, or more than it needs there.
    fn nodes_with_more_than(&self, slots: u32) -> Vec<NodeIndex> {
        let more = |node: &NodeIndex| match self.node(*node).slots.reserved {
            // It has just joined. If it has shards, it has kept the reservation from before.
            0 => {
                let known = self.slots_known(*node);
                self.shards_on(*node) > 0 && known > slots.max(self.slots_closed_on(*node))
            }
            reserved => reserved > slots,
        };
        self.up_nodes().into_iter().filter(more).collect()
    }

    /// Slots that the volume needs on a node at least while it is closed: its shards take these,
    /// and the next opening.
    fn slots_closed_on(&self, node: NodeIndex) -> u32 {
        let free = self.slots_always_free() + self.checkpoint_slots_unused_on(node);
        let free = u32::try_from(free).unwrap_or(u32::MAX);
        self.shards_on(node).saturating_add(free)
    }
}

/// Gives back room if other volumes need it.
pub async fn release_if_needed(ctx: &Ctx) {
    if ctx.with(|core| !core.may_release_slots() || core.reservation_changes()) {
        return;
    }
    for node in ctx.with(|core| core.up_nodes()) {
        refresh_stat(ctx, node).await;
    }
    tell_spare(ctx).await;
    let nodes = ctx.with(|core| {
        core.relieve_crowded_nodes();
        let nodes = core.nodes_with_more();
        if !nodes.is_empty() {
            core.release_on_nodes();
        }
        nodes
    });
    if !nodes.is_empty() {
        for (node, slots) in nodes {
            // Users' writes may have taken slots since the volume chose this number.
            let slots = ctx.with(|core| core.slots_to_keep(node, slots));
            reserve_on(ctx, node, slots).await;
        }
        return ctx.with(|core| core.reservation.end_change());
    }
    ctx.with(|core| {
        let up = |node: &&Node| node.health == NodeHealth::Up;
        let up: Vec<&Node> = core.nodes.iter().filter(up).collect();
        // If a node has granted no more than the volume needs, a smaller reservation frees nothing
        // on it.
        let needed = core.slots_needed();
        let more = |node: &NodeIndex| core.node(*node).slots.reserved > needed;
        let lacking = core.up_nodes().into_iter().filter(more);
        let lacking = lacking.map(|node| core.slots_lacking(node)).max().unwrap_or(0);
        // If a disk is full, a release makes no space on it.
        let full = |node: &&Node| {
            node.stat.slots_free == 0 && !node.slots.disk_limited && !node.is_short()
        };
        let nothing_left = up.iter().any(full);
        let half = if nothing_left { core.half_of_surplus() } else { 0 };
        let less = if lacking > 0 { lacking } else { half.max(core.slots_beyond_share()) };
        core.release_slots(less);
    });
}

/// Tells nodes that the volume can do without more of its slots than they know.
async fn tell_spare(ctx: &Ctx) {
    let nodes = ctx.with(|core| {
        if core.reservation_changes() {
            return Vec::new();
        }
        let nodes = core.nodes_to_tell();
        if !nodes.is_empty() {
            core.reservation.begin_change();
        }
        nodes
    });
    if nodes.is_empty() {
        return;
    }
    for node in nodes {
        // A node that was lost meanwhile knows no reservation.
        let granted = ctx.with(|core| core.node(node).slots.reserved);
        if granted > 0 {
            reserve_on(ctx, node, granted).await;
        }
    }
    ctx.with(|core| core.reservation.end_change());
}

/// Frees slots that the volume can do without and that hold garbage, before it closes: later
/// nothing frees them until the volume is opened again.
pub async fn release_garbage(ctx: &Ctx) {
    let begun = ctx.with(|core| core.now);
    let mut asked = false;
    while ctx.with(|core| {
        let late = core.now.since(begun) >= Nanos::from_ms(CLOSE_COLLECTS_MS_MAX);
        if !asked && !core.reservation_changes() {
            core.release_unneeded();
            asked = true;
        }
        core.life.serves() && !late && (!asked || core.is_releasing())
    }) {
        ctx.sleep_ms(CHANGE_POLL_MS).await;
    }
}

/// Gives back slots that the volume can do without when it closes: later no other volume could ask
/// for them. The next opening asks for more again if nodes are lost then.
pub async fn release_spare(ctx: &Ctx) {
    begin_change(ctx).await;
    let slots = ctx.with(|core| {
        let slots = core.slots_needed_without_losses().max(core.slots_min());
        let kept = slots - slots.min(core.slots_needed_without_losses());
        if kept > 0 {
            let name = core.shape.name();
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
    ctx.with(|core| core.reservation.end_change());
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_proto::{NodeError, RequestBody};

    use crate::script::{SLOTS, Script, grants};

    const NODE: NodeIndex = NodeIndex(3);

    #[test]
    fn a_smaller_reservation_keeps_the_slots_that_are_taken_and_being_taken() {
        let mut script = Script::serving(8);
        script.core(|core| {
            // The volume holds 60 of the node's slots.
            core.node_mut(NODE).slots.free = SLOTS - 60;
            let free = core.slots_always_free() + core.checkpoint_slots_unused_on(NODE);
            let free = u32::try_from(free).expect("small");
            assert_eq!(core.slots_to_keep(NODE, 10), 60 + free);
            assert_eq!(core.slots_to_keep(NODE, 90), 90);
            core.gc.put_segments_freeing(5);
            assert_eq!(core.slots_to_keep(NODE, 10), 60 + free + 5, "these may still be there");
            core.node_mut(NODE).slots.free = 0;
            assert_eq!(core.slots_to_keep(NODE, 10), SLOTS, "never more than the node granted");
        });
    }

    #[test]
    fn slots_that_were_taken_while_the_volume_gives_some_back_stay() {
        let mut script = Script::serving(8);
        script.core(|core| {
            grants(core, &[60; 8]);
            let free = core.slots_always_free() + core.checkpoint_slots_unused_on(NODE);
            let free = u32::try_from(free).expect("small");
            core.nodes.iter_mut().for_each(|node| node.slots.give_up(40));
            assert_eq!(core.slots_to_ask(NODE, 50), 40);
            // Segments have taken 38 slots there meanwhile.
            core.node_mut(NODE).slots.free = 2;
            assert_eq!(core.slots_to_ask(NODE, 50), 38 + free);
            core.node_mut(NODE).slots.given_up = 0;
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
            let reserved: Vec<u32> = core.nodes.iter().map(|node| node.slots.reserved).collect();
            assert_eq!(reserved, [60, 60, 60, SLOTS, 60, 60, 60, 60]);
            core.set_reservation(60);
        });
        for _ in 0..8 {
            let sent = script.sent_one();
            script.done(&sent);
        }
        script.sent();
        script.core(|core| assert_eq!(core.node(NODE).slots.reserved, 60));
    }

    #[test]
    fn a_volume_that_closes_gives_slots_back_on_every_node() {
        let mut script = Script::serving(8);
        let busy = NodeIndex(5);
        script.add_segment(&[Some(0), Some(1), Some(2), Some(3), None, None]);
        script.core(|core| {
            // This node has just joined, and keeps what it had granted.
            core.node_mut(NODE).slots.reserved = 0;
        });
        script.start(|ctx| async move { release_spare(&ctx).await });
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

    /// Seed 7200860: a thick volume lacked three slots that this one could spare. But the node did
    /// not know, and did not let the thick volume wait for them.
    #[test]
    fn nodes_learn_how_many_slots_the_volume_can_spare_by_now() {
        let mut script = Script::serving(8);
        let (waits, limited) = (NodeIndex(5), NodeIndex(6));
        let spare = script.core(|core| {
            grants(core, &[44; 8]);
            core.reservation.slots = 44;
            core.node_mut(waits).slots.announced = 50;
            core.node_mut(limited).slots.disk_limited = true;
            core.slots_spare(NODE, 44)
        });
        assert!(spare > 0);
        script.start(|ctx| async move { tell_spare(&ctx).await });
        for node in [0, 1, 2, 3, 4, 7].map(NodeIndex) {
            let sent = script.sent_one();
            assert_eq!(sent.node, node);
            assert_eq!(sent.request.body, RequestBody::Reserve { slots: 44, spare });
            match node {
                NODE => script.answer(&sent, Err(NodeError::Busy)),
                _ => script.done(&sent),
            }
        }
        assert!(script.sent().is_empty());
        script.core(|core| {
            assert_eq!(core.nodes_to_tell(), [NODE], "it has not learned the number");
            assert!(!core.reservation_changes());
            // The volume asks for more than it has: it can spare nothing.
            let (asked, _) = core.ask(NodeIndex(0), 60, 0);
            core.note_answers(&[asked], &[(NodeIndex(0), Err(NodeError::NoSpace))]);
            assert_eq!(core.nodes_to_tell(), [NodeIndex(0), NODE]);
        });
    }

    /// Seed 2624462: the volume could spare two slots, but they held garbage.
    #[test]
    fn a_volume_collects_where_its_garbage_keeps_others_from_their_slots() {
        let mut script = Script::serving(8);
        script.core(|core| {
            grants(core, &[44, 44, 44, 46, 44, 44, 44, 44]);
            core.reservation.slots = 44;
            let state = core.node_mut(NODE);
            (state.slots.free, state.stat.slots_lacking) = (3, 2);
            assert_eq!((core.nodes_with_more(), core.crowded_nodes()), (vec![], vec![(NODE, 44)]));
            core.gc.rest_relief_until(Nanos(1));
            core.relieve_crowded_nodes();
            assert!(!core.gc.is_collecting(), "it gained nothing a moment ago");
            core.gc.rest_relief_until(Nanos(0));
            core.relieve_crowded_nodes();
            assert!(core.gc.is_collecting());
        });
        script.core(|core| {
            core.node_mut(NODE).slots.free = 20;
            assert_eq!((core.nodes_with_more(), core.crowded_nodes()), (vec![(NODE, 44)], vec![]));
        });
    }
}
