//! Runs stores of any kind, and volumes of several pools, on the cores of this process.
//!
//! Users know a device by the name of its *export*, which is unique in the process. Calls name the
//! device in its pool instead ([`DeviceName`]), because two pools may have volumes of the same
//! name.

mod exports;
mod served;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_block::layers::LayerOptions;
use fieldstone_block::{Info, OpenFailure, Settings};
use fieldstone_console::signals::Undone;
use fieldstone_host::{
    CoreSnapshot, DeviceId, DeviceSpec, FrontendKind, Handle, Host, HostConfig, LocalNodeConfig,
    PARITY_MEMORY_BYTES, PAYLOAD_MEMORY_BYTES, StoreSpec, VolumeCall, frontends,
};
use fieldstone_proto::{PoolId, VolumeId};
use fieldstone_uring::{Caching, Holder};
use serde::{Deserialize, Serialize};

pub use served::{DeviceState, ServedDevice};

use crate::accelerator::Accelerator;
use crate::pool::Pool;
use crate::rotation::watch::KeyWatch;
use crate::running::{FixedNode, RunningPool, find_nodes};

/// How long a call waits for a core. A healthy core answers within a millisecond.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the end of a runtime waits for threads that take leave of a service.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Ends when a thread does: the thread has the sender.
pub(crate) type Farewell = Receiver<()>;

/// How long a caller waits for a device to open. By default, as long as it takes: a volume waits
/// for its nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenWait<'a> {
    /// The opening ends with an error when another thread sets this.
    pub stop: Option<&'a AtomicBool>,
    /// The opening ends with an error after this time.
    pub timeout: Option<Duration>,
}

impl<'a> OpenWait<'a> {
    /// Waits until `stop` is set.
    #[must_use]
    pub fn until(stop: &'a AtomicBool) -> Self {
        Self { stop: Some(stop), timeout: None }
    }
}

/// The options of a runtime.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// Number of cores.
    pub cores: usize,
    /// Whether to pin each core to a CPU.
    pub pin: bool,
    /// How node files are opened.
    pub caching: Caching,
    /// The kinds of front-ends.
    pub frontends: Vec<&'static FrontendKind>,
    /// Called with a line for the user, if something takes long.
    pub tell: fn(&str),
    /// Memory for the payloads of all NBD clients, in bytes.
    pub payload_memory_bytes: usize,
    /// Memory for parity that the nodes of this process make, all together, in bytes.
    pub parity_memory_bytes: usize,
    /// Nodes at given addresses. Only for a runtime with one pool.
    pub fixed: Vec<FixedNode>,
    /// The kind of this process. Processes that find a node's folder in use report it.
    pub holder: Holder,
    /// Make an empty node where one was lost, under the conditions of
    /// [`crate::pool::PoolRegistry`].
    pub replace_missing: bool,
    /// The accelerator for placement, coding and checksums.
    pub accelerator: Accelerator,
}

impl RuntimeOptions {
    /// The options of a command that does its work and ends. `fixed` are nodes at given addresses.
    pub fn offline(fixed: &[FixedNode]) -> Self {
        Self {
            cores: 1,
            pin: false,
            caching: Caching::Buffered,
            frontends: frontends::KINDS.to_vec(),
            tell: |line| eprint_line!("fieldstone: {line}"),
            payload_memory_bytes: PAYLOAD_MEMORY_BYTES,
            parity_memory_bytes: PARITY_MEMORY_BYTES,
            fixed: fixed.to_vec(),
            holder: Holder::Command,
            replace_missing: false,
            accelerator: Accelerator::cpu(),
        }
    }
}

/// A call to an open device, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceCall {
    /// A call of its store, such as `scrub:limit=0`.
    Store(String),
    /// Options of a layer to change, such as `limit:iops=500`.
    Layer(String),
}

impl From<VolumeCall> for DeviceCall {
    fn from(call: VolumeCall) -> Self {
        Self::Store(call.settings().to_string())
    }
}

