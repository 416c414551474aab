//! A queue set as an [`accel::Device`](fieldstone_accel::Device).
//!
//! **A job.** The driver copies the job into host memory that the device can access, and writes
//! descriptors:
//!
//! ```text
//!   H2C ring: COPY input 0, COPY input 1, ..., CODE (FENCE, COMPLETE)
//!   C2H ring: COPY output 0 (AFTER the CODE), ..., COPY output m - 1 (AFTER, COMPLETE)
//! ```
//!
//! A coding job that asks for checksums of its outputs has a `CHECKSUM` behind the `CODE`.
//! A placement has `PLACE` instead of `CODE`, and may need a `LOAD_MAP` before it. A checksum has
//! `CHECKSUM`. If card memory lacks the program or the image, one more copy comes first. The driver
//! rings doorbells once per burst: when the queue is polled, or when
//! [`MAX_BURST`](crate::bounds::MAX_BURST) descriptors wait. Coding jobs with the same map in a
//! burst become one operation (`batch.rs`).
//!
//! **Errors.** An error completion stops the queue set. The driver ends all of its jobs as device
//! errors, and the engine repeats them in software. The driver resets the set. When the device no
//! longer uses the jobs' memory, the driver enables the set again. The driver does the same with a
//! set that completes nothing for too many cycles. If a device does not answer at all, the driver
//! gives it up: the jobs end, the driver takes no more, and never uses again the memory that the
//! device might still write.

mod batch;
mod recovery;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fieldstone_accel::{Device, Job, JobCompletion, JobError, JobId, SubmissionQueueId};

use self::batch::Batch;
use crate::bitstream::bitstream;
use crate::bounds::{MAX_CONTROL_POLLS, MAX_JOBS, POLLS_PER_LOST_INTERRUPT};
use crate::card::{Card, OpenError};
use crate::descriptor::{Completion, Descriptor};
use crate::extent_layout::ExtentLayout;
use crate::flight::{Claim, DeviceOperation, Flight, FlightKind};
use crate::maps::{Admission, Ticket};
use crate::programs::{Programs, Ready};
use crate::queue_set::{QueueSet, State};
use crate::regs::{H2cOp, ReconfigurableModule, descriptor_flag, load_map, register};
use crate::watchdog::{Watchdog, WatchdogResult};

/// Flights of a queue set: its jobs, and a change of the partition.
const MAX_FLIGHTS: usize = MAX_JOBS + 1;

/// The longest time of a job. The driver gives up a device without progress much earlier. A
/// simulated device is a thousand times slower than a card, and slower still on a busy machine:
/// beside other programs on all CPUs, a job took more than 20 s while modules were exchanged.
const LIMIT_NS: u64 = 60_000_000_000;

/// Coding jobs that may wait for the device. Software would do them faster than a simulated device.
/// But who asks for the device wants to see it work.
const BACKLOG: usize = 1024;

/// Flags of operations: they wait for the copies before them, and complete.
const FINISHING: u64 = descriptor_flag::COMPLETE | descriptor_flag::FENCE;

/// How many operations of a kind the device did, and how many cycles they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cycles {
    /// Number of operations.
    pub count: u64,
    /// Cycles of all these operations.
    pub total: u64,
    /// Cycles of the last operation.
    pub last: u32,
}

/// One queue set of a card, for one engine.
pub struct FpgaDevice {
    card: Arc<Card>,
    set: QueueSet,
    name: String,
    interrupts: bool,
    interrupt_reading: InterruptReading,
    programs: RefCell<Programs>,
    flights: Vec<Option<Flight>>,
    /// The coding jobs among the flights whose operation is still to be written.
    batch: Option<Batch>,
    finished: BTreeMap<SubmissionQueueId, Vec<JobCompletion>>,
    /// Memory of flights that failed: the device may use it until the reset has ended.
    abandoned_memory: Claim,
    swap_failed: bool,
    is_abandoned: bool,
    watchdog: Watchdog,
    resets: Resets,
    cycles: BTreeMap<DeviceOperation, Cycles>,
}

/// The driver's last reading of the interrupt counter.
#[derive(Debug, Default)]
struct InterruptReading {
    /// The counter's value.
    interrupts: u64,
    /// Polls since the driver last read the completion ring.
    polls: u32,
}

/// Resets because of an error.
#[derive(Debug, Default)]
struct Resets {
    /// Resets since the last good job.
    in_a_row: u32,
    ever: u64,
}

