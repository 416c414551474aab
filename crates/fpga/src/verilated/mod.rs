//! The device itself: `rtl/top`, verilated, with a simulated host and card around it.
//!
//! The model has its own thread, which clocks it and simulates everything at the boundary of
//! `fs_top`:
//!
//! ```text
//!   driver --- requests by a channel ---> MMIO     +--------+
//!     |  ^---- answers -------------------         | fs_top |
//!     +------- host memory (shared) <---> reads,   |        | <---> card memory (the thread's own)
//!                                         writes   +--------+
//! ```
//!
//! Memories answer after a number of cycles that the seed decides, one beat per cycle each way.
//! Between the driver and the device is a link with the rules of PCIe ([`crate::pcie`]): the
//! device's writes and interrupts are posted, reads of host memory are answered in any order, no
//! answer passes a posted request, and a register access takes as long as one on a real bus.
//! Interrupts are counted by vector. When the device reports idle and nothing is on its way, the
//! thread sleeps: a server without requests costs no CPU.

pub mod encoder;
mod machine;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::host::{DmaMemory, Mmio};
use crate::pcie::Limits;
use machine::Machine;

mod designs {
    fieldstone_verilate::designs!();
}

/// Base address of host memory on the bus. It is not 0, so that a test finds an address that was
/// left at 0.
const HOST_BASE: u64 = 0x1_0000_0000;
/// Longest wait of a caller of [`Mmio::relax`].
const RELAX: Duration = Duration::from_micros(200);
/// Interrupt vectors.
const VECTORS: usize = 256;

/// Parameters of the machine around the device.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed decides the latencies.
    pub seed: u64,
    /// Size of host memory.
    pub host_bytes: usize,
    /// Size of card memory.
    pub card_bytes: usize,
    /// Cycles from a read of host memory to its first beat. Half of them pass on the way to memory.
    /// A write, an interrupt, and the answer to a register read take as long as that half.
    pub host_latency: Range<u64>,
    /// Cycles between the completions of a read of two beats. With 0, memory answers with one
    /// completion; else beats of several reads may mix.
    pub completion_split: Range<u64>,
    /// Cycles of a register access on its way to the device.
    pub mmio_latency: Range<u64>,
    /// Sizes and numbers that the link allows.
    pub limits: Limits,
    /// Cycles from a read of card memory to its first beat, and from a write to its answer.
    pub card_latency: u64,
    /// On every stream at the device's boundary: the chance that the host or a memory stalls in a
    /// cycle, so it does not take or does not offer.
    pub stall: f64,
    /// Write waves to this file.
    pub trace: Option<PathBuf>,
}

impl Default for Options {
    /// Latencies that are about those of PCIe and of high-bandwidth memory at 250 MHz.
    fn default() -> Self {
        Self {
            seed: 1,
            host_bytes: 64 << 20,
            card_bytes: 64 << 20,
            host_latency: 150..300,
            completion_split: 0..0,
            mmio_latency: 75..150,
            limits: Limits::default(),
            card_latency: 40,
            stall: 0.0,
            trace: None,
        }
    }
}

/// A request to the register pages.
struct Request {
    function: u16,
    offset: u64,
    /// The value to write; `None` for a read, whose answer goes to `answer`.
    value: Option<u64>,
    answer: Option<SyncSender<u64>>,
}

/// A message to the thread.
enum Message {
    Access(Request),
    /// Resets functions, a bit each, and tells when that is done.
    Reset(u64, SyncSender<()>),
}

/// State that the thread and its users share.
struct Shared {
    host: Mutex<Vec<u8>>,
    /// A counter of all events that a waiting driver may want to see.
    news: Mutex<u64>,
    news_changed: Condvar,
    interrupts: [AtomicU64; VECTORS],
    /// Cycles since reset, and nanoseconds that they took.
    cycles: AtomicU64,
    busy_ns: AtomicU64,
    write_run: SharedRun,
}

/// The last run of writes at the port of card memory: writes without a request to read among them.
///
/// The device counts an operation only from its start to its end. The times between are visible at
/// its boundary: a small coding job writes its parities in one run, after the read of its last
/// input and before the copy of the parities to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteRun {
    /// The cycle in which memory took the first write.
    pub first_taken: u64,
    /// The cycle in which memory answered the last write that it has answered.
    pub last_landed: u64,
}

/// A [`WriteRun`] that the machine writes, and that others read when the machine has nothing in
/// flight.
#[derive(Default)]
struct SharedRun {
    first_taken: AtomicU64,
    last_landed: AtomicU64,
}

impl SharedRun {
    fn set(&self, run: WriteRun) {
        self.first_taken.store(run.first_taken, Ordering::Relaxed);
        self.last_landed.store(run.last_landed, Ordering::Relaxed);
    }

    fn get(&self) -> WriteRun {
        WriteRun {
            first_taken: self.first_taken.load(Ordering::Relaxed),
            last_landed: self.last_landed.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    fn host(&self) -> MutexGuard<'_, Vec<u8>> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.news_changed.notify_all();
    }
}

/// A running device.
pub struct Simulation {
    shared: Arc<Shared>,
    card_bytes: usize,
    messages: Mutex<Option<Sender<Message>>>,
    thread: Option<JoinHandle<()>>,
}

/// The speed of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speed {
    /// Cycles since reset.
    pub cycles: u64,
    /// Time that the thread spent on them; sleep does not count.
    pub busy: Duration,
}

