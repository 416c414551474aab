//! One image whose connections to OSDs are divided among several cores, served over NBD.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use bytes::Bytes;
use fieldstone_block::Settings;
use fieldstone_block::layers::LayerOptions;
use fieldstone_host::frontends::nbd;
use fieldstone_host::stores::RbdStatus;
use fieldstone_host::{
    Destination, DeviceId, DeviceSpec, Host, HostConfig, PARITY_MEMORY_BYTES, PAYLOAD_MEMORY_BYTES,
    StoreOptions, StoreTarget,
};
use fieldstone_nbd::client::{Client, Config, Outcome};
use fieldstone_nbd::{Export, ExportList};
use fieldstone_null_cluster::{Faults, ImageOption, Method, NullCluster, Options};
use fieldstone_uring::{Address, Caching, Listener};

/// OSDs of the cluster.
const OSDS: usize = 4;
/// The longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a request.
const BLOCK: usize = 8192;
/// Blocks of the image that the tests use.
const BLOCKS: u64 = 4096;
/// The distance of two blocks in bytes. They are in 256 objects, so that all OSDs lead some.
const STRIDE: u64 = 256 << 10;
/// Requests at a time.
const DEPTH: u64 = 32;

/// A cluster, and a host that serves an image of it.
struct Rig {
    host: Host,
    device: DeviceId,
    stream: UnixStream,
    client: Client,
    _cluster: NullCluster,
    _folder: tempfile::TempDir,
}

fn wait<T, E: Debug>(answer: &Receiver<Result<T, E>>, what: &str) -> T {
    let answer = answer.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what}: no answer"));
    answer.unwrap_or_else(|why| panic!("{what}: {why:?}"))
}

/// Opens the image, and offers it to NBD clients at a socket.
fn serve(host: &Host, conf: &Path, socket: &Path) -> DeviceId {
    let target = format!("ceph:pool/disk:conf={}", conf.display());
    let target: StoreTarget = target.parse().expect("a target");
    let store = target.spec(StoreOptions::default()).expect("a spec");
    let layers = LayerOptions::default();
    let spec = DeviceSpec { name: "disk".to_owned(), store, layers };
    let (device, opened) = host.handle().open_device(spec);
    let info = wait(&opened, "opening");
    let list = ExportList::new(vec![Export::new("disk", &info)]).expect("one export");
    let exports = nbd::Exports { list: Arc::new(list), devices: vec![device] };
    nbd::offer(host.handle(), exports).expect("offered");
    let listener = Listener::bind(&Address::Unix(socket.to_path_buf())).expect("bound");
    let frontend = host.handle().frontend(nbd::KIND.name).expect("it has NBD");
    host.handle().listen(listener, Destination::Frontend(frontend));
    device
}

impl Rig {
    fn start(cores: usize, faults: Faults) -> Self {
        let folder = tempfile::tempdir().expect("temp");
        let (pool, name) = ("pool".to_owned(), "disk".to_owned());
        let cluster = NullCluster::start(&Options {
            folder: folder.path().join("cluster"),
            osds: OSDS as u32,
            port: 0,
            pools: vec![pool.clone()],
            pgs: 32,
            images: vec![ImageOption { pool, name, size_bytes: BLOCKS * STRIDE }],
            cores: 1,
            method: Method::Cephx,
            faults,
        });
        let cluster = cluster.expect("it starts");
        let host = Host::start(HostConfig {
            cores,
            pin: false,
            caching: Caching::Buffered,
            verify_payload: false,
            payload_memory_bytes: PAYLOAD_MEMORY_BYTES,
            parity_memory_bytes: PARITY_MEMORY_BYTES,
            frontends: vec![&nbd::KIND],
            nodes: Vec::new(),
        });
        let host = host.expect("it starts");
        let socket = folder.path().join("nbd");
        let device = serve(&host, cluster.conf(), &socket);
        let stream = UnixStream::connect(&socket).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let client = Client::new(Config::full("disk"));
        let mut rig = Self { host, device, stream, client, _cluster: cluster, _folder: folder };
        while rig.client.about().is_none() {
            rig.exchange();
        }
        rig
    }

    fn exchange(&mut self) {
        let mut parts = Vec::new();
        self.client.output(&mut parts);
        self.stream.write_all(&parts.concat()).expect("it listens");
        let mut input = vec![0; 1 << 20];
        let received = self.stream.read(&mut input).expect("it answers");
        assert!(received > 0, "the server closed the connection");
        self.client.receive(&input[..received]).expect("a sound server");
    }

    fn status(&self) -> RbdStatus {
        let mut cores = self.host.handle().snapshot(false).into_iter();
        let device = cores.find_map(|core| core.devices.into_iter().next()).expect("a device");
        *device.status.expect("it is open").downcast().expect("the status of an image")
    }

