//! Repair of any pattern of losses from k whole shards.
//!
//! If a repair does not read e data shards, it reads e parities. When the data that is read is
//! subtracted from those parities, *syndromes* remain: sums over the missing elements alone. Two
//! missing elements are connected if a syndrome contains both. Within a connected component, only
//! the digits that the missing columns shift differ, so a component has at most e r^e elements.
//! Each component is a small square system. Many components have the same matrix, so the repair
//! inverts it once.
//!
//! The program has three steps: syndromes into scratch, missing data from these, lost parities from
//! all data. If a component is a single element (e = 1), the first two steps are one.

use std::collections::HashMap;
use std::sync::Arc;

use fieldstone_gf::{Matrix, Source, Term, field};

use super::Zigzag;
use crate::plan::{ReadIndex, ReadSet};
use crate::program::{Program, term};
use crate::{RepairPlan, ShardRead};

/// A data element: column and row.
type DataElement = (usize, u32);
/// A row of a parity.
type ParityElement = (usize, u32);

/// A connected component: missing elements, and the same number of parity elements that contain
/// them.
struct Component {
    missing: Vec<DataElement>,
    equations: Vec<ParityElement>,
}

impl Zigzag {
    /// The plan that computes the shards `lost` from the k whole shards `reads`.
    pub(super) fn decode(&self, lost: &[usize], reads: &[usize]) -> RepairPlan {
        let set = ReadSet::whole(reads, self.n);
        let missing: Vec<usize> = (0..self.k).filter(|column| !reads.contains(column)).collect();
        let parities: Vec<usize> =
            reads.iter().filter_map(|shard| shard.checked_sub(self.k)).collect();
        let mut decoder = Decoder {
            code: self,
            sources: set.sources(),
            program: Program::new(vec![self.n; reads.len()], vec![self.n; lost.len()]),
            lost,
            keep: lost.iter().any(|&shard| shard >= self.k),
            kept: HashMap::new(),
            inverses: HashMap::new(),
        };
        for component in self.components(&missing, &parities) {
            decoder.solve(&component);
        }
        decoder.lost_parities();
        RepairPlan {
            lost: lost.to_vec(),
            reads: reads.iter().map(|&shard| ShardRead::whole(shard, self.n)).collect(),
            map: Arc::new(decoder.program.finish()),
        }
    }

    /// The connected components of the elements of the missing columns.
    fn components(&self, missing: &[usize], parities: &[usize]) -> Vec<Component> {
        let mut components = Vec::new();
        let mut seen = vec![false; self.k * self.n as usize];
        let mut tied = vec![false; self.r * self.n as usize];
        let at = |(shard, row): (usize, u32)| shard * self.n as usize + row as usize;
        let Some(&first) = missing.first() else { return components };
        for row in 0..self.n {
            if seen[at((first, row))] {
                continue;
            }
            let mut component = Component { missing: vec![(first, row)], equations: Vec::new() };
            seen[at((first, row))] = true;
            let mut next = 0;
            while let Some(&(column, x)) = component.missing.get(next) {
                next += 1;
                for &parity in parities {
                    let equation = (parity, self.shift(column, parity, x));
                    if std::mem::replace(&mut tied[at(equation)], true) {
                        continue;
                    }
                    component.equations.push(equation);
                    for &other in missing {
                        let element = (other, self.data_row(other, parity, equation.1));
                        if !std::mem::replace(&mut seen[at(element)], true) {
                            component.missing.push(element);
                        }
                    }
                }
            }
            components.push(component);
        }
        components
    }
}

struct Decoder<'a> {
    code: &'a Zigzag,
    sources: ReadIndex,
    program: Program,
    lost: &'a [usize],
    /// True if lost parities need the missing data again.
    keep: bool,
    /// Missing data in scratch.
    kept: HashMap<DataElement, Source>,
    /// Inverses of the components' matrices.
    inverses: HashMap<Vec<u8>, Arc<Matrix>>,
}

impl Decoder<'_> {
    /// The terms of a parity element minus the data that is read.
    fn syndrome(&self, (parity, y): ParityElement) -> Vec<Term> {
        let data = self.code.zigzag(parity, y);
        let read = data.filter_map(|(column, x, c)| Some(term(self.sources.get(column, x)?, c)));
        let own = self.sources.get(self.code.k + parity, y).expect("this parity is read");
        std::iter::once(term(own, 1)).chain(read).collect()
    }

    /// Writes the missing elements of a component to outputs and scratch.
    fn solve(&mut self, component: &Component) {
        let code = self.code;
        if let ([(column, x)], [equation]) = (&component.missing[..], &component.equations[..]) {
            let coefficient = code.coefficient(*column, equation.0, *x);
            let scale = field::inverse(coefficient).expect("coefficients are not zero");
            let mut terms = self.syndrome(*equation);
            terms
                .iter_mut()
                .for_each(|term| term.coefficient = field::mul(term.coefficient, scale));
            self.found((*column, *x), terms);
            return;
        }
        let inverse = self.inverse(component);
        let syndromes: Vec<Source> = component
            .equations
            .iter()
            .map(|&equation| {
                let terms = self.syndrome(equation);
                self.program.scratch(terms)
            })
            .collect();
        for (row, &element) in component.missing.iter().enumerate() {
            let factors = syndromes.iter().zip(inverse.row(row)).filter(|(_, c)| **c != 0);
            let terms = factors.map(|(&syndrome, &c)| term(syndrome, c)).collect();
            self.found(element, terms);
        }
    }

    /// Missing data element `(column, x)` is the sum of `terms`.
    fn found(&mut self, (column, x): DataElement, mut terms: Vec<Term>) {
        let output = self.lost.iter().position(|&shard| shard == column);
        if self.keep {
            let kept = self.program.scratch(terms);
            self.kept.insert((column, x), kept);
            terms = vec![term(kept, 1)];
        }
        if let Some(output) = output {
            self.program.output(output, x, terms);
        }
    }

    /// The inverse of a component's matrix: from its syndromes to its missing elements.
    fn inverse(&mut self, component: &Component) -> Arc<Matrix> {
        let code = self.code;
        let coefficients = |&(parity, y): &ParityElement| {
            let entry = move |&(column, x): &DataElement| {
                let tied = code.data_row(column, parity, y) == x;
                if tied { code.coefficient(column, parity, x) } else { 0 }
            };
            component.missing.iter().map(entry)
        };
        let values: Vec<u8> = component.equations.iter().flat_map(coefficients).collect();
        let size = component.missing.len();
        let make = || {
            let matrix = Matrix::from_fn(size, size, |row, column| values[row * size + column]);
            Arc::new(matrix.invert().expect("the code is MDS, so every component has one solution"))
        };
        if let Some(inverse) = self.inverses.get(&values) {
            return Arc::clone(inverse);
        }
        let inverse = make();
        self.inverses.insert(values, Arc::clone(&inverse));
        inverse
    }

    fn lost_parities(&mut self) {
        for (output, &shard) in self.lost.iter().enumerate() {
            let Some(parity) = shard.checked_sub(self.code.k) else { continue };
            for y in 0..self.code.n {
                let data = self.code.zigzag(parity, y);
                let source = |column, x| {
                    let read = self.sources.get(column, x);
                    read.unwrap_or_else(|| self.kept[&(column, x)])
                };
                let terms = data.map(|(column, x, c)| term(source(column, x), c)).collect();
                self.program.output(output, y, terms);
            }
        }
    }
}
