//! A cluster as a library uses it: calls, each a future of its answer.
//!
//! A [`Cluster`] sends nothing by itself. It queues [`Call`]s; a *carrier* takes them
//! ([`Calls::take`]), carries them out, and answers ([`Calls::answer`]). The real carrier is the
//! [`Client`](crate::client::Client); a model of a cluster in memory is another, for tests. So
//! everything above this line (images, the command line's objects) is written once, as procedures
//! that read top to bottom.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_tasks::{Awaited, Filler, oneshot};
use slab::Slab;

use crate::errno::Errno;
use crate::op::{ObjectOps, Reply};

/// The number of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapId(pub u64);

impl SnapId {
    /// The present state, not a snapshot.
    pub const HEAD: SnapId = SnapId(u64::MAX - 1);
}

/// The snapshots that a write has to keep: an object whose newest copy is older than `seq` is
/// cloned first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapContext {
    /// The newest snapshot.
    pub seq: SnapId,
    /// The snapshots that exist, newest first.
    pub snaps: Vec<SnapId>,
}

/// An object: pool, namespace and name, and the key by which it is placed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The pool.
    pub pool: PoolId,
    /// The namespace; empty for the default one.
    pub namespace: Arc<str>,
    /// Placed by this instead of the name, unless empty.
    pub key: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectName {
    /// An object that is placed by its name.
    #[must_use]
    pub fn new(pool: PoolId, namespace: &str, name: &str) -> Self {
        Self { pool, namespace: namespace.into(), key: "".into(), name: name.into() }
    }
}

/// Who sends requests over a client: an image, for instance. Late writes are counted by sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SenderId(pub u64);

/// The late writes of each sender that has some.
pub type LateWrites = BTreeMap<SenderId, usize>;

/// A request on one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The object.
    pub object: ObjectName,
    /// The operations.
    pub ops: ObjectOps,
    /// The state that reads see.
    pub snapshot: SnapId,
    /// The snapshots that writes keep.
    pub snap_context: SnapContext,
    /// Where the request may go, and what it may pass.
    pub flags: OperationFlags,
    /// Who sends it. [`Cluster::operate`] sets it.
    pub sender: SenderId,
}

/// Where a request may go, and what it may pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationFlags {
    /// A read may go to any replica.
    pub balance_reads: bool,
    /// A read may go to the nearest replica.
    pub localize_reads: bool,
    /// A write to a full pool is tried, and fails with an error instead of waiting.
    pub full_try: bool,
    /// A write to a full pool is done, because it frees space.
    pub full_force: bool,
    /// A write gives the data of its operations (class calls).
    pub wants_data: bool,
}

impl Operation {
    /// A request for the present state.
    #[must_use]
    pub fn new(object: ObjectName, ops: ObjectOps) -> Self {
        let (snapshot, snap_context) = (SnapId::HEAD, SnapContext::default());
        let (flags, sender) = (OperationFlags::default(), SenderId::default());
        Self { object, ops, snapshot, snap_context, flags, sender }
    }
}

/// Names a watch of this client. It is the cookie on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u64);

/// A watcher of an object, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Watcher {
    /// The global id of the client.
    pub client: u64,
    /// The client's cookie.
    pub cookie: u64,
}

/// What all watchers answered to a notification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotifyReply {
    /// Watchers that acknowledged, each with its answer.
    pub acknowledged: Vec<(Watcher, Bytes)>,
    /// Watchers that did not in time.
    pub missed: Vec<Watcher>,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A client notified the watchers. The watch has to acknowledge with [`Watch::acknowledge`].
    Notified {
        /// Names the notification.
        notify_id: u64,
        /// The global id of the client.
        from: u64,
        /// The client's bytes.
        payload: Bytes,
    },
    /// The watch may have missed notifications. It is being renewed by itself.
    Interrupted(Errno),
    /// The watch is over: the object is gone, or the client is shut out.
    Lost(Errno),
}

/// A pool of the cluster, from the newest map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// Its number.
    pub id: PoolId,
    /// Its name.
    pub name: String,
    /// True for an erasure-coded pool.
    pub is_erasure_coded: bool,
    /// Erasure-coded pools only: it takes writes in the middle of objects.
    pub takes_overwrites: bool,
    /// Writes must begin and end on multiples of this, in an erasure-coded pool without
    /// overwrites; 1 otherwise.
    pub alignment_bytes: u64,
    /// The pool is full, or its quota is used up.
    pub is_full: bool,
    /// The number of placement groups.
    pub pg_num: u32,
    /// The applications that use it, e.g. `rbd`.
    pub applications: Vec<String>,
}

