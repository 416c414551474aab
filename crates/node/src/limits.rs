//! Every bound of the node in one place.
//!
//! The bounds bound the memory. An entry of the request table takes about 150 bytes. The entries
//! and slots bound the disk operations in flight that serve them. A parked or queued request is an
//! entry of the table. The connections bound the payloads in flight; the node does not.

/// Requests in the table. The node answers one more with [`fieldstone_proto::NodeError::Busy`].
pub const REQUESTS_MAX: usize = 4096;

/// With this many requests in the table, the node answers reads of shards with
/// [`fieldstone_proto::NodeError::Busy`]. So writes find room, no matter how much clients read.
pub const REQUESTS_FOR_READS_MAX: usize = REQUESTS_MAX / 4 * 3;

/// Requests that a node has passed on to other nodes, and that are not answered. The node does not
/// pass on a request that would exceed this number, and says so
/// ([`fieldstone_proto::NodeError::NotPassedOn`]): the writer sends it itself.
pub const RELAYS_MAX: usize = 2 * REQUESTS_MAX;

/// Those of one volume. The writer of a volume chooses the nodes behind this one and how long this
/// one waits for them, so it must not fill the table of all volumes with such waits.
pub const RELAYS_PER_VOLUME_MAX: usize = REQUESTS_MAX / 8;

/// How long another node may answer nothing at all, while answers are due, before this node closes
/// the link and with it all waits on it, in nanoseconds. Writers choose how long their own requests
/// wait; this is the time that no writer chooses.
pub const LINK_SILENCE_NS: u64 = 3_000_000_000;

/// For this long after that, the node passes nothing on to the silent one, in nanoseconds.
pub const LINK_REST_NS: u64 = 5_000_000_000;

/// Silent nodes that the node remembers.
pub const LINK_RESTS_MAX: usize = 64;

/// A node that is this late with the end of a wait was stopped itself, in nanoseconds: answers may
/// lie in its sockets. It waits for this long, once.
pub const OWN_DELAY_NS: u64 = 100_000_000;

/// Bytes of the memory for parity that the nodes of a process make, unless the configuration says
/// otherwise. Half of it is for sums, which is enough for the parity that 32 large writes are
/// waiting for. The node answers what needs more with [`fieldstone_proto::NodeError::Denied`].
pub const PARITY_MEMORY_BYTES: usize = 64 << 20;

/// One volume may use this part (one in four) of the memory for sums, and of that for products: the
/// writer of a volume chooses how many nodes there are and how long the nodes wait for them.
pub const PARITY_VOLUMES: usize = 4;

/// Tables of columns whose compiled maps a node keeps (`products`).
pub const COLUMN_TABLES_KEPT: usize = 64;

/// Tables of one volume among them. A code with k data shards needs k, and
/// more where only some of its products find memory.
pub const COLUMN_TABLES_OF_VOLUME: usize = COLUMN_TABLES_KEPT / 4;

/// Rows and terms of all these maps together. A row of one term takes up to 500 bytes. The map used
/// last always stays.
pub const COLUMN_SIZE_KEPT: usize = 1 << 16;

/// Sums that a node has denied and of which contributions may still come. The node denies these
/// contributions, too. Without room here it answers [`fieldstone_proto::NodeError::Busy`], and the
/// writer ends what waits.
pub const DENIED_SUMS_MAX: usize = 4096;

/// Those of one volume.
pub const DENIED_SUMS_PER_VOLUME_MAX: usize = DENIED_SUMS_MAX / 8;

/// Contributions of one volume that wait for others. They are entries of the request table, which
/// one writer must not fill with such waits.
pub const GATHERING_PER_VOLUME_MAX: usize = REQUESTS_MAX / 8;

/// Writes of one volume whose payload is coming in fragments (`arrivals`). They are entries of the
/// request table, which one writer must not fill with writes that never end.
pub const ARRIVALS_PER_VOLUME_MAX: usize = REQUESTS_MAX / 8;

/// The bytes of these payloads, in total: a third of the memory for clients' payloads that a node's
/// process has by default. The connection takes this memory before the first byte has come.
pub const ARRIVING_BYTES_PER_VOLUME_MAX: usize = 64 << 20;

/// A write is given up when no fragment of it has come for this long, in nanoseconds.
pub const FRAGMENTS_SILENCE_NS: u64 = 5_000_000_000;

/// A node waits for this much longer with each rank, in nanoseconds. So nodes of lower rank give
/// the write up first, and tell those behind them.
pub const FRAGMENTS_SILENCE_STEP_NS: u64 = 500_000_000;

/// A write is given up when its last fragment has not come for this long after its request, in
/// nanoseconds. A writer must not hold memory with a fragment now and then.
pub const ARRIVAL_NS: u64 = 30_000_000_000;

/// Longest write that goes to the disk at once, in bytes, unless the configuration says otherwise.
/// Pieces of six nodes that share a disk of 1 GB/s delay an append to a journal by 1.5 ms at most.
pub const PIECE_BYTES: usize = 256 << 10;

/// Volumes that a node may know.
pub const VOLUMES_MAX: usize = 4096;

/// Removed volumes whose epochs a node remembers: the last ones.
pub const REMOVED_VOLUMES_MAX: usize = 1024;

/// Journals of one volume on a node.
pub const JOURNALS_MAX: usize = 64;

/// Rings for which a node keeps room on its disk, at most one for each volume.
pub const RINGS_KEPT_MAX: usize = 4;

/// Largest journal ring.
pub const RING_BYTES_MAX: u64 = 1 << 40;

/// Shards in one answer to a list request. The last segment may exceed it.
pub const SHARDS_PER_PAGE: usize = 4096;

/// Segments in one delete request.
pub const SEGMENTS_PER_DELETE: usize = 4096;

/// Bytes of roots in one answer to a request for the list of volumes. The node leaves out the roots
/// that do not fit; a client gets them by fencing the volume.
pub const LISTED_ROOT_BYTES_MAX: usize = 2 << 20;

/// Bytes that the verification of a shard reads at a time.
pub const VERIFY_CHUNK_BYTES: u32 = 1 << 20;

/// Disk operations in flight while starting.
pub const START_OPS_MAX: usize = 16;

/// Slot headers read at a time while starting.
pub const START_HEADERS_PER_READ: u32 = 256;

/// How often a start reads a slot's header before it takes the slot out of use. The first read
/// covers several headers.
pub const START_READS_MAX: u8 = 6;

/// After a failed sync, a start reads and rewrites data in pieces of this size.
pub const START_REWRITE_BYTES: u32 = 1 << 20;

/// When one in this many slots is freed and waits for a sync, the node syncs them to reuse them.
pub const RECLAIM_FRACTION: usize = 16;
