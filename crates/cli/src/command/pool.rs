//! `fieldstone pool create|replace`.

mod replace;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use fieldstone_codes::Profile;
use fieldstone_host::folder;
use fieldstone_proto::{MasterKey, PoolId};
use serde::Serialize;

pub use replace::replace;

use crate::pool::record::{self, Place};
use crate::pool::{Layout, POOL_FILE, Pool, check_room, default_node_bytes, is_pool, random};
use fieldstone_units as units;

/// Work on pools.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a pool: a folder with one folder per storage node.
    Create(Create),
    /// Make an empty node in place of one that is lost.
    Replace(replace::Args),
}

/// Options of `pool create`.
#[derive(clap::Args, Debug)]
pub struct Create {
    /// The folder to make. Its node folders DIR/node.0 … may already exist as empty mount points.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Number of nodes.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=1024))]
    nodes: u16,
    /// How volumes are protected unless they ask for another code: rs:K+M, copies:N, zigzag:K+M,
    /// clay:K+M or another that Ceph has, such as rs-van:K+M.
    #[arg(long, value_name = "CODE", default_value = "rs:4+2")]
    code: Profile,
    /// Size of each node. Nothing is taken before it is used. [default: a fair share of the free
    /// space]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    node_size: Option<u64>,
    /// Make the pool even if its nodes are larger than the free space of their file systems. The
    /// disk is then full before the nodes are.
    #[arg(long)]
    overcommit: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Created {
    pool: String,
    dir: PathBuf,
    nodes: u16,
    code: String,
    node_bytes: u64,
    data_bytes: u64,
}

/// Runs `pool …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Create(args) => {
            let sizes = Sizes { node_bytes: args.node_size, overcommit: args.overcommit };
            let pool = create(&args.dir, args.nodes, args.code, sizes)?;
            print(&pool, args.json)
        }
        Command::Replace(args) => replace::run(args),
    }
}

/// Checks that volumes of `profile` fit on `nodes` nodes.
pub fn check_fits(profile: Profile, nodes: u16) -> anyhow::Result<()> {
    let needed = profile.shards();
    if needed > usize::from(nodes) {
        bail!("{profile} puts its shards on {needed} different nodes, and the pool has {nodes}");
    }
    Ok(())
}

/// How large the nodes of a new pool are.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Size of each; a fair share of the free space if absent.
    pub node_bytes: Option<u64>,
    /// They may be larger than the free space.
    pub overcommit: bool,
}

/// Makes a pool. Nodes come first and the pool's description last, so that an interruption leaves
/// nothing that could be mistaken for a pool.
pub fn create(dir: &Path, nodes: u16, profile: Profile, sizes: Sizes) -> anyhow::Result<Pool> {
    check_fits(profile, nodes)?;
    if is_pool(dir) {
        bail!("{} is a pool already; remove the folder to start over", dir.display());
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make the folder {}", dir.display()))?;
    let node_bytes = match sizes.node_bytes {
        Some(bytes) => bytes,
        None => default_node_bytes(dir, nodes)?,
    };
    let pool = Pool {
        folder: dir.to_path_buf(),
        id: PoolId(random()?),
        nodes,
        profile,
        layout: Layout::for_node_bytes(node_bytes)?,
        key: MasterKey(random()?.to_le_bytes()),
    };
    let folders = pool.node_indices().map(|node| pool.node_folder(node));
    check_room(dir, folders, pool.layout, sizes.overcommit)?;
    let mut made = Vec::new();
    for node in pool.node_indices() {
        let (path, superblock) = (pool.node_folder(node), pool.superblock(node));
        folder::create(&path, &superblock)?;
        made.push((node, superblock.incarnation, Place::of(dir, &path)?));
    }
    pool.write()?;
    record::update(dir, pool.id, |record| {
        for (node, incarnation, place) in made {
            record.note_made(node, incarnation, place, false);
        }
    })?;
    Ok(pool)
}

fn print(pool: &Pool, json: bool) -> anyhow::Result<()> {
    let node_bytes = pool.layout.node_bytes();
    let raw_bytes = node_bytes * u64::from(pool.nodes);
    let (k, shards) = (pool.profile.k() as u64, pool.profile.shards() as u64);
    let data_bytes = raw_bytes / shards * k;
    let dir = pool.folder.display();
    if json {
        let created = Created {
            pool: pool.id.to_string(),
            dir: pool.folder.clone(),
            nodes: pool.nodes,
            code: pool.profile.to_string(),
            node_bytes,
            data_bytes,
        };
        say!("{}", serde_json::to_string(&created)?);
        return Ok(());
    }
    say!(
        "made the pool {dir}: {} nodes of {}, {} (up to {} of data, {} {} may be lost)",
        pool.nodes,
        units::size(node_bytes),
        pool.profile,
        units::size(data_bytes),
        pool.profile.m(),
        if pool.profile.m() == 1 { "node" } else { "nodes" },
    );
    say!("its secret is in {dir}/pool.key; keep a copy of that file and of {POOL_FILE}");
    say!("next: fieldstone volume create {dir}/VOLUME --size 1G");
    Ok(())
}
