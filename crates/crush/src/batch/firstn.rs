//! The firstn search in every lane.
//!
//! A lane works on one task (an input and a bucket) until its positions are filled. In each
//! iteration it makes one whole attempt: down to an item of the wanted type and, for chooseleaf, on
//! to a device.

use super::descend::{Descend, Start, is_among, is_device, is_out, lane, put, slot_of};
use super::tasks::{LaneScheduler, SelectedItems, Tasks};
use super::{BatchParams, Choose, MAX_POSITIONS};
use crate::mapper::UNDEFINED;

#[inline(always)]
pub(crate) fn firstn<S: Descend>(
    s: S,
    params: &BatchParams<'_>,
    choose: &Choose,
    tasks: &Tasks<'_>,
    mut selected: SelectedItems<'_>,
) {
    let zero = s.splat(0);
    let undefined = s.splat(lane(UNDEFINED));
    let max_items = selected.max_items();
    let (mut items, mut leaves) = ([undefined; MAX_POSITIONS], [undefined; MAX_POSITIONS]);
    let (items, leaves) = (&mut items[..max_items], &mut leaves[..max_items]);
    let mut scheduler = LaneScheduler::new(s);
    let common_slot = tasks.common_slot();
    let (mut rep, mut failures, mut filled) = (zero, zero, zero);
    loop {
        if let Some(fresh) = scheduler.refill(s, tasks) {
            for row in items.iter_mut().chain(leaves.iter_mut()) {
                *row = s.select(fresh, undefined, *row);
            }
            rep = s.select(fresh, zero, rep);
            failures = s.select(fresh, zero, failures);
            filled = s.select(fresh, zero, filled);
        }
        let (live, x, slot) = (scheduler.live, scheduler.x, scheduler.slot);
        if !s.any(live) {
            return;
        }
        let r = s.add(rep, failures);
        let start =
            Start { x, r, r_step: [zero; 2], slot, common_slot, position: filled, asked: live };
        let end = s.descend(params, &start, choose.kind);
        let mut taken = s.without(end.found, is_among(s, items, end.item));
        let device = is_device(s, end.item);
        let mut leaf = end.item;
        if choose.is_leaf {
            let below = s.without(taken, device);
            let got;
            (leaf, got) = leaf_below(s, params, choose, &start, end.item, leaves, below);
            taken = s.without(taken, s.without(below, got));
        }
        taken = s.without(taken, is_out(s, params, x, end.item, s.both(taken, device)));

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
        let more =
            s.both(s.lt(rep, s.splat(choose.positions)), s.lt(filled, s.splat(max_items as u32)));
        let done = s.without(live, more);
        if s.any(done) {
            let rows = if choose.is_leaf { &*leaves } else { &*items };
            selected.take(s, scheduler.task, filled, rows, done);
            scheduler.live = s.both(live, more);
        }
    }
}

/// For each item of `below`, a device below it that is not in `leaves`; and the lanes that found
/// one. The outer position is the number of items found so far.
#[inline(always)]
fn leaf_below<S: Descend>(
    s: S,
    params: &BatchParams<'_>,
    choose: &Choose,
    outer: &Start<S>,
    item: S::U,
    leaves: &[S::U],
    below: S::M,
) -> (S::U, S::M) {
    let zero = s.splat(0);
    let parent_r = match choose.leaf_shift {
        None => zero,
        Some(shift) => s.shr_by(outer.r, s.splat(shift)),
    };
    let first = if choose.stable { parent_r } else { s.add(parent_r, outer.position) };
    let slot = s.select(below, slot_of(s, item), outer.slot);
    let (mut leaf, mut got, mut asked) = (item, s.mask(0), below);
    for attempt in 0..choose.leaf_tries {
        if !s.any(asked) {
            break;
        }
        let r = s.add(first, s.splat(attempt));
        let start = Start { r, slot, common_slot: None, asked, ..*outer };
        let end = s.descend(params, &start, 0);
        let fresh = s.without(end.found, is_among(s, leaves, end.item));
        let fresh = s.without(fresh, is_out(s, params, outer.x, end.item, fresh));
        leaf = s.select(fresh, end.item, leaf);
        got = s.either(got, fresh);
        asked = s.without(s.without(asked, fresh), end.nowhere);
    }
    (leaf, got)
}
