//! The requests of a volume to a node, and the node's answers.
//!
//! One request is one policy-checked operation (network-accelerated DFS paper, section III): the
//! node's header handler checks its capability before the node stores any byte of payload.

use bytes::Bytes;

use crate::capability::Capability;
use crate::ids::{Epoch, JournalGen, Lsn, NodeIndex, PoolId, SegmentId, ShardIndex, VolumeId};
use crate::route::{Pass, Route};

/// Pairs a reply, and the fragments of a payload, with its request; unique among those in flight on
/// one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// A request to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Pairs the reply with the request.
    pub tag: Tag,
    /// The sender's right to the operation. It names the volume and the epoch.
    pub capability: Capability,
    /// The operation.
    pub body: RequestBody,
    /// The nodes that pass the request on to each other: only for an append to a journal and a
    /// write of a shard. The answer to a request with a route is [`ReplyBody::Outcomes`].
    pub route: Option<Box<Route>>,
    /// Bytes to store, as a gather list; empty for most operations.
    pub payload: Vec<Bytes>,
}

/// The content of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SegmentKind {
    /// Blocks of the volume, and a footer that names them.
    #[default]
    Data = 0,
    /// A piece of a checkpoint of the volume's map.
    Checkpoint = 1,
}

/// Metadata in the slot header of a complete, immutable shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealMeta {
    /// The content of the segment.
    pub kind: SegmentKind,
    /// Log position of the first record in the segment.
    pub lsn_first: Lsn,
    /// Log position behind the last record in the segment.
    pub lsn_end: Lsn,
    /// Length of the shard; a multiple of the block size.
    pub shard_bytes: u32,
}

