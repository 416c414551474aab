//! The data objects of an image: which exist, and at which snapshots they changed.
//!
//! The object maps say it for all objects at once. Without maps, each object is asked for its
//! clones: a clone is the state of an object that some snapshots see.

use fieldstone_rados::cluster::{Operation, SnapId};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::results::Snapshots;
use fieldstone_rados::op::{ALL_SNAPSHOTS, ObjectOps};
use fieldstone_rbd::RbdError;
use fieldstone_rbd::format::{Features, ObjectMap, ObjectState, class, features, names};
use fieldstone_rbd::header::Header;
use fieldstone_rbd::store::Store;

use super::flight::{REQUESTS_AT_ONCE, in_flight};

/// An image and its objects.
pub(super) struct Objects {
    /// The header.
    pub header: Header,
    /// The place of the header.
    pub store: Store,
    /// The image, for messages.
    pub path: String,
}

/// The versions of an object that states of the image see: `None` where it does not exist.
pub(super) type Versions = Vec<Option<SnapId>>;

impl Objects {
    /// The place of the data objects.
    fn data(&self) -> Store {
        self.header.data_pool.map_or_else(|| self.store.clone(), |pool| self.store.with_pool(pool))
    }

    /// All states of the image, oldest first: its snapshots, and the present.
    pub(super) fn states(&self) -> Vec<SnapId> {
        let snapshots = self.header.snapshots.iter().map(|snapshot| snapshot.info.id);
        snapshots.chain([SnapId::HEAD]).collect()
    }

    /// How many objects there are at any of the states.
    fn most_objects(&self, states: &[SnapId]) -> u64 {
        let sizes = states.iter().filter_map(|&state| self.header.size_at(state));
        sizes.map(|size| self.header.layout.objects(size)).max().unwrap_or(0)
    }

    /// The bytes of an image of this size that an object can hold.
    pub(super) fn bytes_in(&self, object: u64, size_bytes: u64) -> u64 {
        let layout = &self.header.layout;
        let parts = layout.unmap(object, 0, layout.object_bytes());
        let inside = |offset: u64, len: u64| size_bytes.saturating_sub(offset).min(len);
        parts.iter().map(|part| inside(part.offset_bytes, part.len_bytes)).sum()
    }

    /// The object maps of the states, if they can tell what changed from each to the next.
    pub(super) async fn maps(&self, states: &[SnapId]) -> Result<Option<Vec<ObjectMap>>, RbdError> {
        let fast_diff = self.header.features.has(Features::FAST_DIFF);
        let flags = |state| match self.header.snapshot(state) {
            Some(snapshot) => snapshot.flags,
            None => self.header.flags,
        };
        let is_valid = |&state: &SnapId| {
            self.header.has_valid_object_map(state)
                && flags(state) & features::FLAG_FAST_DIFF_INVALID == 0
        };
        if !fast_diff || !states.iter().all(is_valid) {
            return Ok(None);
        }
        let mut maps = Vec::new();
        for &state in states {
            let mut ops = ObjectOps::new();
            class::object_map_load(&mut ops);
            let sent = self.store.send(&names::object_map(&self.header.id, state), ops).await;
            let failed = |errno| RbdError::cluster(&self.path, "reading the object map", errno);
            let reply = sent.map_err(failed)?;
            let data = reply.ops.first().map(|op| op.data.clone()).unwrap_or_default();
            let map = ObjectMap::decode(&data);
            maps.push(map.map_err(|fault| RbdError::damaged(&self.path, &fault))?);
        }
        Ok(Some(maps))
    }

    /// Asks each object which of its versions the states see, and hands the answers to `each`, in
    /// the order of objects. Objects that never existed are left out.
    pub(super) async fn each_history(
        &self,
        states: &[SnapId],
        mut each: impl FnMut(u64, &Versions),
        mut progress: impl FnMut(u64, u64),
    ) -> anyhow::Result<()> {
        let (data, total) = (self.data(), self.most_objects(states));
        let mut done = 0;
        let asked = (0..total).map(|object| self.history(&data, object));
        in_flight(REQUESTS_AT_ONCE, asked, |history| {
            if let Some(history) = history? {
                let seen = |&state: &SnapId| version_at(&history, state);
                each(done, &states.iter().map(seen).collect());
            }
            done += 1;
            progress(done, total);
            Ok(())
        })
        .await
    }

