//! Stored keys and bytes of images, against those of a real cluster (Ceph 16.2.15; notes of the
//! project, section 7, and the layouts of Ceph's records).

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::{ObjectName, Operation, PoolInfo};
use fieldstone_rados::encoding::{Decoder, Encoder, EntityAddress};
use fieldstone_rados::op::ObjectOps;

use super::ObjectMap;
use crate::objects::Caller;
use crate::store::Store;

struct Bench(Store);

const POOL: PoolId = PoolId(6);

fn bytes(fill: impl FnOnce(&mut Encoder)) -> Bytes {
    super::encoded(fill)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).expect("it is ASCII");
        u8::from_str_radix(text, 16).expect("these are digits")
    };
    digits.chunks(2).map(pair).collect()
}

impl Bench {
    fn new() -> Self {
        let mut store = Store::default();
        store.add_pool(PoolInfo {
            id: POOL,
            name: "fmt".to_owned(),
            is_erasure_coded: false,
            takes_overwrites: false,
            alignment_bytes: 1,
            is_full: false,
            pg_num: 8,
            applications: Vec::new(),
        });
        Self(store)
    }

    fn operate(&mut self, client: u64, object: &str, ops: ObjectOps) -> Result<Bytes, i32> {
        let mut operation = Operation::new(ObjectName::new(POOL, "", object), ops);
        operation.flags.wants_data = true;
        let caller = Caller { client, address: EntityAddress::default() };
        let mut reply = self.0.execute(Nanos(0), &caller, &operation).map_err(|error| -error.0)?;
        let data = std::mem::take(&mut reply.ops[0].data);
        if reply.result < 0 { Err(reply.result) } else { Ok(data) }
    }

    fn call(&mut self, object: &str, method: &str, input: Bytes) -> Result<Bytes, i32> {
        let mut ops = ObjectOps::new();
        ops.call("rbd", method, input);
        self.operate(4100, object, ops)
    }

    fn lock(&mut self, client: u64, method: &str, input: Bytes) -> Result<Bytes, i32> {
        let mut ops = ObjectOps::new();
        ops.call("lock", method, input);
        self.operate(client, "rbd_header.x", ops)
    }

    fn value(&self, object: &str, key: &str) -> Vec<u8> {
        let object = self.0.object(&ObjectName::new(POOL, "", object)).expect("it exists");
        object.head.omap.get(key.as_bytes()).expect("the key exists").to_vec()
    }

    /// An image of 16 MiB with the features 0x3d.
    fn image(&mut self) -> &'static str {
        let input = bytes(|into| {
            into.u64(16 << 20).u8(22).u64(0x3d).string("rbd_data.106f").i64(-1);
        });
        self.call("rbd_header.106f", "create", input).expect("it is new");
        "rbd_header.106f"
    }
}

#[test]
fn a_header_has_the_keys_and_bytes_of_a_real_one() {
    let mut bench = Bench::new();
    let header = bench.image();
    let object = bench.0.object(&ObjectName::new(POOL, "", header)).expect("it exists");
    let keys: Vec<_> =
        object.head.omap.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    let wanted = [
        "access_timestamp",
        "create_timestamp",
        "features",
        "modify_timestamp",
        "object_prefix",
        "order",
        "size",
        "snap_seq",
    ];
    assert_eq!(keys, wanted);
    assert!(object.head.data.is_empty());
    assert_eq!(bench.value(header, "size"), hex("0000000100000000"));
    assert_eq!(bench.value(header, "order"), hex("16"));
    assert_eq!(bench.value(header, "features"), hex("3d00000000000000"));
    assert_eq!(bench.value(header, "object_prefix"), b"\x0d\0\0\0rbd_data.106f");
    assert_eq!(bench.value(header, "create_timestamp").len(), 8);
    let head = bytes(|into| {
        into.u64(u64::MAX - 1);
    });
    let size = bench.call(header, "get_size", head).expect("it has a size");
    assert_eq!(&size[..], hex("16 0000000100000000"));
    let group = bench.call(header, "image_group_get", Bytes::new()).expect("it exists");
    assert_eq!(&group[..], hex("01 01 0c000000 ffffffffffffffff 00000000"));
    let again = bench.call(
        header,
        "create",
        bytes(|into| {
            into.u64(1).u8(22).u64(1).string("p");
        }),
    );
    assert_eq!(again, Err(-17));
}

#[test]
fn a_directory_has_both_directions() {
    let mut bench = Bench::new();
    let image = bytes(|into| {
        into.string("disk").string("106f");
    });
    assert_eq!(bench.call("rbd_directory", "dir_add_image", image.clone()), Ok(Bytes::new()));
    assert_eq!(bench.value("rbd_directory", "name_disk"), b"\x04\0\0\x00106f");
    assert_eq!(bench.value("rbd_directory", "id_106f"), b"\x04\0\0\0disk");
    assert_eq!(bench.call("rbd_directory", "dir_add_image", image), Err(-17));
    let list = bytes(|into| {
        into.string("").u64(10);
    });
    let list = bench.call("rbd_directory", "dir_list", list).expect("it exists");
    assert_eq!(&list[..], b"\x01\0\0\0\x04\0\0\0disk\x04\0\0\x00106f");
    let rename = bytes(|into| {
        into.string("disk").string("new").string("106f");
    });
    assert_eq!(bench.call("rbd_directory", "dir_rename_image", rename), Ok(Bytes::new()));
    let name = bytes(|into| {
        into.string("106f");
    });
    let name = bench.call("rbd_directory", "dir_get_name", name).expect("it is there");
    assert_eq!(&name[..], b"\x03\0\0\0new");
}

