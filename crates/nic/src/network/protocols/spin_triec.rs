//! sPIN-TriEC: the client sends a chunk to each of k data nodes, packet by packet in turn. A data
//! node's payload handler stores its packet, and sends an intermediate parity of it to each of m
//! parity nodes. A parity node's payload handler adds the packet to the accumulator of its
//! aggregation sequence: the packets with the same number from all data nodes. The handler that
//! completes a sequence stores it and frees the accumulator.
//!
//! Accumulators come from a bounded pool. A sequence that finds the pool empty goes to host memory
//! packet by packet, and the CPU adds it up: slower, and nothing waits for a free accumulator, so
//! nothing can lock up.
//!
//! The paper's header handler allocates the accumulator. A message has many sequences, so here the
//! first packet of each sequence does.

use std::collections::{BTreeMap, BTreeSet};

use super::table::RequestTable;
use super::{begin, message};
use crate::network::fabric::{Fabric, Notice};
use crate::network::handlers::{Cost, HandlerCosts, Role, Rs};
use crate::network::host::Source;
use crate::network::packet::{HostId, Message, Packet, Verb, Write, WriteId};
use crate::network::spin::{Command, Handler};
use crate::network::world::{Layout, Protocol};

/// Writes of blocks that handlers code, packet by packet.
#[derive(Debug)]
pub struct SpinTriec {
    layout: Layout,
    rs: Rs,
    interleaved: bool,
    /// The request tables of the nodes.
    pub tables: Vec<RequestTable>,
    /// The pools of the parity nodes.
    pub pools: Vec<Pool>,
    writes: BTreeMap<WriteId, State>,
}

/// The accumulators of a parity node.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Packets in each open sequence.
    open: BTreeMap<(WriteId, u32), u16>,
    /// Sequences without an accumulator.
    on_cpu: BTreeMap<(WriteId, u32), u16>,
    /// Most accumulators in use at once.
    pub peak: usize,
    /// Sequences added up by handlers.
    pub in_nic: u64,
    /// Sequences that found the pool empty.
    pub fallbacks: u64,
}

#[derive(Debug)]
struct State {
    write: Write,
    /// Of each parity node: messages complete, and sequences that its CPU has yet to add.
    parities: Vec<(u16, u32)>,
    /// Parity nodes that have answered.
    answered: BTreeSet<u16>,
    answers: u16,
}

const POST: u8 = 0;
const ADDED: u8 = 1;
const ANSWER: u8 = 2;
/// The tag of intermediate parities is this plus the data node.
const PARTS: u16 = 0x100;

impl Pool {
    /// A packet of a sequence has been added or stored. True if it is the last of `k`; the second
    /// value tells if the CPU has to add the sequence.
    fn add(&mut self, sequence: (WriteId, u32), k: u16, capacity: u64) -> (bool, bool) {
        let is_new = !self.open.contains_key(&sequence) && !self.on_cpu.contains_key(&sequence);
        if is_new && self.open.len() as u64 >= capacity {
            self.fallbacks += 1;
            self.on_cpu.insert(sequence, 0);
        }
        let on_cpu = self.on_cpu.contains_key(&sequence);
        let sequences = if on_cpu { &mut self.on_cpu } else { &mut self.open };
        let count = sequences.entry(sequence).or_insert(0);
        *count += 1;
        let is_last = *count == k;
        self.peak = self.peak.max(self.open.len());
        if is_last {
            self.in_nic += u64::from(!on_cpu);
            self.open.remove(&sequence);
            self.on_cpu.remove(&sequence);
        }
        (is_last, on_cpu)
    }

    /// Sequences that are not complete.
    pub fn in_progress(&self) -> usize {
        self.open.len() + self.on_cpu.len()
    }
}

impl SpinTriec {
    /// Data nodes first, then parity nodes. `interleaved` sends the packets of the chunks in turn;
    /// otherwise one chunk after the other.
    pub fn new(layout: Layout, rs: Rs, interleaved: bool) -> Self {
        Self {
            layout,
            rs,
            interleaved,
            tables: vec![RequestTable::default(); usize::from(layout.nodes)],
            pools: vec![Pool::default(); usize::from(rs.m)],
            writes: BTreeMap::new(),
        }
    }

    fn post(&self, write: &Write, fabric: &mut Fabric) {
        let chunk = write.bytes.div_ceil(u64::from(self.rs.k.max(1)));
        for data in 0..self.rs.k {
            let to = self.layout.node(data);
            let mut sent = message(write.client, to, Verb::Spin, write.id, data, chunk);
            sent.header_bytes = fabric.constants.dfs_header_bytes;
            let flow = if self.interleaved { u32::from(data) } else { 0 };
            fabric.post(write.client, sent, flow, Source::Memory);
        }
    }

