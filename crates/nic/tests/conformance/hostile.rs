//! Packets that a hostile client makes.

use fieldstone_nic::firmware::engine::MAX_REQUESTS;
use fieldstone_nic::firmware::nic::Output;
use fieldstone_nic::firmware::packet::{DATA_BYTES, Scheme};
use fieldstone_nic::firmware::state::Multiply;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::coding::{element_settings, status};
use crate::node::Node;
use crate::writes::{CLIENT, settings, write};

/// Packets of all schemes and roles for node 1.
fn sources() -> Vec<Vec<u8>> {
    let code = |column| Scheme::Code { k: 3, m: 2, column };
    let elements = |column| Scheme::Elements { k: 4, m: 2, column };
    let mut sources = Vec::new();
    for (rank, scheme, nodes, len) in [
        (1u8, Scheme::Ring { k: 3 }, 3, 6000),
        (1, Scheme::Tree { k: 7 }, 7, 6000),
        (0, code(2), 3, 6000),
        (1, code(0), 3, 6000),
        (1, code(1), 3, 6000),
        (1, code(2), 3, 6000),
        (0, elements(1), 3, 8 * DATA_BYTES),
        (1, elements(0), 3, 8 * DATA_BYTES),
        (1, elements(1), 3, 8 * DATA_BYTES),
        (1, elements(2), 3, 8 * DATA_BYTES),
        (1, elements(3), 3, 8 * DATA_BYTES),
        // The CPU adds these up.
        (1, code(0), 3, 40_000),
        (1, code(1), 3, 40_000),
    ] {
        let mut write = write(scheme, nodes, len);
        write.request += len as u64;
        if rank == 0 {
            write.nodes.swap(0, 1);
        }
        // The first packets and the last one: so messages end.
        let mut packets = write.packets();
        let last = packets.pop();
        if !matches!(scheme, Scheme::Elements { .. }) {
            packets.truncate(3);
        }
        for mut packet in packets.into_iter().chain(last) {
            packet[14] = rank;
            sources.push(packet);
        }
    }
    sources
}

/// Up to two bytes become others, and the packet may be cut or lengthened.
fn change(random: &mut ChaCha8Rng, packet: &mut Vec<u8>) {
    for _ in 0..random.random_range(0..3) {
        // Mostly in headers that are not signed, where changes get further.
        let at = match random.random_range(0..4) {
            0 => random.random_range(12..24),
            1 => random.random_range(24..40),
            2 if packet.len() > 160 => random.random_range(108..160),
            _ => random.random_range(0..packet.len()),
        };
        packet[at] = if random.random() { random.random() } else { packet[at] ^ 1 };
    }
    match random.random_range(0..20) {
        0 | 1 => packet.truncate(random.random_range(0..packet.len())),
        2 => packet.resize(random.random_range(packet.len()..4096), 0x5a),
        _ => {}
    }
}

/// Cleans all open messages up. What the CPU was told of, it gives up.
fn clean_up(node: &mut Node) {
    for name in node.core.open_messages() {
        for output in node.cleanup(name) {
            if let Output::Event { code: 4 | 5, arguments: [request_id, _] } = output {
                node.release(request_id);
            }
        }
    }
}

/// Only the first packet of a message has a capability, and a message is found by its source. So
/// packets count only if they come from the source that they name. A client without a right adds
/// nothing to the open write of another one, and opens none in the name of a node that forwards.
#[test]
fn packets_in_the_name_of_another_node_are_strays() {
    const INTRUDER: u32 = 200;
    let Some(mut node) = Node::new(&settings(1, Multiply::Table, 3, 2)) else { return };
    let mut victim = write(Scheme::Ring { k: 3 }, 3, 6000).packets();
    for packet in &mut victim {
        packet[14] = 1;
    }
    node.packet(&victim[0]);
    let stored = node.storage.clone();
    for mut packet in victim[1..].iter().cloned() {
        packet[24..].fill(0xa5);
        assert_eq!(node.packet_from(INTRUDER, &packet), [Output::Stray]);
        // In its own name it has no message.
        packet[0..4].copy_from_slice(&INTRUDER.to_le_bytes());
        assert_eq!(node.packet_from(INTRUDER, &packet), [Output::Stray]);
    }
    let mut forwarded = victim[0].clone();
    forwarded[0..4].copy_from_slice(&0u32.to_le_bytes());
    assert_eq!(node.packet_from(INTRUDER, &forwarded), [Output::Stray]);
    assert!(node.storage == stored);
    assert_eq!(node.core.open_messages(), [(CLIENT, 7)]);
    let outputs: Vec<Output> = victim[1..].iter().flat_map(|packet| node.packet(packet)).collect();
    assert_eq!(status(&outputs), Some(0));
    assert!(node.is_clean());
}

/// Packets with random changes, of all schemes, in random order: both engines agree on each, no
/// handler touches what is not its own, and bytes go only into storage and staging areas. After
/// cleanup, no entry, group or accumulator is lost.
#[test]
fn hostile_packets_change_nothing_else() {
    for settings in
        [settings(1, Multiply::Table, 3, 2), element_settings(1, Multiply::Table, "zigzag:4+2")]
    {
        let Some(node) = Node::new(&settings) else { return };
        send_hostile_packets(node);
    }
}

fn send_hostile_packets(mut node: Node) {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let sources = sources();
    let end = node.settings.staging_at(MAX_REQUESTS);
    let (mut stored, mut staged, mut interrupted) = (0, 0, 0);
    for turn in 1..=6000 {
        let mut packet = sources[random.random_range(0..sources.len())].clone();
        let message: u32 = random.random_range(0..6);
        packet[8..12].copy_from_slice(&message.to_le_bytes());
        change(&mut random, &mut packet);
        let mut outputs = node.packet(&packet);
        let open = node.core.open_messages();
        if random.random_range(0..20) == 0 && !open.is_empty() {
            outputs.extend(node.cleanup(open[random.random_range(0..open.len())]));
        }
        for output in outputs {
            match output {
                Output::Store { address, bytes } => {
                    stored += 1;
                    assert!(address + bytes.len() as u64 <= end);
                }
                Output::Event { code: 4 | 5, arguments: [request_id, _] } => {
                    staged += 1;
                    node.release(request_id);
                }
                Output::Event { code: 3, .. } => interrupted += 1,
                _ => {}
            }
        }
        if turn % 500 == 0 {
            clean_up(&mut node);
            assert!(node.is_clean(), "after {turn} packets");
        }
    }
    let all = format!("{stored} {staged} {interrupted}");
    assert!(stored > 150 && staged > 20 && interrupted > 50, "{all}");
}