    fn call(&self, text: &str) -> Result<(), String> {
        let call = Settings::parse(text).expect("a call");
        let answer = self.host.handle().call_store(self.device, call);
        answer.recv_timeout(PATIENCE).expect("an answer")
    }

    fn move_connection(&self, osd: usize, core: usize) {
        self.call(&format!("move:osd={osd},core={core}")).expect("it moves");
    }

    fn close(self) {
        drop(self.stream);
        wait(&self.host.handle().close_device(self.device), "closing");
        self.host.handle().forget_device(self.device);
        self.host.stop().expect("it stops");
    }
}

/// The content of a block in its n-th version.
fn content(block: u64, version: u64) -> Bytes {
    let word = (block << 32 | version).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK).collect()
}

/// A random walk over the image that knows what each block has to be.
struct Walk {
    random: u64,
    versions: Vec<u64>,
}

impl Walk {
    fn new() -> Self {
        Self { random: 7, versions: vec![0; BLOCKS as usize] }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }

    /// Writes and reads blocks. No block is twice among those that are under way.
    fn round(&mut self, rig: &mut Rig) {
        let (first, step) = (self.draw(BLOCKS), 1 + 2 * self.draw(BLOCKS / 2));
        let mut expected: HashMap<u64, Option<Bytes>> = HashMap::new();
        for block in (0..DEPTH).map(|at| (first + at * step) % BLOCKS) {
            let offset_bytes = block * STRIDE;
            let known = self.versions[block as usize];
            if known == 0 || self.draw(2) == 0 {
                self.versions[block as usize] += 1;
                let cookie = rig.client.write(offset_bytes, content(block, known + 1), 0);
                expected.insert(cookie, None);
            } else {
                let cookie = rig.client.read(offset_bytes, BLOCK as u32, 0);
                expected.insert(cookie, Some(content(block, known)));
            }
        }
        while !expected.is_empty() {
            rig.exchange();
            while let Some(reply) = rig.client.next_reply().expect("a sound server") {
                match (reply.outcome, expected.remove(&reply.cookie).expect("asked for once")) {
                    (Outcome::Done, None) => {}
                    (Outcome::Data(data), Some(known)) => {
                        assert!(data == known, "a read gives other bytes than were written");
                    }
                    (other, _) => panic!("{other:?}"),
                }
            }
        }
    }
}

#[test]
fn bytes_stay_right_while_connections_move_and_break() {
    // More than the largest answer, which would never come otherwise.
    let faults = Faults { drop_every_bytes: Some(2_000_000), ..Faults::default() };
    let mut rig = Rig::start(3, faults);
    let mut walk = Walk::new();
    for round in 0..100 {
        walk.round(&mut rig);
        rig.move_connection(round % OSDS, round / 3 % 3);
    }
    // Requests go through all cores. A connection that is broken just now does not count, and the
    // client may move connections by itself.
    let is_spread = |status: &RbdStatus| status.connections.iter().all(|&count| count > 0);
    let mut status = rig.status();
    for _ in 0..100 {
        (0..OSDS).for_each(|osd| rig.move_connection(osd, osd % 3));
        walk.round(&mut rig);
        status = rig.status();
        if is_spread(&status) {
            break;
        }
    }
    assert!(is_spread(&status), "{status:?}");
    (0..30).for_each(|_| walk.round(&mut rig));
    let status = rig.status();
    assert!(status.moves > 20 && status.handed.reports > 500, "{status:?}");
    // What a turn causes is one message: there are never more messages than what they carry.
    assert!(status.handed.messages_out <= status.handed.errands, "{status:?}");
    assert!(status.handed.messages_in <= status.handed.reports, "{status:?}");
    rig.close();
}

#[test]
fn an_image_closes_while_its_connections_are_on_another_core() {
    let mut rig = Rig::start(2, Faults::default());
    let mut walk = Walk::new();
    (0..5).for_each(|_| walk.round(&mut rig));
    (0..OSDS).for_each(|osd| rig.move_connection(osd, 1));
    (0..20).for_each(|_| walk.round(&mut rig));
    let status = rig.status();
    assert_eq!(status.connections, [0, OSDS]);
    assert!(status.owns_lock);
    // The lock is given up through the other core.
    rig.close();
}

#[test]
fn calls_that_name_no_core_are_refused() {
    let rig = Rig::start(2, Faults::default());
    let refused = rig.call("move:osd=0,core=2").expect_err("there are two cores");
    assert!(refused.contains("no such core"), "{refused}");
    let refused = rig.call("move:osd=x,core=1").expect_err("no number");
    assert!(refused.contains("whole number"), "{refused}");
    rig.close();
}
