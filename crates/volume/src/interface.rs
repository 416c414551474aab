//! The interface between a volume and its world: connections to nodes, and a clock.
//!
//! To its users a [`crate::Volume`] is a [`fieldstone_block::Backend`]. For its nodes, the world
//! hands it [`VolumeEvent`]s and asks it for [`VolumeAction`]s. The world keeps one connection to
//! each node, in order in both directions. A connection may break at any time; the world reports
//! that once. The world also does the volume's jobs, each once, in any order.

use std::str::FromStr;

use fieldstone_accel::{Job, JobError, JobId, JobOutput};
use fieldstone_codes::Profile;
use fieldstone_proto::{
    BLOCK_BYTES, Capability, Encode, Epoch, NodeIndex, PoolKeys, Reply, Request, Strategy, VolumeId,
};

use crate::relay::Reach;

/// Events for a volume, other than block requests.
#[derive(Debug)]
pub enum VolumeEvent {
    /// A connection to the node is open.
    NodeUp(NodeIndex),
    /// How other nodes reach the node. The world says this before [`VolumeEvent::NodeUp`] if it
    /// knows it; until then no node passes writes on to this node.
    NodeAt(NodeIndex, Reach),
    /// The connection to the node is gone, and with it all unanswered requests.
    NodeDown(NodeIndex),
    /// A node answered.
    Reply {
        /// Which node.
        node: NodeIndex,
        /// The answer.
        reply: Reply,
    },
    /// A job is done.
    JobDone {
        /// The number of the job.
        id: JobId,
        /// Its result, with the bits of software.
        result: Result<JobOutput, JobError>,
    },
    /// The world has issued a capability ([`Authority::World`]), as the volume asked.
    Issued {
        /// The capability, for every right that a writer needs.
        capability: Capability,
        /// How long it is valid, from its issue.
        lifetime_ns: u64,
    },
    /// The world issues no capabilities to this volume any more, for this reason. The volume fails.
    NotIssued(String),
    /// The pool has a new secret ([`Authority::World`]): the volume asks for capabilities anew.
    Renew,
    /// The time of day, by which capabilities expire. It may jump against the volume's clock. Then
    /// the world says this before the next event, or within a few seconds while the volume runs.
    /// For 3 s after a jump backwards, the volume signs by the time before it: the clocks of other
    /// machines may jump later.
    WallClock {
        /// As [`VolumeConfig::wall_offset_ns`].
        offset_ns: u64,
    },
}

/// Actions that a volume asks its world for.
#[derive(Debug)]
pub enum VolumeAction {
    /// Send a request over the node's connection.
    Send {
        /// To which node.
        node: NodeIndex,
        /// The request.
        request: Request,
    },
    /// Close the node's connection, if any, and open a new one. [`VolumeEvent::NodeUp`] reports the
    /// new connection; until then the world retries at its own pace. The world never does this
    /// unasked. No [`VolumeEvent::NodeDown`] follows the closing.
    Reconnect {
        /// Which node.
        node: NodeIndex,
    },
    /// Issue a capability for this epoch, and report it with [`VolumeEvent::Issued`]. The volume
    /// asks again until there is an answer. Only with [`Authority::World`].
    Issue {
        /// The epoch of the capability.
        epoch: Epoch,
    },
    /// Do a job, and report it with [`VolumeEvent::JobDone`].
    Job {
        /// Its number. The volume uses each number once.
        id: JobId,
        /// The job.
        job: Job,
    },
}

/// The largest device and journal that a root may name: an exbibyte.
const SIZE_BYTES_MAX: u64 = 1 << 60;
/// The largest shard that a root may name.
const SHARD_BYTES_MAX: u32 = 1 << 30;

/// Sizes that a volume gets at its creation and keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the device in bytes; a multiple of 4096.
    pub size_bytes: u64,
    /// Size of a full shard; at most the nodes' slot size; a multiple of `unit_bytes`.
    pub shard_bytes: u32,
    /// Consecutive bytes of a segment that lie on one shard; a multiple of 4096.
    pub unit_bytes: u32,
    /// For codes that cut shards into elements: the bytes of a shard that the code cuts. Each such
    /// chunk is coded by itself with the same chunk of the other shards. A multiple of `unit_bytes`
    /// and of the elements of whole blocks; 0 if the whole shard is one chunk.
    pub chunk_bytes: u32,
    /// Size of the journal ring on each journal node; a multiple of 4096.
    pub ring_bytes: u64,
}

