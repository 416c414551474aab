//! Weight sets: other weights (and other numbers to hash) for the straw2 buckets of a map, without
//! changing the map that users see. Ceph's balancer in `crush-compat` mode works by them.

use std::collections::BTreeMap;

use crate::{BucketId, ItemId};

/// The number of a set of choose_args: a pool's number, or [`ChooseArgsId::DEFAULT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChooseArgsId(pub i64);

impl ChooseArgsId {
    /// Used by every pool that has no set of its own.
    pub const DEFAULT: Self = Self(-1);
}

/// What replaces the weights and numbers of one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChooseArg {
    /// Weights of all items, one list for every position of the result; positions past the last
    /// list use the last. Empty: the bucket's own weights.
    pub weight_sets: Vec<Vec<u32>>,
    /// What to hash instead of the items' own numbers. The items that are drawn stay the same.
    pub ids: Option<Vec<ItemId>>,
}

/// One set of choose_args.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChooseArgs {
    /// The buckets it changes. Only straw2 buckets look at it.
    pub buckets: BTreeMap<BucketId, ChooseArg>,
}