impl FpgaDevice {
    /// Opens a queue set of the card. It uses interrupts if the caller wants them and the card has
    /// them.
    ///
    /// # Errors
    /// No queue set is left, or the device does not take it.
    pub fn open(card: &Arc<Card>, interrupts: bool) -> Result<Self, OpenError> {
        let interrupts = interrupts && card.mmio.interrupts().is_some();
        let mut shared = card.shared();
        let number = shared.free_sets.pop().ok_or(OpenError::NoQueueSet(card.queue_sets()))?;
        let (mmio, memory) = (Arc::clone(&card.mmio), Arc::clone(&card.memory));
        let set = QueueSet::new(number, mmio, memory, &mut shared.host, interrupts);
        let Some(mut set) = set else {
            shared.free_sets.push(number);
            return Err(OpenError::NoMemory);
        };
        drop(shared);
        set.enable();
        while set.state() == State::Enabling {
            set.poll_state();
            card.mmio.relax();
        }
        if set.state() != State::Enabled {
            give_back(card, &mut set);
            return Err(OpenError::NotReady(number));
        }
        Ok(Self {
            card: Arc::clone(card),
            set,
            name: format!("fpga {}.{number}", card.function()),
            interrupts,
            interrupt_reading: InterruptReading::default(),
            programs: RefCell::default(),
            flights: (0..MAX_FLIGHTS).map(|_| None).collect(),
            batch: None,
            finished: BTreeMap::new(),
            abandoned_memory: Claim::default(),
            swap_failed: false,
            is_abandoned: false,
            watchdog: Watchdog::default(),
            resets: Resets::default(),
            cycles: BTreeMap::new(),
        })
    }

    /// The card.
    #[must_use]
    pub fn card(&self) -> &Arc<Card> {
        &self.card
    }

    /// The cycles of the operations, by the device's own counter.
    #[must_use]
    pub fn cycles(&self, operation: DeviceOperation) -> Cycles {
        self.cycles.get(&operation).copied().unwrap_or_default()
    }

