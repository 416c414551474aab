//! The header handler: decides whether a request may be carried out, before a byte of it is stored.
//!
//! In this order, so that a sender without a valid capability learns nothing: signature in constant
//! time, expiry, rights, segment range; then whether the node has room for the request, bounds,
//! epoch. The key that capabilities of a volume's current epoch are signed with is kept with the
//! volume, which makes the check one MAC of 52 bytes; other keys are derived when needed.

use fieldstone_proto::{Capability, NodeError, ReplyBody, Request, RequestBody, Rights, SegmentId};

use super::bounds;
use crate::limits::VOLUMES_MAX;
use crate::node::Node;
use crate::request_table::{Entry, EntryId, RemoveStep, Task};
use crate::seam::PeerId;
use crate::volumes::check_epoch;

/// What becomes of a request that may be carried out.
pub(crate) enum Admission {
    /// The request needs nothing from the disk.
    Answer(ReplyBody),
    /// The request has an entry, to be handed to the payload handler.
    Entry(EntryId),
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
        | RequestBody::ShardDelete { .. } => Rights::WRITE,
        RequestBody::JournalRead { .. }
        | RequestBody::ShardRead { .. }
        | RequestBody::ShardVerify { .. }
        | RequestBody::ShardList { .. }
        | RequestBody::Stat => Rights::READ,
    }
}

impl Node {
    /// Checks a request and opens its entry. Takes the body and payload out of `request` then.
    pub(crate) fn admit(
        &mut self,
        now_ns: u64,
        peer: PeerId,
        request: &mut Request,
    ) -> Result<Admission, NodeError> {
        if request.body == RequestBody::Identify {
            return Ok(Admission::Answer(ReplyBody::Stat(self.stat())));
        }
        let needed = rights_needed(&request.body);
        if let Err(error) = self.check_capability(now_ns, needed, request) {
            self.counters.refused += 1;
            return Err(error);
        }
        self.accepted = Some(peer);
        bounds::check(&request.body, &request.payload, self.config.slot_bytes)?;
        let capability = &request.capability;
        match request.body {
            RequestBody::Stat => return Ok(Admission::Answer(ReplyBody::Stat(self.stat()))),
            RequestBody::ListVolumes => return Ok(Admission::Answer(self.list_volumes())),
            RequestBody::Fence { .. } => {
                let known = self.volumes.contains_key(&capability.volume);
                if !known && self.volumes.len() >= VOLUMES_MAX {
                    return Err(NodeError::NoSpace);
                }
            }
            _ => self.check_volume(peer, needed, request)?,
        }
        if let RequestBody::ShardList { from } = request.body {
            let volume = capability.volume;
            let writer = self.volumes.get(&volume).is_some_and(|known| known.holder == Some(peer));
            // A writer that lost its connection may have left writes behind. The writer compares
            // the list with its own map, and must not miss a shard that these writes complete.
            if writer && self.table.writes_for_others(volume, peer) {
                return Err(NodeError::Busy);
            }
            return Ok(Admission::Answer(self.list_shards(capability, from)));
        }
        self.open_entry(peer, request).map(Admission::Entry)
    }

    fn check_capability(
        &self,
        now_ns: u64,
        needed: Rights,
        request: &Request,
    ) -> Result<(), NodeError> {
        let capability = &request.capability;
        let cached = self
            .volumes
            .get(&capability.volume)
            .filter(|volume| volume.record.epoch == capability.epoch)
            .map(|volume| volume.key);
        let key =
            cached.unwrap_or_else(|| self.config.key.derive(capability.volume, capability.epoch));
        capability.check(&key, needed, now_ns).map_err(NodeError::Capability)?;
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

    /// The volume is known and at the capability's epoch. Notes who writes it.
    fn check_volume(
        &mut self,
        peer: PeerId,
        needed: Rights,
        request: &Request,
    ) -> Result<(), NodeError> {
        let volume = self.volumes.get_mut(&request.capability.volume).ok_or(NodeError::NotFound)?;
        let mends = matches!(request.body, RequestBody::RemoveVolume | RequestBody::RenewRecord);
        if volume.damaged.is_some() && mends {
            return Ok(());
        }
        check_epoch(volume, request.capability.epoch)?;
        if needed == Rights::WRITE {
            volume.holder = Some(peer);
        }
        Ok(())
    }

    fn list_shards(&self, capability: &Capability, from: SegmentId) -> ReplyBody {
        let from = from.max(capability.segment_first);
        let (shards, next) = self.store.list(capability.volume, from, capability.segment_last);
        ReplyBody::Shards { shards, next }
    }

    fn open_entry(&mut self, peer: PeerId, request: &mut Request) -> Result<EntryId, NodeError> {
        if self.table.is_full_for(&request.body) {
            return Err(NodeError::Busy);
        }
        let body = std::mem::replace(&mut request.body, RequestBody::Identify);
        let payload = std::mem::take(&mut request.payload);
        let volume = request.capability.volume;
        let (counted, task) = match body {
            RequestBody::Fence { takeover } => (false, Task::Fence { takeover }),
            RequestBody::PutRoot { version } => {
                (false, Task::PutRoot { version, root: crate::volumes::join(&payload) })
            }
            RequestBody::Reserve { slots, spare } => (false, Task::Reserve { slots, spare }),
            RequestBody::RenewRecord => (false, Task::RenewRecord),
            RequestBody::RemoveVolume => (false, Task::Remove(RemoveStep::Queued)),
            body => (true, Task::Parked(Box::new((body, payload)))),
        };
        if counted && let Some(volume) = self.volumes.get_mut(&volume) {
            volume.active += 1;
        }
        self.table.open(Entry {
            peer,
            peer_lost: false,
            tag: request.tag,
            volume,
            epoch: request.capability.epoch,
            counted,
            outstanding: 0,
            error: None,
            task,
        })
    }
}
