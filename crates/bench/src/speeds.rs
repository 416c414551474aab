//! The speeds of several rounds in one: medians for comparisons, means where the papers have them.

use serde::Serialize;

use crate::case::Case;
use crate::fio::Measured;
use crate::row::Better;
use crate::stats::{mean, median, standard_deviation};

/// The speeds of one contender in one case, over its rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Speeds {
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
    /// Standard deviation of the bandwidth over the rounds; null for one round.
    pub mb_per_second_sd: Option<f64>,
    /// Standard deviation of the I/Os per second; null for one round.
    pub iops_sd: Option<f64>,
    /// Standard deviation of the mean latency; null for one round.
    pub mean_us_sd: Option<f64>,
    /// Time measured.
    pub seconds: f64,
}

impl Speeds {
    /// Medians over the rounds. `None` without rounds.
    pub fn medians<'a>(rounds: impl IntoIterator<Item = &'a Measured>) -> Option<Self> {
        Self::of(rounds, median)
    }

    /// Means over the rounds, as the papers report them. `None` without rounds.
    pub fn means<'a>(rounds: impl IntoIterator<Item = &'a Measured>) -> Option<Self> {
        Self::of(rounds, mean)
    }

    fn of<'a>(
        rounds: impl IntoIterator<Item = &'a Measured>,
        middle: fn(&[f64]) -> Option<f64>,
    ) -> Option<Self> {
        let rounds: Vec<&Measured> = rounds.into_iter().collect();
        let each =
            |value: fn(&Measured) -> f64| rounds.iter().map(|it| value(it)).collect::<Vec<f64>>();
        let iops = each(|it| it.iops);
        let mb_per_second = each(|it| it.bytes_per_second / 1e6);
        let mean_us = each(|it| it.mean_us);
        Some(Self {
            runs: rounds.len(),
            iops: middle(&iops)?,
            mb_per_second: middle(&mb_per_second)?,
            mean_us: middle(&mean_us)?,
            p50_us: middle(&each(|it| it.p50_us))?,
            p99_us: middle(&each(|it| it.p99_us))?,
            mb_per_second_sd: standard_deviation(&mb_per_second),
            iops_sd: standard_deviation(&iops),
            mean_us_sd: standard_deviation(&mean_us),
            seconds: each(|it| it.seconds).iter().sum(),
        })
    }

    /// The main number of a case: 10^6 bytes per second, or I/Os per second.
    pub fn headline(&self, case: &Case) -> f64 {
        Measure::headline(case).of(self)
    }
}

/// A measure of the papers' figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Bandwidth.
    Bandwidth,
    /// I/Os per second.
    Ios,
    /// Mean latency.
    Latency,
}

impl Measure {
    /// All measures.
    pub const ALL: [Self; 3] = [Self::Bandwidth, Self::Ios, Self::Latency];

    /// The measure that a case is about.
    pub fn headline(case: &Case) -> Self {
        if case.is_bandwidth() { Self::Bandwidth } else { Self::Ios }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "MB/s",
            Self::Ios => "IOPS",
            Self::Latency => "us",
        }
    }

    /// The title of an axis.
    pub fn title(self) -> &'static str {
        match self {
            Self::Bandwidth => "throughput (MB/s)",
            Self::Ios => "I/Os per second",
            Self::Latency => "mean latency (us)",
        }
    }

    /// The better direction.
    pub fn better(self) -> Better {
        match self {
            Self::Latency => Better::Less,
            _ => Better::More,
        }
    }

    /// Its number, in [`Self::unit`].
    pub fn of(self, speeds: &Speeds) -> f64 {
        match self {
            Self::Bandwidth => speeds.mb_per_second,
            Self::Ios => speeds.iops,
            Self::Latency => speeds.mean_us,
        }
    }

    /// Its standard deviation over the rounds. `None` for one round.
    pub fn deviation(self, speeds: &Speeds) -> Option<f64> {
        match self {
            Self::Bandwidth => speeds.mb_per_second_sd,
            Self::Ios => speeds.iops_sd,
            Self::Latency => speeds.mean_us_sd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Pattern;

    fn round(iops: f64) -> Measured {
        let mean_us = 1e6 / iops;
        let bytes_per_second = iops * 4096.0;
        Measured { iops, bytes_per_second, mean_us, seconds: 2.0, ..Measured::default() }
    }

    #[test]
    fn medians_and_means_differ() {
        let rounds = [round(1000.0), round(3000.0), round(1100.0)];
        let middle = Speeds::medians(&rounds).expect("three rounds");
        assert_eq!((middle.runs, middle.iops, middle.seconds), (3, 1100.0, 6.0));
        assert!((middle.mb_per_second - 1100.0 * 4096.0 / 1e6).abs() < 1e-9);
        assert!(middle.iops_sd.expect("three rounds") > 1000.0);
        let means = Speeds::means(&rounds).expect("three rounds");
        assert_eq!((means.iops, means.iops_sd), (1700.0, middle.iops_sd));
        assert_eq!(Speeds::means([]), None);
        assert_eq!(Speeds::medians(&rounds[..1]).expect("one").iops_sd, None);
    }

    #[test]
    fn a_measure_names_its_number_and_its_unit() {
        let speeds = Speeds::means(&[round(1000.0), round(1000.0)]).expect("two rounds");
        let values = Measure::ALL.map(|measure| measure.of(&speeds));
        assert_eq!(values, [4.096, 1000.0, 1000.0]);
        assert!(Measure::ALL.iter().all(|measure| measure.deviation(&speeds) == Some(0.0)));
        let sequential = Case::new(Pattern::SequentialRead, 128 << 10, 8);
        assert_eq!(Measure::headline(&sequential).unit(), "MB/s");
        let random = Case::new(Pattern::RandomRead, 4096, 1);
        assert_eq!(speeds.headline(&random), 1000.0);
    }
}
