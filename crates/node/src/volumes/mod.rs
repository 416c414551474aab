//! The node's knowledge about each volume: epoch, root, holder and journals.
//!
//! # Fencing
//! A volume has one writer at a time, the one with the highest epoch. A fence raises the stored
//! epoch, durably, before the node answers it. From the moment that the node accepts a fence, it
//! refuses requests with a lower epoch. The fence takes effect only when the requests admitted
//! before have ended. So after the answer no write of an older writer can still reach a file: a
//! journal that the new writer reads is final. The node gives up shards that older writers left
//! incomplete.
//!
//! Two writers that fence with the same epoch cannot both succeed on one node, because the node
//! refuses an epoch that is not above the stored one.
//!
//! # The holder
//! A second writer must not take a volume from a live one by accident. So the node refuses a fence
//! with [`NodeError::InUse`] while the volume's holder is connected, unless the fence asks for a
//! takeover. The holder is the peer that fenced the volume, or that last used a right to write or
//! reserved slots at the current epoch.
//!
//! A writer that lost its connection comes back with the same epoch, and fences again before it
//! relies on anything. The node refuses that fence, but the new connection is the holder from then
//! on, and the old one is *superseded*: the node refuses its requests, except a fence with a higher
//! epoch. The network may still deliver such requests, for example when a silent link works again.
//! The writer compares the node's shards with its own map over the new connection. A late deletion
//! or a late write of a shard would change the shards without the writer's knowledge. Peers of one
//! writer have rising numbers ([`PeerId`]), so a late fence of an old connection supersedes no
//! newer one.
//!
//! # Writes from other nodes
//! A node may get a volume's write from another node (`relays`). The other node does not become the
//! holder. It must show the pass that the holder announced last over its present connection. So
//! when the writer comes back over another connection, or announces a new pass, no write that other
//! nodes still have in their queues reaches a file any more.
//!
//! # Reservations
//! The record also says how many slots the volume has reserved (see the store's `allotments`). A
//! volume without a root keeps its reservation only while its writer is connected: if a writer
//! creates a volume and dies before the root is written, it takes no slots from others.
//!
//! # A damaged record
//! A damaged record may have held any epoch, so the node refuses every request on the volume. A
//! writer that serves the volume with enough other nodes may renew the record
//! ([`fieldstone_proto::RequestBody::RenewRecord`]). It first asks these nodes whether they still
//! have its epoch: a newer writer has to fence at least one of them. If the node could read the
//! epoch, and only a sync failed, it refuses a writer with a lower epoch: that writer does not know
//! yet that it is fenced. The node neither renews nor removes a record that a newer release wrote.
//!
//! # Removed volumes
//! A fence makes a record where there is none. A writer may have died while its fence was under
//! way, and the network may deliver the fence after the volume was removed. Then the node would
//! keep a record of a volume that is gone. So the node remembers the epochs of the volumes that
//! were removed last, and refuses fences that are not above them. A removal fences the volume
//! first, so every earlier writer has a lower epoch. The node need not remember the epochs beyond
//! its process, because a restart ends all connections.
//!
//! # Order
//! The node carries out fence, root, reservation, renewal and removal requests of one volume one
//! after another, in their order of arrival. A fence or removal also waits until all other requests
//! on the volume have ended.

mod journal;
mod record;
mod removed;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use bytes::Bytes;

use fieldstone_proto::disk::VolumeRecord;
use fieldstone_proto::{
    CapabilityKey, Epoch, JournalGen, JournalInfo, NodeError, Pass, PoolKeys, VolumeId,
};

pub(crate) use journal::{Journal, JournalStage, check_range};
pub(crate) use record::{check_epoch, join};
pub(crate) use removed::Removed;

use crate::interface::PeerId;
use crate::request_table::EntryId;

/// The state of the volume's ordered requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderedQueueState {
    /// No ordered request is being carried out.
    Idle,
    /// The first one waits until other requests end.
    Draining,
    /// The node carries out the first one.
    Running,
}

/// The requests that a fence or removal under way keeps out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// Requests with epochs below this one.
    Fence(Epoch),
    /// All requests.
    Removal,
}

