//! The queue of a message: which handlers may run.

use super::{Handler, Span, TaskId, room};
use crate::network::fabric::Fabric;
use crate::network::packet::{HostId, Packet};

/// The progress of a message.
#[derive(Debug)]
pub(super) struct MessageQueue {
    /// The cluster that its tasks prefer.
    pub(super) home: usize,
    /// True if the header handler is done.
    header_done: bool,
    /// Packets that wait for the header handler.
    waiting: Vec<Packet>,
    /// Payload handlers that are done.
    payloads_done: u32,
}

impl Fabric {
    /// A packet is in the buffer: runs the handlers that it allows.
    pub(super) fn queue_packet(&mut self, host: HostId, packet: Packet) {
        let clusters = self.constants.clusters.max(1) as usize;
        let spin = self.spin_mut(host);
        let home = spin.next_home;
        let queue = spin.queues.entry(packet.message.id).or_insert_with(|| {
            spin.next_home = (home + 1) % clusters;
            MessageQueue { home, header_done: false, waiting: Vec::new(), payloads_done: 0 }
        });
        if queue.header_done {
            self.add(host, Handler::Payload, packet);
            return;
        }
        queue.waiting.push(packet);
        if packet.index == 0 {
            self.add(host, Handler::Header, packet);
        }
    }

    fn add(&mut self, host: HostId, handler: Handler, packet: Packet) {
        let spin = self.spin_mut(host);
        let task = spin.add_task(handler, packet);
        spin.ready.push_back(task);
        self.schedule_tasks(host);
    }

    /// A task and its commands are done.
    pub(super) fn report(&mut self, host: HostId, id: TaskId) {
        let now = self.now();
        let spin = self.spin_mut(host);
        let Some(task) = spin.tasks[id.0 as usize].take() else { return };
        spin.free_tasks.push(id);
        spin.clusters[task.cluster].tasks -= 1;
        let hpus = spin.clusters[task.cluster].hpus.len();
        let ended = task.began + task.run_time;
        if let Some(trace) = spin.trace.as_mut() {
            trace.push(Span {
                message: task.packet.message.id,
                index: task.packet.index,
                handler: task.handler,
                hpu: task.cluster * hpus + task.hpu,
                begin: task.began,
                end: ended,
                reported: now,
            });
        }
        match task.handler {
            Handler::Header => self.header_done(host, &task.packet),
            Handler::Payload => self.payload_done(host, &task.packet),
            Handler::Completion => {
                let spin = self.spin_mut(host);
                spin.queues.remove(&task.packet.message.id);
                spin.completed += 1;
                self.release(host, &task.packet);
            }
        }
        self.schedule_tasks(host);
    }

    fn header_done(&mut self, host: HostId, packet: &Packet) {
        let Some(queue) = self.spin_mut(host).queues.get_mut(&packet.message.id) else { return };
        queue.header_done = true;
        for packet in std::mem::take(&mut queue.waiting) {
            self.add(host, Handler::Payload, packet);
        }
    }

    fn payload_done(&mut self, host: HostId, packet: &Packet) {
        let Some(queue) = self.spin_mut(host).queues.get_mut(&packet.message.id) else { return };
        queue.payloads_done += 1;
        let is_complete = queue.payloads_done == packet.count;
        // The completion handler needs the last packet; the others leave the buffer now.
        if !packet.is_last() {
            self.release(host, packet);
        }
        if is_complete {
            let last = packet.message.packet(packet.count - 1, &self.constants);
            self.add(host, Handler::Completion, last);
        }
    }

    /// Frees a packet's room in the packet buffer.
    fn release(&mut self, host: HostId, packet: &Packet) {
        let room = room(&self.constants, packet);
        let spin = self.spin_mut(host);
        spin.buffered = spin.buffered.saturating_sub(room);
        self.fill_buffer(host);
    }
}
