//! What the procedures of one open image share.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use fieldstone_block::Nanos;
use fieldstone_rados::cluster::{Cluster, SnapId, Watch};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::settings::ReadPolicy;
use fieldstone_tasks::Lock;

use super::asking::Asking;
use super::owner::Ownership;
use super::requests::Requests;
use super::sync::{Alone, Event, Gate, ObjectLockGuard, ObjectLocks, Pass, Spawner, Timer};
use super::view::View;
use crate::error::RbdError;
use crate::format::notice::ClientId;
use crate::format::{Features, ObjectMap, names};
use crate::header::Header;
use crate::store::Store;

/// Which image is opened, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSpec {
    /// The name of the pool.
    pub pool: String,
    /// The namespace; empty for the default one.
    pub namespace: String,
    /// The name of the image.
    pub image: String,
    /// The name of a snapshot; `None` for the present state.
    pub snapshot: Option<String>,
    /// No writes. Snapshots are always read-only.
    pub read_only: bool,
    /// Takes the lock at once, and keeps it: other clients cannot write.
    pub exclusive: bool,
    /// The members of a placement group that may answer reads of data.
    pub reads: ReadPolicy,
    /// Layers above may keep data while the image is this client's alone. So before the image
    /// gives the lock up, it waits for `Backend::settled`.
    pub has_layers: bool,
}

impl ImageSpec {
    /// The image as users write it: `pool/namespace/image@snapshot`.
    #[must_use]
    pub fn path(&self) -> String {
        let mut path = self.pool.clone();
        if !self.namespace.is_empty() {
            path = format!("{path}/{}", self.namespace);
        }
        path = format!("{path}/{}", self.image);
        match &self.snapshot {
            Some(snapshot) => format!("{path}@{snapshot}"),
            None => path,
        }
    }

    /// True if the image takes no writes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.snapshot.is_some()
    }
}

/// How long a client waits before it tries a watch or a header again.
pub(crate) const RETRY_PAUSE: Nanos = Nanos::from_ms(500);

/// The state of an open image.
pub(crate) struct Core {
    pub(crate) cluster: Cluster,
    pub(crate) timer: Timer,
    pub(crate) spawner: Spawner,
    pub(crate) spec: ImageSpec,
    /// The path, for messages.
    pub(crate) name: String,
    /// The place of the header.
    pub(crate) store: Store,
    pub(crate) id: String,
    pub(crate) snapshot: SnapId,
    /// This client's number.
    pub(crate) client: u64,
    header: RefCell<Rc<Header>>,
    view: RefCell<Rc<View>>,
    /// The watch of the header. `None` while there is none.
    pub(crate) watch: RefCell<Option<Rc<Watch>>>,
    /// Who owns the lock, as far as this client knows.
    pub(crate) ownership: Ownership,
    /// What other clients have asked the owner for.
    pub(crate) requests: Requests,
    /// What this client has asked the owner for.
    pub(crate) asking: Asking,
    /// The object map, while this client owns it, or that of the snapshot.
    pub(crate) map: RefCell<Option<ObjectMap>>,
    gate: Gate,
    object_locks: ObjectLocks,
    /// Why the image takes no more requests.
    fault: RefCell<Option<RbdError>>,
    /// The image is being closed: it takes no more requests.
    pub(crate) closing: Cell<bool>,
    /// Then the image that is being closed waits no longer for late writes.
    pub(super) closes_by: Cell<Nanos>,
    /// The lock is given up or left behind, and the watch has ended.
    pub(super) is_closed: Cell<bool>,
    /// How often the header may have changed, and how many of these changes have been read.
    changes: Cell<u64>,
    changes_read: Cell<u64>,
    refreshing: Lock,
    /// Numbers of writes in flight, for flushes.
    writes: RefCell<BTreeSet<u64>>,
    next_write: Cell<u64>,
    write_done: Event,
}

/// Handles of the core, for passes and for locks of objects.
pub(crate) struct GateOf(Rc<Core>);
pub(crate) struct ObjectLocksOf(Rc<Core>);

