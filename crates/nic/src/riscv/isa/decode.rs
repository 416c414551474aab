//! Words of 32 bits: RV32I, M, A, Zicsr and Zifencei. The layouts of the fields are those of the
//! specification's figure of instruction formats.

use super::{
    Alu, Amo, Condition, CsrOp, CsrSource, Decoded, Instr, Mode, MulDiv, Offset, Reg, Width,
    compressed, xpulp,
};

/// Decodes the instruction at the start of `word`. If the lowest two bits are not 11, it is the
/// lower half. `None` if no instruction of the cores has this encoding.
#[must_use]
pub fn decode(word: u32) -> Option<Decoded> {
    if word & 3 != 3 {
        let instr = compressed::expand(word & 0xffff)?;
        return Some(Decoded { instr, len_bytes: 2 });
    }
    let instr = long(word).or_else(|| xpulp::decode(word))?;
    Some(Decoded { instr, len_bytes: 4 })
}

/// The fields of a word of 32 bits.
#[derive(Clone, Copy)]
pub(super) struct Fields(pub u32);

impl Fields {
    pub fn bits(self, high: u32, low: u32) -> u32 {
        (self.0 >> low) & ((1u32 << (high - low + 1)) - 1)
    }

    pub fn opcode(self) -> u32 {
        self.bits(6, 0)
    }

    pub fn funct3(self) -> u32 {
        self.bits(14, 12)
    }

    pub fn funct7(self) -> u32 {
        self.bits(31, 25)
    }

    pub fn rd(self) -> Reg {
        Reg::new(self.0 >> 7)
    }

    pub fn rs1(self) -> Reg {
        Reg::new(self.0 >> 15)
    }

    pub fn rs2(self) -> Reg {
        Reg::new(self.0 >> 20)
    }

    pub fn imm_i(self) -> i32 {
        (self.0 as i32) >> 20
    }

    pub fn imm_s(self) -> i32 {
        ((self.0 as i32) >> 25 << 5) | self.bits(11, 7) as i32
    }

    pub fn imm_b(self) -> i32 {
        ((self.0 as i32) >> 31 << 12)
            | (self.bits(7, 7) << 11) as i32
            | (self.bits(30, 25) << 5) as i32
            | (self.bits(11, 8) << 1) as i32
    }

    pub fn imm_u(self) -> u32 {
        self.0 & 0xffff_f000
    }

    pub fn imm_j(self) -> i32 {
        ((self.0 as i32) >> 31 << 20)
            | (self.bits(19, 12) << 12) as i32
            | (self.bits(20, 20) << 11) as i32
            | (self.bits(30, 21) << 1) as i32
    }
}

fn long(word: u32) -> Option<Instr> {
    let f = Fields(word);
    match f.opcode() {
        0x37 => Some(Instr::Lui { rd: f.rd(), imm: f.imm_u() }),
        0x17 => Some(Instr::Auipc { rd: f.rd(), imm: f.imm_u() }),
        0x6f => Some(Instr::Jal { rd: f.rd(), offset: f.imm_j() }),
        0x67 if f.funct3() == 0 => {
            Some(Instr::Jalr { rd: f.rd(), rs1: f.rs1(), offset: f.imm_i() })
        }
        0x63 => branch(f),
        0x03 => load(f),
        0x23 => store(f),
        0x13 => op_imm(f),
        0x33 => op(f),
        0x2f => amo(f),
        0x0f => match f.funct3() {
            0 => Some(Instr::Fence),
            1 => Some(Instr::FenceI),
            _ => None,
        },
        0x73 => system(f),
        _ => None,
    }
}

fn branch(f: Fields) -> Option<Instr> {
    let condition = match f.funct3() {
        0 => Condition::Eq,
        1 => Condition::Ne,
        4 => Condition::Lt,
        5 => Condition::Ge,
        6 => Condition::Ltu,
        7 => Condition::Geu,
        _ => return None,
    };
    Some(Instr::Branch { condition, rs1: f.rs1(), rs2: f.rs2(), offset: f.imm_b() })
}

/// Width and sign of a load from funct3.
pub(super) fn load_kind(funct3: u32) -> Option<(Width, bool)> {
    Some(match funct3 {
        0 => (Width::Byte, true),
        1 => (Width::Half, true),
        2 => (Width::Word, true),
        4 => (Width::Byte, false),
        5 => (Width::Half, false),
        _ => return None,
    })
}

