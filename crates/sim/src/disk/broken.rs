//! What a disk refuses for good, and a copy of its files that it may fall back to.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_node::FileId;

use super::file::{PAGE_BYTES, SimFile};
use super::{Pending, SimDisk};

/// The kinds of files that a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Slot headers.
    Slots,
    /// The slots' data.
    Data,
    /// Records of volumes.
    Volume,
    /// Journals.
    Journal,
    /// The mark of a failed sync.
    Doubt,
    /// Who the node is.
    Superblock,
}

impl FileKind {
    /// The kind of `file`.
    #[must_use]
    pub fn of(file: FileId) -> Self {
        match file {
            FileId::Superblock => FileKind::Superblock,
            FileId::Slots => FileKind::Slots,
            FileId::Data => FileKind::Data,
            FileId::Volume(_) => FileKind::Volume,
            FileId::Doubt => FileKind::Doubt,
            FileId::Journal(..) => FileKind::Journal,
        }
    }
}

/// Operations that a disk fails for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// All of them.
    All,
    /// Reads.
    Reads,
    /// Whatever changes a file; the first pages of a write may get there.
    Writes,
    /// Syncs.
    Syncs,
    /// All on files of this kind.
    File(FileKind),
    /// Whatever changes a file, of which nothing gets there: the file system is read-only.
    ReadOnly,
}

impl Broken {
    /// True when it keeps `pending` from succeeding.
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
            Broken::All => true,
            Broken::Reads => reads,
            Broken::Writes | Broken::ReadOnly => !reads && !syncs,
            Broken::Syncs => syncs,
            Broken::File(kind) => file.is_some_and(|file| FileKind::of(file) == kind),
        }
    }

    /// What the system says of it.
    pub(super) fn text(self) -> &'static str {
        match self {
            Broken::ReadOnly => "read-only file system (injected, stays)",
            _ => "input/output error (injected, stays)",
        }
    }
}

/// Which content of a file is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// What reads see.
    Now,
    /// What a loss of power leaves at least.
    AfterPowerLoss,
}

/// The stable files of a disk as they were at some time.
#[derive(Debug)]
pub struct Snapshot(BTreeMap<FileId, SimFile>);

impl SimDisk {
    /// The files as a loss of power at this moment would leave them at least.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.files.iter().map(|(id, file)| (*id, file.stable_copy())).collect())
    }

    /// The files are again as they were; what was under way is gone.
    pub fn restore(&mut self, snapshot: Snapshot) {
        self.pending.clear();
        self.files = snapshot.0;
    }

    /// What reads of `file` see, in whole pages; `None` if there is no such file.
    #[must_use]
    pub fn bytes(&self, file: FileId) -> Option<Vec<u8>> {
        let file = self.files.get(&file)?;
        Some(file.read(0, file.pages() * PAGE_BYTES).to_vec())
    }

    /// What reads of the first `len_bytes` of `file` see; `None` if there is no such file.
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

    /// Puts these bytes in place of the file's, stable. Reads behind them see zeroes.
    pub fn put(&mut self, file: FileId, bytes: &[u8]) {
        let reserved = self.files.get(&file).is_some_and(|file| file.reserved);
        self.files.insert(file, SimFile::of(bytes, reserved));
    }

    /// Removes the file; the node is not told. True if there was one.
    pub fn lose(&mut self, file: FileId) -> bool {
        self.files.remove(&file).is_some()
    }
}
