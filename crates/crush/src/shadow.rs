//! Makes the shadow trees of device classes, as Ceph's text compiler does.
//!
//! For every root, from the most negative number up, and every class in order of its number, the
//! tree is cloned from the leaves up. The clone of a bucket holds the bucket's devices of the class
//! and the clones of its buckets, even empty clones. A clone's weight in its parent is the sum of
//! its own items. The clone gets the number that the map asks for, or else the first number from -1
//! down that no bucket has and the map does not ask for. Numbers are hashed, so this whole order is
//! part of the placement.
//!
//! **Trap: tree buckets.** Ceph appends the items of a clone one by one. When a tree grows, Ceph
//! adds weights to nodes that it has never cleared. So crushtool's shadows of tree buckets with
//! more than two items differ from run to run, and so do placements in them. Here the nodes are
//! sums.
//!
//! **Trap: uniform buckets.** Ceph makes an empty clone and appends items. An empty uniform bucket
//! has items of weight 0, so it refuses items of another weight. Then Ceph's compiler stops making
//! shadows without a message, and keeps those that it has. This file does the same. Afterwards, it
//! refuses rules that take a class without a shadow.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::check::{MAX_BUCKETS, MAX_SHADOW_ITEMS};
use crate::map::Parts;
use crate::{AlgorithmKind, Bucket, BucketId, ClassId, ItemId};

/// The numbers that the map asks for, by original and class.
pub(crate) type RequestedIds = BTreeMap<(BucketId, ClassId), BucketId>;

/// There would be more shadows than the bounds allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

enum Stop {
    Uniform,
    TooMany,
}

/// Adds the shadows of all buckets to `parts`. The caller has checked that every bucket that is an
/// item exists, that no bucket lies below itself, and that trees are not deeper than
/// [`MAX_DEPTH`](crate::check::MAX_DEPTH).
pub(crate) fn make(parts: &mut Parts, requested: &RequestedIds) -> Result<(), TooMany> {
    let index: HashMap<BucketId, usize> =
        parts.buckets.iter().enumerate().map(|(at, bucket)| (bucket.id, at)).collect();
    let children = parts.buckets.iter().flat_map(|bucket| &bucket.items);
    let held: HashSet<BucketId> = children.filter_map(|item| item.bucket()).collect();
    let roots: BTreeSet<BucketId> = index.keys().copied().filter(|id| !held.contains(id)).collect();
    let classes: Vec<ClassId> = parts.classes.names.keys().copied().collect();
    let taken = index.keys().chain(requested.values()).copied().collect();
    let mut maker = Maker { parts, index, requested, taken, next: BucketId(-1), items: 0 };
    for root in roots {
        for &class in &classes {
            match maker.shadow(root, class) {
                Ok(_) => {}
                Err(Stop::Uniform) => return Ok(()),
                Err(Stop::TooMany) => return Err(TooMany),
            }
        }
    }
    Ok(())
}

struct Maker<'a> {
    parts: &'a mut Parts,
    /// The index of a bucket in the parts.
    index: HashMap<BucketId, usize>,
    requested: &'a RequestedIds,
    taken: HashSet<BucketId>,
    /// No number before this one is free.
    next: BucketId,
    /// Items of all shadows so far.
    items: usize,
}

impl Maker<'_> {
    /// The shadow of a bucket, and its weight. The shadow is made now unless it exists already.
    fn shadow(&mut self, original: BucketId, class: ClassId) -> Result<(BucketId, u32), Stop> {
        let of_class = self.parts.classes.shadows.get(&original);
        if let Some(&shadow) = of_class.and_then(|of_class| of_class.get(&class)) {
            return Ok((shadow, self.parts.buckets[self.index[&shadow]].weight));
        }
        let at = self.index[&original];
        let uniform = self.parts.buckets[at].algorithm.kind() == AlgorithmKind::Uniform;
        let mut items = Vec::new();
        for position in 0..self.parts.buckets[at].items.len() {
            let bucket = &self.parts.buckets[at];
            let (item, weight) = (bucket.items[position], bucket.item_weight(position));
            let (item, weight) = match item.bucket() {
                Some(child) => {
                    let (shadow, weight) = self.shadow(child, class)?;
                    (ItemId::from(shadow), weight)
                }
                None if self.parts.classes.of_item.get(&item) == Some(&class) => (item, weight),
                None => continue,
            };
            if uniform && weight != 0 {
                return Err(Stop::Uniform);
            }
            items.push((item, weight));
        }
        self.items += items.len();
        if self.items > MAX_SHADOW_ITEMS || self.parts.buckets.len() >= MAX_BUCKETS {
            return Err(Stop::TooMany);
        }
        let bucket = &self.parts.buckets[at];
        let (kind, algorithm) = (bucket.kind, bucket.algorithm.kind());
        let id = self.number(original, class);
        let version = self.parts.tunables.straw_calc_version;
        let shadow = Bucket::new(id, kind, algorithm, version, items);
        let weight = shadow.weight;
        self.index.insert(id, self.parts.buckets.len());
        self.parts.buckets.push(shadow);
        self.register(original, class, id);
        Ok((id, weight))
    }

    fn number(&mut self, original: BucketId, class: ClassId) -> BucketId {
        if let Some(&requested) = self.requested.get(&(original, class)) {
            return requested;
        }
        free_number(&self.taken, &mut self.next)
    }

    fn register(&mut self, original: BucketId, class: ClassId, shadow: BucketId) {
        let (names, classes) = (&mut self.parts.names.items, &mut self.parts.classes);
        classes.shadows.entry(original).or_default().insert(class, shadow);
        classes.of_item.insert(shadow.into(), class);
        let name = |id: BucketId| names.get(&id.into()).map_or("", String::as_str);
        let class_name = classes.names.get(&class).map_or("", String::as_str);
        let shadow_name = format!("{}~{class_name}", name(original));
        names.insert(shadow.into(), shadow_name);
    }
}

/// The first number from `next` down that is not taken; `next` moves past it.
pub(crate) fn free_number(taken: &HashSet<BucketId>, next: &mut BucketId) -> BucketId {
    while taken.contains(next) {
        next.0 -= 1;
    }
    let free = *next;
    next.0 -= 1;
    free
}