/// The answer to a monitor's command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandReply {
    /// The result; negative is an error number.
    pub result: i32,
    /// A text for people.
    pub status: String,
    /// The output.
    pub output: Bytes,
}

/// A part of a list of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Objects, as (namespace, name, locator key).
    pub objects: Vec<(String, String, String)>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<ListCursor>,
}

/// A position in the list of a pool's objects: opaque to callers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListCursor {
    /// The placement group.
    pub seed: u32,
    /// The OSD's own position in the group.
    pub position: Bytes,
}

/// A call to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A request on an object. Answer: [`Answer::Reply`].
    Operate(Operation),
    /// Watches an object. Answer: [`Answer::Done`] once the watch stands.
    Watch(WatchId, ObjectName),
    /// Ends a watch. Answer: [`Answer::Done`].
    Unwatch(WatchId),
    /// Acknowledges a notification. Answer: [`Answer::Done`].
    Acknowledge(WatchId, u64, Bytes),
    /// Notifies the watchers of an object, and waits for them this long. Answer:
    /// [`Answer::Notified`].
    Notify(ObjectName, Bytes, u32),
    /// A command to the monitors, as JSON, with input. Answer: [`Answer::Command`].
    Command(String, Bytes),
    /// All pools. Answer: [`Answer::Pools`].
    Pools,
    /// Makes sure that the client has the newest map of OSDs. Answer: [`Answer::Done`].
    NewestMap,
    /// A new number for a snapshot of objects in a pool. Answer: [`Answer::Snap`].
    CreateSnap(PoolId),
    /// Lets the OSDs remove what only this snapshot keeps. Answer: [`Answer::Done`].
    RemoveSnap(PoolId, SnapId),
    /// A part of the list of a pool's objects; the namespace, or `None` for all. Answer:
    /// [`Answer::Listing`].
    List(PoolId, Option<String>, ListCursor),
    /// The number of this client, and its address as the cluster knows it. Answer:
    /// [`Answer::Identity`].
    Identity,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// The answer of an OSD.
    Reply(Reply),
    /// The answers of watchers.
    Notified(NotifyReply),
    /// The answer of a monitor.
    Command(CommandReply),
    /// The pools.
    Pools(Vec<PoolInfo>),
    /// A new snapshot.
    Snap(SnapId),
    /// Objects.
    Listing(Listing),
    /// The global id, and the address as in lists of blocked clients, e.g. `10.0.0.1:0/123`.
    Identity(u64, String),
}

/// Names a call for its answer: a serial number, and in the lower half a place in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

impl CallId {
    fn key(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }
}

#[derive(Default)]
struct Inner {
    next_call: u32,
    next_watch: u64,
    queue: VecDeque<(CallId, Call)>,
    waiting: Slab<(CallId, Filler<Result<Answer, Errno>>)>,
    watches: BTreeMap<WatchId, WatchState>,
    last_sender: u64,
    late_writes: LateWrites,
    /// Who waits until no write of a sender is late.
    settling: Vec<(SenderId, Filler<()>)>,
}

/// The most events that wait for a watcher.
const WATCH_EVENTS_MAX: usize = 1024;

#[derive(Default)]
struct WatchState {
    events: VecDeque<WatchEvent>,
    waiting: Option<Filler<()>>,
}

/// A cluster. Copies are the same cluster, and the same sender.
#[derive(Clone, Default)]
pub struct Cluster {
    inner: Rc<RefCell<Inner>>,
    sender: SenderId,
}

/// The carrier's side of a [`Cluster`].
#[derive(Clone)]
pub struct Calls(Rc<RefCell<Inner>>);

impl Calls {
    /// The next call to carry out.
    #[must_use]
    pub fn take(&self) -> Option<(CallId, Call)> {
        self.0.borrow_mut().queue.pop_front()
    }

    /// Answers a call.
    pub fn answer(&self, call: CallId, answer: Result<Answer, Errno>) {
        let filler = {
            let waiting = &mut self.0.borrow_mut().waiting;
            let is_waiting = waiting.get(call.key()).is_some_and(|(id, _)| *id == call);
            is_waiting.then(|| waiting.remove(call.key()).1)
        };
        if let Some(filler) = filler {
            filler.fill(answer);
        }
    }

    /// Tells how many writes of each sender have failed, and may still be executed.
    pub fn set_late_writes(&self, late: &LateWrites) {
        let settled: Vec<Filler<()>> = {
            let mut inner = self.0.borrow_mut();
            if inner.late_writes == *late {
                return;
            }
            inner.late_writes.clone_from(late);
            let has_settled = |(sender, _): &mut (SenderId, _)| !late.contains_key(sender);
            inner.settling.extract_if(.., has_settled).map(|(_, filler)| filler).collect()
        };
        for filler in settled {
            filler.fill(());
        }
    }

