//! Makes reports from the snapshots of the host.

use fieldstone_host::{CoreSnapshot, DeviceSnapshot, ParityMemoryUse, VolumeStatus};
use fieldstone_proto::PoolId;
use fieldstone_volume::{NodeHealth, Progress, Status, VolumePhase};

use super::{
    CoreReport, EngineKindReport, EngineReport, NodeReport, ParityMemoryReport, PoolReport,
    ProgressReport, ServerReport, VolumeNodeReport, VolumeReport,
};
use crate::listen::listening;
use crate::pool::Provision;
use crate::running::{Known, NodeAnswer, PoolStatus, RunningPool, STATUS_TIMEOUT};
use crate::runtime::{DeviceName, Runtime};

/// Whether the report of a pool contains the served stores that need no pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFilter {
    /// The report contains them.
    Include,
    /// The report does not contain them, because another report of the server does.
    Exclude,
}

impl PoolReport {
    /// The report of a running pool, with the stores that need no pool. Leaves out facts that are
    /// not available.
    pub fn of(running: &RunningPool) -> Self {
        Self::from_status(running, &running.query_nodes(STATUS_TIMEOUT), StoreFilter::Include)
    }

    /// The report of a running pool, made of the answers of its nodes. `stores` decides whether the
    /// report contains the stores that need no pool.
    pub fn from_status(running: &RunningPool, status: &PoolStatus, stores: StoreFilter) -> Self {
        let (pool, runtime) = (&running.pool, running.runtime());
        let cores = runtime.handle().snapshot(true);
        let mut volumes = device_reports(runtime, &cores, Some(pool.id), stores);
        volumes.iter_mut().for_each(|volume| explain_nodes(volume, pool.id, &cores));
        let listing = status.listing.as_ref().ok();
        if let Some(listing) = listing {
            volumes.iter_mut().for_each(|volume| complete(volume, &listing.volumes));
        }
        let provision = listing.map(|listing| running.provision(&listing.volumes));
        Self {
            pool: pool.id.to_string(),
            dir: pool.folder.display().to_string(),
            code: pool.profile.to_string(),
            server: None,
            provisioned_bytes: provision.map(Provision::needed_bytes),
            provisionable_bytes: provision.map(Provision::bytes),
            nodes: node_reports(running, &status.nodes, &cores),
            volumes,
            not_served: listing.map(|_| Vec::new()),
        }
    }

    /// The report of the stores that need no pool.
    pub fn of_stores(runtime: &Runtime) -> Self {
        let cores = runtime.handle().snapshot(true);
        Self {
            volumes: device_reports(runtime, &cores, None, StoreFilter::Include),
            ..Self::default()
        }
    }
}

/// Reports the devices of a pool, and the stores that need no pool if `stores` says so.
fn device_reports(
    runtime: &Runtime,
    cores: &[CoreSnapshot],
    pool: Option<PoolId>,
    stores: StoreFilter,
) -> Vec<VolumeReport> {
    let report = |device: &DeviceSnapshot| {
        let name = runtime.name_of(device.device)?;
        let is_included = match name.pool {
            None => stores == StoreFilter::Include,
            of => of == pool,
        };
        is_included.then(|| device_report(name.name, device))
    };
    cores.iter().flat_map(|core| &core.devices).filter_map(report).collect()
}

impl VolumeReport {
    /// The report of an open device, as it was a moment ago.
    pub fn of_device(runtime: &Runtime, name: &DeviceName) -> Option<Self> {
        runtime.with_recent_snapshot(|cores| {
            let mut devices = cores.iter().flat_map(|core| &core.devices);
            let is_it =
                |found: &&DeviceSnapshot| runtime.name_of(found.device).as_ref() == Some(name);
            Some(device_report(name.name.clone(), devices.find(is_it)?))
        })
    }
}

