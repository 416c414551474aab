//! Bounds and back-pressure, and the place of received bytes.

use std::sync::Arc;

use fieldstone_block::{Completion, Op, Payload, Piece, Request, Stage};
use fieldstone_buf::Budget;
use fieldstone_nbd::wire::cmd;
use fieldstone_nbd::{LARGE_WRITE_BYTES, Limits, Session, SessionPhase};
use smallvec::smallvec;

use crate::support::{
    NOW, export, exports, feed, go_data, haggling, option, request, take, transmitting,
};

fn session(limits: Limits) -> Session {
    transmitting(exports(vec![export("disk", 1 << 40)]), true, limits)
}

fn complete(session: &mut Session, request: &Request) {
    let result = Ok(match request.op {
        Op::Read => Payload::Data(smallvec![Piece::Zeroes(request.len_bytes)]),
        _ => Payload::None,
    });
    session.complete(Completion::of(request, result));
}

fn write(offset: u64, len: u32, fill: u8) -> Vec<u8> {
    [request(0, cmd::WRITE, offset, offset, len), vec![fill; len as usize]].concat()
}

/// Puts as many of `bytes` into the space as fit. Returns their number.
fn receive(session: &mut Session, bytes: &[u8]) -> usize {
    let space = session.receive_space();
    let len = space.len().min(bytes.len());
    space[..len].copy_from_slice(&bytes[..len]);
    session.received(len, NOW);
    len
}

#[test]
fn requests_in_flight_are_bounded() {
    let mut session = session(Limits { max_in_flight: 3, ..Limits::default() });
    let five: Vec<u8> = (0..5).flat_map(|at| request(0, cmd::READ, at, at * 512, 512)).collect();
    let first = feed(&mut session, &five);
    assert_eq!((first.len(), session.in_flight()), (3, 3));
    assert!(!session.wants_input());
    complete(&mut session, &first[1]);
    let fourth = session.next_request().unwrap().1;
    assert_eq!(fourth.offset_bytes, 3 * 512);
    assert!(!first.iter().any(|request| request.id == fourth.id), "ids are never reused");
    assert!(session.next_request().is_none() && !session.wants_input());
    complete(&mut session, &first[0]);
    complete(&mut session, &first[2]);
    assert_eq!(session.next_request().unwrap().1.offset_bytes, 4 * 512);
    assert!(session.next_request().is_none() && session.wants_input());
    assert_eq!(session.in_flight(), 2);
}

#[test]
fn payload_memory_is_bounded_but_one_request_always_passes() {
    let mut session = session(Limits { max_memory_bytes: 100_000, ..Limits::default() });
    let reads: Vec<u8> = (0..4).flat_map(|at| request(0, cmd::READ, at, 0, 60_000)).collect();
    let one = feed(&mut session, &reads);
    assert_eq!(one.len(), 1, "a second one would make 120 kB");
    complete(&mut session, &one[0]);
    assert!(session.memory_bytes() < 100, "a hole is short on the wire");
    assert_eq!(session.next_request().unwrap().1.len_bytes, 60_000);

    let mut session = self::session(Limits { max_memory_bytes: 0, ..Limits::default() });
    let both = [write(0, 40_000, 1), write(0, 40_000, 2)].concat();
    let first = feed(&mut session, &both);
    assert_eq!(first.len(), 1);
    complete(&mut session, &first[0]);
    assert!(session.next_request().is_none(), "the reply is still queued");
    take(&mut session);
    assert_eq!(session.next_request().unwrap().1.data[..], [2; 40_000]);
}

#[test]
fn queued_replies_are_bounded() {
    let mut session = session(Limits { max_output_bytes: 100, ..Limits::default() });
    let flood: Vec<u8> = (0..50).flat_map(|at| request(0, 99, at, 0, 0)).collect();
    assert!(feed(&mut session, &flood).is_empty());
    let mut sent = 0;
    while session.memory_bytes() > 0 {
        assert!(session.memory_bytes() < 200 && (sent > 400 || !session.wants_input()));
        sent += take(&mut session).len();
        assert!(session.next_request().is_none());
    }
    assert_eq!(sent, 50 * (26 + "unknown command".len()));
    assert!(session.wants_input());
}

