//! The log-structured volume: a block device whose data is a log, protected by codes.
//!
//! Read in this order: [`interface`] (the interface between the volume and its world), `log` (how a
//! write becomes a record), `relay` and `relay_shards` (how nodes pass writes on to each other),
//! `rows` (how large writes go around the journal), `seal` (how records become shards), `carry`
//! (how data nodes pass parity on), `stream` (how nodes make the parity), `width` (how many shards
//! a segment must have), `sync` (when the shards are stable), `read` and `decode`, `open`
//! (recovery, in its own folder), `gc` (how collection frees space), `space` and `provision` (how
//! much room a volume has, and how nodes share room between volumes), `rebuild`, `scrub`, `damage`,
//! `journal` and `join` (how the volume handles nodes that fail and return), `keys` (how the pool's
//! secret changes meanwhile). The formats are in `record`, `footer`, `checkpoint` and `root`.
//! `core` lists the parts of the state; `life`, `writer`, `shape`, `committed` and `outbox` are
//! parts that all the others use.
//!
//! # How to drive it
//! The world hands the volume [`VolumeEvent`]s and block requests. It calls
//! [`fieldstone_block::Backend::poll`] after each batch, and when the volume's deadline is due.
//! Then it carries out the actions that [`Volume::next_action`] gives. Some of these are heavy
//! steps (`jobs`): the world does them in software or on a device.
//!
//! # What it promises
//! - A completed write survives the loss of the serving process, and of any m nodes.
//! - A completed flush covers all writes completed before it: they survive a power loss as well.
//! - A read gives the last completed write, or one in flight. It never gives anything else, no
//!   matter which m nodes lose or damage data.
//! - There is one writer. As soon as a newer writer has opened the volume, the nodes refuse every
//!   older one.

mod calls;
mod carry;
mod checkpoint;
mod checkpoint_slots;
mod codec;
mod coding;
mod column;
mod committed;
mod core;
mod damage;
mod decode;
mod failure;
mod footer;
mod gc;
pub mod interface;
mod jobs;
mod join;
mod journal;
mod keys;
mod layout;
mod life;
mod log;
mod map;
mod node;
mod one_task;
mod open;
mod outbox;
mod place;
mod provision;
mod read;
mod rebuild;
mod record;
mod relay;
mod relay_shards;
mod repair;
mod reserve;
mod root;
mod rows;
#[cfg(test)]
mod script;
mod scrub;
mod seal;
mod segment;
mod shape;
mod space;
mod status;
mod stream;
mod sync;
mod timers;
mod volume;
mod waiting;
mod wall_clock;
mod watch;
mod width;
mod writer;

pub use codec::FormatError;
pub use failure::{AttemptFailure, JournalRefusal, ReservationRefusal, TooLarge, VolumeFailure};
pub use interface::{
    Authority, Geometry, OpenMode, Provisioning, ReadPolicy, VolumeAction, VolumeConfig,
    VolumeEvent,
};
pub use layout::step_blocks;
pub use record::RECORD_BLOCKS_MAX;
pub use relay::Reach;
pub use space::slots_whole;
pub use status::{NodeHealth, NodeStatus, Progress, Status, VolumePhase};
pub use stream::can_stream;
pub use volume::Volume;
pub use wall_clock::WallClock;

/// The contents of a stored root, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootSummary {
    /// The volume's name.
    pub name: String,
    /// Its profile, written as on the command line.
    pub profile: String,
    /// Its sizes.
    pub geometry: Geometry,
    /// The writer or opening that put the root on the nodes.
    pub epoch: fieldstone_proto::Epoch,
    /// Rises with every root that a writer stores.
    pub version: u64,
    /// The last writer closed the volume properly.
    pub clean: bool,
}

/// Reads the root record that a node stores.
///
/// # Errors
/// Damage, or a newer format version.
pub fn parse_root(bytes: &[u8]) -> Result<RootSummary, FormatError> {
    let root = root::Root::decode(bytes)?;
    Ok(RootSummary {
        name: root.name,
        profile: root.profile,
        geometry: root.geometry,
        epoch: root.put_by,
        version: root.version,
        clean: root.clean,
    })
}
