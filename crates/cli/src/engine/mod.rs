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
mod targets;
mod volumes;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_block::layers::LayerOptions;
use fieldstone_block::{Info, Settings};
use fieldstone_host::{
    CoreSnapshot, DeviceId, DeviceSpec, Handle, Host, HostConfig, NodePlace, PAYLOAD_MEMORY_BYTES,
    StoreSpec, VolumeCall, frontends,
};
use fieldstone_proto::VolumeId;
use fieldstone_uring::{Caching, Holder};

use crate::accelerator::Accelerator;
use crate::pool::Pool;

pub use folders::{command_deadline, open_patiently};
pub use listing::{Known, Listing};
pub use nodes::{FixedNode, NodeOptions, NodeSight};
pub use operator::Operator;
pub use service::Served;
pub use targets::{Stage, waits_for};
pub use volumes::VolumeOptions;

/// How long a call waits for a core. A core that is well answers within a millisecond.
const CALL_PATIENCE: Duration = Duration::from_secs(10);

/// How an engine is started.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Cores to use.
    pub cores: usize,
    /// Pin each to a CPU.
    pub pin: bool,
    /// How node files are opened.
    pub caching: Caching,
    /// Memory for the payloads of all NBD clients.
    pub payload_memory_bytes: usize,
    /// Nodes at given addresses.
    pub fixed: Vec<FixedNode>,
    /// What kind of process this is, for those that find the nodes' folders in use.
    pub holder: Holder,
    /// Make an empty node where one was lost, under the conditions of [`crate::pool::PoolKeeper`].
    pub replace_missing: bool,
    /// What places and codes for the volumes.
    pub accelerator: Accelerator,
}

impl EngineOptions {
    /// For a command that does its work and ends.
    pub fn offline(nodes: &NodeOptions) -> Self {
        Self {
            cores: 1,
            pin: false,
            caching: Caching::Buffered,
            payload_memory_bytes: PAYLOAD_MEMORY_BYTES,
            fixed: nodes.fixed.clone(),
            holder: Holder::Command,
            replace_missing: false,
            accelerator: Accelerator::cpu(),
        }
    }
}

/// A device that is open.
#[derive(Clone, Debug)]
pub struct OpenDevice {
    /// The host's name for it.
    pub device: DeviceId,
    /// The name of the volume or export.
    pub name: String,
    /// Which volume, if it is one.
    pub volume: Option<VolumeId>,
    /// Its size and limits when it was opened.
    pub info: Info,
}

/// A pool, or no pool but memory, at work.
pub struct Engine {
    /// The pool; none when only memory is served.
    pub pool: Option<Pool>,
    host: Mutex<Option<Host>>,
    handle: Handle,
    places: Arc<[NodePlace]>,
    /// Folders or addresses of the nodes, for people.
    place_names: Vec<String>,
    open: Mutex<Vec<OpenDevice>>,
    targets: Mutex<Vec<targets::Target>>,
    /// Held while a list of exports is made and offered, so that none overtakes a newer one.
    offering: Mutex<()>,
    accelerator: Accelerator,
}

impl Engine {
    /// Starts without a pool.
    ///
    /// # Errors
    /// The machine refuses.
    pub fn without_pool(options: &EngineOptions) -> anyhow::Result<Self> {
        Self::start(None, options, Vec::new(), Vec::new(), Vec::new())
    }

    /// Starts a pool's nodes.
    ///
    /// # Errors
    /// When another server has the pool, or an address does not resolve.
    pub fn with_pool(pool: Pool, options: &EngineOptions) -> anyhow::Result<Self> {
        let found = nodes::open(&pool, options)?;
        Self::start(Some(pool), options, found.local, found.places, found.names)
    }

