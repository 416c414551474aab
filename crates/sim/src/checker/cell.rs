//! The possible values of one cell: a register that keeps every possibility.
//!
//! A cell's state is a set of configurations. Each has a value and the set of writes in flight
//! that it already contains. Any write in flight may take effect at any moment, so the set is
//! closed under "one more write takes effect". When a write is acknowledged, the cell drops
//! configurations without it. When a read returns, the cell drops configurations that the read
//! rules out. An empty set is a violation. So is a read of a value that was not possible at any
//! moment of the read.
//!
//! A **failed write** may take effect once at any later time (a recovery may find it in the log),
//! until a write that was submitted after the failure is acknowledged.
//!
//! A read may return a write that is still in flight. If the process dies before that write is
//! acknowledged, the write may still be lost: a volatile cache in front of a disk behaves like that
//! too. So `lasting` keeps the configurations as they would be without such reads, and replaces the
//! configurations when the process dies.
//!
//! In addition to the configurations, the cell keeps **entries**: each value with the moments at
//! which it stopped being possible for readers (`superseded_at`) and was overwritten by an
//! acknowledged write (`overwritten_at`). After a flush that started after `overwritten_at`, the
//! value cannot come back. A total power failure may bring back every other value.

use smallvec::SmallVec;

use super::Violation;

/// A moment of the checker: its count of calls.
pub(crate) type Tick = u64;
/// The value of a cell: the number of the write, or 0 for zeroes.
pub type Value = u32;

const NEVER: Tick = Tick::MAX;
/// The largest number of writes in flight on one cell; the workload respects this.
pub(crate) const LIVE_MAX: usize = 4;

type Configs = SmallVec<[Config; 2]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Config {
    value: Value,
    applied: u8,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    write: u32,
    value: Value,
    since: Tick,
    bit: u8,
    /// Its writer was fenced: the write took effect before that, or never will.
    frozen: bool,
}

#[derive(Clone, Copy, Debug)]
struct Zombie {
    value: Value,
    failed_at: Tick,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    value: Value,
    /// The last write that made the value.
    write: u32,
    /// When that write ended; `NEVER` while it is in flight.
    written_at: Tick,
    superseded_at: Tick,
    overwritten_at: Tick,
    /// The value may be back after a total power failure.
    survivable: bool,
    failed: bool,
}

/// The model of one cell.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    configs: Configs,
    /// The configurations without the effects of reads of unacknowledged writes; `None` if they are
    /// the same.
    lasting: Option<Configs>,
    live: SmallVec<[Live; 1]>,
    zombies: SmallVec<[Zombie; 1]>,
    entries: SmallVec<[Entry; 2]>,
    /// When a write to this cell last began or ended, if the cell is not clean.
    touched_at: Tick,
    /// The checker's list of cells that may not be clean has this one.
    listed: bool,
}

impl Cell {
    /// A cell with stable zeroes.
    pub fn new() -> Self {
        let entry = Entry {
            value: 0,
            write: 0,
            written_at: 0,
            superseded_at: NEVER,
            overwritten_at: NEVER,
            survivable: true,
            failed: false,
        };
        Self {
            configs: SmallVec::from_slice(&[Config { value: 0, applied: 0 }]),
            lasting: None,
            live: SmallVec::new(),
            zombies: SmallVec::new(),
            entries: SmallVec::from_slice(&[entry]),
            touched_at: 0,
            listed: false,
        }
    }

    /// True when another write to the cell may be submitted.
    pub fn has_room(&self) -> bool {
        self.live.len() < LIVE_MAX
    }

    /// True when the cell holds one stable value, and no write can change that any more. Then a
    /// flush, the death of a process or a power failure changes nothing.
    pub fn is_clean(&self) -> bool {
        let ([config], [entry]) = (&self.configs[..], &self.entries[..]) else { return false };
        let stable = entry.survivable && !entry.failed && entry.written_at != NEVER;
        let current = entry.superseded_at == NEVER && entry.overwritten_at == NEVER;
        let settled = self.live.is_empty() && self.zombies.is_empty() && self.lasting.is_none();
        settled && stable && current && *config == Config { value: entry.value, applied: 0 }
    }

