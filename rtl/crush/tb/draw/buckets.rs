//! Random buckets and maps.

use std::collections::BTreeMap;

use fieldstone_crush::{
    AlgorithmKind, Bucket, BucketId, ChooseArg, ChooseArgs, ItemId, Map, Parts, TypeId,
};
use fieldstone_verilate::bench::Dice;
use rand::Rng;

/// Largest weight that the device takes.
const MOST: u32 = (1 << 31) - 1;

/// Weights of one of many kinds: equal, heavy (straws tie), with zeros, all zero, random.
pub fn weights(dice: &mut Dice, size: usize) -> Vec<u32> {
    let temper = dice.random_range(0..7);
    let equal = dice.random_range(1..=MOST);
    let weight = |_| match temper {
        0 => equal,
        1 => MOST - dice.random_range(0..4),
        2 => dice.random_range(0..3) * 0x1_0000,
        3 => 0,
        4 => dice.random_range(1..8),
        5 => 1 << dice.random_range(0..31),
        _ => dice.random_range(0..=MOST),
    };
    (0..size).map(weight).collect()
}

/// As many items as the algorithm takes, at most `most`: often few, sometimes about a row.
pub fn size(dice: &mut Dice, algorithm: AlgorithmKind, most: usize) -> usize {
    let most = if algorithm == AlgorithmKind::Tree { most.min(64) } else { most };
    match dice.random_range(0..3) {
        0 => dice.random_range(1..=most.min(9)),
        1 => dice.random_range(most.min(14)..=most.min(18)),
        _ => dice.random_range(1..=most),
    }
}

/// A bucket with these items.
pub fn bucket(
    dice: &mut Dice,
    id: BucketId,
    kind: TypeId,
    algorithm: AlgorithmKind,
    items: &[ItemId],
) -> Bucket {
    let weights = weights(dice, items.len());
    Bucket::new(id, kind, algorithm, 1, items.iter().copied().zip(weights))
}

/// A map of many buckets of all algorithms; some are empty. Most items are devices; the others are
/// buckets with lower numbers. Every tenth bucket number is not used.
pub fn map(dice: &mut Dice, buckets: i32, most_items: usize) -> Map {
    let mut parts = Parts { min_devices: 3000, ..Parts::default() };
    for number in 0..buckets {
        if number % 10 == 9 {
            continue;
        }
        let algorithm = AlgorithmKind::ALL[number as usize % 5];
        let items = match number % 17 {
            16 => 0,
            _ => size(dice, algorithm, most_items),
        };
        let item = |_| match dice.random_range(0..4) {
            0 if number >= 10 => ItemId(-1 - dice.random_range(number / 10 - 1..number / 10) * 10),
            _ => ItemId(dice.random_range(0..3000)),
        };
        let items: Vec<ItemId> = (0..items).map(item).collect();
        let kind = TypeId(dice.random_range(1..256));
        parts.buckets.push(bucket(dice, BucketId(-1 - number), kind, algorithm, &items));
    }
    Map::new(parts).expect("the parts are sound")
}

/// Weight sets and other ids for some of the buckets.
pub fn choose_args(dice: &mut Dice, map: &Map) -> ChooseArgs {
    let mut buckets = BTreeMap::new();
    for bucket in map.buckets().filter(|bucket| bucket.algorithm.kind() == AlgorithmKind::Straw2) {
        let items = bucket.items.len();
        let sets = dice.random_range(0..4);
        let weight_sets = (0..sets).map(|_| weights(dice, items)).collect();
        let ids =
            dice.random_bool(0.5).then(|| (0..items).map(|_| ItemId(dice.random())).collect());
        buckets.insert(bucket.id, ChooseArg { weight_sets, ids });
    }
    ChooseArgs { buckets }
}
