//! The faults of a run: how they strike, within the bounds of the fault model, and how they end.

use fieldstone_node::FileId;
use fieldstone_proto::NodeIndex;
use fieldstone_volume::VolumePhase;

use super::wall_clock::Side;
use super::{FaultEnd, Happening, World};
use crate::actor::Cast;
use crate::disk::DiskFaults;
use crate::fault_model::Fault;
use crate::network::ClientId;
use crate::scenario::Kind;
use crate::trace::Who;

const MS: u64 = 1_000_000;
/// How long the links of a writer that may still write stay cut, at least.
const STALE_AGAIN_NS: u64 = 5 * MS;
/// Size of a page of a file.
const PAGE_BYTES: usize = 4096;
/// How often all processes may die before one has served: an opening has to succeed some time.
const STRIKES_BEFORE_SERVING_MAX: u32 = 4;
/// No process is killed while a volume has not served for longer than this. A volume may wait for
/// slots that its neighbours give back, and they have to serve for some seconds for that.
const SPARED_AFTER_NS: u64 = 60_000 * MS;

impl<C: Cast> World<'_, C> {
    pub(super) fn schedule_strike(&mut self) {
        if self.faults_active && self.scenario.fault_gap_ns > 0 {
            let delay_ns = self.fault_rng.around(self.scenario.fault_gap_ns);
            self.schedule.after(delay_ns, Happening::Strike);
        }
    }

    pub(super) fn strike_due(&mut self) {
        if !self.faults_active {
            return;
        }
        if self.disks_full_is_due() {
            return self.schedule_strike();
        }
        if let Some(fault) = self.scenario.fault_rates.pick(&mut self.fault_rng) {
            let node = NodeIndex(self.fault_rng.index(self.nodes.len()) as u16);
            let struck = match fault.impairs() {
                true => self.may_strike(fault, node) && self.strike_node(fault, node),
                false => self.strike_all(fault),
            };
            if struck {
                *self.injected.entry(fault).or_default() += 1;
            }
        }
        self.schedule_strike();
    }

    /// True when `fault` may strike `node`. If a fault stays on the node, no other fault replaces
    /// its files or ends the fault. While a staying fault waits for impaired nodes, no fault
    /// impairs others.
    pub(super) fn may_strike(&self, fault: Fault, node: NodeIndex) -> bool {
        let keeps_files = matches!(
            fault,
            Fault::NodeKill | Fault::NodePower | Fault::Partition | Fault::ConnectionLoss
        );
        self.fault_model.allows(fault, node)
            && (keeps_files || !self.fault_model.stays(node))
            && !self.staying_is_due()
    }

    /// A fault strikes a node. False if it finds nothing to strike.
    fn strike_node(&mut self, fault: Fault, node: NodeIndex) -> bool {
        let running = self.nodes[usize::from(node.0)].process.is_some();
        if !running && fault != Fault::NodePower {
            return false;
        }
        self.note(
            Who::Fault,
            fault.name(),
            u64::from(node.0),
            format_args!("{node}, impaired: {:?}", self.fault_model.impaired()),
        );
        let silent = self.fault_rng.chance(300);
        let away_ns = self.draw_ns(&[(1, 5), (5, 100), (300, 3000)]);
        if fault.destroys() {
            self.fault_model.destroys(node);
        }
        let host = &mut self.nodes[usize::from(node.0)];
        match fault {
            Fault::NodeKill => {
                host.disk.kill();
                self.stop_node(node, silent);
                self.recover_after(node, away_ns, FaultEnd::Start);
            }
            Fault::NodePower => {
                host.disk.power_loss();
                self.stop_node(node, silent);
                self.recover_after(node, away_ns, FaultEnd::Start);
            }
            Fault::NodeWipe => {
                self.stop_node(node, silent);
                self.replace_node(node);
                self.recover_after(node, away_ns, FaultEnd::Start);
            }
            Fault::NodeSlow => {
                host.slowness = self.fault_rng.between(5, 100);
                self.recover_after(node, away_ns, FaultEnd::Speed);
            }
            Fault::Partition => return self.partition(node, away_ns),
            Fault::ConnectionLoss => return self.lose_connections(node),
            Fault::BitFlip => return self.flip_bit(node, away_ns),
            Fault::DiskErrors => {
                let rng = &mut self.fault_rng;
                host.disk.faults = DiskFaults {
                    read_error_per_mille: rng.pick(&[0, 20, 500]),
                    write_error_per_mille: rng.pick(&[0, 20, 500]),
                    sync_error_per_mille: rng.pick(&[0, 100, 1000]),
                    ..DiskFaults::default()
                };
                self.recover_after(node, away_ns, FaultEnd::Disk);
            }
            Fault::DiskFull => {
                host.disk.faults.full = true;
                self.recover_after(node, away_ns, FaultEnd::Disk);
            }
            _ => return false,
        }
        true
    }

    /// Silences the links between the struck volumes and `node` for a while.
    fn partition(&mut self, node: NodeIndex, away_ns: u64) -> bool {
        let clients = self.draw_clients();
        for client in &clients {
            self.network.partition(*client, node);
            self.recover_after(node, away_ns, FaultEnd::Link(*client));
        }
        !clients.is_empty()
    }

    fn lose_connections(&mut self, node: NodeIndex) -> bool {
        let clients = self.draw_clients();
        let peers = clients.into_iter().filter_map(|client| self.peer_of(client, node));
        let peers: Vec<_> = peers.collect();
        let now = self.now();
        for peer in &peers {
            self.fault_model.begins(node);
            self.network.lose(now, *peer);
            self.fault_model.ends(node, now);
        }
        !peers.is_empty()
    }

    /// The active processes of the volumes that a fault strikes.
    fn draw_clients(&mut self) -> Vec<ClientId> {
        let victims = self.draw_victims().into_iter();
        victims.filter_map(|volume_number| self.sim_volumes[volume_number].active).collect()
    }

    fn draw_ns(&mut self, ranges_ms: &[(u64, u64)]) -> u64 {
        let (low, high) = self.fault_rng.pick(ranges_ms);
        self.fault_rng.between(low * MS, high * MS)
    }

    pub(super) fn recover_after(&mut self, node: NodeIndex, delay_ns: u64, what: FaultEnd) {
        self.fault_model.begins(node);
        self.schedule.after(delay_ns, Happening::Recover { node, what });
    }

    fn replace_node(&mut self, node: NodeIndex) {
        let incarnation = self.world_rng.word();
        let host = &mut self.nodes[usize::from(node.0)];
        host.disk.wipe();
        (host.flipped, host.unsure, host.unread) = (false, false, false);
        host.incarnation = incarnation;
        self.forget_epochs(node);
    }

    fn flip_bit(&mut self, node: NodeIndex, away_ns: u64) -> bool {
        let disk = &mut self.nodes[usize::from(node.0)].disk;
        let files = disk.files();
        if files.is_empty() {
            return false;
        }
        let mut file = FileId::Data;
        if self.fault_rng.chance(300) {
            file = files[self.fault_rng.index(files.len())];
        }
        // A node with a damaged record is lost, now or at its next start. In a scenario *beyond*
        // more nodes may be away than the code survives, so the data written meanwhile may need
        // exactly this node.
        if self.scenario.kind == Kind::Beyond {
            file = FileId::Data;
        }
        let Some(at) = disk.flip_bit(file, PAGE_BYTES) else { return false };
        self.note(Who::Fault, "flipped", at, format_args!("{node} {file:?} byte {at}"));
        if file == FileId::Data {
            self.fault_model.needs_scrub(node);
            // A scrub that is under way may already have passed the place.
            self.forget_scrubs();
        } else {
            self.nodes[usize::from(node.0)].flipped = true;
            self.recover_after(node, away_ns, FaultEnd::Replace);
        }
        true
    }

    /// A fault strikes volume processes, or every process. False if it finds nothing to strike.
    fn strike_all(&mut self, fault: Fault) -> bool {
        let mut victims = match fault {
            Fault::KillAll | Fault::PowerAll => self.volume_numbers().collect(),
            _ => self.draw_victims(),
        };
        let spared = |volume_number: &usize| {
            self.sim_volumes[*volume_number].strikes_since_serving >= STRIKES_BEFORE_SERVING_MAX
        };
        let now = self.now();
        let is_shut_for_long = |volume_number: usize| {
            let since = self.sim_volumes[volume_number].shut_since;
            since.is_some_and(|at| now.since(at).0 > SPARED_AFTER_NS)
        };
        if victims.iter().any(spared) || self.volume_numbers().any(is_shut_for_long) {
            return false;
        }
        for volume_number in &victims {
            self.sim_volumes[*volume_number].strikes_since_serving += 1;
        }
        match fault {
            Fault::VolumeKill => victims.retain(|volume_number| self.strike_volume(*volume_number)),
            Fault::Usurp => victims.retain(|volume_number| self.usurp(*volume_number)),
            Fault::KillAll | Fault::PowerAll => self.strike_everything(fault),
            _ => return false,
        }
        !victims.is_empty()
    }

    fn strike_volume(&mut self, volume_number: usize) -> bool {
        let Some(client) = self.sim_volumes[volume_number].active else { return false };
        let name = Fault::VolumeKill.name();
        self.note(Who::Fault, name, 0, format_args!("v{}", client.0));
        self.kill_volume(client, "killed");
        true
    }

    fn strike_everything(&mut self, fault: Fault) {
        self.note(Who::Fault, fault.name(), 0, format_args!("everything"));
        if fault == Fault::PowerAll {
            for sim_volume in &mut self.sim_volumes {
                sim_volume.checker.power_lost();
                sim_volume.reserved.power_lost();
            }
        }
        let clients: Vec<_> = self.volumes.keys().copied().collect();
        for client in clients {
            self.kill_volume(client, "killed with everything");
        }
        for index in 0..self.nodes.len() {
            let node = NodeIndex(index as u16);
            match fault {
                Fault::PowerAll => self.nodes[index].disk.power_loss(),
                _ => self.nodes[index].disk.kill(),
            }
            self.stop_node(node, fault == Fault::PowerAll);
            let away_ns = self.draw_ns(&[(1, 3), (5, 300)]);
            self.fault_model.begins_for_all(node);
            self.schedule.after(away_ns, Happening::Recover { node, what: FaultEnd::Start });
        }
        for volume_number in self.volume_numbers() {
            self.schedule_open(volume_number, 0);
        }
    }

    /// A second volume process takes over while the first is alive, perhaps cut off.
    fn usurp(&mut self, volume_number: usize) -> bool {
        let Some(old) = self.sim_volumes[volume_number].active else { return false };
        if self.processes(volume_number) != 1 || self.volumes[&old].phase != VolumePhase::Serving {
            return false;
        }
        self.note(Who::Fault, Fault::Usurp.name(), 0, format_args!("v{} is succeeded", old.0));
        let lives_ns = self.draw_ns(&[(1, 20), (100, 2000)]);
        self.schedule.after(lives_ns, Happening::EndStale { client: old });
        self.sim_volumes[volume_number].stale_ops_left = self.fault_rng.between(0, 30) as u32;
        let nodes = (0..self.nodes.len()).map(|index| NodeIndex(index as u16));
        let cut: Vec<NodeIndex> = nodes.filter(|_| self.fault_rng.chance(500)).collect();
        // Until the first process is fenced it goes on, and stores nothing on nodes that it is cut
        // off from. For its data these nodes are impaired. If it is cut off from more nodes than it
        // can do without, it writes nothing. All of these links then come back at the same time,
        // when the process is fenced or dead: with only some of the links it would write.
        let counts = self.fault_model.allows_all(&cut);
        if counts || cut.len() > self.fault_model.impaired_max() {
            let delays: Vec<u64> =
                cut.iter().map(|_| self.fault_rng.between(1, lives_ns * 2)).collect();
            let longest_ns = delays.iter().copied().max().unwrap_or(0);
            for (node, delay_ns) in cut.into_iter().zip(delays) {
                self.network.partition(old, node);
                let delay_ns = if counts { delay_ns } else { longest_ns };
                if counts {
                    self.fault_model.begins(node);
                }
                let what = FaultEnd::StaleLink { client: old, counts };
                self.schedule.after(delay_ns, Happening::Recover { node, what });
            }
        }
        self.start_volume(volume_number, true);
        true
    }

    /// The process has a successor, but perhaps no node knows it yet.
    fn may_still_write(&self, stale: ClientId) -> bool {
        let Some(host) = self.volumes.get(&stale) else { return false };
        let active = self.sim_volumes[host.volume_number]
            .active
            .and_then(|active| self.volumes.get(&active));
        active.is_none_or(|active| active.phase != VolumePhase::Serving)
    }

    pub(super) fn recover_due(&mut self, node: NodeIndex, what: FaultEnd) {
        if let FaultEnd::StaleLink { client, counts: false } = what
            && self.may_still_write(client)
        {
            return self.schedule.after(STALE_AGAIN_NS, Happening::Recover { node, what });
        }
        let mut over_at = self.now();
        self.note(Who::World, "recover", u64::from(node.0), format_args!("{node} {what:?}"));
        let host = &mut self.nodes[usize::from(node.0)];
        match what {
            FaultEnd::Start => self.start_node(node),
            FaultEnd::OldKeys => {
                host.old_copy = false;
                self.tell_keys_due(Side::Node(node));
            }
            FaultEnd::Speed => {
                host.slowness = 1;
                // Operations that the disk has begun keep their old duration.
                over_at = over_at.max(host.disk_busy_until);
            }
            FaultEnd::Link(client) | FaultEnd::StaleLink { client, .. } => {
                let lossy = self.fault_rng.chance(500);
                self.network.heal(over_at, client, node, lossy);
            }
            FaultEnd::Disk => {
                // A machine whose disk failed is rebooted: it does not trust data whose sync
                // failed. A process that restarted meanwhile may have trusted this data, as on
                // Linux.
                host.disk.faults = DiskFaults::default();
                host.disk.power_loss();
                self.forget_epochs(node);
                self.stop_node(node, false);
                self.recover_after(node, MS, FaultEnd::Start);
            }
            FaultEnd::Replace => {
                self.stop_node(node, false);
                self.replace_node(node);
                self.recover_after(node, MS, FaultEnd::Start);
            }
        }
        if !matches!(what, FaultEnd::StaleLink { counts: false, .. }) {
            self.fault_model.ends(node, over_at);
        }
    }
}
