//! Compiles a linear map to a program of the card.
//!
//! ```text
//!   LinearMap --> sections --> for each code: body --> skeleton: one kernel, and a table
//!               (what threads     (loads, sums of        (which thread does what,
//!                do alone)         products, stores)      where bytes are)
//! ```
//!
//! | module       | idea |
//! |--------------|------|
//! | [`sections`] | cuts a map into pieces that differ, many of them, only in element numbers |
//! | [`words`]    | packed bytes and bit planes, and the way between them |
//! | [`body`]     | the instructions of a piece, in the cheapest of several methods |
//! | [`skeleton`] | the kernel around the pieces, and its table |

mod body;
mod sections;
mod skeleton;
mod words;

use fieldstone_gf::LinearMap;
use thiserror::Error;

pub use self::body::{METHODS, Method};
use self::sections::Sections;
pub use self::skeleton::{Geometry, PITCH_ALIGN_BYTES, Tuning};

/// Most instructions of a program. The driver takes about a second for ten thousand.
pub const INSTRUCTIONS_MAX: u32 = 80_000;
/// Instructions of a long program, for which it is worth to merge codes.
const LONG: u32 = 1_000;
/// Most terms of a map, so that a map that is too long is refused before it is compiled.
const TERMS_MAX: usize = 40_000;

/// A linear map as a program.
#[derive(Clone, Debug)]
pub struct Program {
    kernel: skeleton::Kernel,
    elements: (u64, u64),
}

/// Why a map is no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Misfit {
    /// The scratch of linked rows is larger than shared memory.
    #[error("the map's scratch does not fit into the shared memory of the GPU")]
    Scratch,
    /// The program would be too long.
    #[error("the map is too long for a program of the GPU")]
    TooLong,
    /// There is nothing to compute.
    #[error("the map has no outputs")]
    NoOutputs,
}

impl Program {
    /// The kernel's name.
    pub const KERNEL: &'static str = skeleton::KERNEL;

    /// Compiles a map.
    ///
    /// # Errors
    /// The map is too large, or has no outputs.
    pub fn compile(map: &LinearMap) -> Result<Self, Misfit> {
        Self::tuned(map, &Tuning::default())
    }

    /// As [`Program::compile`], with other choices.
    ///
    /// # Errors
    /// As there.
    pub fn tuned(map: &LinearMap, tuning: &Tuning) -> Result<Self, Misfit> {
        if map.outputs() == 0 {
            return Err(Misfit::NoOutputs);
        }
        let terms: usize = map.steps().iter().flatten().map(|row| row.terms.len()).sum();
        if terms > TERMS_MAX {
            return Err(Misfit::TooLong);
        }
        let mut kernel =
            skeleton::kernel(&Sections::of(map, false), tuning).ok_or(Misfit::Scratch)?;
        let length = |kernel: &skeleton::Kernel| kernel.work.iter().map(|w| w.total()).sum::<u32>();
        let merge = tuning.merge.unwrap_or(kernel.work.len() > 1 && length(&kernel) > LONG);
        if merge {
            let merged = skeleton::kernel(&Sections::of(map, true), tuning);
            kernel = merged
                .filter(|merged| tuning.merge.is_some() || length(merged) < length(&kernel) / 2)
                .unwrap_or(kernel);
        }
        let instructions = length(&kernel);
        if instructions > INSTRUCTIONS_MAX {
            return Err(Misfit::TooLong);
        }
        let shape = map.shape();
        let count = |shards: &[u32]| shards.iter().map(|&elements| u64::from(elements)).sum();
        let elements = (count(&shape.input_elements), count(&shape.output_elements));
        Ok(Self { kernel, elements })
    }

    /// The text of a module with one kernel, named [`Program::KERNEL`].
    #[must_use]
    pub fn text(&self) -> &str {
        &self.kernel.text
    }

    /// The table that the kernel reads, in numbers of 32 bits.
    #[must_use]
    pub fn table(&self) -> &[u32] {
        &self.kernel.table
    }

    /// How the kernel is launched.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.kernel.geometry
    }

    /// Elements of all inputs, and of all outputs.
    #[must_use]
    pub fn elements(&self) -> (u64, u64) {
        self.elements
    }

    /// The number of different codes.
    #[must_use]
    pub fn codes(&self) -> usize {
        self.kernel.work.len()
    }

    /// Instructions of all codes, without addresses.
    #[must_use]
    pub fn instructions(&self) -> u32 {
        self.kernel.work.iter().map(|work| work.total()).sum()
    }
}
