//! Each call of the cluster's user to the part that carries it out, and each answer back.

use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::{OsdMap, PgId, PoolId};

use super::branch::ErrandKind;
use super::links::{Peer, PeerEvent};
use super::places::{Place, Traffic};
use super::{Action, Client, Phase};
use crate::Nanos;
use crate::auth::{AuthErrorKind, ClientAuth};
use crate::cluster::{Answer, Call, CallId, ListCursor, Listing, PoolInfo, SnapId};
use crate::encoding::{Addresses, DecodeError, EntityAddress, EntityKind, EntityName};
use crate::errno::Errno;
use crate::message::features::{SUPPORTED, lacking, names};
use crate::message::osd::{ObjectPosition, OsdBackoff, OsdOp, OsdOpReply, WatchNotify};
use crate::message::{Message, MessageKind};
use crate::monitors;
use crate::msgr::{ConnectionError, ConnectionEvent};
use crate::objecter::{self, Token};
use crate::op::results::GroupListing;
use crate::op::{ALL_NAMESPACES, ObjectOps, Reply};

/// The most objects in one part of a list.
const LIST_MAX: u64 = 1024;

/// A call at the objecter.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// Its answer is the answer of the call.
    Reply(CallId),
    /// The answer has no content.
    Done(CallId),
    /// A part of a list of a pool's objects.
    List(CallId),
}

/// A request to the monitors.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    /// The answer to a command, or a new snapshot.
    Call(CallId),
    /// The newest epoch, for a call that wants this map.
    NewestMap(CallId),
    /// The newest epoch, for the objecter.
    NewestEpoch,
}

/// An answer that waits for a map of the OSDs.
pub(super) struct ForEpoch {
    epoch: u32,
    call: CallId,
    answer: Answer,
    /// The call fails then (`rados_mon_op_timeout`): it was the monitor that named the epoch.
    pub(super) until: Option<Nanos>,
}

impl Client {
    pub(super) fn take_calls(&mut self, now: Nanos) -> bool {
        let mut did = false;
        while let Some((id, call)) = self.calls.take() {
            did = true;
            match self.phase {
                Phase::Closed => self.calls.answer(id, Err(Errno::ECANCELED)),
                Phase::Failed(_) => self.calls.answer(id, Err(Errno::EACCES)),
                Phase::Connecting | Phase::Serving => self.carry_out(id, call, now),
            }
        }
        did
    }

    fn token(&mut self, pending: Pending) -> Token {
        Token(self.at_objecter.insert(pending) as u64)
    }

    fn carry_out(&mut self, id: CallId, call: Call, now: Nanos) {
        match call {
            Call::Operate(operation) => {
                let token = self.token(Pending::Reply(id));
                self.objecter.submit(token, operation, now);
            }
            Call::Watch(watch, object) => {
                let token = self.token(Pending::Done(id));
                self.objecter.watch(token, watch, object, now);
            }
            Call::Unwatch(watch) => {
                let token = self.token(Pending::Done(id));
                self.objecter.unwatch(token, watch, now);
            }
            Call::Acknowledge(watch, notify_id, payload) => {
                let token = self.token(Pending::Done(id));
                self.objecter.acknowledge(token, watch, notify_id, &payload, now);
            }
            Call::Notify(object, payload, timeout_ms) => {
                let token = self.token(Pending::Done(id));
                self.objecter.notify(token, object, payload, timeout_ms, now);
            }
            Call::Command(json, input) => {
                let asked = self.monitors.command(json, input, now);
                self.asked(id, Asked::Call(id), asked);
            }
            Call::Pools => match &self.map {
                Some(map) => self.calls.answer(id, Ok(Answer::Pools(pools(map)))),
                None => self.early.push(id),
            },
            Call::NewestMap => {
                let asked = self.monitors.get_version("osdmap", now);
                self.asked(id, Asked::NewestMap(id), asked);
            }
            Call::CreateSnap(pool) => {
                let asked = self.monitors.create_snap(pool, now);
                self.asked(id, Asked::Call(id), asked);
            }
            Call::RemoveSnap(pool, snap) => {
                let asked = self.monitors.remove_snap(pool, snap, now);
                self.asked(id, Asked::Call(id), asked);
            }
            Call::List(pool, namespace, cursor) => self.list(id, pool, namespace, &cursor, now),
            Call::Identity => {
                let client = self.options.credentials.global_id();
                // Lists of blocked clients write addresses without the protocol.
                let EntityAddress { socket, nonce, .. } = self.links.own_address();
                let address = socket.map_or_else(String::new, |own| format!("{own}/{nonce}"));
                self.calls.answer(id, Ok(Answer::Identity(client, address)));
            }
        }
    }

