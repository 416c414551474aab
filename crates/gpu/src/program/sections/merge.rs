//! Sections that multiply the same columns of coefficients share a code.
//!
//! A bundle is a sum of columns, each times an element. Columns that are multiples of each other
//! are one column, times a sum of elements with factors. Two sections have one code if their rows
//! write to the same places and their columns are equal, in order; the sums may differ. The code
//! then has each sum that occurs as a variant of its column.

use std::collections::{BTreeMap, HashMap};

use fieldstone_gf::field;

use super::{
    Bundle, Code, From, Group, Numbers, Piece, Read, Section, To, Variant, VariedColumn, Write,
    place,
};

/// The kind of an element in a sum; temporaries have numbers of their own in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Input,
    Shared,
    Temporary(u32),
}

/// A column with its sum. Elements are sorted by kind and factor, so that equal sums look alike.
struct Column {
    coefficients: Vec<u8>,
    /// Kind, factor, and the element's number in the map or component.
    terms: Vec<(Kind, u8, u32)>,
}

impl Column {
    fn pattern(&self) -> Vec<(Kind, u8)> {
        self.terms.iter().map(|&(kind, factor, _)| (kind, factor)).collect()
    }

    fn elements(&self, wanted: Kind) -> impl Iterator<Item = u32> + '_ {
        let of_kind = self.terms.iter().filter(move |(kind, ..)| *kind == wanted);
        of_kind.map(|(.., element)| *element)
    }
}

/// The columns of a bundle, and the places to which its rows write.
struct Columns {
    columns: Vec<Column>,
    writes: Vec<Write>,
}

/// Sections have one code if they have equal keys: for each bundle, the writes and the columns.
type Key = Vec<(Vec<Write>, Vec<Vec<u8>>)>;

/// A piece as columns, and its operands to write.
struct Draft {
    bundles: Vec<Columns>,
    outputs: Vec<u32>,
    shared_writes: Vec<u32>,
}

impl Draft {
    fn new(piece: &Piece<'_>) -> Self {
        let [mut outputs, mut writes, mut temporaries] =
            std::array::from_fn(|_| Numbers::default());
        let mut bundles = Vec::new();
        for group in piece.groups {
            let mut kind = |from: &From| match (*from, piece.shared) {
                (From::Input(element), _) => (Kind::Input, element),
                (From::Scratch(index), Some(all)) => (Kind::Shared, place(all, index)),
                (From::Scratch(index), None) => (Kind::Temporary(temporaries.of(index)), index),
            };
            let columns = columns(group, &mut kind);
            let mut write = |to: &To| match (*to, piece.shared) {
                (To::Output(element), _) => Write::Output(outputs.of(element)),
                (To::Scratch(index), Some(all)) => Write::Shared(writes.of(place(all, index))),
                (To::Scratch(index), None) => Write::Temporary(temporaries.of(index)),
            };
            let writes = group.rows.iter().map(|(to, _)| write(to)).collect();
            bundles.push(Columns { columns, writes });
        }
        Self { bundles, outputs: outputs.0, shared_writes: writes.0 }
    }

    fn key(&self) -> Key {
        let coefficients = |columns: &Columns| {
            columns.columns.iter().map(|column| column.coefficients.clone()).collect()
        };
        self.bundles.iter().map(|bundle| (bundle.writes.clone(), coefficients(bundle))).collect()
    }
}

/// The columns of a bundle. Those of a single row keep their coefficients: to divide them would
/// make one column of all.
fn columns(group: &Group, kind: &mut dyn FnMut(&From) -> (Kind, u32)) -> Vec<Column> {
    let mut sums: BTreeMap<Vec<u8>, Vec<(Kind, u8, u32)>> = BTreeMap::new();
    for (at, source) in group.sources.iter().enumerate() {
        let column: Vec<u8> = group.rows.iter().map(|(_, row)| row[at]).collect();
        let first = column.iter().copied().find(|&coefficient| coefficient != 0);
        let factor = first.filter(|_| group.rows.len() > 1).unwrap_or(1);
        let column = column.iter().map(|&c| field::div(c, factor).unwrap_or(0)).collect();
        let (kind, element) = kind(source);
        sums.entry(column).or_default().push((kind, factor, element));
    }
    let column = |(coefficients, mut terms): (Vec<u8>, Vec<_>)| {
        terms.sort();
        Column { coefficients, terms }
    };
    sums.into_iter().map(column).collect()
}

