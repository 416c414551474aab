//! The same packets into the firmware on the host and on the NIC's core: the same packets out, the
//! same bytes into storage, the same memory afterwards. And both are right: parities as crates/gf
//! computes them, capabilities as proto signs them, bytes on every replica.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use common::host::HostEngine;
use common::{CLIENT, NOW_NS, capability, hpu, program, settings, write};
use fieldstone_codes::Profile;
use fieldstone_nic::device::{Device, Output};
use fieldstone_nic::engine::{Area, Engine};
use fieldstone_nic::hpu::Hpu;
use fieldstone_nic::packet::{Coordinates, PLACE_FIRST, PacketHeader, Reply, Scheme, Write};
use fieldstone_nic::state::{Multiply, Settings};
use fieldstone_proto::capability::{MasterKey, Rights};
use fieldstone_proto::ids::SegmentId;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A node whose firmware runs twice, compared after every packet.
struct Node {
    core: Device<Hpu>,
    host: Device<HostEngine>,
    storage: BTreeMap<u64, u8>,
}

impl Node {
    fn new(settings: &Settings) -> Option<Self> {
        let program = program(settings.multiply)?;
        Some(Self {
            core: Device::new(hpu(&program, settings)),
            host: Device::new(HostEngine::new(settings)?),
            storage: BTreeMap::new(),
        })
    }

    fn packet(&mut self, packet: &[u8]) -> Vec<Output> {
        let core = self.core.packet(packet, NOW_NS);
        let host = self.host.packet(packet, NOW_NS);
        self.compare(core, host)
    }

    fn cleanup(&mut self, name: (u32, u32)) -> Vec<Output> {
        let core = self.core.cleanup(name, NOW_NS);
        let host = self.host.cleanup(name, NOW_NS);
        self.compare(core, host)
    }

    fn compare(&mut self, core: Vec<Output>, host: Vec<Output>) -> Vec<Output> {
        for output in &core {
            assert!(!matches!(output, Output::Fault(_)), "{output:?}");
        }
        assert!(core == host, "core:\n{core:?}\nhost:\n{host:?}");
        for area in [Area::Requests, Area::Cache, Area::Pool] {
            let same = self.core.engine().area(area) == self.host.engine().area(area);
            assert!(same, "{area:?} differs");
        }
        for output in &core {
            if let Output::Store { address, bytes } = output {
                self.storage.extend((*address..).zip(bytes.iter().copied()));
            }
        }
        core
    }

    fn stored(&self, address: u64, len: usize) -> Vec<u8> {
        (address..).take(len).map(|at| self.storage.get(&at).copied().unwrap_or(0xee)).collect()
    }

    fn is_clean(&self) -> bool {
        let engine = self.core.engine();
        self.core.open_messages() == 0
            && engine.area(Area::Requests).iter().all(|&b| b == 0)
            && {
                // The order of free accumulators may have changed; nothing else.
                let pool = engine.area(Area::Pool);
                pool[0..8] == [0, 0, 0, 0, 64, 0, 0, 0] && pool[8 + 256..].iter().all(|&b| b == 0)
            }
    }
}

/// Nodes 0 to n - 1 and the replies that the client got.
struct Cluster {
    nodes: Vec<Node>,
    replies: Vec<Reply>,
}

impl Cluster {
    fn new(n: u32, of: impl Fn(u32) -> Settings) -> Option<Self> {
        let nodes = (0..n).map(|node| Node::new(&of(node))).collect::<Option<Vec<_>>>()?;
        Some(Self { nodes, replies: Vec::new() })
    }

    /// Delivers packets, and what they cause, in the order of a queue.
    fn deliver(&mut self, packets: impl IntoIterator<Item = Vec<u8>>) -> usize {
        let mut queue: std::collections::VecDeque<_> = packets.into_iter().collect();
        let mut delivered = 0;
        while let Some(packet) = queue.pop_front() {
            delivered += 1;
            assert!(delivered < 10_000, "the packets never end");
            let header = PacketHeader::parse(&packet).unwrap();
            if header.destination == CLIENT {
                self.replies.push(Reply::parse(&packet).unwrap());
                continue;
            }
            for output in self.nodes[header.destination as usize].packet(&packet) {
                if let Output::Send(packet) = output {
                    queue.push_back(packet);
                }
            }
        }
        delivered
    }

    fn assert_all_done(&self, count: usize) {
        assert_eq!(self.replies.len(), count);
        assert!(self.replies.iter().all(|r| r.status == 0), "{:?}", self.replies);
        assert!(self.nodes.iter().all(Node::is_clean));
    }
}

