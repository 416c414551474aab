//! `fieldstone bench msr-throughput`: the MSR engine paper's figure of throughput, drawn again.
//!
//! The paper compares its FPGA engine for the Zigzag code {6,4,8} with a CPU and a GPU, over the
//! size of objects (Fig. 5a). This benchmark does so with our software, our program of an NVIDIA
//! GPU and our device, and puts the numbers beside them that the paper prints. Encode makes two
//! parities of four data shards. Rebuild, the paper's decode, makes one data shard again from half
//! of each of the others.
//!
//! | file | one idea |
//! |---|---|
//! | `case` | works, sizes, contenders, points |
//! | `cpu`, `gpu`, `fpga` | the measurements |
//! | `recorded` | points of a GPU that were measured elsewhere |
//! | `paper` | the paper's numbers, and what follows from them |
//! | `text` | rows and report |
//! | `draw` | the page |

mod case;
mod cpu;
mod draw;
mod fpga;
mod gpu;
mod paper;
mod recorded;
mod text;

use anyhow::{Context, bail};
use fieldstone_console::signals::Signals;
use fieldstone_gpu::driver::DriverError;
use fieldstone_gpu::{Card, LoadError};

use self::case::{Findings, Who};
use super::{machine, report};

/// Fails if the run was interrupted.
type Check<'a> = &'a dyn Fn() -> anyhow::Result<()>;

/// The name of the benchmark.
const BENCH: &str = "msr-throughput";

/// Runs the benchmark.
///
/// # Errors
/// The run was interrupted, a contender computes wrong bytes, or a file cannot be written.
pub fn run(args: &super::Args) -> anyhow::Result<()> {
    let signals = Signals::install()?;
    let mut setting = vec![report::made_by()];
    setting.extend(machine::describe());
    let mut found = Findings::default();
    cpu::measure(&signals, &mut found)?;
    let check: Check<'_> = &|| {
        if signals.arrived() {
            bail!("interrupted; nothing is reported of a run that is not complete");
        }
        Ok(())
    };
    gpu(check, &mut found)?;
    fpga::measure(check, &mut found)?;
    setting.extend(found.notes.iter().cloned());
    setting.push(format!("load at the end: {}", machine::load()));
    let page = || super::chart::page(draw::TITLE, &draw::body(&found, &setting));
    report::publish(args, &text::report(&found, &setting), &text::rows(&found), page)
}

/// The points of the GPU: measured if there is a card, otherwise recorded ones.
fn gpu(check: Check<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let card = match Card::open(0) {
        Ok(card) => card,
        Err(error) => return recorded::add(&error.to_string(), found),
    };
    let info = card.info();
    found.notes.push(format!(
        "gpu: {}, driver {}, {} multiprocessors, up to {} MHz; bytes in its memory before and \
         after, copies larger than its cache of {}; small objects in batches of {} per launch",
        info.name,
        info.driver,
        info.multiprocessors,
        info.clock_khz / 1000,
        fieldstone_units::size(info.cache_bytes),
        fieldstone_units::size(case::BATCH_BYTES as u64)
    ));
    match gpu::measure(&card, check, found) {
        // The other contenders still make a figure.
        Err(error) if error.is::<DriverError>() || error.is::<LoadError>() => {
            found.absent.push(("GPU".to_owned(), format!("{}: {error:#}", info.name)));
            Ok(())
        }
        done => done.with_context(|| info.name.clone()),
    }
}

/// What a contender is, for readers.
fn explanation(who: Who) -> &'static str {
    match who {
        Who::CpuOne => "our software, one core",
        Who::CpuAll => "our software, all cores, each with its own objects",
        Who::GfOne => "gf-complete here, one call per term (the paper's method), one core",
        Who::GfAll => "the same on all cores",
        Who::Gpu => "our program of a GPU; objects below 4 MiB in batches of 4 MiB",
        Who::GpuSingle => "the same, one launch per object, launches back to back",
        Who::Fpga => {
            "our device's only codes engine, simulated, at 151 MHz: the lower end of `fpga \
             report`'s estimate, not routed; small objects in one operation of at most 16 jobs \
             and 4 MiB"
        }
        Who::FpgaPaperClock => "the same cycles at 300 MHz, the paper's clock",
        Who::FpgaSingle => "at 151 MHz, one operation per object",
        Who::FpgaSinglePaperClock => "at 300 MHz, one operation per object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_in_words_are_the_clocks() {
        assert!(explanation(Who::Fpga).contains(&format!("{} MHz", fpga::ESTIMATED_MHZ)));
        let paper = explanation(Who::FpgaPaperClock);
        assert!(paper.contains(&format!("{} MHz", paper::CLOCK_MHZ)));
    }
}
