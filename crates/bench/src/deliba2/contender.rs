//! The contenders: our own nodes, and a Ceph cluster with our client and with librbd.
//!
//! The paper's software is the client of Ceph in user space, behind NBD. So the peer is librbd, and
//! librbd needs a cluster. librbd takes part twice. Our volumes have a cache and read ahead, and so
//! does their peer; our images have neither, and nor has their peer.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::GENERATE;
use crate::client::Client;
use crate::fio::{FioTarget, Measured, Run};
use crate::interleaving::Entrant;
use crate::pools::{BenchPool, shown, volume_of};
use crate::process::Server;
use crate::rbd::contender as ceph;
use crate::rbd::place::{LibrbdCache, Place};
use crate::subject::Subject;
use crate::usage::Usage;

/// Nodes of our pools: as many as the paper's cluster has drives (section 3.3).
pub const NODES: u64 = 8;

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Our volume in the client's process.
    OwnEmbed,
    /// Our volume behind NBD.
    OwnNbd,
    /// Our client of Ceph in the client's process.
    CephEmbed,
    /// Our client of Ceph behind NBD.
    CephNbd,
    /// librbd in fio's process, with a cache and read-ahead.
    LibrbdCache,
    /// librbd in fio's process, without a cache.
    Librbd,
}

impl Who {
    /// All, in the order of the report.
    pub const ALL: [Self; 6] = [
        Self::OwnEmbed,
        Self::OwnNbd,
        Self::CephEmbed,
        Self::CephNbd,
        Self::LibrbdCache,
        Self::Librbd,
    ];

    /// True if it needs a cluster.
    pub fn needs_cluster(self) -> bool {
        !matches!(self, Self::OwnEmbed | Self::OwnNbd)
    }

    /// The librbd that it is compared with: the one with the same caches. `None` for librbd.
    pub fn peer(self) -> Option<Self> {
        match self {
            Self::OwnEmbed | Self::OwnNbd => Some(Self::LibrbdCache),
            Self::CephEmbed | Self::CephNbd => Some(Self::Librbd),
            Self::LibrbdCache | Self::Librbd => None,
        }
    }

    /// True if the paper's gains (Fig. 13) are of such a pair: a client and its peer on the same
    /// cluster. A volume of our own nodes is other storage.
    pub fn has_gain(self) -> bool {
        matches!(self, Self::CephEmbed | Self::CephNbd)
    }

