//! `fieldstone fpga bench`: cycles of the device's operations, counted by the device itself.
//!
//! A completion says how many cycles its descriptor took, from its start to its end: reading inputs
//! from card memory, working, and writing results back. A register says how many the last draw took,
//! from its request to its answer: that is a kernel with its memory. Cycles do not depend on this machine or on
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

/// Where the papers' cycles of kernels stand.
const KERNELS: &str = "DeLiBA-K, Table I, RTL cycles";

/// What a paper says of a kernel, and what this project set out to reach.
struct Published {
    cycles: f64,
    reference: &'static str,
    reach: f64,
}

/// A map, and what a paper says of its kernel.
struct PlaceCase {
    name: String,
    map: Map,
    width: usize,
    kernel: Option<Published>,
}

/// Objects to encode in one operation.
struct CodeCase {
    profile: &'static str,
    object_bytes: usize,
    /// How many.
    batch: usize,
    /// What this project set out to reach, in beats per cycle.
    reach: Option<f64>,
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
    let bar = super::case_bar("fpga bench", places.len() + codes.len() + 2);
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
        place(&mut device, &running, case, &mut rows)?;
    }
    step("rs_encoder")?;
    encoder(&mut rows)?;
    // The first coding job after a reset also waits until the lanes are wiped.
    if let Some(first) = codes.first() {
        code(&mut device, &running, first)?;
    }
    for case in &codes {
        step(case.profile)?;
        rows.push(code(&mut device, &running, case)?);
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
    let mut table = Table::new(&["case", "unit", "ours", "limit", "reach", "paper"]);
    for row in rows {
        let more = |name| row.more.get(name).and_then(serde_json::Value::as_f64);
        table.row(vec![
            row.case.clone(),
            row.unit.to_owned(),
            number(row.ours),
            number(row.limit),
            number(more("reach")),
            number(more("paper")),
        ]);
    }
    let text = format!(
        "{}counted by the simulated device. kernel: one draw of 64 items from its request to its \
         answer, or the encoder alone. place, code, checksum: a whole operation from its start to \
         its completion, card memory included (each: one more of many)\nmade by: fieldstone {} (commit {})\n",
        table.text(),
        std::env::args().skip(1).collect::<Vec<_>>().join(" "),
        row::COMMIT
    );
    if args.json.as_deref() == Some(Path::new("-")) {
        eprint!("{text}");
    } else {
        put!("{text}");
    }
    args.json.as_ref().map_or(Ok(()), |path| row::write(path, rows))
}

/// Does jobs on the device in one operation, compares them with the CPU, and gives the operation's
/// cycles.
fn cycles_of(device: &mut FpgaDevice, jobs: &[Job], operation: Operation) -> anyhow::Result<f64> {
    /// Times that the device may give a job back: the partition may have to change first.
    const MAX_ATTEMPTS: u32 = 1_000_000;
    const QUEUE: QueueId = QueueId(0);
    let mut completions = Vec::new();
    let mut attempts = 0;
    let before = device.cycles(operation).count;
    for (id, job) in (0..).map(JobId).zip(jobs) {
        if !device.takes(job) {
            bail!("the device does not take this job");
        }
        while device.submit(QUEUE, id, job.clone()).is_err() {
            device.poll(QUEUE, &mut completions);
            attempts += 1;
            if attempts > MAX_ATTEMPTS || device.is_lost() {
                bail!("the device gives the job back, again and again");
            }
        }
    }
    while completions.len() < jobs.len() {
        device.poll(QUEUE, &mut completions);
    }
    for completion in completions {
        let job = jobs.get(completion.job.0 as usize).context("a completion of nothing")?;
        if completion.result != execute(job) {
            bail!("the device gives {:?}, which is not what the CPU says", completion.result);
        }
    }
    let cycles = device.cycles(operation);
    if cycles.count != before + 1 {
        bail!("the device took {} operations, not one", cycles.count - before);
    }
    Ok(f64::from(cycles.last))
}

