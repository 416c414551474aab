//! The load of the contenders without a server: on a device inside this process.
//!
//! A benchmark starts this program once more for each cell of such a contender: `fieldstone bench
//! generate --load JSON`. The JSON is a [`Job`]. The new process opens the device with `embed`, as
//! a program would, keeps as many requests under way as the load says, and closes the device. It
//! prints the same numbers that the benchmark reads from fio.
//!
//! A second thread of the process is the core that runs the store. The CPU time is that of all
//! threads, from the first request to the end of closing. So it contains the work that the store
//! deferred. The bytes of a read end in a buffer of the client, as those of an NBD client do that
//! copies them from its socket. A file is read into that buffer; other stores have the bytes in
//! memory of their own, from which the client copies them.

use std::io::IoSliceMut;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_embed::{
    CallerBuffer, CompletionQueue, Device, Done, OnComplete, Operation, Options,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::course::Course;
use crate::fio::{Load, Measured, Pattern};
use crate::rbd::{objects, open};
use crate::usage::Usage;

/// The longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

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
}

/// What a process that a benchmark starts does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Job {
    /// A load on a device. Prints [`Measured`].
    Device(InProcess),
    /// A load on objects of a Ceph cluster. Prints [`Measured`].
    Objects(objects::ObjectLoad),
    /// Opens an image of a Ceph cluster, and closes it. Prints [`Usage`].
    Open(open::OpenJob),
}

impl Job {
    /// The command that does the job in a new process. `program` is the path of this program.
    ///
    /// # Errors
    /// The job cannot be written as JSON.
    pub fn command(&self, program: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new(program);
        command.args(["bench", crate::GENERATE, "--load", &serde_json::to_string(self)?]);
        Ok(command)
    }
}

/// Runs a job, given as JSON, and prints the results as JSON.
pub fn run(job: Option<&str>) -> anyhow::Result<()> {
    let job = job.context("`bench generate` is for the other benchmarks, which pass a job")?;
    let result = match serde_json::from_str(job).context("the job is not as expected")? {
        Job::Device(load) => serde_json::to_string(&measure(&load)?),
        Job::Objects(load) => serde_json::to_string(&objects::measure(&load)?),
        Job::Open(job) => serde_json::to_string(&open::measure(&job)?),
    };
    print_line!("{}", result?);
    Ok(())
}

fn measure(job: &InProcess) -> anyhow::Result<Measured> {
    let cores = usize::from(job.cores);
    let options = Options { direct: job.direct, cores, ..Options::default() };
    let device = Device::open(&job.target, &options)?;
    if device.size_bytes() < job.size_bytes {
        bail!("{} has only {} bytes", job.target, device.size_bytes());
    }
    if job.fill {
        Client::new(&device, &InProcess { seconds: None, load: FILL, ..job.clone() })?.run()?;
    }
    let before = Usage::now();
    let mut measured = Client::new(&device, job)?.run()?;
    if job.seconds.is_none() {
        device.flush()?;
    }
    device.close()?;
    let used = Usage::now().without(&before);
    measured.cpu_s = used.cpu_s();
    measured.switches = used.switches as u64;
    Ok(measured)
}

/// The accesses that write a whole device in order.
pub const FILL: Load = Load { pattern: Pattern::SequentialWrite, block_bytes: 1 << 20, depth: 4 };

/// Keeps requests under way until the time is up.
struct Client<'a> {
    device: &'a Device,
    job: &'a InProcess,
    completions: std::sync::Arc<CompletionQueue>,
    course: Course,
    data: Bytes,
    buffer: Vec<u8>,
    /// Memory for the reads of a file, one for each request under way. Never freed: if the run ends
    /// early, the device may still read into it. The process ends soon after.
    destinations: Vec<CallerBuffer>,
    /// Requests that are submitted together.
    batch: Vec<(Operation, OnComplete)>,
    /// When each request under way was submitted.
    submitted: Vec<Instant>,
}

