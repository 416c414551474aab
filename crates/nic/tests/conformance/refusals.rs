//! What header handlers refuse: capabilities and headers that do not hold.

use fieldstone_nic::firmware::engine::EngineError;
use fieldstone_nic::firmware::nic::Output;
use fieldstone_nic::firmware::packet::{Reply, Scheme, Write, capability_bytes};
use fieldstone_nic::firmware::state::{Extent, Multiply};
use fieldstone_proto::capability::{Capability, MasterKey, Rights};
use fieldstone_proto::ids::{Epoch, SegmentId, VolumeId};

use crate::classes::{Class, classes};
use crate::coding::status;
use crate::node::Node;
use crate::writes::{
    EPOCH, HOST_LEN, MASTER, NOW_NS, PLACE, VOLUME, capability, extent, settings, write,
};

fn refused(node: &mut Node, write: &Write) -> Vec<Output> {
    let mut outputs = Vec::new();
    for packet in write.packets() {
        outputs.extend(node.packet(&packet));
    }
    assert!(node.is_clean());
    assert!(node.storage.is_empty());
    outputs
}

/// In every kind of message: each bit of the capability, MAC included, and each limit, before and
/// after the core remembers the good one.
#[test]
fn capabilities_are_checked_as_proto_does() {
    for class in classes() {
        let Some(mut node) = Node::new(&class.settings()) else { return };
        for round in 0..2 {
            check_changed_bits(&mut node, class);
            check_limits(&mut node, class);
            if round == 0 {
                assert_eq!(class.answer(&mut node, &class.write(3000)), Some(0), "{class:?}");
                node.storage.clear();
            }
        }
        // Edges of the range are inside.
        for segment in [10, 20 << 32] {
            let mut inside = class.write(3000);
            inside.segment = segment;
            inside.nodes[usize::from(class.rank)].address = extent(segment).base;
            assert_eq!(class.answer(&mut node, &inside), Some(0), "{class:?} {segment}");
            let is_stored = node.stored(extent(segment).base, inside.data.len()) == inside.data;
            assert_eq!(is_stored, !class.waits(), "{class:?} {segment}");
        }
    }
}

fn check_changed_bits(node: &mut Node, class: Class) {
    let packet = class.packets(&class.write(3000)).swap_remove(0);
    for bit in 0..68 * 8 {
        let mut bytes = capability_bytes(&capability());
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut packet = packet.clone();
        packet[24 + 16..24 + 84].copy_from_slice(&bytes);
        let outputs = node.packet(&packet);
        let [Output::Send(reply)] = &outputs[..] else { panic!("{class:?} {bit}: {outputs:?}") };
        assert_eq!(Reply::parse(reply).unwrap().status, 1, "{class:?}: bit {bit}");
    }
    assert!(node.is_clean() && node.storage.is_empty(), "{class:?}");
}

fn check_limits(node: &mut Node, class: Class) {
    let key = MASTER.derive(VOLUME, EPOCH);
    let mut check = |expected: u32, change: &dyn Fn(&mut Write)| {
        let mut write = class.write(3000);
        change(&mut write);
        assert_eq!(class.answer(node, &write), Some(expected), "{class:?}");
        assert!(node.storage.is_empty(), "{class:?}");
    };
    for expires_ns in [NOW_NS, NOW_NS - 1, NOW_NS - (1 << 32), 0] {
        check(2, &|write| {
            write.capability.expires_ns = expires_ns;
            write.capability = write.capability.signed(&key);
        });
    }
    check(3, &|write| {
        write.capability.rights = Rights(Rights::ALL.0 & !Rights::WRITE.0);
        write.capability = write.capability.signed(&key);
    });
    for segment in [9, (20 << 32) + 1] {
        check(4, &|write| write.segment = segment);
    }
    check(1, &|write| {
        let foreign = MasterKey([1; 16]).derive(VOLUME, EPOCH);
        write.capability = write.capability.signed(&foreign);
    });
    check(1, &|write| {
        let old = MASTER.derive(VOLUME, Epoch(EPOCH.0 - 1));
        write.capability.epoch = Epoch(EPOCH.0 - 1);
        write.capability = write.capability.signed(&old);
    });
}

