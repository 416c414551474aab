//! One object: head, clones, and the changes of a transaction.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use fieldstone_rados::cluster::{SnapContext, SnapId};
use fieldstone_rados::encoding::Time;

use super::{Data, Intervals};

/// What an object holds in one state.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// The bytes.
    pub data: Data,
    /// The attributes.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// The key-value entries.
    pub omap: BTreeMap<Bytes, Bytes>,
    /// A value beside the entries.
    pub omap_header: Bytes,
    /// The time of the last change.
    pub modified: Time,
    /// The version that clients see.
    pub user_version: u64,
}

impl Content {
    /// The entries behind a key, in order.
    pub fn omap_after<'a>(
        &'a self,
        after: &'a [u8],
    ) -> impl Iterator<Item = (&'a Bytes, &'a Bytes)> {
        let start = if after.is_empty() { Bound::Unbounded } else { Bound::Excluded(after) };
        self.omap.range::<[u8], _>((start, Bound::Unbounded))
    }
}

/// A state of an object that snapshots keep.
#[derive(Clone, Debug)]
pub struct Clone {
    /// Its number: the `seq` of the write that made it.
    pub id: SnapId,
    /// The snapshots that see it, newest first.
    pub snaps: Vec<SnapId>,
    /// The bytes that the next newer clone, or the head, has the same.
    pub overlap: Intervals,
    /// The state.
    pub content: Content,
}

/// The clones of an object.
#[derive(Clone, Debug, Default)]
pub struct SnapSet {
    /// The newest snapshot that the object has heard of.
    pub seq: SnapId,
    /// The clones, oldest first.
    pub clones: Vec<Clone>,
}

/// An object.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// The present state.
    pub head: Content,
    /// The present state counts as absent, and is here for the clones.
    pub is_whiteout: bool,
    /// The earlier states.
    pub snaps: SnapSet,
}

/// A change that a transaction makes to the head.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write {
        offset: u64,
        data: Bytes,
    },
    Zero {
        offset: u64,
        len: u64,
    },
    Truncate(u64),
    /// The head loses everything.
    Clear,
    SetXattr {
        name: Bytes,
        value: Bytes,
    },
    RemoveXattr(Bytes),
    OmapSet(Vec<(Bytes, Bytes)>),
    OmapSetHeader(Bytes),
    OmapRemove(Vec<Bytes>),
    OmapClear,
    /// The head becomes what this clone is.
    CopyOf(SnapId),
}

/// Where a read finds its state.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'a> {
    Head,
    Clone(&'a Clone),
}

impl SnapSet {
    fn index_of(&self, id: SnapId) -> Option<usize> {
        self.clones.binary_search_by_key(&id, |clone| clone.id).ok()
    }

    /// The bytes that the head has the same as this clone.
    pub(super) fn shared_with_head(&self, id: SnapId) -> Intervals {
        let Some(first) = self.index_of(id) else { return Intervals::default() };
        let mut shared = self.clones[first].overlap.clone();
        for clone in &self.clones[first + 1..] {
            shared = shared.intersection(&clone.overlap);
        }
        shared
    }
}

impl Object {
    /// The present state, unless it counts as absent.
    #[must_use]
    pub fn present(&self) -> Option<&Content> {
        (!self.is_whiteout).then_some(&self.head)
    }

    /// What a read at a snapshot sees.
    #[must_use]
    pub fn at(&self, snap: SnapId) -> Option<&Content> {
        match self.find(snap)? {
            Found::Head => self.present(),
            Found::Clone(clone) => Some(&clone.content),
        }
    }

    pub(super) fn find(&self, snap: SnapId) -> Option<Found<'_>> {
        if snap > self.snaps.seq {
            return Some(Found::Head);
        }
        let index = self.snaps.clones.partition_point(|clone| clone.id < snap);
        let clone = self.snaps.clones.get(index)?;
        let oldest = *clone.snaps.last()?;
        (oldest <= snap).then_some(Found::Clone(clone))
    }

    /// True if a deletion now has to leave a whiteout.
    pub(super) fn needs_whiteout(&self, context: &SnapContext) -> bool {
        let gets_clone = context.snaps.first().is_some_and(|&newest| newest > self.snaps.seq);
        !self.snaps.clones.is_empty() || gets_clone
    }

    /// Makes the clone that a write under this context needs, and notes which bytes the write
    /// changes. `existed`: there was an object before the write.
    pub(super) fn prepare_write(
        &mut self,
        context: &SnapContext,
        existed: bool,
        changed: &Intervals,
    ) {
        let seq = self.snaps.seq;
        let newer = context.snaps.iter().take_while(|&&snap| snap > seq).count();
        if existed && !self.is_whiteout && newer > 0 {
            self.snaps.clones.push(Clone {
                id: context.seq,
                snaps: context.snaps[..newer].to_vec(),
                overlap: Intervals::below(self.head.data.len()),
                content: self.head.clone(),
            });
        }
        if let Some(newest) = self.snaps.clones.last_mut() {
            newest.overlap.subtract(changed);
        }
        self.snaps.seq = seq.max(context.seq);
    }

    pub(super) fn apply(&mut self, change: Change) {
        let head = &mut self.head;
        match change {
            Change::Write { offset, data } => head.data.write(offset, &data),
            Change::Zero { offset, len } => head.data.zero(offset, len),
            Change::Truncate(len) => head.data.truncate(len),
            Change::Clear => *head = Content::default(),
            Change::SetXattr { name, value } => drop(head.xattrs.insert(name, value)),
            Change::RemoveXattr(name) => drop(head.xattrs.remove(&name)),
            Change::OmapSet(entries) => head.omap.extend(entries),
            Change::OmapSetHeader(value) => head.omap_header = value,
            Change::OmapRemove(keys) => {
                for key in keys {
                    head.omap.remove(&key);
                }
            }
            Change::OmapClear => {
                head.omap.clear();
                head.omap_header = Bytes::new();
            }
            Change::CopyOf(id) => {
                if let Some(index) = self.snaps.index_of(id) {
                    *head = self.snaps.clones[index].content.clone();
                }
            }
        }
    }

    /// Removes a snapshot. Returns false if nothing of the object is left.
    pub(super) fn remove_snap(&mut self, snap: SnapId) -> bool {
        let clones = &mut self.snaps.clones;
        for clone in clones.iter_mut() {
            clone.snaps.retain(|&kept| kept != snap);
        }
        while let Some(index) = clones.iter().position(|clone| clone.snaps.is_empty()) {
            let gone = clones.remove(index);
            if index > 0 {
                // What the older clone shares now is what it shared through the one that is gone.
                let older = &mut clones[index - 1];
                older.overlap = older.overlap.intersection(&gone.overlap);
            }
        }
        !(self.is_whiteout && clones.is_empty())
    }
}
