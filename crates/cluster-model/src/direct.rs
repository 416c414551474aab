//! A carrier of clusters' calls, without messages.
//!
//! [`ModelCluster::client`] gives a [`Cluster`] for the code under test. Its calls wait until
//! [`ModelCluster::step`]. Each call is carried out after a delay, and answered after another, both
//! drawn from the seed. So calls of several clients interleave, and answers do not come in the
//! order of the calls. As in a real cluster, requests of one client on one object stay in order,
//! and so do the events of a client's watches. With [`Delays::NONE`] every call is carried out and
//! answered in the next step: a cluster that costs nothing, for measurements.
//!
//! **What cannot happen here**: an answer that is lost, a request that is executed twice, an OSD
//! that does not know the newest map. Below this level the client resends, and OSDs recognise a
//! repeated request.
//!
//! **A time limit** ([`ModelCluster::set_time_limit`]) is that of the clients
//! (`rados_osd_op_timeout`): a request on an object that is not answered in time gets `ETIMEDOUT`.
//! A write is *late* from then on: it is executed all the same. [`ClientHandle::hold`] lets a
//! client's requests on an object wait, as behind a slow OSD or in a broken network. With
//! [`ClientHandle::cut_off`] they wait in the client, as while no connection stands: a write whose
//! time is over is gone then, and not late.
//!
//! **A client that dies** ([`ClientHandle::kill`]) gets no answers any more. Of its requests in
//! flight, some are still executed, for each object those that came first. Its watches end 30
//! seconds later.

use std::cell::RefCell;
use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::{
    Answer, Call, CallId, Calls, Cluster, CommandReply, ListCursor, Listing, ObjectName, PoolInfo,
    WatchEvent, WatchId, Watcher,
};
use fieldstone_rados::encoding::{AddressKind, EntityAddress};
use fieldstone_rados::errno::Errno;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::commands;
use crate::objects::{Caller, ObjectKey, Pool, key_of};
use crate::store::{Fault, Store};
use crate::watches::{Place, Signal, WATCH_TIMEOUT_S};
use limit::Limits;

/// The global id of the first client.
const FIRST_CLIENT: u64 = 4100;
/// Objects in one part of a list.
const LIST_PART: usize = 100;
/// Above this number of objects, orders that no longer matter are forgotten.
const MAX_ORDERS: usize = 1024;

/// Bounds of the delays between a call, its execution, and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// The shortest.
    pub min: Nanos,
    /// The longest.
    pub max: Nanos,
}

impl Delays {
    /// Calls are carried out and answered in the next step.
    pub const NONE: Delays = Delays { min: Nanos(0), max: Nanos(0) };
    /// Delays of a small cluster: 50 µs to 2 ms.
    pub const USUAL: Delays = Delays { min: Nanos(50_000), max: Nanos(2_000_000) };
}

/// What keeps calls in order: requests on one object, or watch events.
type OrderKey = Option<Place>;

struct Client {
    calls: Calls,
    caller: Caller,
    is_alive: bool,
    watches: BTreeMap<WatchId, ObjectName>,
    /// Since when the next call on an object may be carried out, and answered.
    orders: BTreeMap<OrderKey, (Nanos, Nanos)>,
}

/// When a call is due, and a number that makes the times of calls differ.
type Due = (Nanos, u64);

struct Queued {
    client: u64,
    id: CallId,
    call: Call,
}

enum Delivery {
    Answer(CallId, Result<Answer, Errno>),
    Event(WatchId, WatchEvent),
}

struct Inner {
    store: Store,
    clients: BTreeMap<u64, Client>,
    random: ChaCha8Rng,
    delays: Delays,
    /// Makes the times of calls and deliveries different.
    sequence: u64,
    queued: BTreeMap<Due, Queued>,
    deliveries: BTreeMap<(Nanos, u64), (u64, Delivery)>,
    /// Writes to full pools, and requests on objects of [`ClientHandle::hold`] and
    /// [`ClientHandle::cut_off`].
    held: Vec<(Due, Queued)>,
    /// Objects whose requests of a client wait.
    holds: BTreeSet<(u64, PoolId, String)>,
    /// Objects that a client cannot send requests to.
    cuts: BTreeSet<(u64, PoolId, String)>,
    limits: Limits,
    notifying: BTreeMap<(u64, u64), CallId>,
    now: Nanos,
}

/// A cluster. Copies are the same cluster.
#[derive(Clone)]
pub struct ModelCluster(Rc<RefCell<Inner>>);

