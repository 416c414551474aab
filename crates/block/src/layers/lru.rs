//! A bounded map from line numbers to lines that forgets the least recently used.
//!
//! Lines live in a slab and are linked into a list by slot numbers, most recent first. So a hit, an
//! insertion and an eviction each cost one look-up and a few stores, and allocate nothing once the
//! map is full.
//!
//! The hash is one folded multiplication ([`NumberHasher`]). The client chooses line numbers and
//! could make them collide. It would slow down only its own volume.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use bytes::Bytes;
use slab::Slab;

use super::flights::NumberHasher;

/// Ends a list.
const NONE: usize = usize::MAX;

struct Entry {
    line: u64,
    data: Bytes,
    newer: usize,
    older: usize,
}

/// The lines, at most `capacity` of them.
pub(crate) struct Lru {
    slots: HashMap<u64, usize, BuildHasherDefault<NumberHasher>>,
    entries: Slab<Entry>,
    newest: usize,
    oldest: usize,
    capacity: usize,
}

impl Lru {
    pub(crate) fn new(capacity: usize) -> Self {
        Lru {
            slots: HashMap::default(),
            entries: Slab::new(),
            newest: NONE,
            oldest: NONE,
            capacity,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn contains(&self, line: u64) -> bool {
        self.slots.contains_key(&line)
    }

    /// The line's data. The line becomes the most recently used.
    pub(crate) fn get(&mut self, line: u64) -> Option<&Bytes> {
        let slot = *self.slots.get(&line)?;
        if slot != self.newest {
            self.unlink(slot);
            self.link_newest(slot);
        }
        Some(&self.entries[slot].data)
    }

    /// Adds a line or replaces its data. True if this evicted another line.
    pub(crate) fn insert(&mut self, line: u64, data: Bytes) -> bool {
        if self.capacity == 0 {
            return false;
        }
        if let Some(slot) = self.slots.get(&line) {
            self.entries[*slot].data = data;
            return false;
        }
        let evicts = self.entries.len() == self.capacity;
        if evicts {
            let oldest = self.entries[self.oldest].line;
            self.remove(oldest);
        }
        let slot = self.entries.insert(Entry { line, data, newer: NONE, older: NONE });
        self.link_newest(slot);
        self.slots.insert(line, slot);
        evicts
    }

    /// Forgets a line; true if it was there.
    pub(crate) fn remove(&mut self, line: u64) -> bool {
        let Some(slot) = self.slots.remove(&line) else { return false };
        self.unlink(slot);
        self.entries.remove(slot);
        true
    }

    /// Removes every line in `lines` and returns their number. The cost is the smaller of the
    /// range's length and the number of lines in the map.
    pub(crate) fn remove_range(&mut self, lines: std::ops::Range<u64>) -> usize {
        let before = self.len();
        if lines.end - lines.start <= before as u64 {
            lines.for_each(|line| {
                self.remove(line);
            });
        } else if before > 0 {
            let inside = |entry: &Entry| lines.contains(&entry.line);
            let doomed: Vec<u64> =
                self.entries.iter().filter(|(_, e)| inside(e)).map(|(_, e)| e.line).collect();
            doomed.into_iter().for_each(|line| {
                self.remove(line);
            });
        }
        before - self.len()
    }

    fn unlink(&mut self, slot: usize) {
        let (newer, older) = (self.entries[slot].newer, self.entries[slot].older);
        match newer {
            NONE => self.newest = older,
            _ => self.entries[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            _ => self.entries[older].newer = newer,
        }
    }

    fn link_newest(&mut self, slot: usize) {
        let second = self.newest;
        self.entries[slot].newer = NONE;
        self.entries[slot].older = second;
        match second {
            NONE => self.oldest = slot,
            _ => self.entries[second].newer = slot,
        }
        self.newest = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Get(u64),
        Insert(u64, u8),
        Remove(u64),
        RemoveRange(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..24).prop_map(Step::Get),
            (0u64..24, any::<u8>()).prop_map(|(line, byte)| Step::Insert(line, byte)),
            (0u64..24).prop_map(Step::Remove),
            (0u64..24, 0u64..30).prop_map(|(start, len)| Step::RemoveRange(start, start + len)),
        ]
    }

    proptest! {
        /// Compares the map with a list in order of use.
        #[test]
        fn it_forgets_the_least_recently_used(
            capacity in 0usize..8, steps in proptest::collection::vec(step(), 0..120)
        ) {
            let mut lru = Lru::new(capacity);
            let mut model: Vec<(u64, u8)> = Vec::new();
            for step in steps {
                match step {
                    Step::Get(line) => {
                        let got = lru.get(line).map(|data| data[0]);
                        let at = model.iter().position(|(other, _)| *other == line);
                        prop_assert_eq!(got, at.map(|at| model[at].1));
                        if let Some(at) = at {
                            let entry = model.remove(at);
                            model.push(entry);
                        }
                    }
                    Step::Insert(line, byte) => {
                        lru.insert(line, Bytes::from(vec![byte]));
                        match model.iter_mut().find(|(other, _)| *other == line) {
                            Some(entry) => entry.1 = byte,
                            None if capacity > 0 => {
                                if model.len() == capacity {
                                    model.remove(0);
                                }
                                model.push((line, byte));
                            }
                            None => {}
                        }
                    }
                    Step::Remove(line) => {
                        let there = model.iter().any(|(other, _)| *other == line);
                        prop_assert_eq!(lru.remove(line), there);
                        model.retain(|(other, _)| *other != line);
                    }
                    Step::RemoveRange(start, end) => {
                        let before = model.len();
                        model.retain(|(line, _)| !(start..end).contains(line));
                        prop_assert_eq!(lru.remove_range(start..end), before - model.len());
                    }
                }
                prop_assert_eq!(lru.len(), model.len());
                prop_assert!(model.iter().all(|(line, _)| lru.contains(*line)));
            }
        }
    }
}
