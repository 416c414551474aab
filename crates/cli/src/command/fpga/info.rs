//! `fieldstone fpga info`: describes the device and its build parameters.

use fieldstone_fpga::regs::{MAX_FUNCTIONS, VERSION};
use fieldstone_fpga::simulated;
use serde_json::json;

/// Options of `fpga info`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `fpga info`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let device = simulated::start(None)?;
    let card = &device.card;
    let (build, partition) = (card.build(), card.partition());
    let (host_bytes, card_bytes, queue_sets) = card.free();
    let module = partition.module.map_or("unknown", |module| module.name()).to_lowercase();
    let state = partition.state.map_or("unknown", |state| state.name()).to_lowercase();
    if args.json {
        let value = json!({
            "device": "simulated",
            "version": VERSION,
            "functions": MAX_FUNCTIONS,
            "function": card.function(),
            "queue_sets": queue_sets,
            "host_bytes": host_bytes,
            "card_bytes": card_bytes,
            "item_lanes": build.item_lanes,
            "contexts": build.contexts,
            "code_lanes": build.code_lanes,
            "code_units": build.code_units,
            "lane_beats": build.lane_beats,
            "program_ops": build.program_ops,
            "module": module,
            "partition": state,
            "swaps": partition.swaps,
        });
        print_line!("{value}");
        return Ok(());
    }
    let size = fieldstone_units::size;
    print_line!("device       simulated (Verilator), register map version {VERSION}");
    print_line!(
        "functions    {MAX_FUNCTIONS}; this is function {} with {queue_sets} queue sets",
        card.function()
    );
    print_line!("memory       {} of the host, {} of the card", size(host_bytes), size(card_bytes));
    print_line!(
        "placement    {} items hashed per cycle, {} mappings in flight",
        build.item_lanes,
        build.contexts
    );
    print_line!(
        "codes        {} units of {} operands, banks of {}, {} operations per program",
        build.code_units,
        build.code_lanes,
        size(64 * u64::from(build.lane_beats)),
        build.program_ops
    );
    print_line!("partition    module {module}, {state}, changed {} times", partition.swaps);
    Ok(())
}
