use bytes::Bytes;

use super::results::*;
use super::*;
use crate::cluster::{NotifyReply, Watcher};
use crate::encoding::{DecodeError, EntityAddress, Time};
use crate::message::osd::{ObjectPosition, flag};

fn hex(text: &str) -> Bytes {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect::<Vec<_>>().into()
}

/// Reads every beginning of the bytes, and the bytes with each bit of each byte flipped: it may
/// fail, but must not panic. No beginning may pass for the whole.
fn attack<T>(bytes: &Bytes, decode: impl Fn(&Bytes) -> Result<T, DecodeError>) {
    assert!(decode(bytes).is_ok());
    for len in 0..bytes.len() {
        assert!(decode(&bytes.slice(..len)).is_err(), "{len} of {} bytes", bytes.len());
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bad = bytes.to_vec();
            bad[at] ^= 1 << bit;
            let _ = decode(&bad.into());
        }
    }
}

fn one_of_each() -> ObjectOps {
    let mut ops = ObjectOps::new();
    ops.read(1, 2).sparse_read(3, 4).stat().assert_exists().assert_version(9);
    ops.get_xattr("k").get_xattrs().compare_xattr("k", CompareOp::Greater, b"v");
    ops.compare_extent(5, Bytes::from_static(b"cmp"));
    ops.omap_get_keys(b"a", 10).omap_get_values(b"a", b"p", 11).omap_get_by_keys([b"x", b"y"]);
    ops.omap_get_header().list_snaps().list_watchers().notify(7, 30, b"hello");
    ops.notify_acknowledge(8, 7, b"yes").list_group(100, &Bytes::new());
    ops.call("rbd", "get_size", Bytes::from_static(b"in")).create(true);
    ops.write(6, Bytes::from_static(b"data")).write_full(Bytes::from_static(b"full"));
    ops.append(Bytes::from_static(b"end")).write_same(0, 8, Bytes::from_static(b"ab"));
    ops.zero(1, 2).truncate(77).delete().set_xattr("k", b"v").remove_xattr("k");
    ops.omap_set([(b"k", b"v")]).omap_remove_keys([b"x"]).omap_clear();
    ops.omap_set_header(Bytes::from_static(b"h")).set_alloc_hint(4 << 20, 4096, 2);
    ops.rollback(SnapId(3)).watch(7, WatchStep::Reconnect(2), 30);
    ops
}

#[test]
fn a_view_gives_what_was_built() {
    let ops = one_of_each();
    let data = Bytes::from_static;
    let expected = [
        View::Read { offset: 1, len: 2 },
        View::SparseRead { offset: 3, len: 4 },
        View::Stat,
        View::Stat,
        View::AssertVersion { version: 9 },
        View::GetXattr { name: "k" },
        View::GetXattrs,
        View::CompareXattr { name: "k", compare: CompareOp::Greater, value: data(b"v") },
        View::CompareExtent { offset: 5, data: &data(b"cmp") },
        View::OmapGetKeys { after: data(b"a"), max: 10 },
        View::OmapGetValues { after: data(b"a"), prefix: data(b"p"), max: 11 },
        View::OmapGetByKeys { keys: vec![data(b"x"), data(b"y")] },
        View::OmapGetHeader,
        View::ListSnaps,
        View::ListWatchers,
        View::Notify { cookie: 7, timeout_s: 30, payload: data(b"hello") },
        View::NotifyAcknowledge { notify_id: 8, cookie: 7, payload: data(b"yes") },
        View::ListGroup { max: 100, position: Box::new(ObjectPosition::first()) },
        View::Call { class: "rbd", method: "get_size", input: data(b"in") },
        View::Create { exclusive: true },
        View::Write { offset: 6, data: &data(b"data") },
        View::WriteFull { data: &data(b"full") },
        View::Append { data: &data(b"end") },
        View::WriteSame { offset: 0, len: 8, data: &data(b"ab") },
        View::Zero { offset: 1, len: 2 },
        View::Truncate { len: 77 },
        View::Delete,
        View::SetXattr { name: "k", value: data(b"v") },
        View::RemoveXattr { name: "k" },
        View::OmapSet { entries: vec![(data(b"k"), data(b"v"))] },
        View::OmapRemoveKeys { keys: vec![data(b"x")] },
        View::OmapClear,
        View::OmapSetHeader { data: &data(b"h") },
        View::SetAllocHint { object_bytes: 4 << 20, write_bytes: 4096, flags: 2 },
        View::Rollback { snap: SnapId(3) },
        View::Watch { cookie: 7, step: WatchStep::Reconnect(2), timeout_s: 30 },
    ];
    assert_eq!(ops.len(), expected.len());
    for (op, expected) in ops.ops().iter().zip(expected) {
        assert_eq!(op.view(), Ok(expected));
    }
}

