//! Sums up the rounds of one case and contender: medians, and their spread.

use serde::Serialize;

use super::case::Case;
use super::contender::Contender;
use super::measure::{Cell, Results};
use crate::stats::{mean, median, quotient, range, standard_deviation};

/// Medians over the rounds of one contender in one case.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Rounds.
    pub runs: usize,
    /// I/Os per second.
    pub iops: f64,
    /// Bandwidth in 10^6 bytes per second.
    pub mb_per_second: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// Latency that 1 % of the I/Os exceed.
    pub p99_us: f64,
    /// CPU time of the client per I/O.
    pub client_cpu_us_per_io: f64,
    /// CPU time of the server per I/O; null for the raw disk.
    pub server_cpu_us_per_io: Option<f64>,
    /// The part of the server's CPU time after the last reply, per I/O; null for the raw disk.
    pub deferred_cpu_us_per_io: Option<f64>,
    /// Context switches of client and server per I/O.
    pub switches_per_io: f64,
    /// Standard deviation of the bandwidth over the rounds; null for one round.
    pub mb_per_second_sd: Option<f64>,
    /// Standard deviation of the I/Os per second; null for one round.
    pub iops_sd: Option<f64>,
    /// Standard deviation of the mean latency; null for one round.
    pub mean_us_sd: Option<f64>,
    /// Time measured.
    pub seconds: f64,
}

impl Summary {
    /// Sums up cells. `None` without cells. `served` is false for the raw disk.
    pub fn of(cells: &[Cell], served: bool) -> Option<Self> {
        let each = |value: fn(&Cell) -> f64| cells.iter().map(value).collect::<Vec<f64>>();
        let middle = |value: fn(&Cell) -> f64| median(&each(value));
        let mb_per_second = each(|cell| cell.fio.bytes_per_second / 1e6);
        let iops = each(|cell| cell.fio.iops);
        let mean_us = each(|cell| cell.fio.mean_us);
        let server = |value: fn(&Cell) -> f64| if served { middle(value) } else { None };
        Some(Self {
            runs: cells.len(),
            iops: median(&iops)?,
            mb_per_second: median(&mb_per_second)?,
            mean_us: median(&mean_us)?,
            p50_us: middle(|cell| cell.fio.p50_us)?,
            p99_us: middle(|cell| cell.fio.p99_us)?,
            client_cpu_us_per_io: middle(|cell| per_io(cell.fio.cpu_s * 1e6, cell))?,
            server_cpu_us_per_io: server(|cell| per_io(cell.server_cpu_s * 1e6, cell)),
            deferred_cpu_us_per_io: server(|cell| per_io(cell.deferred_cpu_s * 1e6, cell)),
            switches_per_io: middle(|cell| {
                per_io((cell.fio.switches + cell.server_switches) as f64, cell)
            })?,
            mb_per_second_sd: standard_deviation(&mb_per_second),
            iops_sd: standard_deviation(&iops),
            mean_us_sd: standard_deviation(&mean_us),
            seconds: cells.iter().map(|cell| cell.fio.seconds).sum(),
        })
    }

    /// CPU time of client and server per I/O.
    pub fn cpu_us_per_io(&self) -> f64 {
        self.client_cpu_us_per_io + self.server_cpu_us_per_io.unwrap_or(0.0)
    }

    /// The main number of a case: 10^6 bytes per second, or I/Os per second.
    pub fn headline(&self, case: &Case) -> f64 {
        if case.is_bandwidth() { self.mb_per_second } else { self.iops }
    }
}

fn per_io(value: f64, cell: &Cell) -> f64 {
    quotient(value, cell.fio.ios as f64).unwrap_or(0.0)
}

/// The unit of [`Summary::headline`].
pub fn headline_unit(case: &Case) -> &'static str {
    if case.is_bandwidth() { "MB/s" } else { "IOPS" }
}

/// The summary of one case and contender.
pub fn summary(results: &Results, case: usize, contender: Contender) -> Option<Summary> {
    let cells = results.cells.get(&(case, contender))?;
    Summary::of(cells, contender.has_server())
}

/// The smallest and the largest ratio of I/Os per second within a round: a measure of the noise.
pub fn ratio_range(
    results: &Results,
    case: usize,
    ours: Contender,
    theirs: Contender,
) -> Option<(f64, f64)> {
    let ours = results.cells.get(&(case, ours))?;
    let theirs = results.cells.get(&(case, theirs))?;
    let pairs = ours.iter().zip(theirs);
    let ratios: Vec<f64> =
        pairs.filter_map(|(ours, theirs)| quotient(ours.fio.iops, theirs.fio.iops)).collect();
    range(&ratios)
}

/// The means over the rounds, which the papers report, of bandwidth (10^6 bytes per second), I/Os
/// per second and latency (microseconds).
pub fn means(cells: &[Cell]) -> Option<[f64; 3]> {
    let of = |value: fn(&Cell) -> f64| mean(&cells.iter().map(value).collect::<Vec<f64>>());
    Some([
        of(|cell| cell.fio.bytes_per_second / 1e6)?,
        of(|cell| cell.fio.iops)?,
        of(|cell| cell.fio.mean_us)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Measured;

    fn cell(iops: f64, ios: u64, cpu_s: f64) -> Cell {
        let bytes_per_second = iops * 4096.0;
        let fio =
            Measured { ios, iops, bytes_per_second, cpu_s, seconds: 2.0, ..Measured::default() };
        Cell { fio, server_cpu_s: cpu_s * 2.0, deferred_cpu_s: cpu_s, server_switches: ios }
    }

    #[test]
    fn rounds_come_to_medians() {
        let cells = [cell(1000.0, 100, 1e-3), cell(3000.0, 100, 3e-3), cell(1100.0, 100, 2e-3)];
        let summary = Summary::of(&cells, true).expect("three rounds");
        assert_eq!((summary.runs, summary.iops, summary.seconds), (3, 1100.0, 6.0));
        assert!((summary.mb_per_second - 1100.0 * 4096.0 / 1e6).abs() < 1e-9);
        assert!((summary.client_cpu_us_per_io - 20.0).abs() < 1e-9);
        assert!((summary.cpu_us_per_io() - 60.0).abs() < 1e-9);
        assert_eq!(summary.switches_per_io, 1.0);
        assert!(summary.iops_sd.expect("three rounds") > 1000.0);
        assert_eq!(Summary::of(&cells, false).expect("rounds").server_cpu_us_per_io, None);
        assert_eq!(Summary::of(&[], true), None);
        assert_eq!(Summary::of(&cells[..1], true).expect("one").iops_sd, None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let mut results = Results::default();
        let ours = vec![cell(100.0, 1, 0.0), cell(300.0, 1, 0.0)];
        let theirs = vec![cell(100.0, 1, 0.0), cell(200.0, 1, 0.0)];
        results.cells.insert((0, Contender::Ram), ours);
        results.cells.insert((0, Contender::NbdkitMemory), theirs);
        let range = ratio_range(&results, 0, Contender::Ram, Contender::NbdkitMemory);
        assert_eq!(range, Some((1.0, 1.5)));
        assert_eq!(ratio_range(&results, 1, Contender::Ram, Contender::NbdkitMemory), None);
    }
}
