//! Watches and notifications: what has to be registered at an OSD, and again after each change.
//!
//! **A watch** is registered with a `watch` operation. The OSD knows it by client and cookie, and
//! forgets it when it hears nothing for the watch's timeout; so a *ping* goes out each third of it,
//! also while writes are paused or the pool is full. In each new interval of the group, and in each
//! new session, the watch is *renewed* (`reconnect`). The OSD then delivers the notifications that
//! the watch has not acknowledged, so none is missed. But if the OSD forgot it (`ENOTCONN` to a
//! renewal or a ping, or a message "disconnected"), notifications may have been missed: the caller
//! hears [`WatchEvent::Interrupted`], and the watch is registered afresh. If that fails too, it is
//! [lost](WatchEvent::Lost).
//!
//! **A notification** is a `notify` operation. Its answer gives the number of the notification;
//! when all watchers have answered, or time is over, a message *complete* follows, with the
//! answers. After a change of interval or session the OSD has forgotten the notifier, so the
//! operation is sent again: watchers may see a notification twice. If *complete* does not come
//! [`NOTIFY_GRACE`] after it is due, the notification fails with `ETIMEDOUT`; so does, with a time
//! limit for requests, one that cannot be registered, and a new watch.
//!
//! ```text
//! watch:  register -> stands -> renew (new interval or session) -> stands
//!             ^          \-> ping, each third of the timeout
//!             \- afresh, after ENOTCONN
//! notify: register -> (number) -> complete
//! ```

use std::rc::Rc;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_crush::OsdId;

use super::map::Group;
use super::request::{Party, Place};
use super::{ClusterMap, Event, MAX_LINGERS, NOTIFY_GRACE, Objecter, RequestId, Token};
use crate::cluster::{NotifyReply, ObjectName, Operation, WatchEvent, WatchId, Watcher};
use crate::encoding::{DecodeError, Decoder};
use crate::errno::Errno;
use crate::message::osd::{NotifyKind, WatchNotify};
use crate::op::{ObjectOps, Reply, WatchStep};

/// Cookies of notifications have this bit, cookies of watches have not.
const NOTIFY_COOKIES: u64 = 1 << 63;
/// "Some watchers did not answer in time": the reply names them.
const SOME_MISSED: i32 = -Errno::ETIMEDOUT.0;

fn seconds(seconds: u32) -> Nanos {
    Nanos(u64::from(seconds) * 1_000_000_000)
}

#[derive(Debug)]
enum Purpose {
    Watch,
    Notify { payload: Bytes, timeout_s: u32, notify_id: Option<u64> },
}

/// A watch or a notification.
#[derive(Debug)]
pub(super) struct Linger {
    object: ObjectName,
    purpose: Purpose,
    token: Token,
    /// The caller knows that the watch stands.
    told: bool,
    /// The OSD knew the watch when it last answered.
    registered: bool,
    /// Counts renewals.
    renewal: u32,
    /// Where the object's group was when this was last registered.
    group: Option<Rc<Group>>,
    request: Option<RequestId>,
    ping: Option<RequestId>,
    next_ping: Nanos,
    pool_seen: bool,
    /// The time limit of requests ends the wait for a first answer then.
    limit: Option<Nanos>,
    /// When *complete* has to have come.
    complete_by: Option<Nanos>,
}

impl Linger {
    /// The client believes that the OSD knows the watch.
    #[cfg(test)]
    pub fn is_registered(&self) -> bool {
        self.registered
    }

    /// When the caller gets an error, if nothing happens.
    fn fails_at(&self) -> Option<Nanos> {
        [self.limit, self.complete_by].into_iter().flatten().min()
    }

    /// The OSD that knows it.
    pub fn osd(&self) -> Option<OsdId> {
        self.group.as_ref()?.interval.acting_primary
    }
}

/// Reads the answers of watchers: a list of (u64 client, u64 cookie, bytes with a 32-bit length),
/// and a list of (u64 client, u64 cookie) of those that did not answer.
///
/// # Errors
/// The bytes end before.
pub fn decode_notify_reply(payload: &Bytes) -> Result<NotifyReply, DecodeError> {
    fn watcher(from: &mut Decoder) -> Result<Watcher, DecodeError> {
        Ok(Watcher { client: from.u64("a watcher")?, cookie: from.u64("a watcher's cookie")? })
    }
    if payload.is_empty() {
        return Ok(NotifyReply::default());
    }
    let mut from = Decoder::new(payload.clone());
    let acknowledged = from.list(20, "answers of watchers", |from| {
        Ok((watcher(from)?, from.blob("the answer of a watcher")?))
    })?;
    Ok(NotifyReply { acknowledged, missed: from.list(16, "watchers without answer", watcher)? })
}

