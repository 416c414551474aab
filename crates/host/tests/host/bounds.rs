//! The turns of a core are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fieldstone_block::Nanos;

use crate::common::{start, wait_until};
use crate::scripted::{self, Script};

#[test]
fn the_longest_turn_is_measured() {
    const WORK_MS: u64 = 60;
    let script = Arc::new(Script { size_bytes: AtomicU64::new(1 << 20), ..Script::default() });
    let host = start(Vec::new());
    scripted::open(&host, &script);
    let summary = || host.handle().snapshot(false)[0].turns;
    let before = summary();
    script.work_ms.store(WORK_MS, Ordering::Relaxed);
    wait_until("the work is done", || script.work_ms.load(Ordering::Relaxed) == 0);
    // The turn is counted at its end.
    wait_until("it is counted", || summary().longest >= Nanos::from_ms(WORK_MS));
    let after = summary();
    assert!(after.longest_recent >= Nanos::from_ms(WORK_MS), "{after:?}");
    assert!(after.turns > before.turns, "{before:?}, {after:?}");
    let busy = after.busy.since(before.busy);
    assert!(busy >= Nanos::from_ms(WORK_MS) && after.longest <= after.busy, "{after:?}");
    host.stop().expect("no core failed");
}
