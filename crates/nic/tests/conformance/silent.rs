//! Clients and nodes that fall silent: the NIC cleans up behind them by itself.

use fieldstone_nic::firmware::engine::MAX_REQUESTS;
use fieldstone_nic::firmware::nic::{INACTIVE_NS, Output, WAITS_NS};
use fieldstone_nic::firmware::packet::{Scheme, Write};
use fieldstone_nic::firmware::state::{Multiply, Settings};
use fieldstone_proto::capability::{Capability, Rights};

use crate::coding::{PARITY_PLACE, code_writes, intermediate_of, status, sum_of_columns};
use crate::node::Node;
use crate::writes::{EPOCH, MASTER, NOW_NS, VOLUME, settings, write};

/// Bytes of a write of three packets.
const THREE_PACKETS: usize = 5000;
const SECOND_NS: u64 = 1_000_000_000;

/// A capability that does not expire while the clients are silent.
fn lasting(mut write: Write) -> Write {
    let key = MASTER.derive(VOLUME, EPOCH);
    write.capability = Capability::issue(&key, VOLUME, EPOCH, Rights::WRITE, u64::MAX);
    write
}

fn single() -> Vec<Vec<u8>> {
    lasting(write(Scheme::Single, 1, THREE_PACKETS)).packets()
}

/// Messages of the parity write 1 of `len` bytes to node 3.
fn column(column: usize, len: usize) -> Vec<Vec<u8>> {
    intermediate_of(column, 1, lasting(code_writes(3, 2, len).swap_remove(column)))
}

fn parity_settings() -> Settings {
    settings(3, Multiply::Table, 3, 2)
}

fn events(outputs: &[Output]) -> Vec<u32> {
    let code = |output: &Output| match output {
        Output::Event { code, .. } => Some(*code),
        _ => None,
    };
    outputs.iter().filter_map(code).collect()
}

/// A client sends the first two packets of three: the write is interrupted when it has been silent
/// for the whole time since the second one, and not before.
#[test]
fn a_client_that_falls_silent_is_cleaned_up() {
    let Some(mut node) = Node::new(&settings(0, Multiply::Table, 0, 0)) else { return };
    let packets = single();
    assert_eq!(node.core.deadline_ns(), None);
    node.packet(&packets[0]);
    assert_eq!(node.core.deadline_ns(), Some(NOW_NS + INACTIVE_NS));
    assert_eq!(node.tick(NOW_NS + INACTIVE_NS - 1), []);
    node.packet(&packets[1]);
    let due_ns = node.now_ns + INACTIVE_NS;
    assert_eq!(node.core.deadline_ns(), Some(due_ns));
    // A packet that came before is none.
    node.now_ns += SECOND_NS;
    assert_eq!(node.packet(&packets[1]), [Output::Stray]);
    assert_eq!(node.tick(due_ns - 1), []);
    let outputs = node.tick(due_ns);
    let [Output::Event { code: 3, arguments }] = outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(arguments, [0x9abc_def0, 0x1234_5678]);
    assert!(node.is_clean());
    assert_eq!((node.core.deadline_ns(), node.tick(u64::MAX)), (None, vec![]));
    // The client comes back: its old message is no more, a new one works.
    node.now_ns = due_ns;
    assert_eq!(node.packet(&packets[2]), [Output::Stray]);
    let outputs: Vec<Output> = packets.iter().flat_map(|packet| node.packet(packet)).collect();
    assert_eq!(status(&outputs), Some(0));
    assert!(node.is_clean());
}

/// Clients that open all entries and fall silent keep no other one out for longer: the next packet
/// is late enough.
#[test]
fn the_entries_of_silent_clients_are_free_again() {
    let Some(mut node) = Node::new(&settings(0, Multiply::Table, 0, 0)) else { return };
    let mut first = single().swap_remove(0);
    for message in 0..MAX_REQUESTS {
        first[8..12].copy_from_slice(&message.to_le_bytes());
        assert!(!node.packet(&first).contains(&Output::Full));
    }
    first[8..12].copy_from_slice(&MAX_REQUESTS.to_le_bytes());
    assert_eq!(node.packet(&first), [Output::Full]);
    node.now_ns = NOW_NS + INACTIVE_NS;
    let outputs = node.packet(&first);
    assert_eq!(events(&outputs).len(), MAX_REQUESTS as usize);
    assert!(!outputs.contains(&Output::Full));
    assert_eq!(node.core.open_messages().len(), 1);
}

/// A data node falls silent in the middle of its message: the parity write fails, and its other
/// messages and its accumulators are free.
#[test]
fn a_data_node_that_falls_silent_fails_its_parity_write() {
    let Some(mut node) = Node::new(&parity_settings()) else { return };
    for packet in column(0, THREE_PACKETS).iter().chain(&column(1, THREE_PACKETS)[..2]) {
        node.packet(packet);
    }
    assert_eq!(node.core.open_messages().len(), 2);
    assert_eq!(status(&node.tick(NOW_NS + INACTIVE_NS)), Some(6));
    assert!(node.is_clean());
}

/// A data node that never comes: the messages that have ended wait for longer, so that a slow one
/// still makes the parity.
#[test]
fn messages_that_have_ended_wait_for_a_slow_data_node() {
    for comes in [true, false] {
        let Some(mut node) = Node::new(&parity_settings()) else { return };
        for packet in column(0, THREE_PACKETS).iter().chain(&column(1, THREE_PACKETS)) {
            node.packet(packet);
        }
        let mut answer = None;
        if comes {
            for packet in column(2, THREE_PACKETS) {
                // Each packet is in time.
                assert_eq!(node.tick(node.now_ns + INACTIVE_NS - 1), []);
                answer = status(&node.packet(&packet));
            }
            assert!(node.stored(PARITY_PLACE, THREE_PACKETS) == sum_of_columns(THREE_PACKETS));
        } else {
            assert_eq!(node.tick(NOW_NS + WAITS_NS - 1), []);
            answer = answer.or(status(&node.tick(NOW_NS + WAITS_NS)));
            assert!(node.storage.is_empty());
        }
        assert_eq!(answer, Some(if comes { 0 } else { 6 }));
        assert!(node.is_clean());
    }
}

/// A staged message: the CPU hears once that it has failed, or that its write is given up, and has
/// the NIC forget it.
#[test]
fn the_cpu_hears_of_silent_data_nodes() {
    let Some(mut node) = Node::new(&parity_settings()) else { return };
    let len = 17 * 2048;
    let (first, second) = (column(0, len), column(1, len));
    for packet in first.iter().chain(&second[..3]) {
        node.packet(packet);
    }
    let outputs = node.tick(NOW_NS + INACTIVE_NS);
    assert_eq!(events(&outputs), [3, 4]);
    // Cleanups that are repeated say nothing.
    let mut given_up = 0;
    for turn in 1..4 {
        let outputs = node.tick(NOW_NS + turn * 2 * WAITS_NS);
        given_up += events(&outputs).iter().filter(|&&code| code == 5).count();
        assert!(events(&outputs).iter().all(|&code| code == 5), "{outputs:?}");
    }
    // The write failed with the message that fell silent, so its other one waits for none.
    assert_eq!(given_up, 0);
    for slot in [0, 1] {
        node.release(1 << 12 | slot);
    }
    assert!(node.is_clean());
}
