//! `fieldstone bench rbd`: our client of Ceph, librbd and librados, on the same image.
//!
//! The benchmark shows what a user of a Ceph cluster gains or loses with the client here: I/Os and
//! latency, and above all what an I/O costs the client in CPU time and context switches. All
//! contenders take turns on one cluster and one image. Then they do so on the *null cluster*: one
//! process of this program that speaks Ceph's protocol and answers at once. A real cluster on the
//! same machine takes most of the CPU itself, and hides how many I/Os a client could do.
//! `docs/benchmarks.md` explains the columns and the reasons that make the numbers invalid.
//!
//! | file | one idea |
//! |---|---|
//! | `place` | the cluster and its image, made, filled and removed |
//! | `osds` | the processes of the OSDs, and their CPU time |
//! | `contender` | the contenders, and one cell of each |
//! | `librados`, `librbd` | librados and librbd through C |
//! | `mapped` | an image as a device, by rbd-nbd |
//! | `objects` | the load on plain objects |
//! | `open` | what it costs to open an image |
//! | `run` | the rounds of a run |
//! | `summary` | medians of rounds |
//! | `compare` | pairs, targets, rows |
//! | `text`, `draw` | the report, and the page |

mod compare;
pub mod contender;
mod draw;
mod librados;
pub mod librbd;
mod mapped;
pub mod objects;
pub mod open;
mod osds;
pub mod place;
mod run;
mod summary;
mod text;

use std::path::PathBuf;

use anyhow::Context;
use fieldstone_console::signals::Signals;
use fieldstone_units as units;

use self::contender::{Contender, Setup, divide, is_shared};
use self::place::{Layout, LibrbdCache, Place, PlaceKind, Wanted};
use self::run::{Results, RunConfig};
use self::text::Part;
use super::folder::RunFolder;
use super::interleaving::{Entrant, Schedule};
use super::{case_bar, choice, fio, machine, process, report, row};

