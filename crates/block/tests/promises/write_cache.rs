//! The write cache: what leaves when, what waits, what a flush means, and what happens to bytes
//! that the store refuses.

use fieldstone_block::layers::{WriteCache, WriteCacheOptions, WritePolicy};
use fieldstone_block::{
    Backend, BlockError, Extent, ExtentKind, Nanos, Op, Payload, Request, RequestFlags, Stack,
};

use crate::manual::{Hand, Manual, bytes_of, layer, over, poll, request};

const OPTIONS: WriteCacheOptions = WriteCacheOptions {
    policy: WritePolicy::Back,
    max_dirty_bytes: 4 * 4096,
    target_dirty_bytes: 4 * 4096,
    max_age: Nanos(1000),
    max_merge_bytes: 1 << 20,
    until_flush: false,
};

fn cache(options: WriteCacheOptions) -> (Stack<Manual>, Hand) {
    let (manual, hand) = Manual::new(512);
    (over(manual, WriteCache::new(options)), hand)
}

/// The ids of completions that are there at this time, each with whether it succeeded.
fn done(stack: &mut Stack<Manual>, now: u64) -> Vec<(u64, bool)> {
    poll(stack, now).into_iter().map(|(id, result)| (id, result.is_ok())).collect()
}

fn write(stack: &mut Stack<Manual>, id: u64, block: u64, fill: u8, now: u64) {
    stack.submit(request(id, Op::Write, block * 4096, 4096, fill), Nanos(now));
}

fn flush(stack: &mut Stack<Manual>, id: u64, now: u64) {
    stack.submit(request(id, Op::Flush, 0, 0, 0), Nanos(now));
}

fn forced(mut request: Request) -> Request {
    request.flags = RequestFlags { fua: true, ..RequestFlags::default() };
    request
}

fn error() -> BlockError {
    BlockError::Io("no".to_owned())
}

#[test]
fn neighbours_leave_as_one_request_when_they_are_old() {
    let (mut stack, hand) = cache(OPTIONS);
    for (id, block) in [(1, 5), (2, 7), (3, 6)] {
        write(&mut stack, id, block, id as u8, 10 * id);
    }
    assert_eq!(done(&mut stack, 40), [(1, true), (2, true), (3, true)]);
    assert_eq!((hand.pending(), stack.deadline()), (vec![], Some(Nanos(1010))));
    assert_eq!(done(&mut stack, 1009), []);
    assert_eq!(hand.pending(), []);
    done(&mut stack, 1010);
    assert_eq!(hand.pending(), [(Op::Write, 5 * 4096, 3 * 4096)]);
    assert_eq!([0, 4096, 8192].map(|at| hand.data(0)[at]), [1, 3, 2]);
    hand.answer(0, 0);
    done(&mut stack, 1011);
    assert_eq!((stack.unwritten(), stack.deadline()), (None, None));
}

#[test]
fn the_oldest_bytes_leave_above_the_target_and_writes_wait_above_the_bound() {
    let target_dirty_bytes = 2 * 4096;
    let (mut stack, hand) = cache(WriteCacheOptions { target_dirty_bytes, ..OPTIONS });
    for id in 0..6 {
        write(&mut stack, id, 2 * id, 1, 10);
    }
    assert_eq!(done(&mut stack, 10).len(), 4);
    assert_eq!(hand.pending(), [(Op::Write, 0, 4096), (Op::Write, 2 * 4096, 4096)]);
    assert_eq!(stack.in_flight(), 2);
    hand.answer(1, 0);
    // There is room for one write, and then the oldest again leaves.
    assert_eq!(done(&mut stack, 11), [(4, true)]);
    assert_eq!(hand.pending(), [(Op::Write, 0, 4096), (Op::Write, 4 * 4096, 4096)]);
    let stats = layer::<WriteCache, Manual>(&stack).stats();
    assert_eq!((stats.dirty_bytes, stats.out_bytes, stats.waited), (8192, 8192, 2));
}

