//! Writes, trims and zeroes.
//!
//! A write passes the gate and has the lock; then each object is changed by itself, all at the same
//! time. An object that the map knows already, or that has neither a map nor a parent, is changed
//! by one request. Otherwise the change has several steps, and the object to itself meanwhile:
//!
//! 1. The object map says that the object exists.
//! 2. If the parent may have its bytes: the change goes out with the condition that the object
//!    exists. If it does not, the parent's bytes are read, and one request copies them up and does
//!    the change. The class writes them only if the object still does not exist, so no other
//!    client's change is lost.
//! 3. After a removal, the map says that the object is gone.
//!
//! **Snapshots and copying up.** An image with `deep-flatten` and snapshots copies the parent's
//! bytes in a request of its own that keeps no snapshots: so the object looks as if it had existed
//! before the snapshots, and they find the bytes there. Flattening copies that way too. An object
//! that was there before, and was deleted by a rollback, keeps what the snapshots of that time see:
//! only newer ones find the copy.
//!
//! **Zeroes that change nothing.** An OSD leaves an object as it is, and makes no clone for new
//! snapshots, if the range to be zeroed lies behind the object's bytes. The map must not say then
//! that the object has changed since the last snapshot, or a difference of snapshots would have too
//! much. So an object that is clean is asked for its size first.
//!
//! **A lock that is lost.** A change of several steps asks before each step whether this client
//! still has the lock. If not, it fails, and the whole write begins again when the lock is back.
//!
//! **Order.** Requests for one object reach its OSD in the order in which they were sent. So only
//! changes of several steps need the lock of the object (`sync`). A change of one step takes this
//! lock only while such a change is in flight.

use std::rc::Rc;

use bytes::Bytes;
use fieldstone_rados::cluster::{Operation, SnapContext, SnapId};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::results::{Snapshots, Stat};
use fieldstone_rados::op::{ALL_SNAPSHOTS, ObjectOps};
use fieldstone_tasks::oneshot;

use super::core::Core;
use super::view::{Pieces, View, trimmed};
use crate::error::RbdError;
use crate::format::{Features, ObjectExtent, ObjectState, class, lock, names};
use crate::store::answer;

/// Objects of one request that are changed at the same time.
const OBJECTS_AT_ONCE: usize = 64;
/// Older than all snapshots.
const NONE: SnapId = SnapId(0);
/// How often a write is tried again after this client has lost the lock in the middle.
const LOCK_LOSSES_MAX: usize = 3;

/// A change of a range of the image.
#[derive(Clone)]
pub(crate) enum Change {
    /// New bytes.
    Write(Bytes),
    /// Zeroes, and the space is given back.
    Discard,
    /// Zeroes that keep their space.
    Zeroes,
}

/// A change of one object.
#[derive(Clone)]
enum ObjectChange {
    Write { offset: u64, data: Bytes },
    Zeroes { offset: u64, len: u64 },
    Zero { offset: u64, len: u64 },
    Truncate { offset: u64 },
    Remove,
}

impl ObjectChange {
    fn of(change: &Change, extent: &ObjectExtent, view: &View) -> Self {
        let ObjectExtent { offset_bytes: offset, len_bytes: len, .. } = *extent;
        match change {
            Change::Write(data) => {
                let start = extent.buffer_offset_bytes as usize;
                Self::Write { offset, data: data.slice(start..start + len as usize) }
            }
            Change::Zeroes => Self::Zeroes { offset, len },
            Change::Discard if offset + len < used_bytes(view, extent.object) => {
                Self::Zero { offset, len }
            }
            Change::Discard if offset > 0 => Self::Truncate { offset },
            Change::Discard => Self::Remove,
        }
    }

