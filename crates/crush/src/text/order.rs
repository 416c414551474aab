//! The order in which devices, buckets and classes are printed, so that classes keep their numbers.
//!
//! A text does not number classes: reading it does, in the order in which they are first named.
//! Devices come first in a text. So where devices in the order of their numbers would mix the
//! classes up, the first device of each class goes ahead. Classes without devices follow as the
//! buckets name them, each bucket in the order of their numbers. (If all buckets have all shadows, that
//! is the order of the numbers. If not, the numbers may change once, and then stay.)
//!
//! A bucket stands after those that it holds.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::labels::Labels;
use crate::map::Map;
use crate::{Bucket, BucketId, ClassId, ItemId};

pub(super) struct Order {
    /// All buckets but shadows.
    pub buckets: Vec<BucketId>,
    /// All devices that have a line.
    pub devices: Vec<ItemId>,
    /// The place of every class among all.
    pub classes: BTreeMap<ClassId, usize>,
}

impl Order {
    pub(super) fn of(map: &Map, labels: &Labels) -> Self {
        let devices = || labels.items.keys().copied().filter(|item| item.osd().is_some());
        let mut first = BTreeMap::new();
        for device in devices() {
            if let Some(&class) = map.classes().of_item.get(&device) {
                first.entry(class).or_insert(device);
            }
        }
        let ahead: Vec<ItemId> = first.values().copied().collect();
        let ahead = if ahead.is_sorted() { Vec::new() } else { ahead };
        let is_ahead: BTreeSet<ItemId> = ahead.iter().copied().collect();
        let others = devices().filter(|device| !is_ahead.contains(device));
        let buckets = buckets(map, labels);
        let mut named: Vec<ClassId> = first.keys().copied().collect();
        for class in classes_of_buckets(&buckets, labels) {
            if !named.contains(&class) {
                named.push(class);
            }
        }
        Self {
            buckets,
            classes: named.into_iter().zip(0..).collect(),
            devices: ahead.iter().copied().chain(others).collect(),
        }
    }
}

/// The buckets that are no shadows, children first.
fn buckets(map: &Map, labels: &Labels) -> Vec<BucketId> {
    let (mut order, mut seen) = (Vec::new(), HashSet::new());
    for bucket in map.buckets().filter(|bucket| !labels.shadows.contains_key(&bucket.id)) {
        after_children(map, bucket, &mut seen, &mut order);
    }
    order
}

/// Trees are not deeper than the bound of all maps.
fn after_children(
    map: &Map,
    bucket: &Bucket,
    seen: &mut HashSet<BucketId>,
    order: &mut Vec<BucketId>,
) {
    if !seen.insert(bucket.id) {
        return;
    }
    for child in bucket.items.iter().filter_map(|item| map.bucket(item.bucket()?)) {
        after_children(map, child, seen, order);
    }
    order.push(bucket.id);
}

/// The classes that buckets have shadows of, bucket by bucket.
fn classes_of_buckets(buckets: &[BucketId], labels: &Labels) -> Vec<ClassId> {
    let mut of_bucket: HashMap<BucketId, BTreeSet<ClassId>> = HashMap::new();
    for &(original, class) in labels.shadows.values() {
        of_bucket.entry(original).or_default().insert(class);
    }
    buckets.iter().filter_map(|bucket| of_bucket.get(bucket)).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use crate::text::{parse, print};

    #[test]
    fn classes_without_devices_keep_their_numbers() {
        let text = "device 0 osd.0 class hdd\ntype 0 osd\ntype 1 host\ntype 2 root\n\
                    host a { id -2 id -6 class ssd alg straw2 item osd.0 weight 1.0 }\n\
                    host b { id -3 id -9 class nvme alg straw2 item osd.0 weight 2.0 }\n\
                    root r { id -1 alg straw2 item a weight 1.0 item b weight 2.0 }\n\
                    rule x { id 0 type replicated step take r step emit }\n";
        let map = parse(text).expect("a valid text");
        let names: Vec<&str> = map.classes().names.values().map(String::as_str).collect();
        assert_eq!(names, ["hdd", "ssd", "nvme"]);
        let printed = print(&map);
        assert_eq!(parse(&printed).expect("what was printed"), map);
    }
}
