//! The names that the author of a map chose, and the classes of devices.

use std::collections::BTreeMap;

use crate::{BucketId, ItemId, RuleId, TypeId};

/// Names of types, items and rules. The mapper needs none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Types: "osd", "host", "rack", ...
    pub types: BTreeMap<TypeId, String>,
    /// Devices and buckets. A shadow bucket is called `NAME~CLASS`.
    pub items: BTreeMap<ItemId, String>,
    /// Rules.
    pub rules: BTreeMap<RuleId, String>,
}

/// The number of a class of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub i32);

/// Classes of devices (hdd, ssd, ...) and the *shadow trees* that stand for them.
///
/// `step take root class ssd` takes the shadow of `root`. The shadow is a separate bucket, with its
/// own number, which enters the draws; it holds only the devices of the class below `root`. So
/// shadows are ordinary buckets, and the mapper does not know classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Names of the classes.
    pub names: BTreeMap<ClassId, String>,
    /// The class of devices; shadow buckets are listed too.
    pub of_item: BTreeMap<ItemId, ClassId>,
    /// The shadows of a bucket, by class.
    pub shadows: BTreeMap<BucketId, BTreeMap<ClassId, BucketId>>,
}

impl Classes {
    /// The number of the class called `name`.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<ClassId> {
        self.names.iter().find(|(_, known)| *known == name).map(|(&id, _)| id)
    }

    /// The bucket and class that `shadow` stands for, if it is a shadow.
    #[must_use]
    pub fn original(&self, shadow: BucketId) -> Option<(BucketId, ClassId)> {
        self.shadows.iter().find_map(|(&bucket, of_class)| {
            of_class.iter().find(|(_, id)| **id == shadow).map(|(&class, _)| (bucket, class))
        })
    }
}
