//! Maps to bytes.

use super::{MAGIC, Release, opcode};
use crate::map::Map;
use crate::rule::Rule;
use crate::{Algorithm, Bucket, BucketId, ChooseArg, Classes, Names, RuleId};

/// Initial number of bucket slots in Ceph. Ceph doubles the number when it needs more.
const MIN_SLOTS: usize = 8;

/// The binary form of a map, as crushtool of that release writes it. Each release leaves out the
/// fields that it does not know. [`Release::V16`] leaves out the MSR tunables, which a reader then
/// sets to their defaults. [`Release::V19`] leaves out the ruleset and sizes of rules, which have
/// no meaning any more.
#[must_use]
pub fn encode(map: &Map, release: Release) -> Vec<u8> {
    let mut out = Writer::default();
    let slots = match map.bucket_slots() {
        0 => 0,
        slots => slots.next_power_of_two().max(MIN_SLOTS),
    };
    let rule_slots = map.rules().last().map_or(0, |(RuleId(last), _)| last + 1);
    out.u32(MAGIC);
    out.count(slots);
    out.u32(rule_slots);
    out.u32(map.max_devices());
    for slot in 0..slots {
        // At most MAX_BUCKETS slots.
        match map.bucket(BucketId(!(slot as i32))) {
            Some(bucket) => self::bucket(&mut out, bucket),
            None => out.u32(0),
        }
    }
    let mut rules = map.rules().peekable();
    for number in 0..rule_slots {
        match rules.next_if(|&(RuleId(id), _)| id == number) {
            Some((id, rule)) => self::rule(&mut out, id, rule, release),
            None => out.u32(0),
        }
    }
    names(&mut out, map.names());
    tunables(&mut out, map);
    classes(&mut out, map.classes());
    choose_args(&mut out, map);
    if release >= Release::V19 {
        out.u32(map.tunables().msr_descents);
        out.u32(map.tunables().msr_collision_tries);
    }
    out.0
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.0.extend(value.to_le_bytes());
    }

    /// A count. No list in memory has 2^32 members of a map.
    fn count(&mut self, count: usize) {
        self.u32(count as u32);
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend(text.as_bytes());
    }

    fn u32s<'a>(&mut self, values: impl IntoIterator<Item = &'a u32>) {
        for &value in values {
            self.u32(value);
        }
    }
}

fn bucket(out: &mut Writer, bucket: &Bucket) {
    let kind = bucket.algorithm.kind() as u8;
    out.u32(kind.into());
    out.i32(bucket.id.0);
    out.u16(bucket.kind.0);
    out.u8(kind);
    out.u8(0); // rjenkins1
    out.u32(bucket.weight);
    out.count(bucket.items.len());
    for item in &bucket.items {
        out.i32(item.0);
    }
    match &bucket.algorithm {
        Algorithm::Uniform { weight } => out.u32(*weight),
        Algorithm::List { weights, sums: second }
        | Algorithm::Straw { weights, straws: second } => {
            for (&weight, &second) in weights.iter().zip(second) {
                out.u32(weight);
                out.u32(second);
            }
        }
        Algorithm::Tree { node_weights } => {
            // At most 128 nodes: the bound of a tree's items.
            out.u8(node_weights.len() as u8);
            out.u32s(node_weights);
        }
        Algorithm::Straw2 { weights } => out.u32s(weights),
    }
}

fn rule(out: &mut Writer, RuleId(id): RuleId, rule: &Rule, release: Release) {
    out.u32(1);
    out.count(rule.steps.len());
    let (ruleset, min_size, max_size) = match release {
        Release::V16 => (rule.ruleset, rule.min_size, rule.max_size),
        // A rule's number is below 256.
        Release::V19 => (id as u8, Rule::DEFAULT_MIN_SIZE, Rule::DEFAULT_MAX_SIZE),
    };
    for byte in [ruleset, rule.kind.number(), min_size, max_size] {
        out.u8(byte);
    }
    for &step in &rule.steps {
        let (opcode, arg1, arg2) = opcode::numbers(step);
        out.u32(opcode);
        out.i32(arg1);
        out.i32(arg2);
    }
}

fn names(out: &mut Writer, names: &Names) {
    name_map(out, names.types.iter().map(|(id, name)| (id.0.into(), name)));
    name_map(out, names.items.iter().map(|(id, name)| (id.0, name)));
    name_map(out, names.rules.iter().map(|(id, name)| (id.0 as i32, name)));
}

/// Leaves empty names out, because a length of 0 has another meaning.
fn name_map<'a>(out: &mut Writer, names: impl Iterator<Item = (i32, &'a String)>) {
    let names: Vec<_> = names.filter(|(_, name)| !name.is_empty()).collect();
    out.count(names.len());
    for (id, name) in names {
        out.i32(id);
        out.text(name);
    }
}

fn tunables(out: &mut Writer, map: &Map) {
    let tunables = map.tunables();
    out.u32(tunables.choose_local_tries);
    out.u32(tunables.choose_local_fallback_tries);
    out.u32(tunables.choose_total_tries);
    out.u32(tunables.chooseleaf_descend_once.into());
    out.u8(tunables.chooseleaf_vary_r);
    out.u8(tunables.straw_calc_version);
    out.u32(tunables.allowed_bucket_algs);
    out.u8(tunables.chooseleaf_stable.into());
}

fn classes(out: &mut Writer, classes: &Classes) {
    out.count(classes.of_item.len());
    for (item, class) in &classes.of_item {
        out.i32(item.0);
        out.i32(class.0);
    }
    out.count(classes.names.len());
    for (class, name) in &classes.names {
        out.i32(class.0);
        out.text(name);
    }
    out.count(classes.shadows.len());
    for (bucket, shadows) in &classes.shadows {
        out.i32(bucket.0);
        out.count(shadows.len());
        for (class, shadow) in shadows {
            out.i32(class.0);
            out.i32(shadow.0);
        }
    }
}

fn choose_args(out: &mut Writer, map: &Map) {
    out.count(map.choose_args().len());
    for (set, args) in map.choose_args() {
        out.0.extend(set.0.to_le_bytes());
        let changed = |arg: &ChooseArg| !arg.weight_sets.is_empty() || arg.ids.is_some();
        // In the order of slots, which is from -1 down.
        let entries: Vec<_> = args.buckets.iter().rev().filter(|(_, arg)| changed(arg)).collect();
        out.count(entries.len());
        for (id, arg) in entries {
            out.i32(!id.0);
            out.count(arg.weight_sets.len());
            for weights in &arg.weight_sets {
                out.count(weights.len());
                out.u32s(weights);
            }
            let ids = arg.ids.as_deref().unwrap_or_default();
            out.count(ids.len());
            for id in ids {
                out.i32(id.0);
            }
        }
    }
}
