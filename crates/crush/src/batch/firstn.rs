//! The firstn search in every lane.
//!
//! A lane works on one task (an input and a bucket) until its positions are filled, one whole
//! attempt per turn: down to an item of the wanted type and, for chooseleaf, on to a device. When
//! its task is done it takes the next one, so lanes are seldom idle though tasks differ in length.

use super::descend::{Start, descend, is_among, is_device, is_out, lane, put, slot_of};
use super::simd::Simd;
use super::tasks::{Found, Tasks};
use super::{Choose, MAX_POSITIONS, Plan};
use crate::mapper::UNDEFINED;

#[inline(always)]
pub(crate) fn firstn<S: Simd>(
    s: S,
    plan: &Plan<'_>,
    choose: &Choose,
    tasks: &Tasks<'_>,
    found: &mut Found,
) {
    let zero = s.splat(0);
    let undefined = s.splat(lane(UNDEFINED));
    let room = found.room();
    let (mut items, mut leaves) = ([undefined; MAX_POSITIONS], [undefined; MAX_POSITIONS]);
    let (items, leaves) = (&mut items[..room], &mut leaves[..room]);
    let mut live = s.mask(0);
    let mut next_task = 0;
    let common_slot = tasks.common_slot();
    let (mut task, mut x, mut slot) = (zero, zero, zero);
    let (mut rep, mut failures, mut filled) = (zero, zero, zero);
    loop {
        let idle = !s.bits(live) & s.bits(s.eq(zero, zero));
        if idle != 0 && next_task < tasks.len() {
            let fresh = s.mask(first_bits(idle, tasks.len() - next_task));
            task = s.number(fresh, next_task as u32, task);
            next_task += s.bits(fresh).count_ones() as usize;
            x = s.gather(tasks.xs, task);
            slot = tasks.slots(s, task);
            for row in items.iter_mut().chain(leaves.iter_mut()) {
                *row = s.select(fresh, undefined, *row);
            }
            rep = s.select(fresh, zero, rep);
            failures = s.select(fresh, zero, failures);
            filled = s.select(fresh, zero, filled);
            live = s.either(live, fresh);
        }
        if !s.any(live) {
            return;
        }
        let r = s.add(rep, failures);
        let start =
            Start { x, r, r_step: [zero; 2], slot, common_slot, position: filled, asked: live };
        let end = descend(s, plan, start, choose.kind);
        let mut taken = s.without(end.found, is_among(s, items, end.item));
        let device = is_device(s, end.item);
        let mut leaf = end.item;
        if choose.is_leaf {
            let below = s.without(taken, device);
            let got;
            (leaf, got) = leaf_below(s, plan, choose, &start, end.item, filled, leaves, below);
            taken = s.without(taken, s.without(below, got));
        }
        taken = s.without(taken, is_out(s, plan, x, end.item, s.both(taken, device)));

        put(s, items, filled, end.item, taken);
        if choose.is_leaf {
            put(s, leaves, filled, leaf, taken);
        }
        let one = s.splat(1);
        filled = s.add(filled, s.select(taken, one, zero));
        failures = s.add(failures, one);
        let exhausted = s.without(live, s.lt(failures, s.splat(choose.tries)));
        let onwards = s.either(s.either(taken, end.nowhere), exhausted);
        failures = s.select(onwards, zero, failures);
        rep = s.add(rep, s.select(onwards, one, zero));
        let more = s.both(s.lt(rep, s.splat(choose.positions)), s.lt(filled, s.splat(room as u32)));
        let done = s.without(live, more);
        if s.any(done) {
            let rows = if choose.is_leaf { &*leaves } else { &*items };
            found.take(s, task, filled, rows, done);
            live = s.both(live, more);
        }
    }
}

/// A device below each item of `below`, none of `leaves`; and the lanes that got one.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "one state of the search, kept in registers")]
fn leaf_below<S: Simd>(
    s: S,
    plan: &Plan<'_>,
    choose: &Choose,
    outer: &Start<S>,
    item: S::U,
    filled: S::U,
    leaves: &[S::U],
    below: S::M,
) -> (S::U, S::M) {
    let zero = s.splat(0);
    let parent_r = match choose.leaf_shift {
        None => zero,
        Some(shift) => s.shr_by(outer.r, s.splat(shift)),
    };
    let first = if choose.stable { parent_r } else { s.add(parent_r, filled) };
    let slot = s.select(below, slot_of(s, item), outer.slot);
    let (mut leaf, mut got, mut asked) = (item, s.mask(0), below);
    for attempt in 0..choose.leaf_tries {
        if !s.any(asked) {
            break;
        }
        let r = s.add(first, s.splat(attempt));
        let start = Start { r, slot, common_slot: None, asked, ..*outer };
        let end = descend(s, plan, start, 0);
        let fresh = s.without(end.found, is_among(s, leaves, end.item));
        let fresh = s.without(fresh, is_out(s, plan, outer.x, end.item, fresh));
        leaf = s.select(fresh, end.item, leaf);
        got = s.either(got, fresh);
        asked = s.without(s.without(asked, fresh), end.nowhere);
    }
    (leaf, got)
}

/// The lowest `most` bits that are set.
#[inline(always)]
pub(super) fn first_bits(bits: u32, most: usize) -> u32 {
    if bits.count_ones() as usize <= most {
        return bits;
    }
    let mut rest = bits;
    for _ in 0..most {
        rest &= rest - 1;
    }
    bits & !rest
}
