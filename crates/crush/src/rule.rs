//! Rules as data: the steps of a rule.

use crate::{ItemId, TypeId};

/// The purpose of a rule. The number is Ceph's. A separate mapper runs MSR rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleKind {
    /// Replicated pools.
    Replicated,
    /// Erasure-coded pools.
    Erasure,
    /// Replicated pools, multi-step-retry (Ceph 19 and later).
    MsrFirstn,
    /// Erasure-coded pools, multi-step-retry (Ceph 19 and later).
    MsrIndep,
    /// A number that Ceph never gave a meaning. Such a rule maps like [`RuleKind::Replicated`].
    Other(u8),
}

impl RuleKind {
    /// The kind of that number.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Replicated,
            3 => Self::Erasure,
            4 => Self::MsrFirstn,
            5 => Self::MsrIndep,
            other => Self::Other(other),
        }
    }

    /// Its number in binary maps.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Replicated => 1,
            Self::Erasure => 3,
            Self::MsrFirstn => 4,
            Self::MsrIndep => 5,
            Self::Other(other) => other,
        }
    }

    /// Its keyword in text maps; `None` for kinds without a meaning.
    #[must_use]
    pub fn word(self) -> Option<&'static str> {
        match self {
            Self::Replicated => Some("replicated"),
            Self::Erasure => Some("erasure"),
            Self::MsrFirstn => Some("msr_firstn"),
            Self::MsrIndep => Some("msr_indep"),
            Self::Other(_) => None,
        }
    }

    /// True for the two kinds that the multi-step-retry mapper runs.
    #[must_use]
    pub fn is_msr(self) -> bool {
        matches!(self, Self::MsrFirstn | Self::MsrIndep)
    }
}

/// One step of a rule. A rule works on a list of items, at first empty.
///
/// The numbers of the `Set` steps are signed because maps carry them so. `SetChooseTries` and
/// `SetChooseleafTries` have an effect only if the number is positive, the others unless it is
/// negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleStep {
    /// No effect.
    Noop,
    /// The list becomes this one item.
    Take(ItemId),
    /// Replaces every bucket of the list by `count` items of type `kind` below it. A count of 0
    /// means the width of the mapping, and a negative count means that much less. Empty slots close
    /// up.
    ChooseFirstn {
        /// Number of items.
        count: i32,
        /// Type of the items.
        kind: TypeId,
    },
    /// As [`RuleStep::ChooseFirstn`], but slots keep their position and may stay empty.
    ChooseIndep {
        /// Number of items.
        count: i32,
        /// Type of the items.
        kind: TypeId,
    },
    /// Chooses buckets of type `kind` and one device below each. The result is the devices.
    ChooseleafFirstn {
        /// Number of devices.
        count: i32,
        /// Type of the distinct buckets.
        kind: TypeId,
    },
    /// As [`RuleStep::ChooseleafFirstn`], but slots keep their position and may stay empty.
    ChooseleafIndep {
        /// Number of devices.
        count: i32,
        /// Type of the distinct buckets.
        kind: TypeId,
    },
    /// A level of a multi-step-retry rule; 0 means the width of the mapping.
    ChooseMsr {
        /// Number of items.
        count: i32,
        /// Type of the items.
        kind: TypeId,
    },
    /// Appends the list to the result, and empties the list.
    Emit,
    /// Attempts from the top, instead of the tunable.
    SetChooseTries(i32),
    /// Attempts for the leaf, instead of the tunables' number.
    SetChooseleafTries(i32),
    /// Overrides [`Tunables::choose_local_tries`](crate::Tunables::choose_local_tries).
    SetChooseLocalTries(i32),
    /// Overrides
    /// [`Tunables::choose_local_fallback_tries`](crate::Tunables::choose_local_fallback_tries).
    SetChooseLocalFallbackTries(i32),
    /// Overrides [`Tunables::chooseleaf_vary_r`](crate::Tunables::chooseleaf_vary_r).
    SetChooseleafVaryR(i32),
    /// Overrides [`Tunables::chooseleaf_stable`](crate::Tunables::chooseleaf_stable).
    SetChooseleafStable(i32),
    /// Overrides [`Tunables::msr_descents`](crate::Tunables::msr_descents).
    SetMsrDescents(i32),
    /// Overrides [`Tunables::msr_collision_tries`](crate::Tunables::msr_collision_tries).
    SetMsrCollisionTries(i32),
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its purpose.
    pub kind: RuleKind,
    /// The number of its set, which Ceph no longer uses: the rule's own number in all newer maps.
    pub ruleset: u8,
    /// Smallest width of the rule. Kept, but without a meaning since Ceph 17.
    pub min_size: u8,
    /// Greatest width of the rule. Kept, but without a meaning since Ceph 17.
    pub max_size: u8,
    /// Its steps, in order.
    pub steps: Vec<RuleStep>,
}

impl Rule {
    /// [`Rule::min_size`] of a rule that does not set it.
    pub const DEFAULT_MIN_SIZE: u8 = 1;
    /// [`Rule::max_size`] of a rule that does not set it.
    pub const DEFAULT_MAX_SIZE: u8 = 100;
}
