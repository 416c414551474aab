//! The part of Xpulp that the firmware uses, with RI5CY's encodings (the version of PsPIN).
//!
//! | opcode | instructions |
//! |---|---|
//! | 0x03, funct3 7 | loads with a register as offset; funct7: 0 lb, 0x08 lh, 0x10 lw, 0x20 lbu, 0x28 lhu |
//! | 0x0b | loads that increment; funct3 as plain loads, or 7 with a register as offset |
//! | 0x23 with bit 14 | stores with a register as offset, whose number is where rd is |
//! | 0x2b | stores that increment, with an immediate or (bit 14) a register |
//! | 0x33, bits 31:30 = 11 | funct3 0 `p.extract`, 1 `p.extractu`, 2 `p.insert` |
//! | 0x57 | `pv.*`; bits 31:26 say which, bit 12 says bytes |
//! | 0x63, funct3 2 and 3 | `p.beqimm`, `p.bneimm`; the number is where rs2 is |
//! | 0x7b | hardware loops; bit 7 says which of the two |

use super::decode::{Fields, load_kind, store_width};
use super::{Instr, LoopCount, Mode, Offset, Width};

/// Decodes a word of 32 bits that is not RV32IMA.
pub(super) fn decode(word: u32) -> Option<Instr> {
    let f = Fields(word);
    match f.opcode() {
        0x03 if f.funct3() == 7 => load_by_register(f, Mode::Plain),
        0x0b if f.funct3() == 7 => load_by_register(f, Mode::PostIncrement),
        0x0b => {
            let (width, signed) = load_kind(f.funct3())?;
            let (offset, mode) = (Offset::Imm(f.imm_i()), Mode::PostIncrement);
            Some(Instr::Load { width, signed, rd: f.rd(), rs1: f.rs1(), offset, mode })
        }
        0x23 => store(f, Mode::Plain),
        0x2b => store(f, Mode::PostIncrement),
        0x33 => bit_fields(f),
        0x57 => vector(f),
        0x63 => branch_imm(f),
        0x7b => hardware_loop(f),
        _ => None,
    }
}

fn load_by_register(f: Fields, mode: Mode) -> Option<Instr> {
    let (width, signed) = match f.funct7() {
        0x00 => (Width::Byte, true),
        0x08 => (Width::Half, true),
        0x10 => (Width::Word, true),
        0x20 => (Width::Byte, false),
        0x28 => (Width::Half, false),
        _ => return None,
    };
    let offset = Offset::Reg(f.rs2());
    Some(Instr::Load { width, signed, rd: f.rd(), rs1: f.rs1(), offset, mode })
}

fn store(f: Fields, mode: Mode) -> Option<Instr> {
    let width = store_width(f.funct3() & 3)?;
    let offset = if f.funct3() & 4 == 0 {
        Offset::Imm(f.imm_s())
    } else if f.funct7() == 0 {
        Offset::Reg(f.rd())
    } else {
        return None;
    };
    Some(Instr::Store { width, rs2: f.rs2(), rs1: f.rs1(), offset, mode })
}

/// A field has `bits` bits, 1 to 32, from `position` up. RI5CY takes as many of them as the word
/// has.
fn bit_fields(f: Fields) -> Option<Instr> {
    if f.bits(31, 30) != 3 {
        return None;
    }
    let (rd, rs1) = (f.rd(), f.rs1());
    let (bits, position) = (f.bits(29, 25) + 1, f.bits(24, 20));
    match f.funct3() {
        0 => Some(Instr::Extract { signed: true, rd, rs1, bits, position }),
        1 => Some(Instr::Extract { signed: false, rd, rs1, bits, position }),
        2 => Some(Instr::Insert { rd, rs1, bits, position }),
        _ => None,
    }
}

fn vector(f: Fields) -> Option<Instr> {
    let (rd, rs1, rs2) = (f.rd(), f.rs1(), f.rs2());
    match (f.bits(31, 26), f.funct3(), f.bits(25, 25)) {
        (0x34, 0, 0) => Some(Instr::PackLow { rd, rs1, rs2 }),
        (0x34, 0, 1) => Some(Instr::PackHigh { rd, rs1, rs2 }),
        (0x30, 1, 0) => Some(Instr::Shuffle { rd, rs1, rs2 }),
        (0x32, 1, 0) => Some(Instr::Shuffle2 { rd, rs1, rs2 }),
        _ => None,
    }
}

fn branch_imm(f: Fields) -> Option<Instr> {
    let equal = match f.funct3() {
        2 => true,
        3 => false,
        _ => return None,
    };
    let imm = (f.bits(24, 20) << 27) as i32 >> 27;
    Some(Instr::BranchImm { equal, rs1: f.rs1(), imm, offset: f.imm_b() })
}

fn hardware_loop(f: Fields) -> Option<Instr> {
    if f.bits(11, 8) != 0 {
        return None;
    }
    let id = f.bits(7, 7) as usize;
    let wide = f.bits(31, 20);
    let no_rs1 = f.rs1() == super::Reg::ZERO;
    match f.funct3() {
        0 if no_rs1 => Some(Instr::LoopStart { id, offset: wide << 1 }),
        1 if no_rs1 => Some(Instr::LoopEnd { id, offset: wide << 1 }),
        2 if wide == 0 => Some(Instr::LoopCount { id, count: LoopCount::Reg(f.rs1()) }),
        3 if no_rs1 => Some(Instr::LoopCount { id, count: LoopCount::Imm(wide) }),
        4 => Some(Instr::LoopSetup { id, count: LoopCount::Reg(f.rs1()), offset: wide << 1 }),
        5 => {
            Some(Instr::LoopSetup { id, count: LoopCount::Imm(wide), offset: f.bits(19, 15) << 1 })
        }
        _ => None,
    }
}
