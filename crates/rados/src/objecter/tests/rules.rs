//! The rules for requests, one by one.

use fieldstone_block::Nanos;
use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::{PgId, PoolId};

use super::super::{Action, Options, Token, WaitReason};
use super::{Bench, answer, coded, min_position, object, read, write};
use crate::cluster::ObjectName;
use crate::errno::Errno;
use crate::message::osd::{BackoffStep, ObjectPosition, OsdBackoff, Redirect, ShardedPg, flag};
use crate::op::ObjectOps;

#[test]
fn a_request_goes_to_the_primary_and_is_answered_once() {
    let mut bench = Bench::new();
    let name = object("a");
    bench.submit(7, write(&name));
    let (osd, op) = bench.only();
    assert_eq!(osd, bench.map.primary(&name));
    assert_eq!((op.attempt, op.map_epoch, op.target.shard), (0, 1, -1));
    assert_eq!(op.target.pg, bench.map.pg(&name));
    assert_eq!(op.flags, flag::WRITE | flag::ONDISK | flag::KNOWN_REDIR);
    bench.reply(osd, &op, 0);
    bench.reply(osd, &op, 0);
    assert_eq!(bench.done(), [(7, Ok(0))]);
    assert_eq!(bench.objecter.unanswered(), 0);
    // A negative result is the OSD's answer, not an error of the way.
    bench.submit(8, read(&name));
    let (osd, op) = bench.only();
    bench.reply(osd, &op, -2);
    assert_eq!(bench.done(), [(8, Ok(-2))]);
}

#[test]
fn a_coded_pool_gets_the_primarys_shard() {
    let mut bench = Bench::new();
    let name = coded("a");
    let first = bench.map.primary(&name);
    bench.submit(1, write(&name));
    assert_eq!(bench.only().1.target.shard, 0);
    bench.change(|map| map.up[first.0 as usize] = false);
    let (osd, op) = bench.only();
    assert_ne!(osd, first);
    assert_eq!((op.target.shard, op.attempt, op.map_epoch), (1, 1, 2));
    assert_eq!(op.flags & flag::RETRY, flag::RETRY);
    assert!(bench.other.contains(&Action::Close(first)));
}

#[test]
fn without_a_map_requests_wait() {
    let mut bench = Bench::without_map(Options::default());
    bench.submit(1, write(&object("a")));
    assert!(bench.sent.is_empty());
    assert_eq!(bench.other, [Action::WantMap(0)]);
    let map = bench.map.clone();
    bench.set_map(map);
    assert_eq!(bench.only().1.attempt, 0);
}

#[test]
fn a_changed_primary_gets_all_requests_in_order() {
    let mut bench = Bench::new();
    let name = object("a");
    for token in 0..5 {
        bench.submit(token, write(&name));
    }
    let old: Vec<u64> = bench.take().iter().map(|(_, op)| op.tid).collect();
    let primary = bench.map.primary(&name).0;
    let others: Vec<u32> = (0..6).filter(|&osd| osd != primary).take(3).collect();
    bench.change(|map| map.moved(&name, &others));
    let sent = bench.take();
    let tids: Vec<u64> = sent.iter().map(|(_, op)| op.tid).collect();
    assert_eq!(tids, old);
    assert!(sent.iter().all(|(osd, op)| osd.0 == others[0] && op.attempt == 1));
    // The old primary answers late, and the new one to an attempt before.
    let (osd, op) = sent[0].clone();
    bench.reply(OsdId(primary), &op, 0);
    bench.objecter.reply(
        osd,
        op.tid,
        super::OsdOpReply { attempt: 0, ..answer(&op, 0) },
        bench.now,
    );
    bench.drain();
    assert_eq!(bench.done(), []);
    // An old OSD does not tell the attempt.
    bench.objecter.reply(
        osd,
        op.tid,
        super::OsdOpReply { attempt: -1, ..answer(&op, 0) },
        bench.now,
    );
    bench.drain();
    assert_eq!(bench.done(), [(0, Ok(0))]);
}

