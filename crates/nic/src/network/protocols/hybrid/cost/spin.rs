//! sPIN-Hybrid: the hop of a packet through PsPIN, and the choice.

use super::{Client, Load, Network, Schedule, best, pairs, side_by_side};
use crate::network::constants::Constants;
use crate::network::handlers::{HandlerCosts, Role};
use crate::network::spin::Handler;

/// The schedule with the least estimate whose packets take at most `room` bytes of a packet buffer.
/// If none fits, it has one stripe.
pub fn choose(
    constants: &Constants,
    costs: &HandlerCosts,
    k: u16,
    bytes: u64,
    room: u64,
) -> Schedule {
    let k = k.max(1);
    let schedules = pairs(k, bytes).flat_map(|(stripes, roots)| {
        let most = if roots == k { 1 } else { 2 };
        (1..=most).map(move |fan_out| Schedule { k, stripes, roots, fan_out, chunks: 1 })
    });
    let fits =
        |schedule: &Schedule| schedule.stripes == 1 || buffered(constants, schedule, bytes) <= room;
    best(schedules.filter(fits), |schedule| estimate(constants, costs, schedule, bytes))
}

/// The room that a write takes in the packet buffer of a node.
pub fn buffered(constants: &Constants, schedule: &Schedule, bytes: u64) -> u64 {
    let content = schedule.stripe_bytes(bytes).map(|stripe| stripe + constants.dfs_header_bytes);
    let full = constants.packet_payload_bytes();
    let packets: u64 = content.map(|content| content.div_ceil(full)).sum();
    packets * constants.mtu_bytes.next_multiple_of(constants.port_bytes.max(1))
}

/// A stripe at a node.
#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    /// When the first packet and the last one have arrived.
    first: u64,
    last: u64,
    /// The time at the end in which the client sends nothing else, so that packets come at full
    /// rate.
    burst: u64,
    /// When the first packet begins to leave.
    leaves: u64,
    /// Bytes on the wire that come, and that leave.
    wire: u64,
    sent: u64,
}

struct Hop<'a> {
    network: Network<'a>,
    costs: &'a HandlerCosts,
}

impl Hop<'_> {
    fn beats(&self, wire: u64) -> u64 {
        1000 * wire.div_ceil(self.network.constants.port_bytes.max(1))
    }

    /// From a packet in the packet buffer to its handler on an HPU.
    fn launch(&self, wire: u64) -> u64 {
        let constants = self.network.constants;
        1000 * (constants.schedule_ns + constants.l1_copy_ns + constants.dispatch_ns)
            + self.beats(wire)
    }

    fn handler(&self, handler: Handler, children: u16, wire: u64) -> u64 {
        let cost = self.costs.of(handler, Role::Store { children }, wire as u32);
        1000 * u64::from(cost.cycles)
    }

    /// From the arrival of a packet to the end of its payload handler's cycles.
    fn payload(&self, wire: u64, children: u16) -> u64 {
        self.beats(wire) + self.launch(wire) + self.handler(Handler::Payload, children, wire)
    }

    /// From the arrival of a message's first packet to its first byte on the next link.
    fn first(&self, wire: u64, children: u16) -> u64 {
        let header = self.launch(wire) + self.handler(Handler::Header, children, wire);
        header + self.payload(wire, children) + self.beats(wire)
    }

    /// When the payload handlers have run. The packets that wait for the header handler are copied
    /// to the clusters one after the other.
    fn handled(&self, visit: &Visit, (first, last): (u64, u64), children: u16) -> u64 {
        let header = self.launch(first) + self.handler(Handler::Header, children, first);
        let copied = visit.first + header + self.beats(visit.wire);
        copied.max(visit.last) + self.payload(last, children)
    }

    /// Time from the end of the payload handlers until the client sees the answer, in picoseconds.
    fn completion(&self, wire: u64, children: u16) -> u64 {
        let network = &self.network;
        let flush = network.pcie(network.constants.completion_bytes) + 2 * network.pcie_latency();
        let answer = self.beats(network.constants.packet_header_bytes) + network.answer();
        self.launch(wire) + self.handler(Handler::Completion, children, wire) + flush + answer
    }
}

