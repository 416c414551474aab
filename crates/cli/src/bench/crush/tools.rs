//! Whole programs on the same files: what a user waits for.
//!
//! Both programs write to a file that is thrown away, and use one core. The time is from the start
//! of the process to its end, output included.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use fieldstone_crush::AlgorithmKind;
use fieldstone_crush::binary::{self, Release};
use indicatif::ProgressBar;

use super::BENCH;
use super::case::{self, CLUSTERS};
use crate::bench::row::{Better, Row};
use crate::bench::stats::median;
use crate::signals::Signals;

const SECONDS: &str = "seconds";
/// How much faster than crushtool we are to be.
const MAP_TARGET: f64 = 20.0;
/// Inputs of a run, by cluster: crushtool takes about half a second.
const INPUTS: [u32; 4] = [200_000, 150_000, 100_000, 40_000];
/// Most rounds: crushtool is slow.
const MAX_ROUNDS: u32 = 5;

/// What was found.
#[derive(Default)]
pub struct Found {
    /// Rows of whole programs.
    pub rows: Vec<Row>,
    /// What could not be measured, and why.
    pub missing: Vec<String>,
}

fn map_name(osds: u32) -> String {
    format!("map-{osds}-osds")
}

/// The names of the cases.
pub fn names() -> impl Iterator<Item = String> {
    CLUSTERS.iter().map(|cluster| map_name(cluster.0))
}

/// Runs the chosen cases.
///
/// # Errors
/// It was interrupted, or the programs print different mappings.
pub fn run(
    chosen: &dyn Fn(&str) -> bool,
    rounds: u32,
    signals: &Signals,
    bar: &ProgressBar,
) -> anyhow::Result<Found> {
    let mut found = Found::default();
    if !names().any(|name| chosen(&name)) {
        return Ok(found);
    }
    if Command::new("crushtool").arg("--version").stdout(Stdio::null()).status().is_err() {
        found.missing.push("crushtool: it is not installed (Debian: ceph-base)".to_owned());
        return Ok(found);
    }
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    for (cluster, inputs) in CLUSTERS.into_iter().zip(INPUTS) {
        let name = map_name(cluster.0);
        if !chosen(&name) {
            continue;
        }
        if signals.arrived() {
            bail!("interrupted; nothing is reported of a run that is not complete");
        }
        bar.set_message(name.clone());
        let map = folder.path().join(format!("{}.crush", cluster.0));
        let bytes = binary::encode(&case::tree(AlgorithmKind::Straw2, cluster), Release::V16);
        std::fs::write(&map, bytes).with_context(|| format!("cannot write {}", map.display()))?;
        found.rows.push(compare(&name, &map, inputs, rounds.min(MAX_ROUNDS))?);
        bar.inc(1);
    }
    Ok(found)
}

/// `crush map` and `crushtool --test`, in turns.
fn compare(name: &str, map: &Path, inputs: u32, rounds: u32) -> anyhow::Result<Row> {
    let ours_out = map.with_extension("ours");
    let theirs_out = map.with_extension("theirs");
    let last = (inputs - 1).to_string();
    let options = ["--rule", "0", "--num-rep", "3", "--min-x", "0", "--max-x", &last];
    let options: Vec<&str> = options.into_iter().chain(["--show-mappings"]).collect();
    let program = std::env::current_exe().context("cannot find this program")?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut command = Command::new(&program);
        command.args(["crush", "map", "--threads", "1", "-i"]).arg(map).args(&options);
        ours.push(time(&mut command, &ours_out)?);
        let mut command = Command::new("crushtool");
        command.arg("-i").arg(map).arg("--test").args(&options);
        theirs.push(time(&mut command, &theirs_out)?);
    }
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("{}", path.display()));
    ensure!(read(&ours_out)? == read(&theirs_out)?, "{name}: the outputs differ");
    let medians = (median(&ours), median(&theirs));
    let mut row = Row::new(BENCH, name.to_owned(), SECONDS, Better::Less, medians);
    row.peer = Some("crushtool".to_owned());
    row.seconds = ours.iter().chain(&theirs).sum();
    Ok(row.at_least(Some(MAP_TARGET)))
}

/// Runs a program with its output in a file.
fn time(command: &mut Command, out: &Path) -> anyhow::Result<f64> {
    let file = File::create(out).with_context(|| format!("cannot write {}", out.display()))?;
    let error = file.try_clone()?;
    let begin = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(file).stderr(error).status();
    let seconds = begin.elapsed().as_secs_f64();
    let status = status.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(seconds)
}
