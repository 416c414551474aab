//! Expected space: when a volume may refuse a request for lack of space.
//!
//! A volume may answer ENOSPC only when the pool is really short of space. The world knows the
//! amount of data that users have stored on all volumes together, and the capacity of the nodes.
//! While the live data takes less than [`SHORT_PER_MILLE`] of the slots for data, or less than
//! [`GROWN_SHORT_PER_MILLE`] in a pool with space for all volumes, every write fits, whichever
//! volume it goes to. Two kinds of slots are not for data: [`SLOTS_KEPT`] slots per node
//! and volume (open segments, checkpoints, the reserve of collection), and all slots of nodes that
//! a fault of their own has struck. A thick volume takes its whole size, whatever users have
//! stored. A thick volume answers ENOSPC only when nodes are lost: in a pool that has more nodes
//! than a segment has shards, until the volumes are whole again; in other pools, while faults of
//! their own have struck nodes.

use std::collections::BTreeSet;
use std::ops::Range;

use fieldstone_volume::{Geometry, Provisioning, slots_whole};

use super::World;
use super::users::InFlight;
use crate::actor::Cast;
use crate::scenario::{BLOCK_BYTES, Kind, VolumePlan};

/// Slots of a node that each volume may use for other purposes than users' data.
const SLOTS_KEPT: u64 = 16;
/// Slots of a node that a volume needs besides those of its data: for the segments that it writes
/// to, a checkpoint, and the reserve of collection.
const SLOTS_NEEDED: u64 = 4;
/// While live data takes less than this share of the slots for data, per thousand, no volume may
/// refuse a change. The rest may be garbage of other volumes: a thin volume grows up to its size
/// before it collects, so it may hold as much garbage as live data.
const SHORT_PER_MILLE: u64 = 500;
/// The same in a pool that had space for all volumes until one of them grew. That volume took the
/// slots from the others, and no garbage did. But it keeps a twelfth of its segments for garbage,
/// and more slots for them when nodes are lost: five thirds of a twelfth at most.
const GROWN_SHORT_PER_MILLE: u64 = 860;
/// Data blocks for each of which a segment may need one more block of its footer.
const BLOCKS_PER_FOOTER_BLOCK: u64 = 128;

/// The blocks of a volume that read as zeroes and may keep their space, because users have reserved
/// them, or have zeroed parts of them.
#[derive(Default)]
pub(super) struct Reserved {
    blocks: BTreeSet<u64>,
    /// Blocks that users have trimmed since the last flush. After a power loss they may be reserved
    /// again.
    trimmed: BTreeSet<u64>,
}

impl Reserved {
    /// Users reserve these blocks, or have reserved them.
    pub fn reserve(&mut self, blocks: Range<u64>) {
        self.blocks.extend(blocks);
    }

    /// The volume has trimmed these blocks.
    pub fn trim(&mut self, blocks: Range<u64>) {
        let taken = blocks.filter(|block| self.blocks.remove(block));
        self.trimmed.extend(taken);
    }

    pub fn flushed(&mut self) {
        self.trimmed.clear();
    }

    pub fn power_lost(&mut self) {
        self.blocks.append(&mut self.trimmed);
    }
}

