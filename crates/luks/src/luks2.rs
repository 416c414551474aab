//! The header of LUKS2: two copies of a binary header with a JSON text.
//!
//! ```text
//!   0  magic "LUKS" 0xba 0xbe     6   the second copy: "SKUL" 0xba 0xbe
//!   6  version = 2                2
//!   8  length of header and JSON  8   16 KiB, 32 KiB, … 4 MiB; the second copy follows there
//!  16  sequence number            8   the copy with the higher one counts
//!  24  label                     48
//!  72  checksum algorithm        32   "sha256"
//! 104  salt                      64   random, so that the checksum changes with each write
//! 168  UUID                      40
//! 208  subsystem                 48
//! 256  place of this header       8
//! 264  zeroes                   184
//! 448  checksum                  64   of header and JSON, with zeroes in this place
//! 512  zeroes                  3584
//! 4096 JSON, then zeroes
//! ```
//!
//! The JSON has the key slots, the digests of volume keys and the segments of the device.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::error::{LuksError, damaged, unsupported};
use crate::header::{Digest, Header, Segment, Slot, check_cipher};
use crate::kdf::{Hash, Kdf, shortened};
use crate::metadata::{MAGIC, Reader, SECOND_MAGIC, fixed, text};
use crate::split::STRIPES;

/// The binary header.
pub(crate) const BINARY_BYTES: usize = 4096;
/// The shortest copy: binary header and JSON.
pub(crate) const COPY_BYTES_MIN: u64 = 16 << 10;
/// The longest copy.
const COPY_BYTES_MAX: u64 = 4 << 20;
/// A second copy lies in here.
pub(crate) const SEARCHED_BYTES: u64 = 2 * COPY_BYTES_MAX;
const CHECKSUM_AT: usize = 448;
const CHECKSUM_BYTES: usize = 64;
/// The most key slots, as in cryptsetup.
const SLOTS_MAX: usize = 32;
/// The longest key or digest in the JSON.
const KEY_BYTES_MAX: usize = 64;

/// True for the lengths that a copy may have.
fn is_copy_bytes(bytes: u64) -> bool {
    bytes.is_power_of_two() && (COPY_BYTES_MIN..=COPY_BYTES_MAX).contains(&bytes)
}

/// How many bytes both copies have, by the binary header at the start of `first`.
pub(crate) fn metadata_bytes(first: &[u8]) -> u64 {
    let field = first.get(8..16).and_then(|field| field.try_into().ok());
    let copy = field.map(u64::from_be_bytes).filter(|copy| is_copy_bytes(*copy));
    copy.map_or(SEARCHED_BYTES, |copy| 2 * copy)
}

/// Reads the newest whole copy.
pub(crate) fn parse(bytes: &[u8]) -> Result<Header, LuksError> {
    let first = copy_at(bytes, 0, MAGIC);
    let seconds = std::iter::successors(Some(COPY_BYTES_MIN), |at| Some(at * 2))
        .take_while(|at| *at <= COPY_BYTES_MAX)
        .filter_map(|at| copy_at(bytes, at, SECOND_MAGIC).ok());
    let mut best: Option<Copy<'_>> = None;
    for copy in first.iter().copied().chain(seconds) {
        if best.is_none_or(|best| copy.sequence > best.sequence) {
            best = Some(copy);
        }
    }
    match (best, first) {
        (Some(copy), _) => read_json(copy),
        (None, Err(why)) => Err(why),
        (None, Ok(_)) => Err(LuksError::NoHeader),
    }
}

/// A copy whose checksum is right.
#[derive(Clone, std::marker::Copy)]
struct Copy<'a> {
    sequence: u64,
    copy_bytes: u64,
    json: &'a [u8],
}

