//! `fieldstone rados null-cluster`: a Ceph cluster in memory, for measurements of clients and for
//! tests of what they do when things go wrong.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use fieldstone_console::signals::Signals;
use fieldstone_null_cluster::{Faults, ImageOption, Method, NullCluster, Options};
use fieldstone_server::listen;
use fieldstone_units::{self as units, parse_size};

/// Options of `rados null-cluster`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The folder for ceph.conf and the keyring. It is made if it is missing.
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
    /// Number of OSDs, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 3)]
    osds: u32,
    /// The monitor's port on 127.0.0.1; 0 for any free one. OSDs get free ports.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// A pool; may be repeated. [default: rbd]
    #[arg(long, value_name = "NAME")]
    pool: Vec<String>,
    /// An image, empty at first; may be repeated. Its pool is made too.
    #[arg(long, value_name = "POOL/NAME:SIZE", value_parser = image)]
    image: Vec<ImageOption>,
    /// Placement groups of each pool.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pgs: u32,
    /// Number of threads. OSD i belongs to thread i modulo N, and the monitor to the first one.
    #[arg(long, value_name = "N", default_value_t = 1)]
    cores: usize,
    /// How clients prove who they are: cephx or none.
    #[arg(long, value_name = "METHOD", default_value = "cephx", value_parser = method)]
    auth: Method,
    /// The answers of an OSD come so many ms late; may be repeated.
    #[arg(long, value_name = "ID:MS", value_parser = slow_osd, help_heading = "Faults")]
    slow_osd: Vec<(u32, u64)>,
    /// A connection of an OSD breaks when it has sent so many bytes.
    #[arg(long, value_name = "BYTES", value_parser = parse_size, help_heading = "Faults")]
    drop_every: Option<u64>,
    /// Of every N sends of an OSD, the last ends in its middle, and so does the connection.
    #[arg(long, value_name = "N", help_heading = "Faults")]
    truncate_every: Option<u64>,
    /// OSDs send each answer twice.
    #[arg(long, help_heading = "Faults")]
    duplicate_reply: bool,
    /// Of every N sends of an OSD, the last has a wrong checksum.
    #[arg(long, value_name = "N", help_heading = "Faults")]
    wrong_crc: Option<u64>,
    /// Each second another OSD leads each placement group, and the monitor tells it only to a
    /// client that asks.
    #[arg(long, help_heading = "Faults")]
    stale_map: bool,
}

fn image(text: &str) -> Result<ImageOption, String> {
    let parts = text.split_once('/').and_then(|(pool, rest)| {
        let (name, size) = rest.rsplit_once(':')?;
        (!pool.is_empty() && !name.is_empty()).then_some((pool, name, size))
    });
    let Some((pool, name, size)) = parts else {
        return Err("write POOL/NAME:SIZE, for example rbd/disk:1G".to_owned());
    };
    let size_bytes = units::parse_size(size)?;
    Ok(ImageOption { pool: pool.to_owned(), name: name.to_owned(), size_bytes })
}

fn method(text: &str) -> Result<Method, String> {
    match text {
        "cephx" => Ok(Method::Cephx),
        "none" => Ok(Method::None),
        _ => Err("it is cephx or none".to_owned()),
    }
}

fn slow_osd(text: &str) -> Result<(u32, u64), String> {
    let parts = text.split_once(':').and_then(|(osd, ms)| {
        let osd = osd.strip_prefix("osd.").unwrap_or(osd);
        Some((osd.parse().ok()?, ms.parse().ok()?))
    });
    parts.ok_or_else(|| "write ID:MS, for example 0:20".to_owned())
}

impl Args {
    fn options(&self) -> Options {
        let mut pools = self.pool.clone();
        if pools.is_empty() && self.image.is_empty() {
            pools.push("rbd".to_owned());
        }
        Options {
            folder: self.folder.clone(),
            osds: self.osds,
            port: self.port,
            pools,
            pgs: self.pgs,
            images: self.image.clone(),
            cores: self.cores,
            method: self.auth,
            faults: Faults {
                slow_osds: self.slow_osd.clone(),
                drop_every_bytes: self.drop_every,
                truncate_every: self.truncate_every,
                duplicate_replies: self.duplicate_reply,
                wrong_crc_every: self.wrong_crc,
                stale_maps: self.stale_map,
            },
        }
    }
}

/// Runs `rados null-cluster`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    const STEP: Duration = Duration::from_secs(1);
    let signals = Signals::install_for_server()?;
    listen::raise_open_files();
    let cluster = NullCluster::start(&args.options())?;
    let (conf, monitor) = (cluster.conf().display(), cluster.monitor());
    print_line!("ready: monitor {monitor}, configuration {conf}");
    std::io::stdout().flush()?;
    while !signals.wait(STEP) {
        if cluster.has_failed() {
            bail!("a thread of the cluster has ended by itself; see the messages above");
        }
    }
    Ok(())
}
