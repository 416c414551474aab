//! Listening, connecting, receiving, sending.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_uring::{
    Address, Endpoint, Event, Listener, Payload, Reactor, Shutdown, Socket, TaskRun, Token, Want,
};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{by_token, collect, one, reactor, reactor_with};

fn socket(event: Event) -> Socket {
    event.result.expect("a connection");
    let Payload::Socket(socket) = event.payload else { panic!("no socket: {:?}", event.payload) };
    socket
}

fn received(event: Event) -> Vec<u8> {
    let count = event.result.expect("received") as usize;
    let Payload::Buffer(buffer) = event.payload else { panic!("no buffer: {:?}", event.payload) };
    buffer[..count].to_vec()
}

fn random_parts(seed: u64, count: usize, largest: usize) -> Vec<Bytes> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| {
            let mut part = vec![0; random.random_range(0..=largest)];
            random.fill_bytes(&mut part);
            Bytes::from(part)
        })
        .collect()
}

/// Accepts three connections on one address and exchanges data on each.
fn serve_and_connect(reactor: &mut Reactor, address: &Address) {
    const ACCEPT: Token = Token(u64::MAX);
    let listener = Listener::bind(address).expect("free");
    reactor.accept(&listener, ACCEPT);
    for i in 0..3 {
        let endpoint = Endpoint::resolve(listener.address()).expect("literal");
        reactor.connect(&endpoint, Token(i)).expect("descriptors");
        let mut events = by_token(collect(reactor, 2));
        let server = socket(events.remove(&ACCEPT).expect("accepted"));
        let client = socket(events.remove(&Token(i)).expect("connected"));
        reactor.recv(&server, AlignedBuf::zeroed(100), Want::Any, Token(10));
        reactor.send(&client, vec!["hello ".into(), "there".into()], Token(11));
        let mut events = by_token(collect(reactor, 2));
        assert_eq!(received(events.remove(&Token(10)).expect("reported")), b"hello there");
        assert_eq!(events.remove(&Token(11)).expect("reported").result.expect("sent"), 11);
        drop(client);
        reactor.recv(&server, AlignedBuf::zeroed(100), Want::Any, Token(12));
        assert_eq!(received(one(reactor)), b"", "the client's descriptor was closed");
    }
    assert_eq!(reactor.cancel(ACCEPT), 1);
    let event = one(reactor);
    assert_eq!(event.result.expect_err("cancelled").raw_os_error(), Some(libc::ECANCELED));
    assert_eq!(reactor.in_flight(), 0);
}

#[test]
fn unix_and_tcp_connections_on_every_rung_of_the_ladder() {
    let folder = tempfile::tempdir().expect("temp");
    let unix = Address::Unix(folder.path().join("s"));
    for task_run in [TaskRun::Deferred, TaskRun::Cooperative, TaskRun::Interrupting] {
        let mut reactor = reactor_with(8, task_run);
        serve_and_connect(&mut reactor, &unix);
        serve_and_connect(&mut reactor, &"tcp:127.0.0.1:0".parse().expect("valid"));
    }
}

#[test]
fn tcp_connections_have_no_delay_on_both_sides() {
    let mut reactor = reactor(8);
    let listener = Listener::bind(&"tcp:localhost:0".parse().expect("valid")).expect("free");
    reactor.accept(&listener, Token(1));
    let endpoint = Endpoint::resolve(listener.address()).expect("literal");
    reactor.connect(&endpoint, Token(2)).expect("descriptors");
    for event in collect(&mut reactor, 2) {
        let copy = socket(event).as_fd().try_clone_to_owned().expect("descriptors");
        assert!(TcpStream::from(copy).nodelay().expect("a TCP socket"));
    }
}

