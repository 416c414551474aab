//! What a node knows about each volume: epoch, root, holder and journals.
//!
//! # Fencing
//! A volume has one writer at a time, the one with the highest epoch. A fence raises the stored
//! epoch, durably, before it is answered; from the moment on that it is accepted, requests with a
//! lower epoch are refused, and it takes effect only when those that were let in before have ended.
//! So after the answer nothing of an older writer can still reach a file: what the new writer reads
//! of a journal is final. Shards that older writers left incomplete are given up.
//!
//! Two writers that fence with the same epoch cannot both succeed on one node, since an epoch that
//! is not above the stored one is refused.
//!
//! # The holder
//! So that a second writer does not take a volume from a live one by accident, a fence is refused
//! with [`NodeError::InUse`] while the peer that holds the volume is connected, unless it asks for
//! a takeover. The holder is the peer that fenced the volume or last used a right to write at the
//! current epoch: a writer that lost its connection and came back with the same epoch is the holder
//! again with its first write.
//!
//! # Reservations
//! The record also says how many slots the volume has reserved (the store's `shares` say what that
//! means). A volume without a root keeps its reservation only while its writer is connected: a
//! writer that makes a volume and dies before the root is written takes no slots from others.
//!
//! # A damaged record
//! may have held any epoch, so the node refuses every request on the volume. A writer that serves
//! the volume with enough other nodes may have the record renewed
//! ([`fieldstone_proto::RequestBody::RenewRecord`]): its epoch is fenced in on those, and a newer
//! writer would have to fence at least one of them first. Where the epoch can be read, and only a
//! sync failed, a writer with a lower epoch is refused: it does not know yet that it is fenced. A
//! record that a newer release wrote is neither renewed nor removed.
//!
//! # Order
//! Fence, root, reservation, renewal and removal requests of one volume are carried out one after
//! the other, in the order in which they came. Fence and removal also wait for all other requests
//! on the volume to end.

mod journal;
mod record;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use bytes::Bytes;

use fieldstone_proto::disk::VolumeRecord;
use fieldstone_proto::{CapabilityKey, Epoch, JournalGen, JournalInfo, MasterKey, VolumeId};

pub(crate) use journal::{Journal, JournalStage, check_range};
pub(crate) use record::{check_epoch, join};

use crate::request_table::EntryId;
use crate::seam::PeerId;

/// What the volume's requests in order are doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// None is being carried out.
    Idle,
    /// The first waits for other requests to end.
    Draining,
    /// The first is being carried out.
    Running,
}

/// Which requests a fence or removal under way keeps out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// Those of epochs below this one.
    Fence(Epoch),
    /// All of them.
    Removal,
}

/// A volume as the node knows it.
#[derive(Debug)]
pub(crate) struct Volume {
    /// What is stored about it.
    pub(crate) record: VolumeRecord,
    /// The record is stored: the volume was fenced at least once.
    pub(crate) known: bool,
    /// The file for the record exists.
    pub(crate) has_file: bool,
    /// The stored record cannot be trusted, for this reason.
    pub(crate) damaged: Option<String>,
    /// A newer release wrote the stored record: the record cannot be trusted, and is left as it is.
    pub(crate) newer: bool,
    /// The key of capabilities at the current epoch.
    pub(crate) key: CapabilityKey,
    /// The connected peer that writes the volume.
    pub(crate) holder: Option<PeerId>,
    pub(crate) journals: BTreeMap<JournalGen, Journal>,
    /// Other requests on the volume in the table.
    pub(crate) active: u32,
    /// Fence, root, reservation, renewal and removal requests in order.
    pub(crate) ordered: VecDeque<EntryId>,
    pub(crate) turn: Turn,
    pub(crate) barrier: Option<Barrier>,
    /// The record being written.
    pub(crate) writing: Option<VolumeRecord>,
}

impl Volume {
    /// A volume of which nothing is stored.
    pub(crate) fn unknown(id: VolumeId, key: &MasterKey) -> Self {
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
            key: key.derive(id, Epoch(0)),
            holder: None,
            journals: BTreeMap::new(),
            active: 0,
            ordered: VecDeque::new(),
            turn: Turn::Idle,
            barrier: None,
            writing: None,
        }
    }

    /// Replaces the record by one that is stable.
    pub(crate) fn set_record(&mut self, record: VolumeRecord, key: &MasterKey) {
        self.key = key.derive(record.volume, record.epoch);
        self.record = record;
        self.known = true;
    }

    /// Its reservation counts: it has a root, or a writer is making it.
    pub(crate) fn claims(&self) -> bool {
        self.record.root_version > 0 || self.holder.is_some()
    }

    /// The journals that can be used.
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

    /// Nothing is stored and nothing is going on.
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

/// Takes the low half of an id for its hash. Ids are random, and only a client with a
/// signed capability can bring one into the map.
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
        // The table takes buckets from the low and tags from the high bits.
        self.0 = (id as u64) ^ (id >> 64) as u64;
    }
}
