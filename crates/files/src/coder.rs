//! Executes the linear maps of stripes: in software, or as jobs of an accelerator.
//!
//! Each thread of a job has its own coder with its own engine. So a device has as many maps in
//! flight as there are threads.
//!
//! Without a device, a map reads the units where they are, and writes its outputs to their place.
//! With a device, the coder copies the inputs into the buffers of an [`Job::Code`], waits for the
//! result and copies it back. The engine verifies each result, and software repeats what the device
//! refuses, gets wrong or is late with. So the bytes are the same either way.
//!
//! A device sees elements as the equal parts of a shard. For codes over packets, the copies bring
//! the packets of each element together, and apart again. The elements of codes over words of 16
//! and 32 bits are bit planes: their maps stay in software.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fieldstone_accel::{Engine, Job, JobId, Shard, SubmissionQueueId};
use fieldstone_codes::Layout;
use fieldstone_gf::{LinearMap, ShapeError};

use crate::workers::MAX_JOBS;

/// The only queue of a coder's engine.
const QUEUE: SubmissionQueueId = SubmissionQueueId(0);
/// Between two polls, the coder sleeps for the time that it has waited, divided by this number. So
/// a sleep makes no job much longer.
const PAUSE_PART: u32 = 16;
/// The longest sleep between two polls.
const PAUSE_MAX: Duration = Duration::from_micros(500);
/// A shorter sleep would take longer than asked for. The thread yields the CPU instead.
const PAUSE_MIN: Duration = Duration::from_micros(20);

/// The coders of a job, one for each of its threads.
#[derive(Debug)]
pub struct Coders {
    first: Coder,
    others: Vec<Coder>,
}

/// The work of coders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoderCounts {
    /// Linear maps that were executed, each for one stripe.
    pub maps: u64,
    /// Of these, maps that a device took.
    pub device_jobs: u64,
    /// Of these, maps that software had to repeat.
    pub device_failures: u64,
}

impl Coders {
    /// Coders for `jobs` threads, 1 to [`MAX_JOBS`], that use the CPU.
    #[must_use]
    pub fn software(jobs: usize) -> Self {
        Self::new((0..jobs).map(|_| Engine::software()))
    }

    /// One coder, and so one thread, for each engine; a coder in software if there is no engine.
    /// Engines beyond [`MAX_JOBS`] are not used.
    #[must_use]
    pub fn new(engines: impl IntoIterator<Item = Engine>) -> Self {
        let mut coders = engines.into_iter().map(Coder::new).take(MAX_JOBS);
        let first = coders.next().unwrap_or_else(|| Coder::new(Engine::software()));
        Self { first, others: coders.collect() }
    }

    /// What the coders have done so far.
    #[must_use]
    pub fn counts(&self) -> CoderCounts {
        let mut counts = CoderCounts::default();
        for coder in self.others.iter().chain([&self.first]) {
            let code = coder.engine.counters().code;
            counts.maps += coder.maps;
            counts.device_jobs += code.device_jobs;
            counts.device_failures += code.device_failures;
        }
        counts
    }

    /// The coder of the calling thread, and those of further threads.
    pub(crate) fn split(&mut self) -> (&mut Coder, &mut [Coder]) {
        (&mut self.first, &mut self.others)
    }
}

/// Executes the maps of one thread.
#[derive(Debug)]
pub(crate) struct Coder {
    engine: Engine,
    /// Maps so far. The number of a job is that of its map, so no number comes twice.
    maps: u64,
    started: Instant,
}

impl Coder {
    fn new(engine: Engine) -> Self {
        Self { engine, maps: 0, started: Instant::now() }
    }

    /// As [`Layout::execute`], with the same bytes.
    ///
    /// # Errors
    /// Numbers or lengths of buffers do not fit the map or the layout. Then no output is written.
    pub(crate) fn execute(
        &mut self,
        layout: Layout,
        map: &Arc<LinearMap>,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), ShapeError> {
        self.maps += 1;
        if self.engine.has_device()
            && let Some(elements) = Elements::of(layout, map, inputs, outputs)
        {
            let gather = |input: &&[u8]| {
                let mut buffer = self.engine.buffer(input.len());
                elements.gather(input, &mut buffer);
                buffer.freeze()
            };
            let inputs = inputs.iter().map(gather).collect();
            if let Some(shards) = self.finish(Job::code(Arc::clone(map), inputs))
                && lengths_agree(&shards, outputs)
            {
                for (shard, output) in shards.iter().zip(outputs) {
                    elements.scatter(&shard.data, output);
                }
                return Ok(());
            }
        }
        layout.execute(map, inputs, outputs)
    }

