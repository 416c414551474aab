//! Makes a [`Code`] of a construction.
//!
//! Codes differ in their algebra: which shards a repair reads, and how it computes. This module has
//! the parts that all codes share: checks of arguments, keys, caches, updates.

use std::ops::Range;
use std::sync::Arc;

use fieldstone_gf::LinearMap;

use crate::cache::{PlanCache, PlanKey};
use crate::{Code, CodeError, DeltaPlan, Layout, Profile, RepairPlan, check_shards, delta};

/// The algebra of one code.
pub(crate) trait Construction: Send + Sync {
    /// Elements per shard.
    fn elements(&self) -> u32;

    /// Where elements lie in a shard.
    fn layout(&self) -> Layout {
        Layout::Contiguous
    }

    /// The map from the k data shards to the m parities.
    fn encode(&self) -> LinearMap;

    /// The shards that a repair of `lost` reads, among the available shards, which are in order of
    /// preference. There are at least k. The lists are disjoint and name existing shards, each
    /// once.
    fn choose(&self, lost: &[usize], available: &[usize]) -> Vec<usize>;

    /// The plan that repairs `key.lost` from the shards `key.reads`, which [`Construction::choose`]
    /// gave and which are ascending here.
    fn plan(&self, key: &PlanKey) -> RepairPlan;
}

/// A code with its construction.
pub(crate) struct ConstructedCode<C> {
    profile: Profile,
    construction: C,
    encode: Arc<LinearMap>,
    repairs: PlanCache<PlanKey, RepairPlan>,
    parts: PlanCache<(PlanKey, Range<u32>), RepairPlan>,
    deltas: PlanCache<(usize, Range<u32>), DeltaPlan>,
}

impl<C: Construction> ConstructedCode<C> {
    pub(crate) fn new(profile: Profile, construction: C) -> Self {
        Self {
            profile,
            encode: Arc::new(construction.encode()),
            construction,
            repairs: PlanCache::default(),
            parts: PlanCache::default(),
            deltas: PlanCache::default(),
        }
    }
}

impl<C: Construction> Code for ConstructedCode<C> {
    fn profile(&self) -> Profile {
        self.profile
    }

    fn elements(&self) -> u32 {
        self.construction.elements()
    }

    fn layout(&self) -> Layout {
        self.construction.layout()
    }

    fn encode(&self) -> &Arc<LinearMap> {
        &self.encode
    }

    fn repair(&self, lost: &[usize], available: &[usize]) -> Result<Arc<RepairPlan>, CodeError> {
        let profile = self.profile;
        check_shards(profile, lost, available)?;
        let (needed, available_count) = (profile.k(), available.len());
        if available_count < needed {
            return Err(CodeError::TooFewShards { profile, needed, available: available_count });
        }
        let mut reads = self.construction.choose(lost, available);
        reads.sort_unstable();
        let key = PlanKey { lost: lost.to_vec(), reads };
        Ok(self.repairs.get_or_make(&key, || self.construction.plan(&key)))
    }

    fn repair_elements(
        &self,
        lost: &[usize],
        available: &[usize],
        elements: Range<u32>,
    ) -> Result<Arc<RepairPlan>, CodeError> {
        let (profile, count) = (self.profile, self.elements());
        let plan = self.repair(lost, available)?;
        if elements == (0..count) {
            return Ok(plan);
        }
        if elements.start >= elements.end || elements.end > count {
            let (start, end) = (elements.start, elements.end);
            return Err(CodeError::NoSuchElements { start, end, profile, count });
        }
        let reads = plan.reads.iter().map(|read| read.shard).collect();
        let key = (PlanKey { lost: lost.to_vec(), reads }, elements);
        let make = || plan.part(&key.1).expect("every element depends on those of other shards");
        Ok(self.parts.get_or_make(&key, make))
    }

    fn delta(&self, shard: usize, elements: Range<u32>) -> Result<Arc<DeltaPlan>, CodeError> {
        let (profile, count) = (self.profile, self.elements());
        if shard >= profile.k() {
            return Err(CodeError::NoSuchDataShard { shard, profile });
        }
        let words = matches!(self.layout(), Layout::Words { .. });
        let whole = elements == (0..count);
        if elements.start >= elements.end || elements.end > count || (words && !whole) {
            let (start, end) = (elements.start, elements.end);
            return Err(CodeError::NoSuchElements { start, end, profile, count });
        }
        let key = (shard, elements);
        let make = || delta::plan(&self.encode, profile.k(), shard, key.1.clone());
        Ok(self.deltas.get_or_make(&key, make))
    }
}

/// k of the available shards: data shards first, then by preference. The generator's rows of data
/// shards are unit vectors, which make maps sparse or at least save an inversion.
pub(crate) fn data_first(k: usize, available: &[usize]) -> Vec<usize> {
    let mut reads = available.to_vec();
    // The sort is stable, so the caller's preference decides between equal shards.
    reads.sort_by_key(|&shard| shard >= k);
    reads.truncate(k);
    reads
}