    fn start(
        pool: Option<Pool>,
        options: &EngineOptions,
        nodes: Vec<fieldstone_host::LocalNodeConfig>,
        places: Vec<NodePlace>,
        place_names: Vec<String>,
    ) -> anyhow::Result<Self> {
        let host = Host::start(HostConfig {
            cores: options.cores,
            pin: options.pin,
            caching: options.caching,
            verify_payload: false,
            payload_memory_bytes: options.payload_memory_bytes,
            frontends: frontends::KINDS.to_vec(),
            nodes,
        })
        .context("cannot start")?;
        Ok(Self {
            pool,
            handle: host.handle().clone(),
            host: Mutex::new(Some(host)),
            places: places.into(),
            place_names,
            open: Mutex::new(Vec::new()),
            targets: Mutex::new(Vec::new()),
            offering: Mutex::new(()),
            accelerator: options.accelerator.clone(),
        })
    }

    /// The host.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What places and codes for the volumes.
    pub fn accelerator(&self) -> &Accelerator {
        &self.accelerator
    }

    /// The pool.
    ///
    /// # Errors
    /// When only memory is served.
    pub fn pool(&self) -> anyhow::Result<&Pool> {
        self.pool.as_ref().context("only memory is served here, there is no pool")
    }

    /// Devices that are open, in the order of opening.
    pub fn open_devices(&self) -> Vec<OpenDevice> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How things stand, without counts and latencies.
    pub fn snapshot(&self) -> Vec<CoreSnapshot> {
        self.handle.snapshot(false)
    }

