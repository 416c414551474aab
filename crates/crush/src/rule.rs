//! Rules as data: what a rule does, step by step.

use crate::{ItemId, TypeId};

/// What a rule is for. The number is Ceph's; MSR rules run by a mapper of their own.
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

    /// Its word in text maps; kinds without a meaning have none.
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
/// The numbers of the `Set` steps are signed because maps carry them so: the two `Tries` of
/// `SetChooseTries` and `SetChooseleafTries` count only when positive, the others unless negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleStep {
    /// Nothing.
    Noop,
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
    /// A level of a multi-step-retry rule; 0 means the width of the mapping.
    ChooseMsr {
        /// How many.
        count: i32,
        /// Of which type.
        kind: TypeId,
    },
    /// The list is appended to the result and emptied.
    Emit,
    /// Attempts from the top, instead of the tunable.
    SetChooseTries(i32),
    /// Attempts for the leaf, instead of what the tunables imply.
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
    /// What it is for.
    pub kind: RuleKind,
    /// The number of its set, a notion that Ceph gave up: the rule's own number in all newer maps.
    pub ruleset: u8,
    /// Least width it was written for. Kept, but without a meaning since Ceph 17.
    pub min_size: u8,
    /// Greatest width it was written for. Kept, but without a meaning since Ceph 17.
    pub max_size: u8,
    /// Its steps, in order.
    pub steps: Vec<RuleStep>,
}

impl Rule {
    /// [`Rule::min_size`] where nothing is said.
    pub const DEFAULT_MIN_SIZE: u8 = 1;
    /// [`Rule::max_size`] where nothing is said.
    pub const DEFAULT_MAX_SIZE: u8 = 100;
}
