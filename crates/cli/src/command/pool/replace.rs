//! `fieldstone pool replace`: makes an empty node in place of a lost one.

use std::path::PathBuf;

use anyhow::bail;
use fieldstone_proto::NodeIndex;
use fieldstone_server::pool::Pool;
use fieldstone_server::replace::{self, ReplacedNode};
use serde::Serialize;

use crate::command::nodes::NodeOptions;

/// Options of `pool replace`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The pool.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The nodes that are lost: node.2, or 2.
    #[arg(value_name = "NODE", required = true, value_parser = parse_node)]
    lost: Vec<u16>,
    /// Make the nodes even if more nodes would then be absent or empty than the pool's code makes
    /// up for, and even where a disk was mounted that is absent now. Data that only lost nodes hold
    /// is lost.
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

#[derive(Serialize)]
struct Replaced {
    dir: PathBuf,
    nodes: Vec<ReplacedNode>,
    /// The id of the process that serves the pool and takes the nodes in.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u32>,
}

/// Runs `pool replace`.
///
/// # Errors
/// A node is not lost, something lies at its path, or too many nodes would be empty.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let pool = Pool::open(&args.dir)?;
    let mut lost: Vec<NodeIndex> = args.lost.iter().copied().map(NodeIndex).collect();
    lost.sort_unstable();
    lost.dedup();
    if let Some(node) = lost.iter().find(|node| node.0 >= pool.nodes) {
        let (dir, last) = (pool.folder.display(), pool.nodes - 1);
        bail!("the pool {dir} has no {node}: its nodes are 0 to {last}");
    }
    let made = replace::replace(&pool, &lost, &args.nodes.fixed, args.force)?;
    print(&pool, made, args.json)
}

fn print(pool: &Pool, nodes: Vec<ReplacedNode>, json: bool) -> anyhow::Result<()> {
    let reports = replace::ask_servers(pool)?;
    let server = reports.iter().find_map(|report| report.server.as_ref()).map(|server| server.pid);
    for made in nodes.iter().filter(|made| made.folder_was_empty && !made.was_mount) {
        eprint_line!(
            "fieldstone: {} was there and empty; if it is a mount point, its disk is not mounted",
            made.path.display()
        );
    }
    if json {
        let result = Replaced { dir: pool.folder.clone(), nodes, server };
        print_line!("{}", serde_json::to_string(&result)?);
        return Ok(());
    }
    for made in &nodes {
        print_line!("made node.{} anew, empty, at {}", made.node, made.path.display());
    }
    let dir = pool.folder.display();
    match server {
        Some(pid) => {
            print_line!("the server, process {pid}, takes it in within seconds, and rebuilds");
        }
        None => print_line!(
            "next: fieldstone rebuild {dir}, or serve its volumes: a server rebuilds by itself"
        ),
    }
    Ok(())
}
