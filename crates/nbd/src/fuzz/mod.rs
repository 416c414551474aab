//! Fuzzing of a session: it gets any bytes, and the properties below must hold.
//!
//! The input's first eight bytes seed a random number generator. The rest are the client's bytes.
//! The generator decides how the stream is cut, when completions arrive, in which order and with
//! which results, and when replies are taken. The fuzzer always checks:
//!
//! - no panic;
//! - memory stays within the limits;
//! - the output is well-formed, and every request has exactly one reply (see `check`);
//! - the session does not hang: when everything is completed and taken, it wants input or is
//!   closed.
//!
//! The cargo-fuzz target in the repository's `fuzz/` folder and a seeded smoke test use
//! [`session`]. [`seeds`] gives valid sessions to start from.

mod check;
mod seeds;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_block::{
    BlockError, Completion, Extent, ExtentKind, Nanos, Op, Payload, Piece, Request,
};
use smallvec::SmallVec;

use crate::export::{Export, ExportList};
use crate::limits::Limits;
use crate::session::{Session, SessionPhase, Step};
use check::{Expected, check};
pub use seeds::seeds;

/// Size of the fuzzed export: small, so that many requests reach its end.
const SIZE_BYTES: u64 = 1 << 20;

const LIMITS: Limits = Limits {
    max_in_flight: 4,
    max_memory_bytes: 256 << 10,
    max_output_bytes: 4 << 10,
    max_options: 32,
    max_option_bytes: 1 << 10,
    max_discard_bytes: 2 << 20,
    max_extents: 8,
    receive_bytes: 40 << 10,
};

/// The bound of [`Session::memory_bytes`]: the limits, plus one request with its framing, which may
/// exceed them.
const MEMORY_BOUND: usize =
    LIMITS.max_memory_bytes + LIMITS.max_output_bytes + SIZE_BYTES as usize + (64 << 10);

/// The progress of the session in an input, so that a test can judge its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// The session reached transmission.
    pub transmission: bool,
    /// The session ended with a violation.
    pub violation: bool,
    /// The client ended the session.
    pub goodbye: bool,
    /// Requests that reached the backend.
    pub requests: u32,
    /// The largest memory in use.
    pub peak_memory_bytes: usize,
}

/// Runs a session on `input`.
///
/// # Panics
/// If a property does not hold. This is the finding.
pub fn session(input: &[u8]) -> Coverage {
    let (seed, stream) = input.split_at(input.len().min(8));
    let mut seed_bytes = [0; 8];
    seed_bytes[..seed.len()].copy_from_slice(seed);
    let mut harness = Harness::new(u64::from_le_bytes(seed_bytes));
    harness.expect(Expected::Greeting);
    let mut left = stream;
    while !left.is_empty() && harness.step(&mut left) {}
    harness.settle();
    harness.coverage
}

/// A small generator of random numbers (SplitMix64), so that the library needs no dependency for
/// them.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which must not be zero.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }
}

struct Harness {
    session: Session,
    rng: SplitMix64,
    in_flight: Vec<Request>,
    /// The expected parts of the queued output, with their lengths.
    expected: VecDeque<(Expected, usize)>,
    queued_bytes: usize,
    coverage: Coverage,
}

impl Harness {
    fn new(seed: u64) -> Self {
        let export = |name: &str, read_only| Export {
            name: name.into(),
            description: "for fuzzing".into(),
            size_bytes: SIZE_BYTES,
            read_only,
            can_multi_conn: true,
            minimum_block_bytes: 1,
            preferred_block_bytes: 4096,
        };
        let list = ExportList::new(vec![export("disk", false), export("fixed", true)]);
        let exports = Arc::new(list.expect("two sound exports"));
        Self {
            session: Session::new(exports, LIMITS),
            rng: SplitMix64(seed),
            in_flight: Vec::new(),
            expected: VecDeque::new(),
            queued_bytes: 0,
            coverage: Coverage::default(),
        }
    }

    /// One random step; false when the session can receive no more.
    fn step(&mut self, left: &mut &[u8]) -> bool {
        match self.rng.below(4) {
            0 => self.complete_one(),
            1 => self.take_output(),
            _ if self.session.wants_input() => self.receive(left),
            _ => {
                self.complete_one();
                self.take_output();
            }
        }
        self.decode();
        !matches!(self.session.phase(), SessionPhase::Closing | SessionPhase::Closed)
    }

    fn receive(&mut self, left: &mut &[u8]) {
        let fragment = 1 << self.rng.below(17);
        let space = self.session.receive_space();
        assert!(!space.is_empty(), "the session wants input and has no space");
        let len = space.len().min(fragment).min(left.len());
        space[..len].copy_from_slice(&left[..len]);
        *left = &left[len..];
        self.session.received(len, Nanos(1));
    }

