//! The client of the monitors: one session with one of them, whichever answers, and all that a
//! client asks through it. A state machine without I/O.
//!
//! **Sessions.** The owner opens, closes and feeds sessions as [`Action`]s say. A session is first
//! an attempt; several are opened at a time, and the first that is ready becomes *the* session. The
//! others are closed. So at most one session is used at any time, and messages of any other are
//! ignored. Which monitor is tried when is told in the module `hunt`.
//!
//! ```text
//!              round begins             first ready             MonMap comes
//!   searching --------------> attempts -------------> session --------------> proven
//!       ^    <--------------            <------------         <-------------
//!       |      all failed,      closed, or no MonMap in time    closed, no answer, removed
//!       |      wait for interval
//! ```
//!
//! A session *proves* itself by the list of monitors: the first message is a subscription from the
//! epoch that the client has already (not the one behind), so each monitor that serves clients
//! answers at once. A monitor that hangs or is out of the quorum does not, and is left. Silence on
//! the connection is the messenger's matter: it ends the session.
//!
//! **Requests** are sent on each new session again until they are answered, as Ceph's client does:
//! commands and changes of pools too, so a command may be executed twice if the session broke
//! between execution and answer. An answer is given once: a second answer to the same request finds
//! no request. Requests that name the cluster wait until it is known.
//!
//! **Subscriptions.** The list of monitors is always subscribed to. The map of OSDs is subscribed
//! to as the owner says, and again on each new session, from behind the newest epoch that the owner
//! has.
//!
//! **Authentication.** Several monitors may let the client in, but only what the monitor of *the*
//! session gave may count: [`Monitors::ready`] says which one that is. A session over which tickets
//! cannot be renewed is left ([`Monitors::leave`]), since the next one brings new tickets.
//!
//! A monitor that refuses the key is noted, and the others are tried. Once all
//! monitors have refused, with no session between, the client is refused for good: requests fail,
//! and nothing more is tried.
//!
//! **Bounds.** [`REQUESTS_MAX`] requests wait at most, [`IN_FLIGHT`] of them sent; events and
//! actions grow only by what the owner feeds in between two polls.

mod hunt;
mod requests;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::Nanos;
use crate::cluster::{CommandReply, SnapId};
use crate::encoding::{Addresses, DecodeError, EntityKind, EntityName};
use crate::errno::Errno;
use crate::message::monitor::{
    Auth, AuthReply, CommandAck, Config, Fsid, GetPoolStatsReply, GetVersionReply, METHOD_CEPHX,
    MonMap, MonMapMessage, PoolOpKind, PoolOpReply, StatFsReply, Subscribe, Subscription,
    WHAT_MONMAP, WHAT_OSDMAP,
};
use crate::message::{Message, MessageKind};
use hunt::{Hunt, Known, same_place};
use requests::{Ask, AskKind, Requests};
pub use requests::{IN_FLIGHT, REQUESTS_MAX, RequestId};
pub use types::{Action, Event, Lost, MonitorSession, Options, Trouble};

/// The session that is used.
#[derive(Clone, Debug)]
struct Session {
    id: MonitorSession,
    addresses: Addresses,
    since: Nanos,
    /// Left then, unless the list of monitors comes; `None` once it has come.
    prove_by: Option<Nanos>,
}

/// The time without a session.
#[derive(Clone, Debug)]
struct Outage {
    since: Nanos,
    is_told: bool,
    last: String,
}

/// The client of the monitors.
#[derive(Clone, Debug)]
pub struct Monitors {
    options: Options,
    rng: ChaCha8Rng,
    hunt: Hunt,
    last_session: u32,
    session: Option<Session>,
    outage: Outage,
    /// The client is refused, for good.
    is_refused: bool,
    fsid: Option<Fsid>,
    map: Option<MonMap>,
    osdmap: Option<Subscription>,
    /// The newest epoch of the map of OSDs that the owner has; 0 for none.
    osdmap_epoch: u64,
    requests: Requests,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
}

