//! Round trips of all messages, golden bytes, and hostile bytes.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;

use super::*;
use crate::cluster::SnapId;
use crate::encoding::{Addresses, EntityAddress, Fault, Time};

const FSID: Fsid = [
    0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff,
];

/// `monmaptool` of Ceph 16.2.15: `--create --fsid 00112233-4455-6677-8899-aabbccddeeff
/// --addv a [v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0] --addv b [v2:10.0.0.2:3300/0] FILE`.
const MAP_16: &str = "09060801000000112233445566778899aabbccddeeff00000000adb9096bad234e30\
    adb9096bad234e3001010800000000000000000000000101080000000000000000000000020000000100000061\
    050158000000010000006102020000000101011c00000002000000000000001000000002000ce40a000001000000\
    00000000000101011c00000001000000000000001000000002001a850a0000010000000000000000000000000000\
    00000100000062050135000000010000006202010000000101011c00000002000000000000001000000002000ce4\
    0a00000200000000000000000000000000000000020000000100000061010000006200000000000100000000000000\
    000000000000";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(pair, 16).expect("digits")
    };
    digits.chunks(2).map(byte).collect()
}

fn map() -> MonMap {
    MonMap::decode(&mut Decoder::new(hex(MAP_16).into())).expect("a map")
}

/// A message of each kind.
fn samples() -> Vec<Message> {
    let what = BTreeMap::from([
        (WHAT_MONMAP.to_owned(), Subscription { start: 3, once: false }),
        (WHAT_OSDMAP.to_owned(), Subscription { start: 0, once: true }),
    ]);
    let payload = Bytes::from_static(b"payload");
    let pools = vec!["rbd".to_owned(), "ec".to_owned()];
    let command = vec!["{\"prefix\":\"status\"}".to_owned()];
    let status = String::from("all well");
    let stats = PoolStats { bytes: 4096, objects: 2, clones: 1, copies: 6 };
    let options = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
    let reply = StatFsReply { tid: 4, fsid: FSID, version: 5, total_kib: 6, ..Default::default() };
    let (kind, snap) = (PoolOpKind::RemoveSnap, SnapId(0x1_0000_0001));
    let pool_op = PoolOp { tid: 2, osdmap_epoch: 8, fsid: FSID, pool: PoolId(7), kind, snap };
    vec![
        MonMapMessage { map: map() }.encode(),
        Subscribe { what, hostname: "host".into() }.encode(),
        SubscribeAck { interval_s: 300, fsid: FSID }.encode(),
        GetVersion { id: 9, what: "osdmap".into() }.encode(),
        GetVersionReply { id: 9, newest: 8, oldest: 7 }.encode(),
        Command { tid: 1, fsid: FSID, command: command.clone(), input: payload.clone() }.encode(),
        CommandAck { tid: 1, version: 2, result: -22, status, command, output: Bytes::new() }
            .encode(),
        Config { options }.encode(),
        Auth { method: METHOD_CEPHX, payload: payload.clone(), monmap_epoch: 3 }.encode(),
        AuthReply { method: 2, result: -13, global_id: 4123, payload, status: "no".into() }
            .encode(),
        pool_op.encode(),
        PoolOpReply { tid: 2, fsid: FSID, result: -2, osdmap_epoch: 9, data: Bytes::new() }
            .encode(),
        StatFs { tid: 4, fsid: FSID, pool: Some(PoolId(3)) }.encode(),
        reply.encode(),
        GetPoolStats { tid: 5, fsid: FSID, pools: pools.clone() }.encode(),
        GetPoolStatsReply {
            tid: 5,
            fsid: FSID,
            pools: pools.into_iter().map(|pool| (pool, stats)).collect(),
        }
        .encode(),
    ]
}

/// Reads a message as one kind, and writes it again.
type Again = fn(&Message) -> Result<Message, DecodeError>;

/// Decodes a message as what its kind says, and encodes it again.
fn again(message: &Message) -> Result<Message, DecodeError> {
    const KINDS: [Again; 16] = [
        |message| Ok(MonMapMessage::decode(message)?.encode()),
        |message| Ok(Subscribe::decode(message)?.encode()),
        |message| Ok(SubscribeAck::decode(message)?.encode()),
        |message| Ok(GetVersion::decode(message)?.encode()),
        |message| Ok(GetVersionReply::decode(message)?.encode()),
        |message| Ok(Command::decode(message)?.encode()),
        |message| Ok(CommandAck::decode(message)?.encode()),
        |message| Ok(Config::decode(message)?.encode()),
        |message| Ok(Auth::decode(message)?.encode()),
        |message| Ok(AuthReply::decode(message)?.encode()),
        |message| Ok(PoolOp::decode(message)?.encode()),
        |message| Ok(PoolOpReply::decode(message)?.encode()),
        |message| Ok(StatFs::decode(message)?.encode()),
        |message| Ok(StatFsReply::decode(message)?.encode()),
        |message| Ok(GetPoolStats::decode(message)?.encode()),
        |message| Ok(GetPoolStatsReply::decode(message)?.encode()),
    ];
    let wrong = Decoder::refused(0, message.kind.into(), "the kind of a message");
    let mut result = Err(wrong);
    for kind in KINDS {
        let decoded = kind(message);
        if decoded != Err(wrong) {
            assert_eq!(result, Err(wrong), "one type reads a kind");
            result = decoded;
        }
    }
    result
}

