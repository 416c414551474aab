//! An OSD: requests on objects, backoffs, and notifications.

use bytes::Bytes;
use fieldstone_crush::osdmap::{OsdMap, PgId, PoolKind};
use fieldstone_crush::{ItemId, OsdId};
use fieldstone_rados::cluster::{Operation, OperationFlags, SenderId, Watcher};
use fieldstone_rados::encoding::Encoder;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::message::osd::{
    BackoffStep, NotifyKind, OsdBackoff, OsdOp, OsdOpReply, ShardedPg, WatchNotify, flag,
};
use fieldstone_rados::message::{Message, MessageKind};
use fieldstone_rados::op::{OpResult, Reply};
use smallvec::SmallVec;

use super::plain::DoneWrite;
use super::{MAX_ANSWERS, SessionId, WireCluster, list};
use crate::objects::may_write;
use crate::watches::Signal;

/// The number of the operation that lists a placement group.
const LIST_GROUP: u16 = 0x1505;

fn lists_group(op: &OsdOp) -> bool {
    op.ops.ops().iter().any(|op| op.code == LIST_GROUP)
}

/// Whether a request may be executed at an OSD.
enum Verdict {
    Execute,
    /// It was sent to the wrong place.
    Drop,
    /// The OSD has to learn a newer map first.
    Wait,
}

/// True if a group maps to this OSD, as the request says.
fn is_here(map: &OsdMap, osd: u32, op: &OsdOp) -> bool {
    let pg = op.target.pg;
    let Ok(placement) = map.place(pg) else { return false };
    let reads_anywhere =
        op.flags & (flag::BALANCE_READS | flag::LOCALIZE_READS) != 0 && !may_write(op.ops.ops());
    let is_primary = placement.acting_primary == Some(OsdId(osd));
    let item = ItemId(osd as i32);
    let shard = placement.acting.iter().position(|&member| member == item);
    let Some(shard) = shard.filter(|_| is_primary || reads_anywhere) else { return false };
    let Some(pool) = map.pools.get(&pg.pool) else { return false };
    match pool.kind {
        PoolKind::Replicated => op.target.shard == -1,
        _ => usize::try_from(op.target.shard) == Ok(shard),
    }
}

impl WireCluster {
    pub(super) fn osd_receives(&mut self, id: SessionId, osd: u32, message: &Message) {
        if message.kind != MessageKind::OsdOp as u16 {
            // An acknowledged backoff asks for nothing.
            return;
        }
        let Ok(mut op) = OsdOp::decode(message) else { return };
        if op.client == 0 {
            // The client leaves it to the OSD to name it.
            op.client = self.sessions.get(&id).map_or(0, |session| session.caller.client);
        }
        self.handle(id, osd, op);
    }

    fn verdict(&self, osd: u32, op: &OsdOp) -> Verdict {
        if op.map_epoch > self.epoch() {
            return Verdict::Wait;
        }
        let Some(map) = &self.maps.newest else { return Verdict::Wait };
        let object = &op.object;
        // librados sets the flag only in some of its lists.
        let is_of_group = op.flags & flag::PGOP != 0 || lists_group(op);
        let is_group_right = is_of_group
            || map.locate(object.pool, &object.namespace, &object.key, &object.name)
                == Ok(op.target.pg);
        // The client sends a request again when the primary changes. The OSD relies on it.
        let is_current =
            self.maps.primaries.get(&op.target.pg).is_none_or(|&(primary, since)| {
                primary != Some(OsdId(osd)) || op.map_epoch >= since
            });
        if is_group_right && is_current && is_here(map, osd, op) {
            Verdict::Execute
        } else {
            Verdict::Drop
        }
    }

