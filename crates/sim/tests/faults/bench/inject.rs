//! Injected faults: errors of a disk, and false answers of a node.

use fieldstone_node::{DiskError, DiskOp};
use fieldstone_proto::{NodeError, ReplyBody, RequestBody};
use fieldstone_sim::disk::NodeFileKind;

/// The operations of a disk that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ops {
    All,
    Reads,
    /// Writes, creations, removals, discards.
    Changes,
    Syncs,
    Creations,
    Removals,
    List,
}

/// The answer of a disk that does not carry an operation out.
#[derive(Clone, Debug)]
pub struct InjectedError {
    pub ops: Ops,
    /// On files of this kind; on all if `None`.
    pub file: Option<NodeFileKind>,
    /// The error; `None` if the disk never answers.
    pub error: Option<DiskError>,
}

impl InjectedError {
    /// True for faults that only the next start of the process ends: operations that never end, and
    /// a full disk, because nothing tells the node of new space.
    pub fn outlasts(&self) -> bool {
        matches!(self.error, None | Some(DiskError::NoSpace))
    }

    pub fn strikes(&self, op: &DiskOp) -> bool {
        let (kind, file) = match op {
            DiskOp::List => (Ops::List, None),
            DiskOp::Read { file, .. } => (Ops::Reads, Some(*file)),
            DiskOp::Write { file, .. } | DiskOp::Discard { file, .. } => {
                (Ops::Changes, Some(*file))
            }
            DiskOp::Sync { file } => (Ops::Syncs, Some(*file)),
            DiskOp::Create { file, .. } => (Ops::Creations, Some(*file)),
            DiskOp::Remove { file } => (Ops::Removals, Some(*file)),
        };
        let changes = matches!(kind, Ops::Changes | Ops::Creations | Ops::Removals);
        // Giving space back needs no space.
        if self.error == Some(DiskError::NoSpace)
            && matches!(op, DiskOp::Remove { .. } | DiskOp::Discard { .. })
        {
            return false;
        }
        let ops = self.ops == Ops::All
            || self.ops == kind
            || (self.ops == Ops::Changes && changes)
            || (self.ops == Ops::Reads && kind == Ops::List);
        ops && self.file.is_none_or(|kind| file.is_some_and(|file| NodeFileKind::of(file) == kind))
    }
}

/// A false answer of a node to some requests.
#[derive(Clone, Copy)]
pub struct Lie {
    pub to: fn(&RequestBody) -> bool,
    pub result: fn(&RequestBody) -> Result<ReplyBody, NodeError>,
}
