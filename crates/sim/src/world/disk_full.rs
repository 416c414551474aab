//! Full file systems: for a while another program fills the disks of all nodes.
//!
//! As in the real host, each node learns the free space of its file system every second. If the
//! file system has space for all data, the node learns only this. No other fault is in effect
//! meanwhile. The disks become full when no node is impaired, and no fault strikes before the disks
//! have space again and every volume is whole. Meanwhile, volumes store new data on nodes that had
//! a little space left.
//!
//! - Every request gets an answer within [`FULL_NS_MAX`], the bound of `docs/faults.md`, or within
//!   three times as long where other writes of its volume still got on. Volumes may refuse changes
//!   for lack of space, including trims, which need space in the journal. They may not refuse
//!   flushes and reads.
//! - [`AGAIN_NS_MAX`] after the disks have space again, volumes refuse nothing for that reason.

use fieldstone_block::Nanos;
use fieldstone_node::{FileId, NodeEvent};
use fieldstone_proto::NodeIndex;

use super::{Happening, World};
use crate::actor::{Cast, NodeProcess};
use crate::trace::Who;

/// Longest virtual time until a request gets its answer while disks are full. A write may wait 4 s
/// for slots that other volumes could give back, and then 8 s for a journal that no disk has space
/// for. Three times this where other writes of the volume succeed meanwhile: a nearly full volume
/// frees space for one write after another, and gives up 16 s after the last one.
pub(super) const FULL_NS_MAX: u64 = 14_000_000_000;
/// Longest virtual time until volumes use disks that have space again. Volumes try again every few
/// seconds.
const AGAIN_NS_MAX: u64 = 15_000_000_000;
/// How often a node learns the free space of its file system.
const TELL_NS: u64 = 1_000_000_000;

/// The state of the fault that fills the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DisksFull {
    /// The disks are not full yet, or never will be.
    Ahead,
    /// The disks are full, from `since` to `until`.
    Full { since: Nanos, until: Nanos },
    /// The disks have had space since then.
    Over { since: Nanos },
}

impl<C: Cast> World<'_, C> {
    /// True when the disks will be full soon, or are full. Then no fault strikes.
    pub(super) fn disks_full_is_due(&self) -> bool {
        let due = |at_request: u32| self.requests >= at_request;
        match self.disks_full {
            DisksFull::Ahead => {
                self.users_active
                    && self.scenario.disks_full.is_some_and(|plan| due(plan.at_request))
            }
            DisksFull::Full { .. } => true,
            DisksFull::Over { .. } => false,
        }
    }

    /// True when the disks were full at any time since `at`, or so shortly before that volumes may
    /// not use them yet.
    pub(super) fn were_disks_full_since(&self, at: Nanos) -> bool {
        match self.disks_full {
            DisksFull::Ahead => false,
            DisksFull::Full { .. } => true,
            DisksFull::Over { since } => since.plus(Nanos(AGAIN_NS_MAX)) >= at,
        }
    }

    /// At an audit: fills the disks when that is due and no other fault is in effect.
    pub(super) fn fill_disks_if_due(&mut self) {
        let sound = self.fault_model.impaired().is_empty() && self.all_serve();
        if self.disks_full != DisksFull::Ahead || !self.disks_full_is_due() || !sound {
            return;
        }
        let Some(plan) = self.scenario.disks_full else { return };
        let until = self.now().plus(Nanos(plan.for_ns));
        self.note(
            Who::Fault,
            "squeeze",
            plan.left_bytes,
            format_args!("all disks, until {until:?}"),
        );
        self.disks_full = DisksFull::Full { since: self.now(), until };
        for (node, host) in (0..).map(NodeIndex).zip(&mut self.nodes) {
            host.disk.fill_up(plan.left_bytes);
            self.fault_model.begins_for_all(node);
        }
        self.schedule.after(0, Happening::TellRoom);
    }

    /// Tells every node the free space of its file system.
    pub(super) fn tell_room_due(&mut self) {
        let now = self.now();
        if let DisksFull::Full { until, .. } = self.disks_full
            && until <= now
        {
            self.note(Who::World, "room", 0, format_args!("all disks have room again"));
            self.disks_full = DisksFull::Over { since: now };
            for (node, host) in (0..).map(NodeIndex).zip(&mut self.nodes) {
                host.disk.make_room();
                self.fault_model.ends(node, now);
            }
        }
        let data_bytes = u64::from(self.scenario.slots) * u64::from(self.scenario.slot_bytes());
        for node in (0..self.scenario.nodes).map(NodeIndex) {
            let host = &mut self.nodes[usize::from(node.0)];
            let room_bytes = host.disk.room_bytes(FileId::Data);
            let room_bytes = if room_bytes < data_bytes { room_bytes } else { u64::MAX };
            if let Some(process) = host.process.as_mut() {
                process.handle(NodeEvent::Room { room_bytes }, now);
                self.pump_node(node);
            }
        }
        self.schedule.after(TELL_NS, Happening::TellRoom);
    }

    /// Waits until the disks have space.
    pub(super) fn outlast_full_disks(&mut self) -> Option<()> {
        let plan = self.scenario.disks_full;
        let longest_ns = plan.map_or(0, |plan| plan.for_ns) + TELL_NS;
        let full = |world: &Self| matches!(world.disks_full, DisksFull::Full { .. });
        self.until("the disks have room again", longest_ns, |world| !full(world))
    }
}
