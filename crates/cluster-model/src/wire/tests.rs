//! Requests as messages, at OSDs of a map that osdmaptool has made:
//! `osdmaptool --createsimple 3 three-osds.osdmap --with-default-pool --pg-bits 2`.

use bytes::Bytes;
use fieldstone_rados::cluster::{ObjectName, PoolInfo, SnapContext};
use fieldstone_rados::encoding::{EntityAddress, Time};
use fieldstone_rados::message::MessageKind;
use fieldstone_rados::message::monitor::{
    Command, CommandAck, PoolOp, PoolOpKind, PoolOpReply, Subscribe, Subscription, WHAT_OSDMAP,
};
use fieldstone_rados::message::osd::{NotifyKind, ShardedPg, WatchNotify, flag};
use fieldstone_rados::op::{ObjectOps, WatchStep};

use super::*;

const MAP: &[u8] = include_bytes!("three-osds.osdmap");
const POOL: PoolId = PoolId(1);
pub(super) const FEATURES: u64 = u64::MAX >> 1;

pub(super) struct Bench {
    pub(super) cluster: WireCluster,
    map: OsdMap,
    tid: u64,
}

impl Bench {
    pub(super) fn new() -> Self {
        let mut map = OsdMap::decode(MAP).expect("osdmaptool wrote it");
        map.mark_all_up_in();
        let mut store = Store::default();
        store.add_pool(PoolInfo {
            id: POOL,
            name: "rbd".to_owned(),
            is_erasure_coded: false,
            takes_overwrites: false,
            alignment_bytes: 1,
            is_full: false,
            pg_num: map.pools[&POOL].pg_num,
            applications: Vec::new(),
        });
        let mut cluster = WireCluster::new(store, MonMap { epoch: 1, ..MonMap::default() });
        cluster.publish(1, map.clone(), Bytes::from_static(MAP), None);
        Self { cluster, map, tid: 0 }
    }

    pub(super) fn connect(&mut self, server: Server, client: u64) -> SessionId {
        let caller = Caller { client, address: EntityAddress::default() };
        self.cluster.connected(server, caller, FEATURES)
    }

    pub(super) fn pg(&self, name: &str) -> PgId {
        self.map.locate(POOL, "", "", name).expect("the pool exists")
    }

    pub(super) fn primary(&self, name: &str) -> Server {
        let placement = self.map.place(self.pg(name)).expect("the group exists");
        Server::Osd(placement.acting_primary.expect("an OSD is up").0)
    }

    pub(super) fn request(
        &mut self,
        client: u64,
        name: &str,
        fill: impl FnOnce(&mut ObjectOps),
    ) -> OsdOp {
        let mut ops = ObjectOps::new();
        fill(&mut ops);
        self.tid += 1;
        OsdOp {
            target: ShardedPg { pg: self.pg(name), shard: -1 },
            object: ObjectName::new(POOL, "", name),
            hash: self.map.pools[&POOL].seed("", "", name),
            map_epoch: self.cluster.epoch(),
            flags: flag::ALWAYS | ops.request_flags(),
            snapshot: SnapId::HEAD,
            snap_context: SnapContext::default(),
            modified: Time::default(),
            client,
            tid: self.tid,
            attempt: 0,
            features: FEATURES,
            ops,
        }
    }

    fn send(&mut self, session: SessionId, op: &OsdOp) -> Vec<(SessionId, Message)> {
        self.cluster.receive(session, &op.encode(FEATURES), Nanos(0));
        std::iter::from_fn(|| self.cluster.poll_output()).collect()
    }
}

fn only(messages: &[(SessionId, Message)]) -> OsdOpReply {
    let [(_, message)] = messages else { panic!("{messages:?}") };
    OsdOpReply::decode(message).expect("it is a reply")
}

