//! Clay codes: one lost shard, of either kind, is rebuilt from 1/q of each of d helpers.

use crate::common::{check_repair, code, random_stripe};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

#[test]
fn every_shard_is_rebuilt_from_one_qth_of_each_helper() {
    let mut rng = ChaCha8Rng::seed_from_u64(2018);
    for (name, elements, d, q) in [
        ("clay:2+2", 4, 3, 2),
        ("clay:4+2", 8, 5, 2),
        ("clay:6+3", 27, 8, 3),
        ("clay:5+3", 27, 7, 3),
        ("clay:8+3", 81, 10, 3),
        ("clay:8+4", 64, 11, 4),
        ("clay:10+4", 256, 13, 4),
        ("clay:6+3,d=7", 32, 7, 2),
        ("clay:8+4,d=9", 64, 9, 2),
        ("clay:8+4,d=10", 81, 10, 3),
        ("clay:4+3,d=5", 16, 5, 2),
        ("clay:4+2,mds=rs-van", 8, 5, 2),
        ("clay:4+2,mds=rs", 8, 5, 2),
        ("clay:7+3,d=8,mds=rs", 32, 8, 2),
    ] {
        let code = code(name);
        assert_eq!(code.elements(), elements, "{name}");
        let shards = random_stripe(&*code, elements as usize * 2, &mut rng);
        for lost in 0..shards.len() {
            let available: Vec<usize> = (0..shards.len()).filter(|&shard| shard != lost).collect();
            let plan = check_repair(&*code, &shards, &[lost], &available);
            assert_eq!(plan.reads.len(), d, "{name}");
            let even = plan.reads.iter().all(|read| read.element_count() == elements / q);
            assert!(even, "{name}: {:?}", plan.reads);
        }
    }
}

#[test]
fn reads_in_shards_are_those_of_the_essay() {
    for (name, reads, elements) in [
        ("clay:4+2", 5 * 4, 8),
        ("clay:6+3", 8 * 9, 27),
        ("clay:8+4", 11 * 16, 64),
        ("clay:10+4", 13 * 64, 256),
    ] {
        let code = code(name);
        let available: Vec<usize> = (1..code.k() + code.m()).collect();
        let plan = code.repair(&[0], &available).expect("all others are there");
        assert_eq!(plan.read_bytes(1), reads);
        assert!(reads < code.k() as u64 * elements, "{name}: less than Reed-Solomon reads");
    }
}

#[test]
fn helpers_are_the_row_of_the_lost_shard_and_then_those_preferred() {
    let mut rng = ChaCha8Rng::seed_from_u64(2019);
    // q = 2: rows {0, 1}, {2, 3}, ... of six data shards, three parities and a virtual node: shards
    // 6, 7 and 8 are nodes 7, 8 and 9.
    let code = code("clay:6+3,d=7");
    let shards = random_stripe(&*code, 32 * 3, &mut rng);
    let used = |lost: usize, available: &[usize]| -> Vec<usize> {
        let plan = check_repair(&*code, &shards, &[lost], available);
        plan.reads.iter().map(|read| read.shard).collect()
    };
    assert_eq!(used(0, &[8, 7, 6, 5, 4, 3, 2, 1]), [1, 3, 4, 5, 6, 7, 8]);
    assert_eq!(used(0, &[1, 2, 3, 4, 5, 6, 7, 8]), [1, 2, 3, 4, 5, 6, 7]);
    // Seven shards are left, with the whole row.
    assert_eq!(used(0, &[1, 2, 4, 5, 6, 7, 8]), [1, 2, 4, 5, 6, 7, 8]);
    // Shard 6 shares its row with the virtual node, so any seven shards are good.
    assert_eq!(used(6, &[8, 7, 5, 4, 3, 2, 0]), [0, 2, 3, 4, 5, 7, 8]);
    // Shard 1 is missing, or too few are left: the repair reads k whole shards, data first.
    assert_eq!(used(0, &[2, 3, 4, 5, 6, 7, 8]), [2, 3, 4, 5, 6, 7]);
    assert_eq!(used(0, &[1, 2, 3, 4, 5, 8]), [1, 2, 3, 4, 5, 8]);
}

#[test]
fn with_as_many_helpers_as_data_shards_it_is_the_code_inside() {
    let mut rng = ChaCha8Rng::seed_from_u64(2020);
    for (clay, inside) in [
        ("clay:4+2,d=4", "jerasure-van:4+2"),
        ("clay:5+1", "rs:5+1"),
        ("clay:4+3,d=4,mds=rs", "rs:4+3"),
    ] {
        let (clay, inside) = (code(clay), code(inside));
        assert_eq!(clay.elements(), 1);
        let shards = random_stripe(&*clay, 33, &mut rng);
        let expected = crate::common::encode(&*inside, &crate::common::slices(&shards[..clay.k()]));
        assert_eq!(shards[clay.k()..], expected);
        for lost in 0..shards.len() {
            let available: Vec<usize> = (0..shards.len()).filter(|&shard| shard != lost).collect();
            check_repair(&*clay, &shards, &[lost], &available);
        }
    }
}
