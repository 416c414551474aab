//! The superblock: a node's identity. One block, written once when the pool is created.
//!
//! | offset | bytes | field                                |
//! |-------:|------:|--------------------------------------|
//! |      0 |    16 | prefix, magic `FSTNSUPR`             |
//! |     16 |    16 | pool                                 |
//! |     32 |     8 | incarnation                          |
//! |     40 |    16 | the pool's first secret              |
//! |     56 |     4 | slot size in bytes                   |
//! |     60 |     4 | number of slots                      |
//! |     64 |     2 | the node's place in the pool         |
//! |     66 |     2 | nodes in the pool                    |
//! |     68 |     1 | length of the code                   |
//! |     69 |     3 | zero                                 |
//! |     72 |    64 | the pool's default code, as on the command line, zero filled |
//! |    136 |   376 | zero                                 |
//! |    512 |  3584 | zero, not covered by the checksum    |

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DiskFormatError, Kind, PREFIX_BYTES, SECTOR_BYTES, SLOT_BLOCKS_MAX, u32_at};
use crate::{BLOCK_BYTES, MasterKey, NodeIndex, PoolId};

/// Longest code string, in bytes.
pub const CODE_BYTES_MAX: usize = 64;

const KIND: Kind = Kind { what: "superblock", magic: *b"FSTNSUPR", version: 2 };

/// The identity of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The pool.
    pub pool: PoolId,
    /// The node's place in the pool.
    pub node: NodeIndex,
    /// Number of nodes in the pool.
    pub nodes: u16,
    /// Distinguishes this node from an empty replacement at the same place. Random.
    pub incarnation: u64,
    /// The pool's first secret, as a part of its identity. Later ones are not here.
    pub key: MasterKey,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// Number of slots.
    pub slots: u32,
    /// The default code of the pool's volumes, as on the command line; up to [`CODE_BYTES_MAX`]
    /// bytes.
    pub code: String,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    prefix: [u8; PREFIX_BYTES],
    pool: U128,
    incarnation: U64,
    key: [u8; 16],
    slot_bytes: U32,
    slots: U32,
    node: U16,
    nodes: U16,
    code_len: u8,
    zero: [u8; 3],
    code: [u8; CODE_BYTES_MAX],
}

impl Superblock {
    /// The superblock as one block.
    ///
    /// # Errors
    /// [`DiskFormatError::Invalid`] when a field is out of its bounds.
    pub fn encode(&self) -> Result<Bytes, DiskFormatError> {
        self.check()?;
        let mut code = [0; CODE_BYTES_MAX];
        code[..self.code.len()].copy_from_slice(self.code.as_bytes());
        let layout = Layout {
            prefix: [0; PREFIX_BYTES],
            pool: self.pool.0.into(),
            incarnation: self.incarnation.into(),
            key: self.key.0,
            slot_bytes: self.slot_bytes.into(),
            slots: self.slots.into(),
            node: self.node.0.into(),
            nodes: self.nodes.into(),
            code_len: u8::try_from(self.code.len()).expect("checked above to be at most 64"),
            zero: [0; 3],
            code,
        };
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        block[..size_of::<Layout>()].copy_from_slice(layout.as_bytes());
        KIND.seal(&mut block[..SECTOR_BYTES]);
        Ok(block.freeze())
    }

    /// Reads a superblock.
    ///
    /// # Errors
    /// Whether the bytes are blank, a different kind of data, damaged, of a newer release, or
    /// invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, DiskFormatError> {
        let sector = KIND.cut(bytes, SECTOR_BYTES)?;
        KIND.open(sector)?;
        if u32_at(sector, 12) == 1 {
            return Err(KIND.invalid(
                "version 1 lays slots out differently and is no longer read: make the pool anew",
            ));
        }
        let (layout, _) = Layout::ref_from_prefix(sector).expect("a sector is longer");
        let code = layout
            .code
            .get(..usize::from(layout.code_len))
            .and_then(|code| std::str::from_utf8(code).ok())
            .ok_or(KIND.invalid("the code is not a string of at most 64 bytes"))?;
        let superblock = Self {
            pool: PoolId(layout.pool.get()),
            node: NodeIndex(layout.node.get()),
            nodes: layout.nodes.get(),
            incarnation: layout.incarnation.get(),
            key: MasterKey(layout.key),
            slot_bytes: layout.slot_bytes.get(),
            slots: layout.slots.get(),
            code: code.to_owned(),
        };
        superblock.check()?;
        Ok(superblock)
    }

    fn check(&self) -> Result<(), DiskFormatError> {
        let slot_bytes = self.slot_bytes as usize;
        if self.code.len() > CODE_BYTES_MAX {
            return Err(KIND.invalid("the code is longer than 64 bytes"));
        }
        if slot_bytes == 0
            || !slot_bytes.is_multiple_of(BLOCK_BYTES)
            || slot_bytes / BLOCK_BYTES > SLOT_BLOCKS_MAX
        {
            return Err(KIND.invalid("the slot size is not a multiple of 4096 up to 3 MiB"));
        }
        if self.slots == 0 {
            return Err(KIND.invalid("there are no slots"));
        }
        if self.node.0 >= self.nodes {
            return Err(KIND.invalid("the node's place is outside the pool"));
        }
        Ok(())
    }
}
