//! The checks that let the mapper trust a map: every item exists, no bucket contains itself, and
//! numbers are inside the bounds below. So the mapper always ends and never indexes outside a
//! table.
//!
//! The bounds are far beyond every real map. They keep a hostile map from costing unbounded memory
//! or time.

use thiserror::Error;

use crate::bucket::{straw2, tree};
use crate::map::Map;
use crate::rule::{Rule, RuleStep};
use crate::tunables::Tunables;
use crate::{Algorithm, Bucket, BucketId, ChooseArgsId, ItemId, OsdId, RuleId, TypeId};

/// Most devices of a map.
pub const MAX_DEVICES: u32 = 1 << 20;
/// Most buckets of a map.
pub const MAX_BUCKETS: usize = 1 << 17;
/// Most items of one bucket. (Ceph's permutation misbehaves from 65,535 items on.)
pub const MAX_BUCKET_ITEMS: usize = 65_534;
/// Most items of a tree bucket: binary maps count its nodes in one byte.
pub const MAX_TREE_ITEMS: usize = tree::MAX_ITEMS;
/// Most items that the shadow buckets of a text map may hold together.
pub const MAX_SHADOW_ITEMS: usize = 1 << 22;
/// Most levels of buckets.
pub const MAX_DEPTH: usize = 64;
/// Most rules of a map: pools name their rule in one byte.
pub const MAX_RULES: u32 = 256;
/// Most attempts that a tunable or a rule may ask for.
pub const MAX_TRIES: i64 = 100_000;
/// Most attempts of a choose step in all: positions that its count asks for, times attempts, times
/// attempts for the leaf of each. For multi-step-retry rules: descents times collision tries. With
/// this bound, a mapping takes at most seconds on the most hostile map.
pub const MAX_ATTEMPTS: i64 = 10_000_000;
/// Largest absolute value of a choose step's count.
pub const MAX_COUNT: i64 = 1 << 16;
/// The first weight that Ceph reads as a negative number; `bucket/straw2.rs` explains the effect.
/// Maps that this crate builds have only smaller weights.
pub const FIRST_SIGNED_WEIGHT: u32 = straw2::FIRST_SIGNED_WEIGHT;

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
    #[error("bucket {} has {items} items, but may have at most {most}", .bucket.0)]
    TooManyItems {
        /// The bucket.
        bucket: BucketId,
        /// Its items.
        items: usize,
        /// The bound for its algorithm.
        most: usize,
    },
    /// A bucket's list has another length than its items or its tree need.
    #[error("bucket {} has {items} items, but its {what} are for another number", .bucket.0)]
    BadShape {
        /// The bucket.
        bucket: BucketId,
        /// Its items.
        items: usize,
        /// The list.
        what: &'static str,
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
    #[error(
        "{item} in bucket {} weighs {weight:#x}; weights must be below 0x80000000 (32768.0)",
        .bucket.0
    )]
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
    /// A weight set that does not fit its bucket.
    #[error("choose_args {} of bucket {}: {what}", .set.0, .bucket.0)]
    BadChooseArg {
        /// The set.
        set: ChooseArgsId,
        /// The bucket.
        bucket: BucketId,
        /// The error.
        what: &'static str,
    },
    /// A number of a rule or tunable outside its bound.
    #[error("{what} is {value}, outside its bound {bound}")]
    OutOfBounds {
        /// The field.
        what: &'static str,
        /// Its value.
        value: i64,
        /// The bound for its absolute value.
        bound: i64,
    },
}

/// The index of a bucket in tables.
pub(crate) fn slot(id: BucketId) -> Result<usize, BuildError> {
    let slot = usize::try_from(!id.0).ok().filter(|&slot| slot < MAX_BUCKETS);
    slot.ok_or(BuildError::BadBucketId(id))
}

/// The checks of one bucket alone.
pub(crate) fn bucket(bucket: &Bucket) -> Result<(), BuildError> {
    let (id, items) = (bucket.id, bucket.items.len());
    if bucket.kind == TypeId::DEVICE {
        return Err(BuildError::BucketOfDeviceType(id));
    }
    let is_tree = matches!(bucket.algorithm, Algorithm::Tree { .. });
    let most = if is_tree { MAX_TREE_ITEMS } else { MAX_BUCKET_ITEMS };
    if items > most {
        return Err(BuildError::TooManyItems { bucket: id, items, most });
    }
    let shaped = |what, fits: bool| {
        if fits { Ok(()) } else { Err(BuildError::BadShape { bucket: id, items, what }) }
    };
    match &bucket.algorithm {
        Algorithm::Uniform { .. } => {}
        Algorithm::List { weights, sums } => {
            shaped("weights", weights.len() == items)?;
            shaped("sums", sums.len() == items)?;
        }
        Algorithm::Tree { node_weights } => {
            let nodes = node_weights.len();
            let fitting = tree::nodes(items)..=tree::nodes(MAX_TREE_ITEMS);
            let enough = nodes.is_power_of_two() && fitting.contains(&nodes);
            shaped("nodes", if items == 0 { nodes == 0 || enough } else { enough })?;
        }
        Algorithm::Straw { weights, straws } => {
            shaped("weights", weights.len() == items)?;
            shaped("straws", straws.len() == items)?;
        }
        Algorithm::Straw2 { weights } => shaped("weights", weights.len() == items)?,
    }
    let too_large = |item: &&ItemId| item.osd().is_some_and(|OsdId(osd)| osd >= MAX_DEVICES);
    match bucket.items.iter().find(too_large) {
        Some(&item) => Err(BuildError::DeviceTooLarge { bucket: id, item }),
        None => Ok(()),
    }
}

