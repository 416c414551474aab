//! The memory of one stripe: a unit of every shard, each after its record, as in the files.

use fieldstone_buf::AlignedBuf;

use crate::striping::Striping;

/// Units begin at multiples of this number, which the engine prefers.
const LINE_BYTES: usize = 64;
/// Each shard's unit begins this much later in its page than that of the shard before. So bytes at
/// equal offsets do not all use the same set of a cache.
const STAGGER_BYTES: usize = 5 * LINE_BYTES;
/// The stagger starts again after this number of shards.
const STAGGER_SHARDS: usize = 12;

/// One stripe.
pub(crate) struct StripeBuffer {
    units: Vec<UnitBuffer>,
    record_bytes: usize,
}

struct UnitBuffer {
    memory: AlignedBuf,
    /// Offset of the unit; its record ends there.
    unit_at: usize,
}

/// A unit and its record.
pub(crate) struct StoredUnit<'a> {
    pub(crate) record: &'a mut [u8],
    pub(crate) unit: &'a mut [u8],
}

impl StripeBuffer {
    /// Room for any stripe whose units have at most `unit_bytes` bytes.
    pub(crate) fn new(striping: &Striping, unit_bytes: usize) -> Self {
        let record_bytes = striping.record_bytes();
        let buffer = |shard: usize| {
            let stagger = shard % STAGGER_SHARDS * STAGGER_BYTES;
            let unit_at = record_bytes.next_multiple_of(LINE_BYTES) + stagger;
            UnitBuffer { memory: AlignedBuf::zeroed(unit_at + unit_bytes), unit_at }
        };
        Self { units: (0..striping.shards()).map(buffer).collect(), record_bytes }
    }

    /// Record and unit of a shard as they are in its file.
    pub(crate) fn stored(&mut self, shard: usize, unit_len: usize) -> &mut [u8] {
        let buffer = &mut self.units[shard];
        &mut buffer.memory[buffer.unit_at - self.record_bytes..buffer.unit_at + unit_len]
    }

    /// The unit of a shard.
    pub(crate) fn unit(&self, shard: usize, unit_len: usize) -> &[u8] {
        let buffer = &self.units[shard];
        &buffer.memory[buffer.unit_at..buffer.unit_at + unit_len]
    }

    /// The record of a shard's unit.
    pub(crate) fn record(&self, shard: usize) -> &[u8] {
        let buffer = &self.units[shard];
        &buffer.memory[buffer.unit_at - self.record_bytes..buffer.unit_at]
    }

    /// Units and records of all shards.
    pub(crate) fn all(&mut self, unit_len: usize) -> impl Iterator<Item = StoredUnit<'_>> {
        let record_bytes = self.record_bytes;
        self.units.iter_mut().map(move |buffer| {
            let stored =
                &mut buffer.memory[buffer.unit_at - record_bytes..buffer.unit_at + unit_len];
            let (record, unit) = stored.split_at_mut(record_bytes);
            StoredUnit { record, unit }
        })
    }
}
