//! The time of day, by which capabilities expire. In some runs it jumps, and the clocks of
//! processes differ.
//!
//! As on real machines, the clock of the processes' deadlines never jumps. The time of day does:
//! after a suspend, or when an operator or a time server sets it. A core of the host reads the
//! clock after the events of a turn have come, and before it handles them. So all processes of one
//! machine know of a jump before they handle what another one sent after it. In half of the runs
//! nodes learn of a jump at once, as on the machine of a volume, and volumes within
//! [`TOLD_NS_MAX`], at a time of their own. In the other half the nodes are on machines of their
//! own, whose clocks jump within this time, too. A process that starts knows the time at once. The
//! clocks of different machines may differ all the time, by less than half of the time for which
//! a capability is issued.
//!
//! Jumps impair no node, however far they go and however often they come: no request may fail
//! because of one, no volume may lose a node that no fault has struck for longer than it takes to
//! connect again, and volumes must become whole while the clock goes on jumping. So a process that
//! keeps the time of day of its start fails the run.

use fieldstone_node::NodeEvent;
use fieldstone_proto::NodeIndex;
use fieldstone_volume::VolumeEvent;

use super::{Happening, World};
use crate::actor::{Cast, VolumeProcess};
use crate::network::ClientId;
use crate::random::RandomStream;
use crate::scenario::Scenario;
use crate::trace::Who;

/// The clocks of all machines jump within this time, in nanoseconds.
const TOLD_NS_MAX: u64 = 1_000_000_000;
/// The first index of the streams of volume processes. Those of nodes are lower.
const FIRST_VOLUME_STREAM: u64 = 1 << 32;

/// A process of the run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    /// The process of a node.
    Node(NodeIndex),
    /// A volume process.
    Volume(ClientId),
    /// The command that removes this volume.
    Command(usize),
}

/// The time of day.
pub(super) struct TimeOfDay {
    /// The time of day minus the world's clock.
    offset_ns: u64,
    /// How often it has jumped.
    pub jumps: u64,
    rng: RandomStream,
}

impl TimeOfDay {
    pub fn new(scenario: &Scenario) -> Self {
        let rng = RandomStream::new(scenario.seed, "clock", 1);
        Self { offset_ns: scenario.wall_offset_ns, jumps: 0, rng }
    }
}

impl<C: Cast> World<'_, C> {
    /// The time of day minus the world's clock, as the machine of a process has it.
    pub(super) fn wall_offset_ns(&self, side: Side) -> u64 {
        let skew_ns_max =
            self.scenario.conditions.clock.as_ref().map_or(0, |plan| plan.skew_ns_max);
        let index = match side {
            Side::Node(node) => u64::from(node.0),
            Side::Volume(client) => FIRST_VOLUME_STREAM + u64::from(client.0),
            Side::Command(_) => return self.time_of_day.offset_ns,
        };
        let mut rng = RandomStream::new(self.scenario.seed, "skew", index);
        self.time_of_day.offset_ns.saturating_add(rng.between(0, skew_ns_max))
    }

    pub(super) fn schedule_jump(&mut self) {
        if let Some(plan) = &self.scenario.conditions.clock {
            let (shortest_ns, longest_ns) = plan.gap_ns;
            // The first one comes early, for short runs.
            let shortest_ns = if self.time_of_day.jumps == 0 { 0 } else { shortest_ns };
            let delay_ns = self.time_of_day.rng.between(shortest_ns, longest_ns);
            self.schedule.after(delay_ns, Happening::JumpWallClock);
        }
    }

    pub(super) fn jump_due(&mut self) {
        let Some(plan) = &self.scenario.conditions.clock else { return };
        let time_of_day = &mut self.time_of_day;
        let forwards = time_of_day.rng.chance(plan.forwards_per_mille);
        let jump_ns = time_of_day.rng.between(plan.jump_ns.0, plan.jump_ns.1);
        time_of_day.offset_ns = match forwards {
            true => time_of_day.offset_ns.saturating_add(jump_ns),
            false => time_of_day.offset_ns.saturating_sub(jump_ns),
        };
        time_of_day.jumps += 1;
        let key = time_of_day.jumps;
        self.note(Who::World, "jump", key, format_args!("{jump_ns} ns, forwards: {forwards}"));
        let apart = self.scenario.conditions.clock.as_ref().is_some_and(|plan| plan.machines_apart);
        for side in self.running_sides() {
            if !apart && matches!(side, Side::Node(_)) {
                self.tell_wall_clock_due(side);
                continue;
            }
            let delay_ns = self.time_of_day.rng.between(0, TOLD_NS_MAX);
            self.schedule.after(delay_ns, Happening::TellWallClock { side });
        }
        self.schedule_jump();
    }

    pub(super) fn tell_wall_clock_due(&mut self, side: Side) {
        let offset_ns = self.wall_offset_ns(side);
        match side {
            Side::Node(node) => self.node_event(node, NodeEvent::WallClock { offset_ns }),
            Side::Volume(client) => self.with_volume(client, |volume, now| {
                volume.handle(VolumeEvent::WallClock { offset_ns }, now);
            }),
            // Its capabilities never expire.
            Side::Command(_) => {}
        }
    }

    /// The processes of nodes and volumes that run.
    pub(super) fn running_sides(&self) -> Vec<Side> {
        let nodes = (0..).map(NodeIndex).zip(&self.nodes);
        let nodes = nodes.filter(|(_, host)| host.process.is_some());
        let volumes = self.volumes.keys().map(|client| Side::Volume(*client));
        nodes.map(|(node, _)| Side::Node(node)).chain(volumes).collect()
    }
}
