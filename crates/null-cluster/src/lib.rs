//! A Ceph cluster in memory, as a process: sockets around the
//! [cluster model](fieldstone_cluster_model).
//!
//! It has one monitor and up to 64 OSDs, without disks, replication and recovery. Unmodified
//! clients connect over TCP on loopback: librados, librbd, and this project's own client. So it
//! measures a client alone, and it shows what a client does when answers come late, twice, damaged
//! or not at all.
//!
//! ```text
//!   client.admin ---- mon.a    core 0    maps, authentication, commands
//!              \----- osd.0    core 0    requests on objects
//!               \---- osd.1    core 1        all OSDs share one store
//!                \--- osd.2    core 0
//! ```
//!
//! **Threads.** Each core is a thread with one reactor. OSD *i* belongs to core *i* modulo the
//! number of cores, and the monitor belongs to core 0. The model is one state machine behind one
//! lock. A core takes the lock once for each turn of its reactor, carries out everything that the
//! turn has brought, and sends the answers after it has given the lock back: one send for each
//! connection. A message for a connection of another core goes through that core's mailbox.
//!
//! **Failures.** The cluster lives in memory only, and ends with the process. A connection that
//! breaks the protocol is closed. Faults on purpose are in [`Faults`].

mod core;
mod faults;
mod folder;
mod frames;
mod images;
mod link;
mod maps;
mod shared;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use fieldstone_cluster_model::wire::WireCluster;
use fieldstone_rados::auth::server::KeyServer;
use fieldstone_rados::auth::{CryptoKey, Entity};
use fieldstone_rados::encoding::Time;
use fieldstone_uring::{Listener, Sender, monotonic_now};

pub use faults::Faults;

use crate::core::{Access, Mail, Place};
use crate::maps::Maps;
use crate::shared::Shared;

/// The most OSDs of a cluster.
pub const OSDS_MAX: u32 = 64;
/// The most cores of a cluster.
pub const CORES_MAX: usize = 64;
/// The most placement groups of a pool.
pub const PGS_MAX: u32 = 32_768;

/// How clients prove who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// By a key.
    #[default]
    Cephx,
    /// Not at all.
    None,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Method::Cephx => "cephx",
            Method::None => "none",
        }
    }
}

/// An image that the cluster has from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOption {
    /// Its pool: one of [`Options::pools`].
    pub pool: String,
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
}

/// What a cluster is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder for `ceph.conf` and the keyring. It is made if it is missing.
    pub folder: PathBuf,
    /// Number of OSDs: 1 to [`OSDS_MAX`].
    pub osds: u32,
    /// The monitor's port; 0 for any free one. OSDs get free ports.
    pub port: u16,
    /// The pools.
    pub pools: Vec<String>,
    /// Placement groups of each pool: 1 to [`PGS_MAX`].
    pub pgs: u32,
    /// The images.
    pub images: Vec<ImageOption>,
    /// Number of threads: 1 to [`CORES_MAX`].
    pub cores: usize,
    /// How clients prove who they are.
    pub method: Method,
    /// What goes wrong.
    pub faults: Faults,
}

/// Why a cluster cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A number is too small or too large.
    #[error("{what} has to be 1 to {max}")]
    Range {
        /// The option.
        what: &'static str,
        /// The largest value.
        max: u64,
    },
    /// There are two pools of one name.
    #[error("the pool {0} is named twice")]
    Twice(String),
    /// A file or folder cannot be written.
    #[error("{path}: {reason}", path = path.display())]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// A port cannot be used.
    #[error("{0}")]
    Listen(String),
    /// An image cannot be made.
    #[error("the image {image}: {reason}")]
    Image {
        /// The image.
        image: String,
        /// The reason.
        reason: String,
    },
    /// The system refuses a thread, a ring or random numbers.
    #[error("the system refuses: {0}")]
    System(#[from] io::Error),
}

/// A running cluster. It ends when the value is dropped.
pub struct NullCluster {
    conf: PathBuf,
    monitor: SocketAddr,
    cores: Vec<(Sender<Mail>, JoinHandle<()>)>,
}

