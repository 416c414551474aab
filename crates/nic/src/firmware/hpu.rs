//! A core of the NIC (PsPIN's handler processing unit) with its memories and its command unit:
//! runs handlers of a program on the RISC-V core.
//!
//! | addresses | memory | a handler may |
//! |---|---|---|
//! | `0x1d000000`, 32 KiB | program | execute, read |
//! | `0x10000000`, 4 KiB | stack of the core | write |
//! | `0x10003fc0`, 64 B | task | read |
//! | `0x10004000`, 4 KiB | packet | read |
//! | `0x10008000`, 8 KiB | scratch of the core | write |
//! | `0x1000c000` | remembered capabilities of the core | write, in the header handler; else nothing |
//! | `0x10010000`, 64 KiB | entries of the messages | write, its own entry only |
//! | `0x10080000` | parity writes and accumulators | write parts, on a parity node |
//! | `0x100b0000` | context and tables | read parts |
//! | `0x1b200000` | command unit | write words, read to issue |
//!
//! The module `grants` says which parts, and where a handler may write in the host's memory.
//!
//! All but program and unit are the L1 memory of a cluster (1 MiB and single-cycle in PsPIN).
//! [`cluster`](super::cluster) has conflicts of its banks. Instruction caches and the swap area in
//! L2 are not modelled.

use std::ops::Range;

use crate::firmware::command::{self, Command, SLOTS, WORDS, Words};
use crate::firmware::engine::{Area, Call, Engine, EngineError, Handler, MAX_REQUESTS, Run};
use crate::firmware::grants::{Claim, Staging, contains};
use crate::firmware::packet::MAX_PACKET_BYTES;
use crate::firmware::state::{
    CACHE_BYTES, CONTEXT_BYTES, POOL_BYTES, REQUEST_BYTES, SCRATCH_BYTES, TABLES_AT, new_pool,
};
use crate::riscv::core::{Costs, Stop};
use crate::riscv::elf::{ElfError, MAX_PROGRAM_BYTES, Program};
use crate::riscv::isa::{Decoded, Width};
use crate::riscv::memory::{
    Access, Bus, BusError, FetchError, Grant, Memory, MemoryError, Permission, Region,
};
use crate::riscv::processor::{Function, Interpreter, Processor, Returned};

const PROGRAM: u32 = 0x1d00_0000;
const L1: u32 = 0x1000_0000;
const L1_BYTES: usize = 1 << 20;
const STACK: u32 = L1;
const STACK_BYTES: u32 = 0x1000;
const TASK: u32 = L1 + 0x3fc0;
const TASK_BYTES: u32 = 40;
const PACKET: u32 = L1 + 0x4000;
/// A handler may load a word more than the packet has, so that loops need no special end.
const PACKET_SLACK: u32 = 8;
const SCRATCH: u32 = L1 + 0x8000;
const CACHE: u32 = L1 + 0xc000;
const REQUESTS: u32 = L1 + 0x1_0000;
const POOL: u32 = L1 + 0x8_0000;
const CONTEXT: u32 = L1 + 0xb_0000;
/// Handlers return to this address, where nothing is.
const END: u32 = 0xffff_fff0;
/// The result of a header handler that keeps the message.
const ACCEPT: u32 = 1;
/// The entry's number in the name of a message: `NIC_SLOT`.
const SLOT_MASK: u32 = 0xfff;

/// What the core's surroundings cost. The values are ours, where the paper and PsPIN give none:
/// PsPIN's ping-pong handler, with 29 instructions of which 8 are stores to and loads from the
/// unit, takes 38 cycles, so an access to the unit costs about one cycle more than to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Cycles that a store into the command unit takes longer than one into L1.
    pub unit_store_extra_cycles: u64,
    /// Cycles that an issue takes longer than a load from L1.
    pub unit_issue_extra_cycles: u64,
    /// Cycles that an atomic operation takes longer than a load from L1.
    pub atomic_extra_cycles: u64,
    /// Cycles until the NIC has done a command; a stand-in for the egress model.
    pub command_cycles: u64,
}

impl Surroundings {
    /// Egress that never makes a handler wait.
    pub const UNLIMITED: Surroundings = Surroundings {
        unit_store_extra_cycles: 1,
        unit_issue_extra_cycles: 1,
        atomic_extra_cycles: 1,
        command_cycles: 0,
    };
}

/// A core with its program and its memories.
#[derive(Clone, Debug)]
pub struct Hpu {
    memory: Memory,
    entries: [u32; 4],
    costs: Costs,
    surroundings: Surroundings,
    /// What the NIC knows of the message of each entry.
    claims: Vec<Claim>,
    staging: Staging,
    node: u32,
    max_cycles: u64,
}

