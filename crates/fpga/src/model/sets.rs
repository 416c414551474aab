//! The model's queue sets: rings, order, completions.

use rand::Rng;

use super::{Failure, State};
use crate::descriptor::Descriptor;
use crate::regs::{
    BEAT_BYTES, COMPLETION_BYTES, DESCRIPTOR_BYTES, H2cOp, MAX_CHAIN, MAX_RING_LOG2,
    PartitionState, QueueState, ReconfigurableModule, Status, completion, completion_flag,
    context_flag, descriptor, descriptor_flag, queue_context,
};

/// Cycles that a change of the partition takes.
const SWAP_CYCLES: u64 = 1 << 18;

/// One of the three rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    H2c,
    C2h,
    Completions,
}

/// A queue set, by the device's number.
#[derive(Debug)]
pub struct Set {
    pub state: QueueState,
    pub stopped_by: Status,
    function: usize,
    /// Address of the context that is to be read.
    context: u64,
    bases: [u64; 3],
    log2: [u32; 3],
    /// The last doorbells, modulo twice the ring's size.
    doorbells: [u32; 3],
    /// Descriptors completed, and completions written.
    counts: [u32; 3],
    interrupts: bool,
    /// The cycle at which a reconfiguration ends.
    swap_ends: Option<u64>,
}

impl Default for Set {
    fn default() -> Self {
        Self {
            state: QueueState::Disabled,
            stopped_by: Status::Ok,
            function: 0,
            context: 0,
            bases: [0; 3],
            log2: [0; 3],
            doorbells: [0; 3],
            counts: [0; 3],
            interrupts: false,
            swap_ends: None,
        }
    }
}

impl Set {
    /// True if this function has enabled the set, and the set is not disabled since.
    pub fn is_used_by(&self, function: usize) -> bool {
        self.state != QueueState::Disabled && self.function == function
    }

    /// Takes a doorbell. False if the set is not enabled or the index is not possible.
    pub fn doorbell(&mut self, ring: Ring, value: u64) -> bool {
        let at = ring as usize;
        let size = 1 << self.log2[at];
        if self.state != QueueState::Enabled || value >= 2 * size {
            return self.state == QueueState::Stopped;
        }
        let distance = match ring {
            // The consumer cannot be ahead of the device.
            Ring::Completions => self.counts[at].wrapping_sub(value as u32),
            _ => (value as u32).wrapping_sub(self.counts[at]),
        };
        let fits = u64::from(distance) % (2 * size) <= size;
        if fits {
            self.doorbells[at] = value as u32;
        }
        fits
    }

    /// Entries between the device's count and the doorbell.
    fn waiting(&self, ring: Ring) -> u32 {
        let at = ring as usize;
        let modulus = 2 << self.log2[at];
        let distance = match ring {
            Ring::Completions => self.counts[at].wrapping_sub(self.doorbells[at]),
            _ => self.doorbells[at].wrapping_sub(self.counts[at]),
        };
        distance % modulus
    }

    /// True if the ring can begin its next descriptor.
    fn can_begin(&self, ring: Ring) -> bool {
        let completions = Ring::Completions;
        self.waiting(ring) > 0 && self.waiting(completions) < 1 << self.log2[completions as usize]
    }
}

impl State {
    /// Asks for a queue set's context.
    pub(super) fn enable(&mut self, function: usize, set: usize, context: u64) {
        self.sets[set] = Set { state: QueueState::Enabling, function, context, ..Set::default() };
    }

