//! A request for slots, and the node's answer.

use fieldstone_block::Nanos;
use fieldstone_proto::{NodeError, NodeIndex, ReplyBody, RequestBody, SegmentId, SegmentKind};

use crate::calls::CallResult;
use crate::core::{Ctx, VolumeCore};
use crate::node::{Node, SHORT_SLOTS, Shortage};
use crate::segment::{Segment, State};
use crate::status::NodeHealth;
use fieldstone_tasks::Awaited;

/// How often the log repeats that a node's disk is full.
const WARN_AGAIN_MS: u64 = 60_000;
/// How many numbers of slots the volume tries on a node that refuses, between the number that it
/// wants and the number that it may have already.
pub(super) const TRIES_MAX: u32 = 8;
/// How often a change checks whether the change before it has ended.
pub(super) const CHANGE_POLL_MS: u64 = 5;

/// A request for slots.
pub(super) struct SlotRequest {
    node: NodeIndex,
    /// The session of the node in which the volume asked.
    session: u64,
    /// The whole reservation that the volume asked for.
    slots: u32,
    /// Those of the `slots` that the volume can do without.
    spare: u32,
    /// Slots that the volume gives back with this request. If the node does not answer that it has
    /// granted the `slots`, it still keeps them for the volume.
    given_up: u32,
}

/// Asks several nodes at once, and waits for all answers.
pub(super) async fn ask_all(
    ctx: &Ctx,
    nodes: &[NodeIndex],
    mut request: impl FnMut(&mut VolumeCore, usize, NodeIndex) -> (u32, u32),
) -> (Vec<SlotRequest>, Vec<(NodeIndex, CallResult)>) {
    let (asked, calls) = ctx.with(|core| {
        let mut ask = |(index, node): (usize, &NodeIndex)| {
            let (slots, spare) = request(core, index, *node);
            let (asked, call) = core.ask(*node, slots, spare);
            (asked, (*node, call))
        };
        nodes.iter().enumerate().map(&mut ask).unzip::<_, _, Vec<_>, Vec<_>>()
    });
    let answers = ctx.wait_all(calls).await;
    (asked, answers)
}

impl VolumeCore {
    /// Sends a node the request for `slots` slots, of which the volume can do without `spare`.
    pub(super) fn ask(
        &mut self,
        node: NodeIndex,
        slots: u32,
        spare: u32,
    ) -> (SlotRequest, Awaited<CallResult>) {
        let state = self.node_mut(node);
        state.slots.give_up(slots);
        // Only a known reservation says what the node keeps.
        let given_up = if state.slots.reserved > 0 { state.slots.given_up } else { 0 };
        let asked = SlotRequest { node, session: state.link.session, slots, spare, given_up };
        let call = self.call(node, RequestBody::Reserve { slots, spare }, Vec::new());
        (asked, call)
    }

    /// Updates the need that the node announces for this volume, and the number of slots that the
    /// volume can do without, as the node does (its `store/allotments`).
    fn note_announced(&mut self, asked: &SlotRequest, answer: &CallResult) {
        let needed = asked.slots - asked.spare;
        let state = self.node_mut(asked.node);
        let announced = match answer {
            _ if state.link.session != asked.session => return,
            _ if needed <= state.slots.reserved => 0,
            Ok(_) if asked.slots <= state.slots.reserved => 0,
            Ok(_) if asked.slots < state.slots.announced => state.slots.announced,
            Err(NodeError::Busy) => state.slots.announced.max(needed),
            _ => 0,
        };
        state.slots.announced = announced;
        state.slots.spare = match answer {
            Ok(_) => asked.spare,
            Err(_) if needed > state.slots.reserved => 0, // the volume needs all that it has
            Err(_) => state.slots.spare,
        };
    }

    /// A node did not make a reservation smaller, because it is busy or its disk has an error. The
    /// volume still has the slots that it wanted to give back.
    fn note_not_granted(&mut self, asked: &SlotRequest) {
        let state = self.node_mut(asked.node);
        // A node that has joined since has no known reservation.
        let known = state.link.connected && state.slots.reserved > 0;
        if known && state.link.session == asked.session {
            state.slots.reserved += asked.given_up;
        }
    }

    /// A node answered that the volume has reserved `slots` slots there.
    fn note_reserved(&mut self, node: NodeIndex, slots: u32) {
        let (now, was_limited) = (self.now, self.is_limited_by_disk(self.node(node)));
        let state = self.node_mut(node);
        let came_back = state.slots.reserved == 0 && state.slots.back_since.is_some();
        if came_back || was_limited {
            state.slots.back_since = Some(now);
        }
        let taken = slots.saturating_sub(state.slots.reserved);
        let given = state.slots.reserved.saturating_sub(slots);
        state.stat.slots_free = state.stat.slots_free.saturating_sub(taken) + given;
        state.slots.reserved = slots;
        state.slots.disk_limited = false;
        self.note_short(node);
    }