    /// Gives the job to the engine and waits for its result. `None` if there is none: software then
    /// finds the error.
    fn finish(&mut self, job: Job) -> Option<Vec<Shard>> {
        let (id, submitted) = (JobId(self.maps), Instant::now());
        self.engine.submit(self.now_ns(), QUEUE, id, job).ok()?;
        let mut completions = Vec::new();
        loop {
            self.engine.poll(self.now_ns(), QUEUE, &mut completions);
            if let Some(done) = completions.drain(..).find(|done| done.job == id) {
                return done.result.ok()?.into_shards();
            }
            pause(submitted.elapsed());
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Leaves the CPU to other threads, after a job was waited for this long. One of them may be the
/// device, if it is simulated.
fn pause(waited: Duration) {
    match (waited / PAUSE_PART).min(PAUSE_MAX) {
        pause if pause < PAUSE_MIN => thread::yield_now(),
        pause => thread::sleep(pause),
    }
}

fn lengths_agree(shards: &[Shard], outputs: &[&mut [u8]]) -> bool {
    let same = |(shard, output): (&Shard, &&mut [u8])| shard.data.len() == output.len();
    shards.len() == outputs.len() && shards.iter().zip(outputs).all(same)
}

/// The places of a shard's elements: the shard is a sequence of blocks with one packet of each
/// element. If elements are the equal parts of the shard, there is one block, and an element is a
/// packet.
#[derive(Clone, Copy)]
struct Elements {
    element_bytes: usize,
    packet_bytes: usize,
}

impl Elements {
    /// `None` if the elements are no ranges of bytes, or if the buffers do not fit the map.
    fn of(
        layout: Layout,
        map: &LinearMap,
        inputs: &[&[u8]],
        outputs: &[&mut [u8]],
    ) -> Option<Self> {
        let element_bytes = map.element_bytes(inputs).ok()?;
        let packet_bytes = match layout {
            Layout::Contiguous => element_bytes,
            Layout::Packets { packet_bytes } => packet_bytes,
            Layout::Words { .. } => return None,
        };
        let counts = &map.shape().output_elements;
        let lengths = counts.iter().map(|&count| count as usize * element_bytes);
        let fit = lengths.eq(outputs.iter().map(|output| output.len()));
        let whole = element_bytes > 0 && element_bytes.is_multiple_of(packet_bytes);
        (fit && whole).then_some(Self { element_bytes, packet_bytes })
    }

    /// Copies the shard's bytes, element by element.
    fn gather(self, shard: &[u8], elements: &mut [u8]) {
        self.each_packet(shard.len(), |in_shard, at| {
            elements[at..at + self.packet_bytes]
                .copy_from_slice(&shard[in_shard..in_shard + self.packet_bytes]);
        });
    }

    /// The inverse of [`Elements::gather`].
    fn scatter(self, elements: &[u8], shard: &mut [u8]) {
        self.each_packet(shard.len(), |in_shard, at| {
            shard[in_shard..in_shard + self.packet_bytes]
                .copy_from_slice(&elements[at..at + self.packet_bytes]);
        });
    }

    /// Calls `copy` with the offset of each packet in the shard, and in the shard's elements.
    fn each_packet(self, shard_bytes: usize, mut copy: impl FnMut(usize, usize)) {
        let count = shard_bytes / self.element_bytes;
        for (number, in_shard) in (0..shard_bytes).step_by(self.packet_bytes).enumerate() {
            let (block, element) = (number / count, number % count);
            copy(in_shard, element * self.element_bytes + block * self.packet_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_an_element_come_together_and_apart_again() {
        let shard: Vec<u8> = (0..24).collect();
        let elements = Elements { element_bytes: 8, packet_bytes: 4 };
        let mut gathered = vec![0; shard.len()];
        elements.gather(&shard, &mut gathered);
        let expected: [&[u8]; 6] = [
            &shard[..4],
            &shard[12..16],
            &shard[4..8],
            &shard[16..20],
            &shard[8..12],
            &shard[20..],
        ];
        assert_eq!(gathered[..], expected.concat());
        let mut back = vec![0; 24];
        elements.scatter(&gathered, &mut back);
        assert_eq!(back, shard);
        let parts = Elements { element_bytes: 8, packet_bytes: 8 };
        parts.gather(&shard, &mut gathered);
        assert_eq!(gathered, shard);
    }

    #[test]
    fn there_is_a_coder_for_each_engine_and_at_least_one() {
        let threads = |coders: &mut Coders| coders.split().1.len() + 1;
        assert_eq!(threads(&mut Coders::new([])), 1);
        assert_eq!(threads(&mut Coders::software(0)), 1);
        assert_eq!(threads(&mut Coders::software(3)), 3);
        assert_eq!(threads(&mut Coders::software(MAX_JOBS + 1)), MAX_JOBS);
    }

    #[test]
    fn buffers_that_do_not_fit_are_refused_and_counted() {
        let code = "rs:2+1".parse::<fieldstone_codes::Profile>().expect("a code").code();
        let mut coder = Coder::new(Engine::software());
        let (mut short, data) = ([0; 7], [1; 8]);
        let (inputs, outputs) = ([&data[..]; 2], &mut [&mut short[..]]);
        let wrong = coder.execute(code.layout(), code.encode(), &inputs, outputs);
        assert!(matches!(wrong, Err(ShapeError::Length { .. })), "{wrong:?}");
        assert_eq!((short, coder.maps), ([0; 7], 1));
    }
}
