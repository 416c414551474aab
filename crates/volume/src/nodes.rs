//! Nodes that come (back) while the volume serves: it fences them, writes the root to them,
//! compares their shards, and uses them again.
//!
//! A node that was away may have missed anything: roots, deletions, new segments. So the volume
//! fences it again (the node refuses that, and rightly, if it still has our epoch), writes the root
//! to it, and lists its shards. Known shards count again, the volume deletes others, and shards
//! that should be there and are not count as missing. A blank replacement is just a node where
//! everything is missing.
//!
//! A listed shard need not be whole: if the node lost power before the shard was synced, its header
//! may be there without its data. A shard counts unverified only if the volume knew, when the node
//! was lost, that the shard was stable there. The node verifies all others first. The volume
//! deletes the bad ones, stably, before the node counts.
//!
//! The node may have a later epoch than this writer. Then either a newer writer serves the volume,
//! and this one ends. Or an opening fenced the node and ended before it served
//! (`may_have_successor`). The volume then goes on without the node, as if it were lost, until the
//! next opening gives all nodes one epoch. It must not fence the node above that opening: other
//! nodes may have a root of the opening that was never committed. With the node's vote the volume
//! would commit later roots, but their epoch is lower, so the next opening would take the wrong
//! one.

use std::collections::HashSet;

use fieldstone_block::Nanos;
use fieldstone_proto::{
    Epoch, JournalGen, NodeError, NodeIndex, NodeStat, ReplyBody, RequestBody, SegmentId,
    ShardInfo, VolumeSummary,
};

use crate::calls::CallResult;
use crate::core::{Core, Ctx};
use crate::exec::Awaited;
use crate::node::Shortage;
use crate::rebuild::list_shards;
use crate::root::Root;
use crate::segment::{Segment, State};
use crate::status::{NodeHealth, Phase};

/// The reason why a node is down that an opening has fenced.
const FENCED: &str =
    "an opening that did not end has fenced it; it takes part again when the volume is next opened";

/// Segments that one request deletes.
const DELETED_AT_ONCE: usize = 1024;

impl Core {
    /// A connection to the node is open.
    pub fn node_connected(&mut self, node: NodeIndex) {
        if self.node(node).link.connected {
            self.node_lost(node, "connected anew");
        }
        let now = self.now;
        let state = self.node_mut(node);
        state.link.connected = true;
        state.link.connected_at = now;
        state.link.session += 1;
        state.root_version = 0;
        self.start_join(node);
    }

    /// Makes a connected node join, once the volume serves.
    pub fn start_join(&mut self, node: NodeIndex) {
        let serving = matches!(self.phase, Phase::Serving | Phase::Closing);
        let state = self.node_mut(node);
        if !serving || !state.link.connected || state.health != NodeHealth::Down {
            return;
        }
        state.health = NodeHealth::Joining;
        let session = state.link.session;
        self.spawn_with(move |ctx| async move {
            let result = join(&ctx, node, session).await;
            ctx.with(|core| core.joined(node, session, result));
        });
    }

    fn joined(&mut self, node: NodeIndex, session: u64, result: Result<(), NodeError>) {
        if self.node(node).link.session != session {
            return;
        }
        match result {
            Ok(()) => {
                let state = self.node_mut(node);
                state.reason.clear();
                (state.trial.left_out, state.down_since) = (None, None);
                state.fenced = false;
                state.refuses_journals = false;
                self.collection.note_change();
                if self.log.nodes.len() <= self.code.m() {
                    // The journal lacked a copy. It moves to have one again.
                    self.log.moving = true;
                    self.log.moving_again = true; // the move under way does not know the node
                    self.start_mover();
                }
                // Rebuild comes second: it would take slots that other volumes need there.
                self.spawn_with(move |ctx| async move {
                    crate::reserve::reserve_joined(&ctx, node).await;
                    ctx.with(|core| {
                        core.start_rebuild();
                        core.consider_gc();
                    });
                });
            }
            Err(error) => {
                let fenced = matches!(error, NodeError::Fenced { .. });
                self.node_mut(node).fenced = fenced;
                match fenced {
                    true => self.give_up_node(node, FENCED),
                    false => self.give_up_node(node, &format!("joining: {error}")),
                }
            }
        }
    }

