//! Changes of the partition while others use the device.
//!
//! A second user of the card, with a queue set of its own, places with maps whose buckets are
//! uniform, list and tree in turns, so that the module must change every time, and compares each
//! placement with the CPU's. What the device gives back during a change the CPU does, as an engine
//! would.

use fieldstone_accel::{Device, JobError, JobId, JobOutput, QueueId, execute};
use fieldstone_crush::AlgorithmKind;

use crate::FpgaDevice;
use crate::flight::Operation;
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
    for kind in kinds.into_iter().cycle() {
        let mut done = 0;
        while done < PLACEMENTS_PER_MODULE {
            if swapped.swaps >= count || device.is_lost() || !go_on(&swapped) {
                return swapped;
            }
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
