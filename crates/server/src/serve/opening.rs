//! Opens the devices of a server: all at the same time, with a thread for each.
//!
//! The server exports each open device, even if other devices cannot be opened. It tries to open a
//! failed device again until the server ends, unless the failure is final (a wrong passphrase, for
//! example). When all devices have failed, the server ends with the reasons: see
//! [`Runtime::all_failed`].

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::bail;
use fieldstone_block::OpenFailure;
use fieldstone_block::layers::LayerOptions;
use fieldstone_host::{Destination, StoreOptions, StoreTarget};
use fieldstone_proto::PoolId;

use super::Announce;
use super::client::ClientVolume;
use crate::listen::ClientListener;
use crate::metrics::MetricsServer;
use crate::running::{Known, Listing, RunningPool, VolumeOptions};
use crate::runtime::{DeviceName, DeviceState, OpenDevice, OpenWait, Runtime};
use fieldstone_units as units;

/// Pause before the next try to open a device that could not be opened.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// A device to open and export.
pub enum ExportSpec {
    /// A volume.
    Volume {
        /// The index of its pool among the served pools.
        pool: usize,
        /// The name of the volume.
        name: DeviceName,
        /// The name of its export.
        export: String,
        /// How it is opened.
        options: VolumeOptions,
    },
    /// A volume that this process opens as a client of its pool.
    Client {
        /// The volume, and how it is opened.
        client: ClientVolume,
        /// The name of its export.
        export: String,
    },
    /// A store that needs no pool. The first field is the name of its export.
    Store(String, StoreTarget, StoreOptions, LayerOptions),
}

impl ExportSpec {
    /// The name of the device.
    pub fn name(&self) -> DeviceName {
        match self {
            Self::Volume { name, .. } => name.clone(),
            Self::Client { export, .. } | Self::Store(export, ..) => DeviceName::store(export),
        }
    }

    /// The name of its export.
    pub fn export(&self) -> &str {
        match self {
            Self::Volume { export, .. } | Self::Client { export, .. } | Self::Store(export, ..) => {
                export
            }
        }
    }
}

/// Exports devices to clients that connect. The listeners start when the first device is open.
pub struct Exporter {
    runtime: Arc<Runtime>,
    read_only: bool,
    addresses: Vec<String>,
    announce: Announce,
    /// Taken when the first device is open.
    unstarted: Mutex<Option<Unstarted>>,
}

struct Unstarted {
    listeners: Vec<ClientListener>,
    metrics_url: Option<String>,
}

impl Exporter {
    /// An exporter whose listeners have not started.
    pub fn new(
        runtime: &Arc<Runtime>,
        listeners: Vec<ClientListener>,
        read_only: bool,
        metrics: Option<&MetricsServer>,
        announce: Announce,
    ) -> Self {
        Self {
            runtime: Arc::clone(runtime),
            read_only,
            addresses: listeners.iter().map(ClientListener::to_string).collect(),
            announce,
            unstarted: Mutex::new(Some(Unstarted {
                listeners,
                metrics_url: metrics.map(MetricsServer::url),
            })),
        }
    }

    /// Exports an open device, and announces it.
    fn export(&self, open: &OpenDevice) -> anyhow::Result<()> {
        self.runtime.set_state(&open.name, DeviceState::Serving(open.clone()));
        self.runtime.offer_exports(self.read_only)?;
        // Held to the end, so that lines of several devices do not mix.
        let mut unstarted = self.unstarted.lock().unwrap_or_else(PoisonError::into_inner);
        let (size, addresses) = (units::size(open.info.size_bytes), self.addresses.join(" "));
        let mut text = format!("serving {} ({size}) on {addresses}\n", open.export);
        if let Some(Unstarted { listeners, metrics_url }) = unstarted.take() {
            for ClientListener { frontend, listener } in listeners {
                let frontend = self.runtime.handle().frontend(frontend.name)?;
                self.runtime.handle().listen(listener, Destination::Frontend(frontend));
            }
            if let Some(url) = metrics_url {
                text.push_str(&format!("metrics on {url}\n"));
            }
        }
        (self.announce)(&text);
        Ok(())
    }
}

