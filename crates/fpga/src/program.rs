//! A linear map in the layout of the codes engine's tables (`rtl/codes/codes_pkg.sv`).
//!
//! The engine adds up to one product per *lane* and cycle. A lane is an operand of the engine's
//! tree with its own buffer. So a row costs as many operations as its most used lane has terms. The
//! compiler assigns elements to lanes such that the terms of each row are spread:
//!
//! 1. *Sums*: it merges repeated terms of rows, and drops zero terms, scratch that no output
//!    depends on, and inputs that no row uses.
//! 2. *Assignment*: every used input and scratch element gets a lane, and a slot in the lane's
//!    buffer.
//! 3. *Slice*: as many beats of every element as fit, but no more than a pass needs to keep the
//!    memory port busy, because the engine reads nothing while it computes the last pass of a job.
//! 4. *Operations*: the terms of a row, lane by lane. A row that reads scratch written since the
//!    last fence begins with a fence.

mod assign;
mod sums;
#[cfg(test)]
mod tests;

use fieldstone_accel::crc32c;
use fieldstone_gf::{LinearMap, Source, Target};
use thiserror::Error;

use assign::{LaneAssignment, assign};
use sums::{Sum, Sums};

/// `codes_pkg::MAGIC`.
const MAGIC: u32 = 0x3150_4346;
/// Most lanes of an engine: the terms in the layout of an operation.
pub const MAX_LANES: usize = 12;
/// Bytes of a beat, the unit of card memory.
const BEAT_BYTES: usize = 64;
/// Most beats of a slice (`SLICE_BYTES`).
const MAX_SLICE_BEATS: usize = 64;
/// Fewest beats of a slice, where the buffers allow it: shorter bursts waste memory rows.
const SHORT_SLICE_BEATS: usize = 8;
/// Beats that a pass should read: enough to hide the memory's latency, yet few, because the engine
/// reads nothing while it computes the last pass.
const PASS_BEATS: usize = 512;

/// How a codes engine was built (register `BUILD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineShape {
    /// Operands of the multiply-add tree, 1 to [`MAX_LANES`].
    pub lanes: usize,
    /// Beats of one bank of a lane's buffer, at least 64.
    pub lane_beats: usize,
    /// Operations that the table holds; it holds as many fills.
    pub operations: usize,
}

impl Default for EngineShape {
    /// The parameters' defaults in `rtl/codes/codes_engine.sv`.
    fn default() -> Self {
        Self { lanes: 8, lane_beats: 1024, operations: 1024 }
    }
}

/// Why an engine cannot run a map.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ProgramError {
    /// The map has no outputs.
    #[error("the map has no outputs")]
    NoOutputs,
    /// More elements than the lanes' buffers hold, even in the smallest slices.
    #[error("the map uses {elements} elements, but the lanes' banks hold {room}")]
    TooManyElements {
        /// Used input and scratch elements.
        elements: usize,
        /// Beats in one bank of all lanes.
        room: usize,
    },
    /// More input elements than the table has fills.
    #[error("the map reads {fills} input elements, but the table holds {room}")]
    TooManyFills {
        /// Used input elements.
        fills: usize,
        /// Fills of the table.
        room: usize,
    },
    /// More operations than the table holds.
    #[error("the map needs {operations} operations, but the table holds {room}")]
    TooManyOperations {
        /// Operations that the map needs, or a lower bound.
        operations: usize,
        /// Operations of the table.
        room: usize,
    },
    /// An element's number has more than 16 bits.
    #[error("element {index} of a shard: the table holds numbers up to 65535")]
    ElementNumber {
        /// The element's number.
        index: u32,
    },
    /// No engine is built like that.
    #[error(
        "no engine has {} lanes of {} beats and {} operations",
        .0.lanes, .0.lane_beats, .0.operations
    )]
    Shape(EngineShape),
}

/// A compiled map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    bytes: Vec<u8>,
    slice_beats: usize,
    fills: usize,
    operations: usize,
}

impl Program {
    /// Compiles a map for an engine.
    ///
    /// # Errors
    /// The map does not fit into the engine's buffers or tables, or there is nothing to compute.
    pub fn compile(map: &LinearMap, shape: &EngineShape) -> Result<Self, ProgramError> {
        let fits = (1..=MAX_LANES).contains(&shape.lanes)
            && (MAX_SLICE_BEATS..=1 << 15).contains(&shape.lane_beats)
            && (1..=4096).contains(&shape.operations);
        if !fits {
            return Err(ProgramError::Shape(*shape));
        }
        if map.outputs() == 0 {
            return Err(ProgramError::NoOutputs);
        }
        let sums = Sums::new(map);
        check(&sums, shape)?;
        let assignment = assign(&sums, shape);
        let slice_beats = slice_beats(&assignment, shape, sums.inputs);
        let fills = fills(&sums, &assignment, slice_beats)?;
        let operations = operations(&sums, &assignment, slice_beats)?;
        if operations.len() > shape.operations {
            let (operations, room) = (operations.len(), shape.operations);
            return Err(ProgramError::TooManyOperations { operations, room });
        }
        Ok(Self::assemble(slice_beats, &fills, &operations))
    }