/// The operations. The request's capability names the volume and the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// Asks for the node's identity. Needs no valid capability.
    Identify,
    /// Lists the volumes that the node knows (`Rights::ADMIN`). The node ignores the capability's
    /// volume.
    ListVolumes,
    /// Raises the volume's epoch to the capability's, durably. From then on the node refuses lower
    /// epochs. If the node did not know the volume, it does now. The answer is
    /// [`ReplyBody::VolumeState`]. While another peer that fenced the volume is connected, the node
    /// refuses with [`NodeError::InUse`], unless `takeover` is set. A node that removed the volume
    /// refuses epochs that are not above the volume's last one, until the node restarts.
    Fence {
        /// Fence even a writer that is still connected.
        takeover: bool,
    },
    /// Replaces the volume's root record with the payload, atomically and durably.
    PutRoot {
        /// Rises with every root. The node refuses a version that is not above the stored one as
        /// invalid, except a repetition of the stored root.
        version: u64,
    },
    /// Makes a journal ring of `ring_bytes` for a generation.
    JournalCreate {
        /// The generation.
        generation: JournalGen,
        /// Size of the ring; a multiple of the block size.
        ring_bytes: u64,
    },
    /// Writes the payload at `lsn % ring_bytes`. It must not run over the ring's end.
    JournalAppend {
        /// The generation.
        generation: JournalGen,
        /// Position of the first byte; a multiple of the block size.
        lsn: Lsn,
    },
    /// Makes the completed appends of this generation stable.
    JournalSync {
        /// The generation.
        generation: JournalGen,
    },
    /// Reads raw ring bytes.
    JournalRead {
        /// The generation.
        generation: JournalGen,
        /// Offset within the ring.
        offset_bytes: u64,
        /// Bytes to read.
        len_bytes: u32,
    },
    /// Removes every generation from `first` on and below `below`.
    JournalDelete {
        /// The first generation to remove.
        first: JournalGen,
        /// The first generation to keep.
        below: JournalGen,
    },
    /// Writes the payload into a shard at `offset_bytes`. The first write of the shard takes a
    /// slot. With `seal`, the node writes the shard's slot header after the data. That completes
    /// the shard; the next [`RequestBody::ShardSync`] makes it stable. Without `seal`, the shard
    /// stays open: its data outlives the node's process and the writer, and the next sync makes it
    /// stable like a complete shard.
    ShardWrite {
        /// The segment.
        segment: SegmentId,
        /// Which of its shards.
        shard: ShardIndex,
        /// Offset within the shard; a multiple of the block size, as is the payload's length.
        offset_bytes: u32,
        /// CRC-32C of each block of the payload, computed by the writer that made the data.
        checksums: Vec<u32>,
        /// Completes the shard.
        seal: Option<SealMeta>,
        /// The node writes the slot header only after the data is stable, so that a power loss
        /// never leaves a listed shard without its data. For shards that no journal backs.
        data_first: bool,
    },
    /// Makes all completed shard writes and seals of the node stable.
    ShardSync,
    /// Reads a block-aligned part of a shard and checks it against the shard's checksums. For an
    /// open shard that the node found at its start, it has no checksums: the reader has to check
    /// the blocks.
    ShardRead {
        /// The segment.
        segment: SegmentId,
        /// Which of its shards.
        shard: ShardIndex,
        /// Offset within the shard.
        offset_bytes: u32,
        /// Bytes to read.
        len_bytes: u32,
    },
    /// Checks a whole shard against its checksums without sending it.
    ShardVerify {
        /// The segment.
        segment: SegmentId,
        /// Which of its shards.
        shard: ShardIndex,
    },
    /// Frees the slots of this volume's shards of these segments. Unknown segments are no error.
    ShardDelete {
        /// The segments.
        segments: Vec<SegmentId>,
    },
    /// Lists the volume's shards, complete and open, with a segment id of at least `from`,
    /// ascending. The volume's writer gets [`NodeError::Busy`] while writes of its former
    /// connections go on.
    ShardList {
        /// The first segment id to list.
        from: SegmentId,
    },
    /// Removes the volume: root, journals and shards.
    RemoveVolume,
    /// Reserves `slots` slots of the node in total for the volume, durably; 0 ends the reservation.
    /// The node keeps slots free that volumes have reserved and do not hold yet. The node grants a
    /// larger reservation in full, or refuses it: with [`NodeError::NoSpace`] if other volumes have
    /// reserved the slots, with [`NodeError::Busy`] if those volumes can release enough slots (see
    /// `spare`), with [`NodeError::Io`] if the disk has no space for the slots. The node always
    /// grants a smaller reservation. A volume without a reservation takes slots that no other
    /// volume has reserved.
    Reserve {
        /// Slots in total, including those that the volume already holds.
        slots: u32,
        /// The number of `slots` that the volume can release. The volume releases them when the
        /// node lacks slots for another volume ([`NodeStat::slots_lacking`]).
        spare: u32,
    },
    /// Replaces a damaged record of the volume with one that has the capability's epoch and no
    /// root. The answer is [`ReplyBody::VolumeState`]. The node refuses as invalid unless the
    /// record is damaged. Only a serving writer may ask, after enough other nodes have told that
    /// its epoch is the newest, because the record may have held any epoch.
    RenewRecord,
    /// From now on the node takes writes of this volume from other nodes if they carry this pass,
    /// and no other pass (see [`crate::route`]). This ends with the sender's connection.
    AdmitRelays {
        /// The pass.
        pass: Pass,
    },
    /// Space and counters.
    Stat,
    /// The next bytes of the payload of the write with this tag, on this connection
    /// ([`crate::fragments`]). It needs no capability and gets no answer.
    Fragment {
        /// CRC-32C of each block, if the write is one of a shard.
        checksums: Vec<u32>,
        /// CRC-32C of the payload of this message. A node that passes the same bytes on does not
        /// compute it again, but passes this one on. So the next node notices damage in the memory
        /// of this one.
        payload_crc: u32,
    },
    /// The other fragments of the write with this tag do not come. It needs no capability and gets
    /// no answer.
    GiveUp,
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request's tag.
    pub tag: Tag,
    /// The result of the request.
    pub result: Result<ReplyBody, NodeError>,
    /// Slots of the node that the request's volume may still take. Every answer has this number.
    pub slots_free: u32,
}

/// The result of a successful request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyBody {
    /// Nothing beyond success.
    Done,
    /// Bytes read.
    Data(Bytes),
    /// For [`RequestBody::Identify`] and [`RequestBody::Stat`].
    Stat(NodeStat),
    /// For [`RequestBody::ListVolumes`].
    Volumes(Vec<VolumeSummary>),
    /// For [`RequestBody::Fence`].
    VolumeState(VolumeState),
    /// For [`RequestBody::ShardList`].
    Shards {
        /// The shards, ascending by segment.
        shards: Vec<ShardInfo>,
        /// The segment for the next request, if there are more shards.
        next: Option<SegmentId>,
    },
    /// For a request with a route: the outcome on the node that answers, and on every node behind
    /// it.
    Outcomes(Vec<Outcome>),
}

/// The outcome of a request with a route on one of its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The node.
    pub node: NodeIndex,
    /// Its result.
    pub result: Result<(), NodeError>,
}

