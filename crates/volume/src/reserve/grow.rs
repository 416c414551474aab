//! More slots: on one node, on the nodes that have granted less than the others, or on all.

use std::collections::BTreeMap;

use fieldstone_proto::{NodeError, NodeIndex, RequestBody};

use super::request::{TRIES_MAX, ask_all, begin_change, others_have_it, refresh_stat, reserve_on};
use crate::core::{Ctx, VolumeCore};
use crate::node::Node;
use crate::status::NodeHealth;

/// Reserves the same number of slots on all nodes that have granted as much as the others:
/// `wanted`, or as many of these as all nodes have. True if it is more than before.
pub async fn reserve_more(ctx: &Ctx, wanted: u32) -> bool {
    let (nodes, before) = ctx.with(|core| {
        let slots = core.slots_common();
        let asks = |node: &Node| {
            let equal = node.slots.reserved >= slots || node.slots.disk_limited;
            node.health == NodeHealth::Up && equal
        };
        (core.nodes_that(asks), slots)
    });
    reserve_together(ctx, nodes, before, wanted, true).await
}

/// Reserves more slots on the nodes that have granted less than the others. The volume may ask none
/// of them alone, so it asks them together. The smallest number that one of them has granted grows.
pub async fn reserve_on_low(ctx: &Ctx) -> bool {
    let (nodes, min_slots, wanted) = ctx.with(|core| {
        let nodes = core.low_nodes();
        let granted = nodes.iter().map(|node| core.node(*node).slots.reserved);
        (nodes.clone(), granted.min().unwrap_or(0), core.reservation.slots)
    });
    !nodes.is_empty() && reserve_together(ctx, nodes, min_slots, wanted, false).await
}

