//! Passing writes on to other nodes: ring, tree and primary copy.
//!
//! A request with a route ([`fieldstone_proto::route`]) names its replicas and this node's rank
//! among them. As soon as the header handler has admitted the request, the node passes it on to its
//! children, before its own disk has the payload: forwarding is one more action of the payload
//! handler (network-accelerated DFS, section V). The paper forwards packets. Here a message takes
//! the place of a packet: the node passes a message on when all of it has arrived and its checksum
//! matches.
//!
//! - *Answer.* The entry of the request waits for the node's own disk and for the answers of its
//!   children. Each child answers for itself and for the nodes behind it. The node's answer has one
//!   outcome for each of these nodes, so the writer knows which nodes have the bytes.
//! - *Bounds.* The route says how long the head waits ([`fieldstone_proto::Route::wait_here_ms`]).
//!   A child that does not answer in time, or whose link breaks, gives
//!   [`NodeError::NotPassedOn`] for itself and for the nodes behind it. After a silence the node
//!   also closes the link, so that nothing stays queued there.
//! - *Own work first.* Once the node's own part has ended, the request no longer keeps a fence or a
//!   removal waiting, even while the node waits for others.
//! - *The writer is gone.* The entry ends as usual, by answers or by time, and no answer leaves.
//!
//! A write of a data shard may carry its column of the code: then each child gets what the shard
//! contributes to its parity shard (`stream`).
//!
//! A node is a client of its children. It sends them the writer's capability, and they check it
//! like one of the writer itself. In addition they want the writer's pass
//! ([`fieldstone_proto::RequestBody::AdmitRelays`]).

use std::collections::BTreeSet;

use slab::Slab;

use fieldstone_proto::{
    NodeError, NodeIndex, Outcome, Reply, ReplyBody, Request, RequestBody, Route, Tag,
};

use crate::interface::{LinkTarget, NodeAction};
use crate::limits::RELAYS_MAX;
use crate::node::Node;
use crate::request_table::{EntryId, Task};
use crate::stream::{Gathered, contributions};

pub(crate) const NS_PER_MS: u64 = 1_000_000;

/// The state of an entry whose request has a route.
#[derive(Debug)]
pub(crate) struct EntryRelay {
    pub(crate) route: Route,
    /// For the last contribution to a parity shard: the other ones.
    pub(crate) gathered: Gathered,
    /// Children that have not answered.
    waiting: u32,
    /// The node's own part has ended.
    own_ended: bool,
    /// The outcomes that are known.
    outcomes: Vec<Outcome>,
}

impl EntryRelay {
    pub(crate) fn new(route: Route) -> Self {
        Self {
            route,
            gathered: Gathered::default(),
            waiting: 0,
            own_ended: false,
            outcomes: Vec::new(),
        }
    }
}

/// A request that was passed on to a child.
#[derive(Debug)]
struct PendingRelay {
    tag: Tag,
    entry: EntryId,
    /// The child's rank.
    rank: usize,
    to: LinkTarget,
    /// When the wait ends, in nanoseconds of the node's clock.
    due_ns: u64,
}

/// The requests that were passed on and are not answered.
#[derive(Debug, Default)]
pub(crate) struct Relays {
    pending: Slab<PendingRelay>,
    made: u32,
    due: BTreeSet<(u64, usize)>,
}

impl Relays {
    /// The table has no room for `count` more.
    pub(crate) fn is_full_for(&self, count: usize) -> bool {
        self.pending.len() + count > RELAYS_MAX
    }

    fn add(&mut self, entry: EntryId, rank: usize, to: LinkTarget, due_ns: u64) -> Tag {
        self.made = self.made.wrapping_add(1);
        let slot = self.pending.vacant_entry();
        let key = slot.key();
        let tag = Tag(u64::from(self.made) << 32 | key as u64);
        slot.insert(PendingRelay { tag, entry, rank, to, due_ns });
        self.due.insert((due_ns, key));
        tag
    }

    /// Ends the wait for an answer that came over this link; `None` if there is no such wait.
    fn answered(&mut self, from: &LinkTarget, tag: Tag) -> Option<PendingRelay> {
        let key = usize::try_from(tag.0 & 0xffff_ffff).ok()?;
        let found = self.pending.get(key)?;
        (found.tag == tag && found.to == *from).then(|| self.remove(key))
    }

    fn remove(&mut self, key: usize) -> PendingRelay {
        let relay = self.pending.remove(key);
        self.due.remove(&(relay.due_ns, key));
        relay
    }

    /// Ends every wait on a link.
    fn take_link(&mut self, to: &LinkTarget) -> Vec<PendingRelay> {
        let on_link = |(key, relay): (usize, &PendingRelay)| (relay.to == *to).then_some(key);
        let keys: Vec<usize> = self.pending.iter().filter_map(on_link).collect();
        keys.into_iter().map(|key| self.remove(key)).collect()
    }

    /// The link of a child that is silent for too long, if there is one.
    fn overdue(&self, now_ns: u64) -> Option<LinkTarget> {
        let (due_ns, key) = self.due.first()?;
        (*due_ns <= now_ns).then(|| self.pending[*key].to.clone())
    }

    /// When the next wait ends.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| *due_ns)
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }
}

