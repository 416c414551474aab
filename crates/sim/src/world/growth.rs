//! Growth of volumes: the duties of a process that is asked to grow, and the sizes that must last.
//!
//! - A process that is asked is larger after [`GROW_NS_MAX`], or gives a reason. Only a thick
//!   volume may give a reason, and only if the pool may be short of room or nodes were impaired. If
//!   the process dies before that, the volume has the old size or the new one.
//! - A size that a process has shown lasts, whatever happens: every later process of the volume
//!   shows it.
//! - Every volume has its first size, or one of the requested sizes.
//! - Users write and read behind the old end as soon as the volume is larger.
//!
//! If an earlier change of its reservation never ends, a process does not grow either. So at the
//! end of a run the world asks volumes once more.

use fieldstone_block::Nanos;
use fieldstone_volume::{Geometry, Provisioning, VolumePhase, slots_whole};

use super::World;
use super::sim_volume::SimVolume;
use crate::actor::{Cast, VolumeProcess};
use crate::checker::Span;
use crate::network::ClientId;
use crate::scenario::{BLOCK_BYTES, Growth};
use crate::trace::Who;
use crate::workload::Draft;

/// Longest virtual time until a process that is asked is larger, or gives a reason. It waits up to
/// 20 s for other volumes to give back room. Before that it may wait for the end of another change
/// of its reservation, and after that for absent nodes.
pub(super) const GROW_NS_MAX: u64 = 60_000_000_000;
/// Requests behind the old end of a volume that has grown, per thousand.
const BEHIND_PER_MILLE: u32 = 400;
/// A thick volume must grow while all volumes, at full size, take less than this share of the
/// slots, per thousand. Thin volumes may hold as many slots again as they need, until they are
/// asked for them.
const SURE_PER_MILLE: u64 = 500;

/// A growth that the world asked a process for.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrowthRequest {
    by: ClientId,
    blocks: u64,
    /// The time of the request, or the last time when more nodes were away than the code survives.
    at: Nanos,
    /// A node was impaired since then.
    impaired: bool,
}

