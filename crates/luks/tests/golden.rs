//! Headers that cryptsetup made (`data/README.md`), whole, damaged and hostile; and headers of our
//! own.

use fieldstone_luks::format::{FormatOptions, Version, create};
use fieldstone_luks::kdf::{Hash, Kdf};
use fieldstone_luks::{
    Header, LuksError, Material, PREFIX_BYTES, Passphrase, Probe, SectorCipher, Unlocked, probe,
};
use proptest::prelude::*;

const LUKS1: &[u8] = include_bytes!("data/luks1.bin");
const LUKS2: &[u8] = include_bytes!("data/luks2.bin");
const DEVICE_BYTES: u64 = 20 << 20;
const COPY_BYTES: usize = 16 << 10;

fn passphrase(text: &str) -> Passphrase {
    Passphrase::new(text.as_bytes().to_vec()).expect("it is neither empty nor long")
}

/// What a caller does: probe, metadata, key material.
fn open(device: &[u8], words: &str) -> Result<Unlocked, LuksError> {
    let header = Header::parse(device, DEVICE_BYTES)?;
    let materials: Vec<Material> = header
        .materials()
        .map(|(slot, range)| {
            let range = range.start as usize..range.end as usize;
            Material { slot, bytes: device.get(range).unwrap_or_default().to_vec() }
        })
        .collect();
    header.unlock(&passphrase(words), &materials)
}

fn encrypted(cipher: &SectorCipher) -> Vec<u8> {
    let plain: Vec<u8> = (0..cipher.sector_bytes()).map(|at| at as u8).collect();
    let mut stored = vec![0; plain.len()];
    cipher.encrypt(8 * cipher.sector_bytes() as u64, &plain, &mut stored);
    stored
}

#[test]
fn headers_of_cryptsetup_open() {
    let key: Vec<u8> = (0..32).collect();
    for (device, version, sector_bytes, offset_bytes, metadata) in
        [(LUKS1, 1, 512, 2 << 20, PREFIX_BYTES), (LUKS2, 2, 4096, 16 << 20, 2 * COPY_BYTES)]
    {
        let metadata_bytes = metadata as u64;
        assert_eq!(probe(&device[..PREFIX_BYTES]), Probe::Header { version, metadata_bytes });
        let header = Header::parse(&device[..metadata], DEVICE_BYTES).unwrap();
        assert_eq!(header.version(), version);
        let unlocked = open(device, "open sesame").unwrap();
        assert_eq!(unlocked.slot, 0);
        assert_eq!(unlocked.segment.sector_bytes, sector_bytes);
        assert_eq!(unlocked.segment.offset_bytes, offset_bytes);
        let expected = SectorCipher::new(&key, sector_bytes, 0).unwrap();
        assert_eq!(encrypted(&unlocked.cipher), encrypted(&expected));
        let wrong = open(device, "open sesam").unwrap_err();
        assert_eq!(wrong, LuksError::NoSlotOpens { refused: vec![] });
        assert_eq!(wrong.to_string(), "no key slot opens with this passphrase");
    }
}

#[test]
fn damaged_key_material_does_not_open() {
    for (device, at) in [(LUKS1, 4096 + 70_000), (LUKS2, 32768 + 127_999)] {
        let mut device = device.to_vec();
        device[at] ^= 0x10;
        let refused = vec![];
        assert_eq!(open(&device, "open sesame").unwrap_err(), LuksError::NoSlotOpens { refused });
    }
}

#[test]
fn what_is_no_header_is_told_apart() {
    assert_eq!(probe(&[]), Probe::Nothing);
    assert_eq!(probe(b"LUKS\xba\xbe"), Probe::Nothing);
    assert_eq!(probe(&[0; PREFIX_BYTES]), Probe::Nothing);
    assert_eq!(Header::parse(&[0; 1 << 15], DEVICE_BYTES).unwrap_err(), LuksError::NoHeader);
    let mut clone = LUKS2.to_vec();
    clone[..4].copy_from_slice(b"RBDL");
    assert_eq!(probe(&clone), Probe::Clone);
    assert_eq!(Header::parse(&clone, DEVICE_BYTES).unwrap_err(), LuksError::Clone);
    let mut newer = LUKS1.to_vec();
    newer[7] = 3;
    assert_eq!(Header::parse(&newer, DEVICE_BYTES).unwrap_err(), LuksError::Version(3));
    let small = Header::parse(LUKS1, 1 << 20).unwrap_err().to_string();
    assert!(small.contains("the device, which has 1048576 bytes"), "{small}");
}