impl<M: ClusterMap> Objecter<M> {
    /// Watches an object. [`Event::Watching`] tells when the watch stands; then come its events.
    pub fn watch(&mut self, token: Token, watch: WatchId, object: ObjectName, now: Nanos) {
        let is_wrong = watch.0 & NOTIFY_COOKIES != 0 || self.lingers.contains_key(&watch.0);
        match self.refusal(is_wrong) {
            Some(errno) => self.events.push_back(Event::Watching(token, Err(errno))),
            None => self.linger(watch.0, token, object, Purpose::Watch, now),
        }
    }

    /// Notifies the watchers of an object. [`Event::Notified`] gives their answers.
    pub fn notify(
        &mut self,
        token: Token,
        object: ObjectName,
        payload: Bytes,
        timeout_ms: u32,
        now: Nanos,
    ) {
        if let Some(errno) = self.refusal(false) {
            self.events.push_back(Event::Notified(token, Err(errno)));
            return;
        }
        self.last_notify += 1;
        let cookie = NOTIFY_COOKIES | self.last_notify;
        let timeout_s = timeout_ms.div_ceil(1000).max(1);
        let purpose = Purpose::Notify { payload, timeout_s, notify_id: None };
        self.linger(cookie, token, object, purpose, now);
    }

    fn refusal(&self, is_wrong: bool) -> Option<Errno> {
        let is_full = self.lingers.len() >= MAX_LINGERS;
        (self.shut_out).or(is_wrong.then_some(Errno::EEXIST)).or(is_full.then_some(Errno::EBUSY))
    }

    fn linger(
        &mut self,
        cookie: u64,
        token: Token,
        object: ObjectName,
        purpose: Purpose,
        now: Nanos,
    ) {
        let answered_in = match &purpose {
            Purpose::Watch => Nanos(0),
            Purpose::Notify { timeout_s, .. } => seconds(*timeout_s),
        };
        let limit = self.options.timeout_ms.saturating_mul(1_000_000);
        let limit = (limit > 0).then(|| now.plus(Nanos(limit)).plus(answered_in));
        self.fail_lingers_at(limit);
        let linger = Linger {
            object,
            purpose,
            token,
            told: false,
            registered: false,
            renewal: 0,
            group: None,
            request: None,
            ping: None,
            next_ping: now,
            pool_seen: false,
            limit,
            complete_by: None,
        };
        self.lingers.insert(cookie, linger);
        self.register(cookie, now);
    }

    /// Ends a watch: no event follows. The answer comes as [`Event::Done`].
    pub fn unwatch(&mut self, token: Token, watch: WatchId, now: Nanos) {
        let Some(linger) = self.remove_linger(watch.0) else {
            self.events.push_back(Event::Done(token, Err(Errno::ENOTCONN)));
            return;
        };
        let mut ops = ObjectOps::new();
        ops.watch(watch.0, WatchStep::Unwatch, 0);
        self.submit(token, Operation::new(linger.object, ops), now);
    }

    /// Acknowledges a notification. The answer comes as [`Event::Done`].
    pub fn acknowledge(
        &mut self,
        token: Token,
        watch: WatchId,
        notify_id: u64,
        payload: &[u8],
        now: Nanos,
    ) {
        let Some(linger) = self.lingers.get(&watch.0) else {
            self.events.push_back(Event::Done(token, Err(Errno::ENOTCONN)));
            return;
        };
        let mut ops = ObjectOps::new();
        ops.notify_acknowledge(notify_id, watch.0, payload);
        let operation = Operation::new(linger.object.clone(), ops);
        self.submit(token, operation, now);
    }

