//! Courses of random steps on images of a model of a cluster. See [`course`].
//!
//! Each configuration is a test of its own. Variables change what they do:
//!
//! ```text
//! RBD_TORTURE_OPERATIONS=100000   operations of each configuration (2000)
//! RBD_TORTURE_SEED=7              the seed (1)
//! RBD_TORTURE_ONLY=3,17,40-44     these steps only: a course that failed
//! RBD_TORTURE_LOG=1               prints what the steps do
//! ```
//!
//! A course that fails is made shorter: steps are left out as long as it fails. The message tells
//! how to repeat the shortest one.

pub mod course;
mod model;
mod shrink;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use course::{CONFIGS, Config, Counts, Course};
use model::ModelCarrier;

/// Operations of each configuration, unless the variable says otherwise.
const OPERATIONS: u64 = 2_000;

/// Which steps a course has.
#[derive(Clone, Debug)]
enum Steps {
    /// From 0 on, until so many operations are done.
    Operations(u64),
    Only(Vec<u64>),
}

/// A course that failed.
struct Failed {
    /// `u64::MAX`: at the end, or in the beginning.
    step: u64,
    why: String,
    log: Vec<String>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn number(name: &str, default: u64) -> u64 {
    variable(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Runs a course. Gives the number of steps too.
fn run(config: &Config, seed: u64, steps: &Steps) -> Result<(Counts, u64), Failed> {
    let mut carrier = ModelCarrier::new(seed);
    let (mut at, mut log) = (u64::MAX, Vec::new());
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut course = Course::begin(&mut carrier, config, seed)?;
        let mut done = 0;
        let mut take = |course: &mut Course<_>, step| {
            at = step;
            let taken = course.take(step);
            log.append(&mut course.log);
            done += 1;
            taken
        };
        match steps {
            Steps::Operations(wanted) => {
                for step in 0.. {
                    if course.counts.operations >= *wanted {
                        break;
                    }
                    take(&mut course, step)?;
                }
            }
            Steps::Only(only) => {
                for &step in only {
                    take(&mut course, step)?;
                }
            }
        }
        at = u64::MAX;
        course.end()?;
        Ok((course.counts, done))
    }));
    let why = match result {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(why)) => why,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_else(|| "a panic".to_owned())
        }
    };
    Err(Failed { step: at, why, log })
}

fn torture(name: &str) {
    let config = CONFIGS.iter().find(|config| config.name == name).expect("it is in the list");
    let seed = number("RBD_TORTURE_SEED", 1);
    let steps = match variable("RBD_TORTURE_ONLY") {
        Some(text) => Steps::Only(shrink::parse(&text)),
        None => Steps::Operations(number("RBD_TORTURE_OPERATIONS", OPERATIONS)),
    };
    let began = Instant::now();
    match run(config, seed, &steps) {
        Ok((counts, steps)) => {
            println!("{name}, seed {seed}: {steps} steps, {:.1?}, {counts:?}", began.elapsed());
            if variable("RBD_TORTURE_ONLY").is_none() {
                let few = counts.operations / 500;
                let rare = [counts.clones, counts.flattened, counts.snapshots, counts.resizes];
                assert!(rare.iter().all(|&count| count >= few), "the course is dull: {counts:?}");
            }
        }
        Err(Failed { step, why, log }) => {
            let only = shrink::shrink(config, seed, &steps);
            let shortest = run(config, seed, &Steps::Only(only.clone()));
            let Failed { why: again, log, .. } =
                shortest.err().unwrap_or_else(|| Failed { step, why: why.clone(), log });
            panic!(
                "configuration {name}, seed {seed}, step {step}: {why}\n{} steps are enough: \
                 {again}\n{}\nRBD_TORTURE_SEED={seed} RBD_TORTURE_ONLY={} cargo test -p \
                 fieldstone-rbd --test images torture::{}",
                only.len(),
                log.join("\n"),
                shrink::format(&only),
                name.replace('-', "_"),
            );
        }
    }
}

#[test]
fn layering() {
    torture("layering");
}

#[test]
fn default() {
    torture("default");
}

#[test]
fn striped() {
    torture("striped");
}

#[test]
fn data_pool() {
    torture("data-pool");
}

#[test]
fn mixed() {
    torture("mixed");
}
