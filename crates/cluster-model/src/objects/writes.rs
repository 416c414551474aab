//! The operations that write, and what classes write.

use bytes::Bytes;
use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::errno::Errno;

use super::Intervals;
use super::execution::{Execution, MAX_OBJECT_BYTES};
use super::object::{Change, Found};
use super::request::{FLAG_EXCLUSIVE, Step};

/// An object would be larger than the cluster allows.
const EFBIG: Errno = Errno(27);

impl Execution<'_> {
    pub(super) fn write_step(&mut self, flags: u32, step: Step) -> Result<(), Errno> {
        match step {
            Step::Create => self.create(flags & FLAG_EXCLUSIVE != 0),
            Step::Write { offset, data } => self.write(offset, data),
            Step::WriteFull(data) => self.write_full(data),
            Step::Append(data) => self.write(self.len, data),
            Step::WriteSame { offset, len, data } => self.write_same(offset, len, &data),
            Step::Zero { offset, len } => self.zero(offset, len),
            Step::Truncate(len) => self.truncate(len),
            Step::Delete => self.remove(),
            Step::Rollback(snap) => self.roll_back(snap),
            Step::SetXattr { name, value } => self.set_xattr(name, value),
            Step::RemoveXattr(name) => {
                self.must_exist()?;
                self.changes.push(Change::RemoveXattr(name));
                Ok(())
            }
            Step::OmapSet(entries) => self.omap_set(entries),
            Step::OmapSetHeader(value) => {
                self.needs_omap()?;
                self.come_to_be();
                self.changes.push(Change::OmapSetHeader(value));
                Ok(())
            }
            Step::OmapRemove(keys) => self.omap_remove(keys),
            Step::OmapClear => {
                self.needs_omap()?;
                self.must_exist()?;
                self.changes.push(Change::OmapClear);
                Ok(())
            }
            Step::AllocationHint => {
                self.come_to_be();
                Ok(())
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn must_exist(&self) -> Result<(), Errno> {
        if self.exists { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn needs_omap(&self) -> Result<(), Errno> {
        if self.pool.is_erasure_coded { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }

    /// Creates the object if it is absent. An operation that writes counts as a change even if it
    /// changes nothing.
    fn come_to_be(&mut self) {
        self.exists = true;
        self.changes.push(Change::Zero { offset: 0, len: 0 });
    }

    /// Creates the object.
    ///
    /// # Errors
    /// `EEXIST`, if it has to be new.
    pub(crate) fn create(&mut self, exclusive: bool) -> Result<(), Errno> {
        if self.exists && exclusive {
            return Err(Errno::EEXIST);
        }
        self.come_to_be();
        Ok(())
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// `EFBIG`; `EOPNOTSUPP` in a pool that only appends.
    pub(crate) fn write(&mut self, offset: u64, data: Bytes) -> Result<(), Errno> {
        let len = data.len() as u64;
        let end = offset.checked_add(len).filter(|&end| end <= MAX_OBJECT_BYTES).ok_or(EFBIG)?;
        let appends_only = self.pool.is_erasure_coded && !self.pool.takes_overwrites;
        let alignment = self.pool.alignment_bytes.max(1);
        if appends_only && (offset != self.len || !offset.is_multiple_of(alignment)) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.changed.insert(offset, end);
        self.exists = true;
        self.len = self.len.max(end);
        self.changes.push(Change::Write { offset, data });
        Ok(())
    }

    /// Replaces all bytes.
    ///
    /// # Errors
    /// `EFBIG`.
    pub(crate) fn write_full(&mut self, data: Bytes) -> Result<(), Errno> {
        let len = data.len() as u64;
        if len > MAX_OBJECT_BYTES {
            return Err(EFBIG);
        }
        self.changed.insert(0, self.len.max(len));
        self.exists = true;
        self.len = len;
        // Cut to nothing first, so that blocks of the old data do not count as written.
        self.changes.push(Change::Truncate(0));
        self.changes.push(Change::Write { offset: 0, data });
        Ok(())
    }

    fn write_same(&mut self, offset: u64, len: u64, data: &Bytes) -> Result<(), Errno> {
        if data.is_empty() || !len.is_multiple_of(data.len() as u64) {
            return Err(Errno::EINVAL);
        }
        if offset.checked_add(len).is_none_or(|end| end > MAX_OBJECT_BYTES) {
            return Err(EFBIG);
        }
        self.write(offset, data.repeat((len / data.len() as u64) as usize).into())
    }

    fn rewrites(&self) -> Result<(), Errno> {
        let appends_only = self.pool.is_erasure_coded && !self.pool.takes_overwrites;
        if appends_only { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }

    fn zero(&mut self, offset: u64, len: u64) -> Result<(), Errno> {
        self.rewrites()?;
        let end = offset.checked_add(len).filter(|&end| end <= MAX_OBJECT_BYTES).ok_or(EFBIG)?;
        if !self.exists || offset >= self.len {
            return Ok(());
        }
        if end >= self.len {
            // A real OSD cuts the object here.
            return self.truncate(offset);
        }
        self.changed.insert(offset, end);
        self.changes.push(Change::Zero { offset, len });
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> Result<(), Errno> {
        self.rewrites()?;
        if len > MAX_OBJECT_BYTES {
            return Err(EFBIG);
        }
        if !self.exists {
            return Ok(());
        }
        self.changed.insert(len.min(self.len), len.max(self.len));
        self.len = len;
        self.changes.push(Change::Truncate(len));
        Ok(())
    }

    /// Deletes the object.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(crate) fn remove(&mut self) -> Result<(), Errno> {
        self.must_exist()?;
        self.changed.insert(0, self.len);
        self.exists = false;
        self.len = 0;
        self.changes.push(Change::Clear);
        Ok(())
    }

    fn roll_back(&mut self, snap: SnapId) -> Result<(), Errno> {
        match self.found(snap) {
            // The head is what the snapshot sees already. It counts as changed all the same, so
            // newer snapshots get a clone.
            Some(Found::Head) if self.before.is_some() => {
                self.come_to_be();
                Ok(())
            }
            // The object did not exist then.
            None | Some(Found::Head) => match self.remove() {
                Err(Errno::ENOENT) => Ok(()),
                other => other,
            },
            Some(Found::Clone(clone)) => {
                let mut changed = Intervals::below(self.len.max(clone.content.data.len()));
                if let Some(object) = self.object {
                    changed.subtract(&object.snaps.shared_with_head(clone.id));
                }
                self.changed.unite(&changed);
                self.exists = true;
                self.len = clone.content.data.len();
                self.changes.push(Change::CopyOf(clone.id));
                Ok(())
            }
        }
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// None so far.
    pub(crate) fn set_xattr(&mut self, name: Bytes, value: Bytes) -> Result<(), Errno> {
        self.exists = true;
        self.changes.push(Change::SetXattr { name, value });
        Ok(())
    }

    /// Sets entries.
    ///
    /// # Errors
    /// `EOPNOTSUPP` in an erasure-coded pool.
    pub(crate) fn omap_set(&mut self, entries: Vec<(Bytes, Bytes)>) -> Result<(), Errno> {
        self.needs_omap()?;
        self.exists = true;
        self.changes.push(Change::OmapSet(entries));
        Ok(())
    }

    /// Removes entries.
    ///
    /// # Errors
    /// `ENOENT` for an absent object; `EOPNOTSUPP` in an erasure-coded pool.
    pub(crate) fn omap_remove(&mut self, keys: Vec<Bytes>) -> Result<(), Errno> {
        self.needs_omap()?;
        self.must_exist()?;
        self.changes.push(Change::OmapRemove(keys));
        Ok(())
    }
}
