//! Random programs on the model and on the RTL.
//!
//! A program is a row of pieces: arithmetic, loads and stores of any width and alignment, branches,
//! jumps, loops, and instructions of 16 bits between them, so that long ones lie across words. Few
//! registers are in use, so that many instructions wait for another one. Every piece ends, so every
//! program does. Fences and control registers do not occur.

use fieldstone_nic::riscv::core::{Core, Costs, Stop};
use fieldstone_nic::riscv::isa::{
    Alu, Condition, Instr, LoopCount, Mode, MulDiv, Offset, Reg, Width, encode,
};
use fieldstone_nic::riscv::memory::{Access, Bus, BusError};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::core::{ENTRY_REGISTER, RtlCore, Start};

const CODE: u32 = 0x1d00_0000;
const DATA: u32 = 0x1000_0000;
const DATA_BYTES: usize = 4096;

/// Registers that pieces compute with.
const FREE: [u32; 9] = [1, 3, 5, 6, 7, 9, 10, 11, 12];
/// The middle of the data; also a base for instructions of 16 bits.
const BASE: u32 = 8;
/// A base that moves.
const MOVING: u32 = 16;
/// An offset of 0 to 255.
const OFFSET: u32 = 18;
/// The target of a jump.
const TARGET: u32 = 19;
/// Counts turns.
const TURNS: u32 = 20;

fn r(number: u32) -> Reg {
    Reg::new(number)
}

/// How the upper half of the data answers. The lower half answers in the next cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upper {
    /// As the lower half.
    Fast,
    /// So many cycles later.
    Late(u64),
    /// After it has refused so many times.
    Busy(u64),
}

/// Code and data.
#[derive(Clone)]
struct Flat {
    code: Vec<u8>,
    data: Vec<u8>,
    upper: Upper,
    refused: u64,
}

impl Flat {
    fn place(&mut self, address: u32, width: Width) -> Result<(&mut [u8], u64), BusError> {
        let at = address.wrapping_sub(DATA) as usize;
        let end = at.saturating_add(width.bytes() as usize);
        let bytes = self.data.get_mut(at..end).ok_or(BusError::Denied)?;
        let upper = if end <= DATA_BYTES / 2 { Upper::Fast } else { self.upper };
        match upper {
            Upper::Fast => Ok((bytes, 0)),
            Upper::Late(extra_cycles) => Ok((bytes, extra_cycles)),
            Upper::Busy(times) if self.refused < times => {
                self.refused += 1;
                Err(BusError::Busy)
            }
            Upper::Busy(_) => {
                self.refused = 0;
                Ok((bytes, 0))
            }
        }
    }
}

impl Bus for Flat {
    fn fetch(&mut self, address: u32) -> Result<u16, BusError> {
        let at = address.wrapping_sub(CODE) as usize;
        let half = self.code.get(at..at.saturating_add(2)).ok_or(BusError::Denied)?;
        Ok(u16::from_le_bytes([half[0], half[1]]))
    }

    fn load(&mut self, address: u32, width: Width) -> Result<Access, BusError> {
        let (bytes, extra_cycles) = self.place(address, width)?;
        let value = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
        Ok(Access { value, extra_cycles })
    }

    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<u64, BusError> {
        let (bytes, extra_cycles) = self.place(address, width)?;
        let len = bytes.len();
        bytes.copy_from_slice(&value.to_le_bytes()[..len]);
        Ok(extra_cycles)
    }

    fn atomic(
        &mut self,
        _address: u32,
        _change: &mut dyn FnMut(u32) -> u32,
    ) -> Result<Access, BusError> {
        Err(BusError::Denied)
    }
}

/// Makes a program.
struct Maker {
    random: ChaCha8Rng,
    code: Vec<u8>,
    /// Loads and stores are of bytes only: none is two accesses.
    is_of_bytes: bool,
}

impl Maker {
    fn instr(&mut self, instr: Instr) {
        self.code.extend(encode(&instr).to_le_bytes());
    }

