//! Delays are exact, rates hold, and errors come as the options say and are repeatable.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use fieldstone_block::layers::{
    Delay, DelayOptions, ErrorInject, ErrorOptions, Limit, LimitOptions,
};
use fieldstone_block::{Backend, Layer, Nanos, Op, QueueId, Ram, Settings};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::manual::{Manual, layer, over, poll, request};

#[test]
fn a_delay_is_exact_and_by_kind() {
    let options = DelayOptions { read: Nanos(100), write: Nanos(300), flush: Nanos(0) };
    let mut delay = over(Ram::new(1 << 20), Delay::new(options));
    delay.submit(request(1, Op::Write, 0, 8, 1), Nanos(10));
    delay.submit(request(2, Op::Read, 0, 8, 0), Nanos(20));
    delay.submit(request(3, Op::Flush, 0, 0, 0), Nanos(30));
    let ids = |list: Vec<(u64, _)>| list.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(poll(&mut delay, 30)), [3]);
    assert_eq!(delay.deadline(), Some(Nanos(120)));
    assert!(ids(poll(&mut delay, 119)).is_empty());
    assert_eq!(ids(poll(&mut delay, 120)), [2]);
    assert!(ids(poll(&mut delay, 309)).is_empty());
    assert_eq!(ids(poll(&mut delay, 310)), [1]);
    assert_eq!(delay.deadline(), None);
}

/// Runs `count` requests of `len` bytes that all arrive at once. Returns when the last one
/// completed.
fn run(options: LimitOptions, count: u64, len: u32) -> u64 {
    let mut limit = over(Ram::new(1 << 30), Limit::new(options));
    let mut now = 1_000_000_000_000;
    for id in 0..count {
        limit.submit(request(id, Op::Read, 0, len, 0), Nanos(now));
    }
    let start = now;
    let mut done = poll(&mut limit, now).len() as u64;
    while done < count {
        now = limit.deadline().unwrap().0;
        done += poll(&mut limit, now).len() as u64;
    }
    now - start
}

#[test]
fn rates_hold_and_bursts_are_allowed() {
    let bytes =
        LimitOptions { bytes_per_second: NonZeroU64::new(1_000_000), ..LimitOptions::default() };
    // The first request passes at once. Each of the others waits for the cost of the one before.
    assert_eq!(run(bytes, 11, 100_000), 1_000_000_000);
    let burst = LimitOptions { burst: Nanos::from_ms(500), ..bytes };
    assert_eq!(run(burst, 11, 100_000), 500_000_000);
    let requests =
        LimitOptions { requests_per_second: NonZeroU64::new(1000), ..LimitOptions::default() };
    assert_eq!(run(requests, 101, 4096), 100_000_000);
    // A request that costs more than a whole burst passes and leaves a debt.
    assert_eq!(run(burst, 2, 10_000_000), 9_500_000_000);
    assert_eq!(run(LimitOptions::default(), 100, 4096), 0);
}

/// The service of each queue: bytes that passed, and the longest wait of a request.
fn share(seed: u64, options: &str, lens: &[u32], depths: &[usize]) -> BTreeMap<u32, (u64, u64)> {
    let (manual, hand) = Manual::new(1);
    let mut limit = over(manual, Limit::new(LimitOptions::default()));
    let mut settings = Settings::parse(options).unwrap();
    limit.layer_mut("limit").unwrap().change(&mut settings).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut in_flight: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
    let mut counts = vec![0; depths.len()];
    let mut got: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let (mut now, mut id) = (1_000_000, 0);
    let end = now + 2_000_000_000;
    while now < end {
        for (queue, depth) in depths.iter().enumerate() {
            while counts[queue] < *depth {
                let offset = random.random_range(0..1u64 << 29);
                let mut asked = request(id, Op::Read, offset, lens[queue], 0);
                asked.queue = QueueId(queue as u32);
                limit.submit(asked, Nanos(now));
                in_flight.insert(id, (queue as u32, now));
                counts[queue] += 1;
                id += 1;
            }
        }
        while !hand.pending().is_empty() {
            hand.answer(0, 0);
        }
        for (id, _) in poll(&mut limit, now) {
            let (queue, since) = in_flight.remove(&id).unwrap();
            counts[queue as usize] -= 1;
            let share = got.entry(queue).or_default();
            share.0 += u64::from(lens[queue as usize]);
            share.1 = share.1.max(now - since);
        }
        // The device answers at random times.
        let next = limit.deadline().map_or(u64::MAX, |at| at.0);
        now = next.min(now + random.random_range(1..200_000)).max(now + 1);
    }
    got
}

