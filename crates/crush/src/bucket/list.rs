//! **List**: a chain of decisions from the newest item to the oldest. An item wins with the
//! probability of its weight divided by the sum of its own and all older weights. So an appended
//! item takes exactly its share from the others, and no other data moves.

use crate::hash::hash4;
use crate::{BucketId, ItemId};

/// `sums[i]` is the weight of items 0 to i.
pub(crate) fn sums(weights: &[u32]) -> Vec<u32> {
    weights
        .iter()
        .scan(0u32, |sum, &weight| {
            *sum = sum.wrapping_add(weight);
            Some(*sum)
        })
        .collect()
}

/// The index of the drawn item; there is at least one. If no item wins (all weights are 0), the
/// oldest does.
pub(crate) fn choose(
    id: BucketId,
    items: &[ItemId],
    weights: &[u32],
    sums: &[u32],
    x: u32,
    r: u32,
) -> usize {
    for (index, ((&item, &weight), &sum)) in items.iter().zip(weights).zip(sums).enumerate().rev() {
        let u = u64::from(hash4(x, item.0 as u32, r, id.0 as u32) & 0xffff);
        if (u * u64::from(sum)) >> 16 < u64::from(weight) {
            return index;
        }
    }
    0
}