#[test]
fn a_primary_executes_once_and_others_drop() {
    let mut bench = Bench::new();
    let (server, name) = (bench.primary("object"), "object");
    let right = bench.connect(server, 7);
    let other = (0..3).map(Server::Osd).find(|&osd| osd != server).expect("there are three");
    let wrong = bench.connect(other, 7);
    let mut write = bench.request(7, name, |ops| {
        ops.append(b"x".to_vec().into());
    });
    assert!(bench.send(wrong, &write).is_empty());
    let first = only(&bench.send(right, &write));
    assert_eq!((first.reply.result, first.attempt), (0, 0));
    write.attempt = 1;
    let again = only(&bench.send(right, &write));
    assert_eq!(again.attempt, 1);
    assert_eq!(again.reply.user_version, first.reply.user_version);
    let read = bench.request(7, name, |ops| {
        ops.read(0, 10);
    });
    let answer = only(&bench.send(right, &read));
    assert_eq!(answer.reply.ops[0].data.as_ref(), b"x");
}

#[test]
fn a_request_of_a_newer_map_waits_and_an_older_one_is_told() {
    let mut bench = Bench::new();
    let server = bench.primary("object");
    let session = bench.connect(server, 7);
    let mut create = bench.request(7, "object", |ops| {
        ops.create(false);
    });
    create.map_epoch = 2;
    assert!(bench.send(session, &create).is_empty());
    bench.cluster.publish(2, bench.map.clone(), Bytes::from_static(MAP), None);
    let answers: Vec<_> = std::iter::from_fn(|| bench.cluster.poll_output()).collect();
    assert_eq!(only(&answers).reply.result, 0);
    let mut old = bench.request(7, "object", |ops| {
        ops.stat();
    });
    old.map_epoch = 1;
    let messages = bench.send(session, &old);
    let kinds: Vec<u16> = messages.iter().map(|(_, message)| message.kind).collect();
    assert_eq!(kinds, [MessageKind::OsdMap as u16, MessageKind::OsdOpReply as u16]);
    assert_eq!(OsdMaps::decode(&messages[0].1).expect("it is a map").newest, 2);
}

#[test]
fn a_blocked_group_asks_to_back_off() {
    let mut bench = Bench::new();
    let server = bench.primary("object");
    let session = bench.connect(server, 7);
    let pg = bench.pg("object");
    bench.cluster.block(pg);
    let create = bench.request(7, "object", |ops| {
        ops.create(false);
    });
    let messages = bench.send(session, &create);
    assert_eq!(messages[0].1.kind, MessageKind::OsdBackoff as u16);
    assert!(bench.send(session, &create).is_empty());
    bench.cluster.unblock(pg);
    let (_, message) = bench.cluster.poll_output().expect("the client may go on");
    assert_eq!(message.kind, MessageKind::OsdBackoff as u16);
    assert_eq!(only(&bench.send(session, &create)).reply.result, 0);
}

#[test]
fn watchers_and_notifier_hear_messages() {
    let mut bench = Bench::new();
    let server = bench.primary("object");
    let (watcher, notifier) = (bench.connect(server, 7), bench.connect(server, 8));
    let create = bench.request(7, "object", |ops| {
        ops.create(false);
    });
    bench.send(watcher, &create);
    let watch = bench.request(7, "object", |ops| {
        ops.watch(5, WatchStep::Watch, 30);
    });
    assert_eq!(only(&bench.send(watcher, &watch)).reply.result, 0);
    let notify = bench.request(8, "object", |ops| {
        ops.notify(6, 10, b"question");
    });
    let messages = bench.send(notifier, &notify);
    let heard = messages.iter().find(|(to, _)| *to == watcher).expect("the watcher hears");
    let heard = WatchNotify::decode(&heard.1).expect("it is a notification");
    assert_eq!((heard.kind, heard.cookie, heard.from), (NotifyKind::Notify, 5, 8));
    let answer = bench.request(7, "object", |ops| {
        ops.notify_acknowledge(heard.notify_id, 5, b"answer");
    });
    let messages = bench.send(watcher, &answer);
    let complete = messages.iter().find(|(to, _)| *to == notifier).expect("the notifier hears");
    let complete = WatchNotify::decode(&complete.1).expect("it is a notification");
    assert_eq!((complete.kind, complete.cookie, complete.result), (NotifyKind::Complete, 6, 0));
    let reply = fieldstone_rados::op::results::decode_notify_reply(&complete.payload);
    assert_eq!(reply.expect("it is a reply").acknowledged[0].1.as_ref(), b"answer");
}