#[test]
fn a_snapshot_is_stored_as_since_nautilus() {
    let mut bench = Bench::new();
    let header = bench.image();
    let add = bytes(|into| {
        into.string("s").u64(4);
        into.section(1, 1, |into| {
            into.u32(0);
        });
    });
    assert_eq!(bench.call(header, "snapshot_add", add.clone()), Ok(Bytes::new()));
    let stored = bench.value(header, "snapshot_0000000000000004");
    let time = &bench.value(header, "create_timestamp");
    let mut wanted = hex("08 08 39000000 0400000000000000 01000000 73 0000000100000000 00");
    wanted.extend(hex("0000000000000000 01 01 04000000 00000000"));
    wanted.extend(time);
    wanted.extend(hex("00000000 00"));
    wanted[2] = (wanted.len() - 6) as u8;
    assert_eq!(stored, wanted);
    assert_eq!(bench.value(header, "snap_seq"), hex("0400000000000000"));
    assert_eq!(bench.call(header, "snapshot_add", add), Err(-17));
    let context = bench.call(header, "get_snapcontext", Bytes::new()).expect("it exists");
    assert_eq!(&context[..], hex("0400000000000000 01000000 0400000000000000"));
    let id = bytes(|into| {
        into.u64(4);
    });
    let protect = bytes(|into| {
        into.u64(4).u8(2);
    });
    assert_eq!(bench.call(header, "set_protection_status", protect), Ok(Bytes::new()));
    assert_eq!(bench.call(header, "snapshot_remove", id.clone()), Err(-16));
    let unprotect = bytes(|into| {
        into.u64(4).u8(0);
    });
    assert_eq!(bench.call(header, "set_protection_status", unprotect), Ok(Bytes::new()));
    assert_eq!(bench.call(header, "snapshot_remove", id.clone()), Ok(Bytes::new()));
    assert_eq!(bench.call(header, "snapshot_remove", id), Err(-2));
}

#[test]
fn a_clone_knows_its_parent_and_the_parent_its_children() {
    let mut bench = Bench::new();
    let header = bench.image();
    let attach = bytes(|into| {
        into.section(1, 1, |into| {
            into.i64(6).string("").string("parent").u64(3);
        });
        into.u64(8 << 20).bool(false);
    });
    assert_eq!(bench.call(header, "parent_attach", attach.clone()), Ok(Bytes::new()));
    let mut wanted = hex("02 02 27000000 0600000000000000 00000000 06000000");
    wanted.extend(b"parent");
    wanted.extend(hex("0300000000000000 01 0000800000000000"));
    assert_eq!(bench.value(header, "parent"), wanted);
    assert_eq!(bench.call(header, "parent_attach", attach), Err(-17));
    let head = bytes(|into| {
        into.u64(u64::MAX - 1);
    });
    let overlap = bench.call(header, "parent_overlap_get", head.clone()).expect("it has one");
    assert_eq!(&overlap[..], hex("01 0000800000000000"));
    let shrink = bytes(|into| {
        into.u64(4 << 20);
    });
    assert_eq!(bench.call(header, "set_size", shrink), Ok(Bytes::new()));
    let overlap = bench.call(header, "parent_overlap_get", head).expect("it has one");
    assert_eq!(&overlap[..], hex("01 0000400000000000"));
    assert_eq!(bench.call(header, "parent_detach", Bytes::new()), Ok(Bytes::new()));
    let none = bench.call(header, "parent_get", Bytes::new()).expect("the image exists");
    let mut wanted = hex("01 01 18000000 ffffffffffffffff 00000000 00000000");
    wanted.extend(hex("feffffffffffffff"));
    assert_eq!(&none[..], wanted);

    let snap = bytes(|into| {
        into.string("s").u64(7);
    });
    bench.call(header, "snapshot_add", snap).expect("it is new");
    let child = bytes(|into| {
        into.u64(7).section(2, 1, |into| {
            into.i64(6).string("child").string("");
        });
    });
    assert_eq!(bench.call(header, "child_attach", child.clone()), Ok(Bytes::new()));
    assert_eq!(bench.value(header, "op_features"), hex("0100000000000000"));
    assert_eq!(bench.value(header, "features"), hex("3d01000000000000"));
    assert_eq!(bench.call(header, "child_attach", child.clone()), Err(-17));
    assert_eq!(bench.call(header, "child_detach", child.clone()), Ok(Bytes::new()));
    assert_eq!(bench.value(header, "features"), hex("3d00000000000000"));
    assert_eq!(bench.call(header, "child_detach", child), Err(-2));
}

