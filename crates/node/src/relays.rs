//! Passing writes on to other nodes: ring, tree and primary copy.
//!
//! A request with a route ([`fieldstone_proto::route`]) names its replicas and this node's rank
//! among them. As soon as the header handler has admitted the request, the node passes it on to its
//! children, before its own disk has the payload: forwarding is one more action of the payload
//! handler (network-accelerated DFS, section V). The paper forwards packets. Here a node passes a
//! message on when the message has arrived and its checksum matches. A long write comes in several
//! messages (`arrivals`).
//!
//! - *Answer.* The entry of the request waits for the node's own disk and for the answers of its
//!   children. Each child answers for itself and for the nodes behind it. The node's answer has one
//!   outcome for each of these nodes, so the writer knows which nodes have the bytes.
//! - *Bounds.* The route says how long the head waits ([`fieldstone_proto::Route::wait_here_ms`]).
//!   A child that does not answer in time, or whose link breaks, gives
//!   [`NodeError::NotPassedOn`] for itself and for the nodes behind it. So does a child for which
//!   there is no room among the waits of all volumes or of this one ([`RELAYS_PER_VOLUME_MAX`]).
//! - *Silence.* Writers share the links, and each chooses its own wait. So the end of a wait says
//!   nothing about the link. An answer is due when the other node has the whole request. If the
//!   other node has answered nothing for [`LINK_SILENCE_NS`] while answers were due, the node
//!   closes the link, so that nothing stays queued there, and passes nothing on over it for
//!   [`LINK_REST_NS`].
//! - *Own delays.* A node that was stopped finds the time of its waits over, and the answers in its
//!   sockets. It forgives the others what it has missed itself (`own_delay`).
//! - *Own work first.* Once the node's own part has ended, the request no longer keeps a fence or a
//!   removal waiting, even while the node waits for others.
//! - *The writer is gone.* The node waits for no other node any more, and no answer leaves.
//!
//! A write of a data shard may carry its column of the code: then each child gets what the shard
//! contributes to its parity shard (`stream`). The node multiplies only for the children to which
//! it passes the request on, and for which it has memory (`parity_memory`). The others learn that
//! nothing comes.
//!
//! A write of a data shard may also bring the parity shards that belong to it, which the writer has
//! made (DeLiBA-2, section 5.3). Then the payload has a part for each replica. The node takes its
//! part as its own write, and passes each other part on as an ordinary write of a parity shard.
//!
//! A node is a client of its children. It sends them the writer's capability, and they check it
//! like one of the writer itself. In addition they want the writer's pass
//! ([`fieldstone_proto::RequestBody::AdmitRelays`]).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fieldstone_buf::Cutter;
use slab::Slab;

use fieldstone_proto::{
    Capability, Column, Content, Fragments, NodeError, NodeIndex, Outcome, Reply, ReplyBody,
    Request, RequestBody, Route, ShardIndex, Tag, VolumeId,
};

use crate::handlers::payload_len;
use crate::interface::{LinkTarget, NodeAction, PeerId};
use crate::limits::{
    LINK_REST_NS, LINK_RESTS_MAX, LINK_SILENCE_NS, RELAYS_MAX, RELAYS_PER_VOLUME_MAX,
};
use crate::node::Node;
use crate::own_delay::OwnDelay;
use crate::parity_memory::ParityLease;
use crate::products;
use crate::request_table::{EntryId, Task};
use crate::stream::Gathered;

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
pub(crate) struct PendingRelay {
    pub(crate) tag: Tag,
    pub(crate) entry: EntryId,
    volume: VolumeId,
    /// The child's rank.
    rank: usize,
    pub(crate) to: LinkTarget,
    /// When the wait ends, in nanoseconds of the node's clock.
    due_ns: u64,
    /// The child has all of the request: its answer is due.
    is_whole: bool,
}

/// The waits on a link. A request whose wait has ended leaves the link here until an answer comes.
#[derive(Debug, Default)]
struct LinkWaits {
    pending: usize,
    /// Those of which the other node has the whole request.
    answers_due: usize,
    /// Since when no answer has come although one is due, in nanoseconds of the node's clock.
    /// `None` if none is.
    silent_since_ns: Option<u64>,
}

