//! What instructions do, and the stalls that they cause.

use super::{Core, Trap, Writes};
use crate::riscv::isa::{
    Alu, Amo, Condition, CsrOp, CsrSource, Decoded, Instr, LoopCount, Mode, MulDiv, Offset, Reg,
    Width, encode,
};
use crate::riscv::memory::{Bus, BusError};

/// Why an instruction has not executed.
pub(super) enum NotDone {
    Busy,
    Trap(Trap),
}

/// The cycle counter, and its upper half.
const CSR_MCYCLE: u32 = 0xb00;
const CSR_MCYCLE_HIGH: u32 = 0xb80;
/// The counter of instructions, and its upper half.
const CSR_MINSTRET: u32 = 0xb02;
const CSR_MINSTRET_HIGH: u32 = 0xb82;

/// Cycles that an instruction waits in the decoder for registers.
#[derive(Default)]
struct Hazard {
    load_use: u64,
    jump_register: u64,
    /// Cycles that a jump is in the decoder after its register has come: its target is fetched in
    /// them.
    jump_fetches: u64,
}

/// A load or store, with its address computed.
struct MemoryAccess {
    width: Width,
    base: Reg,
    address: u32,
    offset: u32,
    mode: Mode,
}

impl Core {
    pub(super) fn execute(&mut self, decoded: Decoded, bus: &mut impl Bus) -> Result<(), NotDone> {
        let Decoded { instr, len_bytes } = decoded;
        let pc = self.pc;
        let next = pc.wrapping_add(len_bytes);
        // Cycles that the next instruction stays in the decoder because of this one.
        let mut keeps = 0;
        let hazard = self.hazard(&instr);
        let mut target = next;
        match instr {
            Instr::Lui { rd, imm } => self.set_register(rd, imm),
            Instr::Auipc { rd, imm } => self.set_register(rd, pc.wrapping_add(imm)),
            Instr::Jal { rd, offset } => {
                target = self.jump(pc.wrapping_add(offset as u32), &hazard, bus);
                self.set_register(rd, next);
            }
            Instr::Jalr { rd, rs1, offset } => {
                let to = self.register(rs1).wrapping_add(offset as u32) & !1;
                target = self.jump(to, &hazard, bus);
                self.set_register(rd, next);
            }
            Instr::Branch { condition, rs1, rs2, offset } => {
                if holds(condition, self.register(rs1), self.register(rs2)) {
                    target = self.branch(pc.wrapping_add(offset as u32), bus);
                }
            }
            Instr::BranchImm { equal, rs1, imm, offset } => {
                if (self.register(rs1) == imm as u32) == equal {
                    target = self.branch(pc.wrapping_add(offset as u32), bus);
                }
            }
            Instr::Load { .. } | Instr::Store { .. } => keeps = self.memory(&instr, bus)?,
            Instr::LoadReserved { .. } | Instr::StoreConditional { .. } | Instr::Amo { .. } => {
                self.atomic(&instr, bus)?;
            }
            Instr::MulDiv { op, rd, rs1, rs2 } => keeps = self.mul_div(op, rd, rs1, rs2),
            Instr::Fence | Instr::FenceI => {}
            Instr::Ecall => return Err(NotDone::Trap(Trap::Ecall { pc })),
            Instr::Ebreak => return Err(NotDone::Trap(Trap::Ebreak { pc })),
            Instr::Csr { op, rd, source, csr } => {
                let value = self.csr(op, source, csr).ok_or_else(|| {
                    let word = encode(&instr);
                    NotDone::Trap(Trap::Illegal { pc, word })
                })?;
                self.set_register(rd, value);
            }
            Instr::LoopStart { .. }
            | Instr::LoopEnd { .. }
            | Instr::LoopCount { .. }
            | Instr::LoopSetup { .. } => self.set_loop(&instr, next),
            _ => self.compute(&instr),
        }
        self.counters.load_use_stalls += hazard.load_use;
        self.counters.jump_stalls += hazard.jump_register;
        self.counters.cycles += hazard.load_use + hazard.jump_register;
        let waited = hazard.load_use + hazard.jump_register;
        self.written_back = self.written.loaded.filter(|_| waited == 0);
        self.written = writes(&instr);
        self.held = self.busy + keeps;
        self.busy = 0;
        self.pc = if target == next { self.after(pc, next) } else { target };
        Ok(())
    }

    /// Cycles that an instruction waits for registers.
    pub(super) fn waits_for(&self, instr: &Instr) -> u64 {
        let hazard = self.hazard(instr);
        hazard.load_use + hazard.jump_register
    }