#[test]
fn queues_share_a_rate_fairly_and_none_starves() {
    for seed in 0..20 {
        // With deep and shallow queues, and short and long requests, all get the same number of
        // bytes.
        let got = share(seed, "limit:bytes=20M", &[4096, 4096, 65536], &[64, 1, 8]);
        let total: u64 = got.values().map(|(bytes, _)| bytes).sum();
        let expected = 2 * (20 << 20);
        assert!(total.abs_diff(expected) < expected / 50, "seed {seed}: {total} of {expected}");
        for (queue, (bytes, _)) in &got {
            let third = expected / 3;
            assert!(bytes.abs_diff(third) < third / 4, "seed {seed}: queue {queue} got {got:?}");
        }
        // A request of a shallow queue waits for one request of each other queue, not for all of
        // them.
        let got = share(seed, "limit:iops=1000", &[4096, 4096], &[256, 1]);
        assert!(got[&1].1 <= 3_000_000, "seed {seed}: {got:?}");
        assert!(got[&1].0 * 3 > got[&0].0, "seed {seed}: {got:?}");
    }
}

#[test]
fn a_limit_changes_while_requests_wait() {
    let options =
        LimitOptions { requests_per_second: NonZeroU64::new(1), ..LimitOptions::default() };
    let mut limit = over(Ram::new(1 << 20), Limit::new(options));
    for id in 0..100 {
        limit.submit(request(id, Op::Read, 0, 512, 0), Nanos(1_000_000_000));
    }
    assert_eq!(poll(&mut limit, 1_000_000_000).len(), 1);
    let change = |limit: &mut fieldstone_block::Stack<Ram>, text: &str| {
        let mut settings = Settings::parse(text).unwrap();
        limit.layer_mut("limit").unwrap().change(&mut settings)
    };
    assert!(change(&mut limit, "limit:iops=fast").is_err());
    assert_eq!(layer::<Limit, Ram>(&limit).limits(), options);
    change(&mut limit, "limit:iops=10").unwrap();
    assert_eq!(poll(&mut limit, 1_100_000_000).len(), 1);
    change(&mut limit, "limit:iops=0").unwrap();
    assert_eq!(poll(&mut limit, 1_100_000_001).len(), 98);
}

#[test]
fn a_limit_says_what_it_holds_and_holds_nothing_at_the_end() {
    let options =
        LimitOptions { requests_per_second: NonZeroU64::new(1), ..LimitOptions::default() };
    let mut limit = over(Ram::new(1 << 20), Limit::new(options));
    for id in 0..10 {
        limit.submit(request(id, Op::Read, 0, 512, 0), Nanos(1_000_000_000));
    }
    assert_eq!(poll(&mut limit, 1_000_000_000).len(), 1);
    let waits_for = layer::<Limit, Ram>(&limit).waits_for();
    assert_eq!(waits_for.as_deref(), Some("the device's limit (9 requests)"));
    limit.drain();
    assert_eq!(poll(&mut limit, 1_000_000_001).len(), 9);
    assert_eq!(layer::<Limit, Ram>(&limit).waits_for(), None);
    limit.submit(request(10, Op::Read, 0, 512, 0), Nanos(1_000_000_002));
    assert_eq!(poll(&mut limit, 1_000_000_002).len(), 1);
}

#[test]
fn a_limit_that_would_stop_a_device_for_hours_is_refused() {
    let mut options = LimitOptions::default();
    let mut set = |text: &str| options.set(&mut Settings::parse(text).unwrap());
    for low in ["limit:bytes=1", "limit:bytes=65535"] {
        assert!(set(low).unwrap_err().to_string().contains("the least is 64K"), "{low}");
    }
    for good in ["limit:bytes=64K", "limit:bytes=0", "limit:iops=1"] {
        assert!(set(good).is_ok(), "{good}");
    }
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
        let mut inject = over(Ram::new(1 << 20), ErrorInject::new(options));
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
        assert_eq!(layer::<ErrorInject, Ram>(&inject).injected(), failed as u64 + 1);
        results
    };
    assert_eq!(outcome(1), outcome(1));
    assert_ne!(outcome(1), outcome(2));
}
