//! The NBD connections of a volume's users, as bytes.
//!
//! The shipped session answers for the device. The strict client of `fieldstone-nbd` acts for the
//! users, and refuses each reply that the specification forbids. All bytes of both directions go
//! from one to the other, in pieces of random length. A user whose device has grown connects anew,
//! as its size is fixed when it connects. Now and then a user connects anew without a reason, so
//! several connections share a device.
//!
//! Bytes take no virtual time: the network of the world lies between volumes and nodes.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use fieldstone_block::{
    BlockError, Completion, Extent, ExtentKind, Info, Nanos, Op, Payload, Piece, Request,
    RequestFlags, RequestId, Stamps,
};
use fieldstone_nbd::client::{Client, Config, Outcome, Reply};
use fieldstone_nbd::wire::{cmd_flag, state};
use fieldstone_nbd::{Errno, Export, ExportList, Limits, Session};

use crate::random::RandomStream;

/// Of 1,000 requests, this many come over a new connection.
const CONNECTS_PER_MILLE: u32 = 20;
/// The most bytes that arrive at once, for a connection whose bytes come in small pieces.
const SMALL_PIECE_BYTES: u64 = 100;

/// The connections to one device.
pub struct NbdFrontend {
    connections: Vec<Connection>,
    rng: RandomStream,
}

/// One connection: its two ends, and the bytes that the server has not taken yet.
struct Connection {
    client: Client,
    session: Session,
    size_bytes: u64,
    to_server: BytesMut,
    /// The users' requests, by the client's cookie.
    waiting: HashMap<u64, Waiting>,
    /// The bytes arrive in small pieces.
    small: bool,
}

/// A request without a reply.
struct Waiting {
    id: RequestId,
    op: Op,
    len_bytes: u32,
}

impl NbdFrontend {
    /// A front-end without a connection.
    #[must_use]
    pub fn new(rng: RandomStream) -> Self {
        Self { connections: Vec::new(), rng }
    }

    /// A user sends a request to the device.
    pub fn submit(&mut self, info: &Info, request: &Request) {
        let fits = |last: &Connection| last.size_bytes == info.size_bytes;
        let again = self.rng.chance(CONNECTS_PER_MILLE);
        if again || !self.connections.last().is_some_and(fits) {
            let small = self.rng.chance(100);
            self.connections.push(Connection::new(info, small));
        }
        let last = self.connections.last_mut().expect("there is one");
        last.send(request);
    }

    /// The requests for the device that the sessions read from their bytes, each with the number of
    /// its connection.
    pub fn requests(&mut self, now: Nanos) -> Vec<(usize, Request)> {
        let mut requests = Vec::new();
        for (number, connection) in self.connections.iter_mut().enumerate() {
            connection.deliver(&mut self.rng, now, |request| requests.push((number, request)));
        }
        requests
    }

    /// The device answers a request of a connection.
    pub fn complete(&mut self, number: usize, completion: Completion) {
        self.connections[number].session.complete(completion);
    }

    /// The replies that users have received.
    pub fn replies(&mut self) -> Vec<Completion> {
        let mut replies = Vec::new();
        for connection in &mut self.connections {
            connection.receive(&mut self.rng, &mut replies);
        }
        replies
    }
}

impl Connection {
    fn new(info: &Info, small: bool) -> Self {
        let exports = ExportList::new(vec![Export::new("stone", info)]).expect("one export");
        let mut connection = Self {
            client: Client::new(Config::full("stone")),
            session: Session::new(Arc::new(exports), Limits::default()),
            size_bytes: info.size_bytes,
            to_server: BytesMut::new(),
            waiting: HashMap::new(),
            small,
        };
        while connection.client.about().is_none() {
            let mut rng = RandomStream::new(0, "handshake", 0);
            connection.receive(&mut rng, &mut Vec::new());
            connection.deliver(&mut rng, Nanos(0), |_| panic!("a request before the handshake"));
        }
        let about = connection.client.about().expect("it was there");
        assert_eq!(about.size_bytes, info.size_bytes, "the size in the handshake");
        connection
    }

    fn send(&mut self, request: &Request) {
        let Request { offset_bytes, len_bytes, .. } = *request;
        let flags = flags_of(request.flags);
        let cookie = match request.op {
            Op::Read => self.client.read(offset_bytes, len_bytes, flags),
            Op::Write => self.client.write(offset_bytes, request.data.clone(), flags),
            Op::Flush => self.client.flush(),
            Op::Trim => self.client.trim(offset_bytes, len_bytes, flags),
            Op::WriteZeroes => self.client.write_zeroes(offset_bytes, len_bytes, flags),
            Op::Extents => self.client.block_status(offset_bytes, len_bytes, flags),
        };
        let waiting = Waiting { id: request.id, op: request.op, len_bytes };
        self.waiting.insert(cookie, waiting);
    }

    /// The client's bytes arrive at the server.
    fn deliver(&mut self, rng: &mut RandomStream, now: Nanos, mut submit: impl FnMut(Request)) {
        let mut sent = Vec::new();
        self.client.output(&mut sent);
        sent.iter().for_each(|bytes| self.to_server.extend_from_slice(bytes));
        loop {
            while let Some((_, request)) = self.session.next_request() {
                submit(request);
            }
            if self.to_server.is_empty() || !self.session.wants_input() {
                break;
            }
            let space = self.session.receive_space();
            let len = piece(rng, self.small, self.to_server.len().min(space.len()));
            space[..len].copy_from_slice(&self.to_server[..len]);
            self.to_server.advance(len);
            self.session.received(len, now);
        }
        assert_eq!(self.session.violation(), None, "a sound client has broken the protocol");
    }

