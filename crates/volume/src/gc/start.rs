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
