//! Aligned requests pass unchanged. Edges are read, laid over and written back in order.

use std::time::{Duration, Instant};

use fieldstone_block::layers::{Align, AlignStats};
use fieldstone_block::{Backend, BlockError, Nanos, Op, Stack};

use crate::manual::{Manual, bytes_of, layer, over, poll, request};

fn stats(stack: &Stack<Manual>) -> AlignStats {
    layer::<Align, Manual>(stack).stats()
}

#[test]
fn aligned_requests_pass_as_they_are() {
    let (manual, hand) = Manual::new(4096);
    let mut align = over(manual, Align::new());
    let write = request(1, Op::Write, 4096, 8192, 9);
    let pointer = write.data.as_ptr();
    align.submit(write, Nanos(1));
    align.submit(request(2, Op::Write, 4096, 4096, 8), Nanos(1));
    assert_eq!(hand.pending(), [(Op::Write, 4096, 8192), (Op::Write, 4096, 4096)]);
    assert_eq!(hand.data(0).as_ptr(), pointer);
    assert_eq!(stats(&align).read_modify_writes, 0);
}

#[test]
fn an_unaligned_write_reads_both_edges_and_writes_once() {
    let (manual, hand) = Manual::new(512);
    let mut align = over(manual, Align::new());
    align.submit(request(1, Op::Write, 500, 1100, 9), Nanos(1));
    assert_eq!(hand.pending(), [(Op::Read, 0, 512), (Op::Read, 1536, 512)]);
    // The edge reads may complete in any order.
    hand.answer(1, 2);
    hand.answer(0, 1);
    assert_eq!(poll(&mut align, 1), []);
    assert_eq!(hand.pending(), [(Op::Write, 0, 2048)]);
    let data = hand.data(0);
    assert_eq!(&data[..500], &[1; 500]);
    assert_eq!(&data[500..1600], &[9; 1100]);
    assert_eq!(&data[1600..], &[2; 448]);
    hand.answer(0, 0);
    assert_eq!(poll(&mut align, 1).len(), 1);
}

#[test]
fn writes_to_the_same_block_wait_for_each_other_and_others_do_not() {
    let (manual, hand) = Manual::new(4096);
    let mut align = over(manual, Align::new());
    align.submit(request(1, Op::Write, 0, 4096, 1), Nanos(1));
    align.submit(request(2, Op::Write, 10, 5, 2), Nanos(1));
    align.submit(request(3, Op::Write, 20, 5, 3), Nanos(1));
    align.submit(request(4, Op::Write, 0, 4096, 4), Nanos(1));
    align.submit(request(5, Op::Write, 8192, 4096, 5), Nanos(1));
    align.submit(request(6, Op::Read, 10, 5, 0), Nanos(1));
    let expected = [(Op::Write, 0, 4096), (Op::Write, 8192, 4096), (Op::Read, 0, 4096)];
    assert_eq!(hand.pending(), expected);
    assert_eq!(stats(&align).waited, 3);
    let mut order = Vec::new();
    while !hand.pending().is_empty() {
        hand.answer(0, 7);
        for (id, result) in poll(&mut align, 1) {
            if id == 6 {
                assert_eq!(bytes_of(&result.unwrap()), [7; 5]);
            }
            order.push(id);
        }
    }
    assert_eq!(order, [1, 5, 6, 2, 3, 4]);
}

#[test]
fn a_deep_queue_of_writes_to_one_block_costs_little_for_each_write() {
    const WRITES: u64 = 8192;
    let (manual, hand) = Manual::new(4096);
    let mut align = over(manual, Align::new());
    let began = Instant::now();
    for id in 0..WRITES {
        align.submit(request(id, Op::Write, id % 8 * 512, 512, 1), Nanos(1));
    }
    let mut order = Vec::new();
    while !hand.pending().is_empty() {
        assert_eq!(hand.pending().len(), 1);
        hand.answer(0, 7);
        order.extend(poll(&mut align, 1).into_iter().map(|(id, _)| id));
        // Far more than a cost that does not grow with the queue, and far less than one that grows
        // with its square: that takes minutes.
        assert!(began.elapsed() < Duration::from_secs(20), "{} are done", order.len());
    }
    assert!(order.iter().copied().eq(0..WRITES));
    assert_eq!(stats(&align).waited, WRITES - 1);
}

