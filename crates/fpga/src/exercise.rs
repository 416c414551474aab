//! Changes of the partition while others use the device.
//!
//! A second user of the card, with a queue set of its own, places with maps whose buckets are
//! uniform, list and tree in turns, so that the module must change every time, and compares each
//! placement with the CPU's. What the device gives back during a change the CPU does, as an engine
//! would. It also tells what the codes engine, in the static region, did meanwhile.

use std::sync::Arc;

use fieldstone_accel::{Device, JobError, JobId, JobOutput, QueueId, execute};
use fieldstone_crush::AlgorithmKind;

use crate::FpgaDevice;
use crate::card::{Card, Totals};
use crate::flight::Operation;
use crate::regs::{BEAT_BYTES, PartitionState};
use crate::selftest::Jobs;

/// Placements by one module before the next is asked for.
const PLACEMENTS_PER_MODULE: u64 = 8;

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swapped {
    /// Changes of the partition that were asked for and came, through this queue set.
    pub swaps: u64,
    /// Placement jobs that the device did.
    pub device_jobs: u64,
    /// Placement jobs that it gave back.
    pub given_back: u64,
    /// Placement jobs that it failed at.
    pub failed: u64,
    /// Of those that it did, with other results than the CPU's.
    pub wrong: u64,
    /// What the static region did while the partition was out of service, and otherwise.
    pub during: Work,
    /// See [`Swapped::during`].
    pub between: Work,
}

/// What the codes engine moved in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Cycles.
    pub cycles: u64,
    /// Beats that it read and wrote.
    pub beats: u64,
}

impl Work {
    /// Bytes per cycle, 0 of no cycles.
    #[must_use]
    pub fn bytes_per_cycle(&self) -> f64 {
        (self.beats * BEAT_BYTES as u64) as f64 / self.cycles.max(1) as f64
    }
}

/// Divides time into that of changes and that between them, by looking at the partition.
struct Split {
    totals: Totals,
    changing: bool,
}

impl Split {
    fn new(card: &Card) -> Self {
        Self { totals: card.totals(), changing: false }
    }

    /// What came since the last look counts to the state that was seen then.
    fn look(&mut self, card: &Card, swapped: &mut Swapped) {
        let totals = card.totals();
        let work = if self.changing { &mut swapped.during } else { &mut swapped.between };
        work.cycles += totals.cycles - self.totals.cycles;
        let beats = |totals: &Totals| totals.card_reads + totals.card_writes;
        work.beats += beats(&totals) - beats(&self.totals);
        self.totals = totals;
        let state = card.partition().state;
        self.changing = matches!(state, Some(PartitionState::Draining | PartitionState::Loading));
    }
}

/// Changes the partition's module `count` times, unless `go_on`, asked after every job with what
/// there is so far, says no, or the device is given up.
pub fn swaps(
    device: &mut FpgaDevice,
    seed: u64,
    count: u64,
    mut go_on: impl FnMut(&Swapped) -> bool,
) -> Swapped {
    const QUEUE: QueueId = QueueId(0);
    let kinds = [AlgorithmKind::Uniform, AlgorithmKind::List, AlgorithmKind::Tree];
    let mut jobs = Jobs::new(seed, 4096);
    let mut swapped = Swapped::default();
    let mut number = 0;
    let card = Arc::clone(device.card());
    let mut split = Split::new(&card);
    for kind in kinds.into_iter().cycle() {
        let mut done = 0;
        while done < PLACEMENTS_PER_MODULE {
            if swapped.swaps >= count || device.is_lost() || !go_on(&swapped) {
                return swapped;
            }
            split.look(&card, &mut swapped);
            let job = jobs.place_by(kind);
            number += 1;
            match device.submit(QUEUE, JobId(number), job.clone()) {
                Ok(()) => {
                    let result = wait(device, QUEUE);
                    done += 1;
                    match result {
                        Err(_) => swapped.failed += 1,
                        good => {
                            swapped.device_jobs += 1;
                            swapped.wrong += u64::from(good != execute(&job));
                        }
                    }
                }
                Err(_job) => {
                    swapped.given_back += 1;
                    // Nothing is in flight but the change, perhaps: let it get on.
                    device.poll(QUEUE, &mut Vec::new());
                }
            }
            swapped.swaps = device.cycles(Operation::Reconfigure).count;
        }
    }
    swapped
}

/// The result of the one job in flight.
fn wait(device: &mut FpgaDevice, queue: QueueId) -> Result<JobOutput, JobError> {
    let mut completions = Vec::new();
    loop {
        device.poll(queue, &mut completions);
        if let Some(done) = completions.pop() {
            return done.result;
        }
    }
}
