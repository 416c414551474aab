//! **straw2**: every item draws a straw, and the best straw wins. An item's straw is ln(u) /
//! weight, where u is a hash of (x, item, r). This is an exponential race, in which a change of one
//! weight moves data only to or from that item. In integers: the smallest floor(N(u) / weight)
//! wins, N(u) = 2^48 - crush_ln(u) > 0, and the first item among equals. Items of weight 0 win only
//! if all items have it; then the first wins.
//!
//! **Trap: weights of 32768.0 and more** (2^31 in fixed point). Ceph first read them as unsigned.
//! Current releases (16 and 20 were tried) read them as signed numbers, so such an item is longer
//! than every other straw and wins every draw against lighter ones. A root with a subtree of more
//! than 32 PiB (in the usual unit of 1.0 per TiB) is such a map. This file follows current Ceph,
//! because its purpose is agreement with clusters. [`MapBuilder`](crate::MapBuilder), which makes
//! Fieldstone's own maps, refuses such weights.

use crate::ItemId;
use crate::hash::hash3;
use crate::ln::crush_ln;

/// The smallest weight that Ceph reads as negative.
pub const FIRST_SIGNED_WEIGHT: u32 = 1 << 31;

/// The index of the drawn item. `ids`, which are hashed, and `weights` are equally long and not
/// empty.
pub(crate) fn choose(ids: &[ItemId], weights: &[u32], x: u32, r: u32) -> usize {
    let mut winner = 0;
    let mut longest = i64::MIN;
    for (index, (&id, &weight)) in ids.iter().zip(weights).enumerate() {
        // Straws as in Ceph: all are negative, and the greatest wins.
        let straw = if weight == 0 {
            i64::MIN
        } else {
            let u = hash3(x, id.0 as u32, r) as u16;
            (crush_ln(u) as i64 - (1 << 48)) / i64::from(weight as i32)
        };
        if straw > longest {
            longest = straw;
            winner = index;
        }
    }
    winner
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(weights: &[u32], x: u32, r: u32) -> usize {
        let ids: Vec<ItemId> = (0..weights.len() as i32).map(ItemId).collect();
        choose(&ids, weights, x, r)
    }

    #[test]
    fn shares_follow_weights_and_zero_never_wins() {
        let mut wins = [0u32; 5];
        for x in 0..80_000 {
            wins[draw(&[0, 0x1_0000, 0x2_0000, 0, 0x5_0000], x, 0)] += 1;
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
        let straw =
            |x, item| ((1u64 << 48) - crush_ln(hash3(x, item, 5) as u16)) / u64::from(weight);
        let ties: Vec<u32> = (0..200_000).filter(|&x| straw(x, 0) == straw(x, 1)).collect();
        assert!(ties.len() > 1, "the test needs ties, found {}", ties.len());
        assert!(ties.iter().all(|&x| draw(&[weight; 2], x, 5) == 0));
    }

    #[test]
    fn the_first_item_wins_when_all_weigh_nothing() {
        assert!((0..100).all(|x| draw(&[0, 0, 0], x, x) == 0));
    }

    #[test]
    fn a_weight_with_its_top_bit_set_always_wins() {
        assert!(
            (0..1000).all(|x| draw(&[0x7fff_0000, FIRST_SIGNED_WEIGHT, 0x7fff_0000], x, 0) == 1)
        );
    }

    #[test]
    fn growing_one_weight_moves_data_only_to_that_item() {
        for x in 0..20_000 {
            let before = draw(&[0x1_0000; 4], x, 3);
            let after = draw(&[0x1_0000, 0x1_0000, 0x1_8000, 0x1_0000], x, 3);
            assert!(after == before || after == 2);
        }
    }
}
