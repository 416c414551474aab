//! Monitors and OSDs that speak messages: messages in, messages out, no I/O. [`Links`] adds the
//! connections, in bytes.
//!
//! A [`WireCluster`] has any number of sessions. Each is one client's connection to one
//! [`Server`]. The owner decodes the messages of a connection
//! (`fieldstone_rados::msgr::Connection::server`), hands them in with [`WireCluster::receive`], and
//! sends what [`WireCluster::poll_output`] gives.
//!
//! **Maps** come from the owner as encoded bytes ([`WireCluster::publish`]), because the model does
//! not encode maps. What changes them — a client that is shut out, a new or removed snapshot —
//! takes effect in the store at once, and is told with [`WireCluster::take_change`], so that the
//! owner can publish the next map.
//!
//! **An OSD** executes a request if its placement group maps to the OSD by the newest map, and the
//! client knew a map in which the OSD was the primary already, without a break. It drops other
//! requests without an answer, as a real OSD does, and tells a client with an older map the newer
//! ones. A request of a newer map waits for that map. A write that was executed before gets the
//! same answer again. A group can be blocked: then a client is asked to back off.
//!
//! **Left out**: replication, recovery, restarts with loss of memory, capabilities, statistics.

mod link;
#[cfg(test)]
mod link_tests;
mod list;
mod monitor;
mod osd;
mod plain;
#[cfg(test)]
mod plain_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::{OsdMap, PgId, Pool, PoolId};
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::{SnapId, Watcher};
use fieldstone_rados::message::Message;
use fieldstone_rados::message::monitor::MonMap;
use fieldstone_rados::message::osd::{OsdMaps, OsdOp, OsdOpReply};

use crate::objects::Caller;
use crate::store::Store;

pub use link::{LinkId, Links};
pub use plain::{PlainAnswer, PlainRequest};

/// Maps that one message has at most (Ceph: `osd_map_message_max`).
const MAX_MAPS: usize = 40;
/// Answers to writes that are kept for repeated requests.
const MAX_ANSWERS: usize = 4096;

/// Who answers on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Server {
    /// A monitor, by rank.
    Monitor(u32),
    /// An OSD.
    Osd(u32),
}

/// A client's connection to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A change that the next map has to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapChange {
    /// A command changed the list of clients that are shut out.
    Blocklist,
    /// A pool has a new snapshot number.
    NewSnap(PoolId, SnapId),
    /// A snapshot was removed.
    RemovedSnap(PoolId, SnapId),
}

struct Session {
    server: Server,
    caller: Caller,
    features: u64,
    /// The next epoch of the map of OSDs that a subscriber lacks, and whether it wants only one.
    wants_map: Option<(u32, bool)>,
    /// The newest epoch that was sent on an OSD's session.
    told_epoch: u32,
}

#[derive(Default)]
struct Maps {
    full: BTreeMap<u32, Bytes>,
    incremental: BTreeMap<u32, Bytes>,
    newest: Option<OsdMap>,
    /// The primary of each group, and the epoch since when it is.
    primaries: BTreeMap<PgId, (Option<OsdId>, u32)>,
    /// The replicated pools of the newest map, for the short way.
    places: BTreeMap<PoolId, Places>,
}

/// A pool of the newest map, with the primary of each of its groups.
struct Places {
    pool: Pool,
    primaries: Vec<Option<OsdId>>,
}

impl Places {
    fn primary(&self, seed: u32) -> Option<OsdId> {
        self.primaries.get(seed as usize).copied().flatten()
    }
}

impl Maps {
    /// Notes which primaries a new map changes.
    fn note_primaries(&mut self, epoch: u32, map: &OsdMap) {
        for pg in map.pools.iter().flat_map(|(&id, pool)| pool.pgs(id)) {
            let primary = map.place(pg).ok().and_then(|placement| placement.acting_primary);
            let known = self.primaries.entry(pg).or_insert((primary, epoch));
            if known.0 != primary {
                *known = (primary, epoch);
            }
        }
        self.places.clear();
        for (&id, pool) in map.pools.iter().filter(|(_, pool)| pool.can_shift()) {
            let primary = |pg| self.primaries.get(&pg).and_then(|&(primary, _)| primary);
            let primaries = pool.pgs(id).map(primary).collect();
            self.places.insert(id, Places { pool: pool.clone(), primaries });
        }
    }
}

