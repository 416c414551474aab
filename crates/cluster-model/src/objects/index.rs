//! Finds objects by the seed of their placement, which each request carries: so that a plain read
//! or write needs no ordered look-up and no name of its own.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use fieldstone_crush::osdmap::StringHash;
use smallvec::{SmallVec, smallvec};

use super::pool::ObjectKey;

/// The seeds are hashes already.
#[derive(Default)]
pub(super) struct SeedHasher(u64);

impl Hasher for SeedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, seed: u32) {
        // The table takes the highest and the lowest bits.
        self.0 = (self.0 ^ u64::from(seed)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Slots of objects by seed. Several objects may have one seed.
pub(super) struct Index {
    hash: StringHash,
    slots: HashMap<u32, SmallVec<[usize; 2]>, BuildHasherDefault<SeedHasher>>,
}

impl Index {
    pub(super) fn new(hash: StringHash) -> Self {
        Self { hash, slots: HashMap::default() }
    }

    pub(super) fn hash(&self) -> StringHash {
        self.hash
    }

    /// The seed of an object of this namespace, key and name.
    pub(super) fn seed(&self, namespace: &[u8], key: &[u8], name: &[u8]) -> u32 {
        self.hash.seed(namespace, if key.is_empty() { name } else { key })
    }

    fn seed_of(&self, (namespace, key, name): &ObjectKey) -> u32 {
        self.seed(namespace.as_bytes(), key.as_bytes(), name.as_bytes())
    }

    pub(super) fn insert(&mut self, key: &ObjectKey, slot: usize) {
        let seed = self.seed_of(key);
        self.slots.entry(seed).or_insert_with(|| smallvec![]).push(slot);
    }

    pub(super) fn remove(&mut self, key: &ObjectKey, slot: usize) {
        let seed = self.seed_of(key);
        if let Some(slots) = self.slots.get_mut(&seed) {
            slots.retain(|kept| *kept != slot);
            if slots.is_empty() {
                self.slots.remove(&seed);
            }
        }
    }

    /// The slots of the objects with this seed.
    pub(super) fn with_seed(&self, seed: u32) -> &[usize] {
        self.slots.get(&seed).map_or(&[], SmallVec::as_slice)
    }
}
