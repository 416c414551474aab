//! Choosing one item of one bucket.
//!
//! **straw2**: every item draws a straw, and the best straw wins. An item's straw is
//! ln(u) / weight, where u is a hash of (x, item, r): an exponential race, in which changing one
//! weight moves data only to or from that item. In integers: the least floor(N(u) / weight) wins,
//! N(u) = 2^48 - crush_ln(u) > 0, the first item among equals; items of weight 0 never win unless
//! all have it, and then the first does.
//!
//! **Permutation**: r-th element of a pseudo-random permutation that ignores weights; the rarely
//! used local fallback of old tunables needs it for every algorithm.

use crate::ItemId;
use crate::hash::hash3;
use crate::ln::crush_ln;
use crate::map::{Algorithm, Bucket};

impl Bucket {
    /// The item drawn for input `x` and attempt `r`. The bucket is not empty.
    pub(crate) fn choose(&self, x: u32, r: u32) -> ItemId {
        match &self.algorithm {
            Algorithm::Straw2 { weights } => straw2(&self.items, weights, x, r),
        }
    }

    /// The r-th item, modulo the size, of a permutation that depends on `x` and the bucket's id.
    /// The bucket is not empty.
    pub(crate) fn choose_by_permutation(&self, x: u32, r: u32) -> ItemId {
        let size = self.items.len();
        let position = r as usize % size;
        let mut order: Vec<usize> = (0..size).collect();
        for at in 0..=position.min(size.saturating_sub(2)) {
            let offset = hash3(x, self.id.0 as u32, at as u32) as usize % (size - at);
            order.swap(at, at + offset);
        }
        self.items[order[position]]
    }
}

fn straw2(items: &[ItemId], weights: &[u32], x: u32, r: u32) -> ItemId {
    let mut winner = items[0];
    let mut shortest = u64::MAX;
    for (&item, &weight) in items.iter().zip(weights) {
        if weight == 0 {
            continue;
        }
        let u = hash3(x, item.0 as u32, r) as u16;
        let length = ((1 << 48) - crush_ln(u)) / u64::from(weight);
        if length < shortest {
            shortest = length;
            winner = item;
        }
    }
    winner
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BucketId, TypeId};

    fn bucket(weights: &[u32]) -> Bucket {
        Bucket {
            id: BucketId(-7),
            kind: TypeId(1),
            items: (0..weights.len() as i32).map(ItemId).collect(),
            algorithm: Algorithm::Straw2 { weights: weights.to_vec() },
        }
    }

    #[test]
    fn shares_follow_weights_and_zero_never_wins() {
        let bucket = bucket(&[0, 0x1_0000, 0x2_0000, 0, 0x5_0000]);
        let mut wins = [0u32; 5];
        for x in 0..80_000 {
            wins[bucket.choose(x, 0).0 as usize] += 1;
        }
        assert_eq!((wins[0], wins[3]), (0, 0));
        for (at, share) in [(1, 10_000), (2, 20_000), (4, 50_000)] {
            let error = wins[at].abs_diff(share);
            assert!(error < 600, "item {at} won {} times instead of about {share}", wins[at]);
        }
    }

    #[test]
    fn the_first_of_equal_straws_wins() {
        // Large weights make straws short, and equal ones common.
        let weight = 0x7fff_ffff;
        let bucket = bucket(&[weight; 2]);
        let straw =
            |x, item| ((1u64 << 48) - crush_ln(hash3(x, item, 5) as u16)) / u64::from(weight);
        let ties: Vec<u32> = (0..200_000).filter(|&x| straw(x, 0) == straw(x, 1)).collect();
        assert!(ties.len() > 1, "the test needs ties, found {}", ties.len());
        assert!(ties.iter().all(|&x| bucket.choose(x, 5) == ItemId(0)));
    }

    #[test]
    fn the_first_item_wins_when_all_weigh_nothing() {
        assert!((0..100).all(|x| bucket(&[0, 0, 0]).choose(x, x) == ItemId(0)));
    }

    #[test]
    fn growing_one_weight_moves_data_only_to_that_item() {
        let (before, after) =
            (bucket(&[0x1_0000; 4]), bucket(&[0x1_0000, 0x1_0000, 0x1_8000, 0x1_0000]));
        for x in 0..20_000 {
            let (old, new) = (before.choose(x, 3), after.choose(x, 3));
            assert!(new == old || new == ItemId(2));
        }
    }

    #[test]
    fn a_permutation_visits_every_item_once() {
        for size in 1..9 {
            let bucket = bucket(&vec![1; size]);
            for x in 0..50 {
                let mut items: Vec<i32> =
                    (0..size as u32).map(|r| bucket.choose_by_permutation(x, r).0).collect();
                assert_eq!(bucket.choose_by_permutation(x, size as u32).0, items[0]);
                items.sort_unstable();
                assert_eq!(items, (0..size as i32).collect::<Vec<_>>());
            }
        }
    }
}
