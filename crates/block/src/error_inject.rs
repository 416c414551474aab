//! Makes requests fail, at random from a seed or because they touch a bad range.
//!
//! A request that fails here never reaches the backend: it has no effect. The sequence of failures
//! depends on the seed and on the requests only, so a run can be repeated.

use std::ops::Range;

use crate::{Backend, BlockError, Completion, Info, Nanos, Op, Request};

/// Which requests fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorOptions {
    /// Where the random sequence starts.
    pub seed: u64,
    /// One read (or extent query) in this many fails; zero = none.
    pub reads_one_in: u32,
    /// One change in this many fails; zero = none.
    pub writes_one_in: u32,
    /// One flush in this many fails; zero = none.
    pub flushes_one_in: u32,
    /// Requests that touch one of these ranges of bytes always fail.
    pub bad_ranges: Vec<Range<u64>>,
}

/// Makes requests fail; see the module's text.
pub struct ErrorInject<B> {
    inner: B,
    options: ErrorOptions,
    state: u64,
    injected: u64,
    ready: Vec<Completion>,
}

impl<B: Backend> ErrorInject<B> {
    /// Puts the decorator over `inner`.
    #[must_use]
    pub fn new(inner: B, options: ErrorOptions) -> Self {
        ErrorInject { inner, state: options.seed, options, injected: 0, ready: Vec::new() }
    }

    /// How many requests were made to fail.
    pub fn injected(&self) -> u64 {
        self.injected
    }

    /// Changes what fails from now on.
    pub fn set_options(&mut self, options: ErrorOptions) {
        self.options = options;
    }

    /// The backend below.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// The backend below, to hand it its own events.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner
    }

    /// The next number of the sequence (SplitMix64: an odd step and a mixing of the bits).
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn fails(&mut self, request: &Request) -> bool {
        let one_in = match request.op {
            Op::Read | Op::Extents => self.options.reads_one_in,
            Op::Write | Op::Trim | Op::WriteZeroes => self.options.writes_one_in,
            Op::Flush => self.options.flushes_one_in,
        };
        let end = request.offset_bytes.saturating_add(u64::from(request.len_bytes));
        let touches = |bad: &Range<u64>| request.offset_bytes < bad.end && bad.start < end;
        let bad = request.op != Op::Flush && self.options.bad_ranges.iter().any(touches);
        bad || (one_in > 0 && self.random().is_multiple_of(u64::from(one_in)))
    }
}

impl<B: Backend> Backend for ErrorInject<B> {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn submit(&mut self, request: Request, now: Nanos) {
        if self.fails(&request) {
            self.injected += 1;
            let error = BlockError::Io("injected".into());
            return self.ready.push(Completion::of(&request, Err(error)));
        }
        self.inner.submit(request, now);
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        out.append(&mut self.ready);
        self.inner.poll(now, out);
    }

    fn deadline(&self) -> Option<Nanos> {
        self.inner.deadline()
    }
}
