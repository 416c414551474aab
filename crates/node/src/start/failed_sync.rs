//! Recovery from a failed sync: how the next start makes the unsynced data stable.
//!
//! *Unsynced data* is data that reads show but that a power failure may take. After a failed sync
//! the system may have dropped earlier writes. Reads still show them, and later syncs succeed
//! without them, until the power fails. The process that saw the failure gives up its unsynced data
//! (see [`crate::store`]). The next process on the same machine must not take the data that it
//! reads for stable either, even if its own syncs succeed:
//!
//! - The file `doubt` says that a sync failed, or that a start did not get through its syncs. A
//!   start creates it before its syncs and removes it when all of them succeeded. A running node
//!   creates it when a sync fails. The file only has to outlive the process: after a power failure,
//!   reads show the true contents.
//! - A start that finds the file reads the data that may not be stable and writes it back
//!   unchanged, before its syncs. These syncs then make it stable. The data are the whole file
//!   `slots`, the data of open shards, the data of complete shards that are not below the highest
//!   `stable_below` of any header or note, the records of volumes, and journals.
//!
//! Data that the node cannot read, or cannot write because space is short, stays unsynced. Then the
//! file `doubt` stays too, and the next start tries again. A disk that fails the sync may fail the
//! creation of the file as well; with each later request, the node tries again. One case is not
//! covered: a process that dies between the end of a failed sync and the creation of the file.

use fieldstone_proto::BLOCK_BYTES;
use fieldstone_proto::disk::{JournalHeader, VOLUME_FILE_BYTES};

use super::{NodePhase, StartOp};
use crate::disk::DiskOpKind;
use crate::handlers::completion::bytes_read;
use crate::interface::{DiskError, DiskOp, DiskOutput, FileId};
use crate::limits::{START_READS_MAX, START_REWRITE_BYTES};
use crate::node::Node;
use crate::store::RECORD_BYTES;

/// The state of the file `doubt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DoubtFile {
    /// The file does not exist.
    #[default]
    Absent,
    /// The node could not create the file. It tries again with the next request.
    Failed,
    /// The file is being created.
    Creating,
    /// The file exists.
    Exists,
}

/// A range of a file that the start reads and writes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RewriteRange {
    pub(crate) file: FileId,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u32,
}

impl Node {
    /// The ranges of all unsynced data.
    pub(super) fn unsynced_ranges(&self) -> Vec<RewriteRange> {
        let mut ranges = self.store.unsynced_data();
        let slots_bytes = u64::from(self.config.slots) * u64::from(RECORD_BYTES);
        ranges.push((FileId::Slots, 0, slots_bytes));
        for (&id, _) in self.volumes.iter().filter(|(_, volume)| volume.has_file) {
            ranges.push((FileId::Volume(id), 0, VOLUME_FILE_BYTES as u64));
        }
        for (&id, volume) in self.volumes.iter() {
            for (&generation, journal) in &volume.journals {
                let len_bytes = JournalHeader::RING_AT_BYTES + journal.ring_bytes;
                ranges.push((FileId::Journal(id, generation), 0, len_bytes));
            }
        }
        let total_bytes: u64 = ranges.iter().map(|(_, _, len_bytes)| len_bytes).sum();
        tracing::warn!(total_bytes, "a sync had failed: writing anew what may not be stable");
        ranges.into_iter().flat_map(|(file, from, len)| split_range(file, from, len)).collect()
    }

    /// The read of a range ended: writes the range back.
    pub(super) fn range_read(
        &mut self,
        range: RewriteRange,
        attempt: u8,
        result: Result<DiskOutput, DiskError>,
    ) {
        let NodePhase::Starting(start) = &mut self.phase else { return };
        match bytes_read(result, range.len_bytes, "reading what is in doubt") {
            Ok(bytes) => {
                let RewriteRange { file, offset_bytes, .. } = range;
                let op = DiskOp::Write { file, offset_bytes, data: vec![bytes] };
                start.in_flight += 1;
                self.disk.submit(DiskOpKind::Start(StartOp::Rewrite(range)), op);
            }
            Err(reason) if attempt >= START_READS_MAX => {
                tracing::warn!(?range, %reason, "what cannot be read stays in doubt");
                start.stays_unsynced = true;
            }
            Err(_) if range.len_bytes > BLOCK_BYTES as u32 => {
                // Find out which block is unreadable, and whether it stays unreadable.
                let blocks = 0..range.len_bytes / BLOCK_BYTES as u32;
                start.todo.extend(blocks.map(|block| {
                    let at = u64::from(block) * BLOCK_BYTES as u64;
                    let offset_bytes = range.offset_bytes + at;
                    let block =
                        RewriteRange { offset_bytes, len_bytes: BLOCK_BYTES as u32, ..range };
                    StartOp::ReadUnsynced(block, attempt + 1)
                }));
            }
            Err(_) => start.todo.push_back(StartOp::ReadUnsynced(range, attempt + 1)),
        }
    }

    /// The write of a range ended.
    pub(super) fn range_rewritten(
        &mut self,
        range: RewriteRange,
        result: Result<DiskOutput, DiskError>,
    ) -> Result<(), String> {
        let NodePhase::Starting(start) = &mut self.phase else { return Ok(()) };
        match result {
            Ok(_) => Ok(()),
            Err(DiskError::NoSpace) => {
                tracing::warn!(?range, "no space: what cannot be written stays in doubt");
                start.stays_unsynced = true;
                Ok(())
            }
            Err(error) => Err(format!("{:?}: writing anew what is in doubt: {error}", range.file)),
        }
    }

    /// A sync failed while the node runs. The file `doubt` tells the next start.
    pub(crate) fn create_doubt_file(&mut self) {
        if matches!(self.doubt_file, DoubtFile::Absent | DoubtFile::Failed) {
            self.doubt_file = DoubtFile::Creating;
            self.disk.submit(DiskOpKind::CreateDoubtFile, create_doubt_file_op());
        }
    }

    /// Tries again to create the file `doubt`, if that failed. A disk that fails a sync may fail
    /// this too, and work again later.
    pub(crate) fn retry_doubt_file(&mut self) {
        if self.doubt_file == DoubtFile::Failed {
            self.create_doubt_file();
        }
    }

    /// The node created the file `doubt`, or failed to.
    pub(crate) fn doubt_file_created(&mut self, result: &Result<DiskOutput, DiskError>) {
        self.doubt_file = match result {
            Ok(_) => DoubtFile::Exists,
            Err(error) => {
                tracing::warn!(%error, "cannot create the file doubt");
                DoubtFile::Failed
            }
        };
    }
}

pub(super) fn create_doubt_file_op() -> DiskOp {
    DiskOp::Create { file: FileId::Doubt, len_bytes: 0, allocate: false }
}

fn split_range(
    file: FileId,
    from_bytes: u64,
    len_bytes: u64,
) -> impl Iterator<Item = RewriteRange> {
    let step = u64::from(START_REWRITE_BYTES);
    (0..len_bytes.div_ceil(step)).map(move |index| {
        let at = index * step;
        let len_bytes = u32::try_from((len_bytes - at).min(step)).expect("at most a step");
        RewriteRange { file, offset_bytes: from_bytes + at, len_bytes }
    })
}
