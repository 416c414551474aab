//! The objecter: sends each request on an object to the OSD that has the object, and sends it again
//! until it is answered. A state machine without I/O; its owner has the connections.
//!
//! **A request's way.** [`Objecter::submit`] takes it. While too much is in flight it is *queued*.
//! Then it gets its number (`tid`) and its *target*: object → seed → group → acting primary, from
//! the newest map. It joins the target's *session*, or the *homeless* ones while no OSD can take
//! it. In a ready session it is sent, unless the map *pauses* it or the OSD asked to *back off*.
//! The answer ends it ([`Event::Done`]).
//!
//! ```text
//! submit -> queued -> [ homeless <-> session: waits <-> sent ] -> Done
//!                          new maps, lost sessions, backoffs
//! ```
//!
//! **When it is sent again.** The session broke; the primary changed; the group was split or
//! merged; the pool demands it; a pause or the pool's fullness ended; an epoch was skipped; an
//! unblock covers it. Each time with the next *attempt* number, by which late answers are
//! recognised. OSDs remember the numbers of writes that they executed, so a repeated write has no
//! second effect. For "try again" and redirects it gets a new number, because an OSD may remember
//! the refusal too.
//!
//! **Order.** Requests on one object leave in the order of their numbers, which is the order of
//! submission: sessions hold them in that order, each pass over several sends them in that order,
//! and sends of one session stay in order on its connection. As in Ceph, exceptions are requests
//! with flags of their own (a read of any replica; a write that ignores fullness) and those that an
//! OSD bounced.
//!
//! **Maps.** The owner passes each epoch in order ([`Objecter::map_changed`]). It may skip epochs
//! if the cluster has them no more; then every request is sent again, since the primary may have
//! changed and changed back. [`Action::WantMap`] asks for newer maps whenever a request waits for
//! one.
//!
//! **Watches and notifications** are in the module `linger`, the time limit is in `tick`, and
//! writes that go on after it in `late`.
//!
//! **Contract with the owner.** Take all actions and events after each call. After `Close` of an
//! OSD, deliver nothing of its old connection. On one connection, keep the order of `Send` and
//! `SendBackoffAck`. Report a connection that fails or cannot be made with
//! [`Objecter::session_closed`]; the objecter decides when to open it again.

mod bounds;
mod change;
mod late;
mod linger;
mod map;
mod osdmap;
mod position;
mod reply;
mod request;
mod route;
mod session;
mod tick;
mod waits;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use fieldstone_block::Nanos;
use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::{PgId, PoolId};

pub use bounds::*;
pub use linger::decode_notify_reply;
pub use map::{ClusterMap, Interval, PoolRules};
pub use session::MAX_BACKOFFS;
pub use waits::{Wait, WaitReason};

use crate::cluster::{LateWrites, NotifyReply, ObjectName, Operation, WatchEvent, WatchId};
use crate::encoding::{Addresses, Time};
use crate::errno::Errno;
use crate::message::osd::{OsdBackoff, OsdOp, flag};
use crate::op::{ObjectOps, Reply};
use linger::Linger;
use map::Group;
use request::{Party, Request, Requests};
use session::{Session, SessionState};

/// The owner's name for what it asked: it comes back with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Names a request that is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    key: u32,
    serial: u64,
}

/// How far an OSD is: smaller is nearer. For reads of the nearest replica.
pub type Distance = Arc<dyn Fn(OsdId) -> u32>;

