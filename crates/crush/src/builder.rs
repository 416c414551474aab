//! Making maps, and the checks that let the mapper trust them: every item exists, no bucket
//! contains itself, numbers are inside the bounds below. So the mapper always ends and never
//! indexes outside.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::map::{Algorithm, Bucket, Map, Rule, RuleStep, Tunables};
use crate::{BucketId, ItemId, OsdId, RuleId, TypeId};

/// Most devices of a map.
pub const MAX_DEVICES: u32 = 1 << 20;
/// Most buckets of a map.
pub const MAX_BUCKETS: usize = 1 << 20;
/// Most items of one bucket.
pub const MAX_BUCKET_ITEMS: usize = 1 << 16;
/// Most levels of buckets.
pub const MAX_DEPTH: usize = 64;
/// Most attempts that a tunable or a rule may ask for.
pub const MAX_TRIES: u32 = 100_000;
/// Largest count of a choose step, and of its negative.
pub const MAX_COUNT: i32 = 1 << 16;
/// Largest weight of an item in a bucket; the crate's text tells why.
pub const MAX_ITEM_WEIGHT: u32 = i32::MAX as u32;

/// Why a map cannot be built.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BuildError {
    /// Bucket numbers are negative, down to -[`MAX_BUCKETS`].
    #[error("{} is not a bucket number: they go from -1 down to -{MAX_BUCKETS}", .0.0)]
    BadBucketId(BucketId),
    /// Two buckets of one number.
    #[error("bucket {} is defined twice", .0.0)]
    BucketTwice(BucketId),
    /// A bucket of type 0, which is the type of devices.
    #[error("bucket {} has type 0, which is the type of devices", .0.0)]
    BucketOfDeviceType(BucketId),
    /// A bucket with more items than the bound.
    #[error("bucket {} has {items} items, but may have at most {MAX_BUCKET_ITEMS}", .bucket.0)]
    TooManyItems {
        /// The bucket.
        bucket: BucketId,
        /// Its items.
        items: usize,
    },
    /// A device number past the bound.
    #[error("{item} in bucket {} is past the last possible device {}", .bucket.0, MAX_DEVICES - 1)]
    DeviceTooLarge {
        /// The bucket.
        bucket: BucketId,
        /// The item.
        item: ItemId,
    },
    /// An item of a bucket that is not defined.
    #[error("{item} is used by {user}, but is not defined")]
    NoSuchItem {
        /// "bucket -3" or "rule 1".
        user: String,
        /// The item.
        item: ItemId,
    },
    /// A weight whose meaning is ambiguous.
    #[error("{item} in bucket {} weighs {weight:#x}; weights must be below 0x80000000 (32768.0)", .bucket.0)]
    WeightTooLarge {
        /// The bucket.
        bucket: BucketId,
        /// The item.
        item: ItemId,
        /// Its weight.
        weight: u32,
    },
    /// A bucket below itself, or a tree deeper than the bound.
    #[error("bucket {} lies on a cycle or deeper than {MAX_DEPTH} levels", .0.0)]
    CycleOrTooDeep(BucketId),
    /// Two rules of one number.
    #[error("rule {} is defined twice", .0.0)]
    RuleTwice(RuleId),
    /// A number of a rule or tunable outside its bound.
    #[error("{what} is {value}, outside its bound {bound}")]
    OutOfBounds {
        /// What it is.
        what: &'static str,
        /// Its value.
        value: i64,
        /// The bound on its magnitude.
        bound: i64,
    },
}

/// Collects buckets and rules, and checks them when the map is [built](MapBuilder::build).
#[derive(Clone, Debug, Default)]
pub struct MapBuilder {
    buckets: Vec<Bucket>,
    rules: Vec<(RuleId, Rule)>,
    tunables: Tunables,
    min_devices: u32,
}

impl MapBuilder {
    /// An empty map with [`Tunables::JEWEL`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the tunables.
    pub fn tunables(&mut self, tunables: Tunables) -> &mut Self {
        self.tunables = tunables;
        self
    }

