//! The scheduler merges sequential requests of a deep queue, and delays no others.

use fieldstone_block::layers::{
    Delay, DelayOptions, Policy, Scheduler, SchedulerOptions, SchedulerStats,
};
use fieldstone_block::{Backend, BlockError, Layer, Nanos, Op, Ram, Stack};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::manual::{Hand, Manual, bytes_of, layer, over, poll, request};

const LATENCY: u64 = 1000;

/// A scheduler over a manual backend that has seen ten reads and ten writes of `LATENCY` each, and
/// the present time. The requests were scattered, so the scheduler knows no stream.
fn warmed(policy: Policy) -> (Stack<Manual>, Hand, u64) {
    let (manual, hand) = Manual::new(1);
    let mut scheduler =
        over(manual, Scheduler::new(SchedulerOptions { policy, ..SchedulerOptions::default() }));
    let mut now = 1;
    for step in 0..10 {
        for op in [Op::Read, Op::Write] {
            scheduler.submit(request(step, op, (1 << 29) + step * 65536, 4096, 0), Nanos(now));
            now += LATENCY;
            hand.answer(0, 0);
            assert_eq!(poll(&mut scheduler, now).len(), 1);
        }
    }
    assert_eq!(stats(&scheduler).delayed, 0);
    (scheduler, hand, now)
}

fn stats<B: Backend>(stack: &Stack<B>) -> SchedulerStats {
    layer::<Scheduler, B>(stack).stats()
}

/// Submits `count` contiguous requests of 4 KiB at once, with ids from 0. Writes have bytes 1, 2,
/// 3...
fn stream(scheduler: &mut Stack<Manual>, op: Op, count: u64, now: u64) {
    for step in 0..count {
        scheduler.submit(request(step, op, step * 4096, 4096, (step % 250) as u8 + 1), Nanos(now));
    }
}

#[test]
fn contiguous_writes_become_one_and_each_gets_its_completion() {
    let (mut scheduler, hand, now) = warmed(Policy::HalfMean);
    stream(&mut scheduler, Op::Write, 20, now);
    // Four go out at once, because waiting pays only in a deep queue.
    assert_eq!(hand.pending().len(), 4);
    assert_eq!(scheduler.deadline(), Some(Nanos(now + LATENCY / 2)));
    assert_eq!(poll(&mut scheduler, now + LATENCY / 2 - 1).len(), 0);
    assert_eq!(hand.pending().len(), 4);
    poll(&mut scheduler, now + LATENCY / 2);
    assert_eq!(hand.pending()[4..], [(Op::Write, 4 * 4096, 16 * 4096)]);
    let merged = hand.data(4);
    for step in 0..16 {
        assert!(merged[step * 4096..(step + 1) * 4096].iter().all(|b| *b == step as u8 + 5));
    }
    hand.answer(4, 0);
    let done = poll(&mut scheduler, now + LATENCY);
    assert_eq!(done.iter().map(|(id, _)| *id).collect::<Vec<_>>(), (4..20).collect::<Vec<_>>());
    assert!(done.iter().all(|(_, result)| result.is_ok()));
    let stats = stats(&scheduler);
    assert_eq!((stats.merged, stats.delayed), (16, 16));
    assert_eq!(stats.delay_total, Nanos(16 * LATENCY / 2));
}

#[test]
fn a_merged_read_is_dealt_out_to_its_requests() {
    let (mut scheduler, hand, now) = warmed(Policy::HalfMean);
    stream(&mut scheduler, Op::Read, 10, now);
    poll(&mut scheduler, now + LATENCY);
    assert_eq!(hand.pending()[4..], [(Op::Read, 4 * 4096, 6 * 4096)]);
    hand.answer(4, 7);
    let done = poll(&mut scheduler, now + LATENCY);
    assert_eq!(done.len(), 6);
    for (_, result) in done {
        assert_eq!(bytes_of(&result.unwrap()), vec![7; 4096]);
    }
}

#[test]
fn as_shipped_waits_ten_times_as_long() {
    let (mut scheduler, _hand, now) = warmed(Policy::AsShipped);
    stream(&mut scheduler, Op::Write, 5, now);
    assert_eq!(scheduler.deadline(), Some(Nanos(now + 5 * LATENCY)));
}

#[test]
fn policy_off_passes_everything() {
    let (mut scheduler, hand, now) = warmed(Policy::Off);
    stream(&mut scheduler, Op::Write, 20, now);
    assert_eq!(hand.pending().len(), 20);
}

