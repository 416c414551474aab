//! A map, reweights and a rule as the tables of the kernel. The module's text has the layout.

use fieldstone_crush::check::FIRST_SIGNED_WEIGHT;
use fieldstone_crush::{
    Algorithm, AlgorithmKind, Bucket, BucketId, ChooseArgs, ItemId, Map, Rule, RuleId, RuleStep, ln,
};
use thiserror::Error;

use super::rules;

/// First word of an image: "FPG1".
const MAGIC: u32 = 0x3147_5046;
const HEADER_BYTES: usize = 64;
/// The two tables of the logarithm.
pub(super) const LOGARITHM_BYTES: usize = 129 * 16 + 256 * 8;
/// The power of 2 by which an image's logarithms are greater than those of the CPU.
const LOG_SCALE: u32 = 11;
/// Most items of all buckets together.
const MAX_ITEMS: usize = 1 << 24;
/// Bits of N = 2^48 - crush_ln(u), whose greatest value is 2^48 itself.
const STRAW_BITS: u32 = 48;
/// The power of 2 in an image's multipliers.
const MULTIPLIER_SCALE: u32 = 15;
/// What the upper half of a product leaves to shift: both factors have a scale of 2^15.
const HALF_SHIFT: u32 = STRAW_BITS + 2 * MULTIPLIER_SCALE - 64;

/// A bucket or an item, in words.
type Entry = [u32; 4];

/// Why the kernel does not take a map with a rule. The CPU maps such rules.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Misfit {
    /// No rule of that number.
    #[error("the map has no rule {}", .0.0)]
    NoSuchRule(RuleId),
    /// A multi-step-retry rule, which has another mapper.
    #[error("it is a multi-step-retry rule")]
    MultiStepRetry,
    /// A choose step retries in the same bucket.
    #[error("it retries in the same bucket (choose_local_tries or choose_local_fallback_tries)")]
    LocalTries,
    /// More attempts than a thread may make.
    #[error("a step makes up to {0} attempts, more than {most}", most = rules::MAX_ATTEMPTS)]
    TooManyAttempts(u64),
    /// More steps than an image has room for.
    #[error("the rule has {0} steps, more than {most}", most = rules::MAX_STEPS)]
    TooManySteps(usize),
    /// Weights or numbers of a weight set instead of the map's.
    #[error("it maps with choose_args")]
    ChooseArgs,
    /// A bucket below the rule that is not straw2.
    #[error("bucket {} is of the algorithm {}, not straw2", .bucket.0, .algorithm.word())]
    Algorithm {
        /// The bucket.
        bucket: BucketId,
        /// Its algorithm.
        algorithm: AlgorithmKind,
    },
    /// A weight that current Ceph reads as negative.
    #[error("{item} in bucket {} weighs {weight:#x}: from 0x80000000 on weights are negative",
        .bucket.0)]
    WeightTooLarge {
        /// The bucket.
        bucket: BucketId,
        /// The item.
        item: ItemId,
        /// Its weight.
        weight: u32,
    },
    /// More items than an image has room for.
    #[error("the buckets below the rule have more than {MAX_ITEMS} items")]
    TooManyItems,
}

/// One map, the reweights of its devices and one rule, in the layout of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    bytes: Vec<u8>,
}

impl Image {
    /// Makes the image. `reweights` are those of the devices, by number; devices past the end are
    /// out.
    pub fn new(
        map: &Map,
        rule: RuleId,
        reweights: &[u32],
        choose_args: Option<&ChooseArgs>,
    ) -> Result<Self, Misfit> {
        if choose_args.is_some_and(|args| !args.buckets.is_empty()) {
            return Err(Misfit::ChooseArgs);
        }
        let found = map.rules().find(|&(id, _)| id == rule);
        let (_, rule) = found.ok_or(Misfit::NoSuchRule(rule))?;
        let steps = rules::steps(map, rule)?;
        let (buckets, items) = buckets(map, rule)?;
        // Past the end of the list devices are out: their reweight is 0.
        let devices = map.max_devices() as usize;
        let mut reweights = reweights[..reweights.len().min(devices)].to_vec();
        reweights.resize(devices, 0);

        let mut bytes = vec![0; HEADER_BYTES];
        logarithm(&mut bytes);
        bytes.extend(words(&steps));
        let buckets_at = bytes.len();
        bytes.extend(words(&buckets));
        let items_at = bytes.len();
        bytes.extend(words(&items));
        let reweights_at = bytes.len();
        bytes.extend(words(&[reweights]));
        let header = [MAGIC as usize, bytes.len(), 0, 0, buckets_at, items_at, reweights_at];
        for (field, value) in bytes.chunks_exact_mut(4).zip(header) {
            field.copy_from_slice(&(value as u32).to_le_bytes());
        }
        Ok(Self { bytes })
    }

