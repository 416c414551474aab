//! A device, and the runtime that has it.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fieldstone_block::SettingError;
use fieldstone_block::layers::LayerOptions;
use fieldstone_host::{
    PARITY_MEMORY_BYTES, PAYLOAD_MEMORY_BYTES_MIN, StoreOptions, StoreTarget, TargetError,
};
use fieldstone_server::accelerator::Accelerator;
use fieldstone_server::control::ControlServer;
use fieldstone_server::paths::{VolumePath, volume_path};
use fieldstone_server::pool::Pool;
use fieldstone_server::running::{RunningPool, Served, ServerInfo, VolumeOptions};
use fieldstone_server::runtime::{
    DeviceName, DeviceState, OpenDevice, OpenWait, Runtime, RuntimeOptions,
};
use fieldstone_uring::{Caching, Holder, start_thread};

use crate::answer::{Error, is_in_callback};
use crate::frontend::KIND;
use crate::queue::{AttachError, Bounds, Queue};

/// How a device is opened. The options are those of `fieldstone serve`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Refuses requests that change data.
    pub read_only: bool,
    /// Bypasses the page cache, as `--direct` does.
    pub direct: bool,
    /// The number of cores, as `--cores`: threads that run the devices, and the nodes of their
    /// pools. 0 counts as 1. Each device is on one of them. One image of a Ceph cluster
    /// (`ceph:POOL/IMAGE`) uses several cores: its connections to OSDs move to a core with time
    /// left.
    pub cores: usize,
    /// Layers and their options, as `--layer` takes them, for example `cache:capacity=64M`.
    pub layers: Vec<String>,
    /// Bounds on the requests that are under way at a time.
    pub bounds: Bounds,
    /// The longest wait for each store to open, after its core has started and has taken the
    /// folders of the pool's nodes. That, and giving up, may take some seconds more. `None` waits
    /// for as long as it takes: a volume waits for its nodes.
    pub open_timeout: Option<Duration>,
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The target names no store, and no volume of a pool.
    #[error("{target}: {reason}")]
    Target {
        /// The target.
        target: String,
        /// Why the target is refused.
        reason: String,
    },
    /// The layer or its option is unknown, or the value is invalid.
    #[error(transparent)]
    Layer(#[from] SettingError),
    /// The system has no io_uring or thread, or another process has the pool of the volume.
    #[error("{0}")]
    Start(String),
    /// The store cannot be opened. For example, the pool has no volume of this name, or the volume
    /// has not opened within [`Options::open_timeout`].
    #[error("{target}: {reason}")]
    Store {
        /// The target.
        target: String,
        /// The reason.
        reason: String,
    },
    /// The queue cannot be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// A device that this process has open, and a [`Queue`] for it. The device derefs to the queue, and
/// all requests go through the queue. Dropping the device closes it.
pub struct Device {
    queue: Queue,
    /// `None` after closing.
    open: Option<(OpenDevice, Arc<Running>)>,
}

impl Device {
    /// Opens a device by a target of `fieldstone serve`: `ram:SIZE`, `file:PATH`,
    /// `ceph:POOL/IMAGE`, or `DIR/VOLUME` for a volume of the pool in the folder `DIR`. Starts a
    /// thread for each of the [cores](Options::cores), and for a volume also the nodes of the pool
    /// that no other process runs. Waits until the device is open. Without
    /// [`Options::open_timeout`] that may take as long as too few of the pool's nodes answer.
    ///
    /// # Errors
    /// The target or a layer is invalid, the core does not start, the store cannot be opened, or it
    /// has not opened in time.
    pub fn open(target: &str, options: &Options) -> Result<Self, OpenError> {
        let mut devices = Self::open_all(&[target], options)?;
        Ok(devices.pop().expect("as many devices as targets"))
    }

    /// Opens several devices, which share the cores. A process opens all volumes of a pool that it
    /// needs with one call: while one of them is open, the process has the pool.
    ///
    /// # Errors
    /// As [`Device::open`]. No device is open then. (In a [`Complete`](crate::Complete), those that
    /// were open are closed a moment later.)
    pub fn open_all(targets: &[&str], options: &Options) -> Result<Vec<Self>, OpenError> {
        let mut pools: Vec<Pool> = Vec::new();
        let mut parsed = Vec::new();
        for target in targets {
            parsed.push(Target::parse(target, &mut pools)?);
        }
        // As `serve` does: the store says which layers it should have.
        let layers = |mut layers: LayerOptions| {
            options.layers.iter().try_for_each(|text| layers.add(text))?;
            Ok::<LayerOptions, SettingError>(layers)
        };
        layers(LayerOptions::default())?;
        let running = Arc::new(Running::start(pools, options)?);
        let mut names: Vec<DeviceName> = Vec::new();
        for (at, (target, parsed)) in targets.iter().zip(&parsed).enumerate() {
            let mut name = running.name(at, parsed);
            if names.contains(&name) {
                if name.pool.is_some() {
                    let reason = "the volume is named twice".to_owned();
                    return Err(OpenError::Target { target: (*target).to_owned(), reason });
                }
                // Two files may have the same name in different folders.
                name = DeviceName::store(target);
            }
            names.push(name);
        }
        let served = names.iter().cloned().zip(targets.iter().map(|target| (*target).to_owned()));
        running.runtime.set_served(served);
        let mut devices = Vec::new();
        for ((target, parsed), name) in targets.iter().zip(parsed).zip(names) {
            let of_store = parsed
                .layers(options)
                .map_err(|reason| OpenError::Target { target: (*target).to_owned(), reason })?;
            let open = running
                .open(&name, parsed, options, layers(of_store)?)
                .map_err(|reason| OpenError::Store { target: (*target).to_owned(), reason })?;
            running.runtime.set_state(&name, DeviceState::Serving(open.clone()));
            let mut info = open.info.clone();
            info.read_only |= options.read_only;
            let handle = running.runtime.handle();
            let queue = Queue::attach(handle, open.device, info, options.bounds)?;
            devices.push(Self { queue, open: Some((open, Arc::clone(&running))) });
        }
        Ok(devices)
    }

    /// Refuses further requests, waits until all are answered, and closes the store. Then all
    /// writes are stable.
    ///
    /// # Errors
    /// The store could not make all writes stable. Or the caller is a
    /// [`Complete`](crate::Complete): then the device is closed after the callback has returned.
    pub fn close(mut self) -> Result<(), CloseError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), CloseError> {
        let Some((open, running)) = self.open.take() else { return Ok(()) };
        let close = move || {
            let closed = running.runtime.close(&open);
            running.runtime.remove_served(&open.name);
            closed.map_err(|error| CloseError::Store(format!("{error:#}")))
        };
        if is_in_callback() {
            // A core must not wait for itself. Another thread closes the store and ends the host.
            drop(start_thread("close", close));
            return Err(Error::OnCore.into());
        }
        let answered = self.queue.close().map_err(CloseError::from);
        let closed = close();
        answered.and(closed)
    }
}

