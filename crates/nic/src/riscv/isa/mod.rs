//! Instructions of the handler cores: RV32IMAC and a part of RI5CY's Xpulp extensions.
//!
//! A word becomes an [`Instr`], or it is illegal. Sources: the RISC-V unprivileged specification
//! (chapters RV32I, M, A, C and Zicsr, and its table of opcodes), and for Xpulp the manual and the
//! decoder of RI5CY, the core of PsPIN. Xpulp instructions of this subset:
//!
//! | assembly | meaning |
//! |---|---|
//! | `p.lbu rd, imm(rs1!)`, `p.lbu rd, rs2(rs1!)` and lb, lh, lhu, lw | load at rs1, then add |
//! | `p.lbu rd, rs2(rs1)` and the others | load at rs1 + rs2 |
//! | `p.sb rs2, imm(rs1!)`, `p.sb rs2, rs3(rs1!)` and sh, sw | store at rs1, then add |
//! | `p.sb rs2, rs3(rs1)` and the others | store at rs1 + rs3 |
//! | `lp.starti`, `lp.endi`, `lp.count`, `lp.counti`, `lp.setup`, `lp.setupi` | hardware loops |
//! | `p.extract`, `p.extractu`, `p.insert` | fields of bits, by immediates |
//! | `p.beqimm`, `p.bneimm` | branch on a small number |
//! | `pv.pack.h`, `pv.pack.h.h`, `pv.shuffle.b`, `pv.shuffle2.b` | halves and bytes of words |
//!
//! A hardware loop's end address is the address of its **last** instruction, as in RI5CY. (Its
//! descendant CV32E40P names the instruction after the last, and has other encodings.)
//!
//! | module | idea |
//! |---|---|
//! | `decode` | words of 32 bits |
//! | `xpulp` | the words of 32 bits that are Xpulp |
//! | `compressed` | words of 16 bits, expanded to their long form |
//! | `encode` | the way back, for tests and generated programs |

mod compressed;
mod decode;
mod encode;
mod xpulp;

pub use decode::decode;
pub use encode::encode;

/// A register, x0 to x31. x0 reads as zero, and writes to it are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reg(u8);

impl Reg {
    /// x0.
    pub const ZERO: Reg = Reg(0);
    /// x1, the return address.
    pub const RA: Reg = Reg(1);
    /// x2, the stack pointer.
    pub const SP: Reg = Reg(2);
    /// x10, the first argument and the result.
    pub const A0: Reg = Reg(10);

    /// Register `x{number & 31}`.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self((number & 31) as u8)
    }

    /// The number, 0 to 31.
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize
    }
}

/// The condition of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less, signed.
    Lt,
    /// Greater or equal, signed.
    Ge,
    /// Less, unsigned.
    Ltu,
    /// Greater or equal, unsigned.
    Geu,
}

/// Bytes of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One byte.
    Byte,
    /// Two bytes.
    Half,
    /// Four bytes.
    Word,
}

impl Width {
    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Width::Byte => 1,
            Width::Half => 2,
            Width::Word => 4,
        }
    }
}

/// The offset of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offset {
    /// A number in the instruction.
    Imm(i32),
    /// A register (Xpulp).
    Reg(Reg),
}

/// When a load or store adds its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The address is base + offset.
    Plain,
    /// The address is base; base becomes base + offset (Xpulp).
    PostIncrement,
}

/// An operation of two operands that takes one cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Alu {
    Add,
    Sub,
    Sll,
    Slt,
    Sltu,
    Xor,
    Srl,
    Sra,
    Or,
    And,
}

/// An operation of the M extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MulDiv {
    Mul,
    Mulh,
    Mulhsu,
    Mulhu,
    Div,
    Divu,
    Rem,
    Remu,
}

/// An atomic operation of the A extension, on words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Amo {
    Swap,
    Add,
    Xor,
    And,
    Or,
    Min,
    Max,
    Minu,
    Maxu,
}

/// What an access to a control and status register does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsrOp {
    /// Write.
    Write,
    /// Set bits.
    Set,
    /// Clear bits.
    Clear,
}

/// The source of a CSR instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsrSource {
    /// A register.
    Reg(Reg),
    /// A number of 5 bits.
    Imm(u32),
}

/// The count of a hardware loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopCount {
    /// A register.
    Reg(Reg),
    /// A number of 12 bits.
    Imm(u32),
}

/// One instruction. Offsets of jumps, branches and loops are in bytes from the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Instr {
    Lui { rd: Reg, imm: u32 },
    Auipc { rd: Reg, imm: u32 },
    Jal { rd: Reg, offset: i32 },
    Jalr { rd: Reg, rs1: Reg, offset: i32 },
    Branch { condition: Condition, rs1: Reg, rs2: Reg, offset: i32 },
    BranchImm { equal: bool, rs1: Reg, imm: i32, offset: i32 },
    Load { width: Width, signed: bool, rd: Reg, rs1: Reg, offset: Offset, mode: Mode },
    Store { width: Width, rs2: Reg, rs1: Reg, offset: Offset, mode: Mode },
    OpImm { op: Alu, rd: Reg, rs1: Reg, imm: i32 },
    Op { op: Alu, rd: Reg, rs1: Reg, rs2: Reg },
    MulDiv { op: MulDiv, rd: Reg, rs1: Reg, rs2: Reg },
    LoadReserved { rd: Reg, rs1: Reg },
    StoreConditional { rd: Reg, rs1: Reg, rs2: Reg },
    Amo { op: Amo, rd: Reg, rs1: Reg, rs2: Reg },
    Fence,
    FenceI,
    Ecall,
    Ebreak,
    Csr { op: CsrOp, rd: Reg, source: CsrSource, csr: u32 },
    LoopStart { id: usize, offset: u32 },
    LoopEnd { id: usize, offset: u32 },
    LoopCount { id: usize, count: LoopCount },
    LoopSetup { id: usize, count: LoopCount, offset: u32 },
    Extract { signed: bool, rd: Reg, rs1: Reg, bits: u32, position: u32 },
    Insert { rd: Reg, rs1: Reg, bits: u32, position: u32 },
    PackLow { rd: Reg, rs1: Reg, rs2: Reg },
    PackHigh { rd: Reg, rs1: Reg, rs2: Reg },
    Shuffle { rd: Reg, rs1: Reg, rs2: Reg },
    Shuffle2 { rd: Reg, rs1: Reg, rs2: Reg },
}

/// A decoded instruction and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The instruction.
    pub instr: Instr,
    /// Bytes that it takes: 2 or 4.
    pub len_bytes: u32,
}
