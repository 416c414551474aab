//! What the world runs: volume processes and node processes, behind two small traits.
//!
//! The traits exist so that the world's own tests can run other actors, broken ones above all:
//! a checker that has never refused anything proves nothing.

use fieldstone_block::{Backend, Nanos};
use fieldstone_node::{Action as NodeAction, Books, Event as NodeEvent, NodeConfig};
use fieldstone_volume::Phase;
use fieldstone_volume::{Action, Event, VolumeConfig};

/// How a volume says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Where it is in its life.
    pub phase: Phase,
    /// Every node is up, every shard is in its place, nothing is being rebuilt.
    pub whole: bool,
    /// A scrub runs.
    pub scrubbing: bool,
    /// Shards that the last scrub could not check.
    pub scrub_failed: u64,
    /// Every node, in the order of their indices.
    pub nodes: Vec<NodeView>,
    /// Segments that miss shards.
    pub degraded: u64,
    /// The shards that they miss.
    pub missing: u64,
    /// Segments that miss more shards than the code repairs.
    pub lost: u64,
    /// Shards are being made anew.
    pub rebuilding: bool,
    /// The journal is on as many nodes as it should be.
    pub journal_whole: bool,
    /// For people: what is missing.
    pub text: String,
}

/// A node as a volume sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The volume uses the node.
    pub up: bool,
    /// Shards of the volume on the node that count.
    pub shards: u64,
}

/// A volume process.
pub trait VolumeProcess: Backend {
    /// Something happened to a connection.
    fn handle(&mut self, event: Event, now: Nanos);
    /// What it wants done.
    fn next_action(&mut self) -> Option<Action>;
    /// Where it is in its life. Asked after every event, so it must be cheap.
    fn phase(&self) -> Phase;
    /// How it is.
    fn health(&self) -> Health;
    /// Asks it to close in good order.
    fn request_close(&mut self);
    /// Asks it to check every shard.
    fn request_scrub(&mut self);
    /// Asks it to become so large.
    fn request_grow(&mut self, size_bytes: u64);
    /// Why it did not, if it says so.
    fn grow_refused(&self) -> Option<String>;
}

/// A node process.
pub trait NodeProcess {
    /// A request, a disk completion or the loss of a connection.
    fn handle(&mut self, event: NodeEvent, now: Nanos);
    /// What it wants done.
    fn next_action(&mut self) -> Option<NodeAction>;
    /// It has looked at its disk, and serves requests.
    fn is_ready(&self) -> bool;
    /// What it believes that it holds; `None` for one that keeps no books, or does not serve.
    fn books(&self) -> Option<Books>;
    /// Panics if what it believes contradicts itself.
    fn check(&self);
}

/// Makes the processes that a world runs.
pub trait Cast {
    /// Its volume process.
    type Volume: VolumeProcess;
    /// Its node process.
    type Node: NodeProcess;
    /// Starts a volume process.
    fn volume(&self, config: VolumeConfig, now: Nanos) -> Self::Volume;
    /// Starts a node process on a disk that may hold files from an earlier life.
    fn node(&self, config: NodeConfig, now: Nanos) -> Self::Node;
}
