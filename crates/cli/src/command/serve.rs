//! `fieldstone serve`: volumes and other stores as block devices for clients.
//!
//! This file has the options. The server itself is in `fieldstone_server::serve`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgGroup, ValueEnum};
use fieldstone_block::layers::LayerOptions;
use fieldstone_block::{SettingError, Settings};
use fieldstone_console::signals::{self, Signals};
use fieldstone_fpga::{FpgaDevice, reconfigure_stress};
use fieldstone_host::{
    PAYLOAD_MEMORY_BYTES_MIN, StoreOptions, StoreTarget, TargetError, frontends, stores,
};
use fieldstone_server::admission::Credential;
use fieldstone_server::listen::{self, ClientAddress, ClientListener};
use fieldstone_server::paths::{check_name, volume_path};
use fieldstone_server::pool::{Pool, is_pool};
use fieldstone_server::running::{ReadPolicy, RunningPool, VolumeOptions};
use fieldstone_server::runtime::{DeviceName, Runtime, RuntimeOptions};
use fieldstone_server::serve::{ClientVolume, ExportSpec, ServeOptions, Server};
use fieldstone_uring::{Address, Caching, Holder};

use super::accelerator::Accel;
use super::nodes::NodeOptions;
use fieldstone_units as units;

/// Options of `serve`.
#[derive(clap::Args, Debug)]
#[group(skip)]
#[command(group(
    ArgGroup::new("address").args(["nbd", "listen", "metadata"]).required(true).multiple(true)
))]
pub struct Args {
    // The help names the kinds of stores that are registered.
    #[arg(value_name = targets_form(), help = targets_help(), required = true)]
    targets: Vec<ServeTarget>,
    /// Where to listen for NBD clients: unix:PATH or tcp:HOST:PORT. May be repeated.
    #[arg(long, value_name = "ADDR")]
    nbd: Vec<Address>,
    #[arg(long, value_name = "[KIND:]ADDR", help = listen_help())]
    listen: Vec<ClientAddress>,
    /// Cores to use, one reactor each.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    cores: u16,
    /// Open the files of nodes, and file:PATH, with O_DIRECT, past the page cache.
    #[arg(long)]
    direct: bool,
    /// The engine that computes placements and codes.
    #[arg(long, value_enum, default_value_t = Accel::Cpu)]
    accel: Accel,
    /// Serve metrics for Prometheus at http://ADDR/metrics, for example 127.0.0.1:9100.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
    /// Serve clients that do not have the pool's folder (`pool admit`) at tcp:HOST:PORT: tell them
    /// where volumes lie, and issue their capabilities. The nodes that run in this process then
    /// listen at the same host. With this option, a target may be a pool's folder, DIR: its nodes
    /// run here, and its volumes are left to clients.
    #[arg(long, value_name = "ADDR", value_parser = metadata_address)]
    metadata: Option<Address>,
    /// How long a capability of such a client is valid: 4s to 1440min. The client asks for the next
    /// one after half of this time. So it can do without the metadata service for half of this
    /// time. `pool evict` ends capabilities at once.
    #[arg(long, value_name = "TIME", default_value = "60min", requires = "metadata")]
    #[arg(value_parser = capability_lifetime)]
    capability_lifetime: u64,
    /// Size of the read cache of each volume, of file:PATH with --direct, and of images that have
    /// one; 0 for none. Without this option it is 32 MiB, and what ceph.conf says for images.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    cache: Option<u64>,
    /// Memory for payloads that clients announce and send, and for answers that they have not taken
    /// yet, all clients together. When it is used up, connections wait. A connection that keeps
    /// memory for which others wait, and is silent for up to ten seconds, is closed. Each
    /// connection has another half a MiB.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = payload_memory)]
    payload_memory: usize,
    /// Memory for parity that the nodes of this process make, all nodes together (`pool create
    /// --encode stream`): half of it for what they add up, half for what they send to the nodes
    /// that add up. One volume may use a quarter of each. Where it is used up, the server makes the
    /// parity itself.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parity_memory)]
    parity_memory: usize,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
    /// The policy for merging requests.
    #[arg(long, value_enum, default_value_t = Scheduling::Mean)]
    scheduler: Scheduling,
    /// Bound the rate of each device, for example iops=500,bytes=20M,burst=100ms; 0 for no bound.
    /// Connections share the rate fairly. `volume limit` changes it while the server runs.
    #[arg(long, value_name = "OPTION=VALUE,…", value_parser = limit)]
    limit: Option<Settings>,
    /// Options of a layer of each device, such as cache:bypass=64K or delay:read=10ms, or LAYER:off
    /// to omit a layer. docs/layers.md lists layers and options. May be repeated.
    #[arg(long, value_name = "LAYER:OPTION=VALUE,…", value_parser = layer)]
    layer: Vec<String>,
    /// Take volumes over from a writer that is still connected to their nodes.
    #[arg(long)]
    takeover: bool,
    /// Restore missing shards only when `fieldstone rebuild` asks for it.
    #[arg(long)]
    no_auto_rebuild: bool,
    /// Which copy answers a read of a volume with copies:N. primary: the first one; balance: the
    /// one whose node has the fewest blocks to deliver to the volume.
    #[arg(long, value_name = "WAY", default_value = "primary")]
    reads: ReadPolicy,
    /// Most bytes per second that rebuild and scrub read; 0 for no limit.
    #[arg(long, value_name = "RATE", default_value = "0", value_parser = units::parse_rate)]
    rebuild_limit: u64,
    /// For tests: change the module of the device's partition N times while serving.
    #[arg(long, value_name = "N", hide = true)]
    exercise_swaps: Option<u64>,
    /// Make an empty node in place of a lost one, without a command: only if nothing exists at its
    /// path, its folder lay on the pool's own file system before, and the code makes up for the
    /// lost data. Without this option, only `fieldstone pool replace` makes nodes.
    #[arg(long)]
    replace_missing: bool,
    #[command(flatten)]
    nodes: NodeOptions,
}

