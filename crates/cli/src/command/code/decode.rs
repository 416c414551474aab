//! `fieldstone code decode`: makes the file again from its shards.

use std::fs::{Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use fieldstone_files::{Error, Folder, Output, decode_with};
use serde::Serialize;

use super::engines::{EngineReport, Engines};
use super::{Common, count, troubles};
use crate::progress::with_bytes_bar;
use fieldstone_units as units;

/// Options of `code decode`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file to make; - for standard output. The summary then goes to standard error.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    common: Common,
}

#[derive(Serialize)]
struct Report<'a> {
    job: &'static str,
    dir: &'a Path,
    code: String,
    file_bytes: u64,
    rebuilt_units: u64,
    read_bytes: u64,
    troubles: &'a [String],
    #[serde(flatten)]
    engines: EngineReport,
    seconds: f64,
}

/// Runs `code decode`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let folder = Folder::open(&args.common.dir)?;
    let mut coders = args.engines.coders(&args.common.jobs)?;
    let output = open(&args.out)?;
    let to_stdout = args.out == Path::new("-");
    let file_bytes = folder.encoding.file_bytes;
    let started = Instant::now();
    let decoded = with_bytes_bar("decode", Some(file_bytes), |progress| {
        decode_with(&folder, output, &mut coders, progress)
    });
    let decoded = decoded.map_err(plain_broken_pipe)?;
    let elapsed = started.elapsed();
    let troubles = troubles(&folder);
    let text = if args.common.json {
        let report = Report {
            job: "decode",
            dir: &args.common.dir,
            code: folder.encoding.striping.profile().to_string(),
            file_bytes,
            rebuilt_units: decoded.rebuilt_units,
            read_bytes: decoded.read_bytes,
            troubles: &troubles,
            engines: args.engines.report(&coders),
            seconds: elapsed.as_secs_f64(),
        };
        serde_json::to_string(&report)?
    } else {
        for trouble in &troubles {
            eprint_line!("fieldstone: {trouble}");
        }
        if decoded.rebuilt_units > 0 {
            let rebuilt = count(decoded.rebuilt_units, "unit");
            let dir = units::shell_word(args.common.dir.display());
            eprint_line!(
                "fieldstone: {rebuilt} rebuilt on the fly; `fieldstone code repair {dir}` mends"
            );
        }
        let rate = units::rate(file_bytes, elapsed);
        let decoded = format!("decoded {} at {rate}", units::size(file_bytes));
        std::iter::once(decoded).chain(args.engines.line(&coders)).collect::<Vec<_>>().join("\n")
    };
    if to_stdout {
        eprint_line!("{text}");
    } else {
        print_line!("{text}");
    }
    Ok(())
}

/// The output: a new file, standard output, or an existing pipe or character device. The path is
/// the user's own, so a link to a pipe or device is followed, for example `/dev/stdout`. A link to
/// anything else is refused, like every file that exists.
fn open(path: &Path) -> anyhow::Result<Output<'static>> {
    if path == Path::new("-") {
        let name = PathBuf::from("stdout");
        return Ok(Output::Stream { bytes: Box::new(std::io::stdout()), name });
    }
    if !path.metadata().is_ok_and(|metadata| is_stream(&metadata)) {
        return Ok(Output::File(path.to_path_buf()));
    }
    let cannot = || format!("cannot write to {}", path.display());
    let file = OpenOptions::new().write(true).open(path).with_context(cannot)?;
    // The file may have been replaced since the check above.
    if !is_stream(&file.metadata().with_context(cannot)?) {
        return Err(Error::OutputExists(path.to_path_buf()).into());
    }
    Ok(Output::Stream { bytes: Box::new(file), name: path.to_path_buf() })
}

/// True if the file only takes bytes one after the other: a pipe or a character device.
fn is_stream(metadata: &Metadata) -> bool {
    let kind = metadata.file_type();
    kind.is_fifo() || kind.is_char_device()
}

/// Turns a broken pipe into an error that `main` does not print: a reader such as `head` may close
/// stdout.
fn plain_broken_pipe(error: Error) -> anyhow::Error {
    match error {
        Error::Io { source, .. } if source.kind() == ErrorKind::BrokenPipe => source.into(),
        other => other.into(),
    }
}
