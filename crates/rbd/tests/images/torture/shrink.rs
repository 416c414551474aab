//! Makes a failing course shorter, by leaving out steps as long as it fails.

use std::time::{Duration, Instant};

use super::course::Config;
use super::{Failed, Steps, run};

/// How long the search for a shorter course may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The steps of a shorter course that fails. They need not fail for the same reason.
pub fn shrink(config: &Config, seed: u64, steps: &Steps) -> Vec<u64> {
    // Failures of the courses that are tried print nothing.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let end = Instant::now() + LIMIT;
    let fails = |only: &[u64]| run(config, seed, &Steps::Only(only.to_vec())).err();
    let mut only = match steps {
        Steps::Only(only) => only.clone(),
        Steps::Operations(_) => match run(config, seed, steps) {
            Err(Failed { step, .. }) if step < u64::MAX => (0..=step).collect(),
            // An operation of each step at most, or nearly.
            _ => (0..last(config, seed, steps)).collect(),
        },
    };
    let mut chunk = only.len().div_ceil(2);
    while chunk > 0 && Instant::now() < end {
        let (before, mut start) = (only.len(), 0);
        while start < only.len() && Instant::now() < end {
            let stop = only.len().min(start + chunk);
            let shorter = [&only[..start], &only[stop..]].concat();
            if let Some(Failed { step, .. }) = fails(&shorter) {
                only = shorter;
                // What comes behind the failure is not needed.
                only.retain(|&other| other <= step);
            } else {
                start = stop;
            }
        }
        if chunk == 1 && only.len() == before {
            break;
        }
        chunk = if chunk == 1 { 1 } else { chunk.div_ceil(2) };
    }
    std::panic::set_hook(hook);
    only
}

/// The number of steps of a course that only fails at its end.
fn last(config: &Config, seed: u64, steps: &Steps) -> u64 {
    let Err(Failed { log, .. }) = run(config, seed, steps) else { return 0 };
    let step_of = |line: &String| line.split(':').next()?.parse::<u64>().ok();
    log.iter().filter_map(step_of).max().map_or(0, |step| step + 1)
}

/// Reads `3,17,40-44`.
pub fn parse(text: &str) -> Vec<u64> {
    let number = |text: &str| -> u64 { text.parse().expect("a number of a step") };
    let part = |part: &str| match part.split_once('-') {
        Some((first, last)) => (number(first)..=number(last)).collect(),
        None => vec![number(part)],
    };
    text.split(',').flat_map(part).collect()
}

/// Writes what [`parse`] reads.
pub fn format(steps: &[u64]) -> String {
    let runs = steps.chunk_by(|a, b| a + 1 == *b);
    let said = runs.map(|run| match (run.first(), run.last()) {
        (Some(first), Some(last)) if first < last => format!("{first}-{last}"),
        _ => run[0].to_string(),
    });
    said.collect::<Vec<_>>().join(",")
}

#[test]
fn lists_of_steps_are_read_as_written() {
    for text in ["3", "3,17,40-44", "0-1,3"] {
        assert_eq!(format(&parse(text)), text);
    }
}
