use std::sync::Arc;

use bytes::Bytes;
use fieldstone_crush::osdmap::{PgId, PoolId, StringHash};
use proptest::prelude::*;
use smallvec::smallvec;

use super::*;
use crate::encoding::{DecodeError, Decoder};
use crate::message::Message;
use crate::message::features::{SERVER_SQUID, SUPPORTED};
use crate::op::OpResult;

/// What a connection to Ceph 18 has.
const REEF: u64 = SUPPORTED & !(1 << 49 | 1 << 50);

fn hex(text: &str) -> Bytes {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect::<Vec<_>>().into()
}

/// Reads every beginning of the front and of the data, and the front with each bit flipped.
fn attack<T>(message: &Message, decode: impl Fn(&Message) -> Result<T, DecodeError>) {
    assert!(decode(message).is_ok());
    for len in 0..message.front.len() {
        let _ = decode(&Message { front: message.front.slice(..len), ..message.clone() });
    }
    for at in 0..message.front.len() {
        for bit in 0..8 {
            let mut front = message.front.to_vec();
            front[at] ^= 1 << bit;
            let _ = decode(&Message { front: front.into(), ..message.clone() });
        }
    }
    if !message.data.is_empty() {
        assert!(decode(&Message { data: smallvec![], ..message.clone() }).is_err());
    }
}

fn request() -> OsdOp {
    let mut ops = ObjectOps::new();
    ops.set_alloc_hint(4 << 20, 4 << 20, 0);
    ops.write(8192, Bytes::from_static(b"hello")).set_xattr("k", b"v");
    OsdOp {
        target: ShardedPg { pg: PgId { pool: PoolId(3), seed: 0x0e }, shard: -1 },
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
        features: REEF,
        ops,
    }
}

