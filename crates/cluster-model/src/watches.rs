//! Watches of objects, and notifications of their watchers.
//!
//! A watch belongs to a client and a cookie. It ends when the client ends it, when the object is
//! deleted, when the client is shut out, or when the client has been gone for the watch's timeout.
//! A notification goes to all watchers of the object, the notifier's own included. It is complete
//! when all of them have answered, or at its deadline; then the notifier gets the answers, and the
//! watchers that missed it. A watch that ends is waited for no more.
//!
//! Signals are collected; the carrier of messages takes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::{NotifyReply, Watcher};
use fieldstone_rados::encoding::EntityAddress;
use fieldstone_rados::errno::Errno;

use crate::objects::{Caller, ObjectKey};

/// An object of a pool.
pub type Place = (PoolId, ObjectKey);

/// How long a watch lasts without its client, if the client says nothing, in seconds (Ceph:
/// `osd_client_watch_timeout`).
pub const WATCH_TIMEOUT_S: u32 = 30;
/// How long a notification waits, if the notifier says nothing, in seconds (Ceph:
/// `osd_default_notify_timeout`).
pub const NOTIFY_TIMEOUT_S: u32 = 30;

const SECOND: u64 = 1_000_000_000;

/// What a client has to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A notification for a watcher.
    Notify {
        /// The watcher.
        to: Watcher,
        /// Names the notification.
        notify_id: u64,
        /// The client that notifies.
        from: u64,
        /// Its bytes.
        payload: Bytes,
    },
    /// The answers, for the notifier.
    Complete {
        /// The notifier, with the cookie that it gave.
        to: Watcher,
        /// Names the notification.
        notify_id: u64,
        /// The answers.
        reply: NotifyReply,
    },
    /// A watch is over.
    Lost {
        /// The watcher.
        to: Watcher,
        /// Why.
        error: Errno,
    },
}

#[derive(Clone, Debug)]
struct Watched {
    timeout_s: u32,
    address: EntityAddress,
    /// The watch ends then, unless the client comes back.
    ends: Option<Nanos>,
}

struct Notification {
    place: Place,
    to: Watcher,
    payload: Bytes,
    deadline: Nanos,
    waiting: BTreeSet<Watcher>,
    answers: Vec<(Watcher, Bytes)>,
}

/// All watches and notifications.
#[derive(Default)]
pub struct Watches {
    objects: BTreeMap<Place, BTreeMap<Watcher, Watched>>,
    notifications: BTreeMap<u64, Notification>,
    newest_id: u64,
    signals: VecDeque<Signal>,
}

impl Watches {
    /// The watchers of an object, each with its timeout in seconds and its address.
    #[must_use]
    pub fn of(&self, place: &Place) -> Vec<(Watcher, u32, EntityAddress)> {
        let watchers = self.objects.get(place).into_iter().flatten();
        watchers.map(|(&watcher, watch)| (watcher, watch.timeout_s, watch.address)).collect()
    }

    /// The next signal.
    pub fn take_signal(&mut self) -> Option<Signal> {
        self.signals.pop_front()
    }

    /// Begins a watch, or finds its client back: then it hears again what it has not answered.
    pub fn watch(&mut self, place: Place, caller: &Caller, cookie: u64, timeout_s: u32) {
        let timeout_s = if timeout_s == 0 { WATCH_TIMEOUT_S } else { timeout_s };
        let watch = Watched { timeout_s, address: caller.address, ends: None };
        let watcher = Watcher { client: caller.client, cookie };
        for (&notify_id, one) in &self.notifications {
            if one.place == place && one.waiting.contains(&watcher) {
                let (from, payload) = (one.to.client, one.payload.clone());
                self.signals.push_back(Signal::Notify { to: watcher, notify_id, from, payload });
            }
        }
        self.objects.entry(place).or_default().insert(watcher, watch);
    }

    /// Ends a watch, by the wish of its client.
    pub fn unwatch(&mut self, place: &Place, watcher: Watcher) {
        if let Some(watchers) = self.objects.get_mut(place) {
            watchers.remove(&watcher);
            if watchers.is_empty() {
                self.objects.remove(place);
            }
        }
        self.wait_no_more(place, watcher);
    }

    fn wait_no_more(&mut self, place: &Place, watcher: Watcher) {
        let mut complete = Vec::new();
        for (&id, notification) in &mut self.notifications {
            if notification.place == *place
                && notification.waiting.remove(&watcher)
                && notification.waiting.is_empty()
            {
                complete.push(id);
            }
        }
        complete.into_iter().for_each(|id| self.complete(id));
    }

