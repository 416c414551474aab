//! Watches and notifications, one rule each.

use bytes::Bytes;
use fieldstone_crush::OsdId;

use super::super::{Action, Event, Options, Token};
use super::{Bench, TestMap, object};
use crate::cluster::{NotifyReply, WatchEvent, WatchId};
use crate::encoding::Encoder;
use crate::errno::Errno;
use crate::message::osd::{BackoffStep, NotifyKind, OsdOp, OsdOpReply, WatchNotify};
use crate::op::{OpResult, Reply, code};

/// The step and the renewal of a watch operation.
fn step(op: &OsdOp) -> (u8, u32) {
    let watch = &op.ops.ops()[0];
    assert_eq!(watch.code, code::WATCH);
    let mut renewal = [0; 4];
    renewal.copy_from_slice(&watch.fields[17..21]);
    (watch.fields[16], u32::from_le_bytes(renewal))
}

const WATCH: u8 = 3;
const RECONNECT: u8 = 5;
const PING: u8 = 7;

fn events(bench: &mut Bench) -> Vec<Event> {
    std::mem::take(&mut bench.events)
}

/// A bench with a watch that stands.
fn watching() -> (Bench, OsdId) {
    let mut bench = Bench::new();
    bench.objecter.watch(Token(1), WatchId(7), object("a"), bench.now);
    bench.drain();
    let (osd, op) = bench.only();
    assert_eq!(step(&op), (WATCH, 0));
    bench.reply(osd, &op, 0);
    assert_eq!(events(&mut bench), [Event::Watching(Token(1), Ok(()))]);
    (bench, osd)
}

fn message(kind: NotifyKind, cookie: u64, notify_id: u64, result: i32) -> WatchNotify {
    let payload = Bytes::new();
    WatchNotify { kind, cookie, version: 1, notify_id, payload, result, from: 4100 }
}

#[test]
fn a_watch_gets_notifications_and_acknowledges() {
    let (mut bench, osd) = watching();
    bench.objecter.notified(osd, message(NotifyKind::Notify, 7, 99, 0), bench.now);
    bench.objecter.notified(osd, message(NotifyKind::Notify, 8, 99, 0), bench.now);
    bench.drain();
    let event = WatchEvent::Notified { notify_id: 99, from: 4100, payload: Bytes::new() };
    assert_eq!(events(&mut bench), [Event::Watch(WatchId(7), event)]);
    bench.objecter.acknowledge(Token(2), WatchId(7), 99, b"ok", bench.now);
    bench.drain();
    let (osd, op) = bench.only();
    assert_eq!(op.ops.ops()[0].code, code::NOTIFY_ACK);
    bench.reply(osd, &op, 0);
    assert_eq!(bench.done(), [(2, Ok(0))]);
    bench.objecter.unwatch(Token(3), WatchId(7), bench.now);
    bench.drain();
    let (osd, op) = bench.only();
    assert_eq!(step(&op), (0, 0));
    bench.reply(osd, &op, 0);
    bench.objecter.unwatch(Token(4), WatchId(7), bench.now);
    bench.objecter.acknowledge(Token(5), WatchId(7), 99, b"", bench.now);
    bench.drain();
    let gone = Err(Errno::ENOTCONN);
    assert_eq!(bench.done(), [(3, Ok(0)), (4, gone), (5, gone)]);
    assert_eq!(bench.objecter.deadline(), None);
}

#[test]
fn a_notification_whose_end_never_comes_fails() {
    let mut bench = Bench::new();
    bench.objecter.notify(Token(1), object("a"), Bytes::new(), 5_000, bench.now);
    bench.drain();
    let (osd, op) = bench.only();
    bench.advance(100_000);
    assert!(events(&mut bench).is_empty(), "without a limit it waits for the OSD");
    bench.reply(osd, &op, 0);
    bench.advance(64_999);
    assert!(events(&mut bench).is_empty());
    bench.advance(1);
    assert_eq!(events(&mut bench), [Event::Notified(Token(1), Err(Errno::ETIMEDOUT))]);
    assert_eq!(bench.objecter.deadline(), None);
}

