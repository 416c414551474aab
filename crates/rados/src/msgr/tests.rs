//! A client's and a server's connection, wired together in memory.

mod handshake;

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::auth::{AuthDone, AuthError, AuthErrorKind, AuthRequest, Mode, ServerAnswer};
use crate::encoding::{AddressKind, EntityKind};
use crate::message::MessageKind;

/// A method that needs one `more`: the client adds one to a number of the server.
struct Method {
    mode: Mode,
    key: Vec<u8>,
    refuses: bool,
    /// Counts calls of `commit`.
    commits: Rc<Cell<u32>>,
}

impl Method {
    fn keys(&self) -> AuthDone {
        let secret = if self.mode == Mode::Secure { (0..64).collect() } else { Vec::new() };
        AuthDone { session_key: self.key.clone(), connection_secret: secret }
    }
}

impl ClientAuth for Method {
    fn begin(&mut self) -> Result<AuthRequest, AuthError> {
        let payload = Bytes::from_static(b"it is me");
        Ok(AuthRequest { method: 2, modes: vec![self.mode], payload })
    }

    fn more(&mut self, payload: Bytes) -> Result<Bytes, AuthError> {
        Ok(payload.iter().map(|byte| byte.wrapping_add(1)).collect())
    }

    fn done(&mut self, global_id: u64, mode: Mode, payload: Bytes) -> Result<AuthDone, AuthError> {
        if (global_id, mode, &payload[..]) == (4100, self.mode, b"welcome") {
            Ok(self.keys())
        } else {
            Err(AuthError::other("that is not my server"))
        }
    }

    fn commit(&mut self) {
        self.commits.set(self.commits.get() + 1);
    }
}

impl ServerAuth for Method {
    fn begin(&mut self, request: &AuthRequest) -> ServerAnswer {
        if self.refuses || request.modes != [self.mode] || request.payload != "it is me" {
            return ServerAnswer::BadMethod { errno: 95, methods: vec![7], modes: vec![self.mode] };
        }
        ServerAnswer::More(Bytes::from(vec![7; 300]))
    }

    fn more(&mut self, payload: Bytes) -> ServerAnswer {
        assert_eq!(payload, vec![8; 300]);
        let payload = Bytes::from_static(b"welcome");
        ServerAnswer::Done { global_id: 4100, mode: self.mode, payload, done: self.keys() }
    }
}

fn method(mode: Mode) -> Method {
    Method { mode, key: vec![9; 16], refuses: false, commits: Rc::default() }
}

const OSD: EntityName = EntityName { kind: EntityKind::Osd, number: 3 };
const CLIENT: EntityName = EntityName { kind: EntityKind::Client, number: -1 };

fn address(port: u16) -> EntityAddress {
    EntityAddress::msgr2(([10, 0, 0, 1], port).into(), 5)
}

fn client_options(auth: Method) -> ClientOptions {
    ClientOptions {
        peer: OSD,
        peer_addresses: Addresses(vec![address(6800)]),
        own_address: EntityAddress {
            kind: AddressKind::Any,
            nonce: 77,
            socket: Some(([10, 0, 0, 9], 0).into()),
        },
        own_name: CLIENT,
        global_seq: 1,
        cookie: 12,
        features: FEATURE_MSG_ADDR2 | 0b0110,
        auth: Box::new(auth),
    }
}

fn server_options(auth: Method) -> ServerOptions {
    ServerOptions {
        own_name: OSD,
        own_addresses: Addresses(vec![address(6800), address(6801)]),
        features: FEATURE_MSG_ADDR2 | 0b0011,
        cookie: 13,
        auth: Box::new(auth),
    }
}

struct Pair {
    client: Connection,
    server: Connection,
    random: ChaCha8Rng,
}

impl Pair {
    fn new(client: ClientOptions, server: ServerOptions) -> Self {
        let now = Nanos(0);
        Self {
            client: Connection::client(client, now),
            server: Connection::server(server, now),
            random: ChaCha8Rng::seed_from_u64(1),
        }
    }

    fn ready(mode: Mode) -> Self {
        let mut pair = Self::new(client_options(method(mode)), server_options(method(mode)));
        pair.exchange();
        assert_eq!(events(&mut pair.client).len(), 1);
        assert_eq!(events(&mut pair.server).len(), 1);
        assert!(pair.client.is_ready() && pair.server.is_ready());
        pair
    }