/// Why no core could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HpuError {
    /// The program does not hold.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// The program is not where the program memory is.
    #[error("the program is at {0:#010x}, and program memory is 32 KiB at {PROGRAM:#010x}")]
    Place(u32),
    /// Memory cannot hold what it should.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The context does not fit.
    #[error(transparent)]
    Context(#[from] EngineError),
}

impl Hpu {
    /// A core with `program` and `context`; see [`Settings::context`](super::state::Settings).
    ///
    /// # Errors
    /// [`HpuError`] if the program or the context does not fit.
    pub fn new(program: &Program, context: &[u8]) -> Result<Self, HpuError> {
        let entries = Handler::ALL.map(|handler| program.symbol(handler.symbol()));
        let [header, payload, completion, cleanup] = entries;
        let entries = [header?, payload?, completion?, cleanup?];
        let end = u64::from(program.base) + program.bytes.len() as u64;
        if program.base < PROGRAM || end > u64::from(PROGRAM) + u64::from(MAX_PROGRAM_BYTES) {
            return Err(HpuError::Place(program.base));
        }
        let region = |name, base, len| Region {
            name,
            base,
            bytes: vec![0; len],
            load_extra_cycles: 0,
            store_extra_cycles: 0,
            atomic_extra_cycles: 0,
        };
        let mut memory = Memory::new(vec![
            region("program", PROGRAM, MAX_PROGRAM_BYTES as usize),
            region("L1", L1, (CONTEXT - L1) as usize),
            region("context", CONTEXT, CONTEXT_BYTES.max(L1_BYTES - (CONTEXT - L1) as usize)),
        ]);
        memory.bytes_mut(program.base, program.bytes.len())?.copy_from_slice(&program.bytes);
        let mut hpu = Self {
            memory,
            entries,
            costs: Costs::RI5CY,
            surroundings: Surroundings::UNLIMITED,
            claims: vec![Claim::default(); MAX_REQUESTS as usize],
            staging: Staging::default(),
            node: 0,
            max_cycles: 1_000_000,
        };
        hpu.set_context(context)?;
        hpu.area_mut(Area::Pool).copy_from_slice(&new_pool());
        Ok(hpu)
    }

    /// Replaces the costs of the core and of its surroundings.
    pub fn set_costs(&mut self, costs: Costs, surroundings: Surroundings) {
        self.costs = costs;
        self.surroundings = surroundings;
    }

    /// What a run may do at most; a handler that takes longer is stopped.
    pub fn set_max_cycles(&mut self, max_cycles: u64) {
        self.max_cycles = max_cycles;
    }

    /// Runs one handler on another core than the model's. See [`Engine::run`].
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn run_on(
        &mut self,
        processor: &mut impl Processor,
        handler: Handler,
        call: &Call<'_>,
    ) -> Result<Run, EngineError> {
        let max_cycles = self.max_cycles;
        let (function, mut bus) = self.begin(handler, call)?;
        let Returned { stop, result, counters } = processor.call(&function, &mut bus, max_cycles);
        let commands = bus.commands;
        if handler == Handler::Header && stop == Stop::Reached && result == ACCEPT {
            self.accept(call);
        }
        match stop {
            Stop::Reached => Ok(Run { result, commands, counters: Some(counters) }),
            Stop::Trapped(trap) => Err(EngineError::Trap { handler, trap }),
            Stop::OutOfCycles => Err(EngineError::OutOfCycles { handler, cycles: max_cycles }),
        }
    }

    /// Prepares a run of a handler: the function, and the core's bus.
    pub(super) fn begin(
        &mut self,
        handler: Handler,
        call: &Call<'_>,
    ) -> Result<(Function, UnitBus<'_>), EngineError> {
        if call.packet.len() > MAX_PACKET_BYTES || call.slot >= MAX_REQUESTS {
            return Err(EngineError::Call);
        }
        self.write_task(call).map_err(|_| EngineError::Call)?;
        if handler == Handler::Header {
            self.claims[call.slot as usize] = Claim::of(call.request_id, call.packet);
        }
        let grants = self.grants(handler, call);
        self.memory.set_grants(&grants).map_err(|_| EngineError::Call)?;
        let bus = UnitBus {
            memory: &mut self.memory,
            surroundings: self.surroundings,
            host: self.claims[call.slot as usize].host(handler, call.slot, self.staging),
            claims: &self.claims,
            slot: call.slot,
            node: self.node,
            cycle: 0,
            words: [0; WORDS],
            busy_until: [0; SLOTS],
            commands: Vec::new(),
        };
        let function = Function {
            entry: self.entries[handler as usize],
            end: END,
            stack: STACK + STACK_BYTES,
            argument: TASK,
        };
        Ok((function, bus))
    }

