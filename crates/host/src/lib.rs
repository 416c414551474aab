//! The host: runs stores, front-ends and storage nodes on cores, in the real world.
//!
//! ```text
//!  core 0                          core 1                         other threads
//! +----------------------------+  +----------------------------+
//! | worker: one reactor        |  | worker: one reactor        |  control calls (`handle`)
//! |  front-ends                |  |  front-ends                |  one per node: chores (`disk`)
//! |  devices 0, 2, …           |  |  devices 1, 3, …           |
//! |  in-process nodes 0, 2, …  |  |  in-process nodes 1, 3, …  |
//! +----------------------------+  +----------------------------+
//!          ^ mailbox                        ^ mailbox
//! ```
//!
//! # Rules
//!
//! - A part belongs to one core for life: device *d* to core *d* mod N, node *n* to core *n* mod N.
//!   Every core has one front-end of each kind, and a connection stays on the core that it was
//!   dealt to. Parts talk in messages ([`message`]), which on
//!   one core are a plain queue.
//! - A core never blocks. What blocks (folders, control calls, name resolution) happens on other
//!   threads.
//! - An idle host sleeps in the kernel. The only periodic work is one look every two seconds at the
//!   folders of in-process nodes.
//! - No state machine is touched from two places: each turn of the loop ([`worker`]) feeds it
//!   events and takes its actions.
//!
//! | module | idea |
//! |---|---|
//! | [`handle`] | starting and stopping; control calls from other threads |
//! | [`worker`] | the loop of a core |
//! | [`message`] | what parts tell each other, within and between cores |
//! | [`device`] | a store behind its layers |
//! | [`store`], [`stores`] | what a store is; memory, files, volumes |
//! | [`frontend`], [`frontends`] | what a front-end is; NBD |
//! | [`node_local`], [`disk`], [`folder`] | a storage node in this process, its files, its folder |
//! | [`node_server`] | other processes, as a node sees them |
//! | [`node_session`] | a conversation with one node, for calls |
//! | `pace` | whether a disk keeps pace, and so may block a write |
//! | [`look_up`] | calls that may hang, with a deadline |
//! | [`control`] | the calls themselves, and what is told |
//! | [`strangers`] | how long and how many unknown connections may stay |
//! | [`notices`] | log lines that strangers can cause |

pub mod control;
pub mod device;
pub mod disk;
pub mod folder;
pub mod frontend;
pub mod frontends;
pub mod handle;
pub mod look_up;
pub mod message;
pub mod node_local;
pub mod node_server;
pub mod node_session;
pub mod notices;
mod overdue;
mod pace;
mod remote_session;
pub mod store;
pub mod stores;
pub mod strangers;
mod token;
mod wire_socket;
pub mod worker;

pub use control::{CoreSnapshot, DeviceSnapshot, FrontendSnapshot};
pub use device::{DeviceSpec, DeviceStats, LayerStatus};
pub use folder::{
    Attempt, FOLDERS_PATIENCE, FolderError, Keeper, NodeFolder, Opening, Standing, free_bytes,
};
pub use frontend::{
    Frontend, FrontendCounts, FrontendId, FrontendIo, FrontendKind, FrontendMailer, FrontendSetup,
    NoFrontend, Pressure, Submitter, WakeError,
};
pub use handle::{
    Handle, Host, HostConfig, LocalNodeConfig, PAYLOAD_MEMORY_BYTES, PAYLOAD_MEMORY_BYTES_MIN,
    wall_offset_ns,
};
pub use message::{Core, Destination, DeviceId, LocalNodeId};
pub use node_local::LocalNodeStatus;
pub use node_session::{NodeSession, SessionError};
pub use remote_session::connect_unix;
pub use store::{Phase, Store, StoreIo, StoreSpec};
pub use stores::{
    FileSpec, FileStatus, NodePlace, RamSpec, StoreOptions, StoreTarget, TargetError, VolumeCall,
    VolumeSpec,
};
