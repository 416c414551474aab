//! What header handlers refuse: capabilities and headers that do not hold.

use fieldstone_nic::firmware::device::Output;
use fieldstone_nic::firmware::packet::{Reply, Scheme, Write, capability_bytes};
use fieldstone_nic::firmware::state::Multiply;
use fieldstone_proto::capability::{MasterKey, Rights};
use fieldstone_proto::ids::SegmentId;

use crate::node::Node;
use crate::writes::{EPOCH, HOST_LEN, MASTER, NOW_NS, VOLUME, capability, settings, write};

fn refused(node: &mut Node, write: &Write) -> Vec<Output> {
    let mut outputs = Vec::new();
    for packet in write.packets() {
        outputs.extend(node.packet(&packet));
    }
    assert!(node.is_clean());
    assert!(node.storage.is_empty());
    outputs
}

#[test]
fn capabilities_are_checked_as_proto_does() {
    let Some(mut node) = Node::new(&settings(0, Multiply::Table, 0, 0)) else { return };
    let good = write(Scheme::Single, 1, 3000);
    let status = |node: &mut Node, write: &Write| match &refused(node, write)[0] {
        Output::Send(packet) => Reply::parse(packet).unwrap().status,
        other => panic!("{other:?}"),
    };
    let key = MASTER.derive(VOLUME, EPOCH);
    for round in 0..2 {
        // Every bit of the capability, before and after a good one is remembered.
        for bit in 0..52 * 8 {
            let mut bytes = capability_bytes(&capability());
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut packet = good.packets().swap_remove(0);
            packet[24 + 16..24 + 84].copy_from_slice(&bytes);
            let outputs = node.packet(&packet);
            let Output::Send(reply) = &outputs[0] else { panic!("{outputs:?}") };
            assert_eq!(Reply::parse(reply).unwrap().status, 1, "bit {bit}");
        }
        for byte in 0..16 {
            let mut forged = good.clone();
            forged.capability.mac[byte] ^= 0x10;
            assert_eq!(status(&mut node, &forged), 1);
        }
        let mut expired = good.clone();
        expired.capability.expires_ns = NOW_NS;
        expired.capability = expired.capability.signed(&key);
        assert_eq!(status(&mut node, &expired), 2);
        let mut reader = good.clone();
        reader.capability.rights = Rights(Rights::ALL.0 & !Rights::WRITE.0);
        reader.capability = reader.capability.signed(&key);
        assert_eq!(status(&mut node, &reader), 3);
        for (segment, expected) in [(9, 4), ((20 << 32) + 1, 4)] {
            let mut outside = good.clone();
            outside.segment = segment;
            assert_eq!(status(&mut node, &outside), expected);
        }
        let mut foreign = good.clone();
        let foreign_key = MasterKey([1; 16]).derive(VOLUME, EPOCH);
        foreign.capability = foreign.capability.signed(&foreign_key);
        assert_eq!(status(&mut node, &foreign), 1);
        if round == 0 {
            for packet in good.packets() {
                node.packet(&packet);
            }
            assert!(node.is_clean());
            node.storage.clear();
        }
    }
    // Edges of the range are inside.
    for segment in [10, 20 << 32] {
        let mut inside = good.clone();
        inside.segment = segment;
        inside.capability.segment_last = SegmentId(20 << 32);
        inside.capability = inside.capability.signed(&key);
        for packet in inside.packets() {
            node.packet(&packet);
        }
        assert!(node.stored(0x1000, 3000) == good.data);
    }
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
    for address in [u64::MAX, u64::MAX - 2999, HOST_LEN - 2999] {
        let mut beyond = good.clone();
        beyond.nodes[1].address = address;
        cases.push(("addresses beyond storage", at(1, beyond)));
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