/// The name of a device: of a volume in its pool, or of a store that needs no pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// The pool of the volume; none for a store that needs no pool.
    pub pool: Option<PoolId>,
    /// The name of the volume in its pool, or of the store.
    pub name: String,
}

impl DeviceName {
    /// The name of a volume of a pool.
    pub fn volume(pool: PoolId, name: &str) -> Self {
        Self { pool: Some(pool), name: name.to_owned() }
    }

    /// The name of a store that needs no pool.
    pub fn store(name: &str) -> Self {
        Self { pool: None, name: name.to_owned() }
    }
}

/// An open device.
#[derive(Clone, Debug)]
pub struct OpenDevice {
    /// The host's id of the device.
    pub device: DeviceId,
    /// The name of the device.
    pub name: DeviceName,
    /// The name of its export.
    pub export: String,
    /// The id of the volume, if the device is a volume.
    pub volume: Option<VolumeId>,
    /// Its size and limits at the time of opening.
    pub info: Info,
}

/// The open devices of this process, and the host that runs them.
pub struct Runtime {
    host: Mutex<Option<Host>>,
    handle: Handle,
    accelerator: Accelerator,
    tell: fn(&str),
    /// Devices that the host has: open, being opened, or failed and not forgotten.
    names: Mutex<Vec<(DeviceId, DeviceName)>>,
    open: Mutex<Vec<OpenDevice>>,
    /// Data that may be lost when the process ends: the contents of memory, and what a device had
    /// not stored when the server gave up closing the device.
    lost: Mutex<Vec<Undone>>,
    served: Mutex<Vec<ServedDevice>>,
    /// What threads have to do when devices are closed, for example to take leave of a service.
    farewells: Mutex<Vec<Farewell>>,
    /// The refusals of metadata services, by device.
    refusals: Mutex<Vec<(DeviceName, String)>>,
    /// Looks at the secrets of the pools.
    _keys: Option<KeyWatch>,
    /// The last snapshot with counts and latencies, and when it was taken.
    recent: Mutex<Option<(Instant, Vec<CoreSnapshot>)>>,
    /// Held while the exports are listed and offered, so that no old list replaces a newer list.
    offering: Mutex<()>,
}

impl Runtime {
    /// Starts the cores and the nodes of these pools that run here. Returns the runtime, and the
    /// running pools. `pools` may be empty.
    ///
    /// # Errors
    /// A node cannot be found or started: for example, another server has a pool, or an address
    /// does not resolve. Or the system refuses a ring or a thread.
    pub fn start(
        pools: Vec<Pool>,
        options: &RuntimeOptions,
    ) -> anyhow::Result<(Arc<Self>, Vec<RunningPool>)> {
        let mut local: Vec<LocalNodeConfig> = Vec::new();
        let mut found: Vec<(Pool, _)> = Vec::new();
        for pool in pools {
            let nodes = find_nodes(&pool, options, &mut local)?;
            found.push((pool, nodes));
        }
        let host = Host::start(HostConfig {
            cores: options.cores,
            pin: options.pin,
            caching: options.caching,
            verify_payload: false,
            payload_memory_bytes: options.payload_memory_bytes,
            parity_memory_bytes: options.parity_memory_bytes,
            frontends: options.frontends.clone(),
            nodes: local,
        })
        .context("cannot start")?;
        let watched: Vec<_> =
            found.iter().map(|(pool, _)| (pool.folder.clone(), pool.keys.clone())).collect();
        let keys = match watched.is_empty() {
            true => None,
            false => Some(KeyWatch::start(watched, host.handle())?),
        };
        let runtime = Arc::new(Self {
            _keys: keys,
            handle: host.handle().clone(),
            host: Mutex::new(Some(host)),
            accelerator: options.accelerator.clone(),
            tell: options.tell,
            names: Mutex::new(Vec::new()),
            open: Mutex::new(Vec::new()),
            lost: Mutex::default(),
            served: Mutex::new(Vec::new()),
            farewells: Mutex::default(),
            refusals: Mutex::default(),
            recent: Mutex::default(),
            offering: Mutex::new(()),
        });
        let running = |(pool, nodes)| RunningPool::new(pool, nodes, Arc::clone(&runtime));
        let running_pools = found.into_iter().map(running).collect();
        Ok((runtime, running_pools))
    }