impl Monitors {
    /// A client that knows these monitors, one element each. Those without an address for messenger
    /// 2 are left out. The search begins with the first [`Self::tick`].
    #[must_use]
    pub fn new(initial: Vec<Addresses>, options: Options, now: Nanos) -> Self {
        let mut known: Vec<Known> = Vec::new();
        for addresses in initial {
            // `same_place` is false for what has no address for messenger 2.
            let is_new = !known.iter().any(|known| same_place(&known.addresses, &addresses));
            if is_new && addresses.msgr2().is_some() {
                known.push(Known::new(addresses, 0));
            }
        }
        Self {
            rng: ChaCha8Rng::seed_from_u64(options.seed),
            hunt: Hunt::new(known, &options, now),
            last_session: 0,
            session: None,
            outage: Outage { since: now, is_told: false, last: "none was tried".to_owned() },
            is_refused: false,
            fsid: options.fsid,
            map: None,
            osdmap: None,
            osdmap_epoch: 0,
            requests: Requests::default(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            options,
        }
    }

    /// The session that is used.
    #[must_use]
    pub fn session(&self) -> Option<MonitorSession> {
        self.session.as_ref().map(|session| session.id)
    }

    /// The newest list of monitors.
    #[must_use]
    pub fn map(&self) -> Option<&MonMap> {
        self.map.as_ref()
    }

    /// The cluster, once a monitor has told it.
    #[must_use]
    pub fn fsid(&self) -> Option<Fsid> {
        self.fsid
    }

    /// The last reason for which a monitor could not be used.
    #[must_use]
    pub fn last_failure(&self) -> &str {
        &self.outage.last
    }

    /// Requests that wait for an answer.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.requests.len()
    }