    /// True when a shard that a node lists may lack its data.
    fn unsure(&self, node: NodeIndex, info: &ShardInfo) -> bool {
        let known = self.segments.find(info.segment).and_then(|handle| self.segments.get(handle));
        !info.is_open()
            && known.is_some_and(|segment| {
                let counted = segment.shards.get(usize::from(info.shard.0)) == Some(&Some(node));
                segment.state >= State::Closed && !(counted && segment.state == State::Durable)
            })
    }

    /// Sends the requests that delete segments from a node, all at once. A shard of such a segment
    /// that the volume writes to the node after these requests stays.
    fn delete_from(&mut self, node: NodeIndex, segments: &[SegmentId]) -> Vec<Awaited<CallResult>> {
        let chunks = segments.chunks(DELETED_AT_ONCE);
        let body = |chunk: &[SegmentId]| RequestBody::ShardDelete { segments: chunk.to_vec() };
        chunks.map(|chunk| self.call(node, body(chunk), Vec::new())).collect()
    }

    /// Compares a node's shards with those that it should have. `bad` are the segments of which the
    /// node has a shard without its data; the list has no shards of these. Returns the segments to
    /// delete.
    fn reconcile(
        &mut self,
        node: NodeIndex,
        listed: &[ShardInfo],
        bad: &[SegmentId],
    ) -> Vec<SegmentId> {
        self.rebuild.note_synced(node);
        // What the node has besides the shards that count. Open shards are a reason to delete a
        // shard that counts only if all others are there, so that rebuild makes it again at once.
        let mut surplus: Vec<SegmentId> = bad.to_vec();
        let mut open: Vec<SegmentId> = Vec::new();
        let mut found: HashSet<SegmentId> = HashSet::new();
        let mut displacing = Vec::new();
        for info in listed {
            let index = usize::from(info.shard.0);
            // Of a segment that is being sealed, two kinds of shards count: those that the node has
            // acknowledged, and whole ones that no other node has. In the second case the volume
            // lost the node before it noted the node's answer.
            let counts = |s: &&mut Segment| {
                let placed = s.shards.get(index).copied().flatten();
                s.state >= State::Sealed
                    || (s.state == State::Closed
                        && (placed == Some(node)
                            || (placed.is_none() && !s.shards.contains(&Some(node)))))
            };
            if info.is_open() {
                open.push(info.segment);
                continue;
            }
            let handle = self.segments.find(info.segment);
            let segment = handle.and_then(|handle| self.segments.get_mut(handle)).filter(counts);
            let Some(segment) = segment.filter(|segment| segment.fits(info)) else {
                surplus.push(info.segment);
                continue;
            };
            let other = segment.shards[index].filter(|other| *other != node);
            // Rebuild may have made the shard on another node, where a power loss may take it. This
            // node's shard is stable, so it counts.
            let stays = other.is_none_or(|other| self.rebuild.is_unsynced(info.segment, other));
            if !stays || !found.insert(info.segment) {
                surplus.push(info.segment);
                continue;
            }
            match other {
                Some(other) => displacing.push((info.segment, index, other)),
                None => {
                    self.since_checkpoint.placement_changed |= segment.shards[index] != Some(node);
                    segment.shards[index] = Some(node);
                }
            }
        }
        let dispensable = |id: &SegmentId| {
            let there = |holder: Option<NodeIndex>| {
                holder.is_some_and(|holder| {
                    let up = self.node(holder).health == NodeHealth::Up;
                    holder == node || (up && !self.rebuild.is_unsynced(*id, holder))
                })
            };
            let segment = self.segments.named(*id);
            segment.is_some_and(|segment| {
                segment.state == State::Durable && segment.shards.iter().all(|node| there(*node))
            })
        };
        open.retain(|id| !found.contains(id) || dispensable(id));
        surplus.append(&mut open);
        let extra = self.leave_needed(node, surplus);
        // A deletion takes every shard of the segment from the node, including those that fit.
        for id in &extra {
            found.remove(id);
        }
        for (id, index, other) in displacing {
            if found.contains(&id) {
                self.displace(id, index, (other, node));
            }
        }
        for handle in self.segments.handles() {
            let Some(segment) = self.segments.get_mut(handle) else { continue };
            if segment.state < State::Closed || found.contains(&segment.id) {
                continue;
            }
            for shard in &mut segment.shards {
                if *shard == Some(node) {
                    *shard = None;
                }
            }
        }
        extra
    }