#[test]
fn a_limit_ends_what_cannot_be_registered() {
    let mut bench = Bench::with(Options { timeout_ms: 20_000, ..Options::default() });
    bench.objecter.notify(Token(1), object("a"), Bytes::new(), 5_000, bench.now);
    bench.objecter.watch(Token(2), WatchId(7), object("b"), bench.now);
    bench.drain();
    bench.advance(19_999);
    assert!(events(&mut bench).is_empty());
    bench.advance(5_001);
    let late = Err(Errno::ETIMEDOUT);
    let expected = [
        Event::Watching(Token(2), late),
        Event::Notified(Token(1), late.map(|()| NotifyReply::default())),
    ];
    assert_eq!(events(&mut bench), expected);
    // A watch that stands is not ended.
    let (mut bench, _) = watching();
    bench.advance(1_000_000);
    assert!(events(&mut bench).is_empty());
}

#[test]
fn a_watch_of_nothing_fails() {
    let mut bench = Bench::new();
    bench.objecter.watch(Token(1), WatchId(7), object("a"), bench.now);
    bench.drain();
    let (osd, op) = bench.only();
    bench.reply(osd, &op, -2);
    assert_eq!(events(&mut bench), [Event::Watching(Token(1), Err(Errno::ENOENT))]);
    bench.objecter.watch(Token(1), WatchId(1 << 63), object("a"), bench.now);
    bench.drain();
    assert_eq!(events(&mut bench), [Event::Watching(Token(1), Err(Errno::EEXIST))]);
}

#[test]
fn pings_go_out_each_third_of_the_timeout() {
    let (mut bench, osd) = watching();
    bench.advance(9_999);
    assert!(bench.take().is_empty());
    bench.advance(1);
    let (_, ping) = bench.only();
    assert_eq!(step(&ping), (PING, 0));
    // The same one again while it is not answered: the OSD may have thrown it away.
    bench.advance(10_000);
    let (_, again) = bench.only();
    assert_eq!((again.tid, again.attempt, step(&again)), (ping.tid, 1, (PING, 0)));
    bench.reply(osd, &again, 0);
    bench.advance(10_000);
    let (_, ping) = bench.only();
    // The OSD has forgotten the watch.
    bench.reply(osd, &ping, -107);
    let interrupted = WatchEvent::Interrupted(Errno::ENOTCONN);
    assert_eq!(events(&mut bench), [Event::Watch(WatchId(7), interrupted)]);
    let (_, again) = bench.only();
    assert_eq!(step(&again), (WATCH, 0));
    bench.reply(osd, &again, 0);
    assert_eq!(events(&mut bench), []);
}

#[test]
fn pings_go_out_while_writes_wait() {
    let changes: [fn(&mut TestMap); 3] = [
        |map| map.pauses_writes = true,
        |map| map.is_full = true,
        |map| map.pools.get_mut(&super::POOL).unwrap().is_full = true,
    ];
    for change in changes {
        let (mut bench, osd) = watching();
        bench.change(change);
        bench.advance(10_000);
        let (_, ping) = bench.only();
        assert_eq!(step(&ping), (PING, 0));
        bench.reply(osd, &ping, 0);
        // One that the OSD holds back is not held longer by a later map.
        let mut map = bench.map.next(|_| ());
        (map.pauses_writes, map.is_full) = (false, false);
        map.pools.get_mut(&super::POOL).unwrap().is_full = false;
        bench.set_map(map);
        let block = super::rules::backoff(&bench, &object("a"), BackoffStep::Block, true);
        bench.objecter.backoff(osd, block, bench.now);
        bench.advance(10_000);
        assert!(bench.take().is_empty());
        bench.change(change);
        let lift = super::rules::backoff(&bench, &object("a"), BackoffStep::Unblock, true);
        bench.objecter.backoff(osd, lift, bench.now);
        bench.drain();
        assert_eq!(step(&bench.only().1), (PING, 0));
    }
    // OSDs do not take pings while reads are paused.
    let (mut bench, _) = watching();
    bench.change(|map| map.pauses_reads = true);
    bench.advance(10_000);
    assert!(bench.take().is_empty());
}