#[test]
fn a_flood_of_lists_that_nobody_reads_waits() {
    let list = exports((0..100).map(|at| export(&format!("export-{at}"), 512)).collect());
    let mut session = haggling(list, Limits { max_output_bytes: 10_000, ..Limits::default() });
    let flood: Vec<u8> = (0..100).flat_map(|_| option(3, &[])).collect();
    feed(&mut session, &flood);
    assert!(!session.wants_input());
    let mut lists = 0;
    while session.memory_bytes() > 0 {
        assert!(session.memory_bytes() < 20_000);
        lists += take(&mut session).windows(3).filter(|at| at == b"-99").count();
        session.next_request();
    }
    assert_eq!(lists, 200, "name and description of every list");
    assert_eq!(session.phase(), SessionPhase::Negotiating);
}

#[test]
fn large_writes_are_received_in_place() {
    let mut session = session(Limits::default());
    let len = 1 << 20;
    assert_eq!(receive(&mut session, &request(0, cmd::WRITE, 1, 0, len)), 28);
    assert!(session.next_request().is_none());
    let space = session.receive_space();
    assert_eq!(space.len(), len as usize);
    let address = space.as_ptr().addr();
    assert_eq!(receive(&mut session, &vec![7; 300_000]), 300_000);
    assert!(session.next_request().is_none());
    assert_eq!(session.receive_space().as_ptr().addr(), address + 300_000);
    receive(&mut session, &vec![8; len as usize]);
    let (_, first) = session.next_request().unwrap();
    assert_eq!(first.data.as_ptr().addr(), address, "the payload must not have been copied");
    assert_eq!(first.stamps.at(Stage::Received), NOW);
    assert!(first.data[..300_000].iter().all(|byte| *byte == 7));
    assert!(first.data[300_000..].iter().all(|byte| *byte == 8));

    // The session receives the next header alone, so that its payload goes in place from its first
    // byte.
    assert_eq!(session.receive_space().len(), 28);
    let second = write(0, len, 9);
    let mut at = receive(&mut session, &second);
    assert_eq!(at, 28);
    assert!(session.next_request().is_none());
    let address = session.receive_space().as_ptr().addr();
    at += receive(&mut session, &second[at..]);
    assert_eq!(at, second.len());
    assert_eq!(session.next_request().unwrap().1.data.as_ptr().addr(), address);

    // Another request widens the space again.
    receive(&mut session, &request(0, cmd::FLUSH, 1, 0, 0));
    assert_eq!(session.next_request().unwrap().1.op, Op::Flush);
    assert!(session.receive_space().len() > 100_000);
}

#[test]
fn large_and_small_writes_mixed_in_one_receive() {
    let sizes = [1, LARGE_WRITE_BYTES - 1, LARGE_WRITE_BYTES, LARGE_WRITE_BYTES + 1, 512];
    let mut session = session(Limits::default());
    let stream: Vec<u8> =
        sizes.iter().zip(1u8..).flat_map(|(len, fill)| write(fill.into(), *len, fill)).collect();
    let requests = feed(&mut session, &stream);
    assert_eq!(requests.len(), sizes.len());
    for (request, len) in requests.iter().zip(sizes) {
        assert_eq!(request.len_bytes, len);
        assert_eq!(request.data.len(), len as usize);
        let fill = u8::try_from(request.offset_bytes).unwrap();
        assert!(request.data.iter().all(|byte| *byte == fill));
        assert_eq!(request.data.as_ptr().addr() % 4096, 0);
    }
}

#[test]
fn the_receive_space_stays_while_a_receive_is_under_way() {
    let mut session = session(Limits { max_in_flight: 2, ..Limits::default() });
    // The buffer holds four requests, two of them undecoded, and the beginning of the fifth, a
    // large write.
    let mut stream: Vec<u8> =
        (0..4).flat_map(|at| request(0, cmd::READ, at, at * 512, 512)).collect();
    let large = write(4096, 50_000, 3);
    stream.extend(&large[..28 + 1000]);
    assert_eq!(receive(&mut session, &stream), stream.len());
    let mut requests = Vec::new();
    while let Some((_, request)) = session.next_request() {
        requests.push(request);
    }
    assert_eq!(requests.len(), 2);

    // A receive is under way from here on.
    let space = session.receive_space();
    let (address, space_len) = (space.as_ptr().addr(), space.len());
    for step in 0..4 {
        complete(&mut session, &requests[step]);
        while let Some((_, request)) = session.next_request() {
            requests.push(request);
        }
        take(&mut session);
        let space = session.receive_space();
        assert_eq!((space.as_ptr().addr(), space.len()), (address, space_len));
    }
    let mut moved = Box::new(session);
    assert_eq!(moved.receive_space().as_ptr().addr(), address, "moving the session is harmless");

    // The receive brings the rest of the payload. The payload's buffer exists by now, so the rest
    // must be moved there.
    assert_eq!(receive(&mut moved, &large[1028..]), large.len() - 1028);
    let (_, request) = moved.next_request().unwrap();
    assert_eq!(request.data, large[28..]);
}

