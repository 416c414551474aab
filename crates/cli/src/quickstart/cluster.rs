//! The steps of the quickstart.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_codes::Profile;
use fieldstone_console::signals::Signals;
use fieldstone_proto::NodeIndex;
use fieldstone_server::control::{Client, Request, find_server};
use fieldstone_server::pool::{Encode, Pool, Sizes, Strategy, create};
use fieldstone_server::replace::replace;
use fieldstone_server::report::{PoolReport, VolumeReport};
use fieldstone_server::running::RunningPool;
use fieldstone_server::runtime::RuntimeOptions;
use fieldstone_uring::Address;

use super::pattern::{Moved, Pattern, check_signal};
use super::processes::{DemoFolder, Process};
use crate::command::accelerator::Accel;
use crate::nbd_disk::NbdDisk;
use crate::progress::{new_bar, show};
use crate::report::{engine_text, stage_table};
use fieldstone_units::{rate, shell_word, size};

/// Name of the volume.
const VOLUME: &str = "demo";
/// The minimum number of nodes. A code with more shards needs more.
const NODES_MIN: u16 = 6;
/// Random requests of each kind; at most one per block of the volume.
const RANDOM_REQUESTS: u64 = 20_000;
/// Random requests in flight.
const RANDOM_DEPTH: usize = 32;
/// The longest wait for the server to notice that a node is gone.
const LOSS_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for a rebuild.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(600);

/// The options of the quickstart.
pub struct Options {
    /// The folder; `None` for a temporary one.
    pub dir: Option<PathBuf>,
    /// The code of the pool and its volume.
    pub profile: Profile,
    /// The engine of the server.
    pub accel: Accel,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Keep the folder at the end.
    pub keep: bool,
}

/// The running processes, and their pool. Fields are dropped in this order, so the processes end
/// before their folder is removed.
struct Cluster {
    server: Option<Process>,
    nodes: Vec<Option<Process>>,
    pool: Pool,
    nbd: Address,
    accel: Accel,
    work: DemoFolder,
}

/// Runs the quickstart.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let signals = Signals::install()?;
    let begun = Instant::now();
    let work = DemoFolder::make(options.dir.as_deref(), options.keep)?;
    let mut cluster = Cluster::build(options, work)?;
    print_line!(
        "Fieldstone quickstart: {} nodes, {}, a volume of {}, over NBD",
        cluster.pool.nodes,
        options.profile,
        size(options.size_bytes)
    );
    print_line!("  in {}\n", cluster.work.folder.display());
    check_signal(&signals)?;
    let mut disk = NbdDisk::connect(&cluster.nbd, VOLUME)?;
    let mut pattern = Pattern::new(disk.size_bytes());

    print_line!("healthy");
    row("write, in order", &pattern.write_all(&mut disk, &signals)?);
    row("read and compare", &pattern.check_all(&mut disk, &signals)?);
    let count = RANDOM_REQUESTS.min(options.size_bytes / 4096);
    row("write 4 KiB at random", &pattern.write_random(&mut disk, count, RANDOM_DEPTH, &signals)?);
    row("read 4 KiB at random", &pattern.check_random(&mut disk, count, RANDOM_DEPTH, &signals)?);
    let before = cluster.report()?;

    let victims = cluster.nodes_to_kill(options.profile);
    print_line!("\n{} killed with SIGKILL, folders deleted", names(&victims));
    cluster.kill(&victims)?;
    row("read and compare", &pattern.check_all(&mut disk, &signals)?);
    let writes = pattern.write_random(&mut disk, count / 10, RANDOM_DEPTH, &signals)?;
    row("write 4 KiB at random", &writes);
    let degraded = cluster.volume()?;
    print_line!(
        "  {:<24} {} reads decoded, {} segments degraded, {} lost",
        "state",
        degraded.degraded_reads,
        degraded.segments_degraded,
        degraded.segments_lost
    );

    print_line!("\n{} replaced by empty ones", names(&victims));
    cluster.replace(&victims)?;
    let rebuilt = cluster.watch_rebuild(&signals)?;
    print_rebuild(&rebuilt, options.profile);
    row("read and compare", &pattern.check_all(&mut disk, &signals)?);
    let after = cluster.volume()?;
    if after.protection != "healthy" {
        bail!("the volume should be healthy again, but is {}", after.protection);
    }
    print_line!("  {:<24} every byte as written; {}", "state", after.protection);

    // The loss of one node is the usual case, and regenerating codes are made for it.
    if let [single, ..] = victims[..] {
        print_line!("\n{single} lost and replaced once more, alone");
        cluster.kill(&[single])?;
        cluster.watch_loss(single)?;
        cluster.replace(&[single])?;
        let rebuilt = cluster.watch_rebuild(&signals)?;
        print_rebuild(&rebuilt, options.profile);
        row("read and compare", &pattern.check_all(&mut disk, &signals)?);
    }
    if let Some(text) = engine_text(&cluster.volume()?.engine) {
        print_line!("\nheavy steps by the device\n  {text}");
    }
    print_stages(&before);
    disk.client().disconnect();
    cluster.finish()?;
    print_next(options, &cluster, begun.elapsed());
    Ok(())
}

