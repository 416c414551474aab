//! The GPU: objects in the card's memory, launches between two events.
//!
//! The bytes do not cross the bus. Launches take turns on copies of the buffers that together are
//! larger than the card's cache, so they come from its memory. Before the timing, the card's bytes
//! are compared with those of the CPU.
//!
//! Codes work byte by byte. So a batch of small objects is one launch, as in the paper (section
//! III-D): each element's place holds that element of one object after the other.

use std::sync::Arc;

use anyhow::{Context, ensure};
use fieldstone_codes::Profile;
use fieldstone_gf::LinearMap;
use fieldstone_gpu::driver::{DeviceAddress, Driver, Event, Rows, Stream};
use fieldstone_gpu::{Card, Loaded};
use serde_json::{Map, json};

use super::Check;
use super::case::{
    DATA_ELEMENTS, Findings, LOST, PROFILE, Point, SIZES, SURVIVORS, Who, Work, objects_per_batch,
};
use crate::stats;

/// Samples; a point is their median.
const ROUNDS: usize = 15;
/// The intended length of a sample.
const SAMPLE_NS: f64 = 10e6;
/// Most launches of a sample.
const LAUNCHES_MAX: f64 = 20_000.0;
/// Memory of the copies: this much, or this many times the card's cache if that is more.
const COPIES_BYTES: u64 = 1 << 30;
const CACHES: u64 = 8;
/// Bytes of noise that the host copies to the card again and again.
const NOISE_BYTES: usize = 4 << 20;

/// Adds the points of the card.
///
/// # Errors
/// The run was interrupted, the card failed, or it computes other bytes than the CPU.
pub fn measure(card: &Card, check: Check<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let profile: Profile = PROFILE.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
    let code = profile.code();
    let repair = code.repair(&LOST, &SURVIVORS)?;
    let bench = Bench::new(card)?;
    for (work, map) in [(Work::Encode, code.encode()), (Work::Rebuild, &repair.map)] {
        let program = card.program(map)?;
        for object_bytes in SIZES {
            let batch = objects_per_batch(object_bytes);
            let mut launches = vec![(Who::Gpu, batch)];
            if batch > 1 {
                launches.push((Who::GpuSingle, 1));
            }
            for (who, objects) in launches {
                check()?;
                let layout = Layout::of(map, object_bytes, objects)?;
                bench.verify(&program, map, layout)?;
                let (ns, seconds) = bench.time(&program, layout)?;
                let mut more = Map::new();
                more.insert("card".to_owned(), json!(card.info().name));
                more.insert("driver".to_owned(), json!(card.info().driver));
                more.insert("objects".to_owned(), json!(objects));
                let gb_per_second = (object_bytes * objects) as f64 / ns;
                found.points.push(Point { work, object_bytes, who, gb_per_second, seconds, more });
            }
        }
    }
    Ok(())
}

/// Where the elements of a launch lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Distance of two elements: one element of each object.
    pitch: u32,
    /// Bytes of all inputs.
    input_bytes: u64,
    /// Bytes of all outputs.
    output_bytes: u64,
}

impl Layout {
    fn of(map: &LinearMap, object_bytes: usize, objects: usize) -> anyhow::Result<Self> {
        let pitch = u32::try_from(object_bytes / DATA_ELEMENTS * objects)?;
        let shape = map.shape();
        let bytes = |shards: &[u32]| -> u64 {
            shards.iter().map(|&elements| u64::from(elements) * u64::from(pitch)).sum()
        };
        let (input_bytes, output_bytes) =
            (bytes(&shape.input_elements), bytes(&shape.output_elements));
        Ok(Self { pitch, input_bytes, output_bytes })
    }

    fn copy_bytes(self) -> u64 {
        self.input_bytes + self.output_bytes
    }
}

/// The card with its memory of noise.
struct Bench<'a> {
    card: &'a Card,
    stream: Stream,
    begin: Event,
    end: Event,
    memory: DeviceAddress,
    memory_bytes: u64,
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // No work is on the way: `time` and `verify` wait for theirs, unless the card has failed.
        self.card.driver().free(self.memory);
    }
}

impl<'a> Bench<'a> {
    fn new(card: &'a Card) -> anyhow::Result<Self> {
        let driver = card.driver();
        let info = card.info();
        let wanted = COPIES_BYTES.max(CACHES * info.cache_bytes).min(info.memory_bytes / 2);
        let memory_bytes = wanted.next_multiple_of(NOISE_BYTES as u64);
        let (stream, begin, end) = (driver.stream()?, driver.event()?, driver.event()?);
        let memory = driver.allocate(memory_bytes)?;
        let bench = Self { card, stream, begin, end, memory, memory_bytes };
        let noise = noise();
        let rows = Rows::one(noise.len());
        for at in (0..memory_bytes).step_by(noise.len()) {
            // SAFETY: the noise lives until after the wait for the event behind the copies, and
            // the memory is a multiple of its length.
            unsafe { driver.copy_in(stream, memory.plus(at), noise.as_ptr(), rows)? };
        }
        driver.record(end, stream)?;
        driver.wait(end)?;
        Ok(bench)
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        self.card.driver()
    }

