//! The watch of the header: what other clients tell, and what is answered.

use std::rc::Rc;

use bytes::Bytes;
use fieldstone_rados::cluster::{Watch, WatchEvent};
use fieldstone_rados::errno::Errno;

use super::core::{Core, RETRY_PAUSE};
use super::owner::Possession;
use crate::error::RbdError;
use crate::format::notice::{self, Notice};

impl Core {
    /// Begins the watch. A read-only image may go without one.
    pub(crate) async fn begin_watch(self: &Rc<Self>) -> Result<(), RbdError> {
        let watch = self.cluster.watch(self.store.object(&self.header_object())).await;
        match watch {
            Ok(watch) => {
                *self.watch.borrow_mut() = Some(Rc::new(watch));
                let core = Rc::clone(self);
                self.spawner.spawn(async move { core.serve_watch().await });
                Ok(())
            }
            Err(Errno::EPERM | Errno::EACCES | Errno::EROFS) if self.spec.is_read_only() => Ok(()),
            Err(Errno::ENOENT) => Err(RbdError::NoImage(self.name.clone())),
            Err(errno) => Err(self.error("watching its header", errno)),
        }
    }

    /// Handles events until the image is closed or has stopped. An image that is being closed still
    /// answers, and renews its watch: it may have the lock for a while.
    async fn serve_watch(self: &Rc<Self>) {
        while self.is_served() {
            let Some(watch) = self.watch.borrow().clone() else { return };
            match watch.next().await {
                WatchEvent::Notified { notify_id, from: _, payload } => {
                    self.handle_notice(&watch, notify_id, &payload);
                }
                WatchEvent::Interrupted(errno) => {
                    tracing::info!(image = %self.name, %errno, "the watch was interrupted");
                    self.stale_in_background();
                }
                WatchEvent::Lost(_) if self.is_closed.get() => return,
                WatchEvent::Lost(Errno::ESHUTDOWN) => {
                    drop(self.error("watching its header", Errno::ESHUTDOWN));
                }
                WatchEvent::Lost(errno) => {
                    tracing::warn!(image = %self.name, %errno, "the watch is lost");
                    self.renew_watch().await;
                }
            }
        }
    }

    async fn renew_watch(self: &Rc<Self>) {
        *self.watch.borrow_mut() = None;
        while self.is_served() {
            match self.cluster.watch(self.store.object(&self.header_object())).await {
                Ok(watch) if !self.is_served() => {
                    // The image was closed meanwhile, and no other task would end this watch.
                    let _ = watch.end().await;
                    return;
                }
                Ok(watch) => {
                    *self.watch.borrow_mut() = Some(Rc::new(watch));
                    self.follow_watch().await;
                    self.stale_in_background();
                    return;
                }
                Err(Errno::ENOENT) => self.fail(RbdError::NoImage(self.name.clone())),
                Err(errno) => {
                    drop(self.error("watching its header", errno));
                    self.timer.sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Reads the header again, without waiting for a request that needs it: the size may differ.
    pub(crate) fn stale_in_background(self: &Rc<Self>) {
        self.mark_stale();
        let core = Rc::clone(self);
        self.spawner.spawn(async move {
            // An error is logged, and met by the next request.
            let _ = core.refresh().await;
        });
    }

    fn handle_notice(self: &Rc<Self>, watch: &Rc<Watch>, notify_id: u64, payload: &Bytes) {
        let possession = self.ownership.possession();
        let owns = matches!(possession, Possession::Owned | Possession::Releasing);
        let answer = match Notice::decode(payload) {
            Ok(Notice::HeaderUpdate) => {
                self.stale_in_background();
                Bytes::new()
            }
            Ok(Notice::ReleasedLock(_)) => {
                self.ownership.released.happen();
                Bytes::new()
            }
            Ok(Notice::AcquiredLock(client)) if client != self.client_id() => {
                self.ownership.taken_by_another();
                Bytes::new()
            }
            Ok(Notice::RequestLock(client, _)) if owns && client != self.client_id() => {
                self.answer_request_for_lock(possession)
            }
            Ok(Notice::Request(request)) if owns => {
                match self.take_request(watch, notify_id, request) {
                    Some(answer) => answer,
                    None => return,
                }
            }
            Ok(Notice::AsyncProgress(id, done, total)) => {
                self.hear_of(id, Some((done, total)), None);
                Bytes::new()
            }
            Ok(Notice::AsyncComplete(id, result)) => {
                self.hear_of(id, None, Some(result));
                Bytes::new()
            }
            // The client asks for the lock then, and does it itself.
            Ok(Notice::OwnerRequest(_)) if owns => notice::response(-Errno::EOPNOTSUPP.0),
            Ok(_) => Bytes::new(),
            Err(fault) => {
                tracing::warn!(image = %self.name, %fault, "a notification cannot be read");
                Bytes::new()
            }
        };
        watch.acknowledge(notify_id, answer);
    }

    fn answer_request_for_lock(self: &Rc<Self>, possession: Possession) -> Bytes {
        if self.closing.get() {
            // It is given up already.
            return notice::response(0);
        }
        if self.spec.exclusive {
            return notice::response(-Errno::EROFS.0);
        }
        if possession == Possession::Owned {
            self.release_in_background();
        }
        notice::response(0)
    }

    /// Another client has asked for the lock, and gets it. It may ask again while it waits.
    fn release_in_background(self: &Rc<Self>) {
        if self.ownership.release_waits.replace(true) {
            return;
        }
        let core = Rc::clone(self);
        self.spawner.spawn(async move {
            core.release(true).await;
            core.ownership.release_waits.set(false);
        });
    }
}
