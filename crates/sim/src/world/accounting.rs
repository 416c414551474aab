//! Compares the nodes' own accounts with their disks and with the volumes' accounts.
//!
//! Space may be lost in three places. This module checks each:
//!
//! - *within a node*: its accounting agrees with itself, and with the slot headers, notes and
//!   journals on its disk. A slot that counts as free holds no header, even after a power loss. A
//!   slot that counts as a shard's holds this shard's header. No slot and no journal belongs to a
//!   volume that the node does not know. The volumes' records have the reservations;
//! - *between volume and node*: a settled volume knows every shard that a node holds for it, except
//!   those of the segments that it is writing to. Each node keeps for a settled thick volume the
//!   slots that its whole size takes, or all that the data of other volumes leaves;
//! - *in a volume*: after everything was trimmed, all nodes together hold a few slots of each thin
//!   volume.
//!
//! Each audit compares the accounting of nodes and volumes. When a node has started, and at every
//! [`AUDITS_PER_DISK`]th audit, the world compares them with the disk.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_node::{FileId, NodeAccounting, SlotShard, SlotUse};
use fieldstone_proto::disk::{OpenNote, SlotHeader, VOLUME_FILE_BYTES, VolumeRecord};
use fieldstone_proto::{JournalGen, NodeIndex, SegmentId, ShardIndex, VolumeId};
use fieldstone_volume::{Geometry, Provisioning, slots_whole};

use super::World;
use super::sim_volume::SimVolume;
use crate::actor::{Cast, NodeProcess, VolumeProcess};
use crate::disk::{SimDisk, View};
use crate::scenario::BLOCK_BYTES;
use crate::trace::Who;

/// The world reads a disk at one audit in this many.
const AUDITS_PER_DISK: u64 = 64;
/// Pages of the slots file for each slot: the header and the note.
const PAGES_PER_SLOT: usize = 2;
/// Segments that may be in use on an empty volume: open ones, and two checkpoints.
const EMPTY_SEGMENTS_MAX: u64 = 6;
/// Shards of a volume on one node that may take blocks: one of the users' open segment, and one of
/// collection's.
const OPEN_MAX: u64 = 2;
/// Longest virtual time until a settled volume has deleted shards that it does not need, and has
/// the slots that it was promised.
const SETTLED_NS_MAX: u64 = 60_000_000_000;

