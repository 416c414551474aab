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
use fieldstone_proto::NodeIndex;
use fieldstone_volume::VolumeConfig;

use crate::actor::Cast;
use node::MirrorNode;
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
}

/// Casts mirrors with a bug.
pub(crate) struct MirrorCast {
    bug: Bug,
    /// Epochs given out: one per volume process.
    started: Cell<u64>,
    /// Per node, the epoch it was fenced at: kept here, as if it were always stable.
    fences: RefCell<BTreeMap<NodeIndex, Rc<Cell<u64>>>>,
}

impl MirrorCast {
    /// A cast whose volumes have this bug.
    pub(crate) fn new(bug: Bug) -> Self {
        Self { bug, started: Cell::new(0), fences: RefCell::default() }
    }
}

impl Cast for MirrorCast {
    type Volume = MirrorVolume;
    type Node = MirrorNode;

    fn volume(&self, config: VolumeConfig, _now: Nanos) -> MirrorVolume {
        self.started.set(self.started.get() + 1);
        MirrorVolume::new(&config, self.bug, self.started.get())
    }

    fn node(&self, config: NodeConfig, _now: Nanos) -> MirrorNode {
        MirrorNode::new(self.fences.borrow_mut().entry(config.node).or_default().clone())
    }
}