    /// The next thing to do.
    #[must_use]
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing that happened.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Self::tick`] has to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        let prove_by = self.session.as_ref().and_then(|session| session.prove_by);
        let is_searching = self.session.is_none() && !self.is_refused;
        let hunt = is_searching.then(|| self.hunt.deadline());
        let may_tell = is_searching && !self.outage.is_told;
        let trouble = may_tell.then(|| self.outage.since.plus(self.options.unreachable_after));
        let (answer_by, request) = (self.requests.answer_by(), self.requests.deadline());
        [prove_by, hunt, trouble, answer_by, request].into_iter().flatten().min()
    }

    // Requests.

    /// Subscribes to the map of OSDs, instead of what was subscribed to before: from this epoch (0
    /// for the newest map in full), for one answer or for all to come.
    pub fn subscribe_osdmap(&mut self, start_epoch: u64, continuous: bool) {
        let subscription = Subscription { start: start_epoch, once: !continuous };
        if self.osdmap == Some(subscription) {
            return;
        }
        self.osdmap = Some(subscription);
        self.have_osdmap(self.osdmap_epoch);
        let what = self.osdmap.map(|osdmap| (WHAT_OSDMAP.to_owned(), osdmap));
        if let (Some(session), Some(what)) = (self.session(), what) {
            self.send_subscribe(session, BTreeMap::from([what]));
        }
    }

    /// The owner has the map of OSDs up to this epoch.
    pub fn have_osdmap(&mut self, epoch: u64) {
        self.osdmap_epoch = self.osdmap_epoch.max(epoch);
        let newest = self.osdmap_epoch;
        if let Some(osdmap) = self.osdmap.as_mut().filter(|osdmap| osdmap.start <= newest) {
            if newest > 0 && osdmap.once {
                self.osdmap = None;
            } else if newest > 0 {
                osdmap.start = newest + 1;
            }
        }
    }

    /// Asks for the newest version of a map, e.g. `osdmap`. Answer: [`Event::Version`].
    ///
    /// # Errors
    /// `EBUSY`: too many requests wait. `EACCES`: the monitors refuse the client.
    pub fn get_version(&mut self, what: &str, now: Nanos) -> Result<RequestId, Errno> {
        self.ask(Ask::Version(what.to_owned()), now)
    }

    /// A command, as JSON with a `prefix`, with input. Answer: [`Event::CommandReply`].
    ///
    /// # Errors
    /// As [`Self::get_version`].
    pub fn command(&mut self, json: String, input: Bytes, now: Nanos) -> Result<RequestId, Errno> {
        self.ask(Ask::Command(json, input), now)
    }

    /// A new snapshot number of a pool. Answer: [`Event::PoolOpReply`].
    ///
    /// # Errors
    /// As [`Self::get_version`].
    pub fn create_snap(&mut self, pool: PoolId, now: Nanos) -> Result<RequestId, Errno> {
        self.ask(Ask::PoolOp(pool, PoolOpKind::CreateSnap, SnapId(0)), now)
    }

    /// Removes a snapshot number of a pool. Answer: [`Event::PoolOpReply`].
    ///
    /// # Errors
    /// As [`Self::get_version`].
    pub fn remove_snap(
        &mut self,
        pool: PoolId,
        snap: SnapId,
        now: Nanos,
    ) -> Result<RequestId, Errno> {
        self.ask(Ask::PoolOp(pool, PoolOpKind::RemoveSnap, snap), now)
    }

    /// Space used, of the cluster or of a pool. Answer: [`Event::StatFs`].
    ///
    /// # Errors
    /// As [`Self::get_version`].
    pub fn statfs(&mut self, pool: Option<PoolId>, now: Nanos) -> Result<RequestId, Errno> {
        self.ask(Ask::StatFs(pool), now)
    }

    /// Statistics of pools by name. Answer: [`Event::PoolStats`].
    ///
    /// # Errors
    /// As [`Self::get_version`].
    pub fn pool_stats(&mut self, pools: Vec<String>, now: Nanos) -> Result<RequestId, Errno> {
        self.ask(Ask::PoolStats(pools), now)
    }

    /// Gives a request up. No event of it comes any more. False if it is not known.
    pub fn cancel(&mut self, id: RequestId, now: Nanos) -> bool {
        let is_known = self.requests.remove(id);
        self.drive(now);
        is_known
    }

    /// Sends the bytes of cephx to renew tickets. Answer: [`Event::AuthReply`], if the session
    /// lives so long: the bytes are of no use on another one. So on [`Event::SessionLost`] the
    /// owner forgets the renewal; the next session's handshake gives new tickets anyway.
    ///
    /// False if there is no session.
    pub fn send_auth(&mut self, payload: Bytes) -> bool {
        let Some(session) = self.session() else { return false };
        let monmap_epoch = self.map.as_ref().map_or(0, |map| map.epoch);
        let auth = Auth { method: METHOD_CEPHX, payload, monmap_epoch };
        self.actions.push_back(Action::Send(session, auth.encode()));
        true
    }

    fn ask(&mut self, ask: Ask, now: Nanos) -> Result<RequestId, Errno> {
        if self.is_refused {
            return Err(Errno::EACCES);
        }
        let id = self.requests.add(ask, &self.options, now)?;
        self.drive(now);
        Ok(id)
    }

    // Events of sessions.

    /// The handshake of an attempt is over: messages can flow. True if this becomes the session
    /// that is used; then what the monitor gave in authentication counts.
    pub fn ready(&mut self, session: MonitorSession, now: Nanos) -> bool {
        let won = self.hunt.won(session);
        let is_used = won.is_some();
        if let Some((addresses, others)) = won {
            for other in others {
                self.close(other);
            }
            self.session = Some(Session {
                id: session,
                addresses,
                since: now,
                prove_by: Some(now.plus(self.options.subscription_timeout)),
            });
            self.events.push_back(Event::Session(session));
            let epoch = self.map.as_ref().map_or(0, |map| map.epoch);
            let monmap = Subscription { start: epoch.into(), once: false };
            let mut what = BTreeMap::from([(WHAT_MONMAP.to_owned(), monmap)]);
            if let Some(osdmap) = self.osdmap {
                what.insert(WHAT_OSDMAP.to_owned(), osdmap);
            }
            self.send_subscribe(session, what);
        }
        self.drive(now);
        is_used
    }

    /// Ends the session that is used, for this reason, and looks for another one. Without a session
    /// nothing changes.
    pub fn leave(&mut self, lost: Lost, now: Nanos) {
        if let Some(session) = self.session() {
            self.close(session);
            self.lose(lost, now);
        }
        self.drive(now);
    }

    /// A session or an attempt is over. `auth_failed`: the monitor refused the client's key.
    pub fn closed(&mut self, session: MonitorSession, why: &str, auth_failed: bool, now: Nanos) {
        self.actions.retain(|action| action.session() != session);
        if let Some(attempt) = self.hunt.attempts.remove(&session) {
            self.outage.last = short(&named(&attempt.addresses, why));
            self.failed(&attempt.addresses, why, auth_failed);
        } else if let Some(addresses) = self.in_use(session) {
            self.failed(&addresses, why, auth_failed);
            self.lose(Lost::Closed(short(why)), now);
        }
        self.drive(now);
    }

    /// A message came on a session.
    pub fn received(&mut self, session: MonitorSession, message: Message, now: Nanos) {
        if self.session() == Some(session) {
            let lost = match self.handle(message, now) {
                Ok(lost) => lost,
                Err(error) => Some(Lost::Invalid(error.to_string())),
            };
            if let Some(lost) = lost {
                self.close(session);
                self.lose(lost, now);
            }
        }
        self.drive(now);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Nanos) {
        self.drive(now);
    }

    fn in_use(&self, session: MonitorSession) -> Option<Addresses> {
        let used = self.session.as_ref().filter(|used| used.id == session)?;
        Some(used.addresses.clone())
    }

    /// A monitor failed. If that was a refusal, and the last one, all is over.
    fn failed(&mut self, addresses: &Addresses, why: &str, auth_failed: bool) {
        if !auth_failed {
            return;
        }
        self.hunt.refused(addresses, &short(why));
        if let Some(why) = self.hunt.all_refuse() {
            self.is_refused = true;
            for attempt in std::mem::take(&mut self.hunt.attempts).into_keys() {
                self.close(attempt);
            }
            for id in self.requests.clear() {
                self.events.push_back(Event::Failed { id, errno: Errno::EACCES });
            }
            self.events.push_back(Event::Trouble(Trouble::Refused(why)));
        }
    }

    /// The session is over; the owner knows or is told by an action.
    fn lose(&mut self, lost: Lost, now: Nanos) {
        let Some(session) = self.session.take() else { return };
        self.requests.unsend();
        self.hunt.suspect(&session.addresses);
        if session.prove_by.is_none() {
            self.hunt.relax(now.since(session.since), &self.options);
            self.outage.since = now;
            self.outage.is_told = false;
        }
        self.outage.last = short(&lost.to_string());
        self.hunt.begin_round_after_session(now);
        self.events.push_back(Event::SessionLost(session.id, lost));
    }

    /// Asks the owner to close a session. What was to be done for it is dropped.
    fn close(&mut self, session: MonitorSession) {
        let is_opened = !self
            .actions
            .iter()
            .any(|action| matches!(action, Action::Open { attempt, .. } if *attempt == session));
        self.actions.retain(|action| action.session() != session);
        if is_opened {
            self.actions.push_back(Action::Close(session));
        }
    }

    fn send_subscribe(&mut self, session: MonitorSession, what: BTreeMap<String, Subscription>) {
        let subscribe = Subscribe { what, hostname: self.options.hostname.clone() };
        self.actions.push_back(Action::Send(session, subscribe.encode()));
    }

    /// Handles a message of the session. Gives the reason to leave it, if there is one.
    fn handle(&mut self, message: Message, now: Nanos) -> Result<Option<Lost>, DecodeError> {
        let kind = message.kind;
        let is = |known: MessageKind| kind == known as u16;
        if is(MessageKind::MonMap) {
            return Ok(self.handle_map(MonMapMessage::decode(&message)?.map, now));
        }
        let event = if is(MessageKind::OsdMap) {
            Event::OsdMaps(message)
        } else if is(MessageKind::Config) {
            Event::Config(Config::decode(&message)?.options)
        } else if is(MessageKind::AuthReply) {
            Event::AuthReply(AuthReply::decode(&message)?)
        } else {
            return self.handle_answer(&message).map(|()| None);
        };
        self.events.push_back(event);
        Ok(None)
    }

    /// Handles an answer to a request. Other messages are ignored.
    fn handle_answer(&mut self, message: &Message) -> Result<(), DecodeError> {
        let is = |known: MessageKind| message.kind == known as u16;
        let mut id = RequestId(message.tid);
        let (kind, event) = if is(MessageKind::MonCommandAck) {
            let CommandAck { result, status, output, .. } = CommandAck::decode(message)?;
            let reply = CommandReply { result, status, output };
            (AskKind::Command, Event::CommandReply { id, reply })
        } else if is(MessageKind::MonGetVersionReply) {
            let reply = GetVersionReply::decode(message)?;
            id = RequestId(reply.id);
            let (newest, oldest) = (reply.newest, reply.oldest);
            (AskKind::Version, Event::Version { id, newest, oldest })
        } else if is(MessageKind::PoolOpReply) {
            let reply = PoolOpReply::decode(message)?;
            let (result, osdmap_epoch, snap) = (reply.result, reply.osdmap_epoch, reply.snap());
            (AskKind::PoolOp, Event::PoolOpReply { id, result, osdmap_epoch, snap })
        } else if is(MessageKind::StatFsReply) {
            let reply = StatFsReply::decode(message)?;
            (AskKind::StatFs, Event::StatFs { id, reply })
        } else if is(MessageKind::GetPoolStatsReply) {
            let pools = GetPoolStatsReply::decode(message)?.pools;
            (AskKind::PoolStats, Event::PoolStats { id, pools })
        } else {
            return Ok(());
        };
        if self.requests.answer(id, kind) {
            self.events.push_back(event);
        }
        Ok(())
    }

    /// A list of monitors came: the session is proven.
    fn handle_map(&mut self, map: MonMap, now: Nanos) -> Option<Lost> {
        if self.fsid.is_some_and(|fsid| fsid != map.fsid) {
            return Some(Lost::OtherCluster);
        }
        self.fsid = Some(map.fsid);
        let session = self.session.as_mut()?;
        if session.prove_by.take().is_some() {
            self.hunt.succeeded();
            self.outage.is_told = false;
        }
        self.outage.since = now;
        if self.map.as_ref().is_some_and(|known| known.epoch >= map.epoch) {
            return None;
        }
        let place = session.addresses.clone();
        let has =
            |map: &MonMap| map.monitors.values().any(|info| same_place(&info.addresses, &place));
        // A configured address may lead to a monitor by another way than its own address. It is
        // removed only if a list had it before.
        let is_removed = self.map.as_ref().is_some_and(has) && !has(&map);
        let known = types::known_of(&map);
        if !known.is_empty() {
            self.hunt.replace(known);
        }
        self.events.push_back(Event::MonMap(map.clone()));
        self.map = Some(map);
        is_removed.then_some(Lost::Removed)
    }

    /// Does all that can be done now.
    fn drive(&mut self, now: Nanos) {
        while let Some(id) = self.requests.expire(now) {
            self.events.push_back(Event::Failed { id, errno: Errno::ETIMEDOUT });
        }
        if self.is_refused {
            return;
        }
        self.leave_if_silent(now);
        if self.session.is_none() {
            self.search(now);
        }
        let (Some(session), Some(fsid)) = (self.session(), self.fsid) else { return };
        let (options, epoch) = (&self.options, self.osdmap_epoch);
        while let Some(message) = self.requests.next(fsid, epoch, options, now) {
            self.actions.push_back(Action::Send(session, message));
        }
    }

    fn leave_if_silent(&mut self, now: Nanos) {
        let Some(session) = &self.session else { return };
        let lost = if session.prove_by.is_some_and(|by| by <= now) {
            Lost::NoSubscription
        } else if self.requests.answer_by().is_some_and(|by| by <= now) {
            Lost::NoAnswer
        } else {
            return;
        };
        self.close(session.id);
        self.lose(lost, now);
    }

    fn search(&mut self, now: Nanos) {
        let late: Vec<MonitorSession> = self
            .hunt
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.until <= now)
            .map(|(&session, _)| session)
            .collect();
        for session in late {
            if let Some(attempt) = self.hunt.attempts.remove(&session) {
                self.outage.last = named(&attempt.addresses, "no answer in time");
            }
            self.close(session);
        }
        self.hunt.begin_round(&self.options, now);
        loop {
            let attempt = MonitorSession(self.last_session.wrapping_add(1));
            let chosen = self.hunt.choose(attempt, &self.options, &mut self.rng, now);
            let Some(addresses) = chosen else { break };
            self.last_session = attempt.0;
            let peer = EntityName { kind: EntityKind::Monitor, number: -1 };
            self.actions.push_back(Action::Open { attempt, peer, addresses });
        }
        let outage = &mut self.outage;
        if !outage.is_told && now >= outage.since.plus(self.options.unreachable_after) {
            outage.is_told = true;
            let (since, last) = (outage.since, outage.last.clone());
            self.events.push_back(Event::Trouble(Trouble::Unreachable { since, last }));
        }
    }
}

/// Reasons are kept this long at most.
const REASON_MAX_CHARS: usize = 400;

/// A failure with the address of its monitor.
fn named(addresses: &Addresses, why: &str) -> String {
    match addresses.msgr2().and_then(|address| address.socket) {
        Some(socket) => format!("monitor {socket}: {why}"),
        None => why.to_owned(),
    }
}

fn short(why: &str) -> String {
    why.chars().take(REASON_MAX_CHARS).collect()
}
