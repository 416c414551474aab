//! Makes a backend slower: each request is held back for a fixed time before it is passed on.
//!
//! Holding the request rather than its completion keeps the contract without further thought: what
//! has not reached the backend has had no effect and has not completed. For tests and for showing
//! what the scheduler does over slow stores.

use std::collections::BTreeMap;

use crate::{Backend, Completion, Info, Nanos, Op, Request};

/// How long requests are held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayOptions {
    /// Reads and extent queries.
    pub read: Nanos,
    /// Everything that changes data.
    pub write: Nanos,
    /// Flushes.
    pub flush: Nanos,
}

/// Holds requests back; see the module's text.
pub struct Delay<B> {
    inner: B,
    options: DelayOptions,
    held: BTreeMap<(Nanos, u64), Request>,
    next: u64,
}

impl<B: Backend> Delay<B> {
    /// Puts the decorator over `inner`.
    #[must_use]
    pub fn new(inner: B, options: DelayOptions) -> Self {
        Delay { inner, options, held: BTreeMap::new(), next: 0 }
    }

    /// The backend below.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// The backend below, to hand it its own events.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner
    }
}

impl<B: Backend> Backend for Delay<B> {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn submit(&mut self, request: Request, now: Nanos) {
        let delay = match request.op {
            Op::Read | Op::Extents => self.options.read,
            Op::Write | Op::Trim | Op::WriteZeroes => self.options.write,
            Op::Flush => self.options.flush,
        };
        if delay == Nanos(0) {
            return self.inner.submit(request, now);
        }
        self.next += 1;
        self.held.insert((now.plus(delay), self.next), request);
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        while let Some(entry) = self.held.first_entry() {
            if entry.key().0 > now {
                break;
            }
            self.inner.submit(entry.remove(), now);
        }
        self.inner.poll(now, out);
    }

    fn deadline(&self) -> Option<Nanos> {
        let held = self.held.first_key_value().map(|((due, _), _)| *due);
        crate::earlier(held, self.inner.deadline())
    }
}
