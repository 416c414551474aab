//! `fieldstone volume create|ls|grow|limit|rm`: through the pool's server if one runs, else in this
//! process.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Subcommand;
use fieldstone_codes::Profile;
use fieldstone_server::control::{Request, Response, VolumeLine, servers};
use fieldstone_server::paths::{VolumePath, pool_or_volume, volume_path};
use fieldstone_server::report::VolumeReport;
use fieldstone_server::running::Operator;

use super::nodes::NodeOptions;
use fieldstone_units as units;

/// Work on volumes.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a volume.
    Create(Create),
    /// List the volumes of a pool.
    Ls(Ls),
    /// Make a volume larger.
    Grow(Grow),
    /// Bound the rate of a volume while a server serves it.
    Limit(LimitArgs),
    /// Remove a volume and all its data.
    Rm(Rm),
}

/// Options of `volume create`.
#[derive(clap::Args, Debug)]
pub struct Create {
    /// The volume to make.
    #[arg(value_name = "DIR/VOLUME")]
    path: PathBuf,
    /// The size of the volume.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    size: u64,
    /// The code of the volume: rs:K+M, copies:N, zigzag:K+M, clay:K+M or another of Ceph's codes,
    /// such as rs-van:K+M. [default: the pool's code]
    #[arg(long, value_name = "CODE")]
    code: Option<Profile>,
    /// Make the volume even if all volumes, when full, would take more than the pool has. Writes
    /// then fail when the pool is full.
    #[arg(long)]
    thin: bool,
    #[command(flatten)]
    nodes: NodeOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Options of `volume ls`.
#[derive(clap::Args, Debug)]
pub struct Ls {
    /// The pool.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    nodes: NodeOptions,
    /// Print one JSON object per volume.
    #[arg(long)]
    json: bool,
}

/// Options of `volume grow`.
#[derive(clap::Args, Debug)]
pub struct Grow {
    /// The volume.
    #[arg(value_name = "DIR/VOLUME")]
    path: PathBuf,
    /// The new size of the volume.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    size: u64,
    /// Grow the volume even if all volumes, when full, would take more than the pool has. Writes
    /// then fail when the pool is full.
    #[arg(long)]
    thin: bool,
    #[command(flatten)]
    nodes: NodeOptions,
}

/// The limits of `volume limit`. A limit that is not given stays as it is.
#[derive(clap::Args, Debug)]
#[group(id = "limits", multiple = true, required = true)]
pub struct LimitChanges {
    /// Most requests per second, such as 500 or 20k; 0 for no bound.
    #[arg(long, value_name = "COUNT", value_parser = units::parse_count)]
    iops: Option<u64>,
    /// Most bytes read and written per second, such as 50M; 0 for no bound.
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate)]
    bytes: Option<u64>,
    /// The longest idle time whose unused rate a later burst may use, such as 100ms.
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration_ns)]
    burst: Option<u64>,
}

/// Options of `volume limit`.
#[derive(clap::Args, Debug)]
pub struct LimitArgs {
    /// The volume. A server must serve it. The limits end with the server.
    #[arg(value_name = "DIR/VOLUME")]
    path: PathBuf,
    #[command(flatten)]
    limits: LimitChanges,
    #[command(flatten)]
    nodes: NodeOptions,
}

/// Options of `volume rm`.
#[derive(clap::Args, Debug)]
pub struct Rm {
    /// The volume.
    #[arg(value_name = "DIR/VOLUME")]
    path: PathBuf,
    /// Remove the volume even if nodes are down. These nodes still have the volume when they come
    /// back.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    nodes: NodeOptions,
}

/// Runs `volume …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Create(args) => create(args),
        Command::Ls(args) => list(args),
        Command::Grow(args) => grow(args),
        Command::Limit(args) => limit(args),
        Command::Rm(args) => remove(args),
    }
}

