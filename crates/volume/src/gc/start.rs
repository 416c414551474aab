//! When collection starts, and when it rests.
//!
//! Collection starts when space is short, or when a checkpoint is worth its cost. There is one run
//! at a time. A run that gained nothing would gain nothing again, so the next one waits, unless
//! users wait for space. If such a run gains nothing either, or users have waited for too long,
//! collection is *stuck*: users get the error that there is no space, until something changes.

use fieldstone_block::Nanos;

use super::collect::{Ended, collect};
use super::{Collection, HOUSEKEEPING_MS, RETRY_MS};
use crate::core::VolumeCore;
use crate::interface::Provisioning;

/// How long users wait at most for collection that is disturbed again and again, or for nodes
/// without room. A request may have waited in a queue before that: together it is 14 s at most
/// (`docs/faults.md`), unless a slow disk slows collection (`log/admission.rs`).
const STARVED_MS_MAX: u64 = 8_000;
/// Pause after a run of collection where [`RETRY_MS`] does not apply. A run may end at once.
/// Without a pause, runs could follow each other for ever while no time passes.
const RUNS_PAUSE_MS: u64 = 1;

impl VolumeCore {
    /// Starts collection if space is short, or a checkpoint if the log after the last one is long.
    pub fn consider_gc(&mut self) {
        if !self.life.serves() || self.gc.is_collecting() {
            return;
        }
        // A thin volume would give the slots back with its next checkpoint.
        let thin = self.reservation.provisioning == Provisioning::Thin;
        let few = if thin { self.marks_at_rest().high } else { self.segments_ample() };
        if self.segments_free() < few {
            self.grow_reservation();
        }
        let rests = self.gc.collection.rests(self.now);
        let short = self.segments_free() < self.marks().low && !rests;
        if short || self.checkpoint_pays() {
            self.start_gc();
        }
    }

    /// Starts collection, if it does not run already.
    pub fn start_gc(&mut self) {
        if self.gc.is_collecting() || !self.life.serves() {
            return;
        }
        let rested = match self.gc.collection {
            Collection::Resting { until, .. } => until,
            _ => self.now,
        };
        self.gc.collection = Collection::Running;
        let written = self.counters.user_written_bytes;
        self.spawn_with(move |ctx| async move {
            let ended = collect(&ctx).await;
            // A request that still waits for space starts collection again at once.
            let (idle, short) = ctx.with(|core| {
                let idle = core.counters.user_written_bytes == written;
                (idle, core.segments_free() < core.marks().low)
            });
            let pause = (idle && short) || ended == Ended::Disturbed;
            ctx.sleep_ms(if pause { RETRY_MS } else { RUNS_PAUSE_MS }).await;
            ctx.with(|core| {
                // Another run would gain nothing either, unless users wait for it.
                let rests =
                    idle && ended == Ended::NothingLeft && core.segments_free() < core.marks().low;
                let rest_ms = if rests { HOUSEKEEPING_MS } else { 0 };
                // Users that wait for space get an error, until something changes. But if a user's
                // write got space meanwhile, others may get some in the same way.
                let waits = core.log.waits() && core.log.starved_since.is_some();
                let vain = (core.starved() || waits) && idle;
                let in_vain = vain && (ended == Ended::NothingLeft || core.starved_too_long());
                let until = core.now.plus(Nanos::from_ms(rest_ms)).max(rested);
                core.gc.collection = Collection::Resting { until, in_vain };
            });
        });
    }

    /// Collects if other volumes lack slots that this one could give back, if they held no garbage
    /// or if its shards lay evenly.
    pub fn relieve_crowded_nodes(&mut self) {
        let crowded = !self.gc.relief_rests(self.now) && !self.crowded_nodes().is_empty();
        if crowded || self.may_even_out() {
            self.start_gc();
        }
    }

    /// Users have waited for space for too long.
    fn starved_too_long(&self) -> bool {
        self.is_too_long(self.log.starved_since)
    }

