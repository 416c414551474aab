//! What the CPU is told of messages that are staged for it.

use fieldstone_nic::firmware::nic::Output;
use fieldstone_nic::firmware::state::Multiply;

use crate::coding::intermediate;
use crate::node::Node;
use crate::writes::settings;

/// Bytes of a parity write that the CPU adds up: 17 packets.
const LONG: usize = 17 * 2048 - 200;

/// Codes and first arguments of the events.
fn events(outputs: &[Output]) -> Vec<(u32, u32)> {
    let event = |output: &Output| match output {
        Output::Event { code, arguments } => Some((*code, arguments[0])),
        _ => None,
    };
    outputs.iter().filter_map(event).collect()
}

/// The outputs of all packets of a column of request 1.
fn stage(node: &mut Node, column: usize) -> Vec<Output> {
    let packets = intermediate(column, 1, LONG);
    packets.iter().flat_map(|packet| node.packet(packet)).collect()
}

/// A message that has ended is the CPU's: however long the CPU takes, it hears of the message once.
#[test]
fn a_complete_message_is_told_once() {
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    let ended: Vec<(u32, u32)> =
        (0..3).flat_map(|column| events(&stage(&mut node, column))).collect();
    assert_eq!(ended.iter().map(|event| event.0).collect::<Vec<_>>(), [4, 4, 4]);
    for name in node.core.open_messages() {
        assert_eq!(node.cleanup(name), []);
    }
    for (_, request_id) in ended {
        node.release(request_id);
    }
    assert!(node.is_clean());
}

/// A message that has ended, of a write whose other data nodes are silent: the CPU hears that the
/// write fails, once, by an event of its own.
#[test]
fn a_write_that_is_given_up_is_told_once() {
    for also_opened in [false, true] {
        let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
        let ended = events(&stage(&mut node, 0));
        let [(4, request_id)] = ended[..] else { panic!("{ended:?}") };
        if also_opened {
            node.packet(&intermediate(1, 1, LONG)[0]);
        }
        let given_up = events(&node.cleanup((0, 1)));
        assert_eq!(given_up, [(5, request_id)], "{also_opened}");
        assert_eq!(node.cleanup((0, 1)), []);
        node.release(request_id);
        if also_opened {
            let failed = node.cleanup((1, 1));
            let [(3, _), (4, other)] = events(&failed)[..] else { panic!("{failed:?}") };
            assert!(matches!(failed[..], [.., Output::Event { arguments: [_, 1], .. }]));
            assert_eq!(node.cleanup((1, 1)), []);
            node.release(other);
        }
        assert!(node.is_clean());
    }
}