    /// The node has granted all that the volume wanted, or `less` because of other volumes.
    fn note_granted(&mut self, node: NodeIndex, less: bool) {
        self.node_mut(node).slots.granted_less = less && self.reservation.agreed;
        self.note_short(node);
    }

    /// The node has granted less than the volume has reserved on the other nodes, and its disk has
    /// no room for more. If the disks of all nodes refuse more, none of them is limited by its
    /// disk: the volume has the same number on each.
    pub fn is_limited_by_disk(&self, node: &Node) -> bool {
        node.slots.disk_limited && node.slots.reserved < self.reservation.slots
    }

    /// The node did not grant a reservation because its disk has no room.
    pub(super) fn note_disk_limited(&mut self, node: NodeIndex) {
        self.node_mut(node).slots.disk_limited = true;
        self.note_short(node);
    }

    /// Notes the answers of nodes to requests for slots. A node that was lost since the volume
    /// asked may be an empty replacement, which has granted nothing.
    pub(super) fn note_answers(
        &mut self,
        asked: &[SlotRequest],
        answers: &[(NodeIndex, CallResult)],
    ) {
        for (asked, (node, answer)) in asked.iter().zip(answers) {
            if answer.is_err() {
                self.note_not_granted(asked);
            }
            self.note_announced(asked, answer);
            match answer {
                Ok(_) if self.node(*node).link.session != asked.session => {}
                Ok(_) => {
                    self.node_mut(*node).slots.granted_less = false;
                    self.note_reserved(*node, asked.slots);
                }
                Err(NodeError::Io(_)) => self.note_disk_limited(*node),
                Err(_) => {}
            }
        }
    }

    /// Enough nodes have granted slots that the volume can do without the others.
    pub(super) fn is_enough(&self, nodes: usize) -> bool {
        nodes + usize::from(self.config.missing_max) >= self.nodes.len()
    }

    /// A node reports that nothing is left of the volume's reservation there. If the volume's own
    /// shards are not the reason, the node takes no shards, as if it were lost. There are two such
    /// cases:
    /// - its disk is full: its file system has less room than the size of the node says; or
    /// - it granted less than the others, because other volumes have reserved its slots. That is no
    ///   fault of the node, so no segment may have fewer shards for this reason: the volume leaves
    ///   the node out only if a segment still finds enough other nodes.
    pub fn note_short(&mut self, node: NodeIndex) {
        // Any segment that has begun may have come to the node.
        let begun = |core: &Self| core.segments.unsealed();
        self.note_shortage(node, begun);
    }

    /// The same for a node that keeps a segment waiting. Of the segments that have begun, only
    /// those count that may hold a slot there: otherwise the waiting ones would hide that the disk
    /// is full.
    pub fn note_short_at_rest(&mut self, node: NodeIndex) {
        let begun = |core: &Self| {
            let unsealed = core.segments.unsealed_segments();
            unsealed.filter(|(_, segment)| core.may_hold_slot(segment, node)).count() as u64
        };
        self.note_shortage(node, begun);
    }

    /// See [`Self::note_short`]. `begun` gives the segments that have begun and may hold a slot.
    fn note_shortage(&mut self, node: NodeIndex, begun: impl Fn(&Self) -> u64) {
        let state = self.node(node);
        if state.health != NodeHealth::Up {
            return; // it is down, and its reason says why
        }
        let lacks = || {
            let of_rebuild = |id: &&SegmentId| {
                self.segments.named(**id).is_none_or(|segment| segment.state >= State::Sealed)
            };
            let claimed = state.slots.claimed.keys().filter(of_rebuild).count() as u64;
            let moving = begun(self) + self.gc.segments_freeing() + claimed;
            u64::from(self.slots_known(node)) + moving < u64::from(state.slots.reserved)
        };
        let little = state.slots.free <= SHORT_SLOTS || !self.has_room_for_data(node);
        let full = little && (self.is_limited_by_disk(state) || lacks());
        let others = self.nodes_that(|n| n.health == NodeHealth::Up && !n.is_short());
        let others = others.iter().filter(|other| **other != node).count();
        let wide = others >= self.shape.layout().width();
        let shortage = match full {
            true => Shortage::DiskFull,
            false if little && state.slots.granted_less && wide => Shortage::OtherVolumes,
            false => Shortage::None,
        };
        let (reason, warning) = match shortage {
            Shortage::None => ("", ""),
            Shortage::DiskFull => {
                ("its disk is full", "its disk has less room than the node's size says")
            }
            Shortage::OtherVolumes => {
                ("other volumes have reserved its room", "other volumes have its room")
            }
        };
        let now = self.now;
        let state = self.node_mut(node);
        if state.slots.shortage == shortage {
            return;
        }
        state.reason = reason.into();
        if state.is_disk_full() {
            state.slots.back_since = Some(now);
        }
        state.slots.shortage = shortage;
        if shortage != Shortage::None {
            let again = Nanos::from_ms(WARN_AGAIN_MS);
            if state.slots.warned_at.is_none_or(|at| now.since(at) >= again) {
                state.slots.warned_at = Some(now);
                tracing::warn!("{node}: {warning}");
            }
        }
    }