    fn decode(&mut self) {
        loop {
            let negotiating = self.session.phase() == SessionPhase::Negotiating;
            let step = self.session.step();
            let expected =
                if negotiating { Expected::Negotiation } else { Expected::Reply { data: 0 } };
            self.expect(expected);
            match step {
                Step::Idle => break,
                Step::Progress => {}
                Step::Request(_, request) => {
                    self.coverage.requests += 1;
                    assert!(request.end_bytes() <= SIZE_BYTES, "a request passes the end");
                    self.in_flight.push(request);
                    assert!(self.in_flight.len() <= LIMITS.max_in_flight as usize);
                }
            }
        }
        self.coverage.transmission |= matches!(self.session.phase(), SessionPhase::Transmission(_));
    }

    fn complete_one(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let request = self.in_flight.swap_remove(self.rng.index(self.in_flight.len()));
        let result = self.answer(&request);
        let data = match &result {
            Ok(Payload::Data(pieces)) if request.op == Op::Read => {
                pieces.iter().map(|piece| piece.len_bytes() as usize).sum()
            }
            _ => 0,
        };
        let dropped = self.session.violation().is_some();
        let completion = Completion::of(&request, result);
        self.session.complete(completion.clone());
        if dropped {
            assert_eq!(self.session.queued_bytes(), self.queued_bytes, "a reply after the end");
        } else {
            assert!(self.session.queued_bytes() > self.queued_bytes, "a request without reply");
            self.expect(Expected::Reply { data });
        }
        // A second completion of the same request must do nothing.
        self.session.complete(completion);
        assert_eq!(self.session.queued_bytes(), self.queued_bytes, "a second reply");
    }

    /// A random result for the request: mostly right, sometimes an error or invalid.
    fn answer(&mut self, request: &Request) -> Result<Payload, BlockError> {
        match self.rng.below(16) {
            0 => return Err(BlockError::Io("fuzzed".into())),
            1 => return Err(BlockError::NotSupported("fuzzed")),
            2 => return Ok(Payload::None),
            _ => {}
        }
        let mut left = request.len_bytes;
        match request.op {
            Op::Read => {
                let mut pieces = SmallVec::new();
                while left > 0 {
                    let len = self.run_length(left);
                    pieces.push(if self.rng.below(2) == 0 {
                        Piece::Zeroes(len)
                    } else {
                        Piece::Data(Bytes::from(vec![0xda; len as usize]))
                    });
                    left -= len;
                }
                Ok(Payload::Data(pieces))
            }
            Op::Extents => {
                let mut extents = Vec::new();
                while left > 0 {
                    let len = self.run_length(left);
                    let kinds = [ExtentKind::Data, ExtentKind::Zero, ExtentKind::Hole];
                    let kind = kinds[self.rng.index(3)];
                    extents.push(Extent { len_bytes: len.into(), kind });
                    left -= len;
                }
                Ok(Payload::Extents(extents))
            }
            _ => Ok(Payload::None),
        }
    }

    /// A length from 1 to `left`, sometimes zero.
    fn run_length(&mut self, left: u32) -> u32 {
        let len = u32::try_from(self.rng.below(1 << 16)).expect("below 2^16");
        if self.rng.below(3) == 0 { left } else { len.min(left) }
    }

    /// Notes the expected content of the bytes queued since the last call. Checks the memory in
    /// use.
    fn expect(&mut self, expected: Expected) {
        let queued = self.session.queued_bytes();
        if queued > self.queued_bytes {
            self.expected.push_back((expected, queued - self.queued_bytes));
        }
        self.queued_bytes = queued;
        let memory = self.session.memory_bytes();
        assert!(memory <= MEMORY_BOUND, "{memory} bytes in use");
        self.coverage.peak_memory_bytes = self.coverage.peak_memory_bytes.max(memory);
    }

    fn take_output(&mut self) {
        let mut out = Vec::new();
        self.session.output(&mut out);
        let bytes = out.concat();
        let mut left = &bytes[..];
        while let Some((expected, len)) = self.expected.pop_front() {
            let (message, rest) = left.split_at(len);
            check(expected, message, self.session.structured());
            left = rest;
        }
        assert!(left.is_empty(), "output nobody accounts for");
        self.queued_bytes = 0;
    }

    /// Completes and takes everything. Then the session must wait for input or be closed.
    fn settle(&mut self) {
        loop {
            self.decode();
            if self.in_flight.is_empty() && self.queued_bytes == 0 {
                break;
            }
            while !self.in_flight.is_empty() {
                self.complete_one();
            }
            self.take_output();
        }
        self.coverage.violation = self.session.violation().is_some();
        self.coverage.goodbye =
            self.session.phase() == SessionPhase::Closed && !self.coverage.violation;
        assert_eq!(self.session.in_flight(), 0);
        let waiting = self.session.wants_input();
        assert!(waiting || self.session.phase() == SessionPhase::Closed, "the session hangs");
    }
}
