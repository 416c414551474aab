//! The order in which devices and classes are printed, so that classes keep their numbers.
//!
//! A text does not number classes: reading it does, in the order in which they are first named.
//! Devices come first in a text. So where devices in the order of their numbers would mix the
//! classes up, the first device of each class goes ahead. Classes without devices get the numbers
//! that are left, by name.

use std::collections::{BTreeMap, BTreeSet};

use super::labels::Labels;
use crate::map::Map;
use crate::{ClassId, ItemId};

pub(super) struct Order {
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
        let mut by_name: Vec<(&String, ClassId)> =
            labels.classes.iter().map(|(&class, name)| (name, class)).collect();
        by_name.retain(|(_, class)| !first.contains_key(class));
        by_name.sort_unstable();
        let classes = first.keys().copied().chain(by_name.into_iter().map(|(_, class)| class));
        Self {
            classes: classes.zip(0..).collect(),
            devices: ahead.iter().copied().chain(others).collect(),
        }
    }
}
