//! Tools that the tests share: a device in memory, a raw session fed with bytes, and a client
//! joined to a session through a stream that is cut at random.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_block::{
    BlockError, Completion, Extent, ExtentKind, Nanos, Op, Payload, Piece, Request, Stage,
};
use fieldstone_nbd::client::{Client, Config, Outcome, Reply};
use fieldstone_nbd::{Export, ExportList, Limits, Session, SessionPhase};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

pub const NOW: Nanos = Nanos(12_345);

pub fn export(name: &str, size_bytes: u64) -> Export {
    Export {
        name: name.into(),
        description: format!("the {name} volume"),
        size_bytes,
        read_only: false,
        can_multi_conn: true,
        minimum_block_bytes: 1,
        preferred_block_bytes: 4096,
    }
}

pub fn exports(list: Vec<Export>) -> Arc<ExportList> {
    Arc::new(ExportList::new(list).unwrap())
}

/// A device in memory that knows for every byte whether it is data, zero or a hole.
pub struct Ram {
    pub bytes: Vec<u8>,
    pub kinds: Vec<ExtentKind>,
    pub seen: Vec<Request>,
    pub fail_next: Option<BlockError>,
}

impl Ram {
    pub fn new(size_bytes: usize) -> Self {
        Self {
            bytes: vec![0; size_bytes],
            kinds: vec![ExtentKind::Hole; size_bytes],
            seen: Vec::new(),
            fail_next: None,
        }
    }

    pub fn serve(&mut self, request: Request) -> Completion {
        assert_eq!(request.stamps.at(Stage::Received), NOW);
        let result = match self.fail_next.take() {
            Some(error) => Err(error),
            None => Ok(self.perform(&request)),
        };
        let completion = Completion::of(&request, result);
        self.seen.push(request);
        completion
    }

    fn perform(&mut self, request: &Request) -> Payload {
        let start = usize::try_from(request.offset_bytes).unwrap();
        let range = start..start + request.len_bytes as usize;
        match request.op {
            Op::Read => {
                let runs = self.runs(range);
                return Payload::Data(
                    runs.into_iter()
                        .map(|(run, kind)| match kind {
                            ExtentKind::Data => {
                                Piece::Data(Bytes::copy_from_slice(&self.bytes[run]))
                            }
                            _ => Piece::Zeroes(u32::try_from(run.len()).unwrap()),
                        })
                        .collect(),
                );
            }
            Op::Write => {
                assert_eq!(request.data.len(), request.len_bytes as usize);
                assert_eq!(request.data.as_ptr().addr() % 4096, 0, "payloads must be aligned");
                self.bytes[range.clone()].copy_from_slice(&request.data);
                self.kinds[range].fill(ExtentKind::Data);
            }
            Op::Flush => {}
            Op::Trim | Op::WriteZeroes => {
                self.bytes[range.clone()].fill(0);
                let kind = if request.flags.no_hole { ExtentKind::Zero } else { ExtentKind::Hole };
                self.kinds[range].fill(kind);
            }
            Op::Extents => {
                let extent = |(run, kind): (std::ops::Range<usize>, _)| Extent {
                    len_bytes: run.len() as u64,
                    kind,
                };
                return Payload::Extents(self.runs(range).into_iter().map(extent).collect());
            }
        }
        Payload::None
    }

    fn runs(&self, range: std::ops::Range<usize>) -> Vec<(std::ops::Range<usize>, ExtentKind)> {
        let mut runs: Vec<(std::ops::Range<usize>, ExtentKind)> = Vec::new();
        for at in range {
            match runs.last_mut() {
                Some((run, kind)) if *kind == self.kinds[at] => run.end += 1,
                _ => runs.push((at..at + 1, self.kinds[at])),
            }
        }
        runs
    }
}

/// Feeds `bytes` to the session in fragments of at most `fragment` bytes. Returns the decoded
/// requests.
pub fn feed_in(session: &mut Session, mut bytes: &[u8], fragment: usize) -> Vec<Request> {
    let mut requests = Vec::new();
    while !bytes.is_empty() && session.wants_input() {
        let space = session.receive_space();
        let len = space.len().min(fragment).min(bytes.len());
        space[..len].copy_from_slice(&bytes[..len]);
        session.received(len, NOW);
        bytes = &bytes[len..];
        while let Some((_, request)) = session.next_request() {
            requests.push(request);
        }
    }
    requests
}

pub fn feed(session: &mut Session, bytes: &[u8]) -> Vec<Request> {
    feed_in(session, bytes, usize::MAX)
}

/// Takes all bytes that the session has to send.
pub fn take(session: &mut Session) -> Vec<u8> {
    let mut out = Vec::new();
    session.output(&mut out);
    out.concat()
}

/// An option on the wire.
pub fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(code.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend(data);
    bytes
}

/// `text` behind its 32-bit length.
pub fn counted(text: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(text);
    bytes
}

/// The data of `GO` and `INFO`.
pub fn go_data(name: &str, items: &[u16]) -> Vec<u8> {
    let mut bytes = counted(name.as_bytes());
    bytes.extend(u16::try_from(items.len()).unwrap().to_be_bytes());
    items.iter().for_each(|item| bytes.extend(item.to_be_bytes()));
    bytes
}

