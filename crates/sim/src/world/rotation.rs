//! The secrets of the pool, and the command that replaces them while users work.
//!
//! As in the product (`server/src/rotation`), the state is the content of one file. The command
//! makes one step of a rotation after another. Each process reads the file when it starts, and
//! learns of each step within the time of the plan. The command makes no step before every process
//! that runs has the step before, and before two such times have passed. It retires a secret when
//! the volumes have the answers to the requests that it signed, or earlier if the user demands
//! that. So no process is two steps behind, but for the two faults below. Rotations impair no node:
//! they may come at any time, in the middle of openings, takeovers and any fault. The command never
//! waits for longer than in the product.
//!
//! Two faults make a process late on purpose, for a bounded time:
//!
//! | fault           | what happens                                                           |
//! |-----------------|------------------------------------------------------------------------|
//! | `old-secret`    | a node that was down reads an old copy of the file when it starts. It  |
//! |                 | refuses what it does not know. The node is impaired, as by its death   |
//! | `missed-secret` | a process that serves a volume learns nothing of a whole rotation, and |
//! |                 | the command does not know of the process. Every node refuses the       |
//! |                 | volume's requests. They may fail until the process has the secrets and |
//! |                 | the volume uses every node again. Every node counts as impaired, as    |
//! |                 | when all disks are full, so that no other fault strikes a node         |
//!
//! No fault loses a write, and no request waits longer than with other faults.

use fieldstone_block::Nanos;
use fieldstone_proto::{MasterKey, NodeIndex, PoolKeys, Rotation};
use fieldstone_volume::{VolumeEvent, VolumePhase};

use super::nodes::NodeHost;
use super::removal::Removal;
use super::sim_volume::SimVolume;
use super::volumes::VolumeHost;
use super::wall_clock::Side;
use super::{FaultEnd, Happening, World};
use crate::actor::{Cast, NodeProcess, VolumeProcess};
use crate::fault_model::Fault;
use crate::network::ClientId;
use crate::random::RandomStream;
use crate::scenario::Scenario;
use crate::trace::Who;

/// How often the command looks at the processes in the time within which they learn of a step.
const LOOKS: u64 = 2;

/// The longest virtual time for which the command waits until it may make a step. In the product it
/// then reports what it waits for.
const STEP_NS_MAX: u64 = 30_000_000_000;

/// The longest virtual time until a volume that was refused uses every node again: the longest time
/// for which a process is late, and some attempts to connect.
const REFUSED_NS_MAX: u64 = 60_000_000_000;

/// The longest time until a client has a capability of a new secret: it may have to ask twice.
const RENEWAL_NS_MAX: u64 = 5_000_000_000;

/// A volume process that misses a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Missing {
    client: ClientId,
    /// The old secret is retired: every node refuses the process.
    refused: bool,
}

/// The secrets of the pool.
pub(super) struct Secrets {
    /// The content of the file.
    pub file: PoolKeys,
    /// The next step comes not before this.
    next_step: Nanos,
    /// The user demands the retirement.
    demanded: bool,
    missing: Option<Missing>,
    rng: RandomStream,
    /// Secrets retired so far.
    pub retired: u64,
    /// How often the faults of this module struck.
    pub old_copies: u64,
    pub missed: u64,
}

impl Secrets {
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            file: MasterKey([0x5e; 16]).into(),
            next_step: Nanos(0),
            demanded: false,
            missing: None,
            rng: RandomStream::new(scenario.seed, "keys", 1),
            retired: 0,
            old_copies: 0,
            missed: 0,
        }
    }
}

