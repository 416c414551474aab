//! The card as an accelerator: jobs become slices, and slices go through lanes.
//!
//! A map treats all columns of its elements alike, so a job is cut into *slices*: the same range of
//! columns of all elements, at most [`SLICE_BYTES`] in all. A *lane* is a stream with memory of the
//! card for one slice. It copies the slice's inputs in, executes the program, and copies the
//! outputs out. Several lanes work at once, so the copies in, the programs and the copies out of
//! different slices overlap, of one large job as of several small ones.
//!
//! ```text
//!   job --> slice 0 --> lane 0:  in | program | out
//!           slice 1 --> lane 1:       in | program | out
//!           slice 2 --> lane 2:            in | program | out
//! ```
//!
//! Inputs in [pinned memory](crate::host_memory) are read directly, others through a pinned buffer
//! of the lane; the thread that submits or polls copies them. Outputs are pinned buffers.
//!
//! When the driver reports an error, the card does nothing more for this process. Then all jobs of
//! the device end with an error, and it takes no others. An engine repeats them in software.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_accel::{
    Device, Job, JobCompletion, JobError, JobId, JobOutput, Shard, SubmissionQueueId, crc32c,
};
use fieldstone_buf::AlignedBuf;
use fieldstone_gf::LinearMap;

use crate::card::{Card, Loaded};
use crate::driver::{DeviceAddress, DriverError, Event, Rows, Stream};
use crate::prepare::Policy;
use crate::program::PITCH_ALIGN_BYTES;

/// Most bytes of a slice, inputs and outputs together.
pub const SLICE_BYTES: usize = 16 << 20;
/// Slices in work at once.
pub const LANES: usize = 4;
/// Jobs that a device has at once.
pub const JOBS_MAX: usize = 64;

/// A job on the device.
struct Flight {
    queue: SubmissionQueueId,
    id: JobId,
    program: Arc<Loaded>,
    map: Arc<LinearMap>,
    inputs: Vec<Bytes>,
    outputs: Vec<AlignedBuf>,
    checksum_block_bytes: Option<usize>,
    element_bytes: usize,
    /// The first column that is in no slice yet.
    next_column: usize,
    slices_in_work: usize,
    /// The card reads all inputs, and writes all outputs, directly.
    direct: (bool, bool),
}

/// The slice that a lane works on.
struct Slice {
    flight: u64,
    columns: Range<usize>,
    pitch: usize,
}

struct Lane {
    stream: Stream,
    done: Event,
    /// Memory of the card for one slice.
    arena: DeviceAddress,
    /// Pinned memory for inputs and outputs that are not, if it was needed already.
    staging: Option<AlignedBuf>,
    slice: Option<Slice>,
}

/// A card as a device for jobs. It belongs to one engine; several devices may share a card.
pub struct GpuDevice {
    card: Arc<Card>,
    policy: Policy,
    name: String,
    lanes: Vec<Lane>,
    /// Jobs in the order of their submission, by number.
    flights: VecDeque<(u64, Flight)>,
    next_flight: u64,
    finished: Vec<(SubmissionQueueId, JobCompletion)>,
    /// Why the card is lost.
    lost: Option<String>,
    /// The outputs on the card are filled with a pattern before each slice.
    poison: bool,
}

/// The pattern of [`GpuDevice::poison_outputs`].
const POISON: u8 = 0xa5;

/// Where the elements of a map's shards lie in the memory of a slice.
fn first_elements(counts: &[u32]) -> impl Iterator<Item = (usize, usize)> + '_ {
    counts.iter().scan(0, |first, &count| {
        let place = *first;
        *first += count as usize;
        Some((place, count as usize))
    })
}

impl GpuDevice {
    /// A device that leaves jobs to software that software finishes earlier.
    ///
    /// # Errors
    /// The card has failed or has too little memory.
    pub fn open(card: &Arc<Card>) -> Result<Self, DriverError> {
        Self::with_policy(card, Policy::measured(card))
    }

