//! `fieldstone top`: watches a running server.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use fieldstone_server::control::{find_server, servers};
use fieldstone_server::paths::pool_or_volume;
use fieldstone_server::report::{PoolReport, VolumeReport};

use crate::report::{rebuild_text, scrub_text, stage_table};
use fieldstone_units::{rate, shell_word, size};

/// Options of `top`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A pool, or one volume of it.
    #[arg(value_name = "DIR[/VOLUME]")]
    target: PathBuf,
    /// Seconds between two reports, from 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// End after this many reports; 0 for never.
    #[arg(long, value_name = "N", default_value_t = 0)]
    count: u64,
    /// Print one JSON object per report: the full status.
    #[arg(long)]
    json: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("the interval is from 0.1 to 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The error if no server of the pool serves the target.
fn not_served(pool: &Path, volume: Option<&str>) -> anyhow::Error {
    let dir = pool.display();
    let mut servers = servers(pool);
    let (Some(name), false) = (volume, servers.is_empty()) else {
        let word = shell_word(dir);
        return anyhow!(
            "no server of {} is running; `fieldstone status {word}` looks without one",
            pool.display()
        );
    };
    let reports: Vec<PoolReport> =
        servers.iter_mut().filter_map(|server| server.status().ok()).collect();
    let served = reports.iter().flat_map(|report| &report.volumes).map(|other| &*other.name);
    let served = served.collect::<Vec<_>>().join(", ");
    anyhow!("no server of {dir} serves a volume {name:?}; served are: {served}")
}

/// Runs `top`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let target = pool_or_volume(&args.target)?;
    let mut server = find_server(&target.pool, target.volume.as_deref())?
        .ok_or_else(|| not_served(&target.pool, target.volume.as_deref()))?;
    let clear = std::io::stdout().is_terminal() && !args.json;
    let mut before: Option<(Instant, PoolReport)> = None;
    let mut reports = 0;
    loop {
        let mut report = server.status()?;
        if let Some(name) = &target.volume {
            report.volumes.retain(|volume| volume.name == *name);
        }
        let now = Instant::now();
        let mut out = std::io::stdout().lock();
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&report)?)?;
        } else {
            if clear {
                // Move the cursor home and clear to the end of the screen.
                write!(out, "\x1b[H\x1b[J")?;
            }
            let since = before.as_ref().map(|(then, old)| (now.duration_since(*then), old));
            writeln!(out, "{}", page(&report, since))?;
        }
        out.flush()?;
        drop(out);
        before = Some((now, report));
        reports += 1;
        if reports == args.count {
            return Ok(());
        }
        std::thread::sleep(args.interval);
    }
}

fn page(report: &PoolReport, before: Option<(Duration, &PoolReport)>) -> String {
    let mut text = String::new();
    if let Some(server) = &report.server {
        let cpu = before.and_then(|(span, old)| Some((span, old.server.as_ref()?.cpu_ns))).map(
            |(span, old)| 100.0 * server.cpu_ns.saturating_sub(old) as f64 / span.as_nanos() as f64,
        );
        let cpu = cpu.map_or("-".to_owned(), |percent| format!("{percent:.1} % of a core"));
        let _ = writeln!(
            text,
            "pool {}  process {}  {} connections  CPU {cpu}",
            report.dir, server.pid, server.connections
        );
    }
    let down: Vec<String> = report
        .nodes
        .iter()
        .filter(|node| node.state != "up")
        .map(|node| format!("node.{} {}", node.node, node.state))
        .collect();
    let down = if down.is_empty() { "all up".to_owned() } else { down.join(", ") };
    let _ = writeln!(text, "nodes {}: {down}", report.nodes.len());
    for volume in &report.volumes {
        let old = before.and_then(|(span, old)| {
            Some((span, old.volumes.iter().find(|other| other.name == volume.name)?))
        });
        text.push('\n');
        text.push_str(&volume_page(volume, old));
    }
    text
}

fn volume_page(volume: &VolumeReport, before: Option<(Duration, &VolumeReport)>) -> String {
    let mut text = format!(
        "volume {}  {}  {}  {}  {} live of {}\n",
        volume.name,
        volume.code,
        volume.phase,
        volume.protection,
        size(volume.live_bytes),
        size(volume.size_bytes)
    );
    let Some(io) = &volume.io else { return text };
    for op in io.requests.iter().filter(|op| op.count > 0) {
        let old = before.and_then(|(span, old)| {
            let old = old.io.as_ref()?.requests.iter().find(|other| other.op == op.op)?;
            Some((span, old))
        });
        let Some((span, old)) = old else { continue };
        let _ = writeln!(
            text,
            "  {:<13} {:>10.0}/s {:>14}",
            op.op,
            op.count.saturating_sub(old.count) as f64 / span.as_secs_f64(),
            rate(op.bytes.saturating_sub(old.bytes), span)
        );
    }
    if volume.rebuild.running {
        let _ = writeln!(text, "  {:<13} {}", "rebuild", rebuild_text(&volume.rebuild));
    }
    if volume.scrub.running {
        let _ = writeln!(text, "  {:<13} {}", "scrub", scrub_text(volume));
    }
    text.push_str(&stage_table(io, "  "));
    text
}