    /// How often the queue set was reset because of an error.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.resets.ever
    }

    /// True if the driver has given up the device.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.set.state() == State::Lost
    }

    /// The partition's module, as far as the driver knows; `None` during a change.
    #[must_use]
    pub fn module(&self) -> Option<ReconfigurableModule> {
        self.card.shared().maps.module()
    }

    /// Makes progress: handles completions, recovers from errors, rings doorbells.
    fn service(&mut self) {
        self.close_batch();
        self.set.poll_state();
        match self.set.state() {
            State::Enabled => self.take_completions(),
            State::Disabled => self.revive(),
            State::Lost => self.abandon("it does not answer"),
            State::Enabling | State::Resetting => self.card.mmio.relax(),
        }
        self.set.ring();
    }

    fn take_completions(&mut self) {
        if !self.is_called() {
            return self.wait();
        }
        let mut completions = Vec::new();
        let outcome = self.set.poll(&mut completions);
        if completions.is_empty() && outcome.is_ok() {
            return self.wait();
        }
        self.watchdog.on_completion();
        for completion in &completions {
            if let Err(reason) = self.take_completion(completion) {
                return self.recover(&reason);
            }
        }
        if let Err(reason) = outcome {
            self.recover(&reason);
        }
    }

    /// True if the driver should read the completion ring: always without interrupts, else after an
    /// interrupt or [`POLLS_PER_LOST_INTERRUPT`] polls.
    fn is_called(&mut self) -> bool {
        let Some(interrupts) = self.card.mmio.interrupts().filter(|_| self.interrupts) else {
            return true;
        };
        self.interrupt_reading.polls += 1;
        let is_called = interrupts != self.interrupt_reading.interrupts
            || self.interrupt_reading.polls > POLLS_PER_LOST_INTERRUPT;
        if is_called {
            self.interrupt_reading = InterruptReading { interrupts, polls: 0 };
        }
        is_called
    }

    /// A poll brought no completion.
    fn wait(&mut self) {
        if self.flights.iter().all(Option::is_none) {
            return;
        }
        self.set.ring();
        let mmio = Arc::clone(&self.card.mmio);
        match self.watchdog.on_empty_poll(|| mmio.read64(register::CYCLES)) {
            WatchdogResult::Wait => mmio.relax(),
            WatchdogResult::Stuck => self.recover("the queue set gets nowhere"),
            WatchdogResult::Dead => self.abandon("it does not run"),
        }
    }

    /// Advances the flight of a completion.
    fn take_completion(&mut self, completion: &Completion) -> Result<(), String> {
        let slot = usize::from(completion.cookie);
        let flight = self.flights.get_mut(slot).and_then(Option::as_mut);
        let flight = flight.ok_or_else(|| format!("a completion of nothing ({slot})"))?;
        if !completion.is_ok() {
            let reason = completion.reason();
            self.blame(slot, completion);
            return Err(reason);
        }
        let operation = flight.advance(completion.is_c2h);
        let operation = operation.ok_or("a completion out of order")?;
        let is_done = flight.to_come.is_empty();
        let cycles = self.cycles.entry(operation).or_default();
        cycles.count += 1;
        cycles.total += u64::from(completion.cycles);
        cycles.last = completion.cycles;
        if let (DeviceOperation::LoadMap, FlightKind::Job { pin: Some(pin), .. }) =
            (operation, &flight.kind)
        {
            self.card.shared().maps.loaded(pin.epoch);
        }
        if is_done && let Some(flight) = self.flights[slot].take() {
            self.finish(flight);
        }
        Ok(())
    }

    /// Ends a flight that has all its completions.
    fn finish(&mut self, flight: Flight) {
        let Flight { kind, claim, .. } = flight;
        let result = match &kind {
            FlightKind::Job { job, layout, .. } => {
                let memory = &self.card.memory;
                let read = |part: crate::extent_layout::ExtentPart, bytes: &mut [u8]| {
                    memory.read(claim.host[0].address + part.offset as u64, bytes);
                };
                Some(layout.output(job, read).map_err(JobError::Device))
            }
            FlightKind::Swap(_) => None,
        };
        let mut shared = self.card.shared();
        claim.release(&mut shared);
        if let FlightKind::Swap(module) = kind {
            shared.maps.swap_ended(Some(module));
        }
        drop(shared);
        if let (FlightKind::Job { queue, id, job, pin, .. }, Some(result)) = (kind, result) {
            self.resets.in_a_row = 0;
            self.let_go(&job, pin);
            self.finished.entry(queue).or_default().push(JobCompletion { job: id, result });
        }
    }

    /// Writes the descriptors of a job. `None` if there is no room for it now, or its map is not
    /// loaded.
    fn begin(&mut self, queue: SubmissionQueueId, id: JobId, job: &Job) -> Option<()> {
        if self.set.state() != State::Enabled {
            return None;
        }
        let layout = ExtentLayout::of(job)?;
        let slot = self.flights[..MAX_JOBS].iter().position(Option::is_none)?;
        let (h2c, c2h) = self.room();
        // The inputs, the operations, and perhaps the copy of a table and its loading.
        if (h2c as usize) < layout.inputs.len() + 4 || (c2h as usize) < layout.outputs.len() {
            return None;
        }
        let mut claim = Claim::new(layout.bytes, &mut self.card.shared())?;
        let Some(tables) = self.claim_tables(job, &mut claim) else {
            claim.release(&mut self.card.shared());
            return None;
        };
        let to_come = self.bring(&layout, job, &tables, &claim, slot as u16);
        let base = claim.card[0].address;
        let pin = if let JobTables::Map(ticket) = &tables { Some(ticket.pin) } else { None };
        let kind = FlightKind::Job { queue, id, job: job.clone(), layout: layout.clone(), pin };
        self.flights[slot] = Some(Flight { kind, to_come, claim });
        match (job, tables) {
            (Job::Code { map, .. }, JobTables::Program(ready)) => {
                self.join_batch(slot, map, layout, (ready.address, ready.bytes), base);
            }
            (Job::Place { width, .. }, JobTables::Map(ticket)) => {
                let place = layout.place(base, ticket.pin.epoch, ticket.rule, *width);
                self.operate(&[slot], DeviceOperation::Place, &place);
            }
            (Job::Checksum { block_bytes, .. }, _) => {
                let checksum = layout.checksum(base, *block_bytes);
                self.operate(&[slot], DeviceOperation::Checksum, &checksum);
            }
            _ => unreachable!("tables are claimed by the job's kind"),
        }
        if self.set.is_burst() {
            self.set.ring();
        }
        Some(())
    }

    /// Claims the map or the program of a job, and host memory for a table that must be copied.
    fn claim_tables(&mut self, job: &Job, claim: &mut Claim) -> Option<JobTables> {
        let card = Arc::clone(&self.card);
        let mut guard = card.shared();
        let shared = &mut *guard;
        let set = self.set.number();
        match job {
            Job::Checksum { .. } => Some(JobTables::None),
            Job::Code { map, .. } => {
                let mut programs = self.programs.borrow_mut();
                let (tables, build) = (&*card.tables, card.build());
                let ready = programs.acquire(tables, &build, map, &mut shared.card)?;
                if let Some(bytes) = &ready.missing {
                    let Some(extent) = shared.host.allocate(bytes.len()) else {
                        programs.cancel(map, true);
                        return None;
                    };
                    claim.host.push(extent);
                }
                Some(JobTables::Program(ready))
            }
            Job::Place { map, rule, weights, .. } => {
                let (tables, maps) = (&*card.tables, &mut shared.maps);
                match maps.admit(tables, &mut shared.card, (map, weights), *rule, set) {
                    Admission::Go(ticket) => {
                        let load = ticket.load.as_ref();
                        if let Some(image) = load.and_then(|load| load.image.as_ref()) {
                            let Some(extent) = shared.host.allocate(image.len()) else {
                                shared.maps.release(ticket.pin);
                                let place = shared.maps.queue_set_reset(set);
                                place.into_iter().for_each(|place| shared.card.release(place));
                                return None;
                            };
                            claim.host.push(extent);
                        }
                        Some(JobTables::Map(ticket))
                    }
                    Admission::Busy => None,
                    Admission::Swap(module) => {
                        drop(guard);
                        self.swap(module);
                        None
                    }
                }
            }
        }
    }

    /// Writes a job's bytes, and the descriptors that copy them and its tables to card memory.
    /// Returns the operations that will complete.
    fn bring(
        &mut self,
        layout: &ExtentLayout,
        job: &Job,
        tables: &JobTables,
        claim: &Claim,
        cookie: u16,
    ) -> VecDeque<DeviceOperation> {
        let memory = Arc::clone(&self.card.memory);
        let (host, base) = (claim.host[0].address, claim.card[0].address);
        let set = &mut self.set;
        let mut to_come = VecDeque::new();
        // Copies the table if card memory lacks it.
        if let (Some((bytes, address)), Some(from)) = (tables.missing(), claim.host.get(1)) {
            memory.write(from.address, bytes);
            let copy = Descriptor::to_card(from.address, address, bytes.len() as u64);
            set.push_h2c(&copy.cookie(cookie));
        }
        if let JobTables::Map(Ticket { pin, load: Some(load), .. }) = tables {
            let load = Descriptor::operation(H2cOp::LoadMap, load.address, 0, load.bytes)
                .with(load_map::EPOCH, pin.epoch.into());
            set.push_h2c(&load.cookie(cookie).flagged(FINISHING));
            to_come.push_back(DeviceOperation::LoadMap);
        }
        layout.each_input(job, |part, bytes| {
            let offset = part.offset as u64;
            memory.write(host + offset, bytes);
            let copy = Descriptor::to_card(host + offset, base + offset, bytes.len() as u64);
            set.push_h2c(&copy.cookie(cookie));
        });
        to_come
    }

    /// Writes the operation of the jobs in these flights, whose inputs are already copied, the
    /// checksums of their outputs if they ask for them, and the descriptors that copy their outputs
    /// back.
    fn operate(&mut self, slots: &[usize], operation: DeviceOperation, descriptor: &Descriptor) {
        self.set.push_h2c(&descriptor.clone().cookie(slots[0] as u16).flagged(FINISHING));
        for (index, &slot) in slots.iter().enumerate() {
            let Some(Flight { kind: FlightKind::Job { layout, .. }, to_come, claim }) =
                &mut self.flights[slot]
            else {
                unreachable!("a job's flight stands until its completions came");
            };
            // The operation has one completion for all jobs.
            to_come.extend((index == 0).then_some(operation));
            let (host, base) = (claim.host[0].address, claim.card[0].address);
            if let Some(checksum) = layout.checksum_of_outputs(base) {
                self.set.push_h2c(&checksum.cookie(slot as u16).flagged(FINISHING));
                to_come.push_back(DeviceOperation::Checksum);
            }
            to_come.push_back(DeviceOperation::Return);
            let after = self.set.after();
            let last = layout.outputs.len() - 1;
            for (index, part) in layout.outputs.iter().enumerate() {
                let offset = part.offset as u64;
                let (from, to) = (base + offset, host + offset);
                let copy = Descriptor::to_host(from, to, part.bytes as u64, after);
                let flags = match (index == last, self.interrupts) {
                    (false, _) => 0,
                    (true, false) => descriptor_flag::COMPLETE,
                    (true, true) => descriptor_flag::COMPLETE | descriptor_flag::INTERRUPT,
                };
                self.set.push_c2h(&copy.cookie(slot as u16).flagged(flags));
            }
        }
    }

    /// Loads another module into the partition, if there is room for the descriptors now.
    fn swap(&mut self, module: ReconfigurableModule) {
        let slot = MAX_FLIGHTS - 1;
        if self.flights[slot].is_some() || self.room().0 < 2 {
            return;
        }
        let bytes = bitstream(module);
        let mut shared = self.card.shared();
        let Some(claim) = Claim::new(bytes.len(), &mut shared) else { return };
        if !shared.maps.swap_begins() {
            return claim.release(&mut shared);
        }
        drop(shared);
        let (host, card) = (claim.host[0].address, claim.card[0].address);
        tracing::info!("{}: the partition gets its {} module", self.name, module.name());
        self.card.memory.write(host, &bytes);
        let len_bytes = bytes.len() as u64;
        let copy = Descriptor::to_card(host, card, len_bytes);
        let flags = FINISHING | if self.interrupts { descriptor_flag::INTERRUPT } else { 0 };
        let load = Descriptor::operation(H2cOp::Reconfigure, card, 0, len_bytes);
        self.set.push_h2c(&copy.cookie(slot as u16));
        self.set.push_h2c(&load.cookie(slot as u16).flagged(flags));
        // The driver gave back the job that needs the module, so the next poll may come late.
        self.set.ring();
        self.flights[slot] = Some(Flight {
            kind: FlightKind::Swap(module),
            to_come: VecDeque::from([DeviceOperation::Reconfigure]),
            claim,
        });
    }
}

