//! A bounded cache of repair plans.
//!
//! Inverting a matrix costs more than decoding a small shard, and a failed node asks for the same
//! few plans over and over. The cache keeps the [`MAX_CACHED_PLANS`] most recently used ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::RepairPlan;

/// Plans kept per code. All patterns of up to two losses of rs:12+4 fit several times over.
pub const MAX_CACHED_PLANS: usize = 1024;

/// What determines a plan: the lost shards in order, and the shards read in order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    pub(crate) lost: Vec<usize>,
    pub(crate) reads: Vec<usize>,
}

struct Entry {
    plan: Arc<RepairPlan>,
    last_use: u64,
}

#[derive(Default)]
struct Entries {
    plans: HashMap<PlanKey, Entry>,
    uses: u64,
}

/// Least recently used plans leave first.
#[derive(Default)]
pub(crate) struct PlanCache {
    entries: Mutex<Entries>,
}

impl PlanCache {
    /// The cached plan, or the one that `make` makes. The lock is not held while it does, so two
    /// threads may make the same plan at once; both get an equal one.
    pub(crate) fn get_or_make(
        &self,
        key: &PlanKey,
        make: impl FnOnce() -> RepairPlan,
    ) -> Arc<RepairPlan> {
        if let Some(plan) = self.lookup(key) {
            return plan;
        }
        let plan = Arc::new(make());
        let mut entries = self.lock();
        if entries.plans.len() >= MAX_CACHED_PLANS {
            // A scan of the bounded table, paid only after a miss that cost an inversion.
            let oldest = entries.plans.iter().min_by_key(|(_, entry)| entry.last_use);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                entries.plans.remove(&key);
            }
        }
        entries.uses += 1;
        let last_use = entries.uses;
        entries.plans.insert(key.clone(), Entry { plan: Arc::clone(&plan), last_use });
        plan
    }

    fn lookup(&self, key: &PlanKey) -> Option<Arc<RepairPlan>> {
        let mut entries = self.lock();
        entries.uses += 1;
        let uses = entries.uses;
        let entry = entries.plans.get_mut(key)?;
        entry.last_use = uses;
        Some(Arc::clone(&entry.plan))
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Every state between statements is a valid cache, so a panic elsewhere spoils nothing.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().plans.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_gf::{LinearMap, Matrix};

    fn plan(lost: usize) -> RepairPlan {
        let map = LinearMap::from_matrix(&Matrix::identity(1)).unwrap();
        RepairPlan { lost: vec![lost], reads: vec![], map: Arc::new(map) }
    }

    #[test]
    fn the_cache_is_bounded_and_drops_the_least_recently_used() {
        let cache = PlanCache::default();
        let key = |lost| PlanKey { lost: vec![lost], reads: vec![1, 2] };
        for lost in 0..MAX_CACHED_PLANS {
            cache.get_or_make(&key(lost), || plan(lost));
        }
        cache.get_or_make(&key(0), || panic!("plan 0 must be cached"));
        cache.get_or_make(&key(MAX_CACHED_PLANS), || plan(MAX_CACHED_PLANS));
        assert_eq!(cache.len(), MAX_CACHED_PLANS);
        cache.get_or_make(&key(0), || panic!("plan 0 was used last"));
        let mut made = false;
        cache.get_or_make(&key(1), || {
            made = true;
            plan(1)
        });
        assert!(made, "plan 1 was the least recently used");
    }

    #[test]
    fn other_reads_are_another_plan() {
        let cache = PlanCache::default();
        cache.get_or_make(&PlanKey { lost: vec![0], reads: vec![1] }, || plan(0));
        let other = PlanKey { lost: vec![0], reads: vec![2] };
        assert_eq!(cache.get_or_make(&other, || plan(9)).lost, [9]);
    }
}
