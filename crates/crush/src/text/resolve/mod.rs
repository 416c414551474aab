//! Turns the tree of a text into a map: resolves names and numbers.

mod buckets;
mod choose_args;
mod rules;

use std::collections::{HashMap, HashSet};

use super::error::{ParseError, Problem, shown};
use super::is_type_name;
use super::lexer::{Place, Word};
use super::syntax::{DeviceDecl, Entry, Text};
use crate::check::{self, MAX_DEVICES};
use crate::map::{Map, Parts};
use crate::names::ClassId;
use crate::shadow::{self, RequestedIds};
use crate::{BucketId, ItemId, Tunables, TypeId};

/// The tunables' names in text maps.
pub(super) const TUNABLES: [&str; 10] = [
    "choose_local_tries",
    "choose_local_fallback_tries",
    "choose_total_tries",
    "chooseleaf_descend_once",
    "chooseleaf_vary_r",
    "chooseleaf_stable",
    "straw_calc_version",
    "allowed_bucket_algs",
    "msr_descents",
    "msr_collision_tries",
];

/// The map that a text describes.
pub(super) fn map(text: &Text<'_>) -> Result<Map, ParseError> {
    let mut compiler = Compiler::new();
    for &(name, value) in &text.tunables {
        compiler.tunable(name, value)?;
    }
    for device in &text.devices {
        compiler.device(device)?;
    }
    for &(number, name) in &text.types {
        compiler.kind(number, name)?;
    }
    compiler.reserve_ids(text)?;
    let mut rule_seen = false;
    for entry in &text.entries {
        match entry {
            Entry::Bucket(bucket) => {
                if rule_seen && !compiler.parts.classes.names.is_empty() {
                    let problem = Problem::AfterRules { bucket: shown(bucket.name.text) };
                    return Err(problem.at(bucket.kind.place));
                }
                compiler.bucket(bucket)?;
            }
            Entry::Rule(rule) => {
                if !std::mem::replace(&mut rule_seen, true) {
                    let made = shadow::make(&mut compiler.parts, &compiler.requested);
                    made.map_err(|shadow::TooMany| Problem::TooManyShadows.at(rule.place))?;
                    compiler.index_buckets();
                }
                compiler.rule(rule)?;
            }
        }
    }
    for args in &text.choose_args {
        compiler.choose_args(args)?;
    }
    Map::new(compiler.parts).map_err(|e| Problem::from(e).at(text.end))
}

/// The state of the compiler.
struct Compiler {
    parts: Parts,
    /// The index of a bucket in the parts.
    index: HashMap<BucketId, usize>,
    /// Number of levels below a bucket, with its own.
    levels: HashMap<BucketId, usize>,
    types: HashMap<String, TypeId>,
    items: HashMap<String, ItemId>,
    classes: HashMap<String, ClassId>,
    rules: HashSet<String>,
    /// Numbers that the text gives to shadows.
    requested: RequestedIds,
    /// All numbers of buckets that the text gives, and all numbers assigned since.
    taken: HashSet<BucketId>,
    /// No number before this one is free.
    next_id: BucketId,
}

impl Compiler {
    fn new() -> Self {
        Self {
            parts: Parts { tunables: Tunables::LEGACY, ..Parts::default() },
            index: HashMap::new(),
            levels: HashMap::new(),
            types: HashMap::new(),
            items: HashMap::new(),
            classes: HashMap::new(),
            rules: HashSet::new(),
            requested: RequestedIds::new(),
            taken: HashSet::new(),
            next_id: BucketId(-1),
        }
    }

