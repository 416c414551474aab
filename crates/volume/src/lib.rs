//! The log-structured volume: a block device whose data is a log, protected by codes.
//!
//! Read in this order: [`seam`] (what it needs from its world), `log` (how a write becomes a
//! record), `rows` (how large writes go around the journal), `seal` (how records become shards),
//! `read` and `decode`, `open` (recovery, a folder of its own), `gc` (how space comes back),
//! `space` and `provision` (how much room there is, and whose it is), `rebuild`, `scrub`, `damage`,
//! `journal` and `nodes` (what happens when nodes fail and return). The formats are in `record`,
//! `footer`, `checkpoint` and `root`; `core` holds the state and the plumbing.
//!
//! # How to drive it
//! Give it [`Event`]s and block requests, call [`fieldstone_block::Backend::poll`] after each batch
//! of them and when its deadline is due, then carry out what [`Volume::next_action`] gives.
//!
//! # What it promises
//! - A completed write survives the loss of the serving process, and of any m nodes.
//! - A completed flush covers all writes completed before it: they survive a power loss as well.
//! - A read gives the last completed write, or one in flight; never anything else, whatever m
//!   nodes lose or damage.
//! - There is one writer: nodes refuse every older one from the moment a newer one has opened.

mod calls;
mod checkpoint;
mod codec;
mod core;
mod damage;
mod decode;
mod exec;
mod footer;
mod gc;
mod journal;
mod layout;
mod log;
mod map;
mod nodes;
mod open;
mod place;
mod provision;
mod read;
mod rebuild;
mod record;
mod reserve;
mod root;
mod rows;
mod scrub;
mod seal;
pub mod seam;
mod segment;
mod space;
mod status;
mod volume;
mod waiting;

pub use codec::FormatError;
pub use layout::step_blocks;
pub use seam::{Action, Event, Geometry, Opening, Provisioning, VolumeConfig};
pub use space::slots_whole;
pub use status::{NodeHealth, NodeStatus, Phase, Progress, Status};
pub use volume::Volume;

/// What a stored root says, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootSummary {
    /// The volume's name.
    pub name: String,
    /// Its profile, as on the command line.
    pub profile: String,
    /// Its sizes.
    pub geometry: Geometry,
    /// The writer or opening that put the root on the nodes.
    pub epoch: fieldstone_proto::Epoch,
    /// Rises with every root written.
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
