//! Fuzzing of a client's connection: it gets any bytes as what its peer sends.
//!
//! An input: u8 options, u8 which peer, and the peer's bytes. The lowest bit of the options says
//! that frames are mended: checksums become right, and lengths fit what is there, because a fuzzer
//! cannot guess checksums. The bits above hold the length of the pieces in which the bytes arrive.
//! The peer is a monitor without keys, a monitor with keys, or an OSD with keys; each also as one
//! that speaks the secure mode. The client draws the same numbers each time, so the recorded bytes
//! of a peer are good again.
//!
//! The properties:
//!
//! - no panic, and no loop without end;
//! - every way to cut the stream gives the same events;
//! - the reason of the end is the last event; then there is no output and nothing to wait for;
//! - a handshake has a bounded answer.

use bytes::Bytes;
use smallvec::smallvec;

use super::checksum::{self, PREAMBLE_COVERED_BYTES};
use super::layout::{CRC_BYTES, CRC_EPILOGUE_BYTES};
use super::preamble::PREAMBLE_BYTES;
use super::{
    ClientOptions, Connection, ConnectionEvent, FEATURE_MSG_ADDR2, MAX_AUTH_ROUNDS,
    MAX_HANDSHAKE_FRAME_BYTES, MAX_SEGMENTS, ServerOptions, banner,
};
use crate::Nanos;
use crate::auth::server::KeyServer;
use crate::auth::{
    AuthDone, AuthRequest, ClientAuth, Credentials, CryptoKey, Entity, METHOD_NONE, Mode,
    ServerAnswer, ServerAuth,
};
use crate::encoding::{Addresses, EntityAddress, EntityKind, EntityName, Time};
use crate::message::{Message, MessageKind};

/// The lowest bit of the options: mend the frames.
const MEND: u8 = 1;
/// Peers, each in two modes.
const PEERS: u8 = 6;

/// What the peer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    MonitorWithoutKeys,
    Monitor,
    Osd,
}

impl Peer {
    fn of(number: u8) -> (Self, Mode) {
        let peer = [Self::MonitorWithoutKeys, Self::Monitor, Self::Osd][usize::from(number % 3)];
        (peer, if number % PEERS < PEERS / 2 { Mode::Crc } else { Mode::Secure })
    }
}

const NOW: Nanos = Nanos(0);
/// A silent peer is given up after so many deadlines.
const TICKS_MAX: u32 = 5;

/// The progress of a connection in an input, so that a test can judge its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// The handshake was done.
    pub ready: bool,
    /// Number of messages.
    pub messages: u32,
    /// The connection ended with an error.
    pub failed: bool,
}

/// Feeds `input` to a client's connection.
///
/// # Panics
/// If a property does not hold. This is the finding.
pub fn frames(input: &[u8]) -> Coverage {
    let Some((&[options, peer], stream)) = input.split_first_chunk() else {
        return Coverage::default();
    };
    let mut stream = stream.to_vec();
    if options & MEND != 0 {
        mend(&mut stream);
    }
    let events = run(peer, &stream, stream.len().max(1));
    let cut = run(peer, &stream, usize::from(options >> 1) + 1);
    assert_eq!(events, cut, "the events depend on how the stream is cut");
    let count = |wanted: fn(&ConnectionEvent) -> bool| {
        u32::try_from(events.iter().filter(|event| wanted(event)).count()).expect("few")
    };
    Coverage {
        ready: count(|event| matches!(event, ConnectionEvent::Ready { .. })) == 1,
        messages: count(|event| matches!(event, ConnectionEvent::Message(_))),
        failed: count(|event| matches!(event, ConnectionEvent::Closed(_))) == 1,
    }
}

/// All events of a connection that gets these bytes in pieces.
fn run(peer: u8, stream: &[u8], piece_bytes: usize) -> Vec<ConnectionEvent> {
    let mut connection = client(peer);
    let (mut events, mut output, mut sent) = (Vec::new(), Vec::new(), 0);
    for piece in stream.chunks(piece_bytes) {
        connection.received(Bytes::copy_from_slice(piece), NOW);
        while let Some(event) = connection.poll_event() {
            events.push(event);
        }
        connection.take_output(&mut output);
        sent += output.drain(..).map(|part| part.len()).sum::<usize>();
        if connection.is_closed() {
            break;
        }
    }
    let is_closed = |event: &ConnectionEvent| matches!(event, ConnectionEvent::Closed(_));
    let closed = events.iter().position(is_closed);
    assert_eq!(closed, connection.is_closed().then(|| events.len() - 1), "the end is told last");
    if connection.is_closed() {
        assert!(!connection.has_output() && connection.deadline().is_none(), "it is over");
    } else {
        for _ in 0..TICKS_MAX {
            if let Some(due) = connection.deadline() {
                connection.tick(due);
            }
        }
        assert!(connection.is_closed(), "a silent peer is given up");
    }
    // A frame of keepalive is answered by one that is as long.
    let most = 2 * stream.len() + (MAX_AUTH_ROUNDS + 8) * (4 << 10);
    assert!(sent <= most, "{sent} bytes are sent for {} bytes", stream.len());
    events
}