    fn half(&mut self, half: u32) {
        self.code.extend((half as u16).to_le_bytes());
    }

    fn align(&mut self) {
        if !self.code.len().is_multiple_of(4) {
            self.half(1); // c.nop
        }
    }

    fn one(&mut self, of: &[u32]) -> Reg {
        r(*of.choose(&mut self.random).unwrap())
    }

    fn source(&mut self) -> Reg {
        self.one(&FREE)
    }

    fn destination(&mut self) -> Reg {
        if self.random.random_ratio(1, 20) { Reg::ZERO } else { self.source() }
    }

    fn move_by(&mut self, rd: u32, rs1: u32, imm: i32) {
        self.instr(Instr::OpImm { op: Alu::Add, rd: r(rd), rs1: r(rs1), imm });
    }

    /// An instruction of 32 bits that only computes or accesses memory next to [`BASE`].
    fn simple(&mut self) {
        let (rd, rs1, rs2) = (self.destination(), self.source(), self.source());
        let ops = [Alu::Add, Alu::Sll, Alu::Slt, Alu::Sltu, Alu::Xor, Alu::Srl, Alu::Sra, Alu::Or];
        let op = *ops.choose(&mut self.random).unwrap();
        let imm = self.random.random_range(-2048..2048);
        let (bits, position) = (self.random.random_range(1..33), self.random.random_range(0..32));
        let instr = match self.random.random_range(0..16) {
            0 => Instr::Lui { rd, imm: self.random.random::<u32>() & 0xffff_f000 },
            1 => Instr::Auipc { rd, imm: self.random.random::<u32>() & 0xffff_f000 },
            2 | 3 => Instr::OpImm { op, rd, rs1, imm },
            4 => Instr::Op { op: Alu::Sub, rd, rs1, rs2 },
            5 => Instr::Op { op, rd, rs1, rs2 },
            6 => self.mul_div(rd, rs1, rs2),
            7..=9 => self.load(rd, BASE, Mode::Plain),
            10 | 11 => self.store(BASE, Mode::Plain),
            12 => Instr::Extract { signed: self.random.random(), rd, rs1, bits, position },
            13 => Instr::Insert { rd, rs1, bits, position },
            14 => self.halves(rd, rs1, rs2),
            _ => Instr::Op { op: Alu::And, rd, rs1, rs2 },
        };
        self.instr(instr);
    }

    fn halves(&mut self, rd: Reg, rs1: Reg, rs2: Reg) -> Instr {
        match self.random.random_range(0..6) {
            0 => Instr::MulLow16 { rd, rs1, rs2 },
            1 => Instr::MulHigh16 { rd, rs1, rs2 },
            2 => Instr::PackLow { rd, rs1, rs2 },
            3 => Instr::PackHigh { rd, rs1, rs2 },
            4 => Instr::Shuffle { rd, rs1, rs2 },
            _ => Instr::Shuffle2 { rd, rs1, rs2 },
        }
    }

    fn mul_div(&mut self, rd: Reg, rs1: Reg, rs2: Reg) -> Instr {
        let ops = [
            MulDiv::Mul,
            MulDiv::Mulh,
            MulDiv::Mulhsu,
            MulDiv::Mulhu,
            MulDiv::Div,
            MulDiv::Divu,
            MulDiv::Rem,
            MulDiv::Remu,
        ];
        Instr::MulDiv { op: *ops.choose(&mut self.random).unwrap(), rd, rs1, rs2 }
    }

    fn width(&mut self) -> Width {
        if self.is_of_bytes {
            return Width::Byte;
        }
        *[Width::Byte, Width::Half, Width::Word].choose(&mut self.random).unwrap()
    }

    fn load(&mut self, rd: Reg, rs1: u32, mode: Mode) -> Instr {
        let width = self.width();
        let signed = width == Width::Word || self.random.random();
        let offset = self.offset(mode);
        Instr::Load { width, signed, rd, rs1: r(rs1), offset, mode }
    }