impl NullCluster {
    /// Starts a cluster. Clients can connect when this returns.
    ///
    /// # Errors
    /// [`StartError`] names the reason.
    pub fn start(options: &Options) -> Result<Self, StartError> {
        check(options)?;
        let folder = folder::make(&options.folder)?;
        let (monitor, monitor_listener) = bind(options.port)?;
        let mut osds = Vec::new();
        for _ in 0..options.osds {
            osds.push(bind(0)?);
        }
        let seed: [u8; 32] = random()?;
        let fsid = fsid(random()?);
        let mut pools = options.pools.clone();
        for image in &options.images {
            if !pools.contains(&image.pool) {
                pools.push(image.pool.clone());
            }
        }
        let number = u64::from_le_bytes(random()?);
        let mut store = images::store(&pools, options.pgs, &options.images, number)?;
        let now_s = seconds_since_1970();
        store.set_start(now_s.saturating_sub(monotonic_now().0 / 1_000_000_000));
        let sockets: Vec<SocketAddr> = osds.iter().map(|&(socket, _)| socket).collect();
        let monitors = maps::monitors(fsid, monitor, Time { seconds: now_s as u32, nanos: 0 });
        let maps = Maps::new(fsid, &sockets, &pools, options.pgs);
        let shared = Shared::new(WireCluster::new(store, monitors), maps);

        let key = (options.method == Method::Cephx).then(|| admin_key(seed));
        let access = Access { method: options.method, seed, key: key.clone() };
        let mut places: Vec<Vec<Place>> = (0..options.cores).map(|_| Vec::new()).collect();
        places[0].push(Place::monitor(monitor_listener, monitor));
        for (osd, (socket, listener)) in (0..).zip(osds) {
            places[osd as usize % options.cores].push(Place::osd(osd, listener, socket));
        }
        let cores = core::start(places, &shared, &access, &options.faults)?;
        let conf = folder::write(&folder, fsid, monitor, key.as_ref())?;
        Ok(Self { conf, monitor, cores })
    }

    /// The configuration file for clients.
    #[must_use]
    pub fn conf(&self) -> &Path {
        &self.conf
    }

    /// The address of the monitor.
    #[must_use]
    pub fn monitor(&self) -> SocketAddr {
        self.monitor
    }

    /// True if a core has ended by itself.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.cores.iter().any(|(_, thread)| thread.is_finished())
    }
}

impl Drop for NullCluster {
    fn drop(&mut self) {
        for (mail, _) in &self.cores {
            // A core that has ended needs no mail.
            let _ = mail.send(Mail::Stop);
        }
        for (_, thread) in self.cores.drain(..) {
            // A panic of a core was printed already.
            let _ = thread.join();
        }
    }
}

fn check(options: &Options) -> Result<(), StartError> {
    let ranges = [
        ("--osds", u64::from(options.osds), u64::from(OSDS_MAX)),
        ("--cores", options.cores as u64, CORES_MAX as u64),
        ("--pgs", u64::from(options.pgs), u64::from(PGS_MAX)),
    ];
    for (what, value, max) in ranges {
        if value == 0 || value > max {
            return Err(StartError::Range { what, max });
        }
    }
    for (index, pool) in options.pools.iter().enumerate() {
        if options.pools[..index].contains(pool) {
            return Err(StartError::Twice(pool.clone()));
        }
    }
    Ok(())
}

fn bind(port: u16) -> Result<(SocketAddr, Listener), StartError> {
    let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener =
        Listener::bind(&wanted.into()).map_err(|error| StartError::Listen(error.to_string()))?;
    match *listener.address() {
        fieldstone_uring::Address::Tcp { port, .. } => {
            Ok((SocketAddr::from((Ipv4Addr::LOCALHOST, port)), listener))
        }
        fieldstone_uring::Address::Unix(_) => unreachable!("a TCP address was asked for"),
    }
}

/// The key of `client.admin`: as every core's key server draws it from the seed.
fn admin_key(seed: [u8; 32]) -> CryptoKey {
    KeyServer::new(seed).create_entity(Entity::client("admin"))
}

/// Marks random bytes as a random UUID.
fn fsid(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Bytes from the system's source of randomness.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}
