//! The admission of changes to the log: which changes wait for space, and which ones the volume
//! refuses.
//!
//! A change waits while collection, nodes or other volumes may still make space for it. The volume
//! refuses the change when none of them will, or when the change has waited too long.

use fieldstone_block::{BlockError, Nanos};

use super::{Lack, Line, Mutation};
use crate::core::VolumeCore;
use crate::node::Node;
use crate::record::EntryKind;
use crate::status::NodeHealth;

/// How long users' writes wait for room when collection finds nothing to free.
const STUCK_MS_MAX: u64 = 500;

/// How long users' writes wait for room when neither writes nor collection make progress. A node
/// that joins again and again, and fails each time, keeps collection and reservations busy for
/// ever. With a slow disk, collection takes long, but it goes on.
const HOPELESS_MS: u64 = 16_000;
/// How long they wait although collection gets on.
const SLOW_MS_MAX: u64 = 4 * HOPELESS_MS;

/// How long changes wait for nodes to grant more room. A volume with idle slots checks at least
/// every second whether another volume lacks room, and may have to collect before it can give slots
/// back.
const GRANT_MS_MAX: u64 = 3_500;
/// How long the volume remembers a lack of space, if no change has found too little space since.
const LACK_MS_MAX: u64 = 2 * GRANT_MS_MAX;
/// Pause before the log tries again because a node may grant more.
const RETRY_PAUSE_MS: u64 = 50;

/// The space that users may still take, computed at the start of a record.
pub(super) struct UserSpace {
    pub blocks: u64,
    pub starved: bool,
    /// See [`VolumeCore::space_is_borrowed`].
    pub borrowed: bool,
    /// The volume refused a write because collection makes no space. The volume also refuses the
    /// writes after that one, which waited for the same space.
    pub refused: bool,
}

/// The decision about a change.
pub(super) enum Admission {
    Take,
    Wait,
    Refuse(BlockError),
}

impl VolumeCore {
    /// More than `missing_max` nodes are lost or have no room, and users have waited too long for
    /// them. Collection waits for the same nodes.
    fn waits_for_room_in_vain(&mut self) -> bool {
        let lost =
            |node: &&Node| node.health != NodeHealth::Up || node.is_short() || node.slots.full;
        let lost = self.nodes.iter().filter(lost).count();
        self.waits_in_vain(lost > usize::from(self.config.missing_max))
    }

    /// The nodes with room are too few, and were too few for too long.
    fn waits_in_vain(&mut self, too_few: bool) -> bool {
        if !too_few {
            // A node may report room for a moment. The time goes on until a write of a user makes
            // progress, or the volume seals a segment.
            return false;
        }
        let since = *self.log.no_room_since.get_or_insert(self.now);
        self.wake_soon();
        self.is_too_long(Some(since.max(self.log.stored_at)))
    }

    /// The ring is full: changes wait until segments are stored. If the nodes have no room for a
    /// segment (`width`), the volume refuses the changes. It refuses trims as well: a checkpoint
    /// replaces the records of trims only when the segments before them are stored. It gives a move
    /// of collection up: a volume that closes waits for it.
    ///
    /// Where records of shelved segments fill the ring, only a checkpoint empties the ring.
    /// Collection writes that checkpoint after the move under way, so the volume gives this move
    /// up.
    pub(super) fn hold_all(&mut self) {
        if self.segments.any_shelved() {
            self.refuse_line(Line::Internal);
        }
        let too_few = !self.segments_without_room().is_empty();
        if self.waits_in_vain(too_few) {
            [Line::Internal, Line::Users, Line::Trims]
                .into_iter()
                .for_each(|l| self.refuse_line(l));
        }
    }

    fn refuse_line(&mut self, line: Line) {
        for mutation in std::mem::take(self.log.line(line)) {
            self.refuse(&mutation, BlockError::NoSpace);
        }
    }

    /// No room is left for a segment. Changes with blocks wait until collection has made some. If
    /// collection finds none, the volume refuses the changes.
    pub(super) fn hold_line(&mut self, line: Line) {
        // Refuses a move of collection at once: its blocks stay where they are.
        let since = *self.log.held_since.get_or_insert(self.now);
        let tried = self.gc.is_stuck() && !self.is_asking_nodes();
        let long = self.now.since(since) >= Nanos::from_ms(STUCK_MS_MAX);
        let hopeless = self.now.since(since) >= Nanos::from_ms(HOPELESS_MS);
        let vain = (tried && long) || hopeless || self.waits_for_room_in_vain();
        if line == Line::Internal || vain {
            self.log.held_since = None;
            return self.refuse_line(line);
        }
        if self.segments.row_backed() > 0 {
            // Rows of these segments borrow room until the segments are durable.
            return self.start_sync();
        }
        self.make_room();
    }