/// The policy for merging requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scheduling {
    /// Wait for adjacent requests up to half the mean latency; do not wait while the queue is
    /// shallow.
    Mean,
    /// Like the "simple" scheduler of librbd: wait up to half the sum of the last ten latencies.
    AsShipped,
    /// Pass every request on at once, unmerged.
    Off,
}

/// One target of `serve`, with the name of its export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeTarget {
    /// The name that the user gave the export.
    export: Option<String>,
    /// The target's text, without that name.
    text: String,
    serving: Serving,
}

impl FromStr for ServeTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A path may contain "=", but the name of an export is no path and has no scheme.
        let (export, target) = match text.split_once('=') {
            Some((name, target)) if !name.contains(['/', ':']) => (Some(name), target),
            _ => (None, text),
        };
        if let Some(name) = export {
            check_name(name).map_err(|error| format!("{error:#}"))?;
        }
        let serving = target.parse()?;
        Ok(Self { export: export.map(str::to_owned), text: target.to_owned(), serving })
    }
}

impl ServeTarget {
    fn is_client(&self) -> bool {
        matches!(self.serving, Serving::Client(..))
    }

    /// Whether it is a pool's folder, without a name for an export.
    fn is_pool(&self) -> bool {
        matches!(&self.serving, Serving::Volume(path) if self.export.is_none() && is_pool(path))
    }
}

/// The kind of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Serving {
    /// A volume of a pool, or a pool.
    Volume(PathBuf),
    /// A volume of a pool that admits this process as a client: the file with the credential, and
    /// the name of the volume.
    Client(PathBuf, String),
    /// A store that needs no pool.
    Store(StoreTarget),
}

