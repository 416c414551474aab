//! The object map of an open image: loaded when this client gets the lock, kept in memory, and
//! changed at the OSD before an object appears and after it goes.
//!
//! If a change fails, the map in the header is flagged invalid, and this client goes on without a
//! map. If even that fails, the write fails: a wrong map would lose data later.

use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;

use super::core::Core;
use crate::error::RbdError;
use crate::format::object_map::OBJECTS_MAX;
use crate::format::{Features, ObjectMap, ObjectState, class, features, lock, names};
use crate::store::answer;

/// How often the lock of the object map is tried.
const LOCK_ATTEMPTS: usize = 8;

impl Core {
    /// The state of an object, if the map is known.
    pub(crate) fn state(&self, object: u64) -> Option<ObjectState> {
        self.map.borrow().as_ref().map(|map| map.get(object))
    }

    /// False only if the object surely does not exist.
    pub(crate) fn may_exist(&self, object: u64) -> bool {
        self.state(object).is_none_or(ObjectState::may_exist)
    }

    /// Locks and loads the map, after this client got the image's lock.
    pub(crate) async fn open_map(&self) -> Result<(), RbdError> {
        *self.map.borrow_mut() = None;
        let header = self.header();
        if !header.features.has(Features::OBJECT_MAP) {
            return Ok(());
        }
        self.lock_map().await?;
        if !header.has_valid_object_map(SnapId::HEAD) {
            return Ok(());
        }
        let objects = header.objects();
        match self.load_map(SnapId::HEAD).await {
            Ok(mut map) if map.len() >= objects && objects <= OBJECTS_MAX => {
                // A longer map is left behind by a resize that was broken off.
                map.resize(objects, ObjectState::Nonexistent);
                *self.map.borrow_mut() = Some(map);
                Ok(())
            }
            Ok(_) => self.invalidate_map("it is shorter than the image").await,
            Err(RbdError::Blocklisted(image)) => Err(RbdError::Blocklisted(image)),
            Err(_) => self.invalidate_map("it cannot be read").await,
        }
    }

    /// Loads the map of a snapshot that is read.
    pub(crate) async fn open_snapshot_map(&self) {
        if !self.header().has_valid_object_map(self.snapshot) {
            return;
        }
        // Without the map, reads just ask for all objects.
        if let Ok(map) = self.load_map(self.snapshot).await
            && map.len() >= self.view().layout.objects(self.view().size_bytes)
        {
            *self.map.borrow_mut() = Some(map);
        }
    }

    /// Reads a map.
    pub(crate) async fn load_map(&self, snapshot: SnapId) -> Result<ObjectMap, RbdError> {
        let mut ops = ObjectOps::new();
        class::object_map_load(&mut ops);
        let action = "reading the object map";
        let reply = self.store.send(&names::object_map(&self.id, snapshot), ops).await;
        let reply = reply.map_err(|errno| self.error(action, errno))?;
        let data = answer(&reply, 0).map_err(|errno| self.error(action, errno))?;
        ObjectMap::decode(data).map_err(|fault| RbdError::damaged(&self.name, &fault))
    }

    /// Takes the lock of the map. The owner of the image's lock may break it.
    async fn lock_map(&self) -> Result<(), RbdError> {
        let action = "locking the object map";
        let object = self.map_object();
        for _ in 0..LOCK_ATTEMPTS {
            let mut ops = ObjectOps::new();
            lock::lock(&mut ops, "", "");
            match self.store.send(&object, ops).await {
                Ok(_) | Err(Errno::EEXIST) => return Ok(()),
                Err(Errno::EBUSY) => {}
                Err(errno) => return Err(self.error(action, errno)),
            }
            let mut ops = ObjectOps::new();
            lock::get_info(&mut ops);
            let reply = self.store.send(&object, ops).await;
            let reply = reply.map_err(|errno| self.error(action, errno))?;
            let data = answer(&reply, 0).map_err(|errno| self.error(action, errno))?;
            let info = lock::LockInfo::decode(data)
                .map_err(|fault| RbdError::damaged(&self.name, &fault))?;
            for locker in info.lockers {
                let mut ops = ObjectOps::new();
                lock::break_lock(&mut ops, locker.client, &locker.cookie);
                let broken = self.store.send_if_exists(&object, ops).await;
                broken.map_err(|errno| self.error(action, errno))?;
            }
        }
        Err(self.error(action, Errno::EBUSY))
    }

