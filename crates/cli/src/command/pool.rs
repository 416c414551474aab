//! `fieldstone pool create|show|replace|rotate-key|admit|clients|evict`.

mod clients;
mod replace;
mod rotate_key;

use std::path::PathBuf;

use clap::Subcommand;
use fieldstone_codes::Profile;
use fieldstone_server::pool::{Encode, POOL_FILE, Pool, Sizes, Strategy, create};
use serde::Serialize;

use fieldstone_units as units;

/// Work on pools.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a pool: a folder with one folder per storage node.
    Create(Create),
    /// Show the description of a pool.
    Show(Show),
    /// Make an empty node in place of a lost one.
    Replace(replace::Args),
    /// Replace the pool's secret while the pool serves, and revoke what the old one signed.
    RotateKey(rotate_key::Args),
    /// Admit a client: a program on another machine that opens volumes without the pool's folder.
    Admit(clients::Admit),
    /// List the clients that the pool admits, and the volumes that each has a capability for.
    Clients(clients::List),
    /// Evict a client: it gets no further capability, and the volumes that it has open are fenced.
    Evict(clients::Evict),
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
    /// The code of volumes that do not choose another: rs:K+M, copies:N, zigzag:K+M, clay:K+M or
    /// another of Ceph's codes, such as rs-van:K+M.
    #[arg(long, value_name = "CODE", default_value = "rs:4+2")]
    code: Profile,
    /// Size of each node. Nodes take space only as they are used. [default: a fair share of the
    /// free space]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    node_size: Option<u64>,
    /// How the records of a volume's journal, and copies, reach their nodes. flat: the server sends
    /// each record to each node. ring, tree, primary: it sends each record once, and the nodes pass
    /// it on: each to the next one, each to two others, or the first one to all others. With
    /// primary, data nodes also pass on the parity that the server makes. Older releases cannot
    /// open a pool that is not flat.
    #[arg(long, value_name = "WAY", default_value = "flat")]
    replicate: Strategy,
    /// Who makes the parity of new segments. client: the server, which sends it to the nodes.
    /// stream: the nodes, while they store the data, so the server sends only the data. The code
    /// has 1 to 15 parity shards. Older releases cannot open such a pool.
    #[arg(long, value_name = "WAY", default_value = "client")]
    encode: Encode,
    /// Make the pool even if its nodes are larger than the free space of their file systems. The
    /// disk is then full before the nodes are.
    #[arg(long)]
    overcommit: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Options of `pool show`.
#[derive(clap::Args, Debug)]
pub struct Show {
    /// The folder of the pool.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print the description as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Created {
    pool: String,
    dir: PathBuf,
    nodes: u16,
    code: String,
    replicate: String,
    encode: String,
    /// The generation of the pool's secret that signs, and the generations that are accepted.
    key_generation: u16,
    key_generations: Vec<u16>,
    node_bytes: u64,
    data_bytes: u64,
}

/// Runs `pool …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Create(args) => {
            let sizes = Sizes { node_bytes: args.node_size, overcommit: args.overcommit };
            let ways = (args.replicate, args.encode);
            let pool = create(&args.dir, args.nodes, args.code, ways, sizes)?;
            print(&pool, args.json, true)
        }
        Command::Show(args) => print(&Pool::open(&args.dir)?, args.json, false),
        Command::Replace(args) => replace::run(args),
        Command::RotateKey(args) => rotate_key::run(args),
        Command::Admit(args) => clients::admit(args),
        Command::Clients(args) => clients::list(args),
        Command::Evict(args) => clients::evict(args),
    }
}

const MIB: u64 = 1 << 20;

/// Prints what a pool is. `made`: it was made just now.
fn print(pool: &Pool, json: bool, made: bool) -> anyhow::Result<()> {
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
            replicate: pool.replicate.to_string(),
            encode: pool.encode.to_string(),
            key_generation: pool.keys.get().issuing().0.0,
            key_generations: rotate_key::accepted(&pool.keys.get()),
            node_bytes,
            data_bytes,
        };
        print_line!("{}", serde_json::to_string(&created)?);
        return Ok(());
    }
    let way = match pool.replicate {
        Strategy::Flat => String::new(),
        way => format!(", journals replicated by {way}"),
    };
    let copies = matches!(pool.profile, Profile::Copies { .. });
    let encode = match (pool.encode, pool.replicate) {
        (Encode::Client, Strategy::Primary) if !copies => ", parity passed on by data nodes",
        (Encode::Client, _) => "",
        (Encode::Stream, _) => ", parity made by nodes",
    };
    print_line!(
        "{} {dir}: {} nodes of {}, {} (up to {} of data, {} {} may be lost){way}{encode}",
        if made { "made the pool" } else { "the pool" },
        pool.nodes,
        units::size(node_bytes),
        pool.profile,
        units::size(data_bytes),
        pool.profile.m(),
        if pool.profile.m() == 1 { "node" } else { "nodes" },
    );
    if !made {
        if let Some(line) = rotate_key::describe(&pool.keys.get()) {
            print_line!("{line}");
        }
        return Ok(());
    }
    print_line!("its secret is in {dir}/pool.key; keep a copy of that file and of {POOL_FILE}");
    // A quarter fits also into the smallest pool, and leaves room for other volumes.
    let size = units::size_argument((data_bytes / 4 / MIB * MIB).clamp(MIB, 1024 * MIB));
    let volume = units::shell_word(format_args!("{dir}/VOLUME"));
    print_line!("next: fieldstone volume create {volume} --size {size}");
    Ok(())
}
