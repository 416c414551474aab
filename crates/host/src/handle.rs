//! Starting and stopping the host, and calling it from other threads.
//!
//! # Cores that hang
//!
//! A call into the kernel may hang with a disk, and the core that made the call hangs with it. So
//! waiting for a running core has a limit: for room in its mailbox, for an answer, and for the end
//! of its thread. [`Host::stop`] names the cores that do not end, and leaves them behind. It does
//! not wait with `pthread_join`. Instead, a core reports its end as its last action. The thread may
//! exist for longer, because the kernel keeps it until the calls of its ring return.
//!
//! Then the process can end, as far as the kernel allows. A thread that waits for a disk in an
//! uninterruptible call stays until the disk answers, and keeps the process number. All threads of
//! the process share one table of descriptors, so all descriptors stay open too: sockets (a
//! client's connection makes no progress, and a listener's address stays in use), and the locks of
//! all nodes of the process, even of nodes on sound disks. A successor gets this reason as its
//! error ([`LockError::Held`](fieldstone_uring::LockError::Held)).
//!
//! The host does not wait for threads for blocking calls ([`crate::disk`]) or open folders
//! ([`crate::folder::Attempt`]). They acknowledge nothing, and their memory goes with the process.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fieldstone_block::{Info, OpenFailure, Settings};
use fieldstone_buf::Budget;
use fieldstone_node::{ParityMemory, ParityMemoryUse};

use crate::connection_table::Bounds;
use crate::control::{Control, CoreSnapshot};
use crate::device::DeviceSpec;
use crate::disk::{Disk, start_blocking_thread};
use crate::folder::{Attempt, NodeFolder, Opening};
use crate::frontend::{
    FRONTENDS_MAX, FrontendId, FrontendKind, FrontendMailer, FrontendSetup, NoFrontend,
};
use crate::message::{Core, Destination, DeviceId, Link, LocalNodeId, Message, Router};
use crate::node_links::LocalNodes;
use crate::node_local::LocalNode;
use crate::store::Mail;
use crate::token::{Kind, token};
use crate::worker::{FINISH_TIMEOUT_MS, Worker};
use fieldstone_uring::reactor::DRAIN_LIMIT_MS;
use fieldstone_uring::{
    Caching, Listener, Mailbox, Reactor, ReactorOptions, SendError, Sender, allowed_cpus,
    monotonic_now, open_files, start_thread, wall_offset_ns,
};

/// The limit on descriptors that suits a server, for connections and node files. The default of
/// many shells is 1024. A server asks for it with
/// [`raise_open_files`](fieldstone_uring::raise_open_files) before it starts a host. A host does
/// not change the limit of its process.
pub const OPEN_FILES: u64 = 65_536;
/// The assumed limit on descriptors when the system does not tell it.
const OPEN_FILES_ASSUMED: u64 = 1024;
/// The default size of the memory for payloads.
pub const PAYLOAD_MEMORY_BYTES: usize = 256 << 20;
/// The smallest size of the memory for payloads that users may choose: twice the largest request
/// that a front-end of this crate takes.
pub const PAYLOAD_MEMORY_BYTES_MIN: usize = 64 << 20;

/// How long a core may take to end: the time for disk operations under way, the time that the
/// reactor then waits for the kernel, and a reserve for a busy machine.
const STOP_LIMIT: Duration =
    Duration::from_millis(FINISH_TIMEOUT_MS + DRAIN_LIMIT_MS + STOP_SLACK_MS);
/// The reserve in [`STOP_LIMIT`].
const STOP_SLACK_MS: u64 = 5_000;
/// How long a caller waits for room in a core's mailbox, or until cores take mail for a front-end.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages that a core's mailbox holds.
const MAILBOX_MESSAGES: usize = 1 << 16;

/// A node to run in this process.
#[derive(Debug)]
pub struct LocalNodeConfig {
    /// How to open its folder, at the start and after the folder vanished.
    pub opening: Opening,
    /// The open folder, or the reason why the node cannot use it at present.
    pub folder: Result<NodeFolder, String>,
    /// An opening of the folder that is still under way. The node waits for it before it begins
    /// another opening.
    pub late: Option<Attempt>,
}

