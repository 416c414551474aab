//! From rows to passes.
//!
//! A kernel runs a [`Pass`]: up to [`MAX_PASS_ROWS`] rows that read the same sources. So the kernel
//! loads every source vector once, and accumulates all rows in registers. Rows with more than
//! [`MAX_PASS_SOURCES`] sources are cut into several passes; all passes but the first add to the
//! targets' content. This module lays out the tables of every kernel once, in the order in which
//! the kernel reads them.
//!
//! This module also decides about shortcuts, because they depend on the coefficients alone:
//!
//! - A row that is one unchanged element is a copy, unless another row multiplies that element.
//! - Sources with coefficient 1 in every row come first; the kernel computes their XOR once for all
//!   rows.
//! - A row of ones (published matrices often have one) comes first, and is only XORed.
//! - *Dyadic pairs.* In a Cauchy matrix over consecutive points, 1 / (i xor j), the coefficients of
//!   two neighbouring rows and two neighbouring sources x, y are a, b and b, a. Addition is XOR, so
//!   three multiplications do the work of four (Karatsuba's idea):
//!
//!   ```text
//!   p = a (x + y)        a x + b y = p + (a + b) y        b x + a y = p + (a + b) x
//!   ```
//!
//!   The inverse of such a matrix has the same form, so many decode tables have it, too. The module
//!   pairs rows and sources if all sources (but one, of an odd number) have a partner.

use std::collections::HashSet;

use crate::field::{AFFINE, NIBBLES};
use crate::map::{Row, Source, Step, Target, Term};

/// Rows that a pass accumulates in registers at once.
pub(crate) const MAX_PASS_ROWS: usize = 4;
/// Most sources of one pass. This bounds the pointer array that execution keeps on the stack.
pub(crate) const MAX_PASS_SOURCES: usize = 32;

/// The shortcuts of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassKind {
    /// No sources: zero bytes.
    Zero,
    /// One row, one source, coefficient 1.
    Copy,
    /// Sums of products.
    Sum {
        /// Number of leading sources that have coefficient 1 in every row.
        ones: usize,
        /// All coefficients of the first row are 1.
        first_row_ones: bool,
    },
    /// As `Sum` without ones; in addition, the first `2 * row_pairs` rows are dyadic pairs on the
    /// sources taken two by two. With an odd number of sources, the last one has no partner.
    Dyadic {
        /// 1 or 2.
        row_pairs: usize,
    },
}

/// One sweep over the columns: `targets` (+)= coefficients x `sources`.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) kind: PassKind,
    /// Add to the targets' content from an earlier pass, instead of replacing it.
    pub(crate) accumulate: bool,
    /// The targets are output elements, and no later pass changes them.
    pub(crate) completes_outputs: bool,
    pub(crate) targets: Vec<Target>,
    pub(crate) sources: Vec<Source>,
    /// Positions in `sources` of the input elements that no earlier pass reads.
    pub(crate) fresh: Vec<usize>,
    /// Coefficient of row r and source s at `s * targets.len() + r`; the other tables likewise.
    pub(crate) coefficients: Vec<u8>,
    pub(crate) affine: Vec<u64>,
    pub(crate) nibbles: Vec<[u8; 32]>,
    /// Only for [`PassKind::Dyadic`]. As `affine`, but for the first source and the second row of a
    /// pair, it holds the matrix of a + b instead of that of b.
    pub(crate) dyadic: Vec<u64>,
}

/// A row with its terms merged: sorted by source, no zero coefficient, no repeated source.
struct NormalRow {
    target: Target,
    terms: Vec<Term>,
}

impl NormalRow {
    fn new(row: &Row) -> Self {
        let mut terms = row.terms.clone();
        terms.sort_by_key(|term| term.source);
        terms.dedup_by(|next, kept| {
            let same = next.source == kept.source;
            if same {
                kept.coefficient ^= next.coefficient;
            }
            same
        });
        terms.retain(|term| term.coefficient != 0);
        Self { target: row.target, terms }
    }

    fn is_copy(&self) -> bool {
        matches!(self.terms[..], [Term { coefficient: 1, .. }])
    }

    fn shares_sources(&self, other: &Self) -> bool {
        let sources = |row: &Self| row.terms.iter().map(|term| term.source).collect::<Vec<_>>();
        self.to_output() == other.to_output() && sources(self) == sources(other)
    }

    fn to_output(&self) -> bool {
        matches!(self.target, Target::Output(_))
    }

    fn is_ones(&self) -> bool {
        self.terms.iter().all(|term| term.coefficient == 1)
    }
}