    /// The stalls for registers that are not written yet. They count once the instruction executes,
    /// however often a busy bus has it tried.
    fn hazard(&self, instr: &Instr) -> Hazard {
        let mut hazard = Hazard::default();
        let registers = reads(instr);
        let needs =
            |rd: Option<Reg>| rd.is_some_and(|rd| rd != Reg::ZERO && registers.contains(&Some(rd)));
        let Writes { computed, loaded } = self.written;
        // The result of a load comes by another port than computed ones, and later: a computed one
        // for the same register, x0 too, waits as well.
        if needs(loaded) || (loaded.is_some() && loaded == writes(instr).computed) {
            hazard.load_use = self.costs.load_use;
        }
        // Cycles in the decoder until the register of a jump comes, and until a jump leaves.
        let after_last = self.held + self.costs.jump_register;
        let comes = if !matches!(instr, Instr::Jalr { .. }) {
            0
        } else if needs(loaded) {
            after_last + hazard.load_use
        } else if needs(computed) {
            after_last
        } else if needs(self.written_back) {
            self.costs.jump_register
        } else {
            0
        };
        let leaves = comes.max(self.held + hazard.load_use);
        hazard.jump_register = leaves - self.held - hazard.load_use;
        hazard.jump_fetches = leaves - comes;
        hazard
    }

    fn jump(&mut self, target: u32, hazard: &Hazard, bus: &mut impl Bus) -> u32 {
        let stall = self.costs.jump;
        self.go(target, stall, hazard.jump_fetches, bus)
    }

    fn branch(&mut self, target: u32, bus: &mut impl Bus) -> u32 {
        let stall = self.costs.branch_taken;
        self.go(target, stall, 0, bus)
    }

    /// Goes to `target`, which has been fetched for `fetched` cycles. An instruction across words
    /// is put together only when the decoder takes it.
    fn go(&mut self, target: u32, stall: u64, fetched: u64, bus: &mut impl Bus) -> u32 {
        // A target outside of what may be executed traps at its own fetch.
        let split = target & 2 != 0 && bus.fetch(target).is_ok_and(|half| half & 3 == 3);
        let split = if split { self.costs.split_target } else { 0 };
        let stall = stall.saturating_sub(fetched) + split;
        self.counters.jump_stalls += stall;
        self.counters.cycles += stall;
        target
    }

    /// The address after the instruction at `pc`: the next one, or the start of a hardware loop.
    fn after(&mut self, pc: u32, next: u32) -> u32 {
        for turn in &mut self.loops {
            if turn.end == pc && turn.count > 1 {
                turn.count -= 1;
                return turn.start;
            }
        }
        next
    }

    /// A load or store. The answer is how long it keeps the next instruction in the decoder.
    fn memory(&mut self, instr: &Instr, bus: &mut impl Bus) -> Result<u64, NotDone> {
        match *instr {
            Instr::Load { width, signed, rd, rs1, offset, mode } => {
                let access = self.address(width, rs1, offset, mode);
                let answer = bus
                    .load(access.address, width)
                    .map_err(|error| self.refused(error, access.address, false))?;
                let value = extend(width, signed, answer.value);
                let keeps = self.count_access(&access, answer.extra_cycles);
                self.counters.loads += 1;
                self.increment(&access);
                self.set_register(rd, value);
                Ok(keeps)
            }
            Instr::Store { width, rs2, rs1, offset, mode } => {
                let access = self.address(width, rs1, offset, mode);
                let extra_cycles = bus
                    .store(access.address, width, self.register(rs2))
                    .map_err(|error| self.refused(error, access.address, true))?;
                self.drop_reservation(access.address);
                let keeps = self.count_access(&access, extra_cycles);
                self.counters.stores += 1;
                self.increment(&access);
                Ok(keeps)
            }
            _ => Ok(0),
        }
    }

    fn address(&self, width: Width, base: Reg, offset: Offset, mode: Mode) -> MemoryAccess {
        let offset = match offset {
            Offset::Imm(imm) => imm as u32,
            Offset::Reg(r) => self.register(r),
        };
        let start = self.register(base);
        let address = if mode == Mode::Plain { start.wrapping_add(offset) } else { start };
        MemoryAccess { width, base, address, offset, mode }
    }

    fn increment(&mut self, access: &MemoryAccess) {
        if access.mode == Mode::PostIncrement {
            let value = access.address.wrapping_add(access.offset);
            self.set_register(access.base, value);
        }
    }

