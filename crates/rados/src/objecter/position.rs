//! The order of a pool's objects, in which an OSD gives the ranges of its backoffs.
//!
//! Objects are sorted by pool, by the reversed bits of their hash (so that the objects of a group,
//! and of its children after a split, are neighbours), by namespace, by key (the name, if there is
//! no key), by name, and by snapshot. A position of its own lies behind all others.

use std::cmp::Ordering;

use crate::cluster::{ObjectName, SnapId};
use crate::message::osd::ObjectPosition;

/// A position whose texts are elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position<'a> {
    is_max: bool,
    pool: i64,
    hash: u32,
    namespace: &'a str,
    key: &'a str,
    name: &'a str,
    snapshot: SnapId,
}

impl<'a> Position<'a> {
    /// Where the requests for an object lie: at its present state, whatever they read.
    pub fn of_object(object: &'a ObjectName, pool: i64, hash: u32) -> Self {
        Self {
            is_max: false,
            pool,
            hash,
            namespace: &object.namespace,
            key: &object.key,
            name: &object.name,
            snapshot: SnapId::HEAD,
        }
    }

    fn effective_key(&self) -> &'a str {
        if self.key.is_empty() { self.name } else { self.key }
    }

    fn compare(&self, other: &Position<'_>) -> Ordering {
        let by_max = self.is_max.cmp(&other.is_max);
        if by_max != Ordering::Equal || self.is_max {
            return by_max;
        }
        (self.pool.cmp(&other.pool))
            .then_with(|| self.hash.reverse_bits().cmp(&other.hash.reverse_bits()))
            .then_with(|| self.namespace.cmp(other.namespace))
            .then_with(|| self.effective_key().cmp(other.effective_key()))
            .then_with(|| self.name.cmp(other.name))
            .then_with(|| self.snapshot.cmp(&other.snapshot))
    }

    /// True if the range from `begin` to before `end` has this position. A range whose ends are
    /// equal has one position.
    pub fn is_within(&self, begin: &ObjectPosition, end: &ObjectPosition) -> bool {
        match self.compare(&begin.into()) {
            Ordering::Less => false,
            Ordering::Equal => true,
            Ordering::Greater => self.compare(&end.into()) == Ordering::Less,
        }
    }
}

impl<'a> From<&'a ObjectPosition> for Position<'a> {
    fn from(position: &'a ObjectPosition) -> Self {
        Self {
            is_max: position.is_max,
            pool: position.pool.0,
            hash: position.hash,
            namespace: &position.namespace,
            key: &position.key,
            name: &position.name,
            snapshot: position.snapshot,
        }
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_crush::osdmap::PoolId;

    use super::*;

    fn position(hash: u32, name: &str) -> ObjectPosition {
        ObjectPosition {
            is_max: false,
            pool: PoolId(1),
            hash,
            namespace: String::new(),
            key: String::new(),
            name: name.to_owned(),
            snapshot: SnapId(0),
        }
    }

    fn object(name: &str) -> ObjectName {
        ObjectName::new(PoolId(1), "", name)
    }

    #[test]
    fn a_group_is_a_range() {
        // Group 1 of 4: hashes that end with the bits 01. The next in the order end with 11.
        let (begin, end) = (position(0b01, ""), position(0b11, ""));
        for hash in 0..64 {
            let within = Position::of_object(&object("x"), 1, hash).is_within(&begin, &end);
            assert_eq!(within, hash & 0b11 == 0b01, "{hash:#b}");
        }
        // The last group ends behind all objects.
        let max = ObjectPosition { is_max: true, ..position(0, "") };
        assert!(Position::of_object(&object("x"), 1, u32::MAX).is_within(&end, &max));
        assert!(!Position::of_object(&object("x"), 1, 0).is_within(&end, &max));
        assert!(!Position::of_object(&object("x"), 2, 0b01).is_within(&begin, &end));
    }

    #[test]
    fn equal_ends_are_one_object() {
        let only = ObjectPosition { snapshot: SnapId::HEAD, ..position(5, "b") };
        for (name, expected) in [("a", false), ("b", true), ("c", false)] {
            let object = object(name);
            let position = Position::of_object(&object, 1, 5);
            assert_eq!(position.is_within(&only, &only), expected);
        }
    }

    #[test]
    fn a_key_stands_before_the_name() {
        let keyed = ObjectName { key: "a".into(), ..object("z") };
        let (begin, end) = (position(5, "a"), position(5, "b"));
        assert!(Position::of_object(&keyed, 1, 5).is_within(&begin, &end));
        assert!(!Position::of_object(&object("z"), 1, 5).is_within(&begin, &end));
    }
}
