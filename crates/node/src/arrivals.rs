//! Writes that come in fragments, which the node passes on fragment by fragment: cut through.
//!
//! A long write with a route may come as a request without its payload, and then the payload in
//! fragments ([`fieldstone_proto::fragments`]). The three handlers then run as on the SmartNIC of
//! the network-accelerated DFS paper (section III-B):
//!
//! - *Header.* The request opens an entry and an *arrival*, and goes to the node's children.
//! - *Payload.* Each fragment goes to the children at once. The node keeps its own part of it.
//! - *Completion.* With the last fragment, the write starts as if it had come whole.
//!
//! ```text
//!  whole:   client -------->         in fragments:  client --------->
//!           node 0          ------->             node 0  --------->
//!           node 1                  ------->     node 1    --------->
//! ```
//!
//! Each bar is the time in which this sender sends the write. What a child gets of a fragment
//! depends on the route: the same bytes; or bytes of its own part; or the product of the fragment
//! and the column of a data shard, as far as there are whole chunks.
//!
//! - *Checks.* The header handler admits the request before the node passes anything on. The
//!   connection has checked each fragment's checksum. Each block of a shard is compared with the
//!   writer's checksum before the node passes the block on, if the node verifies payloads or
//!   multiplies them. When the last fragment is there, the node checks the volume, the connection,
//!   the epoch and the pass again, as if the request had come only now. So an arrival keeps neither
//!   a fence nor a removal waiting.
//! - *Bounds.* An arrival is an entry of the request table. One volume has at most
//!   [`ARRIVALS_PER_VOLUME_MAX`], with payloads of [`ARRIVING_BYTES_PER_VOLUME_MAX`] in total. An
//!   arrival lasts for [`ARRIVAL_NS`] at most, and ends when a fence, a removal or a new pass makes
//!   it void. The connection takes memory for a payload of more than 64 KiB before it hands in the
//!   request. Without memory it waits. It does not wait while fragments of earlier writes are
//!   missing on it: then it hands the request in as [`Fragments::NoRoom`], and the node answers
//!   [`NodeError::Busy`].
//! - *Silence.* An arrival whose next fragment does not come for [`FRAGMENTS_SILENCE_NS`] is given
//!   up. A node of a higher rank waits longer. So the first node that lacks fragments gives up
//!   first, and tells the nodes behind it.
//! - *The end before the last fragment.* If the node gives an arrival up, or loses its sender, it
//!   tells its children ([`RequestBody::GiveUp`]), and each of them counts as not reached. A child
//!   that answers before its own last fragment has refused the write, and gets no more fragments.
//!   Neither does one for which the node has stopped waiting (`relays`). Whatever happens to
//!   children, the node goes on with its own part.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use fieldstone_proto::fragments::{give_up, passed_on};
use fieldstone_proto::{
    BLOCK_BYTES, Column, Content, FRAGMENT_BYTES_MAX, Fragments, NodeError, Request, RequestBody,
    Tag, VolumeId,
};

use crate::control_events::ControlEvent;
use crate::fragment::Fragment;
use crate::handlers::{first_mismatch, payload_len};
use crate::interface::{LinkTarget, NodeAction, PeerId};
use crate::limits::{
    ARRIVAL_NS, ARRIVALS_PER_VOLUME_MAX, ARRIVING_BYTES_PER_VOLUME_MAX, FRAGMENTS_SILENCE_NS,
    FRAGMENTS_SILENCE_STEP_NS,
};
use crate::node::Node;
use crate::own_delay::OwnDelay;
use crate::parity_memory::ParityLease;
use crate::products::ProductStream;
use crate::relays::{PendingRelay, of_shard};
use crate::request_table::{EntryId, Task};

/// Names an arrival: the connection, and the tag of the request on it.
type Key = (PeerId, Tag);

/// A write of which fragments are missing.
#[derive(Debug)]
struct Arrival {
    entry: EntryId,
    /// The operation, with the checksums that have come.
    body: RequestBody,
    /// The node's own part of the fragments that have come.
    payload: Vec<Bytes>,
    filled_bytes: usize,
    len_bytes: usize,
    /// How long the node waits for the next fragment.
    silence_ns: u64,
    /// When the node gives the arrival up, in nanoseconds of its clock: if no fragment comes until
    /// then, and in any case.
    due_ns: u64,
    end_ns: u64,
    children: Vec<Child>,
    forward: Forward,
}

