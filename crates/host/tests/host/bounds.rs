//! The turns of a core are bounded and measured. A part that always has work does not keep the
//! others waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fieldstone_block::{Completion, Info, Nanos, Op};
use fieldstone_host::store::Mail;
use fieldstone_host::{
    CoreSnapshot, Destination, DeviceId, Frontend, FrontendCounts, FrontendIo, FrontendKind, Host,
    Submitter,
};
use fieldstone_uring::{Address, Listener};

use crate::common::{TIMEOUT, wait_until};
use crate::frontends::{ask, check_greeting, open, request, start_with};
use crate::scripted::{self, Script};

/// Says after each flush that there is more to do, while this is set.
static IS_INSATIABLE: AtomicBool = AtomicBool::new(false);

const INSATIABLE: FrontendKind = FrontendKind {
    name: "insatiable",
    about: "a test",
    make: |_| Box::new(Insatiable),
    offer: None,
};

struct Insatiable;

impl Frontend for Insatiable {
    fn counts(&self) -> FrontendCounts {
        FrontendCounts::default()
    }
    fn in_flight(&self) -> usize {
        0
    }
    fn mail(&mut self, _: Mail, _: &mut FrontendIo<'_>) {}
    fn device_changed(&mut self, _: DeviceId, _: &Info, _: &mut FrontendIo<'_>) {}
    fn complete(&mut self, _: Submitter, _: Completion) {}
    fn submit(&mut self, _: &mut FrontendIo<'_>) -> bool {
        false
    }
    fn flush(&mut self, _: &mut FrontendIo<'_>) -> bool {
        IS_INSATIABLE.load(Ordering::Relaxed)
    }
    fn drain(&mut self) {}
    fn close(&mut self, _: &mut FrontendIo<'_>) {}
}

/// Requests of other devices, sockets, timers and calls make progress on every core.
fn check_served(host: &Host, script: &Script) {
    let handle = host.handle();
    let probe = handle.frontend("probe").expect("it was named");
    // One device on each core.
    for _ in 0..2 {
        let device = open(host);
        let answers = ask(host, probe, device, &request(Op::Read, 1, b""));
        for _ in 0..2 {
            let answer = answers.recv_timeout(TIMEOUT).expect("an answer");
            assert!(answer.result.is_ok(), "{answer:?}");
        }
    }
    let folder = tempfile::tempdir().expect("temp");
    let address = Address::Unix(folder.path().join("s"));
    handle.listen(Listener::bind(&address).expect("free"), Destination::Frontend(probe));
    for _ in 0..2 {
        check_greeting(&folder.path().join("s"));
    }
    let timers = script.timers.load(Ordering::Relaxed);
    wait_until("timers are due", || script.timers.load(Ordering::Relaxed) >= timers + 3);
}

#[test]
fn a_store_and_a_branch_that_always_have_work_starve_nobody() {
    let script = Arc::new(Script {
        is_busy: AtomicBool::new(true),
        has_branch: true,
        size_bytes: AtomicU64::new(1 << 20),
        ..Script::default()
    });
    let host = start_with(2, &[]);
    scripted::open(&host, &script);
    check_served(&host, &script);
    let takes_turns = |core: &CoreSnapshot| core.turns.turns > 100;
    wait_until("each core takes turns", || host.handle().snapshot(true).iter().all(takes_turns));
    let cores = host.handle().snapshot(true);
    let (acts, turns) = (script.acts.load(Ordering::Relaxed), cores[0].turns.turns);
    assert!(acts > 2 * turns, "{acts} rounds of the store in {turns} turns");
    script.is_busy.store(false, Ordering::Relaxed);
    check_at_rest(&host);
    host.stop().expect("no core failed");
}

#[test]
fn a_front_end_that_always_has_work_starves_nobody() {
    let script = Arc::new(Script { size_bytes: AtomicU64::new(1 << 20), ..Script::default() });
    let host = start_with(2, &[&INSATIABLE]);
    scripted::open(&host, &script);
    IS_INSATIABLE.store(true, Ordering::Relaxed);
    check_served(&host, &script);
    IS_INSATIABLE.store(false, Ordering::Relaxed);
    check_at_rest(&host);
    host.stop().expect("no core failed");
}

/// A core without work waits: the store's timer, once in a millisecond, is its only event.
fn check_at_rest(host: &Host) {
    let turns = || host.handle().snapshot(false).iter().map(|core| core.turns.turns).sum::<u64>();
    wait_until("the cores are at rest", || {
        let before = turns();
        std::thread::sleep(std::time::Duration::from_millis(200));
        turns() - before < 2_000
    });
}

#[test]
fn the_longest_turn_is_measured() {
    const WORK_MS: u64 = 60;
    let script = Arc::new(Script { size_bytes: AtomicU64::new(1 << 20), ..Script::default() });
    let host = start_with(1, &[]);
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
