//! A run: a fabric, a protocol, and the writes of clients.

use super::constants::Constants;
use super::fabric::{Fabric, Notice};
use super::handlers::{Cost, HandlerCosts};
use super::packet::{HostId, Packet, Write, WriteId};
use super::spin::Handler;
use super::time::Ps;

/// A write protocol: clients and nodes as one state machine over notices. It reads no clock but
/// the fabric's.
pub trait Protocol {
    /// A client issues a write.
    fn issue(&mut self, write: Write, fabric: &mut Fabric);

    /// Something happened that software or handlers react to.
    fn on(&mut self, notice: Notice, fabric: &mut Fabric);

    /// The cost of a handler without waits. Protocols without handlers keep this.
    fn cost(
        &self,
        _host: HostId,
        _handler: Handler,
        _packet: &Packet,
        _costs: &HandlerCosts,
    ) -> Cost {
        Cost::default()
    }
}

/// Clients first, then storage nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Clients.
    pub clients: u16,
    /// Storage nodes.
    pub nodes: u16,
}

impl Layout {
    /// Storage node number `rank`.
    pub fn node(self, rank: u16) -> HostId {
        HostId(self.clients + rank)
    }

    /// The number of a storage node.
    pub fn rank(self, host: HostId) -> u16 {
        host.0.saturating_sub(self.clients)
    }
}

/// A run.
#[derive(Debug)]
pub struct World<P> {
    /// The hosts and links.
    pub fabric: Fabric,
    /// The protocol.
    pub protocol: P,
    next_write: u32,
    issued: Vec<Write>,
}

impl<P: Protocol> World<P> {
    /// An idle world. The storage nodes have PsPIN NICs; protocols without handlers do not use
    /// them.
    pub fn new(constants: Constants, costs: HandlerCosts, layout: Layout, protocol: P) -> Self {
        let hosts = layout.clients + layout.nodes;
        let fabric = Fabric::new(constants, costs, hosts, layout.clients);
        Self { fabric, protocol, next_write: 0, issued: Vec::new() }
    }

    /// A client issues a write now.
    pub fn issue(&mut self, client: HostId, bytes: u64) -> WriteId {
        let id = WriteId(self.next_write);
        self.next_write += 1;
        let write = Write { id, client, bytes, issued: self.fabric.now() };
        self.issued.push(write);
        self.protocol.issue(write, &mut self.fabric);
        id
    }

    /// A write that was issued.
    pub fn write(&self, id: WriteId) -> Write {
        self.issued[id.0 as usize]
    }

    /// Runs until a write is finished, and returns it. `None` when nothing is left to do.
    pub fn next_finished(&mut self) -> Option<WriteId> {
        loop {
            while let Some(notice) = self.fabric.notices.pop_front() {
                match notice {
                    Notice::Finished(write) => return Some(write),
                    Notice::Begin(host, task, handler, packet) => {
                        let cost = self.protocol.cost(host, handler, &packet, &self.fabric.costs);
                        self.fabric.begin_handler(host, task, cost);
                    }
                    other => self.protocol.on(other, &mut self.fabric),
                }
            }
            if !self.fabric.step() {
                return None;
            }
        }
    }

    /// The latency of a finished write: from issue to the client's sight of the last answer.
    pub fn latency(&self, write: WriteId) -> Option<Ps> {
        Some(self.fabric.finished_at(write)? - self.write(write).issued)
    }
}