    fn asked(&mut self, id: CallId, asked: Asked, result: Result<monitors::RequestId, Errno>) {
        match result {
            Ok(request) => {
                self.at_monitors.insert(request, asked);
            }
            Err(errno) => self.calls.answer(id, Err(errno)),
        }
    }

    /// The next part of a list: of the group to which the cursor's position belongs.
    fn list(
        &mut self,
        id: CallId,
        pool: PoolId,
        namespace: Option<String>,
        cursor: &ListCursor,
        now: Nanos,
    ) {
        let Some(known) = self.map.as_ref().and_then(|map| map.pools.get(&pool)) else {
            let errno = if self.map.is_some() { Errno::ENXIO } else { Errno::EBUSY };
            return self.calls.answer(id, Err(errno));
        };
        let group = PgId { pool, seed: known.fold(cursor.seed) };
        let namespace = namespace.unwrap_or_else(|| ALL_NAMESPACES.to_owned());
        let mut ops = ObjectOps::new();
        ops.list_group(LIST_MAX, &cursor.position);
        let token = self.token(Pending::List(id));
        self.objecter.submit_to_group(token, group, &namespace, ops, now);
    }

    pub(super) fn run_objecter(&mut self, now: Nanos) -> bool {
        let mut did = false;
        while let Some(action) = self.objecter.poll_action() {
            did = true;
            match action {
                objecter::Action::Open { osd, addresses } => self.open_osd(osd, &addresses, now),
                objecter::Action::Close(osd) => self.close_link(Peer::Osd(osd)),
                objecter::Action::Send(osd, op) => self.send_request(osd, op),
                objecter::Action::SendBackoffAck(osd, backoff) => {
                    let peer = Peer::Osd(osd);
                    match self.places.get(osd).and_then(|place| place.branch) {
                        Some(branch) => {
                            let errand = ErrandKind::AcknowledgeBackoff(osd, backoff);
                            self.places.errand(branch, errand);
                        }
                        None => self.links.send(peer, backoff.encode(self.links.features(peer))),
                    }
                }
                // The messenger's own signs of life find dead peers.
                objecter::Action::Probe(_) => {}
                objecter::Action::WantMap(epoch) => self.subscribe(u64::from(epoch)),
                objecter::Action::WantNewestEpoch => self.ask_newest_epoch(now),
            }
        }
        // Before the answers: who hears of a write that failed can ask whether it is late.
        self.calls.set_late_writes(self.objecter.late_writes());
        while let Some(event) = self.objecter.poll_event() {
            did = true;
            self.objecter_said(event);
        }
        did
    }

    fn objecter_said(&mut self, event: objecter::Event) {
        match event {
            objecter::Event::Done(token, result) => self.objecter_done(token, result),
            objecter::Event::Watching(token, result) => {
                self.objecter_done(token, result.map(|()| Reply::default()));
            }
            objecter::Event::Watch(watch, event) => self.calls.watch_event(watch, event),
            objecter::Event::Notified(token, result) => {
                if let Some(Pending::Done(id)) = self.at_objecter.try_remove(token.0 as usize) {
                    self.calls.answer(id, result.map(Answer::Notified));
                }
            }
        }
    }

    /// Asks the monitors for maps behind the newest one, from this epoch on.
    pub(super) fn subscribe(&mut self, epoch: u64) {
        let next = self.map.as_ref().map_or(0, |map| u64::from(map.epoch) + 1);
        // Without a map, changes are of no use: the client takes the newest map in full.
        let from = if next == 0 { 0 } else { epoch.max(next) };
        self.monitors.subscribe_osdmap(from, false);
    }