/// The settings of an objecter.
#[derive(Clone)]
pub struct Options {
    /// The global id of this client.
    pub client: u64,
    /// The features of this client, for the messages.
    pub features: u64,
    /// Nanoseconds since 1970 at the time zero of [`Nanos`].
    pub unix_nanos_at_zero: u64,
    /// Requests that are older fail with `ETIMEDOUT`; 0 for never (Ceph: `rados_osd_op_timeout`).
    /// A write that was sent may be executed all the same: see [`Objecter::late_writes`].
    pub timeout_ms: u64,
    /// OSDs forget a watch of which they hear nothing for so long.
    pub watch_timeout_s: u32,
    /// Most requests in flight.
    pub max_in_flight: usize,
    /// Most bytes in flight. One request may be larger.
    pub max_in_flight_bytes: u64,
    /// Most sessions; only idle ones are closed.
    pub max_sessions: usize,
    /// For [`localize_reads`](crate::cluster::OperationFlags::localize_reads). Without it the first
    /// member counts as the nearest.
    pub distance: Option<Distance>,
    /// Selects among replicas.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            client: 0,
            features: 0,
            unix_nanos_at_zero: 0,
            timeout_ms: 0,
            watch_timeout_s: WATCH_TIMEOUT_S,
            max_in_flight: MAX_IN_FLIGHT,
            max_in_flight_bytes: MAX_IN_FLIGHT_BYTES,
            max_sessions: MAX_SESSIONS,
            distance: None,
            seed: 0,
        }
    }
}

/// What the owner has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to an OSD.
    Open {
        /// The OSD.
        osd: OsdId,
        /// Its addresses.
        addresses: Addresses,
    },
    /// Close the connection to an OSD, or stop connecting.
    Close(OsdId),
    /// Send a request.
    Send(OsdId, OsdOp),
    /// Send the acknowledgement of a backoff.
    SendBackoffAck(OsdId, OsdBackoff),
    /// Make sure that the connection still lives: requests have waited long.
    Probe(OsdId),
    /// Get maps from this epoch on; 0: the newest map.
    WantMap(u32),
    /// Ask the monitors for the newest epoch, and tell it with [`Objecter::newest_epoch`], or say
    /// that there is no answer with [`Objecter::newest_epoch_failed`]. Comes once until then.
    WantNewestEpoch,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request is answered. The reply may have a negative result.
    Done(Token, Result<Reply, Errno>),
    /// A watch stands, or failed.
    Watching(Token, Result<(), Errno>),
    /// An event of a watch.
    Watch(WatchId, WatchEvent),
    /// A notification is over. Watchers that did not answer are in the reply.
    Notified(Token, Result<NotifyReply, Errno>),
}

/// The objecter; the [module](self) tells what it does.
pub struct Objecter<M> {
    options: Options,
    map: Option<Arc<M>>,
    groups: HashMap<PgId, Rc<Group>>,
    requests: Requests,
    sessions: BTreeMap<OsdId, Session>,
    homeless: BTreeMap<u64, usize>,
    queued: VecDeque<RequestId>,
    in_flight: usize,
    in_flight_bytes: u64,
    /// Writes that have failed for their callers, and are not answered.
    late: LateWrites,
    /// Queued requests do not start now: a procedure goes through the requests.
    holds_queue: bool,
    last_tid: u64,
    last_serial: u64,
    random: u64,
    barrier: u32,
    shut_out: Option<Errno>,
    lingers: BTreeMap<u64, Linger>,
    last_notify: u64,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    /// Sessions to open again.
    reopenings: BTreeSet<(Nanos, OsdId)>,
    next_tick: Nanos,
    next_ping: Option<Nanos>,
    /// When a watch or notification fails for want of an answer.
    next_failure: Option<Nanos>,
    asked_map: Option<u32>,
    asks: EpochQuestion,
}

/// Requests of pools that no map has: who waits for the monitors' newest epoch.
#[derive(Default)]
struct EpochQuestion {
    /// Asked before the monitors answer.
    now: Vec<RequestId>,
    /// For the next question.
    next: Vec<RequestId>,
    /// The owner was asked, and has not answered.
    is_asked: bool,
    asked_at: Nanos,
}

/// Why a request has no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Miss {
    NoMap,
    NoPool,
    PoolFails,
}

