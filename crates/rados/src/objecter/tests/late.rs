//! Late writes: each way on which one ends, and what others get then.

use fieldstone_crush::osdmap::PoolId;

use super::{Bench, CODED, POOL, coded, object, write};
use crate::cluster::{LateWrites, ObjectName, Operation, SenderId};
use crate::errno::Errno;
use crate::objecter::{Action, Options, WaitReason};

/// Two requests may be in flight.
fn bench() -> Bench {
    Bench::with(Options { timeout_ms: 3000, max_in_flight: 2, ..Options::default() })
}

/// Both places are taken by late writes to the pool `CODED`.
fn with_two_late() -> Bench {
    let mut bench = bench();
    (0..2).for_each(|token| bench.put(token, write(&coded("a"))));
    bench.advance(3000);
    let late = |token| (token, Err(Errno::ETIMEDOUT));
    assert_eq!(bench.done(), [late(0), late(1)]);
    assert_eq!(bench.objecter.late_count(), 2);
    bench
}

/// A request that waits for room, to another pool, is sent now.
#[track_caller]
fn goes_on(bench: &mut Bench, token: u64) {
    let (osd, op) = bench.sent.pop().expect("the place was not given back");
    assert_eq!(op.object.pool, POOL);
    bench.reply(osd, &op, 0);
    assert_eq!(bench.done(), [(token, Ok(0))]);
}

#[test]
fn each_end_of_a_late_write_gives_its_place_back() {
    // An answer, and one that cannot be read.
    for is_readable in [true, false] {
        let mut bench = with_two_late();
        bench.put(2, write(&object("b")));
        let late = bench.take();
        assert_eq!(late.len(), 2, "the third waits for room");
        let (osd, op) = &late[0];
        if is_readable {
            bench.reply(*osd, op, 0);
        } else {
            bench.objecter.undecodable(*osd, op.tid, bench.now);
            bench.drain();
        }
        assert_eq!(bench.objecter.late_count(), 1);
        goes_on(&mut bench, 2);
    }
    // The pool is deleted: nothing is left to write to.
    let mut bench = with_two_late();
    bench.put(2, write(&object("b")));
    bench.take();
    bench.change(|map| {
        map.pools.remove(&CODED);
    });
    assert_eq!(bench.objecter.late_count(), 0);
    goes_on(&mut bench, 2);
    // The client ends, or is blocked.
    let mut bench = with_two_late();
    bench.put(2, write(&object("b")));
    bench.objecter.shut_out(Errno::ESHUTDOWN);
    bench.drain();
    assert_eq!(bench.done(), [(2, Err(Errno::ESHUTDOWN))]);
    assert_eq!((bench.objecter.late_count(), bench.objecter.unanswered()), (0, 0));
}

#[test]
fn a_write_that_was_sent_outlives_a_pool_that_fails_all_requests() {
    let mut bench = bench();
    (0..2).for_each(|token| bench.put(token, write(&coded("a"))));
    let first: Vec<u64> = bench.take().iter().map(|(_, op)| op.tid).collect();
    bench.advance(2999);
    bench.put(2, write(&object("b")));
    bench.put(3, write(&coded("a")));
    assert_eq!(bench.take(), []);
    // All callers are told. The write that was never sent is gone.
    bench.change(|map| map.pools.get_mut(&CODED).unwrap().fails = true);
    let fails = |token| (token, Err(Errno::EIO));
    assert_eq!(bench.done(), [fails(0), fails(1), fails(3)]);
    assert_eq!(bench.objecter.late_count(), 2);
    let reasons = bench.objecter.waits(bench.now);
    assert!(reasons.iter().any(|wait| wait.reason == WaitReason::PoolFails(CODED)), "{reasons:?}");
    // Meanwhile they hold no other request back.
    goes_on(&mut bench, 2);
    bench.put(4, write(&coded("a")));
    assert_eq!((bench.take(), bench.done()), (vec![], vec![fails(4)]));
    bench.change(|_| {});
    assert_eq!((bench.objecter.late_count(), bench.take()), (2, vec![]));
    // Then they come before later writes, and take their places again.
    bench.change(|map| map.pools.get_mut(&CODED).unwrap().fails = false);
    bench.put(5, write(&coded("a")));
    let again = bench.take();
    let tids: Vec<u64> = again.iter().map(|(_, op)| op.tid).collect();
    assert_eq!(tids, first);
    assert!(again.iter().all(|(_, op)| op.attempt == 1));
    again.iter().for_each(|(osd, op)| bench.reply(*osd, op, 0));
    let (osd, newer) = bench.only();
    bench.reply(osd, &newer, 0);
    assert_eq!(bench.done(), [(5, Ok(0))]);
    assert_eq!((bench.objecter.late_count(), bench.objecter.unanswered()), (0, 0));
    assert_eq!(bench.objecter.deadline(), None);
}

#[test]
fn a_late_write_ends_with_a_pool_that_failed_and_is_deleted() {
    let mut bench = with_two_late();
    bench.take();
    bench.change(|map| map.pools.get_mut(&CODED).unwrap().fails = true);
    assert_eq!((bench.objecter.late_count(), bench.done()), (2, vec![]));
    bench.change(|map| {
        map.pools.remove(&CODED);
    });
    assert_eq!((bench.objecter.late_count(), bench.objecter.unanswered()), (0, 0));
    // All places are free.
    (2..4).for_each(|token| bench.put(token, write(&object("b"))));
    assert_eq!(bench.take().len(), 2);
}

#[test]
fn late_writes_are_counted_by_sender() {
    let mut bench = Bench::with(Options { timeout_ms: 3000, ..Options::default() });
    let of = |sender| Operation { sender: SenderId(sender), ..write(&object("a")) };
    for (token, sender) in [(0, 1), (1, 2), (2, 1)] {
        bench.put(token, of(sender));
    }
    bench.advance(3000);
    let counts = |of: &[(u64, usize)]| -> LateWrites {
        of.iter().map(|&(sender, count)| (SenderId(sender), count)).collect()
    };
    assert_eq!(*bench.objecter.late_writes(), counts(&[(1, 2), (2, 1)]));
    for (osd, op) in bench.take() {
        bench.reply(osd, &op, 0);
        if op.tid == 1 {
            assert_eq!(*bench.objecter.late_writes(), counts(&[(1, 1), (2, 1)]));
        }
    }
    assert_eq!(*bench.objecter.late_writes(), counts(&[]));
}

/// Whether its pool exists was asked before a map had the pool.
#[test]
fn an_old_question_for_a_pool_ends_no_late_write() {
    let mut bench = bench();
    let new = PoolId(9);
    let name = ObjectName::new(new, "", "a");
    bench.put(0, write(&name));
    assert!(bench.other.contains(&Action::WantNewestEpoch));
    bench.change(|map| {
        map.pools.insert(new, map.pools[&POOL].clone());
    });
    let (_, first) = bench.only();
    bench.change(|map| map.pools.get_mut(&new).unwrap().fails = true);
    assert_eq!(bench.done(), [(0, Err(Errno::EIO))]);
    bench.objecter.newest_epoch(1, bench.now);
    bench.drain();
    assert_eq!(bench.objecter.late_count(), 1);
    bench.change(|map| map.pools.get_mut(&new).unwrap().fails = false);
    assert_eq!(bench.only().1.tid, first.tid);
}
