//! Which monitor to try, and when: the part of [`Monitors`](super::Monitors) that looks for a
//! session.
//!
//! A **round** tries each monitor once, up to [`Options::parallel`] at a time, in random order.
//! Monitors of a lower priority number come first. *Suspects* come last, when all others have been
//! tried: a suspect is the monitor whose session was lost, or that accepted a session and then did
//! not answer. An attempt that fails is replaced at once by the next monitor; one that is not ready
//! after the interval is given up.
//!
//! A round begins no sooner than one interval after the one before it began. A session that lived
//! longer than that is followed at once by a new round; one that broke early only by the monitors
//! that its round has not tried yet. So no fault of monitors makes a loop without a pause, and no
//! other rule is needed. The interval grows by one half with each round that brings no session, and
//! shrinks again while a session lasts.

use std::collections::BTreeMap;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{MonitorSession, Options};
use crate::Nanos;
use crate::encoding::Addresses;

/// What is known of a monitor.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) addresses: Addresses,
    priority: u16,
    /// Tried in this round.
    tried: bool,
    /// To be tried last.
    pub(super) suspect: bool,
    /// It refused the client's key; `None` if not, or if it accepted it since.
    pub(super) refusal: Option<String>,
}

impl Known {
    pub(super) fn new(addresses: Addresses, priority: u16) -> Self {
        Self { addresses, priority, tried: false, suspect: false, refusal: None }
    }

    fn rank(&self) -> Rank {
        (self.suspect, self.priority)
    }
}

/// A session that is being opened.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) addresses: Addresses,
    /// Given up then.
    pub(super) until: Nanos,
    rank: Rank,
}

/// The order in which monitors are tried, lowest first: whether it is a suspect, and its priority.
type Rank = (bool, u16);

/// The monitors, and the state of the search.
#[derive(Clone, Debug)]
pub(super) struct Hunt {
    pub(super) monitors: Vec<Known>,
    pub(super) attempts: BTreeMap<MonitorSession, Attempt>,
    /// No new round before this.
    pub(super) next_round: Nanos,
    /// The present interval, from [`Options::hunt_interval`] to [`Options::hunt_interval_max`].
    pub(super) interval: Nanos,
}

/// True if both name the same listening socket for messenger 2. Nonces are not compared: the one of
/// a configured address is 0, and so is a monitor's.
pub(super) fn same_place(one: &Addresses, other: &Addresses) -> bool {
    let socket = |addresses: &Addresses| addresses.msgr2().and_then(|address| address.socket);
    socket(one).is_some() && socket(one) == socket(other)
}

impl Hunt {
    pub(super) fn new(monitors: Vec<Known>, options: &Options, now: Nanos) -> Self {
        let interval = options.hunt_interval;
        Self { monitors, attempts: BTreeMap::new(), next_round: now, interval }
    }

    fn find(&mut self, addresses: &Addresses) -> Option<&mut Known> {
        self.monitors.iter_mut().find(|monitor| same_place(&monitor.addresses, addresses))
    }

    /// Tries this monitor last in later rounds.
    pub(super) fn suspect(&mut self, addresses: &Addresses) {
        if let Some(monitor) = self.find(addresses) {
            monitor.suspect = true;
        }
    }

    /// The monitor refused the client's key.
    pub(super) fn refused(&mut self, addresses: &Addresses, why: &str) {
        if let Some(monitor) = self.find(addresses) {
            monitor.refusal = Some(why.to_owned());
        }
    }

    /// Why the key is refused, if all monitors refuse it.
    pub(super) fn all_refuse(&self) -> Option<String> {
        let refused = self.monitors.iter().all(|monitor| monitor.refusal.is_some());
        self.monitors.first().filter(|_| refused)?.refusal.clone()
    }

    /// A session proved itself. Forgets what was held against monitors.
    pub(super) fn succeeded(&mut self) {
        for monitor in &mut self.monitors {
            (monitor.suspect, monitor.refusal) = (false, None);
        }
    }