    /// Gives the lock of the map up.
    pub(crate) async fn close_map(&self) {
        *self.map.borrow_mut() = None;
        if self.header().features.has(Features::OBJECT_MAP) {
            let mut ops = ObjectOps::new();
            lock::unlock(&mut ops, "");
            // The next owner breaks a lock that stays behind.
            let _ = self.store.send(&self.map_object(), ops).await;
        }
    }

    /// Changes the state of an object at the OSD, then in memory. The caller has its lock.
    pub(crate) async fn set_state(
        &self,
        object: u64,
        to: ObjectState,
        from: Option<ObjectState>,
    ) -> Result<(), RbdError> {
        let mut ops = ObjectOps::new();
        lock::assert_locked(&mut ops, "", "");
        class::object_map_update(&mut ops, object, object + 1, to, from);
        match self.store.send(&self.map_object(), ops).await {
            Ok(_) => {
                if let Some(map) = self.map.borrow_mut().as_mut()
                    && from.is_none_or(|from| map.get(object) == from)
                {
                    map.set(object, to);
                }
                Ok(())
            }
            Err(Errno::ESHUTDOWN) => Err(self.error("changing the object map", Errno::ESHUTDOWN)),
            Err(errno) => {
                let image = &self.name;
                tracing::warn!(%image, object, %errno, "changing the object map failed");
                self.invalidate_map("a change of it failed").await
            }
        }
    }

    /// Flags the map invalid, and goes on without it. While the header does not have the flag, the
    /// map stays: a write without it would make objects that the next owner's map denies.
    pub(crate) async fn invalidate_map(&self, reason: &str) -> Result<(), RbdError> {
        tracing::warn!(image = %self.name, reason, "the object map is invalid from now on");
        let flags = features::FLAG_OBJECT_MAP_INVALID | features::FLAG_FAST_DIFF_INVALID;
        let mut ops = ObjectOps::new();
        self.assert_owner(&mut ops);
        class::set_flags(&mut ops, flags, flags, SnapId::HEAD);
        let done = self.store.send(&self.header_object(), ops).await;
        // The header as it was read last says that the map is valid.
        self.mark_stale();
        match done {
            Ok(_) => {
                *self.map.borrow_mut() = None;
                Ok(())
            }
            Err(errno) => {
                if errno == Errno::EBUSY {
                    self.lose_lock();
                }
                Err(self.error("flagging the object map invalid", errno))
            }
        }
    }

    /// Flags the map of a snapshot invalid. It is no error if the snapshot is gone.
    pub(crate) async fn invalidate_snapshot_map(&self, snapshot: SnapId) -> Result<(), RbdError> {
        let flags = features::FLAG_OBJECT_MAP_INVALID | features::FLAG_FAST_DIFF_INVALID;
        let mut ops = ObjectOps::new();
        self.assert_owner(&mut ops);
        class::set_flags(&mut ops, flags, flags, snapshot);
        match self.store.send(&self.header_object(), ops).await {
            // librbd removes a snapshot without asking the owner of the lock, if the image has not
            // the feature `fast-diff`.
            Ok(_) | Err(Errno::ENOENT) => {
                self.mark_stale();
                Ok(())
            }
            Err(errno) => {
                if errno == Errno::EBUSY {
                    self.lose_lock();
                }
                Err(self.error("flagging a snapshot's object map invalid", errno))
            }
        }
    }
}
