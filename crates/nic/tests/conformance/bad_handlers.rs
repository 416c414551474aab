//! Handlers that do what none may: each stops there, changes nothing, and its message ends. Other
//! messages go on, and the next one works.
//!
//! The handlers are those of `bad_handlers.c`, around the firmware's own. A node has a write and
//! two messages of a parity write open while a handler of another message does its act. Afterwards
//! all memories of the NIC are as before that message, but for the stack and the scratch memory.

use std::ops::Range;
use std::sync::OnceLock;

use fieldstone_nic::firmware::build;
use fieldstone_nic::firmware::command::ISSUE;
use fieldstone_nic::firmware::engine::{EngineError, Handler};
use fieldstone_nic::firmware::hpu::Hpu;
use fieldstone_nic::firmware::nic::{Nic, Output};
use fieldstone_nic::firmware::packet::{Scheme, Write};
use fieldstone_nic::firmware::state::Multiply;
use fieldstone_nic::riscv::core::Trap;
use fieldstone_nic::riscv::elf::Program;

use crate::coding::{PARITY_PLACE, intermediate, status, sum_of_columns};
use crate::node::{is_clean, source};
use crate::writes::{
    CLIENT, HOST_LEN, NOW_NS, PLACE, STAGING_LEN, extent, hpu, or_missing, or_skip, settings, write,
};

/// The memories of a core (`hpu.rs`).
const PROGRAM: u32 = 0x1d00_0000;
const TASK: u32 = 0x1000_3fc0;
const PACKET: u32 = 0x1000_4000;
const SCRATCH: u32 = 0x1000_8000;
const CACHE: u32 = 0x1000_c000;
const REQUESTS: u32 = 0x1001_0000;
const POOL: u32 = 0x1008_0000;
const CONTEXT: u32 = 0x100b_0000;

/// Parts of the pool and of the context (`layout.h`).
const GROUPS: u32 = POOL + 8 + 64 * 4;
const GROUP_BYTES: u32 = 348;
const ACCUMULATORS: u32 = GROUPS + 16 * GROUP_BYTES;
/// The parity write that is open, and the one that the bad message opens: the NIC takes the last
/// free one. Their first accumulators.
const OTHER_GROUP: u32 = GROUPS + 15 * GROUP_BYTES;
const OWN_GROUP: u32 = GROUPS + 14 * GROUP_BYTES;
const OTHER_ACCUMULATOR: u32 = ACCUMULATORS + 63 * 2048;
const OWN_SECOND_ACCUMULATOR: u32 = ACCUMULATORS + 59 * 2048;
const FREE_ACCUMULATOR: u32 = ACCUMULATORS;
/// Which accumulators are a group's.
const GROUP_ACCUMULATORS: u32 = (23 + 16 + 32) * 4;
/// The first key's secret, and the extents.
const KEY: u32 = CONTEXT + 16 + 24;
const EXTENTS: u32 = CONTEXT + 540;
const COEFFICIENTS: u32 = CONTEXT + 464;

/// Entries: that of the open write, those of the open parity write, that of the bad message.
const OTHER_ENTRY: u32 = REQUESTS;
const OWN_SLOT: u32 = 3;
const OWN_ENTRY: u32 = REQUESTS + OWN_SLOT * ENTRY_BYTES;
const ENTRY_BYTES: u32 = 68;

const SCRIPT: u32 = 0x0bad_c0de;
/// Bytes of the bad message, in two packets, and of the others.
const LEN: usize = 3000;
const OTHER_LEN: usize = 5000;

/// What a handler does (`enum act`).
#[derive(Clone, Copy, Debug)]
enum Act {
    Store(u32),
    Load(u32),
    Swap(u32),
    Execute(u32),
    /// Address and bytes.
    ToHost(u64, u32),
    /// Address and bytes of the data.
    Send(u32, u32),
    Free(u32),
    /// The message's entry says another address.
    Move(u64),
    Unknown(u32),
}

impl Act {
    fn words(self) -> [u32; 4] {
        match self {
            Act::Store(at) => [0, at, 0xffff_ffff, 0],
            Act::Load(at) => [1, at, 0, 0],
            Act::Swap(at) => [2, at, 1, 0],
            Act::Execute(at) => [3, at, 0, 0],
            Act::ToHost(at, len) => [4, at as u32, (at >> 32) as u32, len],
            Act::Send(at, len) => [5, at, len, 0],
            Act::Free(request_id) => [6, request_id, 0, 0],
            Act::Move(at) => [7, at as u32, (at >> 32) as u32, 0],
            Act::Unknown(kind) => [8, kind, 0, 0],
        }
    }