    /// Moves bytes in chunks of random lengths until nothing moves.
    fn exchange(&mut self) {
        loop {
            let to_server = bytes_of(&mut self.client);
            deliver(&mut self.server, &to_server, &mut self.random);
            let to_client = bytes_of(&mut self.server);
            deliver(&mut self.client, &to_client, &mut self.random);
            if to_server.is_empty() && to_client.is_empty() {
                return;
            }
        }
    }
}

fn bytes_of(connection: &mut Connection) -> Bytes {
    let mut output = Vec::new();
    connection.take_output(&mut output);
    assert!(!connection.has_output());
    output.concat().into()
}

fn deliver(to: &mut Connection, bytes: &Bytes, random: &mut ChaCha8Rng) {
    let mut rest = bytes.clone();
    while !rest.is_empty() {
        let most = if random.random_bool(0.5) { 40 } else { 20_000 };
        let len = random.random_range(1..=most.min(rest.len()));
        to.received(rest.split_to(len), Nanos(0));
    }
}

fn events(connection: &mut Connection) -> Vec<ConnectionEvent> {
    std::iter::from_fn(|| connection.poll_event()).collect()
}

fn end(connection: &mut Connection) -> ConnectionError {
    match events(connection).pop() {
        Some(ConnectionEvent::Closed(error)) => {
            assert!(connection.is_closed() && connection.deadline().is_none());
            error
        }
        other => panic!("{other:?}"),
    }
}

fn message(tid: u64, front: usize, data: &[usize]) -> Message {
    let part = |len: usize| (0..len).map(|at| (at * 7 + tid as usize) as u8).collect::<Bytes>();
    let mut message = Message::new(MessageKind::OsdOp, 8, 3, part(front));
    message.tid = tid;
    message.data = data.iter().map(|&len| part(len)).collect();
    message
}

/// A message as it arrives: its data in one part.
fn arrived(message: &Message) -> ConnectionEvent {
    let mut message = message.clone();
    let data = Bytes::from(message.data.concat());
    message.data = if data.is_empty() { [].into_iter().collect() } else { [data].into() };
    ConnectionEvent::Message(message)
}

fn talk(mode: Mode, messages: &[Message], replies: &[Message]) {
    let mut pair = Pair::ready(mode);
    for (index, message) in messages.iter().enumerate() {
        pair.client.send(message.clone());
        if index % 3 == 0 {
            pair.exchange();
        }
    }
    replies.iter().for_each(|reply| pair.server.send(reply.clone()));
    pair.exchange();
    let expected = |sent: &[Message]| sent.iter().map(arrived).collect::<Vec<_>>();
    assert_eq!(events(&mut pair.server), expected(messages));
    assert_eq!(events(&mut pair.client), expected(replies));
}

#[test]
fn a_long_message_arrives_whole() {
    for mode in [Mode::Crc, Mode::Secure] {
        talk(mode, &[message(1, 100, &[4 << 20])], &[message(2, 300_000, &[1 << 20, 0, 3 << 20])]);
    }
}

