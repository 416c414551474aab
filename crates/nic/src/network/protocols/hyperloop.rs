//! RDMA-HyperLoop: a ring in which NICs forward on their own. The client first writes work-queue
//! elements into every node that forwards, one set per chunk, and waits until they are there. Then
//! it writes the data to the first node in chunks. When a chunk is in a node's memory, the waiting
//! element makes the NIC read its next elements and send the chunk on. The last node's NIC answers.
//! Nodes trust the client.

use std::collections::BTreeMap;

use super::{begin, chunks, message};
use crate::network::fabric::{Fabric, Notice};
use crate::network::host::Source;
use crate::network::packet::{Acknowledge, HostId, Message, Verb, Write, WriteId};
use crate::network::time::Ps;
use crate::network::world::{Layout, Protocol};

/// Writes through a ring of `k` NICs, in chunks.
#[derive(Debug)]
pub struct HyperLoop {
    layout: Layout,
    k: u16,
    chunk_bytes: u64,
    writes: BTreeMap<WriteId, State>,
}

#[derive(Debug)]
struct State {
    write: Write,
    chunks: Vec<u64>,
    configured: u16,
    answers: usize,
}

const CONFIGURE: u8 = 0;
const WRITE: u8 = 1;
/// The tag of configuring writes; those of chunks are 256 times the rank plus the chunk.
const CONFIGURATION: u16 = 0xff00;

impl HyperLoop {
    /// Writes to the first `k` nodes (at most 254) in chunks of a size.
    pub fn new(layout: Layout, k: u16, chunk_bytes: u64) -> Self {
        Self { layout, k: k.clamp(1, 254), chunk_bytes, writes: BTreeMap::new() }
    }

    fn landed(&self, host: HostId, landed: &Message, fabric: &mut Fabric) {
        if landed.tag >= CONFIGURATION {
            return;
        }
        let Some(state) = self.writes.get(&landed.write) else { return };
        let (rank, chunk) = (landed.tag >> 8, landed.tag & 255);
        let latency = Ps::ns(fabric.constants.pcie_latency_ns);
        if rank + 1 == self.k {
            // Flushed as any RDMA write that is acknowledged when it is in memory.
            let response = fabric.response(host, state.write.client, landed.write, landed.tag);
            fabric.respond_at(fabric.now() + latency, response);
            return;
        }
        let verb = Verb::Write { acknowledge: Acknowledge::Never };
        let (to, tag) = (self.layout.node(rank + 1), (rank + 1) << 8 | chunk);
        let sent = message(host, to, verb, landed.write, tag, landed.payload_bytes);
        let fetched = fabric.now() + latency + latency;
        fabric.inject_at(fetched, host, sent, 0, Source::Memory);
    }

    fn answered(&mut self, client: HostId, response: &Message, fabric: &mut Fabric) {
        let Some(state) = self.writes.get_mut(&response.write) else { return };
        if response.tag >= CONFIGURATION {
            state.configured += 1;
            if state.configured + 1 == self.k {
                let time = Ps::ns(fabric.constants.poll_ns) + fabric.post_time();
                fabric.cpu(client, time, Fabric::item(WRITE, response.write, 0));
            }
            return;
        }
        state.answers += 1;
        if state.answers == state.chunks.len() {
            self.writes.remove(&response.write);
            fabric.finish(response.write);
        }
    }
}

impl Protocol for HyperLoop {
    fn issue(&mut self, write: Write, fabric: &mut Fabric) {
        let chunks = chunks(write.bytes, self.chunk_bytes, fabric.constants.chunks);
        self.writes.insert(write.id, State { write, chunks, configured: 0, answers: 0 });
        begin(fabric, &write, if self.k > 1 { CONFIGURE } else { WRITE });
    }

    fn on(&mut self, notice: Notice, fabric: &mut Fabric) {
        match notice {
            Notice::Done(client, item) => {
                let Some(state) = self.writes.get(&item.write) else { return };
                if item.step == CONFIGURE {
                    let verb = Verb::Write { acknowledge: Acknowledge::Durable };
                    let bytes = state.chunks.len() as u64 * fabric.constants.wqe_bytes;
                    for rank in 0..self.k - 1 {
                        let to = self.layout.node(rank);
                        let sent = message(client, to, verb, item.write, CONFIGURATION, bytes);
                        fabric.post(client, sent, 0, Source::Memory);
                    }
                    return;
                }
                let verb = Verb::Write { acknowledge: Acknowledge::Never };
                for (chunk, bytes) in state.chunks.iter().enumerate() {
                    let to = self.layout.node(0);
                    let sent = message(client, to, verb, item.write, chunk as u16, *bytes);
                    fabric.post(client, sent, 0, Source::Memory);
                }
            }
            Notice::Landed(host, landed) => self.landed(host, &landed, fabric),
            Notice::Acked(client, response) => self.answered(client, &response, fabric),
            _ => {}
        }
    }
}
