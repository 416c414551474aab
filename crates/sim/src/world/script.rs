//! The course of a run, from the creation of the volumes to the last check.
//!
//! 1. The volume is created.
//! 2. Users work while faults strike.
//! 3. No more faults. What is going on must end, and the volume must become whole, in bounded
//!    virtual time: rebuilding always terminates. (If the pool is full, space is trimmed first.)
//! 4. Every block is read and compared.
//! 5. The volume is closed and opened again, and every block is read once more.
//! 6. In half of the runs everything is trimmed: space must come back, and writing must work.

use fieldstone_block::{Nanos, Op};
use fieldstone_volume::Phase;

use super::World;
use crate::actor::{Cast, VolumeProcess};
use crate::checker::Span;
use crate::network::ClientId;
use crate::scenario::Kind;
use crate::trace::Who;

/// Longest virtual time for opening, closing or a round of reads.
const STEP_NS_MAX: u64 = 200_000_000_000;
/// Longest virtual time for the users' work.
const WORK_NS_MAX: u64 = 1_800_000_000_000;
/// Longest virtual time until the volume is whole after the last fault.
const WHOLE_NS_MAX: u64 = 600_000_000_000;
/// Most events of a run: a run that does nothing forever must end too.
const EVENTS_MAX: u64 = 3_000_000;
/// Blocks per request when everything is read or trimmed.
const SWEEP_BLOCKS: u64 = 16;
/// Requests of one volume in flight meanwhile.
const SWEEP_DEPTH: usize = 8;
/// Segments that may be in use on an empty volume: open ones, and two checkpoints.
const EMPTY_SEGMENTS_MAX: u64 = 6;