    fn store(&mut self, rs1: u32, mode: Mode) -> Instr {
        let (width, rs2, offset) = (self.width(), self.source(), self.offset(mode));
        Instr::Store { width, rs2, rs1: r(rs1), offset, mode }
    }

    fn offset(&mut self, mode: Mode) -> Offset {
        match self.random.random_range(0..4) {
            0 => Offset::Reg(r(OFFSET)),
            _ if mode == Mode::Plain => Offset::Imm(self.random.random_range(-1024..1024)),
            _ => Offset::Imm(self.random.random_range(-16..16)),
        }
    }

    fn short(&mut self) {
        let rd = u32::from(self.source().number() as u8);
        let rs2 = u32::from(self.source().number() as u8);
        let (near, data) = (self.random.random_range(0..32), self.random.random_range(1..5));
        match self.random.random_range(0..6) {
            0 => self.half(0x0001 | rd << 7 | near << 2), // c.addi
            1 => self.half(0x4001 | rd << 7 | near << 2), // c.li
            2 => self.half(0x8002 | rd << 7 | rs2 << 2),  // c.mv
            3 => self.half(0x9002 | rd << 7 | rs2 << 2),  // c.add
            // c.lw x9..x12, offset(x8), and c.sw
            4 => self.half(0x4000 | (near & 7) << 10 | data << 2),
            _ => self.half(0xc000 | (near & 7) << 10 | data << 2),
        }
    }

    /// One to five instructions without jumps.
    fn block(&mut self) {
        for _ in 0..self.random.random_range(1..6) {
            if self.random.random_ratio(1, 4) { self.short() } else { self.simple() }
        }
    }

    /// The bytes of what `make` adds, which is not added.
    fn apart(&mut self, make: impl FnOnce(&mut Self)) -> Vec<u8> {
        let at = self.code.len();
        // The same alignment as behind the instruction of 32 bits that comes first.
        self.code.extend([0; 4]);
        make(self);
        let bytes = self.code.split_off(at + 4);
        self.code.truncate(at);
        bytes
    }

    fn forward_branch(&mut self) {
        let skipped = self.apart(Self::block);
        let offset = 4 + skipped.len() as i32;
        let (rs1, rs2) = (self.source(), self.source());
        let condition = *[
            Condition::Eq,
            Condition::Ne,
            Condition::Lt,
            Condition::Ge,
            Condition::Ltu,
            Condition::Geu,
        ]
        .choose(&mut self.random)
        .unwrap();
        let instr = match self.random.random_range(0..4) {
            0 => Instr::Jal { rd: self.destination(), offset },
            _ => Instr::Branch { condition, rs1, rs2, offset },
        };
        self.instr(instr);
        self.code.extend(skipped);
    }

    fn branch_on_number(&mut self) {
        let skipped = self.apart(Self::block);
        let offset = 4 + skipped.len() as i32;
        let (equal, rs1) = (self.random.random(), self.source());
        let imm = self.random.random_range(-16..16);
        self.instr(Instr::BranchImm { equal, rs1, imm, offset });
        self.code.extend(skipped);
    }

    /// A jump or a branch of 16 bits.
    fn short_branch(&mut self) {
        let at = self.code.len();
        self.half(0); // its place
        self.block();
        let offset = (self.code.len() - at) as u32;
        let bit = |from: u32, to: u32| (offset >> from & 1) << to;
        let rs1 = self.random.random_range(1..5); // x9 to x12
        let branch = rs1 << 7
            | bit(8, 12)
            | bit(4, 11)
            | bit(3, 10)
            | bit(7, 6)
            | bit(6, 5)
            | bit(2, 4)
            | bit(1, 3)
            | bit(5, 2);
        let jump = bit(11, 12)
            | bit(4, 11)
            | bit(9, 10)
            | bit(8, 9)
            | bit(10, 8)
            | bit(6, 7)
            | bit(7, 6)
            | bit(3, 5)
            | bit(2, 4)
            | bit(1, 3)
            | bit(5, 2);
        let half = match self.random.random_range(0..3) {
            0 => 0xa001 | jump,   // c.j
            1 => 0xc001 | branch, // c.beqz
            _ => 0xe001 | branch, // c.bnez
        };
        self.code[at..at + 2].copy_from_slice(&(half as u16).to_le_bytes());
    }