#[test]
fn overwritten_bytes_never_leave() {
    let (mut stack, hand) = cache(OPTIONS);
    for id in 1..=9 {
        write(&mut stack, id, 3, id as u8, id);
    }
    // The age counts from the first write, or a busy block would never leave.
    done(&mut stack, 1001);
    assert_eq!(hand.pending(), [(Op::Write, 3 * 4096, 4096)]);
    assert_eq!(hand.data(0)[0], 9);
    // What is overwritten on its way leaves again, afterwards.
    write(&mut stack, 10, 3, 10, 1002);
    flush(&mut stack, 11, 1002);
    assert_eq!(done(&mut stack, 1003), [(10, true)]);
    assert_eq!(hand.pending().len(), 1);
    hand.answer(0, 0);
    done(&mut stack, 1004);
    assert_eq!((hand.pending().len(), hand.data(0)[0]), (1, 10));
    assert_eq!(layer::<WriteCache, Manual>(&stack).stats().overwritten_bytes, 8 * 4096);
}

#[test]
fn a_flush_waits_for_what_was_written_before_it() {
    let (mut stack, hand) = cache(OPTIONS);
    write(&mut stack, 1, 0, 1, 10);
    flush(&mut stack, 2, 10);
    write(&mut stack, 3, 9, 3, 10);
    assert_eq!(done(&mut stack, 10), [(1, true), (3, true)]);
    assert_eq!(hand.pending(), [(Op::Write, 0, 4096)]);
    hand.answer(0, 0);
    assert_eq!(done(&mut stack, 11), []);
    assert_eq!(hand.pending(), [(Op::Flush, 0, 0)]);
    hand.answer(0, 0);
    assert_eq!(done(&mut stack, 12), [(2, true)]);
}

#[test]
fn a_flush_fails_with_the_bytes_that_the_store_refuses_and_they_stay() {
    let (mut stack, hand) = cache(OPTIONS);
    write(&mut stack, 1, 0, 7, 10);
    flush(&mut stack, 2, 10);
    done(&mut stack, 10);
    hand.fail(0, error());
    assert_eq!(done(&mut stack, 11), [(2, false)]);
    assert_eq!(stack.take_reports().len(), 1);
    // Reads still find the bytes; writes go through, so that the client sees the error.
    stack.submit(request(3, Op::Read, 0, 4096, 0), Nanos(12));
    let read = poll(&mut stack, 12);
    assert_eq!(bytes_of(read[0].1.as_ref().unwrap()), [7; 4096]);
    write(&mut stack, 4, 20, 1, 13);
    assert_eq!(done(&mut stack, 13), []);
    assert_eq!(hand.pending(), [(Op::Write, 20 * 4096, 4096)]);
    hand.fail(0, error());
    assert_eq!(done(&mut stack, 14), [(4, false)]);
    // The next flush tries at once, and succeeds when the store has the bytes.
    flush(&mut stack, 5, 15);
    assert_eq!(done(&mut stack, 15), []);
    assert_eq!(hand.pending(), [(Op::Write, 0, 4096)]);
    hand.answer(0, 0);
    done(&mut stack, 16);
    hand.answer(0, 0);
    assert_eq!(done(&mut stack, 17), [(5, true)]);
    write(&mut stack, 6, 20, 1, 18);
    assert_eq!(done(&mut stack, 18), [(6, true)]);
}

#[test]
fn refused_bytes_are_tried_again_after_a_pause_and_at_the_end() {
    let (mut stack, hand) = cache(WriteCacheOptions { policy: WritePolicy::Around, ..OPTIONS });
    write(&mut stack, 1, 0, 7, 10);
    done(&mut stack, 10);
    hand.fail(0, error());
    done(&mut stack, 11);
    assert_eq!((hand.pending().len(), stack.deadline()), (0, Some(Nanos(1_000_000_011))));
    let unwritten = stack.unwritten().unwrap();
    assert_eq!((unwritten.bytes, unwritten.failure), (4096, Some(error())));
    stack.drain();
    done(&mut stack, 12);
    assert_eq!(hand.pending(), [(Op::Write, 0, 4096)]);
    assert_eq!(stack.unwritten().unwrap().failure, None);
    hand.answer(0, 0);
    done(&mut stack, 13);
    assert_eq!(stack.unwritten(), None);
}