    fn is_trap(self, trap: Trap) -> bool {
        match (self, trap) {
            (Act::Store(at) | Act::Swap(at), Trap::Store { address, .. })
            | (Act::Load(at), Trap::Load { address, .. })
            | (Act::Execute(at), Trap::Fetch { pc: address }) => at == address,
            (
                Act::ToHost(..) | Act::Send(..) | Act::Free(_) | Act::Move(_) | Act::Unknown(_),
                Trap::Load { address, .. },
            ) => address == ISSUE,
            _ => false,
        }
    }
}

/// What the node does in the bad message's write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Store,
    Data,
    Parity,
}

fn bad_write(part: Part) -> (Write, u8) {
    let code = Scheme::Code { k: 3, m: 2, column: 0 };
    let (scheme, nodes, rank) = match part {
        Part::Store => (Scheme::Single, 1, 0),
        Part::Data => (code, 3, 0),
        Part::Parity => (code, 3, 1),
    };
    let mut write = write(scheme, nodes, LEN);
    for (other, node) in (10..).zip(&mut write.nodes) {
        node.node = other;
    }
    write.nodes[usize::from(rank)].node = 3;
    write.nodes[usize::from(rank)].address = PLACE + 0x1000;
    (write, rank)
}

/// The packets of a message whose handler does the act.
fn bad_packets(part: Part, handler: Handler, act: Act) -> Vec<Vec<u8>> {
    let (mut write, rank) = bad_write(part);
    let script = [&[SCRIPT, handler as u32][..], &act.words()].concat();
    for (to, word) in write.data.chunks_exact_mut(4).zip(script) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    packets_of(&write, rank)
}

fn packets_of(write: &Write, rank: u8) -> Vec<Vec<u8>> {
    let mut packets = write.packets();
    for packet in &mut packets {
        packet[14] = rank;
    }
    packets
}

fn program() -> Option<Program> {
    static BUILT: OnceLock<Result<Program, String>> = OnceLock::new();
    let files = [
        ("good_policies.c", include_str!("../../../../firmware/policies.c")),
        ("policies.c", include_str!("bad_handlers.c")),
    ];
    or_skip(BUILT.get_or_init(|| or_missing(build::program_with(Multiply::Table, &files))))
}

fn send(nic: &mut Nic<Hpu>, packets: &[Vec<u8>]) -> Vec<Output> {
    packets.iter().flat_map(|packet| nic.packet(source(packet), packet, NOW_NS)).collect()
}

/// The open write: to segment 12, by another client.
fn other_write() -> Vec<Vec<u8>> {
    let mut write = write(Scheme::Single, 1, OTHER_LEN);
    (write.client, write.message, write.segment) = (101, 1, 12);
    (write.nodes[0].node, write.nodes[0].address) = (3, extent(12).base);
    write.packets()
}

/// A node with a write and two messages of a parity write open.
fn busy_nic(program: &Program) -> Nic<Hpu> {
    let mut nic = Nic::new(hpu(program, &settings(3, Multiply::Table, 3, 2)));
    let [first, second] = [0, 1].map(|column| intermediate(column, 1, OTHER_LEN));
    for packets in [&other_write()[..1], &first[..2], &second[..1]] {
        let outputs = send(&mut nic, packets);
        assert!(!outputs.iter().any(|output| matches!(output, Output::Fault(_))), "{outputs:?}");
    }
    nic
}

