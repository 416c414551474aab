//! A pool: its objects and its snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fieldstone_crush::osdmap::StringHash;
use fieldstone_rados::cluster::{ObjectName, PoolInfo, SnapContext, SnapId};
use slab::Slab;

use super::execution::{Effect, Execution, Outcome, Request};
use super::index::Index;
use super::object::Object;

/// Names an object in its pool: namespace, locator key, name.
pub type ObjectKey = (Arc<str>, Arc<str>, Arc<str>);

/// An object with its name.
pub(super) struct Slot {
    pub(super) key: ObjectKey,
    pub(super) object: Object,
}

/// A pool.
pub struct Pool {
    /// What clients know of it.
    pub info: PoolInfo,
    pub(super) slots: Slab<Slot>,
    /// The slots in the order of names.
    order: BTreeMap<ObjectKey, usize>,
    /// The slots by the seeds of placement, if [`Pool::index_by`] was called.
    pub(super) index: Option<Index>,
    newest_snap: SnapId,
    removed_snaps: BTreeSet<SnapId>,
    /// The version of the newest write.
    pub(super) newest_version: u64,
}

/// The key of an object.
#[must_use]
pub(crate) fn key_of(name: &ObjectName) -> ObjectKey {
    (Arc::clone(&name.namespace), Arc::clone(&name.key), Arc::clone(&name.name))
}

impl Pool {
    /// A pool without objects.
    #[must_use]
    pub fn new(info: PoolInfo) -> Self {
        Self {
            info,
            slots: Slab::new(),
            order: BTreeMap::new(),
            index: None,
            newest_snap: SnapId(0),
            removed_snaps: BTreeSet::new(),
            newest_version: 0,
        }
    }

    /// Finds objects by the seed of their placement from now on, which requests carry.
    pub(crate) fn index_by(&mut self, hash: StringHash) {
        if self.index.as_ref().is_some_and(|index| index.hash() == hash) {
            return;
        }
        let mut index = Index::new(hash);
        self.slots.iter().for_each(|(slot, Slot { key, .. })| index.insert(key, slot));
        self.index = Some(index);
    }

    /// An object, also if it is a whiteout.
    #[must_use]
    pub fn object(&self, key: &ObjectKey) -> Option<&Object> {
        self.order.get(key).map(|&slot| &self.slots[slot].object)
    }

    /// All objects in order of their keys, whiteouts too.
    pub fn objects(&self) -> impl Iterator<Item = (&ObjectKey, &Object)> {
        self.order.iter().map(|(key, &slot)| (key, &self.slots[slot].object))
    }

    /// The objects behind a key, in order, whiteouts too.
    pub fn objects_after<'a>(
        &'a self,
        after: Option<&ObjectKey>,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Object)> {
        use std::ops::Bound;
        let start = after.cloned().map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.order.range((start, Bound::Unbounded));
        behind.map(|(key, &slot)| (key, &self.slots[slot].object))
    }

    /// The slot of an object, a new one if there is none.
    pub(super) fn slot(&mut self, key: &ObjectKey) -> usize {
        if let Some(&slot) = self.order.get(key) {
            return slot;
        }
        let slot = self.slots.insert(Slot { key: key.clone(), object: Object::default() });
        self.order.insert(key.clone(), slot);
        if let Some(index) = &mut self.index {
            index.insert(key, slot);
        }
        slot
    }

    fn remove(&mut self, slot: usize) {
        let Slot { key, .. } = self.slots.remove(slot);
        self.order.remove(&key);
        if let Some(index) = &mut self.index {
            index.remove(&key, slot);
        }
    }

    /// A new number for a snapshot.
    pub fn create_snap(&mut self) -> SnapId {
        self.newest_snap.0 += 1;
        self.newest_snap
    }

    /// Removes a snapshot, and at once what only it keeps. A real cluster takes its time for that.
    pub fn remove_snap(&mut self, snap: SnapId) {
        if self.removed_snaps.insert(snap) {
            self.newest_snap = self.newest_snap.max(snap);
            let all = self.slots.iter_mut();
            let gone: Vec<usize> = all
                .filter_map(|(slot, entry)| (!entry.object.remove_snap(snap)).then_some(slot))
                .collect();
            gone.into_iter().for_each(|slot| self.remove(slot));
        }
    }

    /// True if the snapshot was removed.
    #[must_use]
    pub fn is_removed(&self, snap: SnapId) -> bool {
        self.removed_snaps.contains(&snap)
    }

    /// Executes a request: changes the object, and answers.
    #[must_use]
    pub fn execute(&mut self, key: &ObjectKey, request: &Request<'_>) -> Outcome {
        let mut outcome = Execution::run(&self.info, self.object(key), request);
        let is_stored =
            |effect: &Effect| matches!(effect, Effect::Watch { .. } | Effect::Unwatch { .. });
        if outcome.changes.is_empty() && !outcome.effects.iter().any(is_stored) {
            return outcome;
        }
        self.newest_version += 1;
        outcome.reply.user_version = self.newest_version;
        self.commit(key, request, &mut outcome);
        outcome
    }

    fn commit(&mut self, key: &ObjectKey, request: &Request<'_>, outcome: &mut Outcome) {
        if !outcome.existed && !outcome.exists && !self.order.contains_key(key) {
            return;
        }
        let filtered;
        let mut context = request.snap_context;
        if context.snaps.iter().any(|snap| self.removed_snaps.contains(snap)) {
            let snaps =
                context.snaps.iter().copied().filter(|snap| !self.removed_snaps.contains(snap));
            filtered = SnapContext { seq: context.seq, snaps: snaps.collect() };
            context = &filtered;
        }
        let slot = self.slot(key);
        let object = &mut self.slots[slot].object;
        let needs_whiteout = object.needs_whiteout(context);
        object.prepare_write(context, outcome.existed, &outcome.changed);
        for change in outcome.changes.drain(..) {
            object.apply(change);
        }
        if !outcome.exists {
            outcome.effects.push(Effect::Deleted);
            if !needs_whiteout {
                self.remove(slot);
                return;
            }
        }
        object.is_whiteout = !outcome.exists;
        object.head.modified = request.now;
        object.head.user_version = self.newest_version;
    }
}
