//! RPC+RDMA: the client sends the request alone. The node's CPU checks it, reads the data from the
//! client by RDMA, and answers.

use std::collections::BTreeMap;

use super::{begin, message};
use crate::network::fabric::{Fabric, Notice};
use crate::network::host::Source;
use crate::network::packet::{Verb, Write, WriteId};
use crate::network::time::Ps;
use crate::network::world::{Layout, Protocol};

/// Writes by RPC and RDMA read.
#[derive(Debug)]
pub struct RpcRdma {
    layout: Layout,
    writes: BTreeMap<WriteId, Write>,
}

const POST: u8 = 0;
const CHECKED: u8 = 1;
const STORED: u8 = 2;

impl RpcRdma {
    /// Writes to the first node.
    pub fn new(layout: Layout) -> Self {
        Self { layout, writes: BTreeMap::new() }
    }
}

impl Protocol for RpcRdma {
    fn issue(&mut self, write: Write, fabric: &mut Fabric) {
        self.writes.insert(write.id, write);
        begin(fabric, &write, POST);
    }

    fn on(&mut self, notice: Notice, fabric: &mut Fabric) {
        match notice {
            Notice::Received(node, received) => {
                let post = fabric.post_time();
                let (step, time) = if received.verb == Verb::Send {
                    (CHECKED, fabric.dispatch_time(true) + post)
                } else {
                    (STORED, Ps::ns(fabric.constants.poll_ns) + post)
                };
                fabric.cpu(node, time, Fabric::item(step, received.write, 0));
            }
            Notice::Done(host, item) => {
                let Some(write) = self.writes.get(&item.write).copied() else { return };
                match item.step {
                    POST => {
                        let to = self.layout.node(0);
                        let bytes = fabric.constants.rpc_bytes;
                        let mut sent = message(host, to, Verb::Send, write.id, 0, bytes);
                        sent.header_bytes = fabric.constants.dfs_header_bytes;
                        fabric.post(host, sent, 0, Source::Nic);
                    }
                    CHECKED => {
                        let verb = Verb::ReadRequest { bytes: write.bytes };
                        let sent = message(host, write.client, verb, write.id, 0, 0);
                        fabric.post(host, sent, 0, Source::Nic);
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
