//! Valid payloads: at least one for each decoder.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_crush::osdmap::{PgId, PoolId};
use smallvec::smallvec;

use super::payload::TARGETS;
use crate::cluster::{NotifyReply, ObjectName, SnapContext, SnapId, Watcher};
use crate::encoding::{Addresses, Encoder, EntityAddress, Time};
use crate::message::Message;
use crate::message::features::SUPPORTED;
use crate::message::monitor::{
    Auth, AuthReply, Command, CommandAck, Config, GetPoolStatsReply, GetVersionReply, METHOD_CEPHX,
    MonMap, MonMapMessage, MonitorInfo, PoolOpReply, PoolStats, StatFsReply, SubscribeAck,
};
use crate::message::osd::{
    BackoffStep, NotifyKind, ObjectPosition, OsdBackoff, OsdMaps, OsdOp, OsdOpReply, Redirect,
    ShardedPg, WatchNotify, flag,
};
use crate::op::results::{
    self, GroupListing, ObjectClone, Snapshots, SparseData, Stat, WatcherInfo, Watchers,
};
use crate::op::{ObjectOps, OpResult, Reply};

const FSID: [u8; 16] = [7; 16];

fn address() -> EntityAddress {
    EntityAddress::msgr2(([10, 0, 0, 1], 3300).into(), 5)
}

fn monitors() -> MonMap {
    let addresses = Addresses(vec![address()]);
    let info = MonitorInfo { addresses, ..MonitorInfo::default() };
    MonMap {
        fsid: FSID,
        epoch: 3,
        monitors: BTreeMap::from([("a".to_owned(), info)]),
        ranks: vec!["a".to_owned()],
        least_release: 16,
        ..MonMap::default()
    }
}

fn of_monitors() -> Vec<Message> {
    let payload = Bytes::from_static(b"payload");
    let (status, command) = (String::from("all well"), vec!["{}".to_owned()]);
    let stats = PoolStats { bytes: 4096, objects: 2, clones: 1, copies: 6 };
    let pools = BTreeMap::from([("rbd".to_owned(), stats)]);
    let options = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
    let statfs = StatFsReply { tid: 4, fsid: FSID, version: 5, total_kib: 6, ..Default::default() };
    let data = PoolOpReply::data_of_snap(SnapId(3));
    let output = payload.clone();
    vec![
        MonMapMessage { map: monitors() }.encode(),
        SubscribeAck { interval_s: 300, fsid: FSID }.encode(),
        GetVersionReply { id: 9, newest: 8, oldest: 7 }.encode(),
        CommandAck { tid: 1, version: 2, result: -22, status, command: command.clone(), output }
            .encode(),
        Config { options }.encode(),
        AuthReply {
            method: METHOD_CEPHX,
            result: -13,
            global_id: 4123,
            payload: payload.clone(),
            status: "no".into(),
        }
        .encode(),
        PoolOpReply { tid: 2, fsid: FSID, result: -2, osdmap_epoch: 9, data }.encode(),
        statfs.encode(),
        GetPoolStatsReply { tid: 5, fsid: FSID, pools }.encode(),
        Command { tid: 1, fsid: FSID, command, input: payload.clone() }.encode(),
        Auth { method: METHOD_CEPHX, payload, monmap_epoch: 3 }.encode(),
    ]
}

fn position(name: &str) -> ObjectPosition {
    ObjectPosition {
        is_max: false,
        pool: PoolId(3),
        hash: 77,
        namespace: "n".into(),
        key: String::new(),
        name: name.into(),
        snapshot: SnapId::HEAD,
    }
}

