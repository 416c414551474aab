//! Every bound of a session, in one place.

use fieldstone_block::EXTENTS_MAX;

use crate::wire::{OPTION_HEADER_BYTES, REQUEST_HEADER_BYTES};

/// The longest payload of a read or write: what the specification asks every server to take.
pub const MAX_PAYLOAD_BYTES: u32 = 32 << 20;

/// Writes at least this long are received straight into their own buffer; shorter ones are copied.
pub const LARGE_WRITE_BYTES: u32 = 32 << 10;

/// Memory for requests and replies that each session has for itself, beside the budget that all
/// share.
pub const OWN_BYTES: usize = 256 << 10;

/// What is leased from the shared budget at a time.
pub const LEASE_GRAIN_BYTES: usize = 1 << 20;

/// One session holds at most one in this many parts of the shared budget, or one request.
pub const BUDGET_SHARE: usize = 4;

/// A write at least this long, and any write while half of the shared budget is in use, gets memory
/// only when its first [`LARGE_WRITE_BYTES`] have arrived: a header alone takes nothing then.
pub const SIGN_OF_LIFE_BYTES: usize = 4 << 20;

/// The bounds of a session. The defaults suit a server on a LAN; tests shrink them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests submitted and not yet completed.
    pub max_in_flight: u32,
    /// Payload bytes of requests in flight and of queued replies, together. One request is always
    /// let through, however long.
    pub max_memory_bytes: usize,
    /// Bytes of queued replies, beyond which nothing more is decoded.
    pub max_output_bytes: usize,
    /// Options in one negotiation; one more ends the session.
    pub max_options: u32,
    /// Data of one option; a longer one is answered with `ERR_TOO_BIG`.
    pub max_option_bytes: u32,
    /// The most that is read and thrown away for the sake of answering an error; a longer option
    /// or write payload ends the session.
    pub max_discard_bytes: u32,
    /// Descriptors in one block status reply. A device gives no more than [`EXTENTS_MAX`].
    pub max_extents: u32,
    /// Size of the receive buffer once options are exchanged; until then it holds one option.
    /// Raised if it could not hold an option or a short write.
    pub receive_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_in_flight: 1024,
            max_memory_bytes: 128 << 20,
            max_output_bytes: 64 << 20,
            max_options: 1024,
            max_option_bytes: 16 << 10,
            max_discard_bytes: 2 * MAX_PAYLOAD_BYTES,
            max_extents: EXTENTS_MAX as u32,
            receive_bytes: 256 << 10,
        }
    }
}

impl Limits {
    /// These limits with those values corrected that would let a session never move on.
    pub(crate) fn corrected(mut self) -> Self {
        let option = OPTION_HEADER_BYTES + self.max_option_bytes as usize;
        let write = REQUEST_HEADER_BYTES + LARGE_WRITE_BYTES as usize;
        self.receive_bytes = self.receive_bytes.max(option).max(write);
        self.max_in_flight = self.max_in_flight.max(1);
        self.max_output_bytes = self.max_output_bytes.max(1);
        self.max_extents = self.max_extents.max(1);
        self
    }

    /// Size of the receive buffer while options are exchanged.
    pub(crate) fn option_bytes(&self) -> usize {
        OPTION_HEADER_BYTES + self.max_option_bytes as usize
    }
}
