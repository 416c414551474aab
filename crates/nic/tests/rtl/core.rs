//! CV32E40P as a [`Processor`].
//!
//! The RTL has two ports to memory. The bench serves both from a [`Bus`]: instructions in the cycle
//! after the request, data when the bus says. After a reset the core sets its registers by a short
//! program of the bench and jumps to the entry. At the end another one stores its registers. A run
//! is counted from the cycle in which the first instruction leaves the decoder to that of the first
//! one at the end.

use std::collections::VecDeque;

use fieldstone_nic::riscv::core::{Counters, Stop, Trap};
use fieldstone_nic::riscv::isa::{Alu, Instr, Mode, Offset, Reg, Width, encode};
use fieldstone_nic::riscv::memory::{Bus, BusError};
use fieldstone_nic::riscv::processor::{Function, Processor, Returned};
use fieldstone_verilate::{Model, Port};

use crate::{corev, designs};

/// Where the core starts; `handler_core.sv` has the address of traps.
const BOOT: u32 = 0x8000_0000;
const TRAPS: u32 = 0x9000_0000;
const TRAPS_BYTES: u32 = 0x100;
/// Holds the entry at the start of a run.
pub const ENTRY_REGISTER: usize = 31;

/// A run: registers at its start, where it starts, and the address that ends it.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub entry: u32,
    pub end: u32,
    pub registers: [u32; 32],
}

/// What a run left.
#[derive(Debug)]
pub struct Ended {
    pub stop: Stop,
    pub registers: [u32; 32],
    pub counters: Counters,
    /// Each instruction: the cycle in which it left the decoder, and its address.
    pub trace: Vec<(u64, u32)>,
}

struct Ports {
    clk: Port,
    rst_n: Port,
    boot_addr: Port,
    instr_req: Port,
    instr_addr: Port,
    instr_rvalid: Port,
    instr_rdata: Port,
    data_req: Port,
    data_gnt: Port,
    data_we: Port,
    data_be: Port,
    data_addr: Port,
    data_wdata: Port,
    data_rvalid: Port,
    data_rdata: Port,
    issued: Port,
    issued_pc: Port,
}

/// The RTL.
pub struct RtlCore {
    model: Model,
    ports: Ports,
    /// The program in this core's encodings (see `corev`), and its address.
    text: (u32, Vec<u8>),
}

/// The state of one run.
struct Running<'a, B> {
    bus: &'a mut B,
    text: &'a (u32, Vec<u8>),
    boot: Vec<u8>,
    end: u32,
    dump: Vec<u8>,
    cycle: u64,
    first: Option<u64>,
    /// The cycle in which the first instruction at the end left the decoder.
    last: Option<u64>,
    /// Responses of data memory: the cycle, and the word.
    responses: VecDeque<(u64, u32)>,
    registers: [u32; 32],
    stored: usize,
    trap: Option<Trap>,
    trace: Vec<(u64, u32)>,
}

impl RtlCore {
    /// A core without a program.
    pub fn new() -> Self {
        let model = Model::new(&designs::HANDLER_CORE);
        let ports = Ports {
            clk: model.port("clk_i"),
            rst_n: model.port("rst_ni"),
            boot_addr: model.port("boot_addr_i"),
            instr_req: model.port("instr_req_o"),
            instr_addr: model.port("instr_addr_o"),
            instr_rvalid: model.port("instr_rvalid_i"),
            instr_rdata: model.port("instr_rdata_i"),
            data_req: model.port("data_req_o"),
            data_gnt: model.port("data_gnt_i"),
            data_we: model.port("data_we_o"),
            data_be: model.port("data_be_o"),
            data_addr: model.port("data_addr_o"),
            data_wdata: model.port("data_wdata_o"),
            data_rvalid: model.port("data_rvalid_i"),
            data_rdata: model.port("data_rdata_i"),
            issued: model.port("issued_o"),
            issued_pc: model.port("issued_pc_o"),
        };
        Self { model, ports, text: (0, Vec::new()) }
    }

    /// Replaces the program: `text` at `base`.
    pub fn set_text(&mut self, base: u32, text: &[u8]) {
        self.text = (base, corev::translate(text));
    }

    fn clock(&mut self) {
        self.model.set(self.ports.clk, 1);
        self.model.eval();
        self.model.set(self.ports.clk, 0);
        self.model.eval();
    }

