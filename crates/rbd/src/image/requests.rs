//! Requests of other clients, which the owner of the lock carries out.
//!
//! A client that wants to change an image whose lock another has asks the owner to do it: so the
//! lock need not move, and an owner that keeps the lock for itself can still be asked for a
//! snapshot. The owner answers at once whether it takes the request, and tells the end in a
//! notification of its own. A request without an id is answered at its end.
//!
//! **One after another.** Requests have a lock of their own, [`duties`](super::owner::Ownership),
//! and giving the image's lock up takes it too. So another client that asks for the lock gets it
//! when the request is done.
//!
//! **Layers above** may keep data that a snapshot must have. So before a request begins, they write
//! out what they have, as before the lock is given up. Meanwhile they keep nothing.
//!
//! **Writes.** While the header changes, writes wait outside the gate. Each write that was answered
//! before the request came is in a snapshot then, and no write goes out with an old list of
//! snapshots. Flattening copies object by object beside the writes, and keeps them out at its end
//! only. Making an image smaller keeps them out until all objects behind the end are gone.
//!
//! **Again.** A client that hears nothing for half a minute asks again, with the same id. A request
//! that is under way is not begun twice, and the result of one that is done is told again. A client
//! that hears `ERESTART` asks from the beginning: the lock was lost, or the image is being closed.
//! It may ask with the same id, so this result is not remembered. librbd numbers its requests from
//! 1 each time that it opens an image: an id that comes with other work, or long after its result,
//! names another request.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_rados::cluster::Watch;
use fieldstone_rados::errno::Errno;

use super::core::Core;
use super::owner::{NOTIFY_TIMEOUT_MS, Possession};
use crate::error::RbdError;
use crate::format::notice::{self, Notice, RequestId};
use crate::format::request::{Request, Work};
use crate::pool;

/// The most requests under way, those that wait included. A client whose request finds no place is
/// not answered, and asks again.
const RUNNING_MAX: usize = 16;
/// The most results that are remembered.
const DONE_MAX: usize = 64;
/// How long a result is remembered. A client asks again every 30 s.
const DONE_TIME: Nanos = Nanos::from_ms(120_000);
/// The least time between two notifications of progress. A client waits for the next one for 30 s
/// (Ceph: `rbd_request_timed_out_seconds`).
const PROGRESS_PAUSE: Nanos = Nanos::from_ms(1_000);
/// How often the end of a request is told, until all watchers have heard it.
const TELL_ATTEMPTS: usize = 5;

/// The result of a request.
struct Done {
    id: RequestId,
    work: Work,
    result: i32,
    at: Nanos,
}

/// The requests that an image has taken.
#[derive(Default)]
pub(crate) struct Requests {
    running: RefCell<BTreeMap<RequestId, Work>>,
    /// Those under way that have no id.
    unnamed: Cell<usize>,
    /// Results, the newest last.
    done: RefCell<VecDeque<Done>>,
    /// Ends that are being told.
    telling: RefCell<BTreeSet<(RequestId, i32)>>,
}

impl Requests {
    fn are_full(&self) -> bool {
        self.running.borrow().len() + self.unnamed.get() >= RUNNING_MAX
    }

    /// The result of the same request, if it was done not long ago.
    fn result_of(&self, id: RequestId, work: &Work, now: Nanos) -> Option<i32> {
        let done = self.done.borrow();
        let mut same = done
            .iter()
            .filter(|done| done.id == id && done.work == *work && now <= done.at.plus(DONE_TIME));
        same.next_back().map(|done| done.result)
    }

    fn note_done(&self, id: RequestId, result: i32, now: Nanos) {
        let Some(work) = self.running.borrow_mut().remove(&id) else { return };
        if result == -Errno::ERESTART.0 {
            return;
        }
        let mut done = self.done.borrow_mut();
        if done.len() == DONE_MAX {
            done.pop_front();
        }
        done.push_back(Done { id, work, result, at: now });
    }
}