    /// What it is, for the report.
    pub fn about(self) -> &'static str {
        match self {
            Self::OwnEmbed => "ours: a volume of our own nodes, in the process of the load (embed)",
            Self::OwnNbd => "ours: the same volume behind NBD (unix socket), and fio's engine nbd",
            Self::CephEmbed => "ours: our client of Ceph, in the process of the load (embed)",
            Self::CephNbd => "ours: our client of Ceph behind NBD (unix socket), fio's engine nbd",
            Self::LibrbdCache => {
                "fio's engine rbd: librbd in fio's process, rbd_cache=true (writethrough, 32 MiB), \
                 read-ahead without an end"
            }
            Self::Librbd => "fio's engine rbd: librbd in fio's process, rbd_cache=false",
        }
    }

    /// The same contender in `bench rbd`.
    fn in_rbd(self) -> Option<ceph::Contender> {
        match self {
            Self::OwnEmbed | Self::OwnNbd => None,
            Self::CephEmbed => Some(ceph::Contender::Embed),
            Self::CephNbd => Some(ceph::Contender::Nbd),
            Self::LibrbdCache | Self::Librbd => Some(ceph::Contender::Librbd),
        }
    }

    /// The cache of librbd, for the contenders that have one.
    fn librbd_cache(self) -> LibrbdCache {
        match self {
            Self::LibrbdCache => LibrbdCache::Reads,
            _ => LibrbdCache::Off,
        }
    }

    /// What differs from the paper's set-up.
    pub fn differs(self) -> Vec<&'static str> {
        let mut all = vec![
            "no FPGA: placement, coding and network are software",
            "network: loopback or none; the paper has 10 GbE, 9.2 Gb/s measured",
            "no kernel NBD client and no page cache of the client: fio speaks NBD or librbd itself",
        ];
        all.push(match self {
            Self::OwnEmbed | Self::OwnNbd => {
                "cluster: 8 nodes of ours in one process, on one file system through the page \
                 cache; the paper has Ceph with 8 drives (HDDs, an SSD in Fig. 7)"
            }
            _ => {
                "cluster: the one that was named, all daemons and clients on their machines; the \
                 paper has Ceph 15.2.16 with 8 drives (HDDs, an SSD in Fig. 7)"
            }
        });
        all.push(match self {
            Self::OwnEmbed | Self::CephEmbed => "no NBD: the store is in the process of the load",
            Self::LibrbdCache | Self::Librbd => {
                "no NBD: the paper's software baseline has NBD in the way"
            }
            _ => "NBD over a unix socket; the paper's goes through the kernel",
        });
        all.push(match self {
            Self::OwnEmbed | Self::OwnNbd => {
                "caches: ours of 32 MiB and read-ahead, beside librbd with rbd_cache=true, \
                 writethrough, 32 MiB, and its read-ahead; the paper names an LRU cache of 32 MiB"
            }
            Self::LibrbdCache => {
                "caches: rbd_cache=true, writethrough, 32 MiB, and read-ahead; the paper names an \
                 LRU cache of 32 MiB"
            }
            _ => {
                "caches: none and no read-ahead, in librbd by rbd_cache=false; the paper has an \
                 LRU cache of 32 MiB with the hardware and without it"
            }
        });
        all
    }
}

impl Entrant for Who {
    fn name(self) -> &'static str {
        match self {
            Self::OwnEmbed => "own-embed",
            Self::OwnNbd => "own-nbd",
            Self::CephEmbed => "ceph-embed",
            Self::CephNbd => "ceph-nbd",
            Self::LibrbdCache => "librbd-cache",
            Self::Librbd => "librbd",
        }
    }

    fn is_ours(self) -> bool {
        self.peer().is_some()
    }
}

/// A volume of our own nodes. Dropping this removes it; it must not be open then.
pub struct Own {
    program: PathBuf,
    folder: PathBuf,
    sockets: PathBuf,
    name: String,
    cores: u16,
    commands: Vec<String>,
}

impl Own {
    /// Makes the pool and its volume. `name` is unique in the run.
    ///
    /// # Errors
    /// The pool cannot be made.
    pub fn make(pool: &BenchPool, name: &str, setup: &Setup) -> anyhow::Result<Self> {
        let folder = setup.files.join(name);
        let made = pool.make(&setup.program, &folder, setup.size_bytes)?;
        let files = setup.files.display().to_string();
        let commands = made.iter().map(|words| shown(words).replace(&files, "DIR")).collect();
        Ok(Self {
            program: setup.program.clone(),
            folder,
            sockets: setup.sockets.clone(),
            name: name.to_owned(),
            cores: setup.cores,
            commands,
        })
    }

    /// The volume in the process of the load.
    pub fn embedded(&self) -> Subject {
        let target = volume_of(&self.folder);
        let mut commands = self.commands.clone();
        commands.push(format!("fieldstone bench {GENERATE}, with DIR/{}/v in it", self.name));
        let client = Client::InProcess { program: self.program.clone(), target };
        Subject { client, server: None, commands }
    }

    /// The volume behind NBD.
    ///
    /// # Errors
    /// The server does not start.
    pub fn served(&self) -> anyhow::Result<Subject> {
        self.served_by(self.cores, &[])
    }

