//! Bytes to maps.

use std::collections::BTreeMap;

use super::MAGIC;
use super::error::{DecodeError, Problem};
use super::opcode;
use super::reader::Reader;
use crate::check::{MAX_BUCKETS, MAX_DEVICES, MAX_RULES};
use crate::map::{Map, Parts};
use crate::rule::{Rule, RuleKind};
use crate::{
    Algorithm, AlgorithmKind, Bucket, BucketId, ChooseArg, ChooseArgs, ChooseArgsId, ClassId,
    Classes, ItemId, Names, RuleId, Tunables, TypeId,
};

/// The map that `bytes` hold, and nothing but it.
pub fn decode(bytes: &[u8]) -> Result<Map, DecodeError> {
    let (map, read) = decode_prefix(bytes)?;
    match bytes.len() - read {
        0 => Ok(map),
        count => Err(DecodeError { at_byte: read, problem: Problem::Trailing { count } }),
    }
}

/// The map at the beginning of `bytes`, and its length in bytes. A map of an older release has no
/// mark at its end, so bytes that follow are read as its later parts.
pub fn decode_prefix(bytes: &[u8]) -> Result<(Map, usize), DecodeError> {
    let mut reader = Reader::new(bytes);
    let parts = parts(&mut reader)?;
    let at_byte = reader.at();
    let map = Map::new(parts).map_err(|e| DecodeError { at_byte, problem: e.into() })?;
    Ok((map, at_byte))
}

fn parts(reader: &mut Reader<'_>) -> Result<Parts, DecodeError> {
    let magic = reader.u32("the magic number")?;
    if magic != MAGIC {
        return Err(DecodeError { at_byte: 0, problem: Problem::Magic { found: magic } });
    }
    let slots = bounded(reader, "the number of bucket slots", MAX_BUCKETS as u32)?;
    let rule_slots = bounded(reader, "the number of rule slots", MAX_RULES)?;
    let min_devices = bounded(reader, "the number of devices", MAX_DEVICES)?;
    let mut parts = Parts { min_devices, ..Parts::default() };
    for slot in 0..slots {
        parts.buckets.extend(bucket(reader, slot)?);
    }
    for number in 0..rule_slots {
        if reader.u32("the mark of a rule")? != 0 {
            parts.rules.insert(RuleId(number), rule(reader)?);
        }
    }
    parts.names = names(reader)?;
    parts.tunables = tunables(reader)?;
    if !reader.is_at_end() {
        parts.classes = classes(reader)?;
    }
    if !reader.is_at_end() {
        parts.choose_args = choose_args(reader)?;
    }
    if !reader.is_at_end() {
        parts.tunables.msr_descents = reader.u32("msr_descents")?;
        parts.tunables.msr_collision_tries = reader.u32("msr_collision_tries")?;
    }
    Ok(parts)
}

fn bounded(reader: &mut Reader<'_>, what: &'static str, most: u32) -> Result<u32, DecodeError> {
    let start = reader.at();
    let value = reader.u32(what)?;
    if value > most {
        // Signed, because most numbers of the format are signed.
        return Err(Reader::value(
            start,
            what,
            value as i32,
            match most {
                MAX_RULES => "0 to 256",
                MAX_DEVICES => "0 to 1048576",
                _ => "0 to 131072",
            },
        ));
    }
    Ok(value)
}

fn bucket(reader: &mut Reader<'_>, slot: u32) -> Result<Option<Bucket>, DecodeError> {
    const ALGORITHM: &str = "the algorithm of a bucket";
    let start = reader.at();
    let mark = reader.u32(ALGORITHM)?;
    if mark == 0 {
        return Ok(None);
    }
    let kind = u8::try_from(mark).ok().and_then(AlgorithmKind::from_number);
    let Some(algorithm) = kind else {
        return Err(Reader::value(start, ALGORITHM, mark, "0 to 5"));
    };
    let start = reader.at();
    let id = reader.i32("the number of a bucket")?;
    let slot_of = -1 - i64::from(slot);
    if i64::from(id) != slot_of {
        let problem = Problem::Slot { found: id, slot_of };
        return Err(DecodeError { at_byte: start, problem });
    }
    let bucket_type = TypeId(reader.u16("the type of a bucket")?);
    let start = reader.at();
    let again = reader.u8(ALGORITHM)?;
    if again != algorithm as u8 {
        return Err(Reader::value(start, ALGORITHM, again, "the same as four words before"));
    }
    let start = reader.at();
    let hash = reader.u8("the hash of a bucket")?;
    if hash != 0 {
        return Err(Reader::value(start, "the hash of a bucket", hash, "0 (rjenkins1)"));
    }
    let weight = reader.u32("the weight of a bucket")?;
    let size = reader.count(4, "the items of a bucket")?;
    let items = reader.u32s(size, "the items of a bucket")?;
    let items = items.into_iter().map(|item| ItemId(item as i32)).collect();
    let algorithm = weights(reader, algorithm, size)?;
    Ok(Some(Bucket { id: BucketId(id), kind: bucket_type, items, weight, algorithm }))
}

