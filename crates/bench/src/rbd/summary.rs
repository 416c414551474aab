//! Sums up the rounds of one case and contender: medians.

use serde::Serialize;

use super::contender::{Cell, Contender};
use super::run::Results;
use crate::speeds::Speeds;
use crate::stats::{median, quotient};

/// Medians over the rounds of one contender in one case.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The speeds.
    #[serde(flatten)]
    pub speeds: Speeds,
    /// CPU time of the client of Ceph per I/O.
    pub client_us_per_io: f64,
    /// The part of it in user mode.
    pub client_user_us_per_io: f64,
    /// The part of it in the kernel.
    pub client_system_us_per_io: f64,
    /// Context switches of the client of Ceph per I/O.
    pub switches_per_io: f64,
    /// CPU time of client and fio per I/O, if fio is another process.
    pub with_fio_us_per_io: Option<f64>,
    /// Context switches of client and fio per I/O, if fio is another process.
    pub with_fio_switches_per_io: Option<f64>,
    /// CPU time of the OSDs per I/O; null if they are not on this machine.
    pub osd_us_per_io: Option<f64>,
}

impl Summary {
    /// Sums up cells. `None` without cells. `served` is true if fio is another process than the
    /// client of Ceph.
    pub fn of(cells: &[Cell], served: bool) -> Option<Self> {
        let middle =
            |value: &dyn Fn(&Cell) -> f64| median(&cells.iter().map(value).collect::<Vec<f64>>());
        let per_io = |value: &dyn Fn(&Cell) -> f64| {
            middle(&|cell| quotient(value(cell), cell.speed.ios as f64).unwrap_or(0.0))
        };
        let us = |value: &dyn Fn(&Cell) -> f64| per_io(&|cell| value(cell) * 1e6);
        let both = |cell: &Cell| cell.client.plus(&cell.fio);
        let osds: Option<Vec<f64>> = cells.iter().map(|cell| cell.osd_cpu_s).collect();
        Some(Self {
            speeds: Speeds::medians(cells.iter().map(|cell| &cell.speed))?,
            client_us_per_io: us(&|cell| cell.client.cpu_s())?,
            client_user_us_per_io: us(&|cell| cell.client.user_s)?,
            client_system_us_per_io: us(&|cell| cell.client.system_s)?,
            switches_per_io: per_io(&|cell| cell.client.switches)?,
            with_fio_us_per_io: us(&|cell| both(cell).cpu_s()).filter(|_| served),
            with_fio_switches_per_io: per_io(&|cell| both(cell).switches).filter(|_| served),
            osd_us_per_io: osds.and_then(|_| us(&|cell| cell.osd_cpu_s.unwrap_or(0.0))),
        })
    }

    /// The most I/Os per second that the OSDs can do on this many CPUs if the client costs nothing.
    pub fn bound_iops(&self, cpus: usize) -> Option<f64> {
        quotient(cpus as f64 * 1e6, self.osd_us_per_io?)
    }
}

/// The summary of one case and contender.
pub fn summary(results: &Results, case: usize, contender: Contender) -> Option<Summary> {
    Summary::of(results.interleaving.rounds(case, contender)?, contender.has_server())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Measured;
    use crate::usage::Usage;

    fn cell(iops: f64, user_s: f64, osd_cpu_s: Option<f64>) -> Cell {
        Cell {
            speed: Measured {
                ios: 1000,
                iops,
                mean_us: 1e6 / iops,
                seconds: 2.0,
                ..Measured::default()
            },
            client: Usage { user_s, system_s: 0.01, switches: 500.0 },
            fio: Usage { user_s: 0.02, system_s: 0.0, switches: 100.0 },
            osd_cpu_s,
        }
    }

    #[test]
    fn rounds_come_to_medians_per_io() {
        let cells = [
            cell(1000.0, 0.01, Some(0.1)),
            cell(4000.0, 0.03, Some(0.3)),
            cell(2000.0, 0.02, Some(0.2)),
        ];
        let found = Summary::of(&cells, true).expect("three rounds");
        let speeds = &found.speeds;
        assert_eq!((speeds.runs, speeds.iops, speeds.seconds), (3, 2000.0, 6.0));
        assert!((found.client_us_per_io - 30.0).abs() < 1e-9);
        assert!((found.client_user_us_per_io - 20.0).abs() < 1e-9);
        assert!((found.client_system_us_per_io - 10.0).abs() < 1e-9);
        assert!((found.with_fio_us_per_io.expect("served") - 50.0).abs() < 1e-9);
        assert!((found.switches_per_io - 0.5).abs() < 1e-9);
        assert!((found.with_fio_switches_per_io.expect("served") - 0.6).abs() < 1e-9);
        assert!((found.osd_us_per_io.expect("known") - 200.0).abs() < 1e-9);
        assert!((found.bound_iops(2).expect("known") - 10_000.0).abs() < 1e-6);
        let alone = Summary::of(&cells, false).expect("rounds");
        assert_eq!(alone.with_fio_us_per_io, None);
        assert_eq!(Summary::of(&[], true), None);
        let unknown = Summary::of(&[cell(1.0, 0.0, None)], false).expect("a round");
        assert_eq!((unknown.osd_us_per_io, unknown.bound_iops(2)), (None, None));
    }
}
