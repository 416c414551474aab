//! The client against model monitors with a virtual clock.

mod model;

use super::*;
use crate::encoding::EntityAddress;
use crate::message::monitor::MonitorInfo;
use model::{FSID, World, addresses_of, map_of};

const MS: u64 = 1_000_000;

fn options() -> Options {
    Options { hostname: "host".into(), seed: 7, ..Options::default() }
}

fn client(count: usize) -> Monitors {
    Monitors::new((0..count).map(addresses_of).collect(), options(), Nanos(0))
}

fn actions(monitors: &mut Monitors) -> Vec<Action> {
    std::iter::from_fn(|| monitors.poll_action()).collect()
}

fn events(monitors: &mut Monitors) -> Vec<Event> {
    std::iter::from_fn(|| monitors.poll_event()).collect()
}

fn opened(actions: &[Action]) -> Vec<(MonitorSession, Addresses)> {
    let opened = |action: &Action| match action {
        Action::Open { attempt, addresses, .. } => Some((*attempt, addresses.clone())),
        _ => None,
    };
    actions.iter().filter_map(opened).collect()
}

fn map_message(count: usize, epoch: u32) -> Message {
    MonMapMessage { map: map_of(0..count, epoch) }.encode()
}

/// A client of three monitors with a proven session; the session.
fn connected(now: Nanos) -> (Monitors, MonitorSession) {
    let mut client = client(3);
    client.tick(now);
    let first = opened(&actions(&mut client))[0].0;
    client.ready(first, now);
    client.received(first, map_message(3, 1), now);
    actions(&mut client);
    events(&mut client);
    (client, first)
}

#[test]
fn the_first_ready_attempt_wins() {
    let mut client = client(5);
    assert_eq!(client.deadline(), Some(Nanos(0)));
    client.tick(Nanos(0));
    let attempts = opened(&actions(&mut client));
    assert_eq!(attempts.len(), 3);
    assert!(client.ready(attempts[1].0, Nanos(MS)), "it is used");
    let (session, rest) = (attempts[1].0, [attempts[0].0, attempts[2].0]);
    let then = actions(&mut client);
    assert_eq!(then[..2], [Action::Close(rest[0]), Action::Close(rest[1])]);
    let Action::Send(to, subscribe) = &then[2] else { panic!("{then:?}") };
    assert_eq!((*to, then.len()), (session, 3));
    let subscribe = Subscribe::decode(subscribe).expect("a subscription");
    assert_eq!(subscribe.hostname, "host");
    assert_eq!(subscribe.what["monmap"], Subscription { start: 0, once: false });
    assert_eq!(events(&mut client), [Event::Session(session)]);
    // What comes late from the others changes nothing.
    assert!(!client.ready(rest[0], Nanos(2 * MS)));
    assert!(!client.ready(session, Nanos(2 * MS)));
    client.received(rest[0], map_message(3, 1), Nanos(2 * MS));
    client.closed(rest[1], "late", true, Nanos(2 * MS));
    assert_eq!((actions(&mut client), events(&mut client)), (vec![], vec![]));
}

#[test]
fn requests_wait_for_the_cluster_and_are_sent_again() {
    let mut client = client(3);
    let id = client.command("{}".into(), Bytes::from_static(b"in"), Nanos(0)).expect("room");
    let first = opened(&actions(&mut client))[0].0;
    client.ready(first, Nanos(0));
    assert!(!actions(&mut client).iter().any(|action| matches!(
        action,
        Action::Send(_, message) if message.kind == MessageKind::MonCommand as u16
    )));
    client.received(first, map_message(3, 1), Nanos(0));
    let sent = actions(&mut client);
    let [Action::Send(_, message)] = &sent[..] else { panic!("{sent:?}") };
    let command = wire_command(message);
    assert_eq!((command.fsid, command.tid, &command.input[..]), (FSID, id.0, &b"in"[..]));

    // The session breaks after it lasted: another monitor is asked at once.
    let later = Nanos(60_000 * MS);
    client.closed(first, "broken", false, later);
    let attempts = opened(&actions(&mut client));
    assert_eq!(attempts.len(), 2, "the lost one waits until the others have failed");
    client.ready(attempts[0].0, later);
    let sent = actions(&mut client);
    let Some(Action::Send(_, message)) = sent.last() else { panic!("{sent:?}") };
    assert_eq!(wire_command(message), command);
    let ack = CommandAck {
        tid: id.0,
        version: 0,
        result: -2,
        status: "no".into(),
        command: vec![],
        output: Bytes::from_static(b"out"),
    };
    events(&mut client);
    for _ in 0..2 {
        client.received(attempts[0].0, ack.encode(), later);
    }
    let output = Bytes::from_static(b"out");
    let reply = CommandReply { result: -2, status: "no".into(), output };
    assert_eq!(events(&mut client), [Event::CommandReply { id, reply }]);
    assert_eq!(client.pending(), 0);
}