impl FromStr for Serving {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(argument) = text.strip_prefix(CLIENT_SCHEME) {
            return client_target(argument);
        }
        match text.parse() {
            Ok(target) => Ok(Self::Store(target)),
            Err(TargetError::NoScheme) => Ok(Self::Volume(Path::new(text).to_path_buf())),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The value of `--metadata`: HOST:PORT, with or without the scheme.
fn metadata_address(text: &str) -> Result<Address, String> {
    let plain = text.strip_prefix("tcp:").unwrap_or(text);
    let address = format!("tcp:{plain}").parse();
    address.map_err(|_| format!("{text:?} is not of the form tcp:HOST:PORT"))
}

/// The value of `--capability-lifetime`, in nanoseconds.
///
/// # Errors
/// The text is no time, or one that is too short or too long.
fn capability_lifetime(text: &str) -> Result<u64, String> {
    const SECOND_NS: u64 = 1_000_000_000;
    let ns = units::parse_duration_ns(text)?;
    if !(4 * SECOND_NS..=86_400 * SECOND_NS).contains(&ns) {
        return Err(format!("{text} is not from 4s to 1440min"));
    }
    Ok(ns)
}

/// The start of a target that is a volume of a pool whose client this process is.
const CLIENT_SCHEME: &str = "client:";

/// Reads the `FILE/VOLUME` of `client:FILE/VOLUME`.
fn client_target(argument: &str) -> Result<Serving, String> {
    let form = || format!("client:{argument} is not of the form client:FILE/VOLUME");
    let (file, volume) = argument.rsplit_once('/').ok_or_else(form)?;
    if file.is_empty() {
        return Err(form());
    }
    check_name(volume).map_err(|error| format!("{error:#}"))?;
    Ok(Serving::Client(PathBuf::from(file), volume.to_owned()))
}

/// The value of `--payload-memory`, in bytes.
///
/// # Errors
/// The text is no size, or the size is less than the minimum.
pub fn payload_memory(text: &str) -> Result<usize, String> {
    let bytes = units::parse_size(text)?;
    let bytes = usize::try_from(bytes).map_err(|_| format!("{text} is more than can be had"))?;
    if bytes < PAYLOAD_MEMORY_BYTES_MIN {
        let least = units::size(PAYLOAD_MEMORY_BYTES_MIN as u64);
        return Err(format!("{text} is too little for large requests; the least is {least}"));
    }
    Ok(bytes)
}

/// The value of `--parity-memory`, in bytes.
///
/// # Errors
/// The text is no size, or the size is more than can be addressed.
pub fn parity_memory(text: &str) -> Result<usize, String> {
    let bytes = units::parse_size(text)?;
    usize::try_from(bytes).map_err(|_| format!("{text} is more than can be had"))
}

/// Runs `serve`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let signals = Signals::install_for_server()?;
    // An address that is in use fails here, before anything is opened.
    let listeners = bind(args)?;
    // A pool's folder as a target exports nothing.
    let (folders, targets): (Vec<&ServeTarget>, Vec<&ServeTarget>) =
        args.targets.iter().partition(|target| args.metadata.is_some() && target.is_pool());
    let mut pools = Vec::new();
    for target in &folders {
        if let Serving::Volume(folder) = &target.serving {
            add_pool(&mut pools, folder)?;
        }
    }
    let volumes = volumes_of(&targets, &mut pools)?;
    if args.metadata.is_some() && pools.is_empty() {
        bail!("--metadata needs a pool: name its folder, or a volume of it");
    }
    if args.metadata.is_some() && args.read_only {
        bail!("--read-only is for devices that this server exports; clients of the pool may write");
    }
    if pools.is_empty() && !args.nodes.fixed.is_empty() && targets.iter().any(|t| t.is_client()) {
        bail!("--node is for a pool's folder; a client learns the nodes from the metadata service");
    }
    if targets.is_empty() && !listeners.is_empty() {
        bail!("--nbd and --listen need a volume or another device to export");
    }
    if listeners.is_empty()
        && let Some(target) = targets.first()
    {
        bail!("{} needs --nbd or --listen, where its clients connect", target.text);
    }
    let exports = export_names(&targets, &volumes)?;
    let devices = devices(args, &targets, volumes, exports)?;
    let (runtime, running_pools) = start(args, pools)?;
    let last = Arc::clone(&runtime);
    signals::at_second(move || last.unclosed());
    let served = serve(args, &runtime, running_pools, devices, listeners, &signals);
    let finished = runtime.finish();
    served.and(finished)
}

fn bind(args: &Args) -> anyhow::Result<Vec<ClientListener>> {
    let nbd = args.nbd.iter().cloned();
    let nbd = nbd.map(|address| ClientAddress { frontend: &frontends::nbd::KIND, address });
    let all: Vec<ClientAddress> = nbd.chain(args.listen.iter().cloned()).collect();
    let addresses: Vec<Address> = all.iter().map(|listen| listen.address.clone()).collect();
    if let Some(address) = given_twice(&addresses) {
        bail!("the address {address} is given twice");
    }
    let listener = |ClientAddress { frontend, address }: ClientAddress| {
        Ok(ClientListener { frontend, listener: listen::bind(&address)? })
    };
    all.into_iter().map(listener).collect()
}

/// The forms of targets.
fn targets_form() -> &'static str {
    let mut text = "[NAME=]DIR/VOLUME|client:FILE/VOLUME".to_owned();
    for kind in stores::KINDS {
        let _ = write!(text, "|{}:{}", kind.scheme, kind.argument);
    }
    text.leak()
}

