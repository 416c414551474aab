//! Reports the requests of a device, from the counters of its layers.

use fieldstone_block::{Counter, Interval, Op};
use fieldstone_host::{DeviceStats, LayerStatus};

use super::{CounterReport, IoReport, LayerReport, OpReport, StageReport};

const OPS: [(Op, &str); 6] = [
    (Op::Read, "read"),
    (Op::Write, "write"),
    (Op::Flush, "flush"),
    (Op::Trim, "trim"),
    (Op::WriteZeroes, "write-zeroes"),
    (Op::Extents, "extents"),
];

fn op_name(op: Op) -> String {
    let found = OPS.iter().find(|(other, _)| *other == op);
    found.map_or_else(|| format!("{op:?}"), |(_, name)| (*name).to_owned())
}

/// The report of one device.
pub fn io_report(stats: &DeviceStats) -> IoReport {
    let requests = OPS.iter().map(|(op, name)| {
        let count = stats.counts.of(*op);
        OpReport {
            op: (*name).to_owned(),
            count: count.requests,
            errors: count.errors,
            bytes: count.bytes,
        }
    });
    let mut stages: Vec<StageReport> = stats
        .stages
        .iter()
        .map(|(op, interval, summary)| StageReport {
            op: op_name(*op),
            stage: interval.name().to_owned(),
            count: summary.count,
            mean_ns: summary.mean_ns.round() as u64,
            p50_ns: summary.p50.0,
            p99_ns: summary.p99.0,
            p999_ns: summary.p999.0,
        })
        .collect();
    // For each kind of request, the total comes after its stages.
    let order = |stage: &StageReport| {
        let op = OPS.iter().position(|(_, name)| *name == stage.op);
        (op, stage.stage == Interval::Total.name())
    };
    stages.sort_by_key(order);
    IoReport {
        in_flight: stats.in_flight as u64,
        oldest_ns: stats.oldest_ns,
        requests: requests.collect(),
        stages,
        cache_hits: stats.counter("cache", "hits"),
        cache_misses: stats.counter("cache", "misses"),
        cache_bytes: stats.counter("cache", "held_bytes"),
        merged: stats.counter("scheduler", "merged"),
        layers: stats.layers.iter().map(layer_report).collect(),
        store: counter_reports(&stats.store),
    }
}

fn counter_reports(counters: &[Counter]) -> Vec<CounterReport> {
    let report =
        |counter: &Counter| CounterReport { name: counter.name.to_owned(), value: counter.value };
    counters.iter().map(report).collect()
}

fn layer_report(layer: &LayerStatus) -> LayerReport {
    let options = layer.options.iter();
    LayerReport {
        name: layer.name.to_owned(),
        options: options.map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        counters: counter_reports(&layer.counters),
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_block::layers::LayerOptions;

    use super::*;

    /// The names in [`io_report`] are those of the layers: a wrong name would show 0 for ever.
    #[test]
    fn the_default_layers_have_the_counters_of_the_report() {
        let layers = LayerOptions::default().make().expect("defaults are valid");
        let cache = ["hits", "misses", "held_bytes"].map(|counter| ("cache", counter));
        for (layer, counter) in cache.into_iter().chain([("scheduler", "merged")]) {
            let found = layers.iter().find(|found| found.name() == layer).expect(layer);
            let counters = found.counters();
            assert!(counters.iter().any(|found| found.name == counter), "{layer}: {counters:?}");
        }
    }

    #[test]
    fn cache_and_scheduler_are_reported_from_their_counters() {
        let layer = |name, counters: &[(&'static str, u64)]| LayerStatus {
            name,
            options: Vec::new(),
            counters: counters
                .iter()
                .map(|(name, value)| fieldstone_block::Counter { name, value: *value })
                .collect(),
        };
        let stats = DeviceStats {
            layers: vec![
                layer("read-ahead", &[("hits", 9)]),
                layer("scheduler", &[("requests", 8), ("merged", 4)]),
                layer("cache", &[("hits", 1), ("misses", 2), ("held_bytes", 3)]),
            ],
            ..DeviceStats::default()
        };
        let report = io_report(&stats);
        let shown = [report.cache_hits, report.cache_misses, report.cache_bytes, report.merged];
        assert_eq!(shown, [1, 2, 3, 4]);
        let report = io_report(&DeviceStats::default());
        assert_eq!((report.cache_hits, report.merged), (0, 0));
    }
}
