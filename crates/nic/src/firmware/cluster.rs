//! Several cores of a cluster at once: their accesses meet in the banks of L1.
//!
//! PsPIN's clusters have L1 memory in 64 banks of words, next to each other in the address space. A
//! bank does one access in a cycle. If two cores want the same bank in one cycle, the bank serves
//! one core, and the other core waits (its request is not granted). The first choice goes round
//! from core to core, cycle by cycle. An access across words takes two banks, the second one in the
//! next cycle.
//!
//! Each core here has memory of its own, at the addresses that all cores have. So cores meet in
//! banks, and never in words: what a handler does is not changed. So the packets and stacks of all
//! cores start at the same bank. In PsPIN a packet starts at any multiple of 64 bytes, which is one
//! of four banks: the cores may meet more or less often there. DMA, instruction caches and the
//! memory outside of the cluster are not modelled.

use super::engine::{Call, EngineError, Handler};
use super::hpu::{Hpu, UnitBus};
use crate::riscv::core::{Core, Costs, Counters, Step};
use crate::riscv::isa::{Decoded, Width};
use crate::riscv::memory::{Access, Bus, BusError, FetchError};
use crate::riscv::processor::Function;

/// Banks of a cluster's L1.
pub const BANKS: usize = 64;

/// Cores of a cluster.
pub const CORES: usize = 8;

/// Which banks are in use in this cycle and the next.
#[derive(Debug)]
struct Banks {
    taken: [[bool; BANKS]; 2],
}

impl Banks {
    /// Takes the banks of an access. An access across words takes its second bank in the next
    /// cycle. False if one of the banks is in use; then the access takes none.
    fn take(&mut self, address: u32, width: Width) -> bool {
        let bank = |address: u32| address as usize / 4 % BANKS;
        let (first, last) = (bank(address), bank(address.wrapping_add(width.bytes() - 1)));
        if self.taken[0][first] || (last != first && self.taken[1][last]) {
            return false;
        }
        self.taken[0][first] = true;
        if last != first {
            self.taken[1][last] = true;
        }
        true
    }

    fn next_cycle(&mut self) {
        self.taken = [self.taken[1], [false; BANKS]];
    }
}

/// A core's bus, behind the banks.
struct Banked<'a, B> {
    bus: &'a mut B,
    banks: &'a mut Banks,
}

impl<B> Banked<'_, B> {
    fn take(&mut self, address: u32, width: Width) -> Result<(), BusError> {
        if Hpu::is_l1(address) && !self.banks.take(address, width) {
            return Err(BusError::Busy);
        }
        Ok(())
    }
}

impl<B: Bus> Bus for Banked<'_, B> {
    fn set_cycle(&mut self, cycle: u64) {
        self.bus.set_cycle(cycle);
    }

    fn fetch(&mut self, address: u32) -> Result<u16, BusError> {
        self.bus.fetch(address)
    }

    fn instruction(&mut self, pc: u32) -> Result<Decoded, FetchError> {
        self.bus.instruction(pc)
    }

    fn load(&mut self, address: u32, width: Width) -> Result<Access, BusError> {
        self.take(address, width)?;
        self.bus.load(address, width)
    }

    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<u64, BusError> {
        self.take(address, width)?;
        self.bus.store(address, width, value)
    }

    fn atomic(
        &mut self,
        address: u32,
        change: &mut dyn FnMut(u32) -> u32,
    ) -> Result<Access, BusError> {
        self.take(address, Width::Word)?;
        self.bus.atomic(address, change)
    }
}

/// A handler on one packet, and the core that runs it.
#[derive(Clone, Debug)]
pub struct Job {
    /// The core, with its memory as it is before the handler.
    pub hpu: Hpu,
    /// The handler.
    pub handler: Handler,
    /// The packet; empty for completion and cleanup.
    pub packet: Vec<u8>,
    /// The number of the message's entry.
    pub slot: u32,
    /// The entry's name in commands.
    pub request_id: u32,
    /// The node's clock.
    pub now_ns: u64,
}

/// A core that runs its job again and again.
struct Lane<'a> {
    handler: Handler,
    function: Function,
    costs: Costs,
    bus: UnitBus<'a>,
    core: Core,
    /// When this run began.
    start: u64,
    /// The runs that have ended: the cycle in which each began, and its counters.
    ended: Vec<(u64, Counters)>,
}

