//! Executes a [`LinearMap`]: checks the lengths, then sweeps the passes over column slices.
//!
//! **Slices.** A map of one pass runs over its whole elements at once. A map of several passes is
//! cut into slices of every element. So the bytes that one pass loaded or wrote are still in the
//! first-level cache for the next pass, and scratch stays small for any shard size. A slice is as
//! long as that cache allows for the elements of the map, within [`MIN_SLICE_BYTES`] and
//! [`MAX_SLICE_BYTES`] ([`MAX_STREAMING_SLICE_BYTES`] where lines come from memory). Slices after
//! the first begin where the outputs are aligned.
//!
//! **Stores.** The caller chooses plain or streaming stores, or leaves the choice to `stores`. When
//! lines come from memory, they are also prefetched: by the kernel in a map of one pass, and by
//! this module, one slice ahead, in a map of several.

use thiserror::Error;

use crate::compile::{MAX_PASS_ROWS, MAX_PASS_SOURCES, Pass, PassKind};
use crate::kernel::{Kernel, Sweep, Write, fence, prefetch};
use crate::map::{LinearMap, Source, Target};
use crate::stores::{Work, run_with_choice};

/// Fewest bytes of each element in one slice.
const MIN_SLICE_BYTES: usize = 512;
/// Most bytes of each element in one slice.
const MAX_SLICE_BYTES: usize = 4096;
/// The same where lines come from memory. The slice that is prefetched must fit into the
/// first-level cache together with the current one. This gives 1.5 times the speed for Zigzag's 32
/// data elements.
const MAX_STREAMING_SLICE_BYTES: usize = 1024;
/// Most bytes of one slice of all elements: part of a second-level cache.
const SLICES_BYTES: usize = 256 << 10;
/// Most bytes of the shards of an execution that are expected in the first-level data cache, which
/// has 32 KiB or more on today's CPUs.
const FIRST_LEVEL_BYTES: usize = 32 << 10;
/// A cache line.
const LINE_BYTES: usize = 64;

/// How outputs are written. All choices give the same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StoreMode {
    /// Plain where the outputs are likely to be in a cache, or where the execution adds to them or
    /// only copies. Otherwise whichever was faster in the last executions of this thread.
    #[default]
    Auto,
    /// Through the cache: right if the outputs are used soon, or are in cache already.
    Plain,
    /// Around the cache (non-temporal stores): right if inputs and outputs are in memory and the
    /// outputs are not used soon, even if one execution is small. Outputs whose addresses differ
    /// modulo the length of a vector get plain stores.
    Streaming,
}

/// How the computed bytes change the outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Update {
    /// The computed bytes replace the content.
    #[default]
    Replace,
    /// The computed bytes are added (XORed) to the content. A parity is updated in this way with
    /// the difference of its data.
    Accumulate,
}

/// How to execute a map. A [`Kernel`] alone converts to options with everything else default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// The inner loops.
    pub kernel: Kernel,
    /// The kind of stores to the outputs.
    pub stores: StoreMode,
    /// Replace or add.
    pub update: Update,
}

impl Default for Options {
    fn default() -> Self {
        Kernel::best().into()
    }
}

impl From<Kernel> for Options {
    fn from(kernel: Kernel) -> Self {
        Self { kernel, stores: StoreMode::default(), update: Update::default() }
    }
}

/// Why buffers cannot be used with a map.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ShapeError {
    /// The number of buffers differs from that of the map's shards.
    #[error("the map has {expected} {side} shards, but {given} buffers were given")]
    ShardCount {
        /// "input" or "output".
        side: &'static str,
        /// Shards of the map.
        expected: usize,
        /// Given buffers.
        given: usize,
    },
    /// The first input does not hold a whole number of bytes per element.
    #[error("input 0 has {len_bytes} bytes, which is not a multiple of its {elements} elements")]
    NotDivisible {
        /// Given bytes.
        len_bytes: usize,
        /// Elements of the shard.
        elements: u32,
    },
    /// A buffer's length does not fit the length of input 0.
    #[error("{side} {shard} has {given} bytes instead of {expected}")]
    Length {
        /// "input" or "output".
        side: &'static str,
        /// Number of the shard.
        shard: usize,
        /// Bytes that the elements' common length requires.
        expected: usize,
        /// Given bytes.
        given: usize,
    },
    /// This CPU cannot run the requested kernel.
    #[error("this CPU does not support the {0} kernel")]
    KernelUnavailable(Kernel),
}

impl LinearMap {
    /// Computes all outputs with the best kernel of this CPU.
    ///
    /// Buffers may have any alignment and any length (zero included) that is the same number of
    /// bytes per element everywhere. The outputs' old content does not matter. The function does
    /// not allocate, except once per call for maps of several passes: codes with many elements,
    /// scratch, or more than four outputs or 32 inputs.
    pub fn execute(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), ShapeError> {
        self.execute_with(Options::default(), inputs, outputs)
    }

    /// Adds (XORs) what [`LinearMap::execute`] would compute to the outputs.
    pub fn accumulate(
        &self,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), ShapeError> {
        let options = Options { update: Update::Accumulate, ..Options::default() };
        self.execute_with(options, inputs, outputs)
    }

