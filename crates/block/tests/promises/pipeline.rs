//! The stack's stamps and counts tell where a request was.

use fieldstone_block::{
    Backend, BlockError, Delay, DelayOptions, Interval, Nanos, Op, Pipeline, PipelineOptions, Ram,
    Stage,
};

use crate::manual::{Manual, poll, request};

#[test]
fn the_report_shows_where_the_time_went() {
    let slow = DelayOptions { read: Nanos(1000), write: Nanos(3000), flush: Nanos(0) };
    let mut pipeline =
        Pipeline::new(Delay::new(Ram::new(1 << 20), slow), PipelineOptions::default());
    let mut now = 50;
    for (id, op) in [(1, Op::Write), (2, Op::Read), (3, Op::Read)] {
        pipeline.submit(request(id, op, 0, 4096, 1), Nanos(now));
        poll(&mut pipeline, now);
        if let Some(due) = pipeline.deadline() {
            now = due.0;
            assert_eq!(poll(&mut pipeline, now).len(), 1);
        }
    }
    pipeline.submit(request(4, Op::Write, 1 << 20, 1, 1), Nanos(now));
    let refused = poll(&mut pipeline, now);
    assert!(matches!(refused[0].1, Err(BlockError::OutOfRange { .. })));
    let report = pipeline.report();
    assert_eq!(report.counts.of(Op::Read).requests, 2);
    assert_eq!(report.counts.of(Op::Read).bytes, 8192);
    assert_eq!((report.counts.of(Op::Write).errors, report.in_flight), (1, 0));
    assert_eq!((report.cache.hits, report.cache.misses), (1, 1));
    let total = report.stages.summary(Op::Read, Interval::Total).unwrap();
    assert!(total.count == 2 && (990..=1010).contains(&total.max.0), "{total:?}");
    let below = report.stages.summary(Op::Read, Interval::Until(Stage::Submitted)).unwrap();
    assert!((990..=1010).contains(&below.max.0), "{below:?}");
}

#[test]
fn every_id_comes_back_whatever_it_is() {
    let (manual, hand) = Manual::new(4096);
    let mut pipeline = Pipeline::new(manual, PipelineOptions::default());
    let ids = [0, 7, u64::MAX, 1 << 63];
    for id in ids {
        pipeline.submit(request(id, Op::Write, id % 5 * 999, 100, 1), Nanos(1));
    }
    let mut seen = Vec::new();
    while !hand.pending().is_empty() {
        hand.answer(0, 0);
        seen.extend(poll(&mut pipeline, 2).into_iter().map(|(id, _)| id));
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 7, 1 << 63, u64::MAX]);
}