fn copy_at(bytes: &[u8], at: u64, magic: [u8; 6]) -> Result<Copy<'_>, LuksError> {
    let cut = || damaged("it is cut");
    let bytes = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).ok_or_else(cut)?;
    if !bytes.starts_with(&magic) {
        return Err(LuksError::NoHeader);
    }
    let binary = bytes.get(..BINARY_BYTES).ok_or_else(cut)?;
    let mut reader = Reader::new(binary);
    reader.take(magic.len());
    let version = reader.u16();
    if version != 2 {
        return Err(LuksError::Version(version));
    }
    let copy_bytes = reader.u64();
    if !is_copy_bytes(copy_bytes) {
        return Err(damaged(format!("a copy of {copy_bytes} bytes")));
    }
    let sequence = reader.u64();
    reader.take(48);
    let algorithm = Hash::named(&text(reader.take(32))?)?;
    reader.take(64 + 40 + 48);
    if reader.u64() != at {
        return Err(damaged("a copy in a wrong place"));
    }
    let whole = bytes.get(..copy_bytes as usize).ok_or_else(cut)?;
    let zeroes = [0; CHECKSUM_BYTES];
    let checksum_end = CHECKSUM_AT + CHECKSUM_BYTES;
    let digest = algorithm.digest(&[&whole[..CHECKSUM_AT], &zeroes, &whole[checksum_end..]]);
    if !bool::from(digest.ct_eq(&whole[CHECKSUM_AT..CHECKSUM_AT + digest.len()])) {
        return Err(damaged("the checksum of its copies is wrong"));
    }
    Ok(Copy { sequence, copy_bytes, json: &whole[BINARY_BYTES..] })
}

#[derive(Deserialize, Serialize)]
struct Json {
    keyslots: BTreeMap<String, JsonSlot>,
    #[serde(skip_deserializing)]
    tokens: BTreeMap<String, ()>,
    segments: BTreeMap<String, JsonSegment>,
    digests: BTreeMap<String, JsonDigest>,
    config: JsonConfig,
}

/// Only the fields that every kind of slot has must be there.
#[derive(Deserialize, Serialize)]
struct JsonSlot {
    #[serde(rename = "type")]
    kind: String,
    key_size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    af: Option<JsonSplit>,
    area: JsonArea,
    #[serde(skip_serializing_if = "Option::is_none")]
    kdf: Option<JsonKdf>,
}

#[derive(Deserialize, Serialize)]
struct JsonSplit {
    #[serde(rename = "type")]
    kind: String,
    stripes: usize,
    hash: String,
}

#[derive(Deserialize, Serialize)]
struct JsonArea {
    #[serde(rename = "type")]
    kind: String,
    offset: String,
    size: String,
    encryption: Option<String>,
    key_size: Option<usize>,
}

#[derive(Deserialize, Serialize)]
struct JsonKdf {
    #[serde(rename = "type")]
    kind: String,
    salt: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iterations: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<u32>,
}

#[derive(Deserialize, Serialize)]
struct JsonSegment {
    #[serde(rename = "type")]
    kind: String,
    offset: String,
    size: String,
    iv_tweak: Option<String>,
    encryption: Option<String>,
    sector_size: Option<u32>,
    #[serde(skip_serializing)]
    integrity: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize, Serialize)]
struct JsonDigest {
    #[serde(rename = "type")]
    kind: String,
    keyslots: Vec<String>,
    segments: Vec<String>,
    hash: String,
    iterations: u32,
    salt: String,
    digest: String,
}

#[derive(Deserialize, Serialize)]
struct JsonConfig {
    json_size: String,
    keyslots_size: String,
    #[serde(skip_serializing)]
    requirements: Option<JsonRequirements>,
}

#[derive(Deserialize, Serialize)]
struct JsonRequirements {
    #[serde(default)]
    mandatory: Vec<String>,
}

fn number(text: &str, what: &str) -> Result<u64, LuksError> {
    text.parse().map_err(|_| damaged(format!("{what} is no number")))
}

fn binary(text: &str, longest: usize, what: &str) -> Result<Vec<u8>, LuksError> {
    let wrong = || damaged(format!("{what} is not in base 64, or too long"));
    if text.len() > longest.div_ceil(3) * 4 {
        return Err(wrong());
    }
    STANDARD.decode(text).map_err(|_| wrong())
}