#[test]
fn an_object_map_is_35_bytes_for_four_objects() {
    let mut bench = Bench::new();
    let name = "rbd_object_map.106f";
    let resize = bytes(|into| {
        into.u64(4).u8(0);
    });
    assert_eq!(bench.call(name, "object_map_resize", resize), Ok(Bytes::new()));
    let stored = |bench: &Bench| {
        let object = bench.0.object(&ObjectName::new(POOL, "", name)).expect("it exists");
        object.head.data.read(0, 1 << 20)
    };
    let data = stored(&bench);
    assert_eq!(data.len(), 35);
    assert_eq!(&data[..23], hex("0e000000 01 01 08000000 0400000000000000 00 0c000000"));
    let update = |start: u64, end: u64, state: u8, only: Option<u8>| {
        bytes(|into| {
            into.u64(start).u64(end).u8(state).bool(only.is_some());
            if let Some(only) = only {
                into.u8(only);
            }
        })
    };
    assert_eq!(bench.call(name, "object_map_update", update(1, 3, 1, None)), Ok(Bytes::new()));
    assert_eq!(stored(&bench)[18], 0b0001_0100);
    assert_eq!(bench.call(name, "object_map_update", update(1, 5, 1, None)), Err(-34));
    let map = ObjectMap::decode(&mut Decoder::new(stored(&bench))).expect("checksums are right");
    assert_eq!((0..4).map(|object| map.get(object)).collect::<Vec<_>>(), [0, 1, 1, 0]);
    assert_eq!(bench.call(name, "object_map_snap_add", Bytes::new()), Ok(Bytes::new()));
    assert_eq!(stored(&bench)[18], 0b0011_1100);
    let exists = Some(1);
    assert_eq!(bench.call(name, "object_map_update", update(2, 3, 0, exists)), Ok(Bytes::new()));
    assert_eq!(stored(&bench)[18], 0b0011_0000);
    let loaded = bench.call(name, "object_map_load", Bytes::new()).expect("it exists");
    assert_eq!(&loaded[18..], [0b0011_0000, 0, 0, 0, 0]);
    let grow = bytes(|into| {
        into.u64(40_000).u8(0);
    });
    assert_eq!(bench.call(name, "object_map_resize", grow), Ok(Bytes::new()));
    assert_eq!(bench.call(name, "object_map_update", update(9, 39_000, 3, None)), Ok(Bytes::new()));
    ObjectMap::decode(&mut Decoder::new(stored(&bench))).expect("checksums are right");
}

#[test]
fn locks_are_held_by_clients_and_cookies() {
    let mut bench = Bench::new();
    let mut ops = ObjectOps::new();
    ops.create(false);
    bench.operate(1, "rbd_header.x", ops).expect("it is new");
    let request = |cookie: &str, kind: u8| {
        bytes(|into| {
            into.section(1, 1, |into| {
                into.string("rbd_lock").u8(kind).string(cookie).string("internal");
                into.string("").u64(0).u8(0);
            });
        })
    };
    assert_eq!(bench.lock(4100, "lock", request("auto 1", 1)), Ok(Bytes::new()));
    assert_eq!(bench.lock(4100, "lock", request("auto 1", 1)), Err(-17));
    assert_eq!(bench.lock(4101, "lock", request("auto 1", 1)), Err(-16));
    let question = bytes(|into| {
        into.section(1, 1, |into| {
            into.string("rbd_lock");
        });
    });
    let info = bench.lock(4101, "get_info", question.clone()).expect("it is locked");
    let mut wanted = hex("01 01 50000000 01000000 01 01 13000000 08 0410000000000000 06000000");
    wanted.extend(b"auto 1");
    wanted
        .extend(hex("01 01 1f000000 0000000000000000 01 01 01 0c000000 000000000000000000000000"));
    wanted.extend(hex("00000000 01 08000000"));
    wanted.extend(b"internal");
    wanted[2] = (wanted.len() - 6) as u8;
    let locker_at = 10 + 6 + 19;
    wanted[locker_at + 2] = (8 + 1 + 6 + 12 + 4) as u8;
    assert_eq!(&info[..], wanted);
    let held = |cookie: &str| {
        bytes(|into| {
            into.section(1, 1, |into| {
                into.string("rbd_lock").u8(1).string(cookie).string("internal");
            });
        })
    };
    assert_eq!(bench.lock(4100, "assert_locked", held("auto 1")), Ok(Bytes::new()));
    assert_eq!(bench.lock(4101, "assert_locked", held("auto 1")), Err(-16));
    let breaks = bytes(|into| {
        into.section(1, 1, |into| {
            into.string("rbd_lock").u8(8).u64(4100).string("auto 1");
        });
    });
    assert_eq!(bench.lock(4101, "break_lock", breaks.clone()), Ok(Bytes::new()));
    assert_eq!(bench.lock(4101, "break_lock", breaks), Err(-2));
    assert_eq!(bench.lock(4101, "lock", request("auto 1", 1)), Ok(Bytes::new()));
}