#[test]
fn other_members_do_not_matter_but_skipped_epochs_do() {
    let mut bench = Bench::new();
    let name = object("a");
    bench.submit(1, write(&name));
    let (osd, _) = bench.only();
    let spare: Vec<u32> = (0..6).filter(|&other| other != osd.0).collect();
    bench.change(|map| map.moved(&name, &[osd.0, spare[3], spare[4]]));
    bench.change(|map| map.pauses_reads = true);
    assert!(bench.take().is_empty());
    let mut next = bench.map.next(|_| ());
    next.epoch += 1;
    bench.set_map(next);
    assert_eq!(bench.only().1.attempt, 1);
    // An old map changes nothing.
    let old = super::TestMap::new(6);
    bench.objecter.map_changed(std::sync::Arc::new(old), bench.now);
    assert_eq!(bench.objecter.epoch(), 5);
}

#[test]
fn splits_and_forced_epochs_resend() {
    let mut bench = Bench::new();
    let names: Vec<ObjectName> = (0..16).map(|n| object(&format!("o{n}"))).collect();
    for (token, name) in names.iter().enumerate() {
        bench.submit(token as u64, write(name));
    }
    assert_eq!(bench.take().len(), 16);
    // Half of the groups are split: 0 to 3.
    let split = names.iter().filter(|name| bench.map.pg(name).seed < 4).count();
    bench.change(|map| map.pools.get_mut(&super::POOL).unwrap().pg_num = 12);
    let sent = bench.take();
    assert_eq!(sent.len(), split);
    assert!(sent.iter().all(|(_, op)| op.target.pg == bench.map.pg(&op.object)));
    bench.change(|map| map.pools.get_mut(&super::POOL).unwrap().resend_epoch = 3);
    assert_eq!(bench.take().len(), 16);
    bench.change(|_| ());
    assert!(bench.take().is_empty());
}

#[test]
fn a_lost_session_is_opened_again_and_gets_its_requests_in_order() {
    let mut bench = Bench::new();
    bench.connects = false;
    let name = object("a");
    (0..3).for_each(|token| bench.put(token, write(&name)));
    let osd = bench.map.primary(&name);
    let opens = |bench: &Bench| {
        bench.other.iter().filter(|action| matches!(action, Action::Open { .. })).count()
    };
    assert_eq!((bench.sent.len(), opens(&bench)), (0, 1));
    assert_eq!(bench.objecter.waits(bench.now)[0].reason, WaitReason::Connection(osd));
    bench.close(osd);
    assert_eq!(opens(&bench), 2, "the first failure is not waited for");
    bench.close(osd);
    assert_eq!(opens(&bench), 2);
    bench.advance(99);
    assert_eq!(opens(&bench), 2);
    bench.advance(1);
    assert_eq!(opens(&bench), 3);
    bench.objecter.session_ready(osd, bench.now);
    bench.drain();
    let sent = bench.take();
    assert_eq!(
        sent.iter().map(|(_, op)| (op.tid, op.attempt)).collect::<Vec<_>>(),
        [(1, 0), (2, 0), (3, 0)]
    );
    bench.reply(osd, &sent[1].1, 0);
    bench.advance(5_000);
    bench.close(osd);
    bench.objecter.session_ready(osd, bench.now);
    bench.drain();
    let sent = bench.take();
    assert_eq!(
        sent.iter().map(|(_, op)| (op.tid, op.attempt)).collect::<Vec<_>>(),
        [(1, 1), (3, 1)]
    );
    assert!(bench.asks_for_map());
    // Answers of the broken session's time do not count while there is no session.
    bench.close(osd);
    bench.reply(osd, &sent[0].1, 0);
    assert_eq!(bench.done(), [(1, Ok(0))]);
}

