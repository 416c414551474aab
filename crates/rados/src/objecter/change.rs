//! What changes of maps and sessions do to requests.

use std::sync::Arc;

use fieldstone_block::Nanos;
use fieldstone_crush::OsdId;

use super::request::Place;
use super::session::SessionState;
use super::{Action, ClusterMap, MAX_REOPEN_DELAY, Miss, Objecter, Party, REOPEN_DELAY, SETTLED};

/// What a new map means for a request.
enum Verdict {
    /// Nothing.
    Stays,
    /// It is sent again, maybe to another OSD.
    Moves,
    /// It has no target.
    Misses(Miss),
}

impl<M: ClusterMap> Objecter<M> {
    /// A newer map. The owner passes every epoch that it can get, in order. A map that is not newer
    /// is ignored.
    pub fn map_changed(&mut self, map: Arc<M>, now: Nanos) {
        let epoch = map.epoch();
        let skipped = match &self.map {
            Some(old) if epoch <= old.epoch() => return,
            Some(old) => Some(epoch) != old.epoch().checked_add(1),
            None => false,
        };
        self.map = Some(map);
        self.groups.clear();
        let lost = self.close_changed_sessions();
        let lingers = self.changed_lingers(skipped, &lost);
        self.check_requests(skipped, now);
        self.note_groups();
        self.register_all(&lingers, now);
        self.pump(now);
        if !self.homeless.is_empty() || epoch < self.barrier || self.is_any_paused() {
            self.want_map();
        }
    }

    fn is_any_paused(&self) -> bool {
        let Some(map) = &self.map else { return false };
        (map.pauses_reads() || map.pauses_writes() || map.is_full())
            || self.requests.iter().any(|(_, request)| request.paused)
    }

    /// Closes the sessions of OSDs that are down or have other addresses. Gives these OSDs.
    fn close_changed_sessions(&mut self) -> Vec<OsdId> {
        let Some(map) = self.map.clone() else { return Vec::new() };
        let changed = self
            .sessions
            .iter()
            .filter(|(osd, session)| map.addresses(**osd).as_ref() != Some(&session.addresses));
        let changed: Vec<OsdId> = changed.map(|(&osd, _)| osd).collect();
        for &osd in &changed {
            let Some(session) = self.close(osd) else { continue };
            for key in session.requests.into_values() {
                if let Some(request) = self.requests.get_mut(key) {
                    // Not in `homeless`: the pass over all requests puts it back.
                    request.place = Place::Homeless;
                    request.sent = false;
                    request.target = None;
                }
            }
        }
        changed
    }

    /// One pass over all requests: those that must move are sent again, in order of their numbers.
    fn check_requests(&mut self, skipped: bool, now: Nanos) {
        let mut all: Vec<(u64, usize)> = (self.requests.iter())
            .filter(|(_, request)| request.tid != 0)
            .map(|(key, request)| (request.tid, key))
            .collect();
        all.sort_unstable();
        let mut moving = Vec::new();
        let mut missing = Vec::new();
        for (_, key) in all {
            match self.judge(key, skipped) {
                Verdict::Stays => {}
                Verdict::Moves => {
                    self.unsettle(key);
                    moving.push(key);
                }
                Verdict::Misses(miss) => {
                    self.unsettle(key);
                    missing.push((key, miss));
                }
            }
        }
        for key in moving {
            if let Some(target) = self.requests.get_mut(key).and_then(|r| r.target.take()) {
                self.adopt(key, target);
            }
            if self.requests.get(key).is_some_and(|request| request.party == Party::Late) {
                // It may have lost its place while its pool failed all requests.
                self.take_place(key);
            }
            self.settle(key, now);
        }
        for (key, miss) in missing {
            self.missed(key, miss, now);
        }
    }

    fn judge(&mut self, key: usize, skipped: bool) -> Verdict {
        let new = match self.aim(key) {
            Ok(target) => target,
            Err(miss) => return Verdict::Misses(miss),
        };
        let epoch = self.epoch();
        let Some(request) = self.requests.get(key) else { return Verdict::Stays };
        let paused = self.is_paused(request, &new);
        let moves = match &request.target {
            None => true,
            Some(old) => skipped || request.place == Place::Homeless || old.must_move(&new, epoch),
        };
        let unpaused = request.paused && !paused;
        let Some(request) = self.requests.get_mut(key) else { return Verdict::Stays };
        if moves {
            request.target = Some(new);
            return Verdict::Moves;
        }
        request.paused = paused;
        if let Some(target) = &mut request.target {
            target.group = new.group;
        }
        if unpaused { Verdict::Moves } else { Verdict::Stays }
    }

