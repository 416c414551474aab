//! Golden inputs and hostile answers of the class `rbd`.

use super::*;

/// The data of the only operation: the names of class and method, then the input.
fn input_of(build: impl FnOnce(&mut ObjectOps)) -> Vec<u8> {
    let mut ops = ObjectOps::new();
    build(&mut ops);
    ops.ops()[0].data.to_vec()
}

fn parent() -> ParentSpec {
    ParentSpec {
        pool: PoolId(6),
        namespace: String::new(),
        image: "12ab".to_owned(),
        snapshot: SnapId(4),
    }
}

#[test]
fn inputs_have_the_fields_of_their_methods() {
    let head = input_of(|ops| get_size(ops, SnapId::HEAD));
    assert_eq!(head, b"rbdget_size\xfe\xff\xff\xff\xff\xff\xff\xff");
    let added = input_of(|ops| snapshot_add(ops, SnapId(4), "s"));
    let kind = b"\x01\x01\x04\0\0\0\0\0\0\0";
    let expected = [&b"rbdsnapshot_add\x01\0\0\0s\x04\0\0\0\0\0\0\0"[..], &kind[..]].concat();
    assert_eq!(added, expected);
    let updated = input_of(|ops| {
        object_map_update(ops, 1, 2, ObjectState::Nonexistent, Some(ObjectState::Pending));
    });
    let expected = b"rbdobject_map_update\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\x01\x02";
    assert_eq!(updated, expected);
    let attached = input_of(|ops| parent_attach(ops, &parent(), 4096));
    let expected = b"rbdparent_attach\x01\x01\x1c\0\0\0\x06\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\
        12ab\x04\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0";
    assert_eq!(attached, expected);
}

/// Each reader gets each prefix and each flipped byte of a good answer.
fn harass<T>(good: &[u8], read: impl Fn(&Bytes) -> Decoded<T>) -> T {
    for len in 0..good.len() {
        let _ = read(&Bytes::copy_from_slice(&good[..len]));
    }
    for index in 0..good.len() {
        for bit in 0..8 {
            let mut flipped = good.to_vec();
            flipped[index] ^= 1 << bit;
            let _ = read(&flipped.into());
        }
    }
    read(&Bytes::copy_from_slice(good)).expect("the answer is good")
}

#[test]
fn answers_are_read_and_hostile_ones_give_errors() {
    assert_eq!(harass(b"\x16\0\0\0\x01\0\0\0\0", decode_size), (22, 1 << 24));
    let context = harass(
        b"\x05\0\0\0\0\0\0\0\x02\0\0\0\x05\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0",
        decode_snap_context,
    );
    assert_eq!(context.snaps, [SnapId(5), SnapId(2)]);
    let mut into = Encoder::new();
    parent().encode(&mut into);
    assert_eq!(harass(&into.into_vec(), decode_parent), Some(parent()));
    assert_eq!(harass(b"\x01\0\x10\0\0\0\0\0\0", decode_overlap), Some(4096));
    assert_eq!(harass(b"\0", decode_overlap), None);
    let snapshot = harass(
        b"\x01\x01\x33\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x04\0\0\0\0\0\0\0\x01\0\0\0s\
          \0\0\0\x01\0\0\0\0\x09\0\0\0\x08\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0",
        decode_snapshot,
    );
    assert_eq!((snapshot.name.as_str(), snapshot.size_bytes), ("s", 1 << 24));
    assert_eq!((snapshot.kind, snapshot.children), (SnapshotKind::User, 2));
    let images = harass(b"\x01\0\0\0\x02\0\0\0vm\x02\0\0\x0012", decode_directory);
    assert_eq!(images, [("vm".to_owned(), "12".to_owned())]);
    assert_eq!(harass(b"\x02", decode_protection), Protection::Protected);
    assert!(decode_snap_context(&Bytes::from_static(&[0xff; 20])).is_err());
}

#[test]
fn an_image_without_a_group_answers_so() {
    // Ceph 16.2.15.
    let answer = b"\x01\x01\x0c\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0";
    assert_eq!(decode_group(&Bytes::from_static(answer)), Ok(None));
    let member = b"\x01\x01\x0e\0\0\0\x03\0\0\0\0\0\0\0\x02\0\0\0ab";
    assert_eq!(decode_group(&Bytes::from_static(member)), Ok(Some("ab".into())));
}
