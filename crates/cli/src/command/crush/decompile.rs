//! `fieldstone crush decompile`: makes a text map of a binary map.

use std::path::PathBuf;

use fieldstone_crush::text;

use super::{file, load};

/// Options of `crush decompile`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The binary map or OSDMap, or a text map to be written again; - for standard input.
    #[arg(value_name = "MAP")]
    map: PathBuf,
    /// The file to make; - for standard output.
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

/// Runs `crush decompile`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let map = load::load_map(&args.map)?;
    load::warn_of_signed_weights(&map);
    file::write(&args.output, text::print(&map).as_bytes())
}
