//! The source of every random decision of the world.
//!
//! One seed names a run. Each component draws from its own stream, keyed by the seed, the
//! component's name and an index. So one more draw in one component changes no draw of any other: a
//! change in the disk model does not reshuffle the workload, and a failing seed stays comparable
//! during a bug hunt.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A component's stream of random numbers.
#[derive(Clone, Debug)]
pub struct RandomStream(ChaCha8Rng);

impl RandomStream {
    /// The stream of component `name` number `index` under `seed`.
    #[must_use]
    pub fn new(seed: u64, name: &str, index: u64) -> Self {
        let mut key = [0u8; 32];
        key[0..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&fnv(name.as_bytes()).to_le_bytes());
        key[16..24].copy_from_slice(&index.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// True in `per_mille` of a thousand cases.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.0.random_range(0..1000) < per_mille
    }

    /// A number of `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        if low >= high { low } else { self.0.random_range(low..=high) }
    }

    /// An index below `count`, which must not be zero.
    pub fn index(&mut self, count: usize) -> usize {
        self.0.random_range(0..count)
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// An index drawn with these weights, or `None` if all are zero.
    pub fn weighted(&mut self, weights: &[u32]) -> Option<usize> {
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        if total == 0 {
            return None;
        }
        let mut left = self.0.random_range(0..total);
        for (index, weight) in weights.iter().enumerate() {
            let weight = u64::from(*weight);
            if left < weight {
                return Some(index);
            }
            left -= weight;
        }
        None
    }

    /// A duration around `mean`, mostly shorter, sometimes several times longer.
    pub fn around(&mut self, mean: u64) -> u64 {
        let base = self.between(mean / 4 + 1, mean + mean / 4 + 1);
        if self.chance(40) { base * self.between(3, 12) } else { base }
    }

    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.0.random()
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.0.random_range(0..=end));
        }
    }
}

/// FNV-1a, for names and trace hashes.
#[must_use]
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_reproducible_and_independent() {
        let draw = |name, index| {
            let mut rng = RandomStream::new(7, name, index);
            (0..8).map(|_| rng.word()).collect::<Vec<_>>()
        };
        assert_eq!(draw("disk", 0), draw("disk", 0));
        assert_ne!(draw("disk", 0), draw("disk", 1));
        assert_ne!(draw("disk", 0), draw("network", 0));
    }

    #[test]
    fn weights_and_chances_are_respected() {
        let mut rng = RandomStream::new(1, "test", 0);
        let mut counts = [0u32; 3];
        for _ in 0..4000 {
            counts[rng.weighted(&[1, 0, 3]).expect("weights are not all zero")] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((800..1200).contains(&counts[0]), "{counts:?}");
        assert_eq!(rng.weighted(&[0, 0]), None);
        assert!(!rng.chance(0) && rng.chance(1000));
    }
}
