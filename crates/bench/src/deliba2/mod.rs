//! `fieldstone bench deliba2-…`: the figures and tables of DeLiBA-2, drawn again.
//!
//! DeLiBA-2 puts an FPGA into the client of a Ceph cluster, behind the kernel's NBD client, and
//! compares it with the same client in software. This benchmark measures the same loads with this
//! project: on our own nodes, and on a Ceph cluster with our client beside librbd, the client that
//! the paper's software is made of. The paper's numbers stand beside ours as printed. They are of
//! another machine, network, cluster and of an FPGA, so no ratio of ours and the paper's is made:
//! `theirs` and `ratio` are of librbd, measured in the same run.
//!
//! One benchmark draws one figure; `deliba2` measures once and draws all. The text of the paper
//! that this project has lacks the charts, so most bars have no number of the paper.
//!
//! | file | one idea |
//! |---|---|
//! | `paper`, `paper.json` | the paper's numbers |
//! | `figure` | which figure shows what |
//! | `case` | modes, sizes, patterns |
//! | `contender` | who takes part, and what differs from the paper |
//! | `lab` | the settings, and the cluster |
//! | `grid` | speeds over block sizes and patterns |
//! | `stages` | where the latency of one access goes |
//! | `cores` | speeds over cores |
//! | `rows`, `text`, `draw` | rows, report and page |

mod case;
mod contender;
mod cores;
mod draw;
mod figure;
mod grid;
mod lab;
mod paper;
mod rows;
mod stages;
mod text;

use anyhow::{Context, bail};
use fieldstone_console::signals::Signals;
use fieldstone_units as units;

use self::case::Mode;
use self::contender::{Setup, Who};
use self::figure::{Content, Figure};
use self::lab::{Cluster, Lab};
use self::paper::Paper;
use self::text::Found;
use super::folder::RunFolder;
use super::interleaving::Entrant;
use super::rbd::contender::divide;
use super::rbd::place::check_size;
use super::row::Row;
use super::{case_bar, choice, fio, machine, process, report};

/// Options of `bench deliba2-…`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Options of deliba2")]
#[group(id = "deliba2")]
pub struct Options {
    /// The erasure code of our own pools, at most 8 shards: rs:K+M.
    #[arg(long, value_name = "CODE", default_value = "rs:4+2")]
    ec: String,
    /// The erasure-coded pool of the cluster, for the data of images in --pool.
    #[arg(long, value_name = "POOL")]
    data_pool: Option<String>,
    /// Accesses in flight in the figures whose depth the paper does not print. [default: 1, which
    /// follows from the paper's numbers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: Option<u32>,
}

/// The defaults of the options that other benchmarks have, too.
struct Sizes {
    size_bytes: u64,
    seconds: f64,
    rounds: u32,
}

impl Sizes {
    fn of(args: &super::Args) -> Self {
        let (size_bytes, seconds, rounds) =
            if args.rbd.quick { (64 << 20, 0.2, 1) } else { (256 << 20, 0.5, 2) };
        Self {
            size_bytes: args.shared.size.unwrap_or(size_bytes),
            seconds: args.shared.runtime.unwrap_or(seconds),
            rounds: args.shared.rounds.unwrap_or(rounds),
        }
    }
}

/// The names of the benchmarks, and what they do.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let figures = figure::FIGURES.iter().map(|figure| (figure.name, figure.about));
    std::iter::once((figure::ALL, figure::ALL_ABOUT)).chain(figures)
}

/// Runs the benchmark of a figure, or of all.
///
/// # Errors
/// An option is wrong, the cluster cannot be reached, or a contender of ours has failed.
pub fn run(args: &super::Args) -> anyhow::Result<()> {
    let figures = figure::of_name(&args.name);
    let paper = Paper::read()?;
    let sizes = Sizes::of(args);
    check(args, &sizes)?;
    let signals = Signals::install()?;
    let fio = fio::version()?;
    let folder = RunFolder::make(args.shared.dir.as_deref())?;
    let most_cores = most_cores(args);
    let bar = case_bar(&format!("bench {}", args.name), 0);
    let cluster = Cluster::of(&args.rbd, args.deliba2.data_pool.as_deref())?;
    if args.deliba2.data_pool.is_some() && !matches!(cluster, Cluster::Named { .. }) {
        bail!("--data-pool is of a cluster that you have; name it with --conf or CEPH_CONF");
    }
    // A cluster of this program's own has CPUs of its own, if there are enough.
    let clients = divide(&process::own_cpus(), usize::from(args.shared.cores())).0;
    let setup = Setup {
        program: std::env::current_exe().context("cannot find this program's file")?,
        files: folder.files.clone(),
        sockets: folder.sockets.clone(),
        size_bytes: sizes.size_bytes,
        cores: args.shared.cores(),
        cpus: (cluster == Cluster::Null).then_some(clients),
    };
    let lab = Lab {
        setup,
        choices: &args.shared.only,
        rounds: sizes.rounds,
        seconds: sizes.seconds,
        depth: args.deliba2.depth.unwrap_or(1),
        code: args.deliba2.ec.clone(),
        cluster,
        signals: &signals,
        bar: &bar,
    };
    check_names(&lab, &figures, most_cores)?;
    check_space(&lab, &figures)?;
    let machine = machine::describe();
    let found = measure(&lab, &figures, most_cores);
    bar.finish_and_clear();
    let found = found?;
    let setting = setting(&lab, &sizes, &[machine, vec![fio]].concat(), &found);
    let text = text::report(&figures, &found, &paper, &setting);
    let rows = all_rows(&lab, &figures, &found, &paper);
    report::publish(args, &text, &rows, || draw::page(&figures, &found, &paper, &setting))?;
    report::fail_if_ours_is_missing(&found.missing())
}