#[test]
fn writes_go_through_while_refused_bytes_are_tried_again() {
    let (mut stack, hand) = cache(OPTIONS);
    for (id, block) in [(1, 0), (2, 100)] {
        write(&mut stack, id, block, 7, 10);
    }
    flush(&mut stack, 3, 10);
    done(&mut stack, 10);
    for _ in 0..2 {
        hand.fail(0, error());
    }
    assert_eq!(done(&mut stack, 11), [(3, false)]);
    // The second try of both is on its way. The store has not taken them yet.
    let again = 1_000_000_020;
    assert_eq!(done(&mut stack, again), []);
    let (first, second) = ((Op::Write, 0, 4096), (Op::Write, 100 * 4096, 4096));
    assert_eq!(hand.pending(), [first, second]);
    write(&mut stack, 4, 20, 1, again);
    assert_eq!(hand.pending().len(), 3);
    hand.fail(2, error());
    assert_eq!(done(&mut stack, again + 1), [(4, false)]);
    write(&mut stack, 5, 21, 1, again + 2);
    assert_eq!(done(&mut stack, again + 2), []);
    assert_eq!(hand.pending(), [first, second, (Op::Write, 21 * 4096, 4096)]);
    assert_eq!(stack.take_reports().len(), 1, "the store refuses bytes");
    // The store has taken one of two refused runs: it still counts as refusing.
    hand.answer(2, 0);
    hand.answer(0, 0);
    assert_eq!(done(&mut stack, again + 3), [(5, true)]);
    write(&mut stack, 6, 22, 1, again + 4);
    assert_eq!(done(&mut stack, again + 4), []);
    assert_eq!(hand.pending(), [second, (Op::Write, 22 * 4096, 4096)]);
    assert_eq!(stack.take_reports(), Vec::<String>::new());
    hand.answer(0, 0);
    done(&mut stack, again + 5);
    assert_eq!(stack.take_reports().len(), 1, "the store has taken them");
    write(&mut stack, 7, 23, 1, again + 6);
    assert_eq!(done(&mut stack, again + 6), [(7, true)]);
}

#[test]
fn around_sends_at_once_and_a_read_sees_what_is_on_its_way() {
    let (mut stack, hand) = cache(WriteCacheOptions { policy: WritePolicy::Around, ..OPTIONS });
    write(&mut stack, 1, 1, 5, 10);
    assert_eq!(done(&mut stack, 10), [(1, true)]);
    assert_eq!(hand.pending(), [(Op::Write, 4096, 4096)]);
    stack.submit(request(2, Op::Read, 0, 3 * 4096, 0), Nanos(11));
    hand.answer(1, 9);
    let read = poll(&mut stack, 11);
    let bytes = bytes_of(read[0].1.as_ref().unwrap());
    assert_eq!([0, 4095, 4096, 8191, 8192].map(|at| bytes[at]), [9, 9, 5, 5, 9]);
    hand.answer(0, 0);
    assert_eq!(done(&mut stack, 12), []);
    stack.submit(request(3, Op::Read, 4096, 4096, 0), Nanos(13));
    assert_eq!(hand.pending(), [(Op::Read, 4096, 4096)]);
}