/// The configuration of a host.
#[derive(Debug)]
pub struct HostConfig {
    /// Number of cores; 0 counts as 1.
    pub cores: usize,
    /// Pin each core's thread to a CPU.
    pub pin: bool,
    /// How node files are opened.
    pub caching: Caching,
    /// Nodes check payloads on arrival: for a host that serves nodes to other processes.
    pub verify_payload: bool,
    /// Memory for payloads that clients announce and send, and for answers that they have not
    /// taken. All clients of front-ends share it, and the clients of nodes share as much again on
    /// each core. A front-end may have some memory for each connection in addition: its
    /// documentation says how much.
    pub payload_memory_bytes: usize,
    /// Memory for parity that the nodes make ([`ParityMemory`]). All nodes share it.
    pub parity_memory_bytes: usize,
    /// The kinds of front-ends. Every core gets one of each. [`KINDS`](crate::frontends::KINDS)
    /// lists all kinds of this crate. The host ignores entries after the first [`FRONTENDS_MAX`].
    pub frontends: Vec<&'static FrontendKind>,
    /// The nodes, of any pools. The place in this list is the number of the node's [`LocalNodeId`].
    pub nodes: Vec<LocalNodeConfig>,
}

/// A running host.
#[derive(Debug)]
pub struct Host {
    handle: Handle,
    threads: Vec<CoreThread>,
}

/// A core's thread.
#[derive(Debug)]
struct CoreThread {
    core: Core,
    thread: JoinHandle<()>,
    /// Receives the result of the core when the core ends.
    ended: Receiver<io::Result<()>>,
}

/// Calls a running host. It is cheap to clone, and may outlive the host.
#[derive(Clone, Debug)]
pub struct Handle {
    senders: Arc<[Sender<Message>]>,
    frontends: Arc<[&'static FrontendKind]>,
    next_device: Arc<AtomicU32>,
    next_link: Arc<AtomicU32>,
    parity_memory: ParityMemory,
}

/// The input for starting a core's thread.
struct Start {
    core: Core,
    cpu: Option<usize>,
    poll: bool,
    caching: Caching,
    verify_payload: bool,
    parity_memory: ParityMemory,
    nodes: Vec<(LocalNodeId, LocalNodeConfig)>,
    all_nodes: LocalNodes,
    frontends: Arc<[&'static FrontendKind]>,
    setup: FrontendSetup,
}

impl Host {
    /// Starts the cores. The number of connections that they accept depends on the process's
    /// present limit on open files.
    ///
    /// # Errors
    /// A ring or a thread could not be made; the text has the reason.
    pub fn start(config: HostConfig) -> io::Result<Self> {
        let cores = config.cores.max(1);
        let open_files = open_files().unwrap_or_else(|error| {
            tracing::debug!("the limit on open files is not known: {error}");
            OPEN_FILES_ASSUMED
        });
        let bounds = Bounds::of(open_files, cores);
        let setup = FrontendSetup { bounds, budget: Budget::new(config.payload_memory_bytes) };
        let parity_memory = ParityMemory::new(config.parity_memory_bytes);
        let frontends: Arc<[_]> = config.frontends.into_iter().take(FRONTENDS_MAX).collect();
        let cpus = if config.pin { allowed_cpus()? } else { Vec::new() };
        let cpu_count = std::thread::available_parallelism().map_or(1, usize::from);
        let names = config.nodes.iter().map(|node| {
            let expected = &node.opening.expected;
            (expected.pool, expected.node)
        });
        let all_nodes: LocalNodes = names.collect();
        let mut nodes: Vec<Vec<(LocalNodeId, LocalNodeConfig)>> =
            (0..cores).map(|_| Vec::new()).collect();
        for (number, node) in (0..).zip(config.nodes) {
            let id = LocalNodeId { number, index: node.opening.expected.node };
            nodes[id.core(cores).0].push((id, node));
        }
        let mut threads = Vec::new();
        let mut boxes = Vec::new();
        for (core, nodes) in nodes.into_iter().enumerate() {
            let (box_out, box_in) = mpsc::channel();
            let (all_out, all_in) = mpsc::channel();
            let start = Start {
                core: Core(core),
                cpu: (!cpus.is_empty()).then(|| cpus[core % cpus.len()]),
                // Two cores on one CPU would poll while the other one has work.
                poll: cores <= cpu_count,
                caching: config.caching,
                verify_payload: config.verify_payload,
                parity_memory: parity_memory.clone(),
                nodes,
                all_nodes: Arc::clone(&all_nodes),
                frontends: Arc::clone(&frontends),
                setup: setup.clone(),
            };
            let run = move || run_core(start, &box_out, &all_in);
            threads.push(CoreThread::start(Core(core), run)?);
            boxes.push((box_in, all_out));
        }
        let mut senders = Vec::new();
        for (mailbox, _) in &boxes {
            let ended = || io::Error::other("a core ended while it started");
            senders.push(mailbox.recv().map_err(|_| ended())??);
        }
        for (_, all) in boxes {
            // A later call shows that a core has ended.
            drop(all.send(senders.clone()));
        }
        let handle = Handle {
            senders: senders.into(),
            frontends,
            next_device: Arc::new(AtomicU32::new(0)),
            next_link: Arc::new(AtomicU32::new(1)),
            parity_memory,
        };
        Ok(Self { handle, threads })
    }

