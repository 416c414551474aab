//! Replays: a stranger has read requests of a present writer, and sends them once more, byte by
//! byte, on a connection of its own.
//!
//! A capability is a bearer token, and the model of threats trusts the network not to be read
//! (docs/threat-model.md). So a node cannot tell such a request from one of the writer. The
//! condition shows what each class of requests does then. A run has replays of one class, so that
//! its failure names the class.
//!
//! A request to write or reserve, or a fence, on another connection looks as if the writer had come
//! back over that connection: the node refuses the writer's own connection from then on, and the
//! writer connects anew when it notices that. So a replay impairs the node until then, and the
//! fault model decides when it may come.

use std::collections::BTreeMap;

use fieldstone_node::PeerId;
use fieldstone_proto::{NodeIndex, Request};

use super::super::describe::brief_request;
use super::super::{Happening, World};
use super::recorded::Recorded;
use super::{STRANGER, Visit};
use crate::actor::Cast;
use crate::conditions::ReplayClass;
use crate::fault_model::Fault;
use crate::network::ClientId;
use crate::random::RandomStream;
use crate::scenario::Scenario;
use crate::trace::Who;

/// Requests that are kept at a time.
const KEPT: usize = 64;
/// Replays in a run.
const REPLAYS_MAX: u32 = 600;
/// The connection of a replay stays open for this long.
const STAY_NS: u64 = 20_000_000;

/// Requests of the present writers.
pub(super) struct Replays {
    rng: RandomStream,
    kept: Vec<Recorded>,
    made: u32,
    /// A writer that has yet to notice that its connection to a node is superseded.
    superseded: Option<Superseded>,
}

#[derive(Clone, Copy)]
struct Superseded {
    client: ClientId,
    node: NodeIndex,
    /// The connection.
    peer: Option<PeerId>,
}

impl Replays {
    pub fn new(scenario: &Scenario) -> Self {
        let rng = RandomStream::new(scenario.seed, "replays", 1);
        Self { rng, kept: Vec::new(), made: 0, superseded: None }
    }

    /// Keeps a request of the class. One in two replaces an older one.
    pub fn overhear(&mut self, class: ReplayClass, node: NodeIndex, request: &Request) {
        if ReplayClass::of(&request.body) != Some(class) {
            return;
        }
        let recorded = Recorded { node, request: request.clone() };
        if self.kept.len() < KEPT {
            self.kept.push(recorded);
        } else if self.rng.chance(500) {
            let place = self.rng.index(KEPT);
            self.kept[place] = recorded;
        }
    }
}

impl<C: Cast> World<'_, C> {
    pub(in super::super) fn schedule_replay(&mut self) {
        let Some(plan) = &self.scenario.conditions.replays else { return };
        let replays = &mut self.stranger.replays;
        if replays.made < REPLAYS_MAX || replays.superseded.is_some() {
            let gap_ns = replays.rng.between(plan.gap_ns.0, plan.gap_ns.1);
            self.schedule.after(gap_ns, Happening::Replay);
        }
    }

    pub(in super::super) fn replay_due(&mut self) {
        self.schedule_replay();
        self.end_superseded();
        let waits = self.stranger.replays.superseded.is_some();
        if waits || !self.faults_active || self.disks_full_is_due() {
            return;
        }
        // Those of writers before the present ones are old.
        let present: Vec<(u128, u64)> = self
            .sim_volumes
            .iter()
            .filter(|sim_volume| sim_volume.removal.is_none())
            .map(|sim_volume| {
                let highest = sim_volume.epochs.iter().max().map_or(0, |epoch| epoch.0);
                (sim_volume.volume.0, highest)
            })
            .collect();
        let replays = &mut self.stranger.replays;
        replays.kept.retain(|recorded| {
            let is_present = |(volume, highest): &(u128, u64)| {
                *volume == recorded.volume().0 && recorded.epoch().0 > *highest
            };
            present.iter().any(is_present)
        });
        if replays.kept.is_empty() {
            return;
        }
        let recorded = replays.kept[replays.rng.index(replays.kept.len())].clone();
        let node = recorded.node;
        let runs = self.nodes[usize::from(node.0)].process.is_some();
        let supersedes = self
            .scenario
            .conditions
            .replays
            .as_ref()
            .is_some_and(|plan| !matches!(plan.class, ReplayClass::Reads | ReplayClass::Roots));
        if !runs || (supersedes && !self.may_strike(Fault::ConnectionLoss, node)) {
            return;
        }
        let of_volume = self.sim_volumes.iter().find(|known| known.volume == recorded.volume());
        if supersedes && let Some(client) = of_volume.and_then(|known| known.active) {
            let peer = self.peer_of(client, node);
            self.stranger.replays.superseded = Some(Superseded { client, node, peer });
            self.fault_model.begins(node);
        }
        self.stranger.replays.made += 1;
        self.send_again(node, recorded.request);
    }

    /// Notes that a writer has noticed that its connection is superseded. When no more faults come,
    /// the world does not wait for that.
    fn end_superseded(&mut self) {
        let Some(Superseded { client, node, peer }) = self.stranger.replays.superseded else {
            return;
        };
        let now = self.now();
        if self.peer_of(client, node) != peer || !self.faults_active {
            self.stranger.replays.superseded = None;
            self.fault_model.ends(node, now);
        }
    }

    fn send_again(&mut self, node: NodeIndex, request: Request) {
        let now = self.now();
        let peer = self.network.connect(STRANGER, node);
        let text = brief_request(&request).to_string();
        self.note(Who::World, "replay", request.tag.0, format_args!("{node} {} {text}", peer.0));
        self.stranger.count("replay");
        let visit = Visit { node, permitted: BTreeMap::new(), own: None, floods: false };
        self.stranger.visits.insert(peer, visit);
        self.network.send_request(now, peer, request);
        self.collect_frames();
        self.schedule.after(STAY_NS, Happening::Leave { peer });
    }
}
