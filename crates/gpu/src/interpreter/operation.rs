//! Decoded instructions.
//!
//! Every operand is a slot: the index of a cell in the thread's array. Registers have cells, and so
//! have the immediates, the addresses of variables and the special registers that a kernel names.
//! So an instruction reads all of its operands in one way. What computes a value from values is a
//! function of [`arithmetic`](super::arithmetic), which the decoder chooses.

/// Index of a cell in the array of a thread.
pub(super) type Slot = u32;

/// The value of a register, an immediate or an address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    /// The value. Bits above the width of the register are zeros.
    pub bits: u64,
    /// Whether the cell has a value.
    pub defined: bool,
}

impl Cell {
    /// A cell with a value.
    pub fn of(bits: u64) -> Self {
        Self { bits, defined: true }
    }
}

/// When an instruction executes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Guard {
    Always,
    /// When the predicate is true.
    If(Slot),
    /// When the predicate is false.
    Unless(Slot),
}

/// A state space that an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Param,
    Const,
    Global,
    Shared,
}

/// An address in memory, and what is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub space: Space,
    /// The cell of the address, and what is added to it.
    pub base: Slot,
    pub offset: i64,
    /// The width of one element, in bytes.
    pub element: u32,
    /// How many elements a vector has. One is no vector.
    pub count: u32,
}

impl Place {
    /// The size of the access in bytes.
    pub fn bytes(&self) -> u32 {
        self.element * self.count
    }
}

/// Who gives the value of a shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shuffle {
    Index,
    Up,
    Down,
    Butterfly,
}

/// What a vote tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    Any,
    All,
    Ballot,
}

/// What lanes of a warp do together. `mask` is the cell of the mask of lanes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Collective {
    /// Lanes wait for each other.
    Sync { mask: Slot },
    /// A lane gets the value of another, and whether that lane was in range.
    Shuffle { how: Shuffle, d: Slot, in_range: Option<Slot>, abc: [Slot; 3], mask: Slot },
    /// All lanes get what their predicates tell together.
    Vote { how: Vote, d: Slot, a: Slot, negate: bool, mask: Slot },
    /// All lanes get the mask of the lanes that came with them.
    ActiveMask { d: Slot },
}

/// What an instruction does.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Unary {
        f: fn(u64) -> u64,
        d: Slot,
        a: Slot,
    },
    Binary {
        f: fn(u64, u64) -> u64,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    Ternary {
        f: fn(u64, u64, u64) -> u64,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Quaternary {
        f: fn(u64, u64, u64, u64) -> u64,
        d: Slot,
        abc: [Slot; 3],
        e: Slot,
    },
    /// A division or a remainder. The function has no value when the divisor is zero.
    Divide {
        f: fn(u64, u64) -> Option<u64>,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    /// A value of a width in bits becomes one of another, by its sign or with zeros.
    Convert {
        d: Slot,
        a: Slot,
        steps: [Extension; 2],
    },
    /// A sum of 32 bits with a carry.
    AddCarry {
        d: Slot,
        a: Slot,
        b: Slot,
        carry_in: Option<Slot>,
        carry_out: Option<Slot>,
    },
    /// Parts of some bits, from the least, become one value.
    Pack {
        d: Slot,
        parts: [Slot; 4],
        count: u32,
        bits: u32,
    },
    /// A value becomes parts of some bits, from the least.
    Unpack {
        parts: [Slot; 4],
        a: Slot,
        count: u32,
        bits: u32,
    },
    Load {
        d: [Slot; 4],
        place: Place,
        extension: Extension,
    },
    Store {
        a: [Slot; 4],
        place: Place,
    },
    /// Adds to a word of 32 bits, and gives its value of before.
    AtomicAdd {
        d: Option<Slot>,
        place: Place,
        b: Slot,
    },
    /// Does nothing.
    Nothing,
    Branch {
        target: u32,
    },
    BranchIndexed {
        index: Slot,
        targets: Box<[u32]>,
    },
    End,
    Barrier,
    Collective(Collective),
}

/// How a value is extended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension {
    pub from: u32,
    pub to: u32,
    pub signed: bool,
}

/// An instruction.
#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub guard: Guard,
    pub operation: Operation,
    /// Line of the text.
    pub line: u32,
    /// The mnemonic with all modifiers, as an index into those of the kernel.
    pub opcode: u32,
    /// Where the instruction is in the text of the module, in bytes.
    pub span: (usize, usize),
}
