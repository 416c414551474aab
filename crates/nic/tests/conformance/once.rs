//! Packets that come twice, in another order or not at all: a node says DONE when it has every byte
//! of the write, and not before.

use fieldstone_nic::firmware::nic::Output;
use fieldstone_nic::firmware::packet::{Reply, Scheme};
use fieldstone_nic::firmware::state::Multiply;
use fieldstone_proto::ids::Epoch;

use crate::coding::{PARITY_PLACE, intermediate, status, sum_of_columns};
use crate::node::{Cluster, Node};
use crate::writes::{EPOCH, NOW_NS, settings, write};

/// Bytes of a write of four packets, whatever its headers.
const FOUR_PACKETS: usize = 3 * 2048;

/// The packets at these places, in this order.
fn at(packets: &[Vec<u8>], places: &[usize]) -> Vec<Vec<u8>> {
    places.iter().map(|&place| packets[place].clone()).collect()
}

fn strays(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| **output == Output::Stray).count()
}

/// The bytes of packets 0, 1, 1 and 3 are as many as those of 0, 1, 2 and 3.
#[test]
fn a_packet_that_comes_twice_stands_for_no_other() {
    for (scheme, nodes) in
        [(Scheme::Single, 1), (Scheme::Ring { k: 3 }, 3), (Scheme::Tree { k: 3 }, 3)]
    {
        let made = Cluster::new(nodes, |node| settings(node, Multiply::Table, 0, 0));
        let Some(mut cluster) = made else { return };
        let write = write(scheme, nodes, FOUR_PACKETS);
        let packets = write.packets();
        assert_eq!(packets.len(), 4);
        cluster.deliver(at(&packets, &[0, 1, 1, 3]));
        assert_eq!(cluster.replies, [], "{scheme:?}: a packet is missing");
        cluster.deliver(at(&packets, &[2]));
        cluster.assert_all_done(nodes as usize);
        for (node, place) in cluster.nodes.iter().zip(&write.nodes) {
            assert!(node.stored(place.address, write.data.len()) == write.data, "{scheme:?}");
        }
    }
}

/// Two packets of one data node are not those of two data nodes: their sum would be zero.
#[test]
fn a_packet_that_comes_twice_makes_no_parity() {
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    let columns = [0, 1, 2].map(|column| intermediate(column, 1, FOUR_PACKETS));
    assert_eq!(columns[0].len(), 4);
    let twice = at(&columns[0], &[0, 1, 1, 3]);
    let outputs: Vec<Output> = [&twice[..], &columns[1], &columns[2]]
        .into_iter()
        .flatten()
        .flat_map(|packet| node.packet(packet))
        .collect();
    assert_eq!((status(&outputs), strays(&outputs)), (None, 1));
    assert_eq!(status(&node.packet(&columns[0][2])), Some(0));
    assert!(node.stored(PARITY_PLACE, FOUR_PACKETS) == sum_of_columns(FOUR_PACKETS));
    assert!(node.is_clean());
}

/// The same of a write that the CPU adds up.
#[test]
fn a_staged_message_is_complete_when_every_packet_is_there() {
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    let packets = intermediate(0, 1, 17 * 2048);
    let mut places: Vec<usize> = (0..packets.len()).collect();
    places[8] = 7;
    let ended = |outputs: &[Output]| {
        outputs.iter().any(|output| matches!(output, Output::Event { code: 4, .. }))
    };
    for packet in at(&packets, &places) {
        assert!(!ended(&node.packet(&packet)));
    }
    assert!(ended(&node.packet(&packets[8])));
}

/// A node forwards packets from several cores, so they may overtake each other.
#[test]
fn packets_behind_the_first_may_come_in_any_order() {
    for places in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]] {
        let Some(mut node) = Node::new(&settings(0, Multiply::Table, 0, 0)) else { return };
        let write = write(Scheme::Single, 1, FOUR_PACKETS);
        let packets = write.packets();
        let mut replies = vec![status(&node.packet(&packets[0]))];
        replies.extend(at(&packets, &places).iter().map(|packet| status(&node.packet(packet))));
        assert_eq!(replies, [None, None, None, Some(0)], "{places:?}");
        assert!(node.stored(write.nodes[0].address, FOUR_PACKETS) == write.data, "{places:?}");
        assert!(node.is_clean());
    }
}