    /// Delivers an event of a watch. An event of a watch that has ended is dropped.
    pub fn watch_event(&self, watch: WatchId, event: WatchEvent) {
        let waiting = {
            let mut inner = self.0.borrow_mut();
            let Some(state) = inner.watches.get_mut(&watch) else { return };
            if state.events.len() < WATCH_EVENTS_MAX {
                state.events.push_back(event);
            } else if let Some(last) = state.events.back_mut() {
                // The watcher takes no events: it learns that it has missed some.
                *last = match event {
                    WatchEvent::Lost(errno) => WatchEvent::Lost(errno),
                    _ => WatchEvent::Interrupted(Errno::EOVERFLOW),
                };
            }
            state.waiting.take()
        };
        if let Some(waiting) = waiting {
            waiting.fill(());
        }
    }
}

impl Cluster {
    /// A cluster that no carrier serves yet, and the side for the carrier.
    #[must_use]
    pub fn new() -> (Self, Calls) {
        let inner = Rc::new(RefCell::new(Inner::default()));
        let calls = Calls(Rc::clone(&inner));
        (Self { inner, sender: SenderId::default() }, calls)
    }

    /// The same cluster for another sender, whose late writes are counted by themselves.
    #[must_use]
    pub fn for_new_sender(&self) -> Self {
        let mut inner = self.inner.borrow_mut();
        inner.last_sender += 1;
        let sender = SenderId(inner.last_sender);
        Self { inner: Rc::clone(&self.inner), sender }
    }

    fn call(&self, call: Call) -> Awaited<Result<Answer, Errno>> {
        let (filler, awaited) = oneshot();
        let mut inner = self.inner.borrow_mut();
        inner.next_call = inner.next_call.wrapping_add(1);
        let serial = u64::from(inner.next_call) << 32;
        let entry = inner.waiting.vacant_entry();
        let id = CallId(serial | entry.key() as u64);
        entry.insert((id, filler));
        inner.queue.push_back((id, call));
        awaited
    }

    /// Executes a request on an object. The request is queued before this function returns.
    ///
    /// The future gives the OSD's answer.
    ///
    /// # Errors
    /// The error of the request as a whole. It may be one that an operation caused, such as
    /// `ENOENT` of a read.
    pub fn operate(
        &self,
        mut operation: Operation,
    ) -> impl Future<Output = Result<Reply, Errno>> + use<> {
        operation.sender = self.sender;
        let awaited = self.call(Call::Operate(operation));
        async move {
            match awaited.await? {
                Answer::Reply(reply) => Errno::check(reply.result).map(|_| reply),
                _ => Err(Errno::EINVAL),
            }
        }
    }

    /// The number of *late* writes of this sender: they have failed here, by the time limit or
    /// because their pool fails all requests, and may still be executed. Later requests of this
    /// client on the same object come behind them. Requests of other clients may come before.
    #[must_use]
    pub fn late_writes(&self) -> usize {
        self.inner.borrow().late_writes.get(&self.sender).copied().unwrap_or(0)
    }

    /// Waits until this sender has no [late write](Self::late_writes). Without a carrier, or if the
    /// client has ended, there is none.
    pub async fn settled(&self) {
        loop {
            let waits = {
                let mut inner = self.inner.borrow_mut();
                if !inner.late_writes.contains_key(&self.sender) {
                    return;
                }
                inner.settling.retain(|(_, filler)| !filler.is_cancelled());
                let (filler, awaited) = oneshot();
                inner.settling.push((self.sender, filler));
                awaited
            };
            waits.await;
        }
    }

    /// Watches an object. The watch lasts until [`Watch::end`], across failures of connections.
    ///
    /// # Errors
    /// The object does not exist, or the client may not watch it.
    pub async fn watch(&self, object: ObjectName) -> Result<Watch, Errno> {
        let id = {
            let mut inner = self.inner.borrow_mut();
            inner.next_watch += 1;
            let id = WatchId(inner.next_watch);
            inner.watches.insert(id, WatchState::default());
            id
        };
        // Dropping this future ends the watch, too.
        let watch = Watch { id, cluster: self.clone() };
        let watched = self.call(Call::Watch(id, object)).await;
        if watched.is_err() {
            self.inner.borrow_mut().watches.remove(&id);
        }
        watched.map(|_| watch)
    }

