//! The sPIN NIC: PsPIN's packet buffer, scheduler, clusters and ports (Fig. 7 of the paper, and
//! PsPIN's sources).
//!
//! A packet that arrives takes these steps. Times are for 2 KiB at 1 GHz.
//!
//! 1. The inbound engine writes it to the packet buffer: 64 bytes per cycle, 32 cycles. If the
//!    buffer is full, the packet waits in the receive buffer, which then gives no credits.
//! 2. The message's queue decides what may run. The header handler is first, on the header packet.
//!    When it is done, the payload handler runs on every packet, in parallel. When all of them are
//!    done, the completion handler runs on the last packet.
//! 3. The scheduler gives each task to the home cluster of its message, or, if this has 20 tasks,
//!    to the cluster with the fewest: 2 cycles, one task per cycle.
//! 4. The packet is copied to the cluster: 11 cycles and then 64 bytes per cycle, over one port
//!    that all clusters share. Each of the three handlers of a packet has a copy of its own, as the
//!    queue engine gives every task the packet's address and size. This port, not the cores, bounds
//!    small writes.
//! 5. The first task of the cluster goes to its first idle HPU: 1 cycle.
//! 6. The handler runs for the cycles of its cost, and then issues its commands. Here it may
//!    wait: for one of its four command slots; for the outbound engine, which takes 48 packets; and
//!    for the commands of the task before it on the same HPU, as an HPU issues none while its last
//!    task has not been reported.
//! 7. When all commands of a task are complete, the cluster reports it. That frees its place, and
//!    moves its message on.
//!
//! The handlers that wait in step 6 are how a narrow egress shows: a tree's payload handler sends
//! two packets for each that comes, so all 32 HPUs wait, and its duration follows from Little's
//! law. No constant says so.
//!
//! What is ours: messages are not limited to PsPIN's 256 queues; packets that overtake the header
//! packet wait for it, because the handlers of a message run in parallel and forward out of order;
//! ready tasks are scheduled in order of time.

mod cluster;
mod commands;
mod queue;

use std::collections::{BTreeMap, VecDeque};

use self::queue::MessageQueue;
use super::constants::Constants;
use super::fabric::{Event, Fabric, Notice};
use super::packet::{HostId, MessageId, Packet};
use super::time::{Ps, Server};

/// A kind of handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    /// Once per message, before all others.
    Header,
    /// Once per packet.
    Payload,
    /// Once per message, after all others.
    Completion,
}

impl Handler {
    /// All, in their order.
    pub const ALL: [Self; 3] = [Self::Header, Self::Payload, Self::Completion];

    /// The paper's abbreviation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Header => "HH",
            Self::Payload => "PH",
            Self::Completion => "CH",
        }
    }
}

/// A task: one run of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(u32);

/// What a handler asks the NIC to do, after its cycles.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// Writes bytes to host memory (posted).
    ToHost(u64),
    /// Sends a packet.
    Send(Packet),
    /// Waits until everything written is in memory: a read over PCIe.
    Flush,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum SpinEvent {
    /// A packet is in the packet buffer.
    Buffered(Packet),
    /// A task has reached its cluster.
    Scheduled(TaskId),
    /// A task's packet is in the cluster's memory.
    Copied(TaskId),
    /// A task is on its HPU.
    Dispatched(TaskId),
    /// A handler has run its cycles.
    Computed(TaskId),
    /// The outbound engine has read a packet.
    Read(TaskId, Packet),
    /// A packet of a task is on its way.
    Departed(TaskId),
    /// A write to host memory is handed over.
    Written(TaskId),
    /// A flush is done.
    Flushed(TaskId),
}

/// Why a handler waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// It does not.
    No,
    /// For the commands of the task before it.
    Feedback,
    /// For one of its own commands.
    Slots,
    /// For the outbound engine.
    Outbound,
    /// For a flush.
    Flush,
}

#[derive(Debug)]
struct Task {
    packet: Packet,
    handler: Handler,
    cluster: usize,
    hpu: usize,
    copied: bool,
    began: Ps,
    /// From dispatch to return; zero before.
    run_time: Ps,
    commands: VecDeque<Command>,
    instructions: u32,
    /// Commands in flight.
    pending: u64,
    ended: bool,
}

#[derive(Clone, Copy, Debug)]
struct Hpu {
    current: Option<TaskId>,
    /// The task that has ended and whose commands have not.
    unreported: Option<TaskId>,
    wait: Wait,
}