/// Reserves the same number of slots on all of these nodes: `wanted`, or as many of these beyond
/// `min_slots` as all of the nodes have. True if it is more than `min_slots`. A node that has
/// granted more keeps more. `by_most`: the growth succeeds only if most nodes of the pool grant it.
/// Otherwise only a full disk may refuse it.
async fn reserve_together(
    ctx: &Ctx,
    nodes: Vec<NodeIndex>,
    min_slots: u32,
    wanted: u32,
    by_most: bool,
) -> bool {
    let granted = |core: &mut VolumeCore| -> Vec<u32> {
        nodes.iter().map(|node| core.node(*node).slots.reserved).collect()
    };
    let before = ctx.with(granted);
    let mut slots = wanted;
    for _ in 0..TRIES_MAX {
        if slots <= min_slots {
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
        slots = min_slots + (slots - min_slots) / 2;
    }
    // Slots that only some nodes have granted are of no use.
    for (node, before) in nodes.into_iter().zip(before) {
        // This request also cancels the need that the node announces because of the growth, and
        // reports the slots that the volume can release. A need that the volume has on this node
        // alone stays announced. A node without a known reservation gets its own request when it
        // has joined. A node with a full disk keeps what it has.
        let (kept, asks) = ctx.with(|core| {
            let state = core.node(node);
            let kept = core.slots_to_keep(node, before);
            let full = state.slots.disk_limited && state.slots.reserved <= kept;
            let waits = core.waits_for(node) && state.slots.reserved <= kept;
            (kept, state.slots.reserved > 0 && !full && !waits)
        });
        if asks {
            reserve_on(ctx, node, kept).await;
        }
        refresh_stat(ctx, node).await;
    }
    false
}

/// Asks the nodes that have granted less than the others for the rest. True if any node has granted
/// more.
pub async fn reserve_missing(ctx: &Ctx) -> bool {
    let nodes = ctx.with(|core| core.nodes_with_less());
    let mut gained = false;
    for node in nodes {
        let (before, slots) = ctx.with(|core| {
            let slots = core.slots_to_ask(node, core.reservation.slots);
            (core.node(node).slots.reserved, slots)
        });
        if slots > before {
            reserve_on(ctx, node, slots).await;
        }
        gained |= ctx.with(|core| core.node(node).slots.reserved > before);
    }
    gained
}

/// Asks single nodes for slots that rebuild needs, if the nodes together grant no more. True if any
/// node has granted more.
pub async fn reserve_for_rebuild(ctx: &Ctx) -> bool {
    let mut gained = false;
    for node in ctx.with(|core| core.low_nodes()) {
        let (before, slots) =
            ctx.with(|core| (core.node(node).slots.reserved, core.slots_for_rebuild(node)));
        if slots > before {
            reserve_on(ctx, node, slots).await;
        }
        gained |= ctx.with(|core| core.node(node).slots.reserved > before);
    }
    gained
}

/// Reserves on a node that has joined as many slots as the volume may ask it for.
pub async fn reserve_joined(ctx: &Ctx, node: NodeIndex) {
    begin_change(ctx).await;
    let slots = ctx.with(|core| match core.reservation.slots {
        0 => 0,
        slots => core.slots_to_ask(node, slots.max(core.slots_min())),
    });
    if slots > 0 && ctx.with(|core| core.life.serves()) {
        reserve_on(ctx, node, slots).await;
    }
    refresh_stat(ctx, node).await;
    ctx.with(|core| core.reservation.end_change());
}

/// Reserves the largest number that all nodes grant, when the volume begins to serve. The volume
/// first asks the nodes that have data of the volume: they know its reservation, and those of other
/// volumes. The other nodes may have come back empty.
pub async fn reserve_at_start(ctx: Ctx) {
    let (nodes, wanted) = ctx.with(|core| {
        let mut nodes = core.up_nodes();
        nodes.sort_by_key(|node| core.data_shards_on(*node) == 0);
        (nodes, core.reservation.slots)
    });
    let is_new = ctx.with(|core| nodes.iter().all(|node| core.data_shards_on(*node) == 0));
    for node in &nodes {
        let slots = ctx.with(|core| match core.data_shards_on(*node) {
            0 if !is_new => {
                core.node_mut(*node).slots.back_since = Some(core.now);
                core.slots_to_ask(*node, wanted)
            }
            _ => wanted,
        });
        reserve_on(&ctx, *node, slots).await;
        refresh_stat(&ctx, *node).await;
    }
    // Slots that a single node grants beyond the other nodes are of no use to this volume, but
    // other volumes may need them.
    ctx.with(|core| {
        let granted = |node: &NodeIndex| {
            let state = core.node(*node);
            // A node without any was lost meanwhile, or came back empty into a full pool.
            (!state.slots.disk_limited && state.slots.reserved > 0).then_some(state.slots.reserved)
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
            let lacks = state.slots.free < checkpoint && state.stat.slots_free > 0;
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
    let full = |node: &Node| node.slots.full || node.is_short() || node.slots.disk_limited;
    let nodes = ctx.with(|core| core.nodes_that(|n| n.health == NodeHealth::Up && full(n)));
    for node in &nodes {
        refresh_stat(ctx, *node).await;
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
        if core.reservation_changes() || !core.life.serves() {
            return Vec::new();
        }
        let limited = |n: &Node| n.health == NodeHealth::Up && core.is_limited_by_disk(n);
        let nodes = core.nodes_that(limited);
        if !nodes.is_empty() {
            core.reservation.begin_change();
        }
        nodes
    });
    if nodes.is_empty() {
        return;
    }
    for node in nodes {
        let slots = ctx.with(|core| core.slots_to_ask(node, core.reservation.slots));
        reserve_on(ctx, node, slots).await;
    }
    ctx.with(|core| core.reservation.end_change());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::Provisioning;
    use crate::script::{SLOTS, Script, Sent, grants};

    const NODE: NodeIndex = NodeIndex(3);

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
            assert_eq!(core.node(NODE).slots.reserved, 45);
            assert_eq!(core.reservation.slots, 60);
        });
    }

    /// Seed 7200860: each attempt to grow ended the wait for slots that every node had promised.
    #[test]
    fn growth_that_fails_does_not_end_the_wait_for_promised_slots() {
        let mut script = Script::serving(8);
        let whole = script.core(|core| {
            let whole = core.slots_whole(core.shape.size_bytes());
            core.reservation.provisioning = Provisioning::Thick;
            core.reservation.slots = whole;
            grants(core, &[whole; 8]);
            core.node_mut(NODE).slots.reserved = whole - 9;
            whole
        });
        for still_needed in [true, false] {
            script.start(|ctx| async move { assert!(!reserve_on_low(&ctx).await) });
            let mut last = 0;
            loop {
                let sent = script.sent_one();
                let RequestBody::Reserve { slots, .. } = sent.request.body else { break };
                last = slots;
                match slots > whole - 9 {
                    true => script.answer(&sent, Err(NodeError::Busy)),
                    false => script.done(&sent),
                }
                // All requests have gone out: from now on the volume needs less.
                if slots == whole - 8 && !still_needed {
                    script.core(|core| core.reservation.slots = whole - 9);
                }
            }
            assert_eq!(script.core(|core| core.awaits_others()), still_needed);
            assert_eq!(last == whole - 9, !still_needed, "it cancels the need with {last}");
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
            core.node_mut(NodeIndex(5)).slots.disk_limited = true;
            core.node_mut(NodeIndex(5)).slots.reserved = 20;
            assert_eq!(core.slots_to_ask(NODE, SLOTS), 60, "a full disk tells nothing");
            let state = core.node_mut(NODE);
            (state.slots.reserved, state.slots.free) = (70, 70);
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
            let whole = core.slots_whole(core.shape.size_bytes());
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
    fn a_node_that_reconnects_keeps_what_it_granted() {
        let mut script = Script::serving(8);
        script.add_segment(&[Some(0), Some(1), Some(2), Some(3), None, None]);
        script.core(|core| {
            grants(core, &[60, 20, 60, 0, 60, 60, 60, 60]);
            core.node_mut(NODE).slots.before = 50;
            core.node_mut(NODE).slots.free = 49;
            assert_eq!(core.slots_to_ask(NODE, 60), 50);
            core.node_mut(NODE).slots.free = 9;
            let known = core.slots_kept(NODE);
            assert!((10..20).contains(&known), "it has forgotten its reservation: {known}");
            core.node_mut(NodeIndex(4)).slots.reserved = 0;
            assert_eq!(core.slots_to_ask(NodeIndex(4), 60), 20, "it has no shard");
            assert_eq!(core.slots_for_rebuild(NodeIndex(4)), core.slots_needed().min(60));
        });
    }
}
