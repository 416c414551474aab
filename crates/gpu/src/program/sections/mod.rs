//! Cuts a linear map into sections: pieces that threads execute on their own.
//!
//! Rows of a step that read the same elements form a *bundle*: each element is loaded once for all
//! of its rows. Bundles that are linked through scratch elements form a *component*. A small
//! component is one section, and its scratch stays in registers. A large component is executed by
//! the warps of a block together: each bundle is a section, its scratch lies in shared memory, and
//! the block's warps wait for each other between the steps.
//!
//! Many sections differ only in the elements that they read and write: all layers of a Clay code
//! that have the same coefficients, or all rows of ones of a Zigzag code. So a section is a
//! [`Code`], which is compiled once, and a list of *operands*, the numbers of its elements, which
//! the threads read from a table. This is the MSR engine's idea of index tables beside coefficient
//! tables, with code in place of the coefficients.
//!
//! Other sections differ in little more (module [`merge`]): the layers of a Clay code multiply the
//! same columns of coefficients, each with the sum of two elements or with a multiple of one. Then
//! one code has the *variants* of each column, and a section's operands say which one it takes.
//! Threads with other sections share the long products and only branch around the short sums.

mod merge;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fieldstone_gf::{LinearMap, Source, Target};

/// Most rows of a bundle. Each takes eight registers.
const BUNDLE_ROWS_MAX: usize = 6;
/// Most scratch elements that stay in registers. Each takes eight registers.
const TEMPORARIES_MAX: usize = 6;
/// Most elements that a section with scratch in registers reads.
const FUSED_READS_MAX: usize = 32;

/// The element that a term of a section reads, by its number within the section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Read {
    /// An operand in global memory.
    Input(u32),
    /// An operand in shared memory.
    Shared(u32),
    /// A scratch element in registers.
    Temporary(u32),
}

/// The element that a row of a section writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    /// An operand in global memory.
    Output(u32),
    /// An operand in shared memory.
    Shared(u32),
    /// A scratch element in registers.
    Temporary(u32),
}

/// Rows over the same sources.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bundle {
    /// The sources.
    pub(crate) reads: Vec<Read>,
    /// The target of each row, and its coefficients, one per source.
    pub(crate) rows: Vec<(Write, Vec<u8>)>,
    /// If sections with this code differ in their sources: the columns, in place of `reads` and of
    /// the coefficients in `rows`.
    pub(crate) columns: Vec<VariedColumn>,
}

/// Coefficients, one per row, that are multiplied with a sum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct VariedColumn {
    pub(crate) coefficients: Vec<u8>,
    /// The sums, one or more.
    pub(crate) variants: Vec<Variant>,
    /// The operand that says which variant a section takes, among all such operands; none if there
    /// is only one.
    pub(crate) selector: Option<u32>,
}

/// Elements and their factors.
pub(crate) type Variant = Vec<(Read, u8)>;

/// What a section computes, without the numbers of its elements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Code {
    /// The bundles in order.
    pub(crate) bundles: Vec<Bundle>,
    /// The numbers of operands: inputs, shared elements read, outputs, shared elements written.
    pub(crate) inputs: u32,
    pub(crate) shared_reads: u32,
    pub(crate) outputs: u32,
    pub(crate) shared_writes: u32,
    /// The number of operands that say which variant a section takes.
    pub(crate) selectors: u32,
}

impl Code {
    /// The number of all operands.
    pub(crate) fn operands(&self) -> u32 {
        self.inputs + self.shared_reads + self.outputs + self.shared_writes + self.selectors
    }
}

/// A code with its operands: inputs first, then shared elements read, then outputs, then shared
/// elements written, then the numbers of variants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    /// The number of the code.
    pub(crate) code: usize,
    /// Numbers of elements. Those of all input shards are numbered in one sequence, those of all
    /// output shards in another, and the shared elements of a component in a third.
    pub(crate) operands: Vec<u32>,
}

/// Sections that a block executes together: the steps, between which its warps wait.
pub(crate) type Component = Vec<Vec<Section>>;

/// All sections of a map.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    /// The codes of all sections.
    pub(crate) codes: Vec<Code>,
    /// Sections that need no others.
    pub(crate) single: Vec<Section>,
    /// The others.
    pub(crate) components: Vec<Component>,
    /// Shared elements of the component that has the most.
    pub(crate) shared_max: u32,
}

