//! The exclusive lock: one client at a time writes.
//!
//! ```text
//!            first write                    lock taken
//!  Unlocked ------------> Acquiring ------------------------> Owned
//!     ^                       | refused, no answer              | another client asks
//!     |<----------------------+                                 v
//!     +<---------------------------------------------------- Releasing
//!            writes in flight have ended; the lock is given up
//! ```
//!
//! **Acquiring.** The lock is a lock of the header, and its cookie names the owner's watch. If
//! another client has it, and its watch stands, that client lives: it is asked by a notification,
//! and gives the lock up when its writes have ended. If the watch is gone, the owner is dead, or
//! cut off. Then its address is blocked at the monitors, this client waits for the map that says
//! so, and breaks the lock. From then on no OSD executes a late write of the old owner: a request
//! of ours that reaches an OSD brings the map along. A lock of this same client is never broken,
//! because it cannot shut itself out. One that this open image left behind gets the cookie of its
//! present watch.
//!
//! **Leaving.** Layers above the image may keep data while this client has the lock. So before the
//! lock is given up, the image says that it is shared, and waits until the layers have written out
//! what they have. Writes go on meanwhile. If the layers cannot write it out, the lock stays here:
//! nothing that was answered is lost, and an operator can shut this client out.
//!
//! **Releasing.** The gate is closed for writes, those inside end, the object map's lock and the
//! lock are given up, and all are told. If another client has asked for the lock, this client does
//! not take it again before the other has it, or [`HOLD_BACK`] has passed.
//!
//! **Late writes** keep the lock here, or make this client leave it behind: see
//! [`late`](super::late).
//!
//! **In doubt.** A request that changes the lock may end with an error and be executed all the
//! same, or never be sent. Then the header may name this client, which does not count as the owner
//! and answers nobody who asks for the lock. So the client goes on to give the lock up, until an
//! OSD has said that it has it not ([`cleanup`](super::cleanup)).
//!
//! **Losing.** If the header does not name this client as the owner any more, the lock is lost.
//! Writes of several steps that are under way fail, and are begun again as a whole. The lock is not
//! tried before they have ended: so a client that owns the lock has no writes of an earlier time.
//!
//! **The cookie** must be that of the present watch, or others take this client for dead. Steps
//! that change the lock (taking, giving up, a new cookie) come one after another.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rados::op::results::Watchers;
use fieldstone_tasks::{Lock, LockGuard};

use super::core::{Core, GateOf, RETRY_PAUSE};
use super::sync::{Event, Pass};
use crate::error::RbdError;
use crate::format::lock::{self, INTERNAL_TAG, LockInfo, LockKind, Locker};
use crate::format::notice::{self, Notice};
use crate::store::answer;

/// How long the watchers may take to answer a notification (Ceph: 5 s).
pub(crate) const NOTIFY_TIMEOUT_MS: u32 = 5_000;
/// How long to wait for the lock, after its owner has promised to give it up, before it is asked
/// again.
const RELEASE_WAIT: Nanos = Nanos::from_ms(30_000);
/// How long to wait before the lock is tried again, when no owner answered. A living
/// owner may be slow: it is asked without end, and requests wait.
const SILENT_PAUSE: Nanos = Nanos::from_ms(1_000);
/// How long this client leaves the lock to a client that has asked for it.
const HOLD_BACK: Nanos = Nanos::from_ms(2_000);
/// How often in a row the lock is tried at once, because its owner was gone.
const AT_ONCE_MAX: usize = 1_000;
/// How often the lock is tried while another image of this same client has it without a watch.
const SELF_MAX: usize = 60;
/// Why the lock is not got, if its owner keeps it.
pub(super) const KEPT: &str = "it uses the image exclusively";
/// Cookies of this image that are remembered.
const COOKIES_MAX: usize = 16;

/// What this client knows of its own lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Possession {
    /// It has not the lock.
    #[default]
    Unlocked,
    /// It tries to get it.
    Acquiring,
    /// It has it.
    Owned,
    /// It gives it up.
    Releasing,
}

