//! A CRUSH map in the layout of the device's memories.
//!
//! The device does not know maps, only *images*: tables that its kernels read without further
//! computing. Weights become reciprocals, trees become heaps, and every item carries its type. The
//! driver makes an image once per map, set of reweights and weight set, copies it to card memory,
//! and loads it by one descriptor.
//!
//! ```text
//!   header   64 B
//!   buckets  16 B each, bucket -1 - i at index i
//!   slots    16 B each, every run of a bucket's slots at a row of 16
//!   reweights 4 B each
//!   rules     8 B each, by number
//!   steps     8 B each
//! ```
//!
//! Every section is padded to 64 bytes, and all numbers are little-endian.
//! `rtl/crush/crush_pkg.sv`, where the device reads them, explains the fields. The header has a
//! CRC32C of the whole image, with the CRC's own field as 0.
//!
//! The compiler refuses a map that the device cannot hold, or would map otherwise than the CPU, and
//! gives the reason. It leaves out single rules that the device cannot run, so that the others may
//! run. A rule that is left out does not exist for the device, and the CPU maps it.

mod rules;
mod slots;

use std::collections::BTreeMap;

use fieldstone_crush::{
    Algorithm, AlgorithmKind, Bucket, BucketId, ChooseArgs, ItemId, Map, RuleId,
};
use thiserror::Error;

pub use rules::RuleMisfit;
pub use slots::{BucketSlots, ROW_SLOTS, SLOT_BYTES, SlotBytes};

/// First word of an image: "FSCI".
const MAGIC: u32 = 0x4943_5346;
/// Version of the layout.
const VERSION: u16 = 1;
/// Sections are multiples of this size.
const BEAT_BYTES: usize = 64;

/// The capacity of the device's memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Buckets.
    pub buckets: usize,
    /// Rows of 16 slots.
    pub slot_rows: usize,
    /// Reweights.
    pub devices: usize,
    /// Rules.
    pub rules: usize,
    /// Steps of all rules.
    pub steps: usize,
}

impl Default for ImageLimits {
    /// The capacity of `crush_map_memory` with its default parameters.
    fn default() -> Self {
        Self { buckets: 4096, slot_rows: 2048, devices: 16_384, rules: 64, steps: 1024 }
    }
}

/// Why a map cannot be an image.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ImageError {
    /// The map is too large.
    #[error("the map has {needed} {what}, the device has room for {room}")]
    TooLarge {
        /// The kind of entry.
        what: &'static str,
        /// Number of entries in the map.
        needed: usize,
        /// Number of entries that the device has room for.
        room: usize,
    },
    /// A weight that current Ceph reads as negative.
    #[error(
        "{item} in bucket {} weighs {weight:#x}: from 0x80000000 on weights are negative",
        .bucket.0
    )]
    WeightTooLarge {
        /// The bucket.
        bucket: BucketId,
        /// The item.
        item: ItemId,
        /// Its weight.
        weight: u32,
    },
    /// A bucket of a type that does not fit into a byte.
    #[error("bucket {} is of type {kind}; the device's types go up to 255", .bucket.0)]
    Type {
        /// The bucket.
        bucket: BucketId,
        /// Its type.
        kind: u16,
    },
    /// More attempts than the device counts.
    #[error("choose_total_tries is {0}; the device counts to 65535")]
    Tries(u32),
    /// No rule of the map can run on the device.
    #[error("no rule of the map can run on the device; rule {}: {misfit}", .rule.0)]
    NoRule {
        /// One of the rules.
        rule: RuleId,
        /// Why it cannot.
        misfit: RuleMisfit,
    },
}

/// A compiled map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    bytes: Vec<u8>,
    algorithms: Vec<AlgorithmKind>,
    misfits: BTreeMap<RuleId, RuleMisfit>,
}

impl Image {
    /// Compiles a map for a device of the default capacity. `reweights` are those of the devices,
    /// by number; devices past the end are out.
    pub fn compile(
        map: &Map,
        reweights: &[u32],
        choose_args: Option<&ChooseArgs>,
    ) -> Result<Self, ImageError> {
        Self::compile_within(&ImageLimits::default(), map, reweights, choose_args)
    }

    /// Compiles a map for a device of another capacity.
    pub fn compile_within(
        limits: &ImageLimits,
        map: &Map,
        reweights: &[u32],
        choose_args: Option<&ChooseArgs>,
    ) -> Result<Self, ImageError> {
        // No placement depends on reweights of devices that the map does not have.
        let reweights = &reweights[..reweights.len().min(map.max_devices() as usize)];
        fits("buckets", map.bucket_slots(), limits.buckets)?;
        fits("devices", reweights.len(), limits.devices)?;
        let (buckets, slots) = buckets(limits, map, choose_args)?;
        let rules = Rules::new(limits, map)?;
        let tunables = map.tunables();
        // One more than the tunable, as in Ceph.
        let tries = tunables.choose_total_tries.checked_add(1);
        let tries = tries.and_then(|tries| u16::try_from(tries).ok());
        let tries = tries.ok_or(ImageError::Tries(tunables.choose_total_tries))?;

        let mut algorithms: Vec<AlgorithmKind> =
            map.buckets().map(|b| b.algorithm.kind()).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        let mask = algorithms.iter().fold(0u8, |mask, &kind| mask | 1 << kind as u8);
        let flags =
            u8::from(tunables.chooseleaf_stable) | u8::from(tunables.chooseleaf_descend_once) << 1;

        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([mask, flags]);
        let rows = slots.len() / ROW_SLOTS;
        let counts =
            [map.bucket_slots(), rows, reweights.len(), rules.table.len(), rules.steps.len()];
        for count in counts {
            bytes.extend((count as u32).to_le_bytes());
        }
        bytes.extend(tries.to_le_bytes());
        bytes.push(tunables.chooseleaf_vary_r);
        pad(&mut bytes);
        for section in [
            buckets.concat(),
            slots.concat(),
            reweights.iter().flat_map(|weight| weight.to_le_bytes()).collect(),
            rules.table.concat(),
            rules.steps.concat(),
        ] {
            bytes.extend(section);
            pad(&mut bytes);
        }
        let sum = fieldstone_accel::crc32c(&bytes);
        bytes[BEAT_BYTES - 4..BEAT_BYTES].copy_from_slice(&sum.to_le_bytes());
        Ok(Self { bytes, algorithms, misfits: rules.misfits })
    }