/// A client, as the cluster and a test see it.
#[derive(Clone)]
pub struct ClientHandle {
    cluster: ModelCluster,
    client: u64,
}

impl ModelCluster {
    /// A cluster without pools and clients.
    #[must_use]
    pub fn new(seed: u64, delays: Delays) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            store: Store::default(),
            clients: BTreeMap::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            delays,
            sequence: 0,
            queued: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            held: Vec::new(),
            holds: BTreeSet::new(),
            cuts: BTreeSet::new(),
            limits: Limits::default(),
            notifying: BTreeMap::new(),
            now: Nanos(0),
        })))
    }

    /// Adds a replicated pool, with the application `rbd`. Pools get the numbers 1, 2, …
    pub fn add_pool(&self, name: &str) -> PoolId {
        self.add_pool_with(name, |_| {})
    }

    /// Adds an erasure-coded pool that takes overwrites, for data of images.
    pub fn add_erasure_coded_pool(&self, name: &str) -> PoolId {
        self.add_pool_with(name, |info| {
            info.is_erasure_coded = true;
            info.takes_overwrites = true;
        })
    }

    /// Adds a pool whose description `change` completes.
    pub fn add_pool_with(&self, name: &str, change: impl FnOnce(&mut PoolInfo)) -> PoolId {
        let mut inner = self.0.borrow_mut();
        let id = PoolId(inner.store.pools().count() as i64 + 1);
        let mut info = PoolInfo {
            id,
            name: name.to_owned(),
            is_erasure_coded: false,
            takes_overwrites: false,
            alignment_bytes: 1,
            is_full: false,
            pg_num: 32,
            applications: vec!["rbd".to_owned()],
        };
        change(&mut info);
        inner.store.add_pool(info);
        id
    }

    /// A new client.
    #[must_use]
    pub fn client(&self) -> (Cluster, ClientHandle) {
        let (cluster, calls) = Cluster::new();
        let mut inner = self.0.borrow_mut();
        let number = inner.clients.len() as u64;
        let client = FIRST_CLIENT + number;
        let ip = Ipv4Addr::from(0x0a00_0001 + number as u32);
        let address = EntityAddress {
            kind: AddressKind::Any,
            nonce: 1000 + number as u32,
            socket: Some(SocketAddr::from((ip, 0))),
        };
        let caller = Caller { client, address };
        let (watches, orders) = (BTreeMap::new(), BTreeMap::new());
        inner.clients.insert(client, Client { calls, caller, is_alive: true, watches, orders });
        (cluster, ClientHandle { cluster: self.clone(), client })
    }

    /// Carries out and answers what is due. Returns true if anything was.
    ///
    /// Time does not go back: an earlier time counts as the newest so far.
    pub fn step(&self, now: Nanos) -> bool {
        let mut inner = self.0.borrow_mut();
        inner.now = inner.now.max(now);
        inner.accept();
        let mut any = false;
        loop {
            let time = inner.now;
            inner.store.watches.expire(time);
            inner.end_limits();
            let executed = inner.execute_next();
            inner.pass_signals();
            let delivered = inner.deliver_next();
            if !executed && !delivered {
                return any;
            }
            any = true;
        }
    }

    /// When the next call, answer or event is due, of the calls that a step has seen.
    #[must_use]
    pub fn next_time(&self) -> Option<Nanos> {
        let inner = self.0.borrow();
        let queued = inner.queued.first_key_value().map(|(&(due, _), _)| due);
        let delivered = inner.deliveries.first_key_value().map(|(&(due, _), _)| due);
        let limit = inner.limits.next();
        [queued, delivered, limit, inner.store.watches.next_time()].into_iter().flatten().min()
    }

    /// The time of the last step.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.0.borrow().now
    }

    /// Reads or changes what the cluster stores, behind the back of its clients.
    pub fn with_store<T>(&self, work: impl FnOnce(&mut Store) -> T) -> T {
        work(&mut self.0.borrow_mut().store)
    }

    /// The next requests on an object get an error, such as `EIO`, `ENOSPC` or `ESHUTDOWN`.
    pub fn inject(&self, pool: PoolId, name: &str, error: Errno, times: u32) {
        self.with_store(|store| store.inject(pool, name, error, times));
    }

    /// As [`ModelCluster::inject`], with more to choose: see [`Fault`].
    pub fn inject_fault(&self, pool: PoolId, name: &str, fault: Fault) {
        self.with_store(|store| store.inject_fault(pool, name, fault));
    }

    /// Makes a pool full, or lets it have space again.
    pub fn set_full(&self, pool: PoolId, is_full: bool) {
        self.with_store(|store| {
            if let Some(pool) = store.pool_mut(pool) {
                pool.info.is_full = is_full;
            }
        });
    }
}

