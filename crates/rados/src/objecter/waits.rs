//! What unanswered requests wait for, as a summary for people.

use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::{PgId, PoolId};

use super::request::{Place, Request};
use super::{ClusterMap, Objecter};

/// Most lines of a summary: those with the oldest requests.
const MAX_WAITS: usize = 64;

/// Why requests are not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitReason {
    /// Too much is in flight.
    Room,
    /// There is no map yet, or it is older than asked for.
    Map,
    /// No map has the pool, and the monitors have not said yet that there is none.
    Pool(PoolId),
    /// The pool fails all requests, and the write may still be executed.
    PoolFails(PoolId),
    /// No OSD serves the group.
    NoPrimary(PgId),
    /// The pool or the cluster is full.
    Full(PoolId),
    /// The cluster is paused.
    Paused,
    /// The connection to the OSD does not stand.
    Connection(OsdId),
    /// The OSD asked to hold back requests for the group.
    Backoff(OsdId, PgId),
    /// The OSD has it, and has not answered.
    Answer(OsdId),
}

/// Requests that wait for the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// For what.
    pub reason: WaitReason,
    /// How many.
    pub requests: usize,
    /// How long the oldest waits since it was submitted.
    pub longest: Nanos,
}

impl<M: ClusterMap> Objecter<M> {
    /// What unanswered requests wait for: the longest wait first, at most 64 reasons.
    #[must_use]
    pub fn waits(&self, now: Nanos) -> Vec<Wait> {
        let mut by_reason: BTreeMap<WaitReason, Wait> = BTreeMap::new();
        for (_, request) in self.requests.iter() {
            let reason = self.reason(request);
            let longest = now.since(request.submitted);
            let first = Wait { reason, requests: 0, longest };
            let wait = by_reason.entry(reason).or_insert(first);
            wait.requests += 1;
            wait.longest = wait.longest.max(longest);
        }
        let mut waits: Vec<Wait> = by_reason.into_values().collect();
        waits.sort_by_key(|wait| (std::cmp::Reverse(wait.longest), wait.reason));
        waits.truncate(MAX_WAITS);
        waits
    }

    fn reason(&self, request: &Request) -> WaitReason {
        if request.place == Place::Queued {
            return WaitReason::Room;
        }
        let Some(target) = &request.target else {
            let pool = Self::pool_of(request);
            return match &self.map {
                Some(map) if map.pool(pool).is_some_and(|rules| rules.fails) => {
                    WaitReason::PoolFails(pool)
                }
                Some(_) => WaitReason::Pool(pool),
                None => WaitReason::Map,
            };
        };
        if request.paused {
            let full = target.group.rules.is_full || self.map.as_ref().is_some_and(|m| m.is_full());
            return match full && request.respects_full() {
                _ if self.epoch() < self.barrier => WaitReason::Map,
                true => WaitReason::Full(target.pool),
                false => WaitReason::Paused,
            };
        }
        let Place::Session(osd) = request.place else {
            return WaitReason::NoPrimary(target.group.pg.pg);
        };
        match self.sessions.get(&osd) {
            Some(session) if session.is_ready() => {
                let group = target.group.pg;
                let position = request.position();
                match position.is_some_and(|position| session.backoffs.hold(group, &position)) {
                    true => WaitReason::Backoff(osd, group.pg),
                    false => WaitReason::Answer(osd),
                }
            }
            _ => WaitReason::Connection(osd),
        }
    }
}
