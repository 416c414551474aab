//! CRUSH computes where data lives, instead of looking it up. Bit-exact with Ceph.
//!
//! A [`Map`] is a tree of weighted *buckets* (root, racks, hosts) with devices (OSDs) as leaves,
//! and *rules* that walk the tree. For an input x, a rule draws pseudo-random items bucket by
//! bucket until it has the wanted number of distinct devices. Every client that has the map
//! computes the same answer. When a device leaves, little other data moves.
//!
//! A draw is retried when it collides with an earlier one or hits a device that is out. The number
//! of retries, and the numbers that they hash, are part of the result, so this crate follows Ceph's
//! mapper step by step. The `mapper` module describes it in full.
//!
//! All weights are 16.16 fixed point: 0x10000 is 1.0. In a bucket, weights are shares of the data.
//! In the `weights` argument of a mapping, they are *reweights*: the chance, out of 1.0, that a
//! device takes an input that selects it; 0 means out.
//!
//! | module      | idea |
//! |-------------|------|
//! | [`hash`]    | the rjenkins1 integer hash |
//! | [`ln`]      | the fixed-point logarithm that straw2 draws with |
//! | [`bucket`]  | the choice of one item of one bucket: uniform, list, tree, straw, straw2 |
//! | [`map`]     | the map as data, immutable once it is made |
//! | [`rule`]    | rules as data |
//! | [`tunables`] | knobs whose defaults changed over Ceph's releases |
//! | [`choose_args`] | weight sets |
//! | [`names`]   | names of types, items and rules, and the classes of devices |
//! | [`check`]   | bounds, and the checks that let the mapper trust a map |
//! | [`builder`] | builds maps in code |
//! | [`binary`]  | maps as Ceph stores them |
//! | [`text`]    | maps as people write them |
//! | [`fuzz`]    | the properties of the formats, for any input |
//! | `derived_cache` | cache of data derived from a map |
//! | `shadow`    | the trees that stand for classes of devices |
//! | `rule_ref`  | a rule, ready to map inputs |
//! | `mapper`    | runs rules: firstn and indep |
//! | `msr`       | runs multi-step-retry rules |
//! | `batch`     | the same for many inputs at once, in vectors |
//! | [`osdmap`]  | a cluster's pools and devices; from object names to devices |
//! | [`diff`]    | the data that moves when a map changes |
//! | [`balance`] | spreads placement groups evenly, by upmaps |
//! | `reach`     | the devices that a rule can reach, and which of them can replace each other |
//! | [`tester`]  | rules on ranges of inputs, counted and printed as crushtool does |
//! | [`pool`]    | the flat map of a pool's own nodes, and placement without holes |

pub mod balance;
mod batch;
pub mod binary;
pub mod bucket;
pub mod builder;
pub mod check;
pub mod choose_args;
mod derived_cache;
pub mod diff;
pub mod fuzz;
pub mod hash;
mod ll_table;
pub mod ln;
pub mod map;
mod mapper;
mod msr;
pub mod names;
pub mod osdmap;
pub mod pool;
mod reach;
mod rows;
pub mod rule;
mod rule_ref;
mod shadow;
pub mod tester;
pub mod text;
mod tries;
pub mod tunables;

use std::fmt;
use std::ops::Deref;

pub use batch::Kernel;
pub use bucket::{Algorithm, AlgorithmKind, Bucket};
pub use builder::MapBuilder;
pub use check::BuildError;
pub use choose_args::{ChooseArg, ChooseArgs, ChooseArgsId};
pub use map::{Map, Parts};
pub use names::{ClassId, Classes, Names};
pub use pool::{NodeWeight, PoolMap};
pub use rows::Rows;
pub use rule::{Rule, RuleKind, RuleStep};
pub use rule_ref::RuleRef;
use thiserror::Error;
pub use tries::TriesHistogram;
pub use tunables::Tunables;

/// 1.0 as a 16.16 fixed-point weight: a device that is fully in.
pub const WEIGHT_ONE: u32 = 0x1_0000;

/// A device: an object storage daemon in Ceph, a node in a Fieldstone pool. Never negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OsdId(pub u32);

/// A bucket. Always negative, as in Ceph's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketId(pub i32);

/// A device or a bucket, in the numbering of maps: devices from 0 up, buckets from -1 down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(pub i32);

impl ItemId {
    /// An empty position. No map has such an item.
    pub const NONE: Self = Self(0x7fff_ffff);

    /// The device, if it is one.
    #[must_use]
    pub fn osd(self) -> Option<OsdId> {
        u32::try_from(self.0).ok().map(OsdId)
    }

    /// The bucket, if it is one.
    #[must_use]
    pub fn bucket(self) -> Option<BucketId> {
        (self.0 < 0).then_some(BucketId(self.0))
    }
}

impl From<OsdId> for ItemId {
    /// Ids past `i32::MAX` (which no map accepts) become an id that no map contains.
    fn from(osd: OsdId) -> Self {
        Self(i32::try_from(osd.0).unwrap_or(i32::MAX))
    }
}

impl From<BucketId> for ItemId {
    fn from(bucket: BucketId) -> Self {
        Self(bucket.0)
    }
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.osd() {
            Some(osd) => write!(f, "device {}", osd.0),
            None => write!(f, "bucket {}", self.0),
        }
    }
}

/// The type of an item: 0 is a device. The map's author numbers hosts, racks and roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u16);

impl TypeId {
    /// The type of all devices.
    pub const DEVICE: Self = Self(0);
}

/// The number of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u32);

/// An error of a look-up in a map.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CrushError {
    /// No rule of that number.
    #[error("the map has no rule {}", .0.0)]
    NoSuchRule(RuleId),
}

/// The devices of one mapping. With `firstn` rules the list is compact and may be shorter than the
/// width. With `indep` rules every position has a meaning, and an empty position is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Osds(pub Vec<Option<OsdId>>);

impl Deref for Osds {
    type Target = [Option<OsdId>];
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