    fn ask_newest_epoch(&mut self, now: Nanos) {
        match self.monitors.get_version("osdmap", now) {
            Ok(request) => {
                self.at_monitors.insert(request, Asked::NewestEpoch);
            }
            Err(_) => self.objecter.newest_epoch_failed(),
        }
    }

    fn objecter_done(&mut self, token: Token, result: Result<Reply, Errno>) {
        match self.at_objecter.try_remove(token.0 as usize) {
            Some(Pending::Reply(id)) => self.calls.answer(id, result.map(Answer::Reply)),
            Some(Pending::Done(id)) => {
                let done = result.and_then(|reply| Errno::check(reply.result));
                self.calls.answer(id, done.map(|_| Answer::Done));
            }
            Some(Pending::List(id)) => {
                self.calls.answer(id, result.and_then(listing).map(Answer::Listing));
            }
            None => {}
        }
    }

    fn send_request(&mut self, osd: OsdId, op: OsdOp) {
        match self.places.count(osd, op.ops.data_bytes() as u64) {
            Some(branch) => self.places.errand(branch, ErrandKind::Send(osd, op)),
            None => {
                let peer = Peer::Osd(osd);
                self.links.send(peer, op.encode(self.links.features(peer)));
            }
        }
    }

    fn open_osd(&mut self, osd: OsdId, addresses: &Addresses, now: Nanos) {
        let modes = &self.options.osd_modes;
        let auth = match self.options.credentials.service_auth(EntityKind::Osd, modes) {
            Ok(auth) => auth,
            Err(error) => {
                tracing::debug!("osd.{}: {error}", osd.0);
                self.tickets_at = now;
                return self.objecter.session_closed(osd, now);
            }
        };
        self.close_link(Peer::Osd(osd));
        if addresses.msgr2().and_then(|address| address.socket).is_none() {
            tracing::warn!("osd.{} has no address for messenger 2: {addresses}", osd.0);
            return self.objecter.session_closed(osd, now);
        }
        self.open_link(osd, addresses, auth, now);
    }

    /// Opens a link to an OSD on the core where it belongs.
    fn open_link(
        &mut self,
        osd: OsdId,
        addresses: &Addresses,
        auth: Box<dyn ClientAuth + Send>,
        now: Nanos,
    ) {
        let shown = self.options.credentials.ticket_blob(EntityKind::Osd);
        let opening = self.links.opening(osd, self.own_name(), addresses, auth);
        let (branch, session) = (self.places.branch_for(osd), opening.global_seq);
        let place = Place { branch, session, shown, traffic: Traffic::default() };
        self.places.insert(osd, place);
        if let Some(branch) = branch {
            return self.places.errand(branch, ErrandKind::Open(Box::new(opening)));
        }
        match self.links.open_osd(opening, now) {
            Some((link, socket)) => self.actions.push_back(Action::Connect(link, socket)),
            None => {
                tracing::warn!("osd.{}: there are too many connections", osd.0);
                self.places.remove(osd);
                self.objecter.session_closed(osd, now);
            }
        }
    }

    fn own_name(&self) -> EntityName {
        let number = match self.options.credentials.global_id() {
            0 => -1,
            id => i64::try_from(id).unwrap_or(-1),
        };
        EntityName { kind: EntityKind::Client, number }
    }

    fn close_link(&mut self, peer: Peer) {
        if let Peer::Osd(osd) = peer
            && let Some(Place { branch: Some(branch), .. }) = self.places.remove(osd)
        {
            return self.places.errand(branch, ErrandKind::Close(osd));
        }
        if let Some(link) = self.links.close(peer) {
            self.actions.push_back(Action::Close(link));
        }
    }