impl<'a> Client<'a> {
    fn new(device: &'a Device, job: &'a InProcess) -> anyhow::Result<Self> {
        let Load { block_bytes, depth, .. } = job.load;
        let len = usize::try_from(block_bytes)?;
        let data = random_bytes(len, job.seed);
        let destinations = match job.target.starts_with("file:") && job.load.pattern.reads() {
            true => (0..depth).map(|_| leaked(len)).collect(),
            false => Vec::new(),
        };
        Ok(Self {
            device,
            job,
            completions: CompletionQueue::new(depth as usize)?,
            course: Course::new(job.load, job.size_bytes, job.seconds, job.seed)?,
            data,
            buffer: vec![0; len],
            destinations,
            batch: Vec::new(),
            submitted: vec![Instant::now(); depth as usize],
        })
    }

    fn run(mut self) -> anyhow::Result<Measured> {
        let mut under_way = 0;
        for slot in 0..self.submitted.len() {
            under_way += usize::from(self.prepare(slot)?);
        }
        self.device.submit_batch(&mut self.batch)?;
        let mut done: Vec<Done> = Vec::new();
        while under_way > 0 {
            if self.completions.wait(ANSWER_MAX, self.submitted.len(), &mut done) == 0 {
                bail!("no request was answered for {ANSWER_MAX:?}");
            }
            let now = Instant::now();
            for Done { tag, answer } in done.drain(..) {
                under_way -= 1;
                let slot = usize::try_from(tag)?;
                answer?.scatter(&mut [IoSliceMut::new(&mut self.buffer)]);
                self.course.done(self.submitted[slot], now);
                under_way += usize::from(self.prepare(slot)?);
            }
            self.device.submit_batch(&mut self.batch)?;
        }
        Ok(self.course.measured())
    }

    /// Puts the next request into the batch. False if there is none.
    fn prepare(&mut self, slot: usize) -> anyhow::Result<bool> {
        let now = Instant::now();
        let Some(offset_bytes) = self.course.next(now) else { return Ok(false) };
        let operation = match self.job.load.pattern.reads() {
            true => match self.destinations.get(slot) {
                Some(buffer) => Operation::ReadInto { offset_bytes, buffer: *buffer },
                None => Operation::Read { offset_bytes, len_bytes: self.buffer.len() },
            },
            false => Operation::Write { offset_bytes, data: self.data.clone(), fua: false },
        };
        self.submitted[slot] = now;
        self.batch.push((operation, self.completions.on_complete(slot as u64)));
        Ok(true)
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

    fn job(pattern: Pattern, seconds: Option<f64>) -> InProcess {
        let load = Load { pattern, block_bytes: 4096, depth: 8 };
        let target = "ram:1M".to_owned();
        let (direct, cores, size_bytes) = (false, 1, 1 << 20);
        InProcess { target, direct, cores, size_bytes, load, seconds, fill: true, seed: 7 }
    }

    #[test]
    fn a_load_on_memory_is_measured() {
        for pattern in Pattern::ALL {
            let measured = measure(&job(pattern, Some(0.1))).expect("memory");
            assert!(measured.ios > 100 && measured.seconds >= 0.1, "{measured:?}");
            assert!(measured.p50_us > 0.0 && measured.p99_us >= measured.p50_us, "{measured:?}");
            assert!(measured.cpu_s > 0.0 && measured.switches > 0, "{measured:?}");
        }
    }

    #[test]
    fn one_pass_accesses_every_block_once() {
        let measured = measure(&job(Pattern::SequentialWrite, None)).expect("memory");
        assert_eq!(measured.ios, 256);
        let too_small = InProcess { size_bytes: 2 << 20, ..job(Pattern::SequentialRead, None) };
        assert!(measure(&too_small).expect_err("refused").to_string().contains("1048576 bytes"));
    }
}