    /// The bytes, to be copied to an address that is a multiple of 16.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The bytes of rows of words.
fn words<R: AsRef<[u32]>>(rows: &[R]) -> impl Iterator<Item = u8> {
    rows.iter().flat_map(AsRef::as_ref).flat_map(|word| word.to_le_bytes())
}

/// The tables of the logarithm.
fn logarithm(bytes: &mut Vec<u8>) {
    let tables = ln::tables();
    for (reciprocal, logarithm) in tables.reciprocals.iter().zip(tables.logarithms) {
        bytes.extend(reciprocal.to_le_bytes());
        bytes.extend((logarithm << LOG_SCALE).to_le_bytes());
    }
    bytes.extend(tables.remainders.iter().flat_map(|rest| (rest << LOG_SCALE).to_le_bytes()));
}

/// The buckets that the rule can reach, by slot, and their items. Other slots are zeros.
fn buckets(map: &Map, rule: &Rule) -> Result<(Vec<Entry>, Vec<Entry>), Misfit> {
    let mut table = vec![[0; 4]; map.bucket_slots()];
    let mut items = Vec::new();
    let mut seen = vec![false; map.bucket_slots()];
    let takes = rule.steps.iter().filter_map(|step| match *step {
        RuleStep::Take(item) => item.bucket(),
        _ => None,
    });
    let mut open: Vec<BucketId> = takes.collect();
    while let Some(id) = open.pop() {
        let Some(bucket) = map.bucket(id) else { continue };
        let slot = !id.0 as usize;
        if std::mem::replace(&mut seen[slot], true) {
            continue;
        }
        let first = items.len() as u32;
        push_items(bucket, &mut items)?;
        table[slot] = [first, items.len() as u32 - first, bucket.kind.0.into(), 0];
        open.extend(bucket.items.iter().filter_map(|item| item.bucket()));
    }
    Ok((table, items))
}

/// Appends the items of a bucket that can win a draw.
fn push_items(bucket: &Bucket, items: &mut Vec<Entry>) -> Result<(), Misfit> {
    let Algorithm::Straw2 { weights } = &bucket.algorithm else {
        let algorithm = bucket.algorithm.kind();
        return Err(Misfit::Algorithm { bucket: bucket.id, algorithm });
    };
    if items.len() + bucket.items.len() > MAX_ITEMS {
        return Err(Misfit::TooManyItems);
    }
    let before = items.len();
    for (&item, &weight) in bucket.items.iter().zip(weights) {
        if weight >= FIRST_SIGNED_WEIGHT {
            return Err(Misfit::WeightTooLarge { bucket: bucket.id, item, weight });
        }
        if weight > 0 {
            items.push(entry(item, weight));
        }
    }
    if items.len() == before {
        // Nothing weighs anything, so the first item wins every draw. Alone, it does so with any
        // weight.
        items.extend(bucket.items.first().map(|&item| entry(item, 1)));
    }
    Ok(())
}

/// An item with a weight of 1 or more.
fn entry(item: ItemId, weight: u32) -> Entry {
    let (multiplier, shift) = reciprocal(weight);
    [item.0 as u32, shift, multiplier as u32, (multiplier >> 32) as u32]
}

/// The multiplier and the shift of a weight: floor(N / weight) is the upper half of 2^15 N times
/// the multiplier, shifted right. The module's text has the proof.
fn reciprocal(weight: u32) -> (u64, u32) {
    let log = weight.next_power_of_two().ilog2();
    let multiplier = (1u128 << (STRAW_BITS + log)).div_ceil(weight.into()) as u64;
    (multiplier << MULTIPLIER_SCALE, HALF_SHIFT + log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reciprocals_divide_every_straw_exactly() {
        let powers = (0..31).map(|bit| 1u32 << bit);
        let edges = powers.flat_map(|p| [p.max(2) - 1, p, p + 1, p / 3 * 2 + 1]);
        let weights = edges.chain(1..100).chain([0x7fff_ffff, 0x1_0000 * 1000]);
        for weight in weights {
            let (multiplier, shift) = reciprocal(weight);
            for u in (0..=u16::MAX).step_by(7).chain(65_500..=65_535) {
                let straw = (1u64 << 48) - ln::crush_ln(u);
                let product = u128::from(straw << 15) * u128::from(multiplier);
                let quotient = ((product >> 64) as u64) >> shift;
                assert_eq!(quotient, straw / u64::from(weight), "{straw} / {weight}");
            }
        }
    }
}