/// Headers that contradict: an event, and nothing else.
#[test]
fn malformed_headers_are_refused() {
    let Some(mut node) = Node::new(&settings(1, Multiply::Table, 0, 0)) else { return };
    let at = |rank: u8, write: Write| {
        let mut packets = write.packets();
        packets[0][14] = rank;
        packets
    };
    let good = write(Scheme::Ring { k: 3 }, 3, 3000);
    let mut cases = vec![
        ("a rank that is not this node's", at(0, good.clone())),
        ("a rank beyond the nodes", at(3, good.clone())),
        ("the largest rank", at(255, good.clone())),
    ];
    for scheme in [
        Scheme::Ring { k: 0 },
        Scheme::Ring { k: 2 },
        Scheme::Ring { k: 255 },
        Scheme::Single,
        Scheme::Code { k: 3, m: 0, column: 0 },
        Scheme::Code { k: 3, m: 5, column: 0 },
        Scheme::Code { k: 3, m: 2, column: 3 },
        Scheme::Code { k: 17, m: 2, column: 0 },
    ] {
        cases.push(("a scheme for other nodes", at(1, Write { scheme, ..good.clone() })));
    }
    for (what, offset, value) in [
        ("another kind", 24, 0),
        ("an offset", 16, 1),
        ("lengths beyond the packet", 20, 0xff),
        ("less headers than there are", 22, 0x60),
        ("a write without bytes", 24 + 92, 0),
    ] {
        let mut packets = at(1, good.clone());
        if what == "a write without bytes" {
            packets[0][offset..offset + 4].fill(0);
        } else {
            packets[0][offset] = value;
        }
        cases.push((what, packets));
    }
    for (what, packets) in cases {
        let outputs = node.packet(&packets[0]);
        assert!(matches!(outputs[..], [Output::Event { code: 1, .. }]), "{what}: {outputs:?}");
        assert!(node.is_clean(), "{what}");
    }
    for len in 0..good.packets()[0].len() {
        let outputs = node.packet(&at(1, good.clone())[0][..len]);
        let refused = matches!(outputs[..], [Output::Event { code: 1, .. } | Output::Stray]);
        assert!(refused, "{len}: {outputs:?}");
    }
    assert!(node.is_clean());
}

/// The first status that a node answers to a write at `address` of its storage, and of `len` bytes
/// by its header.
fn status_at(node: &mut Node, segment: u64, address: u64, len: u32) -> Option<u32> {
    let mut write = write(Scheme::Single, 1, 3000);
    write.nodes[0].address = address;
    write.segment = segment;
    let mut packets = write.packets();
    packets[0][24 + 92..24 + 96].copy_from_slice(&len.to_le_bytes());
    let outputs: Vec<Output> = packets.iter().flat_map(|packet| node.packet(packet)).collect();
    assert!(node.is_clean());
    status(&outputs)
}

/// A capability is for segments, and each segment has its place on the node: who may write one
/// reaches no other bytes, whatever the address.
#[test]
fn addresses_are_inside_of_the_segment() {
    let Some(mut node) = Node::new(&settings(0, Multiply::Table, 0, 0)) else { return };
    let (base, end, next) = (PLACE, PLACE + (1 << 28), extent(12).base);
    for (segment, address, len, expected) in [
        (11, base, 3000, 0),
        (11, end - 3000, 3000, 0),
        (11, (1 << 32) - 1000, 3000, 0), // across 4 GiB
        (12, next, 3000, 0),
        (11, next, 3000, 4),
        (12, base, 3000, 4),
        (11, end - 2999, 3000, 4),
        (11, base - 1, 3000, 4),
        (11, base + (1 << 32), 3000, 4),
        (11, base.wrapping_sub(1 << 32), 3000, 4),
        (11, base, (1 << 28) + 1, 4),
        (11, base + 1, 1 << 28, 4),
        (11, base + 3000, u32::MAX, 4),
        (11, 0, 3000, 4),
        (11, HOST_LEN - 3000, 3000, 4),
        (11, u64::MAX - 2999, 3000, 4),
        // The capability covers it; the node has no place for it.
        (13, base, 3000, 4),
        (11 + 256, base, 3000, 4),
        (11 + (1 << 32), base, 3000, 4),
    ] {
        let status = status_at(&mut node, segment, address, len);
        assert_eq!(status, Some(expected), "{segment} {address:#x} {len}");
        assert_eq!(node.storage.is_empty(), expected != 0);
        node.storage.clear();
    }
    // The same segment of another volume is another one.
    let (volume, epoch) = (VolumeId(1), Epoch(1));
    let mut foreign = write(Scheme::Single, 1, 3000);
    let key = MASTER.derive(volume, epoch);
    foreign.capability = Capability::issue(&key, volume, epoch, Rights::WRITE, NOW_NS + 1);
    assert_eq!(status(&refused(&mut node, &foreign)), Some(4));
}