    fn assemble(slice_beats: usize, fills: &[[u8; 8]], operations: &[[u8; BEAT_BYTES]]) -> Self {
        let mut bytes = vec![0; BEAT_BYTES];
        bytes.extend(fills.as_flattened());
        bytes.resize(bytes.len().next_multiple_of(BEAT_BYTES), 0);
        bytes.extend(operations.as_flattened());
        let checksum = crc32c(&bytes[BEAT_BYTES..]);
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&(fills.len() as u16).to_le_bytes());
        bytes[6..8].copy_from_slice(&(operations.len() as u16).to_le_bytes());
        bytes[8..10].copy_from_slice(&(slice_beats as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        Self { bytes, slice_beats, fills: fills.len(), operations: operations.len() }
    }

    /// The bytes of the program: a multiple of 64.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Beats of every element in one pass.
    #[must_use]
    pub fn slice_beats(&self) -> usize {
        self.slice_beats
    }

    /// Input elements that the engine reads, each once.
    #[must_use]
    pub fn fills(&self) -> usize {
        self.fills
    }

    /// Operations. The engine takes one cycle for each, per beat of an element.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.operations
    }
}

/// Refuses, before any long computation, a map that cannot fit however the compiler assigns its
/// elements.
fn check(sums: &Sums, shape: &EngineShape) -> Result<(), ProgramError> {
    let (fills, elements) = (sums.inputs, sums.cells.len());
    if fills > shape.operations {
        return Err(ProgramError::TooManyFills { fills, room: shape.operations });
    }
    let operations = sums.sums.iter().map(|sum| sum.operations_at_least(shape.lanes)).sum();
    if operations > shape.operations {
        return Err(ProgramError::TooManyOperations { operations, room: shape.operations });
    }
    let room = shape.lanes * shape.lane_beats;
    if elements > room {
        return Err(ProgramError::TooManyElements { elements, room });
    }
    Ok(())
}

fn slice_beats(assignment: &LaneAssignment, shape: &EngineShape, fills: usize) -> usize {
    let fitting = shape.lane_beats / assignment.slots;
    fitting.min((PASS_BEATS / fills).clamp(SHORT_SLICE_BEATS, MAX_SLICE_BEATS))
}

fn number(index: u32) -> Result<u16, ProgramError> {
    u16::try_from(index).map_err(|_| ProgramError::ElementNumber { index })
}

/// The fills, in the order of the elements in memory.
fn fills(
    sums: &Sums,
    assignment: &LaneAssignment,
    slice_beats: usize,
) -> Result<Vec<[u8; 8]>, ProgramError> {
    let mut fills = Vec::with_capacity(sums.inputs);
    for (source, place) in sums.cells.iter().zip(&assignment.places) {
        if let Source::Input(element) = source {
            let mut fill = [0; 8];
            fill[0..2].copy_from_slice(&element.shard.to_le_bytes());
            fill[2..4].copy_from_slice(&number(element.index)?.to_le_bytes());
            fill[4..6].copy_from_slice(&(place.lane as u16).to_le_bytes());
            fill[6..8].copy_from_slice(&((place.slot * slice_beats) as u16).to_le_bytes());
            fills.push(fill);
        }
    }
    Ok(fills)
}

/// Flags of an operation.
const LAST: u8 = 1;
const SCRATCH: u8 = 2;
const FENCE: u8 = 4;

fn operations(
    sums: &Sums,
    assignment: &LaneAssignment,
    slice_beats: usize,
) -> Result<Vec<[u8; BEAT_BYTES]>, ProgramError> {
    let mut operations = Vec::new();
    for sum in &sums.sums {
        let first = operations.len();
        let mut used = [0; MAX_LANES];
        operations.push([0; BEAT_BYTES]);
        for &(cell, coefficient) in &sum.terms {
            let place = assignment.places[cell];
            let operation = first + used[place.lane];
            used[place.lane] += 1;
            if operation == operations.len() {
                operations.push([0; BEAT_BYTES]);
            }
            let term = &mut operations[operation][4 * place.lane..][..4];
            term[0..2].copy_from_slice(&((place.slot * slice_beats) as u16).to_le_bytes());
            term[2] = coefficient;
        }
        if sum.fence {
            operations[first][48] |= FENCE;
        }
        let last = operations.last_mut().expect("one was pushed above");
        target(last, sum, sums, assignment, slice_beats)?;
    }
    Ok(operations)
}

/// Writes the target of a row's sum into the row's last operation.
fn target(
    operation: &mut [u8; BEAT_BYTES],
    sum: &Sum,
    sums: &Sums,
    assignment: &LaneAssignment,
    slice_beats: usize,
) -> Result<(), ProgramError> {
    operation[48] |= LAST;
    match sum.target {
        Target::Output(element) => {
            operation[52..54].copy_from_slice(&element.shard.to_le_bytes());
            operation[54..56].copy_from_slice(&number(element.index)?.to_le_bytes());
        }
        Target::Scratch(index) => {
            let cell = sums.cells.binary_search(&Source::Scratch(index));
            let place = assignment.places[cell.expect("scratch that no row reads was left out")];
            operation[48] |= SCRATCH;
            operation[49] = place.lane as u8;
            operation[50..52].copy_from_slice(&((place.slot * slice_beats) as u16).to_le_bytes());
        }
    }
    Ok(())
}
