//! Streamed codes: parity nodes have the parities of crates/gf, whoever adds them up.

use fieldstone_codes::Profile;
use fieldstone_nic::firmware::nic::Output;
use fieldstone_nic::firmware::packet::{Coordinates, DATA_BYTES, Reply, Scheme, Write};
use fieldstone_nic::firmware::state::{ElementColumn, Multiply, STAGED_DATA, Settings};

use crate::node::{Cluster, Node};
use crate::writes::{CLIENT, EPOCH, MASTER, PLACE, STAGING_LEN, VOLUME, extent, settings, write};

/// Where parity nodes store the parity.
pub const PARITY_PLACE: u64 = PLACE + 0x9000;

/// Data nodes 0 to k - 1, parity nodes k to k + m - 1; the packets interleaved as in figure 14.
pub fn code_writes(k: u8, m: u8, len: usize) -> Vec<Write> {
    chunk_writes((k, m), len, &|column| Scheme::Code { k, m, column })
}

/// The same for a code with elements, one in each packet.
pub fn element_writes(k: u8, m: u8, elements: u32) -> Vec<Write> {
    let len = elements as usize * DATA_BYTES;
    chunk_writes((k, m), len, &|column| Scheme::Elements { k, m, column })
}

fn chunk_writes((k, m): (u8, u8), len: usize, scheme: &dyn Fn(u8) -> Scheme) -> Vec<Write> {
    (0..k)
        .map(|column| {
            let mut write = write(scheme(column), 1 + u32::from(m), len);
            write.message = 1000 + u32::from(column);
            write.nodes[0].node = u32::from(column);
            for (i, node) in write.nodes[1..].iter_mut().enumerate() {
                *node = Coordinates { node: u32::from(k) + i as u32, address: PARITY_PLACE };
            }
            for byte in &mut write.data {
                *byte = byte.wrapping_mul(3).wrapping_add(column * 41);
            }
            write
        })
        .collect()
}

pub fn interleaved(writes: &[Write]) -> Vec<Vec<u8>> {
    let packets: Vec<Vec<Vec<u8>>> = writes.iter().map(Write::packets).collect();
    let most = packets.iter().map(Vec::len).max().unwrap();
    (0..most).flat_map(|i| packets.iter().filter_map(move |p| p.get(i).cloned())).collect()
}

/// The parities of crates/codes, which crates/gf computes.
fn parities(multiply: Multiply, writes: &[Write], m: u8) -> Vec<Vec<u8>> {
    let profile: Profile = format!("{}:{}+{m}", multiply.family(), writes.len()).parse().unwrap();
    parities_of(profile, multiply, writes)
}

fn parities_of(profile: Profile, multiply: Multiply, writes: &[Write]) -> Vec<Vec<u8>> {
    let in_planes = |bytes: &[u8], change: fn(&[u8]) -> [u8; 32]| match multiply {
        Multiply::Planes => by_blocks(&writes[0], bytes, change),
        _ => bytes.to_vec(),
    };
    let elements: Vec<Vec<u8>> = writes.iter().map(|w| in_planes(&w.data, elements_of)).collect();
    let inputs: Vec<&[u8]> = elements.iter().map(Vec::as_slice).collect();
    let mut parities = vec![vec![0; writes[0].data.len()]; profile.m()];
    let mut outputs: Vec<&mut [u8]> = parities.iter_mut().map(Vec::as_mut_slice).collect();
    profile.code().encode().execute(&inputs, &mut outputs).unwrap();
    parities.iter().map(|parity| in_planes(parity, planes_of)).collect()
}

/// Changes each whole block of 32 bytes of each packet of `write` (`firmware/gf.h`).
fn by_blocks(write: &Write, bytes: &[u8], change: fn(&[u8]) -> [u8; 32]) -> Vec<u8> {
    let mut rest = bytes;
    let mut changed = Vec::new();
    for packet in write.packets() {
        let len = usize::from(u16::from_le_bytes([packet[20], packet[21]]));
        let (data, behind) = rest.split_at(len);
        let (blocks, tail) = data.as_chunks::<32>();
        changed.extend(blocks.iter().flat_map(|block| change(block)));
        changed.extend(tail);
        rest = behind;
    }
    assert!(rest.is_empty());
    changed
}