#[test]
fn a_session_that_answers_and_breaks_is_not_opened_in_a_loop() {
    let mut bench = Bench::new();
    let name = object("a");
    (0..40).for_each(|token| bench.put(token, write(&name)));
    let osd = bench.map.primary(&name);
    let mut rounds = 0;
    let block = backoff(&bench, &object("none"), BackoffStep::Block, false);
    while bench.now < Nanos::from_ms(60_000) {
        let sent = bench.take();
        if let Some((_, op)) = sent.first() {
            rounds += 1;
            bench.reply(osd, op, 0);
            bench.objecter.backoff(osd, block.clone(), bench.now);
            bench.close(osd);
        } else {
            bench.advance(100);
        }
    }
    // 0, 0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3, then each 5 s.
    assert!((10..=20).contains(&rounds), "{rounds}");
    // One that lasts makes the failures count no more.
    bench.advance(10_000);
    bench.take();
    bench.close(osd);
    assert!(!bench.take().is_empty());
}

#[test]
fn an_answer_that_cannot_be_read_fails_its_request() {
    let mut bench = Bench::new();
    (0..2).for_each(|token| bench.put(token, write(&object("a"))));
    let sent = bench.take();
    let osd = sent[0].0;
    bench.objecter.undecodable(osd, 77, bench.now);
    bench.objecter.undecodable(OsdId(osd.0 + 1), sent[0].1.tid, bench.now);
    bench.objecter.undecodable(osd, sent[0].1.tid, bench.now);
    bench.objecter.undecodable(osd, sent[0].1.tid, bench.now);
    bench.drain();
    assert_eq!(bench.done(), [(0, Err(Errno::EIO))]);
    // Not sent in this session: not its answer.
    bench.connects = false;
    bench.close(osd);
    bench.objecter.undecodable(osd, sent[1].1.tid, bench.now);
    bench.drain();
    assert_eq!((bench.done().len(), bench.objecter.unanswered()), (0, 1));
}

#[test]
fn all_attempts_have_the_client_of_the_first() {
    let mut bench = Bench::new();
    let name = object("a");
    bench.objecter.set_identity(4100, 0);
    bench.submit(1, write(&name));
    let (osd, op) = bench.only();
    assert_eq!(op.client, 4100);
    bench.objecter.set_identity(4200, 0);
    bench.submit(2, write(&name));
    assert_eq!(bench.only().1.client, 4200);
    bench.close(osd);
    let sent: Vec<(u64, i32, u64)> =
        bench.take().iter().map(|(_, op)| (op.tid, op.attempt, op.client)).collect();
    assert_eq!(sent, [(1, 1, 4100), (2, 1, 4200)]);
}

#[test]
fn the_newest_epoch_is_asked_for_once() {
    let mut bench = Bench::new();
    let nowhere = ObjectName::new(PoolId(9), "", "a");
    let asked = |bench: &mut Bench| {
        let other = std::mem::take(&mut bench.other);
        other.iter().filter(|action| **action == Action::WantNewestEpoch).count()
    };
    bench.submit(1, write(&nowhere));
    bench.advance(120_000);
    assert_eq!(asked(&mut bench), 1);
    bench.submit(2, write(&nowhere));
    bench.objecter.newest_epoch_failed();
    bench.advance(15_000);
    assert_eq!(asked(&mut bench), 1);
    bench.advance(120_000);
    bench.objecter.newest_epoch(1, bench.now);
    bench.drain();
    assert_eq!((asked(&mut bench), bench.done()), (1, vec![(1, Err(Errno::ENXIO))]));
    bench.advance(120_000);
    bench.objecter.newest_epoch(1, bench.now);
    bench.drain();
    assert_eq!((asked(&mut bench), bench.done()), (0, vec![(2, Err(Errno::ENXIO))]));
}

#[test]
fn the_last_epoch_is_as_good() {
    let mut bench = Bench::new();
    bench.submit(1, write(&object("a")));
    bench.take();
    for epoch in [u32::MAX - 1, u32::MAX, u32::MAX] {
        let mut map = bench.map.clone();
        map.epoch = epoch;
        bench.set_map(map);
    }
    // Skipped once, then one step.
    assert_eq!(bench.only().1.attempt, 1);
    assert_eq!(bench.objecter.epoch(), u32::MAX);
}

