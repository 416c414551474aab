//! Reads a stripe. Every block is checked, and bad units are rebuilt from others.
//!
//! A *flaw* is a reason not to trust a shard in one stripe. When a read finds a flaw, the reader
//! asks the code for another plan without that shard, until a plan works or too few shards are
//! left. Bytes that were read are kept for the next plan.

use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use fieldstone_codes::{CodeError, RepairPlan};

use crate::coder::Coder;
use crate::error::Error;
use crate::folder::{Folder, Shard};
use crate::record::{UnitAddress, block_is_good};
use crate::stripe::StripeBuffer;
use crate::striping::Encoding;

/// The flaw of one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitFlaw {
    /// There is no file with the unit.
    NoFile,
    /// The file ends before the unit's end.
    CutOff,
    /// The unit's record is damaged, or belongs to another unit.
    Record,
    /// This block of the unit is damaged.
    Block(usize),
    /// The system could not read the unit.
    Unreadable(String),
}

impl std::fmt::Display for UnitFlaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoFile => write!(f, "missing"),
            Self::CutOff => write!(f, "cut off"),
            Self::Record => write!(f, "record damaged or of another unit"),
            Self::Block(block) => write!(f, "block {block} damaged"),
            Self::Unreadable(reason) => write!(f, "unreadable: {reason}"),
        }
    }
}

/// Counts the bytes that were read from shard files.
#[derive(Debug, Default)]
pub(crate) struct ReadCounts {
    pub(crate) data_bytes: AtomicU64,
    pub(crate) record_bytes: AtomicU64,
}

/// The state of a unit of the current stripe.
#[derive(Default)]
struct Unit {
    record: bool,
    blocks: Vec<bool>,
    flaw: Option<UnitFlaw>,
}

impl Unit {
    fn start(&mut self, blocks: usize) {
        self.record = false;
        self.flaw = None;
        self.blocks.clear();
        self.blocks.resize(blocks, false);
    }

    /// Ranges of blocks in `range` that are not loaded yet.
    fn missing(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for block in range.filter(|&block| !self.blocks[block]) {
            match runs.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }
}

/// Reads one stripe after the other.
pub(crate) struct StripeReader<'a> {
    encoding: &'a Encoding,
    shards: &'a [Shard],
    counts: &'a ReadCounts,
    coder: &'a mut Coder,
    buffer: StripeBuffer,
    units: Vec<Unit>,
    stripe: u64,
    unit_len: usize,
    /// Collected inputs of a map that are not whole units.
    gathered: Vec<Vec<u8>>,
    /// Parity units that were computed for a comparison.
    expected: Vec<Vec<u8>>,
}

impl<'a> StripeReader<'a> {
    pub(crate) fn new(folder: &'a Folder, counts: &'a ReadCounts, coder: &'a mut Coder) -> Self {
        let (encoding, shards) = (&folder.encoding, &folder.shards[..]);
        Self {
            encoding,
            shards,
            counts,
            coder,
            buffer: StripeBuffer::new(&encoding.striping, folder.present_unit_bytes()),
            units: shards.iter().map(|_| Unit::default()).collect(),
            stripe: 0,
            unit_len: 0,
            gathered: vec![Vec::new(); shards.len()],
            expected: Vec::new(),
        }
    }

    /// Starts a stripe, with no unit loaded.
    pub(crate) fn start(&mut self, stripe: u64) {
        self.stripe = stripe;
        self.unit_len = self.encoding.unit_len(stripe);
        let blocks = self.encoding.striping.blocks();
        for (unit, shard) in self.units.iter_mut().zip(self.shards) {
            unit.start(blocks);
            unit.flaw = shard.file.is_none().then_some(UnitFlaw::NoFile);
        }
    }

    /// The flaw of a shard in this stripe, if one is known.
    pub(crate) fn flaw(&self, shard: usize) -> Option<&UnitFlaw> {
        self.units[shard].flaw.as_ref()
    }

    /// A unit that was loaded or recovered as a whole.
    pub(crate) fn unit(&self, shard: usize) -> &[u8] {
        self.buffer.unit(shard, self.unit_len)
    }

    /// The same unit with its record, as in the file.
    pub(crate) fn stored(&mut self, shard: usize) -> &[u8] {
        self.buffer.stored(shard, self.unit_len)
    }

    /// Loads a whole unit. False if it has a flaw.
    pub(crate) fn load_whole(&mut self, shard: usize) -> bool {
        let blocks = self.encoding.striping.blocks();
        self.load(shard, std::iter::once(0..blocks))
    }