/// The lock of an open image.
#[derive(Default)]
pub(crate) struct Ownership {
    possession: Cell<Possession>,
    /// The cookie with which the lock is held; empty if it is not.
    pub(super) cookie: RefCell<String>,
    /// The cookies that this image has used, the newest last.
    cookies: RefCell<Vec<String>>,
    /// Steps that change the lock come one after another.
    steps: Lock,
    /// Requests of other clients, and giving the lock up, come one after another.
    pub(super) duties: Lock,
    /// How many such steps have begun or ended.
    step_changes: Cell<u64>,
    /// The lock will be given up when the layers above keep nothing any more.
    leaving: Cell<bool>,
    /// They keep nothing any more.
    settled: Cell<bool>,
    /// Another client has asked for the lock, and a task gives it up.
    pub(super) release_waits: Cell<bool>,
    /// The header may name this client, although it does not count as the owner.
    pub(super) in_doubt: Cell<bool>,
    /// A task gives up the lock that is in doubt.
    pub(super) cleans_up: Cell<bool>,
    /// The header names this image for good, so that the next owner blocks this client.
    pub(super) left_behind: Cell<bool>,
    /// Another client has asked for the lock, and it is left to that client until then.
    held_back_until: Cell<Option<Nanos>>,
    /// The possession has changed, or the image has stopped.
    pub(crate) changed: Event,
    /// Another client says that it has released the lock.
    pub(crate) released: Event,
}

impl Ownership {
    /// What this client knows of its own lock.
    pub(crate) fn possession(&self) -> Possession {
        self.possession.get()
    }

    pub(super) fn set(&self, possession: Possession) {
        let is_known = !self.in_doubt.get() && !self.cookie.borrow().is_empty();
        debug_assert!(possession != Possession::Owned || is_known, "an owner knows its lock");
        self.possession.set(possession);
        self.changed.happen();
    }

    /// Another client has the lock now. Nothing holds this one back any more.
    pub(crate) fn taken_by_another(&self) {
        if self.held_back_until.take().is_some() {
            self.changed.happen();
        }
    }

    /// The lock will be given up soon.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// The layers above keep nothing any more.
    pub(crate) fn layers_settled(&self) {
        if self.leaving.get() {
            self.settled.set(true);
            self.changed.happen();
        }
    }

    /// The lock stays here after all: the layers may keep data again.
    pub(super) fn stays(&self) {
        if self.leaving.replace(false) {
            self.changed.happen();
        }
    }

    fn uses_cookie(&self, cookie: &str) {
        cookie.clone_into(&mut self.cookie.borrow_mut());
        let mut cookies = self.cookies.borrow_mut();
        cookies.retain(|known| known != cookie);
        if cookies.len() == COOKIES_MAX {
            cookies.remove(0);
        }
        cookies.push(cookie.to_owned());
    }

    fn has_used(&self, cookie: &str) -> bool {
        self.cookies.borrow().iter().any(|known| known == cookie)
    }

    fn note_step(&self) {
        self.step_changes.set(self.step_changes.get() + 1);
    }

    /// Differs if a step has changed the lock meanwhile, or was under way.
    pub(crate) fn step_changes(&self) -> u64 {
        self.step_changes.get()
    }
}

/// A step that changes the lock.
pub(super) struct Step<'a> {
    ownership: &'a Ownership,
    _guard: LockGuard,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.ownership.note_step();
    }
}

/// What an attempt to take the lock found.
enum Attempt {
    Taken,
    /// Try again at once.
    Again,
    /// The owner lives; it was asked, and did, or did not, promise to give the lock up.
    OwnerLives {
        promised: bool,
    },
    /// This client's watch is being renewed. Without one, others would take it for dead.
    NoWatch,
    /// Another image of this client has it, and has no watch at the moment.
    OwnClient,
}

impl Core {
    /// True if this client may write.
    pub(crate) fn owns_lock(&self) -> bool {
        !self.needs_lock() || self.ownership.possession() == Possession::Owned
    }

    /// True if this client has the lock, does not give it up soon, and is not taken for dead:
    /// without a watch, others may break the lock.
    pub(crate) fn owns_lock_alone(&self) -> bool {
        let owned = self.ownership.possession() == Possession::Owned;
        let is_watching = self.watch.borrow().is_some();
        self.needs_lock() && owned && is_watching && !self.ownership.is_leaving()
    }

    /// Adds to a write of the header the condition that this client has the lock.
    pub(crate) fn assert_owner(&self, ops: &mut ObjectOps) {
        if self.needs_lock() {
            lock::assert_locked(ops, &self.ownership.cookie.borrow(), INTERNAL_TAG);
        }
    }