impl Node {
    /// Passes an admitted request on to the node's children in its route.
    ///
    /// # Errors
    /// The children would get damaged bytes. None of them gets anything.
    pub(crate) fn pass_on(
        &mut self,
        now_ns: u64,
        id: EntryId,
        request: &Request,
    ) -> Result<(), NodeError> {
        let Some(relay) = &self.table[id].relay else { return Ok(()) };
        let Task::Parked(parked) = &self.table[id].task else { return Ok(()) };
        if relay.route.children().is_empty() {
            return Ok(());
        }
        let (body, payload) = parked.as_ref().clone();
        let route = relay.route.clone();
        // For each child, unless all children get the same bytes.
        let mut products = match (&route.column, &body) {
            (Some(column), RequestBody::ShardWrite { offset_bytes, checksums, .. }) => {
                contributions(column, (*offset_bytes, checksums), &payload)?
            }
            _ => Vec::new(),
        }
        .into_iter();
        let due_ns = now_ns.saturating_add(route.wait_here_ms() * NS_PER_MS);
        let mut count = 0;
        for rank in route.children() {
            let child = &route.replicas[rank];
            let to = LinkTarget { node: child.node, address: child.address.clone() };
            let product = products.next();
            let body = match body.clone() {
                RequestBody::ShardWrite {
                    segment,
                    offset_bytes,
                    checksums,
                    seal,
                    data_first,
                    ..
                } => RequestBody::ShardWrite {
                    segment,
                    shard: child.shard,
                    offset_bytes,
                    checksums: product
                        .as_ref()
                        .map_or(checksums, |(checksums, _)| checksums.clone()),
                    seal,
                    data_first,
                },
                body => body,
            };
            let payload = product.map_or_else(|| payload.clone(), |(_, bytes)| vec![bytes]);
            let tag = self.relays.add(id, rank, to.clone(), due_ns);
            let request = Request {
                tag,
                capability: request.capability,
                body,
                route: Some(Box::new(route.at(rank))),
                payload,
            };
            self.counters.relayed += 1;
            self.disk.actions.push_back(NodeAction::Relay { to, request });
            count += 1;
        }
        if let Some(relay) = &mut self.table[id].relay {
            relay.waiting = count;
        }
        Ok(())
    }

    /// A child answered for itself and for the nodes behind it.
    pub(crate) fn relay_answered(&mut self, from: &LinkTarget, reply: Reply) {
        let Some(relay) = self.relays.answered(from, reply.tag) else { return };
        self.end_relay(&relay, reply.result);
    }

    /// A link to another node is gone.
    pub(crate) fn lose_link(&mut self, to: &LinkTarget) {
        for relay in self.relays.take_link(to) {
            self.end_relay(&relay, Err(NodeError::Unreachable));
        }
    }

    /// Gives up the children that have not answered in time, and their links.
    pub(crate) fn expire_relays(&mut self, now_ns: u64) {
        while let Some(to) = self.relays.overdue(now_ns) {
            self.lose_link(&to);
            self.disk.actions.push_back(NodeAction::CloseLink { to });
        }
    }

    /// Notes the outcomes of the child's part of the route. Ends the entry with the last part.
    fn end_relay(&mut self, ended: &PendingRelay, result: Result<ReplyBody, NodeError>) {
        let me = self.config.node;
        let Some(relay) = &mut self.table[ended.entry].relay else { return };
        relay.waiting -= 1;
        let (route, child) = (&relay.route, relay.route.replicas[ended.rank].node);
        let lost = |from, to| Err(NodeError::NotPassedOn { from, to });
        let (mut told, own) = match result {
            Ok(ReplyBody::Outcomes(outcomes)) => (outcomes, lost(me, child)),
            Ok(_) | Err(NodeError::Unreachable) => (Vec::new(), lost(me, child)),
            // The child has refused the request, and has passed nothing on.
            Err(error) => (Vec::new(), Err(error)),
        };
        for rank in route.strategy.subtree(ended.rank, route.replicas.len()) {
            let node = route.replicas[rank].node;
            let outcome = match told.iter().position(|outcome| outcome.node == node) {
                Some(at) => told.swap_remove(at),
                None if node == child => Outcome { node, result: own.clone() },
                None => Outcome { node, result: lost(child, node) },
            };
            relay.outcomes.push(outcome);
        }
        if relay.own_ended && relay.waiting == 0 {
            self.finish(ended.entry, Ok(ReplyBody::Done));
        }
    }

    /// Notes that the node's own part of the entry has ended. False if the entry has no route.
    /// True if the entry also waits for others, or has just given its answer.
    pub(crate) fn end_own_part(
        &mut self,
        id: EntryId,
        result: &Result<ReplyBody, NodeError>,
    ) -> bool {
        let node: NodeIndex = self.config.node;
        let entry = &mut self.table[id];
        let Some(relay) = &mut entry.relay else { return false };
        relay.own_ended = true;
        relay.outcomes.insert(0, Outcome { node, result: result.clone().map(|_| ()) });
        if relay.waiting == 0 {
            return false;
        }
        entry.task = Task::Relayed;
        let (volume, counted) = (entry.volume, std::mem::take(&mut entry.counted));
        self.release(volume, counted);
        true
    }
}

impl EntryRelay {
    /// The answer of an entry all of whose parts have ended.
    pub(crate) fn into_answer(self) -> ReplyBody {
        ReplyBody::Outcomes(self.outcomes)
    }
}
