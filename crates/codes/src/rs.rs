//! Reed-Solomon codes over bytes: `rs` (ISA-L's Cauchy matrix), `rs-van` (ISA-L's Vandermonde
//! matrix), and Jerasure's `jerasure-van` and `jerasure-r6` with w = 8.
//!
//! The generator has k + m rows of k coefficients. The first k rows are the identity: data shards
//! are stored as they are. The other rows are the matrix of [`isa`](crate::isa) or
//! [`jerasure`](crate::jerasure). All square parts of these matrices are invertible, so any k
//! shards determine all others.
//!
//! A repair reads exactly k shards: all available data shards, then parities. Let R be the
//! generator's rows of those k shards. Then data = R^-1 times the shards read, and a lost shard s
//! is row s of the generator times that data.

use std::sync::Arc;

use fieldstone_gf::{LinearMap, Matrix};

use crate::cache::PlanKey;
use crate::construction::{Construction, data_first};
use crate::jerasure::WordMatrix;
use crate::{RepairPlan, ShardRead};

/// A Reed-Solomon code over bytes.
pub(crate) struct ReedSolomon {
    /// k + m rows of k coefficients.
    generator: Matrix,
}

impl ReedSolomon {
    /// The code with these parity rows.
    pub(crate) fn new(parities: &Matrix) -> Self {
        Self { generator: generator(parities) }
    }

    /// The code with parity rows over words of 8 bits.
    pub(crate) fn of_words(parities: &WordMatrix) -> Self {
        Self::new(&Matrix::from_fn(parities.len(), parities[0].len(), |row, column| {
            u8::try_from(parities[row][column]).expect("the field has 8 bits")
        }))
    }

    fn k(&self) -> usize {
        self.generator.columns()
    }
}

/// The identity above the parity rows.
pub(crate) fn generator(parities: &Matrix) -> Matrix {
    let k = parities.columns();
    Matrix::from_fn(k + parities.rows(), k, |row, column| match row.checked_sub(k) {
        None => u8::from(row == column),
        Some(parity) => parities[(parity, column)],
    })
}

impl Construction for ReedSolomon {
    fn elements(&self) -> u32 {
        1
    }

    fn encode(&self) -> LinearMap {
        let parities: Vec<usize> = (self.k()..self.generator.rows()).collect();
        LinearMap::from_matrix(&self.generator.select_rows(&parities))
            .expect("the matrix has rows and columns")
    }

    fn choose(&self, _lost: &[usize], available: &[usize]) -> Vec<usize> {
        data_first(self.k(), available)
    }

    fn plan(&self, key: &PlanKey) -> RepairPlan {
        let read_rows = self.generator.select_rows(&key.reads);
        let to_data = read_rows.invert().expect("any k rows of the generator are independent");
        let to_lost = self.generator.select_rows(&key.lost).multiply(&to_data);
        let map = LinearMap::from_matrix(&to_lost.expect("both have k columns or rows"));
        RepairPlan {
            lost: key.lost.clone(),
            reads: key.reads.iter().map(|&shard| ShardRead::whole(shard, 1)).collect(),
            map: Arc::new(map.expect("at least one shard is lost and k are read")),
        }
    }
}