/// Monitors and OSDs.
pub struct WireCluster {
    store: Store,
    fsid: [u8; 16],
    monitors: MonMap,
    maps: Maps,
    newest_epoch: u32,
    /// Monitors tell a new map only to who asks.
    keeps_maps_quiet: bool,
    sessions: BTreeMap<SessionId, Session>,
    newest_session: u64,
    output: VecDeque<(SessionId, Message)>,
    changes: VecDeque<MapChange>,
    /// The session of each watch and of each notifier.
    routes: BTreeMap<Watcher, SessionId>,
    answers: BTreeMap<(u64, u64), OsdOpReply>,
    answer_order: VecDeque<(u64, u64)>,
    /// Writes of the short way, the oldest first.
    done_writes: VecDeque<plain::DoneWrite>,
    /// Requests for a newer map, or for a pool with space.
    waiting: Vec<(SessionId, OsdOp)>,
    blocked: BTreeMap<PgId, u64>,
    told_to_back_off: BTreeSet<(SessionId, PgId)>,
    newest_backoff: u64,
    now: Nanos,
}

impl WireCluster {
    /// A cluster without OSDs and pools in its map.
    #[must_use]
    pub fn new(store: Store, monitors: MonMap) -> Self {
        Self {
            store,
            fsid: monitors.fsid,
            monitors,
            maps: Maps::default(),
            newest_epoch: 0,
            keeps_maps_quiet: false,
            sessions: BTreeMap::new(),
            newest_session: 0,
            output: VecDeque::new(),
            changes: VecDeque::new(),
            routes: BTreeMap::new(),
            answers: BTreeMap::new(),
            answer_order: VecDeque::new(),
            done_writes: VecDeque::new(),
            waiting: Vec::new(),
            blocked: BTreeMap::new(),
            told_to_back_off: BTreeSet::new(),
            newest_backoff: 0,
            now: Nanos(0),
        }
    }

