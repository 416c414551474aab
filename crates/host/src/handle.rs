//! Starting and stopping the host, and calling it from other threads.
//!
//! # Cores that hang
//!
//! A call into the kernel may hang with a disk, and a core that made such a call hangs with it. No
//! other thread waits for a core without a limit: a call that its mailbox does not take, an answer,
//! and the end of its thread. [`Host::stop`] names the cores that do not end and leaves them
//! behind. No end of a core's thread is waited for with `pthread_join`: a core tells that it has
//! ended, as the last thing it does. Its thread may exist for longer, because the kernel keeps it
//! until the calls of its ring have come back.
//!
//! The process can end then, as far as the kernel lets it. A thread in a disk's hands that no
//! signal ends stays until the disk answers, and keeps the process's number. All threads of the
//! process share one table of descriptors, so every one of them stays open with it: sockets (a
//! client sees its connection stand still, and a listener's address is in use) and the locks of all
//! nodes of the process, also of those whose disks are well. A successor is told so
//! ([`LockError::Held`](fieldstone_uring::LockError::Held)).
//!
//! Threads that do chores ([`crate::disk`]) and open folders ([`crate::folder::Attempt`]) are not
//! waited for at all. They acknowledge nothing, and what they hold goes with the process.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fieldstone_block::{Info, Settings};
use fieldstone_buf::Budget;

use crate::control::{Control, CoreSnapshot};
use crate::device::DeviceSpec;
use crate::disk::{Disk, start_chores};
use crate::folder::{Attempt, NodeFolder, Opening};
use crate::frontend::{
    FRONTENDS_MAX, FrontendId, FrontendKind, FrontendMailer, FrontendSetup, NoFrontend,
};
use crate::message::{Core, Destination, DeviceId, Link, LocalNodeId, Message, Router};
use crate::node_local::LocalNode;
use crate::store::Mail;
use crate::strangers::Bounds;
use crate::token::{Kind, token};
use crate::worker::{FINISH_PATIENCE_MS, Worker};
use fieldstone_uring::reactor::DRAIN_LIMIT_MS;
use fieldstone_uring::{
    Caching, Listener, Mailbox, Reactor, ReactorOptions, SendError, Sender, allowed_cpus,
    monotonic_now, raise_open_files,
};

/// Descriptors that a host asks for, for connections and node files; the default of many shells is
/// 1024.
const OPEN_FILES: u64 = 65_536;
/// Descriptors that are counted on when the system does not tell the limit.
const OPEN_FILES_ASSUMED: u64 = 1024;
/// Memory for payloads, unless another size is asked for.
pub const PAYLOAD_MEMORY_BYTES: usize = 256 << 20;
/// The least that may be asked for: the largest NBD request, and as much again.
pub const PAYLOAD_MEMORY_BYTES_MIN: usize = 64 << 20;

/// How long a core may take to end: what disk operations under way may take, what the reactor then
/// waits for the kernel, and some for a machine that is busy.
const STOP_LIMIT: Duration =
    Duration::from_millis(FINISH_PATIENCE_MS + DRAIN_LIMIT_MS + STOP_SLACK_MS);
/// See [`STOP_LIMIT`].
const STOP_SLACK_MS: u64 = 5_000;
/// How long a caller waits for a core whose mailbox is full, or that does not take exports.
const CALL_PATIENCE: Duration = Duration::from_secs(10);

/// Messages that a core's mailbox holds.
const MAILBOX_MESSAGES: usize = 1 << 16;

/// What to add to the monotonic clock to get the time since 1970, in nanoseconds: the clock by
/// which capabilities expire.
#[must_use]
pub fn wall_offset_ns() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX).saturating_sub(monotonic_now().0)
}

/// A node to run in this process.
#[derive(Debug)]
pub struct LocalNodeConfig {
    /// How its folder is opened, also later when it vanished.
    pub opening: Opening,
    /// The folder, or why it cannot be used at present.
    pub folder: Result<NodeFolder, String>,
    /// An opening of the folder that has not ended yet. The node waits for it before it begins
    /// another one.
    pub late: Option<Attempt>,
}

/// What a host is made with.
#[derive(Debug)]
pub struct HostConfig {
    /// Number of cores, at least one.
    pub cores: usize,
    /// Pin each core's thread to a CPU.
    pub pin: bool,
    /// How node files are opened.
    pub caching: Caching,
    /// Nodes check payloads on arrival: for hosts that serve nodes to other processes.
    pub verify_payload: bool,
    /// Memory for payloads that clients announce and send and for answers that they have not taken,
    /// all clients together. Each connection has half a MiB beside it.
    pub payload_memory_bytes: usize,
    /// The kinds of front-ends, of which every core has one each: for all of this crate,
    /// [`KINDS`](crate::frontends::KINDS). The first [`FRONTENDS_MAX`] count.
    pub frontends: Vec<&'static FrontendKind>,
    /// The nodes, of any pools. Their places here are the numbers of their [`LocalNodeId`]s.
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
    /// Brings the result of the core when it ends.
    ended: Receiver<io::Result<()>>,
}

