//! `docs/network-model.md` about the hybrids: their schedules, and their latencies over those of
//! the paper's protocols.

use std::sync::LazyLock;

use fieldstone_nic::network::constants::Constants;
use fieldstone_nic::network::handlers::HandlerCosts;
use fieldstone_nic::network::protocols::hybrid::{Schedule, cost};

use super::super::measure::{self, OF_THE_PAPER, in_parallel, names};
use super::{MODEL, says, table};

/// Write sizes of Fig. 9, each with the factors of Fig. 10.
static POINTS: LazyLock<Vec<Point>> = LazyLock::new(|| {
    let sizes = measure::sizes(1 << 10, 1 << 20);
    let all = (1..=8).flat_map(|k| sizes.iter().map(move |bytes| (k, *bytes)));
    in_parallel(&all.collect::<Vec<_>>(), |(k, bytes)| Point::new(*k, *bytes))
});

/// A write of a size to k nodes.
struct Point {
    k: u16,
    bytes: u64,
    /// Hybrid over the best of CPU-Ring, CPU-PBT, RDMA-Flat and RDMA-HyperLoop.
    hybrid: f64,
    /// sPIN-Hybrid over the better of sPIN-Ring and sPIN-PBT.
    spin: f64,
    /// The better of ours over the best of all six.
    both: f64,
    /// The estimates over the latencies: Hybrid, sPIN-Hybrid.
    estimates: [f64; 2],
}

fn rdma_schedule(k: u16, bytes: u64) -> Schedule {
    cost::rdma::choose(&Constants::default(), k, bytes)
}

fn spin_schedule(k: u16, bytes: u64) -> Schedule {
    let constants = Constants::default();
    let room = constants.packet_buffer_bytes;
    cost::spin::choose(&constants, &HandlerCosts::default(), k, bytes, room)
}

impl Point {
    fn new(k: u16, bytes: u64) -> Self {
        let constants = Constants::default();
        let us = measure::replicated_us(&constants, k, bytes).map(Option::unwrap);
        let least = |of: &[f64]| of.iter().copied().fold(f64::MAX, f64::min);
        let (hybrid, spin) = (us[OF_THE_PAPER], us[OF_THE_PAPER + 1]);
        let costs = HandlerCosts::default();
        let estimates = [
            cost::rdma::estimate(&constants, &rdma_schedule(k, bytes), bytes) as f64 / 1e6 / hybrid,
            cost::spin::estimate(&constants, &costs, &spin_schedule(k, bytes), bytes) as f64
                / 1e6
                / spin,
        ];
        Self {
            k,
            bytes,
            hybrid: hybrid / least(&us[..4]),
            spin: spin / least(&us[4..6]),
            both: hybrid.min(spin) / least(&us[..6]),
            estimates,
        }
    }
}

#[test]
fn the_schedules_are_those_of_the_choice() {
    let numbers = |schedule: &Schedule, with_chunks: bool| {
        let Schedule { stripes, roots, fan_out, chunks, .. } = *schedule;
        let all = [stripes, roots, fan_out, chunks];
        let shown = if with_chunks { &all[..] } else { &all[..3] };
        shown.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
    };
    let name = |schedule: Schedule, with_chunks: bool| {
        let Schedule { k, stripes, .. } = schedule;
        let one = Schedule { stripes: 1, ..schedule };
        match (one == Schedule::flat(k), stripes) {
            (true, 1) => "flat".to_owned(),
            (true, _) => format!("flat, {stripes} stripes"),
            _ if schedule == Schedule::ring(k) => "ring".to_owned(),
            _ => numbers(&schedule, with_chunks),
        }
    };
    let sizes: [u64; 4] = [4 << 10, 32 << 10, 128 << 10, 512 << 10];
    let expected: Vec<[String; 4]> = [2, 4, 8]
        .into_iter()
        .flat_map(|k| {
            sizes.map(|bytes| {
                let rdma = name(rdma_schedule(k, bytes), true);
                let spin = name(spin_schedule(k, bytes), false);
                [k.to_string(), names(&[bytes])[0].clone(), rdma, spin]
            })
        })
        .collect();
    let head = "| k | size | Hybrid: stripes, roots, fan-out, chunks \
                | sPIN-Hybrid: stripes, roots, fan-out |";
    assert_eq!(table(MODEL, head), expected);
}

