//! Loads maps from files of all kinds.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use fieldstone_crush::check::FIRST_SIGNED_WEIGHT;
use fieldstone_crush::osdmap::OsdMap;
use fieldstone_crush::{AlgorithmKind, Bucket, ChooseArg, ItemId, Map, binary, text};

use super::file;

/// The map of a file.
pub enum Loaded {
    /// A CRUSH map, text or binary.
    Crush(Box<Map>),
    /// A cluster's OSDMap.
    Cluster(Box<OsdMap>),
}

/// Loads the map of a file, of any kind.
///
/// An OSDMap begins with the versions of its structure, and a binary map with its magic number. A
/// file of UTF-8 without NUL bytes is a text map.
pub fn load(path: &Path) -> anyhow::Result<Loaded> {
    let bytes = file::read(path)?;
    loaded(&bytes).with_context(|| file::shown(path))
}

/// Loads the CRUSH map of a file: a text map, a binary map, or the one in an OSDMap.
pub fn load_map(path: &Path) -> anyhow::Result<Map> {
    let bytes = file::read(path)?;
    map_of(&bytes).with_context(|| file::shown(path))
}

fn map_of(bytes: &[u8]) -> anyhow::Result<Map> {
    Ok(match loaded(bytes)? {
        Loaded::Crush(map) => *map,
        Loaded::Cluster(map) => Arc::unwrap_or_clone(map.crush),
    })
}

/// Loads the OSDMap of a file. Also returns the file's bytes, for [`OsdMap::rewrite`].
pub fn load_osdmap(path: &Path) -> anyhow::Result<(OsdMap, Vec<u8>)> {
    let bytes = file::read(path)?;
    if !OsdMap::recognises(&bytes) && loaded(&bytes).is_ok() {
        bail!(
            "{} is a CRUSH map, but this needs pools and states too: an OSDMap, \
             which `ceph osd getmap -o FILE` writes",
            file::shown(path)
        );
    }
    let map = OsdMap::decode(&bytes).with_context(|| file::shown(path))?;
    Ok((map, bytes))
}

fn loaded(bytes: &[u8]) -> anyhow::Result<Loaded> {
    if OsdMap::recognises(bytes) {
        return Ok(Loaded::Cluster(Box::new(OsdMap::decode(bytes)?)));
    }
    let is_binary = bytes.starts_with(&binary::MAGIC.to_le_bytes()) || bytes.contains(&0);
    let text = std::str::from_utf8(bytes).ok().filter(|_| !is_binary);
    let map = match text {
        Some(text) => text::parse(text)?,
        None => binary::decode(bytes)?,
    };
    Ok(Loaded::Crush(Box::new(map)))
}

/// Warns on stderr of weights that Ceph takes as negative numbers.
pub fn warn_of_signed_weights(map: &Map) {
    for bucket in map.buckets() {
        if let Some(item) = signed_weight(map, bucket) {
            let name = |item: ItemId| match map.names().items.get(&item) {
                Some(name) => name.clone(),
                None => item.to_string(),
            };
            eprint_line!(
                "fieldstone: warning: {} weighs 32768.0 or more in {}: Ceph takes that as a \
                 negative number, so that it wins every draw against lighter items; lower the \
                 weights of the map, all by the same factor",
                name(item),
                name(bucket.id.into()),
            );
        }
    }
}

/// The first item of a straw2 bucket whose weight, its own or one of a weight set, is that large.
fn signed_weight(map: &Map, bucket: &Bucket) -> Option<ItemId> {
    if bucket.algorithm.kind() != AlgorithmKind::Straw2 {
        return None;
    }
    let args = map.choose_args().values().filter_map(|args| args.buckets.get(&bucket.id));
    let sets: Vec<&Vec<u32>> = args.flat_map(|arg: &ChooseArg| &arg.weight_sets).collect();
    let is_signed = |index: &usize| {
        let of_sets = sets.iter().map(|weights| weights[*index]);
        of_sets.chain([bucket.item_weight(*index)]).any(|weight| weight >= FIRST_SIGNED_WEIGHT)
    };
    (0..bucket.items.len()).find(is_signed).map(|index| bucket.items[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "device 0 osd.0\ntype 0 osd\ntype 1 root\n\
                        root r { alg straw2 item osd.0 weight 32768.0 }\n";

    #[test]
    fn all_forms_are_recognised() {
        let map = map_of(TEXT.as_bytes()).unwrap();
        let bytes = binary::encode(&map, binary::Release::V16);
        assert_eq!(map_of(&bytes).unwrap(), map);
        let error = map_of(b"\x08\x07\x00\x00").unwrap_err().to_string();
        assert!(error.contains("an OSDMap at byte 2"), "{error}");
        let error = map_of(b"\x00\x00\x01\x00").unwrap_err().to_string();
        assert!(error.contains("at byte 4"), "{error}");
        let error = map_of(b"tunable x 1").unwrap_err().to_string();
        assert!(error.contains("line 1, column 9"), "{error}");
    }

    #[test]
    fn a_weight_that_ceph_takes_as_negative_is_found() {
        let map = map_of(TEXT.as_bytes()).unwrap();
        assert_eq!(map.buckets().find_map(|bucket| signed_weight(&map, bucket)), Some(ItemId(0)));
        let map = map_of(TEXT.replace("32768.0", "32767.9").as_bytes()).unwrap();
        assert_eq!(map.buckets().find_map(|bucket| signed_weight(&map, bucket)), None);
    }
}
