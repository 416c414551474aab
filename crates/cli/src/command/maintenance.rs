//! `fieldstone rebuild` and `fieldstone scrub`: start the work, show a bar until it ends, and print
//! a summary.
//!
//! With a server, the work runs there and continues if this command is interrupted. Without a
//! server, this process opens the volumes one after the other.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use fieldstone_host::VolumeCall;
use fieldstone_server::control::{Client, Request, servers};
use fieldstone_server::paths::pool_or_volume;
use fieldstone_server::report::{PoolReport, ProgressReport, StoreFilter, VolumeReport};
use fieldstone_server::running::{Operator, RunningPool, STATUS_TIMEOUT, VolumeOptions};
use fieldstone_server::runtime::OpenWait;

use super::nodes::NodeOptions;
use crate::progress::{new_bar, show};
use crate::report::{not_served_text, rebuild_text, scrub_text, shards};
use fieldstone_units as units;

/// Time between two status queries.
const STEP: Duration = Duration::from_millis(200);
/// The longest wait for nodes that are not up, before the work starts.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The work on a pool or volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maintenance {
    /// Restore missing shards.
    Rebuild,
    /// Check every shard.
    Scrub,
}

impl Maintenance {
    fn name(self) -> &'static str {
        match self {
            Self::Rebuild => "rebuild",
            Self::Scrub => "scrub",
        }
    }

    /// Its part of a volume's report.
    fn of(self, volume: &VolumeReport) -> &ProgressReport {
        match self {
            Self::Rebuild => &volume.rebuild,
            Self::Scrub => &volume.scrub,
        }
    }

    /// The work on a volume in one line.
    fn text(self, volume: &VolumeReport) -> String {
        match self {
            Self::Rebuild => rebuild_text(&volume.rebuild),
            Self::Scrub => {
                let text = scrub_text(volume);
                match volume.shards_missing {
                    missing if missing > 0 && volume.scrub.damaged > 0 => {
                        format!("{text}, {} missing: see `fieldstone status`", shards(missing))
                    }
                    _ => text,
                }
            }
        }
    }

    /// The request that starts the work in a server.
    fn request(self, volume: Option<String>, limit: u64) -> Request {
        match self {
            Self::Rebuild => Request::Rebuild { volume, limit },
            Self::Scrub => Request::Scrub { volume, limit },
        }
    }

    fn call(self, limit: u64) -> VolumeCall {
        match self {
            Self::Rebuild => VolumeCall::Rebuild { limit_bytes_per_second: limit },
            Self::Scrub => VolumeCall::Scrub { limit_bytes_per_second: limit },
        }
    }
}

/// Options of `rebuild` and `scrub`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A pool, or one volume of it.
    #[arg(value_name = "DIR[/VOLUME]")]
    target: PathBuf,
    /// Most bytes per second to read; 0 for no limit.
    #[arg(long, value_name = "RATE", default_value = "0", value_parser = units::parse_rate)]
    limit: u64,
    /// Do not wait for the end. Needs a running server.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    nodes: NodeOptions,
    /// Print one JSON object per volume at the end.
    #[arg(long)]
    json: bool,
}

/// Runs the work.
///
/// # Errors
/// The work cannot be started or fails, a rebuild could not restore every shard, or a scrub could
/// not check every shard. Shards that a scrub found damaged, and that are still missing, are no
/// error: the volume goes on rebuilding them.
pub fn run(kind: Maintenance, args: &Args) -> anyhow::Result<()> {
    let target = pool_or_volume(&args.target)?;
    let volume = target.volume;
    match Operator::find(&target.pool, volume.as_deref(), &args.nodes.fixed)? {
        Operator::Server(mut server) => match volume {
            Some(name) => online(kind, args, Some(&name), &mut server, &[]),
            None => online_everywhere(kind, args, servers(&target.pool)),
        },
        Operator::Own(running) => {
            let worked = if args.detach {
                let dir = target.pool.display();
                Err(anyhow!("--detach needs a running server, and {dir} has none"))
            } else {
                offline(kind, args, volume.as_deref(), &running)
            };
            let finished = running.finish();
            worked.and(finished)
        }
    }
}

