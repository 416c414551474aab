//! Compares the slots that a pool's volumes need when they are full with the slots of the pool.
//!
//! A thick volume reserves the slots that its size takes on every node. A *thin* volume reserves
//! them while it fills, and other volumes may have taken them. A pool that has enough slots for all
//! its volumes never runs full. A pool that has fewer slots is thin, and a command makes it thin
//! only with an option.

use std::fmt;

use fieldstone_codes::Profile;
use fieldstone_volume::Geometry;

use fieldstone_units as units;

/// The slots that a full volume takes on all nodes together.
pub fn needed_slots(geometry: &Geometry, profile: Profile, nodes: u16) -> u64 {
    fieldstone_volume::slots_whole(geometry, profile, nodes).saturating_mul(u64::from(nodes))
}

/// The slots that full volumes need, and the slots that the pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provision {
    /// Slots that full volumes need.
    pub needed_slots: u64,
    /// Slots of all nodes together.
    pub slots: u64,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
}

impl Provision {
    /// Bytes of the slots that full volumes need.
    pub fn needed_bytes(self) -> u64 {
        self.needed_slots.saturating_mul(u64::from(self.slot_bytes))
    }

    /// Bytes of the slots of all nodes.
    pub fn bytes(self) -> u64 {
        self.slots.saturating_mul(u64::from(self.slot_bytes))
    }

    /// True if the pool can run full.
    pub fn is_thin(self) -> bool {
        self.needed_slots > self.slots
    }
}

impl fmt::Display for Provision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = 100.0 * self.needed_slots as f64 / self.slots.max(1) as f64;
        let (needed, there) = (units::size(self.needed_bytes()), units::size(self.bytes()));
        write!(f, "{needed} of {there} ({percent:.0} %)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn geometry(size_bytes: u64) -> Geometry {
        Geometry {
            size_bytes,
            shard_bytes: 1 << 20,
            unit_bytes: 1 << 15,
            chunk_bytes: 0,
            ring_bytes: 16 << 20,
        }
    }

    #[test]
    fn sizes_become_slots() {
        let profile = |name: &str| name.parse::<Profile>().expect("the name of a code");
        for (size_bytes, code, nodes, slots) in [
            (24 * MIB, "rs:4+2", 6, 14 * 6),
            (24 * MIB, "copies:3", 4, 26 * 4),
            (64 * MIB, "rs:4+2", 6, 24 * 6),
            (64 * MIB, "rs:4+2", 12, 14 * 12),
        ] {
            let needed = needed_slots(&geometry(size_bytes), profile(code), nodes);
            assert_eq!(needed, slots, "{code} on {nodes} nodes");
        }
    }

    #[test]
    fn a_pool_is_thin_when_volumes_could_take_more_than_there_is() {
        let mut provision = Provision { needed_slots: 100, slots: 100, slot_bytes: 1 << 20 };
        assert!(!provision.is_thin());
        assert_eq!(provision.to_string(), "100 MiB of 100 MiB (100 %)");
        provision.needed_slots = 250;
        assert!(provision.is_thin());
        assert_eq!(provision.to_string(), "250 MiB of 100 MiB (250 %)");
        provision.needed_slots = u64::MAX;
        assert_eq!(provision.needed_bytes(), u64::MAX);
    }
}
