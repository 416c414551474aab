//! `fieldstone pool rotate-key`: replaces the pool's secret.

use std::path::PathBuf;

use fieldstone_proto::{PoolKeys, Rotation};
use fieldstone_server::rotation::plan::Goal;
use fieldstone_server::rotation::report::{NodeKeyState, NodeKeys};
use fieldstone_server::rotation::{Rotated, rotate};
use serde::Serialize;

use crate::command::nodes::NodeOptions;
use fieldstone_units as units;

/// Options of `pool rotate-key`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The pool. Its volumes may be served meanwhile. A rotation that was interrupted goes on.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Only store the new secret. It signs nothing until the next call. So its file DIR/pool.key
    /// can be copied to other machines with nodes of the pool first.
    #[arg(long, group = "goal")]
    prepare: bool,
    /// Sign with the new secret, and still accept what the old one signed. The next call retires
    /// the old one.
    #[arg(long, group = "goal")]
    keep_old: bool,
    /// End the rotation under way, and retire the old secret without waiting for volumes that still
    /// have requests signed with it. If none is under way, check that nodes refuse the old secret.
    #[arg(long, group = "goal")]
    retire: bool,
    #[command(flatten)]
    nodes: NodeOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Outcome {
    dir: PathBuf,
    /// The generation that signs.
    key_generation: u16,
    /// The generations that are accepted.
    key_generations: Vec<u16>,
    /// The nodes that do not have the secrets yet, most likely because they are down.
    nodes_without: Vec<NodeKeys>,
}

/// The generations whose capabilities nodes accept.
pub fn accepted(keys: &PoolKeys) -> Vec<u16> {
    (keys.oldest().0.0..=keys.newest().0.0).collect()
}

/// A line about the secrets of a pool, unless there was ever only one.
pub fn describe(keys: &PoolKeys) -> Option<String> {
    let (oldest, newest) = (keys.oldest().0, keys.newest().0);
    match keys.rotation() {
        Rotation::Settled if oldest.0 == 0 => None,
        Rotation::Settled => {
            Some(format!("its secret is that of {oldest}; older ones are retired"))
        }
        Rotation::Staged(_) => Some(format!(
            "its secret is that of {oldest}; {newest} is stored, and signs nothing yet"
        )),
        Rotation::Issuing(_) => {
            Some(format!("its secret is that of {newest}; {oldest} is still accepted"))
        }
    }
}

/// What nodes refuse that have these secrets.
fn refused(keys: &PoolKeys) -> String {
    match keys.oldest().0 {
        oldest if oldest.0 == 0 => "the pool has its first secret; there is none to refuse".into(),
        oldest => format!("every node refuses the secrets before {oldest}"),
    }
}

/// Runs `pool rotate-key`.
///
/// # Errors
/// See [`rotate`].
pub fn run(args: &Args) -> anyhow::Result<()> {
    let goal = match (args.prepare, args.keep_old, args.retire) {
        (true, ..) => Goal::Prepare,
        (_, true, _) => Goal::KeepOld,
        (.., true) => Goal::Retire,
        _ => Goal::Complete,
    };
    let mut tell = |line: &str| {
        if !args.json {
            print_line!("{line}");
        }
    };
    let Rotated { keys, others } = rotate(&args.dir, &args.nodes.fixed, goal, &mut tell)?;
    if args.json {
        let outcome = Outcome {
            dir: args.dir.clone(),
            key_generation: keys.issuing().0.0,
            key_generations: accepted(&keys),
            nodes_without: others,
        };
        print_line!("{}", serde_json::to_string(&outcome)?);
        return Ok(());
    }
    for NodeKeys { node, state, reason } in &others {
        match state {
            NodeKeyState::Down => print_line!(
                "node.{node} is down ({reason}); it reads the pool's secrets when it starts"
            ),
            _ => print_line!("node.{node}: {reason}"),
        }
    }
    if goal == Goal::Retire && others.is_empty() {
        print_line!("{}", refused(&keys));
    }
    let dir = args.dir.display();
    print_line!("keep a copy of {dir}/pool.key: the pool cannot be opened without it");
    if let Rotation::Issuing(_) | Rotation::Staged(_) = keys.rotation() {
        print_line!("next: fieldstone pool rotate-key {}", units::shell_word(dir));
    }
    Ok(())
}