    /// The reservation of a node that the volume makes smaller, to `slots` slots: at least those
    /// that it has taken there since the node granted more, and may be about to take.
    pub(super) fn slots_to_keep(&self, node: NodeIndex, slots: u32) -> u32 {
        let state = self.node(node);
        slots.max(self.slots_min_on(node).min(state.slots.reserved))
    }

    /// Two bounds of the present reservation on a node, the larger one first; neither is more than
    /// `wanted`. If the node has granted slots since it connected, both are that number: the slots
    /// that the volume is giving up are the node's only when the node has answered. Otherwise they
    /// are the number of slots that the volume knows it has there, with and without slots that
    /// shards under way may take.
    fn slots_granted_before(&mut self, node: NodeIndex, wanted: u32) -> (u32, u32) {
        let moving = self.segments.unsealed() + self.gc.segments_freeing();
        let moving = u32::try_from(moving).unwrap_or(u32::MAX);
        let min_slots = self.slots_known(node);
        let state = self.node_mut(node);
        if state.slots.reserved > 0 {
            let granted = state.slots.reserved.saturating_add(state.slots.given_up).min(wanted);
            return (granted, granted);
        }
        let given = min_slots.saturating_sub(wanted).min(state.slots.free);
        state.slots.free -= given;
        state.slots.given_up += given;
        (min_slots.saturating_add(moving).min(wanted), min_slots.min(wanted))
    }

    /// Slots that the volume holds on a node, plus slots that it may still take there.
    pub(super) fn slots_known(&self, node: NodeIndex) -> u32 {
        self.shards_on(node).saturating_add(self.node(node).slots.free)
    }

    /// The segment has begun, and may hold a slot on the node although the table shows no shard of
    /// it there: a shard or rows that are on their way, that nothing has noted yet, or that are to
    /// be deleted.
    fn may_hold_slot(&self, segment: &Segment, node: NodeIndex) -> bool {
        let claimed = self.node(node).slots.claimed.contains_key(&segment.id);
        let has_rows = segment.rows.as_ref().is_some_and(|rows| rows.keeps(node));
        let left = segment.left_on.contains(&node) || self.has_bad(segment.id, node);
        !segment.has_shard_on(node) && (segment.sending || claimed || has_rows || left)
    }

    /// Looks for the reason why few slots are left, on the nodes that reported another number. The
    /// volume notes the shards that the nodes have acknowledged before that.
    pub fn note_changed_slots(&mut self) -> bool {
        let changed = self.nodes_that(|node| node.slots.changed);
        for node in &changed {
            self.node_mut(*node).slots.changed = false;
            self.note_short(*node);
        }
        !changed.is_empty()
    }

    /// Shards of the volume on a node.
    pub fn shards_on(&self, node: NodeIndex) -> u32 {
        self.shards_such(node, |_| true)
    }

    /// The same, without those of checkpoints.
    pub(super) fn data_shards_on(&self, node: NodeIndex) -> u32 {
        self.shards_such(node, |segment| segment.kind == SegmentKind::Data)
    }

    fn shards_such(&self, node: NodeIndex, such: impl Fn(&Segment) -> bool) -> u32 {
        let holds = |segment: &Segment| segment.has_shard_on(node);
        let counts = |segment: &Segment| holds(segment) && such(segment);
        let held = self.segments.iter().filter(|(_, segment)| counts(segment)).count();
        u32::try_from(held).unwrap_or(u32::MAX)
    }
}