#[test]
fn a_view_of_broken_operations_fails() {
    for op in one_of_each().ops() {
        for len in 0..op.data.len() {
            let short = Op { data: op.data.slice(..len), ..op.clone() };
            // An acknowledgement may have no answer.
            if op.code == code::NOTIFY_ACK && len == 16 {
                continue;
            }
            assert!(short.view().is_err(), "{op:?} with {len} bytes of data");
        }
        for at in 0..28 {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = op.clone();
                bad.fields[at] = value;
                let _ = bad.view();
            }
        }
        for at in 0..op.data.len() {
            let mut data = op.data.to_vec();
            data[at] ^= 0x80;
            let _ = Op { data: data.into(), ..op.clone() }.view();
        }
    }
    let unknown = Op { code: 0x1203, flags: 0, fields: [0; 28], data: Bytes::new() };
    assert!(unknown.view().is_err());
}

#[test]
fn repeated_data_must_fill_the_length() {
    for (len, data) in [(7, &b"ab"[..]), (4, b"")] {
        let mut ops = ObjectOps::new();
        ops.write_same(0, len, Bytes::copy_from_slice(data));
        assert!(ops.ops()[0].view().is_err());
    }
}

#[test]
fn zeroing_nothing_is_left_out_with_its_flags() {
    let mut ops = ObjectOps::new();
    ops.delete().zero(4096, 0).with_flags(FAIL_OK);
    assert_eq!(ops.len(), 1);
    assert_eq!(ops.ops()[0].flags, 0);
    ops.create(true).with_flags(FAIL_OK);
    assert_eq!(ops.ops()[1].flags, EXCLUSIVE | FAIL_OK);
}

#[test]
fn request_flags_tell_read_from_write() {
    let of = |build: fn(&mut ObjectOps) -> &mut ObjectOps| {
        let mut ops = ObjectOps::new();
        build(&mut ops).request_flags()
    };
    assert_eq!(of(|ops| ops.read(0, 1)), flag::READ);
    assert_eq!(of(|ops| ops.stat().write(0, Bytes::new())), flag::WRITE);
    assert_eq!(of(|ops| ops.call("a", "b", Bytes::new())), flag::WRITE);
    assert_eq!(of(|ops| ops.query("a", "b", Bytes::new())), flag::READ);
    assert_eq!(of(|ops| ops.list_group(1, &Bytes::new())), flag::READ | flag::PGOP);
    assert_eq!(of(|ops| ops.watch(1, WatchStep::Watch, 0)), flag::WRITE);
}

/// Byte by byte from the structures of `rados.h`.
#[test]
fn fields_are_where_ceph_has_them() {
    let mut ops = ObjectOps::new();
    ops.watch(0x0102, WatchStep::Ping(3), 4).call("lock", "get", Bytes::from_static(b"xyz"));
    let watch = hex("0201000000000000 0000000000000000 07 03000000 04000000 000000");
    assert_eq!(ops.ops()[0].fields[..], watch[..]);
    let call = hex("04 03 00 03000000 000000000000000000000000000000000000000000");
    assert_eq!(ops.ops()[1].fields[..], call[..]);
    assert_eq!(ops.ops()[1].data, "lockgetxyz");
    assert_eq!(ops.ops()[1].code, 0x1401);
}

#[test]
fn results_survive_a_round_trip_and_attacks() {
    let stat = Stat { size_bytes: 5, modified: Time { seconds: 6, nanos: 7 } };
    assert_eq!(stat.encode(), hex("0500000000000000 06000000 07000000"));
    assert_eq!(Stat::decode(&stat.encode()), Ok(stat));
    attack(&stat.encode(), Stat::decode);

    let (key, value) = (Bytes::from_static(b"key"), Bytes::from_static(b"value"));
    let omap = encode_omap([(&key, &value)].into_iter(), true);
    assert_eq!(omap, hex("01000000 03000000 6b6579 05000000 76616c7565 01"));
    let (entries, more) = decode_omap(&omap).unwrap();
    assert_eq!((entries[&key].clone(), more), (value.clone(), true));
    attack(&omap, decode_omap);

    let keys = encode_keys([&key].into_iter(), false);
    assert_eq!(decode_keys(&keys), Ok((vec![key.clone()], false)));
    attack(&keys, decode_keys);

    let values = encode_values([(&key, &value)].into_iter());
    assert_eq!(decode_xattrs(&values).unwrap(), decode_values(&values).unwrap());
    attack(&values, decode_values);

    assert_eq!(decode_notify_id(&encode_notify_id(77)), Ok(77));
    let reply = NotifyReply {
        acknowledged: vec![(Watcher { client: 1, cookie: 2 }, value)],
        missed: vec![Watcher { client: 3, cookie: 4 }],
    };
    let bytes = encode_notify_reply(&reply);
    assert_eq!(decode_notify_reply(&bytes), Ok(reply));
    assert!(decode_notify_reply(&Bytes::new()).unwrap().acknowledged.is_empty());
    for len in 1..bytes.len() {
        assert!(decode_notify_reply(&bytes.slice(..len)).is_err());
    }
}

