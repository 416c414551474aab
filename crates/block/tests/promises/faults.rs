//! Delays are exact, rates hold, errors come as asked and can be repeated.

use std::num::NonZeroU64;

use fieldstone_block::{
    Backend, Delay, DelayOptions, ErrorInject, ErrorOptions, Nanos, Op, Ram, Throttle,
    ThrottleOptions,
};

use crate::manual::{poll, request};

#[test]
fn a_delay_is_exact_and_by_kind() {
    let options = DelayOptions { read: Nanos(100), write: Nanos(300), flush: Nanos(0) };
    let mut delay = Delay::new(Ram::new(1 << 20), options);
    delay.submit(request(1, Op::Write, 0, 8, 1), Nanos(10));
    delay.submit(request(2, Op::Read, 0, 8, 0), Nanos(20));
    delay.submit(request(3, Op::Flush, 0, 0, 0), Nanos(30));
    let ids = |list: Vec<(u64, _)>| list.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(poll(&mut delay, 30)), [3]);
    assert_eq!(delay.deadline(), Some(Nanos(120)));
    assert_eq!(ids(poll(&mut delay, 119)), []);
    assert_eq!(ids(poll(&mut delay, 120)), [2]);
    assert_eq!(ids(poll(&mut delay, 309)), []);
    assert_eq!(ids(poll(&mut delay, 310)), [1]);
    assert_eq!(delay.deadline(), None);
}

/// Runs `count` requests of `len` bytes that all come at once; returns when the last completed.
fn run(options: ThrottleOptions, count: u64, len: u32) -> u64 {
    let mut throttle = Throttle::new(Ram::new(1 << 30), options);
    let mut now = 1_000_000_000_000;
    for id in 0..count {
        throttle.submit(request(id, Op::Read, 0, len, 0), Nanos(now));
    }
    let start = now;
    let mut done = poll(&mut throttle, now).len() as u64;
    while done < count {
        now = throttle.deadline().unwrap().0;
        done += poll(&mut throttle, now).len() as u64;
    }
    now - start
}

#[test]
fn rates_hold_and_bursts_are_allowed() {
    let bytes = ThrottleOptions {
        bytes_per_second: NonZeroU64::new(1_000_000),
        ..ThrottleOptions::default()
    };
    // The first passes at once; each of the others pays for the one before it.
    assert_eq!(run(bytes, 11, 100_000), 1_000_000_000);
    let burst = ThrottleOptions { burst: Nanos::from_ms(500), ..bytes };
    assert_eq!(run(burst, 11, 100_000), 500_000_000);
    let requests = ThrottleOptions {
        requests_per_second: NonZeroU64::new(1000),
        ..ThrottleOptions::default()
    };
    assert_eq!(run(requests, 101, 4096), 100_000_000);
    // Dearer than a whole burst: passes, and leaves a debt.
    assert_eq!(run(burst, 2, 10_000_000), 9_500_000_000);
    assert_eq!(run(ThrottleOptions::default(), 100, 4096), 0);
}

#[test]
fn errors_come_as_often_as_asked_and_the_same_way_again() {
    let outcome = |seed| {
        let options = ErrorOptions {
            seed,
            reads_one_in: 10,
            bad_ranges: Vec::from([4096..8192, 12288..16384]),
            ..Default::default()
        };
        let mut inject = ErrorInject::new(Ram::new(1 << 20), options);
        let mut results = Vec::new();
        for id in 0..2000 {
            inject.submit(request(id, Op::Read, 0, 512, 0), Nanos(1));
            results.push(poll(&mut inject, 1)[0].1.is_ok());
        }
        inject.submit(request(0, Op::Write, 4000, 96, 1), Nanos(1));
        assert!(poll(&mut inject, 1)[0].1.is_ok());
        inject.submit(request(0, Op::Write, 4000, 97, 1), Nanos(1));
        assert!(poll(&mut inject, 1)[0].1.is_err());
        let failed = results.iter().filter(|ok| !**ok).count();
        assert!((120..280).contains(&failed), "{failed}");
        assert_eq!(inject.injected(), failed as u64 + 1);
        results
    };
    assert_eq!(outcome(1), outcome(1));
    assert_ne!(outcome(1), outcome(2));
}
