//! Where a request goes, and its way there: target, session, message.

use std::rc::Rc;

use fieldstone_block::Nanos;
use fieldstone_crush::osdmap::{PgId, PoolId};
use fieldstone_crush::{ItemId, OsdId};

use super::map::{Group, Target, fold};
use super::request::{Party, Place, Request};
use super::{Action, ClusterMap, MAX_CACHED_GROUPS, Miss, Objecter, splitmix};
use crate::message::osd::{OsdOp, ShardedPg, flag};

impl<M: ClusterMap> Objecter<M> {
    /// Gives a request its number and target.
    pub(super) fn launch(&mut self, key: usize, now: Nanos) {
        self.last_tid += 1;
        let tid = self.last_tid;
        let Some(request) = self.requests.get_mut(key) else { return };
        (request.tid, request.target, request.sent) = (tid, None, false);
        match self.aim(key) {
            Ok(target) => {
                self.adopt(key, target);
                self.settle(key, now);
            }
            Err(miss) => self.missed(key, miss, now),
        }
    }

    /// Where a request goes by the newest map.
    pub(super) fn aim(&mut self, key: usize) -> Result<Target, Miss> {
        let map = self.map.clone().ok_or(Miss::NoMap)?;
        let request = self.requests.get(key).ok_or(Miss::NoMap)?;
        let known = request.target.as_ref().map(|target| target.hash);
        let object = &request.operation.object;
        let hash = match request.group_seed.or(known) {
            Some(hash) => hash,
            None => map.hash(object).ok_or(Miss::NoPool)?,
        };
        let ignores_tier = request.flags & flag::IGNORE_OVERLAY != 0;
        let (pool, is_write) = (object.pool, request.is_write());
        self.aim_at(&map, (pool, hash), is_write, ignores_tier)
    }

    /// Where a request for the object with this pool and hash goes.
    pub(super) fn aim_at(
        &mut self,
        map: &M,
        (mut pool, hash): (PoolId, u32),
        is_write: bool,
        ignores_tier: bool,
    ) -> Result<Target, Miss> {
        let mut rules = map.pool(pool).ok_or(Miss::NoPool)?;
        if rules.fails {
            return Err(Miss::PoolFails);
        }
        let tier = if is_write { rules.write_tier } else { rules.read_tier };
        if let Some(tier) = tier.filter(|_| !ignores_tier) {
            (pool, rules) = (tier, map.pool(tier).ok_or(Miss::NoPool)?);
        }
        let pg = PgId { pool, seed: fold(hash, rules.pg_num) };
        let group = match self.groups.get(&pg) {
            Some(group) => Rc::clone(group),
            None => {
                let interval = map.place(pg).ok_or(Miss::NoPool)?;
                let target = ShardedPg { pg, shard: interval.shard };
                let group = Rc::new(Group { pg: target, interval, rules });
                if self.groups.len() >= MAX_CACHED_GROUPS {
                    self.groups.clear();
                }
                self.groups.insert(pg, Rc::clone(&group));
                group
            }
        };
        let osd = group.interval.acting_primary;
        Ok(Target { pool, hash, group, osd, chose_replica: false })
    }

    /// Sets a request's target, and whether the map pauses it.
    pub(super) fn adopt(&mut self, key: usize, mut target: Target) {
        if self.requests.get(key).is_some_and(|request| self.may_choose(request, &target)) {
            self.choose_replica(key, &mut target);
        }
        let Some(request) = self.requests.get(key) else { return };
        let paused = self.is_paused(request, &target);
        let Some(request) = self.requests.get_mut(key) else { return };
        request.pool_seen = true;
        request.decisive_epoch = None;
        request.target = Some(target);
        request.paused = paused;
    }

    fn may_choose(&self, request: &Request, target: &Target) -> bool {
        !request.is_write()
            && request.flags & (flag::BALANCE_READS | flag::LOCALIZE_READS) != 0
            && target.group.rules.is_replicated
            && target.group.interval.acting.len() > 1
            && target.osd.is_some()
    }

