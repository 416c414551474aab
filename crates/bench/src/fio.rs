//! The client of the block benchmarks: fio, with the same options for every contender.
//!
//! For NBD servers, fio uses its `nbd` engine: libnbd on one connection in one thread. For the raw
//! disk, fio uses its `io_uring` engine with O_DIRECT on a file.
//!
//! From fio's JSON, this module reads I/Os, bandwidth and the distribution of the total latency
//! (from the call to the completion), and the CPU time and context switches of the job. fio takes
//! the last two from the kernel's accounting around the I/O alone, so the start of fio is not
//! counted.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::usage::Usage;

/// Order and direction of the accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// Reads from the start to the end, again and again.
    SequentialRead,
    /// Writes from the start to the end, again and again.
    SequentialWrite,
    /// Reads at uniformly distributed places.
    RandomRead,
    /// Writes at uniformly distributed places.
    RandomWrite,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 4] =
        [Self::SequentialRead, Self::SequentialWrite, Self::RandomRead, Self::RandomWrite];

    /// The name in fio's options and in the names of cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::SequentialRead => "read",
            Self::SequentialWrite => "write",
            Self::RandomRead => "randread",
            Self::RandomWrite => "randwrite",
        }
    }

    /// The name in titles.
    pub fn long_name(self) -> &'static str {
        match self {
            Self::SequentialRead => "Sequential read",
            Self::SequentialWrite => "Sequential write",
            Self::RandomRead => "Random read",
            Self::RandomWrite => "Random write",
        }
    }

    /// True for reads.
    pub fn reads(self) -> bool {
        matches!(self, Self::SequentialRead | Self::RandomRead)
    }

    /// True for sequential accesses.
    pub fn is_sequential(self) -> bool {
        matches!(self, Self::SequentialRead | Self::SequentialWrite)
    }
}

/// The load of one run of fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Order and direction.
    pub pattern: Pattern,
    /// Bytes of one access.
    pub block_bytes: u64,
    /// Accesses in flight.
    pub depth: u32,
}

/// A load of one cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The accesses.
    pub load: Load,
    /// Length of the cell.
    pub seconds: f64,
    /// The same seed makes the same addresses.
    pub seed: u64,
    /// How many times the load runs side by side, each with its own connection and its own part of
    /// the device.
    pub jobs: u32,
}

/// The target of fio's reads and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FioTarget {
    /// The default export of an NBD server on a unix socket.
    Nbd(PathBuf),
    /// A file or block device, with O_DIRECT.
    File(PathBuf),
    /// An image of a Ceph cluster, through librbd.
    Rbd {
        /// The pool.
        pool: String,
        /// The image.
        image: String,
        /// The client's name without its type.
        id: String,
    },
}

/// The results of one run of fio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// I/Os completed.
    pub ios: u64,
    /// I/Os per second.
    pub iops: f64,
    /// Bandwidth.
    pub bytes_per_second: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// The part of it in the call that submits an access; 0 if the client does not measure it.
    pub submit_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// Latency that 1 % of the I/Os exceed.
    pub p99_us: f64,
    /// CPU time of the client.
    pub cpu_s: f64,
    /// Context switches of the client.
    pub switches: u64,
    /// Length of the run.
    pub seconds: f64,
}

/// True if fio has this engine.
pub fn has_engine(name: &str) -> bool {
    let output = Command::new("fio").arg("--enghelp").stderr(Stdio::null()).output();
    output.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout).lines().any(|line| line.trim() == name)
    })
}

/// The version of fio. Fails if fio is not installed or lacks the nbd engine.
pub fn version() -> anyhow::Result<String> {
    let run = |argument: &str| {
        let output = Command::new("fio").arg(argument).stderr(Stdio::null()).output();
        output.context("cannot run fio, the client of this benchmark; install the package fio")
    };
    let version = run("--version")?;
    if !has_engine("nbd") {
        bail!("this fio was built without its nbd engine; Debian's package fio has it");
    }
    Ok(String::from_utf8_lossy(&version.stdout).trim().to_owned())
}

/// Arguments of a run in time. With the same seed, all contenders of a round access the same
/// addresses.
pub fn measure(target: &FioTarget, run: Run, size_bytes: u64) -> Vec<String> {
    // Parts are whole MiB: blocks stay aligned.
    let part_bytes = (size_bytes / u64::from(run.jobs.max(1))) & !((1 << 20) - 1);
    let mut arguments =
        common(target, run.load, if run.jobs > 1 { part_bytes } else { size_bytes });
    arguments.extend([
        "--time_based=1".to_owned(),
        // In milliseconds, so that fractions of a second work.
        format!("--runtime={}ms", (run.seconds * 1e3).round()),
        // Without a map of visited blocks, every access may hit any block, and fio spends no time
        // on the map.
        "--norandommap=1".to_owned(),
        format!("--randseed={}", run.seed),
    ]);
    if run.jobs > 1 {
        arguments.extend([
            format!("--numjobs={}", run.jobs),
            format!("--offset_increment={part_bytes}"),
            // One report of all jobs together.
            "--group_reporting=1".to_owned(),
        ]);
    }
    arguments
}