#[test]
fn an_unaligned_write_waits_for_all_changes_after_a_long_time_without_one() {
    let (manual, hand) = Manual::new(4096);
    let mut align = over(manual, Align::new());
    for round in 0..3 {
        // Of two changes that stay in flight, one comes first and the other last.
        let slow = [(Op::Write, 9 * 4096, 4096), (Op::Write, 5 * 4096, 4096)];
        align.submit(request(1, Op::Write, 9 * 4096, 4096, 1), Nanos(1));
        for id in 10..2010 {
            align.submit(request(id, Op::Write, id * 4096, 4096, 1), Nanos(1));
            hand.answer(1, 0);
            assert_eq!(poll(&mut align, 1).len(), 1);
        }
        align.submit(request(2, Op::Write, 5 * 4096, 4096, 1), Nanos(1));
        align.submit(request(3, Op::Write, 5 * 4096 + 10, 5, 2), Nanos(1));
        align.submit(request(4, Op::Write, 9 * 4096 + 10, 5, 2), Nanos(1));
        assert_eq!(hand.pending(), slow, "round {round}");
        for block in [9, 5] {
            hand.answer(0, 0);
            poll(&mut align, 1);
            assert_eq!(hand.pending().last(), Some(&(Op::Read, block * 4096, 4096)));
        }
        let mut ended = 0;
        while !hand.pending().is_empty() {
            hand.answer(0, 0);
            ended += poll(&mut align, 1).len();
        }
        assert_eq!(ended, 2);
    }
}

#[test]
fn write_zeroes_zeroes_edges_and_trim_leaves_them() {
    let (manual, hand) = Manual::new(512);
    let mut align = over(manual, Align::new());
    align.submit(request(1, Op::WriteZeroes, 100, 1000, 0), Nanos(1));
    assert_eq!(hand.pending(), [(Op::WriteZeroes, 512, 512)]);
    hand.answer(0, 0);
    poll(&mut align, 1);
    assert_eq!(hand.pending(), [(Op::Read, 0, 512), (Op::Read, 1024, 512)]);
    hand.answer(0, 1);
    hand.answer(0, 1);
    poll(&mut align, 1);
    assert_eq!(hand.pending(), [(Op::Write, 0, 512), (Op::Write, 1024, 512)]);
    assert_eq!(hand.data(0)[..], [[1; 100].as_slice(), &[0; 412]].concat());
    assert_eq!(hand.data(1)[..], [[0; 76].as_slice(), &[1; 436]].concat());
    hand.answer(0, 0);
    hand.answer(0, 0);
    assert_eq!(poll(&mut align, 1).len(), 1);

    align.submit(request(2, Op::Trim, 100, 1000, 0), Nanos(1));
    assert_eq!(hand.pending(), [(Op::Trim, 512, 512)]);
    align.submit(request(3, Op::Trim, 100, 500, 0), Nanos(1));
    assert_eq!(poll(&mut align, 1).len(), 1);
}

#[test]
fn a_fast_zero_that_is_refused_has_changed_nothing() {
    let (manual, hand) = Manual::new(512);
    let mut align = over(manual, Align::new());
    let mut zeroes = request(1, Op::WriteZeroes, 100, 1000, 0);
    zeroes.flags.fast_zero = true;
    align.submit(zeroes, Nanos(1));
    hand.fail(0, BlockError::NotSupported("fast zeroes"));
    assert_eq!(poll(&mut align, 1), [(1, Err(BlockError::NotSupported("fast zeroes")))]);
    assert_eq!(hand.pending(), []);
}

#[test]
fn a_failed_edge_read_fails_the_write_and_frees_the_block() {
    let (manual, hand) = Manual::new(512);
    let mut align = over(manual, Align::new());
    align.submit(request(1, Op::Write, 10, 5, 1), Nanos(1));
    align.submit(request(2, Op::Write, 20, 5, 1), Nanos(1));
    hand.fail(0, BlockError::Io("bad block".into()));
    assert_eq!(poll(&mut align, 1), [(1, Err(BlockError::Io("bad block".into())))]);
    assert_eq!(hand.pending(), [(Op::Read, 0, 512)]);
}

#[test]
fn requests_outside_the_device_are_refused() {
    let (manual, _hand) = Manual::new(4096);
    let mut align = over(manual, Align::new());
    for (id, offset, len) in [(1, (1 << 30) - 1, 2), (2, u64::MAX, 1), (3, u64::MAX - 1, u32::MAX)]
    {
        align.submit(request(id, Op::Read, offset, len, 0), Nanos(1));
        assert!(matches!(poll(&mut align, 1)[0].1, Err(BlockError::OutOfRange { .. })));
    }
    align.submit(request(4, Op::WriteZeroes, 1, (1 << 30) - 2, 0), Nanos(1));
    align.submit(request(5, Op::Read, 1 << 30, 0, 0), Nanos(1));
    assert!(poll(&mut align, 1)[0].1.is_ok());
}