/// The bytes follow the fields of `MOSDOp` version 8 in Ceph's source.
#[test]
fn a_request_has_the_layout_of_version_8() {
    let mut expected = hex("
        01 01 12000000 01 0300000000000000 0e000000 ffffffff ff
        9e3906b7 2e000000 24004008
        02 02 15000000 08 3910000000000000 0c00000000000000 00000000
        000000000000000000000000000000000000000000000000
        00000000 00f15365 07000000
        06 03 1e000000 0300000000000000 ffffffff 00000000 02000000 6e73 ffffffffffffffff
        03000000 6f626a 0300
        2322 00000000 0000400000000000 0000400000000000 00000000 0000000000000000 00000000
        0122 00000000 0020000000000000 0500000000000000 0000000000000000 00000000 05000000
        0123 00000000 01000000 01000000 0000000000000000000000000000000000000000 02000000
        feffffffffffffff 0500000000000000 02000000 0500000000000000 0200000000000000
        00000000")
    .to_vec();
    expected.extend_from_slice(&REEF.to_le_bytes());
    let message = request().encode(REEF);
    assert_eq!(message.front, expected);
    assert_eq!((message.kind, message.version, message.compat_version), (42, 8, 3));
    assert_eq!((message.tid, message.data_bytes()), (12, 7));
    assert_eq!(message.data[..], [Bytes::from_static(b"hello"), Bytes::from_static(b"kv")]);
}

/// 209 bytes is what others count for this request as well (rados-rs: `MOSDOp`, 216 in version 9).
#[test]
fn a_listing_of_a_group_has_the_known_lengths() {
    let mut ops = ObjectOps::new();
    ops.list_group(100, &Bytes::new());
    let object = ObjectName::new(PoolId(3), "", "");
    let snap_context = SnapContext::default();
    let request = OsdOp { object, ops, snap_context, ..request() };
    assert_eq!(request.encode(REEF).front.len(), 209);
    let newer = REEF | SERVER_SQUID.0;
    assert_eq!(request.encode(newer).front.len(), 216);
    // The hash takes the place of a name.
    assert!(
        request
            .encode(REEF)
            .front
            .windows(8)
            .any(|bytes| { bytes == 0xb706_399e_u64.to_le_bytes() })
    );
}

#[test]
fn a_request_of_version_9_goes_to_readers_of_ceph_19_only() {
    // Bit 57 belongs to all of them.
    assert_eq!(request().encode(REEF).version, 8);
    assert_eq!(request().encode(REEF | 1 << 49).version, 9);
    assert_eq!(request().encode(1 << 49).version, 8);
}

#[test]
fn a_request_survives_a_round_trip_and_attacks() {
    for features in [REEF, REEF | SERVER_SQUID.0] {
        let request = OsdOp { features, attempt: 2, ..request() };
        let message = request.encode(features);
        let data = message.data[0].as_ptr();
        let read = OsdOp::decode(&message).unwrap();
        assert_eq!(read, request);
        assert_eq!(read.ops.ops()[1].data.as_ptr(), data, "data are not copied");
        attack(&message, OsdOp::decode);
    }
    let repeated = OsdOp { attempt: 1, ..request() }.encode(REEF);
    assert_eq!(repeated.front[32] & 0x08, 0x08, "the mark of a repetition");
    let old = Message { version: 7, ..request().encode(REEF) };
    assert!(OsdOp::decode(&old).is_err());
}

#[test]
fn data_are_cut_across_pieces() {
    let request = request();
    let whole = request.encode(REEF);
    for cut in 0..=7 {
        let joined: Bytes = whole.data.concat().into();
        let data = smallvec![joined.slice(..cut), joined.slice(cut..)];
        let message = Message { data, ..whole.clone() };
        assert_eq!(OsdOp::decode(&message).unwrap().ops, request.ops, "cut at {cut}");
    }
}

#[test]
fn a_call_that_only_reads_stays_one() {
    let mut ops = ObjectOps::new();
    ops.query("rbd", "get_size", Bytes::new());
    let query = OsdOp { ops: ops.clone(), flags: flag::ALWAYS | flag::READ, ..request() };
    assert!(!OsdOp::decode(&query.encode(REEF)).unwrap().ops.is_write());
    let mut ops = ObjectOps::new();
    ops.call("rbd", "set_size", Bytes::new());
    let call = OsdOp { ops, ..request() };
    assert_eq!(OsdOp::decode(&call.encode(REEF)).unwrap().ops, call.ops);
}

fn answer() -> OsdOpReply {
    OsdOpReply {
        pg: PgId { pool: PoolId(3), seed: 0xb706_399e },
        object: "obj".into(),
        flags: flag::ONDISK | flag::READ,
        map_epoch: 46,
        attempt: 0,
        reply: Reply {
            result: -2,
            user_version: 9,
            ops: smallvec![
                OpResult { result: 0, data: Bytes::from_static(b"abc") },
                OpResult { result: -2, data: Bytes::new() },
                OpResult { result: 1, data: Bytes::from_static(b"defg") },
            ],
        },
        redirect: None,
    }
}

/// The bytes follow the fields of `MOSDOpReply` version 8 in Ceph's source.
#[test]
fn an_answer_has_the_layout_of_version_8() {
    let mut answer = answer();
    answer.reply.ops.truncate(1);
    let message = answer.encode(REEF);
    let op = "0000 00000000 00000000000000000000000000000000000000000000000000000000 03000000";
    let expected = hex(&format!(
        "03000000 6f626a 01 0300000000000000 9e3906b7 ffffffff 1400000000000000 feffffff
         2e000000 0900000000000000 2e000000 01000000 {op} 00000000 00000000
         2e000000 0900000000000000 0900000000000000 00
         000000000000000000000000000000000000000000000000"
    ));
    assert_eq!(message.front, expected);
    assert_eq!((message.kind, message.version, message.compat_version), (43, 8, 2));
}

#[test]
fn an_answer_survives_a_round_trip_and_attacks() {
    let redirect = Redirect {
        pool: PoolId(4),
        namespace: Arc::from("n"),
        key: Arc::from("k"),
        object: Arc::from("o"),
    };
    for redirect in [None, Some(redirect)] {
        let answer = OsdOpReply { redirect, ..answer() };
        let message = answer.encode(REEF);
        let read = OsdOpReply::decode(&message).unwrap();
        assert_eq!(read, answer);
        assert_eq!(read.reply.ops[2].data.as_ptr(), message.data[1].as_ptr());
        attack(&message, OsdOpReply::decode);
        // A newer version has more behind.
        let front = [&message.front[..], b"more"].concat().into();
        let newer = Message { front, version: 9, ..message };
        assert_eq!(OsdOpReply::decode(&newer).unwrap(), answer);
    }
}

#[test]
fn an_answer_commands_no_memory() {
    let mut front = answer().encode(REEF).front.to_vec();
    let at = 4 + 3 + 17 + 8 + 4 + 12 + 4;
    front[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let message = Message { front: front.into(), ..answer().encode(REEF) };
    assert!(OsdOpReply::decode(&message).is_err());
}

fn position(hash: u32, name: &str) -> ObjectPosition {
    ObjectPosition::of(&ObjectName::new(PoolId(3), "", name), hash, SnapId::HEAD)
}

#[test]
fn a_backoff_survives_a_round_trip_and_attacks() {
    let backoff = OsdBackoff {
        target: ShardedPg { pg: PgId { pool: PoolId(3), seed: 1 }, shard: 2 },
        map_epoch: 7,
        step: BackoffStep::Block,
        id: 99,
        begin: position(1, "a"),
        end: ObjectPosition::last(),
    };
    let message = backoff.encode(REEF);
    assert_eq!(OsdBackoff::decode(&message), Ok(backoff.clone()));
    attack(&message, OsdBackoff::decode);
    assert!(backoff.holds(&position(1, "a")));
    assert!(backoff.holds(&position(3, "a")));
    assert!(!backoff.holds(&position(2, "a")), "reversed, 2 is less than 1");
    let one = OsdBackoff { end: backoff.begin.clone(), ..backoff };
    assert!(one.holds(&position(1, "a")));
    assert!(!one.holds(&position(1, "b")));
}

#[test]
fn a_notification_survives_a_round_trip_and_attacks() {
    let notify = WatchNotify {
        kind: NotifyKind::Complete,
        cookie: 1,
        version: 2,
        notify_id: 3,
        payload: Bytes::from_static(b"xy"),
        result: -110,
        from: 4153,
    };
    let message = notify.encode(REEF);
    let expected = hex("
        01 02 0100000000000000 0200000000000000 0300000000000000 00000000
        92ffffff 3910000000000000");
    assert_eq!(message.front, expected);
    assert_eq!(message.data.concat(), notify.payload, "the answers are data");
    assert_eq!((message.version, message.compat_version), (3, 1));
    assert_eq!(WatchNotify::decode(&message).as_ref(), Ok(&notify));
    attack(&Message { data: smallvec![], ..message }, WatchNotify::decode);
    let begun = WatchNotify { kind: NotifyKind::Notify, ..notify };
    let message = begun.encode(REEF);
    assert_eq!(message.front.slice(26..32), hex("02000000 7879"));
    assert_eq!(WatchNotify::decode(&message), Ok(begun));
    let old = Message { version: 1, front: message.front.slice(..32), ..message };
    assert_eq!(WatchNotify::decode(&old).unwrap().result, 0);
}

#[test]
fn maps_survive_a_round_trip_and_attacks() {
    let maps = OsdMaps {
        fsid: *b"0123456789abcdef",
        incremental: vec![(5, Bytes::from_static(b"inc"))],
        full: vec![(4, Bytes::from_static(b"full"))],
        oldest: 1,
        newest: 5,
    };
    let message = maps.encode(REEF);
    let expected = hex("
        30313233343536373839616263646566
        01000000 05000000 03000000 696e63 01000000 04000000 04000000 66756c6c
        01000000 05000000 00000000");
    assert_eq!(message.front, expected);
    assert_eq!((message.kind, message.version, message.compat_version), (41, 4, 3));
    assert_eq!(OsdMaps::decode(&message), Ok(maps));
    attack(&message, OsdMaps::decode);
    let map = OsdMaps::decode(&message).unwrap().full.remove(0).1;
    assert!(message.front.as_ptr_range().contains(&map.as_ptr()), "maps are not copied");
}

/// The bytes follow the fields of `hobject_t` version 4 in Ceph's source.
#[test]
fn a_position_has_the_layout_of_version_4() {
    let name = ObjectName { key: "okey".into(), ..ObjectName::new(PoolId(0), "n1", "oname2") };
    let expected = hex("
        04 03 2d000000 04000000 6f6b6579 06000000 6f6e616d6532 feffffffffffffff 43000000 00
        02000000 6e31 0000000000000000");
    assert_eq!(ObjectPosition::of(&name, 67, SnapId::HEAD).to_bytes(), expected);
    let first = hex("
        04 03 21000000 00000000 00000000 0000000000000000 00000000 00 00000000
        0000000000000080");
    assert_eq!(ObjectPosition::first().to_bytes(), first);
}

#[test]
fn positions_have_cephs_order() {
    let with = |change: &dyn Fn(&mut ObjectPosition)| {
        let mut position = position(0x8000_0000, "m");
        change(&mut position);
        position
    };
    let mut sorted = vec![
        ObjectPosition::first(),
        with(&|p| (p.pool, p.hash) = (PoolId(-3), u32::MAX)),
        // Reversed: 0x00000001, 0x00000002, 0x80000000.
        with(&|_| ()),
        with(&|p| p.hash = 0x4000_0000),
        with(&|p| p.hash = 1),
        // The namespace is before the key, the key before the name, the name before the snapshot.
        with(&|p| (p.hash, p.namespace) = (3, String::new())),
        with(&|p| (p.hash, p.namespace, p.name) = (3, "a".into(), "a".into())),
        with(&|p| (p.hash, p.namespace, p.name) = (3, "b".into(), "a".into())),
        with(&|p| (p.hash, p.namespace, p.key, p.name) = (3, "b".into(), "b".into(), "z".into())),
        with(&|p| (p.hash, p.namespace, p.name) = (3, "b".into(), "c".into())),
        with(&|p| (p.hash, p.namespace, p.name) = (3, "b".into(), "d\u{e4}".into())),
        with(&|p| (p.pool, p.snapshot) = (PoolId(4), SnapId(1))),
        with(&|p| (p.pool, p.snapshot) = (PoolId(4), SnapId(2))),
        with(&|p| p.pool = PoolId(4)),
        ObjectPosition::last(),
    ];
    let expected = sorted.clone();
    sorted.reverse();
    sorted.sort();
    assert_eq!(sorted, expected);
}

#[test]
fn a_key_that_is_the_name_is_none() {
    let object = ObjectName { key: "x".into(), ..ObjectName::new(PoolId(1), "", "x") };
    let at = ObjectPosition::of(&object, 1, SnapId::HEAD);
    assert_eq!(at.key, "");
    let written = ObjectPosition { key: "x".into(), ..at.clone() }.to_bytes();
    assert_eq!(ObjectPosition::decode(&mut Decoder::new(written)), Ok(at));
}

fn any_position() -> impl Strategy<Value = ObjectPosition> {
    let text = || "[ab]{0,2}";
    (0_i64..3, 0_u32..4, text(), text(), text(), 0_u64..3).prop_map(
        |(pool, hash, namespace, key, name, snapshot)| {
            let object = ObjectName {
                pool: PoolId(pool),
                namespace: namespace.into(),
                key: key.into(),
                name: name.into(),
            };
            ObjectPosition::of(&object, hash, SnapId(snapshot))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn order_agrees_with_equality(a in any_position(), b in any_position(), c in any_position()) {
        prop_assert_eq!(a.cmp(&b).is_eq(), a == b);
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        if a <= b && b <= c {
            prop_assert!(a <= c);
        }
        let bytes = a.to_bytes();
        prop_assert_eq!(ObjectPosition::decode(&mut Decoder::new(bytes)).unwrap(), a);
    }

    #[test]
    fn any_bytes_are_read_without_panic(front: Vec<u8>, data: Vec<u8>, version in 0_u16..11) {
        let message = Message {
            front: front.into(), data: smallvec![data.into()], version, ..Message::default()
        };
        let _ = OsdOp::decode(&message);
        let _ = OsdOpReply::decode(&message);
        let _ = OsdBackoff::decode(&message);
        let _ = WatchNotify::decode(&message);
        let _ = OsdMaps::decode(&message);
    }
}

/// The objects of one group stand together in the order: their hashes end alike.
#[test]
fn a_group_is_a_range_of_positions() {
    let names = (0..200).map(|n| format!("object{n}"));
    let mut all: Vec<_> =
        names.map(|name| position(StringHash::Rjenkins.hash(name.as_bytes()), &name)).collect();
    all.sort();
    let groups: Vec<_> = all.iter().map(|at| (at.hash & 7).reverse_bits()).collect();
    assert!(groups.is_sorted());
}