fn create(args: &Create) -> anyhow::Result<()> {
    let VolumePath { pool: folder, volume: name } = volume_path(&args.path)?;
    let mut operator = Operator::find(&folder, None, &args.nodes.fixed)?;
    let made = match &mut operator {
        Operator::Server(server) => {
            let code = args.code.map(|code| code.to_string());
            let (name, size_bytes, thin) = (name.clone(), args.size, args.thin);
            server.ask(&Request::VolumeCreate { name, size_bytes, code, thin }).and_then(one_volume)
        }
        Operator::Own(running) => running
            .create_volume(&name, args.size, args.code, args.thin)
            .map(|(known, warning)| (running.line(&known), warning)),
    };
    let (made, warning) = made.and_then(|line| operator.finish().map(|()| line))?;
    warn(warning);
    if args.json {
        print_line!("{}", serde_json::to_string(&made)?);
    } else {
        let path = args.path.display();
        print_line!("made the volume {path}: {}, {}", units::size(made.size_bytes), made.code);
        let (target, address) =
            (units::shell_word(&path), units::shell_word(format_args!("unix:/tmp/{name}.sock")));
        print_line!("next: fieldstone serve {target} --nbd {address}");
    }
    Ok(())
}

/// The volumes of a response, and the reason why others cannot be listed.
fn volumes(response: Response) -> anyhow::Result<(Vec<VolumeLine>, Option<String>)> {
    match response {
        Response::Volumes { volumes, warning } => Ok((volumes, warning)),
        other => bail!("the server answered out of turn: {other:?}"),
    }
}

/// The one volume of a response, and a warning for the user.
fn one_volume(response: Response) -> anyhow::Result<(VolumeLine, Option<String>)> {
    match response {
        Response::Volumes { mut volumes, warning } => {
            let line = volumes.pop().context("the server tells of no volume")?;
            Ok((line, warning))
        }
        other => bail!("the server answered out of turn: {other:?}"),
    }
}

fn warn(warning: Option<String>) {
    if let Some(warning) = warning {
        eprint_line!("fieldstone: warning: {warning}");
    }
}

fn list(args: &Ls) -> anyhow::Result<()> {
    let folder = pool_or_volume(&args.dir)?.pool;
    let mut operator = Operator::find(&folder, None, &args.nodes.fixed)?;
    let lines = match &mut operator {
        Operator::Server(server) => volumes(server.ask(&Request::VolumeList)?)
            .map(|(lines, hidden)| (served_by_any(lines, &folder), hidden)),
        Operator::Own(running) => running.list_volumes().map(|listing| {
            running.remove_again(&listing);
            for (node, reason) in &listing.silent {
                eprint_line!("fieldstone: {node} does not answer: {reason}");
            }
            for (node, reason) in &listing.damaged {
                eprint_line!("fieldstone: {node}: {reason}");
            }
            let lines = listing.volumes.iter().map(|known| running.line(known)).collect();
            (lines, listing.check_none_hidden().err().map(|error| error.to_string()))
        }),
    };
    let (lines, hidden) = lines.and_then(|lines| operator.finish().map(|()| lines))?;
    print_volumes(&lines, &folder, args.json)?;
    hidden.map_or(Ok(()), |why| Err(anyhow!(why)))
}

/// The lines of one server, in which the volumes that other servers serve are marked too.
fn served_by_any(mut lines: Vec<VolumeLine>, folder: &Path) -> Vec<VolumeLine> {
    for mut server in servers(folder) {
        match server.status() {
            Ok(report) => {
                for line in &mut lines {
                    let mut volumes = report.volumes.iter();
                    if let Some(volume) = volumes.find(|volume| volume.id == line.id) {
                        line.served = true;
                        line.client = line.client.take().or_else(|| volume.client.clone());
                    }
                }
            }
            Err(error) => eprint_line!("fieldstone: {error}"),
        }
    }
    lines
}