impl ServerReport {
    /// The report of this server.
    pub fn of(
        cores: &[CoreSnapshot],
        parity_memory: ParityMemoryUse,
        uptime_ns: u64,
        listen: Vec<String>,
    ) -> Self {
        let reports: Vec<CoreReport> = cores
            .iter()
            .map(|core| CoreReport {
                core: core.core as u64,
                user_ns: core.usage.user.0,
                system_ns: core.usage.system.0,
                enters: core.ring.enters,
                operations: core.ring.sqes,
                turns: core.turns.turns,
                turns_busy_ns: core.turns.busy.0,
                turn_max_ns: core.turns.longest.0,
                turn_max_recent_ns: core.turns.longest_recent.0,
            })
            .collect();
        // Front-ends whose clients connect. Those inside a program are the program itself.
        let counts = || {
            let of = |core: &CoreSnapshot| {
                let found = listening().filter_map(|kind| core.frontend(kind.name));
                found.map(|frontend| frontend.counts).collect::<Vec<_>>()
            };
            cores.iter().flat_map(of)
        };
        Self {
            pid: std::process::id(),
            uptime_ns,
            listen,
            connections: counts().map(|counts| counts.connections as u64).sum(),
            connections_total: counts().map(|counts| counts.accepted).sum(),
            cpu_ns: reports.iter().map(|core| core.user_ns + core.system_ns).sum(),
            cores: reports,
            parity_memory: parity_memory.into(),
        }
    }
}

impl From<ParityMemoryUse> for ParityMemoryReport {
    fn from(used: ParityMemoryUse) -> Self {
        Self {
            total_bytes: used.total_bytes as u64,
            sums_bytes: used.sums_bytes as u64,
            products_bytes: used.products_bytes as u64,
            denied: used.denied,
        }
    }
}

/// Reports the nodes: their own answers, or the reason why they are down.
fn node_reports(
    running: &RunningPool,
    answers: &[NodeAnswer],
    cores: &[CoreSnapshot],
) -> Vec<NodeReport> {
    let local = |node| {
        let mut nodes = cores.iter().flat_map(|core| &core.nodes);
        nodes.find(|found| found.pool == running.pool.id && found.node == node)
    };
    let report = |answer: &NodeAnswer| {
        let mut report = NodeReport {
            node: answer.node.0,
            place: running.place_name(usize::from(answer.node.0)),
            ..NodeReport::default()
        };
        match &answer.stat {
            Ok(stat) => {
                report.state = "up".to_owned();
                report.incarnation = format!("{:016x}", stat.incarnation);
                report.total_bytes = u64::from(stat.slots_total) * u64::from(stat.slot_bytes);
                report.free_bytes = u64::from(stat.slots_free) * u64::from(stat.slot_bytes);
            }
            Err(reason) => {
                report.state = "down".to_owned();
                let known = local(answer.node).and_then(|node| node.down.clone());
                report.reason = known.unwrap_or_else(|| reason.clone());
            }
        }
        report
    };
    answers.iter().map(report).collect()
}

/// Replaces the reasons for nodes of this process that are down: the node itself knows more.
fn explain_nodes(volume: &mut VolumeReport, pool: PoolId, cores: &[CoreSnapshot]) {
    for view in volume.nodes.iter_mut().filter(|view| view.state == "down") {
        let mut nodes = cores.iter().flat_map(|core| &core.nodes);
        let node = nodes.find(|node| node.pool == pool && node.node.0 == view.node);
        let down = node.and_then(|node| node.down.clone());
        if let Some(reason) = down {
            view.reason = reason;
        }
    }
}

/// Fills in the size and code that an opening volume does not know yet.
fn complete(volume: &mut VolumeReport, listed: &[Known]) {
    let Some(known) = listed.iter().find(|known| known.name == volume.name) else { return };
    if volume.phase == "opening" && volume.size_bytes == 0 {
        volume.size_bytes = known.size_bytes;
        volume.code = known.profile.to_string();
    }
}

/// The report of an open device.
fn device_report(name: String, device: &DeviceSnapshot) -> VolumeReport {
    let mut report = match device.status_of::<VolumeStatus>() {
        Some(status) => volume_report(status),
        None => VolumeReport {
            code: device.kind.to_owned(),
            phase: phase_word(&device.phase).to_owned(),
            protection: "none".to_owned(),
            size_bytes: device.info.size_bytes,
            capacity_bytes: device.info.size_bytes,
            ..VolumeReport::default()
        },
    };
    report.name = name;
    report.io = Some(super::io::io_report(&device.stats));
    report
}

fn phase_word(phase: &fieldstone_host::Phase) -> &'static str {
    match phase {
        fieldstone_host::Phase::Opening => "opening",
        fieldstone_host::Phase::Serving => "serving",
        fieldstone_host::Phase::Closing => "closing",
        fieldstone_host::Phase::Closed => "closed",
        fieldstone_host::Phase::Failed(_) => "failed",
    }
}