    /// Counts the stalls. The answer is those of the two accesses across words, which the next
    /// instruction waits for in the decoder; while an answer is late, it has left the decoder.
    fn count_access(&mut self, access: &MemoryAccess, extra_cycles: u64) -> u64 {
        let split = (access.address & 3) + access.width.bytes() > 4;
        let split_stall = if split { self.costs.split_access } else { 0 };
        self.counters.memory_stalls += extra_cycles + split_stall;
        self.counters.cycles += extra_cycles + split_stall;
        split_stall
    }

    fn refused(&self, error: BusError, address: u32, write: bool) -> NotDone {
        let pc = self.pc;
        match error {
            BusError::Busy => NotDone::Busy,
            BusError::Denied if write => NotDone::Trap(Trap::Store { pc, address }),
            BusError::Denied => NotDone::Trap(Trap::Load { pc, address }),
        }
    }

    fn drop_reservation(&mut self, address: u32) {
        if self.reservation == Some(address & !3) {
            self.reservation = None;
        }
    }

    fn atomic(&mut self, instr: &Instr, bus: &mut impl Bus) -> Result<(), NotDone> {
        let (Instr::LoadReserved { rd, rs1 }
        | Instr::StoreConditional { rd, rs1, .. }
        | Instr::Amo { rd, rs1, .. }) = *instr
        else {
            return Ok(());
        };
        let address = self.register(rs1);
        if address & 3 != 0 {
            return Err(NotDone::Trap(Trap::Misaligned { pc: self.pc, address }));
        }
        let (value, extra_cycles) = match *instr {
            Instr::StoreConditional { rs2, .. } => {
                if self.reservation != Some(address) {
                    self.reservation = None;
                    (1, 0)
                } else {
                    let extra = bus
                        .store(address, Width::Word, self.register(rs2))
                        .map_err(|error| self.refused(error, address, true))?;
                    self.reservation = None;
                    (0, extra)
                }
            }
            Instr::Amo { op, rs2, .. } => {
                let operand = self.register(rs2);
                let answer = bus
                    .atomic(address, &mut |old| apply(op, old, operand))
                    .map_err(|error| self.refused(error, address, true))?;
                self.drop_reservation(address);
                (answer.value, answer.extra_cycles)
            }
            _ => {
                let answer = bus
                    .load(address, Width::Word)
                    .map_err(|error| self.refused(error, address, false))?;
                self.reservation = Some(address);
                (answer.value, answer.extra_cycles)
            }
        };
        self.counters.loads += 1;
        self.counters.memory_stalls += extra_cycles;
        self.counters.cycles += extra_cycles;
        self.set_register(rd, value);
        Ok(())
    }

    /// The same for a product or a quotient.
    fn mul_div(&mut self, op: MulDiv, rd: Reg, rs1: Reg, rs2: Reg) -> u64 {
        let (a, b) = (self.register(rs1), self.register(rs2));
        let stall = match op {
            MulDiv::Mul => 0,
            MulDiv::Mulh | MulDiv::Mulhsu | MulDiv::Mulhu => self.costs.mul_high,
            MulDiv::Div | MulDiv::Rem => self.costs.division(true, b),
            MulDiv::Divu | MulDiv::Remu => self.costs.division(false, b),
        };
        self.counters.arithmetic_stalls += stall;
        self.counters.cycles += stall;
        self.set_register(rd, mul_div(op, a, b));
        stall
    }

    /// The value of a control register. `None` if the core has no such register, or the instruction
    /// would write it.
    fn csr(&self, op: CsrOp, source: CsrSource, csr: u32) -> Option<u32> {
        let writes = match source {
            CsrSource::Reg(rs1) => op == CsrOp::Write || rs1 != Reg::ZERO,
            CsrSource::Imm(imm) => op == CsrOp::Write || imm != 0,
        };
        if writes {
            return None;
        }
        match csr {
            CSR_MCYCLE => Some(self.counters.cycles as u32),
            CSR_MCYCLE_HIGH => Some((self.counters.cycles >> 32) as u32),
            CSR_MINSTRET => Some(self.counters.instructions as u32),
            CSR_MINSTRET_HIGH => Some((self.counters.instructions >> 32) as u32),
            _ => None,
        }
    }

    fn set_loop(&mut self, instr: &Instr, next: u32) {
        let pc = self.pc;
        match *instr {
            Instr::LoopStart { id, offset } => self.loops[id & 1].start = pc.wrapping_add(offset),
            Instr::LoopEnd { id, offset } => self.loops[id & 1].end = pc.wrapping_add(offset),
            Instr::LoopCount { id, count } => self.loops[id & 1].count = self.count(count),
            Instr::LoopSetup { id, count, offset } => {
                let count = self.count(count);
                let end = pc.wrapping_add(offset);
                self.loops[id & 1] = super::HardwareLoop { start: next, end, count };
            }
            _ => {}
        }
    }

