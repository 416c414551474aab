//! Handlers that do not end as they should, and packets that no handler gets.

use fieldstone_nic::firmware::engine::{Area, Call, Engine, EngineError, Handler, Run};
use fieldstone_nic::firmware::hpu::Hpu;
use fieldstone_nic::firmware::nic::{Nic, Output};
use fieldstone_nic::firmware::packet::{MAX_PACKET_BYTES, Scheme};
use fieldstone_nic::firmware::state::Multiply;

use crate::coding::{intermediate, status};
use crate::node::{Node, is_clean, source};
use crate::writes::{NOW_NS, hpu, program, settings, write};

/// More than any handler takes, but for one that waits for the pool's lock in vain.
const MAX_CYCLES: u64 = 100_000;

/// A core whose next runs of some handlers are stopped before they begin. Header handlers are
/// stopped after `header_cycles`, if that is set.
struct Faulty {
    hpu: Hpu,
    faults: Vec<Handler>,
    header_cycles: Option<u64>,
}

impl Engine for Faulty {
    fn run(&mut self, handler: Handler, call: &Call<'_>) -> Result<Run, EngineError> {
        if let Some(at) = self.faults.iter().position(|&fault| fault == handler) {
            self.faults.remove(at);
            return Err(EngineError::OutOfCycles { handler, cycles: 0 });
        }
        let limit = self.header_cycles.filter(|_| handler == Handler::Header);
        self.hpu.set_max_cycles(limit.unwrap_or(MAX_CYCLES));
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
    Some(Nic::new(Faulty { hpu, faults: Vec::new(), header_cycles: None }))
}

fn send(nic: &mut Nic<Faulty>, packet: &[u8]) -> Vec<Output> {
    nic.packet(source(packet), packet, NOW_NS)
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
            assert_eq!(faults(&send(&mut nic, &messages[0][0])), 0);
            assert_eq!(faults(&send(&mut nic, &messages[1][0])), 0);
            nic.engine_mut().faults = vec![fault];
            assert_eq!(faults(&send(&mut nic, &messages[1][1])), 1);
            assert_eq!(send(&mut nic, &messages[1][1]), [Output::Stray]);
            let rest = send(&mut nic, &messages[0][1]);
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
    assert_eq!(faults(&send(&mut nic, &single.packets()[0])), 2);
    assert!(is_clean(&nic));
    nic.engine_mut().faults = vec![Handler::Header];
    assert_eq!(faults(&send(&mut nic, &single.packets()[0])), 1);
    assert!(is_clean(&nic));
}

/// Gives all messages up, as the control side and the CPU do that got these outputs.
fn give_up(nic: &mut Nic<Faulty>, mut outputs: Vec<Output>) {
    for name in nic.open_messages() {
        outputs.extend(nic.cleanup(name, NOW_NS));
    }
    for output in outputs {
        if let Output::Event { code: 4 | 5, arguments: [request_id, _] } = output {
            nic.release(request_id);
        }
    }
}

/// A header handler of a parity write stops at each of its cycles, with and without another message
/// in the write, in accumulators and staged: the write fails, and nothing is lost. But a core that
/// stops while it has the pool's lock keeps it.
#[test]
fn a_header_handler_that_stops_anywhere_loses_no_accumulator() {
    let (mut clean, mut locked) = (0, 0);
    for (len, others) in [(1000, 0), (1000, 1), (17 * 2048, 0), (17 * 2048, 1)] {
        let [first, second] = [0, 1].map(|column| intermediate(column, 1, len).swap_remove(0));
        let Some(mut nic) = faulty() else { return };
        for cycles in 1.. {
            let mut outputs = Vec::new();
            if others == 1 {
                outputs.extend(send(&mut nic, &second));
            }
            // From the first turn on, the core remembers the capability.
            nic.engine_mut().header_cycles = (cycles > 1).then_some(cycles);
            outputs.extend(send(&mut nic, &first));
            nic.engine_mut().header_cycles = None;
            let has_ended = faults(&outputs) == 0;
            if nic.engine().area(Area::Pool)[0] != 0 {
                locked += 1;
                nic = faulty().unwrap();
                let opened = send(&mut nic, &first);
                give_up(&mut nic, opened);
                continue;
            }
            give_up(&mut nic, outputs);
            assert!(is_clean(&nic), "{len} bytes, {others} other, stopped after {cycles}");
            clean += 1;
            if has_ended && cycles > 1 {
                break;
            }
        }
    }
    assert!(clean > 1000 && locked > 0 && locked < clean, "{clean} {locked}");
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