    /// The node has shards or rows of these segments that do not count. Gives the segments that the
    /// node is to delete. Until the journal has the records of the others whole, an opening may
    /// need what the node has.
    fn leave_needed(&mut self, node: NodeIndex, mut segments: Vec<SegmentId>) -> Vec<SegmentId> {
        segments.retain(|id| {
            let handle = self.segments.find(*id);
            let segment = handle.and_then(|handle| self.segments.get_mut(handle));
            let Some(segment) = segment.filter(|segment| segment.needs_rows()) else { return true };
            if !segment.left_on.contains(&node) {
                segment.left_on.push(node);
            }
            false
        });
        segments
    }

    /// The shard on the second node counts from now on, and the first node deletes its own.
    fn displace(&mut self, id: SegmentId, index: usize, (old, new): (NodeIndex, NodeIndex)) {
        let handle = self.segments.find(id);
        let Some(segment) = handle.and_then(|handle| self.segments.get_mut(handle)) else { return };
        segment.shards[index] = Some(new);
        self.since_checkpoint.placement_changed = true;
        // If the node is away, the volume compares its shards when it joins.
        drop(self.delete_from(old, &[id]));
    }
}

/// Brings the node's state for this volume up to date.
async fn join(ctx: &Ctx, node: NodeIndex, session: u64) -> Result<(), NodeError> {
    let epoch = ctx.with(|core| core.epoch);
    match ctx.call(node, RequestBody::Fence { takeover: true }).await {
        Ok(ReplyBody::VolumeState(state)) => {
            check_place(node, &state.stat)?;
            ctx.with(|core| {
                core.node_mut(node).stat = state.stat;
                // The node may have a root of an earlier writer that was never committed. The node
                // takes only higher versions.
                core.root_version = core.root_version.max(state.root_version);
            });
        }
        Ok(_) => return Err(NodeError::Invalid("not a volume state".into())),
        Err(NodeError::Fenced { current, .. }) if current == epoch => {
            match ctx.call(node, RequestBody::Stat).await? {
                ReplyBody::Stat(stat) => {
                    check_place(node, &stat)?;
                    ctx.with(|core| core.node_mut(node).stat = stat);
                }
                _ => return Err(NodeError::Invalid("not a node's state".into())),
            }
            // The answer to the fence may have been lost, and with it the version of the node's
            // root.
            if let Ok(Some(summary)) = summary_on(ctx, node).await
                && summary.is_usable()
            {
                ctx.with(|core| core.root_version = core.root_version.max(summary.root_version));
            }
        }
        Err(NodeError::Capability(_)) => {
            return Err(NodeError::Invalid(who_answers(ctx, node).await));
        }
        // Perhaps the node's record of the volume is damaged. The volume serves with the other
        // nodes, so the record may begin anew. Any other fault of the node stays.
        Err(error @ NodeError::Io(_)) => {
            if agreeing(ctx).await? < ctx.with(|core| core.nodes_needed()) {
                return Err(error);
            }
            match ctx.call(node, RequestBody::RenewRecord).await {
                Ok(ReplyBody::VolumeState(state)) => {
                    check_place(node, &state.stat)?;
                    tracing::warn!("{node}: its record of the volume was damaged, and is renewed");
                    ctx.with(|core| core.node_mut(node).stat = state.stat);
                }
                // The next attempt finds out who fenced it.
                Err(error @ NodeError::Fenced { .. }) => return Err(error),
                _ => return Err(error),
            }
        }
        Err(NodeError::Fenced { current, .. }) if current > epoch => {
            if may_have_successor(ctx, node).await? {
                return Err(fenced_out(ctx, current));
            }
            return Err(NodeError::Fenced { sent: epoch, current });
        }
        Err(error) => return Err(error),
    }
    let mut listed = list_shards(ctx, node).await?;
    let bad = verify_unsure(ctx, node, &listed).await?;
    listed.retain(|info| !bad.contains(&info.segment));
    // A bad shard may lack only the end of its data, and hold rows that an opening may need.
    let (kept, doomed): (Vec<SegmentId>, Vec<SegmentId>) =
        ctx.with(|core| bad.into_iter().partition(|id| core.segments.needs_rows(*id)));
    if !doomed.is_empty() {
        delete(ctx, node, session, doomed).await?;
    }
    // From then on the listed shards count as stable, whether they were synced before or not. And
    // the bad ones are gone for good: a power loss must not bring them back.
    ctx.call(node, RequestBody::ShardSync).await?;
    // From the comparison on, the node takes part in everything, so no change is missed.
    let deletions = ctx.with(|core| {
        if core.node(node).link.session != session {
            return Vec::new();
        }
        let extra = core.reconcile(node, &listed, &kept);
        // The volume next asks the node for its reservation. It may be a different node than
        // before.
        let state = core.node_mut(node);
        state.health = NodeHealth::Up;
        if state.slots.reserved > 0 {
            state.slots.before = state.slots.reserved;
        }
        (state.slots.reserved, state.slots.given_up, state.slots.wished) = (0, 0, 0);
        (state.slots.disk_limited, state.slots.granted_less) = (false, false);
        state.slots.shortage = Shortage::None;
        if core.shards_on(node) == 0 {
            core.node_mut(node).slots.before = 0;
        }
        core.delete_from(node, &extra)
    });
    for answer in crate::exec::all(deletions).await {
        answer?;
    }
    // A replaced node does not know the volume until it has a root, and an opening does not count
    // it.
    let lacks_root = |core: &mut Core| {
        let state = core.node(node);
        let here = state.link.session == session && state.health == NodeHealth::Up;
        let serves = matches!(core.phase, Phase::Serving | Phase::Closing);
        here && serves && !core.has_root(node)
    };
    while ctx.with(lacks_root) {
        if !crate::journal::put_root(ctx, |_| {}).await {
            ctx.sleep_ms(20).await;
        }
    }
    // While the journal moves, the generation that the root names still counts.
    let committed = ctx.with(|core| core.root.as_ref().map(|root| root.generation));
    if let Some(below) = committed {
        let first = JournalGen(0);
        ctx.call(node, RequestBody::JournalDelete { first, below }).await?;
    }
    Ok(())
}

