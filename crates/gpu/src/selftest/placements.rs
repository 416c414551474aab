//! Random placement jobs: maps of straw2 buckets, rules, reweights and inputs.

use std::sync::Arc;

use fieldstone_accel::{Job, JobOutput};
use fieldstone_crush::{
    BucketId, ItemId, Kernel, Map, MapBuilder, Osds, RuleId, RuleStep, Tunables, TypeId, WEIGHT_ONE,
};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use crate::place::MAX_WIDTH;

const RULE: RuleId = RuleId(0);

/// A job of at most this many inputs.
pub fn job(rng: &mut ChaCha8Rng, inputs_max: usize) -> Job {
    let map = map(rng);
    let weights = (0..map.max_devices()).map(|_| match rng.random_range(0..8) {
        0 => 0,
        1 => rng.random_range(0..=WEIGHT_ONE),
        _ => WEIGHT_ONE,
    });
    let weights: Arc<[u32]> = weights.collect();
    // Few inputs as often as many.
    let bits = rng.random_range(0..=inputs_max.max(2).ilog2());
    let count = rng.random_range(1usize << bits..2 << bits).min(inputs_max);
    let width = match rng.random_ratio(1, 4) {
        true => rng.random_range(1..=MAX_WIDTH as usize),
        false => rng.random_range(1..=6),
    };
    let xs = (0..count).map(|_| rng.random()).collect();
    Job::Place { map: Arc::new(map), rule: RULE, width, xs, weights }
}

/// A map of one to three levels of buckets, some of them empty or without weight.
fn map(rng: &mut ChaCha8Rng) -> Map {
    let levels = rng.random_range(1..=3u16);
    let mut builder = MapBuilder::new();
    builder.tunables(Tunables {
        choose_total_tries: *[2, 19, 50].choose(rng).unwrap_or(&50),
        chooseleaf_descend_once: rng.random(),
        chooseleaf_vary_r: rng.random_range(0..4),
        chooseleaf_stable: rng.random(),
        ..Tunables::JEWEL
    });
    let mut below: Vec<ItemId> = (0..rng.random_range(3..60)).map(ItemId).collect();
    let mut next = -2;
    for level in 1..levels {
        let mut made = Vec::new();
        let mut rest = &below[..];
        while !rest.is_empty() {
            let (own, others) = rest.split_at(rng.random_range(1..=6).min(rest.len()));
            rest = others;
            let own = if rng.random_ratio(1, 16) { &[] } else { own };
            builder.straw2(BucketId(next), TypeId(level), weighed(rng, own));
            made.push(ItemId(next));
            next -= 1;
        }
        below = made;
    }
    builder.straw2(BucketId(-1), TypeId(levels), weighed(rng, &below));
    builder.rule(RULE, steps(rng, levels));
    builder.build().expect("items and buckets exist, and have small weights")
}

fn weighed(rng: &mut ChaCha8Rng, items: &[ItemId]) -> Vec<(ItemId, u32)> {
    let equal = rng.random_bool(0.5);
    let weight = |rng: &mut ChaCha8Rng| match rng.random_range(0..8) {
        _ if equal => WEIGHT_ONE,
        0 => 0,
        _ => rng.random_range(1..9 * WEIGHT_ONE),
    };
    items.iter().map(|&item| (item, weight(rng))).collect()
}

/// A rule of one search, firstn or indep, at any level or down to the leaves.
fn steps(rng: &mut ChaCha8Rng, levels: u16) -> [RuleStep; 3] {
    let count = *[0, 0, 0, -1, 2].choose(rng).unwrap_or(&0);
    let choose = match rng.random_range(0..4) {
        0 => RuleStep::ChooseFirstn { count, kind: TypeId(0) },
        1 => RuleStep::ChooseIndep { count, kind: TypeId(0) },
        2 => RuleStep::ChooseleafFirstn { count, kind: TypeId(rng.random_range(0..levels)) },
        _ => RuleStep::ChooseleafIndep { count, kind: TypeId(rng.random_range(0..levels)) },
    };
    [RuleStep::Take(ItemId(-1)), choose, RuleStep::Emit]
}

/// The result of the plain mapper. `None` if the job is none that [`job`] makes.
pub fn expected(job: &Job) -> Option<JobOutput> {
    let Job::Place { map, rule, width, xs, weights } = job else { return None };
    let rows = map.rule(*rule).ok()?.map_rows_with(Kernel::Scalar, xs, *width, weights);
    let device = |&item: &ItemId| if item == ItemId::NONE { None } else { item.osd() };
    let placement = |row: &[ItemId]| Osds(row.iter().map(device).collect());
    Some(JobOutput::Place(rows.iter().map(placement).collect()))
}
