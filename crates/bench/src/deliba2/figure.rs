//! The figures and tables of the paper that this benchmark draws again.

use super::case::{ALL_SIZES, BAR_SIZES, Mode, OTHER_SIZES};
use super::contender::Who;
use super::paper::{Of, Quantity};
use super::rows::shows;

/// A grid of modes, sizes and patterns, measured once and shown by one figure or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// How the data is protected.
    pub modes: &'static [Mode],
    /// Bytes of one access.
    pub sizes: &'static [u64],
    /// What the figure shows.
    pub quantities: &'static [Quantity],
    /// The set-up whose numbers the figure has.
    pub of: Of,
}

/// What has to be measured for a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Speeds over block sizes and patterns.
    Grid(Grid),
    /// Where the time of one access goes.
    Stages,
    /// Speeds over cores.
    Cores,
}

/// A figure or table of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The name of the benchmark.
    pub name: &'static str,
    /// The name in the paper.
    pub title: &'static str,
    /// What it shows, for the list of benchmarks.
    pub about: &'static str,
    /// What has to be measured.
    pub content: Content,
}

/// The name of the benchmark that measures everything once and draws all figures.
pub const ALL: &str = "deliba2";
/// What that benchmark does.
pub const ALL_ABOUT: &str = "all figures and tables of DeLiBA-2 below, measured in one run";

const REPLICATION: &[Mode] = &[Mode::Replication];
const EC: &[Mode] = &[Mode::Ec];

const fn grid(
    modes: &'static [Mode],
    sizes: &'static [u64],
    quantities: &'static [Quantity],
    of: Of,
) -> Content {
    Content::Grid(Grid { modes, sizes, quantities, of })
}

/// All figures and tables of block devices, in the order of the paper.
pub const FIGURES: [Figure; 11] = [
    Figure {
        name: "deliba2-fig4",
        title: "Fig. 4",
        about: "replication, 4k-512k: throughput, IOPS, latency, beside the paper's software",
        content: grid(
            REPLICATION,
            &BAR_SIZES,
            &[Quantity::Throughput, Quantity::Iops, Quantity::Latency],
            Of::Software,
        ),
    },
    Figure {
        name: "deliba2-fig5",
        title: "Fig. 5",
        about: "erasure coding, 4k-512k: throughput and latency, beside the paper's software",
        content: grid(EC, &BAR_SIZES, &[Quantity::Throughput, Quantity::Latency], Of::Software),
    },
    Figure {
        name: "deliba2-fig6",
        title: "Fig. 6",
        about: "where the latency of one 4k access goes, by the paper's stages",
        content: Content::Stages,
    },
    Figure {
        name: "deliba2-table1",
        title: "Table 1",
        about: "throughput of 16k, 32k, 256k, beside the paper's software",
        content: grid(&Mode::ALL, &OTHER_SIZES, &[Quantity::Throughput], Of::Software),
    },
    Figure {
        name: "deliba2-fig7",
        title: "Fig. 7",
        about: "4k sequential reads and writes over cores, 64 in flight on each",
        content: Content::Cores,
    },
    Figure {
        name: "deliba2-table3",
        title: "Table 3",
        about: "latency of 4k and 128k, beside the paper's software and hardware",
        content: grid(&Mode::ALL, &[4 << 10, 128 << 10], &[Quantity::Latency], Of::Hardware),
    },
    Figure {
        name: "deliba2-fig11",
        title: "Fig. 11",
        about: "replication, 4k-512k: throughput and IOPS, beside the paper's hardware",
        content: grid(
            REPLICATION,
            &BAR_SIZES,
            &[Quantity::Throughput, Quantity::Iops],
            Of::Hardware,
        ),
    },
    Figure {
        name: "deliba2-table4",
        title: "Table 4",
        about: "throughput of 16k, 32k, 256k, beside the paper's hardware",
        content: grid(&Mode::ALL, &OTHER_SIZES, &[Quantity::Throughput], Of::Hardware),
    },
    Figure {
        name: "deliba2-fig12",
        title: "Fig. 12",
        about: "erasure coding, 4k-512k: throughput and IOPS, beside the paper's hardware",
        content: grid(EC, &BAR_SIZES, &[Quantity::Throughput, Quantity::Iops], Of::Hardware),
    },
    Figure {
        name: "deliba2-table5",
        title: "Table 5",
        about: "standard deviations of the throughput, 4k-512k",
        content: grid(&Mode::ALL, &ALL_SIZES, &[Quantity::Deviation], Of::Hardware),
    },
    Figure {
        name: "deliba2-fig13",
        title: "Fig. 13",
        about: "gains of our client of Ceph over librbd, 4k-512k; needs a cluster",
        content: grid(
            &Mode::ALL,
            &ALL_SIZES,
            &[Quantity::ThroughputGain, Quantity::IopsGain],
            Of::Hardware,
        ),
    },
];

/// The figures of a benchmark's name.
pub fn of_name(name: &str) -> Vec<&'static Figure> {
    FIGURES.iter().filter(|figure| name == ALL || figure.name == name).collect()
}

/// The sizes that the figures need in a mode, in order.
pub fn sizes(figures: &[&Figure], mode: Mode) -> Vec<u64> {
    let needs = |size: &u64| {
        figures.iter().any(|figure| match figure.content {
            Content::Grid(grid) => grid.modes.contains(&mode) && grid.sizes.contains(size),
            _ => false,
        })
    };
    ALL_SIZES.into_iter().filter(needs).collect()
}

/// The contenders that the figures need in a mode: those that they show, and their peers.
pub fn contenders(figures: &[&Figure], mode: Mode) -> Vec<Who> {
    let is_shown = |who: Who| {
        figures.iter().any(|figure| match figure.content {
            Content::Grid(grid) => {
                grid.modes.contains(&mode)
                    && grid.quantities.iter().any(|quantity| shows(*quantity, who))
            }
            _ => false,
        })
    };
    let is_peer =
        |who: Who| Who::ALL.into_iter().any(|ours| ours.peer() == Some(who) && is_shown(ours));
    Who::ALL.into_iter().filter(|who| is_shown(*who) || is_peer(*who)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_figure_or_table_and_number() {
        let mut names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        for figure in FIGURES {
            let (kind, number) = figure.title.split_once(' ').expect("two words");
            let kind = if kind == "Fig." { "fig" } else { "table" };
            assert_eq!(figure.name, format!("deliba2-{kind}{number}"));
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FIGURES.len());
    }

    #[test]
    fn a_figure_of_gains_needs_the_cluster_alone() {
        let of = |name| contenders(&of_name(name), Mode::Replication);
        assert_eq!(of("deliba2-fig13"), [Who::CephEmbed, Who::CephNbd, Who::Librbd]);
        assert_eq!(of("deliba2-table1"), Who::ALL);
        assert_eq!(of(ALL), Who::ALL);
        assert!(of("deliba2-fig5").is_empty(), "it has no replication");
    }

    #[test]
    fn figures_share_their_measurements() {
        assert_eq!(of_name(ALL).len(), FIGURES.len());
        let both = of_name("deliba2-table1");
        assert_eq!(sizes(&both, Mode::Ec), OTHER_SIZES);
        let four = of_name("deliba2-fig4");
        assert_eq!(sizes(&four, Mode::Replication), BAR_SIZES);
        assert_eq!(sizes(&four, Mode::Ec), [0; 0]);
        assert_eq!(sizes(&of_name(ALL), Mode::Ec), ALL_SIZES);
        assert!(sizes(&of_name("deliba2-fig6"), Mode::Replication).is_empty());
        assert!(of_name("deliba2-fig8").is_empty());
    }
}