/// A source in the numbers of the whole map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum From {
    Input(u32),
    Scratch(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum To {
    Output(u32),
    Scratch(u32),
}

/// Rows of one step that read the same sources, each with its coefficients.
struct Group {
    step: usize,
    sources: Vec<From>,
    rows: Vec<(To, Vec<u8>)>,
}

impl Group {
    fn scratch(&self) -> impl Iterator<Item = u32> + '_ {
        let read = self.sources.iter().filter_map(|source| match source {
            From::Scratch(index) => Some(*index),
            From::Input(_) => None,
        });
        let written = self.rows.iter().filter_map(|(to, _)| match to {
            To::Scratch(index) => Some(*index),
            To::Output(_) => None,
        });
        read.chain(written)
    }

    /// Sources with equal columns of coefficients stand together, so that bundles that differ only
    /// in their elements look alike.
    fn sort_sources(&mut self) {
        let column = |at: usize| -> Vec<u8> { self.rows.iter().map(|(_, row)| row[at]).collect() };
        let mut order: Vec<usize> = (0..self.sources.len()).collect();
        order.sort_by_cached_key(|&at| {
            let scratch = matches!(self.sources[at], From::Scratch(_));
            (scratch, column(at), self.sources[at])
        });
        self.sources = order.iter().map(|&at| self.sources[at]).collect();
        for (_, row) in &mut self.rows {
            *row = order.iter().map(|&at| row[at]).collect();
        }
    }
}

/// A section before its elements have numbers of its own.
pub(crate) struct Piece<'a> {
    groups: &'a [Group],
    /// The scratch of its component, if that is in shared memory.
    shared: Option<&'a BTreeSet<u32>>,
}

/// Bundles that are linked through scratch.
struct Linked {
    groups: Vec<Group>,
    scratch: BTreeSet<u32>,
    /// The scratch stays in registers.
    fused: bool,
}

impl Linked {
    fn new(groups: Vec<Group>) -> Self {
        let scratch: BTreeSet<u32> = groups.iter().flat_map(Group::scratch).collect();
        let inputs: BTreeSet<From> = (groups.iter().flat_map(|group| &group.sources).copied())
            .filter(|source| matches!(source, From::Input(_)))
            .collect();
        let few = scratch.len() <= TEMPORARIES_MAX && inputs.len() <= FUSED_READS_MAX;
        Self { groups, fused: scratch.is_empty() || few, scratch }
    }

    fn pieces(&self) -> Vec<Piece<'_>> {
        if self.fused {
            return vec![Piece { groups: &self.groups, shared: None }];
        }
        let piece =
            |group| Piece { groups: std::slice::from_ref(group), shared: Some(&self.scratch) };
        self.groups.iter().map(piece).collect()
    }
}

impl Sections {
    /// The sections of a map. With `merged`, sections that differ in the sums of their columns
    /// share a code.
    pub(crate) fn of(map: &LinearMap, merged: bool) -> Self {
        let linked: Vec<Linked> = components(groups(map)).into_iter().map(Linked::new).collect();
        let pieces: Vec<Piece<'_>> = linked.iter().flat_map(Linked::pieces).collect();
        let (codes, sections) = match merged {
            true => merge::codes(&pieces),
            false => plain_codes(&pieces),
        };
        let mut result = Self { codes, ..Self::default() };
        let mut sections = sections.into_iter();
        for linked in &linked {
            let of_linked = sections.by_ref().take(linked.pieces().len());
            if linked.fused {
                result.single.extend(of_linked);
                continue;
            }
            result.shared_max = result.shared_max.max(linked.scratch.len() as u32);
            let mut steps: BTreeMap<usize, Vec<Section>> = BTreeMap::new();
            for (group, section) in linked.groups.iter().zip(of_linked) {
                steps.entry(group.step).or_default().push(section);
            }
            for sections in steps.values_mut() {
                // Neighbouring warps share the instructions of one code.
                sections.sort_by_key(|section| section.code);
            }
            result.components.push(steps.into_values().collect());
        }
        result
    }
}

