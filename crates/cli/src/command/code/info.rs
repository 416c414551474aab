//! `fieldstone code info`: describes an encoding or a code.

use std::path::{Path, PathBuf};

use fieldstone_codes::{Code, Profile};
use fieldstone_files::{Folder, Striping};
use serde::Serialize;

use super::troubles;
use fieldstone_units as units;

/// Options of `code info`.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct Args {
    /// The folder with the shards.
    #[arg(value_name = "DIR", group = "which")]
    dir: Option<PathBuf>,
    /// Explain a code instead.
    #[arg(long, value_name = "CODE", group = "which")]
    code: Option<Profile>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct EncodingReport<'a> {
    dir: &'a Path,
    id: String,
    code: String,
    file_bytes: u64,
    file_crc32c: String,
    unit_bytes: usize,
    stripes: u64,
    shards: usize,
    shard_file_bytes: u64,
    troubles: Vec<String>,
}

#[derive(Serialize)]
struct CodeReport {
    code: String,
    k: usize,
    m: usize,
    /// Bytes stored for each byte of data.
    overhead: f64,
    elements: u32,
    granule_bytes: usize,
    unit_bytes: usize,
    blocks: usize,
    repairs: Vec<RepairReport>,
}

/// The reads of the repair of one shard.
#[derive(Serialize, PartialEq)]
struct RepairReport {
    shard: usize,
    /// Shards that the repair reads.
    helpers: usize,
    /// Elements that the repair reads, divided by the elements of a shard.
    reads_shards: f64,
    /// The largest number of contiguous runs of elements that the repair reads from one shard in a
    /// stripe.
    runs: usize,
}

/// Runs `code info`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match (&args.dir, args.code) {
        (Some(dir), _) => encoding(dir, args.json),
        (None, Some(profile)) => code(profile, args.json),
        (None, None) => unreachable!("one of them is required"),
    }
}

fn encoding(dir: &Path, json: bool) -> anyhow::Result<()> {
    let folder = Folder::open(dir)?;
    let (encoding, troubles) = (&folder.encoding, troubles(&folder));
    let striping = &encoding.striping;
    let report = EncodingReport {
        dir,
        id: encoding.id.to_string(),
        code: striping.profile().to_string(),
        file_bytes: encoding.file_bytes,
        file_crc32c: format!("{:08x}", encoding.file_crc),
        unit_bytes: striping.unit_bytes(),
        stripes: encoding.stripes(),
        shards: striping.shards(),
        shard_file_bytes: encoding.shard_file_bytes(),
        troubles,
    };
    if json {
        print_line!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    print_line!("code      {}", report.code);
    print_line!("id        {}", report.id);
    print_line!("file      {} bytes, CRC-32C {}", report.file_bytes, report.file_crc32c);
    print_line!("shards    {} of {} bytes", report.shards, report.shard_file_bytes);
    print_line!(
        "stripes   {}, in units of {}, each with {} checksums",
        report.stripes,
        units::size(report.unit_bytes as u64),
        striping.blocks()
    );
    match report.troubles.is_empty() {
        true => print_line!("state     all files are there; `code verify` looks into them"),
        false => report.troubles.iter().for_each(|trouble| print_line!("trouble   {trouble}")),
    }
    Ok(())
}

fn code(profile: Profile, json: bool) -> anyhow::Result<()> {
    let striping = Striping::new(profile, None)?;
    let code = striping.code();
    let (k, shards) = (code.k(), striping.shards());
    let repairs = if code.m() == 0 { 0..0 } else { 0..shards };
    let report = CodeReport {
        code: profile.to_string(),
        k,
        m: code.m(),
        overhead: shards as f64 / k as f64,
        elements: code.elements(),
        granule_bytes: code.layout().granule_bytes(code.elements()),
        unit_bytes: striping.unit_bytes(),
        blocks: striping.blocks(),
        repairs: repairs.map(|lost| repair(code, lost)).collect::<anyhow::Result<_>>()?,
    };
    if json {
        print_line!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    print_line!("{}", report.code);
    print_line!("data shards    {k}");
    print_line!("parity shards  {}: any {} shards may be lost", report.m, report.m);
    print_line!("space          {:.2} bytes for each byte", report.overhead);
    print_line!("elements       {} in a shard", report.elements);
    print_line!("granule        lengths of units are multiples of {} bytes", report.granule_bytes);
    print_line!("unit           {} unless told otherwise", units::size(report.unit_bytes as u64));
    let mut rest = &report.repairs[..];
    while let Some(first) = rest.first() {
        let same = |other: &&RepairReport| **other == RepairReport { shard: other.shard, ..*first };
        let alike = rest.iter().take_while(same).count();
        let last = first.shard + alike - 1;
        let which = if alike == 1 { format!("{last}") } else { format!("{}-{last}", first.shard) };
        print_line!(
            "repair of {which:<4} reads {:.2} shards from {}, in up to {} from each; \
             Reed-Solomon reads {k}",
            first.reads_shards,
            first.helpers,
            super::count(first.runs as u64, "run"),
        );
        rest = &rest[alike..];
    }
    Ok(())
}

/// The reads of a repair of one shard when all others are there.
fn repair(code: &dyn Code, lost: usize) -> anyhow::Result<RepairReport> {
    let others: Vec<usize> = (0..code.k() + code.m()).filter(|&shard| shard != lost).collect();
    let plan = code.repair(&[lost], &others)?;
    Ok(RepairReport {
        shard: lost,
        helpers: plan.reads.len(),
        reads_shards: plan.read_bytes(1) as f64 / f64::from(code.elements()),
        runs: plan.reads.iter().map(|read| read.elements.len()).max().unwrap_or(0),
    })
}