    /// What the core's instructions cost.
    pub(super) fn costs(&self) -> Costs {
        self.costs
    }

    /// True for addresses of the cluster's L1; all of the context is a part of it here.
    pub(super) fn is_l1(address: u32) -> bool {
        (L1..CONTEXT + CONTEXT_BYTES as u32).contains(&address)
    }

    fn grants(&self, handler: Handler, call: &Call<'_>) -> Vec<Grant> {
        let grant = |base, len, permission| Grant { base, len, permission };
        let mut grants = vec![
            grant(PROGRAM, MAX_PROGRAM_BYTES, Permission::EXECUTE),
            grant(STACK, STACK_BYTES, Permission::WRITE),
            grant(TASK, TASK_BYTES, Permission::READ),
            grant(SCRATCH, SCRATCH_BYTES as u32, Permission::WRITE),
            grant(request_address(call.slot), REQUEST_BYTES as u32, Permission::WRITE),
        ];
        if matches!(handler, Handler::Header | Handler::Payload) {
            let len = call.packet.len() as u32 + PACKET_SLACK;
            grants.push(grant(PACKET, len, Permission::READ));
        }
        let (entry, pool) = (self.entry(call.slot), self.area(Area::Pool));
        let claim = &self.claims[call.slot as usize];
        grants.extend(claim.memory(handler, call.packet, entry, pool).into_iter().map(|reach| {
            let base = place(reach.area).0 + reach.bytes.start as u32;
            grant(base, reach.bytes.len() as u32, reach.permission)
        }));
        grants
    }

    /// The command unit and the scheduler keep what the header handler accepted.
    fn accept(&mut self, call: &Call<'_>) {
        let mut claim = self.claims[call.slot as usize].clone();
        let (entry, context) = (self.entry(call.slot), self.area(Area::Context));
        claim.accept(call.slot, entry, call.packet, context, self.staging);
        self.claims[call.slot as usize] = claim;
    }

    fn entry(&self, slot: u32) -> &[u8] {
        let at = slot as usize * REQUEST_BYTES;
        &self.area(Area::Requests)[at..at + REQUEST_BYTES]
    }

    /// Bytes of the core's memories, at the addresses that handlers use; `None` if no memory has
    /// all of them.
    #[must_use]
    pub fn bytes(&self, address: u32, len: usize) -> Option<&[u8]> {
        self.memory.bytes(address, len).ok()
    }

    fn write_task(&mut self, call: &Call<'_>) -> Result<(), MemoryError> {
        let words = [
            PACKET,
            call.packet.len() as u32,
            call.request_id,
            request_address(call.slot),
            CONTEXT,
            CACHE,
            POOL,
            SCRATCH,
            call.now_ns as u32,
            (call.now_ns >> 32) as u32,
        ];
        let task = self.memory.bytes_mut(TASK, TASK_BYTES as usize)?;
        for (to, word) in task.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let len = call.packet.len();
        self.memory.bytes_mut(PACKET, len)?.copy_from_slice(call.packet);
        Ok(())
    }
}

fn request_address(slot: u32) -> u32 {
    REQUESTS + slot * REQUEST_BYTES as u32
}

impl Engine for Hpu {
    fn run(&mut self, handler: Handler, call: &Call<'_>) -> Result<Run, EngineError> {
        let mut interpreter = Interpreter { costs: self.costs };
        self.run_on(&mut interpreter, handler, call)
    }

    fn set_context(&mut self, context: &[u8]) -> Result<(), EngineError> {
        if !(TABLES_AT..=CONTEXT_BYTES).contains(&context.len()) {
            return Err(EngineError::Context(context.len()));
        }
        let (fields, rest) = self.area_mut(Area::Context).split_at_mut(context.len());
        fields.copy_from_slice(context);
        rest.fill(0);
        self.node = context[..4].iter().rev().fold(0, |value, &b| value << 8 | u32::from(b));
        self.staging = Staging::of(context);
        Ok(())
    }

    fn area(&self, area: Area) -> &[u8] {
        let (base, len) = place(area);
        self.memory.bytes(base, len).unwrap_or_default()
    }

    fn area_mut(&mut self, area: Area) -> &mut [u8] {
        let (base, len) = place(area);
        self.memory.bytes_mut(base, len).unwrap_or_default()
    }
}

