//! Opening what is to be served: all devices at the same time, one thread for each.
//!
//! A volume that does not open keeps no other from being served. It is tried again until the server
//! ends. When no device could be opened, the server ends with the reasons: see
//! [`Engine::all_failed`].

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::bail;
use fieldstone_block::layers::LayerOptions;
use fieldstone_host::frontends::nbd;
use fieldstone_host::{Destination, StoreOptions, StoreTarget};
use fieldstone_uring::Listener;

use crate::engine::{Engine, Known, Listing, OpenDevice, Stage, VolumeOptions, waits_for};
use crate::metrics::MetricsServer;
use fieldstone_units as units;

/// How long a volume that could not be opened rests before the next try.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Something to open.
pub enum Device {
    /// A volume of the pool.
    Volume(String, VolumeOptions),
    /// A store that needs no pool.
    Store(String, StoreTarget, StoreOptions, LayerOptions),
}

impl Device {
    /// The name of its export.
    pub fn name(&self) -> &str {
        match self {
            Self::Volume(name, _) | Self::Store(name, ..) => name,
        }
    }
}

/// Where clients come in: listeners that start to listen when the first device is open.
pub struct Door {
    engine: Arc<Engine>,
    read_only: bool,
    addresses: Vec<String>,
    /// Taken when the first device is open.
    inside: Mutex<Option<Inside>>,
}

struct Inside {
    listeners: Vec<Listener>,
    metrics_url: Option<String>,
}

impl Door {
    /// A door that is still closed.
    pub fn new(
        engine: &Arc<Engine>,
        listeners: Vec<Listener>,
        read_only: bool,
        metrics: Option<&MetricsServer>,
    ) -> Self {
        let address = |listener: &Listener| listener.address().to_string();
        Self {
            engine: Arc::clone(engine),
            read_only,
            addresses: listeners.iter().map(address).collect(),
            inside: Mutex::new(Some(Inside {
                listeners,
                metrics_url: metrics.map(MetricsServer::url),
            })),
        }
    }

    /// Exports a device that is open now, and says so. A server whose stdout is closed serves all
    /// the same.
    fn export(&self, open: &OpenDevice) -> anyhow::Result<()> {
        self.engine.set_stage(&open.name, Stage::Serving(open.clone()));
        self.engine.offer_exports(self.read_only)?;
        // Held to the end, so that lines do not mix.
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let (size, addresses) = (units::size(open.info.size_bytes), self.addresses.join(" "));
        let mut text = format!("serving {} ({size}) on {addresses}\n", open.name);
        if let Some(Inside { listeners, metrics_url }) = inside.take() {
            let nbd = Destination::Frontend(self.engine.handle().frontend(nbd::KIND.name)?);
            for listener in listeners {
                self.engine.handle().listen(listener, nbd);
            }
            if let Some(url) = metrics_url {
                text.push_str(&format!("metrics on {url}\n"));
            }
        }
        let mut out = std::io::stdout().lock();
        if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            tracing::debug!("cannot say that {} is ready: {error}", open.name);
        }
        Ok(())
    }
}

/// The threads that open devices. They end when this is dropped, and leave what is not open yet.
pub struct Openings {
    engine: Arc<Engine>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Openings {
    /// Looks all volumes up, and then begins to open everything.
    ///
    /// # Errors
    /// When a volume is not known, or a thread could not be started.
    pub fn start(engine: &Arc<Engine>, devices: Vec<Device>, door: Door) -> anyhow::Result<Self> {
        let mut work: Vec<(Device, Option<Known>)> = Vec::new();
        let volumes = devices.iter().any(|device| matches!(device, Device::Volume(..)));
        let listing = if volumes { engine.list_volumes()? } else { Listing::default() };
        for device in devices {
            let known = match &device {
                Device::Volume(name, _) => Some(engine.find_in(&listing, name)?),
                Device::Store(..) => None,
            };
            work.push((device, known));
        }
        let door = Arc::new(door);
        let mut openings = Self {
            engine: Arc::clone(engine),
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
        };
        for (device, known) in work {
            let (engine, stop) = (Arc::clone(engine), Arc::clone(&openings.stop));
            let door = Arc::clone(&door);
            let thread = std::thread::Builder::new().name(format!("open {}", device.name()));
            openings
                .threads
                .push(thread.spawn(move || open(&engine, &device, known, &door, &stop))?);
        }
        Ok(openings)
    }

    /// True while a device is opened for the first time.
    pub fn is_any_new(&self) -> bool {
        self.engine.targets().iter().any(|target| matches!(target.stage, Stage::Opening))
    }

    /// What to say when the server is told to end before anything was opened.
    ///
    /// # Errors
    /// Always: that is what to say.
    pub fn interrupted(&self) -> anyhow::Result<()> {
        let cores = self.engine.snapshot();
        let waits = self.engine.targets().into_iter().map(|target| match target.stage {
            Stage::Failed(reason) => reason,
            _ => format!("{}{}", target.name, waits_for(&cores, &target.name)),
        });
        bail!("interrupted while opening {}", waits.collect::<Vec<_>>().join("; "))
    }
}

impl Drop for Openings {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that opens a device failed");
            }
        }
    }
}

/// Opens a device, trying again until it is open or the server ends.
fn open(
    engine: &Engine,
    device: &Device,
    mut known: Option<Known>,
    door: &Door,
    stop: &AtomicBool,
) {
    let name = device.name();
    let mut last = String::new();
    while !stop.load(Ordering::Relaxed) {
        let opened = match device {
            Device::Store(name, target, options, layers) => target
                .spec(*options)
                .map_err(anyhow::Error::msg)
                .and_then(|spec| engine.open_store(name, spec, layers.clone(), Some(stop))),
            Device::Volume(name, options) => known
                .take()
                .map_or_else(|| engine.find_volume(name), Ok)
                .and_then(|known| engine.open_volume(&known, options, Some(stop))),
        };
        let exported = opened.and_then(|open| {
            let exported = door.export(&open);
            if exported.is_err() {
                engine.close(&open)?;
            }
            exported
        });
        let error = match exported {
            Ok(()) => return,
            Err(error) => error,
        };
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let reason = format!("{error:#}");
        engine.set_stage(name, Stage::Failed(reason.clone()));
        // The last one that fails ends the server, which then tells the reasons.
        if reason != last && engine.all_failed().is_none() {
            tell!("fieldstone: {reason}\nfieldstone: {name} is tried again");
            last = reason;
        }
        let rested = Instant::now() + RETRY_PAUSE;
        while Instant::now() < rested && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
