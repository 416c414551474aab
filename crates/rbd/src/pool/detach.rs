//! A clone leaves its parent: the parent's list of children loses it.
//!
//! A snapshot that was deleted while it had clones lies in its image's trash. When its last clone
//! leaves, it is removed.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;

use super::{Pool, or_missing};
use crate::error::RbdError;
use crate::find;
use crate::format::class::{self, ChildSpec, ParentSpec, SnapshotKind};
use crate::format::{features, names};
use crate::header::Header;
use crate::image::Core;

impl Pool {
    /// Takes a clone off its parent's list. It is no error if it is not there. `header` is that of
    /// the clone from before it forgot the parent.
    pub(super) async fn detach_child(
        &self,
        core: &Rc<Core>,
        header: &Header,
    ) -> Result<(), RbdError> {
        let Some(parent) = &header.parent else { return Ok(()) };
        let mut ops = ObjectOps::new();
        if header.op_features & features::OP_FEATURE_CLONE_CHILD == 0 {
            class::remove_child(&mut ops, parent, &core.id);
            let sent = core.store.send(names::CHILDREN, ops).await;
            return or_missing(sent)
                .map_err(|errno| core.error("taking it off the list of clones", errno));
        }
        let child = ChildSpec {
            pool: self.info.id,
            namespace: self.store.namespace.to_string(),
            image: core.id.clone(),
        };
        class::child_detach(&mut ops, parent.snapshot, &child);
        let store = self.store.with_pool(parent.pool).with_namespace(&parent.namespace);
        match store.send(&names::header(&parent.image), ops).await {
            Ok(_) => {}
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(core.error("taking it off its parent", errno)),
        }
        if let Err(error) = self.empty_trash(parent).await {
            // The clone has left all the same.
            tracing::warn!(image = %core.name, %error, "the parent's deleted snapshot stays");
        }
        Ok(())
    }

    /// Removes a snapshot of a parent if it lies in the trash and has no clones.
    fn empty_trash<'a>(
        &'a self,
        parent: &'a ParentSpec,
    ) -> Pin<Box<dyn Future<Output = Result<(), RbdError>> + 'a>> {
        // In a box: the snapshot may be the last one that needs a parent of its own.
        Box::pin(async move {
            let store = self.store.with_pool(parent.pool).with_namespace(&parent.namespace);
            let header = Header::load(&store, &parent.image, &parent.image).await?;
            if !is_unused_trash(&header, parent.snapshot) {
                return Ok(());
            }
            let name = find::name_of(&store, &parent.image).await?;
            let pools = self.cluster.pools().await;
            let pools = pools.map_err(|errno| RbdError::cluster(&name, "the pools", errno))?;
            let Some(info) = pools.into_iter().find(|pool| pool.id == parent.pool) else {
                return Err(RbdError::NoPool(parent.pool.0.to_string()));
            };
            let (cluster, timer, seed) =
                (self.cluster.clone(), self.timer.clone(), self.seed.clone());
            let pool = Pool { cluster, timer, info, store, seed };
            let of_parent = &pool;
            pool.with_image(&name, |core| async move {
                if !is_unused_trash(&core.header(), parent.snapshot) {
                    return Ok(());
                }
                of_parent.remove_one(&core, parent.snapshot).await
            })
            .await
        })
    }
}

fn is_unused_trash(header: &Header, snapshot: SnapId) -> bool {
    header.snapshot(snapshot).is_some_and(|snapshot| {
        matches!(snapshot.info.kind, SnapshotKind::Trash(_)) && snapshot.info.children == 0
    })
}