/// Sets the checksum of the copy at `at`.
fn seal(device: &mut [u8], at: usize) {
    let copy = &mut device[at..at + COPY_BYTES];
    copy[448..512].fill(0);
    let digest = Hash::Sha256.digest(&[copy]);
    copy[448..448 + digest.len()].copy_from_slice(&digest);
}

#[test]
fn either_copy_of_luks2_is_enough_and_the_newer_one_counts() {
    let mut device = LUKS2.to_vec();
    device[5000] ^= 1;
    assert!(open(&device, "open sesame").is_ok(), "the second copy is not used");
    device[..PREFIX_BYTES].fill(0);
    assert_eq!(probe(&device), Probe::Nothing);
    assert!(open(&device, "open sesame").is_ok(), "the second copy is not found");
    device[COPY_BYTES + 5000] ^= 1;
    assert_eq!(Header::parse(&device, DEVICE_BYTES).unwrap_err(), LuksError::NoHeader);
    let mut device = LUKS2.to_vec();
    device[COPY_BYTES + 5000] ^= 1;
    assert!(open(&device, "open sesame").is_ok(), "the first copy is not used");
    device[5000] ^= 1;
    let text = Header::parse(&device, DEVICE_BYTES).unwrap_err().to_string();
    assert_eq!(text, "the LUKS header is damaged: the checksum of its copies is wrong");

    // The second copy is newer, and has no slots.
    let mut device = LUKS2.to_vec();
    device[COPY_BYTES + 16..COPY_BYTES + 24].copy_from_slice(&1000u64.to_be_bytes());
    replace(&mut device, COPY_BYTES, r#""keyslots":["0"]"#, r#""keyslots":[]"#);
    assert_eq!(
        open(&device, "open sesame").unwrap_err(),
        LuksError::NoSlotOpens { refused: vec![] }
    );
}

/// Replaces a text in the JSON of a copy, and seals the copy.
fn replace(device: &mut [u8], at: usize, old: &str, new: &str) {
    let area = &mut device[at + 4096..at + COPY_BYTES];
    let end = area.iter().position(|byte| *byte == 0).expect("zeroes follow");
    let text = std::str::from_utf8(&area[..end]).expect("JSON is text");
    assert!(text.contains(old), "{text}");
    let text = text.replacen(old, new, 1);
    area.fill(0);
    area[..text.len()].copy_from_slice(text.as_bytes());
    seal(device, at);
}

/// Both copies changed in the same way.
fn changed(old: &str, new: &str) -> Vec<u8> {
    let mut device = LUKS2.to_vec();
    for at in [0, COPY_BYTES] {
        replace(&mut device, at, old, new);
    }
    device
}

#[test]
fn what_is_beyond_bounds_or_unknown_is_refused_by_name() {
    let far = u64::MAX.to_string();
    for (old, new, says) in [
        (r#""memory":1024"#, r#""memory":1048577"#, "at most 1048576 KiB"),
        (r#""time":4"#, r#""time":4000000"#, "deriving the key costs"),
        (r#""time":4"#, r#""time":0"#, "the passes"),
        (r#""cpus":2"#, r#""cpus":4000000000"#, "the lanes"),
        (r#""stripes":4000"#, r#""stripes":4000000000"#, "4000000000 stripes"),
        (r#""argon2id""#, r#""scrypt""#, "the kdf \"scrypt\""),
        (r#""aes-xts-plain64""#, r#""serpent-xts-plain64""#, "\"serpent-xts-plain64\""),
        (r#""sector_size":4096"#, r#""sector_size":3"#, "sectors of 3 bytes"),
        (r#""sector_size":4096"#, r#""sector_size":4096,"integrity":{"type":"x"}"#, "integrity"),
        (r#""offset":"16777216""#, r#""offset":"16777217""#, "whole sectors"),
        (r#""offset":"16777216""#, &format!(r#""offset":"{far}""#), "whole sectors"),
        (r#""offset":"16777216""#, r#""offset":"0""#, "apart from its data"),
        (r#""offset":"16777216""#, r#""offset":"32768""#, "the place of key slot 0"),
        (r#""offset":"32768""#, r#""offset":"4096""#, "the place of key slot 0"),
        (r#""offset":"32768""#, &format!(r#""offset":"{far}""#), "the place of key slot 0"),
        (r#""size":"131072""#, r#""size":"100""#, "no room"),
        (r#""size":"dynamic""#, r#""size":"18446744073709547520""#, "behind the device"),
        (
            r#""config":{"#,
            r#""config":{"requirements":{"mandatory":["online-reencrypt-v2"]},"#,
            "online-reencrypt-v2",
        ),
        (r#""type":"crypt""#, r#""type":"linear""#, "\"linear\""),
        (r#""keyslots":{"#, r#""keyslots":["#, "its JSON, in line 1"),
    ] {
        let device = changed(old, new);
        let text = open(&device, "open sesame").unwrap_err().to_string();
        assert!(text.contains(says), "{new}: {text}");
    }
    // Priority 0 asks not to be tried.
    let device = changed(r#""key_size":32,"af""#, r#""key_size":32,"priority":0,"af""#);
    assert!(open(&device, "open sesame").is_err());
    let mut device = LUKS1.to_vec();
    device[104..108].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(open(&device, "open sesame").is_err());
    let mut device = LUKS1.to_vec();
    device[212..216].copy_from_slice(&u32::MAX.to_be_bytes());
    let text = open(&device, "open sesame").unwrap_err().to_string();
    assert!(text.contains("slot 0: not supported: deriving the key costs 4294967295"), "{text}");
}

#[test]
fn headers_cut_anywhere_are_refused() {
    for (device, whole) in [(LUKS1, 592), (LUKS2, COPY_BYTES)] {
        for len in (0..600).chain((600..whole).step_by(97)).chain([whole - 1]) {
            let cut = &device[..len.min(whole - 1)];
            assert!(Header::parse(cut, DEVICE_BYTES).is_err(), "{len} bytes");
        }
    }
}

#[test]
fn a_volume_that_the_header_bounds_is_as_long_as_it_says() {
    let device = changed(r#""size":"dynamic""#, r#""size":"1048576""#);
    let segment = open(&device, "open sesame").unwrap().segment;
    assert_eq!(segment.len_bytes, Some(1 << 20));
    let device = changed(r#""iv_tweak":"0""#, r#""iv_tweak":"8""#);
    let unlocked = open(&device, "open sesame").unwrap();
    let key: Vec<u8> = (0..32).collect();
    let expected = SectorCipher::new(&key, 4096, 8).unwrap();
    assert_eq!(encrypted(&unlocked.cipher), encrypted(&expected));
}

/// Random bytes that are the same in each run.
fn fill(bytes: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for byte in bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
}

#[test]
fn headers_of_our_own_open() {
    let cheap = |hash| Kdf::Pbkdf2 { hash, iterations: 1000, salt: vec![] };
    let argon2 = Kdf::Argon2 { is_id: true, passes: 1, memory_kib: 64, lanes: 1, salt: Vec::new() };
    for (version, key_bytes, align_bytes, slot, data) in [
        (Version::Luks1, 32, 4 << 20, cheap(Hash::Sha256), 4 << 20),
        (Version::Luks1, 64, 4096, cheap(Hash::Sha256), 4096 + 8 * 258_048),
        (Version::Luks2, 64, 4 << 20, cheap(Hash::Sha256), 16 << 20),
        (Version::Luks2, 32, 3 << 20, argon2, 18 << 20),
    ] {
        let options = FormatOptions { version, key_bytes, align_bytes, slot: Some(slot) };
        let made = create(&options, &passphrase("open"), fill).unwrap();
        assert_eq!(made.data_offset_bytes, data);
        let header = open(&made.bytes, "open").unwrap();
        assert_eq!(header.segment.offset_bytes, data);
        assert!(header.cipher.name().starts_with(["aes-128", "aes-256"][key_bytes / 64]));
        assert!(open(&made.bytes, "other").is_err());
        assert!(made.bytes.len().is_multiple_of(4096) && (made.bytes.len() as u64) < data);
    }
    let odd =
        FormatOptions { version: Version::Luks1, key_bytes: 48, align_bytes: 4096, slot: None };
    assert!(create(&odd, &passphrase("open"), fill).is_err());
}

proptest! {
    /// Any bytes and any change of a header give an answer, and ranges inside the device.
    #[test]
    fn hostile_headers_are_harmless(
        which in 0usize..2,
        changes in proptest::collection::vec((0usize..6000, any::<u8>()), 1..20),
        len in 0usize..40_000,
    ) {
        let mut device = [LUKS1, LUKS2][which][..].to_vec();
        for (at, byte) in changes {
            device[at] = byte;
            if which == 1 {
                device[COPY_BYTES + at] = byte;
            }
        }
        if which == 1 {
            seal(&mut device, 0);
            seal(&mut device, COPY_BYTES);
        }
        let _ = probe(&device[..len]);
        let _ = Header::parse(&device[..len], DEVICE_BYTES);
        if let Ok(header) = Header::parse(&device, DEVICE_BYTES) {
            let data = header.segment().offset_bytes;
            for (_, range) in header.materials() {
                prop_assert!(range.start < range.end && range.end <= data);
                prop_assert!(range.end - range.start <= 256_000);
            }
            prop_assert!(data <= DEVICE_BYTES);
        }
    }
}