    /// Copies of the buffers of a launch.
    fn copies(&self, layout: Layout) -> anyhow::Result<u64> {
        let copies = self.memory_bytes / layout.copy_bytes();
        ensure!(copies >= 4, "the card has too little memory for objects of this size");
        Ok(copies)
    }

    fn launch(&self, program: &Loaded, layout: Layout, copy: u64) -> anyhow::Result<()> {
        let inputs = self.memory.plus(copy * layout.copy_bytes());
        let outputs = inputs.plus(layout.input_bytes);
        program.launch(self.stream, inputs, outputs, layout.pitch)?;
        Ok(())
    }

    /// Compares the bytes of one launch with the CPU's.
    fn verify(&self, program: &Loaded, map: &LinearMap, layout: Layout) -> anyhow::Result<()> {
        self.launch(program, layout, 0)?;
        let inputs = self.read(self.memory, layout.input_bytes)?;
        let outputs = self.read(self.memory.plus(layout.input_bytes), layout.output_bytes)?;
        let pitch = layout.pitch as usize;
        let mut sources = Vec::new();
        let mut rest = inputs.as_slice();
        for &elements in &map.shape().input_elements {
            let (shard, behind) = rest.split_at(elements as usize * pitch);
            sources.push(shard);
            rest = behind;
        }
        let shards = map.shape().output_elements.iter();
        let mut expected: Vec<Vec<u8>> =
            shards.map(|&elements| vec![0; elements as usize * pitch]).collect();
        let mut targets: Vec<&mut [u8]> = expected.iter_mut().map(Vec::as_mut_slice).collect();
        map.execute(&sources, &mut targets)?;
        ensure!(expected.concat() == outputs, "the card computes other bytes than the CPU");
        Ok(())
    }

    /// Reads the card's memory after the work of the stream.
    fn read(&self, from: DeviceAddress, bytes: u64) -> anyhow::Result<Vec<u8>> {
        let mut read = vec![0; usize::try_from(bytes)?];
        let rows = Rows::one(read.len());
        // SAFETY: the bytes stay where they are until after the wait for the event behind the
        // copy, and the range lies in this bench's memory.
        unsafe { self.driver().copy_out(self.stream, read.as_mut_ptr(), from, rows)? };
        self.driver().record(self.end, self.stream)?;
        self.driver().wait(self.end)?;
        Ok(read)
    }

    /// The median time of a launch in nanoseconds, and the seconds of all samples.
    fn time(&self, program: &Loaded, layout: Layout) -> anyhow::Result<(f64, f64)> {
        let copies = self.copies(layout)?;
        let mut turn = 0;
        let mut sample = |launches: u64| -> anyhow::Result<f64> {
            self.driver().record(self.begin, self.stream)?;
            for _ in 0..launches {
                self.launch(program, layout, turn % copies)?;
                turn += 1;
            }
            self.driver().record(self.end, self.stream)?;
            self.driver().wait(self.end)?;
            Ok(self.driver().elapsed_ns(self.begin, self.end)?)
        };
        // The clock of an idle card is low, so the first sample only tells how long one takes.
        let once = copies.min(64);
        let first = sample(once)? / once as f64;
        let launches = (SAMPLE_NS / first.max(1.0)).clamp(4.0, LAUNCHES_MAX) as u64;
        sample(launches)?;
        let samples =
            (0..ROUNDS).map(|_| sample(launches)).collect::<anyhow::Result<Vec<f64>>>()?;
        let each: Vec<f64> = samples.iter().map(|ns| ns / launches as f64).collect();
        let median = stats::median(&each).filter(|ns| *ns > 0.0).context("no time passed")?;
        Ok((median, samples.iter().sum::<f64>() / 1e9))
    }
}

/// Noise that is the same in every run.
fn noise() -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    let mut noise = Vec::with_capacity(NOISE_BYTES);
    while noise.len() < NOISE_BYTES {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        noise.extend_from_slice(&word.to_le_bytes());
    }
    noise
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_gpu::program::{PITCH_ALIGN_BYTES, Program};

    #[test]
    fn launches_fit_the_programs() {
        let code = PROFILE.parse::<Profile>().expect("a profile").code();
        let repair = code.repair(&LOST, &SURVIVORS).expect("one is lost");
        for (map, inputs, outputs) in [(code.encode(), 32, 16), (&repair.map, 20, 8)] {
            let program = Program::compile(map).expect("the map is small enough");
            assert_eq!(program.elements(), (inputs, outputs));
            for object_bytes in SIZES {
                for objects in [1, objects_per_batch(object_bytes)] {
                    let layout = Layout::of(map, object_bytes, objects).expect("it fits");
                    let pitch = u64::from(layout.pitch);
                    assert!(pitch.is_multiple_of(PITCH_ALIGN_BYTES));
                    assert_eq!(layout.input_bytes, inputs * pitch);
                    assert_eq!(layout.output_bytes, outputs * pitch);
                    assert!(COPIES_BYTES / layout.copy_bytes() >= 4);
                    assert_eq!(pitch as usize * DATA_ELEMENTS, object_bytes * objects);
                }
            }
        }
    }

    #[test]
    fn noise_is_no_pattern() {
        let noise = noise();
        assert_eq!(noise.len(), NOISE_BYTES);
        assert_ne!(noise[..4096], noise[4096..8192]);
    }
}
