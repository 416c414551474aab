//! Rebuilds one data column from 1/r of each survivor; [`super`] explains how.

use std::sync::Arc;

use fieldstone_gf::field;

use super::Zigzag;
use crate::RepairPlan;
use crate::plan::ReadSet;
use crate::program::{Program, term};

impl Zigzag {
    /// The parity that gives row x of a lost column such that few rows of the other columns are
    /// read.
    fn parity_for(&self, column: usize, x: u32) -> usize {
        match self.shifted(column) {
            Some(i) => (self.r - self.digit(x, i)) % self.r,
            None => (0..self.digits).map(|i| self.digit(x, i)).sum::<usize>() % self.r,
        }
    }

    /// The plan that reads from all survivors.
    pub(super) fn rebuild(&self, column: usize) -> RepairPlan {
        // For each lost row, its parity and the row of that parity.
        let zigzags: Vec<(usize, u32)> = (0..self.n)
            .map(|x| {
                let parity = self.parity_for(column, x);
                (parity, self.shift(column, parity, x))
            })
            .collect();
        let mut reads = ReadSet::default();
        for &(parity, y) in &zigzags {
            reads.insert(self.k + parity, y);
            for (other, row, _) in self.zigzag(parity, y).filter(|&(other, ..)| other != column) {
                reads.insert(other, row);
            }
        }
        let sources = reads.sources();
        let source = |shard, element| sources.get(shard, element).expect("it was just inserted");
        let shard_reads = reads.reads();
        let counts = shard_reads.iter().map(crate::ShardRead::element_count).collect();
        let mut program = Program::new(counts, vec![self.n]);
        for (x, &(parity, y)) in (0..self.n).zip(&zigzags) {
            let own = field::inverse(self.coefficient(column, parity, x));
            let own = own.expect("coefficients are not zero");
            let mut terms = vec![term(source(self.k + parity, y), own)];
            for (other, row, c) in self.zigzag(parity, y).filter(|&(other, ..)| other != column) {
                terms.push(term(source(other, row), field::mul(own, c)));
            }
            program.output(0, x, terms);
        }
        RepairPlan { lost: vec![column], reads: shard_reads, map: Arc::new(program.finish()) }
    }
}
