//! Every bound of the node in one place.
//!
//! Memory follows from them: a request table entry is about 150 bytes, the disk operations in
//! flight are bounded by the entries and slots that they serve, and what is parked or queued is
//! an entry of the table. Payloads in flight are the connections' bound, not the node's.

/// Requests in the table; one more is answered [`fieldstone_proto::NodeError::Busy`].
pub const REQUESTS_MAX: usize = 4096;

/// Requests in the table from which on reads of shards are answered
/// [`fieldstone_proto::NodeError::Busy`]: however much is read, writes find room.
pub const REQUESTS_FOR_READS_MAX: usize = REQUESTS_MAX / 4 * 3;

/// Volumes that a node knows.
pub const VOLUMES_MAX: usize = 4096;

/// Journals of one volume on a node.
pub const JOURNALS_MAX: usize = 64;

/// Rings that a node keeps room for on its disk, at most one for each volume.
pub const RINGS_KEPT_MAX: usize = 4;

/// Largest journal ring.
pub const RING_BYTES_MAX: u64 = 1 << 40;

/// Shards in one answer to a list request, give or take one segment.
pub const SHARDS_PER_PAGE: usize = 4096;

/// Segments in one delete request.
pub const SEGMENTS_PER_DELETE: usize = 4096;

/// Bytes of roots in one answer to a request for the list of volumes; the roots that do not fit
/// are left out and can be had by fencing the volume.
pub const LISTED_ROOT_BYTES_MAX: usize = 2 << 20;

/// Bytes that the verification of a shard reads at a time.
pub const VERIFY_CHUNK_BYTES: u32 = 1 << 20;

/// Disk operations in flight while starting.
pub const START_OPS_MAX: usize = 16;

/// Slot headers read at a time while starting.
pub const START_HEADERS_PER_READ: u32 = 256;

/// Times that a slot's header is read at the start before the slot is out of use: the first time
/// together with others.
pub const START_READS_MAX: u8 = 6;

/// What a start writes anew after a failed sync, it reads and writes in pieces of this size.
pub const START_REWRITE_BYTES: u32 = 1 << 20;

/// Freed slots are made reusable by a sync of their own once one in this many slots waits for it.
pub const RECLAIM_FRACTION: usize = 16;
