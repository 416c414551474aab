//! The protocols of the paper, one state machine each, and ours.
//!
//! | file | protocols | figures |
//! |---|---|---|
//! | [`flat`] | raw write; RDMA-Flat | 6, 9, 10 |
//! | [`rpc`] | RPC | 6 |
//! | [`rpc_rdma`] | RPC+RDMA | 6 |
//! | [`spin_replicate`] | sPIN write, sPIN-Ring, sPIN-PBT | 6, 9, 10, 11 |
//! | [`hyperloop`] | RDMA-HyperLoop | 9, 10 |
//! | [`cpu_replicate`] | CPU-Ring, CPU-PBT | 9, 10 |
//! | [`hybrid`] | Hybrid, sPIN-Hybrid: ours | 9, 10 |
//! | [`node`] | the product's node: ours | 9, 10 |
//! | [`inec_triec`] | INEC-TriEC | 15 |
//! | [`spin_triec`] | sPIN-TriEC | 15, 16 |

pub mod cpu_replicate;
pub mod flat;
pub mod hybrid;
pub mod hyperloop;
pub mod inec_triec;
pub mod node;
pub mod rpc;
pub mod rpc_rdma;
pub mod spin_replicate;
pub mod spin_triec;
pub mod table;

use super::fabric::Fabric;
use super::packet::{HostId, Message, MessageId, Verb, Write, WriteId};

/// The shape in which nodes forward a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Each node forwards to the next.
    Ring,
    /// Each node forwards to two: the pipelined binary tree of the paper (PBT).
    Tree,
}

impl Shape {
    /// The nodes to which the node of `rank` forwards, of `k`.
    pub fn children(self, rank: u16, k: u16) -> impl Iterator<Item = u16> {
        let (first, count) = match self {
            Self::Ring => (rank + 1, 1),
            Self::Tree => (2 * rank + 1, 2),
        };
        (first..first + count).filter(move |child| *child < k)
    }
}

/// The message of a write from one host to another. It has no DFS header.
fn message(from: HostId, to: HostId, verb: Verb, write: WriteId, tag: u16, bytes: u64) -> Message {
    Message {
        id: MessageId::of(write, to, tag),
        from,
        to,
        verb,
        write,
        tag,
        payload_bytes: bytes,
        header_bytes: 0,
    }
}

/// The client's core posts what it has to send for a write; the item tells when.
fn begin(fabric: &mut Fabric, write: &Write, step: u8) {
    let time = fabric.post_time();
    fabric.cpu(write.client, time, Fabric::item(step, write.id, 0));
}

/// The sizes of the pieces of a write, when cut into pieces of `chunk_bytes`. At most `limit`
/// pieces: the chunk grows if there would be more.
fn chunks(bytes: u64, chunk_bytes: u64, limit: u64) -> Vec<u64> {
    let chunk = chunk_bytes.max(bytes.div_ceil(limit.clamp(1, 255))).max(1);
    let count = bytes.div_ceil(chunk).max(1);
    (0..count).map(|place| chunk.min(bytes - (place * chunk).min(bytes))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shapes_reach_every_node_once() {
        for shape in [Shape::Ring, Shape::Tree] {
            for k in 1..20 {
                let mut reached = vec![0];
                for rank in 0..k {
                    assert!(reached.contains(&rank), "{shape:?}: {rank} before its parent");
                    reached.extend(shape.children(rank, k));
                }
                reached.sort_unstable();
                assert_eq!(reached, (0..k).collect::<Vec<_>>());
            }
        }
        assert_eq!(Shape::Tree.children(0, 4).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(Shape::Tree.children(1, 4).collect::<Vec<_>>(), [3]);
    }

    proptest! {
        #[test]
        fn chunks_are_the_whole_write(bytes in 1u64..1 << 21, chunk in 1u64..1 << 20) {
            let pieces = chunks(bytes, chunk, 64);
            prop_assert_eq!(pieces.iter().sum::<u64>(), bytes);
            prop_assert!(pieces.len() <= 64 && pieces.iter().all(|piece| *piece > 0));
        }
    }
}