    fn history(
        &self,
        data: &Store,
        object: u64,
    ) -> impl Future<Output = Result<Option<Snapshots>, RbdError>> + use<> {
        let mut ops = ObjectOps::new();
        ops.list_snaps();
        let name = data.object(&names::data(&self.header.prefix, object));
        let mut operation = Operation::new(name, ops);
        operation.snapshot = ALL_SNAPSHOTS;
        let (sent, path) = (data.cluster.operate(operation), self.path.clone());
        async move {
            let reply = match sent.await {
                Ok(reply) => reply,
                Err(Errno::ENOENT) => return Ok(None),
                Err(errno) => {
                    return Err(RbdError::cluster(&path, "listing the clones of an object", errno));
                }
            };
            let data = reply.ops.first().map(|op| op.data.clone()).unwrap_or_default();
            let history = Snapshots::decode(&data);
            history.map(Some).map_err(|fault| RbdError::damaged(&path, &fault))
        }
    }
}

/// The version of an object that a state of the image sees.
fn version_at(history: &Snapshots, state: SnapId) -> Option<SnapId> {
    let sees = |id: SnapId, snaps: &[SnapId]| match id {
        // The present version is also what the snapshots see that were made after the last write.
        SnapId::HEAD => state == SnapId::HEAD || state > history.seq,
        _ => snaps.contains(&state),
    };
    history.clones.iter().find(|clone| sees(clone.id, &clone.snaps)).map(|clone| clone.id)
}

/// True if an object has changed between the state of the first map and that of the last. All maps
/// in between are needed: each tells what changed since the one before.
pub(super) fn changed_in(maps: &[ObjectMap], object: u64) -> bool {
    let Some((first, later)) = maps.split_first() else { return false };
    let mut before = first.get(object);
    for map in later {
        let now = map.get(object);
        let is_same = match now {
            ObjectState::Nonexistent => before == ObjectState::Nonexistent,
            ObjectState::ExistsClean => before.may_exist(),
            ObjectState::Exists | ObjectState::Pending => false,
        };
        if !is_same {
            return true;
        }
        before = now;
    }
    false
}

#[cfg(test)]
mod tests {
    use fieldstone_rados::op::results::ObjectClone;

    use super::*;

    fn clone(id: u64, snaps: &[u64]) -> ObjectClone {
        let snaps = snaps.iter().map(|&snap| SnapId(snap)).collect();
        ObjectClone { id: SnapId(id), snaps, ..ObjectClone::default() }
    }

    #[test]
    fn states_see_versions() {
        let head = ObjectClone { id: SnapId::HEAD, ..ObjectClone::default() };
        let clones = vec![clone(4, &[3, 4]), clone(6, &[6]), head];
        let history = Snapshots { clones, seq: SnapId(6) };
        let at = |snap| version_at(&history, SnapId(snap));
        assert_eq!(at(2), None, "made later");
        assert_eq!(at(3), Some(SnapId(4)));
        assert_eq!(at(6), Some(SnapId(6)));
        assert_eq!(at(7), Some(SnapId::HEAD));
        assert_eq!(version_at(&history, SnapId::HEAD), Some(SnapId::HEAD));

        let deleted = Snapshots { clones: vec![clone(4, &[4])], seq: SnapId(4) };
        assert_eq!(version_at(&deleted, SnapId::HEAD), None);
        assert_eq!(version_at(&deleted, SnapId(5)), None);
        assert_eq!(version_at(&deleted, SnapId(4)), Some(SnapId(4)));
    }

    #[test]
    fn maps_tell_what_changed() {
        let maps = |states: &[ObjectState]| -> Vec<ObjectMap> {
            let map = |&state| {
                let mut map = ObjectMap::new(1);
                map.set(0, state);
                map
            };
            states.iter().map(map).collect()
        };
        use ObjectState::{Exists, ExistsClean, Nonexistent};
        for (states, changed) in [
            (&[Exists, ExistsClean][..], false),
            (&[Exists, Exists], true),
            (&[Nonexistent, Nonexistent], false),
            (&[Nonexistent, Exists, ExistsClean], true),
            (&[Exists, Nonexistent, Nonexistent], true),
            (&[ExistsClean, ExistsClean, ExistsClean], false),
            (&[Exists], false),
        ] {
            assert_eq!(changed_in(&maps(states), 0), changed, "{states:?}");
        }
    }
}
