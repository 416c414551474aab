//! Hosts of node processes: each has a disk that outlives its processes.

use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_node::{
    DiskId, FileId, NodeAction, NodeConfig, NodeEvent, ParityMemory, PeerId, limits,
};
use fieldstone_proto::{Epoch, NodeIndex, PoolKeys, ReplyBody};

use super::describe::{brief_reply, brief_request};
use super::links::LinkEnd;
use super::wall_clock::Side;
use super::{Happening, World};
use crate::actor::{Cast, NodeProcess};
use crate::disk::SimDisk;
use crate::network::{Arrival, Ends};
use crate::random::RandomStream;
use crate::trace::Who;

/// A node: its place, its disk, and its process if it runs.
pub(super) struct NodeHost<N> {
    pub process: Option<N>,
    pub disk: SimDisk,
    /// Number of starts of the process.
    pub life: u64,
    /// The secrets that the process has, or had.
    pub keys: PoolKeys,
    /// The file with the secrets is an old copy.
    pub old_copy: bool,
    /// The process's links to other nodes.
    pub links: BTreeMap<LinkEnd, PeerId>,
    /// When its timer is due.
    pub timer: Option<Nanos>,
    pub incarnation: u64,
    /// How many times slower than usual the disk is.
    pub slowness: u64,
    /// The node's permanent faults.
    pub permanent_faults: PermanentFaults,
    /// Since the files were empty, a bit flipped in them, outside shard data.
    pub flipped: bool,
    /// Since the files were empty, a process died after a failed sync and before the note of it was
    /// on the disk: a power loss may bring back data that the sync lost.
    pub unsure: bool,
    /// Since the files were empty, a process could not read a header at its start: the header may
    /// be left from a volume that was removed at that time.
    pub unread: bool,
    /// The life in which the world compared the accounting with the disk after the start.
    pub checked_life: u64,
    /// Failed operations of its disk when the process started.
    pub errors_before: u64,
    /// Failed syncs at that time.
    pub syncs_failed_before: u64,
    /// The end of the last of the disk's operations under way.
    pub disk_busy_until: Nanos,
}

/// Actions of a node at one moment after which it counts as spinning.
const ACTIONS_MAX: u32 = 100_000;

/// The permanent faults of a node, which last to the end of the run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PermanentFaults {
    /// The additional duration of each operation of its disk.
    pub delay_ns: u64,
    /// Its process does no more work.
    pub silent: bool,
}