/// Why the device was not closed cleanly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseError {
    /// The queue was not closed cleanly.
    #[error(transparent)]
    Queue(#[from] Error),
    /// The store did not make all writes stable.
    #[error("{0}")]
    Store(String),
}

impl Deref for Device {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!("an embedded device was not closed in order: {error}");
        }
    }
}

/// The kind of a target.
enum Target {
    Store(StoreTarget),
    /// A volume, and the place of its pool among the pools.
    Volume(VolumePath, usize),
}

impl Target {
    /// Reads a target. Adds the pool of a volume to `pools` if it is not there.
    fn parse(target: &str, pools: &mut Vec<Pool>) -> Result<Self, OpenError> {
        let fail = |reason| OpenError::Target { target: target.to_owned(), reason };
        match target.parse() {
            Ok(store) => return Ok(Self::Store(store)),
            Err(TargetError::NoScheme) => {}
            Err(error) => return Err(fail(error.to_string())),
        }
        let fail = |error| fail(format!("{error:#}"));
        let path = volume_path(Path::new(target)).map_err(fail)?;
        let pool = Pool::open(&path.pool).map_err(fail)?;
        let place = pools.iter().position(|other| other.id == pool.id);
        let place = place.unwrap_or_else(|| {
            pools.push(pool);
            pools.len() - 1
        });
        Ok(Self::Volume(path, place))
    }

