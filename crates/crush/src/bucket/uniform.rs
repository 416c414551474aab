//! **Uniform**: the r-th element of a pseudo-random permutation of the items. Weights do not
//! matter. A choice does not read the items; but a change of their number changes the whole
//! permutation.
//!
//! The permutation is the shuffle of Fisher and Yates, up to the needed step. Step p swaps position
//! p with position p + hash(x, bucket, p) mod (size - p), and no later step changes position p.
//! Ceph keeps the shuffled array between calls. This file needs no array, because it follows one
//! position backwards: the item at position r after step r came from the position that step r
//! swapped with, and each earlier step moved the item only if that step had swapped this position,
//! too.
//!
//! With old tunables, buckets of every algorithm use this permutation after many collisions.

use crate::BucketId;
use crate::hash::hash3;

/// The index of the drawn item; `size` is not 0.
pub(crate) fn choose(id: BucketId, size: u32, x: u32, r: u32) -> u32 {
    let last = r % size;
    let partner = |step: u32| step + hash3(x, id.0 as u32, step) % (size - step);
    let mut position = partner(last);
    for step in (0..last).rev() {
        if position == partner(step) {
            position = step;
        }
    }
    position
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The usual form of the shuffle.
    fn by_shuffling(id: BucketId, size: u32, x: u32, r: u32) -> u32 {
        let mut order: Vec<u32> = (0..size).collect();
        for step in 0..=r % size {
            let offset = hash3(x, id.0 as u32, step) % (size - step);
            order.swap(step as usize, (step + offset) as usize);
        }
        order[(r % size) as usize]
    }

    #[test]
    fn following_one_position_back_gives_what_the_shuffle_gives() {
        for size in 1..40 {
            for x in 0..50 {
                for r in 0..2 * size {
                    let id = BucketId(-1 - (x % 7) as i32);
                    assert_eq!(choose(id, size, x, r), by_shuffling(id, size, x, r));
                }
            }
        }
    }

    #[test]
    fn a_permutation_visits_every_item_once() {
        for size in 1..20 {
            for x in 0..50 {
                let mut items: Vec<u32> =
                    (0..size).map(|r| choose(BucketId(-7), size, x, r)).collect();
                items.sort_unstable();
                assert!(items.into_iter().eq(0..size));
            }
        }
    }
}