    /// Sends the operation that makes the OSD know the watch or notification.
    fn register(&mut self, cookie: u64, now: Nanos) {
        self.silence(cookie);
        let timeout_s = self.options.watch_timeout_s;
        let Some(linger) = self.lingers.get_mut(&cookie) else { return };
        linger.complete_by = None;
        let renews = linger.registered;
        let mut ops = ObjectOps::new();
        match &mut linger.purpose {
            Purpose::Watch if renews => {
                linger.renewal += 1;
                ops.watch(cookie, WatchStep::Reconnect(linger.renewal), timeout_s);
            }
            Purpose::Watch => {
                ops.watch(cookie, WatchStep::Watch, timeout_s);
            }
            Purpose::Notify { payload, timeout_s, notify_id } => {
                *notify_id = None;
                ops.notify(cookie, *timeout_s, payload);
            }
        }
        let operation = Operation::new(linger.object.clone(), ops);
        let pool_seen = linger.pool_seen;
        let (key, id) = self.insert(Party::Register { cookie, renews }, operation, None, now);
        if let Some(linger) = self.lingers.get_mut(&cookie) {
            linger.request = Some(id);
        }
        if let Some(request) = self.requests.get_mut(key) {
            request.pool_seen = pool_seen;
        }
        self.launch(key, now);
        self.note_group(cookie, id);
    }

    /// Remembers where a linger is registered.
    fn note_group(&mut self, cookie: u64, id: RequestId) {
        let request = self.requests.find(id).and_then(|key| self.requests.get(key));
        let group = request.and_then(|r| Some(Rc::clone(&r.target.as_ref()?.group)));
        if let Some(linger) = self.lingers.get_mut(&cookie) {
            linger.pool_seen |= group.is_some();
            linger.group = group;
        }
    }

    /// Notes the groups of lingers whose first request has just found one.
    pub(super) fn note_groups(&mut self) {
        let homeless = self.lingers.iter().filter(|(_, linger)| linger.group.is_none());
        let homeless: Vec<(u64, RequestId)> =
            homeless.filter_map(|(&cookie, linger)| Some((cookie, linger.request?))).collect();
        homeless.into_iter().for_each(|(cookie, id)| self.note_group(cookie, id));
    }

    /// Gives up the requests of a linger.
    fn silence(&mut self, cookie: u64) {
        let Some(linger) = self.lingers.get_mut(&cookie) else { return };
        let requests = [linger.request.take(), linger.ping.take()];
        for id in requests.into_iter().flatten() {
            if let Some(key) = self.requests.find(id) {
                self.discard(key);
            }
        }
    }

    fn remove_linger(&mut self, cookie: u64) -> Option<Linger> {
        self.silence(cookie);
        let removed = self.lingers.remove(&cookie);
        if self.lingers.is_empty() {
            (self.next_ping, self.next_failure) = (None, None);
        }
        removed
    }

    /// Finds the lingers for which a new map begins a new interval. Their requests are given up.
    pub(super) fn changed_lingers(&mut self, skipped: bool, lost: &[OsdId]) -> Vec<u64> {
        let cookies: Vec<u64> = self.lingers.keys().copied().collect();
        let mut changed = Vec::new();
        for cookie in cookies {
            let Some(linger) = self.lingers.get(&cookie) else { continue };
            let is_homeless = linger.group.is_none();
            let pending = linger.request.is_some();
            // A first request that has no group yet is looked at like all requests.
            if is_homeless && pending {
                continue;
            }
            let group = self.group_of(&linger.object.clone());
            let Some(linger) = self.lingers.get_mut(&cookie) else { continue };
            let is_lost = linger.osd().is_some_and(|osd| lost.contains(&osd));
            let is_same = match (&linger.group, &group) {
                (Some(old), Some(new)) => old.pg == new.pg && old.interval == new.interval,
                _ => false,
            };
            if skipped || is_lost || !is_same {
                changed.push(cookie);
            } else {
                linger.group = group;
            }
        }
        changed.iter().for_each(|&cookie| self.silence(cookie));
        changed
    }

    /// Registers lingers again.
    pub(super) fn register_all(&mut self, cookies: &[u64], now: Nanos) {
        cookies.iter().for_each(|&cookie| self.register(cookie, now));
    }

    /// The group of a watched object by the newest map.
    fn group_of(&mut self, object: &ObjectName) -> Option<Rc<Group>> {
        let map = self.map.clone()?;
        let hash = map.hash(object)?;
        self.aim_at(&map, (object.pool, hash), true, false).ok().map(|target| target.group)
    }

    /// The session of an OSD is lost, and with it the watches that it knew.
    pub(super) fn renew_lingers_of(&mut self, osd: OsdId, now: Nanos) {
        let cookies: Vec<u64> = (self.lingers.iter())
            .filter(|(_, linger)| linger.osd() == Some(osd))
            .map(|(&cookie, _)| cookie)
            .collect();
        self.register_all(&cookies, now);
    }

