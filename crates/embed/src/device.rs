//! A store, and the host that runs it.

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
use fieldstone_uring::{Caching, start_thread};

use crate::answer::{Error, is_in_callback};
use crate::frontend::KIND;
use crate::queue::{AttachError, Bounds, Queue};

/// How a store is opened. The options are those of `fieldstone serve`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Refuses requests that change data.
    pub read_only: bool,
    /// Bypasses the page cache, as `--direct` does.
    pub direct: bool,
    /// Layers and their options, as `--layer` takes them, for example `cache:capacity=64M`.
    pub layers: Vec<String>,
    /// Bounds on the requests that are under way at a time.
    pub bounds: Bounds,
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The target names no store.
    #[error("{target}: {reason}")]
    Target {
        /// The target.
        target: String,
        /// What is wrong with it. The text of the error has it, so it is no source of the error.
        reason: TargetError,
    },
    /// The layer or its option is unknown, or the value is invalid.
    #[error(transparent)]
    Layer(#[from] SettingError),
    /// The system has no io_uring or thread for the host.
    #[error("cannot start: {0}")]
    Start(std::io::Error),
    /// The store cannot be opened.
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

/// A store that this process has open, and a [`Queue`] for it. The device derefs to the queue, and
/// all requests go through the queue. Dropping the device closes it.
pub struct Device {
    queue: Queue,
    device: DeviceId,
    /// `None` after closing. The lock is there only so that threads may share the device.
    host: Mutex<Option<Host>>,
}

impl Device {
    /// Opens a store by a target of `fieldstone serve`: `ram:SIZE` or `file:PATH`. Starts a thread
    /// for the core that runs the store. Waits until the store is open.
    ///
    /// # Errors
    /// The target or a layer is invalid, the host does not start, or the store cannot be opened.
    pub fn open(target: &str, options: &Options) -> Result<Self, OpenError> {
        let parsed: StoreTarget = target
            .parse()
            .map_err(|reason| OpenError::Target { target: target.to_owned(), reason })?;
        let caching = if options.direct { Caching::Direct } else { Caching::Buffered };
        let store_options = StoreOptions { caching, read_only: options.read_only };
        let mut layers = LayerOptions::default();
        // As `serve` does: if the data are in memory already, a cache would only copy them.
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
        })
        .map_err(OpenError::Start)?;
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
        let host = self.host.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(host) = host else { return Ok(()) };
        if is_in_callback() {
            // A core must not wait for itself. Another thread closes the store and ends the host.
            let device = self.device;
            let end = move || {
                drop(close_store(&host, device));
                stop(host);
            };
            drop(start_thread("close", end));
            return Err(Error::OnCore.into());
        }
        let closed = self.queue.close().map_err(CloseError::from);
        let flushed = close_store(&host, self.device);
        stop(host);
        closed.and(flushed)
    }
}

/// How long a store may take to make all writes stable.
const TIMEOUT: Duration = Duration::from_secs(60);

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

fn close_store(host: &Host, device: DeviceId) -> Result<(), CloseError> {
    match host.handle().close_device(device).recv_timeout(TIMEOUT) {
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