    /// The bytes of the image: a multiple of 64.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The algorithms of the map's buckets, and so the kernels that the map needs.
    #[must_use]
    pub fn algorithms(&self) -> &[AlgorithmKind] {
        &self.algorithms
    }

    /// Why the device cannot run a rule of the map. The other rules are in the image, each at the
    /// slot with its number.
    #[must_use]
    pub fn misfit(&self, rule: RuleId) -> Option<RuleMisfit> {
        self.misfits.get(&rule).copied()
    }
}

fn fits(what: &'static str, needed: usize, room: usize) -> Result<(), ImageError> {
    if needed <= room { Ok(()) } else { Err(ImageError::TooLarge { what, needed, room }) }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(BEAT_BYTES), 0);
}

/// The table of buckets, and the slots of all of them.
fn buckets(
    limits: &ImageLimits,
    map: &Map,
    choose_args: Option<&ChooseArgs>,
) -> Result<(Vec<[u8; 16]>, Vec<SlotBytes>), ImageError> {
    let mut table = vec![[0; 16]; map.bucket_slots()];
    let mut slots: Vec<SlotBytes> = Vec::new();
    let kind = |item: ItemId| {
        let bucket = item.bucket().and_then(|id| map.bucket(id));
        bucket.map_or(0, |bucket| bucket.kind.0 as u8)
    };
    for bucket in map.buckets() {
        let own_kind = u8::try_from(bucket.kind.0)
            .map_err(|_| ImageError::Type { bucket: bucket.id, kind: bucket.kind.0 })?;
        let arg = choose_args.and_then(|args| args.buckets.get(&bucket.id));
        let made = BucketSlots::new(bucket, arg, &kind)?;
        let row = slots.len() / ROW_SLOTS;
        for run in made.sets.iter().chain([&made.leaves]) {
            slots.extend(run);
            slots.resize(slots.len().next_multiple_of(ROW_SLOTS), [0; SLOT_BYTES]);
        }
        let stride = made.sets[0].len().div_ceil(ROW_SLOTS);
        let entry = bucket_entry(bucket, own_kind, &made, row, stride);
        table[!bucket.id.0 as usize] = entry;
        fits("rows of 16 slots", slots.len() / ROW_SLOTS, limits.slot_rows)?;
    }
    Ok((table, slots))
}

/// `bucket_t`.
fn bucket_entry(
    bucket: &Bucket,
    kind: u8,
    made: &BucketSlots,
    row: usize,
    stride: usize,
) -> [u8; 16] {
    let size = bucket.items.len();
    let is_uniform = matches!(bucket.algorithm, Algorithm::Uniform { .. });
    let divides = (1..32).filter(|&n| is_uniform && size.is_multiple_of(n));
    let divides = divides.fold(0u32, |mask, n| mask | 1 << n);
    let depth = made.leaves.len().max(1).ilog2() as u8;
    let positions = made.sets.len() as u8;
    let mut entry = [0; 16];
    entry[0] = 1 << 7 | bucket.algorithm.kind() as u8;
    entry[1] = kind;
    entry[2] = depth;
    entry[3] = positions;
    for (at, number) in [(4, size), (6, row), (8, row + made.sets.len() * stride), (10, stride)] {
        entry[at..at + 2].copy_from_slice(&(number as u16).to_le_bytes());
    }
    entry[12..].copy_from_slice(&divides.to_le_bytes());
    entry
}

/// The rules that fit, with their steps, and the reasons why others do not.
#[derive(Default)]
struct Rules {
    table: Vec<[u8; 8]>,
    steps: Vec<[u8; 8]>,
    misfits: BTreeMap<RuleId, RuleMisfit>,
}

impl Rules {
    fn new(limits: &ImageLimits, map: &Map) -> Result<Self, ImageError> {
        let mut rules = Self::default();
        let mut some_fits = false;
        for (id, rule) in map.rules() {
            let slot = id.0 as usize;
            let encoded = rules::encode(map, rule).and_then(|steps| {
                let fits = slot < limits.rules && rules.steps.len() + steps.len() <= limits.steps;
                if fits { Ok(steps) } else { Err(RuleMisfit::TooLong) }
            });
            match encoded {
                Ok(steps) => {
                    rules.table.resize(slot + 1, [0; 8]);
                    rules.table[slot] = rule_entry(rules.steps.len(), steps.len());
                    rules.steps.extend(steps);
                    some_fits = true;
                }
                Err(misfit) => {
                    rules.misfits.insert(id, misfit);
                }
            }
        }
        match rules.misfits.iter().next() {
            Some((&rule, &misfit)) if !some_fits => Err(ImageError::NoRule { rule, misfit }),
            _ => Ok(rules),
        }
    }
}

/// `rule_t`.
fn rule_entry(first: usize, steps: usize) -> [u8; 8] {
    let mut entry = [0; 8];
    entry[..2].copy_from_slice(&(first as u16).to_le_bytes());
    entry[2..4].copy_from_slice(&(steps as u16).to_le_bytes());
    entry[4] = 1;
    entry
}