    fn handle(&mut self, id: SessionId, osd: u32, op: OsdOp) {
        match self.verdict(osd, &op) {
            Verdict::Wait => return self.waiting.push((id, op)),
            Verdict::Drop => return self.share_maps(id, op.map_epoch),
            Verdict::Execute => self.share_maps(id, op.map_epoch),
        }
        if let Some(&backoff) = self.blocked.get(&op.target.pg) {
            return self.ask_to_back_off(id, &op, backoff);
        }
        if let Some(mut known) = self.answers.get(&(op.client, op.tid)).cloned() {
            known.attempt = op.attempt;
            return self.answer(id, op.tid, &known);
        }
        if let Some(known) = self.done_write(&op) {
            return self.answer(id, op.tid, &known);
        }
        let operation = operation_of(&op);
        if self.store.must_wait(&operation) {
            return self.waiting.push((id, op));
        }
        let reply = self.execute(id, &op, &operation);
        let answer = OsdOpReply {
            pg: op.target.pg,
            object: Bytes::copy_from_slice(op.object.name.as_bytes()),
            flags: op.flags | flag::ACK | flag::ONDISK,
            map_epoch: self.epoch(),
            attempt: op.attempt,
            reply,
            redirect: None,
        };
        if may_write(op.ops.ops()) {
            self.remember((op.client, op.tid), answer.clone());
        }
        self.answer(id, op.tid, &answer);
    }

    fn execute(&mut self, id: SessionId, op: &OsdOp, operation: &Operation) -> Reply {
        let Some(session) = self.sessions.get(&id) else { return Reply::default() };
        let caller = session.caller.clone();
        if lists_group(op) {
            return list::execute(&self.store, self.maps.newest.as_ref(), op);
        }
        for one in op.ops.ops() {
            // Watches and notifications: their first field is the cookie.
            if matches!(one.code, 0x220f | 0x1206) {
                let mut cookie = [0; 8];
                cookie.copy_from_slice(&one.fields[..8]);
                let cookie = u64::from_le_bytes(cookie);
                self.routes.insert(Watcher { client: caller.client, cookie }, id);
            }
        }
        self.store.execute(self.now, &caller, operation).unwrap_or_else(|error| Reply {
            result: -error.0,
            user_version: 0,
            ops: op.ops.ops().iter().map(|_| OpResult::default()).collect::<SmallVec<_>>(),
        })
    }

    /// The answer to a write that was carried out on the short way. A client that sends a request
    /// again says so.
    fn done_write(&self, op: &OsdOp) -> Option<OsdOpReply> {
        if op.attempt == 0 {
            return None;
        }
        let is_it = |done: &&DoneWrite| (done.client, done.tid) == (op.client, op.tid);
        let done = self.done_writes.iter().rev().find(is_it)?;
        let ops = op.ops.ops().iter().map(|_| OpResult::default()).collect();
        Some(OsdOpReply {
            pg: op.target.pg,
            object: Bytes::copy_from_slice(op.object.name.as_bytes()),
            flags: op.flags | flag::ACK | flag::ONDISK,
            map_epoch: done.map_epoch,
            attempt: op.attempt,
            reply: Reply { result: 0, user_version: done.user_version, ops },
            redirect: None,
        })
    }

    fn remember(&mut self, request: (u64, u64), answer: OsdOpReply) {
        self.answers.insert(request, answer);
        self.answer_order.push_back(request);
        if self.answer_order.len() > MAX_ANSWERS
            && let Some(oldest) = self.answer_order.pop_front()
        {
            self.answers.remove(&oldest);
        }
    }

    fn answer(&mut self, id: SessionId, tid: u64, answer: &OsdOpReply) {
        let Some(session) = self.sessions.get(&id) else { return };
        let message = Message { tid, ..answer.encode(session.features) };
        self.send(id, message);
    }

    /// Tells a client with an older map what is newer, once.
    fn share_maps(&mut self, id: SessionId, epoch: u32) {
        let newest = self.epoch();
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let known = epoch.max(session.told_epoch);
        if known < newest {
            session.told_epoch = newest;
            let features = session.features;
            let maps = self.maps_since(known + 1);
            self.send(id, maps.encode(features));
        }
    }

    /// Requests that waited may go on now.
    pub(super) fn retry_waiting(&mut self) {
        for (id, op) in std::mem::take(&mut self.waiting) {
            if let Some(super::Server::Osd(osd)) =
                self.sessions.get(&id).map(|session| session.server)
            {
                self.handle(id, osd, op);
            }
        }
        self.pass_signals();
    }

