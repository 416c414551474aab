//! The volumes of a run. Each has its own users, checker and processes; they share the nodes.

use std::ops::Range;

use fieldstone_block::Nanos;
use fieldstone_proto::{Epoch, VolumeId};

use super::World;
use super::expected_space::Reserved;
use super::growth::GrowthRequest;
use super::removal::Removal;
use super::rotation::Refused;
use crate::actor::Cast;
use crate::checker::{Checker, Span};
use crate::network::ClientId;
use crate::random::RandomStream;
use crate::scenario::{BLOCK_BYTES, Scenario, VolumePlan};
use crate::workload::Workload;

/// The id of the first volume of every run; the others follow it.
const VOLUME: u128 = 0x5eed;

/// The distance between the ids of a volume that was removed and created again: larger than the
/// number of volumes.
const ID_STEP: u128 = 0x1_0000;

/// The state of a scrub that the world needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scrub {
    /// The world has not asked for a scrub.
    Idle,
    /// The world has asked this process for a scrub.
    Requested { by: ClientId, at: Nanos },
    /// A scrub has ended since the last damage, and left nothing out.
    Done,
}

/// One volume of the run. Different processes may serve it.
pub(super) struct SimVolume {
    pub volume: VolumeId,
    pub share: VolumePlan,
    pub workload: Workload,
    pub checker: Checker,
    pub reserved: Reserved,
    /// The volume process that users talk to; the last one started.
    pub active: Option<ClientId>,
    /// The process that was started last, alive or not.
    pub newest: Option<ClientId>,
    /// A `Work` event is on the schedule.
    pub work_pending: bool,
    /// An `Open` event is on the schedule.
    pub open_pending: bool,
    /// Requests that a writer with a successor may still get.
    pub stale_ops_left: u32,
    /// Number of requests of its users.
    pub requests: u32,
    pub scrub: Scrub,
    pub opening_failures: u32,
    /// When a change last succeeded.
    pub changed_at: Nanos,
    /// When the volume stopped serving; `None` while it serves, and before it first did.
    pub shut_since: Option<Nanos>,
    /// Deaths of processes since a process served.
    pub strikes_since_serving: u32,
    /// The volume's size, as far as a process has shown it.
    pub blocks: u64,
    /// Every size that the world asked a process to grow to.
    pub asked_blocks: Vec<u64>,
    /// The growth that the world asked its process for, until it ends.
    pub pending_growth: Option<GrowthRequest>,
    pub growth_rng: RandomStream,
    /// The progress of its removal, if it is to be removed.
    pub removal: Option<Removal>,
    /// A `Remove` event is on the schedule.
    pub removal_pending: bool,
    pub removal_rng: RandomStream,
    /// The epoch of the next command that removes the volume.
    pub removal_epoch: Epoch,
    /// The ids under which the volume was removed.
    pub removed: Vec<VolumeId>,
    /// A process has served the volume under its present id.
    pub made: bool,
    /// The highest epoch that each node has shown since the node was empty.
    pub epochs: Vec<Epoch>,
    /// Whether nodes refuse it because its process missed a rotation of the secret.
    pub refused: Refused,
}

impl SimVolume {
    /// Volume number `index` of `scenario`, before its first process starts.
    pub fn new(scenario: &Scenario, index: usize) -> Self {
        let share = scenario.volumes[index].clone();
        let first = ClientId(u32::try_from(index).unwrap_or(u32::MAX));
        let rng = RandomStream::new(scenario.seed, "workload", index as u64);
        Self {
            volume: VolumeId(VOLUME + index as u128),
            workload: Workload::new(share.plan.clone(), rng),
            checker: Checker::new(share.plan.device_cells, share.cell_bytes, first),
            reserved: Reserved::default(),
            share,
            active: None,
            newest: None,
            work_pending: false,
            open_pending: false,
            stale_ops_left: 0,
            requests: 0,
            scrub: Scrub::Idle,
            opening_failures: 0,
            changed_at: Nanos(0),
            shut_since: None,
            strikes_since_serving: 0,
            blocks: scenario.volumes[index].geometry.size_bytes / BLOCK_BYTES,
            asked_blocks: Vec::new(),
            pending_growth: None,
            growth_rng: RandomStream::new(scenario.seed, "behind", index as u64),
            removal: None,
            removal_pending: false,
            removal_rng: RandomStream::new(scenario.seed, "removing", index as u64),
            removal_epoch: Epoch(1),
            removed: Vec::new(),
            made: false,
            epochs: vec![Epoch(0); usize::from(scenario.nodes)],
            refused: Refused::default(),
        }
    }

    /// The volume was removed, and will be created again: it has a new id, and is empty. `client`
    /// will be its first process.
    pub fn start_over(&mut self, client: ClientId) {
        self.volume = VolumeId(self.volume.0 + ID_STEP);
        let VolumePlan { plan, cell_bytes, .. } = &self.share;
        self.checker = Checker::new(plan.device_cells, *cell_bytes, client);
        self.reserved = Reserved::default();
        self.blocks = self.share.geometry.size_bytes / BLOCK_BYTES;
        self.asked_blocks.clear();
        self.pending_growth = None;
        self.newest = None;
        self.stale_ops_left = 0;
        self.scrub = Scrub::Idle;
        self.epochs.fill(Epoch(0));
        self.removal = None;
        self.removal_epoch = Epoch(1);
        self.made = false;
    }
}

impl SimVolume {
    /// The cells of these blocks.
    pub fn cells_of(&self, blocks: Range<u64>) -> Span {
        let each = self.share.cells_per_block();
        Span { first: blocks.start * each, cells: (blocks.end - blocks.start) * each }
    }

    /// The blocks that the span covers, whole or in part.
    pub fn blocks_of(&self, span: Span) -> Range<u64> {
        let each = self.share.cells_per_block();
        span.first / each..(span.first + span.cells).div_ceil(each)
    }

    /// The blocks that the span covers whole. A range that starts at its end is empty.
    pub fn whole_blocks_of(&self, span: Span) -> Range<u64> {
        let each = self.share.cells_per_block();
        let (start, end) = (span.first.div_ceil(each), (span.first + span.cells) / each);
        start..end.max(start)
    }
}

impl<C: Cast> World<'_, C> {
    /// The numbers of all volumes.
    pub(super) fn volume_numbers(&self) -> std::ops::Range<usize> {
        0..self.sim_volumes.len()
    }

    /// The volume that `client` serves, or served.
    pub(super) fn volume_number_of(&self, client: ClientId) -> usize {
        self.owners[client.0 as usize]
    }

    /// Number of a volume's living processes.
    pub(super) fn processes(&self, volume_number: usize) -> usize {
        self.volumes.values().filter(|host| host.volume_number == volume_number).count()
    }

    /// The volumes that a fault strikes: one, or, in half of the cases, all.
    pub(super) fn draw_victims(&mut self) -> Vec<usize> {
        let count = self.sim_volumes.len();
        if count == 1 || self.volume_rng.chance(500) {
            self.volume_numbers().collect()
        } else {
            vec![self.volume_rng.index(count)]
        }
    }
}
