//! Collection for other volumes.
//!
//! Another volume may lack slots on a node where this one has more than it may keep, but holds
//! garbage in them (`provision/spare`): the node is *crowded*. Collection then moves segments that
//! have shards there, although this volume has room enough. It stops as soon as this gains nothing,
//! and does not try again for a while.
//!
//! When collection has freed what it can, a node may be *overfull*: more of the volume's shards lie
//! there than on other nodes, and another volume lacks slots there. Collection then moves segments
//! to other nodes, also those without garbage.

use fieldstone_block::Nanos;
use fieldstone_proto::{NodeIndex, SegmentId};

use super::checkpoint::write_checkpoint;
use super::moving::move_segment;
use crate::core::{Ctx, VolumeCore};
use crate::segment::{Segment, SegmentIndex};

/// Pause before the volume collects for other volumes again, after this gained nothing.
const RELIEF_RESTS_MS: u64 = 10_000;
/// Every round moves a segment, frees some, leaves one out, or ends. The bound is a safeguard
/// against a bug.
const ROUNDS_MAX: u32 = 10_000;

/// Why the volume cannot give slots back that other volumes lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nodes are crowded: the slots hold garbage.
    Garbage,
    /// Nodes are overfull: the volume's shards lie unevenly.
    UnevenShards,
}

/// What collection can do for other volumes.
#[derive(Debug, PartialEq, Eq)]
struct Relief {
    /// Slots that collection has to free on the node with the most.
    slots: u32,
    /// A checkpoint frees slots on some of the nodes.
    frees: bool,
    /// The segment to move before the next checkpoint, if there is one. It has a shard on one of
    /// the nodes where fewer segments are dead than the node has slots to free.
    victim: Option<SegmentIndex>,
}

impl VolumeCore {
    /// What collection can do now. It leaves the segments `tried` where they are.
    fn relief(&self, cause: Cause, tried: &[SegmentId]) -> Relief {
        let nodes = match cause {
            _ if !self.may_relieve(cause) => Vec::new(),
            Cause::Garbage => self.crowded_nodes(),
            Cause::UnevenShards => self.overfull_nodes(),
        };
        let dead = self.dead_segments();
        let dead_on = |node: NodeIndex| {
            let segments = dead.iter().filter_map(|handle| self.segments.get(*handle));
            let there = segments.filter(|segment| segment.has_shard_on(node)).count();
            u32::try_from(there).unwrap_or(u32::MAX)
        };
        let (mut most, mut frees, mut lacking) = (0, false, Vec::new());
        for (node, kept) in nodes {
            let needed = match cause {
                Cause::Garbage => self.slots_min_on(node),
                Cause::UnevenShards => self.slots_to_write_on(node),
            };
            let slots = needed.saturating_sub(kept);
            let dead = dead_on(node);
            most = most.max(slots);
            frees |= dead > 0;
            // The dead segments of another node free nothing here.
            if dead < slots {
                lacking.push(node);
            }
        }
        let there = |segment: &Segment| lacking.iter().any(|node| segment.has_shard_on(*node));
        let victim = match cause {
            Cause::Garbage => self.victim_of(tried, there),
            Cause::UnevenShards => self.victim_even_full(tried, there),
        };
        Relief { slots: most, frees, victim }
    }

    /// The volume's own lack of room, or of a checkpoint, comes before other volumes' lack of room.
    fn may_relieve(&self, cause: Cause) -> bool {
        let low = match cause {
            Cause::Garbage => self.marks().low,
            // Collection has made what room it could. The wish to give slots back, which raises the
            // other mark, is the same as that of the other volumes.
            Cause::UnevenShards => self.marks_at_rest().low,
        };
        let own = self.segments_free() < low || self.checkpoint_pays();
        self.life.serves() && !own && !self.gc.relief_rests(self.now)
    }
}

