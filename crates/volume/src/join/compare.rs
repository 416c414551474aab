//! The comparison of a joining node's shards with those that it should have.
//!
//! The node lists its shards. A known shard is valid again. The volume deletes every other shard
//! from the node. A shard that the node should have and lacks is missing, and rebuild makes it
//! again.
//!
//! A listed shard need not be complete: if the node lost power before the shard was synced, its
//! header may be there without its data. A shard is valid without a check only if the volume knew,
//! when the node was lost, that the shard was stable there. The node verifies all others first
//! ([`verify_unproven`]). The volume deletes the bad ones, stably, before the node takes part.

use std::collections::{BTreeSet, HashSet};

use fieldstone_proto::{NodeError, NodeIndex, RequestBody, SegmentId, ShardIndex, ShardInfo};

use crate::calls::CallResult;
use crate::core::{Ctx, VolumeCore};
use crate::gc::SEGMENTS_PER_DELETE;
use crate::segment::{Segment, State};
use crate::status::NodeHealth;
use fieldstone_tasks::Awaited;

impl VolumeCore {
    /// True if a shard that a node lists may lack its data.
    fn is_unproven(&self, node: NodeIndex, info: &ShardInfo) -> bool {
        let known = self.segments.find(info.segment).and_then(|handle| self.segments.get(handle));
        !info.is_open()
            && known.is_some_and(|segment| {
                let counted = segment.shards.get(usize::from(info.shard.0)) == Some(&Some(node));
                segment.state >= State::Closed && !(counted && segment.state == State::Durable)
            })
    }

    /// Sends the requests that delete segments from a node, all at once. A shard of such a segment
    /// that the volume writes to the node after these requests stays.
    pub(super) fn delete_from(
        &mut self,
        node: NodeIndex,
        segments: &[SegmentId],
    ) -> Vec<Awaited<CallResult>> {
        let chunks = segments.chunks(SEGMENTS_PER_DELETE);
        let body = |chunk: &[SegmentId]| RequestBody::ShardDelete { segments: chunk.to_vec() };
        chunks.map(|chunk| self.call(node, body(chunk), Vec::new())).collect()
    }