#[test]
fn a_change_that_goes_through_replaces_older_bytes_only_if_it_succeeds() {
    for succeeds in [true, false] {
        let (mut stack, hand) = cache(OPTIONS);
        write(&mut stack, 1, 0, 1, 10);
        stack.submit(forced(request(2, Op::Write, 512, 1024, 2)), Nanos(11));
        stack.submit(request(3, Op::WriteZeroes, 2048, 512, 0), Nanos(11));
        done(&mut stack, 11);
        let expected = [(Op::Write, 512, 1024), (Op::WriteZeroes, 2048, 512)];
        assert_eq!(hand.pending(), expected);
        // Older bytes do not overtake them.
        flush(&mut stack, 4, 12);
        done(&mut stack, 12);
        assert_eq!(hand.pending(), expected);
        for _ in 0..2 {
            if succeeds { hand.answer(0, 0) } else { hand.fail(0, error()) }
        }
        assert_eq!(done(&mut stack, 13), [(2, succeeds), (3, succeeds)]);
        let left = match succeeds {
            true => vec![(Op::Write, 0, 512), (Op::Write, 1536, 512), (Op::Write, 2560, 1536)],
            false => vec![(Op::Write, 0, 4096)],
        };
        assert_eq!(hand.pending(), left);
    }
}

#[test]
fn a_change_waits_for_the_bytes_on_their_way() {
    let (mut stack, hand) = cache(WriteCacheOptions { policy: WritePolicy::Around, ..OPTIONS });
    write(&mut stack, 1, 0, 1, 10);
    done(&mut stack, 10);
    stack.submit(request(2, Op::Trim, 0, 8192, 0), Nanos(11));
    write(&mut stack, 3, 0, 3, 12);
    assert_eq!(done(&mut stack, 12), [(3, true)]);
    assert_eq!(hand.pending(), [(Op::Write, 0, 4096)]);
    hand.answer(0, 0);
    done(&mut stack, 13);
    assert_eq!(hand.pending(), [(Op::Trim, 0, 8192)]);
    hand.answer(0, 0);
    assert_eq!(done(&mut stack, 14), [(2, true)]);
    // The write came after the trim.
    assert_eq!((hand.pending(), hand.data(0)[0]), (vec![(Op::Write, 0, 4096)], 3));
}

#[test]
fn writes_go_through_until_the_first_flush() {
    let (mut stack, hand) = cache(WriteCacheOptions { until_flush: true, ..OPTIONS });
    write(&mut stack, 1, 0, 1, 10);
    assert_eq!(done(&mut stack, 10), []);
    flush(&mut stack, 2, 11);
    assert_eq!(hand.pending().len(), 2);
    write(&mut stack, 3, 1, 1, 12);
    assert_eq!(done(&mut stack, 12), [(3, true)]);
}

#[test]
fn extents_with_bytes_in_memory_are_data() {
    let (mut stack, hand) = cache(OPTIONS);
    write(&mut stack, 1, 1, 1, 10);
    stack.submit(request(2, Op::Extents, 0, 4 * 4096, 0), Nanos(11));
    let hole = |len_bytes| Extent { len_bytes, kind: ExtentKind::Hole };
    hand.answer_with(0, Payload::Extents(vec![hole(4 * 4096)]));
    let data = Extent { len_bytes: 4096, kind: ExtentKind::Data };
    let expected = Payload::Extents(vec![hole(4096), data, hole(8192)]);
    assert_eq!(poll(&mut stack, 12)[1].1, Ok(expected));
}

#[test]
fn a_shared_store_gets_everything_and_then_hears_of_it() {
    let (mut stack, hand) = cache(OPTIONS);
    write(&mut stack, 1, 0, 1, 10);
    done(&mut stack, 10);
    hand.share(Some("a test"));
    assert_eq!(done(&mut stack, 11), []);
    assert_eq!((hand.pending(), hand.settled()), (vec![(Op::Write, 0, 4096)], 0));
    // Writes go through meanwhile.
    write(&mut stack, 2, 5, 2, 12);
    assert_eq!(done(&mut stack, 12), []);
    hand.answer(0, 0);
    done(&mut stack, 13);
    assert_eq!((hand.pending(), hand.settled()), (vec![(Op::Write, 5 * 4096, 4096)], 1));
    hand.answer(0, 0);
    hand.share(None);
    assert_eq!(done(&mut stack, 14), [(2, true)]);
    write(&mut stack, 3, 0, 1, 15);
    assert_eq!((done(&mut stack, 15), hand.settled()), (vec![(3, true)], 1));
}
