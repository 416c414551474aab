//! Every code against its definition. For any loss, the plan returns exactly the encoder's shards.
//! An update gives the parities of encoding anew. The check finds a wrong shard.

use std::ops::Range;

use crate::common::{
    any_code, check_repair, code, encode, execute, patterns, random_stripe, slices,
};
use fieldstone_codes::{
    Code, CodeError, Layout, MAX_CACHED_PLANS, Profile, ShardRead, Verdict, locate, verify,
};
use fieldstone_gf::{LinearMap, ShapeError};
use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// At least one code of every kind and shape of table, small enough to test all patterns.
const SMALL: [&str; 33] = [
    "rs:1+1",
    "rs:1+3",
    "rs:2+1",
    "rs:2+2",
    "rs:4+2",
    "rs:5+1",
    "rs:6+3",
    "rs:8+4",
    "rs-van:5+1",
    "rs-van:6+3",
    "rs-van:5+4",
    "jerasure-van:5+3",
    "jerasure-van:4+2,w=16",
    "jerasure-van:3+3,w=32",
    "jerasure-r6:6+2",
    "jerasure-r6:3+2,w=16",
    "cauchy-orig:4+3,ps=4",
    "cauchy-good:5+2,ps=8",
    "cauchy-good:3+3,w=16,ps=4",
    "cauchy-good:3+2,w=32,ps=4",
    "zigzag:4+2",
    "zigzag:6+2",
    "zigzag:7+2,n=8",
    "zigzag:5+3,n=9",
    "zigzag:4+3",
    "zigzag:5+4,n=4",
    "zigzag:4+4,n=16",
    "clay:2+2",
    "clay:4+2",
    "clay:4+3,d=5",
    "clay:5+3",
    "clay:4+2,mds=rs",
    "copies:4",
];

#[test]
fn every_erasure_pattern_of_small_codes_is_repaired() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for name in SMALL {
        let code = code(name);
        let granule_bytes = code.layout().granule_bytes(code.elements());
        let shards = random_stripe(&*code, 3 * granule_bytes, &mut rng);
        for (lost, available) in patterns(&*code) {
            check_repair(&*code, &shards, &lost, &available);
        }
    }
}

/// Repairs some elements of lost shards, and some bytes of them, from the same bytes of the plan's
/// reads.
#[test]
fn parts_of_lost_shards_are_made_from_parts_of_others() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for name in SMALL {
        let code = code(name);
        let elements = code.elements();
        // Elements as equal parts for every layout: the same code in another order of bytes.
        let element_bytes = 5;
        let mut shards: Vec<Vec<u8>> = (0..code.k())
            .map(|_| (0..elements * element_bytes).map(|_| rng.random()).collect())
            .collect();
        shards.extend(run(code.encode(), &slices(&shards)));
        let column = rng.random_range(0..element_bytes);
        let bytes = |shard: usize, element: u32| {
            let at = (element * element_bytes + column) as usize;
            &shards[shard][at..at + 1]
        };
        for (lost, available) in patterns(&*code) {
            let first = rng.random_range(0..elements);
            let part = first..rng.random_range(first..elements) + 1;
            let whole = code.repair(&lost, &available).unwrap();
            let plan = code.repair_elements(&lost, &available, part.clone()).unwrap();
            assert!(plan.read_bytes(1) <= whole.read_bytes(1));
            let inputs: Vec<Vec<u8>> = plan
                .reads
                .iter()
                .map(|read| {
                    let elements = read.elements.iter().cloned().flatten();
                    elements.flat_map(|element| bytes(read.shard, element)).copied().collect()
                })
                .collect();
            for (&shard, made) in lost.iter().zip(run(&plan.map, &slices(&inputs))) {
                let expected = part.clone().flat_map(|element| bytes(shard, element));
                assert!(made.iter().eq(expected), "{name}: {part:?} of {shard}, lost {lost:?}");
            }
        }
    }
}

#[test]
fn an_element_of_a_regenerating_code_needs_few_others() {
    // One element of each of k other shards, as with Reed-Solomon.
    let zigzag = code("zigzag:4+2");
    let plan = zigzag.repair_elements(&[1], &[0, 2, 3, 4, 5], 3..4).unwrap();
    assert_eq!(plan.read_bytes(1), 4);
    assert_eq!(plan.reads.len(), 4);
    let none = zigzag.repair_elements(&[1], &[0, 2, 3, 4, 5], 3..3);
    assert!(matches!(none, Err(CodeError::NoSuchElements { .. })));
    let beyond = zigzag.repair_elements(&[1], &[0, 2, 3, 4, 5], 7..9);
    assert!(matches!(beyond, Err(CodeError::NoSuchElements { .. })));
}

