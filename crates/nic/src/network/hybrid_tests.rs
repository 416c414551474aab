//! Hybrid and sPIN-Hybrid: the bound at every point of the figures, and what holds in every run.

use proptest::prelude::*;

use super::constants::Constants;
use super::handlers::HandlerCosts;
use super::load::{Window, best_chunk, latency};
use super::packet::HostId;
use super::protocols::Shape;
use super::protocols::cpu_replicate::CpuReplicate;
use super::protocols::flat::Flat;
use super::protocols::hybrid::rdma::Hybrid;
use super::protocols::hybrid::spin::SpinHybrid;
use super::protocols::hybrid::{MAX_STRIPES, Schedule, cost};
use super::protocols::hyperloop::HyperLoop;
use super::protocols::spin_replicate::SpinReplicate;
use super::tests::conserves;
use super::world::{Layout, Protocol, World};

fn ns<P: Protocol>(constants: &Constants, layout: Layout, protocol: P, bytes: u64) -> f64 {
    let mut world = World::new(constants.clone(), HandlerCosts::default(), layout, protocol);
    latency(&mut world, bytes).expect("the write ends").as_ns()
}

/// A point of Figs. 9 and 10.
struct Point {
    k: u16,
    bytes: u64,
    /// Hybrid over the best of CPU-Ring, CPU-PBT, RDMA-Flat and RDMA-HyperLoop.
    hybrid: f64,
    /// sPIN-Hybrid over the better of sPIN-Ring and sPIN-PBT.
    spin: f64,
    /// The better of ours over the best of all six.
    all: f64,
    /// The estimates over the latencies.
    estimates: [f64; 2],
}

fn point(constants: &Constants, k: u16, bytes: u64) -> Point {
    let layout = Layout { clients: 1, nodes: k };
    let (c, l) = (constants, layout);
    let cpu = |shape| best_chunk(c, l, bytes, |chunk| CpuReplicate::new(l, shape, k, chunk));
    let chunked = [
        cpu(Shape::Ring),
        cpu(Shape::Tree),
        best_chunk(c, l, bytes, |chunk| HyperLoop::new(l, k, chunk)),
    ];
    let chunked = chunked.map(|best| best.expect("the write ends").1.as_ns());
    let others = chunked.into_iter().fold(ns(c, l, Flat::new(l, k), bytes), f64::min);
    let spin = |shape| ns(c, l, SpinReplicate::new(l, shape, k), bytes);
    let spins = spin(Shape::Ring).min(spin(Shape::Tree));
    let ours = [ns(c, l, Hybrid::new(l, k), bytes), ns(c, l, SpinHybrid::new(l, k), bytes)];
    let costs = HandlerCosts::default();
    let rdma = cost::rdma::choose(c, k, bytes);
    let handlers = cost::spin::choose(c, &costs, k, bytes, c.packet_buffer_bytes);
    let estimates = [
        cost::rdma::estimate(c, &rdma, bytes) as f64 / 1e3 / ours[0],
        cost::spin::estimate(c, &costs, &handlers, bytes) as f64 / 1e3 / ours[1],
    ];
    let all = ours[0].min(ours[1]) / others.min(spins);
    Point { k, bytes, hybrid: ours[0] / others, spin: ours[1] / spins, all, estimates }
}

/// The least and the largest value of points.
fn range(points: &[Point], of: impl Fn(&Point) -> f64) -> (f64, f64) {
    let fold = |(least, most): (f64, f64), value: f64| (least.min(value), most.max(value));
    points.iter().map(of).fold((f64::MAX, 0.0), fold)
}

fn print(points: &[Point]) {
    for Point { k, bytes, hybrid, spin, estimates: [rdma, handlers], .. } in points {
        println!(
            "k {k} {bytes:8} B: Hybrid {hybrid:.3} (estimate {rdma:.2}), \
             sPIN-Hybrid {spin:.3} (estimate {handlers:.2})"
        );
    }
    println!("{} points, Hybrid {:.3?}", points.len(), range(points, |point| point.hybrid));
    println!("sPIN-Hybrid {:.3?}", range(points, |point| point.spin));
    println!("the better of both {:.3?}", range(points, |point| point.all));
    println!("estimates {:.3?}", range(points, |point| point.estimates[0]));
    println!("estimates of sPIN {:.3?}", range(points, |point| point.estimates[1]));
}

