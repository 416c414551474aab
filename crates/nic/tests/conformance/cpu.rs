//! What a node's CPU does with the parity writes that the NIC leaves to it.

use std::collections::BTreeMap;

use fieldstone_nic::firmware::packet::{PACKET_HEADER_BYTES, PacketHeader, Reply};
use fieldstone_nic::firmware::state::STAGED_DATA;

use crate::node::Node;

/// A parity write so far.
#[derive(Default)]
struct Sum {
    bytes: Vec<u8>,
    request_ids: Vec<u32>,
}

/// Adds staged messages up.
#[derive(Default)]
pub struct Cpu {
    sums: BTreeMap<(u32, u64), Sum>,
    pub aggregated: usize,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Cpu {
    /// A message is in its staging area. The last of a write gives the reply.
    pub fn staged(&mut self, node: &mut Node, request_id: u32, failed: bool) -> Option<Reply> {
        assert!(!failed);
        let at = node.settings.staging_at(request_id & 0xfff);
        let head = node.stored(at, STAGED_DATA as usize);
        let rank = (PacketHeader::parse(&head).unwrap().place >> 16 & 0xff) as usize;
        let headers = &head[PACKET_HEADER_BYTES..];
        let (request, client) = (long(headers, 4), word(headers, 12));
        let (len, k) = (word(headers, 92) as usize, usize::from(headers[97]));
        let own = &headers[100 + 12 * rank..];
        assert_eq!(word(own, 0), node.settings.node);
        let address = long(own, 4);
        let sum = self.sums.entry((client, request)).or_default();
        sum.bytes.resize(len, 0);
        let staged = node.stored(at + u64::from(STAGED_DATA), len);
        for (to, byte) in sum.bytes.iter_mut().zip(staged) {
            *to ^= byte;
        }
        sum.request_ids.push(request_id);
        if sum.request_ids.len() < k {
            return None;
        }
        let sum = self.sums.remove(&(client, request))?;
        node.storage.extend((address..).zip(sum.bytes));
        for request_id in sum.request_ids {
            node.release(request_id);
        }
        self.aggregated += 1;
        Some(Reply { request, status: 0, node: node.settings.node })
    }
}
