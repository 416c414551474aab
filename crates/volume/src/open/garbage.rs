//! Leftovers of earlier writers: the opening deletes them once it knows that nothing depends on
//! them.

use fieldstone_proto::{
    JournalGen, NodeError, NodeIndex, RequestBody, SegmentId, SegmentKind, ShardInfo, VolumeState,
};

use super::validate::Listed;
use crate::core::Ctx;
use crate::gc::{SEGMENTS_PER_DELETE, request_deletion};
use crate::root::Root;
use crate::segment::epoch_of;

/// Deletes leftovers of writers that died before they wrote a root, or before they deleted old
/// segments. The leftovers may hold the very slots that this opening needs for its checkpoint.
pub(super) async fn discard_leftovers(ctx: &Ctx, root: &Root, listed: &mut Listed) {
    let leftover = |id: &SegmentId, shards: &[(NodeIndex, ShardInfo)]| match shards[0].1.meta.kind {
        SegmentKind::Checkpoint => !root.checkpoint_segments.contains(id),
        SegmentKind::Data => {
            epoch_of(*id) != root.epoch && ctx.with(|core| core.segments.find(*id).is_none())
        }
    };
    let ids: Vec<SegmentId> =
        listed.iter().filter(|(id, shards)| leftover(id, shards)).map(|(id, _)| *id).collect();
    let mut up = ctx.with(|core| core.up_nodes());
    for chunk in ids.chunks(SEGMENTS_PER_DELETE) {
        // If a node misses this, its slots stay taken until the volume compares its shards, which
        // happens when it joins.
        let failed = request_deletion(ctx, up.clone(), chunk).await;
        up.retain(|node| failed.iter().all(|(other, _)| other != node));
    }
    for id in ids {
        listed.remove(&id);
    }
}

/// Deletes the open shards of earlier writers, now that the log has their blocks anew.
pub(super) async fn discard_open(ctx: &Ctx, open: &[(NodeIndex, SegmentId)]) {
    let garbage: Vec<(NodeIndex, SegmentId)> = ctx.with(|core| {
        let holds = |node: &NodeIndex, id: &SegmentId| {
            let segment = core.segments.find(*id).and_then(|handle| core.segments.get(handle));
            segment.is_some_and(|segment| segment.has_shard_on(*node))
        };
        open.iter().filter(|(node, id)| !holds(node, id)).copied().collect()
    });
    let mut refusing = Vec::new();
    for (node, id) in garbage {
        // If a node misses this, the volume compares its shards again when it joins.
        if !refusing.contains(&node) && !request_deletion(ctx, vec![node], &[id]).await.is_empty() {
            refusing.push(node);
        }
    }
}

/// Deletes the shards that no checkpoint and no segment names, and with `journals` old journals
/// too. Gives the last error of a node that still has a shard of a segment that stays.
pub(super) async fn discard_garbage(
    ctx: &Ctx,
    listed: &Listed,
    journals: bool,
) -> Option<(NodeIndex, NodeError)> {
    let mut failed = None;
    let (up, below) = ctx.with(|core| (core.up_nodes(), core.log.generation));
    for node in &up {
        let mut refusal = None;
        let garbage: Vec<SegmentId> = ctx.with(|core| {
            listed
                .iter()
                .filter(|(_, shards)| shards.iter().any(|(holder, _)| holder == node))
                .filter(|(id, _)| match core.segments.find(**id) {
                    None => true,
                    // A node deletes all shards of a segment together.
                    Some(handle) => core
                        .segments
                        .get(handle)
                        .is_some_and(|segment| !segment.has_shard_on(*node)),
                })
                .map(|(id, _)| *id)
                .collect()
        });
        for chunk in garbage.chunks(SEGMENTS_PER_DELETE) {
            let stays = ctx.with(|core| chunk.iter().any(|id| core.segments.find(*id).is_some()));
            // If a node misses this, the volume compares its shards again when it joins. A node
            // that goes on refusing is not asked for more.
            if refusal.is_none() {
                refusal = request_deletion(ctx, vec![*node], chunk).await.pop();
            }
            if stays && refusal.is_some() {
                failed.clone_from(&refusal);
            }
        }
    }
    if journals {
        let body = RequestBody::JournalDelete { first: JournalGen(0), below };
        ctx.call_all(&up, &body).await;
    }
    failed
}