impl Core {
    /// Takes a request of another client. Gives the answer; `None` if it is given later.
    pub(crate) fn take_request(
        self: &Rc<Self>,
        watch: &Rc<Watch>,
        notify_id: u64,
        request: Request,
    ) -> Option<Bytes> {
        // Who finds no owner that takes its request asks again.
        let ask_again = Some(Bytes::new());
        let requests = &self.requests;
        if self.ownership.possession() != Possession::Owned || self.check().is_err() {
            return ask_again;
        }
        let Request { id, work } = request;
        let Some(id) = id else {
            if requests.are_full() {
                return ask_again;
            }
            requests.unnamed.set(requests.unnamed.get() + 1);
            let (core, watch) = (Rc::clone(self), Rc::clone(watch));
            self.spawner.spawn(async move {
                let result = core.carry_out(&work, None).await;
                core.requests.unnamed.set(core.requests.unnamed.get() - 1);
                watch.acknowledge(notify_id, notice::response(result));
            });
            return None;
        };
        if let Some(running) = requests.running.borrow().get(&id) {
            // Two requests of one id cannot be told apart: the other one waits.
            return if *running == work { Some(notice::response(0)) } else { ask_again };
        }
        if let Some(result) = requests.result_of(id, &work, self.timer.now()) {
            self.tell_end(id, result);
            return Some(notice::response(result));
        }
        if requests.are_full() {
            return ask_again;
        }
        requests.running.borrow_mut().insert(id, work.clone());
        let core = Rc::clone(self);
        self.spawner.spawn(async move {
            let result = core.carry_out(&work, Some(id)).await;
            core.requests.note_done(id, result, core.timer.now());
            core.tell_end(id, result);
        });
        Some(notice::response(0))
    }

    /// Tells the end of a request, until the client that has asked is sure to have heard it.
    fn tell_end(self: &Rc<Self>, id: RequestId, result: i32) {
        if !self.requests.telling.borrow_mut().insert((id, result)) {
            return;
        }
        let core = Rc::clone(self);
        self.spawner.spawn(async move {
            let end = Notice::AsyncComplete(id, result).encode();
            for _ in 0..TELL_ATTEMPTS {
                let object = core.store.object(&core.header_object());
                match core.cluster.notify(object, end.clone(), NOTIFY_TIMEOUT_MS).await {
                    Err(Errno::ETIMEDOUT) if core.check().is_ok() => {}
                    _ => break,
                }
            }
            core.requests.telling.borrow_mut().remove(&(id, result));
        });
    }

    /// Carries a request out. Gives its result: 0, or a negative error number.
    async fn carry_out(self: &Rc<Self>, work: &Work, id: Option<RequestId>) -> i32 {
        let _duty = self.ownership.duties.acquire().await;
        let lost = -Errno::ERESTART.0;
        if self.ownership.possession() != Possession::Owned || self.check().is_err() {
            return lost;
        }
        if self.spec.has_layers && !self.layers_leave().await {
            return lost;
        }
        tracing::info!(image = %self.name, ?work, "another client asks the owner of the lock");
        let mut told = self.timer.now();
        let mut progress = |done: u64, total: u64| {
            let now = self.timer.now();
            if let Some(id) = id
                && now >= told.plus(PROGRESS_PAUSE)
            {
                told = now;
                self.notify_in_background(Notice::AsyncProgress(id, done, total));
            }
        };
        let result = pool::carry_out(self, work, &mut progress).await;
        self.ownership.stays();
        self.notify(&Notice::HeaderUpdate).await;
        match result {
            Ok(()) => 0,
            Err(error) => {
                tracing::warn!(image = %self.name, %error, ?work, "a client's request failed");
                if error.errno() == Some(Errno::EBUSY) && !self.owns_header_lock().await {
                    // The question may have failed, too, and the header may name this client.
                    self.doubt_lock();
                    self.lose_lock();
                    self.clean_up();
                }
                let owns = self.ownership.possession() == Possession::Owned;
                if owns && self.check().is_ok() { -errno_of(&error).0 } else { lost }
            }
        }
    }
}

/// The number by which another client knows an error.
fn errno_of(error: &RbdError) -> Errno {
    match error {
        RbdError::NoPool(_) | RbdError::NoImage(_) | RbdError::NoSnapshot { .. } => Errno::ENOENT,
        RbdError::Exists(_) => Errno::EEXIST,
        RbdError::InUse { .. } => Errno::EBUSY,
        RbdError::Invalid(_) | RbdError::Feature { .. } => Errno::EINVAL,
        RbdError::Locked { .. } => Errno::EROFS,
        RbdError::Damaged { .. } => Errno::EIO,
        RbdError::Blocklisted(_) | RbdError::Closed(_) => Errno::ERESTART,
        RbdError::Cluster { errno, .. } => *errno,
    }
}
