//! Places shards, codes and computes checksums for the volumes: on the CPU, or on a device.

use std::sync::Arc;

use anyhow::Context;
use fieldstone_accel::Engine;
use fieldstone_fpga::{Card as FpgaCard, FpgaDevice, simulated};
use fieldstone_gpu::{Card as GpuCard, GpuDevice, Policy};

/// Makes engines, one for each volume or thread.
#[derive(Clone)]
pub struct Accelerator(Kind);

#[derive(Clone)]
enum Kind {
    Cpu,
    Fpga(Arc<FpgaCard>),
    /// The engines share what is measured about maps.
    Gpu(Arc<GpuCard>, Policy),
}

impl std::fmt::Debug for Accelerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Kind::Cpu => "cpu",
            Kind::Fpga(_) => "fpga",
            Kind::Gpu(..) => "gpu",
        })
    }
}

impl Accelerator {
    /// Uses the CPU.
    pub fn cpu() -> Self {
        Self(Kind::Cpu)
    }

    /// Uses the FPGA design, simulated cycle by cycle. The CPU does the work that the device does
    /// not take.
    ///
    /// # Errors
    /// This program was built without the simulation, or the simulation does not start.
    pub fn rtl() -> anyhow::Result<Self> {
        Ok(Self(Kind::Fpga(simulated::start(None)?.card)))
    }

    /// Uses the first NVIDIA card for the jobs that it finishes earlier than the CPU.
    ///
    /// # Errors
    /// There is no driver or no card.
    pub fn gpu() -> anyhow::Result<Self> {
        let card = GpuCard::open(0)?;
        let policy = Policy::measured(&card);
        Ok(Self(Kind::Gpu(card, policy)))
    }

    /// The FPGA device, if that is used.
    pub fn card(&self) -> Option<&Arc<FpgaCard>> {
        match &self.0 {
            Kind::Fpga(card) => Some(card),
            Kind::Cpu | Kind::Gpu(..) => None,
        }
    }

    /// Makes an engine for one volume or thread. On the FPGA device it has its own queue set, on a
    /// GPU its own streams. If the GPU has failed, the engine works in software.
    ///
    /// # Errors
    /// The FPGA device has no queue set left.
    pub fn engine(&self) -> anyhow::Result<Engine> {
        match &self.0 {
            Kind::Cpu => Ok(Engine::software()),
            Kind::Fpga(card) => {
                let device = FpgaDevice::open(card, false).context("the FPGA device")?;
                Ok(Engine::with_device(Box::new(device)))
            }
            Kind::Gpu(card, policy) => {
                // A card that has failed must not keep a volume closed.
                Ok(match GpuDevice::with_policy(card, policy.clone()) {
                    Ok(device) => Engine::with_device(Box::new(device)),
                    Err(error) => {
                        tracing::warn!("the CPU does the jobs of a volume, not the GPU: {error}");
                        Engine::software()
                    }
                })
            }
        }
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
