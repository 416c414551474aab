//! Features of images: what a client has to know before it may read or write one.

use std::fmt;

/// A set of features, as Ceph's bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

/// Bits and names of the features.
const NAMES: [(u64, &str); 12] = [
    (1, "layering"),
    (2, "striping"),
    (4, "exclusive-lock"),
    (8, "object-map"),
    (16, "fast-diff"),
    (32, "deep-flatten"),
    (64, "journaling"),
    (128, "data-pool"),
    (256, "operations"),
    (512, "migrating"),
    (1024, "non-primary"),
    (2048, "dirty-cache"),
];

impl Features {
    /// The image may have a parent.
    pub const LAYERING: Features = Features(1);
    /// Stripes may be smaller than objects.
    pub const STRIPING: Features = Features(2);
    /// One client at a time may write.
    pub const EXCLUSIVE_LOCK: Features = Features(4);
    /// There is a map of the objects that exist.
    pub const OBJECT_MAP: Features = Features(8);
    /// The object maps say what changed between snapshots.
    pub const FAST_DIFF: Features = Features(16);
    /// Flattening also detaches snapshots from the parent.
    pub const DEEP_FLATTEN: Features = Features(32);
    /// Writes go to a journal first.
    pub const JOURNALING: Features = Features(64);
    /// Data objects are in a pool of their own.
    pub const DATA_POOL: Features = Features(128);
    /// Kept by the OSDs: the image has something that old clients must not touch.
    pub const OPERATIONS: Features = Features(256);
    /// The image moves to another place.
    pub const MIGRATING: Features = Features(512);
    /// The image is a copy of an image of another cluster.
    pub const NON_PRIMARY: Features = Features(1024);
    /// A cache of another client has writes that the objects do not have.
    pub const DIRTY_CACHE: Features = Features(2048);

    /// The features of a new image unless told otherwise: layering, exclusive lock, object map,
    /// fast diff, deep flatten.
    pub const DEFAULT: Features = Features(61);

    /// Features that a user may ask for at creation.
    pub const CREATABLE: Features = Features(1 | 2 | 4 | 8 | 16 | 32 | 128);

    /// True if all of `others` are in the set.
    #[must_use]
    pub fn has(self, others: Features) -> bool {
        self.0 & others.0 == others.0
    }

    /// The union.
    #[must_use]
    pub fn with(self, others: Features) -> Features {
        Features(self.0 | others.0)
    }

    /// The features that are not in `others`.
    #[must_use]
    pub fn without(self, others: Features) -> Features {
        Features(self.0 & !others.0)
    }

    /// The bits that no name is known for.
    #[must_use]
    pub fn unknown(self) -> Features {
        NAMES.iter().fold(self, |rest, &(bit, _)| Features(rest.0 & !bit))
    }

    /// The feature of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Features> {
        NAMES.iter().find(|(_, known)| *known == name).map(|&(bit, _)| Features(bit))
    }

    /// Names of the features, without unknown ones.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        NAMES.iter().filter(|(bit, _)| self.0 & bit != 0).map(|&(_, name)| name).collect()
    }

    /// Adds what the features need, as Ceph does: fast diff needs an object map, and that needs the
    /// exclusive lock.
    #[must_use]
    pub fn completed(mut self) -> Features {
        if self.has(Self::FAST_DIFF) {
            self = self.with(Self::OBJECT_MAP);
        }
        if self.has(Self::OBJECT_MAP) {
            self = self.with(Self::EXCLUSIVE_LOCK);
        }
        self
    }

    /// Why this client does not open an image with these features: the name, and the reason.
    #[must_use]
    pub fn refusal(self, for_writing: bool) -> Option<(String, &'static str)> {
        const NEVER: [(Features, &str); 2] = [
            (
                Features::MIGRATING,
                "the image is being moved; finish or abort the migration with `rbd migration`",
            ),
            (
                Features::DIRTY_CACHE,
                "a persistent cache of another client has writes that only that client knows; \
                 open the image there and flush it",
            ),
        ];
        const NO_WRITES: [(Features, &str); 2] = [
            (
                Features::JOURNALING,
                "writes would bypass the journal, and mirrors would miss them; open the image \
                 read-only, or disable the feature with `rbd feature disable IMAGE journaling`",
            ),
            (
                Features::NON_PRIMARY,
                "the image mirrors another cluster's; open it read-only, or promote it with \
                 `rbd mirror image promote`",
            ),
        ];
        if self.unknown().0 != 0 {
            let reason = "this client does not know the feature, so it could damage the image";
            return Some((self.unknown().to_string(), reason));
        }
        let writes = if for_writing { &NO_WRITES[..] } else { &[] };
        NEVER
            .iter()
            .chain(writes)
            .find(|(feature, _)| self.has(*feature))
            .map(|(feature, reason)| (feature.to_string(), *reason))
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<String> = self.names().into_iter().map(str::to_owned).collect();
        let unknown = self.unknown();
        if unknown.0 != 0 {
            names.push(format!("unknown features {:#x}", unknown.0));
        }
        write!(f, "{}", names.join(","))
    }
}

/// The object map may be wrong. A bit of an image's flags.
pub const FLAG_OBJECT_MAP_INVALID: u64 = 1;
/// What the object maps say about changes may be wrong.
pub const FLAG_FAST_DIFF_INVALID: u64 = 2;

/// The image has clones of format 2. A bit of its operation features.
pub const OP_FEATURE_CLONE_PARENT: u64 = 1;
/// The image is a clone of format 2.
pub const OP_FEATURE_CLONE_CHILD: u64 = 2;
/// The image belongs to a group.
pub const OP_FEATURE_GROUP: u64 = 4;
/// The image has deleted snapshots that clones keep alive.
pub const OP_FEATURE_SNAP_TRASH: u64 = 8;
/// The operation features that this client knows.
pub const OP_FEATURES_KNOWN: u64 = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_features_are_ceph_s() {
        let names = Features::DEFAULT.names();
        assert_eq!(
            names,
            ["layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten"]
        );
        assert_eq!(Features::named("fast-diff"), Some(Features::FAST_DIFF));
        assert_eq!(Features::FAST_DIFF.completed(), Features(4 | 8 | 16));
        assert_eq!(Features::DEFAULT.refusal(true), None);
    }

    #[test]
    fn a_refusal_names_the_feature() {
        let journaling = Features::DEFAULT.with(Features::JOURNALING);
        assert_eq!(journaling.refusal(false), None);
        assert_eq!(journaling.refusal(true).expect("refused").0, "journaling");
        let unknown = Features(1 << 40).refusal(false).expect("refused");
        assert_eq!(unknown.0, "unknown features 0x10000000000");
        assert!(Features::MIGRATING.refusal(false).is_some());
    }
}
