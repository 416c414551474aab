//! A handler on its HPU: cycles, commands, and the waits between.

use super::{Command, SpinEvent, TaskId, Wait, beats};
use crate::network::channel::{Outgoing, Owner};
use crate::network::fabric::{Fabric, Notice, SPIN_FLOW};
use crate::network::handlers::Cost;
use crate::network::packet::{HostId, Packet};
use crate::network::time::Ps;

impl Fabric {
    /// A handler that was dispatched runs for the cycles of its cost.
    pub(in crate::network) fn begin_handler(&mut self, host: HostId, id: TaskId, cost: Cost) {
        let time = self.now() + Ps::ns(u64::from(cost.cycles));
        self.spin_mut(host).task(id).instructions = cost.instructions;
        self.spin_at(time, host, SpinEvent::Computed(id));
    }

    /// Answers [`Notice::Run`]: the handler issues commands, and returns when it has issued all.
    pub fn run_handler(&mut self, host: HostId, id: TaskId, commands: Vec<Command>) {
        self.spin_mut(host).task(id).commands = commands.into();
        self.issue(host, id);
    }

    /// A handler has run its cycles: its effects happen now.
    pub(super) fn computed(&mut self, host: HostId, id: TaskId) {
        let task = self.spin_mut(host).task(id);
        let notice = Notice::Run(host, id, task.handler, task.packet);
        self.notices.push_back(notice);
    }

    /// Issues the commands of a task until it must wait, or is at its end.
    pub(super) fn issue(&mut self, host: HostId, id: TaskId) {
        loop {
            let slots = self.constants.hpu_commands;
            let outbound = self.constants.outbound_packets;
            let spin = self.spin_mut(host);
            let next = spin.task(id).commands.front().copied();
            if next.is_none() {
                self.returned(host, id);
            }
            let spin = self.spin_mut(host);
            if spin.hpu_of(id).unreported.is_some() {
                spin.hpu_of(id).wait = Wait::Feedback;
                return;
            }
            let Some(command) = next else {
                self.leave_hpu(host, id);
                return;
            };
            if spin.task(id).pending >= slots {
                spin.hpu_of(id).wait = Wait::Slots;
                return;
            }
            if matches!(command, Command::Send(_)) && spin.outbound >= outbound {
                spin.hpu_of(id).wait = Wait::Outbound;
                spin.outbound_waiting.push_back(id);
                return;
            }
            let task = spin.task(id);
            task.commands.pop_front();
            task.pending += 1;
            if self.start(host, id, command) {
                self.spin_mut(host).hpu_of(id).wait = Wait::Flush;
                return;
            }
        }
    }

    /// Starts a command. True if the handler waits for its end.
    fn start(&mut self, host: HostId, id: TaskId, command: Command) -> bool {
        let now = self.now();
        match command {
            Command::ToHost(bytes) => {
                let handed = self.write_memory(host, now, bytes);
                self.spin_at(handed, host, SpinEvent::Written(id));
                false
            }
            Command::Send(packet) => {
                let time = beats(&self.constants, u64::from(packet.wire_bytes));
                let spin = self.spin_mut(host);
                spin.outbound += 1;
                let read = spin.read_port.reserve(now, time);
                self.spin_at(read, host, SpinEvent::Read(id, packet));
                false
            }
            Command::Flush => {
                // A read behind the posted writes: it returns when they are in memory.
                let handed = self.write_memory(host, now, self.constants.completion_bytes);
                let trip = Ps::ns(2 * self.constants.pcie_latency_ns);
                self.spin_at(handed + trip, host, SpinEvent::Flushed(id));
                true
            }
        }
    }

    /// A handler returns: its duration is known. The HPU is free when the task can be reported, or
    /// can wait for its commands in the place of the task before it.
    fn returned(&mut self, host: HostId, id: TaskId) {
        let now = self.now();
        let spin = self.spin_mut(host);
        let task = spin.task(id);
        if task.ended {
            return;
        }
        task.ended = true;
        task.run_time = now - task.began;
        let (time, instructions, handler) = (task.run_time, task.instructions, task.handler);
        let stats = &mut spin.stats[handler as usize];
        stats.runs += 1;
        stats.time += time;
        stats.instructions += u64::from(instructions);
        stats.longest = stats.longest.max(time);
    }

    fn leave_hpu(&mut self, host: HostId, id: TaskId) {
        let spin = self.spin_mut(host);
        let (pending, cluster) = {
            let task = spin.task(id);
            (task.pending, task.cluster)
        };
        let hpu = spin.hpu_of(id);
        hpu.current = None;
        hpu.wait = Wait::No;
        if pending > 0 {
            hpu.unreported = Some(id);
        } else {
            self.report(host, id);
        }
        self.fill_cluster(host, cluster);
    }

    /// A packet is in the outbound engine: it waits for the link.
    pub(super) fn send_packet(&mut self, host: HostId, id: TaskId, packet: Packet) {
        self.transmit(host, SPIN_FLOW, Outgoing { packet, owner: Owner::Task(id) });
    }

    /// A packet of a task is on the wire.
    pub(super) fn departed(&mut self, host: HostId, id: TaskId) {
        let spin = self.spin_mut(host);
        spin.outbound -= 1;
        let waiting = spin.outbound_waiting.pop_front();
        // Who has waited longest comes before the task that may now go on.
        if let Some(waiting) = waiting {
            self.spin_mut(host).hpu_of(waiting).wait = Wait::No;
            self.issue(host, waiting);
        }
        self.completed(host, id);
    }

    /// A command of a task is complete.
    pub(super) fn completed(&mut self, host: HostId, id: TaskId) {
        let spin = self.spin_mut(host);
        let task = spin.task(id);
        task.pending -= 1;
        let is_done = task.ended && task.pending == 0;
        let (cluster, place) = (task.cluster, task.hpu);
        let is_done = is_done && spin.hpu_of(id).unreported == Some(id);
        if is_done {
            spin.hpu_of(id).unreported = None;
            self.report(host, id);
        }
        let hpu = self.spin_mut(host).clusters[cluster].hpus[place];
        let goes_on = match hpu.wait {
            Wait::Feedback => hpu.unreported.is_none(),
            Wait::Slots => !is_done,
            Wait::No | Wait::Outbound | Wait::Flush => false,
        };
        if let Some(current) = hpu.current.filter(|_| goes_on) {
            self.spin_mut(host).hpu_of(current).wait = Wait::No;
            self.issue(host, current);
        }
    }
}
