//! The cache hits, counts, bounds itself, and never keeps a line that a change touched meanwhile.

use fieldstone_block::layers::{Cache, CacheOptions, CacheStats, LINE_BYTES};
use fieldstone_block::{Backend, BlockError, Nanos, Op, Payload, Stack};

use crate::manual::{Hand, Manual, bytes_of, layer, over, poll, request};

const LINE: u64 = LINE_BYTES as u64;

fn cache(lines: u64) -> (Stack<Manual>, Hand) {
    let (manual, hand) = Manual::new(1);
    let options = CacheOptions { capacity_bytes: lines * LINE, ..CacheOptions::default() };
    (over(manual, Cache::new(options)), hand)
}

fn stats(stack: &Stack<Manual>) -> CacheStats {
    layer::<Cache, Manual>(stack).stats()
}

/// Reads one line. If the cache asks the backend, the backend answers with `fill`. Returns the byte
/// read, and true if the cache asked the backend.
fn read(cache: &mut Stack<Manual>, hand: &Hand, line: u64, fill: u8) -> (u8, bool) {
    cache.submit(request(99, Op::Read, line * LINE, LINE_BYTES, 0), Nanos(1));
    let asked = !hand.pending().is_empty();
    if asked {
        hand.answer(0, fill);
    }
    let mut done = poll(cache, 1);
    assert_eq!(done.len(), 1);
    let bytes = bytes_of(&done.remove(0).1.unwrap());
    assert_eq!(bytes.len(), LINE_BYTES as usize);
    (bytes[0], asked)
}

#[test]
fn a_read_that_a_write_overtook_is_not_kept() {
    let (mut cache, hand) = cache(16);
    cache.submit(request(1, Op::Read, 0, LINE_BYTES, 0), Nanos(1));
    cache.submit(request(2, Op::Write, 0, LINE_BYTES, 5), Nanos(1));
    hand.answer(1, 0);
    assert_eq!(poll(&mut cache, 1), [(2, Ok(Payload::None))]);
    // The read may return the line from before the write, but that line is out of date by now.
    hand.answer(0, 4);
    poll(&mut cache, 1);
    assert_eq!(stats(&cache).refused, 1);
    assert_eq!(read(&mut cache, &hand, 0, 5), (5, true));
}

#[test]
fn a_read_sent_beside_a_write_is_not_kept() {
    let (mut cache, hand) = cache(16);
    cache.submit(request(1, Op::Write, 0, LINE_BYTES, 5), Nanos(1));
    cache.submit(request(2, Op::Read, 0, LINE_BYTES, 0), Nanos(1));
    hand.answer(1, 4);
    poll(&mut cache, 1);
    hand.answer(0, 0);
    poll(&mut cache, 1);
    assert_eq!(read(&mut cache, &hand, 0, 5), (5, true));
    assert_eq!(read(&mut cache, &hand, 0, 9), (5, false));
}

#[test]
fn two_writes_beside_each_other_leave_nothing() {
    let (mut cache, hand) = cache(16);
    read(&mut cache, &hand, 0, 1);
    cache.submit(request(1, Op::Write, 0, LINE_BYTES, 5), Nanos(1));
    cache.submit(request(2, Op::Write, 0, LINE_BYTES, 6), Nanos(1));
    hand.answer(1, 0);
    hand.answer(0, 0);
    assert_eq!(poll(&mut cache, 1).len(), 2);
    assert_eq!(read(&mut cache, &hand, 0, 5), (5, true));
}

#[test]
fn a_write_updates_the_line_that_was_there_and_no_other() {
    let (mut cache, hand) = cache(16);
    read(&mut cache, &hand, 1, 1);
    cache.submit(request(1, Op::Write, 0, 3 * LINE_BYTES, 7), Nanos(1));
    hand.answer(0, 0);
    poll(&mut cache, 1);
    assert_eq!(read(&mut cache, &hand, 1, 99), (7, false));
    assert_eq!(read(&mut cache, &hand, 0, 7), (7, true));
}

#[test]
fn failed_writes_zeroes_and_trims_drop_their_lines() {
    for op in [Op::Write, Op::WriteZeroes, Op::Trim] {
        let (mut cache, hand) = cache(16);
        read(&mut cache, &hand, 3, 1);
        cache.submit(request(1, op, 3 * LINE + 100, 8, 2), Nanos(1));
        match op {
            Op::Write => hand.fail(0, BlockError::NoSpace),
            _ => hand.answer(0, 0),
        }
        poll(&mut cache, 1);
        assert_eq!(read(&mut cache, &hand, 3, 8), (8, true), "{op:?}");
        assert_eq!(stats(&cache).invalidated, 1);
    }
}

