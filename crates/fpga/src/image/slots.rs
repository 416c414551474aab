//! The slots of one bucket, the input of its kernel: 16 bytes each, in the order in which the
//! kernel draws.

use fieldstone_crush::bucket::{Algorithm, Bucket};
use fieldstone_crush::{ChooseArg, ItemId};

use super::ImageError;
use crate::regs::MAX_WIDTH;

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 16;
/// Slots of a row; buckets begin at rows.
pub const ROW_SLOTS: usize = 16;

/// Most weight sets of a bucket that matter: one per position of a result.
const MAX_SETS: usize = MAX_WIDTH;

/// A slot in the kernels' layout: item, hash id, and 8 bytes of which the last is the item's kind.
pub type SlotBytes = [u8; SLOT_BYTES];

/// The slots of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketSlots {
    /// One run of slots per position of the result. Only straw2 buckets with weight sets have
    /// several runs.
    pub sets: Vec<Vec<SlotBytes>>,
    /// Tree: the leaves; [`ItemId::NONE`] if there is no item.
    pub leaves: Vec<SlotBytes>,
}

impl BucketSlots {
    /// The slots of a bucket. `kind` gives the type of an item, 0 for devices.
    pub fn new(
        bucket: &Bucket,
        arg: Option<&ChooseArg>,
        kind: &dyn Fn(ItemId) -> u8,
    ) -> Result<Self, ImageError> {
        let items = &bucket.items;
        let one = |slots: Vec<SlotBytes>| Self { sets: vec![slots], leaves: Vec::new() };
        Ok(match &bucket.algorithm {
            Algorithm::Uniform { .. } => {
                let size = items.len() as u64;
                let slot = |(at, &item): (u64, &ItemId)| {
                    entry(item, item, reciprocal(32, size - at), kind(item))
                };
                one((0..).zip(items).map(slot).collect())
            }
            Algorithm::List { weights, sums } => {
                let slots = items.iter().zip(weights).zip(sums).rev();
                one(slots
                    .map(|((&item, &w), &sum)| pair(item.0 as u32, w, sum, kind(item)))
                    .collect())
            }
            Algorithm::Tree { node_weights } => tree(items, node_weights, kind),
            Algorithm::Straw { straws, .. } => {
                let slots = items.iter().zip(straws);
                one(slots.map(|(&item, &s)| entry(item, item, u64::from(s), kind(item))).collect())
            }
            Algorithm::Straw2 { weights } => {
                let ids = arg.and_then(|arg| arg.ids.as_ref()).unwrap_or(items);
                let own = std::slice::from_ref(weights);
                let sets = arg.map_or(own, |arg| &arg.weight_sets[..]);
                // No result has more positions, so later sets are never used.
                let sets = if sets.is_empty() { own } else { &sets[..sets.len().min(MAX_SETS)] };
                let slots = |weights: &Vec<u32>| straw2(bucket, ids, weights, kind);
                Self { sets: sets.iter().map(slots).collect::<Result<_, _>>()?, leaves: Vec::new() }
            }
        })
    }
}

fn straw2(
    bucket: &Bucket,
    ids: &[ItemId],
    weights: &[u32],
    kind: &dyn Fn(ItemId) -> u8,
) -> Result<Vec<SlotBytes>, ImageError> {
    let slots = bucket.items.iter().zip(ids).zip(weights).map(|((&item, &id), &weight)| {
        if weight >= fieldstone_crush::check::FIRST_SIGNED_WEIGHT {
            return Err(ImageError::WeightTooLarge { bucket: bucket.id, item, weight });
        }
        Ok(entry(item, id, reciprocal(48, weight.into()), kind(item)))
    });
    slots.collect()
}

/// Inner nodes in heap order (slot 0 is unused), and leaves.
fn tree(items: &[ItemId], node_weights: &[u32], kind: &dyn Fn(ItemId) -> u8) -> BucketSlots {
    let leaves = node_weights.len() / 2;
    let mut nodes = vec![[0; SLOT_BYTES]; leaves];
    for (heap, slot) in nodes.iter_mut().enumerate().skip(1) {
        let height = leaves.ilog2() - heap.ilog2();
        let node = (2 * (heap - (1 << heap.ilog2())) + 1) << height;
        let left = node_weights[node - (1 << (height - 1))];
        *slot = pair(node as u32, node_weights[node], left, 0);
    }
    let leaf = |at: usize| match items.get(at) {
        Some(&item) => entry(item, item, 0, kind(item)),
        None => entry(ItemId::NONE, ItemId::NONE, 0, 0),
    };
    BucketSlots { sets: vec![nodes], leaves: (0..leaves).map(leaf).collect() }
}

/// `slot_t`: item, hash id, payload (7 bytes), kind.
fn entry(item: ItemId, hash_id: ItemId, payload: u64, kind: u8) -> SlotBytes {
    let mut slot = [0; SLOT_BYTES];
    slot[..4].copy_from_slice(&item.0.to_le_bytes());
    slot[4..8].copy_from_slice(&hash_id.0.to_le_bytes());
    slot[8..15].copy_from_slice(&payload.to_le_bytes()[..7]);
    slot[15] = kind;
    slot
}

/// `pair_slot_t`: second, hash id, first, kind.
fn pair(hash_id: u32, second: u32, first: u32, kind: u8) -> SlotBytes {
    let mut slot = [0; SLOT_BYTES];
    slot[..4].copy_from_slice(&second.to_le_bytes());
    slot[4..8].copy_from_slice(&hash_id.to_le_bytes());
    slot[8..12].copy_from_slice(&first.to_le_bytes());
    slot[15] = kind;
    slot
}

/// `reciprocal_t`: floor(n / w) = (n * multiplier) >> (bits + shift) for every n up to 2^48 (bits =
/// 48), or below 2^32 (bits = 32). The multiplier is in bits 48:0, the shift in 54:49. Bit 55 is
/// set if w is 0.
fn reciprocal(bits: u32, w: u64) -> u64 {
    if w == 0 {
        return 1 << 55;
    }
    let shift = w.next_power_of_two().ilog2();
    let multiplier = (1u128 << (bits + shift)).div_ceil(u128::from(w)) as u64;
    u64::from(shift) << 49 | multiplier
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The quotient as the hardware computes it.
    fn divide(bits: u32, n: u64, reciprocal: u64) -> u64 {
        let multiplier = u128::from(reciprocal & ((1 << 49) - 1));
        ((u128::from(n) * multiplier) >> (bits + (reciprocal >> 49 & 63) as u32)) as u64
    }

    #[test]
    fn reciprocals_divide_exactly_at_all_edges() {
        let edges = |most: u64| {
            let powers = (0..64).map(|bit| 1u64 << bit).filter(move |&p| p <= most);
            powers.flat_map(|p| [p - 1, p, p + 1, p / 3 * 2 + 1]).filter(move |&w| w <= most)
        };
        for (bits, most_n, most_w) in [(48, 1u64 << 48, (1 << 31) - 1), (32, (1 << 32) - 1, 65_535)]
        {
            for w in edges(most_w).chain(1..2000).filter(|&w| w > 0) {
                let reciprocal = reciprocal(bits, w);
                assert_eq!(reciprocal >> bits & 1, 1, "the highest bit is taken for granted");
                for quotient in edges(most_n / w) {
                    for n in [quotient * w, (quotient * w + w - 1).min(most_n), most_n] {
                        assert_eq!(divide(bits, n, reciprocal), n / w, "{n} / {w}");
                    }
                }
            }
        }
    }
}
