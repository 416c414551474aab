//! `fieldstone volume create|ls|grow|rm`: through the pool's server if one runs, else directly.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Subcommand;
use fieldstone_codes::Profile;

use crate::control::{Client, Request, Response, VolumeLine, servers};
use crate::engine::{Engine, EngineOptions, MissingNode};
use crate::pool::Pool;
use crate::target::{VolumePath, target, volume_path};
use crate::units;

/// Work on volumes.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a volume.
    Create(Create),
    /// List the volumes of a pool.
    Ls(Ls),
    /// Make a volume larger.
    Grow(Grow),
    /// Remove a volume and all its data.
    Rm(Rm),
}

/// Options of `volume create`.
#[derive(clap::Args, Debug)]
pub struct Create {
    /// The volume to make.
    #[arg(value_name = "DIR/VOLUME")]
    path: PathBuf,
    /// Its size.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    size: u64,
    /// How it is protected: rs:K+M, copies:N, zigzag:K+M, clay:K+M or another that Ceph has, such as
    /// rs-van:K+M. [default: the pool's code]
    #[arg(long, value_name = "CODE")]
    code: Option<Profile>,
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
    /// Its new size.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    size: u64,
}

/// Options of `volume rm`.
#[derive(clap::Args, Debug)]
pub struct Rm {
    /// The volume.
    #[arg(value_name = "DIR/VOLUME")]
    path: PathBuf,
    /// Remove it even if nodes are down. Such a node still has the volume when it comes back.
    #[arg(long)]
    force: bool,
}

/// Runs `volume …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Create(args) => create(args),
        Command::Ls(args) => list(args),
        Command::Grow(args) => grow(args),
        Command::Rm(args) => remove(args),
    }
}

/// Whom to ask: the pool's server, or an engine of our own.
enum Operator {
    Server(Client),
    Own(Box<Engine>),
}

impl Operator {
    fn find(folder: &std::path::Path) -> anyhow::Result<Self> {
        let pool = Pool::open(folder)?;
        if let Some(server) = servers(folder).into_iter().next() {
            return Ok(Self::Server(server));
        }
        let options = EngineOptions::offline(MissingNode::Replace);
        Ok(Self::Own(Box::new(Engine::with_pool(pool, &options)?)))
    }

    fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Server(_) => Ok(()),
            Self::Own(engine) => engine.finish(),
        }
    }
}

fn create(args: &Create) -> anyhow::Result<()> {
    let VolumePath { pool: folder, volume: name } = volume_path(&args.path)?;
    let mut operator = Operator::find(&folder)?;
    let made = match &mut operator {
        Operator::Server(server) => {
            let code = args.code.map(|code| code.to_string());
            let request = Request::VolumeCreate { name: name.clone(), size_bytes: args.size, code };
            volumes(server.ask(&request)?)?.pop().context("the server tells of no volume")
        }
        Operator::Own(engine) => {
            engine.create_volume(&name, args.size, args.code).map(|known| engine.line(&known))
        }
    };
    let made = made.and_then(|line| operator.finish().map(|()| line))?;
    if args.json {
        say!("{}", serde_json::to_string(&made)?);
    } else {
        let path = args.path.display();
        say!("made the volume {path}: {}, {}", units::size(made.size_bytes), made.code);
        say!("next: fieldstone serve {path} --nbd unix:/tmp/{name}.sock");
    }
    Ok(())
}

fn volumes(response: Response) -> anyhow::Result<Vec<VolumeLine>> {
    match response {
        Response::Volumes { volumes } => Ok(volumes),
        other => bail!("the server answered out of turn: {other:?}"),
    }
}

fn list(args: &Ls) -> anyhow::Result<()> {
    let folder = target(&args.dir)?.pool;
    let mut operator = Operator::find_quietly(&folder)?;
    let lines = match &mut operator {
        Operator::Server(server) => volumes(server.ask(&Request::VolumeList)?),
        Operator::Own(engine) => engine.list_volumes().map(|listing| {
            for (node, reason) in &listing.silent {
                eprintln!("fieldstone: {node} does not answer: {reason}");
            }
            listing.volumes.iter().map(|known| engine.line(known)).collect()
        }),
    };
    let lines = lines.and_then(|lines| operator.finish().map(|()| lines))?;
    if args.json {
        for line in &lines {
            say!("{}", serde_json::to_string(line)?);
        }
        return Ok(());
    }
    if lines.is_empty() {
        say!("no volumes in {}", folder.display());
        return Ok(());
    }
    say!("{:<24} {:>10}  {:<10} {:>6} {:<8} id", "name", "size", "code", "epoch", "state");
    for line in &lines {
        say!(
            "{:<24} {:>10}  {:<10} {:>6} {:<8} {}",
            line.name,
            units::size(line.size_bytes),
            line.code,
            line.epoch,
            if line.served { "served" } else { "closed" },
            line.id
        );
    }
    Ok(())
}

impl Operator {
    /// As [`Operator::find`], but leaves missing nodes alone: for looking only.
    fn find_quietly(folder: &std::path::Path) -> anyhow::Result<Self> {
        let pool = Pool::open(folder)?;
        if let Some(server) = servers(folder).into_iter().next() {
            return Ok(Self::Server(server));
        }
        let options = EngineOptions::offline(MissingNode::Leave);
        Ok(Self::Own(Box::new(Engine::with_pool(pool, &options)?)))
    }
}

fn grow(args: &Grow) -> anyhow::Result<()> {
    let VolumePath { pool: folder, volume: name } = volume_path(&args.path)?;
    let mut operator = Operator::find(&folder)?;
    let done = match &mut operator {
        Operator::Server(server) => {
            let request = Request::VolumeGrow { name: name.clone(), size_bytes: args.size };
            server.ask(&request).map(drop)
        }
        Operator::Own(engine) => {
            engine.find_volume(&name).and_then(|known| engine.grow_closed(&known, args.size))
        }
    };
    done.and_then(|()| operator.finish())?;
    say!("{} has {} now", args.path.display(), units::size(args.size));
    Ok(())
}

fn remove(args: &Rm) -> anyhow::Result<()> {
    let VolumePath { pool: folder, volume: name } = volume_path(&args.path)?;
    let mut operator = Operator::find_quietly(&folder)?;
    let done = match &mut operator {
        Operator::Server(server) => {
            let request = Request::VolumeRemove { name: name.clone(), force: args.force };
            server.ask(&request).map(drop)
        }
        Operator::Own(engine) => {
            engine.find_volume(&name).and_then(|known| engine.remove_volume(&known, args.force))
        }
    };
    done.and_then(|()| operator.finish())?;
    say!("removed the volume {}", args.path.display());
    Ok(())
}
