//! Multi-step-retry rules (Ceph 19 and later).
//!
//! An ordinary rule first chooses hosts, and then several devices in each. It cannot choose another
//! host when all devices of one are out. A multi-step-retry rule can: it fills the result in
//! passes, and every pass descends the whole tree again for the positions that are still open.
//!
//! A rule is a number of blocks `take, choosemsr..., emit`. The product of the counts of a block's
//! steps is the number of positions that the block fills. Each step cuts its range of positions
//! into *strides*, one per item that it chooses: with
//! `choosemsr 4 type host, choosemsr 2 type osd`, host stride 0 is positions 0 and 1. Every step
//! remembers the chosen items by position, so a later pass finds the items that a stride has used.
//! A candidate may be taken unless another stride of the same range has it. If the mapper places no
//! device below a newly chosen bucket, it undoes the choice after it has done all strides.
//!
//! **Traps.** The stride's number, which enters the draws, restarts at 0 in every recursion. The
//! last step alone decides whether a stride is full. Where Ceph would fail an assertion (an empty
//! bucket, a device where a bucket is wanted), a draw here finds no item. Where Ceph would repeat
//! for ever (a block `take DEVICE, emit`), the device is emitted once here.

use std::ops::Range;

use crate::mapper::{Drawer, Mapping, NONE};
use crate::rule::{Rule, RuleKind, RuleStep};
use crate::{Bucket, ItemId, TypeId};

/// One `choosemsr` step.
#[derive(Clone, Copy)]
struct Level {
    /// Items per range, and so strides.
    count: usize,
    kind: TypeId,
}

/// Runs a rule of one of the two kinds. A rule of another shape than the blocks above gives
/// nothing.
pub(crate) fn run<D: Drawer>(mapping: &Mapping<'_, D>, rule: &Rule) -> Vec<ItemId> {
    let tunables = mapping.map.tunables();
    let (mut descents, mut collision_tries) = (tunables.msr_descents, tunables.msr_collision_tries);
    let mut steps = rule.steps.as_slice();
    while let [first, rest @ ..] = steps {
        match *first {
            RuleStep::SetMsrDescents(n) => descents = n.max(0) as u32,
            RuleStep::SetMsrCollisionTries(n) => collision_tries = n.max(0) as u32,
            _ => break,
        }
        steps = rest;
    }
    let Some(blocks) = blocks(steps, mapping.width) else { return Vec::new() };
    let indep = rule.kind == RuleKind::MsrIndep;
    let mut output =
        Output { items: if indep { vec![NONE; mapping.width] } else { Vec::new() }, indep };
    let mut start = 0;
    for (taken, levels) in blocks {
        if levels.is_empty() {
            if taken.osd().is_some() && start < mapping.width {
                output.put(start, taken);
                start += 1;
            }
            continue;
        }
        let total = levels.iter().fold(1usize, |total, level| total.saturating_mul(level.count));
        let end = start.saturating_add(total).min(mapping.width);
        let bucket = taken.bucket().and_then(|id| mapping.map.bucket(id));
        if let Some(bucket) = bucket {
            let chosen = vec![vec![None; end - start]; levels.len()];
            let mut block = RuleBlock {
                mapping,
                levels: &levels,
                start,
                collision_tries,
                chosen,
                open: end - start,
                output: &mut output,
            };
            for pass in 0..descents {
                if block.open == 0 {
                    break;
                }
                block.fill(bucket, total, start..end, 0, pass);
            }
        }
        start = end;
    }
    output.items
}

/// The item that each block takes, and its levels; `None` if the steps are not blocks.
fn blocks(mut steps: &[RuleStep], width: usize) -> Option<Vec<(ItemId, Vec<Level>)>> {
    let mut blocks = Vec::new();
    while let [first, rest @ ..] = steps {
        let RuleStep::Take(taken) = *first else { return None };
        let emit = rest.iter().position(|step| *step == RuleStep::Emit)?;
        let level = |step: &RuleStep| match *step {
            RuleStep::ChooseMsr { count: 0, kind } => Some(Level { count: width, kind }),
            RuleStep::ChooseMsr { count, kind } => {
                Some(Level { count: usize::try_from(count).ok()?, kind })
            }
            _ => None,
        };
        blocks.push((taken, rest[..emit].iter().map(level).collect::<Option<_>>()?));
        steps = &rest[emit + 1..];
    }
    Some(blocks)
}

/// The result so far: positions for indep, a growing list for firstn.
struct Output {
    items: Vec<ItemId>,
    indep: bool,
}

