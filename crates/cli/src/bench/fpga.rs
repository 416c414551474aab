//! `fieldstone fpga bench`: cycles of the device's operations, counted by the device itself.
//!
//! A completion says how many cycles its descriptor took, from its start to its end: reading inputs
//! from card memory, working, and writing results back. Cycles do not depend on this machine or on
//! its load; only the last row does, the speed of the simulation.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use fieldstone_accel::{Device, Job, JobId, QueueId, execute};
use fieldstone_codes::Profile;
use fieldstone_crush::{
    AlgorithmKind, BucketId, ItemId, Map, MapBuilder, RuleId, RuleStep, TypeId, WEIGHT_ONE,
};
use fieldstone_fpga::FpgaDevice;
use fieldstone_fpga::flight::Operation;

use super::row::{self, Better, Row};
use super::table::{Table, number};
use crate::accelerator::rtl::{self, Running};
use crate::signals::Signals;

const BENCH: &str = "fpga";
const CYCLES: &str = "cycles";
/// Placements of the longer of two jobs whose difference is the time per placement.
const MANY: usize = 256;

/// Options of `fpga bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write the rows to this file as JSON, one per line; - for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A map, and what a paper says of its kernel: cycles, and where that stands.
struct PlaceCase {
    name: String,
    map: Map,
    width: usize,
    paper: Option<(f64, &'static str)>,
}

/// Runs the benchmark.
///
/// # Errors
/// There is no device, it was interrupted, or a result is wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let signals = Signals::install()?;
    let running = rtl::start(None)?;
    let mut device = FpgaDevice::open(&running.card, false)?;
    let (places, codes) = (place_cases()?, code_cases());
    let bar = super::case_bar("fpga bench", places.len() + codes.len() + 1);
    let mut rows = Vec::new();
    let step = |name: &str| {
        if signals.arrived() {
            bail!("interrupted; nothing is reported of a run that is not complete");
        }
        bar.set_message(name.to_owned());
        bar.inc(1);
        Ok(())
    };
    for case in places {
        step(&case.name)?;
        place(&mut device, case, &mut rows)?;
    }
    for (profile, object_bytes) in codes {
        step(profile)?;
        rows.push(code(&mut device, &running, profile, object_bytes)?);
    }
    step("checksum")?;
    rows.push(checksum(&mut device)?);
    for (name, operation) in
        [("load-map", Operation::LoadMap), ("reconfigure", Operation::Reconfigure)]
    {
        let last = device.cycles(operation);
        let cycles = (last.count > 0).then(|| f64::from(last.last));
        rows.push(Row::new(BENCH, name.to_owned(), CYCLES, Better::Less, (cycles, None)));
    }
    drop(device);
    let (cycles, seconds) = running.speed();
    let speed = (seconds > 0.0).then(|| cycles as f64 / seconds);
    let mut row = Row::new(BENCH, "simulation".to_owned(), "cycles/s", Better::More, (speed, None));
    row.seconds = seconds;
    rows.push(row);
    bar.finish_and_clear();
    print(args, &rows)
}

fn print(args: &Args, rows: &[Row]) -> anyhow::Result<()> {
    let mut table = Table::new(&["case", "unit", "ours", "limit", "paper"]);
    for row in rows {
        let paper = row.more.get("paper").and_then(serde_json::Value::as_f64);
        table.row(vec![
            row.case.clone(),
            row.unit.to_owned(),
            number(row.ours),
            number(row.limit),
            number(paper),
        ]);
    }
    let text = format!(
        "{}counted by the simulated device, each operation from its start to its completion, card \
         memory included; the papers' kernels stand alone\nmade by: fieldstone {} (commit {})\n",
        table.text(),
        std::env::args().skip(1).collect::<Vec<_>>().join(" "),
        row::COMMIT
    );
    if args.json.as_deref() == Some(Path::new("-")) {
        eprint!("{text}");
    } else {
        print!("{text}");
    }
    args.json.as_ref().map_or(Ok(()), |path| row::write(path, rows))
}

