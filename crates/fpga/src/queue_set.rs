//! A queue set: three rings and their registers, and the recovery after an error.
//!
//! ```text
//!            enable()                ENABLED seen
//!   Disabled ---------> Enabling -----------------> Enabled --+
//!      ^                                                      | reset(): an error, or silence
//!      |  DISABLED seen                                       |
//!      +----------------------- Resetting <-------------------+
//!                                   |  not within MAX_RESET_CYCLES, or ABSENT seen
//!                                   +--> Lost
//! ```
//!
//! Only an enabled set takes descriptors. Until a reset has ended, the device may still read and
//! write the memory of the operations that were in flight.

use std::sync::Arc;

use crate::allocator::{Allocation, Allocator};
use crate::bounds::{
    C2H_LOG2, CQ_LOG2, H2C_LOG2, MAX_BURST, MAX_CONTROL_POLLS, MAX_RESET_CYCLES, POLLS_PER_CHECK,
};
use crate::descriptor::{Completion, Descriptor};
use crate::host::{DmaMemory, Mmio};
use crate::regs::{
    BEAT_BYTES, DESCRIPTOR_BYTES, QueueCommand, QueueState, context_flag, queue, queue_context,
    register,
};
use crate::ring::{CompletionRing, DescriptorRing};

/// The state of a queue set, as the driver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The device does not access the set's memory.
    Disabled,
    /// The driver has asked the device to take the context.
    Enabling,
    /// The queue set works.
    Enabled,
    /// The driver has asked the device to end the operations in flight.
    Resetting,
    /// The device does not answer any more, or the function has this set no longer. The device may
    /// still use the set's memory.
    Lost,
}

/// A queue set of a function.
pub struct QueueSet {
    number: u16,
    mmio: Arc<dyn Mmio>,
    memory: Arc<dyn DmaMemory>,
    allocation: Allocation,
    /// Address of the context, which the device reads when the set is enabled.
    context: u64,
    h2c: DescriptorRing,
    c2h: DescriptorRing,
    completions: CompletionRing,
    interrupts: bool,
    state: State,
    state_polls: u32,
    /// Cycle of the device at which the driver asked for the reset.
    reset_at: u64,
}

impl QueueSet {
    /// Bytes of host memory for a queue set.
    fn bytes() -> usize {
        // Descriptors begin at multiples of their size, but extents only at multiples of half that
        // size.
        BEAT_BYTES
            + DescriptorRing::bytes(H2C_LOG2)
            + DescriptorRing::bytes(C2H_LOG2)
            + CompletionRing::bytes(CQ_LOG2)
            + queue_context::BYTES
    }

    /// Queue set `number` of the function, disabled, with rings from `free`. `None` if `free` has
    /// no room.
    #[must_use]
    pub fn new(
        number: u16,
        mmio: Arc<dyn Mmio>,
        memory: Arc<dyn DmaMemory>,
        free: &mut Allocator,
        interrupts: bool,
    ) -> Option<Self> {
        let allocation = free.allocate(Self::bytes())?;
        let h2c_base = allocation.address.next_multiple_of(DESCRIPTOR_BYTES as u64);
        let h2c = DescriptorRing::new(h2c_base, H2C_LOG2);
        let c2h_base = h2c_base + DescriptorRing::bytes(H2C_LOG2) as u64;
        let c2h = DescriptorRing::new(c2h_base, C2H_LOG2);
        let completions_base = c2h_base + DescriptorRing::bytes(C2H_LOG2) as u64;
        let completions = CompletionRing::new(&*memory, completions_base, CQ_LOG2);
        let context = completions_base + CompletionRing::bytes(CQ_LOG2) as u64;
        let state = State::Disabled;
        let (state_polls, reset_at) = (0, 0);
        Some(Self {
            number,
            mmio,
            memory,
            allocation,
            context,
            h2c,
            c2h,
            completions,
            interrupts,
            state,
            state_polls,
            reset_at,
        })
    }

    /// Its number in its function.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The set's state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Descriptors that the H2C ring and the C2H ring have room for.
    #[must_use]
    pub fn room(&self) -> (u32, u32) {
        (self.h2c.room(), self.c2h.room())
    }

    /// The value of `AFTER` that waits for all descriptors now in the H2C ring.
    #[must_use]
    pub fn after(&self) -> u32 {
        self.h2c.written()
    }

    /// Adds a descriptor to the H2C ring, which must have room.
    pub fn push_h2c(&mut self, descriptor: &Descriptor) {
        self.h2c.push(&*self.memory, descriptor);
    }

    /// Adds a descriptor to the C2H ring, which must have room.
    pub fn push_c2h(&mut self, descriptor: &Descriptor) {
        self.c2h.push(&*self.memory, descriptor);
    }

    /// True if so many descriptors wait that the doorbell should ring now.
    #[must_use]
    pub fn is_burst(&self) -> bool {
        self.h2c.waiting() + self.c2h.waiting() >= MAX_BURST
    }

