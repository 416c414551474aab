//! A cluster with faults. Everything follows from a seed: maps that change (OSDs go down and come
//! back, groups split and merge, members move, pools are full, pauses), connections that break,
//! messages that are late or doubled, backoffs. The OSDs of the model throw requests away by the
//! same rules as real ones, and remember the numbers of executed writes for each other.
//!
//! In a third of the seeds, requests have a time limit; these have no watches.
//!
//! Checked: nothing is sent to an OSD that the client's newest map does not name; each request is
//! answered exactly once; the writes on an object are executed once each, in the order of their
//! submission, those whose time is over before they were sent not at all; no answer to an earlier
//! attempt counts; and when the faults end, all requests are answered within a bound, although
//! questions for maps may have got lost. Watches and notifications are in the module `lingers`.

mod lingers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fieldstone_block::Nanos;
use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::{PgId, PoolId};

use super::super::map::splits_or_merges;
use super::super::request::Party;
use super::super::{Action, Event, Objecter, Options, RequestId, Token, splitmix};
use super::{
    CODED, ClusterMap, POOL, TestMap, answer, coded, fold, min_position, object, read, write,
};
use crate::cluster::ObjectName;
use crate::encoding::Addresses;
use crate::errno::Errno;
use crate::message::osd::{
    BackoffStep, ObjectPosition, OsdBackoff, OsdOp, OsdOpReply, ShardedPg, WatchNotify, flag,
};
use lingers::Lingers;

const SEEDS: u64 = 2_000;
const OSDS: usize = 5;
const REQUESTS: u64 = 40;
const FAULTS: u64 = 30;
/// Faults end at this time, in milliseconds; submissions too.
const CALM_MS: u64 = 20_000;
/// All is answered at this time: a request may wait for two ticks, for maps, and for reconnections.
const END_MS: u64 = CALM_MS + 45_000;

#[derive(Debug)]
enum Happening {
    Submit,
    Fault(u64),
    Calm,
    Connected {
        osd: OsdId,
        connection: u64,
    },
    /// A message reaches an OSD.
    AtOsd {
        osd: OsdId,
        connection: u64,
        op: Box<OsdOp>,
    },
    AckAtOsd {
        osd: OsdId,
        connection: u64,
        id: u64,
    },
    /// An answer reaches the client.
    AtClient {
        osd: OsdId,
        connection: u64,
        op: Box<OsdOp>,
        result: i32,
    },
    BackoffAtClient {
        osd: OsdId,
        connection: u64,
        backoff: Box<OsdBackoff>,
    },
    Broken {
        osd: OsdId,
        connection: u64,
    },
    /// A group has peered: it executes what waits.
    Peered(PgId, u32),
    Lift {
        osd: OsdId,
        connection: u64,
        id: u64,
    },
    Maps,
    Newest,
    /// The client begins or ends a watch, or notifies.
    Linger,
    NotifyAtClient {
        osd: OsdId,
        connection: u64,
        message: Box<WatchNotify>,
    },
    NotifyTimeout(u64),
}

#[derive(Default)]
struct Connection {
    number: u64,
    addresses: Addresses,
    stands: bool,
    /// Messages of one direction keep their order: the next ones come after these times.
    to_osd: u64,
    to_client: u64,
    backoffs: Vec<OsdBackoff>,
}

#[derive(Default)]
struct GroupState {
    /// Requests that are older are thrown away.
    primary_since: u32,
    peers_until: u64,
    waiting: Vec<(OsdId, u64, Box<OsdOp>)>,
}