    /// As [`LinearMap::execute`], with a given kernel or other [`Options`].
    pub fn execute_with(
        &self,
        options: impl Into<Options>,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), ShapeError> {
        let options = options.into();
        if options.kernel != Kernel::best() && !options.kernel.is_available() {
            return Err(ShapeError::KernelUnavailable(options.kernel));
        }
        let element_bytes = self.element_bytes(inputs)?;
        let shards = &self.shape().output_elements;
        check_count("output", shards.len(), outputs.len())?;
        check_lengths("output", shards, outputs.iter().map(|output| output.len()), element_bytes)?;
        if element_bytes == 0 {
            return Ok(());
        }
        let total_bytes = self.elements.saturating_mul(element_bytes);
        let only_copies = |pass: &Pass| matches!(pass.kind, PassKind::Zero | PassKind::Copy);
        let is_near = total_bytes <= FIRST_LEVEL_BYTES
            || options.update == Update::Accumulate
            || self.passes.iter().all(only_copies);
        match options.stores {
            StoreMode::Auto if !is_near => {
                let work = Work {
                    address: outputs.first().map_or(0, |output| output.as_ptr().addr()),
                    total_bytes,
                    inputs: inputs.len(),
                    outputs: self.only_pass().map(|pass| pass.targets.len()),
                };
                run_with_choice(&work, |streams| {
                    self.run(options, inputs, outputs, element_bytes, streams);
                });
            }
            StoreMode::Auto | StoreMode::Plain => {
                self.run(options, inputs, outputs, element_bytes, false);
            }
            StoreMode::Streaming => self.run(options, inputs, outputs, element_bytes, true),
        }
        Ok(())
    }

    /// The pass, if it is the only one and needs no scratch.
    fn only_pass(&self) -> Option<&Pass> {
        match &self.passes[..] {
            [pass] if self.shape().scratch_elements == 0 => Some(pass),
            _ => None,
        }
    }

    /// Executes with buffers that have been checked. They are not empty.
    fn run(
        &self,
        options: Options,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        element_bytes: usize,
        streams: bool,
    ) {
        match self.only_pass() {
            Some(pass) => {
                let total_bytes = self.elements.saturating_mul(element_bytes);
                let write = match streams {
                    true => Write::Streaming,
                    false if total_bytes > FIRST_LEVEL_BYTES => Write::Far,
                    false => Write::Near,
                };
                execute_pass(pass, options, inputs, outputs, element_bytes, write);
            }
            None => {
                Execution::new(self, options, inputs, outputs, element_bytes, streams).execute();
            }
        }
        if streams {
            fence();
        }
    }

    /// The common length of all elements, from the lengths of `inputs`: an output shard of n
    /// elements has n times as many bytes.
    pub fn element_bytes(&self, inputs: &[&[u8]]) -> Result<usize, ShapeError> {
        let shards = &self.shape().input_elements;
        check_count("input", shards.len(), inputs.len())?;
        let (len_bytes, elements) = (inputs[0].len(), shards[0]);
        // A division costs as much as all other checks together.
        let element_bytes = match elements {
            1 => len_bytes,
            _ if len_bytes.is_multiple_of(elements as usize) => len_bytes / elements as usize,
            _ => return Err(ShapeError::NotDivisible { len_bytes, elements }),
        };
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

/// Runs the only pass of a map. On small buffers, the time before the kernel begins matters.
fn execute_pass(
    pass: &Pass,
    options: Options,
    inputs: &[&[u8]],
    outputs: &mut [&mut [u8]],
    element_bytes: usize,
    write: Write,
) {
    let mut sources = [std::ptr::null(); MAX_PASS_SOURCES];
    let mut targets = [std::ptr::null_mut(); MAX_PASS_ROWS];
    for (pointer, source) in sources.iter_mut().zip(&pass.sources) {
        let Source::Input(element) = *source else { return };
        let at = element.index as usize * element_bytes;
        *pointer = inputs[usize::from(element.shard)].as_ptr().wrapping_add(at);
    }
    for (pointer, target) in targets.iter_mut().zip(&pass.targets) {
        let Target::Output(element) = *target else { return };
        let at = element.index as usize * element_bytes;
        *pointer = outputs[usize::from(element.shard)].as_mut_ptr().wrapping_add(at);
    }
    let accumulate = options.update == Update::Accumulate;
    let sweep = Sweep { columns: 0..element_bytes, accumulate, write };
    let (sources, targets) = (&sources[..pass.sources.len()], &targets[..pass.targets.len()]);
    // SAFETY: the map was validated and the buffers were checked against its shape, so all
    // pointers are valid for an element. Targets are different elements of outputs, which are
    // borrowed exclusively. The kernel was checked to be available.
    unsafe { options.kernel.run(pass, sources, targets, &sweep) };
}

/// One execution of a map of several passes, whose buffers have been checked against its shape.
struct Execution<'a> {
    map: &'a LinearMap,
    options: Options,
    inputs: &'a [&'a [u8]],
    /// Addresses of the outputs.
    outputs: Vec<*mut u8>,
    element_bytes: usize,
    /// Sources and targets of all passes, one after the other, at column 0.
    sources: Vec<*const u8>,
    targets: Vec<*mut u8>,
    scratch: Vec<u8>,
    slice_bytes: usize,
    write: Write,
}

