//! The session with one OSD: its requests in order, and what the OSD asked to hold back.

use std::collections::BTreeMap;

use fieldstone_block::Nanos;

use super::position::Position;
use crate::encoding::Addresses;
use crate::message::osd::{OsdBackoff, ShardedPg};

/// Most backoffs of a session. An OSD that asks for more is cut off.
pub const MAX_BACKOFFS: usize = 65_536;

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionState {
    /// The owner connects.
    Opening,
    /// Requests can be sent.
    Ready,
    /// It broke, and is opened again at this time.
    Waiting(Nanos),
}

#[derive(Debug)]
pub(super) struct Session {
    pub addresses: Addresses,
    pub state: SessionState,
    /// Keys of requests by their numbers, sent or not.
    pub requests: BTreeMap<u64, usize>,
    pub backoffs: Backoffs,
    /// How often it broke since it last stood for [`SETTLED`](super::SETTLED).
    pub failures: u32,
    /// When it last became ready.
    pub ready_since: Nanos,
    pub last_used: Nanos,
}

impl Session {
    pub fn new(addresses: Addresses, now: Nanos) -> Self {
        Self {
            addresses,
            state: SessionState::Opening,
            requests: BTreeMap::new(),
            backoffs: Backoffs::default(),
            failures: 0,
            ready_since: now,
            last_used: now,
        }
    }

    pub fn is_ready(&self) -> bool {
        self.state == SessionState::Ready
    }
}

/// The ranges of objects whose requests an OSD does not want now.
#[derive(Debug, Default)]
pub(super) struct Backoffs {
    by_group: BTreeMap<ShardedPg, Vec<OsdBackoff>>,
    groups: BTreeMap<u64, ShardedPg>,
}

impl Backoffs {
    /// Adds one. False if there are too many.
    pub fn block(&mut self, backoff: OsdBackoff) -> bool {
        if self.groups.len() >= MAX_BACKOFFS {
            return false;
        }
        self.remove(backoff.id);
        self.groups.insert(backoff.id, backoff.target);
        self.by_group.entry(backoff.target).or_default().push(backoff);
        true
    }

    /// Takes out the one with this number.
    pub fn remove(&mut self, id: u64) -> Option<OsdBackoff> {
        let group = self.groups.remove(&id)?;
        let backoffs = self.by_group.get_mut(&group)?;
        let at = backoffs.iter().position(|backoff| backoff.id == id)?;
        let removed = backoffs.swap_remove(at);
        if backoffs.is_empty() {
            self.by_group.remove(&group);
        }
        Some(removed)
    }

    /// True if requests for this position have to wait.
    pub fn hold(&self, group: ShardedPg, position: &Position<'_>) -> bool {
        if self.by_group.is_empty() {
            return false;
        }
        let backoffs = self.by_group.get(&group);
        backoffs
            .into_iter()
            .flatten()
            .any(|backoff| position.is_within(&backoff.begin, &backoff.end))
    }

    pub fn clear(&mut self) {
        self.by_group.clear();
        self.groups.clear();
    }
}
