//! A module and its kernels, decoded.

use std::sync::Arc;

use super::fault::ParseError;
use super::operation::{Cell, Instruction, Slot};
use super::parse;

/// A program: kernels, and the tables that they share.
#[derive(Clone, Debug)]
pub struct Module {
    pub(super) kernels: Vec<Kernel>,
}

impl Module {
    /// Reads the text of a module.
    ///
    /// # Errors
    ///
    /// The text is no PTX, or not of the subset.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        parse::module(text)
    }

    /// The kernel with a name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// All kernels, in the order of the text.
    #[must_use]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }
}

/// A program that the threads of a launch execute.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(super) name: String,
    /// The text of the module.
    pub(super) text: Arc<str>,
    /// Line of its name in the text.
    pub(super) line: u32,
    pub(super) code: Vec<Instruction>,
    /// The mnemonics, with their modifiers.
    pub(super) opcodes: Vec<String>,
    /// The cells of a thread before its first instruction.
    pub(super) cells: Vec<Cell>,
    /// The names of the cells.
    pub(super) names: Vec<String>,
    pub(super) specials: Vec<(Special, Slot)>,
    pub(super) params: Vec<Declared>,
    /// The variables in shared memory whose size is known.
    pub(super) shared: Vec<SharedVariable>,
    /// The name and the address of dynamic shared memory.
    pub(super) dynamic: Option<(String, u64)>,
    /// The number of threads that a block may have at most.
    pub(super) max_threads: Option<u32>,
    /// The number of threads that a block must have.
    pub(super) required_threads: Option<u32>,
    pub(super) tables: Arc<Tables>,
}

impl Kernel {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many instructions its text has.
    #[must_use]
    pub fn instructions(&self) -> usize {
        self.code.len()
    }
}

/// A parameter as it is declared.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub name: String,
    /// Its size in bytes: 4 or 8.
    pub bytes: u32,
    /// Where it is in the block of parameters, in bytes.
    pub offset: u32,
}

/// A variable in shared memory.
#[derive(Clone, Debug)]
pub(super) struct SharedVariable {
    pub name: String,
    pub start: u64,
    pub bytes: usize,
}

/// A register that the machine sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Thread,
    Threads,
    Block,
    Blocks,
    Lane,
    Warp,
}

impl Special {
    /// The register with a name.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "%tid.x" => Self::Thread,
            "%ntid.x" => Self::Threads,
            "%ctaid.x" => Self::Block,
            "%nctaid.x" => Self::Blocks,
            "%laneid" => Self::Lane,
            "%warpid" => Self::Warp,
            _ => return None,
        })
    }
}

/// The read-only tables of a module.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    /// In the state space of constants.
    pub constants: Vec<Table>,
    /// In global memory.
    pub globals: Vec<Table>,
}

/// A table of constants.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub name: String,
    pub start: u64,
    pub bytes: Vec<u8>,
}

/// Where the tables begin that are in global memory. No allocation is there.
pub(super) const GLOBAL_TABLES: u64 = 1 << 62;

impl Table {
    /// Bytes at an address that are all in one of the tables, and that table.
    pub fn find(tables: &[Self], address: u64, bytes: u32) -> Option<(&Self, &[u8])> {
        tables.iter().find_map(|table| {
            let at = usize::try_from(address.checked_sub(table.start)?).ok()?;
            let found = table.bytes.get(at..at.checked_add(bytes as usize)?)?;
            Some((table, found))
        })
    }
}

/// The first address from `next` that is aligned to `align` and to no more, so that a program that
/// relies on more is found out.
pub(super) fn aligned(next: u64, align: u64) -> u64 {
    let multiple = next.div_ceil(align);
    (multiple | 1) * align
}