    fn count(&self, count: LoopCount) -> u32 {
        match count {
            LoopCount::Reg(r) => self.register(r),
            LoopCount::Imm(imm) => imm,
        }
    }

    /// Instructions that read registers, take one cycle and write one register.
    fn compute(&mut self, instr: &Instr) {
        let (rd, value) = match *instr {
            Instr::OpImm { op, rd, rs1, imm } => (rd, alu(op, self.register(rs1), imm as u32)),
            Instr::Op { op, rd, rs1, rs2 } => (rd, alu(op, self.register(rs1), self.register(rs2))),
            Instr::Extract { signed, rd, rs1, bits, position } => {
                (rd, extract(signed, self.register(rs1), bits, position))
            }
            Instr::Insert { rd, rs1, bits, position } => {
                let mask = (u32::MAX >> (32 - bits.clamp(1, 32))) << (position & 31);
                let field = self.register(rs1) << (position & 31);
                (rd, self.register(rd) & !mask | field & mask)
            }
            Instr::MulLow16 { rd, rs1, rs2 } => {
                (rd, (self.register(rs1) & 0xffff) * (self.register(rs2) & 0xffff))
            }
            Instr::MulHigh16 { rd, rs1, rs2 } => {
                (rd, (self.register(rs1) >> 16) * (self.register(rs2) >> 16))
            }
            Instr::PackLow { rd, rs1, rs2 } => {
                (rd, self.register(rs1) << 16 | self.register(rs2) & 0xffff)
            }
            Instr::PackHigh { rd, rs1, rs2 } => {
                (rd, self.register(rs1) & 0xffff_0000 | self.register(rs2) >> 16)
            }
            Instr::Shuffle { rd, rs1, rs2 } => {
                let source = self.register(rs1).to_le_bytes();
                let chosen = self.register(rs2).to_le_bytes().map(|s| source[usize::from(s & 3)]);
                (rd, u32::from_le_bytes(chosen))
            }
            Instr::Shuffle2 { rd, rs1, rs2 } => {
                let high = self.register(rs1).to_le_bytes();
                let low = self.register(rd).to_le_bytes();
                let chosen = self.register(rs2).to_le_bytes().map(|s| {
                    let source = if s & 4 == 0 { low } else { high };
                    source[usize::from(s & 3)]
                });
                (rd, u32::from_le_bytes(chosen))
            }
            _ => return,
        };
        self.set_register(rd, value);
    }
}

/// The registers that an instruction reads.
fn reads(instr: &Instr) -> [Option<Reg>; 3] {
    let by_offset = |offset: Offset| match offset {
        Offset::Reg(r) => Some(r),
        Offset::Imm(_) => None,
    };
    match *instr {
        Instr::Jalr { rs1, .. }
        | Instr::BranchImm { rs1, .. }
        | Instr::OpImm { rs1, .. }
        | Instr::LoadReserved { rs1, .. }
        | Instr::Extract { rs1, .. }
        | Instr::Csr { source: CsrSource::Reg(rs1), .. }
        | Instr::LoopCount { count: LoopCount::Reg(rs1), .. }
        | Instr::LoopSetup { count: LoopCount::Reg(rs1), .. } => [Some(rs1), None, None],
        Instr::Branch { rs1, rs2, .. }
        | Instr::Op { rs1, rs2, .. }
        | Instr::MulDiv { rs1, rs2, .. }
        | Instr::StoreConditional { rs1, rs2, .. }
        | Instr::Amo { rs1, rs2, .. }
        | Instr::MulLow16 { rs1, rs2, .. }
        | Instr::MulHigh16 { rs1, rs2, .. }
        | Instr::PackLow { rs1, rs2, .. }
        | Instr::PackHigh { rs1, rs2, .. }
        | Instr::Shuffle { rs1, rs2, .. } => [Some(rs1), Some(rs2), None],
        Instr::Load { rs1, offset, .. } => [Some(rs1), by_offset(offset), None],
        Instr::Store { rs1, rs2, offset, .. } => [Some(rs1), Some(rs2), by_offset(offset)],
        Instr::Insert { rd, rs1, .. } => [Some(rd), Some(rs1), None],
        Instr::Shuffle2 { rd, rs1, rs2 } => [Some(rd), Some(rs1), Some(rs2)],
        _ => [None; 3],
    }
}