/// The estimated latency of a write into an idle network, in picoseconds.
pub fn estimate(
    constants: &Constants,
    costs: &HandlerCosts,
    schedule: &Schedule,
    bytes: u64,
) -> u64 {
    let hop = Hop { network: Network { constants }, costs };
    let network = &hop.network;
    let contents: Vec<u64> =
        schedule.stripe_bytes(bytes).map(|stripe| stripe + constants.dfs_header_bytes).collect();
    let k = usize::from(schedule.k);
    let mut visits = vec![vec![Visit::default(); k]; contents.len()];
    from_client(network, schedule, &contents, &mut visits);
    // First packets: hops, and brothers that leave before.
    for (content, visits) in contents.iter().zip(&mut visits) {
        let (first, _) = network.ends(*content);
        for position in 0..schedule.k {
            let children = schedule.children(position);
            let count = children.len() as u16;
            let visit = &mut visits[usize::from(position)];
            visit.wire = network.wire(*content);
            visit.sent = u64::from(count) * visit.wire;
            visit.leaves = visit.first + hop.first(first, count);
            let mut end = visit.leaves;
            for child in children {
                end += network.out(first);
                visits[usize::from(child)].first = end + network.after_wire();
            }
        }
    }
    let links = links(network, schedule, &contents, &visits);
    // Last packets: hops, and what the links carry.
    let mut end = 0;
    for (stripe, (content, visits)) in contents.iter().zip(&mut visits).enumerate() {
        let (_, last) = network.ends(*content);
        for position in 0..schedule.k {
            let children = schedule.children(position);
            let count = children.len() as u16;
            let (arrived, left) = links[usize::from(schedule.rank(stripe as u16, position))];
            let visit = &mut visits[usize::from(position)];
            visit.last = visit.last.max(arrived);
            let handled = hop.handled(visit, network.ends(*content), count);
            let mut departed = 0;
            if count > 0 {
                let hop = handled + hop.beats(last) + u64::from(count) * network.out(last);
                let burst = u64::from(count.saturating_sub(1)) * visit.burst;
                departed = left.max(hop + burst);
            }
            let stored = handled + network.pcie(last);
            end = end.max(stored.max(departed) + hop.completion(last, count));
            for (place, child) in children.enumerate() {
                let behind = u64::from(count) - 1 - place as u64;
                let left = departed - behind * network.out(last);
                visits[usize::from(child)].last = left + network.after_wire();
            }
        }
    }
    end
}

/// The first and the last packets at the roots.
fn from_client(
    network: &Network,
    schedule: &Schedule,
    contents: &[u64],
    visits: &mut [Vec<Visit>],
) {
    let mut client = Client::new(network);
    let mut free = 0;
    for root in 0..schedule.roots {
        let message =
            |content: &u64| (client.begins(*content), network.link(network.wire(*content)));
        let begun: Vec<(u64, u64)> = contents.iter().map(message).collect();
        let ends = side_by_side(&begun, free);
        for (stripe, end) in ends.iter().enumerate() {
            let first = network.link(network.ends(contents[stripe]).0);
            let visit = &mut visits[stripe][usize::from(root)];
            visit.first = begun[stripe].0.max(free) + first + network.after_wire();
            visit.last = end + network.after_wire();
            let others = ends.iter().enumerate().filter(|(other, _)| *other != stripe);
            let before = others.map(|(_, end)| *end).max().unwrap_or(begun[stripe].0.max(free));
            visit.burst = end.saturating_sub(before);
        }
        free = ends.into_iter().max().unwrap_or(free);
    }
}

/// When the links into and out of every node have carried all stripes.
fn links(
    network: &Network,
    schedule: &Schedule,
    contents: &[u64],
    visits: &[Vec<Visit>],
) -> Vec<(u64, u64)> {
    let mut loads = vec![(Load::default(), Load::default()); usize::from(schedule.k)];
    for (stripe, visits) in visits.iter().enumerate() {
        let first = network.link(network.ends(contents[stripe]).0);
        for (position, visit) in visits.iter().enumerate() {
            let rank = schedule.rank(stripe as u16, position as u16);
            let (into, out) = &mut loads[usize::from(rank)];
            into.0.push((visit.first - first, visit.wire));
            if visit.sent > 0 {
                out.0.push((visit.leaves, visit.sent));
            }
        }
    }
    let end = |(into, out): &mut (Load, Load)| {
        (into.end(|bytes| network.link(bytes)), out.end(|bytes| network.out(bytes)))
    };
    loads.iter_mut().map(end).collect()
}
