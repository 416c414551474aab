//! Asking an owner that keeps the lock to change the image: the other side of
//! [`requests`](super::requests).
//!
//! A client that wants to change an image asks for the lock first. If the owner keeps it, the
//! client asks it to do the work. An owner that takes the request tells how far it is, and the end,
//! over the watch of the header. If nothing is heard for [`SILENCE_MAX`], the same request is sent
//! again, with the same number: an owner that has it already does not begin it twice.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_rados::errno::Errno;

use super::core::{Core, RETRY_PAUSE};
use super::owner::{KEPT, NOTIFY_TIMEOUT_MS};
use super::sync::Event;
use crate::error::RbdError;
use crate::format::notice::{self, Notice, RequestId};
use crate::format::request::{Request, Work};

/// How long an owner may say nothing, before it is asked again (Ceph:
/// `rbd_request_timed_out_seconds`).
const SILENCE_MAX: Nanos = Nanos::from_ms(30_000);
/// How often an owner is asked that breaks the request off, or that does not answer.
const ATTEMPTS: usize = 20;

/// What was heard of a request.
#[derive(Clone, Copy, Default)]
struct Progress {
    progress: Option<(u64, u64)>,
    result: Option<i32>,
}

/// The requests of this client.
#[derive(Default)]
pub(crate) struct Asking {
    next: Cell<u64>,
    under_way: RefCell<BTreeMap<u64, Progress>>,
    /// Something was heard.
    changed: Event,
}

impl Core {
    /// The owner tells how far a request is, or its end.
    pub(crate) fn hear_of(&self, id: RequestId, progress: Option<(u64, u64)>, result: Option<i32>) {
        if id.client != self.client_id() {
            return;
        }
        if let Some(heard) = self.asking.under_way.borrow_mut().get_mut(&id.request) {
            heard.progress = progress.or(heard.progress);
            heard.result = result.or(heard.result);
            self.asking.changed.happen();
        }
    }

    /// Has the owner do the work, if `error` says that it keeps the lock. Otherwise fails with that
    /// error.
    pub(crate) async fn ask_if_kept(
        &self,
        error: RbdError,
        work: &Work,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), RbdError> {
        if !matches!(&error, RbdError::Locked { reason, .. } if *reason == KEPT) {
            return Err(error);
        }
        let mut asked = 0;
        for _ in 0..ATTEMPTS {
            self.check()?;
            let number = self.asking.next.get() + 1;
            self.asking.next.set(number);
            self.asking.under_way.borrow_mut().insert(number, Progress::default());
            let result = self.ask(number, work, &mut asked, &mut *progress).await;
            self.asking.under_way.borrow_mut().remove(&number);
            match result?.map(|result| Errno(result.saturating_neg())) {
                Some(errno) if errno == Errno(0) || asked > 1 && is_done(work, errno) => {
                    self.mark_stale();
                    return self.refresh().await;
                }
                Some(Errno::EOPNOTSUPP) => return Err(error),
                Some(Errno::ERESTART) | None => {
                    self.timer.sleep(RETRY_PAUSE).await;
                }
                Some(errno) => return Err(self.error("what the owner of its lock does", errno)),
            }
        }
        Err(error)
    }

    /// Asks with one number, again after silence. `None` if no owner takes the request. Counts in
    /// `asked` how often an owner was asked: a later one may find the work done.
    async fn ask(
        &self,
        number: u64,
        work: &Work,
        asked: &mut usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<i32>, RbdError> {
        let id = RequestId { client: self.client_id(), request: number };
        let payload = Notice::Request(Request { id: Some(id), work: work.clone() }).encode();
        loop {
            *asked += 1;
            let object = self.store.object(&self.header_object());
            let reply = self.cluster.notify(object, payload.clone(), NOTIFY_TIMEOUT_MS).await;
            let reply = match reply {
                Ok(reply) => reply,
                Err(Errno::ETIMEDOUT) => return Ok(None),
                Err(errno) => return Err(self.error("asking the owner of its lock", errno)),
            };
            // A peer's answer that cannot be read is none.
            let mut answers = reply
                .acknowledged
                .iter()
                .filter_map(|(_, answer)| notice::decode_response(answer).ok().flatten());
            match answers.next() {
                Some(0) => {}
                other => return Ok(other),
            }
            loop {
                self.check()?;
                let changed = self.asking.changed.next();
                let heard = self.asking.under_way.borrow().get(&number).copied();
                let Progress { progress: far, result } = heard.unwrap_or_default();
                if result.is_some() {
                    return Ok(result);
                }
                if let Some((done, total)) = far {
                    progress(done, total);
                }
                if self.timer.within(SILENCE_MAX, changed).await.is_none() {
                    break;
                }
            }
        }
    }
}

/// True if an error says that an owner which broke the work off has done it all the same.
fn is_done(work: &Work, errno: Errno) -> bool {
    match work {
        Work::CreateSnapshot(_) => errno == Errno::EEXIST,
        Work::RemoveSnapshot(_) => errno == Errno::ENOENT,
        // The image has no parent any more.
        Work::Flatten => errno == Errno::EINVAL,
        _ => false,
    }
}
