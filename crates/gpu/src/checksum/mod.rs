//! CRC32C of blocks in a card's memory, so that the host need not read again what a coding program
//! has written.
//!
//! The data are rows at equal distances, such as the elements of a program's outputs. Each row is
//! cut into blocks of equal length, and each block gets the CRC32C that
//! [`crc32c`](fieldstone_accel::crc32c) computes.
//!
//! # What a warp does
//!
//! A warp computes one block at a time. It reads 256 bytes per step: lane `l` reads the 8 bytes at
//! `8 l`. So every load is one run of bytes. A lane sees one 8-byte *vector* of every 256 bytes,
//! and moves its state over 256 bytes per step. The state is a CRC register without the usual
//! inversions. It is linear: the register after some bytes is the XOR of what each byte adds. So
//! the XOR of 8 table entries, one for each byte of the vector, is the next state. The first 4
//! bytes are XORed with the present state before. This is slicing by 8, with tables that are 256
//! bytes instead of 8 bytes long.
//!
//! At the end, the state of lane `l` is `8 l` bytes too far, because it moved over its whole last
//! step although its vector lies `8 l` bytes behind the first. To move a register is to multiply
//! by a power of x modulo the polynomial, and x has an inverse. So each lane moves its state
//! *back* by `8 l` bytes, all lanes at once, and the XOR of all lanes is the register of the
//! block. A tree of shifts would have five rounds of lookups instead of one. No table depends on
//! the length of the blocks.
//!
//! # Bank conflicts
//!
//! Shared memory has 32 banks of 4 bytes. It serves a load of a warp in one cycle if no two lanes
//! want different words of one bank. Lookups at random places of a table take 3 to 4 cycles. They
//! take one here: each lane has 4 banks and no other lane that loads at the same time uses one of
//! them. A row of 256 bytes holds the entries of all 8 tables for one value of a byte, each 8
//! times:
//!
//! ```text
//!   word of the row    0..8      8..16     16..24    24..32    32..40    ...  56..64
//!   holds              table 0   table 1   table 2   table 3   table 4   ...  table 7
//! ```
//!
//! Lane `l` reads copy `l % 8`. When lanes 0 to 7 look at byte 0 of a word, lanes 8 to 15 look at
//! byte 1, lanes 16 to 23 at byte 2 and lanes 24 to 31 at byte 3, each in the table of this byte;
//! in the next three loads they change places. So four tables are in use at once, in different
//! banks. The order of the bytes makes no difference to an XOR.
//!
//! The index of a row is a multiple of 256, so one byte permutation makes the address: it puts the
//! byte of the data above the lane's place in the row. A byte costs a permutation and a load, and
//! half a `lop3`, which adds two entries. With the loads of the data and the loop, these are 174
//! instructions for 64 bytes of a lane (2.7 per byte) on cards of compute capability 8.0 and 9.0.
//! The end of a block takes about 70 more in each lane: 0.5 per byte in blocks of 4096 bytes.
//!
//! The tables for the way back are different in each lane, so they are indexed by 4 bits: 16 rows
//! of 256 bytes for each byte of the state. A row has a word for the low and one for the high 4
//! bits, for each lane. The lane number is the bank.
//!
//! The card's memory holds each entry once ([`table`]). At the start, the threads of a thread
//! block copy the tables into shared memory, 8 times where it says so above. A thread block reads
//! 24 KiB and writes 80 KiB for this, so there is only one per multiprocessor, and its warps
//! compute many blocks.

mod kernel;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::card::Card;
use crate::driver::{Argument, DeviceAddress, Driver, DriverError, Function, Grid, Stream};

pub use kernel::{KERNEL, kernel_text};
pub use table::table;

/// Threads of a thread block.
pub const THREADS: u32 = 512;
/// Shared memory of a thread block. Cards of compute capability 7.5 have less.
pub const SHARED_BYTES: u32 = table::SHARED_ROWS_BYTES + table::BACK_BYTES;
/// The length of a block is a multiple of this.
pub const BLOCK_ALIGN_BYTES: usize = 512;
/// Rows begin at multiples of this.
pub const ROW_ALIGN_BYTES: u32 = 8;
/// Most blocks of a launch.
const BLOCKS_MAX: u64 = 1 << 30;

/// Whether the kernel computes blocks of this length, in rows of this length. The host computes
/// others.
#[must_use]
pub fn fits(row_bytes: usize, block_bytes: usize) -> bool {
    block_bytes != 0
        && block_bytes.is_multiple_of(BLOCK_ALIGN_BYTES)
        && row_bytes.is_multiple_of(block_bytes)
        && u32::try_from(row_bytes).is_ok()
        && u32::try_from(block_bytes).is_ok()
}

