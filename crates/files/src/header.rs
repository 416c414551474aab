//! The header of each shard file: the number of the shard, and all fields of the manifest.
//!
//! So the encoding does not depend on the manifest: any shard can replace it. The encoder writes
//! the header last, when it knows the length of the file and has written all units. Until then the
//! header is zeros, so an unfinished shard never counts as a shard.
//!
//! | offset | bytes | field                                                  |
//! |-------:|------:|--------------------------------------------------------|
//! |      0 |     8 | magic `FSTNFILE`                                       |
//! |      8 |     4 | checksum of the header from byte 12 to its end         |
//! |     12 |     4 | version, now 1                                         |
//! |     16 |    16 | id of the encoding                                     |
//! |     32 |     8 | length of the file                                     |
//! |     40 |     8 | length of a unit                                       |
//! |     48 |     4 | checksum of the file                                   |
//! |     52 |     4 | which shard                                            |
//! |     56 |     4 | length of the code                                     |
//! |     60 |    68 | the code, as on the command line, zero filled          |
//! |    128 |   384 | zero                                                   |

use fieldstone_codes::{Profile, ProfileError};

use crate::checksum::crc32c;
use crate::striping::{EncodingId, EncodingParams, MAX_FILE_BYTES};

/// Length of the header: the smallest unit that a disk writes completely or not at all.
pub(crate) const HEADER_BYTES: usize = 512;
/// The version that this release writes, and the newest that it reads.
pub(crate) const VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"FSTNFILE";
const CODE_AT: usize = 60;
const CODE_BYTES_MAX: usize = 68;

/// Why bytes are no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFlaw {
    /// A newer release has written the header.
    Newer(u32),
    /// Zeros: the shard was not finished.
    Unfinished,
    /// The header is intact, but its code is out of bounds, or its units cannot have their length.
    /// The text gives the reason.
    Impossible(String),
    /// Any other error.
    Damaged,
}

/// The header of shard `shard`.
pub(crate) fn to_bytes(encoding: &EncodingParams, shard: usize) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    let code = encoding.profile.to_string();
    assert!(code.len() <= CODE_BYTES_MAX, "names of codes are bounded");
    put(0, MAGIC);
    put(12, &VERSION.to_le_bytes());
    put(16, &encoding.id.0.to_le_bytes());
    put(32, &encoding.file_bytes.to_le_bytes());
    put(40, &encoding.unit_bytes.to_le_bytes());
    put(48, &encoding.file_crc.to_le_bytes());
    put(52, &(shard as u32).to_le_bytes());
    put(56, &(code.len() as u32).to_le_bytes());
    put(CODE_AT, code.as_bytes());
    let crc = crc32c(&bytes[12..]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The parameters of the encoding, and the number of the shard.
pub(crate) fn from_bytes(
    bytes: &[u8; HEADER_BYTES],
) -> Result<(EncodingParams, usize), HeaderFlaw> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Err(HeaderFlaw::Unfinished);
    }
    // The checksum covers the version, so damage does not look like a newer release.
    if bytes[..8] != *MAGIC || bytes[8..12] != crc32c(&bytes[12..]).to_le_bytes() {
        return Err(HeaderFlaw::Damaged);
    }
    let version = u32_at(bytes, 12);
    if version > VERSION {
        return Err(HeaderFlaw::Newer(version));
    }
    let (params, shard) = parse(bytes)?;
    params.check().map_err(|error| HeaderFlaw::Impossible(error.to_string()))?;
    Ok((params, shard))
}

