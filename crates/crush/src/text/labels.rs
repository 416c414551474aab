//! The names in a printed map: an item's own name, or a generated one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{is_name, is_type_name};
use crate::check::MAX_DEVICES;
use crate::map::Map;
use crate::rule::RuleStep;
use crate::{BucketId, ClassId, ItemId, OsdId, RuleId, TypeId};

/// Names for all items of a text; no two are equal.
pub(super) struct Labels {
    pub types: BTreeMap<TypeId, String>,
    /// Devices, and buckets that are not shadows.
    pub items: BTreeMap<ItemId, String>,
    pub rules: BTreeMap<RuleId, String>,
    pub classes: BTreeMap<ClassId, String>,
    /// The original and the class of a shadow.
    pub shadows: HashMap<BucketId, (BucketId, ClassId)>,
}

impl Labels {
    pub(super) fn of(map: &Map) -> Self {
        let shadows = shadows(map);
        let (names, classes) = (map.names(), map.classes());
        let kinds: BTreeSet<TypeId> = kinds(map).chain(names.types.keys().copied()).collect();
        let types = label(
            &kinds,
            |kind| names.types.get(&kind),
            |kind, name| is_type_name(name, kind == TypeId::DEVICE),
            |kind| match kind {
                TypeId::DEVICE => "osd".to_owned(),
                TypeId(number) => format!("type{number}"),
            },
        );
        let buckets = map.buckets().map(|bucket| bucket.id);
        let plain = buckets.filter(|id| !shadows.contains_key(id)).map(ItemId::from);
        let items = label(
            &plain.chain(devices(map)).collect(),
            |item| names.items.get(&item),
            |_, name| is_name(name),
            |item| match item.osd() {
                Some(OsdId(osd)) => format!("osd.{osd}"),
                None => format!("bucket{}", !item.0),
            },
        );
        let rules = label(
            &map.rules().map(|(id, _)| id).collect(),
            |id| names.rules.get(&id),
            |_, name| is_name(name),
            |id| format!("rule{}", id.0),
        );
        let used = classes.of_item.values().chain(shadows.values().map(|(_, class)| class));
        let classes = label(
            &used.copied().collect(),
            |class| classes.names.get(&class),
            |_, name| is_name(name),
            |class| format!("class{}", class.0),
        );
        Self { types, items, rules, classes, shadows }
    }
}

/// The own name if it can be written and is not in use, else a generated name.
fn label<'a, Id: Copy + Ord>(
    ids: &BTreeSet<Id>,
    own: impl Fn(Id) -> Option<&'a String>,
    is_valid: impl Fn(Id, &str) -> bool,
    made_up: impl Fn(Id) -> String,
) -> BTreeMap<Id, String> {
    let mut labels = BTreeMap::new();
    let mut taken = HashSet::new();
    for &id in ids {
        if let Some(name) = own(id).filter(|name| is_valid(id, name))
            && taken.insert(name.clone())
        {
            labels.insert(id, name.clone());
        }
    }
    for &id in ids {
        labels.entry(id).or_insert_with(|| {
            let mut name = made_up(id);
            while !taken.insert(name.clone()) {
                name.push('_');
            }
            name
        });
    }
    labels
}

/// Types that are in use.
fn kinds(map: &Map) -> impl Iterator<Item = TypeId> {
    let steps = map.rules().flat_map(|(_, rule)| &rule.steps);
    let of_steps = steps.filter_map(|step| match *step {
        RuleStep::ChooseFirstn { kind, .. }
        | RuleStep::ChooseIndep { kind, .. }
        | RuleStep::ChooseleafFirstn { kind, .. }
        | RuleStep::ChooseleafIndep { kind, .. }
        | RuleStep::ChooseMsr { kind, .. } => Some(kind),
        _ => None,
    });
    map.buckets().map(|bucket| bucket.kind).chain(of_steps)
}

/// Devices that have a name or a class, or are in a bucket or a rule.
fn devices(map: &Map) -> impl Iterator<Item = ItemId> {
    let steps = map.rules().flat_map(|(_, rule)| &rule.steps);
    let taken = steps.filter_map(|step| match *step {
        RuleStep::Take(item) if map.contains(item) => Some(item),
        _ => None,
    });
    let named = map.names().items.keys().chain(map.classes().of_item.keys());
    let held = map.buckets().flat_map(|bucket| &bucket.items);
    let is_device = |item: &ItemId| item.osd().is_some_and(|OsdId(osd)| osd < MAX_DEVICES);
    named.chain(held).copied().chain(taken).filter(is_device)
}

/// The shadows that a text need not describe: buckets that the classes list as shadows, except
/// those that ordinary buckets hold.
fn shadows(map: &Map) -> HashMap<BucketId, (BucketId, ClassId)> {
    let mut shadows = HashMap::new();
    for (&original, of_class) in &map.classes().shadows {
        for (&class, &shadow) in of_class {
            let exist = map.bucket(original).is_some() && map.bucket(shadow).is_some();
            if exist && original != shadow {
                shadows.entry(shadow).or_insert((original, class));
            }
        }
    }
    // A bucket is ordinary if it is below an ordinary bucket, or if it has a shadow itself.
    let originals: HashSet<BucketId> = shadows.values().map(|&(original, _)| original).collect();
    let plain = map.buckets().map(|bucket| bucket.id);
    let mut open: Vec<BucketId> =
        plain.filter(|id| !shadows.contains_key(id) || originals.contains(id)).collect();
    while let Some(id) = open.pop() {
        shadows.remove(&id);
        let items = map.bucket(id).map_or(&[][..], |bucket| &bucket.items);
        let children = items.iter().filter_map(|item| item.bucket());
        open.extend(children.filter(|child| shadows.remove(child).is_some()));
    }
    shadows
}