    /// Puts the cell on the list of cells that may not be clean. False if it is there already.
    pub fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.listed, true)
    }

    /// Takes the cell from that list if it is clean. True if it stays.
    pub fn stays_listed(&mut self) -> bool {
        self.listed = !self.is_clean();
        self.listed
    }

    /// The values that the cell may hold now.
    pub fn possible(&self) -> SmallVec<[Value; 4]> {
        let mut values: SmallVec<[Value; 4]> = SmallVec::new();
        for config in &self.configs {
            if !values.contains(&config.value) {
                values.push(config.value);
            }
        }
        values
    }

    /// True when the cell may hold something other than zeroes.
    pub fn may_hold_data(&self) -> bool {
        self.configs.iter().any(|config| config.value != 0)
    }

    /// True when several values are possible, other than through failed writes.
    pub fn is_unsettled(&self) -> bool {
        !self.live.is_empty() || (self.zombies.is_empty() && self.configs.len() > 1)
    }

    /// Notes that a write was submitted.
    pub fn submitted(&mut self, write: u32, value: Value, now: Tick) {
        let used = self.live.iter().fold(0u8, |used, live| used | live.bit);
        let bit = 1u8 << (!used).trailing_zeros().min(7);
        debug_assert_eq!(used & bit, 0, "the workload keeps to LIVE_MAX");
        self.live.push(Live { write, value, since: now, bit, frozen: false });
        let entry = Entry {
            value,
            write,
            written_at: NEVER,
            superseded_at: NEVER,
            overwritten_at: NEVER,
            survivable: true,
            failed: false,
        };
        match self.entries.iter_mut().find(|entry| entry.value == value) {
            Some(known) => *known = entry,
            None => self.entries.push(entry),
        }
        self.touched_at = now;
        self.close();
        self.refresh(now);
    }

    /// Notes that a write was acknowledged.
    pub fn acknowledged(&mut self, write: u32, fua: bool, now: Tick) -> Result<(), Violation> {
        let Some(live) = self.end(write, now) else { return Ok(()) };
        self.retain(|config| config.applied & live.bit != 0);
        if self.configs.is_empty() {
            return Err(Violation::LostWrite { write });
        }
        self.zombies.retain(|zombie| zombie.failed_at > live.since);
        self.unmask(live.bit);
        self.close();
        if self.lasting.as_ref() == Some(&self.configs) {
            self.lasting = None;
        }
        self.refresh(now);
        // A power failure may bring back values that only reads of unacknowledged writes have ruled
        // out.
        let mut current = self.possible();
        current.extend(self.lasting.iter().flatten().map(|config| config.value));
        for entry in &mut self.entries {
            if !current.contains(&entry.value) && entry.overwritten_at == NEVER {
                entry.overwritten_at = now;
            }
            let before = entry.write != write && entry.written_at < live.since;
            if fua && before && !current.contains(&entry.value) {
                entry.survivable = false;
            }
        }
        Ok(())
    }

    /// Notes that a write failed: it may have happened, or may happen later.
    pub fn failed(&mut self, write: u32, now: Tick) {
        let Some(live) = self.end(write, now) else { return };
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.write == write) {
            entry.failed = true;
        }
        self.unmask(live.bit);
        if !live.frozen && !self.zombies.iter().any(|zombie| zombie.value == live.value) {
            self.zombies.push(Zombie { value: live.value, failed_at: now });
        }
        self.close();
        self.refresh(now);
    }

    fn end(&mut self, write: u32, now: Tick) -> Option<Live> {
        let index = self.live.iter().position(|live| live.write == write)?;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.write == write) {
            entry.written_at = now;
        }
        self.touched_at = now;
        Some(self.live.remove(index))
    }

    /// Notes that a read that was submitted at `since` returned `value`.
    pub fn read(&mut self, value: Value, since: Tick, now: Tick) -> Result<(), Violation> {
        self.could_be(value, since)?;
        if self.live.iter().all(|live| live.frozen) && self.touched_at < since {
            self.settle(value, now);
        } else if value != 0
            && let Some(live) = self.live.iter().find(|live| live.value == value)
        {
            // A read returned the value, so its write has happened.
            let bit = live.bit;
            self.lasting.get_or_insert_with(|| self.configs.clone());
            self.configs.retain(|config| config.applied & bit != 0);
            self.refresh(now);
        }
        if self.configs.is_empty() {
            return Err(Violation::Impossible { value });
        }
        Ok(())
    }

    /// Checks a value that a read since `since` returned. Draws no conclusion from it.
    pub fn could_be(&self, value: Value, since: Tick) -> Result<(), Violation> {
        let possible =
            self.entries.iter().any(|entry| entry.value == value && entry.superseded_at >= since);
        if possible { Ok(()) } else { Err(Violation::Impossible { value }) }
    }

    /// No write was concurrent with the read, so the cell holds `value`.
    fn settle(&mut self, value: Value, now: Tick) {
        if self.configs.len() == 1 && self.zombies.is_empty() && self.lasting.is_none() {
            return;
        }
        let sure = self.entries.iter().any(|entry| entry.value == value && !entry.failed);
        if sure {
            self.retain(|config| config.value == value);
        } else {
            self.lasting.get_or_insert_with(|| self.configs.clone());
            self.configs.retain(|config| config.value == value);
        }
        self.zombies.retain(|zombie| zombie.value != value);
        self.close();
        self.refresh(now);
        let current = self.possible();
        for entry in self.entries.iter_mut().filter(|_| sure) {
            if !current.contains(&entry.value) && entry.overwritten_at == NEVER {
                entry.overwritten_at = now;
            }
        }
    }

    /// Notes that a flush that was submitted at `since` was acknowledged. `reading_since` is the
    /// submission time of the oldest read in flight.
    pub fn flushed(&mut self, since: Tick, reading_since: Tick) {
        for entry in &mut self.entries {
            if entry.overwritten_at < since {
                entry.survivable = false;
            }
        }
        self.prune(reading_since);
    }

    fn prune(&mut self, reading_since: Tick) {
        self.entries.retain(|entry| entry.survivable || entry.superseded_at >= reading_since);
    }

    /// Notes that the volume process died and the nodes did not lose power together: acknowledged
    /// writes are there, and writes in flight have happened or never will.
    pub fn process_died(&mut self, now: Tick) {
        for entry in &mut self.entries {
            entry.written_at = entry.written_at.min(now);
        }
        self.live.clear();
        self.zombies.clear();
        self.forget_unacknowledged_reads();
        for config in &mut self.configs {
            config.applied = 0;
        }
        dedup(&mut self.configs);
        self.touched_at = now;
        self.refresh(now);
    }

    /// Notes that a new writer took over while the old one is alive.
    pub fn taken_over(&mut self, now: Tick) {
        for live in &mut self.live {
            live.frozen = true;
        }
        self.zombies.clear();
        self.forget_unacknowledged_reads();
        self.touched_at = now;
        self.refresh(now);
    }

    /// Notes that every machine lost power: the cell may hold any value that no flush ruled out.
    pub fn power_lost(&mut self, now: Tick) {
        self.live.clear();
        self.zombies.clear();
        self.configs.clear();
        self.lasting = None;
        for entry in &mut self.entries {
            entry.written_at = entry.written_at.min(now);
            entry.failed = false;
            if entry.survivable {
                entry.overwritten_at = NEVER;
                self.configs.push(Config { value: entry.value, applied: 0 });
            }
        }
        self.touched_at = now;
        self.refresh(now);
    }

    fn forget_unacknowledged_reads(&mut self) {
        if let Some(lasting) = self.lasting.take() {
            self.configs = lasting;
        }
    }

    fn retain(&mut self, mut keep: impl FnMut(&Config) -> bool) {
        self.configs.retain(|config| keep(config));
        if let Some(lasting) = &mut self.lasting {
            lasting.retain(|config| keep(config));
        }
    }

    fn unmask(&mut self, bit: u8) {
        for configs in std::iter::once(&mut self.configs).chain(&mut self.lasting) {
            for config in configs.iter_mut() {
                config.applied &= !bit;
            }
            dedup(configs);
        }
    }

    /// Closes the configurations under "one more write takes effect".
    fn close(&mut self) {
        let Self { configs, lasting, live, zombies, .. } = self;
        if live.is_empty() && zombies.is_empty() {
            return;
        }
        close(configs, live, zombies);
        if let Some(lasting) = lasting {
            close(lasting, live, zombies);
        }
    }

    fn refresh(&mut self, now: Tick) {
        let current = self.possible();
        for entry in &mut self.entries {
            if current.contains(&entry.value) {
                entry.superseded_at = NEVER;
            } else if entry.superseded_at == NEVER {
                entry.superseded_at = now;
            }
        }
    }
}

fn dedup(configs: &mut Configs) {
    let mut kept = Configs::new();
    for config in configs.iter() {
        if !kept.contains(config) {
            kept.push(*config);
        }
    }
    *configs = kept;
}

fn close(configs: &mut Configs, live: &[Live], zombies: &[Zombie]) {
    let mut index = 0;
    while index < configs.len() {
        let from = configs[index];
        for live in live.iter().filter(|live| !live.frozen && from.applied & live.bit == 0) {
            let to = Config { value: live.value, applied: from.applied | live.bit };
            if !configs.contains(&to) {
                configs.push(to);
            }
        }
        for zombie in zombies {
            // A failed write comes before those submitted after its failure.
            let later = |live: &Live| live.since > zombie.failed_at && from.applied & live.bit != 0;
            let to = Config { value: zombie.value, applied: from.applied };
            if !live.iter().any(later) && !configs.contains(&to) {
                configs.push(to);
            }
        }
        index += 1;
    }
}
