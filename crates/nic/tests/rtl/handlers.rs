//! The firmware's handlers on the model and on the RTL: writes of every kind through nodes that run
//! each handler twice. The firmware is built without atomic operations, which CV32E40P has not.

use std::collections::VecDeque;
use std::sync::OnceLock;

use fieldstone_nic::firmware::build::{Target, program_for};
use fieldstone_nic::firmware::engine::{Area, Call, Engine, EngineError, Handler, Run};
use fieldstone_nic::firmware::hpu::{Hpu, Surroundings};
use fieldstone_nic::firmware::nic::{Nic, Output};
use fieldstone_nic::firmware::packet::{
    Coordinates, DATA_BYTES, PacketHeader, Reply, Scheme, Write,
};
use fieldstone_nic::firmware::state::{ElementColumn, Multiply, Settings};
use fieldstone_nic::riscv::core::Costs;
use fieldstone_nic::riscv::elf::Program;

use crate::core::RtlCore;
use crate::writes::{CLIENT, NOW_NS, PLACE, hpu, or_missing, or_skip, settings, write};

/// A core of the NIC whose handlers run on the RTL.
struct RtlHpu {
    hpu: Hpu,
    rtl: RtlCore,
}

impl Engine for RtlHpu {
    fn run(&mut self, handler: Handler, call: &Call<'_>) -> Result<Run, EngineError> {
        self.hpu.run_on(&mut self.rtl, handler, call)
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

/// A node that runs each handler twice.
struct Node {
    model: Nic<Hpu>,
    rtl: Nic<RtlHpu>,
    /// Each handler takes the same cycles on both. If not, none takes more on the RTL.
    is_exact: bool,
    /// Cycles of the handlers so far, on the model and on the RTL.
    cycles: [u64; 2],
    handlers: usize,
}

impl Node {
    fn new(program: &Program, settings: &Settings, surroundings: Surroundings) -> Self {
        let mut hpu = hpu(program, settings);
        hpu.set_costs(Costs::RI5CY, surroundings);
        let mut rtl = RtlCore::new();
        rtl.set_text(program.base, &program.bytes);
        let model = Nic::new(hpu.clone());
        let rtl = Nic::new(RtlHpu { hpu, rtl });
        let is_exact = surroundings == AS_MEMORY;
        Self { model, rtl, is_exact, cycles: [0; 2], handlers: 0 }
    }

    fn packet(&mut self, from: u32, packet: &[u8]) -> Vec<Output> {
        let outputs = self.model.packet(from, packet, NOW_NS);
        let rtl = self.rtl.packet(from, packet, NOW_NS);
        self.compare(outputs, &rtl)
    }

    /// Runs the cleanup handlers of the messages that are open.
    fn clean_up(&mut self) {
        for name in self.model.open_messages() {
            let outputs = self.model.cleanup(name, NOW_NS);
            let rtl = self.rtl.cleanup(name, NOW_NS);
            self.compare(outputs, &rtl);
        }
        assert!(self.model.open_messages().is_empty());
    }

    fn compare(&mut self, outputs: Vec<Output>, rtl: &[Output]) -> Vec<Output> {
        assert!(outputs == rtl, "model:\n{outputs:?}\nRTL:\n{rtl:?}");
        for area in [Area::Requests, Area::Cache, Area::Pool] {
            let same = self.model.engine().area(area) == self.rtl.engine().area(area);
            assert!(same, "{area:?} differs");
        }
        let (ours, theirs) = (self.model.take_runs(), self.rtl.take_runs());
        assert_eq!(ours.len(), theirs.len());
        for (ran, theirs) in ours.into_iter().zip(theirs) {
            assert_eq!(ran.handler, theirs.handler);
            let (ours, theirs) = (ran.counters.unwrap(), theirs.counters.unwrap());
            assert_eq!(ours.instructions, theirs.instructions);
            assert!(theirs.cycles <= ours.cycles, "{:?}: {theirs:?} {ours:?}", ran.handler);
            assert!(!self.is_exact || theirs.cycles == ours.cycles, "{theirs:?} {ours:?}");
            self.cycles = [self.cycles[0] + ours.cycles, self.cycles[1] + theirs.cycles];
            self.handlers += 1;
        }
        outputs
    }
}

/// Delivers the packets, and the packets that handlers send. Exactly `replies` replies say that a
/// write is done. Then the cleanup handlers run for the messages that are still open. The answer is
/// the cycles of all handlers.
fn deliver(nodes: &mut [Node], packets: Vec<Vec<u8>>, replies: usize) -> [u64; 2] {
    let mut queue = VecDeque::from(packets);
    let mut came = 0;
    while let Some(packet) = queue.pop_front() {
        let header = PacketHeader::parse(&packet).unwrap();
        if header.destination == CLIENT {
            came += usize::from(Reply::parse(&packet).unwrap().status == 0);
            continue;
        }
        for output in nodes[header.destination as usize].packet(header.source, &packet) {
            match output {
                Output::Send(packet) => queue.push_back(packet),
                Output::Fault(error) => panic!("{error}"),
                _ => {}
            }
        }
    }
    assert_eq!(came, replies);
    for node in nodes.iter_mut() {
        node.clean_up();
    }
    let sum = |which: usize| nodes.iter().map(|node| node.cycles[which]).sum();
    let handlers: usize = nodes.iter().map(|node| node.handlers).sum();
    let cycles = [sum(0), sum(1)];
    eprintln!("{handlers} handlers, {} cycles of RTL, {} of the model", cycles[1], cycles[0]);
    for node in nodes {
        (node.cycles, node.handlers) = ([0; 2], 0);
    }
    cycles
}

/// The firmware, built once for each way to multiply.
fn program(multiply: Multiply) -> Option<Program> {
    static BUILT: [OnceLock<Result<Program, String>>; 4] = [const { OnceLock::new() }; 4];
    let build = || or_missing(program_for(Target::Rv32Alone, multiply));
    or_skip(BUILT[multiply as usize].get_or_init(build))
}

/// Data nodes 0 to k - 1 and parity nodes behind them.
fn code_writes(k: u8, m: u8, len: usize, scheme: &dyn Fn(u8) -> Scheme) -> Vec<Write> {
    let of = |column: u8| {
        let mut write = write(scheme(column), 1 + u32::from(m), len);
        write.message = 1000 + u32::from(column);
        write.nodes[0].node = u32::from(column);
        for (node, number) in write.nodes[1..].iter_mut().zip(u32::from(k)..) {
            *node = Coordinates { node: number, address: PLACE + 0x9000 };
        }
        write
    };
    (0..k).map(of).collect()
}

/// Every kind of write; the answer is the cycles of all handlers.
fn writes_of_all_kinds(surroundings: Surroundings) -> Option<[u64; 2]> {
    let mut sums = [0; 2];
    let mut add = |cycles: [u64; 2]| sums = [sums[0] + cycles[0], sums[1] + cycles[1]];
    for (scheme, k) in [(Scheme::Single, 1), (Scheme::Ring { k: 3 }, 3), (Scheme::Tree { k: 4 }, 4)]
    {
        let program = program(Multiply::Table)?;
        let mut nodes: Vec<Node> = (0..k)
            .map(|node| Node::new(&program, &settings(node, Multiply::Table, 0, 0), surroundings))
            .collect();
        // The second write has a capability that the nodes know.
        for _ in 0..2 {
            let packets = write(scheme, k, 5001).packets();
            add(deliver(&mut nodes, packets, k as usize));
        }
        // The client goes silent, or its capability is not for this segment.
        let mut packets = write(scheme, k, 5001).packets();
        packets.pop();
        add(deliver(&mut nodes, packets, 0));
        let mut refused = write(scheme, k, 5001);
        refused.segment = 99;
        add(deliver(&mut nodes, refused.packets(), 0));
    }
    let ways = [Multiply::Table, Multiply::Scheduled, Multiply::Pairs, Multiply::Planes];
    for (multiply, (k, m)) in ways.into_iter().flat_map(|way| [(way, (3, 2)), (way, (6, 3))]) {
        let program = program(multiply)?;
        let of = |node: u32| {
            let mut settings = settings(node, multiply, usize::from(k), usize::from(m));
            settings.column = node as usize;
            Node::new(&program, &settings, surroundings)
        };
        let mut nodes: Vec<Node> = (0..u32::from(k + m)).map(of).collect();
        let code = |column| Scheme::Code { k, m, column };
        let writes = code_writes(k, m, 3001, &code);
        let packets: Vec<_> = writes.iter().flat_map(Write::packets).collect();
        add(deliver(&mut nodes, packets.clone(), usize::from(k + m)));
        // One data node's write is missing: the others are done, and the parities never.
        let first = packets.len() / usize::from(k);
        add(deliver(&mut nodes, packets[first..].to_vec(), usize::from(k) - 1));
    }
    for multiply in [Multiply::Table, Multiply::Scheduled, Multiply::Planes] {
        let program = program(multiply)?;
        let of = |node: u32| {
            let mut settings = settings(node, multiply, 0, 0);
            settings.elements = ElementColumn::of("zigzag:4+2", node as u8).ok();
            Node::new(&program, &settings, surroundings)
        };
        let mut nodes: Vec<Node> = (0..6).map(of).collect();
        let elements = |column| Scheme::Elements { k: 4, m: 2, column };
        let writes = code_writes(4, 2, 8 * DATA_BYTES, &elements);
        let packets: Vec<_> = writes.iter().flat_map(Write::packets).collect();
        add(deliver(&mut nodes, packets, 6));
    }
    Some(sums)
}

/// A command unit as fast as memory, whose answers are never late.
const AS_MEMORY: Surroundings = Surroundings {
    unit_store_extra_cycles: 0,
    unit_issue_extra_cycles: 0,
    atomic_extra_cycles: 0,
    command_cycles: 0,
};

#[test]
fn handlers_take_the_cycles_of_the_rtl() {
    let Some([ours, theirs]) = writes_of_all_kinds(AS_MEMORY) else { return };
    assert_eq!(ours, theirs);
}

/// The model waits for each answer of the command unit; the RTL goes on meanwhile.
#[test]
fn handlers_with_a_slower_command_unit_take_no_less_than_on_the_rtl() {
    let Some([ours, theirs]) = writes_of_all_kinds(Surroundings::UNLIMITED) else { return };
    assert!(ours * 100 < theirs * 101, "{ours} {theirs}");
}
