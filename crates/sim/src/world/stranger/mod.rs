//! A stranger on the nodes' network, in a part of the runs. It speaks to the nodes on connections
//! of its own, and nothing that it does may lose a byte, keep an entry of a node's table, or make a
//! request of a user fail.
//!
//! The stranger *visits* a node: it connects, sends some requests, and leaves after a while. It
//! stays while some requests are unfinished. The kinds of visits:
//!
//! | visit     | requests                                                  | answers of the node    |
//! |-----------|-----------------------------------------------------------|------------------------|
//! | `refused` | of every class, most of them recorded from a writer, with | errors only            |
//! |           | a capability that is wrong (see `requests`)               |                        |
//! | `old`     | recorded from a writer whose epoch is over on this node,  | errors only            |
//! |           | byte by byte                                              |                        |
//! | `tenant`  | with capabilities for a volume of the stranger's own:     | no data and no shards  |
//! |           | a fence, names of the others' shards and journals, and    | of others, no names of |
//! |           | some writes whose payload never comes, in every form      | their volumes          |
//! | `flood`   | such writes, more of them than the node's table has room  | `Busy` to all who come |
//! |           | for                                                       | then                   |
//!
//! A flood impairs the node: a journal moves away from a node that is busy for long. So the fault
//! model decides when a flood may come. The other visits come at any time, in the middle of every
//! fault.
//!
//! At the end of the run, when the stranger has left, no node without a staying fault has an entry
//! in its table, and all memory that it keeps for requests is free.
//!
//! With the condition `replays` there is also a stranger that has read requests of the present
//! writers, and sends them once more (`replays`).

mod recorded;
mod replays;
mod requests;

use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_node::PeerId;
use fieldstone_proto::{
    Capability, Epoch, NodeError, NodeIndex, Reply, ReplyBody, Request, RequestBody, Tag, VolumeId,
};

use super::describe::brief_request;
use super::{Happening, World};
use crate::actor::{Cast, NodeProcess};
use crate::fault_model::Fault;
use crate::network::{Arrival, ClientId, Ends, NetworkSpeed};
use crate::random::RandomStream;
use crate::scenario::Scenario;
use crate::trace::Who;
use recorded::Recorder;
use replays::Replays;

const MS: u64 = 1_000_000;
/// The stranger's number among clients: above those of volume processes, below those of nodes.
const STRANGER: ClientId = ClientId(u32::MAX - (1 << 20));
/// The stranger's volumes. It takes each anew with every visit.
const OWN_VOLUMES: [VolumeId; 2] = [VolumeId(0x57a6_0001), VolumeId(0x57a6_0002)];
/// Requests of a flood beyond those that the table has room for.
const FLOOD_EXCESS: usize = 32;
/// Longest time that a flood keeps a table full.
const FLOOD_NS_MAX: u64 = 3_000 * MS;
/// How many times longer than usual the network takes at most ([`RandomStream::around`]).
const LATEST: u64 = 16;
/// Longest time from the stranger's last leave until no node has a request of anybody: a node waits
/// for others for ten seconds at most.
const LEFT_NS_MAX: u64 = 60_000 * MS;

/// What the answer to a request of the stranger may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permitted {
    /// An error.
    Error,
    /// Anything that shows nothing of other volumes. `VolumeId` is the stranger's.
    OwnOnly(VolumeId),
}

/// A visit of a node.
struct Visit {
    node: NodeIndex,
    /// Unanswered requests.
    permitted: BTreeMap<Tag, Permitted>,
    /// The volume that the stranger has taken, and the capability for it.
    own: Option<Capability>,
    floods: bool,
}

/// The stranger.
pub(super) struct Stranger {
    rng: RandomStream,
    recorder: Recorder,
    visits: BTreeMap<PeerId, Visit>,
    visits_made: u32,
    /// It has left for good.
    is_gone: bool,
    next_tag: u64,
    /// The epoch of the last volume that it has taken.
    own_epoch: u64,
    replays: Replays,
    /// What happened, and how often.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Stranger {
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            rng: RandomStream::new(scenario.seed, "stranger", 1),
            recorder: Recorder::default(),
            visits: BTreeMap::new(),
            visits_made: 0,
            is_gone: false,
            next_tag: 0,
            own_epoch: 0,
            replays: Replays::new(scenario),
            counts: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
}

