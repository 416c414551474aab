//! From a bucket down to an item of the wanted type, in every lane.

use super::draw::{DrawInput, draw};
use super::simd::{MAX_LANES, Simd};
use super::{BatchParams, hash};
use crate::{ItemId, WEIGHT_ONE};

/// The start of every lane, and its parameters for draws.
#[derive(Clone, Copy)]
pub(crate) struct Start<S: Simd> {
    pub(crate) x: S::U,
    /// The attempt number, without the part that depends on the bucket.
    pub(crate) r: S::U,
    /// The number added to `r`: in ordinary buckets, and in stretched ones ([`BatchParams`]).
    pub(crate) r_step: [S::U; 2],
    /// The bucket.
    pub(crate) slot: S::U,
    /// The slot, if all lanes start in the same bucket.
    pub(crate) common_slot: Option<u32>,
    pub(crate) position: S::U,
    pub(crate) asked: S::M,
}

/// The result in every lane that was asked: an item, nowhere (a device instead of a bucket), or, if
/// neither is set, an empty bucket.
#[derive(Clone, Copy)]
pub(crate) struct End<S: Simd> {
    pub(crate) item: S::U,
    pub(crate) found: S::M,
    pub(crate) nowhere: S::M,
    /// The attempt number in the last bucket.
    pub(crate) r: S::U,
}

/// The descent as a separate function for each instruction set. The searches call it in four
/// places. If it were inlined there, it would be most of the program.
pub(crate) trait Descend: Simd {
    /// Descends to items of type `kind`.
    fn descend(self, params: &BatchParams<'_>, start: &Start<Self>, kind: u32) -> End<Self>;
}

/// The body of [`Descend::descend`].
#[inline(always)]
pub(crate) fn descend<S: Simd>(
    s: S,
    params: &BatchParams<'_>,
    start: &Start<S>,
    kind: u32,
) -> End<S> {
    let tables = params.tables;
    let kind = s.splat(kind);
    let mut end = End { item: s.splat(0), found: s.mask(0), nowhere: s.mask(0), r: start.r };
    let (mut slot, mut asked) = (start.slot, start.asked);
    let mut common = start.common_slot.map(|slot| tables.bucket[slot as usize]);
    loop {
        let (first, size) = match common {
            Some([first, size]) => (s.splat(first), s.splat(size)),
            None => s.pairs(&tables.bucket, slot),
        };
        asked = s.without(asked, s.eq(size, s.splat(0)));
        if !s.any(asked) {
            return end;
        }
        let mut step = start.r_step[0];
        if let Some(stretched) = params.stretched {
            let stretched = s.eq(s.gather(stretched, slot), s.splat(1));
            step = s.select(stretched, start.r_step[1], step);
        }
        let r = s.add(start.r, step);
        let zero = s.splat(0);
        let input = DrawInput {
            x: start.x,
            r,
            slot,
            first: s.select(asked, first, zero),
            size: s.select(asked, size, zero),
            common: common.take(),
            position: start.position,
            asked,
        };
        let mut drawn = draw(s, tables, input);
        if s.any(drawn.doubtful) {
            let nothing;
            (drawn.index, nothing) = decide(s, params, input, drawn.index, drawn.doubtful);
            end.nowhere = s.either(end.nowhere, nothing);
            asked = s.without(asked, nothing);
        }
        let (item, item_kind) = s.pairs(&tables.item, s.add(input.first, drawn.index));
        let wanted = s.eq(item_kind, kind);
        let found = s.both(asked, wanted);
        end.item = s.select(found, item, end.item);
        end.r = s.select(found, r, end.r);
        end.found = s.either(end.found, found);
        asked = s.without(asked, wanted);
        let nowhere = s.both(asked, is_device(s, item));
        end.nowhere = s.either(end.nowhere, nowhere);
        asked = s.without(asked, nowhere);
        slot = s.select(asked, slot_of(s, item), slot);
    }
}

/// The plain mapper's answer for doubtful lanes, and the lanes in which it draws no item.
#[inline(never)]
fn decide<S: Simd>(
    s: S,
    params: &BatchParams<'_>,
    input: DrawInput<S>,
    index: S::U,
    doubtful: S::M,
) -> (S::U, S::M) {
    let mut lanes = [[0; MAX_LANES]; 5];
    let [xs, rs, slots, positions, indices] = &mut lanes;
    s.store(input.x, xs);
    s.store(input.r, rs);
    s.store(input.slot, slots);
    s.store(input.position, positions);
    s.store(index, indices);
    let mut nothing = 0;
    let mut bits = s.bits(doubtful);
    while bits != 0 {
        let lane = bits.trailing_zeros() as usize;
        bits &= bits - 1;
        match params.choose(xs[lane], rs[lane], slots[lane], positions[lane]) {
            Some(index) => indices[lane] = index as u32,
            None => nothing |= 1 << lane,
        }
    }
    (s.load(indices), s.mask(nothing))
}

/// Lanes whose item is a device.
#[inline(always)]
pub(crate) fn is_device<S: Simd>(s: S, item: S::U) -> S::M {
    s.lt(item, s.splat(1 << 31))
}

/// The slots of items that are buckets.
#[inline(always)]
pub(crate) fn slot_of<S: Simd>(s: S, item: S::U) -> S::U {
    s.xor(item, s.splat(u32::MAX))
}

/// The lanes of `asked` whose device is out, as in the plain mapper. All their items are devices.
#[inline(always)]
pub(crate) fn is_out<S: Simd>(
    s: S,
    params: &BatchParams<'_>,
    x: S::U,
    item: S::U,
    asked: S::M,
) -> S::M {
    if params.all_in || !s.any(asked) {
        return s.mask(0);
    }
    let device = s.select(asked, item, s.splat(0));
    let weight = s.gather(params.weights, device);
    let fractional = s.both(asked, s.lt(weight, s.splat(WEIGHT_ONE)));
    if !s.any(fractional) {
        return fractional;
    }
    // A device of weight 0 is out, too, because no hash is below 0.
    let hash = s.and(hash::hash2(s, x, item), s.splat(0xffff));
    s.without(fractional, s.lt(hash, weight))
}

/// Lanes whose item is in one of `rows`.
#[inline(always)]
pub(crate) fn is_among<S: Simd>(s: S, rows: &[S::U], item: S::U) -> S::M {
    let mut found = s.mask(0);
    for &row in rows {
        found = s.either(found, s.eq(row, item));
    }
    found
}

/// Writes `value` into row `number`, in the lanes of `mask`.
#[inline(always)]
pub(crate) fn put<S: Simd>(s: S, rows: &mut [S::U], number: S::U, value: S::U, mask: S::M) {
    for (row, at) in rows.iter_mut().zip(0..) {
        let here = s.both(mask, s.eq(number, s.splat(at)));
        *row = s.select(here, value, *row);
    }
}

/// The value of an item in a lane.
pub(crate) const fn lane(item: ItemId) -> u32 {
    item.0 as u32
}
