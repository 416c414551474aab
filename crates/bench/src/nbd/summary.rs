//! Sums up the rounds of one case and contender: medians, and their spread.

use serde::Serialize;

use super::contender::Contender;
use super::measure::Results;
use crate::speeds::Speeds;
use crate::stats::{median, quotient};
use crate::subject::Cell;

/// Medians over the rounds of one contender in one case.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The speeds.
    #[serde(flatten)]
    pub speeds: Speeds,
    /// CPU time of the client per I/O.
    pub client_cpu_us_per_io: f64,
    /// CPU time of the server per I/O; null for the raw disk.
    pub server_cpu_us_per_io: Option<f64>,
    /// The part of the server's CPU time after the last reply, per I/O; null for the raw disk.
    pub deferred_cpu_us_per_io: Option<f64>,
    /// Context switches of client and server per I/O.
    pub switches_per_io: f64,
}

impl Summary {
    /// Sums up cells. `None` without cells. `served` is false for the raw disk.
    pub fn of(cells: &[Cell], served: bool) -> Option<Self> {
        let middle =
            |value: fn(&Cell) -> f64| median(&cells.iter().map(value).collect::<Vec<f64>>());
        let server = |value: fn(&Cell) -> f64| if served { middle(value) } else { None };
        Some(Self {
            speeds: Speeds::medians(cells.iter().map(|cell| &cell.fio))?,
            client_cpu_us_per_io: middle(|cell| per_io(cell.fio.cpu_s * 1e6, cell))?,
            server_cpu_us_per_io: server(|cell| per_io(cell.server_cpu_s * 1e6, cell)),
            deferred_cpu_us_per_io: server(|cell| per_io(cell.deferred_cpu_s * 1e6, cell)),
            switches_per_io: middle(|cell| {
                per_io((cell.fio.switches + cell.server_switches) as f64, cell)
            })?,
        })
    }

    /// CPU time of client and server per I/O.
    pub fn cpu_us_per_io(&self) -> f64 {
        self.client_cpu_us_per_io + self.server_cpu_us_per_io.unwrap_or(0.0)
    }
}

fn per_io(value: f64, cell: &Cell) -> f64 {
    quotient(value, cell.fio.ios as f64).unwrap_or(0.0)
}

/// The summary of one case and contender.
pub fn summary(results: &Results, case: usize, contender: Contender) -> Option<Summary> {
    Summary::of(results.interleaving.rounds(case, contender)?, contender.has_server())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Measured;

    fn cell(iops: f64, ios: u64, cpu_s: f64) -> Cell {
        let fio = Measured { ios, iops, cpu_s, ..Measured::default() };
        Cell { fio, server_cpu_s: cpu_s * 2.0, deferred_cpu_s: cpu_s, server_switches: ios }
    }

    #[test]
    fn rounds_come_to_medians() {
        let cells = [cell(1000.0, 100, 1e-3), cell(3000.0, 100, 3e-3), cell(1100.0, 100, 2e-3)];
        let summary = Summary::of(&cells, true).expect("three rounds");
        assert_eq!((summary.speeds.runs, summary.speeds.iops), (3, 1100.0));
        assert!((summary.client_cpu_us_per_io - 20.0).abs() < 1e-9);
        assert!((summary.cpu_us_per_io() - 60.0).abs() < 1e-9);
        assert_eq!(summary.switches_per_io, 1.0);
        assert_eq!(Summary::of(&cells, false).expect("rounds").server_cpu_us_per_io, None);
        assert_eq!(Summary::of(&[], true), None);
        let json = serde_json::to_value(&summary).expect("it is JSON");
        for field in ["runs", "iops", "p99_us", "iops_sd", "switches_per_io", "seconds"] {
            assert!(json[field].is_number(), "{field} is missing in {json}");
        }
    }
}