fn read_json(copy: Copy<'_>) -> Result<Header, LuksError> {
    let end = copy.json.iter().position(|byte| *byte == 0).unwrap_or(copy.json.len());
    // The text of the error names a line and a column, and may quote the header: it is left out.
    let json: Json = serde_json::from_slice(&copy.json[..end]).map_err(|error| {
        damaged(format!("its JSON, in line {}, column {}", error.line(), error.column()))
    })?;
    let mandatory = json.config.requirements.map(|found| found.mandatory).unwrap_or_default();
    if let Some(first) = mandatory.first() {
        return Err(unsupported(format!("the requirement {:?}", shortened(first))));
    }
    let mut segments = json.segments.iter();
    let (Some((name, segment)), None) = (segments.next(), segments.next()) else {
        return Err(unsupported(format!("{} segments; only one is", json.segments.len())));
    };
    let segment = read_segment(segment)?;
    let mut digests = json.digests.values().filter(|digest| digest.segments.contains(name));
    let (Some(digest), None) = (digests.next(), digests.next()) else {
        return Err(damaged("its segment has no digest, or several"));
    };
    if json.keyslots.len() > SLOTS_MAX {
        return Err(damaged(format!("it has more than {SLOTS_MAX} key slots")));
    }
    let mut slots = Vec::new();
    for (name, slot) in &json.keyslots {
        // Priority 0: to be used only by its number.
        if slot.priority == Some(0) || !digest.keyslots.contains(name) {
            continue;
        }
        let number = name.parse().map_err(|_| damaged("the number of a key slot"))?;
        slots.push((slot.priority.unwrap_or(1), read_slot(number, slot)?));
    }
    slots.sort_by_key(|(priority, slot)| (std::cmp::Reverse(*priority), slot.number));
    Ok(Header {
        version: 2,
        segment,
        slots: slots.into_iter().map(|(_, slot)| slot).collect(),
        digests: vec![read_digest(digest)?],
        first_area_bytes: 2 * copy.copy_bytes,
    })
}

fn read_segment(segment: &JsonSegment) -> Result<Segment, LuksError> {
    if segment.kind != "crypt" {
        return Err(unsupported(format!("a segment of type {:?}", shortened(&segment.kind))));
    }
    if segment.integrity.is_some() {
        return Err(unsupported("authenticated sectors (integrity)"));
    }
    check_cipher(segment.encryption.as_deref().unwrap_or_default())?;
    let sector_bytes = segment.sector_size.unwrap_or(512);
    if ![512, 1024, 2048, 4096].contains(&sector_bytes) {
        return Err(damaged(format!("sectors of {sector_bytes} bytes")));
    }
    let tweak = segment.iv_tweak.as_deref().unwrap_or("0");
    let len_bytes = match segment.size.as_str() {
        "dynamic" => None,
        size => Some(number(size, "the size of the segment")?),
    };
    Ok(Segment {
        offset_bytes: number(&segment.offset, "the offset of the segment")?,
        len_bytes,
        sector_bytes,
        first_sector: number(tweak, "the first sector number")?,
    })
}