impl<C: Cast> World<'_, C> {
    /// At an audit: checks that every node's accounting agrees with itself, and for some nodes with
    /// the disk.
    pub(super) fn audit_nodes(&mut self) {
        self.audits += 1;
        for host in self.nodes.iter().filter(|host| !host.permanent_faults.silent) {
            if let Some(process) = &host.process {
                process.check();
            }
        }
        if self.audits.is_multiple_of(AUDITS_PER_DISK) {
            for node in 0..self.scenario.nodes {
                self.compare_with_disk(NodeIndex(node));
            }
            self.check_removed();
        }
    }

    /// Checks that a node that has become ready agrees with its disk.
    pub(super) fn check_started(&mut self, node: NodeIndex) {
        let host = &self.nodes[usize::from(node.0)];
        let ready = host.process.as_ref().is_some_and(NodeProcess::is_ready);
        if ready && host.checked_life != host.life {
            self.nodes[usize::from(node.0)].checked_life = host.life;
            self.compare_with_disk(node);
        }
    }

    /// Compares the accounting of `node` with its disk, unless the disk may be wrong: bits of its
    /// files have flipped, no process knows of a failed sync, or headers could not be read.
    fn compare_with_disk(&mut self, node: NodeIndex) {
        let host = &self.nodes[usize::from(node.0)];
        let accounting = host.process.as_ref().and_then(NodeProcess::accounting);
        let Some(accounting) = accounting else { return };
        let unread = accounting.slots.contains(&SlotUse::Bad);
        self.nodes[usize::from(node.0)].unread |= unread;
        let host = &self.nodes[usize::from(node.0)];
        if host.flipped || host.unsure || host.unread || host.permanent_faults.silent {
            return;
        }
        let failed = host.disk.errors_injected > host.errors_before;
        let compared = compare(&accounting, &host.disk, host.incarnation)
            .and_then(|()| if failed { Ok(()) } else { compare_files(&accounting, &host.disk) });
        if let Err(text) = compared {
            self.fail(format!("{node}: {text}"));
        }
    }

    /// The slots that `node` holds for a volume: all of them, those that take blocks, and those of
    /// rewritten shards until the new copy is stable. Zeroes while the node does not serve.
    fn held_for(&self, node: NodeIndex, volume: VolumeId) -> (u64, u64, u64) {
        let process = self.nodes[usize::from(node.0)].process.as_ref();
        let Some(accounting) = process.and_then(NodeProcess::accounting) else { return (0, 0, 0) };
        let count = |counts: &dyn Fn(&SlotUse) -> bool| {
            accounting.slots.iter().filter(|usage| counts(usage)).count() as u64
        };
        let open = count(&|usage| matches!(usage, SlotUse::Open(s) if s.volume == volume));
        let old = count(&|usage| matches!(usage, SlotUse::Superseded(s) if s.volume == volume));
        let share = accounting.volumes.iter().find(|share| share.volume == volume);
        (share.map_or(0, |share| u64::from(share.slots_held)), open, old)
    }

    /// Finds a node that holds more slots of a volume than the volume knows.
    fn unknown_slots(&self) -> Option<String> {
        for (index, sim_volume) in self.sim_volumes.iter().enumerate() {
            let health = self.volumes.get(&sim_volume.active?)?.device.store().health();
            for node in self.nodes_without_permanent_fault() {
                let known = health.nodes.get(usize::from(node.0))?.shards;
                let (held, open, old) = self.held_for(node, sim_volume.volume);
                if held - open - old > known || open > OPEN_MAX {
                    return Some(format!(
                        "{node} holds {held} slots of volume {index}, {open} of them open; the \
                         volume knows of {known}"
                    ));
                }
            }
        }
        None
    }

    /// Finds a node that keeps fewer slots for a thick volume than the volume's size takes. The
    /// data of other volumes may leave fewer, where it came first to a node that came back empty.
    fn lacking_slots(&self) -> Option<String> {
        let thick = |(_, sim_volume): &(usize, &SimVolume)| {
            sim_volume.share.provisioning == Provisioning::Thick
        };
        for (index, sim_volume) in self.sim_volumes.iter().enumerate().filter(thick) {
            let left = self.slots_left_for(index);
            let size_bytes = sim_volume.blocks * BLOCK_BYTES;
            let geometry = Geometry { size_bytes, ..sim_volume.share.geometry };
            let promised = slots_whole(&geometry, self.scenario.profile, self.scenario.nodes);
            for node in self.nodes_without_permanent_fault() {
                let process = self.nodes[usize::from(node.0)].process.as_ref();
                let accounting = process.and_then(NodeProcess::accounting)?;
                let share =
                    accounting.volumes.iter().find(|share| share.volume == sim_volume.volume);
                let reserved = share.map_or(0, |share| u64::from(share.slots_reserved));
                if reserved < promised.min(left) {
                    return Some(format!(
                        "{node} keeps {reserved} slots for a thick volume of {promised} slots"
                    ));
                }
            }
        }
        None
    }

    /// Waits until settled volumes know all slots that nodes hold for them, and until thick ones
    /// have all slots that they were promised. Both must be soon.
    pub(super) fn check_slots(&mut self) -> Option<()> {
        let limit = self.now().plus(Nanos(SETTLED_NS_MAX));
        while let Some(text) = self.unknown_slots().or_else(|| self.lacking_slots()) {
            if self.now() > limit {
                self.fail(format!("{text}: {}", self.describe_state()));
            }
            if !self.step() {
                return None;
            }
        }
        Some(())
    }

    /// Checks that nodes hold only a few slots of empty volumes.
    pub(super) fn check_space_came_back(&mut self) -> Option<()> {
        let allowed = EMPTY_SEGMENTS_MAX * self.scenario.profile.shards() as u64;
        for volume_number in self.volume_numbers() {
            // A thick volume keeps dead segments until it needs their room.
            let SimVolume { volume, share, .. } = &self.sim_volumes[volume_number];
            if share.provisioning == Provisioning::Thick {
                continue;
            }
            let held =
                self.nodes_without_permanent_fault().map(|node| self.held_for(node, *volume).0);
            let held: u64 = held.sum();
            self.note(
                Who::World,
                "space",
                held,
                format_args!("{held} slots of {volume_number} held"),
            );
            if held > allowed {
                let text =
                    format!("{held} slots of volume {volume_number} are in use though it is empty");
                self.fail(format!("{text}, not {allowed}"));
                return None;
            }
        }
        Some(())
    }
}

