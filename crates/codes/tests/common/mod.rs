//! What the tests of codes share: stripes, following plans, patterns of losses.

// Every test program uses some of this.
#![allow(dead_code)]

use fieldstone_codes::{Code, Profile, RepairPlan};
use fieldstone_gf::LinearMap;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// The code of a name.
pub fn code(name: &str) -> Arc<dyn Code> {
    name.parse::<Profile>().unwrap_or_else(|error| panic!("{name}: {error}")).code()
}

/// Executes a map of `code`; all outputs have the given lengths.
pub fn execute(
    code: &dyn Code,
    map: &LinearMap,
    inputs: &[&[u8]],
    output_bytes: &[usize],
) -> Vec<Vec<u8>> {
    // What was there before must not matter.
    let mut outputs: Vec<Vec<u8>> = output_bytes.iter().map(|&bytes| vec![0x5a; bytes]).collect();
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    code.layout().execute(map, inputs, &mut slices).expect("lengths fit");
    outputs
}

/// The parities of data shards.
pub fn encode(code: &dyn Code, data: &[&[u8]]) -> Vec<Vec<u8>> {
    execute(code, code.encode(), data, &vec![data[0].len(); code.m()])
}

/// All shards as slices.
pub fn slices(shards: &[Vec<u8>]) -> Vec<&[u8]> {
    shards.iter().map(Vec::as_slice).collect()
}

/// A stripe of random data with its parities.
pub fn random_stripe(code: &dyn Code, shard_bytes: usize, rng: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let mut shards: Vec<Vec<u8>> =
        (0..code.k()).map(|_| (0..shard_bytes).map(|_| rng.random()).collect()).collect();
    let parities = encode(code, &slices(&shards));
    shards.extend(parities);
    shards
}

/// Follows a plan by reading only what it names.
pub fn follow(code: &dyn Code, plan: &RepairPlan, shards: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let shard_bytes = shards[0].len();
    let inputs: Vec<Vec<u8>> = plan
        .reads
        .iter()
        .map(|read| {
            let ranges = read.ranges_in(shard_bytes as u64, code.elements());
            let part = |range: std::ops::Range<u64>| {
                &shards[read.shard][range.start as usize..range.end as usize]
            };
            ranges.flat_map(part).copied().collect()
        })
        .collect();
    execute(code, &plan.map, &slices(&inputs), &vec![shard_bytes; plan.lost.len()])
}

/// Repairs `lost` from `available` and compares with what was lost.
pub fn check_repair(
    code: &dyn Code,
    shards: &[Vec<u8>],
    lost: &[usize],
    available: &[usize],
) -> Arc<RepairPlan> {
    let plan = code.repair(lost, available).expect("enough shards are left");
    assert_eq!(plan.lost, lost);
    assert!(plan.reads.iter().all(|read| available.contains(&read.shard)));
    let most = u64::from(code.elements()) * code.k() as u64;
    assert!(plan.read_bytes(1) <= most, "{}: reads more than k shards", code.profile());
    for (&shard, rebuilt) in lost.iter().zip(follow(code, &plan, shards)) {
        let same = rebuilt == shards[shard];
        assert!(same, "{}: lost {lost:?}, shard {shard}, of {available:?}", code.profile());
    }
    plan
}

/// All losses of up to m shards, each with what is left.
pub fn patterns(code: &dyn Code) -> impl Iterator<Item = (Vec<usize>, Vec<usize>)> {
    let (shards, m) = (code.k() + code.m(), code.m());
    (1u32..1 << shards)
        .filter(move |pattern| pattern.count_ones() as usize <= m)
        .map(move |pattern| (0..shards).partition(|shard| pattern >> shard & 1 == 1))
}
