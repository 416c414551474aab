//! The images of a pool: making, changing and removing them.
//!
//! All are procedures; a host runs them in an executor, and moves the [`Timer`] on. A procedure
//! that changes an image opens it like any other client: it watches the header, gets the lock, and
//! tells the other clients when it is done. While it runs it keeps the lock; a client that asks for
//! it waits. If another client has the lock and keeps it, that client is asked to do the work.

mod clone;
mod create;
mod detach;
mod flatten;
mod remove;
mod resize;
mod serve;
mod snapshot;

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use fieldstone_block::Nanos;
use fieldstone_rados::cluster::{Cluster, PoolInfo};
use fieldstone_rados::errno::Errno;
use fieldstone_tasks::oneshot;

use crate::error::RbdError;
use crate::find;
use crate::format::notice::Notice;
use crate::format::request::Work;
use crate::header::Header;
use crate::image::{Core, ImageSpec, Spawner, Timer, View, open};
use crate::store::{Store, find_pool};

pub use create::CreateOptions;
pub(crate) use serve::carry_out;

/// Told how far a procedure is: objects done, of this many.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Objects that are removed or rolled back at the same time.
const OBJECTS_AT_ONCE: usize = 64;
/// Objects that a procedure looks at before other tasks of the core get their turn.
const OBJECTS_PER_TURN: u64 = 4096;

/// A namespace of a pool.
pub struct Pool {
    cluster: Cluster,
    timer: Timer,
    info: PoolInfo,
    store: Store,
    /// Makes ids of images differ.
    seed: Cell<u64>,
}

impl Pool {
    /// Finds a pool. `seed` makes the ids of new images differ from those of other clients' images
    /// together with the number of the client.
    ///
    /// # Errors
    /// There is no such pool.
    pub async fn open(
        cluster: Cluster,
        timer: Timer,
        pool: &str,
        namespace: &str,
        seed: u64,
    ) -> Result<Self, RbdError> {
        let info = find_pool(&cluster, pool).await?;
        let store = Store::new(&cluster, info.id, namespace);
        Ok(Self { cluster, timer, info, store, seed: Cell::new(seed) })
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &PoolInfo {
        &self.info
    }

    /// Names of all images, in order.
    ///
    /// # Errors
    /// The cluster answers with an error.
    pub async fn list(&self) -> Result<Vec<String>, RbdError> {
        let images = find::list(&self.store).await?;
        Ok(images.into_iter().map(|(name, _)| name).collect())
    }

    /// The metadata of an image.
    ///
    /// # Errors
    /// There is no such image.
    pub async fn info(&self, image: &str) -> Result<Header, RbdError> {
        let id = find::id_of(&self.store, image).await.map_err(|error| self.named(error, image))?;
        let header = Header::load(&self.store, &id, image).await;
        header.map_err(|error| self.named(error, image))
    }

    fn spec(&self, image: &str) -> ImageSpec {
        ImageSpec {
            pool: self.info.name.clone(),
            namespace: self.store.namespace.to_string(),
            image: image.to_owned(),
            ..ImageSpec::default()
        }
    }

    fn path(&self, image: &str) -> String {
        self.spec(image).path()
    }

    fn named(&self, error: RbdError, image: &str) -> RbdError {
        error.with_path(&self.path(image))
    }

    /// Opens an image, does something with it, and closes it.
    async fn open_and<T, F>(
        &self,
        image: &str,
        work: impl FnOnce(Rc<Core>) -> F,
    ) -> Result<T, RbdError>
    where
        F: Future<Output = Result<T, RbdError>>,
    {
        let spawner = Spawner::default();
        let (cluster, timer) = (self.cluster.clone(), self.timer.clone());
        let procedure = async {
            let core = open(cluster, timer, spawner.clone(), self.spec(image), |_| {}).await?;
            let result = work(Rc::clone(&core)).await;
            core.close().await;
            result
        };
        spawner.run_with(procedure).await
    }

    /// Opens an image, gets its lock, changes it, tells the other clients, and closes it.
    async fn with_image<T, F>(
        &self,
        image: &str,
        change: impl FnOnce(Rc<Core>) -> F,
    ) -> Result<T, RbdError>
    where
        F: Future<Output = Result<T, RbdError>>,
    {
        self.open_and(image, |core| async move {
            let _pass = core.enter_as_owner().await?;
            let result = change(Rc::clone(&core)).await;
            core.notify(&Notice::HeaderUpdate).await;
            result
        })
        .await
    }

    /// As [`Pool::with_image`]; but if another client keeps the lock, that client is asked for the
    /// work, and `done` gives the result.
    async fn with_image_or_owner<'a, T, F>(
        &self,
        image: &str,
        work: Work,
        progress: Progress<'a>,
        change: impl FnOnce(Rc<Core>, Progress<'a>) -> F,
        done: impl FnOnce(&Core) -> Result<T, RbdError>,
    ) -> Result<T, RbdError>
    where
        F: Future<Output = Result<T, RbdError>>,
    {
        self.open_and(image, |core| async move {
            let _pass = match core.enter_as_owner().await {
                Ok(pass) => pass,
                Err(error) => {
                    core.ask_if_kept(error, &work, progress).await?;
                    return done(&core);
                }
            };
            let result = change(Rc::clone(&core), progress).await;
            core.notify(&Notice::HeaderUpdate).await;
            result
        })
        .await
    }
}

/// Does something with many objects, some at the same time.
async fn each_object<F>(
    core: &Rc<Core>,
    objects: std::ops::Range<u64>,
    progress: Progress<'_>,
    work: impl Fn(Rc<Core>, Rc<View>, u64) -> F,
) -> Result<(), RbdError>
where
    F: Future<Output = Result<(), RbdError>> + 'static,
{
    each_object_that(core, objects, progress, |_, _| true, work).await
}

/// As [`each_object`], for the objects for which there is anything to do. The object map denies
/// most objects of a large thin image: so other tasks of the core get their turn after
/// [`OBJECTS_PER_TURN`] objects, even if none of them needs an answer of the cluster.
async fn each_object_that<F>(
    core: &Rc<Core>,
    objects: std::ops::Range<u64>,
    progress: Progress<'_>,
    needs_work: impl Fn(&View, u64) -> bool,
    work: impl Fn(Rc<Core>, Rc<View>, u64) -> F,
) -> Result<(), RbdError>
where
    F: Future<Output = Result<(), RbdError>> + 'static,
{
    let total = objects.end.saturating_sub(objects.start);
    let view = core.view();
    let (mut next, mut pause_at) = (objects.start, objects.start + OBJECTS_PER_TURN);
    while next < objects.end {
        core.check()?;
        core.still_owns()?;
        let end = objects.end.min(pause_at);
        let mut running = Vec::new();
        while next < end && running.len() < OBJECTS_AT_ONCE {
            if needs_work(&view, next) {
                let (filler, done) = oneshot();
                let task = work(Rc::clone(core), Rc::clone(&view), next);
                core.spawner.spawn(async move { filler.fill(task.await) });
                running.push(done);
            }
            next += 1;
        }
        let mut result = Ok(());
        for done in running {
            result = result.and(done.await);
        }
        result?;
        progress(next - objects.start, total);
        if next == pause_at {
            pause_at += OBJECTS_PER_TURN;
            core.timer.sleep(Nanos(0)).await;
        }
    }
    Ok(())
}

/// No object is no error.
fn or_missing<T>(result: Result<T, Errno>) -> Result<(), Errno> {
    result.map(drop).or_else(|errno| if errno == Errno::ENOENT { Ok(()) } else { Err(errno) })
}