/// Sizes of Fig. 9, 1 KiB to 1 MiB, each with the factors of Fig. 10, 1 to 8. The figures have 34
/// of these 88 points.
#[test]
fn hybrids_are_best_or_within_5_percent_at_every_point_of_the_figures() {
    let constants = Constants::default();
    let sizes = || (10..=20).map(|power| 1u64 << power);
    let all = (1..=8).flat_map(|k| sizes().map(move |bytes| (k, bytes)));
    let points: Vec<Point> = all.map(|(k, bytes)| point(&constants, k, bytes)).collect();
    print(&points);
    assert_eq!(points.len(), 88);
    for point in &points {
        let Point { k, bytes, hybrid, spin, .. } = *point;
        assert!(hybrid <= 1.05, "Hybrid is {hybrid} of the best at k = {k}, {bytes} B");
        assert!(spin <= 1.05, "sPIN-Hybrid is {spin} of the better at k = {k}, {bytes} B");
        for estimate in point.estimates {
            assert!((0.85..1.15).contains(&estimate), "{estimate} at k = {k}, {bytes} B");
        }
    }
    assert!(range(&points, |point| point.all).1 <= 1.05, "as the better of both is of all six");
    assert!(range(&points, |point| point.hybrid).0 < 0.6, "and far better where stripes pay");
    assert!(range(&points, |point| point.spin).0 < 0.8);
}

/// The choice follows the network: it holds for networks that it was never compared with.
#[test]
fn hybrids_follow_the_network() {
    let default = Constants::default();
    let networks = [
        ("100 Gbit/s", Constants { link_gbit: 100, egress_gbit: 100, ..default.clone() }),
        ("links of 500 ns", Constants { link_latency_ns: 500, ..default.clone() }),
        ("an injection per 60 ns", Constants { inject_ns: 60, ..default.clone() }),
        ("MTU 4096", Constants { mtu_bytes: 4096, ..default.clone() }),
        ("PCIe of 500 ns", Constants { pcie_latency_ns: 500, ..default }),
    ];
    let (mut slower, mut count) = ([0.0f64; 2], 0);
    for (name, constants) in networks {
        let sizes = [1000, 5000, 20_000, 50_000, 100_000, 300_000, 700_000];
        let all = [2, 3, 5, 12].into_iter().flat_map(|k| sizes.map(|bytes| (k, bytes)));
        let points: Vec<Point> = all.map(|(k, bytes)| point(&constants, k, bytes)).collect();
        println!("{name}");
        print(&points);
        for Point { k, bytes, hybrid, spin, .. } in points {
            assert!(hybrid <= 1.05, "{name}: Hybrid {hybrid} at k = {k}, {bytes} B");
            assert!(spin <= 1.05, "{name}: sPIN-Hybrid {spin} at k = {k}, {bytes} B");
            let percent = [hybrid, spin].map(|ratio| 100.0 * (ratio - 1.0));
            slower = [slower[0].max(percent[0]), slower[1].max(percent[1])];
            count += 1;
        }
    }
    let document = include_str!("../../../../docs/network-model.md");
    let words: Vec<&str> = document.split_whitespace().collect();
    let text = format!(
        "Of these {count} points, Hybrid is at most {:.1} % slower, and sPIN-Hybrid {:.1} %.",
        slower[0], slower[1]
    );
    assert!(words.join(" ").contains(&text), "the document does not say: {text}");
}

