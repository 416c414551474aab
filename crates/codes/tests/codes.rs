//! Codes against vectors made by another implementation, and against the definition: whatever is
//! lost, the plan gives back exactly what the encoder made.

use std::ops::Range;

use fieldstone_codes::{Code, CodeError, MAX_CACHED_PLANS, Profile, RepairPlan};
use fieldstone_gf::LinearMap;
use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

fn execute(map: &LinearMap, inputs: &[&[u8]], output_bytes: usize) -> Vec<Vec<u8>> {
    let mut outputs = vec![vec![0; output_bytes]; map.outputs()];
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    map.execute(inputs, &mut slices).expect("lengths fit");
    outputs
}

/// A stripe of random data with its parities.
fn random_stripe(code: &dyn Code, shard_bytes: usize, rng: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let mut shards: Vec<Vec<u8>> =
        (0..code.k()).map(|_| (0..shard_bytes).map(|_| rng.random()).collect()).collect();
    let data: Vec<&[u8]> = shards.iter().map(Vec::as_slice).collect();
    let parities = execute(code.encode(), &data, shard_bytes);
    shards.extend(parities);
    shards
}

/// Follows a plan by reading only what it names.
fn follow(plan: &RepairPlan, shards: &[Vec<u8>], elements: u32) -> Vec<Vec<u8>> {
    let shard_bytes = shards[0].len();
    let element_bytes = (shard_bytes / elements as usize) as u64;
    let inputs: Vec<Vec<u8>> = plan
        .reads
        .iter()
        .map(|read| {
            let slice =
                |range: Range<u64>| &shards[read.shard][range.start as usize..range.end as usize];
            read.byte_ranges(element_bytes).flat_map(slice).copied().collect()
        })
        .collect();
    let total: usize = inputs.iter().map(Vec::len).sum();
    assert_eq!(total as u64, plan.read_bytes(element_bytes));
    execute(&plan.map, &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>(), shard_bytes)
}

fn check_repair(code: &dyn Code, shards: &[Vec<u8>], lost: &[usize], available: &[usize]) {
    let plan = code.repair(lost, available).expect("enough shards are left");
    assert_eq!(plan.lost, lost);
    assert_eq!(plan.reads.len(), code.k());
    assert!(plan.reads.iter().all(|read| available.contains(&read.shard)));
    let data_available = available.iter().filter(|&&shard| shard < code.k()).count();
    let data_read = plan.reads.iter().filter(|read| read.shard < code.k()).count();
    if let Profile::Rs { .. } = code.profile() {
        assert_eq!(data_read, data_available.min(code.k()), "data shards come first");
    }
    for (&shard, rebuilt) in lost.iter().zip(follow(&plan, shards, code.elements())) {
        assert!(rebuilt == shards[shard], "{}: lost {lost:?}, shard {shard}", code.profile());
    }
}

#[test]
fn parity_equals_that_of_the_isa_plugin() {
    let text = include_str!("data/isa-cauchy.json");
    let file: Value = serde_json::from_str(text).expect("the vectors are JSON");
    let vectors = file["vectors"].as_array().expect("a list");
    assert_eq!(vectors.len(), 7);
    for vector in vectors {
        let number = |name: &str| vector[name].as_u64().expect("a number") as usize;
        let (k, m, shard_bytes) = (number("k"), number("m"), number("shard_bytes"));
        let data = from_hex(&vector["data"]);
        let inputs: Vec<&[u8]> = data.chunks(shard_bytes).collect();
        let code = Profile::rs(k, m).expect("in bounds").code();
        let parities = execute(code.encode(), &inputs, shard_bytes);
        let expected = vector["parity"].as_array().expect("a list");
        assert_eq!(expected.len(), m);
        for (parity, expected) in parities.iter().zip(expected) {
            assert_eq!(parity, &from_hex(expected), "rs:{k}+{m}");
        }
        let terms = |row: usize| code.encode().steps()[0][row].terms.iter().map(|t| t.coefficient);
        let matrix: Vec<Vec<u8>> = (0..m).map(|row| terms(row).collect()).collect();
        assert_eq!(serde_json::json!(matrix), vector["matrix"], "rs:{k}+{m}");
    }
}

