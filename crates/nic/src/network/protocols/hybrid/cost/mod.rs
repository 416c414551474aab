//! The latency of a schedule, estimated from the constants of the network.
//!
//! The estimate follows the first and the last byte of each stripe from the client to every node:
//!
//! - The **client** posts all messages at once. Its NIC injects one per `inject_ns`, and reads the
//!   data over PCIe. It reads `fetch_packets` of a stripe ahead, so the stripes begin one after the
//!   other ([`Client`]). Then they go side by side, each with its fair share of the link
//!   ([`side_by_side`]).
//! - A **hop** costs the first byte the work of a node until it forwards, and the wire.
//! - A **link** carries a byte after the other. The last byte leaves a node no earlier than it
//!   came plus the hop, and no earlier than the link has carried all that it must. The same holds
//!   for the link into a node ([`Load`]).
//! - The write ends when the client has the last answer.
//!
//! It leaves out what needs the state of queues: how packets of different stripes alternate on a
//! link, credits, and waits for an HPU.

pub mod rdma;
pub mod spin;

use super::{MAX_STRIPES, Schedule};
use crate::network::constants::Constants;
use crate::network::time::Rate;

/// The network, in picoseconds.
struct Network<'a> {
    constants: &'a Constants,
}

impl Network<'_> {
    /// The time of bytes on a link of the client, or into a node.
    fn link(&self, bytes: u64) -> u64 {
        Rate::gbit(self.constants.link_gbit).time(bytes).0
    }

    /// The time of bytes on the link out of a node.
    fn out(&self, bytes: u64) -> u64 {
        Rate::gbit(self.constants.egress_gbit).time(bytes).0
    }

    fn pcie(&self, bytes: u64) -> u64 {
        Rate::gbit(self.constants.pcie_gbit).time(bytes).0
    }

    fn pcie_latency(&self) -> u64 {
        self.constants.pcie_latency_ns * 1000
    }

    /// From the end of a packet on its sender's link to its arrival: two links and the switch,
    /// which waits for the header.
    fn after_wire(&self) -> u64 {
        2000 * self.constants.link_latency_ns + self.link(self.constants.packet_header_bytes)
    }

    /// From an injection to the first byte on the link.
    fn fetch(&self, bytes: u64) -> u64 {
        2 * self.pcie_latency() + self.pcie(bytes)
    }

    /// Time from the moment when a node begins to send an answer until the client sees it, in
    /// picoseconds.
    fn answer(&self) -> u64 {
        let constants = self.constants;
        let seen = 1000 * (constants.receive_ns + constants.poll_ns);
        let packet = self.out(constants.packet_header_bytes) + self.after_wire();
        packet + seen + self.pcie(constants.completion_bytes) + self.pcie_latency()
    }

    /// Bytes on the wire for bytes of content.
    fn wire(&self, content: u64) -> u64 {
        let packets = content.div_ceil(self.constants.packet_payload_bytes()).max(1);
        content + packets * self.constants.packet_header_bytes
    }

    /// Bytes on the wire of the first packet, and of the last one.
    fn ends(&self, content: u64) -> (u64, u64) {
        let full = self.constants.packet_payload_bytes();
        let last = if content == 0 { 0 } else { (content - 1) % full + 1 };
        let header = self.constants.packet_header_bytes;
        (content.min(full) + header, last + header)
    }
}

/// The client's NIC: injections, and reads over PCIe.
struct Client<'a> {
    network: &'a Network<'a>,
    injected: u64,
    read: u64,
}

impl<'a> Client<'a> {
    fn new(network: &'a Network) -> Self {
        let injected = 1000 * network.constants.post_ns + network.pcie_latency();
        Self { network, injected, read: 0 }
    }

    /// The next message: when its first packet can be on the link.
    fn begins(&mut self, content: u64) -> u64 {
        let (network, constants) = (self.network, self.network.constants);
        self.injected += 1000 * constants.inject_ns;
        let asked = self.read.max(self.injected + network.pcie_latency());
        let full = constants.packet_payload_bytes();
        self.read = asked + network.pcie(content.min(constants.fetch_packets.max(1) * full));
        asked + network.pcie(content.min(full)) + network.pcie_latency()
    }
}

/// What a link must carry: when each stripe is first there, and its bytes on the wire.
#[derive(Clone, Debug, Default)]
struct Load(Vec<(u64, u64)>);

impl Load {
    /// When all is carried, at `rate` picoseconds for bytes: no earlier than all that comes from
    /// some time on, after this time.
    fn end(&mut self, rate: impl Fn(u64) -> u64) -> u64 {
        self.0.sort_unstable_by(|a, b| b.cmp(a));
        let (mut bytes, mut end) = (0, 0);
        for (begin, wire) in &self.0 {
            bytes += wire;
            end = end.max(begin + rate(bytes));
        }
        end
    }
}

/// When messages end that share a link fairly. Each has a begin and a time on the link; `free` is
/// when the link is. Where they overlap, they end in the order in which they began, as far apart.
fn side_by_side(messages: &[(u64, u64)], free: u64) -> Vec<u64> {
    let first = messages.iter().map(|message| message.0).min().unwrap_or(0).max(free);
    let last = messages.iter().map(|message| message.0).max().unwrap_or(0).max(free);
    let all = first + messages.iter().map(|message| message.1).sum::<u64>();
    let alone = |&(begin, time): &(u64, u64)| begin.max(free) + time;
    let end = messages.iter().map(alone).max().unwrap_or(0).max(all);
    let ends = messages.iter().map(|message| {
        let earlier = last - message.0.max(free);
        alone(message).max(end.saturating_sub(earlier))
    });
    ends.collect()
}

/// All pairs of stripes and roots for k nodes and a write. A stripe has at least one byte.
fn pairs(k: u16, bytes: u64) -> impl Iterator<Item = (u16, u16)> {
    let most = u64::from(MAX_STRIPES.min(k)).min(bytes.max(1)) as u16;
    // Many nodes: fewer numbers of roots, as the neighbours cost nearly the same.
    let step = usize::from(k / 16).max(1);
    let roots = move || (1..k).step_by(step).chain(std::iter::once(k));
    (1..=most).flat_map(move |stripes| roots().map(move |roots| (stripes, roots)))
}

/// The schedule with the least estimate. Of equals it is the first.
fn best(schedules: impl Iterator<Item = Schedule>, of: impl Fn(&Schedule) -> u64) -> Schedule {
    let estimated = schedules.map(|schedule| (of(&schedule), schedule));
    // A family has at least the flat schedule.
    estimated.min_by_key(|(time, _)| *time).expect("a family is not empty").1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_share_a_link_and_end_as_far_apart_as_they_began() {
        assert_eq!(side_by_side(&[(10, 100)], 0), [110]);
        assert_eq!(side_by_side(&[(10, 100)], 50), [150], "the link is free at 50");
        // The first message has the link alone for 20. Then each has half of the rate, so the
        // first needs 160 for its other 80.
        assert_eq!(side_by_side(&[(0, 100), (20, 100)], 0), [180, 200]);
        assert_eq!(side_by_side(&[(0, 10), (20, 10)], 0), [10, 30], "they do not overlap");
    }
}
