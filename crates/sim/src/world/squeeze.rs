//! Full file systems: for a while another program fills the disks of all nodes.
//!
//! As in the real host, nodes learn how much room their file system has: every second, and, while
//! there is room for everything, that there is. No other fault is in effect meanwhile. This begins
//! when no node is impaired, and no fault strikes before it is over and every volume is whole.
//! Volumes store new data meanwhile on nodes that had a little room left.
//!
//! - Every request gets an answer within [`FULL_NS_MAX`], the bound of `docs/faults.md`, or within
//!   three times as long where other writes of its volume still got on. Volumes may refuse changes
//!   for lack of space, including trims, which need room in the journal. They may not refuse
//!   flushes and reads.
//! - [`AGAIN_NS_MAX`] after the disks have room again, volumes refuse nothing for that reason.

use fieldstone_block::Nanos;
use fieldstone_node::{Event, FileId};
use fieldstone_proto::NodeIndex;

use super::{Happening, World};
use crate::actor::{Cast, NodeProcess};
use crate::trace::Who;

/// Longest virtual time until a request gets its answer while disks are full. A write may wait 4 s
/// for slots that other volumes could give back, and then 8 s for a journal that no disk has room
/// for. Three times this where other writes of the volume succeed meanwhile: a nearly full volume
/// makes room for one after another, and gives up 16 s after the last one.
pub(super) const FULL_NS_MAX: u64 = 14_000_000_000;
/// Longest virtual time until volumes use disks that have room again. They try again every few
/// seconds.
const AGAIN_NS_MAX: u64 = 15_000_000_000;
/// How often a node learns how much room there is.
const TELL_NS: u64 = 1_000_000_000;

/// The state of the fault that fills the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Squeeze {
    /// The time for it has not come, or never will.
    Ahead,
    /// The disks are full, from `since` to `until`.
    Full { since: Nanos, until: Nanos },
    /// The disks have had room since then.
    Over { since: Nanos },
}

impl<C: Cast> World<'_, C> {
    /// The disks will be full soon, or are full: no fault strikes.
    pub(super) fn squeeze_is_due(&self) -> bool {
        let due = |at_request: u32| self.requests >= at_request;
        match self.squeeze {
            Squeeze::Ahead => {
                self.users_active && self.scenario.squeeze.is_some_and(|plan| due(plan.at_request))
            }
            Squeeze::Full { .. } => true,
            Squeeze::Over { .. } => false,
        }
    }

    /// Disks are full, or have had room only for a short time.
    pub(super) fn was_squeezed_since(&self, at: Nanos) -> bool {
        match self.squeeze {
            Squeeze::Ahead => false,
            Squeeze::Full { .. } => true,
            Squeeze::Over { since } => since.plus(Nanos(AGAIN_NS_MAX)) >= at,
        }
    }

    /// At an audit: fills the disks when that is due and no other fault is in effect.
    pub(super) fn squeeze_if_due(&mut self) {
        let sound = self.atlas.impaired().is_empty() && self.all_serve();
        if self.squeeze != Squeeze::Ahead || !self.squeeze_is_due() || !sound {
            return;
        }
        let Some(plan) = self.scenario.squeeze else { return };
        let until = self.now().plus(Nanos(plan.for_ns));
        self.note(
            Who::Fault,
            "squeeze",
            plan.left_bytes,
            format_args!("all disks, until {until:?}"),
        );
        self.squeeze = Squeeze::Full { since: self.now(), until };
        for (node, host) in (0..).map(NodeIndex).zip(&mut self.nodes) {
            host.disk.fill_up(plan.left_bytes);
            self.atlas.begins_for_all(node);
        }
        self.schedule.after(0, Happening::TellRoom);
    }

    /// Tells every node how much room its file system has.
    pub(super) fn tell_room_due(&mut self) {
        let now = self.now();
        if let Squeeze::Full { until, .. } = self.squeeze
            && until <= now
        {
            self.note(Who::World, "room", 0, format_args!("all disks have room again"));
            self.squeeze = Squeeze::Over { since: now };
            for (node, host) in (0..).map(NodeIndex).zip(&mut self.nodes) {
                host.disk.make_room();
                self.atlas.ends(node, now);
            }
        }
        let clock = self.node_clock();
        let data_bytes = u64::from(self.scenario.slots) * u64::from(self.scenario.slot_bytes());
        for node in (0..self.scenario.nodes).map(NodeIndex) {
            let host = &mut self.nodes[usize::from(node.0)];
            let room_bytes = host.disk.room_bytes(FileId::Data);
            let room_bytes = if room_bytes < data_bytes { room_bytes } else { u64::MAX };
            if let Some(process) = host.process.as_mut() {
                process.handle(Event::Room { room_bytes }, clock);
                self.pump_node(node);
            }
        }
        self.schedule.after(TELL_NS, Happening::TellRoom);
    }

    /// Waits until the disks have room.
    pub(super) fn outlast_squeeze(&mut self) -> Option<()> {
        let plan = self.scenario.squeeze;
        let longest_ns = plan.map_or(0, |plan| plan.for_ns) + TELL_NS;
        let full = |world: &Self| matches!(world.squeeze, Squeeze::Full { .. });
        self.until("the disks have room again", longest_ns, |world| !full(world))
    }
}
