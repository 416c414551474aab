//! `fieldstone node`: one storage node as its own process.
//!
//! A call on the node's folder may block at any time, when its disk hangs. The main thread must
//! notice signals, so other threads make these calls. The main thread waits for them for a bounded
//! time, or until a signal comes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_console::signals::Signals;
use fieldstone_host::folder::Announcer;
use fieldstone_host::{
    Destination, FolderError, Host, HostConfig, LocalNodeConfig, LocalNodeId, timed_call,
};
use fieldstone_proto::NodeIndex;
use fieldstone_server::listen;
use fieldstone_server::pool::{Pool, is_pool};
use fieldstone_server::rotation::watch::KeyWatch;
use fieldstone_server::running::{command_deadline, open_patiently};
use fieldstone_uring::{Address, Caching, Holder};

use super::serve::{parity_memory, payload_memory};

/// Options of `node`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The node's folder in its pool, for example DIR/node.3. `fieldstone pool create` and
    /// `fieldstone pool replace` make it.
    #[arg(value_name = "DIR/node.I")]
    dir: PathBuf,
    /// Where to listen: unix:PATH or tcp:HOST:PORT.
    #[arg(long, value_name = "ADDR")]
    listen: Address,
    /// Open the node's files with O_DIRECT, past the page cache.
    #[arg(long)]
    direct: bool,
    /// Memory for payloads that clients announce and send, and for answers that they have not taken
    /// yet, all clients together; a quarter of it is for clients without a capability. When it is
    /// used up, connections wait. A connection that keeps memory for which others wait, and is
    /// silent for up to ten seconds, is closed. Each connection has another half a MiB.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = payload_memory)]
    payload_memory: usize,
    /// Memory for parity that the node makes (`pool create --encode stream`): half of it for what
    /// it adds up, half for what it sends to the nodes that add up. One volume may use a quarter of
    /// each. Where it is used up, the server makes the parity.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parity_memory)]
    parity_memory: usize,
}

/// Runs `node`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let signals = Signals::install_for_server()?;
    let (pool, index) = locate(&args.dir)?;
    let listener = listen::bind(&args.listen)?;
    let opening = pool.opening(index, Holder::Node)?;
    let opened = open_patiently(&opening, command_deadline(), || signals.arrived())?;
    let Some(folder) = opened else {
        bail!("interrupted while opening {}", opening.path.display());
    };
    let announced = AnnouncedFolder { path: folder.path.clone(), announcer: folder.announcer() };
    // Servers run in other folders.
    let address = listener.address().absolute().unwrap_or_else(|| {
        eprint_line!(
            "fieldstone: the absolute path of {} is no path for a socket: only servers that are \
             started in this folder find this node",
            listener.address()
        );
        listener.address().clone()
    });
    match announced.announce(&address) {
        // The folder was there a moment ago. The node comes up when the folder answers again.
        Err(error @ FolderError::Silent(_)) => eprint_line!("fieldstone: {error}"),
        announced => announced?,
    }
    listen::raise_open_files();
    let host = Host::start(HostConfig {
        cores: 1,
        pin: false,
        caching: if args.direct { Caching::Direct } else { Caching::Buffered },
        verify_payload: true,
        payload_memory_bytes: args.payload_memory,
        parity_memory_bytes: args.parity_memory,
        frontends: Vec::new(),
        nodes: vec![LocalNodeConfig { opening, folder: Ok(folder), late: None }],
    })
    .context("cannot start")?;
    let watched = vec![(pool.folder.clone(), pool.keys.clone())];
    let _keys = KeyWatch::start(watched, host.handle())?;
    print_line!("{index} of pool {} listens on {}", pool.id, listener.address());
    std::io::stdout().flush()?;
    host.handle().listen(listener, Destination::Node(LocalNodeId { number: 0, index }));
    let ended = wait(&host, &signals, || announced.announce(&address));
    announced.withdraw();
    let stopped = host.stop().context("the node failed");
    ended.and(stopped)
}

/// The node's folder, where servers read the node's address.
struct AnnouncedFolder {
    path: PathBuf,
    announcer: Announcer,
}

impl AnnouncedFolder {
    /// See [`Announcer::announce`].
    fn announce(&self, address: &Address) -> Result<(), FolderError> {
        let address = address.clone();
        self.within(move |announcer| announcer.announce(&address))
            .unwrap_or_else(|| Err(FolderError::Silent(self.path.clone())))
    }

    /// See [`Announcer::withdraw`].
    fn withdraw(&self) {
        // The lock ends with the process. Readers ignore an address in a folder that is not locked.
        let _ = self.within(|announcer| announcer.withdraw());
    }

    /// Makes a call on the folder in another thread. `None` if the call does not return within two
    /// seconds.
    fn within<T: Send + 'static>(
        &self,
        call: impl FnOnce(Announcer) -> T + Send + 'static,
    ) -> Option<T> {
        const TIMEOUT: Duration = Duration::from_secs(2);
        let announcer = self.announcer.clone();
        let call = move || call(announcer);
        let deadline = Instant::now() + TIMEOUT;
        timed_call::within(deadline, &self.path.to_string_lossy(), call).ok()
    }
}

fn wait(
    host: &Host,
    signals: &Signals,
    announce: impl Fn() -> Result<(), FolderError>,
) -> anyhow::Result<()> {
    const STEP: Duration = Duration::from_secs(3);
    while !signals.wait(STEP) {
        if host.has_failed() {
            bail!("the node has ended by itself; see the messages above");
        }
        // The folder may have been replaced. The address in it lets a server find the node again.
        if let Err(error) = announce() {
            tracing::debug!("cannot announce the address: {error}");
        }
    }
    Ok(())
}

/// The pool of a node's folder, and the node's index in the pool.
fn locate(dir: &Path) -> anyhow::Result<(Pool, NodeIndex)> {
    let shown = dir.display();
    let folder = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let index = name.strip_prefix("node.").and_then(|index| index.parse().ok());
    let Some(index) = index else {
        if is_pool(dir) {
            bail!("{shown} is a pool; name one of its nodes, for example {shown}/node.0");
        }
        bail!("{shown} is not of the form DIR/node.I");
    };
    let pool = Pool::open(folder)?;
    if index >= pool.nodes {
        bail!(
            "the pool {} has no node.{index}: its nodes are 0 to {}",
            folder.display(),
            pool.nodes - 1
        );
    }
    Ok((pool, NodeIndex(index)))
}
