//! Makes headers, with one key slot in use.
//!
//! A header says the same as one that Ceph's `rbd encryption format` makes: AES in XTS mode, the
//! hash SHA-256, data from a whole number of stripe periods on, at 16 MiB or later for LUKS2. Only
//! the cost of the key slot is fixed here, while Ceph measures the machine.

use zeroize::Zeroizing;

use crate::error::{LuksError, unsupported};
use crate::header::PREFIX_BYTES;
use crate::kdf::{Hash, Kdf};
use crate::passphrase::Passphrase;
use crate::sectors::SectorCipher;
use crate::split::{STRIPES, split};
use crate::{luks1, luks2};

/// Iterations of PBKDF2 for the slot of a LUKS1 header.
pub const SLOT_ITERATIONS: u32 = 2_000_000;
/// Iterations of PBKDF2 for the digest of the volume key. The key is random, so few are enough.
pub const DIGEST_ITERATIONS: u32 = 100_000;
/// Memory of Argon2id for the slot of a LUKS2 header.
pub const SLOT_MEMORY_KIB: u32 = 512 << 10;
/// Passes of Argon2id over this memory.
pub const SLOT_PASSES: u32 = 4;
/// Lanes of Argon2id.
pub const SLOT_LANES: u32 = 4;
/// The data of LUKS2 begins here or later, as in cryptsetup.
const LUKS2_DATA_BYTES_MIN: u64 = 16 << 20;
const SALT_BYTES: usize = 32;
const LUKS1_SLOTS: u64 = 8;
/// The areas of key material begin at multiples of this.
const AREA_ALIGN_BYTES: u64 = 4096;

/// The version of a new header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// LUKS1: sectors of 512 bytes, slots with PBKDF2.
    Luks1,
    /// LUKS2: sectors of 4096 bytes, slots with Argon2id.
    Luks2,
}

/// What a new header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    /// The version.
    pub version: Version,
    /// The length of the volume key: 32 bytes for AES-128, 64 bytes for AES-256.
    pub key_bytes: usize,
    /// The data begins at a multiple of this: the stripe period of an image.
    pub align_bytes: u64,
    /// How the key of the slot is derived; the salt is replaced. `None` for the default.
    pub slot: Option<Kdf>,
}

/// A new header.
pub struct NewHeader {
    /// The bytes at the start of the device.
    pub bytes: Vec<u8>,
    /// Where the data begins. The device should have zeroes between the header and this place.
    pub data_offset_bytes: u64,
}

/// Makes a header. `random` fills memory with unpredictable bytes. It takes seconds.
///
/// # Errors
/// The options cannot be met.
pub fn create(
    options: &FormatOptions,
    passphrase: &Passphrase,
    mut random: impl FnMut(&mut [u8]),
) -> Result<NewHeader, LuksError> {
    let FormatOptions { version, key_bytes, align_bytes, .. } = *options;
    if key_bytes != 32 && key_bytes != 64 {
        return Err(unsupported(format!("a volume key of {key_bytes} bytes")));
    }
    if align_bytes == 0 || align_bytes % AREA_ALIGN_BYTES != 0 {
        return Err(unsupported(format!("data that begins at a multiple of {align_bytes} bytes")));
    }
    let mut salt = || {
        let mut salt = vec![0; SALT_BYTES];
        random(&mut salt);
        salt
    };
    let slot_kdf = slot_kdf(options, salt());
    let digest_kdf =
        Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: DIGEST_ITERATIONS, salt: salt() };
    let uuid = uuid(&salt());
    let mut key = Zeroizing::new(vec![0; key_bytes]);
    random(&mut key);
    let stripes = split(&key, Hash::Sha256, &mut random);
    let area_key = slot_kdf.derive(passphrase.bytes(), key_bytes)?;
    let mut material = vec![0; stripes.len()];
    SectorCipher::new(&area_key, 512, 0)?.encrypt(0, &stripes, &mut material);
    let (mut bytes, area, data_offset_bytes) = match version {
        Version::Luks1 => luks1_header(options, &key, &slot_kdf, &digest_kdf, &uuid)?,
        Version::Luks2 => {
            let data_bytes = LUKS2_DATA_BYTES_MIN.next_multiple_of(align_bytes);
            let digest = digest_kdf.derive(&key, Hash::Sha256.bytes())?;
            let mut salts = [[0; 64]; 2];
            salts.iter_mut().for_each(|salt| random(salt));
            let new = luks2::New {
                key_bytes,
                data_bytes,
                sector_bytes: 4096,
                slot: &slot_kdf,
                digest_kdf: &digest_kdf,
                digest: &digest,
                uuid: &uuid,
                salts,
            };
            (luks2::build(&new), luks2::first_area(key_bytes).0, data_bytes)
        }
    };
    bytes.resize(area as usize, 0);
    bytes.extend_from_slice(&material);
    bytes.resize(bytes.len().next_multiple_of(PREFIX_BYTES), 0);
    Ok(NewHeader { bytes, data_offset_bytes })
}

/// How the key of the slot is derived.
fn slot_kdf(options: &FormatOptions, salt: Vec<u8>) -> Kdf {
    let chosen = options.slot.clone().unwrap_or_else(|| match options.version {
        Version::Luks1 => {
            Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: SLOT_ITERATIONS, salt: Vec::new() }
        }
        Version::Luks2 => Kdf::Argon2 {
            is_id: true,
            passes: SLOT_PASSES,
            memory_kib: SLOT_MEMORY_KIB,
            lanes: SLOT_LANES,
            salt: Vec::new(),
        },
    });
    match chosen {
        Kdf::Pbkdf2 { iterations, .. } => Kdf::Pbkdf2 { hash: Hash::Sha256, iterations, salt },
        Kdf::Argon2 { passes, memory_kib, lanes, .. } => {
            Kdf::Argon2 { is_id: true, passes, memory_kib, lanes, salt }
        }
    }
}

/// The header of LUKS1, the place of the first slot's material, and that of the data.
fn luks1_header(
    options: &FormatOptions,
    key: &[u8],
    slot: &Kdf,
    digest_kdf: &Kdf,
    uuid: &str,
) -> Result<(Vec<u8>, u64, u64), LuksError> {
    let (Kdf::Pbkdf2 { iterations, salt, .. }, Kdf::Pbkdf2 { salt: digest_salt, .. }) =
        (slot, digest_kdf)
    else {
        return Err(unsupported("a slot of LUKS1 with another kdf than PBKDF2"));
    };
    let area_bytes = ((key.len() * STRIPES) as u64).next_multiple_of(AREA_ALIGN_BYTES);
    let areas: Vec<u64> =
        (0..LUKS1_SLOTS).map(|slot| AREA_ALIGN_BYTES + slot * area_bytes).collect();
    let end = AREA_ALIGN_BYTES + LUKS1_SLOTS * area_bytes;
    let payload_bytes = end.next_multiple_of(options.align_bytes);
    let digest = digest_kdf.derive(key, 20)?;
    let bytes = luks1::build(&luks1::New {
        hash: "sha256",
        payload_bytes,
        key_bytes: key.len(),
        digest: &digest,
        digest_salt,
        digest_iterations: DIGEST_ITERATIONS,
        uuid,
        slot_iterations: *iterations,
        slot_salt: salt,
        areas: &areas,
    });
    Ok((bytes, areas[0], payload_bytes))
}

/// A random UUID (version 4).
fn uuid(random: &[u8]) -> String {
    let mut bytes: [u8; 16] = random[..16].try_into().expect("at least 16 bytes");
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]].map(<[String]>::concat).join("-")
}