    /// Takes a queue set's context.
    fn load(&mut self, set: usize) {
        let Set { function, context: address, .. } = self.sets[set];
        let context = match self.host_range(function, address, queue_context::BYTES as u64) {
            Ok(range) => self.host[range].to_vec(),
            Err((status, _)) => {
                (self.sets[set].state, self.sets[set].stopped_by) = (QueueState::Stopped, status);
                return;
            }
        };
        let number = |field: crate::field::Field| field.get(&context);
        let log2 = [queue_context::H2C_LOG2, queue_context::C2H_LOG2, queue_context::CQ_LOG2];
        let log2 = log2.map(|field| number(field) as u32);
        let bases = [queue_context::H2C_BASE, queue_context::C2H_BASE, queue_context::CQ_BASE];
        let bases = bases.map(number);
        let alignments = [DESCRIPTOR_BYTES, DESCRIPTOR_BYTES, BEAT_BYTES];
        let is_bad = log2.iter().any(|&log2| log2 as usize > MAX_RING_LOG2)
            || bases.iter().zip(alignments).any(|(base, size)| !base.is_multiple_of(size as u64));
        self.sets[set] = Set {
            state: if is_bad { QueueState::Stopped } else { QueueState::Enabled },
            stopped_by: if is_bad { Status::BadParameter } else { Status::Ok },
            function,
            bases,
            log2,
            interrupts: number(queue_context::FLAGS) & context_flag::INTERRUPTS != 0,
            ..Set::default()
        };
    }

    /// Does one descriptor of some queue set, or one reset, or reads one context.
    pub(super) fn step(&mut self) {
        let set = self.rng.random_range(0..self.sets.len());
        // The first set with work after a random one.
        let count = self.sets.len();
        let order = (set..count).chain(0..set);
        for set in order {
            match self.sets[set].state {
                QueueState::Resetting => {
                    if self.sets[set].swap_ends.is_none_or(|end| end <= self.cycles) {
                        if self.sets[set].swap_ends.is_some() {
                            // The worst result of a reconfiguration.
                            self.partition.state = PartitionState::Failed;
                            self.partition.module = ReconfigurableModule::None;
                        }
                        self.sets[set] = Set::default();
                    }
                    return;
                }
                QueueState::Enabled => {
                    let first_c2h = self.rng.random_bool(0.5);
                    let rings =
                        if first_c2h { [Ring::C2h, Ring::H2c] } else { [Ring::H2c, Ring::C2h] };
                    if rings.into_iter().any(|ring| self.step_ring(set, ring)) {
                        return;
                    }
                }
                QueueState::Enabling => return self.load(set),
                QueueState::Disabled | QueueState::Stopped | QueueState::Absent => {}
            }
        }
    }

    /// Does the next descriptor of a ring. False if none may begin.
    fn step_ring(&mut self, set: usize, ring: Ring) -> bool {
        if !self.sets[set].can_begin(ring) {
            return false;
        }
        let at = ring as usize;
        let slot = self.sets[set].counts[at] & ((1 << self.sets[set].log2[at]) - 1);
        let address = self.sets[set].bases[at] + u64::from(slot) * DESCRIPTOR_BYTES as u64;
        let function = self.sets[set].function;
        let first = match self.fetch(function, address) {
            Ok(first) => first,
            Err(failure) => {
                let none = Descriptor([0; DESCRIPTOR_BYTES]);
                self.complete(set, ring, &none, Err(failure), 0);
                return true;
            }
        };
        if ring == Ring::C2h {
            let after = descriptor::AFTER.get(&first.0) as u32;
            let done = self.sets[set].counts[Ring::H2c as usize];
            if done.wrapping_sub(after).cast_signed() < 0 {
                return false;
            }
        } else if self.is_swapping(set, &first) {
            return false;
        }
        let begun = self.cycles;
        let (last, outcome) = self.do_chain(function, ring, first);
        let cycles = (self.cycles - begun) as u32 + 1 + descriptor::LENGTH.get(&last.0) as u32 / 64;
        self.complete(set, ring, &last, outcome, cycles);
        true
    }

    /// True while a reconfiguration goes on.
    fn is_swapping(&mut self, set: usize, first: &Descriptor) -> bool {
        if descriptor::OP.get(&first.0) != H2cOp::Reconfigure as u64 {
            return false;
        }
        let cycles = self.cycles;
        let end = *self.sets[set].swap_ends.get_or_insert(cycles + SWAP_CYCLES);
        if cycles < end {
            self.partition.state = PartitionState::Loading;
            return true;
        }
        self.sets[set].swap_ends = None;
        false
    }