fn any_message() -> impl Strategy<Value = Message> {
    let len = prop_oneof![Just(0_usize), 1..100_usize, 400..600_usize, 4000..9000_usize];
    let data = prop::collection::vec(len.clone(), 0..4);
    (any::<u64>(), any::<u16>(), len.clone(), len, data).prop_map(|(tid, short, a, b, data)| {
        let mut made = message(tid >> 8, a, &data);
        made.middle = vec![5; b].into();
        (made.kind, made.priority, made.version) = (short, short ^ 1, short ^ 2);
        made.compat_version = short ^ 3;
        made
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn messages_arrive_in_order(
        sent in prop::collection::vec(any_message(), 0..8),
        replies in prop::collection::vec(any_message(), 0..8),
        secure in any::<bool>(),
    ) {
        talk(if secure { Mode::Secure } else { Mode::Crc }, &sent, &replies);
    }
}

#[test]
fn data_is_not_copied_in_mode_crc() {
    let mut pair = Pair::ready(Mode::Crc);
    let sent: Vec<Message> = (1..=3).map(|tid| message(tid, 250, &[4096])).collect();
    sent.iter().for_each(|message| pair.client.send(message.clone()));
    let mut output = Vec::new();
    pair.client.take_output(&mut output);
    // Small parts and data, by turns: the end of a frame and the start of the next share a part.
    assert_eq!(output.len(), 7);
    for (index, message) in sent.iter().enumerate() {
        assert_eq!(output[2 * index + 1].as_ptr(), message.data[0].as_ptr());
    }
    let small: Vec<&Bytes> = output.iter().step_by(2).collect();
    for pair in small.windows(2) {
        assert_eq!(pair[0].as_ptr_range().end, pair[1].as_ptr_range().start);
    }

    let chunk = Bytes::from(output.concat());
    pair.server.received(chunk.clone(), Nanos(0));
    let memory = chunk.as_ptr_range();
    for event in events(&mut pair.server) {
        let ConnectionEvent::Message(message) = event else { panic!("{event:?}") };
        assert!(memory.contains(&message.data[0].as_ptr()));
        assert!(memory.contains(&message.front.as_ptr()));
    }
}

#[test]
fn the_buffer_of_small_parts_is_used_again() {
    let mut pair = Pair::ready(Mode::Crc);
    let mut places = std::collections::BTreeSet::new();
    for tid in 1..=1000 {
        pair.client.send(message(tid, 250, &[4096]));
        let mut output = Vec::new();
        pair.client.take_output(&mut output);
        places.insert(output[0].as_ptr() as usize / (64 << 10));
    }
    assert!(places.len() < 4, "{} places", places.len());
}

/// Runs a handshake and a talk in which the `nth` chunk of one direction is changed. Gives the
/// number of bytes of the direction, or what is wrong.
fn run_changed(mode: Mode, to_client: bool, change: impl Fn(usize, &mut Vec<u8>)) -> usize {
    let mut pair = Pair::new(client_options(method(mode)), server_options(method(mode)));
    let sent = [message(1, 60, &[40]), message(2, 0, &[]), message(3, 20, &[])];
    for message in &sent {
        pair.client.send(message.clone());
        pair.server.send(message.clone());
    }
    let (mut at, mut quiet) = (0, 0);
    while quiet < 2 {
        quiet += 1;
        for direction in [false, true] {
            let (from, to) = if direction {
                (&mut pair.server, &mut pair.client)
            } else {
                (&mut pair.client, &mut pair.server)
            };
            let mut bytes = bytes_of(from).to_vec();
            if bytes.is_empty() {
                continue;
            }
            quiet = 0;
            if direction == to_client {
                let len = bytes.len();
                change(at, &mut bytes);
                at += len;
            }
            to.received(bytes.into(), Nanos(0));
        }
    }
    for connection in [&mut pair.client, &mut pair.server] {
        let mut expected = sent.iter().map(arrived);
        for event in events(connection) {
            if matches!(event, ConnectionEvent::Message(_)) {
                assert_eq!(Some(event), expected.next());
            }
        }
    }
    at
}

#[test]
fn a_flipped_byte_never_makes_a_wrong_message() {
    for mode in [Mode::Crc, Mode::Secure] {
        for to_client in [false, true] {
            let total = run_changed(mode, to_client, |_, _| {});
            assert!(total > 1000);
            for flipped in 0..total {
                run_changed(mode, to_client, |at, bytes| {
                    if let Some(byte) = flipped.checked_sub(at).and_then(|at| bytes.get_mut(at)) {
                        *byte ^= 1 << (flipped % 8);
                    }
                });
            }
        }
    }
}

#[test]
fn truncated_bytes_make_no_event() {
    for mode in [Mode::Crc, Mode::Secure] {
        let mut whole = Pair::ready(mode);
        whole.client.send(message(1, 60, &[600]));
        let len = bytes_of(&mut whole.client).len();
        for cut in (0..len).step_by(7) {
            let mut pair = Pair::ready(mode);
            pair.client.send(message(1, 60, &[600]));
            let bytes = bytes_of(&mut pair.client);
            pair.server.received(bytes.slice(..cut), Nanos(0));
            assert_eq!(events(&mut pair.server), []);
            pair.server.received(bytes.slice(cut..), Nanos(0));
            assert_eq!(events(&mut pair.server), [arrived(&message(1, 60, &[600]))]);
        }
        whole.server.transport_lost("end of file".into());
        assert_eq!(end(&mut whole.server), ConnectionError::Transport("end of file".into()));
    }
}

/// Bytes of a control frame in mode crc.
fn control(tag: tag::Tag, payload: &[u8]) -> Bytes {
    let mut writer = writer::FrameWriter::default();
    let mut output = Vec::new();
    writer.control(tag, payload);
    writer.take(&mut output);
    output.concat().into()
}

#[test]
fn frames_at_the_wrong_step_close() {
    for number in 1..=20 {
        let tag = tag::Tag::of(number).unwrap();
        let mut pair = Pair::ready(Mode::Crc);
        pair.client.received(control(tag, &[0; 8]), Nanos(0));
        let harmless = [tag::Tag::Keepalive2, tag::Tag::Keepalive2Ack, tag::Tag::Ack];
        assert_eq!(pair.client.is_closed(), !harmless.contains(&tag), "{tag}");

        // Instead of a HELLO.
        let mut client = Connection::client(client_options(method(Mode::Crc)), Nanos(0));
        client.received(Bytes::copy_from_slice(&banner::encode()), Nanos(0));
        client.received(control(tag, &[0; 8]), Nanos(0));
        assert!(matches!(end(&mut client), ConnectionError::Protocol(_)), "{tag}");
    }
}

#[test]
fn an_aborted_frame_is_passed_over() {
    let mut pair = Pair::ready(Mode::Crc);
    pair.client.send(message(1, 60, &[]));
    let mut bytes = bytes_of(&mut pair.client).to_vec();
    let status = bytes.len() - layout::CRC_EPILOGUE_BYTES;
    bytes[status] = layout::LATE_ABORTED;
    pair.server.received(bytes.into(), Nanos(0));
    pair.client.send(message(2, 60, &[]));
    pair.exchange();
    assert_eq!(events(&mut pair.server), [arrived(&message(2, 60, &[]))]);
}

#[test]
fn an_old_message_closes() {
    let mut pair = Pair::ready(Mode::Crc);
    pair.client.send(message(1, 60, &[]));
    let bytes = bytes_of(&mut pair.client);
    pair.server.received(bytes.clone(), Nanos(0));
    pair.server.received(bytes, Nanos(0));
    assert!(matches!(end(&mut pair.server), ConnectionError::Protocol(_)));
}

#[test]
fn lengths_have_bounds() {
    let huge = preamble::Preamble::new(tag::Tag::Message, [41, 1, 0, u32::MAX]).encode();
    let mut pair = Pair::ready(Mode::Crc);
    pair.client.received(Bytes::copy_from_slice(&huge), Nanos(0));
    assert!(end(&mut pair.client).to_string().contains("at most"));

    let mut client = Connection::client(client_options(method(Mode::Crc)), Nanos(0));
    client.received(Bytes::copy_from_slice(&banner::encode()), Nanos(0));
    let long = preamble::Preamble::new(tag::Tag::Hello, [1 << 20, 0, 0, 0]).encode();
    client.received(Bytes::copy_from_slice(&long), Nanos(0));
    assert!(end(&mut client).to_string().contains("at most"));

    let mut pair = Pair::ready(Mode::Crc);
    let mut long = message(1, 0, &[]);
    let part = Bytes::from(vec![0; 1 << 20]);
    long.data = std::iter::repeat_n(part, 65).collect();
    pair.client.send(long);
    assert!(end(&mut pair.client).to_string().contains("too long"));
    pair.client.send(message(2, 1, &[]));
    assert!(!pair.client.has_output());
}

#[test]
fn keepalives_are_answered_and_silence_ends() {
    let at = |s: u64| Nanos::from_ms(1000 * s);
    for mode in [Mode::Crc, Mode::Secure] {
        let mut pair = Pair::ready(mode);
        assert_eq!(pair.client.deadline(), Some(at(10)));
        assert_eq!(pair.server.deadline(), None);
        pair.client.tick(at(10));
        let ask = bytes_of(&mut pair.client);
        pair.server.received(ask, at(10));
        let answer = bytes_of(&mut pair.server);
        assert!(!answer.is_empty());
        pair.client.received(answer, at(11));
        for second in [20, 30, 40] {
            assert_eq!(pair.client.deadline(), Some(at(second)));
            pair.client.tick(at(second));
        }
        pair.client.tick(at(41));
        assert_eq!(end(&mut pair.client), ConnectionError::Silent(30_000));
    }
    let mut client = Connection::client(client_options(method(Mode::Crc)), at(1));
    client.tick(at(16));
    assert_eq!(end(&mut client), ConnectionError::Silent(15_000));
}

#[test]
fn a_closed_connection_is_quiet() {
    let mut pair = Pair::ready(Mode::Crc);
    pair.server.send(message(1, 1, &[]));
    let bytes = bytes_of(&mut pair.server);
    pair.client.send(message(1, 1, &[]));
    pair.client.close();
    pair.client.received(bytes, Nanos(0));
    pair.client.transport_lost("late".into());
    pair.client.tick(Nanos(u64::MAX));
    assert_eq!(events(&mut pair.client), []);
    assert!(bytes_of(&mut pair.client).is_empty() && pair.client.is_closed());
}