fn weights(
    reader: &mut Reader<'_>,
    kind: AlgorithmKind,
    size: usize,
) -> Result<Algorithm, DecodeError> {
    const WHAT: &str = "the weights of a bucket";
    let pairs = |reader: &mut Reader<'_>| -> Result<(Vec<u32>, Vec<u32>), DecodeError> {
        let both = reader.u32s(2 * size, WHAT)?;
        Ok(both.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip())
    };
    Ok(match kind {
        AlgorithmKind::Uniform => Algorithm::Uniform { weight: reader.u32(WHAT)? },
        AlgorithmKind::List => {
            let (weights, sums) = pairs(reader)?;
            Algorithm::List { weights, sums }
        }
        AlgorithmKind::Tree => {
            let nodes = reader.u8("the nodes of a tree bucket")?;
            Algorithm::Tree { node_weights: reader.u32s(nodes.into(), WHAT)? }
        }
        AlgorithmKind::Straw => {
            let (weights, straws) = pairs(reader)?;
            Algorithm::Straw { weights, straws }
        }
        AlgorithmKind::Straw2 => Algorithm::Straw2 { weights: reader.u32s(size, WHAT)? },
    })
}

fn rule(reader: &mut Reader<'_>) -> Result<Rule, DecodeError> {
    let start = reader.at();
    let len = reader.u32("the steps of a rule")?;
    let [ruleset, kind, min_size, max_size] =
        [reader.u8("a rule")?, reader.u8("a rule")?, reader.u8("a rule")?, reader.u8("a rule")?];
    let len = reader.believe(start, len.into(), 12, "the steps of a rule")?;
    let mut steps = Vec::with_capacity(len);
    for _ in 0..len {
        let start = reader.at();
        let opcode = reader.u32("a step")?;
        let (arg1, arg2) = (reader.i32("a step")?, reader.i32("a step")?);
        steps.push(opcode::step(opcode, arg1, arg2).map_err(|argument| match argument {
            None => Reader::value(start, "the opcode of a step", opcode, "0 to 4 or 6 to 16"),
            Some(kind) => Reader::value(start + 8, "the type in a step", kind, "0 to 65535"),
        })?);
    }
    Ok(Rule { kind: RuleKind::from_number(kind), ruleset, min_size, max_size, steps })
}

fn names(reader: &mut Reader<'_>) -> Result<Names, DecodeError> {
    let mut names = Names::default();
    name_map(reader, "a type's name", |start, key, name| {
        let expected = "0 to 65535";
        let id = u16::try_from(key).map_err(|_| Reader::value(start, "a type", key, expected))?;
        names.types.insert(TypeId(id), name);
        Ok(())
    })?;
    name_map(reader, "an item's name", |_, key, name| {
        names.items.insert(ItemId(key), name);
        Ok(())
    })?;
    name_map(reader, "a rule's name", |start, key, name| {
        let expected = "0 or more";
        let id = u32::try_from(key).map_err(|_| Reader::value(start, "a rule", key, expected))?;
        names.rules.insert(RuleId(id), name);
        Ok(())
    })?;
    Ok(names)
}

fn name_map(
    reader: &mut Reader<'_>,
    what: &'static str,
    mut insert: impl FnMut(usize, i32, String) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    for _ in 0..reader.count(8, what)? {
        let start = reader.at();
        let key = reader.i32(what)?;
        let len_bytes = match reader.u32(what)? {
            0 => reader.u32(what)?,
            len_bytes => len_bytes,
        };
        let name = reader.text(len_bytes as usize, what)?;
        if !name.is_empty() {
            insert(start, key, name)?;
        }
    }
    Ok(())
}

