//! Hosts of volume processes: their connections, timers, deaths and successors.

use fieldstone_accel::{Engine, Job, JobCompletion, JobId, SubmissionQueueId, execute};
use fieldstone_block::{Completion, Nanos, Request, Stack};
use fieldstone_node::PeerId;
use fieldstone_proto::{NodeError, NodeIndex, PoolKeys, Reply};
use fieldstone_volume::{
    OpenMode, VolumeAction, VolumeConfig, VolumeEvent, VolumeFailure, VolumePhase,
};

use super::describe::brief_request;
use super::wall_clock::Side;
use super::{Happening, World};
use crate::actor::{Cast, Health, NodeView, VolumeProcess};
use crate::device::{DeviceHandle, device};
use crate::frontend::NbdFrontend;
use crate::network::{Arrival, ClientId, Ends};
use crate::random::RandomStream;
use crate::trace::Who;

/// Rounds of "take actions, poll" at one moment after which a volume counts as spinning.
const ROUNDS_MAX: u32 = 10_000;
/// Pause before the next attempt to open while nodes are away.
const OPEN_AGAIN_NS: u64 = 5_000_000;
/// How often an opening may fail in a row because nodes still count the dead writer as holder. The
/// opening after that takes the volume over.
const HELD_MAX: u32 = 3;
/// A volume that ends takes less time than this, in nanoseconds.
const CLOSING_NS: u64 = 45_000_000_000;
/// How often an opening may fail in a row while nodes are impaired.
const OPENING_FAILURES_MAX: u32 = 100;

/// The queue of a volume's engine.
const QUEUE: SubmissionQueueId = SubmissionQueueId(0);

/// A volume process with its layers, its engine, and its side of the network.
pub(super) struct VolumeHost<V> {
    /// The volume that it serves.
    pub volume_number: usize,
    /// The volume, behind the layers of its device if the run has any.
    pub device: Stack<V, Origin>,
    /// The users' NBD connections, if they use NBD.
    frontend: Option<NbdFrontend>,
    engine: Engine,
    accelerator: Option<DeviceHandle>,
    links: Vec<NodeLink>,
    /// The secrets that the process has.
    pub keys: PoolKeys,
    timer: Option<Nanos>,
    pub phase: VolumePhase,
    /// When it was started.
    started: Nanos,
    /// The last error in an answer of a node, as text for people.
    pub last_error: Option<String>,
}

/// The NBD connection over which a request came; `None` for a request without NBD.
pub(super) type Origin = Option<usize>;

#[derive(Clone, Copy, Debug, Default)]
struct NodeLink {
    peer: Option<PeerId>,
    /// The life of the node with which the connection was made.
    life: u64,
    /// Number of attempts to connect. Only the last one counts.
    attempt: u64,
}

impl<V: VolumeProcess> VolumeHost<V> {
    /// A user sends a request.
    pub fn submit(&mut self, request: Request, now: Nanos) {
        match &mut self.frontend {
            Some(frontend) => {
                frontend.submit(self.device.info(), &request);
                self.forward(now);
            }
            None => self.device.submit_from(None, request, now),
        }
    }

    /// Gives the device the requests that have arrived over NBD. True if there were any.
    fn forward(&mut self, now: Nanos) -> bool {
        let Some(frontend) = &mut self.frontend else { return false };
        let requests = frontend.requests(now);
        let any = !requests.is_empty();
        for (connection, request) in requests {
            self.device.submit_from(Some(connection), request, now);
        }
        any
    }

    /// Polls the device. Appends the answers that users get.
    fn poll(&mut self, now: Nanos, answers: &mut Vec<Completion>) {
        let mut done = Vec::new();
        loop {
            self.device.poll_into(now, &mut done);
            self.device.refresh_info();
            for (origin, completion) in done.drain(..) {
                match (origin, &mut self.frontend) {
                    (Some(number), Some(frontend)) => frontend.complete(number, completion),
                    _ => answers.push(completion),
                }
            }
            answers.extend(self.frontend.as_mut().into_iter().flat_map(NbdFrontend::replies));
            if !self.forward(now) {
                break;
            }
        }
    }

    fn set_now(&self, now: Nanos) {
        if let Some(accelerator) = &self.accelerator {
            accelerator.set_now(now);
        }
    }

    fn start_job(&mut self, id: JobId, job: Job, now: Nanos) {
        self.set_now(now);
        if let Err(job) = self.engine.submit(now.0, QUEUE, id, job) {
            self.device.store_mut().handle(VolumeEvent::JobDone { id, result: execute(&job) }, now);
        }
    }