/// Compiles validated steps. The passes run in order: each one comes after the passes whose scratch
/// it reads.
pub(crate) fn compile(steps: &[Step]) -> Vec<Pass> {
    let mut passes = Vec::new();
    for step in steps {
        let mut rows: Vec<NormalRow> = step.iter().map(NormalRow::new).collect();
        // Rows with equal sources become neighbours. The sort is stable, so they keep their order.
        rows.sort_by(|a, b| {
            let sources = |row: &NormalRow| row.terms.iter().map(|t| t.source).collect::<Vec<_>>();
            sources(a).cmp(&sources(b)).then(a.to_output().cmp(&b.to_output()))
        });
        let mut rest = &rows[..];
        while let Some(first) = rest.first() {
            let alike = 1 + rest[1..].iter().take_while(|row| row.shares_sources(first)).count();
            let (family, others) = rest.split_at(alike);
            // Copies of an element are as many passes as there are copies. Beside a product of the
            // element, a copy is a row like the others.
            let parts = match family.iter().all(NormalRow::is_copy) {
                true => alike,
                // Equal parts: five rows as 3 + 2 keep more registers busy than 4 + 1.
                false => alike.div_ceil(MAX_PASS_ROWS),
            };
            for group in family.chunks(alike.div_ceil(parts)) {
                emit_group(group.iter().collect(), &mut passes);
            }
            rest = others;
        }
    }
    find_fresh(&mut passes);
    passes
}

fn find_fresh(passes: &mut [Pass]) {
    let mut seen = HashSet::new();
    for pass in passes {
        let sources = pass.sources.iter().enumerate();
        let inputs = sources.filter(|(_, source)| matches!(source, Source::Input(_)));
        pass.fresh = inputs.filter(|(_, source)| seen.insert(**source)).map(|(at, _)| at).collect();
    }
}

/// Emits the passes of rows that have the same sources.
fn emit_group(mut rows: Vec<&NormalRow>, passes: &mut Vec<Pass>) {
    rows.sort_by_key(|row| !row.is_ones());
    let mut order: Vec<usize> = (0..rows[0].terms.len()).collect();
    order.sort_by_key(|&at| !rows.iter().all(|row| row.terms[at].coefficient == 1));
    if order.is_empty() {
        passes.push(Pass::new(&rows, &[], PassKind::Zero));
        return;
    }
    let dyadic = Pairing::find(&rows);
    if let Some(pairing) = &dyadic {
        rows = pairing.rows.iter().map(|&row| rows[row]).collect();
        order.clone_from(&pairing.sources);
    }
    let first = passes.len();
    for (part, order) in order.chunks(MAX_PASS_SOURCES).enumerate() {
        let accumulate = part > 0;
        let kind = match &dyadic {
            Some(pairing) => PassKind::Dyadic { row_pairs: pairing.row_pairs },
            None if rows.len() == 1 && rows[0].is_copy() => PassKind::Copy,
            None => {
                let is_ones = |at: &&usize| rows.iter().all(|row| row.terms[**at].coefficient == 1);
                let ones = order.iter().take_while(is_ones).count();
                PassKind::Sum { ones, first_row_ones: rows[0].is_ones() }
            }
        };
        let pass = Pass::new(&rows, order, kind);
        passes.push(Pass { accumulate, completes_outputs: false, ..pass });
    }
    if let Some(last) = passes[first..].last_mut() {
        last.completes_outputs = rows[0].to_output();
    }
}

impl Pass {
    /// Number of leading sources that are only added, to every row.
    pub(crate) fn leading_ones(&self) -> usize {
        match self.kind {
            PassKind::Zero | PassKind::Dyadic { .. } => 0,
            PassKind::Copy => 1,
            PassKind::Sum { ones, .. } => ones,
        }
    }

    /// The pass of `rows` over their terms in the given `order`.
    fn new(rows: &[&NormalRow], order: &[usize], kind: PassKind) -> Self {
        let coefficients: Vec<u8> = order
            .iter()
            .flat_map(|&at| rows.iter().map(move |row| row.terms[at].coefficient))
            .collect();
        let affine: Vec<u64> = coefficients.iter().map(|&c| AFFINE[usize::from(c)]).collect();
        let mut dyadic = Vec::new();
        if let PassKind::Dyadic { row_pairs } = kind {
            dyadic.clone_from(&affine);
            for pair in dyadic.chunks_exact_mut(2 * rows.len()) {
                for row in 0..row_pairs {
                    // The matrix of a sum is the sum of the matrices.
                    pair[2 * row + 1] ^= pair[2 * row];
                }
            }
        }
        Self {
            kind,
            accumulate: false,
            completes_outputs: rows[0].to_output(),
            targets: rows.iter().map(|row| row.target).collect(),
            sources: order.iter().map(|&at| rows[0].terms[at].source).collect(),
            affine,
            nibbles: coefficients.iter().map(|&c| NIBBLES[usize::from(c)]).collect(),
            coefficients,
            dyadic,
            fresh: Vec::new(),
        }
    }
}

