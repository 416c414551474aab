//! Opening and closing an image.

use std::rc::Rc;

use fieldstone_rados::cluster::{Cluster, SnapId};

use super::core::{Core, ImageSpec, Opened};
use super::late::LATE_TIME;
use super::sync::{Spawner, Timer};
use super::view::View;
use crate::error::RbdError;
use crate::find;
use crate::header::Header;
use crate::store::{Store, find_pool};

/// Opens an image: finds it, reads its header and those of its parents, and watches it. The tasks
/// of the watch go to `spawner`. `begun` gets the image before it is watched: to break opening off,
/// close it.
pub(crate) async fn open(
    cluster: Cluster,
    timer: Timer,
    spawner: Spawner,
    spec: ImageSpec,
    begun: impl FnOnce(&Rc<Core>),
) -> Result<Rc<Core>, RbdError> {
    // Late writes of other images of this client do not concern this one.
    let cluster = cluster.for_new_sender();
    let path = ImageSpec { snapshot: None, ..spec.clone() }.path();
    let pool = find_pool(&cluster, &spec.pool).await?;
    let store = Store { reads: spec.reads, ..Store::new(&cluster, pool.id, &spec.namespace) };
    let id = find::id_of(&store, &spec.image).await.map_err(|error| error.with_path(&path))?;
    let header = Header::load(&store, &id, &spec.image).await;
    let header = header.map_err(|error| error.with_path(&path))?;
    let refused = header.check_features(!spec.is_read_only());
    refused.map_err(|error| error.with_path(&path))?;
    let snapshot = match &spec.snapshot {
        None => SnapId::HEAD,
        Some(name) => {
            let found = header.snapshot_named(name);
            found.map_err(|error| error.with_path(&path))?.info.id
        }
    };
    let view = View::open(&store, &header, snapshot, None, 0).await;
    let view = view.map_err(|error| error.with_path(&path))?;
    let identity = cluster.identity().await;
    let (client, _) = identity.map_err(|errno| RbdError::cluster(&path, "connecting", errno))?;
    let core = Core::new(cluster, timer, spawner, spec, Opened { store, header, view, client });
    begun(&core);
    match core.begin().await {
        Ok(()) => Ok(core),
        Err(error) => {
            core.close().await;
            Err(error)
        }
    }
}

impl Core {
    /// The steps that [`Core::close`] undoes.
    async fn begin(self: &Rc<Self>) -> Result<(), RbdError> {
        self.begin_watch().await?;
        // What changed between the header and the watch was not told.
        self.mark_stale();
        self.refresh().await?;
        if self.spec.exclusive && !self.spec.is_read_only() {
            self.acquire().await?;
        }
        self.check()
    }

    /// Requests fail from now on, and procedures that wait for the lock end. The watch goes on: as
    /// long as the header may name this client, others must not take it for dead.
    pub(crate) fn begin_close(&self) {
        if !self.closing.replace(true) {
            self.closes_by.set(self.timer.now().plus(LATE_TIME));
        }
        self.ownership.changed.happen();
        self.ownership.released.happen();
    }

    /// Gives the lock up after the writes in flight, and ends the watch. New requests fail.
    pub(crate) async fn close(self: &Rc<Self>) {
        self.begin_close();
        if self.fault().is_none() {
            self.release(false).await;
            self.finish_clean_up().await;
        }
        self.is_closed.set(true);
        self.ownership.changed.happen();
        let watch = self.watch.borrow_mut().take();
        if let Some(watch) = watch {
            // The OSD drops a watch that is not renewed.
            let _ = watch.end().await;
        }
        if self.ownership.left_behind.get() {
            // Clients that ask for the lock were told to wait until it is given up.
            self.tell_released().await;
        }
    }
}