impl<C: Cast> World<'_, C> {
    /// True when the pool may have been too full for `request` at any time since it was made.
    pub(super) fn is_short_of_space(&self, volume_number: usize, request: &InFlight) -> bool {
        let scenario = &self.scenario;
        let small = matches!(scenario.kind, Kind::Full | Kind::Crowded);
        // Other pools have space for all volumes, but only for the sizes of their creation.
        let grown = self.sim_volumes.iter().any(|sim_volume| !sim_volume.asked_blocks.is_empty());
        if !small && !grown {
            return false;
        }
        let thick = self.sim_volumes[volume_number].share.provisioning == Provisioning::Thick;
        // With lost nodes, the other nodes hold more than a thick volume has reserved on each.
        let spare_nodes = usize::from(scenario.nodes) > scenario.profile.shards();
        let impaired = match spare_nodes {
            true => self.fault_model.was_impaired_since(request.since),
            false => self.fault_model.struck() > 0,
        };
        if thick && !impaired {
            return false;
        }
        let (taken, space) = self.slots_taken_of(request.freed_before);
        let short_per_mille = if small { SHORT_PER_MILLE } else { GROWN_SHORT_PER_MILLE };
        taken * 1000 > space * short_per_mille
    }

    /// The slots of a node that other volumes leave to a volume when they have collected their
    /// garbage, except the share that they may keep. A node that came back empty can grant a thick
    /// volume no more than that, if the other volumes came first.
    /// While no fault has struck a node for good, nothing excuses fewer slots than promised.
    pub(super) fn slots_left_for(&self, volume_number: usize) -> u64 {
        if self.fault_model.struck() == 0 {
            return u64::MAX;
        }
        let scenario = &self.scenario;
        let alive = usize::from(scenario.nodes).saturating_sub(self.fault_model.struck()).max(1);
        let width = scenario.profile.shards().min(alive) as u64;
        let taken = |other: usize| {
            let share = &self.sim_volumes[other].share;
            if share.provisioning == Provisioning::Thick {
                return slots_whole(&share.geometry, scenario.profile, scenario.nodes);
            }
            let segments = (self.live_segments(other) * 12).div_ceil(11);
            (segments * width).div_ceil(alive as u64) + SLOTS_NEEDED
        };
        let others = self.volume_numbers().filter(|other| *other != volume_number);
        u64::from(scenario.slots).saturating_sub(others.map(taken).sum())
    }

    /// The blocks of users in a segment.
    fn data_blocks(&self, volume_number: usize) -> u64 {
        let shard_bytes = u64::from(self.sim_volumes[volume_number].share.geometry.shard_bytes);
        let blocks = shard_bytes * self.scenario.profile.k() as u64 / BLOCK_BYTES;
        blocks - (1 + blocks / BLOCKS_PER_FOOTER_BLOCK)
    }

    /// The blocks that users have stored or reserved.
    fn used_blocks(&self, volume_number: usize) -> u64 {
        let sim_volume = &self.sim_volumes[volume_number];
        sim_volume.checker.used(sim_volume.share.cells_per_block(), &sim_volume.reserved.blocks)
    }

    /// The segments that these blocks fill.
    fn live_segments(&self, volume_number: usize) -> u64 {
        self.used_blocks(volume_number).div_ceil(self.data_blocks(volume_number))
    }

    /// A volume is gone from all nodes. Requests that wait now were made while the pool held its
    /// blocks.
    pub(super) fn note_removed(&mut self, volume_number: usize) {
        let used = self.used_blocks(volume_number);
        let sim_volume = &self.sim_volumes[volume_number];
        self.freed_blocks += match sim_volume.share.provisioning {
            Provisioning::Thin => used,
            Provisioning::Thick => used.max(sim_volume.blocks),
        };
    }

    /// The number of slots that live data takes, including data that was trimmed, or removed with
    /// its volume, after `freed_before`; and the number of slots that the pool has for data.
    pub(super) fn slots_taken_of(&self, freed_before: u64) -> (u64, u64) {
        let scenario = &self.scenario;
        let nodes = usize::from(scenario.nodes).saturating_sub(self.fault_model.struck());
        let width = scenario.profile.shards().min(nodes) as u64;
        let live = |volume_number: usize| {
            let sim_volume = &self.sim_volumes[volume_number];
            let live = self.live_segments(volume_number) * width;
            let VolumePlan { geometry, provisioning, .. } = &sim_volume.share;
            if *provisioning == Provisioning::Thin {
                return live;
            }
            // The volume may have reserved slots for a size that it was asked to grow to.
            let blocks =
                sim_volume.asked_blocks.iter().copied().max().unwrap_or(0).max(sim_volume.blocks);
            let size_bytes = blocks * BLOCK_BYTES;
            let geometry = Geometry { size_bytes, ..*geometry };
            let whole = slots_whole(&geometry, scenario.profile, scenario.nodes);
            live.max(whole * u64::from(scenario.nodes))
        };
        let blocks = self.volume_numbers().map(|volume_number| self.data_blocks(volume_number));
        let smallest = blocks.min().unwrap_or(1);
        let freed = (self.freed_blocks - freed_before).div_ceil(smallest) * width;
        let spare = SLOTS_KEPT * self.sim_volumes.len() as u64;
        let space = nodes as u64 * u64::from(scenario.slots).saturating_sub(spare);
        (self.volume_numbers().map(live).sum::<u64>() + freed, space)
    }
}
