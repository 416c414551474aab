//! The core: costs, hardware loops, traps, protection, and no panic on any word.
#![allow(clippy::unwrap_used)]

use fieldstone_nic::riscv::core::{Core, Costs, Step, Stop, Trap};
use fieldstone_nic::riscv::isa::{
    Alu, Condition, Instr, LoopCount, Mode, MulDiv, Offset, Reg, Width, encode,
};
use fieldstone_nic::riscv::memory::{Access, Bus, BusError, Grant, Memory, Permission, Region};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

const CODE: u32 = 0x1000;
const DATA: u32 = 0x8000;

fn r(number: u32) -> Reg {
    Reg::new(number)
}

fn region(name: &'static str, base: u32, bytes: Vec<u8>) -> Region {
    let (load_extra_cycles, store_extra_cycles, atomic_extra_cycles) = (0, 0, 1);
    Region { name, base, bytes, load_extra_cycles, store_extra_cycles, atomic_extra_cycles }
}

fn memory(code: &[u8]) -> Memory {
    let len = code.len() as u32;
    let mut memory =
        Memory::new(vec![region("code", CODE, code.to_vec()), region("data", DATA, vec![0; 256])]);
    let grants = [
        Grant { base: CODE, len, permission: Permission::EXECUTE },
        Grant { base: DATA, len: 128, permission: Permission::WRITE },
        Grant { base: DATA + 128, len: 64, permission: Permission::READ },
    ];
    memory.set_grants(&grants).unwrap();
    memory
}

fn code(program: &[Instr]) -> Vec<u8> {
    program.iter().flat_map(|instr| encode(instr).to_le_bytes()).collect()
}

/// Runs a program with `x5` = DATA and the other registers set by `set`.
fn run(program: &[Instr], set: &[(u32, u32)]) -> (Core, Memory) {
    let bytes = code(program);
    let mut memory = memory(&bytes);
    let mut core = Core::new(CODE, Costs::RI5CY);
    core.set_register(r(5), DATA);
    for &(number, value) in set {
        core.set_register(r(number), value);
    }
    let stop = core.run(&mut memory, CODE + bytes.len() as u32, 10_000);
    assert_eq!(stop, Stop::Reached);
    (core, memory)
}

fn cycles(program: &[Instr], set: &[(u32, u32)]) -> u64 {
    run(program, set).0.counters.cycles
}

fn add(rd: u32, rs1: u32, imm: i32) -> Instr {
    Instr::OpImm { op: Alu::Add, rd: r(rd), rs1: r(rs1), imm }
}

fn load(width: Width, rd: u32, rs1: u32, imm: i32) -> Instr {
    let (offset, mode) = (Offset::Imm(imm), Mode::Plain);
    let signed = width == Width::Word;
    Instr::Load { width, signed, rd: r(rd), rs1: r(rs1), offset, mode }
}

fn muldiv(op: MulDiv) -> Instr {
    Instr::MulDiv { op, rd: r(7), rs1: r(8), rs2: r(9) }
}

/// Single instructions; `tests/rtl` has whole programs beside the RTL of CV32E40P.
#[test]
fn instructions_cost_what_the_rtl_showed() {
    assert_eq!(cycles(&[add(6, 6, 1); 64], &[]), 64);
    assert_eq!(cycles(&[load(Width::Word, 6, 5, 0), add(7, 0, 1)], &[]), 2);
    assert_eq!(cycles(&[load(Width::Word, 6, 5, 0), add(7, 6, 1)], &[]), 3);
    assert_eq!(cycles(&[load(Width::Word, 6, 5, 0), add(6, 7, 1)], &[]), 3, "the same target");
    assert_eq!(cycles(&[load(Width::Word, 6, 5, 2)], &[]), 2, "across words");
    assert_eq!(cycles(&[load(Width::Half, 6, 5, 1)], &[]), 1, "inside a word");
    assert_eq!(cycles(&[muldiv(MulDiv::Mul)], &[]), 1);
    assert_eq!(cycles(&[muldiv(MulDiv::Mulhu)], &[]), 5);
    assert_eq!(cycles(&[muldiv(MulDiv::Divu)], &[(8, u32::MAX), (9, 1)]), 34);
    assert_eq!(cycles(&[muldiv(MulDiv::Divu)], &[(8, 5), (9, 0x7fff_ffff)]), 4);
    assert_eq!(cycles(&[muldiv(MulDiv::Divu)], &[(8, 5), (9, 0)]), 35, "the longest");
    assert_eq!(cycles(&[muldiv(MulDiv::Div)], &[(8, 5), (9, u32::MAX)]), 34);
    assert_eq!(cycles(&[muldiv(MulDiv::Div)], &[(8, 5), (9, 1 << 31)]), 3, "the shortest");
    let branch =
        |offset| Instr::Branch { condition: Condition::Ne, rs1: r(6), rs2: Reg::ZERO, offset };
    assert_eq!(cycles(&[branch(4)], &[]), 1);
    assert_eq!(cycles(&[branch(4)], &[(6, 1)]), 3);
    let jal = Instr::Jal { rd: Reg::ZERO, offset: 4 };
    assert_eq!(cycles(&[jal], &[]), 2);
    assert_eq!(cycles(&[muldiv(MulDiv::Mulhu), jal], &[]), 6, "the target is fetched meanwhile");
}

