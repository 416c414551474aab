//! The host: runs stores, front-ends and storage nodes on cores, with real disks and sockets.
//!
//! ```text
//!  core 0                          core 1                         other threads
//! +----------------------------+  +----------------------------+
//! | worker: one reactor        |  | worker: one reactor        |  control calls (`handle`)
//! |  front-ends                |  |  front-ends                |  blocking calls of a node
//! |  devices 0, 2, …           |  |  devices 1, 3, …           |
//! |  in-process nodes 0, 2, …  |  |  in-process nodes 1, 3, …  |
//! +----------------------------+  +----------------------------+
//!          ^ mailbox                        ^ mailbox
//! ```
//!
//! # Rules
//!
//! - A part belongs to one core for its whole life: device *d* to core *d* mod N, node *n* to core
//!   *n* mod N. Every core has one front-end of each kind. A connection stays on the core that it
//!   was given to. A store that is too much for one core may have branches on other cores. Parts
//!   send each other messages ([`message`]). Within one core, the messages wait in a plain queue.
//! - A core does not wait for calls that may block. Folders, control calls and name resolution use
//!   other threads. There are two exceptions: a core opens the files of its nodes ([`disk`]), and
//!   makes short buffered writes while the disk keeps pace (`pace`).
//! - An idle host sleeps in the kernel. Its only periodic work is a look at the folders of
//!   in-process nodes every two seconds, and the housekeeping of volumes every 1 to 16 seconds.
//! - Only the loop of the core ([`worker`]) touches a state machine: each turn gives it events and
//!   takes its actions.
//!
//! | module | content |
//! |---|---|
//! | [`handle`] | starting and stopping; control calls from other threads |
//! | [`worker`] | the loop of a core |
//! | [`message`] | the messages between parts, within and between cores |
//! | [`device`] | a store behind its layers |
//! | [`store`], [`stores`] | the interface of stores; memory, files, volumes, images of Ceph |
//! | [`branch`] | a part of a store on another core |
//! | [`frontend`], [`frontends`] | the interface of front-ends; NBD |
//! | [`node_local`], [`disk`], [`folder`] | a storage node in this process, its files, its folder |
//! | [`node_server`] | the connections of other processes to nodes |
//! | [`node_session`] | a connection to one node, for control calls |
//! | [`turn_times`] | how long the turns of a core take |
//! | `pace` | whether a disk keeps pace, so that a core may make a write that can block |
//! | [`timed_call`] | calls that may hang, with a deadline |
//! | [`control`] | the control calls and their answers |
//! | [`issuer`] | who issues the capabilities of a volume |
//! | [`keys`] | the secrets of a pool, which change while the host runs |
//! | [`connection_table`] | how long pending connections may stay, and how many |
//! | [`notices`] | log lines that clients can cause |

pub mod branch;
pub mod ceph;
pub mod connection_table;
pub mod control;
pub mod device;
pub mod disk;
pub mod folder;
pub mod frontend;
pub mod frontends;
pub mod handle;
pub mod issuer;
pub mod keys;
pub mod message;
pub mod node_links;
mod node_local;
pub mod node_server;
pub mod node_session;
pub mod notices;
mod overdue;
mod pace;
mod remote_session;
pub mod store;
pub mod stores;
pub mod timed_call;
mod token;
pub mod turn_times;
mod wall_clock;
mod wire_socket;
pub mod worker;

pub use branch::{Branch, BranchIo, BranchSpec};
pub use control::{CoreSnapshot, DeviceSnapshot, FrontendSnapshot};
pub use device::{DeviceSpec, DeviceStats, LayerStatus};
pub use fieldstone_node::ParityMemoryUse;
pub use fieldstone_node::limits::PARITY_MEMORY_BYTES;
pub use fieldstone_uring::WakeUp;
pub use folder::{
    Attempt, FOLDERS_TIMEOUT, FolderError, NodeFolder, NodeRegistry, Opening, OpeningState,
    free_bytes,
};
pub use frontend::{
    Frontend, FrontendCounts, FrontendId, FrontendIo, FrontendKind, FrontendMailer, FrontendSetup,
    NoFrontend, Offer, OfferError, OfferedDevice, Pressure, Submitter, WakeError,
};
pub use handle::{
    Handle, Host, HostConfig, LocalNodeConfig, OPEN_FILES, PAYLOAD_MEMORY_BYTES,
    PAYLOAD_MEMORY_BYTES_MIN,
};
pub use issuer::{Issuer, IssuerMail, NodeDirectory, SharedDirectory, VolumeAuthority};
pub use keys::SharedKeys;
pub use message::{Core, Destination, DeviceId, LocalNodeId, NodePlace};
pub use node_local::LocalNodeStatus;
pub use node_session::{NodeSession, SessionError};
pub use remote_session::connect_unix;
pub use store::{Mailer, Phase, Store, StoreIo, StoreSpec};
pub use stores::{
    FileSpec, RamSpec, StoreOptions, StoreTarget, TargetError, VolumeCall, VolumeSpec, VolumeStatus,
};
pub use turn_times::TurnSummary;