    /// The answer to a request of a linger.
    pub(super) fn linger_answered(
        &mut self,
        party: Party,
        result: Result<Reply, Errno>,
        now: Nanos,
    ) {
        // An error of the way, not of the OSD: the pool is gone, so to begin afresh is no use.
        let is_final = result.is_err();
        let result = result.and_then(|reply| Errno::check(reply.result).map(|_| reply));
        match party {
            Party::Caller(_) | Party::Late => {}
            Party::Register { cookie, renews } => {
                self.registered(cookie, renews && !is_final, result, now);
            }
            Party::Ping { cookie, renewal } => {
                let Some(linger) = self.lingers.get_mut(&cookie) else { return };
                linger.ping = None;
                if let Err(errno) = result.map(drop)
                    && renewal == linger.renewal
                {
                    self.interrupted(cookie, errno, now);
                }
            }
        }
    }

    fn registered(&mut self, cookie: u64, renews: bool, result: Result<Reply, Errno>, now: Nanos) {
        let period = self.ping_period();
        let Some(linger) = self.lingers.get_mut(&cookie) else { return };
        linger.request = None;
        match (result, &mut linger.purpose) {
            (Ok(reply), Purpose::Notify { notify_id, timeout_s, .. }) => {
                let data = reply.ops.first().map(|op| op.data.clone()).unwrap_or_default();
                *notify_id = Decoder::new(data).u64("the number of a notification").ok();
                linger.complete_by = Some(now.plus(seconds(*timeout_s)).plus(NOTIFY_GRACE));
                let at = linger.fails_at();
                self.fail_lingers_at(at);
            }
            (Ok(_), Purpose::Watch) => {
                linger.registered = true;
                linger.limit = None;
                linger.next_ping = now.plus(period);
                let (at, token) = (linger.next_ping, linger.token);
                let was_told = std::mem::replace(&mut linger.told, true);
                self.next_ping = Some(self.next_ping.map_or(at, |next| next.min(at)));
                if !was_told {
                    self.events.push_back(Event::Watching(token, Ok(())));
                }
            }
            (Err(errno), Purpose::Watch) if renews => self.interrupted(cookie, errno, now),
            (Err(errno), _) => self.failed(cookie, errno),
        }
    }

    /// The OSD forgot the watch: it begins afresh.
    fn interrupted(&mut self, cookie: u64, errno: Errno, now: Nanos) {
        let Some(linger) = self.lingers.get_mut(&cookie) else { return };
        // The object may be gone, or a renewal raced with its deletion: the next step tells.
        let is_gone = matches!(errno, Errno::ENOENT | Errno::ENXIO);
        let errno = if is_gone { Errno::ENOTCONN } else { errno };
        linger.registered = false;
        self.events.push_back(Event::Watch(WatchId(cookie), WatchEvent::Interrupted(errno)));
        self.register(cookie, now);
    }

    fn failed(&mut self, cookie: u64, errno: Errno) {
        let Some(linger) = self.remove_linger(cookie) else { return };
        self.events.push_back(match linger.purpose {
            Purpose::Notify { .. } => Event::Notified(linger.token, Err(errno)),
            Purpose::Watch if linger.told => Event::Watch(WatchId(cookie), WatchEvent::Lost(errno)),
            Purpose::Watch => Event::Watching(linger.token, Err(errno)),
        });
    }

    /// Notes when the next linger may fail for want of an answer.
    fn fail_lingers_at(&mut self, at: Option<Nanos>) {
        self.next_failure = [self.next_failure, at].into_iter().flatten().min();
    }

    /// Fails lingers whose answers have not come in time.
    pub(super) fn fail_late_lingers(&mut self, now: Nanos) {
        if self.next_failure.is_none_or(|at| at > now) {
            return;
        }
        let is_late = |linger: &Linger| linger.fails_at().is_some_and(|at| at <= now);
        let late = self.lingers.iter().filter(|(_, linger)| is_late(linger));
        let late: Vec<u64> = late.map(|(&cookie, _)| cookie).collect();
        late.into_iter().for_each(|cookie| self.failed(cookie, Errno::ETIMEDOUT));
        self.next_failure = self.lingers.values().filter_map(Linger::fails_at).min();
    }

    /// Ends all watches and notifications.
    pub(super) fn end_lingers(&mut self, errno: Errno) {
        let cookies: Vec<u64> = self.lingers.keys().copied().collect();
        cookies.into_iter().for_each(|cookie| self.failed(cookie, errno));
        (self.next_ping, self.next_failure) = (None, None);
    }

