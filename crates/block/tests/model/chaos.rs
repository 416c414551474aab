//! A backend that uses every freedom of the contract.
//!
//! Each request takes effect on the memory below at a random moment after its submission, a larger
//! one in two parts at two moments. It completes at a random moment after that. So requests
//! overtake each other in every way that the contract allows. Some fail, before or after their
//! effect. The backend checks each request (alignment, range, ids), and remembers which writes are
//! stable.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use fieldstone_block::{
    Backend, BlockError, Completion, Info, Nanos, Op, Payload, Piece, QueueId, Ram,
    ReadDestination, Request, RequestFlags, RequestId, Sharing, Stamps,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The properties of a chaos backend.
#[derive(Clone, Copy, Debug)]
pub struct Temper {
    pub block_bytes: u32,
    pub max_delay: u64,
    /// One request in this many fails; 0 = none.
    pub failing: u32,
}

struct Part {
    offset_bytes: u64,
    len_bytes: u32,
    payload: Option<Payload>,
}

struct Flight {
    request: Request,
    parts: Vec<Part>,
    /// Writes that had completed when this flush arrived.
    covers: Vec<u32>,
    fails: bool,
    /// The content when this flush arrived.
    content: Vec<u8>,
}

enum Event {
    Effect { flight: u64, part: usize },
    Complete { flight: u64 },
}

pub struct Chaos {
    ram: Ram,
    temper: Temper,
    random: ChaCha8Rng,
    flights: BTreeMap<u64, Flight>,
    ids: HashSet<RequestId>,
    events: BTreeMap<(u64, u64), Event>,
    next: u64,
    completed_tags: Vec<u32>,
    stable_tags: HashSet<u32>,
    /// What is there after a loss of power.
    stable: Vec<u8>,
    /// Since when each block of it is so.
    stable_since: Vec<u64>,
    /// Why others may use the data, as the test says.
    pub shared: Option<&'static str>,
    /// The layers keep nothing any more.
    pub is_settled: bool,
    /// The requests that arrived.
    pub seen: Vec<(Op, u64, u32)>,
}

/// The tags in written data; a tag is four bytes and not zero. Cells repeat their tags.
fn tags(data: &[u8]) -> HashSet<u32> {
    let mut tags: Vec<&[u8]> = data.chunks_exact(4).collect();
    tags.dedup();
    tags.into_iter().map(|tag| u32::from_le_bytes(tag.try_into().unwrap())).collect()
}

fn flat(pieces: &[Piece]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Zeroes(len) => bytes.resize(bytes.len() + *len as usize, 0),
        }
    }
    bytes
}

impl Chaos {
    pub fn new(size_bytes: u64, temper: Temper, seed: u64) -> Self {
        Chaos {
            ram: Ram::new(size_bytes),
            temper,
            random: ChaCha8Rng::seed_from_u64(seed),
            flights: BTreeMap::new(),
            ids: HashSet::new(),
            events: BTreeMap::new(),
            next: 0,
            completed_tags: Vec::new(),
            stable_tags: HashSet::new(),
            stable: vec![0; size_bytes as usize],
            stable_since: vec![0; (size_bytes / u64::from(temper.block_bytes)) as usize],
            shared: None,
            is_settled: false,
            seen: Vec::new(),
        }
    }

    /// The same with more bytes at the end.
    pub fn grown(self, bytes: u64) -> Self {
        let size_bytes = self.ram.info().size_bytes + bytes;
        Self {
            ram: Ram::new(size_bytes),
            stable: vec![0; size_bytes as usize],
            stable_since: vec![0; (size_bytes / u64::from(self.temper.block_bytes)) as usize],
            ..self
        }
    }

    /// True when a crash now could not undo the write with this tag.
    pub fn is_stable(&self, tag: u32) -> bool {
        self.stable_tags.contains(&tag)
    }

    /// A range is stable as it was at this moment, unless a later state of it is already.
    fn make_stable(&mut self, range: std::ops::Range<usize>, content: &[u8], moment: u64) {
        let block = self.temper.block_bytes as usize;
        for at in range.step_by(block) {
            let since = &mut self.stable_since[at / block];
            if *since <= moment {
                *since = moment;
                self.stable[at..at + block].copy_from_slice(&content[at..at + block]);
            }
        }
    }

    /// The content now.
    pub fn content(&mut self) -> Vec<u8> {
        let len_bytes = self.stable.len() as u32;
        let request = Request {
            id: RequestId(0),
            op: Op::Read,
            offset_bytes: 0,
            len_bytes,
            flags: RequestFlags::default(),
            data: Bytes::new(),
            destination: ReadDestination::default(),
            queue: QueueId::default(),
            stamps: Stamps::default(),
        };
        self.ram.submit(request, Nanos(0));
        let mut out = Vec::new();
        self.ram.poll(Nanos(0), &mut out);
        match out.pop().unwrap().result {
            Ok(Payload::Data(pieces)) => flat(&pieces),
            other => panic!("{other:?}"),
        }
    }

    /// The content after a loss of power now.
    pub fn stable(&self) -> &[u8] {
        &self.stable
    }

    /// Another client writes.
    pub fn intrude(&mut self, request: Request) {
        let now = Nanos(0);
        self.ram.submit(request, now);
        self.ram.poll(now, &mut Vec::new());
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.next += 1;
        self.events.insert((at, self.next), event);
    }

