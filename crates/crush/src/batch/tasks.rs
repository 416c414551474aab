//! What a choose step works on, and what it finds.

use super::simd::{MAX_LANES, Simd};
use crate::ItemId;
use crate::rows::RowsMut;

/// One task per lane and turn: an input, and the bucket to choose below.
pub(crate) struct Tasks<'a> {
    /// Inputs.
    pub(crate) xs: &'a [u32],
    /// Slots of the buckets, one for all or one each.
    pub(crate) slots: OneOrEach<'a>,
    /// Positions to fill, for indep: one number for all or one each.
    pub(crate) lens: OneOrEach<'a>,
}

/// A number for all tasks, or one for each.
#[derive(Clone, Copy)]
pub(crate) enum OneOrEach<'a> {
    One(u32),
    Each(&'a [u32]),
}

impl Tasks<'_> {
    pub(crate) fn len(&self) -> usize {
        self.xs.len()
    }

    #[inline(always)]
    pub(crate) fn slots<S: Simd>(&self, s: S, task: S::U) -> S::U {
        self.slots.get(s, task)
    }

    /// The slot, if it is the same for all.
    pub(crate) fn common_slot(&self) -> Option<u32> {
        match self.slots {
            OneOrEach::One(slot) => Some(slot),
            OneOrEach::Each(_) => None,
        }
    }

    /// At most `room`.
    #[inline(always)]
    pub(crate) fn lens<S: Simd>(&self, s: S, task: S::U, room: usize) -> S::U {
        let len = self.lens.get(s, task);
        let room = s.splat(room as u32);
        s.select(s.lt(len, room), len, room)
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

/// Where to put what is found: one row per task.
pub(crate) struct Found<'a> {
    /// From the start of a row to the start of the next.
    stride: usize,
    /// Most items of a row.
    room: usize,
    items: &'a mut [ItemId],
    lens: &'a mut [u32],
    /// Lanes on their way into rows: tasks, lengths, items.
    lanes: Lanes,
}

struct Lanes {
    tasks: [u32; MAX_LANES],
    lens: [u32; MAX_LANES],
    items: [[u32; MAX_LANES]; super::MAX_POSITIONS],
}

impl<'a> Found<'a> {
    /// Rows of at most `room` items.
    pub(crate) fn new(rows: RowsMut<'a>, room: usize) -> Self {
        let lanes = Lanes {
            tasks: [0; MAX_LANES],
            lens: [0; MAX_LANES],
            items: [[0; MAX_LANES]; super::MAX_POSITIONS],
        };
        let RowsMut { width: stride, items, lens } = rows;
        Self { stride, room, items, lens, lanes }
    }

    pub(crate) fn room(&self) -> usize {
        self.room
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
            let row = &mut self.items[task * self.stride..][..self.room];
            for (to, from) in row.iter_mut().zip(&lanes.items) {
                *to = ItemId(from[lane] as i32);
            }
        }
    }
}