/// The 32 elements of a block: bit b of element e is bit e of word b.
fn elements_of(block: &[u8]) -> [u8; 32] {
    std::array::from_fn(|e| (0..8).map(|b| (block[4 * b + e / 8] >> (e % 8) & 1) << b).sum())
}

/// The block of 32 elements.
fn planes_of(elements: &[u8]) -> [u8; 32] {
    let bit = |byte: usize, i: usize| elements[byte % 4 * 8 + i] >> (byte / 4) & 1;
    std::array::from_fn(|byte| (0..8).map(|i| bit(byte, i) << i).sum())
}

/// Streams a write of k chunks of `len` bytes; the answer is the cluster afterwards.
fn check_code(multiply: Multiply, k: u8, m: u8, len: usize) -> Option<Cluster> {
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
    for (node, parity) in cluster.nodes[usize::from(k)..].iter().zip(parities(multiply, &writes, m))
    {
        assert!(node.stored(PARITY_PLACE, len) == parity, "{multiply:?} {k}+{m} {len}");
    }
    Some(cluster)
}

#[test]
fn streamed_parities_are_those_of_gf() {
    for multiply in [Multiply::Table, Multiply::Scheduled, Multiply::Pairs, Multiply::Planes] {
        for (k, m) in [(3, 2), (6, 3), (2, 1), (4, 4)] {
            for len in [1, 6, 1913, 7000] {
                if check_code(multiply, k, m, len).is_none() {
                    return;
                }
            }
        }
    }
}

/// A node of a code with elements.
pub fn element_settings(node: u32, multiply: Multiply, code: &str) -> Settings {
    let profile: Profile = code.parse().unwrap();
    let is_data = (node as usize) < profile.k();
    let elements = is_data.then(|| ElementColumn::of(code, node as u8).unwrap());
    Settings { elements, ..settings(node, multiply, 0, 0) }
}

/// Zigzag, as the data nodes stream Reed-Solomon: each packet becomes one packet to each parity
/// node, at another place.
#[test]
fn streamed_elements_make_the_parities_of_zigzag() {
    for multiply in [Multiply::Table, Multiply::Scheduled, Multiply::Planes] {
        for code in ["zigzag:4+2", "zigzag:2+2", "zigzag:3+3", "zigzag:2+4"] {
            let profile: Profile = code.parse().unwrap();
            let (k, m) = (profile.k() as u8, profile.m() as u8);
            let nodes = u32::from(k + m);
            let of = |node| element_settings(node, multiply, code);
            let Some(mut cluster) = Cluster::new(nodes, of) else { return };
            let writes = element_writes(k, m, profile.elements());
            cluster.deliver(interleaved(&writes));
            cluster.assert_all_done(usize::from(k + m));
            let len = writes[0].data.len();
            for (node, write) in cluster.nodes.iter().zip(&writes) {
                assert!(node.stored(write.nodes[0].address, len) == write.data);
            }
            let parities = parities_of(profile, multiply, &writes);
            for (node, parity) in cluster.nodes[usize::from(k)..].iter().zip(parities) {
                assert!(node.stored(PARITY_PLACE, len) == parity, "{multiply:?} {code}");
            }
        }
    }
}

/// A data node refuses a chunk that has not all elements of its code, a first packet with data, and
/// a write of another code.
#[test]
fn elements_that_are_not_those_of_the_code_are_refused() {
    let code = "zigzag:4+2";
    let of = |multiply| Node::new(&element_settings(0, multiply, code));
    let (Some(mut node), Some(mut pairs)) = (of(Multiply::Table), of(Multiply::Pairs)) else {
        return;
    };
    let first = |k, m, elements| element_writes(k, m, elements)[0].packets().swap_remove(0);
    for elements in [7, 9, 16] {
        assert_eq!(status(&node.packet(&first(4, 2, elements))), Some(8), "{elements}");
    }
    assert_eq!(status(&node.packet(&first(3, 2, 8))), Some(8));
    assert_eq!(status(&pairs.packet(&first(4, 2, 8))), Some(8), "tables of a column only");
    let mut other_column = element_writes(4, 2, 8)[1].clone();
    other_column.nodes[0].node = 0;
    assert_eq!(status(&node.packet(&other_column.packets()[0])), Some(8));
    let reed_solomon = code_writes(4, 2, 8 * DATA_BYTES)[0].packets().swap_remove(0);
    assert_eq!(status(&node.packet(&reed_solomon)), Some(8));
    let mut with_data = element_writes(4, 2, 8)[0].clone();
    with_data.scheme = Scheme::Code { k: 4, m: 2, column: 0 };
    let mut packet = with_data.packets().swap_remove(0);
    packet[24 + 84 + 12] = 4; // elements, and yet data in the first packet
    let malformed = node.packet(&packet);
    assert!(matches!(malformed[..], [Output::Event { code: 1, .. }]), "{malformed:?}");
    let mut part_of_an_element = first(4, 2, 8);
    part_of_an_element[24 + 84 + 8] = 5; // the length
    let malformed = node.packet(&part_of_an_element);
    assert!(matches!(malformed[..], [Output::Event { code: 1, .. }]), "{malformed:?}");
    assert!(node.is_clean() && pairs.is_clean() && node.storage.is_empty());
    assert!(ElementColumn::of("clay:4+2", 0).unwrap_err().contains("several elements"));
    assert!(ElementColumn::of("zigzag:6+3", 0).unwrap_err().contains("27 elements"));
    assert!(ElementColumn::of(code, 4).is_err());
}