impl<C: Cast> World<'_, C> {
    /// The node takes fewer requests at a time, if the run's tables are small.
    pub(super) fn limit_requests(&self, process: &mut C::Node) {
        if let Some(plan) = &self.scenario.conditions.stranger {
            process.limit_requests(plan.requests_max);
        }
    }

    pub(super) fn schedule_visit(&mut self) {
        let Some(plan) = &self.scenario.conditions.stranger else { return };
        let gap_ns = self.stranger.rng.between(plan.gap_ns.0, plan.gap_ns.1);
        if self.stranger.visits_made < plan.visits_max && !self.stranger.is_gone {
            self.schedule.after(gap_ns, Happening::Visit);
        }
    }

    /// The stranger visits a node, if the node runs.
    pub(super) fn visit_due(&mut self) {
        self.schedule_visit();
        let Some(plan) = self.scenario.conditions.stranger.clone() else { return };
        if self.stranger.is_gone {
            return;
        }
        self.stranger.visits_made += 1;
        let node = NodeIndex(self.stranger.rng.index(self.nodes.len()) as u16);
        if self.nodes[usize::from(node.0)].process.is_none() {
            return;
        }
        let rng = &mut self.stranger.rng;
        let floods = rng.chance(plan.floods_per_mille) && self.may_flood(node);
        let kind = self.stranger.rng.index(4);
        let mut hang_ns = self.stranger.rng.between(0, plan.hang_ns_max);
        let peer = self.network.connect(STRANGER, node);
        let visit = Visit { node, permitted: BTreeMap::new(), own: None, floods };
        self.stranger.visits.insert(peer, visit);
        if floods {
            hang_ns = hang_ns.min(FLOOD_NS_MAX);
            self.fault_model.begins(node);
            self.be_a_tenant(peer, plan.requests_max + FLOOD_EXCESS);
        } else {
            let count = self.stranger.rng.between(1, 6) as usize;
            match kind {
                0 => self.be_a_tenant(peer, count),
                1 => self.send_old(peer, count),
                _ => self.send_wrong(peer, count),
            }
        }
        self.collect_frames();
        self.schedule.after(hang_ns, Happening::Leave { peer });
    }

    fn may_flood(&self, node: NodeIndex) -> bool {
        self.faults_active
            && !self.disks_full_is_due()
            && self.may_strike(Fault::ConnectionLoss, node)
    }

    /// Sends requests with wrong capabilities.
    fn send_wrong(&mut self, peer: PeerId, count: usize) {
        for _ in 0..count {
            if let Some(request) = self.wrong_request(peer) {
                self.send_as_stranger(peer, request, Permitted::Error, "stranger-refused");
            }
        }
    }

    /// Sends requests of writers whose epoch is over on this node.
    fn send_old(&mut self, peer: PeerId, count: usize) {
        let node = self.stranger.visits[&peer].node;
        for request in self.requests_of_the_past(node, count) {
            self.send_as_stranger(peer, request, Permitted::Error, "stranger-old");
        }
    }

    /// Takes a volume of its own on the node, looks for those of others with it, and sends `count`
    /// writes whose payload does not come.
    fn be_a_tenant(&mut self, peer: PeerId, count: usize) {
        self.stranger.own_epoch += 1;
        let (volume, epoch) =
            (self.stranger.rng.pick(&OWN_VOLUMES), Epoch(self.stranger.own_epoch));
        let capability = self.own_capability(volume, epoch);
        if let Some(visit) = self.stranger.visits.get_mut(&peer) {
            visit.own = Some(capability);
        }
        let permitted = Permitted::OwnOnly(volume);
        let fence = RequestBody::Fence { takeover: true };
        self.send_own(peer, capability, fence, permitted);
        for body in self.looks_for_others() {
            // A node that has no such shard has nothing to remove.
            let permitted = match body {
                RequestBody::ShardRead { .. }
                | RequestBody::ShardVerify { .. }
                | RequestBody::JournalRead { .. }
                | RequestBody::JournalSync { .. } => Permitted::Error,
                _ => permitted,
            };
            self.send_own(peer, capability, body, permitted);
        }
        let floods = self.stranger.visits[&peer].floods;
        for _ in 0..count {
            for request in self.unfinished_write(peer, capability) {
                let what = if floods { "stranger-flood" } else { "stranger-hang" };
                self.send_as_stranger(peer, request, Permitted::Error, what);
            }
        }
    }

    fn send_own(
        &mut self,
        peer: PeerId,
        capability: Capability,
        body: RequestBody,
        permitted: Permitted,
    ) {
        let tag = self.next_tag_of_stranger();
        let request = Request { tag, capability, body, route: None, payload: Vec::new() };
        self.send_as_stranger(peer, request, permitted, "stranger-own");
    }

    fn next_tag_of_stranger(&mut self) -> Tag {
        self.stranger.next_tag += 1;
        Tag(self.stranger.next_tag)
    }

    /// Sends a request, and notes what its answer may be.
    fn send_as_stranger(
        &mut self,
        peer: PeerId,
        request: Request,
        permitted: Permitted,
        what: &'static str,
    ) {
        let (now, tag) = (self.now(), request.tag);
        let text = brief_request(&request).to_string();
        self.note(Who::World, "stranger", tag.0, format_args!("{what} {} {text}", peer.0));
        self.stranger.count(what);
        if request.has_answer()
            && let Some(visit) = self.stranger.visits.get_mut(&peer)
        {
            visit.permitted.insert(tag, permitted);
        }
        self.network.send_request(now, peer, request);
    }

    /// A frame arrives at the stranger. False if `ends` is none of its connections.
    pub(super) fn arrived_at_stranger(&mut self, ends: Ends, arrival: &Arrival) -> bool {
        if ends.client != STRANGER {
            return false;
        }
        match arrival {
            Arrival::Reply(reply) => self.stranger_is_told(ends, reply),
            Arrival::Closed => self.visit_ends(ends.peer),
            Arrival::Request(_) => {}
        }
        true
    }

    fn stranger_is_told(&mut self, ends: Ends, reply: &Reply) {
        let visit = self.stranger.visits.get_mut(&ends.peer);
        let Some(permitted) = visit.and_then(|visit| visit.permitted.remove(&reply.tag)) else {
            return;
        };
        let is_permitted = match permitted {
            Permitted::Error => shows_failure(&reply.result),
            Permitted::OwnOnly(own) => shows_only(&reply.result, own),
        };
        if !is_permitted {
            let (tag, result) = (reply.tag.0, &reply.result);
            return self.fail(format!("{} answers #{tag} of a stranger: {result:?}", ends.node));
        }
        if reply.result == Err(NodeError::Busy) {
            self.stranger.count("stranger-denied");
        }
    }

    /// The stranger leaves a node. Its own volume goes with it.
    pub(super) fn leave_due(&mut self, peer: PeerId) {
        let Some(visit) = self.stranger.visits.get(&peer) else { return };
        if let Some(capability) = visit.own {
            let permitted = Permitted::OwnOnly(capability.volume);
            self.send_own(peer, capability, RequestBody::RemoveVolume, permitted);
        }
        let (now, abrupt) = (self.now(), self.stranger.rng.chance(200));
        self.network.close_by_client(now, peer, abrupt);
        self.visit_ends(peer);
    }

    fn visit_ends(&mut self, peer: PeerId) {
        let Some(visit) = self.stranger.visits.remove(&peer) else { return };
        if visit.floods {
            // The table is full until the node notices that the stranger has left, and a writer
            // may be told even later that it was.
            let NetworkSpeed { delay_ns, notice_ns } = self.scenario.network;
            let over = self.now().plus(Nanos(LATEST * (delay_ns + notice_ns)));
            self.fault_model.ends(visit.node, over);
        }
    }

    /// A writer is told that a node is busy.
    pub(super) fn count_busy(&mut self) {
        if self.scenario.conditions.stranger.is_some() {
            self.stranger.count("writer-denied");
        }
    }

    /// The connection is one of the stranger's.
    pub(super) fn is_of_stranger(&self, peer: PeerId) -> bool {
        self.network.client_of(peer) == Some(STRANGER)
    }

    /// Checks that no node has more requests than its table has room for.
    pub(super) fn audit_tables(&mut self) {
        let Some(plan) = &self.scenario.conditions.stranger else { return };
        let requests_max = plan.requests_max;
        let processes = self.nodes.iter().filter_map(|host| host.process.as_ref());
        if let Some(requests) = processes.map(NodeProcess::requests).max()
            && requests > requests_max
        {
            self.fail(format!("a node has {requests} requests, and room for {requests_max}"));
        }
    }

    /// The stranger leaves for good. Nodes keep nothing of it.
    pub(super) fn outlast_stranger(&mut self) -> Option<()> {
        if self.scenario.conditions.stranger.is_none() && self.scenario.conditions.replays.is_none()
        {
            return Some(());
        }
        self.stranger.is_gone = true;
        let peers: Vec<PeerId> = self.stranger.visits.keys().copied().collect();
        for peer in peers {
            self.leave_due(peer);
        }
        self.collect_frames();
        self.until("no node has a request left", LEFT_NS_MAX, |world| {
            world.nodes_without_permanent_fault().all(|node| {
                let process = world.nodes[usize::from(node.0)].process.as_ref();
                process.is_none_or(|process| process.requests() == 0)
            })
        })?;
        self.audit_nodes();
        self.failure.is_none().then_some(())
    }
}

/// Whether an answer says that each node which the request reached has failed to carry it out.
fn shows_failure(result: &Result<ReplyBody, NodeError>) -> bool {
    match result {
        Ok(ReplyBody::Outcomes(outcomes)) => outcomes.iter().all(|outcome| outcome.result.is_err()),
        Ok(_) => false,
        Err(_) => true,
    }
}

/// Whether an answer shows nothing of volumes other than `own`.
fn shows_only(result: &Result<ReplyBody, NodeError>, own: VolumeId) -> bool {
    match result {
        Ok(ReplyBody::Volumes(volumes)) => volumes.iter().all(|summary| summary.volume == own),
        Ok(ReplyBody::Shards { shards, .. }) => shards.is_empty(),
        Ok(ReplyBody::Data(_)) => false,
        Ok(ReplyBody::VolumeState(state)) => state.journals.is_empty() && state.root.is_empty(),
        Ok(ReplyBody::Done | ReplyBody::Stat(_) | ReplyBody::Outcomes(_)) | Err(_) => true,
    }
}
