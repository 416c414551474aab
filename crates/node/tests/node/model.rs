//! The permitted answers of a node: a model of one volume on it, kept by the volume's writer.
//!
//! Every attempt to write a shard has a number, its salt. The salt rises per shard and is part of
//! every block, so a block shows which attempt wrote it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fieldstone_proto::{SegmentId, ShardIndex};

pub type Key = (SegmentId, ShardIndex);

/// The model's state of a shard.
#[derive(Clone, Debug, Default)]
pub struct Shard {
    /// The last salt used, and the number of blocks of each attempt.
    pub last_salt: u64,
    pub blocks: BTreeMap<u64, u32>,
    /// The attempts whose header waited for the data.
    pub data_first: BTreeSet<u64>,
    /// The attempt whose completion was acknowledged last, if no doubt arose since.
    pub sealed: Option<u64>,
    /// The attempt that must survive everything but a deletion.
    pub synced: Option<u64>,
    /// Number of deletions requested so far.
    pub deletions: u64,
    /// A deletion was requested since `synced` was set.
    pub may_be_gone: bool,
    /// After the last start the shard was there and damaged, in a case that its writer permits.
    pub damaged: bool,
    /// The start found the shard open, or a write to it failed. The node does not know which of its
    /// blocks are written, so the test does not check reads of it.
    pub doubtful: bool,
    /// A write is in flight.
    pub busy: bool,
}

impl Shard {
    /// The attempt that must be there, in this version or a later one.
    pub fn must_survive(&self) -> Option<u64> {
        self.synced.filter(|_| !self.may_be_gone)
    }
}

/// A block's content: the ids of the block, then words computed from them.
pub fn block(key: Key, salt: u64, index: u32) -> Vec<u8> {
    let mut word = key.0.0 << 40 ^ u64::from(key.1.0) << 32 ^ salt << 8 ^ u64::from(index);
    let mut out = Vec::with_capacity(4096);
    out.extend_from_slice(&salt.to_le_bytes());
    while out.len() < 4096 {
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ 0x5bd1_e995;
        out.extend_from_slice(&word.to_le_bytes());
    }
    out
}

/// The blocks `first..end` of an attempt.
pub fn blocks(key: Key, salt: u64, first: u32, end: u32) -> Bytes {
    (first..end).flat_map(|index| block(key, salt, index)).collect::<Vec<u8>>().into()
}

/// The attempt that wrote `data`, which starts at block `first`. Panics if no attempt did.
pub fn salt_of(key: Key, shard: &Shard, first: u32, data: &[u8]) -> u64 {
    let salt = u64::from_le_bytes(data[..8].try_into().expect("at least one block"));
    assert!(shard.blocks.contains_key(&salt), "{key:?} was never written with salt {salt}");
    for (index, found) in (first..).zip(data.chunks(4096)) {
        assert!(found == block(key, salt, index), "wrong bytes in block {index} of {key:?}");
    }
    salt
}
