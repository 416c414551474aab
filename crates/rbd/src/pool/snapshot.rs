//! Snapshots of images.

use std::rc::Rc;

use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;

use super::create::check_name;
use super::resize::resize;
use super::{Pool, Progress, each_object, or_missing};
use crate::error::RbdError;
use crate::format::class::{ParentSpec, Protection};
use crate::format::request::Work;
use crate::format::{Features, ObjectMap, ObjectState, class, features, names};
use crate::header::{Header, Snapshot};
use crate::image::Core;
use crate::store::answer;

/// How often a snapshot gets a new number, because another client made one at the same time.
const ATTEMPTS: usize = 16;

impl Pool {
    /// The snapshots of an image, oldest first.
    ///
    /// # Errors
    /// There is no such image.
    pub async fn snapshots(&self, image: &str) -> Result<Vec<Snapshot>, RbdError> {
        Ok(self.info(image).await?.snapshots)
    }

    /// Makes a snapshot of an image. Gives its number.
    ///
    /// # Errors
    /// There is a snapshot of this name, or the cluster answers with an error.
    pub async fn create_snapshot(&self, image: &str, name: &str) -> Result<SnapId, RbdError> {
        check_name(name)?;
        self.with_image_or_owner(
            image,
            Work::CreateSnapshot(name.to_owned()),
            &mut |_, _| {},
            |core, _| async move { create(&core, name).await },
            |core| Ok(core.header().snapshot_named(name)?.info.id),
        )
        .await
    }

    /// Removes a snapshot.
    ///
    /// # Errors
    /// There is no such snapshot; it is protected or has clones; or the cluster answers with an
    /// error.
    pub async fn remove_snapshot(&self, image: &str, name: &str) -> Result<(), RbdError> {
        self.with_image_or_owner(
            image,
            Work::RemoveSnapshot(name.to_owned()),
            &mut |_, _| {},
            |core, _| async move {
                let snapshot = core.header().snapshot_named(name)?.info.id;
                self.remove_one(&core, snapshot).await
            },
            |_| Ok(()),
        )
        .await
    }

    /// Protects a snapshot: it cannot be removed.
    ///
    /// # Errors
    /// There is no such snapshot, or the cluster answers with an error.
    pub async fn protect_snapshot(&self, image: &str, name: &str) -> Result<(), RbdError> {
        self.with_image_or_owner(
            image,
            Work::ProtectSnapshot(name.to_owned()),
            &mut |_, _| {},
            |core, _| async move { protect(&core, name).await },
            |_| Ok(()),
        )
        .await
    }

    /// Lifts the protection of a snapshot.
    ///
    /// # Errors
    /// There is no such snapshot, it has clones of format 1, or the cluster answers with an error.
    pub async fn unprotect_snapshot(&self, image: &str, name: &str) -> Result<(), RbdError> {
        self.with_image_or_owner(
            image,
            Work::UnprotectSnapshot(name.to_owned()),
            &mut |_, _| {},
            |core, _| async move { self.unprotect(&core, name).await },
            |_| Ok(()),
        )
        .await
    }

    /// Lifts the protection of a snapshot. The caller has the lock.
    pub(super) async fn unprotect(&self, core: &Rc<Core>, name: &str) -> Result<(), RbdError> {
        let header = core.header();
        let snapshot = header.snapshot_named(name)?;
        if snapshot.protection == Protection::Unprotected {
            return Ok(());
        }
        let id = snapshot.info.id;
        // No client makes a clone of format 1 from now on.
        set_protection(core, id, Protection::Unprotecting).await?;
        let child = match self.find_old_child(core, id).await {
            Ok(None) => return set_protection(core, id, Protection::Unprotected).await,
            Ok(Some(child)) => Ok(child),
            Err(error) => Err(error),
        };
        set_protection(core, id, Protection::Protected).await?;
        let reason = format!("snapshot {name} has the clone {}", child?);
        Err(RbdError::InUse { image: core.name.clone(), reason })
    }