    /// What the cluster stores.
    pub fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// The newest epoch of the map of OSDs.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.newest_epoch
    }

    /// From now on, monitors tell a new map only to a client that asks; or to all subscribers
    /// again.
    pub fn keep_maps_quiet(&mut self, is_quiet: bool) {
        self.keeps_maps_quiet = is_quiet;
    }

    /// A new map of OSDs: its epoch, its bytes, and the bytes of its change, if there are any.
    pub fn publish(&mut self, epoch: u32, map: OsdMap, full: Bytes, change: Option<Bytes>) {
        self.maps.full.insert(epoch, full);
        if let Some(change) = change {
            self.maps.incremental.insert(epoch, change);
        }
        self.maps.note_primaries(epoch, &map);
        for (&id, pool) in &map.pools {
            if let Some(stored) = self.store.pool_mut(id) {
                stored.index_by(pool.object_hash);
            }
        }
        self.newest_epoch = self.newest_epoch.max(epoch);
        self.maps.newest = Some(map);
        if !self.keeps_maps_quiet {
            let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
            for session in sessions {
                self.tell_subscriber(session);
            }
        }
        self.retry_waiting();
    }

    /// Forgets the maps before an epoch, as monitors do after a while. The newest one stays.
    pub fn trim_maps(&mut self, oldest: u32) {
        let oldest = oldest.min(self.epoch());
        self.maps.full.retain(|&epoch, _| epoch >= oldest);
        self.maps.incremental.retain(|&epoch, _| epoch > oldest);
    }

    /// A client has connected. Returns the session.
    pub fn connected(&mut self, server: Server, caller: Caller, features: u64) -> SessionId {
        self.newest_session += 1;
        let id = SessionId(self.newest_session);
        let session = Session { server, caller, features, wants_map: None, told_epoch: 0 };
        self.sessions.insert(id, session);
        id
    }

    /// A session is over. Watches on it last for their timeouts.
    pub fn disconnected(&mut self, id: SessionId, now: Nanos) {
        self.now = self.now.max(now);
        let Some(session) = self.sessions.remove(&id) else { return };
        if matches!(session.server, Server::Osd(_)) {
            let gone: BTreeSet<Watcher> =
                self.routes.iter().filter(|&(_, &on)| on == id).map(|(&at, _)| at).collect();
            self.store.watches.watchers_gone(|watcher| gone.contains(watcher), self.now);
        }
        self.routes.retain(|_, on| *on != id);
        self.waiting.retain(|(on, _)| *on != id);
        self.told_to_back_off.retain(|(on, _)| *on != id);
    }

    /// Handles a message. One that its server does not know, or cannot read, is dropped.
    pub fn receive(&mut self, id: SessionId, message: &Message, now: Nanos) {
        self.now = self.now.max(now);
        match self.sessions.get(&id).map(|session| session.server) {
            Some(Server::Monitor(_)) => self.monitor_receives(id, message),
            Some(Server::Osd(osd)) => self.osd_receives(id, osd, message),
            None => {}
        }
        self.pass_signals();
    }

    /// Ends what has reached its time.
    pub fn tick(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        self.store.watches.expire(self.now);
        self.pass_signals();
    }

    /// When [`WireCluster::tick`] has something to do next.
    #[must_use]
    pub fn next_time(&self) -> Option<Nanos> {
        self.store.watches.next_time()
    }

    /// The next message to send.
    pub fn poll_output(&mut self) -> Option<(SessionId, Message)> {
        self.output.pop_front()
    }

    /// The next change that a new map has to have.
    pub fn take_change(&mut self) -> Option<MapChange> {
        self.changes.pop_front()
    }

    /// The global id of a session's client.
    #[must_use]
    pub fn client_of(&self, id: SessionId) -> Option<u64> {
        self.sessions.get(&id).map(|session| session.caller.client)
    }

    fn send(&mut self, id: SessionId, message: Message) {
        self.output.push_back((id, message));
    }

    /// The maps from `start` to the newest. The newest in full if `start` is 0. If the changes from
    /// there on are forgotten: the oldest in full, and the changes since then.
    fn maps_since(&self, start: u32) -> OsdMaps {
        let newest = self.epoch();
        let wanted = start.max(1)..=newest;
        let is_known = |epoch| self.maps.incremental.contains_key(&epoch);
        let (mut incremental, mut full) = (Vec::new(), Vec::new());
        if start > 0 && wanted.clone().all(is_known) {
            let changes = self.maps.incremental.range(wanted).take(MAX_MAPS);
            incremental.extend(changes.map(|(&epoch, bytes)| (epoch, bytes.clone())));
        } else if let Some((&epoch, bytes)) = self.maps.full.first_key_value()
            && start > 0
            && start <= epoch
            && (epoch + 1..=newest).all(is_known)
        {
            full.push((epoch, bytes.clone()));
            let changes = self.maps.incremental.range(epoch + 1..).take(MAX_MAPS - 1);
            incremental.extend(changes.map(|(&epoch, bytes)| (epoch, bytes.clone())));
        } else if let Some((&epoch, bytes)) = self.maps.full.last_key_value() {
            full.push((epoch, bytes.clone()));
        }
        let oldest = self.maps.full.first_key_value().map_or(0, |(&epoch, _)| epoch);
        OsdMaps { fsid: self.fsid, incremental, full, oldest, newest }
    }

    /// Sends a subscriber what it lacks.
    fn tell_subscriber(&mut self, id: SessionId) {
        let newest = self.epoch();
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some((start, once)) = session.wants_map.filter(|&(start, _)| start <= newest) else {
            return;
        };
        if newest == 0 {
            return;
        }
        let features = session.features;
        let maps = self.maps_since(start);
        let sent = maps.incremental.last().or(maps.full.last()).map_or(newest, |&(epoch, _)| epoch);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.wants_map = (!once).then_some((sent + 1, false));
        }
        self.send(id, maps.encode(features));
        if !once {
            self.tell_subscriber(id);
        }
    }
}