/// A capability that was checked before a change counts after it as far as the new settings say:
/// not without its key, and not for a segment that has gone.
#[test]
fn a_change_of_the_settings_holds_at_once() {
    let old = settings(0, Multiply::Table, 0, 0);
    let Some(mut node) = Node::new(&old) else { return };
    let good = |node: &mut Node| status_at(node, 11, PLACE, 3000);
    assert_eq!(good(&mut node), Some(0));
    let mut raised = old.clone();
    raised.keys[1].2 = Epoch(EPOCH.0 + 1);
    node.set(&raised);
    assert_eq!(good(&mut node), Some(1));
    node.set(&old);
    assert_eq!(good(&mut node), Some(0));
    let mut without = old.clone();
    without.extents.retain(|extent| extent.segment.0 != 11);
    node.set(&without);
    assert_eq!(good(&mut node), Some(4));
    // What does not fit changes nothing.
    let short = node.core.set_context(&[0; 100]);
    assert_eq!(short, Err(EngineError::Context(100)));
    assert_eq!(good(&mut node), Some(4));
}

/// Segments whose entries would be the same stand behind one another.
#[test]
fn segments_that_share_an_entry_have_their_places() {
    let mut settings = settings(0, Multiply::Table, 0, 0);
    let extents = (0..8u64).map(|i| Extent {
        volume: VOLUME,
        segment: SegmentId(11 + 256 * i + (i << 33)),
        base: i << 20,
        length: 1 << 20,
    });
    settings.extents = extents.collect();
    let Some(mut node) = Node::new(&settings) else { return };
    for extent in &settings.extents {
        for other in &settings.extents {
            let expected = if other == extent { 0 } else { 4 };
            let status = status_at(&mut node, extent.segment.0, other.base, 3000);
            assert_eq!(status, Some(expected));
        }
    }
}

/// A data node refuses codes and columns that it has no tables for. It would store wrong parities.
#[test]
fn a_code_without_tables_is_refused() {
    let code = |k, m, column| Scheme::Code { k, m, column };
    for (multiply, coefficients, column, scheme, expected) in [
        (Multiply::Table, (0, 0), 0, code(3, 2, 0), Some(8)),
        (Multiply::Table, (3, 2), 0, code(6, 2, 4), Some(8)),
        (Multiply::Table, (3, 2), 0, code(3, 3, 0), Some(8)),
        (Multiply::Table, (3, 2), 0, code(2, 2, 0), Some(8)),
        (Multiply::Table, (3, 2), 0, code(3, 2, 2), None),
        (Multiply::Pairs, (3, 2), 1, code(3, 2, 0), Some(8)),
        (Multiply::Pairs, (3, 2), 1, code(3, 2, 2), Some(8)),
        (Multiply::Pairs, (3, 2), 1, code(3, 2, 1), None),
        (Multiply::Pairs, (3, 2), 300, code(3, 2, 0), Some(8)),
        (Multiply::Planes, (3, 2), 0, code(6, 3, 2), Some(8)),
        (Multiply::Planes, (3, 2), 0, code(3, 2, 2), None),
    ] {
        let mut settings = settings(0, multiply, coefficients.0, coefficients.1);
        settings.column = column;
        let Some(mut node) = Node::new(&settings) else { return };
        let Scheme::Code { m, .. } = scheme else { unreachable!() };
        let outputs = node.packet(&write(scheme, 1 + u32::from(m), 3000).packets()[0]);
        let case = format!("{multiply:?} {coefficients:?} {column} {scheme:?}");
        assert_eq!(status(&outputs), expected, "{case}");
        assert_eq!(node.core.open_messages().is_empty(), expected.is_some(), "{case}");
        assert_eq!(node.storage.is_empty(), expected.is_some(), "{case}");
    }
}