/// Frees slots on the nodes that are crowded or overfull, as far as moving blocks gains any.
pub(super) async fn relieve(ctx: &Ctx, cause: Cause) {
    let mut last = u32::MAX;
    // Segments that could not be read: too many of their shards are missing. Rebuild comes first.
    let mut tried = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let Relief { slots, frees, victim } = ctx.with(|core| core.relief(cause, &tried));
        if slots == 0 {
            return;
        }
        let done = match victim {
            None if frees => {
                // If it is no less, new segments take as many slots there as the old ones.
                let gains = slots < last;
                last = slots;
                gains && write_checkpoint(ctx, false).await
            }
            Some(victim) => {
                let id = ctx.with(|core| core.segments.get(victim).map(|s| s.id));
                if move_segment(ctx, victim).await.is_err() {
                    tried.extend(id);
                }
                true
            }
            None => false,
        };
        if !done {
            let rest = Nanos::from_ms(RELIEF_RESTS_MS);
            return ctx.with(|core| core.gc.rest_relief_until(core.now.plus(rest)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::Provisioning;
    use crate::script::{Script, grants};

    const A: u16 = 3;
    const B: u16 = 4;

    /// Other volumes lack slots on the nodes A and B. The volume has granted slots there that it
    /// may not ask for, and holds one slot of A and five of B that it has to free.
    fn crowded() -> Script {
        let mut script = Script::serving(8);
        script.core(|core| {
            grants(core, &[44, 44, 44, 64, 64, 44, 44, 44]);
            core.reservation.slots = 44;
            for (node, slots) in [(A, 1), (B, 5)] {
                let node = NodeIndex(node);
                let free = core.slots_always_free() + core.checkpoint_slots_unused_on(node);
                let free = u32::try_from(free).expect("small");
                let node = core.node_mut(node);
                node.slots.free = 64 - (44 - free + slots);
                node.stat.slots_lacking = 20;
            }
        });
        script
    }

    /// A segment with a shard on this node of the two, and this many live blocks.
    fn segment_on(script: &mut Script, node: u16, live_blocks: u32) -> SegmentIndex {
        let handle = script.add_segment(&[0, 1, 2, 5, 6, node].map(Some));
        script.core(|core| {
            core.segments.get_mut(handle).expect("it was added").live_blocks = live_blocks;
        });
        handle
    }

    fn relief(script: &mut Script, tried: &[SegmentId]) -> Relief {
        script.core(|core| core.relief(Cause::Garbage, tried))
    }

    #[test]
    fn a_dead_segment_frees_slots_only_on_its_own_nodes() {
        let mut script = crowded();
        let of_a = segment_on(&mut script, A, 1);
        let of_b = segment_on(&mut script, B, 2);
        let next = Relief { slots: 5, frees: false, victim: Some(of_a) };
        assert_eq!(relief(&mut script, &[]), next);
        for _ in 0..5 {
            segment_on(&mut script, A, 0);
        }
        let next = Relief { slots: 5, frees: true, victim: Some(of_b) };
        assert_eq!(relief(&mut script, &[]), next, "enough are dead on A, and none on B");
        for _ in 0..4 {
            segment_on(&mut script, B, 0);
        }
        assert_eq!(relief(&mut script, &[]), next);
        segment_on(&mut script, B, 0);
        let next = Relief { slots: 5, frees: true, victim: None };
        assert_eq!(relief(&mut script, &[]), next, "a checkpoint comes before the next move");
    }

    #[test]
    fn a_checkpoint_frees_what_is_dead_if_nothing_moves() {
        let mut script = crowded();
        let of_b = segment_on(&mut script, B, 1);
        segment_on(&mut script, 7, 0);
        let id = script.core(|core| core.segments.get(of_b).expect("it was added").id);
        let next = Relief { slots: 5, frees: false, victim: None };
        assert_eq!(relief(&mut script, &[id]), next, "the dead segment is on no crowded node");
        segment_on(&mut script, A, 0);
        assert_eq!(relief(&mut script, &[id]), Relief { frees: true, ..next });
        script.core(|core| core.gc.rest_relief_until(Nanos(1)));
        assert_eq!(relief(&mut script, &[]).slots, 0, "it gained nothing a moment ago");
    }

    /// The volume holds so many slots of node A that another volume lacks three there, and has few
    /// on the other nodes.
    fn overfull(nodes: u16) -> Script {
        let mut script = Script::serving(nodes);
        script.core(|core| {
            core.reservation.slots = 44;
            core.nodes
                .iter_mut()
                .for_each(|node| (node.slots.reserved, node.slots.free) = (44, 40));
            let a = NodeIndex(A);
            let held = 44 - core.node(a).slots.free;
            let left = core.slots_to_write_on(a) - held;
            let node = core.node_mut(a);
            (node.slots.free, node.stat.slots_lacking) = (left, 3);
            assert_eq!(core.slots_to_write_on(a), 44);
            assert_eq!(core.overfull_nodes(), [(a, 41)]);
            assert_eq!(core.crowded_nodes(), []);
        });
        script
    }

    #[test]
    fn segments_move_away_from_an_overfull_node_even_if_they_hold_no_garbage() {
        let mut script = overfull(8);
        let full = script.core(|core| core.shape.layout().segment_blocks());
        segment_on(&mut script, B, 1);
        let of_a = segment_on(&mut script, A, full);
        let relief = |script: &mut Script, cause| script.core(|core| core.relief(cause, &[]));
        assert_eq!(relief(&mut script, Cause::Garbage).slots, 0);
        let next = Relief { slots: 3, frees: false, victim: Some(of_a) };
        assert_eq!(relief(&mut script, Cause::UnevenShards), next);
        // It has moved, and so have two others.
        for _ in 0..3 {
            segment_on(&mut script, A, 0);
        }
        let next = Relief { slots: 3, frees: true, victim: None };
        assert_eq!(relief(&mut script, Cause::UnevenShards), next, "a checkpoint frees them");
        script.core(|core| core.node_mut(NodeIndex(A)).slots.free += 3);
        let done = Relief { slots: 0, frees: false, victim: None };
        assert_eq!(relief(&mut script, Cause::UnevenShards), done);
    }

    #[test]
    fn a_volume_that_needs_its_slots_moves_nothing_for_others() {
        let mut script = overfull(8);
        script.core(|core| {
            core.shape.grow(64 << 20);
            core.reservation.provisioning = Provisioning::Thick;
            assert!(core.slots_needed() >= 44, "{}", core.slots_needed());
            assert_eq!(core.overfull_nodes(), []);
        });
    }

    #[test]
    fn new_shards_go_to_an_overfull_node_only_if_no_other_can_take_them() {
        for (nodes, takes) in [(8, false), (6, true)] {
            let mut script = overfull(nodes);
            let handles: Vec<_> = (0..20).map(|_| script.add_segment(&[None; 6])).collect();
            script.core(|core| {
                let placed = handles.iter().flat_map(|handle| core.place_missing(*handle, 0));
                let placed: Vec<NodeIndex> = placed.map(|(_, node)| node).collect();
                assert_eq!(placed.len(), 20 * 6);
                assert_eq!(placed.contains(&NodeIndex(A)), takes, "{nodes} nodes");
            });
        }
    }
}
