//! Makes requests fail: at random from a seed, or because they touch a bad range.
//!
//! A request that fails here goes no further down, so it has no effect. The sequence of failures
//! depends only on the seed and the requests, so a run is repeatable.

use std::ops::Range;

use crate::layer::{Counter, Flow, Layer};
use crate::settings::{SettingError, Settings};
use crate::{BlockError, Completion, Op, Request};

/// Which requests fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorOptions {
    /// The seed of the random sequence.
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

impl ErrorOptions {
    /// Takes the options that `settings` names. The others keep their values.
    ///
    /// # Errors
    /// A value cannot be read.
    pub fn set(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        settings.number("seed", &mut self.seed)?;
        settings.number("reads", &mut self.reads_one_in)?;
        settings.number("writes", &mut self.writes_one_in)?;
        settings.number("flushes", &mut self.flushes_one_in)?;
        let mut bad = self.bad_ranges.first().cloned().unwrap_or(0..0);
        settings.size("bad-from", &mut bad.start)?;
        settings.size("bad-to", &mut bad.end)?;
        if bad.start < bad.end {
            self.bad_ranges = vec![bad];
        }
        Ok(())
    }
}

/// Makes requests fail; see the module's text.
pub struct ErrorInject {
    options: ErrorOptions,
    state: u64,
    injected: u64,
}

impl ErrorInject {
    /// A layer that makes requests fail by `options`.
    #[must_use]
    pub fn new(options: ErrorOptions) -> Self {
        Self { state: options.seed, options, injected: 0 }
    }

    /// Number of requests that the layer made fail.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.injected
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

impl Layer for ErrorInject {
    fn name(&self) -> &'static str {
        "error"
    }

    fn submit(&mut self, request: Request, flow: &mut Flow<'_>) {
        if self.fails(&request) {
            self.injected += 1;
            let error = BlockError::Io("injected".into());
            return flow.answer(Completion::of(&request, Err(error)));
        }
        flow.pass(request);
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let ErrorOptions { seed, reads_one_in, writes_one_in, flushes_one_in, bad_ranges } =
            &self.options;
        let mut options = vec![
            ("seed", seed.to_string()),
            ("reads", reads_one_in.to_string()),
            ("writes", writes_one_in.to_string()),
            ("flushes", flushes_one_in.to_string()),
        ];
        if let Some(bad) = bad_ranges.first() {
            options.push(("bad-from", fieldstone_units::size_argument(bad.start)));
            options.push(("bad-to", fieldstone_units::size_argument(bad.end)));
        }
        options
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "injected", value: self.injected }]
    }

    fn change(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        let mut options = self.options.clone();
        options.set(settings)?;
        if options.seed != self.options.seed {
            self.state = options.seed;
        }
        self.options = options;
        Ok(())
    }
}