/// A packet whose data says another place than its number: the write has a hole.
#[test]
fn a_packet_has_its_own_place() {
    for lie in [-2048, -1, 1] {
        let Some(mut node) = Node::new(&settings(0, Multiply::Table, 0, 0)) else { return };
        let mut packets = write(Scheme::Single, 1, FOUR_PACKETS).packets();
        let offset = u32::from_le_bytes(packets[2][16..20].try_into().unwrap());
        packets[2][16..20].copy_from_slice(&offset.wrapping_add_signed(lie).to_le_bytes());
        let outputs: Vec<Output> = packets.iter().flat_map(|packet| node.packet(packet)).collect();
        assert_eq!(status(&outputs), Some(6), "{lie}");
        let strays =
            outputs.iter().filter(|output| matches!(output, Output::Event { code: 2, .. }));
        assert_eq!(strays.count(), 1, "{lie}");
        assert!(node.is_clean());
    }
}

/// A NIC notes 64 packets from the first missing one on. It drops one that is further ahead.
#[test]
fn a_packet_far_ahead_is_dropped() {
    let Some(mut node) = Node::new(&settings(0, Multiply::Table, 0, 0)) else { return };
    let packets = write(Scheme::Single, 1, 65 * 2048).packets();
    assert_eq!(packets.len(), 66);
    node.packet(&packets[0]);
    assert_eq!(node.packet(&packets[65]), [Output::Stray]);
    assert_eq!(strays(&node.packet(&packets[64])), 0);
    let replies: Vec<Option<u32>> = packets[1..64]
        .iter()
        .chain(&packets[65..])
        .map(|packet| status(&node.packet(packet)))
        .collect();
    assert_eq!(replies.iter().position(Option::is_some), Some(63));
    assert_eq!(replies[63], Some(0));
}

/// A message begins with its packet number 0.
#[test]
fn a_first_packet_has_number_zero() {
    let Some(mut node) = Node::new(&settings(0, Multiply::Table, 0, 0)) else { return };
    let mut packet = write(Scheme::Single, 1, 100).packets().swap_remove(0);
    packet[12] = 1;
    assert_eq!(node.packet(&packet), [Output::Stray]);
    assert!(node.is_clean());
    packet[12] = 0;
    let outputs = node.packet(&packet);
    assert!(matches!(&outputs[..], [.., Output::Send(reply)] if Reply::parse(reply).is_some()));
}

/// The NIC forgets a message that has ended. So who can deliver its packets again writes the same
/// bytes to the same place again, while the capability holds: another place, other bytes under its
/// MAC, or a later time get nothing. The connection's sequence numbers must keep such packets out.
#[test]
fn a_message_that_comes_again_is_taken_again_while_its_capability_holds() {
    let of = settings(0, Multiply::Table, 0, 0);
    let Some(mut node) = Node::new(&of) else { return };
    let write = write(Scheme::Single, 1, FOUR_PACKETS);
    let packets = write.packets();
    let send = |node: &mut Node| {
        let outputs: Vec<Output> = packets.iter().flat_map(|packet| node.packet(packet)).collect();
        (status(&outputs), strays(&outputs))
    };
    assert_eq!(send(&mut node), (Some(0), 0));
    let stored = node.storage.clone();
    // Without the first packet, the others belong to nothing.
    for packet in &packets[1..] {
        assert_eq!(node.packet(packet), [Output::Stray]);
    }
    // The place has other bytes meanwhile: they are lost.
    node.storage.values_mut().for_each(|byte| *byte = 0xee);
    assert_eq!(send(&mut node), (Some(0), 0));
    assert!(node.storage == stored);
    node.storage.clear();
    let mut raised = of.clone();
    raised.keys[1].2 = Epoch(EPOCH.0 + 1);
    node.set(&raised);
    assert_eq!(send(&mut node), (Some(1), packets.len() - 1));
    node.set(&of);
    node.now_ns = NOW_NS + 1;
    assert_eq!(send(&mut node), (Some(2), packets.len() - 1));
    assert!(node.storage.is_empty() && node.is_clean());
}

/// The same of a message of a parity write. While the write is open, its column counts once; after
/// that, one message alone waits, and fails.
#[test]
fn a_message_of_a_parity_write_that_comes_again_makes_no_parity() {
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    let columns = [0, 1, 2].map(|column| intermediate(column, 1, 1000).swap_remove(0));
    assert_eq!(status(&node.packet(&columns[0])), None);
    assert_eq!(node.packet(&columns[0]), [Output::Stray]);
    let mut again = columns[0].clone();
    again[8] = 99; // another message
    assert_eq!(status(&node.packet(&again)), Some(5));
    assert_eq!(status(&node.packet(&columns[1])), None);
    assert_eq!(status(&node.packet(&columns[2])), Some(0));
    let stored = node.storage.clone();
    assert_eq!(status(&node.packet(&columns[0])), None);
    assert_eq!(status(&node.cleanup((0, 1))), Some(6));
    assert!(node.storage == stored && node.is_clean());
}
