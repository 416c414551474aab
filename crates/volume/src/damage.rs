//! Shards that a read or a scrub found bad, until the volume has deleted them.
//!
//! A shard that a read or a scrub found bad no longer counts. Rebuild makes it again, perhaps on
//! another node. Its first node still lists the bad copy, and a later opening could take that for
//! good. So the volume deletes the bad copy as soon as the segment has all its shards again, not
//! before. The sync that ends the rebuild makes the deletion stable: when the volume is whole, no
//! power loss brings the bad copy back. If the node is away meanwhile, the volume compares its
//! shards when it joins (see `nodes`). A bad copy may also hold rows that nothing else has: it
//! stays, and its segment is not rebuilt, until the segment is durable.
//!
//! Bound: one note per bad shard. The volume removes the note when it sends the deletion. If the
//! node is busy, the note returns, and the volume starts another rebuild.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_proto::{NodeIndex, RequestBody, SegmentId};

use crate::core::{Ctx, VolumeCore};
use crate::gc::SEGMENTS_PER_DELETE;
use crate::segment::Segment;
use crate::status::NodeHealth;

/// Where bad shards still lie.
#[derive(Default)]
pub struct Damage(BTreeSet<(SegmentId, NodeIndex)>);

impl Damage {
    /// A shard of the segment is bad on this node.
    pub fn note(&mut self, segment: SegmentId, node: NodeIndex) {
        self.0.insert((segment, node));
    }

    /// True when no bad shard is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl VolumeCore {
    /// Some node still has a bad shard of the segment.
    pub fn is_damaged(&self, segment: SegmentId) -> bool {
        let (first, last) = ((segment, NodeIndex(0)), (segment, NodeIndex(u16::MAX)));
        self.repair.damage.0.range(first..=last).next().is_some()
    }

    /// The node still has a bad shard of the segment.
    pub fn has_bad(&self, segment: SegmentId, node: NodeIndex) -> bool {
        self.repair.damage.0.contains(&(segment, node))
    }

    /// The segment has all its shards, and their nodes are up. A node that still joins may turn out
    /// to lack its shard, so the volume deletes no other copy before.
    fn is_settled(&self, id: SegmentId) -> bool {
        self.segments.named(id).is_none_or(|segment| {
            let mut holders = segment.shards.iter().flatten();
            segment.missing() == 0
                && !segment.needs_rows()
                && holders.all(|node| self.node(*node).health == NodeHealth::Up)
        })
    }

    /// Some bad shards are superseded, and not deleted yet.
    pub fn has_superseded(&self) -> bool {
        self.repair.damage.0.iter().any(|(id, _)| self.is_settled(*id))
    }

    /// Takes the bad shards that are superseded, as far as their nodes are up. A node that is not
    /// up is compared when it joins.
    fn take_superseded(&mut self) -> Vec<(SegmentId, NodeIndex)> {
        let notes = std::mem::take(&mut self.repair.damage.0);
        let (settled, kept): (BTreeSet<_>, BTreeSet<_>) =
            notes.into_iter().partition(|(id, _)| self.is_settled(*id));
        self.repair.damage.0 = kept;
        // If the shard was written anew on its own node, the bad copy is gone.
        let stays = |(id, node): &(SegmentId, NodeIndex)| {
            let elsewhere = |segment: &Segment| !segment.has_shard_on(*node);
            self.node(*node).health == NodeHealth::Up
                && self.segments.named(*id).is_some_and(elsewhere)
        };
        settled.into_iter().filter(stays).collect()
    }
}

/// Deletes the bad shards that are superseded. A busy node keeps them until the next rebuild ends.
pub async fn delete_superseded(ctx: &Ctx) {
    // All requests leave now: a shard that a node gets later stays.
    let calls: Vec<_> = ctx.with(|core| {
        let mut doomed: BTreeMap<NodeIndex, Vec<SegmentId>> = BTreeMap::new();
        for (segment, node) in core.take_superseded() {
            doomed.entry(node).or_default().push(segment);
        }
        let mut calls = Vec::new();
        for (node, segments) in doomed {
            let session = core.node(node).link.session;
            for chunk in segments.chunks(SEGMENTS_PER_DELETE).map(<[SegmentId]>::to_vec) {
                let body = RequestBody::ShardDelete { segments: chunk.clone() };
                calls.push((node, session, chunk, core.call(node, body, Vec::new())));
            }
        }
        calls
    });
    for (node, session, segments, call) in calls {
        let answer = call.await;
        ctx.with(|core| {
            if core.leftover_stays(node, session, &answer) == Some(true) {
                core.repair.damage.0.extend(segments.into_iter().map(|segment| (segment, node)));
            }
        });
    }
}

/// Deletes a bad shard of the segment on a node that is to get a shard of the same segment. A node
/// deletes all shards of a segment together, so it would be too late afterwards.
pub async fn clear_the_way(ctx: &Ctx, segment: SegmentId, node: NodeIndex) {
    if !ctx.with(|core| core.has_bad(segment, node)) {
        return;
    }
    let body = RequestBody::ShardDelete { segments: vec![segment] };
    if ctx.call(node, body).await.is_ok() {
        ctx.with(|core| core.repair.damage.0.remove(&(segment, node)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_proto::NodeError;

    use crate::script::Script;

    const NODE: NodeIndex = NodeIndex(7);

    /// A whole segment on the nodes 0 to 5, and a bad shard of it on node 7.
    fn superseded(script: &mut Script) -> SegmentId {
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)]);
        script.core(|core| {
            let id = core.segments.get(handle).expect("it was added").id;
            core.repair.damage.note(id, NODE);
            id
        })
    }

    fn delete(script: &mut Script, id: SegmentId, answer: Result<(), NodeError>) {
        script.start(|ctx| async move { delete_superseded(&ctx).await });
        let sent = script.sent_one();
        assert_eq!(sent.node, NODE);
        assert_eq!(sent.request.body, RequestBody::ShardDelete { segments: vec![id] });
        script.answer(&sent, answer.map(|()| fieldstone_proto::ReplyBody::Done));
        script.sent();
    }

    #[test]
    fn a_busy_node_keeps_its_note() {
        let mut script = Script::serving(8);
        let id = superseded(&mut script);
        delete(&mut script, id, Err(NodeError::Busy));
        assert!(script.core(|core| core.has_bad(id, NODE)));
        delete(&mut script, id, Ok(()));
        assert!(script.core(|core| core.repair.damage.is_empty()));
    }

    #[test]
    fn a_node_that_cannot_delete_a_bad_shard_is_given_up() {
        let mut script = Script::serving(8);
        let id = superseded(&mut script);
        delete(&mut script, id, Err(NodeError::Io("the disk is broken".into())));
        assert_eq!(script.core(|core| core.node(NODE).health), NodeHealth::Down);
    }
}