    pub(super) fn run_monitors(&mut self, now: Nanos) -> bool {
        let mut did = false;
        while let Some(action) = self.monitors.poll_action() {
            did = true;
            match action {
                monitors::Action::Open { attempt, peer, addresses } => {
                    let auth = self.options.credentials.monitor_auth(&self.options.monitor_modes);
                    let names = (peer, self.own_name());
                    match self.links.open_monitor(attempt, names, &addresses, auth, now) {
                        Some((link, socket)) => {
                            self.actions.push_back(Action::Connect(link, socket));
                        }
                        None => self.monitors.closed(attempt, "too many links", false, now),
                    }
                }
                monitors::Action::Close(session) => self.close_link(Peer::Monitor(session)),
                monitors::Action::Send(session, message) => {
                    self.links.send(Peer::Monitor(session), message);
                }
            }
        }
        while let Some(event) = self.monitors.poll_event() {
            did = true;
            self.monitors_said(event, now);
        }
        did
    }

    fn monitors_said(&mut self, event: monitors::Event, now: Nanos) {
        use monitors::Event;
        match event {
            Event::Session(_) => {
                self.objecter.set_identity(self.options.credentials.global_id(), SUPPORTED);
            }
            Event::SessionLost(_, why) => {
                tracing::info!("the session with the monitor is lost: {why}");
                self.options.credentials.abandon_renewal();
            }
            Event::OsdMaps(message) => {
                if let Err(error) = self.maps_came(&message, now) {
                    self.fail(format!("a map of the OSDs cannot be used: {error}"));
                }
            }
            Event::AuthReply(reply) => self.tickets_came(reply, now),
            Event::Trouble(trouble) => self.trouble(trouble),
            Event::CommandReply { id, reply } => {
                self.monitor_answered(id, Ok(Answer::Command(reply)));
            }
            Event::Version { id, newest, .. } => self.newest_version(id, newest, now),
            Event::PoolOpReply { id, result, osdmap_epoch, snap } => {
                self.pool_changed(id, (result, osdmap_epoch), snap, now);
            }
            Event::Failed { id, errno } => self.monitor_answered(id, Err(errno)),
            Event::MonMap(_)
            | Event::Config(_)
            | Event::StatFs { .. }
            | Event::PoolStats { .. } => {}
        }
    }

    fn monitor_answered(&mut self, id: monitors::RequestId, answer: Result<Answer, Errno>) {
        match self.at_monitors.remove(&id) {
            Some(Asked::Call(call) | Asked::NewestMap(call)) => self.calls.answer(call, answer),
            Some(Asked::NewestEpoch) => self.objecter.newest_epoch_failed(),
            None => {}
        }
    }

    fn newest_version(&mut self, id: monitors::RequestId, newest: u64, now: Nanos) {
        let newest = u32::try_from(newest).unwrap_or(u32::MAX);
        match self.at_monitors.remove(&id) {
            Some(Asked::NewestEpoch) => self.objecter.newest_epoch(newest, now),
            Some(Asked::NewestMap(call) | Asked::Call(call)) => {
                self.answer_at_epoch(newest, call, Answer::Done, now);
            }
            None => {}
        }
    }

    /// A monitor answered a change of a pool. The map with the change has to come first, so that
    /// later requests are not refused by an older one.
    fn pool_changed(
        &mut self,
        id: monitors::RequestId,
        (result, epoch): (i32, u32),
        snap: Option<SnapId>,
        now: Nanos,
    ) {
        let Some(Asked::Call(call)) = self.at_monitors.remove(&id) else { return };
        match Errno::check(result) {
            Ok(_) => {
                let answer = snap.map_or(Answer::Done, Answer::Snap);
                self.answer_at_epoch(epoch, call, answer, now);
            }
            Err(errno) => self.calls.answer(call, Err(errno)),
        }
    }

    /// Answers once the map has this epoch.
    fn answer_at_epoch(&mut self, epoch: u32, call: CallId, answer: Answer, now: Nanos) {
        let present = self.map.as_ref().map_or(0, |map| map.epoch);
        if present >= epoch {
            return self.calls.answer(call, Ok(answer));
        }
        let limit = self.options.monitor_timeout;
        let until = (limit.0 > 0).then(|| now.plus(limit));
        self.for_epoch.push(ForEpoch { epoch, call, answer, until });
        self.subscribe(0);
    }