/// The first generation that no node has yet. Requests to delete journals end below it, and so
/// leave out the generation that this opening will make: a peer that has recorded such a request
/// may send it again.
pub(super) fn beyond_all(states: &[(NodeIndex, VolumeState)]) -> JournalGen {
    let seen = states.iter().flat_map(|(_, state)| &state.journals).map(|j| j.generation);
    seen.max().map_or(JournalGen(0), JournalGen::next)
}

/// Deletes the journals that earlier moves and openings made and that no root names. Without this,
/// many failed openings would fill the disks with them.
pub(super) async fn discard_journals(ctx: &Ctx, root: &Root, states: &[(NodeIndex, VolumeState)]) {
    let named = root.generation;
    let others = |state: &VolumeState| state.journals.iter().any(|j| j.generation != named);
    let nodes: Vec<NodeIndex> =
        states.iter().filter(|(_, state)| others(state)).map(|(node, _)| *node).collect();
    for (first, below) in [(JournalGen(0), named), (named.next(), beyond_all(states).max(named))] {
        // The next opening asks a node that misses this again.
        ctx.call_all(&nodes, &RequestBody::JournalDelete { first, below }).await;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fieldstone_proto::{CapabilityError, Epoch, JournalInfo, ReplyBody};

    use super::*;
    use crate::gc::RETRY_MS;
    use crate::script::{Script, stat};

    /// The opening makes its journal after that. Whoever sends the deletions again must not reach
    /// that journal.
    #[test]
    fn deletions_of_journals_leave_out_the_one_that_the_opening_makes() {
        let mut script = Script::serving(6);
        let root = Root {
            generation: JournalGen(4),
            ..script.core(|core| core.committed.root_mut().clone())
        };
        let states: Vec<_> = [(2, vec![4, 7]), (3, vec![4])]
            .into_iter()
            .map(|(node, generations)| {
                let node = NodeIndex(node);
                let info = |generation| JournalInfo {
                    generation: JournalGen(generation),
                    ring_bytes: 4096,
                };
                let journals: Vec<_> = generations.into_iter().map(info).collect();
                let (epoch_before, root) = (Epoch(1), Bytes::new());
                (
                    node,
                    VolumeState { epoch_before, root_version: 0, root, journals, stat: stat(node) },
                )
            })
            .collect();
        script.start(async move |ctx| discard_journals(&ctx, &root, &states).await);
        for (first, below) in [(0, 4), (5, 8)] {
            let sent = script.sent_one();
            let (first, below) = (JournalGen(first), JournalGen(below));
            assert_eq!(
                (sent.node, &sent.request.body),
                (NodeIndex(2), &RequestBody::JournalDelete { first, below })
            );
            script.done(&sent);
        }
        let made = script.core(|core| {
            core.committed.note_generation(JournalGen(7));
            core.committed.next_generation(JournalGen(4))
        });
        assert_eq!(made, JournalGen(8));
    }

    /// Otherwise the slot stays taken until the node joins.
    #[test]
    fn a_deletion_that_a_node_refuses_for_now_is_sent_again() {
        let mut script = Script::serving(6);
        let open = [(NodeIndex(2), SegmentId(77)), (NodeIndex(2), SegmentId(78))];
        script.start(async move |ctx| discard_open(&ctx, &open).await);
        for (id, answer) in [
            (77, Err(NodeError::Capability(CapabilityError::Retired))),
            (77, Ok(ReplyBody::Done)),
            (78, Err(NodeError::Busy)),
            (78, Ok(ReplyBody::Done)),
        ] {
            let sent = script.sent();
            let body = RequestBody::ShardDelete { segments: vec![SegmentId(id)] };
            assert_eq!((sent.len(), &sent[0].request.body), (1, &body));
            let is_refused = answer.is_err();
            script.answer(&sent[0], answer);
            if is_refused {
                assert!(script.sent().is_empty());
                script.wait_ms(RETRY_MS);
            }
        }
        assert!(script.sent().is_empty());
    }
}