/// The data of the metadata context options.
pub fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = counted(name.as_bytes());
    bytes.extend(u32::try_from(queries.len()).unwrap().to_be_bytes());
    queries.iter().for_each(|query| bytes.extend(counted(query.as_bytes())));
    bytes
}

/// A request on the wire, without payload.
pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// One reply to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionReply {
    pub option: u32,
    pub reply_type: u32,
    pub data: Vec<u8>,
}

/// Cuts `bytes` into replies to options. Panics if they are anything else.
pub fn option_replies(mut bytes: &[u8]) -> Vec<OptionReply> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        let field = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let (option, reply_type, len) = (field(8), field(12), field(16) as usize);
        replies.push(OptionReply { option, reply_type, data: bytes[20..20 + len].to_vec() });
        bytes = &bytes[20 + len..];
    }
    replies
}

/// A session past greeting and client flags.
pub fn haggling(list: Arc<ExportList>, limits: Limits) -> Session {
    let mut session = Session::new(list, limits);
    assert_eq!(take(&mut session).len(), 18);
    feed(&mut session, &[0, 0, 0, 3]);
    session
}

/// A session in transmission; structured replies and `base:allocation` if `structured`.
pub fn transmitting(list: Arc<ExportList>, structured: bool, limits: Limits) -> Session {
    let name = list.as_slice()[0].name.clone();
    let mut session = haggling(list, limits);
    if structured {
        feed(&mut session, &option(8, &[]));
        take(&mut session);
        feed(&mut session, &option(10, &context_data(&name, &["base:allocation"])));
        take(&mut session);
    }
    feed(&mut session, &option(7, &go_data(&name, &[])));
    assert!(matches!(session.phase(), SessionPhase::Transmission(_)));
    take(&mut session);
    session
}

/// A client and a session joined by two byte streams, with a device behind.
pub struct Pair {
    pub client: Client,
    pub session: Session,
    pub ram: Ram,
    pub replies: Vec<Reply>,
    to_server: VecDeque<u8>,
    to_client: VecDeque<u8>,
    delayed: Vec<Request>,
}

impl Pair {
    pub fn new(config: Config, export: Export, limits: Limits) -> Self {
        let ram = Ram::new(usize::try_from(export.size_bytes).unwrap());
        Self {
            client: Client::new(config),
            session: Session::new(exports(vec![export]), limits),
            ram,
            replies: Vec::new(),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            delayed: Vec::new(),
        }
    }

    /// Moves bytes and completes requests in random portions and order until no more can move.
    pub fn run(&mut self, rng: &mut ChaCha8Rng) {
        const PORTIONS: [usize; 8] = [1, 2, 7, 28, 100, 4096, 65_536, 1 << 20];
        let mut still = 0;
        while still < 1000 {
            let mut out = Vec::new();
            self.client.output(&mut out);
            if self.to_client.is_empty() {
                let before = out.len();
                self.session.output(&mut out);
                self.to_client.extend(out.drain(before..).flatten());
            }
            self.to_server.extend(out.into_iter().flatten());

            while let Some((_, request)) = self.session.next_request() {
                self.delayed.push(request);
            }
            let mut moved = false;
            if self.session.wants_input() && !self.to_server.is_empty() {
                let portion = *PORTIONS.choose(rng).unwrap();
                let space = self.session.receive_space();
                let len = space.len().min(portion).min(self.to_server.len());
                for (to, from) in space.iter_mut().zip(self.to_server.drain(..len)) {
                    *to = from;
                }
                self.session.received(len, NOW);
                moved = true;
            }
            while let Some((_, request)) = self.session.next_request() {
                self.delayed.push(request);
            }
            if !self.delayed.is_empty() && rng.random_bool(0.5) {
                let request = self.delayed.swap_remove(rng.random_range(0..self.delayed.len()));
                let completion = self.ram.serve(request);
                self.session.complete(completion);
                moved = true;
            }
            if !self.to_client.is_empty() {
                let portion = (*PORTIONS.choose(rng).unwrap()).min(self.to_client.len());
                let bytes: Vec<u8> = self.to_client.drain(..portion).collect();
                self.client.receive(&bytes).unwrap();
                moved = true;
            }
            while let Some(reply) = self.client.next_reply().unwrap() {
                self.replies.push(reply);
            }
            let idle = self.delayed.is_empty()
                && self.to_client.is_empty()
                && self.session.memory_bytes() == 0;
            if !moved && idle {
                return;
            }
            still = if moved { 0 } else { still + 1 };
        }
        panic!("the session hangs in {:?}", self.session.phase());
    }

    /// Runs, and returns the outcome of the command `cookie`.
    pub fn outcome(&mut self, cookie: u64, rng: &mut ChaCha8Rng) -> Outcome {
        self.run(rng);
        let position = self.replies.iter().position(|reply| reply.cookie == cookie).unwrap();
        self.replies.remove(position).outcome
    }
}
