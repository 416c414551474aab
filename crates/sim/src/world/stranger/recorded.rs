//! Requests of writers that the stranger has read on their way to the nodes.

use std::collections::BTreeSet;

use fieldstone_proto::{Capability, Epoch, NodeIndex, Request, RequestBody, VolumeId};

use super::super::World;
use crate::actor::Cast;
use crate::random::RandomStream;

/// Requests that are kept at a time.
const KEPT: usize = 64;
/// Requests of a thousand that are kept.
const KEPT_PER_MILLE: u32 = 100;

/// A request as its writer sent it.
#[derive(Clone)]
pub(super) struct Recorded {
    /// The node to which it went.
    pub node: NodeIndex,
    pub request: Request,
}

impl Recorded {
    pub fn volume(&self) -> VolumeId {
        self.request.capability.volume
    }

    pub fn epoch(&self) -> Epoch {
        self.request.capability.epoch
    }
}

/// A choice of the requests of all writers.
#[derive(Default)]
pub(super) struct Recorder {
    kept: Vec<Recorded>,
    /// The epochs of writers that have renewed a node's record of a volume. The node answers with
    /// the epoch of this writer itself, and not with that of the one before.
    renewed: BTreeSet<(NodeIndex, VolumeId, Epoch)>,
}

impl Recorder {
    /// Keeps the request, or not. It replaces any other one.
    pub fn take(&mut self, rng: &mut RandomStream, node: NodeIndex, request: &Request) {
        let Capability { volume, epoch, .. } = request.capability;
        if request.body == RequestBody::RenewRecord {
            self.renewed.insert((node, volume, epoch));
        }
        if self.kept.len() < KEPT {
            self.kept.push(Recorded { node, request: request.clone() });
        } else if rng.chance(KEPT_PER_MILLE) {
            let place = rng.index(KEPT);
            self.kept[place] = Recorded { node, request: request.clone() };
        }
    }

    pub fn all(&self) -> &[Recorded] {
        &self.kept
    }
}

impl<C: Cast> World<'_, C> {
    /// A writer sends a request.
    pub(in super::super) fn overhear(&mut self, node: NodeIndex, request: &Request) {
        let conditions = &self.scenario.conditions;
        if conditions.stranger.is_some() {
            let stranger = &mut self.stranger;
            stranger.recorder.take(&mut stranger.rng, node, request);
        }
        if let Some(plan) = &conditions.replays {
            self.stranger.replays.overhear(plan.class, node, request);
        }
    }

    /// Requests to this node whose epoch is over there: a writer with a higher one has fenced it.
    /// Requests that ask for no epoch, and those that mend a node without one, are left out.
    pub(super) fn requests_of_the_past(&mut self, node: NodeIndex, count: usize) -> Vec<Request> {
        let host = &self.nodes[usize::from(node.0)];
        if host.flipped || self.fault_model.stays(node) {
            return Vec::new();
        }
        let needs_epoch = |body: &RequestBody| {
            !matches!(
                body,
                RequestBody::Identify
                    | RequestBody::Stat
                    | RequestBody::ListVolumes
                    | RequestBody::RenewRecord
            )
        };
        let is_past = |recorded: &&Recorded| {
            let of_volume = |sim_volume: &&super::super::sim_volume::SimVolume| {
                sim_volume.volume == recorded.volume() && sim_volume.removal.is_none()
            };
            let sim_volume = self.sim_volumes.iter().find(of_volume);
            let known = sim_volume.map_or(Epoch(0), |known| known.epochs[usize::from(node.0)]);
            let (volume, epoch) = (recorded.volume(), recorded.epoch());
            let is_over =
                epoch < known || !self.stranger.recorder.renewed.contains(&(node, volume, epoch));
            recorded.node == node
                && epoch <= known
                && is_over
                && needs_epoch(&recorded.request.body)
        };
        let past = self.stranger.recorder.all().iter().filter(is_past);
        let mut past: Vec<Request> = past.map(|recorded| recorded.request.clone()).collect();
        self.stranger.rng.shuffle(&mut past);
        past.truncate(count);
        for request in &mut past {
            // No two requests of a connection may have one tag.
            request.tag = self.next_tag_of_stranger();
        }
        past
    }
}