impl Lane<'_> {
    /// The cycle in which the next instruction accesses memory, if it does.
    fn next_access(&mut self) -> u64 {
        self.start + self.core.counters.cycles + self.core.waits(&mut self.bus)
    }

    /// The runs that have ended, of those that began at this cycle or later.
    fn ended_since(&self, cycle: u64) -> impl Iterator<Item = Counters> {
        let runs = self.ended.iter().filter(move |(start, _)| *start >= cycle);
        runs.map(|(_, counters)| *counters)
    }

    fn step(&mut self, banks: &mut Banks) -> Result<(), EngineError> {
        let mut bus = Banked { bus: &mut self.bus, banks };
        bus.set_cycle(self.core.counters.cycles);
        if let Step::Trapped(trap) = self.core.step(&mut bus) {
            return Err(EngineError::Trap { handler: self.handler, trap });
        }
        if self.core.pc == self.function.end {
            let counters = self.core.counters;
            self.ended.push((self.start, counters));
            self.start += counters.cycles;
            self.core = self.function.start(self.costs);
            self.bus.clear();
        }
        Ok(())
    }
}

/// Runs the jobs on cores of one cluster, each again and again, until each has ended `runs` times
/// since the last core began. A core begins `stagger_cycles` after the one before it. The answer is
/// the counters of these runs: all cores are busy in them.
///
/// A handler that counts in its entry finds there what its last run left.
///
/// # Errors
/// [`EngineError`] if a handler does not end as it should.
pub fn run_together(
    jobs: &mut [Job],
    stagger_cycles: u64,
    runs: usize,
) -> Result<Vec<Counters>, EngineError> {
    let mut lanes = Vec::new();
    for (job, start) in jobs.iter_mut().zip((0u64..).map(|lane| lane * stagger_cycles)) {
        let Job { hpu, handler, packet, slot, request_id, now_ns } = job;
        let call = Call { packet, slot: *slot, request_id: *request_id, now_ns: *now_ns };
        let costs = hpu.costs();
        let (function, bus) = hpu.begin(*handler, &call)?;
        let core = function.start(costs);
        let (handler, ended) = (*handler, Vec::new());
        lanes.push(Lane { handler, function, costs, bus, core, start, ended });
    }
    let all_busy = lanes.last().map_or(0, |lane| lane.start);
    let mut banks = Banks { taken: [[false; BANKS]; 2] };
    let mut cycle = 0u64;
    while lanes.iter().any(|lane| lane.ended_since(all_busy).count() < runs) {
        for turn in 0..lanes.len() {
            let first = (cycle % lanes.len() as u64) as usize;
            let place = (first + turn) % lanes.len();
            let lane = &mut lanes[place];
            if lane.next_access() <= cycle {
                lane.step(&mut banks)?;
            }
        }
        banks.next_cycle();
        cycle += 1;
        if cycle > MAX_CYCLES {
            let handler = lanes[0].handler;
            return Err(EngineError::OutOfCycles { handler, cycles: MAX_CYCLES });
        }
    }
    Ok(lanes.iter().flat_map(|lane| lane.ended_since(all_busy)).collect())
}

/// A handler that does not end is stopped.
const MAX_CYCLES: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bank_does_one_access_in_a_cycle() {
        let mut banks = Banks { taken: [[false; BANKS]; 2] };
        assert!(banks.take(0, Width::Word));
        assert!(!banks.take(3, Width::Byte), "the same word");
        assert!(!banks.take(256, Width::Word), "the same bank");
        assert!(banks.take(4, Width::Word));
        // Across words: the second one in the next cycle.
        assert!(banks.take(10, Width::Word));
        assert!(banks.take(12, Width::Word));
        assert!(!banks.take(15 * 4 + 256 - 50, Width::Word), "its second bank is 3, too");
        banks.next_cycle();
        assert!(!banks.take(12, Width::Word));
        assert!(banks.take(8, Width::Word));
        banks.next_cycle();
        assert!(banks.take(12, Width::Word));
    }

    #[test]
    fn memory_is_in_banks_and_the_command_unit_is_not() {
        assert!(Hpu::is_l1(0x1000_0000));
        assert!(!Hpu::is_l1(crate::firmware::command::WORDS_BASE));
        assert!(!Hpu::is_l1(crate::firmware::command::ISSUE));
        assert!(!Hpu::is_l1(0x1d00_0000));
    }
}
