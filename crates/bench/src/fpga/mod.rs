//! `fieldstone fpga bench`: the cycles of the device's operations, counted by the device.
//!
//! A completion has the cycles of its descriptor from start to end: reading inputs from card
//! memory, working, and writing results back. A register has the cycles of the last draw, from its
//! request to its answer: a kernel with its memory. The encoder with constant coefficients is not
//! in the device, so it is simulated alone. Cycles do not depend on this machine or its load. Only
//! the last row does: the speed of the simulation.
//!
//! Where the name of a row is not enough, a note states what the row measures. A paper's number is
//! compared only with a row that does the same work by the paper's definition: [`published`].

mod published;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use fieldstone_accel::{Device, Job, JobId, SubmissionQueueId, execute};
use fieldstone_codes::Profile;
use fieldstone_console::signals::Signals;
use fieldstone_crush::{
    AlgorithmKind, BucketId, ItemId, Map, MapBuilder, RuleId, RuleStep, TypeId, WEIGHT_ONE,
};
use fieldstone_fpga::FpgaDevice;
use fieldstone_fpga::flight::DeviceOperation;
use fieldstone_fpga::simulated::{self, Running};

use self::published::{Note, Published};
use super::report;
use super::row::{Better, Row};
use super::table::{Table, number};

const BENCH: &str = "fpga";
const CYCLES: &str = "cycles";
/// Placements of the longer of two jobs. The difference between the jobs gives the time per
/// placement.
const MANY: usize = 256;
/// Sizes of objects whose first parity is timed: 64 bytes in each of 8 shards, and a client's
/// block.
const FIRST_PARITY_BYTES: [usize; 2] = [512, 4096];

/// Options of `fpga bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write the rows to this file as JSON, one per line; - for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A paper's numbers for a placement by one algorithm, and this project's target for the
/// algorithm's kernel alone, in cycles.
struct Kernel {
    paper: Published,
    reach: f64,
}

/// A map. `kernel` is there if the map has only one bucket.
struct PlaceCase {
    name: String,
    map: Map,
    width: usize,
    kernel: Option<Kernel>,
}

/// Cycles of placements with one map.
struct Placed {
    /// The last draw alone.
    draw: f64,
    /// An operation with one input.
    one: f64,
    /// One more input of an operation with many inputs.
    each: f64,
}

/// Objects that one operation encodes.
struct CodeCase {
    profile: &'static str,
    object_bytes: usize,
    /// The number of objects.
    batch: usize,
    /// This project's target, in beats per cycle.
    reach: Option<f64>,
}

/// Runs the benchmark.
///
/// # Errors
/// There is no device, the run was interrupted, or a result is wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let signals = Signals::install()?;
    let running = simulated::start(None)?;
    let mut device = FpgaDevice::open(&running.card, false)?;
    let (places, codes) = (place_cases()?, code_cases());
    let bar = super::case_bar("fpga bench", places.len() + codes.len() + 3);
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
    // The first coding job after a reset also waits until the device has cleared its lanes.
    if let Some(first) = codes.first() {
        code(&mut device, &running, first)?;
    }
    step("first parity")?;
    for object_bytes in FIRST_PARITY_BYTES {
        rows.push(first_parity(&mut device, &running, object_bytes)?);
    }
    step("rs_encoder")?;
    let (first_parity_cycles, beats_per_cycle) = simulated::encoder()?;
    rows.extend(encoder_rows(first_parity_cycles as f64, beats_per_cycle));
    for case in &codes {
        step(case.profile)?;
        rows.push(code(&mut device, &running, case)?);
    }
    step("checksum")?;
    rows.push(checksum(&mut device)?);
    for (name, operation) in
        [("load-map", DeviceOperation::LoadMap), ("reconfigure", DeviceOperation::Reconfigure)]
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
    let text = format!(
        "{}\nCounted by the simulated device. place, code, checksum: a whole operation from its \
         start to its completion, card memory included (each: one more of many).\n{}{}\n",
        table(rows),
        notes(rows),
        report::made_by()
    );
    report::print(args.json.as_deref(), &text, rows)
}

/// The rows as a table, with the clock at which a paper's cycles would take the paper's time.
fn table(rows: &[Row]) -> String {
    let heading =
        ["case", "unit", "ours", "limit", "reach", "paper", "its us", "so MHz", "what it is"];
    let mut table = Table::new(&heading);
    for row in rows {
        let range = |name: &str, digits| {
            let ends = row.more.get(name).and_then(serde_json::Value::as_array);
            let ends: Vec<f64> =
                ends.into_iter().flatten().filter_map(serde_json::Value::as_f64).collect();
            ends.try_into().map_or_else(|_| String::new(), |ends| published::range(ends, digits))
        };
        table.row(vec![
            row.case.clone(),
            row.unit.to_owned(),
            number(row.ours),
            number(row.limit),
            number(row.more.get("reach").and_then(serde_json::Value::as_f64)),
            range("paper_cycles", 0),
            range("paper_us", 3),
            range("paper_implied_mhz", 0),
            Note::label_of(row).to_owned(),
        ]);
    }
    table.text()
}

