//! The map as data.
//!
//! A map is made from [`Parts`] (in code, by [`MapBuilder`](crate::MapBuilder), from text or from
//! binary) and checked once. Afterwards it is immutable, and the mapper trusts it: every item
//! exists, no bucket contains itself, and all numbers are inside the bounds of
//! [`check`](crate::check).

use std::any::Any;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

use crate::check::{self, BuildError};
use crate::choose_args::{ChooseArgs, ChooseArgsId};
use crate::derived_cache::DerivedCache;
use crate::names::{Classes, Names};
use crate::rule::Rule;
use crate::tunables::Tunables;
use crate::{Bucket, BucketId, ItemId, OsdId, RuleId};

/// All parts of a map, before they are checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The buckets, in any order.
    pub buckets: Vec<Bucket>,
    /// The rules.
    pub rules: BTreeMap<RuleId, Rule>,
    /// The tunables.
    pub tunables: Tunables,
    /// Weight sets.
    pub choose_args: BTreeMap<ChooseArgsId, ChooseArgs>,
    /// Names of types, items and rules.
    pub names: Names,
    /// Classes of devices.
    pub classes: Classes,
    /// The map has room for device numbers below this, even if no bucket holds them. It always has
    /// room for the devices in its buckets.
    pub min_devices: u32,
}

/// A CRUSH map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Bucket -1 - i at slot i.
    buckets: Vec<Option<Bucket>>,
    rules: BTreeMap<RuleId, Rule>,
    tunables: Tunables,
    choose_args: BTreeMap<ChooseArgsId, ChooseArgs>,
    names: Names,
    classes: Classes,
    max_devices: u32,
    derived: DerivedCache,
}

impl Map {
    /// Checks the parts and makes the map.
    pub fn new(parts: Parts) -> Result<Self, BuildError> {
        let mut slots: Vec<Option<Bucket>> = Vec::new();
        let mut max_devices = parts.min_devices;
        for bucket in parts.buckets {
            let slot = check::slot(bucket.id)?;
            check::bucket(&bucket)?;
            let devices = bucket.items.iter().filter_map(|item| item.osd());
            max_devices = devices.fold(max_devices, |max, OsdId(osd)| max.max(osd + 1));
            if slot >= slots.len() {
                slots.resize(slot + 1, None);
            }
            let id = bucket.id;
            if slots[slot].replace(bucket).is_some() {
                return Err(BuildError::BucketTwice(id));
            }
        }
        let map = Self {
            buckets: slots,
            rules: parts.rules,
            tunables: parts.tunables,
            choose_args: parts.choose_args,
            names: parts.names,
            classes: parts.classes,
            max_devices,
            derived: DerivedCache::default(),
        };
        check::map(&map)?;
        Ok(map)
    }

    /// Takes the map apart, for an edited copy.
    #[must_use]
    pub fn into_parts(self) -> Parts {
        Parts {
            buckets: self.buckets.into_iter().flatten().collect(),
            rules: self.rules,
            tunables: self.tunables,
            choose_args: self.choose_args,
            names: self.names,
            classes: self.classes,
            min_devices: self.max_devices,
        }
    }

    pub(crate) fn rule_data(&self, id: RuleId) -> Option<&Rule> {
        self.rules.get(&id)
    }

    /// All rules, by number.
    pub fn rules(&self) -> impl Iterator<Item = (RuleId, &Rule)> {
        self.rules.iter().map(|(&id, rule)| (id, rule))
    }

    /// All buckets, from -1 down.
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().flatten()
    }

    /// The bucket of that number.
    #[must_use]
    pub fn bucket(&self, id: BucketId) -> Option<&Bucket> {
        // -1 - id is !id in two's complement, and negative only for ids that are no bucket's.
        self.buckets.get(usize::try_from(!id.0).ok()?)?.as_ref()
    }

    /// One more than the greatest slot of a bucket: bucket -1 - i has slot i.
    #[must_use]
    pub fn bucket_slots(&self) -> usize {
        self.buckets.len()
    }

    /// The tunables.
    #[must_use]
    pub fn tunables(&self) -> &Tunables {
        &self.tunables
    }

    /// Returns the cached data that a module derived from the map with these weights. Makes the
    /// data if the cache does not have it. See [`DerivedCache`].
    pub(crate) fn derived<T: Any + Send + Sync>(
        &self,
        choose_args: Option<&ChooseArgs>,
        make: impl Fn() -> T,
    ) -> Arc<T> {
        let Some(given) = choose_args else { return self.derived.get(None, make) };
        match self.choose_args.values().position(|own| ptr::eq(own, given)) {
            Some(index) => self.derived.get(Some(index), make),
            // The map does not cache data that was derived with foreign weights.
            None => Arc::new(make()),
        }
    }

    /// All weight sets.
    #[must_use]
    pub fn choose_args(&self) -> &BTreeMap<ChooseArgsId, ChooseArgs> {
        &self.choose_args
    }

    /// The weight set for a pool of that number: its own, or else the default one, or none.
    #[must_use]
    pub fn choose_args_for_pool(&self, pool: i64) -> Option<&ChooseArgs> {
        let own = self.choose_args.get(&ChooseArgsId(pool));
        own.or_else(|| self.choose_args.get(&ChooseArgsId::DEFAULT))
    }

    /// Names of types, items and rules.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Classes of devices.
    #[must_use]
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// One more than the highest device number: the useful length of a list of reweights.
    #[must_use]
    pub fn max_devices(&self) -> u32 {
        self.max_devices
    }

    /// True for an existing bucket, and for every device that the map has room for: the items that
    /// a rule can take.
    #[must_use]
    pub fn contains(&self, item: ItemId) -> bool {
        match (item.bucket(), item.osd()) {
            (Some(bucket), _) => self.bucket(bucket).is_some(),
            (None, osd) => osd.is_some_and(|OsdId(osd)| osd < self.max_devices),
        }
    }

    /// True if the device is in some bucket.
    #[must_use]
    pub fn contains_device(&self, osd: OsdId) -> bool {
        self.buckets().any(|bucket| bucket.items.contains(&ItemId::from(osd)))
    }

    /// Buckets that lie in no other bucket, from -1 down.
    pub fn roots(&self) -> impl Iterator<Item = &Bucket> {
        let mut held = vec![false; self.buckets.len()];
        for child in self.buckets().flat_map(|bucket| &bucket.items) {
            if let Some(id) = child.bucket() {
                held[!id.0 as usize] = true;
            }
        }
        self.buckets().filter(move |bucket| !held[!bucket.id.0 as usize])
    }
}
