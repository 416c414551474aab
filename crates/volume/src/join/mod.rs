//! Nodes that join while the volume serves: nodes that come back, and empty replacements.
//!
//! A node that was away may have missed anything: roots, deletions, new segments. So the volume
//! fences it again (the node refuses that, and rightly, if it still has our epoch), and compares
//! its shards with those that it should have (`compare`). From then on the node takes part again.
//! Then the volume deletes the node's surplus shards, writes the root to it if it lacks the root,
//! and deletes its old journals. An empty replacement is a node where everything is missing.
//!
//! The node may have a later epoch than this writer. Then `successor` finds out whether a newer
//! writer serves the volume.

mod compare;
mod successor;

use std::collections::BTreeSet;

use fieldstone_proto::{JournalGen, NodeError, NodeIndex, ReplyBody, RequestBody, SegmentId};

use crate::core::{Ctx, VolumeCore};
use crate::keys::refusal;
use crate::rebuild::list_shards;
use crate::status::NodeHealth;
use compare::{delete, verify_unproven};
use successor::{
    check_place, count_agreeing, fenced_out, may_have_successor, summary_on, who_answers,
};

/// The reason why a node is down that an opening has fenced.
const FENCED: &str =
    "an opening that did not end has fenced it; it takes part again when the volume is next opened";

impl VolumeCore {
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
        state.relay.reset();
        state.root_version = 0;
        self.start_join(node);
    }

    /// Makes a connected node join, once the volume serves.
    pub fn start_join(&mut self, node: NodeIndex) {
        let serving = self.life.serves_or_closes();
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
                (state.attempt.left_out, state.down_since) = (None, None);
                state.fenced = false;
                state.refuses_journals = false;
                self.gc.note_change();
                if self.log.nodes.len() <= self.shape.code().m() {
                    // The journal lacked a copy. It moves to have one again.
                    // A try under way does not know the node.
                    self.log.journal_move.request_anew();
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
}

/// Brings the node's state for this volume up to date.
async fn join(ctx: &Ctx, node: NodeIndex, session: u64) -> Result<(), NodeError> {
    let epoch = ctx.with(|core| core.writer.epoch());
    match ctx.call(node, RequestBody::Fence { takeover: true }).await {
        Ok(ReplyBody::VolumeState(state)) => {
            check_place(node, &state.stat)?;
            ctx.with(|core| {
                core.node_mut(node).stat = state.stat;
                // The node may have a root of an earlier writer that was never committed. The node
                // takes only higher versions.
                core.committed.note_version(state.root_version);
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
                ctx.with(|core| core.committed.note_version(summary.root_version));
            }
        }
        Err(NodeError::Capability(error)) => {
            return Err(NodeError::Invalid(refusal(error, &who_answers(ctx, node).await)));
        }
        // Perhaps the node's record of the volume is damaged. The volume serves with the other
        // nodes, so the record may begin anew. Any other fault of the node stays.
        Err(error @ NodeError::Io(_)) => {
            if count_agreeing(ctx).await? < ctx.with(|core| core.nodes_needed()) {
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
    let bad = verify_unproven(ctx, node, &listed).await?;
    listed.retain(|info| !bad.contains(&(info.segment, info.shard)));
    // A bad shard may lack only the end of its data, and hold rows that an opening may need. And a
    // deletion would take a good shard of the same segment along.
    let beside_a_good_one =
        |id: &SegmentId| listed.iter().any(|info| info.segment == *id && !info.is_open());
    let bad: BTreeSet<SegmentId> = bad.into_iter().map(|(id, _)| id).collect();
    let (kept, doomed): (Vec<SegmentId>, Vec<SegmentId>) = ctx.with(|core| {
        bad.into_iter().partition(|id| core.segments.needs_rows(*id) || beside_a_good_one(id))
    });
    if !doomed.is_empty() {
        delete(ctx, node, session, doomed).await?;
    }
    // After this sync the listed shards are stable, whether they were synced before or not. And the
    // bad ones are gone for good: a power loss must not bring them back.
    ctx.call(node, RequestBody::ShardSync).await?;
    // From the comparison on, the node takes part in everything, so no change is missed.
    let deletions = ctx.with(|core| {
        if core.node(node).link.session != session {
            return Vec::new();
        }
        let extra = core.reconcile(node, &listed, &kept);
        let now = core.now;
        // The volume next asks the node for its reservation. It may be a different node than
        // before.
        let has_shards = core.shards_on(node) > 0;
        let state = core.node_mut(node);
        state.health = NodeHealth::Up;
        state.slots.joined(has_shards, now);
        core.delete_from(node, &extra)
    });
    for answer in fieldstone_tasks::all(deletions).await {
        answer?;
    }
    // A replaced node does not know the volume until it has a root, and an opening goes on without
    // it.
    let lacks_root = |core: &mut VolumeCore| {
        let state = core.node(node);
        let here = state.link.session == session && state.health == NodeHealth::Up;
        let serves = core.life.serves_or_closes();
        here && serves && !core.has_root(node)
    };
    while ctx.with(lacks_root) {
        if !crate::journal::put_root(ctx, |_| {}).await {
            ctx.sleep_ms(20).await;
        }
    }
    // While the journal moves, the generation that the root names is still in use.
    let committed = ctx.with(|core| core.committed.root().map(|root| root.generation));
    if let Some(below) = committed {
        let first = JournalGen(0);
        ctx.call(node, RequestBody::JournalDelete { first, below }).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::journal::put_root;
    use crate::script::{Script, Sent, stat};

    const NODE: NodeIndex = NodeIndex(5);

    fn put(sent: &Sent) -> Option<u64> {
        match sent.request.body {
            RequestBody::PutRoot { version } => Some(version),
            _ => None,
        }
    }

    /// The node joins, up to the moment when it takes part: it lists no shards.
    fn join_up(script: &mut Script) {
        let epoch = script.core(|core| core.writer.epoch());
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
        let epoch = script.core(|core| core.writer.epoch());
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
}