#[test]
fn messages_survive_a_round_trip() {
    for message in samples() {
        assert_eq!(again(&message), Ok(message));
    }
}

#[test]
fn hostile_bytes_give_errors() {
    for message in samples() {
        let len = message.front.len();
        for cut in 0..len {
            let shorter = Message { front: message.front.slice(..cut), ..message.clone() };
            if let Ok(read) = again(&shorter) {
                // Old versions of these two end earlier.
                assert!(
                    [MessageKind::Auth as u16, MessageKind::PoolOp as u16].contains(&read.kind)
                        || message.kind == MessageKind::GetPoolStatsReply as u16,
                    "{message:?} {cut}"
                );
            }
        }
        for at in 0..len {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = message.front.to_vec();
                bytes[at] ^= flip;
                let _ = again(&Message { front: bytes.into(), ..message.clone() });
            }
        }
    }
}

#[test]
fn the_list_of_monitors_is_monmaptools() {
    let map = map();
    let address = |text: &str| text.parse().expect("an address");
    let v2 = EntityAddress::msgr2(address("10.0.0.1:3300"), 0);
    assert_eq!((map.fsid, map.epoch, map.election_strategy), (FSID, 0, 1));
    assert_eq!(map.ranks, ["a", "b"]);
    assert_eq!(map.created, Time { seconds: 0x6b09_b9ad, nanos: 0x304e_23ad });
    assert_eq!(map.monitors["a"].addresses.msgr2(), Some(v2));
    assert_eq!(map.monitors["a"].addresses.0.len(), 2);
    let b = EntityAddress::msgr2(address("10.0.0.2:3300"), 0);
    assert_eq!(map.monitors["b"].addresses, Addresses(vec![b]));
    let mut encoder = Encoder::new();
    map.encode(&mut encoder);
    assert_eq!(encoder.into_vec(), hex(MAP_16));
    assert_eq!(map.by_rank().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn newer_lists_of_monitors_are_read() {
    // A newer writer adds fields at the end of the list and of each monitor.
    let mut encoder = Encoder::new();
    let mut expected = map();
    expected.monitors.get_mut("b").expect("b").location =
        BTreeMap::from([("datacenter".to_owned(), "north".to_owned())]);
    expected.tiebreaker = "a".into();
    expected.encode(&mut encoder);
    let mut bytes = encoder.into_vec();
    bytes[0] = 10;
    let len = u32::from_le_bytes(bytes[2..6].try_into().expect("four bytes")) + 3;
    bytes[2..6].copy_from_slice(&len.to_le_bytes());
    bytes.extend([1, 2, 3]);
    assert_eq!(MonMap::decode(&mut Decoder::new(bytes.clone().into())), Ok(expected));
    // But not if the writer demands a newer reader.
    bytes[1] = 10;
    let error = MonMap::decode(&mut Decoder::new(bytes.into())).expect_err("too new");
    assert_eq!(error.fault, Fault::TooNew { compat: 10, known: 9 });
}

#[test]
fn the_bytes_are_as_the_protocol_wants_them() {
    // Written by hand from the layouts of Ceph's messages.
    let what = BTreeMap::from([("osdmap".to_owned(), Subscription { start: 258, once: true })]);
    let subscribe = Subscribe { what, hostname: "h".into() }.encode();
    let expected = "01000000 06000000 6f73646d6170 0201000000000000 01 01000000 68";
    assert_eq!(subscribe.front, hex(expected));
    assert_eq!((subscribe.version, subscribe.compat_version), (3, 1));

    let command = vec!["{}".to_owned()];
    let command = Command { tid: 7, fsid: FSID, command, input: Bytes::new() }.encode();
    let expected = "0000000000000000 ffff 0000000000000000 00112233445566778899aabbccddeeff \
        01000000 02000000 7b7d";
    assert_eq!((command.tid, command.version, command.data_bytes()), (7, 1, 0));
    assert_eq!(command.front, hex(expected));

    let statfs = StatFs { tid: 1, fsid: FSID, pool: None }.encode();
    let expected = "0000000000000000 ffff 0000000000000000 00112233445566778899aabbccddeeff 00";
    assert_eq!(statfs.front, hex(expected));
    let statfs = StatFs { tid: 1, fsid: FSID, pool: Some(PoolId(5)) }.encode();
    assert_eq!(statfs.front[35..], hex("0500000000000000"));

    let (kind, snap) = (PoolOpKind::CreateSnap, SnapId(0));
    let op = PoolOp { tid: 1, osdmap_epoch: 17, fsid: FSID, pool: PoolId(5), kind, snap };
    let expected = "1100000000000000 ffff 0000000000000000 00112233445566778899aabbccddeeff \
        05000000 21000000 0000000000000000 0000000000000000 00000000 00 0000";
    let message = op.encode();
    assert_eq!((message.version, message.compat_version), (4, 2));
    assert_eq!(message.front, hex(expected));

    let data = PoolOpReply::data_of_snap(SnapId(3));
    let reply = PoolOpReply { tid: 1, fsid: FSID, result: -2, osdmap_epoch: 18, data };
    let expected = "1200000000000000 ffff 0000000000000000 00112233445566778899aabbccddeeff \
        feffffff 12000000 01 08000000 0300000000000000";
    assert_eq!(reply.encode().front, hex(expected));
    assert_eq!(reply.snap(), Some(SnapId(3)));
}
