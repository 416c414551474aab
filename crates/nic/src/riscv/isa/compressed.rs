//! Words of 16 bits (the C extension, RV32), expanded to the instructions that they stand for.
//!
//! The three quadrants are those of the specification's listing of RVC. A reserved encoding is
//! illegal; a hint does nothing, and expands to an instruction that does nothing.

use super::{Alu, Condition, Instr, Mode, Offset, Reg, Width};

#[derive(Clone, Copy)]
struct Half(u32);

impl Half {
    fn bits(self, high: u32, low: u32) -> u32 {
        (self.0 >> low) & ((1 << (high - low + 1)) - 1)
    }

    /// Bits `high..=low` of the word, moved to bit `to`.
    fn at(self, high: u32, low: u32, to: u32) -> u32 {
        self.bits(high, low) << to
    }

    fn rd(self) -> Reg {
        Reg::new(self.bits(11, 7))
    }

    fn rs2(self) -> Reg {
        Reg::new(self.bits(6, 2))
    }

    /// The register x8 to x15 in bits 9:7.
    fn rs1_short(self) -> Reg {
        Reg::new(8 + self.bits(9, 7))
    }

    /// The register x8 to x15 in bits 4:2.
    fn rs2_short(self) -> Reg {
        Reg::new(8 + self.bits(4, 2))
    }

    fn imm6(self) -> i32 {
        sign_extend(self.at(12, 12, 5) | self.bits(6, 2), 6)
    }

    /// The offset of `c.j` and `c.jal`.
    fn imm_jump(self) -> i32 {
        let imm = self.at(12, 12, 11)
            | self.at(11, 11, 4)
            | self.at(10, 9, 8)
            | self.at(8, 8, 10)
            | self.at(7, 7, 6)
            | self.at(6, 6, 7)
            | self.at(5, 3, 1)
            | self.at(2, 2, 5);
        sign_extend(imm, 12)
    }

    fn imm_branch(self) -> i32 {
        let imm = self.at(12, 12, 8)
            | self.at(11, 10, 3)
            | self.at(6, 5, 6)
            | self.at(4, 3, 1)
            | self.at(2, 2, 5);
        sign_extend(imm, 9)
    }

    /// The offset of `c.lw` and `c.sw`.
    fn imm_word(self) -> i32 {
        (self.at(12, 10, 3) | self.at(6, 6, 2) | self.at(5, 5, 6)) as i32
    }
}

fn sign_extend(value: u32, bits: u32) -> i32 {
    let unused = 32 - bits;
    ((value << unused) as i32) >> unused
}

fn load_word(rd: Reg, rs1: Reg, offset: i32) -> Instr {
    let offset = Offset::Imm(offset);
    Instr::Load { width: Width::Word, signed: true, rd, rs1, offset, mode: Mode::Plain }
}

fn store_word(rs2: Reg, rs1: Reg, offset: i32) -> Instr {
    let offset = Offset::Imm(offset);
    Instr::Store { width: Width::Word, rs2, rs1, offset, mode: Mode::Plain }
}

fn add_imm(rd: Reg, rs1: Reg, imm: i32) -> Instr {
    Instr::OpImm { op: Alu::Add, rd, rs1, imm }
}

/// The instruction that `half` stands for.
pub(super) fn expand(half: u32) -> Option<Instr> {
    let h = Half(half);
    match h.bits(1, 0) {
        0 => quadrant_0(h),
        1 => quadrant_1(h),
        _ => quadrant_2(h),
    }
}

fn quadrant_0(h: Half) -> Option<Instr> {
    match h.bits(15, 13) {
        0 => {
            let imm = h.at(12, 11, 4) | h.at(10, 7, 6) | h.at(6, 6, 2) | h.at(5, 5, 3);
            // Zero is reserved, so that a word of zeroes is illegal.
            (imm != 0).then(|| add_imm(h.rs2_short(), Reg::SP, imm as i32))
        }
        2 => Some(load_word(h.rs2_short(), h.rs1_short(), h.imm_word())),
        6 => Some(store_word(h.rs2_short(), h.rs1_short(), h.imm_word())),
        // Floating point, and reserved.
        _ => None,
    }
}

