//! `fieldstone pool admit|clients|evict`: the clients that do not have the pool's folder.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use fieldstone_server::admission::{Credential, Evicted, Grant, Registry, Unfenced, change};
use fieldstone_server::control::{Request, Response};
use fieldstone_server::pool::Pool;
use fieldstone_server::running::Operator;
use fieldstone_uring::Address;
use serde::Serialize;

use crate::command::nodes::NodeOptions;
use fieldstone_units as units;

/// Options of `pool admit`.
#[derive(clap::Args, Debug)]
pub struct Admit {
    /// The pool. It may be served meanwhile.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// A name for the client. To give a client other volumes, evict it, and admit it again.
    #[arg(value_name = "NAME")]
    name: String,
    /// Where the client reaches a metadata service of the pool: the address of a `serve --metadata`
    /// as it is on the client's machine. May be repeated.
    #[arg(long, value_name = "HOST:PORT", required = true)]
    metadata: Vec<String>,
    /// A volume that the client may open, by its name. May be repeated. Without this option, the
    /// client may open each volume of the pool.
    #[arg(long, value_name = "VOLUME")]
    volume: Vec<String>,
    /// The file for the credential, with which the client shows who it is. It must not exist. Copy
    /// it to the client's machine, and let only the client read it. Without this option, the
    /// credential goes to stdout.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Options of `pool clients`.
#[derive(clap::Args, Debug)]
pub struct List {
    /// The pool.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print the list as JSON.
    #[arg(long)]
    json: bool,
}

/// Options of `pool evict`.
#[derive(clap::Args, Debug)]
pub struct Evict {
    /// The pool. It may be served meanwhile. If a node does not answer, the command fails, and can
    /// be repeated.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The name of the client.
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    nodes: NodeOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `pool admit`.
///
/// # Errors
/// The name is taken, or a file cannot be read or written.
pub fn admit(args: &Admit) -> anyhow::Result<()> {
    let metadata = args.metadata.iter().map(|address| metadata_address(address));
    let metadata = metadata.collect::<anyhow::Result<Vec<String>>>()?;
    let pool = Pool::open(&args.dir)?;
    if let Some(path) = args.output.as_ref().filter(|path| path.exists()) {
        bail!("{} exists already; name a file that does not", path.display());
    }
    let volumes = (!args.volume.is_empty()).then(|| args.volume.clone());
    let secret = change(&args.dir, pool.id, |all| all.admit(&args.name, volumes))?;
    let credential = Credential { pool: pool.id, client: args.name.clone(), secret, metadata };
    let Some(path) = &args.output else {
        print_line!("{}", credential.to_text().trim_end());
        return Ok(());
    };
    if let Err(error) = credential.write(path) {
        // No file has the client's secret, so the registry must not keep the client either.
        change(&args.dir, pool.id, |all| all.evict(&args.name))?;
        return Err(error);
    }
    let (name, file) = (&args.name, path.display());
    print_line!("admitted {name}; its credential is in {file}");
    let volume = args.volume.first().map_or("VOLUME", String::as_str);
    let target = units::shell_word(format_args!("client:{file}/{volume}"));
    print_line!("next, where the client runs: fieldstone serve {target} --nbd unix:SOCKET");
    Ok(())
}

/// The address of a metadata service, without the scheme.
fn metadata_address(address: &str) -> anyhow::Result<String> {
    let plain = address.strip_prefix("tcp:").unwrap_or(address);
    let parsed = format!("tcp:{plain}").parse();
    let Address::Tcp { host, port } =
        parsed.with_context(|| format!("{address:?} is not of the form HOST:PORT"))?
    else {
        bail!("{address:?} is not of the form HOST:PORT");
    };
    if port == 0 || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
        bail!("{address:?}: give the address and the port that the client connects to");
    }
    Ok(plain.to_owned())
}

#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    /// The volumes that it may open; `None` for all.
    volumes: Option<&'a [String]>,
    /// When it was admitted, in seconds since 1970.
    admitted: u64,
    has: Vec<Held<'a>>,
}