/// `jalr` waits for a register in either stage behind the decoder: the result of the instruction
/// before it, and the load before that one unless the load is done by then.
#[test]
fn a_jump_waits_for_its_register() {
    let jump = Instr::Jalr { rd: Reg::ZERO, rs1: r(6), offset: 0 };
    let load_target = load(Width::Word, 6, 5, 0);
    let other = load(Width::Word, 7, 5, 4);
    for (before, stalls) in [
        (vec![], 0),
        (vec![add(6, 6, 0)], 1),
        (vec![add(6, 6, 0), add(7, 7, 1)], 0),
        (vec![load_target], 2),
        (vec![load_target, add(7, 7, 1)], 1),
        (vec![load_target, add(6, 6, 0)], 2), // `add` waits for the load, the jump for `add`
        (vec![load_target, other], 1),
        (vec![load_target, add(7, 7, 1), add(7, 7, 1)], 0),
        // The product's, of which one is the jump's: the target is fetched meanwhile.
        (vec![load_target, muldiv(MulDiv::Mulhu)], 3),
        (vec![load_target, add(7, 6, 1)], 1), // `add` waits: the load is done then
    ] {
        let end = CODE + 4 * (before.len() as u32 + 1);
        let mut memory = memory(&code(&[before.clone(), vec![jump]].concat()));
        memory.bytes_mut(DATA, 4).unwrap().copy_from_slice(&end.to_le_bytes());
        let mut core = Core::new(CODE, Costs::RI5CY);
        core.set_register(r(5), DATA);
        core.set_register(r(6), end);
        assert_eq!(core.run(&mut memory, end, 1000), Stop::Reached);
        let cycles = before.len() as u64 + 2 + stalls;
        assert_eq!(core.counters.cycles, cycles, "{before:?}");
    }
}

/// A memory that is busy for the first tries.
struct Busy {
    memory: Memory,
    tries: u32,
}

impl Bus for Busy {
    fn fetch(&mut self, address: u32) -> Result<u16, BusError> {
        self.memory.fetch(address)
    }

    fn load(&mut self, address: u32, width: Width) -> Result<Access, BusError> {
        self.memory.load(address, width)
    }

    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<u64, BusError> {
        if self.tries > 0 {
            self.tries -= 1;
            return Err(BusError::Busy);
        }
        self.memory.store(address, width, value)
    }

    fn atomic(
        &mut self,
        address: u32,
        change: &mut dyn FnMut(u32) -> u32,
    ) -> Result<Access, BusError> {
        self.memory.atomic(address, change)
    }
}

/// However often a busy bus has an instruction tried, it waits once for its register. And while it
/// is tried, the loads before it end.
#[test]
fn a_busy_bus_is_counted_apart() {
    let (offset, mode) = (Offset::Imm(8), Mode::Plain);
    let store = |rs2| Instr::Store { width: Width::Word, rs2: r(rs2), rs1: r(5), offset, mode };
    let jump = Instr::Jalr { rd: Reg::ZERO, rs1: r(6), offset: 0 };
    // Meanwhile the target of the jump is fetched.
    for (stored, load_use, jump_stalls) in [(6, 1, 0), (7, 0, 0)] {
        let bytes = code(&[load(Width::Word, 6, 5, 0), store(stored), jump]);
        let end = CODE + bytes.len() as u32;
        let mut bus = Busy { memory: memory(&bytes), tries: 5 };
        bus.memory.bytes_mut(DATA, 4).unwrap().copy_from_slice(&end.to_le_bytes());
        let mut core = Core::new(CODE, Costs::RI5CY);
        core.set_register(r(5), DATA);
        assert_eq!(core.run(&mut bus, end, 1000), Stop::Reached);
        let counters = core.counters;
        assert_eq!(counters.busy_stalls, 5);
        assert_eq!((counters.load_use_stalls, counters.jump_stalls), (load_use, jump_stalls));
        assert_eq!(counters.cycles, 3 + 5 + load_use + jump_stalls);
    }
}