    /// Rings the doorbells for all pushed descriptors.
    pub fn ring(&mut self) {
        if self.state != State::Enabled {
            return;
        }
        if let Some(index) = self.h2c.ring() {
            self.write(queue::H2C_PRODUCER, index);
        }
        if let Some(index) = self.c2h.ring() {
            self.write(queue::C2H_PRODUCER, index);
        }
    }

    /// Takes the completions that have come, up to one ring full, and tells the device how many.
    ///
    /// # Errors
    /// A completion is impossible: the device is broken.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), String> {
        let mut outcome = Ok(());
        for _ in 0..1 << CQ_LOG2 {
            let Some(completion) = self.completions.pop(&*self.memory) else { break };
            let ring = if completion.is_c2h { &mut self.c2h } else { &mut self.h2c };
            if !ring.complete(completion.index) {
                outcome = Err(format!("a completion of descriptor {}", completion.index));
                break;
            }
            completions.push(completion);
        }
        if let Some(index) = self.completions.ring() {
            self.write(queue::CQ_CONSUMER, index);
        }
        outcome
    }

    /// Asks the device to enable the set. Empties the rings.
    pub fn enable(&mut self) {
        assert_eq!(self.state, State::Disabled, "the device may be using the rings");
        self.h2c.clear();
        self.c2h.clear();
        self.completions.clear(&*self.memory);
        let mut context = [0; queue_context::BYTES];
        queue_context::H2C_BASE.put(&mut context, self.h2c.base());
        queue_context::C2H_BASE.put(&mut context, self.c2h.base());
        queue_context::CQ_BASE.put(&mut context, self.completions.base());
        queue_context::H2C_LOG2.put(&mut context, self.h2c.log2().into());
        queue_context::C2H_LOG2.put(&mut context, self.c2h.log2().into());
        queue_context::CQ_LOG2.put(&mut context, self.completions.log2().into());
        let flags = if self.interrupts { context_flag::INTERRUPTS } else { 0 };
        queue_context::FLAGS.put(&mut context, flags);
        self.memory.write(self.context, &context);
        let base = self.context / BEAT_BYTES as u64;
        let enable = queue::CONTROL_COMMAND.with(QueueCommand::Enable as u64);
        self.write(queue::CONTROL, enable | queue::CONTROL_CONTEXT_BASE.with(base));
        (self.state, self.state_polls) = (State::Enabling, 0);
    }

    /// Asks the device to end the operations in flight.
    pub fn reset(&mut self) {
        if matches!(self.state, State::Enabling | State::Enabled) {
            let reset = queue::CONTROL_COMMAND.with(QueueCommand::Reset as u64);
            self.write(queue::CONTROL, reset);
            (self.state, self.state_polls) = (State::Resetting, 0);
            self.reset_at = self.mmio.read64(register::CYCLES);
        }
    }

    /// Reads the set's state once, to see whether enabling or reset has ended. Does nothing in
    /// other states.
    pub fn poll_state(&mut self) {
        if !matches!(self.state, State::Enabling | State::Resetting) {
            return;
        }
        let control = self.mmio.read64(self.register(queue::CONTROL));
        let found = QueueState::from_number(queue::CONTROL_STATE.of(control));
        self.state_polls = self.state_polls.wrapping_add(1);
        match (self.state, found) {
            (State::Enabling, Some(QueueState::Enabled)) => self.state = State::Enabled,
            // The device has refused the context; only a reset is left.
            (State::Enabling, Some(QueueState::Stopped)) => self.reset(),
            (State::Resetting, Some(QueueState::Disabled)) => self.state = State::Disabled,
            // The device is gone, or has taken the set away from the function.
            (_, Some(QueueState::Absent) | None) => self.state = State::Lost,
            _ if self.is_overdue() => self.state = State::Lost,
            _ => {}
        }
    }

    /// True if enabling or reset takes too long.
    fn is_overdue(&self) -> bool {
        match self.state {
            State::Enabling => self.state_polls >= MAX_CONTROL_POLLS,
            _ if !self.state_polls.is_multiple_of(POLLS_PER_CHECK) => false,
            _ => self.mmio.read64(register::CYCLES).wrapping_sub(self.reset_at) > MAX_RESET_CYCLES,
        }
    }

    /// Gives up: the device does not answer.
    pub fn lose(&mut self) {
        self.state = State::Lost;
    }

    /// Takes the set's memory, to give it back at the end. Only for a disabled set, because the
    /// device would go on using the memory.
    pub fn take_allocation(&mut self) -> Option<Allocation> {
        if self.state != State::Disabled {
            return None;
        }
        self.state = State::Lost;
        let nothing = Allocation { address: self.allocation.address, bytes: 0 };
        Some(std::mem::replace(&mut self.allocation, nothing))
    }

    fn register(&self, offset: u64) -> u64 {
        queue::BASE + u64::from(self.number) * queue::STRIDE + offset
    }

    fn write(&self, offset: u64, value: u64) {
        self.mmio.write64(self.register(offset), value);
    }
}
