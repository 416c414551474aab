//! The permitted results of reads, cell by cell.
//!
//! The device is cut into cells. Every request covers whole cells, and a write fills its cells with
//! its own tag. So a value names its write, and a torn cell shows. Per cell the oracle keeps the
//! values that it may hold now and the changes in flight:
//!
//! - a change that completes leaves its own value, or that of a change that completed while it was
//!   in flight (both orders are right);
//! - a change that fails leaves its value or the old value;
//! - a read may give the cell's value at its submission, or the value of any change that was in
//!   flight at some time since. If there was no such change, the value is settled from then on.

use std::collections::BTreeMap;

use fieldstone_block::{Op, Request, RequestId};

/// A value of a cell: the tag of the write, or 0 for zeroes.
pub type Tag = u32;

#[derive(Clone, Default)]
struct Cell {
    /// The values that the cell may hold if no change in flight has taken effect.
    may_hold: Vec<Tag>,
    /// Changes in flight: request and value.
    in_flight: Vec<(RequestId, Tag)>,
    /// Reads in flight, each with its permitted values so far and whether a change interfered.
    reads: Vec<(RequestId, Vec<Tag>, bool)>,
    /// For each change in flight, the values of changes that completed meanwhile.
    meanwhile: Vec<(RequestId, Tag)>,
}

/// The model of the device.
pub struct Oracle {
    cell_bytes: u32,
    cells: Vec<Cell>,
    ranges: BTreeMap<RequestId, (Op, std::ops::Range<usize>)>,
    /// A trim has to zero only whole blocks of this size.
    trim_cells: usize,
}

/// The tag of a cell.
fn tag_at(bytes: &[u8], cell: usize, cell_bytes: u32) -> Tag {
    let at = cell * cell_bytes as usize;
    Tag::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn add(values: &mut Vec<Tag>, value: Tag) {
    if !values.contains(&value) {
        values.push(value);
    }
}

impl Oracle {
    pub fn new(cells: usize, cell_bytes: u32, trim_bytes: u32) -> Self {
        let cell = Cell { may_hold: vec![0], ..Cell::default() };
        Oracle {
            cell_bytes,
            cells: vec![cell; cells],
            ranges: BTreeMap::new(),
            trim_cells: (trim_bytes / cell_bytes).max(1) as usize,
        }
    }

    /// Notes that `request` was submitted; a write carries `tag`.
    pub fn submitted(&mut self, request: &Request, tag: Tag) {
        let first = (request.offset_bytes / u64::from(self.cell_bytes)) as usize;
        let end = first + (request.len_bytes / self.cell_bytes) as usize;
        self.ranges.insert(request.id, (request.op, first..end));
        for cell in &mut self.cells[first..end] {
            match request.op {
                Op::Read => {
                    let mut values = cell.may_hold.clone();
                    let interfered = !cell.in_flight.is_empty();
                    cell.in_flight.iter().for_each(|(_, value)| add(&mut values, *value));
                    cell.reads.push((request.id, values, interfered));
                }
                Op::Write | Op::Trim | Op::WriteZeroes => {
                    cell.in_flight.push((request.id, tag));
                    for (_, values, interfered) in &mut cell.reads {
                        add(values, tag);
                        *interfered = true;
                    }
                }
                Op::Flush | Op::Extents => {}
            }
        }
    }

    /// Notes that a change completed.
    pub fn changed(&mut self, id: RequestId, ok: bool) {
        let (op, range) = self.ranges.remove(&id).unwrap();
        let block = self.trim_cells;
        let whole = range.start.next_multiple_of(block)..range.end - range.end % block;
        for at in range {
            let cell = &mut self.cells[at];
            let slot = cell.in_flight.iter().position(|(other, _)| *other == id).unwrap();
            let (_, value) = cell.in_flight.swap_remove(slot);
            let sure = ok && (op != Op::Trim || whole.contains(&at));
            if sure {
                cell.may_hold.clear();
                for (owner, other) in &cell.meanwhile {
                    if *owner == id {
                        add(&mut cell.may_hold, *other);
                    }
                }
            }
            add(&mut cell.may_hold, value);
            cell.meanwhile.retain(|(owner, _)| *owner != id);
            // The other changes in flight may take effect before this one.
            for (other, _) in &cell.in_flight {
                if !cell.meanwhile.contains(&(*other, value)) {
                    cell.meanwhile.push((*other, value));
                }
            }
        }
    }

    /// Checks the bytes of a read; `None` when the read failed.
    pub fn read(&mut self, id: RequestId, bytes: Option<&[u8]>) -> Result<(), String> {
        let (_, range) = self.ranges.remove(&id).unwrap();
        let first = range.start;
        if let Some(bytes) = bytes {
            let expected = range.len() * self.cell_bytes as usize;
            if bytes.len() != expected {
                return Err(format!("{} bytes instead of {expected}", bytes.len()));
            }
        }
        for at in range {
            let cell = &mut self.cells[at];
            let slot = cell.reads.iter().position(|(other, ..)| *other == id).unwrap();
            let (_, allowed, interfered) = cell.reads.swap_remove(slot);
            let Some(bytes) = bytes else { continue };
            let from = (at - first) * self.cell_bytes as usize;
            let held = &bytes[from..from + self.cell_bytes as usize];
            let tag = Tag::from_le_bytes(held[..4].try_into().unwrap());
            if held.chunks_exact(4).any(|chunk| chunk != &held[..4]) {
                return Err(format!("cell {at} is torn"));
            }
            if !allowed.contains(&tag) {
                return Err(format!("cell {at} gave {tag}, which is none of {allowed:?}"));
            }
            if !interfered {
                cell.may_hold.clear();
                cell.may_hold.push(tag);
            }
        }
        Ok(())
    }

    /// Checks what is there after a loss of power, as a flush has left it. The flush was submitted
    /// as a read of everything: so the bytes may be what such a read may give. `None` if the flush
    /// has failed.
    pub fn flushed(&mut self, id: RequestId, stable: Option<&[u8]>) -> Result<(), String> {
        self.ranges.remove(&id).unwrap();
        for (at, cell) in self.cells.iter_mut().enumerate() {
            let slot = cell.reads.iter().position(|(other, ..)| *other == id).unwrap();
            let (_, allowed, _) = cell.reads.swap_remove(slot);
            let Some(stable) = stable else { continue };
            let tag = tag_at(stable, at, self.cell_bytes);
            if !allowed.contains(&tag) {
                return Err(format!("flushed cell {at} holds {tag}, none of {allowed:?}"));
            }
        }
        Ok(())
    }

    /// Checks what is there after a loss of power, as a change with FUA has left its range.
    pub fn forced(&self, request: &Request, stable: &[u8]) -> Result<(), String> {
        let (op, block) = (request.op, self.trim_cells);
        let first = (request.offset_bytes / u64::from(self.cell_bytes)) as usize;
        let end = first + (request.len_bytes / self.cell_bytes) as usize;
        let whole = first.next_multiple_of(block)..end - end % block;
        for at in first..end {
            let cell = &self.cells[at];
            let tag = tag_at(stable, at, self.cell_bytes);
            let later = cell.in_flight.iter().any(|(_, value)| *value == tag);
            let edge = op == Op::Trim && !whole.contains(&at);
            if !edge && !later && !cell.may_hold.contains(&tag) {
                return Err(format!("cell {at} is {tag} after FUA, not {:?}", cell.may_hold));
            }
        }
        Ok(())
    }

    /// Forgets a request that neither reads nor changes.
    pub fn other(&mut self, id: RequestId) {
        self.ranges.remove(&id);
    }
}