#[test]
fn sparse_data_must_agree_with_its_extents() {
    let data = Bytes::from_static(b"abcdef");
    let sparse = SparseData { extents: vec![(0, 2), (100, 4)], data };
    let bytes = sparse.encode();
    assert_eq!(SparseData::decode(&bytes), Ok(sparse.clone()));
    let pieces: Vec<_> = sparse.pieces().collect();
    assert_eq!(pieces, [(0, Bytes::from_static(b"ab")), (100, Bytes::from_static(b"cdef"))]);
    attack(&bytes, SparseData::decode);

    for extents in [vec![(100, 4), (0, 2)], vec![(0, 4), (3, 2)], vec![(0, 2), (100, 5)]] {
        let bad = SparseData { extents, data: sparse.data.clone() };
        assert!(SparseData::decode(&bad.encode()).is_err());
    }
    let of_erasure_coded_pool = Bytes::from_static(&[0; 4]);
    assert_eq!(SparseData::decode(&of_erasure_coded_pool), Ok(SparseData::default()));
    let huge = SparseData { extents: vec![(1, u64::MAX), (2, 2)], data: sparse.data };
    assert!(SparseData::decode(&huge.encode()).is_err());
}

#[test]
fn clones_and_watchers_survive_a_round_trip_and_attacks() {
    let clone = ObjectClone {
        id: SnapId(4),
        snaps: vec![SnapId(2), SnapId(4)],
        overlap: vec![(0, 4096)],
        size_bytes: 8192,
    };
    let head = ObjectClone { id: SnapId::HEAD, size_bytes: 1, ..ObjectClone::default() };
    let snapshots = Snapshots { clones: vec![clone, head.clone()], seq: SnapId(4) };
    assert_eq!(snapshots.head(), Some(&head));
    let bytes = snapshots.encode();
    assert_eq!(
        bytes,
        hex("02 01 68000000 02000000
             01 01 38000000 0400000000000000 02000000 0200000000000000 0400000000000000
                01000000 0000000000000000 0010000000000000 0020000000000000
             01 01 18000000 feffffffffffffff 00000000 00000000 0100000000000000
             0400000000000000")
    );
    assert_eq!(Snapshots::decode(&bytes), Ok(snapshots));
    attack(&bytes, Snapshots::decode);

    let watchers = Watchers(vec![WatcherInfo {
        watcher: Watcher { client: 4711, cookie: 1 },
        timeout_s: 30,
        address: EntityAddress::msgr2("127.0.0.1:0".parse().unwrap(), 99),
    }]);
    let bytes = watchers.encode();
    assert_eq!(
        bytes,
        hex("01 01 42000000 01000000 02 01 38000000
             08 6712000000000000 0100000000000000 1e000000
             01 01 01 1c000000 02000000 63000000 10000000 0200 0000 7f000001 0000000000000000")
    );
    assert_eq!(Watchers::decode(&bytes), Ok(watchers));
    attack(&bytes, Watchers::decode);
}

#[test]
fn a_listing_keeps_the_position_as_it_came() {
    let next = ObjectPosition { hash: 0x1234, ..ObjectPosition::first() };
    let object = ("ns".to_owned(), "name".to_owned(), String::new());
    let listing = GroupListing { objects: vec![object], next_bytes: next.to_bytes(), next };
    let bytes = listing.encode();
    assert_eq!(GroupListing::decode(&bytes), Ok(listing));
    attack(&bytes, GroupListing::decode);
}

#[test]
fn a_mismatch_has_its_offset_in_the_result() {
    assert_eq!(mismatch_offset(-4095), Some(0));
    assert_eq!(mismatch_offset(mismatch_result(511)), Some(511));
    assert_eq!(mismatch_offset(-2), None);
    assert_eq!(mismatch_offset(0), None);
}
