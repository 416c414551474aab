//! Maps for benches: random ones, and those of the CRUSH crate's golden tests.

use std::path::PathBuf;

use fieldstone_crush::{
    AlgorithmKind, BucketId, ItemId, Map, MapBuilder, RuleId, RuleStep, Tunables, TypeId,
    WEIGHT_ONE, text,
};
use fieldstone_verilate::bench::SeededRng;
use rand::Rng;
use rand::seq::IndexedRandom;

/// One of `choices`.
pub fn pick<T: Copy>(rng: &mut SeededRng, choices: &[T]) -> T {
    *choices.choose(rng).expect("there is a choice")
}

fn weight(rng: &mut SeededRng) -> u32 {
    match rng.random_range(0..8) {
        0 => 0,
        1 => rng.random_range(0..8),
        2 => rng.random_range(0..1 << 31),
        3 => WEIGHT_ONE,
        _ => rng.random_range(0..16 << 16),
    }
}

/// Tunables that the device supports: those of bobtail and later, and combinations of them.
///
/// Without `chooseleaf_descend_once`, the tries of leaves multiply with the tries above them. Then
/// the tries are few, so that a mapping that cannot be filled does not take millions of cycles.
fn tunables(rng: &mut SeededRng) -> Tunables {
    let descends_once = !rng.random_bool(0.2);
    let tries: &[u32] = if descends_once { &[0, 1, 3, 7, 7, 19, 50] } else { &[0, 1, 3, 7] };
    Tunables {
        choose_total_tries: pick(rng, tries),
        chooseleaf_descend_once: descends_once,
        chooseleaf_vary_r: pick(rng, &[0, 1, 1, 1, 2, 3, 4]),
        chooseleaf_stable: !rng.random_bool(0.3),
        straw_calc_version: rng.random_range(0..2),
        ..Tunables::JEWEL
    }
}

/// The algorithms of a random map: they need at most one module of the partition.
pub fn algorithms(rng: &mut SeededRng) -> Vec<AlgorithmKind> {
    let fixed = [AlgorithmKind::Straw2, AlgorithmKind::Straw];
    let module = AlgorithmKind::ALL[rng.random_range(0..3)];
    match rng.random_range(0..3) {
        0 => fixed.to_vec(),
        1 => vec![module],
        _ => [fixed.to_vec(), vec![module]].concat(),
    }
}

/// A map of one to five levels. Some children are devices on a level of buckets, some buckets are
/// empty, some children are shared, and most maps are too small for some of their rules.
pub fn random(rng: &mut SeededRng, algorithms: &[AlgorithmKind]) -> Map {
    let mut builder = MapBuilder::new();
    let tunables = tunables(rng);
    builder.tunables(tunables);
    let levels = rng.random_range(1..=5u16);
    let uses_shared = rng.random_bool(0.5);
    let equal = rng.random_bool(0.3);
    let (mut next_bucket, mut next_osd) = (-1, 0);
    let mut below: Vec<(ItemId, u32)> = Vec::new();
    for level in 1..=levels {
        let buckets =
            if level == levels { 1 } else { rng.random_range(1..=12 / usize::from(level) + 1) };
        let most = pick(rng, &[2, 5, 8, 20]);
        let mut made = Vec::new();
        for _ in 0..buckets {
            let id = BucketId(next_bucket);
            next_bucket -= 1;
            let mut items: Vec<(ItemId, u32)> = Vec::new();
            let len = if rng.random_bool(0.05) { 0 } else { rng.random_range(1..=most) };
            for _ in 0..len {
                let item = if below.is_empty() || uses_shared && rng.random_bool(0.05) {
                    next_osd += 1;
                    (ItemId(next_osd - 1), weight(rng))
                } else {
                    pick(rng, &below)
                };
                items.push(if equal { (item.0, WEIGHT_ONE) } else { item });
            }
            // A draw from a tree with only zero weights leads nowhere.
            let mut algorithm = pick(rng, algorithms);
            if algorithm == AlgorithmKind::Tree && items.iter().all(|(_, weight)| *weight == 0) {
                algorithm = pick(rng, &[AlgorithmKind::Straw2, AlgorithmKind::Tree]);
            }
            builder.bucket(id, TypeId(level), algorithm, items);
            made.push((ItemId::from(id), weight(rng).max(1)));
        }
        // Most buckets of the level above hold this level's buckets; some skip a level.
        if !uses_shared || level == 1 {
            below = made;
        } else {
            below.extend(made);
        }
    }
    let root = ItemId(next_bucket + 1);
    for id in 0..6 {
        let most_tries = if tunables.chooseleaf_descend_once { 60 } else { 8 };
        let steps = rule(rng, root, levels, &below, most_tries);
        builder.rule(RuleId(id), steps);
    }
    builder.build().expect("the map is valid")
}

