//! How a file is cut into stripes, units and blocks, and their places in shard files.
//!
//! - A **stripe** is k consecutive *units* of the file, and m parity units. Unit i of every stripe
//!   is in shard i.
//! - A **unit** has the same number of bytes in all stripes but the last. The last stripe has the
//!   shortest units that the code allows and that hold the rest of the file, so a file of one byte
//!   does not become megabytes. Bytes beyond the file's end are zeros.
//! - A **block** is the range of one checksum: an element, if the code's elements are the equal
//!   parts of a unit; else the unit. So a repair that reads some elements of a unit can check them
//!   without the others.
//!
//! In a shard file, the units follow the header. Before each unit is its record: the checksums of
//! its blocks (`record.rs`).

use std::sync::Arc;

use fieldstone_codes::{Code, Layout, Profile};

use crate::error::Error;
use crate::header::HEADER_BYTES;

/// Most bytes of a file. This is far beyond the limits of file systems, and keeps all sums within
/// 64 bits.
pub const MAX_FILE_BYTES: u64 = 1 << 60;
/// Most bytes of all units of a stripe together: each thread holds one stripe in memory.
pub const MAX_STRIPE_BYTES: u64 = 1 << 30;

/// Smallest useful read of an element in a repair, in bytes, for codes with many elements.
const WANTED_ELEMENT_BYTES: usize = 8 << 10;
/// Shortest default unit: the stripes of common codes fit into a second-level cache.
const MIN_DEFAULT_UNIT_BYTES: usize = 128 << 10;
/// Longest default unit.
const MAX_DEFAULT_UNIT_BYTES: usize = 2 << 20;
/// Most bytes of a default stripe, where the code allows it.
const MAX_DEFAULT_STRIPE_BYTES: usize = 32 << 20;
/// Elements of default length are a multiple of a cache line.
const LINE_BYTES: usize = 64;

/// A code and the length of its units.
#[derive(Clone)]
pub struct Striping {
    code: Arc<dyn Code>,
    profile: Profile,
    unit_bytes: usize,
    blocks: usize,
}

impl std::fmt::Debug for Striping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Striping({}, units of {} bytes)", self.profile, self.unit_bytes)
    }
}

impl Striping {
    /// Stripes of `profile` with units of `unit_bytes` bytes, or of a length that suits the code.
    ///
    /// # Errors
    /// [`Error::Unit`] when units cannot have that length.
    pub fn new(profile: Profile, unit_bytes: Option<u64>) -> Result<Self, Error> {
        let given_bytes = unit_bytes.unwrap_or_else(|| default_unit_bytes(profile) as u64);
        Self::check(profile, given_bytes)?;
        let code = profile.code();
        let blocks = match code.layout() {
            Layout::Contiguous => code.elements() as usize,
            _ => 1,
        };
        Ok(Self { profile, unit_bytes: given_bytes as usize, blocks, code })
    }

    /// Whether units of `profile` can have `given_bytes` bytes, without making the code.
    fn check(profile: Profile, given_bytes: u64) -> Result<(), Error> {
        let granule_bytes = granule_bytes(profile) as u64;
        let shards = profile.shards() as u64;
        let most_bytes = MAX_STRIPE_BYTES / shards;
        let refuse = |reason| Err(Error::Unit { profile, given_bytes, reason });
        if granule_bytes > most_bytes {
            return refuse(format!(
                "the shortest ones have {granule_bytes} bytes, and {shards} of them more than \
                 {MAX_STRIPE_BYTES}; use a code with smaller packets"
            ));
        }
        if given_bytes == 0 || given_bytes > most_bytes {
            return refuse(format!("they must have 1 to {most_bytes} bytes"));
        }
        if !given_bytes.is_multiple_of(granule_bytes) {
            let below = (given_bytes / granule_bytes).max(1) * granule_bytes;
            return refuse(format!(
                "they must be a multiple of {granule_bytes} bytes, for example {below}"
            ));
        }
        Ok(())
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> &dyn Code {
        &*self.code
    }

    /// The code's name.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Data shards.
    #[must_use]
    pub fn k(&self) -> usize {
        self.profile.k()
    }

    /// All shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.profile.shards()
    }

    /// Bytes of a unit, except in the last stripe.
    #[must_use]
    pub fn unit_bytes(&self) -> usize {
        self.unit_bytes
    }