    /// Gets the lock. Returns when this client has it; it may lose it at the next wait.
    pub(crate) async fn acquire(self: &Rc<Self>) -> Result<(), RbdError> {
        loop {
            self.check()?;
            if self.owns_lock() {
                return Ok(());
            }
            match self.ownership.possession() {
                Possession::Owned => return Ok(()),
                Possession::Acquiring | Possession::Releasing => {
                    self.ownership.changed.next().await;
                }
                Possession::Unlocked => {
                    let now = self.timer.now();
                    if let Some(until) = self.ownership.held_back_until.get()
                        && now < until
                    {
                        let changed = self.ownership.changed.next();
                        self.timer.within(Nanos(until.0 - now.0), changed).await;
                        continue;
                    }
                    self.ownership.held_back_until.set(None);
                    self.ownership.set(Possession::Acquiring);
                    // No write of an earlier time goes on beside the new ownership.
                    self.close_gate().await;
                    let result = self.take_lock().await;
                    let possession =
                        if result.is_ok() { Possession::Owned } else { Possession::Unlocked };
                    self.ownership.set(possession);
                    self.open_gate();
                    match result {
                        Ok(()) => {
                            self.notify_in_background(Notice::AcquiredLock(self.client_id()));
                        }
                        Err(_) => self.clean_up(),
                    }
                    return result;
                }
            }
        }
    }

    /// The lock is gone: another client has broken it.
    pub(crate) fn lose_lock(&self) {
        if self.ownership.possession.get() == Possession::Owned {
            tracing::warn!(image = %self.name, "the lock is lost");
            *self.map.borrow_mut() = None;
            self.ownership.cookie.borrow_mut().clear();
            self.ownership.set(Possession::Unlocked);
        }
    }

    /// Fails with `EBUSY` if this client has lost the lock since the caller came through the gate.
    pub(crate) fn still_owns(&self) -> Result<(), RbdError> {
        // While the caller is inside, the lock is neither given up nor taken again.
        let owns = matches!(self.ownership.possession(), Possession::Owned | Possession::Releasing);
        if owns || !self.needs_lock() {
            return Ok(());
        }
        Err(self.error("keeping the lock", Errno::EBUSY))
    }

    /// Asks the OSD whether this client has the lock. An error counts as no.
    pub(crate) async fn owns_header_lock(&self) -> bool {
        if !self.needs_lock() {
            return true;
        }
        let mut ops = ObjectOps::new();
        self.assert_owner(&mut ops);
        self.store.send(&self.header_object(), ops).await.is_ok()
    }

    /// Loses the lock if a header that was just read does not name this client. `steps`: see
    /// [`Ownership::step_changes`], from before the header was read.
    pub(crate) fn compare_lock(&self, held: &LockInfo, steps: u64) {
        if self.ownership.possession() != Possession::Owned
            || self.ownership.step_changes() != steps
        {
            return;
        }
        let cookie = self.ownership.cookie.borrow().clone();
        let me = lock::client(self.client);
        let is_owner =
            held.lockers.iter().any(|locker| locker.client == me && locker.cookie == cookie);
        if !is_owner {
            self.lose_lock();
        }
    }

    /// Gets the lock, and goes through the gate. While the caller holds the pass, this client does
    /// not give the lock up. The view is up to date: a procedure may have changed the header while
    /// the caller waited at the gate.
    pub(crate) async fn enter_as_owner(self: &Rc<Self>) -> Result<Pass<GateOf>, RbdError> {
        loop {
            self.check()?;
            self.refresh().await?;
            self.acquire().await?;
            let pass = self.enter().await;
            self.check()?;
            if self.owns_lock() && !self.is_stale() {
                return Ok(pass);
            }
        }
    }

    async fn take_lock(self: &Rc<Self>) -> Result<(), RbdError> {
        let (mut at_once, mut own) = (0, 0);
        while at_once < AT_ONCE_MAX && own < SELF_MAX {
            self.check()?;
            let released = self.ownership.released.next();
            let attempt = self.try_lock().await?;
            at_once = if matches!(attempt, Attempt::Again) { at_once + 1 } else { 0 };
            own = if matches!(attempt, Attempt::OwnClient) { own + 1 } else { 0 };
            match attempt {
                Attempt::Taken => {
                    // The last owner may have changed the image.
                    self.mark_stale();
                    let opened = match self.refresh().await {
                        Ok(()) => self.open_map().await,
                        Err(error) => Err(error),
                    };
                    if opened.is_err() {
                        if self.cluster.late_writes() > 0 {
                            // Maybe of the time before this client lost the lock.
                            self.doubt_lock();
                        } else {
                            self.unlock().await;
                        }
                        return opened;
                    }
                    if !self.ownership.cookie.borrow().is_empty() {
                        return Ok(());
                    }
                    // The watch was renewed, and the lock could not follow.
                    *self.map.borrow_mut() = None;
                }
                Attempt::Again => {}
                Attempt::OwnerLives { promised: true } => {
                    self.timer.within(RELEASE_WAIT, released).await;
                }
                Attempt::OwnerLives { promised: false } | Attempt::OwnClient => {
                    self.timer.within(SILENT_PAUSE, released).await;
                }
                Attempt::NoWatch => {
                    self.timer.within(RETRY_PAUSE, released).await;
                }
            }
        }
        let owner = lock::client(self.client).to_string();
        let reason = if own > 0 {
            "another open image of this same client has it; close it first"
        } else {
            "its owners come and go"
        };
        Err(self.locked_by(&owner, reason))
    }