#[test]
fn a_completion_that_leaves_the_queue_shallow_ends_the_wait() {
    let (mut scheduler, hand, now) = warmed(Policy::HalfMean);
    stream(&mut scheduler, Op::Write, 8, now);
    hand.answer(0, 0);
    poll(&mut scheduler, now + 1);
    assert_eq!(hand.pending()[3..], [(Op::Write, 4 * 4096, 4 * 4096)]);
}

#[test]
fn a_full_batch_goes_out_at_once() {
    let (mut scheduler, hand, now) = warmed(Policy::HalfMean);
    stream(&mut scheduler, Op::Write, 4 + 256 + 3, now);
    assert_eq!(hand.pending()[4..], [(Op::Write, 4 * 4096, 1 << 20)]);
}

#[test]
fn large_fua_and_shallow_requests_do_not_wait() {
    let (mut scheduler, hand, now) = warmed(Policy::HalfMean);
    for step in 0..20u64 {
        let large = request(step, Op::Write, step * 131_072, 131_072, 1);
        scheduler.submit(large, Nanos(now));
        let mut fua = request(100 + step, Op::Write, (1 << 28) + step * 4096, 4096, 1);
        fua.flags.fua = true;
        scheduler.submit(fua, Nanos(now));
    }
    assert_eq!(hand.pending().len(), 40);
    assert_eq!(stats(&scheduler).delayed, 0);

    let (mut scheduler, hand, mut now) = warmed(Policy::HalfMean);
    for step in 0..40u64 {
        // Three in flight at any time.
        scheduler.submit(request(step, Op::Read, step * 4096, 4096, 0), Nanos(now));
        if step >= 2 {
            now += LATENCY;
            hand.answer(0, 0);
            poll(&mut scheduler, now);
        }
    }
    assert_eq!(stats(&scheduler).delayed, 0);
}

#[test]
fn random_requests_at_depth_32_are_never_delayed() {
    let ram = Ram::new(1 << 30);
    let slow = DelayOptions { read: Nanos(80_000), write: Nanos(120_000), flush: Nanos(0) };
    let layers: Vec<Box<dyn Layer>> =
        vec![Box::new(Scheduler::new(SchedulerOptions::default())), Box::new(Delay::new(slow))];
    let mut scheduler = Stack::new(ram, layers);
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let (mut now, mut in_flight, mut out) = (Nanos(1), 0, Vec::new());
    for id in 0..20_000 {
        let op = if random.random_bool(0.5) { Op::Read } else { Op::Write };
        let offset = random.random_range(0..1u64 << 18) * 4096;
        scheduler.submit(request(id, op, offset, 4096, 1), now);
        in_flight += 1;
        while in_flight == 32 {
            now = scheduler.deadline().unwrap();
            scheduler.poll(now, &mut out);
            in_flight -= out.drain(..).count();
        }
    }
    assert_eq!(stats(&scheduler).delayed, 0);
    assert_eq!(stats(&scheduler).dispatched, 20_000);
}

#[test]
fn a_flush_sends_waiting_writes_first_and_an_overlap_its_batch() {
    let (mut scheduler, hand, now) = warmed(Policy::HalfMean);
    stream(&mut scheduler, Op::Write, 6, now);
    scheduler.submit(request(50, Op::Flush, 0, 0, 0), Nanos(now));
    assert_eq!(hand.pending()[4..], [(Op::Write, 4 * 4096, 2 * 4096), (Op::Flush, 0, 0)]);

    let (mut scheduler, hand, now) = warmed(Policy::HalfMean);
    stream(&mut scheduler, Op::Write, 6, now);
    for (id, op) in [(50, Op::Read), (51, Op::Trim)] {
        scheduler.submit(request(id, op, 5 * 4096 + 100, 8192, 0), Nanos(now));
    }
    let tail: Vec<Op> = hand.pending()[4..].iter().map(|(op, ..)| *op).collect();
    assert_eq!(tail, [Op::Write, Op::Read, Op::Trim]);
}

#[test]
fn an_error_reaches_only_the_request_it_belongs_to() {
    let (mut scheduler, hand, now) = warmed(Policy::HalfMean);
    stream(&mut scheduler, Op::Write, 7, now);
    poll(&mut scheduler, now + LATENCY);
    hand.fail(4, BlockError::NoSpace);
    assert_eq!(poll(&mut scheduler, now + LATENCY).len(), 0);
    // The scheduler sends the three again, alone.
    assert_eq!(hand.pending().len(), 7);
    hand.answer(4, 0);
    hand.fail(4, BlockError::NoSpace);
    hand.answer(4, 0);
    let done = poll(&mut scheduler, now + LATENCY);
    let results: Vec<_> = done.iter().map(|(id, result)| (*id, result.is_ok())).collect();
    assert_eq!(results, [(4, true), (5, false), (6, true)]);
}