    /// Whether a user's change that may take space may be appended now.
    pub(super) fn admit(&mut self, mutation: &Mutation, space: &mut UserSpace) -> Admission {
        let end = mutation.block + u64::from(mutation.count);
        let taken = self.map.holes_in(mutation.block..end);
        if taken > space.blocks {
            // Another volume may be about to give back slots that it no longer needs.
            let long = self.has_waited_for_grants(taken);
            let whole = self.reservation.slots >= self.slots_max() || self.waits_for_room_in_vain();
            let refuse = (long || whole) && !self.is_asking_nodes();
            // If the nodes' answers come too late for this request, they help the next one.
            self.grow_reservation();
            if refuse {
                return Admission::Refuse(BlockError::NoSpace);
            }
            self.wake_soon();
            return Admission::Wait;
        }
        self.log.lack = self.log.lack.filter(|lack| taken < lack.blocks);
        space.blocks -= taken;
        if mutation.kind == EntryKind::Data && space.borrowed {
            self.start_sync();
            return Admission::Wait;
        }
        let starved = match mutation.kind {
            EntryKind::Data => space.starved,
            EntryKind::Reserve => self.starves_if_reserved(taken),
            EntryKind::Trim => false,
        };
        self.log.reserving_blocks = match mutation.kind {
            EntryKind::Reserve if starved => taken,
            _ => 0,
        };
        if starved {
            let since = *self.log.starved_since.get_or_insert(self.now);
            let first = *self.log.hopeless_since.get_or_insert(self.now);
            let patience_ms = if self.awaits_others() { GRANT_MS_MAX } else { STUCK_MS_MAX };
            let long = self.now.since(since) >= Nanos::from_ms(patience_ms);
            let stuck = long && self.gc.is_stuck() && !self.is_asking_nodes();
            let stuck = stuck || self.waits_for_room_in_vain();
            let last = first.max(self.log.moved_at);
            let hopeless = self.now.since(last) >= Nanos::from_ms(HOPELESS_MS)
                || self.now.since(first) >= Nanos::from_ms(SLOW_MS_MAX);
            if (stuck && !self.is_asking_nodes()) || hopeless {
                space.refused = true;
                return Admission::Refuse(BlockError::NoSpace);
            }
            self.make_room();
            return Admission::Wait;
        }
        self.log.hopeless_since = None;
        if let Some(since) = self.log.starved_since.take() {
            let pause = self.now.since(since).0;
            self.counters.gc_pause_max_ns = self.counters.gc_pause_max_ns.max(pause);
        }
        Admission::Take
    }

    /// A change that takes `blocks` found no room. True when the volume has asked nodes for more
    /// long enough, for this change or for others lately: of changes that wait together, only the
    /// first one has to wait.
    fn has_waited_for_grants(&mut self, blocks: u64) -> bool {
        let now = self.now;
        let lately = |lack: &Lack| now.since(lack.last) < Nanos::from_ms(LACK_MS_MAX);
        let before = self.log.lack.filter(lately).unwrap_or(Lack { since: now, last: now, blocks });
        let blocks = blocks.min(before.blocks);
        self.log.lack = Some(Lack { last: now, blocks, ..before });
        now.since(before.since) >= Nanos::from_ms(GRANT_MS_MAX)
    }

    /// Makes the log try waiting changes again after a pause, without another event.
    fn wake_soon(&mut self) {
        if self.log.wake.begin() {
            self.spawn_with(|ctx| async move {
                ctx.sleep_ms(RETRY_PAUSE_MS).await;
                ctx.with(|core| core.log.wake.end());
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_block::Op;
    use fieldstone_proto::BLOCK_BYTES;

    use crate::record::Entry;
    use crate::script::{Script, request};
    use crate::segment::State;
    use fieldstone_tasks::oneshot;

    /// Whether a write, a trim and a move are refused that wait for a minute while the ring is
    /// full. Four shards of a segment are written, and the volume's own shards leave so many of the
    /// other four nodes without room. `stored`: the volume seals another segment again and again.
    fn are_refused(nodes_without_room: usize, stored: bool) -> bool {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), None, None]);
        script.core(|core| {
            core.segments.set_state(handle, State::Closed);
            core.segments.get_mut(handle).expect("it was added").begun_at = Some(Nanos(1));
            let kept = u32::try_from(2 * core.checkpoint_segments()).expect("small");
            let nodes = core.nodes.iter_mut().skip(4).take(nodes_without_room);
            nodes.for_each(|node| node.slots.free = kept);
            core.queue_user(request(Op::Write, 0, 1), EntryKind::Data);
            core.queue_user(request(Op::Trim, 1, 1), EntryKind::Trim);
            let entry = Entry { kind: EntryKind::Data, block: 2, count: 1, segment_block: 0 };
            let data = bytes::Bytes::from(vec![0; BLOCK_BYTES]);
            core.queue_internal(entry, data, None, oneshot().0);
            for _ in 0..60 {
                core.hold_all();
                core.now = core.now.plus(Nanos::from_ms(1_000));
                if stored {
                    core.log.stored_at = core.now;
                }
            }
            let refused =
                core.outbox.completions().iter().map(|c| c.result == Err(BlockError::NoSpace));
            let refused: Vec<bool> = refused.collect();
            assert!(refused.is_empty() || refused == [true, true], "{refused:?}");
            assert_eq!(core.log.internal.is_empty(), !refused.is_empty(), "the move");
            !refused.is_empty()
        })
    }

    #[test]
    fn a_full_ring_refuses_changes_when_too_few_nodes_take_shards() {
        assert!(!are_refused(2, false), "two nodes take the two shards");
        assert!(are_refused(3, false));
        assert!(!are_refused(3, true), "it gets on");
    }
}