/// Executes a map on shards whose elements are equal parts.
fn run(map: &LinearMap, inputs: &[&[u8]]) -> Vec<Vec<u8>> {
    let element_bytes = inputs[0].len() / map.shape().input_elements[0] as usize;
    let bytes = |&elements: &u32| vec![0x5a; elements as usize * element_bytes];
    let mut outputs: Vec<Vec<u8>> = map.shape().output_elements.iter().map(bytes).collect();
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    map.execute(inputs, &mut slices).expect("lengths fit");
    outputs
}

/// Even if the repair makes fewer shards than are missing, it may not read the other missing
/// shards.
#[test]
fn some_of_the_missing_shards_are_repaired_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for name in SMALL {
        let code = code(name);
        let granule_bytes = code.layout().granule_bytes(code.elements());
        let shards = random_stripe(&*code, granule_bytes, &mut rng);
        for (missing, available) in
            patterns(&*code).filter(|(missing, _)| missing.len() == code.m())
        {
            for &one in &missing {
                check_repair(&*code, &shards, &[one], &available);
            }
        }
    }
}

#[test]
fn reed_solomon_reads_data_shards_first() {
    for name in ["rs:6+3", "rs-van:6+3", "jerasure-van:6+3", "jerasure-van:6+3,w=16"] {
        let code = code(name);
        for (lost, available) in patterns(&*code) {
            let plan = code.repair(&lost, &available).expect("enough are left");
            let data = |shards: &mut dyn Iterator<Item = usize>| shards.filter(|&s| s < 6).count();
            let read = data(&mut plan.reads.iter().map(|read| read.shard));
            assert_eq!(plan.reads.len(), 6);
            assert_eq!(read, data(&mut available.iter().copied()).min(6));
        }
    }
}

/// Changes elements of a data shard and, by the plan, the parities; compares with encoding anew.
fn check_update(
    code: &dyn Code,
    shard: usize,
    changed: Range<u32>,
    granules: usize,
    rng: &mut ChaCha8Rng,
) {
    let elements = code.elements();
    let shard_bytes = granules * code.layout().granule_bytes(elements);
    let mut shards = random_stripe(code, shard_bytes, rng);
    let plan = code.delta(shard, changed.clone()).expect("a data shard");
    let bytes = |element: u32| element as usize * shard_bytes / elements as usize;
    let place = bytes(changed.start)..bytes(changed.end);
    let delta: Vec<u8> = place.clone().map(|_| rng.random()).collect();
    for (byte, delta) in shards[shard][place].iter_mut().zip(&delta) {
        *byte ^= delta;
    }
    let ranges = |write: &ShardRead| -> Vec<Range<u64>> {
        write.ranges_in(shard_bytes as u64, elements).collect()
    };
    let length = |write| ranges(write).iter().map(|r| (r.end - r.start) as usize).sum();
    let lengths: Vec<usize> = plan.writes.iter().map(length).collect();
    let deltas = execute(code, &plan.map, &[&delta], &lengths);
    for (write, delta) in plan.writes.iter().zip(&deltas) {
        let places = ranges(write).into_iter().flatten();
        for (at, delta) in places.zip(delta) {
            shards[write.shard][at as usize] ^= delta;
        }
    }
    let expected = encode(code, &slices(&shards[..code.k()]));
    let same = shards[code.k()..] == expected;
    assert!(same, "{}: shard {shard}, elements {changed:?}", code.profile());
}

/// The delta plan probes the encoder for 64 elements at a time.
#[test]
fn updates_of_many_elements_are_right() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for name in ["clay:8+3", "clay:10+4", "zigzag:8+2,n=128", "zigzag:6+3,n=243"] {
        let code = code(name);
        let elements = code.elements();
        for shard in [0, code.k() - 1] {
            for changed in [0..elements, 1..66, 63..65, 70..elements] {
                check_update(&*code, shard, changed, 3, &mut rng);
            }
        }
    }
}

