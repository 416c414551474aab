//! The header handler: decides whether the node may carry a request out, before it stores any byte
//! of the request.
//!
//! It checks in this order, so that a sender without a valid capability learns nothing but the
//! generations of the pool's secret: generation, signature in constant time, expiry, rights,
//! segment range; then route, memory for fragments, bounds, epoch, and whether the node has room
//! for the request. The volume keeps the key for capabilities of its current epoch, so this check
//! is one MAC of 52 bytes. The handler derives other keys when it needs them.

use fieldstone_proto::{
    Capability, CapabilityKey, Content, Factors, FragmentRole, Fragments, NodeError, ReplyBody,
    Request, RequestBody, Rights, SegmentId,
};

use super::bounds;
use crate::interface::PeerId;
use crate::limits::VOLUMES_MAX;
use crate::node::Node;
use crate::relays::EntryRelay;
use crate::request_table::{Entry, EntryId, RemoveStep, Task};
use crate::volumes::check_epoch;

/// The result for an accepted request.
pub(crate) enum Admission {
    /// The answer, without an operation on the disk.
    Answer(ReplyBody),
    /// The request has an entry, for the payload handler.
    Entry(EntryId),
    /// The request has an entry, and its payload of this length follows in fragments.
    Arriving(EntryId, RequestBody, u32),
}

/// The right that an operation needs.
pub(crate) fn rights_needed(body: &RequestBody) -> Rights {
    match body {
        RequestBody::Identify => Rights(0),
        RequestBody::ListVolumes
        | RequestBody::Fence { .. }
        | RequestBody::PutRoot { .. }
        | RequestBody::Reserve { .. }
        | RequestBody::RenewRecord
        | RequestBody::RemoveVolume => Rights::ADMIN,
        RequestBody::JournalCreate { .. }
        | RequestBody::JournalAppend { .. }
        | RequestBody::JournalSync { .. }
        | RequestBody::JournalDelete { .. }
        | RequestBody::ShardWrite { .. }
        | RequestBody::ShardSync
        | RequestBody::ShardDelete { .. }
        | RequestBody::AdmitRelays { .. }
        | RequestBody::Fragment { .. }
        | RequestBody::GiveUp => Rights::WRITE,
        RequestBody::JournalRead { .. }
        | RequestBody::ShardRead { .. }
        | RequestBody::ShardVerify { .. }
        | RequestBody::ShardList { .. }
        | RequestBody::Stat => Rights::READ,
    }
}

/// The sender had no memory for its contribution to a parity shard. The node writes nothing for it
/// (`stream`).
fn is_empty_contribution(request: &Request) -> bool {
    let RequestBody::ShardWrite { checksums, .. } = &request.body else { return false };
    let contributes = request.route.as_ref().is_some_and(|route| route.is_contribution());
    let is_whole = request.fragment_role() == FragmentRole::None;
    contributes && is_whole && checksums.is_empty() && bounds::payload_len(&request.payload) == 0
}