fn row(what: &str, moved: &Moved) {
    let per_second = moved.requests as f64 / moved.took.as_secs_f64();
    print_line!(
        "  {what:<24} {:>9} in {:>7.2} s  {:>12}  {per_second:>8.0} requests/s",
        size(moved.bytes),
        moved.took.as_secs_f64(),
        rate(moved.bytes, moved.took)
    );
}

fn names(nodes: &[NodeIndex]) -> String {
    let names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    names.join(" and ")
}

impl Cluster {
    fn build(options: &Options, work: DemoFolder) -> anyhow::Result<Self> {
        let profile = options.profile;
        let shards = u16::try_from(profile.shards()).unwrap_or(u16::MAX);
        let nodes = NODES_MIN.max(shards);
        // Twice the size of the data and its parity: room for journals, checkpoints and dead
        // segments.
        let raw_bytes = options.size_bytes / profile.k() as u64 * profile.shards() as u64;
        let node_bytes = raw_bytes / u64::from(nodes) * 2 + (64 << 20);
        let sizes = Sizes { node_bytes: Some(node_bytes), overcommit: false };
        let ways = (Strategy::Flat, Encode::Client);
        let pool = create(&work.folder.join("pool"), nodes, profile, ways, sizes)?;
        let nbd = address(&work.folder, "nbd.sock");
        let accel = options.accel;
        let mut cluster = Self { server: None, nodes: Vec::new(), pool, nbd, accel, work };
        for node in cluster.pool.node_indices() {
            let process = cluster.start_node(node)?;
            cluster.nodes.push(Some(process));
        }
        let runtime = RuntimeOptions::offline(&[]);
        let running = RunningPool::with_pool(cluster.pool.clone(), &runtime)?;
        let created = running.create_volume(VOLUME, options.size_bytes, None, false);
        let finished = running.finish();
        created.and(finished)?;
        cluster.start_server()?;
        Ok(cluster)
    }

    fn start_node(&self, node: NodeIndex) -> anyhow::Result<Process> {
        let listen = address(&self.work.folder, &format!("n{}.sock", node.0));
        let folder = self.pool.node_folder(node);
        let args = ["node", path(&folder)?, "--listen", &listen.to_string()].map(str::to_owned);
        Process::start(&node.to_string(), &self.work.folder, &args)
    }

    fn start_server(&mut self) -> anyhow::Result<()> {
        let volume = self.pool.folder.join(VOLUME);
        let nbd = self.nbd.to_string();
        let args = ["serve", path(&volume)?, "--nbd", &nbd, "--accel", self.accel.word()];
        let args = args.map(str::to_owned);
        self.server = Some(Process::start("server", &self.work.folder, &args)?);
        if matches!(self.nbd, Address::Tcp { .. }) {
            let listen = self.report()?.server.map(|server| server.listen).unwrap_or_default();
            self.nbd = listen.first().context("the server listens nowhere")?.parse()?;
        }
        Ok(())
    }

    fn control(&self) -> anyhow::Result<Client> {
        find_server(&self.pool.folder, None)?.context("the server does not answer")
    }

    fn report(&self) -> anyhow::Result<PoolReport> {
        self.control()?.status()
    }

    fn volume(&self) -> anyhow::Result<VolumeReport> {
        self.report()?.volumes.into_iter().next().context("the server serves no volume")
    }

    /// The nodes to kill: as many as the code survives, at most two, and not adjacent ones.
    fn nodes_to_kill(&self, profile: Profile) -> Vec<NodeIndex> {
        let all = [NodeIndex(1), NodeIndex(4)];
        all[..profile.m().min(all.len())].to_vec()
    }