/// A stripe whose shards begin at odd addresses of a larger buffer, so that no shard is aligned.
fn misaligned(code: &dyn Code, data: &[Vec<u8>], rng: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let place = |bytes: usize, rng: &mut ChaCha8Rng| {
        let offset = rng.random_range(0..70);
        (vec![0x77; offset + bytes + 70], offset..offset + bytes)
    };
    let mut inputs = Vec::new();
    for shard in data {
        let (mut buffer, range) = place(shard.len(), rng);
        buffer[range.clone()].copy_from_slice(shard);
        inputs.push((buffer, range));
    }
    let mut outputs: Vec<_> = (0..code.m()).map(|_| place(data[0].len(), rng)).collect();
    {
        let inputs: Vec<&[u8]> =
            inputs.iter().map(|(buffer, range)| &buffer[range.clone()]).collect();
        let mut outputs: Vec<&mut [u8]> =
            outputs.iter_mut().map(|(buffer, range)| &mut buffer[range.clone()]).collect();
        code.layout().execute(code.encode(), &inputs, &mut outputs).expect("lengths fit");
    }
    for (buffer, range) in &outputs {
        let outside = buffer[..range.start].iter().chain(&buffer[range.end..]);
        assert!(outside.into_iter().all(|&byte| byte == 0x77), "wrote outside of a shard");
    }
    outputs.into_iter().map(|(buffer, range)| buffer[range].to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]
    #[test]
    fn random_losses_of_any_code_are_repaired(
        seed: u64, name in any_code(), granules in 0usize..12,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let code = code(&name);
        let (k, m) = (code.k(), code.m());
        let shard_bytes = granules * code.layout().granule_bytes(code.elements());
        let shards = random_stripe(&*code, shard_bytes, &mut rng);
        prop_assert_eq!(&misaligned(&*code, &shards[..k], &mut rng)[..], &shards[k..]);
        // Any order of both lists; some shards are in neither.
        let mut order: Vec<usize> = (0..k + m).collect();
        order.shuffle(&mut rng);
        if m > 0 {
            let lost = rng.random_range(1..=m);
            let available = rng.random_range(k..=k + m - lost);
            check_repair(&*code, &shards, &order[..lost], &order[lost..lost + available]);
            check_repair(&*code, &shards, &order[..1], &order[1..]);
        }
    }

    #[test]
    fn an_update_is_what_encoding_anew_gives(
        seed: u64, name in any_code(), granules in 0usize..4,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let code = code(&name);
        let elements = code.elements();
        let shard = rng.random_range(0..code.k());
        // All elements, or some if single elements have bytes of their own.
        let some = code.layout() == Layout::Contiguous && rng.random_bool(0.7);
        let start = if some { rng.random_range(0..elements) } else { 0 };
        let end = if some { rng.random_range(start + 1..=elements) } else { elements };
        check_update(&*code, shard, start..end, granules, &mut rng);
        let again = |elements| code.delta(shard, elements).expect("a data shard");
        prop_assert!(std::sync::Arc::ptr_eq(&again(start..end), &again(start..end)));
    }

    #[test]
    fn one_wrong_shard_is_found(seed: u64, name in any_code(), granules in 1usize..4) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let code = code(&name);
        let shard_bytes = granules * code.layout().granule_bytes(code.elements());
        let mut shards = random_stripe(&*code, shard_bytes, &mut rng);
        prop_assert_eq!(verify(&*code, &slices(&shards)), Ok(true));
        prop_assert_eq!(locate(&*code, &slices(&shards)), Ok(Verdict::Consistent));
        let wrong = rng.random_range(0..shards.len());
        let at = rng.random_range(0..shard_bytes);
        shards[wrong][at] ^= 1 << rng.random_range(0..8);
        // With a single copy there is no parity to compare.
        prop_assert_eq!(verify(&*code, &slices(&shards)), Ok(code.m() == 0));
        let found = match code.m() {
            0 => Verdict::Consistent,
            1 => Verdict::Unknown,
            _ => Verdict::Wrong(wrong),
        };
        prop_assert_eq!(locate(&*code, &slices(&shards)), Ok(found));
    }
}

#[test]
fn two_wrong_shards_are_not_taken_for_one() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    for name in ["rs:4+3", "zigzag:4+3", "clay:4+3", "jerasure-van:4+3,w=16"] {
        let code = code(name);
        let granule_bytes = code.layout().granule_bytes(code.elements());
        let shards = random_stripe(&*code, granule_bytes * 2, &mut rng);
        for a in 0..7 {
            for b in (0..7).filter(|&b| b != a) {
                let mut wrong = shards.clone();
                // In the same word: with m = 3, codewords differ in at least four shards.
                wrong[a][0] ^= 0x80;
                wrong[b][0] ^= 0x01;
                assert_eq!(locate(&*code, &slices(&wrong)), Ok(Verdict::Unknown), "{name} {a} {b}");
            }
        }
    }
}

