//! What places, codes and sums for the volumes: the CPU, or a device beside it.

use std::sync::Arc;

use anyhow::Context;
use fieldstone_accel::Engine;
use fieldstone_fpga::{Card, FpgaDevice, simulated};

/// Makes engines: one for each volume.
#[derive(Clone, Debug)]
pub struct Accelerator(Option<Arc<Card>>);

impl Accelerator {
    /// The CPU.
    pub fn cpu() -> Self {
        Self(None)
    }

    /// The FPGA design, simulated cycle by cycle; the CPU does what it does not take.
    ///
    /// # Errors
    /// This program was built without it, or it does not start.
    pub fn rtl() -> anyhow::Result<Self> {
        Ok(Self(Some(simulated::start(None)?.card)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_always_there() {
        assert_eq!(Accelerator::cpu().engine().expect("it needs nothing").name(), "software");
    }
}
