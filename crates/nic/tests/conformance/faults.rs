//! Handlers that do not end as they should, and packets that no handler gets.

use fieldstone_nic::firmware::engine::{Area, Call, Engine, EngineError, Handler, Run};
use fieldstone_nic::firmware::hpu::Hpu;
use fieldstone_nic::firmware::nic::{Nic, Output};
use fieldstone_nic::firmware::packet::{MAX_PACKET_BYTES, Scheme};
use fieldstone_nic::firmware::state::Multiply;

use crate::coding::{intermediate, status};
use crate::node::{Node, is_clean};
use crate::writes::{NOW_NS, hpu, program, settings, write};

/// A core whose next runs of some handlers are stopped before they begin.
struct Faulty {
    hpu: Hpu,
    faults: Vec<Handler>,
}

impl Engine for Faulty {
    fn run(&mut self, handler: Handler, call: &Call<'_>) -> Result<Run, EngineError> {
        if let Some(at) = self.faults.iter().position(|&fault| fault == handler) {
            self.faults.remove(at);
            return Err(EngineError::OutOfCycles { handler, cycles: 0 });
        }
        self.hpu.run(handler, call)
    }

    fn set_context(&mut self, context: &[u8]) -> Result<(), EngineError> {
        self.hpu.set_context(context)
    }

    fn area(&self, area: Area) -> &[u8] {
        self.hpu.area(area)
    }

    fn area_mut(&mut self, area: Area) -> &mut [u8] {
        self.hpu.area_mut(area)
    }
}

fn faulty() -> Option<Nic<Faulty>> {
    let hpu = hpu(&program(Multiply::Table)?, &settings(3, Multiply::Table, 3, 2));
    Some(Nic::new(Faulty { hpu, faults: Vec::new() }))
}

fn faults(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Fault(_))).count()
}

/// A message whose handler faults leaves its parity write, which ends when the others have ended,
/// and takes no more packets. 40 writes in a row are more than the NIC has groups for.
#[test]
fn a_fault_loses_no_parity_write() {
    for fault in [Handler::Payload, Handler::Completion] {
        let Some(mut nic) = faulty() else { return };
        for request in 0..40 {
            let messages = [0, 1, 2].map(|column| intermediate(column, request, 3000));
            assert_eq!(faults(&nic.packet(&messages[0][0], NOW_NS)), 0);
            assert_eq!(faults(&nic.packet(&messages[1][0], NOW_NS)), 0);
            nic.engine_mut().faults = vec![fault];
            assert_eq!(faults(&nic.packet(&messages[1][1], NOW_NS)), 1);
            assert_eq!(nic.packet(&messages[1][1], NOW_NS), [Output::Stray]);
            let rest = nic.packet(&messages[0][1], NOW_NS);
            assert_eq!(status(&rest), Some(6), "{rest:?}");
            assert!(is_clean(&nic), "{fault:?} {request}");
        }
    }
}

/// A cleanup that faults, too, ends the message for the NIC: the same fault never runs it again.
#[test]
fn a_fault_of_the_cleanup_ends_the_message() {
    let Some(mut nic) = faulty() else { return };
    let mut single = write(Scheme::Single, 1, 5000);
    single.nodes[0].node = 3;
    nic.engine_mut().faults = vec![Handler::Payload, Handler::Cleanup];
    assert_eq!(faults(&nic.packet(&single.packets()[0], NOW_NS)), 2);
    assert!(is_clean(&nic));
    nic.engine_mut().faults = vec![Handler::Header];
    assert_eq!(faults(&nic.packet(&single.packets()[0], NOW_NS)), 1);
    assert!(is_clean(&nic));
}

/// A packet that is longer than packets are changes nothing: its message goes on.
#[test]
fn a_packet_that_is_too_long_is_a_stray() {
    let Some(mut node) = Node::new(&settings(3, Multiply::Table, 3, 2)) else { return };
    for request in 0..40 {
        let messages = [0, 1, 2].map(|column| intermediate(column, request, 3000));
        for message in &messages {
            node.packet(&message[0]);
            let mut long = message[1].clone();
            long.resize(MAX_PACKET_BYTES + 1, 0);
            assert_eq!(node.packet(&long), [Output::Stray]);
        }
        let ends = messages.map(|message| status(&node.packet(&message[1])));
        assert_eq!(ends, [None, None, Some(0)], "{request}");
        assert!(node.is_clean());
    }
}
