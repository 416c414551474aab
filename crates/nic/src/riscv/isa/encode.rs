//! Instructions as words of 32 bits. Tests use it against the decoder, and generated programs are
//! made with it.

use super::{
    Alu, Amo, Condition, CsrOp, CsrSource, Instr, LoopCount, Mode, MulDiv, Offset, Reg, Width,
};

fn reg(r: Reg, at: u32) -> u32 {
    (r.number() as u32) << at
}

fn r_type(opcode: u32, funct3: u32, funct7: u32, rd: Reg, rs1: Reg, rs2: Reg) -> u32 {
    opcode | reg(rd, 7) | funct3 << 12 | reg(rs1, 15) | reg(rs2, 20) | funct7 << 25
}

fn i_type(opcode: u32, funct3: u32, rd: Reg, rs1: Reg, imm: i32) -> u32 {
    opcode | reg(rd, 7) | funct3 << 12 | reg(rs1, 15) | (imm as u32) << 20
}

fn s_type(opcode: u32, funct3: u32, rs1: Reg, rs2: Reg, imm: i32) -> u32 {
    let imm = imm as u32;
    opcode | (imm & 31) << 7 | funct3 << 12 | reg(rs1, 15) | reg(rs2, 20) | (imm >> 5 & 0x7f) << 25
}

fn b_type(funct3: u32, rs1: Reg, rs2: u32, offset: i32) -> u32 {
    let imm = offset as u32;
    0x63 | (imm >> 11 & 1) << 7
        | (imm >> 1 & 15) << 8
        | funct3 << 12
        | reg(rs1, 15)
        | (rs2 & 31) << 20
        | (imm >> 5 & 0x3f) << 25
        | (imm >> 12 & 1) << 31
}

fn j_type(rd: Reg, offset: i32) -> u32 {
    let imm = offset as u32;
    0x6f | reg(rd, 7)
        | (imm >> 12 & 0xff) << 12
        | (imm >> 11 & 1) << 20
        | (imm >> 1 & 0x3ff) << 21
        | (imm >> 20 & 1) << 31
}

/// The word of `instr`. Numbers that do not fit their field are truncated to it.
#[must_use]
pub fn encode(instr: &Instr) -> u32 {
    match *instr {
        Instr::Lui { rd, imm } => 0x37 | reg(rd, 7) | imm & 0xffff_f000,
        Instr::Auipc { rd, imm } => 0x17 | reg(rd, 7) | imm & 0xffff_f000,
        Instr::Jal { rd, offset } => j_type(rd, offset),
        Instr::Jalr { rd, rs1, offset } => i_type(0x67, 0, rd, rs1, offset),
        Instr::Branch { condition, rs1, rs2, offset } => {
            b_type(condition_bits(condition), rs1, rs2.number() as u32, offset)
        }
        Instr::BranchImm { equal, rs1, imm, offset } => {
            b_type(if equal { 2 } else { 3 }, rs1, imm as u32, offset)
        }
        Instr::Load { .. } | Instr::Store { .. } => memory(instr),
        Instr::OpImm { op, rd, rs1, imm } => op_imm(op, rd, rs1, imm),
        Instr::Op { op, rd, rs1, rs2 } => {
            let (funct3, funct7) = alu_bits(op);
            r_type(0x33, funct3, funct7, rd, rs1, rs2)
        }
        Instr::MulDiv { op, rd, rs1, rs2 } => r_type(0x33, mul_bits(op), 1, rd, rs1, rs2),
        Instr::LoadReserved { rd, rs1 } => r_type(0x2f, 2, 2 << 2, rd, rs1, Reg::ZERO),
        Instr::StoreConditional { rd, rs1, rs2 } => r_type(0x2f, 2, 3 << 2, rd, rs1, rs2),
        Instr::Amo { op, rd, rs1, rs2 } => r_type(0x2f, 2, amo_bits(op) << 2, rd, rs1, rs2),
        Instr::Fence => 0x0ff0_000f,
        Instr::FenceI => 0x0000_100f,
        Instr::Ecall => 0x0000_0073,
        Instr::Ebreak => 0x0010_0073,
        Instr::Csr { op, rd, source, csr } => csr_word(op, rd, source, csr),
        _ => xpulp(instr),
    }
}

fn condition_bits(condition: Condition) -> u32 {
    match condition {
        Condition::Eq => 0,
        Condition::Ne => 1,
        Condition::Lt => 4,
        Condition::Ge => 5,
        Condition::Ltu => 6,
        Condition::Geu => 7,
    }
}

fn alu_bits(op: Alu) -> (u32, u32) {
    match op {
        Alu::Add => (0, 0),
        Alu::Sub => (0, 0x20),
        Alu::Sll => (1, 0),
        Alu::Slt => (2, 0),
        Alu::Sltu => (3, 0),
        Alu::Xor => (4, 0),
        Alu::Srl => (5, 0),
        Alu::Sra => (5, 0x20),
        Alu::Or => (6, 0),
        Alu::And => (7, 0),
    }
}