    fn kill(&mut self, victims: &[NodeIndex]) -> anyhow::Result<()> {
        for victim in victims {
            if let Some(process) = self.nodes[usize::from(victim.0)].take() {
                process.kill();
            }
            let folder = self.pool.node_folder(*victim);
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        Ok(())
    }

    fn replace(&mut self, victims: &[NodeIndex]) -> anyhow::Result<()> {
        replace(&self.pool, victims, &[], false)?;
        for victim in victims {
            let process = self.start_node(*victim)?;
            self.nodes[usize::from(victim.0)] = Some(process);
        }
        Ok(())
    }

    /// Waits until the server reports that a node is down.
    fn watch_loss(&self, victim: NodeIndex) -> anyhow::Result<()> {
        const STEP: Duration = Duration::from_millis(10);
        let start = Instant::now();
        loop {
            let volume = self.volume()?;
            if volume.nodes.iter().any(|node| node.node == victim.0 && node.state == "down") {
                return Ok(());
            }
            if start.elapsed() > LOSS_TIMEOUT {
                bail!("the server has not noticed that {victim} is gone");
            }
            std::thread::sleep(STEP);
        }
    }

    /// Shows a bar until no shard is missing and all nodes are up. Returns the volume's report.
    fn watch_rebuild(&self, signals: &Signals) -> anyhow::Result<VolumeReport> {
        const STEP: Duration = Duration::from_millis(100);
        let start = Instant::now();
        let bar = new_bar("  rebuild");
        let mut control = self.control()?;
        loop {
            check_signal(signals)?;
            let volume = control.status()?.volumes.into_iter().next();
            let volume = volume.context("the server serves no volume")?;
            show(&bar, std::iter::once(&volume.rebuild));
            let up = volume.nodes.iter().all(|node| node.state == "up");
            if up && volume.shards_missing == 0 && !volume.rebuild.running {
                bar.finish_and_clear();
                return Ok(volume);
            }
            if start.elapsed() > REBUILD_TIMEOUT {
                bail!("the rebuild has not ended; {} shards are missing", volume.shards_missing);
            }
            std::thread::sleep(STEP);
        }
    }

    /// Asks the server to stop and waits until it has ended. Then kills the nodes.
    fn finish(&mut self) -> anyhow::Result<()> {
        self.control()?.ask(&Request::Stop)?;
        if let Some(server) = self.server.take() {
            server.wait()?;
        }
        self.nodes.clear();
        Ok(())
    }
}

/// A Unix socket in the folder, or a free TCP port if the socket's path is too long.
fn address(folder: &Path, name: &str) -> Address {
    let path = folder.join(name);
    let unix = format!("unix:{}", path.display()).parse();
    unix.unwrap_or(Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 })
}

fn path(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("{} is not valid UTF-8", path.display()))
}

fn print_rebuild(volume: &VolumeReport, profile: Profile) {
    let rebuild = &volume.rebuild;
    let took = Duration::from_nanos(rebuild.elapsed_ns);
    let moved = Moved { bytes: rebuild.written_bytes, requests: rebuild.shards_done, took };
    print_line!(
        "  {:<24} {:>9} in {:>7.2} s  {:>12}  {} shards",
        "rebuild",
        size(moved.bytes),
        took.as_secs_f64(),
        rate(moved.bytes, took),
        moved.requests
    );
    if rebuild.written_bytes > 0 {
        print_line!(
            "  {:<24} {:>9} read, {:.1} bytes per byte restored ({profile}); Reed-Solomon: {:.1}",
            "",
            size(rebuild.read_bytes),
            rebuild.read_bytes as f64 / rebuild.written_bytes as f64,
            rebuild.reed_solomon_bytes as f64 / rebuild.written_bytes as f64
        );
    }
}

fn print_stages(report: &PoolReport) {
    let Some(io) = report.volumes.first().and_then(|volume| volume.io.as_ref()) else { return };
    print_line!("\nwhere the time of a request went while the pool was healthy");
    print_text!("{}", stage_table(io, "  "));
}

fn print_next(options: &Options, cluster: &Cluster, took: Duration) {
    print_line!("\ndone in {:.1} s. What to try next:", took.as_secs_f64());
    let dir =
        if options.keep { shell_word(cluster.pool.folder.display()) } else { "DIR".to_owned() };
    if options.keep {
        print_line!("  the pool is still there; the nodes run in the server from now on:");
    } else {
        print_line!(
            "  fieldstone pool create {dir} --nodes {} --code {}",
            cluster.pool.nodes,
            options.profile
        );
        print_line!("  fieldstone volume create {dir}/{VOLUME} --size 1G");
    }
    print_line!("  fieldstone serve {dir}/{VOLUME} --nbd unix:/tmp/{VOLUME}.sock &");
    print_line!("  nbdinfo 'nbd+unix:///?socket=/tmp/{VOLUME}.sock'");
    print_line!("  fieldstone status {dir}      fieldstone top {dir}      fieldstone scrub {dir}");
}