impl ClientHandle {
    /// The global id.
    #[must_use]
    pub fn client(&self) -> u64 {
        self.client
    }

    /// The address, as in lists of clients that are shut out.
    #[must_use]
    pub fn address(&self) -> String {
        let inner = self.cluster.0.borrow();
        inner
            .clients
            .get(&self.client)
            .map_or_else(String::new, |client| client.caller.address.to_string())
    }

    /// The client dies.
    pub fn kill(&self) {
        self.cluster.0.borrow_mut().kill(self.client);
    }

    /// The connection that carries the client's watches breaks and comes back: each watch hears
    /// that it may have missed notifications.
    pub fn interrupt(&self) {
        let mut inner = self.cluster.0.borrow_mut();
        let Some(client) = inner.clients.get(&self.client) else { return };
        let watches: Vec<_> = client.watches.keys().copied().collect();
        for watch in watches {
            inner.send_event(self.client, watch, WatchEvent::Interrupted(Errno::ENOTCONN));
        }
    }
}

/// What a call has to stay in order with.
fn order_of(call: &Call, watches: &BTreeMap<WatchId, ObjectName>) -> Option<Place> {
    let object = match call {
        Call::Operate(operation) => &operation.object,
        Call::Watch(_, object) | Call::Notify(object, ..) => object,
        Call::Unwatch(watch) | Call::Acknowledge(watch, ..) => watches.get(watch)?,
        _ => return None,
    };
    Some((object.pool, key_of(object)))
}

/// True if OSDs carry the call out, and not the monitors or the client itself.
fn is_for_osds(call: &Call) -> bool {
    matches!(
        call,
        Call::Operate(_)
            | Call::Notify(..)
            | Call::Watch(..)
            | Call::Unwatch(_)
            | Call::Acknowledge(..)
            | Call::List(..)
    )
}

impl Inner {
    fn delay(&mut self) -> Nanos {
        let Delays { min, max } = self.delays;
        if min >= max { min } else { Nanos(self.random.random_range(min.0..=max.0)) }
    }

    /// Takes the clients' new calls, one of each in turn.
    fn accept(&mut self) {
        // Those that were held keep their places before later ones on the same object. Those that
        // must still wait stay where they are: a call that is queued again at each step would look
        // like progress.
        let held = std::mem::take(&mut self.held).into_iter();
        let (waiting, ready): (Vec<_>, Vec<_>) = held.partition(|(_, queued)| self.waits(queued));
        self.held = waiting;
        self.queued.extend(ready);
        let mut clients: Vec<u64> = self.clients.keys().copied().collect();
        while !clients.is_empty() {
            clients.retain(|&client| {
                let Some(state) = self.clients.get(&client).filter(|state| state.is_alive) else {
                    return false;
                };
                let Some((id, call)) = state.calls.take() else { return false };
                self.limits.begin(client, id, &call, self.now);
                self.queue(Queued { client, id, call });
                true
            });
        }
    }

    fn queue(&mut self, queued: Queued) {
        let mut due = self.now;
        if self.delays != Delays::NONE {
            due = due.plus(self.delay());
            let now = self.now;
            if let Some(client) = self.clients.get_mut(&queued.client) {
                if let Some(order) = order_of(&queued.call, &client.watches) {
                    let earliest = client.orders.entry(Some(order)).or_default();
                    due = due.max(earliest.0);
                    earliest.0 = due;
                }
                if client.orders.len() > MAX_ORDERS {
                    client.orders.retain(|_, times| times.0.max(times.1) > now);
                }
            }
        }
        self.sequence += 1;
        self.queued.insert((due, self.sequence), queued);
    }

    /// A call has to wait: its pool is full, or a test holds its object.
    fn waits(&self, queued: &Queued) -> bool {
        let Call::Operate(operation) = &queued.call else { return false };
        self.store.must_wait(operation) || self.is_held(queued.client, operation)
    }

    /// Executes a call that is due and need not wait. False if there is none.
    fn execute_next(&mut self) -> bool {
        let queued = loop {
            let due = self.queued.first_entry().filter(|entry| entry.key().0 <= self.now);
            let Some((due, queued)) = due.map(OccupiedEntry::remove_entry) else { return false };
            if !self.waits(&queued) {
                break queued;
            }
            self.held.push((due, queued));
        };
        let Queued { client, id, call } = queued;
        let order = match self.clients.get(&client) {
            Some(state) if self.delays != Delays::NONE => order_of(&call, &state.watches),
            _ => None,
        };
        if let Some(answer) = self.carry_out(client, id, call) {
            self.answer(client, order, id, answer);
        }
        true
    }

