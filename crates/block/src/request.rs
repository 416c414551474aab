//! Requests, completions and the [`Backend`] trait: the interface between front-ends and stores.
//!
//! Offsets and lengths are in bytes and need no alignment at the front. A backend states the
//! alignment that it needs in [`Info::block_bytes`], and the `Align` layer bridges the two. No code
//! here reads a clock: the caller passes the time in, so the same code runs in the real and in the
//! seeded world.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::ReadDestination;

/// A point in time or a duration, in nanoseconds of the world's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time from `earlier` to `self`; zero if the clock went backwards.
    #[must_use]
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// This point in time plus `duration`.
    #[must_use]
    pub fn plus(self, duration: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(duration.0))
    }

    /// A duration given in milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }
}

/// The name of a request in its submitter's queue; unique among those in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The queue of a device that a request comes from: one for each connection or virtual queue.
/// Layers that divide something, such as a rate, divide it among queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

/// The operation of a request. `offset` and `len` of [`Request`] apply to all but `Flush`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read `len_bytes` bytes.
    Read,
    /// Write `data`, whose length equals `len_bytes`.
    Write,
    /// Make stable every write that completed before this request was submitted.
    Flush,
    /// Forget the content: later reads give zeroes, and the backend releases the space. Only the
    /// backend's whole blocks inside the range are trimmed: if `Align` stands in front of larger
    /// blocks, the bytes of a block that the range covers in part keep their content.
    Trim,
    /// Later reads give zeroes; `no_hole` keeps the space reserved.
    WriteZeroes,
    /// List the extents of the range.
    Extents,
}

impl Op {
    /// True when the operation may change what later reads give.
    #[must_use]
    pub fn changes_data(self) -> bool {
        matches!(self, Op::Write | Op::Trim | Op::WriteZeroes)
    }
}

/// Modifiers of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFlags {
    /// Complete only when this request's effect is on stable storage (any op that changes data).
    pub fua: bool,
    /// `WriteZeroes` only: the range must stay allocated.
    pub no_hole: bool,
    /// `WriteZeroes` only: fail with [`BlockError::NotSupported`] rather than be slow.
    pub fast_zero: bool,
}

/// The stages of a request's life, in order; each gets a time stamp (ARCHITECTURE.md, "The life of
/// a write").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Stage {
    /// The front-end decoded the request.
    Received = 0,
    /// The scheduler passed it on.
    Scheduled = 1,
    /// The backend took the request, after cache and alignment.
    Submitted = 2,
    /// The request's first message left for a node, or memory answered.
    Sent = 3,
    /// The last node reply that the request needed arrived.
    Replied = 4,
    /// The front-end got its completion.
    Completed = 5,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Stage; 6] = [
        Stage::Received,
        Stage::Scheduled,
        Stage::Submitted,
        Stage::Sent,
        Stage::Replied,
        Stage::Completed,
    ];

    /// The name of the interval that ends at this stage, for tables.
    #[must_use]
    pub fn interval_name(self) -> &'static str {
        match self {
            Stage::Received => "front-end",
            Stage::Scheduled => "scheduler",
            Stage::Submitted => "cache",
            Stage::Sent => "volume",
            Stage::Replied => "nodes",
            Stage::Completed => "completion",
        }
    }
}

/// When a request passed each stage; zero for a stage that it did not pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps([Nanos; 6]);

impl Stamps {
    /// Records that the request passed `stage` at `now`.
    pub fn stamp(&mut self, stage: Stage, now: Nanos) {
        self.0[stage as usize] = now;
    }

    /// When the request passed `stage`, or zero.
    #[must_use]
    pub fn at(&self, stage: Stage) -> Nanos {
        self.0[stage as usize]
    }

    /// Copies the stages that a backend stamps (submitted, sent, replied) from the request that a
    /// layer made in place of this one.
    pub fn adopt_backend(&mut self, inner: &Stamps) {
        for stage in [Stage::Submitted, Stage::Sent, Stage::Replied] {
            self.0[stage as usize] = inner.0[stage as usize];
        }
    }
}