/// The most cores of Fig. 7: as many as the user says, and without a word those of the machine, at
/// most 4.
fn most_cores(args: &super::Args) -> u16 {
    let cpus = u16::try_from(process::own_cpus().len()).unwrap_or(u16::MAX);
    args.shared.cores.unwrap_or(cpus.min(4))
}

fn check(args: &super::Args, sizes: &Sizes) -> anyhow::Result<()> {
    if args.rbd.image.is_some() {
        bail!("--image is for bench rbd; this benchmark makes its own images and removes them");
    }
    if !args.deliba2.ec.starts_with("rs") {
        bail!("--ec {}: the paper has Reed-Solomon; name rs:K+M", args.deliba2.ec);
    }
    check_size(sizes.size_bytes)
}

/// Checks the erasure code and the choices.
fn check_names(lab: &Lab<'_>, figures: &[&Figure], most_cores: u16) -> anyhow::Result<()> {
    for mode in Mode::ALL {
        lab.pool(mode)?;
    }
    let mut names = Vec::new();
    for figure in figures {
        match figure.content {
            Content::Grid(grid) => {
                let cases = case::cases(grid.sizes, lab.depth);
                let of = |mode: &Mode| cases.iter().map(|case| case::name(*mode, case)).collect();
                names.extend(grid.modes.iter().flat_map::<Vec<String>, _>(of));
            }
            Content::Stages => {
                let cases = case::cases(&[4 << 10], 1);
                names.extend(cases.iter().map(|case| case::name(Mode::Replication, case)));
            }
            Content::Cores => {
                names.extend(cores::cases(most_cores).iter().map(cores::CoreCase::name));
            }
        }
    }
    names.sort();
    names.dedup();
    choice::check(lab.choices, &names, &Who::ALL.map(Entrant::name))
}

/// Refuses a run whose volumes do not fit on the file system.
fn check_space(lab: &Lab<'_>, figures: &[&Figure]) -> anyhow::Result<()> {
    let mut needed = 0;
    for mode in Mode::ALL {
        // At a time there are the volumes of one mode: one behind NBD, one in the client.
        let volumes = match figure::sizes(figures, mode).is_empty() {
            true => u64::from(mode == Mode::Replication),
            false => 2,
        };
        needed = needed.max(volumes * lab.pool(mode)?.disk_bytes(lab.setup.size_bytes));
    }
    let files = &lab.setup.files;
    let free = fieldstone_host::free_bytes(files)
        .with_context(|| format!("cannot learn the free space of {}", files.display()))?;
    if needed > free {
        bail!(
            "this run may take {} in {}, and {} are free; use a smaller --size, or --dir",
            units::size(needed),
            files.display(),
            units::size(free)
        );
    }
    Ok(())
}

/// Measures what the figures need, each thing once.
fn measure(lab: &Lab<'_>, figures: &[&Figure], most_cores: u16) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let has = |content: Content| figures.iter().any(|figure| figure.content == content);
    for mode in Mode::ALL {
        let sizes = figure::sizes(figures, mode);
        if !sizes.is_empty() {
            let contenders = figure::contenders(figures, mode);
            found.parts.push(grid::measure(lab, mode, &sizes, &contenders)?);
            absent(lab, mode, &mut found);
        }
    }
    if has(Content::Stages) {
        found.stages = Some(stages::measure(lab)?);
        absent(lab, Mode::Replication, &mut found);
    }
    if has(Content::Cores) {
        found.cores = Some(cores::measure(lab, most_cores)?);
        absent(lab, Mode::Replication, &mut found);
    }
    Ok(found)
}

/// Notes who could not take part in a mode.
fn absent(lab: &Lab<'_>, mode: Mode, found: &mut Found) {
    let Some(why) = lab.cluster.lacks(mode) else { return };
    let line = format!("not measured: librbd and our client of Ceph, {}: {why}", mode.title());
    if !found.absent.contains(&line) {
        found.absent.push(line);
    }
}

fn all_rows(lab: &Lab<'_>, figures: &[&Figure], found: &Found, paper: &Paper) -> Vec<Row> {
    let mut rows = Vec::new();
    for figure in figures {
        match figure.content {
            Content::Grid(grid) => {
                for part in grid.modes.iter().filter_map(|mode| found.part(*mode)) {
                    rows.extend(rows::of_grid(figure, &grid, part, paper, &lab.code));
                }
            }
            Content::Stages => {
                let stages = found.stages.iter();
                rows.extend(stages.flat_map(|found| rows::of_stages(figure, found, paper)));
            }
            Content::Cores => {
                let cores = found.cores.iter();
                rows.extend(cores.flat_map(|found| rows::of_cores(figure, found, paper)));
            }
        }
    }
    rows
}

/// The conditions of the run, in lines.
fn setting(lab: &Lab<'_>, sizes: &Sizes, machine: &[String], found: &Found) -> Vec<String> {
    let mut lines = vec![
        report::made_by(),
        format!(
            "means of {} interleaved rounds of {} s per cell, devices of {}; {} in flight",
            sizes.rounds,
            sizes.seconds,
            units::size(sizes.size_bytes),
            lab.depth
        ),
        format!("replication: copies:3; erasure coding: {}; {} nodes", lab.code, contender::NODES),
        lab.cluster.about(),
    ];
    lines.extend_from_slice(machine);
    lines.push(format!("load at the end: {}", machine::load()));
    for part in &found.parts {
        for (who, commands) in &part.commands {
            let named = |line: &String| format!("  {} {}: {line}", part.mode.name(), who.name());
            lines.extend(commands.iter().map(named));
        }
    }
    lines
}
