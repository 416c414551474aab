//! Flags of a request ([`OsdOp::flags`](super::OsdOp)) and of its reply (Ceph: `CEPH_OSD_FLAG_*`).

/// Request: answer when the change is in memory. OSDs since Ceph 12 ignore it. Reply: it is the
/// answer.
pub const ACK: u32 = 0x0001;
/// Request: answer when the change is safe. Every request has it. Reply: the change is safe.
pub const ONDISK: u32 = 0x0004;
/// Request: it was sent before. Goes with [`OsdOp::attempt`](super::OsdOp) above 0.
pub const RETRY: u32 = 0x0008;
/// Request: it reads, and does not write.
pub const READ: u32 = 0x0010;
/// Request: it writes.
pub const WRITE: u32 = 0x0020;
/// Request: fail with errno 85 if the object has a newer snapshot than the request's snapshot
/// context.
pub const ORDERSNAP: u32 = 0x0040;
/// Request: any replica may answer the read. The OSD asks for it where it is not the primary.
pub const BALANCE_READS: u32 = 0x0100;
/// Request: it is on a placement group, not on an object.
pub const PGOP: u32 = 0x0400;
/// Request: the nearest replica may answer the read.
pub const LOCALIZE_READS: u32 = 0x2000;
/// Request: a read keeps its place between writes.
pub const RWORDERED: u32 = 0x4000;
/// Request: it is sent to this pool although another is its cache.
pub const IGNORE_OVERLAY: u32 = 0x2_0000;
/// Request: the snapshot context counts although the pool keeps snapshots itself.
pub const ENFORCE_SNAPC: u32 = 0x10_0000;
/// Request: it was redirected.
pub const REDIRECTED: u32 = 0x20_0000;
/// Request: [`REDIRECTED`] is set if it was redirected. Every request has it.
pub const KNOWN_REDIR: u32 = 0x40_0000;
/// Request: on a full pool it fails, instead of waiting.
pub const FULL_TRY: u32 = 0x80_0000;
/// Request: it is done although the pool is full.
pub const FULL_FORCE: u32 = 0x100_0000;
/// Request: the reply of a write has the results and the data of its operations. OSDs know it since
/// Ceph 15.
pub const RETURNVEC: u32 = 0x400_0000;
/// Request: the client understands that a pool can answer all requests with `EIO`. OSDs know it
/// since Ceph 19; without it they drop the request.
pub const SUPPORTS_POOL_EIO: u32 = 0x800_0000;

/// What every request has.
pub const ALWAYS: u32 = ONDISK | KNOWN_REDIR | SUPPORTS_POOL_EIO;
