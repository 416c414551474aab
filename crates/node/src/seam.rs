//! What a node needs from its world: files, peers and a clock.
//!
//! A `Node` is fed [`Event`]s and asked for [`Action`]s. The real world carries disk
//! operations out through io_uring, the seeded world through a simulated disk with faults. A node
//! addresses its files by name ([`FileId`]); the world maps names to files in the node's folder.

use bytes::Bytes;
use fieldstone_proto::{JournalGen, MasterKey, NodeIndex, PoolId, Reply, Request, VolumeId};

/// A connection on which requests come in; chosen by the world, never reused within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// Pairs a disk completion with its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u64);

/// A file of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileId {
    /// Who the node is; written once at creation by the world.
    Superblock,
    /// The slot headers, one 4 KiB block each: `slots`.
    Slots,
    /// The slots' data, `slot_bytes` each: `data`.
    Data,
    /// A volume's epoch and root record: `volume.<id>`.
    Volume(VolumeId),
    /// Empty; exists while a failed sync leaves contents in doubt: `doubt`.
    Doubt,
    /// A journal ring: `journal.<id>.<generation>`.
    Journal(VolumeId, JournalGen),
}

/// An operation on a file. Offsets and lengths are multiples of 4096 bytes.
#[derive(Clone, Debug)]
pub enum DiskOp {
    /// Lists the files that exist ([`DiskOutput::Files`]).
    List,
    /// Reads; past the end of the file reads zeroes.
    Read {
        /// The file.
        file: FileId,
        /// First byte.
        offset_bytes: u64,
        /// Length.
        len_bytes: u32,
    },
    /// Writes a gather list; completes when the bytes are in the file, though not yet stable.
    Write {
        /// The file.
        file: FileId,
        /// First byte.
        offset_bytes: u64,
        /// What to write.
        data: Vec<Bytes>,
    },
    /// Makes all completed writes of the file stable.
    Sync {
        /// The file.
        file: FileId,
    },
    /// Creates the file with this length if it does not exist, with its name stable. Preallocates
    /// when `allocate`, otherwise sparse.
    Create {
        /// The file.
        file: FileId,
        /// Length.
        len_bytes: u64,
        /// Reserve the space now.
        allocate: bool,
    },
    /// Removes the file, with its removal stable.
    Remove {
        /// The file.
        file: FileId,
    },
    /// Gives the range's space back to the file system; it reads as zeroes or old data after.
    Discard {
        /// The file.
        file: FileId,
        /// First byte.
        offset_bytes: u64,
        /// Length.
        len_bytes: u64,
    },
}

/// What a disk operation produced.
#[derive(Clone, Debug)]
pub enum DiskOutput {
    /// Success without data.
    Done,
    /// The bytes read.
    Data(Bytes),
    /// The files that exist.
    Files(Vec<FileId>),
}

/// Why a disk operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The file does not exist.
    #[error("no such file")]
    NotFound,
    /// The device is full.
    #[error("no space on the device")]
    NoSpace,
    /// Anything else, with the system's words.
    #[error("{0}")]
    Io(String),
}

/// What happens to a node.
#[derive(Debug)]
pub enum Event {
    /// A request came in.
    Request {
        /// On which connection.
        peer: PeerId,
        /// The request.
        request: Request,
    },
    /// A disk operation completed.
    Disk {
        /// Which.
        id: DiskId,
        /// How.
        result: Result<DiskOutput, DiskError>,
    },
    /// A connection is gone; its unanswered requests need no reply.
    PeerLost {
        /// Which.
        peer: PeerId,
    },
    /// The file system tells how much the node may use. Slots beyond it count as taken, until a
    /// later event says otherwise. A world that never tells promises room for every slot.
    Room {
        /// How long the parts of the data file that take space may be in all: what it takes now,
        /// and what the file system has left for it.
        room_bytes: u64,
    },
}

/// What a node wants done.
#[derive(Debug)]
pub enum Action {
    /// Carry out a disk operation; operations in flight together may complete in any order.
    Disk {
        /// Returned in [`Event::Disk`].
        id: DiskId,
        /// The operation.
        op: DiskOp,
    },
    /// Answer a request.
    Reply {
        /// On which connection.
        peer: PeerId,
        /// The answer.
        reply: Reply,
    },
}

/// What a node is made with; from its superblock.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The pool.
    pub pool: PoolId,
    /// The place in it.
    pub node: NodeIndex,
    /// Distinguishes this node from an empty replacement at the same place.
    pub incarnation: u64,
    /// The pool's secret.
    pub key: MasterKey,
    /// Size of a slot in bytes; a multiple of 4096, at most 3 MiB (its checksums fit the header).
    pub slot_bytes: u32,
    /// Number of slots.
    pub slots: u32,
    /// Check payload checksums on arrival too: for peers behind a network.
    pub verify_payload: bool,
}