/// A child that gets fragments, as long as the node waits for its answer.
#[derive(Debug)]
struct Child {
    rank: usize,
    to: LinkTarget,
    tag: Tag,
}

/// What children get of a fragment.
#[derive(Debug)]
enum Forward {
    /// The fragment.
    Same,
    /// The bytes of their own part. Each replica has a part of this length, in the order of ranks.
    Parts { part_bytes: usize },
    /// The product of the fragment and the child's part of the column.
    Products(Box<ProductStream>),
}

/// The writes of which fragments are missing.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    by_key: BTreeMap<Key, Arrival>,
    due: BTreeSet<(u64, Key)>,
    /// What the volumes that have arrivals use.
    of_volume: BTreeMap<VolumeId, Share>,
    delay: OwnDelay,
}

/// What one volume uses.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    arrivals: usize,
    /// Lengths of the payloads.
    bytes: usize,
}

impl Arrivals {
    /// Whether another write of the volume, with a payload of `len_bytes`, may come in fragments
    /// over this connection with this tag.
    pub(crate) fn check(
        &self,
        volume: VolumeId,
        key: Key,
        len_bytes: usize,
    ) -> Result<(), NodeError> {
        if self.by_key.contains_key(&key) {
            let what = "fragments of an earlier write with this tag are missing";
            return Err(NodeError::Invalid(what.to_owned()));
        }
        let share = self.of_volume.get(&volume).copied().unwrap_or_default();
        let has_room = share.arrivals < ARRIVALS_PER_VOLUME_MAX
            && share.bytes + len_bytes <= ARRIVING_BYTES_PER_VOLUME_MAX;
        if has_room { Ok(()) } else { Err(NodeError::Busy) }
    }

    fn add(&mut self, key: Key, volume: VolumeId, arrival: Arrival) {
        let share = self.of_volume.entry(volume).or_default();
        share.arrivals += 1;
        share.bytes += arrival.len_bytes;
        self.put_back(key, arrival);
    }

    fn put_back(&mut self, key: Key, arrival: Arrival) {
        self.due.insert((arrival.due_ns, key));
        self.by_key.insert(key, arrival);
    }

    /// Takes an arrival out. It goes on with [`Arrivals::put_back`], or ends with
    /// [`Arrivals::ended`].
    fn take(&mut self, key: Key) -> Option<Arrival> {
        let arrival = self.by_key.remove(&key)?;
        self.due.remove(&(arrival.due_ns, key));
        Some(arrival)
    }

    /// An arrival of the volume with a payload of `len_bytes` has ended.
    fn ended(&mut self, volume: VolumeId, len_bytes: usize) {
        if let Some(share) = self.of_volume.get_mut(&volume) {
            share.arrivals -= 1;
            share.bytes -= len_bytes;
            if share.arrivals == 0 {
                self.of_volume.remove(&volume);
            }
        }
    }

    /// Takes an arrival out whose time is over, if there is one.
    fn take_overdue(&mut self, now_ns: u64) -> Option<Arrival> {
        let (due_ns, key) = *self.due.first()?;
        self.delay.is_over(now_ns, due_ns).then(|| self.take(key)).flatten()
    }

    /// When the next arrival is given up.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| self.delay.end_ns(*due_ns))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty() && self.due.is_empty() && self.of_volume.is_empty()
    }
}