    /// True if an object appears by the change, if there was none.
    fn creates(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Zeroes { .. })
    }

    /// Appends the operations. `hint`: the object may be new.
    fn append_to(&self, ops: &mut ObjectOps, view: &View, hint: bool) {
        if hint && self.creates() {
            let object_bytes = view.layout.object_bytes();
            ops.set_alloc_hint(object_bytes, object_bytes, 0);
        }
        match self {
            Self::Write { offset, data } => ops.write(*offset, data.clone()),
            Self::Zeroes { offset, len } => {
                ops.write_same(*offset, *len, fieldstone_buf::zeroes(zero_unit(*len)))
            }
            Self::Zero { offset, len } => ops.zero(*offset, *len),
            Self::Truncate { offset } => ops.truncate(*offset),
            // Where the parent has bytes, an empty object hides them.
            Self::Remove => ops.create(false).truncate(0),
        };
    }

    /// True if the change leaves none of the first `overlap` bytes as they were.
    fn covers(&self, overlap: u64) -> bool {
        match self {
            Self::Write { offset, data } => *offset == 0 && data.len() as u64 >= overlap,
            Self::Zeroes { offset, len } | Self::Zero { offset, len } => {
                *offset == 0 && *len >= overlap
            }
            Self::Truncate { offset } => *offset == 0,
            Self::Remove => true,
        }
    }
}

/// The bytes of an object that the image has: fewer in the last one.
fn used_bytes(view: &View, object: u64) -> u64 {
    let object_bytes = view.layout.object_bytes();
    if view.layout.is_striped() {
        return object_bytes;
    }
    view.size_bytes.saturating_sub(object.saturating_mul(object_bytes)).min(object_bytes)
}

/// The length of the data of a `write_same`: a divisor of `len`, not large.
fn zero_unit(len: u64) -> usize {
    const UNIT_BYTES_MAX: u64 = 64 << 10;
    let power = (len & len.wrapping_neg()).min(UNIT_BYTES_MAX);
    // Odd lengths would be written byte by byte.
    let unit = if power >= 512 || len > UNIT_BYTES_MAX { power } else { len };
    usize::try_from(unit).expect("a unit is at most 64 KiB")
}

impl Core {
    /// Changes a range of the image.
    pub(crate) async fn change(
        self: &Rc<Self>,
        offset_bytes: u64,
        len_bytes: u64,
        change: Change,
    ) -> Result<(), RbdError> {
        let mut losses = 0;
        loop {
            let result = self.try_change(offset_bytes, len_bytes, &change).await;
            // The map's or header's lock turned out to be another's.
            let lost = matches!(&result, Err(error) if error.errno() == Some(Errno::EBUSY));
            if !lost || losses >= LOCK_LOSSES_MAX {
                return result;
            }
            losses += 1;
        }
    }

