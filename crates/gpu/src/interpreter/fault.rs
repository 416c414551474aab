//! What can be wrong: with the text of a program, and with its execution.

use thiserror::Error;

/// Why a text is not a program of the subset.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line of the text, from 1.
    pub line: u32,
    /// What is wrong.
    pub message: String,
}

impl ParseError {
    pub(super) fn new(line: u32, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// Why an execution stopped: where, and what happened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kernel}, line {line}, block {block}, thread {thread}: `{text}`: {cause}")]
pub struct Fault {
    /// Name of the kernel.
    pub kernel: String,
    /// Line of the instruction in the text of the module, from 1.
    pub line: u32,
    /// The instruction as the text has it.
    pub text: String,
    /// Index of the block in the grid.
    pub block: u32,
    /// Index of the thread in the block.
    pub thread: u32,
    /// What happened.
    pub cause: Box<Cause>,
}

/// What happened at a fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Cause {
    /// The launch does not fit the kernel, or no card can do it. No instruction is at fault.
    #[error("the launch is wrong: {0}")]
    Launch(String),
    /// A register is read that no thread wrote, or that a shuffle left without a value.
    #[error("{0} has no value")]
    UndefinedRegister(String),
    /// A divisor is zero.
    #[error("a division by zero")]
    DivisionByZero,
    /// An address is no multiple of the size of the access.
    #[error("address {address:#x} is misaligned for an access of {bytes} bytes")]
    Misaligned {
        /// The address of the access.
        address: u64,
        /// The size of the access, all parts of a vector together.
        bytes: u32,
    },
    /// An access to global memory is wrong.
    #[error(transparent)]
    Global(#[from] MemoryError),
    /// A write to a table of the module.
    #[error("{address:#x} is in the table {table}, which is read-only")]
    ReadOnly {
        /// The address of the access.
        address: u64,
        /// The name of the table.
        table: String,
    },
    /// An access to constant memory is in none of its tables.
    #[error("{bytes} bytes at {address:#x} of constant memory are in no table")]
    ConstantOutside {
        /// The address of the access.
        address: u64,
        /// The size of the access.
        bytes: u32,
    },
    /// An access to shared memory is in none of its variables.
    #[error("{bytes} bytes at {address:#x} of shared memory are in no variable; {nearest}")]
    SharedOutside {
        /// The address of the access.
        address: u64,
        /// The size of the access.
        bytes: u32,
        /// The variable that is nearest.
        nearest: String,
    },
    /// A byte of shared memory is read that no thread wrote.
    #[error("the byte {address:#x} of shared memory is read, and no thread wrote it")]
    SharedUninitialised {
        /// The address of the byte.
        address: u64,
    },
    /// Two threads access a byte of shared memory with no barrier between, and one writes.
    #[error("a race in shared memory: byte {address:#x}, {access}")]
    SharedRace {
        /// The address of the byte.
        address: u64,
        /// The earlier access.
        access: Access,
    },
    /// The index of a branch is past its list of targets.
    #[error("the index {index} is past the {targets} branch targets")]
    BranchIndex {
        /// The index.
        index: u32,
        /// How many targets there are.
        targets: usize,
    },
    /// The threads wait for each other, or for a thread that cannot come.
    #[error("a deadlock: {0}")]
    Deadlock(String),
    /// The launch executed as many instructions as it may.
    #[error("the launch does not end within {0} instructions of its threads")]
    Budget(u64),
}

/// An earlier access that a later one is not ordered after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Access {
    /// A thread wrote the byte.
    #[error("which thread {thread} of block {block} wrote")]
    Written {
        /// Index of the block in the grid.
        block: u32,
        /// Index of the thread in the block.
        thread: u32,
    },
    /// A thread read the byte.
    #[error("which thread {thread} of block {block} read")]
    Read {
        /// Index of the block in the grid.
        block: u32,
        /// Index of the thread in the block.
        thread: u32,
    },
    /// Several threads read the byte.
    #[error("which several threads read")]
    ReadBySeveral,
    /// The byte was changed by an atomic operation.
    #[error("which an atomic operation changed")]
    Atomic,
}

/// An access to [`Memory`](super::Memory) that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// Bytes that are not all in one allocation.
    #[error("{bytes} bytes at {address:#x} are in no allocation; {nearest}")]
    Outside {
        /// The address of the access.
        address: u64,
        /// The size of the access.
        bytes: usize,
        /// The allocation that is nearest.
        nearest: Nearest,
    },
    /// An address to free that no allocation begins at.
    #[error("no allocation begins at {0:#x}")]
    NotAllocated(u64),
    /// A byte is read that no thread wrote.
    #[error("the byte {0:#x} is read, and no thread wrote it")]
    Uninitialised(u64),
    /// Two threads of a launch access a byte, and one writes.
    #[error("a race: byte {address:#x}, {access}")]
    Race {
        /// The address of the byte.
        address: u64,
        /// The earlier access.
        access: Access,
    },
}

/// The allocation that is nearest to an address outside of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Nearest {
    /// There is no allocation.
    #[error("there is no allocation")]
    None,
    /// The nearest allocation.
    #[error("the nearest is {bytes} bytes at {address:#x}")]
    Allocation {
        /// The address of its first byte.
        address: u64,
        /// Its size.
        bytes: usize,
    },
}
