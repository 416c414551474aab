//! Runs seeds of the seeded world: `seeds A..B [THREADS]`, or `seeds N` for one seed with its
//! trace. The environment variable `CODE` replaces the codes that the seeds draw. With `THIN` set,
//! all volumes are thin. `REPLICATE` and `ENCODE` replace the ways that the seeds draw. `WITH` and
//! `WITHOUT` name conditions that each run has, or none: clock, keys, places, pieces, clients,
//! copies, stranger, replays.

use std::collections::BTreeMap;
use std::time::Instant;

use fieldstone_sim::{Chosen, Condition, Options, run, run_many};

/// The conditions that the environment variable names.
fn conditions(variable: &str) -> Vec<Condition> {
    let text = std::env::var(variable).unwrap_or_default();
    let words = text.split([' ', ',']).filter(|word| !word.is_empty());
    words.map(|word| word.parse().expect("the name of a condition")).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let code = std::env::var("CODE").ok().map(|name| name.parse().expect("the name of a code"));
    let thin = std::env::var_os("THIN").is_some();
    let replicate = std::env::var("REPLICATE").ok();
    let replicate = replicate.map(|name| name.parse().expect("the name of a way"));
    let encode = std::env::var("ENCODE").ok();
    let encode = encode.map(|name| name.parse().expect("client or stream"));
    let chosen = Chosen { with: conditions("WITH"), without: conditions("WITHOUT") };
    let options = || {
        let conditions = chosen.clone();
        Options { trace: None, code, thin, replicate, encode, conditions }
    };
    let what = arguments.next().unwrap_or_else(|| "0..200".to_owned());
    let Some((first, end)) = what.split_once("..") else {
        let seed = what.parse().expect("a seed is a number");
        let mut out = std::io::BufWriter::new(std::io::stdout());
        let outcome = run(seed, Options { trace: Some(&mut out), ..options() });
        drop(out);
        println!("{outcome:#?}");
        return;
    };
    let seeds = first.parse().expect("a number")..end.parse().expect("a number");
    let threads = arguments.next().map_or(1, |count| count.parse().expect("a number"));
    let began = Instant::now();
    let (mut done, mut ops, mut events, mut failed) = (0u64, 0u64, 0u64, 0u64);
    let (mut relays, mut carried, mut parities) = ([0u64; 2], [0u64; 2], [0u64; 2]);
    let (mut links, mut fragments) = ([0u64; 3], 0);
    let mut virtual_ns = 0;
    let mut faults: BTreeMap<&'static str, u64> = BTreeMap::new();
    run_many(
        seeds,
        threads,
        |seed| run(seed, options()),
        |outcome| {
            done += 1;
            ops += outcome.ops;
            events += outcome.events;
            relays = [0, 1].map(|at| relays[at] + outcome.relays[at]);
            carried = [0, 1].map(|at| carried[at] + outcome.carried[at]);
            parities = [0, 1].map(|at| parities[at] + outcome.parities[at]);
            links = [0, 1, 2].map(|at| links[at] + outcome.links[at]);
            fragments += outcome.fragments;
            virtual_ns += outcome.virtual_time.0 / 1_000_000_000;
            for (name, count) in outcome.faults {
                *faults.entry(name).or_default() += count;
            }
            if let Some(failure) = outcome.failure {
                failed += 1;
                println!(
                    "seed {}: at {} us: {}\n    {}",
                    outcome.seed,
                    failure.at.0 / 1000,
                    failure.what,
                    outcome.scenario
                );
            }
            true
        },
    );
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{done} seeds, {failed} failed, {ops} requests, {events} events, {:.1} seeds/s\n\
         {faults:?}\n{} records passed on, {} sent once more\n\
         {} pieces of parity passed on, {} sent once more\n\
         {} pieces of parity made by nodes, {} made in their place\n\
         {} passed on inside, {} outwards, {} outside, {fragments} fragments\n\
         {virtual_ns} s of virtual time",
        done as f64 / seconds,
        relays[0],
        relays[1],
        carried[0],
        carried[1],
        parities[0],
        parities[1],
        links[0],
        links[1],
        links[2]
    );
}
