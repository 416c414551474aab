//! The results of many mappings in one table, without an allocation per mapping.

use std::ops::Range;

use crate::ItemId;

/// One row of items per input. [`ItemId::NONE`] is an empty position. Rows of `firstn` rules have
/// none, and may be shorter than the width.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    width: usize,
    items: Vec<ItemId>,
    lens: Vec<u32>,
}

impl PartialEq for Rows {
    fn eq(&self, other: &Self) -> bool {
        self.width == other.width && self.iter().eq(other.iter())
    }
}

impl Eq for Rows {}

impl Rows {
    /// Room for `rows` rows of at most `width` items. All rows are empty.
    #[must_use]
    pub fn new(rows: usize, width: usize) -> Self {
        Self { width, items: vec![ItemId::NONE; rows * width], lens: vec![0; rows] }
    }

    /// The rows of several tables of the same width, one table after the other.
    #[must_use]
    pub(crate) fn concat(tables: Vec<Self>) -> Self {
        let mut tables = tables.into_iter();
        let mut all = tables.next().unwrap_or_default();
        for table in tables {
            all.items.extend_from_slice(&table.items);
            all.lens.extend_from_slice(&table.lens);
        }
        all
    }

    /// Most items of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// True if there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// The row of the input at `index`.
    #[must_use]
    pub fn row(&self, index: usize) -> &[ItemId] {
        let start = index * self.width;
        &self.items[start..start + self.lens[index] as usize]
    }

    /// All rows, in the order of the inputs.
    pub fn iter(&self) -> impl Iterator<Item = &[ItemId]> {
        (0..self.len()).map(|index| self.row(index))
    }

    /// Sets a row; `items` are at most as many as the width.
    pub(crate) fn set(&mut self, index: usize, items: &[ItemId]) {
        let start = index * self.width;
        self.items[start..start + items.len()].copy_from_slice(items);
        self.lens[index] = items.len() as u32;
    }

    /// Resets the table to that many empty rows.
    pub(crate) fn reset(&mut self, rows: usize, width: usize) {
        self.width = width;
        self.items.resize(rows * width, ItemId::NONE);
        self.lens.clear();
        self.lens.resize(rows, 0);
    }

    /// Appends as many items to a row as there is room for.
    pub(crate) fn append(&mut self, index: usize, items: &[ItemId]) {
        let len = self.lens[index] as usize;
        let room = &mut self.items[index * self.width..][len..self.width];
        let taken = items.len().min(room.len());
        for (to, from) in room.iter_mut().zip(items) {
            *to = *from;
        }
        self.lens[index] += taken as u32;
    }

    /// Some of the rows, to be written.
    pub(crate) fn rows_mut(&mut self, rows: Range<usize>) -> RowsMut<'_> {
        let items = rows.start * self.width..rows.end * self.width;
        RowsMut { width: self.width, items: &mut self.items[items], lens: &mut self.lens[rows] }
    }
}

/// Rows that are being written. Items past the length of a row have no meaning.
pub(crate) struct RowsMut<'a> {
    pub(crate) width: usize,
    pub(crate) items: &'a mut [ItemId],
    pub(crate) lens: &'a mut [u32],
}