/// Calls a running host. Cheap to clone; outliving the host is harmless.
#[derive(Clone, Debug)]
pub struct Handle {
    senders: Arc<[Sender<Message>]>,
    frontends: Arc<[&'static FrontendKind]>,
    next_device: Arc<AtomicU32>,
    next_link: Arc<AtomicU32>,
}

/// What a core's thread is started with.
struct Start {
    core: Core,
    cpu: Option<usize>,
    caching: Caching,
    verify_payload: bool,
    nodes: Vec<(LocalNodeId, LocalNodeConfig)>,
    wall_offset_ns: u64,
    frontends: Arc<[&'static FrontendKind]>,
    setup: FrontendSetup,
}

impl Host {
    /// Starts the cores.
    ///
    /// # Errors
    /// A ring or a thread could not be made; the text says why.
    pub fn start(config: HostConfig) -> io::Result<Self> {
        let cores = config.cores.max(1);
        let open_files = raise_open_files(OPEN_FILES).unwrap_or_else(|error| {
            tracing::debug!("the limit on open files is not known: {error}");
            OPEN_FILES_ASSUMED
        });
        let bounds = Bounds::of(open_files, cores);
        let setup = FrontendSetup { bounds, budget: Budget::new(config.payload_memory_bytes) };
        let frontends: Arc<[_]> = config.frontends.into_iter().take(FRONTENDS_MAX).collect();
        let cpus = if config.pin { allowed_cpus()? } else { Vec::new() };
        let wall_offset_ns = wall_offset_ns();
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
                caching: config.caching,
                verify_payload: config.verify_payload,
                nodes,
                wall_offset_ns,
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
            // A core that has ended shows when it is called.
            drop(all.send(senders.clone()));
        }
        let handle = Handle {
            senders: senders.into(),
            frontends,
            next_device: Arc::new(AtomicU32::new(0)),
            next_link: Arc::new(AtomicU32::new(1)),
        };
        Ok(Self { handle, threads })
    }

    /// To call it from other threads.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// True when a core has ended by itself, which is a failure.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.threads.iter().any(|core| core.thread.is_finished())
    }

    /// Stops every core. Devices that are open are not closed: what was acknowledged stays, and
    /// they recover at the next opening. Takes 20 seconds at most.
    ///
    /// # Errors
    /// Why a core had failed, or which one does not end.
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
        let thread = std::thread::Builder::new().name(format!("core {}", core.0));
        // The host may have stopped to wait for the result.
        let thread = thread.spawn(move || drop(end.send(run())))?;
        Ok(Self { core, thread, ended })
    }

    /// Waits for the end of the core, and leaves it behind at `deadline`. Never joins the thread:
    /// see the module's text.
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
        let options = ReactorOptions { cpu: start.cpu, ..ReactorOptions::default() };
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
    // The host gave up: another core could not start.
    let Ok(senders) = all_in.recv() else { return Ok(()) };
    let router = Router::new(start.core, senders);
    let mut nodes = BTreeMap::new();
    for (id, node) in start.nodes {
        let chores = start_chores(id, router.own_sender())?;
        let disk = Disk::new(id, start.caching, chores);
        let (wall_offset_ns, verify_payload) = (start.wall_offset_ns, start.verify_payload);
        let local = LocalNode::new(id, node, disk, wall_offset_ns, verify_payload, monotonic_now());
        nodes.insert(id.number, local);
    }
    Worker::new(reactor, router, mailbox, nodes, &start.frontends, &start.setup).run()
}

impl Handle {
    fn cores(&self) -> usize {
        self.senders.len()
    }

