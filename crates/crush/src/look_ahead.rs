//! Which draws a choose step will want: the foresight of [`Ahead`].
//!
//! Attempt numbers are known before anything is drawn: firstn tries 0 for its first position, 1 for
//! its second, and so on; indep tries every position once per round. A foresight that fails costs a
//! draw that nobody asks for, or one that is made later; it never changes a result.

use smallvec::SmallVec;

use crate::batch::ahead::{Ahead, Wanted};
use crate::mapper::{Choose, Next, Run};
use crate::{Bucket, BucketId, ItemId, TypeId};

/// Most attempts that are looked up ahead.
const MAX_AHEAD: usize = 16;
/// Items of the first bucket that fill no more than a vector.
const CHEAP_ITEMS: usize = 16;

/// A descent under way.
#[derive(Clone, Copy)]
struct Descent {
    /// The bucket it has come to, and its attempt number.
    wanted: Wanted,
    /// The attempt at the position.
    first: u32,
    /// It looks for the leaf already.
    is_leaf: bool,
}

impl Run<'_> {
    /// Makes the draws that the first attempts of a choose step will want, down to the leaves: one
    /// attempt for each position, and one more, for a collision, where it costs little.
    pub(crate) fn look_ahead(
        &self,
        ahead: &Ahead<'_>,
        choose: &Choose<'_>,
        attempts: usize,
        indep: bool,
    ) {
        let slot = |bucket: &Bucket| !bucket.id.0 as u32;
        let is_cheap = (attempts + 1) * choose.bucket.items.len() <= CHEAP_ITEMS;
        let attempts = attempts + usize::from(is_cheap && !indep);
        let mut descents: SmallVec<[Descent; 16]> = (0..attempts.min(MAX_AHEAD) as u32)
            .map(|r| Descent {
                wanted: Wanted { slot: slot(choose.bucket), r },
                first: r,
                is_leaf: false,
            })
            .collect();
        let mut seen: SmallVec<[ItemId; 16]> = SmallVec::new();
        while !descents.is_empty() {
            let mut wanted = [Wanted::default(); MAX_AHEAD];
            for (wanted, at) in wanted.iter_mut().zip(&descents) {
                *wanted = at.wanted;
            }
            let mut indices = [None; MAX_AHEAD];
            ahead.make(&wanted[..descents.len()], &mut indices);
            let mut deeper = SmallVec::new();
            for (&at, index) in descents.iter().zip(indices) {
                let bucket = self.map.bucket(BucketId(!at.wanted.slot as i32));
                let Some(bucket) = bucket.filter(|bucket| !bucket.items.is_empty()) else {
                    continue;
                };
                // What vectors cannot tell is not remembered; few draws are made twice for it.
                let index = match index {
                    Some(index) => Some(index as usize),
                    None => bucket.draw(self.x, at.wanted.r, None, 0),
                };
                let kind = if at.is_leaf { TypeId::DEVICE } else { choose.kind };
                match self.next(bucket, index, kind) {
                    Next::Bucket(below) => {
                        let wanted = Wanted { slot: slot(below), ..at.wanted };
                        deeper.push(Descent { wanted, ..at });
                    }
                    Next::Found(item) if choose.leaf_tries.is_some() && !at.is_leaf => {
                        let below = item.bucket().and_then(|id| self.map.bucket(id));
                        let Some(below) = below.filter(|_| !seen.contains(&item)) else { continue };
                        seen.push(item);
                        let r = match (indep, choose.settings.stable) {
                            (true, _) => at.first.wrapping_add(at.wanted.r),
                            (false, true) => choose.settings.leaf_r(at.wanted.r),
                            (false, false) => choose.settings.leaf_r(at.wanted.r) + at.first,
                        };
                        let wanted = Wanted { slot: slot(below), r };
                        deeper.push(Descent { wanted, is_leaf: true, ..at });
                    }
                    Next::Found(_) | Next::Nowhere => {}
                }
            }
            descents = deeper;
        }
    }
}