    fn delay(&mut self) -> u64 {
        match self.random.random_range(0..4) {
            0 => 0,
            1 => self.random.random_range(0..=self.temper.max_delay / 10),
            _ => self.random.random_range(0..=self.temper.max_delay),
        }
    }

    /// One or two parts, cut at a block boundary.
    fn parts_of(&mut self, request: &Request) -> Vec<Part> {
        let block = self.temper.block_bytes;
        let part = |offset_bytes, len_bytes| Part { offset_bytes, len_bytes, payload: None };
        let blocks = request.len_bytes / block;
        if blocks < 2 || request.op == Op::Flush || self.random.random_bool(0.5) {
            return vec![part(request.offset_bytes, request.len_bytes)];
        }
        let cut = self.random.random_range(1..blocks) * block;
        vec![
            part(request.offset_bytes, cut),
            part(request.offset_bytes + u64::from(cut), request.len_bytes - cut),
        ]
    }

    fn effect(&mut self, flight: u64, index: usize, now: Nanos) {
        let Some(owner) = self.flights.get_mut(&flight) else { return };
        let part = &mut owner.parts[index];
        let mut request = owner.request.clone();
        let skip = (part.offset_bytes - request.offset_bytes) as usize;
        request.offset_bytes = part.offset_bytes;
        request.len_bytes = part.len_bytes;
        if request.op == Op::Write {
            request.data = request.data.slice(skip..skip + part.len_bytes as usize);
        }
        self.ram.submit(request, now);
        let mut out = Vec::new();
        self.ram.poll(now, &mut out);
        part.payload = Some(out.pop().unwrap().result.unwrap());
    }

    fn complete(&mut self, flight: u64) -> Completion {
        let owner = self.flights.remove(&flight).unwrap();
        let request = &owner.request;
        self.ids.remove(&request.id);
        if owner.fails {
            return Completion::of(request, Err(BlockError::Io("chaos".into())));
        }
        if request.op == Op::Flush {
            self.make_stable(0..self.stable.len(), &owner.content, flight);
        } else if request.flags.fua {
            let range = request.offset_bytes as usize..request.end_bytes() as usize;
            let content = self.content();
            self.make_stable(range, &content, self.next);
        }
        let payload = match request.op {
            Op::Read => {
                let mut bytes = Vec::new();
                for part in owner.parts {
                    match part.payload {
                        Some(Payload::Data(pieces)) => bytes.extend(flat(&pieces)),
                        other => panic!("{other:?}"),
                    }
                }
                let pieces = if bytes.iter().all(|byte| *byte == 0) {
                    [Piece::Zeroes(bytes.len() as u32)]
                } else {
                    [Piece::Data(Bytes::from(bytes))]
                };
                Payload::Data(pieces.into_iter().collect())
            }
            Op::Extents => owner.parts.into_iter().next().unwrap().payload.unwrap(),
            Op::Flush => {
                self.stable_tags.extend(owner.covers);
                Payload::None
            }
            Op::Write => {
                let tags = tags(&request.data);
                if request.flags.fua {
                    self.stable_tags.extend(&tags);
                }
                self.completed_tags.extend(tags);
                Payload::None
            }
            Op::Trim | Op::WriteZeroes => Payload::None,
        };
        Completion::of(request, Ok(payload))
    }
}

impl Backend for Chaos {
    fn info(&self) -> Info {
        Info { block_bytes: self.temper.block_bytes, ..self.ram.info() }
    }

    fn submit(&mut self, request: Request, now: Nanos) {
        request.validate(&self.info()).unwrap();
        assert!(self.ids.insert(request.id), "an id in flight was used again");
        self.seen.push((request.op, request.offset_bytes, request.len_bytes));
        let flight = self.next;
        self.next += 1;
        let parts = if request.op == Op::Extents { Vec::new() } else { self.parts_of(&request) };
        let parts = if parts.is_empty() {
            vec![Part {
                offset_bytes: request.offset_bytes,
                len_bytes: request.len_bytes,
                payload: None,
            }]
        } else {
            parts
        };
        let failing = self.temper.failing;
        let fails = failing > 0 && self.random.random_range(0..failing) == 0;
        let mut last = now.0;
        for part in 0..parts.len() {
            let at = now.0 + self.delay();
            last = last.max(at);
            // A request that fails may have had its effect, or a part of the effect.
            if !fails || self.random.random_bool(0.5) {
                self.schedule(at, Event::Effect { flight, part });
            }
        }
        let at = last + self.delay();
        self.schedule(at, Event::Complete { flight });
        let covers = if request.op == Op::Flush { self.completed_tags.clone() } else { Vec::new() };
        let content = if request.op == Op::Flush { self.content() } else { Vec::new() };
        self.flights.insert(flight, Flight { request, parts, covers, fails, content });
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > now.0 {
                break;
            }
            match entry.remove() {
                Event::Effect { flight, part } => self.effect(flight, part, now),
                Event::Complete { flight } => {
                    let completion = self.complete(flight);
                    out.push(completion);
                }
            }
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        self.events.first_key_value().map(|((at, _), _)| Nanos(*at))
    }

    fn shared(&self) -> Option<Sharing> {
        let why = self.shared?;
        Some(Sharing { why, for_good: false })
    }

    fn settled(&mut self) {
        self.is_settled = true;
    }
}
