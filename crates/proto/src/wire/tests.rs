use bytes::Bytes;
use fieldstone_buf::{Budget, Lease};
use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;
use crate::{
    Capability, CapabilityError, Column, Content, ElementTable, ElementTerm, Epoch, Factors,
    FragmentRole, Fragments, JournalGen, JournalInfo, Lsn, NodeError, NodeIndex, NodeStat, Outcome,
    Pass, PoolId, Replica, Reply, ReplyBody, Request, RequestBody, Rights, Route, SealMeta,
    SegmentId, SegmentKind, ShardIndex, ShardInfo, VolumeId, VolumeState, VolumeSummary,
};

fn joined(parts: &[Bytes]) -> Vec<u8> {
    parts.concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes one message that is exactly `bytes`.
fn decode<M: decoder::Message>(bytes: &[u8]) -> Result<Option<M>, WireError> {
    let mut rest = bytes;
    let message = Decoder::new().feed(&mut rest)?;
    assert!(rest.is_empty() || message.is_some());
    Ok(message)
}

fn capability() -> Capability {
    Capability {
        volume: VolumeId(0x0102),
        epoch: Epoch(3),
        rights: Rights(7),
        segment_first: SegmentId(0),
        segment_last: SegmentId(u64::MAX),
        expires_ns: 0x1122_3344,
        mac: [0xab; 16],
    }
}

/// A bitwise implementation outside this project computed the checksums here.
#[test]
fn golden_request() {
    let request = Request {
        tag: Tag(0x55),
        capability: capability(),
        body: RequestBody::ShardWrite {
            segment: SegmentId(9),
            shard: ShardIndex(4),
            offset_bytes: 4096,
            checksums: vec![0xdead_beef],
            seal: Some(SealMeta {
                kind: SegmentKind::Checkpoint,
                lsn_first: Lsn(1),
                lsn_end: Lsn(2),
                shard_bytes: 8192,
            }),
            data_first: false,
        },
        route: None,
        payload: vec![Bytes::from_static(b"field"), Bytes::from_static(b"stone")],
    };
    let bytes = joined(&encode_request(&request).unwrap());
    let golden = concat!(
        "46535457",
        "0200",
        "00",
        "09",
        "5500000000000000",
        "00000000",
        "6f000000",
        "0a000000",
        "73fee353",
        "ba1238a2",
        "ee63a2c7",
        "02010000000000000000000000000000",
        "0300000000000000",
        "07000000",
        "0000000000000000",
        "ffffffffffffffff",
        "4433221100000000",
        "abababababababababababababababab",
        "0900000000000000",
        "04",
        "00100000",
        "01",
        "01",
        "0100000000000000",
        "0200000000000000",
        "00200000",
        "01000000",
        "efbeadde",
        "6669656c6473746f6e65"
    );
    assert_eq!(hex(&bytes), golden);
}

/// A program outside this project made these bytes, too.
#[test]
fn golden_routed_request() {
    let replica = |node, pass, shard, address| Replica {
        node: NodeIndex(node),
        pass: Pass(pass),
        shard: ShardIndex(shard),
        address: Bytes::from_static(address),
    };
    let replicas = vec![replica(2, 5, 0, b""), replica(0, 6, 1, b"unix:/n")];
    let strategy = crate::Strategy::Ring;
    let content = Content::Same;
    let route =
        Route { strategy, rank: 1, wait_ms: 1500, replicas, content, fragments: Fragments::Whole };
    let request = Request {
        tag: Tag(0x55),
        capability: capability(),
        body: RequestBody::JournalAppend { generation: JournalGen(9), lsn: Lsn(4096) },
        route: Some(Box::new(route)),
        payload: vec![Bytes::from_static(b"fieldstone")],
    };
    let golden = concat!(
        "46535457",
        "0300",
        "00",
        "45",
        "5500000000000000",
        "00000000",
        "83000000",
        "0a000000",
        "66aaf439",
        "ba1238a2",
        "7643275e",
        "02010000000000000000000000000000",
        "0300000000000000",
        "07000000",
        "0000000000000000",
        "ffffffffffffffff",
        "4433221100000000",
        "abababababababababababababababab",
        "01",
        "01",
        "dc050000",
        "02000000",
        "0200",
        "0500000000000000",
        "00",
        "00000000",
        "0000",
        "0600000000000000",
        "01",
        "07000000",
        "756e69783a2f6e",
        "0900000000000000",
        "0010000000000000",
        "6669656c6473746f6e65"
    );
    let bytes = joined(&encode_request(&request).unwrap());
    assert_eq!(hex(&bytes), golden);
    assert_eq!(decode(&bytes).unwrap(), Some(request));
}

/// A program outside this project made these bytes, too.
#[test]
fn golden_request_in_fragments() {
    let replica = |node, pass, shard, address| Replica {
        node: NodeIndex(node),
        pass: Pass(pass),
        shard: ShardIndex(shard),
        address: Bytes::from_static(address),
    };
    let replicas = vec![replica(2, 5, 0, b""), replica(0, 6, 1, b"unix:/n")];
    let (strategy, fragments) = (crate::Strategy::Ring, Fragments::Follow(8192));
    let route = Route { strategy, rank: 1, wait_ms: 1500, replicas, fragments, ..Route::default() };
    let begin = Request {
        tag: Tag(0x55),
        capability: capability(),
        body: RequestBody::JournalAppend { generation: JournalGen(9), lsn: Lsn(4096) },
        route: Some(Box::new(route)),
        payload: Vec::new(),
    };
    let checksums = vec![0x1122_3344, 0x5566_7788];
    let data = vec![Bytes::from_static(b"fieldstone")];
    let fragment = crate::fragments::fragment(Tag(0x55), checksums, data);
    let begin_golden = concat!(
        "46535457",
        "0700",
        "00",
        "45",
        "5500000000000000",
        "00000000",
        "87000000",
        "00000000",
        "0cc504fd",
        "00000000",
        "4d96393b",
        "02010000000000000000000000000000",
        "0300000000000000",
        "07000000",
        "0000000000000000",
        "ffffffffffffffff",
        "4433221100000000",
        "abababababababababababababababab",
        "01",
        "01",
        "dc050000",
        "02000000",
        "0200",
        "0500000000000000",
        "00",
        "00000000",
        "0000",
        "0600000000000000",
        "01",
        "07000000",
        "756e69783a2f6e",
        "00200000",
        "0900000000000000",
        "0010000000000000"
    );
    let fragment_golden = concat!(
        "46535457",
        "0700",
        "00",
        "14",
        "5500000000000000",
        "00000000",
        "0c000000",
        "0a000000",
        "1c92c089",
        "ba1238a2",
        "a587ad70",
        "02000000",
        "44332211",
        "88776655",
        "6669656c6473746f6e65"
    );
    let end_golden = concat!(
        "46535457",
        "0700",
        "00",
        "15",
        "5500000000000000",
        "00000000",
        "00000000",
        "00000000",
        "00000000",
        "00000000",
        "c3d8887f"
    );
    let end = crate::fragments::give_up(Tag(0x55));
    for (request, golden) in [(begin, begin_golden), (fragment, fragment_golden), (end, end_golden)]
    {
        let bytes = joined(&encode_request(&request).unwrap());
        assert_eq!(hex(&bytes), golden);
        assert_eq!(decode(&bytes).unwrap(), Some(request));
    }
}

/// A program outside this project made these bytes, too.
#[test]
fn golden_streamed_request() {
    let replica = |node, pass, shard, address| Replica {
        node: NodeIndex(node),
        pass: Pass(pass),
        shard: ShardIndex(shard),
        address: Bytes::from_static(address),
    };
    let replicas = vec![replica(2, 5, 1, b""), replica(0, 6, 4, b"unix:/n")];
    let strategy = crate::Strategy::Primary;
    let factors = Factors::Scalars(Bytes::from_static(&[0x8e]));
    let content = Content::Column(Column { index: 1, count: 4, factors });
    let request = Request {
        tag: Tag(0x56),
        capability: capability(),
        body: RequestBody::ShardWrite {
            segment: SegmentId(9),
            shard: ShardIndex(1),
            offset_bytes: 4096,
            checksums: vec![0x1122_3344],
            seal: None,
            data_first: false,
        },
        route: Some(Box::new(Route {
            strategy,
            rank: 0,
            wait_ms: 1500,
            replicas,
            content,
            fragments: Fragments::Whole,
        })),
        payload: vec![Bytes::from_static(b"fieldstone")],
    };
    let golden = concat!(
        "46535457",
        "0400",
        "00",
        "89",
        "5600000000000000",
        "00000000",
        "90000000",
        "0a000000",
        "8eb88b4a",
        "ba1238a2",
        "ded3e86c",
        "02010000000000000000000000000000",
        "0300000000000000",
        "07000000",
        "0000000000000000",
        "ffffffffffffffff",
        "4433221100000000",
        "abababababababababababababababab",
        "03",
        "00",
        "dc050000",
        "02000000",
        "0200",
        "0500000000000000",
        "01",
        "00000000",
        "0000",
        "0600000000000000",
        "04",
        "07000000",
        "756e69783a2f6e",
        "01",
        "04",
        "01000000",
        "8e",
        "0900000000000000",
        "01",
        "00100000",
        "00",
        "01000000",
        "44332211",
        "6669656c6473746f6e65"
    );
    let bytes = joined(&encode_request(&request).unwrap());
    assert_eq!(hex(&bytes), golden);
    assert_eq!(decode(&bytes).unwrap(), Some(request));
}

/// A program outside this project made these bytes, too.
#[test]
fn golden_request_with_a_table() {
    let replica = |node, pass, shard, address| Replica {
        node: NodeIndex(node),
        pass: Pass(pass),
        shard: ShardIndex(shard),
        address: Bytes::from_static(address),
    };
    let replicas = vec![replica(2, 5, 1, b""), replica(0, 6, 4, b"unix:/n")];
    let strategy = crate::Strategy::Primary;
    let term = |element, factor| ElementTerm { element, factor };
    let rows = [&[term(1, 3)][..], &[term(0, 1), term(1, 7)]];
    let table = ElementTable::new(8192, 2, rows).unwrap();
    let column = Column { index: 1, count: 4, factors: Factors::Elements(table) };
    let content = Content::Column(column);
    let request = Request {
        tag: Tag(0x57),
        capability: capability(),
        body: RequestBody::ShardWrite {
            segment: SegmentId(9),
            shard: ShardIndex(1),
            offset_bytes: 4096,
            checksums: vec![0x1122_3344],
            seal: None,
            data_first: false,
        },
        route: Some(Box::new(Route {
            strategy,
            rank: 0,
            wait_ms: 1500,
            replicas,
            content,
            fragments: Fragments::Whole,
        })),
        payload: vec![Bytes::from_static(b"fieldstone")],
    };
    let golden = concat!(
        "46535457",
        "0600",
        "00",
        "a9",
        "5700000000000000",
        "00000000",
        "a2000000",
        "0a000000",
        "99fa7a71",
        "ba1238a2",
        "82fb1e8d",
        "02010000000000000000000000000000",
        "0300000000000000",
        "07000000",
        "0000000000000000",
        "ffffffffffffffff",
        "4433221100000000",
        "abababababababababababababababab",
        "03",
        "00",
        "dc050000",
        "02000000",
        "0200",
        "0500000000000000",
        "01",
        "00000000",
        "0000",
        "0600000000000000",
        "04",
        "07000000",
        "756e69783a2f6e",
        "01",
        "04",
        "00200000",
        "0200",
        "0d000000",
        "0100010003",
        "0200000001010007",
        "0900000000000000",
        "01",
        "00100000",
        "00",
        "01000000",
        "44332211",
        "6669656c6473746f6e65"
    );
    let bytes = joined(&encode_request(&request).unwrap());
    assert_eq!(hex(&bytes), golden);
    assert_eq!(decode(&bytes).unwrap(), Some(request));
}

/// A program outside this project made these bytes, too.
#[test]
fn golden_parted_request() {
    let replica = |node, pass, shard, address| Replica {
        node: NodeIndex(node),
        pass: Pass(pass),
        shard: ShardIndex(shard),
        address: Bytes::from_static(address),
    };
    let replicas = vec![replica(2, 5, 1, b""), replica(0, 6, 4, b"unix:/n")];
    let (strategy, content) = (crate::Strategy::Primary, Content::Parts);
    let request = Request {
        tag: Tag(0x57),
        capability: capability(),
        body: RequestBody::ShardWrite {
            segment: SegmentId(9),
            shard: ShardIndex(1),
            offset_bytes: 4096,
            checksums: vec![0x1122_3344, 0x5566_7788],
            seal: None,
            data_first: false,
        },
        route: Some(Box::new(Route {
            strategy,
            rank: 0,
            wait_ms: 1500,
            replicas,
            content,
            fragments: Fragments::Whole,
        })),
        payload: vec![Bytes::from_static(b"field"), Bytes::from_static(b"stone")],
    };
    let golden = concat!(
        "46535457",
        "0500",
        "00",
        "c9",
        "5700000000000000",
        "00000000",
        "8d000000",
        "0a000000",
        "efee50ea",
        "ba1238a2",
        "bd91934e",
        "02010000000000000000000000000000",
        "0300000000000000",
        "07000000",
        "0000000000000000",
        "ffffffffffffffff",
        "4433221100000000",
        "abababababababababababababababab",
        "03",
        "00",
        "dc050000",
        "02000000",
        "0200",
        "0500000000000000",
        "01",
        "00000000",
        "0000",
        "0600000000000000",
        "04",
        "07000000",
        "756e69783a2f6e",
        "0900000000000000",
        "01",
        "00100000",
        "00",
        "02000000",
        "44332211",
        "88776655",
        "6669656c6473746f6e65"
    );
    let bytes = joined(&encode_request(&request).unwrap());
    assert_eq!(hex(&bytes), golden);
    assert_eq!(decode(&bytes).unwrap(), Some(arrived(&request)));
}

/// A program of version 2 does not know the additions of version 3, so no message of version 2 has
/// them, and no other message has version 3. So it is with each later version. Version 7 may also
/// have the operations with a route.
#[test]
fn an_addition_comes_only_with_its_version() {
    let with = |op: u8, version: u16| {
        let bytes = header_with(|_| {});
        let mut header = Header::read_from_bytes(&bytes).unwrap();
        (header.op, header.version) = (op, version.into());
        header.header_crc = crc32c(&header.as_bytes()[..COVERED_BYTES]).into();
        decode::<Request>(header.as_bytes()).unwrap_err().kind
    };
    let unknown = |op: u8| {
        let what = "the operation in this version";
        WireErrorKind::Value { what, value: u64::from(op) }
    };
    for (op, version) in [(16, 2), (19, 3), (69, 3), (137, 4), (201, 5), (169, 6)] {
        assert_eq!(with(op, version), WireErrorKind::Truncated("the capability"));
        let other = if version == 2 { 3 } else { 2 };
        assert_eq!(with(op, other), unknown(op));
        let in_fragments = with(op, 7);
        match op >= 64 {
            true => assert_eq!(in_fragments, WireErrorKind::Truncated("the capability")),
            false => assert_eq!(in_fragments, unknown(op)),
        }
    }
    assert_eq!(with(20, 7), WireErrorKind::Truncated("the checksums"));
    for (op, other) in [(20, 2), (20, 6), (21, 3), (22, 2)] {
        assert!(matches!(with(op, other), WireErrorKind::Value { .. }), "{op} in {other}");
    }
}

#[test]
fn golden_reply() {
    let fenced = NodeError::Fenced { sent: Epoch(1), current: Epoch(2) };
    let reply = Reply { tag: Tag(7), result: Err(fenced), slots_free: 258 };
    let bytes = joined(&encode_reply(&reply).unwrap());
    let golden = concat!(
        "46535457",
        "0200",
        "01",
        "81",
        "0700000000000000",
        "02010000",
        "10000000",
        "00000000",
        "5a6d0422",
        "00000000",
        "e16a5cab",
        "0100000000000000",
        "0200000000000000"
    );
    assert_eq!(hex(&bytes), golden);
}

fn meta() -> impl Strategy<Value = SealMeta> {
    (any::<bool>(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(
        |(data, a, b, shard_bytes)| {
            let kind = if data { SegmentKind::Data } else { SegmentKind::Checkpoint };
            SealMeta { kind, lsn_first: Lsn(a), lsn_end: Lsn(b), shard_bytes }
        },
    )
}

fn request_body() -> impl Strategy<Value = RequestBody> {
    let id = any::<u64>();
    prop_oneof![
        Just(RequestBody::Identify),
        Just(RequestBody::ListVolumes),
        Just(RequestBody::ShardSync),
        Just(RequestBody::RemoveVolume),
        Just(RequestBody::Stat),
        Just(RequestBody::RenewRecord),
        any::<[u32; 2]>().prop_map(|[slots, spare]| RequestBody::Reserve { slots, spare }),
        any::<bool>().prop_map(|takeover| RequestBody::Fence { takeover }),
        id.prop_map(|version| RequestBody::PutRoot { version }),
        (id, id).prop_map(|(generation, ring_bytes)| RequestBody::JournalCreate {
            generation: JournalGen(generation),
            ring_bytes
        }),
        (id, id).prop_map(|(generation, lsn)| RequestBody::JournalAppend {
            generation: JournalGen(generation),
            lsn: Lsn(lsn)
        }),
        id.prop_map(|generation| RequestBody::JournalSync { generation: JournalGen(generation) }),
        (id, id, any::<u32>()).prop_map(|(generation, offset_bytes, len_bytes)| {
            let generation = JournalGen(generation);
            RequestBody::JournalRead { generation, offset_bytes, len_bytes }
        }),
        (id, id).prop_map(|(first, below)| RequestBody::JournalDelete {
            first: JournalGen(first),
            below: JournalGen(below)
        }),
        (
            id,
            any::<u8>(),
            any::<u32>(),
            proptest::collection::vec(any::<u32>(), 0..800),
            proptest::option::of(meta()),
            any::<bool>()
        )
            .prop_map(|(segment, shard, offset_bytes, checksums, seal, data_first)| {
                let (segment, shard) = (SegmentId(segment), ShardIndex(shard));
                // This flag belongs to the seal, and means nothing without one.
                let data_first = data_first && seal.is_some();
                RequestBody::ShardWrite {
                    segment,
                    shard,
                    offset_bytes,
                    checksums,
                    seal,
                    data_first,
                }
            }),
        (id, any::<u8>(), any::<u32>(), any::<u32>()).prop_map(
            |(segment, shard, offset_bytes, len_bytes)| {
                let (segment, shard) = (SegmentId(segment), ShardIndex(shard));
                RequestBody::ShardRead { segment, shard, offset_bytes, len_bytes }
            }
        ),
        (id, any::<u8>()).prop_map(|(segment, shard)| RequestBody::ShardVerify {
            segment: SegmentId(segment),
            shard: ShardIndex(shard)
        }),
        proptest::collection::vec(id.prop_map(SegmentId), 0..100)
            .prop_map(|segments| RequestBody::ShardDelete { segments }),
        id.prop_map(|from| RequestBody::ShardList { from: SegmentId(from) }),
        id.prop_map(|pass| RequestBody::AdmitRelays { pass: Pass(pass) }),
        proptest::collection::vec(any::<u32>(), 0..16)
            .prop_map(|checksums| RequestBody::Fragment { checksums, payload_crc: 0 }),
        Just(RequestBody::GiveUp),
    ]
}

fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn route() -> impl Strategy<Value = Route> {
    let replica = (any::<u16>(), any::<u64>(), any::<u8>(), bytes(100)).prop_map(
        |(node, pass, shard, address)| Replica {
            node: NodeIndex(node),
            pass: Pass(pass),
            shard: ShardIndex(shard),
            address,
        },
    );
    let replicas = proptest::collection::vec(replica, 0..=crate::route::REPLICAS_MAX);
    let strategy = prop::sample::select(crate::Strategy::ALL.to_vec());
    let table =
        (any::<u32>(), any::<u16>(), bytes(300)).prop_map(|(chunk_bytes, elements, encoded)| {
            Factors::Elements(ElementTable { chunk_bytes, elements, encoded })
        });
    let factors = prop_oneof![bytes(crate::route::REPLICAS_MAX).prop_map(Factors::Scalars), table];
    let column = (any::<u8>(), any::<u8>(), factors).prop_map(|(index, count, factors)| Column {
        index,
        count,
        factors,
    });
    let content =
        prop_oneof![Just(Content::Same), column.prop_map(Content::Column), Just(Content::Parts),];
    let fragments = prop_oneof![
        Just(Fragments::Whole),
        (1..=PAYLOAD_BYTES_MAX as u32).prop_map(Fragments::Follow)
    ];
    (strategy, any::<u8>(), any::<u32>(), replicas, content, fragments).prop_map(
        |(strategy, rank, wait_ms, replicas, content, fragments)| Route {
            strategy,
            rank,
            wait_ms,
            replicas,
            content,
            fragments,
        },
    )
}

prop_compose! {
    fn request()(
        tag in any::<u64>(),
        volume in any::<u128>(),
        numbers in any::<[u64; 4]>(),
        rights in any::<u32>(),
        mac in any::<[u8; 16]>(),
        body in request_body(),
        route in proptest::option::of(route()),
        payload in proptest::collection::vec(bytes(3000), 0..4),
    ) -> Request {
        let capability = Capability {
            volume: VolumeId(volume),
            epoch: Epoch(numbers[0]),
            rights: Rights(rights),
            segment_first: SegmentId(numbers[1]),
            segment_last: SegmentId(numbers[2]),
            expires_ns: numbers[3],
            mac,
        };
        let request =
            Request { tag: Tag(tag), capability, body, route: route.map(Box::new), payload };
        match (request.fragment_role(), request.body.clone()) {
            (FragmentRole::None, _) => request,
            (FragmentRole::Begins(_), _) => Request { payload: Vec::new(), ..request },
            (_, RequestBody::Fragment { checksums, .. }) => {
                crate::fragments::fragment(request.tag, checksums, request.payload)
            }
            _ => crate::fragments::give_up(request.tag),
        }
    }
}

prop_compose! {
    fn stat()(
        pool in any::<u128>(),
        node in any::<u16>(),
        a in any::<[u64; 5]>(),
        b in any::<[u32; 4]>(),
    )
        -> NodeStat
    {
        NodeStat {
            pool: PoolId(pool), node: NodeIndex(node), incarnation: a[0], slot_bytes: b[0],
            slots_total: b[1], slots_free: b[2], slots_lacking: b[3], read_bytes: a[1],
            written_bytes: a[2], refused: a[3], corrupt_blocks: a[4],
        }
    }
}

prop_compose! {
    fn volume_state()(
        numbers in any::<[u64; 2]>(), root in bytes(2000), stat in stat(),
        journals in proptest::collection::vec(any::<(u64, u64)>(), 0..9),
    ) -> VolumeState {
        let journals = journals.into_iter().map(|(generation, ring_bytes)| {
            JournalInfo { generation: JournalGen(generation), ring_bytes }
        });
        VolumeState {
            epoch_before: Epoch(numbers[0]), root_version: numbers[1], root,
            journals: journals.collect(), stat,
        }
    }
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let result = prop_oneof![
        Just(Ok(())),
        Just(Err(NodeError::Busy)),
        Just(Err(NodeError::Denied)),
        "\\PC{0,40}".prop_map(|reason| Err(NodeError::Io(reason))),
        any::<[u16; 2]>().prop_filter("other nodes", |[from, to]| from != to).prop_map(
            |[from, to]| Err(NodeError::NotPassedOn { from: NodeIndex(from), to: NodeIndex(to) })
        ),
    ];
    (any::<u16>(), result).prop_map(|(node, result)| Outcome { node: NodeIndex(node), result })
}

/// A release that does not know *denied* gets numbers and versions that it knows.
#[test]
fn denied_is_a_request_that_a_node_did_not_pass_on_to_itself() {
    const NOT_PASSED_ON: u8 = 138;
    let (mut head, mut parts) = (Vec::new(), Vec::new());
    for result in [
        Err(NodeError::Denied),
        Ok(ReplyBody::Outcomes(vec![Outcome {
            node: NodeIndex(7),
            result: Err(NodeError::Denied),
        }])),
    ] {
        let expected = if result.is_ok() { 6 } else { NOT_PASSED_ON };
        let reply = Reply { tag: Tag(1), result, slots_free: 0 };
        let bytes = joined(&encode_reply(&reply).unwrap());
        assert_eq!((u16::from_le_bytes([bytes[4], bytes[5]]), bytes[7]), (3, expected));
        (head, parts) = (parts, bytes);
    }
    let (alone, in_outcomes) = (&head[WIRE_HEADER_BYTES..], &parts[WIRE_HEADER_BYTES..]);
    assert_eq!(alone, [0, 0, 0, 0]);
    assert_eq!(in_outcomes, [1, 0, 0, 0, 7, 0, NOT_PASSED_ON, 0, 0, 0, 0]);
}

fn reply_result() -> impl Strategy<Value = Result<ReplyBody, NodeError>> {
    let summary = (any::<u128>(), any::<u64>(), any::<u64>(), bytes(500)).prop_map(
        |(volume, epoch, root_version, root)| VolumeSummary {
            volume: VolumeId(volume),
            epoch: Epoch(epoch),
            root_version,
            root,
        },
    );
    let shard = (any::<u64>(), any::<u8>(), meta()).prop_map(|(segment, shard, meta)| ShardInfo {
        segment: SegmentId(segment),
        shard: ShardIndex(shard),
        meta,
    });
    let reason = prop_oneof![
        Just(CapabilityError::Forged),
        Just(CapabilityError::Expired),
        Just(CapabilityError::Rights),
        Just(CapabilityError::Range),
        Just(CapabilityError::Retired),
        Just(CapabilityError::UnknownGeneration),
    ];
    prop_oneof![
        Just(Ok(ReplyBody::Done)),
        bytes(5000).prop_map(|data| Ok(ReplyBody::Data(data))),
        stat().prop_map(|stat| Ok(ReplyBody::Stat(stat))),
        proptest::collection::vec(summary, 0..5).prop_map(|all| Ok(ReplyBody::Volumes(all))),
        volume_state().prop_map(|state| Ok(ReplyBody::VolumeState(state))),
        (proptest::collection::vec(shard, 0..50), proptest::option::of(any::<u64>()))
            .prop_map(|(shards, next)| Ok(ReplyBody::Shards { shards, next: next.map(SegmentId) })),
        proptest::collection::vec(outcome(), 0..=crate::route::REPLICAS_MAX)
            .prop_map(|outcomes| Ok(ReplyBody::Outcomes(outcomes))),
        reason.prop_map(|reason| Err(NodeError::Capability(reason))),
        any::<(u64, u64)>().prop_map(|(sent, current)| Err(NodeError::Fenced {
            sent: Epoch(sent),
            current: Epoch(current)
        })),
        any::<u64>().prop_map(|epoch| Err(NodeError::InUse { current: Epoch(epoch) })),
        Just(Err(NodeError::NotFound)),
        any::<u32>().prop_map(|offset_bytes| Err(NodeError::Corrupt { offset_bytes })),
        Just(Err(NodeError::NoSpace)),
        Just(Err(NodeError::Busy)),
        "\\PC{0,40}".prop_map(|reason| Err(NodeError::Invalid(reason))),
        "\\PC{0,40}".prop_map(|reason| Err(NodeError::Io(reason))),
        Just(Err(NodeError::Unreachable)),
        Just(Err(NodeError::Denied)),
    ]
}

prop_compose! {
    fn reply()(tag in any::<u64>(), result in reply_result(), slots_free in any::<u32>()) -> Reply {
        Reply { tag: Tag(tag), result, slots_free }
    }
}

/// The form in which a request arrives: its payload in one piece.
fn arrived(request: &Request) -> Request {
    let payload = joined(&request.payload);
    let payload = if payload.is_empty() { vec![] } else { vec![Bytes::from(payload)] };
    Request { payload, ..request.clone() }
}

/// Decodes a stream that is cut at the given distances.
fn decode_cut<M: decoder::Message>(stream: &[u8], cuts: &[usize]) -> Vec<M> {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    let mut rest = stream;
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let len = cuts.next().copied().unwrap_or(1).clamp(1, rest.len());
        let (mut piece, tail) = rest.split_at(len);
        while !piece.is_empty() {
            messages.extend(decoder.feed(&mut piece).unwrap());
        }
        rest = tail;
    }
    assert!(decoder.is_idle());
    messages
}

proptest! {
    #[test]
    fn requests_round_trip_however_the_stream_is_cut(
        requests in proptest::collection::vec(request(), 1..4),
        cuts in proptest::collection::vec(1usize..2000, 1..6),
    ) {
        let stream: Vec<u8> =
            requests.iter().flat_map(|request| joined(&encode_request(request).unwrap())).collect();
        let expected: Vec<Request> = requests.iter().map(arrived).collect();
        let got: Vec<Request> = decode_cut(&stream, &cuts);
        prop_assert!(got.iter().flat_map(|r| &r.payload).all(|p| p.as_ptr().addr() % 4096 == 0));
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn replies_round_trip_however_the_stream_is_cut(
        replies in proptest::collection::vec(reply(), 1..4),
        cuts in proptest::collection::vec(1usize..2000, 1..6),
    ) {
        let stream: Vec<u8> =
            replies.iter().flat_map(|reply| joined(&encode_reply(reply).unwrap())).collect();
        prop_assert_eq!(decode_cut::<Reply>(&stream, &cuts), replies);
    }

    #[test]
    fn every_flipped_bit_is_an_error(request in request(), at in any::<prop::sample::Index>()) {
        let mut stream = joined(&encode_request(&request).unwrap());
        let bit = at.index(stream.len() * 8);
        stream[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(decode::<Request>(&stream).is_err());
    }

    /// Any body behind a correct header: no panic, no allocation beyond the message.
    #[test]
    fn any_body_gives_a_message_or_an_error(
        op in any::<u8>(),
        fields in proptest::collection::vec(any::<u8>(), 0..300),
        short in 0usize..100,
    ) {
        let mut message = vec![0; WIRE_HEADER_BYTES];
        message.extend_from_slice(&fields[..fields.len().saturating_sub(short)]);
        let cases = [
            (0, WIRE_VERSION_BASIC, REQUEST_BODY_BYTES_MAX),
            (0, WIRE_VERSION_ROUTES, REQUEST_BODY_BYTES_MAX),
            (0, WIRE_VERSION_COLUMNS, REQUEST_BODY_BYTES_MAX),
            (0, WIRE_VERSION_PARTS, REQUEST_BODY_BYTES_MAX),
            (0, WIRE_VERSION_TABLES, REQUEST_BODY_BYTES_MAX),
            (0, WIRE_VERSION, REQUEST_BODY_BYTES_MAX),
            (1, WIRE_VERSION_BASIC, REPLY_BODY_BYTES_MAX),
            (1, WIRE_VERSION_ROUTES, REPLY_BODY_BYTES_MAX),
        ];
        for (direction, version, body_max) in cases {
            let envelope =
                Envelope { direction, op, version, tag: Tag(1), slots_free: 0, body_max };
            let stream = joined(&assemble(&envelope, message.clone(), &[]).unwrap());
            let error = if direction == 0 {
                decode::<Request>(&stream).err()
            } else {
                decode::<Reply>(&stream).err()
            };
            if let Some(error) = error {
                prop_assert!(error.at_byte <= stream.len(), "{}", error);
            }
        }
    }

    #[test]
    fn noise_is_refused(noise in proptest::collection::vec(any::<u8>(), 4..200)) {
        prop_assume!(noise[..4] != MAGIC);
        let error = decode::<Reply>(&noise).unwrap_err();
        prop_assert_eq!(error.at_byte, 0);
        prop_assert!(matches!(error.kind, WireErrorKind::Magic(_)));
    }
}

fn header_with(change: fn(&mut Header)) -> Vec<u8> {
    let envelope = Envelope {
        direction: 0,
        version: WIRE_VERSION_BASIC,
        op: 0,
        tag: Tag(1),
        slots_free: 0,
        body_max: 100,
    };
    let bytes = joined(&assemble(&envelope, vec![0; WIRE_HEADER_BYTES], &[]).unwrap());
    let mut header = Header::read_from_bytes(&bytes).unwrap();
    change(&mut header);
    header.header_crc = crc32c(&header.as_bytes()[..COVERED_BYTES]).into();
    header.as_bytes().to_vec()
}

#[test]
fn lengths_and_versions_are_checked_before_anything_is_allocated() {
    let refuse = |change| decode::<Request>(&header_with(change)).unwrap_err();
    let long = refuse(|header| header.body_len = (u32::MAX).into());
    assert_eq!(
        long.to_string(),
        "byte 20 of the message: the body is 4294967295 long, more than 65536"
    );
    let long = refuse(|header| header.payload_len = (5 << 20).into());
    assert!(matches!(long.kind, WireErrorKind::TooLong { what: "payload", .. }));
    let future = refuse(|header| header.version = (WIRE_VERSION + 1).into());
    assert_eq!(
        future.kind,
        WireErrorKind::Version { found: WIRE_VERSION + 1, known: WIRE_VERSION }
    );
    let wrong = refuse(|header| header.direction = 1);
    assert_eq!((wrong.at_byte, matches!(wrong.kind, WireErrorKind::Value { .. })), (6, true));
    let short = refuse(|_| {});
    assert_eq!(short.kind, WireErrorKind::Truncated("the capability"));
}

#[test]
fn a_decoder_takes_no_more_than_its_limit() {
    let reply = |data: usize| Reply {
        tag: Tag(1),
        result: Ok(ReplyBody::Data(vec![7; data].into())),
        slots_free: 0,
    };
    let volumes = ReplyBody::Shards { shards: Vec::new(), next: None };
    let mut decoder = Decoder::<Reply>::new();
    decoder.limit(1024, 0);
    let short = joined(&encode_reply(&Reply { result: Ok(volumes), ..reply(0) }).unwrap());
    assert!(decoder.feed(&mut &short[..]).unwrap().is_some());
    // The header alone is too much: nothing waits for the rest.
    let long = joined(&encode_reply(&reply(1)).unwrap());
    let error = decoder.feed(&mut &long[..WIRE_HEADER_BYTES]).unwrap_err();
    assert!(matches!(error.kind, WireErrorKind::TooLong { what: "payload", max: 0, .. }));
    let mut decoder = Decoder::<Reply>::new();
    decoder.limit(8, usize::MAX);
    let reason = Reply { result: Err(NodeError::Io("x".repeat(100))), ..reply(0) };
    let long = joined(&encode_reply(&reason).unwrap());
    let error = decoder.feed(&mut &long[..WIRE_HEADER_BYTES]).unwrap_err();
    assert!(matches!(error.kind, WireErrorKind::TooLong { what: "body", max: 8, .. }));
}

#[test]
fn errors_stay_and_long_messages_are_not_made() {
    let mut decoder = Decoder::<Request>::new();
    let mut noise: &[u8] = b"GET / HTTP/1.1";
    let first = decoder.feed(&mut noise).unwrap_err();
    let mut more: &[u8] = b"FSTW";
    assert_eq!(decoder.feed(&mut more).unwrap_err(), first);
    let mut request = Request {
        tag: Tag(1),
        capability: capability(),
        body: RequestBody::PutRoot { version: 1 },
        route: None,
        payload: vec![Bytes::from(vec![0; PAYLOAD_BYTES_MAX]), Bytes::from_static(b"x")],
    };
    let error = encode_request(&request).unwrap_err();
    assert!(matches!(error.kind, WireErrorKind::TooLong { what: "payload", .. }));
    request.payload.clear();
    request.body = RequestBody::ShardDelete { segments: vec![SegmentId(1); 9000] };
    let error = encode_request(&request).unwrap_err();
    assert!(matches!(error.kind, WireErrorKind::TooLong { what: "body", .. }));
    let reason = "ü".repeat(2000);
    let reply = Reply { tag: Tag(1), result: Err(NodeError::Io(reason)), slots_free: 0 };
    let bytes = joined(&encode_reply(&reply).unwrap());
    let Some(Reply { result: Err(NodeError::Io(cut)), .. }) = decode(&bytes).unwrap() else {
        panic!("a reply")
    };
    assert_eq!(cut, "ü".repeat(512));
}

#[test]
fn a_header_takes_no_memory_and_a_payload_waits_for_room() {
    const LEN: usize = 100 << 10;
    let request = Request {
        tag: Tag(1),
        capability: capability(),
        body: RequestBody::PutRoot { version: 1 },
        route: None,
        payload: vec![Bytes::from(vec![7; LEN])],
    };
    let stream = joined(&encode_request(&request).unwrap());
    let head = stream.len() - LEN;
    let budget = Budget::new(LEN + 1);
    let mut decoders: Vec<Decoder<Request>> = (0..2).map(|_| Decoder::new()).collect();
    for decoder in &mut decoders {
        decoder.set_lease(Lease::new(&budget));
        assert_eq!(decoder.feed(&mut &stream[..head]).unwrap(), None);
    }
    assert_eq!(budget.used_bytes(), 0);
    let [first, second] = &mut decoders[..] else { panic!("two decoders") };
    assert_eq!(first.feed(&mut &stream[head..head + 1]).unwrap(), None);
    assert!(first.holds_room() && !first.waits_for_room());
    assert_eq!(budget.used_bytes(), LEN);

    let mut rest = &stream[head..];
    assert_eq!(second.feed(&mut rest).unwrap(), None);
    assert!(second.waits_for_room() && !second.holds_room());
    assert_eq!(rest.len(), LEN, "nothing is taken without room");
    let done = first.feed(&mut &stream[head + 1..]).unwrap().expect("a request");
    assert_eq!(budget.used_bytes(), LEN, "the request holds it now");
    assert_eq!(second.feed(&mut rest).unwrap(), None);
    drop(done);
    let done = second.feed(&mut rest).unwrap().expect("a request");
    assert_eq!((&done.payload[0][..], rest.len()), (&[7; LEN][..], 0));
    drop(done);
    assert_eq!(budget.used_bytes(), 0);

    let mut poor = Decoder::<Request>::new();
    poor.set_lease(Lease::new(&Budget::new(LEN - 1)));
    let error = poor.feed(&mut &stream[..]).unwrap_err();
    assert!(matches!(error.kind, WireErrorKind::TooLong { what: "payload", .. }), "{error}");
}

/// A write whose fragments come holds room for all of them from its request on, so fragments of
/// several writes may come in turns.
#[test]
fn a_write_in_fragments_has_room_for_all_of_them() {
    const LEN: usize = 128 << 10;
    let begin = |tag| Request {
        tag: Tag(tag),
        capability: capability(),
        body: RequestBody::JournalAppend { generation: JournalGen(9), lsn: Lsn(0) },
        route: Some(Box::new(Route {
            fragments: Fragments::Follow(LEN as u32),
            ..Route::default()
        })),
        payload: Vec::new(),
    };
    let fragment =
        |tag| crate::fragments::fragment(Tag(tag), vec![], vec![vec![7; LEN / 2].into()]);
    let encoded = |request: &Request| joined(&encode_request(request).unwrap());
    let budget = Budget::new(2 * LEN + LEN / 2);
    let mut decoders: Vec<Decoder<Request>> = (0..2).map(|_| Decoder::new()).collect();
    decoders.iter_mut().for_each(|decoder| decoder.set_lease(Lease::new(&budget)));
    let [first, second] = &mut decoders[..] else { panic!("two decoders") };
    for tag in [1, 2] {
        assert_eq!(first.feed(&mut &encoded(&begin(tag))[..]).unwrap(), Some(begin(tag)));
    }
    assert_eq!(budget.used_bytes(), 2 * LEN);
    // No room for a third one: its fragments would be behind those of the others.
    let refused = first.feed(&mut &encoded(&begin(3))[..]).unwrap().unwrap();
    assert_eq!(refused.route.unwrap().fragments, Fragments::NoRoom);
    assert!(!first.waits_for_room() && !budget.is_wanted());
    // Another connection has no fragments to take, and waits.
    assert_eq!(second.feed(&mut &encoded(&begin(1))[..]).unwrap(), None);
    assert!(second.waits_for_room() && !second.is_idle());
    let mut fragments = Vec::new();
    for tag in [2, 1, 2] {
        fragments.push(first.feed(&mut &encoded(&fragment(tag))[..]).unwrap().unwrap());
        assert_eq!(budget.used_bytes(), 2 * LEN, "a fragment holds its part");
    }
    assert_eq!(fragments, [fragment(2), fragment(1), fragment(2)]);
    drop(fragments);
    assert_eq!((budget.used_bytes(), first.holds_room()), (LEN / 2, false));
    assert_eq!(second.feed(&mut &[][..]).unwrap(), Some(begin(1)), "now there is room");
    assert_eq!(budget.used_bytes(), LEN / 2 + LEN);
    // The first write is refused, or its sender gives it up: its missing fragment needs no room.
    first.forget_fragments(Tag(1));
    let end = crate::fragments::give_up(Tag(1));
    assert_eq!(second.feed(&mut &encoded(&end)[..]).unwrap(), Some(end));
    assert_eq!((budget.used_bytes(), first.holds_room(), second.holds_room()), (0, false, false));
    assert_eq!(first.feed(&mut &encoded(&fragment(1))[..]).unwrap(), Some(fragment(1)));
    let long = crate::fragments::fragment(Tag(1), vec![], vec![vec![7; LEN].into()]);
    let error = encode_request(&long).unwrap_err();
    assert!(matches!(error.kind, WireErrorKind::TooLong { what: "payload", .. }));
    let mut bytes = encoded(&fragment(1));
    let mut header = Header::read_from_bytes(&bytes[..WIRE_HEADER_BYTES]).unwrap();
    header.payload_len = (LEN as u32).into();
    header.header_crc = crc32c(&header.as_bytes()[..COVERED_BYTES]).into();
    bytes[..WIRE_HEADER_BYTES].copy_from_slice(header.as_bytes());
    let error = first.feed(&mut &bytes[..]).unwrap_err();
    assert!(matches!(error.kind, WireErrorKind::TooLong { what: "payload", .. }));
}

/// A whole payload that finds no room between the fragments of others does not wait either.
#[test]
fn a_payload_without_room_does_not_keep_fragments_waiting() {
    const LEN: usize = 128 << 10;
    let whole = |route| Request {
        tag: Tag(6),
        capability: capability(),
        body: RequestBody::JournalAppend { generation: JournalGen(9), lsn: Lsn(0) },
        route,
        payload: vec![vec![7; LEN].into()],
    };
    let begin = Request {
        tag: Tag(5),
        payload: Vec::new(),
        ..whole(Some(Box::new(Route {
            fragments: Fragments::Follow(LEN as u32),
            ..Route::default()
        })))
    };
    let encoded = |request: &Request| joined(&encode_request(request).unwrap());
    for route in [Some(Box::new(Route::default())), None] {
        let budget = Budget::new(LEN + LEN / 2);
        let mut decoder = Decoder::<Request>::new();
        decoder.set_lease(Lease::new(&budget));
        assert!(decoder.feed(&mut &encoded(&begin)[..]).unwrap().is_some());
        let stream = encoded(&whole(route.clone()));
        let (mut first, mut second) = stream.split_at(stream.len() - LEN / 2);
        assert_eq!(decoder.feed(&mut first).unwrap(), None);
        assert!(first.is_empty() && !decoder.waits_for_room() && !budget.is_wanted());
        let decoded = decoder.feed(&mut second);
        let Some(_) = route else {
            assert_eq!(decoded.unwrap_err().at_byte, 24);
            continue;
        };
        let refused = decoded.unwrap().unwrap();
        assert_eq!(refused.route.unwrap().fragments, Fragments::NoRoom);
        assert!(refused.payload.is_empty());
        assert_eq!(budget.used_bytes(), LEN);
        // The stream goes on.
        let part = crate::fragments::fragment(Tag(5), vec![], vec![vec![7; LEN / 2].into()]);
        assert_eq!(decoder.feed(&mut &encoded(&part)[..]).unwrap(), Some(part));
    }
}

/// The client becomes known while its request waits for room: the request still waits.
#[test]
fn a_message_waits_for_room_through_a_change_of_its_budget() {
    const LEN: usize = 128 << 10;
    let begin = Request {
        tag: Tag(5),
        capability: capability(),
        body: RequestBody::JournalAppend { generation: JournalGen(9), lsn: Lsn(0) },
        route: Some(Box::new(Route {
            fragments: Fragments::Follow(LEN as u32),
            ..Route::default()
        })),
        payload: Vec::new(),
    };
    let (full, free) = (Budget::new(LEN), Budget::new(LEN));
    let _held = full.lease(LEN).unwrap();
    let mut decoder = Decoder::<Request>::new();
    decoder.set_lease(Lease::new(&full));
    let bytes = joined(&encode_request(&begin).unwrap());
    assert_eq!(decoder.feed(&mut &bytes[..]).unwrap(), None);
    decoder.set_lease(Lease::new(&free));
    assert!(decoder.waits_for_room() && !full.is_wanted());
    assert_eq!(decoder.feed(&mut &[][..]).unwrap(), Some(begin));
    assert_eq!(free.used_bytes(), LEN);
}