    fn locked_by(&self, owner: &str, reason: &'static str) -> RbdError {
        RbdError::Locked { image: self.name.clone(), owner: owner.to_owned(), reason }
    }

    async fn try_lock(&self) -> Result<Attempt, RbdError> {
        let action = "taking the lock";
        if let Some(attempt) = self.lock_header().await? {
            return Ok(attempt);
        }
        let mut ops = ObjectOps::new();
        lock::get_info(&mut ops);
        ops.list_watchers();
        let reply = self.store.send(&self.header_object(), ops).await;
        let reply = reply.map_err(|errno| self.error(action, errno))?;
        let data = |index| answer(&reply, index).map_err(|errno| self.error(action, errno));
        let info =
            LockInfo::decode(data(0)?).map_err(|fault| RbdError::damaged(&self.name, &fault))?;
        let watchers =
            Watchers::decode(data(1)?).map_err(|fault| RbdError::damaged(&self.name, &fault))?;
        let Some(owner) = info.lockers.first() else { return Ok(Attempt::Again) };
        let owner_watch = self.check_owner(&info, owner)?;
        let lives = watchers.0.iter().any(|info| {
            lock::client(info.watcher.client) == owner.client && info.watcher.cookie == owner_watch
        });
        if lives {
            return self.ask_owner(owner).await;
        }
        self.break_lock(owner).await
    }

    /// Takes the lock, unless another has it: `None`.
    async fn lock_header(&self) -> Result<Option<Attempt>, RbdError> {
        let _step = self.step().await;
        let Some(watch) = self.watch_cookie() else { return Ok(Some(Attempt::NoWatch)) };
        let cookie = lock::cookie(watch);
        self.ownership.uses_cookie(&cookie);
        let mut ops = ObjectOps::new();
        lock::lock(&mut ops, &cookie, INTERNAL_TAG);
        match self.store.send(&self.header_object(), ops).await {
            Ok(_) | Err(Errno::EEXIST) => {
                self.ownership.in_doubt.set(false);
                Ok(Some(Attempt::Taken))
            }
            Err(Errno::EBUSY) => {
                self.ownership.cookie.borrow_mut().clear();
                Ok(None)
            }
            Err(errno) => {
                self.doubt_lock();
                Err(self.error("taking the lock", errno))
            }
        }
    }

