//! A pool: its objects and its snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fieldstone_rados::cluster::{ObjectName, PoolInfo, SnapContext, SnapId};

use super::execution::{Effect, Execution, Outcome, Request};
use super::object::Object;

/// Names an object in its pool: namespace, locator key, name.
pub type ObjectKey = (Arc<str>, Arc<str>, Arc<str>);

/// A pool.
pub struct Pool {
    /// What clients know of it.
    pub info: PoolInfo,
    objects: BTreeMap<ObjectKey, Object>,
    newest_snap: SnapId,
    removed_snaps: BTreeSet<SnapId>,
    /// The version of the newest write.
    newest_version: u64,
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
        let (objects, removed_snaps) = (BTreeMap::new(), BTreeSet::new());
        Self { info, objects, newest_snap: SnapId(0), removed_snaps, newest_version: 0 }
    }

    /// An object, also if it is a whiteout.
    #[must_use]
    pub fn object(&self, key: &ObjectKey) -> Option<&Object> {
        self.objects.get(key)
    }

    /// All objects in order of their keys, whiteouts too.
    pub fn objects(&self) -> impl Iterator<Item = (&ObjectKey, &Object)> {
        self.objects.iter()
    }

    /// The objects behind a key, in order, whiteouts too.
    pub fn objects_after<'a>(
        &'a self,
        after: Option<&ObjectKey>,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Object)> {
        use std::ops::Bound;
        let start = after.cloned().map_or(Bound::Unbounded, Bound::Excluded);
        self.objects.range((start, Bound::Unbounded))
    }

    /// A new number for a snapshot.
    pub fn create_snap(&mut self) -> SnapId {
        self.newest_snap.0 += 1;
        self.newest_snap
    }

    /// Removes a snapshot, and at once what only it keeps. A real cluster takes its time for that.
    /// Returns the objects that are gone.
    pub fn remove_snap(&mut self, snap: SnapId) {
        if self.removed_snaps.insert(snap) {
            self.newest_snap = self.newest_snap.max(snap);
            self.objects.retain(|_, object| object.remove_snap(snap));
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
        let mut outcome = Execution::run(&self.info, self.objects.get(key), request);
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
        if !outcome.existed && !outcome.exists && !self.objects.contains_key(key) {
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
        if !self.objects.contains_key(key) {
            self.objects.insert(key.clone(), Object::default());
        }
        let Some(object) = self.objects.get_mut(key) else { return };
        let needs_whiteout = object.needs_whiteout(context);
        object.prepare_write(context, outcome.existed, &outcome.changed);
        for change in outcome.changes.drain(..) {
            object.apply(change);
        }
        if !outcome.exists {
            outcome.effects.push(Effect::Deleted);
            if !needs_whiteout {
                self.objects.remove(key);
                return;
            }
        }
        object.is_whiteout = !outcome.exists;
        object.head.modified = request.now;
        object.head.user_version = self.newest_version;
    }
}
