//! Drives a backend with random requests from one seed and checks every completion.
//!
//! Time jumps from one event to the next: the next request, or the moment at which the backend
//! wants a poll. A backend that has work but names no such moment has lost that work, and fails.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use fieldstone_block::{
    Backend, Completion, ExtentKind, Nanos, Op, Payload, Piece, QueueId, ReadDestination, Request,
    RequestFlags, RequestId, Stamps,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::oracle::{Oracle, Tag};

/// The shape of a run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub cells: usize,
    pub cell_bytes: u32,
    /// A trim zeroes only whole blocks of this size.
    pub trim_bytes: u32,
    pub requests: u32,
    pub max_in_flight: usize,
    /// The chance that a request continues where the last one of its kind ended.
    pub sequential: f64,
    /// Largest pause between requests.
    pub max_gap: u64,
}

/// Makes another client's write through the backend's store.
pub type Intruder<B> = fn(&mut B, Request, now: &mut Nanos);

struct Asked {
    request: Request,
    tag: Tag,
    /// Tags of the writes that had completed when this request was submitted.
    completed_before: Vec<Tag>,
}

/// Runs one seed. `is_stable` asks the bottom of the stack whether a write survives a crash.
pub struct Harness<B> {
    pub backend: B,
    shape: Shape,
    random: ChaCha8Rng,
    oracle: Oracle,
    asked: BTreeMap<RequestId, Asked>,
    completed_tags: Vec<Tag>,
    /// Gives what is there after a loss of power. Flushes are then checked by content, and not by
    /// the writes that the store has seen: a write that was replaced need never reach the store.
    pub stable: Option<fn(&B) -> &[u8]>,
    /// Looks at the backend after each poll.
    pub watch: Option<fn(&B)>,
    /// Another client writes, at a moment without requests; see [`Harness::intrude`].
    pub intruder: Option<Intruder<B>>,
    /// The ends of the last read and the last write, in cells.
    ends: [usize; 2],
    next_tag: Tag,
    now: Nanos,
}

impl<B: Backend> Harness<B> {
    pub fn new(backend: B, shape: Shape, seed: u64) -> Self {
        Harness {
            backend,
            shape,
            random: ChaCha8Rng::seed_from_u64(seed),
            oracle: Oracle::new(shape.cells, shape.cell_bytes, shape.trim_bytes),
            asked: BTreeMap::new(),
            completed_tags: Vec::new(),
            stable: None,
            watch: None,
            intruder: None,
            ends: [0; 2],
            next_tag: 1,
            now: Nanos(1),
        }
    }

    fn range(&mut self, op: Op) -> (usize, usize) {
        let stream = usize::from(op != Op::Read);
        let first = if self.random.random_bool(self.shape.sequential) {
            self.ends[stream] % self.shape.cells
        } else {
            self.random.random_range(0..self.shape.cells)
        };
        let room = self.shape.cells - first;
        let longest = if self.random.random_bool(0.1) { room } else { room.min(12) };
        let len = self.random.random_range(0..=longest);
        self.ends[stream] = first + len;
        (first, len)
    }

    fn make(&mut self) -> (Request, Tag) {
        let op = match self.random.random_range(0..20) {
            0..=7 => Op::Read,
            8..=15 => Op::Write,
            16 => Op::Flush,
            17 => Op::Trim,
            18 => Op::WriteZeroes,
            _ => Op::Extents,
        };
        let (first, len) = if op == Op::Flush { (0, 0) } else { self.range(op) };
        // Ids as a client would choose them: any number, but unique among those in flight.
        let id = loop {
            let id = RequestId(self.random.random_range(0..64));
            if !self.asked.contains_key(&id) {
                break id;
            }
        };
        let tag = if op == Op::Write { self.next_tag } else { 0 };
        self.next_tag += u32::from(op == Op::Write);
        let len_bytes = len as u32 * self.shape.cell_bytes;
        let data = match op {
            Op::Write => Bytes::from(tag.to_le_bytes().repeat(len_bytes as usize / 4)),
            _ => Bytes::new(),
        };
        let flags = RequestFlags {
            fua: op.changes_data() && self.random.random_bool(0.15),
            no_hole: op == Op::WriteZeroes && self.random.random_bool(0.5),
            fast_zero: false,
        };
        let offset_bytes = first as u64 * u64::from(self.shape.cell_bytes);
        let queue = QueueId(self.random.random_range(0..3));
        let request = Request {
            id,
            op,
            offset_bytes,
            len_bytes,
            flags,
            data,
            destination: ReadDestination::default(),
            queue,
            stamps: Stamps::default(),
        };

        (request, tag)
    }

    fn submit(&mut self) {
        let (request, tag) = self.make();
        if request.op == Op::Flush && self.stable.is_some() {
            let len_bytes = self.shape.cells as u32 * self.shape.cell_bytes;
            let everything = Request { op: Op::Read, len_bytes, ..request.clone() };
            self.oracle.submitted(&everything, tag);
        } else {
            self.oracle.submitted(&request, tag);
        }
        let completed_before =
            if request.op == Op::Flush { self.completed_tags.clone() } else { Vec::new() };
        self.asked.insert(request.id, Asked { request: request.clone(), tag, completed_before });
        self.backend.submit(request, self.now);
    }

    fn check_extents(asked: &Request, payload: &Payload) -> Result<(), String> {
        let Payload::Extents(extents) = payload else { return Err(format!("{payload:?}")) };
        let total: u64 = extents.iter().map(|extent| extent.len_bytes).sum();
        let kinds: Vec<ExtentKind> = extents.iter().map(|extent| extent.kind).collect();
        if total != u64::from(asked.len_bytes) || kinds.windows(2).any(|two| two[0] == two[1]) {
            return Err(format!("extents {extents:?} for {asked:?}"));
        }
        Ok(())
    }

