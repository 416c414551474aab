//! Makes a device slower: the layer holds each request back for a fixed time, then passes it on.
//!
//! The layer holds the request, not its completion. A held request has had no effect, so the
//! contract holds. The layer is for tests, and shows how the scheduler behaves over slow stores.

use std::collections::BTreeMap;

use crate::layer::{Counter, Flow, Layer};
use crate::settings::{SettingError, Settings};
use crate::{Nanos, Op, Request};

/// How long the layer holds requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayOptions {
    /// Reads and extent queries.
    pub read: Nanos,
    /// Everything that changes data.
    pub write: Nanos,
    /// Flushes.
    pub flush: Nanos,
}

impl DelayOptions {
    /// Takes the options that `settings` names. The others keep their values.
    ///
    /// # Errors
    /// A value cannot be read.
    pub fn set(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        settings.duration("read", &mut self.read)?;
        settings.duration("write", &mut self.write)?;
        settings.duration("flush", &mut self.flush)
    }
}

/// Holds requests back; see the module's text.
pub struct Delay {
    options: DelayOptions,
    held: BTreeMap<(Nanos, u64), Request>,
    delayed: u64,
}

impl Delay {
    /// A layer that delays requests by `options`.
    #[must_use]
    pub fn new(options: DelayOptions) -> Self {
        Self { options, held: BTreeMap::new(), delayed: 0 }
    }
}

impl Layer for Delay {
    fn name(&self) -> &'static str {
        "delay"
    }

    fn submit(&mut self, request: Request, flow: &mut Flow<'_>) {
        let delay = match request.op {
            Op::Read | Op::Extents => self.options.read,
            Op::Write | Op::Trim | Op::WriteZeroes => self.options.write,
            Op::Flush => self.options.flush,
        };
        if delay == Nanos(0) {
            return flow.pass(request);
        }
        self.delayed += 1;
        self.held.insert((flow.now().plus(delay), self.delayed), request);
    }

    fn turn(&mut self, flow: &mut Flow<'_>) {
        while let Some(entry) = self.held.first_entry() {
            if entry.key().0 > flow.now() {
                break;
            }
            flow.pass(entry.remove());
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        self.held.first_key_value().map(|((due, _), _)| *due)
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let DelayOptions { read, write, flush } = self.options;
        [("read", read), ("write", write), ("flush", flush)]
            .map(|(name, delay)| (name, fieldstone_units::duration_argument(delay.0)))
            .into()
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "delayed", value: self.delayed }]
    }

    fn change(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        let mut options = self.options;
        options.set(settings)?;
        self.options = options;
        Ok(())
    }
}