    /// Looks for a clone of format 1 in all pools.
    async fn find_old_child(
        &self,
        core: &Core,
        snapshot: SnapId,
    ) -> Result<Option<String>, RbdError> {
        let parent = ParentSpec {
            pool: self.info.id,
            namespace: String::new(),
            image: core.id.clone(),
            snapshot,
        };
        let pools = self.cluster.pools().await;
        let pools = pools.map_err(|errno| core.error("the list of pools", errno))?;
        // Such a clone is in the default namespace, or in that of its parent.
        let mut namespaces = vec![""];
        if !self.store.namespace.is_empty() {
            namespaces.push(&self.store.namespace);
        }
        let places = pools
            .iter()
            .flat_map(|pool| namespaces.iter().map(move |&namespace| (pool, namespace)));
        for (pool, namespace) in places {
            let mut ops = ObjectOps::new();
            class::get_children(&mut ops, &parent);
            let store = self.store.with_pool(pool.id).with_namespace(namespace);
            let reply = match store.send(names::CHILDREN, ops).await {
                Ok(reply) => reply,
                // No clones, or no pool of images.
                Err(Errno::ENOENT | Errno::EOPNOTSUPP) => continue,
                Err(errno) => return Err(core.error("looking for clones", errno)),
            };
            let data =
                answer(&reply, 0).map_err(|errno| core.error("looking for clones", errno))?;
            let children =
                class::decode_texts(data).map_err(|fault| RbdError::damaged(&core.name, &fault))?;
            if let Some(child) = children.first() {
                return Ok(Some(format!("{child} in pool {}", pool.name)));
            }
        }
        Ok(None)
    }

    /// Removes a snapshot. The caller has the lock.
    ///
    /// The header comes before the data: its class refuses if a client has made a clone meanwhile,
    /// and if this client dies, only space is lost. What changed before the snapshot is noted in
    /// the next object map before that: too much is noted if the removal is refused, never too
    /// little.
    pub(super) async fn remove_one(&self, core: &Rc<Core>, id: SnapId) -> Result<(), RbdError> {
        let header = core.header();
        let snapshot = header.snapshot(id).ok_or_else(|| RbdError::NoSnapshot {
            image: core.name.clone(),
            snapshot: id.0.to_string(),
        })?;
        let name = &snapshot.info.name;
        let in_use = |reason: String| RbdError::InUse { image: core.name.clone(), reason };
        if snapshot.protection != Protection::Unprotected {
            return Err(in_use(format!("snapshot {name} is protected; unprotect it first")));
        }
        if snapshot.info.children > 0 {
            let children = snapshot.info.children;
            return Err(in_use(format!(
                "snapshot {name} has {children} clones; remove them first"
            )));
        }
        let has_map = header.features.has(Features::OBJECT_MAP);
        if has_map {
            merge_map(core, snapshot).await?;
        }
        let mut ops = ObjectOps::new();
        core.assert_owner(&mut ops);
        class::snapshot_remove(&mut ops, id);
        match core.store.send(&core.header_object(), ops).await {
            Ok(_) => {}
            Err(Errno::EBUSY) if core.owns_header_lock().await => {
                return Err(in_use(format!("snapshot {name} has got a clone, or is protected")));
            }
            Err(errno) => return Err(core.error("removing the snapshot", errno)),
        }
        core.mark_stale();
        if has_map {
            let mut ops = ObjectOps::new();
            ops.delete();
            or_missing(core.store.send(&names::object_map(&core.id, id), ops).await)
                .map_err(|errno| core.error("removing the snapshot's object map", errno))?;
        }
        let removed = core.cluster.remove_snap(core.view().data.pool, id).await;
        or_missing(removed).map_err(|errno| core.error("removing the snapshot's data", errno))?;
        let others = || header.snapshots.iter().filter(|other| other.info.id != id);
        let needs_parent =
            header.overlap_bytes.is_some() || others().any(|other| other.overlap_bytes.is_some());
        if snapshot.overlap_bytes.is_some() && !needs_parent {
            self.detach_child(core, &header).await?;
        }
        core.refresh().await
    }

