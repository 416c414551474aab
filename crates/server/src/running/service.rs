//! Answers control requests and reports for a pool of a server.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_block::Settings;
use fieldstone_host::VolumeCall;
use fieldstone_proto::{PoolId, VolumeId};

use super::{Known, Listing, RunningPool};
use crate::control::{Request, Response, Service, VolumeLine};
use crate::paths::check_name;
use crate::report::{PoolReport, ServerReport, StoreFilter, VolumeReport};
use crate::runtime::{DeviceCall, DeviceName, DeviceState, Runtime};

/// How long `status` waits for the answers of nodes.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a scrape of the metrics waits for the answers of nodes. It is much shorter than the
/// 10 s after which Prometheus drops the whole scrape.
pub const METRICS_TIMEOUT: Duration = Duration::from_secs(2);

/// The part of a report that describes the server. All pools of the server share it.
pub struct ServerInfo {
    runtime: Arc<Runtime>,
    listen: Vec<String>,
    started: Instant,
    stop: Option<Mutex<Sender<()>>>,
}

impl ServerInfo {
    /// A server that listens at `listen`. A request to stop is passed to `stop`; without it, such a
    /// request is refused.
    pub fn new(runtime: Arc<Runtime>, listen: Vec<String>, stop: Option<Sender<()>>) -> Self {
        let stop = stop.map(Mutex::new);
        Self { runtime, listen, started: Instant::now(), stop }
    }

    /// The report of the server and of the stores that need no pool.
    pub fn report(&self) -> PoolReport {
        let mut report = PoolReport::of_stores(&self.runtime);
        self.complete(&mut report, None, StoreFilter::Include);
        report
    }

    /// Adds the server's part to the report of a pool, and the devices that are not open.
    fn complete(&self, report: &mut PoolReport, pool: Option<PoolId>, stores: StoreFilter) {
        let uptime_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let cores = self.runtime.snapshot();
        let parity_memory = self.runtime.handle().parity_memory();
        let listen = self.listen.clone();
        report.server = Some(ServerReport::of(&cores, parity_memory, uptime_ns, listen));
        self.add_unopened(report, pool, stores);
    }

    /// Adds to a report the devices that are not open yet, and puts all devices in the order of the
    /// exports.
    fn add_unopened(&self, report: &mut PoolReport, pool: Option<PoolId>, stores: StoreFilter) {
        let mut volumes = Vec::new();
        for device in self.runtime.served_devices() {
            let is_included = match device.name.pool {
                None => stores == StoreFilter::Include,
                of => of == pool,
            };
            if !is_included {
                continue;
            }
            let protection = if device.name.pool.is_none() { "none" } else { "unknown" };
            let name = device.name.name;
            let at = report.volumes.iter().position(|volume| volume.name == name);
            let mut volume = at.map(|at| report.volumes.remove(at)).unwrap_or_else(|| {
                let phase = if matches!(device.state, DeviceState::Failed(_)) {
                    "failed"
                } else {
                    "opening"
                };
                VolumeReport {
                    name,
                    phase: phase.to_owned(),
                    protection: protection.to_owned(),
                    ..VolumeReport::default()
                }
            });
            if let DeviceState::Failed(failure) = device.state {
                volume.reason = failure.reason;
            }
            volumes.push(volume);
        }
        volumes.append(&mut report.volumes);
        report.volumes = volumes;
    }
}

/// A served pool, for the control socket and the metrics.
pub struct Served {
    running: Arc<RunningPool>,
    server: Arc<ServerInfo>,
    /// Every request holds this, except status, list and stop. So changes run one at a time.
    changes: Mutex<()>,
}

impl Served {
    /// A pool that `server` serves.
    pub fn new(running: Arc<RunningPool>, server: Arc<ServerInfo>) -> Self {
        Self { running, server, changes: Mutex::new(()) }
    }

    /// The report of the pool and the server. Waits for nodes for at most `timeout`. `stores` says
    /// whether the report has the stores that need no pool.
    pub fn report(&self, timeout: Duration, stores: StoreFilter) -> PoolReport {
        // Asks the nodes first. So if a node was replaced, the volumes' newer snapshot is about the
        // new node.
        let status = self.running.query_nodes(timeout);
        let mut report = PoolReport::from_status(&self.running, &status, stores);
        self.server.complete(&mut report, Some(self.running.pool.id), stores);
        if let Ok(listing) = &status.listing {
            report.volumes.extend(self.client_volumes(listing));
            report.not_served = Some(self.not_served(&report, listing));
            self.running.note_whole(&report.volumes, &status);
        }
        report
    }