    /// Makes room for device numbers below `devices`, even if no bucket holds them.
    pub fn devices(&mut self, devices: u32) -> &mut Self {
        self.min_devices = devices;
        self
    }

    /// Adds a straw2 bucket of (item, 16.16 weight) pairs. Items may be defined later.
    pub fn straw2(
        &mut self,
        id: BucketId,
        kind: TypeId,
        items: impl IntoIterator<Item = (ItemId, u32)>,
    ) -> &mut Self {
        let (items, weights) = items.into_iter().unzip();
        self.buckets.push(Bucket { id, kind, items, algorithm: Algorithm::Straw2 { weights } });
        self
    }

    /// Adds a rule.
    pub fn rule(&mut self, id: RuleId, steps: impl Into<Vec<RuleStep>>) -> &mut Self {
        self.rules.push((id, Rule { steps: steps.into() }));
        self
    }

    /// Adds the common tree of straw2 buckets: a root (bucket -1) of hosts (buckets -2, -3, ...),
    /// each with devices of the given weights, numbered through from 0. A host weighs as much as
    /// its devices together, up to [`MAX_ITEM_WEIGHT`].
    pub fn host_tree(&mut self, root: TypeId, host: TypeId, hosts: &[&[u32]]) -> &mut Self {
        let mut next_osd = 0..;
        let mut root_items = Vec::new();
        for (weights, slot) in hosts.iter().zip(2..) {
            let id = BucketId(-slot);
            let items: Vec<(ItemId, u32)> =
                weights.iter().map(|&w| (ItemId(next_osd.next().unwrap_or(i32::MAX)), w)).collect();
            let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
            let total = total.min(u64::from(MAX_ITEM_WEIGHT)) as u32;
            root_items.push((ItemId::from(id), total));
            self.straw2(id, host, items);
        }
        self.straw2(BucketId(-1), root, root_items)
    }

    /// Checks everything and makes the map.
    pub fn build(&self) -> Result<Map, BuildError> {
        let mut max_devices = self.min_devices;
        let mut buckets: Vec<Option<Bucket>> = Vec::new();
        for bucket in &self.buckets {
            check_bucket(bucket)?;
            let slot = usize::try_from(!bucket.id.0).ok().filter(|&slot| slot < MAX_BUCKETS);
            let slot = slot.ok_or(BuildError::BadBucketId(bucket.id))?;
            if slot >= buckets.len() {
                buckets.resize(slot + 1, None);
            }
            if buckets[slot].replace(bucket.clone()).is_some() {
                return Err(BuildError::BucketTwice(bucket.id));
            }
            let devices = bucket.items.iter().filter_map(|item| item.osd());
            max_devices = devices.fold(max_devices, |max, OsdId(osd)| max.max(osd + 1));
        }
        bound("the number of devices", i64::from(max_devices), i64::from(MAX_DEVICES))?;
        check_tunables(&self.tunables)?;
        let mut rules = BTreeMap::new();
        for (id, rule) in &self.rules {
            if rules.insert(*id, rule.clone()).is_some() {
                return Err(BuildError::RuleTwice(*id));
            }
        }
        let map = Map { buckets, rules, tunables: self.tunables, max_devices };
        check_tree(&map)?;
        check_rules(&map)?;
        Ok(map)
    }
}

fn bound(what: &'static str, value: i64, bound: i64) -> Result<(), BuildError> {
    if value.abs() <= bound { Ok(()) } else { Err(BuildError::OutOfBounds { what, value, bound }) }
}