fn wire_command(message: &Message) -> crate::message::monitor::Command {
    crate::message::monitor::Command::decode(message).expect("a command")
}

#[test]
fn a_monitor_that_does_not_answer_is_left() {
    let mut client = client(3);
    client.tick(Nanos(0));
    let hung = opened(&actions(&mut client))[0].clone();
    client.ready(hung.0, Nanos(0));
    actions(&mut client);
    let by = client.deadline().expect("a deadline");
    assert_eq!(by, Nanos(10_000 * MS));
    client.tick(by);
    let then = actions(&mut client);
    assert_eq!(then[0], Action::Close(hung.0));
    let attempts = opened(&then);
    assert!(attempts.len() == 2 && attempts.iter().all(|(_, at)| *at != hung.1), "{attempts:?}");
    let lost = Event::SessionLost(hung.0, Lost::NoSubscription);
    assert!(events(&mut client).contains(&lost));

    // A proven session that does not answer a request is left too.
    let (mut client, session) = connected(Nanos(0));
    client.get_version("osdmap", Nanos(0)).expect("room");
    client.tick(Nanos(60_000 * MS));
    assert_eq!(events(&mut client), [Event::SessionLost(session, Lost::NoAnswer)]);
}

#[test]
fn a_session_that_does_not_renew_tickets_is_left() {
    let (mut client, session) = connected(Nanos(0));
    let id = client.get_version("osdmap", Nanos(0)).expect("room");
    actions(&mut client);
    let later = Nanos(60_000 * MS - 1);
    let lost = Lost::RenewalRefused("EACCES".into());
    client.leave(lost.clone(), later);
    assert_eq!(events(&mut client), [Event::SessionLost(session, lost.clone())]);
    let then = actions(&mut client);
    assert_eq!(then[0], Action::Close(session));
    let attempts = opened(&then);
    assert_eq!(attempts.len(), 2, "the others are tried first");
    // Nothing to leave.
    client.leave(lost, later);
    assert_eq!((actions(&mut client), events(&mut client)), (vec![], vec![]));
    client.ready(attempts[0].0, later);
    assert!(matches!(actions(&mut client).last(), Some(Action::Send(..))));
    assert_eq!((client.session(), client.pending()), (Some(attempts[0].0), 1));
    assert!(client.cancel(id, later));

    // The only monitor is tried again, but not in a loop without a pause.
    let mut client = self::client(1);
    let (mut now, mut opens) = (Nanos(0), 0);
    while now < Nanos(60_000 * MS) {
        client.tick(now);
        for (session, _) in opened(&actions(&mut client)) {
            opens += 1;
            client.ready(session, now);
            client.received(session, map_message(1, 1), now);
            client.leave(Lost::RenewalRefused("EACCES".into()), now);
        }
        now = client.deadline().expect("a deadline");
    }
    assert!((5..=21).contains(&opens), "{opens}");
}