/// Codes and sections, where sections share a code only if they differ in nothing but elements.
fn plain_codes(pieces: &[Piece<'_>]) -> (Vec<Code>, Vec<Section>) {
    let mut codes: Vec<Code> = Vec::new();
    let mut known: HashMap<Code, usize> = HashMap::new();
    let sections = pieces.iter().map(|piece| {
        let (code, operands) = localise(piece);
        let code = *known.entry(code).or_insert_with_key(|code| {
            codes.push(code.clone());
            codes.len() - 1
        });
        Section { code, operands }
    });
    let sections = sections.collect();
    (codes, sections)
}

/// The bundles of the map, step by step.
fn groups(map: &LinearMap) -> Vec<Group> {
    let first = |counts: &[u32]| -> Vec<u32> {
        let sum = |sum: &mut u32, count: &u32| Some(std::mem::replace(sum, *sum + count));
        counts.iter().scan(0, sum).collect()
    };
    let inputs = first(&map.shape().input_elements);
    let outputs = first(&map.shape().output_elements);
    let mut groups = Vec::new();
    for (step, rows) in map.steps().iter().enumerate() {
        let mut alike: BTreeMap<Vec<From>, Vec<(To, Vec<u8>)>> = BTreeMap::new();
        for row in rows {
            let mut sum: BTreeMap<From, u8> = BTreeMap::new();
            for term in &row.terms {
                let from = match term.source {
                    Source::Input(element) => {
                        From::Input(inputs[usize::from(element.shard)] + element.index)
                    }
                    Source::Scratch(index) => From::Scratch(index),
                };
                *sum.entry(from).or_default() ^= term.coefficient;
            }
            sum.retain(|_, coefficient| *coefficient != 0);
            let to = match row.target {
                Target::Output(element) => {
                    To::Output(outputs[usize::from(element.shard)] + element.index)
                }
                Target::Scratch(index) => To::Scratch(index),
            };
            let (sources, coefficients) = sum.into_iter().unzip();
            alike.entry(sources).or_default().push((to, coefficients));
        }
        for (sources, mut rows) in alike {
            rows.sort();
            for rows in rows.chunks(BUNDLE_ROWS_MAX) {
                let (sources, rows) = (sources.clone(), rows.to_vec());
                let mut group = Group { step, sources, rows };
                group.sort_sources();
                groups.push(group);
            }
        }
    }
    groups
}

/// Bundles that are linked through scratch, in the order of their steps.
fn components(groups: Vec<Group>) -> Vec<Vec<Group>> {
    let mut parent: Vec<usize> = (0..groups.len()).collect();
    fn root(parent: &mut [usize], mut at: usize) -> usize {
        while parent[at] != at {
            parent[at] = parent[parent[at]];
            at = parent[at];
        }
        at
    }
    let mut user: HashMap<u32, usize> = HashMap::new();
    for (number, group) in groups.iter().enumerate() {
        for scratch in group.scratch() {
            let other = *user.entry(scratch).or_insert(number);
            let (a, b) = (root(&mut parent, number), root(&mut parent, other));
            parent[a.max(b)] = a.min(b);
        }
    }
    let mut components: BTreeMap<usize, Vec<Group>> = BTreeMap::new();
    for (number, group) in groups.into_iter().enumerate() {
        components.entry(root(&mut parent, number)).or_default().push(group);
    }
    for groups in components.values_mut() {
        // By scratch elements, so that components that differ only in elements look alike.
        groups.sort_by_key(|group| (group.step, group.scratch().min()));
    }
    components.into_values().collect()
}

/// Local numbers of elements, in the order of their first use.
#[derive(Default)]
struct Numbers(Vec<u32>);

impl Numbers {
    fn of(&mut self, element: u32) -> u32 {
        let known = self.0.iter().position(|&known| known == element);
        known.unwrap_or_else(|| {
            self.0.push(element);
            self.0.len() - 1
        }) as u32
    }
}

/// The number of a shared element in its component.
fn place(all: &BTreeSet<u32>, index: u32) -> u32 {
    all.range(..index).count() as u32
}

/// Numbers the elements of a piece.
fn localise(piece: &Piece<'_>) -> (Code, Vec<u32>) {
    let Piece { groups, shared } = *piece;
    let [mut inputs, mut reads, mut outputs, mut writes, mut temporaries] =
        std::array::from_fn(|_| Numbers::default());
    let bundles = groups.iter().map(|group| {
        let mut read = |from: &From| match (*from, shared) {
            (From::Input(element), _) => Read::Input(inputs.of(element)),
            (From::Scratch(index), Some(all)) => Read::Shared(reads.of(place(all, index))),
            (From::Scratch(index), None) => Read::Temporary(temporaries.of(index)),
        };
        let sources = group.sources.iter().map(&mut read).collect();
        let mut write = |to: &To| match (*to, shared) {
            (To::Output(element), _) => Write::Output(outputs.of(element)),
            (To::Scratch(index), Some(all)) => Write::Shared(writes.of(place(all, index))),
            (To::Scratch(index), None) => Write::Temporary(temporaries.of(index)),
        };
        let rows = group.rows.iter().map(|(to, row)| (write(to), row.clone())).collect();
        Bundle { reads: sources, rows, columns: Vec::new() }
    });
    let bundles: Vec<Bundle> = bundles.collect();
    let code = Code {
        bundles,
        inputs: inputs.0.len() as u32,
        shared_reads: reads.0.len() as u32,
        outputs: outputs.0.len() as u32,
        shared_writes: writes.0.len() as u32,
        selectors: 0,
    };
    (code, [inputs.0, reads.0, outputs.0, writes.0].concat())
}
