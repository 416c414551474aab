//! Runs every seed again that once failed. Also runs a few seeds that never failed, twice, to show
//! that a seed reproduces its run.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Mutex;
use std::{iter, thread};

use fieldstone_proto::{Encode, Strategy};
use fieldstone_sim::{Chosen, Condition, Options, run};

const LIST: &str = include_str!("../regressions.txt");

/// A line of the list.
#[derive(Clone, Debug)]
struct Listed {
    seed: u64,
    /// The world has thin volumes only.
    thin: bool,
    /// The seed finds a known defect that is not fixed yet.
    parked: bool,
    /// How nodes get the journal. Flat in the worlds of older seeds.
    replicate: Strategy,
    /// Who makes the parity. The volume in the worlds of older seeds.
    encode: Encode,
    /// What else the run has. Nothing in the worlds of older seeds.
    conditions: Vec<Condition>,
}

fn listed(list: &str) -> Vec<Listed> {
    let parsed = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let seed = words.next()?.parse().expect("a line opens with a seed");
        let (replicate, encode) = (Strategy::Flat, Encode::Client);
        let (thin, parked, conditions) = (false, false, Vec::new());
        let mut listed = Listed { seed, thin, parked, replicate, encode, conditions };
        for word in words {
            match word {
                "thin" => listed.thin = true,
                "parked" => listed.parked = true,
                "stream" => listed.encode = Encode::Stream,
                other => match (other.parse(), other.parse()) {
                    (Ok(strategy), _) => listed.replicate = strategy,
                    (_, Ok(condition)) => listed.conditions.push(condition),
                    _ => panic!("{other} is none of the words that the list explains"),
                },
            }
        }
        Some(listed)
    };
    list.lines().filter_map(parsed).collect()
}

#[test]
fn seeds_that_once_failed_pass() {
    // All CPUs take seeds from the list until it is empty.
    let seeds = Mutex::new(listed(LIST).into_iter().filter(|listed| !listed.parked));
    let next = || seeds.lock().expect("no panic while it is locked").next();
    let run_some = || -> Vec<_> {
        iter::from_fn(next)
            .map(|Listed { seed, thin, replicate, encode, conditions, .. }| {
                let (replicate, encode) = (Some(replicate), Some(encode));
                let conditions = Chosen::only(&conditions);
                run(seed, Options { thin, replicate, encode, conditions, ..Options::default() })
            })
            .filter(|outcome| outcome.failure.is_some())
            .collect()
    };
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let failures: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus).map(|_| scope.spawn(run_some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn seeds_pass_and_reproduce_their_runs_exactly() {
    let parked = |seed: u64| {
        let listed = listed(LIST).into_iter();
        listed.filter(|listed| listed.parked && !listed.thin).any(|listed| listed.seed == seed)
    };
    let mut layers = BTreeMap::new();
    let (mut relays, mut parities) = ([0, 0], [0, 0]);
    for seed in (0..25).filter(|seed| !parked(*seed)) {
        let first = run(seed, Options::default());
        assert_eq!(first.failure, None, "seed {seed}: {}", first.scenario);
        assert_eq!(first, run(seed, Options::default()), "seed {seed} ran differently");
        relays = [0, 1].map(|at| relays[at] + first.relays[at]);
        parities = [0, 1].map(|at| parities[at] + first.parities[at]);
        for (layer, counter, value) in first.layers {
            *layers.entry((layer, counter)).or_insert(0) += value;
        }
    }
    // In half of the runs nodes pass writes on, and some do not reach their nodes.
    assert!(relays[0] > 1000 && relays[1] > 10, "{relays:?}");
    // In three of ten, nodes make parity if the code allows it, and sometimes cannot.
    assert!(parities[0] > 30 && parities[1] > 5, "{parities:?}");
    // Each of these layers has done its work in some run.
    for busy in [
        ("scheduler", "merged"),
        ("cache", "hits"),
        ("readahead", "hits"),
        ("readahead", "cut"),
        ("align", "read_modify_writes"),
    ] {
        assert!(layers[&busy] > 0, "{busy:?}: {layers:?}");
    }
}

/// Few seeds draw it: a code, the way primary, and parity that the volume makes.
#[test]
fn data_nodes_pass_parity_on_and_do_not_reach_every_node() {
    let mut carried = [0, 0];
    for seed in 0..6 {
        // With more parity than data shards, a data node has several parity nodes.
        let code = if seed % 2 == 0 { "rs:4+2" } else { "rs:2+3" };
        let code = Some(code.parse().expect("a code"));
        let (replicate, encode) = (Some(Strategy::Primary), Some(Encode::Client));
        let outcome = run(seed, Options { code, replicate, encode, ..Options::default() });
        assert_eq!(outcome.failure, None, "seed {seed}: {}", outcome.scenario);
        assert_eq!(outcome.parities, [0, 0], "seed {seed}");
        carried = [0, 1].map(|at| carried[at] + outcome.carried[at]);
    }
    assert!(carried[0] > 100 && carried[1] > 0, "{carried:?}");
}