impl<M: ClusterMap> Objecter<M> {
    /// An objecter without a map.
    #[must_use]
    pub fn new(options: Options, now: Nanos) -> Self {
        Self {
            random: options.seed,
            options,
            map: None,
            groups: HashMap::new(),
            requests: Requests::default(),
            sessions: BTreeMap::new(),
            homeless: BTreeMap::new(),
            queued: VecDeque::new(),
            in_flight: 0,
            in_flight_bytes: 0,
            late: LateWrites::new(),
            holds_queue: false,
            last_tid: 0,
            last_serial: 0,
            barrier: 0,
            shut_out: None,
            lingers: BTreeMap::new(),
            last_notify: 0,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            reopenings: BTreeSet::new(),
            next_tick: now.plus(TICK),
            next_ping: None,
            next_failure: None,
            asked_map: None,
            asks: EpochQuestion::default(),
        }
    }

    /// Sets the global id of the client, and its features, once they are known.
    pub fn set_identity(&mut self, client: u64, features: u64) {
        self.options.client = client;
        self.options.features = features;
    }

    /// Sets how far OSDs are, for the requests that come.
    pub fn set_distance(&mut self, distance: Option<Distance>) {
        self.options.distance = distance;
    }

    /// The newest map.
    #[must_use]
    pub fn map(&self) -> Option<&Arc<M>> {
        self.map.as_ref()
    }