    /// A message about a watch or a notification.
    pub fn notified(&mut self, osd: OsdId, message: WatchNotify, now: Nanos) {
        let Some(session) = self.sessions.get_mut(&osd).filter(|session| session.is_ready()) else {
            return;
        };
        session.last_used = now;
        let cookie = message.cookie;
        let Some(linger) = self.lingers.get(&cookie) else { return };
        match (message.kind, &linger.purpose) {
            (NotifyKind::Notify, Purpose::Watch) => {
                let (notify_id, from) = (message.notify_id, message.from);
                let event = WatchEvent::Notified { notify_id, from, payload: message.payload };
                self.events.push_back(Event::Watch(WatchId(cookie), event));
            }
            // A linger that is being renewed hears of it from the renewal.
            (NotifyKind::Disconnect, Purpose::Watch) if linger.registered => {
                self.interrupted(cookie, Errno::ENOTCONN, now);
            }
            (NotifyKind::Complete, Purpose::Notify { notify_id, .. })
                if notify_id.is_none_or(|id| id == message.notify_id) =>
            {
                let result = match message.result {
                    0 | SOME_MISSED => {
                        decode_notify_reply(&message.payload).map_err(|_| Errno::EIO)
                    }
                    error => Errno::check(error).map(|_| NotifyReply::default()),
                };
                let token = linger.token;
                self.remove_linger(cookie);
                self.events.push_back(Event::Notified(token, result));
            }
            _ => {}
        }
    }

    fn ping_period(&self) -> Nanos {
        Nanos(seconds(self.options.watch_timeout_s.max(3)).0 / 3)
    }

    /// Sends the pings that are due.
    pub(super) fn ping_due(&mut self, now: Nanos) {
        if self.next_ping.is_none_or(|at| at > now) {
            return;
        }
        let period = self.ping_period();
        let pauses = self.map.as_ref().is_some_and(|map| map.pauses_reads());
        let mut due = Vec::new();
        for (&cookie, linger) in &mut self.lingers {
            if linger.registered && linger.next_ping <= now {
                linger.next_ping = now.plus(period);
                if linger.request.is_none() && !pauses {
                    due.push((cookie, linger.ping.and_then(|id| self.requests.find(id))));
                }
            }
        }
        for (cookie, unanswered) in due {
            match unanswered.map(|key| (key, self.requests.get(key).map(|r| r.place))) {
                // The OSD may have thrown the last one away, for instance while it was full.
                Some((key, Some(Place::Session(osd)))) => self.send(key, osd, now),
                _ => self.ping(cookie, now),
            }
        }
        let pings = self.lingers.values().filter(|linger| linger.registered);
        self.next_ping = pings.map(|linger| linger.next_ping).min();
    }

    fn ping(&mut self, cookie: u64, now: Nanos) {
        let Some(linger) = self.lingers.get(&cookie) else { return };
        let renewal = linger.renewal;
        let mut ops = ObjectOps::new();
        ops.watch(cookie, WatchStep::Ping(renewal), 0);
        let operation = Operation::new(linger.object.clone(), ops);
        let (key, id) = self.insert(Party::Ping { cookie, renewal }, operation, None, now);
        self.launch(key, now);
        let is_placed =
            self.requests.get(key).is_some_and(|r| matches!(r.place, Place::Session(_)));
        if is_placed && let Some(linger) = self.lingers.get_mut(&cookie) {
            linger.ping = Some(id);
        } else if let Some(key) = self.requests.find(id) {
            self.discard(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::Encoder;

    #[test]
    fn answers_of_watchers_are_read() {
        let mut bytes = Encoder::with_capacity(64);
        bytes.u32(1).u64(4100).u64(7).blob(b"yes");
        bytes.u32(2).u64(4101).u64(8).u64(4102).u64(9);
        let bytes = bytes.finish();
        let reply = decode_notify_reply(&bytes).unwrap();
        let watcher = |client, cookie| Watcher { client, cookie };
        assert_eq!(reply.acknowledged, [(watcher(4100, 7), Bytes::from_static(b"yes"))]);
        assert_eq!(reply.missed, [watcher(4101, 8), watcher(4102, 9)]);
        for len in 1..bytes.len() {
            assert!(decode_notify_reply(&bytes.slice(..len)).is_err(), "{len}");
        }
        assert_eq!(decode_notify_reply(&Bytes::new()), Ok(NotifyReply::default()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x80;
            let _ = decode_notify_reply(&damaged.into());
        }
    }
}
