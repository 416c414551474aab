//! The writer that the volume is: its epoch, and the capabilities that it signs for this epoch.
//!
//! Every request carries a capability. It names the volume and the epoch, and is valid for an hour.
//! Nodes refuse it once they know a newer epoch.
//!
//! # Invariants
//! - An attempt to open the volume chooses a higher epoch than all attempts before it
//!   ([`OpeningAttempts::epoch_tried`](crate::open::OpeningAttempts)). Before that, its probe asks
//!   with epoch 0. An inspection uses the epoch of the newest root.
//! - The capability is of the present epoch and of the secret that signs at present. So a new epoch
//!   and a new secret ([`keys`](crate::keys)) both issue it anew.
//! - When a request leaves, its capability is valid for another half an hour to an hour, by the
//!   time with which the volume issues ([`wall_clock`](crate::wall_clock)). For a moment after the
//!   time of day was set back, this is still the time before that.

use fieldstone_proto::{Capability, Epoch, NodeIndex, Rights};

use crate::core::VolumeCore;
use crate::keys::Reissue;
use crate::wall_clock::WallClock;

/// How long an issued capability is valid. The volume renews it after half of this time.
const CAPABILITY_NS: u64 = 3_600_000_000_000;

/// The identity of a volume's writer.
pub struct Writer {
    epoch: Epoch,
    capability: Capability,
    wall_clock: WallClock,
    /// The requests that an older secret signed.
    pub reissue: Reissue,
}

impl Writer {
    /// A writer without an epoch. It has no capability before
    /// [`set_epoch`](VolumeCore::set_epoch).
    pub fn new(wall_offset_ns: u64) -> Self {
        Self {
            epoch: Epoch(0),
            capability: Capability::default(),
            wall_clock: WallClock::new(wall_offset_ns),
            reissue: Reissue::default(),
        }
    }

    /// The writer's epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl VolumeCore {
    /// Issues capabilities for this epoch from now on.
    pub fn set_epoch(&mut self, epoch: Epoch) {
        self.writer.epoch = epoch;
        self.attempts.epoch_tried = self.attempts.epoch_tried.max(epoch);
        self.nodes.iter_mut().for_each(|node| node.epoch = epoch);
        self.renew_capability();
    }

    /// The world says the time of day: `offset_ns` is that time minus the volume's clock.
    pub fn set_wall_clock(&mut self, offset_ns: u64) {
        self.writer.wall_clock.set(self.now, offset_ns);
    }

    fn wall_ns(&self) -> u64 {
        self.writer.wall_clock.for_issue(self.now)
    }

    /// The capability for requests to a node, renewed in good time. It is also renewed if the time
    /// of day is before its issue: the wall clock was set back, and the capability would outlive
    /// its hour.
    pub fn current_capability(&mut self, node: NodeIndex) -> Capability {
        let epoch = self.node(node).epoch;
        if epoch != self.writer.epoch {
            return self.issue_capability(epoch);
        }
        let rest_ns = self.writer.capability.expires_ns.saturating_sub(self.wall_ns());
        if !(CAPABILITY_NS / 2..=CAPABILITY_NS).contains(&rest_ns) {
            self.renew_capability();
        }
        self.writer.capability
    }

    /// Issues the capability for the requests of the present epoch anew.
    pub fn renew_capability(&mut self) {
        self.writer.capability = self.issue_capability(self.writer.epoch);
    }

    fn issue_capability(&self, epoch: Epoch) -> Capability {
        let key = self.config.keys.derive(self.config.volume, epoch);
        let expires_ns = self.wall_ns().saturating_add(CAPABILITY_NS);
        Capability::issue(&key, self.config.volume, epoch, Rights::ALL, expires_ns)
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_block::Nanos;

    use super::*;
    use crate::interface::VolumeEvent;
    use crate::script::Script;

    #[test]
    fn capabilities_are_issued_by_the_present_time_of_day() {
        const MINUTE_NS: u64 = CAPABILITY_NS / 60;
        let mut script = Script::serving(6);
        // What is left of the present capability, by the time of day, at a time of the volume's
        // clock.
        let mut left_ns = |at: Nanos, offset_ns: u64, told_ns: u64| {
            script.volume.handle(VolumeEvent::WallClock { offset_ns: told_ns }, at);
            let expires_ns = script.core(|core| core.current_capability(NodeIndex(0)).expires_ns);
            expires_ns - (at.0 + offset_ns)
        };
        let at = Nanos::from_ms;
        let wall_ns = 500_000 * CAPABILITY_NS;
        assert_eq!(left_ns(at(1_000), wall_ns, wall_ns), CAPABILITY_NS);
        let soon_ns = wall_ns + 29 * MINUTE_NS;
        assert_eq!(left_ns(at(1_000), soon_ns, soon_ns), 31 * MINUTE_NS, "still good");
        // The machine was suspended: the volume's own clock stood still.
        let later_ns = wall_ns + 2 * CAPABILITY_NS;
        assert_eq!(left_ns(at(1_000), later_ns, later_ns), CAPABILITY_NS);
        // A time server sets a wrong clock back. Nodes may not know yet: for them nothing is over.
        let back_ns = wall_ns - 5 * CAPABILITY_NS;
        let left = left_ns(at(5_000), later_ns, back_ns);
        assert!((CAPABILITY_NS / 2..=CAPABILITY_NS).contains(&left), "{left}");
        // Then the next capability does not outlive its hour.
        assert_eq!(left_ns(at(8_000), back_ns, back_ns), CAPABILITY_NS);
    }
}
