//! A null cluster, and a host with an image of it.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use fieldstone_block::Nanos;
use fieldstone_block::layers::LayerOptions;
use fieldstone_embed::{Bounds, CompletionQueue, Done, Operation, Queue};
use fieldstone_host::stores::RbdStatus;
use fieldstone_host::{
    DeviceId, DeviceSpec, Host, HostConfig, PARITY_MEMORY_BYTES, PAYLOAD_MEMORY_BYTES,
    StoreOptions, StoreTarget,
};
use fieldstone_null_cluster::{Faults, ImageOption, Method, NullCluster, Options};
use fieldstone_uring::Caching;

/// OSDs of the cluster.
const OSDS: u32 = 4;
/// The longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster, and a host that serves an image of it.
pub struct Rig {
    host: Host,
    device: DeviceId,
    _cluster: NullCluster,
    _folder: tempfile::TempDir,
}

fn wait<T, E: Debug>(answer: &Receiver<Result<T, E>>, what: &str) -> T {
    let answer = answer.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what}: no answer"));
    answer.unwrap_or_else(|why| panic!("{what}: {why:?}"))
}

fn open(host: &Host, conf: &Path) -> DeviceId {
    let target = format!("ceph:pool/disk:conf={}", conf.display());
    let target: StoreTarget = target.parse().expect("a target");
    let store = target.spec(StoreOptions::default()).expect("a spec");
    let layers = LayerOptions::default();
    let spec = DeviceSpec { name: "disk".to_owned(), store, layers };
    let (device, opened) = host.handle().open_device(spec);
    wait(&opened, "opening");
    device
}

impl Rig {
    /// Starts a cluster, and a host with so many cores that opens its image. The `ceph.conf` of the
    /// client has a line more.
    pub fn start(cores: usize, line: &str) -> Self {
        let folder = tempfile::tempdir().expect("temp");
        let (pool, name) = ("pool".to_owned(), "disk".to_owned());
        let image = ImageOption { pool, name, size_bytes: 64 << 20 };
        let options = Options {
            folder: folder.path().join("cluster"),
            osds: OSDS,
            port: 0,
            pools: vec!["pool".to_owned()],
            pgs: 32,
            images: vec![image],
            cores: 1,
            method: Method::Cephx,
            faults: Faults::default(),
        };
        let cluster = NullCluster::start(&options).expect("it starts");
        let host = Host::start(HostConfig {
            cores,
            pin: false,
            caching: Caching::Buffered,
            verify_payload: false,
            payload_memory_bytes: PAYLOAD_MEMORY_BYTES,
            parity_memory_bytes: PARITY_MEMORY_BYTES,
            frontends: vec![&fieldstone_embed::KIND],
            nodes: Vec::new(),
        });
        let host = host.expect("it starts");
        let conf = std::fs::read_to_string(cluster.conf()).expect("a file");
        let path = folder.path().join("client.conf");
        std::fs::write(&path, format!("{conf}\n[client]\n{line}\n")).expect("written");
        let device = open(&host, &path);
        Self { host, device, _cluster: cluster, _folder: folder }
    }

    /// A queue of requests to the image.
    pub fn work(&self, depth: usize) -> Work {
        let mut cores = self.host.handle().snapshot(false).into_iter();
        let info = cores.find_map(|core| core.devices.into_iter().next()).expect("a device").info;
        let queue = Queue::attach(self.host.handle(), self.device, info, Bounds::default());
        let completions = CompletionQueue::new(depth).expect("an eventfd");
        Work { queue: queue.expect("it is attached"), completions }
    }

    /// The status of the image.
    pub fn status(&self) -> RbdStatus {
        let mut cores = self.host.handle().snapshot(false).into_iter();
        let device = cores.find_map(|core| core.devices.into_iter().next()).expect("a device");
        *device.status.expect("it is open").downcast().expect("the status of an image")
    }

    /// The CPU time that each core has used.
    pub fn used(&self) -> Vec<Nanos> {
        let cores = self.host.handle().snapshot(false);
        cores.iter().map(|core| core.usage.user.plus(core.usage.system)).collect()
    }

    /// Closes the image, and stops the host.
    pub fn close(self) {
        wait(&self.host.handle().close_device(self.device), "closing");
        self.host.handle().forget_device(self.device);
        self.host.stop().expect("it stops");
    }
}

/// A queue of requests to an image.
pub struct Work {
    queue: Queue,
    completions: Arc<CompletionQueue>,
}

impl Work {
    /// Keeps `depth` requests under way until there is no further one. Gives their number.
    pub fn keep(&mut self, depth: usize, mut next: impl FnMut() -> Option<Operation>) -> u64 {
        let (mut under_way, mut count) = (0, 0);
        let mut done: Vec<Done> = Vec::new();
        loop {
            let mut batch = Vec::new();
            while under_way < depth {
                let Some(operation) = next() else { break };
                batch.push((operation, self.completions.on_complete(0)));
                under_way += 1;
            }
            self.queue.submit_batch(&mut batch).expect("there is room");
            if under_way == 0 {
                return count;
            }
            assert_ne!(self.completions.wait(PATIENCE, depth, &mut done), 0, "no answer comes");
            for Done { answer, .. } in done.drain(..) {
                answer.expect("no request fails");
                under_way -= 1;
                count += 1;
            }
        }
    }

    /// Closes the queue.
    pub fn close(self) {
        self.queue.close().expect("all is answered");
    }
}
