//! sPIN-Hybrid: handlers check the capability of each stripe, store its packets and forward them.
//!
//! Every node answers every stripe. A node whose request table is full denies the stripe and drops
//! its packets, so the nodes below it get no packet of the stripe. When all other nodes have
//! answered, the client repeats the write. Thus at most one round of a write is on its way at a
//! time. The client repeats it as a ring, which needs one entry per node, and takes the entries in
//! the same order as all other rings.
//!
//! A client sends a part of a write when it fits, with what the client has on its way already, into
//! the client's share of a packet buffer. `Cycles` in [`super`] says why.

use std::collections::{BTreeMap, VecDeque};

use super::{MAX_STRIPES, Schedule, cost};
use crate::network::constants::Constants;
use crate::network::fabric::{Fabric, Notice};
use crate::network::handlers::{Cost, HandlerCosts, Role};
use crate::network::host::Source;
use crate::network::packet::{HostId, Message, Packet, Verb, Write, WriteId};
use crate::network::protocols::table::RequestTable;
use crate::network::protocols::{begin, message};
use crate::network::spin::{Command, Handler};
use crate::network::time::Ps;
use crate::network::world::{Layout, Protocol};

/// Writes through handlers on `k` nodes, by the schedule with the least estimated latency.
#[derive(Debug)]
pub struct SpinHybrid {
    layout: Layout,
    k: u16,
    /// The schedules of the sizes sent so far.
    schedules: BTreeMap<u64, Schedule>,
    fixed: Option<Schedule>,
    /// The request tables of the nodes.
    pub tables: Vec<RequestTable>,
    /// Data bytes that each node has handed to host memory.
    pub stored: Vec<u64>,
    /// What each client has on its way, and the writes that wait for it.
    clients: Vec<Share>,
    writes: BTreeMap<WriteId, State>,
}

/// A client's use of its share of every packet buffer.
#[derive(Clone, Debug, Default)]
struct Share {
    bytes: u64,
    waiting: VecDeque<WriteId>,
}

#[derive(Debug)]
struct State {
    write: Write,
    /// Bytes of the parts before this one, and of this one.
    done: u64,
    part: u64,
    schedule: Schedule,
    /// What the part may take of every packet buffer.
    room: u64,
    /// Number of the round, modulo 32. A message's tag has the round, the stripe and the rank.
    round: u16,
    /// Answers that the round still waits for.
    missing: u64,
    is_denied: bool,
}

/// Most nodes: a rank has eight bits of a tag.
const NODES_MAX: u16 = 255;

const POST: u8 = 0;

/// A stripe of a message.
fn stripe(message: &Message) -> u16 {
    message.tag >> 8 & 7
}

impl SpinHybrid {
    /// Writes to the first `k` nodes (at most [`NODES_MAX`]).
    pub fn new(layout: Layout, k: u16) -> Self {
        Self {
            layout,
            k: k.clamp(1, NODES_MAX),
            schedules: BTreeMap::new(),
            fixed: None,
            tables: vec![RequestTable::default(); usize::from(layout.nodes)],
            stored: vec![0; usize::from(layout.nodes)],
            clients: vec![Share::default(); usize::from(layout.clients)],
            writes: BTreeMap::new(),
        }
    }

    /// Writes by one schedule, whatever the size, where it fits into the share of a client.
    ///
    /// # Panics
    ///
    /// If the schedule has no node, stripe or root, or more than a tag can name, or more children
    /// than a handler.
    pub fn with_schedule(layout: Layout, schedule: Schedule) -> Self {
        assert!((1..=NODES_MAX).contains(&schedule.k), "{schedule:?}");
        assert!((1..=schedule.k).contains(&schedule.roots), "{schedule:?}");
        assert!((1..=MAX_STRIPES).contains(&schedule.stripes), "{schedule:?}");
        assert!(schedule.fan_out <= 2, "{schedule:?}");
        Self { fixed: Some(schedule), ..Self::new(layout, schedule.k) }
    }

    /// The room of a client in every packet buffer.
    fn share(&self, constants: &Constants) -> u64 {
        constants.packet_buffer_bytes / u64::from(self.layout.clients.max(1))
    }

    /// The bytes of the next part of a write, of which this much is left: all, or as many packets
    /// as fit into the client's share with one stripe; at least one packet.
    fn part(&self, left: u64, constants: &Constants) -> u64 {
        let packets = self.share(constants)
            / constants.mtu_bytes.next_multiple_of(constants.port_bytes.max(1));
        let content = packets.max(1) * constants.packet_payload_bytes();
        left.min(content.saturating_sub(constants.dfs_header_bytes).max(1))
    }

    /// The schedule of a part.
    pub fn schedule(&mut self, bytes: u64, fabric: &Fabric) -> Schedule {
        let (k, share) = (self.k, self.share(&fabric.constants));
        let choose = || cost::spin::choose(&fabric.constants, &fabric.costs, k, bytes, share);
        let fits =
            |schedule: &Schedule| cost::spin::buffered(&fabric.constants, schedule, bytes) <= share;
        let fixed = self.fixed.filter(fits);
        let chosen = fixed.unwrap_or_else(|| *self.schedules.entry(bytes).or_insert_with(choose));
        chosen.fitting(bytes)
    }