#[test]
fn a_new_address_is_a_new_session() {
    let mut bench = Bench::new();
    let name = object("a");
    bench.submit(1, write(&name));
    let (osd, _) = bench.only();
    bench.other.clear();
    bench.change(|map| map.nonces[osd.0 as usize] += 1);
    assert!(matches!(bench.other[..2], [Action::Close(_), Action::Open { .. }]));
    assert_eq!(bench.only().1.attempt, 1);
}

#[test]
fn nobody_serves_the_group() {
    let mut bench = Bench::new();
    let name = object("a");
    let members: Vec<usize> =
        (bench.map.place_of(&name)).iter().map(|osd| osd.0 as usize).collect();
    bench.change(|map| members.iter().for_each(|&osd| map.up[osd] = false));
    bench.asks_for_map();
    bench.submit(1, write(&name));
    assert!(bench.sent.is_empty() && bench.asks_for_map());
    let pg = bench.map.pg(&name);
    assert_eq!(bench.objecter.waits(bench.now)[0].reason, WaitReason::NoPrimary(pg));
    bench.change(|map| map.up[members[1]] = true);
    assert_eq!(bench.only().0, OsdId(members[1] as u32));
}

#[test]
fn pauses_and_fullness_hold_requests_back() {
    let mut bench = Bench::new();
    let name = object("a");
    bench.submit(0, write(&name));
    bench.take();
    bench.change(|map| (map.pauses_reads, map.is_full) = (true, true));
    bench.submit(1, write(&name));
    bench.submit(2, read(&name));
    let mut tries = write(&name);
    tries.flags.full_try = true;
    bench.submit(3, tries);
    let (_, op) = bench.only();
    assert_eq!(op.flags & flag::FULL_TRY, flag::FULL_TRY);
    assert!(bench.asks_for_map());
    let reasons: Vec<WaitReason> =
        bench.objecter.waits(bench.now).iter().map(|wait| wait.reason).collect();
    assert!(reasons.contains(&WaitReason::Full(super::POOL)), "{reasons:?}");
    assert!(reasons.contains(&WaitReason::Paused), "{reasons:?}");
    bench.change(|map| map.pauses_reads = false);
    assert_eq!(bench.only().1.attempt, 0);
    // The OSD may have thrown the first write away while it was full.
    bench.change(|map| map.is_full = false);
    let sent: Vec<(u64, i32)> = bench.take().iter().map(|(_, op)| (op.tid, op.attempt)).collect();
    assert_eq!(sent, [(1, 1), (2, 0)]);
    // A full pool is as a full cluster, but not for other pools.
    bench.change(|map| map.pools.get_mut(&super::POOL).unwrap().is_full = true);
    bench.submit(4, write(&name));
    assert!(bench.sent.is_empty());
    bench.submit(5, write(&coded("a")));
    bench.only();
    bench.change(|map| map.pools.get_mut(&super::CODED).unwrap().fails = true);
    assert_eq!(bench.done(), [(5, Err(Errno::EIO))]);
}

#[test]
fn a_pool_that_no_map_has() {
    let mut bench = Bench::new();
    let nowhere = ObjectName::new(PoolId(9), "", "a");
    bench.submit(1, write(&nowhere));
    assert!(bench.other.contains(&Action::WantNewestEpoch));
    assert_eq!(bench.objecter.waits(bench.now)[0].reason, WaitReason::Pool(PoolId(9)));
    // Asked while the first question is under way: its answer may be too old for this one.
    bench.other.clear();
    bench.submit(2, write(&nowhere));
    assert!(bench.other.is_empty());
    bench.objecter.newest_epoch(1, bench.now);
    bench.drain();
    assert_eq!(bench.done(), [(1, Err(Errno::ENXIO))]);
    assert_eq!(bench.other, [Action::WantNewestEpoch]);
    // The newest map is newer than ours, and it has the pool.
    bench.objecter.newest_epoch(2, bench.now);
    bench.drain();
    assert_eq!(bench.done(), []);
    bench.change(|map| {
        map.pools.insert(PoolId(9), map.pools[&super::POOL].clone());
    });
    bench.only();
    // A pool that was there and is not any more is deleted: no question.
    bench.change(|map| {
        map.pools.remove(&PoolId(9));
    });
    assert_eq!(bench.done(), [(2, Err(Errno::ENXIO))]);
    // Newer than ours, and without the pool.
    bench.submit(3, write(&nowhere));
    bench.objecter.newest_epoch(4, bench.now);
    bench.change(|_| ());
    assert_eq!(bench.done(), [(3, Err(Errno::ENXIO))]);
}

