//! [`LinearMap`]: a linear program over shards, in plain data.
//!
//! **Shape.** A map has input shards and output shards. A shard is a sequence of equal *elements*.
//! All elements of one execution have the same length, but shards may have different numbers of
//! elements (a rebuild reads half of each survivor and writes one whole shard).
//!
//! **Program.** A list of [`Step`]s. A step is a list of [`Row`]s; a row computes one target
//! element as the sum (XOR) of its terms, coefficient times source element. Sources are input
//! elements, or scratch elements that an *earlier* step wrote. Targets are output or scratch
//! elements. Most codes need one step; layered codes (Clay) need several.
//!
//! **Validity** is checked once, when a map is made, so execution checks only lengths. Every index
//! is inside the shape. Every output element and every scratch element is written exactly once. A
//! step reads only scratch that an earlier step wrote.
//!
//! **Pointwise.** A program treats all byte columns alike, so it may be applied to any sub-range of
//! the elements' bytes: an engine may cut elements into slices.
//!
//! Bounds: [`MAX_SHARDS`], [`MAX_ELEMENTS`] and [`MAX_TERMS`].

use std::fmt;

use thiserror::Error;

use crate::compile::{Pass, compile};
use crate::matrix::Matrix;

/// Most input shards, and most output shards, of one map. A code has at most 256 shards.
pub const MAX_SHARDS: usize = 1024;
/// Most elements of all inputs, of all outputs, or of scratch, of one map.
pub const MAX_ELEMENTS: usize = 1 << 20;
/// Most terms of one map.
pub const MAX_TERMS: usize = 1 << 24;

/// One element of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    /// Number of the input (or output) shard.
    pub shard: u16,
    /// Number of the element in that shard.
    pub index: u32,
}

/// The element that a term reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// An element of an input shard.
    Input(Element),
    /// A scratch element written by an earlier step.
    Scratch(u32),
}

/// The element that a row writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// An element of an output shard.
    Output(Element),
    /// A scratch element.
    Scratch(u32),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output(element) => write!(f, "output {}.{}", element.shard, element.index),
            Self::Scratch(index) => write!(f, "scratch {index}"),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(element) => write!(f, "input {}.{}", element.shard, element.index),
            Self::Scratch(index) => write!(f, "scratch {index}"),
        }
    }
}

/// `coefficient` times `source`. If a row names a source twice, both terms count (so equal
/// coefficients cancel). A zero coefficient adds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The element to read.
    pub source: Source,
    /// The field element to multiply it by.
    pub coefficient: u8,
}

impl Term {
    /// A term that reads element `index` of input shard `shard`.
    #[must_use]
    pub fn input(shard: u16, index: u32, coefficient: u8) -> Self {
        Self { source: Source::Input(Element { shard, index }), coefficient }
    }

    /// A term that reads a scratch element.
    #[must_use]
    pub fn scratch(index: u32, coefficient: u8) -> Self {
        Self { source: Source::Scratch(index), coefficient }
    }
}

/// One target element, and the terms whose sum it is. Without terms, the sum is zero bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The element to write.
    pub target: Target,
    /// The terms of the sum.
    pub terms: Vec<Term>,
}

/// Rows that do not depend on each other.
pub type Step = Vec<Row>;

/// The number of elements of each shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Elements of each input shard, at least 1 each.
    pub input_elements: Vec<u32>,
    /// Elements of each output shard, at least 1 each. There may be no outputs: a single copy has
    /// no parity.
    pub output_elements: Vec<u32>,
    /// Number of scratch elements.
    pub scratch_elements: u32,
}

impl Shape {
    /// `inputs` and `outputs` shards of `elements` elements each, no scratch.
    #[must_use]
    pub fn uniform(inputs: usize, outputs: usize, elements: u32) -> Self {
        Self {
            input_elements: vec![elements; inputs],
            output_elements: vec![elements; outputs],
            scratch_elements: 0,
        }
    }
}