    /// Blocks of a unit.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes of the file in a stripe, except in the last.
    #[must_use]
    pub fn stripe_bytes(&self) -> usize {
        self.unit_bytes * self.k()
    }

    /// Bytes of the record before each unit.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        4 + 4 * self.blocks
    }

    /// Bytes of each unit of a stripe that holds `data_bytes` bytes of the file.
    #[must_use]
    pub fn unit_len(&self, data_bytes: usize) -> usize {
        data_bytes.div_ceil(self.k()).next_multiple_of(granule_bytes(self.profile))
    }

    /// Offset of the record of a stripe's unit in a shard file.
    #[must_use]
    pub fn offset(&self, stripe: u64) -> u64 {
        HEADER_BYTES as u64 + stripe * (self.record_bytes() + self.unit_bytes) as u64
    }
}

/// Lengths of units are multiples of this number.
fn granule_bytes(profile: Profile) -> usize {
    profile.layout().granule_bytes(profile.elements())
}

/// A length of units that suits a code: see the constants above.
fn default_unit_bytes(profile: Profile) -> usize {
    let (shards, elements) = (profile.shards(), profile.elements() as usize);
    let wanted = (elements * WANTED_ELEMENT_BYTES)
        .clamp(MIN_DEFAULT_UNIT_BYTES, MAX_DEFAULT_UNIT_BYTES)
        .min(MAX_DEFAULT_STRIPE_BYTES / shards);
    let granule_bytes = granule_bytes(profile);
    let step = match profile.layout() {
        Layout::Contiguous | Layout::Words { .. } => granule_bytes * LINE_BYTES,
        Layout::Packets { .. } => granule_bytes,
    };
    (wanted / step).max(1) * step
}

/// The stored parameters of an encoding, in the manifest and in every header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodingParams {
    /// Distinguishes the shards of this encoding from all others.
    pub id: EncodingId,
    /// The code.
    pub profile: Profile,
    /// Bytes of a unit, except in the last stripe.
    pub unit_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// CRC-32C of the file.
    pub file_crc: u32,
}

impl EncodingParams {
    /// Checks whether the units can have this length.
    pub(crate) fn check(&self) -> Result<(), Error> {
        Striping::check(self.profile, self.unit_bytes)
    }

    /// The encoding; making its code may take a while.
    pub(crate) fn encoding(&self) -> Result<Encoding, Error> {
        let striping = Striping::new(self.profile, Some(self.unit_bytes))?;
        let (id, file_bytes, file_crc) = (self.id, self.file_bytes, self.file_crc);
        Ok(Encoding { id, striping, file_bytes, file_crc })
    }
}

/// A file that is cut into stripes.
#[derive(Clone, Debug)]
pub struct Encoding {
    /// Distinguishes the shards of this encoding from all others.
    pub id: EncodingId,
    /// Code and units.
    pub striping: Striping,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// CRC-32C of the file.
    pub file_crc: u32,
}

/// A random number that all shards of one encoding share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EncodingId(pub u128);

impl std::fmt::Display for EncodingId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::fmt::Debug for EncodingId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Encoding {
    /// The parameters that are stored.
    #[must_use]
    pub fn params(&self) -> EncodingParams {
        EncodingParams {
            id: self.id,
            profile: self.striping.profile,
            unit_bytes: self.striping.unit_bytes as u64,
            file_bytes: self.file_bytes,
            file_crc: self.file_crc,
        }
    }

    /// Number of stripes.
    #[must_use]
    pub fn stripes(&self) -> u64 {
        self.file_bytes.div_ceil(self.striping.stripe_bytes() as u64)
    }

    /// Offset of a stripe in the file.
    #[must_use]
    pub fn stripe_start(&self, stripe: u64) -> u64 {
        stripe * self.striping.stripe_bytes() as u64
    }

    /// Bytes of the file in a stripe.
    #[must_use]
    pub fn data_len(&self, stripe: u64) -> usize {
        let rest = self.file_bytes.saturating_sub(self.stripe_start(stripe));
        rest.min(self.striping.stripe_bytes() as u64) as usize
    }

    /// Bytes of each unit of a stripe.
    #[must_use]
    pub fn unit_len(&self, stripe: u64) -> usize {
        self.striping.unit_len(self.data_len(stripe))
    }

    /// Bytes of all units of a shard, without header and records.
    #[must_use]
    pub fn shard_data_bytes(&self) -> u64 {
        match self.stripes() {
            0 => 0,
            stripes => {
                let last = self.unit_len(stripes - 1) as u64;
                (stripes - 1) * self.striping.unit_bytes as u64 + last
            }
        }
    }