/// Every one of the first k nodes received every byte of every write once, and has stored it. Nodes
/// receive work-queue elements beside it.
fn check_replicas<P: Protocol>(
    world: &World<P>,
    layout: Layout,
    (k, load): (u16, Window),
    (stored, elements): (&[u64], &[u64]),
) -> Result<(), TestCaseError> {
    let all = load.bytes * u64::from(load.writes);
    for rank in 0..layout.nodes {
        let expected = if rank < k { all } else { 0 };
        let place = usize::from(rank);
        let received = world.fabric.ingested[layout.node(rank).index()];
        prop_assert_eq!(received - elements[place], expected, "received by {}", rank);
        prop_assert_eq!(stored[place], expected, "stored by {}", rank);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_replica_gets_every_byte(
        bytes in 1u64..200_000, clients in 1u16..5, window in 1u32..5, k in 1u16..10,
        fast in any::<bool>(), buffer in 4096u64..20_000, packets in 16u64..400,
        (stripes, roots, fan_out, chunks) in (1u16..=8, 1u16..10, 1u16..10, 1u16..=64),
    ) {
        let gbit = if fast { 400 } else { 100 };
        let constants = Constants {
            link_gbit: gbit, egress_gbit: gbit, buffer_bytes: buffer,
            packet_buffer_bytes: packets * 2048, ..Constants::default()
        };
        let layout = Layout { clients, nodes: 10 };
        let load = Window { bytes, window, writes: 12 };
        let (c, l) = (&constants, layout);
        let world = conserves(c, l, load, Hybrid::new(l, k))?;
        check_replicas(&world, l, (k, load), (&world.protocol.stored, &world.protocol.elements))?;
        let world = conserves(c, l, load, SpinHybrid::new(l, k))?;
        check_replicas(&world, l, (k, load), (&world.protocol.stored, &[0; 10]))?;
        // And any schedule, whether the model would choose it or not.
        let (stripes, roots) = (stripes.min(k), roots.min(k));
        let below = (k - roots).div_ceil(roots).max(1);
        let any = Schedule { k, stripes, roots, fan_out: fan_out.max(below), chunks };
        let world = conserves(c, l, load, Hybrid::with_schedule(l, any))?;
        check_replicas(&world, l, (k, load), (&world.protocol.stored, &world.protocol.elements))?;
        let any = Schedule { fan_out: fan_out.min(2), chunks: 1, ..any };
        let world = conserves(c, l, load, SpinHybrid::with_schedule(l, any))?;
        check_replicas(&world, l, (k, load), (&world.protocol.stored, &[0; 10]))?;
        for table in &world.protocol.tables {
            prop_assert!(table.is_empty() && table.denied == 0);
        }
    }
}

/// Eight stripes go round in a cycle of eight nodes. Their buffers are so small that clients
/// without shares fill all of them, and then each node waits for the next one.
#[test]
fn a_cycle_of_nodes_does_not_wait_for_ever() {
    let layout = Layout { clients: 8, nodes: 8 };
    let packet_buffer_bytes = 8 * 24 * 2048;
    let constants = Constants {
        packet_buffer_bytes,
        buffer_bytes: 4096,
        egress_gbit: 100,
        ..Constants::default()
    };
    let load = Window { bytes: 30_000, window: 6, writes: 96 };
    let cycle = Schedule { k: 8, stripes: MAX_STRIPES, roots: 1, fan_out: 2, chunks: 1 };
    let protocol = SpinHybrid::with_schedule(layout, cycle);
    let world = conserves(&constants, layout, load, protocol).expect("all ends");
    check_replicas(&world, layout, (8, load), (&world.protocol.stored, &[0; 10]))
        .expect("all has arrived");
    let served: Vec<u64> = world.protocol.tables.iter().map(|table| table.served).collect();
    assert_eq!(served, [8 * 96; 8], "the cycle was used");
    for rank in 0..8 {
        let peak = world.fabric.spin(layout.node(rank)).expect("a PsPIN").buffered_peak;
        assert!(peak <= packet_buffer_bytes, "{peak}");
    }
}

#[test]
fn a_write_larger_than_the_share_goes_in_parts() {
    let layout = Layout { clients: 2, nodes: 3 };
    let constants = Constants { packet_buffer_bytes: 2 * 20 * 2048, ..Constants::default() };
    let mut world =
        World::new(constants, HandlerCosts::default(), layout, SpinHybrid::new(layout, 3));
    let writes = [world.issue(HostId(0), 1 << 20), world.issue(HostId(1), 1)];
    while world.next_finished().is_some() {}
    assert!(writes.iter().all(|write| world.latency(*write).is_some()));
    assert_eq!(world.protocol.stored, [(1 << 20) + 1; 3]);
    let messages = world.protocol.tables.iter().map(|table| table.served);
    assert!(messages.min() >= Some(1 + (1 << 20) / (20 * 2016)), "each part has a message");
    let peak = world.fabric.spin(layout.node(0)).expect("a PsPIN").buffered_peak;
    assert!(peak <= 2 * 20 * 2048, "{peak}");
}

#[test]
fn a_full_request_table_denies_stripes_and_clients_try_again() {
    let layout = Layout { clients: 6, nodes: 4 };
    // One entry, and each node needs two at a time: no write could ever end as two trees.
    let constants = Constants { request_memory_bytes: 77, ..Constants::default() };
    let load = Window { bytes: 20_000, window: 2, writes: 24 };
    let trees = Schedule { k: 4, stripes: 2, roots: 1, fan_out: 2, chunks: 1 };
    let protocol = SpinHybrid::with_schedule(layout, trees);
    let world = conserves(&constants, layout, load, protocol).expect("all ends");
    let tables = &world.protocol.tables;
    assert!(tables.iter().any(|table| table.denied > 0), "{tables:?}");
    assert!(tables.iter().all(|table| table.is_empty() && table.peak == 1), "{tables:?}");
    for (table, stored) in tables.iter().zip(&world.protocol.stored) {
        assert!(table.served >= 24 && *stored >= 24 * 20_000, "{table:?}");
    }
}