#[test]
fn refusal_by_all_is_final() {
    let mut client = client(3);
    let id = client.get_version("osdmap", Nanos(0)).expect("room");
    let attempts = opened(&actions(&mut client));
    client.closed(attempts[0].0, "no such key", true, Nanos(0));
    client.closed(attempts[1].0, "cannot be reached", false, Nanos(0));
    client.closed(attempts[2].0, "no such key", true, Nanos(0));
    assert_eq!(events(&mut client), []);
    let again = client.deadline().expect("a deadline");
    assert_eq!(again, Nanos(3_000 * MS));
    client.tick(again);
    let unreachable = attempts[1].1.clone();
    let attempts = opened(&actions(&mut client));
    let last = attempts.iter().find(|(_, at)| *at == unreachable).expect("it is tried again");
    client.closed(last.0, "no such key", true, again);
    let failed = Event::Failed { id, errno: Errno::EACCES };
    let refused = Event::Trouble(Trouble::Refused("no such key".into()));
    assert_eq!(events(&mut client), [failed, refused]);
    assert_eq!(actions(&mut client).len(), 2, "the other attempts are closed");
    assert_eq!(client.deadline(), None);
    assert_eq!(client.get_version("osdmap", again), Err(Errno::EACCES));
}

#[test]
fn trouble_is_told_once_and_the_interval_grows() {
    let mut client = client(1);
    let (mut now, mut opens, mut told) = (Nanos(0), vec![], 0);
    while now < Nanos(120_000 * MS) {
        client.tick(now);
        for (session, _) in opened(&actions(&mut client)) {
            opens.push(now.0 / MS);
            client.closed(session, "connection refused", false, now);
        }
        told += events(&mut client).len();
        now = client.deadline().expect("a deadline");
    }
    assert_eq!(told, 1);
    assert_eq!(opens[..5], [0, 3_000, 7_500, 14_250, 24_375]);
    assert_eq!(opens.last(), Some(&92_343), "at most 30 s apart: {opens:?}");
}

#[test]
fn requests_fail_after_their_time() {
    let options = Options { request_timeout: Nanos(5_000 * MS), ..options() };
    let mut client = Monitors::new(vec![], options, Nanos(0));
    let one = client.statfs(None, Nanos(0)).expect("room");
    let two = client.statfs(Some(PoolId(3)), Nanos(MS)).expect("room");
    let three = client.create_snap(PoolId(3), Nanos(MS)).expect("room");
    assert!(client.cancel(two, Nanos(MS)) && !client.cancel(two, Nanos(MS)));
    client.tick(Nanos(5_000 * MS));
    let failed = |id| Event::Failed { id, errno: Errno::ETIMEDOUT };
    assert_eq!(events(&mut client), [failed(one)]);
    client.tick(Nanos(5_001 * MS));
    assert_eq!(events(&mut client), [failed(three)]);
}

#[test]
fn requests_are_bounded() {
    let (mut client, session) = connected(Nanos(0));
    for _ in 0..REQUESTS_MAX {
        client.get_version("osdmap", Nanos(0)).expect("room");
    }
    assert_eq!(client.get_version("osdmap", Nanos(0)), Err(Errno::EBUSY));
    let sent = actions(&mut client);
    assert_eq!(sent.len(), IN_FLIGHT);
    let reply = GetVersionReply { id: 1, newest: 9, oldest: 2 };
    client.received(session, reply.encode(), Nanos(0));
    let version = Event::Version { id: RequestId(1), newest: 9, oldest: 2 };
    assert_eq!(events(&mut client), [version]);
    assert_eq!(actions(&mut client).len(), 1, "the next one is sent");
}

