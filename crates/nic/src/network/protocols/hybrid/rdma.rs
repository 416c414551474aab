//! Hybrid: RDMA writes, and NICs that forward chunks by themselves.
//!
//! The client posts everything at once. For each root that forwards a stripe, it first writes the
//! root's work-queue elements, and then the chunks of the stripe, on the same connection. So the
//! elements are in the root's memory before the first chunk, and a chunk that lands finds them.
//! Then the NIC reads the chunk's elements over PCIe, and sends the chunk to the children. A root
//! without children gets the stripe as one message.
//!
//! Nodes that do not forward a message answer the client, when it is in memory. A root that
//! forwards had the data in memory before, so its children's answers are for it, too.

use std::collections::BTreeMap;

use super::{MAX_CHUNKS, MAX_STRIPES, Schedule, cost};
use crate::network::fabric::{Fabric, Notice};
use crate::network::host::Source;
use crate::network::packet::{Acknowledge, HostId, Message, Verb, Write, WriteId};
use crate::network::protocols::{begin, message};
use crate::network::time::Ps;
use crate::network::world::{Layout, Protocol};

/// Writes to `k` nodes by the schedule with the least estimated latency.
#[derive(Debug)]
pub struct Hybrid {
    layout: Layout,
    k: u16,
    /// The schedules of the sizes written so far.
    schedules: BTreeMap<u64, Schedule>,
    fixed: Option<Schedule>,
    writes: BTreeMap<WriteId, State>,
    /// Data bytes that each node has in memory.
    pub stored: Vec<u64>,
    /// Bytes of work-queue elements that each node has in memory.
    pub elements: Vec<u64>,
}

#[derive(Debug)]
struct State {
    write: Write,
    schedule: Schedule,
    /// Stripes whose work-queue elements are in their roots, by rank and stripe.
    configured: Vec<(u16, u16)>,
    /// Answers that the client waits for.
    missing: u64,
}

const POST: u8 = 0;
/// The rank in the tags of work-queue elements; data has the rank of its receiver.
const CONFIGURATION: u16 = 127;

fn tag(rank: u16, stripe: u16, chunk: u16) -> u16 {
    rank << 9 | stripe << 6 | chunk
}

impl Hybrid {
    /// Writes to the first `k` nodes (at most 127).
    pub fn new(layout: Layout, k: u16) -> Self {
        Self {
            layout,
            k: k.clamp(1, CONFIGURATION),
            schedules: BTreeMap::new(),
            fixed: None,
            writes: BTreeMap::new(),
            stored: vec![0; usize::from(layout.nodes)],
            elements: vec![0; usize::from(layout.nodes)],
        }
    }

    /// Writes by one schedule, whatever the size. Only its roots may forward.
    ///
    /// # Panics
    ///
    /// If the schedule has no node, stripe, root or chunk, or more than a tag can name.
    pub fn with_schedule(layout: Layout, schedule: Schedule) -> Self {
        assert!((1..=CONFIGURATION).contains(&schedule.k), "{schedule:?}");
        assert!((1..=schedule.k).contains(&schedule.roots), "{schedule:?}");
        assert!((1..=MAX_STRIPES).contains(&schedule.stripes), "{schedule:?}");
        assert!((1..=MAX_CHUNKS).contains(&schedule.chunks), "{schedule:?}");
        Self { fixed: Some(schedule), ..Self::new(layout, schedule.k) }
    }

    /// The schedule of a write.
    pub fn schedule(&mut self, bytes: u64, fabric: &Fabric) -> Schedule {
        let choose = || cost::rdma::choose(&fabric.constants, self.k, bytes);
        let chosen =
            self.fixed.unwrap_or_else(|| *self.schedules.entry(bytes).or_insert_with(choose));
        chosen.fitting(bytes)
    }