/// Options of `bench rbd`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Options of rbd and deliba2")]
#[group(id = "rbd")]
pub struct Options {
    /// The configuration file of the cluster. [default: CEPH_CONF, or /etc/ceph/ceph.conf]
    #[arg(long, value_name = "FILE")]
    pub conf: Option<PathBuf>,
    /// The client's name without its type.
    #[arg(long, value_name = "ID", default_value = "admin")]
    pub id: String,
    /// The pool.
    #[arg(long, value_name = "POOL", default_value = "rbd")]
    pub pool: String,
    /// The image. It is made if it does not exist, and stays. [default: a new image, which is
    /// removed at the end]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Write over an image that this benchmark has not made.
    #[arg(long, requires = "image")]
    pub overwrite: bool,
    /// A folder with the files osd.N.pid of the OSDs on this machine. [default: the processes
    /// ceph-osd that read the same configuration file]
    #[arg(long, value_name = "DIR")]
    pub osd_pid_dir: Option<PathBuf>,
    /// Only the null cluster: no cluster is needed.
    #[arg(long, conflicts_with_all = ["conf", "image", "osd_pid_dir"])]
    pub null: bool,
    /// A short run, to see that everything works: one round of 0.5 s on 64M, of deliba2 0.2 s.
    #[arg(long)]
    pub quick: bool,
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
            if args.rbd.quick { (64 << 20, 0.5, 1) } else { (256 << 20, 3.0, 3) };
        Self {
            size_bytes: args.shared.size.unwrap_or(size_bytes),
            seconds: args.shared.runtime.unwrap_or(seconds),
            rounds: args.shared.rounds.unwrap_or(rounds),
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// An option is wrong, the cluster cannot be reached, or a client of ours has failed.
pub fn run(args: &super::Args) -> anyhow::Result<()> {
    let options = &args.rbd;
    let sizes = Sizes::of(args);
    place::check_size(sizes.size_bytes)?;
    let cases = run::cases();
    check_choices(args, &cases)?;
    let signals = Signals::install()?;
    let fio = fio::version()?;
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let folder = RunFolder::make(args.shared.dir.as_deref())?;
    let config = RunConfig {
        cases: &cases,
        schedule: Schedule {
            cases: cases.iter().map(crate::case::Case::name).collect(),
            choices: &args.shared.only,
            contenders: &Contender::ALL,
            rounds: sizes.rounds,
        },
        seconds: sizes.seconds,
    };
    let machine = machine::describe();
    let bar = case_bar("bench rbd", 0);
    let mut measured = Vec::new();
    let mut absent = Vec::new();
    let setup = |cpus: Option<Vec<usize>>| Setup {
        program: program.clone(),
        folder: folder.sockets.clone(),
        cores: args.shared.cores(),
        cpus,
        librbd_cache: LibrbdCache::Off,
    };
    if !options.null {
        let wanted = Wanted {
            conf: place::conf(options.conf.as_deref())?,
            id: &options.id,
            pool: &options.pool,
            image: options.image.as_deref(),
            overwrite: options.overwrite,
            size_bytes: sizes.size_bytes,
            layout: Layout::Plain,
            osd_pid_dir: options.osd_pid_dir.as_deref(),
        };
        let mut place = Place::cluster(&wanted, &program)?;
        let results = run::measure(&config, &setup(None), &mut place, &signals, &bar)?;
        let about = about(&place, None);
        measured.push((place.kind, results, about));
    }
    let cpus = process::own_cpus();
    let (clients, cluster) = divide(&cpus, usize::from(args.shared.cores()));
    match Place::null(sizes.size_bytes, &program, &folder.files, &cluster) {
        Ok(mut place) => {
            let shared = is_shared(&cpus, clients.len());
            let about = about(&place, Some((&clients, shared)));
            let setup = setup(Some(clients));
            let results = run::measure(&config, &setup, &mut place, &signals, &bar)?;
            measured.push((place.kind, results, about));
        }
        Err(error) if options.null => return Err(error),
        Err(error) => absent.push(format!("not measured: the null cluster: {error:#}")),
    }
    bar.finish_and_clear();
    let setting = setting(&sizes, &[machine, vec![fio], absent].concat());
    tell(args, &cases, &measured, &setting, cpus.len())
}

fn check_choices(args: &super::Args, cases: &[crate::case::Case]) -> anyhow::Result<()> {
    let mut names: Vec<String> = cases.iter().map(crate::case::Case::name).collect();
    names.push(run::OPEN.to_owned());
    choice::check(&args.shared.only, &names, &Contender::ALL.map(Entrant::name))
}

/// Lines about a place: its image, and on a null cluster the CPUs.
fn about(place: &Place, cpus: Option<(&[usize], bool)>) -> Vec<String> {
    let mut lines = match place.kind {
        PlaceKind::Cluster => vec![format!(
            "image {}, {} of it, {} OSDs on this machine",
            place.address.path(),
            units::size(place.size_bytes),
            place.osds.pids.len()
        )],
        PlaceKind::Null => place.commands.clone(),
    };
    if let Some((clients, shared)) = cpus {
        lines.push(format!(
            "clients run on CPU {clients:?}; the null cluster {}",
            if shared { "has to share them, so IOPS say little" } else { "has the others" }
        ));
    }
    lines
}

/// The conditions of the run, in lines.
fn setting(sizes: &Sizes, machine: &[String]) -> Vec<String> {
    let rounds =
        format!("medians of {} interleaved rounds of {} s per cell", sizes.rounds, sizes.seconds);
    let mut lines = vec![report::made_by(), rounds];
    lines.extend_from_slice(machine);
    lines.push(format!("load at the end: {}", machine::load()));
    for contender in Contender::ALL {
        lines.push(format!("  {}: {}", contender.name(), contender.about()));
    }
    lines
}

/// Prints the report, writes rows and page, and fails if a client of ours failed.
fn tell(
    args: &super::Args,
    cases: &[crate::case::Case],
    measured: &[(PlaceKind, Results, Vec<String>)],
    setting: &[String],
    cpus: usize,
) -> anyhow::Result<()> {
    let parts: Vec<Part<'_>> = measured
        .iter()
        .map(|(kind, results, about)| Part {
            kind: *kind,
            results,
            rows: compare::compare(*kind, cases, results, cpus),
            about: about.clone(),
        })
        .collect();
    let text = text::report(cases, &parts, setting, cpus);
    let rows: Vec<row::Row> = parts.iter().flat_map(|part| part.rows.iter().cloned()).collect();
    report::publish(args, &text, &rows, || draw::page(cases, &parts, setting))?;
    for part in &parts {
        let mut missing = part.results.interleaving.missing.clone();
        // Some take part only with several cores.
        missing.retain(|(who, _)| !who.needs_cores() || args.shared.cores() > 1);
        report::fail_if_ours_is_missing(&missing)?;
    }
    Ok(())
}