fn load(f: Fields) -> Option<Instr> {
    let (width, signed) = load_kind(f.funct3())?;
    let offset = Offset::Imm(f.imm_i());
    Some(Instr::Load { width, signed, rd: f.rd(), rs1: f.rs1(), offset, mode: Mode::Plain })
}

/// Width of a store from the lower two bits of funct3.
pub(super) fn store_width(bits: u32) -> Option<Width> {
    Some(match bits {
        0 => Width::Byte,
        1 => Width::Half,
        2 => Width::Word,
        _ => return None,
    })
}

fn store(f: Fields) -> Option<Instr> {
    let width = store_width(f.funct3())?;
    let offset = Offset::Imm(f.imm_s());
    Some(Instr::Store { width, rs2: f.rs2(), rs1: f.rs1(), offset, mode: Mode::Plain })
}

fn op_imm(f: Fields) -> Option<Instr> {
    let shift = f.rs2().number() as i32;
    let (op, imm) = match (f.funct3(), f.funct7()) {
        (0, _) => (Alu::Add, f.imm_i()),
        (2, _) => (Alu::Slt, f.imm_i()),
        (3, _) => (Alu::Sltu, f.imm_i()),
        (4, _) => (Alu::Xor, f.imm_i()),
        (6, _) => (Alu::Or, f.imm_i()),
        (7, _) => (Alu::And, f.imm_i()),
        (1, 0) => (Alu::Sll, shift),
        (5, 0) => (Alu::Srl, shift),
        (5, 0x20) => (Alu::Sra, shift),
        _ => return None,
    };
    Some(Instr::OpImm { op, rd: f.rd(), rs1: f.rs1(), imm })
}

fn op(f: Fields) -> Option<Instr> {
    let (rd, rs1, rs2) = (f.rd(), f.rs1(), f.rs2());
    if f.funct7() == 1 {
        let op = match f.funct3() {
            0 => MulDiv::Mul,
            1 => MulDiv::Mulh,
            2 => MulDiv::Mulhsu,
            3 => MulDiv::Mulhu,
            4 => MulDiv::Div,
            5 => MulDiv::Divu,
            6 => MulDiv::Rem,
            _ => MulDiv::Remu,
        };
        return Some(Instr::MulDiv { op, rd, rs1, rs2 });
    }
    let op = match (f.funct3(), f.funct7()) {
        (0, 0) => Alu::Add,
        (0, 0x20) => Alu::Sub,
        (1, 0) => Alu::Sll,
        (2, 0) => Alu::Slt,
        (3, 0) => Alu::Sltu,
        (4, 0) => Alu::Xor,
        (5, 0) => Alu::Srl,
        (5, 0x20) => Alu::Sra,
        (6, 0) => Alu::Or,
        (7, 0) => Alu::And,
        _ => return None,
    };
    Some(Instr::Op { op, rd, rs1, rs2 })
}

/// The bits aq and rl are accepted and mean nothing more: a core executes in order.
fn amo(f: Fields) -> Option<Instr> {
    if f.funct3() != 2 {
        return None;
    }
    let (rd, rs1, rs2) = (f.rd(), f.rs1(), f.rs2());
    let op = match f.bits(31, 27) {
        0x02 if rs2 == Reg::ZERO => return Some(Instr::LoadReserved { rd, rs1 }),
        0x03 => return Some(Instr::StoreConditional { rd, rs1, rs2 }),
        0x01 => Amo::Swap,
        0x00 => Amo::Add,
        0x04 => Amo::Xor,
        0x0c => Amo::And,
        0x08 => Amo::Or,
        0x10 => Amo::Min,
        0x14 => Amo::Max,
        0x18 => Amo::Minu,
        0x1c => Amo::Maxu,
        _ => return None,
    };
    Some(Instr::Amo { op, rd, rs1, rs2 })
}

fn system(f: Fields) -> Option<Instr> {
    match f.0 {
        0x0000_0073 => return Some(Instr::Ecall),
        0x0010_0073 => return Some(Instr::Ebreak),
        _ => {}
    }
    let op = match f.funct3() & 3 {
        1 => CsrOp::Write,
        2 => CsrOp::Set,
        3 => CsrOp::Clear,
        _ => return None,
    };
    let source = if f.funct3() & 4 == 0 {
        CsrSource::Reg(f.rs1())
    } else {
        CsrSource::Imm(f.rs1().number() as u32)
    };
    Some(Instr::Csr { op, rd: f.rd(), source, csr: f.bits(31, 20) })
}