/// The next number to ask for after a node has refused `slots` slots the `attempt`th time. The
/// volume's present reservation on the node lies between `reserved_min` and `reserved_max`. Down to
/// `reserved_max`, each try halves the rest. From there on, each try is one slot smaller. A node
/// grants the present reservation, and any smaller number. With a smaller number the volume gives
/// slots away that segments in flight need.
fn next_try(slots: u32, attempt: u32, reserved_max: u32, reserved_min: u32) -> u32 {
    if slots <= reserved_max {
        return slots.saturating_sub(1).max(reserved_min);
    }
    if attempt + 1 >= TRIES_MAX { reserved_max } else { reserved_max + (slots - reserved_max) / 2 }
}

/// Reserves `wanted` slots on one node, or as many as the node grants.
///
/// If the volume needs more than the node grants, and other volumes can spare slots there, the node
/// tells them so from the first refusal on, until it has granted a request for all slots that the
/// volume then needs. A request for the present reservation would end this, so the volume does not
/// send one.
pub async fn reserve_on(ctx: &Ctx, node: NodeIndex, wanted: u32) {
    let (reserved_max, reserved_min) = ctx.with(|core| core.slots_granted_before(node, wanted));
    let mut slots = wanted;
    // Whether the node's disk is the reason for the last refusal.
    let mut by_disk = false;
    for attempt in 1.. {
        let (asked, call) = ctx.with(|core| {
            let spare = core.slots_spare(node, slots);
            core.ask(node, slots, spare)
        });
        let answer = call.await;
        ctx.with(|core| {
            if answer.is_err() {
                core.note_not_granted(&asked);
            }
            core.note_announced(&asked, &answer);
        });
        match answer {
            Ok(_) => {
                return ctx.with(|core| {
                    core.note_reserved(node, slots);
                    core.note_granted(node, slots < wanted.max(core.reservation.slots));
                    if by_disk {
                        core.note_disk_limited(node);
                    }
                });
            }
            Err(NodeError::NoSpace | NodeError::Busy) if slots > reserved_min => by_disk = false,
            Err(NodeError::Io(_)) if slots > reserved_min => by_disk = true,
            Err(_) if by_disk => return ctx.with(|core| core.note_disk_limited(node)),
            Err(_) => return,
        }
        slots = next_try(slots, attempt, reserved_max, reserved_min);
        let waits = ctx.with(|core| {
            let state = core.node(node);
            let same = state.link.session == asked.session && state.slots.reserved == slots;
            let waits = same && !by_disk && state.slots.announced > slots;
            if waits {
                core.node_mut(node).slots.disk_limited = false;
                core.note_granted(node, true);
            }
            waits
        });
        if waits {
            return;
        }
    }
}

/// The node cannot grant a reservation because of other volumes.
pub(super) fn others_have_it(answer: &CallResult) -> bool {
    matches!(answer, Err(NodeError::NoSpace | NodeError::Busy))
}

/// Asks the node for its present numbers of slots.
pub async fn refresh_stat(ctx: &Ctx, node: NodeIndex) {
    if let Ok(ReplyBody::Stat(stat)) = ctx.call(node, RequestBody::Stat).await {
        ctx.with(|core| core.node_mut(node).stat = stat);
    }
}

