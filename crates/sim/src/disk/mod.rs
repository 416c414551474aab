//! A node's disk: files with a page cache, latencies that reorder completions, and faults.
//!
//! An operation takes effect when it completes, and operations in flight together complete in any
//! order. The effects of faults:
//!
//! - **kill** (the process dies, the machine stays): completed writes stay in the page cache;
//!   writes in flight happen in full, in part (first pages), or not at all;
//! - **power loss**: per file, everything that no successful sync covered is independently kept,
//!   lost or torn at sectors (512 bytes, or 4096 on some disks); creation and removal of files are
//!   stable once completed;
//! - **bit flip**: one bit of a stable page changes, silently;
//! - **errors**: reads, writes and syncs fail with a probability. A failed write may have written
//!   its first pages. Writes that a failed sync covered are never made stable by a later sync,
//!   as on Linux, though reads see them until the power fails;
//! - **full**: every operation that needs new space fails with `NoSpace`; overwriting reserved
//!   space works;
//! - **broken**: some kind of operation, or every operation on some kind of file, fails from then
//!   on;
//! - **stale**: the files go back to an earlier state.

mod failed_ops;
mod file;

use std::collections::BTreeMap;

use fieldstone_node::{DiskError, DiskId, DiskOp, DiskOutput, FileId};

use crate::random::RandomStream;
pub use failed_ops::{FailedOps, NodeFileKind, Snapshot, View};
use file::{Change, PAGE_BYTES, SimFile, pages_of};

/// The largest file on the disk, in bytes: a bug in an offset must not use up the host's memory.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The properties of a disk. Times are means of random distributions.
#[derive(Clone, Copy, Debug)]
pub struct DiskKind {
    /// A read.
    pub read_ns: u64,
    /// A write.
    pub write_ns: u64,
    /// A sync, creation or removal.
    pub sync_ns: u64,
    /// The unit that the disk writes atomically: 512 or 4096 bytes.
    pub sector_bytes: usize,
}

/// The present faults of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Reads that fail, per thousand.
    pub read_error_per_mille: u32,
    /// Writes that fail, per thousand.
    pub write_error_per_mille: u32,
    /// Syncs that fail, per thousand.
    pub sync_error_per_mille: u32,
    /// There is no new space.
    pub full: bool,
    /// The operations that always fail.
    pub broken: Option<FailedOps>,
}

/// Capacity of a disk that has room for everything.
const ENDLESS_PAGES: u64 = u64::MAX / PAGE_BYTES as u64;

enum Pending {
    List,
    Read { file: FileId, offset_bytes: u64, len_bytes: usize },
    Write { file: FileId, change: Change },
    Sync { file: FileId, covered: u64 },
    Create { file: FileId, len_bytes: u64, reserve: bool },
    Remove { file: FileId },
    Discard { file: FileId, change: Change },
    Refused(DiskError),
}

/// A disk.
pub struct SimDisk {
    files: BTreeMap<FileId, SimFile>,
    pending: BTreeMap<DiskId, Pending>,
    rng: RandomStream,
    kind: DiskKind,
    capacity_pages: u64,
    /// The present faults.
    pub faults: DiskFaults,
    /// Number of operations that failed because of them.
    pub errors_injected: u64,
    /// Number of syncs that failed.
    pub syncs_failed: u64,
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new(rng: RandomStream, kind: DiskKind, capacity_bytes: u64) -> Self {
        Self {
            files: BTreeMap::new(),
            pending: BTreeMap::new(),
            rng,
            kind,
            capacity_pages: capacity_bytes / PAGE_BYTES as u64,
            faults: DiskFaults::default(),
            errors_injected: 0,
            syncs_failed: 0,
        }
    }

