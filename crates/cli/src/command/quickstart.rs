//! `fieldstone quickstart`: a demonstration in one minute.

use std::path::PathBuf;

use anyhow::bail;
use fieldstone_codes::Profile;

use super::accelerator::Accel;
use crate::quickstart::{Options, run as run_quickstart};
use fieldstone_units as units;

/// Options of `quickstart`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The folder to use, empty or new. [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The code of the volume: rs:K+M, copies:N, zigzag:K+M, clay:K+M or another of Ceph's codes,
    /// such as rs-van:K+M.
    #[arg(long, value_name = "CODE", default_value = "rs:4+2")]
    code: Profile,
    /// The engine that computes placements and codes.
    #[arg(long, value_enum, default_value_t = Accel::Cpu)]
    accel: Accel,
    /// Size of the volume. [default: 256M, or 16M with a simulated device]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    size: Option<u64>,
    /// Keep the pool at the end.
    #[arg(long)]
    keep: bool,
}

/// Runs `quickstart`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    const SMALLEST: u64 = 1 << 20;
    // A build without the device fails here, before anything is made.
    drop(args.accel.start()?);
    let size_bytes = args.size.unwrap_or(match args.accel {
        Accel::Cpu => 256 << 20,
        Accel::Rtl => 16 << 20,
        Accel::Gpu => 256 << 20,
    });
    if size_bytes < SMALLEST || !size_bytes.is_multiple_of(4096) {
        bail!("--size must be a multiple of 4096 and at least 1M");
    }
    if args.code.m() == 0 {
        bail!("{} survives no loss, so there is nothing to show; try rs:4+2", args.code);
    }
    run_quickstart(&Options {
        dir: args.dir.clone(),
        profile: args.code,
        accel: args.accel,
        size_bytes,
        keep: args.keep,
    })
}
