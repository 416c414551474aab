//! Replication, as the simplest code: one data shard, n - 1 parity shards equal to it, and a
//! repair that reads any one of them.

use std::sync::Arc;

use fieldstone_gf::{LinearMap, Matrix};

use crate::{Code, CodeError, Profile, RepairPlan, ShardRead, check_shards};

/// n identical shards.
pub(crate) struct Copies {
    profile: Profile,
    /// From one shard to 0, 1, ... n equal ones: the encoder and the map of every repair plan.
    maps: Vec<Arc<LinearMap>>,
}

impl Copies {
    /// `n` is within the bounds of [`Profile::copies`].
    pub(crate) fn new(n: usize) -> Self {
        let map = |outputs| {
            let ones = Matrix::from_fn(outputs, 1, |_, _| 1);
            Arc::new(LinearMap::from_matrix(&ones).expect("the matrix has a column"))
        };
        Self { profile: Profile::Copies { n }, maps: (0..=n).map(map).collect() }
    }
}

impl Code for Copies {
    fn profile(&self) -> Profile {
        self.profile
    }

    fn elements(&self) -> u32 {
        1
    }

    fn encode(&self) -> &Arc<LinearMap> {
        &self.maps[self.m()]
    }

    fn repair(&self, lost: &[usize], available: &[usize]) -> Result<Arc<RepairPlan>, CodeError> {
        let profile = self.profile;
        check_shards(profile, lost, available)?;
        let too_few = CodeError::TooFewShards { profile, needed: 1, available: 0 };
        let &shard = available.first().ok_or(too_few)?;
        Ok(Arc::new(RepairPlan {
            lost: lost.to_vec(),
            reads: vec![ShardRead::whole(shard, 1)],
            map: Arc::clone(&self.maps[lost.len()]),
        }))
    }
}