impl Geometry {
    /// Whether a volume may have these sizes. Roots of volumes that untrusted clients write are
    /// read, too.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        const BLOCK: u64 = BLOCK_BYTES as u64;
        let Self { size_bytes, shard_bytes, unit_bytes, chunk_bytes, ring_bytes } = *self;
        let blocks = |bytes: u64, max: u64| bytes.is_multiple_of(BLOCK) && bytes <= max;
        let divides = |part: u32, whole: u32| part > 0 && whole.is_multiple_of(part);
        let chunk_bytes = if chunk_bytes == 0 { shard_bytes } else { chunk_bytes };
        blocks(size_bytes, SIZE_BYTES_MAX)
            && blocks(ring_bytes, SIZE_BYTES_MAX)
            && ring_bytes > 0
            && (BLOCK..=u64::from(SHARD_BYTES_MAX)).contains(&u64::from(shard_bytes))
            && blocks(unit_bytes.into(), shard_bytes.into())
            && divides(unit_bytes, chunk_bytes)
            && divides(chunk_bytes, shard_bytes)
    }
}

/// The part of the pool's space that a volume keeps for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provisioning {
    /// All slots that its size takes, from its creation on. No other volume can make it run out of
    /// space.
    Thick,
    /// The slots that its data takes and that it needs to go on, and more as it fills. It may run
    /// out of space before it is full, when other volumes have taken the space.
    #[default]
    Thin,
}

/// Which copy answers a read, if the shards of a segment are copies (`copies:N`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadPolicy {
    /// The first one.
    #[default]
    Primary,
    /// The one whose node has the fewest blocks to deliver to this volume; of equal ones each in
    /// turn.
    Balance,
}

impl FromStr for ReadPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "primary" => Ok(Self::Primary),
            "balance" => Ok(Self::Balance),
            _ => Err(format!("{text:?} is no way to read: it is primary or balance")),
        }
    }
}

/// The mode of an opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Create it; fails if it exists.
    Create {
        /// Its name, up to 255 bytes.
        name: String,
        /// The code that protects its data.
        profile: Profile,
        /// Its sizes.
        geometry: Geometry,
        /// How much of the pool it reserves.
        provisioning: Provisioning,
    },
    /// Open it and serve it.
    Open {
        /// Take it over, even from a writer that is still connected to its nodes.
        takeover: bool,
    },
    /// Find out its state, and write nothing. The volume never serves.
    Inspect,
}

/// Who issues the capabilities of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authority {
    /// The volume itself, with the pool's secrets. [`crate::Volume::set_keys`] gives later ones.
    Secrets(PoolKeys),
    /// The world: [`VolumeAction::Issue`] asks it, [`VolumeEvent::Issued`] answers. The volume has
    /// no secret of the pool.
    World,
}

/// The configuration of an opening.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// The volume.
    pub volume: VolumeId,
    /// Whether to create, open or inspect the volume.
    pub opening: OpenMode,
    /// Number of nodes of the pool.
    pub nodes: u16,
    /// Nodes that may be missing at opening (the pool's redundancy).
    pub missing_max: u16,
    /// Who issues the volume's capabilities.
    pub authority: Authority,
    /// The time of day minus the clock of [`Volume::handle`](crate::Volume::handle), in
    /// nanoseconds, for the expiry of capabilities. [`VolumeEvent::WallClock`] replaces it.
    pub wall_offset_ns: u64,
    /// A node that does not answer for this long counts as down.
    pub node_timeout_ms: u64,
    /// How the records of the journal reach its nodes.
    pub replicate: Strategy,
    /// A longer write that nodes pass on goes in fragments of this length, in bytes, at most
    /// [`fieldstone_proto::FRAGMENT_BYTES_MAX`]; 0 if all writes go whole.
    pub fragment_bytes: u32,
    /// Who makes the parity of new segments. The volume does if its code allows nothing else
    /// ([`crate::can_stream`]).
    pub encode: Encode,
    /// Which copy answers a read.
    pub reads: ReadPolicy,
    /// Start a rebuild of missing shards without a request.
    pub auto_rebuild: bool,
    /// Largest rate of rebuild and scrub reads, bytes per second; 0 for no limit.
    pub rebuild_limit_bytes_per_second: u64,
}