    /// The connection to an OSD stands, and authenticated.
    pub fn session_ready(&mut self, osd: OsdId, now: Nanos) {
        let Some(session) = self.sessions.get_mut(&osd) else { return };
        if session.state != SessionState::Opening {
            return;
        }
        session.state = SessionState::Ready;
        session.ready_since = now;
        session.last_used = now;
        let keys: Vec<usize> = session.requests.values().copied().collect();
        self.send_all(osd, &keys, now);
    }

    /// Sends requests of a session that are not paused.
    pub(super) fn send_all(&mut self, osd: OsdId, keys: &[usize], now: Nanos) {
        for &key in keys {
            if self.requests.get(key).is_some_and(|request| !request.paused) {
                self.send(key, osd, now);
            }
        }
    }

    /// The connection to an OSD broke, or could not be made.
    pub fn session_closed(&mut self, osd: OsdId, now: Nanos) {
        let Some(session) = self.sessions.get_mut(&osd) else { return };
        if matches!(session.state, SessionState::Waiting(_)) {
            return;
        }
        session.backoffs.clear();
        if session.is_ready() && now.since(session.ready_since) >= SETTLED {
            session.failures = 0;
        }
        // Not ready from here on, so that nothing is sent meanwhile.
        session.state = SessionState::Opening;
        session.failures = session.failures.saturating_add(1);
        let failures = session.failures;
        self.take_back(osd, now);
        self.reopen(osd, failures, now);
        self.want_map();
    }

    /// The owner wants the connection to an OSD in another place: closes it, and opens it again at
    /// once. All requests of the session are sent again, as after a loss, but it counts as none.
    pub fn move_session(&mut self, osd: OsdId, now: Nanos) {
        let Some(session) = self.sessions.get_mut(&osd).filter(|session| session.is_ready()) else {
            return;
        };
        session.backoffs.clear();
        session.state = SessionState::Opening;
        let addresses = session.addresses.clone();
        self.actions.push_back(Action::Close(osd));
        self.actions.push_back(Action::Open { osd, addresses });
        self.take_back(osd, now);
    }

    /// Nothing of a session that is not ready counts as sent. Its watches are registered anew.
    fn take_back(&mut self, osd: OsdId, now: Nanos) {
        let Some(session) = self.sessions.get(&osd) else { return };
        let keys: Vec<usize> = session.requests.values().copied().collect();
        for key in keys {
            let Some(request) = self.requests.get_mut(key) else { continue };
            request.sent = false;
            if matches!(request.party, Party::Ping { .. }) {
                self.discard(key);
            }
        }
        self.renew_lingers_of(osd, now);
    }

    fn reopen(&mut self, osd: OsdId, failures: u32, now: Nanos) {
        let Some(session) = self.sessions.get_mut(&osd) else { return };
        if session.requests.is_empty() {
            self.sessions.remove(&osd);
            return;
        }
        if failures <= 1 {
            let addresses = session.addresses.clone();
            self.actions.push_back(Action::Open { osd, addresses });
            return;
        }
        let delay = REOPEN_DELAY.0 << (failures - 2).min(16);
        let at = now.plus(Nanos(delay.min(MAX_REOPEN_DELAY.0)));
        session.state = SessionState::Waiting(at);
        self.reopenings.insert((at, osd));
    }

    /// Opens the sessions whose delay is over.
    pub(super) fn reopen_due(&mut self, now: Nanos) {
        while let Some(&(at, osd)) = self.reopenings.first().filter(|(at, _)| *at <= now) {
            self.reopenings.remove(&(at, osd));
            if let Some(session) = self.sessions.get_mut(&osd) {
                session.state = SessionState::Opening;
                let addresses = session.addresses.clone();
                self.actions.push_back(Action::Open { osd, addresses });
            }
        }
    }
}
