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
        if let Origin::User(mut request) = origin {
            request.stamps.stamp(Stage::Replied, self.now);
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use fieldstone_block::{Backend, Nanos, Op, RequestId};
    use fieldstone_proto::RequestBody;
    use fieldstone_tasks::oneshot;

    use super::*;
    use crate::failure::VolumeFailure;
    use crate::log::BATCHES_MAX;
    use crate::script::{Script, Sent, request};

    fn flush(script: &mut Script, id: u64) {
        let request = Request { id: RequestId(id), ..request(Op::Flush, 0, 0) };
        script.volume.submit(request, Nanos(0));
    }

    /// A user writes a block, and wants to hear when it is stable.
    fn write_stable(script: &mut Script, block: u64) {
        let mut request = request(Op::Write, block, 1);
        request.flags.fua = true;
        script.volume.submit(request, Nanos(0));
    }

    /// Takes the volume's answers to users, which must be successes; returns the requests' ids.
    fn answered(script: &mut Script) -> Vec<u64> {
        let completions = std::mem::take(&mut script.completions);
        assert!(completions.iter().all(|completion| completion.result.is_ok()));
        completions.iter().map(|completion| completion.id.0).collect()
    }

    /// Splits what the volume sends into syncs of the journal and the rest.
    fn syncs(sent: Vec<Sent>) -> (Vec<Sent>, Vec<Sent>) {
        let syncs = |sent: &Sent| matches!(sent.request.body, RequestBody::JournalSync { .. });
        sent.into_iter().partition(syncs)
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it() {
        let mut script = Script::serving(8);
        script.write(1, 1);
        let appends = script.sent();
        flush(&mut script, 100);
        assert!(script.sent().is_empty());
        assert_eq!(answered(&mut script), [100], "nothing was acknowledged yet");
        appends.iter().for_each(|sent| script.done(sent));
        flush(&mut script, 101);
        let (first, _) = syncs(script.sent());
        assert_eq!((first.len(), answered(&mut script)), (3, vec![1]));
        // Another write is acknowledged while the sync is under way.
        script.write(2, 1);
        script.sent().iter().for_each(|sent| script.done(sent));
        flush(&mut script, 102);
        assert!(script.sent().is_empty());
        assert_eq!(answered(&mut script), [2]);
        first.iter().for_each(|sent| script.done(sent));
        let (second, _) = syncs(script.sent());
        assert_eq!((second.len(), answered(&mut script)), (3, vec![101]));
        second[1..].iter().for_each(|sent| script.done(sent));
        script.sent();
        assert!(answered(&mut script).is_empty(), "one node may lack the second record");
        script.done(&second[0]);
        script.sent();
        assert_eq!(answered(&mut script), [102]);
    }

    #[test]
    fn a_write_that_is_to_be_stable_waits_for_the_sync_of_its_record() {
        let mut script = Script::serving(8);
        script.write(1, 1);
        write_stable(&mut script, 2);
        let sent = script.sent();
        assert_eq!(sent.len(), 3, "one record has both");
        sent.iter().for_each(|sent| script.done(sent));
        let (sync, rest) = syncs(script.sent());
        assert_eq!((sync.len(), rest.len(), answered(&mut script)), (3, 0, vec![1]));
        sync.iter().for_each(|sent| script.done(sent));
        script.sent();
        assert_eq!(answered(&mut script), [2]);
        script.core(|core| assert!(core.log.idle() && !core.sync_wanted()));
    }

    /// A change by the volume itself, and its result once it has ended.
    fn internal_change(core: &mut VolumeCore) -> Rc<RefCell<Option<Result<(), BlockError>>>> {
        let (filler, awaited) = oneshot();
        let entry = Entry { kind: EntryKind::Data, block: 600, count: 1, segment_block: 0 };
        core.queue_internal(entry, vec![0; BLOCK_BYTES].into(), None, filler);
        let result = Rc::new(RefCell::new(None));
        let ends = Rc::clone(&result);
        core.spawn_with(move |_| async move { *ends.borrow_mut() = Some(awaited.await) });
        result
    }

    /// Some wait for their sync, some are in flight, one is in flight in part, and some have not
    /// begun.
    #[test]
    fn when_users_changes_fail_each_request_is_answered_once() {
        let mut script = Script::serving(8);
        script.wait_ms(1);
        write_stable(&mut script, 200);
        script.sent().iter().for_each(|sent| script.done(sent));
        let (mut in_flight, _) = syncs(script.sent());
        assert_eq!(in_flight.len(), 3);
        flush(&mut script, 300);
        let singles = BATCHES_MAX as u64 - 1;
        for block in 0..singles {
            script.write(block, 1);
            in_flight.extend(script.sent());
        }
        script.write(20, 40);
        script.submit(Op::Trim, 400, 4);
        script.write(500, 1);
        in_flight.extend(script.sent());
        let internal = script.core(|core| {
            assert_eq!(core.log.records_in_flight(), BATCHES_MAX);
            let waits: Vec<(u64, u32)> =
                core.log.queue.iter().map(|m| (m.block, m.count)).collect();
            let [(rest, count), (500, 1)] = waits[..] else { panic!("{waits:?}") };
            assert!(rest > 20 && rest + u64::from(count) == 60, "a part of it is in flight");
            internal_change(core)
        });
        assert!(script.sent().is_empty() && script.completions.is_empty());
        script.core(|core| {
            core.fail_user_changes(&BlockError::NoSpace);
            assert!(!core.log.waits(), "what has not begun does not happen any more");
        });
        script.sent();
        let mut ids: Vec<u64> = script.completions.iter().map(|c| c.id.0).collect();
        assert!(script.completions.iter().all(|c| c.result == Err(BlockError::NoSpace)));
        let is_stamped = |c: &Completion| c.stamps.at(Stage::Replied) != Nanos(0);
        assert!(script.completions.iter().all(is_stamped), "{:?}", script.completions);
        let expected: BTreeSet<u64> = (0..singles).chain([20, 200, 300, 400, 500]).collect();
        ids.sort_unstable();
        assert_eq!(ids, expected.into_iter().collect::<Vec<_>>());
        assert_eq!(*internal.borrow(), None, "it is no user's");
        while !in_flight.is_empty() {
            in_flight.iter().for_each(|sent| script.done(sent));
            script.do_jobs();
            in_flight = script.sent();
        }
        assert_eq!(script.completions.len(), ids.len());
        assert_eq!(*internal.borrow(), Some(Ok(())));
        script.core(|core| assert!(core.log.idle() && !core.sync_wanted()));
    }

    #[test]
    fn a_volume_that_fails_answers_every_request_with_the_reason() {
        let mut script = Script::serving(8);
        write_stable(&mut script, 1);
        let sent = script.sent();
        script.write(2, 1);
        let why = VolumeFailure::JournalNotStable;
        let internal = script.core(|core| {
            let internal = internal_change(core);
            core.fail(why.clone());
            internal
        });
        assert!(script.sent().is_empty());
        let reason = BlockError::Io(why.to_string());
        let ids: Vec<u64> = script.completions.iter().map(|c| c.id.0).collect();
        assert_eq!(ids, [2, 1]);
        assert!(script.completions.iter().all(|c| c.result == Err(reason.clone())));
        assert_eq!(*internal.borrow(), Some(Err(reason)));
        sent.iter().for_each(|sent| script.done(sent));
        assert!(script.sent().is_empty());
        assert_eq!(script.completions.len(), 2);
    }
}
