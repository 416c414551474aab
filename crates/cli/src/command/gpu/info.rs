//! `fieldstone gpu info`: describes the card and its driver.

use fieldstone_gpu::Card;
use serde_json::json;

/// Options of `gpu info`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The number of the card.
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `gpu info`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let card = Card::open(args.gpu)?;
    let info = card.info();
    if args.json {
        let value = json!({
            "gpu": args.gpu,
            "name": info.name,
            "driver": info.driver,
            "interface": info.interface,
            "capability": info.capability,
            "multiprocessors": info.multiprocessors,
            "clock_khz": info.clock_khz,
            "memory_bytes": info.memory_bytes,
            "cache_bytes": info.cache_bytes,
            "shared_bytes_max": info.shared_bytes_max,
        });
        print_line!("{value}");
        return Ok(());
    }
    let size = fieldstone_units::size;
    print_line!("card         {}, number {}", info.name, args.gpu);
    print_line!("driver       {}, CUDA {}", info.driver, info.interface);
    print_line!(
        "processors   {} multiprocessors, compute capability {}, up to {} MHz",
        info.multiprocessors,
        info.capability,
        info.clock_khz / 1000
    );
    print_line!(
        "memory       {}, cache {}, {} shared by a block at most",
        size(info.memory_bytes),
        size(info.cache_bytes),
        size(u64::from(info.shared_bytes_max))
    );
    Ok(())
}