impl AsRef<Gate> for GateOf {
    fn as_ref(&self) -> &Gate {
        &self.0.gate
    }
}

impl AsRef<ObjectLocks> for ObjectLocksOf {
    fn as_ref(&self) -> &ObjectLocks {
        &self.0.object_locks
    }
}

/// A write is in flight until this is dropped.
pub(crate) struct WriteTicket {
    core: Rc<Core>,
    number: u64,
}

impl Drop for WriteTicket {
    fn drop(&mut self) {
        self.core.writes.borrow_mut().remove(&self.number);
        self.core.write_done.happen();
    }
}

/// The parts of a core that opening has found.
pub(crate) struct Opened {
    pub(crate) store: Store,
    pub(crate) header: Header,
    pub(crate) view: Rc<View>,
    pub(crate) client: u64,
}

impl Core {
    pub(crate) fn new(
        cluster: Cluster,
        timer: Timer,
        spawner: Spawner,
        spec: ImageSpec,
        opened: Opened,
    ) -> Rc<Self> {
        let Opened { store, header, view, client } = opened;
        Rc::new(Self {
            cluster,
            timer,
            spawner,
            name: spec.path(),
            spec,
            store,
            id: header.id.clone(),
            snapshot: view.snapshot,
            client,
            header: RefCell::new(Rc::new(header)),
            view: RefCell::new(view),
            watch: RefCell::default(),
            ownership: Ownership::default(),
            requests: Requests::default(),
            asking: Asking::default(),
            map: RefCell::default(),
            gate: Gate::default(),
            object_locks: ObjectLocks::default(),
            fault: RefCell::default(),
            closing: Cell::new(false),
            closes_by: Cell::default(),
            is_closed: Cell::new(false),
            changes: Cell::new(0),
            changes_read: Cell::new(0),
            refreshing: Lock::default(),
            writes: RefCell::default(),
            next_write: Cell::new(0),
            write_done: Event::default(),
        })
    }

    /// The view of new requests.
    pub(crate) fn view(&self) -> Rc<View> {
        Rc::clone(&self.view.borrow())
    }

    /// The header as it was read last.
    pub(crate) fn header(&self) -> Rc<Header> {
        Rc::clone(&self.header.borrow())
    }

    /// The name of the header's object.
    pub(crate) fn header_object(&self) -> String {
        names::header(&self.id)
    }

    /// The name of the object map of the present state.
    pub(crate) fn map_object(&self) -> String {
        names::object_map(&self.id, SnapId::HEAD)
    }

    /// True if writes need the lock.
    pub(crate) fn needs_lock(&self) -> bool {
        self.header.borrow().features.has(Features::EXCLUSIVE_LOCK)
    }

    /// This client, as others know it.
    pub(crate) fn client_id(&self) -> ClientId {
        let watch = self.watch.borrow().as_ref().map_or(0, |watch| watch.cookie());
        ClientId { client: self.client, watch }
    }

    /// An error of an action. If it says that the image is lost, all later requests get it too.
    pub(crate) fn error(&self, action: &'static str, errno: Errno) -> RbdError {
        let error = RbdError::cluster(&self.name, action, errno);
        if matches!(error, RbdError::Blocklisted(_)) {
            self.fail(error.clone());
        }
        error
    }

    /// Ends the image with an error. The first error stays.
    pub(crate) fn fail(&self, error: RbdError) {
        let mut fault = self.fault.borrow_mut();
        if fault.is_none() {
            tracing::error!(image = %self.name, %error, "the image has stopped");
            *fault = Some(error);
        }
        drop(fault);
        self.ownership.changed.happen();
    }

    /// Fails if the image takes no more requests.
    pub(crate) fn check(&self) -> Result<(), RbdError> {
        match &*self.fault.borrow() {
            Some(fault) => Err(fault.clone()),
            None if self.closing.get() => Err(RbdError::Closed(self.name.clone())),
            None => Ok(()),
        }
    }

    /// True while the header is watched, and others are answered: also while the image gives its
    /// lock up before it is closed.
    pub(crate) fn is_served(&self) -> bool {
        self.fault.borrow().is_none() && !self.is_closed.get()
    }