    /// A handle for calls from other threads.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// True if a core has ended without being told to, which is a failure.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.threads.iter().any(|core| core.thread.is_finished())
    }

    /// Stops every core. Open devices are not closed: their acknowledged data stays, and they
    /// recover at the next opening. Takes at most 20 seconds.
    ///
    /// # Errors
    /// The reason why a core has failed, or the number of a core that does not end.
    pub fn stop(self) -> io::Result<()> {
        self.stop_within(STOP_LIMIT)
    }

    fn stop_within(self, limit: Duration) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        for core in 0..self.handle.senders.len() {
            let stop = Message::Control(Box::new(Control::Stop));
            self.handle.post(Core(core), stop, deadline);
        }
        let mut result = Ok(());
        for thread in self.threads {
            if let Err(error) = thread.wait(deadline, limit) {
                tracing::error!("{error}");
                result = Err(error);
            }
        }
        result
    }
}

impl CoreThread {
    fn start(
        core: Core,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (end, ended) = mpsc::channel();
        // The host may no longer wait for the result.
        let thread = start_thread(format!("core {}", core.0), move || drop(end.send(run())))?;
        Ok(Self { core, thread, ended })
    }

    /// Waits for the end of the core until `deadline`, and then leaves the core behind. Never joins
    /// the thread: see the module's text.
    fn wait(self, deadline: Instant, limit: Duration) -> io::Result<()> {
        let rest = deadline.saturating_duration_since(Instant::now());
        match self.ended.recv_timeout(rest) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("a core panicked")),
            Err(RecvTimeoutError::Timeout) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!(
                    "core {} has not ended within {limit:?} and is left behind: it hangs in the \
                     kernel, most likely with the disk of a node",
                    self.core.0
                ),
            )),
        }
    }
}

