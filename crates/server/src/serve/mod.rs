//! The life of a server: it opens devices, exports them and closes them.
//!
//! The metrics and the control sockets start first. There is a control socket in the folder of each
//! pool. So `status` can report what an opening volume waits for. Then the server opens all devices
//! at the same time ([`opening`]), and exports each device as soon as it is open.

mod client;
mod opening;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::bail;
pub use client::ClientVolume;
use fieldstone_console::signals::Signals;
use fieldstone_uring::Address;
pub use opening::ExportSpec;

use crate::control::ControlServer;
use crate::listen::ClientListener;
use crate::metadata::{MetadataServer, WATCH_PERIOD};
use crate::metrics::{Collect, MetricsServer};
use crate::report::{PoolReport, StoreFilter};
use crate::running::{METRICS_TIMEOUT, RunningPool, Served, ServerInfo};
use crate::runtime::Runtime;
use opening::{Exporter, Openings};

/// Reports to the user, in lines, the volumes and stores that the server serves from now on.
pub type Announce = fn(&str);

/// The devices to serve, and the addresses.
pub struct ServeOptions {
    /// The devices, in the order of the exports.
    pub devices: Vec<ExportSpec>,
    /// The listeners for clients.
    pub listeners: Vec<ClientListener>,
    /// The address of the metrics, `HOST:PORT`.
    pub metrics: Option<String>,
    /// The address of the metadata service for clients of the pools, and the lifetime of their
    /// capabilities.
    pub metadata: Option<(Address, Duration)>,
    /// Refuse writes.
    pub read_only: bool,
    /// Called for each device that is being served from now on.
    pub announce: Announce,
}

/// A running server. If it is dropped without [`Server::end`], it does not wait for requests in
/// flight.
pub struct Server {
    runtime: Arc<Runtime>,
    openings: Openings,
    /// It serves volumes as a client of a pool. When nodes have fenced it, it gives itself time to
    /// ask the metadata service for the reason.
    is_client: bool,
    /// They answer clients until the server ends.
    control: Vec<ControlServer>,
    metrics: Option<MetricsServer>,
    metadata: Option<MetadataServer>,
}

impl Server {
    /// Starts the metrics and the control socket of each pool, and begins to open all devices. A
    /// request to stop is passed to `stop`.
    ///
    /// # Errors
    /// A volume does not exist, or a socket or a thread cannot be made.
    pub fn start(
        runtime: &Arc<Runtime>,
        running_pools: &[Arc<RunningPool>],
        options: ServeOptions,
        stop: Sender<()>,
    ) -> anyhow::Result<Self> {
        let ServeOptions { devices, listeners, read_only, .. } = options;
        let is_client = devices.iter().any(|device| matches!(device, ExportSpec::Client { .. }));
        let served = devices.iter().map(|device| (device.name(), device.export().to_owned()));
        runtime.set_served(served);
        let mut addresses: Vec<String> = listeners.iter().map(ClientListener::to_string).collect();
        addresses.extend(options.metadata.iter().map(|(address, _)| format!("metadata:{address}")));
        let info = ServerInfo::new(Arc::clone(runtime), addresses, Some(stop));
        let info = Arc::new(info);
        let serve = |running: &Arc<RunningPool>| {
            Arc::new(Served::new(Arc::clone(running), Arc::clone(&info)))
        };
        let served: Vec<Arc<Served>> = running_pools.iter().map(serve).collect();
        let metrics = match &options.metrics {
            Some(address) => Some(MetricsServer::start(address, collect(&served, &info))?),
            None => None,
        };
        let control = running_pools.iter().zip(&served).map(|(running, served)| {
            ControlServer::start(&running.pool.folder, Arc::clone(served) as _)
        });
        let control = control.collect::<anyhow::Result<_>>()?;
        let metadata = match &options.metadata {
            Some((address, lifetime)) => {
                let server = MetadataServer::start(address, running_pools, *lifetime)?;
                (options.announce)(&format!("metadata on {}\n", server.address()));
                Some(server)
            }
            None => None,
        };
        let exporter =
            Exporter::new(runtime, listeners, read_only, metrics.as_ref(), options.announce);
        // Looks up all volumes before it opens any. So a wrong name has no effect.
        let openings = Openings::start(runtime, running_pools, devices, exporter)?;
        let runtime = Arc::clone(runtime);
        Ok(Self { runtime, openings, is_client, control, metrics, metadata })
    }

    /// Waits for the end: a signal, a request to stop, or a failure.
    ///
    /// # Errors
    /// A core has ended by itself, all devices have failed, or the end came before any device was
    /// open.
    pub fn wait(&self, signals: &Signals) -> anyhow::Result<()> {
        const STEP: Duration = Duration::from_secs(3);
        const STEP_WHILE_OPENING: Duration = Duration::from_millis(50);
        loop {
            let opening = self.openings.is_any_new();
            if signals.wait(if opening { STEP_WHILE_OPENING } else { STEP }) {
                let has_devices = !self.runtime.served_devices().is_empty();
                if has_devices && self.runtime.open_devices().is_empty() {
                    self.openings.interrupted()?;
                }
                return Ok(());
            }
            if self.runtime.has_failed() {
                bail!("a core has ended by itself; see the messages above");
            }
            if opening && self.openings.is_any_new() {
                continue;
            }
            if let Some(reason) = self.runtime.all_failed() {
                if self.is_client {
                    std::thread::sleep(WATCH_PERIOD * 2);
                }
                bail!("{}", self.runtime.all_failed().unwrap_or(reason));
            }
        }
    }

    /// Stops opening devices and answering clients, and waits for requests in flight.
    pub fn end(self) {
        /// How long the server waits for requests in flight.
        const DRAIN: Duration = Duration::from_secs(20);
        let Self { runtime, openings, control, metrics, metadata, .. } = self;
        drop(openings);
        drop((control, metrics, metadata));
        if !runtime.handle().drain(DRAIN) {
            eprint_line!("fieldstone: requests in flight were not answered within {DRAIN:?}");
        }
    }
}

/// Makes the reports for the metrics: one for each pool, and the last one for the stores that need
/// no pool.
fn collect(served: &[Arc<Served>], info: &Arc<ServerInfo>) -> Collect {
    let (served, info) = (served.to_vec(), Arc::clone(info));
    Box::new(move || {
        // All pools are asked at the same time.
        let mut reports: Vec<PoolReport> = std::thread::scope(|scope| {
            let ask = |served| {
                scope.spawn(move || Served::report(served, METRICS_TIMEOUT, StoreFilter::Exclude))
            };
            let asked: Vec<_> = served.iter().map(|served| ask(served)).collect();
            asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        reports.push(info.report());
        reports
    })
}