impl<C: Cast> World<'_, C> {
    /// Schedules the next look of the command.
    pub(super) fn schedule_rotation(&mut self) {
        if let Some(plan) = &self.scenario.conditions.keys {
            self.schedule.after(plan.watch_ns / LOOKS, Happening::Rotate);
        }
    }

    /// The command looks whether it may make the next step.
    pub(super) fn rotation_due(&mut self) {
        self.schedule_rotation();
        self.note_end_of_refusals();
        let Some(plan) = self.scenario.conditions.keys.clone() else { return };
        if self.now() < self.secrets.next_step {
            return;
        }
        if !self.may_step() {
            return self.check_wait();
        }
        let file = self.secrets.file;
        let rng = &mut self.secrets.rng;
        let pause_ns = 2 * plan.watch_ns + rng.between(plan.pause_ns.0, plan.pause_ns.1);
        let next = match file.rotation() {
            Rotation::Settled => {
                self.secrets.demanded = rng.chance(plan.demanded_per_mille);
                let word = u128::from(rng.word()) << 64 | u128::from(rng.word());
                let misses = rng.chance(plan.missed_per_mille);
                self.choose_missing(misses);
                file.stage(MasterKey(word.to_le_bytes()))
            }
            Rotation::Staged(_) => file.issue(),
            Rotation::Issuing(_) => {
                if !self.may_retire(plan.late_ns_max) {
                    return;
                }
                self.secrets.retired += 1;
                file.retire()
            }
        };
        self.secrets.file = next.expect("the step follows the last one");
        self.secrets.next_step = self.now().plus(Nanos(pause_ns));
        let (oldest, issuing) = (self.secrets.file.oldest().0, self.secrets.file.issuing().0);
        let key = u64::from(issuing.0);
        self.note(Who::World, "secret", key, format_args!("{issuing} signs, {oldest} counts"));
        let commands = self.volume_numbers().filter(|number| self.command_keys(*number).is_some());
        let commands: Vec<Side> = commands.map(Side::Command).collect();
        for side in self.running_sides().into_iter().chain(commands) {
            let delay_ns = self.secrets.rng.between(0, plan.watch_ns);
            self.schedule.after(delay_ns, Happening::TellKeys { side });
        }
    }

    /// The secrets of the command that removes a volume, if one runs.
    fn command_keys(&self, volume_number: usize) -> Option<PoolKeys> {
        match &self.sim_volumes[volume_number].removal {
            Some(Removal::Running(command)) => Some(command.keys),
            _ => None,
        }
    }

    /// Checks that the command does not wait for longer than in the product.
    fn check_wait(&mut self) {
        // It waits for a client that cannot hear of the new secret.
        let Some(heard) = self.service.answers_since() else { return };
        let waited = self.now().since(self.secrets.next_step.max(heard));
        if waited.0 > STEP_NS_MAX {
            let (file, state) = (self.secrets.file, self.describe_state());
            let generation = file.issuing().0;
            let uses = |(client, host): (&ClientId, &VolumeHost<C::Volume>)| {
                let (told, uses) = (host.keys == file, host.device.store().key_generation());
                format!("v{} uses {uses}, knows the step: {told}", client.0)
            };
            let volumes: Vec<String> = self.volumes.iter().map(uses).collect();
            let volumes = volumes.join(", ");
            self.fail(format!(
                "the step of a rotation after the one that made {generation} sign waits for more \
                 than {} s: {volumes}; {state}",
                STEP_NS_MAX / 1_000_000_000
            ));
        }
    }

    /// The command finds nothing that keeps the next step back.
    fn may_step(&self) -> bool {
        let file = &self.secrets.file;
        let retires = matches!(file.rotation(), Rotation::Issuing(_));
        let mut nodes = self.nodes.iter().filter(|host| host.process.is_some());
        // The retirement does not wait for nodes: they accept the new secret already.
        let node_is_ready = |host: &NodeHost<C::Node>| {
            host.keys == *file || host.permanent_faults.silent || (host.old_copy && retires)
        };
        // A user who demands the retirement waits until clients have new capabilities.
        let waited_ns = self.now().since(self.secrets.next_step).0;
        let renews = self.has_clients() && waited_ns < RENEWAL_NS_MAX;
        let waits = retires && (!self.secrets.demanded || renews);
        let volume_is_ready = |(client, host): (&ClientId, &VolumeHost<C::Volume>)| {
            let answered = || host.device.store().key_generation() >= file.issuing().0;
            self.misses_secrets(*client) || (host.keys == *file && (!waits || answered()))
        };
        let refused = self.secrets.missing.is_some_and(|missing| missing.refused);
        let mut commands = self.volume_numbers().filter_map(|number| self.command_keys(number));
        !refused
            && nodes.all(node_is_ready)
            && self.volumes.iter().all(volume_is_ready)
            && commands.all(|keys| keys == *file)
    }

    /// A process learns the content of the file.
    pub(super) fn tell_keys_due(&mut self, side: Side) {
        let file = self.secrets.file;
        match side {
            Side::Node(node) => {
                let host = &mut self.nodes[usize::from(node.0)];
                let deaf = host.permanent_faults.silent || host.old_copy;
                if let Some(process) = host.process.as_mut().filter(|_| !deaf) {
                    host.keys = file;
                    process.set_keys(file);
                    self.pump_node(node);
                }
            }
            Side::Volume(client) if self.misses_secrets(client) => {}
            Side::Volume(client) => {
                let has_secrets = !self.has_clients();
                self.with_host(client, |host, now| {
                    host.keys = file;
                    match has_secrets {
                        true => host.device.store_mut().set_keys(file),
                        false => host.device.store_mut().handle(VolumeEvent::Renew, now),
                    }
                });
            }
            Side::Command(volume_number) => {
                if let Some(Removal::Running(command)) =
                    &mut self.sim_volumes[volume_number].removal
                {
                    command.keys = file;
                }
            }
        }
    }

    fn misses_secrets(&self, client: ClientId) -> bool {
        self.secrets.missing.is_some_and(|missing| missing.client == client)
    }

    /// Whether a fault that no other fault may come on top of may strike now.
    pub(super) fn is_sound(&self) -> bool {
        self.faults_active
            && self.fault_model.impaired().is_empty()
            && self.staying.is_empty()
            && !self.disks_full_is_due()
            && self.all_serve()
    }

    /// The process that serves a volume may miss the rotation that begins.
    fn choose_missing(&mut self, misses: bool) {
        self.secrets.missing = None;
        if misses && self.is_sound() {
            let volume_number = self.secrets.rng.index(self.sim_volumes.len());
            let client = self.sim_volumes[volume_number].active;
            self.secrets.missing = client.map(|client| Missing { client, refused: false });
        }
    }

    /// Whether the old secret is retired now. If a process has missed the rotation, every node
    /// refuses it from now on. If another fault has come in between, the process learns the secrets
    /// first.
    fn may_retire(&mut self, late_ns_max: u64) -> bool {
        let Some(Missing { client, .. }) = self.secrets.missing else { return true };
        let serves = |host: &VolumeHost<C::Volume>| host.phase == VolumePhase::Serving;
        let active = self.sim_volumes[self.volume_number_of(client)].active == Some(client);
        if !active || !self.volumes.get(&client).is_some_and(serves) || !self.is_sound() {
            self.secrets.missing = None;
            self.tell_keys_due(Side::Volume(client));
            return false;
        }
        let volume_number = self.volume_number_of(client);
        self.secrets.missing = Some(Missing { client, refused: true });
        self.secrets.missed += 1;
        self.sim_volumes[volume_number].refused = Refused::Now;
        for node in (0..self.scenario.nodes).map(NodeIndex) {
            self.fault_model.begins_for_all(node);
        }
        let late_ns = self.secrets.rng.between(0, late_ns_max);
        self.note(Who::Fault, "missed-secret", late_ns, format_args!("v{}", client.0));
        self.schedule.after(late_ns, Happening::EndRefusals);
        true
    }

    /// The process that has missed a rotation learns the secrets.
    pub(super) fn end_refusals_due(&mut self) {
        let Some(Missing { client, refused: true }) = self.secrets.missing.take() else { return };
        let now = self.now();
        for node in (0..self.scenario.nodes).map(NodeIndex) {
            self.fault_model.ends(node, now);
        }
        let volume_number = self.volume_number_of(client);
        self.sim_volumes[volume_number].refused = Refused::Recovers { since: now };
        self.tell_keys_due(Side::Volume(client));
    }

    /// A volume whose process missed a rotation recovers until it uses every node again. It may
    /// still have refusals in hand that it has not acted upon, because it waits for the answers of
    /// other nodes as well: no longer than a node may take to answer.
    pub(super) fn note_end_of_refusals(&mut self) {
        let now = self.now();
        let longest_answer = Nanos::from_ms(self.scenario.node_timeout_ms);
        let accepted = self.secrets.file.oldest().0;
        // A client that was told of the new secret may not have a capability of it yet.
        let is_accepted = |client: ClientId| {
            let host = self.volumes.get(&client);
            host.is_some_and(|host| host.device.store().key_generation() >= accepted)
        };
        let renewed: Vec<bool> = self
            .volume_numbers()
            .map(|number| self.sim_volumes[number].active.is_some_and(is_accepted))
            .collect();
        for volume_number in self.volume_numbers() {
            let sim_volume = &self.sim_volumes[volume_number];
            if let Refused::Recovers { since } = sim_volume.refused
                && now > since.plus(longest_answer)
                && sim_volume.active.is_some_and(|active| self.uses_its_nodes(active))
                && renewed[volume_number]
            {
                self.sim_volumes[volume_number].refused = Refused::Until(now);
            }
        }
    }

    /// Waits until nodes refuse no volume any more.
    pub(super) fn outlast_refusals(&mut self) -> Option<()> {
        let refused =
            |volume: &SimVolume| matches!(volume.refused, Refused::Now | Refused::Recovers { .. });
        let service = self.scenario.conditions.service.as_ref();
        let limit_ns = REFUSED_NS_MAX + service.map_or(0, |plan| 2 * plan.lifetime_ns);
        self.until("volumes that were refused use every node", limit_ns, |world| {
            !world.sim_volumes.iter().any(refused)
        })
    }

    /// The secrets that a node reads as it starts. Sometimes they are an old copy.
    pub(super) fn read_keys(&mut self, node: NodeIndex) -> PoolKeys {
        let file = self.secrets.file;
        let host = &self.nodes[usize::from(node.0)];
        let (keys, old_copy) = (host.keys, host.old_copy);
        if old_copy {
            return keys;
        }
        let plan = self.scenario.conditions.keys.clone();
        if let Some(plan) = plan.filter(|_| keys != file)
            && self.faults_active
            && self.secrets.rng.chance(plan.old_copies_per_mille)
            && self.may_strike(Fault::NodeKill, node)
            && !self.fault_model.stays(node)
        {
            let late_ns = self.secrets.rng.between(0, plan.late_ns_max);
            self.note(Who::Fault, "old-secret", late_ns, format_args!("{node}"));
            self.secrets.old_copies += 1;
            self.nodes[usize::from(node.0)].old_copy = true;
            self.recover_after(node, late_ns, FaultEnd::OldKeys);
            return keys;
        }
        self.nodes[usize::from(node.0)].keys = file;
        file
    }
}

/// Whether the nodes refuse the requests of a volume whose process missed a rotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Refused {
    /// They never did.
    #[default]
    Never,
    /// They do.
    Now,
    /// They do not any more, but the volume may not have acted upon each refusal yet, or does not
    /// use every node again.
    Recovers {
        /// When the refusals ended.
        since: Nanos,
    },
    /// They did. The volume used every node again at this time.
    Until(Nanos),
}

impl Refused {
    /// Requests that were made at `at` or later may have failed for it.
    pub fn was_since(self, at: Nanos) -> bool {
        match self {
            Self::Never => false,
            Self::Now | Self::Recovers { .. } => true,
            Self::Until(until) => until >= at,
        }
    }
}
