//! The simulated device, for programs that are built with it or without it.
//!
//! A build without the feature `rtl` has the same functions. They say how to get the device.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use crate::Card;
use crate::card::OpenError;

/// Why there is no simulated device.
#[derive(Debug, Error)]
pub enum SimulatedError {
    /// This program was built without it.
    #[error(
        "this build has no FPGA device: it is simulated with Verilator. Run `make hdl-tools` to \
         install that beside the build, then `make build`"
    )]
    NotBuilt,
    /// The file for the waves cannot be written, or no thread be started.
    #[error("cannot start the simulation")]
    Start(#[source] std::io::Error),
    /// The device is not as the driver wants it.
    #[error("the simulated device")]
    Open(#[source] OpenError),
    /// The encoder gives other parities than the CPU.
    #[error("the encoder's parities are not the CPU's")]
    Encoder,
}

/// This build has the device. Its model needs the libraries of C++, LZ4 and zlib.
pub const IS_BUILT: bool = cfg!(feature = "rtl");

/// A running device.
pub struct Running {
    /// Its physical function.
    pub card: Arc<Card>,
    #[cfg(feature = "rtl")]
    simulation: Arc<crate::verilated::Simulation>,
}

#[cfg(feature = "rtl")]
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

#[cfg(not(feature = "rtl"))]
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

/// Runs the encoder with constant coefficients, rs:8+4, which is not in the device: cycles to the
/// first parities, and beats of every source per cycle.
///
/// # Errors
/// Its parities are not the CPU's, or this build has no encoder.
#[cfg(feature = "rtl")]
pub fn encoder() -> Result<(u64, f64), SimulatedError> {
    let run = crate::verilated::encoder::encode(1, 1000).ok_or(SimulatedError::Encoder)?;
    Ok((run.first_parity_cycles, run.beats_per_cycle))
}

/// Starts the device, with waves to a file if one is named.
///
/// # Errors
/// The file cannot be written, or no thread be started, or this build has no device.
#[cfg(feature = "rtl")]
pub fn start(trace: Option<&Path>) -> Result<Running, SimulatedError> {
    use crate::compilers::Compilers;
    use crate::verilated::{Options, Simulation};

    /// Queue sets that the physical function takes.
    const QUEUE_SETS: u16 = 64;
    let options = Options { trace: trace.map(Path::to_path_buf), ..Options::default() };
    let simulation = Simulation::start(&options).map_err(SimulatedError::Start)?;
    let (page, memory) = (simulation.function(0), simulation.memory());
    let window = simulation.card_window();
    let card = Card::open(page, memory, Box::new(Compilers), window, QUEUE_SETS);
    Ok(Running { card: card.map_err(SimulatedError::Open)?, simulation })
}

/// As [`start`].
///
/// # Errors
/// Always.
#[cfg(not(feature = "rtl"))]
pub fn encoder() -> Result<(u64, f64), SimulatedError> {
    Err(SimulatedError::NotBuilt)
}

/// Says how to get a build that can.
///
/// # Errors
/// Always.
#[cfg(not(feature = "rtl"))]
pub fn start(_trace: Option<&Path>) -> Result<Running, SimulatedError> {
    Err(SimulatedError::NotBuilt)
}

#[cfg(all(test, not(feature = "rtl")))]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_the_device_says_how_to_get_one() {
        let error = start(None).err().expect("it is not built").to_string();
        assert!(error.contains("make hdl-tools") && error.contains("make build"), "{error}");
    }
}
