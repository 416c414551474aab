//! Other sizes. To grow, the object map grows first: a write behind the old end finds its place. To
//! shrink, the objects go first, then the size, then the object map. Before that, what snapshots of
//! a clone still see of the parent in the objects that are cut is copied up.

use std::rc::Rc;

use fieldstone_rados::op::ObjectOps;

use super::{Pool, Progress, each_object_that, or_missing};
use crate::error::RbdError;
use crate::format::object_map::OBJECTS_MAX;
use crate::format::request::Work;
use crate::format::{Features, ObjectState, class};
use crate::image::{Core, View};

impl Pool {
    /// Sets the size of an image.
    ///
    /// # Errors
    /// The image would shrink and `may_shrink` is false; the size makes no sense; or the cluster
    /// answers with an error. Then the image may have lost a part of what is behind the new end.
    pub async fn resize(
        &self,
        image: &str,
        size_bytes: u64,
        may_shrink: bool,
        progress: Progress<'_>,
    ) -> Result<(), RbdError> {
        self.with_image_or_owner(
            image,
            Work::Resize { size_bytes, may_shrink },
            progress,
            |core, progress| async move {
                check_size(&core, size_bytes, may_shrink)?;
                resize(&core, size_bytes, progress).await
            },
            |_| Ok(()),
        )
        .await
    }
}

/// Fails if an image would shrink, and may not.
pub(super) fn check_size(core: &Core, size_bytes: u64, may_shrink: bool) -> Result<(), RbdError> {
    let present = core.header().size_bytes;
    if size_bytes >= present || may_shrink {
        return Ok(());
    }
    Err(RbdError::Invalid(format!(
        "image {} would shrink from {present} to {size_bytes} bytes and lose what is behind; say \
         that it may",
        core.name
    )))
}

/// Sets the size. The caller has the lock.
pub(super) async fn resize(
    core: &Rc<Core>,
    size_bytes: u64,
    progress: Progress<'_>,
) -> Result<(), RbdError> {
    let header = core.header();
    let objects = header.layout.objects(size_bytes);
    let has_map = header.features.has(Features::OBJECT_MAP);
    if has_map && objects > OBJECTS_MAX {
        return Err(RbdError::Invalid(format!(
            "image {}: with this size it has more than {OBJECTS_MAX} objects",
            core.name
        )));
    }
    if size_bytes == header.size_bytes {
        return Ok(());
    }
    let grows = size_bytes > header.size_bytes;
    if grows && has_map {
        resize_map(core, objects).await?;
    }
    if !grows {
        cut_objects(core, size_bytes).await?;
        // What the map denies, and no snapshot needs of the parent, is as it should be.
        let needs_work = |view: &View, object| {
            let has_snapshots = !view.snap_context.snaps.is_empty();
            core.may_exist(object) || has_snapshots && view.object_overlap(object) > 0
        };
        let behind = objects..header.objects();
        each_object_that(core, behind, progress, needs_work, |core, view, object| async move {
            let _guard = core.lock_object(object).await;
            keep_for_snapshots(&core, &view, object).await?;
            core.remove_object(&view, object).await
        })
        .await?;
    }
    let mut ops = ObjectOps::new();
    core.assert_owner(&mut ops);
    class::set_size(&mut ops, size_bytes);
    let sent = core.store.send(&core.header_object(), ops).await;
    sent.map_err(|errno| core.error("setting its size", errno))?;
    if !grows && has_map {
        resize_map(core, objects).await?;
    }
    core.mark_stale();
    core.refresh().await
}

/// The snapshots keep what the present state loses. With a smaller overlap, a later copy from the
/// parent would be too short for them, so an object that only the parent has is copied up before.
async fn keep_for_snapshots(core: &Core, view: &View, object: u64) -> Result<(), RbdError> {
    if view.snap_context.snaps.is_empty() {
        return Ok(());
    }
    core.copy_up(view, object).await
}

async fn resize_map(core: &Rc<Core>, objects: u64) -> Result<(), RbdError> {
    let mut ops = ObjectOps::new();
    core.assert_map_owner(&mut ops);
    class::object_map_resize(&mut ops, objects, ObjectState::Nonexistent);
    match core.store.send(&core.map_object(), ops).await {
        Ok(_) => {
            if let Some(map) = core.map.borrow_mut().as_mut() {
                map.resize(objects, ObjectState::Nonexistent);
            }
            Ok(())
        }
        Err(errno) => {
            // Reports a client that is shut out.
            let error = core.error("resizing the object map", errno);
            if matches!(error, RbdError::Blocklisted(_)) {
                return Err(error);
            }
            core.invalidate_map("it could not be resized").await
        }
    }
}

/// Zeroes what objects that stay have behind the new end.
async fn cut_objects(core: &Rc<Core>, size_bytes: u64) -> Result<(), RbdError> {
    let view = core.view();
    let objects = view.layout.objects(size_bytes);
    let set_bytes = view.layout.object_bytes() * view.layout.stripe_count();
    let end = size_bytes.next_multiple_of(set_bytes).min(view.size_bytes);
    for extent in view.layout.map(size_bytes, end.saturating_sub(size_bytes)) {
        if extent.object >= objects {
            continue;
        }
        let _guard = core.lock_object(extent.object).await;
        keep_for_snapshots(core, &view, extent.object).await?;
        if !core.may_exist(extent.object) {
            continue;
        }
        let is_striped = view.layout.is_striped();
        if core.state(extent.object) == Some(ObjectState::ExistsClean) {
            // To zero what is not there is no change; to cut the object off at its end is one.
            if is_striped && core.ends_before(&view, extent.object, extent.offset_bytes).await? {
                continue;
            }
            core.set_state(extent.object, ObjectState::Exists, None).await?;
        }
        let mut ops = ObjectOps::new();
        if is_striped {
            ops.zero(extent.offset_bytes, extent.len_bytes);
        } else {
            ops.truncate(extent.offset_bytes);
        }
        let name = view.object(extent.object);
        let sent = view.data.send_keeping(&name, ops, &view.snap_context).await;
        or_missing(sent).map_err(|errno| core.error("cutting an object off", errno))?;
    }
    Ok(())
}