fn place(area: Area) -> (u32, usize) {
    match area {
        Area::Requests => (REQUESTS, MAX_REQUESTS as usize * REQUEST_BYTES),
        Area::Cache => (CACHE, CACHE_BYTES),
        Area::Pool => (POOL, POOL_BYTES),
        Area::Context => (CONTEXT, CONTEXT_BYTES),
    }
}

/// The memories, and the command unit beside them.
pub(super) struct UnitBus<'a> {
    memory: &'a mut Memory,
    surroundings: Surroundings,
    /// The addresses of the host that the handler may write.
    host: Range<u64>,
    /// What the NIC knows of all messages.
    claims: &'a [Claim],
    /// The entry of the handler's message.
    slot: u32,
    node: u32,
    cycle: u64,
    words: [u32; WORDS],
    busy_until: [u64; SLOTS],
    commands: Vec<Command>,
}

impl UnitBus<'_> {
    /// Forgets the words and the commands of a run, for the next one.
    pub(super) fn clear(&mut self) {
        self.words = [0; WORDS];
        self.busy_until = [0; SLOTS];
        self.commands.clear();
    }

    fn issue(&mut self) -> Result<Access, BusError> {
        let cycle = self.cycle;
        let Some(slot) = self.busy_until.iter().position(|&until| until <= cycle) else {
            return Err(BusError::Busy);
        };
        let command = self.command().ok_or(BusError::Denied)?;
        self.commands.push(command);
        self.busy_until[slot] = cycle + self.surroundings.command_cycles;
        let extra_cycles = self.surroundings.unit_issue_extra_cycles;
        Ok(Access { value: slot as u32, extra_cycles })
    }

    /// The command, if the handler may read the bytes, write the place, and free the message.
    fn command(&mut self) -> Option<Command> {
        Some(match Words::parse(&self.words)? {
            Words::Send { header, headers, data } => {
                let headers = self.readable(headers, header[4] >> 16)?;
                let data = self.readable(data, header[4] & 0xffff)?;
                Command::Send { packet: command::packet(self.node, header, &headers, &data) }
            }
            Words::ToHost { local, len, address } => {
                let end = address.checked_add(u64::from(len))?;
                if !contains(&self.host, &(address..end)) {
                    return None;
                }
                Command::ToHost { address, bytes: self.readable(local, len)? }
            }
            Words::Event { code, arguments } => Command::Event { code, arguments },
            Words::Free { request_id } if self.may_free(request_id) => Command::Free { request_id },
            Words::Free { .. } => return None,
        })
    }

    fn may_free(&self, request_id: u32) -> bool {
        let of = |slot: u32| {
            let claim = self.claims.get(slot as usize)?;
            Some((claim, self.memory.bytes(request_address(slot), REQUEST_BYTES).ok()?))
        };
        let (own, other) = (of(self.slot), of(request_id & SLOT_MASK));
        // The NIC has no message in an entry that does not exist.
        own.zip(other)
            .is_none_or(|((claim, entry), other)| claim.may_free(entry, request_id, other))
    }

    fn readable(&mut self, address: u32, len: u32) -> Option<Vec<u8>> {
        if len == 0 {
            return Some(Vec::new());
        }
        if !self.memory.may_read(address, len) {
            return None;
        }
        self.memory.bytes(address, len as usize).ok().map(<[u8]>::to_vec)
    }

    fn unit_word(address: u32) -> Option<usize> {
        let at = address.checked_sub(command::WORDS_BASE)?;
        (at < 4 * WORDS as u32 && at % 4 == 0).then_some(at as usize / 4)
    }
}

impl Bus for UnitBus<'_> {
    fn set_cycle(&mut self, cycle: u64) {
        self.cycle = cycle;
    }

    fn fetch(&mut self, address: u32) -> Result<u16, BusError> {
        self.memory.fetch(address)
    }

    fn instruction(&mut self, pc: u32) -> Result<Decoded, FetchError> {
        self.memory.instruction(pc)
    }

    fn load(&mut self, address: u32, width: Width) -> Result<Access, BusError> {
        if address == command::ISSUE && width == Width::Word {
            return self.issue();
        }
        self.memory.load(address, width)
    }

    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<u64, BusError> {
        match Self::unit_word(address) {
            Some(word) if width == Width::Word => {
                self.words[word] = value;
                Ok(self.surroundings.unit_store_extra_cycles)
            }
            _ => self.memory.store(address, width, value),
        }
    }

    fn atomic(
        &mut self,
        address: u32,
        change: &mut dyn FnMut(u32) -> u32,
    ) -> Result<Access, BusError> {
        let access = self.memory.atomic(address, change)?;
        let extra_cycles = access.extra_cycles + self.surroundings.atomic_extra_cycles;
        Ok(Access { extra_cycles, ..access })
    }
}