#[test]
fn a_ping_without_an_answer_probes_the_connection() {
    let (mut bench, osd) = watching();
    bench.advance(19_000);
    bench.only();
    assert!(!bench.other.contains(&Action::Probe(osd)));
    bench.advance(6_000);
    bench.take();
    assert!(bench.other.contains(&Action::Probe(osd)));
    assert!(bench.asks_for_map());
    // And a registration.
    bench.close(osd);
    bench.take();
    bench.other.clear();
    bench.advance(15_000);
    assert!(bench.other.contains(&Action::Probe(osd)));
}

#[test]
fn an_answer_that_cannot_be_read_ends_a_watch() {
    let (mut bench, osd) = watching();
    bench.close(osd);
    let (_, op) = bench.only();
    bench.objecter.undecodable(osd, op.tid, bench.now);
    bench.drain();
    let lost = WatchEvent::Lost(Errno::EIO);
    assert_eq!(events(&mut bench), [Event::Watch(WatchId(7), lost)]);
}

#[test]
fn new_intervals_and_sessions_renew_a_watch() {
    let (mut bench, osd) = watching();
    // A replica changes: requests stay, watches are renewed.
    let spare: Vec<u32> = (0..6).filter(|&other| other != osd.0).collect();
    bench.change(|map| map.moved(&object("a"), &[osd.0, spare[3], spare[4]]));
    let (_, op) = bench.only();
    assert_eq!(step(&op), (RECONNECT, 1));
    // Once more before the answer.
    bench.change(|map| map.moved(&object("a"), &[osd.0, spare[2], spare[4]]));
    let (_, second) = bench.only();
    assert_eq!(step(&second), (RECONNECT, 2));
    bench.reply(osd, &op, -107);
    bench.reply(osd, &second, 0);
    // The session breaks, without requests.
    bench.close(osd);
    let (_, third) = bench.only();
    assert_eq!(step(&third), (RECONNECT, 3));
    bench.reply(osd, &third, 0);
    assert_eq!(events(&mut bench), []);
    // Other epochs change nothing.
    bench.change(|_| ());
    assert!(bench.take().is_empty());
}

#[test]
fn a_watch_that_was_forgotten_is_interrupted_and_one_of_nothing_lost() {
    let (mut bench, osd) = watching();
    bench.close(osd);
    let (_, op) = bench.only();
    bench.reply(osd, &op, -107);
    let (_, op) = bench.only();
    assert_eq!(step(&op).0, WATCH);
    bench.reply(osd, &op, -2);
    let interrupted = WatchEvent::Interrupted(Errno::ENOTCONN);
    let lost = WatchEvent::Lost(Errno::ENOENT);
    assert_eq!(
        events(&mut bench),
        [interrupted, lost].map(|event| Event::Watch(WatchId(7), event))
    );
    assert_eq!(bench.objecter.deadline(), None);

    let (mut bench, osd) = watching();
    bench.objecter.notified(osd, message(NotifyKind::Disconnect, 7, 0, 0), bench.now);
    bench.objecter.notified(osd, message(NotifyKind::Disconnect, 7, 0, 0), bench.now);
    bench.drain();
    assert_eq!(events(&mut bench).len(), 1);
    assert_eq!(step(&bench.only().1).0, WATCH);
    bench.objecter.shut_out(Errno::ESHUTDOWN);
    bench.drain();
    let lost = WatchEvent::Lost(Errno::ESHUTDOWN);
    assert_eq!(events(&mut bench), [Event::Watch(WatchId(7), lost)]);

    let (mut bench, _) = watching();
    bench.change(|map| map.pools.clear());
    let lost = WatchEvent::Lost(Errno::ENXIO);
    assert_eq!(events(&mut bench), [Event::Watch(WatchId(7), lost)]);
}