/// The requests that were passed on and are not answered.
#[derive(Debug, Default)]
pub(crate) struct Relays {
    pending: Slab<PendingRelay>,
    made: u32,
    due: BTreeSet<(u64, usize)>,
    /// The number of pending requests of each volume that has any.
    of_volume: BTreeMap<VolumeId, usize>,
    /// The links on which the node has sent a request and then got no answer, or not all answers.
    links: BTreeMap<LinkTarget, LinkWaits>,
    /// Until when the node passes nothing on over a link.
    rests_until_ns: BTreeMap<LinkTarget, u64>,
    delay: OwnDelay,
}

impl Relays {
    /// Whether a request of this volume may be passed on over this link now, after `more` others of
    /// the volume.
    fn may_add(&self, now_ns: u64, (volume, more): (VolumeId, usize), to: &LinkTarget) -> bool {
        let of_volume = self.of_volume.get(&volume).copied().unwrap_or_default();
        self.pending.len() + more < RELAYS_MAX
            && of_volume + more < RELAYS_PER_VOLUME_MAX
            && self.rests_until_ns.get(to).is_none_or(|until_ns| *until_ns <= now_ns)
    }

    /// Notes a request that leaves now. Its tag is that of the relay that this returns.
    fn add(&mut self, now_ns: u64, relay: PendingRelay) -> Tag {
        self.made = self.made.wrapping_add(1);
        *self.of_volume.entry(relay.volume).or_default() += 1;
        let waits = self.links.entry(relay.to.clone()).or_default();
        waits.pending += 1;
        if relay.is_whole {
            waits.answer_is_due(now_ns);
        }
        let slot = self.pending.vacant_entry();
        let key = slot.key();
        let tag = Tag(u64::from(self.made) << 32 | key as u64);
        self.due.insert((relay.due_ns, key));
        slot.insert(PendingRelay { tag, ..relay });
        tag
    }

    /// The number of the wait for a request with this tag over this link, if there is one.
    fn find(&self, tag: Tag, to: &LinkTarget) -> Option<usize> {
        let key = usize::try_from(tag.0 & 0xffff_ffff).ok()?;
        let found = self.pending.get(key)?;
        (found.tag == tag && found.to == *to).then_some(key)
    }

    /// The node waits for the answer to a request with this tag over this link.
    pub(crate) fn is_pending(&self, tag: Tag, to: &LinkTarget) -> bool {
        self.find(tag, to).is_some()
    }

    /// The other node now has the last fragment of this request.
    pub(crate) fn now_whole(&mut self, now_ns: u64, tag: Tag, to: &LinkTarget) {
        let Some(relay) = self.find(tag, to).and_then(|key| self.pending.get_mut(key)) else {
            return;
        };
        if !std::mem::replace(&mut relay.is_whole, true)
            && let Some(waits) = self.links.get_mut(to)
        {
            waits.answer_is_due(now_ns);
        }
    }

    /// Notes that an answer came over this link. Ends the wait for it, if there is one.
    fn answered(&mut self, now_ns: u64, from: &LinkTarget, tag: Tag) -> Option<PendingRelay> {
        let ended = self.find(tag, from).map(|key| self.remove(key));
        if let Some(waits) = self.links.get_mut(from) {
            waits.silent_since_ns = (waits.answers_due > 0).then_some(now_ns);
            if waits.pending == 0 {
                self.links.remove(from);
            }
        }
        ended
    }

    fn remove(&mut self, key: usize) -> PendingRelay {
        let relay = self.pending.remove(key);
        self.due.remove(&(relay.due_ns, key));
        if let Some(waits) = self.links.get_mut(&relay.to) {
            waits.pending -= 1;
            waits.answers_due -= usize::from(relay.is_whole);
        }
        if let Some(count) = self.of_volume.get_mut(&relay.volume) {
            *count -= 1;
            if *count == 0 {
                self.of_volume.remove(&relay.volume);
            }
        }
        relay
    }

    /// Ends every wait of these.
    fn take(&mut self, which: impl Fn(&PendingRelay) -> bool) -> Vec<PendingRelay> {
        let found = |(key, relay): (usize, &PendingRelay)| which(relay).then_some(key);
        let keys: Vec<usize> = self.pending.iter().filter_map(found).collect();
        keys.into_iter().map(|key| self.remove(key)).collect()
    }