    /// Makes the present state of an image that of a snapshot. What was written since is lost.
    ///
    /// # Errors
    /// There is no such snapshot, or the cluster answers with an error. Then the image may be
    /// rolled back in parts.
    pub async fn rollback_snapshot(
        &self,
        image: &str,
        name: &str,
        progress: Progress<'_>,
    ) -> Result<(), RbdError> {
        self.with_image(image, |core| async move { rollback(&core, name, progress).await }).await
    }
}

/// Makes a snapshot. The caller has the lock, and no write is under way.
pub(super) async fn create(core: &Rc<Core>, name: &str) -> Result<SnapId, RbdError> {
    if core.header().snapshots.iter().any(|snapshot| snapshot.info.name == name) {
        return Err(RbdError::Exists(format!("snapshot {}@{name}", core.name)));
    }
    core.settle_for_snapshot().await?;
    let data_pool = core.view().data.pool;
    for _ in 0..ATTEMPTS {
        let id = core.cluster.create_snap(data_pool).await;
        let id = id.map_err(|errno| core.error("a number for the snapshot", errno))?;
        let has_map = freeze_map(core, id).await?;
        let mut ops = ObjectOps::new();
        core.assert_owner(&mut ops);
        class::snapshot_add(&mut ops, id, name);
        let Err(errno) = core.store.send(&core.header_object(), ops).await else {
            return finish(core, id, has_map).await;
        };
        match outcome(core, id, errno).await {
            Outcome::Done => return finish(core, id, has_map).await,
            // The header has not the snapshot, but may get it: its number and its map stay.
            Outcome::Unknown => return Err(core.error("adding the snapshot", errno)),
            Outcome::Refused => {}
        }
        let mut ops = ObjectOps::new();
        ops.delete();
        let _ = core.store.send(&names::object_map(&core.id, id), ops).await;
        let _ = core.cluster.remove_snap(data_pool, id).await;
        match errno {
            // Another client made a newer snapshot meanwhile.
            Errno::ESTALE => {}
            Errno::EEXIST => {
                return Err(RbdError::Exists(format!("snapshot {}@{name}", core.name)));
            }
            errno => return Err(core.error("adding the snapshot", errno)),
        }
    }
    Err(core.error("adding the snapshot", Errno::ESTALE))
}

/// After the header has got a snapshot.
async fn finish(core: &Rc<Core>, id: SnapId, has_map: bool) -> Result<SnapId, RbdError> {
    finish_maps(core, id, has_map).await?;
    core.mark_stale();
    core.refresh().await?;
    Ok(id)
}

/// What became of a request that ended with an error.
enum Outcome {
    /// The OSD executed it all the same.
    Done,
    /// The OSD refused it.
    Refused,
    Unknown,
}

/// Whether a header has got a snapshot, although the request ended with an error. An answer may be
/// lost after the OSD has executed the request. To give the number of a snapshot back destroys its
/// data, so the header is asked whenever the OSD's class may not have given the error.
async fn outcome(core: &Core, id: SnapId, errno: Errno) -> Outcome {
    match errno {
        Errno::ESTALE | Errno::EBUSY | Errno::EDQUOT | Errno::EINVAL => return Outcome::Refused,
        Errno::ESHUTDOWN => return Outcome::Unknown,
        _ => {}
    }
    let header = match Header::load(&core.store, &core.id, &core.spec.image).await {
        Ok(header) => header,
        Err(error) => {
            tracing::warn!(image = %core.name, %error, "whether it has the snapshot is not known");
            return Outcome::Unknown;
        }
    };
    match header.snapshot(id) {
        Some(_) => Outcome::Done,
        None if errno == Errno::EEXIST => Outcome::Refused,
        None => Outcome::Unknown,
    }
}

/// Copies the object map for a snapshot. False if there is none that can be trusted.
async fn freeze_map(core: &Rc<Core>, id: SnapId) -> Result<bool, RbdError> {
    if !core.header().features.has(Features::OBJECT_MAP) {
        return Ok(false);
    }
    let map = core.map.borrow().as_ref().map(ObjectMap::encode);
    let Some(map) = map else { return Ok(false) };
    let mut ops = ObjectOps::new();
    ops.write_full(map);
    let sent = core.store.send(&names::object_map(&core.id, id), ops).await;
    sent.map_err(|errno| core.error("making the snapshot's object map", errno))?;
    Ok(true)
}

