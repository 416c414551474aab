//! New images, and new names.
//!
//! An image is made in steps: the object with its id, which takes the name; the entry in the
//! directory; the header; the object map. If a step fails, the steps that were done are undone, the
//! last one first. If the client dies in the middle, the id object is there: the name is taken, and
//! [`Pool::remove`] removes the remains.

use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;

use super::{Pool, or_missing};
use crate::error::RbdError;
use crate::find;
use crate::format::object_map::OBJECTS_MAX;
use crate::format::{Features, Layout, ObjectState, class, names};
use crate::store::find_pool;

/// How a new image is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// The size.
    pub size_bytes: u64,
    /// The size of an object, as a power of two.
    pub order: u8,
    /// The features. What they need is added.
    pub features: Features,
    /// The stripe unit; 0 for no striping.
    pub stripe_unit: u64,
    /// The stripe count; 0 for no striping.
    pub stripe_count: u64,
    /// The pool of data objects, if it is another.
    pub data_pool: Option<String>,
}

impl CreateOptions {
    /// An image of this size, as Ceph makes it unless told otherwise: objects of 4 MiB, features
    /// [`Features::DEFAULT`].
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            order: 22,
            features: Features::DEFAULT,
            stripe_unit: 0,
            stripe_count: 0,
            data_pool: None,
        }
    }
}

/// How often an id is drawn, because there is an image of this id already.
const IDS_MAX: usize = 4;

/// A step of making an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    IdObject,
    Directory,
    Header,
    ObjectMap,
}

/// The parameters of an image that is made.
struct ImageParams {
    layout: Layout,
    features: Features,
    data_pool: Option<PoolId>,
    id: String,
}

impl Pool {
    /// Makes an image. Gives its id.
    ///
    /// # Errors
    /// There is an image of this name, the options make no sense, or the cluster answers with an
    /// error. Then nothing is left of the image.
    pub async fn create(&self, name: &str, options: &CreateOptions) -> Result<String, RbdError> {
        let mut params = self.params(name, options).await?;
        for _ in 0..IDS_MAX {
            let mut done = Vec::new();
            let Err((step, error)) = self.make(name, options, &params, &mut done).await else {
                return Ok(params.id);
            };
            self.undo(name, &params.id, &done).await;
            let is_taken = error.errno() == Some(Errno::EEXIST);
            match step {
                Step::IdObject | Step::Directory if is_taken => {
                    return Err(RbdError::Exists(format!("image {}", self.path(name))));
                }
                // Another image has the id.
                Step::Header if is_taken => params.id = self.new_id(name).await?,
                Step::Directory if error.errno() == Some(Errno::ENOENT) => {
                    return Err(RbdError::Invalid(format!(
                        "pool {} has no namespace {}; make it with `rbd namespace create`",
                        self.info.name, self.store.namespace
                    )));
                }
                _ => return Err(error),
            }
        }
        Err(RbdError::cluster(name, "making its header", Errno::EEXIST))
    }

    async fn params(&self, name: &str, options: &CreateOptions) -> Result<ImageParams, RbdError> {
        let invalid = |reason: String| Err(RbdError::Invalid(format!("image {name}: {reason}")));
        check_name(name)?;
        if self.info.is_erasure_coded {
            return invalid(format!(
                "pool {} is erasure-coded and cannot hold headers; use a replicated pool, and name \
                 this one as the data pool",
                self.info.name
            ));
        }
        let layout = Layout::new(options.order, options.stripe_unit, options.stripe_count);
        let layout = match layout {
            Ok(layout) => layout,
            Err(fault) => return invalid(fault.to_string()),
        };
        let mut features = options.features.completed();
        if layout.is_striped() || layout.stripe_unit() != layout.object_bytes() {
            features = features.with(Features::STRIPING);
        } else {
            features = features.without(Features::STRIPING);
        }
        let data_pool = match &options.data_pool {
            None => None,
            Some(pool) => Some(find_pool(&self.cluster, pool).await?),
        };
        if let Some(pool) = &data_pool {
            if pool.is_erasure_coded && !pool.takes_overwrites {
                return invalid(format!(
                    "data pool {0} takes no overwrites; allow them with `ceph osd pool set {0} \
                     allow_ec_overwrites true`",
                    pool.name
                ));
            }
            features = features.with(Features::DATA_POOL);
        } else {
            features = features.without(Features::DATA_POOL);
        }
        let refused = features.without(Features::CREATABLE);
        if refused.0 != 0 {
            return invalid(format!("images with {refused} are not made here"));
        }
        if features.has(Features::OBJECT_MAP) && layout.objects(options.size_bytes) > OBJECTS_MAX {
            return invalid(format!(
                "it has more than {OBJECTS_MAX} objects; use larger objects, or no object map"
            ));
        }
        let id = self.new_id(name).await?;
        Ok(ImageParams { layout, features, data_pool: data_pool.map(|pool| pool.id), id })
    }