    fn reset(&mut self) {
        let ports = &self.ports;
        let inputs =
            [ports.clk, ports.rst_n, ports.instr_rvalid, ports.data_gnt, ports.data_rvalid];
        for port in inputs {
            self.model.set(port, 0);
        }
        self.model.set(self.ports.boot_addr, u64::from(BOOT));
        self.model.eval();
        for _ in 0..3 {
            self.clock();
        }
        self.model.set(self.ports.rst_n, 1);
        self.model.eval();
    }

    /// Runs a program.
    pub fn run(&mut self, start: &Start, bus: &mut impl Bus, max_cycles: u64) -> Ended {
        self.reset();
        let text = std::mem::take(&mut self.text);
        let mut running = Running {
            bus,
            text: &text,
            boot: boot(start),
            end: start.end,
            dump: dump(),
            cycle: 0,
            first: None,
            last: None,
            responses: VecDeque::new(),
            registers: [0; 32],
            stored: 0,
            trap: None,
            trace: Vec::new(),
        };
        let mut fetched = None;
        // Time for the bench's own programs.
        let last_cycle = max_cycles + 300;
        while running.stored < 32 && running.trap.is_none() && running.cycle < last_cycle {
            fetched = self.cycle(&mut running, start.entry, fetched);
        }
        let first = running.first.unwrap_or(running.cycle);
        let cycles = running.last.unwrap_or(running.cycle) - first;
        let instructions = running.trace.len() as u64;
        let stop = match running.trap {
            Some(trap) => Stop::Trapped(trap),
            None if running.stored < 32 => Stop::OutOfCycles,
            None => Stop::Reached,
        };
        let counters = Counters { instructions, cycles, ..Counters::default() };
        let ended = Ended { stop, registers: running.registers, counters, trace: running.trace };
        self.text = text;
        ended
    }

    /// One cycle. `fetched` is the word that was asked for in the cycle before.
    fn cycle<B: Bus>(
        &mut self,
        running: &mut Running<'_, B>,
        entry: u32,
        fetched: Option<u32>,
    ) -> Option<u32> {
        let (model, ports) = (&mut self.model, &self.ports);
        model.set(ports.instr_rvalid, u64::from(fetched.is_some()));
        model.set(ports.instr_rdata, u64::from(fetched.unwrap_or(0)));
        let response = running.response();
        model.set(ports.data_rvalid, u64::from(response.is_some()));
        model.set(ports.data_rdata, u64::from(response.unwrap_or(0)));
        model.set(ports.data_gnt, 0);
        model.eval();
        if model.is_set(ports.data_req) {
            let address = model.get(ports.data_addr) as u32;
            let lanes = model.get(ports.data_be) as u32;
            let store = model.is_set(ports.data_we).then(|| model.get(ports.data_wdata) as u32);
            let is_granted = running.access(address & !3, lanes, store);
            model.set(ports.data_gnt, u64::from(is_granted));
            model.eval();
        }
        let asked = model.is_set(ports.instr_req).then(|| model.get(ports.instr_addr) as u32);
        let asked = asked.map(|address| running.instruction(address & !3));
        if model.is_set(ports.issued) {
            running.issued(entry, model.get(ports.issued_pc) as u32);
        }
        self.clock();
        running.cycle += 1;
        asked
    }
}

impl Processor for RtlCore {
    fn call(&mut self, function: &Function, bus: &mut impl Bus, max_cycles: u64) -> Returned {
        let mut registers = [0; 32];
        registers[Reg::RA.number()] = function.end;
        registers[Reg::SP.number()] = function.stack;
        registers[Reg::A0.number()] = function.argument;
        registers[ENTRY_REGISTER] = function.entry;
        let start = Start { entry: function.entry, end: function.end, registers };
        let ended = self.run(&start, bus, max_cycles);
        let result = ended.registers[Reg::A0.number()];
        Returned { stop: ended.stop, result, counters: ended.counters }
    }
}

