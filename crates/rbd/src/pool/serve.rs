//! What the owner of an image's lock does for other clients: the same procedures as commands run,
//! on an image that is open and in use.

use std::rc::Rc;

use super::create::check_name;
use super::flatten::copy_parent;
use super::{Pool, Progress, resize, snapshot};
use crate::error::RbdError;
use crate::format::request::Work;
use crate::image::Core;
use crate::store::Store;

/// Carries out what another client has asked for. The image has the lock, and keeps it meanwhile.
///
/// # Errors
/// Those of the procedures; or the lock was lost, which the caller sees by
/// [`Core::owns_lock`].
pub(crate) async fn carry_out(
    core: &Rc<Core>,
    work: &Work,
    progress: Progress<'_>,
) -> Result<(), RbdError> {
    let pool = Pool::of(core).await?;
    core.refresh().await?;
    if matches!(work, Work::Flatten) {
        // Object by object, beside the writes.
        let _pass = core.enter().await;
        core.still_owns()?;
        copy_parent(core, &mut *progress).await?;
    }
    let _alone = core.enter_alone().await;
    core.still_owns()?;
    core.refresh().await?;
    let result = pool.change(core, work, progress).await;
    if result.is_err() {
        // The header may have changed all the same. Writes that wait at the gate need the new one.
        core.mark_stale();
    }
    result
}

impl Pool {
    /// Changes an image. The caller has the lock, and no write is under way.
    async fn change(
        &self,
        core: &Rc<Core>,
        work: &Work,
        progress: Progress<'_>,
    ) -> Result<(), RbdError> {
        match work {
            Work::Flatten => self.forget_parent(core).await,
            Work::Resize { size_bytes, may_shrink } => {
                resize::check_size(core, *size_bytes, *may_shrink)?;
                resize::resize(core, *size_bytes, progress).await
            }
            Work::CreateSnapshot(name) => {
                check_name(name)?;
                snapshot::create(core, name).await.map(drop)
            }
            Work::RemoveSnapshot(name) => {
                let id = core.header().snapshot_named(name)?.info.id;
                self.remove_one(core, id).await
            }
            Work::RenameSnapshot(id, name) => {
                check_name(name)?;
                snapshot::rename(core, *id, name).await
            }
            Work::ProtectSnapshot(name) => snapshot::protect(core, name).await,
            Work::UnprotectSnapshot(name) => self.unprotect(core, name).await,
        }
    }

    /// The pool of an open image. It may have got another name since the image was opened.
    async fn of(core: &Rc<Core>) -> Result<Self, RbdError> {
        let (cluster, timer) = (core.cluster.clone(), core.timer.clone());
        let pools = cluster.pools().await;
        let pools = pools.map_err(|errno| core.error("the list of pools", errno))?;
        let info = pools.into_iter().find(|pool| pool.id == core.store.pool);
        let info = info.ok_or_else(|| RbdError::NoPool(core.spec.pool.clone()))?;
        let store = Store::new(&cluster, info.id, &core.spec.namespace);
        Ok(Self { cluster, timer, info, store, seed: Default::default() })
    }
}