    /// Notifies all watchers of an object, and waits for their answers at most `timeout_ms`.
    ///
    /// # Errors
    /// The object does not exist, or the client may not notify.
    pub async fn notify(
        &self,
        object: ObjectName,
        payload: Bytes,
        timeout_ms: u32,
    ) -> Result<NotifyReply, Errno> {
        match self.call(Call::Notify(object, payload, timeout_ms)).await? {
            Answer::Notified(reply) => Ok(reply),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Executes a command of the monitors: JSON with a `prefix`.
    ///
    /// # Errors
    /// No monitor can be reached. A refusal is in the reply.
    pub async fn command(&self, json: String, input: Bytes) -> Result<CommandReply, Errno> {
        match self.call(Call::Command(json, input)).await? {
            Answer::Command(reply) => Ok(reply),
            _ => Err(Errno::EINVAL),
        }
    }

    /// All pools.
    ///
    /// # Errors
    /// The client has ended.
    pub async fn pools(&self) -> Result<Vec<PoolInfo>, Errno> {
        match self.call(Call::Pools).await? {
            Answer::Pools(pools) => Ok(pools),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Waits until the client has the newest map of OSDs. Then writes of clients that were
    /// blocklisted before cannot come after ours.
    ///
    /// # Errors
    /// No monitor can be reached.
    pub async fn newest_map(&self) -> Result<(), Errno> {
        self.call(Call::NewestMap).await.map(drop)
    }

    /// A new number for a snapshot of objects in a pool.
    ///
    /// # Errors
    /// The monitors refuse.
    pub async fn create_snap(&self, pool: PoolId) -> Result<SnapId, Errno> {
        match self.call(Call::CreateSnap(pool)).await? {
            Answer::Snap(snap) => Ok(snap),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Lets the OSDs remove what only this snapshot keeps.
    ///
    /// # Errors
    /// The monitors refuse.
    pub async fn remove_snap(&self, pool: PoolId, snap: SnapId) -> Result<(), Errno> {
        self.call(Call::RemoveSnap(pool, snap)).await.map(drop)
    }

    /// A part of the list of a pool's objects, of one namespace or of all (`None`).
    ///
    /// # Errors
    /// The pool is gone.
    pub async fn list(
        &self,
        pool: PoolId,
        namespace: Option<String>,
        cursor: ListCursor,
    ) -> Result<Listing, Errno> {
        match self.call(Call::List(pool, namespace, cursor)).await? {
            Answer::Listing(listing) => Ok(listing),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The global id of this client, and its address as the cluster knows it.
    ///
    /// # Errors
    /// The client has ended.
    pub async fn identity(&self) -> Result<(u64, String), Errno> {
        match self.call(Call::Identity).await? {
            Answer::Identity(client, address) => Ok((client, address)),
            _ => Err(Errno::EINVAL),
        }
    }
}

impl Drop for Watch {
    /// A watch that was not ended ends now; its owner does not wait for that.
    fn drop(&mut self) {
        let known = self.cluster.inner.borrow_mut().watches.remove(&self.id);
        if known.is_some() {
            drop(self.cluster.call(Call::Unwatch(self.id)));
        }
    }
}

/// A watch of an object. It ends when it is dropped.
pub struct Watch {
    id: WatchId,
    cluster: Cluster,
}

impl Watch {
    /// The cookie by which others see this watch.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.id.0
    }

    /// The next event.
    pub async fn next(&self) -> WatchEvent {
        loop {
            let waits = {
                let mut inner = self.cluster.inner.borrow_mut();
                let Some(state) = inner.watches.get_mut(&self.id) else {
                    return WatchEvent::Lost(Errno::ENOTCONN);
                };
                if let Some(event) = state.events.pop_front() {
                    return event;
                }
                let (filler, awaited) = oneshot();
                state.waiting = Some(filler);
                awaited
            };
            waits.await;
        }
    }

    /// Answers a notification. Its sender waits for this.
    pub fn acknowledge(&self, notify_id: u64, payload: Bytes) {
        drop(self.cluster.call(Call::Acknowledge(self.id, notify_id, payload)));
    }

    /// Ends the watch. A task that waits for its next event gets [`WatchEvent::Lost`].
    ///
    /// # Errors
    /// The object is gone, or the client is shut out.
    pub async fn end(&self) -> Result<(), Errno> {
        let ended = self.cluster.call(Call::Unwatch(self.id)).await.map(drop);
        let state = self.cluster.inner.borrow_mut().watches.remove(&self.id);
        if let Some(waiting) = state.and_then(|state| state.waiting) {
            waiting.fill(());
        }
        ended
    }
}
