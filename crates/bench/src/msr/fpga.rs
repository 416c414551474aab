//! The FPGA: cycles of the simulated device for a `CODE`, turned into rates.
//!
//! The cycles are those of whole operations: data read from card memory, coded and written back.
//! The program is in the engine already, as the paper's tables are. Cycles depend neither on the
//! machine nor on its load, so `fpga_cycles.json` keeps them for builds without Verilator; a test
//! with the device checks that they still hold. `fieldstone bench msr-throughput --json F` of a
//! build with the device gives `cycles` and `objects` of each row for that file.
//!
//! The device has one codes engine with one port of card memory, where the paper has twelve
//! processing units on four channels. It has not been placed and routed, so there is no clock of
//! its own. Two clocks stand in: [`ESTIMATED_MHZ`], and the paper's.

use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use fieldstone_accel::Job;
use fieldstone_codes::Profile;
use fieldstone_fpga::FpgaDevice;
use fieldstone_fpga::flight::DeviceOperation;
use fieldstone_fpga::simulated::{self, Running};
use fieldstone_gf::LinearMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use super::case::{
    DATA_ELEMENTS, Findings, LOST, PROFILE, Point, SIZES, SURVIVORS, Who, Work, case_name,
};
use super::{Check, paper};

/// The lower end of `fpga report`'s estimate for `codes_engine` (151 to 416 MHz; docs/fpga.md). The
/// estimate follows from the cells on the deepest paths of the synthesis in
/// `rtl/synth/results.json`, and is kinder than routing is.
pub const ESTIMATED_MHZ: f64 = 151.0;
/// The largest object of one job: the driver's bound for a job.
const JOB_BYTES_MAX: usize = 16 << 20;
/// The driver's bounds for jobs that become one operation: jobs, and bytes read and written.
const BATCH_JOBS_MAX: usize = 16;
const BATCH_BYTES_MAX: usize = 4 << 20;
/// What a run with the device says of its cycles.
const COUNTED: &str = "fpga: cycles counted by the simulated device in this run, of objects up to \
                       16M; 64M is four times the job of 16M";
/// The recorded cycles.
const RECORDED: &str = include_str!("fpga_cycles.json");

/// The cycles of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cycles {
    /// The work on each object, such as `encode/16K`.
    pub case: String,
    /// Objects of the operation.
    pub objects: usize,
    /// Cycles from its start to its completion.
    pub cycles: u64,
}

/// Adds the points of the device: measured now if this build has it, otherwise recorded.
///
/// # Errors
/// The run was interrupted, a result is wrong, or the recorded file is not valid.
pub fn measure(check: Check<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let largest = SIZES.into_iter().max().unwrap_or(0);
    let all = match simulated::start(None) {
        Ok(running) => {
            found.notes.push(COUNTED.to_owned());
            cycles_of_all(&running, largest, check)?
        }
        Err(error) => {
            found.notes.push(format!(
                "fpga: cycles recorded in crates/bench/src/msr/fpga_cycles.json: {error}"
            ));
            recorded()?
        }
    };
    found.points.extend(points(&all));
    Ok(())
}

/// The recorded cycles.
///
/// # Errors
/// The file is not valid.
pub fn recorded() -> anyhow::Result<Vec<Cycles>> {
    serde_json::from_str(RECORDED).context("fpga_cycles.json")
}

/// Objects of one operation: a whole batch of small objects.
fn batch(object_bytes: usize) -> usize {
    // An encode writes half of what it reads; a rebuild moves less.
    let moved = object_bytes + object_bytes / 2;
    (BATCH_BYTES_MAX / moved.max(1)).clamp(1, BATCH_JOBS_MAX)
}

fn map_of(work: Work) -> anyhow::Result<Arc<LinearMap>> {
    let profile: Profile = PROFILE.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
    let code = profile.code();
    Ok(match work {
        Work::Encode => Arc::clone(code.encode()),
        Work::Rebuild => Arc::clone(&code.repair(&LOST, &SURVIVORS)?.map),
    })
}