    /// Ends a wait whose time is over, if there is one.
    fn take_overdue(&mut self, now_ns: u64) -> Option<PendingRelay> {
        let (due_ns, key) = *self.due.first()?;
        self.delay.is_over(now_ns, due_ns).then(|| self.remove(key))
    }

    /// Whether this link has been silent for too long. If so, it rests.
    fn is_silent(&mut self, now_ns: u64, to: &LinkTarget) -> bool {
        let since_ns = self.links.get(to).and_then(|waits| waits.silent_since_ns);
        if since_ns.is_none_or(|since_ns| now_ns.saturating_sub(since_ns) < LINK_SILENCE_NS) {
            return false;
        }
        self.rests_until_ns.retain(|_, until_ns| *until_ns > now_ns);
        if self.rests_until_ns.len() < LINK_RESTS_MAX {
            self.rests_until_ns.insert(to.clone(), now_ns + LINK_REST_NS);
        }
        true
    }

    /// When the next wait ends.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| self.delay.end_ns(*due_ns))
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }
}

impl LinkWaits {
    fn answer_is_due(&mut self, now_ns: u64) {
        self.answers_due += 1;
        self.silent_since_ns.get_or_insert(now_ns);
    }
}

impl Node {
    /// Passes an admitted request on to the node's children in its route. Of a payload in parts,
    /// the node's own part stays in the entry.
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
        let (mut body, mut payload) = parked.as_ref().clone();
        let route = relay.route.clone();
        let mut of_others = Vec::new();
        if route.content == Content::Parts {
            of_others = split_off_parts((&mut body, &mut payload), route.replicas.len());
            self.table[id].task = Task::Parked(Box::new((body.clone(), payload.clone())));
        }
        let volume = self.table[id].volume;
        let children = self.children_of(now_ns, id, &route);
        let mut parts = match (&route.content, &body) {
            (Content::Column(column), RequestBody::ShardWrite { offset_bytes, checksums, .. }) => {
                let checksums = (*offset_bytes, &checksums[..]);
                let products = (&children[..], column);
                let products = self.products_for(volume, products, checksums, &payload)?;
                self.table[id].verified = true;
                products
            }
            (Content::Parts, _) => {
                let part = |(rank, _): &(usize, LinkTarget)| of_others[rank - 1].clone();
                children.iter().map(part).collect()
            }
            _ => vec![Part::Same; children.len()],
        }
        .into_iter();
        let with = (now_ns, id, &route, request.capability);
        for (rank, to) in children {
            let shard = route.replicas[rank].shard;
            let part = parts.next().expect("a part for each child");
            let (body, payload) = for_child(shard, (&body, &payload), part);
            self.relay_to(with, (rank, to), route.fragments, body, payload);
        }
        if let Some(relay) = &mut self.table[id].relay {
            // A table of elements is long, and an entry may wait for a while.
            relay.route.forget_table();
        }
        Ok(())
    }

    /// The children to which the node passes a request on now. The outcomes of the others are
    /// known.
    pub(crate) fn children_of(
        &mut self,
        now_ns: u64,
        id: EntryId,
        route: &Route,
    ) -> Vec<(usize, LinkTarget)> {
        let volume = self.table[id].volume;
        let mut children: Vec<(usize, LinkTarget)> = Vec::new();
        for rank in route.children() {
            let child = &route.replicas[rank];
            let to = LinkTarget { node: child.node, address: child.address.clone() };
            match self.relays.may_add(now_ns, (volume, children.len()), &to) {
                true => children.push((rank, to)),
                false => self.note_outcomes(id, rank, Err(NodeError::Unreachable)),
            }
        }
        children
    }

    /// Passes a request on to a child, and waits for its answer. Returns the request's tag.
    pub(crate) fn relay_to(
        &mut self,
        (now_ns, entry, route, capability): (u64, EntryId, &Route, Capability),
        (rank, to): (usize, LinkTarget),
        fragments: Fragments,
        body: RequestBody,
        payload: Vec<Bytes>,
    ) -> Tag {
        let due_ns = now_ns.saturating_add(route.wait_here_ms() * NS_PER_MS);
        let (tag, volume) = (Tag(0), self.table[entry].volume);
        let is_whole = !matches!(fragments, Fragments::Follow(_));
        let relay = PendingRelay { tag, entry, volume, rank, to: to.clone(), due_ns, is_whole };
        let tag = self.relays.add(now_ns, relay);
        let route = Some(Box::new(Route { fragments, ..route.at(rank) }));
        let request = Request { tag, capability, body, route, payload };
        self.counters.relayed += 1;
        self.disk.actions.push_back(NodeAction::Relay { to, request });
        if let Some(relay) = &mut self.table[entry].relay {
            relay.waiting += 1;
        }
        tag
    }

    /// The products of a data shard for these children, each with its rank.
    ///
    /// # Errors
    /// The bytes are not those of the writer.
    fn products_for(
        &mut self,
        volume: VolumeId,
        (children, column): (&[(usize, LinkTarget)], &Column),
        checksums: (u32, &[u32]),
        payload: &[Bytes],
    ) -> Result<Vec<Part>, NodeError> {
        products::check(checksums, payload)?;
        let len_bytes = payload_len(payload);
        let leases = self.lease_products(volume, children, len_bytes);
        let has_memory: Vec<bool> = leases.iter().map(Option::is_some).collect();
        let of_those = children.iter().zip(&leases).filter(|(_, lease)| lease.is_some());
        let parities: Vec<usize> = of_those.map(|((rank, _), _)| rank - 1).collect();
        let memory = leases.into_iter().flatten().collect();
        let mut products = match parities.is_empty() {
            true => Vec::new(),
            false => {
                let multiplication = self.column_maps.multiplication(volume, column, &parities)?;
                multiplication.products(payload, memory)
            }
        }
        .into_iter();
        let part = |has_memory: bool| match has_memory.then(|| products.next()).flatten() {
            Some((checksums, bytes)) => Part::Other(checksums, vec![bytes]),
            None => Part::Nothing,
        };
        Ok(has_memory.into_iter().map(part).collect())
    }

    /// Memory for a product for each of these children, as far as there is any.
    pub(crate) fn lease_products(
        &self,
        volume: VolumeId,
        children: &[(usize, LinkTarget)],
        len_bytes: usize,
    ) -> Vec<Option<ParityLease>> {
        let lease = |(_, to): &(usize, LinkTarget)| {
            self.parity_memory.lease_product((volume, to), len_bytes)
        };
        children.iter().map(lease).collect()
    }

    /// A child answered for itself and for the nodes behind it.
    pub(crate) fn relay_answered(&mut self, now_ns: u64, from: &LinkTarget, reply: Reply) {
        let Some(relay) = self.relays.answered(now_ns, from, reply.tag) else { return };
        self.end_relay(&relay, reply.result);
    }

    /// A link to another node is gone.
    pub(crate) fn lose_link(&mut self, to: &LinkTarget) {
        for relay in self.relays.take(|relay| relay.to == *to) {
            // The world may have opened the link again for it.
            self.give_up_child(&relay);
            self.end_relay(&relay, Err(NodeError::Unreachable));
        }
        self.relays.links.remove(to);
    }

    /// The writer of these requests is gone: waits for no other node for it.
    pub(crate) fn end_relays_of(&mut self, peer: PeerId) {
        let table = &self.table;
        for relay in self.relays.take(|relay| table[relay.entry].peer == peer) {
            self.give_up_child(&relay);
            self.end_relay(&relay, Err(NodeError::Unreachable));
        }
    }

    /// Gives up the children that have not answered in time, and the links that are silent.
    pub(crate) fn expire_relays(&mut self, now_ns: u64) {
        while let Some(relay) = self.relays.take_overdue(now_ns) {
            self.give_up_child(&relay);
            self.end_relay(&relay, Err(NodeError::Unreachable));
            if self.relays.is_silent(now_ns, &relay.to) {
                self.lose_link(&relay.to);
                self.disk.actions.push_back(NodeAction::CloseLink { to: relay.to });
            }
        }
    }

    /// Ends the wait for a request with this tag over this link. False if there is none.
    pub(crate) fn end_wait_for(&mut self, to: &LinkTarget, tag: Tag) -> bool {
        let Some(key) = self.relays.find(tag, to) else { return false };
        let relay = self.relays.remove(key);
        self.end_relay(&relay, Err(NodeError::Unreachable));
        true
    }

    /// A wait has ended. Ends the entry with its last part.
    fn end_relay(&mut self, ended: &PendingRelay, result: Result<ReplyBody, NodeError>) {
        self.note_outcomes(ended.entry, ended.rank, result);
        let Some(relay) = &mut self.table[ended.entry].relay else { return };
        relay.waiting -= 1;
        if relay.own_ended && relay.waiting == 0 {
            self.finish(ended.entry, Ok(ReplyBody::Done));
        }
    }

    /// Notes the outcomes of the child of this rank and of the nodes behind it.
    fn note_outcomes(&mut self, entry: EntryId, rank: usize, result: Result<ReplyBody, NodeError>) {
        let me = self.config.node;
        let Some(relay) = &mut self.table[entry].relay else { return };
        let (route, child) = (&relay.route, relay.route.replicas[rank].node);
        let lost = |from, to| Err(NodeError::NotPassedOn { from, to });
        let (mut told, own) = match result {
            Ok(ReplyBody::Outcomes(outcomes)) => (outcomes, lost(me, child)),
            Ok(_) | Err(NodeError::Unreachable) => (Vec::new(), lost(me, child)),
            // The child has refused the request, and has passed nothing on.
            Err(error) => (Vec::new(), Err(error)),
        };
        for rank in route.strategy.subtree(rank, route.replicas.len()) {
            let node = route.replicas[rank].node;
            let outcome = match told.iter().position(|outcome| outcome.node == node) {
                Some(at) => told.swap_remove(at),
                None if node == child => Outcome { node, result: own.clone() },
                None => Outcome { node, result: lost(child, node) },
            };
            relay.outcomes.push(outcome);
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

/// What a child gets of a payload.
#[derive(Clone)]
enum Part {
    /// All of it.
    Same,
    /// Other bytes, with the checksums of their blocks: a product of the payload, or the child's
    /// part of it.
    Other(Vec<u32>, Vec<Bytes>),
    /// Nothing: there is no memory for the product.
    Nothing,
}

/// Body and payload of a request, as a child gets them. The child writes `shard`.
fn for_child(
    shard: ShardIndex,
    (body, payload): (&RequestBody, &[Bytes]),
    part: Part,
) -> (RequestBody, Vec<Bytes>) {
    let mut body = of_shard(body, shard);
    let RequestBody::ShardWrite { checksums, .. } = &mut body else {
        return (body, payload.to_vec());
    };
    match part {
        Part::Same => (body, payload.to_vec()),
        Part::Other(of_part, bytes) => {
            *checksums = of_part;
            (body, bytes)
        }
        Part::Nothing => {
            *checksums = Vec::new();
            (body, Vec::new())
        }
    }
}

/// The operation as the node of another shard gets it.
pub(crate) fn of_shard(body: &RequestBody, shard: ShardIndex) -> RequestBody {
    let mut body = body.clone();
    if let RequestBody::ShardWrite { shard: to, .. } = &mut body {
        *to = shard;
    }
    body
}

/// Leaves the first of `count` parts of equal length in the body and the payload of a write, and
/// gives the others, by rank.
fn split_off_parts(
    (body, payload): (&mut RequestBody, &mut Vec<Bytes>),
    count: usize,
) -> Vec<Part> {
    let RequestBody::ShardWrite { checksums, .. } = body else {
        unreachable!("the header handler admits parts of no other write")
    };
    let (len_bytes, sums) = (payload_len(payload) / count, checksums.len() / count);
    let mut cutter = Cutter::new(std::mem::take(payload));
    *payload = cutter.next(len_bytes);
    let parts = (1..count)
        .map(|rank| Part::Other(checksums[rank * sums..][..sums].to_vec(), cutter.next(len_bytes)));
    let parts = parts.collect();
    checksums.truncate(sums);
    parts
}

impl EntryRelay {
    /// The answer of an entry all of whose parts have ended.
    pub(crate) fn into_answer(self) -> ReplyBody {
        ReplyBody::Outcomes(self.outcomes)
    }
}
