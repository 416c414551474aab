//! Running a [`LinearMap`]: check the lengths, then sweep the passes over column slices.
//!
//! A map of one pass runs over its whole elements at once. A map of several passes is cut into
//! slices of [`SLICE_BYTES`] of every element, so that what one pass loaded or wrote is still in
//! cache for the next, and so that scratch stays small whatever the shard size.

use thiserror::Error;

use crate::compile::{MAX_PASS_ROWS, MAX_PASS_SOURCES, Pass};
use crate::kernel::Kernel;
use crate::map::{LinearMap, Source, Target};

/// Bytes of each element treated before the next slice begins.
const SLICE_BYTES: usize = 4096;

/// Why buffers cannot be used with a map.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ShapeError {
    /// Another number of buffers than the map has shards.
    #[error("the map has {expected} {side} shards, but {given} buffers were given")]
    ShardCount {
        /// "input" or "output".
        side: &'static str,
        /// Shards of the map.
        expected: usize,
        /// Buffers given.
        given: usize,
    },
    /// The first input does not hold a whole number of bytes per element.
    #[error("input 0 has {len_bytes} bytes, which is not a multiple of its {elements} elements")]
    NotDivisible {
        /// Bytes given.
        len_bytes: usize,
        /// Elements of the shard.
        elements: u32,
    },
    /// A buffer whose length differs from what input 0 implies.
    #[error("{side} {shard} has {given} bytes instead of {expected}")]
    Length {
        /// "input" or "output".
        side: &'static str,
        /// Number of the shard.
        shard: usize,
        /// Bytes that the elements' common length asks for.
        expected: usize,
        /// Bytes given.
        given: usize,
    },
    /// This CPU cannot run the kernel that was asked for.
    #[error("this CPU does not support the {0} kernel")]
    KernelUnavailable(Kernel),
}

impl LinearMap {
    /// Computes all outputs with the best kernel of this CPU.
    ///
    /// Buffers may have any alignment and any length (zero included) that is the same number of
    /// bytes per element everywhere. Their previous content does not matter. Nothing is allocated,
    /// except once per call for maps that use scratch.
    pub fn execute(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), ShapeError> {
        self.execute_with(Kernel::best(), inputs, outputs)
    }

    /// As [`LinearMap::execute`], with a given kernel.
    pub fn execute_with(
        &self,
        kernel: Kernel,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), ShapeError> {
        if !kernel.is_available() {
            return Err(ShapeError::KernelUnavailable(kernel));
        }
        let element_bytes = self.element_bytes(inputs)?;
        let shards = &self.shape().output_elements;
        check_count("output", shards.len(), outputs.len())?;
        check_lengths("output", shards, outputs.iter().map(|output| output.len()), element_bytes)?;
        let several = self.passes.len() > 1;
        let slice_bytes = if several { SLICE_BYTES.min(element_bytes) } else { element_bytes };
        let mut scratch = vec![0u8; self.shape().scratch_elements as usize * slice_bytes];
        let mut run = Run { inputs, outputs, scratch: &mut scratch, element_bytes, slice_bytes };
        let mut start = 0;
        while start < element_bytes {
            let len_bytes = slice_bytes.min(element_bytes - start);
            for pass in &self.passes {
                run.pass(kernel, pass, start, len_bytes);
            }
            start += len_bytes;
        }
        Ok(())
    }

    /// The common length of all elements that `inputs` imply: an output shard of n elements has n
    /// times as many bytes.
    pub fn element_bytes(&self, inputs: &[&[u8]]) -> Result<usize, ShapeError> {
        let shards = &self.shape().input_elements;
        check_count("input", shards.len(), inputs.len())?;
        let (len_bytes, elements) = (inputs[0].len(), shards[0]);
        if !len_bytes.is_multiple_of(elements as usize) {
            return Err(ShapeError::NotDivisible { len_bytes, elements });
        }
        let element_bytes = len_bytes / elements as usize;
        check_lengths("input", shards, inputs.iter().map(|input| input.len()), element_bytes)?;
        Ok(element_bytes)
    }
}

fn check_count(side: &'static str, expected: usize, given: usize) -> Result<(), ShapeError> {
    if expected == given { Ok(()) } else { Err(ShapeError::ShardCount { side, expected, given }) }
}

fn check_lengths(
    side: &'static str,
    shards: &[u32],
    lengths: impl Iterator<Item = usize>,
    element_bytes: usize,
) -> Result<(), ShapeError> {
    for (shard, (&elements, given)) in shards.iter().zip(lengths).enumerate() {
        // Saturating: a product that overflows equals no real buffer's length.
        let expected = element_bytes.saturating_mul(elements as usize);
        if expected != given {
            return Err(ShapeError::Length { side, shard, expected, given });
        }
    }
    Ok(())
}

/// The buffers of one execution, whose lengths have been checked against the map's shape.
struct Run<'a, 'i, 'o> {
    inputs: &'a [&'i [u8]],
    outputs: &'a mut [&'o mut [u8]],
    scratch: &'a mut [u8],
    element_bytes: usize,
    slice_bytes: usize,
}

impl Run<'_, '_, '_> {
    /// Runs one pass over `len_bytes` columns that begin at column `start`.
    fn pass(&mut self, kernel: Kernel, pass: &Pass, start: usize, len_bytes: usize) {
        let mut sources = [std::ptr::null::<u8>(); MAX_PASS_SOURCES];
        let mut targets = [std::ptr::null_mut::<u8>(); MAX_PASS_ROWS];
        let scratch = self.scratch.as_mut_ptr();
        for (pointer, source) in sources.iter_mut().zip(&pass.sources) {
            *pointer = match *source {
                Source::Input(element) => {
                    let at = element.index as usize * self.element_bytes + start;
                    self.inputs[usize::from(element.shard)][at..at + len_bytes].as_ptr()
                }
                // SAFETY: the map was validated, so index < scratch_elements, and `scratch` has
                // slice_bytes bytes for each of them.
                Source::Scratch(index) => unsafe {
                    scratch.add(index as usize * self.slice_bytes).cast_const()
                },
            };
        }
        for (pointer, target) in targets.iter_mut().zip(&pass.targets) {
            *pointer = match *target {
                Target::Output(element) => {
                    let at = element.index as usize * self.element_bytes + start;
                    let output = &raw mut *self.outputs[usize::from(element.shard)];
                    debug_assert!(at + len_bytes <= output.len());
                    // SAFETY: the map was validated and the output has element_bytes bytes for each
                    // of its elements, so the columns are inside. No reference is made here: it
                    // would claim the whole shard, of which the pass may hold another element.
                    unsafe { output.cast::<u8>().add(at) }
                }
                // SAFETY: as for scratch sources above.
                Target::Scratch(index) => unsafe { scratch.add(index as usize * self.slice_bytes) },
            };
        }
        // SAFETY: the first sources.len() and targets.len() pointers are valid for len_bytes (see
        // just above; scratch elements are slice_bytes >= len_bytes long). Targets
        // do not overlap each other (each element is written once) nor the sources (inputs are
        // borrowed shared, outputs exclusively, and a step never reads scratch that it writes).
        // The kernel was checked to be available.
        unsafe {
            kernel.run(
                pass,
                &sources[..pass.sources.len()],
                &targets[..pass.targets.len()],
                len_bytes,
            );
        }
    }
}