/// The open messages end as if nothing had been, and so does the same message without the act.
fn check_others(nic: &mut Nic<Hpu>, part: Part, gives_back: bool) {
    let mut outputs = send(nic, &other_write()[1..]);
    assert_eq!(status(&outputs), Some(0));
    let [first, second, third] = [0, 1, 2].map(|column| intermediate(column, 1, OTHER_LEN));
    for packets in [&first[2..], &second[1..], &third[..]] {
        outputs = send(nic, packets);
    }
    assert_eq!(status(&outputs), Some(0));
    let mut stored = vec![0; OTHER_LEN];
    for output in outputs {
        if let Output::Store { address, bytes } = output {
            let at = (address - PARITY_PLACE) as usize;
            stored[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }
    assert!(stored == sum_of_columns(OTHER_LEN));
    // Another request: the parity write of a message whose cleanup has stopped is still there.
    let (mut good, rank) = bad_write(part);
    good.request += 1;
    let outputs = send(nic, &packets_of(&good, rank));
    // A parity write waits for the other data nodes.
    let expected = (part != Part::Parity).then_some(0);
    assert_eq!(status(&outputs), expected, "{outputs:?}");
    for name in nic.open_messages() {
        nic.cleanup(name, NOW_NS);
    }
    assert_eq!(is_clean(nic), gives_back);
}

/// The memories of a NIC that no bad handler changes. The list of free accumulators may be in
/// another order, so it is left out. If the message's own parity write is not given back, this is
/// left out as well.
fn memories(nic: &Nic<Hpu>, gives_back: bool) -> Vec<Vec<u8>> {
    let [head, groups, accumulators]: [Range<u32>; 3] = if gives_back {
        [POOL..POOL + 8, GROUPS..ACCUMULATORS, ACCUMULATORS..CONTEXT]
    } else {
        [POOL..POOL + 4, OTHER_GROUP..ACCUMULATORS, ACCUMULATORS + 61 * 2048..CONTEXT]
    };
    let ranges = [
        PROGRAM..PROGRAM + (32 << 10),
        CACHE..REQUESTS,
        REQUESTS..POOL,
        head,
        groups,
        accumulators,
        CONTEXT..CONTEXT + 9824 + (64 << 10),
    ];
    let bytes = |range: Range<u32>| nic.engine().bytes(range.start, range.len()).unwrap().to_vec();
    ranges.map(bytes).to_vec()
}

/// `trapped` is the handler that stops: the one with the act, or a later one.
fn check(part: Part, handler: Handler, act: Act, trapped: Handler) -> bool {
    let Some(program) = program() else { return false };
    let case = format!("{part:?} {handler:?} {act:x?}");
    let mut nic = busy_nic(&program);
    // Of a message whose cleanup stops, nothing is left that could end its part of a parity write.
    let gives_back = (part, handler) != (Part::Parity, Handler::Cleanup);
    let (before, open) = (memories(&nic, gives_back), nic.open_messages());
    let packets = bad_packets(part, handler, act);
    let mut outputs = match handler {
        Handler::Cleanup => send(&mut nic, &packets[..1]),
        _ => send(&mut nic, &packets),
    };
    if handler == Handler::Cleanup {
        outputs.extend(nic.cleanup((CLIENT, 7), NOW_NS));
    }
    let faults: Vec<&EngineError> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Fault(error) => Some(error),
            _ => None,
        })
        .collect();
    let [EngineError::Trap { handler: at, trap }] = faults[..] else {
        panic!("{case}: {faults:?}")
    };
    assert!(*at == trapped && act.is_trap(*trap), "{case}: {at:?} {trap:x?}");
    let own = PLACE + 0x1000..PLACE + 0x1000 + LEN as u64;
    for output in &outputs {
        if let Output::Store { address, bytes } = output {
            let is_late = matches!(handler, Handler::Completion | Handler::Cleanup);
            let end = address + bytes.len() as u64;
            assert!(is_late && own.contains(address) && end <= own.end, "{case}: {address:#x}");
        }
    }
    assert_ne!(status(&outputs), Some(0), "{case}");
    // What comes of the message after that is no more of it.
    if handler != Handler::Cleanup {
        assert_eq!(send(&mut nic, &packets[1..]), [Output::Stray], "{case}");
    }
    assert_eq!(nic.open_messages(), open, "{case}");
    for (place, (now, before)) in memories(&nic, gives_back).iter().zip(&before).enumerate() {
        assert!(now == before, "{case}: memory {place} has changed");
    }
    check_others(&mut nic, part, gives_back);
    true
}

/// What no handler of any message may do: memory of others, of the control side, of the NIC.
#[test]
fn no_handler_reaches_the_memory_of_others() {
    let acts = [
        Act::Store(OTHER_ENTRY),
        Act::Store(OTHER_ENTRY + 48),
        Act::Load(OTHER_ENTRY),
        Act::Swap(OTHER_ENTRY + 60),
        Act::Store(OWN_ENTRY + ENTRY_BYTES),
        Act::Store(OWN_ENTRY + ENTRY_BYTES - 2),
        Act::Store(OWN_ENTRY - 4),
        Act::Store(CONTEXT),
        Act::Store(KEY),
        Act::Store(EXTENTS),
        Act::Store(COEFFICIENTS),
        Act::Store(PROGRAM),
        Act::Store(PROGRAM + 0x400),
        Act::Store(PACKET),
        Act::Store(TASK),
        Act::Store(0x0fff_fffc),
        Act::Store(0x1000_1000),
        Act::Store(SCRATCH + 8192),
        Act::Store(0),
        Act::Load(0x2000_0000),
        Act::Execute(PACKET + 24),
        Act::Execute(SCRATCH),
        Act::Execute(OWN_ENTRY),
        Act::Send(OTHER_ENTRY, 68),
        Act::Send(SCRATCH + 8188, 8),
        Act::Send(0, 4),
        Act::Free(1 << 12),
        Act::Unknown(0),
        Act::Unknown(9),
    ];
    for part in [Part::Store, Part::Data, Part::Parity] {
        for handler in Handler::ALL {
            for act in acts {
                if !check(part, handler, act, handler) {
                    return;
                }
            }
        }
    }
}

