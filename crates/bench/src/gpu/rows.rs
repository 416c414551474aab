//! The numbers of a run, its targets, and its rows.

use fieldstone_gpu::driver::CardInfo;
use serde_json::json;

use super::case::{Case, Part, Sizes, TARGET_BYTES_MIN};
use super::{host, on_card};
use crate::row::{Better, Row};
use crate::stats::{median, quotient};

/// Name of this benchmark.
pub const NAME: &str = "gpu";
/// The unit of all rows.
pub const UNIT: &str = "GB/s";
/// The peer of a program: the card's own copy of as many bytes.
pub const COPY: &str = "copy on the card";
/// The peer of a job: the copies that it needs.
pub const LINK: &str = "the link";
/// The other peer of a job.
pub const SOFTWARE: &str = "software, one core";

/// The least part of the rate of the card's copy.
const COPY_TARGET: f64 = 0.8;
/// The least part of the rate of the link.
const LINK_TARGET: f64 = 0.9;

/// What a case measured.
#[derive(Clone, Debug)]
pub enum Numbers {
    /// A program, and the registers of a thread.
    Card(on_card::Times, u32),
    /// The chosen program and then those with one method each, with the names and the registers.
    Methods(on_card::Times, Vec<(&'static str, u32)>),
    /// Jobs.
    Host(host::Times),
}

/// A case that is measured.
#[derive(Clone, Debug)]
pub struct Done {
    /// The case.
    pub case: Case,
    /// Its sizes.
    pub sizes: Sizes,
    /// Its numbers.
    pub numbers: Numbers,
}

/// Bytes for each of the times, in GB/s: the median.
fn rate(bytes: u64, times: &[f64]) -> Option<f64> {
    median(times).and_then(|seconds| quotient(bytes as f64 / 1e9, seconds))
}

/// All rows of a run.
pub fn rows(cases: &[Done], info: &CardInfo) -> Vec<Row> {
    let plateau = plateau(cases);
    let of = |done: &Done| {
        let mut rows = match &done.numbers {
            Numbers::Card(times, registers) => vec![card_row(done, times, *registers, plateau)],
            Numbers::Methods(times, programs) => method_rows(done, times, programs, plateau),
            Numbers::Host(times) => host_rows(done, times),
        };
        for row in &mut rows {
            row.more.insert("part".to_owned(), json!(done.case.part.name()));
            row.more.insert("object_bytes".to_owned(), json!(done.sizes.object_bytes));
            row.more.insert("card".to_owned(), json!(info.name));
            row.more.insert("driver".to_owned(), json!(info.driver));
        }
        rows
    };
    cases.iter().flat_map(of).collect()
}

/// The highest rate of the copy with the largest objects of the run.
fn plateau(cases: &[Done]) -> Option<f64> {
    let copies = |done: &Done| match &done.numbers {
        Numbers::Card(times, _) | Numbers::Methods(times, _) => {
            let rate = rate(done.sizes.moved_bytes(), &times.copy)?;
            Some((done.case.object_bytes, rate))
        }
        Numbers::Host(_) => None,
    };
    let copies: Vec<(u64, f64)> = cases.iter().filter_map(copies).collect();
    let largest = copies.iter().map(|(bytes, _)| *bytes).max()?;
    let rates = copies.iter().filter(|(bytes, _)| *bytes == largest).map(|(_, rate)| *rate);
    rates.max_by(f64::total_cmp)
}

/// A target that only large objects have.
fn large(case: &Case, target: f64) -> Option<f64> {
    (case.object_bytes >= TARGET_BYTES_MIN).then_some(target)
}

fn row(done: &Done, peer: &str, rates: (Option<f64>, Option<f64>), times: &[f64]) -> Row {
    let mut row = Row::new(NAME, done.case.name(), UNIT, Better::More, rates);
    row.peer = Some(peer.to_owned());
    let object_gbs = rate(done.sizes.object_bytes, times);
    row.more.insert("object_gbs".to_owned(), json!(object_gbs));
    row.more.insert("us".to_owned(), json!(median(times).map(|seconds| seconds * 1e6)));
    row
}

fn card_row(done: &Done, times: &on_card::Times, registers: u32, limit: Option<f64>) -> Row {
    let moved = done.sizes.moved_bytes();
    let ours = times.programs.first().map_or(&[][..], Vec::as_slice);
    let mut row = row(done, COPY, (rate(moved, ours), rate(moved, &times.copy)), ours)
        .limit(limit)
        .at_least(large(&done.case, COPY_TARGET));
    row.seconds = times.seconds;
    row.more.insert("registers".to_owned(), json!(registers));
    row
}

/// One row for each method. Ours is the program with the methods that the compiler chooses.
fn method_rows(
    done: &Done,
    times: &on_card::Times,
    programs: &[(&'static str, u32)],
    limit: Option<f64>,
) -> Vec<Row> {
    let moved = done.sizes.moved_bytes();
    let mut all = times.programs.iter().zip(programs);
    let Some((ours, (_, registers))) = all.next() else { return Vec::new() };
    let of = |(theirs, (name, their_registers)): (&Vec<f64>, &(&'static str, u32))| {
        let rates = (rate(moved, ours), rate(moved, theirs));
        let mut row = row(done, name, rates, ours).limit(limit);
        row.seconds = times.seconds;
        row.more.insert("registers".to_owned(), json!(registers));
        row.more.insert("their_registers".to_owned(), json!(their_registers));
        row
    };
    all.map(of).collect()
}

fn host_rows(done: &Done, times: &host::Times) -> Vec<Row> {
    let bytes = done.sizes.object_bytes;
    let (ours, link) = (rate(bytes, &times.device), rate(bytes, &times.link));
    let of = |peer, theirs, target| {
        let mut row = row(done, peer, (ours, theirs), &times.device).limit(link).at_least(target);
        row.seconds = times.seconds;
        row.more.insert("in_flight".to_owned(), json!(times.in_flight));
        row
    };
    let software = rate(bytes, &times.software);
    vec![of(LINK, link, large(&done.case, LINK_TARGET)), of(SOFTWARE, software, None)]
}

/// The size from which on the card is faster than one core, for the cases of one code and work in
/// ascending order of size. `None` if it is not with the largest object.
pub fn crossover(cases: &[&Done]) -> Option<u64> {
    let faster = |done: &&&Done| match &done.numbers {
        Numbers::Host(times) => {
            let (device, software) = (median(&times.device), median(&times.software));
            device.zip(software).is_some_and(|(device, software)| device < software)
        }
        _ => false,
    };
    cases.iter().rev().take_while(faster).last().map(|done| done.case.object_bytes)
}

/// True for cases of the queue of jobs.
pub fn is_host(done: &Done) -> bool {
    done.case.part == Part::Host
}