/// A jump to a 32-bit instruction across words costs one cycle more, to a short one it does not.
#[test]
fn split_targets_cost_a_cycle() {
    for (at_target, cost) in [(add(6, 6, 1), 4), (Instr::Ebreak, 2)] {
        let mut bytes = code(&[Instr::Jal { rd: Reg::ZERO, offset: 6 }]);
        bytes.extend([0x01, 0x00]); // c.nop, skipped
        if at_target == Instr::Ebreak {
            bytes.extend([0x02, 0x90]); // c.ebreak, short
        } else {
            bytes.extend(code(&[at_target]));
        }
        let mut memory = memory(&bytes);
        let mut core = Core::new(CODE, Costs::RI5CY);
        core.run(&mut memory, CODE + bytes.len() as u32, 100);
        assert_eq!(core.counters.cycles, cost, "{at_target:?}");
    }
}

#[test]
fn hardware_loops_take_no_cycles() {
    let setup = |id, count, offset| Instr::LoopSetup { id, count: LoopCount::Imm(count), offset };
    let (core, _) = run(&[setup(0, 10, 8), add(6, 6, 1), add(7, 7, 2), add(8, 8, 3)], &[]);
    assert_eq!([6, 7, 8].map(|n| core.register(r(n))), [10, 20, 3]);
    assert_eq!((core.counters.instructions, core.counters.cycles), (22, 22));
    // One in the other, with the count of the inner one in a register.
    let inner = Instr::LoopSetup { id: 0, count: LoopCount::Reg(r(9)), offset: 4 };
    let (core, _) = run(&[setup(1, 3, 12), inner, add(6, 6, 1), add(7, 7, 1)], &[(9, 5)]);
    assert_eq!([6, 7].map(|n| core.register(r(n))), [15, 3]);
    assert_eq!(core.counters.cycles, 1 + 3 * (1 + 5 + 1));
    // A count of 0 or 1 runs the body once, as RI5CY does.
    for count in [0, 1] {
        let (core, _) = run(&[setup(0, count, 4), add(6, 6, 1)], &[]);
        assert_eq!(core.register(r(6)), 1);
    }
}

#[test]
fn xpulp_loads_and_stores_move_their_base() {
    let post = |rd, imm| Instr::Load {
        width: Width::Byte,
        signed: true,
        rd: r(rd),
        rs1: r(5),
        offset: Offset::Imm(imm),
        mode: Mode::PostIncrement,
    };
    let store = Instr::Store {
        width: Width::Half,
        rs2: r(6),
        rs1: r(7),
        offset: Offset::Reg(r(8)),
        mode: Mode::PostIncrement,
    };
    let (core, memory) =
        run(&[store, store, post(9, 3), post(10, 0)], &[(6, 0x1234_80fe), (7, DATA), (8, 2)]);
    assert_eq!(memory.bytes(DATA, 4).unwrap(), [0xfe, 0x80, 0xfe, 0x80]);
    assert_eq!(core.register(r(7)), DATA + 4);
    assert_eq!(core.register(r(5)), DATA + 3);
    assert_eq!(core.register(r(9)), 0xffff_fffe);
    assert_eq!(core.register(r(10)), 0xffff_ff80);
}

#[test]
fn xpulp_moves_bits_and_bytes() {
    let (rd, rs1, rs2) = (r(6), r(7), r(8));
    let set = [(6, 0x4433_2211), (7, 0x8877_6655), (8, 0x0105_0206)];
    for (instr, result) in [
        (Instr::PackLow { rd, rs1, rs2 }, 0x6655_0206),
        (Instr::PackHigh { rd, rs1, rs2 }, 0x8877_0105),
        (Instr::MulLow16 { rd, rs1, rs2 }, 0x6655 * 0x0206),
        (Instr::MulHigh16 { rd, rs1, rs2 }, 0x8877 * 0x0105),
        (Instr::Shuffle { rd, rs1, rs2 }, 0x6666_7777),
        (Instr::Shuffle2 { rd, rs1, rs2 }, 0x2266_3377),
        (Instr::Insert { rd, rs1, bits: 8, position: 4 }, 0x4433_2551),
        (Instr::Insert { rd, rs1, bits: 32, position: 16 }, 0x6655_2211),
        (Instr::Extract { signed: false, rd, rs1, bits: 8, position: 28 }, 8),
        (Instr::Extract { signed: true, rd, rs1, bits: 4, position: 28 }, 0xffff_fff8),
        // Past bit 31 the sign goes on.
        (Instr::Extract { signed: true, rd, rs1, bits: 8, position: 28 }, 0xffff_fff8),
        (Instr::Extract { signed: true, rd, rs1, bits: 32, position: 31 }, u32::MAX),
        (Instr::Extract { signed: true, rd, rs1, bits: 8, position: 16 }, 0x77),
    ] {
        let (core, _) = run(&[instr], &set);
        assert_eq!(core.register(rd), result, "{instr:?}: {:#x}", core.register(rd));
    }
}

