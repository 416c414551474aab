//! A clone becomes independent of its parent.
//!
//! Each object that only the parent has is copied up; with `deep-flatten`, so that the snapshots
//! find it as well. Then the header forgets the parent, and the parent forgets the clone. If that
//! is broken off, the clone is still a clone, of which less is missing; flattening again goes on.
//!
//! Without `deep-flatten`, snapshots of the clone still need the parent. The clone stays on the
//! parent's list until the last of them is removed.

use std::rc::Rc;

use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;

use super::{Pool, Progress, each_object};
use crate::error::RbdError;
use crate::format::class;
use crate::format::request::Work;
use crate::image::Core;

impl Pool {
    /// Makes a clone independent of its parent.
    ///
    /// # Errors
    /// There is no such image, it is no clone, or the cluster answers with an error.
    pub async fn flatten(&self, image: &str, progress: Progress<'_>) -> Result<(), RbdError> {
        self.with_image_or_owner(
            image,
            Work::Flatten,
            progress,
            |core, progress| async move {
                copy_parent(&core, progress).await?;
                self.forget_parent(&core).await
            },
            |_| Ok(()),
        )
        .await
    }

    /// The header forgets the parent, after [`copy_parent`]. The caller has the lock, and no
    /// other write is under way.
    pub(super) async fn forget_parent(&self, core: &Rc<Core>) -> Result<(), RbdError> {
        let header = core.header();
        let mut ops = ObjectOps::new();
        core.assert_owner(&mut ops);
        class::parent_detach(&mut ops);
        match core.store.send(&core.header_object(), ops).await {
            // It has been done already.
            Ok(_) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(core.error("forgetting its parent", errno)),
        }
        core.mark_stale();
        core.refresh().await?;
        let now = core.header();
        let needs_parent = now.snapshots.iter().any(|snapshot| snapshot.overlap_bytes.is_some());
        if needs_parent { Ok(()) } else { self.detach_child(core, &header).await }
    }
}

/// Copies up each object that only the parent has. The caller has the lock; others may write.
pub(super) async fn copy_parent(core: &Rc<Core>, progress: Progress<'_>) -> Result<(), RbdError> {
    let header = core.header();
    let (Some(_), Some(overlap_bytes)) = (&header.parent, header.overlap_bytes) else {
        return Err(RbdError::Invalid(format!("image {} has no parent", core.name)));
    };
    let objects = header.layout.objects(overlap_bytes.min(header.size_bytes));
    each_object(core, 0..objects, progress, |core, view, object| async move {
        let _guard = core.lock_object(object).await;
        core.copy_up(&view, object).await
    })
    .await
}