/// Arguments of a run that writes every byte of the device once, in order.
pub fn fill(target: &FioTarget, size_bytes: u64) -> Vec<String> {
    let load = Load { pattern: Pattern::SequentialWrite, block_bytes: 1 << 20, depth: 4 };
    let mut arguments = common(target, load, size_bytes);
    arguments.push("--end_fsync=1".to_owned());
    arguments
}

/// Arguments of a run that opens the target, makes one small access, and ends: what fio and the
/// opening cost.
pub fn start_up(target: &FioTarget) -> Vec<String> {
    let load = Load { pattern: Pattern::SequentialRead, block_bytes: 4096, depth: 1 };
    common(target, load, 4096)
}

fn common(target: &FioTarget, load: Load, size_bytes: u64) -> Vec<String> {
    let mut arguments = match target {
        FioTarget::Nbd(socket) => {
            vec!["--ioengine=nbd".to_owned(), format!("--uri={}", uri(socket))]
        }
        FioTarget::File(path) => vec![
            "--ioengine=io_uring".to_owned(),
            "--direct=1".to_owned(),
            // An unescaped colon separates several files.
            format!("--filename={}", path.display().to_string().replace(':', "\\:")),
        ],
        FioTarget::Rbd { pool, image, id } => vec![
            "--ioengine=rbd".to_owned(),
            format!("--clientname={id}"),
            format!("--pool={pool}"),
            format!("--rbdname={image}"),
        ],
    };
    arguments.extend([
        "--name=cell".to_owned(),
        format!("--rw={}", load.pattern.name()),
        format!("--bs={}", load.block_bytes),
        format!("--iodepth={}", load.depth),
        format!("--size={size_bytes}"),
        "--lat_percentiles=1".to_owned(),
        "--clat_percentiles=0".to_owned(),
        "--percentile_list=50:99".to_owned(),
        "--eta=never".to_owned(),
        "--output-format=json".to_owned(),
    ]);
    arguments
}

/// The NBD URI of the default export on a unix socket.
pub fn uri(socket: &Path) -> String {
    let mut encoded = String::new();
    for byte in socket.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => {
                encoded.push(char::from(*byte));
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    format!("nbd+unix:///?socket={encoded}")
}

/// Runs fio, reads its results, and measures the whole process: an engine such as `rbd` has threads
/// that fio's own accounting misses. `command` is fio with its environment.
pub fn run_counted(
    mut command: Command,
    arguments: &[String],
    pattern: Pattern,
    limit: Duration,
) -> anyhow::Result<(Measured, Usage)> {
    command.args(arguments);
    let ended = crate::usage::run_counted(command, limit)?;
    if !ended.status.success() {
        bail!("fio ended with {}: {}", ended.status, last_line(&ended.stderr, &ended.stdout));
    }
    Ok((parse(&ended.stdout, pattern)?, ended.usage))
}

/// Runs fio and reads its results.
pub fn run(arguments: &[String], pattern: Pattern) -> anyhow::Result<Measured> {
    let mut command = Command::new("fio");
    command.args(arguments).stdin(Stdio::null());
    super::process::end_with_parent(&mut command);
    let output = command.output().context("cannot run fio")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("fio ended with {}: {}", output.status, last_line(&reason, &said));
    }
    parse(&said, pattern)
}

/// The first line about an error, from stderr or else from stdout.
fn last_line(stderr: &str, stdout: &str) -> String {
    let mut lines = stderr.lines().chain(stdout.lines()).filter(|line| {
        let line = line.to_lowercase();
        line.contains("error") || line.contains("fail") || line.contains("err=")
    });
    lines.next().unwrap_or("it did not say why").trim().to_owned()
}

/// Reads the JSON of a run with one job.
pub fn parse(text: &str, pattern: Pattern) -> anyhow::Result<Measured> {
    // Warnings may precede the JSON.
    let start = text.find("{\n").or_else(|| text.find('{'));
    let json = start.map_or("", |start| &text[start..]);
    let report: Report = serde_json::from_str(json).context("fio's JSON is not as expected")?;
    let job = report.jobs.first().context("fio reports no job")?;
    if job.error != 0 {
        let error = std::io::Error::from_raw_os_error(job.error);
        bail!("fio's I/O failed: {error}");
    }
    let side = if pattern.reads() { &job.read } else { &job.write };
    if side.total_ios == 0 {
        bail!("fio completed no I/O");
    }
    let percentile = |name: &str| {
        let found = side.lat_ns.percentile.get(name).copied();
        found.map(|ns| ns / 1e3).with_context(|| format!("fio reports no percentile {name}"))
    };
    Ok(Measured {
        ios: side.total_ios,
        iops: side.iops,
        bytes_per_second: side.bw_bytes,
        mean_us: side.lat_ns.mean / 1e3,
        submit_us: side.slat_ns.mean / 1e3,
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
        cpu_s: (job.usr_cpu + job.sys_cpu) / 100.0 * job.job_runtime / 1e3,
        switches: job.ctx,
        seconds: side.runtime / 1e3,
    })
}

