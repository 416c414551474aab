//! Random buckets and maps.

use std::collections::BTreeMap;

use fieldstone_crush::{
    AlgorithmKind, Bucket, BucketId, ChooseArg, ChooseArgs, ItemId, Map, Parts, TypeId,
};
use fieldstone_verilate::bench::SeededRng;
use rand::Rng;

/// Largest weight that the device takes.
const MOST: u32 = (1 << 31) - 1;

/// Weights of one of many kinds: equal, heavy (straws tie), with zeros, all zero, random.
pub fn weights(rng: &mut SeededRng, size: usize) -> Vec<u32> {
    let temper = rng.random_range(0..7);
    let equal = rng.random_range(1..=MOST);
    let weight = |_| match temper {
        0 => equal,
        1 => MOST - rng.random_range(0..4),
        2 => rng.random_range(0..3) * 0x1_0000,
        3 => 0,
        4 => rng.random_range(1..8),
        5 => 1 << rng.random_range(0..31),
        _ => rng.random_range(0..=MOST),
    };
    (0..size).map(weight).collect()
}

/// As many items as the algorithm takes, at most `most`: often few, sometimes about a row.
pub fn size(rng: &mut SeededRng, algorithm: AlgorithmKind, most: usize) -> usize {
    let most = if algorithm == AlgorithmKind::Tree { most.min(64) } else { most };
    match rng.random_range(0..3) {
        0 => rng.random_range(1..=most.min(9)),
        1 => rng.random_range(most.min(14)..=most.min(18)),
        _ => rng.random_range(1..=most),
    }
}

/// A bucket with these items.
pub fn bucket(
    rng: &mut SeededRng,
    id: BucketId,
    kind: TypeId,
    algorithm: AlgorithmKind,
    items: &[ItemId],
) -> Bucket {
    let weights = weights(rng, items.len());
    Bucket::new(id, kind, algorithm, 1, items.iter().copied().zip(weights))
}

/// A map of many buckets of all algorithms; some are empty. Most items are devices; the others are
/// buckets with lower numbers. Every tenth bucket number is not used.
pub fn map(rng: &mut SeededRng, buckets: i32, most_items: usize) -> Map {
    let mut parts = Parts { min_devices: 3000, ..Parts::default() };
    for number in 0..buckets {
        if number % 10 == 9 {
            continue;
        }
        let algorithm = AlgorithmKind::ALL[number as usize % 5];
        let items = match number % 17 {
            16 => 0,
            _ => size(rng, algorithm, most_items),
        };
        let item = |_| match rng.random_range(0..4) {
            0 if number >= 10 => ItemId(-1 - rng.random_range(number / 10 - 1..number / 10) * 10),
            _ => ItemId(rng.random_range(0..3000)),
        };
        let items: Vec<ItemId> = (0..items).map(item).collect();
        let kind = TypeId(rng.random_range(1..256));
        parts.buckets.push(bucket(rng, BucketId(-1 - number), kind, algorithm, &items));
    }
    Map::new(parts).expect("the parts are sound")
}

/// Weight sets and other ids for some of the buckets.
pub fn choose_args(rng: &mut SeededRng, map: &Map) -> ChooseArgs {
    let mut buckets = BTreeMap::new();
    for bucket in map.buckets().filter(|bucket| bucket.algorithm.kind() == AlgorithmKind::Straw2) {
        let items = bucket.items.len();
        let sets = rng.random_range(0..4);
        let weight_sets = (0..sets).map(|_| weights(rng, items)).collect();
        let ids = rng.random_bool(0.5).then(|| (0..items).map(|_| ItemId(rng.random())).collect());
        buckets.insert(bucket.id, ChooseArg { weight_sets, ids });
    }
    ChooseArgs { buckets }
}
