//! Shared memory of a block: its variables, the bytes that no thread wrote, and races.
//!
//! Between two barriers of a block, its threads access a byte in any order. So it is a race when
//! two of them access it and at least one writes. `bar.warp.sync` orders the accesses of the lanes
//! that its mask names, and of no others. Shuffles and votes order nothing.
//!
//! To know what is ordered, each lane has a *stamp*: the number of the warp's last `bar.warp.sync`
//! that the lane took part in. A byte keeps the stamp of its last writer and readers. And a lane
//! knows of every other lane up to which stamp its accesses came before: a `bar.warp.sync` tells.
//! What one lane learns from a second about a third is not passed on, and of several readers only
//! the last stamp is kept. Both can only make a race of what is none, and only where lanes of a
//! warp wait in changing groups.

use super::fault::{Access, Cause};
use super::kernel::SharedVariable;
use super::memory::add_word;
use super::trace::{How, Who};

/// Number of lanes of a warp.
pub(super) const LANES: usize = 32;
/// What bytes hold that no thread wrote.
const POISON: u8 = 0xc9;

/// The shared memory of the present block.
pub(super) struct Shared {
    regions: Vec<Region>,
    warps: Vec<Clock>,
    /// Number of the present time between two barriers, over all blocks.
    interval: u32,
}

/// A variable.
struct Region {
    name: String,
    start: u64,
    bytes: Vec<u8>,
    defined: Vec<bool>,
    marks: Vec<Mark>,
}

/// What the lanes of a warp know of each other.
#[derive(Clone)]
struct Clock {
    syncs: u32,
    /// The stamps of the lanes.
    stamps: [u32; LANES],
    /// By lane, and then by other lane: its accesses with a stamp below this came before.
    known: Box<[[u32; LANES]; LANES]>,
}