/// One request to a block device.
#[derive(Clone, Debug)]
pub struct Request {
    /// The submitter's name for the request. The completion returns it.
    pub id: RequestId,
    /// The operation.
    pub op: Op,
    /// First byte, from the start of the device.
    pub offset_bytes: u64,
    /// Length; zero is allowed and completes at once.
    pub len_bytes: u32,
    /// Modifiers.
    pub flags: RequestFlags,
    /// The bytes to write, for [`Op::Write`]; empty otherwise.
    pub data: Bytes,
    /// The memory in which the front-end wants the bytes, for [`Op::Read`]; none otherwise.
    pub destination: ReadDestination,
    /// The queue that the request comes from.
    pub queue: QueueId,
    /// When the request passed each stage.
    pub stamps: Stamps,
}

impl Request {
    /// A request without data that a part of the device makes itself.
    #[must_use]
    pub fn own(id: RequestId, op: Op, offset_bytes: u64, len_bytes: u32) -> Self {
        Self {
            id,
            op,
            offset_bytes,
            len_bytes,
            flags: RequestFlags::default(),
            data: Bytes::new(),
            destination: ReadDestination::default(),
            queue: QueueId::default(),
            stamps: Stamps::default(),
        }
    }

    /// The first byte behind the range. Cannot overflow for a request with a checked range.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes + u64::from(self.len_bytes)
    }

    /// Checks all reasons for which a device of this kind refuses a request without any work: the
    /// range, its alignment, the length of the data, and writes to a read-only device. The
    /// [`Stack`](crate::Stack) calls this once for each request; layers and stores rely on it.
    ///
    /// # Errors
    /// Why the device refuses the request.
    pub fn validate(&self, info: &Info) -> Result<(), BlockError> {
        if self.op == Op::Flush {
            return Ok(());
        }
        let end = self.offset_bytes.checked_add(u64::from(self.len_bytes));
        if end.is_none_or(|end| end > info.size_bytes) {
            return Err(BlockError::OutOfRange {
                offset_bytes: self.offset_bytes,
                len_bytes: self.len_bytes,
                size_bytes: info.size_bytes,
            });
        }
        if self.op.changes_data() && info.read_only {
            return Err(BlockError::ReadOnly);
        }
        if self.op == Op::Write && self.data.len() as u64 != u64::from(self.len_bytes) {
            return Err(BlockError::NotSupported("a write whose data differs from its length"));
        }
        let mask = u64::from(info.block_bytes.max(1)) - 1;
        if (self.offset_bytes | u64::from(self.len_bytes)) & mask != 0 {
            return Err(BlockError::NotSupported("a range that is not aligned to blocks"));
        }
        Ok(())
    }

    /// The result of a request of this kind over an empty range: an empty list of pieces or
    /// extents, or no payload.
    #[must_use]
    pub fn empty_payload(&self) -> Payload {
        match self.op {
            Op::Read => Payload::Data(SmallVec::new()),
            Op::Extents => Payload::Extents(Vec::new()),
            Op::Write | Op::Flush | Op::Trim | Op::WriteZeroes => Payload::None,
        }
    }
}

/// A part of the bytes of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of the device.
    Data(Bytes),
    /// This many zero bytes, not backed by memory.
    Zeroes(u32),
}

impl Piece {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        match self {
            Piece::Data(data) => u32::try_from(data.len()).expect("a request is at most 32 MiB"),
            Piece::Zeroes(len_bytes) => *len_bytes,
        }
    }
}

/// How a range is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Allocated, holds data.
    Data,
    /// Allocated (reserved), reads as zeroes.
    Zero,
    /// Not allocated, reads as zeroes.
    Hole,
}

/// A run of bytes of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// How it is stored.
    pub kind: ExtentKind,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: writes, flushes, trims.
    None,
    /// The bytes read, in order; the lengths sum to the request's length.
    Data(SmallVec<[Piece; 1]>),
    /// Extents that cover the request's range from its start, in order. Adjacent extents differ in
    /// kind. The list may end before the range does: it has at most [`EXTENTS_MAX`] extents, and a
    /// backend may stop before the end of a long range.
    Extents(Vec<Extent>),
}

/// The largest number of extents in one answer. Clients ask for many answers at once, so each has
/// to be small.
pub const EXTENTS_MAX: usize = 1024;