#[derive(Debug)]
struct Cluster {
    /// Tasks that wait for an HPU, in order.
    waiting: VecDeque<TaskId>,
    hpus: Vec<Hpu>,
    /// Tasks from scheduling to report.
    tasks: u64,
}

/// Durations of the runs of a kind of handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerStats {
    /// Runs.
    pub runs: u64,
    /// Time from dispatch to return, in all.
    pub time: Ps,
    /// Instructions retired, in all.
    pub instructions: u64,
    /// The longest run.
    pub longest: Ps,
}

impl HandlerStats {
    /// The mean duration in nanoseconds; `None` without a run.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.runs > 0).then(|| self.time.as_ns() / self.runs as f64)
    }

    /// Instructions per cycle of 1 ns; `None` without a run.
    pub fn ipc(&self) -> Option<f64> {
        (self.time > Ps::ZERO).then(|| self.instructions as f64 / self.time.as_ns())
    }

    /// The runs since an earlier reading.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            runs: self.runs - before.runs,
            time: self.time - before.time,
            instructions: self.instructions - before.instructions,
            longest: self.longest,
        }
    }
}

/// A run of a handler, for timelines and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The message.
    pub message: MessageId,
    /// The packet's number in the message.
    pub index: u32,
    /// The handler.
    pub handler: Handler,
    /// The core: cluster number times 8 plus number in the cluster.
    pub hpu: usize,
    /// From dispatch.
    pub begin: Ps,
    /// To return.
    pub end: Ps,
    /// When all its commands were complete.
    pub reported: Ps,
}

/// A PsPIN NIC.
#[derive(Debug)]
pub struct Spin {
    /// Packets that wait for the inbound engine.
    arrived: VecDeque<Packet>,
    inbound_busy: bool,
    /// Bytes of the packet buffer in use.
    buffered: u64,
    queues: BTreeMap<MessageId, MessageQueue>,
    next_home: usize,
    /// Tasks that wait for a place in a cluster.
    ready: VecDeque<TaskId>,
    scheduler: Server,
    /// The port from the packet buffer to the clusters, and the one to the outbound engine.
    copy_port: Server,
    read_port: Server,
    clusters: Vec<Cluster>,
    /// Packets that the outbound engine has taken and not sent.
    outbound: u64,
    outbound_waiting: VecDeque<TaskId>,
    tasks: Vec<Option<Task>>,
    free_tasks: Vec<TaskId>,
    /// Durations: header, payload, completion handlers.
    pub stats: [HandlerStats; 3],
    /// Messages whose completion handler is done.
    pub completed: u64,
    /// Most bytes that the packet buffer ever held.
    pub buffered_peak: u64,
    /// The runs, if someone wants them.
    pub trace: Option<Vec<Span>>,
}

impl Spin {
    pub(super) fn new(constants: &Constants) -> Self {
        let hpu = Hpu { current: None, unreported: None, wait: Wait::No };
        let cluster = |_| Cluster {
            waiting: VecDeque::new(),
            hpus: vec![hpu; constants.hpus.max(1) as usize],
            tasks: 0,
        };
        Self {
            arrived: VecDeque::new(),
            inbound_busy: false,
            buffered: 0,
            queues: BTreeMap::new(),
            next_home: 0,
            ready: VecDeque::new(),
            scheduler: Server::default(),
            copy_port: Server::default(),
            read_port: Server::default(),
            clusters: (0..constants.clusters.max(1)).map(cluster).collect(),
            outbound: 0,
            outbound_waiting: VecDeque::new(),
            tasks: Vec::new(),
            free_tasks: Vec::new(),
            stats: [HandlerStats::default(); 3],
            completed: 0,
            buffered_peak: 0,
            trace: None,
        }
    }

    /// Bytes in the packet buffer, tasks and messages that are not done: all zero at rest.
    pub fn in_progress(&self) -> (u64, usize, usize) {
        let tasks = self.tasks.iter().filter(|task| task.is_some()).count();
        (self.buffered, tasks, self.queues.len())
    }

    fn add_task(&mut self, handler: Handler, packet: Packet) -> TaskId {
        let task = Task {
            packet,
            handler,
            cluster: 0,
            hpu: 0,
            copied: false,
            began: Ps::ZERO,
            run_time: Ps::ZERO,
            commands: VecDeque::new(),
            instructions: 0,
            pending: 0,
            ended: false,
        };
        if let Some(id) = self.free_tasks.pop() {
            self.tasks[id.0 as usize] = Some(task);
            return id;
        }
        self.tasks.push(Some(task));
        TaskId((self.tasks.len() - 1) as u32)
    }