#[test]
fn a_watch_waits_for_its_group() {
    let mut bench = Bench::without_map(Options::default());
    bench.objecter.watch(Token(1), WatchId(7), object("a"), bench.now);
    bench.drain();
    let map = bench.map.clone();
    bench.set_map(map);
    let (osd, _) = bench.only();
    // Its session breaks before the answer.
    bench.close(osd);
    let (_, op) = bench.only();
    assert_eq!(step(&op), (WATCH, 0));
    bench.reply(osd, &op, 0);
    assert_eq!(events(&mut bench), [Event::Watching(Token(1), Ok(()))]);
}

fn numbered(op: &OsdOp, notify_id: u64) -> OsdOpReply {
    let data = Bytes::copy_from_slice(&notify_id.to_le_bytes());
    let ops = [OpResult { result: 0, data }].into_iter().collect();
    OsdOpReply { reply: Reply { result: 0, user_version: 1, ops }, ..super::answer(op, 0) }
}

#[test]
fn a_notification_ends_with_the_answers() {
    let mut bench = Bench::new();
    bench.objecter.notify(Token(1), object("a"), Bytes::from_static(b"hi"), 2500, bench.now);
    bench.drain();
    let (osd, op) = bench.only();
    let mut cookie = [0; 8];
    cookie.copy_from_slice(&op.ops.ops()[0].fields[..8]);
    let cookie = u64::from_le_bytes(cookie);
    bench.objecter.reply(osd, op.tid, numbered(&op, 55), bench.now);
    // Another number: of a notification before a change.
    bench.objecter.notified(osd, message(NotifyKind::Complete, cookie, 54, 0), bench.now);
    bench.drain();
    assert_eq!(events(&mut bench), []);
    // The session breaks: the OSD has forgotten the notifier.
    bench.close(osd);
    let (_, op) = bench.only();
    bench.objecter.reply(osd, op.tid, numbered(&op, 56), bench.now);
    let mut payload = Encoder::with_capacity(64);
    payload.u32(0).u32(1).u64(4101).u64(8);
    let complete = WatchNotify {
        payload: payload.finish(),
        ..message(NotifyKind::Complete, cookie, 56, -110)
    };
    bench.objecter.notified(osd, complete.clone(), bench.now);
    bench.objecter.notified(osd, complete, bench.now);
    bench.drain();
    let [Event::Notified(Token(1), Ok(NotifyReply { missed, .. }))] = &events(&mut bench)[..]
    else {
        panic!("one answer");
    };
    assert_eq!((missed[0].client, missed[0].cookie), (4101, 8));
    // No such object.
    bench.objecter.notify(Token(2), object("b"), Bytes::new(), 1, bench.now);
    bench.drain();
    let (osd, op) = bench.only();
    bench.reply(osd, &op, -2);
    assert_eq!(events(&mut bench), [Event::Notified(Token(2), Err(Errno::ENOENT))]);
}

#[test]
fn a_moved_session_opens_at_once_sends_again_and_renews_its_watches() {
    let (mut bench, osd) = watching();
    bench.submit(2, super::write(&object("a")));
    let (_, first) = bench.only();
    bench.other.clear();
    // Each of many moves opens at once: none counts as a failure.
    for attempt in 1..5 {
        bench.objecter.move_session(osd, bench.now);
        bench.drain();
        assert!(
            matches!(bench.other[..], [Action::Close(closed), Action::Open { osd: opened, .. }]
            if closed == osd && opened == osd)
        );
        bench.other.clear();
        let sent = bench.take();
        let (again, renewed): (Vec<_>, Vec<_>) =
            sent.into_iter().partition(|(_, op)| op.tid == first.tid);
        assert_eq!((again.len(), again[0].1.attempt), (1, attempt));
        assert_eq!((renewed.len(), step(&renewed[0].1)), (1, (RECONNECT, attempt as u32)));
        let (_, op) = renewed[0].clone();
        bench.reply(osd, &op, 0);
        assert!(events(&mut bench).is_empty(), "the watch has missed nothing");
    }
    bench.reply(osd, &first, 0);
    assert_eq!(bench.done(), [], "an answer to an older attempt");
    // A session that is not ready does not move.
    bench.connects = false;
    bench.close(osd);
    bench.other.clear();
    bench.objecter.move_session(osd, bench.now);
    bench.drain();
    assert!(bench.other.is_empty(), "{:?}", bench.other);
}