#[test]
fn updates_touch_no_more_parity_elements_than_they_must() {
    // Parity elements that change with one element: minimum, maximum, and the sum over a shard's
    // elements and the data shards.
    for (name, min, max, sum) in [
        ("rs:8+3", 3, 3, 8 * 3),
        ("zigzag:4+2", 2, 2, 32 * 2),
        ("zigzag:6+3,n=9", 3, 3, 54 * 3),
        ("clay:4+2", 3, 6, 32 * 9 / 2),
        ("clay:6+3", 5, 10, 162 * 25 / 3),
    ] {
        let code = code(name);
        let touched: Vec<u32> = (0..code.k())
            .flat_map(|shard| (0..code.elements()).map(move |element| (shard, element)))
            .map(|(shard, element)| {
                let plan = code.delta(shard, element..element + 1).expect("it exists");
                plan.writes.iter().map(|write| write.element_count()).sum()
            })
            .collect();
        let range = (touched.iter().min().copied(), touched.iter().max().copied());
        assert_eq!(range, (Some(min), Some(max)), "{name}");
        assert_eq!(touched.iter().sum::<u32>(), sum, "{name}");
    }
}

#[test]
fn the_widest_codes_work() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for name in [
        "rs:251+4",
        "rs:1+254",
        "rs:127+128",
        "rs:254+1",
        "rs-van:32+3",
        "rs-van:21+4",
        "jerasure-van:200+55",
        "jerasure-van:100+20,w=16",
        "jerasure-r6:253+2",
        "zigzag:253+2",
        "zigzag:85+3",
        "zigzag:21+4",
        "zigzag:11+2,n=1024",
        "clay:20+4",
    ] {
        let code = code(name);
        let granule_bytes = code.layout().granule_bytes(code.elements());
        let shards = random_stripe(&*code, granule_bytes, &mut rng);
        let (lost, available) =
            (0..shards.len()).partition(|shard| shard % shards.len() < code.m());
        let (lost, available): (Vec<usize>, Vec<usize>) = (lost, available);
        check_repair(&*code, &shards, &lost, &available);
    }
}

#[test]
fn impossible_repairs_say_why() {
    for name in ["rs:4+2", "copies:3", "zigzag:4+2", "clay:4+2", "jerasure-van:4+2,w=16"] {
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
fn impossible_updates_say_why() {
    let code = code("zigzag:4+2");
    let message = |shard, elements| code.delta(shard, elements).unwrap_err().to_string();
    assert!(message(4, 0..1).contains("those of zigzag:4+2 are 0 to 3"));
    for elements in [0..0, 0..9, 8..9, 5..u32::MAX] {
        assert!(message(0, elements).contains("has elements 0..8"));
    }
    // Words are updated as a whole, because their bits have no bytes of their own.
    assert!(crate::common::code("jerasure-van:4+2,w=16").delta(0, 0..1).is_err());
}

#[test]
fn buffers_that_do_not_fit_a_layout_are_refused() {
    for (name, bad_bytes) in [
        ("zigzag:4+2", 4),
        ("cauchy-good:4+2,ps=8", 32),
        ("cauchy-good:4+2,ps=8", 4),
        ("jerasure-van:4+2,w=16", 3),
        ("jerasure-van:4+2,w=32", 6),
    ] {
        let code = code(name);
        let run = |lengths: [usize; 6]| {
            let shards = lengths.map(|bytes| vec![0u8; bytes]);
            let (data, mut parities) = (&shards[..4], shards[4..].to_vec());
            let mut outputs: Vec<&mut [u8]> = parities.iter_mut().map(Vec::as_mut_slice).collect();
            code.layout().execute(code.encode(), &slices(data), &mut outputs)
        };
        let good = 2 * code.layout().granule_bytes(code.elements());
        assert_eq!(run([good; 6]), Ok(()), "{name}");
        assert!(run([bad_bytes; 6]).is_err(), "{name}: {bad_bytes}");
        assert!(run([good, good, good, 2 * good, good, good]).is_err(), "{name}");
        let short = run([good, good, good, good, good, good / 2]);
        let side = "output";
        assert!(
            matches!(short, Err(ShapeError::Length { side: s, shard: 1, .. }) if s == side),
            "{name}"
        );
        let none = code.layout().execute(code.encode(), &[&[0; 8]], &mut []);
        assert!(matches!(none, Err(ShapeError::ShardCount { .. })), "{name}");
        assert!(verify(&*code, &[&[0; 8]]).is_err());
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