#[test]
fn replicas_have_the_bytes() {
    for (scheme, k) in [
        (Scheme::Single, 1),
        (Scheme::Ring { k: 2 }, 2),
        (Scheme::Ring { k: 5 }, 5),
        (Scheme::Tree { k: 2 }, 2),
        (Scheme::Tree { k: 6 }, 6),
    ] {
        let Some(mut cluster) = Cluster::new(k, |n| settings(n, Multiply::Table, 0, 0)) else {
            return;
        };
        for len in [1, 1000, 1936, 1937, 20_001] {
            cluster.replies.clear();
            let write = write(scheme, k, len);
            cluster.deliver(write.packets());
            cluster.assert_all_done(k as usize);
            for (node, coordinates) in cluster.nodes.iter_mut().zip(&write.nodes) {
                assert!(node.stored(coordinates.address, len) == write.data, "{scheme:?} {len}");
                node.storage.clear();
            }
        }
    }
}

/// Data nodes 0 to k - 1, parity nodes k to k + m - 1; the packets interleaved as in figure 14.
fn code_writes(k: u8, m: u8, len: usize) -> Vec<Write> {
    (0..k)
        .map(|column| {
            let mut write = write(Scheme::Code { k, m, column }, 1 + u32::from(m), len);
            write.message = 1000 + u32::from(column);
            write.nodes[0].node = u32::from(column);
            for (i, node) in write.nodes[1..].iter_mut().enumerate() {
                *node = Coordinates { node: u32::from(k) + i as u32, address: 0x9000 };
            }
            for byte in &mut write.data {
                *byte = byte.wrapping_mul(3).wrapping_add(column * 41);
            }
            write
        })
        .collect()
}

fn interleaved(writes: &[Write]) -> Vec<Vec<u8>> {
    let packets: Vec<Vec<Vec<u8>>> = writes.iter().map(Write::packets).collect();
    let most = packets.iter().map(Vec::len).max().unwrap();
    (0..most).flat_map(|i| packets.iter().filter_map(move |p| p.get(i).cloned())).collect()
}

/// The parities of crates/codes, which crates/gf computes.
fn parities(writes: &[Write], m: u8) -> Vec<Vec<u8>> {
    let profile: Profile = format!("rs:{}+{m}", writes.len()).parse().unwrap();
    let inputs: Vec<&[u8]> = writes.iter().map(|w| w.data.as_slice()).collect();
    let mut parities = vec![vec![0; writes[0].data.len()]; usize::from(m)];
    let mut outputs: Vec<&mut [u8]> = parities.iter_mut().map(Vec::as_mut_slice).collect();
    profile.code().encode().execute(&inputs, &mut outputs).unwrap();
    parities
}

fn check_code(multiply: Multiply, k: u8, m: u8, len: usize) -> Option<()> {
    let nodes = u32::from(k + m);
    let mut cluster = Cluster::new(nodes, |node| {
        let mut settings = settings(node, multiply, usize::from(k), usize::from(m));
        settings.column = node as usize;
        settings
    })?;
    let writes = code_writes(k, m, len);
    cluster.deliver(interleaved(&writes));
    // One reply of each data node, one of each parity node.
    cluster.assert_all_done(usize::from(k + m));
    for (node, write) in cluster.nodes.iter().zip(&writes) {
        assert!(node.stored(write.nodes[0].address, len) == write.data);
    }
    for (node, parity) in cluster.nodes[usize::from(k)..].iter().zip(parities(&writes, m)) {
        assert!(node.stored(0x9000, len) == parity, "{multiply:?} {k}+{m} {len}");
    }
    Some(())
}

#[test]
fn streamed_parities_are_those_of_gf() {
    for multiply in [Multiply::Table, Multiply::Scheduled, Multiply::Pairs] {
        for (k, m) in [(3, 2), (6, 3), (2, 1), (4, 4)] {
            for len in [1, 6, 1913, 7000] {
                if check_code(multiply, k, m, len).is_none() {
                    return;
                }
            }
        }
    }
}