    fn jump_to_register(&mut self) {
        let between: Vec<u8> = {
            let count = self.random.random_range(0..3);
            self.apart(|maker| (0..count).for_each(|_| maker.simple()))
        };
        let skipped = self.apart(Self::block);
        let through_memory = self.random.random_ratio(1, 2);
        let more = if through_memory { 8 } else { 0 };
        let offset = (8 + more + between.len() + 4 + skipped.len()) as i32;
        // The jump itself adds a part.
        let part = 2 * self.random.random_range(-20..20);
        self.instr(Instr::Auipc { rd: r(TARGET), imm: 0 });
        self.move_by(TARGET, TARGET, offset - part);
        if through_memory {
            let (width, rs1, offset, mode) = (Width::Word, r(BASE), Offset::Imm(1100), Mode::Plain);
            self.instr(Instr::Store { width, rs2: r(TARGET), rs1, offset, mode });
            self.instr(Instr::Load { width, signed: true, rd: r(TARGET), rs1, offset, mode });
        }
        self.code.extend(between);
        let rd = self.destination();
        self.instr(Instr::Jalr { rd, rs1: r(TARGET), offset: part });
        self.code.extend(skipped);
    }

    fn loop_of_branches(&mut self) {
        let turns = self.random.random_range(1..5);
        self.move_by(TURNS, 0, turns);
        let start = self.code.len();
        self.block();
        self.move_by(TURNS, TURNS, -1);
        let offset = start as i32 - self.code.len() as i32;
        let (rs1, rs2) = (r(TURNS), Reg::ZERO);
        self.instr(Instr::Branch { condition: Condition::Ne, rs1, rs2, offset });
    }

    fn moving(&mut self) {
        let start = self.random.random_range(-512..512);
        self.move_by(MOVING, BASE, start);
        for _ in 0..self.random.random_range(1..5) {
            let rd = self.source();
            let instr = if self.random.random() {
                self.load(rd, MOVING, Mode::PostIncrement)
            } else {
                self.store(MOVING, Mode::PostIncrement)
            };
            self.instr(instr);
        }
    }

    fn new_offset(&mut self) {
        let rs1 = self.source();
        self.instr(Instr::OpImm { op: Alu::And, rd: r(OFFSET), rs1, imm: 255 });
    }

    /// A byte is loaded, and its value is the offset of the next load or store, or of one behind
    /// that: a look-up in a table, as the firmware's.
    fn look_up(&mut self) {
        let (width, signed, rd) = (Width::Byte, false, r(OFFSET));
        let (rs1, offset, mode) = (r(BASE), self.offset(Mode::Plain), Mode::Plain);
        self.instr(Instr::Load { width, signed, rd, rs1, offset, mode });
        for _ in 0..self.random.random_range(1..3) {
            let (width, offset) = (self.width(), Offset::Reg(r(OFFSET)));
            let (rd, rs2) = (self.source(), self.source());
            let instr = if self.random.random() {
                Instr::Load { width, signed: true, rd, rs1, offset, mode }
            } else {
                Instr::Store { width, rs2, rs1, offset, mode }
            };
            self.instr(instr);
        }
    }

    fn body(&mut self) -> u32 {
        let count = self.random.random_range(3..8);
        for _ in 0..count {
            self.simple();
        }
        count
    }

    /// A hardware loop, or one in another. CV32E40P wants three instructions in a body, and one
    /// behind the inner loop before the outer one ends.
    fn hardware_loop(&mut self) {
        self.align();
        let turns = self.random.random_range(0..5);
        if self.random.random_ratio(1, 3) {
            let inner = self.apart(|maker| {
                maker.hardware_loop_of(0, turns);
                maker.simple();
                maker.simple();
            });
            let offset = inner.len() as u32;
            let count = LoopCount::Imm(self.random.random_range(1..4));
            self.instr(Instr::LoopSetup { id: 1, count, offset });
            self.code.extend(inner);
        } else {
            let id = self.random.random_range(0..2);
            self.hardware_loop_of(id, turns);
        }
    }

