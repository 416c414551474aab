//! A store in memory that a test controls: it may always have work, work for long, and grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fieldstone_block::layers::LayerOptions;
use fieldstone_block::{Backend, Completion, Info, Nanos, Ram, Request};
use fieldstone_host::store::Mail;
use fieldstone_host::{
    Branch, BranchIo, BranchSpec, Core, DeviceId, DeviceSpec, Host, Phase, Store, StoreIo,
    StoreSpec,
};
use fieldstone_uring::Event;

use crate::common::TIMEOUT;

/// What the test tells the store, and what it sees of it.
#[derive(Debug, Default)]
pub struct Script {
    /// `act` always says that it did something.
    pub is_busy: AtomicBool,
    /// The store has a branch on core 1 which does the same.
    pub has_branch: bool,
    /// The next `act` takes so long.
    pub work_ms: AtomicU64,
    /// The size of the device.
    pub size_bytes: AtomicU64,
    /// Calls of `act`, with those of the branch.
    pub acts: AtomicU64,
    /// The timer of the store, which it sets again and again, was due so many times.
    pub timers: AtomicU64,
}

impl Script {
    fn act(&self) -> bool {
        self.acts.fetch_add(1, Ordering::Relaxed);
        match self.work_ms.swap(0, Ordering::Relaxed) {
            0 => {}
            ms => std::thread::sleep(Duration::from_millis(ms)),
        }
        self.is_busy.load(Ordering::Relaxed)
    }
}

/// Opens a device with such a store.
pub fn open(host: &Host, script: &Arc<Script>) -> DeviceId {
    let store = Box::new(ScriptedSpec(Arc::clone(script)));
    let spec = DeviceSpec { name: "scripted".to_owned(), store, layers: LayerOptions::default() };
    let (device, opened) = host.handle().open_device(spec);
    opened.recv_timeout(TIMEOUT).expect("answered").expect("opened");
    device
}

#[derive(Debug)]
struct ScriptedSpec(Arc<Script>);

impl StoreSpec for ScriptedSpec {
    fn open(self: Box<Self>, io: &mut StoreIo<'_>) -> Box<dyn Store> {
        if self.0.has_branch {
            io.open_branch(Core(1), Box::new(ScriptedSpec(Arc::clone(&self.0))));
        }
        let mut store = ScriptedStore { ram: Ram::new(1 << 20), script: self.0, closed: false };
        store.set_timer(io);
        Box::new(store)
    }
}

impl BranchSpec for ScriptedSpec {
    fn open(self: Box<Self>, _: &mut BranchIo<'_>) -> Box<dyn Branch> {
        Box::new(ScriptedBranch(self.0))
    }
}

struct ScriptedBranch(Arc<Script>);

impl Branch for ScriptedBranch {
    fn event(&mut self, _: u32, _: Event, _: &mut BranchIo<'_>) {}
    fn mail(&mut self, _: Mail, _: &mut BranchIo<'_>) {}
    fn act(&mut self, _: &mut BranchIo<'_>) -> bool {
        self.0.act()
    }
    fn flush(&mut self, _: &mut BranchIo<'_>) {}
    fn release(&mut self, _: &mut BranchIo<'_>) {}
}

struct ScriptedStore {
    ram: Ram,
    script: Arc<Script>,
    closed: bool,
}

impl ScriptedStore {
    fn set_timer(&mut self, io: &mut StoreIo<'_>) {
        let token = io.token(0);
        io.reactor.timer(io.now.plus(Nanos::from_ms(1)), token);
    }
}

impl Backend for ScriptedStore {
    fn info(&self) -> Info {
        let size_bytes = self.script.size_bytes.load(Ordering::Relaxed);
        Info { size_bytes, ..self.ram.info() }
    }
    fn submit(&mut self, request: Request, now: Nanos) {
        self.ram.submit(request, now);
    }
    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        self.ram.poll(now, out);
    }
    fn deadline(&self) -> Option<Nanos> {
        None
    }
}

impl Store for ScriptedStore {
    fn kind(&self) -> &'static str {
        "scripted"
    }
    fn phase(&self) -> Phase {
        if self.closed { Phase::Closed } else { Phase::Serving }
    }
    fn close(&mut self) {
        self.closed = true;
    }
    fn event(&mut self, _: u32, _: Event, io: &mut StoreIo<'_>) {
        self.script.timers.fetch_add(1, Ordering::Relaxed);
        self.set_timer(io);
    }
    fn act(&mut self, _: &mut StoreIo<'_>) -> bool {
        self.script.act()
    }
}
