//! Rebuild and scrub from the command line: start the job, show a bar until it ends, sum it up.
//!
//! With a server, the job runs there and goes on if this command is interrupted. Without one, the
//! volumes are opened here, one after the other.
//!
//! Jobs on encoded files run here in any case; [`with_bytes_bar`] shows theirs.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_files::Progress;
use fieldstone_uring::host::Job;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::control::{Request, find_server};
use crate::engine::{Engine, EngineOptions, MissingNode, VolumeOptions};
use crate::pool::Pool;
use crate::report::{PoolReport, ProgressReport, VolumeReport, progress_text};
use crate::target::target;
use crate::units;

/// How often progress is looked at.
const STEP: Duration = Duration::from_millis(200);
/// How long a rebuild waits for nodes that are down or joining.
const JOIN_PATIENCE: Duration = Duration::from_secs(5);

/// Which job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Restore missing shards.
    Rebuild,
    /// Check every shard.
    Scrub,
}

impl JobKind {
    fn name(self) -> &'static str {
        match self {
            Self::Rebuild => "rebuild",
            Self::Scrub => "scrub",
        }
    }

    /// This job's part of a volume's report.
    pub fn of(self, volume: &VolumeReport) -> &ProgressReport {
        match self {
            Self::Rebuild => &volume.rebuild,
            Self::Scrub => &volume.scrub,
        }
    }

    fn job(self, limit: u64) -> Job {
        match self {
            Self::Rebuild => Job::Rebuild { limit_bytes_per_second: limit },
            Self::Scrub => Job::Scrub { limit_bytes_per_second: limit },
        }
    }
}

/// What to do.
pub struct JobOptions<'a> {
    /// Pool or volume.
    pub target: &'a Path,
    /// Which job.
    pub kind: JobKind,
    /// Largest rate of reads; 0 for no limit.
    pub limit: u64,
    /// Do not wait.
    pub detach: bool,
    /// Sum up in JSON.
    pub json: bool,
    /// The call that starts it on a server.
    pub request: fn(Option<String>, u64) -> Request,
}

/// Runs the job.
///
/// # Errors
/// When it cannot be started, or could not restore everything.
pub fn run_job(options: &JobOptions<'_>) -> anyhow::Result<()> {
    let target = target(options.target)?;
    let volume = target.volume.clone();
    if let Some(mut server) = find_server(&target.pool, volume.as_deref())? {
        if options.kind == JobKind::Rebuild {
            wait_for_nodes(volume.as_deref(), || server.status())?;
        }
        server.ask(&(options.request)(volume.clone(), options.limit))?;
        if options.detach {
            println!("the {} runs; watch it with `fieldstone status`", options.kind.name());
            return Ok(());
        }
        return follow(options, volume.as_deref(), || server.status());
    }
    if options.detach {
        bail!("--detach needs a running server, and {} has none", target.pool.display());
    }
    let pool = Pool::open(&target.pool)?;
    let engine = Engine::with_pool(pool, &EngineOptions::offline(MissingNode::Replace))?;
    let worked = offline(options, volume.as_deref(), &engine);
    let finished = engine.finish();
    worked.and(finished)
}

fn offline(options: &JobOptions<'_>, volume: Option<&str>, engine: &Engine) -> anyhow::Result<()> {
    let known = match volume {
        Some(name) => vec![engine.find_volume(name)?],
        None => engine.list_volumes()?.volumes,
    };
    if known.is_empty() {
        println!("no volumes in {}", engine.folder().display());
    }
    let mut outcome = Ok(());
    for known in &known {
        let open = engine.open_volume(known, &VolumeOptions::offline(), None)?;
        if options.kind == JobKind::Rebuild {
            wait_for_nodes(Some(&known.name), || PoolReport::of(engine))?;
        }
        engine.start_job(&known.name, options.kind.job(options.limit))?;
        let followed = follow(options, Some(&known.name), || PoolReport::of(engine));
        outcome = outcome.and(followed).and(engine.close(&open));
    }
    outcome
}

/// Gives nodes that were started just now the time to join: what they lack is not known before.
fn wait_for_nodes(
    volume: Option<&str>,
    mut look: impl FnMut() -> anyhow::Result<PoolReport>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    while began.elapsed() < JOIN_PATIENCE {
        let report = look()?;
        let mut asked =
            report.volumes.iter().filter(|found| volume.is_none_or(|v| found.name == v));
        if asked.all(|found| found.nodes.iter().all(|node| node.state == "up")) {
            break;
        }
        std::thread::sleep(STEP);
    }
    Ok(())
}

