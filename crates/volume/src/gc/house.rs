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
/// The longest such pause when the volume has room that other volumes may need, when it lacks slots
/// or waits for those of others, or when nodes are full.
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

#[cfg(test)]
mod tests {
    use fieldstone_block::{Backend, Nanos};
    use fieldstone_proto::{NodeStat, ReplyBody, RequestBody};

    use super::*;
    use crate::core::VolumeCore;
    use crate::interface::Provisioning;
    use crate::script::{Script, grants, stat};

    /// A thick volume that has reserved as many slots as `slots` says.
    fn with_slots(slots: impl Fn(&mut VolumeCore) -> u32) -> Script {
        let mut script = Script::serving(8);
        script.core(|core| {
            core.reservation.provisioning = Provisioning::Thick;
            let slots = slots(core);
            core.reservation.slots = slots;
            grants(core, &[slots; 8]);
            core.nodes.iter_mut().for_each(|node| node.slots.spare = slots);
        });
        script.start(keep_house);
        script
    }

    /// Lets the volume make the check that is due, and answers the requests of the check for the
    /// nodes. Returns the pause that follows, in milliseconds.
    fn check(script: &mut Script) -> u64 {
        loop {
            let sent = script.sent();
            if sent.is_empty() {
                break;
            }
            for sent in sent {
                assert_eq!(sent.request.body, RequestBody::Stat);
                let free = script.core(|core| core.node(sent.node).slots.free);
                let stat = NodeStat { slots_free: 10, ..stat(sent.node) };
                script.answer_with_room(&sent, Ok(ReplyBody::Stat(stat)), free);
            }
        }
        let due = script.volume.deadline().expect("it pauses");
        let pause = due.since(script.core(|core| core.now));
        let pause_ms = pause.0 / 1_000_000;
        assert_eq!(pause, Nanos::from_ms(pause_ms));
        script.wait_ms(pause_ms);
        pause_ms
    }

    fn pauses<const N: usize>(script: &mut Script) -> [u64; N] {
        std::array::from_fn(|_| check(script))
    }

    #[test]
    fn checks_of_a_volume_at_rest_come_more_and_more_rarely_up_to_a_bound() {
        let mut script = with_slots(|core| core.slots_needed());
        assert_eq!(pauses(&mut script), [2_000, 4_000, 8_000, 16_000, 16_000]);
    }

    #[test]
    fn a_volume_with_slots_for_others_checks_more_often() {
        let mut script = with_slots(|core| core.slots_needed() + 1);
        assert_eq!(pauses(&mut script), [2_000, 2_000, 2_000]);
        let mut script = with_slots(|core| {
            let mut slots = 0..;
            let idle = slots.find(|slots| {
                core.reservation.slots = *slots;
                core.has_idle_slots()
            });
            idle.expect("it has enough at some time")
        });
        for _ in 0..3 {
            // A volume at rest would give its idle slots back.
            script.core(|core| core.counters.user_written_bytes += 1);
            assert_eq!(check(&mut script), 1_000);
        }
    }

    #[test]
    fn a_check_that_finds_something_is_followed_by_another_one_soon() {
        let mut script = with_slots(|core| core.slots_needed());
        pauses::<3>(&mut script);
        script.core(|core| {
            // Something else holds up collection.
            let lock = core.gc.lock();
            core.spawn_with(move |_| async move {
                let _guard = lock.acquire().await;
                std::future::pending::<()>().await;
            });
            core.gc.since_checkpoint.segments = 64;
        });
        assert_eq!(pauses(&mut script), [1_000, 1_000]);
        script.core(|core| assert!(core.gc.is_collecting(), "also an idle volume collects"));
    }

    #[test]
    fn a_volume_that_serves_no_more_is_not_checked() {
        let mut script = with_slots(|core| core.slots_needed());
        check(&mut script);
        script.core(|core| core.life.begin_closing());
        assert!(script.sent().is_empty());
        assert_eq!(script.volume.deadline(), None);
    }
}