fn op_imm(op: Alu, rd: Reg, rs1: Reg, imm: i32) -> u32 {
    let (funct3, funct7) = alu_bits(op);
    match op {
        Alu::Sll | Alu::Srl | Alu::Sra => {
            r_type(0x13, funct3, funct7, rd, rs1, Reg::new(imm as u32))
        }
        _ => i_type(0x13, funct3, rd, rs1, imm),
    }
}

fn mul_bits(op: MulDiv) -> u32 {
    match op {
        MulDiv::Mul => 0,
        MulDiv::Mulh => 1,
        MulDiv::Mulhsu => 2,
        MulDiv::Mulhu => 3,
        MulDiv::Div => 4,
        MulDiv::Divu => 5,
        MulDiv::Rem => 6,
        MulDiv::Remu => 7,
    }
}

fn amo_bits(op: Amo) -> u32 {
    match op {
        Amo::Swap => 0x01,
        Amo::Add => 0x00,
        Amo::Xor => 0x04,
        Amo::And => 0x0c,
        Amo::Or => 0x08,
        Amo::Min => 0x10,
        Amo::Max => 0x14,
        Amo::Minu => 0x18,
        Amo::Maxu => 0x1c,
    }
}

fn csr_word(op: CsrOp, rd: Reg, source: CsrSource, csr: u32) -> u32 {
    let op = match op {
        CsrOp::Write => 1,
        CsrOp::Set => 2,
        CsrOp::Clear => 3,
    };
    match source {
        CsrSource::Reg(rs1) => i_type(0x73, op, rd, rs1, csr as i32),
        CsrSource::Imm(imm) => i_type(0x73, op | 4, rd, Reg::new(imm), csr as i32),
    }
}

fn width_bits(width: Width) -> u32 {
    match width {
        Width::Byte => 0,
        Width::Half => 1,
        Width::Word => 2,
    }
}

fn memory(instr: &Instr) -> u32 {
    match *instr {
        Instr::Load { width, signed, rd, rs1, offset, mode } => {
            let opcode = if mode == Mode::Plain { 0x03 } else { 0x0b };
            let unsigned = u32::from(!signed);
            match offset {
                Offset::Imm(imm) => i_type(opcode, width_bits(width) | unsigned << 2, rd, rs1, imm),
                Offset::Reg(rs2) => {
                    let funct7 = width_bits(width) << 3 | unsigned << 5;
                    r_type(opcode, 7, funct7, rd, rs1, rs2)
                }
            }
        }
        Instr::Store { width, rs2, rs1, offset, mode } => {
            let opcode = if mode == Mode::Plain { 0x23 } else { 0x2b };
            match offset {
                Offset::Imm(imm) => s_type(opcode, width_bits(width), rs1, rs2, imm),
                Offset::Reg(rs3) => r_type(opcode, width_bits(width) | 4, 0, rs3, rs1, rs2),
            }
        }
        _ => 0,
    }
}

fn loop_word(funct3: u32, id: usize, rs1: u32, wide: u32) -> u32 {
    0x7b | (id as u32 & 1) << 7 | funct3 << 12 | (rs1 & 31) << 15 | wide << 20
}

fn xpulp(instr: &Instr) -> u32 {
    let vector = |which: u32, low: u32, funct3: u32, rd, rs1, rs2| {
        r_type(0x57, funct3, which << 1 | low, rd, rs1, rs2)
    };
    let field = |funct3: u32, rd, rs1, bits: u32, position: u32| {
        r_type(0x33, funct3, 0x60 | (bits.wrapping_sub(1) & 31), rd, rs1, Reg::new(position))
    };
    match *instr {
        Instr::LoopStart { id, offset } => loop_word(0, id, 0, offset >> 1),
        Instr::LoopEnd { id, offset } => loop_word(1, id, 0, offset >> 1),
        Instr::LoopCount { id, count: LoopCount::Reg(rs1) } => {
            loop_word(2, id, rs1.number() as u32, 0)
        }
        Instr::LoopCount { id, count: LoopCount::Imm(count) } => loop_word(3, id, 0, count),
        Instr::LoopSetup { id, count: LoopCount::Reg(rs1), offset } => {
            loop_word(4, id, rs1.number() as u32, offset >> 1)
        }
        Instr::LoopSetup { id, count: LoopCount::Imm(count), offset } => {
            loop_word(5, id, offset >> 1, count)
        }
        Instr::Extract { signed, rd, rs1, bits, position } => {
            field(u32::from(!signed), rd, rs1, bits, position)
        }
        Instr::Insert { rd, rs1, bits, position } => field(2, rd, rs1, bits, position),
        Instr::PackLow { rd, rs1, rs2 } => vector(0x34, 0, 0, rd, rs1, rs2),
        Instr::PackHigh { rd, rs1, rs2 } => vector(0x34, 1, 0, rd, rs1, rs2),
        Instr::Shuffle { rd, rs1, rs2 } => vector(0x30, 0, 1, rd, rs1, rs2),
        Instr::Shuffle2 { rd, rs1, rs2 } => vector(0x32, 0, 1, rd, rs1, rs2),
        // The others are not of Xpulp.
        _ => 0,
    }
}