/// The explanations of the table's labels, and the contradiction in Table I.
fn notes(rows: &[Row]) -> String {
    let is_there = |note: &Note| rows.iter().any(|row| Note::label_of(row) == note.label());
    let notes = Note::ALL.into_iter().filter(is_there);
    let mut text: String =
        notes.map(|note| format!("{}: {}.\n", note.label(), note.text())).collect();
    if rows.iter().any(|row| row.more.contains_key("paper")) {
        text.push_str(&format!("paper: DeLiBA-K. {}.\n", published::contradiction()));
    }
    text
}

/// Runs jobs on the device in one operation and compares the results with the CPU's. Returns the
/// operation's cycles.
pub(crate) fn cycles_of(
    device: &mut FpgaDevice,
    jobs: &[Job],
    operation: DeviceOperation,
) -> anyhow::Result<f64> {
    /// Most attempts in which the device gives a job back: the partition may have to change first.
    const MAX_ATTEMPTS: u32 = 1_000_000;
    const QUEUE: SubmissionQueueId = SubmissionQueueId(0);
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
        cycles_of(device, &[job], DeviceOperation::Place).with_context(|| name.clone())
    };
    let one = cycles(1)?;
    let draw = running.card.totals().last_draw_cycles as f64;
    let each = (cycles(MANY)? - one) / (MANY - 1) as f64;
    rows.extend(place_rows(&name, kernel.as_ref(), &Placed { draw, one, each }));
    Ok(())
}

/// The rows of a map: the kernel alone, if there is one, and whole placements. A paper's cycles are
/// only comparable with a placement of one input.
fn place_rows(name: &str, kernel: Option<&Kernel>, placed: &Placed) -> Vec<Row> {
    let row = |case: String, ours| Row::new(BENCH, case, CYCLES, Better::Less, (Some(ours), None));
    let mut one = row(format!("place/{name}/one"), placed.one);
    let each = row(format!("place/{name}/each"), placed.each);
    let Some(Kernel { paper, reach }) = kernel else { return vec![one, each] };
    let mut alone = Note::KernelAlone.on(row(format!("kernel/{name}"), placed.draw));
    alone.more.insert("reach".to_owned(), (*reach).into());
    paper.add_to(&mut one);
    vec![alone, Note::WholePlacement.on(one), each]
}

/// The rows of the encoder with constant coefficients. The encoder is not in the device, so no
/// paper's number is compared with it.
fn encoder_rows(first_parity_cycles: f64, beats_per_cycle: f64) -> [Row; 2] {
    let case = "kernel/rs:8+4/first-parity".to_owned();
    let ours = Some(first_parity_cycles);
    let mut first = Row::new(BENCH, case, CYCLES, Better::Less, (ours, None));
    first.more.insert("reach".to_owned(), 20.0.into());
    let case = "kernel/rs:8+4/beats".to_owned();
    let ours = Some(beats_per_cycle);
    let beats = Row::new(BENCH, case, "beats/cycle", Better::More, (ours, None));
    [first, beats.limit(Some(1.0))].map(|row| Note::NotInDevice.on(row))
}

/// Cycles of the device from the start of a `CODE` to its first parity: the cycles of the
/// operation, less the cycles from the first parity at card memory to memory's answer to the last
/// one. The few cycles of an operation after that answer are counted, too. The device reads the
/// program again, because each call of [`code`] makes its own map.
fn first_parity(
    device: &mut FpgaDevice,
    running: &Running,
    object_bytes: usize,
) -> anyhow::Result<Row> {
    let case = CodeCase { profile: "rs:8+4", object_bytes, batch: 1, reach: None };
    let whole = code(device, running, &case)?;
    let cycles = whole.more.get("cycles").and_then(serde_json::Value::as_f64);
    let cycles = cycles.context("a coding row without its cycles")?;
    let first = cycles - running.last_write_cycles() as f64;
    Ok(first_parity_row(object_bytes, cycles, first))
}

fn first_parity_row(object_bytes: usize, cycles: f64, first: f64) -> Row {
    let case = format!("code/rs:8+4/{}/first-parity", fieldstone_units::size(object_bytes as u64));
    let mut row = Row::new(BENCH, case, CYCLES, Better::Less, (Some(first), None));
    row.more.insert("cycles".to_owned(), cycles.into());
    published::ENCODER.add_to(&mut row);
    Note::FirstParity.on(row)
}