pub(super) fn backoff(
    bench: &Bench,
    name: &ObjectName,
    step: BackoffStep,
    whole: bool,
) -> OsdBackoff {
    let pg = bench.map.pg(name);
    let one = ObjectPosition {
        hash: super::ClusterMap::hash(&bench.map, name).unwrap(),
        name: name.name.to_string(),
        snapshot: crate::cluster::SnapId::HEAD,
        ..min_position(name.pool)
    };
    let max = ObjectPosition { is_max: true, ..min_position(name.pool) };
    let (begin, end) = if whole { (min_position(name.pool), max) } else { (one.clone(), one) };
    let target = ShardedPg { pg, shard: -1 };
    OsdBackoff { target, map_epoch: 1, step, id: 5, begin, end }
}

#[test]
fn a_backoff_holds_requests_until_it_is_lifted() {
    for whole in [false, true] {
        let mut bench = Bench::new();
        let name = object("a");
        bench.submit(1, write(&name));
        let (osd, _) = bench.only();
        let block = backoff(&bench, &name, BackoffStep::Block, whole);
        bench.objecter.backoff(osd, block.clone(), bench.now);
        bench.other.clear();
        bench.drain();
        let ack = OsdBackoff { step: BackoffStep::AckBlock, ..block };
        assert_eq!(bench.other, [Action::SendBackoffAck(osd, ack)]);
        bench.submit(2, write(&name));
        assert!(bench.sent.is_empty());
        let reason = WaitReason::Backoff(osd, bench.map.pg(&name));
        assert_eq!(bench.objecter.waits(bench.now)[0].reason, reason);
        let lift = backoff(&bench, &name, BackoffStep::Unblock, whole);
        bench.objecter.backoff(osd, lift, bench.now);
        bench.drain();
        let sent: Vec<(u64, i32)> =
            bench.take().iter().map(|(_, op)| (op.tid, op.attempt)).collect();
        assert_eq!(sent, [(1, 1), (2, 0)]);
        // A new session knows of no backoffs.
        bench.objecter.backoff(osd, backoff(&bench, &name, BackoffStep::Block, whole), bench.now);
        bench.close(osd);
        assert_eq!(bench.take().len(), 2);
    }
}

#[test]
fn replicas_are_read_and_refuse() {
    let mut bench = Bench::new();
    let name = object("a");
    let mut balanced = read(&name);
    balanced.flags.balance_reads = true;
    let mut seen = std::collections::BTreeSet::new();
    for token in 0..40 {
        bench.submit(token, balanced.clone());
        let (osd, op) = bench.only();
        assert_eq!(op.flags & flag::BALANCE_READS, flag::BALANCE_READS);
        seen.insert(osd);
        bench.reply(osd, &op, 0);
    }
    assert_eq!(seen.len(), 3);
    // A refusal sends it to the primary, under a new number.
    bench.submit(50, balanced.clone());
    let (osd, op) = bench.only();
    bench.reply(osd, &op, -11);
    let (osd, again) = bench.only();
    assert_eq!(osd, bench.map.primary(&name));
    assert_eq!(again.flags & flag::BALANCE_READS, 0);
    assert!(again.tid > op.tid && again.attempt == 1);
    // Not for ever.
    let mut last = (osd, again);
    for _ in 0..16 {
        bench.reply(last.0, &last.1, -11);
        match bench.take().pop() {
            Some(next) => last = next,
            None => break,
        }
    }
    assert_eq!(bench.done().pop(), Some((50, Ok(-11))));
    // Coded pools and writes have only the primary.
    balanced.object = coded("a");
    bench.submit(51, balanced);
    assert_eq!(bench.only().0, bench.map.primary(&coded("a")));
    let mut writes = write(&name);
    writes.flags.balance_reads = true;
    bench.submit(52, writes);
    assert_eq!(bench.only().0, bench.map.primary(&name));
}

