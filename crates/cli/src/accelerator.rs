//! What places, codes and sums for the volumes: the CPU, or a device beside it.

use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use fieldstone_accel::Engine;
use fieldstone_fpga::{Card, FpgaDevice};

/// What places, codes and sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accel {
    /// The CPU's vector instructions.
    Cpu,
    /// The FPGA design, simulated cycle by cycle; the CPU does what it does not take.
    Rtl,
}

impl Accel {
    /// As the command line has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Rtl => "rtl",
        }
    }
}

/// Makes engines: one for each volume.
#[derive(Clone, Debug)]
pub struct Accelerator(Option<Arc<Card>>);

impl Accelerator {
    /// The CPU.
    pub fn cpu() -> Self {
        Self(None)
    }

    /// Starts what was asked for.
    ///
    /// # Errors
    /// This program was built without it, or it does not start.
    pub fn start(accel: Accel) -> anyhow::Result<Self> {
        match accel {
            Accel::Cpu => Ok(Self::cpu()),
            Accel::Rtl => Ok(Self(Some(rtl::start(None)?.card))),
        }
    }

    /// The device, if there is one.
    pub fn card(&self) -> Option<&Arc<Card>> {
        self.0.as_ref()
    }

    /// An engine for one volume, with a queue set of its own if there is a device.
    ///
    /// # Errors
    /// The device has no queue set left.
    pub fn engine(&self) -> anyhow::Result<Engine> {
        let Some(card) = &self.0 else { return Ok(Engine::software()) };
        let device = FpgaDevice::open(card, false).context("the FPGA device")?;
        Ok(Engine::with_device(Box::new(device)))
    }
}

/// The simulated device, in builds that have it.
#[cfg(feature = "rtl")]
pub mod rtl {
    use std::path::Path;
    use std::sync::Arc;

    use anyhow::Context;
    use fieldstone_fpga::Card;
    use fieldstone_fpga::compilers::Compilers;
    use fieldstone_fpga::verilated::{Options, Simulation, encoder};

    /// Queue sets that the physical function takes.
    const QUEUE_SETS: u16 = 64;

    /// A running device.
    pub struct Running {
        /// Its physical function.
        pub card: Arc<Card>,
        simulation: Arc<Simulation>,
    }

    impl Running {
        /// Cycles since reset, and seconds of CPU time that they took.
        pub fn speed(&self) -> (u64, f64) {
            let speed = self.simulation.speed();
            (speed.cycles, speed.busy.as_secs_f64())
        }

        /// Cycles from the first write of the last job to card memory until memory had answered its
        /// last one, for a job that reads nothing between its writes.
        pub fn last_write_cycles(&self) -> u64 {
            let run = self.simulation.last_write_run();
            run.last_landed.saturating_sub(run.first_taken)
        }
    }

    /// Runs the encoder with constant coefficients, rs:8+4, which is not in the device: cycles to
    /// the first parities, and beats of every source per cycle.
    ///
    /// # Errors
    /// Its parities are not the CPU's.
    pub fn encoder() -> anyhow::Result<(u64, f64)> {
        let run = encoder::encode(1, 1000).context("the encoder's parities are not the CPU's")?;
        Ok((run.first_parity_cycles, run.beats_per_cycle))
    }

    /// Starts the device, with waves to a file if one is named.
    ///
    /// # Errors
    /// The file cannot be written, or no thread be started.
    pub fn start(trace: Option<&Path>) -> anyhow::Result<Running> {
        let options = Options { trace: trace.map(Path::to_path_buf), ..Options::default() };
        let simulation = Simulation::start(&options).context("cannot start the simulation")?;
        let (page, memory) = (simulation.function(0), simulation.memory());
        let window = simulation.card_window();
        let card = Card::open(page, memory, Box::new(Compilers), window, QUEUE_SETS);
        Ok(Running { card: card.context("the simulated device")?, simulation })
    }
}

/// What builds without the simulated device say.
#[cfg(not(feature = "rtl"))]
pub mod rtl {
    use std::path::Path;
    use std::sync::Arc;

    use anyhow::bail;
    use fieldstone_fpga::Card;

    /// There is none.
    pub struct Running {
        /// Its physical function.
        pub card: Arc<Card>,
    }

    impl Running {
        /// Nothing runs.
        pub fn speed(&self) -> (u64, f64) {
            (0, 0.0)
        }

        /// Nothing runs.
        pub fn last_write_cycles(&self) -> u64 {
            0
        }
    }

    /// As [`start`].
    ///
    /// # Errors
    /// Always.
    pub fn encoder() -> anyhow::Result<(u64, f64)> {
        start(None).map(|_| (0, 0.0))
    }

    /// Says how to get a build that can.
    ///
    /// # Errors
    /// Always.
    pub fn start(_trace: Option<&Path>) -> anyhow::Result<Running> {
        bail!(
            "this build has no FPGA device: it is simulated with Verilator. Run `make hdl-tools` \
             to install that beside the build, then `make build`"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_always_there() {
        let accelerator = Accelerator::start(Accel::Cpu).expect("it needs nothing");
        assert_eq!(accelerator.engine().expect("nor an engine").name(), "software");
    }

    #[cfg(not(feature = "rtl"))]
    #[test]
    fn a_build_without_the_device_says_how_to_get_one() {
        let error = Accelerator::start(Accel::Rtl).expect_err("it is not built").to_string();
        assert!(error.contains("make hdl-tools") && error.contains("make build"), "{error}");
    }
}