/// Why a request failed. Front-ends map these errors to their own numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The range ends behind the device, or is not allowed.
    #[error("range {offset_bytes}+{len_bytes} is outside the device of {size_bytes} bytes")]
    OutOfRange {
        /// First byte of the range.
        offset_bytes: u64,
        /// Length of the range.
        len_bytes: u32,
        /// Size of the device.
        size_bytes: u64,
    },
    /// No space is left: in the pool of a volume, or in the file system of a file. Trimming helps,
    /// or more nodes for the pool.
    #[error("no space is left")]
    NoSpace,
    /// The device does not support the operation, or only slowly.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The data cannot be read or written: too many nodes are missing, or a device failed.
    #[error("input/output error: {0}")]
    Io(String),
    /// Another writer took the volume over (its epoch is newer). This one may no longer write.
    #[error("fenced: {0}")]
    Fenced(String),
    /// The device is read-only.
    #[error("the device is read-only")]
    ReadOnly,
    /// The device is shutting down.
    #[error("the device is shutting down")]
    ShuttingDown,
}

/// The answer to one request.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The request's id.
    pub id: RequestId,
    /// The request's operation.
    pub op: Op,
    /// The request's length in bytes.
    pub len_bytes: u32,
    /// The result of the request, or the reason why it failed.
    pub result: Result<Payload, BlockError>,
    /// When the request passed each stage.
    pub stamps: Stamps,
}

impl Completion {
    /// The completion of `request` with `result`, with the request's present stamps.
    #[must_use]
    pub fn of(request: &Request, result: Result<Payload, BlockError>) -> Self {
        let Request { id, op, len_bytes, stamps, .. } = *request;
        Completion { id, op, len_bytes, result, stamps }
    }
}

/// The properties of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Size of the device.
    pub size_bytes: u64,
    /// Requests must start and end on multiples of this (a power of two, 1 = any).
    pub block_bytes: u32,
    /// The best request size for this backend.
    pub preferred_bytes: u32,
    /// How long a read should be that a layer sends ahead of a sequential reader. 0 if reading
    /// ahead gains nothing: the data is in memory, or the backend itself reads ahead.
    pub read_ahead_bytes: u32,
    /// The device refuses writes.
    pub read_only: bool,
}

/// Others may read and change the data of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The reason, for people: a clause such as "another client has the lock".
    pub why: &'static str,
    /// It stays so as long as the backend is open.
    pub for_good: bool,
}

/// A store of blocks: it takes requests, and gives completions in any order.
///
/// Implementations do no I/O and read no clock. They state their needs to the world through their
/// own, wider interface (the volume's node messages, say). Contract:
/// - every request is valid for the device ([`Request::validate`]), and its id is the only one of
///   that value in flight;
/// - every submitted request completes exactly once, with success or an error;
/// - a read submitted after a write completed sees that write (per byte);
/// - of a read and a write in flight together, the read sees each block before or after the write;
/// - a flush covers the writes that completed before it was submitted.
pub trait Backend {
    /// The properties of the device.
    fn info(&self) -> Info;

    /// Takes a request at time `now`. Completions may be ready at once, through [`Backend::poll`].
    fn submit(&mut self, request: Request, now: Nanos);

    /// Moves the ready completions into `out`, and does timed work that is due at `now`.
    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>);

    /// When to call `poll` again even if nothing else happens; `None` if that is not necessary.
    fn deadline(&self) -> Option<Nanos>;

    /// Why others may read and change the data; `None` if no other client does.
    ///
    /// Layers above may keep data only while this is `None`: bytes that they have read, and bytes
    /// that they have not written yet. The [`Stack`](crate::Stack) asks at each poll. A backend
    /// that is about to share its data (to give a lock to another client, or for a snapshot that
    /// another client makes) says so here, still takes requests, and goes on after
    /// [`Backend::settled`].
    fn shared(&self) -> Option<Sharing> {
        None
    }

    /// The layers above keep nothing any more: each answered write is in the backend. The stack
    /// calls this once after [`Backend::shared`] has begun to give a reason, or another one.
    fn settled(&mut self) {}
}

impl<B: Backend + ?Sized> Backend for Box<B> {
    fn info(&self) -> Info {
        (**self).info()
    }
    fn submit(&mut self, request: Request, now: Nanos) {
        (**self).submit(request, now);
    }
    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        (**self).poll(now, out);
    }
    fn deadline(&self) -> Option<Nanos> {
        (**self).deadline()
    }
    fn shared(&self) -> Option<Sharing> {
        (**self).shared()
    }
    fn settled(&mut self) {
        (**self).settled();
    }
}
