//! The contenders: our own servers, their peers, and the raw disk as the limit.
//!
//! Every server serves a device of the same size from the same file system on a Unix socket.
//! `serve_command` and `ours` have the options that are not defaults.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::GENERATE;
use crate::client::Client;
use crate::fio::FioTarget;
use crate::interleaving::Entrant;
use crate::pools::{BenchPool, shown, volume_of};
use crate::process::Server;
use crate::subject::Subject;

/// Nodes of our pools.
const NODES: u64 = 6;

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// Our server on memory.
    Ram,
    /// Our server on a raw file, through the page cache.
    File,
    /// Our server on a raw file, with O_DIRECT.
    FileDirect,
    /// Our server with three copies, through the page cache.
    Copies,
    /// Our server with Reed-Solomon 4+2, through the page cache.
    Rs,
    /// Our server with Reed-Solomon 4+2, with O_DIRECT.
    RsDirect,
    /// nbdkit's memory plugin.
    NbdkitMemory,
    /// nbdkit's file plugin, through the page cache.
    NbdkitFile,
    /// qemu-nbd on a raw file, through the page cache.
    QemuWriteback,
    /// qemu-nbd on a raw file, with O_DIRECT and io_uring.
    QemuNone,
    /// No server: fio on a file, with O_DIRECT and io_uring.
    RawDisk,
    /// Our store in memory, inside the client's process.
    RamEmbed,
    /// Our store on a raw file, through the page cache, inside the client's process.
    FileEmbed,
    /// Our volume with Reed-Solomon 4+2, through the page cache, inside the client's process.
    RsEmbed,
}

impl Contender {
    /// All contenders, in the order of the report.
    pub const ALL: [Self; 14] = [
        Self::Ram,
        Self::RamEmbed,
        Self::NbdkitMemory,
        Self::Copies,
        Self::Rs,
        Self::RsEmbed,
        Self::File,
        Self::FileEmbed,
        Self::NbdkitFile,
        Self::QemuWriteback,
        Self::RsDirect,
        Self::FileDirect,
        Self::QemuNone,
        Self::RawDisk,
    ];

    /// True for stores of ours inside the client's process.
    pub fn is_embedded(self) -> bool {
        matches!(self, Self::RamEmbed | Self::FileEmbed | Self::RsEmbed)
    }

    /// True if a server serves the device.
    pub fn has_server(self) -> bool {
        !self.is_embedded() && self != Self::RawDisk
    }

    /// The caches between the client and the storage.
    pub fn caches(self) -> &'static str {
        match self {
            Self::Ram | Self::RamEmbed | Self::NbdkitMemory => "memory",
            Self::Copies | Self::Rs | Self::RsEmbed => "own cache of 32 MiB, page cache (warm)",
            Self::RsDirect | Self::FileDirect => "own cache of 32 MiB, no page cache",
            Self::File | Self::FileEmbed | Self::NbdkitFile | Self::QemuWriteback => {
                "page cache (warm)"
            }
            Self::QemuNone | Self::RawDisk => "none",
        }
    }

    fn pool(self) -> Option<BenchPool> {
        let code = match self {
            Self::Copies => "copies:3",
            Self::Rs | Self::RsDirect | Self::RsEmbed => "rs:4+2",
            _ => return None,
        };
        Some(BenchPool::new(code, NODES).expect("both are codes of at most six shards"))
    }

    /// Most bytes that the contender takes on the file system.
    pub fn disk_bytes(self, size_bytes: u64) -> u64 {
        match (self, self.pool()) {
            (_, Some(pool)) => pool.disk_bytes(size_bytes),
            (Self::Ram | Self::RamEmbed | Self::NbdkitMemory, None) => 0,
            _ => size_bytes,
        }
    }
}

impl Entrant for Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::File => "file",
            Self::FileDirect => "file-direct",
            Self::Copies => "copies:3",
            Self::Rs => "rs:4+2",
            Self::RsDirect => "rs:4+2-direct",
            Self::NbdkitMemory => "nbdkit-memory",
            Self::NbdkitFile => "nbdkit-file",
            Self::QemuWriteback => "qemu-nbd-writeback",
            Self::QemuNone => "qemu-nbd-none",
            Self::RawDisk => "raw-disk",
            Self::RamEmbed => "ram-embed",
            Self::FileEmbed => "file-embed",
            Self::RsEmbed => "rs:4+2-embed",
        }
    }

    fn is_ours(self) -> bool {
        !matches!(
            self,
            Self::NbdkitMemory
                | Self::NbdkitFile
                | Self::QemuWriteback
                | Self::QemuNone
                | Self::RawDisk
        )
    }
}

/// The settings of all contenders.
pub struct Setup {
    /// The folder for files.
    pub folder: PathBuf,
    /// The folder for sockets. Its path is short.
    pub sockets: PathBuf,
    /// Size of each device.
    pub size_bytes: u64,
    /// Cores of our servers.
    pub cores: u16,
    /// The path of this program.
    pub program: PathBuf,
}

impl Setup {
    /// A command as the report shows it. DIR stands for the folder of this run, which no longer
    /// exists then.
    fn shown(&self, words: &[String]) -> String {
        let line = shown(words).replace(&self.folder.display().to_string(), "DIR");
        line.replace(&self.sockets.display().to_string(), "DIR")
    }
}

