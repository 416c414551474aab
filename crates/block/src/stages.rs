//! The time that requests spent per stage: a histogram per kind of operation and stage.
//!
//! DeLiBA-2 breaks latency down by stage (its figures of user space, network and hardware time).
//! Here every request carries [`Stamps`]. The interval that ends at a stage begins at the last
//! stage that the request passed before it, so the intervals of one request sum to its total.
//!
//! The histograms are `hdrhistogram`s with two significant digits from 1 ns to 1000 s, which do not
//! grow. Each takes 34 KiB. Each kind of operation that occurred has six, so all take at most
//! 1.2 MiB. Recording changes one counter of each histogram, tens of nanoseconds for a whole
//! request.

use hdrhistogram::Histogram;

use crate::{Nanos, Op, Stage, Stamps};

/// A longer time counts as this long.
const LONGEST_NS: u64 = 1_000_000_000_000;

/// Relative error of a quantile: one hundredth.
const SIGNIFICANT_DIGITS: u8 = 2;

/// The interval that a histogram measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interval {
    /// From the first stamp of a request to its last.
    Total,
    /// From the stage before to this one.
    Until(Stage),
}

impl Interval {
    /// The total and every interval of a request's life, in order.
    pub const ALL: [Interval; 6] = [
        Interval::Total,
        Interval::Until(Stage::Scheduled),
        Interval::Until(Stage::Submitted),
        Interval::Until(Stage::Sent),
        Interval::Until(Stage::Replied),
        Interval::Until(Stage::Completed),
    ];

    /// Its name, for tables and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Interval::Total => "total",
            Interval::Until(stage) => stage.interval_name(),
        }
    }

    fn index(self) -> usize {
        match self {
            Interval::Total => 0,
            Interval::Until(stage) => stage as usize,
        }
    }
}

/// The summary of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// How many requests passed the stage.
    pub count: u64,
    /// The mean, in nanoseconds.
    pub mean_ns: f64,
    /// The median.
    pub p50: Nanos,
    /// 99 of 100 took at most this long.
    pub p99: Nanos,
    /// 999 of 1000 took at most this long.
    pub p999: Nanos,
    /// The longest, to the histogram's precision.
    pub max: Nanos,
}

const OPS: [Op; 6] = [Op::Read, Op::Write, Op::Flush, Op::Trim, Op::WriteZeroes, Op::Extents];

/// The histograms of one kind of operation.
#[derive(Clone)]
struct OpStats {
    intervals: [Histogram<u64>; Interval::ALL.len()],
}

impl OpStats {
    fn new() -> Self {
        let empty = || {
            Histogram::new_with_max(LONGEST_NS, SIGNIFICANT_DIGITS)
                .expect("the bounds are constants that hdrhistogram accepts")
        };
        OpStats { intervals: std::array::from_fn(|_| empty()) }
    }
}

/// Histograms of every stage, by kind of operation.
#[derive(Clone, Default)]
pub struct StageStats {
    ops: [Option<Box<OpStats>>; OPS.len()],
}

impl StageStats {
    /// Empty histograms.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one completed request.
    pub fn record(&mut self, op: Op, stamps: &Stamps) {
        let stats = self.ops[op as usize].get_or_insert_with(|| Box::new(OpStats::new()));
        let mut first = None;
        let mut last = Nanos(0);
        for stage in Stage::ALL {
            let at = stamps.at(stage);
            if at == Nanos(0) {
                continue;
            }
            if first.is_some() {
                stats.intervals[stage as usize].saturating_record(at.since(last).0);
            }
            first.get_or_insert(at);
            // A stamp that lies before the stamp in front of it adds nothing, so the parts still
            // sum to the total.
            last = last.max(at);
        }
        if let Some(first) = first {
            stats.intervals[0].saturating_record(last.since(first).0);
        }
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &StageStats) {
        for (mine, theirs) in self.ops.iter_mut().zip(&other.ops) {
            let Some(theirs) = theirs else { continue };
            let mine = mine.get_or_insert_with(|| Box::new(OpStats::new()));
            for (mine, theirs) in mine.intervals.iter_mut().zip(&theirs.intervals) {
                mine.add(theirs).expect("all histograms have the same bounds");
            }
        }
    }

