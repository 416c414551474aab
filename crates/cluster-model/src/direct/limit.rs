//! The time limit of clients, and requests that are held back.

use std::collections::BTreeMap;

use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::{Call, CallId, LateWrites, ObjectName, Operation, SenderId};
use fieldstone_rados::errno::Errno;

use super::{ClientHandle, Inner, ModelCluster, Queued};
use crate::objects::may_write;

/// A call of a client.
type Named = (u64, CallId);

/// Calls that fail when their time is over.
#[derive(Default)]
pub(super) struct Limits {
    limit: Option<Nanos>,
    /// Calls by the ends of their times, with the senders of writes.
    ends: BTreeMap<(Nanos, Named), Option<SenderId>>,
    end_of: BTreeMap<Named, Nanos>,
    /// Writes whose callers have heard that they failed.
    late: BTreeMap<Named, SenderId>,
}

impl Limits {
    /// When the next call fails.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.ends.first_key_value().map(|(&(end, _), _)| end)
    }

    /// A call has come.
    pub(super) fn begin(&mut self, client: u64, id: CallId, call: &Call, now: Nanos) {
        let (Some(limit), Call::Operate(operation)) = (self.limit, call) else { return };
        let end = now.plus(limit);
        let writer = may_write(operation.ops.ops()).then_some(operation.sender);
        self.ends.insert((end, (client, id)), writer);
        self.end_of.insert((client, id), end);
    }

    /// A call is answered. Gives the late writes of the client if this was one.
    pub(super) fn end(&mut self, client: u64, id: CallId) -> Option<LateWrites> {
        let named = (client, id);
        if let Some(end) = self.end_of.remove(&named) {
            self.ends.remove(&(end, named));
        }
        self.late.remove(&named).map(|_| self.late_of(client))
    }

    /// The client is gone.
    pub(super) fn forget(&mut self, client: u64) {
        self.ends.retain(|&(_, (other, _)), _| other != client);
        self.end_of.retain(|&(other, _), _| other != client);
        self.late.retain(|&(other, _), _| other != client);
    }

    fn late_of(&self, client: u64) -> LateWrites {
        let mut counts = LateWrites::new();
        for (_, &sender) in self.late.iter().filter(|&(&(other, _), _)| other == client) {
            *counts.entry(sender).or_default() += 1;
        }
        counts
    }
}

impl Inner {
    /// Fails the calls whose time is over.
    pub(super) fn end_limits(&mut self) {
        let limits = &mut self.limits;
        while let Some(entry) = limits.ends.first_entry().filter(|end| end.key().0 <= self.now) {
            let ((_, named), writer) = entry.remove_entry();
            limits.end_of.remove(&named);
            let is_named = |queued: &Queued| (queued.client, queued.id) == named;
            let is_unsent = |queued: &Queued| match &queued.call {
                Call::Operate(operation) => {
                    self.cuts.contains(&hold_of(queued.client, &operation.object))
                }
                _ => false,
            };
            // One that was never sent is gone.
            let held = self.held.len();
            self.held.retain(|(_, queued)| !(is_named(queued) && is_unsent(queued)));
            let writer = writer.filter(|_| self.held.len() == held);
            let Some(client) = self.clients.get(&named.0) else { continue };
            if let Some(sender) = writer {
                limits.late.insert(named, sender);
                client.calls.set_late_writes(&limits.late_of(named.0));
            }
            client.calls.answer(named.1, Err(Errno::ETIMEDOUT));
        }
    }

    pub(super) fn is_held(&self, client: u64, operation: &Operation) -> bool {
        let is_free = self.holds.is_empty() && self.cuts.is_empty();
        if is_free {
            return false;
        }
        let hold = hold_of(client, &operation.object);
        self.holds.contains(&hold) || self.cuts.contains(&hold)
    }
}

fn hold_of(client: u64, object: &ObjectName) -> (u64, PoolId, String) {
    (client, object.pool, object.name.to_string())
}

impl ModelCluster {
    /// From now on, requests on objects that are not answered in this time fail.
    pub fn set_time_limit(&self, limit: Option<Nanos>) {
        self.0.borrow_mut().limits.limit = limit;
    }
}

impl ClientHandle {
    /// The client's requests on an object wait, until [`ClientHandle::let_go`].
    pub fn hold(&self, pool: PoolId, name: &str) {
        let key = (self.client, pool, name.to_owned());
        self.cluster.0.borrow_mut().holds.insert(key);
    }

    /// The client cannot send requests on an object, until [`ClientHandle::let_go`]: those whose
    /// time is over meanwhile are never executed.
    pub fn cut_off(&self, pool: PoolId, name: &str) {
        let key = (self.client, pool, name.to_owned());
        self.cluster.0.borrow_mut().cuts.insert(key);
    }

    /// The client's requests on an object go on.
    pub fn let_go(&self, pool: PoolId, name: &str) {
        let key = (self.client, pool, name.to_owned());
        let mut inner = self.cluster.0.borrow_mut();
        inner.holds.remove(&key);
        inner.cuts.remove(&key);
    }
}
