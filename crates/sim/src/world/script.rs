//! The course of a run, from the creation of the volumes to the last check.
//!
//! 1. The volumes are created.
//! 2. Users work while faults strike. In some runs a volume becomes larger, or is removed and made
//!    again, or all disks are full for a while.
//! 3. Calm: users stop, and so do faults. All requests get answers, and every volume serves. (If
//!    the pool is full, every volume trims half or all of itself: the volume answers trims however
//!    full the pool is.) Staying faults that have not struck yet strike now. Then the volumes
//!    become whole, because a rebuild always ends. With staying faults, they become as sound as
//!    they can be.
//! 4. Every block is read and compared.
//! 5. Every volume process is killed. Every volume opens again, and every block is read.
//! 6. Volumes that may grow are asked to grow. Every volume gets writes at its end, and a flush.
//! 7. In half of the runs the volumes are closed and opened again, and every block is read once
//!    more. In the other half everything is trimmed before that: space must become free, and
//!    writing must work.
//!
//! **Liveness.** From step 3 on every wait has a bound of virtual time. A run that exceeds one
//! fails with the condition that it waits for:
//!
//! | what                                               | bound                   |
//! |----------------------------------------------------|-------------------------|
//! | requests in flight when calm begins are answered   | [`ANSWER_NS_MAX`]       |
//! | any request while no node is impaired              | `SOUND_NS_MAX`          |
//! | the same while nodes are impaired                  | `REQUEST_NS_MAX`        |
//! | the same while all disks are full                  | `FULL_NS_MAX`, or 3 ×   |
//! | a volume is served again, at any time              | `SHUT_NS_MAX`           |
//! | every volume opens once its nodes' processes run   | [`OPEN_NS_MAX`]         |
//! | a trim in a full pool, a flush, a sweep of reads   | [`STEP_NS_MAX`]         |
//! | a volume that was asked is larger, or says why not | `GROW_NS_MAX`           |
//! | volumes are whole, or sound                        | [`WHOLE_NS_MAX`]        |
//! | nodes keep no request after a stranger has left    | `LEFT_NS_MAX`           |
//! | the events of a run                                | [`EVENTS_MAX`]          |

use fieldstone_block::{Nanos, Op};
use fieldstone_volume::VolumePhase;

use super::World;
use crate::actor::{Cast, VolumeProcess};
use crate::network::ClientId;
use crate::scenario::Kind;
use crate::trace::Who;

/// Longest virtual time for creating, closing, trimming, or a round of reads.
const STEP_NS_MAX: u64 = 200_000_000_000;
/// The users stop after this virtual time, even if they are not done.
const WORK_NS_MAX: u64 = 1_800_000_000_000;
/// Longest virtual time after the last fault until all requests have answers and every volume
/// serves: an opening that began before, and requests behind it.
const ANSWER_NS_MAX: u64 = 200_000_000_000;
/// Longest virtual time of an opening. The volume waits 30 s for nodes that may have data that no
/// other node has. Before and after that, it may wait for a node until the node counts as down, at
/// most 3 s, a few times in each attempt.
const OPEN_NS_MAX: u64 = 120_000_000_000;
/// Longest virtual time until the volume is whole after the last fault.
const WHOLE_NS_MAX: u64 = 600_000_000_000;
/// The largest number of events of a run: a run that does nothing forever must end too.
const EVENTS_MAX: u64 = 4_000_000;
/// Blocks per request when the script reads or trims everything.
const SWEEP_BLOCKS: u64 = 16;
/// Requests of one volume in flight during this.
const SWEEP_DEPTH: usize = 8;