fn targets_help() -> String {
    let mut text = "The targets to serve: DIR/VOLUME for a volume of the pool in DIR, \
                    client:FILE/VOLUME for a volume of a pool that admits this client (FILE is \
                    the credential that `pool admit` made)"
        .to_owned();
    for kind in stores::KINDS {
        let _ = write!(text, ", {}:{} for {}", kind.scheme, kind.argument, kind.about);
    }
    text.push_str(
        ". The export has the name of the volume, file or image, or `ram` and the target's place \
         (ram2 for the third target, `ram` for the first). NAME=TARGET gives it another name: two \
         volumes of the same name need that. The first target is also the default export",
    );
    text
}

fn listen_help() -> String {
    let mut text =
        "Where to listen: unix:PATH or tcp:HOST:PORT, after the kind of clients".to_owned();
    for kind in listen::listening() {
        let _ = write!(text, "; {}: {}", kind.name, kind.about);
    }
    let _ = write!(text, ". Without a kind: {}. May be repeated", frontends::DEFAULT.name);
    text
}

/// An address that is in the list twice. Port 0 is a different port each time.
fn given_twice(addresses: &[Address]) -> Option<&Address> {
    let is_fixed = |address: &Address| !matches!(address, Address::Tcp { port: 0, .. });
    let mut numbered = addresses.iter().enumerate();
    let twice =
        numbered.find(|(at, address)| is_fixed(address) && addresses[..*at].contains(address));
    twice.map(|(_, address)| address)
}

/// A volume to serve.
struct VolumeTarget {
    /// The index of its pool.
    pool: usize,
    name: DeviceName,
}

/// The index of the pool in a folder among `pools`. If it is not among them, it is opened.
fn add_pool(pools: &mut Vec<Pool>, folder: &Path) -> anyhow::Result<usize> {
    if let Some(place) = pools.iter().position(|pool| pool.folder == folder) {
        return Ok(place);
    }
    let pool = Pool::open(folder)?;
    if let Some(same) = pools.iter().find(|other| other.id == pool.id) {
        bail!(
            "{} and {} are the same pool, or one is a copy of the other; name one folder",
            same.folder.display(),
            pool.folder.display()
        );
    }
    pools.push(pool);
    Ok(pools.len() - 1)
}

/// The volumes to serve. Their pools are added to `pools`.
fn volumes_of(
    targets: &[&ServeTarget],
    pools: &mut Vec<Pool>,
) -> anyhow::Result<Vec<VolumeTarget>> {
    let mut volumes: Vec<VolumeTarget> = Vec::new();
    for target in targets {
        let Serving::Volume(path) = &target.serving else { continue };
        let found = volume_path(path)?;
        let pool = add_pool(pools, &found.pool)?;
        let name = DeviceName::volume(pools[pool].id, &found.volume);
        if volumes.iter().any(|other| other.name == name) {
            bail!("{} is named twice", path.display());
        }
        volumes.push(VolumeTarget { pool, name });
    }
    Ok(volumes)
}

/// The first given option that only volumes have, and why other stores have no use for it.
fn option_of_volumes(args: &Args) -> Option<(String, &'static str)> {
    let options = [
        (args.accel != Accel::Cpu, "accel", "nothing to place or to code"),
        (!args.nodes.fixed.is_empty(), "node", "no nodes"),
        (args.replace_missing, "replace-missing", "no nodes"),
        (args.takeover, "takeover", "no writer that could be connected to nodes"),
        (args.no_auto_rebuild, "no-auto-rebuild", "nothing to rebuild"),
        (args.rebuild_limit != 0, "rebuild-limit", "nothing to rebuild"),
        (args.reads != ReadPolicy::default(), "reads", "no copies on nodes"),
        (args.exercise_swaps.is_some(), "exercise-swaps", "no device"),
    ];
    let (_, name, lacking) = options.into_iter().find(|(given, ..)| *given)?;
    Some((format!("--{name}"), lacking))
}