/// Starts the work on all volumes of all servers of the pool, one server after the other. A server
/// without volumes has nothing to do, if another one has volumes.
fn online_everywhere(
    kind: Maintenance,
    args: &Args,
    mut servers: Vec<Client>,
) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for server in &mut servers {
        reports.push(server.status()?);
    }
    let has_volumes = |report: &PoolReport| report.volumes.iter().any(|v| !v.id.is_empty());
    let is_alone = !reports.iter().any(has_volumes);
    let names: Vec<String> = reports.iter().flat_map(|report| &report.volumes).map(name).collect();
    let mut outcome = Ok(());
    for (server, report) in servers.iter_mut().zip(&reports) {
        if is_alone || has_volumes(report) {
            outcome = outcome.and(online(kind, args, None, server, &names));
        }
        if is_alone {
            break;
        }
    }
    outcome
}

fn name(volume: &VolumeReport) -> String {
    volume.name.clone()
}

/// Starts the work in a server. Other servers of the pool have the volumes `elsewhere`.
fn online(
    kind: Maintenance,
    args: &Args,
    volume: Option<&str>,
    server: &mut Client,
    elsewhere: &[String],
) -> anyhow::Result<()> {
    let status = |server: &mut Client| {
        let mut report = server.status()?;
        if let Some(names) = &mut report.not_served {
            names.retain(|name| !elsewhere.contains(name));
        }
        Ok(report)
    };
    let report = wait_for_nodes(volume, || status(server))?;
    server.ask(&kind.request(volume.map(str::to_owned), args.limit))?;
    if args.detach {
        print_line!("the {} runs; watch it with `fieldstone status`", kind.name());
        if let Some(words) = not_served_text(&report).filter(|_| volume.is_none()) {
            print_line!("{words}");
        }
        return Ok(());
    }
    follow(kind, args.json, volume, || status(server))
}

fn offline(
    kind: Maintenance,
    args: &Args,
    volume: Option<&str>,
    running: &RunningPool,
) -> anyhow::Result<()> {
    let listing = running.list_volumes()?;
    let known = match volume {
        Some(name) => vec![running.find_in(&listing, name)?],
        None => listing.volumes.clone(),
    };
    if known.is_empty() {
        print_line!("no volumes in {}", running.folder().display());
    }
    let mut outcome = match volume {
        Some(_) => Ok(()),
        None => listing.check_none_hidden(),
    };
    for known in &known {
        let open = running.open_volume(known, &VolumeOptions::offline(), OpenWait::default())?;
        wait_for_nodes(Some(&known.name), || Ok(PoolReport::of(running)))?;
        running.call_store(&known.name, kind.call(args.limit))?;
        let followed = follow(kind, args.json, Some(&known.name), || Ok(PoolReport::of(running)));
        // The pool's record then knows of a replaced node that this volume is whole with it.
        // The list of volumes is of now: volumes may have been made since the first one.
        let status = running.query_nodes(STATUS_TIMEOUT);
        let report = PoolReport::from_status(running, &status, StoreFilter::Exclude);
        running.note_whole(&report.volumes, &status);
        outcome = outcome.and(followed).and(running.close(&open));
    }
    outcome
}

/// Waits until the volumes' nodes are up, at most `JOIN_TIMEOUT`. Before a node has joined, a
/// rebuild does not know which of its shards are missing, and a scrub does not see its shards.
/// Returns the last report.
fn wait_for_nodes(
    volume: Option<&str>,
    mut query: impl FnMut() -> anyhow::Result<PoolReport>,
) -> anyhow::Result<PoolReport> {
    let began = Instant::now();
    loop {
        let report = query()?;
        let mut asked =
            report.volumes.iter().filter(|found| volume.is_none_or(|v| found.name == v));
        let all_up = asked.all(|found| found.nodes.iter().all(|node| node.state == "up"));
        if all_up || began.elapsed() >= JOIN_TIMEOUT {
            return Ok(report);
        }
        std::thread::sleep(STEP);
    }
}

