//! CPU-Ring and CPU-PBT: the client sends the write in chunks to the first node. Each node's CPU
//! sees a chunk, checks the capability on the first, posts the chunk to the nodes below, and copies
//! it to the storage target. When a node has all chunks, its CPU answers the client.

use std::collections::BTreeMap;

use super::{Shape, begin, chunks, message};
use crate::network::fabric::{Fabric, Notice, WorkItem};
use crate::network::host::Source;
use crate::network::packet::{HostId, Verb, Write, WriteId};
use crate::network::time::Ps;
use crate::network::world::{Layout, Protocol};

/// Writes through the CPUs of `k` nodes, in chunks.
#[derive(Debug)]
pub struct CpuReplicate {
    layout: Layout,
    shape: Shape,
    k: u16,
    chunk_bytes: u64,
    writes: BTreeMap<WriteId, State>,
}

#[derive(Debug)]
struct State {
    write: Write,
    chunks: Vec<u64>,
    /// Chunks that each node has stored.
    stored: Vec<usize>,
    answers: u16,
}

const POST: u8 = 0;
const SEEN: u8 = 1;
const STORED: u8 = 2;
const ANSWER: u8 = 3;

impl CpuReplicate {
    /// Writes to the first `k` nodes (at most 255) in chunks of a size.
    pub fn new(layout: Layout, shape: Shape, k: u16, chunk_bytes: u64) -> Self {
        let k = k.clamp(1, 255);
        Self { layout, shape, k, chunk_bytes, writes: BTreeMap::new() }
    }

    fn done(&mut self, host: HostId, item: WorkItem, fabric: &mut Fabric) {
        let Some(state) = self.writes.get_mut(&item.write) else { return };
        let (rank, chunk) = (item.tag >> 8, item.tag & 255);
        let bytes = state.chunks.get(usize::from(chunk)).copied().unwrap_or(0);
        match item.step {
            POST => {
                for (chunk, bytes) in state.chunks.iter().enumerate() {
                    let to = self.layout.node(0);
                    let mut sent = message(host, to, Verb::Send, item.write, chunk as u16, *bytes);
                    sent.header_bytes = fabric.constants.dfs_header_bytes;
                    fabric.post(host, sent, 0, Source::Memory);
                }
            }
            SEEN => {
                for child in self.shape.children(rank, self.k) {
                    let (to, tag) = (self.layout.node(child), child << 8 | chunk);
                    let mut sent = message(host, to, Verb::Send, item.write, tag, bytes);
                    sent.header_bytes = fabric.constants.dfs_header_bytes;
                    fabric.post(host, sent, u32::from(child), Source::Memory);
                }
                let time = fabric.copy_time(bytes);
                fabric.cpu(host, time, WorkItem { step: STORED, ..item });
            }
            STORED => {
                let stored = &mut state.stored[usize::from(rank)];
                *stored += 1;
                if *stored == state.chunks.len() {
                    let time = fabric.post_time();
                    fabric.cpu(host, time, WorkItem { step: ANSWER, ..item });
                }
            }
            _ => {
                let client = state.write.client;
                let mut sent = fabric.response(host, client, item.write, rank << 8);
                sent.payload_bytes = fabric.constants.rpc_bytes;
                fabric.post(host, sent, 0, Source::Nic);
            }
        }
    }
}

impl Protocol for CpuReplicate {
    fn issue(&mut self, write: Write, fabric: &mut Fabric) {
        let chunks = chunks(write.bytes, self.chunk_bytes, fabric.constants.chunks);
        let stored = vec![0; usize::from(self.k)];
        self.writes.insert(write.id, State { write, chunks, stored, answers: 0 });
        begin(fabric, &write, POST);
    }

    fn on(&mut self, notice: Notice, fabric: &mut Fabric) {
        match notice {
            Notice::Received(host, received) => {
                let (rank, chunk) = (received.tag >> 8, received.tag & 255);
                let seen = if chunk == 0 {
                    fabric.dispatch_time(true)
                } else {
                    Ps::ns(fabric.constants.poll_ns)
                };
                let forwards = self.shape.children(rank, self.k).next().is_some();
                let post = if forwards { fabric.post_time() } else { Ps::ZERO };
                fabric.cpu(host, seen + post, Fabric::item(SEEN, received.write, received.tag));
            }
            Notice::Done(host, item) => self.done(host, item, fabric),
            Notice::Acked(_, response) => {
                let Some(state) = self.writes.get_mut(&response.write) else { return };
                state.answers += 1;
                if state.answers == self.k {
                    self.writes.remove(&response.write);
                    fabric.finish(response.write);
                }
            }
            _ => {}
        }
    }
}
