//! What breaks, and when it is whole again.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_cluster_model::wire::Server;
use fieldstone_crush::osdmap::{PgId, Pool, PoolId};
use fieldstone_rados::encoding::EntityKind;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::maps::{ERASURE, OSDS, REPLICATED};
use crate::world::{MONITORS, World, ms};

/// The most groups of a pool.
const MAX_GROUPS: u32 = 32;

/// The fate of a transport, by direction: up and down.
#[derive(Clone, Debug, Default)]
pub struct Doom {
    /// The connect is refused.
    pub refuses: bool,
    /// The connect is never answered.
    pub hangs: bool,
    /// It breaks after so many bytes.
    pub cut_after: [Option<u64>; 2],
    /// A bit of this byte flips.
    pub flip_at: [Option<u64>; 2],
    /// The bit that flips.
    pub bit: u8,
    /// It carries nothing behind so many bytes.
    pub silent_after: [Option<u64>; 2],
    /// It carries nothing any more.
    pub is_silent: bool,
    /// All bytes take longer.
    pub slow_ms: u64,
}

/// What ends a fault.
#[derive(Debug)]
enum Heal {
    MarkDown(u32),
    Start(u32),
    In(u32),
    Lead(PgId),
    Unblock(PgId),
    NotFull(PoolId),
    Unpause,
    Monitor(u32),
}

/// The faults of a seed.
pub struct Faults {
    /// New transports are doomed with this probability, in percent.
    doomed_percent: u32,
    /// The longest time between two faults of the cluster.
    pub longest_pause_ms: u64,
    /// Kinds of faults that the seed has.
    kinds: Vec<u32>,
    is_over: bool,
    /// The monitors have a new secret.
    has_rotated: bool,
    heals: BTreeMap<u64, Heal>,
    newest: u64,
    dead: BTreeSet<u32>,
    away: BTreeSet<u32>,
    blocked: BTreeSet<PgId>,
}

/// Kinds of faults of the cluster.
const KINDS: u32 = 22;

impl Faults {
    /// Draws how bad it gets.
    pub fn new(rng: &mut ChaCha8Rng) -> Self {
        // Some seeds have few kinds of faults, so that others do not hide what they cause.
        let kinds = if rng.random_ratio(1, 2) {
            (0..KINDS).collect()
        } else {
            let count = rng.random_range(1..6);
            (0..count).map(|_| rng.random_range(0..KINDS)).collect()
        };
        Self {
            doomed_percent: [0, 5, 25, 60][rng.random_range(0..4)],
            longest_pause_ms: [300, 1_500, 5_000, 12_000][rng.random_range(0..4)],
            kinds,
            is_over: false,
            has_rotated: false,
            heals: BTreeMap::new(),
            newest: 0,
            dead: BTreeSet::new(),
            away: BTreeSet::new(),
            blocked: BTreeSet::new(),
        }
    }

    /// True if a monitor does not run.
    pub fn is_away(&self, rank: u32) -> bool {
        self.away.contains(&rank)
    }

    /// True if an OSD does not run, although the map may say so.
    pub fn is_dead(&self, osd: u32) -> bool {
        self.dead.contains(&osd)
    }

    /// Draws the fate of a new transport.
    pub fn doom(&self, rng: &mut ChaCha8Rng, _: Option<Server>) -> Doom {
        let mut doom = Doom::default();
        if self.is_over || !rng.random_ratio(self.doomed_percent, 100) {
            return doom;
        }
        let way = rng.random_range(0..2);
        // Most of a handshake is in the first kilobytes.
        let after =
            if rng.random() { rng.random_range(0..2_000) } else { rng.random_range(0..60_000) };
        match rng.random_range(0..8) {
            0 => doom.refuses = true,
            1 => doom.hangs = rng.random_ratio(1, 2),
            2..=4 => doom.cut_after[way] = Some(after),
            5 | 6 => {
                doom.flip_at[way] = Some(after);
                doom.bit = rng.random_range(0..8);
            }
            _ => doom.silent_after[way] = Some(after),
        }
        if rng.random_ratio(1, 4) {
            doom.slow_ms = rng.random_range(0..1_500);
        }
        doom
    }

    fn heal_with(&mut self, heal: Heal) -> u64 {
        self.newest += 1;
        self.heals.insert(self.newest, heal);
        self.newest
    }
}

impl World {
    fn later(&mut self, longest_ms: u64, heal: Heal) {
        let after = ms(self.rng.random_range(1..longest_ms));
        let number = self.faults.heal_with(heal);
        self.heal_later(after, number);
    }

    fn pick_pg(&mut self) -> PgId {
        let pool = if self.rng.random_ratio(2, 3) { REPLICATED } else { ERASURE };
        let seed = self.rng.random_range(0..self.maps.map().pools[&pool].pg_num);
        PgId { pool, seed }
    }

