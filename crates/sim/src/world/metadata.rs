//! The pool's metadata service, for runs whose volumes are those of clients: they have no secret of
//! the pool, and ask for their capabilities.
//!
//! The service answers within a time, and some questions are lost. It signs with the secrets that
//! the world has told the volume's process. A volume never lacks a capability because of that: it
//! asks when half of the lifetime is over.
//!
//! | fault            | what happens                                                          |
//! |------------------|-----------------------------------------------------------------------|
//! | `silent-service` | the service answers a volume no more until its capability has lapsed. |
//! |                  | The volume's requests may fail until it uses every node again. Every  |
//! |                  | node counts as impaired meanwhile, as when a volume misses a rotation |

use std::collections::BTreeSet;

use fieldstone_block::Nanos;
use fieldstone_proto::{Capability, Epoch, NodeIndex, Rights};
use fieldstone_volume::{Authority, VolumeEvent, VolumePhase, WallClock};

use super::rotation::Refused;
use super::wall_clock::Side;
use super::{Happening, World};
use crate::actor::{Cast, VolumeProcess};
use crate::network::ClientId;
use crate::random::RandomStream;
use crate::scenario::Scenario;
use crate::trace::Who;

/// The service.
pub(super) struct Service {
    rng: RandomStream,
    /// The last question of these volume processes was lost.
    lost: BTreeSet<ClientId>,
    /// The service does not answer this volume process.
    silent: Option<ClientId>,
    /// When it last began to answer again.
    answers_since: Nanos,
    clock: WallClock,
    /// How often it fell silent.
    pub silences: u64,
}

impl Service {
    pub fn new(scenario: &Scenario) -> Self {
        let rng = RandomStream::new(scenario.seed, "clients", 1);
        Self {
            rng,
            lost: BTreeSet::new(),
            silent: None,
            answers_since: Nanos(0),
            clock: WallClock::new(0),
            silences: 0,
        }
    }
}

impl Service {
    /// Since when it answers every volume; `None` while it does not.
    pub fn answers_since(&self) -> Option<Nanos> {
        self.silent.is_none().then_some(self.answers_since)
    }
}

impl<C: Cast> World<'_, C> {
    /// Volumes have no secret of the pool.
    pub(super) fn has_clients(&self) -> bool {
        self.scenario.conditions.service.is_some()
    }

    /// Who issues the capabilities of a volume process that starts.
    pub(super) fn authority(&self) -> Authority {
        match self.has_clients() {
            true => Authority::World,
            false => Authority::Secrets(self.secrets.file),
        }
    }

    /// A volume process wants a capability.
    pub(super) fn asked_for_capability(&mut self, client: ClientId, epoch: Epoch) {
        self.note(Who::Volume(client.0), "ask", epoch.0, format_args!("for a capability"));
        let Some(plan) = &self.scenario.conditions.service else { return };
        let service = &mut self.service;
        if service.silent == Some(client) {
            return;
        }
        let was_lost = service.lost.remove(&client);
        let is_lost = !was_lost && service.rng.chance(plan.lost_per_mille);
        if is_lost {
            service.lost.insert(client);
        } else {
            let delay_ns = service.rng.between(0, plan.delay_ns_max);
            self.schedule.after(delay_ns, Happening::Issue { client, epoch });
        }
    }

    /// The service answers.
    pub(super) fn issue_due(&mut self, client: ClientId, epoch: Epoch) {
        let Some(plan) = &self.scenario.conditions.service else { return };
        let lifetime_ns = plan.lifetime_ns;
        let Some(host) = self.volumes.get(&client) else { return };
        let (keys, volume_number) = (host.keys, host.volume_number);
        let (now, offset_ns) = (self.now(), self.wall_offset_ns(Side::Volume(client)));
        self.service.clock.set(now, offset_ns);
        let expires_ns = self.service.clock.for_issue(now).saturating_add(lifetime_ns);
        let volume = self.sim_volumes[volume_number].volume;
        let key = keys.derive(volume, epoch);
        let capability = Capability::issue(&key, volume, epoch, Rights::ALL, expires_ns);
        self.with_volume(client, |volume, now| {
            volume.handle(VolumeEvent::Issued { capability, lifetime_ns }, now);
        });
    }

    pub(super) fn schedule_silence(&mut self) {
        let plan = self.scenario.conditions.service.as_ref();
        if let Some((shortest_ns, longest_ns)) = plan.and_then(|plan| plan.silence_gap_ns) {
            let gap_ns = self.service.rng.between(shortest_ns, longest_ns);
            self.schedule.after(gap_ns, Happening::StrikeService);
        }
    }

    /// The service falls silent towards a volume, if no other fault is under way.
    pub(super) fn strike_service_due(&mut self) {
        self.schedule_silence();
        let Some(plan) = self.scenario.conditions.service.clone() else { return };
        if self.service.silent.is_some() || !self.is_sound() {
            return;
        }
        let volume_number = self.service.rng.index(self.sim_volumes.len());
        let Some(client) = self.sim_volumes[volume_number].active else { return };
        if self.volumes.get(&client).is_none_or(|host| host.phase != VolumePhase::Serving) {
            return;
        }
        self.service.silent = Some(client);
        self.service.silences += 1;
        self.sim_volumes[volume_number].refused = Refused::Now;
        for node in (0..self.scenario.nodes).map(NodeIndex) {
            self.fault_model.begins_for_all(node);
        }
        let silence_ns = self.service.rng.between(plan.lifetime_ns / 2, 2 * plan.lifetime_ns);
        self.note(Who::Fault, "silent-service", silence_ns, format_args!("v{}", client.0));
        self.schedule.after(silence_ns, Happening::EndSilence);
    }

    /// The service answers again, as soon as the volume asks once more.
    pub(super) fn end_silence_due(&mut self) {
        let Some(client) = self.service.silent.take() else { return };
        let now = self.now();
        self.service.answers_since = now;
        for node in (0..self.scenario.nodes).map(NodeIndex) {
            self.fault_model.ends(node, now);
        }
        let volume_number = self.volume_number_of(client);
        self.sim_volumes[volume_number].refused = Refused::Recovers { since: now };
    }
}