    /// The server's bytes arrive at the client.
    fn receive(&mut self, rng: &mut RandomStream, replies: &mut Vec<Completion>) {
        let mut sent = Vec::new();
        self.session.output(&mut sent);
        self.session.sent();
        for mut bytes in sent {
            while !bytes.is_empty() {
                let next = bytes.split_to(piece(rng, self.small, bytes.len()));
                let received = self.client.receive(&next);
                received.unwrap_or_else(|error| panic!("an NBD client refuses: {error}"));
                self.take_replies(replies);
            }
        }
    }

    fn take_replies(&mut self, replies: &mut Vec<Completion>) {
        loop {
            let reply = self.client.next_reply();
            let reply = reply.unwrap_or_else(|error| panic!("an NBD client refuses: {error}"));
            let Some(Reply { cookie, outcome, .. }) = reply else { break };
            let Waiting { id, op, len_bytes } =
                self.waiting.remove(&cookie).expect("the client knows the cookie");
            let stamps = Stamps::default();
            replies.push(Completion { id, op, len_bytes, result: result_of(outcome), stamps });
        }
    }
}

/// How many of the `len` bytes under way arrive next: all, or the first few.
fn piece(rng: &mut RandomStream, small: bool, len: usize) -> usize {
    let most = if small { (len as u64).min(SMALL_PIECE_BYTES) } else { len as u64 };
    let whole = !small && rng.chance(500);
    if whole { len } else { rng.between(1, most) as usize }
}

fn flags_of(flags: RequestFlags) -> u16 {
    let RequestFlags { fua, no_hole, fast_zero } = flags;
    let bits =
        [(fua, cmd_flag::FUA), (no_hole, cmd_flag::NO_HOLE), (fast_zero, cmd_flag::FAST_ZERO)];
    bits.into_iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum()
}

/// A reply as the result of a request.
fn result_of(outcome: Outcome) -> Result<Payload, BlockError> {
    match outcome {
        Outcome::Data(data) => Ok(Payload::Data([Piece::Data(data)].into_iter().collect())),
        Outcome::Extents(extents) => {
            let extent = |extent: &fieldstone_nbd::client::AllocationExtent| Extent {
                len_bytes: u64::from(extent.len_bytes),
                kind: match extent.flags {
                    0 => ExtentKind::Data,
                    state::ZERO => ExtentKind::Zero,
                    _ => ExtentKind::Hole,
                },
            };
            Ok(Payload::Extents(extents.iter().map(extent).collect()))
        }
        Outcome::Done => Ok(Payload::None),
        Outcome::Failed { errno, message } => Err(match errno {
            Errno::NoSpc => BlockError::NoSpace,
            Errno::Io => BlockError::Io(message),
            Errno::Perm => BlockError::Fenced(message),
            Errno::Shutdown => BlockError::ShuttingDown,
            _ => BlockError::NotSupported("as NBD says"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_block::{QueueId, Ram, ReadDestination, Stack};

    fn request(id: u64, op: Op, offset_bytes: u64, len_bytes: u32, data: &[u8]) -> Request {
        Request {
            id: RequestId(id),
            op,
            offset_bytes,
            len_bytes,
            flags: RequestFlags { fua: op == Op::Write, ..RequestFlags::default() },
            data: data.to_vec().into(),
            destination: ReadDestination::default(),
            queue: QueueId::default(),
            stamps: Stamps::default(),
        }
    }

    fn run(frontend: &mut NbdFrontend, device: &mut Stack<Ram, usize>) -> Vec<Completion> {
        let (mut answers, mut done) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            for (number, request) in frontend.requests(Nanos(1)) {
                device.submit_from(number, request, Nanos(1));
            }
            device.poll_into(Nanos(1), &mut done);
            done.drain(..).for_each(|(number, completion)| frontend.complete(number, completion));
            answers.extend(frontend.replies());
        }
        answers.sort_by_key(|answer| answer.id.0);
        answers
    }

    #[test]
    fn requests_and_answers_go_through_the_sessions_of_several_connections() {
        for seed in 0..20 {
            let mut frontend = NbdFrontend::new(RandomStream::new(seed, "nbd", 0));
            let mut device = Stack::new(Ram::new(1 << 20), Vec::new());
            let info = device.info().clone();
            for block in 0..100u64 {
                let data = vec![block as u8 + 1; 4096];
                frontend.submit(&info, &request(block, Op::Write, block * 4096, 4096, &data));
            }
            assert!(run(&mut frontend, &mut device).iter().all(|answer| answer.result.is_ok()));
            assert!(frontend.connections.len() > 1 || seed > 0, "2 in 100 connect anew");
            for block in 0..100u64 {
                frontend.submit(&info, &request(block, Op::Read, block * 4096, 4096, b""));
            }
            frontend.submit(&info, &request(200, Op::Read, 1 << 20, 4096, b""));
            frontend.submit(&info, &request(201, Op::Extents, 0, 4096, b""));
            let answers = run(&mut frontend, &mut device);
            assert_eq!(answers.len(), 102);
            for (block, answer) in (1u8..=100).zip(&answers) {
                let data = Piece::Data(vec![block; 4096].into());
                assert_eq!(answer.result, Ok(Payload::Data([data].into_iter().collect())));
            }
            assert!(answers[100].result.is_err(), "it lies behind the device");
            let whole = Extent { len_bytes: 4096, kind: ExtentKind::Data };
            assert_eq!(answers[101].result, Ok(Payload::Extents(vec![whole])));
        }
    }
}