/// The fields of a header with a right checksum, if they are valid.
fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<(EncodingParams, usize), HeaderFlaw> {
    let id = EncodingId(u128::from(u64_at(bytes, 16)) | u128::from(u64_at(bytes, 24)) << 64);
    let (file_bytes, unit_bytes) = (u64_at(bytes, 32), u64_at(bytes, 40));
    let (file_crc, shard) = (u32_at(bytes, 48), u32_at(bytes, 52) as usize);
    let code = bytes[CODE_AT..CODE_AT + CODE_BYTES_MAX].get(..u32_at(bytes, 56) as usize);
    let code = code.and_then(|code| std::str::from_utf8(code).ok()).ok_or(HeaderFlaw::Damaged)?;
    let profile: Profile = code.parse().map_err(|error| match error {
        ProfileError::Bounds { .. } => HeaderFlaw::Impossible(error.to_string()),
        _ => HeaderFlaw::Damaged,
    })?;
    let valid = file_bytes <= MAX_FILE_BYTES && shard < profile.shards();
    let params = EncodingParams { id, profile, unit_bytes, file_bytes, file_crc };
    if valid { Ok((params, shard)) } else { Err(HeaderFlaw::Damaged) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> EncodingParams {
        EncodingParams {
            id: EncodingId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
            profile: "zigzag:4+2".parse().unwrap(),
            unit_bytes: 64 << 10,
            file_bytes: 1_000_000,
            file_crc: 0xdead_beef,
        }
    }

    #[test]
    fn the_layout_is_fixed() {
        let bytes = to_bytes(&sample(), 5);
        assert_eq!(&bytes[..8], b"FSTNFILE");
        assert_eq!(bytes[12..16], [1, 0, 0, 0]);
        assert_eq!(bytes[16..20], [0x77, 0x66, 0x55, 0x44]);
        assert_eq!(bytes[32..40], [0x40, 0x42, 0x0f, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[40..48], [0, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[48..60], [0xef, 0xbe, 0xad, 0xde, 5, 0, 0, 0, 10, 0, 0, 0]);
        assert_eq!(&bytes[60..70], b"zigzag:4+2");
        assert!(bytes[70..].iter().all(|&byte| byte == 0));
        assert_eq!(from_bytes(&bytes), Ok((sample(), 5)));
    }

    #[test]
    fn damage_is_damage_and_newer_is_newer() {
        let bytes = to_bytes(&sample(), 5);
        for bit in 0..HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(from_bytes(&flipped), Err(HeaderFlaw::Damaged));
        }
        assert_eq!(from_bytes(&[0; HEADER_BYTES]), Err(HeaderFlaw::Unfinished));
        let sealed = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            let crc = crc32c(&bytes[12..]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            from_bytes(&bytes)
        };
        assert_eq!(sealed(12, 2), Err(HeaderFlaw::Newer(2)));
        // Invalid fields: the length, the shard, the code.
        for (at, value) in [(39, 0xff), (52, 6), (59, 1), (60, b'x'), (60, 0xff)] {
            assert_eq!(sealed(at, value), Err(HeaderFlaw::Damaged), "byte {at}");
        }
        // A length of units that the code cannot have.
        let Err(HeaderFlaw::Impossible(reason)) = sealed(40, 1) else { panic!("units of 65537") };
        assert!(reason.contains("multiple of 8 bytes"), "{reason}");
    }

    #[test]
    fn a_code_out_of_bounds_is_told_from_damage() {
        let mut bytes = to_bytes(&sample(), 5);
        let code = b"clay:60+60";
        bytes[CODE_AT..CODE_AT + code.len()].copy_from_slice(code);
        let crc = crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        let Err(HeaderFlaw::Impossible(reason)) = from_bytes(&bytes) else { panic!("{code:?}") };
        assert!(reason.contains("clay:60+60 is out of bounds"), "{reason}");
        assert!(reason.contains(&fieldstone_codes::MAX_CODE_TERMS.to_string()), "{reason}");
    }

    proptest! {
        #[test]
        fn no_fields_panic_whatever_they_say(
            changes in prop::collection::vec((16usize..80, any::<u8>()), 0..6),
        ) {
            let mut bytes = to_bytes(&sample(), 5);
            changes.into_iter().for_each(|(at, value)| bytes[at] = value);
            let crc = crc32c(&bytes[12..]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            if let Ok((params, shard)) = from_bytes(&bytes) {
                let again = from_bytes(&to_bytes(&params, shard));
                prop_assert_eq!(again, Ok((params, shard)));
                let encoding = params.encoding().expect("a header is read if it can be");
                prop_assert_eq!(encoding.params(), params);
                prop_assert!(encoding.shard_file_bytes() >= HEADER_BYTES as u64);
            }
        }
    }
}
