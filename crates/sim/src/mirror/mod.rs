//! Simple actors for the world's own tests: a mirror, in correct and in broken forms.
//!
//! The mirror volume keeps the device in place in a journal file on every node, reads from node 0,
//! and acknowledges a write when all nodes have it. That is a correct, if slow, block device under
//! every fault that destroys nothing (given a disk whose sectors are whole blocks, since it
//! overwrites in place). Its planted bugs are those that the checker must find.

mod node;
mod tests;
mod volume;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use fieldstone_block::Nanos;
use fieldstone_node::NodeConfig;
use fieldstone_proto::{NodeIndex, VolumeId};
use fieldstone_volume::{Opening, VolumeConfig};

use crate::actor::Cast;
use node::{Fences, MirrorNode};
use volume::MirrorVolume;

/// What is wrong with a mirror volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Nothing.
    None,
    /// Writes are acknowledged before the nodes have them.
    AcknowledgesEarly,
    /// Some reads return what an earlier read of the place returned.
    ServesStale,
    /// Flushes are acknowledged without a sync.
    LosesFlush,
    /// Now and then a request is forgotten.
    Forgets,
    /// Being fenced is ignored: what one node has is acknowledged.
    IgnoresFence,
    /// Only the first process of a volume ever serves.
    NeverReopens,
    /// Trims are never answered.
    DropsTrims,
    /// Some writes are refused for lack of space, however much there is.
    FullEarly,
    /// Trims are refused for lack of space.
    RefusesTrims,
    /// The volume that is first to write a lot keeps all others from writing.
    Starves,
    /// The volume does not become larger, and does not say why.
    NeverGrows,
    /// The volume becomes larger, and the next process does not know.
    ForgetsGrowth,
    /// The volume asks to be polled again at once, for ever.
    Spins,
}

/// Casts mirrors with a bug.
pub(crate) struct MirrorCast {
    bug: Bug,
    /// Epochs given out: one per volume process.
    started: Cell<u64>,
    /// Per node, the epochs it was fenced at: kept here, as if they were always stable.
    fences: RefCell<BTreeMap<NodeIndex, Fences>>,
    /// The volume that took all the room.
    taken_by: Rc<Cell<Option<VolumeId>>>,
    sizes: Sizes,
}

/// The sizes of the volumes in bytes: kept here, as if they were always stable.
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
        if let Opening::Create { geometry, .. } = &config.opening {
            self.sizes.borrow_mut().insert(config.volume, geometry.size_bytes);
        }
        let (taken_by, sizes) = (self.taken_by.clone(), self.sizes.clone());
        MirrorVolume::new(&config, self.bug, self.started.get(), taken_by, sizes)
    }

    fn node(&self, config: NodeConfig, _now: Nanos) -> MirrorNode {
        MirrorNode::new(self.fences.borrow_mut().entry(config.node).or_default().clone())
    }
}