    async fn new_id(&self, name: &str) -> Result<String, RbdError> {
        let identity = self.cluster.identity().await;
        let (client, _) = identity.map_err(|errno| RbdError::cluster(name, "connecting", errno))?;
        // Steps of an odd number meet all values before one comes again.
        let random = self.seed.get();
        self.seed.set(random.wrapping_add(0x9e37_79b9_7f4a_7c15));
        Ok(names::new_id(client, random >> 32 ^ random))
    }

    /// Makes an image. What was done is in `done`, also after an error.
    async fn make(
        &self,
        name: &str,
        options: &CreateOptions,
        params: &ImageParams,
        done: &mut Vec<Step>,
    ) -> Result<(), (Step, RbdError)> {
        let failed = |step, action| move |errno| (step, RbdError::cluster(name, action, errno));
        self.make_id_object(name, &params.id)
            .await
            .map_err(failed(Step::IdObject, "making its id"))?;
        done.push(Step::IdObject);

        let mut ops = ObjectOps::new();
        if !self.store.namespace.is_empty() {
            class::dir_state_assert(&mut ops, 0);
        }
        class::dir_add_image(&mut ops, name, &params.id);
        let sent = self.store.send(names::DIRECTORY, ops).await;
        sent.map_err(failed(Step::Directory, "adding it to the directory"))?;
        done.push(Step::Directory);

        let mut ops = ObjectOps::new();
        let metadata_pool = params.data_pool.map(|_| self.info.id);
        let prefix = names::data_prefix(&params.id, metadata_pool);
        let order = params.layout.order();
        ops.create(true);
        class::create(
            &mut ops,
            options.size_bytes,
            order,
            params.features,
            &prefix,
            params.data_pool,
        );
        let sent = self.store.send(&names::header(&params.id), ops).await;
        sent.map_err(failed(Step::Header, "making its header"))?;
        done.push(Step::Header);

        if params.features.has(Features::STRIPING) {
            // A request of its own: the class reads the features, and a request does not see its
            // own changes.
            let mut ops = ObjectOps::new();
            let (unit, count) = (params.layout.stripe_unit(), params.layout.stripe_count());
            class::set_stripe_unit_count(&mut ops, unit, count);
            let sent = self.store.send(&names::header(&params.id), ops).await;
            sent.map_err(failed(Step::ObjectMap, "setting its striping"))?;
        }

        if params.features.has(Features::OBJECT_MAP) {
            let mut ops = ObjectOps::new();
            let objects = params.layout.objects(options.size_bytes);
            class::object_map_resize(&mut ops, objects, ObjectState::Nonexistent);
            let object = names::object_map(&params.id, SnapId::HEAD);
            let sent = self.store.send(&object, ops).await;
            sent.map_err(failed(Step::ObjectMap, "making its object map"))?;
            done.push(Step::ObjectMap);
        }
        Ok(())
    }

    /// Makes the object with the id. `EEXIST` if there is one.
    pub(super) async fn make_id_object(&self, name: &str, id: &str) -> Result<(), Errno> {
        let mut ops = ObjectOps::new();
        ops.create(true);
        class::set_id(&mut ops, id);
        self.store.send(&names::id_object(name), ops).await.map(drop)
    }

    /// Undoes steps, as far as that goes. An error ends it: the earlier steps show what is left.
    async fn undo(&self, name: &str, id: &str, done: &[Step]) {
        for step in done.iter().rev() {
            let mut ops = ObjectOps::new();
            let object = match step {
                Step::IdObject => names::id_object(name),
                Step::Directory => names::DIRECTORY.to_owned(),
                Step::Header => names::header(id),
                Step::ObjectMap => names::object_map(id, SnapId::HEAD),
            };
            match step {
                Step::Directory => class::dir_remove_image(&mut ops, name, id),
                _ => {
                    ops.delete();
                }
            }
            if let Err(errno) = or_missing(self.store.send(&object, ops).await) {
                tracing::warn!(image = name, %errno, "something is left of the image");
                return;
            }
        }
    }