/// The packets of data node `column` of zigzag:4+2 to node 4, the first parity node.
fn element_packets(column: usize, request: u64) -> Vec<Vec<u8>> {
    intermediate_of(column, request, element_writes(4, 2, 8).swap_remove(column))
}

/// The sum of the chunks of all columns: contributions are added up as they are.
fn sum_of_chunks() -> Vec<u8> {
    let writes = element_writes(4, 2, 8);
    let bytes = |at: usize| writes.iter().fold(0, |sum, write| sum ^ write.data[at]);
    (0..writes[0].data.len()).map(bytes).collect()
}

fn parity_node_of_elements() -> Option<Node> {
    Node::new(&element_settings(4, Multiply::Table, "zigzag:4+2"))
}

/// Elements come in the order of the parity of another data node, and some come twice.
#[test]
fn elements_come_in_any_order_and_count_once() {
    let Some(mut node) = parity_node_of_elements() else { return };
    let mut statuses = Vec::new();
    for column in 0..4 {
        let packets = element_packets(column, 1);
        let order = [0, 3, 8, 3, 1, 7, 8, 2, 2, 5, 4, 6];
        for at in order.map(|at: usize| if at == 0 { 0 } else { (at - 1 + 3 * column) % 8 + 1 }) {
            statuses.extend(status(&node.packet(&packets[at])));
        }
    }
    assert_eq!(statuses, [0]);
    assert!(node.stored(PARITY_PLACE, 8 * DATA_BYTES) == sum_of_chunks());
    assert!(node.is_clean());
}

/// An element that is missing, short or out of its place, or the end of a message too early: the
/// write is never done.
#[test]
fn a_parity_of_elements_has_all_of_them() {
    for fault in 0..4 {
        let Some(mut node) = parity_node_of_elements() else { return };
        let mut statuses = Vec::new();
        for column in 0..4 {
            let mut packets = element_packets(column, 1);
            if column == 2 {
                match fault {
                    0 => drop(packets.remove(5)),
                    1 => {
                        packets[5].truncate(24 + 100);
                        packets[5][20..22].copy_from_slice(&100u16.to_le_bytes());
                    }
                    2 => packets[5][16..20].copy_from_slice(&0u32.to_le_bytes()),
                    _ => packets[5][15] |= 2,
                }
            }
            for packet in packets {
                statuses.extend(status(&node.packet(&packet)));
            }
        }
        for name in node.core.open_messages() {
            statuses.extend(status(&node.cleanup(name)));
        }
        assert!(!statuses.is_empty() && statuses.iter().all(|s| *s == 6), "{fault}: {statuses:?}");
        assert!(node.is_clean(), "{fault}");
    }
}

