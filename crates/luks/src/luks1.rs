//! The header of LUKS1: 592 bytes, big-endian.
//!
//! ```text
//!   0  magic "LUKS" 0xba 0xbe     6
//!   6  version = 1                2
//!   8  cipher name               32   "aes"
//!  40  cipher mode               32   "xts-plain64"
//!  72  hash                      32   of the slots, the splitter and the digest
//! 104  payload offset             4   in sectors of 512 bytes
//! 108  key bytes                  4
//! 112  digest of the volume key  20
//! 132  salt of the digest        32
//! 164  iterations of the digest   4
//! 168  UUID                      40
//! 208  slots                 8 x 48   state, iterations, salt, offset in sectors, stripes
//! ```

use crate::error::{LuksError, damaged, unsupported};
use crate::header::{Digest, Header, Segment, Slot, check_cipher};
use crate::kdf::{Hash, Kdf};
use crate::metadata::{MAGIC, Reader, fixed, text};
use crate::split::STRIPES;

/// The length of the header.
pub(crate) const HEADER_BYTES: usize = 592;
const SLOTS: usize = 8;
const ENABLED: u32 = 0x00ac_71f3;
const DISABLED: u32 = 0x0000_dead;
const SECTOR_BYTES: u64 = 512;
const DIGEST_BYTES: usize = 20;
const SALT_BYTES: usize = 32;

/// Reads the header at the start of `bytes`.
pub(crate) fn parse(bytes: &[u8]) -> Result<Header, LuksError> {
    let mut reader = Reader::new(bytes.get(..HEADER_BYTES).ok_or_else(|| damaged("it is cut"))?);
    reader.take(MAGIC.len() + 2);
    let (name, mode) = (text(reader.take(32))?, text(reader.take(32))?);
    check_cipher(&format!("{name}-{mode}"))?;
    let hash = Hash::named(&text(reader.take(32))?)?;
    let payload = u64::from(reader.u32()) * SECTOR_BYTES;
    let key_bytes = reader.u32() as usize;
    if key_bytes != 32 && key_bytes != 64 {
        return Err(unsupported(format!("a volume key of {key_bytes} bytes")));
    }
    let value = reader.take(DIGEST_BYTES).to_vec();
    let salt = reader.take(SALT_BYTES).to_vec();
    let iterations = reader.u32();
    let digest = Digest { kdf: Kdf::Pbkdf2 { hash, iterations, salt }, value };
    reader.take(40);
    let mut slots = Vec::new();
    for number in 0..SLOTS {
        let state = reader.u32();
        let iterations = reader.u32();
        let salt = reader.take(SALT_BYTES).to_vec();
        let offset_bytes = u64::from(reader.u32()) * SECTOR_BYTES;
        let stripes = reader.u32();
        match state {
            DISABLED => continue,
            ENABLED => {}
            _ => return Err(damaged(format!("the state of key slot {number}"))),
        }
        if stripes as usize != STRIPES {
            return Err(damaged(format!("key slot {number} has {stripes} stripes, not {STRIPES}")));
        }
        slots.push(Slot {
            number: number as u32,
            key_bytes,
            area_key_bytes: key_bytes,
            area_offset_bytes: offset_bytes,
            kdf: Ok(Kdf::Pbkdf2 { hash, iterations, salt }),
            split: hash,
            digest: 0,
        });
    }
    Ok(Header {
        version: 1,
        segment: Segment {
            offset_bytes: payload,
            len_bytes: None,
            sector_bytes: SECTOR_BYTES as u32,
            first_sector: 0,
        },
        slots,
        digests: vec![digest],
        first_area_bytes: HEADER_BYTES as u64,
    })
}

/// The values of a new header.
pub(crate) struct New<'a> {
    pub hash: &'a str,
    pub payload_bytes: u64,
    pub key_bytes: usize,
    pub digest: &'a [u8],
    pub digest_salt: &'a [u8],
    pub digest_iterations: u32,
    pub uuid: &'a str,
    pub slot_iterations: u32,
    pub slot_salt: &'a [u8],
    pub areas: &'a [u64],
}

/// The bytes of a header whose first slot is in use.
pub(crate) fn build(new: &New<'_>) -> Vec<u8> {
    let sectors = |bytes: u64| u32::try_from(bytes / SECTOR_BYTES).expect("a small offset");
    let mut out = Vec::with_capacity(HEADER_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&1u16.to_be_bytes());
    out.extend_from_slice(&fixed::<32>("aes"));
    out.extend_from_slice(&fixed::<32>("xts-plain64"));
    out.extend_from_slice(&fixed::<32>(new.hash));
    out.extend_from_slice(&sectors(new.payload_bytes).to_be_bytes());
    out.extend_from_slice(&(new.key_bytes as u32).to_be_bytes());
    out.extend_from_slice(new.digest);
    out.extend_from_slice(new.digest_salt);
    out.extend_from_slice(&new.digest_iterations.to_be_bytes());
    out.extend_from_slice(&fixed::<40>(new.uuid));
    for (number, area) in new.areas.iter().enumerate() {
        let used = number == 0;
        let (state, iterations) = if used { (ENABLED, new.slot_iterations) } else { (DISABLED, 0) };
        out.extend_from_slice(&state.to_be_bytes());
        out.extend_from_slice(&iterations.to_be_bytes());
        out.extend_from_slice(if used { new.slot_salt } else { &[0; SALT_BYTES] });
        out.extend_from_slice(&sectors(*area).to_be_bytes());
        out.extend_from_slice(&(STRIPES as u32).to_be_bytes());
    }
    assert_eq!(out.len(), HEADER_BYTES, "a header with {} slots", new.areas.len());
    out
}