fn run_core(
    start: Start,
    mailbox_out: &mpsc::Sender<io::Result<Sender<Message>>>,
    all_in: &Receiver<Vec<Sender<Message>>>,
) -> io::Result<()> {
    let set_up = || -> io::Result<(Reactor, Sender<Message>, Mailbox<Message>)> {
        let options =
            ReactorOptions { cpu: start.cpu, poll: start.poll, ..ReactorOptions::default() };
        let mut reactor = Reactor::new(options)?;
        let (sender, mailbox) = reactor.mailbox(MAILBOX_MESSAGES, token(Kind::Mail, 0, 0))?;
        Ok((reactor, sender, mailbox))
    };
    let (reactor, mailbox) = match set_up() {
        Ok((reactor, sender, mailbox)) => {
            drop(mailbox_out.send(Ok(sender)));
            (reactor, mailbox)
        }
        Err(error) => {
            drop(mailbox_out.send(Err(error)));
            return Ok(());
        }
    };
    // The host gave up, because another core could not start.
    let Ok(senders) = all_in.recv() else { return Ok(()) };
    let router = Router::new(start.core, senders);
    let mut nodes = BTreeMap::new();
    for (id, node) in start.nodes {
        let blocking = start_blocking_thread(id, router.own_sender())?;
        let disk = Disk::new(id, start.caching, blocking);
        let (wall_offset_ns, verify_payload) = (wall_offset_ns(), start.verify_payload);
        let (memory, now) = (start.parity_memory.clone(), monotonic_now());
        let local = LocalNode::new(id, node, disk, wall_offset_ns, verify_payload, memory, now);
        nodes.insert(id.number, local);
    }
    let nodes = (nodes, start.all_nodes);
    Worker::new(reactor, router, mailbox, nodes, &start.frontends, &start.setup).run()
}

impl Handle {
    /// What the nodes use of the memory for parity.
    #[must_use]
    pub fn parity_memory(&self) -> ParityMemoryUse {
        self.parity_memory.usage()
    }

    fn cores(&self) -> usize {
        self.senders.len()
    }

    /// Posts a call. If the core has ended, or its mailbox stays full for too long, the call is
    /// lost. The caller then sees that the channel of the answer is closed.
    pub(crate) fn call(&self, core: Core, control: Control) {
        self.post(core, Message::Control(Box::new(control)), Instant::now() + CALL_TIMEOUT);
    }