/// Does a job on the device, compares it with the CPU, and gives its operation's cycles.
fn cycles_of(device: &mut FpgaDevice, job: &Job, operation: Operation) -> anyhow::Result<f64> {
    /// Times that the device may give a job back: the partition may have to change first.
    const MAX_ATTEMPTS: u32 = 1_000_000;
    const QUEUE: QueueId = QueueId(0);
    if !device.takes(job) {
        bail!("the device does not take this job");
    }
    let mut completions = Vec::new();
    let mut attempts = 0;
    while device.submit(QUEUE, JobId(0), job.clone()).is_err() {
        device.poll(QUEUE, &mut completions);
        attempts += 1;
        if attempts > MAX_ATTEMPTS || device.is_lost() {
            bail!("the device gives the job back, again and again");
        }
    }
    while completions.is_empty() {
        device.poll(QUEUE, &mut completions);
    }
    let result = completions.pop().context("a completion is there")?.result;
    if result != execute(job) {
        bail!("the device gives {result:?}, which is not what the CPU says");
    }
    Ok(f64::from(device.cycles(operation).last))
}

fn place(device: &mut FpgaDevice, case: PlaceCase, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let PlaceCase { name, map, width, paper } = case;
    let weights: Arc<[u32]> = vec![WEIGHT_ONE; map.max_devices() as usize].into();
    let map = Arc::new(map);
    let mut cycles = |count: usize| {
        let xs = (0..count as u32).collect();
        let (map, weights) = (Arc::clone(&map), Arc::clone(&weights));
        let job = Job::Place { map, rule: RuleId(0), width, xs, weights };
        cycles_of(device, &job, Operation::Place).with_context(|| name.clone())
    };
    let (one, many) = (cycles(1)?, cycles(MANY)?);
    let each = (many - one) / (MANY - 1) as f64;
    for (what, ours) in [("one", one), ("each", each)] {
        let case = format!("place/{name}/{what}");
        let mut row = Row::new(BENCH, case, CYCLES, Better::Less, (Some(ours), None));
        if let (Some((cycles, reference)), "one") = (paper, what) {
            row.more.insert("paper".to_owned(), cycles.into());
            row.more.insert("paper_ref".to_owned(), reference.into());
        }
        rows.push(row);
    }
    Ok(())
}

/// Beats per cycle of the busier direction of the codes engine's memory port, of at most 1.
fn code(
    device: &mut FpgaDevice,
    running: &Running,
    profile: &str,
    object_bytes: usize,
) -> anyhow::Result<Row> {
    let parsed: Profile = profile.parse().map_err(|error| anyhow::anyhow!("{profile}: {error}"))?;
    let code = parsed.code();
    let grain = 64 * code.elements() as usize;
    let shard_bytes = (object_bytes / code.k()).next_multiple_of(grain);
    let byte = |index: usize| (index.wrapping_mul(2_654_435_761) >> 16) as u8;
    let shard = |shard: usize| (0..shard_bytes).map(|at| byte(at + shard * 77)).collect::<Bytes>();
    let job =
        Job::Code { map: Arc::clone(code.encode()), inputs: (0..code.k()).map(shard).collect() };
    let before = running.card.totals();
    let cycles = cycles_of(device, &job, Operation::Code).with_context(|| profile.to_owned())?;
    let after = running.card.totals();
    let beats = (after.card_reads - before.card_reads).max(after.card_writes - before.card_writes);
    let case = format!("code/{profile}/{}", crate::units::size(object_bytes as u64));
    let ours = Some(beats as f64 / cycles);
    let mut row = Row::new(BENCH, case, "beats/cycle", Better::More, (ours, None));
    row.more.insert("cycles".to_owned(), cycles.into());
    row.more.insert("beats_read".to_owned(), (after.card_reads - before.card_reads).into());
    row.more.insert("beats_written".to_owned(), (after.card_writes - before.card_writes).into());
    Ok(row.limit(Some(1.0)))
}

