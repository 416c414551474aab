//! The option `--accel`.

use clap::ValueEnum;
use fieldstone_server::accelerator::Accelerator;

/// The engine that computes placements, codes and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accel {
    /// The CPU's vector instructions.
    Cpu,
    /// The FPGA design, simulated cycle by cycle; the CPU does the jobs that the design does not
    /// take.
    Rtl,
    /// An NVIDIA GPU, for the coding jobs that it finishes earlier than the CPU.
    Gpu,
}

impl Accel {
    /// The value on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Rtl => "rtl",
            Self::Gpu => "gpu",
        }
    }

    /// Starts the engine.
    ///
    /// # Errors
    /// This program was built without the simulated device, or there is no such device, or it does
    /// not start.
    pub fn start(self) -> anyhow::Result<Accelerator> {
        match self {
            Self::Cpu => Ok(Accelerator::cpu()),
            Self::Rtl => Accelerator::rtl(),
            Self::Gpu => Accelerator::gpu(),
        }
    }
}