/// A slot of a kind that is not supported stays in the list, with the reason.
fn read_slot(number_of_slot: u32, slot: &JsonSlot) -> Result<Slot, LuksError> {
    let area = &slot.area;
    let kdf = || {
        let split = slot.af.as_ref().ok_or_else(|| damaged("a slot without stripes"))?;
        if slot.kind != "luks2" || area.kind != "raw" || split.kind != "luks1" {
            return Err(unsupported("the type of the slot, or of its area or stripes"));
        }
        if split.stripes != STRIPES {
            return Err(damaged(format!("{} stripes instead of {STRIPES}", split.stripes)));
        }
        check_cipher(area.encryption.as_deref().unwrap_or_default())?;
        let keys = [Some(slot.key_size), area.key_size];
        if !keys.iter().all(|bytes| matches!(bytes, Some(32 | 64))) {
            return Err(unsupported("a key that has neither 32 nor 64 bytes"));
        }
        let size = number(&area.size, "the size of key material")?;
        if size < (slot.key_size * STRIPES) as u64 {
            return Err(damaged("its key material has no room"));
        }
        read_kdf(slot.kdf.as_ref().ok_or_else(|| damaged("a slot without a kdf"))?)
    };
    let (kdf, split) = match kdf() {
        Ok(kdf) => {
            let hash = slot.af.as_ref().map_or("", |split| split.hash.as_str());
            match Hash::named(hash) {
                Ok(hash) => (Ok(kdf), hash),
                Err(error) => (Err(error), Hash::Sha256),
            }
        }
        Err(error) => (Err(error), Hash::Sha256),
    };
    // The place of a slot that is not used does not matter.
    let usable = kdf.is_ok();
    let offset = number(&area.offset, "the offset of key material")?;
    Ok(Slot {
        number: number_of_slot,
        key_bytes: if usable { slot.key_size } else { 0 },
        area_key_bytes: area.key_size.filter(|_| usable).unwrap_or(0),
        area_offset_bytes: offset,
        kdf,
        split,
        digest: 0,
    })
}

fn read_kdf(kdf: &JsonKdf) -> Result<Kdf, LuksError> {
    let salt = binary(&kdf.salt, crate::kdf::SALT_BYTES_MAX, "the salt of a slot")?;
    let lacks = || damaged("a parameter of the kdf is missing");
    let kdf = match kdf.kind.as_str() {
        "pbkdf2" => Kdf::Pbkdf2 {
            hash: Hash::named(kdf.hash.as_deref().unwrap_or_default())?,
            iterations: kdf.iterations.ok_or_else(lacks)?,
            salt,
        },
        "argon2i" | "argon2id" => Kdf::Argon2 {
            is_id: kdf.kind == "argon2id",
            passes: kdf.time.ok_or_else(lacks)?,
            memory_kib: kdf.memory.ok_or_else(lacks)?,
            lanes: kdf.cpus.ok_or_else(lacks)?,
            salt,
        },
        other => return Err(unsupported(format!("the kdf {:?}", shortened(other)))),
    };
    kdf.cost(KEY_BYTES_MAX)?;
    Ok(kdf)
}

fn read_digest(digest: &JsonDigest) -> Result<Digest, LuksError> {
    if digest.kind != "pbkdf2" {
        return Err(unsupported(format!("a digest of type {:?}", shortened(&digest.kind))));
    }
    let salt = binary(&digest.salt, crate::kdf::SALT_BYTES_MAX, "the salt of the digest")?;
    let value = binary(&digest.digest, KEY_BYTES_MAX, "the digest")?;
    // A shorter digest would let wrong keys pass.
    if value.len() < 16 {
        return Err(damaged("the digest is too short"));
    }
    let kdf = Kdf::Pbkdf2 { hash: Hash::named(&digest.hash)?, iterations: digest.iterations, salt };
    Ok(Digest { kdf, value })
}

/// The values of a new header.
pub(crate) struct New<'a> {
    pub key_bytes: usize,
    pub data_bytes: u64,
    pub sector_bytes: u32,
    pub slot: &'a Kdf,
    pub digest_kdf: &'a Kdf,
    pub digest: &'a [u8],
    pub uuid: &'a str,
    /// Random, 64 bytes for each copy.
    pub salts: [[u8; 64]; 2],
}

/// The place and the length of the first slot's key material.
pub(crate) fn first_area(key_bytes: usize) -> (u64, u64) {
    (2 * COPY_BYTES_MIN, ((key_bytes * STRIPES) as u64).next_multiple_of(4096))
}

