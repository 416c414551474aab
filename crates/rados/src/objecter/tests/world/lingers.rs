//! Watches and notifications in the world with faults.
//!
//! The OSDs of the model know watchers as real ones do: a watcher stays with its object when the
//! group moves, but has to connect again; one of which nothing is heard for 30 s is forgotten, and
//! so is one that the world picks. Notifications that are under way end with each new interval.
//!
//! Checked: no watch is lost; each one that the OSD forgot while the client relied on it is
//! reported as interrupted, and none without a sign of the OSD; at the end each watch is connected
//! where its object is; each notification and each other call is answered exactly once.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fieldstone_crush::OsdId;

use super::super::super::{Event, Token};
use super::super::{ClusterMap, TestMap, coded, object};
use super::{Happening, World};
use crate::cluster::{ObjectName, WatchEvent, WatchId};
use crate::encoding::Encoder;
use crate::errno::Errno;
use crate::message::osd::{NotifyKind, OsdOp, WatchNotify};
use crate::op::View;
use crate::op::{OpResult, Reply, WatchStep};

/// Calls that begin watches and notifications, or end them.
pub(super) const CALLS: u64 = 14;
/// Tokens of calls about watches and notifications begin here.
pub(super) const TOKENS: u64 = 1 << 32;
const TIMEOUT_MS: u64 = 30_000;

/// What an OSD knows of a watcher.
#[derive(Default)]
struct Watcher {
    connection: Option<(OsdId, u64)>,
    heard: u64,
}

struct Notify {
    object: ObjectName,
    notifier: (OsdId, u64),
    cookie: u64,
    waits: BTreeSet<u64>,
    acknowledged: Vec<u64>,
}

#[derive(Default)]
pub(super) struct Lingers {
    tokens: u64,
    answered: BTreeSet<u64>,
    /// The client's watches, by cookie: object and token.
    watches: BTreeMap<u64, (ObjectName, u64)>,
    watchers: BTreeMap<(ObjectName, u64), Watcher>,
    /// Forgotten while the client relied on them, and not reported yet.
    forgotten: BTreeSet<u64>,
    /// Signs of the OSDs that a watch does not stand, and reports of the client.
    signs: BTreeMap<u64, (u64, u64)>,
    notifies: BTreeMap<u64, Notify>,
    /// The numbers of notifications, by number and attempt of the request.
    numbers: BTreeMap<(u64, i32), u64>,
}

fn view(op: &OsdOp) -> View<'_> {
    op.ops.ops()[0].view().expect("requests are sound")
}

pub(super) fn is_ping(op: &OsdOp) -> bool {
    matches!(view(op), View::Watch { step: WatchStep::Ping(_), .. })
}

pub(super) fn is_linger(op: &OsdOp) -> bool {
    matches!(view(op), View::Watch { .. } | View::Notify { .. } | View::NotifyAcknowledge { .. })
}

impl World {
    fn token(&mut self) -> u64 {
        self.lingers.tokens += 1;
        TOKENS + self.lingers.tokens
    }

    /// The client begins or ends something.
    pub(super) fn call_linger(&mut self) {
        let (now, token) = (self.time(), self.token());
        let number = self.below(3);
        let name = format!("o{number}");
        let name = if self.below(4) == 0 { coded(&name) } else { object(&name) };
        match self.below(5) {
            0 | 1 => {
                self.lingers.watches.insert(token, (name.clone(), token));
                self.objecter.watch(Token(token), WatchId(token), name, now);
            }
            2 if !self.lingers.watches.is_empty() => {
                let at = self.below(self.lingers.watches.len() as u64) as usize;
                let cookie = *self.lingers.watches.keys().nth(at).expect("bounded");
                // A watch may end before it stands: then that is not answered.
                let (_, begun) = self.lingers.watches.remove(&cookie).expect("it is there");
                self.lingers.answered.insert(begun);
                self.lingers.forgotten.remove(&cookie);
                self.objecter.unwatch(Token(token), WatchId(cookie), now);
            }
            _ => {
                let timeout_ms = 1_000 * (1 + self.below(5)) as u32;
                self.objecter.notify(Token(token), name, Bytes::new(), timeout_ms, now);
            }
        }
    }

    fn answered(&mut self, token: Token) {
        assert!(self.lingers.answered.insert(token.0), "call {token:?} is answered twice");
    }