impl<C: Cast> World<'_, C> {
    pub(super) fn add_node(&mut self, node: NodeIndex) {
        let rng = RandomStream::new(self.scenario.seed, "disk", u64::from(node.0));
        let disk = SimDisk::new(rng, self.scenario.disk, u64::MAX);
        let incarnation = self.world_rng.word();
        self.nodes.push(NodeHost {
            process: None,
            disk,
            life: 0,
            keys: self.secrets.file,
            old_copy: false,
            links: BTreeMap::new(),
            timer: None,
            incarnation,
            slowness: 1,
            permanent_faults: PermanentFaults::default(),
            flipped: false,
            unsure: false,
            unread: false,
            checked_life: 0,
            errors_before: 0,
            syncs_failed_before: 0,
            disk_busy_until: Nanos(0),
        });
        self.start_node(node);
    }

    pub(super) fn start_node(&mut self, node: NodeIndex) {
        let now = self.now();
        if self.nodes[usize::from(node.0)].process.is_some() {
            return;
        }
        let keys = self.read_keys(node);
        let offset_ns = self.wall_offset_ns(Side::Node(node));
        let host = &mut self.nodes[usize::from(node.0)];
        let config = NodeConfig {
            pool: Self::pool(),
            node,
            incarnation: host.incarnation,
            keys,
            slot_bytes: self.scenario.slot_bytes(),
            slots: self.scenario.slots,
            verify_payload: false,
            piece_bytes: self.scenario.conditions.piece_bytes.unwrap_or(limits::PIECE_BYTES),
            parity_memory: ParityMemory::new(2 * self.scenario.accumulator_bytes),
        };
        host.life += 1;
        host.errors_before = host.disk.errors_injected;
        host.syncs_failed_before = host.disk.syncs_failed;
        let mut process = self.cast.node(config, now);
        process.handle(NodeEvent::WallClock { offset_ns }, now);
        self.limit_requests(&mut process);
        let host = &mut self.nodes[usize::from(node.0)];
        host.process = Some(process);
        let life = host.life;
        self.note(Who::Node(node.0), "start", life, format_args!("life {life}"));
        self.network.node_is_back(now, node);
        self.pump_node(node);
    }

    /// The process dies. The caller decides how this leaves the disk.
    pub(super) fn stop_node(&mut self, node: NodeIndex, silent: bool) -> bool {
        let host = &mut self.nodes[usize::from(node.0)];
        if host.process.take().is_none() {
            return false;
        }
        host.life += 1;
        let failed = host.disk.syncs_failed > host.syncs_failed_before;
        host.unsure |= failed && !host.disk.files().contains(&FileId::Doubt);
        let now = self.now();
        self.network.node_died(now, node, silent);
        self.links_died(node);
        self.note(Who::Node(node.0), "dead", u64::from(silent), format_args!("silent {silent}"));
        true
    }

    pub(super) fn arrived_at_node(&mut self, ends: Ends, arrival: Arrival) {
        let who = Who::Node(ends.node.0);
        let event = match arrival {
            Arrival::Request(request) => {
                self.note(who, "recv", request.tag.0, format_args!("{}", brief_request(&request)));
                NodeEvent::Request { peer: ends.peer, request }
            }
            Arrival::Closed => {
                self.note(who, "lost", ends.peer.0, format_args!("connection {}", ends.peer.0));
                NodeEvent::PeerLost { peer: ends.peer }
            }
            Arrival::Reply(_) => return,
        };
        let now = self.now();
        let host = &mut self.nodes[usize::from(ends.node.0)];
        if let Some(process) = host.process.as_mut().filter(|_| !host.permanent_faults.silent) {
            process.handle(event, now);
            self.pump_node(ends.node);
        }
    }

    pub(super) fn disk_due(&mut self, node: NodeIndex, life: u64, id: DiskId) {
        let now = self.now();
        let host = &mut self.nodes[usize::from(node.0)];
        if host.life != life {
            return;
        }
        let Some(result) = host.disk.complete(id) else { return };
        if let Err(error) = &result {
            let at = self.schedule.now();
            let key = id.0;
            self.trace.line(at, Who::Node(node.0), "diskerr", key, format_args!("#{key} {error}"));
        }
        if let Some(process) = host.process.as_mut().filter(|_| !host.permanent_faults.silent) {
            process.handle(NodeEvent::Disk { id, result }, now);
            self.pump_node(node);
            self.check_started(node);
        }
    }

    pub(super) fn pump_node(&mut self, node: NodeIndex) {
        let who = Who::Node(node.0);
        for round in 0.. {
            if round == ACTIONS_MAX {
                return self.fail(format!("{node} spins"));
            }
            let host = &mut self.nodes[usize::from(node.0)];
            let life = host.life;
            let Some(action) = host.process.as_mut().and_then(NodeProcess::next_action) else {
                return self.arm_node_timer(node);
            };
            match action {
                NodeAction::Disk { id, op } => {
                    let text = self.trace.is_written().then(|| super::describe::brief_disk(&op));
                    let slowness = host.slowness;
                    let delay_ns =
                        host.disk.submit(id, op) * slowness + host.permanent_faults.delay_ns;
                    let ends_at = self.schedule.now().plus(Nanos(delay_ns));
                    host.disk_busy_until = host.disk_busy_until.max(ends_at);
                    self.schedule.after(delay_ns, Happening::Disk { node, life, id });
                    let text = text.unwrap_or_default();
                    self.note(who, "disk", id.0, format_args!("#{} {text}", id.0));
                }
                NodeAction::Relay { to, request } => self.relay(node, &to, request),
                NodeAction::CloseLink { to } => self.close_link(node, &to),
                NodeAction::Reply { peer, reply } => {
                    self.note(who, "reply", reply.tag.0, format_args!("{}", brief_reply(&reply)));
                    if let Ok(ReplyBody::VolumeState(state)) = &reply.result {
                        self.check_epoch(node, peer, state.epoch_before);
                    }
                    let now = self.now();
                    self.network.send_reply(now, peer, reply);
                }
            }
        }
    }

    /// Checks that a node's epoch never falls, whatever happened to it, except a replacement or a
    /// fault that stays.
    fn check_epoch(&mut self, node: NodeIndex, peer: PeerId, epoch: Epoch) {
        if self.fault_model.stays(node) || self.is_of_stranger(peer) {
            return;
        }
        let Some(client) = self.network.client_of(peer) else { return };
        let volume_number = self.volume_number_of(client);
        let known = std::mem::replace(
            &mut self.sim_volumes[volume_number].epochs[usize::from(node.0)],
            epoch,
        );
        // A node that has removed the volume begins anew.
        if epoch < known && self.sim_volumes[volume_number].removal.is_none() {
            self.fail(format!(
                "{node} fell back from epoch {known} to {epoch} of volume {volume_number}"
            ));
        }
    }

    /// Forgets the known epochs of `node`, because its files have changed.
    pub(super) fn forget_epochs(&mut self, node: NodeIndex) {
        for sim_volume in &mut self.sim_volumes {
            sim_volume.epochs[usize::from(node.0)] = Epoch(0);
        }
    }
}