/// Both copies of a header whose slot 0 is in use.
pub(crate) fn build(new: &New<'_>) -> Vec<u8> {
    let json = serde_json::to_vec(&new_json(new)).expect("names and numbers only");
    let mut out = Vec::new();
    for (salt, (at, magic)) in new.salts.iter().zip([(0, MAGIC), (COPY_BYTES_MIN, SECOND_MAGIC)]) {
        let mut copy = Vec::with_capacity(COPY_BYTES_MIN as usize);
        copy.extend_from_slice(&magic);
        copy.extend_from_slice(&2u16.to_be_bytes());
        copy.extend_from_slice(&COPY_BYTES_MIN.to_be_bytes());
        copy.extend_from_slice(&1u64.to_be_bytes());
        copy.extend_from_slice(&fixed::<48>(""));
        copy.extend_from_slice(&fixed::<32>("sha256"));
        copy.extend_from_slice(salt);
        copy.extend_from_slice(&fixed::<40>(new.uuid));
        copy.extend_from_slice(&fixed::<48>(""));
        copy.extend_from_slice(&at.to_be_bytes());
        copy.resize(BINARY_BYTES, 0);
        copy.extend_from_slice(&json);
        copy.resize(COPY_BYTES_MIN as usize, 0);
        let checksum = Hash::Sha256.digest(&[&copy]);
        copy[CHECKSUM_AT..CHECKSUM_AT + checksum.len()].copy_from_slice(&checksum);
        out.extend_from_slice(&copy);
    }
    out
}

fn new_json(new: &New<'_>) -> Json {
    const CIPHER: &str = "aes-xts-plain64";
    let zero = || "0".to_owned();
    let (offset, size) = first_area(new.key_bytes);
    let kdf = match new.slot {
        Kdf::Pbkdf2 { iterations, salt, .. } => JsonKdf {
            kind: "pbkdf2".to_owned(),
            salt: STANDARD.encode(salt),
            hash: Some("sha256".to_owned()),
            iterations: Some(*iterations),
            time: None,
            memory: None,
            cpus: None,
        },
        Kdf::Argon2 { passes, memory_kib, lanes, salt, .. } => JsonKdf {
            kind: "argon2id".to_owned(),
            salt: STANDARD.encode(salt),
            hash: None,
            iterations: None,
            time: Some(*passes),
            memory: Some(*memory_kib),
            cpus: Some(*lanes),
        },
    };
    let slot = JsonSlot {
        kind: "luks2".to_owned(),
        key_size: new.key_bytes,
        priority: None,
        af: Some(JsonSplit {
            kind: "luks1".to_owned(),
            stripes: STRIPES,
            hash: "sha256".to_owned(),
        }),
        area: JsonArea {
            kind: "raw".to_owned(),
            offset: offset.to_string(),
            size: size.to_string(),
            encryption: Some(CIPHER.to_owned()),
            key_size: Some(new.key_bytes),
        },
        kdf: Some(kdf),
    };
    let segment = JsonSegment {
        kind: "crypt".to_owned(),
        offset: new.data_bytes.to_string(),
        size: "dynamic".to_owned(),
        iv_tweak: Some(zero()),
        encryption: Some(CIPHER.to_owned()),
        sector_size: Some(new.sector_bytes),
        integrity: None,
    };
    let Kdf::Pbkdf2 { iterations, salt, .. } = new.digest_kdf else {
        unreachable!("digests are made with PBKDF2")
    };
    let digest = JsonDigest {
        kind: "pbkdf2".to_owned(),
        keyslots: vec![zero()],
        segments: vec![zero()],
        hash: "sha256".to_owned(),
        iterations: *iterations,
        salt: STANDARD.encode(salt),
        digest: STANDARD.encode(new.digest),
    };
    Json {
        keyslots: BTreeMap::from([(zero(), slot)]),
        tokens: BTreeMap::new(),
        segments: BTreeMap::from([(zero(), segment)]),
        digests: BTreeMap::from([(zero(), digest)]),
        config: JsonConfig {
            json_size: (COPY_BYTES_MIN - BINARY_BYTES as u64).to_string(),
            keyslots_size: (new.data_bytes - offset).min(KEYSLOTS_BYTES_MAX).to_string(),
            requirements: None,
        },
    }
}

/// The most room for key material, as in cryptsetup.
const KEYSLOTS_BYTES_MAX: u64 = 128 << 20;
