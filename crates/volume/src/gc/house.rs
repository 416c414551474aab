//! Periodic work of a serving volume.
//!
//! Most of the volume's maintenance starts when users write. An idle volume needs a reason of its
//! own: it may have slots that other volumes wait for, or room to claim on a node. So it checks
//! from time to time. A check that finds nothing makes the next pause longer, up to a bound. The
//! bound is shorter where other volumes may wait.

use super::HOUSEKEEPING_MS;
use crate::core::Ctx;
use crate::reserve::{ask_full_nodes, release_if_needed};

/// The longest pause between two checks.
const RESTING_MS: u64 = 16_000;
/// The longest such pause when the volume has room that other volumes may need.
const SPARING_MS: u64 = 2_000;
/// The longest such pause when the volume has idle slots: other volumes may wait for them.
const IDLE_SLOTS_MS: u64 = 1_000;

/// Periodic work of a serving volume: it collects and gives slots back also when the volume is
/// idle.
pub async fn keep_house(ctx: Ctx) {
    let mut pause_ms = HOUSEKEEPING_MS;
    let mut written = 0;
    while ctx.with(|core| core.life.serves()) {
        release_if_needed(&ctx).await;
        let full = ask_full_nodes(&ctx).await;
        let rests = ctx.with(|core| {
            core.consider_gc();
            let before = std::mem::replace(&mut written, core.counters.user_written_bytes);
            core.shrink_reservation(before == written);
            let rests = !core.gc.is_collecting() && !core.reservation_changes();
            core.claim_promised_slots();
            rests
        });
        let (idle, soon) = ctx.with(|core| {
            let lacks = core.lacks_promised_slots() || core.awaits_others();
            (core.has_idle_slots(), core.may_release_slots() || lacks)
        });
        let max_ms = match (idle, soon || full) {
            (true, _) => IDLE_SLOTS_MS,
            (false, true) => SPARING_MS,
            (false, false) => RESTING_MS,
        };
        pause_ms = if rests { (2 * pause_ms).min(max_ms) } else { HOUSEKEEPING_MS };
        ctx.sleep_ms(pause_ms).await;
    }
}
