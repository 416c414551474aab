//! An engine behind the control socket.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::bail;
use fieldstone_block::Settings;
use fieldstone_host::VolumeCall;
use fieldstone_host::frontends::nbd::{self, Exports};
use fieldstone_proto::NodeIndex;

use super::{Engine, Known, Stage};
use crate::control::{Request, Response, Service, VolumeLine};
use crate::pool::record;
use crate::report::{PoolReport, ServerReport, VolumeReport};
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
        self.add_targets(&mut report);
        if let Err(error) = self.settle(&report) {
            tracing::info!("cannot note that the pool is whole: {error:#}");
        }
        Ok(report)
    }

    /// Completes a report with what is told to be served and is not open yet, in the order of the
    /// exports.
    fn add_targets(&self, report: &mut PoolReport) {
        let mut volumes = Vec::new();
        for target in self.engine.targets() {
            let at = report.volumes.iter().position(|volume| volume.name == target.name);
            let mut volume = at.map(|at| report.volumes.remove(at)).unwrap_or_else(|| {
                let phase =
                    if matches!(target.stage, Stage::Failed(_)) { "failed" } else { "opening" };
                VolumeReport {
                    name: target.name.clone(),
                    phase: phase.to_owned(),
                    protection: "unknown".to_owned(),
                    ..VolumeReport::default()
                }
            });
            if let Stage::Failed(reason) = target.stage {
                volume.reason = reason;
            }
            volumes.push(volume);
        }
        volumes.append(&mut report.volumes);
        report.volumes = volumes;
    }

    /// Notes in the pool's record that replaced nodes are rebuilt, once every volume is whole.
    fn settle(&self, report: &PoolReport) -> anyhow::Result<()> {
        let Some(pool) = &self.engine.pool else { return Ok(()) };
        if !report.volumes.iter().all(|volume| volume.id.is_empty() || volume.is_whole()) {
            return Ok(());
        }
        let record = record::Record::read(&pool.folder, pool.id)?;
        // A node that was made a moment ago is not the one that the volumes know.
        let known = |(node, incarnation): &(NodeIndex, &str)| {
            let mut nodes = report.nodes.iter().filter(|found| found.node == node.0);
            nodes.any(|found| found.incarnation == *incarnation)
        };
        let to_rebuild = record.to_rebuild();
        if to_rebuild.is_empty() || !to_rebuild.iter().all(known) {
            return Ok(());
        }
        let served = |known: &Known| report.volumes.iter().any(|v| v.id == known.id.to_string());
        let listing = self.engine.list_volumes()?;
        if listing.is_complete() && listing.volumes.iter().all(served) {
            record::update(&pool.folder, pool.id, record::Record::note_whole)?;
        }
        Ok(())
    }

    fn call_volumes(&self, volume: Option<&str>, call: VolumeCall) -> anyhow::Result<Response> {
        if volume.is_none() {
            // All that is to be served is asked for.
            for target in self.engine.targets() {
                self.engine.check_not_opening(&target.name)?;
            }
        }
        let open = self.engine.open_devices();
        let names: Vec<&str> = match volume {
            Some(name) => vec![name],
            None => open.iter().filter(|o| o.volume.is_some()).map(|o| o.name.as_str()).collect(),
        };
        if names.is_empty() {
            bail!("no volume is being served here");
        }
        for name in names {
            self.engine.call_store(name, call)?;
        }
        Ok(Response::Done)
    }

    fn grow(&self, name: &str, size_bytes: u64, thin: bool) -> anyhow::Result<()> {
        let open = self.engine.find_open(name)?;
        self.engine.grow(&open, size_bytes, thin)?;
        self.engine.offer_exports(self.read_only)
    }

    fn act(&self, request: Request) -> anyhow::Result<Response> {
        let _one_at_a_time = match &request {
            Request::Status | Request::VolumeList | Request::Stop => None,
            _ => Some(self.changes.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        match request {
            Request::Status => Ok(Response::Status(Box::new(self.report()?))),
            Request::Rebuild { volume, limit } => {
                let call = VolumeCall::Rebuild { limit_bytes_per_second: limit };
                self.call_volumes(volume.as_deref(), call)
            }
            Request::Scrub { volume, limit } => {
                let call = VolumeCall::Scrub { limit_bytes_per_second: limit };
                self.call_volumes(volume.as_deref(), call)
            }
            Request::VolumeList => {
                let listing = self.engine.list_volumes()?;
                let volumes = listing.volumes.iter().map(|known| self.engine.line(known));
                let warning = listing.check_none_hidden().err().map(|error| error.to_string());
                Ok(Response::Volumes { volumes: volumes.collect(), warning })
            }
            Request::VolumeCreate { name, size_bytes, code, thin } => {
                check_name(&name)?;
                let profile = code.map(|code| code.parse()).transpose()?;
                let (known, warning) =
                    self.engine.create_volume(&name, size_bytes, profile, thin)?;
                Ok(Response::Volumes { volumes: vec![self.engine.line(&known)], warning })
            }
            Request::VolumeGrow { name, size_bytes, thin } => {
                self.engine.check_not_opening(&name)?;
                let (known, warning) = self.engine.check_growth(&name, size_bytes, thin)?;
                if self.engine.open_devices().iter().any(|open| open.name == name) {
                    self.grow(&name, size_bytes, thin)?;
                } else {
                    self.engine.grow_closed(&known, size_bytes, thin)?;
                }
                let mut line = self.engine.line(&known);
                line.size_bytes = size_bytes;
                Ok(Response::Volumes { volumes: vec![line], warning })
            }
            Request::VolumeLimit { name, options } => {
                let settings = Settings::parse(&format!("limit:{options}"))?;
                self.engine.change_layer(&name, settings)?;
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

    /// Offers every open target to NBD clients that come from now on.
    ///
    /// # Errors
    /// As [`Engine::exports`].
    pub fn offer_exports(&self, read_only: bool) -> anyhow::Result<()> {
        let _one_at_a_time = self.offering.lock().unwrap_or_else(PoisonError::into_inner);
        nbd::offer(self.handle(), self.exports(read_only)?)?;
        Ok(())
    }

    /// What NBD clients are offered: every target that is open. The first target is the default
    /// export, also while it is not open: then there is none.
    ///
    /// # Errors
    /// When a device is beyond what the protocol can say, or none is open.
    fn exports(&self, read_only: bool) -> anyhow::Result<Exports> {
        let targets = self.targets();
        let snapshot = self.snapshot();
        let (mut exports, mut devices) = (Vec::new(), Vec::new());
        for target in &targets {
            let Stage::Serving(device) = &target.stage else { continue };
            // Its size now: it may have grown since it was opened.
            let found = snapshot.iter().flat_map(|core| &core.devices);
            let mut found = found.filter(|found| found.device == device.device);
            let info = found.next().map_or_else(|| device.info.clone(), |found| found.info.clone());
            let mut export = fieldstone_nbd::Export::new(device.name.as_str(), &info);
            export.can_multi_conn = true;
            export.read_only |= read_only;
            exports.push(export);
            devices.push(device.device);
        }
        let has_default =
            targets.first().is_some_and(|first| matches!(first.stage, Stage::Serving(_)));
        let mut list = fieldstone_nbd::ExportList::new(exports)?;
        if !has_default {
            list = list.without_default();
        }
        Ok(Exports { list: Arc::new(list), devices })
    }
}
