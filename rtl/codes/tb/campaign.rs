//! Many random programs; only run on demand.

use crate::bench::{Testbench, one_unit, two_units};
use crate::engine::random_jobs;

/// The number of programs.
const PROGRAMS_VARIABLE: &str = "FIELDSTONE_PROGRAMS";
/// Programs of one engine, between its resets.
const PROGRAMS_PER_ENGINE: u64 = 100;

#[test]
#[ignore = "minutes to hours: FIELDSTONE_PROGRAMS=10000 cargo test -- --ignored campaign"]
fn campaign_of_random_programs() {
    let programs = std::env::var(PROGRAMS_VARIABLE).ok().and_then(|text| text.parse().ok());
    let programs: u64 = programs.unwrap_or(10_000);
    let mut done = 0;
    for seed in 1000.. {
        let count = PROGRAMS_PER_ENGINE.min(programs - done);
        if count == 0 {
            break;
        }
        let built = if seed % 2 == 0 { one_unit() } else { two_units() };
        let stall = [0.0, 0.1, 0.4][seed as usize % 3];
        random_jobs(&mut Testbench::new(built, seed, stall), count);
        done += count;
        println!("{done} of {programs} programs");
    }
}
