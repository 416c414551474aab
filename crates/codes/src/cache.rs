//! A bounded cache of plans.
//!
//! Inverting a matrix costs more than decoding a small shard, and a failed node needs the same few
//! plans again and again. The cache keeps the most recently used plans: at most
//! [`MAX_CACHED_PLANS`] plans, with at most [`MAX_CACHED_TERMS`] terms together.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fieldstone_gf::LinearMap;

use crate::{DeltaPlan, RepairPlan};

/// Plans kept per code. The plans for all patterns of up to two losses of rs:12+4 fit several
/// times.
pub const MAX_CACHED_PLANS: usize = 1024;
/// Terms kept per code, in all cached plans together. The plan used last always stays. A term takes
/// about 70 bytes with its tables.
pub const MAX_CACHED_TERMS: usize = 1 << 20;

/// An entry of a cache.
pub(crate) trait CachedPlan {
    /// The program of the plan.
    fn map(&self) -> &LinearMap;
}

impl CachedPlan for RepairPlan {
    fn map(&self) -> &LinearMap {
        &self.map
    }
}

impl CachedPlan for DeltaPlan {
    fn map(&self) -> &LinearMap {
        &self.map
    }
}

/// The key of a plan: the lost shards in order, and the shards read in order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    pub(crate) lost: Vec<usize>,
    pub(crate) reads: Vec<usize>,
}

struct Entry<P> {
    plan: Arc<P>,
    terms: usize,
    last_use: u64,
}

struct Entries<K, P> {
    plans: HashMap<K, Entry<P>>,
    terms: usize,
    uses: u64,
}

/// A cache that evicts the least recently used plans first.
pub(crate) struct PlanCache<K, P> {
    entries: Mutex<Entries<K, P>>,
}

impl<K, P> Default for PlanCache<K, P> {
    fn default() -> Self {
        let entries = Entries { plans: HashMap::new(), terms: 0, uses: 0 };
        Self { entries: Mutex::new(entries) }
    }
}

impl<K: Clone + Eq + Hash, P: CachedPlan> PlanCache<K, P> {
    /// The cached plan, or the plan that `make` makes. The lock is not held while `make` runs, so
    /// two threads may make the same plan at once; both get an equal one.
    pub(crate) fn get_or_make(&self, key: &K, make: impl FnOnce() -> P) -> Arc<P> {
        if let Some(plan) = self.lookup(key) {
            return plan;
        }
        let plan = Arc::new(make());
        let terms = plan.map().steps().iter().flatten().map(|row| row.terms.len()).sum();
        let mut entries = self.lock();
        entries.uses += 1;
        let entry = Entry { plan: Arc::clone(&plan), terms, last_use: entries.uses };
        let before = entries.plans.insert(key.clone(), entry).map_or(0, |entry| entry.terms);
        entries.terms = entries.terms - before + terms;
        while entries.plans.len() > MAX_CACHED_PLANS
            || (entries.terms > MAX_CACHED_TERMS && entries.plans.len() > 1)
        {
            entries.drop_oldest();
        }
        plan
    }

    fn lookup(&self, key: &K) -> Option<Arc<P>> {
        let mut entries = self.lock();
        entries.uses += 1;
        let uses = entries.uses;
        let entry = entries.plans.get_mut(key)?;
        entry.last_use = uses;
        Some(Arc::clone(&entry.plan))
    }

    fn lock(&self) -> MutexGuard<'_, Entries<K, P>> {
        // Every state between statements is a valid cache, so a panic elsewhere does no harm.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().plans.len()
    }
}

impl<K: Clone + Eq + Hash, P> Entries<K, P> {
    /// Scans the bounded table. This happens only after a miss, whose inversion costs more.
    fn drop_oldest(&mut self) {
        let oldest = self.plans.iter().min_by_key(|(_, entry)| entry.last_use);
        if let Some(key) = oldest.map(|(key, _)| key.clone())
            && let Some(entry) = self.plans.remove(&key)
        {
            self.terms -= entry.terms;
        }
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
        let cache = PlanCache::<PlanKey, RepairPlan>::default();
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
    fn large_plans_make_the_cache_keep_fewer() {
        let cache = PlanCache::<usize, RepairPlan>::default();
        let side = 256;
        let ones = Matrix::from_fn(side, side, |_, _| 1);
        let map = Arc::new(LinearMap::from_matrix(&ones).unwrap());
        let plan = |lost| RepairPlan { lost: vec![lost], reads: vec![], map: Arc::clone(&map) };
        let fit = MAX_CACHED_TERMS / (side * side);
        for lost in 0..3 * fit {
            cache.get_or_make(&lost, || plan(lost));
            assert_eq!(cache.len(), fit.min(lost + 1));
        }
    }

    #[test]
    fn other_reads_are_another_plan() {
        let cache = PlanCache::default();
        cache.get_or_make(&PlanKey { lost: vec![0], reads: vec![1] }, || plan(0));
        let other = PlanKey { lost: vec![0], reads: vec![2] };
        assert_eq!(cache.get_or_make(&other, || plan(9)).lost, [9]);
    }
}