    /// A device with a policy of its own.
    ///
    /// # Errors
    /// The card has failed or has too little memory.
    pub fn with_policy(card: &Arc<Card>, policy: Policy) -> Result<Self, DriverError> {
        let driver = card.driver();
        let mut device = Self {
            card: Arc::clone(card),
            policy,
            name: format!("gpu ({})", card.info().name),
            lanes: Vec::with_capacity(LANES),
            flights: VecDeque::new(),
            next_flight: 0,
            finished: Vec::new(),
            lost: None,
            poison: false,
        };
        for _ in 0..LANES {
            let arena = driver.allocate(SLICE_BYTES as u64)?;
            let (stream, done) = (driver.stream()?, driver.event()?);
            device.lanes.push(Lane { stream, done, arena, staging: None, slice: None });
        }
        Ok(device)
    }

    /// Fills the memory for outputs on the card before each slice, so that tests find bytes that no
    /// program writes.
    pub fn poison_outputs(&mut self) {
        self.poison = true;
    }

    /// The card.
    #[must_use]
    pub fn card(&self) -> &Arc<Card> {
        &self.card
    }

    /// The longest range of columns of a slice.
    fn columns_max(program: &Loaded) -> usize {
        let (inputs, outputs) = program.program().elements();
        let align = PITCH_ALIGN_BYTES as usize;
        SLICE_BYTES / (inputs + outputs) as usize / align * align
    }

    /// Starts slices while there are lanes without work.
    fn start_slices(&mut self) -> Result<(), DriverError> {
        while let Some(lane) = self.lanes.iter_mut().find(|lane| lane.slice.is_none()) {
            let waiting =
                |(_, flight): &&mut (u64, Flight)| flight.next_column < flight.element_bytes;
            let Some((number, flight)) = self.flights.iter_mut().find(waiting) else { break };
            let start = flight.next_column;
            let end = (start + Self::columns_max(&flight.program)).min(flight.element_bytes);
            let pitch = (end - start).next_multiple_of(PITCH_ALIGN_BYTES as usize);
            flight.next_column = end;
            flight.slices_in_work += 1;
            let slice = Slice { flight: *number, columns: start..end, pitch };
            let started = start_slice(&self.card, lane, &slice, flight, self.poison);
            // Also after an error: a part of the work may be under way.
            lane.slice = Some(slice);
            started?;
        }
        Ok(())
    }

    /// Ends the slices that are complete.
    fn end_slices(&mut self) -> Result<(), DriverError> {
        for lane in &mut self.lanes {
            if lane.slice.is_none() || !self.card.driver().is_complete(lane.done)? {
                continue;
            }
            let Some(slice) = lane.slice.take() else { continue };
            let Some((_, flight)) = self.flights.iter_mut().find(|(n, _)| *n == slice.flight)
            else {
                continue;
            };
            if !flight.direct.1 {
                unstage(lane, &slice, flight);
            }
            flight.slices_in_work -= 1;
        }
        while let Some(at) = self.flights.iter().position(|(_, flight)| flight.is_done()) {
            let Some((_, flight)) = self.flights.remove(at) else { break };
            let (queue, completion) = flight.complete();
            self.finished.push((queue, completion));
        }
        Ok(())
    }

    /// The card is lost: no job has a result.
    fn lose(&mut self, error: &DriverError) {
        self.lost = Some(error.to_string());
        for (_, flight) in self.flights.drain(..) {
            let result = Err(JobError::Device(error.to_string()));
            let completion = JobCompletion { job: flight.id, result };
            self.finished.push((flight.queue, completion));
            if flight.slices_in_work > 0 {
                // A copy may still be under way, for all that the driver says.
                std::mem::forget((flight.inputs, flight.outputs));
            }
        }
        for lane in &mut self.lanes {
            if lane.slice.take().is_some() {
                std::mem::forget(lane.staging.take());
            }
        }
    }

    fn work(&mut self) {
        if self.lost.is_none() {
            let result = self.end_slices().and_then(|()| self.start_slices());
            if let Err(error) = result {
                self.lose(&error);
            }
        }
    }
}

