//! The card as an accelerator: jobs become slices, and slices go through lanes.
//!
//! A linear map treats all columns of its elements alike, and a placement treats each input alone.
//! So a job consists of equal *units*, columns or inputs, and is cut into *slices*: ranges of units
//! ([`code`] and [`place`] say how many). A *lane* is a stream with memory of the card for one
//! slice. It copies the slice's inputs in, executes the program, and copies the results out.
//! Several lanes work at once, so the copies in, the programs and the copies out of different
//! slices overlap, of one large job as of several small ones.
//!
//! ```text
//!   job --> slice 0 --> lane 0:  in | program | out
//!           slice 1 --> lane 1:       in | program | out
//!           slice 2 --> lane 2:            in | program | out
//! ```
//!
//! Inputs in [pinned memory](crate::host_memory) are read directly, others through a pinned buffer
//! of the lane; the thread that submits or polls copies them. Outputs of maps are pinned buffers.
//!
//! A lane takes memory when a slice needs it, and keeps it ([`lane`]). If there is too little, the
//! job of that slice ends with an error, and the device goes on with other jobs.
//!
//! After any other error of the driver, the device trusts the card no more: all of its jobs end
//! with an error, and it takes no others. An engine repeats them in software. Buffers of work that
//! may still be under way are never given back.

mod code;
mod lane;
mod place;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use fieldstone_accel::{Device, Job, JobCompletion, JobError, JobId, JobOutput, SubmissionQueueId};
use fieldstone_buf::AlignedBuf;

use self::code::CodeWork;
use self::lane::{Lane, Need, Slice};
use self::place::PlaceWork;
use crate::card::Card;
use crate::driver::DriverError;
use crate::images::Source;
use crate::prepare::Policy;

/// Slices in work at once.
pub const LANES: usize = 4;
/// Jobs that a device has at once.
pub const JOBS_MAX: usize = 64;

/// The pattern of [`GpuDevice::poison_outputs`].
const POISON: u8 = 0xa5;

/// One kind of job, as the card does it.
trait Work: Send {
    /// Units of the job.
    fn units(&self) -> usize;

    /// Most units of a slice, not 0.
    fn slice_units(&self) -> usize;

    /// The memory for a slice of that many units.
    fn need(&self, units: usize) -> Need;

    /// Starts all work of a slice on a lane with enough memory: copies in, program, copies out.
    /// With `poison`, fills the memory for outputs before the program.
    fn start(
        &mut self,
        card: &Card,
        lane: &mut Lane,
        units: Range<usize>,
        poison: bool,
    ) -> Result<(), DriverError>;

    /// Takes the results of a complete slice.
    fn end(&mut self, lane: &Lane, units: Range<usize>) -> Result<(), JobError>;

    /// The results of all slices.
    fn output(self: Box<Self>) -> JobOutput;
}

/// A job on the device.
struct Flight {
    queue: SubmissionQueueId,
    id: JobId,
    work: Box<dyn Work>,
    /// The first unit that is in no slice yet.
    next_unit: usize,
    slices_in_work: usize,
    /// Why the job has no result. No slice of it starts any more.
    error: Option<JobError>,
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

impl GpuDevice {
    /// A device that leaves jobs to software that software finishes earlier.
    ///
    /// # Errors
    /// The card has failed.
    pub fn open(card: &Arc<Card>) -> Result<Self, DriverError> {
        Self::with_policy(card, Policy::measured(card))
    }

