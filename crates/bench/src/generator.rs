//! The load of the contenders without a server: on a device inside this process.
//!
//! A benchmark starts this program once more for each cell of such a contender: `fieldstone bench
//! generate --load JSON`. The JSON is a [`GeneratorTask`]. The new process opens the device with
//! `embed`, as a program would, keeps as many requests under way as the load says, and closes the
//! device. It prints the same numbers that the benchmark reads from fio.
//!
//! A second thread of the process is the core that runs the store. With [`Answers::Queue`], the
//! thread of the load waits for answers and submits the next requests, as fio does. With
//! [`Answers::Callback`], the core itself does this: no request goes from thread to thread.
//!
//! The CPU time is that of all threads, from the first request to the end of closing. So it
//! contains the work that the store deferred. The bytes of a read end in a buffer of the client, as
//! those of an NBD client do that copies them from its socket. A file is read into that buffer;
//! other stores have the bytes in memory of their own, from which the client copies them.

use std::io::IoSliceMut;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_embed::{
    Answer, CallerBuffer, Complete, CompletionQueue, Device, Done, Error, OnComplete, Operation,
    Options,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::course::Course;
use crate::fio::{Load, Measured, Pattern};
use crate::rbd::{librbd, objects, open};
use crate::usage::Usage;

/// The longest wait for an answer.
pub const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Who takes the answers of a load, and submits the next requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answers {
    /// The thread of the load, which waits for a completion queue.
    Queue,
    /// A callback on the core's thread.
    Callback,
}

/// A load on a device in the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InProcess {
    /// The target, as `embed` takes it.
    pub target: String,
    /// Past the page cache.
    pub direct: bool,
    /// Cores of the device.
    pub cores: u16,
    /// Size of the device.
    pub size_bytes: u64,
    /// The accesses.
    pub load: Load,
    /// Length of the run in seconds. None for one pass over the whole device.
    pub seconds: Option<f64>,
    /// Writes the whole device before the run: memory is empty when it is opened.
    pub fill: bool,
    /// The same seed makes the same random addresses.
    pub seed: u64,
    /// Who takes the answers.
    pub answers: Answers,
}

/// What a process that a benchmark starts does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GeneratorTask {
    /// A load on a device. Prints [`Measured`].
    Device(InProcess),
    /// A load on objects of a Ceph cluster. Prints [`Measured`].
    Objects(objects::ObjectLoad),
    /// A load on an image of a Ceph cluster through librbd. Prints [`Measured`].
    Librbd(librbd::ImageLoad),
    /// Opens an image of a Ceph cluster, and closes it. Prints [`Usage`].
    Open(open::OpenTask),
}

impl GeneratorTask {
    /// The command that does the task in a new process. `program` is the path of this program.
    ///
    /// # Errors
    /// The task cannot be written as JSON.
    pub fn command(&self, program: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new(program);
        command.args(["bench", crate::GENERATE, "--load", &serde_json::to_string(self)?]);
        Ok(command)
    }
}

/// Runs a task, given as JSON, and prints the results as JSON.
pub fn run(task: Option<&str>) -> anyhow::Result<()> {
    let task = task.context("`bench generate` is for the other benchmarks, which pass a task")?;
    let result = match serde_json::from_str(task).context("the task is not as expected")? {
        GeneratorTask::Device(load) => serde_json::to_string(&measure(&load)?),
        GeneratorTask::Objects(load) => serde_json::to_string(&objects::measure(&load)?),
        GeneratorTask::Librbd(load) => serde_json::to_string(&librbd::measure(&load)?),
        GeneratorTask::Open(task) => serde_json::to_string(&open::measure(&task)?),
    };
    print_line!("{}", result?);
    Ok(())
}

fn measure(task: &InProcess) -> anyhow::Result<Measured> {
    let cores = usize::from(task.cores);
    let options = Options { direct: task.direct, cores, ..Options::default() };
    let device = Device::open(&task.target, &options)?;
    if device.size_bytes() < task.size_bytes {
        bail!("{} has only {} bytes", task.target, device.size_bytes());
    }
    let device = Arc::new(device);
    if task.fill {
        let fill = InProcess { seconds: None, load: FILL, ..task.clone() };
        by_queue(&device, Accesses::new(&fill)?)?;
    }
    let before = Usage::now();
    let accesses = Accesses::new(task)?;
    let mut measured = match task.answers {
        Answers::Queue => by_queue(&device, accesses)?,
        Answers::Callback => by_callback(&device, accesses)?,
    };
    if task.seconds.is_none() {
        device.flush()?;
    }
    Arc::into_inner(device).context("the device is in use after the load")?.close()?;
    let used = Usage::now().without(&before);
    measured.cpu_s = used.cpu_s();
    measured.switches = used.switches as u64;
    Ok(measured)
}

