//! The manifest: the parameters of an encoding, as text that people can read.
//!
//! JSON, one object:
//!
//! | field         | meaning                                                              |
//! |---------------|----------------------------------------------------------------------|
//! | `format`      | version, now 1                                                       |
//! | `id`          | of the encoding, 32 hexadecimal digits; also in every shard's header  |
//! | `code`        | as on the command line                                               |
//! | `shards`      | number of shards: k + m                                              |
//! | `unit_bytes`  | length of a unit                                                     |
//! | `file_bytes`  | length of the file                                                   |
//! | `file_crc32c` | checksum of the file, 8 hexadecimal digits                           |
//! | `crc32c`      | checksum of all other fields                                         |
//!
//! The last field is the checksum of the object without this field, with names in alphabetical
//! order and without spaces. So spaces may be changed, and the checksum can be checked without
//! knowing the format's version.

use std::collections::BTreeMap;

use fieldstone_codes::{Profile, ProfileError};
use serde_json::Value;

use crate::checksum::crc32c;
use crate::striping::{EncodingId, EncodingParams, MAX_FILE_BYTES};

/// The format that this release writes, and the newest that it reads.
pub(crate) const FORMAT: u64 = 1;

/// Why a text is no manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ManifestFlaw {
    /// A newer release has written the manifest.
    Newer(u64),
    /// Any other error, in words.
    Damaged(String),
}

/// The manifest's text.
pub(crate) fn to_text(encoding: &EncodingParams) -> String {
    let mut fields: Vec<(&str, Value)> = vec![
        ("format", FORMAT.into()),
        ("id", encoding.id.to_string().into()),
        ("code", encoding.profile.to_string().into()),
        ("shards", encoding.profile.shards().into()),
        ("unit_bytes", encoding.unit_bytes.into()),
        ("file_bytes", encoding.file_bytes.into()),
        ("file_crc32c", hex(encoding.file_crc).into()),
    ];
    let checksum = checksum(fields.iter().map(|(name, value)| (*name, value)));
    fields.push(("crc32c", hex(checksum).into()));
    let lines: Vec<String> =
        fields.iter().map(|(name, value)| format!("  \"{name}\": {value}")).collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

/// Parses a manifest.
pub(crate) fn from_text(text: &str) -> Result<EncodingParams, ManifestFlaw> {
    let damaged = |why: &str| ManifestFlaw::Damaged(why.to_owned());
    let Ok(Value::Object(fields)) = serde_json::from_str(text) else {
        return Err(damaged("it is not a JSON object"));
    };
    let given = fields.get("crc32c").and_then(Value::as_str);
    let others = fields.iter().filter(|(name, _)| *name != "crc32c");
    let computed = checksum(others.map(|(name, value)| (name.as_str(), value)));
    if given != Some(&hex(computed)) {
        return Err(damaged("its checksum is wrong"));
    }
    match fields.get("format").and_then(Value::as_u64) {
        Some(FORMAT) => {}
        Some(newer) if newer > FORMAT => return Err(ManifestFlaw::Newer(newer)),
        _ => return Err(damaged("it has no valid format number")),
    }
    let code = fields.get("code").and_then(Value::as_str).unwrap_or_default();
    let profile: Profile =
        code.parse().map_err(|error: ProfileError| damaged(&error.to_string()))?;
    let params = parse(&fields, profile);
    let params = params.ok_or(damaged("a field is missing or makes no sense"))?;
    params.check().map_err(|error| damaged(&error.to_string()))?;
    Ok(params)
}

/// The fields of a manifest with a right checksum, if they are valid.
fn parse(fields: &serde_json::Map<String, Value>, profile: Profile) -> Option<EncodingParams> {
    let text = |name: &str| fields.get(name)?.as_str();
    let number = |name: &str| fields.get(name)?.as_u64();
    let params = EncodingParams {
        id: EncodingId(u128::from_str_radix(text("id")?, 16).ok()?),
        profile,
        unit_bytes: number("unit_bytes")?,
        file_bytes: number("file_bytes").filter(|&bytes| bytes <= MAX_FILE_BYTES)?,
        file_crc: u32::from_str_radix(text("file_crc32c")?, 16).ok()?,
    };
    (number("shards")? == profile.shards() as u64).then_some(params)
}

/// A text with a corrected checksum, if it is an object. For the fuzzer.
pub(crate) fn mended(text: &str) -> Option<String> {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(text) else { return None };
    fields.remove("crc32c");
    let right = checksum(fields.iter().map(|(name, value)| (name.as_str(), value)));
    fields.insert("crc32c".to_owned(), hex(right).into());
    serde_json::to_string(&fields).ok()
}

/// The checksum of fields in the form that the essay above describes.
fn checksum<'a>(fields: impl Iterator<Item = (&'a str, &'a Value)>) -> u32 {
    let sorted: BTreeMap<&str, &Value> = fields.collect();
    let parts: Vec<String> =
        sorted.iter().map(|(name, value)| format!("{}:{value}", Value::from(*name))).collect();
    crc32c(format!("{{{}}}", parts.join(",")).as_bytes())
}

fn hex(checksum: u32) -> String {
    format!("{checksum:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> EncodingParams {
        EncodingParams {
            id: EncodingId(0x1234),
            profile: "cauchy-good:4+2,ps=64".parse().unwrap(),
            unit_bytes: 512,
            file_bytes: 1 << 50,
            file_crc: 0xab,
        }
    }

    #[test]
    fn the_text_is_fixed_and_read_back() {
        let text = to_text(&sample());
        let expected = r#"{
  "format": 1,
  "id": "00000000000000000000000000001234",
  "code": "cauchy-good:4+2,ps=64",
  "shards": 6,
  "unit_bytes": 512,
  "file_bytes": 1125899906842624,
  "file_crc32c": "000000ab",
  "crc32c": "CRC"
}
"#;
        let crc = text.rsplit('"').nth(1).unwrap();
        assert_eq!(text, expected.replace("CRC", crc));
        assert_eq!(from_text(&text), Ok(sample()));
        // Spaces and the order of names do not count.
        let fields: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(from_text(&serde_json::to_string(&fields).unwrap()), Ok(sample()));
    }

    #[test]
    fn every_flipped_bit_is_noticed_or_harmless() {
        let text = to_text(&sample()).into_bytes();
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let Ok(flipped) = String::from_utf8(flipped) else { continue };
            match from_text(&flipped) {
                Err(ManifestFlaw::Damaged(_)) => {}
                // A changed bit turned one kind of space into another.
                other => assert_eq!(other, Ok(sample()), "bit {bit}"),
            }
        }
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let mut fields: serde_json::Map<String, Value> =
            serde_json::from_str(&to_text(&sample())).unwrap();
        fields.insert("format".to_owned(), 2.into());
        fields.insert("color".to_owned(), "green".into());
        let damaged = serde_json::to_string(&fields).unwrap();
        let wrong = ManifestFlaw::Damaged("its checksum is wrong".to_owned());
        assert_eq!(from_text(&damaged), Err(wrong));
        fields.remove("crc32c");
        let crc = checksum(fields.iter().map(|(name, value)| (name.as_str(), value)));
        fields.insert("crc32c".to_owned(), hex(crc).into());
        let newer = serde_json::to_string(&fields).unwrap();
        assert_eq!(from_text(&newer), Err(ManifestFlaw::Newer(2)));
    }
}