#[test]
fn a_pool_without_accumulators_leaves_the_parities_to_the_host() {
    // 17 packets are more than a NIC aggregates of one write.
    let len = 16 * 2048 + 10;
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    let mut events = 0;
    for (rank, write) in code_writes(3, 2, len).iter().enumerate() {
        for mut packet in write.packets() {
            packet[0..4].copy_from_slice(&(rank as u32).to_le_bytes());
            packet[14] = 1; // the rank of the first parity node
            for output in node.packet(&packet) {
                match output {
                    Output::Event { code: 4, .. } => events += 1,
                    Output::Store { address, bytes } => assert!(address >= 0x9000 && !bytes.is_empty()),
                    Output::Send(reply) => assert_eq!(Reply::parse(&reply).unwrap().status, 0),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert_eq!(events, 3);
}

/// A silent data node: the messages that came are cleaned up, and the accumulators are free again.
#[test]
fn cleanup_frees_a_parity_write() {
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    let mut names = Vec::new();
    for (rank, write) in code_writes(3, 2, 5000).iter().enumerate().take(2) {
        let mut packets = write.packets();
        if rank == 1 {
            packets.pop();
        }
        for mut packet in packets {
            packet[0..4].copy_from_slice(&(rank as u32).to_le_bytes());
            packet[14] = 1;
            node.packet(&packet);
        }
        names.push((rank as u32, write.message));
    }
    assert_eq!(node.core.open_messages(), 2);
    let mut outputs = Vec::new();
    for name in names.into_iter().rev() {
        outputs.extend(node.cleanup(name));
    }
    let statuses: Vec<u32> = outputs
        .iter()
        .filter_map(|o| match o {
            Output::Send(packet) => Reply::parse(packet).map(|r| r.status),
            _ => None,
        })
        .collect();
    assert_eq!(statuses, [6], "{outputs:?}");
    assert!(node.is_clean());
    // And a single write.
    let mut single = write(Scheme::Single, 1, 5000);
    single.nodes[0].node = 3;
    node.packet(&single.packets()[0]);
    let outputs = node.cleanup((CLIENT, single.message));
    assert!(matches!(outputs[..], [Output::Event { code: 3, .. }]), "{outputs:?}");
    assert!(node.is_clean());
}

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
    let key = common::MASTER.derive(common::VOLUME, common::EPOCH);
    for round in 0..2 {
        // Every bit of the capability, before and after a good one is remembered.
        for bit in 0..52 * 8 {
            let mut bytes = fieldstone_nic::packet::capability_bytes(&capability());
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
        let foreign_key = MasterKey([1; 16]).derive(common::VOLUME, common::EPOCH);
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
    for address in [u64::MAX, u64::MAX - 2999, common::HOST_LEN - 2999] {
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

/// Nodes of a tree that name each other do not send in a circle: ranks grow.
#[test]
fn no_coordinates_make_a_circle() {
    for scheme in [Scheme::Tree { k: 16 }, Scheme::Ring { k: 16 }] {
        let Some(mut cluster) = Cluster::new(2, |n| settings(n, Multiply::Table, 0, 0)) else {
            return;
        };
        let mut circle = write(scheme, 16, 2500);
        for (rank, node) in circle.nodes.iter_mut().enumerate() {
            node.node = rank as u32 % 2;
        }
        let delivered = cluster.deliver(circle.packets());
        assert!(delivered <= 16 * 3, "{delivered}");
    }
}

/// Packets with random changes, of all schemes, in random order: both engines agree on each, no
/// handler touches what is not its own, and storage changes only where a write may store.
#[test]
fn hostile_packets_change_nothing_else() {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let Some(mut node) = Node::new(&settings(1, Multiply::Table, 3, 2)) else { return };
    let mut sources = Vec::new();
    for (rank, scheme, nodes) in [
        (1u8, Scheme::Ring { k: 3 }, 3),
        (1, Scheme::Tree { k: 7 }, 7),
        (1, Scheme::Code { k: 3, m: 2, column: 1 }, 3),
        (0, Scheme::Code { k: 3, m: 2, column: 2 }, 3),
    ] {
        let mut write = write(scheme, nodes, 6000);
        if rank == 0 {
            write.nodes.swap(0, 1);
        }
        for mut packet in write.packets() {
            packet[14] = rank;
            sources.push(packet);
        }
    }
    let mut accepted = 0;
    for _ in 0..6000 {
        let mut packet = sources[random.random_range(0..sources.len())].clone();
        let message: u32 = random.random_range(0..6);
        packet[8..12].copy_from_slice(&message.to_le_bytes());
        for _ in 0..random.random_range(0..3) {
            // Mostly in headers that are not signed, where changes get further.
            let at = match random.random_range(0..4) {
                0 => random.random_range(12..24),
                1 => random.random_range(24..40),
                2 => random.random_range(108..packet.len().min(160)),
                _ => random.random_range(0..packet.len()),
            };
            packet[at] = if random.random() { random.random() } else { packet[at] ^ 1 };
        }
        if random.random_range(0..10) == 0 {
            packet.truncate(random.random_range(0..packet.len()));
        }
        let outputs = node.packet(&packet);
        accepted += usize::from(outputs.iter().any(|o| matches!(o, Output::Store { .. })));
        if random.random_range(0..50) == 0 {
            node.cleanup((CLIENT, message));
        }
        for output in outputs {
            if let Output::Store { address, bytes } = output {
                assert!(address + bytes.len() as u64 <= common::HOST_LEN);
            }
        }
        // Entries without a message are zero, and accumulators never get lost.
        if node.core.open_messages() == 0 {
            assert!(node.is_clean());
        }
    }
    assert!(accepted > 300, "{accepted}");
    for source in [CLIENT] {
        for message in 0..6 {
            node.cleanup((source, message));
        }
    }
    let _ = PLACE_FIRST;
}