fn check_bucket(bucket: &Bucket) -> Result<(), BuildError> {
    let id = bucket.id;
    if bucket.kind == TypeId::DEVICE {
        return Err(BuildError::BucketOfDeviceType(id));
    }
    if bucket.items.len() > MAX_BUCKET_ITEMS {
        return Err(BuildError::TooManyItems { bucket: id, items: bucket.items.len() });
    }
    let Algorithm::Straw2 { weights } = &bucket.algorithm;
    for (&item, &weight) in bucket.items.iter().zip(weights) {
        if item.osd().is_some_and(|OsdId(osd)| osd >= MAX_DEVICES) {
            return Err(BuildError::DeviceTooLarge { bucket: id, item });
        }
        if weight > MAX_ITEM_WEIGHT {
            return Err(BuildError::WeightTooLarge { bucket: id, item, weight });
        }
    }
    Ok(())
}

fn check_tunables(tunables: &Tunables) -> Result<(), BuildError> {
    let tries = i64::from(MAX_TRIES);
    bound("choose_local_tries", tunables.choose_local_tries.into(), tries)?;
    bound("choose_local_fallback_tries", tunables.choose_local_fallback_tries.into(), tries)?;
    bound("choose_total_tries", tunables.choose_total_tries.into(), tries)?;
    bound("chooseleaf_vary_r", tunables.chooseleaf_vary_r.into(), 32)
}

/// Every item exists, and peeling off buckets whose children are all peeled reaches all buckets
/// within [`MAX_DEPTH`] rounds: so there is no cycle.
fn check_tree(map: &Map) -> Result<(), BuildError> {
    for bucket in map.buckets() {
        let missing = |item: &&ItemId| item.bucket().is_some_and(|id| map.bucket(id).is_none());
        if let Some(&item) = bucket.items.iter().find(missing) {
            return Err(BuildError::NoSuchItem { user: format!("bucket {}", bucket.id.0), item });
        }
    }
    let mut peeled = vec![false; map.buckets.len()];
    for _ in 0..MAX_DEPTH {
        let before = peeled.clone();
        for bucket in map.buckets() {
            let done = |item: &ItemId| item.bucket().is_none_or(|id| before[!id.0 as usize]);
            peeled[!bucket.id.0 as usize] = bucket.items.iter().all(done);
        }
        if peeled == before {
            break;
        }
    }
    match map.buckets().find(|bucket| !peeled[!bucket.id.0 as usize]) {
        None => Ok(()),
        Some(bucket) => Err(BuildError::CycleOrTooDeep(bucket.id)),
    }
}

fn check_rules(map: &Map) -> Result<(), BuildError> {
    let tries = i64::from(MAX_TRIES);
    for (id, rule) in map.rules() {
        for step in &rule.steps {
            match *step {
                RuleStep::Take(item) => {
                    let exists = match (item.bucket(), item.osd()) {
                        (Some(bucket), _) => map.bucket(bucket).is_some(),
                        (None, osd) => osd.is_some_and(|OsdId(osd)| osd < map.max_devices),
                    };
                    if !exists {
                        let user = format!("rule {}", id.0);
                        return Err(BuildError::NoSuchItem { user, item });
                    }
                }
                RuleStep::ChooseFirstn { count, .. }
                | RuleStep::ChooseIndep { count, .. }
                | RuleStep::ChooseleafFirstn { count, .. }
                | RuleStep::ChooseleafIndep { count, .. } => {
                    bound("the count of a choose step", count.into(), MAX_COUNT.into())?;
                }
                RuleStep::SetChooseTries(n) => bound("set_choose_tries", n.into(), tries)?,
                RuleStep::SetChooseleafTries(n) => bound("set_chooseleaf_tries", n.into(), tries)?,
                RuleStep::SetChooseLocalTries(n) => {
                    bound("set_choose_local_tries", n.into(), tries)?;
                }
                RuleStep::SetChooseLocalFallbackTries(n) => {
                    bound("set_choose_local_fallback_tries", n.into(), tries)?;
                }
                RuleStep::SetChooseleafVaryR(n) => bound("set_chooseleaf_vary_r", n.into(), 32)?,
                RuleStep::SetChooseleafStable(_) | RuleStep::Emit => {}
            }
        }
    }
    Ok(())
}