    fn post(&self, core: Core, mut message: Message, deadline: Instant) {
        while let Err(SendError::Full(back)) = self.senders[core.0].send(message) {
            if Instant::now() >= deadline {
                tracing::warn!("core {} does not take calls: it hangs", core.0);
                return;
            }
            message = back;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn call_node(&self, node: LocalNodeId, control: Control) {
        self.call(node.core(self.cores()), control);
    }

    /// A new link for a control call.
    pub(crate) fn new_link(&self) -> Link {
        let attempt = self.next_link.fetch_add(1, Ordering::Relaxed);
        Link { device: Link::ADMIN, attempt }
    }

    /// Begins to open a device. The channel gives the device's properties, or the reason of the
    /// failure.
    #[must_use]
    pub fn open_device(&self, spec: DeviceSpec) -> (DeviceId, Receiver<Result<Info, OpenFailure>>) {
        let device = DeviceId(self.next_device.fetch_add(1, Ordering::Relaxed));
        let (reply, answer) = mpsc::channel();
        let control = Control::OpenDevice { device, spec: Box::new(spec), reply };
        self.call(device.core(self.cores()), control);
        (device, answer)
    }

    /// Begins to close a device cleanly. The channel gives the result when all data is stable.
    #[must_use]
    pub fn close_device(&self, device: DeviceId) -> Receiver<Result<(), String>> {
        let (reply, answer) = mpsc::channel();
        self.call(device.core(self.cores()), Control::CloseDevice { device, reply });
        answer
    }

    /// Drops a device that was closed or could not be opened.
    pub fn forget_device(&self, device: DeviceId) {
        self.call(device.core(self.cores()), Control::ForgetDevice { device });
    }

    /// Calls a device's store. The channel says whether the store has carried out or started the
    /// call.
    #[must_use]
    pub fn call_store(&self, device: DeviceId, call: Settings) -> Receiver<Result<(), String>> {
        let (reply, answer) = mpsc::channel();
        let control = Control::CallStore { device, call, reply };
        self.call(device.core(self.cores()), control);
        answer
    }

    /// Changes options of a device's layer. The channel says whether the new options are in force.
    #[must_use]
    pub fn change_layer(
        &self,
        device: DeviceId,
        settings: Settings,
    ) -> Receiver<Result<(), String>> {
        let (reply, answer) = mpsc::channel();
        let control = Control::ChangeLayer { device, settings, reply };
        self.call(device.core(self.cores()), control);
        answer
    }

    /// Gives all nodes and volumes the present secrets of their pools, after a change of
    /// [`SharedKeys`](crate::SharedKeys). At the return every core has done so or has ended. False
    /// if a core hangs.
    pub fn keys_changed(&self) -> bool {
        let (taken, all_taken) = mpsc::channel::<()>();
        for core in 0..self.cores() {
            self.call(Core(core), Control::Keys { taken: taken.clone() });
        }
        drop(taken);
        // No core sends on this channel. The wait ends when the last core drops its sender.
        all_taken.recv_timeout(CALL_TIMEOUT) != Err(RecvTimeoutError::Timeout)
    }

    /// The front-end of this kind.
    ///
    /// # Errors
    /// The host was started without this kind.
    pub fn frontend(&self, kind: &str) -> Result<FrontendId, NoFrontend> {
        let place = self.frontends.iter().position(|frontend| frontend.name == kind);
        let id = place.and_then(|place| u8::try_from(place).ok());
        id.map(FrontendId).ok_or_else(|| NoFrontend(kind.to_owned()))
    }

    /// The kinds of front-ends that every core has.
    #[must_use]
    pub fn frontends(&self) -> &[&'static FrontendKind] {
        &self.frontends
    }

    /// Sends a message to a front-end on every core. Both sides agree on the type. At the return
    /// every core has taken the message or has ended. False if a core hangs.
    pub fn mail_frontend(&self, frontend: FrontendId, mail: impl Fn() -> Mail) -> bool {
        self.mail(frontend, (0..self.cores()).map(|core| (Core(core), mail())))
    }

    /// Like [`Handle::mail_frontend`], but only on the core of a device.
    pub fn mail_frontend_of(&self, frontend: FrontendId, device: DeviceId, mail: Mail) -> bool {
        self.mail(frontend, [(device.core(self.cores()), mail)].into_iter())
    }

    fn mail(&self, frontend: FrontendId, mail: impl Iterator<Item = (Core, Mail)>) -> bool {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let (taken, all_taken) = mpsc::channel::<()>();
        for (core, mail) in mail {
            let taken = taken.clone();
            self.post(core, Message::ToFrontend { frontend, mail, taken }, deadline);
        }
        drop(taken);
        // No core sends on this channel. The wait ends when the last core drops its sender.
        all_taken.recv_timeout(CALL_TIMEOUT) != Err(RecvTimeoutError::Timeout)
    }

    /// A mailer that wakes a front-end on the core of a device.
    #[must_use]
    pub fn frontend_mailer(&self, frontend: FrontendId, device: DeviceId) -> FrontendMailer {
        let sender = self.senders[device.core(self.cores()).0].clone();
        FrontendMailer { frontend, sender }
    }

    /// Accepts connections, and passes them to `to`.
    pub fn listen(&self, listener: Listener, to: Destination) {
        self.call(Core(0), Control::Listen { listener, to });
    }

    /// The snapshots of all cores, without the cores that do not answer in time. Only `with_stats`
    /// includes counts and latencies: they cost a core about a millisecond.
    #[must_use]
    pub fn snapshot(&self, with_stats: bool) -> Vec<CoreSnapshot> {
        const TIMEOUT: Duration = Duration::from_secs(10);
        let (reply, answers) = mpsc::channel();
        for core in 0..self.cores() {
            let reply = reply.clone();
            self.call(Core(core), Control::Snapshot { with_stats, reply });
        }
        drop(reply);
        let mut cores: Vec<CoreSnapshot> = Vec::new();
        while let Ok(snapshot) = answers.recv_timeout(TIMEOUT) {
            cores.push(snapshot);
        }
        cores.sort_by_key(|snapshot| snapshot.core);
        cores
    }

    /// Refuses new requests and connections, and waits until no request is in flight, or for
    /// `timeout`. True if all requests were answered.
    #[must_use]
    pub fn drain(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let (reply, answers) = mpsc::channel();
        for core in 0..self.cores() {
            self.call(Core(core), Control::Drain(reply.clone()));
        }
        drop(reply);
        (0..self.cores()).all(|_| {
            let rest = deadline.saturating_duration_since(Instant::now());
            answers.recv_timeout(rest).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;
    use std::sync::Mutex;

    use fieldstone_proto::disk::Superblock;
    use fieldstone_proto::{MasterKey, NodeIndex, PoolId};

    use super::*;
    use crate::folder::{NodeRegistry, create};
    use fieldstone_uring::Holder;

    /// Makes the core that drops it hang until the test lets the core continue.
    #[derive(Debug)]
    struct Hang(Mutex<Receiver<()>>);

    impl NodeRegistry for Hang {
        fn seen(&self, _: NodeIndex, _: &Path, _: u64) {}
        fn may_replace(&self, _: NodeIndex, _: &Path) -> Result<(), String> {
            Ok(())
        }
        fn made(&self, _: NodeIndex, _: &Path, _: u64) {}
    }

    impl Drop for Hang {
        fn drop(&mut self) {
            let _ = self.0.lock().expect("no panic").recv();
        }
    }

    /// A thread-local value. The thread drops it after its function has ended, while the thread
    /// exists.
    struct Lingers(Receiver<()>);

    impl Drop for Lingers {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    thread_local! {
        static LINGERS: RefCell<Option<Lingers>> = const { RefCell::new(None) };
    }

    /// Imitates the kernel, which keeps a thread whose ring has calls under way.
    #[test]
    fn a_core_that_has_ended_is_not_waited_for_until_its_thread_is_gone() {
        let (go_on, wait) = mpsc::channel();
        let limit = Duration::from_secs(20);
        let core = CoreThread::start(Core(0), move || {
            LINGERS.set(Some(Lingers(wait)));
            Ok(())
        });
        let core = core.expect("a thread");
        let (done, outcome) = mpsc::channel();
        let stop = move || drop(done.send(core.wait(Instant::now() + limit, limit)));
        let stopping = std::thread::spawn(stop);
        let result = outcome.recv_timeout(Duration::from_secs(5));
        drop(go_on);
        stopping.join().expect("no panic");
        result.expect("the stop waits for the thread").expect("the core has ended well");
    }

    #[test]
    fn a_core_that_hangs_is_named_and_left_behind() {
        let pool = tempfile::tempdir().expect("temp");
        let path = pool.path().join("node.1");
        let expected = Superblock {
            pool: PoolId(5),
            node: NodeIndex(1),
            nodes: 6,
            incarnation: 9,
            key: MasterKey([3; 16]),
            slot_bytes: 1 << 20,
            slots: 8,
            code: "rs:4+2".to_owned(),
        };
        create(&path, &expected).expect("made");
        let (go_on, wait) = mpsc::channel();
        let registry: Arc<dyn NodeRegistry> = Arc::new(Hang(Mutex::new(wait)));
        let registry = Some(registry);
        let (holder, keys) = (Holder::Server, expected.key.into());
        let replace_missing = false;
        let opening = Opening { path, expected, keys, holder, registry, replace_missing };
        let folder = opening.run().map_err(|error| error.to_string());
        let config = HostConfig {
            cores: 2,
            pin: false,
            caching: Caching::Buffered,
            verify_payload: false,
            payload_memory_bytes: PAYLOAD_MEMORY_BYTES,
            parity_memory_bytes: fieldstone_node::limits::PARITY_MEMORY_BYTES,
            frontends: Vec::new(),
            nodes: vec![LocalNodeConfig { opening, folder, late: None }],
        };
        let host = Host::start(config).expect("started");
        let (done, outcome) = mpsc::channel();
        let stop = move || drop(done.send(host.stop_within(Duration::from_millis(500))));
        let stopping = std::thread::spawn(stop);
        let error = outcome.recv_timeout(Duration::from_secs(20)).expect("the stop hangs");
        let error = error.expect_err("core 0 hangs").to_string();
        assert!(error.contains("core 0 has not ended within 500ms"), "{error}");
        drop(go_on);
        stopping.join().expect("no panic");
    }
}