    fn break_where(&mut self, is_doomed: impl Fn(Server) -> bool) {
        let all: Vec<u64> = self
            .pipes
            .iter()
            .filter(|(_, pipe)| is_doomed(pipe.server))
            .map(|(&id, _)| id)
            .collect();
        all.into_iter().for_each(|id| self.break_pipe(id));
    }

    fn pick_pipe(&mut self) -> Option<u64> {
        let at = self.rng.random_range(0..self.pipes.len().max(1));
        self.pipes.keys().nth(at).copied()
    }

    fn kill(&mut self, osd: u32) {
        if !self.maps.is_up(osd) || !self.faults.dead.insert(osd) {
            return;
        }
        self.break_where(|server| server == Server::Osd(osd));
        self.later(3_000, Heal::MarkDown(osd));
    }

    fn monitor_goes(&mut self, rank: u32, longest_ms: u64) {
        if self.faults.away.insert(rank) {
            self.break_where(|server| server == Server::Monitor(rank));
            self.later(longest_ms, Heal::Monitor(rank));
        }
    }

    fn change_maps(&mut self, count: u32) {
        for _ in 0..count {
            match self.rng.random_range(0..4) {
                0 => {
                    let pg = self.pick_pg();
                    let by = self.rng.random_range(0..3);
                    self.maps.lead(self.links.cluster(), pg, Some(by));
                }
                1 => {
                    let (pg, pick) = (self.pick_pg(), self.rng.random_range(0..32));
                    self.maps.upmap(self.links.cluster(), pg, pick);
                }
                2 => {
                    let osd = self.rng.random_range(0..OSDS);
                    let is_in = self.rng.random();
                    self.maps.weigh(self.links.cluster(), osd, is_in);
                }
                _ => self.maps.change(self.links.cluster(), |_| {}),
            }
        }
    }

    /// All groups get another primary, and the one before again. A client that knows neither map in
    /// between has to send its requests again all the same.
    fn there_and_back(&mut self) {
        self.maps.lead_all(self.links.cluster(), Some(1));
        self.maps.lead_all(self.links.cluster(), None);
    }

    /// Begins a fault of the cluster.
    pub fn begin_fault(&mut self) {
        let at = self.rng.random_range(0..self.faults.kinds.len());
        let kind = self.faults.kinds[at];
        self.say(|| format!("fault {kind}"));
        match kind {
            0..=8 => self.begin_fault_of_osds(kind),
            _ => self.begin_fault_of_cluster(kind),
        }
        self.links.flush();
    }

    fn begin_fault_of_osds(&mut self, kind: u32) {
        match kind {
            0 => {
                if let Some(pipe) = self.pick_pipe() {
                    self.break_pipe(pipe);
                }
            }
            1 => {
                if let Some(pipe) = self.pick_pipe().and_then(|id| self.pipes.get_mut(&id)) {
                    pipe.doom.is_silent = true;
                }
            }
            2 => {
                let osd = self.rng.random_range(0..OSDS);
                self.kill(osd);
            }
            3 => {
                let osd = self.rng.random_range(0..OSDS);
                self.maps.weigh(self.links.cluster(), osd, false);
                self.later(20_000, Heal::In(osd));
            }
            4 => self.split(),
            5 => {
                let (pg, by) = (self.pick_pg(), self.rng.random_range(1..3));
                self.maps.lead(self.links.cluster(), pg, Some(by));
                self.later(20_000, Heal::Lead(pg));
            }
            6 => {
                let (pg, pick) = (self.pick_pg(), self.rng.random_range(0..32));
                self.maps.upmap(self.links.cluster(), pg, pick);
            }
            7 => {
                let count = self.rng.random_range(2..12);
                self.change_maps(count);
            }
            _ => {
                let count = self.rng.random_range(1..50);
                self.change_maps(count);
                let newest = self.links.cluster().epoch();
                let kept = self.rng.random_range(0..4);
                self.links.cluster().trim_maps(newest.saturating_sub(kept));
            }
        }
    }

    fn split(&mut self) {
        let pool = if self.rng.random() { REPLICATED } else { ERASURE };
        if self.maps.map().pools[&pool].pg_num >= MAX_GROUPS {
            return;
        }
        for pg in std::mem::take(&mut self.faults.blocked) {
            self.links.cluster().unblock(pg);
        }
        let places_too = self.rng.random_ratio(1, 2);
        self.maps.change_pool(self.links.cluster(), pool, |pool, _| {
            pool.pg_num *= 2;
            (pool.pg_num_target, pool.pg_num_pending) = (pool.pg_num, pool.pg_num);
            if places_too {
                (pool.pgp_num, pool.pgp_num_target) = (pool.pg_num, pool.pg_num);
            }
        });
        self.log.groups.set(self.maps.map().pools[&REPLICATED].pg_num);
    }

