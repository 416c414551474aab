//! Places shards, codes and computes checksums for the volumes: on the CPU, or on a device.

use std::sync::Arc;

use anyhow::Context;
use fieldstone_accel::Engine;
use fieldstone_fpga::{Card, FpgaDevice, simulated};

/// Makes engines, one for each volume.
#[derive(Clone, Debug)]
pub struct Accelerator(Option<Arc<Card>>);

impl Accelerator {
    /// Uses the CPU.
    pub fn cpu() -> Self {
        Self(None)
    }

    /// Uses the FPGA design, simulated cycle by cycle. The CPU does the work that the device does
    /// not take.
    ///
    /// # Errors
    /// This program was built without the simulation, or the simulation does not start.
    pub fn rtl() -> anyhow::Result<Self> {
        Ok(Self(Some(simulated::start(None)?.card)))
    }

    /// The device, or none if only the CPU is used.
    pub fn card(&self) -> Option<&Arc<Card>> {
        self.0.as_ref()
    }

    /// Makes an engine for one volume. If there is a device, the engine has its own queue set.
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