/// The threads that open devices. Dropping this stops them. Devices that are not open stay closed.
pub struct Openings {
    runtime: Arc<Runtime>,
    /// The served pools, with their folders.
    pools: Vec<(PoolId, PathBuf)>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// The device that a thread opens.
enum OpenTask {
    /// A volume of this pool, and the result of the first lookup.
    Volume(Arc<RunningPool>, VolumeOptions, Option<Known>),
    /// A volume of a pool whose client this process is.
    Client(ClientVolume),
    /// A store that needs no pool.
    Store(StoreTarget, StoreOptions, LayerOptions),
}

impl Openings {
    /// Looks up all volumes, and then begins to open all devices.
    ///
    /// # Errors
    /// A volume does not exist, or a thread cannot be started.
    pub fn start(
        runtime: &Arc<Runtime>,
        running_pools: &[Arc<RunningPool>],
        devices: Vec<ExportSpec>,
        exporter: Exporter,
    ) -> anyhow::Result<Self> {
        let listings: Vec<Listing> = running_pools
            .iter()
            .map(|running| running.list_volumes())
            .collect::<anyhow::Result<_>>()?;
        let mut work: Vec<(DeviceName, String, OpenTask)> = Vec::new();
        for device in devices {
            let (name, export) = (device.name(), device.export().to_owned());
            let one = match device {
                ExportSpec::Volume { pool, options, .. } => {
                    let running = Arc::clone(&running_pools[pool]);
                    let known = running.find_in(&listings[pool], &name.name)?;
                    OpenTask::Volume(running, options, Some(known))
                }
                ExportSpec::Client { client, .. } => OpenTask::Client(client),
                ExportSpec::Store(_, target, options, layers) => {
                    OpenTask::Store(target, options, layers)
                }
            };
            work.push((name, export, one));
        }
        let exporter = Arc::new(exporter);
        let mut openings = Self {
            runtime: Arc::clone(runtime),
            pools: running_pools
                .iter()
                .map(|running| (running.pool.id, running.folder()))
                .collect(),
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
        };
        for (name, export, work) in work {
            let (stop, exporter) = (Arc::clone(&openings.stop), Arc::clone(&exporter));
            let thread = std::thread::Builder::new().name(format!("open {export}"));
            let run = move || open(&name, &export, work, &exporter, &stop);
            openings.threads.push(thread.spawn(run)?);
        }
        Ok(openings)
    }

    /// True while any device is being opened for the first time.
    pub fn is_any_new(&self) -> bool {
        self.runtime
            .served_devices()
            .iter()
            .any(|device| matches!(device.state, DeviceState::Opening))
    }