/// Rows in a card's memory, and how they are cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The first row, a multiple of [`ROW_ALIGN_BYTES`].
    pub data: DeviceAddress,
    /// Rows.
    pub rows: u32,
    /// Bytes of a row that have checksums.
    pub row_bytes: u32,
    /// The distance of rows, a multiple of [`ROW_ALIGN_BYTES`].
    pub pitch: u32,
    /// Bytes of a block. [`fits`] says which are possible.
    pub block_bytes: u32,
}

impl Blocks {
    /// The number of blocks in all rows, or why the kernel does not compute them.
    fn count(&self) -> Result<u32, &'static str> {
        if !fits(self.row_bytes as usize, self.block_bytes as usize) {
            return Err("the rows are not cut into blocks of a multiple of 512 bytes");
        }
        let align = ROW_ALIGN_BYTES;
        if !self.data.0.is_multiple_of(align.into()) || !self.pitch.is_multiple_of(align) {
            return Err("the rows do not begin at multiples of 8 bytes");
        }
        let count = u64::from(self.rows) * u64::from(self.row_bytes / self.block_bytes);
        if count > BLOCKS_MAX {
            return Err("there are too many blocks");
        }
        Ok(count as u32)
    }

    /// The grid and the arguments of a launch on a card with some multiprocessors. `None` if there
    /// is nothing to compute.
    fn launch(
        &self,
        multiprocessors: u32,
        table: DeviceAddress,
        sums: DeviceAddress,
    ) -> Result<Option<(Grid, [Argument; 7])>, &'static str> {
        let count = self.count()?;
        if count == 0 {
            return Ok(None);
        }
        let blocks = count.min(multiprocessors.max(1));
        let grid = Grid { blocks, threads: THREADS, shared_bytes: SHARED_BYTES };
        let arguments = [
            Argument::U64(self.data.0),
            Argument::U64(table.0),
            Argument::U64(sums.0),
            Argument::U32(count),
            Argument::U32(self.row_bytes / self.block_bytes),
            Argument::U32(self.block_bytes),
            Argument::U32(self.pitch),
        ];
        Ok(Some((grid, arguments)))
    }
}

/// The kernel and its tables on a card, for blocks of all lengths.
pub struct Sums {
    driver: Arc<dyn Driver>,
    function: Function,
    table: DeviceAddress,
}

impl std::fmt::Debug for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sums").field("table", &self.table).finish_non_exhaustive()
    }
}

impl Sums {
    /// Compiles and loads the kernel, and copies its tables to the card. This may take seconds.
    ///
    /// # Errors
    /// The card has too little shared memory, which does not fail it, or it has failed.
    pub fn new(card: &Card) -> Result<Self, DriverError> {
        let has = card.info().shared_bytes_max;
        if has < SHARED_BYTES {
            let error = format!("it needs {SHARED_BYTES} bytes of shared memory, and has {has}");
            return Err(DriverError::Program(error));
        }
        let bytes: Vec<u8> = table().into_iter().flat_map(u32::to_le_bytes).collect();
        let driver = Arc::clone(card.driver());
        let table = driver.allocate(bytes.len() as u64)?;
        let function = match driver.load(&kernel_text(), KERNEL, SHARED_BYTES) {
            Ok(function) => function,
            Err(error) => {
                driver.free(table);
                return Err(error);
            }
        };
        let sums = Self { driver, function, table };
        card.upload(table, &bytes)?;
        Ok(sums)
    }

    /// Starts to compute the checksums of all blocks, on a stream. They lie at `sums`, 4 bytes each
    /// in the byte order of the card (little-endian): those of the first row, then those of the
    /// next.
    ///
    /// # Errors
    /// The blocks do not [fit](fits), rows are not aligned, or the card has failed.
    pub fn launch(
        &self,
        stream: Stream,
        blocks: &Blocks,
        sums: DeviceAddress,
    ) -> Result<(), DriverError> {
        let launch = blocks.launch(self.driver.info().multiprocessors, self.table, sums);
        let refused =
            |error: &str| DriverError::Failed { operation: "sum blocks", error: error.to_owned() };
        let Some((grid, arguments)) = launch.map_err(refused)? else { return Ok(()) };
        self.driver.launch(stream, self.function, grid, &arguments)
    }
}

impl Drop for Sums {
    fn drop(&mut self) {
        self.driver.free(self.table);
        self.driver.unload(self.function);
    }
}
