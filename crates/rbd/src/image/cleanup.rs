//! A lock that is in doubt: the header may name this client, which does not count as the owner.
//!
//! A request that takes the lock, gives it up, or sets its cookie to that of a new watch may fail
//! by the time limit for requests: it was never sent, or is executed later. Others that want the
//! lock would wait for this client as long as its watch stands, or take it for dead if the cookie
//! is that of an old watch. So a task *cleans up*: it asks the header, and gives the lock up if the
//! header names this image. It repeats that until an OSD has answered, or this client has taken the
//! lock again.
//!
//! Writes of the time when this client had the lock may be under way, and late. The task waits for
//! them first, as if the lock was given up in the usual way.
//!
//! **An image that is used exclusively** takes the lock again instead: other clients are to be kept
//! out, also while it has nothing to write.
//!
//! **At the end.** An image that is closed finishes this before it ends its watch, for
//! [`CLEAN_UP_TIME`]. If the OSD of the header is silent for longer, the lock may be left behind.

use std::rc::Rc;

use fieldstone_block::Nanos;
use fieldstone_rados::errno::Errno;

use super::core::{Core, RETRY_PAUSE};
use super::owner::Possession;
use crate::error::RbdError;
use crate::format::notice::Notice;

/// How long an image that is closed waits until its lock is not in doubt. It is longer than
/// clusters need to replace an OSD: to be shut out is worse for a client that lives than to wait.
const CLEAN_UP_TIME: Nanos = Nanos::from_ms(30_000);

/// How an attempt to clean up ended.
enum Outcome {
    /// The header does not name this image any more.
    Clean,
    /// Something else has to end first.
    NotYet,
    /// No OSD has answered.
    NoAnswer(Errno),
}

impl Core {
    /// From now on the header may name this client, which does not count as the owner. Whoever
    /// calls this sets the possession, and begins to clean up.
    pub(super) fn doubt_lock(&self) {
        self.ownership.cookie.borrow_mut().clear();
        self.ownership.in_doubt.set(true);
    }

    /// Gives the lock up in the background, if it is in doubt.
    pub(super) fn clean_up(self: &Rc<Self>) {
        if !self.ownership.in_doubt.get() || self.ownership.cleans_up.replace(true) {
            return;
        }
        let core = Rc::clone(self);
        self.spawner.spawn(async move {
            core.clean_up_now().await;
            core.ownership.cleans_up.set(false);
            core.ownership.changed.happen();
        });
    }

    async fn clean_up_now(self: &Rc<Self>) {
        let mut is_told = false;
        while self.ownership.in_doubt.get() && self.is_served() {
            if self.ownership.possession() != Possession::Unlocked {
                // Another procedure takes the lock: then it is known.
                self.ownership.changed.next().await;
                continue;
            }
            if self.spec.exclusive && !self.closing.get() {
                match self.acquire().await {
                    Ok(()) => continue,
                    // Another client has it. The header tells that this one has it not.
                    Err(RbdError::Locked { .. }) => {}
                    Err(_) => {
                        self.timer.sleep(RETRY_PAUSE).await;
                        continue;
                    }
                }
            }
            self.close_gate().await;
            self.open_gate();
            self.cluster.settled().await;
            match self.try_to_clean_up().await {
                Outcome::Clean | Outcome::NotYet => {}
                Outcome::NoAnswer(errno) => {
                    if !std::mem::replace(&mut is_told, true) {
                        let image = &self.name;
                        tracing::warn!(%image, %errno, "it may have the lock, and no OSD tells");
                    }
                    self.timer.sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    async fn try_to_clean_up(self: &Rc<Self>) -> Outcome {
        // Nobody takes the lock meanwhile.
        let _step = self.step().await;
        let is_idle = self.ownership.possession() == Possession::Unlocked
            && self.is_gate_empty()
            && self.cluster.late_writes() == 0;
        if !is_idle || !self.is_served() {
            return Outcome::NotYet;
        }
        match self.unlock_any().await {
            Ok(had_lock) => {
                self.ownership.in_doubt.set(false);
                if had_lock {
                    self.notify_in_background(Notice::ReleasedLock(self.client_id()));
                }
                Outcome::Clean
            }
            // The client is closed or shut out, or the pool is gone.
            Err(errno @ (Errno::ECANCELED | Errno::ESHUTDOWN | Errno::ENXIO | Errno::ENOENT)) => {
                drop(self.error("giving the lock up", errno));
                self.ownership.in_doubt.set(false);
                Outcome::Clean
            }
            // Anything else may pass: a silent OSD, a flag of the pool, rights that change.
            Err(errno) => Outcome::NoAnswer(errno),
        }
    }

    /// Waits until the lock is not in doubt, before the watch ends.
    pub(super) async fn finish_clean_up(self: &Rc<Self>) {
        self.clean_up();
        let until = self.timer.now().plus(CLEAN_UP_TIME);
        while self.ownership.in_doubt.get() && self.is_served() {
            let left = until.0.saturating_sub(self.timer.now().0);
            let changed = self.ownership.changed.next();
            if left == 0 || self.timer.within(Nanos(left), changed).await.is_none() {
                let image = &self.name;
                tracing::warn!(%image, "the lock may be left behind: no OSD tells who has it");
                return;
            }
        }
    }
}