/// Capabilities that the core has checked, and keys, are for header handlers.
#[test]
fn no_other_handler_reaches_what_header_handlers_check() {
    let acts = [
        Act::Store(CACHE),
        Act::Load(CACHE + 52),
        Act::Load(KEY),
        Act::Load(EXTENTS),
        Act::Send(CACHE, 68),
        Act::Send(KEY, 32),
    ];
    for part in [Part::Store, Part::Data, Part::Parity] {
        for handler in [Handler::Payload, Handler::Completion, Handler::Cleanup] {
            for act in acts {
                if !check(part, handler, act, handler) {
                    return;
                }
            }
        }
    }
}

/// Accumulators are for parity nodes; a packet's handler gets its own, and reads which it is.
#[test]
fn no_handler_reaches_the_sums_of_others() {
    let of_all = [
        Act::Store(OTHER_ACCUMULATOR),
        Act::Swap(POOL),
        Act::Load(POOL + 4),
        Act::Store(POOL + 8),
        Act::Store(OTHER_GROUP),
        Act::Load(OTHER_GROUP + 12),
        Act::Store(OTHER_GROUP + GROUP_ACCUMULATORS),
        Act::Store(FREE_ACCUMULATOR),
    ];
    for part in [Part::Store, Part::Data] {
        for handler in Handler::ALL {
            for act in of_all {
                if !check(part, handler, act, handler) {
                    return;
                }
            }
        }
    }
    let of_packets = [
        Act::Store(OWN_GROUP),
        Act::Store(OWN_GROUP + GROUP_ACCUMULATORS),
        Act::Store(OWN_GROUP + 15 * 4),
        Act::Store(OWN_SECOND_ACCUMULATOR),
        Act::Send(OTHER_ACCUMULATOR, 4),
    ];
    for act in of_all.into_iter().chain(of_packets) {
        check(Part::Parity, Handler::Payload, act, Handler::Payload);
    }
    // Messages of another parity write: slot 1, and slot 2.
    let frees = [Act::Free(1 << 12 | 1), Act::Free(1 << 12 | 2)];
    for handler in [Handler::Completion, Handler::Cleanup] {
        let groups = [Act::Store(OTHER_GROUP), Act::Load(OTHER_GROUP + GROUP_BYTES - 4)];
        for act in frees.into_iter().chain(groups) {
            check(Part::Parity, handler, act, handler);
        }
    }
    for act in [Act::Store(OTHER_ACCUMULATOR), Act::Load(FREE_ACCUMULATOR)] {
        check(Part::Parity, Handler::Header, act, Handler::Header);
    }
}

/// The host's memory: a payload handler writes inside of its message's write, and no other handler
/// writes storage.
#[test]
fn no_handler_writes_another_place_of_the_host() {
    let (start, end) = (PLACE + 0x1000, PLACE + 0x1000 + LEN as u64);
    let staging = |slot: u32| HOST_LEN + u64::from(slot) * u64::from(STAGING_LEN);
    let acts = [
        Act::ToHost(extent(12).base, 4),
        Act::ToHost(extent(12).base, 1),
        Act::ToHost(extent(10).base, 64),
        Act::ToHost(PLACE, 4),
        Act::ToHost(start - 1, 4),
        Act::ToHost(end - 3, 4),
        Act::ToHost(end, 1),
        Act::ToHost(0, 4),
        Act::ToHost(HOST_LEN - 4, 4),
        Act::ToHost(staging(0), 4),
        Act::ToHost(staging(OWN_SLOT) - 1, 4),
        Act::ToHost(staging(OWN_SLOT + 1), 4),
        Act::ToHost(staging(960), 4),
        Act::ToHost(u64::MAX - 3, 4),
        Act::ToHost(u64::MAX, 4),
        Act::ToHost(start + (1 << 32), 4),
    ];
    for part in [Part::Store, Part::Data, Part::Parity] {
        for handler in Handler::ALL {
            for act in acts {
                if !check(part, handler, act, handler) {
                    return;
                }
            }
            if handler != Handler::Payload {
                check(part, handler, Act::ToHost(start, 4), handler);
            }
        }
    }
    // The staging area is for messages that are staged.
    let own_staging = Act::ToHost(staging(OWN_SLOT), 4);
    for part in [Part::Store, Part::Data] {
        check(part, Handler::Header, own_staging, Handler::Header);
        check(part, Handler::Payload, own_staging, Handler::Payload);
    }
}

/// The place counts that the header handler accepted: a changed entry gives no other one, whether a
/// later handler changes it or the header handler lies.
#[test]
fn no_changed_entry_gives_another_place() {
    for part in [Part::Store, Part::Data] {
        for at in [extent(12).base, PLACE + 0x1000 + LEN as u64, extent(10).base, HOST_LEN] {
            if !check(part, Handler::Payload, Act::Move(at), Handler::Payload) {
                return;
            }
        }
        for at in [extent(12).base, extent(10).base, HOST_LEN, u64::MAX] {
            check(part, Handler::Header, Act::Move(at), Handler::Payload);
        }
    }
}
