//! An example of a new store: `pattern_store SIZE SOCKET` serves a device in which every eight
//! bytes hold their own offset, as nbdkit's pattern plugin does. [docs/extending.md] explains it.
//!
//! [docs/extending.md]: ../../../docs/extending.md

use std::path::Path;
use std::sync::Arc;

use fieldstone_block::layers::LayerOptions;
use fieldstone_block::{
    Backend, Completion, Extent, ExtentKind, Info, Nanos, Op, Payload, Piece, Request, Stage,
};
use fieldstone_buf::AlignedBuf;
use fieldstone_host::frontends::nbd::{self, Exports};
use fieldstone_host::{
    Destination, DeviceSpec, Host, HostConfig, Phase, Store, StoreIo, StoreSpec,
};
use fieldstone_nbd::{Export, ExportList};
use fieldstone_uring::{Address, Caching, Listener};

/// The unit of the pattern. The layer `align` makes other ranges from whole units.
const WORD_BYTES: u32 = 8;

/// The configuration of the store. The host sends it to the core where the store will live.
#[derive(Clone, Copy, Debug)]
pub struct PatternSpec {
    /// Size of the device in bytes.
    pub size_bytes: u64,
}

impl StoreSpec for PatternSpec {
    fn open(self: Box<Self>, _: &mut StoreIo<'_>) -> Box<dyn Store> {
        Box::new(PatternStore { size_bytes: self.size_bytes, ready: Vec::new(), closed: false })
    }
}

/// The store. It answers each request in `submit`, so it never waits.
struct PatternStore {
    size_bytes: u64,
    ready: Vec<Completion>,
    closed: bool,
}

impl Backend for PatternStore {
    fn info(&self) -> Info {
        let size_bytes = self.size_bytes;
        Info {
            size_bytes,
            block_bytes: WORD_BYTES,
            preferred_bytes: 65536,
            read_ahead_bytes: 0,
            read_only: true,
        }
    }

    fn submit(&mut self, mut request: Request, now: Nanos) {
        request.stamps.stamp(Stage::Submitted, now);
        let payload = match request.op {
            Op::Read => Payload::Data([Piece::Data(pattern(&request).freeze())].into()),
            Op::Extents => {
                let len_bytes = u64::from(request.len_bytes);
                Payload::Extents(vec![Extent { len_bytes, kind: ExtentKind::Data }])
            }
            // The device is read-only, so the stack has refused requests that change data.
            _ => Payload::None,
        };
        self.ready.push(Completion::of(&request, Ok(payload)));
    }

    fn poll(&mut self, _: Nanos, out: &mut Vec<Completion>) {
        out.append(&mut self.ready);
    }

    fn deadline(&self) -> Option<Nanos> {
        None
    }
}

/// The bytes of a range that starts and ends on a word.
fn pattern(request: &Request) -> AlignedBuf {
    let mut data = AlignedBuf::stale(request.len_bytes as usize);
    let words = data.chunks_exact_mut(WORD_BYTES as usize);
    for (offset, word) in (request.offset_bytes..).step_by(WORD_BYTES as usize).zip(words) {
        word.copy_from_slice(&offset.to_be_bytes());
    }
    data
}

impl Store for PatternStore {
    fn kind(&self) -> &'static str {
        "pattern"
    }

    fn phase(&self) -> Phase {
        if self.closed { Phase::Closed } else { Phase::Serving }
    }

    fn close(&mut self) {
        self.closed = true;
    }
}

/// Serves the pattern over NBD, behind the usual layers, until the host stops.
///
/// # Errors
/// The system refuses a ring, the socket cannot be bound, or the store cannot be opened.
pub fn serve(size_bytes: u64, socket: &Path) -> Result<Host, Box<dyn std::error::Error>> {
    let host = Host::start(HostConfig {
        cores: 1,
        pin: false,
        caching: Caching::Buffered,
        verify_payload: false,
        payload_memory_bytes: fieldstone_host::PAYLOAD_MEMORY_BYTES,
        parity_memory_bytes: fieldstone_host::PARITY_MEMORY_BYTES,
        frontends: vec![&nbd::KIND],
        nodes: Vec::new(),
    })?;
    let store = Box::new(PatternSpec { size_bytes });
    let layers = LayerOptions::default();
    let spec = DeviceSpec { name: "pattern".to_owned(), store, layers };
    let (device, opened) = host.handle().open_device(spec);
    let info = opened.recv()??;
    let list = ExportList::new(vec![Export::new("pattern", &info)])?;
    nbd::offer(host.handle(), Exports { list: Arc::new(list), devices: vec![device] })?;
    let listener = Listener::bind(&Address::Unix(socket.to_path_buf()))?;
    let nbd = host.handle().frontend(nbd::KIND.name)?;
    host.handle().listen(listener, Destination::Frontend(nbd));
    Ok(host)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [size, socket] = arguments.as_slice() else { return Err("give SIZE and SOCKET".into()) };
    let size_bytes = fieldstone_units::parse_size(size)?;
    let _host = serve(size_bytes, Path::new(socket))?;
    println!("serving {size} on {socket}");
    loop {
        std::thread::park();
    }
}