impl Node {
    /// Opens the arrival of an admitted write whose payload of `len_bytes` follows in fragments,
    /// and passes the request on.
    pub(crate) fn begin_arrival(
        &mut self,
        now_ns: u64,
        entry: EntryId,
        (body, len_bytes): (RequestBody, u32),
        request: &Request,
    ) {
        let begun = self.begin_passing_on(now_ns, entry, (&body, len_bytes), request);
        let (children, forward) = match begun {
            Ok(begun) => begun,
            Err(error) => return self.close(entry, Err(error)),
        };
        let mut rank = 0;
        if let Some(relay) = &mut self.table[entry].relay {
            rank = u64::from(relay.route.rank);
            // A table of elements is long, and an arrival may last for a while.
            relay.route.forget_table();
        }
        let silence_ns = FRAGMENTS_SILENCE_NS + rank * FRAGMENTS_SILENCE_STEP_NS;
        let arrival = Arrival {
            entry,
            body,
            payload: Vec::new(),
            filled_bytes: 0,
            len_bytes: len_bytes as usize,
            silence_ns,
            due_ns: now_ns.saturating_add(silence_ns),
            end_ns: now_ns.saturating_add(ARRIVAL_NS),
            children,
            forward,
        };
        let key = (self.table[entry].peer, self.table[entry].tag);
        self.arrivals.add(key, self.table[entry].volume, arrival);
    }

    /// Sends a request whose payload follows to the node's children.
    fn begin_passing_on(
        &mut self,
        now_ns: u64,
        entry: EntryId,
        (body, len_bytes): (&RequestBody, u32),
        request: &Request,
    ) -> Result<(Vec<Child>, Forward), NodeError> {
        let Some(relay) = &self.table[entry].relay else { unreachable!("it has a route") };
        let route = relay.route.clone();
        let mut targets = self.children_of(now_ns, entry, &route);
        let mut without_memory = Vec::new();
        let mut child_bytes = len_bytes;
        let forward = match &route.content {
            Content::Same => Forward::Same,
            Content::Parts => {
                child_bytes = len_bytes / u32::from(route.count());
                Forward::Parts { part_bytes: child_bytes as usize }
            }
            Content::Column(column) => {
                let volume = self.table[entry].volume;
                let leases = self.lease_products(volume, &targets, len_bytes as usize);
                let mut memory = Vec::new();
                for (target, lease) in std::mem::take(&mut targets).into_iter().zip(leases) {
                    match lease {
                        Some(lease) => {
                            targets.push(target);
                            memory.push(lease);
                        }
                        None => without_memory.push(target),
                    }
                }
                self.products_to_come((volume, column), &targets, memory)?
            }
        };
        let with = (now_ns, entry, &route, request.capability);
        for (rank, to) in without_memory {
            // No fragment follows.
            let body = of_shard(body, route.replicas[rank].shard);
            self.relay_to(with, (rank, to), Fragments::Whole, body, Vec::new());
        }
        let mut children = Vec::with_capacity(targets.len());
        for (rank, to) in targets {
            let body = of_shard(body, route.replicas[rank].shard);
            let fragments = Fragments::Follow(child_bytes);
            let tag = self.relay_to(with, (rank, to.clone()), fragments, body, Vec::new());
            children.push(Child { rank, to, tag });
        }
        Ok((children, forward))
    }

    /// The products for these children, each with its memory, of a data shard with this column.
    fn products_to_come(
        &mut self,
        (volume, column): (VolumeId, &Column),
        children: &[(usize, LinkTarget)],
        memory: Vec<ParityLease>,
    ) -> Result<Forward, NodeError> {
        let parities: Vec<usize> = children.iter().map(|(rank, _)| rank - 1).collect();
        if parities.is_empty() {
            return Ok(Forward::Same);
        }
        let multiplication = self.column_maps.multiplication(volume, column, &parities)?;
        Ok(Forward::Products(Box::new(ProductStream::new(multiplication, memory))))
    }

    /// A fragment arrived. The node ignores a fragment of no arrival: its write was refused, was
    /// given up, or never began.
    pub(crate) fn fragment_arrived(&mut self, now_ns: u64, key: Key, fragment: Fragment) {
        let Some(mut arrival) = self.arrivals.take(key) else { return };
        if let Err(error) = self.take_fragment(&mut arrival, fragment) {
            self.count_damage(&error);
            return self.end_arrival(arrival, error);
        }
        if arrival.filled_bytes < arrival.len_bytes {
            let due_ns = now_ns.saturating_add(arrival.silence_ns);
            arrival.due_ns = due_ns.min(arrival.end_ns);
            return self.arrivals.put_back(key, arrival);
        }
        self.arrived(now_ns, arrival);
    }

