//! The latency of draws: 64 items, 16 lanes.

use fieldstone_crush::{Algorithm, AlgorithmKind, BucketId, ItemId, Map, Parts, TypeId};
use fieldstone_fpga::image::Image;
use fieldstone_rtl_crush as designs;
use fieldstone_verilate::bench::seeded_rng;
use rand::Rng;

use crate::buckets;
use crate::engine::{Choose, Engine};

/// The algorithms, each with the latency bound of an answer in cycles.
const REACH: [(AlgorithmKind, u64); 5] = [
    (AlgorithmKind::Straw2, 47),
    (AlgorithmKind::Straw, 38),
    (AlgorithmKind::List, 32),
    (AlgorithmKind::Tree, 40),
    (AlgorithmKind::Uniform, 31),
];

/// One bucket of 64 devices.
fn map(algorithm: AlgorithmKind) -> Map {
    let mut rng = seeded_rng(64);
    let items: Vec<ItemId> = (0..64).map(ItemId).collect();
    let mut bucket = buckets::bucket(&mut rng, BucketId(-1), TypeId(1), algorithm, &items);
    if let Algorithm::List { weights, sums } = &mut bucket.algorithm {
        // The first item takes the draws that the others leave, so the last row matters.
        weights.fill(1);
        sums.fill(1 << 20);
    }
    Map::new(Parts { buckets: vec![bucket], ..Parts::default() }).expect("the parts are sound")
}

#[test]
fn draws_are_as_fast_as_they_should_be() {
    for (algorithm, reach) in REACH {
        let map = map(algorithm);
        let mut engine = Engine::new(&designs::DRAW_16, 7, (0.0, 0.0));
        engine.set_module(algorithm as u64, true);
        assert!(engine.load(Image::compile(&map, &[], None).expect("the map fits").bytes()));
        let draw = |x| Choose { x, ..Choose::default() };

        // One draw alone.
        engine.check(&map, None, [draw(1)]);
        let latency = engine.answers.moved_at[0] - engine.chooses.moved_at[0];

        // Many draws, one after the other.
        let before = engine.answers.moved_at.len();
        engine.check(&map, None, (0..200).map(draw));
        let moved = &engine.answers.moved_at[before..];
        let interval = (moved[199] - moved[9]) as f64 / 190.0;
        println!(
            "{algorithm:?}: {latency} cycles (reach {reach}), one draw every {interval} cycles"
        );
        assert!(latency <= reach, "{algorithm:?} takes {latency} cycles");
        let rows = if algorithm == AlgorithmKind::Uniform { 1.0 } else { 4.0 };
        assert!(interval <= rows, "{algorithm:?}: one draw every {interval} cycles");
    }
}

/// A draw that needs a remainder of r costs some cycles more; other draws do not.
#[test]
fn uniform_draws_past_the_size_take_a_little_longer() {
    let map = map(AlgorithmKind::Uniform);
    let mut engine = Engine::new(&designs::DRAW_16, 8, (0.0, 0.0));
    engine.set_module(1, true);
    assert!(engine.load(Image::compile(&map, &[], None).expect("the map fits").bytes()));
    let mut latency = |r_base| {
        let at = engine.answers.moved_at.len();
        engine.check(&map, None, [Choose { x: 5, r_base, ..Choose::default() }]);
        engine.answers.moved_at[at] - engine.chooses.moved_at[at]
    };
    let first = latency(0);
    assert_eq!(latency(15), first);
    assert_eq!(latency(63), first + 3, "three rows more");
    assert_eq!(latency(64), first + 8, "the remainder");
    let mut rng = seeded_rng(9);
    for _ in 0..50 {
        assert!(latency(rng.random()) <= first + 11);
    }
}
