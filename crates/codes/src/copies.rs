//! Replication, as the simplest code: one data shard, and n - 1 parity shards equal to it. A repair
//! reads any one shard.

use std::sync::Arc;

use fieldstone_gf::{LinearMap, Matrix};

use crate::cache::PlanKey;
use crate::construction::Construction;
use crate::{RepairPlan, ShardRead};

/// n identical shards.
pub(crate) struct Copies {
    pub(crate) n: usize,
}

/// From one shard to `outputs` equal ones.
fn duplicate(outputs: usize) -> LinearMap {
    let ones = Matrix::from_fn(outputs, 1, |_, _| 1);
    LinearMap::from_matrix(&ones).expect("the matrix has a column")
}

impl Construction for Copies {
    fn elements(&self) -> u32 {
        1
    }

    fn encode(&self) -> LinearMap {
        duplicate(self.n - 1)
    }

    fn choose(&self, _lost: &[usize], available: &[usize]) -> Vec<usize> {
        available[..1].to_vec()
    }

    fn plan(&self, key: &PlanKey) -> RepairPlan {
        RepairPlan {
            lost: key.lost.clone(),
            reads: vec![ShardRead::whole(key.reads[0], 1)],
            map: Arc::new(duplicate(key.lost.len())),
        }
    }
}