#[test]
fn division_has_the_results_of_the_specification() {
    for (op, a, b, result) in [
        (MulDiv::Div, 7, 0, u32::MAX),
        (MulDiv::Rem, 7, 0, 7),
        (MulDiv::Divu, 7, 0, u32::MAX),
        (MulDiv::Remu, 7, 0, 7),
        (MulDiv::Div, 1 << 31, u32::MAX, 1 << 31),
        (MulDiv::Rem, 1 << 31, u32::MAX, 0),
        (MulDiv::Div, -7i32 as u32, 2, -3i32 as u32),
        (MulDiv::Rem, -7i32 as u32, 2, -1i32 as u32),
        (MulDiv::Mulh, u32::MAX, u32::MAX, 0),
        (MulDiv::Mulhu, u32::MAX, u32::MAX, u32::MAX - 1),
        (MulDiv::Mulhsu, u32::MAX, u32::MAX, u32::MAX),
    ] {
        let (core, _) = run(&[muldiv(op)], &[(8, a), (9, b)]);
        assert_eq!(core.register(r(7)), result, "{op:?} {a:#x} {b:#x}");
    }
}

#[test]
fn a_slower_memory_stalls_the_core() {
    let bytes = code(&[load(Width::Word, 6, 5, 0), add(7, 0, 1)]);
    let mut slow = region("slow", DATA, vec![0; 16]);
    slow.load_extra_cycles = 20;
    let mut memory = Memory::new(vec![region("code", CODE, bytes.clone()), slow]);
    let grants = [
        Grant { base: CODE, len: 8, permission: Permission::EXECUTE },
        Grant { base: DATA, len: 16, permission: Permission::READ },
    ];
    memory.set_grants(&grants).unwrap();
    let mut core = Core::new(CODE, Costs::RI5CY);
    core.set_register(r(5), DATA);
    assert_eq!(core.run(&mut memory, CODE + 8, 100), Stop::Reached);
    assert_eq!((core.counters.cycles, core.counters.memory_stalls), (22, 20));
}

/// Memory that no grant covers with the right stays as it is, and the registers too.
#[test]
fn what_is_not_granted_traps() {
    let word = |rs1, imm, mode| Instr::Store {
        width: Width::Word,
        rs2: r(6),
        rs1: r(rs1),
        offset: Offset::Imm(imm),
        mode,
    };
    for (instr, address) in [
        (word(5, 128, Mode::Plain), DATA + 128),
        (word(5, 126, Mode::Plain), DATA + 126),
        (word(7, 4, Mode::PostIncrement), CODE),
        (word(0, 0, Mode::Plain), 0),
        (word(0, -1, Mode::Plain), u32::MAX),
    ] {
        let bytes = code(&[instr]);
        let mut memory = memory(&bytes);
        let mut core = Core::new(CODE, Costs::RI5CY);
        core.set_register(r(5), DATA);
        core.set_register(r(6), u32::MAX);
        core.set_register(r(7), CODE);
        let step = core.step(&mut memory);
        assert_eq!(step, Step::Trapped(Trap::Store { pc: CODE, address }));
        assert_eq!(core.register(r(7)), CODE);
        assert_eq!(core.counters.instructions, 0);
        assert!(memory.bytes(DATA, 256).unwrap().iter().all(|&b| b == 0));
        assert_eq!(memory.bytes(CODE, 4).unwrap(), bytes);
    }
    let bytes = code(&[load(Width::Word, 6, 5, 192)]);
    let mut memory = memory(&bytes);
    let mut core = Core::new(CODE, Costs::RI5CY);
    core.set_register(r(5), DATA);
    let trap = Trap::Load { pc: CODE, address: DATA + 192 };
    assert_eq!(core.step(&mut memory), Step::Trapped(trap));
    core.pc = DATA;
    assert_eq!(core.step(&mut memory), Step::Trapped(Trap::Fetch { pc: DATA }));
}

