//! The option `--accel`.

use clap::ValueEnum;
use fieldstone_server::accelerator::Accelerator;

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

    /// Starts what was asked for.
    ///
    /// # Errors
    /// This program was built without it, or it does not start.
    pub fn start(self) -> anyhow::Result<Accelerator> {
        match self {
            Self::Cpu => Ok(Accelerator::cpu()),
            Self::Rtl => Accelerator::rtl(),
        }
    }
}