    /// Number of stripes whose whole units lie in the first `len_bytes` bytes of a shard file.
    pub(crate) fn stripes_within(&self, len_bytes: u64) -> u64 {
        if len_bytes >= self.shard_file_bytes() {
            return self.stripes();
        }
        let step_bytes = (self.striping.record_bytes() + self.striping.unit_bytes) as u64;
        let whole = len_bytes.saturating_sub(HEADER_BYTES as u64) / step_bytes;
        // The last unit may be shorter. It is cut off here; else the whole file would be there.
        whole.min(self.stripes().saturating_sub(1))
    }

    /// Bytes of a shard file.
    #[must_use]
    pub fn shard_file_bytes(&self) -> u64 {
        let records = self.stripes() * self.striping.record_bytes() as u64;
        HEADER_BYTES as u64 + records + self.shard_data_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn striping(code: &str, unit_bytes: Option<u64>) -> Result<Striping, Error> {
        Striping::new(code.parse().unwrap(), unit_bytes)
    }

    #[test]
    fn default_units_fit_their_codes() {
        for (code, unit_bytes, blocks) in [
            ("rs:4+2", 128 << 10, 1),
            ("rs:251+4", 128 << 10, 1),
            ("copies:3", 128 << 10, 1),
            ("zigzag:4+2", 128 << 10, 8),
            ("clay:8+4", 512 << 10, 64),
            ("clay:10+4", 2 << 20, 256),
            ("cauchy-good:4+2", 128 << 10, 1),
            ("cauchy-good:4+2,w=32,ps=1048576", 32 << 20, 1),
            ("jerasure-van:4+2,w=16", 128 << 10, 1),
        ] {
            let striping = striping(code, None).unwrap();
            assert_eq!((striping.unit_bytes(), striping.blocks()), (unit_bytes, blocks), "{code}");
        }
    }

    #[test]
    fn impossible_units_are_refused_with_what_would_do() {
        let message = |code, unit| striping(code, Some(unit)).unwrap_err().to_string();
        assert!(message("zigzag:4+2", 100).contains("for example 96"));
        assert!(message("zigzag:4+2", 3).contains("for example 8"));
        assert!(message("rs:4+2", 0).contains("1 to"));
        assert!(message("rs:4+2", 1 << 30).contains("1 to 178956970"));
        assert!(striping("rs:4+2", Some(1)).is_ok());
        let packets = "cauchy-good:200+55,ps=1048576";
        assert!(striping(packets, None).unwrap_err().to_string().contains("smaller packets"));
    }

    #[test]
    fn the_last_stripe_is_as_short_as_the_code_allows() {
        let encoding = |code, unit_bytes, file_bytes| Encoding {
            id: EncodingId(1),
            striping: striping(code, Some(unit_bytes)).unwrap(),
            file_bytes,
            file_crc: 0,
        };
        for (code, unit_bytes, file_bytes, stripes, last_unit) in [
            ("rs:4+2", 100, 1, 1, 1),
            ("rs:4+2", 100, 400, 1, 100),
            ("rs:4+2", 100, 401, 2, 1),
            ("rs:4+2", 100, 799, 2, 100),
            ("zigzag:4+2", 64, 1, 1, 8),
            ("jerasure-van:3+2,w=32", 64, 13, 1, 8),
            ("cauchy-good:4+2,ps=4", 64, 300, 2, 32),
        ] {
            let encoding = encoding(code, unit_bytes, file_bytes);
            assert_eq!(encoding.stripes(), stripes, "{code}");
            assert_eq!(encoding.unit_len(stripes - 1), last_unit, "{code}");
            let data = (stripes - 1) * unit_bytes + last_unit as u64;
            assert_eq!(encoding.shard_data_bytes(), data, "{code}");
            let end = encoding.striping.offset(stripes - 1)
                + (encoding.striping.record_bytes() + last_unit) as u64;
            assert_eq!(encoding.shard_file_bytes(), end);
        }
        let empty = encoding("clay:4+2", 64, 0);
        assert_eq!((empty.stripes(), empty.shard_file_bytes()), (0, HEADER_BYTES as u64));
        let longest = encoding("copies:2", 1, MAX_FILE_BYTES);
        assert_eq!(longest.shard_file_bytes(), HEADER_BYTES as u64 + 9 * MAX_FILE_BYTES);
    }
}