fn checksum(device: &mut FpgaDevice) -> anyhow::Result<Row> {
    const BYTES: usize = 1 << 20;
    let data = (0..BYTES).map(|at| (at % 251) as u8).collect();
    let job = Job::Checksum { data, block_bytes: 4096 };
    let cycles = cycles_of(device, &job, Operation::Checksum)?;
    let ours = Some(BYTES as f64 / cycles);
    let case = "checksum/1M".to_owned();
    Ok(Row::new(BENCH, case, "bytes/cycle", Better::More, (ours, None)).limit(Some(64.0)))
}

fn code_cases() -> Vec<(&'static str, usize)> {
    let profiles = ["rs:4+2", "rs:8+4", "zigzag:4+2", "clay:4+2"];
    profiles.into_iter().flat_map(|profile| [(profile, 64 << 10), (profile, 1 << 20)]).collect()
}

fn place_cases() -> anyhow::Result<Vec<PlaceCase>> {
    use AlgorithmKind::{List, Straw, Straw2, Tree, Uniform};
    const TABLE: &str = "000, Table 2: the kernel alone, 64 items";
    let mut cases = Vec::new();
    let papers = [(Straw2, 155.0), (Straw, 105.0), (List, 40.0), (Tree, 130.0), (Uniform, 45.0)];
    for (kind, paper) in papers {
        let name = format!("{}-64", kind.word());
        let (map, paper) = (flat(kind, 64)?, Some((paper, TABLE)));
        cases.push(PlaceCase { name, map, width: 1, paper });
    }
    for (devices, hosts) in [(256, 16), (10_240, 640)] {
        let name = format!("chooseleaf3-{devices}");
        cases.push(PlaceCase { name, map: cluster(devices, hosts)?, width: 3, paper: None });
    }
    Ok(cases)
}

/// One bucket of devices.
fn flat(kind: AlgorithmKind, devices: i32) -> anyhow::Result<Map> {
    let mut builder = MapBuilder::new();
    let root = BucketId(-1);
    let items = (0..devices).map(|id| (ItemId(id), WEIGHT_ONE));
    builder.bucket(root, TypeId(1), kind, items);
    let choose = RuleStep::ChooseFirstn { count: 0, kind: TypeId::DEVICE };
    builder.rule(RuleId(0), [RuleStep::Take(root.into()), choose, RuleStep::Emit]);
    Ok(builder.build()?)
}

/// Hosts of equal size below racks of 16 hosts below one root, all straw2.
fn cluster(devices: i32, hosts: i32) -> anyhow::Result<Map> {
    const HOSTS_PER_RACK: i32 = 16;
    let (host_kind, rack_kind, root_kind) = (TypeId(1), TypeId(2), TypeId(3));
    let mut builder = MapBuilder::new();
    let per_host = devices / hosts;
    let host_id = |host: i32| BucketId(-2 - host);
    let rack_id = |rack: i32| BucketId(-2 - hosts - rack);
    let weight = |devices: i32| WEIGHT_ONE * devices.unsigned_abs();
    for host in 0..hosts {
        let first = host * per_host;
        let items = (first..first + per_host).map(|id| (ItemId(id), WEIGHT_ONE));
        builder.straw2(host_id(host), host_kind, items);
    }
    let racks = hosts / HOSTS_PER_RACK;
    for rack in 0..racks {
        let first = rack * HOSTS_PER_RACK;
        let items = first..first + HOSTS_PER_RACK;
        let items = items.map(|host| (host_id(host).into(), weight(per_host)));
        builder.straw2(rack_id(rack), rack_kind, items);
    }
    let items = (0..racks).map(|rack| (rack_id(rack).into(), weight(per_host * HOSTS_PER_RACK)));
    let root = BucketId(-1);
    builder.straw2(root, root_kind, items);
    let choose = RuleStep::ChooseleafFirstn { count: 0, kind: host_kind };
    builder.rule(RuleId(0), [RuleStep::Take(root.into()), choose, RuleStep::Emit]);
    Ok(builder.build()?)
}