fn tunables(reader: &mut Reader<'_>) -> Result<Tunables, DecodeError> {
    let mut tunables = Tunables::LEGACY;
    // Each group may be where an older release ended.
    if reader.is_at_end() {
        return Ok(tunables);
    }
    tunables.choose_local_tries = reader.u32("choose_local_tries")?;
    tunables.choose_local_fallback_tries = reader.u32("choose_local_fallback_tries")?;
    tunables.choose_total_tries = reader.u32("choose_total_tries")?;
    if reader.is_at_end() {
        return Ok(tunables);
    }
    tunables.chooseleaf_descend_once = reader.u32("chooseleaf_descend_once")? != 0;
    if reader.is_at_end() {
        return Ok(tunables);
    }
    tunables.chooseleaf_vary_r = reader.u8("chooseleaf_vary_r")?;
    if reader.is_at_end() {
        return Ok(tunables);
    }
    tunables.straw_calc_version = reader.u8("straw_calc_version")?;
    if reader.is_at_end() {
        return Ok(tunables);
    }
    tunables.allowed_bucket_algs = reader.u32("allowed_bucket_algs")?;
    if reader.is_at_end() {
        return Ok(tunables);
    }
    tunables.chooseleaf_stable = reader.u8("chooseleaf_stable")? != 0;
    Ok(tunables)
}

fn classes(reader: &mut Reader<'_>) -> Result<Classes, DecodeError> {
    const WHAT: &str = "the classes";
    let mut classes = Classes::default();
    for _ in 0..reader.count(8, WHAT)? {
        let item = ItemId(reader.i32(WHAT)?);
        classes.of_item.insert(item, ClassId(reader.i32(WHAT)?));
    }
    for _ in 0..reader.count(8, WHAT)? {
        let class = ClassId(reader.i32(WHAT)?);
        let len_bytes = reader.u32("a class's name")? as usize;
        classes.names.insert(class, reader.text(len_bytes, "a class's name")?);
    }
    for _ in 0..reader.count(8, WHAT)? {
        let bucket = BucketId(reader.i32(WHAT)?);
        let mut shadows = BTreeMap::new();
        for _ in 0..reader.count(8, WHAT)? {
            let class = ClassId(reader.i32(WHAT)?);
            shadows.insert(class, BucketId(reader.i32(WHAT)?));
        }
        classes.shadows.insert(bucket, shadows);
    }
    Ok(classes)
}

fn choose_args(reader: &mut Reader<'_>) -> Result<BTreeMap<ChooseArgsId, ChooseArgs>, DecodeError> {
    const WHAT: &str = "the choose_args";
    let mut sets = BTreeMap::new();
    for _ in 0..reader.count(12, WHAT)? {
        let set = ChooseArgsId(reader.i64(WHAT)?);
        let mut args = ChooseArgs::default();
        for _ in 0..reader.count(12, WHAT)? {
            let start = reader.at();
            let slot = reader.u32(WHAT)?;
            let Some(id) = i32::try_from(slot).ok().map(|slot| BucketId(!slot)) else {
                return Err(Reader::value(start, "the slot of a bucket", slot, "below 131072"));
            };
            let arg = choose_arg(reader)?;
            if arg != ChooseArg::default() {
                args.buckets.insert(id, arg);
            }
        }
        sets.insert(set, args);
    }
    Ok(sets)
}

fn choose_arg(reader: &mut Reader<'_>) -> Result<ChooseArg, DecodeError> {
    const WHAT: &str = "a weight set";
    let positions = reader.count(4, WHAT)?;
    let mut weight_sets = Vec::with_capacity(positions);
    for _ in 0..positions {
        let size = reader.count(4, WHAT)?;
        weight_sets.push(reader.u32s(size, WHAT)?);
    }
    let ids = reader.count(4, "the ids of a weight set")?;
    let ids = reader.u32s(ids, "the ids of a weight set")?;
    let ids: Vec<ItemId> = ids.into_iter().map(|id| ItemId(id as i32)).collect();
    Ok(ChooseArg { weight_sets, ids: (!ids.is_empty()).then_some(ids) })
}