    /// A device with a policy of its own.
    ///
    /// # Errors
    /// The card has failed.
    pub fn with_policy(card: &Arc<Card>, policy: Policy) -> Result<Self, DriverError> {
        let lanes = (0..LANES).map(|_| Lane::new(card)).collect::<Result<_, _>>()?;
        Ok(Self {
            card: Arc::clone(card),
            policy,
            name: format!("gpu ({})", card.info().name),
            lanes,
            flights: VecDeque::new(),
            next_flight: 0,
            finished: Vec::new(),
            lost: None,
            poison: false,
        })
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

    /// The work of a job, if the card does such jobs.
    fn work_of(&self, job: &Job) -> Option<Box<dyn Work>> {
        match job {
            Job::Code { map, inputs, checksum_block_bytes } => {
                let program = self.policy.program(map)?;
                let work = CodeWork::new(&self.card, program, map, inputs, *checksum_block_bytes)?;
                Some(Box::new(work))
            }
            Job::Place { map, rule, width, xs, weights } => {
                let width = place::fitting_width(*width)?;
                let placer = self.policy.placer(&Source::new(map, *rule, weights))?;
                Some(Box::new(PlaceWork::new(placer, width, xs)))
            }
            Job::Checksum { .. } => None,
        }
    }

    /// Starts slices while there are lanes without work.
    fn start_slices(&mut self) -> Result<(), DriverError> {
        while let Some(lane) = self.lanes.iter_mut().find(|lane| lane.slice.is_none()) {
            let waiting = |(_, flight): &&mut (u64, Flight)| flight.waits();
            let Some((number, flight)) = self.flights.iter_mut().find(waiting) else { break };
            let units = flight.next_slice();
            match lane.reserve(&self.card, flight.work.need(units.len())) {
                Err(error @ DriverError::Memory { .. }) => {
                    flight.error = Some(JobError::Device(error.to_string()));
                    continue;
                }
                reserved => reserved?,
            }
            flight.next_unit = units.end;
            flight.slices_in_work += 1;
            let started = flight.work.start(&self.card, lane, units.clone(), self.poison);
            // Also after an error: a part of the work may be under way.
            lane.slice = Some(Slice { flight: *number, units });
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
            let flight = self.flights.iter_mut().find(|(number, _)| *number == slice.flight);
            let Some((_, flight)) = flight else { continue };
            flight.slices_in_work -= 1;
            if let Err(error) = flight.work.end(lane, slice.units) {
                flight.error = Some(error);
            }
        }
        Ok(())
    }

    /// Completes the jobs that no lane works on and that have no more slices.
    fn complete_flights(&mut self) {
        while let Some(at) = self.flights.iter().position(|(_, flight)| flight.is_done()) {
            let Some((_, flight)) = self.flights.remove(at) else { break };
            self.finished.push(flight.complete());
        }
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
                std::mem::forget(flight.work);
            }
        }
        for lane in &mut self.lanes {
            if lane.slice.take().is_some() {
                lane.forget_staging();
            }
        }
    }

    fn work(&mut self) {
        if self.lost.is_none() {
            let result = self.end_slices().and_then(|()| self.start_slices());
            match result {
                Ok(()) => self.complete_flights(),
                Err(error) => self.lose(&error),
            }
        }
    }
}

impl Flight {
    /// Whether it has units that are in no slice yet.
    fn waits(&self) -> bool {
        self.error.is_none() && self.next_unit < self.work.units()
    }

    fn next_slice(&self) -> Range<usize> {
        let end = self.next_unit.saturating_add(self.work.slice_units());
        self.next_unit..end.min(self.work.units())
    }

    fn is_done(&self) -> bool {
        self.slices_in_work == 0 && !self.waits()
    }

    fn complete(self) -> (SubmissionQueueId, JobCompletion) {
        let result = match self.error {
            Some(error) => Err(error),
            None => Ok(self.work.output()),
        };
        (self.queue, JobCompletion { job: self.id, result })
    }
}

impl Device for GpuDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn takes(&self, job: &Job) -> bool {
        if self.lost.is_some() {
            return false;
        }
        match job {
            Job::Code { checksum_block_bytes: Some(0), .. } | Job::Checksum { .. } => false,
            Job::Code { map, inputs, .. } => {
                let direct = inputs.iter().all(|input| self.card.reads_directly(input));
                self.policy.takes(map, job.input_bytes(), direct)
            }
            Job::Place { map, rule, width, xs, weights } => place::fitting_width(*width)
                .is_some_and(|width| {
                    let source = Source::new(map, *rule, weights);
                    self.policy.takes_placements(&source, width, xs.len())
                }),
        }
    }

    fn buffer(&self, len_bytes: usize) -> AlignedBuf {
        self.card.host_buffer(len_bytes).unwrap_or_else(|| AlignedBuf::stale(len_bytes))
    }

    fn submit(&mut self, queue: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
        if self.lost.is_some() || self.flights.len() >= JOBS_MAX {
            return Err(job);
        }
        let Some(work) = self.work_of(&job) else { return Err(job) };
        let (next_unit, slices_in_work, error) = (0, 0, None);
        let flight = Flight { queue, id, work, next_unit, slices_in_work, error };
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
                std::mem::forget(flight.and_then(|at| self.flights.remove(at)));
                lane.forget_staging();
                self.lost.get_or_insert_with(|| "the card does not answer".to_owned());
            }
        }
        for lane in &mut self.lanes {
            lane.free_arena(&self.card);
            if self.lost.is_none() {
                self.card.give_stream(lane.stream, lane.done);
            }
        }
    }
}
