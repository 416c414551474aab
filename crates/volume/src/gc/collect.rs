//! One run of collection.
//!
//! A run goes in rounds until there is enough room. Each round moves one segment, or writes a
//! checkpoint that frees dead ones. A move needs room before it gives any, and so does a
//! checkpoint. So a run also ends when a checkpoint has made no more room than the one before.
//! The whole run holds the maintenance lock.

use fieldstone_proto::SegmentId;

use super::checkpoint::write_checkpoint;
use super::moving::move_segment;
use super::relieve::relieve;
use crate::core::{Ctx, VolumeCore};
use crate::segment::{Segment, State};
use crate::sync::sync_segments;

/// Every round frees a segment, moves one, leaves one out, or ends. The bound is a safeguard
/// against a bug.
const ROUNDS_MAX: u32 = 100_000;

/// How collection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// There is enough room, or nothing more to gain.
    NothingLeft,
    /// A node was lost, or a segment could not be read: there may be more to gain.
    Disturbed,
}

impl VolumeCore {
    /// A measure of the room that collection has made: it does not change when the volume gives
    /// some of the room back.
    fn room_made(&self) -> i64 {
        let free = self.segments_free() + self.segments_free_to_move();
        let signed = |segments: u64| i64::try_from(segments).unwrap_or(i64::MAX);
        signed(free) - 2 * signed(self.segments_to_release())
    }

    /// Some closed segments are not durable yet.
    fn sealing(&self) -> bool {
        let sealing = |s: &Segment| matches!(s.state, State::Closed | State::Sealed) && !s.shelved;
        self.segments.iter().any(|(_, s)| sealing(s))
    }
}

/// Frees space until there is enough, or until nothing more can be gained.
pub(super) async fn collect(ctx: &Ctx) -> Ended {
    let lock = ctx.with(|core| core.gc.lock());
    let _guard = lock.acquire().await;
    let mut tried = Vec::new();
    relieve(ctx).await;
    // The room made until the last checkpoint, the bytes that users had written until then, and the
    // number of slots that the volume then wanted to keep.
    let mut last_checkpoint = None;
    for _ in 0..ROUNDS_MAX {
        let (free, marks, dead, serving, victim) = ctx.with(|core| {
            let dead = core.dead_segments().len() as u64;
            let victim = core.victim(&tried);
            (core.segments_free(), core.marks(), dead, core.life.serves(), victim)
        });
        if !serving {
            return Ended::Disturbed;
        }
        let (long, batch) = ctx.with(|core| (core.checkpoint_pays(), core.dead_batch()));
        let plenty = free + dead >= marks.high;
        let urgent = free < marks.low && dead > 0;
        // A checkpoint closes the open segment, even if it holds little, and takes room until the
        // old checkpoint is gone. So it is worth its cost only after several segments have died.
        let tight = victim.is_none();
        if long || (urgent && (dead >= batch || plenty || tight)) {
            if !write_checkpoint(ctx, false).await {
                return Ended::Disturbed;
            }
            let now = ctx.with(|core| {
                (core.room_made(), core.counters.user_written_bytes, core.reservation.goal())
            });
            let in_vain =
                |last: (i64, u64, u32)| now.0 <= last.0 && (now.1, now.2) == (last.1, last.2);
            if !long && last_checkpoint.is_some_and(in_vain) {
                // Moving blocks takes as much room as it gives back.
                return ended(&tried);
            }
            last_checkpoint = Some(now);
            continue;
        }
        if free >= marks.high || (plenty && !urgent) {
            return ended(&tried);
        }
        if victim.is_none() && ctx.with(|core| core.sealing()) {
            // Segments that are being written may have blocks to move once they are durable.
            sync_segments(ctx).await;
            continue;
        }
        let Some(victim) = victim else {
            let young =
                ctx.with(|core| core.segments.iter().any(|(_, s)| s.state < State::Durable));
            if dead > 0 || (young && free < marks.reserve) {
                let before = ctx.with(|core| core.segments.len());
                if !write_checkpoint(ctx, false).await {
                    return Ended::Disturbed;
                }
                if ctx.with(|core| core.segments.len()) < before {
                    continue;
                }
            }
            return ended(&tried);
        };
        let id = ctx.with(|core| core.segments.get(victim).map(|s| s.id));
        if move_segment(ctx, victim).await.is_err() {
            // Too many shards are missing to read the segment now. Leave it to rebuild.
            tried.extend(id);
        }
    }
    Ended::Disturbed
}

fn ended(not_moved: &[SegmentId]) -> Ended {
    if not_moved.is_empty() { Ended::NothingLeft } else { Ended::Disturbed }
}
