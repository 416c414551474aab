//! A launch: the blocks of its grid, one after the other, and the threads of each.
//!
//! The order is always the same: each warp executes until all of its lanes wait for the block or
//! have ended, and in it each lane until it waits or ends.

use std::collections::BTreeMap;

use super::collective::Warp;
use super::execute::{Machine, State, Thread};
use super::fault::{Cause, Fault};
use super::kernel::{Kernel, SharedVariable, Special};
use super::memory::Memory;
use super::shared::{LANES, Shared};
use super::trace::{MAX_THREADS, Who};

/// The most threads of a block.
const MAX_BLOCK: u32 = 1024;
/// The most bytes of shared memory of a block.
const MAX_SHARED: u64 = 227 << 10;

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// One of 32 bits.
    U32(u32),
    /// One of 64 bits, such as an address.
    U64(u64),
}

/// How a kernel is launched.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Number of blocks.
    pub grid: u32,
    /// Number of threads in a block.
    pub block: u32,
    /// Size of dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// The parameters, in the order of their declaration.
    pub params: Vec<Param>,
    /// How many instructions all threads together may execute or skip.
    pub budget: u64,
    /// Whether threads may access bytes of global memory that others write.
    pub allow_races: bool,
}

impl Default for Launch {
    /// One thread with no parameters, and a budget of minutes.
    fn default() -> Self {
        let params = Vec::new();
        Self { grid: 1, block: 1, shared_bytes: 0, params, budget: 1 << 32, allow_races: false }
    }
}

/// What a launch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// How many threads executed each mnemonic, with its modifiers.
    pub opcodes: BTreeMap<String, u64>,
    /// The sum of these: instructions that threads executed.
    pub instructions: u64,
    /// Instructions whose guard was false.
    pub skipped: u64,
    /// Threads.
    pub threads: u64,
    /// How often all threads of a block met at a barrier.
    pub barriers: u64,
    /// Bytes that threads loaded from global memory.
    pub loaded_bytes: u64,
    /// Bytes that threads stored to global memory.
    pub stored_bytes: u64,
}

impl Statistics {
    /// How many instructions of a mnemonic threads executed, whatever its further modifiers: `ld`
    /// counts `ld.global.u32`.
    #[must_use]
    pub fn count(&self, mnemonic: &str) -> u64 {
        let counts = self.opcodes.iter().filter(|(opcode, _)| {
            let rest = opcode.strip_prefix(mnemonic);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        });
        counts.map(|(_, count)| count).sum()
    }
}

/// Executes a kernel on all threads of a launch.
///
/// # Errors
///
/// The launch does not fit the kernel, or an instruction is at fault. Memory is then as the
/// instructions before left it.
pub fn run(kernel: &Kernel, launch: &Launch, memory: &mut Memory) -> Result<Statistics, Fault> {
    let params = parameters(kernel, launch).map_err(|text| launch_fault(kernel, text))?;
    let shared = shared(kernel, launch).map_err(|text| launch_fault(kernel, text))?;
    memory.begin_launch(launch.block, launch.allow_races);
    let machine = Machine {
        kernel,
        memory,
        shared: Shared::new(&shared, launch.block),
        params,
        counts: vec![0; kernel.code.len()],
        skipped: 0,
        left: launch.budget,
        budget: launch.budget,
        loaded: 0,
        stored: 0,
    };
    let threads = (0..launch.block).map(|_| Thread {
        cells: kernel.cells.clone(),
        at: 0,
        state: State::Ready,
        who: Who { block: 0, thread: 0, index: 0 },
    });
    let mut run = Run { launch, machine, threads: threads.collect(), barriers: 0 };
    for block in 0..launch.grid {
        run.block(block)?;
    }
    Ok(run.statistics())
}

/// The bytes of the parameters.
fn parameters(kernel: &Kernel, launch: &Launch) -> Result<Vec<u8>, String> {
    let threads = launch.block;
    if launch.grid == 0 || threads == 0 || threads > MAX_BLOCK {
        return Err(format!("{} blocks of {threads} threads", launch.grid));
    }
    if u64::from(launch.grid) * u64::from(threads) > MAX_THREADS {
        return Err(format!("more than {MAX_THREADS} threads"));
    }
    if kernel.max_threads.is_some_and(|most| threads > most)
        || kernel.required_threads.is_some_and(|required| threads != required)
    {
        return Err(format!("the kernel is not for blocks of {threads} threads"));
    }
    if kernel.params.len() != launch.params.len() {
        let (found, expected) = (launch.params.len(), kernel.params.len());
        return Err(format!("{found} parameters, but the kernel has {expected}"));
    }
    let mut bytes = Vec::new();
    for (declared, param) in kernel.params.iter().zip(&launch.params) {
        bytes.resize(declared.offset as usize, 0);
        match (param, declared.bytes) {
            (Param::U32(value), 4) => bytes.extend(value.to_le_bytes()),
            (Param::U64(value), 8) => bytes.extend(value.to_le_bytes()),
            (_, size) => return Err(format!("the parameter {} has {size} bytes", declared.name)),
        }
    }
    Ok(bytes)
}