fn from_hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().expect("hexadecimal");
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(byte).collect()
}

#[test]
fn every_erasure_pattern_of_small_codes_is_repaired() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let profiles = [
        "rs:1+1", "rs:1+3", "rs:2+1", "rs:2+2", "rs:4+2", "rs:5+1", "rs:6+3", "rs:8+4", "copies:4",
    ];
    for name in profiles {
        let profile: Profile = name.parse().expect("a valid name");
        let code = profile.code();
        let shards = random_stripe(&*code, 37, &mut rng);
        for pattern in 1u32..1 << profile.shards() {
            if pattern.count_ones() as usize > profile.m() {
                continue;
            }
            let (lost, available): (Vec<usize>, Vec<usize>) =
                (0..profile.shards()).partition(|shard| pattern >> shard & 1 == 1);
            check_repair(&*code, &shards, &lost, &available);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn random_losses_of_large_codes_are_repaired(
        seed: u64, k in 1usize..60, m in 1usize..20, shard_bytes in 0usize..300,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let code = Profile::rs(k, m).expect("in bounds").code();
        let shards = random_stripe(&*code, shard_bytes, &mut rng);
        let mut order: Vec<usize> = (0..k + m).collect();
        order.shuffle(&mut rng);
        // Any order of either list, and shards that are in neither.
        let lost = rng.random_range(1..=m);
        let available = rng.random_range(k..=k + m - lost);
        check_repair(&*code, &shards, &order[..lost], &order[lost..lost + available]);
    }
}

#[test]
fn the_widest_codes_work() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for (k, m) in [(251, 4), (1, 254), (127, 128), (254, 1)] {
        let code = Profile::rs(k, m).expect("in bounds").code();
        let shards = random_stripe(&*code, 16, &mut rng);
        let lost: Vec<usize> = (0..m.min(k)).collect();
        let available: Vec<usize> = (lost.len()..k + m).collect();
        check_repair(&*code, &shards, &lost, &available);
    }
}

#[test]
fn impossible_repairs_say_why() {
    for name in ["rs:4+2", "copies:3"] {
        let profile: Profile = name.parse().expect("a valid name");
        let code = profile.code();
        let error = |lost: &[usize], available: &[usize]| code.repair(lost, available).err();
        assert_eq!(error(&[], &[0, 1]), Some(CodeError::NothingLost));
        let shard = profile.shards();
        let no_such = CodeError::NoSuchShard { shard, profile };
        assert_eq!(error(&[shard], &[]), Some(no_such.clone()));
        assert_eq!(error(&[0], &[shard]), Some(no_such));
        let twice = |role| Some(CodeError::NamedTwice { shard: 1, role });
        assert_eq!(error(&[1, 1], &[0]), twice("lost"));
        assert_eq!(error(&[0], &[1, 1]), twice("available"));
        assert_eq!(error(&[1], &[0, 1]), Some(CodeError::LostAndAvailable { shard: 1 }));
        let few: Vec<usize> = (1..profile.k()).collect();
        let (needed, available) = (profile.k(), few.len());
        let too_few = CodeError::TooFewShards { profile, needed, available };
        assert_eq!(error(&[0], &few), Some(too_few.clone()));
        assert!(too_few.to_string().contains(name), "{too_few}");
    }
}

#[test]
fn plans_are_cached_by_what_they_read_and_stay_right_past_the_bound() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let code = Profile::rs(10, 6).expect("in bounds").code();
    let shards = random_stripe(&*code, 8, &mut rng);
    let first = code.repair(&[0], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).expect("enough");
    let again = code.repair(&[0], &[10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 11]).expect("enough");
    assert!(std::sync::Arc::ptr_eq(&first, &again));
    for _ in 0..2 * MAX_CACHED_PLANS {
        let mut order: Vec<usize> = (0..16).collect();
        order.shuffle(&mut rng);
        let lost = rng.random_range(1..=6);
        check_repair(&*code, &shards, &order[..lost], &order[lost..]);
    }
}