    async fn try_change(
        self: &Rc<Self>,
        offset_bytes: u64,
        len_bytes: u64,
        change: &Change,
    ) -> Result<(), RbdError> {
        let _pass = self.enter_as_owner().await?;
        let _ticket = self.write_ticket();
        let view = self.view();
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > view.size_bytes) {
            return Err(RbdError::Invalid(format!(
                "image {}: a write at {offset_bytes}+{len_bytes} is behind its end at {}",
                self.name, view.size_bytes
            )));
        }
        let extents = view.layout.map(offset_bytes, len_bytes);
        if let [extent] = &extents[..] {
            return self
                .change_object(&view, extent.object, ObjectChange::of(change, extent, &view))
                .await;
        }
        for part in extents.chunks(OBJECTS_AT_ONCE) {
            let running: Vec<_> = part
                .iter()
                .map(|extent| {
                    let (filler, done) = oneshot();
                    let (core, view) = (Rc::clone(self), Rc::clone(&view));
                    let object_change = ObjectChange::of(change, extent, &view);
                    let object = extent.object;
                    self.spawner.spawn(async move {
                        filler.fill(core.change_object(&view, object, object_change).await);
                    });
                    done
                })
                .collect();
            // All have ended before an error is told: nothing of the request is in flight then.
            let mut result = Ok(());
            for done in running {
                result = result.and(done.await);
            }
            result?;
        }
        Ok(())
    }

    async fn change_object(
        self: &Rc<Self>,
        view: &Rc<View>,
        object: u64,
        change: ObjectChange,
    ) -> Result<(), RbdError> {
        self.still_owns()?;
        let one_step = match self.state(object) {
            Some(ObjectState::Exists) => !matches!(change, ObjectChange::Remove),
            Some(_) => false,
            None => view.parent.is_none(),
        };
        if one_step && !self.is_object_locked(object) {
            if view.object_overlap(object) == 0 {
                let hint = self.state(object).is_none();
                return self.send_change(view, object, &change, hint).await;
            }
            if self.change_existing(view, object, &change).await? {
                return Ok(());
            }
        }
        let _guard = self.lock_object(object).await;
        self.change_locked(view, object, change).await
    }

    /// A change of several steps.
    async fn change_locked(
        self: &Rc<Self>,
        view: &Rc<View>,
        object: u64,
        change: ObjectChange,
    ) -> Result<(), RbdError> {
        self.still_owns()?;
        let overlap = view.object_overlap(object);
        let state = self.state(object);
        if state == Some(ObjectState::Nonexistent) && overlap == 0 && !change.creates() {
            return Ok(());
        }
        if matches!(change, ObjectChange::Remove) && overlap == 0 {
            return self.remove_object(view, object).await;
        }
        if let ObjectChange::Zero { offset, .. } = change
            && state == Some(ObjectState::ExistsClean)
            && self.ends_before(view, object, offset).await?
        {
            return Ok(());
        }
        if state.is_some_and(|state| state != ObjectState::Exists) {
            self.set_state(object, ObjectState::Exists, None).await?;
            self.still_owns()?;
        }
        if overlap == 0 {
            let hint = !state.is_some_and(ObjectState::may_exist);
            return self.send_change(view, object, &change, hint).await;
        }
        let keeps_snapshots = !view.snap_context.snaps.is_empty();
        let deep = keeps_snapshots && view.features.has(Features::DEEP_FLATTEN);
        if change.covers(overlap) && !deep {
            let mut ops = ObjectOps::new();
            if !change.creates() {
                // An object that does not exist would show the parent's bytes.
                ops.create(false);
            }
            change.append_to(&mut ops, view, true);
            let sent = view.data.send_keeping(&view.object(object), ops, &view.snap_context);
            return sent.await.map(drop).map_err(|errno| self.error("a write", errno));
        }
        if state != Some(ObjectState::Nonexistent)
            && self.change_existing(view, object, &change).await?
        {
            return Ok(());
        }
        self.copy_up_and_change(view, object, overlap, deep, &change).await
    }

    /// Changes an object if it exists; false if not. The map does not tell: an owner may have died
    /// between the change of the map and that of the object.
    async fn change_existing(
        &self,
        view: &View,
        object: u64,
        change: &ObjectChange,
    ) -> Result<bool, RbdError> {
        let mut ops = ObjectOps::new();
        ops.assert_exists();
        change.append_to(&mut ops, view, false);
        match view.data.send_keeping(&view.object(object), ops, &view.snap_context).await {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.error("a write", errno)),
        }
    }

    async fn send_change(
        &self,
        view: &View,
        object: u64,
        change: &ObjectChange,
        hint: bool,
    ) -> Result<(), RbdError> {
        if matches!(change, ObjectChange::Remove) && view.parent.is_none() {
            let mut ops = ObjectOps::new();
            ops.delete();
            return self.send_removal(view, object, ops).await;
        }
        let mut ops = ObjectOps::new();
        change.append_to(&mut ops, view, hint);
        let sent = view.data.send_keeping(&view.object(object), ops, &view.snap_context).await;
        match sent {
            Ok(_) => Ok(()),
            // Zeroes for an object that does not exist.
            Err(Errno::ENOENT) if !change.creates() => Ok(()),
            Err(errno) => Err(self.error("a write", errno)),
        }
    }

    async fn send_removal(&self, view: &View, object: u64, ops: ObjectOps) -> Result<(), RbdError> {
        match view.data.send_keeping(&view.object(object), ops, &view.snap_context).await {
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.error("removing an object", errno)),
        }
    }

    /// Removes an object that hides nothing of a parent.
    pub(crate) async fn remove_object(&self, view: &View, object: u64) -> Result<(), RbdError> {
        let state = self.state(object);
        if state == Some(ObjectState::Nonexistent) {
            return Ok(());
        }
        if state.is_some_and(|state| state != ObjectState::Pending) {
            self.set_state(object, ObjectState::Pending, None).await?;
        }
        self.still_owns()?;
        let mut ops = ObjectOps::new();
        ops.delete();
        self.send_removal(view, object, ops).await?;
        self.still_owns()?;
        if self.state(object).is_some() {
            let pending = Some(ObjectState::Pending);
            self.set_state(object, ObjectState::Nonexistent, pending).await?;
        }
        Ok(())
    }

    async fn copy_up_and_change(
        self: &Rc<Self>,
        view: &Rc<View>,
        object: u64,
        overlap: u64,
        deep: bool,
        change: &ObjectChange,
    ) -> Result<(), RbdError> {
        let below = self.parent_bytes(view, object, overlap).await?;
        let mut ops = ObjectOps::new();
        if below.is_empty() {
            // The parent has only zeroes there, and an object that appears has the same.
            if !change.creates() {
                ops.create(false);
            }
        } else if deep {
            let len = below.len() as u64;
            self.copy_below_snapshots(view, object, below, NONE).await?;
            if matches!(change, ObjectChange::Zero { offset, .. } if *offset >= len) {
                // The object is what the snapshots see.
                return self.note_copied(view, object, NONE).await;
            }
        } else {
            class::copyup(&mut ops, below);
        }
        change.append_to(&mut ops, view, true);
        self.still_owns()?;
        let sent = view.data.send_keeping(&view.object(object), ops, &view.snap_context).await;
        sent.map(drop).map_err(|errno| self.error("a write", errno))
    }

    /// True if an object exists, and all its bytes lie before `offset`: to zero it from there on
    /// changes nothing.
    pub(crate) async fn ends_before(
        &self,
        view: &View,
        object: u64,
        offset: u64,
    ) -> Result<bool, RbdError> {
        let action = "asking for an object's size";
        let mut ops = ObjectOps::new();
        ops.stat();
        let reply = match view.data.send(&view.object(object), ops).await {
            Ok(reply) => reply,
            Err(Errno::ENOENT) => return Ok(false),
            Err(errno) => return Err(self.error(action, errno)),
        };
        let data = answer(&reply, 0).map_err(|errno| self.error(action, errno))?;
        let stat = Stat::decode(data).map_err(|fault| RbdError::damaged(&self.name, &fault))?;
        Ok(stat.size_bytes <= offset)
    }

    /// The map says of an object that was, or will be, copied below the snapshots and nothing else:
    /// it has not changed since the last one. `seq`: the newest snapshot that does not see the
    /// copy.
    async fn note_copied(&self, view: &View, object: u64, seq: SnapId) -> Result<(), RbdError> {
        let is_seen = view.snap_context.snaps.first().is_some_and(|&newest| newest > seq);
        let is_clean = view.features.has(Features::FAST_DIFF) && is_seen;
        let state = if is_clean { ObjectState::ExistsClean } else { ObjectState::Exists };
        if self.state(object).is_some_and(|present| present != state) {
            self.set_state(object, state, None).await?;
        }
        Ok(())
    }

    /// What an object would show of the parent, without zeroes at the end.
    async fn parent_bytes(
        &self,
        view: &View,
        object: u64,
        overlap: u64,
    ) -> Result<Bytes, RbdError> {
        let mut pieces = Pieces::new();
        let read = view.read_parent(object, 0, overlap, &mut pieces).await;
        read.map_err(|errno| self.error("reading the parent", errno))?;
        Ok(trimmed(&pieces))
    }

    /// Copies bytes of the parent into an object as if it had existed before all snapshots but
    /// those up to `seq`.
    async fn copy_below_snapshots(
        &self,
        view: &View,
        object: u64,
        below: Bytes,
        seq: SnapId,
    ) -> Result<(), RbdError> {
        self.mark_in_snapshots(view, object, seq).await?;
        self.still_owns()?;
        let mut ops = ObjectOps::new();
        class::copyup(&mut ops, below);
        let none = SnapContext::default();
        let copied = view.data.send_keeping(&view.object(object), ops, &none).await;
        copied.map(drop).map_err(|errno| self.error("copying the parent's bytes", errno))
    }

    /// Copies the parent's bytes into an object that does not exist, without another change. The
    /// snapshots find them too. An object that would have only zeroes does not appear. The caller
    /// has its lock.
    pub(crate) async fn copy_up(&self, view: &View, object: u64) -> Result<(), RbdError> {
        self.still_owns()?;
        let overlap = view.object_overlap(object);
        if overlap == 0 {
            return Ok(());
        }
        let Some(seq) = self.absent_since(view, object).await? else { return Ok(()) };
        let below = self.parent_bytes(view, object, overlap).await?;
        if below.is_empty() {
            return Ok(());
        }
        self.note_copied(view, object, seq).await?;
        self.copy_below_snapshots(view, object, below, seq).await
    }

    /// The newest snapshot that a deleted object has heard of, [`NONE`] if there never was an
    /// object; `None` if it exists.
    async fn absent_since(&self, view: &View, object: u64) -> Result<Option<SnapId>, RbdError> {
        let action = "looking for an object";
        let mut ops = ObjectOps::new();
        ops.list_snaps();
        let mut operation = Operation::new(view.data.object(&view.object(object)), ops);
        operation.snapshot = ALL_SNAPSHOTS;
        let reply = match self.cluster.operate(operation).await {
            Ok(reply) => reply,
            Err(Errno::ENOENT) => return Ok(Some(NONE)),
            Err(errno) => return Err(self.error(action, errno)),
        };
        let data = answer(&reply, 0).map_err(|errno| self.error(action, errno))?;
        let found =
            Snapshots::decode(data).map_err(|fault| RbdError::damaged(&self.name, &fault))?;
        Ok(if found.head().is_some() { None } else { Some(found.seq) })
    }

    /// The object maps of the snapshots say that the object exists: it does from now on. A map that
    /// cannot be changed is flagged invalid.
    async fn mark_in_snapshots(
        &self,
        view: &View,
        object: u64,
        seq: SnapId,
    ) -> Result<(), RbdError> {
        if !view.features.has(Features::OBJECT_MAP) {
            return Ok(());
        }
        let header = self.header();
        // Oldest first: the object appears with the first snapshot that covers it.
        let mut state = ObjectState::Exists;
        for snapshot in &header.snapshots {
            let id = snapshot.info.id;
            if id <= seq || header.layout.objects(snapshot.info.size_bytes) <= object {
                continue;
            }
            let mut ops = ObjectOps::new();
            class::object_map_update(&mut ops, object, object + 1, state, None);
            match self.store.send(&names::object_map(&self.id, id), ops).await {
                Ok(_) => {}
                Err(Errno::ESHUTDOWN) => {
                    return Err(self.error("changing a snapshot's object map", Errno::ESHUTDOWN));
                }
                // It is flagged already.
                Err(_) if !header.has_valid_object_map(id) => {}
                Err(errno) => {
                    tracing::warn!(image = %self.name, %errno, "changing a snapshot's map failed");
                    self.invalidate_snapshot_map(id).await?;
                }
            }
            if view.features.has(Features::FAST_DIFF) {
                state = ObjectState::ExistsClean;
            }
        }
        Ok(())
    }

    /// Adds to a write of the object map the condition that this client has its lock.
    pub(crate) fn assert_map_owner(&self, ops: &mut ObjectOps) {
        lock::assert_locked(ops, "", "");
    }
}