fn volume_report(store: &VolumeStatus) -> VolumeReport {
    let status = &store.volume;
    let (phase, reason) = match &status.phase {
        VolumePhase::Opening => ("opening", String::new()),
        VolumePhase::Serving => ("serving", String::new()),
        VolumePhase::Closing => ("closing", String::new()),
        VolumePhase::Inspected | VolumePhase::Closed => ("closed", String::new()),
        VolumePhase::Failed(reason) => ("failed", reason.to_string()),
    };
    VolumeReport {
        name: status.name.clone(),
        client: None,
        grow_refused: status.grow_refused.clone().unwrap_or_default(),
        id: status.volume.to_string(),
        code: status.profile.clone(),
        phase: phase.to_owned(),
        reason,
        waits_for: status.waits_for.clone(),
        protection: match status.phase {
            // The missing shards are known only when the volume has its map.
            VolumePhase::Opening => "unknown",
            _ => protection(status),
        }
        .to_owned(),
        epoch: status.epoch.0,
        size_bytes: status.size_bytes,
        live_bytes: status.live_bytes,
        capacity_bytes: status.capacity_bytes,
        map_bytes: status.map_bytes,
        segments: status.segments,
        segments_degraded: status.segments_degraded,
        segments_lost: status.segments_lost,
        segments_pending_free: status.segments_pending_free,
        shards_missing: status.shards_missing,
        journal_used_bytes: status.journal_used_bytes,
        journal_ring_bytes: status.journal_ring_bytes,
        journal_whole: status.journal_whole,
        journal_nodes: status.journal_nodes.iter().map(|node| node.0).collect(),
        user_written_bytes: status.user_written_bytes,
        moved_bytes: status.moved_bytes,
        sent_bytes: status.sent_bytes,
        replicate: status.replicate.to_string(),
        appends_relayed: status.appends_relayed,
        appends_sent_again: status.appends_sent_again,
        copies_relayed: status.copies_relayed,
        copies_sent_again: status.copies_sent_again,
        parities_relayed: status.parities_relayed,
        parities_sent_again: status.parities_sent_again,
        encode: status.encode.to_string(),
        parities_streamed: status.parities_streamed,
        parities_coded_again: status.parities_coded_again,
        degraded_reads: status.degraded_reads,
        checkpoints: status.checkpoints,
        shards_damaged: status.shards_damaged,
        gc_pause_max_ns: status.gc_pause_max_ns,
        engine: engine_report(store),
        nodes: status.nodes.iter().map(node_view).collect(),
        rebuild: progress_report(&status.rebuild),
        scrub: progress_report(&status.scrub),
        io: None,
    }
}

fn protection(status: &Status) -> &'static str {
    if status.segments_lost > 0 {
        "lost"
    } else if status.segments_degraded > 0 || status.shards_missing > 0 || !status.journal_whole {
        "degraded"
    } else {
        "healthy"
    }
}

fn engine_report(status: &VolumeStatus) -> EngineReport {
    let counters = &status.engine_counters;
    let kinds =
        [("code", counters.code), ("place", counters.place), ("checksum", counters.checksum)];
    let kinds = kinds.map(|(kind, counters)| EngineKindReport {
        kind: kind.to_owned(),
        jobs: counters.jobs,
        bytes: counters.bytes,
        device_jobs: counters.device_jobs,
        device_failures: counters.device_failures,
        device_wrong: counters.device_wrong,
        device_late: counters.device_late,
        device_full: counters.device_full,
    });
    EngineReport { name: status.engine.clone(), kinds: kinds.into() }
}

fn node_view(node: &fieldstone_volume::NodeStatus) -> VolumeNodeReport {
    VolumeNodeReport {
        node: node.node.0,
        state: match node.health {
            NodeHealth::Up => "up",
            NodeHealth::Joining => "joining",
            NodeHealth::Down => "down",
        }
        .to_owned(),
        incarnation: match node.incarnation {
            0 => String::new(),
            known => format!("{known:016x}"),
        },
        reason: node.reason.clone(),
        shards: node.shards,
    }
}

fn progress_report(progress: &Progress) -> ProgressReport {
    ProgressReport {
        running: progress.running,
        shards_total: progress.shards_total,
        shards_done: progress.shards_done,
        shards_failed: progress.shards_failed,
        damaged: progress.damaged,
        read_bytes: progress.read_bytes,
        reed_solomon_bytes: progress.reed_solomon_bytes,
        written_bytes: progress.written_bytes,
        elapsed_ns: progress.elapsed_ns,
    }
}
