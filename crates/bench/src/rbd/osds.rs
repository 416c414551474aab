//! The processes of a cluster's OSDs on this machine, and their CPU time.
//!
//! They are found by the configuration file that they read: a process `ceph-osd` with the same one
//! as the client. So a second cluster on the machine does not count. OSDs on other machines cannot
//! be seen, and then the benchmark reports no CPU time of OSDs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::process::cpu_of;

/// The OSDs whose CPU time is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Osds {
    /// Their processes. Empty if none is known.
    pub pids: Vec<u32>,
}

impl Osds {
    /// Those of the files `osd.*.pid` in a folder.
    ///
    /// # Errors
    /// The folder cannot be read, or has no such file of a running process.
    pub fn of_folder(folder: &Path) -> anyhow::Result<Self> {
        let entries =
            fs::read_dir(folder).with_context(|| format!("--osd-pid-dir {}", folder.display()))?;
        let mut pids = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.contains("osd.") && name.ends_with(".pid") {
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                pids.extend(text.trim().parse::<u32>().ok().filter(|pid| cpu_of(*pid).is_ok()));
            }
        }
        pids.sort_unstable();
        anyhow::ensure!(
            !pids.is_empty(),
            "--osd-pid-dir {}: no file osd.N.pid there names a running process",
            folder.display()
        );
        Ok(Self { pids })
    }

    /// Those that run on this machine with this configuration file.
    pub fn with_conf(conf: &Path) -> Self {
        let Ok(conf) = conf.canonicalize() else { return Self::default() };
        let entries = fs::read_dir("/proc").map(Iterator::collect::<Vec<_>>).unwrap_or_default();
        let mut pids: Vec<u32> = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| {
                conf_of(*pid).and_then(|path| path.canonicalize().ok()) == Some(conf.clone())
            })
            .collect();
        pids.sort_unstable();
        Self { pids }
    }

    /// CPU time of all of them so far, in seconds. `None` if none is known, or one is gone.
    pub fn cpu_s(&self) -> Option<f64> {
        let each = self.pids.iter().map(|pid| Some(cpu_of(*pid).ok()?.as_secs_f64()));
        let sum: Option<f64> = each.sum();
        sum.filter(|_| !self.pids.is_empty())
    }
}

/// The configuration file of a process, if the process is an OSD.
fn conf_of(pid: u32) -> Option<PathBuf> {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).ok();
    let words = strings(&read("cmdline")?);
    let program = Path::new(words.first()?).file_name()?.to_str()?;
    if program != "ceph-osd" {
        return None;
    }
    let conf = conf_word(&words).or_else(|| {
        let environment = strings(&read("environ").unwrap_or_default());
        let mut values = environment.iter().filter_map(|word| word.strip_prefix("CEPH_CONF="));
        values.next().map(str::to_owned)
    });
    let conf = PathBuf::from(conf.unwrap_or_else(|| "/etc/ceph/ceph.conf".to_owned()));
    Some(match conf.is_absolute() {
        true => conf,
        false => fs::read_link(format!("/proc/{pid}/cwd")).ok()?.join(conf),
    })
}

/// The configuration file of a command line of Ceph.
fn conf_word(words: &[String]) -> Option<String> {
    let value = |names: [&str; 2]| {
        let at = words.iter().position(|word| names.contains(&word.as_str()))?;
        words.get(at + 1).cloned()
    };
    let joined = words.iter().find_map(|word| word.strip_prefix("--conf="));
    let cluster = || Some(format!("/etc/ceph/{}.conf", value(["--cluster", "--cluster"])?));
    value(["-c", "--conf"]).or_else(|| joined.map(str::to_owned)).or_else(cluster)
}

/// Texts that each end with a zero byte.
fn strings(bytes: &[u8]) -> Vec<String> {
    let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_configuration_file_is_read_from_the_command_line() {
        let found = |line: &str| conf_word(&words(line));
        assert_eq!(found("ceph-osd -c /a/ceph.conf -i 0"), Some("/a/ceph.conf".to_owned()));
        assert_eq!(found("ceph-osd --conf /b.conf"), Some("/b.conf".to_owned()));
        assert_eq!(found("ceph-osd -f --conf=/c.conf"), Some("/c.conf".to_owned()));
        let systemd = "ceph-osd -f --cluster blue --id 3 --setuser ceph";
        assert_eq!(found(systemd), Some("/etc/ceph/blue.conf".to_owned()));
        assert_eq!(found("ceph-osd -f --id 3"), None);
        assert_eq!(strings(b"a\0bc\0\0"), ["a", "bc"]);
    }

    #[test]
    fn files_of_running_processes_count() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert!(Osds::of_folder(folder.path()).is_err());
        let own = std::process::id();
        fs::write(folder.path().join("osd.0.pid"), format!("{own}\n")).expect("written");
        fs::write(folder.path().join("osd.1.pid"), "999999999").expect("written");
        fs::write(folder.path().join("mon.a.pid"), "1").expect("written");
        let osds = Osds::of_folder(folder.path()).expect("one runs");
        assert_eq!(osds.pids, [own]);
        assert!(osds.cpu_s().is_some());
        assert_eq!(Osds::default().cpu_s(), None, "no OSD is not no CPU time");
        assert_eq!(Osds { pids: vec![999_999_999] }.cpu_s(), None);
        assert_eq!(conf_of(own), None, "this is no OSD");
    }
}
