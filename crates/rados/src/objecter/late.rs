//! Late writes: they have failed for their callers, and an OSD may still execute them.
//!
//! A request of a caller fails without an answer by the time limit (`rados_osd_op_timeout`), or
//! because an operator lets its pool fail all requests (the pool's flag `eio`). A read, and a write
//! that was never sent, is gone then. A write that was sent stays, and is sent again like any other
//! until it is answered: an OSD may have it, or a queue of the network, and nothing takes it back.
//! So later requests of this client on the object come behind it in every session, and none that
//! was acknowledged is overwritten by it. [`Objecter::late_writes`] tells how many there are: who
//! gives a lock away that protects the objects waits until there are none, or lets the next owner
//! shut this client out.
//!
//! **In flight.** A late write counts as in flight, which bounds late writes. While its pool fails
//! all requests it does not: no OSD answers it then, and requests to other pools would wait for its
//! place. It counts again when it is sent again. All other ways on which it ends give its place
//! back as well: an answer, the deletion of its pool, and the end of the client.

use fieldstone_block::Nanos;

use super::request::{Party, Request};
use super::{ClusterMap, Event, Objecter};
use crate::cluster::SenderId;
use crate::errno::Errno;

impl<M: ClusterMap> Objecter<M> {
    /// A caller's write that an OSD may have got stays under way, and its caller is told an error.
    /// False if the request is another one: nothing happens.
    pub(super) fn becomes_late(&mut self, key: usize, errno: Errno) -> bool {
        let Some(request) = self.requests.get(key).filter(|request| request.may_be_executed())
        else {
            return false;
        };
        let sender = request.operation.sender;
        let Some(token) = self.requests.make_late(key) else { return false };
        *self.late.entry(sender).or_default() += 1;
        self.events.push_back(Event::Done(token, Err(errno)));
        true
    }

    /// How many late writes there are.
    #[cfg(test)]
    pub(super) fn late_count(&self) -> usize {
        self.late.values().sum()
    }

    /// A late write is gone.
    pub(super) fn forget_late(&mut self, sender: SenderId) {
        let Some(count) = self.late.get_mut(&sender) else { return };
        *count -= 1;
        if *count == 0 {
            self.late.remove(&sender);
        }
    }

    /// A request's pool fails all requests. A late write waits until the pool takes requests again.
    pub(super) fn pool_fails(&mut self, key: usize, now: Nanos) {
        let is_late = |request: &Request| request.party == Party::Late;
        if !self.requests.get(key).is_some_and(is_late) && !self.becomes_late(key, Errno::EIO) {
            return self.finish(key, Err(Errno::EIO), now);
        }
        if let Some(request) = self.requests.get_mut(key) {
            request.target = None;
        }
        self.make_homeless(key);
        self.give_place_back(key);
        self.pump(now);
    }
}