/// The checks of the map as a whole; its buckets are already checked one by one.
pub(crate) fn map(map: &Map) -> Result<(), BuildError> {
    bound("the number of devices", i64::from(map.max_devices()), i64::from(MAX_DEVICES))?;
    tunables(map.tunables())?;
    tree(map)?;
    for (id, rule) in map.rules() {
        self::rule(id, rule, map.tunables())?;
    }
    choose_args(map)
}

fn bound(what: &'static str, value: i64, bound: i64) -> Result<(), BuildError> {
    if value.abs() <= bound { Ok(()) } else { Err(BuildError::OutOfBounds { what, value, bound }) }
}

/// The checks of the tunables.
pub(crate) fn tunables(tunables: &Tunables) -> Result<(), BuildError> {
    for (what, value) in [
        ("choose_local_tries", tunables.choose_local_tries),
        ("choose_local_fallback_tries", tunables.choose_local_fallback_tries),
        ("choose_total_tries", tunables.choose_total_tries),
        ("msr_descents", tunables.msr_descents),
        ("msr_collision_tries", tunables.msr_collision_tries),
    ] {
        bound(what, value.into(), MAX_TRIES)?;
    }
    Ok(())
}

/// Every item exists. If buckets whose children are all removed are removed round by round, all
/// buckets are gone within [`MAX_DEPTH`] rounds; so there is no cycle.
fn tree(map: &Map) -> Result<(), BuildError> {
    for bucket in map.buckets() {
        let missing = |item: &&ItemId| item.bucket().is_some_and(|id| map.bucket(id).is_none());
        if let Some(&item) = bucket.items.iter().find(missing) {
            return Err(BuildError::NoSuchItem { user: format!("bucket {}", bucket.id.0), item });
        }
    }
    let mut peeled = vec![false; map.bucket_slots()];
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

/// The checks of one rule alone.
pub(crate) fn rule(id: RuleId, rule: &Rule, tunables: &Tunables) -> Result<(), BuildError> {
    bound("the number of a rule", i64::from(id.0), i64::from(MAX_RULES) - 1)?;
    let (mut tries, mut leaf_tries) = (i64::from(tunables.choose_total_tries) + 1, 0);
    let mut descents = i64::from(tunables.msr_descents);
    let mut collision_tries = i64::from(tunables.msr_collision_tries);
    for &step in &rule.steps {
        match step {
            RuleStep::ChooseFirstn { count, .. }
            | RuleStep::ChooseIndep { count, .. }
            | RuleStep::ChooseleafFirstn { count, .. }
            | RuleStep::ChooseleafIndep { count, .. } => {
                bound("the count of a choose step", count.into(), MAX_COUNT)?;
                let unset = if tunables.chooseleaf_descend_once { 1 } else { tries };
                let leaf_tries = if leaf_tries > 0 { leaf_tries } else { unset };
                let attempts = i64::from(count).max(1) * tries * leaf_tries;
                bound("positions times attempts times leaf attempts", attempts, MAX_ATTEMPTS)?;
            }
            RuleStep::ChooseMsr { count, .. } => {
                if count < 0 {
                    let what = "the count of a choosemsr step (none may be negative)";
                    let (value, bound) = (count.into(), 0);
                    return Err(BuildError::OutOfBounds { what, value, bound });
                }
                bound("the count of a choosemsr step", count.into(), MAX_COUNT)?;
                let product = descents.max(0) * collision_tries.max(0);
                bound("descents times collision tries", product, MAX_ATTEMPTS)?;
            }
            RuleStep::SetChooseTries(n) => {
                bound("set_choose_tries", n.into(), MAX_TRIES)?;
                tries = if n > 0 { n.into() } else { tries };
            }
            RuleStep::SetChooseleafTries(n) => {
                bound("set_chooseleaf_tries", n.into(), MAX_TRIES)?;
                leaf_tries = if n > 0 { n.into() } else { leaf_tries };
            }
            RuleStep::SetChooseLocalTries(n) => {
                bound("set_choose_local_tries", n.into(), MAX_TRIES)?;
            }
            RuleStep::SetChooseLocalFallbackTries(n) => {
                bound("set_choose_local_fallback_tries", n.into(), MAX_TRIES)?;
            }
            RuleStep::SetMsrDescents(n) => {
                bound("set_msr_descents", n.into(), MAX_TRIES)?;
                descents = n.into();
            }
            RuleStep::SetMsrCollisionTries(n) => {
                bound("set_msr_collision_tries", n.into(), MAX_TRIES)?;
                collision_tries = n.into();
            }
            RuleStep::SetChooseleafVaryR(_)
            | RuleStep::SetChooseleafStable(_)
            | RuleStep::Take(_)
            | RuleStep::Noop
            | RuleStep::Emit => {}
        }
    }
    Ok(())
}

fn choose_args(map: &Map) -> Result<(), BuildError> {
    for (&set, args) in map.choose_args() {
        for (&id, arg) in &args.buckets {
            let error = |what| Err(BuildError::BadChooseArg { set, bucket: id, what });
            let Some(bucket) = map.bucket(id) else {
                return error("there is no such bucket");
            };
            let items = bucket.items.len();
            if arg.weight_sets.iter().any(|weights| weights.len() != items) {
                return error("a weight set is not as long as the bucket's items");
            }
            if arg.ids.as_ref().is_some_and(|ids| ids.len() != items) {
                return error("the ids are not as many as the bucket's items");
            }
        }
    }
    Ok(())
}