/// Asks the nodes that are up for their epochs. Returns how many have this writer's. If these are
/// `nodes_needed`, no newer writer serves the volume. Without this question, a writer that does not
/// know yet that it is fenced could replace a record with the newer epoch, when the node cannot
/// read that record.
///
/// # Errors
/// A node has a newer epoch: the volume has failed.
async fn agreeing(ctx: &Ctx) -> Result<usize, NodeError> {
    let (nodes, epoch) = ctx.with(|core| (core.up_nodes(), core.epoch));
    // A node refuses a fence with an epoch that it has already.
    let answers = ctx.call_all(&nodes, &RequestBody::Fence { takeover: true }).await;
    let mut agreeing = 0;
    for (_, answer) in answers {
        match answer {
            Err(NodeError::Fenced { current, .. }) if current > epoch => {
                return Err(fenced_out(ctx, current));
            }
            Err(NodeError::Fenced { .. }) => agreeing += 1,
            _ => {}
        }
    }
    Ok(agreeing)
}

/// True if a successor of this writer may have served with the later epoch that a joining node has.
///
/// An opening serves only after nodes have taken a root of its epoch. If the node has such a root,
/// or has removed the volume, the successor counts. Otherwise some opening has fenced the node and
/// not come further there. Perhaps it has ended. Perhaps it goes on, and then fences nodes that
/// this writer needs: it learns of its successor from these.
///
/// # Errors
/// The node does not tell its root, or a node that is up has a later epoch: the volume has failed.
async fn may_have_successor(ctx: &Ctx, node: NodeIndex) -> Result<bool, NodeError> {
    agreeing(ctx).await?;
    let epoch = ctx.with(|core| core.epoch);
    match summary_on(ctx, node).await? {
        None => Ok(true),
        Some(summary) if summary.root_version == 0 => Ok(false),
        Some(summary) => match Root::decode(&summary.root) {
            Ok(root) => Ok(root.put_by > epoch),
            Err(error) => Err(NodeError::Invalid(error.to_string())),
        },
    }
}

