//! A stress test of reconfiguration: changes of the partition while other queue sets use the
//! device.
//!
//! A second user of the card, with its own queue set, places with maps whose buckets are
//! alternately uniform, list and tree, so the module must change every time. It compares each
//! placement with the CPU's. When the device gives a placement back during a change, the CPU does
//! it, as in an engine. The test also measures the throughput of the codes engine, in the static
//! region, during the changes.

use std::sync::Arc;

use fieldstone_accel::{Device, JobError, JobId, JobOutput, SubmissionQueueId, execute};
use fieldstone_crush::AlgorithmKind;

use crate::FpgaDevice;
use crate::card::{Card, Totals};
use crate::flight::DeviceOperation;
use crate::regs::{BEAT_BYTES, PartitionState};
use crate::selftest::JobGenerator;

/// Placements with one module before the test needs the next.
const PLACEMENTS_PER_MODULE: u64 = 8;

/// The result of the stress test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StressReport {
    /// Changes of the partition that this queue set requested and got.
    pub swaps: u64,
    /// Placement jobs that the device did.
    pub device_jobs: u64,
    /// Placement jobs that the device gave back.
    pub given_back: u64,
    /// Placement jobs that failed on the device.
    pub failed: u64,
    /// Placement jobs that the device did with other results than the CPU's.
    pub wrong: u64,
    /// Throughput of the codes engine while the partition was out of service.
    pub during: Throughput,
    /// Throughput of the codes engine at other times.
    pub between: Throughput,
}

/// The data that the codes engine moved in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throughput {
    /// Cycles.
    pub cycles: u64,
    /// Beats that the engine read and wrote.
    pub beats: u64,
}

impl Throughput {
    /// Bytes per cycle; 0 if there are no cycles.
    #[must_use]
    pub fn bytes_per_cycle(&self) -> f64 {
        (self.beats * BEAT_BYTES as u64) as f64 / self.cycles.max(1) as f64
    }
}

/// Divides the time into changes and the time between them, from the partition's state.
struct Split {
    totals: Totals,
    changing: bool,
}

impl Split {
    fn new(card: &Card) -> Self {
        Self { totals: card.totals(), changing: false }
    }

    /// Counts the work since the last call for the state of the last call.
    fn count(&mut self, card: &Card, report: &mut StressReport) {
        let totals = card.totals();
        let work = if self.changing { &mut report.during } else { &mut report.between };
        work.cycles += totals.cycles - self.totals.cycles;
        let beats = |totals: &Totals| totals.card_reads + totals.card_writes;
        work.beats += beats(&totals) - beats(&self.totals);
        self.totals = totals;
        let state = card.partition().state;
        self.changing = matches!(state, Some(PartitionState::Draining | PartitionState::Loading));
    }
}

/// Changes the partition's module `count` times. After every job, `go_on` gets the result so far;
/// false ends the test. The test also ends when the driver gives up the device.
pub fn run(
    device: &mut FpgaDevice,
    seed: u64,
    count: u64,
    mut go_on: impl FnMut(&StressReport) -> bool,
) -> StressReport {
    const QUEUE: SubmissionQueueId = SubmissionQueueId(0);
    let kinds = [AlgorithmKind::Uniform, AlgorithmKind::List, AlgorithmKind::Tree];
    let mut jobs = JobGenerator::new(seed, 4096);
    let mut report = StressReport::default();
    let mut number = 0;
    let card = Arc::clone(device.card());
    let mut split = Split::new(&card);
    for kind in kinds.into_iter().cycle() {
        let mut done = 0;
        while done < PLACEMENTS_PER_MODULE {
            if report.swaps >= count || device.is_lost() || !go_on(&report) {
                return report;
            }
            split.count(&card, &mut report);
            let job = jobs.place_by(kind);
            number += 1;
            match device.submit(QUEUE, JobId(number), job.clone()) {
                Ok(()) => {
                    let result = wait(device, QUEUE);
                    done += 1;
                    match result {
                        Err(_) => report.failed += 1,
                        good => {
                            report.device_jobs += 1;
                            report.wrong += u64::from(good != execute(&job));
                        }
                    }
                }
                Err(_job) => {
                    report.given_back += 1;
                    // Only the change may be in flight; the poll lets it advance.
                    device.poll(QUEUE, &mut Vec::new());
                }
            }
            report.swaps = device.cycles(DeviceOperation::Reconfigure).count;
        }
    }
    report
}

/// The result of the one job in flight.
fn wait(device: &mut FpgaDevice, queue: SubmissionQueueId) -> Result<JobOutput, JobError> {
    let mut completions = Vec::new();
    loop {
        device.poll(queue, &mut completions);
        if let Some(done) = completions.pop() {
            return done.result;
        }
    }
}
