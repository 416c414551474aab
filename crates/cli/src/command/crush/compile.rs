//! `fieldstone crush compile`: makes a binary map of a text map.

use std::path::PathBuf;

use anyhow::bail;
use clap::ValueEnum;
use fieldstone_crush::binary::{self, Release};

use super::{file, load};

/// Options of `crush compile`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The text map, or a binary map or an OSDMap whose map is to be written in another form; - for
    /// standard input.
    #[arg(value_name = "MAP")]
    map: PathBuf,
    /// The file to make; - for standard output.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// The release of Ceph whose form is written. [default: 16, which all releases read, unless the
    /// map needs 20]
    #[arg(long, value_name = "CEPH", value_enum)]
    release: Option<CephRelease>,
}

/// The releases whose forms differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CephRelease {
    /// Ceph 12 to 18.
    #[value(name = "16")]
    V16,
    /// Ceph 19 and later.
    #[value(name = "20")]
    V20,
}

/// Runs `crush compile`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let map = load::load_map(&args.map)?;
    load::warn_of_signed_weights(&map);
    let min_release = Release::min_for(&map);
    let release = match args.release {
        None => min_release,
        Some(CephRelease::V20) => Release::V19,
        Some(CephRelease::V16) if min_release > Release::V16 => bail!(
            "{}: the map has MSR rules or tunables, which Ceph knows since release 19; compile it \
             with --release 20",
            file::shown(&args.map),
        ),
        Some(CephRelease::V16) => Release::V16,
    };
    file::write(&args.output, &binary::encode(&map, release))
}