    /// A step that changes the lock, until this is dropped.
    pub(super) async fn step(&self) -> Step<'_> {
        let guard = self.ownership.steps.acquire().await;
        self.ownership.note_step();
        Step { ownership: &self.ownership, _guard: guard }
    }

    fn watch_cookie(&self) -> Option<u64> {
        self.watch.borrow().as_ref().map(|watch| watch.cookie())
    }

    /// The owner's watch. Locks that a person took are not broken.
    fn check_owner(&self, info: &LockInfo, owner: &Locker) -> Result<u64, RbdError> {
        let name = owner.client.to_string();
        match owner.watch_cookie() {
            Some(watch) if info.kind == LockKind::Exclusive && info.tag == INTERNAL_TAG => {
                Ok(watch)
            }
            _ => Err(self.locked_by(&name, "a person has locked it with `rbd lock add`")),
        }
    }

    async fn ask_owner(&self, owner: &Locker) -> Result<Attempt, RbdError> {
        let request = Notice::RequestLock(self.client_id(), false);
        let object = self.store.object(&self.header_object());
        let reply = self.cluster.notify(object, request.encode(), NOTIFY_TIMEOUT_MS).await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(Errno::ETIMEDOUT) => return Ok(Attempt::OwnerLives { promised: false }),
            Err(errno) => return Err(self.error("asking for the lock", errno)),
        };
        let results = reply.acknowledged.iter().filter_map(|(_, answer)| {
            // A peer's answer that cannot be read is no promise.
            notice::decode_response(answer).ok().flatten()
        });
        let mut promised = false;
        for result in results {
            match result {
                0 => promised = true,
                // EROFS and others: it keeps the lock.
                _ => {
                    return Err(self.locked_by(&owner.client.to_string(), KEPT));
                }
            }
        }
        Ok(Attempt::OwnerLives { promised })
    }

    async fn break_lock(&self, owner: &Locker) -> Result<Attempt, RbdError> {
        let name = owner.client.to_string();
        if owner.client == lock::client(self.client) {
            if !self.ownership.has_used(&owner.cookie) {
                // Another image of this client may live, and renew its watch just now.
                return Ok(Attempt::OwnClient);
            }
            return self.adopt_own_lock(&owner.cookie).await;
        }
        let image = &self.name;
        tracing::warn!(%image, owner = %name, "the lock's owner is gone; it is shut out");
        let Some(address) = owner.blocklist_address() else {
            return Err(self.locked_by(&name, "it is gone, and its address is not known"));
        };
        self.blocklist(&address).await?;
        let mut ops = ObjectOps::new();
        lock::break_lock(&mut ops, owner.client, &owner.cookie);
        match self.store.send_if_exists(&self.header_object(), ops).await {
            Ok(_) => Ok(Attempt::Again),
            Err(errno) => Err(self.error("breaking the lock of a client that is gone", errno)),
        }
    }

    /// The header has the lock with an old cookie of this image. It gets the present one. To break
    /// it instead would let another client in, and writes of this one may be late.
    async fn adopt_own_lock(&self, old: &str) -> Result<Attempt, RbdError> {
        let _step = self.step().await;
        let Some(watch) = self.watch_cookie() else { return Ok(Attempt::NoWatch) };
        let new = lock::cookie(watch);
        if old == new {
            return Ok(Attempt::Again);
        }
        let mut ops = ObjectOps::new();
        lock::set_cookie(&mut ops, old, INTERNAL_TAG, &new);
        self.ownership.uses_cookie(&new);
        let sent = self.store.send(&self.header_object(), ops).await;
        match sent {
            // The next attempt finds the lock taken.
            Ok(_) | Err(Errno::EBUSY | Errno::ENOENT) => {
                self.ownership.cookie.borrow_mut().clear();
                Ok(Attempt::Again)
            }
            Err(errno) => {
                self.doubt_lock();
                Err(self.error("taking its own lock again", errno))
            }
        }
    }

    async fn blocklist(&self, address: &str) -> Result<(), RbdError> {
        let action = "blocking a client that is gone";
        // The address has digits, dots, colons, brackets and a slash: nothing to escape.
        let command = |word| {
            let command =
                format!(r#"{{"prefix": "osd {word}", "{word}op": "add", "addr": "{address}"}}"#);
            self.cluster.command(command, Bytes::new())
        };
        let mut reply = command("blocklist").await;
        // Ceph 14 and 15 know only the old word.
        if reply.as_ref().is_ok_and(|reply| reply.result == -Errno::EINVAL.0) {
            reply = command("blacklist").await;
        }
        let reply = reply.map_err(|errno| self.error(action, errno))?;
        Errno::check(reply.result).map_err(|errno| self.error(action, errno))?;
        self.cluster.newest_map().await.map_err(|errno| self.error(action, errno))
    }

    /// Gives the lock up, after the writes in flight. Nothing happens if this client has it not.
    /// `asked`: another client has asked for it, and gets it.
    pub(crate) async fn release(self: &Rc<Self>, asked: bool) {
        while matches!(self.ownership.possession(), Possession::Acquiring | Possession::Releasing)
            && self.fault().is_none()
        {
            self.ownership.changed.next().await;
        }
        let _duty = self.ownership.duties.acquire().await;
        if !self.needs_lock() || self.ownership.possession() != Possession::Owned {
            return;
        }
        if self.spec.has_layers && !self.closing.get() && !self.layers_leave().await {
            return;
        }
        if !self.close_for_release().await {
            self.ownership.stays();
            return;
        }
        self.ownership.leaving.set(false);
        self.close_map().await;
        if asked {
            self.ownership.held_back_until.set(Some(self.timer.now().plus(HOLD_BACK)));
        }
        self.unlock().await;
        // The others hear of it before a writer of this client tries the lock again.
        self.tell_released().await;
        self.ownership.set(Possession::Unlocked);
        self.open_gate();
        self.clean_up();
    }

    /// Waits until the layers above keep nothing any more. False if the lock is not to be given up
    /// by the caller: another procedure does it, or it is lost, or the image has ended.
    pub(super) async fn layers_leave(&self) -> bool {
        let ownership = &self.ownership;
        if ownership.leaving.replace(true) {
            return false;
        }
        ownership.settled.set(false);
        ownership.changed.happen();
        let is_owner = || ownership.possession() == Possession::Owned && self.check().is_ok();
        while is_owner() && !ownership.settled.get() {
            ownership.changed.next().await;
        }
        if !is_owner() {
            ownership.leaving.set(false);
        }
        is_owner()
    }

    async fn unlock(&self) {
        let _step = self.step().await;
        let cookie = std::mem::take(&mut *self.ownership.cookie.borrow_mut());
        if let Err(errno) = self.send_unlock(&cookie).await {
            tracing::warn!(image = %self.name, %errno, "giving the lock up failed");
            if self.unlock_any().await.is_err() {
                self.doubt_lock();
            }
        }
    }

    async fn send_unlock(&self, cookie: &str) -> Result<(), Errno> {
        let mut ops = ObjectOps::new();
        lock::unlock(&mut ops, cookie);
        self.store.send(&self.header_object(), ops).await.map(drop)
    }

    /// Gives the lock up if the header has it with any cookie of this image. True if it had.
    ///
    /// # Errors
    /// The header may still have it.
    pub(super) async fn unlock_any(&self) -> Result<bool, Errno> {
        let mut ops = ObjectOps::new();
        lock::get_info(&mut ops);
        let reply = match self.store.send(&self.header_object(), ops).await {
            Err(Errno::ENOENT) => return Ok(false),
            reply => reply?,
        };
        let Ok(info) = LockInfo::decode(answer(&reply, 0)?) else {
            tracing::warn!(image = %self.name, "its lock cannot be read");
            return Ok(false);
        };
        let me = lock::client(self.client);
        let own = |locker: &&Locker| locker.client == me && self.ownership.has_used(&locker.cookie);
        let Some(locker) = info.lockers.iter().find(own) else { return Ok(false) };
        match self.send_unlock(&locker.cookie).await {
            Ok(()) | Err(Errno::ENOENT) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// After the watch was renewed with another cookie: the lock's cookie has to follow.
    pub(crate) async fn follow_watch(self: &Rc<Self>) {
        let _step = self.step().await;
        loop {
            let Some(watch) = self.watch_cookie() else { return };
            let old = self.ownership.cookie.borrow().clone();
            let new = lock::cookie(watch);
            if old.is_empty() || old == new || !self.needs_lock() {
                return;
            }
            let mut ops = ObjectOps::new();
            lock::set_cookie(&mut ops, &old, INTERNAL_TAG, &new);
            // Requests that are sent after this one come after it at the OSD as well.
            self.ownership.uses_cookie(&new);
            if let Err(errno) = self.store.send(&self.header_object(), ops).await {
                let error = self.error("renewing the lock", errno);
                tracing::warn!(image = %self.name, %error, "the lock cannot be renewed");
                self.doubt_lock();
                self.lose_lock();
                self.clean_up();
                return;
            }
            if self.ownership.cookie.borrow().is_empty() {
                // The lock counts as lost since the request was sent, and the header has it.
                self.doubt_lock();
                self.clean_up();
                return;
            }
        }
    }

    /// Tells the other clients to try the lock. Returns when the notification is on its way.
    pub(super) async fn tell_released(self: &Rc<Self>) {
        let core = Rc::clone(self);
        let mut notice = Box::pin(async move {
            core.notify(&Notice::ReleasedLock(core.client_id())).await;
        });
        let sent = poll_fn(|context| Poll::Ready(notice.as_mut().poll(context))).await;
        if sent.is_pending() {
            self.spawner.spawn(notice);
        }
    }

    /// Tells the other clients something, without waiting for them.
    pub(crate) fn notify_in_background(self: &Rc<Self>, notice: Notice) {
        let core = Rc::clone(self);
        self.spawner.spawn(async move { core.notify(&notice).await });
    }

    /// Tells the other clients something, and waits until they have heard it.
    pub(crate) async fn notify(&self, notice: &Notice) {
        let object = self.store.object(&self.header_object());
        // A client that does not answer finds out by itself.
        let _ = self.cluster.notify(object, notice.encode(), NOTIFY_TIMEOUT_MS).await;
    }
}
