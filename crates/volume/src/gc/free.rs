//! The deletion of segments.
//!
//! A segment leaves the table first, and then the nodes. Until the nodes have answered, its slots
//! count as taken ([`Gc::segments_freeing`](super::Gc::segments_freeing)).

use fieldstone_proto::{NodeError, NodeIndex, RequestBody, SegmentId};

use super::RETRY_MS;
use crate::calls::CallResult;
use crate::core::{Ctx, VolumeCore};
use crate::segment::SegmentIndex;

/// How often the volume asks a node that refuses for now to delete segments.
const DELETE_TRIES: u32 = 50;
/// Segments that one request deletes. A node takes up to 4096 in one request. With a quarter of
/// that, the request has 8 KiB of names, far below the longest body that the protocol allows.
pub const SEGMENTS_PER_DELETE: usize = 1024;

/// Whether a node may delete later what it does not delete now. It is busy, or the request waited
/// on its way until its secret was retired or its capability had expired.
fn refuses_for_now(error: &NodeError) -> bool {
    matches!(error, NodeError::Busy | NodeError::Capability(_))
}

/// Asks nodes to delete segments, and asks those again that refuse for now. Gives the nodes that
/// still have the segments, each with its last error.
pub async fn request_deletion(
    ctx: &Ctx,
    mut nodes: Vec<NodeIndex>,
    segments: &[SegmentId],
) -> Vec<(NodeIndex, NodeError)> {
    let body = RequestBody::ShardDelete { segments: segments.to_vec() };
    let mut failed = Vec::new();
    for tries_left in (0..DELETE_TRIES).rev() {
        let mut refused = Vec::new();
        for (node, answer) in ctx.call_all(&nodes, &body).await {
            match answer {
                Err(error) if refuses_for_now(&error) && tries_left > 0 => refused.push(node),
                Err(error) => failed.push((node, error)),
                Ok(_) => {}
            }
        }
        if refused.is_empty() {
            break;
        }
        nodes = refused;
        ctx.sleep_ms(RETRY_MS).await;
    }
    failed
}

/// Deletes segments from nodes. A node that misses this was lost, or this function gives it up.
/// When the node joins, its list shows segments that the table lacks.
async fn delete_segments(ctx: &Ctx, nodes: Vec<NodeIndex>, segments: &[SegmentId]) {
    for (node, error) in request_deletion(ctx, nodes, segments).await {
        let why = match error {
            NodeError::Io(_) | NodeError::Invalid(_) => format!("deleting shards: {error}"),
            error if refuses_for_now(&error) => format!("deleting shards, for too long: {error}"),
            _ => continue,
        };
        ctx.with(|core| core.give_up_node(node, &why));
    }
}

/// Deletes segments from the nodes and from the table.
pub async fn free_segments(ctx: &Ctx, handles: &[SegmentIndex]) {
    let (ids, nodes) = ctx.with(|core| {
        let ids: Vec<SegmentId> =
            handles.iter().filter_map(|h| Some(core.segments.remove(*h)?.id)).collect();
        core.gc.segments_freeing += ids.len() as u64;
        (ids, core.up_nodes())
    });
    for chunk in ids.chunks(SEGMENTS_PER_DELETE) {
        delete_segments(ctx, nodes.clone(), chunk).await;
    }
    ctx.with(|core| {
        core.gc.segments_freeing -= ids.len() as u64;
        core.gc.note_change();
        core.start_rebuild(); // a missing shard may have waited for this room
    });
}

impl VolumeCore {
    /// Deletes from a node what it has of a segment whose valid shards lie elsewhere. The request
    /// leaves at once: a shard that the volume writes to the node afterwards stays. If the node is
    /// busy, it keeps the rest until a rebuild has ended.
    pub fn delete_leftover(&mut self, node: NodeIndex, id: SegmentId) {
        // Until the answer, the node gets no other shard of the segment.
        if let Some(segment) = self.segments.named_mut(id) {
            segment.leave_on(node);
        }
        let session = self.node(node).link.session;
        let call = self.call(node, RequestBody::ShardDelete { segments: vec![id] }, Vec::new());
        self.spawn_with(move |ctx| async move {
            let answer = call.await;
            ctx.with(|core| {
                let stays = core.leftover_stays(node, session, &answer);
                if let Some(segment) = core.segments.named_mut(id)
                    && stays == Some(false)
                {
                    segment.left_on.retain(|other| *other != node);
                }
            });
        });
    }

    /// A node has answered a deletion that the volume sent in this session. `Some(true)` if the
    /// node refused for now, and still has what it should delete. If its disk failed, the node is
    /// given up. `None` if the node was lost meanwhile: when it joins, the volume compares its
    /// shards.
    pub fn leftover_stays(
        &mut self,
        node: NodeIndex,
        session: u64,
        answer: &CallResult,
    ) -> Option<bool> {
        if self.node(node).link.session != session {
            return None;
        }
        if let Err(error @ (NodeError::Io(_) | NodeError::Invalid(_))) = answer {
            self.give_up_node(node, &format!("deleting shards: {error}"));
        }
        Some(answer.as_ref().is_err_and(refuses_for_now))
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::CapabilityError;

    use super::*;
    use crate::script::{Script, Sent};

    fn deletions(script: &mut Script) -> Vec<Sent> {
        let sent = script.sent();
        let of_shards = |sent: &Sent| matches!(sent.request.body, RequestBody::ShardDelete { .. });
        sent.into_iter().filter(of_shards).collect()
    }

    /// The slots of a deleted segment come back on every node, also if the secret that signed the
    /// deletion was retired on its way (seed 9001509).
    #[test]
    fn a_deletion_that_a_node_refuses_for_now_is_sent_again() {
        for refusal in [NodeError::Busy, NodeError::Capability(CapabilityError::Retired)] {
            let mut script = Script::serving(6);
            let handle = script.add_segment(&[None; 6]);
            script.start(move |ctx| async move { free_segments(&ctx, &[handle]).await });
            let sent = deletions(&mut script);
            assert_eq!(sent.len(), 6);
            script.answer(&sent[3], Err(refusal.clone()));
            for at in [0, 1, 2, 4, 5] {
                script.done(&sent[at]);
            }
            assert!(deletions(&mut script).is_empty());
            script.wait_ms(RETRY_MS);
            let again = deletions(&mut script);
            assert_eq!(again.iter().map(|sent| sent.node).collect::<Vec<_>>(), [sent[3].node]);
            script
                .core(|core| assert_eq!(core.gc.segments_freeing(), 1, "its slots count as taken"));
            script.done(&again[0]);
            assert!(deletions(&mut script).is_empty());
            script.core(|core| assert_eq!(core.gc.segments_freeing(), 0));
        }
    }
}