/// Reed-Solomon and elements are never added up.
#[test]
fn a_parity_write_of_elements_is_joined_by_elements_only() {
    let len = 8 * DATA_BYTES;
    let reed_solomon = |column: usize| {
        intermediate_of(column, 1, code_writes(4, 2, len).swap_remove(column)).swap_remove(0)
    };
    let elements = |column: usize| element_packets(column, 1).swap_remove(0);
    for mixed in [[elements(0), reed_solomon(1)], [reed_solomon(0), elements(1)]] {
        let Some(mut node) = parity_node_of_elements() else { return };
        assert_eq!(status(&node.packet(&mixed[0])), None);
        assert_eq!(status(&node.packet(&mixed[1])), Some(6));
    }
    // Seven writes of nine packets leave one accumulator. The CPU adds the next one up.
    let Some(mut cluster) = Cluster::new(6, |n| element_settings(n, Multiply::Table, "zigzag:4+2"))
    else {
        return;
    };
    for request in 100..107 {
        for node in [4, 5] {
            let mut packet = element_packets(0, request).swap_remove(0);
            packet[14] = node as u8 - 3;
            assert_eq!(status(&cluster.nodes[node].packet(&packet)), None);
        }
    }
    let writes = element_writes(4, 2, 8);
    cluster.deliver(interleaved(&writes));
    let aggregated: Vec<usize> = cluster.cpus.iter().map(|cpu| cpu.aggregated).collect();
    assert_eq!(aggregated, [0, 0, 0, 0, 1, 1]);
    let parities = parities_of("zigzag:4+2".parse().unwrap(), Multiply::Table, &writes);
    for (node, parity) in cluster.nodes[4..].iter().zip(parities) {
        assert!(node.stored(PARITY_PLACE, len) == parity);
    }
}

/// 17 packets are more than a NIC aggregates of one write: the CPUs of the parity nodes do.
#[test]
fn the_cpu_adds_long_parities_up() {
    let Some(cluster) = check_code(Multiply::Table, 3, 2, 16 * 2048 + 10) else { return };
    let aggregated: Vec<usize> = cluster.cpus.iter().map(|cpu| cpu.aggregated).collect();
    assert_eq!(aggregated, [0, 0, 0, 1, 1]);
}

/// The packets of data node `column` to node 3, the first parity node, for request `request`.
pub fn intermediate(column: usize, request: u64, len: usize) -> Vec<Vec<u8>> {
    intermediate_of(column, request, code_writes(3, 2, len).swap_remove(column))
}

/// The same for this write.
pub fn intermediate_of(column: usize, request: u64, mut write: Write) -> Vec<Vec<u8>> {
    write.request = request;
    write.message = request as u32;
    let mut packets = write.packets();
    for packet in &mut packets {
        packet[0..4].copy_from_slice(&(column as u32).to_le_bytes());
        packet[14] = 1; // the rank of the first parity node
    }
    packets
}

/// The parity of three columns of [`intermediate`]: what data nodes send is added up as it is.
pub fn sum_of_columns(len: usize) -> Vec<u8> {
    let data: Vec<Vec<u8>> = code_writes(3, 2, len).into_iter().map(|w| w.data).collect();
    (0..len).map(|i| data[0][i] ^ data[1][i] ^ data[2][i]).collect()
}

pub fn status(outputs: &[Output]) -> Option<u32> {
    outputs.iter().find_map(|output| match output {
        Output::Send(packet) => Reply::parse(packet).map(|reply| reply.status),
        _ => None,
    })
}

/// Twelve writes of five packets take 60 of the 64 accumulators. The CPU gets the next four; then
/// all 16 groups are in use. All are cleaned up in the end.
#[test]
fn a_pool_without_room_leaves_parities_to_the_cpu_and_then_denies() {
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    let len = 4 * 2048 + 1000;
    let staging = node.settings.staging_at(0)..node.settings.staging_at(960);
    for request in 0..16 {
        let outputs = node.packet(&intermediate(0, request, len)[0]);
        assert_eq!(status(&outputs), None);
        let staged = outputs
            .iter()
            .any(|o| matches!(o, Output::Store { address, .. } if staging.contains(address)));
        assert_eq!(staged, request >= 12, "{request}");
    }
    let retry = node.packet(&intermediate(0, 16, len)[0]);
    assert_eq!(status(&retry), Some(5), "{retry:?}");
    // A message of a write that the NIC has joins it.
    assert_eq!(status(&node.packet(&intermediate(1, 3, len)[0])), None);
    for name in node.core.open_messages() {
        for output in node.cleanup(name) {
            if let Output::Event { code: 4, arguments: [request_id, failed] } = output {
                assert_eq!(failed, 1);
                node.release(request_id);
            }
        }
    }
    assert!(node.is_clean());
}