#[test]
fn the_least_recently_used_line_goes_first_and_the_numbers_are_right() {
    let (mut cache, hand) = cache(2);
    read(&mut cache, &hand, 0, 10);
    read(&mut cache, &hand, 1, 11);
    read(&mut cache, &hand, 0, 10);
    read(&mut cache, &hand, 2, 12);
    assert_eq!(read(&mut cache, &hand, 0, 99), (10, false));
    assert_eq!(read(&mut cache, &hand, 1, 11), (11, true));
    let stats = layer::<Cache, Manual>(&cache).stats();
    assert_eq!((stats.hits, stats.misses, stats.evicted), (2, 4, 2));
    assert_eq!((stats.hit_bytes, stats.miss_bytes), (2 * LINE, 4 * LINE));
    assert_eq!((stats.held_bytes, stats.capacity_bytes), (2 * LINE, 2 * LINE));
    assert!((stats.hit_rate() - 1.0 / 3.0).abs() < 1e-9);
}

#[test]
fn small_reads_fetch_the_line_for_those_that_follow() {
    let (mut cache, hand) = cache(16);
    cache.submit(request(1, Op::Read, LINE + 512, 512, 0), Nanos(1));
    assert_eq!(hand.pending(), [(Op::Read, LINE, LINE_BYTES)]);
    hand.answer(0, 3);
    assert_eq!(bytes_of(poll(&mut cache, 1)[0].1.as_ref().unwrap()), vec![3; 512]);
    cache.submit(request(2, Op::Read, LINE + 1024, 512, 0), Nanos(1));
    assert_eq!(bytes_of(poll(&mut cache, 1)[0].1.as_ref().unwrap()), vec![3; 512]);
}

#[test]
fn a_stream_is_looked_up_and_not_kept() {
    let (mut cache, hand) = cache(1024);
    let stream = |cache: &mut Stack<Manual>| {
        cache.submit(request(1, Op::Read, 0, 64 * 1024, 0), Nanos(1));
    };
    stream(&mut cache);
    hand.answer(0, 1);
    poll(&mut cache, 1);
    assert_eq!((stats(&cache).held_bytes, stats(&cache).misses), (0, 1));

    (0..16).for_each(|line| assert!(read(&mut cache, &hand, line, 2).1));
    stream(&mut cache);
    assert!(hand.pending().is_empty());
    assert_eq!(bytes_of(poll(&mut cache, 1)[0].1.as_ref().unwrap()), vec![2; 64 * 1024]);
    assert_eq!((stats(&cache).hits, stats(&cache).misses), (1, 17));
}

#[test]
fn long_reads_pass_by_and_capacity_zero_is_off() {
    let (mut cache_on, hand) = cache(1024);
    cache_on.submit(request(1, Op::Read, 0, 512 * 1024, 0), Nanos(1));
    hand.answer(0, 1);
    poll(&mut cache_on, 1);
    assert_eq!((stats(&cache_on).held_bytes, stats(&cache_on).bypassed), (0, 1));

    let (mut off, hand) = cache(0);
    assert!(read(&mut off, &hand, 0, 1).1 && read(&mut off, &hand, 0, 1).1);
    assert_eq!(stats(&off).misses, 0);
}

#[test]
fn a_line_does_not_hold_on_to_a_large_buffer() {
    let (mut cache, hand) = cache(1024);
    for (len, shared) in [(LINE_BYTES, true), (2 * LINE_BYTES, false), (8 * LINE_BYTES, false)] {
        let offset = u64::from(len);
        cache.submit(request(1, Op::Read, offset, len, 0), Nanos(1));
        hand.answer(0, 1);
        let first = poll(&mut cache, 1).remove(0).1.unwrap();
        cache.submit(request(2, Op::Read, offset, LINE_BYTES, 0), Nanos(1));
        let line = poll(&mut cache, 1).remove(0).1.unwrap();
        let pointer = |payload: &Payload| match payload {
            Payload::Data(pieces) => match &pieces[0] {
                fieldstone_block::Piece::Data(data) => data.as_ptr(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        assert_eq!(pointer(&first) == pointer(&line), shared, "{len}");
    }
}