/// Compares a node's accounting with the slots file of its disk.
fn compare(accounting: &NodeAccounting, disk: &SimDisk, incarnation: u64) -> Result<(), String> {
    let mut held: BTreeMap<VolumeId, u32> = BTreeMap::new();
    for (slot, usage) in (0u32..).zip(&accounting.slots) {
        let record = SlotRecord { disk, incarnation, slot };
        record.check(usage).map_err(|text| format!("slot {slot} {text}"))?;
        if let SlotUse::Open(shard)
        | SlotUse::Complete(shard)
        | SlotUse::Sealing(shard)
        | SlotUse::Superseded(shard) = usage
        {
            *held.entry(shard.volume).or_default() += 1;
        }
    }
    for share in &accounting.volumes {
        let counted = held.remove(&share.volume).unwrap_or(0);
        if counted != share.slots_held {
            let text = format!("{counted} slots hold shards of volume {}", share.volume);
            return Err(format!("{text}, and {} count as held", share.slots_held));
        }
        if counted > 0 && !share.known {
            let text = format!("{counted} slots hold shards of volume {}", share.volume);
            return Err(format!("{text}, which has no record"));
        }
    }
    match held.first_key_value() {
        Some((volume, count)) => Err(format!("{count} slots hold shards of {volume}, unknown")),
        None => Ok(()),
    }
}

/// Compares a node's account of its volumes with their files. If operations failed since the node
/// started, there may be files that it does not know.
fn compare_files(accounting: &NodeAccounting, disk: &SimDisk) -> Result<(), String> {
    let files = disk.files();
    for file in &files {
        let FileId::Journal(id, generation) = file else { continue };
        let volume = accounting.volumes.iter().find(|volume| volume.volume == *id);
        if volume.is_none_or(|volume| !volume.busy && !volume.journals.contains(generation)) {
            return Err(format!(
                "journal {generation} of volume {id} is there, and counts for none"
            ));
        }
    }
    for volume in accounting.volumes.iter().filter(|volume| !volume.busy) {
        let id = volume.volume;
        let missing =
            |generation: &&JournalGen| !files.contains(&FileId::Journal(id, **generation));
        if let Some(generation) = volume.journals.iter().find(missing) {
            return Err(format!("journal {generation} of volume {id} is not there"));
        }
        let file = disk.head(FileId::Volume(id), VOLUME_FILE_BYTES);
        let record = file.map(|bytes| VolumeRecord::decode_file(&bytes, id));
        let reserved = match record {
            // A node keeps no slots for a volume without a root when its writer is gone.
            Some(Ok(record)) if record.root_version > 0 => record.slots_reserved,
            _ => continue,
        };
        if reserved != volume.slots_reserved {
            let told = volume.slots_reserved;
            return Err(format!(
                "volume {id} has {told} slots reserved, and {reserved} on the disk"
            ));
        }
    }
    Ok(())
}

/// The page of the slots file with the header of `slot`.
pub(super) fn header_page(slot: u32) -> usize {
    slot as usize * PAGES_PER_SLOT
}

/// The fields that name a shard in a header or note.
type Named = (VolumeId, SegmentId, ShardIndex, u64);

fn named(shard: &SlotShard) -> Named {
    (shard.volume, shard.segment, shard.shard, shard.sequence)
}

/// The record of a slot in the slots file.
struct SlotRecord<'a> {
    disk: &'a SimDisk,
    incarnation: u64,
    slot: u32,
}

