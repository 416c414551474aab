//! Caches data that other modules derive from a map, for example the flat tables of the batch
//! mapper. The cache is part of the map.
//!
//! The map has no dependency on the modules that derive data. So the cache checks the type of an
//! entry at run time.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Derived data, of a type that the map does not know.
type Derived = Arc<dyn Any + Send + Sync>;

/// One cache entry for the map's own weights, and one per weight set. The cache of a cloned map is
/// empty. The cache has no influence on whether two maps are equal.
#[derive(Debug, Default)]
pub(crate) struct DerivedCache {
    plain: OnceLock<Derived>,
    with_args: Mutex<BTreeMap<usize, Derived>>,
}

impl DerivedCache {
    /// Returns the entry of the weight set with this index, or of the map's own weights. Makes the
    /// entry if it does not exist. All callers must use the same type: the cache does not store a
    /// second type, and `make` then runs for each call.
    pub(crate) fn get<T: Any + Send + Sync>(
        &self,
        weight_set: Option<usize>,
        make: impl Fn() -> T,
    ) -> Arc<T> {
        let make_derived = || Arc::new(make()) as Derived;
        let derived = match weight_set {
            None => Arc::clone(self.plain.get_or_init(make_derived)),
            Some(index) => {
                let mut cached = self.with_args.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(cached.entry(index).or_insert_with(make_derived))
            }
        };
        derived.downcast().unwrap_or_else(|_| Arc::new(make()))
    }
}

impl Clone for DerivedCache {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for DerivedCache {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for DerivedCache {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_made_once_for_each_weight_set() {
        let cache = DerivedCache::default();
        assert_eq!(*cache.get(None, || 1u32), 1);
        assert_eq!(*cache.get(None, || 2u32), 1);
        assert_eq!(*cache.get(Some(0), || 3u32), 3);
        assert_eq!(*cache.get(Some(0), || 4u32), 3);
        assert_eq!(*cache.clone().get(None, || 5u32), 5, "the cache of a copy is empty");
        assert_eq!(*cache.get(None, || "another type"), "another type");
    }
}
