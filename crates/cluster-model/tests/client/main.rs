//! A seeded world for the client of a cluster: two clients, three monitors, six OSDs, a virtual
//! clock, and faults of every kind that the seed chooses.
//!
//! `world` carries bytes between the clients and the model. `faults` decides what breaks. `maps`
//! changes the map of the OSDs. `takeover` blocks a client that writes from several cores. `late`
//! has a time limit and slow OSDs. `work` is what the clients are asked for, and `check` is what
//! the answers have to be.
//!
//! `CLIENT_SEEDS=FIRST+COUNT` runs other seeds. `CLIENT_TRACE=1` prints what happens.

mod check;
mod faults;
mod late;
mod maps;
mod takeover;
mod work;
mod world;

use world::World;

/// Runs a seed: faults, then peace, and the checks. Returns the hash of all that was carried.
fn run(seed: u64) -> u64 {
    let mut world = World::new(seed);
    world.run_with_faults();
    world.run_in_peace();
    world.check_rest();
    world.say(|| format!("{:?}", world.log.counts()));
    world.trace()
}

#[test]
fn calls_are_answered_once_and_right() {
    let seeds = std::env::var("CLIENT_SEEDS").unwrap_or_else(|_| "0+30".to_owned());
    let (first, count) = seeds.split_once('+').expect("FIRST+COUNT");
    let first: u64 = first.parse().expect("a number");
    let count: u64 = count.parse().expect("a number");
    let mut failed = Vec::new();
    for seed in first..first + count {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            eprintln!("SEED {seed} failed");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    for seed in [3, 11] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