/// What a rebuild leaves undone because nodes are not there.
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

/// Shows a bar until the job has ended on every volume asked for.
fn follow(
    options: &JobOptions<'_>,
    volume: Option<&str>,
    mut look: impl FnMut() -> anyhow::Result<PoolReport>,
) -> anyhow::Result<()> {
    let kind = options.kind;
    let bar = new_bar(kind.name());
    let mut report;
    loop {
        report = look()?;
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
    let mut failed = 0;
    for volume in &report.volumes {
        let progress = kind.of(volume);
        failed += progress.shards_failed;
        if options.json {
            println!("{}", summary(kind, volume)?);
        } else {
            println!("{} {}: {}", kind.name(), volume.name, progress_text(progress));
        }
    }
    // Nodes that are away explain shards that could not be restored.
    if kind == JobKind::Rebuild {
        report.volumes.iter().try_for_each(check_whole)?;
    }
    if failed > 0 {
        bail!("{failed} shards could not be restored: too many are missing, or there is no room");
    }
    Ok(())
}

fn summary(kind: JobKind, volume: &VolumeReport) -> anyhow::Result<String> {
    let mut object = serde_json::to_value(kind.of(volume))?;
    let fields = object.as_object_mut().context("a report is an object")?;
    fields.insert("job".to_owned(), kind.name().into());
    fields.insert("volume".to_owned(), volume.name.clone().into());
    fields.insert("shards_missing".to_owned(), volume.shards_missing.into());
    Ok(object.to_string())
}

/// A bar on stderr; nothing when that is not a terminal.
pub fn new_bar(name: &str) -> ProgressBar {
    styled_bar(name, "{prefix} [{bar:32}] {pos}/{len} shards  {msg}  ETA {eta}")
}

/// A bar on stderr that counts `things`; nothing when that is not a terminal.
pub fn counting_bar(name: &str, things: &str, total: u64) -> ProgressBar {
    let bar = styled_bar(name, "{prefix} [{bar:32}] {human_pos}/{human_len} {msg}  ETA {eta}");
    bar.set_length(total);
    bar.set_message(things.to_owned());
    bar
}

fn styled_bar(name: &str, template: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(name.to_owned());
    bar
}

/// Does `work`, and shows on stderr how far it is, if that is a terminal. The length may be
/// unknown, as that of a stream is.
pub fn with_bytes_bar<R>(
    name: &str,
    total_bytes: Option<u64>,
    work: impl FnOnce(&Progress) -> R,
) -> R {
    let progress = Progress::default();
    if !std::io::stderr().is_terminal() {
        return work(&progress);
    }
    let template = match total_bytes {
        Some(_) => {
            "{prefix} [{bar:32}] {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  \
             ETA {eta}"
        }
        None => "{prefix} {binary_bytes}  {binary_bytes_per_sec}",
    };
    let bar = styled_bar(name, template);
    bar.set_length(total_bytes.unwrap_or(0));
    let (ended, wait) = mpsc::channel::<()>();
    let (bar_ref, progress_ref) = (&bar, &progress);
    let result = std::thread::scope(|scope| {
        scope.spawn(move || {
            // The channel is closed when the work ends, and by a panic as well.
            while wait.recv_timeout(STEP) == Err(RecvTimeoutError::Timeout) {
                bar_ref.set_position(progress_ref.done_bytes());
            }
        });
        let ended = ended;
        let result = work(&progress);
        drop(ended);
        result
    });
    bar.finish_and_clear();
    result
}

/// Brings a bar up to date with the sum of jobs.
pub fn show<'a>(bar: &ProgressBar, jobs: impl Iterator<Item = &'a ProgressReport>) {
    let (mut total, mut done, mut read, mut elapsed) = (0, 0, 0, 0);
    for job in jobs {
        total += job.shards_total;
        done += job.shards_done + job.shards_failed;
        read += job.read_bytes;
        elapsed = elapsed.max(job.elapsed_ns);
    }
    bar.set_length(total);
    bar.set_position(done);
    let rate = units::rate(read, Duration::from_nanos(elapsed));
    bar.set_message(format!("read {} at {rate}", units::size(read)));
}