/// Waits until no other change of the reservation is under way, and begins one. The caller ends the
/// change.
pub async fn begin_change(ctx: &Ctx) {
    while !ctx.with(|core| core.reservation.begin_change()) {
        ctx.sleep_ms(CHANGE_POLL_MS).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::Provisioning;
    use crate::script::{SLOTS, Script, Sent, grants};

    const NODE: NodeIndex = NodeIndex(3);

    #[test]
    fn a_reservation_does_not_count_for_the_replacement_of_the_node() {
        let mut script = Script::serving(8);
        script.core(|core| {
            let granted = [(NODE, Ok(ReplyBody::Done))];
            let (asked, _) = core.ask(NODE, SLOTS, 0);
            let state = core.node_mut(NODE);
            (state.link.session, state.slots.reserved) = (state.link.session + 1, 0);
            core.note_answers(&[asked], &granted);
            assert_eq!(core.node(NODE).slots.reserved, 0);
            let (asked, _) = core.ask(NODE, SLOTS, 0);
            core.note_answers(&[asked], &granted);
            assert_eq!(core.node(NODE).slots.reserved, SLOTS);
        });
    }

    #[test]
    fn a_node_announces_a_refused_need() {
        let mut script = Script::serving(8);
        let whole = script.core(|core| {
            core.reservation.provisioning = Provisioning::Thick;
            let whole = core.slots_whole(core.shape.size_bytes());
            core.reservation.slots = whole;
            grants(core, &[whole; 8]);
            core.node_mut(NODE).slots.reserved = whole - 9;
            whole
        });
        script.start(move |ctx| async move { reserve_on(&ctx, NODE, whole).await });
        loop {
            let sent = script.sent();
            let [sent] = &sent[..] else { break };
            let RequestBody::Reserve { slots, spare } = sent.request.body else { panic!() };
            assert!(slots > whole - 9 && spare == 0, "{slots}");
            script.answer(sent, Err(NodeError::Busy));
        }
        script.core(|core| {
            assert_eq!(core.node(NODE).slots.reserved, whole - 9);
            assert!(core.awaits_others() && core.stale_announcements().is_empty());
            core.node_mut(NODE).stat.slots_lacking = 11;
            assert_eq!(core.slots_lacking(NODE), 2, "others lack these");
            core.reservation.slots = whole - 9;
            assert_eq!(core.stale_announcements(), [NODE]);
        });
        script.start(move |ctx| async move { reserve_on(&ctx, NODE, whole - 9).await });
        let sent = script.sent_one();
        assert_eq!(sent.request.body, RequestBody::Reserve { slots: whole - 9, spare: 0 });
        script.done(&sent);
        script.sent();
        assert!(!script.core(|core| core.awaits_others()), "the volume has cancelled its request");
    }

    /// No matter how many slots the node has reserved for the volume, the volume ends with this
    /// number.
    #[test]
    fn no_slot_is_given_away_by_asking() {
        for (wanted, reserved_max, reserved_min) in
            [(47, 40, 34), (47, 47, 34), (40, 34, 34), (6, 5, 0)]
        {
            for has in reserved_min..=reserved_max {
                let (mut slots, mut attempt) = (wanted, 1);
                while slots > has {
                    assert!(slots > reserved_min, "{wanted} {reserved_max} {reserved_min} {has}");
                    slots = next_try(slots, attempt, reserved_max, reserved_min);
                    attempt += 1;
                }
                assert_eq!(slots, has, "{wanted} {reserved_max} {reserved_min}");
                assert!(attempt <= 1 + TRIES_MAX + (reserved_max - reserved_min));
            }
        }
    }

    #[test]
    fn slots_that_are_being_given_up_are_not_given_away_by_a_refusal() {
        let mut script = Script::serving(8);
        script.core(|core| {
            grants(core, &[SLOTS; 8]);
            let state = core.node_mut(NODE);
            (state.slots.reserved, state.slots.free) = (67, 67);
            state.slots.give_up(60);
        });
        script.start(|ctx| async move { reserve_on(&ctx, NODE, 70).await });
        let reserved = |sent: &Sent| match sent.request.body {
            RequestBody::Reserve { slots, .. } => slots,
            _ => panic!("{:?}", sent.request.body),
        };
        for slots in [70, 68, 67] {
            let sent = script.sent_one();
            assert_eq!(reserved(&sent), slots);
            match slots {
                67 => script.done(&sent),
                _ => script.answer(&sent, Err(NodeError::NoSpace)),
            }
        }
        script.sent();
        script.core(|core| assert_eq!(core.node(NODE).slots.reserved, 67));
    }

    /// A slot is neither free nor taken. The disk has lost it, unless a segment that has begun may
    /// hold it.
    #[test]
    fn a_slot_that_is_lost_is_the_disks_unless_a_segment_may_hold_it() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&[None; 6]);
        let is_full = |core: &mut VolumeCore| {
            core.note_short_at_rest(NODE);
            core.node(NODE).is_disk_full()
        };
        script.core(|core| {
            core.segments.set_state(handle, State::Closed);
            let id = core.segments.get(handle).expect("it was added").id;
            let state = core.node_mut(NODE);
            (state.slots.reserved, state.slots.free) = (1, 0);
            core.note_short(NODE);
            assert!(!core.node(NODE).is_short(), "the segment may have come there");
            assert!(is_full(core), "the segment waits, and has sent nothing");
            core.segments.get_mut(handle).expect("it was added").sending = true;
            assert!(!is_full(core), "the node may have acknowledged its shard");
            core.segments.get_mut(handle).expect("it was added").sending = false;
            core.node_mut(NODE).slots.claimed.insert(id, 1);
            assert!(!is_full(core), "the shard is on its way");
            core.node_mut(NODE).slots.reserved = 2;
            assert!(is_full(core), "it takes one slot");
            core.node_mut(NODE).slots.claimed.clear();
            core.segments.get_mut(handle).expect("it was added").leave_on(NODE);
            core.node_mut(NODE).slots.reserved = 1;
            core.now = Nanos(77);
            assert!(!is_full(core), "it keeps an old shard");
            assert_eq!(core.node(NODE).slots.back_since, Some(Nanos(77)), "it is not full now");
        });
    }
}