    fn check(
        &mut self,
        completion: &Completion,
        is_stable: &impl Fn(&B, Tag) -> bool,
    ) -> Result<(), String> {
        let id = completion.id;
        let asked = self.asked.remove(&id).ok_or("a completion nobody asked for")?;
        let request = &asked.request;
        let ok = completion.result.is_ok();
        match (request.op, &completion.result) {
            (Op::Read, Ok(Payload::Data(pieces))) => self.oracle.read(id, Some(&flat(pieces)))?,
            (Op::Read, Err(_)) => self.oracle.read(id, None)?,
            (Op::Extents, result) => {
                self.oracle.other(id);
                if let Ok(payload) = result {
                    Self::check_extents(request, payload)?;
                }
            }
            (Op::Flush, Ok(Payload::None) | Err(_)) if self.stable.is_some() => {
                let stable = self.stable.filter(|_| ok).map(|stable| stable(&self.backend));
                self.oracle.flushed(id, stable)?;
            }
            (Op::Flush, Ok(Payload::None)) => {
                self.oracle.other(id);
                let lost = asked.completed_before.iter().find(|t| !is_stable(&self.backend, **t));
                if let Some(tag) = lost {
                    return Err(format!("write {tag} completed before a flush but is not stable"));
                }
            }
            (Op::Flush, Err(_)) => self.oracle.other(id),
            (Op::Write | Op::Trim | Op::WriteZeroes, Ok(Payload::None) | Err(_)) => {
                self.oracle.changed(id, ok);
                if let Some(stable) = self.stable {
                    if ok && request.flags.fua {
                        self.oracle.forced(request, stable(&self.backend))?;
                    }
                    return Ok(());
                }
                if ok && request.op == Op::Write && request.len_bytes > 0 {
                    if request.flags.fua && !is_stable(&self.backend, asked.tag) {
                        return Err(format!("write {} with FUA is not stable", asked.tag));
                    }
                    self.completed_tags.push(asked.tag);
                }
            }
            (op, result) => return Err(format!("{op:?} gave {result:?}")),
        }
        Ok(())
    }

    /// Runs to the end.
    pub fn run(&mut self, is_stable: impl Fn(&B, Tag) -> bool) -> Result<(), String> {
        let mut left = self.shape.requests;
        let mut next_submit = self.now;
        let mut out = Vec::new();
        let mut steps = 0;
        while left > 0 || !self.asked.is_empty() {
            steps += 1;
            if steps > 200 * self.shape.requests {
                return Err("the backend does not come to an end".into());
            }
            let may_submit = left > 0 && self.asked.len() < self.shape.max_in_flight;
            let due = self.backend.deadline();
            match due {
                Some(due) if !may_submit || due <= next_submit => self.now = self.now.max(due),
                _ if may_submit => {
                    self.now = self.now.max(next_submit);
                    self.submit();
                    left -= 1;
                    let gap = self.random.random_range(0..=self.shape.max_gap);
                    next_submit = self.now.plus(Nanos(gap * self.random.random_range(0..2)));
                }
                _ => return Err(format!("stranded: {:?}", self.asked.keys())),
            }
            self.backend.poll(self.now, &mut out);
            for completion in out.drain(..) {
                self.check(&completion, &is_stable)?;
            }
            if let Some(watch) = self.watch {
                watch(&self.backend);
            }
            if let Some(intruder) = self.intruder
                && self.asked.is_empty()
                && self.random.random_bool(0.25)
            {
                self.intrude(intruder);
            }
        }
        self.read_everything(is_stable)
    }

    /// Another client writes some cells. From then on all reads must show them.
    fn intrude(&mut self, intruder: Intruder<B>) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let (first, len) = self.range(Op::Write);
        let (mut request, _) = self.make();
        let len_bytes = len as u32 * self.shape.cell_bytes;
        request.op = Op::Write;
        request.offset_bytes = first as u64 * u64::from(self.shape.cell_bytes);
        request.len_bytes = len_bytes;
        request.data = Bytes::from(tag.to_le_bytes().repeat(len_bytes as usize / 4));
        request.flags = RequestFlags::default();
        self.oracle.submitted(&request, tag);
        let id = request.id;
        intruder(&mut self.backend, request, &mut self.now);
        self.oracle.changed(id, true);
    }

    /// Reads the whole device twice. Its content is settled by now.
    fn read_everything(&mut self, is_stable: impl Fn(&B, Tag) -> bool) -> Result<(), String> {
        for id in [RequestId(1), RequestId(2)] {
            let len_bytes = self.shape.cells as u32 * self.shape.cell_bytes;
            let request = Request {
                id,
                op: Op::Read,
                offset_bytes: 0,
                len_bytes,
                flags: RequestFlags::default(),
                data: Bytes::new(),
                destination: ReadDestination::default(),
                queue: QueueId::default(),
                stamps: Stamps::default(),
            };
            self.oracle.submitted(&request, 0);
            let asked = Asked { request: request.clone(), tag: 0, completed_before: Vec::new() };
            self.asked.insert(id, asked);
            self.backend.submit(request, self.now);
            let mut out = Vec::new();
            while out.is_empty() {
                self.backend.poll(self.now, &mut out);
                if out.is_empty() {
                    self.now = self.now.max(self.backend.deadline().ok_or("stranded")?);
                }
            }
            self.check(&out[0], &is_stable)?;
        }
        let ids: HashSet<_> = self.asked.keys().collect();
        assert!(ids.is_empty());
        Ok(())
    }
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
