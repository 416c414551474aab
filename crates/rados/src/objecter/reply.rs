//! What OSDs answer: results, redirects, backoffs.

use fieldstone_block::Nanos;
use fieldstone_crush::OsdId;

use super::request::Party;
use super::{Action, ClusterMap, MAX_BOUNCES, Objecter};
use crate::errno::Errno;
use crate::message::osd::{BackoffStep, OsdBackoff, OsdOpReply, Redirect, flag};

/// "Try again": a replica cannot answer a read now.
const EAGAIN: i32 = -11;
/// The client is on the list of blocked clients.
const BLOCKLISTED: i32 = -Errno::ESHUTDOWN.0;
/// Flags of requests that OSDs of caches must not redirect once more. The last is Ceph's
/// `CEPH_OSD_FLAG_IGNORE_CACHE`.
const REDIRECTED_FLAGS: u32 = flag::REDIRECTED | flag::IGNORE_OVERLAY | 0x8000;

impl<M: ClusterMap> Objecter<M> {
    /// An answer to request `tid`. One that is not to the newest attempt, in the present session,
    /// is ignored: the newest attempt will be answered too.
    pub fn reply(&mut self, osd: OsdId, tid: u64, reply: OsdOpReply, now: Nanos) {
        let Some(session) = self.sessions.get_mut(&osd).filter(|session| session.is_ready()) else {
            return;
        };
        session.last_used = now;
        let Some(&key) = session.requests.get(&tid) else { return };
        let Some(request) = self.requests.get_mut(key) else { return };
        let is_newest = reply.attempt < 0 || reply.attempt == request.attempts - 1;
        if !request.sent || !is_newest {
            return;
        }
        let is_refused = reply.redirect.is_some() || reply.reply.result == EAGAIN;
        if request.party == Party::Late && is_refused {
            // It was not executed, and with a new number it would come behind later writes.
            return self.finish(key, Err(Errno::ETIMEDOUT), now);
        }
        if let Some(redirect) = reply.redirect {
            return self.redirect(key, redirect, now);
        }
        match reply.reply.result {
            EAGAIN if request.bounces < MAX_BOUNCES => {
                request.bounces += 1;
                request.flags &= !(flag::BALANCE_READS | flag::LOCALIZE_READS);
                self.relaunch(key, now);
            }
            BLOCKLISTED => self.shut_out(Errno::ESHUTDOWN),
            _ => self.finish(key, Ok(reply.reply), now),
        }
    }

    /// An answer to request `tid` came that cannot be read. The request fails with `EIO`: the OSD
    /// would answer another attempt in the same way.
    pub fn undecodable(&mut self, osd: OsdId, tid: u64, now: Nanos) {
        let session = self.sessions.get(&osd).filter(|session| session.is_ready());
        let Some(&key) = session.and_then(|session| session.requests.get(&tid)) else { return };
        if self.requests.get(key).is_some_and(|request| request.sent) {
            self.finish(key, Err(Errno::EIO), now);
        }
    }

    /// Sends a request again with a new number.
    fn relaunch(&mut self, key: usize, now: Nanos) {
        self.unsettle(key);
        self.launch(key, now);
    }

    fn redirect(&mut self, key: usize, redirect: Redirect, now: Nanos) {
        let Some(request) = self.requests.get_mut(key) else { return };
        if request.bounces >= MAX_BOUNCES {
            return self.finish(key, Err(Errno::EIO), now);
        }
        request.bounces += 1;
        let object = &mut request.operation.object;
        object.pool = redirect.pool;
        object.namespace = redirect.namespace;
        object.key = redirect.key;
        if !redirect.object.is_empty() {
            object.name = redirect.object;
        }
        request.flags |= REDIRECTED_FLAGS;
        request.pool_seen = false;
        self.relaunch(key, now);
    }

    /// An OSD asks to hold requests back, or to go on.
    pub fn backoff(&mut self, osd: OsdId, backoff: OsdBackoff, now: Nanos) {
        match backoff.step {
            BackoffStep::Block => self.block(osd, backoff, now),
            BackoffStep::Unblock => self.unblock(osd, &backoff, now),
            // Only clients send it.
            BackoffStep::AckBlock => {}
        }
    }

    /// Requests in the range that were sent before are thrown away by the OSD until it gets the
    /// acknowledgement, so all of the range count as not sent.
    fn block(&mut self, osd: OsdId, backoff: OsdBackoff, now: Nanos) {
        let Some(session) = self.sessions.get_mut(&osd).filter(|session| session.is_ready()) else {
            return;
        };
        let acknowledgement = OsdBackoff { step: BackoffStep::AckBlock, ..backoff.clone() };
        if !session.backoffs.block(backoff) {
            // It asks for more than anyone can need: begin anew.
            self.actions.push_back(Action::Close(osd));
            self.session_closed(osd, now);
            return;
        }
        self.actions.push_back(Action::SendBackoffAck(osd, acknowledgement));
    }

    /// Sends all requests of the range again. A number that this client does not know is obeyed
    /// too: to send once more does no harm, to wait for ever does. After a split, the range may be
    /// smaller than when it was blocked; then the larger one counts.
    fn unblock(&mut self, osd: OsdId, backoff: &OsdBackoff, now: Nanos) {
        let Some(session) = self.sessions.get_mut(&osd).filter(|session| session.is_ready()) else {
            return;
        };
        let blocked = session.backoffs.remove(backoff.id);
        let keys: Vec<usize> = session.requests.values().copied().collect();
        let is_covered = |key: &usize| {
            let Some(request) = self.requests.get(*key) else { return false };
            let (Some(target), Some(position)) = (&request.target, request.position()) else {
                return false;
            };
            [Some(backoff), blocked.as_ref()].into_iter().flatten().any(|range| {
                range.target == target.group.pg && position.is_within(&range.begin, &range.end)
            })
        };
        let keys: Vec<usize> = keys.into_iter().filter(is_covered).collect();
        self.send_all(osd, &keys, now);
    }
}