impl Node {
    /// Checks a request at the time of day `wall_ns` and opens its entry. If it opens one, it takes
    /// body and payload out of `request`.
    pub(crate) fn admit(
        &mut self,
        wall_ns: u64,
        peer: PeerId,
        request: &mut Request,
    ) -> Result<Admission, NodeError> {
        if request.body == RequestBody::Identify {
            return Ok(Admission::Answer(ReplyBody::Stat(self.stat())));
        }
        let needed = rights_needed(&request.body);
        if let Err(error) = self.check_capability(wall_ns, needed, request) {
            self.counters.refused += 1;
            return Err(error);
        }
        self.accepted = Some(peer);
        self.check_route(request)?;
        if request.route.as_ref().is_some_and(|route| route.fragments == Fragments::NoRoom) {
            return Err(NodeError::Busy);
        }
        if !is_empty_contribution(request) {
            let size = bounds::PayloadSize::of(request);
            bounds::check(&request.body, size, self.config.slot_bytes)?;
        }
        let capability = &request.capability;
        match request.body {
            RequestBody::Stat => return Ok(Admission::Answer(ReplyBody::Stat(self.stat()))),
            RequestBody::ListVolumes => {
                return Ok(Admission::Answer(self.list_volumes(capability.volume)));
            }
            RequestBody::Fence { .. } => {
                let known = self.volumes.contains_key(&capability.volume);
                if !known && self.volumes.len() >= VOLUMES_MAX {
                    return Err(NodeError::NoSpace);
                }
            }
            _ => self.check_volume(peer, needed, request)?,
        }
        if let RequestBody::AdmitRelays { pass } = request.body {
            if let Some(volume) = self.volumes.get_mut(&capability.volume) {
                volume.admit_relays(peer, pass);
            }
            self.drop_accumulators(capability.volume);
            self.end_void_arrivals(capability.volume);
            return Ok(Admission::Answer(ReplyBody::Done));
        }
        if let RequestBody::ShardList { from } = request.body {
            let volume = capability.volume;
            let writer = self.volumes.get(&volume).is_some_and(|known| known.holder == Some(peer));
            // A writer that lost its connection may have writes in flight. The writer compares
            // the list with its own map, and must not miss a shard that these writes complete.
            if writer && self.table.writes_for_others(volume, peer) {
                return Err(NodeError::Busy);
            }
            return Ok(Admission::Answer(self.list_shards(capability, from)));
        }
        self.open_entry(peer, request)
    }

    fn check_capability(
        &self,
        wall_ns: u64,
        needed: Rights,
        request: &Request,
    ) -> Result<(), NodeError> {
        let capability = &request.capability;
        let key = self.capability_key(capability)?;
        capability.check(&key, needed, wall_ns).map_err(NodeError::Capability)?;
        match &request.body {
            RequestBody::ShardWrite { segment, .. }
            | RequestBody::ShardRead { segment, .. }
            | RequestBody::ShardVerify { segment, .. } => {
                capability.check_segment(*segment).map_err(NodeError::Capability)
            }
            RequestBody::ShardDelete { segments } => segments
                .iter()
                .try_for_each(|&segment| capability.check_segment(segment))
                .map_err(NodeError::Capability),
            _ => Ok(()),
        }
    }

    /// The key that checks this capability, if its generation is accepted.
    fn capability_key(&self, capability: &Capability) -> Result<CapabilityKey, NodeError> {
        let (volume, generation) = (capability.volume, capability.rights.generation());
        self.config.keys.check(generation).map_err(NodeError::Capability)?;
        let cached = self
            .volumes
            .get(&volume)
            .filter(|known| known.record.epoch == capability.epoch)
            .map(|known| known.key)
            .filter(|key| key.generation() == generation);
        let derive = || self.config.keys.derive_for(generation, volume, capability.epoch);
        cached.map_or_else(derive, Ok).map_err(NodeError::Capability)
    }

    /// Checks the route of a request. A route without a cycle and with this node at its rank is the
    /// only one that the node follows.
    fn check_route(&self, request: &Request) -> Result<(), NodeError> {
        let Some(route) = &request.route else { return Ok(()) };
        let writes = matches!(
            request.body,
            RequestBody::JournalAppend { .. } | RequestBody::ShardWrite { .. }
        );
        if !writes {
            return Err(NodeError::Invalid("this operation takes no route".to_owned()));
        }
        if !matches!(request.body, RequestBody::ShardWrite { .. }) {
            let what = match route.content {
                Content::Same => None,
                Content::Column(_) => Some("only writes of shards have a column"),
                Content::Parts => Some("only writes of shards have a payload in parts"),
            };
            if let Some(what) = what {
                return Err(NodeError::Invalid(what.to_owned()));
            }
        }
        route.check(self.config.node).map_err(|error| NodeError::Invalid(error.to_string()))?;
        match route.column().map(|column| &column.factors) {
            Some(Factors::Elements(table)) => {
                bounds::whole_chunks(table, bounds::PayloadSize::of(request).len_bytes)
            }
            _ => Ok(()),
        }
    }