/// The node's summary of the volume, if the node knows the volume.
async fn summary_on(ctx: &Ctx, node: NodeIndex) -> Result<Option<VolumeSummary>, NodeError> {
    let volume = ctx.with(|core| core.config.volume);
    let ReplyBody::Volumes(volumes) = ctx.call(node, RequestBody::ListVolumes).await? else {
        return Err(NodeError::Invalid("not a list of volumes".into()));
    };
    Ok(volumes.into_iter().find(|summary| summary.volume == volume))
}

/// Another writer has the volume, with the epoch `current`.
fn fenced_out(ctx: &Ctx, current: Epoch) -> NodeError {
    ctx.with(|core| {
        core.fence_out(current);
        NodeError::Fenced { sent: core.epoch, current }
    })
}

/// A different node of the pool may answer in this node's place.
fn check_place(node: NodeIndex, stat: &NodeStat) -> Result<(), NodeError> {
    if stat.node == node {
        return Ok(());
    }
    Err(NodeError::Invalid(format!("{} answers in its place", stat.node)))
}

/// For a node that does not know the pool's secret: the identity that it reports.
async fn who_answers(ctx: &Ctx, node: NodeIndex) -> String {
    let who = match ctx.call(node, RequestBody::Identify).await {
        Ok(ReplyBody::Stat(stat)) => format!("{} of the pool {}", stat.node, stat.pool),
        _ => "a stranger".to_owned(),
    };
    format!("it is {who}, which does not know this pool's secret")
}

/// Deletes segments from a node, unless the node has been lost since `session`: it may have joined
/// again, and got good shards of these segments.
async fn delete(
    ctx: &Ctx,
    node: NodeIndex,
    session: u64,
    segments: Vec<SegmentId>,
) -> Result<(), NodeError> {
    let calls = ctx.with(|core| match core.node(node).link.session == session {
        true => Some(core.delete_from(node, &segments)),
        false => None,
    });
    let calls = calls.ok_or(NodeError::Unreachable)?;
    crate::exec::all(calls).await.into_iter().try_for_each(|answer| answer.map(drop))
}

