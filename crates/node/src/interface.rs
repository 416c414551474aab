//! The interface between a node and its world: files, peers and a clock.
//!
//! The world hands a `Node` [`NodeEvent`]s and asks it for [`NodeAction`]s. The real world carries
//! disk operations out through io_uring, the seeded world through a simulated disk with faults. A
//! node addresses its files by name ([`FileId`]); the world maps names to files in the node's
//! folder.

use bytes::Bytes;
use fieldstone_proto::{JournalGen, NodeIndex, PoolId, PoolKeys, Reply, Request, VolumeId};

use crate::parity_memory::ParityMemory;

/// A connection for requests. The world chooses the number, and never reuses it within a run. The
/// connections of one client have rising numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// The other end of a link on which the node passes requests on to another node of its pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkTarget {
    /// The other node.
    pub node: NodeIndex,
    /// Where its process listens: `unix:PATH` or `tcp:IP:PORT`. Empty for a node of the same
    /// process. The writer has named it, so it may be wrong.
    pub address: Bytes,
}

/// Pairs a disk completion with its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u64);

/// A file of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileId {
    /// The node's identity. The world writes it once, at the node's creation.
    Superblock,
    /// The slot headers, one 4 KiB block each: `slots`.
    Slots,
    /// The slots' data, `slot_bytes` each: `data`.
    Data,
    /// A volume's epoch and root record: `volume.<id>`.
    Volume(VolumeId),
    /// An empty file that exists while data may be unsynced after a failed sync: `doubt`.
    Doubt,
    /// A journal ring: `journal.<id>.<generation>`.
    Journal(VolumeId, JournalGen),
}

/// An operation on a file. Offsets and lengths are multiples of 4096 bytes.
#[derive(Clone, Debug)]
pub enum DiskOp {
    /// Lists the files that exist ([`DiskOutput::Files`]).
    List,
    /// Reads. Bytes past the end of the file are zeroes.
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
        /// The bytes to write.
        data: Vec<Bytes>,
    },
    /// Makes all completed writes of the file stable.
    Sync {
        /// The file.
        file: FileId,
    },
    /// Creates the file with this length if it does not exist, and makes its name stable.
    /// Preallocates the file when `allocate` is set, otherwise leaves it sparse.
    Create {
        /// The file.
        file: FileId,
        /// Length.
        len_bytes: u64,
        /// Reserve the space now.
        allocate: bool,
    },
    /// Removes the file, and makes the removal stable.
    Remove {
        /// The file.
        file: FileId,
    },
    /// Gives the range's space back to the file system. Later reads give zeroes or old data.
    Discard {
        /// The file.
        file: FileId,
        /// First byte.
        offset_bytes: u64,
        /// Length.
        len_bytes: u64,
    },
}

/// The result of a disk operation.
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
    /// Another error, in the system's words.
    #[error("{0}")]
    Io(String),
}

/// Events for a node.
#[derive(Debug)]
pub enum NodeEvent {
    /// A request, a fragment of one, or its end arrived. If a payload of more than
    /// [`fieldstone_proto::FRAGMENT_BYTES_MAX`] follows in fragments, the world has memory for all
    /// of them.
    Request {
        /// The connection.
        peer: PeerId,
        /// The request.
        request: Request,
    },
    /// A disk operation completed.
    Disk {
        /// The operation.
        id: DiskId,
        /// Its result.
        result: Result<DiskOutput, DiskError>,
    },
    /// A connection is gone; its unanswered requests need no reply.
    PeerLost {
        /// The connection.
        peer: PeerId,
    },
    /// Another node answered a request that this node has passed on.
    Relayed {
        /// The link.
        from: LinkTarget,
        /// The answer. Its tag is that of the request.
        reply: Reply,
    },
    /// A link is gone, or could not be opened. Requests on it get no answer any more.
    LinkLost {
        /// The link.
        to: LinkTarget,
    },
    /// Time has passed: [`crate::Node::deadline_ns`] is due.
    Tick,
    /// The time of day. Only the expiry of capabilities goes by it. It may jump: while the machine
    /// is suspended, the clock of [`crate::Node::handle`] stands still, and an operator or a time
    /// server may set the machine's clock. So the world says this before the first request, and
    /// before the next one after each change: it reads the clock after the request has come. For
    /// 3 s after a jump forwards, the time before the jump counts: a volume may have signed a
    /// request before the jump, and the clock of a volume's machine may jump later.
    WallClock {
        /// Nanoseconds since 1970 minus those of the clock of [`crate::Node::handle`]. 0 until the
        /// first event.
        offset_ns: u64,
    },
    /// The file system reports how much space the node may use. The node takes no slots beyond it,
    /// until a later event. A world that never sends this event promises space for every slot.
    Room {
        /// The largest total length of the data file's allocated parts: the space that they take
        /// now, plus the space that the file system has left for them.
        room_bytes: u64,
    },
}

/// Actions that a node asks its world for.
#[derive(Debug)]
pub enum NodeAction {
    /// Carry out a disk operation; operations in flight together may complete in any order.
    Disk {
        /// Returned in [`NodeEvent::Disk`].
        id: DiskId,
        /// The operation.
        op: DiskOp,
    },
    /// Pass a request on to another node, over the link to it. The world opens the link if there is
    /// none. It reports [`NodeEvent::LinkLost`] if it cannot, or when the link breaks. It may cut
    /// the payload if the route allows fragments. A fragment or the end of a request opens no link:
    /// their request ended with the link.
    Relay {
        /// The link.
        to: LinkTarget,
        /// The request.
        request: Request,
    },
    /// Close a link, if there is one: the other node is silent. No [`NodeEvent::LinkLost`] follows.
    CloseLink {
        /// The link.
        to: LinkTarget,
    },
    /// Answer a request.
    Reply {
        /// The connection.
        peer: PeerId,
        /// The answer.
        reply: Reply,
    },
}

/// The configuration of a node, from its superblock.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The pool.
    pub pool: PoolId,
    /// The node's place in the pool.
    pub node: NodeIndex,
    /// Distinguishes this node from an empty replacement at the same place.
    pub incarnation: u64,
    /// The pool's secrets at the start; [`crate::Node::set_keys`] gives later ones.
    pub keys: PoolKeys,
    /// Size of a slot in bytes; a multiple of 4096, at most 3 MiB (its checksums fit the header).
    pub slot_bytes: u32,
    /// Number of slots.
    pub slots: u32,
    /// Check payload checksums on arrival too, for peers behind a network.
    pub verify_payload: bool,
    /// Longest write that goes to the disk at once; [`crate::limits::PIECE_BYTES`]. A multiple of
    /// 4096.
    pub piece_bytes: usize,
    /// Memory for parity that the node makes. The nodes of a process share it.
    pub parity_memory: ParityMemory,
}
