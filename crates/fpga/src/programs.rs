//! The programs of linear maps that a queue set keeps in card memory.

use std::sync::Arc;

use fieldstone_gf::LinearMap;

use crate::allocator::{Allocation, Allocator};
use crate::bounds::MAX_PROGRAMS;
use crate::card::Build;
use crate::tables::TableCompiler;

struct Entry {
    map: Arc<LinearMap>,
    used_at: u64,
    /// Jobs in flight that use the program.
    users: u32,
    /// `None` if the device cannot execute the map.
    program: Option<Program>,
}

struct Program {
    bytes: Arc<[u8]>,
    place: Option<Allocation>,
    is_in_card: bool,
}

/// A program that a job may use until it is [released](Programs::release).
#[derive(Clone, Debug)]
pub struct Ready {
    /// Its address in card memory.
    pub address: u64,
    /// The program, if it must be copied to that address first.
    pub missing: Option<Arc<[u8]>>,
    /// Its size.
    pub bytes: u64,
}

/// The programs of a queue set.
#[derive(Default)]
pub struct Programs {
    entries: Vec<Entry>,
    time: u64,
    /// Memory of programs that were evicted.
    unused: Vec<Allocation>,
}

impl Programs {
    /// True when the device can execute the map.
    pub fn takes(
        &mut self,
        tables: &dyn TableCompiler,
        build: &Build,
        map: &Arc<LinearMap>,
    ) -> bool {
        self.find(tables, build, map).is_some_and(|index| self.entries[index].program.is_some())
    }

    /// The map's program, which counts as used from now on. `None` if the device cannot execute the
    /// map, or card memory has no room.
    pub fn acquire(
        &mut self,
        tables: &dyn TableCompiler,
        build: &Build,
        map: &Arc<LinearMap>,
        card: &mut Allocator,
    ) -> Option<Ready> {
        self.unused.drain(..).for_each(|place| card.release(place));
        let index = self.find(tables, build, map)?;
        let entry = &mut self.entries[index];
        let program = entry.program.as_mut()?;
        if program.place.is_none() {
            program.place = Some(card.allocate_to_stay(program.bytes.len())?);
        }
        let address = program.place.as_ref()?.address;
        // Later jobs of this queue set come after the job that copies the program.
        let missing = (!program.is_in_card).then(|| Arc::clone(&program.bytes));
        program.is_in_card = true;
        entry.users += 1;
        Some(Ready { address, missing, bytes: program.bytes.len() as u64 })
    }

    /// A job with this map is done.
    pub fn release(&mut self, map: &Arc<LinearMap>) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.map, map)) {
            entry.users = entry.users.saturating_sub(1);
        }
    }

    /// A job with this map did not begin after all, and `missing` was not copied.
    pub fn cancel(&mut self, map: &Arc<LinearMap>, missing: bool) {
        self.release(map);
        if missing
            && let Some(entry) = self.entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.map, map))
            && let Some(program) = &mut entry.program
        {
            program.is_in_card = false;
        }
    }

    /// The device has refused this map's program.
    pub fn refused(&mut self, map: &Arc<LinearMap>) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.map, map)) {
            let program = entry.program.take();
            self.unused.extend(program.and_then(|program| program.place));
        }
    }

    /// The queue set was reset, so copies in flight may not have arrived.
    pub fn queue_set_reset(&mut self) {
        for program in self.entries.iter_mut().filter_map(|entry| entry.program.as_mut()) {
            program.is_in_card = false;
        }
    }

    /// All memory of programs, which the caller gets.
    pub fn take_places(&mut self) -> impl Iterator<Item = Allocation> {
        let entries = std::mem::take(&mut self.entries).into_iter();
        let unused = std::mem::take(&mut self.unused);
        entries.filter_map(|entry| entry.program?.place).chain(unused)
    }

    /// The index of the map's entry, which is made if it is missing. `None` if all others are in
    /// use.
    fn find(
        &mut self,
        tables: &dyn TableCompiler,
        build: &Build,
        map: &Arc<LinearMap>,
    ) -> Option<usize> {
        self.time += 1;
        let found = self.entries.iter().position(|entry| Arc::ptr_eq(&entry.map, map));
        let index = match found {
            Some(index) => index,
            None => {
                let program = tables.program(map, build);
                let program = program.inspect_err(|reason| tracing::debug!("not coded: {reason}"));
                self.insert(map, program.ok())?
            }
        };
        self.entries[index].used_at = self.time;
        Some(index)
    }

    fn insert(&mut self, map: &Arc<LinearMap>, bytes: Option<Vec<u8>>) -> Option<usize> {
        let program =
            bytes.map(|bytes| Program { bytes: bytes.into(), place: None, is_in_card: false });
        let entry = Entry { map: Arc::clone(map), used_at: self.time, users: 0, program };
        if self.entries.len() < MAX_PROGRAMS {
            self.entries.push(entry);
            return Some(self.entries.len() - 1);
        }
        let idle = self.entries.iter().enumerate().filter(|(_, entry)| entry.users == 0);
        let (index, _) = idle.min_by_key(|(_, entry)| entry.used_at)?;
        let old = std::mem::replace(&mut self.entries[index], entry);
        self.unused.extend(old.program.and_then(|program| program.place));
        Some(index)
    }
}
