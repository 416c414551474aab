//! The memory's side of a port: it decides the order and the time of the answers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Bytes of a beat.
pub const BEAT: usize = 64;

/// A read that waits for its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Read {
    /// Comes back with the data.
    pub tag: u64,
    /// The first beat.
    pub beat: u64,
    /// Beats that are left to deliver.
    pub beats: u64,
}

/// Reads in flight, and the read whose beats are being delivered.
#[derive(Debug, Default)]
pub struct Reads {
    /// Ordered by the cycle at which the first beat is ready, then by age.
    waiting: BinaryHeap<Reverse<(u64, u64, Read)>>,
    made: u64,
    current: Option<Read>,
    is_offered: bool,
}

impl Reads {
    /// True if nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.current.is_none()
    }

    /// Adds a read whose first beat is ready at a cycle.
    pub fn push(&mut self, due: u64, read: Read) {
        self.made += 1;
        self.waiting.push(Reverse((due, self.made, read)));
    }

    /// The beat to deliver in this cycle, if any: its read, in which `beats` still counts it. The
    /// beat stays the same until [`Reads::take`]. `goes` says whether a new beat is offered now.
    pub fn offer(&mut self, now: u64, goes: &mut dyn FnMut() -> bool) -> Option<Read> {
        if self.current.is_none() && self.waiting.peek().is_some_and(|next| next.0.0 <= now) {
            self.current = self.waiting.pop().map(|next| next.0.2);
        }
        self.is_offered = self.is_offered || (self.current.is_some() && goes());
        self.current.filter(|_| self.is_offered)
    }

    /// The offered beat was taken.
    pub fn take(&mut self) {
        self.is_offered = false;
        if let Some(read) = &mut self.current {
            read.beat += 1;
            read.beats -= 1;
            if read.beats == 0 {
                self.current = None;
            }
        }
    }
}

/// A write of (part of) a beat.
#[derive(Clone, Debug)]
pub struct Write {
    /// The beat's address.
    pub beat: u64,
    /// Which bytes.
    pub strobe: u64,
    /// The bytes.
    pub data: [u8; BEAT],
}

/// Writes in flight. They land in order.
#[derive(Debug, Default)]
pub struct Writes(VecDeque<(u64, Write)>);

impl Writes {
    /// True if nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a write that lands at a cycle, but not before the writes ahead of it.
    pub fn push(&mut self, due: u64, write: Write) {
        self.0.push_back((due, write));
    }

    /// The write that lands in this cycle.
    pub fn land(&mut self, now: u64) -> Option<Write> {
        let is_due = self.0.front().is_some_and(|(due, _)| *due <= now);
        is_due.then(|| self.0.pop_front().map(|(_, write)| write))?
    }
}

/// Puts a write into a memory whose first beat is `base`. False if the memory does not have the
/// beat.
pub fn apply(memory: &mut [u8], base: u64, write: &Write) -> bool {
    let Some(bytes) = beat_of(memory.len(), base, write.beat).and_then(|at| memory.get_mut(at))
    else {
        return false;
    };
    if write.strobe == u64::MAX {
        bytes.copy_from_slice(&write.data);
        return true;
    }
    for (index, (byte, new)) in bytes.iter_mut().zip(write.data).enumerate() {
        if write.strobe >> index & 1 == 1 {
            *byte = new;
        }
    }
    true
}

/// The index range of a beat in a memory of so many bytes whose first beat is `base`.
pub fn beat_of(len: usize, base: u64, beat: u64) -> Option<std::ops::Range<usize>> {
    let at = usize::try_from(beat.checked_sub(base)?).ok()?.checked_mul(BEAT)?;
    let end = at.checked_add(BEAT)?;
    (end <= len).then_some(at..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_of_a_read_stay_together_and_come_when_due() {
        let mut reads = Reads::default();
        reads.push(9, Read { tag: 1, beat: 100, beats: 2 });
        reads.push(5, Read { tag: 2, beat: 200, beats: 1 });
        assert_eq!(reads.offer(4, &mut || true), None);
        let mut seen = Vec::new();
        for now in 9.. {
            let Some(read) = reads.offer(now, &mut || true) else { break };
            assert_eq!(reads.offer(now, &mut || false), Some(read), "an offer stays");
            seen.push((read.tag, read.beat, read.beats == 1));
            reads.take();
        }
        assert_eq!(seen, [(2, 200, true), (1, 100, false), (1, 101, true)]);
        assert!(reads.is_idle());
    }

    #[test]
    fn writes_land_in_order_under_their_strobe() {
        let mut writes = Writes::default();
        let write = |beat, strobe| Write { beat, strobe, data: [7; BEAT] };
        writes.push(5, write(11, 0b101));
        writes.push(3, write(10, u64::MAX));
        assert!(!writes.is_idle());
        let mut memory = [0; 2 * BEAT];
        assert!(writes.land(4).is_none());
        for now in [5, 6] {
            let write = writes.land(now).expect("both are due");
            assert!(apply(&mut memory, 10, &write));
        }
        assert_eq!(memory[BEAT..BEAT + 4], [7, 0, 7, 0]);
        assert_eq!(memory[..BEAT], [7; BEAT]);
        assert!(writes.is_idle());
        assert_eq!(beat_of(memory.len(), 10, 11), Some(BEAT..2 * BEAT));
        assert!(!apply(&mut memory, 10, &write(9, 1)) && !apply(&mut memory, 10, &write(12, 1)));
    }
}