/// After a snapshot: what exists has not changed since, or the snapshot has no map.
async fn finish_maps(core: &Rc<Core>, id: SnapId, has_map: bool) -> Result<(), RbdError> {
    let header = core.header();
    if !header.features.has(Features::OBJECT_MAP) {
        return Ok(());
    }
    if !has_map {
        let flags = features::FLAG_OBJECT_MAP_INVALID | features::FLAG_FAST_DIFF_INVALID;
        let mut ops = ObjectOps::new();
        class::set_flags(&mut ops, flags, flags, id);
        let sent = core.store.send(&core.header_object(), ops).await;
        return sent.map(drop).map_err(|errno| core.error("flagging the object map", errno));
    }
    if !header.features.has(Features::FAST_DIFF) {
        return Ok(());
    }
    let mut ops = ObjectOps::new();
    core.assert_map_owner(&mut ops);
    class::object_map_snap_add(&mut ops);
    let sent = core.store.send(&core.map_object(), ops).await;
    // Also after an error: the OSD may have changed the map, and the next write of an object must
    // change it again.
    if let Some(map) = core.map.borrow_mut().as_mut() {
        for object in 0..map.len() {
            if map.get(object) == ObjectState::Exists {
                map.set(object, ObjectState::ExistsClean);
            }
        }
    }
    let Err(errno) = sent else { return Ok(()) };
    drop(core.error("changing the object map", errno));
    core.invalidate_map("a snapshot could not be noted in it").await
}

/// What changed between a snapshot and the next one changed between the one before and the next.
async fn merge_map(core: &Rc<Core>, snapshot: &Snapshot) -> Result<(), RbdError> {
    let header = core.header();
    let id = snapshot.info.id;
    let later = header.snapshots.iter().find(|other| other.info.id > id);
    let next = later.map_or(SnapId::HEAD, |later| later.info.id);
    if !header.features.has(Features::FAST_DIFF) || !header.has_valid_object_map(next) {
        return Ok(());
    }
    if !header.has_valid_object_map(id) {
        return invalidate(core, next, "the map of a removed snapshot is invalid").await;
    }
    let map = match core.load_map(id).await {
        Ok(map) => map,
        // It was removed before, after its changes had been noted.
        Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(()),
        Err(error) => {
            core.check()?;
            tracing::warn!(image = %core.name, %error, "a snapshot's object map cannot be read");
            return invalidate(core, next, "the map of a removed snapshot cannot be read").await;
        }
    };
    let mut ops = ObjectOps::new();
    if next == SnapId::HEAD {
        core.assert_map_owner(&mut ops);
    }
    class::object_map_snap_remove(&mut ops, &map);
    if let Err(errno) = core.store.send(&names::object_map(&core.id, next), ops).await {
        drop(core.error("changing an object map", errno));
        core.check()?;
        return invalidate(core, next, "a removed snapshot could not be noted in it").await;
    }
    // A map that was given up meanwhile stays so: it lacks what was written since.
    if next == SnapId::HEAD && core.map.borrow().is_some() {
        let map = core.load_map(SnapId::HEAD).await?;
        if let Some(present) = core.map.borrow_mut().as_mut() {
            *present = map;
        }
    }
    Ok(())
}

/// Protects a snapshot. The caller has the lock.
pub(super) async fn protect(core: &Rc<Core>, name: &str) -> Result<(), RbdError> {
    let snapshot = core.header().snapshot_named(name)?.info.id;
    set_protection(core, snapshot, Protection::Protected).await
}