impl Simulation {
    /// Starts the device, fresh from reset.
    ///
    /// # Errors
    /// The thread cannot start, or the waves cannot be written.
    pub fn start(options: &Options) -> std::io::Result<Arc<Self>> {
        let shared = Arc::new(Shared {
            host: Mutex::new(vec![0; options.host_bytes]),
            news: Mutex::new(0),
            news_changed: Condvar::new(),
            interrupts: [const { AtomicU64::new(0) }; VECTORS],
            cycles: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            write_run: SharedRun::default(),
        });
        let (messages, incoming) = channel();
        let machine = Machine::new(options, Arc::clone(&shared), incoming)?;
        let thread = std::thread::Builder::new().name("rtl".to_owned());
        let thread = thread.spawn(move || machine.run())?;
        Ok(Arc::new(Self {
            shared,
            card_bytes: options.card_bytes,
            messages: Mutex::new(Some(messages)),
            thread: Some(thread),
        }))
    }

    /// The registers of a function.
    #[must_use]
    pub fn function(self: &Arc<Self>, function: u16) -> Arc<dyn Mmio> {
        Arc::new(Page { simulation: Arc::clone(self), function })
    }

    /// Host memory.
    #[must_use]
    pub fn memory(self: &Arc<Self>) -> Arc<dyn DmaMemory> {
        let bytes = self.shared.host().len() as u64;
        Arc::new(SimMemory { simulation: Arc::clone(self), window: HOST_BASE..HOST_BASE + bytes })
    }

    /// Card memory.
    #[must_use]
    pub fn card_window(&self) -> Range<u64> {
        0..self.card_bytes as u64
    }

    /// The speed of the simulation so far.
    #[must_use]
    pub fn speed(&self) -> Speed {
        Speed {
            cycles: self.shared.cycles.load(Ordering::Relaxed),
            busy: Duration::from_nanos(self.shared.busy_ns.load(Ordering::Relaxed)),
        }
    }

    /// The last run of writes to card memory. It is exact when the job that wrote is complete and
    /// no other job was submitted since.
    #[must_use]
    pub fn last_write_run(&self) -> WriteRun {
        self.shared.write_run.get()
    }

    /// Resets a function (function-level reset), and returns when that is done: its queue sets are
    /// disabled, and the device accesses none of its host memory. The reset takes effect after the
    /// register accesses that were sent before it. With function 0, all functions are reset, and
    /// the function table is empty afterwards. The host answers each function's reset by itself.
    pub fn reset_function(&self, function: u16) {
        let functions = if function == 0 { 0xffff } else { 1 << (function & 0xf) };
        let (done, is_done) = sync_channel(1);
        if self.send(Message::Reset(functions, done)) {
            // The thread ends only with its users.
            let _ = is_done.recv();
        }
    }

    /// Hands a message to the thread. False if the thread has ended.
    fn send(&self, message: Message) -> bool {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.as_ref().is_some_and(|messages| messages.send(message).is_ok())
    }
}

impl Drop for Simulation {
    /// Ends the thread, so that waves and coverage are complete.
    fn drop(&mut self) {
        *self.messages.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the simulation of the device failed");
        }
    }
}

/// The registers of one function.
struct Page {
    simulation: Arc<Simulation>,
    function: u16,
}

impl Mmio for Page {
    fn read64(&self, offset: u64) -> u64 {
        let (answer, answered) = sync_channel(1);
        let request =
            Request { function: self.function, offset, value: None, answer: Some(answer) };
        self.simulation.send(Message::Access(request));
        // All ones, as a bus reads when no device answers.
        answered.recv().unwrap_or(u64::MAX)
    }

    fn write64(&self, offset: u64, value: u64) {
        let request = Request { function: self.function, offset, value: Some(value), answer: None };
        self.simulation.send(Message::Access(request));
    }

    /// The vector of a function is the function's number.
    fn interrupts(&self) -> Option<u64> {
        let interrupts = &self.simulation.shared.interrupts;
        Some(interrupts[usize::from(self.function) % VECTORS].load(Ordering::Acquire))
    }

    fn relax(&self) {
        let shared = &self.simulation.shared;
        let news = shared.news.lock().unwrap_or_else(PoisonError::into_inner);
        // The result does not matter, because the caller polls again.
        let _ = shared.news_changed.wait_timeout(news, RELAX);
    }
}

/// Host memory.
struct SimMemory {
    simulation: Arc<Simulation>,
    window: Range<u64>,
}

impl SimMemory {
    fn range(&self, address: u64, bytes: usize) -> Range<usize> {
        assert!(self.window.contains(&address), "the driver stays in its window");
        let at = (address - HOST_BASE) as usize;
        at..at + bytes
    }
}

impl DmaMemory for SimMemory {
    fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    fn read(&self, address: u64, data: &mut [u8]) {
        let range = self.range(address, data.len());
        data.copy_from_slice(&self.simulation.shared.host()[range]);
    }

    fn write(&self, address: u64, data: &[u8]) {
        let range = self.range(address, data.len());
        self.simulation.shared.host()[range].copy_from_slice(data);
    }
}
