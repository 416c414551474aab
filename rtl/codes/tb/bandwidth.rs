//! The share of the memory port's bandwidth that the engine uses: the larger of beats read and
//! written, divided by the cycles from a command to its answer. The memory answers after 40 cycles.

use fieldstone_codes::Profile;
use fieldstone_gf::LinearMap;

use crate::bench::{Built, CodeCase, Testbench, one_unit, two_units};

/// The share for objects of `object_bytes` bytes, `batch` objects in one job. An earlier job has
/// wiped the lanes; the program is loaded.
fn share(built: Built, map: &LinearMap, shard_bytes: usize, elements: u32, batch: usize) -> f64 {
    let mut bench = Testbench::new(built, 1, 0.0);
    let warm = LinearMap::new(1, 1, 1, vec![vec![]]).expect("a valid map");
    CodeCase::new(&warm, &built, 1, 1, &mut bench.rng).expect("it fits").run(&mut bench);
    let element_beats = shard_bytes / 64 / elements as usize;
    let job = CodeCase::new(map, &built, element_beats, batch, &mut bench.rng).expect("it fits");
    let answer = job.run(&mut bench);
    let beats = answer.read_beats.max(answer.write_beats);
    beats as f64 / answer.busy_cycles as f64
}

fn encoding(built: Built, profile: &str, object_bytes: usize, batch: usize) -> f64 {
    let parsed: Profile = profile.parse().expect("a profile");
    let code = parsed.code();
    let shard_bytes = object_bytes / code.k();
    let share = share(built, code.encode(), shard_bytes, code.elements(), batch);
    println!(
        "encode {profile:<12} {:>5} KiB x {batch:<3} {:.1} %",
        object_bytes >> 10,
        100.0 * share
    );
    share
}

fn rebuilding(built: Built, profile: &str, object_bytes: usize) -> f64 {
    let parsed: Profile = profile.parse().expect("a profile");
    let code = parsed.code();
    let available: Vec<usize> = (1..parsed.shards()).collect();
    let plan = code.repair(&[0], &available).expect("one loss");
    let share = share(built, &plan.map, object_bytes / code.k(), code.elements(), 1);
    println!("rebuild {profile:<11} {:>5} KiB       {:.1} %", object_bytes >> 10, 100.0 * share);
    share
}

#[test]
fn large_objects_use_95_percent_of_the_port() {
    for profile in ["rs:8+4", "rs:4+2", "zigzag:4+2"] {
        assert!(encoding(one_unit(), profile, 1 << 20, 1) >= 0.95, "{profile}");
        assert!(rebuilding(one_unit(), profile, 1 << 20) >= 0.95, "{profile}");
    }
}

#[test]
fn batches_of_small_objects_use_80_percent_of_the_port() {
    for profile in ["rs:8+4", "rs:4+2", "zigzag:4+2"] {
        assert!(encoding(one_unit(), profile, 64 << 10, 16) >= 0.80, "{profile}");
    }
}

#[test]
fn clay_has_several_steps_and_uses_most_of_the_port() {
    assert!(encoding(one_unit(), "clay:4+2", 1 << 20, 1) >= 0.85);
    assert!(rebuilding(one_unit(), "clay:4+2", 1 << 20) >= 0.85);
    encoding(one_unit(), "clay:8+4", 1 << 20, 1);
    rebuilding(one_unit(), "clay:8+4", 1 << 20);
}

#[test]
fn two_units_compute_twice_as_fast() {
    // On 5 lanes, 8 rows of 20 terms take 32 cycles for 20 beats: one unit could use 62.5 %.
    let share = encoding(two_units(), "rs:20+8", 20 * 800 * 64, 1);
    assert!(share >= 0.90, "{share}");
}