impl<C: Cast> World<'_, C> {
    /// Asks `client` for the growth that is due after the last request to its volume, if there is
    /// one.
    pub(super) fn grow_if_due(&mut self, client: ClientId, volume_number: usize) {
        let sim_volume = &self.sim_volumes[volume_number];
        let due = |growth: &Growth| growth.at_request == sim_volume.requests;
        if let Some(growth) = sim_volume.share.growth.filter(due) {
            self.ask_to_grow(client, volume_number, growth.size_bytes);
        }
    }

    /// Asks `client` to grow its volume.
    pub(super) fn ask_to_grow(&mut self, client: ClientId, volume_number: usize, size_bytes: u64) {
        self.note(Who::World, "grow", size_bytes, format_args!("volume {volume_number}"));
        let (at, impaired) = (self.now(), !self.fault_model.impaired().is_empty());
        let blocks = size_bytes / BLOCK_BYTES;
        let sim_volume = &mut self.sim_volumes[volume_number];
        sim_volume.asked_blocks.push(blocks);
        // A process that has a successor cannot grow the volume.
        if sim_volume.newest == Some(client) {
            sim_volume.pending_growth = Some(GrowthRequest { by: client, blocks, at, impaired });
        }
        self.with_volume(client, |volume, _| volume.request_grow(size_bytes));
    }

    /// Checks the size of a volume whose process did something.
    pub(super) fn watch_size(&mut self, client: ClientId) {
        let Some(host) = self.volumes.get(&client) else { return };
        let volume_number = host.volume_number;
        let sim_volume = &mut self.sim_volumes[volume_number];
        if host.phase != VolumePhase::Serving || sim_volume.active != Some(client) {
            return;
        }
        let (known, shown) = (sim_volume.blocks, host.device.info().size_bytes / BLOCK_BYTES);
        if shown == known {
            return;
        }
        if shown < known {
            return self
                .fail(format!("volume {volume_number} fell back from {known} to {shown} blocks"));
        }
        if !sim_volume.asked_blocks.contains(&shown) {
            return self.fail(format!(
                "volume {volume_number} has {shown} blocks, which it was not asked for"
            ));
        }
        sim_volume.blocks = shown;
        sim_volume.checker.grow(shown * sim_volume.share.cells_per_block());
        if sim_volume.pending_growth.is_some_and(|pending_growth| pending_growth.blocks <= shown) {
            sim_volume.pending_growth = None;
        }
        self.note(
            Who::World,
            "grown",
            shown,
            format_args!("volume {volume_number}: {shown} blocks"),
        );
    }

    /// At an audit: checks that volumes that were asked grow in time, or give a reason.
    pub(super) fn audit_growth(&mut self) {
        let now = self.now();
        let (impaired, exceeded) =
            (!self.fault_model.impaired().is_empty(), self.fault_model.is_exceeded());
        for volume_number in self.volume_numbers() {
            let Some(mut pending_growth) = self.sim_volumes[volume_number].pending_growth else {
                continue;
            };
            pending_growth.impaired |= impaired;
            if exceeded || self.sim_volumes[volume_number].refused.was_since(now) {
                pending_growth.at = now;
            }
            let Some(host) = self.volumes.get(&pending_growth.by) else {
                self.sim_volumes[volume_number].pending_growth = None;
                continue;
            };
            let refused = host.device.store().grow_refused();
            let served = self.sim_volumes[volume_number].active == Some(pending_growth.by);
            self.sim_volumes[volume_number].pending_growth =
                Some(pending_growth).filter(|_| refused.is_none() && served);
            if let Some(why) = refused.filter(|_| served) {
                self.note(
                    Who::World,
                    "grow",
                    0,
                    format_args!("volume {volume_number}: refused: {why}"),
                );
                if !self.may_refuse_to_grow(volume_number, pending_growth) {
                    self.fail(format!("volume {volume_number} must not refuse to grow: {why}"));
                }
            } else if served && now.since(pending_growth.at).0 > GROW_NS_MAX {
                let (blocks, seconds) = (pending_growth.blocks, GROW_NS_MAX / 1_000_000_000);
                let state = self.describe_state();
                self.fail(format!(
                    "volume {volume_number} neither has {blocks} blocks after {seconds} s nor \
                     says why: {state}"
                ));
            }
        }
    }

    /// Whether a volume may lack the room to grow.
    fn may_refuse_to_grow(&self, volume_number: usize, pending_growth: GrowthRequest) -> bool {
        if self.sim_volumes[volume_number].share.provisioning == Provisioning::Thin {
            return false;
        }
        let slots = |(index, sim_volume): (usize, &SimVolume)| {
            let blocks =
                if index == volume_number { pending_growth.blocks } else { sim_volume.blocks };
            let size_bytes = blocks * BLOCK_BYTES;
            let geometry = Geometry { size_bytes, ..sim_volume.share.geometry };
            slots_whole(&geometry, self.scenario.profile, self.scenario.nodes)
        };
        let needed: u64 = self.sim_volumes.iter().enumerate().map(slots).sum();
        let impaired = pending_growth.impaired || self.were_disks_full_since(pending_growth.at);
        impaired || needed * 1000 > u64::from(self.scenario.slots) * SURE_PER_MILLE
    }

    /// At the end of a run: asks volumes that may grow once more.
    pub(super) fn grow_at_end(&mut self) -> Option<()> {
        for volume_number in self.volume_numbers() {
            let more = self.sim_volumes[volume_number].share.more_blocks_at_end;
            if more > 0 {
                let client = self.sim_volumes[volume_number].active?;
                let blocks = self.sim_volumes[volume_number].blocks + more;
                self.ask_to_grow(client, volume_number, blocks * BLOCK_BYTES);
            }
        }
        self.collect_frames();
        self.until("volumes are larger, or say why not", 2 * GROW_NS_MAX, |world| {
            world.sim_volumes.iter().all(|sim_volume| sim_volume.pending_growth.is_none())
        })
    }

    /// Moves some requests to a volume that has grown behind its old end.
    pub(super) fn behind_old_end(&mut self, client: ClientId, draft: Draft) -> Draft {
        let volume_number = self.volume_number_of(client);
        let sim_volume = &mut self.sim_volumes[volume_number];
        let old = sim_volume.share.plan.device_cells;
        let cells = sim_volume.blocks * sim_volume.share.cells_per_block();
        // A process with a successor may not know the new size.
        let covers = sim_volume.newest == Some(client) && cells > old;
        if !covers || !sim_volume.growth_rng.chance(BEHIND_PER_MILLE) {
            return draft;
        }
        let moved = draft.span.cells.min(cells - old);
        let first = old + sim_volume.growth_rng.between(0, cells - old - moved);
        Draft { span: Span { first, cells: moved }, ..draft }
    }
}