/// Why a program is not a valid [`LinearMap`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MapError {
    /// No input shard.
    #[error("a map needs at least one input shard")]
    NoInputs,
    /// A number exceeds a documented bound.
    #[error("{count} {what}, but a map may have at most {limit}")]
    TooMany {
        /// The counted objects.
        what: &'static str,
        /// The number.
        count: usize,
        /// The bound.
        limit: usize,
    },
    /// A shard with zero elements.
    #[error("{kind} shard {shard} has no elements")]
    EmptyShard {
        /// "input" or "output".
        kind: &'static str,
        /// Its number.
        shard: usize,
    },
    /// A list of rows has the wrong length.
    #[error("{rows} rows given for {output_elements} output elements")]
    RowCount {
        /// Given rows.
        rows: usize,
        /// Output elements of the shape.
        output_elements: usize,
    },
    /// A term reads an element that does not exist.
    #[error("step {step} writes {target} from {source_element}, which does not exist")]
    NoSuchSource {
        /// Number of the step.
        step: usize,
        /// The row's target.
        target: Target,
        /// The element that the term reads.
        source_element: Source,
    },
    /// A term reads scratch that no earlier step wrote.
    #[error("step {step} writes {target} from scratch {index}, which no earlier step wrote")]
    ScratchNotReady {
        /// Number of the step.
        step: usize,
        /// The row's target.
        target: Target,
        /// The scratch element.
        index: u32,
    },
    /// A row writes an element that does not exist.
    #[error("step {step} writes {target}, which does not exist")]
    NoSuchTarget {
        /// Number of the step.
        step: usize,
        /// The row's target.
        target: Target,
    },
    /// Two rows write the same element.
    #[error("step {step} writes {target}, which was already written")]
    WrittenTwice {
        /// Number of the step.
        step: usize,
        /// The row's target.
        target: Target,
    },
    /// An output element that no row writes.
    #[error("no row writes {0}")]
    NeverWritten(Target),
}

/// An immutable linear program over GF(2^8). The module's text explains it, and
/// [`LinearMap::execute`] runs it.
#[derive(Clone)]
pub struct LinearMap {
    shape: Shape,
    steps: Vec<Step>,
    /// All elements of inputs, outputs and scratch.
    pub(crate) elements: usize,
    pub(crate) passes: Vec<Pass>,
}

impl LinearMap {
    /// A one-step map over shards of `elements` elements each. `rows[o * elements + e]` holds the
    /// terms of element `e` of output shard `o`.
    pub fn new(
        inputs: usize,
        outputs: usize,
        elements: u32,
        rows: Vec<Vec<Term>>,
    ) -> Result<Self, MapError> {
        let shape = Shape::uniform(inputs, outputs, elements);
        check_shape(&shape)?;
        let output_elements = outputs * elements as usize;
        if rows.len() != output_elements {
            return Err(MapError::RowCount { rows: rows.len(), output_elements });
        }
        let targets = (0..outputs as u16).flat_map(|shard| {
            (0..elements).map(move |index| Target::Output(Element { shard, index }))
        });
        let step = targets.zip(rows).map(|(target, terms)| Row { target, terms }).collect();
        Self::from_steps(shape, vec![step])
    }

    /// The general form: any shape, any number of steps.
    pub fn from_steps(shape: Shape, steps: Vec<Step>) -> Result<Self, MapError> {
        check_shape(&shape)?;
        check_steps(&shape, &steps)?;
        let passes = compile(&steps);
        let shards = shape.input_elements.iter().chain(&shape.output_elements);
        let elements = shards.sum::<u32>() as usize + shape.scratch_elements as usize;
        Ok(Self { shape, steps, elements, passes })
    }

    /// Shards of one element each: output i is the sum over j of `matrix[i][j]` times input j.
    pub fn from_matrix(matrix: &Matrix) -> Result<Self, MapError> {
        let terms = |row: usize| {
            let inputs = matrix.row(row).iter().enumerate();
            inputs.map(|(shard, &coefficient)| Term::input(shard as u16, 0, coefficient)).collect()
        };
        let rows = (0..matrix.rows()).map(terms).collect();
        Self::new(matrix.columns(), matrix.rows(), 1, rows)
    }