    /// The volumes that clients have open, except those that are open or to be served here. A
    /// client that serves a volume is believed only if the nodes know it as the volume's writer.
    fn client_volumes(&self, listing: &Listing) -> Vec<VolumeReport> {
        let mut reports = self.running.client_volumes().reports();
        let (open, to_serve) = (self.running.open_volumes(), self.to_serve());
        reports.retain(|report| {
            let is_here = open
                .iter()
                .any(|open| open.volume.is_some_and(|volume| volume.to_string() == report.id));
            let is_believed = report.phase == "opening" || listing.is_of_writer(report);
            is_believed && !is_here && !to_serve.contains(&report.name)
        });
        reports
    }

    /// The names of the pool's volumes that are to be served here.
    fn to_serve(&self) -> Vec<String> {
        let devices = self.running.runtime().served_devices().into_iter();
        let of_pool = devices.filter(|device| device.name.pool == Some(self.running.pool.id));
        of_pool.map(|device| device.name.name).collect()
    }

    /// The volumes of the pool that are neither reported nor to be served, by name. Volumes that
    /// cannot be listed have their ids.
    fn not_served(&self, report: &PoolReport, listing: &Listing) -> Vec<String> {
        let to_serve = self.to_serve();
        let is_reported = |id: VolumeId| {
            let id = id.to_string();
            report.volumes.iter().any(|volume| volume.id == id)
        };
        let volumes = listing.volumes.iter();
        let volumes =
            volumes.filter(|known| !to_serve.contains(&known.name) && !is_reported(known.id));
        let hidden = listing.hidden.keys().filter(|id| !is_reported(**id));
        volumes.map(|known| known.name.clone()).chain(hidden.map(ToString::to_string)).collect()
    }

    fn call_volumes(&self, volume: Option<&str>, call: VolumeCall) -> anyhow::Result<Response> {
        let runtime = self.running.runtime();
        if volume.is_none() {
            // The request is for all volumes, so none may still be opening.
            for device in runtime.served_devices() {
                if device.name.pool.is_none_or(|pool| pool == self.running.pool.id) {
                    runtime.check_not_opening(&device.name)?;
                }
            }
        }
        let clients = self.running.client_volumes();
        let mut of_clients = self.client_volumes(&self.running.list_volumes()?);
        of_clients.retain(|report| volume.is_none_or(|name| report.name == name));
        let names: Vec<DeviceName> = match volume {
            Some(_) if !of_clients.is_empty() => Vec::new(),
            Some(name) => vec![self.name(name)],
            None => self.running.open_volumes().into_iter().map(|open| open.name).collect(),
        };
        if names.is_empty() && of_clients.is_empty() {
            bail!("no volume is being served here");
        }
        let own = names.into_iter().map(|name| runtime.call_store(&name, call));
        // A volume that cannot be called keeps no other one from being called.
        let mut failed: Vec<anyhow::Error> = own.filter_map(Result::err).collect();
        std::thread::scope(|scope| {
            let ask = |report| scope.spawn(move || clients.call(volume_id(report)?, call.into()));
            let asked: Vec<_> = of_clients.iter().map(ask).collect();
            failed.extend(asked.into_iter().filter_map(|asked| asked.join().ok()?.err()));
        });
        match &failed[..] {
            [] => Ok(Response::Done),
            _ => {
                let failed: Vec<String> = failed.iter().map(|error| format!("{error:#}")).collect();
                bail!("{}", failed.join("; "))
            }
        }
    }

    /// The volume of this name that a client serves, if no device here has the name.
    fn at_client(&self, name: &str) -> anyhow::Result<Option<VolumeId>> {
        let device = self.name(name);
        if self.running.runtime().open_devices().iter().any(|open| open.name == device) {
            return Ok(None);
        }
        let of_clients = self.client_volumes(&self.running.list_volumes()?);
        of_clients.iter().find(|report| report.name == name).map(volume_id).transpose()
    }

    /// The device with this name: a store that needs no pool, or a volume of the pool.
    fn name(&self, name: &str) -> DeviceName {
        let store = DeviceName::store(name);
        let open = self.running.runtime().open_devices();
        let is_store = open.iter().any(|open| open.name == store);
        if is_store { store } else { self.running.device_name(name) }
    }

    fn grow(&self, name: &str, size_bytes: u64, thin: bool) -> anyhow::Result<()> {
        let runtime = self.running.runtime();
        let open = runtime.find_open(&self.running.device_name(name))?;
        // The front-ends hear of the new size from the device.
        self.running.grow(&open, size_bytes, thin)
    }

