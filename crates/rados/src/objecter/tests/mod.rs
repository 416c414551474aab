//! Tests: a map that is quick to change, a bench for one objecter, and the rules one by one. The
//! module `world` has a cluster with faults.

mod late;
mod rules;
mod watches;
mod world;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_crush::osdmap::{PgId, PoolId};
use fieldstone_crush::{ItemId, OsdId};

use super::map::{ClusterMap, Interval, PoolRules, fold};
use super::{Action, Event, Objecter, Options, Token, splitmix};
use crate::cluster::{ObjectName, Operation};
use crate::encoding::{Addresses, EntityAddress};
use crate::errno::Errno;
use crate::message::osd::{ObjectPosition, OsdOp, OsdOpReply};
use crate::op::{ObjectOps, Reply};

pub(super) const POOL: PoolId = PoolId(1);
/// An erasure-coded pool.
pub(super) const CODED: PoolId = PoolId(2);

#[derive(Clone, Debug)]
pub(super) struct TestPool {
    pub pg_num: u32,
    pub pgp_num: u32,
    pub is_replicated: bool,
    pub size: usize,
    pub is_full: bool,
    pub fails: bool,
    pub resend_epoch: u32,
}

/// A map that ranks OSDs by a hash.
#[derive(Clone, Debug)]
pub(super) struct TestMap {
    pub epoch: u32,
    pub pools: BTreeMap<PoolId, TestPool>,
    pub up: Vec<bool>,
    pub nonces: Vec<u32>,
    pub upmaps: BTreeMap<PgId, Vec<u32>>,
    pub pauses_reads: bool,
    pub pauses_writes: bool,
    pub is_full: bool,
}

pub(super) fn mix(values: &[u64]) -> u64 {
    let mut state = 0;
    values.iter().fold(0, |hash, &value| {
        state = hash ^ value;
        splitmix(&mut state)
    })
}

impl TestMap {
    pub fn new(osds: usize) -> Self {
        let pool = |is_replicated| TestPool {
            pg_num: 8,
            pgp_num: 8,
            is_replicated,
            size: 3,
            is_full: false,
            fails: false,
            resend_epoch: 0,
        };
        Self {
            epoch: 1,
            pools: [(POOL, pool(true)), (CODED, pool(false))].into(),
            up: vec![true; osds],
            nonces: vec![1; osds],
            upmaps: BTreeMap::new(),
            pauses_reads: false,
            pauses_writes: false,
            is_full: false,
        }
    }

    /// The next epoch.
    pub fn next(&self, change: impl FnOnce(&mut TestMap)) -> TestMap {
        let mut next = self.clone();
        next.epoch += 1;
        change(&mut next);
        next
    }

    pub fn pg(&self, object: &ObjectName) -> PgId {
        let hash = self.hash(object).unwrap();
        PgId { pool: object.pool, seed: fold(hash, self.pools[&object.pool].pg_num) }
    }

    pub fn primary(&self, object: &ObjectName) -> OsdId {
        self.place(self.pg(object)).unwrap().acting_primary.unwrap()
    }

    /// Moves the group of an object to these OSDs.
    pub fn moved(&mut self, object: &ObjectName, osds: &[u32]) {
        let pg = self.pg(object);
        self.upmaps.insert(pg, osds.to_vec());
    }
}

impl ClusterMap for TestMap {
    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn pauses_reads(&self) -> bool {
        self.pauses_reads
    }

    fn pauses_writes(&self) -> bool {
        self.pauses_writes
    }

    fn is_full(&self) -> bool {
        self.is_full
    }

    fn pool(&self, pool: PoolId) -> Option<PoolRules> {
        let pool = self.pools.get(&pool)?;
        Some(PoolRules {
            pg_num: pool.pg_num,
            is_replicated: pool.is_replicated,
            is_full: pool.is_full,
            fails: pool.fails,
            resend_epoch: pool.resend_epoch,
            read_tier: None,
            write_tier: None,
        })
    }

    fn hash(&self, object: &ObjectName) -> Option<u32> {
        self.pools.get(&object.pool)?;
        let text = if object.key.is_empty() { &object.name } else { &object.key };
        let text = text.bytes().map(u64::from).collect::<Vec<_>>();
        Some(mix(&text) as u32)
    }

    fn place(&self, pg: PgId) -> Option<Interval> {
        let pool = self.pools.get(&pg.pool)?;
        let members = self.upmaps.get(&pg).cloned().unwrap_or_else(|| {
            let seed = fold(pg.seed, pool.pgp_num);
            let mut osds: Vec<u32> = (0..self.up.len() as u32).collect();
            osds.sort_by_key(|&osd| mix(&[pg.pool.0 as u64, seed.into(), osd.into()]));
            osds.truncate(pool.size);
            osds
        });
        let is_up = |osd: &u32| self.up[*osd as usize];
        let acting: Vec<ItemId> = if pool.is_replicated {
            members.iter().filter(|osd| is_up(osd)).map(|&osd| ItemId(osd as i32)).collect()
        } else {
            let item = |osd: &u32| if is_up(osd) { ItemId(*osd as i32) } else { ItemId::NONE };
            members.iter().map(item).collect()
        };
        let first = acting.iter().position(|&item| item != ItemId::NONE);
        let primary = first.and_then(|at| acting[at].osd());
        Some(Interval {
            acting: acting.clone(),
            acting_primary: primary,
            up: acting,
            up_primary: primary,
            shard: if pool.is_replicated { -1 } else { first.map_or(-1, |at| at as i8) },
            sizes: (pool.size as u8, 2),
            pg_nums: (pool.pg_num, pool.pg_num),
        })
    }