struct World {
    random: u64,
    now: u64,
    serial: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    objecter: Objecter<TestMap>,
    history: Vec<Arc<TestMap>>,
    wants: Option<u32>,
    maps_due: bool,
    groups: BTreeMap<PgId, GroupState>,
    connections: BTreeMap<OsdId, Connection>,
    connection_count: u64,
    executed: BTreeSet<u64>,
    /// When pools were last full.
    full_until: BTreeMap<PoolId, u32>,
    logs: BTreeMap<ObjectName, Vec<u64>>,
    submitted: BTreeMap<u64, (ObjectName, bool, RequestId)>,
    cancelled: BTreeSet<u64>,
    /// Requests whose time was over.
    timed_out: BTreeSet<u64>,
    done: BTreeSet<u64>,
    next_token: u64,
    /// The newest attempt of each request that was sent.
    attempts: BTreeMap<u64, i32>,
    lingers: Lingers,
    calm: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = seed;
        let limit = 1 + splitmix(&mut random) as usize % 40;
        let timeout_ms = if seed % 3 == 1 { 200 + seed / 3 % 20 * 200 } else { 0 };
        let options = Options { max_in_flight: limit, seed, timeout_ms, ..Options::default() };
        let mut world = Self {
            objecter: Objecter::new(options, Nanos(0)),
            random,
            now: 0,
            serial: 0,
            queue: BTreeMap::new(),
            history: vec![Arc::new(TestMap::new(OSDS))],
            wants: Some(0),
            maps_due: false,
            groups: BTreeMap::new(),
            connections: BTreeMap::new(),
            connection_count: 0,
            executed: BTreeSet::new(),
            full_until: BTreeMap::new(),
            logs: BTreeMap::new(),
            submitted: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            timed_out: BTreeSet::new(),
            done: BTreeSet::new(),
            next_token: 0,
            attempts: BTreeMap::new(),
            lingers: Lingers::default(),
            calm: false,
        };
        for _ in 0..REQUESTS {
            let at = world.below(CALM_MS);
            world.at(at, Happening::Submit);
        }
        for _ in 0..if timeout_ms > 0 { 0 } else { lingers::CALLS } {
            let at = world.below(CALM_MS);
            world.at(at, Happening::Linger);
        }
        for _ in 0..FAULTS {
            let (at, kind) = (world.below(CALM_MS), world.below(13));
            world.at(at, Happening::Fault(kind));
        }
        world.at(CALM_MS, Happening::Calm);
        world.deliver_maps_soon();
        world
    }

    fn below(&mut self, bound: u64) -> u64 {
        splitmix(&mut self.random) % bound
    }

    fn at(&mut self, at: u64, happening: Happening) {
        self.serial += 1;
        self.queue.insert((at.max(self.now), self.serial), happening);
    }

    fn truth(&self) -> Arc<TestMap> {
        Arc::clone(self.history.last().expect("there is always a map"))
    }

    fn time(&self) -> Nanos {
        Nanos::from_ms(self.now)
    }

    fn run(&mut self) {
        loop {
            let next = self.queue.first_key_value().map(|(&(at, _), _)| at);
            let timer = self.objecter.deadline().map(|at| at.0.div_ceil(1_000_000));
            let Some(at) = [next, timer].into_iter().flatten().min() else { break };
            if at > END_MS {
                break;
            }
            self.now = self.now.max(at);
            self.objecter.tick(self.time());
            self.drain();
            while let Some(entry) = self.queue.first_entry().filter(|e| e.key().0 <= self.now) {
                let happening = entry.remove();
                self.happen(happening);
                self.drain();
            }
        }
        self.check();
    }

    fn check(&mut self) {
        let waits = self.objecter.waits(self.time());
        let is_ping = |party| matches!(party, Party::Ping { .. });
        let unanswered = self.objecter.requests.iter().filter(|(_, r)| !is_ping(r.party));
        assert_eq!(unanswered.count(), 0, "{waits:?}");
        assert_eq!(self.objecter.late_count(), 0);
        self.check_lingers();
        for (token, (name, is_write, _)) in &self.submitted {
            let cancelled = self.cancelled.contains(token);
            assert_ne!(self.done.contains(token), cancelled, "request {token} on {name:?}");
            let times = |log: &Vec<u64>| log.iter().filter(|other| *other == token).count();
            let executed = self.logs.get(name).map_or(0, times);
            let may_fail = cancelled || self.timed_out.contains(token);
            assert!(executed <= 1 && (executed == 1 || may_fail || !is_write), "{token}");
        }
        for log in self.logs.values() {
            assert!(log.is_sorted(), "the order of writes: {log:?}");
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.objecter.poll_action() {
            match action {
                Action::Open { osd, addresses } => self.open(osd, addresses),
                Action::Close(osd) => drop(self.connections.remove(&osd)),
                Action::Send(osd, op) => self.send(osd, op),
                Action::SendBackoffAck(osd, backoff) => {
                    let at = self.transit(osd, true);
                    let connection = self.connections[&osd].number;
                    self.at(at, Happening::AckAtOsd { osd, connection, id: backoff.id });
                }
                Action::Probe(osd) => assert!(self.connections[&osd].stands),
                // The question, or the answer, may be lost.
                Action::WantMap(_) if !self.calm && self.below(4) == 0 => {}
                Action::WantMap(from) => {
                    self.wants = Some(from);
                    self.deliver_maps_soon();
                }
                Action::WantNewestEpoch => {
                    let at = self.now + self.below(500);
                    self.at(at, Happening::Newest);
                }
            }
        }
        while let Some(event) = self.objecter.poll_event() {
            let (token, result) = match event {
                Event::Done(token, result) if token.0 < lingers::TOKENS => (token, result),
                event => {
                    self.hear_linger(event);
                    self.drain();
                    continue;
                }
            };
            let limit = self.objecter.options.timeout_ms;
            match result {
                Err(Errno::ETIMEDOUT) if limit > 0 => drop(self.timed_out.insert(token.0)),
                result => assert!(result.is_ok(), "{result:?}"),
            }
            assert!(self.done.insert(token.0), "request {token:?} is answered twice");
            assert!(!self.cancelled.contains(&token.0));
        }
    }

    fn open(&mut self, osd: OsdId, addresses: Addresses) {
        self.connection_count += 1;
        let number = self.connection_count;
        let old = Connection { number, addresses, ..Connection::default() };
        self.connections.insert(osd, old);
        let at = self.now + 1 + self.below(300);
        let works = self.calm || self.below(4) != 0;
        let connection = number;
        self.at(
            at,
            match works {
                true => Happening::Connected { osd, connection },
                false => Happening::Broken { osd, connection },
            },
        );
    }

    /// When a message that is sent now arrives.
    fn transit(&mut self, osd: OsdId, to_osd: bool) -> u64 {
        let delay = if self.below(10) == 0 { self.below(2_000) } else { self.below(5) };
        let at = self.now + delay;
        let connection = self.connections.get_mut(&osd).expect("messages go over connections");
        let last = if to_osd { &mut connection.to_osd } else { &mut connection.to_client };
        *last = at.max(*last);
        *last
    }

    fn send(&mut self, osd: OsdId, op: OsdOp) {
        let map = Arc::clone(self.objecter.map().expect("requests are sent by maps"));
        assert_eq!(op.map_epoch, map.epoch);
        let connection = &self.connections[&osd];
        assert!(connection.stands);
        assert_eq!(map.addresses(osd).as_ref(), Some(&connection.addresses));
        assert_eq!(map.pg(&op.object), op.target.pg);
        let place = map.place(op.target.pg).expect("the group exists");
        assert_eq!(place.shard, op.target.shard);
        if op.flags & flag::BALANCE_READS == 0 {
            assert_eq!(place.acting_primary, Some(osd));
        } else {
            assert!(place.acting.iter().any(|item| item.osd() == Some(osd)));
        }
        let full = map.is_full || map.pools[&op.object.pool].is_full;
        let writes = op.flags & flag::WRITE != 0 && !lingers::is_ping(&op);
        self.attempts.insert(op.tid, op.attempt);
        assert!(!(writes && (full || map.pauses_writes)) && (writes || !map.pauses_reads));
        let connection = connection.number;
        let at = self.transit(osd, true);
        self.at(at, Happening::AtOsd { osd, connection, op: Box::new(op) });
    }

    fn is_current(&self, osd: OsdId, connection: u64) -> bool {
        self.connections.get(&osd).is_some_and(|now| now.number == connection)
    }

    fn happen(&mut self, happening: Happening) {
        let now = self.time();
        self.expire_watchers();
        match happening {
            Happening::Submit => self.submit(),
            Happening::Fault(kind) => self.fault(kind),
            Happening::Calm => self.calm_down(),
            Happening::Connected { osd, connection } => self.connected(osd, connection),
            Happening::AtOsd { osd, connection, op } => self.at_osd(osd, connection, op),
            Happening::AckAtOsd { osd, connection, id } => {
                // It may be lifted only when the client has stopped.
                let at = self.now + self.below(3_000);
                self.at(at, Happening::Lift { osd, connection, id });
            }
            Happening::AtClient { osd, connection, op, result } => {
                if self.is_current(osd, connection) {
                    self.at_client(osd, &op, result);
                }
            }
            Happening::BackoffAtClient { osd, connection, backoff } => {
                if self.is_current(osd, connection) {
                    self.objecter.backoff(osd, *backoff, now);
                }
            }
            Happening::Broken { osd, connection } => {
                if self.is_current(osd, connection) {
                    self.connections.remove(&osd);
                    self.objecter.session_closed(osd, now);
                }
            }
            Happening::Peered(pg, since) => self.peered(pg, since),
            Happening::Lift { osd, connection, id } => self.lift(osd, connection, id),
            Happening::Maps => self.deliver_maps(),
            Happening::Newest => {
                let epoch = self.truth().epoch;
                self.objecter.newest_epoch(epoch, now);
            }
            Happening::Linger => self.call_linger(),
            Happening::NotifyAtClient { osd, connection, message } => {
                if self.is_current(osd, connection) {
                    self.objecter.notified(osd, *message, now);
                }
            }
            Happening::NotifyTimeout(id) => self.complete(id),
        }
    }

    fn at_client(&mut self, osd: OsdId, op: &OsdOp, result: i32) {
        let is_late = self.attempts[&op.tid] != op.attempt;
        let done = self.done.len();
        let reply = match lingers::is_linger(op) {
            true => OsdOpReply { reply: self.linger_reply(op, result), ..answer(op, result) },
            false => answer(op, result),
        };
        self.objecter.reply(osd, op.tid, reply, self.time());
        self.drain();
        assert!(!is_late || self.done.len() == done, "request {} has a newer attempt", op.tid);
    }

    fn connected(&mut self, osd: OsdId, number: u64) {
        if !self.is_current(osd, number) {
            return;
        }
        let truth = self.truth().addresses(osd);
        let connection = self.connections.get_mut(&osd).expect("it is current");
        if truth.as_ref() == Some(&connection.addresses) {
            connection.stands = true;
            self.objecter.session_ready(osd, Nanos::from_ms(self.now));
        } else {
            self.connections.remove(&osd);
            self.objecter.session_closed(osd, Nanos::from_ms(self.now));
        }
    }

    fn submit(&mut self) {
        for _ in 0..1 + self.below(4) {
            let number = self.below(4);
            let name = format!("o{number}");
            let name = if self.below(4) == 0 { coded(&name) } else { object(&name) };
            let is_write = self.below(4) != 0;
            let mut operation = if is_write { write(&name) } else { read(&name) };
            operation.flags.balance_reads = self.below(2) == 0;
            let token = self.next_token;
            self.next_token += 1;
            // The model finds the token of an executed request by this.
            operation.snap_context.seq = crate::cluster::SnapId(token);
            let id = self.objecter.submit(Token(token), operation, self.time());
            self.submitted.insert(token, (name, is_write, id));
        }
        if self.below(8) == 0 {
            let token = self.below(self.next_token);
            let id = self.submitted[&token].2;
            self.drain();
            if !self.done.contains(&token) {
                self.cancelled.insert(token);
                self.objecter.cancel(id, self.time());
            }
        }
    }

    /// A request reaches an OSD, which may throw it away, hold it, or execute it.
    fn at_osd(&mut self, osd: OsdId, connection: u64, op: Box<OsdOp>) {
        if !self.is_current(osd, connection) {
            return;
        }
        let truth = self.truth();
        if op.map_epoch < truth.epoch {
            // OSDs tell clients of maps that they lack.
            self.deliver_maps_soon();
        }
        let held = &self.connections[&osd].backoffs;
        if held.iter().any(|backoff| covers(backoff, &op)) {
            return;
        }
        if !self.calm && self.below(30) == 0 {
            return self.back_off(osd, connection, &op);
        }
        let peers = self.groups.get(&op.target.pg).is_some_and(|g| g.peers_until != 0);
        if peers {
            let group = self.groups.entry(op.target.pg).or_default();
            group.waiting.push((osd, connection, op));
        } else {
            self.execute(osd, connection, &op);
        }
    }

    fn execute(&mut self, osd: OsdId, connection: u64, op: &OsdOp) {
        let truth = self.truth();
        let pg = op.target.pg;
        let since = self.groups.get(&pg).map_or(0, |group| group.primary_since);
        let pool = &truth.pools[&pg.pool];
        let is_write = op.flags & flag::WRITE != 0;
        let Some(place) = truth.place(pg).filter(|_| fold(op.hash, pool.pg_num) == pg.seed) else {
            return;
        };
        if op.map_epoch < since || op.map_epoch < pool.resend_epoch {
            return;
        }
        let is_primary = place.acting_primary == Some(osd);
        let replica_reads = op.flags & flag::BALANCE_READS != 0
            && place.acting.iter().any(|item| item.osd() == Some(osd));
        if !is_primary && !replica_reads {
            return;
        }
        // A write that is thrown away while the pool is full must not be overtaken by one that was
        // sent before the client knew. (Real OSDs do not look at that: the order of writes is not
        // kept if a pool is full for a moment of which the client does not hear in time.)
        let was_full = self.full_until.get(&pg.pool).is_some_and(|&epoch| op.map_epoch <= epoch);
        let is_ping = lingers::is_ping(op);
        if is_write && !is_ping && (pool.is_full || was_full) {
            return;
        }
        if is_ping && !self.calm && self.below(10) == 0 {
            return;
        }
        if lingers::is_linger(op) {
            return self.execute_linger(osd, connection, op);
        }
        if !is_primary && self.below(3) == 0 {
            return self.answer(osd, connection, op, -11);
        }
        if is_write && self.executed.insert(op.tid) {
            self.logs.entry(op.object.clone()).or_default().push(op.snap_context.seq.0);
        }
        self.answer(osd, connection, op, 0);
    }

    fn answer(&mut self, osd: OsdId, connection: u64, op: &OsdOp, result: i32) {
        if !self.is_current(osd, connection) {
            return;
        }
        for _ in 0..1 + u64::from(self.below(10) == 0) {
            let at = self.transit(osd, false);
            let op = Box::new(op.clone());
            self.at(at, Happening::AtClient { osd, connection, op, result });
        }
    }

    fn back_off(&mut self, osd: OsdId, connection: u64, op: &OsdOp) {
        self.serial += 1;
        let id = self.serial;
        let one = ObjectPosition {
            hash: op.hash,
            name: op.object.name.to_string(),
            snapshot: crate::cluster::SnapId::HEAD,
            ..min_position(op.object.pool)
        };
        let max = ObjectPosition { is_max: true, ..min_position(op.object.pool) };
        let whole = self.below(2) == 0;
        let (begin, end) =
            if whole { (min_position(op.object.pool), max) } else { (one.clone(), one) };
        let step = BackoffStep::Block;
        let (target, map_epoch) = (op.target, op.map_epoch);
        let backoff = OsdBackoff { target, map_epoch, step, id, begin, end };
        let at = self.transit(osd, false);
        self.connections.get_mut(&osd).expect("current").backoffs.push(backoff.clone());
        let backoff = Box::new(backoff);
        self.at(at, Happening::BackoffAtClient { osd, connection, backoff });
    }

    fn lift(&mut self, osd: OsdId, connection: u64, id: u64) {
        if !self.is_current(osd, connection) {
            return;
        }
        let backoffs = &mut self.connections.get_mut(&osd).expect("current").backoffs;
        let Some(at) = backoffs.iter().position(|backoff| backoff.id == id) else { return };
        let backoff = OsdBackoff { step: BackoffStep::Unblock, ..backoffs.remove(at) };
        let at = self.transit(osd, false);
        let backoff = Box::new(backoff);
        self.at(at, Happening::BackoffAtClient { osd, connection, backoff });
    }

    fn peered(&mut self, pg: PgId, since: u32) {
        let Some(group) = self.groups.get_mut(&pg) else { return };
        if group.primary_since != since {
            return;
        }
        group.peers_until = 0;
        for (osd, connection, op) in std::mem::take(&mut group.waiting) {
            self.execute(osd, connection, &op);
        }
    }

    /// Something goes wrong, or changes.
    fn fault(&mut self, kind: u64) {
        let osd = self.below(OSDS as u64) as usize;
        let pool = if self.below(3) == 0 { CODED } else { POOL };
        let (pick, truth) = (self.below(1 << 32), self.truth());
        match kind {
            0 | 1 => self.change(|map| map.up[osd] = false),
            2 | 3 if !truth.up[osd] => self.change(|map| {
                map.up[osd] = true;
                map.nonces[osd] += 1;
            }),
            4 => {
                let seed = (pick % u64::from(truth.pools[&pool].pg_num)) as u32;
                let mut osds: Vec<u32> = (0..OSDS as u32).collect();
                osds.sort_by_key(|&osd| super::mix(&[pick, osd.into()]));
                osds.truncate(3);
                self.change(|map| drop(map.upmaps.insert(PgId { pool, seed }, osds)));
            }
            5 => self.change(|map| {
                let pool = map.pools.get_mut(&pool).expect("it stays");
                pool.pg_num = (pool.pg_num * 2).min(64);
            }),
            6 => self.change(|map| {
                let pool = map.pools.get_mut(&pool).expect("it stays");
                pool.pg_num = [5, 8, 12][pick as usize % 3];
                pool.pgp_num = pool.pg_num;
            }),
            7 => self.change(|map| map.pools.get_mut(&pool).expect("it stays").is_full ^= true),
            8 => self.change(|map| map.pauses_writes ^= true),
            9 => self.change(|map| map.pauses_reads ^= true),
            10 => self.change(|map| {
                let epoch = map.epoch;
                map.pools.get_mut(&pool).expect("it stays").resend_epoch = epoch;
            }),
            11 => self.forget_one(pick),
            _ => self.break_connection(OsdId(osd as u32)),
        }
    }

    fn break_connection(&mut self, osd: OsdId) {
        if let Some(connection) = self.connections.get(&osd).map(|connection| connection.number) {
            let at = self.now + self.below(100);
            self.at(at, Happening::Broken { osd, connection });
        }
    }

    fn calm_down(&mut self) {
        self.calm = true;
        self.change(|map| {
            for osd in 0..OSDS {
                if !map.up[osd] {
                    map.up[osd] = true;
                    map.nonces[osd] += 1;
                }
            }
            map.pools.values_mut().for_each(|pool| pool.is_full = false);
            (map.pauses_reads, map.pauses_writes) = (false, false);
        });
    }

    /// A new epoch. Groups whose primary changed, or that split or merged, start again.
    fn change(&mut self, change: impl FnOnce(&mut TestMap)) {
        let old = self.truth();
        let new = old.next(change);
        for (&pool, rules) in &new.pools {
            for seed in 0..rules.pg_num {
                let pg = PgId { pool, seed };
                let (before, after) = (old.place(pg), new.place(pg));
                let old_pg_num = old.pools[&pool].pg_num;
                let is_new = seed >= old_pg_num;
                let same = before.zip(after).is_some_and(|(before, after)| {
                    before.acting_primary == after.acting_primary && before.shard == after.shard
                });
                if !is_new && same && !splits_or_merges(seed, old_pg_num, rules.pg_num) {
                    continue;
                }
                let peers_until = self.now + splitmix(&mut self.random) % 1_000;
                let state =
                    GroupState { primary_since: new.epoch, peers_until, waiting: Vec::new() };
                self.groups.insert(pg, state);
                self.at(peers_until, Happening::Peered(pg, new.epoch));
            }
        }
        let full = new.pools.iter().filter(|(_, pool)| pool.is_full);
        self.full_until.extend(full.map(|(&id, _)| (id, new.epoch)));
        // The processes of OSDs that went down, or restarted, lose their connections.
        for osd in (0..OSDS as u32).map(OsdId) {
            let lost = new.addresses(osd) != old.addresses(osd);
            if lost && let Some(now) = self.connections.get(&osd) {
                let connection = now.number;
                let at = self.now + splitmix(&mut self.random) % 500;
                self.at(at, Happening::Broken { osd, connection });
            }
        }
        self.change_intervals(&old, &new);
        // A group that lost its primary lifts its backoffs.
        self.lift_lost(&new);
        self.history.push(Arc::new(new));
        if self.wants.is_some() || self.below(3) == 0 {
            self.deliver_maps_soon();
        }
    }

    fn lift_lost(&mut self, new: &TestMap) {
        let mut lifts = Vec::new();
        for (&osd, connection) in &self.connections {
            for backoff in &connection.backoffs {
                let place = new.place(backoff.target.pg);
                if place.and_then(|place| place.acting_primary) != Some(osd) {
                    lifts.push((osd, connection.number, backoff.id));
                }
            }
        }
        for (osd, connection, id) in lifts {
            self.lift(osd, connection, id);
        }
    }

    fn deliver_maps_soon(&mut self) {
        if !self.maps_due {
            self.maps_due = true;
            let at = self.now + self.below(1_500);
            self.at(at, Happening::Maps);
        }
    }

    /// All maps that the client lacks, in order; sometimes only the newest.
    fn deliver_maps(&mut self) {
        self.maps_due = false;
        let known = self.objecter.epoch();
        let skips = self.below(8) == 0;
        let newest = self.truth().epoch;
        let maps: Vec<Arc<TestMap>> = (self.history.iter())
            .filter(|map| map.epoch > known && (!skips || map.epoch == newest))
            .cloned()
            .collect();
        for map in maps {
            self.wants = None;
            self.objecter.map_changed(map, self.time());
            self.drain();
        }
    }
}

fn covers(backoff: &OsdBackoff, op: &OsdOp) -> bool {
    let target: ShardedPg = op.target;
    let is_whole = backoff.begin != backoff.end;
    backoff.target == target && (is_whole || backoff.begin.name == *op.object.name)
}

#[test]
fn clusters_with_faults_answer_everything_once_and_in_order() {
    // OBJECTER_SEEDS=FIRST+COUNT runs others.
    let seeds = std::env::var("OBJECTER_SEEDS").unwrap_or_else(|_| format!("0+{SEEDS}"));
    let (first, count) = seeds.split_once('+').expect("FIRST+COUNT");
    let first: u64 = first.parse().expect("a number");
    let count: u64 = count.parse().expect("a number");
    for seed in first..first + count {
        let run = std::panic::catch_unwind(|| World::new(seed).run());
        assert!(run.is_ok(), "seed {seed}");
    }
}
