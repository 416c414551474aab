//! What time brings: the time limit, probes, sessions to open again, pings.
//!
//! **The time limit** (`rados_osd_op_timeout`) is for the caller: it hears `ETIMEDOUT`. A write
//! that was sent stays under way (see the module `late`).

use std::collections::BTreeSet;

use fieldstone_block::Nanos;
use fieldstone_crush::OsdId;

use super::request::{Party, Place};
use super::{Action, ClusterMap, LAGGY, Objecter, TICK};
use crate::errno::Errno;

impl<M: ClusterMap> Objecter<M> {
    /// The next time at which [`Objecter::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        let reopening = self.reopenings.first().map(|&(at, _)| at);
        let timeout = self.oldest_deadline();
        let busy = self.requests.len() > 0 || !self.asks.now.is_empty();
        let tick = busy.then_some(self.next_tick);
        [reopening, timeout, tick, self.next_ping, self.next_failure].into_iter().flatten().min()
    }

    /// When the oldest request of a caller fails.
    fn oldest_deadline(&self) -> Option<Nanos> {
        let timeout_ms = self.options.timeout_ms;
        let oldest = self.requests.oldest().filter(|_| timeout_ms > 0)?;
        let submitted = self.requests.get(oldest)?.submitted;
        Some(submitted.plus(Nanos(timeout_ms.saturating_mul(1_000_000))))
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Nanos) {
        self.reopen_due(now);
        self.time_out_due(now);
        self.fail_late_lingers(now);
        self.ping_due(now);
        if now >= self.next_tick {
            self.next_tick = now.plus(TICK);
            self.look_for_laggy(now);
        }
    }

    /// All requests fail whose time is over. A request that waits for room is among them or gets
    /// room afterwards: one that was sent now would only become a late write at once.
    fn time_out_due(&mut self, now: Nanos) {
        self.holds_queue = true;
        while self.oldest_deadline().is_some_and(|deadline| deadline <= now) {
            let Some(oldest) = self.requests.oldest() else { break };
            self.time_out(oldest, now);
        }
        self.holds_queue = false;
        self.pump(now);
    }

    /// A request has taken too long. Its caller is told.
    fn time_out(&mut self, key: usize, now: Nanos) {
        if !self.becomes_late(key, Errno::ETIMEDOUT) {
            self.finish(key, Err(Errno::ETIMEDOUT), now);
        }
    }

    /// Probes the connections on which requests have waited long, and asks again for what requests
    /// wait for.
    fn look_for_laggy(&mut self, now: Nanos) {
        let mut laggy = BTreeSet::new();
        let mut next = self.requests.oldest();
        while let Some(key) = next {
            let Some(request) = self.requests.get(key) else { break };
            if now.since(request.submitted) < LAGGY {
                break;
            }
            if let Place::Session(osd) = request.place {
                laggy.insert(osd);
            }
            next = self.requests.after(key);
        }
        // Registrations, pings and late writes are not in the order of submission.
        for (_, request) in self.requests.iter() {
            if let Place::Session(osd) = request.place
                && !matches!(request.party, Party::Caller(_))
                && now.since(request.submitted) >= LAGGY
            {
                laggy.insert(osd);
            }
        }
        let is_ready = |osd: &OsdId| self.sessions.get(osd).is_some_and(|s| s.is_ready());
        let probes = laggy.iter().copied().filter(is_ready).map(Action::Probe);
        self.actions.extend(probes);
        let waits_for_map =
            self.epoch() < self.barrier || self.requests.iter().any(|(_, request)| request.paused);
        if !laggy.is_empty() || !self.homeless.is_empty() || waits_for_map {
            self.asked_map = None;
            self.want_map();
        }
        if !self.asks.is_asked && now.since(self.asks.asked_at) >= LAGGY {
            self.ask_epoch(now);
        }
    }
}
