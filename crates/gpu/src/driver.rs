//! The operations of a card and of its driver that this crate uses.
//!
//! [`Cuda`](crate::cuda::Cuda) is NVIDIA's driver. [`Model`](crate::model::Model) does the same in
//! memory of this process, with an interpreter for programs, so that everything above it can be
//! tested without a card.
//!
//! Work on a *stream* is done in order and beside that of other streams. An *event* that is
//! recorded on a stream is complete when the work before it is. No call waits for the card, except
//! [`Driver::wait`] and those that take or give back memory.

use std::ptr::NonNull;

use thiserror::Error;

/// An address in the card's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The address `bytes` later.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// A stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub u64);

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// A kernel that the driver has translated, and the module in which it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// The driver's name of the module.
    pub module: u64,
    /// The driver's name of the kernel.
    pub kernel: u64,
}

/// Resources that a kernel needs, as the driver's assembler says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's local memory: registers that did not fit.
    pub local_bytes: u32,
    /// Blocks that a multiprocessor holds at once.
    pub resident_blocks: u32,
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// 32 bits.
    U32(u32),
    /// 64 bits.
    U64(u64),
}

/// The blocks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// Rows of bytes in the host's memory and in the card's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Rows.
    pub rows: usize,
    /// The distance of rows in the host's memory, in bytes.
    pub host_pitch: usize,
    /// The distance of rows in the card's memory, in bytes.
    pub card_pitch: usize,
}

impl Rows {
    /// One row.
    #[must_use]
    pub fn one(bytes: usize) -> Self {
        Self { row_bytes: bytes, rows: 1, host_pitch: bytes, card_pitch: bytes }
    }

    /// Whether the rows are one run of bytes on both sides.
    #[must_use]
    pub fn is_one_run(&self) -> bool {
        self.rows <= 1 || (self.row_bytes == self.host_pitch && self.row_bytes == self.card_pitch)
    }
}

/// A card, as `gpu info` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardInfo {
    /// The model's name.
    pub name: String,
    /// The version of the driver.
    pub driver: String,
    /// The version of the programming interface, such as 13.0.
    pub interface: String,
    /// The compute capability, such as 9.0.
    pub capability: String,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// The highest clock of the multiprocessors, in kHz.
    pub clock_khz: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of the cache in front of memory.
    pub cache_bytes: u64,
    /// Most shared memory of a block, in bytes.
    pub shared_bytes_max: u32,
}

/// Why the driver refused or failed an operation.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DriverError {
    /// There is no driver, or it has no card.
    #[error("{0}")]
    Absent(String),
    /// The program is not valid.
    #[error("the driver does not translate the program: {0}")]
    Program(String),
    /// There is too little memory.
    #[error("the {place} has no memory left for {bytes} bytes")]
    Memory {
        /// "card" or "host".
        place: &'static str,
        /// The bytes that were wanted.
        bytes: u64,
    },
    /// The operation failed. After most of these errors the card does nothing more for the process.
    #[error("{operation}: {error}")]
    Failed {
        /// The operation.
        operation: &'static str,
        /// The driver's words.
        error: String,
    },
}

/// A card and its driver.
pub trait Driver: Send + Sync {
    /// The card.
    fn info(&self) -> &CardInfo;

    /// Translates a program of one kernel. This may take seconds.
    ///
    /// # Errors
    /// The driver does not accept the text.
    fn load(&self, text: &str, kernel: &str, shared_bytes: u32) -> Result<Function, DriverError>;

    /// The resources of a kernel whose blocks have this size.
    ///
    /// # Errors
    /// The card has failed.
    fn resources(&self, function: Function, grid: Grid) -> Result<Resources, DriverError>;

    /// Forgets a program that no launch uses any more.
    fn unload(&self, function: Function);

    /// Takes memory of the card. Its bytes are arbitrary.
    ///
    /// # Errors
    /// There is too little.
    fn allocate(&self, bytes: u64) -> Result<DeviceAddress, DriverError>;

    /// Gives memory of the card back that no work uses any more.
    fn free(&self, address: DeviceAddress);

    /// Takes memory of the host that the card reads and writes directly. Its bytes are zero.
    ///
    /// # Errors
    /// There is too little.
    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, DriverError>;

    /// Gives memory of the host back.
    ///
    /// # Safety
    /// `pointer` came from [`Driver::allocate_host`], and no code and no work uses it any more.
    unsafe fn free_host(&self, pointer: NonNull<u8>);

    /// Makes a stream. It lives as long as the driver.
    ///
    /// # Errors
    /// The card has failed.
    fn stream(&self) -> Result<Stream, DriverError>;

    /// Makes an event. It lives as long as the driver.
    ///
    /// # Errors
    /// The card has failed.
    fn event(&self) -> Result<Event, DriverError>;

    /// Copies rows from the host to the card.
    ///
    /// # Safety
    /// Until an event recorded behind the copy is complete, all bytes at `from` are readable and
    /// do not change, and the rows at `to` lie in memory from [`Driver::allocate`].
    ///
    /// # Errors
    /// The card has failed.
    unsafe fn copy_in(
        &self,
        stream: Stream,
        to: DeviceAddress,
        from: *const u8,
        rows: Rows,
    ) -> Result<(), DriverError>;

    /// Copies rows from the card to the host.
    ///
    /// # Safety
    /// Until an event recorded behind the copy is complete, no other code uses the bytes at `to`,
    /// which are writable; the rows at `from` lie in memory from [`Driver::allocate`].
    ///
    /// # Errors
    /// The card has failed.
    unsafe fn copy_out(
        &self,
        stream: Stream,
        to: *mut u8,
        from: DeviceAddress,
        rows: Rows,
    ) -> Result<(), DriverError>;

    /// Copies bytes within the card.
    ///
    /// # Errors
    /// The card has failed.
    fn copy_within(
        &self,
        stream: Stream,
        to: DeviceAddress,
        from: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DriverError>;

    /// Sets bytes on the card.
    ///
    /// # Errors
    /// The card has failed.
    fn fill(
        &self,
        stream: Stream,
        to: DeviceAddress,
        byte: u8,
        bytes: u64,
    ) -> Result<(), DriverError>;

    /// Starts a kernel.
    ///
    /// # Errors
    /// The card has failed, or cannot execute blocks of this size.
    fn launch(
        &self,
        stream: Stream,
        function: Function,
        grid: Grid,
        arguments: &[Argument],
    ) -> Result<(), DriverError>;

    /// Records an event on a stream.
    ///
    /// # Errors
    /// The card has failed.
    fn record(&self, event: Event, stream: Stream) -> Result<(), DriverError>;

    /// True if an event is complete.
    ///
    /// # Errors
    /// The card has failed.
    fn is_complete(&self, event: Event) -> Result<bool, DriverError>;

    /// Waits until an event is complete.
    ///
    /// # Errors
    /// The card has failed.
    fn wait(&self, event: Event) -> Result<(), DriverError>;

    /// Later work of the stream waits for an event.
    ///
    /// # Errors
    /// The card has failed.
    fn wait_on_stream(&self, stream: Stream, event: Event) -> Result<(), DriverError>;

    /// Nanoseconds between two complete events.
    ///
    /// # Errors
    /// The card has failed, or an event is not complete.
    fn elapsed_ns(&self, from: Event, to: Event) -> Result<f64, DriverError>;
}