    /// Checks that the node knows the volume, and that the capability has its epoch. Notes the
    /// writer.
    fn check_volume(
        &mut self,
        peer: PeerId,
        needed: Rights,
        request: &Request,
    ) -> Result<(), NodeError> {
        let volume = self.volumes.get_mut(&request.capability.volume).ok_or(NodeError::NotFound)?;
        volume.check_connection(peer)?;
        let mends = matches!(request.body, RequestBody::RemoveVolume | RequestBody::RenewRecord);
        if volume.damaged.is_some() && mends {
            return Ok(());
        }
        check_epoch(volume, request.capability.epoch)?;
        if let Some(route) = request.route.as_ref().filter(|route| route.is_relayed()) {
            // The writer's own connection stays the holder.
            return volume.check_pass(route.replicas[usize::from(route.rank)].pass);
        }
        // Only a writer reserves. If the request is a copy of one of its requests, the writer finds
        // out over its own connection, and asks again.
        let reserves = matches!(request.body, RequestBody::Reserve { .. });
        if needed == Rights::WRITE || reserves {
            volume.used_by(peer);
        }
        volume.check_connection(peer)
    }

    /// Whether a write whose last fragment has come may reach a file. The checks are those of a
    /// request that comes now.
    pub(crate) fn check_arrived(&self, id: EntryId) -> Result<(), NodeError> {
        let entry = &self.table[id];
        let volume = self.volumes.get(&entry.volume).ok_or(NodeError::NotFound)?;
        volume.check_connection(entry.peer)?;
        check_epoch(volume, entry.epoch)?;
        match entry.relay.as_ref().map(|relay| &relay.route).filter(|route| route.is_relayed()) {
            Some(route) => volume.check_pass(route.replicas[usize::from(route.rank)].pass),
            None => Ok(()),
        }
    }

    fn list_shards(&self, capability: &Capability, from: SegmentId) -> ReplyBody {
        let from = from.max(capability.segment_first);
        let (shards, next) = self.store.list(capability.volume, from, capability.segment_last);
        ReplyBody::Shards { shards, next }
    }

    fn open_entry(&mut self, peer: PeerId, request: &mut Request) -> Result<Admission, NodeError> {
        if self.table.is_full_for(&request.body) {
            self.control_events.table_full();
            return Err(NodeError::Busy);
        }
        let follows = match request.route.as_ref().map(|route| route.fragments) {
            Some(Fragments::Follow(len_bytes)) => Some(len_bytes),
            _ => None,
        };
        if let Some(len_bytes) = follows {
            let key = (peer, request.tag);
            self.arrivals.check(request.capability.volume, key, len_bytes as usize)?;
        }
        let body = std::mem::replace(&mut request.body, RequestBody::Identify);
        let payload = std::mem::take(&mut request.payload);
        let volume = request.capability.volume;
        let relay = request.route.take().map(|route| Box::new(EntryRelay::new(*route)));
        let mut arriving = None;
        let (counted, task) = match body {
            RequestBody::Fence { takeover } => (false, Task::Fence { takeover }),
            RequestBody::PutRoot { version } => {
                (false, Task::PutRoot { version, root: crate::volumes::join(&payload) })
            }
            RequestBody::Reserve { slots, spare } => (false, Task::Reserve { slots, spare }),
            RequestBody::RenewRecord => (false, Task::RenewRecord),
            RequestBody::RemoveVolume => (false, Task::Remove(RemoveStep::Queued)),
            body if follows.is_some() => {
                arriving = follows.map(|len_bytes| (body, len_bytes));
                (false, Task::Arriving)
            }
            body => (true, Task::Parked(Box::new((body, payload)))),
        };
        if counted && let Some(volume) = self.volumes.get_mut(&volume) {
            volume.active += 1;
        }
        let entry = self.table.open(Entry {
            peer,
            peer_lost: false,
            tag: request.tag,
            volume,
            epoch: request.capability.epoch,
            counted,
            verified: false,
            outstanding: 0,
            error: None,
            task,
            relay,
        })?;
        Ok(match arriving {
            Some((body, len_bytes)) => Admission::Arriving(entry, body, len_bytes),
            None => Admission::Entry(entry),
        })
    }
}
