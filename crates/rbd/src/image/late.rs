//! Writes that have failed here, and that an OSD may still execute.
//!
//! With a time limit for requests (`rados_osd_op_timeout`), the device reports a write that takes
//! longer as failed, and the objecter goes on with it: a *late* write
//! ([`late_writes`](fieldstone_rados::cluster::Cluster::late_writes)). Without a limit, a write
//! waits until its OSD has answered it. It becomes late only if an operator lets its pool fail all
//! requests. Of this client, all later requests on the object come behind it, so it overwrites
//! nothing that was written after it. Requests of other clients have no order with it. Three rules
//! keep it away from them:
//!
//! - **The lock is not given up** while a write is late. The client that asks for it waits, and
//!   this one goes on to write. A living owner keeps the lock as long as an OSD is silent, with a
//!   time limit as without one.
//! - **An image that is closed** waits for [`LATE_TIME`]. Then it leaves the lock in the header,
//!   and ends its watch. So the next client that writes takes this one for dead, and blocks its
//!   address before it breaks the lock: from then on OSDs refuse the late write. Clients that were
//!   promised the lock are told to try it.
//! - **No snapshot is made** while a write is late: the write would change the snapshot.
//!
//! A request for the lock itself may be late, too: see [`cleanup`](super::cleanup).
//!
//! Each open image has late writes of its own. Images that share a client do not wait for those of
//! each other: a clone whose write is late, for instance, and a parent that its owner opens.

use fieldstone_block::Nanos;
use fieldstone_rados::errno::Errno;

use super::core::{Core, RETRY_PAUSE};
use super::owner::Possession;
use crate::error::RbdError;

/// How long an image that is closed, and one of which a snapshot is made, waits for late writes. An
/// image whose lock is asked for waits so long before it closes its gate, and behind the gate.
pub(super) const LATE_TIME: Nanos = Nanos::from_ms(5_000);

impl Core {
    /// Closes the gate so that the lock can be given up: no write is inside, and none is late.
    /// False if the lock is not to be given up by the caller; then the gate is open. The caller has
    /// the lock.
    ///
    /// While an OSD is silent, the gate is open and closed by turns: so writes to other OSDs go on,
    /// and those that are late for a short time only come to an end.
    pub(super) async fn close_for_release(&self) -> bool {
        let mut is_told = false;
        loop {
            // A closed image has no new writes.
            let is_settled = self.closing.get() || self.late_writes_end(LATE_TIME).await;
            if self.ownership.possession() != Possession::Owned || self.fault().is_some() {
                return false;
            }
            if !is_settled && !is_told {
                is_told = true;
                let late = self.cluster.late_writes();
                tracing::warn!(
                    image = %self.name,
                    late,
                    "the lock stays here until OSDs have answered the writes that took too long"
                );
            }
            self.ownership.set(Possession::Releasing);
            self.close_gate().await;
            if self.late_writes_end(LATE_TIME).await {
                return true;
            }
            if self.closing.get() {
                // Closing may have begun in the middle of this.
                let now = self.timer.now();
                let left = Nanos(self.closes_by.get().0.saturating_sub(now.0));
                if self.late_writes_end(left).await {
                    return true;
                }
            }
            if self.closing.get() || self.fault().is_some() {
                self.leave_lock_behind();
                self.open_gate();
                return false;
            }
            if self.ownership.cookie.borrow().is_empty() {
                // The watch was renewed meanwhile, and the lock could not follow.
                *self.map.borrow_mut() = None;
                self.ownership.set(Possession::Unlocked);
                self.open_gate();
                return false;
            }
            self.ownership.set(Possession::Owned);
            // The lock may have been lost meanwhile: the header tells.
            self.mark_stale();
            self.open_gate();
        }
    }

    /// Waits until no write is late. False if some still are after the longest time, or the image
    /// has stopped.
    async fn late_writes_end(&self, longest: Nanos) -> bool {
        let until = self.timer.now().plus(longest);
        while self.cluster.late_writes() > 0 {
            if self.fault().is_some() || self.timer.now() >= until {
                return false;
            }
            self.timer.within(RETRY_PAUSE, self.cluster.settled()).await;
        }
        true
    }

    /// Waits for late writes before a snapshot. The caller has the lock, and the gate is closed.
    ///
    /// # Errors
    /// `ETIMEDOUT`: some are late still.
    pub(crate) async fn settle_for_snapshot(&self) -> Result<(), RbdError> {
        if self.late_writes_end(LATE_TIME).await {
            return Ok(());
        }
        let action = "waiting for an OSD that has not answered a write";
        Err(self.error(action, Errno::ETIMEDOUT))
    }

    /// Gives the lock up in this client's memory only. The header keeps it.
    fn leave_lock_behind(&self) {
        tracing::warn!(
            image = %self.name,
            "an OSD may still execute a write, so the lock is left behind: the next client that \
             writes blocks this one"
        );
        *self.map.borrow_mut() = None;
        self.ownership.cookie.borrow_mut().clear();
        self.ownership.left_behind.set(true);
        self.ownership.set(Possession::Unlocked);
    }
}