/// The accesses that write a whole device in order.
pub const FILL: Load = Load { pattern: Pattern::SequentialWrite, block_bytes: 1 << 20, depth: 4 };

/// The accesses of a load, each in one of as many slots as the load keeps under way.
struct Accesses {
    course: Course,
    reads: bool,
    data: Bytes,
    buffer: Vec<u8>,
    /// Memory for the reads of a file, one for each slot. Never freed: if the run ends early, the
    /// device may still read into it. The process ends soon after.
    destinations: Vec<CallerBuffer>,
    /// When the access of each slot was submitted.
    submitted: Vec<Instant>,
    under_way: usize,
}

impl Accesses {
    fn new(task: &InProcess) -> anyhow::Result<Self> {
        let Load { pattern, block_bytes, depth } = task.load;
        let len = usize::try_from(block_bytes)?;
        let destinations = match task.target.starts_with("file:") && pattern.reads() {
            true => (0..depth).map(|_| leaked(len)).collect(),
            false => Vec::new(),
        };
        Ok(Self {
            course: Course::new(task.load, task.size_bytes, task.seconds, task.seed)?,
            reads: pattern.reads(),
            data: random_bytes(len, task.seed),
            buffer: vec![0; len],
            destinations,
            submitted: vec![Instant::now(); depth as usize],
            under_way: 0,
        })
    }

    /// The next access, in this slot. `None` if there is none.
    fn next(&mut self, slot: usize, now: Instant) -> Option<Operation> {
        let offset_bytes = self.course.next(now)?;
        self.submitted[slot] = now;
        self.under_way += 1;
        Some(match (self.reads, self.destinations.get(slot)) {
            (true, Some(buffer)) => Operation::ReadInto { offset_bytes, buffer: *buffer },
            (true, None) => Operation::Read { offset_bytes, len_bytes: self.buffer.len() },
            (false, _) => Operation::Write { offset_bytes, data: self.data.clone(), fua: false },
        })
    }

    /// The access of this slot has ended.
    fn done(&mut self, slot: usize, answer: Answer, now: Instant) -> Result<(), Error> {
        self.under_way -= 1;
        answer?.scatter(&mut [IoSliceMut::new(&mut self.buffer)]);
        self.course.done(self.submitted[slot], now);
        Ok(())
    }
}

/// Makes the accesses from this thread, which waits for answers.
fn by_queue(device: &Device, mut accesses: Accesses) -> anyhow::Result<Measured> {
    let depth = accesses.submitted.len();
    let completions = CompletionQueue::new(depth)?;
    // Requests that are submitted together.
    let mut batch: Vec<(Operation, OnComplete)> = Vec::new();
    let prepare = |accesses: &mut Accesses, slot: usize, batch: &mut Vec<_>| {
        let next = accesses.next(slot, Instant::now());
        batch.extend(next.map(|access| (access, completions.on_complete(slot as u64))));
    };
    for slot in 0..depth {
        prepare(&mut accesses, slot, &mut batch);
    }
    device.submit_batch(&mut batch)?;
    let mut done: Vec<Done> = Vec::new();
    while accesses.under_way > 0 {
        if completions.wait(ANSWER_MAX, depth, &mut done) == 0 {
            bail!("no request was answered for {ANSWER_MAX:?}");
        }
        let now = Instant::now();
        for Done { tag, answer } in done.drain(..) {
            let slot = usize::try_from(tag)?;
            accesses.done(slot, answer, now)?;
            prepare(&mut accesses, slot, &mut batch);
        }
        device.submit_batch(&mut batch)?;
    }
    Ok(accesses.course.measured())
}

