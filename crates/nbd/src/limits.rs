//! Every bound of a session, in one place.

use fieldstone_block::EXTENTS_MAX;

use crate::wire::{OPTION_HEADER_BYTES, REQUEST_HEADER_BYTES};

/// The longest payload of a read or write: the length that the specification asks every server to
/// accept.
pub const MAX_PAYLOAD_BYTES: u32 = 32 << 20;

/// The session receives writes of at least this length straight into their own buffer. It copies
/// shorter ones.
pub const LARGE_WRITE_BYTES: u32 = 32 << 10;

/// Each session's own memory for requests and replies, in addition to the shared budget.
pub const OWN_BYTES: usize = 256 << 10;

/// The size of one lease from the shared budget.
pub const LEASE_GRAIN_BYTES: usize = 1 << 20;

/// One session holds at most the shared budget divided by this number, or one request.
pub const BUDGET_SHARE: usize = 4;

/// A write of at least this length, and any write while half of the shared budget is in use, gets
/// memory only when its first [`LARGE_WRITE_BYTES`] have arrived. So a header alone takes no memory
/// then.
pub const SIGN_OF_LIFE_BYTES: usize = 4 << 20;

/// The bounds of a session. The defaults suit a server on a LAN; tests shrink them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that were submitted and have not completed.
    pub max_in_flight: u32,
    /// Payload bytes of requests in flight and of queued replies, together. The session always
    /// accepts one request, however long.
    pub max_memory_bytes: usize,
    /// Bytes of queued replies. At this bound the session decodes no more.
    pub max_output_bytes: usize,
    /// Options in one negotiation; one more ends the session.
    pub max_options: u32,
    /// Data of one option. The session answers a longer one with `ERR_TOO_BIG`.
    pub max_option_bytes: u32,
    /// The most bytes that the session skips in order to answer with an error. A longer option or
    /// write payload ends the session.
    pub max_discard_bytes: u32,
    /// Descriptors in one block status reply. A device gives at most [`EXTENTS_MAX`].
    pub max_extents: u32,
    /// Size of the receive buffer after the options; until then it holds one option. The session
    /// raises a size that could not hold an option or a short write.
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
    /// These limits, with corrections of values that would block a session for ever.
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
