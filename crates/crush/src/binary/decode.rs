//! Bytes to maps.

use std::collections::BTreeMap;

use super::MAGIC;
use super::cursor::MapCursor;
use super::error::{DecodeError, Problem};
use super::opcode;
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
    let mut cursor = MapCursor::new(bytes);
    let parts = parts(&mut cursor)?;
    let at_byte = cursor.at();
    let map = Map::new(parts).map_err(|e| DecodeError { at_byte, problem: e.into() })?;
    Ok((map, at_byte))
}

fn parts(cursor: &mut MapCursor<'_>) -> Result<Parts, DecodeError> {
    let magic = cursor.u32("the magic number")?;
    if magic != MAGIC {
        return Err(DecodeError { at_byte: 0, problem: Problem::Magic { found: magic } });
    }
    let slots = bounded(cursor, "the number of bucket slots", MAX_BUCKETS as u32)?;
    let rule_slots = bounded(cursor, "the number of rule slots", MAX_RULES)?;
    let min_devices = bounded(cursor, "the number of devices", MAX_DEVICES)?;
    let mut parts = Parts { min_devices, ..Parts::default() };
    for slot in 0..slots {
        parts.buckets.extend(bucket(cursor, slot)?);
    }
    for number in 0..rule_slots {
        if cursor.u32("the mark of a rule")? != 0 {
            parts.rules.insert(RuleId(number), rule(cursor)?);
        }
    }
    parts.names = names(cursor)?;
    parts.tunables = tunables(cursor)?;
    if !cursor.is_at_end() {
        parts.classes = classes(cursor)?;
    }
    if !cursor.is_at_end() {
        parts.choose_args = choose_args(cursor)?;
    }
    if !cursor.is_at_end() {
        parts.tunables.msr_descents = cursor.u32("msr_descents")?;
        parts.tunables.msr_collision_tries = cursor.u32("msr_collision_tries")?;
    }
    Ok(parts)
}

