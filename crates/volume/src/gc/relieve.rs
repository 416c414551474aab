//! Collection for other volumes.
//!
//! Another volume may lack slots on a node where this one has more than it may keep, but holds
//! garbage in them (`provision`): the node is *crowded*. Collection then moves segments that have
//! shards there, although this volume has room enough. It stops as soon as this gains nothing, and
//! does not try again for a while.

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

/// What collection can do for other volumes.
#[derive(Debug, PartialEq, Eq)]
struct Relief {
    /// Slots that collection has to free on the most crowded node.
    slots: u32,
    /// A checkpoint frees slots on some of the crowded nodes.
    frees: bool,
    /// The segment to move before the next checkpoint, if there is one. It has a shard on a crowded
    /// node where fewer segments are dead than the node has slots to free.
    victim: Option<SegmentIndex>,
}

impl VolumeCore {
    /// What collection can do now. It leaves the segments `tried` where they are.
    fn relief(&self, tried: &[SegmentId]) -> Relief {
        let crowded = if self.may_relieve() { self.crowded_nodes() } else { Vec::new() };
        let dead = self.dead_segments();
        let dead_on = |node: NodeIndex| {
            let segments = dead.iter().filter_map(|handle| self.segments.get(*handle));
            let there = segments.filter(|segment| segment.has_shard_on(node)).count();
            u32::try_from(there).unwrap_or(u32::MAX)
        };
        let (mut most, mut frees, mut lacking) = (0, false, Vec::new());
        for (node, kept) in crowded {
            let slots = self.slots_min_on(node).saturating_sub(kept);
            let dead = dead_on(node);
            most = most.max(slots);
            frees |= dead > 0;
            // The dead segments of another crowded node free nothing here.
            if dead < slots {
                lacking.push(node);
            }
        }
        let there = |segment: &Segment| lacking.iter().any(|node| segment.has_shard_on(*node));
        Relief { slots: most, frees, victim: self.victim_of(tried, there) }
    }

    /// The volume's own lack of room, or of a checkpoint, comes before other volumes' lack of room.
    fn may_relieve(&self) -> bool {
        let own = self.segments_free() < self.marks().low || self.checkpoint_pays();
        self.life.serves() && !own && !self.gc.relief_rests(self.now)
    }
}

/// Frees slots on crowded nodes, as far as moving blocks gains any.
pub(super) async fn relieve(ctx: &Ctx) {
    let mut last = u32::MAX;
    // Segments that could not be read: too many of their shards are missing. Rebuild comes first.
    let mut tried = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let Relief { slots, frees, victim } = ctx.with(|core| core.relief(&tried));
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
        script.core(|core| core.relief(tried))
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
}