fn place(
    device: &mut FpgaDevice,
    running: &Running,
    case: PlaceCase,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let PlaceCase { name, map, width, kernel } = case;
    let weights: Arc<[u32]> = vec![WEIGHT_ONE; map.max_devices() as usize].into();
    let map = Arc::new(map);
    let mut cycles = |count: usize| {
        let xs = (0..count as u32).collect();
        let (map, weights) = (Arc::clone(&map), Arc::clone(&weights));
        let job = Job::Place { map, rule: RuleId(0), width, xs, weights };
        cycles_of(device, &[job], Operation::Place).with_context(|| name.clone())
    };
    let one = cycles(1)?;
    let last_draw = running.card.totals().last_draw_cycles;
    let each = (cycles(MANY)? - one) / (MANY - 1) as f64;
    if let Some(Published { cycles, reference, reach }) = kernel {
        let ours = Some(last_draw as f64);
        let mut row = Row::new(BENCH, format!("kernel/{name}"), CYCLES, Better::Less, (ours, None));
        row.more.insert("paper".to_owned(), cycles.into());
        row.more.insert("paper_ref".to_owned(), reference.into());
        row.more.insert("reach".to_owned(), reach.into());
        rows.push(row);
    }
    for (what, ours) in [("one", one), ("each", each)] {
        let case = format!("place/{name}/{what}");
        rows.push(Row::new(BENCH, case, CYCLES, Better::Less, (Some(ours), None)));
    }
    Ok(())
}

/// The encoder with constant coefficients, which stands beside the device.
fn encoder(rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let (first_parity_cycles, beats_per_cycle) = rtl::encoder()?;
    let ours = Some(first_parity_cycles as f64);
    let case = "kernel/rs:8+4/first-parity".to_owned();
    let mut row = Row::new(BENCH, case, CYCLES, Better::Less, (ours, None));
    row.more.insert("paper".to_owned(), 150.0.into());
    row.more.insert("paper_ref".to_owned(), KERNELS.into());
    row.more.insert("reach".to_owned(), 20.0.into());
    rows.push(row);
    let case = "kernel/rs:8+4/beats".to_owned();
    let ours = Some(beats_per_cycle);
    let row = Row::new(BENCH, case, "beats/cycle", Better::More, (ours, None));
    rows.push(row.limit(Some(1.0)));
    Ok(())
}

/// Beats per cycle of the busier direction of the codes engine's memory port, of at most 1.
fn code(device: &mut FpgaDevice, running: &Running, case: &CodeCase) -> anyhow::Result<Row> {
    let CodeCase { profile, object_bytes, batch, reach } = *case;
    let parsed: Profile = profile.parse().map_err(|error| anyhow::anyhow!("{profile}: {error}"))?;
    let code = parsed.code();
    let grain = 64 * code.elements() as usize;
    let shard_bytes = (object_bytes / code.k()).next_multiple_of(grain);
    let byte = |index: usize| (index.wrapping_mul(2_654_435_761) >> 16) as u8;
    let shard = |seed: usize| (0..shard_bytes).map(|at| byte(at + seed * 77)).collect::<Bytes>();
    let job = |stripe: usize| {
        let inputs = (0..code.k()).map(|index| shard(stripe * code.k() + index)).collect();
        Job::Code { map: Arc::clone(code.encode()), inputs }
    };
    let jobs: Vec<Job> = (0..batch).map(job).collect();
    let before = running.card.totals();
    let cycles = cycles_of(device, &jobs, Operation::Code).with_context(|| profile.to_owned())?;
    let after = running.card.totals();
    let beats = (after.card_reads - before.card_reads).max(after.card_writes - before.card_writes);
    let times = if batch > 1 { format!("{batch}x") } else { String::new() };
    let case = format!("code/{profile}/{times}{}", crate::units::size(object_bytes as u64));
    let ours = Some(beats as f64 / cycles);
    let mut row = Row::new(BENCH, case, "beats/cycle", Better::More, (ours, None));
    row.more.insert("cycles".to_owned(), cycles.into());
    row.more.insert("beats_read".to_owned(), (after.card_reads - before.card_reads).into());
    row.more.insert("beats_written".to_owned(), (after.card_writes - before.card_writes).into());
    if let Some(reach) = reach {
        row.more.insert("reach".to_owned(), reach.into());
    }
    Ok(row.limit(Some(1.0)))
}

