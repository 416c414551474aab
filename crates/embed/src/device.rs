//! A store and the host that runs it.

use std::ops::Deref;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fieldstone_block::SettingError;
use fieldstone_block::layers::LayerOptions;
use fieldstone_host::{
    DeviceId, DeviceSpec, Host, HostConfig, PAYLOAD_MEMORY_BYTES_MIN, StoreOptions, StoreTarget,
    TargetError,
};
use fieldstone_uring::Caching;

use crate::answer::{Error, is_in_callback};
use crate::frontend::KIND;
use crate::queue::{AttachError, Bounds, Queue};

/// How a store is opened. The same as the options of `fieldstone serve`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Refuse what changes data.
    pub read_only: bool,
    /// Bypass the page cache, as `--direct` does.
    pub direct: bool,
    /// Layers and their options, as `--layer` takes them: `cache:capacity=64M`.
    pub layers: Vec<String>,
    /// What may be under way at a time.
    pub bounds: Bounds,
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The target names no store.
    #[error("{target}: {source}")]
    Target {
        /// The target.
        target: String,
        /// What is wrong with it.
        source: TargetError,
    },
    /// A layer or an option of one is not known.
    #[error(transparent)]
    Layer(#[from] SettingError),
    /// The machine has no ring or thread for it.
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
    /// The store does not open.
    #[error("{target}: {reason}")]
    Store {
        /// The target.
        target: String,
        /// Why.
        reason: String,
    },
    /// The queue cannot be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// A store that this process has open, and a queue for it: all requests go through the
/// [`Queue`] that it derefs to. Dropping it closes it.
pub struct Device {
    queue: Queue,
    device: DeviceId,
    /// Taken at the end. Behind a lock only so that threads may share the device.
    host: Mutex<Option<Host>>,
}

impl Device {
    /// Opens a store by the target that `fieldstone serve` takes: `ram:SIZE` or `file:PATH`. Starts
    /// a thread, the core that runs it, and raises the process's soft limit on open files, as the
    /// server does. Waits until the store serves.
    ///
    /// # Errors
    /// There is no such store, or it does not open.
    pub fn open(target: &str, options: &Options) -> Result<Self, OpenError> {
        let parsed: StoreTarget = target
            .parse()
            .map_err(|source| OpenError::Target { target: target.to_owned(), source })?;
        let caching = if options.direct { Caching::Direct } else { Caching::Buffered };
        let store_options = StoreOptions { caching, read_only: options.read_only };
        let mut layers = LayerOptions::default();
        // As `serve` does: a cache before what is in memory already would only copy it.
        if parsed.is_cached(store_options) {
            layers.add("cache:off")?;
        }
        for text in &options.layers {
            layers.add(text)?;
        }
        let fail = |reason: String| OpenError::Store { target: target.to_owned(), reason };
        let store = parsed.spec(store_options).map_err(fail)?;
        let host = Host::start(HostConfig {
            cores: 1,
            pin: false,
            caching,
            verify_payload: false,
            payload_memory_bytes: PAYLOAD_MEMORY_BYTES_MIN,
            frontends: vec![&KIND],
            nodes: Vec::new(),
        })?;
        let spec = DeviceSpec { name: parsed.name(0), store, layers };
        let (device, opened) = host.handle().open_device(spec);
        let opened = opened.recv().unwrap_or_else(|_| Err("the core has ended".to_owned()));
        let mut info = match opened {
            Ok(info) => info,
            Err(reason) => {
                stop(host);
                return Err(fail(reason));
            }
        };
        info.read_only |= options.read_only;
        match Queue::attach(host.handle(), device, info, options.bounds) {
            Ok(queue) => Ok(Self { queue, device, host: Mutex::new(Some(host)) }),
            Err(error) => {
                stop(host);
                Err(error.into())
            }
        }
    }

    /// Refuses requests from now on, waits until all are answered, and closes the store: what was
    /// written is stable.
    ///
    /// # Errors
    /// The store could not make everything stable. Or the caller is a
    /// [`Complete`](crate::Complete): then the device is closed when that one has returned.
    pub fn close(mut self) -> Result<(), CloseError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), CloseError> {
        let host = self.host.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(host) = host else { return Ok(()) };
        if is_in_callback() {
            // The core must not wait for itself. Another thread ends it when the callback is over.
            let device = self.device;
            let end = move || {
                drop(close_store(&host, device));
                stop(host);
            };
            drop(std::thread::Builder::new().name("close".to_owned()).spawn(end));
            return Err(Error::OnCore.into());
        }
        let closed = self.queue.close().map_err(CloseError::from);
        let flushed = close_store(&host, self.device);
        stop(host);
        closed.and(flushed)
    }
}

/// How long a store may take to make everything stable.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a device was not closed in order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseError {
    /// The queue was not closed in order.
    #[error(transparent)]
    Queue(#[from] Error),
    /// The store did not make everything stable.
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

fn close_store(host: &Host, device: DeviceId) -> Result<(), CloseError> {
    match host.handle().close_device(device).recv_timeout(PATIENCE) {
        Ok(closed) => closed.map_err(CloseError::Store),
        Err(RecvTimeoutError::Disconnected) => Err(CloseError::Store("it has ended".into())),
        Err(RecvTimeoutError::Timeout) => Err(CloseError::Store("it does not close".into())),
    }
}

fn stop(host: Host) {
    if let Err(error) = host.stop() {
        tracing::warn!("the core of an embedded device has not ended: {error}");
    }
}
