//! Loads: one write at a time for latency, and clients with a window for bandwidth.

use super::constants::Constants;
use super::handlers::HandlerCosts;
use super::packet::HostId;
use super::time::Ps;
use super::world::{Layout, Protocol, World};

/// The latency of a write into idle hosts. `None` if the write never ends.
pub fn latency<P: Protocol>(world: &mut World<P>, bytes: u64) -> Option<Ps> {
    let write = world.issue(HostId(0), bytes);
    while let Some(finished) = world.next_finished() {
        if finished == write {
            return world.latency(write);
        }
    }
    None
}

/// The chunk size with the least latency, and this latency. `make` makes a protocol for a chunk
/// size. Sizes are powers of two from a packet's to the whole write.
pub fn best_chunk<P: Protocol>(
    constants: &Constants,
    layout: Layout,
    bytes: u64,
    make: impl Fn(u64) -> P,
) -> Option<(u64, Ps)> {
    let sizes = (10..40).map(|power| 1u64 << power).filter(|size| *size <= bytes);
    let sizes = sizes.chain(std::iter::once(bytes));
    let measured = sizes.filter_map(|chunk| {
        let costs = HandlerCosts::default();
        let mut world = World::new(constants.clone(), costs, layout, make(chunk));
        Some((chunk, latency(&mut world, bytes)?))
    });
    measured.min_by_key(|(_, time)| *time)
}

/// A load of clients that each keep a number of writes in progress.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Bytes of a write.
    pub bytes: u64,
    /// Writes in progress per client.
    pub window: u32,
    /// Writes in all.
    pub writes: u32,
}

/// What a load measured, from the end of its first quarter to the end of its third.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// When the measurement began.
    pub begin: Ps,
    /// Its length.
    pub time: Ps,
    /// Bytes of data that the first storage node received.
    pub bytes: u64,
    /// Writes that ended.
    pub writes: u32,
    /// Sum of their latencies.
    pub latency: Ps,
}

impl Measured {
    /// Data that the first storage node received, in bytes per nanosecond: GB/s.
    pub fn gb_per_second(&self) -> f64 {
        if self.time == Ps::ZERO { 0.0 } else { self.bytes as f64 / self.time.as_ns() }
    }

    /// The mean latency.
    pub fn mean_latency_ns(&self) -> f64 {
        self.latency.as_ns() / f64::from(self.writes.max(1))
    }
}

/// Runs a load to its end. `at_edges` is called at the begin and at the end of the measurement.
pub fn run<P: Protocol>(
    world: &mut World<P>,
    layout: Layout,
    load: Window,
    mut at_edges: impl FnMut(&mut World<P>),
) -> Measured {
    let mut left = load.writes;
    for _ in 0..load.window {
        for client in 0..layout.clients {
            if left > 0 {
                left -= 1;
                world.issue(HostId(client), load.bytes);
            }
        }
    }
    let (first, last) = (load.writes / 4, load.writes / 4 * 3);
    let mut finished = 0;
    let mut measured = Measured::default();
    while let Some(write) = world.next_finished() {
        finished += 1;
        let now = world.fabric.now();
        let ingested = world.fabric.ingested[layout.node(0).index()];
        if finished == first {
            measured.begin = now;
            measured.bytes = ingested;
            at_edges(world);
        }
        if finished > first && finished <= last {
            measured.writes += 1;
            measured.latency += world.latency(write).unwrap_or_default();
        }
        if finished == last {
            measured.time = now - measured.begin;
            measured.bytes = ingested - measured.bytes;
            at_edges(world);
        }
        if left > 0 {
            left -= 1;
            let client = world.write(write).client;
            world.issue(client, load.bytes);
        }
    }
    measured
}