impl Flight {
    fn is_done(&self) -> bool {
        self.slices_in_work == 0 && self.next_column >= self.element_bytes
    }

    fn complete(self) -> (SubmissionQueueId, JobCompletion) {
        let sums = |data: &[u8]| match self.checksum_block_bytes {
            None => Vec::new(),
            Some(block_bytes) => data.chunks(block_bytes).map(crc32c).collect(),
        };
        let shard = |output: AlignedBuf| {
            let checksums = sums(&output);
            Shard { data: output.freeze(), checksums }
        };
        let shards = self.outputs.into_iter().map(shard).collect();
        (self.queue, JobCompletion { job: self.id, result: Ok(JobOutput::Code(shards)) })
    }
}

/// The rows of a slice, for a shard with this number of elements.
fn rows(slice: &Slice, elements: usize, element_bytes: usize) -> Rows {
    let row_bytes = slice.columns.len();
    Rows { row_bytes, rows: elements, host_pitch: element_bytes, card_pitch: slice.pitch }
}

/// Starts all work of a slice: copies in, program, copies out.
fn start_slice(
    card: &Arc<Card>,
    lane: &mut Lane,
    slice: &Slice,
    flight: &mut Flight,
    poison: bool,
) -> Result<(), DriverError> {
    let driver = card.driver();
    let (map, element_bytes, pitch) = (Arc::clone(&flight.map), flight.element_bytes, slice.pitch);
    let (inputs, outputs) = flight.program.program().elements();
    let outputs_at = lane.arena.plus(inputs * pitch as u64);
    if flight.direct.0 {
        let places = first_elements(&map.shape().input_elements);
        for (input, (first, count)) in flight.inputs.iter().zip(places) {
            let to = lane.arena.plus((first * pitch) as u64);
            let from = input[slice.columns.start..].as_ptr();
            // SAFETY: the flight keeps its inputs until the slice is complete. They have `count`
            // elements of `element_bytes` bytes, and the slice fits into the arena.
            unsafe { driver.copy_in(lane.stream, to, from, rows(slice, count, element_bytes))? };
        }
    } else {
        stage(card, lane, slice, flight)?;
    }
    if poison {
        driver.fill(lane.stream, outputs_at, POISON, outputs * pitch as u64)?;
    }
    flight.program.launch(lane.stream, lane.arena, outputs_at, pitch as u32)?;
    if flight.direct.1 {
        let places = first_elements(&map.shape().output_elements);
        for (output, (first, count)) in flight.outputs.iter_mut().zip(places) {
            let from = outputs_at.plus((first * pitch) as u64);
            let to = output[slice.columns.start..].as_mut_ptr();
            // SAFETY: as above, for the outputs; no other slice writes these columns.
            unsafe { driver.copy_out(lane.stream, to, from, rows(slice, count, element_bytes))? };
        }
    } else {
        let at = inputs as usize * pitch;
        let bytes = outputs as usize * pitch;
        let to = staging(card, &mut lane.staging)?[at..at + bytes].as_mut_ptr();
        // SAFETY: the lane keeps its buffer and does not touch it until the slice is complete.
        unsafe { driver.copy_out(lane.stream, to, outputs_at, Rows::one(bytes))? };
    }
    driver.record(lane.done, lane.stream)
}

/// The pinned buffer of a lane, for one slice.
fn staging<'a>(
    card: &Arc<Card>,
    staging: &'a mut Option<AlignedBuf>,
) -> Result<&'a mut AlignedBuf, DriverError> {
    if staging.is_none() {
        let wanted = DriverError::Memory { place: "host", bytes: SLICE_BYTES as u64 };
        *staging = Some(card.host_buffer(SLICE_BYTES).ok_or(wanted)?);
    }
    Ok(staging.as_mut().expect("it was made above"))
}

