//! Helpers: nodes in a temporary folder, and folders that hang.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fieldstone_host::{
    Host, HostConfig, LocalNodeConfig, NodeRegistry, Opening, PARITY_MEMORY_BYTES,
    PAYLOAD_MEMORY_BYTES, folder,
};
use fieldstone_proto::disk::Superblock;
use fieldstone_proto::{MasterKey, NodeIndex, PoolId};
use fieldstone_uring::{Caching, Holder};

/// The longest wait of a test.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Makes each opening of its node hang until the test uses or drops the sender.
#[derive(Debug)]
pub struct Hang(Mutex<Receiver<()>>);

impl Hang {
    /// The registry, and a sender that lets one opening continue.
    pub fn registry() -> (Arc<dyn NodeRegistry>, Sender<()>) {
        let (go_on, wait) = channel();
        (Arc::new(Self(Mutex::new(wait))), go_on)
    }
}

impl NodeRegistry for Hang {
    fn seen(&self, _: NodeIndex, _: &Path, _: u64) {
        let _ = self.0.lock().expect("no panic").recv();
    }
    fn may_replace(&self, _: NodeIndex, _: &Path) -> Result<(), String> {
        Err("not here".to_owned())
    }
    fn made(&self, _: NodeIndex, _: &Path, _: u64) {}
}

/// Makes a node's folder, and returns the opening for it.
pub fn opening(pool: &Path, node: u16, registry: Option<Arc<dyn NodeRegistry>>) -> Opening {
    let expected = Superblock {
        pool: PoolId(5),
        node: NodeIndex(node),
        nodes: 6,
        incarnation: 9,
        key: MasterKey([3; 16]),
        slot_bytes: 1 << 20,
        slots: 8,
        code: "rs:4+2".to_owned(),
    };
    let path = pool.join(format!("node.{node}"));
    folder::create(&path, &expected).expect("made");
    let keys = expected.key.into();
    Opening { path, expected, keys, holder: Holder::Server, registry, replace_missing: false }
}

/// Starts a host with one core.
pub fn start(nodes: Vec<LocalNodeConfig>) -> Host {
    start_with_memory(nodes, PAYLOAD_MEMORY_BYTES)
}

/// The same with this much memory for payloads.
pub fn start_with_memory(nodes: Vec<LocalNodeConfig>, payload_memory_bytes: usize) -> Host {
    let config = HostConfig {
        cores: 1,
        pin: false,
        caching: Caching::Buffered,
        verify_payload: false,
        payload_memory_bytes,
        parity_memory_bytes: PARITY_MEMORY_BYTES,
        frontends: Vec::new(),
        nodes,
    };
    Host::start(config).expect("started")
}

/// Why a node is down, or `None`.
pub fn down(host: &Host, node: u16) -> Option<String> {
    let cores = host.handle().snapshot(false);
    let mut nodes = cores.into_iter().flat_map(|core| core.nodes);
    nodes.find(|status| status.node.0 == node).expect("it runs here").down
}

/// Waits until `is_so` returns true.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TIMEOUT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
