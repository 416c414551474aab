//! The measurements that several figures share.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use fieldstone_nic::network::constants::Constants;
use fieldstone_nic::network::handlers::HandlerCosts;
use fieldstone_nic::network::load;
use fieldstone_nic::network::protocols::Shape;
use fieldstone_nic::network::protocols::cpu_replicate::CpuReplicate;
use fieldstone_nic::network::protocols::flat::Flat;
use fieldstone_nic::network::protocols::hybrid::rdma::Hybrid;
use fieldstone_nic::network::protocols::hybrid::spin::SpinHybrid;
use fieldstone_nic::network::protocols::hyperloop::HyperLoop;
use fieldstone_nic::network::protocols::node::{NodeWrites, Policy, Strategy};
use fieldstone_nic::network::protocols::spin_replicate::SpinReplicate;
use fieldstone_nic::network::spin::HandlerStats;
use fieldstone_nic::network::world::{Layout, Protocol, World};
use fieldstone_units as units;

use super::figure::Line;

/// Clients that saturate a node, and the writes that each keeps in progress.
pub const CLIENTS: u16 = 16;

/// The protocols of Figs. 9 and 10, in the order of their lines: the paper's, and then ours.
pub const REPLICATION: [&str; 10] = [
    "CPU-Ring",
    "CPU-PBT",
    "RDMA-Flat",
    "RDMA-HyperLoop",
    "sPIN-Ring",
    "sPIN-PBT",
    "Hybrid",
    "sPIN-Hybrid",
    "Node-Ring",
    "Node-PBT",
];

/// The lines of [`REPLICATION`] that the paper has. They come first.
pub const OF_THE_PAPER: usize = 6;

/// The latencies of a replicated write by each protocol of [`REPLICATION`], in microseconds.
pub type Point = [Option<f64>; 10];

/// Powers of two from `low` to `high` bytes.
pub fn sizes(low: u64, high: u64) -> Vec<u64> {
    std::iter::successors(Some(low), |size| Some(size * 2)).take_while(|s| *s <= high).collect()
}

/// The names of sizes.
pub fn names(sizes: &[u64]) -> Vec<String> {
    sizes.iter().map(|size| units::size_argument(*size)).collect()
}

/// The latency of a write into an idle network, in microseconds.
pub fn latency_us<P: Protocol>(
    constants: &Constants,
    layout: Layout,
    protocol: P,
    bytes: u64,
) -> Option<f64> {
    let mut world = World::new(constants.clone(), HandlerCosts::default(), layout, protocol);
    Some(load::latency(&mut world, bytes)?.as_ns() / 1e3)
}

/// The latency of a replicated write by each protocol of [`REPLICATION`]. CPU and HyperLoop
/// protocols have their best chunk size.
pub fn replicated_us(constants: &Constants, k: u16, bytes: u64) -> Point {
    let layout = Layout { clients: 1, nodes: k };
    let cpu = |shape| {
        let make = |chunk| CpuReplicate::new(layout, shape, k, chunk);
        Some(load::best_chunk(constants, layout, bytes, make)?.1.as_ns() / 1e3)
    };
    let spin = |shape| latency_us(constants, layout, SpinReplicate::new(layout, shape, k), bytes);
    let node = |strategy| {
        let policy = Policy::Replicate { strategy, copies: k };
        let costs = HandlerCosts::default();
        let protocol = NodeWrites::new(layout, policy);
        let mut world = World::new(constants.clone(), costs, layout, protocol);
        let time = load::latency(&mut world, bytes)?;
        world.protocol.missed.is_empty().then(|| time.as_ns() / 1e3)
    };
    let hyper = load::best_chunk(constants, layout, bytes, |c| HyperLoop::new(layout, k, c));
    [
        cpu(Shape::Ring),
        cpu(Shape::Tree),
        latency_us(constants, layout, Flat::new(layout, k), bytes),
        hyper.map(|(_, time)| time.as_ns() / 1e3),
        spin(Shape::Ring),
        spin(Shape::Tree),
        latency_us(constants, layout, Hybrid::new(layout, k), bytes),
        latency_us(constants, layout, SpinHybrid::new(layout, k), bytes),
        node(Strategy::Ring),
        node(Strategy::Tree),
    ]
}

/// The lines of [`REPLICATION`] over points, each a result of [`replicated_us`].
pub fn replication_lines(points: &[Point]) -> Vec<Line> {
    let line = |(place, name): (usize, &&'static str)| {
        Line::new(name, points.iter().map(|point| point[place]).collect())
    };
    REPLICATION.iter().enumerate().map(line).collect()
}

/// What a saturated node does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Saturated {
    /// Data that the node received, in Gbit/s.
    pub gbit: f64,
    /// Runs of header, payload and completion handlers on the first node.
    pub handlers: [HandlerStats; 3],
    /// Mean entries of its request table.
    pub entries: f64,
}

/// Clients write to `k` nodes through handlers, and never let the first node idle.
pub fn saturate(constants: &Constants, shape: Shape, k: u16, bytes: u64, window: u32) -> Saturated {
    saturate_with(constants, HandlerCosts::default(), (shape, k), bytes, window)
}

/// The same, with other costs of handlers.
pub fn saturate_with(
    constants: &Constants,
    costs: HandlerCosts,
    (shape, k): (Shape, u16),
    bytes: u64,
    window: u32,
) -> Saturated {
    let layout = Layout { clients: CLIENTS, nodes: k };
    let protocol = SpinReplicate::new(layout, shape, k);
    let mut world = World::new(constants.clone(), costs, layout, protocol);
    let writes = ((8u64 << 20) / bytes).clamp(400, 6000) as u32;
    let mut edges = Vec::new();
    let measured = load::run(&mut world, layout, load::Window { bytes, window, writes }, |world| {
        let now = world.fabric.now();
        let stats = world.fabric.spin(layout.node(0)).map(|spin| spin.stats).unwrap_or_default();
        let table = world.protocol.tables.first_mut();
        edges.push((stats, table.map_or(0, |table| table.occupancy(now))));
    });
    let mut result = Saturated { gbit: measured.gb_per_second() * 8.0, ..Saturated::default() };
    if let [(before, begun), (after, ended)] = edges[..] {
        for (place, stats) in after.iter().enumerate() {
            result.handlers[place] = stats.since(&before[place]);
        }
        result.entries = (ended - begun) as f64 / measured.time.0.max(1) as f64;
    }
    result
}

/// Applies a function to inputs on all CPUs; results come in the order of the inputs.
pub fn in_parallel<I: Sync, O: Send>(inputs: &[I], work: impl Fn(&I) -> O + Sync) -> Vec<O> {
    let next = AtomicUsize::new(0);
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    let take = || {
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(input) = inputs.get(place) else { return done };
            done.push((place, work(input)));
        }
    };
    let mut all: Vec<(usize, O)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cpus.min(inputs.len())).map(|_| scope.spawn(take)).collect();
        let joined = workers.into_iter().map(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.flatten().collect()
    });
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, output)| output).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order() {
        let inputs: Vec<u64> = (0..100).collect();
        let squares = in_parallel(&inputs, |input| input * input);
        assert_eq!(squares, inputs.iter().map(|input| input * input).collect::<Vec<_>>());
        assert!(in_parallel(&[] as &[u64], |input| *input).is_empty());
    }

    #[test]
    fn sizes_double() {
        assert_eq!(sizes(1024, 4096), [1024, 2048, 4096]);
        assert_eq!(names(&[1024, 1 << 20]), ["1K", "1M"]);
    }
}
