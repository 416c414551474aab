//! Hybrid and sPIN-Hybrid: replicated writes whose shape follows from k, the size and the network.
//!
//! # The shapes
//!
//! A write of S bytes must reach k nodes. The paper's shapes each waste something:
//!
//! - Flat: the client's link carries k S, while the nodes' links out are idle.
//! - Ring: every link carries S, but the last node waits for k - 1 hops.
//! - Tree: only about log2 k hops, but the link of a node with two children carries 2 S, while
//!   the links of the leaves are idle.
//!
//! A [`Schedule`] cuts the write into `stripes` equal parts. The nodes of a stripe are a forest:
//! the client sends the stripe to `roots` nodes, and each node sends to at most `fan_out` others.
//! Each stripe begins with another node (its nodes are rotated), so all nodes share the work of
//! forwarding. Flat, ring and tree are the schedules of one stripe with k roots, and with one root
//! and a fan-out of 1 or 2. Two stripes, one root and a fan-out of 2 are two trees: the nodes that
//! forward one are leaves of the other. They need about log2 k hops, and no link carries more than
//! S. Each further root costs the client a message and its bytes, and saves hops.
//!
//! # The choice
//!
//! [`cost`] estimates the latency of a schedule, from the constants of the network alone: it adds
//! up the hops of the first and the last packet, and lets no link carry more than its rate. It
//! does this for all schedules of a family, some hundreds for k = 8, and takes the one with the
//! least estimate; of equals, the first. Nothing in it is measured.
//!
//! Small writes pay per message: the client's NIC injects one per `inject_ns`, and a hop costs
//! several of them. So the client sends them to all nodes, or to most: then the first of these
//! nodes, which have the write early, send it to the last nodes. Large writes pay per byte, and get
//! stripes.
//!
//! # Two ways to forward
//!
//! - [`spin`]: packet handlers forward, as in [`super::spin_replicate`]. A handler sends at most
//!   two packets, because the paper's tables have costs for 0, 1 and 2. Nodes check capabilities.
//! - [`rdma`]: NICs forward by work-queue elements of the client, as in [`super::hyperloop`]. Only
//!   roots forward, to any number of leaves. So the elements of a root travel in front of its data
//!   on the same connection, and the client does not wait until they are there. Nodes trust the
//!   client.
//!
//! # Cycles
//!
//! With stripes, A forwards to B and B to A. In a lossless network, two such nodes can wait for
//! each other for ever, once their buffers are full. `rdma` cannot: a NIC takes every packet into
//! host memory, and never waits with it for its own link. `spin` forwards from the packet buffer.
//! There, each client has an equal share of every packet buffer, and sends only what fits into its
//! share, until all nodes have answered. So no packet buffer is ever full, every link drains, and
//! no node waits for another one's buffer. A share is at least a packet, so this holds for up to
//! 2,048 clients with buffers of 4 MiB. Writes larger than the share go in parts, one after the
//! other.

pub mod cost;
pub mod rdma;
pub mod spin;

/// Most stripes of a write: three bits of a tag.
pub const MAX_STRIPES: u16 = 8;

/// Most chunks of a stripe: six bits of a tag.
pub const MAX_CHUNKS: u16 = 64;

/// How a write travels to k nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Nodes.
    pub k: u16,
    /// Equal parts of the write; at most [`MAX_STRIPES`], and at most k.
    pub stripes: u16,
    /// Nodes to which the client sends a stripe; from 1 to k.
    pub roots: u16,
    /// Most nodes to which a node sends a stripe; at least 1.
    pub fan_out: u16,
    /// Chunks of a stripe that are forwarded one by one; at most [`MAX_CHUNKS`]. Handlers forward
    /// packets, so `spin` has 1.
    pub chunks: u16,
}

impl Schedule {
    /// One stripe to every node: RDMA-Flat.
    pub fn flat(k: u16) -> Self {
        Self { k, stripes: 1, roots: k, fan_out: 1, chunks: 1 }
    }

    /// One stripe from node to node: a ring.
    pub fn ring(k: u16) -> Self {
        Self { roots: 1, ..Self::flat(k) }
    }

    /// The same without empty stripes and chunks, for a write of a size.
    pub fn fitting(self, bytes: u64) -> Self {
        if bytes == 0 {
            return Self::flat(self.k);
        }
        let least = |count: u16, bytes: u64| u64::from(count).min(bytes.max(1)) as u16;
        let stripes = least(self.stripes, bytes);
        let chunks = least(self.chunks, bytes / u64::from(stripes));
        Self { stripes, chunks, ..self }
    }

    /// The node at a position of a stripe. Roots have the first positions.
    pub fn rank(&self, stripe: u16, position: u16) -> u16 {
        (self.offset(stripe) + position) % self.k
    }

    /// The position of a node in a stripe.
    pub fn position(&self, stripe: u16, rank: u16) -> u16 {
        (rank + self.k - self.offset(stripe)) % self.k
    }

    /// The stripes begin at nodes that are as far apart as can be.
    fn offset(&self, stripe: u16) -> u16 {
        let offset = u32::from(stripe) * u32::from(self.k) / u32::from(self.stripes);
        (offset % u32::from(self.k)) as u16
    }