/// Makes the accesses on the core's thread: the callback of an answer submits the next request.
fn by_callback(device: &Arc<Device>, accesses: Accesses) -> anyhow::Result<Measured> {
    let depth = accesses.submitted.len();
    let chain = Arc::new_cyclic(|own| Chain {
        device: Arc::downgrade(device),
        own: Weak::clone(own),
        links: Mutex::new(Links { accesses, batch: Vec::new(), failure: None }),
        ended: Condvar::new(),
    });
    let mut links = chain.lock();
    for slot in 0..depth {
        chain.prepare(&mut links, slot);
    }
    chain.submit(&mut links);
    let mut answered = u64::MAX;
    while links.accesses.under_way > 0 && links.failure.is_none() {
        let progress = links.accesses.course.measured().ios;
        if progress == answered {
            bail!("no request was answered for {ANSWER_MAX:?}");
        }
        answered = progress;
        let waited = chain.ended.wait_timeout(links, ANSWER_MAX);
        links = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    match links.failure.take() {
        Some(failure) => Err(failure.into()),
        None => Ok(links.accesses.course.measured()),
    }
}

/// The receiver of the answers of [`by_callback`].
struct Chain {
    /// Weak: the requests under way own this receiver, and the device owns them.
    device: Weak<Device>,
    own: Weak<Self>,
    links: Mutex<Links>,
    /// The last access has ended, or one has failed.
    ended: Condvar,
}

struct Links {
    accesses: Accesses,
    /// Requests that are submitted together.
    batch: Vec<(Operation, OnComplete)>,
    failure: Option<Error>,
}

impl Chain {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepare(&self, links: &mut Links, slot: usize) {
        let Some(own) = self.own.upgrade() else { return };
        let next = links.accesses.next(slot, Instant::now());
        links.batch.extend(next.map(|access| (access, OnComplete::new(own, slot as u64))));
    }

    fn submit(&self, links: &mut Links) {
        if links.batch.is_empty() {
            return;
        }
        // While accesses are under way, the thread of the load keeps the device.
        let Some(device) = self.device.upgrade() else { return };
        let submitted = device.submit_batch(&mut links.batch);
        links.failure = links.failure.take().or(submitted.err());
    }
}

impl Complete for Chain {
    fn complete(&self, tag: u64, answer: Answer) {
        let mut links = self.lock();
        let slot = tag as usize;
        let done = links.accesses.done(slot, answer, Instant::now());
        links.failure = links.failure.take().or(done.err());
        if links.failure.is_none() {
            self.prepare(&mut links, slot);
        }
    }

    fn end_of_batch(&self) {
        let mut links = self.lock();
        self.submit(&mut links);
        if links.accesses.under_way == 0 || links.failure.is_some() {
            self.ended.notify_all();
        }
    }
}

/// Bytes that do not compress. The same seed makes the same bytes.
pub fn random_bytes(len_bytes: usize, seed: u64) -> Bytes {
    let mut data = vec![0; len_bytes];
    SmallRng::seed_from_u64(seed).fill(&mut data[..]);
    data.into()
}

/// Memory for a read that is never freed.
fn leaked(len_bytes: usize) -> CallerBuffer {
    let mut memory = ManuallyDrop::new(AlignedBuf::zeroed(len_bytes));
    let start = NonNull::from(&mut memory[..]).cast();
    // SAFETY: nothing frees the memory, and only the request of one slot uses it at a time.
    unsafe { CallerBuffer::new(start, len_bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pattern: Pattern, seconds: Option<f64>) -> InProcess {
        let load = Load { pattern, block_bytes: 4096, depth: 8 };
        let target = "ram:1M".to_owned();
        let (direct, cores, size_bytes) = (false, 1, 1 << 20);
        let answers = Answers::Queue;
        InProcess { target, direct, cores, size_bytes, load, seconds, fill: true, seed: 7, answers }
    }

    #[test]
    fn a_load_on_memory_is_measured() {
        let both = [Answers::Queue, Answers::Callback];
        for (pattern, answers) in Pattern::ALL.into_iter().flat_map(|p| both.map(|a| (p, a))) {
            let task = InProcess { answers, ..task(pattern, Some(0.1)) };
            let measured = measure(&task).expect("memory");
            assert!(measured.ios > 100 && measured.seconds >= 0.1, "{measured:?}");
            assert!(measured.p50_us > 0.0 && measured.p99_us >= measured.p50_us, "{measured:?}");
            assert!(measured.cpu_s > 0.0 && measured.switches > 0, "{measured:?}");
        }
    }

    #[test]
    fn one_pass_accesses_every_block_once() {
        let one_pass = task(Pattern::SequentialWrite, None);
        assert_eq!(measure(&one_pass).expect("memory").ios, 256);
        let measured = measure(&InProcess { answers: Answers::Callback, ..one_pass });
        assert_eq!(measured.expect("memory").ios, 256);
        let too_small = InProcess { size_bytes: 2 << 20, ..task(Pattern::SequentialRead, None) };
        assert!(measure(&too_small).expect_err("refused").to_string().contains("1048576 bytes"));
    }
}
