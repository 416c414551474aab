//! Sends whose events end no wait.

use std::thread;
use std::time::Duration;

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_uring::{QUIET_MAX, Reactor, Socket, Token, Want};

use crate::common::{PATIENCE, collect, reactor};

const SEND: Token = Token(1);
const RECEIVE: Token = Token(2);

/// The tokens of the events of one turn, which does not hang.
fn turn(reactor: &mut Reactor) -> Vec<Token> {
    let deadline = reactor.fresh_now().plus(PATIENCE);
    let mut events = Vec::new();
    reactor.turn_until(&mut events, deadline).expect("the ring works");
    let mut tokens: Vec<Token> = events.iter().map(|event| event.token).collect();
    tokens.sort_unstable();
    tokens
}

fn stone() -> Vec<Bytes> {
    vec![Bytes::from_static(b"stone")]
}

#[test]
fn the_event_of_a_quiet_send_comes_with_the_next_other_one() {
    let mut reactor = reactor(8);
    let (own, peer) = Socket::pair().expect("descriptors");
    let (_sender, _mailbox) = reactor.mailbox::<u8>(1, Token(9)).expect("descriptors");
    let before = reactor.counters();
    reactor.recv(&own, AlignedBuf::zeroed(8), Want::Any, RECEIVE);
    reactor.send_quietly(&own, stone(), SEND);
    // The peer answers before the quiet send is reported by itself.
    reactor.recv(&peer, AlignedBuf::zeroed(8), Want::Any, Token(3));
    let mut events = turn(&mut reactor);
    assert!(events.contains(&Token(3)), "{events:?}");
    reactor.send_quietly(&peer, stone(), Token(4));
    while events.len() < 4 {
        events.extend(turn(&mut reactor));
    }
    events.sort_unstable();
    assert_eq!(events, [SEND, RECEIVE, Token(3), Token(4)]);
    // One call each for the request and the answer; a busy machine may need some more.
    let enters = reactor.counters().enters - before.enters;
    assert!(enters <= 6, "{enters}");
}

#[test]
fn a_quiet_send_is_reported_in_the_end() {
    let mut reactor = reactor(8);
    let (own, _peer) = Socket::pair().expect("descriptors");
    let start = reactor.fresh_now();
    reactor.send_quietly(&own, stone(), SEND);
    assert_eq!(turn(&mut reactor), [SEND]);
    assert!(reactor.now() >= start.plus(QUIET_MAX), "nothing else came");
    reactor.send_quietly(&own, stone(), SEND);
    let mut events = Vec::new();
    while events.is_empty() {
        reactor.turn_nowait(&mut events).expect("the ring works");
    }
    assert_eq!(events[0].token, SEND, "a turn that does not wait reports what there is");
}

#[test]
fn a_send_that_something_waits_for_is_heard() {
    let mut reactor = reactor(8);
    let (own, _peer) = Socket::pair().expect("descriptors");
    let mut quickest = PATIENCE;
    for _ in 0..20 {
        let start = reactor.fresh_now();
        reactor.send_quietly(&own, stone(), SEND);
        reactor.hear_sends();
        assert_eq!(turn(&mut reactor), [SEND]);
        quickest = quickest.min(reactor.now().since(start));
        // The second send waits for the first.
        let start = reactor.fresh_now();
        reactor.send_quietly(&own, stone(), SEND);
        reactor.send_quietly(&own, stone(), Token(7));
        assert_eq!(turn(&mut reactor), [SEND]);
        quickest = quickest.min(reactor.now().since(start));
        assert_eq!(turn(&mut reactor), [Token(7)]);
    }
    assert!(quickest < QUIET_MAX, "{quickest:?}");
}

/// A peer that does not read must not make the events of others late.
#[test]
fn a_quiet_send_without_room_holds_no_other_event_up() {
    let mut reactor = reactor(8);
    let mut quickest = PATIENCE;
    for _ in 0..20 {
        let (own, peer) = Socket::pair().expect("descriptors");
        own.set_send_buffer(4096).expect("a socket");
        let (other, far) = Socket::pair().expect("descriptors");
        reactor.send(&far, stone(), Token(5));
        assert_eq!(turn(&mut reactor), [Token(5)]);
        reactor.send_quietly(&own, vec![Bytes::from(vec![7; 4 << 20])], SEND);
        reactor.recv(&other, AlignedBuf::zeroed(8), Want::Any, RECEIVE);
        let start = reactor.fresh_now();
        assert_eq!(turn(&mut reactor), [RECEIVE]);
        quickest = quickest.min(reactor.now().since(start));
        drop(peer);
        reactor.close(own);
        assert_eq!(turn(&mut reactor), [SEND]);
    }
    assert!(quickest < QUIET_MAX, "{quickest:?}");
}

/// What does not fit into the socket at first is sent when the peer reads.
#[test]
fn a_quiet_send_without_room_goes_on_when_there_is_some() {
    let mut reactor = reactor(8);
    let (own, peer) = Socket::pair().expect("descriptors");
    own.set_send_buffer(4096).expect("a socket");
    reactor.send_quietly(&own, vec![Bytes::from(vec![7; 4 << 20])], SEND);
    let reader = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        let mut reactor = crate::common::reactor(8);
        reactor.recv(&peer, AlignedBuf::zeroed(4 << 20), Want::All, RECEIVE);
        collect(&mut reactor, 1).pop().expect("one").result.expect("received")
    });
    let mut events = Vec::new();
    let deadline = reactor.fresh_now().plus(PATIENCE);
    while events.is_empty() {
        reactor.turn_until(&mut events, deadline).expect("the ring works");
    }
    assert_eq!(events[0].token, SEND);
    assert_eq!(events[0].result.as_ref().expect("sent"), &(4 << 20));
    assert_eq!(reader.join().expect("no panic"), 4 << 20);
}