/// Fails if the volume is not healthy and some of its nodes are not up.
fn check_whole(volume: &VolumeReport) -> anyhow::Result<()> {
    let away: Vec<String> = volume
        .nodes
        .iter()
        .filter(|node| node.state != "up")
        .map(|node| format!("node.{} is {} ({})", node.node, node.state, node.reason))
        .collect();
    if volume.protection == "healthy" || away.is_empty() {
        return Ok(());
    }
    bail!(
        "{} is still {}: {}; start or replace the nodes, then rebuild again",
        volume.name,
        volume.protection,
        away.join(", ")
    )
}

/// Shows a bar until the work has ended on all requested volumes, then prints one line for each.
fn follow(
    kind: Maintenance,
    json: bool,
    volume: Option<&str>,
    mut query: impl FnMut() -> anyhow::Result<PoolReport>,
) -> anyhow::Result<()> {
    let bar = new_bar(kind.name());
    let mut report = PoolReport::default();
    loop {
        let before = std::mem::replace(&mut report, query()?);
        // A client that stands still, or is cut off, reports no more.
        let silent = before.volumes.iter().find(|volume| {
            let is_it = |other: &VolumeReport| other.id == volume.id;
            volume.client.is_some() && !report.volumes.iter().any(is_it)
        });
        if let Some(VolumeReport { name, client: Some(client), .. }) = silent {
            bail!("the client {client} does not report on {name} any more");
        }
        report.volumes.retain(|found| match volume {
            Some(name) => found.name == name,
            None => !found.id.is_empty(),
        });
        if report.volumes.is_empty() {
            bail!("{} is not being served any more", volume.unwrap_or("the volume"));
        }
        if let Some(failed) = report.volumes.iter().find(|found| found.phase == "failed") {
            bail!("the volume {} has failed: {}", failed.name, failed.reason);
        }
        show(&bar, report.volumes.iter().map(|volume| kind.of(volume)));
        if report.volumes.iter().all(|volume| !kind.of(volume).running) {
            break;
        }
        std::thread::sleep(STEP);
    }
    bar.finish_and_clear();
    // Work on one volume leaves no other out.
    report.not_served = report.not_served.filter(|_| volume.is_none());
    let mut failed = 0;
    let volume_named = volume.is_some();
    for volume in &report.volumes {
        let progress = kind.of(volume);
        failed = progress.shards_failed.saturating_add(failed);
        if json {
            let not_served = match volume_named {
                true => Some(&[][..]),
                false => report.not_served.as_deref(),
            };
            print_line!("{}", summary(kind, volume, not_served)?);
        } else {
            print_line!("{} {}: {}", kind.name(), volume.name, kind.text(volume));
        }
    }
    if let Some(words) = not_served_text(&report).filter(|_| !json) {
        print_line!("{words}");
    }
    // Nodes that are not up explain shards that could not be restored, so report them first.
    if kind == Maintenance::Rebuild {
        report.volumes.iter().try_for_each(check_whole)?;
    }
    match (kind, failed) {
        (_, 0) => Ok(()),
        (Maintenance::Rebuild, _) => bail!(
            "{} could not be restored: too many are missing, or there is no room",
            shards(failed)
        ),
        (Maintenance::Scrub, _) => bail!(
            "{} could not be checked: see `fieldstone status` for nodes that are away or full, \
             then scrub again",
            shards(failed)
        ),
    }
}

/// `not_served` is `None` if no node could list the pool's volumes.
fn summary(
    kind: Maintenance,
    volume: &VolumeReport,
    not_served: Option<&[String]>,
) -> anyhow::Result<String> {
    let mut object = serde_json::to_value(kind.of(volume))?;
    let fields = object.as_object_mut().context("a report is an object")?;
    fields.insert("job".to_owned(), kind.name().into());
    fields.insert("volume".to_owned(), volume.name.clone().into());
    fields.insert("shards_missing".to_owned(), volume.shards_missing.into());
    fields.insert("not_served".to_owned(), not_served.into());
    Ok(object.to_string())
}