    /// Removes what is left of an image that could not be made, as far as that goes.
    pub(super) async fn clean_up(&self, name: &str, id: &str) {
        let removed = self.remove_metadata(name, id).await;
        if let Err(error) = removed {
            tracing::warn!(image = name, %error, "something is left of the image");
        }
    }

    /// Removes header, object map, id and the entry in the directory. What is gone already is no
    /// error.
    pub(super) async fn remove_metadata(&self, name: &str, id: &str) -> Result<(), RbdError> {
        let failed = |errno| RbdError::cluster(name, "removing its metadata", errno);
        let id_object = names::id_object(name);
        for object in [names::header(id), names::object_map(id, SnapId::HEAD), id_object] {
            let mut ops = ObjectOps::new();
            ops.delete();
            or_missing(self.store.send(&object, ops).await).map_err(failed)?;
        }
        let mut ops = ObjectOps::new();
        class::dir_remove_image(&mut ops, name, id);
        or_missing(self.store.send(names::DIRECTORY, ops).await).map_err(failed)
    }

    /// Gives an image another name. Clients that have it open go on. A change of the name that was
    /// broken off goes on where it was.
    ///
    /// # Errors
    /// There is no such image, or one of the new name; or the cluster answers with an error. Then
    /// the image has one of the names, or both.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), RbdError> {
        check_name(to)?;
        let id = find::id_of(&self.store, from).await.map_err(|error| self.named(error, from))?;
        let failed = |action| move |errno| RbdError::cluster(from, action, errno);
        let is_new = match self.make_id_object(to, &id).await {
            Ok(()) => true,
            // This image's own: an earlier try was broken off.
            Err(Errno::EEXIST) if from != to && self.has_id(to, &id).await => false,
            Err(Errno::EEXIST) => {
                return Err(RbdError::Exists(format!("image {}", self.path(to))));
            }
            Err(errno) => return Err(failed("making its new id")(errno)),
        };
        let mut ops = ObjectOps::new();
        class::dir_rename_image(&mut ops, from, to, &id);
        if let Err(errno) = self.store.send(names::DIRECTORY, ops).await {
            // The answer of a change that was made may be lost. The image needs the object with
            // its id then.
            let in_directory = find::id_in_directory(&self.store, to).await;
            if !in_directory.as_ref().is_ok_and(|found| *found == id) {
                let can_be_read = matches!(in_directory, Ok(_) | Err(RbdError::NoImage(_)));
                if is_new && can_be_read && is_refusal_of_directory(errno) {
                    let mut ops = ObjectOps::new();
                    ops.delete();
                    let _ = self.store.send(&names::id_object(to), ops).await;
                }
                return Err(failed("renaming it in the directory")(errno));
            }
        }
        let mut ops = ObjectOps::new();
        ops.delete();
        or_missing(self.store.send(&names::id_object(from), ops).await)
            .map_err(failed("removing its old id"))
    }

    async fn has_id(&self, name: &str, id: &str) -> bool {
        find::id_of(&self.store, name).await.is_ok_and(|found| found == id)
    }
}

/// True if the directory's class gave the error: it has changed nothing.
fn is_refusal_of_directory(errno: Errno) -> bool {
    matches!(errno, Errno::ESTALE | Errno::EEXIST | Errno::ENOENT | Errno::EINVAL | Errno::EBUSY)
}

/// Refuses names that other clients could not use.
pub(super) fn check_name(name: &str) -> Result<(), RbdError> {
    let is_bad = |c: char| matches!(c, '/' | '@') || c.is_control();
    if name.is_empty() || name.len() > names::NAME_BYTES_MAX || name.contains(is_bad) {
        return Err(RbdError::Invalid(format!(
            "`{name}` is no name of an image or a snapshot: it must have 1 to {} bytes, and no \
             `/`, `@` or control character",
            names::NAME_BYTES_MAX
        )));
    }
    Ok(())
}