    fn addresses(&self, osd: OsdId) -> Option<Addresses> {
        let at = osd.0 as usize;
        let socket = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 6800 + osd.0 as u16);
        self.up.get(at)?.then(|| Addresses(vec![EntityAddress::msgr2(socket, self.nonces[at])]))
    }
}

pub(super) fn object(name: &str) -> ObjectName {
    ObjectName::new(POOL, "", name)
}

pub(super) fn coded(name: &str) -> ObjectName {
    ObjectName::new(CODED, "", name)
}

pub(super) fn write(object: &ObjectName) -> Operation {
    let mut ops = ObjectOps::new();
    ops.write(0, Bytes::from_static(b"data"));
    Operation::new(object.clone(), ops)
}

pub(super) fn read(object: &ObjectName) -> Operation {
    let mut ops = ObjectOps::new();
    ops.read(0, 4096);
    Operation::new(object.clone(), ops)
}

pub(super) fn answer(op: &OsdOp, result: i32) -> OsdOpReply {
    OsdOpReply {
        pg: op.target.pg,
        object: Bytes::copy_from_slice(op.object.name.as_bytes()),
        flags: op.flags,
        map_epoch: op.map_epoch,
        attempt: op.attempt,
        reply: Reply { result, ..Reply::default() },
        redirect: None,
    }
}

pub(super) fn min_position(pool: PoolId) -> ObjectPosition {
    ObjectPosition {
        is_max: false,
        pool,
        hash: 0,
        namespace: String::new(),
        key: String::new(),
        name: String::new(),
        snapshot: crate::cluster::SnapId(0),
    }
}

/// One objecter whose sessions stand as soon as it asks, unless told otherwise.
pub(super) struct Bench {
    pub objecter: Objecter<TestMap>,
    pub map: TestMap,
    pub now: Nanos,
    pub connects: bool,
    pub sent: Vec<(OsdId, OsdOp)>,
    pub other: Vec<Action>,
    pub events: Vec<Event>,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    pub fn with(options: Options) -> Self {
        let mut bench = Self::without_map(options);
        let map = bench.map.clone();
        bench.set_map(map);
        bench.other.clear();
        bench
    }

    pub fn without_map(options: Options) -> Self {
        Self {
            objecter: Objecter::new(options, Nanos(0)),
            map: TestMap::new(6),
            now: Nanos(0),
            connects: true,
            sent: Vec::new(),
            other: Vec::new(),
            events: Vec::new(),
        }
    }

    pub fn drain(&mut self) {
        while let Some(action) = self.objecter.poll_action() {
            match action {
                Action::Send(osd, op) => self.sent.push((osd, op)),
                action => {
                    if let Action::Open { osd, .. } = &action
                        && self.connects
                    {
                        self.objecter.session_ready(*osd, self.now);
                    }
                    self.other.push(action);
                }
            }
        }
        while let Some(event) = self.objecter.poll_event() {
            self.events.push(event);
        }
    }

    pub fn set_map(&mut self, map: TestMap) {
        self.map = map.clone();
        self.objecter.map_changed(Arc::new(map), self.now);
        self.drain();
    }

    pub fn change(&mut self, change: impl FnOnce(&mut TestMap)) {
        let next = self.map.next(change);
        self.set_map(next);
    }

    pub fn submit(&mut self, token: u64, operation: Operation) -> super::RequestId {
        let id = self.objecter.submit(Token(token), operation, self.now);
        self.drain();
        id
    }

    pub fn put(&mut self, token: u64, operation: Operation) {
        self.submit(token, operation);
    }

    pub fn reply(&mut self, osd: OsdId, op: &OsdOp, result: i32) {
        self.objecter.reply(osd, op.tid, answer(op, result), self.now);
        self.drain();
    }

    pub fn close(&mut self, osd: OsdId) {
        self.objecter.session_closed(osd, self.now);
        self.drain();
    }

    pub fn advance(&mut self, ms: u64) {
        let end = self.now.plus(Nanos::from_ms(ms));
        while let Some(at) = self.objecter.deadline().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.objecter.tick(self.now);
            self.drain();
        }
        self.now = end;
    }

    /// Takes what was sent.
    pub fn take(&mut self) -> Vec<(OsdId, OsdOp)> {
        std::mem::take(&mut self.sent)
    }

    /// Takes the only thing that was sent.
    #[track_caller]
    pub fn only(&mut self) -> (OsdId, OsdOp) {
        let mut sent = self.take();
        assert_eq!(sent.len(), 1, "{sent:#?}");
        sent.remove(0)
    }

    /// Takes the results of requests, in order.
    pub fn done(&mut self) -> Vec<(u64, Result<i32, Errno>)> {
        std::mem::take(&mut self.events)
            .into_iter()
            .map(|event| match event {
                Event::Done(token, result) => (token.0, result.map(|reply| reply.result)),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    pub fn asks_for_map(&mut self) -> bool {
        let asks = self.other.iter().any(|action| matches!(action, Action::WantMap(_)));
        self.other.clear();
        asks
    }
}

impl TestMap {
    pub fn place_of(&self, object: &ObjectName) -> Vec<OsdId> {
        let place = self.place(self.pg(object)).unwrap();
        place.acting.iter().filter_map(|item| item.osd()).collect()
    }
}