    /// Loads ranges of blocks of a unit. False if it has a flaw.
    fn load(&mut self, shard: usize, runs: impl Iterator<Item = Range<usize>>) -> bool {
        for run in runs {
            if self.units[shard].flaw.is_none()
                && let Err(flaw) = self.load_run(shard, run)
            {
                self.units[shard].flaw = Some(flaw);
            }
        }
        self.units[shard].flaw.is_none()
    }

    fn load_run(&mut self, shard: usize, run: Range<usize>) -> Result<(), UnitFlaw> {
        let blocks = self.encoding.striping.blocks();
        let record_bytes = self.encoding.striping.record_bytes();
        let block_bytes = self.unit_len / blocks;
        let at = |block: usize| record_bytes + block * block_bytes;
        // A whole unit and its record need only one read.
        if !self.units[shard].record && run == (0..blocks) {
            self.read(shard, 0..at(blocks))?;
            self.check_record(shard)?;
            return self.check_blocks(shard, run);
        }
        if !self.units[shard].record {
            self.read(shard, 0..record_bytes)?;
            self.check_record(shard)?;
        }
        for run in self.units[shard].missing(run) {
            self.read(shard, at(run.start)..at(run.end))?;
            self.check_blocks(shard, run)?;
        }
        Ok(())
    }