    fn tunable(&mut self, name: Word<'_>, value: Word<'_>) -> Result<(), ParseError> {
        let tunables = &mut self.parts.tunables;
        let most_u8 = i64::from(u8::MAX);
        let number = |most| value.number("the value of this tunable", 0, most);
        let wide = || number(u32::MAX.into()).map(|number| number as u32);
        match name.text {
            "choose_local_tries" => tunables.choose_local_tries = wide()?,
            "choose_local_fallback_tries" => tunables.choose_local_fallback_tries = wide()?,
            "choose_total_tries" => tunables.choose_total_tries = wide()?,
            "chooseleaf_descend_once" => tunables.chooseleaf_descend_once = wide()? != 0,
            "chooseleaf_vary_r" => tunables.chooseleaf_vary_r = number(most_u8)? as u8,
            "chooseleaf_stable" => tunables.chooseleaf_stable = number(most_u8)? != 0,
            "straw_calc_version" => tunables.straw_calc_version = number(most_u8)? as u8,
            "allowed_bucket_algs" => tunables.allowed_bucket_algs = wide()?,
            "msr_descents" => tunables.msr_descents = wide()?,
            "msr_collision_tries" => tunables.msr_collision_tries = wide()?,
            _ => return Err(unknown("tunable", name, &TUNABLES)),
        }
        check::tunables(tunables).map_err(|e| Problem::from(e).at(value.place))
    }

    fn device(&mut self, device: &DeviceDecl<'_>) -> Result<(), ParseError> {
        let most = i64::from(MAX_DEVICES) - 1;
        let number = device.number.number("the number of a device", 0, most)?;
        // Below MAX_DEVICES.
        let item = ItemId(number as i32);
        if self.parts.names.items.contains_key(&item) {
            return Err(duplicate("device", device.number));
        }
        self.name_item(item, device.name)?;
        let devices = &mut self.parts.min_devices;
        *devices = (*devices).max(number as u32 + 1);
        if let Some(class) = device.class {
            let class = self.class(class);
            self.parts.classes.of_item.insert(item, class);
        }
        Ok(())
    }

    fn kind(&mut self, number: Word<'_>, name: Word<'_>) -> Result<(), ParseError> {
        let kind = TypeId(number.number("the number of a type", 0, u16::MAX.into())? as u16);
        if !is_type_name(name.text, kind == TypeId::DEVICE) {
            return Err(name.expected("a name that is no keyword of the language"));
        }
        if self.parts.names.types.insert(kind, name.text.to_owned()).is_some() {
            return Err(duplicate("type", number));
        }
        match self.types.insert(name.text.to_owned(), kind) {
            None => Ok(()),
            Some(_) => Err(duplicate("type", name)),
        }
    }

    /// Gives an item its name.
    fn name_item(&mut self, item: ItemId, name: Word<'_>) -> Result<(), ParseError> {
        if self.items.insert(name.text.to_owned(), item).is_some() {
            return Err(duplicate("bucket or device", name));
        }
        self.parts.names.items.insert(item, name.text.to_owned());
        Ok(())
    }

    /// The class with that name. A new class gets the next number.
    fn class(&mut self, name: Word<'_>) -> ClassId {
        if let Some(&class) = self.classes.get(name.text) {
            return class;
        }
        let class = ClassId(i32::try_from(self.classes.len()).unwrap_or(i32::MAX));
        self.classes.insert(name.text.to_owned(), class);
        self.parts.classes.names.insert(class, name.text.to_owned());
        class
    }

    fn type_named(&self, name: Word<'_>) -> Result<TypeId, ParseError> {
        let kind = self.types.get(name.text).copied();
        kind.ok_or_else(|| undefined("type", name))
    }

    fn item_named(&self, name: Word<'_>) -> Result<ItemId, ParseError> {
        let item = self.items.get(name.text).copied();
        item.ok_or_else(|| undefined("bucket or device", name))
    }

    fn index_buckets(&mut self) {
        let buckets = self.parts.buckets.iter().enumerate();
        self.index = buckets.map(|(at, bucket)| (bucket.id, at)).collect();
    }
}

fn duplicate(what: &'static str, word: Word<'_>) -> ParseError {
    Problem::Duplicate { what, name: shown(word.text) }.at(word.place)
}

fn undefined(what: &'static str, word: Word<'_>) -> ParseError {
    Problem::Undefined { what, name: shown(word.text) }.at(word.place)
}

fn unknown(what: &'static str, word: Word<'_>, known: &[&str]) -> ParseError {
    let known = known.join(", ");
    Problem::Unknown { what, found: shown(word.text), known }.at(word.place)
}

/// Adds a place to an error of the general checks.
fn at<T>(result: Result<T, check::BuildError>, place: Place) -> Result<T, ParseError> {
    result.map_err(|e| Problem::from(e).at(place))
}