    fn choose_replica(&mut self, key: usize, target: &mut Target) {
        let acting = target.group.interval.acting.iter();
        let members = acting.filter(|&&item| item != ItemId::NONE).filter_map(|item| item.osd());
        let balances =
            self.requests.get(key).is_some_and(|request| request.flags & flag::BALANCE_READS != 0);
        let chosen = if balances {
            let count = members.clone().count().max(1) as u64;
            members.clone().nth((splitmix(&mut self.random) % count) as usize)
        } else {
            let distance = |osd| self.options.distance.as_ref().map_or(0, |distance| distance(osd));
            members.clone().min_by_key(|&osd| distance(osd))
        };
        if chosen.is_some() && chosen != target.osd {
            (target.osd, target.chose_replica) = (chosen, true);
        }
    }

    /// True if the map holds the request back. A ping goes out also while writes have to wait:
    /// otherwise the OSD would forget the watch. (Ceph: `Objecter::_send_linger_ping`.)
    pub(super) fn is_paused(&self, request: &Request, target: &Target) -> bool {
        let Some(map) = &self.map else { return true };
        if matches!(request.party, Party::Ping { .. }) {
            return map.pauses_reads();
        }
        let full = map.is_full() || target.group.rules.is_full;
        (!request.is_write() && map.pauses_reads())
            || (request.is_write() && map.pauses_writes())
            || (request.respects_full() && full)
            || map.epoch() < self.barrier
    }

    /// Puts a request with a target into a session, and sends it if it may go.
    pub(super) fn settle(&mut self, key: usize, now: Nanos) {
        let Some(request) = self.requests.get(key) else { return };
        let osd = request.target.as_ref().and_then(|target| target.osd);
        let (tid, paused) = (request.tid, request.paused);
        let Some(osd) = osd.filter(|&osd| self.open(osd, now)) else {
            self.make_homeless(key);
            return;
        };
        if let Some(session) = self.sessions.get_mut(&osd) {
            session.requests.insert(tid, key);
        }
        if let Some(request) = self.requests.get_mut(key) {
            request.place = Place::Session(osd);
        }
        if paused {
            self.want_map();
        } else {
            self.send(key, osd, now);
        }
    }

    pub(super) fn make_homeless(&mut self, key: usize) {
        if let Some(request) = self.requests.get_mut(key) {
            request.place = Place::Homeless;
            self.homeless.insert(request.tid, key);
            self.want_map();
        }
    }

    /// Takes a request out of its session, or from the homeless ones.
    pub(super) fn unsettle(&mut self, key: usize) {
        let Some(request) = self.requests.get_mut(key) else { return };
        match request.place {
            Place::Queued => {}
            Place::Homeless => drop(self.homeless.remove(&request.tid)),
            Place::Session(osd) => {
                if let Some(session) = self.sessions.get_mut(&osd) {
                    session.requests.remove(&request.tid);
                }
            }
        }
        request.place = Place::Homeless;
        request.sent = false;
    }

    /// Sends a request of a session, unless the session is not ready or the OSD backs it off.
    pub(super) fn send(&mut self, key: usize, osd: OsdId, now: Nanos) {
        let epoch = self.epoch();
        let Some(session) = self.sessions.get_mut(&osd).filter(|session| session.is_ready()) else {
            return;
        };
        let Some(request) = self.requests.get_mut(key) else { return };
        let (Some(target), Some(position)) = (&request.target, request.position()) else { return };
        let group = target.group.pg;
        if session.backoffs.hold(group, &position) {
            request.sent = false;
            return;
        }
        let again = if request.attempts > 0 { flag::RETRY } else { 0 };
        let client = *request.client.get_or_insert(self.options.client);
        let operation = &request.operation;
        let mut object = operation.object.clone();
        object.pool = target.pool;
        let message = OsdOp {
            target: group,
            object,
            hash: target.hash,
            map_epoch: epoch,
            flags: request.flags | flag::ONDISK | flag::KNOWN_REDIR | again,
            snapshot: operation.snapshot,
            snap_context: operation.snap_context.clone(),
            modified: request.modified,
            client,
            tid: request.tid,
            attempt: request.attempts,
            features: self.options.features,
            ops: operation.ops.clone(),
        };
        request.attempts = request.attempts.saturating_add(1);
        request.sent = true;
        session.last_used = now;
        self.actions.push_back(Action::Send(osd, message));
    }
}
