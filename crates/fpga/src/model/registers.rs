//! The model's register page.

use super::State;
use super::sets::Ring;
use crate::regs::{
    BEAT_BYTES, IDENTIFICATION, MAX_FUNCTIONS, QueueCommand, QueueState, VERSION, function_table,
    queue, register,
};

/// The BUILD register: 16 item lanes, 8 mappings, 8 code lanes, 1 unit, 1024 beats.
const BUILD: [u64; 6] = [16, 8, 8, 1, 1024, 1024];

impl State {
    pub(super) fn read_register(&mut self, function: usize, offset: u64) -> u64 {
        if let Some((set, part)) = self.queue_register(function, offset) {
            let set = &self.sets[set];
            return match part {
                queue::CONTROL => {
                    queue::CONTROL_STATE.with(set.state as u64)
                        | queue::CONTROL_STATUS.with(set.stopped_by as u64)
                }
                _ => 0,
            };
        }
        if is_queue(offset) {
            self.function_error(function, register::FUNCTION_ERRORS_DOORBELL_RANGE);
            let is_control = (offset - queue::BASE) % queue::STRIDE == queue::CONTROL;
            return if is_control { QueueState::Absent as u64 } else { 0 };
        }
        let own = &self.functions[function];
        match offset {
            register::ID => IDENTIFICATION,
            register::VERSION => VERSION,
            register::FUNCTION => {
                register::FUNCTION_NUMBER.with(function as u64)
                    | register::FUNCTION_QUEUES.with(own.sets.into())
            }
            register::FUNCTION_ERRORS => own.errors,
            register::CYCLES => self.cycles,
            register::BUILD => {
                use register::{
                    BUILD_CODE_LANES, BUILD_CODE_UNITS, BUILD_CONTEXTS, BUILD_ITEM_LANES,
                    BUILD_LANE_BEATS, BUILD_PROGRAM_OPS,
                };
                let parts = [
                    BUILD_ITEM_LANES,
                    BUILD_CONTEXTS,
                    BUILD_CODE_LANES,
                    BUILD_CODE_UNITS,
                    BUILD_LANE_BEATS,
                    BUILD_PROGRAM_OPS,
                ];
                parts.iter().zip(BUILD).map(|(bits, value)| bits.with(value)).sum()
            }
            register::RM_STATE if function == 0 => {
                register::RM_STATE_MODULE_ID.with(self.partition.module as u64)
                    | register::RM_STATE_STATE.with(self.partition.state as u64)
                    | register::RM_STATE_SWAPS.with(self.partition.swaps)
            }
            register::FAULTS if function == 0 => {
                register::FAULTS_HOST.with(self.host_faults)
                    | register::FAULTS_CARD.with(self.card_faults)
            }
            register::CARD_READS
            | register::CARD_WRITES
            | register::CODE_BUSY
            | register::DRAWS
                if function == 0 =>
            {
                0
            }
            _ => match self.table_entry(function, offset) {
                Some((other, part)) => {
                    let entry = &self.functions[other];
                    match part {
                        function_table::HOST_BASE => entry.host.start,
                        function_table::HOST_END => entry.host.end,
                        function_table::CARD_BASE => entry.card.start,
                        function_table::CARD_END => entry.card.end,
                        _ => {
                            function_table::QUEUES_FIRST.with(entry.first_set.into())
                                | function_table::QUEUES_COUNT.with(entry.sets.into())
                                | function_table::QUEUES_VECTOR.with(entry.vector.into())
                        }
                    }
                }
                None => {
                    self.function_error(function, register::FUNCTION_ERRORS_REGISTER_ACCESS);
                    0
                }
            },
        }
    }

