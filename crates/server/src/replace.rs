//! Makes an empty node in place of a lost node, for `fieldstone pool replace`.
//!
//! Only this module, `pool create` and the option `serve --replace-missing` make nodes. This module
//! checks all given nodes before it makes any node. A server or node process that runs the pool
//! finds the new node by itself: every two seconds it examines the folders of nodes that are down.

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
use crate::pool::record::{self, FolderKind, Record};
use crate::pool::{Losses, Pool, inspect};
use crate::report::{NodeReport, PoolReport};
use crate::running::FixedNode;
use fieldstone_units as units;

/// An empty node that replaced a lost node.
#[derive(Serialize)]
pub struct ReplacedNode {
    /// The number of the node.
    pub node: u16,
    /// Its folder.
    pub path: PathBuf,
    /// The folder existed before, and was empty.
    pub folder_was_empty: bool,
    /// The node's folder is on another file system than the pool's folder.
    #[serde(skip)]
    pub was_mount: bool,
}

/// Makes empty nodes in place of the nodes `lost`. Checks all of them before it makes any. The
/// nodes `fixed` that answer at their address do not count as absent. `force` permits it even if
/// too many nodes would be empty, or if a disk may only be absent.
///
/// # Errors
/// A node is not lost, other files are in its place, or too many nodes would be empty.
pub fn replace(
    pool: &Pool,
    lost: &[NodeIndex],
    fixed: &[FixedNode],
    force: bool,
) -> anyhow::Result<Vec<ReplacedNode>> {
    let found: Vec<Found> =
        lost.iter().map(|node| check_place(pool, *node, force)).collect::<Result<_, _>>()?;
    let elsewhere = find_elsewhere(pool, fixed, lost)?;
    if let Err(reason) = Losses::of(pool, &elsewhere)?.allow(pool, lost)
        && !force
    {
        bail!(
            "{reason}\nNodes that are only unmounted come back with their data. Mount them; name \
             the address of those that run elsewhere (--node I=ADDR); rebuild those that were \
             replaced before (`fieldstone rebuild {}`); or pass --force",
            units::shell_word(pool.folder.display())
        );
    }
    lost.iter().zip(found).map(|(node, found)| make(pool, *node, found == Found::Empty)).collect()
}

/// Asks the pool's servers for their reports. If every volume is whole, a server notes that in the
/// pool's record before it answers.
///
/// # Errors
/// A server does not answer.
pub fn ask_servers(pool: &Pool) -> anyhow::Result<Vec<PoolReport>> {
    servers(&pool.folder).iter_mut().map(Client::status).collect()
}

/// Checks that an empty node may be made in the place of `node`.
fn check_place(pool: &Pool, node: NodeIndex, force: bool) -> anyhow::Result<Found> {
    let path = pool.node_folder(node);
    let shown = path.display();
    let found = inspect(&path)?;
    match &found {
        Found::Nothing => {}
        Found::Empty => {
            let seen = Record::read(&pool.folder, pool.id)?;
            let was_mount = seen.entry(node).map(|entry| entry.place) == Some(FolderKind::Mount);
            if was_mount && FolderKind::of(&pool.folder, &path)? == FolderKind::Inside && !force {
                bail!(
                    "{node} lay on a file system of its own, and {shown} is an empty folder on the \
                     pool's: mount its disk, or pass --force to make an empty node here"
                );
            }
        }
        Found::Node => match folder::find_node(&path, &pool.superblock(node)) {
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

/// The nodes that run at an address and not from a folder here: nodes that a server reaches, and
/// nodes in `fixed` that accept a connection. Waits until the servers have noticed that the nodes
/// `lost` are gone. Until then the servers still report the old nodes.
///
/// # Errors
/// A node of `lost` runs at an address.
fn find_elsewhere(
    pool: &Pool,
    fixed: &[FixedNode],
    lost: &[NodeIndex],
) -> anyhow::Result<Vec<NodeIndex>> {
    /// Servers and node processes examine their folders every two seconds.
    const TIMEOUT: Duration = Duration::from_secs(6);
    const PAUSE: Duration = Duration::from_millis(200);
    let start = Instant::now();
    let named = fixed.iter().filter(|fixed| accepts(&fixed.address));
    let named: Vec<NodeIndex> = named.map(|fixed| fixed.node).collect();
    loop {
        let reports = ask_servers(pool)?;
        let up = reports.iter().flat_map(|report| &report.nodes).filter(|node| node.state == "up");
        let without_folder: Vec<&NodeReport> = up.filter(|node| !has_node(pool, node)).collect();
        let is_lost = |node: &&&NodeReport| lost.contains(&NodeIndex(node.node));
        let answers = without_folder.iter().find(is_lost);
        if answers.is_none() || start.elapsed() > TIMEOUT {
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

/// True if the folder of a node holds a node, or may hold a node that does not answer.
fn has_node(pool: &Pool, node: &NodeReport) -> bool {
    let found = inspect(&pool.node_folder(NodeIndex(node.node)));
    matches!(found, Ok(Found::Node) | Err(FolderError::Silent(_)))
}

fn accepts(address: &Address) -> bool {
    const TIMEOUT: Duration = Duration::from_secs(2);
    match address {
        Address::Unix(path) => connect_unix(path, Instant::now() + TIMEOUT).is_ok(),
        Address::Tcp { host, port } => (host.as_str(), *port)
            .to_socket_addrs()
            .is_ok_and(|mut all| all.any(|at| TcpStream::connect_timeout(&at, TIMEOUT).is_ok())),
    }
}

fn make(pool: &Pool, node: NodeIndex, folder_was_empty: bool) -> anyhow::Result<ReplacedNode> {
    let (path, superblock) = (pool.node_folder(node), pool.superblock(node));
    folder::create(&path, &superblock)
        .with_context(|| format!("cannot make {node}; the nodes before it were made"))?;
    let place = FolderKind::of(&pool.folder, &path)?;
    record::update(&pool.folder, pool.id, |record| {
        record.note_made(node, superblock.incarnation, place, true);
    })?;
    let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
    let was_mount = device(&path) != device(&pool.folder);
    Ok(ReplacedNode { node: node.0, path, folder_was_empty, was_mount })
}
