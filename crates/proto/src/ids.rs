//! A newtype for every id, so that code cannot mix two of them up.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

id!(
    /// A pool: a set of nodes that were created together. Random.
    PoolId(u128), "{:032x}");
id!(
    /// A volume of a pool. Random.
    VolumeId(u128), "{:032x}");
id!(
    /// A node's place in its pool, from 0.
    NodeIndex(u16), "node.{}");
id!(
    /// Counts the writers of a volume: each opening raises it, and nodes refuse lower ones.
    Epoch(u64), "{}");
id!(
    /// Numbers the journals of a volume. The volume starts a new one at each opening and node
    /// failure.
    JournalGen(u64), "{}");

impl JournalGen {
    /// The generation after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

id!(
    /// A byte position in a volume's log, never reused. The journal ring stores the byte at the
    /// position modulo the ring's size.
    Lsn(u64), "{}");
id!(
    /// A segment of a volume: k data and m parity shards, coded together. Numbered upwards from 1.
    SegmentId(u64), "{}");
id!(
    /// The number of a shard in its segment: 0..k are data, k..k+m parity.
    ShardIndex(u8), "{}");

impl Lsn {
    /// The position `len_bytes` further on.
    #[must_use]
    pub fn plus(self, len_bytes: u64) -> Lsn {
        Lsn(self.0 + len_bytes)
    }
}
