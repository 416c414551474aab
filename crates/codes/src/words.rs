//! Jerasure's codes over bits: every code whose words are not single bytes, or whose words are
//! spread over packets.
//!
//! An element of a shard is one bit of every word (see [`Layout`]), so a shard has w elements, and
//! every map has coefficients 0 and 1. To multiply a word by the constant e is to multiply its bits
//! by a w x w matrix, whose column x is the bits of e 2^x. A matrix over words becomes a matrix of
//! such blocks. Bit l of parity i is the XOR of the bits x of data j for which that block has a
//! one.
//!
//! A repair reads k whole shards: data first, then parities. It reads e parities if it does not
//! read e data shards. The e x e part of the matrix that belongs to both is inverted over words. A
//! lost data shard is that inverse times (parities read + data read times their coefficients). A
//! lost parity is its matrix row with these data inserted.

use std::sync::Arc;

use fieldstone_gf::{LinearMap, Term, WordField};

use crate::cache::PlanKey;
use crate::construction::{Construction, data_first};
use crate::jerasure::WordMatrix;
use crate::{Layout, RepairPlan, ShardRead};

/// A code over the bits of words.
pub(crate) struct BitCode {
    field: WordField,
    parities: WordMatrix,
    layout: Layout,
}

impl BitCode {
    /// The code with these parity rows. All their square parts are invertible.
    pub(crate) fn new(field: WordField, parities: WordMatrix, layout: Layout) -> Self {
        Self { field, parities, layout }
    }

    fn k(&self) -> usize {
        self.parities[0].len()
    }

    /// The map whose output i is row i of a word matrix times the inputs.
    fn map(&self, rows: &WordMatrix) -> LinearMap {
        let bits = self.field.bits();
        let mut terms = vec![Vec::new(); rows.len() * bits];
        for (output, row) in rows.iter().enumerate() {
            for (input, &coefficient) in row.iter().enumerate() {
                for (x, column) in self.field.bit_columns(coefficient).enumerate() {
                    for l in (0..bits).filter(|l| column >> l & 1 == 1) {
                        terms[output * bits + l].push(Term::input(input as u16, x as u32, 1));
                    }
                }
            }
        }
        LinearMap::new(rows[0].len(), rows.len(), bits as u32, terms)
            .expect("profiles bound the number of terms")
    }

    /// The rows over `reads` that give each shard of `lost`.
    fn decode(&self, lost: &[usize], reads: &[usize]) -> WordMatrix {
        let (k, field) = (self.k(), self.field);
        let missing: Vec<usize> = (0..k).filter(|shard| !reads.contains(shard)).collect();
        let parities: Vec<usize> = reads.iter().filter(|&&s| s >= k).map(|s| s - k).collect();
        let tied: WordMatrix = parities
            .iter()
            .map(|&parity| missing.iter().map(|&shard| self.parities[parity][shard]).collect())
            .collect();
        let solve = invert(field, tied).expect("all square parts of the matrix are invertible");
        // Row i gives missing data shard i from the shards read.
        let missing_rows: WordMatrix = solve
            .iter()
            .map(|row| {
                let through = |shard: usize| {
                    row.iter().zip(&parities).fold(0, |sum, (&factor, &parity)| {
                        sum ^ field.mul(factor, self.parities[parity][shard])
                    })
                };
                let direct = |parity| {
                    let at = parities.iter().position(|&p| p == parity);
                    row[at.expect("this parity is read")]
                };
                let entry = |&shard: &usize| {
                    if shard < k { through(shard) } else { direct(shard - k) }
                };
                reads.iter().map(entry).collect()
            })
            .collect();
        let data_row = |shard: usize| match missing.iter().position(|&s| s == shard) {
            Some(at) => missing_rows[at].clone(),
            None => reads.iter().map(|&read| u32::from(read == shard)).collect(),
        };
        let row = |&shard: &usize| -> Vec<u32> {
            if shard < k {
                return data_row(shard);
            }
            let mut sum = vec![0; reads.len()];
            for (data, &coefficient) in self.parities[shard - k].iter().enumerate() {
                for (entry, part) in sum.iter_mut().zip(data_row(data)) {
                    *entry ^= field.mul(coefficient, part);
                }
            }
            sum
        };
        lost.iter().map(row).collect()
    }
}

/// The inverse of a square matrix, if it has one, by Gauss-Jordan elimination.
fn invert(field: WordField, mut left: WordMatrix) -> Option<WordMatrix> {
    let size = left.len();
    let mut right: WordMatrix =
        (0..size).map(|row| (0..size).map(|column| u32::from(row == column)).collect()).collect();
    for column in 0..size {
        let pivot = (column..size).find(|&row| left[row][column] != 0)?;
        left.swap(pivot, column);
        right.swap(pivot, column);
        let scale = field.inverse(left[column][column])?;
        for matrix in [&mut left, &mut right] {
            matrix[column].iter_mut().for_each(|entry| *entry = field.mul(*entry, scale));
        }
        for row in (0..size).filter(|&row| row != column) {
            let factor = left[row][column];
            for matrix in [&mut left, &mut right] {
                let pivot_row = matrix[column].clone();
                for (entry, pivot) in matrix[row].iter_mut().zip(pivot_row) {
                    *entry ^= field.mul(factor, pivot);
                }
            }
        }
    }
    Some(right)
}

impl Construction for BitCode {
    fn elements(&self) -> u32 {
        self.field.bits() as u32
    }

    fn layout(&self) -> Layout {
        self.layout
    }

    fn encode(&self) -> LinearMap {
        self.map(&self.parities)
    }

    fn choose(&self, _lost: &[usize], available: &[usize]) -> Vec<usize> {
        data_first(self.k(), available)
    }

    fn plan(&self, key: &PlanKey) -> RepairPlan {
        RepairPlan {
            lost: key.lost.clone(),
            reads: key.reads.iter().map(|&s| ShardRead::whole(s, self.elements())).collect(),
            map: Arc::new(self.map(&self.decode(&key.lost, &key.reads))),
        }
    }
}