    /// Does a descriptor and the linked ones before it; returns the last one.
    fn do_chain(
        &mut self,
        function: usize,
        ring: Ring,
        first: Descriptor,
    ) -> (Descriptor, Result<u64, Failure>) {
        let mut current = first;
        for _ in 0..=MAX_CHAIN {
            let outcome = self.operate(function, ring, &current);
            let next = descriptor::NEXT.get(&current.0);
            if outcome.is_err() || next == 0 {
                return (current, outcome);
            }
            match self.fetch(function, next) {
                Ok(descriptor) => current = descriptor,
                Err(failure) => return (current, Err(failure)),
            }
        }
        let next = descriptor::NEXT.get(&current.0);
        (current, Err((Status::BadChain, next)))
    }

    fn fetch(&mut self, function: usize, address: u64) -> Result<Descriptor, Failure> {
        let range = self.host_range(function, address, DESCRIPTOR_BYTES as u64)?;
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes.copy_from_slice(&self.host[range]);
        Ok(Descriptor(bytes))
    }

    fn complete(
        &mut self,
        set: usize,
        ring: Ring,
        descriptor: &Descriptor,
        outcome: Result<u64, Failure>,
        cycles: u32,
    ) {
        let at = ring as usize;
        self.sets[set].counts[at] = self.sets[set].counts[at].wrapping_add(1);
        let flags = descriptor::FLAGS.get(&descriptor.0);
        let (status, result, detail) = match outcome {
            Ok(result) => (Status::Ok, result, 0),
            Err((status, detail)) => (status, 0, detail),
        };
        if status != Status::Ok {
            (self.sets[set].state, self.sets[set].stopped_by) = (QueueState::Stopped, status);
        } else if flags & descriptor_flag::COMPLETE == 0 {
            return;
        }
        if self.chance(self.faults.lost_completion) {
            return;
        }
        let lie = if self.chance(self.faults.wrong_index) { 0x1_0000 } else { 0 };
        let mut bytes = [0; COMPLETION_BYTES];
        completion::STATUS.put(&mut bytes, status as u64);
        completion::COOKIE.put(&mut bytes, descriptor::COOKIE.get(&descriptor.0));
        completion::INDEX.put(&mut bytes, u64::from(self.sets[set].counts[at]) + lie);
        completion::RESULT.put(&mut bytes, result);
        completion::CYCLES.put(&mut bytes, cycles.into());
        completion::DETAIL.put(&mut bytes, detail);
        self.write_completion(set, ring, bytes);
        if flags & descriptor_flag::INTERRUPT != 0
            && self.sets[set].interrupts
            && !self.chance(self.faults.lost_interrupt)
        {
            self.functions[self.sets[set].function].interrupts += 1;
        }
    }

    fn write_completion(&mut self, set: usize, ring: Ring, mut bytes: [u8; COMPLETION_BYTES]) {
        let queue_set = &mut self.sets[set];
        let at = Ring::Completions as usize;
        let (count, log2) = (queue_set.counts[at], queue_set.log2[at]);
        queue_set.counts[at] = count.wrapping_add(1);
        let turn_is_even = count >> log2 & 1 == 0;
        let phase = if turn_is_even { completion_flag::PHASE } else { 0 };
        let of_c2h = if ring == Ring::C2h { completion_flag::C2H } else { 0 };
        completion::FLAGS.put(&mut bytes, phase | of_c2h);
        let slot = count & ((1 << log2) - 1);
        let address = queue_set.bases[at] + u64::from(slot) * COMPLETION_BYTES as u64;
        let function = queue_set.function;
        match self.host_range(function, address, COMPLETION_BYTES as u64) {
            Ok(range) => self.host[range].copy_from_slice(&bytes),
            // The device cannot write the completion, so it cannot tell the driver.
            Err((status, _)) => {
                (self.sets[set].state, self.sets[set].stopped_by) = (QueueState::Stopped, status);
            }
        }
    }
}