#[test]
fn a_parity_write_that_no_one_has_room_for_is_refused() {
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    let most = (STAGING_LEN - STAGED_DATA) as usize;
    let outputs = node.packet(&intermediate(0, 1, most + 1)[0]);
    assert_eq!(status(&outputs), Some(7), "{outputs:?}");
    assert!(node.is_clean());
    let outputs = node.packet(&intermediate(0, 1, most)[0]);
    assert_eq!(status(&outputs), None, "{outputs:?}");
    assert_eq!(node.core.open_messages().len(), 1);
}

/// Messages that contradict their write: another number of bytes, or a column that has come.
#[test]
fn messages_of_a_parity_write_agree() {
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    node.packet(&intermediate(0, 1, 5000)[0]);
    assert_eq!(status(&node.packet(&intermediate(1, 1, 5001)[0])), Some(6));
    let mut again = intermediate(0, 1, 5000).swap_remove(0);
    again[8] = 99; // another message
    assert_eq!(status(&node.packet(&again)), Some(5));
    assert_eq!(node.core.open_messages().len(), 1);
}

/// Whoever names the client and the number of a parity write joins it only if it writes the same
/// segment at the same address: else it is a write of its own, and the named one gets the parity
/// that crates/gf computes.
#[test]
fn a_parity_write_is_joined_by_its_own_messages_only() {
    let len = 1000;
    let key = MASTER.derive(VOLUME, EPOCH);
    let foreign = |change: fn(&mut Write)| {
        let mut write = code_writes(3, 2, len).swap_remove(2);
        write.data.fill(0xa5);
        change(&mut write);
        write.capability = write.capability.signed(&key);
        intermediate_of(9, 1, write).swap_remove(0)
    };
    let others = [
        foreign(|write| {
            write.segment = 12;
            write.nodes[1].address = extent(12).base;
        }),
        foreign(|write| write.nodes[1].address += 0x1_0000),
        foreign(|write| write.client = 101),
    ];
    for place in 0..=2 {
        for other in &others {
            let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
            for column in 0..=2 {
                if column == place {
                    assert_eq!(status(&node.packet(other)), None);
                }
                let outputs = node.packet(&intermediate(column, 1, len)[0]);
                assert_eq!(status(&outputs), (column == 2).then_some(0), "{outputs:?}");
            }
            assert!(node.stored(PARITY_PLACE, len) == sum_of_columns(len));
            assert_eq!(node.storage.len(), len);
            assert_eq!(status(&node.cleanup((9, 1))), Some(6));
            assert!(node.is_clean());
        }
    }
}

/// The last packet ends a message. What comes after it changes nothing: a parity write does not end
/// before its last data node.
#[test]
fn a_message_ends_once() {
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    let first = intermediate(0, 1, 1000).swap_remove(0);
    node.packet(&first);
    for mut again in std::iter::repeat_n(first, 3) {
        again[15] &= !1; // not the first
        assert_eq!(node.packet(&again), [Output::Stray]);
    }
    // Nor does its cleanup count as another one.
    let mut silent = intermediate(1, 1, 1000).swap_remove(0);
    silent[15] &= !2; // not the last
    node.packet(&silent);
    assert_eq!(status(&node.cleanup((0, 1))), None);
    assert_eq!(node.core.open_messages().len(), 2);
    assert_eq!(status(&node.cleanup((1, 1))), Some(6));
    assert!(node.is_clean());
}

/// A silent data node: the messages that came are cleaned up, and the accumulators are free again.
#[test]
fn cleanup_frees_a_parity_write() {
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    for column in 0..2 {
        let mut packets = intermediate(column, 1, 5000);
        if column == 1 {
            packets.pop();
        }
        for packet in packets {
            node.packet(&packet);
        }
    }
    assert_eq!(node.core.open_messages(), [(0, 1), (1, 1)]);
    let outputs = node.cleanup((1, 1));
    assert_eq!(status(&outputs), Some(6), "{outputs:?}");
    assert!(node.is_clean());
    // And a single write.
    let mut single = write(Scheme::Single, 1, 5000);
    single.nodes[0].node = 3;
    node.packet(&single.packets()[0]);
    let outputs = node.cleanup((CLIENT, single.message));
    assert!(matches!(outputs[..], [Output::Event { code: 3, .. }]), "{outputs:?}");
    assert!(node.is_clean());
}