impl SlotRecord<'_> {
    fn check(&self, usage: &SlotUse) -> Result<(), String> {
        let either = |view| self.header(view).or_else(|| self.note(view));
        match usage {
            SlotUse::Free => {
                if let Some(found) = either(View::Now) {
                    return Err(format!("counts as free, and holds {found:?}"));
                }
                // While the file `doubt` exists, a power loss may leave other contents than the
                // accounting says.
                let sure = |_: &Named| !self.disk.files().contains(&FileId::Doubt);
                if let Some(found) = either(View::AfterPowerLoss).filter(sure) {
                    return Err(format!("counts as free, and a loss of power shows {found:?}"));
                }
            }
            SlotUse::Erased => {
                if let Some(found) = self.header(View::Now) {
                    return Err(format!("counts as erased, and holds {found:?}"));
                }
            }
            SlotUse::Complete(shard) => {
                let found = self.header(View::Now);
                if found != Some(named(shard)) {
                    return Err(format!(
                        "should hold the header of {shard:?}, and holds {found:?}"
                    ));
                }
            }
            SlotUse::Open(shard) if shard.noted => {
                let found = self.note(View::Now);
                if found != Some(named(shard)) {
                    return Err(format!("should hold the note of {shard:?}, and holds {found:?}"));
                }
            }
            SlotUse::Open(_)
            | SlotUse::Sealing(_)
            | SlotUse::Superseded(_)
            | SlotUse::Leaving
            | SlotUse::Bad => {}
        }
        Ok(())
    }

    fn page(&self, page: usize, view: View) -> Option<Bytes> {
        self.disk.page(FileId::Slots, header_page(self.slot) + page, view)
    }

    fn header(&self, view: View) -> Option<Named> {
        let header = SlotHeader::decode(&self.page(0, view)?).ok()?;
        let own = header.slot == self.slot && header.incarnation == self.incarnation;
        own.then_some((header.volume, header.segment, header.shard, header.sequence))
    }

    fn note(&self, view: View) -> Option<Named> {
        let note = OpenNote::decode(&self.page(1, view)?).ok()?;
        let own = note.slot == self.slot && note.incarnation == self.incarnation;
        own.then_some((note.volume, note.segment, note.shard, note.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskKind;
    use crate::random::RandomStream;
    use fieldstone_node::VolumeAccounting;
    use fieldstone_proto::{Epoch, SealMeta};

    const VOLUME: VolumeId = VolumeId(7);
    const INCARNATION: u64 = 3;

    fn header(slot: u32, sequence: u64) -> SlotHeader {
        SlotHeader {
            volume: VOLUME,
            segment: SegmentId(9),
            shard: ShardIndex(1),
            epoch: Epoch(1),
            sequence,
            incarnation: INCARNATION,
            slot,
            stable_below: 0,
            meta: SealMeta { shard_bytes: 4096, ..SealMeta::default() },
            checksums: vec![0],
        }
    }

    /// A disk with a header in slot 0 and a blank slot 1.
    fn disk() -> SimDisk {
        let kind = DiskKind { read_ns: 1, write_ns: 1, sync_ns: 1, sector_bytes: 512 };
        let mut disk = SimDisk::new(RandomStream::new(1, "disk", 0), kind, u64::MAX);
        let mut bytes = header(0, 5).encode().to_vec();
        bytes.resize(4 * 4096, 0);
        disk.put(FileId::Slots, &bytes);
        disk
    }

    fn shard(sequence: u64) -> SlotShard {
        let (segment, shard) = (SegmentId(9), ShardIndex(1));
        SlotShard { volume: VOLUME, segment, shard, sequence, noted: false }
    }

    fn accounting(slots: [SlotUse; 2], slots_held: u32, known: bool) -> NodeAccounting {
        let volume = VolumeAccounting {
            volume: VOLUME,
            known,
            slots_held,
            slots_reserved: 4,
            journals: Vec::new(),
            busy: false,
        };
        NodeAccounting { slots: slots.to_vec(), volumes: vec![volume] }
    }

    fn complaint(slots: [SlotUse; 2], slots_held: u32) -> String {
        let result = compare(&accounting(slots, slots_held, true), &disk(), INCARNATION);
        result.err().unwrap_or_default()
    }

    #[test]
    fn accounting_that_agrees_with_the_disk_passes() {
        assert_eq!(complaint([SlotUse::Complete(shard(5)), SlotUse::Free], 1), "");
        assert_eq!(complaint([SlotUse::Leaving, SlotUse::Erased], 0), "");
    }

    #[test]
    fn a_slot_that_disagrees_with_its_header_is_found() {
        let what = complaint([SlotUse::Free, SlotUse::Free], 0);
        assert!(what.contains("slot 0 counts as free"), "{what}");
        let what = complaint([SlotUse::Erased, SlotUse::Free], 0);
        assert!(what.contains("slot 0 counts as erased"), "{what}");
        let what = complaint([SlotUse::Complete(shard(6)), SlotUse::Free], 1);
        assert!(what.contains("slot 0 should hold the header"), "{what}");
        let noted = SlotShard { noted: true, ..shard(5) };
        let what = complaint([SlotUse::Leaving, SlotUse::Open(noted)], 1);
        assert!(what.contains("slot 1 should hold the note"), "{what}");
    }

    #[test]
    fn slots_that_count_for_nothing_or_for_no_volume_are_found() {
        let slots = [SlotUse::Complete(shard(5)), SlotUse::Free];
        assert!(complaint(slots, 2).contains("2 count as held"));
        let unknown = compare(&accounting(slots, 1, false), &disk(), INCARNATION);
        assert!(unknown.expect_err("no record").contains("has no record"));
        let nameless = NodeAccounting { volumes: Vec::new(), ..accounting(slots, 1, true) };
        assert!(compare(&nameless, &disk(), INCARNATION).is_err());
    }

    #[test]
    fn an_erasure_that_is_not_stable_frees_no_slot() {
        let mut disk = disk();
        let id = fieldstone_node::DiskId(1);
        let data = vec![Bytes::from(vec![0; 4096])];
        let op = fieldstone_node::DiskOp::Write { file: FileId::Slots, offset_bytes: 0, data };
        disk.submit(id, op);
        disk.complete(id).expect("under way").expect("written");
        let accounting = accounting([SlotUse::Free, SlotUse::Free], 0, true);
        let what = compare(&accounting, &disk, INCARNATION).expect_err("not stable");
        assert!(what.contains("a loss of power shows"), "{what}");
    }
}