fn bounded(cursor: &mut MapCursor<'_>, what: &'static str, most: u32) -> Result<u32, DecodeError> {
    let start = cursor.at();
    let value = cursor.u32(what)?;
    if value > most {
        // Signed, because most numbers of the format are signed.
        return Err(MapCursor::value(
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

fn bucket(cursor: &mut MapCursor<'_>, slot: u32) -> Result<Option<Bucket>, DecodeError> {
    const ALGORITHM: &str = "the algorithm of a bucket";
    let start = cursor.at();
    let mark = cursor.u32(ALGORITHM)?;
    if mark == 0 {
        return Ok(None);
    }
    let kind = u8::try_from(mark).ok().and_then(AlgorithmKind::from_number);
    let Some(algorithm) = kind else {
        return Err(MapCursor::value(start, ALGORITHM, mark, "0 to 5"));
    };
    let start = cursor.at();
    let id = cursor.i32("the number of a bucket")?;
    let slot_of = -1 - i64::from(slot);
    if i64::from(id) != slot_of {
        let problem = Problem::Slot { found: id, slot_of };
        return Err(DecodeError { at_byte: start, problem });
    }
    let bucket_type = TypeId(cursor.u16("the type of a bucket")?);
    let start = cursor.at();
    let again = cursor.u8(ALGORITHM)?;
    if again != algorithm as u8 {
        return Err(MapCursor::value(start, ALGORITHM, again, "the same as four words before"));
    }
    let start = cursor.at();
    let hash = cursor.u8("the hash of a bucket")?;
    if hash != 0 {
        return Err(MapCursor::value(start, "the hash of a bucket", hash, "0 (rjenkins1)"));
    }
    let weight = cursor.u32("the weight of a bucket")?;
    let size = cursor.count(4, "the items of a bucket")?;
    let items = cursor.u32s(size, "the items of a bucket")?;
    let items = items.into_iter().map(|item| ItemId(item as i32)).collect();
    let algorithm = weights(cursor, algorithm, size)?;
    Ok(Some(Bucket { id: BucketId(id), kind: bucket_type, items, weight, algorithm }))
}

fn weights(
    cursor: &mut MapCursor<'_>,
    kind: AlgorithmKind,
    size: usize,
) -> Result<Algorithm, DecodeError> {
    const WHAT: &str = "the weights of a bucket";
    let pairs = |cursor: &mut MapCursor<'_>| -> Result<(Vec<u32>, Vec<u32>), DecodeError> {
        let both = cursor.u32s(2 * size, WHAT)?;
        Ok(both.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip())
    };
    Ok(match kind {
        AlgorithmKind::Uniform => Algorithm::Uniform { weight: cursor.u32(WHAT)? },
        AlgorithmKind::List => {
            let (weights, sums) = pairs(cursor)?;
            Algorithm::List { weights, sums }
        }
        AlgorithmKind::Tree => {
            let nodes = cursor.u8("the nodes of a tree bucket")?;
            Algorithm::Tree { node_weights: cursor.u32s(nodes.into(), WHAT)? }
        }
        AlgorithmKind::Straw => {
            let (weights, straws) = pairs(cursor)?;
            Algorithm::Straw { weights, straws }
        }
        AlgorithmKind::Straw2 => Algorithm::Straw2 { weights: cursor.u32s(size, WHAT)? },
    })
}

fn rule(cursor: &mut MapCursor<'_>) -> Result<Rule, DecodeError> {
    let start = cursor.at();
    let len = cursor.u32("the steps of a rule")?;
    let [ruleset, kind, min_size, max_size] =
        [cursor.u8("a rule")?, cursor.u8("a rule")?, cursor.u8("a rule")?, cursor.u8("a rule")?];
    let len = cursor.believe(start, len.into(), 12, "the steps of a rule")?;
    let mut steps = Vec::with_capacity(len);
    for _ in 0..len {
        let start = cursor.at();
        let opcode = cursor.u32("a step")?;
        let (arg1, arg2) = (cursor.i32("a step")?, cursor.i32("a step")?);
        steps.push(opcode::step(opcode, arg1, arg2).map_err(|argument| match argument {
            None => MapCursor::value(start, "the opcode of a step", opcode, "0 to 4 or 6 to 16"),
            Some(kind) => MapCursor::value(start + 8, "the type in a step", kind, "0 to 65535"),
        })?);
    }
    Ok(Rule { kind: RuleKind::from_number(kind), ruleset, min_size, max_size, steps })
}

fn names(cursor: &mut MapCursor<'_>) -> Result<Names, DecodeError> {
    let mut names = Names::default();
    name_map(cursor, "a type's name", |start, key, name| {
        let expected = "0 to 65535";
        let id =
            u16::try_from(key).map_err(|_| MapCursor::value(start, "a type", key, expected))?;
        names.types.insert(TypeId(id), name);
        Ok(())
    })?;
    name_map(cursor, "an item's name", |_, key, name| {
        names.items.insert(ItemId(key), name);
        Ok(())
    })?;
    name_map(cursor, "a rule's name", |start, key, name| {
        let expected = "0 or more";
        let id =
            u32::try_from(key).map_err(|_| MapCursor::value(start, "a rule", key, expected))?;
        names.rules.insert(RuleId(id), name);
        Ok(())
    })?;
    Ok(names)
}

fn name_map(
    cursor: &mut MapCursor<'_>,
    what: &'static str,
    mut insert: impl FnMut(usize, i32, String) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    for _ in 0..cursor.count(8, what)? {
        let start = cursor.at();
        let key = cursor.i32(what)?;
        let len_bytes = match cursor.u32(what)? {
            0 => cursor.u32(what)?,
            len_bytes => len_bytes,
        };
        let name = cursor.text(len_bytes as usize, what)?;
        if !name.is_empty() {
            insert(start, key, name)?;
        }
    }
    Ok(())
}

fn tunables(cursor: &mut MapCursor<'_>) -> Result<Tunables, DecodeError> {
    let mut tunables = Tunables::LEGACY;
    // Each group may be where an older release ended.
    if cursor.is_at_end() {
        return Ok(tunables);
    }
    tunables.choose_local_tries = cursor.u32("choose_local_tries")?;
    tunables.choose_local_fallback_tries = cursor.u32("choose_local_fallback_tries")?;
    tunables.choose_total_tries = cursor.u32("choose_total_tries")?;
    if cursor.is_at_end() {
        return Ok(tunables);
    }
    tunables.chooseleaf_descend_once = cursor.u32("chooseleaf_descend_once")? != 0;
    if cursor.is_at_end() {
        return Ok(tunables);
    }
    tunables.chooseleaf_vary_r = cursor.u8("chooseleaf_vary_r")?;
    if cursor.is_at_end() {
        return Ok(tunables);
    }
    tunables.straw_calc_version = cursor.u8("straw_calc_version")?;
    if cursor.is_at_end() {
        return Ok(tunables);
    }
    tunables.allowed_bucket_algs = cursor.u32("allowed_bucket_algs")?;
    if cursor.is_at_end() {
        return Ok(tunables);
    }
    tunables.chooseleaf_stable = cursor.u8("chooseleaf_stable")? != 0;
    Ok(tunables)
}

fn classes(cursor: &mut MapCursor<'_>) -> Result<Classes, DecodeError> {
    const WHAT: &str = "the classes";
    let mut classes = Classes::default();
    for _ in 0..cursor.count(8, WHAT)? {
        let item = ItemId(cursor.i32(WHAT)?);
        classes.of_item.insert(item, ClassId(cursor.i32(WHAT)?));
    }
    for _ in 0..cursor.count(8, WHAT)? {
        let class = ClassId(cursor.i32(WHAT)?);
        let len_bytes = cursor.u32("a class's name")? as usize;
        classes.names.insert(class, cursor.text(len_bytes, "a class's name")?);
    }
    for _ in 0..cursor.count(8, WHAT)? {
        let bucket = BucketId(cursor.i32(WHAT)?);
        let mut shadows = BTreeMap::new();
        for _ in 0..cursor.count(8, WHAT)? {
            let class = ClassId(cursor.i32(WHAT)?);
            shadows.insert(class, BucketId(cursor.i32(WHAT)?));
        }
        classes.shadows.insert(bucket, shadows);
    }
    Ok(classes)
}

fn choose_args(
    cursor: &mut MapCursor<'_>,
) -> Result<BTreeMap<ChooseArgsId, ChooseArgs>, DecodeError> {
    const WHAT: &str = "the choose_args";
    let mut sets = BTreeMap::new();
    for _ in 0..cursor.count(12, WHAT)? {
        let set = ChooseArgsId(cursor.i64(WHAT)?);
        let mut args = ChooseArgs::default();
        for _ in 0..cursor.count(12, WHAT)? {
            let start = cursor.at();
            let slot = cursor.u32(WHAT)?;
            let Some(id) = i32::try_from(slot).ok().map(|slot| BucketId(!slot)) else {
                return Err(MapCursor::value(start, "the slot of a bucket", slot, "below 131072"));
            };
            let arg = choose_arg(cursor)?;
            if arg != ChooseArg::default() {
                args.buckets.insert(id, arg);
            }
        }
        sets.insert(set, args);
    }
    Ok(sets)
}

fn choose_arg(cursor: &mut MapCursor<'_>) -> Result<ChooseArg, DecodeError> {
    const WHAT: &str = "a weight set";
    let positions = cursor.count(4, WHAT)?;
    let mut weight_sets = Vec::with_capacity(positions);
    for _ in 0..positions {
        let size = cursor.count(4, WHAT)?;
        weight_sets.push(cursor.u32s(size, WHAT)?);
    }
    let ids = cursor.count(4, "the ids of a weight set")?;
    let ids = cursor.u32s(ids, "the ids of a weight set")?;
    let ids: Vec<ItemId> = ids.into_iter().map(|id| ItemId(id as i32)).collect();
    Ok(ChooseArg { weight_sets, ids: (!ids.is_empty()).then_some(ids) })
}