/// What a client knows before its connection: the key server only helps to make it.
struct World {
    keys: KeyServer,
    credentials: Credentials,
    modes: Vec<Mode>,
    to_monitor: bool,
}

impl World {
    fn new(peer: u8) -> Self {
        let (peer, mode) = Peer::of(peer);
        let (keys, entity) = (KeyServer::new([1; 32]), Entity::client("admin"));
        let has_key = peer != Peer::MonitorWithoutKeys;
        let key = has_key.then(|| CryptoKey::new([2; 16], Time::default()));
        if let Some(key) = &key {
            keys.add_entity(entity.clone(), key.clone());
        }
        let credentials = Credentials::new(entity, key, [3; 32]);
        credentials.set_wall_clock(Time { seconds: 1_750_000_000, nanos: 0 });
        let world = Self { keys, credentials, modes: vec![mode], to_monitor: peer != Peer::Osd };
        if !world.to_monitor {
            // Tickets come from a monitor.
            let monitor = world.keys.monitor_auth();
            let auth = world.credentials.monitor_auth(&world.modes);
            let (mut client, mut server) =
                (connection(auth, EntityKind::Monitor), server(monitor, EntityKind::Monitor));
            exchange(&mut client, &mut server);
            client.commit_auth();
        }
        world
    }

    fn kind(&self) -> EntityKind {
        if self.to_monitor { EntityKind::Monitor } else { EntityKind::Osd }
    }

    fn client_auth(&self) -> Box<dyn ClientAuth> {
        if self.to_monitor {
            return self.credentials.monitor_auth(&self.modes);
        }
        let auth = self.credentials.service_auth(EntityKind::Osd, &self.modes);
        auth.expect("the monitor gave a ticket")
    }

    fn server_auth(&self) -> Box<dyn ServerAuth> {
        match (self.credentials.has_key(), self.to_monitor) {
            (false, _) => Box::new(Everybody),
            (true, true) => self.keys.monitor_auth(),
            (true, false) => self.keys.service_auth(EntityKind::Osd),
        }
    }
}

/// Lets every client in that has no key.
struct Everybody;

impl ServerAuth for Everybody {
    fn begin(&mut self, request: &AuthRequest) -> ServerAnswer {
        if request.method != METHOD_NONE {
            let (methods, modes) = (vec![METHOD_NONE], vec![Mode::Crc]);
            return ServerAnswer::BadMethod { errno: 95, methods, modes };
        }
        let done = AuthDone { session_key: Vec::new(), connection_secret: Vec::new() };
        ServerAnswer::Done { global_id: 4100, mode: Mode::Crc, payload: Bytes::new(), done }
    }

    fn more(&mut self, _: Bytes) -> ServerAnswer {
        ServerAnswer::BadMethod { errno: 95, methods: Vec::new(), modes: Vec::new() }
    }
}

fn client(peer: u8) -> Connection {
    let world = World::new(peer);
    connection(world.client_auth(), world.kind())
}

fn addresses() -> Addresses {
    Addresses(vec![EntityAddress::msgr2(([10, 0, 0, 1], 3300).into(), 5)])
}

fn connection(auth: Box<dyn ClientAuth>, kind: EntityKind) -> Connection {
    let options = ClientOptions {
        peer: EntityName { kind, number: -1 },
        peer_addresses: addresses(),
        own_address: EntityAddress::msgr2(([10, 0, 0, 9], 0).into(), 77),
        own_name: EntityName { kind: EntityKind::Client, number: -1 },
        global_seq: 1,
        cookie: 12,
        features: FEATURE_MSG_ADDR2 | 6,
        auth,
    };
    Connection::client(options, NOW)
}

fn server(auth: Box<dyn ServerAuth>, kind: EntityKind) -> Connection {
    let options = ServerOptions {
        own_name: EntityName { kind, number: 0 },
        own_addresses: addresses(),
        features: FEATURE_MSG_ADDR2 | 3,
        cookie: 13,
        auth,
    };
    Connection::server(options, NOW)
}

/// Carries bytes to and fro until nobody has any. Gives what the server sent.
fn exchange(client: &mut Connection, server: &mut Connection) -> Vec<u8> {
    let (mut output, mut recorded) = (Vec::new(), Vec::new());
    while client.has_output() || server.has_output() {
        client.take_output(&mut output);
        output.drain(..).for_each(|part| server.received(part, NOW));
        server.take_output(&mut output);
        for part in output.drain(..) {
            recorded.extend_from_slice(&part);
            client.received(part, NOW);
        }
    }
    recorded
}

