//! One thread executes until it ends or waits.

use super::fault::Cause;
use super::kernel::{Kernel, Table};
use super::memory::Memory;
use super::operation::{Cell, Extension, Guard, Operation, Place, Slot, Space};
use super::shared::Shared;
use super::trace::Who;
use super::types::{extend, ones};

/// What comes of an execution, or why it stops. A fault is rare and large.
pub(super) type Executed<T> = Result<T, Box<Cause>>;

/// Whether a thread can execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    /// It waits for the threads of its block.
    Barrier,
    /// It waits for lanes of its warp.
    Gathered,
    Ended,
}

/// A thread of the present block.
pub(super) struct Thread {
    pub cells: Vec<Cell>,
    /// Index of its next instruction, or of that at which it waits.
    pub at: usize,
    pub state: State,
    pub who: Who,
}

impl Thread {
    /// The value of a cell.
    ///
    /// # Errors
    ///
    /// It has none.
    #[inline]
    pub fn get(&self, kernel: &Kernel, slot: Slot) -> Executed<u64> {
        let cell = self.cells[slot as usize];
        if cell.defined { Ok(cell.bits) } else { Err(undefined(kernel, slot)) }
    }

    /// Gives a cell a value.
    #[inline]
    pub fn set(&mut self, slot: Slot, bits: u64) {
        self.cells[slot as usize] = Cell::of(bits);
    }
}

#[cold]
fn undefined(kernel: &Kernel, slot: Slot) -> Box<Cause> {
    Box::new(Cause::UndefinedRegister(kernel.names[slot as usize].clone()))
}

/// What the thread does after an instruction.
enum Next {
    Follow,
    Jump(u32),
    Wait(State),
}

/// What the threads of a launch execute on.
pub(super) struct Machine<'a> {
    pub kernel: &'a Kernel,
    pub memory: &'a mut Memory,
    pub shared: Shared,
    /// The parameters, as the kernel declares them.
    pub params: Vec<u8>,
    /// By index of the instruction: how many threads executed it.
    pub counts: Vec<u64>,
    /// How many instructions were skipped by their guard.
    pub skipped: u64,
    /// How many more instructions may be executed or skipped.
    pub left: u64,
    /// The number of instructions that a launch may execute.
    pub budget: u64,
    /// Bytes that were loaded from global memory, and stored to it.
    pub loaded: u64,
    pub stored: u64,
}