    /// Plans the next part of a write, and sends it if it fits.
    fn plan(&mut self, id: WriteId, fabric: &mut Fabric) {
        let Some(state) = self.writes.get(&id) else { return };
        let part = self.part(state.write.bytes - state.done, &fabric.constants);
        let schedule = self.schedule(part, fabric);
        let Some(state) = self.writes.get_mut(&id) else { return };
        (state.part, state.schedule) = (part, schedule);
        state.room = cost::spin::buffered(&fabric.constants, &schedule, part);
        let client = state.write.client;
        self.clients[client.index()].waiting.push_back(id);
        self.send_waiting(client, fabric);
    }

    /// Sends the writes that wait, in their order, as long as they fit. One always does.
    fn send_waiting(&mut self, client: HostId, fabric: &mut Fabric) {
        let share = self.share(&fabric.constants);
        loop {
            let place = &mut self.clients[client.index()];
            let Some(id) = place.waiting.front().copied() else { return };
            let Some(state) = self.writes.get(&id) else { return };
            if place.bytes > 0 && place.bytes + state.room > share {
                return;
            }
            place.bytes += state.room;
            place.waiting.pop_front();
            begin(fabric, &state.write, POST);
        }
    }

    fn post(&mut self, id: WriteId, fabric: &mut Fabric) {
        let Some(state) = self.writes.get_mut(&id) else { return };
        let schedule = state.schedule;
        state.missing = u64::from(schedule.stripes) * u64::from(schedule.k);
        state.is_denied = false;
        let client = state.write.client;
        for root in 0..schedule.roots {
            for (stripe, bytes) in (0..).zip(schedule.stripe_bytes(state.part)) {
                let rank = schedule.rank(stripe, root);
                let tag = state.round << 11 | stripe << 8 | rank;
                let to = self.layout.node(rank);
                let mut sent = message(client, to, Verb::Spin, id, tag, bytes);
                sent.header_bytes = fabric.constants.dfs_header_bytes;
                fabric.post(client, sent, u32::from(stripe), Source::Memory);
            }
        }
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
            Handler::Payload if table.has(received.id) => {
                self.stored[place] += u64::from(packet.payload_bytes);
                self.store_and_forward(host, packet)
            }
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
        let Some(state) = self.writes.get(&received.write) else { return commands };
        for child in state.schedule.children_of(stripe(&received), self.layout.rank(host)) {
            let tag = received.tag & 0xff00 | child;
            let to = self.layout.node(child);
            let bytes = received.payload_bytes;
            let mut sent = message(host, to, Verb::Spin, received.write, tag, bytes);
            sent.header_bytes = received.header_bytes;
            commands.push(Command::Send(packet.forwarded(sent)));
        }
        commands
    }

    fn answered(&mut self, response: &Message, fabric: &mut Fabric) {
        let Some(state) = self.writes.get_mut(&response.write) else { return };
        let schedule = state.schedule;
        let position = schedule.position(stripe(response), response.tag & NODES_MAX);
        let is_denied = response.verb == Verb::Deny;
        state.is_denied |= is_denied;
        // The nodes below one that denied get no packet, and do not answer.
        state.missing -= if is_denied { u64::from(schedule.subtree(position)) } else { 1 };
        if state.missing > 0 {
            return;
        }
        state.round = (state.round + 1) % 32;
        let (client, id) = (state.write.client, state.write.id);
        if state.is_denied {
            state.schedule = Schedule::ring(self.k);
            let later = Ps::ns(fabric.constants.retry_ns);
            fabric.after(client, later, Fabric::item(POST, id, 0));
            return;
        }
        state.done += state.part;
        self.clients[client.index()].bytes -= state.room;
        if state.done < state.write.bytes {
            self.plan(id, fabric);
            return;
        }
        self.writes.remove(&id);
        fabric.finish(id);
        self.send_waiting(client, fabric);
    }
}

impl Protocol for SpinHybrid {
    fn issue(&mut self, write: Write, fabric: &mut Fabric) {
        let schedule = Schedule::flat(self.k);
        let state = State {
            write,
            done: 0,
            part: 0,
            schedule,
            room: 0,
            round: 0,
            missing: 0,
            is_denied: false,
        };
        self.writes.insert(write.id, state);
        self.plan(write.id, fabric);
    }

    fn on(&mut self, notice: Notice, fabric: &mut Fabric) {
        match notice {
            Notice::Done(_, item) => self.post(item.write, fabric),
            Notice::Run(host, task, handler, packet) => {
                let commands = self.run(host, handler, &packet, fabric);
                fabric.run_handler(host, task, commands);
            }
            Notice::Acked(_, response) => self.answered(&response, fabric),
            _ => {}
        }
    }

    fn cost(&self, host: HostId, handler: Handler, packet: &Packet, costs: &HandlerCosts) -> Cost {
        let children = self.writes.get(&packet.message.write).map_or(0, |state| {
            let rank = self.layout.rank(host);
            state.schedule.children_of(stripe(&packet.message), rank).count()
        });
        costs.of(handler, Role::Store { children: children as u16 }, packet.payload_bytes)
    }
}
