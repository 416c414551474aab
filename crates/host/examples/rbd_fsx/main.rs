//! Courses of random steps on images of a real cluster, against a model in memory.
//!
//! ```text
//! rbd_fsx --conf FILE [--pool POOL] [--config NAME] [--seed N] [--operations N] [--kills N]
//!     [--folder DIR] [--every N]
//! ```
//!
//! The steps are those of the tests of the crate `rbd`; see `course` there. `tests/ceph_fsx.py`
//! runs this program. At each `--every`th checkpoint it prints a line, waits for a line on its
//! input, and goes on if that is `ok`:
//!
//! ```text
//! check POOL/IMAGE[@SNAPSHOT] FILE [map] [killed]
//! ```
//!
//! `FILE` has the bytes that the image must have. `map`: it has an object map. `killed`: a client
//! of it has died, and the map may have objects that do not exist. `--kills` is the number of
//! 10,000 steps in which the client dies; the next one waits half a minute for the lock.
//!
//! The last line is `done`, with counts. A course that fails ends with exit code 1, and says the
//! seed, the step, and what the last steps did.

mod cluster;
#[path = "../../../rbd/tests/images/torture/course/mod.rs"]
mod course;

use std::process::ExitCode;

use cluster::ClusterCarrier;
use course::{CONFIGS, Config, Course};

/// Steps of which a failure tells.
const LOG_LINES: usize = 40;

struct Options {
    conf: String,
    pool: String,
    config: Config,
    seed: u64,
    operations: u64,
    folder: String,
    every: u64,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        conf: String::new(),
        pool: "rbd".to_owned(),
        config: CONFIGS[1].clone(),
        seed: 1,
        operations: 1_000,
        folder: ".".to_owned(),
        every: 1,
    };
    let mut kills = None;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} has no value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{word} {value}: {error}"));
        match word.as_str() {
            "--conf" => options.conf = value,
            "--pool" => options.pool = value,
            "--folder" => options.folder = value,
            "--seed" => options.seed = number()?,
            "--operations" => options.operations = number()?,
            "--every" => options.every = number()?.max(1),
            "--kills" => kills = Some(number()?),
            "--config" => {
                let config = CONFIGS.iter().find(|config| config.name == value);
                options.config = config.ok_or(format!("no configuration {value}"))?.clone();
            }
            _ => return Err(format!("there is no option {word}")),
        }
    }
    options.config.kills = kills.unwrap_or(0);
    Ok(options)
}

fn run(options: &Options) -> Result<(), String> {
    let Options { config, seed, .. } = options;
    let place = (options.folder.as_str(), options.every);
    let mut carrier = ClusterCarrier::connect(&options.conf, &options.pool, place)?;
    let mut course = Course::begin(&mut carrier, config, *seed)?;
    let mut step = 0;
    let mut result = Ok(());
    while result.is_ok() && course.counts.operations < options.operations {
        result = course.take(step);
        step += 1;
        let excess = course.log.len().saturating_sub(LOG_LINES);
        course.log.drain(..excess);
    }
    if result.is_ok() {
        result = course.end();
    }
    result.map_err(|why| {
        let log = course.log.join("\n");
        format!("{log}\nconfiguration {}, seed {seed}, step {}: {why}", config.name, step - 1)
    })?;
    println!("done: {step} steps, {:?}", course.counts);
    Ok(())
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
