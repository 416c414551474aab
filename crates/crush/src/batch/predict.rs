//! Predicts the draws of a choose step, for [`SpeculativeDraws`].
//!
//! Attempt numbers are known before the first draw: firstn tries 0 for its first position, 1 for
//! its second, and so on; indep tries every position once per round. A wrong prediction costs a
//! draw that no step uses, or a later draw of its own; it never changes a result.

use smallvec::SmallVec;

use super::speculate::{DrawKey, SpeculativeDraws};
use crate::mapper::{Choose, Drawer, Mapping, Next};
use crate::{Bucket, BucketId, ItemId, TypeId};

/// Most attempts that are predicted.
const MAX_PREDICTED: usize = 16;
/// Number of items of the first bucket that fill at most one vector.
const CHEAP_ITEMS: usize = 16;

/// The state of a descent, in addition to the key of its draw.
#[derive(Clone, Copy, Default)]
struct Descent {
    /// The number of the first attempt at the position.
    first: u32,
    /// The descent already searches the leaf.
    is_leaf: bool,
}

impl Drawer for SpeculativeDraws<'_> {
    /// Makes the draws that the first attempts of a choose step need, down to the leaves: one
    /// attempt for each position, and one more, for a collision, where it costs little.
    fn begin(
        &self,
        mapping: &Mapping<'_, Self>,
        choose: &Choose<'_>,
        attempts: usize,
        indep: bool,
    ) {
        let is_cheap = (attempts + 1) * choose.bucket.items.len() <= CHEAP_ITEMS;
        let attempts = attempts + usize::from(is_cheap && !indep);
        let mut under_way = attempts.min(MAX_PREDICTED);
        let mut keys = [DrawKey { slot: slot(choose.bucket), r: 0 }; MAX_PREDICTED];
        let mut descents = [Descent::default(); MAX_PREDICTED];
        for ((key, descent), r) in keys.iter_mut().zip(&mut descents).zip(0..) {
            (key.r, descent.first) = (r, r);
        }
        let mut seen: SmallVec<[ItemId; MAX_PREDICTED]> = SmallVec::new();
        let mut indices = [None; MAX_PREDICTED];
        while under_way > 0 {
            self.make(&keys[..under_way], &mut indices);
            // Those that go on move up to the front.
            let mut deeper = 0;
            for at in 0..under_way {
                let next = next_draw(mapping, choose, keys[at], descents[at], indices[at], indep);
                let Some((next, found)) = next else { continue };
                if let Some(item) = found {
                    // A collision: no step searches a leaf below the item.
                    if seen.contains(&item) {
                        continue;
                    }
                    seen.push(item);
                }
                let is_leaf = descents[at].is_leaf || found.is_some();
                descents[deeper] = Descent { is_leaf, ..descents[at] };
                keys[deeper] = next;
                deeper += 1;
            }
            under_way = deeper;
        }
    }

    fn draw(&self, bucket: &Bucket, r: u32) -> Option<usize> {
        self.get(DrawKey { slot: slot(bucket), r })
    }
}

/// The draw after one that gave `index`, if there is one; and the item below which a leaf is
/// looked for, if the search for it begins.
fn next_draw<D: Drawer>(
    mapping: &Mapping<'_, D>,
    choose: &Choose<'_>,
    key: DrawKey,
    descent: Descent,
    index: Option<u32>,
    indep: bool,
) -> Option<(DrawKey, Option<ItemId>)> {
    let bucket = mapping.map.bucket(BucketId(!key.slot as i32))?;
    if bucket.items.is_empty() {
        return None;
    }
    // Draws that the vectors cannot decide are not remembered, so a few draws are made twice.
    let index = match index {
        Some(index) => Some(index as usize),
        None => bucket.draw(mapping.x, key.r, None, 0),
    };
    let kind = if descent.is_leaf { TypeId::DEVICE } else { choose.kind };
    match mapping.next(bucket, index, kind) {
        Next::Bucket(below) => Some((DrawKey { slot: slot(below), ..key }, None)),
        Next::Found(item) if choose.leaf_tries.is_some() && !descent.is_leaf => {
            let below = mapping.map.bucket(item.bucket()?)?;
            let r = match (indep, choose.settings.stable) {
                (true, _) => descent.first.wrapping_add(key.r),
                (false, true) => choose.settings.leaf_r(key.r),
                (false, false) => choose.settings.leaf_r(key.r).wrapping_add(descent.first),
            };
            Some((DrawKey { slot: slot(below), r }, Some(item)))
        }
        Next::Found(_) | Next::Nowhere => None,
    }
}

fn slot(bucket: &Bucket) -> u32 {
    !bucket.id.0 as u32
}