impl<B: Bus> Running<'_, B> {
    /// The word of instructions at an address.
    fn instruction(&mut self, address: u32) -> u32 {
        if address.wrapping_sub(TRAPS) < TRAPS_BYTES {
            let pc = self.trace.last().map_or(0, |&(_, pc)| pc);
            self.trap.get_or_insert(Trap::Illegal { pc, word: 0 });
        }
        self.half(address) | self.half(address.wrapping_add(2)) << 16
    }

    fn half(&mut self, address: u32) -> u32 {
        let of = |bytes: &[u8], start: u32| {
            let at = address.wrapping_sub(start) as usize;
            bytes.get(at..at.saturating_add(2)).map(|b| u32::from(b[0]) | u32::from(b[1]) << 8)
        };
        let own = of(&self.boot, BOOT).or_else(|| of(&self.dump, self.end));
        if let Some(half) = own.or_else(|| of(&self.text.1, self.text.0)) {
            return half;
        }
        // The core fetches ahead of what it executes, so also behind the end of a program.
        self.bus.fetch(address).map_or(0, u32::from)
    }

    fn response(&mut self) -> Option<u32> {
        let &(cycle, word) = self.responses.front()?;
        if cycle > self.cycle {
            return None;
        }
        self.responses.pop_front();
        Some(word)
    }

    /// An access of data memory. False if the core has to try again.
    fn access(&mut self, address: u32, lanes: u32, store: Option<u32>) -> bool {
        let mut extra_cycles = 0;
        let mut loaded = 0;
        if self.last.is_some_and(|last| last < self.cycle) {
            if let Some(value) = store {
                self.registers[address as usize / 4] = value;
                self.stored += 1;
            }
        } else {
            let since_first = self.cycle - self.first.unwrap_or(self.cycle);
            self.bus.set_cycle(since_first.saturating_sub(1));
            for (lane, width) in accesses(lanes) {
                let at = address + lane;
                let done = match store {
                    Some(value) => self.bus.store(at, width, value >> (8 * lane)),
                    None => self.bus.load(at, width).map(|access| {
                        loaded |= access.value << (8 * lane);
                        access.extra_cycles
                    }),
                };
                match done {
                    Ok(extra) => extra_cycles = extra_cycles.max(extra),
                    Err(BusError::Busy) => return false,
                    Err(BusError::Denied) => {
                        let pc = self.trace.last().map_or(0, |&(_, pc)| pc);
                        self.trap.get_or_insert(if store.is_some() {
                            Trap::Store { pc, address: at }
                        } else {
                            Trap::Load { pc, address: at }
                        });
                    }
                }
            }
        }
        // Responses come in order, one per cycle.
        let next = self.responses.back().map_or(0, |&(cycle, _)| cycle + 1);
        self.responses.push_back(((self.cycle + 1 + extra_cycles).max(next), loaded));
        true
    }

    fn issued(&mut self, entry: u32, pc: u32) {
        if self.first.is_none() && pc == entry {
            self.first = Some(self.cycle);
        }
        if self.first.is_some() && self.last.is_none() {
            if pc == self.end {
                self.last = Some(self.cycle);
            } else {
                self.trace.push((self.cycle, pc));
            }
        }
    }
}

/// The accesses of a [`Bus`] that lanes of a word stand for: where each starts, and its width.
fn accesses(lanes: u32) -> Vec<(u32, Width)> {
    match lanes {
        0xf => vec![(0, Width::Word)],
        0x3 => vec![(0, Width::Half)],
        0xc => vec![(2, Width::Half)],
        _ => (0..4).filter(|lane| lanes >> lane & 1 == 1).map(|lane| (lane, Width::Byte)).collect(),
    }
}

fn code(program: &[Instr]) -> Vec<u8> {
    program.iter().flat_map(|instr| encode(instr).to_le_bytes()).collect()
}

/// Sets the registers and jumps.
fn boot(start: &Start) -> Vec<u8> {
    let mut program = Vec::new();
    for (number, value) in start.registers.into_iter().enumerate().skip(1) {
        let rd = Reg::new(number as u32);
        let low = (value << 20) as i32 >> 20;
        program.push(Instr::Lui { rd, imm: value.wrapping_sub(low as u32) });
        program.push(Instr::OpImm { op: Alu::Add, rd, rs1: rd, imm: low });
    }
    assert_eq!(start.registers[ENTRY_REGISTER], start.entry);
    let rs1 = Reg::new(ENTRY_REGISTER as u32);
    program.push(Instr::Jalr { rd: Reg::ZERO, rs1, offset: 0 });
    code(&program)
}

/// Stores the registers, each at four times its number, and waits. It begins with x0, which no
/// instruction waits for.
fn dump() -> Vec<u8> {
    let (rd, rs1, mode) = (Reg::ZERO, Reg::ZERO, Mode::Plain);
    let stores = (0..32).map(|number| {
        let (rs2, offset) = (Reg::new(number), Offset::Imm(4 * number as i32));
        Instr::Store { width: Width::Word, rs2, rs1, offset, mode }
    });
    let mut program: Vec<Instr> = stores.collect();
    program.push(Instr::Jal { rd, offset: 0 });
    code(&program)
}