    /// Checks a fragment, passes it on, and keeps the node's part of it.
    fn take_fragment(
        &mut self,
        arrival: &mut Arrival,
        fragment: Fragment,
    ) -> Result<(), NodeError> {
        let invalid = |what: &str| Err(NodeError::Invalid(what.to_owned()));
        let Fragment { checksums, payload, .. } = &fragment;
        let len_bytes = payload_len(payload);
        if len_bytes == 0 || !len_bytes.is_multiple_of(BLOCK_BYTES) {
            return invalid("a fragment consists of whole blocks");
        }
        if arrival.filled_bytes + len_bytes > arrival.len_bytes {
            return invalid("the fragments are longer than the payload");
        }
        let of_shard = matches!(arrival.body, RequestBody::ShardWrite { .. });
        if checksums.len() != if of_shard { len_bytes / BLOCK_BYTES } else { 0 } {
            return invalid("a fragment of a shard carries one checksum for each block");
        }
        let multiplies = matches!(arrival.forward, Forward::Products(_));
        if of_shard
            && (self.config.verify_payload || multiplies)
            && let Some(block) = first_mismatch(payload, checksums)
        {
            return Err(arrival.corrupt(block as usize));
        }
        self.pass_fragment_on(arrival, &fragment);
        arrival.keep(fragment);
        arrival.filled_bytes += len_bytes;
        Ok(())
    }

    /// Sends each child its share of a fragment, if the node still waits for the child.
    fn pass_fragment_on(&mut self, arrival: &mut Arrival, fragment: &Fragment) {
        let relays = &self.relays;
        let waits_for = |child: &Child| relays.is_pending(child.tag, &child.to);
        if !arrival.children.iter().any(waits_for) {
            // No node gets the products, so their memory goes back now.
            arrival.children.clear();
            if matches!(arrival.forward, Forward::Products(_)) {
                arrival.forward = Forward::Same;
            }
            return;
        }
        let actions = &mut self.disk.actions;
        let mut send = |child: &Child, fragment: &Fragment| {
            if waits_for(child) {
                let Fragment { checksums, payload_crc, payload } = fragment.clone();
                let request = passed_on(child.tag, checksums, payload_crc, payload);
                actions.push_back(NodeAction::Relay { to: child.to.clone(), request });
            }
        };
        match &mut arrival.forward {
            Forward::Same => arrival.children.iter().for_each(|child| send(child, fragment)),
            Forward::Parts { part_bytes } => {
                for (part, of_part) in fragment.parts(arrival.filled_bytes, *part_bytes) {
                    let mut children = arrival.children.iter();
                    if let Some(child) = children.find(|child| child.rank == part) {
                        send(child, &of_part);
                    }
                }
            }
            Forward::Products(products) => {
                let products = products.push(&fragment.payload);
                for (child, (checksums, product)) in arrival.children.iter().zip(products) {
                    let sums = checksums.chunks(FRAGMENT_BYTES_MAX / BLOCK_BYTES);
                    let bytes = product.chunks(FRAGMENT_BYTES_MAX);
                    for (sums, bytes) in sums.zip(bytes) {
                        let payload = vec![product.slice_ref(bytes)];
                        send(child, &Fragment::new(sums.to_vec(), payload));
                    }
                }
            }
        }
    }

    /// All fragments are there: starts the write.
    fn arrived(&mut self, now_ns: u64, arrival: Arrival) {
        let Arrival { entry: id, body, payload, forward, len_bytes, children, .. } = arrival;
        let volume = self.table[id].volume;
        self.arrivals.ended(volume, len_bytes);
        for Child { to, tag, .. } in &children {
            self.relays.now_whole(now_ns, *tag, to);
        }
        if let Err(error) = self.check_arrived(id) {
            return self.close(id, Err(error));
        }
        if let Some(volume) = self.volumes.get_mut(&volume) {
            volume.active += 1;
        }
        let entry = &mut self.table[id];
        entry.counted = true;
        entry.task = Task::Parked(Box::new((body, payload)));
        if entry.relay.as_ref().is_some_and(|relay| relay.route.is_contribution()) {
            return self.contribute(now_ns, id);
        }
        entry.verified = self.config.verify_payload || matches!(forward, Forward::Products(_));
        self.start_entry(id);
    }