impl Output {
    fn put(&mut self, position: usize, item: ItemId) {
        if self.indep {
            self.items[position] = item;
        } else {
            self.items.push(item);
        }
    }
}

/// A block that is being filled.
struct RuleBlock<'a, D> {
    mapping: &'a Mapping<'a, D>,
    levels: &'a [Level],
    /// Its first position.
    start: usize,
    collision_tries: u32,
    /// The items that each level has chosen, by position from `start` on.
    chosen: Vec<Vec<Option<ItemId>>>,
    /// Positions that are not filled yet.
    open: usize,
    output: &'a mut Output,
}

impl<D: Drawer> RuleBlock<'_, D> {
    /// Fills the open positions of `range` with items below `bucket`, at `level` and below, in pass
    /// `pass`. `total` is the length of the range before the width cut it. Returns how many
    /// positions were filled.
    fn fill(
        &mut self,
        bucket: &Bucket,
        total: usize,
        range: Range<usize>,
        level: usize,
        pass: u32,
    ) -> usize {
        let Level { count, kind } = self.levels[level];
        let stride_len = (total / count).max(1);
        let mut filled = 0;
        let mut undo = Vec::new();
        for (number, at) in range.clone().step_by(stride_len).enumerate() {
            let stride = at..(at + stride_len).min(range.end);
            let last = &self.chosen[self.levels.len() - 1];
            if last[self.relative(&stride)].iter().all(Option::is_some) {
                continue;
            }
            let Some(item) = self.draw(bucket, &range, &stride, level, number, pass) else {
                continue;
            };
            if kind == TypeId::DEVICE {
                let fits = stride_len == 1 && level + 1 == self.levels.len();
                if fits && item.osd().is_some_and(|osd| !self.mapping.is_out(osd)) {
                    self.chosen[level][at - self.start] = Some(item);
                    self.output.put(at, item);
                    self.open -= 1;
                    filled += 1;
                }
                continue;
            }
            let below = item.bucket().and_then(|id| self.mapping.map.bucket(id));
            let (Some(below), true) = (below, level + 1 < self.levels.len()) else { continue };
            let below_filled = self.fill(below, stride_len, stride.clone(), level + 1, pass);
            if self.remember(level, &stride, item) && below_filled == 0 {
                undo.push(stride);
            }
            filled += below_filled;
        }
        for stride in undo {
            let relative = self.relative(&stride);
            let chosen = &mut self.chosen[level][relative];
            if let Some(last) = chosen.iter_mut().rev().find(|item| item.is_some()) {
                *last = None;
            }
        }
        filled
    }

    /// An item that no other stride of the range has chosen at this level.
    fn draw(
        &self,
        bucket: &Bucket,
        range: &Range<usize>,
        stride: &Range<usize>,
        level: usize,
        number: usize,
        pass: u32,
    ) -> Option<ItemId> {
        let chosen = &self.chosen[level][self.relative(range)];
        let base = pass.wrapping_mul(self.mapping.width as u32).wrapping_add(number as u32) << 16;
        (0..self.collision_tries).find_map(|local| {
            let r = base.wrapping_add(local);
            let item = self.descend(bucket, r, number, self.levels[level].kind)?;
            let used = chosen.iter().position(|&used| used == Some(item));
            used.is_none_or(|used| stride.contains(&(range.start + used))).then_some(item)
        })
    }

    /// Descends to an item of type `kind`, or a device.
    fn descend(&self, top: &Bucket, r: u32, position: usize, kind: TypeId) -> Option<ItemId> {
        let mut bucket = top;
        loop {
            if bucket.items.is_empty() {
                return None;
            }
            let index = self.mapping.draw(bucket, r, position)?;
            let item = bucket.items[index];
            let Some(id) = item.bucket() else { return Some(item) };
            bucket = self.mapping.map.bucket(id)?;
            if bucket.kind == kind {
                return Some(item);
            }
        }
    }

    /// Remembers that a stride has chosen `item`. True if the item is new for the stride.
    fn remember(&mut self, level: usize, stride: &Range<usize>, item: ItemId) -> bool {
        let relative = self.relative(stride);
        for slot in &mut self.chosen[level][relative] {
            match *slot {
                Some(known) if known == item => return false,
                Some(_) => {}
                None => {
                    *slot = Some(item);
                    return true;
                }
            }
        }
        false
    }

    fn relative(&self, range: &Range<usize>) -> Range<usize> {
        range.start - self.start..range.end - self.start
    }
}
