//! Functions that the tests of codes share: stripes, execution of plans, patterns of losses.

use fieldstone_codes::{Code, Profile, RepairPlan};
use fieldstone_gf::LinearMap;
use proptest::prelude::{Strategy, prop, prop_oneof};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// The code with this name.
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
    // The old content of the outputs must not matter.
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

/// Executes a plan, and reads only the ranges that it names.
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

/// Repairs `lost` from `available` and compares with the lost shards.
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

/// All losses of up to m shards, each with the shards that are left.
pub fn patterns(code: &dyn Code) -> impl Iterator<Item = (Vec<usize>, Vec<usize>)> {
    let (shards, m) = (code.k() + code.m(), code.m());
    (1u32..1 << shards)
        .filter(move |pattern| pattern.count_ones() as usize <= m)
        .map(move |pattern| (0..shards).partition(|shard| pattern >> shard & 1 == 1))
}

/// Names of codes with random numbers, whose shards are small enough for fast tests.
pub fn any_code() -> impl Strategy<Value = String> {
    let w = || prop::sample::select(vec![8, 16, 32]);
    let mds = || prop::sample::select(vec!["jerasure-van", "rs-van", "rs"]);
    prop_oneof![
        3 => (1usize..60, 1usize..20).prop_map(|(k, m)| format!("rs:{k}+{m}")),
        1 => (1usize..22, 1usize..5).prop_map(|(k, m)| format!("rs-van:{k}+{m}")),
        2 => (1usize..20, 1usize..6, w())
            .prop_map(|(k, m, w)| format!("jerasure-van:{k}+{m},w={w}")),
        1 => (1usize..20, w()).prop_map(|(k, w)| format!("jerasure-r6:{k}+2,w={w}")),
        1 => (1usize..12, 1usize..5, w(), 1usize..7)
            .prop_map(|(k, m, w, ps)| format!("cauchy-orig:{k}+{m},w={w},ps={}", ps * 4)),
        1 => (1usize..12, 1usize..5, w(), 1usize..7)
            .prop_map(|(k, m, w, ps)| format!("cauchy-good:{k}+{m},w={w},ps={}", ps * 4)),
        1 => (2usize..40).prop_map(|k| format!("zigzag:{k}+2")),
        1 => (2usize..30).prop_map(|k| format!("zigzag:{k}+3")),
        1 => (2usize..22).prop_map(|k| format!("zigzag:{k}+4")),
        1 => (4usize..22, 1u32..4)
            .prop_map(|(k, digits)| format!("zigzag:{k}+2,n={}", 1 << digits)),
        3 => (2usize..9, 1usize..5, 0usize..5, mds())
            .prop_map(|(k, m, less, mds)| {
                format!("clay:{k}+{m},d={},mds={mds}", k + (m - 1).saturating_sub(less))
            }),
        1 => (1usize..17).prop_map(|n| format!("copies:{n}")),
    ]
}