/// Verifies the listed shards that may lack their data. Returns the segments of bad ones.
async fn verify_unsure(
    ctx: &Ctx,
    node: NodeIndex,
    listed: &[ShardInfo],
) -> Result<HashSet<SegmentId>, NodeError> {
    let unsure: Vec<&ShardInfo> =
        ctx.with(|core| listed.iter().filter(|info| core.unsure(node, info)).collect());
    let mut bad = HashSet::new();
    for info in unsure {
        let (segment, shard) = (info.segment, info.shard);
        match ctx.call(node, RequestBody::ShardVerify { segment, shard }).await {
            Ok(_) => {}
            Err(NodeError::Corrupt { .. } | NodeError::NotFound) => {
                bad.insert(segment);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(bad)
}

/// Waits until enough nodes are connected to open the volume. Nodes that the opening leaves out do
/// not count. If too few nodes remain without them, each of them gets another chance.
///
/// # Errors
/// Too few nodes are connected after the time that a node has to answer.
pub async fn wait_for_nodes(ctx: &Ctx, grace_ms: u64) -> Result<Vec<NodeIndex>, String> {
    loop {
        let (usable, left_out, all, needed, waited, limit) = ctx.with(|core| {
            let usable =
                core.nodes_that(|node| node.link.connected && node.trial.left_out.is_none());
            let left_out = core.nodes_that(|node| node.trial.left_out.is_some()).len();
            let waited = core.now.since(core.recovery.attempt_began);
            let limit = Nanos::from_ms(core.config.node_timeout_ms);
            (usable, left_out, core.nodes.len(), core.nodes_needed(), waited, limit)
        });
        let patient = waited < Nanos::from_ms(grace_ms.min(limit.0 / 2_000_000));
        if usable.len() >= needed && (usable.len() + left_out == all || !patient) {
            return Ok(usable);
        }
        if left_out > 0 && all - left_out < needed {
            ctx.with(Core::let_all_in);
        }
        let missing = ctx.with(|core| {
            // A connected node among these answered badly; that is its reason.
            let mut down = core.nodes_that(|_| true);
            down.retain(|node| !usable.contains(node));
            let text = |node: &NodeIndex| format!("{node} ({})", core.node(*node).reason);
            let missing = down.iter().map(text).collect::<Vec<_>>().join(", ");
            core.recovery.waits_for =
                format!("nodes: {needed} of {all} are needed; missing: {missing}");
            missing
        });
        if waited >= limit {
            return Err(format!(
                "only {} of {all} nodes are reachable, {needed} are needed; missing: {missing}",
                usable.len(),
            ));
        }
        ctx.sleep_ms(20).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_proto::{SealMeta, SegmentKind, ShardIndex};

    use crate::journal::put_root;
    use crate::script::{Script, Sent, stat};
    use crate::seam::Opening;

    const NODE: NodeIndex = NodeIndex(5);

    fn put(sent: &Sent) -> Option<u64> {
        match sent.request.body {
            RequestBody::PutRoot { version } => Some(version),
            _ => None,
        }
    }

    /// The node joins, up to the moment when it takes part: it lists no shards.
    fn join_up(script: &mut Script) {
        let epoch = script.core(|core| core.epoch);
        let fence = script.sent_one();
        assert_eq!(
            (fence.node, &fence.request.body),
            (NODE, &RequestBody::Fence { takeover: true })
        );
        script.answer(&fence, Err(NodeError::Fenced { sent: epoch, current: epoch }));
        let asked = script.sent_one();
        assert_eq!(asked.request.body, RequestBody::Stat);
        script.answer(&asked, Ok(ReplyBody::Stat(stat(NODE))));
        let asked = script.sent_one();
        assert_eq!(asked.request.body, RequestBody::ListVolumes);
        script.answer(&asked, Ok(ReplyBody::Volumes(Vec::new())));
        let list = script.sent_one();
        assert_eq!(list.request.body, RequestBody::ShardList { from: SegmentId(0) });
        script.answer(&list, Ok(ReplyBody::Shards { shards: Vec::new(), next: None }));
        let sync = script.sent_one();
        assert_eq!(sync.request.body, RequestBody::ShardSync);
        script.done(&sync);
    }

    fn is_up(script: &mut Script) -> bool {
        script.core(|core| core.node(NODE).health == NodeHealth::Up && core.has_root(NODE))
    }

    /// Six shards on the nodes 0 to 5. The segment's journal records lack their blocks if `rows`.
    fn segment(script: &mut Script, rows: bool) -> SegmentId {
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)]);
        script.core(|core| {
            core.segments.set_state(handle, if rows { State::Sealed } else { State::Durable });
            core.segments.set_detached(handle, rows);
            core.segments.get(handle).expect("it was added").id
        })
    }

    fn listed(script: &mut Script, id: SegmentId, shard: u8) -> ShardInfo {
        let shard_bytes = script.core(|core| core.geometry.shard_bytes);
        let meta = SealMeta { shard_bytes, kind: SegmentKind::Data, ..SealMeta::default() };
        ShardInfo { segment: id, shard: ShardIndex(shard), meta }
    }

    fn open(id: SegmentId, shard: u8) -> ShardInfo {
        ShardInfo { segment: id, shard: ShardIndex(shard), meta: SealMeta::default() }
    }

    /// The node of each shard, and the nodes with something else of the segment.
    fn places(script: &mut Script, id: SegmentId) -> (Vec<Option<u16>>, Vec<u16>) {
        script.core(|core| {
            let segment = core.segments.named(id).expect("it was added");
            let shards = segment.shards.iter().map(|node| node.map(|node| node.0)).collect();
            (shards, segment.left_on.iter().map(|node| node.0).collect())
        })
    }

    const WHOLE: [Option<u16>; 6] = [Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)];
    const WITHOUT_5: [Option<u16>; 6] = [Some(0), Some(1), Some(2), Some(3), Some(4), None];

    #[test]
    fn an_open_copy_is_no_reason_to_delete_a_shard_that_counts() {
        let mut script = Script::serving(8);
        let id = segment(&mut script, false);
        let mut shards = WHOLE.to_vec();
        shards[2] = None;
        script.core(|core| core.reconcile(NodeIndex(2), &[], &[]));
        let list = [listed(&mut script, id, 5), open(id, 5)];
        assert!(script.core(|core| core.reconcile(NODE, &list, &[])).is_empty());
        assert_eq!(places(&mut script, id), (shards.clone(), vec![]));
        let alone = [open(id, 5)];
        assert_eq!(script.core(|core| core.reconcile(NODE, &alone, &[])), [id]);
        shards[5] = None;
        assert_eq!(places(&mut script, id), (shards, vec![]));
        // Rebuild can make the shard again: the segment has all others.
        let id = segment(&mut script, false);
        let list = [listed(&mut script, id, 5), open(id, 5)];
        assert_eq!(script.core(|core| core.reconcile(NODE, &list, &[])), [id]);
        assert_eq!(places(&mut script, id), (WITHOUT_5.to_vec(), vec![]));
    }

    /// Shards with rows that nothing else may have stay, although they do not count.
    #[test]
    fn what_an_opening_may_need_stays() {
        let mut script = Script::serving(8);
        let id = segment(&mut script, true);
        assert!(script.core(|core| core.reconcile(NODE, &[], &[id])).is_empty());
        assert_eq!(places(&mut script, id), (WITHOUT_5.to_vec(), vec![5]));
        // A shard that another node has.
        let list = [listed(&mut script, id, 3)];
        assert!(script.core(|core| core.reconcile(NodeIndex(6), &list, &[])).is_empty());
        assert_eq!(places(&mut script, id), (WITHOUT_5.to_vec(), vec![5, 6]));
        let id = segment(&mut script, false);
        assert_eq!(script.core(|core| core.reconcile(NODE, &[], &[id])), [id]);
    }

    #[test]
    fn a_returning_shard_counts_before_a_rebuilt_one_that_is_not_stable() {
        let mut script = Script::serving(8);
        let id = segment(&mut script, false);
        let back = NodeIndex(7);
        let list = [listed(&mut script, id, 5)];
        script.core(|core| core.rebuild.note_written(id, NODE));
        assert!(script.core(|core| core.reconcile(back, &list, &[])).is_empty());
        let mut shards = WHOLE.to_vec();
        shards[5] = Some(7);
        assert_eq!(places(&mut script, id), (shards, vec![]));
        let deletion = script.sent_one();
        assert_eq!(deletion.request.body, RequestBody::ShardDelete { segments: vec![id] });
        assert_eq!(deletion.node, NODE);
        // Once the rebuilt shard is stable, the returning one goes.
        let id = segment(&mut script, false);
        let list = [listed(&mut script, id, 5)];
        script.core(|core| core.rebuild.note_written(id, NODE));
        script.core(|core| core.rebuild.note_synced(NODE));
        assert_eq!(script.core(|core| core.reconcile(back, &list, &[])), [id]);
        assert_eq!(places(&mut script, id), (WHOLE.to_vec(), vec![]));
    }

    /// A shard whose end is missing may hold rows that nothing else has.
    #[test]
    fn a_bad_shard_with_rows_stays_when_its_node_joins() {
        let mut script = Script::serving(8);
        let id = segment(&mut script, true);
        let list = [listed(&mut script, id, 5)];
        let epoch = script.core(|core| core.epoch);
        script.reconnect(NODE);
        let mut synced = false;
        while !synced {
            let asked = script.sent();
            let asked = asked.iter().find(|sent| sent.node == NODE).expect("the node joins");
            let answer = match asked.request.body {
                RequestBody::Fence { .. } => Err(NodeError::Fenced { sent: epoch, current: epoch }),
                RequestBody::Stat => Ok(ReplyBody::Stat(stat(NODE))),
                RequestBody::ListVolumes => Ok(ReplyBody::Volumes(Vec::new())),
                RequestBody::ShardList { .. } => {
                    Ok(ReplyBody::Shards { shards: list.to_vec(), next: None })
                }
                RequestBody::ShardVerify { .. } => Err(NodeError::Corrupt { offset_bytes: 0 }),
                RequestBody::ShardSync => Ok(ReplyBody::Done),
                ref other => panic!("{other:?}"),
            };
            synced = asked.request.body == RequestBody::ShardSync;
            script.answer(asked, answer);
        }
        script.sent();
        assert_eq!(places(&mut script, id), (WITHOUT_5.to_vec(), vec![5]));
    }

    #[test]
    fn a_root_that_a_replaced_node_took_is_not_on_its_replacement() {
        let mut script = Script::serving(8);
        script.start(|ctx| async move {
            assert!(put_root(&ctx, |_| {}).await);
        });
        let puts = script.sent();
        assert_eq!(puts.len(), 8);
        let (mine, others): (Vec<_>, Vec<_>) = puts.iter().partition(|put| put.node == NODE);
        script.done(mine[0]);
        script.reconnect(NODE);
        join_up(&mut script);
        // The join waits for the change of the root that is under way.
        assert!(script.sent().is_empty());
        others.iter().for_each(|put| script.done(put));
        let puts = script.sent();
        assert!(puts.iter().all(|sent| put(sent) == Some(3)), "the root is written once more");
        assert!(puts.iter().any(|sent| sent.node == NODE) && !is_up(&mut script));
        puts.iter().for_each(|put| script.done(put));
        script.sent();
        assert!(is_up(&mut script));
    }

    #[test]
    fn a_root_under_way_when_a_node_joins_reaches_the_node() {
        let mut script = Script::serving(8);
        script.reconnect(NODE);
        // This change of the root begins while the node joins, and is not sent to the node.
        script.start(|ctx| async move {
            assert!(put_root(&ctx, |_| {}).await);
        });
        let mut sent = script.sent();
        let fence = sent.iter().position(|sent| sent.node == NODE).expect("the node joins");
        let fence = sent.remove(fence);
        let epoch = script.core(|core| core.epoch);
        script.answer(&fence, Err(NodeError::Fenced { sent: epoch, current: epoch }));
        for _ in 0..4 {
            let asked = script.sent_one();
            let answer = match asked.request.body {
                RequestBody::Stat => ReplyBody::Stat(stat(NODE)),
                RequestBody::ListVolumes => ReplyBody::Volumes(Vec::new()),
                RequestBody::ShardList { .. } => {
                    ReplyBody::Shards { shards: Vec::new(), next: None }
                }
                _ => ReplyBody::Done,
            };
            script.answer(&asked, Ok(answer));
        }
        assert!(script.sent().is_empty(), "the join waits for the root under way");
        assert!(sent.iter().all(|sent| put(sent) == Some(2)));
        sent.iter().for_each(|sent| script.done(sent));
        let puts = script.sent();
        assert!(puts.iter().any(|sent| sent.node == NODE && put(sent) == Some(3)));
        puts.iter().for_each(|put| script.done(put));
        script.sent();
        assert!(is_up(&mut script));
    }

    #[test]
    fn a_later_attempt_to_open_takes_a_higher_epoch() {
        let mut script = Script::opening(4, Opening::Open { takeover: true });
        for node in 0..4 {
            script.volume.handle(crate::Event::NodeUp(NodeIndex(node)), Nanos(0));
        }
        let mut epochs: Vec<Epoch> = Vec::new();
        // The nodes report no epoch, and refuse each fence: each attempt fails.
        for _ in 0..200 {
            for sent in script.sent() {
                let answer = match sent.request.body {
                    RequestBody::ListVolumes => Ok(ReplyBody::Volumes(Vec::new())),
                    RequestBody::Fence { .. } => {
                        epochs.push(sent.request.capability.epoch);
                        Err(NodeError::Busy)
                    }
                    _ => Err(NodeError::NotFound),
                };
                script.answer(&sent, answer);
            }
            script.wait_ms(100);
        }
        epochs.dedup();
        assert!(epochs.len() > 2, "{epochs:?}");
        assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
    }
}
