//! Data that a failed sync leaves in doubt, and how the next start makes it stable.
//!
//! After a failed sync the system may have dropped earlier writes. Reads still show them, and later
//! syncs succeed without them, until the power fails. The process that saw the failure gives up
//! data that it cannot rely on (see [`crate::store`]). The next process on the same machine must
//! not take the data that it reads for stable either, even if its own syncs succeed:
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
//! Data that the node cannot read, or cannot write because space is short, stays in doubt. Then the
//! file `doubt` stays too, and the next start tries again. A disk that fails the sync may fail the
//! creation of the file as well; each later request tries it again. One case is not covered: a
//! process that dies between the end of a failed sync and the creation of the file.

use fieldstone_proto::BLOCK_BYTES;
use fieldstone_proto::disk::{JournalHeader, VOLUME_FILE_BYTES};

use super::{Phase, StartOp};
use crate::disk::Purpose;
use crate::handlers::completion::bytes_read;
use crate::limits::{START_READS_MAX, START_REWRITE_BYTES};
use crate::node::Node;
use crate::seam::{DiskError, DiskOp, DiskOutput, FileId};
use crate::store::RECORD_BYTES;

/// Whether the file `doubt` exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The file does not exist.
    #[default]
    No,
    /// The node could not create the file. It tries again with the next request.
    Owed,
    /// The file is being created.
    Marking,
    /// The file exists.
    Marked,
}

/// A range of a file that the start reads and writes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) file: FileId,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u32,
}

impl Node {
    /// Everything that may not be stable, in pieces.
    pub(super) fn pieces_in_doubt(&self) -> Vec<Piece> {
        let mut ranges = self.store.in_doubt();
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
        ranges.into_iter().flat_map(|(file, from, len)| pieces(file, from, len)).collect()
    }

    /// A read of a piece ended: writes the piece back.
    pub(super) fn piece_read(
        &mut self,
        piece: Piece,
        attempt: u8,
        result: Result<DiskOutput, DiskError>,
    ) {
        let Phase::Starting(start) = &mut self.phase else { return };
        match bytes_read(result, piece.len_bytes, "reading what is in doubt") {
            Ok(bytes) => {
                let Piece { file, offset_bytes, .. } = piece;
                let op = DiskOp::Write { file, offset_bytes, data: vec![bytes] };
                start.in_flight += 1;
                self.disk.submit(Purpose::Start(StartOp::Rewrite(piece)), op);
            }
            Err(reason) if attempt >= START_READS_MAX => {
                tracing::warn!(?piece, %reason, "what cannot be read stays in doubt");
                start.stays_in_doubt = true;
            }
            Err(_) if piece.len_bytes > BLOCK_BYTES as u32 => {
                // Find out which block is unreadable, and whether it stays unreadable.
                let blocks = 0..piece.len_bytes / BLOCK_BYTES as u32;
                start.todo.extend(blocks.map(|block| {
                    let at = u64::from(block) * BLOCK_BYTES as u64;
                    let offset_bytes = piece.offset_bytes + at;
                    let block = Piece { offset_bytes, len_bytes: BLOCK_BYTES as u32, ..piece };
                    StartOp::ReadDoubtful(block, attempt + 1)
                }));
            }
            Err(_) => start.todo.push_back(StartOp::ReadDoubtful(piece, attempt + 1)),
        }
    }

    /// A write of a piece ended.
    pub(super) fn piece_written(
        &mut self,
        piece: Piece,
        result: Result<DiskOutput, DiskError>,
    ) -> Result<(), String> {
        let Phase::Starting(start) = &mut self.phase else { return Ok(()) };
        match result {
            Ok(_) => Ok(()),
            Err(DiskError::NoSpace) => {
                tracing::warn!(?piece, "no space: what cannot be written stays in doubt");
                start.stays_in_doubt = true;
                Ok(())
            }
            Err(error) => Err(format!("{:?}: writing anew what is in doubt: {error}", piece.file)),
        }
    }

    /// A sync failed while the node runs. The file `doubt` tells the next start.
    pub(crate) fn mark_doubt(&mut self) {
        if matches!(self.doubt, Doubt::No | Doubt::Owed) {
            self.doubt = Doubt::Marking;
            self.disk.submit(Purpose::MarkDoubt, create_mark());
        }
    }

    /// Tries again to create the file `doubt`, if that failed. A disk that fails a sync may fail
    /// this too, and work again later.
    pub(crate) fn mark_owed_doubt(&mut self) {
        if self.doubt == Doubt::Owed {
            self.mark_doubt();
        }
    }

    /// The node created the file `doubt`, or failed to.
    pub(crate) fn doubt_marked(&mut self, result: &Result<DiskOutput, DiskError>) {
        self.doubt = match result {
            Ok(_) => Doubt::Marked,
            Err(error) => {
                tracing::warn!(%error, "cannot create the file doubt");
                Doubt::Owed
            }
        };
    }
}

pub(super) fn create_mark() -> DiskOp {
    DiskOp::Create { file: FileId::Doubt, len_bytes: 0, allocate: false }
}

fn pieces(file: FileId, from_bytes: u64, len_bytes: u64) -> impl Iterator<Item = Piece> {
    let step = u64::from(START_REWRITE_BYTES);
    (0..len_bytes.div_ceil(step)).map(move |index| {
        let at = index * step;
        let len_bytes = u32::try_from((len_bytes - at).min(step)).expect("at most a step");
        Piece { file, offset_bytes: from_bytes + at, len_bytes }
    })
}
