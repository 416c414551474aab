//! `fieldstone status`: the status from the running server. Without a server, this process reads it
//! from the nodes.

use std::path::PathBuf;

use fieldstone_server::paths::pool_or_volume;
use fieldstone_server::report::{PoolReport, VolumeReport};
use fieldstone_server::running::{Operator, RunningPool, VolumeOptions};
use fieldstone_server::runtime::OpenWait;

use super::nodes::NodeOptions;
use crate::report::print_pool;

/// Options of `status`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A pool, or one volume of it.
    #[arg(value_name = "DIR[/VOLUME]")]
    target: PathBuf,
    #[command(flatten)]
    nodes: NodeOptions,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `status`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let target = pool_or_volume(&args.target)?;
    let mut operator = Operator::find(&target.pool, target.volume.as_deref(), &args.nodes.fixed)?;
    let queried = match &mut operator {
        Operator::Server(server) if target.volume.is_none() => server.first_status_of_all(),
        Operator::Server(server) => server.first_status(),
        Operator::Own(running) => inspect(running, target.volume.as_deref()),
    };
    let finished = operator.finish();
    let mut report = queried.and_then(|report| finished.map(|()| report))?;
    if let Some(name) = &target.volume {
        report.volumes.retain(|volume| volume.name == *name);
        report.not_served = None;
    }
    if args.json {
        print_line!("{}", serde_json::to_string(&report)?);
    } else {
        print_pool(&report);
    }
    Ok(())
}

/// Opens the volumes read-only and reports on them.
fn inspect(running: &RunningPool, volume: Option<&str>) -> anyhow::Result<PoolReport> {
    let listing = running.list_volumes()?;
    let wanted = match volume {
        Some(name) => vec![running.find_in(&listing, name)?],
        None => listing.volumes.clone(),
    };
    let mut failed = Vec::new();
    for known in &wanted {
        let (options, wait) = (VolumeOptions::inspect(), OpenWait::default());
        if let Err(error) = running.open_volume(known, &options, wait) {
            failed.push((running.line(known), format!("{error:#}")));
        }
    }
    let mut report = PoolReport::of(running);
    for volume in &mut report.volumes {
        // There were no requests, so there are no latencies to report.
        volume.io = None;
    }
    let hidden = listing.hidden.iter().filter(|_| volume.is_none());
    report.volumes.extend(hidden.map(|(id, hidden)| VolumeReport {
        name: id.to_string(),
        id: id.to_string(),
        phase: "failed".to_owned(),
        protection: "unknown".to_owned(),
        reason: hidden.why.clone(),
        ..Default::default()
    }));
    for (line, reason) in failed {
        report.volumes.push(VolumeReport {
            name: line.name,
            id: line.id,
            code: line.code,
            size_bytes: line.size_bytes,
            phase: "failed".to_owned(),
            protection: "unknown".to_owned(),
            reason,
            ..Default::default()
        });
    }
    Ok(report)
}