impl<C: Cast> World<'_, C> {
    /// Plays the run to its end, or to its first failure.
    pub(crate) fn play(&mut self) {
        let summary = self.scenario.summary();
        let seed = self.scenario.seed;
        self.note(Who::World, "seed", seed, format_args!("{seed}: {summary}"));
        self.play_steps();
    }

    fn play_steps(&mut self) -> Option<()> {
        for tenant in self.all_tenants() {
            self.start_volume(tenant, false);
        }
        self.until("the volumes are created", STEP_NS_MAX, Self::all_serve)?;
        self.users_active = true;
        self.faults_active = true;
        for tenant in self.all_tenants() {
            self.schedule_work(tenant, 0);
        }
        self.schedule_strike();
        self.until("the work is done", WORK_NS_MAX, |world| {
            let over = world.tenants.iter().all(|tenant| tenant.workload.is_over());
            over && world.in_flight.is_empty()
        })?;
        self.note(Who::World, "calm", 0, format_args!("no more faults"));
        self.users_active = false;
        self.faults_active = false;
        if self.scenario.kind == Kind::Full {
            self.make_room()?;
        }
        self.until("the volume is whole again", WHOLE_NS_MAX, Self::is_settled)?;
        self.read_all()?;
        self.reopen()?;
        self.read_all()?;
        if self.world_dice.chance(500) {
            self.trim_all()?;
        }
        self.close()
    }

    /// Goes on until `done`; `None` if something went wrong or it takes too long.
    fn until(&mut self, what: &str, ns_max: u64, done: impl Fn(&Self) -> bool) -> Option<()> {
        let limit = self.now().plus(Nanos(ns_max));
        while !done(self) {
            if !self.step() {
                return None;
            }
            if self.now() > limit || self.schedule.taken() > EVENTS_MAX {
                let reason = self.describe_state();
                self.fail(format!("waited too long until {what}: {reason}"));
                return None;
            }
        }
        Some(())
    }

    /// What every volume says of itself, and what the world knows.
    pub(super) fn describe_state(&self) -> String {
        let mut text = String::new();
        for (index, tenant) in self.tenants.iter().enumerate() {
            text.push_str(&match tenant.active.map(|active| &self.volumes[&active]) {
                Some(host) => {
                    let health = host.process.health();
                    format!("volume {index} {:?}, {}; ", health.phase, health.text)
                }
                None => format!("volume {index} has no process; "),
            });
        }
        let (waiting, impaired) = (self.in_flight.len(), self.atlas.impaired());
        text.push_str(&format!("{waiting} requests in flight, impaired {impaired:?}"));
        text
    }

    fn all_are(&self, phase: &Phase) -> bool {
        let is = |client: ClientId| self.volumes[&client].phase == *phase;
        self.tenants.iter().all(|tenant| tenant.active.is_some_and(is))
    }

    fn all_serve(&self) -> bool {
        self.all_are(&Phase::Serving)
    }

    /// Every volume serves, with one process, and has answered everything.
    fn is_quiet(&self) -> bool {
        let alone = self.volumes.len() == self.tenants.len();
        self.all_serve() && alone && self.in_flight.is_empty()
    }

    fn is_settled(&self) -> bool {
        let whole = |client: ClientId| self.is_whole(client);
        self.is_quiet()
            && self.atlas.impaired().is_empty()
            && self.tenants.iter().all(|tenant| tenant.active.is_some_and(whole))
    }

    /// A full pool must let everything be read, and recover when space is trimmed.
    fn make_room(&mut self) -> Option<()> {
        self.until("a full volume serves", STEP_NS_MAX, Self::is_quiet)?;
        self.read_all()?;
        self.note(Who::World, "sweep", 2, format_args!("trim half of the full pool"));
        for tenant in self.all_tenants() {
            let blocks = self.device_blocks(tenant) / 2;
            self.submit_plain(tenant, Op::Trim, Span { first: 0, blocks });
        }
        self.collect_frames();
        self.until("room is made", STEP_NS_MAX, |world| world.in_flight.is_empty())
    }

    fn device_blocks(&self, tenant: usize) -> u64 {
        self.tenants[tenant].share.plan.device_blocks
    }

    /// Submits requests over every block of every volume, a few of each volume at a time.
    fn sweep(&mut self, op: Op) -> Option<()> {
        let longest = self.all_tenants().map(|tenant| self.device_blocks(tenant)).max()?;
        let depth = SWEEP_DEPTH * self.tenants.len();
        for first in (0..longest).step_by(SWEEP_BLOCKS as usize) {
            for tenant in self.all_tenants() {
                let blocks = self.device_blocks(tenant);
                if first < blocks {
                    let span = Span { first, blocks: SWEEP_BLOCKS.min(blocks - first) };
                    self.submit_plain(tenant, op, span);
                }
            }
            self.collect_frames();
            self.until("a sweep goes on", STEP_NS_MAX, |world| world.in_flight.len() < depth)?;
        }
        self.until("a sweep is done", STEP_NS_MAX, |world| world.in_flight.is_empty())
    }

    fn read_all(&mut self) -> Option<()> {
        self.note(Who::World, "sweep", 0, format_args!("read every block"));
        self.sweep(Op::Read)?;
        let unsettled: usize = self.tenants.iter().map(|t| t.checker.unsettled()).sum();
        if unsettled > 0 {
            self.fail(format!("{unsettled} blocks are undecided after all were read"));
            return None;
        }
        Some(())
    }

    fn flush(&mut self) -> Option<()> {
        for tenant in self.all_tenants() {
            self.submit_plain(tenant, Op::Flush, Span { first: 0, blocks: 1 });
        }
        self.collect_frames();
        self.until("a flush is done", STEP_NS_MAX, |world| world.in_flight.is_empty())
    }

    fn close(&mut self) -> Option<()> {
        for tenant in self.all_tenants() {
            let active = self.tenants[tenant].active?;
            self.with_volume(active, |volume, _| volume.request_close());
        }
        self.collect_frames();
        self.until("the volumes are closed", STEP_NS_MAX, |world| world.all_are(&Phase::Closed))
    }

    fn reopen(&mut self) -> Option<()> {
        self.close()?;
        for tenant in self.all_tenants() {
            let active = self.tenants[tenant].active?;
            self.kill_volume(active, "closed");
        }
        self.collect_frames();
        self.until("the volumes are open again", STEP_NS_MAX, Self::all_serve)
    }

    fn trim_all(&mut self) -> Option<()> {
        self.note(Who::World, "sweep", 1, format_args!("trim every block"));
        self.sweep(Op::Trim)?;
        self.flush()?;
        self.reopen()?;
        self.until("the empty volumes are whole", WHOLE_NS_MAX, Self::is_settled)?;
        self.read_all()?;
        let used = self.volumes[&self.tenants[0].active?].process.health().slots_used;
        let segments = EMPTY_SEGMENTS_MAX * self.tenants.len() as u64;
        let allowed = segments * self.scenario.profile.shards() as u64;
        self.note(Who::World, "space", used, format_args!("{used} slots used of {allowed}"));
        if used > allowed {
            self.fail(format!(
                "{used} slots are in use though all volumes are empty, not {allowed}"
            ));
            return None;
        }
        for tenant in self.all_tenants() {
            self.submit_plain(tenant, Op::Write, Span { first: 0, blocks: SWEEP_BLOCKS });
        }
        self.collect_frames();
        self.flush()?;
        self.sweep(Op::Read)
    }
}