/// Starts the cores, and the nodes of all pools.
fn start(args: &Args, pools: Vec<Pool>) -> anyhow::Result<(Arc<Runtime>, Vec<RunningPool>)> {
    if pools.is_empty()
        && !args.targets.iter().any(ServeTarget::is_client)
        && let Some((option, lacking)) = option_of_volumes(args)
    {
        bail!("{option} needs a volume: other stores have {lacking}");
    }
    if pools.len() > 1 && !args.nodes.fixed.is_empty() {
        bail!(
            "--node does not say of which of {} pools the node is; start a server for each pool",
            pools.len()
        );
    }
    let options = RuntimeOptions {
        cores: usize::from(args.cores),
        pin: args.cores > 1,
        caching: caching(args),
        frontends: frontends::KINDS.to_vec(),
        tell: |line| eprint_line!("fieldstone: {line}"),
        payload_memory_bytes: args.payload_memory,
        parity_memory_bytes: args.parity_memory,
        fixed: args.nodes.fixed.clone(),
        holder: Holder::Server,
        replace_missing: args.replace_missing,
        accelerator: args.accel.start()?,
    };
    listen::raise_open_files();
    Runtime::start(pools, &options)
}

fn caching(args: &Args) -> Caching {
    if args.direct { Caching::Direct } else { Caching::Buffered }
}

/// The names of the exports, in the order of their targets.
///
/// # Errors
/// Two targets have the same name. A name that the server chose would depend on the other targets:
/// with one target more, a client could write to another volume than before.
fn export_names(targets: &[&ServeTarget], volumes: &[VolumeTarget]) -> anyhow::Result<Vec<String>> {
    let mut taken: BTreeMap<String, &str> = BTreeMap::new();
    let mut names = Vec::new();
    let mut volumes = volumes.iter();
    for (index, target) in targets.iter().enumerate() {
        let own = match &target.serving {
            Serving::Volume(_) => {
                volumes.next().context("every volume has a name")?.name.name.clone()
            }
            Serving::Client(_, volume) => volume.clone(),
            Serving::Store(store) => store.name(index),
        };
        let name = target.export.clone().unwrap_or(own);
        if let Some(other) = taken.insert(name.clone(), &target.text) {
            bail!(
                "{other} and {} would both be the export {name:?}; give one of them another name: \
                 NAME={}",
                target.text,
                target.text
            );
        }
        names.push(name);
    }
    Ok(names)
}

/// Reads `--limit`.
fn limit(text: &str) -> Result<Settings, String> {
    let settings = Settings::parse(&format!("limit:{text}")).map_err(|_| {
        format!("{text:?} is not of the form OPTION=VALUE,…; the options are iops, bytes and burst")
    })?;
    let checked = LayerOptions::default().add_settings(settings.clone());
    checked.map(|()| settings).map_err(|error| error.to_string())
}

/// Checks one `--layer`.
fn layer(text: &str) -> Result<String, SettingError> {
    LayerOptions::default().add(text)?;
    Ok(text.to_owned())
}

/// The layers of a device. `--layer` overrides the other options, and these what the store asks
/// for.
fn layers(args: &Args, of_store: &LayerOptions) -> anyhow::Result<LayerOptions> {
    let mut layers = LayerOptions::default();
    let policy = match args.scheduler {
        Scheduling::Mean => "mean",
        Scheduling::AsShipped => "as-shipped",
        Scheduling::Off => "off",
    };
    layers.add(&format!("scheduler:policy={policy}"))?;
    // If the store's contents are in memory already, it asks for no read cache. The scheduler
    // stays: its cost is not measurable there, and so the device uses the same layers as volumes.
    layers.merge(of_store);
    match args.cache {
        Some(0) => layers.add("cache:off")?,
        Some(bytes) if !of_store.leaves_out("cache") => {
            layers.add(&format!("cache:capacity={bytes}"))?;
        }
        _ => {}
    }
    if let Some(limit) = &args.limit {
        layers.add_settings(limit.clone())?;
    }
    for text in &args.layer {
        layers.add(text)?;
    }
    Ok(layers)
}

