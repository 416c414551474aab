//! Turns that collect results for some time.

use std::io::{PipeWriter, Write};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fieldstone_block::Nanos;
use fieldstone_buf::AlignedBuf;
use fieldstone_uring::{Caching, File, Payload, Reactor, Token};

use crate::common::{PATIENCE, reactor};

/// Starts a read of one byte from a pipe.
fn read_pipe(reactor: &mut Reactor, token: Token) -> PipeWriter {
    let (from, to) = std::io::pipe().expect("descriptors");
    let from = File::from_descriptor(from.into(), Caching::Buffered);
    reactor.read(&from, 0, AlignedBuf::zeroed(1), token);
    to
}

fn write_later(mut to: PipeWriter, delay_ms: u64) -> JoinHandle<()> {
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(delay_ms));
        to.write_all(b"x").expect("the reader lives");
    })
}

/// The tokens of the events of one turn, which does not hang.
fn turn(reactor: &mut Reactor) -> Vec<u64> {
    let deadline = reactor.fresh_now().plus(PATIENCE);
    let mut events = Vec::new();
    reactor.turn_until(&mut events, deadline).expect("the ring works");
    let mut tokens: Vec<u64> = events.iter().map(|event| event.token.0).collect();
    tokens.sort_unstable();
    tokens
}

#[test]
fn a_batch_has_what_comes_in_its_time() {
    let mut reactor = reactor(4);
    let (sender, mailbox) = reactor.mailbox::<u8>(1, Token(3)).expect("descriptors");
    let (one, two) = (read_pipe(&mut reactor, Token(1)), read_pipe(&mut reactor, Token(2)));
    let others = [write_later(one, 5), write_later(two, 40)];
    let mail = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        sender.send(7).expect("room for one");
    });
    let start = reactor.fresh_now();
    let wait = Nanos::from_ms(1_000);
    reactor.batch_for(wait);
    assert_eq!(turn(&mut reactor), [1, 2, 3]);
    assert!(reactor.now() >= start.plus(wait));
    assert_eq!(mailbox.drain(&mut Vec::new()), 1);
    let counters = reactor.counters();
    assert_eq!((counters.batches, counters.waits), (1, 1), "{counters:?}");
    others.into_iter().chain([mail]).for_each(|other| other.join().expect("no panic"));
}

#[test]
fn only_one_turn_is_a_batch_and_a_batch_of_nothing_waits_for_the_first_result() {
    let mut reactor = reactor(4);
    let (one, two) = (read_pipe(&mut reactor, Token(1)), read_pipe(&mut reactor, Token(2)));
    let others = [write_later(one, 60), write_later(two, 120)];
    reactor.batch_for(Nanos::from_ms(1));
    let mut tokens = turn(&mut reactor);
    assert!(reactor.counters().waits >= 2, "{:?}", reactor.counters());
    while tokens.len() < 2 {
        tokens.extend(turn(&mut reactor));
    }
    assert_eq!(tokens, [1, 2]);
    assert_eq!(reactor.counters().batches, 1);
    others.into_iter().for_each(|other| other.join().expect("no panic"));
}

#[test]
fn a_timer_ends_a_batch_and_work_that_is_there_begins_none() {
    let mut reactor = reactor(4);
    let start = reactor.fresh_now();
    reactor.timer(start.plus(Nanos::from_ms(5)), Token(1));
    reactor.batch_for(PATIENCE);
    let mut events = Vec::new();
    reactor.turn(&mut events).expect("the ring works");
    assert!(matches!(events[..], [ref event] if matches!(event.payload, Payload::Timer)));
    assert!(reactor.now() < start.plus(PATIENCE));
    // A refused operation is an event that needs no wait.
    let (from, _to) = std::io::pipe().expect("descriptors");
    let from = File::from_descriptor(from.into(), Caching::Buffered);
    reactor.read(&from, 0, AlignedBuf::zeroed(0), Token(2));
    reactor.batch_for(PATIENCE);
    assert_eq!(turn(&mut reactor), [2]);
    assert!(reactor.now() < start.plus(PATIENCE));
    assert_eq!(reactor.counters().batches, 1);
}
