//! Timers, waiting, and the cost of idle time.

use fieldstone_block::Nanos;
use fieldstone_uring::{Payload, Token, thread_usage};

use crate::common::{collect, reactor};

#[test]
fn timers_fire_in_order_of_deadline_and_never_early() {
    let mut reactor = reactor(4);
    let start = reactor.fresh_now();
    let deadlines = [7, 3, 9, 3, 1, 5].map(|ms| start.plus(Nanos::from_ms(ms)));
    for (i, deadline) in deadlines.into_iter().enumerate() {
        reactor.timer(deadline, Token(i as u64));
    }
    reactor.timer(start.plus(Nanos::from_ms(2)), Token(2)); // moved forward
    assert!(reactor.cancel_timer(Token(5)) && !reactor.cancel_timer(Token(5)));
    let (mut fired, mut events) = (Vec::new(), Vec::new());
    while fired.len() < 5 {
        reactor.turn(&mut events).expect("the ring works");
        for event in events.drain(..) {
            assert!(matches!(event.payload, Payload::Timer));
            let i = event.token.0 as usize;
            assert!(i == 2 || reactor.now() >= deadlines[i]);
            fired.push(event.token.0);
        }
    }
    assert_eq!(fired, [4, 2, 1, 3, 0]);
    assert_eq!(reactor.turn_nowait(&mut events).expect("the ring works"), 0);
}

#[test]
fn a_timer_is_precise_to_well_below_a_millisecond() {
    let mut reactor = reactor(4);
    let mut late: Vec<u64> = (0..50)
        .map(|_| {
            let deadline = reactor.fresh_now().plus(Nanos(200_000));
            reactor.timer(deadline, Token(0));
            collect(&mut reactor, 1);
            reactor.now().since(deadline).0
        })
        .collect();
    late.sort_unstable();
    // The best of many measurements, because the machine may be busy.
    assert!(late[0] < 500_000, "{late:?}");
}

#[test]
fn an_idle_turn_is_one_system_call_and_no_cpu_time() {
    let mut reactor = reactor(4);
    let (_sender, _mailbox) = reactor.mailbox::<u8>(1, Token(1)).expect("descriptors");
    let mut events = Vec::new();
    reactor.turn_nowait(&mut events).expect("the ring works");
    let (before, used) = (reactor.counters(), thread_usage());
    let deadline = reactor.fresh_now().plus(Nanos::from_ms(300));
    assert_eq!(reactor.turn_until(&mut events, deadline).expect("the ring works"), 0);
    assert!(reactor.now() >= deadline);
    let (after, usage) = (reactor.counters(), thread_usage());
    assert!(after.enters - before.enters <= 2, "{after:?}");
    assert!(usage.voluntary_switches - used.voluntary_switches <= 3, "{usage:?}");
    let cpu = usage.user.0 + usage.system.0 - used.user.0 - used.system.0;
    assert!(cpu < 30_000_000, "{cpu} ns of CPU in an idle wait of 300 ms");
    // With no work and nothing to wait for, a turn makes not even that one call.
    for _ in 0..1000 {
        reactor.turn_nowait(&mut events).expect("the ring works");
    }
    assert_eq!(reactor.counters().enters, after.enters);
}