/// The tables that a job needs besides its bytes.
enum JobTables {
    None,
    Program(Ready),
    Map(Ticket),
}

impl JobTables {
    /// The table's bytes and its address in card memory, if it must be copied there.
    fn missing(&self) -> Option<(&[u8], u64)> {
        match self {
            Self::None => None,
            Self::Program(ready) => Some((ready.missing.as_deref()?, ready.address)),
            Self::Map(ticket) => {
                let load = ticket.load.as_ref()?;
                Some((load.image.as_deref()?, load.address))
            }
        }
    }
}

impl Device for FpgaDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn takes(&self, job: &Job) -> bool {
        if self.is_lost() || ExtentLayout::of(job).is_none() {
            return false;
        }
        let tables = &*self.card.tables;
        match job {
            Job::Code { map, .. } => {
                self.programs.borrow_mut().takes(tables, &self.card.build(), map)
            }
            Job::Place { map, rule, weights, .. } => {
                self.card.shared().maps.takes(tables, map, weights, *rule)
            }
            Job::Checksum { .. } => true,
        }
    }

    fn submit(&mut self, queue: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
        // During a burst, doorbells wait for its end.
        if self.batch.is_none() {
            self.service();
        }
        self.begin(queue, id, &job).ok_or_else(|| {
            self.service();
            job
        })
    }

    fn limit_ns(&self) -> u64 {
        LIMIT_NS
    }

    fn backlog(&self) -> usize {
        BACKLOG
    }

    fn poll(&mut self, queue: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
        self.service();
        if let Some(finished) = self.finished.get_mut(&queue) {
            completions.append(finished);
        }
    }
}

impl Drop for FpgaDevice {
    /// Gives the queue set and its memory back, if the device has stopped using them.
    fn drop(&mut self) {
        self.fail_flights("the driver ends");
        self.set.reset();
        let lets_go = give_back(&self.card, &mut self.set);
        let module = self.card.partition().module;
        let mut shared = self.card.shared();
        if self.swap_failed {
            shared.maps.swap_ended(module);
        }
        if lets_go {
            std::mem::take(&mut self.abandoned_memory).release(&mut shared);
            self.programs.borrow_mut().take_places().for_each(|place| shared.card.release(place));
        }
    }
}

/// Waits for the end of a reset, and gives the queue set and its rings back. False if the reset
/// does not end: then the set and the rings are lost.
fn give_back(card: &Card, set: &mut QueueSet) -> bool {
    for _ in 0..MAX_CONTROL_POLLS {
        if set.state() != State::Resetting {
            break;
        }
        set.poll_state();
        card.mmio.relax();
    }
    let Some(rings) = set.take_allocation() else { return false };
    let mut shared = card.shared();
    shared.host.release(rings);
    shared.free_sets.push(set.number());
    true
}
