//! Read-ahead follows readers in order, grows its windows, and cuts them at changes.

use fieldstone_block::layers::{ReadAhead, ReadAheadOptions, ReadAheadStats};
use fieldstone_block::{Backend, BlockError, Nanos, Op, Payload, Piece, Stack};

use crate::manual::{Hand, Manual, bytes_of, layer, over, poll, request};

const KIB: u64 = 1024;

fn read_ahead(window_bytes: u32) -> (Stack<Manual>, Hand) {
    let (manual, hand) = Manual::new(1);
    let options = ReadAheadOptions { window_bytes: Some(window_bytes) };
    (over(manual, ReadAhead::new(options)), hand)
}

fn stats(stack: &Stack<Manual>) -> ReadAheadStats {
    layer::<ReadAhead, Manual>(stack).stats()
}

/// Submits a read of `len` KiB at `at` KiB.
fn read(stack: &mut Stack<Manual>, id: u64, at: u64, len: u64, now: Nanos) {
    let len_bytes = u32::try_from(len * KIB).expect("short");
    stack.submit(request(id, Op::Read, at * KIB, len_bytes, 0), now);
}

/// The requests below: offset and length in KiB.
fn pending(hand: &Hand) -> Vec<(u64, u64)> {
    let pending = hand.pending();
    pending.iter().map(|(_, offset, len)| (offset / KIB, u64::from(*len) / KIB)).collect()
}

/// A stream that reads 128 KiB three times from 0 on. The first window is under way.
fn stream(window_bytes: u32) -> (Stack<Manual>, Hand) {
    let (mut stack, hand) = read_ahead(window_bytes);
    for id in 0..3 {
        read(&mut stack, id, 128 * id, 128, Nanos(1));
    }
    assert_eq!(pending(&hand), [(0, 128), (128, 128), (256, 128), (384, 256)]);
    for _ in 0..3 {
        hand.answer(0, 1);
    }
    assert_eq!(poll(&mut stack, 1).len(), 3);
    (stack, hand)
}

#[test]
fn windows_grow_to_the_longest_and_one_is_always_under_way() {
    let (mut stack, hand) = stream(1 << 20);
    // The fourth request waits for the first window and sends the next.
    read(&mut stack, 3, 384, 128, Nanos(1));
    assert_eq!(pending(&hand), [(384, 256), (640, 512)]);
    assert_eq!(poll(&mut stack, 1), []);
    hand.answer(0, 2);
    let done = poll(&mut stack, 1);
    assert_eq!(bytes_of(done[0].1.as_ref().unwrap()), vec![2; 128 << 10]);
    // The fifth request takes the rest of the first window. Then the layer drops that window.
    read(&mut stack, 4, 512, 128, Nanos(1));
    assert_eq!(poll(&mut stack, 1).len(), 1);
    assert_eq!(stats(&stack).held_bytes, 512 * KIB);
    assert_eq!(pending(&hand), [(640, 512)]);
    hand.answer(0, 3);
    read(&mut stack, 5, 640, 128, Nanos(1));
    assert_eq!(pending(&hand), [(1152, 1024)]);
    for id in 6..9 {
        read(&mut stack, id, 128 * id, 128, Nanos(1));
    }
    assert_eq!(pending(&hand), [(1152, 1024)]);
    read(&mut stack, 9, 1152, 128, Nanos(1));
    assert_eq!(pending(&hand), [(1152, 1024), (2176, 1024)]);
    poll(&mut stack, 1);
    assert_eq!(stats(&stack).hits, 6);
}

#[test]
fn random_and_long_reads_pass() {
    let (mut stack, hand) = read_ahead(1 << 20);
    for id in 0..10 {
        read(&mut stack, id, 8 * (id * 7 % 10), 4, Nanos(1));
    }
    for id in 10..20 {
        read(&mut stack, id, 1024 * id, 1024, Nanos(1));
    }
    assert_eq!(hand.pending().len(), 20);
    let (mut off, hand) = read_ahead(0);
    for id in 0..10 {
        read(&mut off, id, 4 * id, 4, Nanos(1));
    }
    assert_eq!(hand.pending().len(), 10);
}

#[test]
fn a_request_may_span_two_windows() {
    let (mut stack, hand) = stream(256 << 10);
    read(&mut stack, 3, 384, 128, Nanos(1));
    assert_eq!(pending(&hand), [(384, 256), (640, 256)]);
    read(&mut stack, 4, 576, 128, Nanos(1));
    hand.answer(1, 9);
    assert_eq!(poll(&mut stack, 1), []);
    hand.answer(0, 8);
    let done = poll(&mut stack, 1);
    let bytes = bytes_of(done[1].1.as_ref().unwrap());
    assert_eq!((bytes[0], bytes[64 << 10], bytes.len()), (8, 9, 128 << 10));
}

#[test]
fn a_change_cuts_the_windows_that_it_overlaps() {
    let (mut stack, hand) = stream(1 << 20);
    read(&mut stack, 3, 384, 128, Nanos(1));
    stack.submit(request(4, Op::Write, 520 * KIB, 4096, 7), Nanos(1));
    // Request 3 came before the write. Request 5 needs bytes behind the write and passes. Request 6
    // needs bytes before it.
    read(&mut stack, 5, 512, 128, Nanos(1));
    read(&mut stack, 6, 448, 64, Nanos(1));
    assert_eq!(pending(&hand), [(384, 256), (640, 512), (520, 4), (512, 128)]);
    hand.answer(0, 2);
    let done = poll(&mut stack, 1);
    assert_eq!(done.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [3, 6]);
    assert_eq!((stats(&stack).cut, stats(&stack).held_bytes), (1, 768 * KIB));
    // A change of all that is left lets the window go.
    stack.submit(request(7, Op::Trim, 384 * KIB, 136 << 10, 0), Nanos(1));
    assert_eq!(stats(&stack).held_bytes, 512 * KIB);
}