    /// Takes an operation and returns its duration. [`Self::complete`] carries it out.
    pub fn submit(&mut self, id: DiskId, op: DiskOp) -> u64 {
        let (mean_ns, pending) = match op {
            DiskOp::List => (self.kind.read_ns, Pending::List),
            DiskOp::Read { file, offset_bytes, len_bytes } => {
                let len_bytes = len_bytes as usize;
                let pending =
                    checked(offset_bytes, len_bytes as u64).map_or_else(Pending::Refused, |()| {
                        Pending::Read { file, offset_bytes, len_bytes }
                    });
                (self.kind.read_ns, pending)
            }
            DiskOp::Write { file, offset_bytes, data } => {
                let len_bytes: usize = data.iter().map(bytes::Bytes::len).sum();
                let pending =
                    checked(offset_bytes, len_bytes as u64).map_or_else(Pending::Refused, |()| {
                        let first_page = offset_bytes as usize / PAGE_BYTES;
                        let pages = pages_of(&data);
                        Pending::Write { file, change: Change { first_page, pages } }
                    });
                (self.kind.write_ns, pending)
            }
            DiskOp::Sync { file } => {
                let covered = self.files.get(&file).map_or(0, SimFile::writes);
                (self.kind.sync_ns, Pending::Sync { file, covered })
            }
            DiskOp::Create { file, len_bytes, allocate } => {
                let pending =
                    checked(0, len_bytes.next_multiple_of(PAGE_BYTES as u64)).map_or_else(
                        Pending::Refused,
                        |()| Pending::Create { file, len_bytes, reserve: allocate },
                    );
                (self.kind.sync_ns, pending)
            }
            DiskOp::Remove { file } => (self.kind.sync_ns, Pending::Remove { file }),
            DiskOp::Discard { file, offset_bytes, len_bytes } => {
                let pending =
                    checked(offset_bytes, len_bytes).map_or_else(Pending::Refused, |()| {
                        let first_page = offset_bytes as usize / PAGE_BYTES;
                        let pages = vec![None; len_bytes as usize / PAGE_BYTES];
                        Pending::Discard { file, change: Change { first_page, pages } }
                    });
                (self.kind.write_ns, pending)
            }
        };
        let reused = self.pending.insert(id, pending);
        assert!(reused.is_none(), "the node reused disk id {id:?} while it was in flight");
        self.rng.around(mean_ns)
    }

    /// Carries operation `id` out; `None` if it was lost in a crash.
    pub fn complete(&mut self, id: DiskId) -> Option<Result<DiskOutput, DiskError>> {
        let pending = self.pending.remove(&id)?;
        Some(self.carry_out(pending))
    }

    fn carry_out(&mut self, pending: Pending) -> Result<DiskOutput, DiskError> {
        if let Some(broken) = self.faults.broken.filter(|broken| broken.stops(&pending)) {
            self.errors_injected += 1;
            return self.fail_for_good(broken, pending);
        }
        match pending {
            Pending::Refused(error) => return Err(error),
            Pending::List => {
                return Ok(DiskOutput::Files(self.files.keys().copied().collect()));
            }
            Pending::Read { file, offset_bytes, len_bytes } => {
                self.inject(self.faults.read_error_per_mille)?;
                let file = self.files.get(&file).ok_or(DiskError::NotFound)?;
                return Ok(DiskOutput::Data(file.read(offset_bytes, len_bytes)));
            }
            Pending::Write { file, change } => self.write(file, change)?,
            Pending::Sync { file, covered } => {
                let failed = self.inject(self.faults.sync_error_per_mille);
                let file = self.files.get_mut(&file).ok_or(DiskError::NotFound)?;
                if failed.is_err() {
                    file.sync_failed(covered);
                    self.syncs_failed += 1;
                }
                failed?;
                file.sync(covered);
            }
            Pending::Create { file, len_bytes, reserve } => {
                self.create(file, len_bytes, reserve)?;
            }
            Pending::Remove { file } => {
                self.inject(self.faults.write_error_per_mille)?;
                self.files.remove(&file).ok_or(DiskError::NotFound)?;
            }
            Pending::Discard { file, change } => {
                let zeroes = self.rng.chance(500);
                let file = self.files.get_mut(&file).ok_or(DiskError::NotFound)?;
                if zeroes {
                    file.write(change);
                }
            }
        }
        Ok(DiskOutput::Done)
    }

    fn fail_for_good(
        &mut self,
        broken: FailedOps,
        pending: Pending,
    ) -> Result<DiskOutput, DiskError> {
        match pending {
            Pending::Write { file, change } if broken != FailedOps::ReadOnly => {
                if let Some(file) = self.files.get_mut(&file) {
                    file.interrupted(change, &mut self.rng);
                }
            }
            Pending::Sync { file, covered } => {
                if let Some(file) = self.files.get_mut(&file) {
                    file.sync_failed(covered);
                    self.syncs_failed += 1;
                }
            }
            _ => {}
        }
        Err(DiskError::Io(broken.text().to_owned()))
    }

    fn write(&mut self, id: FileId, change: Change) -> Result<(), DiskError> {
        let failed = self.inject(self.faults.write_error_per_mille);
        let used: u64 = self.used_pages();
        let (capacity, full) = (self.capacity_pages, self.faults.full);
        let file = self.files.get_mut(&id).ok_or(DiskError::NotFound)?;
        if failed.is_err() {
            file.interrupted(change, &mut self.rng);
            return failed;
        }
        let growth = file.growth_pages(&change);
        if growth > 0 && (full || used + growth > capacity) {
            return Err(DiskError::NoSpace);
        }
        file.write(change);
        Ok(())
    }