fn rule(
    rng: &mut SeededRng,
    root: ItemId,
    levels: u16,
    below: &[(ItemId, u32)],
    most_tries: i32,
) -> Vec<RuleStep> {
    let mut steps = Vec::new();
    if rng.random_bool(0.3) {
        steps.push(RuleStep::SetChooseTries(pick(rng, &[-1, 0, 1, 2, 4, 8, most_tries])));
    }
    if rng.random_bool(0.3) {
        steps.push(RuleStep::SetChooseleafTries(pick(rng, &[0, 1, 2, 5])));
    }
    if rng.random_bool(0.2) {
        steps.push(RuleStep::SetChooseleafStable(rng.random_range(-1..2)));
        steps.push(RuleStep::SetChooseleafVaryR(rng.random_range(-1..5)));
    }
    for _ in 0..=rng.random_range(0..3) {
        let take = if rng.random_bool(0.1) { pick(rng, below).0 } else { root };
        steps.push(RuleStep::Take(take));
        for _ in 0..pick(rng, &[0, 0, 1, 1, 2]) {
            let count = rng.random_range(0..4);
            let kind = TypeId(rng.random_range(1..=levels));
            steps.push(if rng.random_bool(0.5) {
                RuleStep::ChooseFirstn { count, kind }
            } else {
                RuleStep::ChooseIndep { count, kind }
            });
        }
        let count = pick(rng, &[0, 0, 0, 1, 2, 3, 8, 31, -1, -3]);
        let kind = TypeId(rng.random_range(0..=levels));
        match rng.random_range(0..9) {
            0 | 1 => steps.push(RuleStep::ChooseFirstn { count, kind: TypeId::DEVICE }),
            2 | 3 => steps.push(RuleStep::ChooseIndep { count, kind: TypeId::DEVICE }),
            4 | 5 => steps.push(RuleStep::ChooseleafFirstn { count, kind }),
            6 | 7 => steps.push(RuleStep::ChooseleafIndep { count, kind }),
            _ => {}
        }
        steps.push(RuleStep::Emit);
    }
    steps
}

/// Reweights of all kinds; sometimes the list is shorter than the number of devices.
pub fn reweights(rng: &mut SeededRng, map: &Map) -> Vec<u32> {
    let style = rng.random_range(0..5);
    let mut reweights: Vec<u32> = (0..map.max_devices())
        .map(|_| match (style, rng.random_range(0..5)) {
            (0, _) => WEIGHT_ONE,
            (1, 0) | (3, 1) => 0,
            (2.., 0) => rng.random_range(0..WEIGHT_ONE),
            (4, 1) => rng.random_range(1..1 << 20),
            _ => WEIGHT_ONE,
        })
        .collect();
    if rng.random_bool(0.1) {
        reweights.truncate(reweights.len() / 2);
    }
    reweights
}

/// The maps of the CRUSH crate's golden tests, with their names.
pub fn golden() -> Vec<(String, Map)> {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../crates/crush/tests/data/maps");
    let mut maps: Vec<(String, Map)> = std::fs::read_dir(&folder)
        .expect("the crate has its data")
        .map(|entry| {
            let path = entry.expect("a file").path();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).expect("a readable file");
            let map = text::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            (name, map)
        })
        .collect();
    maps.sort_by(|a, b| a.0.cmp(&b.0));
    maps
}