    /// Reads bytes of the record and the unit into their places in the buffer.
    fn read(&mut self, shard: usize, range: Range<usize>) -> Result<(), UnitFlaw> {
        let file = self.shards[shard].file.as_ref().ok_or(UnitFlaw::NoFile)?;
        let offset = self.encoding.striping.offset(self.stripe) + range.start as u64;
        let record_bytes = self.encoding.striping.record_bytes();
        let of_record = range.end.min(record_bytes).saturating_sub(range.start);
        self.counts.record_bytes.fetch_add(of_record as u64, Ordering::Relaxed);
        let of_data = range.len() - of_record;
        self.counts.data_bytes.fetch_add(of_data as u64, Ordering::Relaxed);
        let place = &mut self.buffer.stored(shard, self.unit_len)[range];
        file.read_exact_at(place, offset).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => UnitFlaw::CutOff,
            _ => UnitFlaw::Unreadable(error.to_string()),
        })
    }

    fn place(&self, shard: usize) -> UnitAddress {
        let (id, stripe, unit_len) = (self.encoding.id, self.stripe, self.unit_len);
        UnitAddress { id, shard, stripe, unit_len }
    }

    fn check_record(&mut self, shard: usize) -> Result<(), UnitFlaw> {
        self.units[shard].record = self.place(shard).is_of(self.buffer.record(shard));
        if self.units[shard].record { Ok(()) } else { Err(UnitFlaw::Record) }
    }

    fn check_blocks(&mut self, shard: usize, run: Range<usize>) -> Result<(), UnitFlaw> {
        let block_bytes = self.unit_len / self.encoding.striping.blocks();
        let (record, unit) = (self.buffer.record(shard), self.buffer.unit(shard, self.unit_len));
        for block in run {
            let bytes = &unit[block * block_bytes..(block + 1) * block_bytes];
            if !block_is_good(record, block, bytes) {
                return Err(UnitFlaw::Block(block));
            }
            self.units[shard].blocks[block] = true;
        }
        Ok(())
    }

    /// Recomputes the units of the shards `lost`, ascending, from others. Afterwards the buffer has
    /// these units and their records as the files should have them.
    ///
    /// # Errors
    /// [`Error::TooFewShards`], or [`Error::Contradiction`].
    pub(crate) fn recover(&mut self, lost: &[usize]) -> Result<(), Error> {
        let plan = loop {
            let plan = self.plan(lost)?;
            if self.load_plan(&plan) {
                break plan;
            }
        };
        self.execute(&plan);
        for &shard in lost {
            let unit = &mut self.units[shard];
            // If only blocks are damaged, the result must match the unit's record.
            if unit.record && matches!(unit.flaw, Some(UnitFlaw::Block(_))) {
                let blocks = self.encoding.striping.blocks();
                self.check_blocks(shard, 0..blocks)
                    .map_err(|_| Error::Contradiction { stripe: self.stripe, shard })?;
            } else {
                unit.record = true;
                unit.blocks.fill(true);
            }
            let place = self.place(shard);
            let stored = self.buffer.stored(shard, self.unit_len);
            let (record, unit) = stored.split_at_mut(self.encoding.striping.record_bytes());
            place.seal(unit, record);
        }
        Ok(())
    }

    /// A plan that uses no shard with a flaw. Shards without any known error have priority.
    fn plan(&self, lost: &[usize]) -> Result<std::sync::Arc<RepairPlan>, Error> {
        let trusted = |shard: &usize| !lost.contains(shard) && self.units[*shard].flaw.is_none();
        let mut available: Vec<usize> = (0..self.units.len()).filter(trusted).collect();
        available.sort_by_key(|&shard| !self.shards[shard].is_whole());
        let striping = &self.encoding.striping;
        striping.code().repair(lost, &available).map_err(|error| match error {
            CodeError::TooFewShards { profile, needed, available } => {
                self.too_few(profile, needed, available)
            }
            other => unreachable!("the lists are disjoint, ascending and in range: {other}"),
        })
    }

    fn too_few(&self, profile: fieldstone_codes::Profile, needed: usize, good: usize) -> Error {
        let start = self.encoding.stripe_start(self.stripe);
        let end = start + self.encoding.data_len(self.stripe) as u64;
        let flaw = |(shard, unit): (usize, &Unit)| {
            let state = &self.shards[shard].state;
            match unit.flaw.as_ref()? {
                UnitFlaw::NoFile => Some(format!("shard {shard} {state}")),
                flaw => Some(format!("shard {shard} {flaw}")),
            }
        };
        let flaws: Vec<String> = self.units.iter().enumerate().filter_map(flaw).collect();
        let flaws = flaws.join(", ");
        Error::TooFewShards { stripe: self.stripe, start, end, profile, needed, good, flaws }
    }

    /// Loads the reads of a plan. False if one of them is bad, so that another plan is needed.
    fn load_plan(&mut self, plan: &RepairPlan) -> bool {
        let blocks = self.encoding.striping.blocks();
        let mut good = true;
        for read in &plan.reads {
            // If blocks are not elements, plans read whole units.
            good &= match blocks {
                1 => self.load_whole(read.shard),
                _ => {
                    let runs = read.elements.iter();
                    self.load(read.shard, runs.map(|run| run.start as usize..run.end as usize))
                }
            };
        }
        good
    }

    fn execute(&mut self, plan: &RepairPlan) {
        let (striping, unit_len) = (&self.encoding.striping, self.unit_len);
        let code = striping.code();
        for (read, gathered) in plan.reads.iter().zip(&mut self.gathered) {
            gathered.clear();
            if read.element_count() != code.elements() {
                let unit = self.buffer.unit(read.shard, unit_len);
                for range in read.ranges_in(unit_len as u64, code.elements()) {
                    gathered.extend_from_slice(&unit[range.start as usize..range.end as usize]);
                }
            }
        }
        let mut whole: Vec<&[u8]> = vec![&[]; self.shards.len()];
        let mut outputs: Vec<&mut [u8]> = Vec::with_capacity(plan.lost.len());
        for (shard, stored) in self.buffer.all(unit_len).enumerate() {
            if plan.lost.contains(&shard) {
                outputs.push(stored.unit);
            } else {
                whole[shard] = stored.unit;
            }
        }
        let inputs: Vec<&[u8]> = (plan.reads.iter().zip(&self.gathered))
            .map(|(read, gathered)| match gathered.len() {
                0 => whole[read.shard],
                _ => &gathered[..],
            })
            .collect();
        let done = self.coder.execute(code.layout(), &plan.map, &inputs, &mut outputs);
        done.expect("the buffers were made for the plan, whose lost shards are ascending");
    }

    /// True if the parity units belong to the data units. All of them were loaded as wholes.
    pub(crate) fn parities_are_right(&mut self) -> bool {
        let (striping, unit_len) = (&self.encoding.striping, self.unit_len);
        let (code, k, shards) = (striping.code(), striping.k(), striping.shards());
        if shards == k {
            return true;
        }
        self.expected.resize(shards - k, Vec::new());
        self.expected.iter_mut().for_each(|unit| unit.resize(unit_len, 0));
        let data: Vec<&[u8]> = (0..k).map(|shard| self.buffer.unit(shard, unit_len)).collect();
        let mut outputs: Vec<&mut [u8]> = self.expected.iter_mut().map(Vec::as_mut_slice).collect();
        let done = self.coder.execute(code.layout(), code.encode(), &data, &mut outputs);
        done.expect("the buffers were made for the code");
        let found = (k..shards).map(|shard| self.buffer.unit(shard, unit_len));
        found.eq(self.expected.iter().map(Vec::as_slice))
    }
}
