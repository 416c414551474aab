//! Clones of format 2: images that begin as a snapshot of another, their parent.

use fieldstone_rados::op::ObjectOps;

use super::{CreateOptions, Pool, or_missing};
use crate::error::RbdError;
use crate::find;
use crate::format::class::{self, ChildSpec, ParentSpec};
use crate::format::{Features, features, names};

impl Pool {
    /// Makes a clone of a snapshot of an image in `parent`, which may be the same pool. The size in
    /// the options does not matter: it is the snapshot's. Gives the id of the clone.
    ///
    /// # Errors
    /// There is no such snapshot, or an image of the clone's name; or the cluster answers with an
    /// error. Then nothing is left of the clone, unless the cluster does not answer at all: then
    /// the clone is to be removed.
    pub async fn clone_image(
        &self,
        parent: &Pool,
        image: &str,
        snapshot: &str,
        name: &str,
        options: &CreateOptions,
    ) -> Result<String, RbdError> {
        let id = find::id_of(&parent.store, image).await;
        let id = id.map_err(|error| parent.named(error, image))?;
        let header = parent.info(image).await?;
        header.check_features(false)?;
        if !header.features.has(Features::LAYERING) {
            return Err(RbdError::Feature {
                image: parent.path(image),
                feature: "layering".to_owned(),
                reason: "the image was made without it, and cannot be a parent",
            });
        }
        let snapshot = header.snapshot_named(snapshot)?;
        let size_bytes = snapshot.info.size_bytes;
        let spec = ParentSpec {
            pool: parent.info.id,
            namespace: parent.store.namespace.to_string(),
            image: id,
            snapshot: snapshot.info.id,
        };
        let features = options.features.with(Features::LAYERING);
        let options = CreateOptions { size_bytes, features, ..options.clone() };
        let child = self.create(name, &options).await?;
        let attached = self.attach(parent, &spec, name, &child, size_bytes).await;
        let Err(error) = attached else { return Ok(child) };
        // The parent may have the clone on its list: the answer that said so may be lost.
        let mut ops = ObjectOps::new();
        class::child_detach(&mut ops, spec.snapshot, &self.child(&child));
        let detached = parent.store.send(&names::header(&spec.image), ops).await;
        match or_missing(detached) {
            Ok(()) => self.clean_up(name, &child).await,
            // An image that is there can be removed, and then leaves its parent.
            Err(errno) => {
                let image = name;
                tracing::warn!(image, %errno, "the clone may be on its parent's list; it stays");
            }
        }
        Err(error)
    }

    fn child(&self, id: &str) -> ChildSpec {
        ChildSpec {
            pool: self.info.id,
            namespace: self.store.namespace.to_string(),
            image: id.to_owned(),
        }
    }

    async fn attach(
        &self,
        parent: &Pool,
        spec: &ParentSpec,
        name: &str,
        child: &str,
        size_bytes: u64,
    ) -> Result<(), RbdError> {
        let failed = |action| move |errno| RbdError::cluster(name, action, errno);
        let mut ops = ObjectOps::new();
        class::parent_attach(&mut ops, spec, size_bytes);
        let clone = features::OP_FEATURE_CLONE_CHILD;
        class::op_features_set(&mut ops, clone, clone);
        let sent = self.store.send(&names::header(child), ops).await;
        sent.map_err(failed("setting its parent"))?;
        let mut ops = ObjectOps::new();
        class::child_attach(&mut ops, spec.snapshot, &self.child(child));
        let sent = parent.store.send(&names::header(&spec.image), ops).await;
        sent.map(drop).map_err(failed("adding it to its parent"))
    }
}
