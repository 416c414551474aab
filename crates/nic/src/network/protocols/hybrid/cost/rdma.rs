//! Hybrid: the hop of a chunk through the memory of a node with a plain NIC, and the choice.

use super::super::MAX_CHUNKS;
use super::{Client, Load, Network, Schedule, best, pairs, side_by_side};
use crate::network::constants::Constants;

/// The schedule with the least estimate in which only roots forward.
pub fn choose(constants: &Constants, k: u16, bytes: u64) -> Schedule {
    let k = k.max(1);
    let schedules = pairs(k, bytes).flat_map(|(stripes, roots)| {
        let fan_out = (k - roots).div_ceil(roots).max(1);
        let schedule = Schedule { k, stripes, roots, fan_out, chunks: 1 };
        chunk_counts(constants, schedule, bytes).map(move |chunks| Schedule { chunks, ..schedule })
    });
    best(schedules, |schedule| estimate(constants, schedule, bytes))
}

/// Numbers of chunks to try: about a factor of 1.4 apart. A chunk has at least a byte, and a node
/// has at most as many work-queue elements as a HyperLoop group.
fn chunk_counts(
    constants: &Constants,
    schedule: Schedule,
    bytes: u64,
) -> impl Iterator<Item = u16> {
    let stripe = bytes / u64::from(schedule.stripes);
    let forwarded = |rank| -> usize {
        (0..schedule.stripes).map(|stripe| schedule.children_of(stripe, rank).count()).sum()
    };
    let most_forwarded = (0..schedule.k).map(forwarded).max().unwrap_or(0) as u64;
    let by_elements =
        constants.chunks.min(MAX_CHUNKS.into()).checked_div(most_forwarded).unwrap_or(1).max(1);
    let most = stripe.min(by_elements);
    [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64]
        .into_iter()
        .filter(move |chunks| *chunks == 1 || u64::from(*chunks) <= most)
}

/// The link out of a node, and the injections of its NIC.
#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    injected: u64,
    free: u64,
}

/// The messages that a node receives. `last`: when the last of them would end if it had the node's
/// link alone.
#[derive(Clone, Debug, Default)]
struct Receiver {
    load: Load,
    last: u64,
}

impl Receiver {
    fn arrives(&mut self, begins: u64, end: u64, wire: u64) {
        self.load.0.push((begins, wire));
        self.last = self.last.max(end);
    }
}

/// The estimated latency of a write into an idle network, in picoseconds.
pub fn estimate(constants: &Constants, schedule: &Schedule, bytes: u64) -> u64 {
    let network = Network { constants };
    let stripes: Vec<u64> = schedule.stripe_bytes(bytes).collect();
    let k = usize::from(schedule.k);
    let mut senders = vec![Sender::default(); k];
    let mut receivers = vec![Receiver::default(); k];
    let mut client = Client::new(&network);
    let mut free = 0;
    for root in 0..schedule.roots {
        let children = schedule.children(root);
        let forwards = !children.is_empty();
        let chunks = if forwards { schedule.chunks } else { 1 };
        // Work-queue elements go first.
        let elements = element_bytes(constants, schedule, root);
        for _ in stripes.iter().filter(|_| forwards) {
            client.begins(elements);
        }
        let elements = network.wire(elements);
        for chunk in 0..chunks {
            let sizes = stripes.iter().map(|stripe| {
                let whole = schedule.chunk_bytes(*stripe).nth(usize::from(chunk));
                if forwards { whole.unwrap_or(0) } else { *stripe }
            });
            let sizes: Vec<u64> = sizes.collect();
            let begun = sizes.iter().map(|size| {
                let begin = client.begins(*size);
                let before = if forwards && chunk == 0 { elements } else { 0 };
                (begin, network.link(network.wire(*size) + before))
            });
            let begun: Vec<(u64, u64)> = begun.collect();
            let ends = side_by_side(&begun, free);
            for (stripe, end) in ends.iter().enumerate() {
                let rank = |position| usize::from(schedule.rank(stripe as u16, position));
                let size = sizes[stripe];
                let arrived = *end + network.after_wire();
                let begins = begun[stripe].0.max(free) + network.after_wire();
                receivers[rank(root)].arrives(begins, arrived, network.wire(size));
                for child in children.clone() {
                    let (begins, end) = forward(&network, &mut senders[rank(root)], arrived, size);
                    receivers[rank(child)].arrives(begins, end, network.wire(size));
                }
            }
            free = ends.into_iter().max().unwrap_or(free);
        }
    }
    let end = |node: &mut Receiver| node.last.max(node.load.end(|wire| network.link(wire)));
    let last = receivers.iter_mut().map(end).max().unwrap_or(0);
    last + landed(&network, bytes) + network.pcie_latency() + network.answer()
}

/// The bytes of a root's work-queue elements for a stripe: for each chunk, one that waits for the
/// chunk, and one for each child that sends it. HyperLoop's three are of the same size.
pub fn element_bytes(constants: &Constants, schedule: &Schedule, root: u16) -> u64 {
    let children = schedule.children(root).len() as u64;
    if children == 0 {
        0
    } else {
        u64::from(schedule.chunks) * (1 + children) * constants.wqe_bytes / 3
    }
}

/// From the arrival of a message to its data in memory.
fn landed(network: &Network, bytes: u64) -> u64 {
    let last = network.ends(bytes).1;
    1000 * network.constants.receive_ns + network.pcie(last) + network.pcie_latency()
}

/// A node that has a chunk reads the work-queue element, injects the chunk, reads it from memory,
/// and sends it. When it begins to arrive at the child, and when it has.
fn forward(network: &Network, node: &mut Sender, arrived: u64, size: u64) -> (u64, u64) {
    let element = arrived + landed(network, size) + 2 * network.pcie_latency();
    node.injected = node.injected.max(element) + 1000 * network.constants.inject_ns;
    let begin = (node.injected + network.fetch(network.ends(size).0)).max(node.free);
    node.free = begin + network.out(network.wire(size));
    (begin + network.after_wire(), node.free + network.after_wire())
}