    /// The handle of the host.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The accelerator for placement, coding and checksums.
    pub fn accelerator(&self) -> &Accelerator {
        &self.accelerator
    }

    /// The open devices, in the order of opening.
    pub fn open_devices(&self) -> Vec<OpenDevice> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The name of a device of the host; none if the device was forgotten.
    pub fn name_of(&self, device: DeviceId) -> Option<DeviceName> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.iter().find(|(known, _)| *known == device).map(|(_, name)| name.clone())
    }

    /// A snapshot of the cores, without counts and latencies.
    pub fn snapshot(&self) -> Vec<CoreSnapshot> {
        self.handle.snapshot(false)
    }

    /// Reads a snapshot of the cores with counts and latencies that is a moment old at most.
    /// Callers that ask at the same time share it.
    pub(crate) fn with_recent_snapshot<T>(&self, read: impl FnOnce(&[CoreSnapshot]) -> T) -> T {
        const AGE_MAX: Duration = Duration::from_millis(100);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = recent.take().filter(|(taken, _)| taken.elapsed() < AGE_MAX);
        let (taken, cores) = fresh.unwrap_or_else(|| (Instant::now(), self.handle.snapshot(true)));
        let read = read(&cores);
        *recent = Some((taken, cores));
        read
    }

    /// Opens a store that needs no pool, and waits until it serves, or until `stop` is set.
    ///
    /// # Errors
    /// The store cannot be opened (an [`OpenFailure`], which says whether another try makes sense),
    /// or `stop` was set.
    pub fn open_store(
        &self,
        name: &str,
        store: Box<dyn StoreSpec>,
        layers: LayerOptions,
        wait: OpenWait<'_>,
    ) -> anyhow::Result<OpenDevice> {
        let spec = DeviceSpec { name: name.to_owned(), store, layers };
        self.open_device(DeviceName::store(name), spec, None, wait)
    }

    /// Opens a device and waits until it serves, as long as `wait` says.
    pub(crate) fn open_device(
        &self,
        name: DeviceName,
        spec: DeviceSpec,
        volume: Option<VolumeId>,
        wait: OpenWait<'_>,
    ) -> anyhow::Result<OpenDevice> {
        let export = spec.name.clone();
        let is_volatile = spec.store.is_volatile();
        let (device, answer) = self.handle.open_device(spec);
        self.names.lock().unwrap_or_else(PoisonError::into_inner).push((device, name.clone()));
        let opened = self.wait_open(&name, &export, &answer, wait);
        match opened {
            Ok(info) => {
                if is_volatile {
                    self.note_lost(format!("{export} is memory: all that it holds is lost"));
                }
                let open = OpenDevice { device, name, export, volume, info };
                self.open.lock().unwrap_or_else(PoisonError::into_inner).push(open.clone());
                Ok(open)
            }
            Err(error) => {
                self.forget(device);
                Err(error)
            }
        }
    }

    fn wait_open(
        &self,
        name: &DeviceName,
        export: &str,
        answer: &Receiver<Result<Info, OpenFailure>>,
        wait: OpenWait<'_>,
    ) -> anyhow::Result<Info> {
        const STEP: Duration = Duration::from_millis(50);
        const STILL_AFTER: Duration = Duration::from_secs(15);
        let start = Instant::now();
        let mut told = false;
        loop {
            match answer.recv_timeout(STEP) {
                Ok(Ok(info)) => return Ok(info),
                Ok(Err(mut failure)) => {
                    let nodes = self.down_nodes(name);
                    failure.reason = format!("cannot open {export}: {failure}{nodes}");
                    return Err(failure.into());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("cannot open {export}: its core has ended{}", self.down_nodes(name))
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if wait.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                bail!("interrupted while opening {export}{}", self.waiting_for(name));
            }
            if let Some(timeout) = wait.timeout
                && start.elapsed() > timeout
            {
                bail!("{export} has not opened within {timeout:?}{}", self.waiting_for(name));
            }
            if !told && start.elapsed() > STILL_AFTER {
                told = true;
                (self.tell)(&format!("still opening {export}{}", self.waiting_for(name)));
            }
        }
    }

    /// Removes a device from the host and from the names.
    fn forget(&self, device: DeviceId) {
        self.handle.forget_device(device);
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|(known, _)| *known != device);
    }

    /// The nodes of the device's pool that are down in this process, as lines to append to an
    /// error.
    fn down_nodes(&self, name: &DeviceName) -> String {
        let mut text = String::new();
        for node in self.snapshot().iter().flat_map(|core| &core.nodes) {
            if let Some(reason) = &node.down
                && Some(node.pool) == name.pool
            {
                text.push_str(&format!("\n  {} is down: {reason}", node.node));
            }
        }
        text
    }

    /// Calls an open volume, and waits for the answer.
    ///
    /// # Errors
    /// The volume is not open, refuses the call or does not answer.
    pub fn call_store(&self, name: &DeviceName, call: VolumeCall) -> anyhow::Result<()> {
        let open = self.find_open(name)?;
        answered(&name.name, &self.handle.call_store(open.device, call.settings()))
    }

    /// Carries out a call to an open device, and waits for the answer.
    ///
    /// # Errors
    /// The call is not understood. Or as [`Runtime::call_store`] and [`Runtime::change_layer`].
    pub fn carry_out(&self, name: &DeviceName, call: &DeviceCall) -> anyhow::Result<()> {
        let done = match call {
            DeviceCall::Store(call) => {
                let open = self.find_open(name)?;
                let call = Settings::parse(call)?;
                answered(&name.name, &self.handle.call_store(open.device, call))
            }
            DeviceCall::Layer(options) => self.change_layer(name, Settings::parse(options)?),
        };
        // The next report shows what the call has changed.
        *self.recent.lock().unwrap_or_else(PoisonError::into_inner) = None;
        done
    }

    /// Changes options of a layer of an open device, and waits for the answer.
    ///
    /// # Errors
    /// The device is not open, has no such layer or does not answer, or the layer refuses the
    /// options.
    pub fn change_layer(&self, name: &DeviceName, settings: Settings) -> anyhow::Result<()> {
        let open = self.find_open(name)?;
        answered(&name.name, &self.handle.change_layer(open.device, settings))
    }

    /// The open device of this name.
    ///
    /// # Errors
    /// There is no open device of this name.
    pub fn find_open(&self, name: &DeviceName) -> anyhow::Result<OpenDevice> {
        let open = self.open_devices();
        let found = open.iter().find(|open| open.name == *name).cloned();
        if found.is_none() {
            self.check_not_opening(name)?;
        }
        found.with_context(|| {
            let of_pool =
                open.iter().filter(|open| open.name.pool.is_none() || open.name.pool == name.pool);
            let names: Vec<_> = of_pool.map(|open| open.name.name.as_str()).collect();
            format!(
                "the volume {:?} is not being served here; served: {}",
                name.name,
                names.join(", ")
            )
        })
    }

    /// Closes a device cleanly: all acknowledged data is stable, and the next opening needs no
    /// recovery.
    ///
    /// # Errors
    /// The device could not be closed cleanly. A volume then loses no acknowledged data; a write
    /// cache may lose writes that no flush has covered.
    pub fn close(&self, open: &OpenDevice) -> anyhow::Result<()> {
        self.close_all(std::slice::from_ref(open))
    }

    /// Closes devices cleanly, all at the same time.
    fn close_all(&self, devices: &[OpenDevice]) -> anyhow::Result<()> {
        /// Longer than the time after which a volume itself gives up closing.
        const VOLUME_TIMEOUT: Duration = Duration::from_secs(30);
        /// How long another store may take to make all writes stable.
        const STORE_TIMEOUT: Duration = Duration::from_secs(60);
        let began = Instant::now();
        let answers: Vec<_> =
            devices.iter().map(|open| (open, self.handle.close_device(open.device))).collect();
        let mut failures = Vec::new();
        // A snapshot may take seconds when a core hangs. So at most one is taken, for the first
        // volume that is not closed in time.
        let mut cores: Option<Vec<CoreSnapshot>> = None;
        for (open, answer) in answers {
            let is_volume = open.volume.is_some();
            let timeout = if is_volume { VOLUME_TIMEOUT } else { STORE_TIMEOUT };
            let rest = timeout.saturating_sub(began.elapsed());
            let name = &open.export;
            let failure = match answer.recv_timeout(rest) {
                Ok(Ok(())) => None,
                Ok(Err(reason)) => Some(format!("{name} was not closed cleanly: {reason}")),
                Err(_) if is_volume => Some(format!(
                    "{name} was not closed within {timeout:?}{}: what was acknowledged is replayed \
                     from its journal when it is opened again",
                    self.waits_for(cores.get_or_insert_with(|| self.snapshot()), &open.name)
                )),
                Err(_) => Some(format!(
                    "{name} was not closed within {timeout:?}: the last writes may not be stable"
                )),
            };
            // Bytes in a write cache may be lost with a volume that is only late, too.
            if let Some(failure) = &failure {
                self.note_lost(failure.clone());
            }
            failures.extend(failure);
            self.forget(open.device);
            let mut list = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            list.retain(|other| other.device != open.device);
        }
        if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("; ")) }
    }

    /// Notes data that may be lost when the process ends.
    fn note_lost(&self, text: String) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.push(Undone { text, loses_data: true });
    }

    /// Closes every device and stops the host.
    ///
    /// # Errors
    /// The first failure. The other steps are done all the same.
    pub fn finish(&self) -> anyhow::Result<()> {
        let result = self.close_all(&self.open_devices());
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stopped = host.map(Host::stop);
        let deadline = Instant::now() + FAREWELL_TIMEOUT;
        for farewell in self.farewells.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // Nothing is ever sent: the thread drops the other end.
            let _ = farewell.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
        match stopped {
            Some(Err(error)) => result.and(Err(error).context("a core failed")),
            _ => result,
        }
    }

    /// When the devices are closed, a thread has something to do before the process ends. The
    /// runtime then waits for it, for at most a second.
    pub(crate) fn wait_at_end(&self, farewell: Farewell) {
        let mut farewells = self.farewells.lock().unwrap_or_else(PoisonError::into_inner);
        farewells.retain(|other| other.try_recv() == Err(TryRecvError::Empty));
        farewells.push(farewell);
    }

    /// A metadata service refuses this process the volume that is open as `name`, for good.
    pub(crate) fn note_refusal(&self, name: &DeviceName, reason: &str) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.retain(|(of, _)| of != name);
        refusals.push((name.clone(), reason.to_owned()));
    }

    /// Why a metadata service refuses the device, if one does.
    fn refusal(&self, name: &DeviceName) -> Option<String> {
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.iter().find(|(of, _)| of == name).map(|(_, reason)| reason.clone())
    }

    /// True if a core has ended by itself.
    pub fn has_failed(&self) -> bool {
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        host.as_ref().is_some_and(Host::has_failed)
    }
}

/// Waits for the core's answer to a call to the device `name`.
fn answered(name: &str, answer: &Receiver<Result<(), String>>) -> anyhow::Result<()> {
    match answer.recv_timeout(CALL_TIMEOUT) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(reason)) => bail!("{name}: {reason}"),
        Err(RecvTimeoutError::Disconnected) => bail!("{name}: its core has ended"),
        Err(RecvTimeoutError::Timeout) => bail!("{name}: its core does not answer"),
    }
}
