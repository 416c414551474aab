//! `fieldstone pool replace`: an empty node in place of one that is lost.
//!
//! This is the only way, besides `pool create` and the option `serve --replace-missing`, in which a
//! node comes into being. All nodes that are named are checked before any is made. A server, or a
//! node process, that runs the pool finds the new node by itself: it looks at the folders of nodes
//! that are down every two seconds.

use std::fs;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_host::folder::{self, Found};
use fieldstone_host::{FolderError, connect_unix};
use fieldstone_proto::NodeIndex;
use fieldstone_uring::Address;
use serde::Serialize;

use crate::control::{Client, servers};
use crate::engine::NodeOptions;
use crate::pool::record::{self, Place, Record};
use crate::pool::{Losses, Pool, look};
use crate::report::{NodeReport, PoolReport};

/// Options of `pool replace`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The pool.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The nodes that are lost: node.2, or 2.
    #[arg(value_name = "NODE", required = true, value_parser = parse_node)]
    lost: Vec<u16>,
    /// Make them even if, with them, more nodes are absent or empty than the pool's code makes up
    /// for, and even where a disk was mounted that is away now. What only lost nodes hold is lost.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    nodes: NodeOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

fn parse_node(text: &str) -> Result<u16, String> {
    let number = text.strip_prefix("node.").unwrap_or(text);
    number.parse().map_err(|_| format!("{text:?} is not a node; write node.2, or 2"))
}

/// A node that was made.
#[derive(Serialize)]
struct Made {
    node: u16,
    path: PathBuf,
    /// The folder was there, and empty.
    folder_was_empty: bool,
    #[serde(skip)]
    was_mount: bool,
}

#[derive(Serialize)]
struct Replaced {
    dir: PathBuf,
    nodes: Vec<Made>,
    /// The process that serves the pool and takes the nodes in.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u32>,
}

/// Runs `pool replace`.
///
/// # Errors
/// When a node is not lost, or something is in the way, or too many would be empty.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let pool = Pool::open(&args.dir)?;
    let mut lost: Vec<NodeIndex> = args.lost.iter().copied().map(NodeIndex).collect();
    lost.sort_unstable();
    lost.dedup();
    if let Some(node) = lost.iter().find(|node| node.0 >= pool.nodes) {
        let (dir, last) = (pool.folder.display(), pool.nodes - 1);
        bail!("the pool {dir} has no {node}: its nodes are 0 to {last}");
    }
    let made = replace_checked(&pool, &lost, &args.nodes, args.force)?;
    print(&pool, made, args.json)
}

/// Makes empty nodes in place of those that are `lost`, as `pool replace` does.
///
/// # Errors
/// As [`run`].
pub fn replace(pool: &Pool, lost: &[NodeIndex]) -> anyhow::Result<()> {
    replace_checked(pool, lost, &NodeOptions::default(), false).map(drop)
}

fn replace_checked(
    pool: &Pool,
    lost: &[NodeIndex],
    nodes: &NodeOptions,
    force: bool,
) -> anyhow::Result<Vec<Made>> {
    let found: Vec<Found> =
        lost.iter().map(|node| check_place(pool, *node, force)).collect::<Result<_, _>>()?;
    let elsewhere = find_elsewhere(pool, nodes, lost)?;
    if let Err(reason) = Losses::of(pool, &elsewhere)?.allow(pool, lost)
        && !force
    {
        bail!(
            "{reason}\nNodes that are only unmounted come back with their data. Mount them; name the \
             address of those that run elsewhere (--node I=ADDR); rebuild those that were replaced \
             before (`fieldstone rebuild {}`); or pass --force",
            pool.folder.display()
        );
    }
    lost.iter().zip(found).map(|(node, found)| make(pool, *node, found == Found::Empty)).collect()
}

/// Asks the pool's servers how things stand. Their answer has told the pool's record when every
/// volume is whole.
fn ask_servers(pool: &Pool) -> anyhow::Result<Vec<PoolReport>> {
    servers(&pool.folder).iter_mut().map(Client::status).collect()
}

/// Checks that an empty node may be made where `node` was.
fn check_place(pool: &Pool, node: NodeIndex, force: bool) -> anyhow::Result<Found> {
    let path = pool.node_folder(node);
    let shown = path.display();
    let found = look(&path)?;
    match &found {
        Found::Nothing => {}
        Found::Empty => {
            let seen = Record::read(&pool.folder, pool.id)?;
            let was_mount = seen.entry(node).map(|entry| entry.place) == Some(Place::Mount);
            if was_mount && Place::of(&pool.folder, &path)? == Place::Beside && !force {
                bail!(
                    "{node} lay on a file system of its own, and {shown} is an empty folder on the \
                     pool's: mount its disk, or pass --force to make an empty node here"
                );
            }
        }
        Found::Node => match folder::look_for(&path, &pool.superblock(node)) {
            Ok(_) => bail!(
                "{shown} holds {node} of this pool: there is nothing to replace; if the node is to \
                 be given up, move its folder away first"
            ),
            Err(error) => {
                bail!("cannot make a node at {shown}: move away first what lies there ({error})")
            }
        },
        Found::Dangling(target) => bail!(
            "{shown} is a link to {}, which is not there: mount its disk, make that folder, or \
             remove the link first",
            target.display()
        ),
        Found::NotFolder => bail!("{shown} is not a folder: move it away first"),
        Found::NoSuperblock => {
            bail!("{shown} holds a damaged node, data without a superblock: move it away first")
        }
        Found::Occupied(name) => {
            bail!("{shown} holds other files ({name} is one): move them away first")
        }
    }
    Ok(found)
}