    /// Asks clients to hold back requests on a group.
    pub fn block(&mut self, pg: PgId) {
        self.newest_backoff += 1;
        self.blocked.insert(pg, self.newest_backoff);
    }

    /// Lets clients go on with a group.
    pub fn unblock(&mut self, pg: PgId) {
        let Some(backoff) = self.blocked.remove(&pg) else { return };
        let told: Vec<SessionId> = self
            .told_to_back_off
            .iter()
            .filter(|(_, blocked)| *blocked == pg)
            .map(|&(id, _)| id)
            .collect();
        self.told_to_back_off.retain(|(_, blocked)| *blocked != pg);
        for id in told {
            self.send_backoff(id, pg, -1, backoff, BackoffStep::Unblock);
        }
    }

    fn ask_to_back_off(&mut self, id: SessionId, op: &OsdOp, backoff: u64) {
        if self.told_to_back_off.insert((id, op.target.pg)) {
            self.send_backoff(id, op.target.pg, op.target.shard, backoff, BackoffStep::Block);
        }
    }

    fn send_backoff(
        &mut self,
        id: SessionId,
        pg: PgId,
        shard: i8,
        backoff: u64,
        step: BackoffStep,
    ) {
        let Some(session) = self.sessions.get(&id) else { return };
        let (features, map_epoch) = (session.features, self.epoch());
        let Some(pool) = self.maps.newest.as_ref().and_then(|map| map.pools.get(&pg.pool)) else {
            return;
        };
        let message = OsdBackoff {
            target: ShardedPg { pg, shard },
            map_epoch,
            step,
            id: backoff,
            begin: list::group_start(pg),
            end: list::group_end(pg, pool.pg_num),
        };
        self.send(id, message.encode(features));
    }

    pub(super) fn pass_signals(&mut self) {
        while let Some(signal) = self.store.watches.take_signal() {
            let (to, notification) = match signal {
                Signal::Notify { to, notify_id, from, payload } => (
                    to,
                    WatchNotify {
                        kind: NotifyKind::Notify,
                        cookie: to.cookie,
                        version: 0,
                        notify_id,
                        payload,
                        result: 0,
                        from,
                    },
                ),
                Signal::Complete { to, notify_id, reply } => {
                    let mut answers = Encoder::new();
                    answers.list(reply.acknowledged.iter(), |into, (watcher, payload)| {
                        into.u64(watcher.client).u64(watcher.cookie).blob(payload);
                    });
                    answers.list(reply.missed.iter(), |into, watcher| {
                        into.u64(watcher.client).u64(watcher.cookie);
                    });
                    let is_complete = reply.missed.is_empty();
                    (
                        to,
                        WatchNotify {
                            kind: NotifyKind::Complete,
                            cookie: to.cookie,
                            version: 0,
                            notify_id,
                            payload: answers.finish(),
                            result: if is_complete { 0 } else { -Errno::ETIMEDOUT.0 },
                            from: to.client,
                        },
                    )
                }
                Signal::Lost { to, .. } => (
                    to,
                    WatchNotify {
                        kind: NotifyKind::Disconnect,
                        cookie: to.cookie,
                        version: 0,
                        notify_id: 0,
                        payload: Bytes::new(),
                        result: 0,
                        from: 0,
                    },
                ),
            };
            let Some(&id) = self.routes.get(&to) else { continue };
            let Some(session) = self.sessions.get(&id) else { continue };
            let message = notification.encode(session.features);
            self.send(id, message);
        }
    }
}

fn operation_of(op: &OsdOp) -> Operation {
    let has = |flag: u32| op.flags & flag != 0;
    Operation {
        object: op.object.clone(),
        ops: op.ops.clone(),
        snapshot: op.snapshot,
        snap_context: op.snap_context.clone(),
        flags: OperationFlags {
            balance_reads: has(flag::BALANCE_READS),
            localize_reads: has(flag::LOCALIZE_READS),
            full_try: has(flag::FULL_TRY),
            full_force: has(flag::FULL_FORCE),
            wants_data: has(flag::RETURNVEC),
        },
        sender: SenderId::default(),
    }
}