    /// Opens a store that needs no pool, and waits until it serves, or until `stop` is set.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open_store(
        &self,
        name: &str,
        store: Box<dyn StoreSpec>,
        layers: LayerOptions,
        stop: Option<&AtomicBool>,
    ) -> anyhow::Result<OpenDevice> {
        self.open_device(DeviceSpec { name: name.to_owned(), store, layers }, None, stop)
    }

    /// Opens a device and waits until it serves, or until `stop` is set.
    fn open_device(
        &self,
        spec: DeviceSpec,
        volume: Option<VolumeId>,
        stop: Option<&AtomicBool>,
    ) -> anyhow::Result<OpenDevice> {
        const STEP: Duration = Duration::from_millis(50);
        const STILL_AFTER: Duration = Duration::from_secs(15);
        let name = spec.name.clone();
        let (device, answer) = self.handle.open_device(spec);
        let start = Instant::now();
        let mut told = false;
        let outcome = loop {
            match answer.recv_timeout(STEP) {
                Ok(outcome) => break outcome,
                Err(RecvTimeoutError::Disconnected) => {
                    break Err("its core has ended".to_owned());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                let waiting = self.waiting_for(&name);
                self.handle.forget_device(device);
                bail!("interrupted while opening {name}{waiting}");
            }
            if !told && start.elapsed() > STILL_AFTER {
                told = true;
                tell!("fieldstone: still opening {name}{}", self.waiting_for(&name));
            }
        };
        match outcome {
            Ok(info) => {
                let open = OpenDevice { device, name, volume, info };
                self.open.lock().unwrap_or_else(PoisonError::into_inner).push(open.clone());
                Ok(open)
            }
            Err(reason) => {
                self.handle.forget_device(device);
                bail!("cannot open {name}: {reason}{}", self.down_nodes());
            }
        }
    }

    /// The in-process nodes that do not run, as a list to append to an error.
    fn down_nodes(&self) -> String {
        let mut text = String::new();
        for node in self.snapshot().iter().flat_map(|core| &core.nodes) {
            if let Some(reason) = &node.down {
                text.push_str(&format!("\n  {} is down: {reason}", node.node));
            }
        }
        text
    }

    /// Calls an open volume.
    ///
    /// # Errors
    /// When the volume is not open or refuses.
    pub fn call_store(&self, name: &str, call: VolumeCall) -> anyhow::Result<()> {
        let open = self.find_open(name)?;
        let answer = self.handle.call_store(open.device, call.settings());
        match answer.recv_timeout(CALL_PATIENCE) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => bail!("{name}: {reason}"),
            Err(RecvTimeoutError::Disconnected) => bail!("{name}: its core has ended"),
            Err(RecvTimeoutError::Timeout) => bail!("{name}: its core does not answer"),
        }
    }

    /// Changes options of a layer of an open device.
    ///
    /// # Errors
    /// When the device is not open, has no such layer, or the layer refuses.
    pub fn change_layer(&self, name: &str, settings: Settings) -> anyhow::Result<()> {
        let open = self.find_open(name)?;
        match self.handle.change_layer(open.device, settings).recv_timeout(CALL_PATIENCE) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => bail!("{name}: {reason}"),
            Err(RecvTimeoutError::Disconnected) => bail!("{name}: its core has ended"),
            Err(RecvTimeoutError::Timeout) => bail!("{name}: its core does not answer"),
        }
    }

    /// An open device by name.
    ///
    /// # Errors
    /// When there is none.
    pub fn find_open(&self, name: &str) -> anyhow::Result<OpenDevice> {
        let open = self.open_devices();
        let found = open.iter().find(|open| open.name == name).cloned();
        if found.is_none() {
            self.check_not_opening(name)?;
        }
        found.with_context(|| {
            let names: Vec<_> = open.iter().map(|open| open.name.as_str()).collect();
            format!("the volume {name:?} is not being served here; served: {}", names.join(", "))
        })
    }

    /// Closes a device cleanly: everything acknowledged is stable, and the next opening need not
    /// recover.
    ///
    /// # Errors
    /// When it could not be closed cleanly; nothing is lost then either.
    pub fn close(&self, open: &OpenDevice) -> anyhow::Result<()> {
        self.close_all(std::slice::from_ref(open))
    }

    /// Closes devices cleanly, all at the same time.
    fn close_all(&self, devices: &[OpenDevice]) -> anyhow::Result<()> {
        /// Longer than a volume itself takes to give up.
        const PATIENCE: Duration = Duration::from_secs(30);
        let deadline = Instant::now() + PATIENCE;
        let answers: Vec<_> =
            devices.iter().map(|open| (open, self.handle.close_device(open.device))).collect();
        let mut failures = Vec::new();
        // A core that hangs keeps a snapshot waiting for seconds: one is taken, for the first
        // volume that is not closed.
        let mut cores: Option<Vec<CoreSnapshot>> = None;
        for (open, answer) in answers {
            let rest = deadline.saturating_duration_since(Instant::now());
            let failure = match answer.recv_timeout(rest) {
                Ok(Ok(())) => None,
                Ok(Err(reason)) => Some(format!("{} was not closed cleanly: {reason}", open.name)),
                Err(_) => Some(format!(
                    "{} was not closed within {PATIENCE:?}{}: what was acknowledged is replayed \
                     from its journal when it is opened again",
                    open.name,
                    waits_for(cores.get_or_insert_with(|| self.snapshot()), &open.name)
                )),
            };
            failures.extend(failure);
            self.handle.forget_device(open.device);
            let mut list = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            list.retain(|other| other.device != open.device);
        }
        if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("; ")) }
    }

    /// Closes every device and stops the host.
    ///
    /// # Errors
    /// The first thing that went wrong; everything is tried all the same.
    pub fn finish(&self) -> anyhow::Result<()> {
        let result = self.close_all(&self.open_devices());
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner).take();
        match host.map(Host::stop) {
            Some(Err(error)) => result.and(Err(error).context("a core failed")),
            _ => result,
        }
    }

    /// True when a core has ended by itself.
    pub fn has_failed(&self) -> bool {
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        host.as_ref().is_some_and(Host::has_failed)
    }

    /// Where a node is, for people.
    pub fn place_name(&self, node: usize) -> String {
        self.place_names.get(node).cloned().unwrap_or_default()
    }

    /// The pool's folder, for messages.
    pub fn folder(&self) -> PathBuf {
        self.pool.as_ref().map(|pool| pool.folder.clone()).unwrap_or_default()
    }
}
