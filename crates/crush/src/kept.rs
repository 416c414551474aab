//! What others have made of a map, kept with the map for the next one who asks.
//!
//! A map is data. It does not know what is made of it (the batch mapper makes flat tables), so the
//! types are told at run time.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Something of a type that the map does not know.
type Thing = Arc<dyn Any + Send + Sync>;

/// One thing for the map with its own weights, and one for each of its weight sets. A copy of a map
/// starts without. Maps are equal whatever is kept with them.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    plain: OnceLock<Thing>,
    with_args: Mutex<BTreeMap<usize, Thing>>,
}

impl Kept {
    /// What is kept for a weight set, by its place, or for the map's own weights; made if there is
    /// nothing yet. All who ask must ask for the same type: another one is made each time.
    pub(crate) fn get<T: Any + Send + Sync>(
        &self,
        weight_set: Option<usize>,
        make: impl Fn() -> T,
    ) -> Arc<T> {
        let make_thing = || Arc::new(make()) as Thing;
        let thing = match weight_set {
            None => Arc::clone(self.plain.get_or_init(make_thing)),
            Some(place) => {
                let mut kept = self.with_args.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(kept.entry(place).or_insert_with(make_thing))
            }
        };
        thing.downcast().unwrap_or_else(|_| Arc::new(make()))
    }
}

impl Clone for Kept {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Kept {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Kept {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_made_once_for_each_weight_set() {
        let kept = Kept::default();
        assert_eq!(*kept.get(None, || 1u32), 1);
        assert_eq!(*kept.get(None, || 2u32), 1);
        assert_eq!(*kept.get(Some(0), || 3u32), 3);
        assert_eq!(*kept.get(Some(0), || 4u32), 3);
        assert_eq!(*kept.clone().get(None, || 5u32), 5, "a copy starts without");
        assert_eq!(*kept.get(None, || "another type"), "another type");
    }
}