fn of_osds() -> Vec<Message> {
    let pg = PgId { pool: PoolId(3), seed: 14 };
    let target = ShardedPg { pg, shard: 2 };
    let maps = vec![(8, Bytes::from_static(b"increment")), (9, Bytes::from_static(b"another"))];
    let full = vec![(7, Bytes::from_static(b"map"))];
    let ops = smallvec![
        OpResult { result: 0, data: Bytes::from_static(b"abc") },
        OpResult { result: -2, data: Bytes::new() },
    ];
    let redirect = Redirect {
        pool: PoolId(4),
        namespace: Arc::from("n"),
        key: Arc::from("k"),
        object: Arc::from("o"),
    };
    let reply = |redirect| OsdOpReply {
        pg,
        object: "obj".into(),
        flags: flag::ONDISK | flag::READ,
        map_epoch: 46,
        attempt: 1,
        reply: Reply { result: 0, user_version: 9, ops: Clone::clone(&ops) },
        redirect,
    };
    let mut operations = ObjectOps::new();
    operations.set_alloc_hint(4 << 20, 4 << 20, 0);
    operations.write(8192, Bytes::from_static(b"hello")).set_xattr("k", b"v");
    let request = OsdOp {
        target,
        object: ObjectName::new(PoolId(3), "ns", "obj"),
        hash: 0xb706_399e,
        map_epoch: 46,
        flags: flag::ALWAYS | flag::WRITE,
        snapshot: SnapId::HEAD,
        snap_context: SnapContext { seq: SnapId(5), snaps: vec![SnapId(5), SnapId(2)] },
        modified: Time { seconds: 1_700_000_000, nanos: 7 },
        client: 4153,
        tid: 12,
        attempt: 0,
        features: SUPPORTED,
        ops: operations,
    };
    vec![
        OsdMaps { fsid: FSID, incremental: maps, full, oldest: 1, newest: 9 }.encode(SUPPORTED),
        reply(None).encode(SUPPORTED),
        reply(Some(redirect)).encode(SUPPORTED),
        WatchNotify {
            kind: NotifyKind::Complete,
            cookie: 1,
            version: 2,
            notify_id: 3,
            payload: Bytes::from_static(b"bytes"),
            result: -110,
            from: 4100,
        }
        .encode(SUPPORTED),
        OsdBackoff {
            target,
            map_epoch: 9,
            step: BackoffStep::Block,
            id: 4,
            begin: position("a"),
            end: position("b"),
        }
        .encode(SUPPORTED),
        request.encode(SUPPORTED),
    ]
}

/// Results of operations, in the order of the decoders.
fn results() -> Vec<Bytes> {
    let values: BTreeMap<Bytes, Bytes> =
        [("a", "1"), ("b", "2")].map(|(key, value)| (key.into(), value.into())).into();
    let keys: Vec<Bytes> = values.keys().cloned().collect();
    let extents = vec![(0, 2), (4096, 3)];
    let sparse = SparseData { extents, data: Bytes::from_static(b"12345") };
    let overlap = vec![(0, 4096)];
    let clone = ObjectClone { id: SnapId(4), snaps: vec![SnapId(4)], overlap, size_bytes: 8192 };
    let watcher = Watcher { client: 4100, cookie: 7 };
    let info = WatcherInfo { watcher, timeout_s: 30, address: address() };
    let mut next = Encoder::new();
    position("c").encode(&mut next);
    let listing = GroupListing {
        objects: vec![("n".into(), "name".into(), String::new())],
        next: position("c"),
        next_bytes: next.finish(),
    };
    let answers = vec![(watcher, Bytes::from_static(b"yes"))];
    let notified = NotifyReply { acknowledged: answers, missed: vec![watcher] };
    let mut addresses = Encoder::new();
    Addresses(vec![address(), address()]).encode(&mut addresses);
    vec![
        Stat { size_bytes: 4096, modified: Time { seconds: 1, nanos: 2 } }.encode(),
        results::encode_omap(values.iter(), true),
        results::encode_keys(keys.iter(), false),
        results::encode_values(values.iter()),
        sparse.encode(),
        Snapshots { clones: vec![clone], seq: SnapId(4) }.encode(),
        Watchers(vec![info]).encode(),
        listing.encode(),
        results::encode_notify_reply(&notified),
        results::encode_notify_id(9),
        addresses.finish(),
    ]
}

/// Valid inputs for [`payload`](super::payload()). Together they use every decoder.
#[must_use]
pub fn payload_seeds() -> Vec<Vec<u8>> {
    let input = |target: usize, message: &Message| {
        let data = message.data.concat();
        let short = |number: usize| u8::try_from(number).expect("the seeds are small");
        let (version, compat) = (message.version.into(), message.compat_version.into());
        let head = [target, version, compat, data.len()].map(short);
        [&head[..], &message.front, &data].concat()
    };
    let messages = of_monitors().into_iter().chain(of_osds());
    let mut seeds: Vec<Vec<u8>> = messages
        .map(|message| {
            let target = TARGETS.iter().position(|target| target.kind == message.kind);
            input(target.expect("each message has a decoder"), &message)
        })
        .collect();
    let first = TARGETS.iter().position(|target| target.kind == 0).expect("there are results");
    for (index, front) in results().into_iter().enumerate() {
        seeds.push(input(first + index, &Message { front, ..Message::default() }));
    }
    seeds
}
