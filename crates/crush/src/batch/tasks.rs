//! The inputs and the results of a choose step.

use super::simd::{MAX_LANES, Simd};
use crate::ItemId;
use crate::rows::RowsMut;

/// The tasks: an input, and the bucket to choose below. A lane works on one task at a time.
pub(crate) struct Tasks<'a> {
    /// Inputs.
    pub(crate) xs: &'a [u32],
    /// Slots of the buckets, one for all or one each.
    pub(crate) slots: OneOrEach<'a>,
    /// Positions to fill, for indep: one number for all or one each.
    pub(crate) lens: OneOrEach<'a>,
}

/// The task of every lane. A lane whose task is done takes the next task, so lanes are seldom idle
/// although tasks differ in length.
pub(crate) struct LaneScheduler<S: Simd> {
    next_task: usize,
    /// Lanes that work.
    pub(crate) live: S::M,
    pub(crate) task: S::U,
    /// The task's input and bucket.
    pub(crate) x: S::U,
    pub(crate) slot: S::U,
}

impl<S: Simd> LaneScheduler<S> {
    #[inline(always)]
    pub(crate) fn new(s: S) -> Self {
        let zero = s.splat(0);
        Self { next_task: 0, live: s.mask(0), task: zero, x: zero, slot: zero }
    }

    /// Gives tasks to lanes without one. Returns those lanes, if there are any.
    #[inline(always)]
    pub(crate) fn refill(&mut self, s: S, tasks: &Tasks<'_>) -> Option<S::M> {
        let zero = s.splat(0);
        let all = s.bits(s.eq(zero, zero));
        let idle = !s.bits(self.live) & all;
        if idle == 0 || self.next_task == tasks.len() {
            return None;
        }
        let fresh = first_bits(idle, tasks.len() - self.next_task);
        self.task = s.number(s.mask(fresh), self.next_task as u32, self.task);
        self.next_task += fresh.count_ones() as usize;
        self.x = s.gather(tasks.xs, self.task);
        self.slot = tasks.slots.get(s, self.task);
        let fresh = s.mask(fresh);
        self.live = s.either(self.live, fresh);
        Some(fresh)
    }
}

/// The lowest `most` set bits.
#[inline(always)]
fn first_bits(bits: u32, most: usize) -> u32 {
    if bits.count_ones() as usize <= most {
        return bits;
    }
    let mut rest = bits;
    for _ in 0..most {
        rest &= rest - 1;
    }
    bits & !rest
}

/// A number for all tasks, or one for each.
#[derive(Clone, Copy)]
pub(crate) enum OneOrEach<'a> {
    One(u32),
    Each(&'a [u32]),
}

impl Tasks<'_> {
    fn len(&self) -> usize {
        self.xs.len()
    }

    /// The slot, if it is the same for all.
    pub(crate) fn common_slot(&self) -> Option<u32> {
        match self.slots {
            OneOrEach::One(slot) => Some(slot),
            OneOrEach::Each(_) => None,
        }
    }

    /// The positions to fill, at most `max_items`.
    #[inline(always)]
    pub(crate) fn lens<S: Simd>(&self, s: S, task: S::U, max_items: usize) -> S::U {
        let len = self.lens.get(s, task);
        let max_items = s.splat(max_items as u32);
        s.select(s.lt(len, max_items), len, max_items)
    }
}

impl<'a> OneOrEach<'a> {
    /// The numbers, as one if they are all the same.
    pub(crate) fn of(values: &'a [u32]) -> Self {
        match values {
            [first, rest @ ..] if rest.iter().all(|value| value == first) => Self::One(*first),
            _ => Self::Each(values),
        }
    }

    #[inline(always)]
    fn get<S: Simd>(self, s: S, task: S::U) -> S::U {
        match self {
            Self::One(value) => s.splat(value),
            Self::Each(values) => s.gather(values, task),
        }
    }
}

/// The tables of selected items: one row per task.
pub(crate) struct SelectedItems<'a> {
    /// Distance from the start of a row to the start of the next.
    stride: usize,
    /// Most items of a row.
    max_items: usize,
    items: &'a mut [ItemId],
    lens: &'a mut [u32],
    /// Lanes that are being written into rows: tasks, lengths, items.
    lanes: Lanes,
}

struct Lanes {
    tasks: [u32; MAX_LANES],
    lens: [u32; MAX_LANES],
    items: [[u32; MAX_LANES]; super::MAX_POSITIONS],
}

impl<'a> SelectedItems<'a> {
    /// Rows of at most `max_items` items.
    pub(crate) fn new(rows: RowsMut<'a>, max_items: usize) -> Self {
        let lanes = Lanes {
            tasks: [0; MAX_LANES],
            lens: [0; MAX_LANES],
            items: [[0; MAX_LANES]; super::MAX_POSITIONS],
        };
        let RowsMut { width: stride, items, lens } = rows;
        Self { stride, max_items, items, lens, lanes }
    }

    pub(crate) fn max_items(&self) -> usize {
        self.max_items
    }

    /// Takes the rows of the lanes in `done`.
    #[inline(always)]
    pub(crate) fn take<S: Simd>(&mut self, s: S, task: S::U, len: S::U, rows: &[S::U], done: S::M) {
        let lanes = &mut self.lanes;
        s.store(task, &mut lanes.tasks);
        s.store(len, &mut lanes.lens);
        for (to, &row) in lanes.items.iter_mut().zip(rows) {
            s.store(row, to);
        }
        let mut bits = s.bits(done);
        while bits != 0 {
            let lane = bits.trailing_zeros() as usize % MAX_LANES;
            bits &= bits - 1;
            let task = lanes.tasks[lane] as usize;
            self.lens[task] = lanes.lens[lane];
            let row = &mut self.items[task * self.stride..][..self.max_items];
            for (to, from) in row.iter_mut().zip(&lanes.items) {
                *to = ItemId(from[lane] as i32);
            }
        }
    }
}