#[derive(Deserialize)]
struct Report {
    jobs: Vec<JobReport>,
}

#[derive(Deserialize)]
struct JobReport {
    error: i32,
    read: Side,
    write: Side,
    /// In milliseconds, like each `runtime`.
    job_runtime: f64,
    /// In per cent of `job_runtime`.
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
}

#[derive(Deserialize)]
struct Side {
    total_ios: u64,
    iops: f64,
    bw_bytes: f64,
    runtime: f64,
    slat_ns: Mean,
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Mean {
    mean: f64,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of fio 3.33 for a second of 4k random reads from `nbdkit memory`.
    const SAMPLE: &str = include_str!("fio_sample.json");

    #[test]
    fn a_stored_report_is_read() {
        let measured = parse(SAMPLE, Pattern::RandomRead).expect("the sample is complete");
        assert_eq!(measured.ios, 59_731);
        assert!((measured.iops - 59_671.328_671).abs() < 1e-6);
        assert_eq!(measured.bytes_per_second, 244_413_762.0);
        assert!((measured.mean_us - 535.595_290_168).abs() < 1e-9);
        assert!((measured.submit_us - 10.238_203_445).abs() < 1e-9);
        assert_eq!(measured.p50_us, 585.728);
        assert_eq!(measured.p99_us, 1531.904);
        assert!((measured.cpu_s - 0.467).abs() < 1e-9, "46.7 % of one second");
        assert_eq!(measured.switches, 38_901);
        assert_eq!(measured.seconds, 1.001);
    }

    #[test]
    fn words_before_the_report_do_no_harm() {
        let noisy = format!("fio: this platform does not support process shared mutexes\n{SAMPLE}");
        assert_eq!(
            parse(&noisy, Pattern::RandomRead).expect("it reads"),
            parse(SAMPLE, Pattern::RandomRead).expect("it reads")
        );
    }

    #[test]
    fn a_report_without_our_numbers_is_an_error() {
        let error = parse(SAMPLE, Pattern::RandomWrite).expect_err("nothing was written");
        assert!(error.to_string().contains("no I/O"), "{error}");
        let failed = SAMPLE.replace("\"error\" : 0", "\"error\" : 28");
        let error = parse(&failed, Pattern::RandomRead).expect_err("the job failed");
        assert!(error.to_string().contains("No space"), "{error}");
        assert!(parse("", Pattern::RandomRead).is_err());
        assert!(parse("{\"jobs\": []}", Pattern::RandomRead).is_err());
        assert!(parse(&SAMPLE[..SAMPLE.len() / 2], Pattern::RandomRead).is_err());
        let without = SAMPLE.replace("\"99.000000\"", "\"98.000000\"");
        assert!(parse(&without, Pattern::RandomRead).is_err());
    }

    #[test]
    fn arguments_say_everything() {
        let load = Load { pattern: Pattern::RandomWrite, block_bytes: 4096, depth: 32 };
        let nbd = FioTarget::Nbd(PathBuf::from("/run/a b&c.sock"));
        let run = Run { load, seconds: 0.25, seed: 7, jobs: 1 };
        let arguments = measure(&nbd, run, 1 << 30).join(" ");
        assert!(!arguments.contains("--numjobs"), "{arguments}");
        let three = measure(&nbd, Run { jobs: 3, ..run }, 1 << 30).join(" ");
        for part in ["--numjobs=3", "--size=357564416", "--offset_increment=357564416"] {
            assert!(three.contains(part), "{part} is missing in {three}");
        }
        for part in [
            "--ioengine=nbd",
            "--uri=nbd+unix:///?socket=/run/a%20b%26c.sock",
            "--rw=randwrite",
            "--bs=4096",
            "--iodepth=32",
            "--size=1073741824",
            "--runtime=250ms",
            "--time_based=1",
            "--randseed=7",
        ] {
            assert!(arguments.contains(part), "{part} is missing in {arguments}");
        }
        let filled = fill(&FioTarget::File(PathBuf::from("/d/a:b")), 1 << 20).join(" ");
        assert!(filled.contains("--filename=/d/a\\:b") && filled.contains("--direct=1"));
        assert!(!filled.contains("--runtime"), "every byte is written: {filled}");
    }
}