/// The registers that an instruction writes.
fn writes(instr: &Instr) -> Writes {
    let computed = |rd| Writes { computed: Some(rd), loaded: None };
    match *instr {
        Instr::Load { rd, rs1, mode, .. } => {
            Writes { computed: (mode == Mode::PostIncrement).then_some(rs1), loaded: Some(rd) }
        }
        Instr::Store { rs1, mode: Mode::PostIncrement, .. } => computed(rs1),
        Instr::LoadReserved { rd, .. }
        | Instr::StoreConditional { rd, .. }
        | Instr::Amo { rd, .. } => Writes { computed: None, loaded: Some(rd) },
        Instr::Lui { rd, .. }
        | Instr::Auipc { rd, .. }
        | Instr::Jal { rd, .. }
        | Instr::Jalr { rd, .. }
        | Instr::OpImm { rd, .. }
        | Instr::Op { rd, .. }
        | Instr::MulDiv { rd, .. }
        | Instr::Csr { rd, .. }
        | Instr::Extract { rd, .. }
        | Instr::Insert { rd, .. }
        | Instr::MulLow16 { rd, .. }
        | Instr::MulHigh16 { rd, .. }
        | Instr::PackLow { rd, .. }
        | Instr::PackHigh { rd, .. }
        | Instr::Shuffle { rd, .. }
        | Instr::Shuffle2 { rd, .. } => computed(rd),
        _ => Writes::default(),
    }
}

fn holds(condition: Condition, a: u32, b: u32) -> bool {
    match condition {
        Condition::Eq => a == b,
        Condition::Ne => a != b,
        Condition::Lt => (a as i32) < b as i32,
        Condition::Ge => a as i32 >= b as i32,
        Condition::Ltu => a < b,
        Condition::Geu => a >= b,
    }
}

fn alu(op: Alu, a: u32, b: u32) -> u32 {
    match op {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Sll => a << (b & 31),
        Alu::Slt => u32::from((a as i32) < b as i32),
        Alu::Sltu => u32::from(a < b),
        Alu::Xor => a ^ b,
        Alu::Srl => a >> (b & 31),
        Alu::Sra => (a as i32 >> (b & 31)) as u32,
        Alu::Or => a | b,
        Alu::And => a & b,
    }
}

fn mul_div(op: MulDiv, a: u32, b: u32) -> u32 {
    let signed = |v: u32| i64::from(v as i32);
    match op {
        MulDiv::Mul => a.wrapping_mul(b),
        MulDiv::Mulh => (signed(a).wrapping_mul(signed(b)) >> 32) as u32,
        MulDiv::Mulhsu => (signed(a).wrapping_mul(i64::from(b)) >> 32) as u32,
        MulDiv::Mulhu => ((u64::from(a) * u64::from(b)) >> 32) as u32,
        // Division by zero gives all ones, and its remainder is the dividend.
        MulDiv::Div if b == 0 => u32::MAX,
        MulDiv::Rem if b == 0 => a,
        MulDiv::Div => (a as i32).wrapping_div(b as i32) as u32,
        MulDiv::Rem => (a as i32).wrapping_rem(b as i32) as u32,
        MulDiv::Divu => a.checked_div(b).unwrap_or(u32::MAX),
        MulDiv::Remu => a.checked_rem(b).unwrap_or(a),
    }
}

fn apply(op: Amo, old: u32, operand: u32) -> u32 {
    match op {
        Amo::Swap => operand,
        Amo::Add => old.wrapping_add(operand),
        Amo::Xor => old ^ operand,
        Amo::And => old & operand,
        Amo::Or => old | operand,
        Amo::Min => (old as i32).min(operand as i32) as u32,
        Amo::Max => (old as i32).max(operand as i32) as u32,
        Amo::Minu => old.min(operand),
        Amo::Maxu => old.max(operand),
    }
}

fn extend(width: Width, signed: bool, value: u32) -> u32 {
    match (width, signed) {
        (Width::Byte, true) => value as u8 as i8 as u32,
        (Width::Byte, false) => u32::from(value as u8),
        (Width::Half, true) => value as u16 as i16 as u32,
        (Width::Half, false) => u32::from(value as u16),
        (Width::Word, _) => value,
    }
}

/// The field's sign is its highest bit; of a field that passes bit 31, the bit there is repeated,
/// as by RI5CY, whose signed extraction shifts arithmetically.
fn extract(signed: bool, value: u32, bits: u32, position: u32) -> u32 {
    let unused = 32 - bits.clamp(1, 32);
    let position = position & 31;
    if signed {
        ((value as i32 >> position) << unused >> unused) as u32
    } else {
        value >> position << unused >> unused
    }
}