/// What a client has of a volume.
#[derive(Serialize)]
struct Held<'a> {
    volume: &'a str,
    epoch: u64,
    /// When the last of its capabilities expires, in seconds since 1970.
    expires: u64,
}

/// Runs `pool clients`.
///
/// # Errors
/// A file of the pool cannot be read.
pub fn list(args: &List) -> anyhow::Result<()> {
    let pool = Pool::open(&args.dir)?;
    let registry = Registry::read(&args.dir, pool.id)?;
    let listed = registry.clients().iter().map(|client| Listed {
        name: &client.name,
        volumes: client.volumes.as_deref(),
        admitted: client.admitted,
        has: held_by(&registry, &client.name),
    });
    let listed: Vec<Listed<'_>> = listed.collect();
    if args.json {
        print_line!("{}", serde_json::to_string(&listed)?);
        return Ok(());
    }
    let dir = args.dir.display();
    if listed.is_empty() {
        print_line!("the pool {dir} admits no clients; `fieldstone pool admit` adds one");
    }
    for Listed { name, volumes, has, .. } in listed {
        let may = match volumes {
            None => "all volumes".to_owned(),
            Some(names) => names.join(", "),
        };
        print_line!("{name}: may open {may}");
        for Held { volume, epoch, expires } in has {
            let left = until(expires);
            print_line!("  {volume}: a capability for epoch {epoch}, for another {left}");
        }
    }
    Ok(())
}

/// What a client has, by volume. Several of its processes may have opened a volume, one after the
/// other.
fn held_by<'a>(registry: &'a Registry, client: &str) -> Vec<Held<'a>> {
    let mut held: Vec<Held<'a>> = Vec::new();
    // What a process has closed is of no use to it, and epoch 0 was for a look at the nodes.
    let of_it = |grant: &&Grant| {
        let in_use = grant.epoch().0 > 0 && grant.generations().next().is_some();
        grant.client == client && in_use
    };
    for grant in registry.grants().iter().filter(of_it) {
        let epoch = grant.epoch().0;
        match held.iter_mut().find(|held| held.volume == grant.name) {
            Some(held) => {
                held.epoch = held.epoch.max(epoch);
                held.expires = held.expires.max(grant.expires);
            }
            None => held.push(Held { volume: &grant.name, epoch, expires: grant.expires }),
        }
    }
    held
}

/// The time until a number of seconds since 1970.
fn until(expires: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let seconds = expires.saturating_sub(now);
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min", seconds / 60) }
}

/// Runs `pool evict`.
///
/// # Errors
/// There is no such client, or a node could not be told.
pub fn evict(args: &Evict) -> anyhow::Result<()> {
    let client = args.name.clone();
    let mut operator = Operator::find(&args.dir, None, &args.nodes.fixed)?;
    let evicted = match &mut operator {
        Operator::Own(running) => running.evict(&client),
        Operator::Server(server) => match server.ask(&Request::Evict { client }) {
            Ok(Response::Evicted(evicted)) => Ok(evicted),
            Ok(other) => bail!("the server answered out of turn: {other:?}"),
            Err(error) => Err(error),
        },
    };
    operator.finish()?;
    let evicted = evicted?;
    if args.json {
        print_line!("{}", serde_json::to_string(&evicted)?);
    }
    report(args, &evicted)
}

fn report(args: &Evict, Evicted { fenced, unfenced }: &Evicted) -> anyhow::Result<()> {
    let name = &args.name;
    if !args.json {
        print_line!("the pool admits {name} no more");
        for volume in fenced {
            print_line!("{volume}: ended the writer that {name} may have there");
        }
    }
    if unfenced.is_empty() {
        return Ok(());
    }
    let line = |Unfenced { volume, node, reason, expires }: &Unfenced| {
        let left = until(*expires);
        format!("\n  {volume}: node.{node} accepts its capabilities for another {left}: {reason}")
    };
    let lines: String = unfenced.iter().map(line).collect();
    bail!("{name} is evicted, but not every node could be told; repeat the command later{lines}")
}