impl<'a> Execution<'a> {
    fn new(
        map: &'a LinearMap,
        options: Options,
        inputs: &'a [&'a [u8]],
        outputs: &mut [&mut [u8]],
        element_bytes: usize,
        streams: bool,
    ) -> Self {
        let fitting = SLICES_BYTES / map.elements / MIN_SLICE_BYTES * MIN_SLICE_BYTES;
        let most = if streams { MAX_STREAMING_SLICE_BYTES } else { MAX_SLICE_BYTES };
        let slice_bytes = fitting.clamp(MIN_SLICE_BYTES, most).min(element_bytes);
        Self {
            map,
            options,
            inputs,
            outputs: outputs.iter_mut().map(|output| output.as_mut_ptr()).collect(),
            element_bytes,
            sources: Vec::with_capacity(map.passes.iter().map(|pass| pass.sources.len()).sum()),
            targets: Vec::with_capacity(map.passes.iter().map(|pass| pass.targets.len()).sum()),
            scratch: vec![0; map.shape().scratch_elements as usize * slice_bytes],
            slice_bytes,
            write: if streams { Write::Streaming } else { Write::Near },
        }
    }

    fn execute(&mut self) {
        let mut start = 0;
        self.resolve(0);
        while start < self.element_bytes {
            let len_bytes = self.slice_from(start);
            if start > 0 && !self.scratch.is_empty() {
                self.resolve(start);
            }
            self.slice(start, len_bytes);
            start += len_bytes;
        }
    }

    /// Length of the slice that begins at column `start`. The first slice ends where the first
    /// output is aligned to a line.
    fn slice_from(&self, start: usize) -> usize {
        let rest = self.element_bytes - start;
        let past = match self.outputs.first() {
            Some(output) if start == 0 => output.addr() % LINE_BYTES,
            _ => 0,
        };
        if rest > self.slice_bytes { self.slice_bytes - past } else { rest }
    }

    /// Computes the addresses of all passes. The addresses of scratch are right at the columns of
    /// the slice that begins at `start`.
    fn resolve(&mut self, start: usize) {
        let scratch = self.scratch.as_mut_ptr().wrapping_sub(start);
        self.sources.clear();
        self.targets.clear();
        for pass in &self.map.passes {
            self.sources.extend(pass.sources.iter().map(|source| match *source {
                Source::Input(element) => {
                    let at = element.index as usize * self.element_bytes;
                    self.inputs[usize::from(element.shard)].as_ptr().wrapping_add(at)
                }
                Source::Scratch(index) => {
                    scratch.wrapping_add(index as usize * self.slice_bytes).cast_const()
                }
            }));
            self.targets.extend(pass.targets.iter().map(|target| match *target {
                Target::Output(element) => {
                    let at = element.index as usize * self.element_bytes;
                    self.outputs[usize::from(element.shard)].wrapping_add(at)
                }
                Target::Scratch(index) => scratch.wrapping_add(index as usize * self.slice_bytes),
            }));
        }
    }

    /// Runs all passes over `len_bytes` columns that begin at column `start`.
    fn slice(&self, start: usize, len_bytes: usize) {
        let (mut sources, mut targets) = (&self.sources[..], &self.targets[..]);
        let next = start + len_bytes;
        let ahead = self.slice_bytes.min(self.element_bytes - next);
        let ahead = if self.write == Write::Streaming { ahead } else { 0 };
        for pass in &self.map.passes {
            let (of_pass, rest) = sources.split_at(pass.sources.len());
            let (to_pass, rest_targets) = targets.split_at(pass.targets.len());
            (sources, targets) = (rest, rest_targets);
            let sweep = Sweep {
                columns: start..next,
                accumulate: pass.accumulate || self.adds_to(pass),
                write: if pass.completes_outputs || self.write != Write::Streaming {
                    self.write
                } else {
                    Write::Near
                },
            };
            // SAFETY: the map was validated, and the buffers were checked to have element_bytes
            // bytes for each of its elements, scratch slice_bytes; so all pointers are valid at
            // the columns. Targets do not overlap each other (each element is written once) nor
            // the sources (inputs are borrowed shared, outputs exclusively, and a step never
            // reads scratch that it writes). The kernel was checked to be available.
            unsafe { self.options.kernel.run(pass, of_pass, to_pass, &sweep) };
            if ahead > 0 {
                for &at in &pass.fresh {
                    prefetch(of_pass[at].wrapping_add(next), ahead);
                }
            }
        }
    }

    /// True if the pass is the first that writes its outputs, and the computed bytes are to be
    /// added to them.
    fn adds_to(&self, pass: &Pass) -> bool {
        let to_output = matches!(pass.targets.first(), Some(Target::Output(_)));
        self.options.update == Update::Accumulate && to_output
    }
}
