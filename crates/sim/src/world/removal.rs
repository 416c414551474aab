//! In the middle of a run a volume is removed, and created again under another id.
//!
//! The user does the same as the command `volume rm`. No process serves the volume. The command
//! fences every node before it tells the first one to remove the volume. Then it tells them one
//! after another. If a node refuses, fails or dies meanwhile, or the command itself is killed, the
//! user gives the command again, until one command has removed the volume from every node. The
//! disks of some nodes fail while they erase.
//!
//! From then on no node holds a slot, a journal or a record of the volume, whatever happens later,
//! except a node that could not read a header at its start. If the creation of a volume fails, the
//! user removes it in the same way and creates it again.

use std::collections::BTreeSet;

use fieldstone_block::Nanos;
use fieldstone_node::{FileId, PeerId, SlotUse};
use fieldstone_proto::disk::SlotHeader;
use fieldstone_proto::{
    Capability, Epoch, NodeError, NodeIndex, PoolKeys, Request, RequestBody, Rights, Tag, VolumeId,
};

use super::{FaultEnd, Happening, World};
use crate::actor::{Cast, NodeProcess};
use crate::disk::{DiskFaults, View};
use crate::fault_model::Fault;
use crate::network::{Arrival, ClientId, Ends};
use crate::trace::Who;

/// How often the command checks whether it can reach a node.
const POLL_NS: u64 = 10_000_000;
/// Longest pause before the user gives the command again.
const AGAIN_NS_MAX: u64 = 300_000_000;
/// Commands that are killed after some of their answers, per thousand.
const KILLED_PER_MILLE: u32 = 200;
/// Nodes whose disk fails while they erase, per thousand.
const ERASE_ERRORS_PER_MILLE: u32 = 150;
/// The longest time that such a disk fails.
const AWAY_NS_MAX: u64 = 2_000_000_000;

/// The progress of a removal.
#[derive(Clone, Debug)]
pub(super) enum Removal {
    /// The command starts at this time.
    Due(Nanos),
    /// The command runs.
    Running(Command),
    /// The volume is gone from all nodes, and will be created again.
    Gone,
}

/// A command that removes a volume.
#[derive(Clone, Debug)]
pub(super) struct Command {
    client: ClientId,
    /// The secrets of the pool, as the command knows them.
    pub keys: PoolKeys,
    /// The connection to each node.
    peers: Vec<Option<PeerId>>,
    fenced: BTreeSet<NodeIndex>,
    removed: BTreeSet<NodeIndex>,
    /// The node that the command has told to remove the volume.
    asked: Option<NodeIndex>,
    /// The number of answers after which the command is killed.
    dies_after: Option<usize>,
}