fn checksum(device: &mut FpgaDevice) -> anyhow::Result<Row> {
    const BYTES: usize = 1 << 20;
    let data = (0..BYTES).map(|at| (at % 251) as u8).collect();
    let job = Job::Checksum { data, block_bytes: 4096 };
    let cycles = cycles_of(device, &[job], Operation::Checksum)?;
    let ours = Some(BYTES as f64 / cycles);
    let case = "checksum/1M".to_owned();
    Ok(Row::new(BENCH, case, "bytes/cycle", Better::More, (ours, None)).limit(Some(64.0)))
}

/// Small objects alone and in one batch, and a large one.
fn code_cases() -> Vec<CodeCase> {
    let profiles = [("rs:4+2", true), ("rs:8+4", true), ("zigzag:4+2", true), ("clay:4+2", false)];
    let cases = profiles.into_iter().flat_map(|(profile, aims)| {
        let sizes = [(64 << 10, 1, None), (64 << 10, 16, Some(0.80)), (1 << 20, 1, Some(0.95))];
        sizes.map(|(object_bytes, batch, reach)| {
            let reach = reach.filter(|_| aims);
            CodeCase { profile, object_bytes, batch, reach }
        })
    });
    cases.collect()
}

fn place_cases() -> anyhow::Result<Vec<PlaceCase>> {
    use AlgorithmKind::{List, Straw, Straw2, Tree, Uniform};
    let mut cases = Vec::new();
    let kernels = [
        (Straw2, 155.0, 47.0),
        (Straw, 105.0, 38.0),
        (List, 40.0, 32.0),
        (Tree, 130.0, 40.0),
        (Uniform, 40.0, 31.0), // the paper: 40 to 50
    ];
    for (kind, cycles, reach) in kernels {
        let name = format!("{}-64", kind.word());
        let kernel = Some(Published { cycles, reference: KERNELS, reach });
        cases.push(PlaceCase { name, map: flat(kind, 64)?, width: 1, kernel });
    }
    for (racks, hosts, devices) in [(4, 8, 8), (16, 32, 20)] {
        let name = format!("chooseleaf3-{}", racks * hosts * devices);
        let map = cluster(racks, hosts, devices)?;
        cases.push(PlaceCase { name, map, width: 3, kernel: None });
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

/// Racks of `hosts_per_rack` hosts of `per_host` devices below one root, all straw2.
fn cluster(racks: i32, hosts_per_rack: i32, per_host: i32) -> anyhow::Result<Map> {
    let hosts = racks * hosts_per_rack;
    let (host_kind, rack_kind, root_kind) = (TypeId(1), TypeId(2), TypeId(3));
    let mut builder = MapBuilder::new();
    let host_id = |host: i32| BucketId(-2 - host);
    let rack_id = |rack: i32| BucketId(-2 - hosts - rack);
    let weight = |devices: i32| WEIGHT_ONE * devices.unsigned_abs();
    for host in 0..hosts {
        let first = host * per_host;
        let items = (first..first + per_host).map(|id| (ItemId(id), WEIGHT_ONE));
        builder.straw2(host_id(host), host_kind, items);
    }
    for rack in 0..racks {
        let first = rack * hosts_per_rack;
        let items = first..first + hosts_per_rack;
        let items = items.map(|host| (host_id(host).into(), weight(per_host)));
        builder.straw2(rack_id(rack), rack_kind, items);
    }
    let items = (0..racks).map(|rack| (rack_id(rack).into(), weight(per_host * hosts_per_rack)));
    let root = BucketId(-1);
    builder.straw2(root, root_kind, items);
    let choose = RuleStep::ChooseleafFirstn { count: 0, kind: host_kind };
    builder.rule(RuleId(0), [RuleStep::Take(root.into()), choose, RuleStep::Emit]);
    Ok(builder.build()?)
}