    /// The error when the server must end before any device is open.
    ///
    /// # Errors
    /// Always: names the devices and what they wait for.
    pub fn interrupted(&self) -> anyhow::Result<()> {
        let cores = self.runtime.snapshot();
        let waits = self.runtime.served_devices().into_iter().map(|device| {
            let reasons = match device.state {
                DeviceState::Failed(failure) => vec![failure.reason],
                _ => self.runtime.lacking_nodes(&cores, &device.name),
            };
            (shown_name(&self.pools, &device.name, &device.export), reasons)
        });
        bail!("{}", interruption(&waits.collect::<Vec<_>>()))
    }
}

/// The name of a device for messages: with the folder of its pool if there are several pools.
fn shown_name(pools: &[(PoolId, PathBuf)], name: &DeviceName, export: &str) -> String {
    let pool = pools.iter().find(|(id, _)| Some(*id) == name.pool);
    match pool {
        Some((_, folder)) if pools.len() > 1 => folder.join(&name.name).display().to_string(),
        _ => export.to_owned(),
    }
}

/// Tells of an interruption: the names of the devices on the first line, then each reason on a line
/// of its own, behind the name of its device.
fn interruption(devices: &[(String, Vec<String>)]) -> String {
    let names: Vec<&str> = devices.iter().map(|(name, _)| name.as_str()).collect();
    let mut text = format!("interrupted while opening {}", names.join(", "));
    for (name, reasons) in devices {
        for reason in reasons {
            text.push_str(&format!("\n  {name}: {}", reason.replace('\n', "\n  ")));
        }
    }
    text
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

/// The failure of a try to open a device. Only an [`OpenFailure`] can be final.
fn failure(error: &anyhow::Error) -> OpenFailure {
    let is_final = error.downcast_ref::<OpenFailure>().is_some_and(|failure| failure.is_final);
    OpenFailure { reason: format!("{error:#}"), is_final }
}

/// Opens a device. Tries again until it is open, has failed for good, or the server ends.
fn open(
    name: &DeviceName,
    export: &str,
    mut work: OpenTask,
    exporter: &Exporter,
    stop: &AtomicBool,
) {
    let runtime = &exporter.runtime;
    let mut last = String::new();
    while !stop.load(Ordering::Relaxed) {
        let opened = match &mut work {
            OpenTask::Store(target, options, layers) => {
                target.spec(*options).map_err(anyhow::Error::msg).and_then(|spec| {
                    runtime.open_store(export, spec, layers.clone(), OpenWait::until(stop))
                })
            }
            OpenTask::Client(client) => client.open(runtime, export, OpenWait::until(stop)),
            OpenTask::Volume(running, options, known) => {
                known.take().map_or_else(|| running.find_volume(&name.name), Ok).and_then(|known| {
                    running.open_exported(&known, export, options, OpenWait::until(stop))
                })
            }
        };
        let exported = opened.and_then(|open| {
            let exported = exporter.export(&open);
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
        let failure = failure(&error);
        runtime.set_state(name, DeviceState::Failed(failure.clone()));
        let OpenFailure { reason, is_final } = failure;
        // If all devices have failed now, the server ends and reports the reasons itself.
        if reason != last && runtime.all_failed().is_none() {
            let next = if is_final { "is not tried again" } else { "is tried again" };
            eprint_line!("fieldstone: {reason}\nfieldstone: {export} {next}");
            last = reason;
        }
        if is_final {
            return;
        }
        let rested = Instant::now() + RETRY_PAUSE;
        while Instant::now() < rested && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_device_itself_says_that_a_failure_is_final() {
        let lasting = anyhow::Error::from(OpenFailure::lasting("no key slot opens"));
        let failed = failure(&lasting.context("disk"));
        assert_eq!(failed, OpenFailure::lasting("disk: no key slot opens"));
        let passing = anyhow::Error::from(OpenFailure::passing("no monitor answers"));
        assert!(!failure(&passing).is_final);
        assert!(!failure(&anyhow::anyhow!("interrupted")).is_final);
    }

    #[test]
    fn an_interruption_tells_each_reason_on_its_own_line() {
        let pools =
            [PoolId(1), PoolId(2)].map(|id| (id, PathBuf::from(format!("/pools/{}", id.0))));
        let volume = DeviceName::volume(PoolId(2), "v");
        assert_eq!(shown_name(&pools, &volume, "v.1"), "/pools/2/v");
        assert_eq!(shown_name(&pools[1..], &volume, "v"), "v");
        assert_eq!(shown_name(&pools, &DeviceName::store("ram"), "ram"), "ram");
        let down = |node: u16| format!("node.{node} is down: nothing lies there");
        let text = interruption(&[
            ("/pools/1/v".to_owned(), vec![down(0), down(1)]),
            ("ram".to_owned(), Vec::new()),
            (
                "/pools/2/v".to_owned(),
                vec!["cannot open v: no memory\n  node.2 is down".to_owned()],
            ),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "interrupted while opening /pools/1/v, ram, /pools/2/v",
                "  /pools/1/v: node.0 is down: nothing lies there",
                "  /pools/1/v: node.1 is down: nothing lies there",
                "  /pools/2/v: cannot open v: no memory",
                "    node.2 is down",
            ]
        );
    }
}
