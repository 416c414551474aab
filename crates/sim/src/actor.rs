//! The processes of the world: volumes and nodes, behind two small traits.
//!
//! The traits let the world's own tests run other actors, especially broken ones: a checker that
//! has never refused anything proves nothing.

use fieldstone_block::{Backend, Nanos};
use fieldstone_node::{NodeAccounting, NodeAction, NodeConfig, NodeEvent};
use fieldstone_proto::{KeyGeneration, PoolKeys};
use fieldstone_volume::VolumePhase;
use fieldstone_volume::{VolumeAction, VolumeConfig, VolumeEvent};

/// The state that a volume reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The phase of its life.
    pub phase: VolumePhase,
    /// Every node is up, every shard is in its place, and no rebuild runs.
    pub whole: bool,
    /// A scrub runs.
    pub scrubbing: bool,
    /// Number of shards that the last scrub could not check.
    pub scrub_failed: u64,
    /// Every node, in the order of their indices.
    pub nodes: Vec<NodeView>,
    /// Number of segments that miss shards.
    pub degraded: u64,
    /// Number of shards that they miss.
    pub missing: u64,
    /// Number of segments that miss more shards than the code repairs.
    pub lost: u64,
    /// Number of complete segments whose shards are still being written.
    pub unsealed: u64,
    /// A rebuild runs.
    pub rebuilding: bool,
    /// The journal is on as many nodes as it should be.
    pub journal_whole: bool,
}

/// A node as a volume sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The volume uses the node.
    pub up: bool,
    /// Number of the volume's valid shards on the node.
    pub shards: u64,
    /// An opening that did not end has fenced the node. The next opening uses the node again.
    pub fenced: bool,
}

/// A volume process.
pub trait VolumeProcess: Backend {
    /// Takes an event of a connection.
    fn handle(&mut self, event: VolumeEvent, now: Nanos);
    /// The next action for the world.
    fn next_action(&mut self) -> Option<VolumeAction>;
    /// The phase of its life. The world reads it after every event, so it must be cheap.
    fn phase(&self) -> VolumePhase;
    /// The state that it reports.
    fn health(&self) -> Health;
    /// The same state, as text for people.
    fn describe_health(&self) -> String;
    /// Asks the volume to close properly.
    fn request_close(&mut self);
    /// Asks the volume to check every shard.
    fn request_scrub(&mut self);
    /// Asks the volume to grow to this size.
    fn request_grow(&mut self, size_bytes: u64);
    /// Why the volume did not grow, if it gives a reason.
    fn grow_refused(&self) -> Option<String>;
    /// The records that nodes passed on to each other, and those that the volume sent once more.
    fn relays(&self) -> [u64; 2] {
        [0, 0]
    }
    /// The parity that data nodes passed on, and the parity that the volume sent once more.
    fn carried(&self) -> [u64; 2] {
        [0, 0]
    }
    /// The parity that nodes made, and the parity that the volume made in their place.
    fn parities(&self) -> [u64; 2] {
        [0, 0]
    }
    /// Gives it later secrets of the pool.
    fn set_keys(&mut self, _keys: PoolKeys) {}
    /// The oldest generation of the pool's secret that one of its requests under way, or its next
    /// one, needs.
    fn key_generation(&self) -> KeyGeneration {
        KeyGeneration(u16::MAX)
    }
}

/// A node process.
pub trait NodeProcess {
    /// Takes a request, a disk completion or the loss of a connection.
    fn handle(&mut self, event: NodeEvent, now: Nanos);
    /// The next action for the world.
    fn next_action(&mut self) -> Option<NodeAction>;
    /// When the process wants a tick at the latest.
    fn deadline(&self) -> Option<Nanos> {
        None
    }
    /// The node has read its disk, and serves requests.
    fn is_ready(&self) -> bool;
    /// The node's own account of its contents. `None` if it keeps none, or does not serve.
    fn accounting(&self) -> Option<NodeAccounting>;
    /// Panics if the node's state contradicts itself.
    fn check(&self);
    /// Gives it later secrets of the pool.
    fn set_keys(&mut self, _keys: PoolKeys) {}
    /// The number of requests under way.
    fn requests(&self) -> usize {
        0
    }
    /// From now on it takes at most so many requests at a time.
    fn limit_requests(&mut self, _requests_max: usize) {}
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