    /// The sender of a write has given it up.
    pub(crate) fn arrival_given_up(&mut self, key: Key) {
        if let Some(arrival) = self.arrivals.take(key) {
            self.end_arrival(arrival, NodeError::Busy);
        }
    }

    /// Gives up the writes of the volume that may not reach a file any more, because the volume has
    /// changed. They would keep their memory, and their share of the volume's bounds.
    pub(crate) fn end_void_arrivals(&mut self, volume: VolumeId) {
        let is_void = |(key, arrival): (&Key, &Arrival)| {
            let of_volume = self.table[arrival.entry].volume == volume;
            (of_volume && self.check_arrived(arrival.entry).is_err()).then_some(*key)
        };
        let keys: Vec<Key> = self.arrivals.by_key.iter().filter_map(is_void).collect();
        keys.into_iter().for_each(|key| self.arrival_given_up(key));
    }

    /// The sender of these writes is gone.
    pub(crate) fn end_arrivals_of(&mut self, peer: PeerId) {
        let from = (peer, Tag(0))..=(peer, Tag(u64::MAX));
        let keys: Vec<Key> = self.arrivals.by_key.range(from).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.arrival_given_up(key));
    }

    /// Gives up the writes whose next fragment does not come.
    pub(crate) fn expire_arrivals(&mut self, now_ns: u64) {
        while let Some(arrival) = self.arrivals.take_overdue(now_ns) {
            self.control_events.push(ControlEvent::WriteGivenUp {
                peer: self.table[arrival.entry].peer,
                volume: self.table[arrival.entry].volume,
                arrived_bytes: arrival.filled_bytes as u64,
                len_bytes: arrival.len_bytes as u64,
            });
            self.end_arrival(arrival, NodeError::Busy);
        }
    }

    /// Ends a write before its last fragment. The children get no other fragments.
    fn end_arrival(&mut self, arrival: Arrival, error: NodeError) {
        self.arrivals.ended(self.table[arrival.entry].volume, arrival.len_bytes);
        for Child { to, tag, .. } in arrival.children {
            if self.end_wait_for(&to, tag) {
                self.tell_given_up(to, tag);
            }
        }
        self.close(arrival.entry, Err(error));
    }

    /// The node has stopped waiting for this child. If the write is still arriving, the node tells
    /// the child that no more fragments come.
    pub(crate) fn give_up_child(&mut self, ended: &PendingRelay) {
        let key = (self.table[ended.entry].peer, self.table[ended.entry].tag);
        let arrival = self.arrivals.by_key.get(&key);
        let of_entry = arrival.filter(|arrival| arrival.entry == ended.entry);
        let has_child = |arrival: &Arrival| arrival.children.iter().any(|c| c.tag == ended.tag);
        if of_entry.is_some_and(has_child) {
            self.tell_given_up(ended.to.clone(), ended.tag);
        }
    }

    fn tell_given_up(&mut self, to: LinkTarget, tag: Tag) {
        self.disk.actions.push_back(NodeAction::Relay { to, request: give_up(tag) });
    }
}

impl Arrival {
    /// The error for block `block` of the fragment that is being checked.
    fn corrupt(&self, block: usize) -> NodeError {
        let RequestBody::ShardWrite { offset_bytes, .. } = self.body else {
            unreachable!("only writes of shards have checksums")
        };
        let at = self.filled_bytes + block * BLOCK_BYTES;
        let within = match self.forward {
            Forward::Parts { part_bytes } => at % part_bytes,
            Forward::Same | Forward::Products(_) => at,
        };
        let within = u32::try_from(within).expect("a payload has a few MiB");
        NodeError::Corrupt { offset_bytes: offset_bytes + within }
    }

    /// Keeps the node's own part of a fragment.
    fn keep(&mut self, fragment: Fragment) {
        let own = match self.forward {
            Forward::Same | Forward::Products(_) => fragment,
            Forward::Parts { part_bytes } => {
                let first = fragment.parts(self.filled_bytes, part_bytes).into_iter().next();
                match first {
                    Some((0, own)) => own,
                    _ => return,
                }
            }
        };
        if let RequestBody::ShardWrite { checksums, .. } = &mut self.body {
            checksums.extend(own.checksums);
        }
        self.payload.extend(own.payload);
    }
}
