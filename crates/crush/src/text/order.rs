//! The order in which devices and classes are printed, so that classes keep their numbers.
//!
//! A text does not number classes. The reader numbers them in the order in which they are first
//! named. Devices come first in a text. If the order of device numbers would change the order of
//! classes, the first device of each class is printed earlier. Classes without devices follow.

use std::collections::{BTreeMap, BTreeSet};

use super::labels::Labels;
use crate::map::Map;
use crate::{ClassId, ItemId};

pub(super) struct Order {
    /// All devices that get a line.
    pub devices: Vec<ItemId>,
    /// The position of every class in the order.
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
        let without = labels.classes.keys().filter(|class| !first.contains_key(class));
        let classes: Vec<ClassId> = first.keys().chain(without).copied().collect();
        Self {
            classes: classes.into_iter().zip(0..).collect(),
            devices: ahead.iter().copied().chain(others).collect(),
        }
    }
}