    /// Fails calls whose map did not come in time. True if there were any.
    pub(super) fn end_waits_for_epoch(&mut self, now: Nanos) -> bool {
        let is_late = |waiting: &mut ForEpoch| waiting.until.is_some_and(|until| until <= now);
        let late: Vec<_> = self.for_epoch.extract_if(.., is_late).collect();
        for waiting in &late {
            self.calls.answer(waiting.call, Err(Errno::ETIMEDOUT));
        }
        !late.is_empty()
    }

    /// The map has a new epoch.
    pub(super) fn answer_epoch(&mut self, epoch: u32) {
        let is_ready = |waiting: &mut ForEpoch| waiting.epoch <= epoch;
        for ForEpoch { call, answer, .. } in self.for_epoch.extract_if(.., is_ready) {
            self.calls.answer(call, Ok(answer));
        }
        if !self.for_epoch.is_empty() {
            // This map ended the subscription for one map.
            self.subscribe(0);
        }
        if let Some(map) = &self.map {
            for call in self.early.drain(..) {
                self.calls.answer(call, Ok(Answer::Pools(pools(map))));
            }
        }
    }

    pub(super) fn hear_links(&mut self, now: Nanos) -> bool {
        let mut did = false;
        while let Some(PeerEvent { peer, event }) = self.links.poll_event() {
            did = true;
            // What one event causes comes before the next event: it may close that one's link.
            self.hear(peer, event, now);
            self.run_objecter(now);
        }
        did
    }

    pub(super) fn hear(&mut self, peer: Peer, event: ConnectionEvent, now: Nanos) {
        match event {
            ConnectionEvent::Ready { peer: name, features, .. } if lacking(features) != 0 => {
                let text = format!(
                    "{name} is older than Ceph 14, the oldest that this client works with: it \
                     lacks the features {}",
                    names(lacking(features)),
                );
                self.link_ended(peer, &ConnectionError::Peer(text), now);
            }
            ConnectionEvent::Ready { seen_as, features, .. } => {
                self.links.ready(peer, features);
                if let Some(seen) = seen_as.and_then(|seen| seen.socket) {
                    self.links.learn_address(seen.ip());
                }
                match peer {
                    // Of several monitors that let the client in, only this one's tickets count.
                    Peer::Monitor(session) => {
                        if self.monitors.ready(session, now) {
                            self.links.commit_auth(peer);
                            self.tickets_at = now;
                        }
                    }
                    Peer::Osd(osd) => self.objecter.session_ready(osd, now),
                }
            }
            ConnectionEvent::Message(message) => match peer {
                Peer::Monitor(session) => self.monitors.received(session, message, now),
                Peer::Osd(osd) => self.osd_said(osd, &message, now),
            },
            ConnectionEvent::Closed(error) => self.link_ended(peer, &error, now),
        }
    }

    fn link_ended(&mut self, peer: Peer, error: &ConnectionError, now: Nanos) {
        let shown = match peer {
            Peer::Osd(osd) => self.places.get(osd).and_then(|place| place.shown.clone()),
            Peer::Monitor(_) => None,
        };
        self.close_link(peer);
        let auth_error = match error {
            ConnectionError::Auth(error) => Some(error.kind),
            _ => None,
        };
        match peer {
            Peer::Monitor(session) => {
                let refused = auth_error == Some(AuthErrorKind::Refused);
                self.monitors.closed(session, &error.to_string(), refused, now);
            }
            Peer::Osd(osd) => {
                tracing::info!("the connection to osd.{} is lost: {error}", osd.0);
                if auth_error == Some(AuthErrorKind::OldTicket)
                    && let Some(shown) = shown
                {
                    self.options.credentials.ticket_refused(EntityKind::Osd, &shown);
                }
                if auth_error.is_some() {
                    // Get another ticket.
                    self.tickets_at = now;
                }
                self.objecter.session_closed(osd, now);
            }
        }
    }