#[test]
fn subscriptions_go_on_behind_the_newest_map() {
    let (mut client, session) = connected(Nanos(0));
    client.subscribe_osdmap(0, true);
    client.subscribe_osdmap(0, true);
    let osdmap = |actions: &[Action]| -> Vec<Option<Subscription>> {
        let subscribe = |action: &Action| match action {
            Action::Send(_, message) => Subscribe::decode(message).ok(),
            _ => None,
        };
        let what = |subscribe: Subscribe| subscribe.what.get("osdmap").copied();
        actions.iter().filter_map(subscribe).map(what).collect()
    };
    let all = |start| Some(Subscription { start, once: false });
    assert_eq!(osdmap(&actions(&mut client)), [all(0)]);
    client.have_osdmap(41);
    client.have_osdmap(40);
    let later = Nanos(60_000 * MS);
    client.closed(session, "broken", false, later);
    let session = opened(&actions(&mut client))[0].0;
    client.ready(session, later);
    assert_eq!(osdmap(&actions(&mut client)), [all(42)]);
    // One answer: until it has come.
    client.subscribe_osdmap(45, false);
    assert_eq!(osdmap(&actions(&mut client)), [Some(Subscription { start: 45, once: true })]);
    client.have_osdmap(45);
    client.closed(session, "broken", false, Nanos(120_000 * MS));
    let session = opened(&actions(&mut client))[0].0;
    client.ready(session, Nanos(120_000 * MS));
    assert_eq!(osdmap(&actions(&mut client)), [None]);
}

#[test]
fn the_list_of_monitors_is_followed() {
    let (mut client, session) = connected(Nanos(0));
    let at = client.in_use(session).expect("in use");
    // A list without the monitor in use.
    let mut map = map_of(0..4, 2);
    map.monitors.retain(|_, info| info.addresses != at);
    map.ranks.retain(|name| map.monitors.contains_key(name));
    client.received(session, MonMapMessage { map: map.clone() }.encode(), Nanos(60_000 * MS));
    let told = events(&mut client);
    assert_eq!(told, [Event::MonMap(map), Event::SessionLost(session, Lost::Removed)]);
    let then = actions(&mut client);
    assert_eq!(then[0], Action::Close(session));
    let attempts = opened(&then);
    assert!(attempts.len() == 3 && attempts.iter().all(|(_, other)| *other != at));

    // A monitor of another cluster, and one that talks nonsense, are left.
    for (message, other) in [(MonMapMessage { map: MonMap::default() }.encode(), true), {
        let nonsense = Message::new(MessageKind::MonMap, 1, 0, Bytes::from_static(b"nonsense"));
        (nonsense, false)
    }] {
        let (mut client, session) = connected(Nanos(0));
        client.received(session, message, Nanos(MS));
        let told = events(&mut client);
        let [Event::SessionLost(lost, why)] = &told[..] else { panic!("{told:?}") };
        assert_eq!((*lost, *why == Lost::OtherCluster), (session, other));
    }
}

#[test]
fn a_configured_address_may_differ_from_the_monitors_own() {
    let socket = "192.0.2.1:3300".parse().expect("an address");
    let outside = Addresses(vec![EntityAddress::msgr2(socket, 0)]);
    let mut client = Monitors::new(vec![outside.clone(), outside], options(), Nanos(0));
    client.tick(Nanos(0));
    let attempts = opened(&actions(&mut client));
    assert_eq!(attempts.len(), 1, "the same address counts once");
    client.ready(attempts[0].0, Nanos(0));
    client.received(attempts[0].0, map_message(3, 1), Nanos(0));
    assert_eq!(client.session(), Some(attempts[0].0));
}

#[test]
fn preferred_monitors_are_tried_first() {
    let (mut client, session) = connected(Nanos(0));
    let mut map = map_of(0..5, 2);
    for (index, info) in map.monitors.values_mut().enumerate() {
        *info = MonitorInfo { priority: if index == 4 { 0 } else { 9 }, ..info.clone() };
    }
    client.received(session, MonMapMessage { map }.encode(), Nanos(0));
    let later = Nanos(60_000 * MS);
    client.closed(session, "broken", false, later);
    let attempts = opened(&actions(&mut client));
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0].1, addresses_of(4));
    client.closed(attempts[0].0, "refused", false, later);
    assert_eq!(opened(&actions(&mut client)).len(), 3);
}

/// After all faults have ended, every request is answered within this time.
const SETTLES: Nanos = Nanos(200_000 * MS);

#[test]
fn every_request_is_answered_once_in_spite_of_faults() {
    for seed in 0..1_000 {
        World::new(seed).run(Nanos(120_000 * MS), SETTLES);
    }
}