    /// Compares a node's shards with those that it should have. `bad` are the segments of which the
    /// node has a shard without its data; the list does not have these shards. Returns the segments
    /// to delete.
    pub(super) fn reconcile(
        &mut self,
        node: NodeIndex,
        listed: &[ShardInfo],
        bad: &[SegmentId],
    ) -> Vec<SegmentId> {
        self.repair.rebuild.note_synced(node);
        for handle in self.segments.handles() {
            if let Some(segment) = self.segments.get_mut(handle) {
                segment.left_on.retain(|other| *other != node);
            }
        }
        // The segments of the node's surplus shards. A deletion takes all of the node's shards of a
        // segment. So a surplus shard goes together with a valid one only if all shards of the
        // segment are there: then rebuild makes the valid one again at once.
        let mut surplus: Vec<SegmentId> = bad.to_vec();
        let mut found: HashSet<SegmentId> = HashSet::new();
        let mut listed_shards: HashSet<(SegmentId, usize)> = HashSet::new();
        // A shard that counts on this node goes before another one of the same segment.
        let counts = |core: &Self, info: &ShardInfo| {
            core.segments.named(info.segment).is_some_and(|segment| {
                segment.state >= State::Closed
                    && segment.fits(info)
                    && segment.shards[usize::from(info.shard.0)] == Some(node)
            })
        };
        let complete = listed.iter().filter(|info| !info.is_open());
        let counted: HashSet<SegmentId> =
            complete.filter(|info| counts(self, info)).map(|info| info.segment).collect();
        let mut displacing = Vec::new();
        let up = self.up_nodes();
        for info in listed {
            let index = usize::from(info.shard.0);
            // While a segment is being sealed, a shard is valid if the node has acknowledged it, or
            // if it is complete and no other node has it. In the second case the volume lost the
            // node before it noted the node's answer.
            let is_valid = |s: &&mut Segment| {
                let placed = s.shards.get(index).copied().flatten();
                s.state >= State::Sealed
                    || (s.state == State::Closed
                        && (placed == Some(node) || (placed.is_none() && !s.has_shard_on(node))))
            };
            if info.is_open() {
                surplus.push(info.segment);
                continue;
            }
            if counts(self, info) {
                found.insert(info.segment);
                listed_shards.insert((info.segment, index));
                continue;
            }
            let handle = self.segments.find(info.segment);
            let segment = handle.and_then(|handle| self.segments.get_mut(handle)).filter(is_valid);
            let Some(segment) = segment.filter(|segment| segment.fits(info)) else {
                surplus.push(info.segment);
                continue;
            };
            let other = segment.shards[index].filter(|other| *other != node);
            // Rebuild may have made the shard on another node, where a power loss may take it. Or
            // that node is not up. This node's shard is there and stable, so it is the valid one.
            let stays = other.is_none_or(|other| {
                !up.contains(&other) || self.repair.rebuild.is_unsynced(info.segment, other)
            });
            if !stays || counted.contains(&info.segment) || !found.insert(info.segment) {
                surplus.push(info.segment);
                continue;
            }
            listed_shards.insert((info.segment, index));
            match other {
                Some(other) => displacing.push((info.segment, index, other)),
                None => {
                    self.gc.since_checkpoint.placement_changed |=
                        segment.shards[index] != Some(node);
                    segment.shards[index] = Some(node);
                }
            }
        }
        let dispensable = |id: &SegmentId| {
            let there = |holder: Option<NodeIndex>| {
                holder.is_some_and(|holder| {
                    let up = self.node(holder).health == NodeHealth::Up;
                    holder == node || (up && !self.repair.rebuild.is_unsynced(*id, holder))
                })
            };
            let segment = self.segments.named(*id);
            segment.is_some_and(|segment| {
                segment.state == State::Durable && segment.shards.iter().all(|node| there(*node))
            })
        };
        surplus.retain(|id| !found.contains(id) || dispensable(id));
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
            if segment.state < State::Closed {
                continue;
            }
            let (id, is_found) = (segment.id, found.contains(&segment.id));
            for (index, shard) in segment.shards.iter_mut().enumerate() {
                if *shard == Some(node) && !(is_found && listed_shards.contains(&(id, index))) {
                    *shard = None;
                }
            }
        }
        extra
    }

    /// The node has invalid shards or rows of these segments. Returns the segments that the node is
    /// to delete. Until the journal has the records of the others whole, an opening may need the
    /// node's rows.
    fn leave_needed(&mut self, node: NodeIndex, mut segments: Vec<SegmentId>) -> Vec<SegmentId> {
        segments.retain(|id| {
            let needed = self.segments.named_mut(*id).filter(|segment| segment.needs_rows());
            needed.map(|segment| segment.leave_on(node)).is_none()
        });
        segments
    }

    /// The shard on the second node is the valid one from now on. If the first node is up, it
    /// deletes its own. Otherwise its copy stays until that node joins and its shards are compared:
    /// if the second node is gone by then, the copy is valid again.
    fn displace(&mut self, id: SegmentId, index: usize, (old, new): (NodeIndex, NodeIndex)) {
        let Some(segment) = self.segments.named_mut(id) else { return };
        segment.shards[index] = Some(new);
        self.gc.since_checkpoint.placement_changed = true;
        if self.node(old).health == NodeHealth::Up {
            self.delete_leftover(old, id);
        }
    }
}

/// Deletes segments from a node, unless the node has been lost since `session`: it may have joined
/// again, and got good shards of these segments.
pub(super) async fn delete(
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
    fieldstone_tasks::all(calls).await.into_iter().try_for_each(|answer| answer.map(drop))
}

