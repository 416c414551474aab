//! Measures whole programs on the same files.
//!
//! Both programs use one core, and their output goes to a temporary file. The time is from the
//! start of the process to its end, including the output.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use fieldstone_console::signals::Signals;
use fieldstone_crush::balance::{self, BalanceLimits, Spread};
use fieldstone_crush::binary::{self, Release};
use fieldstone_crush::osdmap::{OsdMap, PgId, PoolId};
use fieldstone_crush::{AlgorithmKind, ItemId};
use indicatif::ProgressBar;

use super::BENCH;
use super::case::{self, CLUSTERS};
use crate::row::{Better, Row};
use crate::stats::median;

/// Target: how many times faster than osdmaptool our program is.
const BALANCE_TARGET: f64 = 10.0;
/// The limits of both balancers: most shards to move, and the deviation of an OSD from its share.
const BALANCE_MOVES: &str = "100";
const BALANCE_DEVIATION: &str = "5";
/// Placement groups of the balanced pool: 2^3 for each OSD.
const BALANCE_PG_BITS: &str = "3";
/// Most rounds: a run of osdmaptool takes 15 s.
const MAX_BALANCE_ROUNDS: u32 = 3;
const SECONDS: &str = "seconds";
/// Target: how many times faster than crushtool our program is.
const MAP_TARGET: f64 = 20.0;
/// Inputs of a run, by cluster. crushtool takes about two seconds for them.
const INPUTS: [u32; 4] = [600_000, 400_000, 300_000, 150_000];
/// Most rounds: crushtool is slow.
const MAX_ROUNDS: u32 = 5;

/// The results.
#[derive(Default)]
pub struct ToolResults {
    /// Rows of whole programs.
    pub rows: Vec<Row>,
    /// The programs that could not be run, and the reasons.
    pub missing: Vec<String>,
}

fn map_name(osds: u32) -> String {
    format!("map-{osds}-osds")
}

/// The names of the cases.
pub fn names() -> impl Iterator<Item = String> {
    CLUSTERS.iter().map(|cluster| map_name(cluster.0)).chain([balance_name()])
}

fn balance_name() -> String {
    format!("balance-{}-osds", balance_cluster().0)
}

/// The largest cluster.
fn balance_cluster() -> (u32, u32, u32, u32) {
    CLUSTERS[CLUSTERS.len() - 1]
}

fn is_installed(tool: &str) -> bool {
    Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Runs the chosen cases.
///
/// # Errors
/// The run was interrupted, a program failed, or the programs print different mappings.
pub fn run(
    chosen: &dyn Fn(&str) -> bool,
    rounds: u32,
    signals: &Signals,
    bar: &ProgressBar,
) -> anyhow::Result<ToolResults> {
    let mut results = ToolResults::default();
    if !names().any(|name| chosen(&name)) {
        return Ok(results);
    }
    for tool in ["crushtool", "osdmaptool"] {
        if !is_installed(tool) {
            results.missing.push(format!("{tool}: it is not installed (Debian: ceph-base)"));
            return Ok(results);
        }
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
        results.rows.push(compare(&name, &map, inputs, rounds.min(MAX_ROUNDS))?);
        bar.inc(1);
    }
    if chosen(&balance_name()) {
        bar.set_message(balance_name());
        results.rows.push(balance(folder.path(), rounds.min(MAX_BALANCE_ROUNDS), signals)?);
        bar.inc(1);
    }
    Ok(results)
}

/// Runs `crush balance` and `osdmaptool --upmap` with the same limits, in turns. Then applies their
/// proposals and compares the spreads.
fn balance(folder: &Path, rounds: u32, signals: &Signals) -> anyhow::Result<Row> {
    let cluster = balance_cluster();
    let (crush, osdmap) = (folder.join("balance.crush"), folder.join("balance.osdmap"));
    let bytes = binary::encode(&case::tree(AlgorithmKind::Straw2, cluster), Release::V16);
    std::fs::write(&crush, bytes).with_context(|| format!("cannot write {}", crush.display()))?;
    let log = folder.join("balance.log");
    let osds = cluster.0.to_string();
    let mut create = Command::new("osdmaptool");
    create.args(["--createsimple", &osds, "--with-default-pool", "--pg-bits", BALANCE_PG_BITS]);
    time(create.arg(&osdmap), &log)?;
    time(Command::new("osdmaptool").arg(&osdmap).arg("--import-crush").arg(&crush), &log)?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let (ours_out, theirs_out) = (folder.join("balance.ours"), folder.join("balance.theirs"));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        if signals.arrived() {
            bail!("interrupted; nothing is reported of a run that is not complete");
        }
        let mut command = Command::new(&program);
        command.args(["crush", "balance", "--mark-up-in", "--threads", "1"]);
        command.args(["--max", BALANCE_MOVES, "--deviation", BALANCE_DEVIATION]);
        ours.push(time(command.arg(&osdmap).arg("--out").arg(&ours_out), &log)?);
        let mut command = Command::new("osdmaptool");
        command.arg(&osdmap).arg("--mark-up-in").arg("--upmap").arg(&theirs_out);
        command.args(["--upmap-max", BALANCE_MOVES, "--upmap-deviation", BALANCE_DEVIATION]);
        theirs.push(time(&mut command, &log)?);
    }
    let (ours_spread, theirs_spread) = (spread(&osdmap, &ours_out)?, spread(&osdmap, &theirs_out)?);
    let medians = (median(&ours), median(&theirs));
    let mut row = Row::new(BENCH, balance_name(), SECONDS, Better::Less, medians);
    row.peer = Some("osdmaptool".to_owned());
    row.seconds = ours.iter().chain(&theirs).sum();
    let mut row = row.at_least(Some(BALANCE_TARGET));
    let as_good = ours_spread.standard_deviation() <= theirs_spread.standard_deviation()
        && ours_spread.max_deviation() <= theirs_spread.max_deviation();
    row.pass = row.pass.map(|fast| fast && as_good);
    for (who, spread) in [("ours", ours_spread), ("theirs", theirs_spread)] {
        row.more.insert(format!("max_deviation_{who}"), spread.max_deviation().into());
        row.more.insert(format!("standard_deviation_{who}"), spread.standard_deviation().into());
    }
    Ok(row)
}

/// The spread of the groups of the map's pool after the commands in a file.
fn spread(osdmap: &Path, commands: &Path) -> anyhow::Result<Spread> {
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("{}", path.display()));
    let mut map = OsdMap::decode(&read(osdmap)?)?;
    map.mark_all_up_in();
    let text = String::from_utf8(read(commands)?).context("commands are text")?;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["ceph", "osd", "pg-upmap-items", pg, osds @ ..] = &words[..] else {
            bail!("{}: not a command that the benchmark knows: {line}", commands.display());
        };
        let pg: PgId = pg.parse().map_err(anyhow::Error::msg)?;
        let osds: Vec<i32> = osds.iter().map(|osd| osd.parse()).collect::<Result<_, _>>()?;
        let pairs = osds.chunks_exact(2).map(|pair| (ItemId(pair[0]), ItemId(pair[1])));
        map.pg_upmap_items.insert(pg, pairs.collect());
    }
    let pools: Vec<PoolId> = map.pools.keys().copied().collect();
    let nothing = BalanceLimits { max_moves: 0, deviation: 1 };
    let plan = balance::balance(&map, &pools, nothing, 1)?;
    let pool = plan.pools.into_iter().next().context("the map has no pool")?;
    Ok(pool.before)
}

/// Runs `crush map` and `crushtool --test`, in turns, and compares their outputs.
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

/// Runs a program with its output in a file. Returns the seconds.
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