/// Copies a slice's inputs to the lane's pinned buffer, and from there to the card.
fn stage(
    card: &Arc<Card>,
    lane: &mut Lane,
    slice: &Slice,
    flight: &Flight,
) -> Result<(), DriverError> {
    let buffer = staging(card, &mut lane.staging)?;
    let mut rows = buffer.chunks_exact_mut(slice.pitch);
    for (input, &count) in flight.inputs.iter().zip(&flight.map.shape().input_elements) {
        for element in input.chunks_exact(flight.element_bytes).take(count as usize) {
            let row = rows.next().expect("a slice fits into the buffer");
            row[..slice.columns.len()].copy_from_slice(&element[slice.columns.clone()]);
        }
    }
    let bytes = flight.program.program().elements().0 as usize * slice.pitch;
    let from = buffer.as_ptr();
    // SAFETY: the lane keeps its buffer and does not touch it until the slice is complete.
    unsafe { card.driver().copy_in(lane.stream, lane.arena, from, Rows::one(bytes)) }
}

/// Copies a complete slice's outputs from the lane's pinned buffer.
fn unstage(lane: &Lane, slice: &Slice, flight: &mut Flight) {
    let Some(buffer) = &lane.staging else { return };
    let inputs = flight.program.program().elements().0 as usize;
    let mut rows = buffer.chunks_exact(slice.pitch).skip(inputs);
    for output in &mut flight.outputs {
        for element in output.chunks_exact_mut(flight.element_bytes) {
            let row = rows.next().expect("a slice fits into the buffer");
            element[slice.columns.clone()].copy_from_slice(&row[..slice.columns.len()]);
        }
    }
}

impl Device for GpuDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn takes(&self, job: &Job) -> bool {
        let Job::Code { map, inputs, checksum_block_bytes } = job else { return false };
        if self.lost.is_some() || *checksum_block_bytes == Some(0) {
            return false;
        }
        let direct = inputs.iter().all(|input| self.card.reads_directly(input));
        self.policy.takes(map, job.input_bytes(), direct)
    }

    fn submit(&mut self, queue: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
        if self.lost.is_some() || self.flights.len() >= JOBS_MAX {
            return Err(job);
        }
        let Job::Code { map, inputs, checksum_block_bytes } = &job else { return Err(job) };
        let slices: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
        let (Ok(element_bytes), Some(program)) =
            (map.element_bytes(&slices), self.policy.program(map))
        else {
            return Err(job);
        };
        if Self::columns_max(&program) == 0 {
            return Err(job);
        }
        let lengths = map.shape().output_elements.iter().map(|&n| n as usize * element_bytes);
        let lengths: Vec<usize> = lengths.collect();
        let pinned: Option<Vec<AlignedBuf>> =
            lengths.iter().map(|&len| self.card.host_buffer(len)).collect();
        let direct = (inputs.iter().all(|i| self.card.reads_directly(i)), pinned.is_some());
        let outputs =
            pinned.unwrap_or_else(|| lengths.iter().map(|&len| AlignedBuf::stale(len)).collect());
        let flight = Flight {
            queue,
            id,
            program,
            map: Arc::clone(map),
            inputs: inputs.clone(),
            outputs,
            checksum_block_bytes: *checksum_block_bytes,
            element_bytes,
            next_column: 0,
            slices_in_work: 0,
            direct,
        };
        self.flights.push_back((self.next_flight, flight));
        self.next_flight += 1;
        self.work();
        Ok(())
    }

    fn backlog(&self) -> usize {
        JOBS_MAX
    }

    fn poll(&mut self, queue: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
        self.work();
        let (own, others) = self.finished.drain(..).partition::<Vec<_>, _>(|(of, _)| *of == queue);
        self.finished = others;
        completions.extend(own.into_iter().map(|(_, completion)| completion));
    }
}

impl Drop for GpuDevice {
    fn drop(&mut self) {
        for lane in &mut self.lanes {
            let Some(slice) = lane.slice.take() else { continue };
            // The slice's buffers must outlive its copies.
            if self.card.driver().wait(lane.done).is_err() {
                let flight = self.flights.iter().position(|(number, _)| *number == slice.flight);
                let flight = flight.and_then(|at| self.flights.remove(at));
                std::mem::forget((flight, lane.staging.take()));
            }
        }
        for lane in &self.lanes {
            self.card.driver().free(lane.arena);
        }
    }
}
