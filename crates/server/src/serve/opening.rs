//! Opening what is to be served: all devices at the same time, one thread for each.
//!
//! A volume that does not open keeps no other from being served. It is tried again until the server
//! ends. When no device could be opened, the server ends with the reasons: see
//! [`Runtime::all_failed`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::bail;
use fieldstone_block::layers::LayerOptions;
use fieldstone_host::frontends::nbd;
use fieldstone_host::{Destination, StoreOptions, StoreTarget};
use fieldstone_uring::Listener;

use super::Announce;
use crate::engine::{Engine, Known, Listing, VolumeOptions};
use crate::metrics::MetricsServer;
use crate::runtime::{DeviceName, OpenDevice, Runtime, Stage};
use fieldstone_units as units;

/// How long a volume that could not be opened rests before the next try.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Something to open.
pub enum Device {
    /// A volume.
    Volume {
        /// Its pool, by the place among those that are served.
        pool: usize,
        /// What it is called.
        name: DeviceName,
        /// The name of its export.
        export: String,
        /// How it is opened.
        options: VolumeOptions,
    },
    /// A store that needs no pool, by the name of its export.
    Store(String, StoreTarget, StoreOptions, LayerOptions),
}

impl Device {
    /// What it is called.
    pub fn name(&self) -> DeviceName {
        match self {
            Self::Volume { name, .. } => name.clone(),
            Self::Store(export, ..) => DeviceName::store(export),
        }
    }

    /// The name of its export.
    pub fn export(&self) -> &str {
        match self {
            Self::Volume { export, .. } | Self::Store(export, ..) => export,
        }
    }
}

/// Where clients come in: listeners that start to listen when the first device is open.
pub struct Door {
    runtime: Arc<Runtime>,
    read_only: bool,
    addresses: Vec<String>,
    announce: Announce,
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
        runtime: &Arc<Runtime>,
        listeners: Vec<Listener>,
        read_only: bool,
        metrics: Option<&MetricsServer>,
        announce: Announce,
    ) -> Self {
        let address = |listener: &Listener| listener.address().to_string();
        Self {
            runtime: Arc::clone(runtime),
            read_only,
            addresses: listeners.iter().map(address).collect(),
            announce,
            inside: Mutex::new(Some(Inside {
                listeners,
                metrics_url: metrics.map(MetricsServer::url),
            })),
        }
    }

    /// Exports a device that is open now, and says so.
    fn export(&self, open: &OpenDevice) -> anyhow::Result<()> {
        self.runtime.set_stage(&open.name, Stage::Serving(open.clone()));
        self.runtime.offer_exports(self.read_only)?;
        // Held to the end, so that lines do not mix.
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let (size, addresses) = (units::size(open.info.size_bytes), self.addresses.join(" "));
        let mut text = format!("serving {} ({size}) on {addresses}\n", open.export);
        if let Some(Inside { listeners, metrics_url }) = inside.take() {
            let nbd = Destination::Frontend(self.runtime.handle().frontend(nbd::KIND.name)?);
            for listener in listeners {
                self.runtime.handle().listen(listener, nbd);
            }
            if let Some(url) = metrics_url {
                text.push_str(&format!("metrics on {url}\n"));
            }
        }
        (self.announce)(&text);
        Ok(())
    }
}

/// The threads that open devices. They end when this is dropped, and leave what is not open yet.
pub struct Openings {
    runtime: Arc<Runtime>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// What a thread opens.
enum Work {
    /// A volume of this pool, as it was looked up.
    Volume(Arc<Engine>, VolumeOptions, Option<Known>),
    /// A store.
    Store(StoreTarget, StoreOptions, LayerOptions),
}

impl Openings {
    /// Looks all volumes up, and then begins to open everything.
    ///
    /// # Errors
    /// When a volume is not known, or a thread could not be started.
    pub fn start(
        runtime: &Arc<Runtime>,
        engines: &[Arc<Engine>],
        devices: Vec<Device>,
        door: Door,
    ) -> anyhow::Result<Self> {
        let listings: Vec<Listing> =
            engines.iter().map(|engine| engine.list_volumes()).collect::<anyhow::Result<_>>()?;
        let mut work: Vec<(DeviceName, String, Work)> = Vec::new();
        for device in devices {
            let (name, export) = (device.name(), device.export().to_owned());
            let one = match device {
                Device::Volume { pool, options, .. } => {
                    let engine = Arc::clone(&engines[pool]);
                    let known = engine.find_in(&listings[pool], &name.name)?;
                    Work::Volume(engine, options, Some(known))
                }
                Device::Store(_, target, options, layers) => Work::Store(target, options, layers),
            };
            work.push((name, export, one));
        }
        let door = Arc::new(door);
        let mut openings = Self {
            runtime: Arc::clone(runtime),
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
        };
        for (name, export, work) in work {
            let (stop, door) = (Arc::clone(&openings.stop), Arc::clone(&door));
            let thread = std::thread::Builder::new().name(format!("open {export}"));
            let run = move || open(&name, &export, work, &door, &stop);
            openings.threads.push(thread.spawn(run)?);
        }
        Ok(openings)
    }

    /// True while a device is opened for the first time.
    pub fn is_any_new(&self) -> bool {
        self.runtime.targets().iter().any(|target| matches!(target.stage, Stage::Opening))
    }

    /// What to say when the server is told to end before anything was opened.
    ///
    /// # Errors
    /// Always: that is what to say.
    pub fn interrupted(&self) -> anyhow::Result<()> {
        let cores = self.runtime.snapshot();
        let waits = self.runtime.targets().into_iter().map(|target| match target.stage {
            Stage::Failed(reason) => reason,
            _ => format!("{}{}", target.export, self.runtime.waits_for(&cores, &target.name)),
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
fn open(name: &DeviceName, export: &str, mut work: Work, door: &Door, stop: &AtomicBool) {
    let runtime = &door.runtime;
    let mut last = String::new();
    while !stop.load(Ordering::Relaxed) {
        let opened = match &mut work {
            Work::Store(target, options, layers) => target
                .spec(*options)
                .map_err(anyhow::Error::msg)
                .and_then(|spec| runtime.open_store(export, spec, layers.clone(), Some(stop))),
            Work::Volume(engine, options, known) => known
                .take()
                .map_or_else(|| engine.find_volume(&name.name), Ok)
                .and_then(|known| engine.open_exported(&known, export, options, Some(stop))),
        };
        let exported = opened.and_then(|open| {
            let exported = door.export(&open);
            if exported.is_err() {
                runtime.close(&open)?;
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
        runtime.set_stage(name, Stage::Failed(reason.clone()));
        // The last one that fails ends the server, which then tells the reasons.
        if reason != last && runtime.all_failed().is_none() {
            tell!("fieldstone: {reason}\nfieldstone: {export} is tried again");
            last = reason;
        }
        let rested = Instant::now() + RETRY_PAUSE;
        while Instant::now() < rested && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
