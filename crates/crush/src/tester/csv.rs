//! crushtool's data sets: comma-separated files from which other programs draw charts.
//!
//! A trial gives six files, or eight when it is cut into batches. Their names start with
//! `PREFIX-RULE-`, where RULE is the rule's name. A later trial of the same rule overwrites them.
//! The files of batches differ from crushtool's. crushtool names a column for every device that
//! stores an object, but writes one for every device of the map, and its file of the expectation of
//! each batch repeats the stored numbers. Fieldstone's files name all columns, and contain the
//! expectation.

use super::expect::Expected;
use super::text::{decimal, float};
use super::{MappingChunk, Tally};
use crate::ItemId;

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSet {
    /// The last part of its name, `absolute_weights` for example.
    pub name: &'static str,
    /// Its content.
    pub text: Vec<u8>,
}

/// Collects the data sets of a trial.
#[derive(Clone, Debug)]
pub struct Recorder {
    width: usize,
    placements: Vec<u8>,
    batches: Vec<Tally>,
    /// Mappings of each batch except the last, which has the rest.
    batch_mappings: u64,
    seen: u64,
}

impl Recorder {
    /// For a trial of `mappings` mappings of the width `width`, cut into `batches` batches (at
    /// least one). The map has room for `devices` devices.
    #[must_use]
    pub fn new(mappings: u64, width: usize, batches: usize, devices: usize) -> Self {
        let batches = batches.max(1);
        Self {
            width,
            placements: Vec::new(),
            batches: vec![Tally::new(devices); batches],
            batch_mappings: mappings / batches as u64,
            seen: 0,
        }
    }

    /// Records the next chunk.
    pub fn record(&mut self, chunk: &MappingChunk) {
        let last = self.batches.len() - 1;
        for (x, items) in chunk.iter() {
            let batch = self.seen.checked_div(self.batch_mappings).unwrap_or(u64::MAX);
            self.batches[last.min(usize::try_from(batch).unwrap_or(last))].add(items, self.width);
            self.seen += 1;
            row(&mut self.placements, x.into(), items.iter().map(|&ItemId(item)| item.into()));
        }
    }

    /// The files. `tally` is that of the whole trial, `weights` are the reweights.
    #[must_use]
    pub fn finish(self, tally: &Tally, expected: &Expected, weights: &[u32]) -> Vec<DataSet> {
        let objects = expected.objects(tally.mappings);
        let stored = |osd: usize| format!("{},{}", tally.stored[osd], float(objects[osd]));
        let share = |osd: usize| float(expected.shares[osd]);
        let absolute = |osd: usize| float(weights[osd] as f32 / 65536.0);
        let all = 0..tally.stored.len();
        let used = all.clone().filter(|&osd| objects[osd] > 0.0 && tally.stored[osd] > 0);
        let sharing = all.clone().filter(|&osd| expected.shares[osd] > 0.0);
        let utilization = "Device ID, Number of Objects Stored, Number of Objects Expected";
        let shares = "Device ID, Proportional Weight";
        let mut sets = vec![
            by_device("absolute_weights", "Device ID, Absolute Weight", all.clone(), absolute),
            by_device("device_utilization", utilization, used, stored),
            by_device("device_utilization_all", utilization, all.clone(), stored),
            by_device("proportional_weights", shares, sharing, share),
            by_device("proportional_weights_all", shares, all, share),
        ];
        let columns: String = (0..self.width).map(|position| format!(", OSD{position}")).collect();
        let mut text = format!("Input{columns}\n").into_bytes();
        text.extend_from_slice(&self.placements);
        sets.push(DataSet { name: "placement_information", text });
        if self.batches.len() > 1 {
            sets.push(by_batch("batch_device_utilization_all", "Stored", &self.batches, |batch| {
                batch.stored.iter().map(u64::to_string).collect()
            }));
            let name = "batch_device_expected_utilization_all";
            sets.push(by_batch(name, "Expected", &self.batches, |batch| {
                expected.objects(batch.mappings).into_iter().map(float).collect()
            }));
        }
        sets
    }
}

/// Appends a row of numbers.
fn row(out: &mut Vec<u8>, first: i64, rest: impl Iterator<Item = i64>) {
    decimal(out, first);
    for number in rest {
        out.push(b',');
        decimal(out, number);
    }
    out.push(b'\n');
}

fn by_device(
    name: &'static str,
    heading: &str,
    osds: impl Iterator<Item = usize>,
    value: impl Fn(usize) -> String,
) -> DataSet {
    let rows: String = osds.map(|osd| format!("{osd},{}\n", value(osd))).collect();
    DataSet { name, text: format!("{heading}\n{rows}").into_bytes() }
}

fn by_batch(
    name: &'static str,
    what: &str,
    batches: &[Tally],
    values: impl Fn(&Tally) -> Vec<String>,
) -> DataSet {
    let devices = batches.first().map_or(0, |batch| batch.stored.len());
    let columns: String = (0..devices).map(|osd| format!(", Objects {what} on OSD{osd}")).collect();
    let row = |(round, batch): (usize, &Tally)| format!("{round},{}\n", values(batch).join(","));
    let rows: String = batches.iter().enumerate().map(row).collect();
    DataSet { name, text: format!("Batch Round{columns}\n{rows}").into_bytes() }
}