impl<C: Cast> World<'_, C> {
    /// Plays the run to its end, or to its first failure.
    pub(crate) fn play(&mut self) {
        let summary = self.scenario.summary();
        let seed = self.scenario.seed;
        self.note(Who::World, "seed", seed, format_args!("{seed}: {summary}"));
        self.play_steps();
    }

    fn play_steps(&mut self) -> Option<()> {
        for volume_number in self.volume_numbers() {
            self.start_volume(volume_number, false);
        }
        self.until("the volumes are created", STEP_NS_MAX, Self::all_serve)?;
        self.users_active = true;
        self.faults_active = true;
        for volume_number in self.volume_numbers() {
            self.schedule_work(volume_number, 0);
        }
        self.schedule_strike();
        self.schedule_link_strike();
        self.schedule_jump();
        self.schedule_rotation();
        self.schedule_silence();
        self.schedule_visit();
        self.schedule_replay();
        let end = self.now().plus(Nanos(WORK_NS_MAX));
        self.until("the work is done", 2 * WORK_NS_MAX, |world| {
            world.sim_volumes.iter().all(|sim_volume| sim_volume.workload.is_over())
                || world.now() >= end
        })?;
        self.calm_down()?;
        self.read_all()?;
        self.kill_all_volumes()?;
        self.until("the volumes are sound once more", WHOLE_NS_MAX, Self::is_settled)?;
        self.check_slots()?;
        self.read_all()?;
        self.grow_at_end()?;
        self.write_some()?;
        match self.world_rng.chance(500) {
            true => self.trim_all()?,
            false => {
                self.reopen()?;
                self.read_all()?;
            }
        }
        self.close()?;
        self.outlast_stranger()
    }

    /// Users and faults stop, and the volumes become whole, as far as they can.
    fn calm_down(&mut self) -> Option<()> {
        self.note(Who::World, "calm", 0, format_args!("no more faults"));
        self.users_active = false;
        self.faults_active = false;
        self.outlast_full_disks()?;
        self.until("every request is answered", ANSWER_NS_MAX, Self::is_quiet)?;
        self.outlast_refusals()?;
        if matches!(self.scenario.kind, Kind::Full | Kind::Crowded) {
            self.make_room()?;
        }
        self.calm = true;
        // A staying fault that has no place next to another staying fault is left out.
        self.until("the faults that stay have struck", WHOLE_NS_MAX, |world| {
            world.staying.is_empty() || (world.fault_model.staying() > 0 && world.is_settled())
        })?;
        self.staying.clear();
        self.until("the volumes are whole again", WHOLE_NS_MAX, Self::is_settled)?;
        self.check_slots()
    }

    /// Every volume process dies, and every volume opens again.
    fn kill_all_volumes(&mut self) -> Option<()> {
        let clients: Vec<ClientId> = self.volumes.keys().copied().collect();
        for client in clients {
            self.kill_volume(client, "killed after the last fault");
        }
        self.collect_frames();
        self.until("every volume opens", OPEN_NS_MAX, Self::all_serve)
    }

    /// Writes to the end of every volume, and flushes.
    fn write_some(&mut self) -> Option<()> {
        for volume_number in self.volume_numbers() {
            let blocks = self.device_blocks(volume_number);
            self.submit_blocks(volume_number, Op::Write, blocks - SWEEP_BLOCKS..blocks);
        }
        self.collect_frames();
        self.flush()
    }

    /// Goes on until `done`. `None` if the run failed or this takes too long.
    pub(super) fn until(
        &mut self,
        what: &str,
        ns_max: u64,
        done: impl Fn(&Self) -> bool,
    ) -> Option<()> {
        let limit = self.now().plus(Nanos(ns_max));
        while !done(self) {
            if !self.step() {
                return None;
            }
            let spent = self.schedule.taken() > EVENTS_MAX;
            if self.now() > limit || spent {
                let reason = self.describe_state();
                let bound = match spent {
                    true => format!("{EVENTS_MAX} events are not enough"),
                    false => format!("{} s are not enough", ns_max / 1_000_000_000),
                };
                self.fail(format!("{bound} until {what}: {reason}"));
                return None;
            }
        }
        Some(())
    }

    /// The state that every volume reports, and the state that the world knows.
    pub(super) fn describe_state(&self) -> String {
        let mut text = String::new();
        for (index, sim_volume) in self.sim_volumes.iter().enumerate() {
            text.push_str(&match sim_volume.active.map(|active| &self.volumes[&active]) {
                Some(host) => {
                    let volume = host.device.store();
                    let error = host.last_error.as_deref().unwrap_or("none");
                    let (phase, health) = (volume.phase(), volume.describe_health());
                    format!("volume {index} {phase:?}, {health}, last error {error}; ")
                }
                None => format!("volume {index} has no process; "),
            });
        }
        let (waiting, impaired) = (self.in_flight.len(), self.fault_model.impaired());
        text.push_str(&format!("{waiting} requests in flight, impaired {impaired:?}"));
        text
    }

    fn all_are(&self, phase: &VolumePhase) -> bool {
        let is = |client: ClientId| self.volumes[&client].phase == *phase;
        self.sim_volumes.iter().all(|sim_volume| sim_volume.active.is_some_and(is))
    }

    pub(super) fn all_serve(&self) -> bool {
        self.all_are(&VolumePhase::Serving)
    }

    /// Every volume serves, with one process, has answered all requests, and is not being removed.
    fn is_quiet(&self) -> bool {
        let alone = self.volumes.len() == self.sim_volumes.len();
        let stay = self.sim_volumes.iter().all(|sim_volume| sim_volume.removal.is_none());
        self.all_serve() && alone && stay && self.in_flight.is_empty()
    }

    /// Every volume is whole, and the fault model has noted this. With staying faults, every volume
    /// is as sound as it can be.
    fn is_settled(&self) -> bool {
        let whole = |client: ClientId| self.is_whole(client);
        if self.fault_model.staying() > 0 {
            return self.steady && self.is_quiet();
        }
        self.is_quiet()
            && self.fault_model.impaired().is_empty()
            && self.sim_volumes.iter().all(|sim_volume| sim_volume.active.is_some_and(whole))
    }

    /// Checks that a full pool lets users read everything, and recovers when they trim.
    fn make_room(&mut self) -> Option<()> {
        self.until("a full volume serves", STEP_NS_MAX, Self::is_quiet)?;
        self.read_all()?;
        let part = if self.permanent_rng.chance(300) { 1 } else { 2 };
        self.note(Who::World, "sweep", part + 1, format_args!("trim 1/{part} of the full pool"));
        for volume_number in self.volume_numbers() {
            let blocks = self.device_blocks(volume_number) / part;
            self.submit_blocks(volume_number, Op::Trim, 0..blocks);
        }
        self.collect_frames();
        self.until("room is made", STEP_NS_MAX, |world| world.in_flight.is_empty())
    }

    fn device_blocks(&self, volume_number: usize) -> u64 {
        self.sim_volumes[volume_number].blocks
    }

    /// Submits requests over every block of every volume, a few of each volume at a time.
    fn sweep(&mut self, op: Op) -> Option<()> {
        let longest =
            self.volume_numbers().map(|volume_number| self.device_blocks(volume_number)).max()?;
        let depth = SWEEP_DEPTH * self.sim_volumes.len();
        for first in (0..longest).step_by(SWEEP_BLOCKS as usize) {
            for volume_number in self.volume_numbers() {
                let blocks = self.device_blocks(volume_number);
                if first < blocks {
                    self.submit_blocks(volume_number, op, first..blocks.min(first + SWEEP_BLOCKS));
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
        let unsettled: usize = self.sim_volumes.iter().map(|t| t.checker.unsettled()).sum();
        if unsettled > 0 {
            self.fail(format!("{unsettled} cells are undecided after all were read"));
            return None;
        }
        Some(())
    }

    fn flush(&mut self) -> Option<()> {
        for volume_number in self.volume_numbers() {
            self.submit_blocks(volume_number, Op::Flush, 0..1);
        }
        self.collect_frames();
        self.until("a flush is done", STEP_NS_MAX, |world| world.in_flight.is_empty())
    }

    fn close(&mut self) -> Option<()> {
        for volume_number in self.volume_numbers() {
            let active = self.sim_volumes[volume_number].active?;
            self.with_host(active, |host, _| {
                host.device.drain();
                host.device.store_mut().request_close();
            });
        }
        self.collect_frames();
        self.until("the volumes are closed", STEP_NS_MAX, |world| {
            world.all_are(&VolumePhase::Closed)
        })
    }

    fn reopen(&mut self) -> Option<()> {
        self.close()?;
        for volume_number in self.volume_numbers() {
            let active = self.sim_volumes[volume_number].active?;
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
        self.check_space_came_back()?;
        for volume_number in self.volume_numbers() {
            self.submit_blocks(volume_number, Op::Write, 0..SWEEP_BLOCKS);
        }
        self.collect_frames();
        self.flush()?;
        self.sweep(Op::Read)
    }
}
