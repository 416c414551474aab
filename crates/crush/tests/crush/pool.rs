//! Placement in a pool: no avoidable holes, no node twice, shares by weight, and few moves when a
//! node leaves.

use fieldstone_crush::{NodeWeight, PoolMap, WEIGHT_ONE};
use proptest::prelude::*;

fn distinct(nodes: impl IntoIterator<Item = usize>) -> bool {
    let mut nodes: Vec<usize> = nodes.into_iter().collect();
    let count = nodes.len();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.len() == count
}

proptest! {
    #[test]
    fn every_position_is_filled_while_nodes_are_left(
        nodes in proptest::collection::vec((1u32..0x40_0000, 0usize..4), 0..40),
        key: u64,
        width in 0usize..45,
    ) {
        let weights: Vec<NodeWeight> =
            nodes.iter().map(|&(weight, _)| NodeWeight(weight)).collect();
        let reweights: Vec<u32> =
            nodes.iter().map(|&(_, kind)| [0, 0x4000, WEIGHT_ONE, WEIGHT_ONE][kind]).collect();
        let pool = PoolMap::new(&weights).unwrap();
        let usable = reweights.iter().filter(|&&reweight| reweight > 0).count();

        let shards = pool.place_shards(key, width, &reweights);
        prop_assert_eq!(shards.len(), width);
        prop_assert_eq!(shards.iter().flatten().count(), width.min(usable));
        prop_assert!(shards.iter().flatten().all(|&node| reweights[node] > 0));
        prop_assert!(distinct(shards.iter().flatten().copied()));

        let journal = pool.place_journal(key, width, &reweights);
        prop_assert_eq!(journal.len(), width.min(usable));
        prop_assert!(journal.iter().all(|&node| reweights[node] > 0));
        prop_assert!(distinct(journal));
    }
}

#[test]
fn shards_spread_by_weight_and_keep_their_place_when_a_node_leaves() {
    let weights: Vec<NodeWeight> = (0..12)
        .map(|node| NodeWeight(if node == 0 { WEIGHT_ONE / 2 } else { WEIGHT_ONE }))
        .collect();
    let pool = PoolMap::new(&weights).unwrap();
    let all = vec![WEIGHT_ONE; 12];
    let mut without_seven = all.clone();
    without_seven[7] = 0;
    let (mut held, mut moved) = ([0u32; 12], 0);
    const KEYS: u64 = 4000;
    for key in 0..KEYS {
        let (before, after) =
            (pool.place_shards(key, 6, &all), pool.place_shards(key, 6, &without_seven));
        for (old, new) in before.iter().zip(&after) {
            let (old, new) = (old.unwrap(), new.unwrap());
            held[old] += 1;
            assert_ne!(new, 7);
            moved += u32::from(old != 7 && old != new);
        }
    }
    // 24000 shards on 11.5 nodes' worth: about 2087 each, the half node somewhat more than half.
    assert!(held[1..].iter().all(|count| (1850..2300).contains(count)), "{held:?}");
    assert!((1000..1350).contains(&held[0]), "{held:?}");
    // Only secondary collisions move other shards: far fewer than the 21900 that a modulus would
    // move.
    assert!(moved < 900, "{moved} shards moved that did not have to");
}

#[test]
fn keys_differ_in_both_halves() {
    let pool = PoolMap::new(&[NodeWeight::ONE; 50]).unwrap();
    let all = vec![WEIGHT_ONE; 50];
    let place = |key| pool.place_shards(key, 6, &all);
    assert_ne!(place(1), place(2));
    assert_ne!(place(1), place(1 | 1 << 32));
    assert_eq!(place(77), place(77));
}
