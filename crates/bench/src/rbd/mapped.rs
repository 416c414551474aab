//! An image as a block device of the kernel, by `rbd-nbd`: librbd in a process of its own, behind
//! the kernel's NBD client.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::place::{Address, LibrbdCache};

/// A mapped image. Dropping this unmaps it.
pub struct Mapped {
    /// The device.
    pub device: PathBuf,
    /// The process with librbd.
    pub pid: u32,
}

/// A line of `rbd-nbd list-mapped`.
#[derive(Deserialize)]
struct Line {
    /// The process: a number, or a text with a number.
    id: serde_json::Value,
    device: PathBuf,
}

impl Mapped {
    /// Fails with the reason if no image can be mapped here.
    ///
    /// # Errors
    /// What is missing.
    pub fn check() -> anyhow::Result<()> {
        ensure!(
            Path::new("/dev/nbd0").exists(),
            "there is no /dev/nbd0: this kernel has no NBD client (module nbd)"
        );
        run(Command::new("rbd-nbd").arg("--version")).map(drop)
    }

    /// Maps an image.
    ///
    /// # Errors
    /// `rbd-nbd` fails.
    pub fn map(address: &Address) -> anyhow::Result<Self> {
        let command = || {
            let mut command = Command::new("rbd-nbd");
            command.envs(address.environment(LibrbdCache::Off)).args(["--id", &address.id]);
            command
        };
        let said = run(command().arg("map").arg(address.path()))?;
        let device = PathBuf::from(said.trim());
        let mut mapped = Self { device, pid: 0 };
        let list = run(command().args(["list-mapped", "--format", "json"]))?;
        mapped.pid = pid_of(&list, &mapped.device)?;
        Ok(mapped)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("rbd-nbd").arg("unmap").arg(&self.device)) {
            let device = self.device.display();
            eprint_line!("fieldstone: {device} cannot be unmapped, unmap it by hand: {error:#}");
        }
    }
}

/// The process of a device, from the list of mapped ones.
fn pid_of(list: &str, device: &Path) -> anyhow::Result<u32> {
    let lines: Vec<Line> = serde_json::from_str(list).context("the list of mapped images")?;
    let line = lines.into_iter().find(|line| line.device == device);
    let id = line.with_context(|| format!("{} is not in the list", device.display()))?.id;
    let number = id.as_u64().or_else(|| id.as_str()?.parse().ok());
    let number = number.with_context(|| format!("{id} is no process"))?;
    Ok(u32::try_from(number)?)
}

fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().context("cannot run rbd-nbd")?;
    if !output.status.success() {
        bail!("rbd-nbd: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_of_a_device_is_found() {
        let list = r#"[{"id":"12","pool":"p","image":"a","device":"/dev/nbd0"},
                       {"id":34,"pool":"p","image":"b","device":"/dev/nbd1"}]"#;
        assert_eq!(pid_of(list, Path::new("/dev/nbd0")).expect("it is there"), 12);
        assert_eq!(pid_of(list, Path::new("/dev/nbd1")).expect("it is there"), 34);
        assert!(pid_of(list, Path::new("/dev/nbd2")).is_err());
        assert!(pid_of("", Path::new("/dev/nbd2")).is_err());
    }
}