    /// Posts a call. One to a core that has ended, or has not emptied its mailbox for long, is
    /// lost, which its closed channel tells.
    pub(crate) fn call(&self, core: Core, control: Control) {
        self.post(core, Message::Control(Box::new(control)), Instant::now() + CALL_PATIENCE);
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

    /// A link name for a control call.
    pub(crate) fn new_link(&self) -> Link {
        let attempt = self.next_link.fetch_add(1, Ordering::Relaxed);
        Link { device: Link::ADMIN, attempt }
    }

    /// Begins to open a device. The channel brings what it is, or why it failed.
    #[must_use]
    pub fn open_device(&self, spec: DeviceSpec) -> (DeviceId, Receiver<Result<Info, String>>) {
        let device = DeviceId(self.next_device.fetch_add(1, Ordering::Relaxed));
        let (reply, answer) = mpsc::channel();
        let control = Control::OpenDevice { device, spec: Box::new(spec), reply };
        self.call(device.core(self.cores()), control);
        (device, answer)
    }

    /// Begins to close a device cleanly. The channel tells when all is stable.
    #[must_use]
    pub fn close_device(&self, device: DeviceId) -> Receiver<Result<(), String>> {
        let (reply, answer) = mpsc::channel();
        self.call(device.core(self.cores()), Control::CloseDevice { device, reply });
        answer
    }

    /// Lets go of a device that was closed or could not be opened.
    pub fn forget_device(&self, device: DeviceId) {
        self.call(device.core(self.cores()), Control::ForgetDevice { device });
    }

    /// Calls a device's store. The channel tells whether the call was carried out or started.
    #[must_use]
    pub fn call_store(&self, device: DeviceId, call: Settings) -> Receiver<Result<(), String>> {
        let (reply, answer) = mpsc::channel();
        let control = Control::CallStore { device, call, reply };
        self.call(device.core(self.cores()), control);
        answer
    }

    /// Changes options of a device's layer. The channel tells whether they are in force.
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

    /// The front-end of this kind.
    ///
    /// # Errors
    /// The host was started without one.
    pub fn frontend(&self, kind: &str) -> Result<FrontendId, NoFrontend> {
        let place = self.frontends.iter().position(|frontend| frontend.name == kind);
        let id = place.and_then(|place| u8::try_from(place).ok());
        id.map(FrontendId).ok_or_else(|| NoFrontend(kind.to_owned()))
    }

    /// Tells a front-end something on every core; the two agree on the type. Every core has taken
    /// it by the return, or has ended; false if one hangs.
    pub fn tell_frontend(&self, frontend: FrontendId, mail: impl Fn() -> Mail) -> bool {
        self.tell(frontend, (0..self.cores()).map(|core| (Core(core), mail())))
    }

    /// As [`Handle::tell_frontend`], on the core that a device lives on and on no other.
    pub fn tell_frontend_of(&self, frontend: FrontendId, device: DeviceId, mail: Mail) -> bool {
        self.tell(frontend, [(device.core(self.cores()), mail)].into_iter())
    }

    fn tell(&self, frontend: FrontendId, mail: impl Iterator<Item = (Core, Mail)>) -> bool {
        let deadline = Instant::now() + CALL_PATIENCE;
        let (taken, all_taken) = mpsc::channel::<()>();
        for (core, mail) in mail {
            let taken = taken.clone();
            self.post(core, Message::ToFrontend { frontend, mail, taken }, deadline);
        }
        drop(taken);
        // No core sends: the last one to let go of its sender ends the wait.
        all_taken.recv_timeout(CALL_PATIENCE) != Err(RecvTimeoutError::Timeout)
    }

    /// Wakes a front-end on the core that a device lives on.
    #[must_use]
    pub fn frontend_mailer(&self, frontend: FrontendId, device: DeviceId) -> FrontendMailer {
        let sender = self.senders[device.core(self.cores()).0].clone();
        FrontendMailer { frontend, sender }
    }

    /// Accepts connections, which go to `to`.
    pub fn listen(&self, listener: Listener, to: Destination) {
        self.call(Core(0), Control::Listen { listener, to });
    }

    /// What every core tells about itself; cores that do not answer in time are left out. Counts
    /// and latencies are left out unless `with_stats`: they cost a core about a millisecond.
    #[must_use]
    pub fn snapshot(&self, with_stats: bool) -> Vec<CoreSnapshot> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let (reply, answers) = mpsc::channel();
        for core in 0..self.cores() {
            let reply = reply.clone();
            self.call(Core(core), Control::Snapshot { with_stats, reply });
        }
        drop(reply);
        let mut cores: Vec<CoreSnapshot> = Vec::new();
        while let Ok(snapshot) = answers.recv_timeout(PATIENCE) {
            cores.push(snapshot);
        }
        cores.sort_by_key(|snapshot| snapshot.core);
        cores
    }

    /// Refuses new requests and connections, and waits until none is in flight, or for `patience`.
    /// True if all were answered.
    #[must_use]
    pub fn drain(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
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
    use crate::folder::{Keeper, create};
    use fieldstone_uring::Holder;

    /// Makes the core hang that lets go of it, until the test lets it go on.
    #[derive(Debug)]
    struct Hang(Mutex<Receiver<()>>);

    impl Keeper for Hang {
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

    /// A thread-local value is dropped when the thread has no more to do, but still exists.
    struct Lingers(Receiver<()>);

    impl Drop for Lingers {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    thread_local! {
        static LINGERS: RefCell<Option<Lingers>> = const { RefCell::new(None) };
    }

    /// As the kernel keeps a thread whose ring has calls under way.
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
        let keeper: Arc<dyn Keeper> = Arc::new(Hang(Mutex::new(wait)));
        let keeper = Some(keeper);
        let holder = Holder::Server;
        let opening = Opening { path, expected, holder, keeper, replace_missing: false };
        let folder = opening.run().map_err(|error| error.to_string());
        let config = HostConfig {
            cores: 2,
            pin: false,
            caching: Caching::Buffered,
            verify_payload: false,
            payload_memory_bytes: PAYLOAD_MEMORY_BYTES,
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
