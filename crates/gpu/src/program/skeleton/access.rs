//! The addresses of a section's operands, and the loads and stores there.

use crate::program::body::Operands;
use crate::program::sections::Code;
use crate::program::words::{WORDS, Words};
use crate::ptx::{Pred, Reg, Wide, Writer};

/// Registers that all codes use.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) pitch: Reg,
    /// The thread's first and second vector in element 0 of the inputs, and of the outputs.
    pub(super) inputs: [Wide; 2],
    pub(super) outputs: [Wide; 2],
    /// The thread stores its vector: it exists, and the lane has a section.
    pub(super) stores: [Pred; 2],
    /// The operands of the item's first section in the table.
    pub(super) operands: Wide,
    pub(super) shared: Option<SharedPlace>,
}

/// The place of shared elements.
#[derive(Clone, Copy)]
pub(super) struct SharedPlace {
    /// The thread's first vector of shared element 0.
    pub(super) base: Reg,
    /// From the thread's first vector of an element to its second.
    pub(super) vector_bytes: u32,
    /// Which of the item's sections the lane has, and whether it has one.
    pub(super) section: Reg,
    pub(super) has_section: Pred,
}

/// The operands of one section or, from a table, of any section with a code.
pub(super) struct Access<'a> {
    place: &'a Place,
    code: &'a Code,
    /// The operands, if the code has only one section.
    constants: Option<&'a [u32]>,
    /// Where the table has the operands of the lane's section.
    table: Wide,
}

/// The number of an element, as instructions name it.
enum Number {
    Constant(u32),
    Register(Reg),
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Constant(number) => write!(f, "{number}"),
            Self::Register(register) => write!(f, "{register}"),
        }
    }
}

impl<'a> Access<'a> {
    /// The access for a code, with the instructions that find the lane's operands.
    pub(super) fn new(
        writer: &mut Writer,
        place: &'a Place,
        code: &'a Code,
        constants: Option<&'a [u32]>,
    ) -> Self {
        let table = match place.shared {
            Some(SharedPlace { section, .. }) if constants.is_none() => {
                let (table, bytes) = (writer.wide(), 4 * code.operands());
                let base = place.operands;
                writer.line(format_args!("mad.wide.u32 {table}, {section}, {bytes}, {base};"));
                table
            }
            _ => place.operands,
        };
        Self { place, code, constants, table }
    }

    fn number(&self, writer: &mut Writer, operand: u32) -> Number {
        if let Some(constants) = self.constants {
            return Number::Constant(constants[operand as usize]);
        }
        let (number, table, at) = (writer.reg(), self.table, 4 * operand);
        writer.memory(format_args!("ld.global.nc.u32 {number}, [{table}+{at}];"));
        Number::Register(number)
    }

    fn address(&self, writer: &mut Writer, number: &Number, column: Wide) -> Wide {
        let (address, pitch) = (writer.wide(), self.place.pitch);
        writer.line(format_args!("mad.wide.u32 {address}, {pitch}, {number}, {column};"));
        address
    }

    /// The address of the thread's first vector of a shared element, and the place of them all.
    fn shared(&self, writer: &mut Writer, operand: u32) -> (Reg, SharedPlace) {
        let place = self.place.shared.expect("a code with shared elements is of a component");
        let number = self.number(writer, operand);
        let (address, base, bytes) = (writer.reg(), place.base, 2 * place.vector_bytes);
        match number {
            Number::Constant(number) => {
                writer.line(format_args!("add.u32 {address}, {base}, {};", number * bytes));
            }
            Number::Register(number) => {
                writer.line(format_args!("mad.lo.u32 {address}, {number}, {bytes}, {base};"));
            }
        }
        (address, place)
    }
}

fn vector(words: &[Reg]) -> String {
    let names: Vec<String> = words.iter().map(Reg::to_string).collect();
    format!("{{{}}}", names.join(", "))
}

fn halves(words: &Words) -> impl Iterator<Item = (u32, String)> + '_ {
    (0..).zip(words.chunks(WORDS / 2).map(vector))
}

impl Operands for Access<'_> {
    fn load(&self, writer: &mut Writer, input: u32) -> Words {
        let words: Words = std::array::from_fn(|_| writer.reg());
        let number = self.number(writer, input);
        for ((_, vector), column) in halves(&words).zip(self.place.inputs) {
            let address = self.address(writer, &number, column);
            writer.memory(format_args!("ld.global.nc.v4.u32 {vector}, [{address}];"));
        }
        words
    }

    fn load_shared(&self, writer: &mut Writer, shared: u32) -> Words {
        let words: Words = std::array::from_fn(|_| writer.reg());
        let (address, place) = self.shared(writer, self.code.inputs + shared);
        for (half, vector) in halves(&words) {
            let at = half * place.vector_bytes;
            writer.memory(format_args!("ld.shared.v4.u32 {vector}, [{address}+{at}];"));
        }
        words
    }

    fn store(&self, writer: &mut Writer, output: u32, words: &Words) {
        let number = self.number(writer, self.code.inputs + self.code.shared_reads + output);
        let places = self.place.outputs.into_iter().zip(self.place.stores);
        for ((_, vector), (column, stores)) in halves(words).zip(places) {
            let address = self.address(writer, &number, column);
            writer.memory(format_args!("@{stores} st.global.v4.u32 [{address}], {vector};"));
        }
    }

    fn selector(&self, writer: &mut Writer, selector: u32) -> Reg {
        let number = self.number(writer, self.code.operands() - self.code.selectors + selector);
        match number {
            Number::Register(register) => register,
            Number::Constant(number) => {
                let to = writer.reg();
                writer.line(format_args!("mov.u32 {to}, {number};"));
                to
            }
        }
    }

    fn store_shared(&self, writer: &mut Writer, shared: u32, words: &Words) {
        let before = self.code.inputs + self.code.shared_reads + self.code.outputs;
        let (address, place) = self.shared(writer, before + shared);
        for (half, vector) in halves(words) {
            let (at, stores) = (half * place.vector_bytes, place.has_section);
            writer.memory(format_args!("@{stores} st.shared.v4.u32 [{address}+{at}], {vector};"));
        }
    }
}