fn quadrant_1(h: Half) -> Option<Instr> {
    match h.bits(15, 13) {
        0 => Some(add_imm(h.rd(), h.rd(), h.imm6())),
        1 => Some(Instr::Jal { rd: Reg::RA, offset: h.imm_jump() }),
        2 => Some(add_imm(h.rd(), Reg::ZERO, h.imm6())),
        3 if h.rd() == Reg::SP => {
            let imm =
                h.at(12, 12, 9) | h.at(6, 6, 4) | h.at(5, 5, 6) | h.at(4, 3, 7) | h.at(2, 2, 5);
            (imm != 0).then(|| add_imm(Reg::SP, Reg::SP, sign_extend(imm, 10)))
        }
        3 => {
            let imm = (h.imm6() as u32) << 12;
            (imm != 0).then(|| Instr::Lui { rd: h.rd(), imm })
        }
        4 => arithmetic(h),
        5 => Some(Instr::Jal { rd: Reg::ZERO, offset: h.imm_jump() }),
        6 => Some(branch(h, Condition::Eq)),
        _ => Some(branch(h, Condition::Ne)),
    }
}

fn branch(h: Half, condition: Condition) -> Instr {
    let (rs1, rs2) = (h.rs1_short(), Reg::ZERO);
    Instr::Branch { condition, rs1, rs2, offset: h.imm_branch() }
}

fn arithmetic(h: Half) -> Option<Instr> {
    let rd = h.rs1_short();
    let shift = |op| {
        // A shift by 32 or more is reserved on RV32.
        (h.bits(12, 12) == 0).then(|| Instr::OpImm { op, rd, rs1: rd, imm: h.imm6() & 31 })
    };
    match h.bits(11, 10) {
        0 => shift(Alu::Srl),
        1 => shift(Alu::Sra),
        2 => Some(Instr::OpImm { op: Alu::And, rd, rs1: rd, imm: h.imm6() }),
        _ => {
            if h.bits(12, 12) == 1 {
                return None;
            }
            let op = match h.bits(6, 5) {
                0 => Alu::Sub,
                1 => Alu::Xor,
                2 => Alu::Or,
                _ => Alu::And,
            };
            Some(Instr::Op { op, rd, rs1: rd, rs2: h.rs2_short() })
        }
    }
}

fn quadrant_2(h: Half) -> Option<Instr> {
    let (rd, rs2) = (h.rd(), h.rs2());
    match h.bits(15, 13) {
        0 => (h.bits(12, 12) == 0).then(|| Instr::OpImm {
            op: Alu::Sll,
            rd,
            rs1: rd,
            imm: h.bits(6, 2) as i32,
        }),
        2 => {
            let offset = h.at(12, 12, 5) | h.at(6, 4, 2) | h.at(3, 2, 6);
            (rd != Reg::ZERO).then(|| load_word(rd, Reg::SP, offset as i32))
        }
        4 => match (h.bits(12, 12), rd == Reg::ZERO, rs2 == Reg::ZERO) {
            (0, true, true) => None,
            (0, false, true) => Some(Instr::Jalr { rd: Reg::ZERO, rs1: rd, offset: 0 }),
            (0, _, false) => Some(Instr::Op { op: Alu::Add, rd, rs1: Reg::ZERO, rs2 }),
            (_, true, true) => Some(Instr::Ebreak),
            (_, false, true) => Some(Instr::Jalr { rd: Reg::RA, rs1: rd, offset: 0 }),
            _ => Some(Instr::Op { op: Alu::Add, rd, rs1: rd, rs2 }),
        },
        6 => {
            let offset = h.at(12, 9, 2) | h.at(8, 7, 6);
            Some(store_word(rs2, Reg::SP, offset as i32))
        }
        _ => None,
    }
}
