//! From the scheduler to an HPU: places in clusters, copies, dispatch.

use super::{SpinEvent, TaskId, beats};
use crate::network::fabric::Fabric;
use crate::network::packet::HostId;
use crate::network::time::Ps;

impl Fabric {
    /// Gives ready tasks to clusters, as long as one has a place.
    pub(super) fn schedule_tasks(&mut self, host: HostId) {
        let limit = self.constants.cluster_tasks;
        let latency = Ps::ns(self.constants.schedule_ns);
        let cycle = Ps::ns(1);
        loop {
            let now = self.now();
            let spin = self.spin_mut(host);
            let Some(id) = spin.ready.front().copied() else { return };
            let message = spin.task(id).packet.message.id;
            let home = spin.queues.get(&message).map_or(0, |queue| queue.home);
            let has_place = |place: &usize| spin.clusters[*place].tasks < limit;
            let emptiest = || {
                let places = 0..spin.clusters.len();
                places.min_by_key(|place| (spin.clusters[*place].tasks, *place))
            };
            let chosen = Some(home).filter(has_place).or_else(emptiest).filter(has_place);
            let Some(cluster) = chosen else { return };
            spin.ready.pop_front();
            spin.clusters[cluster].tasks += 1;
            spin.task(id).cluster = cluster;
            // One task per cycle; each is on its way for `schedule_ns`.
            let begun = spin.scheduler.reserve(now, cycle) - cycle;
            self.spin_at(begun + latency, host, SpinEvent::Scheduled(id));
        }
    }

    /// Copies a task's packet to its cluster.
    pub(super) fn copy_to_cluster(&mut self, host: HostId, id: TaskId) {
        let now = self.now();
        let latency = Ps::ns(self.constants.l1_copy_ns);
        let spin = self.hosts[host.index()].spin.as_mut();
        let Some(spin) = spin else { return };
        let (bytes, cluster) = {
            let task = spin.task(id);
            (u64::from(task.packet.wire_bytes), task.cluster)
        };
        spin.clusters[cluster].waiting.push_back(id);
        let copied = spin.copy_port.reserve(now, beats(&self.constants, bytes)) + latency;
        self.spin_at(copied, host, SpinEvent::Copied(id));
    }

    /// Gives the first tasks of a cluster to its idle HPUs.
    pub(super) fn fill_cluster(&mut self, host: HostId, cluster: usize) {
        let dispatched = self.now() + Ps::ns(self.constants.dispatch_ns);
        loop {
            let spin = self.spin_mut(host);
            let Some(id) = spin.clusters[cluster].waiting.front().copied() else { return };
            let idle = spin.clusters[cluster].hpus.iter().position(|hpu| hpu.current.is_none());
            let Some(hpu) = idle.filter(|_| spin.task(id).copied) else { return };
            spin.clusters[cluster].waiting.pop_front();
            spin.clusters[cluster].hpus[hpu].current = Some(id);
            spin.task(id).hpu = hpu;
            self.spin_at(dispatched, host, SpinEvent::Dispatched(id));
        }
    }
}
