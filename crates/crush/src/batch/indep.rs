//! The indep search in every lane. As in [firstn](super::firstn), a lane makes one attempt at one
//! position per iteration. Each lane has a bit set of its open positions. A lane goes on to the
//! next open position, and after the last one to the next round.

use super::descend::{Descend, End, Start, is_among, is_device, is_out, lane, put, slot_of};
use super::simd::Simd;
use super::tasks::{LaneScheduler, SelectedItems, Tasks};
use super::{BatchParams, Choose, MAX_POSITIONS};
use crate::mapper::{NONE, UNDEFINED};

#[inline(always)]
pub(crate) fn indep<S: Descend>(
    s: S,
    params: &BatchParams<'_>,
    choose: &Choose,
    tasks: &Tasks<'_>,
    mut selected: SelectedItems<'_>,
) {
    let (zero, one) = (s.splat(0), s.splat(1));
    let (undefined, none) = (s.splat(lane(UNDEFINED)), s.splat(lane(NONE)));
    let max_items = selected.max_items();
    let (mut items, mut leaves) = ([undefined; MAX_POSITIONS], [none; MAX_POSITIONS]);
    let (items, leaves) = (&mut items[..max_items], &mut leaves[..max_items]);
    let mut scheduler = LaneScheduler::new(s);
    let common_slot = tasks.common_slot();
    let (mut position, mut round, mut open, mut len) = (zero, zero, zero, zero);
    loop {
        if let Some(fresh) = scheduler.refill(s, tasks) {
            for row in items.iter_mut() {
                *row = s.select(fresh, undefined, *row);
            }
            for row in leaves.iter_mut() {
                *row = s.select(fresh, none, *row);
            }
            len = s.select(fresh, tasks.lens(s, scheduler.task, max_items), len);
            open = s.select(fresh, s.sub(s.shl_by(one, len), one), open);
            position = s.select(fresh, zero, position);
            round = s.select(fresh, zero, round);
        }
        let (live, x, slot) = (scheduler.live, scheduler.x, scheduler.slot);
        if !s.any(live) {
            return;
        }
        let r_step = steps(s, choose, round);
        let start =
            Start { x, r: position, r_step, slot, common_slot, position: zero, asked: live };
        let end = s.descend(params, &start, choose.kind);
        let mut taken = s.without(end.found, is_among(s, items, end.item));
        let device = is_device(s, end.item);
        if choose.is_leaf {
            let below = s.without(taken, device);
            let (leaf, got) = leaf_below(s, params, choose, &start, &end, below);
            let leaf = s.select(s.without(below, got), none, leaf);
            put(s, leaves, position, leaf, taken);
            taken = s.without(taken, s.without(below, got));
        }
        taken = s.without(taken, is_out(s, params, x, end.item, s.both(taken, device)));

        put(s, items, position, end.item, taken);
        put(s, items, position, none, end.nowhere);
        if choose.is_leaf {
            put(s, leaves, position, none, end.nowhere);
        }
        let bit = s.shl_by(one, position);
        let closed = s.select(s.either(taken, end.nowhere), bit, zero);
        open = s.xor(open, closed);
        // The bits above the position: those that are not set in bit + bit - 1.
        let above = s.xor(s.sub(s.add(bit, bit), one), s.splat(u32::MAX));
        let later = s.and(open, above);
        let wraps = s.eq(later, zero);
        round = s.add(round, s.select(wraps, one, zero));
        let rest = s.select(wraps, open, later);
        position = lowest_bit(s, rest);
        let ended = s.either(s.eq(open, zero), s.without(live, s.lt(round, s.splat(choose.tries))));
        let done = s.both(live, ended);
        if s.any(done) {
            for row in items.iter_mut() {
                *row = s.select(s.both(done, s.eq(*row, undefined)), none, *row);
            }
            let rows = if choose.is_leaf { &*leaves } else { &*items };
            selected.take(s, scheduler.task, len, rows, done);
            scheduler.live = s.without(live, done);
        }
    }
}

/// The number that a round adds to r, in ordinary and in stretched buckets.
#[inline(always)]
fn steps<S: Simd>(s: S, choose: &Choose, round: S::U) -> [S::U; 2] {
    let step = s.mul(round, s.splat(choose.positions));
    [step, s.add(step, round)]
}

/// The number of the lowest set bit, for numbers below 2^24: the exponent of that bit.
#[inline(always)]
fn lowest_bit<S: Simd>(s: S, bits: S::U) -> S::U {
    let lowest = s.and(bits, s.sub(s.splat(0), bits));
    let exponent = s.shr::<23>(s.float_to_bits(s.float(lowest)));
    // Without a set bit there is no exponent. Such a lane is done, so any position will do.
    let number = s.sub(exponent, s.splat(127));
    s.select(s.lt(number, s.splat(24)), number, s.splat(0))
}

/// A device below each item of `below`, and the lanes that found one.
#[inline(always)]
fn leaf_below<S: Descend>(
    s: S,
    params: &BatchParams<'_>,
    choose: &Choose,
    outer: &Start<S>,
    outer_end: &End<S>,
    below: S::M,
) -> (S::U, S::M) {
    let item = outer_end.item;
    let position = outer.r;
    let slot = s.select(below, slot_of(s, item), outer.slot);
    let (mut leaf, mut got, mut asked) = (item, s.mask(0), below);
    for attempt in 0..choose.leaf_tries {
        if !s.any(asked) {
            break;
        }
        // The position enters r twice: once here, and once in the outer r.
        let start = Start {
            x: outer.x,
            r: s.add(position, outer_end.r),
            r_step: steps(s, choose, s.splat(attempt)),
            slot,
            common_slot: None,
            position,
            asked,
        };
        let end = s.descend(params, &start, 0);
        let fresh = s.without(end.found, is_out(s, params, outer.x, end.item, end.found));
        leaf = s.select(fresh, end.item, leaf);
        got = s.either(got, fresh);
        asked = s.without(s.without(asked, fresh), end.nowhere);
    }
    (leaf, got)
}