    fn task(&mut self, id: TaskId) -> &mut Task {
        // An event of a task exists only while the task does.
        self.tasks[id.0 as usize].as_mut().expect("a task lives until it is reported")
    }

    fn hpu_of(&mut self, id: TaskId) -> &mut Hpu {
        let (cluster, hpu) = {
            let task = self.task(id);
            (task.cluster, task.hpu)
        };
        &mut self.clusters[cluster].hpus[hpu]
    }
}

/// The time that a port takes for some bytes, at one beat per cycle of 1 ns.
fn beats(constants: &Constants, bytes: u64) -> Ps {
    Ps::ns(bytes.div_ceil(constants.port_bytes.max(1)))
}

/// The room that a packet takes in the packet buffer.
fn room(constants: &Constants, packet: &Packet) -> u64 {
    u64::from(packet.wire_bytes).next_multiple_of(constants.port_bytes.max(1))
}

impl Fabric {
    /// Records the runs of all handlers of a host from now on.
    pub fn trace_handlers(&mut self, host: HostId) {
        if let Some(spin) = self.hosts[host.index()].spin.as_mut() {
            spin.trace = Some(Vec::new());
        }
    }

    pub(super) fn spin_mut(&mut self, host: HostId) -> &mut Spin {
        // Only hosts with a PsPIN take packets into one, and all events here follow from that.
        self.hosts[host.index()].spin.as_mut().expect("the host has a PsPIN")
    }

    fn spin_at(&mut self, time: Ps, host: HostId, event: SpinEvent) {
        self.schedule.at(time, Event::Spin(host, event));
    }

    pub(super) fn spin_event(&mut self, host: HostId, event: SpinEvent) {
        match event {
            SpinEvent::Buffered(packet) => self.buffered(host, packet),
            SpinEvent::Scheduled(task) => self.copy_to_cluster(host, task),
            SpinEvent::Copied(task) => {
                let cluster = {
                    let task = self.spin_mut(host).task(task);
                    task.copied = true;
                    task.cluster
                };
                self.fill_cluster(host, cluster);
            }
            SpinEvent::Dispatched(id) => {
                let now = self.now();
                let task = self.spin_mut(host).task(id);
                task.began = now;
                let notice = Notice::Begin(host, id, task.handler, task.packet);
                self.notices.push_back(notice);
            }
            SpinEvent::Computed(task) => self.computed(host, task),
            SpinEvent::Read(task, packet) => self.send_packet(host, task, packet),
            SpinEvent::Departed(task) => self.departed(host, task),
            SpinEvent::Written(task) => self.completed(host, task),
            SpinEvent::Flushed(task) => {
                self.spin_mut(host).hpu_of(task).wait = Wait::No;
                self.completed(host, task);
                self.issue(host, task);
            }
        }
    }

    /// A packet for handlers has arrived.
    pub(super) fn spin_arrived(&mut self, host: HostId, packet: Packet) {
        self.spin_mut(host).arrived.push_back(packet);
        self.fill_buffer(host);
    }

    /// Begins to write the next packet to the packet buffer, if there is room.
    fn fill_buffer(&mut self, host: HostId) {
        let capacity = self.constants.packet_buffer_bytes;
        let spin = self.hosts[host.index()].spin.as_mut();
        let Some(spin) = spin.filter(|spin| !spin.inbound_busy) else { return };
        let Some(packet) = spin.arrived.front().copied() else { return };
        let room = room(&self.constants, &packet);
        if spin.buffered + room > capacity {
            return;
        }
        spin.arrived.pop_front();
        spin.inbound_busy = true;
        spin.buffered += room;
        spin.buffered_peak = spin.buffered_peak.max(spin.buffered);
        let time = self.now() + beats(&self.constants, u64::from(packet.wire_bytes));
        self.spin_at(time, host, SpinEvent::Buffered(packet));
    }

    fn buffered(&mut self, host: HostId, packet: Packet) {
        self.spin_mut(host).inbound_busy = false;
        let now = self.now();
        self.give_receive_credit(host, now, u64::from(packet.wire_bytes));
        self.queue_packet(host, packet);
        self.fill_buffer(host);
    }
}
