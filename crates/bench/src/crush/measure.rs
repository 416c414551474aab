//! Measures the contenders in this process. They take turns of a few milliseconds each.
//!
//! Before any timing, a check compares the contenders' results. Every sample has new inputs, so no
//! contender can remember results.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::ensure;
use fieldstone_crush::{ItemId, WEIGHT_ONE};

use super::case::Case;
use super::libcrush::{CMap, Libcrush};

/// The aim for the length of a sample.
const SAMPLE: Duration = Duration::from_millis(4);
/// Inputs that are compared before a case is timed.
const COMPARED_INPUTS: u32 = 2000;

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// Our batch mapper.
    Batch,
    /// Our mapper, one input at a time.
    Single,
    /// Ceph's C mapper.
    Libcrush,
}

/// Nanoseconds per mapping, one number per round.
#[derive(Debug, Default)]
pub struct Samples {
    /// The numbers of each [`Contender`].
    pub ns: [Vec<f64>; 3],
    /// Time of all samples, in seconds.
    pub seconds: f64,
}

/// Runs a case for `rounds` rounds.
///
/// # Errors
/// The library refuses the map, or contenders give different results.
pub fn measure(case: &Case, library: Option<&Libcrush>, rounds: u32) -> anyhow::Result<Samples> {
    let weights = vec![WEIGHT_ONE; case.map.max_devices() as usize];
    let mut c_map = library.map(|library| library.map(&case.map, case.width)).transpose()?;
    let mut measurement = Measurement { case, weights, c_map: c_map.as_mut(), next_x: 0 };
    measurement.compare()?;
    let mut contenders = vec![Contender::Batch, Contender::Single];
    contenders.extend(library.map(|_| Contender::Libcrush));
    // Mappings per sample, for each contender.
    let mut counts = Vec::new();
    for &contender in &contenders {
        let mut count = 256;
        while measurement.sample(contender, count) < SAMPLE && count < 1 << 20 {
            count *= 2;
        }
        counts.push(count);
    }
    let mut samples = Samples::default();
    for round in 0..rounds as usize {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            let (contender, count) = (contenders[at], counts[at]);
            let seconds = measurement.sample(contender, count).as_secs_f64();
            samples.ns[contender as usize].push(seconds * 1e9 / f64::from(count));
            samples.seconds += seconds;
        }
    }
    Ok(samples)
}

struct Measurement<'a> {
    case: &'a Case,
    weights: Vec<u32>,
    c_map: Option<&'a mut CMap>,
    next_x: u32,
}

impl Measurement<'_> {
    /// Maps the next `count` inputs. Returns the time.
    fn sample(&mut self, contender: Contender, count: u32) -> Duration {
        let (first, width) = (self.next_x, self.case.width);
        self.next_x = first.wrapping_add(count);
        let xs: Vec<u32> = (0..count).map(|x| first.wrapping_add(x)).collect();
        let rule = self.case.map.rule(self.case.rule).expect("the case has its rule");
        let begin = Instant::now();
        match contender {
            Contender::Batch => drop(black_box(rule.map_rows(&xs, width, &self.weights))),
            Contender::Single => {
                for &x in &xs {
                    black_box(rule.map(x, width, &self.weights));
                }
            }
            Contender::Libcrush => {
                let mut result = vec![0; width];
                if let Some(c_map) = &mut self.c_map {
                    for &x in &xs {
                        black_box(c_map.map(self.case.rule.0, x, &self.weights, &mut result));
                    }
                }
            }
        }
        begin.elapsed()
    }

    /// Checks that all contenders give the same results.
    fn compare(&mut self) -> anyhow::Result<()> {
        let case = self.case;
        let rule = case.map.rule(case.rule)?;
        let xs: Vec<u32> = (0..COMPARED_INPUTS).collect();
        let rows = rule.map_rows(&xs, case.width, &self.weights);
        let mut result = vec![0; case.width];
        for (&x, row) in xs.iter().zip(rows.iter()) {
            let single = rule.map_items(x, case.width, &self.weights);
            let single: Vec<ItemId> =
                single.into_iter().map(|item| item.unwrap_or(ItemId::NONE)).collect();
            ensure!(single == row, "{}: batch and single mapper differ at x {x}", case.name);
            if let Some(c_map) = &mut self.c_map {
                let len = c_map.map(case.rule.0, x, &self.weights, &mut result);
                let theirs = result[..len].iter().map(|&item| ItemId(item));
                ensure!(
                    theirs.eq(row.iter().copied()),
                    "{}: the C mapper gives {:?} for x {x}, ours {row:?}",
                    case.name,
                    &result[..len]
                );
            }
        }
        Ok(())
    }
}