#[test]
fn limits_that_cannot_work_are_corrected() {
    let nothing = Limits {
        max_in_flight: 0,
        max_memory_bytes: 0,
        max_output_bytes: 0,
        max_extents: 0,
        receive_bytes: 0,
        ..Limits::default()
    };
    let mut session = session(nothing);
    for _ in 0..100 {
        let [request] = &feed(&mut session, &write(0, LARGE_WRITE_BYTES - 1, 1))[..] else {
            panic!("the session hangs");
        };
        complete(&mut session, request);
        assert_eq!(take(&mut session).len(), 16);
    }
}

/// A session with an export and a share of this budget.
fn sharing(budget: &Arc<Budget>) -> Session {
    let session = Session::new(exports(vec![export("disk", 1 << 40)]), Limits::default());
    let mut session = session.with_budget(budget);
    assert_eq!(take(&mut session).len(), 18);
    feed(&mut session, &[0, 0, 0, 3]);
    feed(&mut session, &option(7, &go_data("disk", &[])));
    assert!(matches!(session.phase(), SessionPhase::Transmission(_)));
    take(&mut session);
    session.sent();
    session
}

fn header(len: u32) -> Vec<u8> {
    request(0, cmd::WRITE, 0, 0, len).to_vec()
}

#[test]
fn a_long_header_takes_no_memory_before_its_payload_comes() {
    let budget = Budget::new(64 << 20);
    let mut sessions: Vec<Session> = (0..60).map(|_| sharing(&budget)).collect();
    for session in &mut sessions {
        feed(session, &header(32 << 20));
        feed(session, &[1; 4096]);
        assert!(session.wants_input() && !session.holds_room());
    }
    assert_eq!(budget.used_bytes(), 0);
    // After its first bytes the session holds memory for the whole payload.
    feed(&mut sessions[0], &[1; LARGE_WRITE_BYTES as usize]);
    assert!(sessions[0].holds_room() && sessions[0].awaits_payload());
    assert_eq!(budget.used_bytes(), 32 << 20);
    feed(&mut sessions[1], &[1; LARGE_WRITE_BYTES as usize]);
    feed(&mut sessions[2], &[1; LARGE_WRITE_BYTES as usize]);
    assert!(sessions[2].waits_for_room() && !sessions[2].wants_input() && budget.is_wanted());

    // Short requests pass. Long ones wait until a session is gone.
    let mut honest = sharing(&budget);
    assert_eq!(feed(&mut honest, &write(0, 128 << 10, 7)).len(), 1);
    let before = budget.returns();
    sessions.remove(0);
    assert_ne!(budget.returns(), before);
    assert!(sessions[1].next_request().is_none() && sessions[1].holds_room());
    assert!(!budget.is_wanted());
    drop(sessions);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn a_session_has_its_share_and_gives_it_back_as_replies_are_taken() {
    let budget = Budget::new(64 << 20);
    let mut session = sharing(&budget);
    let reads: Vec<u8> = (0..20).flat_map(|at| request(0, cmd::READ, at, 0, 4 << 20)).collect();
    let first = feed(&mut session, &reads);
    assert_eq!(first.len(), 4, "a quarter of the budget");
    assert!(!session.waits_for_room(), "it waits for itself, and keeps nobody from growing");
    for request in &first {
        let data = Payload::Data(smallvec![Piece::Data(vec![5; 4 << 20].into())]);
        let result = Ok(data);
        session.complete(Completion::of(request, result));
    }
    assert!(session.next_request().is_none());
    assert!(take(&mut session).len() > 16 << 20);
    assert!(session.next_request().is_none(), "taken, but not sent");
    assert!(budget.used_bytes() >= 15 << 20);
    session.sent();
    assert_eq!(session.next_request().unwrap().1.len_bytes, 4 << 20);
    session.disconnect();
    drop(session);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn what_can_never_fit_is_refused() {
    let budget = Budget::new(16 << 20);
    let mut session = sharing(&budget);
    assert!(feed(&mut session, &request(0, cmd::READ, 9, 0, 32 << 20)).is_empty());
    let reply = take(&mut session);
    assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 12], "ENOMEM");
    session.sent();
    assert_eq!(feed(&mut session, &request(0, cmd::READ, 9, 0, 16 << 20)).len(), 1);
}