#[test]
fn the_nearest_replica_is_read() {
    let name = object("a");
    let members = Bench::new().map.place_of(&name);
    let near = members[2];
    let distance = move |osd| u32::from(osd != near);
    let distance: super::super::Distance = std::sync::Arc::new(distance);
    let mut bench = Bench::with(Options { distance: Some(distance), ..Options::default() });
    let mut local = read(&name);
    local.flags.localize_reads = true;
    bench.submit(1, local.clone());
    assert_eq!(bench.only().0, near);
    let mut bench = Bench::new();
    bench.submit(1, local);
    assert_eq!(bench.only().0, members[0]);
}

#[test]
fn a_redirect_is_followed() {
    let mut bench = Bench::new();
    bench.submit(1, read(&object("a")));
    let (osd, op) = bench.only();
    let redirect =
        Redirect { pool: super::CODED, namespace: "".into(), key: "".into(), object: "b".into() };
    let reply = super::OsdOpReply { redirect: Some(redirect), ..answer(&op, 0) };
    bench.objecter.reply(osd, op.tid, reply, bench.now);
    bench.drain();
    let (osd, again) = bench.only();
    assert_eq!((osd, &again.object), (bench.map.primary(&coded("b")), &coded("b")));
    assert!(again.tid > op.tid && again.flags & flag::REDIRECTED != 0);
    bench.reply(osd, &again, 0);
    assert_eq!(bench.done(), [(1, Ok(0))]);
}

#[test]
fn too_much_in_flight_is_queued_in_order() {
    let mut bench = Bench::with(Options { max_in_flight: 2, ..Options::default() });
    let name = object("a");
    let ids: Vec<_> = (0..5).map(|token| bench.submit(token, write(&name))).collect();
    let sent = bench.take();
    assert_eq!(sent.len(), 2);
    assert!(bench.objecter.waits(bench.now).iter().any(|wait| wait.reason == WaitReason::Room));
    bench.objecter.cancel(ids[2], bench.now);
    bench.objecter.cancel(ids[2], bench.now);
    bench.reply(sent[0].0, &sent[0].1, 0);
    bench.reply(sent[1].0, &sent[1].1, 0);
    let sent = bench.take();
    assert_eq!(sent.iter().map(|(_, op)| op.tid).collect::<Vec<_>>(), [3, 4]);
    // To cancel makes room too.
    let id = bench.submit(9, write(&name));
    bench.objecter.cancel(ids[3], bench.now);
    bench.drain();
    assert_eq!(bench.only().1.tid, 5);
    bench.objecter.cancel(id, bench.now);
    // A large one goes alone, however large.
    let mut bench = Bench::with(Options { max_in_flight_bytes: 5000, ..Options::default() });
    (0..3).for_each(|token| bench.put(token, read(&name)));
    for _ in 0..3 {
        let (osd, op) = bench.only();
        bench.reply(osd, &op, 0);
    }
    assert_eq!(bench.done().len(), 3);
}

