//! One run of collection.
//!
//! A run goes in rounds until there is enough room. Each round moves one segment, or writes a
//! checkpoint that frees dead ones. A move needs room before it gives any, and so does a
//! checkpoint. So a run also ends when a checkpoint has made no more room than the one before.
//! The whole run holds the maintenance lock.

use fieldstone_proto::SegmentId;

use super::checkpoint::write_checkpoint;
use super::even::even_out;
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

/// Frees space until there is enough, or until nothing more can be gained. Frees slots that other
/// volumes lack.
pub(super) async fn collect(ctx: &Ctx) -> Ended {
    let lock = ctx.with(|core| core.gc.lock());
    let _guard = lock.acquire().await;
    relieve(ctx).await;
    let ended = free_space(ctx).await;
    if ended == Ended::NothingLeft {
        even_out(ctx).await;
    }
    ended
}

/// Frees space until there is enough, or until nothing more can be gained.
async fn free_space(ctx: &Ctx) -> Ended {
    let mut tried = Vec::new();
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
                (core.room_made(), core.counters.user_written_bytes, core.reservation.last_goal())
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use fieldstone_proto::{NodeError, ReplyBody, RequestBody};

    use super::*;
    use crate::script::{Script, Sent};
    use crate::segment::SegmentIndex;

    const WHOLE: [Option<u16>; 6] = [Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)];

    /// A run of collection that begins. Its result, once it has ended.
    fn begin(script: &mut Script) -> Rc<Cell<Option<Ended>>> {
        let result = Rc::new(Cell::new(None));
        let ends = Rc::clone(&result);
        script.start(move |ctx| async move { ends.set(Some(collect(&ctx).await)) });
        result
    }

    fn segment(script: &mut Script, shards: [Option<u16>; 6], live_blocks: u32) -> SegmentIndex {
        let handle = script.add_segment(&shards);
        script.core(|core| {
            core.segments.get_mut(handle).expect("it was added").live_blocks = live_blocks;
        });
        handle
    }

    /// Leaves each node with so few free slots that collection is due; gives their number.
    fn make_short(script: &mut Script) -> u32 {
        script.core(|core| {
            for free in (0..100).rev() {
                core.nodes.iter_mut().for_each(|node| node.slots.free = free);
                if core.segments_free() < core.marks().low {
                    return free;
                }
            }
            panic!("it has no mark");
        })
    }

    #[test]
    fn with_room_enough_nothing_moves() {
        let mut script = Script::serving(8);
        segment(&mut script, WHOLE, 1);
        segment(&mut script, WHOLE, 0);
        let ended = begin(&mut script);
        assert!(script.sent().is_empty());
        assert_eq!(ended.get(), Some(Ended::NothingLeft));
    }

    /// Until the nodes have a root that does not need the segments, a crash finds the old one.
    #[test]
    fn dead_segments_are_deleted_after_the_root_that_does_not_need_them() {
        let mut script = Script::serving(8);
        let dead: Vec<SegmentIndex> = (0..8).map(|_| segment(&mut script, WHOLE, 0)).collect();
        let mut free = make_short(&mut script);
        let ended = begin(&mut script);
        let mut steps: Vec<&str> = Vec::new();
        for _ in 0..100 {
            script.do_jobs();
            for sent in script.sent() {
                let step = match &sent.request.body {
                    RequestBody::ShardWrite { .. } => "write",
                    RequestBody::ShardSync => "sync",
                    RequestBody::PutRoot { .. } => "root",
                    RequestBody::ShardDelete { segments } => {
                        assert_eq!(segments.len(), dead.len());
                        free += 8;
                        "delete"
                    }
                    _ => "other",
                };
                steps.push(step);
                script.answer_with_room(&sent, Ok(ReplyBody::Done), free);
            }
            script.wait_ms(1);
        }
        steps.retain(|step| *step != "other");
        steps.dedup();
        assert_eq!(steps, ["write", "sync", "root", "delete"]);
        assert_eq!(ended.get(), Some(Ended::NothingLeft));
        script.core(|core| assert!(dead.iter().all(|handle| core.segments.get(*handle).is_none())));
    }

    fn reads(sent: &[Sent]) -> bool {
        sent.iter().any(|sent| matches!(sent.request.body, RequestBody::ShardRead { .. }))
    }

    /// Rebuild or a node that returns may make the segment readable, so there may be more to gain.
    #[test]
    fn a_segment_that_cannot_be_read_is_left_to_rebuild() {
        let mut script = Script::serving(8);
        let lost = [Some(0), Some(1), Some(2), None, None, None];
        let handle = segment(&mut script, lost, 1);
        make_short(&mut script);
        let ended = begin(&mut script);
        for _ in 0..2_000 {
            let sent = script.sent();
            for sent in &sent {
                let result = match sent.request.body {
                    RequestBody::ShardRead { .. } => Err(NodeError::NotFound),
                    _ => Ok(ReplyBody::Done),
                };
                script.answer_with_room(sent, result, 20);
            }
            if ended.get().is_some() {
                break;
            }
            script.wait_ms(10);
        }
        assert_eq!(ended.get(), Some(Ended::Disturbed));
        script.core(|core| assert!(core.segments.get(handle).is_some()));
    }

    /// A move is under way when the volume begins to close. The run ends, and leaves the lock.
    #[test]
    fn a_run_ends_when_the_volume_no_longer_serves() {
        let mut script = Script::serving(8);
        segment(&mut script, WHOLE, 1);
        make_short(&mut script);
        let ended = begin(&mut script);
        let sent = script.sent();
        assert!(reads(&sent), "it reads the segment");
        script.core(|core| core.life.begin_closing());
        for sent in &sent {
            script.answer(sent, Err(NodeError::Busy));
        }
        for _ in 0..2_000 {
            for sent in script.sent() {
                script.answer(&sent, Err(NodeError::Busy));
            }
            script.wait_ms(10);
        }
        assert_eq!(ended.get(), Some(Ended::Disturbed));
        let locked = Rc::new(Cell::new(false));
        let locks = Rc::clone(&locked);
        script.start(move |ctx| async move {
            let lock = ctx.with(|core| core.gc.lock());
            let _guard = lock.acquire().await;
            locks.set(true);
        });
        script.sent();
        assert!(locked.get());
    }
}