/// The dyadic pairs of a group's rows and sources.
#[derive(Debug, PartialEq, Eq)]
struct Pairing {
    /// Pairs of rows at the front of `rows`.
    row_pairs: usize,
    /// All rows; those of a pair are neighbours.
    rows: Vec<usize>,
    /// All sources; those of a pair are neighbours.
    sources: Vec<usize>,
}

impl Pairing {
    /// A pairing, if there is one that saves more than the ones do.
    fn find(rows: &[&NormalRow]) -> Option<Self> {
        if rows.len() < 2 || rows[0].is_ones() {
            return None;
        }
        (1..rows.len())
            .find_map(|partner| {
                let sources = pair_sources(rows[0], rows[partner])?;
                let mut order = vec![0, partner];
                order.extend((1..rows.len()).filter(|&row| row != partner));
                let fits = |rest: &[usize]| is_dyadic(rows[rest[0]], rows[rest[1]], &sources);
                let row_pairs = if order.len() == 4 && fits(&order[2..]) { 2 } else { 1 };
                Some(Self { row_pairs, rows: order, sources })
            })
            .or_else(|| {
                // Of three rows, the last two may be the pair.
                let sources = pair_sources(rows.get(1)?, rows.get(2).filter(|_| rows.len() == 3)?)?;
                Some(Self { row_pairs: 1, rows: vec![1, 2, 0], sources })
            })
    }
}

/// An order of the sources in which two rows are dyadic. `None` unless all sources (but one, if
/// their number is odd) have a partner.
fn pair_sources(a: &NormalRow, b: &NormalRow) -> Option<Vec<usize>> {
    let coefficients = |at: usize| (a.terms[at].coefficient, b.terms[at].coefficient);
    let mut left: Vec<usize> = (0..a.terms.len()).collect();
    let (mut order, mut alone) = (Vec::new(), Vec::new());
    while !left.is_empty() {
        let x = left.remove(0);
        let (first, second) = coefficients(x);
        match left.iter().position(|&y| coefficients(y) == (second, first)) {
            Some(at) => order.extend([x, left.remove(at)]),
            None => alone.push(x),
        }
    }
    order.extend(&alone);
    (alone.len() <= 1 && order.len() >= 2).then_some(order)
}

/// True if two rows are dyadic on the sources taken two by two in this order.
fn is_dyadic(a: &NormalRow, b: &NormalRow, order: &[usize]) -> bool {
    let coefficient = |row: &NormalRow, at: usize| row.terms[at].coefficient;
    order.as_chunks::<2>().0.iter().all(|&[x, y]| {
        coefficient(a, x) == coefficient(b, y) && coefficient(a, y) == coefficient(b, x)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinearMap, Matrix, field};

    fn kinds(rows: usize, columns: usize, at: impl Fn(usize, usize) -> u8) -> Vec<PassKind> {
        let matrix = Matrix::from_fn(rows, columns, at);
        let map = LinearMap::from_matrix(&matrix).unwrap();
        map.passes.iter().map(|pass| pass.kind).collect()
    }

    #[test]
    fn cauchy_matrices_pair_up_and_others_do_not() {
        let cauchy =
            |k: usize| move |i: usize, j: usize| field::inverse(((k + i) ^ j) as u8).unwrap();
        for (rows, k, row_pairs) in [(2, 4, 1), (3, 6, 1), (3, 8, 1), (4, 10, 2), (4, 12, 2)] {
            let found = kinds(rows, k, cauchy(k));
            assert_eq!(found, [PassKind::Dyadic { row_pairs }], "{rows} rows, {k} sources");
        }
        // Between the points 3 and 4 there is no pair; 4 and 5 are the last two of three rows.
        assert_eq!(kinds(3, 3, cauchy(3)), [PassKind::Dyadic { row_pairs: 1 }]);
        assert!(matches!(kinds(2, 3, cauchy(3))[..], [PassKind::Sum { .. }]));
        let powers = |i: usize, j: usize| field::exp((i + 1) * (j + 1));
        assert!(matches!(
            kinds(2, 4, powers)[..],
            [PassKind::Sum { ones: 0, first_row_ones: false }]
        ));
    }

    #[test]
    fn ones_are_found_wherever_they_are() {
        let ones =
            |i: usize, j: usize| if i == 1 || j == 2 { 1 } else { field::exp(3 + i * 7 + j) };
        assert_eq!(kinds(3, 4, ones), [PassKind::Sum { ones: 1, first_row_ones: true }]);
        assert_eq!(kinds(1, 1, |_, _| 1), [PassKind::Copy]);
        assert_eq!(kinds(2, 1, |_, _| 1), [PassKind::Copy, PassKind::Copy]);
        let update = |i: usize, _: usize| field::exp(i);
        assert_eq!(kinds(3, 1, update), [PassKind::Sum { ones: 0, first_row_ones: true }]);
        assert_eq!(kinds(1, 3, |_, _| 1), [PassKind::Sum { ones: 3, first_row_ones: true }]);
    }
}
