//! The hosts, the switch and the links: everything that protocols run on.
//!
//! The topology is ours, as the paper prints none: every host has one link to one switch. The
//! switch cuts through: a packet may leave it as soon as its header is there, and its end never
//! leaves before it has arrived. The switch adds no latency of its own, and its outputs share their
//! rate fairly among inputs.
//!
//! The fabric does what hardware does, and tells the protocol what software and handlers react to:
//! [`Notice`]. A protocol answers by calling the fabric: [`Fabric::post`], [`Fabric::cpu`],
//! [`Fabric::run_handler`].

use std::collections::{BTreeMap, VecDeque};

use super::channel::{Channel, Outgoing, Owner};
use super::constants::Constants;
use super::handlers::HandlerCosts;
use super::host::{Host, Source};
use super::packet::{Acknowledge, HostId, Message, MessageId, Packet, Verb, WriteId};
use super::schedule::Schedule;
use super::spin::{Handler, Spin, SpinEvent, TaskId};
use super::time::{Ps, Rate};

/// The flow of acknowledgements in a host's egress port.
const ACK_FLOW: u32 = u32::MAX;
/// The flow of answers to reads.
const READ_FLOW: u32 = u32::MAX - 2;
/// The flow of packets that handlers send.
pub(super) const SPIN_FLOW: u32 = u32::MAX - 1;

/// Work that a protocol gave to a CPU, an engine or a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkItem {
    /// The protocol's own name of the step.
    pub step: u8,
    /// The write.
    pub write: WriteId,
    /// The protocol's own number: chunk, rank or shard.
    pub tag: u16,
}

/// What a protocol reacts to.
#[derive(Clone, Copy, Debug)]
pub enum Notice {
    /// The data of an RDMA write is in memory; the host's NIC knows, its CPU does not.
    Landed(HostId, Message),
    /// The CPU can see the completion of a received message.
    Received(HostId, Message),
    /// The CPU can see an acknowledgement, a response or a denial.
    Acked(HostId, Message),
    /// A CPU, an engine or a timer is done with a work item.
    Done(HostId, WorkItem),
    /// A handler is dispatched: [`super::world::World`] asks the protocol for its cost.
    Begin(HostId, TaskId, Handler, Packet),
    /// A handler has run its cycles: the protocol must call [`Fabric::run_handler`].
    Run(HostId, TaskId, Handler, Packet),
    /// A client has seen the end of a write.
    Finished(WriteId),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Doorbell(HostId, Message, u32, Source),
    Injected(HostId, Message, u32, Source),
    Fetched(HostId, u32, Packet),
    Sent(usize, Outgoing),
    AtSwitch(u16, Packet),
    AtHost(Packet),
    Credit(usize, u64),
    Respond(Message),
    Notify(Notice),
    Spin(HostId, SpinEvent),
}

/// Sums over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets that hosts put into the network.
    pub sent: u64,
    /// Packets that hosts have received.
    pub received: u64,
    /// Events handled.
    pub events: u64,
}

/// The hosts, the switch and the links.
#[derive(Debug)]
pub struct Fabric {
    /// The constants of the run.
    pub constants: Constants,
    /// The costs of handlers.
    pub costs: HandlerCosts,
    /// Sums.
    pub totals: Totals,
    /// Data bytes that each host has received from the network.
    pub ingested: Vec<u64>,
    pub(super) schedule: Schedule<Event>,
    pub(super) hosts: Vec<Host>,
    channels: Vec<Channel>,
    pub(super) notices: VecDeque<Notice>,
    finished_at: BTreeMap<WriteId, Ps>,
}

impl Fabric {
    /// `hosts` hosts; those from `first_spin` on have a PsPIN NIC.
    pub fn new(constants: Constants, costs: HandlerCosts, hosts: u16, first_spin: u16) -> Self {
        let latency = Ps::ns(constants.link_latency_ns);
        let link = Rate::gbit(constants.link_gbit);
        let mut channels = Vec::new();
        let mut list = Vec::new();
        for host in 0..hosts {
            let is_spin = host >= first_spin;
            let up = if is_spin { Rate::gbit(constants.egress_gbit) } else { link };
            channels.push(Channel::new(up, latency, constants.buffer_bytes));
            channels.push(Channel::new(link, latency, constants.buffer_bytes));
            list.push(Host::new(&constants, is_spin.then(|| Spin::new(&constants))));
        }
        Self {
            constants,
            costs,
            totals: Totals::default(),
            ingested: vec![0; usize::from(hosts)],
            schedule: Schedule::default(),
            hosts: list,
            channels,
            notices: VecDeque::new(),
            finished_at: BTreeMap::new(),
        }
    }

