//! Weight sets: other weights (and other numbers to hash) for the straw2 buckets of a map. The map
//! that users see does not change. Ceph's balancer in `crush-compat` mode uses them.

use std::collections::BTreeMap;

use crate::{BucketId, ItemId};

/// The number of a set of choose_args: a pool's number, or [`ChooseArgsId::DEFAULT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChooseArgsId(pub i64);

impl ChooseArgsId {
    /// The set for every pool that has no set of its own.
    pub const DEFAULT: Self = Self(-1);
}

/// Replacements for the weights and numbers of one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChooseArg {
    /// Weights of all items, one list per position of the result. Positions past the last list use
    /// the last list. Empty: the bucket's own weights.
    pub weight_sets: Vec<Vec<u32>>,
    /// Numbers to hash instead of the items' own numbers. The drawn items stay the same.
    pub ids: Option<Vec<ItemId>>,
}

/// One set of choose_args.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChooseArgs {
    /// The buckets that the set changes. Only straw2 buckets use it.
    pub buckets: BTreeMap<BucketId, ChooseArg>,
}
