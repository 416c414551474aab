//! A host: cores, PCIe, a plain RDMA NIC, the coding engine of INEC's NIC, and perhaps a PsPIN.
//!
//! **Sending.** The CPU writes a doorbell over PCIe. The NIC takes messages one after the other,
//! `inject_ns` each, and puts each into its flow. A flow reads its packets from memory over PCIe,
//! up to `fetch_packets` ahead of the wire, and the flows share the link fairly.
//!
//! **Cores.** The work on a write stays on one core, in the order in which it came.

use std::collections::{BTreeMap, VecDeque};

use super::constants::Constants;
use super::fabric::{Event, Fabric, Notice, WorkItem};
use super::packet::{HostId, Message, WriteId};
use super::spin::Spin;
use super::time::{Ps, Rate, Server};

/// Where a NIC finds the data of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In host memory, over PCIe.
    Memory,
    /// In the NIC, or in the doorbell.
    Nic,
}

/// Messages of a flow, sent one after the other.
#[derive(Debug, Default)]
struct Flow {
    messages: VecDeque<(Message, Source)>,
    /// The next packet of the first message.
    next: u32,
    /// Packets read, and not yet on the wire.
    ahead: u64,
}

/// A host.
#[derive(Debug)]
pub struct Host {
    cores: Vec<Server>,
    /// PCIe from the NIC to memory, and from memory to the NIC.
    pub(super) to_memory: Server,
    from_memory: Server,
    inject: Server,
    engine: Server,
    flows: BTreeMap<u32, Flow>,
    pub(super) spin: Option<Spin>,
}

impl Host {
    pub(super) fn new(constants: &Constants, spin: Option<Spin>) -> Self {
        Self {
            cores: vec![Server::default(); constants.cores.max(1) as usize],
            to_memory: Server::default(),
            from_memory: Server::default(),
            inject: Server::default(),
            engine: Server::default(),
            flows: BTreeMap::new(),
            spin,
        }
    }

    pub(super) fn enqueue(&mut self, flow: u32, message: Message, source: Source) {
        self.flows.entry(flow).or_default().messages.push_back((message, source));
    }

    pub(super) fn departed(&mut self, flow: u32) {
        if let Some(flow) = self.flows.get_mut(&flow) {
            flow.ahead = flow.ahead.saturating_sub(1);
        }
    }
}

impl Fabric {
    /// The CPU of a host posts a message to the NIC, in a flow. The CPU time to do so is the
    /// caller's: `post_ns` of [`Constants`].
    pub fn post(&mut self, host: HostId, message: Message, flow: u32, source: Source) {
        let time = self.now() + Ps::ns(self.constants.pcie_latency_ns);
        self.schedule.at(time, Event::Doorbell(host, message, flow, source));
    }

    /// The NIC of a host sends a message without its CPU.
    pub fn inject(&mut self, host: HostId, message: Message, flow: u32, source: Source) {
        self.inject_at(self.now(), host, message, flow, source);
    }

    /// The same, from a time on.
    pub fn inject_at(
        &mut self,
        from: Ps,
        host: HostId,
        message: Message,
        flow: u32,
        source: Source,
    ) {
        let gap = Ps::ns(self.constants.inject_ns);
        let end = self.hosts[host.index()].inject.reserve(from, gap);
        self.schedule.at(end, Event::Injected(host, message, flow, source));
    }

    /// Reads packets of a flow ahead of the wire.
    pub(super) fn pump(&mut self, host: HostId, flow: u32) {
        let window = self.constants.fetch_packets.max(1);
        loop {
            let state = &mut self.hosts[host.index()];
            let Some(queue) = state.flows.get_mut(&flow) else { return };
            let Some((message, source)) = queue.messages.front().copied() else { return };
            if queue.ahead >= window {
                return;
            }
            let packet = message.packet(queue.next, &self.constants);
            queue.next += 1;
            queue.ahead += 1;
            if packet.is_last() {
                queue.messages.pop_front();
                queue.next = 0;
            }
            let bytes = u64::from(packet.payload_bytes);
            let ready = match source {
                Source::Memory if bytes > 0 => self.read_memory(host, bytes),
                _ => self.now(),
            };
            self.schedule.at(ready, Event::Fetched(host, flow, packet));
        }
    }

    /// When the NIC has this much of the host's memory, asked for now.
    fn read_memory(&mut self, host: HostId, bytes: u64) -> Ps {
        let latency = Ps::ns(self.constants.pcie_latency_ns);
        let time = Rate::gbit(self.constants.pcie_gbit).time(bytes);
        let asked = self.now() + latency;
        self.hosts[host.index()].from_memory.reserve(asked, time) + latency
    }

    /// When the NIC has handed this much to PCIe for memory. It is in memory a latency later.
    pub(super) fn write_memory(&mut self, host: HostId, from: Ps, bytes: u64) -> Ps {
        let time = Rate::gbit(self.constants.pcie_gbit).time(bytes);
        if time == Ps::ZERO {
            return from;
        }
        self.hosts[host.index()].to_memory.reserve(from, time)
    }

    /// The core of a write works for a time; then [`Notice::Done`].
    pub fn cpu(&mut self, host: HostId, time: Ps, item: WorkItem) {
        let now = self.now();
        let cores = &mut self.hosts[host.index()].cores;
        let core = item.write.0 as usize % cores.len();
        let end = cores[core].reserve(now, time);
        self.notify_at(end, Notice::Done(host, item));
    }

    /// The time that a core takes to copy bytes in memory.
    pub fn copy_time(&self, bytes: u64) -> Ps {
        Rate::gbit(self.constants.copy_gbit).time(bytes)
    }

    /// A timer; then [`Notice::Done`].
    pub fn after(&mut self, host: HostId, time: Ps, item: WorkItem) {
        let end = self.now() + time;
        self.notify_at(end, Notice::Done(host, item));
    }

    /// INEC's coding engine in the NIC reads `bytes` of memory in `operations` operations, and
    /// codes them; then [`Notice::Done`].
    pub fn code(&mut self, host: HostId, bytes: u64, operations: u64, item: WorkItem) {
        let ready = self.read_memory(host, bytes.min(self.constants.packet_payload_bytes()));
        let rate = Rate::gbit(self.constants.ec_gbit);
        let work = Ps::ns(self.constants.ec_operation_ns * operations) + rate.time(bytes);
        let end = self.hosts[host.index()].engine.reserve(ready, work);
        self.notify_at(end, Notice::Done(host, item));
    }

    /// The NIC writes to memory, flushes, and then answers.
    pub fn store_and_respond(&mut self, host: HostId, bytes: u64, response: Message) {
        let latency = Ps::ns(self.constants.pcie_latency_ns);
        let written = self.write_memory(host, self.now(), bytes);
        self.respond_at(written + latency + latency, response);
    }

    /// The CPU time to post a request.
    pub fn post_time(&self) -> Ps {
        Ps::ns(self.constants.post_ns)
    }

    /// The CPU time to see a request, dispatch it and check its capability.
    pub fn dispatch_time(&self, checks: bool) -> Ps {
        let constants = &self.constants;
        let check = if checks { constants.check_ns } else { 0 };
        Ps::ns(constants.rpc_dispatch_ns + check)
    }

    /// A work item of a write.
    pub fn item(step: u8, write: WriteId, tag: u16) -> WorkItem {
        WorkItem { step, write, tag }
    }
}