    /// Number of input shards.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.shape.input_elements.len()
    }

    /// Number of output shards.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.shape.output_elements.len()
    }

    /// The number of elements of every shard.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The reverse of [`LinearMap::from_matrix`]: `None` if a shard has several elements, or if the
    /// program uses scratch.
    #[must_use]
    pub fn to_matrix(&self) -> Option<Matrix> {
        let (outputs, inputs) = (self.outputs(), self.inputs());
        let single = |elements: &[u32]| elements.iter().all(|count| *count == 1);
        let shape = &self.shape;
        if !single(&shape.input_elements) || !single(&shape.output_elements) || outputs == 0 {
            return None;
        }
        let mut matrix = vec![0; outputs * inputs];
        for row in self.steps.iter().flatten() {
            let Target::Output(Element { shard, .. }) = row.target else { return None };
            for Term { source, coefficient } in &row.terms {
                let Source::Input(element) = source else { return None };
                matrix[usize::from(shard) * inputs + usize::from(element.shard)] ^= coefficient;
            }
        }
        Some(Matrix::from_fn(outputs, inputs, |row, column| matrix[row * inputs + column]))
    }

    /// The program as it was given, for devices that compile it differently.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

impl fmt::Debug for LinearMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinearMap")
            .field("shape", &self.shape)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

impl PartialEq for LinearMap {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.steps == other.steps
    }
}

impl Eq for LinearMap {}

fn check_limit(what: &'static str, count: usize, limit: usize) -> Result<(), MapError> {
    if count > limit { Err(MapError::TooMany { what, count, limit }) } else { Ok(()) }
}

fn check_shape(shape: &Shape) -> Result<(), MapError> {
    if shape.input_elements.is_empty() {
        return Err(MapError::NoInputs);
    }
    let sides = [("input", &shape.input_elements), ("output", &shape.output_elements)];
    for (kind, shards) in sides {
        check_limit("shards on one side", shards.len(), MAX_SHARDS)?;
        if let Some(shard) = shards.iter().position(|&elements| elements == 0) {
            return Err(MapError::EmptyShard { kind, shard });
        }
        let total = shards.iter().map(|&elements| elements as usize).sum();
        check_limit("elements on one side", total, MAX_ELEMENTS)?;
    }
    check_limit("scratch elements", shape.scratch_elements as usize, MAX_ELEMENTS)
}

fn check_steps(shape: &Shape, steps: &[Step]) -> Result<(), MapError> {
    let terms = steps.iter().flatten().map(|row| row.terms.len()).sum();
    check_limit("terms", terms, MAX_TERMS)?;
    let mut scratch_written = vec![false; shape.scratch_elements as usize];
    let mut output_written: Vec<Vec<bool>> =
        shape.output_elements.iter().map(|&elements| vec![false; elements as usize]).collect();
    for (step, rows) in steps.iter().enumerate() {
        for row in rows {
            check_sources(shape, &scratch_written, step, row)?;
        }
        // The targets of a step count as written only after the whole step, because its rows must
        // not read each other's targets.
        for &Row { target, .. } in rows {
            let written = match target {
                Target::Output(Element { shard, index }) => output_written
                    .get_mut(usize::from(shard))
                    .and_then(|elements| elements.get_mut(index as usize)),
                Target::Scratch(index) => scratch_written.get_mut(index as usize),
            };
            let written = written.ok_or(MapError::NoSuchTarget { step, target })?;
            if std::mem::replace(written, true) {
                return Err(MapError::WrittenTwice { step, target });
            }
        }
    }
    for (shard, elements) in output_written.iter().enumerate() {
        if let Some(index) = elements.iter().position(|&written| !written) {
            let element = Element { shard: shard as u16, index: index as u32 };
            return Err(MapError::NeverWritten(Target::Output(element)));
        }
    }
    Ok(())
}

fn check_sources(
    shape: &Shape,
    scratch_written: &[bool],
    step: usize,
    row: &Row,
) -> Result<(), MapError> {
    let target = row.target;
    for term in &row.terms {
        let source_element = term.source;
        let exists = match source_element {
            Source::Input(Element { shard, index }) => {
                shape.input_elements.get(usize::from(shard)).is_some_and(|&n| index < n)
            }
            Source::Scratch(index) => match scratch_written.get(index as usize) {
                Some(false) => return Err(MapError::ScratchNotReady { step, target, index }),
                written => written.is_some(),
            },
        };
        if !exists {
            return Err(MapError::NoSuchSource { step, target, source_element });
        }
    }
    Ok(())
}