    fn answer(&mut self, client: u64, order: OrderKey, id: CallId, answer: Result<Answer, Errno>) {
        let delay = self.delay();
        let mut due = self.now.plus(delay);
        if let (Some(client), Some(order)) = (self.clients.get_mut(&client), order) {
            let earliest = client.orders.entry(Some(order)).or_default();
            due = due.max(earliest.1);
            earliest.1 = due;
        }
        self.sequence += 1;
        self.deliveries.insert((due, self.sequence), (client, Delivery::Answer(id, answer)));
    }

    fn send_event(&mut self, client: u64, watch: WatchId, event: WatchEvent) {
        let delay = self.delay();
        let mut due = self.now.plus(delay);
        if let Some(client) = self.clients.get_mut(&client) {
            let earliest = client.orders.entry(None).or_default();
            due = due.max(earliest.1);
            earliest.1 = due;
        }
        self.sequence += 1;
        self.deliveries.insert((due, self.sequence), (client, Delivery::Event(watch, event)));
    }

    fn deliver_next(&mut self) -> bool {
        let now = self.now;
        let Some(entry) = self.deliveries.first_entry().filter(|entry| entry.key().0 <= now) else {
            return false;
        };
        let (client, delivery) = entry.remove();
        if let Some(client) = self.clients.get(&client).filter(|client| client.is_alive) {
            match delivery {
                Delivery::Answer(id, answer) => {
                    if let Some(late) = self.limits.end(client.caller.client, id) {
                        client.calls.set_late_writes(&late);
                    }
                    client.calls.answer(id, answer);
                }
                Delivery::Event(watch, event) => client.calls.watch_event(watch, event),
            }
        }
        true
    }

    fn pass_signals(&mut self) {
        while let Some(signal) = self.store.watches.take_signal() {
            match signal {
                Signal::Notify { to, notify_id, from, payload } => {
                    let event = WatchEvent::Notified { notify_id, from, payload };
                    self.send_event(to.client, WatchId(to.cookie), event);
                }
                Signal::Lost { to, error } => {
                    if let Some(client) = self.clients.get_mut(&to.client) {
                        client.watches.remove(&WatchId(to.cookie));
                    }
                    self.send_event(to.client, WatchId(to.cookie), WatchEvent::Lost(error));
                }
                Signal::Complete { to, reply, .. } => {
                    if let Some(id) = self.notifying.remove(&(to.client, to.cookie)) {
                        self.answer(to.client, None, id, Ok(Answer::Notified(reply)));
                    }
                }
            }
        }
    }

    /// Carries out a call. The answer to a notification comes later.
    fn carry_out(&mut self, client: u64, id: CallId, call: Call) -> Option<Result<Answer, Errno>> {
        let caller = self.clients.get(&client)?.caller.clone();
        if let Call::Operate(operation) = &call {
            return Some(self.store.execute(self.now, &caller, operation).map(Answer::Reply));
        }
        // OSDs refuse a client that is shut out; monitors do not.
        if is_for_osds(&call) && self.store.is_shut_out(&caller.address, self.now) {
            return Some(Err(Errno::ESHUTDOWN));
        }
        Some(match call {
            Call::Notify(object, payload, timeout_ms) => {
                match self.notify(&caller, id, &object, &payload, timeout_ms) {
                    Ok(()) => return None,
                    Err(error) => Err(error),
                }
            }
            Call::Watch(watch, object) => self.watch(&caller, watch, object),
            Call::Unwatch(watch) => {
                let object = self.clients.get_mut(&client)?.watches.remove(&watch);
                let watcher = Watcher { client, cookie: watch.0 };
                object.ok_or(Errno::ENOTCONN).map(|object| {
                    self.store.watches.unwatch(&(object.pool, key_of(&object)), watcher);
                    Answer::Done
                })
            }
            Call::Acknowledge(watch, notify_id, payload) => {
                let watcher = Watcher { client, cookie: watch.0 };
                self.store.watches.acknowledge(notify_id, watcher, payload);
                Ok(Answer::Done)
            }
            Call::Command(json, _) => Ok(Answer::Command(self.command(&json))),
            Call::Pools => {
                Ok(Answer::Pools(self.store.pools().map(|pool| pool.info.clone()).collect()))
            }
            Call::CreateSnap(pool) => {
                self.pool_mut(pool).map(|pool| Answer::Snap(pool.create_snap()))
            }
            Call::RemoveSnap(pool, snap) => self.pool_mut(pool).map(|pool| {
                pool.remove_snap(snap);
                Answer::Done
            }),
            Call::List(pool, namespace, cursor) => {
                self.list(pool, namespace.as_deref(), &cursor).map(Answer::Listing)
            }
            Call::Identity => Ok(Answer::Identity(client, caller.address.to_string())),
            _ => Ok(Answer::Done),
        })
    }