    /// The positions to which a position forwards: roots come first, and then their children in
    /// order, as in a heap.
    pub fn children(&self, position: u16) -> std::ops::Range<u16> {
        let (k, fan_out) = (u32::from(self.k), u32::from(self.fan_out));
        let first = (u32::from(self.roots) + u32::from(position) * fan_out).min(k);
        first as u16..(first + fan_out).min(k) as u16
    }

    /// The nodes to which a node forwards a stripe.
    pub fn children_of(&self, stripe: u16, rank: u16) -> impl Iterator<Item = u16> + '_ {
        let children = self.children(self.position(stripe, rank));
        children.map(move |position| self.rank(stripe, position))
    }

    /// A position and all positions below it.
    pub fn subtree(&self, position: u16) -> u16 {
        let below = self.children(position).map(|child| self.subtree(child));
        1 + below.sum::<u16>()
    }

    /// The sizes of the stripes of a write. They differ by at most one byte.
    pub fn stripe_bytes(&self, bytes: u64) -> impl Iterator<Item = u64> {
        parts(bytes, self.stripes)
    }

    /// The sizes of the chunks of a stripe.
    pub fn chunk_bytes(&self, stripe_bytes: u64) -> impl Iterator<Item = u64> {
        parts(stripe_bytes, self.chunks)
    }
}

/// Cuts bytes into a number of parts, as equal as can be.
fn parts(bytes: u64, count: u16) -> impl Iterator<Item = u64> {
    let count = u64::from(count.max(1));
    (0..count).map(move |place| bytes / count + u64::from(place < bytes % count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks that each stripe reaches every node once, from the client or from a node that has it,
    /// and that the stripes are the whole write.
    fn check(schedule: &Schedule, bytes: u64) {
        let Schedule { k, stripes, roots, .. } = *schedule;
        assert!((1..=MAX_STRIPES.min(k)).contains(&stripes) && (1..=k).contains(&roots));
        for stripe in 0..stripes {
            let mut reached: Vec<u16> =
                (0..roots).map(|root| schedule.rank(stripe, root)).collect();
            for position in 0..k {
                let rank = schedule.rank(stripe, position);
                assert_eq!(schedule.position(stripe, rank), position);
                assert!(reached.contains(&rank), "{schedule:?}: {rank} before its parent");
                reached.extend(schedule.children_of(stripe, rank));
            }
            reached.sort_unstable();
            assert_eq!(reached, (0..k).collect::<Vec<_>>(), "{schedule:?}");
            let roots = (0..roots).map(|root| schedule.subtree(root));
            assert_eq!(roots.sum::<u16>(), k, "{schedule:?}");
        }
        let of_stripe = |stripe| schedule.chunk_bytes(stripe).sum::<u64>();
        assert_eq!(schedule.stripe_bytes(bytes).map(of_stripe).sum::<u64>(), bytes);
    }

    #[test]
    fn a_schedule_reaches_every_node_once() {
        for k in 1..=20 {
            for stripes in 1..=MAX_STRIPES.min(k) {
                for (roots, fan_out) in (1..=k).flat_map(|r| (1..=k).map(move |f| (r, f))) {
                    check(&Schedule { k, stripes, roots, fan_out, chunks: 3 }, 1001);
                }
            }
        }
    }

    #[test]
    fn the_papers_shapes_are_schedules_of_one_stripe() {
        use crate::network::protocols::Shape;
        for k in 1..=12 {
            for (shape, fan_out) in [(Shape::Ring, 1), (Shape::Tree, 2)] {
                let schedule = Schedule { fan_out, roots: 1, ..Schedule::flat(k) };
                for rank in 0..k {
                    let ours: Vec<u16> = schedule.children_of(0, rank).collect();
                    assert_eq!(ours, shape.children(rank, k).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn inner_nodes_of_two_trees_differ() {
        for k in 2..=MAX_STRIPES {
            let trees = Schedule { k, stripes: 2, roots: 1, fan_out: 2, chunks: 1 };
            let sent = |rank| (0..2).map(|stripe| trees.children_of(stripe, rank).count()).sum();
            let most: usize = (0..k).map(sent).max().unwrap();
            assert!(most <= 2, "k = {k}: no link carries more than the write, twice its half");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn every_choice_is_a_schedule(
            k in 1u16..=40, bytes in 1u64..1 << 21, fast in any::<bool>(),
            latency in 1u64..3000, inject in 1u64..1000, mtu in 256u64..9000,
        ) {
            use crate::network::constants::Constants;
            use crate::network::handlers::HandlerCosts;
            let gbit = if fast { 400 } else { 25 };
            let constants = Constants {
                link_gbit: gbit, egress_gbit: gbit, link_latency_ns: latency, inject_ns: inject,
                mtu_bytes: mtu, ..Constants::default()
            };
            let spin = cost::spin::choose(&constants, &HandlerCosts::default(), k, bytes, u64::MAX);
            check(&spin, bytes);
            prop_assert!(spin.fan_out <= 2 && spin.chunks == 1);
            let rdma = cost::rdma::choose(&constants, k, bytes);
            check(&rdma, bytes);
            prop_assert_eq!((spin, rdma), (spin.fitting(bytes), rdma.fitting(bytes)));
            let below = (0..rdma.roots).flat_map(|root| rdma.children(root));
            for child in below {
                prop_assert!(rdma.children(child).is_empty(), "only roots forward: {rdma:?}");
            }
        }
    }
}
