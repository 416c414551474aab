//! Collection for other volumes.
//!
//! Another volume may lack slots on a node where this one has more than it may keep, but holds
//! garbage in them (`provision`): the node is *crowded*. Collection then moves segments that have
//! shards there, although this volume has room enough. It stops as soon as this gains nothing, and
//! does not try again for a while.

use fieldstone_block::Nanos;
use fieldstone_proto::NodeIndex;

use super::checkpoint::write_checkpoint;
use super::moving::move_segment;
use crate::core::{Ctx, VolumeCore};
use crate::segment::Segment;
use crate::status::VolumePhase;

/// Pause before the volume collects for other volumes again, after this gained nothing.
const RELIEF_RESTS_MS: u64 = 10_000;
/// Every round moves a segment, frees some, leaves one out, or ends. The bound is a safeguard
/// against a bug.
const ROUNDS_MAX: u32 = 10_000;

impl VolumeCore {
    /// Slots that collection has to free on the most crowded node.
    fn slots_crowded(&self, crowded: &[(NodeIndex, u32)]) -> u32 {
        let more = |(node, kept): &(NodeIndex, u32)| {
            self.slots_min_on(self.node(*node)).saturating_sub(*kept)
        };
        crowded.iter().map(more).max().unwrap_or(0)
    }

    /// The volume's own lack of room, or of a checkpoint, comes before other volumes' lack of room.
    fn may_relieve(&self) -> bool {
        let own = self.segments_free() < self.marks().low || self.checkpoint_pays();
        self.phase == VolumePhase::Serving && !own && self.now >= self.relief_rests_until
    }
}

/// Frees slots on crowded nodes, as far as moving blocks gains any.
pub(super) async fn relieve(ctx: &Ctx) {
    let mut last = u32::MAX;
    // Segments that could not be read: too many of their shards are missing. Rebuild comes first.
    let mut tried = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let (slots, dead, victim) = ctx.with(|core| {
            let crowded = if core.may_relieve() { core.crowded_nodes() } else { Vec::new() };
            let there = |s: &Segment| crowded.iter().any(|(node, _)| s.has_shard_on(*node));
            let dead = core.dead_segments();
            let dead = dead.iter().filter_map(|handle| core.segments.get(*handle));
            let dead = u32::try_from(dead.filter(|s| there(s)).count()).unwrap_or(u32::MAX);
            (core.slots_crowded(&crowded), dead, core.victim_of(&tried, there))
        });
        if slots == 0 {
            return;
        }
        let done = match victim {
            _ if dead >= slots || (dead > 0 && victim.is_none()) => {
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
            return ctx.with(|core| core.relief_rests_until = core.now.plus(rest));
        }
    }
}
