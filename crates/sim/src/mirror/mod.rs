//! Simple actors for the world's own tests: a mirror, with and without bugs.
//!
//! The mirror volume keeps the device in place in a journal file on every node, reads from node 0,
//! and acknowledges a write when all nodes have it. That is a correct, if slow, block device under
//! every fault that destroys nothing (on a disk whose sectors are whole blocks, because it
//! overwrites in place). The checker must find its planted bugs.

mod node;
mod tests;
mod volume;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use fieldstone_block::Nanos;
use fieldstone_node::NodeConfig;
use fieldstone_proto::{NodeIndex, VolumeId};
use fieldstone_volume::{OpenMode, VolumeConfig};

use crate::actor::Cast;
use node::{Fences, MirrorNode};
use volume::MirrorVolume;

/// The planted bug of a mirror volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// No bug.
    None,
    /// The volume acknowledges writes before the nodes have them.
    AcknowledgesEarly,
    /// Some reads return the result of an earlier read of the same place.
    ServesStale,
    /// The volume acknowledges flushes without a sync.
    LosesFlush,
    /// The volume sometimes forgets a request.
    Forgets,
    /// The volume ignores that it is fenced: it acknowledges writes that one node has.
    IgnoresFence,
    /// Only the first process of a volume ever serves.
    NeverReopens,
    /// The volume never answers trims.
    DropsTrims,
    /// The volume refuses some writes for lack of space, however much space there is.
    FullEarly,
    /// The volume refuses trims for lack of space.
    RefusesTrims,
    /// The first volume that writes a lot keeps all others from writing.
    Starves,
    /// The volume does not grow, and gives no reason.
    NeverGrows,
    /// The volume grows, and its next process does not know the new size.
    ForgetsGrowth,
    /// The volume asks for another poll at once, for ever.
    Spins,
}

/// Casts mirrors with a bug.
pub(crate) struct MirrorCast {
    bug: Bug,
    /// Epochs that were given out: one per volume process.
    started: Cell<u64>,
    /// Per node, the epochs at which it was fenced. The cast keeps them, as if they were always
    /// stable.
    fences: RefCell<BTreeMap<NodeIndex, Fences>>,
    /// The volume that took all the room.
    taken_by: Rc<Cell<Option<VolumeId>>>,
    sizes: Sizes,
}

/// The sizes of the volumes in bytes. The cast keeps them, as if they were always stable.
type Sizes = Rc<RefCell<BTreeMap<VolumeId, u64>>>;

impl MirrorCast {
    /// A cast whose volumes have this bug.
    pub(crate) fn new(bug: Bug) -> Self {
        Self {
            bug,
            started: Cell::new(0),
            fences: RefCell::default(),
            taken_by: Rc::default(),
            sizes: Sizes::default(),
        }
    }
}

impl Cast for MirrorCast {
    type Volume = MirrorVolume;
    type Node = MirrorNode;

    fn volume(&self, config: VolumeConfig, _now: Nanos) -> MirrorVolume {
        self.started.set(self.started.get() + 1);
        if let OpenMode::Create { geometry, .. } = &config.opening {
            self.sizes.borrow_mut().insert(config.volume, geometry.size_bytes);
        }
        let (taken_by, sizes) = (self.taken_by.clone(), self.sizes.clone());
        MirrorVolume::new(&config, self.bug, self.started.get(), taken_by, sizes)
    }

    fn node(&self, config: NodeConfig, _now: Nanos) -> MirrorNode {
        MirrorNode::new(self.fences.borrow_mut().entry(config.node).or_default().clone())
    }
}