/// A node's identity, its space and its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStat {
    /// The pool it belongs to.
    pub pool: PoolId,
    /// Its place in the pool.
    pub node: NodeIndex,
    /// Distinguishes a node from an empty replacement at the same place. Random.
    pub incarnation: u64,
    /// Size of a slot, which bounds a shard.
    pub slot_bytes: u32,
    /// Number of slots of the node.
    pub slots_total: u32,
    /// Slots that are free and that no volume has reserved.
    pub slots_free: u32,
    /// Slots that volumes need, and that the node refused to them ([`RequestBody::Reserve`]).
    pub slots_lacking: u32,
    /// Bytes of shards read since start.
    pub read_bytes: u64,
    /// Bytes of shards and journals written since start.
    pub written_bytes: u64,
    /// Requests refused by the capability check since start.
    pub refused: u64,
    /// Blocks whose checksum did not match since start.
    pub corrupt_blocks: u64,
}

/// A node's record of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSummary {
    /// The volume.
    pub volume: VolumeId,
    /// The epoch of the volume's writer.
    pub epoch: Epoch,
    /// Version of the stored root; 0 if there is none, [`VolumeSummary::UNUSABLE`] if the node
    /// cannot use its record of the volume.
    pub root_version: u64,
    /// The stored root; empty if there is none, or if the answer would be too long.
    pub root: Bytes,
}

impl VolumeSummary {
    /// The root version that stands for a damaged record, or for one of a later release.
    pub const UNUSABLE: u64 = u64::MAX;

    /// The node can use its record of the volume.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.root_version != Self::UNUSABLE
    }
}

/// A journal ring that a node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalInfo {
    /// The generation.
    pub generation: JournalGen,
    /// Size of the ring.
    pub ring_bytes: u64,
}

/// A node's data about a volume, without the shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeState {
    /// The epoch before this fence.
    pub epoch_before: Epoch,
    /// Version of the stored root; 0 if there is none.
    pub root_version: u64,
    /// The stored root, empty if there is none.
    pub root: Bytes,
    /// The journals on this node.
    pub journals: Vec<JournalInfo>,
    /// The node itself.
    pub stat: NodeStat,
}

/// A shard on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardInfo {
    /// The segment.
    pub segment: SegmentId,
    /// Which of its shards.
    pub shard: ShardIndex,
    /// The metadata in its slot header; all zero while the shard is open.
    pub meta: SealMeta,
}

impl ShardInfo {
    /// The shard is not complete.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.meta.shard_bytes == 0
    }
}

/// Why a node refused or failed a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The capability does not allow the operation.
    #[error("capability refused: {0}")]
    Capability(crate::CapabilityError),
    /// A writer with a newer epoch has taken over.
    #[error("epoch {sent} is stale, the volume is at epoch {current}")]
    Fenced {
        /// The epoch of the request.
        sent: Epoch,
        /// The volume's epoch.
        current: Epoch,
    },
    /// Another writer holds the volume.
    #[error("the volume is in use by another writer (epoch {current})")]
    InUse {
        /// That writer's epoch.
        current: Epoch,
    },
    /// No such volume, journal or shard.
    #[error("not found")]
    NotFound,
    /// Stored bytes do not match their checksum.
    #[error("corrupt at byte {offset_bytes} of the shard")]
    Corrupt {
        /// Offset of the first bad block.
        offset_bytes: u32,
    },
    /// No slot is free.
    #[error("no space on the node")]
    NoSpace,
    /// The request table is full, or the node waits for something else: try again later.
    #[error("the node is busy")]
    Busy,
    /// The request contradicts itself or the node's state.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The node's storage failed.
    #[error("storage error: {0}")]
    Io(String),
    /// The connection to the node is gone, or the node did not answer in time. The sender's side
    /// makes this error.
    #[error("the node is unreachable")]
    Unreachable,
    /// A node could not pass the request on to another node, or got no answer in time. The writer
    /// does not know whether the other node, and those behind it, have carried the request out.
    #[error("{from} got no answer from {to}")]
    NotPassedOn {
        /// The node that tried.
        from: NodeIndex,
        /// The node that it tried to reach. It is another one.
        to: NodeIndex,
    },
    /// A parity node, or a data node, has no memory for this part of a stripe. The parity node has
    /// added nothing up, and waits for no other contribution to the same sum: the writer has to
    /// make the parity.
    #[error("no memory for the sum of the contributions")]
    Denied,
}
