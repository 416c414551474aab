//! Operations that a disk fails for good, and a copy of its files that it may go back to.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_node::FileId;

use super::file::{PAGE_BYTES, SimFile};
use super::{Pending, SimDisk};

/// The kinds of files that a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFileKind {
    /// Slot headers.
    Slots,
    /// The slots' data.
    Data,
    /// Records of volumes.
    Volume,
    /// Journals.
    Journal,
    /// The file `doubt`.
    Doubt,
    /// The node's identity.
    Superblock,
}

impl NodeFileKind {
    /// The kind of `file`.
    #[must_use]
    pub fn of(file: FileId) -> Self {
        match file {
            FileId::Superblock => NodeFileKind::Superblock,
            FileId::Slots => NodeFileKind::Slots,
            FileId::Data => NodeFileKind::Data,
            FileId::Volume(_) => NodeFileKind::Volume,
            FileId::Doubt => NodeFileKind::Doubt,
            FileId::Journal(..) => NodeFileKind::Journal,
        }
    }
}

/// The operations that a disk fails for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedOps {
    /// All operations.
    All,
    /// Reads.
    Reads,
    /// All operations that change a file. The first pages of a write may reach the file.
    Writes,
    /// Syncs.
    Syncs,
    /// All operations on files of this kind.
    File(NodeFileKind),
    /// All operations that change a file. Nothing reaches the file: the file system is read-only.
    ReadOnly,
}

impl FailedOps {
    /// True when this fault makes `pending` fail.
    pub(super) fn stops(self, pending: &Pending) -> bool {
        let file = match pending {
            Pending::List | Pending::Refused(_) => None,
            Pending::Read { file, .. }
            | Pending::Write { file, .. }
            | Pending::Sync { file, .. }
            | Pending::Create { file, .. }
            | Pending::Remove { file }
            | Pending::Discard { file, .. } => Some(*file),
        };
        let reads = matches!(pending, Pending::Read { .. } | Pending::List);
        let syncs = matches!(pending, Pending::Sync { .. });
        match self {
            FailedOps::All => true,
            FailedOps::Reads => reads,
            FailedOps::Writes | FailedOps::ReadOnly => !reads && !syncs,
            FailedOps::Syncs => syncs,
            FailedOps::File(kind) => file.is_some_and(|file| NodeFileKind::of(file) == kind),
        }
    }

    /// The system's error text.
    pub(super) fn text(self) -> &'static str {
        match self {
            FailedOps::ReadOnly => "read-only file system (injected, stays)",
            _ => "input/output error (injected, stays)",
        }
    }
}

/// The version of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The content that reads see.
    Now,
    /// The content that certainly survives a power loss.
    AfterPowerLoss,
}

/// The stable files of a disk at some time.
#[derive(Debug)]
pub struct Snapshot(BTreeMap<FileId, SimFile>);

impl SimDisk {
    /// The files that would certainly survive a power loss at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.files.iter().map(|(id, file)| (*id, file.stable_copy())).collect())
    }

    /// Puts the files back to the snapshot. Operations under way are lost.
    pub fn restore(&mut self, snapshot: Snapshot) {
        self.pending.clear();
        self.files = snapshot.0;
    }

    /// The bytes that reads of `file` see, in whole pages; `None` if there is no such file.
    #[must_use]
    pub fn bytes(&self, file: FileId) -> Option<Vec<u8>> {
        let file = self.files.get(&file)?;
        Some(file.read(0, file.pages() * PAGE_BYTES).to_vec())
    }

    /// The bytes that reads of the first `len_bytes` of `file` see; `None` if there is no such
    /// file.
    #[must_use]
    pub fn head(&self, file: FileId, len_bytes: usize) -> Option<Bytes> {
        Some(self.files.get(&file)?.read(0, len_bytes))
    }

    /// Page `page` of the file; `None` for a hole, or if there is no such file.
    #[must_use]
    pub fn page(&self, file: FileId, page: usize, view: View) -> Option<Bytes> {
        let file = self.files.get(&file)?;
        match view {
            View::Now => file.page(page),
            View::AfterPowerLoss => file.stable_page(page),
        }
    }

    /// Replaces the file's bytes with these, stable. Reads behind them see zeroes.
    pub fn put(&mut self, file: FileId, bytes: &[u8]) {
        let reserved = self.files.get(&file).is_some_and(|file| file.reserved);
        self.files.insert(file, SimFile::of(bytes, reserved));
    }

    /// Removes the file without notice to the node. True if it existed.
    pub fn lose(&mut self, file: FileId) -> bool {
        self.files.remove(&file).is_some()
    }
}
