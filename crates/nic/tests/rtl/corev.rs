//! Xpulp instructions in the encodings of CV32E40P (its manual, chapter "CORE-V instruction set
//! custom extensions"). They do the same as RI5CY's, and stand at the same addresses.

use fieldstone_nic::riscv::isa::{Instr, LoopCount, Mode, Offset, Reg, Width, decode, encode};

/// A text with the words of CV32E40P. The text is read from its start, one instruction after the
/// other.
pub fn translate(text: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    let mut at = 0;
    while at + 4 <= text.len() {
        let is_long = text[at] & 3 == 3;
        let found = u32::from_le_bytes(text[at..at + 4].try_into().unwrap());
        if is_long && let Some(word) = decode(found).and_then(|decoded| word(&decoded.instr)) {
            text[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        at += if is_long { 4 } else { 2 };
    }
    text
}

fn r_type(opcode: u32, funct3: u32, funct7: u32, rd: Reg, rs1: Reg, rs2: Reg) -> u32 {
    let reg = |r: Reg, at: u32| (r.number() as u32) << at;
    opcode | reg(rd, 7) | funct3 << 12 | reg(rs1, 15) | reg(rs2, 20) | funct7 << 25
}

/// The word of an instruction that differs; `None` for all others.
fn word(instr: &Instr) -> Option<u32> {
    let vector = |five: u32, low: u32, funct3, rd, rs1, rs2| {
        Some(r_type(0x7b, funct3, five << 2 | low, rd, rs1, rs2))
    };
    let field = |which: u32, rd, rs1, bits: u32, position: u32| {
        let funct7 = which << 5 | (bits - 1) & 31;
        Some(r_type(0x5b, 0, funct7, rd, rs1, Reg::new(position)))
    };
    match *instr {
        Instr::Load { width, signed, rd, rs1, offset: Offset::Reg(rs2), mode } => {
            let funct7 = width_bits(width) | plain(mode) << 2 | u32::from(!signed) << 3;
            // A word is neither.
            let funct7 = if width == Width::Word { funct7 & 7 } else { funct7 };
            Some(r_type(0x2b, 3, funct7, rd, rs1, rs2))
        }
        Instr::Store { width, rs2, rs1, offset: Offset::Reg(rs3), mode } => {
            Some(r_type(0x2b, 3, 0x10 | width_bits(width) | plain(mode) << 2, rs3, rs1, rs2))
        }
        Instr::BranchImm { equal, .. } => {
            let funct3 = if equal { 6 } else { 7 };
            Some(encode(instr) & !0x707f | 0x0b | funct3 << 12)
        }
        Instr::LoopStart { id, offset } => Some(loop_word(0, id, 0, offset >> 2)),
        Instr::LoopEnd { id, offset } => Some(loop_word(2, id, 0, after(offset))),
        Instr::LoopCount { id, count: LoopCount::Imm(count) } => Some(loop_word(4, id, 0, count)),
        Instr::LoopCount { id, count: LoopCount::Reg(rs1) } => Some(loop_word(5, id, at(rs1), 0)),
        Instr::LoopSetup { id, count: LoopCount::Imm(count), offset } => {
            Some(loop_word(6, id, after(offset), count))
        }
        Instr::LoopSetup { id, count: LoopCount::Reg(rs1), offset } => {
            Some(loop_word(7, id, at(rs1), after(offset)))
        }
        Instr::Extract { signed: true, rd, rs1, bits, position } => {
            field(0, rd, rs1, bits, position)
        }
        Instr::Extract { signed: false, rd, rs1, bits, position } => {
            field(1, rd, rs1, bits, position)
        }
        Instr::Insert { rd, rs1, bits, position } => field(2, rd, rs1, bits, position),
        Instr::MulLow16 { rd, rs1, rs2 } => Some(r_type(0x5b, 5, 0, rd, rs1, rs2)),
        Instr::MulHigh16 { rd, rs1, rs2 } => Some(r_type(0x5b, 5, 0x20, rd, rs1, rs2)),
        Instr::PackLow { rd, rs1, rs2 } => vector(0x1e, 0, 0, rd, rs1, rs2),
        Instr::PackHigh { rd, rs1, rs2 } => vector(0x1e, 1, 0, rd, rs1, rs2),
        Instr::Shuffle { rd, rs1, rs2 } => vector(0x18, 0, 1, rd, rs1, rs2),
        Instr::Shuffle2 { rd, rs1, rs2 } => vector(0x1c, 0, 1, rd, rs1, rs2),
        _ => None,
    }
}

fn width_bits(width: Width) -> u32 {
    match width {
        Width::Byte => 0,
        Width::Half => 1,
        Width::Word => 2,
    }
}

/// 1 for an access that leaves its base as it is.
fn plain(mode: Mode) -> u32 {
    u32::from(mode == Mode::Plain)
}

/// The instruction after the last one of a loop's body, in words from the setup.
fn after(offset: u32) -> u32 {
    (offset + 4) >> 2
}

fn at(r: Reg) -> u32 {
    r.number() as u32
}

fn loop_word(which: u32, id: usize, rs1: u32, wide: u32) -> u32 {
    0x2b | (id as u32 & 1) << 7 | which << 8 | 4 << 12 | (rs1 & 31) << 15 | wide << 20
}