/// Makes checksums of the mode crc right, and lengths fit. Bytes that are no frame stay.
fn mend(stream: &mut [u8]) {
    let Some((prefix, rest)) = stream.split_at_mut_checked(banner::PREFIX_BYTES) else { return };
    let banner_bytes = usize::from(u16::from_le_bytes([prefix[8], prefix[9]]));
    let Some(mut rest) = rest.get_mut(banner_bytes..) else { return };
    while let Some((preamble, behind)) = rest.split_at_mut_checked(PREAMBLE_BYTES) {
        let segments = usize::from(preamble[1]).clamp(1, MAX_SEGMENTS);
        let mut lens = [0; MAX_SEGMENTS];
        let mut room = behind.len().saturating_sub(CRC_BYTES + CRC_EPILOGUE_BYTES);
        for (index, len) in lens.iter_mut().enumerate().take(segments) {
            let field = &mut preamble[2 + 6 * index..6 + 6 * index];
            let said = u32::from_le_bytes([field[0], field[1], field[2], field[3]]) as usize;
            *len = said.min(room).min(MAX_HANDSHAKE_FRAME_BYTES as usize / 4);
            room -= *len;
            field.copy_from_slice(&u32::try_from(*len).expect("it is short").to_le_bytes());
        }
        let mut covered = [0; PREAMBLE_COVERED_BYTES];
        covered.copy_from_slice(&preamble[..PREAMBLE_COVERED_BYTES]);
        let sum = checksum::preamble(&covered);
        preamble[PREAMBLE_COVERED_BYTES..].copy_from_slice(&sum.to_le_bytes());
        let Some(next) = mend_segments(behind, &lens[..segments]) else { return };
        rest = next;
    }
}

/// Makes the checksums of a frame's segments right. Gives what is behind the frame.
fn mend_segments<'a>(mut rest: &'a mut [u8], lens: &[usize]) -> Option<&'a mut [u8]> {
    if lens[0] > 0 {
        let (segment, behind) = rest.split_at_mut_checked(lens[0])?;
        let (sum, behind) = behind.split_at_mut_checked(CRC_BYTES)?;
        sum.copy_from_slice(&checksum::segment(segment).to_le_bytes());
        rest = behind;
    }
    if lens.len() == 1 {
        return Some(rest);
    }
    let mut sums = Vec::new();
    for &len in &lens[1..] {
        let (segment, behind) = rest.split_at_mut_checked(len)?;
        sums.push(checksum::segment(segment));
        rest = behind;
    }
    let (epilogue, behind) = rest.split_at_mut_checked(CRC_EPILOGUE_BYTES)?;
    for (place, sum) in epilogue[1..].chunks_exact_mut(CRC_BYTES).zip(sums) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
    Some(behind)
}

/// Valid inputs for [`frames`]: for each peer a handshake and some messages.
#[must_use]
pub fn frame_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for peer in 0..PEERS {
        if Peer::of(peer) == (Peer::MonitorWithoutKeys, Mode::Secure) {
            // There is no secure mode without keys.
            continue;
        }
        let world = World::new(peer);
        let mut client = connection(world.client_auth(), world.kind());
        let mut server = server(world.server_auth(), world.kind());
        for (kind, len) in [(MessageKind::OsdOpReply, 0), (MessageKind::MonMap, 300)] {
            let front = Bytes::from(vec![1; 40]);
            let mut message = Message { tid: 9, ..Message::new(kind, 8, 2, front) };
            if len > 0 {
                message.data = smallvec![Bytes::from(vec![2; len])];
            }
            server.send(message);
        }
        let stream = exchange(&mut client, &mut server);
        for options in [0, MEND, 6 << 1, 99 << 1 | MEND] {
            // Sealed frames cannot be mended.
            if options & MEND == 0 || Peer::of(peer).1 == Mode::Crc {
                seeds.push([&[options, peer], &stream[..]].concat());
            }
        }
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_understood_to_the_end() {
        let seeds = frame_seeds();
        assert_eq!(seeds.len(), 3 * 4 + 2 * 2);
        for seed in seeds {
            let expected = Coverage { ready: true, messages: 2, failed: false };
            assert_eq!(frames(&seed), expected, "peer {}", seed[1]);
        }
    }

    #[test]
    fn mending_makes_checksums_right() {
        for mut seed in frame_seeds().into_iter().filter(|seed| seed[0] & MEND != 0) {
            let last = seed.len() - 1;
            // The checksum of the last segment.
            seed[last - 3] ^= 1;
            assert_eq!(frames(&seed).messages, 2);
            seed[0] &= !MEND;
            assert_eq!(frames(&seed).messages, 1);
        }
    }
}
