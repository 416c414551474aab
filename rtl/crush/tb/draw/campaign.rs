//! A million draws per algorithm, or the number in the variable.

use fieldstone_crush::{AlgorithmKind, BucketId};
use fieldstone_fpga::image::Image;
use fieldstone_rtl_crush as designs;
use rand::Rng;

use crate::buckets;
use crate::engine::{Choose, Engine};

#[test]
#[ignore = "takes minutes; FIELDSTONE_DRAWS says how many draws per algorithm"]
fn a_million_draws_per_algorithm() {
    let draws = std::env::var("FIELDSTONE_DRAWS").ok().and_then(|draws| draws.parse().ok());
    let draws: usize = draws.unwrap_or(1_000_000);
    for algorithm in AlgorithmKind::ALL {
        let mut engine = Engine::new(&designs::DRAW_16, algorithm as u64, (0.0, 0.01));
        engine.set_module(algorithm as u64, true);
        let mut left = draws;
        let start = std::time::Instant::now();
        while left > 0 {
            let map = buckets::map(&mut engine.rng, 200, 100);
            let own: Vec<u16> = (0..200)
                .filter(|&n| {
                    let bucket = map.bucket(BucketId(-1 - i32::from(n)));
                    bucket.is_some_and(|bucket| bucket.algorithm.kind() == algorithm)
                })
                .collect();
            let args =
                engine.rng.random_bool(0.3).then(|| buckets::choose_args(&mut engine.rng, &map));
            let image = Image::compile(&map, &[], args.as_ref()).expect("the map fits");
            assert!(engine.load(image.bytes()));
            let mut rng = engine.rng.clone();
            let _: u64 = engine.rng.random();
            let now = left.min(20_000);
            let choose = |_| {
                let bucket = own[rng.random_range(0..own.len())];
                Choose::random(&mut rng, bucket)
            };
            engine.check(&map, args.as_ref(), (0..now).map(choose));
            left -= now;
        }
        let cycles = engine.clock.cycles;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{algorithm:?}: {draws} draws in {cycles} cycles, {:.0} cycles/s",
            cycles as f64 / seconds
        );
    }
}