/// Measures single objects and batches of objects of at most `limit` bytes.
fn cycles_of_all(running: &Running, limit: usize, check: Check<'_>) -> anyhow::Result<Vec<Cycles>> {
    let mut device = FpgaDevice::open(&running.card, false)?;
    let mut all = Vec::new();
    let sizes: Vec<usize> = SIZES.into_iter().filter(|bytes| *bytes <= limit).collect();
    let bar = super::super::case_bar("bench msr-throughput, FPGA", 2 * sizes.len());
    for work in Work::ALL {
        let map = map_of(work)?;
        // The first operation also loads the program, so it does not count.
        cycles(&mut device, &map, SIZES[0], 1)?;
        for &object_bytes in &sizes {
            check()?;
            bar.set_message(case_name(work, object_bytes));
            let mut counts = vec![1, batch(object_bytes)];
            counts.dedup();
            for objects in counts {
                // A larger object is cut in columns into jobs that follow each other.
                let jobs = object_bytes.div_ceil(JOB_BYTES_MAX) as u64;
                let job_bytes = object_bytes.min(JOB_BYTES_MAX);
                let case = case_name(work, object_bytes);
                let one = cycles(&mut device, &map, job_bytes, objects)
                    .with_context(|| format!("{objects} x {case}"))?;
                all.push(Cycles { case, objects, cycles: one * jobs });
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(all)
}

/// The cycles of one operation on so many objects.
fn cycles(
    device: &mut FpgaDevice,
    map: &Arc<LinearMap>,
    object_bytes: usize,
    objects: usize,
) -> anyhow::Result<u64> {
    let element_bytes = object_bytes / DATA_ELEMENTS;
    let byte = |at: usize| (at.wrapping_mul(2_654_435_761) >> 16) as u8;
    let shard = |seed: usize, elements: u32| -> Bytes {
        (0..elements as usize * element_bytes).map(|at| byte(at + seed * 77)).collect()
    };
    let job = |object: usize| {
        let elements = map.shape().input_elements.iter().enumerate();
        let inputs = elements.map(|(index, count)| shard(object * 8 + index, *count)).collect();
        Job::code(Arc::clone(map), inputs)
    };
    let jobs: Vec<Job> = (0..objects).map(job).collect();
    let cycles = crate::fpga::cycles_of(device, &jobs, DeviceOperation::Code)?;
    Ok(cycles as u64)
}

/// The points that follow from cycles, at both clocks.
fn points(all: &[Cycles]) -> Vec<Point> {
    let mut points = Vec::new();
    let cases = Work::ALL.into_iter().flat_map(|work| SIZES.map(|size| (work, size)));
    for (work, object_bytes) in cases {
        let name = case_name(work, object_bytes);
        let of_case = || all.iter().filter(|cycles| cycles.case == name && cycles.cycles > 0);
        let Some(most) = of_case().max_by_key(|cycles| cycles.objects) else { continue };
        let mut add = |cycles: &Cycles, whos: [(Who, f64); 2]| {
            for (who, mhz) in whos {
                points.push(point(work, object_bytes, cycles, who, mhz));
            }
        };
        let mhz = [ESTIMATED_MHZ, paper::CLOCK_MHZ];
        add(most, [(Who::Fpga, mhz[0]), (Who::FpgaPaperClock, mhz[1])]);
        if let Some(single) = of_case().find(|cycles| cycles.objects == 1 && most.objects > 1) {
            add(single, [(Who::FpgaSingle, mhz[0]), (Who::FpgaSinglePaperClock, mhz[1])]);
        }
    }
    points
}

fn point(work: Work, object_bytes: usize, cycles: &Cycles, who: Who, mhz: f64) -> Point {
    let bytes = (object_bytes * cycles.objects) as f64;
    let mut more = Map::new();
    more.insert("cycles".to_owned(), json!(cycles.cycles));
    more.insert("objects".to_owned(), json!(cycles.objects));
    more.insert("mhz".to_owned(), json!(mhz));
    let gb_per_second = bytes / cycles.cycles as f64 * mhz / 1e3;
    Point { work, object_bytes, who, gb_per_second, seconds: 0.0, more }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_cycles_make_the_figure_complete() {
        let found = Findings { points: points(&recorded().expect("valid")), ..Findings::default() };
        for work in Work::ALL {
            for object_bytes in SIZES {
                for who in [Who::Fpga, Who::FpgaPaperClock] {
                    let point = found.point(work, object_bytes, who).expect("a point");
                    // The port moves 64 bytes per cycle each way; a rebuild reads 5/8 of an object.
                    let mhz = if who == Who::Fpga { ESTIMATED_MHZ } else { paper::CLOCK_MHZ };
                    let read = if work == Work::Encode { 1.0 } else { 0.625 };
                    let limit = 64.0 * mhz / 1e3 / read;
                    let rate = point.gb_per_second;
                    assert!(rate > limit / 10.0 && rate <= limit, "{}: {rate}", point.name());
                }
            }
        }
    }

    #[test]
    fn cycles_become_rates_at_both_clocks() {
        let entry = |objects, cycles| Cycles { case: "encode/16K".to_owned(), objects, cycles };
        let found = points(&[entry(1, 512), entry(16, 16 * 256)]);
        let rates: Vec<(&str, f64)> =
            found.iter().map(|point| (point.who.name(), point.gb_per_second)).collect();
        let expected = [
            ("fpga-151", 9.664),
            ("fpga-300", 19.2),
            ("fpga-151-single", 4.832),
            ("fpga-300-single", 9.6),
        ];
        assert_eq!(rates.len(), expected.len());
        for ((who, rate), (name, expected)) in rates.into_iter().zip(expected) {
            assert!(who == name && (rate - expected).abs() < 1e-9, "{who} {rate}");
        }
        assert!(points(&[entry(1, 0)]).is_empty(), "no cycles are no rate");
    }

    /// Only objects above one job are multiplied, and the report says which.
    #[test]
    fn multiplied_cycles_are_told() {
        let jobs = |bytes: usize| bytes.div_ceil(JOB_BYTES_MAX);
        let multiplied: Vec<(usize, usize)> =
            SIZES.iter().map(|&bytes| (bytes, jobs(bytes))).filter(|(_, jobs)| *jobs > 1).collect();
        assert_eq!(multiplied, [(64 << 20, 4)], "{COUNTED}");
        assert!(COUNTED.contains("64M is four times the job of 16M"));
    }

    #[test]
    fn batches_stay_within_the_drivers_bounds() {
        let counts = SIZES.map(batch);
        assert_eq!(counts, [16, 16, 10, 2, 1, 1, 1]);
    }

    /// Only a build with the device can check this: `--features fieldstone-fpga/rtl`.
    #[test]
    fn recorded_cycles_still_hold() {
        const LIMIT: usize = 256 << 10;
        let Ok(running) = simulated::start(None) else { return };
        let found = cycles_of_all(&running, LIMIT, &|| Ok(())).expect("the device computes");
        let recorded = recorded().expect("valid");
        for cycles in found {
            assert!(recorded.contains(&cycles), "now {cycles:?}, not as in fpga_cycles.json");
        }
    }
}
