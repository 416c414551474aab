//! A pool that runs in this process: its nodes, its volumes, and the operations of commands.
//!
//! `serve` keeps a pool running, and other commands call it through the control socket. Without a
//! server, a command starts the pool in its own process, does its work and ends the pool. So each
//! operation has one implementation, online and offline.
//!
//! Where the nodes run: if a `fieldstone node` process has locked a node's folder, the running pool
//! uses the address that the process announces. It locks every other folder and runs its node in
//! this process. If another server has locked a folder, the pool is being served: it does not start
//! here, and [`Operator`] asks that server instead. If another command has locked a folder, the
//! start waits for a bounded time. A node whose folder is missing or empty is down. Only with
//! [`RuntimeOptions::replace_missing`] may the running pool make an empty node there.

pub mod client_volumes;
mod dispatch;
mod folders;
mod listing;
mod nodes;
mod query;
mod rebuilt;
mod service;
mod volumes;

use std::path::PathBuf;
use std::sync::Arc;

use fieldstone_host::{NodePlace, VolumeCall};

use crate::pool::Pool;
use crate::runtime::{DeviceName, OpenDevice, Runtime, RuntimeOptions};

use client_volumes::ClientVolumes;
pub use dispatch::Operator;
pub use folders::{command_deadline, open_patiently};
pub use listing::{Known, Listing};
pub use nodes::{FixedNode, NODE_TIMEOUT, NODES_AT_A_TIME};
pub use query::{NodeAnswer, PoolStatus};
pub use service::{METRICS_TIMEOUT, STATUS_TIMEOUT, Served, ServerInfo};
pub use volumes::{PooledVolume, ReadPolicy, VolumeOptions};

pub(crate) use nodes::open as find_nodes;

/// A running pool. Its volumes are devices of a runtime, which may have other devices too.
pub struct RunningPool {
    /// The pool.
    pub pool: Pool,
    runtime: Arc<Runtime>,
    places: Arc<[NodePlace]>,
    /// The folder or address of each node, for messages.
    place_names: Vec<String>,
    client_volumes: Arc<ClientVolumes>,
}

impl RunningPool {
    /// Starts a pool's nodes in a new runtime.
    ///
    /// # Errors
    /// A node cannot be found or started: for example, another server has the pool, or an address
    /// does not resolve.
    pub fn with_pool(pool: Pool, options: &RuntimeOptions) -> anyhow::Result<Self> {
        let (_, mut running_pools) = Runtime::start(vec![pool], options)?;
        Ok(running_pools.pop().expect("as many pools at work as were given"))
    }

    /// A running pool. `nodes` are its nodes; `runtime` runs those of this process.
    pub(crate) fn new(pool: Pool, nodes: nodes::DiscoveredNodes, runtime: Arc<Runtime>) -> Self {
        let (places, place_names) = (nodes.places.into(), nodes.names);
        Self { pool, runtime, places, place_names, client_volumes: Arc::default() }
    }

    /// The runtime that has the volumes as devices.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// The name of a volume of this pool in the runtime.
    pub fn device_name(&self, volume: &str) -> DeviceName {
        DeviceName::volume(self.pool.id, volume)
    }

    /// The open volumes of this pool, in the order of opening.
    pub fn open_volumes(&self) -> Vec<OpenDevice> {
        let mut open = self.runtime.open_devices();
        open.retain(|open| open.name.pool == Some(self.pool.id));
        open
    }

    /// Calls an open volume, and waits for the answer.
    ///
    /// # Errors
    /// The volume is not open, refuses the call or does not answer.
    pub fn call_store(&self, volume: &str, call: VolumeCall) -> anyhow::Result<()> {
        self.runtime.call_store(&self.device_name(volume), call)
    }

    /// Closes a volume cleanly: see [`Runtime::close`].
    ///
    /// # Errors
    /// The volume could not be closed cleanly. No acknowledged data is lost then either.
    pub fn close(&self, open: &OpenDevice) -> anyhow::Result<()> {
        self.runtime.close(open)
    }

    /// Closes every device and ends the runtime: see [`Runtime::finish`].
    ///
    /// # Errors
    /// The first failure. The other steps are done all the same.
    pub fn finish(&self) -> anyhow::Result<()> {
        self.runtime.finish()
    }

    /// The volumes that clients of the pool have open, if this process is a metadata service.
    pub fn client_volumes(&self) -> &Arc<ClientVolumes> {
        &self.client_volumes
    }

    /// The places of the nodes, in order.
    pub fn places(&self) -> &[NodePlace] {
        &self.places
    }

    /// The folder or address of a node, for messages.
    pub fn place_name(&self, node: usize) -> String {
        self.place_names.get(node).cloned().unwrap_or_default()
    }

    /// The pool's folder, for messages.
    pub fn folder(&self) -> PathBuf {
        self.pool.folder.clone()
    }
}