    /// An event that is not the answer to a request on an object.
    pub(super) fn hear_linger(&mut self, event: Event) {
        match event {
            Event::Done(token, _) => self.answered(token),
            Event::Watching(token, result) => {
                assert_eq!(result, Ok(()));
                self.answered(token);
            }
            Event::Notified(token, result) => {
                result.expect("all notifications succeed");
                self.answered(token);
            }
            Event::Watch(watch, WatchEvent::Notified { notify_id, .. }) => {
                assert!(self.lingers.watches.contains_key(&watch.0), "{watch:?} has ended");
                if self.below(4) != 0 {
                    let (token, now) = (Token(self.token()), self.time());
                    self.objecter.acknowledge(token, watch, notify_id, b"yes", now);
                }
            }
            Event::Watch(watch, WatchEvent::Interrupted(errno)) => {
                assert!([Errno::ENOTCONN, Errno::ETIMEDOUT].contains(&errno), "{errno}");
                assert!(self.lingers.watches.contains_key(&watch.0), "{watch:?} has ended");
                self.lingers.forgotten.remove(&watch.0);
                let (signs, reports) = self.lingers.signs.entry(watch.0).or_default();
                *reports += 1;
                assert!(reports <= signs, "{watch:?} is interrupted without a sign");
            }
            Event::Watch(watch, event) => panic!("{watch:?}: {event:?}"),
        }
    }

    /// An OSD executes a request about a watch or a notification.
    pub(super) fn execute_linger(&mut self, osd: OsdId, connection: u64, op: &OsdOp) {
        let result = match view(op) {
            View::Watch { cookie, step, .. } => {
                self.execute_watch((osd, connection), op, cookie, step)
            }
            View::Notify { cookie, timeout_s, .. } => {
                return self.execute_notify((osd, connection), op, cookie, timeout_s);
            }
            View::NotifyAcknowledge { notify_id, cookie, .. } => {
                if let Some(notify) = self.lingers.notifies.get_mut(&notify_id)
                    && notify.waits.remove(&cookie)
                {
                    notify.acknowledged.push(cookie);
                    self.complete_if_over(notify_id);
                }
                0
            }
            other => panic!("{other:?}"),
        };
        self.answer(osd, connection, op, result);
    }

    fn execute_watch(
        &mut self,
        place: (OsdId, u64),
        op: &OsdOp,
        cookie: u64,
        step: WatchStep,
    ) -> i32 {
        let is_ping = matches!(step, WatchStep::Ping(_));
        if !is_ping && !self.executed.insert(op.tid) {
            // A repeated write has no second effect, not even on the connection.
            return 0;
        }
        let key = (op.object.clone(), cookie);
        let watchers = &mut self.lingers.watchers;
        let connection = watchers.get(&key).map(|watcher| watcher.connection);
        let result = match step {
            WatchStep::Unwatch => {
                watchers.remove(&key);
                self.watcher_is_gone(cookie);
                return 0;
            }
            WatchStep::Watch => 0,
            _ if connection.is_none() => -Errno::ENOTCONN.0,
            WatchStep::Ping(_) if connection != Some(Some(place)) => -Errno::ETIMEDOUT.0,
            WatchStep::Reconnect(_) | WatchStep::Ping(_) => 0,
        };
        if result != 0 {
            self.lingers.signs.entry(cookie).or_default().0 += 1;
            return result;
        }
        watchers.insert(key, Watcher { connection: Some(place), heard: self.now });
        if !is_ping {
            // Notifications that are under way reach it too.
            let waits = self.lingers.notifies.iter();
            let waits = waits.filter(|(_, n)| n.object == op.object && n.waits.contains(&cookie));
            let ids: Vec<u64> = waits.map(|(&id, _)| id).collect();
            ids.into_iter().for_each(|id| self.tell(place, NotifyKind::Notify, cookie, id));
        }
        0
    }

    fn execute_notify(&mut self, place: (OsdId, u64), op: &OsdOp, cookie: u64, timeout_s: u32) {
        self.serial += 1;
        let id = self.serial;
        self.lingers.numbers.insert((op.tid, op.attempt), id);
        let of_object = self.lingers.watchers.iter().filter(|((name, _), _)| *name == op.object);
        let waits: Vec<(u64, Option<(OsdId, u64)>)> =
            of_object.map(|((_, cookie), watcher)| (*cookie, watcher.connection)).collect();
        let notify = Notify {
            object: op.object.clone(),
            notifier: place,
            cookie,
            waits: waits.iter().map(|(cookie, _)| *cookie).collect(),
            acknowledged: Vec::new(),
        };
        self.lingers.notifies.insert(id, notify);
        for (cookie, connection) in waits {
            if let Some(place) = connection {
                self.tell(place, NotifyKind::Notify, cookie, id);
            }
        }
        let at = self.now + 1_000 * u64::from(timeout_s);
        self.at(at, Happening::NotifyTimeout(id));
        // Without watchers, the end may come before the answer.
        let is_early = self.below(2) == 0;
        if is_early {
            self.complete_if_over(id);
        }
        self.answer(place.0, place.1, op, 0);
        self.complete_if_over(id);
    }

    /// The answer to a request as it reaches the client: a notification's has its number.
    pub(super) fn linger_reply(&self, op: &OsdOp, result: i32) -> Reply {
        let number = self.lingers.numbers.get(&(op.tid, op.attempt)).filter(|_| result == 0);
        let data = number.map_or_else(Bytes::new, |id| Bytes::copy_from_slice(&id.to_le_bytes()));
        Reply { result, user_version: 0, ops: [OpResult { result: 0, data }].into_iter().collect() }
    }