    /// Users have waited since then, and that is too long.
    pub fn is_too_long(&self, since: Option<Nanos>) -> bool {
        since.is_some_and(|since| self.now.since(since) >= Nanos::from_ms(STARVED_MS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_block::BlockError;
    use fieldstone_proto::{NodeError, ReplyBody, RequestBody};

    use super::*;
    use crate::script::{SLOTS, Script};
    use crate::space::Marks;

    /// Leaves each node with so few free slots that fewer segments are free than this mark says;
    /// gives their number.
    fn make_short_of(script: &mut Script, mark: impl Fn(Marks) -> u64) -> u32 {
        script.core(|core| {
            let mut frees = (1..SLOTS).rev();
            let free = frees.find(|free| {
                core.nodes.iter_mut().for_each(|node| node.slots.free = *free);
                core.segments_free() < mark(core.marks())
            });
            free.expect("it has marks")
        })
    }

    /// The run under way ends after a pause of this length, and not before.
    fn end_run(script: &mut Script, pause_ms: u64) {
        script.sent();
        script.wait_ms(pause_ms - 1);
        script.sent();
        script.core(|core| assert!(core.gc.is_collecting(), "it pauses"));
        script.wait_ms(1);
        script.sent();
        script.core(|core| assert!(!core.gc.is_collecting()));
    }

    #[test]
    fn a_run_that_gained_nothing_rests_unless_a_request_waits_for_space() {
        let mut script = Script::serving(8);
        make_short_of(&mut script, |marks| marks.low);
        script.core(VolumeCore::consider_gc);
        end_run(&mut script, RETRY_MS);
        let rest = script.core(|core| {
            let rest = Collection::Resting {
                until: core.now.plus(Nanos::from_ms(HOUSEKEEPING_MS)),
                in_vain: false,
            };
            assert_eq!(core.gc.collection, rest, "no user waits");
            core.consider_gc();
            assert_eq!(core.gc.collection, rest, "it would gain nothing again");
            // A request waits for space, and a user's write gets some meanwhile.
            core.make_room();
            core.counters.user_written_bytes += 1;
            rest
        });
        end_run(&mut script, RUNS_PAUSE_MS);
        script.core(|core| assert_eq!(core.gc.collection, rest, "the earlier rest is not over"));
        script.wait_ms(HOUSEKEEPING_MS);
        script.sent();
        script.core(|core| {
            core.consider_gc();
            assert!(core.gc.is_collecting());
        });
    }

    #[test]
    fn a_run_that_ends_with_room_enough_does_not_rest() {
        let mut script = Script::serving(8);
        script.core(|core| {
            core.consider_gc();
            assert!(!core.gc.is_collecting(), "there is no reason");
            core.start_gc();
        });
        end_run(&mut script, RUNS_PAUSE_MS);
        make_short_of(&mut script, |marks| marks.low);
        script.core(|core| {
            core.consider_gc();
            assert!(core.gc.is_collecting());
        });
    }

    #[test]
    fn a_checkpoint_that_pays_does_not_wait_for_the_end_of_a_rest() {
        let mut script = Script::serving(8);
        make_short_of(&mut script, |marks| marks.low);
        script.core(VolumeCore::consider_gc);
        end_run(&mut script, RETRY_MS);
        script.core(|core| {
            core.consider_gc();
            assert!(!core.gc.is_collecting());
            core.gc.since_checkpoint.segments = 64;
            core.consider_gc();
            assert!(core.gc.is_collecting());
        });
    }

    /// How long a write waits for space until its user gets an error, in milliseconds. `None`: it
    /// still waits after ten seconds.
    /// `unreadable`: collection cannot read the segment that it would move.
    /// `others`: other users' writes get space again and again.
    fn refused_after_ms(unreadable: bool, others: bool) -> Option<u64> {
        let mut script = Script::serving(8);
        if unreadable {
            script.add_segment(&[Some(0), Some(1), Some(2), None, None, None]);
        }
        let free = make_short_of(&mut script, |marks| marks.reserve);
        script.write(0, 1);
        for waited_ms in (0..10_000).step_by(10) {
            script.do_jobs();
            for sent in script.sent() {
                let result = match sent.request.body {
                    RequestBody::ShardRead { .. } => Err(NodeError::NotFound),
                    _ => Ok(ReplyBody::Done),
                };
                script.answer_with_room(&sent, result, free);
            }
            if let Some(completion) = script.completions.pop() {
                assert_eq!(completion.result, Err(BlockError::NoSpace));
                return Some(waited_ms);
            }
            script.core(|core| core.counters.user_written_bytes += u64::from(others));
            script.wait_ms(10);
        }
        None
    }

    #[test]
    fn users_get_an_error_soon_only_if_a_run_for_them_found_nothing_left() {
        let soon = refused_after_ms(false, false).expect("nothing is left to free");
        assert!(soon < 1_000, "{soon}");
        assert_eq!(refused_after_ms(false, true), None, "they may get space in the same way");
        let disturbed = refused_after_ms(true, false).expect("they have waited for too long");
        assert!((STARVED_MS_MAX..STARVED_MS_MAX + 500).contains(&disturbed), "{disturbed}");
    }
}
