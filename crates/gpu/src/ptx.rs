//! Writes PTX, the assembly text that the driver translates for a card.
//!
//! A [`Writer`] appends instructions of one kernel and counts them. Registers are virtual: the
//! driver's assembler gives them places. The version and the target are the oldest that have all
//! instructions in use, so one text serves every card from Volta on.

use std::fmt::{self, Write};

/// A virtual register of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reg(u32);

/// A virtual register of 64 bits: an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wide(u32);

/// A virtual register of one bit: a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pred(u32);

/// A place in the code to which instructions branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(u32);

impl Reg {
    /// No register: stands for one that is written later.
    pub(crate) const NONE: Self = Self(0);
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%r{}", self.0)
    }
}

impl fmt::Display for Wide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%d{}", self.0)
    }
}

impl fmt::Display for Pred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%p{}", self.0)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.0)
    }
}

/// Functions of three bits, as `lop3` names them: bit 4a + 2b + c of the number is the function's
/// value for the bits a, b and c.
pub(crate) mod lut {
    /// a xor b xor c.
    pub(crate) const XOR: u8 = 0x96;
    /// b where c is 0, a where c is 1.
    pub(crate) const SELECT: u8 = 0xe4;
    /// a xor (b and c).
    pub(crate) const XOR_AND: u8 = 0x78;
}

/// Instructions of a kernel's body, by the unit that executes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Logic, shifts to the right and permutations of bytes: the integer unit.
    pub(crate) logic: u32,
    /// Products and shifts to the left: the multiplier, which works beside the integer unit.
    pub(crate) products: u32,
    /// Loads and stores.
    pub(crate) memory: u32,
}

impl Work {
    /// All instructions.
    pub(crate) fn total(self) -> u32 {
        self.logic + self.products + self.memory
    }

    /// The instructions behind an earlier count.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            logic: self.logic - before.logic,
            products: self.products - before.products,
            memory: self.memory - before.memory,
        }
    }
}

/// The body of a kernel as it is written. A clone is a draft that may be thrown away.
#[derive(Clone, Default)]
pub(crate) struct Writer {
    text: String,
    regs: u32,
    wides: u32,
    preds: u32,
    labels: u32,
    work: Work,
}

/// The first lines of every module.
pub(crate) const HEADER: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

impl Writer {
    pub(crate) fn reg(&mut self) -> Reg {
        self.regs += 1;
        Reg(self.regs)
    }

    pub(crate) fn wide(&mut self) -> Wide {
        self.wides += 1;
        Wide(self.wides)
    }

    pub(crate) fn pred(&mut self) -> Pred {
        self.preds += 1;
        Pred(self.preds)
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    /// The instructions so far.
    pub(crate) fn work(&self) -> Work {
        self.work
    }

    /// Appends a line as it is.
    pub(crate) fn line(&mut self, line: fmt::Arguments<'_>) {
        self.text.push_str("  ");
        self.text.write_fmt(line).expect("strings take all text");
        self.text.push('\n');
    }

    /// Appends a comment.
    pub(crate) fn comment(&mut self, text: fmt::Arguments<'_>) {
        self.line(format_args!("// {text}"));
    }

    /// Puts a label here.
    pub(crate) fn place(&mut self, label: Label) {
        writeln!(self.text, "{label}:").expect("strings take all text");
    }

    /// An instruction of the integer unit with a result of 32 bits.
    pub(crate) fn logic(&mut self, operation: fmt::Arguments<'_>, rest: fmt::Arguments<'_>) -> Reg {
        let to = self.reg();
        self.line(format_args!("{operation} {to}, {rest};"));
        self.work.logic += 1;
        to
    }

    /// `lop3`: any function of three bits, for each bit.
    pub(crate) fn lop3(&mut self, a: Reg, b: Reg, c: Reg, lut: u8) -> Reg {
        self.logic(format_args!("lop3.b32"), format_args!("{a}, {b}, {c}, {lut:#x}"))
    }

    /// `lop3` with a constant.
    pub(crate) fn lop3_constant(&mut self, a: Reg, b: Reg, c: u32, lut: u8) -> Reg {
        self.logic(format_args!("lop3.b32"), format_args!("{a}, {b}, {c:#x}, {lut:#x}"))
    }

    pub(crate) fn xor(&mut self, a: Reg, b: Reg) -> Reg {
        self.logic(format_args!("xor.b32"), format_args!("{a}, {b}"))
    }

    pub(crate) fn and(&mut self, a: Reg, mask: u32) -> Reg {
        self.logic(format_args!("and.b32"), format_args!("{a}, {mask:#x}"))
    }

    pub(crate) fn shift_right(&mut self, a: Reg, bits: u32) -> Reg {
        self.logic(format_args!("shr.u32"), format_args!("{a}, {bits}"))
    }

    /// A shift to the left, as a product: the multiplier has nothing else to do.
    pub(crate) fn shift_left(&mut self, a: Reg, bits: u32) -> Reg {
        let to = self.reg();
        self.line(format_args!("mul.lo.u32 {to}, {a}, {};", 1u32 << bits));
        self.work.products += 1;
        to
    }

    /// All bits of each byte are the highest bit of that byte of `a`.
    pub(crate) fn spread_signs(&mut self, a: Reg) -> Reg {
        self.logic(format_args!("prmt.b32"), format_args!("{a}, 0, 0xba98"))
    }

    /// The XOR of one or more registers. Three at a time cost as much as two.
    pub(crate) fn xor_all(&mut self, operands: &[Reg]) -> Reg {
        match *operands {
            [] => self.zero(),
            [only] => only,
            [a, b] => self.xor(a, b),
            [a, b, c, ref rest @ ..] => {
                let mut sum = self.lop3(a, b, c, lut::XOR);
                let (pairs, last) = rest.as_chunks::<2>();
                for &[a, b] in pairs {
                    sum = self.lop3(sum, a, b, lut::XOR);
                }
                last.iter().fold(sum, |sum, &last| self.xor(sum, last))
            }
        }
    }

    pub(crate) fn zero(&mut self) -> Reg {
        self.logic(format_args!("mov.b32"), format_args!("0"))
    }

    /// A load or store, with the address in brackets.
    pub(crate) fn memory(&mut self, line: fmt::Arguments<'_>) {
        self.line(line);
        self.work.memory += 1;
    }

    /// The kernel: its name, its parameters and the limits of its blocks before the body.
    pub(crate) fn kernel(&self, name: &str, parameters: &str, limits: &str) -> String {
        let Self { text, regs, wides, preds, .. } = self;
        format!(
            ".visible .entry {name}({parameters})\n{limits}\n{{\n  .reg .b32 %r<{}>;\n  \
             .reg .b64 %d<{}>;\n  .reg .pred %p<{}>;\n{text}}}\n",
            regs + 1,
            wides + 1,
            preds + 1
        )
    }
}

impl Writer {
    /// An empty writer whose registers and labels follow those of this one.
    pub(crate) fn draft(&self) -> Self {
        let Self { regs, wides, preds, labels, work, .. } = *self;
        Self { text: String::new(), regs, wides, preds, labels, work }
    }

    /// Appends a draft of this writer, to which nothing was added meanwhile.
    pub(crate) fn adopt(&mut self, draft: &Self) {
        self.text.push_str(&draft.text);
        let text = std::mem::take(&mut self.text);
        let Self { regs, wides, preds, labels, work, .. } = *draft;
        *self = Self { text, regs, wides, preds, labels, work };
    }
}
