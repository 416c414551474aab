//! What executes handlers: a core of the NIC ([`Hpu`](super::hpu::Hpu)), or the host's own build of
//! the firmware. Both give the same commands and leave the same memory; a test compares them.

use crate::firmware::command::Command;
use crate::riscv::core::{Counters, Trap};

/// Messages that a NIC has at once in this model: as many entries as 64 KiB hold.
pub const MAX_REQUESTS: u32 = 960;

/// The four handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    /// For the first packet of a message.
    Header = 0,
    /// For each packet.
    Payload = 1,
    /// After all packets.
    Completion = 2,
    /// Instead of the completion, when a message stays incomplete.
    Cleanup = 3,
}

impl Handler {
    /// All, in the order of their numbers.
    pub const ALL: [Handler; 4] =
        [Handler::Header, Handler::Payload, Handler::Completion, Handler::Cleanup];

    /// The function of the firmware.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        match self {
            Handler::Header => "header_handler",
            Handler::Payload => "payload_handler",
            Handler::Completion => "completion_handler",
            Handler::Cleanup => "cleanup_handler",
        }
    }
}

/// One call of a handler.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The packet; empty for completion and cleanup.
    pub packet: &'a [u8],
    /// The number of the message's entry, below [`MAX_REQUESTS`].
    pub slot: u32,
    /// The entry's name in commands.
    pub request_id: u32,
    /// The node's clock.
    pub now_ns: u64,
}

/// What a handler did.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Its result.
    pub result: u32,
    /// Its commands, in order.
    pub commands: Vec<Command>,
    /// What the core counted; the host's build has no counters.
    pub counters: Option<Counters>,
}

/// Why a handler did not end as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The packet is longer than a packet may be, or the entry does not exist.
    #[error("the call has no such packet or entry")]
    Call,
    /// It trapped: it accessed memory that is not its own, or executed what is no instruction.
    #[error("{}: {trap}", handler.symbol())]
    Trap {
        /// Which handler.
        handler: Handler,
        /// Why.
        trap: Trap,
    },
    /// It did not end.
    #[error("{} did not end within {cycles} cycles", handler.symbol())]
    OutOfCycles {
        /// Which handler.
        handler: Handler,
        /// The bound.
        cycles: u64,
    },
}

/// Memories of handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// The entries of the messages.
    Requests,
    /// The remembered capabilities.
    Cache,
    /// The accumulators and who uses them.
    Pool,
    /// The context and its tables.
    Context,
}

/// Executes handlers.
pub trait Engine {
    /// Runs one handler to its end.
    ///
    /// # Errors
    /// [`EngineError`] says why it did not end as it should. Commands that it gave before are lost.
    fn run(&mut self, handler: Handler, call: &Call<'_>) -> Result<Run, EngineError>;

    /// A memory, as the NIC sees it.
    fn area(&self, area: Area) -> &[u8];

    /// The same, to be written.
    fn area_mut(&mut self, area: Area) -> &mut [u8];
}