#[test]
fn the_ratios_are_those_of_the_figures() {
    let ratios = |of: fn(&Point) -> f64| {
        let row = |k: u16| {
            let points = POINTS.iter().filter(move |point| point.k == k);
            let cells = points.map(move |point| format!("{:.3}", of(point)));
            std::iter::once(k.to_string()).chain(cells).collect::<Vec<_>>()
        };
        (1..=8).map(row).collect::<Vec<_>>()
    };
    let sizes = "| 1K | 2K | 4K | 8K | 16K | 32K | 64K | 128K | 256K | 512K | 1M |";
    let of = |name: &str| table(MODEL, &format!("| {name}, k {sizes}"));
    assert_eq!(of("Hybrid"), ratios(|point| point.hybrid));
    assert_eq!(of("sPIN-Hybrid"), ratios(|point| point.spin));
}

#[test]
fn the_summary_of_the_ratios_is_true() {
    let of_fig9 = |point: &&Point| point.k == 2 || point.k == 4;
    let of_fig10 = |point: &&Point| [4 << 10, 512 << 10].contains(&point.bytes);
    let (fig9, fig10) = (POINTS.iter().filter(of_fig9), POINTS.iter().filter(of_fig10));
    let differ = POINTS.iter().filter(|point| of_fig9(point) || of_fig10(point)).count();
    let (of_9, of_10) = (fig9.clone().count(), fig10.clone().count());
    let all = of_9 + of_10;
    says(MODEL, &format!("Fig. 9 has {of_9} points of latency"));
    says(MODEL, &format!("Fig. 10 has {of_10} (k = 1 to 8, 4 and 512 KiB)"));
    says(MODEL, &format!("{differ} of these {all} differ"));
    let groups: [(String, Vec<&Point>); 3] = [
        (format!("{of_9} of Fig. 9"), fig9.collect()),
        (format!("{of_10} of Fig. 10"), fig10.collect()),
        (format!("{} of the test", POINTS.len()), POINTS.iter().collect()),
    ];
    type Ratio = (&'static str, fn(&Point) -> f64);
    let ratios: [Ratio; 3] = [
        ("Hybrid over CPU-Ring, CPU-PBT, RDMA-Flat, HyperLoop", |point| point.hybrid),
        ("sPIN-Hybrid over sPIN-Ring, sPIN-PBT", |point| point.spin),
        ("the better of both over all six", |point| point.both),
    ];
    let row = |(label, of): Ratio, (group, points): &(String, Vec<&Point>)| {
        let values: Vec<f64> = points.iter().map(|point| of(point)).collect();
        let least = values.iter().copied().fold(f64::MAX, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        // As the tables print them.
        let slower = values.iter().filter(|value| **value >= 1.0005).count();
        let faster = values.iter().filter(|value| **value < 0.9505).count();
        let range = [format!("{least:.3}"), format!("{most:.3}")];
        let counts = [slower.to_string(), faster.to_string()];
        [vec![label.to_owned(), group.clone()], range.to_vec(), counts.to_vec()].concat()
    };
    let expected: Vec<Vec<String>> = ratios
        .into_iter()
        .flat_map(|ratio| groups.iter().map(move |group| row(ratio, group)))
        .collect();
    let head = "| ratio | points | least | most | 1.001 or more | at most 0.95 |";
    assert_eq!(table(MODEL, head), expected);
}

#[test]
fn the_estimates_are_as_good_as_the_document_says() {
    let range = |place: usize| {
        let values = POINTS.iter().map(|point| 100.0 * (point.estimates[place] - 1.0));
        let low = values.clone().fold(f64::MAX, f64::min);
        let high = values.fold(f64::MIN, f64::max);
        format!("from {:.1} % too low to {high:.1} % too high", -low)
    };
    let count = POINTS.len();
    says(
        MODEL,
        &format!(
            "At the {count} points below, the estimates are {} for Hybrid, and {} for sPIN-Hybrid.",
            range(0),
            range(1)
        ),
    );
}
