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
use super::tenant::Tenant;
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
    pub(super) fn grow_if_due(&mut self, client: ClientId, tenant: usize) {
        let seat = &self.tenants[tenant];
        let due = |growth: &Growth| growth.at_request == seat.requests;
        if let Some(growth) = seat.share.growth.filter(due) {
            self.ask_to_grow(client, tenant, growth.size_bytes);
        }
    }

    /// Asks `client` to grow its volume.
    pub(super) fn ask_to_grow(&mut self, client: ClientId, tenant: usize, size_bytes: u64) {
        self.note(Who::World, "grow", size_bytes, format_args!("volume {tenant}"));
        let (at, impaired) = (self.now(), !self.fault_model.impaired().is_empty());
        let blocks = size_bytes / BLOCK_BYTES;
        let seat = &mut self.tenants[tenant];
        seat.asked_blocks.push(blocks);
        // A process that has a successor cannot grow the volume.
        if seat.newest == Some(client) {
            seat.pending_growth = Some(GrowthRequest { by: client, blocks, at, impaired });
        }
        self.with_volume(client, |volume, _| volume.request_grow(size_bytes));
    }

    /// Checks the size of a volume whose process did something.
    pub(super) fn watch_size(&mut self, client: ClientId) {
        let Some(host) = self.volumes.get(&client) else { return };
        let tenant = host.tenant;
        let seat = &mut self.tenants[tenant];
        if host.phase != VolumePhase::Serving || seat.active != Some(client) {
            return;
        }
        let (known, shown) = (seat.blocks, host.device.info().size_bytes / BLOCK_BYTES);
        if shown == known {
            return;
        }
        if shown < known {
            return self.fail(format!("volume {tenant} fell back from {known} to {shown} blocks"));
        }
        if !seat.asked_blocks.contains(&shown) {
            return self
                .fail(format!("volume {tenant} has {shown} blocks, which it was not asked for"));
        }
        seat.blocks = shown;
        seat.checker.grow(shown * seat.share.cells_per_block());
        if seat.pending_growth.is_some_and(|pending_growth| pending_growth.blocks <= shown) {
            seat.pending_growth = None;
        }
        self.note(Who::World, "grown", shown, format_args!("volume {tenant}: {shown} blocks"));
    }

    /// At an audit: checks that volumes that were asked grow in time, or give a reason.
    pub(super) fn audit_growth(&mut self) {
        let now = self.now();
        let (impaired, exceeded) =
            (!self.fault_model.impaired().is_empty(), self.fault_model.is_exceeded());
        for tenant in self.all_tenants() {
            let Some(mut pending_growth) = self.tenants[tenant].pending_growth else { continue };
            pending_growth.impaired |= impaired;
            if exceeded {
                pending_growth.at = now;
            }
            let Some(host) = self.volumes.get(&pending_growth.by) else {
                self.tenants[tenant].pending_growth = None;
                continue;
            };
            let refused = host.device.store().grow_refused();
            let served = self.tenants[tenant].active == Some(pending_growth.by);
            self.tenants[tenant].pending_growth =
                Some(pending_growth).filter(|_| refused.is_none() && served);
            if let Some(why) = refused.filter(|_| served) {
                self.note(Who::World, "grow", 0, format_args!("volume {tenant}: refused: {why}"));
                if !self.may_refuse_to_grow(tenant, pending_growth) {
                    self.fail(format!("volume {tenant} must not refuse to grow: {why}"));
                }
            } else if served && now.since(pending_growth.at).0 > GROW_NS_MAX {
                let (blocks, seconds) = (pending_growth.blocks, GROW_NS_MAX / 1_000_000_000);
                let state = self.describe_state();
                self.fail(format!(
                    "volume {tenant} neither has {blocks} blocks after {seconds} s nor says why: \
                     {state}"
                ));
            }
        }
    }

    /// Whether a volume may lack the room to grow.
    fn may_refuse_to_grow(&self, tenant: usize, pending_growth: GrowthRequest) -> bool {
        if self.tenants[tenant].share.provisioning == Provisioning::Thin {
            return false;
        }
        let slots = |(index, seat): (usize, &Tenant)| {
            let blocks = if index == tenant { pending_growth.blocks } else { seat.blocks };
            let size_bytes = blocks * BLOCK_BYTES;
            let geometry = Geometry { size_bytes, ..seat.share.geometry };
            slots_whole(&geometry, self.scenario.profile, self.scenario.nodes)
        };
        let needed: u64 = self.tenants.iter().enumerate().map(slots).sum();
        let impaired = pending_growth.impaired || self.were_disks_full_since(pending_growth.at);
        impaired || needed * 1000 > u64::from(self.scenario.slots) * SURE_PER_MILLE
    }

    /// At the end of a run: asks volumes that may grow once more.
    pub(super) fn grow_at_end(&mut self) -> Option<()> {
        for tenant in self.all_tenants() {
            let more = self.tenants[tenant].share.more_blocks_at_end;
            if more > 0 {
                let client = self.tenants[tenant].active?;
                let blocks = self.tenants[tenant].blocks + more;
                self.ask_to_grow(client, tenant, blocks * BLOCK_BYTES);
            }
        }
        self.collect_frames();
        self.until("volumes are larger, or say why not", 2 * GROW_NS_MAX, |world| {
            world.tenants.iter().all(|tenant| tenant.pending_growth.is_none())
        })
    }

    /// Moves some requests to a volume that has grown behind its old end.
    pub(super) fn behind_old_end(&mut self, client: ClientId, draft: Draft) -> Draft {
        let tenant = self.tenant_of(client);
        let seat = &mut self.tenants[tenant];
        let old = seat.share.plan.device_cells;
        let cells = seat.blocks * seat.share.cells_per_block();
        // A process with a successor may not know the new size.
        let covers = seat.newest == Some(client) && cells > old;
        if !covers || !seat.growth_rng.chance(BEHIND_PER_MILLE) {
            return draft;
        }
        let moved = draft.span.cells.min(cells - old);
        let first = old + seat.growth_rng.between(0, cells - old - moved);
        Draft { span: Span { first, cells: moved }, ..draft }
    }
}
