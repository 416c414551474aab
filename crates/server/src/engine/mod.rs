//! A pool at work in this process: its nodes, its volumes, and what commands do with them.
//!
//! `serve` keeps an engine running and lets other commands call it through the control socket.
//! Without a server, a command starts an engine of its own, does its work and closes it. So there
//! is one implementation of every operation, online and offline.
//!
//! Who runs the nodes: a node folder that a `fieldstone node` process has locked is reached at the
//! address that process announces; every other folder is locked and run in this process. A folder
//! that another server has locked means that the pool is being served: the engine refuses to start,
//! and [`Operator`] asks that server instead. A folder that another command has locked is waited
//! for. No node is made here: one whose folder is missing or empty is down.

mod folders;
mod listing;
mod nodes;
mod operator;
mod service;
mod volumes;

use std::path::PathBuf;
use std::sync::Arc;

use fieldstone_host::{NodePlace, VolumeCall};

use crate::pool::Pool;
use crate::runtime::{DeviceName, OpenDevice, Runtime, RuntimeOptions};

pub use folders::{command_deadline, open_patiently};
pub use listing::{Known, Listing};
pub use nodes::{FixedNode, NodeSight};
pub use operator::Operator;
pub use service::{Served, ServerInfo};
pub use volumes::VolumeOptions;

pub(crate) use nodes::open as find_nodes;

/// A pool at work. Its volumes are devices of a runtime, which may serve others beside them.
pub struct Engine {
    /// The pool.
    pub pool: Pool,
    runtime: Arc<Runtime>,
    places: Arc<[NodePlace]>,
    /// Folders or addresses of the nodes, for people.
    place_names: Vec<String>,
}

impl Engine {
    /// Starts a pool's nodes, in a runtime of their own.
    ///
    /// # Errors
    /// When another server has the pool, or an address does not resolve.
    pub fn with_pool(pool: Pool, options: &RuntimeOptions) -> anyhow::Result<Self> {
        let (_, mut engines) = Runtime::start(vec![pool], options)?;
        Ok(engines.pop().expect("as many pools at work as were given"))
    }

    /// A pool at work, whose nodes were found and run in `runtime`, if they run here.
    pub(crate) fn new(pool: Pool, nodes: nodes::Found, runtime: Arc<Runtime>) -> Self {
        Self { pool, runtime, places: nodes.places.into(), place_names: nodes.names }
    }

    /// Where its volumes are devices.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// What a volume of this pool is called in the runtime.
    pub fn device_name(&self, volume: &str) -> DeviceName {
        DeviceName::volume(self.pool.id, volume)
    }

    /// The volumes of this pool that are open, in the order of opening.
    pub fn open_volumes(&self) -> Vec<OpenDevice> {
        let mut open = self.runtime.open_devices();
        open.retain(|open| open.name.pool == Some(self.pool.id));
        open
    }

    /// Calls an open volume.
    ///
    /// # Errors
    /// When the volume is not open or refuses.
    pub fn call_store(&self, volume: &str, call: VolumeCall) -> anyhow::Result<()> {
        self.runtime.call_store(&self.device_name(volume), call)
    }

    /// Closes a volume cleanly: see [`Runtime::close`].
    ///
    /// # Errors
    /// When it could not be closed cleanly; nothing is lost then either.
    pub fn close(&self, open: &OpenDevice) -> anyhow::Result<()> {
        self.runtime.close(open)
    }

    /// Ends the runtime: see [`Runtime::finish`].
    ///
    /// # Errors
    /// The first thing that went wrong; everything is tried all the same.
    pub fn finish(&self) -> anyhow::Result<()> {
        self.runtime.finish()
    }

    /// Where a node is, for people.
    pub fn place_name(&self, node: usize) -> String {
        self.place_names.get(node).cloned().unwrap_or_default()
    }

    /// The pool's folder, for messages.
    pub fn folder(&self) -> PathBuf {
        self.pool.folder.clone()
    }
}