    fn layers(&self, options: &Options) -> Result<LayerOptions, String> {
        match self {
            Self::Store(store) => store.layers(store_options(options)),
            Self::Volume(..) => Ok(LayerOptions::default()),
        }
    }
}

fn store_options(options: &Options) -> StoreOptions {
    StoreOptions { caching: caching(options), read_only: options.read_only }
}

fn caching(options: &Options) -> Caching {
    if options.direct { Caching::Direct } else { Caching::Buffered }
}

/// The cores of several devices, and the pools of those that are volumes. They end with the last
/// device.
struct Running {
    runtime: Arc<Runtime>,
    pools: Vec<Arc<RunningPool>>,
    /// Commands such as `fieldstone status` ask here while this process has a pool.
    control: Vec<ControlServer>,
}

impl Running {
    fn start(pools: Vec<Pool>, options: &Options) -> Result<Self, OpenError> {
        let fail = |error: anyhow::Error| OpenError::Start(format!("{error:#}"));
        let (runtime, started) = Runtime::start(
            pools,
            &RuntimeOptions {
                cores: options.cores.max(1),
                pin: false,
                caching: caching(options),
                frontends: vec![&KIND],
                tell: |line| tracing::warn!("{line}"),
                payload_memory_bytes: PAYLOAD_MEMORY_BYTES_MIN,
                parity_memory_bytes: PARITY_MEMORY_BYTES,
                fixed: Vec::new(),
                holder: Holder::Server,
                replace_missing: false,
                accelerator: Accelerator::cpu(),
            },
        )
        .map_err(fail)?;
        let pools = started.into_iter().map(Arc::new).collect();
        let mut running = Self { runtime, pools, control: Vec::new() };
        let runtime = Arc::clone(&running.runtime);
        let info = Arc::new(ServerInfo::new(runtime, Vec::new(), None));
        for pool in &running.pools {
            let served = Served::new(Arc::clone(pool), Arc::clone(&info));
            let control = ControlServer::start(&pool.folder(), Arc::new(served));
            running.control.push(control.map_err(fail)?);
        }
        Ok(running)
    }

    /// The name of the device of a target at this place.
    fn name(&self, at: usize, target: &Target) -> DeviceName {
        match target {
            Target::Store(store) => DeviceName::store(&store.name(at)),
            Target::Volume(path, pool) => self.pools[*pool].device_name(&path.volume),
        }
    }

    fn open(
        &self,
        name: &DeviceName,
        target: Target,
        options: &Options,
        layers: LayerOptions,
    ) -> Result<OpenDevice, String> {
        let wait = OpenWait { stop: None, timeout: options.open_timeout };
        let opened = match target {
            Target::Store(store) => {
                let spec = store.spec(store_options(options))?;
                self.runtime.open_store(&name.name, spec, layers, wait)
            }
            Target::Volume(path, pool) => {
                let pool = &self.pools[pool];
                let options =
                    VolumeOptions { layers, auto_rebuild: true, ..VolumeOptions::offline() };
                let known = pool.find_volume(&path.volume);
                known.and_then(|known| pool.open_volume(&known, &options, wait))
            }
        };
        opened.map_err(|error| format!("{error:#}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.control.clear();
        if let Err(error) = self.runtime.finish() {
            tracing::warn!("the core of an embedded device has not ended: {error:#}");
        }
    }
}
