//! An engine behind the control socket.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::bail;
use fieldstone_uring::host::{Exports, Job};

use super::{Engine, Known};
use crate::control::{Request, Response, Service, VolumeLine};
use crate::report::{PoolReport, ServerReport};
use crate::target::check_name;

/// A serving engine, as the control socket and the metrics see it.
pub struct Served {
    engine: Arc<Engine>,
    listen: Vec<String>,
    started: Instant,
    stop: Mutex<Sender<()>>,
    read_only: bool,
    /// Calls that change volumes come one at a time.
    changes: Mutex<()>,
}

impl Served {
    /// An engine that serves at `listen`; a call to stop goes to `stop`.
    pub fn new(
        engine: Arc<Engine>,
        listen: Vec<String>,
        read_only: bool,
        stop: Sender<()>,
    ) -> Self {
        Self {
            engine,
            listen,
            started: Instant::now(),
            stop: Mutex::new(stop),
            read_only,
            changes: Mutex::new(()),
        }
    }

    /// Everything about the pool and the server.
    pub fn report(&self) -> anyhow::Result<PoolReport> {
        let mut report = PoolReport::of(&self.engine)?;
        let uptime_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let cores = self.engine.snapshot();
        report.server = Some(ServerReport::of(&cores, uptime_ns, self.listen.clone()));
        Ok(report)
    }

    fn start_jobs(&self, volume: Option<&str>, job: Job) -> anyhow::Result<Response> {
        let open = self.engine.open_devices();
        let names: Vec<&str> = match volume {
            Some(name) => vec![name],
            None => open.iter().filter(|o| o.volume.is_some()).map(|o| o.name.as_str()).collect(),
        };
        if names.is_empty() {
            bail!("no volume is being served here");
        }
        for name in names {
            self.engine.start_job(name, job)?;
        }
        Ok(Response::Done)
    }

    fn grow(&self, name: &str, size_bytes: u64) -> anyhow::Result<Response> {
        let open = self.engine.find_open(name)?;
        self.engine.grow(&open, size_bytes)?;
        self.engine.handle().offer(self.engine.exports(self.read_only)?);
        Ok(Response::Done)
    }

    fn act(&self, request: Request) -> anyhow::Result<Response> {
        let _one_at_a_time = match &request {
            Request::Status | Request::VolumeList | Request::Stop => None,
            _ => Some(self.changes.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        match request {
            Request::Status => Ok(Response::Status(Box::new(self.report()?))),
            Request::Rebuild { volume, limit } => {
                let job = Job::Rebuild { limit_bytes_per_second: limit };
                self.start_jobs(volume.as_deref(), job)
            }
            Request::Scrub { volume, limit } => {
                let job = Job::Scrub { limit_bytes_per_second: limit };
                self.start_jobs(volume.as_deref(), job)
            }
            Request::VolumeList => {
                let listing = self.engine.list_volumes()?;
                let volumes = listing.volumes.iter().map(|known| self.engine.line(known));
                Ok(Response::Volumes { volumes: volumes.collect() })
            }
            Request::VolumeCreate { name, size_bytes, code } => {
                check_name(&name)?;
                let profile = code.map(|code| code.parse()).transpose()?;
                let known = self.engine.create_volume(&name, size_bytes, profile)?;
                Ok(Response::Volumes { volumes: vec![self.engine.line(&known)] })
            }
            Request::VolumeGrow { name, size_bytes } => {
                if self.engine.open_devices().iter().any(|open| open.name == name) {
                    return self.grow(&name, size_bytes);
                }
                let known = self.engine.find_volume(&name)?;
                self.engine.grow_closed(&known, size_bytes)?;
                Ok(Response::Done)
            }
            Request::VolumeRemove { name, force } => {
                let known = self.engine.find_volume(&name)?;
                self.engine.remove_volume(&known, force)?;
                Ok(Response::Done)
            }
            Request::Stop => {
                // The server may be ending already.
                let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = stop.send(());
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

impl Engine {
    /// A volume in a list.
    pub fn line(&self, known: &Known) -> VolumeLine {
        VolumeLine {
            name: known.name.clone(),
            id: known.id.to_string(),
            code: known.profile.to_string(),
            size_bytes: known.size_bytes,
            epoch: known.epoch.0,
            nodes: known.nodes,
            served: self.open_devices().iter().any(|open| open.volume == Some(known.id)),
        }
    }

    /// What NBD clients are offered: every open device.
    ///
    /// # Errors
    /// When a device is beyond what the protocol can say.
    pub fn exports(&self, read_only: bool) -> anyhow::Result<Exports> {
        let open = self.open_devices();
        let snapshot = self.snapshot();
        let mut exports = Vec::new();
        for device in &open {
            // Its size now: it may have grown since it was opened.
            let found = snapshot.iter().flat_map(|core| &core.devices);
            let mut found = found.filter(|found| found.device == device.device);
            let info = found.next().map_or_else(|| device.info.clone(), |found| found.info.clone());
            let mut export = fieldstone_nbd::Export::new(device.name.as_str(), &info);
            export.can_multi_conn = true;
            export.read_only |= read_only;
            exports.push(export);
        }
        Ok(Exports {
            list: Arc::new(fieldstone_nbd::ExportList::new(exports)?),
            devices: open.iter().map(|device| device.device).collect(),
        })
    }
}