/// The devices to open.
fn devices(
    args: &Args,
    targets: &[&ServeTarget],
    volumes: Vec<VolumeTarget>,
    exports: Vec<String>,
) -> anyhow::Result<Vec<ExportSpec>> {
    let mut volumes = volumes.into_iter();
    let options = || -> anyhow::Result<VolumeOptions> {
        Ok(VolumeOptions {
            inspect: false,
            takeover: args.takeover,
            auto_rebuild: !args.no_auto_rebuild,
            rebuild_limit: args.rebuild_limit,
            reads: args.reads,
            layers: layers(args, &LayerOptions::default())?,
        })
    };
    let devices = targets.iter().zip(exports).map(|(target, export)| match &target.serving {
        Serving::Store(target) => {
            let options = StoreOptions { caching: caching(args), read_only: args.read_only };
            let of_store = target.layers(options).map_err(anyhow::Error::msg)?;
            let layers = layers(args, &of_store)?;
            Ok(ExportSpec::Store(export, target.clone(), options, layers))
        }
        Serving::Volume(_) => {
            let VolumeTarget { pool, name } = volumes.next().context("every volume has a name")?;
            Ok(ExportSpec::Volume { pool, name, export, options: options()? })
        }
        Serving::Client(credential, volume) => {
            // A credential that cannot be used is reported before anything is opened.
            Credential::read(credential)?;
            let (credential, volume) = (credential.clone(), volume.clone());
            let client = ClientVolume { credential, volume, options: options()? };
            Ok(ExportSpec::Client { client, export })
        }
    });
    devices.collect()
}

fn serve(
    args: &Args,
    runtime: &Arc<Runtime>,
    running_pools: Vec<RunningPool>,
    devices: Vec<ExportSpec>,
    listeners: Vec<ClientListener>,
    signals: &Signals,
) -> anyhow::Result<()> {
    let options = ServeOptions {
        devices,
        listeners,
        metrics: args.metrics.clone(),
        metadata: args
            .metadata
            .clone()
            .map(|address| (address, Duration::from_nanos(args.capability_lifetime))),
        read_only: args.read_only,
        announce,
    };
    let running_pools: Vec<Arc<RunningPool>> = running_pools.into_iter().map(Arc::new).collect();
    let server = Server::start(runtime, &running_pools, options, signals.sender())?;
    let exercise = match args.exercise_swaps {
        Some(count) => Some(Exercise::start(runtime, count)?),
        None => None,
    };
    let outcome = server.wait(signals);
    drop(exercise);
    server.end();
    outcome
}

/// Prints the text that says what is served. A server whose stdout is closed continues to serve.
fn announce(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!("cannot say what is served: {error}");
    }
}

/// A second user of the FPGA device, which changes the module of its partition.
struct Exercise {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exercise {
    fn start(runtime: &Runtime, count: u64) -> anyhow::Result<Self> {
        let card = runtime.accelerator().card().context("--exercise-swaps needs --accel rtl")?;
        let mut device = FpgaDevice::open(card, false)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("exercise".to_owned()).spawn(move || {
            let go_on = |_: &reconfigure_stress::StressReport| !stopped.load(Ordering::Relaxed);
            let report = reconfigure_stress::run(&mut device, 1, count, go_on);
            print_line!(
                "exercise: {} swaps, {} placements by the device, {} given back, {} failed, \
                 {} wrong",
                report.swaps,
                report.device_jobs,
                report.given_back,
                report.failed,
                report.wrong
            );
            print_line!(
                "exercise: codes {:.2} bytes per cycle during swaps ({} cycles), {:.2} between \
                 them ({} cycles)",
                report.during.bytes_per_cycle(),
                report.during.cycles,
                report.between.bytes_per_cycle(),
                report.between.cycles
            );
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Exercise {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the exercise of the device failed");
        }
    }
}