    /// Replaces the monitors. What is known of one that stays is kept.
    pub(super) fn replace(&mut self, monitors: Vec<Known>) {
        let old = std::mem::replace(&mut self.monitors, monitors);
        for before in old {
            if let Some(monitor) = self.find(&before.addresses) {
                monitor.tried = before.tried;
                monitor.suspect = before.suspect;
                monitor.refusal = before.refusal;
            }
        }
    }

    /// The interval after a session that lasted this long.
    pub(super) fn relax(&mut self, lasted: Nanos, options: &Options) {
        let steps = 1 + lasted.0 / options.relax_interval.0.max(1);
        for _ in 0..steps.min(32) {
            self.interval = Nanos(self.interval.0 / 3 * 2).max(options.hunt_interval);
        }
    }

    /// Begins a new round if its time has come and the present one is over.
    pub(super) fn begin_round(&mut self, options: &Options, now: Nanos) {
        let is_over = self.attempts.is_empty() && self.monitors.iter().all(|known| known.tried);
        if now >= self.next_round && (is_over || self.monitors.iter().all(|known| !known.tried)) {
            if is_over {
                let grown = Nanos(self.interval.0.saturating_mul(3) / 2);
                self.interval = grown.min(options.hunt_interval_max);
            }
            self.restart(now);
        }
    }

    /// Begins a new round after a session that lasted.
    pub(super) fn begin_round_after_session(&mut self, now: Nanos) {
        if now >= self.next_round {
            self.restart(now);
        }
    }

    fn restart(&mut self, now: Nanos) {
        let all_suspect = self.monitors.iter().all(|known| known.suspect);
        for known in &mut self.monitors {
            known.tried = false;
            known.suspect &= !all_suspect;
        }
        self.next_round = now.plus(self.interval);
    }

    /// Begins an attempt to reach the next monitor, if one may be tried now.
    ///
    /// Monitors of a higher rank wait until all of a lower one have failed. Otherwise a suspect
    /// that accepts quickly and never answers would win each round.
    pub(super) fn choose(
        &mut self,
        session: MonitorSession,
        options: &Options,
        rng: &mut ChaCha8Rng,
        now: Nanos,
    ) -> Option<Addresses> {
        if self.attempts.len() >= options.parallel.max(1) {
            return None;
        }
        let rank = self.monitors.iter().filter(|known| !known.tried).map(Known::rank).min()?;
        if self.attempts.values().any(|attempt| attempt.rank != rank) {
            return None;
        }
        let mut candidates: Vec<&mut Known> =
            self.monitors.iter_mut().filter(|known| !known.tried && known.rank() == rank).collect();
        let index = rng.random_range(0..candidates.len());
        let chosen = &mut candidates[index];
        chosen.tried = true;
        let addresses = chosen.addresses.clone();
        let until = now.plus(self.interval);
        self.attempts.insert(session, Attempt { addresses: addresses.clone(), until, rank });
        Some(addresses)
    }

    /// An attempt became the session: it, and the sessions of the others, which have to be closed.
    /// Those monitors count as not tried.
    pub(super) fn won(
        &mut self,
        session: MonitorSession,
    ) -> Option<(Addresses, Vec<MonitorSession>)> {
        let winner = self.attempts.remove(&session)?.addresses;
        let others = std::mem::take(&mut self.attempts);
        for other in others.values() {
            if let Some(monitor) = self.find(&other.addresses) {
                monitor.tried = false;
            }
        }
        if let Some(monitor) = self.find(&winner) {
            monitor.refusal = None;
        }
        Some((winner, others.into_keys().collect()))
    }

    /// When the search goes on by itself.
    pub(super) fn deadline(&self) -> Nanos {
        self.attempts.values().map(|attempt| attempt.until).min().unwrap_or(self.next_round)
    }
}