    fn osd_said(&mut self, osd: OsdId, message: &Message, now: Nanos) {
        const REPLY: u16 = MessageKind::OsdOpReply as u16;
        const BACKOFF: u16 = MessageKind::OsdBackoff as u16;
        const NOTIFY: u16 = MessageKind::WatchNotify as u16;
        const MAPS: u16 = MessageKind::OsdMap as u16;
        let result = match message.kind {
            REPLY => {
                self.osd_replied(osd, message.tid, OsdOpReply::decode(message), now);
                Ok(())
            }
            BACKOFF => OsdBackoff::decode(message)
                .map(|backoff| self.objecter.backoff(osd, backoff, now))
                .map_err(|error| error.to_string()),
            NOTIFY => WatchNotify::decode(message)
                .map(|notify| self.objecter.notified(osd, notify, now))
                .map_err(|error| error.to_string()),
            MAPS => self.maps_came(message, now),
            other => {
                tracing::debug!("osd.{} sent a message of kind {other}", osd.0);
                Ok(())
            }
        };
        if let Err(error) = result {
            tracing::warn!("osd.{} breaks the protocol: {error}", osd.0);
            self.close_link(Peer::Osd(osd));
            self.objecter.session_closed(osd, now);
        }
    }

    /// An OSD answered the request of this number.
    pub(super) fn osd_replied(
        &mut self,
        osd: OsdId,
        tid: u64,
        reply: Result<OsdOpReply, DecodeError>,
        now: Nanos,
    ) {
        match reply {
            Ok(reply) => {
                let bytes = reply.reply.ops.iter().map(|op| op.data.len() as u64).sum();
                self.places.count_answer(osd, bytes);
                self.objecter.reply(osd, tid, reply, now);
            }
            Err(error) => {
                tracing::warn!("an answer of osd.{} cannot be read: {error}", osd.0);
                self.objecter.undecodable(osd, tid, now);
            }
        }
    }

    /// Fails all calls that are not answered, and ends all watches.
    pub(super) fn fail_calls(&mut self, errno: Errno) {
        self.objecter.shut_out(errno);
        self.calls.set_late_writes(self.objecter.late_writes());
        while let Some(event) = self.objecter.poll_event() {
            self.objecter_said(event);
        }
        while self.objecter.poll_action().is_some() {}
        while self.monitors.poll_action().is_some() {}
        for (_, pending) in std::mem::take(&mut self.at_objecter) {
            let (Pending::Reply(id) | Pending::Done(id) | Pending::List(id)) = pending;
            self.calls.answer(id, Err(errno));
        }
        for asked in std::mem::take(&mut self.at_monitors).into_values() {
            if let Asked::Call(id) | Asked::NewestMap(id) = asked {
                self.calls.answer(id, Err(errno));
            }
        }
        for waiting in std::mem::take(&mut self.for_epoch) {
            self.calls.answer(waiting.call, Err(errno));
        }
        for id in std::mem::take(&mut self.early) {
            self.calls.answer(id, Err(errno));
        }
        while let Some((id, _)) = self.calls.take() {
            self.calls.answer(id, Err(errno));
        }
    }
}

/// The pools of a map.
fn pools(map: &OsdMap) -> Vec<PoolInfo> {
    map.pools
        .iter()
        .map(|(&id, pool)| PoolInfo {
            id,
            name: pool.name.clone(),
            is_erasure_coded: pool.is_erasure_coded(),
            takes_overwrites: pool.takes_overwrites(),
            alignment_bytes: u64::from(pool.alignment_bytes()),
            is_full: pool.is_full(),
            pg_num: pool.pg_num,
            applications: pool.applications.keys().cloned().collect(),
        })
        .collect()
}

/// A part of a list of objects, from the answer of an OSD.
fn listing(reply: Reply) -> Result<Listing, Errno> {
    Errno::check(reply.result)?;
    let data = reply.ops.into_iter().next().map(|op| op.data).unwrap_or_default();
    let part = GroupListing::decode(&data).map_err(|error| {
        tracing::warn!("a list of objects cannot be read: {error}");
        Errno::EIO
    })?;
    let next = (!is_end(&part.next))
        .then_some(ListCursor { seed: part.next.hash, position: part.next_bytes });
    Ok(Listing { objects: part.objects, next })
}

fn is_end(position: &ObjectPosition) -> bool {
    position.is_max
}