    /// Ends all watches of an object that is gone.
    pub fn deleted(&mut self, place: &Place) {
        for watcher in self.objects.remove(place).unwrap_or_default().into_keys() {
            self.signals.push_back(Signal::Lost { to: watcher, error: Errno::ENOENT });
            self.wait_no_more(place, watcher);
        }
    }

    /// Ends the watches of an address that is shut out.
    pub fn shut_out(&mut self, is_shut_out: impl Fn(&EntityAddress) -> bool) {
        self.end_where(Errno::ESHUTDOWN, |_, watch| is_shut_out(&watch.address));
    }

    fn end_where(&mut self, error: Errno, ends: impl Fn(&Watcher, &Watched) -> bool) {
        let mut ended = Vec::new();
        for (place, watchers) in &self.objects {
            let over = watchers.iter().filter(|(watcher, watch)| ends(watcher, watch));
            ended.extend(over.map(|(&watcher, _)| (place.clone(), watcher)));
        }
        for (place, watcher) in ended {
            self.signals.push_back(Signal::Lost { to: watcher, error });
            self.unwatch(&place, watcher);
        }
    }

    /// A client is gone: its watches end after their timeouts.
    pub fn client_gone(&mut self, client: u64, now: Nanos) {
        self.watchers_gone(|watcher| watcher.client == client, now);
    }

    /// Some watchers are gone: their watches end after their timeouts.
    pub fn watchers_gone(&mut self, is_gone: impl Fn(&Watcher) -> bool, now: Nanos) {
        let watches = self.objects.values_mut().flatten();
        for (_, watch) in watches.filter(|(watcher, _)| is_gone(watcher)) {
            let timeout = Nanos(u64::from(watch.timeout_s) * SECOND);
            watch.ends.get_or_insert(now.plus(timeout));
        }
    }

    /// A client is back: its watches go on.
    pub fn client_back(&mut self, client: u64) {
        let watches = self.objects.values_mut().flatten();
        for (_, watch) in watches.filter(|(watcher, _)| watcher.client == client) {
            watch.ends = None;
        }
    }

    /// Notifies the watchers of an object. Returns the number of the notification.
    pub fn notify(&mut self, place: &Place, to: Watcher, payload: &Bytes, deadline: Nanos) -> u64 {
        self.newest_id += 1;
        let notify_id = self.newest_id;
        let waiting: BTreeSet<Watcher> =
            self.objects.get(place).into_iter().flatten().map(|(&watcher, _)| watcher).collect();
        for &watcher in &waiting {
            let (from, payload) = (to.client, payload.clone());
            self.signals.push_back(Signal::Notify { to: watcher, notify_id, from, payload });
        }
        let is_complete = waiting.is_empty();
        let (place, payload, answers) = (place.clone(), payload.clone(), Vec::new());
        let notification = Notification { place, to, payload, deadline, waiting, answers };
        self.notifications.insert(notify_id, notification);
        if is_complete {
            self.complete(notify_id);
        }
        notify_id
    }

    /// A watcher answers a notification. An answer that comes too late is dropped.
    pub fn acknowledge(&mut self, notify_id: u64, watcher: Watcher, payload: Bytes) {
        let Some(notification) = self.notifications.get_mut(&notify_id) else { return };
        if notification.waiting.remove(&watcher) {
            notification.answers.push((watcher, payload));
            if notification.waiting.is_empty() {
                self.complete(notify_id);
            }
        }
    }

    fn complete(&mut self, notify_id: u64) {
        let Some(done) = self.notifications.remove(&notify_id) else { return };
        let mut acknowledged = done.answers;
        acknowledged.sort_by_key(|&(watcher, _)| watcher);
        let reply = NotifyReply { acknowledged, missed: done.waiting.into_iter().collect() };
        self.signals.push_back(Signal::Complete { to: done.to, notify_id, reply });
    }

    /// Ends what has reached its time.
    pub fn expire(&mut self, now: Nanos) {
        if self.next_time().is_none_or(|next| next > now) {
            return;
        }
        self.end_where(Errno::ETIMEDOUT, |_, watch| watch.ends.is_some_and(|ends| ends <= now));
        let over: Vec<u64> = self
            .notifications
            .iter()
            .filter(|(_, notification)| notification.deadline <= now)
            .map(|(&id, _)| id)
            .collect();
        over.into_iter().for_each(|id| self.complete(id));
    }

    /// When [`Watches::expire`] has something to do next.
    #[must_use]
    pub fn next_time(&self) -> Option<Nanos> {
        let watches = self.objects.values().flatten().filter_map(|(_, watch)| watch.ends);
        watches.chain(self.notifications.values().map(|notification| notification.deadline)).min()
    }
}
