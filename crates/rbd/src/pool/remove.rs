//! Removing images.

use std::rc::Rc;

use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rados::op::results::Watchers;

use super::{Pool, Progress, each_object};
use crate::error::RbdError;
use crate::find;
use crate::format::{class, names};
use crate::image::Core;
use crate::store::answer;

/// The OSD's class has not the method, or the image not the feature.
const ENOEXEC: Errno = Errno(8);

impl Pool {
    /// Removes an image with all its data.
    ///
    /// A removal that was broken off goes on where it was.
    ///
    /// # Errors
    /// There is no such image; clients have it open; it has snapshots, belongs to a group or is
    /// mirrored; or the cluster answers with an error.
    pub async fn remove(&self, image: &str, progress: Progress<'_>) -> Result<(), RbdError> {
        let id = self.find_for_removal(image).await.map_err(|error| self.named(error, image))?;
        let emptied = self
            .with_image(image, |core| async move {
                self.check_unused(&core).await?;
                // The map goes with the image. What it says meanwhile is too much, never too
                // little.
                *core.map.borrow_mut() = None;
                let objects = core.header().objects();
                each_object(&core, 0..objects, progress, |core, view, object| async move {
                    core.remove_object(&view, object).await
                })
                .await?;
                let header = core.header();
                self.detach_child(&core, &header).await
            })
            .await;
        match emptied {
            // Only the header is gone already.
            Ok(()) => self.remove_metadata(image, &id).await,
            Err(RbdError::NoImage(path)) if path == self.path(image) => {
                self.remove_metadata(image, &id).await
            }
            Err(error) => Err(error),
        }
    }

    /// The id of an image, which may be removed in parts. If the object with the id is gone, but
    /// not the entry in the directory, it is made again, so that the image can be opened if there
    /// is anything left of it.
    async fn find_for_removal(&self, image: &str) -> Result<String, RbdError> {
        match find::id_of(&self.store, image).await {
            Err(RbdError::NoImage(_)) => {}
            other => return other,
        }
        let id = find::id_in_directory(&self.store, image).await?;
        match self.make_id_object(image, &id).await {
            Ok(()) | Err(Errno::EEXIST) => Ok(id),
            Err(errno) => Err(RbdError::cluster(image, "making its id again", errno)),
        }
    }

    async fn check_unused(&self, core: &Rc<Core>) -> Result<(), RbdError> {
        let in_use = |reason: String| Err(RbdError::InUse { image: core.name.clone(), reason });
        let header = core.header();
        if !header.snapshots.is_empty() {
            return in_use(format!(
                "it has {} snapshots; remove them first",
                header.snapshots.len()
            ));
        }
        let mut ops = ObjectOps::new();
        ops.list_watchers();
        let reply = core.store.send(&core.header_object(), ops).await;
        let reply = reply.map_err(|errno| core.error("listing who has it open", errno))?;
        let data =
            answer(&reply, 0).map_err(|errno| core.error("listing who has it open", errno))?;
        let watchers =
            Watchers::decode(data).map_err(|fault| RbdError::damaged(&core.name, &fault))?;
        let own = core.client_id();
        let other = watchers
            .0
            .iter()
            .find(|info| (info.watcher.client, info.watcher.cookie) != (own.client, own.watch));
        if let Some(other) = other {
            return in_use(format!(
                "client.{} at {} has it open; close it there, or wait 30 seconds if that client \
                 is gone",
                other.watcher.client, other.address
            ));
        }
        let mut ops = ObjectOps::new();
        class::image_group_get(&mut ops);
        let failed = |errno| core.error("looking for its group", errno);
        let group = match core.store.send(&core.header_object(), ops).await {
            Ok(reply) => {
                let data = answer(&reply, 0).map_err(failed)?;
                class::decode_group(data).map_err(|fault| RbdError::damaged(&core.name, &fault))?
            }
            // It belongs to none, or the OSD knows no groups.
            Err(Errno::ENOENT | ENOEXEC | Errno::EOPNOTSUPP) => None,
            Err(errno) => return Err(failed(errno)),
        };
        if let Some(group) = group {
            return in_use(format!("it belongs to the group {group}; take it out first"));
        }
        let mut ops = ObjectOps::new();
        class::mirror_image_get(&mut ops, &core.id);
        match core.store.send(names::MIRRORING, ops).await {
            Ok(_) => in_use("it is mirrored; disable that with `rbd mirror image disable`".into()),
            Err(Errno::ENOENT | Errno::EOPNOTSUPP) => Ok(()),
            Err(errno) => Err(core.error("looking whether it is mirrored", errno)),
        }
    }
}