    /// The epoch of the newest map; 0 without a map.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.map.as_ref().map_or(0, |map| map.epoch())
    }

    /// The number of requests that are not answered, with those of watches.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.requests.len()
    }

    /// How many writes of each sender have failed by the time limit, or because their pool fails
    /// all requests, and may still be executed.
    #[must_use]
    pub fn late_writes(&self) -> &LateWrites {
        &self.late
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing that has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes a request. Its answer comes as [`Event::Done`] with the token.
    pub fn submit(&mut self, token: Token, operation: Operation, now: Nanos) -> RequestId {
        self.submit_any(token, operation, None, now)
    }

    /// Takes a request for a placement group, such as a list of its objects.
    pub fn submit_to_group(
        &mut self,
        token: Token,
        group: PgId,
        namespace: &str,
        ops: ObjectOps,
        now: Nanos,
    ) -> RequestId {
        let operation = Operation::new(ObjectName::new(group.pool, namespace, ""), ops);
        self.submit_any(token, operation, Some(group.seed), now)
    }

    fn submit_any(
        &mut self,
        token: Token,
        operation: Operation,
        group_seed: Option<u32>,
        now: Nanos,
    ) -> RequestId {
        let refusal = if operation.ops.is_empty() {
            Some(Errno::EINVAL)
        } else if self.queued.len() >= MAX_QUEUED {
            Some(Errno::EBUSY)
        } else {
            self.shut_out
        };
        if let Some(errno) = refusal {
            self.events.push_back(Event::Done(token, Err(errno)));
            self.last_serial += 1;
            return RequestId { key: u32::MAX, serial: self.last_serial };
        }
        let (key, id) = self.insert(Party::Caller(token), operation, group_seed, now);
        if self.queued.is_empty() && self.has_room(key) {
            self.start(key, now);
        } else {
            self.queued.push_back(id);
        }
        id
    }

    fn insert(
        &mut self,
        party: Party,
        operation: Operation,
        group_seed: Option<u32>,
        now: Nanos,
    ) -> (usize, RequestId) {
        self.last_serial += 1;
        let mut request = Request::new(party, operation, self.last_serial, now);
        request.group_seed = group_seed;
        if group_seed.is_some() {
            request.flags |= flag::PGOP | flag::IGNORE_OVERLAY;
        }
        request.modified = self.wall_clock(now);
        let key = self.requests.insert(request);
        (key, RequestId { key: key as u32, serial: self.last_serial })
    }

    fn wall_clock(&self, now: Nanos) -> Time {
        const SECOND: u64 = 1_000_000_000;
        let nanos = self.options.unix_nanos_at_zero.saturating_add(now.0);
        // Ceph's times end in the year 2106.
        let seconds = u32::try_from(nanos / SECOND).unwrap_or(u32::MAX);
        Time { seconds, nanos: (nanos % SECOND) as u32 }
    }

    /// Gives a request up: there will be no answer to it. An OSD may still execute it.
    pub fn cancel(&mut self, id: RequestId, now: Nanos) {
        if let Some(key) = self.requests.find(id) {
            self.discard(key);
            self.pump(now);
        }
    }

    /// Requests wait until the map has this epoch.
    pub fn wait_for_epoch(&mut self, epoch: u32) {
        self.barrier = self.barrier.max(epoch);
        self.want_map();
    }

    /// Ends all requests and watches with this error, and refuses all that come. For a client that
    /// is shut out of the cluster, or ends.
    pub fn shut_out(&mut self, errno: Errno) {
        self.shut_out = Some(errno);
        self.queued.clear();
        let mut ended: Vec<(u64, usize)> =
            self.requests.iter().map(|(key, request)| (request.serial, key)).collect();
        ended.sort_unstable();
        for (_, key) in ended {
            if let Party::Caller(token) = self.discard(key).party {
                self.events.push_back(Event::Done(token, Err(errno)));
            }
        }
        self.end_lingers(errno);
    }

    fn has_room(&self, key: usize) -> bool {
        let bytes = self.requests.get(key).map_or(0, |request| request.budget_bytes);
        self.in_flight == 0
            || (self.in_flight < self.options.max_in_flight
                && self.in_flight_bytes.saturating_add(bytes) <= self.options.max_in_flight_bytes)
    }

    /// Starts queued requests for which there is room now.
    fn pump(&mut self, now: Nanos) {
        if self.holds_queue {
            return;
        }
        self.holds_queue = true;
        while let Some(&id) = self.queued.front() {
            match self.requests.find(id) {
                Some(key) if !self.has_room(key) => break,
                Some(key) => {
                    self.queued.pop_front();
                    self.start(key, now);
                }
                None => drop(self.queued.pop_front()),
            }
        }
        self.holds_queue = false;
    }

    fn start(&mut self, key: usize, now: Nanos) {
        self.take_place(key);
        self.launch(key, now);
    }

    /// A request counts as in flight from now on.
    fn take_place(&mut self, key: usize) {
        if let Some(request) = self.requests.get_mut(key).filter(|request| !request.counted) {
            request.counted = true;
            self.in_flight += 1;
            self.in_flight_bytes = self.in_flight_bytes.saturating_add(request.budget_bytes);
        }
    }

    /// A request does not count as in flight any more. The caller pumps.
    fn give_place_back(&mut self, key: usize) {
        if let Some(request) = self.requests.get_mut(key).filter(|request| request.counted) {
            request.counted = false;
            self.in_flight -= 1;
            self.in_flight_bytes -= request.budget_bytes;
        }
    }

    /// Makes sure that there is a session. False if the map has no such OSD that is up.
    fn open(&mut self, osd: OsdId, now: Nanos) -> bool {
        if self.sessions.contains_key(&osd) {
            return true;
        }
        let Some(addresses) = self.map.as_ref().and_then(|map| map.addresses(osd)) else {
            return false;
        };
        if self.sessions.len() >= self.options.max_sessions {
            self.close_idle();
        }
        self.sessions.insert(osd, Session::new(addresses.clone(), now));
        self.actions.push_back(Action::Open { osd, addresses });
        true
    }

    /// Closes the session that was idle for the longest time.
    fn close_idle(&mut self) {
        let needed: BTreeSet<OsdId> = self.lingers.values().filter_map(Linger::osd).collect();
        let idle = self
            .sessions
            .iter()
            .filter(|(osd, session)| session.requests.is_empty() && !needed.contains(osd))
            .min_by_key(|(_, session)| session.last_used)
            .map(|(&osd, _)| osd);
        if let Some(osd) = idle {
            self.close(osd);
        }
    }

    /// Closes a session. Its requests are not in order until they are settled again.
    fn close(&mut self, osd: OsdId) -> Option<Session> {
        let session = self.sessions.remove(&osd)?;
        if let SessionState::Waiting(at) = session.state {
            self.reopenings.remove(&(at, osd));
        } else {
            self.actions.push_back(Action::Close(osd));
        }
        Some(session)
    }

    /// Takes a request out for good.
    ///
    /// # Panics
    /// If there is no such request.
    fn discard(&mut self, key: usize) -> Request {
        self.unsettle(key);
        self.give_place_back(key);
        let request = self.requests.remove(key);
        if request.party == Party::Late {
            self.forget_late(request.operation.sender);
        }
        request
    }

    /// Ends a request, and tells its party.
    fn finish(&mut self, key: usize, result: Result<Reply, Errno>, now: Nanos) {
        if self.requests.get(key).is_none() {
            return;
        }
        match self.discard(key).party {
            Party::Caller(token) => {
                self.events.push_back(Event::Done(token, result));
                self.pump(now);
            }
            Party::Late => self.pump(now),
            party => self.linger_answered(party, result, now),
        }
    }

    /// Asks for the map after the newest, once for each epoch.
    fn want_map(&mut self) {
        let from = self.map.as_ref().map_or(0, |map| map.epoch().saturating_add(1));
        if self.asked_map != Some(from) {
            self.asked_map = Some(from);
            self.actions.push_back(Action::WantMap(from));
        }
    }

    /// A request has no target by the newest map.
    fn missed(&mut self, key: usize, miss: Miss, now: Nanos) {
        let epoch = self.epoch();
        let Some(request) = self.requests.get(key) else { return };
        let is_decided = request.decisive_epoch.is_some_and(|decisive| epoch >= decisive);
        match miss {
            Miss::PoolFails => return self.pool_fails(key, now),
            Miss::NoPool if request.pool_seen || is_decided => {
                return self.finish(key, Err(Errno::ENXIO), now);
            }
            Miss::NoPool | Miss::NoMap => {}
        }
        let asks = miss == Miss::NoPool && request.decisive_epoch.is_none();
        let id = RequestId { key: key as u32, serial: request.serial };
        if let Some(request) = self.requests.get_mut(key) {
            request.target = None;
        }
        self.make_homeless(key);
        if asks {
            self.ask_newest(id, now);
        }
    }

    /// Asks for the newest epoch, unless the question for this request is under way.
    fn ask_newest(&mut self, id: RequestId, now: Nanos) {
        if self.asks.now.contains(&id) || self.asks.next.contains(&id) {
            return;
        }
        if self.asks.now.is_empty() {
            self.asks.now.push(id);
            self.ask_epoch(now);
        } else {
            self.asks.next.push(id);
        }
    }

    /// Asks the owner for the newest epoch, for the requests of the present question. One question
    /// is under way at a time.
    fn ask_epoch(&mut self, now: Nanos) {
        if !self.asks.now.is_empty() && !self.asks.is_asked {
            self.asks.is_asked = true;
            self.asks.asked_at = now;
            self.actions.push_back(Action::WantNewestEpoch);
        }
    }

    /// The monitors do not answer [`Action::WantNewestEpoch`]. The objecter asks again later.
    pub fn newest_epoch_failed(&mut self) {
        self.asks.is_asked = false;
    }

    /// Answers [`Action::WantNewestEpoch`].
    pub fn newest_epoch(&mut self, epoch: u32, now: Nanos) {
        self.asks.is_asked = false;
        for id in std::mem::take(&mut self.asks.now) {
            let Some(key) = self.requests.find(id) else { continue };
            let Some(request) = self.requests.get_mut(key) else { continue };
            // A map had the pool meanwhile.
            if request.target.is_some() || request.pool_seen {
                continue;
            }
            request.decisive_epoch = Some(epoch.max(1));
            if self.epoch() >= epoch {
                self.finish(key, Err(Errno::ENXIO), now);
            } else {
                self.want_map();
            }
        }
        self.asks.now = std::mem::take(&mut self.asks.next);
        self.ask_epoch(now);
    }

    /// The pool of a request's object, for messages to people.
    fn pool_of(request: &Request) -> PoolId {
        request.operation.object.pool
    }
}

/// The next random number (splitmix64).
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