    /// Gives the engine's results to the volume. True if there were any.
    fn finish_jobs(&mut self, now: Nanos) -> bool {
        self.set_now(now);
        let mut done = Vec::new();
        self.engine.poll(now.0, QUEUE, &mut done);
        let any = !done.is_empty();
        for JobCompletion { job: id, result } in done {
            self.device.store_mut().handle(VolumeEvent::JobDone { id, result }, now);
        }
        any
    }

    /// When a job is done, or late.
    fn next_job(&self) -> Option<Nanos> {
        let late = Nanos(self.engine.deadline_ns()?);
        let due = self.accelerator.as_ref().and_then(DeviceHandle::next_due);
        Some(due.map_or(late, |due| due.min(late)))
    }
}

impl<C: Cast> World<'_, C> {
    pub(super) fn open_due(&mut self, volume_number: usize) {
        self.sim_volumes[volume_number].open_pending = false;
        if self.sim_volumes[volume_number].removal.is_some() {
            return;
        }
        let missed = |(index, host): (u16, &super::nodes::NodeHost<C::Node>)| {
            host.process.is_none() && !self.fault_model.may_be_missed(NodeIndex(index))
        };
        if (0u16..).zip(&self.nodes).any(missed) {
            return self.schedule_open(volume_number, OPEN_AGAIN_NS);
        }
        if self.sim_volumes[volume_number].active.is_none() {
            let failures = self.sim_volumes[volume_number].opening_failures;
            let takeover = failures >= 3 || self.world_rng.chance(300);
            self.start_volume(volume_number, takeover);
        }
    }

    pub(super) fn schedule_open(&mut self, volume_number: usize, delay_ns: u64) {
        if !self.sim_volumes[volume_number].open_pending {
            self.sim_volumes[volume_number].open_pending = true;
            self.schedule.after(delay_ns, Happening::Open { volume_number });
        }
    }

    /// Starts a process of a volume. It becomes the active one.
    pub(super) fn start_volume(&mut self, volume_number: usize, takeover: bool) {
        let client = ClientId(self.owners.len() as u32);
        let sim_volume = &mut self.sim_volumes[volume_number];
        let opening = if sim_volume.newest.is_none() {
            OpenMode::Create {
                name: format!("stone{volume_number}"),
                profile: self.scenario.profile,
                geometry: sim_volume.share.geometry,
                provisioning: sim_volume.share.provisioning,
            }
        } else {
            OpenMode::Open { takeover }
        };
        self.owners.push(volume_number);
        sim_volume.newest = Some(client);
        sim_volume.active = Some(client);
        let volume = sim_volume.volume;
        self.note(Who::Volume(client.0), "start", 0, format_args!("{opening:?}"));
        let config = VolumeConfig {
            volume,
            opening,
            nodes: self.scenario.nodes,
            missing_max: self.scenario.profile.m() as u16,
            authority: self.authority(),
            wall_offset_ns: self.wall_offset_ns(Side::Volume(client)),
            node_timeout_ms: self.scenario.node_timeout_ms,
            fragment_bytes: self.scenario.fragment_bytes,
            replicate: self.scenario.replicate,
            encode: self.scenario.encode,
            reads: self.scenario.reads,
            auto_rebuild: true,
            rebuild_limit_bytes_per_second: 0,
        };
        let process = self.cast.volume(config, self.now());
        let (engine, accelerator) = match self.scenario.device {
            None => (Engine::software(), None),
            Some(plan) => {
                let rng = RandomStream::new(self.scenario.seed, "device", u64::from(client.0));
                let (device, handle) = device(plan, rng);
                (Engine::with_device(Box::new(device)), Some(handle))
            }
        };
        let rng = RandomStream::new(self.scenario.seed, "nbd", u64::from(client.0));
        let frontend = self.scenario.nbd.then(|| NbdFrontend::new(rng));
        let links = vec![NodeLink::default(); usize::from(self.scenario.nodes)];
        let host = VolumeHost {
            volume_number,
            device: Stack::new(process, self.scenario.layers()),
            frontend,
            engine,
            accelerator,
            links,
            keys: self.secrets.file,
            timer: None,
            phase: VolumePhase::Opening,
            started: self.schedule.now(),
            last_error: None,
        };
        self.volumes.insert(client, host);
        for node in 0..self.scenario.nodes {
            self.begin_connecting(client, NodeIndex(node));
        }
        self.pump_volume(client);
    }

    fn begin_connecting(&mut self, client: ClientId, node: NodeIndex) {
        let Some(host) = self.volumes.get_mut(&client) else { return };
        let link = &mut host.links[usize::from(node.0)];
        link.attempt += 1;
        link.peer = None;
        let attempt = link.attempt;
        let delay_ns = self.world_rng.around(self.scenario.network.delay_ns * 3);
        self.schedule.after(delay_ns, Happening::Connect { client, node, attempt });
    }

    pub(super) fn connect_due(&mut self, client: ClientId, node: NodeIndex, attempt: u64) {
        let target = &self.nodes[usize::from(node.0)];
        let (life, running) = (target.life, target.process.is_some());
        let Some(host) = self.volumes.get_mut(&client) else { return };
        let link = &mut host.links[usize::from(node.0)];
        if link.attempt != attempt || link.peer.is_some() {
            return;
        }
        if !running || self.network.is_partitioned(client, node) {
            let delay_ns = self.world_rng.between(5_000_000, 60_000_000);
            self.schedule.after(delay_ns, Happening::Connect { client, node, attempt });
            return;
        }
        let peer = self.network.connect(client, node);
        link.peer = Some(peer);
        link.life = life;
        self.note(
            Who::Volume(client.0),
            "up",
            peer.0,
            format_args!("{node} connection {}", peer.0),
        );
        let reach = self.reach_of(node);
        self.with_volume(client, |volume, now| {
            volume.handle(VolumeEvent::NodeAt(node, reach), now);
            volume.handle(VolumeEvent::NodeUp(node), now);
        });
    }

    pub(super) fn arrived_at_volume(&mut self, ends: Ends, arrival: Arrival) {
        let who = Who::Volume(ends.client.0);
        if self.arrived_at_stranger(ends, &arrival) || self.arrived_at_command(ends, &arrival) {
            return;
        }
        let Some(host) = self.volumes.get_mut(&ends.client) else { return };
        if host.links[usize::from(ends.node.0)].peer != Some(ends.peer) {
            return;
        }
        let event = match arrival {
            Arrival::Reply(reply) => {
                let key = reply.tag.0;
                self.note(who, "recv", key, format_args!("{} #{key}", ends.node));
                self.remember_error(ends, &reply);
                VolumeEvent::Reply { node: ends.node, reply }
            }
            Arrival::Closed => {
                let key = ends.peer.0;
                self.note(who, "down", key, format_args!("{} connection {key}", ends.node));
                self.begin_connecting(ends.client, ends.node);
                VolumeEvent::NodeDown(ends.node)
            }
            Arrival::Request(_) => return,
        };
        self.with_volume(ends.client, |volume, now| volume.handle(event, now));
    }

    fn remember_error(&mut self, ends: Ends, reply: &Reply) {
        if matches!(reply.result, Err(NodeError::Busy)) {
            self.count_busy();
        }
        if let Err(error) = &reply.result
            && let Some(host) = self.volumes.get_mut(&ends.client)
        {
            host.last_error = Some(format!("{}: {error}", ends.node));
        }
    }

    pub(super) fn timer_due(&mut self, client: ClientId, at: Nanos) {
        if let Some(host) = self.volumes.get_mut(&client)
            && host.timer == Some(at)
        {
            host.timer = None;
            self.pump_volume(client);
        }
    }

    /// Calls `act` on a volume process, and then carries out its actions.
    pub(super) fn with_volume(
        &mut self,
        client: ClientId,
        act: impl FnOnce(&mut C::Volume, Nanos),
    ) {
        self.with_host(client, |host, now| act(host.device.store_mut(), now));
    }

    /// The same with its host.
    pub(super) fn with_host(
        &mut self,
        client: ClientId,
        act: impl FnOnce(&mut VolumeHost<C::Volume>, Nanos),
    ) {
        let now = self.now();
        if let Some(host) = self.volumes.get_mut(&client) {
            act(host, now);
            self.pump_volume(client);
        }
    }

    fn pump_volume(&mut self, client: ClientId) {
        let now = self.now();
        let mut completions = Vec::new();
        for round in 0.. {
            if round == ROUNDS_MAX {
                return self.fail(format!("volume process {} spins", client.0));
            }
            let Some(host) = self.volumes.get_mut(&client) else { return };
            host.poll(now, &mut completions);
            let mut rests = completions.is_empty();
            for completion in completions.drain(..) {
                self.request_ended(client, completion);
            }
            while let Some(action) =
                self.volumes.get_mut(&client).and_then(|host| host.device.store_mut().next_action())
            {
                rests = false;
                self.carry_out(client, action);
            }
            let Some(host) = self.volumes.get_mut(&client) else { return };
            rests &= !host.finish_jobs(now);
            let faults = host.accelerator.as_ref().map(DeviceHandle::take_faults);
            for fault in faults.into_iter().flatten() {
                *self.device_faults.entry(fault).or_default() += 1;
                self.note(Who::Volume(client.0), "job", 0, format_args!("{}", fault.name()));
            }
            if rests {
                break;
            }
        }
        self.watch_phase(client);
        self.watch_size(client);
        self.arm_timer(client);
    }

    fn arm_timer(&mut self, client: ClientId) {
        let now = self.now();
        let Some(host) = self.volumes.get_mut(&client) else { return };
        let deadlines = [host.device.next_deadline(), host.next_job()];
        let Some(deadline) = deadlines.into_iter().flatten().min() else { return };
        // A deadline in the past, right after a poll, must not stop the clock.
        let at = deadline.max(now.plus(Nanos(1000)));
        if host.timer.is_none_or(|timer| at < timer) {
            host.timer = Some(at);
            self.schedule.at(at, Happening::Timer { client, at });
        }
    }

    fn carry_out(&mut self, client: ClientId, action: VolumeAction) {
        let who = Who::Volume(client.0);
        let now = self.now();
        match action {
            VolumeAction::Send { node, request } => {
                let text = brief_request(&request);
                self.trace.line(now, who, "send", request.tag.0, format_args!("{node} {text}"));
                let peer = self.volumes[&client].links[usize::from(node.0)].peer;
                if let Some(peer) = peer {
                    self.overhear(node, &request);
                    self.network.send_request(now, peer, request);
                }
            }
            VolumeAction::Job { id, job } => {
                let text = (job.kind(), job.input_bytes());
                self.note(who, "job", id.0, format_args!("{:?} of {} bytes", text.0, text.1));
                if let Some(host) = self.volumes.get_mut(&client) {
                    host.start_job(id, job, now);
                }
            }
            VolumeAction::Issue { epoch } => self.asked_for_capability(client, epoch),
            VolumeAction::Reconnect { node } => {
                self.note(who, "redial", u64::from(node.0), format_args!("{node}"));
                if let Some(peer) = self.volumes[&client].links[usize::from(node.0)].peer {
                    self.network.close_by_client(now, peer, false);
                }
                self.begin_connecting(client, node);
            }
        }
    }

    fn watch_phase(&mut self, client: ClientId) {
        let Some(host) = self.volumes.get_mut(&client) else { return };
        let phase = host.device.store().phase();
        if phase == host.phase {
            return;
        }
        let before = std::mem::replace(&mut host.phase, phase.clone());
        self.note(Who::Volume(client.0), "phase", 0, format_args!("{phase:?}"));
        let volume_number = self.volume_number_of(client);
        let sim_volume = &mut self.sim_volumes[volume_number];
        if sim_volume.active != Some(client) {
            return;
        }
        match phase {
            VolumePhase::Serving => {
                sim_volume.opening_failures = 0;
                sim_volume.shut_since = None;
                sim_volume.strikes_since_serving = 0;
                sim_volume.made = true;
                sim_volume.checker.succeeded_by(client);
                self.schedule_work(volume_number, 0);
            }
            VolumePhase::Failed(reason) => self.active_failed(client, &before, &reason),
            VolumePhase::Opening
            | VolumePhase::Closing
            | VolumePhase::Closed
            | VolumePhase::Inspected => {}
        }
    }

    fn active_failed(&mut self, client: ClientId, before: &VolumePhase, reason: &VolumeFailure) {
        let volume_number = self.volume_number_of(client);
        if *before == VolumePhase::Opening {
            let started = self.volumes[&client].started;
            let sound = !self.fault_model.was_impaired_since(started)
                && !self.were_disks_full_since(started);
            let sim_volume = &mut self.sim_volumes[volume_number];
            sim_volume.opening_failures += 1;
            let held = sim_volume.opening_failures <= HELD_MAX
                && matches!(reason, VolumeFailure::InUse { .. });
            if sound && !held {
                let text =
                    format!("volume {volume_number} does not open though all nodes are sound");
                return self.fail(format!("{text}: {reason}"));
            }
            let created = sim_volume.made || !sim_volume.removed.is_empty();
            if !created || sim_volume.opening_failures > OPENING_FAILURES_MAX {
                return self.fail(format!("volume {volume_number} does not open: {reason}"));
            }
        } else if *before == VolumePhase::Closing && *reason == VolumeFailure::JournalNotStable {
            let since = Nanos(self.now().0.saturating_sub(CLOSING_NS));
            let sound =
                !self.fault_model.was_impaired_since(since) && !self.were_disks_full_since(since);
            if sound {
                let text = format!("volume {volume_number} does not close cleanly");
                return self.fail(format!("{text}, though all nodes are sound: {reason}"));
            }
        } else {
            return self.fail(format!("volume {volume_number} failed: {reason}"));
        }
        self.kill_volume(client, "it failed");
    }

    /// Adds the counters of the process's layers to those of the run.
    pub(super) fn count_layers(&mut self, host: &VolumeHost<C::Volume>) {
        let [relayed, again] = host.device.store().relays();
        self.relays = [self.relays[0] + relayed, self.relays[1] + again];
        let [relayed, again] = host.device.store().carried();
        self.carried = [self.carried[0] + relayed, self.carried[1] + again];
        let [streamed, coded] = host.device.store().parities();
        self.parities = [self.parities[0] + streamed, self.parities[1] + coded];
        for layer in host.device.layers() {
            for counter in layer.counters() {
                *self.layers.entry((layer.name(), counter.name)).or_default() += counter.value;
            }
        }
    }

    /// A volume process dies. If it was the active one of its volume, another will be opened.
    pub(super) fn kill_volume(&mut self, client: ClientId, why: &str) {
        let Some(host) = self.volumes.remove(&client) else { return };
        self.count_layers(&host);
        let volume_number = host.volume_number;
        self.steady = false;
        self.note(Who::Volume(client.0), "dead", 0, format_args!("{why}"));
        let now = self.now();
        self.network.client_died(now, client);
        self.sim_volumes[volume_number].checker.process_died(client);
        self.in_flight.retain(|_, request| request.client != client);
        // No answer of the dead process will set the users to work again.
        self.schedule_work(volume_number, 0);
        if self.sim_volumes[volume_number].active == Some(client) {
            self.sim_volumes[volume_number].active = None;
            self.sim_volumes[volume_number].shut_since.get_or_insert(now);
            let delay_ns = self.world_rng.between(1_000, 100_000_000);
            // A volume that is not created yet is not opened, but removed and created again.
            let sim_volume = &self.sim_volumes[volume_number];
            if sim_volume.made || sim_volume.removed.is_empty() {
                self.schedule_open(volume_number, delay_ns);
            } else if sim_volume.removal.is_none() {
                self.begin_removal(volume_number, delay_ns);
            }
        }
    }

    /// The connection of the active volume process to `node`.
    pub(super) fn peer_of(&self, client: ClientId, node: NodeIndex) -> Option<PeerId> {
        self.volumes.get(&client)?.links[usize::from(node.0)].peer
    }

    /// The volume serves, and reports, from present knowledge, that it is as whole as it can be.
    /// The fault model says how whole that is where faults stay.
    pub(super) fn is_whole(&self, client: ClientId) -> bool {
        let Some(health) = self.fresh_health(client) else { return false };
        // A node may have no room for a segment that the volume is about to store. The volume
        // misses the shard only when it has stored the segment.
        if health.unsealed > 0 {
            return false;
        }
        if self.fault_model.staying() == 0 {
            return health.whole;
        }
        let given_up = |(index, view): (u16, &NodeView)| {
            !self.fault_model.stays(NodeIndex(index)) || !view.up || view.shards == 0
        };
        let one_each = || health.missing == health.degraded;
        (health.missing == 0 || ((0u16..).zip(&health.nodes).all(given_up) && one_each()))
            && self.is_steady(client)
            && health.journal_whole
    }

    /// The volume serves, uses every node without a staying fault, rebuilds no shards, and has lost
    /// nothing.
    pub(super) fn is_steady(&self, client: ClientId) -> bool {
        let Some(health) = self.fresh_health(client) else { return false };
        self.are_used(&health) && !health.rebuilding && health.lost == 0
    }

    /// The volume serves, and uses every node without a staying fault.
    pub(super) fn uses_its_nodes(&self, client: ClientId) -> bool {
        self.fresh_health(client).is_some_and(|health| self.are_used(&health))
    }

    fn are_used(&self, health: &Health) -> bool {
        let used =
            |(index, view): (u16, &NodeView)| view.up || self.fault_model.stays(NodeIndex(index));
        (0u16..).zip(&health.nodes).all(used)
    }

    /// The report of a serving volume whose connections to nodes are sound wherever no fault stays.
    fn fresh_health(&self, client: ClientId) -> Option<Health> {
        let host = self.volumes.get(&client)?;
        let sound = |(index, link): (u16, &NodeLink)| {
            self.fault_model.stays(NodeIndex(index))
                || (link.life == self.nodes[usize::from(index)].life
                    && link.peer.is_some_and(|peer| self.network.is_sound(peer)))
        };
        let fresh = host.phase == VolumePhase::Serving && (0u16..).zip(&host.links).all(sound);
        fresh.then(|| host.device.store().health())
    }
}