    fn complete_if_over(&mut self, id: u64) {
        if self.lingers.notifies.get(&id).is_some_and(|notify| notify.waits.is_empty()) {
            self.complete(id);
        }
    }

    /// A notification is over: the notifier hears the answers.
    pub(super) fn complete(&mut self, id: u64) {
        let Some(notify) = self.lingers.notifies.remove(&id) else { return };
        let mut payload = Encoder::with_capacity(64);
        payload.list(notify.acknowledged.iter(), |into, cookie| {
            into.u64(0).u64(*cookie).blob(b"yes");
        });
        payload.list(notify.waits.iter(), |into, cookie| {
            into.u64(0).u64(*cookie);
        });
        let result = if notify.waits.is_empty() { 0 } else { -Errno::ETIMEDOUT.0 };
        let kind = NotifyKind::Complete;
        let (cookie, payload) = (notify.cookie, payload.finish());
        let message =
            WatchNotify { kind, cookie, version: 0, notify_id: id, payload, result, from: 0 };
        self.send_notify(notify.notifier, message);
    }

    fn tell(&mut self, place: (OsdId, u64), kind: NotifyKind, cookie: u64, notify_id: u64) {
        let payload = Bytes::new();
        let message =
            WatchNotify { kind, cookie, version: 0, notify_id, payload, result: 0, from: 0 };
        self.send_notify(place, message);
    }

    fn send_notify(&mut self, (osd, connection): (OsdId, u64), message: WatchNotify) {
        if self.is_current(osd, connection) {
            let at = self.transit(osd, false);
            let message = Box::new(message);
            self.at(at, Happening::NotifyAtClient { osd, connection, message });
        }
    }

    fn watcher_is_gone(&mut self, cookie: u64) {
        let with_it = self.lingers.notifies.iter_mut();
        let ids: Vec<u64> = with_it
            .filter_map(|(&id, notify)| notify.waits.remove(&cookie).then_some(id))
            .collect();
        ids.into_iter().for_each(|id| self.complete_if_over(id));
    }

    /// OSDs forget the watchers of which they hear nothing.
    pub(super) fn expire_watchers(&mut self) {
        let now = self.now;
        let late = |watcher: &Watcher| watcher.heard + TIMEOUT_MS <= now;
        let late = self.lingers.watchers.iter().filter(|(_, watcher)| late(watcher));
        let late: Vec<(ObjectName, u64)> = late.map(|(key, _)| key.clone()).collect();
        late.into_iter().for_each(|key| self.forget(&key, true));
    }

    /// An OSD forgets any watcher, with or without a word.
    pub(super) fn forget_one(&mut self, pick: u64) {
        let count = self.lingers.watchers.len().max(1);
        let key = self.lingers.watchers.keys().nth(pick as usize % count).cloned();
        if let Some(key) = key {
            self.forget(&key, pick & 0x1_0000 == 0);
        }
    }

    fn forget(&mut self, key: &(ObjectName, u64), tells: bool) {
        let Some(watcher) = self.lingers.watchers.remove(key) else { return };
        let cookie = key.1;
        if self.objecter.lingers.get(&cookie).is_some_and(|linger| linger.is_registered()) {
            self.lingers.forgotten.insert(cookie);
        }
        if let Some(place) = watcher.connection.filter(|_| tells) {
            self.lingers.signs.entry(cookie).or_default().0 += 1;
            self.tell(place, NotifyKind::Disconnect, cookie, 0);
        }
        self.watcher_is_gone(cookie);
    }

    /// A new interval: watchers have to connect again, and notifications are over.
    pub(super) fn change_intervals(&mut self, old: &TestMap, new: &TestMap) {
        let changed = |name: &ObjectName| {
            let (before, after) = (old.pg(name), new.pg(name));
            before != after || old.place(before) != new.place(after)
        };
        for ((name, _), watcher) in &mut self.lingers.watchers {
            if changed(name) {
                *watcher = Watcher { connection: None, heard: self.now };
            }
        }
        self.lingers.notifies.retain(|_, notify| !changed(&notify.object));
    }

    /// At the end, all stands.
    pub(super) fn check_lingers(&self) {
        let lingers = &self.lingers;
        let truth = self.truth();
        for token in TOKENS + 1..=TOKENS + lingers.tokens {
            assert!(lingers.answered.contains(&token), "call {token:#x} is not answered");
        }
        assert_eq!(lingers.forgotten, BTreeSet::new(), "interruptions that are not reported");
        for (&cookie, (name, _)) in &lingers.watches {
            assert!(self.objecter.lingers[&cookie].is_registered());
            let watcher = lingers.watchers.get(&(name.clone(), cookie));
            let primary = truth.primary(name);
            let place = (primary, self.connections[&primary].number);
            let connection = watcher.and_then(|watcher| watcher.connection);
            assert_eq!(connection, Some(place), "the watch {cookie:#x} of {name:?}");
        }
        assert_eq!(self.objecter.lingers.len(), lingers.watches.len());
    }
}