#[test]
fn time_ends_requests_if_asked() {
    let mut bench = Bench::with(Options { timeout_ms: 3000, ..Options::default() });
    let name = object("a");
    bench.submit(1, write(&name));
    bench.advance(1000);
    bench.submit(2, write(&name));
    let sent = bench.take();
    bench.reply(sent[0].0, &sent[0].1, 0);
    assert_eq!(bench.done(), [(1, Ok(0))]);
    bench.advance(2999);
    assert_eq!(bench.done(), []);
    bench.advance(1);
    assert_eq!(bench.done(), [(2, Err(Errno::ETIMEDOUT))]);
    bench.reply(sent[1].0, &sent[1].1, 0);
    assert_eq!((bench.done(), bench.objecter.deadline()), (vec![], None));
}

#[test]
fn a_write_whose_time_is_over_stays_before_later_requests() {
    let mut bench =
        Bench::with(Options { timeout_ms: 3000, max_in_flight: 2, ..Options::default() });
    let name = object("a");
    bench.submit(1, write(&name));
    let (osd, first) = bench.only();
    bench.advance(3000);
    assert_eq!(bench.done(), [(1, Err(Errno::ETIMEDOUT))]);
    assert_eq!((bench.objecter.late_count(), bench.objecter.unanswered()), (1, 1));
    // It counts as in flight.
    (2..4).for_each(|token| bench.put(token, write(&name)));
    let second = bench.only().1;
    // The session breaks: both are sent again, the older one first.
    bench.close(osd);
    let again = bench.take();
    let tids: Vec<u64> = again.iter().map(|(_, op)| op.tid).collect();
    assert_eq!(tids, [first.tid, second.tid]);
    assert!(again.iter().all(|(_, op)| op.attempt == 1));
    bench.reply(osd, &again[0].1, 0);
    assert_eq!(bench.objecter.late_count(), 0);
    assert_eq!(bench.done(), []);
    bench.reply(osd, &again[1].1, 0);
    let (osd, third) = bench.only();
    bench.reply(osd, &third, 0);
    assert_eq!(bench.done(), [(2, Ok(0)), (3, Ok(0))]);
    assert_eq!(bench.objecter.deadline(), None);
}

#[test]
fn only_writes_that_an_osd_may_have_are_late() {
    let mut bench = Bench::with(Options { timeout_ms: 3000, ..Options::default() });
    bench.connects = false;
    bench.submit(1, write(&object("a")));
    bench.advance(3000);
    assert_eq!(bench.done(), [(1, Err(Errno::ETIMEDOUT))]);
    assert_eq!((bench.objecter.late_count(), bench.objecter.unanswered()), (0, 0));
    let mut bench = Bench::with(Options { timeout_ms: 3000, ..Options::default() });
    bench.submit(1, read(&object("a")));
    bench.advance(3000);
    assert_eq!(bench.done(), [(1, Err(Errno::ETIMEDOUT))]);
    assert_eq!((bench.objecter.late_count(), bench.objecter.unanswered()), (0, 0));
    bench.take();
    // One that the OSD refuses gets no new number: it would come behind later writes.
    let elsewhere =
        Redirect { pool: super::CODED, namespace: "".into(), key: "".into(), object: "b".into() };
    for (result, redirect) in [(-11, None), (0, Some(elsewhere))] {
        bench.submit(2, write(&object("a")));
        let (osd, op) = bench.only();
        bench.advance(3000);
        assert_eq!(bench.done(), [(2, Err(Errno::ETIMEDOUT))]);
        let reply = super::OsdOpReply { redirect, ..answer(&op, result) };
        bench.objecter.reply(osd, op.tid, reply, bench.now);
        bench.drain();
        assert!(bench.sent.is_empty() && bench.objecter.unanswered() == 0);
        assert_eq!((bench.objecter.late_count(), bench.done()), (0, vec![]));
    }
    // A client that is shut out has none.
    bench.submit(3, write(&object("a")));
    bench.advance(3000);
    bench.objecter.shut_out(Errno::ESHUTDOWN);
    bench.drain();
    assert_eq!(bench.objecter.late_count(), 0);
    assert_eq!(bench.done(), [(3, Err(Errno::ETIMEDOUT))]);
}

