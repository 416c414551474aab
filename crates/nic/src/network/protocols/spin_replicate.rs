//! sPIN writes: handlers check the capability, store each packet and forward it to the nodes below.
//! With one node this is the paper's sPIN write (k = 1); with more, sPIN-Ring and sPIN-PBT.
//!
//! The header handler opens an entry in the request table. If the table is full, the node drops the
//! packets of this attempt, its completion handler denies it, and the client tries again later.
//! Every node answers the client itself when its data is in memory; the client waits for all.

use std::collections::BTreeMap;

use super::table::RequestTable;
use super::{Shape, begin, message};
use crate::network::fabric::{Fabric, Notice};
use crate::network::handlers::{Cost, HandlerCosts, Role};
use crate::network::host::Source;
use crate::network::packet::{HostId, Message, Packet, Verb, Write, WriteId};
use crate::network::spin::{Command, Handler};
use crate::network::time::Ps;
use crate::network::world::{Layout, Protocol};

/// Writes through handlers on `k` nodes.
#[derive(Debug)]
pub struct SpinReplicate {
    layout: Layout,
    shape: Shape,
    k: u16,
    /// The request tables of the nodes.
    pub tables: Vec<RequestTable>,
    writes: BTreeMap<WriteId, State>,
}

#[derive(Debug)]
struct State {
    write: Write,
    /// Number of the attempt, modulo 256. A message's tag is 256 times the attempt, plus the rank.
    attempt: u8,
    answers: u16,
}

const POST: u8 = 0;

impl SpinReplicate {
    /// Writes to the first `k` nodes (at most 255).
    pub fn new(layout: Layout, shape: Shape, k: u16) -> Self {
        let tables = vec![RequestTable::default(); usize::from(layout.nodes)];
        Self { layout, shape, k: k.clamp(1, 255), tables, writes: BTreeMap::new() }
    }

    fn role(&self, packet: &Packet) -> Role {
        let children = self.shape.children(packet.message.tag & 255, self.k).count();
        Role::Store { children: children as u16 }
    }

    fn post(&self, state: &State, fabric: &mut Fabric) {
        let client = state.write.client;
        let to = self.layout.node(0);
        let tag = u16::from(state.attempt) << 8;
        let mut sent = message(client, to, Verb::Spin, state.write.id, tag, state.write.bytes);
        sent.header_bytes = fabric.constants.dfs_header_bytes;
        fabric.post(client, sent, 0, Source::Memory);
    }

    fn run(
        &mut self,
        host: HostId,
        handler: Handler,
        packet: &Packet,
        fabric: &Fabric,
    ) -> Vec<Command> {
        let now = fabric.now();
        let received = packet.message;
        let place = usize::from(self.layout.rank(host));
        let Some(table) = self.tables.get_mut(place) else { return Vec::new() };
        match handler {
            Handler::Header => {
                table.open(now, received.id, fabric.constants.requests());
                Vec::new()
            }
            Handler::Payload if table.has(received.id) => self.store_and_forward(host, packet),
            Handler::Payload => Vec::new(),
            Handler::Completion => {
                let is_served = table.close(now, received.id);
                let Some(state) = self.writes.get(&received.write) else { return Vec::new() };
                let client = state.write.client;
                let mut response = fabric.response(host, client, received.write, received.tag);
                if !is_served {
                    response.verb = Verb::Deny;
                    return vec![Command::Send(response.packet(0, &fabric.constants))];
                }
                vec![Command::Flush, Command::Send(response.packet(0, &fabric.constants))]
            }
        }
    }

    fn store_and_forward(&self, host: HostId, packet: &Packet) -> Vec<Command> {
        let received = packet.message;
        let mut commands = vec![Command::ToHost(u64::from(packet.payload_bytes))];
        let (attempt, rank) = (received.tag & 0xff00, received.tag & 255);
        for child in self.shape.children(rank, self.k) {
            let to = self.layout.node(child);
            let tag = attempt | child;
            let bytes = received.payload_bytes;
            let mut sent = message(host, to, Verb::Spin, received.write, tag, bytes);
            sent.header_bytes = received.header_bytes;
            commands.push(Command::Send(packet.forwarded(sent)));
        }
        commands
    }

    fn answered(&mut self, response: &Message, fabric: &mut Fabric) {
        let Some(state) = self.writes.get_mut(&response.write) else { return };
        if response.tag >> 8 != u16::from(state.attempt) {
            return;
        }
        if response.verb == Verb::Deny {
            state.attempt = state.attempt.wrapping_add(1);
            state.answers = 0;
            let (client, id) = (state.write.client, state.write.id);
            let later = Ps::ns(fabric.constants.retry_ns);
            fabric.after(client, later, Fabric::item(POST, id, 0));
            return;
        }
        state.answers += 1;
        if state.answers == self.k {
            self.writes.remove(&response.write);
            fabric.finish(response.write);
        }
    }
}

impl Protocol for SpinReplicate {
    fn issue(&mut self, write: Write, fabric: &mut Fabric) {
        self.writes.insert(write.id, State { write, attempt: 0, answers: 0 });
        begin(fabric, &write, POST);
    }

    fn on(&mut self, notice: Notice, fabric: &mut Fabric) {
        match notice {
            Notice::Done(_, item) => {
                if let Some(state) = self.writes.get(&item.write) {
                    self.post(state, fabric);
                }
            }
            Notice::Run(host, task, handler, packet) => {
                let commands = self.run(host, handler, &packet, fabric);
                fabric.run_handler(host, task, commands);
            }
            Notice::Acked(_, response) => self.answered(&response, fabric),
            _ => {}
        }
    }

    fn cost(&self, _: HostId, handler: Handler, packet: &Packet, costs: &HandlerCosts) -> Cost {
        costs.of(handler, self.role(packet), packet.payload_bytes)
    }
}
