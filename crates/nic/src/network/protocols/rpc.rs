//! RPC: the client sends request and data together. The node's CPU checks the request, copies the
//! data from the receive buffer to the storage target, and answers.

use std::collections::BTreeMap;

use super::{begin, message};
use crate::network::fabric::{Fabric, Notice};
use crate::network::host::Source;
use crate::network::packet::{Verb, Write, WriteId};
use crate::network::world::{Layout, Protocol};

/// Writes by RPC.
#[derive(Debug)]
pub struct Rpc {
    layout: Layout,
    writes: BTreeMap<WriteId, Write>,
}

const POST: u8 = 0;
const CHECKED: u8 = 1;
const STORED: u8 = 2;

impl Rpc {
    /// Writes to the first node.
    pub fn new(layout: Layout) -> Self {
        Self { layout, writes: BTreeMap::new() }
    }
}

impl Protocol for Rpc {
    fn issue(&mut self, write: Write, fabric: &mut Fabric) {
        self.writes.insert(write.id, write);
        begin(fabric, &write, POST);
    }

    fn on(&mut self, notice: Notice, fabric: &mut Fabric) {
        match notice {
            Notice::Received(node, received) => {
                let time = fabric.dispatch_time(true);
                fabric.cpu(node, time, Fabric::item(CHECKED, received.write, 0));
            }
            Notice::Done(host, item) => {
                let Some(write) = self.writes.get(&item.write).copied() else { return };
                match item.step {
                    POST => {
                        let to = self.layout.node(0);
                        let mut sent = message(host, to, Verb::Send, write.id, 0, write.bytes);
                        sent.header_bytes = fabric.constants.dfs_header_bytes;
                        fabric.post(host, sent, 0, Source::Memory);
                    }
                    CHECKED => {
                        let time = fabric.copy_time(write.bytes) + fabric.post_time();
                        fabric.cpu(host, time, Fabric::item(STORED, write.id, 0));
                    }
                    _ => {
                        let mut sent = fabric.response(host, write.client, write.id, 0);
                        sent.payload_bytes = fabric.constants.rpc_bytes;
                        fabric.post(host, sent, 0, Source::Nic);
                    }
                }
            }
            Notice::Acked(_, response) => {
                self.writes.remove(&response.write);
                fabric.finish(response.write);
            }
            _ => {}
        }
    }
}