#[test]
fn a_reader_that_writes_back_in_place_keeps_its_windows() {
    let (mut stack, hand) = stream(256 << 10);
    hand.answer(0, 2);
    poll(&mut stack, 1);
    for id in 3..5 {
        read(&mut stack, id, 128 * id, 128, Nanos(1));
        stack.submit(request(10 + id, Op::Write, 128 * KIB * id, 128 << 10, 7), Nanos(1));
    }
    assert_eq!(pending(&hand), [(640, 256), (384, 128), (512, 128)]);
    assert_eq!((stats(&stack).hits, stats(&stack).held_bytes), (2, 256 * KIB));
}

#[test]
fn a_slow_reader_keeps_its_windows() {
    let (mut stack, hand) = stream(256 << 10);
    let mut now = Nanos(1);
    for id in 3..20 {
        read(&mut stack, id, 128 * id, 128, now);
        while !hand.pending().is_empty() {
            hand.answer(0, 2);
        }
        let answered = poll(&mut stack, now.0);
        assert_eq!(answered.len(), 1);
        now = now.plus(Nanos::from_ms(800));
        poll(&mut stack, now.0);
    }
    assert_eq!(stats(&stack).hits, 17);
}

#[test]
fn no_window_is_sent_over_a_change_in_flight() {
    let (mut stack, hand) = read_ahead(1 << 20);
    stack.submit(request(9, Op::Trim, 500 * KIB, 4096, 0), Nanos(1));
    for id in 0..3 {
        read(&mut stack, id, 128 * id, 128, Nanos(1));
    }
    assert_eq!(pending(&hand), [(500, 4), (0, 128), (128, 128), (256, 128)]);
    hand.answer(0, 0);
    assert_eq!(poll(&mut stack, 1), [(9, Ok(Payload::None))]);
    read(&mut stack, 3, 384, 128, Nanos(1));
    assert_eq!(pending(&hand)[3..], [(384, 128), (512, 256)]);
}

#[test]
fn a_failed_window_fails_no_request() {
    let (mut stack, hand) = stream(1 << 20);
    read(&mut stack, 3, 384, 128, Nanos(1));
    hand.fail(0, BlockError::Io("a bad sector".into()));
    assert_eq!(poll(&mut stack, 1), []);
    assert_eq!(pending(&hand), [(640, 512), (384, 128)]);
    hand.answer(1, 4);
    assert_eq!(poll(&mut stack, 1).len(), 1);
    assert_eq!(stats(&stack).failed, 1);
}

#[test]
fn idle_windows_go_after_a_second() {
    let (mut stack, hand) = stream(1 << 20);
    hand.answer(0, 2);
    poll(&mut stack, 1_000);
    assert_eq!(stats(&stack).held_bytes, 256 * KIB);
    let deadline = stack.next_deadline().expect("a window is ready");
    assert_eq!(deadline, Nanos::from_ms(1100));
    poll(&mut stack, deadline.0 - 1);
    assert_eq!(stats(&stack).held_bytes, 256 * KIB);
    poll(&mut stack, deadline.0);
    assert_eq!((stats(&stack).held_bytes, stack.next_deadline()), (0, None));
}

#[test]
fn a_small_read_keeps_no_window_in_memory() {
    let (mut stack, hand) = read_ahead(1 << 20);
    for id in 0..3 {
        read(&mut stack, id, 4 * id, 4, Nanos(1));
    }
    assert_eq!(pending(&hand)[3..], [(12, 64)]);
    (0..4).for_each(|_| hand.answer(0, 5));
    poll(&mut stack, 1);
    read(&mut stack, 3, 12, 4, Nanos(1));
    let Ok(Payload::Data(pieces)) = poll(&mut stack, 1).remove(0).1 else { panic!("no data") };
    let [Piece::Data(data)] = &pieces[..] else { panic!("{pieces:?}") };
    assert!(data.is_unique(), "the bytes are a part of the window");
}

/// A reader of 16 KiB at a time, far from the others. Its third request sends a window of 64 KiB.
fn short_stream(stack: &mut Stack<Manual>, number: u64) {
    for id in 0..3 {
        read(stack, 3 * number + id, 4096 * number + 16 * id, 16, Nanos(1));
    }
}

#[test]
fn windows_of_readers_that_have_gone_make_room_for_new_ones() {
    let (mut stack, hand) = read_ahead(64 << 10);
    for number in 0..40 {
        short_stream(&mut stack, number);
        (0..4).for_each(|_| hand.answer(0, 1));
        assert_eq!(poll(&mut stack, 1).len(), 3);
    }
    assert_eq!((stats(&stack).windows, stats(&stack).held_bytes), (40, 32 * 64 * KIB));
}

#[test]
fn windows_that_never_load_are_bounded_too() {
    let (mut stack, hand) = read_ahead(64 << 10);
    (0..40).for_each(|number| short_stream(&mut stack, number));
    assert_eq!((stats(&stack).windows, hand.pending().len()), (32, 3 * 40 + 32));
}