    fn hardware_loop_of(&mut self, id: usize, turns: u32) {
        let by_parts = self.random.random_ratio(1, 3);
        if self.random.random() {
            self.move_by(TURNS, 0, turns as i32);
            if self.random.random() {
                // The count comes from memory.
                let (width, rs1, mode) = (Width::Word, r(BASE), Mode::Plain);
                let offset = Offset::Imm(1108);
                self.instr(Instr::Store { width, rs2: r(TURNS), rs1, offset, mode });
                self.instr(Instr::Load { width, signed: true, rd: r(TURNS), rs1, offset, mode });
            }
            let body = self.apart(|maker| _ = maker.body());
            let (count, len) = (LoopCount::Reg(r(TURNS)), body.len() as u32);
            self.setup(by_parts, id, count, len);
            self.code.extend(body);
        } else {
            let body = self.apart(|maker| _ = maker.body());
            self.setup(by_parts, id, LoopCount::Imm(turns), body.len() as u32);
            self.code.extend(body);
        }
    }

    fn setup(&mut self, by_parts: bool, id: usize, count: LoopCount, len: u32) {
        if by_parts {
            self.instr(Instr::LoopStart { id, offset: 12 });
            self.instr(Instr::LoopEnd { id, offset: 4 + len });
            self.instr(Instr::LoopCount { id, count });
        } else {
            self.instr(Instr::LoopSetup { id, count, offset: len });
        }
    }

    fn program(mut self, pieces: usize) -> (Vec<u8>, ChaCha8Rng) {
        self.new_offset();
        for _ in 0..pieces {
            match self.random.random_range(0..15) {
                12 | 13 => self.look_up(),
                14 => self.short_branch(),
                0..=3 => self.block(),
                4 | 5 => self.forward_branch(),
                6 => self.branch_on_number(),
                7 => self.jump_to_register(),
                8 => self.loop_of_branches(),
                9 => self.moving(),
                10 => self.new_offset(),
                _ => self.hardware_loop(),
            }
        }
        // The bench's own program at the end has instructions of 32 bits.
        self.align();
        (self.code, self.random)
    }
}

/// An instruction of a run: its cycle and its address.
type Row = (u64, u32);

