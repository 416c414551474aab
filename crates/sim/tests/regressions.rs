//! Every seed that once failed runs again; so does a handful that never did, twice, to show that a
//! seed reproduces its run.

use fieldstone_sim::{Options, run};

const LIST: &str = include_str!("../regressions.txt");

/// The seeds of the list, and whether the world of each has thin volumes only.
fn listed(list: &str) -> Vec<(u64, bool)> {
    let parsed = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let seed = words.next()?.parse().expect("a line opens with a seed");
        let thin = words.next().map(|word| assert_eq!(word, "thin")).is_some();
        Some((seed, thin))
    };
    list.lines().filter_map(parsed).collect()
}

#[test]
fn seeds_that_once_failed_pass() {
    let failures: Vec<_> = listed(LIST)
        .into_iter()
        .map(|(seed, thin)| run(seed, Options { thin, ..Options::default() }))
        .filter(|outcome| outcome.failure.is_some())
        .collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn seeds_pass_and_reproduce_their_runs_exactly() {
    for seed in 0..25 {
        let first = run(seed, Options::default());
        assert_eq!(first.failure, None, "seed {seed}: {}", first.scenario);
        assert_eq!(first, run(seed, Options::default()), "seed {seed} ran differently");
    }
}