impl<C: Cast> World<'_, C> {
    /// Begins to remove a volume, if that is due after the last request to it. It does not begin at
    /// a request that the script makes after the users have stopped: the script needs every volume.
    pub(super) fn remove_if_due(&mut self, volume_number: usize) {
        let sim_volume = &self.sim_volumes[volume_number];
        let due =
            self.users_active && sim_volume.share.removed_at_request == Some(sim_volume.requests);
        if due && sim_volume.removal.is_none() {
            self.begin_removal(volume_number, 0);
        }
    }

    pub(super) fn begin_removal(&mut self, volume_number: usize, delay_ns: u64) {
        let at = self.now().plus(Nanos(delay_ns));
        self.sim_volumes[volume_number].removal = Some(Removal::Due(at));
        self.check_again(volume_number);
    }

    /// Puts the next step of a removal on the schedule, if none is there.
    fn check_again(&mut self, volume_number: usize) {
        let sim_volume = &mut self.sim_volumes[volume_number];
        if sim_volume.removal.is_some() && !std::mem::replace(&mut sim_volume.removal_pending, true)
        {
            self.schedule.after(POLL_NS, Happening::Remove { volume_number });
        }
    }

    pub(super) fn remove_due(&mut self, volume_number: usize) {
        self.sim_volumes[volume_number].removal_pending = false;
        match &self.sim_volumes[volume_number].removal {
            Some(Removal::Due(at)) if *at <= self.now() => self.start_command(volume_number),
            Some(Removal::Running(_)) => self.go_on_removing(volume_number),
            Some(Removal::Gone) => self.make_again(volume_number),
            Some(Removal::Due(_)) | None => {}
        }
        self.check_again(volume_number);
    }

    fn start_command(&mut self, volume_number: usize) {
        let processes = self.volumes.iter().filter(|(_, host)| host.volume_number == volume_number);
        let clients: Vec<ClientId> = processes.map(|(client, _)| *client).collect();
        for client in clients {
            self.kill_volume(client, "its volume is removed");
        }
        let client = ClientId(self.owners.len() as u32);
        self.owners.push(volume_number);
        let rng = &mut self.sim_volumes[volume_number].removal_rng;
        let killed = rng.chance(KILLED_PER_MILLE);
        let answers = rng.between(1, 2 * self.nodes.len() as u64) as usize;
        self.note(Who::Volume(client.0), "remove", 0, format_args!("volume {volume_number}"));
        self.sim_volumes[volume_number].removal = Some(Removal::Running(Command {
            client,
            keys: self.secrets.file,
            peers: vec![None; self.nodes.len()],
            fenced: BTreeSet::new(),
            removed: BTreeSet::new(),
            asked: None,
            dies_after: killed.then_some(answers),
        }));
        self.go_on_removing(volume_number);
    }

    /// Connects to the running nodes. When all are fenced, tells the next node to remove the
    /// volume.
    fn go_on_removing(&mut self, volume_number: usize) {
        let Some(Removal::Running(mut command)) = self.sim_volumes[volume_number].removal.take()
        else {
            return;
        };
        let wanted: Vec<NodeIndex> = self.nodes_without_permanent_fault().collect();
        for node in &wanted {
            let link = &mut command.peers[usize::from(node.0)];
            if link.is_none() && self.nodes[usize::from(node.0)].process.is_some() {
                let peer = self.network.connect(command.client, *node);
                *link = Some(peer);
                self.ask_to_forget(
                    volume_number,
                    (peer, command.keys),
                    RequestBody::Fence { takeover: false },
                );
            }
        }
        let fenced = wanted.iter().all(|node| command.fenced.contains(node));
        let next = wanted.iter().find(|node| !command.removed.contains(node)).copied();
        let waits = command.asked.is_some_and(|node| wanted.contains(&node));
        if fenced && let Some(node) = next.filter(|_| !waits) {
            command.asked = Some(node);
            self.inject_erase_errors(volume_number, node);
            if let Some(peer) = command.peers[usize::from(node.0)] {
                self.ask_to_forget(volume_number, (peer, command.keys), RequestBody::RemoveVolume);
            }
        }
        self.sim_volumes[volume_number].removal = Some(Removal::Running(command.clone()));
        if next.is_none() {
            let now = self.now();
            self.network.client_died(now, command.client);
            self.volume_is_gone(volume_number);
        }
    }

    /// Sometimes makes writes and syncs fail on a disk that is about to erase headers.
    fn inject_erase_errors(&mut self, volume_number: usize, node: NodeIndex) {
        let rng = &mut self.sim_volumes[volume_number].removal_rng;
        let (fails, away_ns) =
            (rng.chance(ERASE_ERRORS_PER_MILLE), rng.between(POLL_NS, AWAY_NS_MAX));
        let (write, sync) = (rng.pick(&[0, 100, 500]), rng.pick(&[0, 0, 500]));
        let allowed = self.faults_active && self.may_strike(Fault::DiskErrors, node);
        if !fails || !allowed {
            return;
        }
        self.note(Who::Fault, Fault::DiskErrors.name(), 0, format_args!("{node} as it erases"));
        *self.injected.entry(Fault::DiskErrors).or_default() += 1;
        self.nodes[usize::from(node.0)].disk.faults = DiskFaults {
            write_error_per_mille: write,
            sync_error_per_mille: sync,
            ..DiskFaults::default()
        };
        self.recover_after(node, away_ns, FaultEnd::Disk);
    }

    fn ask_to_forget(
        &mut self,
        volume_number: usize,
        (peer, keys): (PeerId, PoolKeys),
        body: RequestBody,
    ) {
        let now = self.now();
        let (volume, epoch) =
            (self.sim_volumes[volume_number].volume, self.sim_volumes[volume_number].removal_epoch);
        let key = keys.derive(volume, epoch);
        let capability = Capability::issue(&key, volume, epoch, Rights::ALL, u64::MAX);
        let request = Request { tag: Tag(1), capability, body, route: None, payload: Vec::new() };
        self.network.send_request(now, peer, request);
        self.collect_frames();
    }

    /// A frame arrives at a command that removes a volume. False if `ends` is no such command.
    pub(super) fn arrived_at_command(&mut self, ends: Ends, arrival: &Arrival) -> bool {
        let volume_number = self.volume_number_of(ends.client);
        let Some(Removal::Running(command)) = &mut self.sim_volumes[volume_number].removal else {
            return false;
        };
        if command.client != ends.client {
            return false;
        }
        let answer = match arrival {
            Arrival::Reply(reply) => reply.result.clone(),
            Arrival::Closed => Err(NodeError::Unreachable),
            Arrival::Request(_) => return true,
        };
        match &answer {
            Ok(_) if command.asked == Some(ends.node) => {
                command.removed.insert(ends.node);
                command.asked = None;
            }
            Ok(_) => {
                command.fenced.insert(ends.node);
            }
            Err(_) => {}
        }
        let answers = command.fenced.len() + command.removed.len();
        let killed = command.dies_after.is_some_and(|after| answers >= after);
        self.note(
            Who::Volume(ends.client.0),
            "answer",
            0,
            format_args!("{}: {answer:?}", ends.node),
        );
        match answer {
            Ok(_) if !killed => self.go_on_removing(volume_number),
            Err(_) if self.fault_model.stays(ends.node) => {}
            answer => self.remove_again(volume_number, answer.as_ref().err()),
        }
        true
    }

    /// The command failed, or was killed. The user gives it again.
    fn remove_again(&mut self, volume_number: usize, error: Option<&NodeError>) {
        let Some(Removal::Running(command)) = &self.sim_volumes[volume_number].removal else {
            return;
        };
        let (client, now) = (command.client, self.now());
        self.network.client_died(now, client);
        self.collect_frames();
        // The next command learns the epoch from the nodes.
        let sim_volume = &mut self.sim_volumes[volume_number];
        sim_volume.removal_epoch = match error {
            Some(NodeError::Fenced { current, .. } | NodeError::InUse { current }) => {
                Epoch(current.0.max(sim_volume.removal_epoch.0) + 1)
            }
            _ => Epoch(sim_volume.removal_epoch.0 + 1),
        };
        let pause_ns = sim_volume.removal_rng.between(POLL_NS, AGAIN_NS_MAX);
        sim_volume.removal = Some(Removal::Due(now.plus(Nanos(pause_ns))));
        self.note(
            Who::World,
            "remove",
            0,
            format_args!("volume {volume_number}: again: {error:?}"),
        );
    }

    /// Every node has answered that it has removed the volume.
    fn volume_is_gone(&mut self, volume_number: usize) {
        let sim_volume = &mut self.sim_volumes[volume_number];
        sim_volume.removal = Some(Removal::Gone);
        sim_volume.removed.push(sim_volume.volume);
        self.check_removed();
    }

    /// Creates the volume again, with its own id, when all nodes run.
    fn make_again(&mut self, volume_number: usize) {
        let away = |node: NodeIndex| self.nodes[usize::from(node.0)].process.is_none();
        if self.nodes_without_permanent_fault().any(away) {
            return;
        }
        self.note_removed(volume_number);
        let client = ClientId(self.owners.len() as u32);
        self.sim_volumes[volume_number].start_over(client);
        self.start_volume(volume_number, false);
    }

    /// The nodes without a fault that stays.
    pub(super) fn nodes_without_permanent_fault(&self) -> impl Iterator<Item = NodeIndex> {
        (0..self.scenario.nodes).map(NodeIndex).filter(|node| !self.fault_model.stays(*node))
    }

    /// Checks that no node holds data of a removed volume.
    pub(super) fn check_removed(&mut self) {
        let removed = self.sim_volumes.iter().flat_map(|sim_volume| &sim_volume.removed);
        let removed: BTreeSet<VolumeId> = removed.copied().collect();
        if removed.is_empty() {
            return;
        }
        let left = self.nodes_without_permanent_fault().find_map(|node| {
            self.left_on(node, &removed)
                .map(|what| format!("{node} has {what} of a removed volume"))
        });
        if let Some(text) = left {
            self.fail(text);
        }
    }

    /// Finds data of one of these volumes on `node`.
    fn left_on(&self, node: NodeIndex, removed: &BTreeSet<VolumeId>) -> Option<String> {
        let host = &self.nodes[usize::from(node.0)];
        let file = host.disk.files().into_iter().find(|file| match file {
            FileId::Volume(id) | FileId::Journal(id, _) => removed.contains(id),
            _ => false,
        });
        if let Some(file) = file {
            return Some(format!("the file {file:?}"));
        }
        if host.unread {
            return None;
        }
        let accounting =
            host.process.as_ref().and_then(NodeProcess::accounting).unwrap_or_default();
        let counts = |volume: &&fieldstone_node::VolumeAccounting| {
            let has = volume.known || volume.slots_held > 0 || volume.slots_reserved > 0;
            removed.contains(&volume.volume) && has
        };
        if let Some(volume) = accounting.volumes.iter().find(counts) {
            return Some(format!("{volume:?}"));
        }
        let shard = |usage: &SlotUse| match usage {
            SlotUse::Open(shard) | SlotUse::Complete(shard) | SlotUse::Sealing(shard) => {
                removed.contains(&shard.volume)
            }
            _ => false,
        };
        if let Some(slot) = accounting.slots.iter().position(shard) {
            return Some(format!("slot {slot}"));
        }
        for slot in 0..self.scenario.slots {
            for view in [View::Now, View::AfterPowerLoss] {
                let page =
                    host.disk.page(FileId::Slots, super::accounting::header_page(slot), view);
                let header = page.and_then(|page| SlotHeader::decode(&page).ok());
                let own = |header: &SlotHeader| header.incarnation == host.incarnation;
                if header.filter(own).is_some_and(|header| removed.contains(&header.volume)) {
                    return Some(format!("the header in slot {slot} ({view:?})"));
                }
            }
        }
        None
    }
}