/// Gives a snapshot another name. The caller has the lock.
pub(super) async fn rename(core: &Rc<Core>, id: SnapId, name: &str) -> Result<(), RbdError> {
    let mut ops = ObjectOps::new();
    core.assert_owner(&mut ops);
    class::snapshot_rename(&mut ops, id, name);
    match core.store.send(&core.header_object(), ops).await {
        Ok(_) => {
            core.mark_stale();
            core.refresh().await
        }
        Err(Errno::EEXIST) => Err(RbdError::Exists(format!("snapshot {}@{name}", core.name))),
        Err(errno) => Err(core.error("renaming the snapshot", errno)),
    }
}

/// Flags the map of the present state or of a snapshot invalid.
async fn invalidate(core: &Rc<Core>, map: SnapId, reason: &str) -> Result<(), RbdError> {
    if map == SnapId::HEAD {
        core.invalidate_map(reason).await
    } else {
        core.invalidate_snapshot_map(map).await
    }
}

async fn set_protection(
    core: &Rc<Core>,
    snapshot: SnapId,
    protection: Protection,
) -> Result<(), RbdError> {
    let mut ops = ObjectOps::new();
    core.assert_owner(&mut ops);
    class::set_protection_status(&mut ops, snapshot, protection);
    let sent = core.store.send(&core.header_object(), ops).await;
    sent.map(drop).map_err(|errno| core.error("protecting the snapshot", errno))
}

async fn rollback(core: &Rc<Core>, name: &str, progress: Progress<'_>) -> Result<(), RbdError> {
    let header = core.header();
    let snapshot = header.snapshot_named(name)?.clone();
    let id = snapshot.info.id;
    // An object that only the parent has would come back with too few bytes.
    let overlap_bytes = header.overlap_bytes.unwrap_or(0);
    if snapshot.overlap_bytes.is_some_and(|of_snapshot| of_snapshot > overlap_bytes) {
        return Err(RbdError::Invalid(format!(
            "image {} has {overlap_bytes} bytes in common with its parent, and snapshot {name} has \
             more: the image was made smaller, or flattened, since; clone the snapshot instead",
            core.name
        )));
    }
    resize(core, snapshot.info.size_bytes, &mut |_, _| {}).await?;
    // The object map must be right at each moment: it first gets all objects of both states.
    let target = if header.has_valid_object_map(id) { core.load_map(id).await.ok() } else { None };
    if header.features.has(Features::OBJECT_MAP) {
        let both = core.map.borrow().clone().zip(target.as_ref()).map(|(mut map, target)| {
            for object in 0..map.len() {
                let may_exist = map.get(object).may_exist() || target.get(object).may_exist();
                map.set(object, exists_if(may_exist));
            }
            map
        });
        match both {
            Some(both) => save_map(core, both).await?,
            None => core.invalidate_map("a snapshot without one is rolled back").await?,
        }
    }
    let objects = core.header().objects();
    each_object(core, 0..objects, progress, move |core, view, object| async move {
        let mut ops = ObjectOps::new();
        ops.rollback(id);
        let sent = view.data.send_keeping(&view.object(object), ops, &view.snap_context).await;
        or_missing(sent).map_err(|errno| core.error("rolling an object back", errno))
    })
    .await?;
    let now = core.map.borrow().clone().zip(target).map(|(mut map, target)| {
        for object in 0..map.len() {
            map.set(object, exists_if(target.get(object).may_exist()));
        }
        map
    });
    match now {
        Some(now) => save_map(core, now).await,
        None => Ok(()),
    }
}

/// The object differs from the newest snapshot, as far as is known.
fn exists_if(may_exist: bool) -> ObjectState {
    if may_exist { ObjectState::Exists } else { ObjectState::Nonexistent }
}

async fn save_map(core: &Rc<Core>, map: ObjectMap) -> Result<(), RbdError> {
    let mut ops = ObjectOps::new();
    core.assert_map_owner(&mut ops);
    class::object_map_save(&mut ops, &map);
    match core.store.send(&core.map_object(), ops).await {
        Ok(_) => {
            *core.map.borrow_mut() = Some(map);
            Ok(())
        }
        Err(errno) => {
            drop(core.error("changing the object map", errno));
            core.check()?;
            core.invalidate_map("it could not be changed").await
        }
    }
}
