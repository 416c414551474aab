//! The course of a run, from the creation of the volume to the last check.
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
        self.start_volume(false);
        self.until("the volume is created", STEP_NS_MAX, Self::is_serving)?;
        self.users_active = true;
        self.faults_active = true;
        self.schedule_work(0);
        self.schedule_strike();
        self.until("the work is done", WORK_NS_MAX, |world| {
            world.workload.is_over() && world.in_flight.is_empty()
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

    fn describe_state(&self) -> String {
        let volume = match self.active.map(|active| &self.volumes[&active]) {
            Some(host) => {
                let health = host.process.health();
                format!("{:?}, {}", health.phase, health.text)
            }
            None => "no volume runs".to_owned(),
        };
        format!(
            "{volume}; {} requests in flight, impaired {:?}",
            self.in_flight.len(),
            self.atlas.impaired()
        )
    }

    fn phase_is(&self, phase: &Phase) -> bool {
        self.active.is_some_and(|active| self.volumes[&active].phase == *phase)
    }

    fn is_serving(&self) -> bool {
        self.phase_is(&Phase::Serving)
    }

    fn is_settled(&self) -> bool {
        self.is_serving()
            && self.volumes.len() == 1
            && self.in_flight.is_empty()
            && self.atlas.impaired().is_empty()
            && self.active.is_some_and(|active| self.is_whole(active))
    }

    /// A full pool must let everything be read, and recover when space is trimmed.
    fn make_room(&mut self) -> Option<()> {
        self.until("a full volume serves", STEP_NS_MAX, |world| {
            world.is_serving() && world.volumes.len() == 1 && world.in_flight.is_empty()
        })?;
        self.read_all()?;
        self.note(Who::World, "sweep", 2, format_args!("trim half of the full pool"));
        let blocks = self.scenario.plan.device_blocks / 2;
        self.submit_plain(Op::Trim, Span { first: 0, blocks });
        self.collect_frames();
        self.until("room is made", STEP_NS_MAX, |world| world.in_flight.is_empty())
    }

    fn sweep(&mut self, op: Op) -> Option<()> {
        let blocks = self.scenario.plan.device_blocks;
        for first in (0..blocks).step_by(SWEEP_BLOCKS as usize) {
            let span = Span { first, blocks: SWEEP_BLOCKS.min(blocks - first) };
            self.submit_plain(op, span);
            self.collect_frames();
            self.until("a sweep goes on", STEP_NS_MAX, |world| world.in_flight.len() < 8)?;
        }
        self.until("a sweep is done", STEP_NS_MAX, |world| world.in_flight.is_empty())
    }

    fn read_all(&mut self) -> Option<()> {
        self.note(Who::World, "sweep", 0, format_args!("read every block"));
        self.sweep(Op::Read)?;
        let unsettled = self.checker.unsettled();
        if unsettled > 0 {
            self.fail(format!("{unsettled} blocks are undecided after all were read"));
            return None;
        }
        Some(())
    }

    fn flush(&mut self) -> Option<()> {
        self.submit_plain(Op::Flush, Span { first: 0, blocks: 1 });
        self.collect_frames();
        self.until("a flush is done", STEP_NS_MAX, |world| world.in_flight.is_empty())
    }

    fn close(&mut self) -> Option<()> {
        let active = self.active?;
        self.with_volume(active, |volume, _| volume.request_close());
        self.collect_frames();
        self.until("the volume is closed", STEP_NS_MAX, |world| world.phase_is(&Phase::Closed))
    }

    fn reopen(&mut self) -> Option<()> {
        self.close()?;
        let active = self.active?;
        self.kill_volume(active, "closed");
        self.collect_frames();
        self.until("the volume is open again", STEP_NS_MAX, Self::is_serving)
    }

    fn trim_all(&mut self) -> Option<()> {
        self.note(Who::World, "sweep", 1, format_args!("trim every block"));
        self.sweep(Op::Trim)?;
        self.flush()?;
        self.reopen()?;
        self.until("the empty volume is whole", WHOLE_NS_MAX, Self::is_settled)?;
        self.read_all()?;
        let used = self.volumes[&self.active?].process.health().slots_used;
        let allowed = EMPTY_SEGMENTS_MAX * self.scenario.profile.shards() as u64;
        self.note(Who::World, "space", used, format_args!("{used} slots used of {allowed}"));
        if used > allowed {
            self.fail(format!("{used} slots are in use on an empty volume, not {allowed}"));
            return None;
        }
        self.submit_plain(Op::Write, Span { first: 0, blocks: SWEEP_BLOCKS });
        self.collect_frames();
        self.flush()?;
        self.sweep(Op::Read)
    }
}
