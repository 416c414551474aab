//! `fieldstone bench nic-fig4` and its siblings: the figures of the network-accelerated DFS paper,
//! drawn again by the model of `crates/nic`.
//!
//! Nothing here is measured on the machine that runs it: every number is picoseconds of the model,
//! and the same on every machine. The rows say so (`modelled`). A number that the paper prints is
//! beside ours with its place; the text of the paper prints no points of its plots, so there are
//! none.
//!
//! | file | one idea |
//! |---|---|
//! | `figure` | panels, lines, statements, rows |
//! | `measure` | measurements that several figures share |
//! | `writes` | Figs. 4, 6, 7 |
//! | `replication` | Figs. 9, 10, 11 and Table I |
//! | `coding` | Figs. 15, 16 and Table II |
//! | `firmware` | Tables I and II, by our firmware on the model of a core |
//! | `text`, `draw` | report and page |
//! | `documents` | tests: the numbers of the documents are those of the figures |

mod coding;
#[cfg(test)]
mod documents;
mod draw;
mod figure;
mod firmware;
mod measure;
mod replication;
mod text;
mod writes;

use std::fs;
use std::path::Path;

use anyhow::Context;
use fieldstone_console::stderr;

use self::figure::Figure;
use super::{Args, Benchmark, chart, row};

/// The paper's name in reports.
const PAPER: &str = "the paper: Building Blocks for Network-Accelerated Distributed File Systems";

/// Concurrent writes.
pub const FIG4: Benchmark = Benchmark {
    name: "nic-fig4",
    about: "modelled SmartNIC: concurrent writes and the memory of their descriptors",
    run: |args| report(args, &writes::fig4()),
};
/// Latency of writes.
pub const FIG6: Benchmark = Benchmark {
    name: "nic-fig6",
    about: "modelled SmartNIC: latency of raw, RPC, RPC+RDMA and sPIN writes",
    run: |args| report(args, &writes::fig6()),
};
/// Steps of a packet.
pub const FIG7: Benchmark = Benchmark {
    name: "nic-fig7",
    about: "modelled SmartNIC: the steps of a packet",
    run: |args| report(args, &writes::fig7()),
};
/// Replication.
pub const FIG9: Benchmark = Benchmark {
    name: "nic-fig9",
    about: "modelled SmartNIC: latency and goodput of replicated writes",
    run: |args| report(args, &replication::fig9()),
};
/// Replication factors.
pub const FIG10: Benchmark = Benchmark {
    name: "nic-fig10",
    about: "modelled SmartNIC: latency over the replication factor",
    run: |args| report(args, &replication::fig10()),
};
/// Durations of handlers.
pub const FIG11: Benchmark = Benchmark {
    name: "nic-fig11",
    about: "modelled SmartNIC: durations of replication handlers under full load",
    run: |args| report(args, &replication::fig11()),
};
/// Erasure coding.
pub const FIG15: Benchmark = Benchmark {
    name: "nic-fig15",
    about: "modelled SmartNIC: latency and bandwidth of streamed erasure coding",
    run: |args| report(args, &coding::fig15()),
};
/// Handlers of erasure coding.
pub const FIG16: Benchmark = Benchmark {
    name: "nic-fig16",
    about: "modelled SmartNIC: durations of coding handlers, and the cores that they need",
    run: |args| report(args, &coding::fig16()),
};

/// Handlers of replication.
pub const TABLE1: Benchmark = Benchmark {
    name: "nic-table1",
    about: "our SmartNIC firmware on modelled cores: instructions and time of replication handlers",
    run: |args| report(args, &firmware::table1()?),
};
/// Handlers of erasure coding.
pub const TABLE2: Benchmark = Benchmark {
    name: "nic-table2",
    about: "our SmartNIC firmware on modelled cores: instructions and time of coding handlers",
    run: |args| report(args, &firmware::table2()?),
};

/// Prints the report, and writes rows and page.
fn report(args: &Args, figure: &Figure) -> anyhow::Result<()> {
    let setting = [
        format!(
            "made by: fieldstone {} (commit {})",
            std::env::args().skip(1).collect::<Vec<_>>().join(" "),
            row::COMMIT
        ),
        PAPER.to_owned(),
        "constants and their sources: crates/nic/src/network/constants.rs".to_owned(),
    ];
    let text = text::report(figure, &setting);
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => stderr::print(format_args!("{text}")),
        _ => print_text!("{text}"),
    }
    if let Some(path) = &args.json {
        row::write(path, &figure::rows(figure))?;
    }
    if let Some(path) = &args.html {
        let page = chart::page(figure.title, &draw::body(figure, &setting));
        fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
