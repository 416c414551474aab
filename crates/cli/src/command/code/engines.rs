//! The option `--accel` of the commands that encode and decode.

use anyhow::Context;
use fieldstone_files::Coders;
use serde::Serialize;

use super::ThreadCount;
use crate::command::accelerator::Accel;

/// The engines that encode and decode: one for each thread.
#[derive(clap::Args, Debug)]
pub struct Engines {
    /// The engine that encodes and decodes. The CPU does the jobs that a device does not take, and
    /// repeats those that it gets wrong.
    #[arg(long, value_enum, default_value_t = Accel::Cpu)]
    accel: Accel,
}

/// The jobs of the engines, in numbers.
#[derive(Serialize)]
pub struct EngineReport {
    accel: &'static str,
    /// Stripes that were encoded or decoded.
    coding_jobs: u64,
    /// Of these, stripes that the device took.
    device_jobs: u64,
    /// Of these, stripes that the CPU had to repeat.
    device_failures: u64,
}

impl Engines {
    /// Starts the device, if one was chosen, and makes a coder for each thread.
    ///
    /// # Errors
    /// This program has no such device, or the device does not start or has too few queues.
    pub fn coders(&self, threads: &ThreadCount) -> anyhow::Result<Coders> {
        let threads = threads.count();
        if self.accel == Accel::Cpu {
            return Ok(Coders::software(threads));
        }
        let accelerator = self.accel.start()?;
        let engine = |thread: usize| {
            accelerator.engine().with_context(|| {
                format!(
                    "the device has no room for thread {thread} of {threads}; use fewer --jobs, or \
                     --accel cpu"
                )
            })
        };
        let engines: Vec<_> = (1..=threads).map(engine).collect::<anyhow::Result<_>>()?;
        Ok(Coders::new(engines))
    }

    /// The jobs of the coders, in numbers.
    pub fn report(&self, coders: &Coders) -> EngineReport {
        let counts = coders.counts();
        EngineReport {
            accel: self.accel.word(),
            coding_jobs: counts.maps,
            device_jobs: counts.device_jobs,
            device_failures: counts.device_failures,
        }
    }

    /// The device's part of the jobs, as a line for people. `None` without a device.
    pub fn line(&self, coders: &Coders) -> Option<String> {
        let EngineReport { accel, coding_jobs, device_jobs, device_failures } = self.report(coders);
        let did = format!("{accel}: the device did {device_jobs} of {coding_jobs} coding jobs");
        match (self.accel, device_failures) {
            (Accel::Cpu, _) => None,
            (_, 0) => Some(did),
            _ => Some(format!("{did}; the CPU repeated {device_failures} of them")),
        }
    }
}