/// A volume as the node knows it.
#[derive(Debug)]
pub(crate) struct Volume {
    /// The stored record.
    pub(crate) record: VolumeRecord,
    /// The record is stored: the volume was fenced at least once.
    pub(crate) known: bool,
    /// The file for the record exists.
    pub(crate) has_file: bool,
    /// The stored record cannot be trusted, for this reason.
    pub(crate) damaged: Option<String>,
    /// A newer release wrote the stored record. The node cannot trust the record, and leaves it
    /// unchanged.
    pub(crate) newer: bool,
    /// The key of capabilities at the current epoch, of the generation that signs.
    pub(crate) key: CapabilityKey,
    /// The connected peer that writes the volume.
    pub(crate) holder: Option<PeerId>,
    /// Connected peers that were the holder, until their writer came back over another connection.
    pub(crate) superseded: Vec<PeerId>,
    /// The pass that other nodes must show, and the connection over which the writer announced it.
    admitted: Option<(PeerId, Pass)>,
    pub(crate) journals: BTreeMap<JournalGen, Journal>,
    /// Other requests on the volume in the request table.
    pub(crate) active: u32,
    /// Fence, root, reservation, renewal and removal requests in order.
    pub(crate) ordered: VecDeque<EntryId>,
    pub(crate) queue_state: OrderedQueueState,
    pub(crate) barrier: Option<Barrier>,
    /// The record that the node is writing.
    pub(crate) writing: Option<VolumeRecord>,
}

impl Volume {
    /// A volume without any stored data.
    pub(crate) fn unknown(id: VolumeId, keys: &PoolKeys) -> Self {
        let record = VolumeRecord {
            volume: id,
            sequence: 0,
            epoch: Epoch(0),
            root_version: 0,
            root: Bytes::new(),
            slots_reserved: 0,
        };
        Self {
            record,
            known: false,
            has_file: false,
            damaged: None,
            newer: false,
            key: keys.derive(id, Epoch(0)),
            holder: None,
            superseded: Vec::new(),
            admitted: None,
            journals: BTreeMap::new(),
            active: 0,
            ordered: VecDeque::new(),
            queue_state: OrderedQueueState::Idle,
            barrier: None,
            writing: None,
        }
    }

    /// Replaces the record with one that is stable.
    pub(crate) fn set_record(&mut self, record: VolumeRecord, keys: &PoolKeys) {
        self.key = keys.derive(record.volume, record.epoch);
        self.record = record;
        self.known = true;
    }

    /// The writer of the present epoch uses the connection of `peer`: its newest one, or one that
    /// it has given up.
    pub(crate) fn used_by(&mut self, peer: PeerId) {
        let before = self.holder.replace(peer).unwrap_or(peer);
        self.holder = Some(peer.max(before));
        if before != peer {
            self.superseded.push(peer.min(before));
        }
    }

    /// Requires that the writer of the present epoch has not come back over another connection.
    pub(crate) fn check_connection(&self, peer: PeerId) -> Result<(), NodeError> {
        match self.superseded.contains(&peer) {
            true => {
                let text = "the writer has come back over another connection";
                Err(NodeError::Invalid(text.into()))
            }
            false => Ok(()),
        }
    }

    /// From now on other nodes must show `pass`, for as long as the writer uses this connection.
    pub(crate) fn admit_relays(&mut self, peer: PeerId, pass: Pass) {
        self.admitted = Some((peer, pass));
    }

    /// Requires that the writer is connected, and has announced this pass last. The sender may try
    /// again later, or the writer itself.
    pub(crate) fn check_pass(&self, pass: Pass) -> Result<(), NodeError> {
        match (self.admitted, self.holder) {
            (Some((peer, announced)), Some(holder)) if peer == holder && announced == pass => {
                Ok(())
            }
            _ => Err(NodeError::Busy),
        }
    }

    /// The volume's reservation is in force: the volume has a root, or a writer is creating it.
    pub(crate) fn claims(&self) -> bool {
        self.record.root_version > 0 || self.holder.is_some()
    }

    /// The usable journals.
    pub(crate) fn journal_infos(&self) -> Vec<JournalInfo> {
        self.journals
            .iter()
            .filter(|(_, journal)| journal.stage == JournalStage::Ready)
            .map(|(&generation, journal)| JournalInfo {
                generation,
                ring_bytes: journal.ring_bytes,
            })
            .collect()
    }

    /// The node stores nothing about the volume, and no work on it is under way.
    pub(crate) fn is_forgettable(&self) -> bool {
        !self.known
            && self.damaged.is_none()
            && self.journals.is_empty()
            && self.ordered.is_empty()
            && self.active == 0
    }
}

/// The volumes by id.
pub(crate) type Volumes = HashMap<VolumeId, Volume, BuildHasherDefault<IdHasher>>;

/// Takes the low half of an id as its hash. Ids are random, and only a client with a signed
/// capability can add one to the map.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u128(&mut self, id: u128) {
        // The table takes buckets from the low bits and tags from the high bits.
        self.0 = (id as u64) ^ (id >> 64) as u64;
    }
}
