//! Reed-Solomon with the Cauchy matrix of ISA-L (`gf_gen_cauchy1_matrix`), which is what Ceph's
//! `isa` plugin calls technique `cauchy`.
//!
//! The generator has k + m rows of k coefficients. The first k rows are the identity: data shards
//! are stored as they are. Coefficient j of row i >= k is 1 / (i xor j). Every square part of such
//! a matrix is invertible, so any k shards determine all others. With m = 1 the parity is a plain
//! XOR instead, as in that plugin.
//!
//! A repair reads exactly k shards: all data shards that it can get, then parities. With the
//! generator's rows of those k shards as matrix R, data = R^-1 times what was read, and a lost
//! shard s is row s of the generator times that.

use std::sync::Arc;

use fieldstone_gf::{LinearMap, Matrix, field};

use crate::cache::{PlanCache, PlanKey};
use crate::{Code, CodeError, Profile, RepairPlan, ShardRead, check_shards};

/// The generator matrix, k + m rows of k coefficients.
fn generator(k: usize, m: usize) -> Matrix {
    Matrix::from_fn(k + m, k, |row, column| match row {
        _ if row < k => u8::from(row == column),
        _ if m == 1 => 1,
        // row >= k > column, so they differ, and both are below 256.
        _ => field::inverse((row ^ column) as u8).expect("the xor of different numbers is not 0"),
    })
}

/// A Reed-Solomon code.
pub(crate) struct ReedSolomon {
    profile: Profile,
    generator: Matrix,
    encode: Arc<LinearMap>,
    plans: PlanCache,
}

impl ReedSolomon {
    /// `k` and `m` are within the bounds of [`Profile::rs`].
    pub(crate) fn new(k: usize, m: usize) -> Self {
        let generator = generator(k, m);
        let parities = generator.select_rows(&(k..k + m).collect::<Vec<_>>());
        let encode = LinearMap::from_matrix(&parities).expect("the matrix has rows and columns");
        Self {
            profile: Profile::Rs { k, m },
            generator,
            encode: Arc::new(encode),
            plans: PlanCache::default(),
        }
    }

    fn plan(&self, key: &PlanKey) -> RepairPlan {
        let read_rows = self.generator.select_rows(&key.reads);
        let to_data = read_rows.invert().expect("any k rows of a Cauchy generator are independent");
        let to_lost = self.generator.select_rows(&key.lost).multiply(&to_data);
        let map = LinearMap::from_matrix(&to_lost.expect("both have k columns or rows"));
        RepairPlan {
            lost: key.lost.clone(),
            reads: key.reads.iter().map(|&shard| ShardRead::whole(shard, 1)).collect(),
            map: Arc::new(map.expect("at least one shard is lost and k are read")),
        }
    }
}

impl Code for ReedSolomon {
    fn profile(&self) -> Profile {
        self.profile
    }

    fn elements(&self) -> u32 {
        1
    }

    fn encode(&self) -> &Arc<LinearMap> {
        &self.encode
    }

    fn repair(&self, lost: &[usize], available: &[usize]) -> Result<Arc<RepairPlan>, CodeError> {
        let profile = self.profile;
        check_shards(profile, lost, available)?;
        let k = profile.k();
        // Data shards first: their rows are unit vectors, which make the map sparse or at least
        // spare an inversion. The sort is stable, so the caller's preference decides the rest.
        let mut reads = available.to_vec();
        reads.sort_by_key(|&shard| shard >= k);
        if reads.len() < k {
            let available = reads.len();
            return Err(CodeError::TooFewShards { profile, needed: k, available });
        }
        reads.truncate(k);
        reads.sort_unstable();
        let key = PlanKey { lost: lost.to_vec(), reads };
        Ok(self.plans.get_or_make(&key, || self.plan(&key)))
    }
}
