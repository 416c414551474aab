//! Mailboxes between threads.

use std::time::Duration;

use fieldstone_block::Nanos;
use fieldstone_uring::{Payload, Reactor, SendError, Token};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{PATIENCE, reactor};

const MAIL: Token = Token(77);

/// Waits for mail. Fails instead of hanging if a wake-up was lost.
fn wait_for_mail(reactor: &mut Reactor) {
    let mut events = Vec::new();
    let deadline = reactor.fresh_now().plus(PATIENCE);
    while events.is_empty() {
        reactor.turn_until(&mut events, deadline).expect("the ring works");
        assert!(!events.is_empty() || reactor.now() < deadline, "a wake-up was lost");
    }
    assert!(events.iter().all(|event| event.token == MAIL));
    assert!(events.iter().all(|event| matches!(event.payload, Payload::Mail)));
}

/// Sleeps, yields or goes on, so that both sides meet in every state.
fn dawdle(random: &mut ChaCha8Rng) {
    match random.random_range(0..1000) {
        0..4 => std::thread::sleep(Duration::from_micros(random.random_range(1..300))),
        4..40 => std::thread::yield_now(),
        _ => {}
    }
}

#[test]
fn no_message_and_no_wake_up_is_lost_among_three_senders() {
    const PER_SENDER: u64 = 50_000;
    let mut reactor = reactor(4);
    let (sender, mailbox) = reactor.mailbox::<(u64, u64)>(100, MAIL).expect("descriptors");
    let threads: Vec<_> = (0..3)
        .map(|who| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut random = ChaCha8Rng::seed_from_u64(who);
                for number in 0..PER_SENDER {
                    let mut message = (who, number);
                    while let Err(SendError::Full(back)) = sender.send(message) {
                        message = back;
                        std::thread::yield_now();
                    }
                    dawdle(&mut random);
                }
            })
        })
        .collect();
    let mut random = ChaCha8Rng::seed_from_u64(9);
    let mut next = [0; 3];
    let mut batch = Vec::new();
    while next.iter().sum::<u64>() < 3 * PER_SENDER {
        wait_for_mail(&mut reactor);
        mailbox.drain(&mut batch);
        assert!(!batch.is_empty() && batch.len() <= 100);
        for (who, number) in batch.drain(..) {
            assert_eq!(number, next[who as usize], "messages of one sender keep their order");
            next[who as usize] += 1;
        }
        dawdle(&mut random);
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
    let counters = reactor.counters();
    assert!(counters.wakes > 0, "it never slept: {counters:?}");
    assert!(counters.wakes < 3 * PER_SENDER / 2, "a system call per message: {counters:?}");
}

#[test]
fn two_reactors_play_ping_pong() {
    const ROUNDS: u32 = 5_000;
    let mut reactor = reactor(4);
    let (here, mailbox) = reactor.mailbox::<u32>(1, MAIL).expect("descriptors");
    let (give, take) = std::sync::mpsc::channel();
    let echo = std::thread::spawn(move || {
        let mut reactor = crate::common::reactor(4);
        let (there, mailbox) = reactor.mailbox::<u32>(1, MAIL).expect("descriptors");
        give.send(there).expect("the test waits");
        let mut batch = Vec::new();
        for _ in 0..ROUNDS {
            wait_for_mail(&mut reactor);
            mailbox.drain(&mut batch);
            here.send(batch.pop().expect("one message") + 1).expect("room for one");
        }
    });
    let there = take.recv().expect("the echo started");
    let mut batch = Vec::new();
    for round in 0..ROUNDS {
        there.send(2 * round).expect("room for one");
        wait_for_mail(&mut reactor);
        mailbox.drain(&mut batch);
        assert_eq!(batch.pop(), Some(2 * round + 1));
    }
    echo.join().expect("no panic");
}

#[test]
fn mail_to_oneself_needs_no_system_call_and_a_dropped_mailbox_is_closed() {
    let mut reactor = reactor(4);
    let (first, first_box) = reactor.mailbox::<u8>(2, Token(1)).expect("descriptors");
    let (second, second_box) = reactor.mailbox::<&str>(2, Token(2)).expect("descriptors");
    let mut events = Vec::new();
    reactor.turn_nowait(&mut events).expect("the ring works");
    second.send("to myself").expect("room");
    let before = reactor.counters();
    assert_eq!(reactor.turn_until(&mut events, Nanos(u64::MAX)).expect("the ring works"), 1);
    assert_eq!(events[0].token, Token(2));
    assert_eq!(reactor.counters(), before);
    let mut batch = Vec::new();
    assert_eq!(second_box.drain(&mut batch), 1);
    drop(first_box);
    assert_eq!(first.send(1), Err(SendError::Closed(1)));
    drop(reactor);
    second.send("to nobody").expect("the mailbox outlives its reactor");
}
