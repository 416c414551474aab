//! The messages between a volume and its storage nodes, and the formats on the wire and on disk.
//!
//! This crate has no logic: only types, their encodings and the checks that an encoding needs. A
//! message has two forms. In memory it is a [`Request`] or [`Reply`]: state machines exchange
//! these, and nodes in the same process get them without a copy. On a socket it has the byte form
//! that `wire` defines. The files of a node follow `disk`.
//!
//! Versioning: every byte form begins with a magic number and a version. A reader that finds a
//! newer version reports it and changes nothing.

pub mod capability;
pub mod column;
pub mod disk;
pub mod fragments;
pub mod fuzz;
pub mod ids;
pub mod keys;
pub mod message;
pub mod route;
pub mod session;
pub mod wire;

pub use capability::{Capability, CapabilityError, CapabilityKey, MasterKey, Rights};
pub use column::{
    Column, ElementTable, ElementTerm, Factors, NoRow, TABLE_BYTES_MAX, TABLE_ELEMENT_BYTES_MIN,
    TABLE_ELEMENTS_MAX,
};
pub use fragments::{FRAGMENT_BYTES, FRAGMENT_BYTES_MAX, FragmentRole, Fragments};
pub use ids::{Epoch, JournalGen, Lsn, NodeIndex, PoolId, SegmentId, ShardIndex, VolumeId};
pub use keys::{KeyGeneration, PoolKeys, Rotation, RotationError};
pub use message::{
    JournalInfo, NodeError, NodeStat, Outcome, Reply, ReplyBody, Request, RequestBody, SealMeta,
    SegmentKind, ShardInfo, Tag, VolumeState, VolumeSummary,
};
pub use route::{Content, Encode, Pass, Replica, Route, RouteError, Strategy};
pub use session::{ClientSecret, SessionKey, Side};

/// The unit of addressing, checksumming and allocation, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// The largest payload of one message, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 4 << 20;

/// The largest root record of a volume, in bytes.
pub const ROOT_BYTES_MAX: usize = 60 << 10;

/// CRC-32C (Castagnoli; RFC 3720 appendix B.4) of `data`: the checksum of everything stored here.
#[must_use]
pub fn crc32c(data: &[u8]) -> u32 {
    u32::try_from(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data))
        .expect("a 32-bit checksum fits in 32 bits")
}

/// CRC-32C of the bytes of a gather list.
#[must_use]
pub fn crc32c_of_parts(parts: &[bytes::Bytes]) -> u32 {
    match parts {
        [] => crc32c(&[]),
        [one] => crc32c(one),
        many => {
            let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
            many.iter().for_each(|part| digest.update(part));
            u32::try_from(digest.finalize()).expect("a 32-bit checksum fits in 32 bits")
        }
    }
}

/// CRC-32C of each [`BLOCK_BYTES`] block of `data`. The last block may be shorter.
#[must_use]
pub fn crc32c_blocks(data: &[u8]) -> Vec<u32> {
    data.chunks(BLOCK_BYTES).map(crc32c).collect()
}

/// CRC-32C of a block of zeroes.
pub const ZERO_BLOCK_CRC32C: u32 = 0x98f9_4189;

/// CRC-32C of the sum (XOR) of two blocks, from theirs. A CRC is an affine map over bits, so the
/// sum of the two has the constant part twice, and that of zeroes gives it back.
#[must_use]
pub fn crc32c_of_sum(a: u32, b: u32) -> u32 {
    a ^ b ^ ZERO_BLOCK_CRC32C
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_sum_is_known_from_those_of_the_parts() {
        assert_eq!(crc32c(&[0; BLOCK_BYTES]), ZERO_BLOCK_CRC32C);
        let block = |seed: usize| -> Vec<u8> {
            (0..BLOCK_BYTES).map(|at| (at * seed + at / 7 + seed) as u8).collect()
        };
        let parts = [block(3), block(101), block(77)];
        let (mut sum, mut crc) = (vec![0; BLOCK_BYTES], ZERO_BLOCK_CRC32C);
        for part in &parts {
            sum.iter_mut().zip(part).for_each(|(sum, byte)| *sum ^= byte);
            crc = crc32c_of_sum(crc, crc32c(part));
            assert_eq!(crc, crc32c(&sum));
        }
    }
}
