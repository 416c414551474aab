//! A volume's record on a node: its epoch and its root, in the file `volume.<id>`.
//!
//! The file has two slots of [`VOLUME_SLOT_BYTES`]. A node writes a record with sequence number `n`
//! to slot `n % 2`. So the write never touches the newest stable record. The sequence number rises
//! by one, and only after a record is stable. A slot is a header block and up to 60 KiB of root:
//!
//! | offset | bytes | field                                              |
//! |-------:|------:|----------------------------------------------------|
//! |      0 |    16 | prefix, magic `FSTNVOLU`                           |
//! |     16 |    16 | volume                                             |
//! |     32 |     8 | sequence number of this record, from 1             |
//! |     40 |     8 | epoch                                              |
//! |     48 |     8 | version of the root, 0 for none                    |
//! |     56 |     4 | length of the root                                 |
//! |     60 |     4 | CRC-32C of the root                                |
//! |     64 |     4 | slots that the volume has reserved, 0 for none     |
//! |     68 |   444 | zero                                               |
//! |    512 |  3584 | zero, not covered by the checksum                  |
//! |   4096 | 61440 | the root                                           |
//!
//! Reading after a crash: the header is one sector, so it is the old one or the new one.
//! - If both headers are blank, the file was being created, and the node does not know the volume.
//! - A header that is neither blank nor valid was damaged. It may have held the highest epoch, so
//!   the whole record counts as damaged: an epoch must never go back.
//! - Otherwise the epoch is the highest one of the valid headers. The root is that of the newest
//!   header whose root has the right checksum. A header with a torn root was never acknowledged.
//!   Taking its epoch does no harm, because epochs may skip numbers.

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DiskFormatError, Kind, PREFIX_BYTES, SECTOR_BYTES};
use crate::{BLOCK_BYTES, Epoch, ROOT_BYTES_MAX, VolumeId, crc32c};

/// Length of one of the two slots.
pub const VOLUME_SLOT_BYTES: usize = BLOCK_BYTES + ROOT_BYTES_MAX;

/// Length of a volume file.
pub const VOLUME_FILE_BYTES: usize = 2 * VOLUME_SLOT_BYTES;

const KIND: Kind = Kind { what: "volume record", magic: *b"FSTNVOLU", version: 1 };

/// A node's record of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// The volume.
    pub volume: VolumeId,
    /// Number of this record.
    pub sequence: u64,
    /// The epoch of the volume's writer.
    pub epoch: Epoch,
    /// Version of the root; 0 if there is none.
    pub root_version: u64,
    /// The root; at most [`ROOT_BYTES_MAX`] bytes.
    pub root: Bytes,
    /// Slots of the node that the volume may hold in total; 0 if it has reserved none. Releases
    /// without reservations wrote zero here.
    pub slots_reserved: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    prefix: [u8; PREFIX_BYTES],
    volume: U128,
    sequence: U64,
    epoch: U64,
    root_version: U64,
    root_len: U32,
    root_crc: U32,
    slots_reserved: U32,
}

impl VolumeRecord {
    /// The offset of this record in the file.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        (self.sequence % 2) * VOLUME_SLOT_BYTES as u64
    }

    /// The record: its header block and its root, padded to whole blocks.
    ///
    /// # Panics
    /// When the root is longer than [`ROOT_BYTES_MAX`]: the caller's error.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        assert!(self.root.len() <= ROOT_BYTES_MAX, "roots are checked when they come in");
        let layout = Layout {
            prefix: [0; PREFIX_BYTES],
            volume: self.volume.0.into(),
            sequence: self.sequence.into(),
            epoch: self.epoch.0.into(),
            root_version: self.root_version.into(),
            root_len: u32::try_from(self.root.len()).expect("at most 60 KiB").into(),
            root_crc: crc32c(&self.root).into(),
            slots_reserved: self.slots_reserved.into(),
        };
        let len_bytes = BLOCK_BYTES + self.root.len().next_multiple_of(BLOCK_BYTES);
        let mut out = AlignedBuf::zeroed(len_bytes);
        out[..size_of::<Layout>()].copy_from_slice(layout.as_bytes());
        KIND.seal(&mut out[..SECTOR_BYTES]);
        out[BLOCK_BYTES..BLOCK_BYTES + self.root.len()].copy_from_slice(&self.root);
        out.freeze()
    }

    /// A whole volume file with this record in one slot and zeroes in the other.
    ///
    /// # Panics
    /// As [`Self::encode`].
    #[must_use]
    pub fn encode_file(&self) -> Bytes {
        let record = self.encode();
        let at = usize::try_from(self.offset_bytes()).expect("one of two slots");
        let mut out = AlignedBuf::zeroed(VOLUME_FILE_BYTES);
        out[at..at + record.len()].copy_from_slice(&record);
        out.freeze()
    }

    /// Reads a whole volume file by the rules in the module text.
    ///
    /// # Errors
    /// [`DiskFormatError::Blank`] when the volume never became known, else the reason.
    pub fn decode_file(bytes: &Bytes, volume: VolumeId) -> Result<Self, DiskFormatError> {
        let file = KIND.cut(bytes, VOLUME_FILE_BYTES)?;
        let mut headers: Vec<(&Layout, usize)> = Vec::with_capacity(2);
        for at in [0, VOLUME_SLOT_BYTES] {
            let sector = &file[at..at + SECTOR_BYTES];
            match KIND.open(sector) {
                Ok(()) => headers.push((Self::header(sector, at, volume)?, at)),
                Err(DiskFormatError::Blank { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        headers.sort_by_key(|(layout, _)| std::cmp::Reverse(layout.sequence.get()));
        let Some(epoch) = headers.iter().map(|(layout, _)| layout.epoch.get()).max() else {
            return Err(DiskFormatError::Blank { what: KIND.what });
        };
        let whole = headers.iter().find_map(|(layout, at)| {
            let start = at + BLOCK_BYTES;
            let root = bytes.slice(start..start + layout.root_len.get() as usize);
            (crc32c(&root) == layout.root_crc.get()).then_some((layout, root))
        });
        let Some((layout, root)) = whole else {
            return Err(KIND.invalid("no root has the right checksum"));
        };
        Ok(Self {
            volume,
            // Takes the sequence of the newest header with a whole root: the next write must not
            // overwrite its slot, even if a newer, torn header is in the other slot.
            sequence: layout.sequence.get(),
            epoch: Epoch(epoch),
            root_version: layout.root_version.get(),
            root: Bytes::copy_from_slice(&root),
            slots_reserved: layout.slots_reserved.get(),
        })
    }

    fn header(sector: &[u8], at: usize, volume: VolumeId) -> Result<&Layout, DiskFormatError> {
        let (layout, _) = Layout::ref_from_prefix(sector).expect("a sector is longer");
        if layout.volume.get() != volume.0 {
            return Err(KIND.invalid("it belongs to another volume"));
        }
        if layout.root_len.get() as usize > ROOT_BYTES_MAX {
            return Err(KIND.invalid("the root is longer than 60 KiB"));
        }
        let slot = usize::from(!layout.sequence.get().is_multiple_of(2));
        if layout.sequence.get() == 0 || slot * VOLUME_SLOT_BYTES != at {
            return Err(KIND.invalid("its sequence number belongs in the other slot"));
        }
        Ok(layout)
    }
}
