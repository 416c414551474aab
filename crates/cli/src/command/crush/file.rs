//! Reads and writes whole files; `-` stands for standard input or output.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The largest input in bytes. A map of 100,000 devices has a few MiB.
const MAX_INPUT_BYTES: u64 = 256 << 20;

/// The contents of a file.
pub fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if is_standard(path) {
        std::io::stdin().lock().take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes)
    } else {
        let file = fs::File::open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        file.take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes)
    };
    let len_bytes = read.with_context(|| format!("cannot read {}", shown(path)))?;
    if len_bytes as u64 > MAX_INPUT_BYTES {
        bail!("{} is larger than 256 MiB, and so no map", shown(path));
    }
    Ok(bytes)
}

/// Writes a file. A regular file of that name stays as it is until all bytes are written; then the
/// new file replaces it. Devices and pipes are written directly.
pub fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if is_standard(path) {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(bytes)?;
        return Ok(stdout.flush()?);
    }
    let is_special = path.metadata().is_ok_and(|metadata| !metadata.is_file());
    let result = if is_special { fs::write(path, bytes) } else { replace(path, bytes) };
    result.with_context(|| format!("cannot write {}", path.display()))
}

fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // The path may be a link: replace its target, so that the link stays.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let mut part = path.clone().into_os_string();
    part.push(format!(".{}.part", std::process::id()));
    let part = PathBuf::from(part);
    let mut file = OpenOptions::new().write(true).create_new(true).open(&part)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let done = written.and_then(|()| fs::rename(&part, &path));
    if done.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&part);
    }
    done
}

fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// The path as messages show it.
pub fn shown(path: &Path) -> String {
    if is_standard(path) { "standard input".to_owned() } else { path.display().to_string() }
}
