//! The load of the contenders without a server: on a device inside this process.
//!
//! `fieldstone bench nbd` starts this program once more for each cell of such a contender:
//! `fieldstone bench generate --load JSON`. The new process opens the device with `embed`, as a
//! program would, keeps as many requests under way as the load says, and closes the device. It
//! prints the same numbers that the benchmark reads from fio.
//!
//! A second thread of the process is the core that runs the store. The CPU time is that of all
//! threads, from the first request to the end of closing. So it contains the work that the store
//! deferred. The bytes of a read end in a buffer of the client, as those of an NBD client do that
//! copies them from its socket. A file is read into that buffer; other stores have the bytes in
//! memory of their own, from which the client copies them.

use std::io::IoSliceMut;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_embed::{CallerBuffer, CompletionQueue, Device, Done, Operation, Options};
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::fio::{Load, Measured, Pattern};

/// The longest latency that the histogram keeps apart from longer ones.
const LATENCY_MAX: Duration = Duration::from_secs(60);

/// The longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A load on a device in the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InProcess {
    /// The target, as `embed` takes it.
    pub target: String,
    /// Past the page cache.
    pub direct: bool,
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

/// Runs a load, given as JSON, and prints the results as JSON.
pub fn run(load: Option<&str>) -> anyhow::Result<()> {
    let load = load.context("`bench generate` is for `bench nbd`, which passes a load")?;
    let load: InProcess = serde_json::from_str(load).context("the load is not as expected")?;
    let measured = measure(&load)?;
    print_line!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

fn measure(job: &InProcess) -> anyhow::Result<Measured> {
    let options = Options { direct: job.direct, ..Options::default() };
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
    let after = Usage::now();
    measured.cpu_s = after.cpu_s - before.cpu_s;
    measured.switches = after.switches - before.switches;
    Ok(measured)
}

/// The accesses that write a whole device in order.
pub const FILL: Load = Load { pattern: Pattern::SequentialWrite, block_bytes: 1 << 20, depth: 4 };

/// Keeps requests under way until the time is up.
struct Client<'a> {
    device: &'a Device,
    job: &'a InProcess,
    completions: std::sync::Arc<CompletionQueue>,
    random: SmallRng,
    blocks: u64,
    /// Blocks of a sequential load that were submitted.
    next: u64,
    data: Bytes,
    buffer: Vec<u8>,
    /// Memory for the reads of a file, one for each request under way. Never freed: if the run ends
    /// early, the device may still read into it. The process ends soon after.
    destinations: Vec<CallerBuffer>,
    /// When each request under way was submitted.
    submitted: Vec<Instant>,
    latencies_ns: Histogram<u64>,
}

impl<'a> Client<'a> {
    fn new(device: &'a Device, job: &'a InProcess) -> anyhow::Result<Self> {
        let Load { block_bytes, depth, .. } = job.load;
        let mut random = SmallRng::seed_from_u64(job.seed);
        let len = usize::try_from(block_bytes)?;
        let mut data = vec![0; len];
        random.fill(&mut data[..]);
        let destinations = match job.target.starts_with("file:") && job.load.pattern.reads() {
            true => (0..depth).map(|_| leaked(len)).collect(),
            false => Vec::new(),
        };
        let longest_ns = u64::try_from(LATENCY_MAX.as_nanos())?;
        Ok(Self {
            device,
            job,
            completions: CompletionQueue::new(depth as usize)?,
            random,
            blocks: job.size_bytes / block_bytes,
            next: 0,
            data: data.into(),
            buffer: vec![0; len],
            destinations,
            submitted: vec![Instant::now(); depth as usize],
            latencies_ns: Histogram::new_with_max(longest_ns, 3)?,
        })
    }

    fn run(mut self) -> anyhow::Result<Measured> {
        let start = Instant::now();
        let deadline = self.job.seconds.map(|seconds| start + Duration::from_secs_f64(seconds));
        let mut under_way = 0;
        for slot in 0..self.submitted.len() {
            under_way += usize::from(self.submit(slot, deadline)?);
        }
        let mut done: Vec<Done> = Vec::new();
        let mut last = start;
        while under_way > 0 {
            if self.completions.wait(ANSWER_MAX, self.submitted.len(), &mut done) == 0 {
                bail!("no request was answered for {ANSWER_MAX:?}");
            }
            last = Instant::now();
            for Done { tag, answer } in done.drain(..) {
                under_way -= 1;
                let slot = usize::try_from(tag)?;
                answer?.scatter(&mut [IoSliceMut::new(&mut self.buffer)]);
                let latency = last.duration_since(self.submitted[slot]).as_nanos();
                self.latencies_ns.saturating_record(u64::try_from(latency)?);
                under_way += usize::from(self.submit(slot, deadline)?);
            }
        }
        Ok(self.measured(last.duration_since(start)))
    }

    /// Submits the next request. False if there is none: the time is up, or the whole device was
    /// accessed once.
    fn submit(&mut self, slot: usize, deadline: Option<Instant>) -> anyhow::Result<bool> {
        let now = Instant::now();
        let over = match deadline {
            Some(deadline) => now >= deadline,
            None => self.next >= self.blocks,
        };
        if over {
            return Ok(false);
        }
        let Load { pattern, block_bytes, .. } = self.job.load;
        let block = match pattern.is_sequential() {
            true => self.next % self.blocks,
            false => self.random.random_range(0..self.blocks),
        };
        self.next += 1;
        let offset_bytes = block * block_bytes;
        let operation = match pattern.reads() {
            true => match self.destinations.get(slot) {
                Some(buffer) => Operation::ReadInto { offset_bytes, buffer: *buffer },
                None => Operation::Read { offset_bytes, len_bytes: self.buffer.len() },
            },
            false => Operation::Write { offset_bytes, data: self.data.clone(), fua: false },
        };
        self.submitted[slot] = now;
        self.device.submit(operation, self.completions.on_complete(slot as u64))?;
        Ok(true)
    }

    fn measured(&self, elapsed: Duration) -> Measured {
        let seconds = elapsed.as_secs_f64();
        let ios = self.latencies_ns.len();
        let iops = ios as f64 / seconds.max(f64::MIN_POSITIVE);
        let quantile_us = |q: f64| self.latencies_ns.value_at_quantile(q) as f64 / 1e3;
        Measured {
            ios,
            iops,
            bytes_per_second: iops * self.job.load.block_bytes as f64,
            mean_us: self.latencies_ns.mean() / 1e3,
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            seconds,
            ..Measured::default()
        }
    }
}

/// Memory for a read that is never freed.
fn leaked(len_bytes: usize) -> CallerBuffer {
    let mut memory = ManuallyDrop::new(AlignedBuf::zeroed(len_bytes));
    let start = NonNull::from(&mut memory[..]).cast();
    // SAFETY: nothing frees the memory, and only the request of one slot uses it at a time.
    unsafe { CallerBuffer::new(start, len_bytes) }
}

/// CPU time and context switches of all threads of this process.
#[derive(Clone, Copy)]
struct Usage {
    cpu_s: f64,
    switches: u64,
}

impl Usage {
    fn now() -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` has room for the result, and all zeroes are a valid value of it.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
            usage.assume_init()
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        let switches = usage.ru_nvcsw.saturating_add(usage.ru_nivcsw);
        Self {
            cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            switches: u64::try_from(switches).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(pattern: Pattern, seconds: Option<f64>) -> InProcess {
        let load = Load { pattern, block_bytes: 4096, depth: 8 };
        let target = "ram:1M".to_owned();
        InProcess { target, direct: false, size_bytes: 1 << 20, load, seconds, fill: true, seed: 7 }
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