/// What a core has executed before is decoded once, and never outlives its bytes or its grant.
#[test]
fn changed_code_executes_as_it_is_now() {
    let bytes = code(&[add(6, 6, 1)]);
    let mut memory = memory(&bytes);
    let mut core = Core::new(CODE, Costs::RI5CY);
    let mut step = |memory: &mut Memory, expected, value| {
        core.pc = CODE;
        assert_eq!(core.step(memory), expected);
        assert_eq!(core.register(r(6)), value);
    };
    step(&mut memory, Step::Retired, 1);
    step(&mut memory, Step::Retired, 2);
    memory.bytes_mut(CODE, 4).unwrap().copy_from_slice(&code(&[add(6, 6, 10)]));
    step(&mut memory, Step::Retired, 12);
    let writable = Permission { write: true, ..Permission::EXECUTE };
    memory.set_grants(&[Grant { base: CODE, len: 4, permission: writable }]).unwrap();
    memory.store(CODE, Width::Word, encode(&add(6, 6, 100))).unwrap();
    step(&mut memory, Step::Retired, 112);
    memory.atomic(CODE, &mut |_| encode(&add(6, 6, 1000))).unwrap();
    step(&mut memory, Step::Retired, 1112);
    memory.set_grants(&[Grant { base: CODE, len: 4, permission: Permission::WRITE }]).unwrap();
    step(&mut memory, Step::Trapped(Trap::Fetch { pc: CODE }), 1112);
    // Half of the instruction.
    memory.set_grants(&[Grant { base: CODE, len: 2, permission: Permission::EXECUTE }]).unwrap();
    step(&mut memory, Step::Trapped(Trap::Fetch { pc: CODE + 2 }), 1112);
}

#[test]
fn a_run_is_bounded() {
    let bytes = code(&[Instr::Jal { rd: Reg::ZERO, offset: 0 }]);
    let mut core = Core::new(CODE, Costs::RI5CY);
    assert_eq!(core.run(&mut memory(&bytes), 0, 1000), Stop::OutOfCycles);
    assert!(core.counters.cycles < 1010);
}

#[test]
fn reserved_words_are_stored_once() {
    let lr = Instr::LoadReserved { rd: r(6), rs1: r(5) };
    let sc = |rd| Instr::StoreConditional { rd: r(rd), rs1: r(5), rs2: r(7) };
    let store = Instr::Store {
        width: Width::Byte,
        rs2: r(0),
        rs1: r(5),
        offset: Offset::Imm(3),
        mode: Mode::Plain,
    };
    let (core, memory) = run(&[lr, sc(8), sc(9), lr, store, sc(10)], &[(7, 77)]);
    assert_eq!([8, 9, 10].map(|n| core.register(r(n))), [0, 1, 1]);
    assert_eq!(memory.bytes(DATA, 4).unwrap(), [77, 0, 0, 0]);
}

/// Random words in random memories: every run ends, and no bytes outside of the grants change.
#[test]
fn no_word_makes_the_core_panic_or_write_outside() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let (mut retired, mut trapped) = (0u64, 0u64);
    for round in 0..3000 {
        let mut bytes = vec![0; 512];
        random.fill_bytes(&mut bytes);
        if round % 2 == 0 {
            // Legal words, so that more than the first few execute.
            for word in bytes.chunks_exact_mut(4) {
                let at = u32::from_le_bytes(word.try_into().unwrap()) | 3;
                if let Some(decoded) = fieldstone_nic::riscv::isa::decode(at) {
                    word.copy_from_slice(&encode(&decoded.instr).to_le_bytes());
                } else {
                    word.copy_from_slice(&encode(&add(6, 7, 1)).to_le_bytes());
                }
            }
        }
        let mut memory = memory(&bytes);
        memory.bytes_mut(DATA + 128, 128).unwrap().fill(0x5a);
        let mut core = Core::new(CODE, Costs::RI5CY);
        for number in 1..32 {
            let value = match random.random_range(0..3) {
                0 => DATA + random.random_range(0..200),
                1 => CODE + random.random_range(0..512),
                _ => random.random(),
            };
            core.set_register(r(number), value);
        }
        for _ in 0..400 {
            match core.step(&mut memory) {
                Step::Retired => retired += 1,
                Step::Stalled => unreachable!("memory is never busy"),
                Step::Trapped(trap) => {
                    trapped += 1;
                    assert!(!trap.to_string().is_empty());
                    // Go on behind it: more words are tried.
                    core.pc = CODE + random.random_range(0..512);
                }
            }
        }
        assert_eq!(core.register(Reg::ZERO), 0);
        assert_eq!(memory.bytes(CODE, 512).unwrap(), bytes);
        assert!(memory.bytes(DATA + 128, 128).unwrap().iter().all(|&b| b == 0x5a));
    }
    assert!(retired > 100_000 && trapped > 100_000, "{retired} retired, {trapped} trapped");
}