    /// The volume behind NBD, by a server on this many cores with more options.
    ///
    /// # Errors
    /// The server does not start.
    pub fn served_by(&self, cores: u16, options: &[&str]) -> anyhow::Result<Subject> {
        let socket = self.sockets.join(format!("{}.sock", self.name));
        let (nbd, cores) = (format!("unix:{}", socket.display()), cores.to_string());
        let mut command = Command::new(&self.program);
        let target = volume_of(&self.folder);
        let words = ["serve", &target, "--nbd", &nbd, "--cores", &cores];
        command.args(words).args(options);
        let log = self.sockets.join(format!("{}.log", self.name));
        let server = Server::spawn(command, &log, |said| said.contains("serving "))?;
        let mut commands = self.commands.clone();
        commands.push(format!(
            "fieldstone serve DIR/{name}/v --nbd unix:DIR/{name}.sock --cores {cores}",
            name = self.name
        ));
        let client = Client::Fio(FioTarget::Nbd(socket));
        Ok(Subject { client, server: Some(server), commands })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // What is left is removed with the folder of the run, which reports errors.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The settings of all contenders.
pub struct Setup {
    /// The path of this program.
    pub program: PathBuf,
    /// The folder for files.
    pub files: PathBuf,
    /// The folder for sockets and logs. Its path is short.
    pub sockets: PathBuf,
    /// Size of each device.
    pub size_bytes: u64,
    /// Cores of our servers.
    pub cores: u16,
    /// The CPUs of clients of a cluster; all without a list.
    pub cpus: Option<Vec<usize>>,
}

impl Setup {
    /// The same for a client of a cluster, on this many cores.
    pub fn ceph(&self, who: Who, cores: u16) -> ceph::Setup {
        ceph::Setup {
            program: self.program.clone(),
            folder: self.sockets.clone(),
            cores,
            cpus: self.cpus.clone(),
            librbd_cache: who.librbd_cache(),
        }
    }
}

/// Fails with the reason if a contender cannot use a cluster here.
///
/// # Errors
/// What is missing.
pub fn check_ceph(who: Who, setup: &Setup) -> anyhow::Result<()> {
    who.in_rbd().map_or(Ok(()), |contender| setup.ceph(who, setup.cores).check(contender))
}

/// Runs a load on an image of a cluster, on this many cores.
///
/// # Errors
/// The contender is none of a cluster, or an access fails.
pub fn run_ceph(
    who: Who,
    setup: &Setup,
    cores: u16,
    place: &Place,
    run: Run,
) -> anyhow::Result<Measured> {
    let contender = who.in_rbd().context("it uses no cluster")?;
    let embedded = contender == ceph::Contender::Embed;
    ensure!(run.jobs == 1 || !embedded, "a device in the client's process has one job");
    // What the start costs matters to CPU time alone.
    Ok(setup.ceph(who, cores).run(contender, place, run, &Usage::default())?.speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gain or a ratio compares like with like: caches and read-ahead are on both sides, or on
    /// neither.
    #[test]
    fn a_peer_has_the_same_caches() {
        for who in Who::ALL {
            let Some(peer) = who.peer() else { continue };
            assert!(!peer.is_ours());
            let has_cache = !who.needs_cluster();
            assert_eq!(peer.librbd_cache() == LibrbdCache::Reads, has_cache, "{who:?}");
            assert_eq!(who.has_gain(), who.needs_cluster(), "a gain is over the same cluster");
        }
    }

    #[test]
    fn contenders_say_what_they_are_and_what_differs() {
        let mut names: Vec<&str> = Who::ALL.map(Entrant::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Who::ALL.len());
        for who in Who::ALL {
            assert_eq!(who.is_ours(), who.about().starts_with("ours: "));
            assert_eq!(who.needs_cluster(), who.in_rbd().is_some());
            let differs = who.differs();
            let words = ["FPGA", "network", "cluster", "NBD", "caches", "read-ahead", "rbd_cache"];
            for word in words {
                assert!(differs.iter().any(|line| line.contains(word)), "{word} of {who:?}");
            }
        }
    }
}