/// A program of this seed on both; the message says what differs.
fn compare(rtl: &mut RtlCore, seed: u64, upper: Upper) -> Result<[u64; 2], String> {
    let random = ChaCha8Rng::seed_from_u64(seed);
    let pieces = 1 + (seed % 40) as usize;
    let is_of_bytes = matches!(upper, Upper::Busy(_));
    let (code, mut random) = Maker { random, code: Vec::new(), is_of_bytes }.program(pieces);
    let end = CODE + code.len() as u32;
    let mut start = Start { entry: CODE, end, registers: [0; 32] };
    for number in FREE {
        let small = random.random_ratio(1, 3);
        let value: u32 = random.random();
        start.registers[number as usize] = if small { value % 40 } else { value };
    }
    start.registers[BASE as usize] = DATA + DATA_BYTES as u32 / 2;
    start.registers[ENTRY_REGISTER] = CODE;
    let mut data = vec![0; DATA_BYTES];
    random.fill(&mut data[..]);
    let mut bus = Flat { code, data, upper, refused: 0 };
    let mut rtl_bus = bus.clone();
    rtl.set_text(CODE, &bus.code);

    let mut core = Core::new(CODE, Costs::RI5CY);
    for (number, value) in start.registers.into_iter().enumerate() {
        core.set_register(r(number as u32), value);
    }
    let mut starts: Vec<Row> = Vec::new();
    while core.pc != end && core.counters.cycles < 100_000 {
        if core.counters.instructions == starts.len() as u64 {
            starts.push((core.counters.cycles, core.pc));
        }
        if let Stop::Trapped(trap) = core.run(&mut bus, u32::MAX, 1) {
            return Err(format!("seed {seed}: {trap}"));
        }
    }
    let ended = rtl.run(&start, &mut rtl_bus, 100_000);
    let differs = |what: &str| {
        let first = ended.trace.first().map_or(0, |&(cycle, _)| cycle);
        let rows: Vec<(Row, Row)> = starts
            .iter()
            .zip(&ended.trace)
            .map(|(&ours, &(cycle, pc))| (ours, (cycle - first, pc)))
            .collect();
        // Around the last instructions at which both were equal. One that waits is earlier in the
        // model's column.
        let are_equal = |rows: &[(Row, Row)]| rows.iter().all(|(a, b)| a == b);
        let near = rows.windows(2).rposition(are_equal).unwrap_or(0);
        let mut text = format!("seed {seed}: {what} differ\nmodel | RTL\n");
        for &((cycle, pc), rtl) in rows.iter().take(near + 8).skip(near.saturating_sub(8)) {
            let instr = bus.clone().instruction(pc).map(|decoded| decoded.instr);
            text += &format!("{cycle} {pc:#x} | {} {:#x} | {instr:?}\n", rtl.0, rtl.1);
        }
        text
    };
    if core.pc != end || ended.stop != Stop::Reached {
        return Err(differs(&format!("ends ({:?})", ended.stop)));
    }
    let registers: Vec<u32> = (0..32).map(|number| core.register(r(number))).collect();
    if registers[..] != ended.registers[..] {
        return Err(differs(&format!("registers {registers:x?} {:x?}", ended.registers)));
    }
    if bus.data != rtl_bus.data {
        return Err(differs("data"));
    }
    let (ours, theirs) = (core.counters, ended.counters);
    if ours.instructions != theirs.instructions {
        return Err(differs(&format!("instructions {ours:?} {theirs:?}")));
    }
    let is_late = matches!(upper, Upper::Late(_));
    if ours.cycles < theirs.cycles || (!is_late && ours.cycles != theirs.cycles) {
        return Err(differs(&format!("cycles {} {}", ours.cycles, theirs.cycles)));
    }
    Ok([ours.cycles, theirs.cycles])
}

/// The cycles of all, on the model and on the RTL.
fn compare_all(seeds: std::ops::Range<u64>, upper: Upper) -> [u64; 2] {
    let mut rtl = RtlCore::new();
    let mut sums = [0; 2];
    for seed in seeds.clone() {
        match compare(&mut rtl, seed, upper) {
            Ok(cycles) => sums = [sums[0] + cycles[0], sums[1] + cycles[1]],
            Err(text) => panic!("{text}"),
        }
    }
    eprintln!("{} programs, {} cycles of RTL, {} of the model", seeds.count(), sums[1], sums[0]);
    sums
}

/// `CORE_PROGRAMS` sets how many.
#[test]
fn programs_take_the_cycles_of_the_rtl() {
    let count = std::env::var("CORE_PROGRAMS").map_or(2000, |count| count.parse().unwrap());
    let [ours, theirs] = compare_all(0..count, Upper::Fast);
    assert!(ours == theirs && ours > 100 * count);
}

#[test]
fn a_busy_memory_stalls_as_it_stalls_the_rtl() {
    for times in [1, 2, 7] {
        compare_all(0..500, Upper::Busy(times));
    }
}

/// While the answer to a load or store is late, the RTL executes the next instructions, until one
/// needs the answer or two answers are open. The model waits for every answer, so it is never
/// faster than the RTL.
#[test]
fn a_late_memory_stalls_no_less_than_the_rtl() {
    for extra_cycles in [1, 2, 7] {
        let [ours, theirs] = compare_all(0..500, Upper::Late(extra_cycles));
        assert!(ours < 2 * theirs);
    }
}