    /// The error that ended the image.
    pub(crate) fn fault(&self) -> Option<RbdError> {
        self.fault.borrow().clone()
    }

    /// True if the header may have changed since it was read.
    pub(crate) fn is_stale(&self) -> bool {
        self.changes_read.get() != self.changes.get()
    }

    /// Says that the header may have changed. The next request waits until it is read again.
    pub(crate) fn mark_stale(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// Reads the header again if it may have changed. Waits for the new header even if another
    /// procedure reads it.
    pub(crate) async fn refresh(&self) -> Result<(), RbdError> {
        if !self.is_stale() {
            return Ok(());
        }
        let _guard = self.refreshing.acquire().await;
        let changes = self.changes.get();
        if self.changes_read.get() == changes {
            return Ok(());
        }
        let result = self.reload().await;
        match &result {
            Ok(()) => self.changes_read.set(changes),
            Err(
                error @ (RbdError::NoImage(_)
                | RbdError::NoSnapshot { .. }
                | RbdError::Blocklisted(_)),
            ) => self.fail(error.clone()),
            Err(error) => {
                tracing::warn!(image = %self.name, %error, "reading the header failed");
            }
        }
        result
    }

    async fn reload(&self) -> Result<(), RbdError> {
        let steps = self.ownership.step_changes();
        let header = Header::load(&self.store, &self.id, &self.spec.image).await?;
        header.check_features(!self.spec.is_read_only())?;
        let old = self.view();
        let view = View::open(&self.store, &header, self.snapshot, Some(&old), 0).await?;
        // The map of a snapshot changes when the image is flattened: it is read with each header.
        let is_snapshot = self.snapshot != SnapId::HEAD;
        if is_snapshot || !header.has_valid_object_map(self.snapshot) {
            *self.map.borrow_mut() = None;
        }
        self.compare_lock(&header.lock, steps);
        *self.header.borrow_mut() = Rc::new(header);
        *self.view.borrow_mut() = view;
        if is_snapshot {
            self.open_snapshot_map().await;
        }
        Ok(())
    }

    /// Goes through the gate: while a write holds the pass, this client does not give the lock up.
    pub(crate) async fn enter(self: &Rc<Self>) -> Pass<GateOf> {
        Gate::enter(GateOf(Rc::clone(self))).await
    }

    /// Goes through the gate as the only one: the writes inside end, and new ones wait.
    pub(crate) async fn enter_alone(self: &Rc<Self>) -> Alone<GateOf> {
        Gate::enter_alone(GateOf(Rc::clone(self))).await
    }

    /// Closes the gate, and waits until no write is inside.
    pub(crate) async fn close_gate(&self) {
        self.gate.close().await;
    }

    /// Opens the gate again.
    pub(crate) fn open_gate(&self) {
        self.gate.open();
    }

    /// True if no write is inside the gate.
    pub(crate) fn is_gate_empty(&self) -> bool {
        self.gate.is_empty()
    }

    /// True if a procedure of several steps has the lock of an object, or waits for it.
    pub(crate) fn is_object_locked(&self, object: u64) -> bool {
        self.object_locks.is_locked(object)
    }

    /// Waits for the lock of an object.
    pub(crate) async fn lock_object(
        self: &Rc<Self>,
        object: u64,
    ) -> ObjectLockGuard<ObjectLocksOf> {
        ObjectLocks::acquire(ObjectLocksOf(Rc::clone(self)), object).await
    }

    /// Counts a write until the ticket is dropped.
    pub(crate) fn write_ticket(self: &Rc<Self>) -> WriteTicket {
        let number = self.next_write.get();
        self.next_write.set(number + 1);
        self.writes.borrow_mut().insert(number);
        WriteTicket { core: Rc::clone(self), number }
    }

    /// Waits for the writes that are in flight now. What an OSD has acknowledged is stable.
    pub(crate) async fn flush(&self) {
        let behind = self.next_write.get();
        while self.writes.borrow().first().is_some_and(|&oldest| oldest < behind) {
            self.write_done.next().await;
        }
    }
}