    pub(super) fn write_register(&mut self, function: usize, offset: u64, value: u64) {
        if is_queue(offset) {
            match self.queue_register(function, offset) {
                Some((set, part)) => self.write_queue(function, set, part, value),
                None => self.function_error(function, register::FUNCTION_ERRORS_DOORBELL_RANGE),
            }
            return;
        }
        if offset == register::FUNCTION_ERRORS {
            self.functions[function].errors &= !value;
            return;
        }
        let Some((other, part)) = self.table_entry(function, offset) else {
            return self.function_error(function, register::FUNCTION_ERRORS_REGISTER_ACCESS);
        };
        let is_base = matches!(part, function_table::HOST_BASE | function_table::CARD_BASE);
        if is_base && !value.is_multiple_of(BEAT_BYTES as u64) {
            return self.function_error(function, register::FUNCTION_ERRORS_REGISTER_ACCESS);
        }
        let (first_set, sets) =
            (function_table::QUEUES_FIRST.of(value), function_table::QUEUES_COUNT.of(value));
        let entry = &mut self.functions[other];
        let keeps = first_set == entry.first_set.into() && sets >= entry.sets.into();
        let uses = self.sets.iter().any(|set| set.is_used_by(other));
        if part == function_table::QUEUES && uses && !keeps {
            return self.function_error(function, register::FUNCTION_ERRORS_REGISTER_ACCESS);
        }
        match part {
            function_table::HOST_BASE => entry.host.start = value,
            function_table::HOST_END => entry.host.end = value,
            function_table::CARD_BASE => entry.card.start = value,
            function_table::CARD_END => entry.card.end = value,
            _ => {
                (entry.first_set, entry.sets) = (first_set as u16, sets as u16);
                entry.vector = function_table::QUEUES_VECTOR.of(value) as u8;
            }
        }
    }

    fn write_queue(&mut self, function: usize, set: usize, part: u64, value: u64) {
        if part == queue::CONTROL {
            let command = QueueCommand::from_number(queue::CONTROL_COMMAND.of(value));
            match (command, self.sets[set].state) {
                (Some(QueueCommand::Enable), QueueState::Disabled) => {
                    let context = queue::CONTROL_CONTEXT_BASE.of(value) * 64;
                    self.enable(function, set, context);
                }
                (
                    Some(QueueCommand::Reset),
                    QueueState::Enabling | QueueState::Enabled | QueueState::Stopped,
                ) => self.sets[set].state = QueueState::Resetting,
                _ => self.function_error(function, register::FUNCTION_ERRORS_DOORBELL_STATE),
            }
            return;
        }
        let ring = match part {
            queue::H2C_PRODUCER => Ring::H2c,
            queue::C2H_PRODUCER => Ring::C2h,
            _ => Ring::Completions,
        };
        if !self.sets[set].doorbell(ring, value) {
            self.function_error(function, register::FUNCTION_ERRORS_DOORBELL_STATE);
        }
    }

    pub(super) fn function_error(&mut self, function: usize, bit: crate::field::Bits) {
        self.functions[function].errors |= bit.with(1);
    }

    /// The queue set (by the device's number) and the register, if the function has it.
    fn queue_register(&self, function: usize, offset: u64) -> Option<(usize, u64)> {
        let relative = offset.checked_sub(queue::BASE)?;
        let number = relative / queue::STRIDE;
        let own = &self.functions[function];
        let set = usize::from(own.first_set) + number as usize;
        (is_queue(offset) && number < own.sets.into() && set < self.sets.len())
            .then_some((set, relative % queue::STRIDE))
    }

    /// The function of the entry, and the register. `None` unless function 0 reads it.
    fn table_entry(&self, function: usize, offset: u64) -> Option<(usize, u64)> {
        let relative = offset.checked_sub(function_table::BASE)?;
        let (other, part) =
            ((relative / function_table::STRIDE) as usize, relative % function_table::STRIDE);
        let there = part <= function_table::QUEUES && part.is_multiple_of(8);
        (function == 0 && other < MAX_FUNCTIONS && there).then_some((other, part))
    }
}

/// True for the registers of queue sets, whether the function has the set or not.
fn is_queue(offset: u64) -> bool {
    (queue::BASE..queue::BASE + queue::STRIDE * queue::COUNT as u64).contains(&offset)
}