/// Verifies the listed shards that may lack their data. Returns the bad ones.
pub(super) async fn verify_unproven(
    ctx: &Ctx,
    node: NodeIndex,
    listed: &[ShardInfo],
) -> Result<BTreeSet<(SegmentId, ShardIndex)>, NodeError> {
    let unproven: Vec<&ShardInfo> =
        ctx.with(|core| listed.iter().filter(|info| core.is_unproven(node, info)).collect());
    let mut bad = BTreeSet::new();
    for info in unproven {
        let (segment, shard) = (info.segment, info.shard);
        match ctx.call(node, RequestBody::ShardVerify { segment, shard }).await {
            Ok(_) => {}
            Err(NodeError::Corrupt { .. } | NodeError::NotFound) => {
                bad.insert((segment, shard));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_proto::{ReplyBody, SealMeta, SegmentKind};

    use crate::script::{Script, stat};

    const NODE: NodeIndex = NodeIndex(5);

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
        let shard_bytes = script.core(|core| core.shape.geometry().shard_bytes);
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
    fn an_open_copy_is_no_reason_to_delete_a_valid_shard() {
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

    /// A deletion would take the shard that counts along.
    #[test]
    fn a_second_shard_of_a_segment_takes_no_valid_one_along() {
        let mut script = Script::serving(8);
        let id = segment(&mut script, false);
        script.core(|core| core.reconcile(NodeIndex(2), &[], &[]));
        let mut shards = WHOLE.to_vec();
        shards[2] = None;
        for other in [2, 3] {
            // The list has the shard that does not count first.
            let list = [listed(&mut script, id, other), listed(&mut script, id, 5)];
            assert!(script.core(|core| core.reconcile(NODE, &list, &[])).is_empty());
            assert_eq!(places(&mut script, id), (shards.clone(), vec![]), "shard {other}");
        }
        // A bad one beside it.
        let list = [listed(&mut script, id, 5)];
        assert!(script.core(|core| core.reconcile(NODE, &list, &[id])).is_empty());
        assert_eq!(places(&mut script, id), (shards, vec![]));
        // With all shards there, rebuild makes the valid one again at once.
        let id = segment(&mut script, false);
        let list = [listed(&mut script, id, 3), listed(&mut script, id, 5)];
        assert_eq!(script.core(|core| core.reconcile(NODE, &list, &[])), [id]);
        assert_eq!(places(&mut script, id), (WITHOUT_5.to_vec(), vec![]));
    }

    /// The nodes 5 and 7 have copies of shard 5. They join, in any order, while the other one joins
    /// or is gone. No copy is deleted before the other one's node is up.
    #[test]
    fn of_two_copies_on_nodes_that_join_one_stays() {
        for (first, second, first_fails) in
            [(5, 7, false), (5, 7, true), (7, 5, false), (7, 5, true)]
        {
            let mut script = Script::serving(8);
            let id = segment(&mut script, false);
            let list = [listed(&mut script, id, 5)];
            let health = |script: &mut Script, node: u16, health: NodeHealth| {
                script.core(|core| core.node_mut(NodeIndex(node)).health = health);
            };
            let join = |script: &mut Script, node: u16| {
                script.core(|core| {
                    let doomed = core.reconcile(NodeIndex(node), &list, &[]);
                    core.node_mut(NodeIndex(node)).health = NodeHealth::Up;
                    doomed
                })
            };
            health(&mut script, 5, NodeHealth::Joining);
            health(&mut script, 7, NodeHealth::Joining);
            assert!(join(&mut script, first).is_empty());
            if first_fails {
                health(&mut script, first, NodeHealth::Down);
                assert!(join(&mut script, second).is_empty());
                // The first node comes back with a copy that does not count any more.
                assert_eq!(join(&mut script, first), [id]);
            } else {
                assert_eq!(join(&mut script, second), [id]);
            }
            let valid = if first_fails { second } else { first };
            let mut shards = WHOLE.to_vec();
            shards[5] = Some(valid);
            assert_eq!(places(&mut script, id), (shards, vec![]));
            assert!(script.sent().is_empty(), "deletions are left to the joins");
        }
    }

    /// Node 5 has lost its shard 5, and has shard 2, which is missing.
    #[test]
    fn a_shard_that_is_not_listed_does_not_count_for_another_one() {
        let mut script = Script::serving(8);
        let id = segment(&mut script, false);
        script.core(|core| core.reconcile(NodeIndex(2), &[], &[]));
        script.core(|core| core.segments.named_mut(id).expect("it was added").leave_on(NODE));
        let list = [listed(&mut script, id, 2)];
        assert!(script.core(|core| core.reconcile(NODE, &list, &[])).is_empty());
        let shards = vec![Some(0), Some(1), Some(5), Some(3), Some(4), None];
        assert_eq!(places(&mut script, id), (shards, vec![]), "the list says what it has left");
    }

    /// Invalid shards stay if they have rows that nothing else may have.
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
    fn a_returning_shard_displaces_a_rebuilt_one_that_is_not_stable() {
        let mut script = Script::serving(8);
        let id = segment(&mut script, false);
        let back = NodeIndex(7);
        let list = [listed(&mut script, id, 5)];
        script.core(|core| core.repair.rebuild.note_written(id, NODE));
        assert!(script.core(|core| core.reconcile(back, &list, &[])).is_empty());
        let mut shards = WHOLE.to_vec();
        shards[5] = Some(7);
        assert_eq!(places(&mut script, id), (shards.clone(), vec![5]));
        let deletion = script.sent_one();
        assert_eq!(deletion.request.body, RequestBody::ShardDelete { segments: vec![id] });
        assert_eq!(deletion.node, NODE);
        script.done(&deletion);
        script.sent();
        assert_eq!(places(&mut script, id), (shards, vec![]));
        // Once the rebuilt shard is stable, the returning one goes.
        let id = segment(&mut script, false);
        let list = [listed(&mut script, id, 5)];
        script.core(|core| core.repair.rebuild.note_written(id, NODE));
        script.core(|core| core.repair.rebuild.note_synced(NODE));
        assert_eq!(script.core(|core| core.reconcile(back, &list, &[])), [id]);
        assert_eq!(places(&mut script, id), (WHOLE.to_vec(), vec![]));
    }

    /// A shard whose end is missing may hold rows that nothing else has.
    #[test]
    fn a_bad_shard_with_rows_stays_when_its_node_joins() {
        let mut script = Script::serving(8);
        let id = segment(&mut script, true);
        let list = [listed(&mut script, id, 5)];
        let epoch = script.core(|core| core.writer.epoch());
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
}
