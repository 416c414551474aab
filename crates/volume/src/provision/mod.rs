//! Reservations: the slots that the volume keeps for itself on every node.
//!
//! Volumes of one pool share its nodes. A node lets a volume take slots up to the volume's
//! reservation there. It keeps as many slots free as volumes have reserved and do not hold (the
//! node's `store/allotments`). So the room of a volume is its own: `space` relies on it, and no
//! other volume can take slots that collection, checkpoints, trims or the next opening need.
//!
//! - A *thick* volume reserves the slots for its whole size when it is created or grows. If a node
//!   does not have that many, the volume is not created, or does not grow. It asks for a few more
//!   where there are more: for segments that are being written, and for shards of lost nodes that
//!   it rebuilds on the others.
//! - A *thin* volume reserves the slots that it holds, those that it needs to go on, and a few to
//!   grow into. It asks for more as it fills, and with each checkpoint it gives back those that it
//!   no longer needs. When nodes refuse, it works with the slots that it has: it collects, and its
//!   users get the error that there is no space.
//!
//! Both also reserve idle slots, which no volume needs, because collection then costs less.
//!
//! The parts decide how many slots the volume asks for, and when. The module `reserve` asks nodes
//! for them and gives slots back. Each part uses only parts above it in this table:
//!
//! | module     | idea |
//! |------------|------|
//! | `needed`   | the slots that the volume holds, needs, and can use at most |
//! | `wanted`   | the slots that it wants at present, and its share of the idle ones |
//! | `level`    | the slots that it may ask a single node for |
//! | `spare`    | the slots that other volumes may have, and those that they lack |
//! | `goal`     | a smaller reservation, also if collection has to free slots first |
//! | `growth`   | a larger reservation, and how long a refusal counts |
//! | `promised` | slots that were promised to the volume, and that a node no longer keeps for it |

mod goal;
mod growth;
mod level;
mod needed;
mod promised;
mod spare;
mod wanted;

use fieldstone_block::Nanos;

use crate::core::VolumeCore;
use crate::interface::Provisioning;

/// The volume's reservation.
#[derive(Debug, Default)]
pub struct Reservation {
    /// Whether the reservation covers the volume's whole size.
    pub provisioning: Provisioning,
    /// Slots on each node; 0 until the volume serves.
    pub slots: u32,
    /// The volume has asked every node for `slots`. Until then `slots` is only the number that it
    /// wants.
    pub agreed: bool,
    /// The change under way, if there is one.
    change: Change,
    /// When nodes last refused.
    refused_at: Option<Nanos>,
    /// When nodes last refused rebuild slots that they keep too few of. Such a refusal does not
    /// stop other requests: rebuild asks again and again, and the volume would never grow.
    rebuild_refused_at: Option<Nanos>,
    /// The last release of slots that other volumes lacked.
    release: Option<Release>,
    /// Why the volume last refused to grow the device.
    pub growth_refused: Option<String>,
}

/// A change of the reservation: the volume asks nodes for more slots, or gives some back. One
/// change ends before the next begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Change {
    /// None is under way.
    #[default]
    None,
    /// The volume asks nodes.
    Asks,
    /// Nodes have refused, and the change waits until other volumes give slots back.
    WaitsForOthers,
}

/// A release of slots that other volumes lack.
#[derive(Clone, Copy, Debug)]
struct Release {
    at: Nanos,
    /// Slots on each node that the volume then wanted to keep.
    goal: u32,
}

impl Reservation {
    /// A change begins. False if one is under way already: then the caller has to wait, unless that
    /// one is its own.
    pub fn begin_change(&mut self) -> bool {
        let begins = self.change == Change::None;
        if begins {
            self.change = Change::Asks;
        }
        begins
    }

    /// The change under way ends.
    pub fn end_change(&mut self) {
        self.change = Change::None;
    }

    /// Nodes have refused. The change under way waits for other volumes.
    pub fn wait_for_others(&mut self) {
        if self.change == Change::Asks {
            self.change = Change::WaitsForOthers;
        }
    }

    /// The change under way does not wait any more.
    pub fn stop_waiting(&mut self) {
        if self.change == Change::WaitsForOthers {
            self.change = Change::Asks;
        }
    }

    /// Slots on each node that the volume wanted to keep when it last released some; 0 if it never
    /// did.
    #[must_use]
    pub fn last_goal(&self) -> u32 {
        self.release.map_or(0, |release| release.goal)
    }
}

impl VolumeCore {
    /// The volume is asking nodes for more room, or giving some back. One change of the reservation
    /// ends before the next begins.
    pub fn reservation_changes(&self) -> bool {
        self.reservation.change != Change::None
    }

    /// Nodes may be about to grant slots, so it is too early to refuse a write. A volume that grows
    /// may wait for other volumes for 20 s and more, and writes do not wait with it.
    pub fn is_asking_nodes(&self) -> bool {
        self.reservation.change == Change::Asks
    }
}