/// Who accessed a byte. It counts for one interval.
#[derive(Clone, Copy, Default)]
struct Mark {
    interval: u32,
    writer: Writer,
    writer_stamp: u32,
    readers: Readers,
    /// The highest stamp of the readers.
    reader_stamp: u32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Writer {
    #[default]
    None,
    /// A thread of the block, by index.
    Thread(u16),
    /// Atomic operations.
    Atomic,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Readers {
    #[default]
    None,
    /// Lanes of a warp, as a mask.
    Lanes { warp: u16, mask: u32 },
    /// Threads of several warps.
    Several,
}

impl Clock {
    fn new() -> Self {
        Self { syncs: 0, stamps: [0; LANES], known: Box::new([[0; LANES]; LANES]) }
    }

    fn sync(&mut self, mask: u32) {
        self.syncs += 1;
        let members = || (0..LANES).filter(|lane| mask >> lane & 1 != 0);
        for lane in members() {
            members().for_each(|other| self.known[lane][other] = self.syncs);
            self.stamps[lane] = self.syncs;
        }
    }
}

impl Shared {
    /// The memory of a kernel with variables, for blocks of a number of threads.
    pub fn new(variables: &[SharedVariable], threads: u32) -> Self {
        let region = |variable: &SharedVariable| Region {
            name: variable.name.clone(),
            start: variable.start,
            bytes: vec![POISON; variable.bytes],
            defined: vec![false; variable.bytes],
            marks: vec![Mark::default(); variable.bytes],
        };
        Self {
            regions: variables.iter().map(region).collect(),
            warps: vec![Clock::new(); (threads as usize).div_ceil(LANES)],
            interval: 1,
        }
    }

    /// Begins a block, whose memory no thread wrote.
    pub fn begin_block(&mut self) {
        self.pass_barrier();
        for region in &mut self.regions {
            region.bytes.fill(POISON);
            region.defined.fill(false);
        }
    }

    /// All threads of the block meet: what comes is ordered after what came.
    pub fn pass_barrier(&mut self) {
        self.interval += 1;
    }

    /// Lanes of a warp meet.
    pub fn sync_warp(&mut self, warp: usize, mask: u32) {
        self.warps[warp].sync(mask);
    }

    /// The bytes that a thread reads.
    ///
    /// # Errors
    ///
    /// They are not all in one variable, no thread wrote one of them, or the read is part of a
    /// race.
    pub fn load(&mut self, address: u64, bytes: u32, who: Who) -> Result<&[u8], Cause> {
        let (region, at) = self.access(How::Read, address, bytes, who)?;
        Ok(&self.regions[region].bytes[at..at + bytes as usize])
    }

    /// Writes bytes of a thread.
    ///
    /// # Errors
    ///
    /// They are not all in one variable, or the write is part of a race.
    pub fn store(&mut self, address: u64, bytes: &[u8], who: Who) -> Result<(), Cause> {
        let (region, at) = self.access(How::Write, address, bytes.len() as u32, who)?;
        self.regions[region].bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.regions[region].defined[at..at + bytes.len()].fill(true);
        Ok(())
    }

    /// Adds to a word of 32 bits in one step, and returns its value of before.
    ///
    /// # Errors
    ///
    /// It is not in a variable, no thread wrote it, or the change is part of a race.
    pub fn add(&mut self, address: u64, value: u32, who: Who) -> Result<u32, Cause> {
        let (region, at) = self.access(How::Atomic, address, 4, who)?;
        Ok(add_word(&mut self.regions[region].bytes[at..at + 4], value))
    }

    /// Checks and notes an access. Returns the region, and where the bytes begin in it.
    fn access(
        &mut self,
        how: How,
        address: u64,
        bytes: u32,
        who: Who,
    ) -> Result<(usize, usize), Cause> {
        let number = self.regions.iter().position(|region| region.holds(address, bytes));
        let number = number.ok_or_else(|| self.outside(address, bytes))?;
        let region = &mut self.regions[number];
        let at = (address - region.start) as usize;
        let range = at..at + bytes as usize;
        if how != How::Write
            && let Some(first) = region.defined[range.clone()].iter().position(|&known| !known)
        {
            return Err(Cause::SharedUninitialised { address: address + first as u64 });
        }
        let clock = &self.warps[who.thread as usize / LANES];
        for (offset, mark) in region.marks[range].iter_mut().enumerate() {
            mark.note(how, who.thread as usize, clock, self.interval).map_err(|access| {
                let access = in_block(access, who.block);
                Cause::SharedRace { address: address + offset as u64, access }
            })?;
        }
        Ok((number, at))
    }

    #[cold]
    fn outside(&self, address: u64, bytes: u32) -> Cause {
        let distance = |region: &&Region| {
            let end = region.start + region.bytes.len() as u64;
            region.start.saturating_sub(address).max(address.saturating_sub(end))
        };
        let nearest = match self.regions.iter().min_by_key(distance) {
            None => "there is none".to_owned(),
            Some(region) => {
                let (name, start, bytes) = (&region.name, region.start, region.bytes.len());
                format!("the nearest is {name}, {bytes} bytes at {start:#x}")
            }
        };
        Cause::SharedOutside { address, bytes, nearest }
    }
}

impl Region {
    fn holds(&self, address: u64, bytes: u32) -> bool {
        let at = address.checked_sub(self.start);
        let rest = at.and_then(|at| (self.bytes.len() as u64).checked_sub(at));
        rest.is_some_and(|rest| rest >= u64::from(bytes))
    }
}

impl Mark {
    /// Notes an access of a thread.
    ///
    /// # Errors
    ///
    /// It is not ordered after an earlier access.
    fn note(
        &mut self,
        how: How,
        thread: usize,
        clock: &Clock,
        interval: u32,
    ) -> Result<(), Access> {
        if self.interval != interval {
            *self = Self { interval, ..Self::default() };
        }
        let (warp, lane) = (thread / LANES, thread % LANES);
        match self.writer {
            Writer::None => {}
            Writer::Atomic if how == How::Atomic => {}
            Writer::Atomic => return Err(Access::Atomic),
            Writer::Thread(other) => {
                let other = usize::from(other);
                let known = clock.known[lane][other % LANES];
                let before = other / LANES == warp && self.writer_stamp < known;
                if other != thread && !before {
                    return Err(Access::Written { block: 0, thread: other as u32 });
                }
            }
        }
        let stamp = clock.stamps[lane];
        if how == How::Read {
            self.readers = self.readers.and(warp, lane);
            self.reader_stamp = self.reader_stamp.max(stamp);
            return Ok(());
        }
        self.check_readers(warp, lane, clock)?;
        let writer = Writer::Thread(thread as u16);
        self.writer = if how == How::Atomic { Writer::Atomic } else { writer };
        self.writer_stamp = stamp;
        self.readers = Readers::None;
        self.reader_stamp = 0;
        Ok(())
    }

    /// Whether all readers came before a lane.
    fn check_readers(&self, warp: usize, lane: usize, clock: &Clock) -> Result<(), Access> {
        let Readers::Lanes { warp: of, mask } = self.readers else {
            let none = self.readers == Readers::None;
            return if none { Ok(()) } else { Err(Access::ReadBySeveral) };
        };
        for other in (0..LANES).filter(|other| mask >> other & 1 != 0) {
            let same = usize::from(of) == warp;
            let before = same && self.reader_stamp < clock.known[lane][other];
            if !(before || same && other == lane) {
                let thread = usize::from(of) * LANES + other;
                return Err(Access::Read { block: 0, thread: thread as u32 });
            }
        }
        Ok(())
    }
}

impl Readers {
    /// These and one more.
    fn and(self, warp: usize, lane: usize) -> Self {
        let one = Self::Lanes { warp: warp as u16, mask: 1 << lane };
        match self {
            Self::None => one,
            Self::Lanes { warp: of, mask } if usize::from(of) == warp => {
                Self::Lanes { warp: of, mask: mask | 1 << lane }
            }
            _ => Self::Several,
        }
    }
}

/// The access with the block that it was in.
fn in_block(access: Access, block: u32) -> Access {
    match access {
        Access::Written { thread, .. } => Access::Written { block, thread },
        Access::Read { thread, .. } => Access::Read { block, thread },
        other => other,
    }
}