    /// Now.
    pub fn now(&self) -> Ps {
        self.schedule.now()
    }

    /// The channel from a host to the switch, and the one back.
    pub fn link(&self, host: HostId) -> (&Channel, &Channel) {
        (&self.channels[up(host)], &self.channels[down(host)])
    }

    /// The PsPIN NIC of a host, if it has one.
    pub fn spin(&self, host: HostId) -> Option<&Spin> {
        self.hosts[host.index()].spin.as_ref()
    }

    /// Handles the next event. False if none is left.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.schedule.next_event() else { return false };
        self.totals.events += 1;
        match event {
            Event::Doorbell(host, message, flow, source) => {
                self.inject(host, message, flow, source);
            }
            Event::Injected(host, message, flow, source) => {
                self.hosts[host.index()].enqueue(flow, message, source);
                self.pump(host, flow);
            }
            Event::Fetched(host, flow, packet) => {
                self.transmit(host, flow, Outgoing { packet, owner: Owner::Flow(flow) });
            }
            Event::Sent(channel, outgoing) => self.sent(channel, outgoing),
            Event::AtSwitch(port, packet) => {
                let channel = down(packet.message.to);
                let outgoing = Outgoing { packet, owner: Owner::Input(port) };
                self.channels[channel].queue.push(u32::from(port), outgoing);
                self.try_send(channel);
            }
            Event::AtHost(packet) => self.arrived(packet),
            Event::Credit(channel, bytes) => {
                self.channels[channel].give_back(bytes);
                self.try_send(channel);
            }
            Event::Respond(message) => {
                let packet = message.packet(0, &self.constants);
                let outgoing = Outgoing { packet, owner: Owner::Nobody };
                self.transmit(message.from, ACK_FLOW, outgoing);
            }
            Event::Notify(notice) => self.notices.push_back(notice),
            Event::Spin(host, event) => self.spin_event(host, event),
        }
        true
    }

    /// Schedules a notice.
    pub(super) fn notify_at(&mut self, time: Ps, notice: Notice) {
        self.schedule.at(time, Event::Notify(notice));
    }

    /// A client has all answers of a write; it sees the end after a poll of its CPU.
    pub fn finish(&mut self, write: WriteId) {
        let time = self.now() + Ps::ns(self.constants.poll_ns);
        self.finished_at.insert(write, time);
        self.notify_at(time, Notice::Finished(write));
    }

    /// When a client saw the end of a write.
    pub fn finished_at(&self, write: WriteId) -> Option<Ps> {
        self.finished_at.get(&write).copied()
    }

    /// A message that answers the sender of `message`, with the same tag.
    pub fn response(&self, from: HostId, to: HostId, write: WriteId, tag: u16) -> Message {
        Message {
            id: MessageId::of(write, to, tag),
            from,
            to,
            verb: Verb::Ack,
            write,
            tag,
            payload_bytes: 0,
            header_bytes: 0,
        }
    }

    /// A host's NIC sends an acknowledgement at a time. No CPU takes part.
    pub fn respond_at(&mut self, time: Ps, message: Message) {
        self.schedule.at(time, Event::Respond(message));
    }

    /// Queues a packet for a host's link.
    pub(super) fn transmit(&mut self, host: HostId, flow: u32, outgoing: Outgoing) {
        self.channels[up(host)].queue.push(flow, outgoing);
        self.try_send(up(host));
    }

    fn try_send(&mut self, channel: usize) {
        let now = self.now();
        let line = &mut self.channels[channel];
        let Some(outgoing) = line.begin(now) else { return };
        let end = line.busy_until;
        let head = now + line.rate.time(self.constants.packet_header_bytes);
        let latency = line.latency;
        let packet = outgoing.packet;
        self.schedule.at(end, Event::Sent(channel, outgoing));
        if channel.is_multiple_of(2) {
            self.totals.sent += 1;
            // The end of the packet must not leave the switch before it has arrived.
            let out = self.channels[down(packet.message.to)].rate;
            let in_time = end - out.time(u64::from(packet.wire_bytes));
            let port = (channel / 2) as u16;
            self.schedule.at(head.max(in_time) + latency, Event::AtSwitch(port, packet));
        } else {
            self.schedule.at(end + latency, Event::AtHost(packet));
        }
    }

    fn sent(&mut self, channel: usize, outgoing: Outgoing) {
        let host = HostId((channel / 2) as u16);
        match outgoing.owner {
            Owner::Nobody => {}
            Owner::Flow(flow) => {
                self.hosts[host.index()].departed(flow);
                self.pump(host, flow);
            }
            Owner::Task(task) => self.spin_event(host, SpinEvent::Departed(task)),
            Owner::Input(port) => {
                let bytes = u64::from(outgoing.packet.wire_bytes);
                self.give_credit(up(HostId(port)), self.now(), bytes);
            }
        }
        self.try_send(channel);
    }

    fn arrived(&mut self, packet: Packet) {
        let host = packet.message.to;
        self.totals.received += 1;
        self.ingested[host.index()] += u64::from(packet.payload_bytes);
        if packet.message.verb == Verb::Spin && self.hosts[host.index()].spin.is_some() {
            self.spin_arrived(host, packet);
        } else {
            self.receive(host, packet);
        }
    }

    /// A host's receive buffer has this many bytes more from `time` on.
    pub(super) fn give_receive_credit(&mut self, host: HostId, time: Ps, bytes: u64) {
        self.give_credit(down(host), time, bytes);
    }

    fn give_credit(&mut self, channel: usize, time: Ps, bytes: u64) {
        let time = time + self.channels[channel].latency;
        self.schedule.at(time, Event::Credit(channel, bytes));
    }

    /// A plain NIC takes a packet.
    fn receive(&mut self, host: HostId, packet: Packet) {
        let seen = self.now() + Ps::ns(self.constants.receive_ns);
        let message = packet.message;
        let latency = Ps::ns(self.constants.pcie_latency_ns);
        let wire = u64::from(packet.wire_bytes);
        let stores = matches!(
            message.verb,
            Verb::Write { .. } | Verb::Send | Verb::ReadResponse | Verb::Spin
        );
        let payload = if stores { u64::from(packet.payload_bytes) } else { 0 };
        let written = self.write_memory(host, seen, payload);
        self.give_receive_credit(host, written, wire);
        if !packet.is_last() {
            return;
        }
        let landed = written + latency;
        match message.verb {
            Verb::Write { acknowledge } => {
                self.notify_at(landed, Notice::Landed(host, message));
                let response = self.response(host, message.from, message.write, message.tag);
                match acknowledge {
                    Acknowledge::Never => {}
                    Acknowledge::Arrived => self.respond_at(seen, response),
                    Acknowledge::Durable => self.respond_at(landed + latency, response),
                }
            }
            Verb::Send | Verb::ReadResponse => {
                let completion = self.write_memory(host, written, self.constants.completion_bytes);
                self.notify_at(completion + latency, Notice::Received(host, message));
            }
            Verb::ReadRequest { bytes } => {
                let answer = Message {
                    id: MessageId::of(message.write, message.from, message.tag),
                    from: host,
                    to: message.from,
                    verb: Verb::ReadResponse,
                    payload_bytes: bytes,
                    header_bytes: 0,
                    ..message
                };
                self.inject(host, answer, READ_FLOW, Source::Memory);
            }
            Verb::Ack | Verb::Deny => {
                let completion = self.write_memory(host, seen, self.constants.completion_bytes);
                self.notify_at(completion + latency, Notice::Acked(host, message));
            }
            Verb::Spin => {}
        }
    }
}

fn up(host: HostId) -> usize {
    host.index() * 2
}

fn down(host: HostId) -> usize {
    host.index() * 2 + 1
}
