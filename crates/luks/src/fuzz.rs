//! Fuzzing of headers: whoever stores a device chooses its first bytes. Any bytes as input; none
//! may cause a panic, a loop without end, or work and memory beyond the bounds of this crate.
//!
//! ```text
//! u8 what to do   bit 0: the checksums of LUKS2 copies are corrected
//!                 bits 1-2: the length of the device
//! the bytes       the start of the device; zeroes follow, up to two short copies of LUKS2
//! ```
//!
//! The cargo-fuzz target in the repository's `fuzz/` folder and a seeded smoke test use
//! [`header`]. [`seeds`] gives valid inputs to start from.

use crate::format::{FormatOptions, Version, create};
use crate::header::{Header, Material, PREFIX_BYTES, Probe, probe};
use crate::kdf::{COST_MAX, Hash, Kdf};
use crate::metadata::{MAGIC, SECOND_MAGIC};
use crate::passphrase::Passphrase;
use crate::split::STRIPES;

/// The shortest two copies of LUKS2.
const START_BYTES: usize = 32 << 10;
/// The most key slots of a header.
const SLOTS_MAX: usize = 32;
/// The longest volume key.
const KEY_BYTES_MAX: usize = 64;
/// A slot that costs more is not tried, so that an input takes milliseconds.
const TRIED_COST_MAX: u64 = 3_000;
/// The lengths of devices.
const DEVICES: [u64; 4] = [20 << 20, 1 << 40, 2 << 20, u64::MAX];
/// Where a LUKS2 header has its checksum.
const CHECKSUM: std::ops::Range<usize> = 448..512;

/// Writes the right checksum into each copy that has SHA-256 and lies in the bytes.
fn correct(device: &mut [u8]) {
    for (at, magic) in [(0, MAGIC), (16 << 10, SECOND_MAGIC)] {
        let Some(copy) = device.get_mut(at..) else { continue };
        if !copy.starts_with(&magic) {
            continue;
        }
        let Some(field) = copy.get(8..16).and_then(|field| field.try_into().ok()) else { continue };
        let len = usize::try_from(u64::from_be_bytes(field)).unwrap_or(usize::MAX);
        let Some(whole) = copy.get_mut(..len).filter(|whole| whole.len() >= PREFIX_BYTES) else {
            continue;
        };
        whole[CHECKSUM].fill(0);
        let digest = Hash::Sha256.digest(&[whole]);
        whole[CHECKSUM.start..CHECKSUM.start + digest.len()].copy_from_slice(&digest);
    }
}

/// What an opening would cost.
fn cost(header: &Header) -> u64 {
    let of = |kdf: &Kdf, bytes| kdf.cost(bytes).unwrap_or(0);
    let slots = header
        .slots
        .iter()
        .filter_map(|slot| Some(of(slot.kdf.as_ref().ok()?, slot.area_key_bytes)));
    let digests = header.digests.iter().map(|digest| of(&digest.kdf, digest.value.len()));
    slots.chain(digests).fold(0, u64::saturating_add)
}

/// Reads a header from an input, and tries its slots if that is cheap. True if it is a header.
///
/// # Panics
/// A property does not hold.
pub fn header(input: &[u8]) -> bool {
    let Some((&what, bytes)) = input.split_first() else { return false };
    let mut device = bytes.to_vec();
    device.resize(bytes.len().max(START_BYTES), 0);
    if what & 1 == 1 {
        correct(&mut device);
    }
    let device_bytes = DEVICES[usize::from(what >> 1 & 3)];
    if let Probe::Header { metadata_bytes, .. } = probe(&device) {
        assert!(metadata_bytes <= Probe::SEARCHED_BYTES, "a header of {metadata_bytes} bytes");
    }
    let Ok(header) = Header::parse(&device, device_bytes) else { return false };
    let segment = header.segment();
    let sector = u64::from(segment.sector_bytes);
    assert!(sector.is_power_of_two() && (512..=4096).contains(&sector), "{segment:?}");
    let end = segment.offset_bytes.checked_add(segment.len_bytes.unwrap_or(0));
    assert!(end.is_some_and(|end| end <= device_bytes), "{segment:?} of {device_bytes}");
    assert!(header.slots.len() <= SLOTS_MAX, "{header:?}");
    let mut materials = Vec::new();
    for (slot, range) in header.materials() {
        assert!(range.end <= segment.offset_bytes, "slot {slot}: {range:?} is in {segment:?}");
        let len = range.end - range.start;
        assert!(len <= (KEY_BYTES_MAX * STRIPES) as u64, "slot {slot}: {len} bytes");
        materials.push(Material { slot, bytes: vec![0x5a; len as usize] });
    }
    if cost(&header) <= TRIED_COST_MAX.min(COST_MAX) {
        let passphrase = Passphrase::new(b"open sesame".to_vec()).expect("it is neither");
        let opened = header.unlock(&passphrase, &materials);
        assert!(opened.is_err(), "made-up key material opens {header:?}");
    }
    true
}

/// Replaces a text in bytes by one that is not longer, and fills up with spaces.
fn replace(bytes: &mut [u8], from: &str, to: &str) {
    let found = bytes.windows(from.len()).position(|window| window == from.as_bytes());
    if let Some(at) = found {
        let place = &mut bytes[at..at + from.len()];
        place.fill(b' ');
        place[..to.len()].copy_from_slice(to.as_bytes());
    }
}

/// Valid inputs: headers of both versions, whose slots are cheap to try.
///
/// # Panics
/// A header cannot be made.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let pbkdf2 = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: 10, salt: Vec::new() };
    let argon2 = Kdf::Argon2 { is_id: true, passes: 1, memory_kib: 64, lanes: 1, salt: Vec::new() };
    let kinds = [
        (Version::Luks1, 32, pbkdf2.clone()),
        (Version::Luks1, 64, pbkdf2.clone()),
        (Version::Luks2, 32, pbkdf2),
        (Version::Luks2, 64, argon2),
    ];
    let seed = |(version, key_bytes, slot)| {
        let options = FormatOptions { version, key_bytes, align_bytes: 4096, slot: Some(slot) };
        let passphrase = Passphrase::new(b"seed".to_vec()).expect("it is neither");
        let mut byte = 0_u8;
        let random = |bytes: &mut [u8]| {
            bytes.iter_mut().for_each(|place| {
                byte = byte.wrapping_mul(5).wrapping_add(3);
                *place = byte;
            });
        };
        let made = create(&options, &passphrase, random).expect("it is made");
        let mut bytes = made.bytes;
        let used = match version {
            Version::Luks1 => {
                // The iterations of the digest.
                bytes[164..168].copy_from_slice(&10_u32.to_be_bytes());
                592
            }
            Version::Luks2 => {
                replace(&mut bytes, "\"iterations\":100000", "\"iterations\":10");
                let json = &bytes[PREFIX_BYTES..];
                PREFIX_BYTES + json.iter().position(|byte| *byte == 0).expect("it ends")
            }
        };
        let mut input = vec![1];
        input.extend_from_slice(&bytes[..used]);
        input
    };
    kinds.into_iter().map(seed).collect()
}