/// The nodes that run at an address, not from a folder here: those that a server reaches, and those
/// that were named and accept a connection. Waits until servers have noticed that the nodes that
/// are `lost` are gone: until then they tell of the old ones.
///
/// # Errors
/// A node that is `lost` runs at an address.
fn find_elsewhere(
    pool: &Pool,
    options: &NodeOptions,
    lost: &[NodeIndex],
) -> anyhow::Result<Vec<NodeIndex>> {
    /// Servers and node processes look at their folders every two seconds.
    const PATIENCE: Duration = Duration::from_secs(6);
    const PAUSE: Duration = Duration::from_millis(200);
    let start = Instant::now();
    let named = options.fixed.iter().filter(|fixed| accepts(&fixed.address));
    let named: Vec<NodeIndex> = named.map(|fixed| fixed.node).collect();
    loop {
        let reports = ask_servers(pool)?;
        let up = reports.iter().flat_map(|report| &report.nodes).filter(|node| node.state == "up");
        let without_folder: Vec<&NodeReport> = up.filter(|node| !has_node(pool, node)).collect();
        let is_lost = |node: &&&NodeReport| lost.contains(&NodeIndex(node.node));
        let answers = without_folder.iter().find(is_lost);
        if answers.is_none() || start.elapsed() > PATIENCE {
            let named_lost = lost.iter().find(|node| named.contains(node)).copied();
            if let Some(node) = answers.map(|node| NodeIndex(node.node)).or(named_lost) {
                bail!("{node} is not lost: it runs, and answers");
            }
            let reached = without_folder.iter().map(|node| NodeIndex(node.node));
            return Ok(reached.chain(named).collect());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether the folder of a node holds one, or may hold one that does not answer.
fn has_node(pool: &Pool, node: &NodeReport) -> bool {
    let found = look(&pool.node_folder(NodeIndex(node.node)));
    matches!(found, Ok(Found::Node) | Err(FolderError::Silent(_)))
}

fn accepts(address: &Address) -> bool {
    const PATIENCE: Duration = Duration::from_secs(2);
    match address {
        Address::Unix(path) => connect_unix(path, Instant::now() + PATIENCE).is_ok(),
        Address::Tcp { host, port } => (host.as_str(), *port)
            .to_socket_addrs()
            .is_ok_and(|mut all| all.any(|at| TcpStream::connect_timeout(&at, PATIENCE).is_ok())),
    }
}

fn make(pool: &Pool, node: NodeIndex, folder_was_empty: bool) -> anyhow::Result<Made> {
    let (path, superblock) = (pool.node_folder(node), pool.superblock(node));
    folder::create(&path, &superblock)
        .with_context(|| format!("cannot make {node}; the nodes before it were made"))?;
    let place = Place::of(&pool.folder, &path)?;
    record::update(&pool.folder, pool.id, |record| {
        record.note_made(node, superblock.incarnation, place, true);
    })?;
    let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
    let was_mount = device(&path) != device(&pool.folder);
    Ok(Made { node: node.0, path, folder_was_empty, was_mount })
}

fn print(pool: &Pool, nodes: Vec<Made>, json: bool) -> anyhow::Result<()> {
    let reports = ask_servers(pool)?;
    let server = reports.iter().find_map(|report| report.server.as_ref()).map(|server| server.pid);
    for made in nodes.iter().filter(|made| made.folder_was_empty && !made.was_mount) {
        tell!(
            "fieldstone: {} was there and empty; if it is a mount point, its disk is not mounted",
            made.path.display()
        );
    }
    if json {
        let result = Replaced { dir: pool.folder.clone(), nodes, server };
        say!("{}", serde_json::to_string(&result)?);
        return Ok(());
    }
    for made in &nodes {
        say!("made node.{} anew, empty, at {}", made.node, made.path.display());
    }
    let dir = pool.folder.display();
    match server {
        Some(pid) => say!("the server, process {pid}, takes it in within seconds, and rebuilds"),
        None => say!(
            "next: fieldstone rebuild {dir}, or serve its volumes: a server rebuilds by itself"
        ),
    }
    Ok(())
}