/// The variables in shared memory.
fn shared(kernel: &Kernel, launch: &Launch) -> Result<Vec<SharedVariable>, String> {
    let mut variables = kernel.shared.clone();
    let bytes = launch.shared_bytes as usize;
    if let Some((name, start)) = &kernel.dynamic {
        variables.push(SharedVariable { name: name.clone(), start: *start, bytes });
    } else if bytes != 0 {
        return Err("the kernel has no dynamic shared memory".to_owned());
    }
    let total: u64 = variables.iter().map(|variable| variable.bytes as u64).sum();
    if total > MAX_SHARED {
        return Err(format!("{total} bytes of shared memory are more than {MAX_SHARED}"));
    }
    Ok(variables)
}

fn launch_fault(kernel: &Kernel, text: String) -> Fault {
    let cause = Box::new(Cause::Launch(text));
    let (kernel, line, text) = (kernel.name.clone(), kernel.line, String::new());
    Fault { kernel, line, text, block: 0, thread: 0, cause }
}

/// A launch that is executed.
struct Run<'a> {
    launch: &'a Launch,
    machine: Machine<'a>,
    /// The threads of the present block.
    threads: Vec<Thread>,
    barriers: u64,
}

impl Run<'_> {
    fn block(&mut self, block: u32) -> Result<(), Fault> {
        self.machine.shared.begin_block();
        for index in 0..self.launch.block {
            self.begin_thread(block, index);
        }
        loop {
            for warp in 0..self.threads.len().div_ceil(LANES) {
                self.warp(warp)?;
            }
            if self.threads.iter().all(|thread| thread.state == State::Ended) {
                return Ok(());
            }
            self.barrier()?;
        }
    }

    fn begin_thread(&mut self, block: u32, index: u32) {
        let (kernel, launch) = (self.machine.kernel, self.launch);
        let thread = &mut self.threads[index as usize];
        thread.cells.copy_from_slice(&kernel.cells);
        for &(special, slot) in &kernel.specials {
            let value = match special {
                Special::Thread => index,
                Special::Threads => launch.block,
                Special::Block => block,
                Special::Blocks => launch.grid,
                Special::Lane => index % LANES as u32,
                Special::Warp => index / LANES as u32,
            };
            thread.set(slot, value.into());
        }
        (thread.at, thread.state) = (0, State::Ready);
        thread.who = Who { block, thread: index, index: block * launch.block + index };
    }

    /// Executes a warp until all of its lanes wait for the block or have ended.
    fn warp(&mut self, number: usize) -> Result<(), Fault> {
        let kernel = self.machine.kernel;
        let first = number * LANES;
        let last = (first + LANES).min(self.threads.len());
        loop {
            for thread in &mut self.threads[first..last] {
                if thread.state == State::Ready {
                    let result = self.machine.run(thread);
                    result.map_err(|cause| fault(kernel, thread, cause))?;
                }
            }
            let (lanes, shared) = (&mut self.threads[first..last], &mut self.machine.shared);
            let resolved = Warp { kernel, number, lanes, shared }.resolve();
            match resolved {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err((lane, cause)) => {
                    return Err(fault(kernel, &self.threads[first + lane], cause));
                }
            }
        }
    }

    /// Lets all threads pass that wait at a barrier, if they wait at the same one.
    fn barrier(&mut self) -> Result<(), Fault> {
        let kernel = self.machine.kernel;
        let mut waiting = self.threads.iter().filter(|thread| thread.state == State::Barrier);
        let Some(first) = waiting.next() else { return Ok(()) };
        if let Some(other) = waiting.find(|other| other.at != first.at) {
            let (thread, line) = (first.who.thread, kernel.code[first.at].line);
            let text = format!("thread {thread} waits at the barrier of line {line}");
            return Err(fault(kernel, other, Box::new(Cause::Deadlock(text))));
        }
        for thread in self.threads.iter_mut().filter(|thread| thread.state == State::Barrier) {
            thread.state = State::Ready;
            thread.at += 1;
        }
        self.machine.shared.pass_barrier();
        self.barriers += 1;
        Ok(())
    }

    fn statistics(self) -> Statistics {
        let machine = self.machine;
        let mut opcodes = BTreeMap::new();
        for (instruction, &count) in machine.kernel.code.iter().zip(&machine.counts) {
            if count != 0 {
                let name = machine.kernel.opcodes[instruction.opcode as usize].clone();
                *opcodes.entry(name).or_default() += count;
            }
        }
        Statistics {
            opcodes,
            instructions: machine.counts.iter().sum(),
            skipped: machine.skipped,
            threads: u64::from(self.launch.grid) * u64::from(self.launch.block),
            barriers: self.barriers,
            loaded_bytes: machine.loaded,
            stored_bytes: machine.stored,
        }
    }
}

/// The fault of a thread at its present instruction.
fn fault(kernel: &Kernel, thread: &Thread, cause: Box<Cause>) -> Fault {
    let instruction = &kernel.code[thread.at];
    let (start, end) = instruction.span;
    Fault {
        kernel: kernel.name.clone(),
        line: instruction.line,
        text: kernel.text.get(start..end).unwrap_or_default().to_owned(),
        block: thread.who.block,
        thread: thread.who.thread,
        cause,
    }
}