/// Starts a contender. The error says why it cannot take part.
pub fn start(contender: Contender, setup: &Setup) -> anyhow::Result<Subject> {
    let folder = setup.folder.join(contender.name().replace([':', '+'], "-"));
    let file = setup.folder.join(format!("{}.raw", contender.name()));
    let mut commands = Vec::new();
    if contender.pool().is_none() && contender.disk_bytes(setup.size_bytes) > 0 {
        let made = File::create(&file).and_then(|file| file.set_len(setup.size_bytes));
        made.with_context(|| format!("cannot make {}", file.display()))?;
    }
    if contender == Contender::RawDisk {
        let client = Client::Fio(FioTarget::File(file));
        return Ok(Subject { client, server: None, commands });
    }
    if let Some(pool) = contender.pool() {
        let made = pool.make(&setup.program, &folder, setup.size_bytes)?;
        commands.extend(made.iter().map(|words| setup.shown(words)));
    }
    if contender.is_embedded() {
        let target = target(contender, setup, &folder, &file.display().to_string());
        let shown = target.replace(&setup.folder.display().to_string(), "DIR");
        commands.push(format!("fieldstone bench {GENERATE}, with {shown} in its process"));
        let client = Client::InProcess { program: setup.program.clone(), target };
        return Ok(Subject { client, server: None, commands });
    }
    let socket = setup.sockets.join(format!("{}.sock", contender.name().replace([':', '+'], "-")));
    let words = serve_command(contender, setup, &folder, &file, &socket);
    let log = setup.folder.join(format!("{}.log", contender.name()));
    let server = Server::start(&words, &socket, &log)?;
    commands.push(setup.shown(&words));
    let client = Client::Fio(FioTarget::Nbd(socket));
    Ok(Subject { client, server: Some(server), commands })
}

fn serve_command(
    contender: Contender,
    setup: &Setup,
    folder: &Path,
    file: &Path,
    socket: &Path,
) -> Vec<String> {
    let size = setup.size_bytes.to_string();
    let (socket, file) = (socket.display().to_string(), file.display().to_string());
    let words: Vec<&str> = match contender {
        Contender::NbdkitMemory => vec!["nbdkit", "-f", "-U", &socket, "memory", &size],
        Contender::NbdkitFile => vec!["nbdkit", "-f", "-U", &socket, "file", &file],
        Contender::QemuWriteback => {
            let options = ["qemu-nbd", "-f", "raw", "-t", "-e", "8", "--cache=writeback"];
            [options.as_slice(), &["-k", &socket, &file]].concat()
        }
        Contender::QemuNone => {
            let options = ["qemu-nbd", "-f", "raw", "-t", "-e", "8", "--cache=none"];
            [options.as_slice(), &["--aio=io_uring", "-k", &socket, &file]].concat()
        }
        _ => return ours(contender, setup, folder, &file, &socket),
    };
    words.into_iter().map(str::to_owned).collect()
}

/// The target of a contender of ours, as `serve` and `embed` take it.
fn target(contender: Contender, setup: &Setup, folder: &Path, file: &str) -> String {
    match contender {
        Contender::Ram | Contender::RamEmbed => format!("ram:{}", setup.size_bytes),
        Contender::File | Contender::FileDirect | Contender::FileEmbed => format!("file:{file}"),
        _ => volume_of(folder),
    }
}

fn ours(
    contender: Contender,
    setup: &Setup,
    folder: &Path,
    file: &str,
    socket: &str,
) -> Vec<String> {
    let target = target(contender, setup, folder, file);
    let cores = setup.cores.to_string();
    let program = setup.program.display().to_string();
    let nbd = format!("unix:{socket}");
    let mut words = vec![program, "serve".to_owned(), target, "--nbd".to_owned(), nbd];
    words.extend(["--cores".to_owned(), cores]);
    if matches!(contender, Contender::RsDirect | Contender::FileDirect) {
        words.push("--direct".to_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        Setup {
            folder: PathBuf::from("/data/b"),
            sockets: PathBuf::from("/run/b"),
            size_bytes: 1 << 30,
            cores: 2,
            program: PathBuf::from("/opt/bin/fieldstone"),
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = Contender::ALL.iter().map(|contender| contender.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Contender::ALL.len());
    }

    #[test]
    fn contenders_take_room_on_the_disk() {
        assert_eq!(Contender::Rs.disk_bytes(1 << 30), (6 * 768) << 20);
        assert_eq!(Contender::NbdkitMemory.disk_bytes(1 << 30), 0);
        assert_eq!(Contender::RawDisk.disk_bytes(1 << 30), 1 << 30);
        let pools = Contender::ALL.into_iter().filter(|contender| contender.pool().is_some());
        assert_eq!(pools.count(), 4);
    }

    #[test]
    fn commands_name_the_device_and_the_socket() {
        let setup = setup();
        for contender in Contender::ALL {
            if !contender.has_server() {
                continue;
            }
            let words = serve_command(
                contender,
                &setup,
                Path::new("/data/b/pool"),
                Path::new("/data/b/f.raw"),
                Path::new("/run/b/s.sock"),
            );
            let line = shown(&words);
            assert!(line.contains("/run/b/s.sock"), "{line}");
            let device = ["1073741824", "/data/b/f.raw", "/data/b/pool/v"];
            assert_eq!(device.iter().filter(|word| line.contains(*word)).count(), 1, "{line}");
            assert_eq!(line.starts_with("fieldstone serve"), contender.is_ours(), "{line}");
        }
    }
}