#[test]
fn connecting_to_nobody_is_refused() {
    let mut reactor = reactor(8);
    let address = TcpListener::bind("127.0.0.1:0").expect("free").local_addr().expect("bound");
    let endpoint = Endpoint::resolve(&address.into()).expect("literal");
    reactor.connect(&endpoint, Token(1)).expect("descriptors");
    let event = one(&mut reactor);
    assert_eq!(event.result.expect_err("refused").raw_os_error(), Some(libc::ECONNREFUSED));
    assert!(matches!(event.payload, Payload::None));
    let endpoint = Endpoint::resolve(&"unix:/nonexistent/s".parse().expect("valid")).expect("path");
    reactor.connect(&endpoint, Token(1)).expect("descriptors");
    let event = one(&mut reactor);
    assert_eq!(event.result.expect_err("absent").raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn sends_through_a_tiny_buffer_arrive_whole_and_in_order() {
    let (ours, theirs) = UnixStream::pair().expect("descriptors");
    let ours = Socket::new(ours.into()).expect("a socket");
    ours.set_buffers(1, 1).expect("a socket");
    let mut reactor = reactor(4);
    let batches: Vec<Vec<Bytes>> =
        (0..20).map(|i| random_parts(i, [1, 3, 2500][i as usize % 3], 300)).collect();
    let whole: Vec<u8> = batches.iter().flatten().flatten().copied().collect();
    let lens: Vec<usize> = batches.iter().map(|parts| parts.concat().len()).collect();
    let count = batches.len();
    for (i, parts) in batches.into_iter().enumerate() {
        reactor.send(&ours, parts, Token(i as u64));
    }
    let reader = std::thread::spawn(move || {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let (mut got, mut theirs) = (Vec::new(), theirs);
        let mut piece = vec![0; 20_000];
        loop {
            let len = random.random_range(1..piece.len());
            match theirs.read(&mut piece[..len]).expect("readable") {
                0 => return got,
                count => got.extend_from_slice(&piece[..count]),
            }
        }
    });
    let events = collect(&mut reactor, count);
    for (i, event) in events.into_iter().enumerate() {
        assert_eq!(event.token, Token(i as u64), "sends on a socket complete in order");
        assert_eq!(event.result.expect("sent") as usize, lens[i]);
    }
    assert!(reactor.counters().continuations > 0, "more than IOV_MAX parts");
    reactor.close(ours);
    assert_eq!(reader.join().expect("no panic"), whole);
}

#[test]
fn receiving_all_waits_for_all_and_any_for_anything() {
    let (ours, mut theirs) = UnixStream::pair().expect("descriptors");
    let ours = Socket::new(ours.into()).expect("a socket");
    let mut reactor = reactor(4);
    let writer = std::thread::spawn(move || {
        for piece in [&b"ab"[..], b"cdef", b"ghij", b"klm"] {
            theirs.write_all(piece).expect("the reader lives");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    reactor.recv(&ours, AlignedBuf::zeroed(8), Want::All, Token(1));
    assert_eq!(received(one(&mut reactor)), b"abcdefgh");
    let mut place = [0u8; 100];
    // SAFETY: `place` outlives the wait for the only event.
    unsafe { reactor.recv_raw(&ours, place.as_mut_ptr(), 100, Want::Any, Token(2)) };
    let event = one(&mut reactor);
    let count = event.result.expect("received") as usize;
    assert!((2..=5).contains(&count) && place[..count] == b"ijklm"[..count]);
    // The stream ends before all bytes arrived.
    reactor.recv(&ours, AlignedBuf::zeroed(100), Want::All, Token(3));
    assert_eq!(received(one(&mut reactor)), b"ijklm"[count..]);
    writer.join().expect("no panic");
}

#[test]
fn a_vanished_peer_is_an_error_and_no_signal() {
    let mut reactor = reactor(4);
    let (ours, theirs) = Socket::pair().expect("descriptors");
    drop(theirs);
    reactor.send(&ours, vec!["x".into(), "y".into()], Token(1));
    reactor.send(&ours, vec!["z".into()], Token(2));
    for event in collect(&mut reactor, 2) {
        assert_eq!(event.result.expect_err("gone").raw_os_error(), Some(libc::EPIPE));
    }
    // A reset: the peer closes with unread data.
    let listener = TcpListener::bind("127.0.0.1:0").expect("free");
    let theirs = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let ours = Socket::new(listener.accept().expect("accepted").0.into()).expect("a socket");
    reactor.send(&ours, vec!["unread".into()], Token(3));
    one(&mut reactor).result.expect("sent");
    reactor.recv(&ours, AlignedBuf::zeroed(10), Want::Any, Token(4));
    theirs.peek(&mut [0; 6]).expect("arrived");
    drop(theirs);
    let error = one(&mut reactor).result.expect_err("reset");
    assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
}

#[test]
fn cancelling_ends_a_receive_a_stuck_send_and_those_behind_it() {
    let (ours, theirs) = Socket::pair().expect("descriptors");
    let mut reactor = reactor(4);
    let big = fieldstone_buf::zeroes(8 << 20);
    reactor.recv(&ours, AlignedBuf::zeroed(10), Want::Any, Token(1));
    reactor.send(&ours, vec![big], Token(2));
    reactor.send(&ours, vec!["never sent".into()], Token(3));
    reactor.send(&ours, vec!["fails behind half a message".into()], Token(4));
    let mut events = Vec::new();
    let deadline = reactor.fresh_now().plus(fieldstone_block::Nanos::from_ms(20));
    while reactor.now() < deadline {
        reactor.turn_until(&mut events, deadline).expect("the ring works");
    }
    assert!(events.is_empty(), "{events:?}");
    assert_eq!(reactor.cancel(Token(99)), 0);
    assert_eq!([1, 3, 2].map(|token| reactor.cancel(Token(token))), [1, 1, 1]);
    assert_eq!(reactor.cancel(Token(2)), 1, "cancelling twice is harmless");
    let mut events = by_token(collect(&mut reactor, 4));
    for token in 1..=3 {
        let error = events.remove(&Token(token)).expect("reported").result.expect_err("cancelled");
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED), "{token}");
    }
    let error = events.remove(&Token(4)).expect("reported").result.expect_err("torn stream");
    assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
    // The peer sees the end of the stream after the part that went out.
    let mut got = 0;
    loop {
        reactor.recv(&theirs, AlignedBuf::zeroed(1 << 20), Want::All, Token(5));
        match received(one(&mut reactor)).len() {
            0 => break,
            count => got += count,
        }
    }
    assert!(got > 0 && got < 8 << 20);
}

#[test]
fn operations_waiting_for_the_ring_can_be_cancelled() {
    let mut reactor = reactor(2);
    let pairs: Vec<_> = (0..32).map(|_| Socket::pair().expect("descriptors")).collect();
    for (i, (ours, _)) in pairs.iter().enumerate() {
        reactor.recv(ours, AlignedBuf::zeroed(10), Want::Any, Token(i as u64 % 2));
    }
    assert_eq!(reactor.cancel(Token(0)), 16);
    for event in collect(&mut reactor, 16) {
        assert_eq!(event.token, Token(0));
        assert_eq!(event.result.expect_err("cancelled").raw_os_error(), Some(libc::ECANCELED));
    }
    assert_eq!(reactor.in_flight(), 16);
}

#[test]
fn closing_ends_everything_on_a_socket() {
    let (ours, theirs) = Socket::pair().expect("descriptors");
    let mut reactor = reactor(8);
    reactor.recv(&ours, AlignedBuf::zeroed(10), Want::Any, Token(1));
    reactor.send(&ours, vec![fieldstone_buf::zeroes(8 << 20)], Token(2));
    reactor.recv(&theirs, AlignedBuf::zeroed(1), Want::Any, Token(3));
    let first = one(&mut reactor);
    assert_eq!(first.token, Token(3));
    reactor.close(ours);
    let mut events = by_token(collect(&mut reactor, 2));
    assert!(events.remove(&Token(2)).expect("reported").result.is_err());
    // Shutdown gives the end of the stream, cancellation gives an error. Either may come first.
    let receive = events.remove(&Token(1)).expect("reported").result;
    assert!(receive.is_err() || receive.is_ok_and(|count| count == 0));
    assert_eq!(reactor.in_flight(), 0);
    assert!(theirs.shutdown(Shutdown::Both).is_ok());
}

#[test]
fn five_hundred_connections_echo_through_a_small_ring() {
    const COUNT: u64 = 500;
    let mut reactor = reactor(16);
    let pairs: Vec<_> = (0..COUNT).map(|_| Socket::pair().expect("descriptors")).collect();
    for round in 0..3u64 {
        for (i, (left, right)) in pairs.iter().enumerate() {
            reactor.recv(right, AlignedBuf::zeroed(8), Want::All, Token(i as u64));
            let message = (i as u64 * 1000 + round).to_le_bytes();
            reactor.send(left, vec![Bytes::copy_from_slice(&message)], Token(COUNT + i as u64));
        }
        for (token, event) in by_token(collect(&mut reactor, 2 * COUNT as usize)) {
            if token.0 < COUNT {
                assert_eq!(received(event), (token.0 * 1000 + round).to_le_bytes());
            } else {
                assert_eq!(event.result.expect("sent"), 8);
            }
        }
    }
}