impl Machine<'_> {
    /// Executes a thread until it ends or waits.
    ///
    /// # Errors
    ///
    /// Its present instruction is at fault.
    pub fn run(&mut self, thread: &mut Thread) -> Executed<()> {
        let kernel = self.kernel;
        loop {
            let instruction = &kernel.code[thread.at];
            if self.left == 0 {
                return Err(Box::new(Cause::Budget(self.budget)));
            }
            self.left -= 1;
            let executes = match instruction.guard {
                Guard::Always => true,
                Guard::If(slot) => thread.get(kernel, slot)? != 0,
                Guard::Unless(slot) => thread.get(kernel, slot)? == 0,
            };
            if !executes {
                self.skipped += 1;
                thread.at += 1;
                continue;
            }
            self.counts[thread.at] += 1;
            match self.step(thread, &instruction.operation)? {
                Next::Follow => thread.at += 1,
                Next::Jump(target) => thread.at = target as usize,
                Next::Wait(state) => {
                    thread.state = state;
                    return Ok(());
                }
            }
        }
    }

    #[inline]
    fn step(&mut self, thread: &mut Thread, operation: &Operation) -> Executed<Next> {
        let kernel = self.kernel;
        let get = |slot| thread.get(kernel, slot);
        match *operation {
            Operation::Unary { f, d, a } => thread.set(d, f(get(a)?)),
            Operation::Binary { f, d, a, b } => thread.set(d, f(get(a)?, get(b)?)),
            Operation::Ternary { f, d, a, b, c } => thread.set(d, f(get(a)?, get(b)?, get(c)?)),
            Operation::Quaternary { f, d, abc: [a, b, c], e } => {
                thread.set(d, f(get(a)?, get(b)?, get(c)?, get(e)?));
            }
            Operation::Divide { f, d, a, b } => {
                let quotient = f(get(a)?, get(b)?);
                thread.set(d, quotient.ok_or_else(|| Box::new(Cause::DivisionByZero))?);
            }
            Operation::Convert { d, a, steps } => {
                let value = steps.iter().fold(get(a)?, |value, step| extended(value, *step));
                thread.set(d, value);
            }
            Operation::AddCarry { d, a, b, carry_in, carry_out } => {
                let carry = carry_in.map_or(Ok(0), get)?;
                let sum = get(a)? + get(b)? + carry;
                thread.set(d, sum & ones(32));
                if let Some(slot) = carry_out {
                    thread.set(slot, sum >> 32);
                }
            }
            Operation::Pack { d, parts, count, bits } => {
                let mut value = 0;
                for (at, &part) in parts[..count as usize].iter().enumerate() {
                    value |= get(part)? << (bits * at as u32);
                }
                thread.set(d, value);
            }
            Operation::Unpack { parts, a, count, bits } => {
                let value = get(a)?;
                for (at, &part) in parts[..count as usize].iter().enumerate() {
                    thread.set(part, value >> (bits * at as u32) & ones(bits));
                }
            }
            Operation::Load { d, place, extension } => self.load(thread, d, place, extension)?,
            Operation::Store { a, place } => self.store(thread, a, place)?,
            Operation::AtomicAdd { d, place, b } => self.add(thread, d, place, b)?,
            Operation::Nothing => {}
            Operation::Branch { target } => return Ok(Next::Jump(target)),
            Operation::BranchIndexed { index, ref targets } => {
                let index = get(index)? as u32;
                let past = || Cause::BranchIndex { index, targets: targets.len() };
                let target = targets.get(index as usize).ok_or_else(past)?;
                return Ok(Next::Jump(*target));
            }
            Operation::End => return Ok(Next::Wait(State::Ended)),
            Operation::Barrier => return Ok(Next::Wait(State::Barrier)),
            Operation::Collective(_) => return Ok(Next::Wait(State::Gathered)),
        }
        Ok(Next::Follow)
    }

    /// The address of an access.
    fn address(&self, thread: &Thread, place: Place) -> Executed<u64> {
        let address = thread.get(self.kernel, place.base)?.wrapping_add_signed(place.offset);
        let bytes = place.bytes();
        if address & u64::from(bytes - 1) != 0 {
            return Err(Box::new(Cause::Misaligned { address, bytes }));
        }
        Ok(address)
    }

    fn load(
        &mut self,
        thread: &mut Thread,
        d: [Slot; 4],
        place: Place,
        extension: Extension,
    ) -> Executed<()> {
        let address = self.address(thread, place)?;
        let (bytes, tables) = (place.bytes(), &self.kernel.tables);
        let found = match place.space {
            Space::Param => &self.params[address as usize..][..bytes as usize],
            Space::Const => match Table::find(&tables.constants, address, bytes) {
                Some((_, found)) => found,
                None => return Err(Box::new(Cause::ConstantOutside { address, bytes })),
            },
            Space::Shared => self.shared.load(address, bytes, thread.who)?,
            Space::Global => {
                self.loaded += u64::from(bytes);
                match Table::find(&tables.globals, address, bytes) {
                    Some((_, found)) => found,
                    None => self.memory.load(address, bytes, thread.who).map_err(Cause::from)?,
                }
            }
        };
        for (&slot, element) in d.iter().zip(found.chunks_exact(place.element as usize)) {
            let value = element.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
            thread.set(slot, extended(value, extension));
        }
        Ok(())
    }

    fn store(&mut self, thread: &mut Thread, a: [Slot; 4], place: Place) -> Executed<()> {
        let address = self.address(thread, place)?;
        let (mut values, element) = ([0; 16], place.element as usize);
        let (bytes, length) = (place.bytes(), place.bytes() as usize);
        for (part, &slot) in values[..length].chunks_exact_mut(element).zip(&a) {
            let value = thread.get(self.kernel, slot)?;
            part.copy_from_slice(&value.to_le_bytes()[..element]);
        }
        if place.space == Space::Shared {
            return Ok(self.shared.store(address, &values[..length], thread.who)?);
        }
        self.check_writable(address, bytes)?;
        self.stored += u64::from(bytes);
        let stored = self.memory.store(address, &values[..length], thread.who);
        Ok(stored.map_err(Cause::from)?)
    }

    fn add(&mut self, thread: &mut Thread, d: Option<Slot>, place: Place, b: Slot) -> Executed<()> {
        let address = self.address(thread, place)?;
        let value = thread.get(self.kernel, b)? as u32;
        let before = if place.space == Space::Shared {
            self.shared.add(address, value, thread.who)?
        } else {
            self.check_writable(address, 4)?;
            self.loaded += 4;
            self.stored += 4;
            self.memory.add(address, value, thread.who).map_err(Cause::from)?
        };
        if let Some(slot) = d {
            thread.set(slot, before.into());
        }
        Ok(())
    }

    fn check_writable(&self, address: u64, bytes: u32) -> Executed<()> {
        match Table::find(&self.kernel.tables.globals, address, bytes) {
            Some((table, _)) => {
                Err(Box::new(Cause::ReadOnly { address, table: table.name.clone() }))
            }
            None => Ok(()),
        }
    }
}

fn extended(value: u64, by: Extension) -> u64 {
    extend(value, by.from, by.to, by.signed)
}