/// Codes, and a section for each piece.
pub(super) fn codes(pieces: &[Piece<'_>]) -> (Vec<Code>, Vec<Section>) {
    let drafts: Vec<Draft> = pieces.iter().map(Draft::new).collect();
    let mut numbers: HashMap<Key, usize> = HashMap::new();
    let mut alike: Vec<Vec<usize>> = Vec::new();
    for (piece, draft) in drafts.iter().enumerate() {
        let number = *numbers.entry(draft.key()).or_insert_with(|| {
            alike.push(Vec::new());
            alike.len() - 1
        });
        alike[number].push(piece);
    }
    let empty = |_| Section { code: 0, operands: Vec::new() };
    let mut sections: Vec<Section> = (0..pieces.len()).map(empty).collect();
    let mut codes = Vec::new();
    for (number, pieces) in alike.into_iter().enumerate() {
        let drafts: Vec<&Draft> = pieces.iter().map(|&piece| &drafts[piece]).collect();
        let (code, operands) = code(&drafts);
        codes.push(code);
        for (piece, operands) in pieces.into_iter().zip(operands) {
            sections[piece] = Section { code: number, operands };
        }
    }
    (codes, sections)
}

/// The code of drafts with one key, and the operands of each.
fn code(drafts: &[&Draft]) -> (Code, Vec<Vec<u32>>) {
    let mut code = Code::default();
    let [mut inputs, mut shared, mut selectors] =
        std::array::from_fn(|_| vec![Vec::new(); drafts.len()]);
    for (number, bundle) in drafts[0].bundles.iter().enumerate() {
        let mut columns = Vec::new();
        for (at, column) in bundle.columns.iter().enumerate() {
            let of_drafts: Vec<&Column> =
                drafts.iter().map(|draft| &draft.bundles[number].columns[at]).collect();
            let mut patterns: Vec<Vec<(Kind, u8)>> = Vec::new();
            let chosen: Vec<u32> = of_drafts
                .iter()
                .map(|column| {
                    let pattern = column.pattern();
                    let known = patterns.iter().position(|known| *known == pattern);
                    known.unwrap_or_else(|| {
                        patterns.push(pattern);
                        patterns.len() - 1
                    }) as u32
                })
                .collect();
            let selector = (patterns.len() > 1).then(|| {
                selectors.iter_mut().zip(&chosen).for_each(|(all, &variant)| all.push(variant));
                code.selectors += 1;
                code.selectors - 1
            });
            let first = [
                add_operands(&mut code.inputs, &mut inputs, &of_drafts, Kind::Input),
                add_operands(&mut code.shared_reads, &mut shared, &of_drafts, Kind::Shared),
            ];
            let variants = patterns.iter().map(|pattern| variant(pattern, first)).collect();
            let coefficients = column.coefficients.clone();
            columns.push(VariedColumn { coefficients, variants, selector });
        }
        let rows = bundle.writes.iter().map(|write| (*write, Vec::new())).collect();
        code.bundles.push(Bundle { reads: Vec::new(), rows, columns });
    }
    code.outputs = drafts[0].outputs.len() as u32;
    code.shared_writes = drafts[0].shared_writes.len() as u32;
    let operands = drafts.iter().enumerate().map(|(at, draft)| {
        let parts: [&[u32]; 5] =
            [&inputs[at], &shared[at], &draft.outputs, &draft.shared_writes, &selectors[at]];
        parts.concat()
    });
    (code, operands.collect())
}

/// Gives each draft as many operands of a kind as the longest sum has. Returns the first one's
/// number. Shorter sums repeat an element, which they load and do not use.
fn add_operands(
    count: &mut u32,
    operands: &mut [Vec<u32>],
    columns: &[&Column],
    kind: Kind,
) -> u32 {
    let most = columns.iter().map(|column| column.elements(kind).count()).max().unwrap_or(0);
    for (operands, column) in operands.iter_mut().zip(columns) {
        let spare = column.elements(kind).next().unwrap_or(0);
        let elements = column.elements(kind).chain(std::iter::repeat(spare));
        operands.extend(elements.take(most));
    }
    *count += most as u32;
    *count - most as u32
}

/// The sum of a pattern, whose inputs and shared elements begin at these operands.
fn variant(pattern: &[(Kind, u8)], [mut input, mut shared]: [u32; 2]) -> Variant {
    let next = |number: &mut u32| {
        *number += 1;
        *number - 1
    };
    let read = |&(kind, factor): &(Kind, u8)| {
        let read = match kind {
            Kind::Input => Read::Input(next(&mut input)),
            Kind::Shared => Read::Shared(next(&mut shared)),
            Kind::Temporary(number) => Read::Temporary(number),
        };
        (read, factor)
    };
    pattern.iter().map(read).collect()
}