    fn act(&self, request: Request) -> anyhow::Result<Response> {
        let _one_at_a_time = match &request {
            Request::Status | Request::Keys { .. } | Request::VolumeList | Request::Stop => None,
            // It must not wait for the client that it is about.
            Request::Evict { .. } => None,
            _ => Some(self.changes.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        match request {
            Request::Status => {
                Ok(Response::Status(Box::new(self.report(STATUS_TIMEOUT, StoreFilter::Include))))
            }
            Request::Rebuild { volume, limit } => {
                let call = VolumeCall::Rebuild { limit_bytes_per_second: limit };
                self.call_volumes(volume.as_deref(), call)
            }
            Request::Scrub { volume, limit } => {
                let call = VolumeCall::Scrub { limit_bytes_per_second: limit };
                self.call_volumes(volume.as_deref(), call)
            }
            Request::Keys { retired } => {
                Ok(Response::Keys(Box::new(self.running.keys_report(retired)?)))
            }
            Request::Evict { client } => Ok(Response::Evicted(self.running.evict(&client)?)),
            Request::VolumeList => {
                let listing = self.running.list_volumes()?;
                self.running.remove_again(&listing);
                let volumes = listing.volumes.iter().map(|known| self.running.line(known));
                let warning = listing.check_none_hidden().err().map(|error| error.to_string());
                Ok(Response::Volumes { volumes: volumes.collect(), warning })
            }
            Request::VolumeCreate { name, size_bytes, code, thin } => {
                check_name(&name)?;
                let profile = code.map(|code| code.parse()).transpose()?;
                let (known, warning) =
                    self.running.create_volume(&name, size_bytes, profile, thin)?;
                Ok(Response::Volumes { volumes: vec![self.running.line(&known)], warning })
            }
            Request::VolumeGrow { name, size_bytes, thin } => {
                let device = self.running.device_name(&name);
                self.running.runtime().check_not_opening(&device)?;
                let (known, warning) = self.running.check_growth(&name, size_bytes, thin)?;
                if self.running.open_volumes().iter().any(|open| open.name == device) {
                    self.grow(&name, size_bytes, thin)?;
                } else if self.at_client(&name)?.is_some() {
                    self.running.grow_at_client(&known, size_bytes, thin)?;
                } else {
                    self.running.grow_closed(&known, size_bytes, thin)?;
                }
                let mut line = self.running.line(&known);
                line.size_bytes = size_bytes;
                Ok(Response::Volumes { volumes: vec![line], warning })
            }
            Request::VolumeLimit { name, options } => {
                let options = format!("limit:{options}");
                match self.at_client(&name)? {
                    Some(id) => {
                        self.running.client_volumes().call(id, DeviceCall::Layer(options))?;
                    }
                    None => {
                        let settings = Settings::parse(&options)?;
                        self.running.runtime().change_layer(&self.name(&name), settings)?;
                    }
                }
                Ok(Response::Done)
            }
            Request::VolumeRemove { name, force } => {
                self.running.remove_volume(&name, force)?;
                Ok(Response::Done)
            }
            Request::Stop => {
                let Some(stop) = &self.server.stop else {
                    bail!(
                        "process {} has opened the pool's volumes for itself; end that program",
                        std::process::id()
                    );
                };
                // The receiver is gone if the server is ending already.
                let _ = stop.lock().unwrap_or_else(PoisonError::into_inner).send(());
                Ok(Response::Done)
            }
        }
    }
}

impl Service for Served {
    fn answer(&self, request: Request) -> Response {
        self.act(request).unwrap_or_else(|error| Response::Error { error: format!("{error:#}") })
    }
}

/// The id of a volume in a report of this process.
fn volume_id(report: &VolumeReport) -> anyhow::Result<VolumeId> {
    let id = u128::from_str_radix(&report.id, 16);
    Ok(VolumeId(id.with_context(|| format!("the id of {}", report.name))?))
}

impl RunningPool {
    /// The line of a volume in a list.
    pub fn line(&self, known: &Known) -> VolumeLine {
        let of_clients = self.client_volumes().reports();
        let id = known.id.to_string();
        let is_it = |report: &VolumeReport| report.id == id && report.epoch == known.epoch.0;
        let client = of_clients.into_iter().find(is_it);
        let client = client.and_then(|report| report.client);
        let served = self.open_volumes().iter().any(|open| open.volume == Some(known.id));
        VolumeLine {
            name: known.name.clone(),
            id,
            code: known.profile.to_string(),
            size_bytes: known.size_bytes,
            epoch: known.epoch.0,
            nodes: known.nodes,
            served: served || client.is_some(),
            client,
        }
    }
}
