//! Simulated engines for the queue engine. Each takes commands, and answers every command after
//! some time, in any order. The result is a sum over the descriptor, so a bench can compute it. For
//! benches of fairness, an engine works as the real ones do: on one command at a time, for as long
//! as the descriptor says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fieldstone_fpga::field::Field;
use fieldstone_fpga::regs::{Status, descriptor};
use fieldstone_verilate::Model;
use fieldstone_verilate::bench::{SeededRng, Sink, Source};
use rand::Rng;

use crate::bits;

/// The engine's result for a descriptor: the sum of its words.
pub fn result(descriptor: &[u8]) -> u64 {
    let words = descriptor.chunks_exact(8).map(|word| bits::get(word, 0, 64));
    words.fold(0u64, |sum, word| sum.rotate_left(7).wrapping_add(word))
}

/// Offset of a word of PARAMETERS that makes the engine fail with this status.
pub const FAIL_AT: usize = 104;

/// The word of PARAMETERS that says for how many cycles an engine works that does one command after
/// the other.
pub const WORK: Field = Field { offset: 112, bytes: 8 };

/// An action of an engine, with the descriptor.
#[derive(Clone, Debug)]
pub enum EngineEvent {
    Took { engine: usize, owner: u64, descriptor: Vec<u8> },
    Answered { descriptor: Vec<u8> },
}

/// One engine.
pub struct Engine {
    pub commands: Sink,
    pub answers: Source,
    /// Most cycles for one command.
    pub slowness: u64,
    /// While this is set, the engine does not answer.
    pub hung: bool,
    /// The engine works on one command at a time, for [`WORK`] cycles, and its results are zero.
    pub serial: bool,
    stall: f64,
    due: BinaryHeap<Reverse<(u64, Vec<u8>)>>,
}

impl Engine {
    pub fn new(model: &Model, name: &str, stall: f64) -> Self {
        let port = |kind: &str| format!("{name}_{kind}");
        Self {
            commands: Sink::new(model, &port("command"), &[&port("command_o")], stall),
            answers: Source::new(model, &port("answer"), &[&port("answer_i")], stall),
            slowness: 200,
            hung: false,
            serial: false,
            stall,
            due: BinaryHeap::new(),
        }
    }

    pub fn before(&mut self, now: u64, log: &mut Vec<EngineEvent>) {
        while !self.hung && self.due.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            let Some(Reverse((_, command))) = self.due.pop() else { break };
            let bytes = &command[..128];
            let status = bits::get(&bytes[FAIL_AT..], 0, 8);
            let (result, detail) = if self.serial {
                (0, 0)
            } else if status == Status::Ok as u64 {
                (result(bytes), 0)
            } else {
                (0, descriptor::SOURCE.get(bytes))
            };
            let tag = bits::get(&command, 1028, 16);
            let answer = [(detail, 64), (result, 64), (status, 8), (tag, 16)];
            self.answers.push_bytes(&[&bits::pack(&answer)]);
            log.push(EngineEvent::Answered { descriptor: bytes.to_vec() });
        }
        let is_busy = self.serial && !(self.due.is_empty() && self.answers.is_done());
        self.commands.stall = if is_busy { 1.0 } else { self.stall };
    }

    pub fn after(
        &mut self,
        now: u64,
        rng: &mut SeededRng,
        engine: usize,
        log: &mut Vec<EngineEvent>,
    ) {
        while let Some(mut beat) = self.commands.beats.pop_front() {
            let command = beat.remove(0);
            let owner = bits::get(&command, 1024, 4);
            log.push(EngineEvent::Took { engine, owner, descriptor: command[..128].to_vec() });
            let cycles = match self.serial {
                true => WORK.get(&command),
                false => rng.random_range(1..=self.slowness),
            };
            self.due.push(Reverse((now + cycles, command)));
        }
    }
}
