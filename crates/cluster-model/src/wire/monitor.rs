//! A monitor: subscriptions, versions, commands, changes of pools.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_rados::encoding::DecodeError;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::message::monitor::{
    Command, CommandAck, Config, GetVersion, GetVersionReply, MonMapMessage, PoolOp, PoolOpKind,
    PoolOpReply, Subscribe, WHAT_CONFIG, WHAT_MONMAP, WHAT_OSDMAP,
};
use fieldstone_rados::message::{Message, MessageKind};

use super::{MapChange, SessionId, WireCluster};
use crate::commands;

impl WireCluster {
    pub(super) fn monitor_receives(&mut self, id: SessionId, message: &Message) {
        const SUBSCRIBE: u16 = MessageKind::MonSubscribe as u16;
        const VERSION: u16 = MessageKind::MonGetVersion as u16;
        const COMMAND: u16 = MessageKind::MonCommand as u16;
        const POOL_OP: u16 = MessageKind::PoolOp as u16;
        let handled = match message.kind {
            SUBSCRIBE => self.subscribe(id, message),
            VERSION => self.tell_version(id, message),
            COMMAND => self.execute_command(id, message),
            POOL_OP => self.change_pool(id, message),
            _ => Ok(()),
        };
        // A real monitor closes the connection of a client that sends nonsense; here it is dropped.
        let _: Result<(), DecodeError> = handled;
    }

    fn subscribe(&mut self, id: SessionId, message: &Message) -> Result<(), DecodeError> {
        let subscribe = Subscribe::decode(message)?;
        for (what, subscription) in subscribe.what {
            match what.as_str() {
                WHAT_MONMAP if subscription.start <= u64::from(self.monitors.epoch) => {
                    let map = MonMapMessage { map: self.monitors.clone() };
                    self.send(id, map.encode());
                }
                WHAT_CONFIG => {
                    self.send(id, Config { options: BTreeMap::new() }.encode());
                }
                WHAT_OSDMAP => {
                    let start = u32::try_from(subscription.start).unwrap_or(u32::MAX);
                    if let Some(session) = self.sessions.get_mut(&id) {
                        session.wants_map = Some((start, subscription.once));
                    }
                    self.tell_subscriber(id);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn tell_version(&mut self, id: SessionId, message: &Message) -> Result<(), DecodeError> {
        let question = GetVersion::decode(message)?;
        let (newest, oldest) = match question.what.as_str() {
            WHAT_MONMAP => (self.monitors.epoch.into(), self.monitors.epoch.into()),
            _ => (self.epoch().into(), 1),
        };
        self.send(id, GetVersionReply { id: question.id, newest, oldest }.encode());
        Ok(())
    }

    fn execute_command(&mut self, id: SessionId, message: &Message) -> Result<(), DecodeError> {
        let command = Command::decode(message)?;
        let json = command.command.first().map_or("", String::as_str);
        let reply = commands::execute(&mut self.store, json, self.now);
        if reply.result == 0 && json.contains("blocklistop") | json.contains("blacklistop") {
            self.changes.push_back(MapChange::Blocklist);
        }
        let ack = CommandAck {
            tid: command.tid,
            version: self.epoch().into(),
            result: reply.result,
            status: reply.status,
            command: command.command,
            output: reply.output,
        };
        self.send(id, ack.encode());
        Ok(())
    }

    fn change_pool(&mut self, id: SessionId, message: &Message) -> Result<(), DecodeError> {
        let request = PoolOp::decode(message)?;
        let done = match (self.store.pool_mut(request.pool), request.kind) {
            (None, _) => Err(Errno::ENOENT),
            (Some(pool), PoolOpKind::CreateSnap) => {
                let snap = pool.create_snap();
                self.changes.push_back(MapChange::NewSnap(request.pool, snap));
                Ok(PoolOpReply::data_of_snap(snap))
            }
            (Some(pool), PoolOpKind::RemoveSnap) => {
                pool.remove_snap(request.snap);
                self.changes.push_back(MapChange::RemovedSnap(request.pool, request.snap));
                Ok(Bytes::new())
            }
        };
        let (result, data) = match done {
            Ok(data) => (0, data),
            Err(error) => (-error.0, Bytes::new()),
        };
        // The map with the change is the one that the owner publishes for it.
        let ahead = u32::try_from(self.changes.len()).unwrap_or(0);
        let reply = PoolOpReply {
            tid: request.tid,
            fsid: self.fsid,
            result,
            osdmap_epoch: self.epoch() + ahead,
            data,
        };
        self.send(id, reply.encode());
        Ok(())
    }
}