fn print_volumes(lines: &[VolumeLine], folder: &Path, json: bool) -> anyhow::Result<()> {
    if json {
        for line in lines {
            print_line!("{}", serde_json::to_string(line)?);
        }
        return Ok(());
    }
    if lines.is_empty() {
        print_line!("no volumes in {}", folder.display());
        return Ok(());
    }
    print_line!("{:<24} {:>10}  {:<10} {:>6} {:<8} id", "name", "size", "code", "epoch", "state");
    for line in lines {
        print_line!(
            "{:<24} {:>10}  {:<10} {:>6} {:<8} {}{}",
            line.name,
            units::size(line.size_bytes),
            line.code,
            line.epoch,
            if line.served { "served" } else { "closed" },
            line.id,
            line.client.as_ref().map_or(String::new(), |client| format!("  at client {client}"))
        );
    }
    Ok(())
}

fn grow(args: &Grow) -> anyhow::Result<()> {
    let VolumePath { pool: folder, volume: name } = volume_path(&args.path)?;
    let mut operator = Operator::find_for(&folder, &name, &args.nodes.fixed)?;
    let done = match &mut operator {
        Operator::Server(server) => {
            let (name, size_bytes, thin) = (name.clone(), args.size, args.thin);
            server
                .ask(&Request::VolumeGrow { name, size_bytes, thin })
                .and_then(one_volume)
                .map(|(_, warning)| warning)
        }
        Operator::Own(running) => {
            running.check_growth(&name, args.size, args.thin).and_then(|(known, warning)| {
                running.grow_closed(&known, args.size, args.thin).map(|()| warning)
            })
        }
    };
    let warning = done.and_then(|warning| operator.finish().map(|()| warning))?;
    warn(warning);
    print_line!("{} has {} now", args.path.display(), units::size(args.size));
    Ok(())
}

fn limit(args: &LimitArgs) -> anyhow::Result<()> {
    let VolumePath { pool: folder, volume: name } = volume_path(&args.path)?;
    let LimitChanges { iops, bytes, burst } = args.limits;
    let options = [
        iops.map(|count| format!("iops={count}")),
        bytes.map(|rate| format!("bytes={rate}")),
        burst.map(|ns| format!("burst={ns}ns")),
    ];
    let options = options.into_iter().flatten().collect::<Vec<String>>().join(",");
    let limit = match Operator::find(&folder, Some(&name), &args.nodes.fixed)? {
        Operator::Server(mut server) => {
            let request = Request::VolumeLimit { name: name.clone(), options: options.clone() };
            server.ask(&request)?;
            // The change is made, whatever the server answers now.
            let volumes = server.status().map_or(Vec::new(), |report| report.volumes);
            let is_it = |volume: &&VolumeReport| volume.name == name && volume.is_of_pool();
            volumes.iter().find(is_it).map_or(options, limit_text)
        }
        Operator::Own(running) => {
            running.finish()?;
            let (path, word) = (args.path.display(), units::shell_word(args.path.display()));
            bail!("no server serves {path}: start one with `fieldstone serve {word} --limit …`");
        }
    };
    print_line!("{} is served with {limit} now", args.path.display());
    Ok(())
}

/// All options of the limit of a volume, as `serve --limit` takes them.
fn limit_text(volume: &VolumeReport) -> String {
    let layers = volume.io.iter().flat_map(|io| &io.layers);
    let options = layers.filter(|layer| layer.name == "limit").flat_map(|layer| &layer.options);
    options.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

fn remove(args: &Rm) -> anyhow::Result<()> {
    let VolumePath { pool: folder, volume: name } = volume_path(&args.path)?;
    let mut operator = Operator::find_for(&folder, &name, &args.nodes.fixed)?;
    let done = match &mut operator {
        Operator::Server(server) => {
            let request = Request::VolumeRemove { name: name.clone(), force: args.force };
            server.ask(&request).map(drop)
        }
        Operator::Own(running) => running.remove_volume(&name, args.force),
    };
    done.and_then(|()| operator.finish())?;
    print_line!("removed the volume {}", args.path.display());
    Ok(())
}
