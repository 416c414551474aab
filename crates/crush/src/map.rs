//! The map as data. Maps are made and checked by [`MapBuilder`](crate::MapBuilder), and immutable
//! afterwards.

use std::collections::BTreeMap;

use crate::mapper::RuleRef;
use crate::{BucketId, CrushError, ItemId, OsdId, RuleId, TypeId};

/// How a bucket chooses among its items.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// Weighted exponential race: the algorithm of every current map.
    Straw2 {
        /// One 16.16 weight per item, each below 2^31.
        weights: Vec<u32>,
    },
}

/// An inner vertex of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Its number. It enters no straw2 draw of its own items, but its parent's draws.
    pub id: BucketId,
    /// What it stands for (host, rack, ...); never [`TypeId::DEVICE`].
    pub kind: TypeId,
    /// Its children, in the map's order, which decides ties.
    pub items: Vec<ItemId>,
    /// How it chooses, with the weights.
    pub algorithm: Algorithm,
}

/// Knobs whose defaults changed over Ceph's releases. They change placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// Retries in the same bucket after a collision.
    pub choose_local_tries: u32,
    /// Retries in the same bucket by permutation.
    pub choose_local_fallback_tries: u32,
    /// Retries from the top. One more attempt than this is made.
    pub choose_total_tries: u32,
    /// A leaf that fails is not retried below the same host.
    pub chooseleaf_descend_once: bool,
    /// The leaf's draws vary with the attempt (shifted right by one less than this; 0: not at all).
    pub chooseleaf_vary_r: u32,
    /// The leaf's draws do not depend on the position in the result.
    pub chooseleaf_stable: bool,
}

impl Tunables {
    /// The profile of Ceph's jewel release, which is still the default.
    pub const JEWEL: Self = Self {
        choose_local_tries: 0,
        choose_local_fallback_tries: 0,
        choose_total_tries: 50,
        chooseleaf_descend_once: true,
        chooseleaf_vary_r: 1,
        chooseleaf_stable: true,
    };
}

impl Default for Tunables {
    fn default() -> Self {
        Self::JEWEL
    }
}

/// One step of a rule. A rule works on a list of items, at first empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleStep {
    /// The list becomes this one item.
    Take(ItemId),
    /// Every bucket of the list is replaced by items of type `kind` below it, as many as `count`
    /// says; 0 means the width of the mapping, and a negative count that much less. Slots that
    /// cannot be filled close up.
    ChooseFirstn {
        /// How many.
        count: i32,
        /// Of which type.
        kind: TypeId,
    },
    /// As [`RuleStep::ChooseFirstn`], but slots keep their position and may stay empty.
    ChooseIndep {
        /// How many.
        count: i32,
        /// Of which type.
        kind: TypeId,
    },
    /// Chooses buckets of type `kind` and one device below each; gives the devices.
    ChooseleafFirstn {
        /// How many.
        count: i32,
        /// Of which type the distinct buckets are.
        kind: TypeId,
    },
    /// As [`RuleStep::ChooseleafFirstn`], but slots keep their position and may stay empty.
    ChooseleafIndep {
        /// How many.
        count: i32,
        /// Of which type the distinct buckets are.
        kind: TypeId,
    },
    /// The list is appended to the result and emptied.
    Emit,
    /// Attempts from the top, instead of the tunable; 0 changes nothing.
    SetChooseTries(u32),
    /// Attempts for the leaf, instead of what the tunables imply; 0 changes nothing.
    SetChooseleafTries(u32),
    /// Overrides [`Tunables::choose_local_tries`].
    SetChooseLocalTries(u32),
    /// Overrides [`Tunables::choose_local_fallback_tries`].
    SetChooseLocalFallbackTries(u32),
    /// Overrides [`Tunables::chooseleaf_vary_r`].
    SetChooseleafVaryR(u32),
    /// Overrides [`Tunables::chooseleaf_stable`].
    SetChooseleafStable(bool),
}

/// A rule: its steps in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The steps.
    pub steps: Vec<RuleStep>,
}

/// A CRUSH map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Bucket -1 - i at slot i.
    pub(crate) buckets: Vec<Option<Bucket>>,
    pub(crate) rules: BTreeMap<RuleId, Rule>,
    pub(crate) tunables: Tunables,
    pub(crate) max_devices: u32,
}

impl Map {
    /// The rule of that number, ready to map.
    pub fn rule(&self, id: RuleId) -> Result<RuleRef<'_>, CrushError> {
        let rule = self.rules.get(&id).ok_or(CrushError::NoSuchRule(id))?;
        Ok(RuleRef::new(self, rule))
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

    /// The tunables.
    #[must_use]
    pub fn tunables(&self) -> &Tunables {
        &self.tunables
    }

    /// One more than the highest device number: the useful length of a list of reweights.
    #[must_use]
    pub fn max_devices(&self) -> u32 {
        self.max_devices
    }

    /// True when the device is in some bucket.
    #[must_use]
    pub fn contains_device(&self, osd: OsdId) -> bool {
        self.buckets().any(|bucket| bucket.items.contains(&ItemId::from(osd)))
    }
}