/// Beats per cycle of the busier direction of the codes engine's memory port; at most 1.
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
        Job::code(Arc::clone(code.encode()), inputs)
    };
    let jobs: Vec<Job> = (0..batch).map(job).collect();
    let before = running.card.totals();
    let cycles =
        cycles_of(device, &jobs, DeviceOperation::Code).with_context(|| profile.to_owned())?;
    let after = running.card.totals();
    let beats = (after.card_reads - before.card_reads).max(after.card_writes - before.card_writes);
    let times = if batch > 1 { format!("{batch}x") } else { String::new() };
    let case = format!("code/{profile}/{times}{}", fieldstone_units::size(object_bytes as u64));
    let ours = Some(beats as f64 / cycles);
    let mut row = Row::new(BENCH, case, "beats/cycle", Better::More, (ours, None));
    row.more.insert("cycles".to_owned(), cycles.into());
    row.more.insert("beats_read".to_owned(), (after.card_reads - before.card_reads).into());
    row.more.insert("beats_written".to_owned(), (after.card_writes - before.card_writes).into());
    let both = after.card_reads - before.card_reads + after.card_writes - before.card_writes;
    row.more.insert("both_ways".to_owned(), (both as f64 / cycles).into());
    if let Some(reach) = reach {
        row.more.insert("reach".to_owned(), reach.into());
    }
    Ok(Note::CardMemory.on(row.limit(Some(1.0))))
}

fn checksum(device: &mut FpgaDevice) -> anyhow::Result<Row> {
    const BYTES: usize = 1 << 20;
    let data = (0..BYTES).map(|at| (at % 251) as u8).collect();
    let job = Job::Checksum { data, block_bytes: 4096 };
    let cycles = cycles_of(device, &[job], DeviceOperation::Checksum)?;
    let ours = Some(BYTES as f64 / cycles);
    let case = "checksum/1M".to_owned();
    let row = Row::new(BENCH, case, "bytes/cycle", Better::More, (ours, None));
    Ok(Note::CardMemory.on(row.limit(Some(64.0))))
}

/// Small objects alone and in one batch, and large objects.
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
        (Straw2, published::STRAW2, 47.0),
        (Straw, published::STRAW, 38.0),
        (List, published::LIST, 32.0),
        (Tree, published::TREE, 40.0),
        (Uniform, published::UNIFORM, 31.0),
    ];
    for (kind, paper, reach) in kernels {
        let name = format!("{}-64", kind.word());
        let kernel = Some(Kernel { paper, reach });
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

/// A root with `racks` racks of `hosts_per_rack` hosts of `per_host` devices, all straw2.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Kernel {
        Kernel { paper: published::STRAW2, reach: 47.0 }
    }

    fn rows() -> Vec<Row> {
        let placed = Placed { draw: 42.0, one: 189.0, each: 5.9 };
        let mut rows = place_rows("straw2-64", Some(&kernel()), &placed);
        rows.extend(place_rows("chooseleaf3-256", None, &placed));
        rows.extend(encoder_rows(4.0, 1.0));
        rows.push(first_parity_row(512, 252.0, 209.0));
        rows
    }

    #[test]
    fn a_published_number_is_compared_with_the_same_work_only() {
        for row in rows() {
            let has_paper = ["place/straw2-64/one", "code/rs:8+4/512 B/first-parity"];
            assert_eq!(row.more.contains_key("paper"), has_paper.contains(&&*row.case), "{row:?}");
            if row.case.starts_with("kernel/") {
                let label = Note::label_of(&row);
                assert!(["kernel alone", "not in the device"].contains(&label), "{row:?}");
            }
        }
    }

    #[test]
    fn the_table_says_what_its_rows_are() {
        let text = table(&rows()) + &notes(&rows());
        let line = |case: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(case));
            line.unwrap_or_default().to_owned()
        };
        let one = line("place/straw2-64/one");
        let cells: Vec<&str> = one.split_whitespace().collect();
        let expected = ["cycles", "189", "-", "-", "155", "0.315", "492", "whole", "placement"];
        assert_eq!(cells[1..], expected, "{text}");
        assert!(line("kernel/straw2-64").ends_with("kernel alone"), "{text}");
        assert!(line("kernel/rs:8+4/first").ends_with("not in the device"), "{text}");
        assert!(line("whole placement:").contains("section IV-B"), "{text}");
        assert!(line("paper:").contains("492 MHz"), "{text}");
        assert!(line("card memory:").is_empty(), "no row has such a share: {text}");
    }
}
