//! The storage node: policy handlers, request table and chunk store, as one state machine.
//!
//! Purpose: the node keeps shards and journals for volumes. It refuses access without a valid
//! capability. It refuses the writes of a fenced writer. It gives out no byte that does not match
//! its checksum.
//!
//! # Structure (network-accelerated DFS, sections III to V)
//! The paper puts a file system's policies into three handlers. They run on the packets of a
//! request, around a bounded request table. The node has the same three handlers and the same table
//! as modules:
//!
//! | module                  | task                                                              |
//! |-------------------------|-------------------------------------------------------------------|
//! | [`node`](Node)          | takes events, gives actions, counts                               |
//! | `request_table`         | one entry per request under way                                   |
//! | `handlers::header`      | capability, epoch, bounds: may this be done at all?               |
//! | `handlers::payload`     | turns the request into disk operations                            |
//! | `handlers::completion`  | follows up disk operations, verifies, replies                     |
//! | `relays`                | passes writes on to other nodes: ring, tree, primary copy         |
//! | `arrivals`              | writes that come in fragments: passes each fragment on            |
//! | `stream`                | makes parity while it stores data: TriEC                          |
//! | `products`              | what a data node contributes to parity                            |
//! | `parity_memory`         | the memory for both                                               |
//! | `store`                 | shards in slots, safe against crashes: the essay is there         |
//! | `volumes`               | epochs, fencing, roots, journals                                  |
//! | `start`                 | reads, checks and repairs the disk before the first request       |
//! | `control_events`        | what the node tells its control side                              |
//! | `limits`                | every bound                                                       |
//!
//! By default the client drives replication (section V): the volume itself sends an append to each
//! journal node, which is the paper's flat schedule. With the other schedules the nodes pass the
//! append on to each other.
//!
//! The node does no I/O and reads no clock: see [`interface`].

mod accounting;
mod arrivals;
mod control_events;
mod denied_sums;
mod disk;
mod fragment;
mod handlers;
pub mod interface;
pub mod limits;
mod node;
mod own_delay;
mod parity_memory;
mod products;
mod relays;
mod request_table;
mod start;
mod store;
mod stream;
mod volumes;
mod wall_clock;

#[doc(hidden)]
pub use accounting::{NodeAccounting, SlotShard, SlotUse, VolumeAccounting};
pub use control_events::ControlEvent;
pub use interface::{
    DiskError, DiskId, DiskOp, DiskOutput, FileId, LinkTarget, NodeAction, NodeConfig, NodeEvent,
    PeerId,
};
pub use node::Node;
pub use parity_memory::{ParityMemory, ParityMemoryUse};
