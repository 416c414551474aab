//! From rows to passes.
//!
//! A [`Pass`] is what a kernel runs: up to [`MAX_PASS_ROWS`] rows that read the same sources, so
//! that every source vector is loaded once and all rows are accumulated in registers. Rows with
//! more than [`MAX_PASS_SOURCES`] sources are cut into several passes, all but the first of which
//! add to what is already in the target. The tables of every kernel are laid out here, once, in
//! the order in which the kernels walk them.
//!
//! Three shortcuts are decided here, because they depend on the coefficients alone: a row that is
//! one element unchanged is a copy; a pass of one row takes its coefficient-1 sources first and
//! XORs them; a pass of several rows whose first row is all ones (as in many published matrices)
//! XORs that row.

use crate::field::{AFFINE, NIBBLES};
use crate::map::{Row, Source, Step, Target, Term};

/// Rows accumulated in registers at once.
pub(crate) const MAX_PASS_ROWS: usize = 4;
/// Sources of one pass: bounds the pointer array that execution keeps on the stack.
pub(crate) const MAX_PASS_SOURCES: usize = 32;

/// How a pass may be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassKind {
    /// No sources: zero bytes.
    Zero,
    /// One row, one source, coefficient 1.
    Copy,
    /// One row; its first `ones` sources have coefficient 1.
    Single {
        /// Number of leading sources with coefficient 1.
        ones: usize,
    },
    /// Several rows; `first_ones` tells that all coefficients of the first row are 1.
    Several {
        /// The first row needs no multiplication.
        first_ones: bool,
    },
}

/// One sweep over the columns: `targets` (+)= coefficients x `sources`.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) kind: PassKind,
    /// Add to the targets' present content instead of replacing it.
    pub(crate) accumulate: bool,
    pub(crate) targets: Vec<Target>,
    pub(crate) sources: Vec<Source>,
    /// Coefficient of row r and source s at `s * targets.len() + r`; the other tables likewise.
    pub(crate) coefficients: Vec<u8>,
    pub(crate) affine: Vec<u64>,
    pub(crate) nibbles: Vec<[u8; 32]>,
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
        !self.is_copy() && !other.is_copy() && sources(self) == sources(other)
    }
}

/// Compiles validated steps. The passes run in order, each after the ones whose scratch it reads.
pub(crate) fn compile(steps: &[Step]) -> Vec<Pass> {
    let mut passes = Vec::new();
    for step in steps {
        let mut rows: Vec<NormalRow> = step.iter().map(NormalRow::new).collect();
        // Rows with equal sources become neighbours; the sort is stable, so equal ones keep order.
        rows.sort_by(|a, b| {
            let sources = |row: &NormalRow| row.terms.iter().map(|t| t.source).collect::<Vec<_>>();
            sources(a).cmp(&sources(b))
        });
        let mut rest = &rows[..];
        while let Some(first) = rest.first() {
            let alike = 1 + rest[1..].iter().take_while(|row| row.shares_sources(first)).count();
            let (family, others) = rest.split_at(alike);
            // Equal parts: five rows as 3 + 2 keep more registers busy than 4 + 1.
            let parts = alike.div_ceil(MAX_PASS_ROWS);
            for group in family.chunks(alike.div_ceil(parts)) {
                emit_group(group, &mut passes);
            }
            rest = others;
        }
    }
    passes
}

fn emit_group(rows: &[NormalRow], passes: &mut Vec<Pass>) {
    let mut order: Vec<usize> = (0..rows[0].terms.len()).collect();
    if let [row] = rows {
        order.sort_by_key(|&at| row.terms[at].coefficient != 1);
    }
    if order.is_empty() {
        passes.push(pass(rows, &[], false));
    }
    for (part, sources) in order.chunks(MAX_PASS_SOURCES).enumerate() {
        passes.push(pass(rows, sources, part > 0));
    }
}

fn pass(rows: &[NormalRow], order: &[usize], accumulate: bool) -> Pass {
    let coefficients: Vec<u8> = order
        .iter()
        .flat_map(|&at| rows.iter().map(move |row| row.terms[at].coefficient))
        .collect();
    let kind = match (rows.len(), order.len()) {
        (_, 0) => PassKind::Zero,
        (1, 1) if coefficients[0] == 1 && !accumulate => PassKind::Copy,
        (1, _) => PassKind::Single { ones: coefficients.iter().take_while(|&&c| c == 1).count() },
        (count, _) => PassKind::Several {
            first_ones: coefficients.iter().step_by(count).all(|&coefficient| coefficient == 1),
        },
    };
    Pass {
        kind,
        accumulate,
        targets: rows.iter().map(|row| row.target).collect(),
        sources: order.iter().map(|&at| rows[0].terms[at].source).collect(),
        affine: coefficients.iter().map(|&c| AFFINE[usize::from(c)]).collect(),
        nibbles: coefficients.iter().map(|&c| NIBBLES[usize::from(c)]).collect(),
        coefficients,
    }
}
