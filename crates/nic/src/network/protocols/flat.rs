//! RDMA-Flat: the client writes to every replica. With one replica this is the paper's raw write.
//! Nodes trust the client.

use std::collections::BTreeMap;

use super::{begin, message};
use crate::network::fabric::{Fabric, Notice};
use crate::network::host::Source;
use crate::network::packet::{Acknowledge, Verb, Write, WriteId};
use crate::network::world::{Layout, Protocol};

/// RDMA writes to `k` nodes.
#[derive(Debug)]
pub struct Flat {
    layout: Layout,
    k: u16,
    acknowledge: Acknowledge,
    writes: BTreeMap<WriteId, (Write, u16)>,
}

const POST: u8 = 0;

impl Flat {
    /// Writes to the first `k` nodes, acknowledged when the data is in memory.
    pub fn new(layout: Layout, k: u16) -> Self {
        Self { layout, k, acknowledge: Acknowledge::Durable, writes: BTreeMap::new() }
    }

    /// The same, acknowledged on arrival: what RDMA does without a flush.
    pub fn without_flush(layout: Layout, k: u16) -> Self {
        Self { acknowledge: Acknowledge::Arrived, ..Self::new(layout, k) }
    }
}

impl Protocol for Flat {
    fn issue(&mut self, write: Write, fabric: &mut Fabric) {
        self.writes.insert(write.id, (write, 0));
        begin(fabric, &write, POST);
    }

    fn on(&mut self, notice: Notice, fabric: &mut Fabric) {
        match notice {
            Notice::Done(client, item) => {
                let Some((write, _)) = self.writes.get(&item.write) else { return };
                for rank in 0..self.k {
                    let verb = Verb::Write { acknowledge: self.acknowledge };
                    let to = self.layout.node(rank);
                    let sent = message(client, to, verb, write.id, rank, write.bytes);
                    fabric.post(client, sent, 0, Source::Memory);
                }
            }
            Notice::Acked(_, response) => {
                let Some((_, answers)) = self.writes.get_mut(&response.write) else { return };
                *answers += 1;
                if *answers == self.k {
                    self.writes.remove(&response.write);
                    fabric.finish(response.write);
                }
            }
            _ => {}
        }
    }
}
