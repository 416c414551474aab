//! The requests of a client that wait for an answer of the monitors.
//!
//! A request is sent on each new session again, until it is answered or its time is over. At most
//! [`IN_FLIGHT`] are sent at a time, in the order of their numbers; the others wait.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;

use super::Options;
use crate::Nanos;
use crate::cluster::SnapId;
use crate::errno::Errno;
use crate::message::Message;
use crate::message::monitor::{self as wire, Fsid, PoolOpKind};

/// Requests that wait for an answer at most, sent or not.
pub const REQUESTS_MAX: usize = 4096;
/// Requests that are sent and not answered at most.
pub const IN_FLIGHT: usize = 64;
/// The patience with a request doubles each time that it is sent, this often at most.
const PATIENCE_DOUBLINGS: u32 = 3;

/// Names a request. It is the `tid` of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What is asked.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    Version(String),
    Command(String, Bytes),
    PoolOp(PoolId, PoolOpKind, SnapId),
    StatFs(Option<PoolId>),
    PoolStats(Vec<String>),
}

/// The kind of answer that a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskKind {
    Version,
    Command,
    PoolOp,
    StatFs,
    PoolStats,
}

impl Ask {
    pub(super) fn kind(&self) -> AskKind {
        match self {
            Ask::Version(_) => AskKind::Version,
            Ask::Command(..) => AskKind::Command,
            Ask::PoolOp(..) => AskKind::PoolOp,
            Ask::StatFs(_) => AskKind::StatFs,
            Ask::PoolStats(_) => AskKind::PoolStats,
        }
    }

    fn message(&self, tid: u64, fsid: Fsid, osdmap_epoch: u64) -> Message {
        match self {
            Ask::Version(what) => wire::GetVersion { id: tid, what: what.clone() }.encode(),
            Ask::Command(json, input) => {
                let command = vec![json.clone()];
                wire::Command { tid, fsid, command, input: input.clone() }.encode()
            }
            &Ask::PoolOp(pool, kind, snap) => {
                wire::PoolOp { tid, osdmap_epoch, fsid, pool, kind, snap }.encode()
            }
            &Ask::StatFs(pool) => wire::StatFs { tid, fsid, pool }.encode(),
            Ask::PoolStats(pools) => {
                wire::GetPoolStats { tid, fsid, pools: pools.clone() }.encode()
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Request {
    ask: Ask,
    /// Fails then; `None`: never.
    until: Option<Nanos>,
    /// When the monitor of the present session should have answered.
    answer_by: Option<Nanos>,
    sends: u32,
}

/// The requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    last: u64,
    all: BTreeMap<RequestId, Request>,
    /// Not sent on the present session.
    waiting: BTreeSet<RequestId>,
    /// Sent on the present session.
    sent: BTreeSet<RequestId>,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn add(
        &mut self,
        ask: Ask,
        options: &Options,
        now: Nanos,
    ) -> Result<RequestId, Errno> {
        if self.all.len() >= REQUESTS_MAX {
            return Err(Errno::EBUSY);
        }
        self.last += 1;
        let id = RequestId(self.last);
        let until = (options.request_timeout.0 > 0).then(|| now.plus(options.request_timeout));
        self.all.insert(id, Request { ask, until, answer_by: None, sends: 0 });
        self.waiting.insert(id);
        Ok(id)
    }

    /// The next request to send, if one may be.
    pub(super) fn next(
        &mut self,
        fsid: Fsid,
        osdmap_epoch: u64,
        options: &Options,
        now: Nanos,
    ) -> Option<Message> {
        if self.sent.len() >= IN_FLIGHT {
            return None;
        }
        let id = self.waiting.pop_first()?;
        self.sent.insert(id);
        let request = self.all.get_mut(&id)?;
        let doublings = request.sends.min(PATIENCE_DOUBLINGS);
        request.sends = request.sends.saturating_add(1);
        let patience = Nanos(options.request_patience.0.saturating_mul(1 << doublings));
        request.answer_by = (patience.0 > 0).then(|| now.plus(patience));
        Some(request.ask.message(id.0, fsid, osdmap_epoch))
    }

    /// The session is over: all requests have to be sent again.
    pub(super) fn unsend(&mut self) {
        self.waiting.append(&mut self.sent);
    }

    /// A request of this kind is answered. False if there is none: it was answered before.
    pub(super) fn answer(&mut self, id: RequestId, kind: AskKind) -> bool {
        let is_it = self.all.get(&id).is_some_and(|request| request.ask.kind() == kind);
        if is_it {
            self.remove(id);
        }
        is_it
    }

    pub(super) fn remove(&mut self, id: RequestId) -> bool {
        self.waiting.remove(&id);
        self.sent.remove(&id);
        self.all.remove(&id).is_some()
    }

    /// Takes out one request whose time is over. All have the same time, so the oldest is the
    /// first.
    pub(super) fn expire(&mut self, now: Nanos) -> Option<RequestId> {
        let (&id, request) = self.all.first_key_value()?;
        request.until.filter(|&until| until <= now)?;
        self.remove(id);
        Some(id)
    }

    /// Takes out all requests.
    pub(super) fn clear(&mut self) -> Vec<RequestId> {
        self.waiting.clear();
        self.sent.clear();
        std::mem::take(&mut self.all).into_keys().collect()
    }

    /// When patience with the present session ends.
    pub(super) fn answer_by(&self) -> Option<Nanos> {
        self.sent.iter().filter_map(|id| self.all.get(id)?.answer_by).min()
    }

    /// When the first request fails.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.all.first_key_value().and_then(|(_, request)| request.until)
    }
}