    fn run(
        &mut self,
        host: HostId,
        handler: Handler,
        packet: &Packet,
        fabric: &mut Fabric,
    ) -> Vec<Command> {
        let place = usize::from(self.layout.rank(host));
        let id = packet.message.id;
        let Some(table) = self.tables.get_mut(place) else { return Vec::new() };
        match handler {
            Handler::Header => {
                // The runs of this protocol stay far below the table's bound.
                table.open(fabric.now(), id, u64::MAX);
                Vec::new()
            }
            Handler::Payload if packet.message.tag < PARTS => self.encode(host, packet),
            Handler::Payload => self.add(host, packet, fabric),
            Handler::Completion => {
                table.close(fabric.now(), id);
                self.complete(host, packet, fabric)
            }
        }
    }

    fn encode(&self, host: HostId, packet: &Packet) -> Vec<Command> {
        let received = packet.message;
        let mut commands = vec![Command::ToHost(u64::from(packet.payload_bytes))];
        for parity in 0..self.rs.m {
            let to = self.layout.node(self.rs.k + parity);
            let tag = PARTS + received.tag;
            let bytes = received.payload_bytes;
            let mut sent = message(host, to, Verb::Spin, received.write, tag, bytes);
            sent.header_bytes = received.header_bytes;
            commands.push(Command::Send(packet.forwarded(sent)));
        }
        commands
    }

    fn add(&mut self, host: HostId, packet: &Packet, fabric: &mut Fabric) -> Vec<Command> {
        let parity = self.parity(host);
        let write = packet.message.write;
        let bytes = u64::from(packet.payload_bytes);
        let capacity = fabric.constants.accumulators;
        let Some(pool) = self.pools.get_mut(usize::from(parity)) else { return Vec::new() };
        let (is_last, on_cpu) = pool.add((write, packet.index), self.rs.k, capacity);
        if on_cpu && is_last {
            let state = self.writes.get_mut(&write);
            if let Some(left) = state.and_then(|s| s.parities.get_mut(usize::from(parity))) {
                left.1 += 1;
                let time = fabric.copy_time(bytes * u64::from(self.rs.k));
                fabric.cpu(host, time, Fabric::item(ADDED, write, parity));
            }
        }
        if on_cpu || is_last { vec![Command::ToHost(bytes)] } else { Vec::new() }
    }

    fn complete(&mut self, host: HostId, packet: &Packet, fabric: &Fabric) -> Vec<Command> {
        let received = packet.message;
        let (k, parity) = (self.rs.k, self.parity(host));
        let Some(state) = self.writes.get_mut(&received.write) else { return Vec::new() };
        let tag = if received.tag < PARTS {
            received.tag
        } else {
            let Some(progress) = state.parities.get_mut(usize::from(parity)) else {
                return Vec::new();
            };
            progress.0 += 1;
            if progress.0 < k || progress.1 > 0 {
                return Vec::new();
            }
            k + parity
        };
        let response = fabric.response(host, state.write.client, received.write, tag);
        vec![Command::Flush, Command::Send(response.packet(0, &fabric.constants))]
    }

    fn parity(&self, host: HostId) -> u16 {
        self.layout.rank(host).saturating_sub(self.rs.k)
    }

    /// The CPU of a parity node has added a sequence.
    fn cpu_added(&mut self, host: HostId, write: WriteId, parity: u16, fabric: &mut Fabric) {
        let Some(state) = self.writes.get_mut(&write) else { return };
        let Some(progress) = state.parities.get_mut(usize::from(parity)) else { return };
        progress.1 -= 1;
        if progress.0 == self.rs.k && progress.1 == 0 {
            let time = fabric.post_time();
            fabric.cpu(host, time, Fabric::item(ANSWER, write, parity));
        }
    }

    fn answered(&mut self, response: &Message, fabric: &mut Fabric) {
        let all = self.rs.k + self.rs.m;
        let Some(state) = self.writes.get_mut(&response.write) else { return };
        if !state.answered.insert(response.tag) {
            return;
        }
        state.answers += 1;
        if state.answers == all {
            self.writes.remove(&response.write);
            fabric.finish(response.write);
        }
    }
}

impl Protocol for SpinTriec {
    fn issue(&mut self, write: Write, fabric: &mut Fabric) {
        let parities = vec![(0, 0); usize::from(self.rs.m)];
        let answered = BTreeSet::new();
        self.writes.insert(write.id, State { write, parities, answered, answers: 0 });
        begin(fabric, &write, POST);
    }

    fn on(&mut self, notice: Notice, fabric: &mut Fabric) {
        match notice {
            Notice::Done(host, item) => {
                let Some(state) = self.writes.get(&item.write) else { return };
                let write = state.write;
                match item.step {
                    POST => self.post(&write, fabric),
                    ADDED => self.cpu_added(host, item.write, item.tag, fabric),
                    _ => {
                        let tag = self.rs.k + item.tag;
                        let sent = fabric.response(host, write.client, write.id, tag);
                        fabric.post(host, sent, 0, Source::Nic);
                    }
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
        let is_data = packet.message.tag < PARTS;
        let role = if is_data { Role::Data(self.rs) } else { Role::Parity(self.rs) };
        costs.of(handler, role, packet.payload_bytes)
    }
}