    fn begin_fault_of_cluster(&mut self, kind: u32) {
        match kind {
            9 => {
                let pg = self.pick_pg();
                if self.faults.blocked.insert(pg) {
                    self.links.cluster().block(pg);
                    self.later(10_000, Heal::Unblock(pg));
                }
            }
            10 => {
                let pool = if self.rng.random() { REPLICATED } else { ERASURE };
                self.set_full(pool, true);
                self.later(8_000, Heal::NotFull(pool));
            }
            11 => {
                let (reads, writes) =
                    [(true, false), (false, true), (true, true)][self.rng.random_range(0..3)];
                self.maps.pause(self.links.cluster(), reads, writes);
                self.later(8_000, Heal::Unpause);
            }
            12 => {
                let rank = self.rng.random_range(0..MONITORS);
                self.monitor_goes(rank, 10_000);
            }
            13 => (0..MONITORS).for_each(|rank| self.monitor_goes(rank, 15_000)),
            14 => self.rotate(),
            15 => self.wall_jump_s += self.rng.random_range(-4_000..4_000),
            16 => {
                let count = self.rng.random_range(1..10);
                self.links.duplicate_replies(count);
            }
            17 => self.break_where(|_| true),
            18 => (0..OSDS).for_each(|osd| self.kill(osd)),
            19 => {
                if self.rng.random_ratio(1, 3) {
                    self.break_where(|server| matches!(server, Server::Osd(_)));
                }
                self.there_and_back();
                let newest = self.links.cluster().epoch();
                self.links.cluster().trim_maps(newest);
            }
            20 => {
                let slow_ms = self.rng.random_range(0..4_000);
                if let Some(pipe) = self.pick_pipe().and_then(|id| self.pipes.get_mut(&id)) {
                    pipe.doom.slow_ms = slow_ms;
                }
            }
            _ => self.there_and_back(),
        }
    }

    /// A service gets a new secret. That of the monitors only once: a client whose ticket for
    /// monitors is forgotten becomes another client, and its requests in flight count as new.
    fn rotate(&mut self) {
        if self.rng.random_ratio(1, 4) && !std::mem::replace(&mut self.faults.has_rotated, true) {
            self.keys.rotate(EntityKind::Auth);
        } else {
            self.keys.rotate(EntityKind::Osd);
        }
    }

    fn set_full(&mut self, pool: PoolId, is_full: bool) {
        let cluster = self.links.cluster();
        if let Some(stored) = cluster.store().pool_mut(pool) {
            stored.info.is_full = is_full;
        }
        self.maps.change_pool(cluster, pool, |pool, _| {
            pool.flags = pool.flags & !Pool::FULL | if is_full { Pool::FULL } else { 0 };
        });
    }

    /// Ends a fault.
    pub fn heal(&mut self, number: u64) {
        let Some(heal) = self.faults.heals.remove(&number) else { return };
        self.say(|| format!("{heal:?}"));
        match heal {
            Heal::MarkDown(osd) => {
                if self.maps.is_up(osd) {
                    self.maps.down(self.links.cluster(), osd);
                }
                self.later(15_000, Heal::Start(osd));
            }
            Heal::Start(osd) => {
                self.faults.dead.remove(&osd);
                if !self.maps.is_up(osd) {
                    self.maps.up(self.links.cluster(), osd);
                }
            }
            Heal::In(osd) => self.maps.weigh(self.links.cluster(), osd, true),
            Heal::Lead(pg) => self.maps.lead(self.links.cluster(), pg, None),
            Heal::Unblock(pg) => {
                self.faults.blocked.remove(&pg);
                self.links.cluster().unblock(pg);
            }
            Heal::NotFull(pool) => self.set_full(pool, false),
            Heal::Unpause => self.maps.pause(self.links.cluster(), false, false),
            Heal::Monitor(rank) => {
                self.faults.away.remove(&rank);
            }
        }
        self.links.flush();
    }

    /// Ends all faults.
    pub fn heal_all(&mut self) {
        self.say(|| "peace".to_owned());
        self.faults.is_over = true;
        while let Some(&number) = self.faults.heals.keys().next() {
            self.heal(number);
        }
        (0..OSDS).for_each(|osd| self.maps.weigh(self.links.cluster(), osd, true));
        for pg in std::mem::take(&mut self.faults.blocked) {
            self.links.cluster().unblock(pg);
        }
        self.links.duplicate_replies(0);
        for pipe in self.pipes.values_mut() {
            (pipe.doom.cut_after, pipe.doom.flip_at) = ([None; 2], [None; 2]);
            (pipe.doom.silent_after, pipe.doom.slow_ms) = ([None; 2], 0);
        }
        self.links.flush();
    }
}
