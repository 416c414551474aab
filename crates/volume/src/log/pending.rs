//! Requests that wait for the log: requests of users and the volume's own changes. Each waits until
//! all its parts are acknowledged, and stable where the request asks for that.

use bytes::Bytes;
use fieldstone_block::{BlockError, Completion, Payload, Request, Stage};
use fieldstone_proto::{BLOCK_BYTES, Lsn};

use super::{Line, Mutation};
use crate::core::VolumeCore;
use crate::map::Location;
use crate::record::{Entry, EntryKind};
use crate::status::VolumePhase;
use fieldstone_tasks::Filler;

/// The origin of a change.
pub enum Origin {
    /// A user's request, answered with a completion.
    User(Box<Request>),
    /// The volume itself: collection, replay.
    Internal(Filler<Result<(), BlockError>>),
}

/// A request with parts that are not yet acknowledged.
pub(super) struct Pending {
    pub origin: Origin,
    /// Mutations that are not completely appended, plus records that are not acknowledged.
    pub parts: u32,
    pub fua: bool,
    /// End of the last record with a part of the request.
    pub end: Lsn,
    pub error: Option<BlockError>,
}

impl VolumeCore {
    /// Takes a user's write, trim or write-zeroes. The range is block-aligned and inside the
    /// device.
    pub fn queue_user(&mut self, request: Request, kind: EntryKind) {
        let block = request.offset_bytes / BLOCK_BYTES as u64;
        let count = request.len_bytes / BLOCK_BYTES as u32;
        let (data, fua) = (request.data.clone(), request.flags.fua);
        let origin = Origin::User(Box::new(request));
        let pending =
            self.log.pending.insert(Pending { origin, parts: 1, fua, end: Lsn(0), error: None });
        let large = kind == EntryKind::Data && self.is_large(count);
        let line = if kind == EntryKind::Trim { Line::Trims } else { Line::Users };
        self.log.mutations_made += 1;
        let number = self.log.mutations_made;
        let mutation = Mutation { pending, kind, block, count, data, from: None, large, number };
        self.log.line(line).push_back(mutation);
    }

    /// Takes a change by the volume itself.
    pub fn queue_internal(
        &mut self,
        entry: Entry,
        data: Bytes,
        from: Option<Location>,
        done: Filler<Result<(), BlockError>>,
    ) {
        let origin = Origin::Internal(done);
        let pending = self.log.pending.insert(Pending {
            origin,
            parts: 1,
            fua: false,
            end: Lsn(0),
            error: None,
        });
        let Entry { kind, block, count, .. } = entry;
        self.log.mutations_made += 1;
        let (large, number) = (false, self.log.mutations_made);
        let mutation = Mutation { pending, kind, block, count, data, from, large, number };
        self.log.internal.push_back(mutation);
    }

    /// Takes a user's flush. It covers every change that is acknowledged now.
    pub fn queue_flush(&mut self, request: Request) {
        let pending = self.log.pending.insert(Pending {
            origin: Origin::User(Box::new(request)),
            parts: 0,
            fua: true,
            end: self.log.acked,
            error: None,
        });
        self.await_sync(pending);
    }

    pub(super) fn await_sync(&mut self, pending: usize) {
        let end = self.log.pending[pending].end;
        if end <= self.log.synced {
            self.finish_pending(pending);
            return;
        }
        self.log.syncs.push((end, pending));
        if self.log.journal_sync.begin() {
            self.spawn_with(crate::journal::sync_journal);
        }
    }

    /// True while a change waits for the journal to be stable.
    pub fn sync_wanted(&self) -> bool {
        !self.log.syncs.is_empty()
    }

    /// The log is stable up to `lsn`: completes the requests that waited for this position.
    pub fn synced_up_to(&mut self, lsn: Lsn) {
        self.log.synced = self.log.synced.max(lsn);
        let synced = self.log.synced;
        let (done, wait) = self.log.syncs.drain(..).partition(|(end, _)| *end <= synced);
        self.log.syncs = wait;
        let done: Vec<(Lsn, usize)> = done;
        for (_, pending) in done {
            self.finish_pending(pending);
        }
    }

    fn finish_pending(&mut self, key: usize) {
        let pending = self.log.pending.remove(key);
        let result = pending.error.map_or(Ok(()), Err);
        match pending.origin {
            Origin::Internal(filler) => filler.fill(result),
            Origin::User(mut request) => {
                request.stamps.stamp(Stage::Replied, self.now);
                let result = result.map(|()| Payload::None);
                self.outbox.complete(Completion::of(&request, result));
            }
        }
    }

    pub(super) fn part_done(&mut self, key: usize) {
        let pending = &mut self.log.pending[key];
        pending.parts -= 1;
        if pending.parts > 0 {
            return;
        }
        if pending.fua && pending.error.is_none() {
            self.await_sync(key);
        } else {
            self.finish_pending(key);
        }
    }

    pub(super) fn refuse(&mut self, mutation: &Mutation, error: BlockError) {
        self.log.pending[mutation.pending].error.get_or_insert(error);
        self.part_done(mutation.pending);
    }

    /// Fails the changes that users wait for, because the remaining nodes cannot store them safely.
    /// The volume keeps the records, so a change in flight is indeterminate, not gone.
    pub fn fail_user_changes(&mut self, error: &BlockError) {
        for line in [Line::Users, Line::Trims] {
            for mutation in std::mem::take(self.log.line(line)) {
                self.refuse(&mutation, error.clone());
            }
        }
        let of_user = |(key, pending): (usize, &Pending)| {
            matches!(pending.origin, Origin::User(_)).then_some(key)
        };
        let keys: Vec<usize> = self.log.pending.iter().filter_map(of_user).collect();
        for key in keys {
            // Parts in flight refer to the entry, so the entry stays and only its answer goes
            // early. A part may have been refused already.
            self.answer_early(key, error.clone());
        }
        let syncs = std::mem::take(&mut self.log.syncs);
        for (_, key) in syncs {
            if self.log.pending[key].error.is_some() {
                self.log.pending.remove(key);
            } else {
                self.log.syncs.push((self.log.pending[key].end, key));
            }
        }
    }

    fn answer_early(&mut self, key: usize, error: BlockError) {
        let (nobody, _) = fieldstone_tasks::oneshot();
        let pending = &mut self.log.pending[key];
        pending.error = Some(error.clone());
        let origin = std::mem::replace(&mut pending.origin, Origin::Internal(nobody));
        if let Origin::User(request) = origin {
            self.outbox.complete(Completion::of(&request, Err(error)));
        }
    }

    /// The volume has failed or closed: answers every waiting request with an error.
    pub fn fail_everything(&mut self) {
        let why = match self.life.phase() {
            VolumePhase::Failed(why) => why.to_string(),
            _ => "the volume is closed".into(),
        };
        self.fail_user_changes(&BlockError::Io(why.clone()));
        for mutation in std::mem::take(&mut self.log.internal) {
            self.refuse(&mutation, BlockError::Io(why.clone()));
        }
        self.fail_reads(&why);
    }
}
