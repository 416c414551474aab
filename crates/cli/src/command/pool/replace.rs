//! `fieldstone pool replace`: makes an empty node in place of a lost one.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::bail;
use fieldstone_proto::NodeIndex;
use fieldstone_server::pool::Pool;
use fieldstone_server::replace::{self, ReplacedNode};
use fieldstone_server::report::PoolReport;
use serde::Serialize;

use crate::command::nodes::NodeOptions;
use fieldstone_units as units;

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
    /// Names of the volumes that servers serve, and so rebuild.
    served: Vec<String>,
    /// Names of the volumes that no server serves, so that nothing rebuilds them; absent if no
    /// server knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_served: Option<Vec<String>>,
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
    let (served, not_served) = served_and_not(&reports);
    if json {
        let result = Replaced { dir: pool.folder.clone(), nodes, server, served, not_served };
        print_line!("{}", serde_json::to_string(&result)?);
        return Ok(());
    }
    for made in &nodes {
        print_line!("made node.{} anew, empty, at {}", made.node, made.path.display());
    }
    let dir = units::shell_word(pool.folder.display());
    match server {
        Some(pid) => print_line!("{}", what_servers_do(pid, nodes.len(), &served)),
        None => print_line!(
            "next: fieldstone rebuild {dir}, or serve its volumes: a server rebuilds by itself"
        ),
    }
    if let Some(not_served) = not_served.filter(|names| !names.is_empty()) {
        print_line!(
            "not rebuilt: {}, which no server serves; serve all volumes of the pool, or end its \
             servers and run fieldstone rebuild {dir}",
            not_served.join(", ")
        );
    }
    Ok(())
}

/// The names of the volumes that one of the servers serves, and of those that none serves.
/// The latter is unknown without a server, or if a server could not list the volumes.
fn served_and_not(reports: &[PoolReport]) -> (Vec<String>, Option<Vec<String>>) {
    let volumes = reports.iter().flat_map(|report| &report.volumes);
    let served: BTreeSet<&String> =
        volumes.filter(|volume| volume.is_of_pool()).map(|volume| &volume.name).collect();
    let are_known = !reports.is_empty() && reports.iter().all(|report| report.not_served.is_some());
    let others = reports.iter().flat_map(|report| report.not_served.iter().flatten());
    let others: BTreeSet<&String> = others.filter(|name| !served.contains(name)).collect();
    let names = |set: BTreeSet<&String>| set.into_iter().cloned().collect();
    (names(served), are_known.then(|| names(others)))
}

/// A sentence for the user: the server with this process id takes in `made` new nodes, and rebuilds
/// the volumes `served`.
fn what_servers_do(pid: u32, made: usize, served: &[String]) -> String {
    let nodes = if made == 1 { "it" } else { "them" };
    let takes = format!("the server, process {pid}, takes {nodes} in within seconds");
    if served.is_empty() {
        return takes;
    }
    let served = served.join(", ");
    format!("{takes}, and rebuilds {served} unless it was started with --no-auto-rebuild")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_server::report::VolumeReport;

    #[test]
    fn volumes_that_no_server_serves_are_named() {
        let report = |served: &[&str], others: &[&str]| PoolReport {
            volumes: served
                .iter()
                .map(|name| VolumeReport { name: (*name).to_owned(), ..VolumeReport::default() })
                .collect(),
            not_served: Some(others.iter().map(|name| (*name).to_owned()).collect()),
            ..PoolReport::default()
        };
        let two = [report(&["a"], &["b", "c"]), report(&["b"], &["a", "c"])];
        let (served, not_served) = served_and_not(&two);
        assert_eq!((served.join(","), not_served), ("a,b".into(), Some(vec!["c".to_owned()])));
        assert_eq!(served_and_not(&[]).1, None, "no server knows");
        let text = what_servers_do(7, 2, &served);
        assert!(text.contains("takes them in") && text.contains("rebuilds a, b "), "{text}");
        assert!(!what_servers_do(7, 1, &[]).contains("rebuilds"));
    }
}