    fn post(&self, state: &State, fabric: &mut Fabric) {
        let State { write, schedule, .. } = state;
        let (client, id) = (write.client, write.id);
        for root in 0..schedule.roots {
            let forwards = !schedule.children(root).is_empty();
            let elements = cost::rdma::element_bytes(&fabric.constants, schedule, root);
            let stripes = || (0..).zip(schedule.stripe_bytes(write.bytes));
            for (stripe, _) in stripes().filter(|_| forwards) {
                let to = self.layout.node(schedule.rank(stripe, root));
                let verb = Verb::Write { acknowledge: Acknowledge::Never };
                let tag = tag(CONFIGURATION, stripe, 0);
                let sent = message(client, to, verb, id, tag, elements);
                fabric.post(client, sent, u32::from(stripe), Source::Memory);
            }
            for chunk in 0..if forwards { schedule.chunks } else { 1 } {
                for (stripe, bytes) in stripes() {
                    let piece = schedule.chunk_bytes(bytes).nth(usize::from(chunk));
                    let size = if forwards { piece.unwrap_or(0) } else { bytes };
                    let rank = schedule.rank(stripe, root);
                    self.send(client, id, size, tag(rank, stripe, chunk), fabric);
                }
            }
        }
    }

    /// Sends data to the node of a tag.
    fn send(&self, from: HostId, write: WriteId, bytes: u64, tag: u16, fabric: &mut Fabric) {
        let (rank, stripe) = (tag >> 9, tag >> 6 & 7);
        let verb = Verb::Write { acknowledge: Acknowledge::Never };
        let sent = message(from, self.layout.node(rank), verb, write, tag, bytes);
        if from.0 < self.layout.clients {
            fabric.post(from, sent, u32::from(stripe), Source::Memory);
        } else {
            let fetched = fabric.now() + Ps::ns(2 * fabric.constants.pcie_latency_ns);
            fabric.inject_at(fetched, from, sent, 0, Source::Memory);
        }
    }

    fn landed(&mut self, host: HostId, landed: &Message, fabric: &mut Fabric) {
        let Some(state) = self.writes.get_mut(&landed.write) else { return };
        let (rank, stripe, chunk) = (landed.tag >> 9, landed.tag >> 6 & 7, landed.tag & 63);
        if rank == CONFIGURATION {
            let rank = self.layout.rank(host);
            state.configured.push((rank, stripe));
            self.elements[usize::from(rank)] += landed.payload_bytes;
            return;
        }
        self.stored[usize::from(rank)] += landed.payload_bytes;
        let schedule = state.schedule;
        let client = state.write.client;
        let mut children = schedule.children_of(stripe, rank).peekable();
        if children.peek().is_none() {
            let response = fabric.response(host, client, landed.write, landed.tag);
            let flushed = fabric.now() + Ps::ns(fabric.constants.pcie_latency_ns);
            fabric.respond_at(flushed, response);
            return;
        }
        assert!(
            state.configured.contains(&(rank, stripe)),
            "a chunk came before the work-queue elements of its connection"
        );
        for child in children {
            let tag = tag(child, stripe, chunk);
            self.send(host, landed.write, landed.payload_bytes, tag, fabric);
        }
    }
}

/// The answers to a write: each node that does not forward a stripe answers each of its messages.
fn answers(schedule: &Schedule) -> u64 {
    let chunks = u64::from(schedule.chunks);
    let positions = (0..schedule.k).filter(|position| schedule.children(*position).is_empty());
    let messages = positions.map(|position| if position < schedule.roots { 1 } else { chunks });
    messages.sum::<u64>() * u64::from(schedule.stripes)
}

impl Protocol for Hybrid {
    fn issue(&mut self, write: Write, fabric: &mut Fabric) {
        let schedule = self.schedule(write.bytes, fabric);
        let missing = answers(&schedule);
        let state = State { write, schedule, configured: Vec::new(), missing };
        self.writes.insert(write.id, state);
        begin(fabric, &write, POST);
    }

    fn on(&mut self, notice: Notice, fabric: &mut Fabric) {
        match notice {
            Notice::Done(_, item) => {
                if let Some(state) = self.writes.get(&item.write) {
                    self.post(state, fabric);
                }
            }
            Notice::Landed(host, landed) => self.landed(host, &landed, fabric),
            Notice::Acked(_, response) => {
                let Some(state) = self.writes.get_mut(&response.write) else { return };
                state.missing -= 1;
                if state.missing == 0 {
                    self.writes.remove(&response.write);
                    fabric.finish(response.write);
                }
            }
            _ => {}
        }
    }
}
