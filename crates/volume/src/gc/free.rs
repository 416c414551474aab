//! The deletion of segments.
//!
//! A segment leaves the table first, and then the nodes. Until the nodes have answered, its slots
//! count as taken (`segments_freeing`).

use fieldstone_proto::{NodeError, NodeIndex, RequestBody, SegmentId};

use super::RETRY_MS;
use crate::calls::CallResult;
use crate::core::{Ctx, VolumeCore};
use crate::segment::SegmentIndex;

/// How often the volume asks a busy node to delete segments.
const DELETE_TRIES: u32 = 50;
/// Segments that one request deletes. A node takes up to 4096 in one request. With a quarter of
/// that, the request has 8 KiB of names, far below the longest body that the protocol allows.
pub const SEGMENTS_PER_DELETE: usize = 1024;

/// Deletes segments from nodes. A node that misses this was lost, or this function gives it up.
/// When the node joins, its list shows segments that the table lacks.
async fn delete_segments(ctx: &Ctx, mut nodes: Vec<NodeIndex>, segments: &[SegmentId]) {
    let body = RequestBody::ShardDelete { segments: segments.to_vec() };
    for _ in 0..DELETE_TRIES {
        let answers = ctx.call_all(&nodes, &body).await;
        nodes.clear();
        for (node, answer) in answers {
            match answer {
                Err(NodeError::Busy) => nodes.push(node),
                Err(error @ (NodeError::Io(_) | NodeError::Invalid(_))) => {
                    let why = format!("deleting shards: {error}");
                    ctx.with(|core| core.give_up_node(node, &why));
                }
                _ => {}
            }
        }
        if nodes.is_empty() {
            return;
        }
        ctx.sleep_ms(RETRY_MS).await;
    }
    for node in nodes {
        ctx.with(|core| core.give_up_node(node, "deleting shards: it is busy for too long"));
    }
}

/// Deletes segments from the nodes and from the table.
pub async fn free_segments(ctx: &Ctx, handles: &[SegmentIndex]) {
    let (ids, nodes) = ctx.with(|core| {
        let ids: Vec<SegmentId> =
            handles.iter().filter_map(|h| Some(core.segments.remove(*h)?.id)).collect();
        core.segments_freeing += ids.len() as u64;
        (ids, core.up_nodes())
    });
    for chunk in ids.chunks(SEGMENTS_PER_DELETE) {
        delete_segments(ctx, nodes.clone(), chunk).await;
    }
    ctx.with(|core| {
        core.segments_freeing -= ids.len() as u64;
        core.collection.note_change();
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
    /// node is busy, and still has what it should delete. If its disk failed, the node is given up.
    /// `None` if the node was lost meanwhile: when it joins, the volume compares its shards.
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
        Some(matches!(answer, Err(NodeError::Busy)))
    }
}