    /// The summary of one interval; `None` if no such request passed it.
    #[must_use]
    pub fn summary(&self, op: Op, interval: Interval) -> Option<Summary> {
        let histogram = &self.ops[op as usize].as_ref()?.intervals[interval.index()];
        let at = |quantile| Nanos(histogram.value_at_quantile(quantile));
        (!histogram.is_empty()).then(|| Summary {
            count: histogram.len(),
            mean_ns: histogram.mean(),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: Nanos(histogram.max()),
        })
    }

    /// Every interval with requests, in the order of the tables.
    pub fn rows(&self) -> impl Iterator<Item = (Op, Interval, Summary)> + '_ {
        OPS.into_iter()
            .flat_map(|op| Interval::ALL.map(|interval| (op, interval)))
            .filter_map(|(op, interval)| Some((op, interval, self.summary(op, interval)?)))
    }

    /// Clears all histograms, for a new period of measurement.
    pub fn clear(&mut self) {
        for stats in self.ops.iter_mut().flatten() {
            stats.intervals.iter_mut().for_each(Histogram::reset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stamps(at: [u64; 6]) -> Stamps {
        let mut stamps = Stamps::default();
        for (stage, at) in Stage::ALL.into_iter().zip(at) {
            stamps.stamp(stage, Nanos(at));
        }
        stamps
    }

    #[test]
    fn an_interval_counts_from_the_last_stage_passed() {
        let mut stats = StageStats::new();
        stats.record(Op::Read, &stamps([100, 0, 150, 150, 950, 1000]));
        let mean = |interval| stats.summary(Op::Read, interval).map(|s| s.mean_ns.round());
        assert_eq!(mean(Interval::Until(Stage::Scheduled)), None);
        assert_eq!(mean(Interval::Until(Stage::Submitted)), Some(50.0));
        assert_eq!(mean(Interval::Until(Stage::Sent)), Some(0.0));
        let nodes = mean(Interval::Until(Stage::Replied)).unwrap();
        assert!((790.0..=810.0).contains(&nodes), "{nodes}");
        assert_eq!(stats.summary(Op::Write, Interval::Total), None);
        assert_eq!(stats.rows().count(), 5);
    }

    proptest! {
        #[test]
        fn quantiles_are_right_to_one_percent_and_merging_is_recording(
            times in proptest::collection::vec(1u64..1_000_000_000, 1..200), cut in any::<usize>()
        ) {
            let (mut all, mut one, mut two) =
                (StageStats::new(), StageStats::new(), StageStats::new());
            let cut = cut % times.len();
            for (index, time) in times.iter().enumerate() {
                let stamps = stamps([7, 0, 0, 0, 0, 7 + time]);
                all.record(Op::Write, &stamps);
                let part = if index < cut { &mut one } else { &mut two };
                part.record(Op::Write, &stamps);
            }
            one.merge(&two);
            let summary = all.summary(Op::Write, Interval::Total).unwrap();
            prop_assert_eq!(one.summary(Op::Write, Interval::Total), Some(summary));
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let median = sorted[(sorted.len() - 1) / 2] as f64;
            prop_assert!((summary.p50.0 as f64 / median - 1.0).abs() < 0.01 + 1.0 / median);
            prop_assert_eq!(summary.count, times.len() as u64);
        }
    }

    #[test]
    fn impossible_stamps_do_no_harm() {
        let mut stats = StageStats::new();
        stats.record(Op::Trim, &stamps([u64::MAX, 1, u64::MAX, 5, 0, 1]));
        stats.record(Op::Trim, &stamps([1, 0, 0, 0, 0, u64::MAX]));
        stats.record(Op::Trim, &Stamps::default());
        assert_eq!(stats.summary(Op::Trim, Interval::Total).unwrap().count, 2);
        stats.clear();
        assert_eq!(stats.summary(Op::Trim, Interval::Total), None);
    }
}
