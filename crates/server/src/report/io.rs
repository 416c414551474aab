//! Reports the requests of a device, from the counters of its layers.

use fieldstone_block::{Interval, Op};
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
        cache_hits: stats.cache.hits,
        cache_misses: stats.cache.misses,
        cache_bytes: stats.cache.held_bytes,
        merged: stats.scheduler.merged,
        layers: stats.layers.iter().map(layer_report).collect(),
    }
}

fn layer_report(layer: &LayerStatus) -> LayerReport {
    let options = layer.options.iter();
    LayerReport {
        name: layer.name.to_owned(),
        options: options.map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        counters: layer
            .counters
            .iter()
            .map(|counter| CounterReport { name: counter.name.to_owned(), value: counter.value })
            .collect(),
    }
}
