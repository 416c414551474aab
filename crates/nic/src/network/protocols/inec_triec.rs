//! INEC-TriEC: the client writes a chunk to each of k data nodes. When a chunk is in memory, the
//! node's NIC reads it, codes it in its engine, and sends an intermediate parity to each of m
//! parity nodes. When a parity node has those of all data nodes in memory, its NIC reads and adds
//! them, stores the parity and answers. No CPU of a node takes part.

use std::collections::BTreeMap;

use super::{begin, message};
use crate::network::fabric::{Fabric, Notice};
use crate::network::handlers::Rs;
use crate::network::host::Source;
use crate::network::packet::{Acknowledge, HostId, Message, Verb, Write, WriteId};
use crate::network::world::{Layout, Protocol};

/// Writes of blocks that NIC engines code.
#[derive(Debug)]
pub struct InecTriec {
    layout: Layout,
    rs: Rs,
    writes: BTreeMap<WriteId, State>,
}

#[derive(Debug)]
struct State {
    write: Write,
    /// Intermediate parities that each parity node has.
    parts: Vec<u16>,
    answers: u16,
}

const POST: u8 = 0;
const ENCODED: u8 = 1;
const ADDED: u8 = 2;
/// The tag of intermediate parities is this plus the data node.
const PARTS: u16 = 0x100;

impl InecTriec {
    /// Data nodes first, then parity nodes.
    pub fn new(layout: Layout, rs: Rs) -> Self {
        Self { layout, rs, writes: BTreeMap::new() }
    }

    fn chunk(&self, write: &Write) -> u64 {
        write.bytes.div_ceil(u64::from(self.rs.k.max(1)))
    }

    fn landed(&mut self, host: HostId, landed: &Message, fabric: &mut Fabric) {
        let k = self.rs.k;
        let Some(state) = self.writes.get_mut(&landed.write) else { return };
        if landed.tag < PARTS {
            let item = Fabric::item(ENCODED, landed.write, landed.tag);
            fabric.code(host, landed.payload_bytes, 1, item);
            return;
        }
        let parity = self.layout.rank(host).saturating_sub(k);
        let Some(parts) = state.parts.get_mut(usize::from(parity)) else { return };
        *parts += 1;
        if *parts == k {
            let item = Fabric::item(ADDED, landed.write, parity);
            fabric.code(host, landed.payload_bytes * u64::from(k), 1, item);
        }
    }
}

impl Protocol for InecTriec {
    fn issue(&mut self, write: Write, fabric: &mut Fabric) {
        let parts = vec![0; usize::from(self.rs.m)];
        self.writes.insert(write.id, State { write, parts, answers: 0 });
        begin(fabric, &write, POST);
    }

    fn on(&mut self, notice: Notice, fabric: &mut Fabric) {
        match notice {
            Notice::Done(host, item) => {
                let Some(state) = self.writes.get(&item.write) else { return };
                let write = state.write;
                let chunk = self.chunk(&write);
                match item.step {
                    POST => {
                        let verb = Verb::Write { acknowledge: Acknowledge::Durable };
                        for data in 0..self.rs.k {
                            let to = self.layout.node(data);
                            let sent = message(host, to, verb, write.id, data, chunk);
                            fabric.post(host, sent, 0, Source::Memory);
                        }
                    }
                    ENCODED => {
                        let verb = Verb::Write { acknowledge: Acknowledge::Never };
                        for parity in 0..self.rs.m {
                            let to = self.layout.node(self.rs.k + parity);
                            let tag = PARTS + item.tag;
                            let sent = message(host, to, verb, write.id, tag, chunk);
                            fabric.inject(host, sent, u32::from(parity), Source::Nic);
                        }
                    }
                    _ => {
                        let tag = self.rs.k + item.tag;
                        let response = fabric.response(host, write.client, write.id, tag);
                        fabric.store_and_respond(host, chunk, response);
                    }
                }
            }
            Notice::Landed(host, landed) => self.landed(host, &landed, fabric),
            Notice::Acked(_, response) => {
                let Some(state) = self.writes.get_mut(&response.write) else { return };
                state.answers += 1;
                if state.answers == self.rs.k + self.rs.m {
                    self.writes.remove(&response.write);
                    fabric.finish(response.write);
                }
            }
            _ => {}
        }
    }
}