#[test]
fn a_monitor_tells_maps_and_executes_commands() {
    let mut bench = Bench::new();
    let session = bench.connect(Server::Monitor(0), 7);
    let what = [(WHAT_OSDMAP.to_owned(), Subscription { start: 1, once: false })].into();
    let subscribe = Subscribe { what, hostname: String::new() };
    bench.cluster.receive(session, &subscribe.encode(), Nanos(0));
    let (_, message) = bench.cluster.poll_output().expect("there is a map");
    assert_eq!(OsdMaps::decode(&message).expect("it is a map").full.len(), 1);
    let change = Bytes::from_static(b"a change");
    bench.cluster.publish(2, bench.map.clone(), Bytes::from_static(MAP), Some(change));
    let (_, message) = bench.cluster.poll_output().expect("there is a change");
    assert_eq!(OsdMaps::decode(&message).expect("it is a change").incremental[0].0, 2);
    let json = r#"{"prefix":"osd blocklist","blocklistop":"add","addr":"10.0.0.9:0/3"}"#;
    let (tid, fsid, input) = (4, [0; 16], Bytes::new());
    let command = Command { tid, fsid, command: vec![json.to_owned()], input };
    bench.cluster.receive(session, &command.encode(), Nanos(0));
    let (_, message) = bench.cluster.poll_output().expect("there is an answer");
    assert_eq!(CommandAck::decode(&message).expect("it is an answer").result, 0);
    assert_eq!(bench.cluster.take_change(), Some(MapChange::Blocklist));
    let kind = PoolOpKind::CreateSnap;
    let change = PoolOp { tid: 5, osdmap_epoch: 1, fsid, pool: POOL, kind, snap: SnapId(0) };
    bench.cluster.receive(session, &change.encode(), Nanos(0));
    let (_, message) = bench.cluster.poll_output().expect("there is an answer");
    let reply = PoolOpReply::decode(&message).expect("it is an answer");
    assert_eq!((reply.result, reply.snap()), (0, Some(SnapId(1))));
}

#[test]
fn lists_of_all_groups_have_every_object_once() {
    let mut bench = Bench::new();
    let mut names: Vec<String> = (0..40).map(|number| format!("object{number}")).collect();
    for name in &names {
        let server = bench.primary(name);
        let session = bench.connect(server, 7);
        let create = bench.request(7, name, |ops| {
            ops.create(true);
        });
        assert_eq!(only(&bench.send(session, &create)).reply.result, 0);
    }
    let pg_num = bench.map.pools[&POOL].pg_num;
    let mut listed = Vec::new();
    let mut ends = 0;
    for seed in 0..pg_num {
        let pg = PgId { pool: POOL, seed };
        let placement = bench.map.place(pg).expect("the group exists");
        let osd = placement.acting_primary.expect("an OSD is up").0;
        let session = bench.connect(Server::Osd(osd), 7);
        let mut position = list::group_start(pg).to_bytes();
        loop {
            let mut list = bench.request(7, "", |ops| {
                ops.list_group(3, &position);
            });
            list.target.pg = pg;
            // Some clients say that the request is on a group, some do not.
            list.flags |= if seed % 2 == 0 { flag::PGOP } else { 0 };
            let answer = only(&bench.send(session, &list));
            let part = &answer.reply.ops[0].data;
            let part = fieldstone_rados::op::results::GroupListing::decode(part).expect("a list");
            listed.extend(part.objects.into_iter().map(|(_, name, _)| name));
            if answer.reply.result == 1 {
                ends += u32::from(part.next.is_max);
                break;
            }
            position = part.next_bytes;
        }
    }
    listed.sort();
    names.sort();
    assert_eq!(listed, names);
    assert_eq!(ends, 1);
}