#[test]
fn a_write_that_waited_for_room_until_its_time_was_over_is_not_sent() {
    let mut bench =
        Bench::with(Options { timeout_ms: 3000, max_in_flight: 1, ..Options::default() });
    bench.submit(1, read(&object("a")));
    bench.put(2, write(&object("b")));
    bench.advance(1);
    bench.put(3, write(&object("c")));
    bench.take();
    bench.advance(2999);
    // The third has its last millisecond, and the room.
    assert_eq!(bench.done(), [1, 2].map(|token| (token, Err(Errno::ETIMEDOUT))));
    assert_eq!((bench.objecter.late_count(), &*bench.only().1.object.name), (0, "c"));
}

#[test]
fn long_waits_probe_the_connection() {
    let mut bench = Bench::new();
    bench.submit(1, write(&object("a")));
    let (osd, _) = bench.only();
    bench.advance(9000);
    assert!(!bench.other.contains(&Action::Probe(osd)));
    bench.advance(7000);
    assert!(bench.other.contains(&Action::Probe(osd)));
    assert!(bench.asks_for_map());
}

#[test]
fn a_client_that_is_shut_out_gets_one_answer_to_everything() {
    let mut bench = Bench::with(Options { max_in_flight: 3, ..Options::default() });
    (0..5).for_each(|token| bench.put(token, write(&object(&format!("o{token}")))));
    let (osd, op) = bench.take().remove(1);
    bench.reply(osd, &op, -108);
    let all: Vec<_> = (0..5).map(|token| (token, Err(Errno::ESHUTDOWN))).collect();
    assert_eq!(bench.done(), all);
    bench.submit(9, write(&object("a")));
    assert_eq!(bench.done(), [(9, Err(Errno::ESHUTDOWN))]);
    assert_eq!(bench.objecter.unanswered(), 0);
}

#[test]
fn a_barrier_holds_requests_until_the_map_is_new_enough() {
    let mut bench = Bench::new();
    bench.objecter.wait_for_epoch(3);
    bench.submit(1, read(&object("a")));
    assert!(bench.asks_for_map());
    bench.change(|_| ());
    assert!(bench.sent.is_empty() && bench.asks_for_map());
    bench.change(|_| ());
    bench.only();
}

#[test]
fn a_request_for_a_group_goes_to_the_group() {
    let mut bench = Bench::new();
    let group = PgId { pool: super::POOL, seed: 3 };
    let mut ops = ObjectOps::new();
    ops.list_group(100, &bytes::Bytes::new());
    bench.objecter.submit_to_group(Token(1), group, "space", ops, Nanos(0));
    bench.drain();
    let (_, op) = bench.only();
    assert_eq!((op.target.pg, op.hash), (group, 3));
    assert_eq!((&*op.object.name, &*op.object.namespace), ("", "space"));
    assert_eq!(op.flags & flag::PGOP, flag::PGOP);
    bench.submit(2, crate::cluster::Operation::new(object("a"), ObjectOps::new()));
    assert_eq!(bench.done(), [(2, Err(Errno::EINVAL))]);
}

#[test]
fn idle_sessions_are_closed_when_there_are_many() {
    let mut bench = Bench::with(Options { max_sessions: 1, ..Options::default() });
    let first = object("a");
    let other = (0..).map(|n| object(&format!("o{n}")));
    let other = other.into_iter().find(|o| bench.map.primary(o) != bench.map.primary(&first));
    let other = other.unwrap();
    bench.submit(1, write(&first));
    let (osd, op) = bench.only();
    bench.submit(2, write(&other));
    assert!(!bench.other.contains(&Action::Close(osd)), "it is busy");
    bench.reply(osd, &op, 0);
    let (second, op) = bench.only();
    bench.reply(second, &op, 0);
    bench.submit(3, write(&object("a")));
    bench.take();
    let spare = (0..).map(|n| object(&format!("p{n}")));
    let spare = spare.into_iter().find(|o| ![osd, second].contains(&bench.map.primary(o))).unwrap();
    bench.submit(4, write(&spare));
    assert!(bench.other.contains(&Action::Close(second)));
}