    fn create(&mut self, id: FileId, len_bytes: u64, reserve: bool) -> Result<(), DiskError> {
        self.inject(self.faults.write_error_per_mille)?;
        if self.files.contains_key(&id) {
            return Ok(());
        }
        let file = SimFile::new(len_bytes, reserve);
        let growth = file.used_pages();
        if growth > 0 && (self.faults.full || self.used_pages() + growth > self.capacity_pages) {
            return Err(DiskError::NoSpace);
        }
        self.files.insert(id, file);
        Ok(())
    }

    fn used_pages(&self) -> u64 {
        // Counting is expensive, and matters only when the answer may be no.
        if self.capacity_pages == ENDLESS_PAGES {
            return 0;
        }
        self.count_pages()
    }

    fn count_pages(&self) -> u64 {
        self.files.values().map(SimFile::used_pages).sum()
    }

    fn inject(&mut self, per_mille: u32) -> Result<(), DiskError> {
        if self.rng.chance(per_mille) {
            self.errors_injected += 1;
            return Err(DiskError::Io("injected fault".to_owned()));
        }
        Ok(())
    }

    /// The process that uses the disk died.
    pub fn kill(&mut self) {
        for pending in std::mem::take(&mut self.pending).into_values() {
            match pending {
                Pending::Write { file, change } => {
                    if let Some(file) = self.files.get_mut(&file) {
                        file.interrupted(change, &mut self.rng);
                    }
                }
                other
                @ (Pending::Create { .. } | Pending::Remove { .. } | Pending::Sync { .. }) => {
                    if self.rng.chance(500) {
                        // The process that would get the result is dead.
                        let _ = self.carry_out(other);
                    }
                }
                Pending::List | Pending::Read { .. } | Pending::Discard { .. } => {}
                Pending::Refused(_) => {}
            }
        }
    }

    /// The power failed.
    pub fn power_loss(&mut self) {
        let mut in_flight: BTreeMap<FileId, Vec<Change>> = BTreeMap::new();
        for pending in std::mem::take(&mut self.pending).into_values() {
            match pending {
                Pending::Write { file, change } => in_flight.entry(file).or_default().push(change),
                other @ (Pending::Create { .. } | Pending::Remove { .. })
                    if self.rng.chance(500) =>
                {
                    let _ = self.carry_out(other);
                }
                _ => {}
            }
        }
        for (id, file) in &mut self.files {
            let in_flight = in_flight.remove(id).unwrap_or_default();
            file.power_loss(in_flight, self.kind.sector_bytes, &mut self.rng);
        }
    }

    /// Another program fills the file system, except for `left_bytes`.
    pub fn fill_up(&mut self, left_bytes: u64) {
        self.capacity_pages = self.count_pages() + left_bytes / PAGE_BYTES as u64;
    }

    /// The file system has room for everything.
    pub fn make_room(&mut self) {
        self.capacity_pages = ENDLESS_PAGES;
    }

    /// The largest total length of the allocated parts of `file`: the space that they take now,
    /// plus the file system's free space.
    #[must_use]
    pub fn room_bytes(&self, file: FileId) -> u64 {
        if self.capacity_pages == ENDLESS_PAGES {
            return u64::MAX;
        }
        let taken = self.files.get(&file).map_or(0, SimFile::used_pages);
        let free = self.capacity_pages.saturating_sub(self.count_pages());
        (taken + free) * PAGE_BYTES as u64
    }

    /// Removes all files: a user deleted the folder, or replaced the disk.
    pub fn wipe(&mut self) {
        self.files.clear();
        self.pending.clear();
    }

    /// The files that exist.
    #[must_use]
    pub fn files(&self) -> Vec<FileId> {
        self.files.keys().copied().collect()
    }

    /// Flips one bit in `file`, in the first `within_bytes` of a page. Returns the byte's offset,
    /// or `None` if the file has no stable page.
    pub fn flip_bit(&mut self, file: FileId, within_bytes: usize) -> Option<u64> {
        self.files.get_mut(&file)?.flip_bit(within_bytes, &mut self.rng)
    }
}

fn checked(offset_bytes: u64, len_bytes: u64) -> Result<(), DiskError> {
    let page = PAGE_BYTES as u64;
    if !offset_bytes.is_multiple_of(page) || !len_bytes.is_multiple_of(page) {
        return Err(DiskError::Io(format!("unaligned access {offset_bytes}+{len_bytes}")));
    }
    if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > FILE_BYTES_MAX) {
        return Err(DiskError::Io(format!(
            "access {offset_bytes}+{len_bytes} behind the largest file"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
