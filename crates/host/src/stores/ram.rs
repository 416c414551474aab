//! `ram:SIZE`: memory as a store. It serves at once, and its data is lost when the process ends.

use fieldstone_block::{Backend, Completion, Info, Nanos, Ram, Request};

use super::{StoreKind, without_cache};
use crate::store::{Phase, Store, StoreIo, StoreSpec};

/// The kind `ram:SIZE`.
pub const KIND: StoreKind = StoreKind {
    scheme: "ram",
    argument: "SIZE",
    about: "memory, which goes with the process",
    layers: |_, _| Ok(without_cache()),
    name: |_, place| if place == 0 { "ram".to_owned() } else { format!("ram{place}") },
    spec: |argument, _| {
        let size_bytes = fieldstone_units::parse_size(argument)?;
        if size_bytes == 0 || size_bytes % 512 != 0 {
            return Err(format!("{size_bytes} bytes are not a positive multiple of 512"));
        }
        Ok(Box::new(RamSpec { size_bytes }))
    },
};

/// A store in memory of this size.
#[derive(Clone, Copy, Debug)]
pub struct RamSpec {
    /// Size in bytes.
    pub size_bytes: u64,
}

impl StoreSpec for RamSpec {
    fn open(self: Box<Self>, _: &mut StoreIo<'_>) -> Box<dyn Store> {
        Box::new(RamStore { ram: Ram::new(self.size_bytes), closed: false })
    }
    fn is_volatile(&self) -> bool {
        true
    }
}

struct RamStore {
    ram: Ram,
    closed: bool,
}

impl Backend for RamStore {
    fn info(&self) -> Info {
        self.ram.info()
    }
    fn submit(&mut self, request: Request, now: Nanos) {
        self.ram.submit(request, now);
    }
    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        self.ram.poll(now, out);
    }
    fn deadline(&self) -> Option<Nanos> {
        self.ram.deadline()
    }
}

impl Store for RamStore {
    fn kind(&self) -> &'static str {
        "memory"
    }
    fn phase(&self) -> Phase {
        if self.closed { Phase::Closed } else { Phase::Serving }
    }
    fn close(&mut self) {
        self.closed = true;
    }
}