    fn pool_mut(&mut self, pool: PoolId) -> Result<&mut Pool, Errno> {
        self.store.pool_mut(pool).ok_or(Errno::ENOENT)
    }

    fn exists(&self, object: &ObjectName) -> Result<(), Errno> {
        let object = self.store.object(object).ok_or(Errno::ENOENT)?;
        object.present().map(drop).ok_or(Errno::ENOENT)
    }

    fn notify(
        &mut self,
        caller: &Caller,
        id: CallId,
        object: &ObjectName,
        payload: &Bytes,
        timeout_ms: u32,
    ) -> Result<(), Errno> {
        self.exists(object)?;
        let to = Watcher { client: caller.client, cookie: id.0 };
        self.notifying.insert((to.client, to.cookie), id);
        let deadline = self.now.plus(Nanos::from_ms(timeout_ms.into()));
        self.store.watches.notify(&(object.pool, key_of(object)), to, payload, deadline);
        Ok(())
    }

    fn watch(
        &mut self,
        caller: &Caller,
        watch: WatchId,
        object: ObjectName,
    ) -> Result<Answer, Errno> {
        self.exists(&object)?;
        let place = (object.pool, key_of(&object));
        self.store.watches.watch(place, caller, watch.0, WATCH_TIMEOUT_S);
        if let Some(client) = self.clients.get_mut(&caller.client) {
            client.watches.insert(watch, object);
        }
        Ok(Answer::Done)
    }

    fn command(&mut self, json: &str) -> CommandReply {
        let reply = commands::execute(&mut self.store, json, self.now);
        self.pass_signals();
        reply
    }

    fn list(
        &self,
        pool: PoolId,
        namespace: Option<&str>,
        cursor: &ListCursor,
    ) -> Result<Listing, Errno> {
        let pool = self.store.pool(pool).ok_or(Errno::ENOENT)?;
        let after = decode_key(&cursor.position);
        let mut objects = Vec::new();
        let mut next = None;
        for (key, object) in pool.objects_after(after.as_ref()) {
            if object.is_whiteout || namespace.is_some_and(|wanted| *key.0 != *wanted) {
                continue;
            }
            objects.push((key.0.to_string(), key.2.to_string(), key.1.to_string()));
            if objects.len() == LIST_PART {
                next = Some(ListCursor { seed: 0, position: encode_key(key) });
                break;
            }
        }
        Ok(Listing { objects, next })
    }

    fn kill(&mut self, client: u64) {
        let Some(state) = self.clients.get_mut(&client) else { return };
        state.is_alive = false;
        let mut calls = Vec::new();
        while let Some((id, call)) = state.calls.take() {
            calls.push(Queued { client, id, call });
        }
        calls.into_iter().for_each(|queued| self.queue(queued));
        let mut lost = std::collections::BTreeSet::new();
        let Some(state) = self.clients.get(&client) else { return };
        let random = &mut self.random;
        self.queued.retain(|_, queued| {
            if queued.client != client {
                return true;
            }
            let order = order_of(&queued.call, &state.watches);
            if lost.contains(&order) || random.random() {
                lost.insert(order);
                return false;
            }
            true
        });
        self.held.retain(|(_, queued)| queued.client != client);
        self.limits.forget(client);
        self.notifying.retain(|&(notifier, _), _| notifier != client);
        self.store.watches.client_gone(client, self.now);
    }
}

/// A position in a list: the last key that was given, its parts divided by a zero byte.
fn encode_key(key: &ObjectKey) -> Bytes {
    format!("{}\0{}\0{}", key.0, key.1, key.2).into()
}

fn decode_key(position: &[u8]) -> Option<ObjectKey> {
    let text = std::str::from_utf8(position).ok()?;
    let mut parts = text.splitn(3, '\0');
    Some((parts.next()?.into(), parts.next()?.into(), parts.next()?.into()))
}

mod limit;
#[cfg(test)]
mod tests;
