//! The stack's stamps and counts show which layers handled a request.

use fieldstone_block::layers::{Cache, LayerOptions, Meter};
use fieldstone_block::{Backend, BlockError, Interval, Nanos, Op, Ram, Stack, Stage};

use crate::manual::{Manual, layer, poll, request};

#[test]
fn the_report_shows_where_the_time_went() {
    let mut options = LayerOptions::default();
    options.add("delay:read=1us,write=3us").unwrap();
    let mut stack = Stack::new(Ram::new(1 << 20), options.make().unwrap());
    let mut now = 50;
    for (id, op) in [(1, Op::Write), (2, Op::Read), (3, Op::Read)] {
        stack.submit(request(id, op, 0, 4096, 1), Nanos(now));
        poll(&mut stack, now);
        if let Some(due) = stack.deadline() {
            now = due.0;
            assert_eq!(poll(&mut stack, now).len(), 1);
        }
    }
    stack.submit(request(4, Op::Write, 1 << 20, 1, 1), Nanos(now));
    let refused = poll(&mut stack, now);
    assert!(matches!(refused[0].1, Err(BlockError::OutOfRange { .. })));
    let (meter, cache) = (layer::<Meter, Ram>(&stack), layer::<Cache, Ram>(&stack).stats());
    let counts = meter.counts();
    assert_eq!(counts.of(Op::Read).requests, 2);
    assert_eq!(counts.of(Op::Read).bytes, 8192);
    assert_eq!((counts.of(Op::Write).errors, stack.in_flight()), (1, 0));
    assert_eq!((cache.hits, cache.misses), (1, 1));
    let total = meter.stages().summary(Op::Read, Interval::Total).unwrap();
    assert!(total.count == 2 && (990..=1010).contains(&total.max.0), "{total:?}");
    let below = meter.stages().summary(Op::Read, Interval::Until(Stage::Submitted)).unwrap();
    assert!((990..=1010).contains(&below.max.0), "{below:?}");
}

#[test]
fn every_id_comes_back_whatever_it_is() {
    let (manual, hand) = Manual::new(4096);
    let mut stack = Stack::new(manual, LayerOptions::default().make().unwrap());
    let ids = [0, 7, u64::MAX, 1 << 63];
    for id in ids {
        stack.submit(request(id, Op::Write, id % 5 * 999, 100, 1), Nanos(1));
    }
    let mut seen = Vec::new();
    while !hand.pending().is_empty() {
        hand.answer(0, 0);
        seen.extend(poll(&mut stack, 2).into_iter().map(|(id, _)| id));
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 7, 1 << 63, u64::MAX]);
}

/// The stack names a request once. Each layer passes on under that name what it changes neither in
/// its range nor in its operation, so the store sees the index of the stack's own table.
#[test]
fn a_request_keeps_its_name_down_to_the_store() {
    for layers in ["", "write-cache:policy=through"] {
        let mut options = LayerOptions::default();
        if !layers.is_empty() {
            options.add(layers).unwrap();
        }
        let (manual, hand) = Manual::new(4096);
        let mut stack = Stack::new(manual, options.make().unwrap());
        let ops = [Op::Write, Op::Read, Op::Trim, Op::WriteZeroes, Op::Extents, Op::Flush];
        for (at, op) in (1..).zip(ops) {
            let len_bytes = if op == Op::Flush { 0 } else { 4096 };
            stack.submit(request(1000 + at, op, at * 65536, len_bytes, 1), Nanos(at));
        }
        assert_eq!(hand.pending().len(), ops.len(), "{layers}");
        assert_eq!(hand.names(), [0, 1, 2, 3, 4, 5], "{layers}");
        // A read that starts within a line is widened, which makes another request of it.
        stack.submit(request(1, Op::Read, 1 << 20 | 512, 512, 0), Nanos(7));
        assert_eq!(hand.pending()[6], (Op::Read, 1 << 20, 4096), "{layers}");
        assert!(hand.names()[6] > u64::from(u32::MAX), "{layers}");
    }
}
