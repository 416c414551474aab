//! Who waits for room, and who is refused.
//!
//! A change waits while collection, nodes or neighbours may still make room for it. It is refused
//! when none of them will, or when it has waited too long.

use fieldstone_block::{BlockError, Nanos};

use super::{Lack, Line, Mutation};
use crate::core::{Core, Node};
use crate::record::EntryKind;
use crate::status::NodeHealth;

/// How long users' writes wait for room when collection finds nothing to free.
const STUCK_MS_MAX: u64 = 500;

/// How long users' writes wait for room when none of them gets on. A node that joins again and
/// again, and fails each time, keeps collection and reservations busy for ever.
const HOPELESS_MS: u64 = 16_000;

/// How long changes wait for nodes to grant more room: neighbours look every 2 s at most whether
/// others lack room.
const GRANT_MS_MAX: u64 = 2_500;
/// How long it counts that changes found no room, if none has come since.
const LACK_MS_MAX: u64 = 2 * GRANT_MS_MAX;
/// Pause before the log is looked at again because a node may grant more.
const LOOK_AGAIN_MS: u64 = 50;

/// What users may still take, as seen at the start of a record.
pub(super) struct UserSpace {
    pub blocks: u64,
    pub starved: bool,
    pub lent: bool,
    /// A write was refused because collection makes no room. The writes behind it have waited for
    /// the same, and are refused with it.
    pub refused: bool,
}

/// What becomes of a change.
pub(super) enum Admission {
    Take,
    Wait,
    Refuse(BlockError),
}

impl Core {
    /// More nodes than may be lost are lost or have no room, and users have waited longer for that
    /// than they should. Collection waits for the same nodes.
    fn waits_for_room_in_vain(&mut self) -> bool {
        if !self.too_few_nodes(|node| !node.short && !node.full) {
            // A node may say for a moment that it has room: the time goes on until a write of a
            // user gets on.
            return false;
        }
        let since = *self.log.no_room_since.get_or_insert(self.now);
        self.wake_soon();
        self.is_too_long(Some(since))
    }

    /// More nodes than may be lost are lost, or do not have what `has` asks for.
    fn too_few_nodes(&self, has: impl Fn(&Node) -> bool) -> bool {
        let lost = |node: &&Node| node.health != NodeHealth::Up || !has(node);
        self.nodes.iter().filter(lost).count() > usize::from(self.config.missing_max)
    }

    /// The ring is full: changes wait until segments are stored. If nodes have no room for these,
    /// the changes are refused; trims only if the disks are full, because a checkpoint takes the
    /// place of their records otherwise.
    ///
    /// Where records of shelved segments fill the ring, only a checkpoint empties the ring, and
    /// collection writes the checkpoint after the move under way. So that move is given up.
    pub(super) fn hold_all(&mut self) {
        if self.segments.any_shelved() {
            self.refuse_line(Line::Internal);
        }
        if !self.waits_for_room_in_vain() {
            return;
        }
        let disks_full = self.too_few_nodes(|node| !node.disk_full);
        let lines = if disks_full { &[Line::Users, Line::Trims][..] } else { &[Line::Users] };
        for line in lines {
            self.refuse_line(*line);
        }
    }

    fn refuse_line(&mut self, line: Line) {
        for mutation in std::mem::take(self.log.line(line)) {
            self.refuse(&mutation, BlockError::NoSpace);
        }
    }

    /// No room is left for a segment: changes with blocks wait until collection has made some. If
    /// it finds none they are refused.
    pub(super) fn hold_line(&mut self, line: Line) {
        // A move is given up at once: what it would have freed stays where it is.
        let since = *self.log.held_since.get_or_insert(self.now);
        let tried = self.gc_stuck && !self.gc_running && !self.reservation_changes();
        let long = self.now.since(since) >= Nanos::from_ms(STUCK_MS_MAX);
        let hopeless = self.now.since(since) >= Nanos::from_ms(HOPELESS_MS);
        let vain = (tried && long) || hopeless || self.waits_for_room_in_vain();
        if line == Line::Internal || vain {
            self.log.held_since = None;
            return self.refuse_line(line);
        }
        if self.segments.row_backed() > 0 {
            // Room that is lent to these segments comes back when they are durable.
            return self.start_sync();
        }
        self.make_room();
    }

    /// Whether a user's change that may take space may be appended now.
    pub(super) fn admit(&mut self, mutation: &Mutation, space: &mut UserSpace) -> Admission {
        let end = mutation.block + u64::from(mutation.count);
        let taken = self.map.holes_in(mutation.block..end);
        if taken > space.blocks {
            // A neighbour may be about to give back what it no longer needs.
            let long = self.has_waited_for_grants(taken);
            let whole =
                self.reservation.slots >= self.slots_most() || self.waits_for_room_in_vain();
            let refuse = (long || whole) && !self.reservation_changes();
            // What nodes answer helps the next request, if it comes too late for this one.
            self.grow_reservation();
            if refuse {
                return Admission::Refuse(BlockError::NoSpace);
            }
            self.wake_soon();
            return Admission::Wait;
        }
        self.log.lack = self.log.lack.filter(|lack| taken < lack.blocks);
        space.blocks -= taken;
        if mutation.kind == EntryKind::Data && space.lent {
            self.start_sync();
            return Admission::Wait;
        }
        if mutation.kind == EntryKind::Data && space.starved {
            let since = *self.log.starved_since.get_or_insert(self.now);
            let long = self.now.since(since) >= Nanos::from_ms(STUCK_MS_MAX);
            let stuck = long && self.gc_stuck && !self.gc_running && !self.reservation_changes();
            let stuck = stuck || self.waits_for_room_in_vain();
            let hopeless = self.now.since(since) >= Nanos::from_ms(HOPELESS_MS);
            if (stuck && !self.reservation_changes()) || hopeless {
                space.refused = true;
                return Admission::Refuse(BlockError::NoSpace);
            }
            self.make_room();
            return Admission::Wait;
        }
        if let Some(since) = self.log.starved_since.take() {
            let pause = self.now.since(since).0;
            self.counters.gc_pause_max_ns = self.counters.gc_pause_max_ns.max(pause);
        }
        Admission::Take
    }

    /// No room was found for a change that takes `blocks`. True when nodes have been asked for more
    /// for long, for this change or for others lately: of changes that wait together, only the first
    /// one has to wait.
    fn has_waited_for_grants(&mut self, blocks: u64) -> bool {
        let now = self.now;
        let lately = |lack: &Lack| now.since(lack.last) < Nanos::from_ms(LACK_MS_MAX);
        let before = self.log.lack.filter(lately).unwrap_or(Lack { since: now, last: now, blocks });
        let blocks = blocks.min(before.blocks);
        self.log.lack = Some(Lack { last: now, blocks, ..before });
        now.since(before.since) >= Nanos::from_ms(GRANT_MS_MAX)
    }

    /// Looks at what waits again in a while, without another event.
    fn wake_soon(&mut self) {
        if !std::mem::replace(&mut self.log.wakes, true) {
            self.spawn_with(|ctx| async move {
                ctx.sleep_ms(LOOK_AGAIN_MS).await;
                ctx.with(|core| core.log.wakes = false);
            });
        }
    }
}
