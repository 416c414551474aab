//! `fieldstone code encode`: makes shards of a file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use fieldstone_codes::Profile;
use fieldstone_files::{Input, Striping, encode_with};
use serde::Serialize;

use super::ThreadCount;
use super::engines::{EngineReport, Engines};
use crate::progress::with_bytes_bar;
use fieldstone_units as units;

/// Options of `code encode`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file; - for standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The code: rs:K+M, copies:N, zigzag:K+M, clay:K+M or another, as `code info --code` explains.
    #[arg(long, value_name = "CODE", default_value = "rs:4+2")]
    code: Profile,
    /// The folder for the shards: a new one or an empty one.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Bytes of each shard in a stripe, such as 64K. [default: depends on the code]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    unit: Option<u64>,
    #[command(flatten)]
    jobs: ThreadCount,
    #[command(flatten)]
    engines: Engines,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Encoded<'a> {
    job: &'static str,
    dir: &'a Path,
    id: String,
    code: String,
    shards: usize,
    file_bytes: u64,
    file_crc32c: String,
    unit_bytes: usize,
    stripes: u64,
    shard_file_bytes: u64,
    #[serde(flatten)]
    engines: EngineReport,
    seconds: f64,
}

/// Runs `code encode`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let striping = Striping::new(args.code, args.unit)?;
    let mut coders = args.engines.coders(&args.jobs)?;
    let (input, file_bytes) = open(&args.file)?;
    let started = Instant::now();
    let encoding = with_bytes_bar("encode", file_bytes, |progress| {
        encode_with(input, &args.out, &striping, &mut coders, progress)
    })?;
    let elapsed = started.elapsed();
    let shard_file_bytes = encoding.shard_file_bytes();
    let dir = args.out.display();
    if args.json {
        let encoded = Encoded {
            job: "encode",
            dir: &args.out,
            id: encoding.id.to_string(),
            code: args.code.to_string(),
            shards: striping.shards(),
            file_bytes: encoding.file_bytes,
            file_crc32c: format!("{:08x}", encoding.file_crc),
            unit_bytes: striping.unit_bytes(),
            stripes: encoding.stripes(),
            shard_file_bytes,
            engines: args.engines.report(&coders),
            seconds: elapsed.as_secs_f64(),
        };
        print_line!("{}", serde_json::to_string(&encoded)?);
        return Ok(());
    }
    let m = args.code.m();
    print_line!(
        "encoded {} with {} at {}: {dir}/shard.0 to shard.{}, {} each; any {m} may be lost",
        units::size(encoding.file_bytes),
        args.code,
        units::rate(encoding.file_bytes, elapsed),
        striping.shards() - 1,
        units::size(shard_file_bytes),
    );
    if let Some(line) = args.engines.line(&coders) {
        print_line!("{line}");
    }
    Ok(())
}

/// Opens the file or standard input. Returns the length in bytes if it is known.
fn open(path: &Path) -> anyhow::Result<(Input<'static>, Option<u64>)> {
    if path == Path::new("-") {
        let bytes = Box::new(std::io::stdin());
        return Ok((Input { bytes, name: PathBuf::from("stdin") }, None));
    }
    let cannot = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(cannot)?;
    let metadata = file.metadata().with_context(cannot)?;
    if metadata.is_dir() {
        bail!("{} is a folder; name a file, or - for standard input", path.display());
    }
    let file_bytes = metadata.is_file().then_some(metadata.len());
    Ok((Input { bytes: Box::new(file), name: path.to_path_buf() }, file_bytes))
}
