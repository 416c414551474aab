//! Invalid shard copies of segments whose records are still in the journal.
//!
//! The earlier writer may have died while it wrote the shards of such a segment. Then the data of
//! the segment is on fewer nodes than the journal, and this opening is about to give the journal
//! up. So the opening makes the segment whole before that, as far as there are nodes
//! ([`renew_copies`], then [`strengthen`]).
//!
//! A node may have an invalid copy of a missing shard. The copy may lack only the end of its data,
//! and have rows that few nodes have. So one copy of each missing shard stays until the opening has
//! committed. The new shard goes to the node that has this copy. That node gets no other shard of
//! the segment, because a node deletes all shards of a segment together.
//!
//! The node keeps a complete copy until the new shard is stored. It overwrites an open copy, which
//! has the same bytes as far as it goes. A node without space for both deletes its copy first, so
//! an opening needs no more space than it finds. A node whose disk is full may have no space even
//! then, and is as good as lost for this shard. A sync frees the slots of the copies. Then the
//! other missing shards get nodes.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_proto::{Lsn, NodeIndex, RequestBody, SegmentId, ShardIndex};

use super::chain::ChainSegment;
use super::recover::Inventory;
use super::{Blame, Failure};
use crate::core::{Ctx, VolumeCore};
use crate::failure::AttemptFailure;
use crate::rebuild::{Rebuilt, rebuild_segment};
use crate::segment::{Segment, SegmentIndex};

/// The segments of the chain whose records are still in the journal.
pub(super) fn backed_segments(
    chain: &[ChainSegment],
    start: Lsn,
    trimmed: Lsn,
) -> impl Iterator<Item = SegmentIndex> + '_ {
    let backed = chain.iter().filter(move |part| part.first < start && part.end > trimmed);
    backed.map(|part| part.handle)
}

/// A shard on one node, by the name of its segment.
pub(super) type CopyOn = (SegmentId, NodeIndex);

/// For each missing shard of these segments: one copy that a node has of it, complete or open, if
/// there is one. The copy stays. The opening deletes all other copies on nodes without a valid
/// shard at once, and all copies on a node with several.
pub(super) fn leave_copies(
    ctx: &Ctx,
    backed: impl Iterator<Item = SegmentIndex>,
    inventory: &Inventory,
) -> BTreeMap<CopyOn, usize> {
    ctx.with(|core| {
        let mut left = BTreeMap::new();
        for handle in backed {
            let Some(segment) = core.segments.get_mut(handle) else { continue };
            let copies = inventory.places.get(&segment.id).map_or(&[][..], Vec::as_slice);
            let complete = inventory.listed.get(&segment.id).map_or(&[][..], Vec::as_slice);
            let mut assigned = BTreeSet::new();
            // An open copy has rows. A complete copy may have no stable row.
            let is_open = |node: &NodeIndex| inventory.open.contains(&(*node, segment.id));
            let (open, other): (Vec<&(ShardIndex, NodeIndex)>, Vec<_>) =
                copies.iter().partition(|(_, n)| is_open(n));
            for (shard, node) in open.into_iter().chain(other) {
                let index = usize::from(shard.0);
                let missing = segment.is_missing(index);
                let alone = copies.iter().filter(|(_, other)| other == node).count() == 1;
                let fits = complete
                    .iter()
                    .filter(|(other, _)| other == node)
                    .all(|(_, info)| segment.fits(info));
                let free = !segment.has_shard_on(*node);
                if missing && alone && fits && free && assigned.insert(index) {
                    segment.left_on.push(*node);
                    left.insert((segment.id, *node), index);
                }
            }
        }
        left
    })
}

/// Deletes open copies of these segments that the opening does not leave. Complete ones are garbage
/// like any other.
pub(super) async fn discard_open_copies(
    ctx: &Ctx,
    backed: impl Iterator<Item = SegmentIndex>,
    inventory: &Inventory,
    left: &BTreeMap<CopyOn, usize>,
) -> Result<(), Failure> {
    let doomed: Vec<CopyOn> = ctx.with(|core| {
        let segments = backed.filter_map(|handle| core.segments.get(handle));
        let of_segment = |segment: &Segment| -> Vec<CopyOn> {
            let open = inventory.open.iter().filter(|(_, id)| *id == segment.id);
            let invalid = open.filter(|(node, _)| !segment.has_shard_on(*node));
            invalid.map(|(node, id)| (*id, *node)).collect()
        };
        segments.flat_map(of_segment).filter(|copy| !left.contains_key(copy)).collect()
    });
    for (id, node) in doomed {
        let body = RequestBody::ShardDelete { segments: vec![id] };
        ctx.call(node, body).await.blame(node)?;
    }
    Ok(())
}

/// Deletes the copies that the opening has left, where they are still invalid. A node that does not
/// answer still has its copy.
pub(super) async fn delete_copies(ctx: &Ctx, left: &BTreeMap<CopyOn, usize>) {
    for (id, node) in left.keys() {
        let valid = ctx.with(|core| {
            let segment = core.segments.named(*id);
            segment.is_none_or(|segment| segment.has_shard_on(*node))
        });
        let body = RequestBody::ShardDelete { segments: vec![*id] };
        if valid || ctx.call(*node, body).await.is_ok() {
            ctx.with(|core| {
                let handle = core.segments.find(*id);
                if let Some(segment) = handle.and_then(|handle| core.segments.get_mut(handle)) {
                    segment.left_on.retain(|other| other != node);
                }
            });
        }
    }
}

/// Makes the shards of which there are copies in `left`, on the nodes of the copies, as far as they
/// have room.
///
/// # Errors
/// The opening could not make such a shard.
pub(super) async fn renew_copies(
    ctx: &Ctx,
    backed: impl Iterator<Item = SegmentIndex>,
    inventory: &Inventory,
    left: &BTreeMap<CopyOn, usize>,
) -> Result<(), Failure> {
    for handle in backed {
        let Some(id) = ctx.with(|core| core.segments.get(handle).map(|segment| segment.id)) else {
            continue;
        };
        let mut places = ctx.with(|core| core.places_of_copies(handle, left));
        let refused = rebuild_segment(ctx, handle, places.clone()).await.refused;
        for place in refused {
            // The sync frees the slots of copies that were written anew.
            let mut rebuilt = rebuild_after_sync(ctx, handle, place).await?;
            let is_open = inventory.open.contains(&(place.1, id));
            if !rebuilt.refused.is_empty() && !is_open {
                let body = RequestBody::ShardDelete { segments: vec![id] };
                ctx.call(place.1, body).await.blame(place.1)?;
                rebuilt = rebuild_after_sync(ctx, handle, place).await?;
            }
            if !rebuilt.refused.is_empty() {
                places.retain(|other| *other != place);
            }
        }
        if !ctx.with(|core| core.all_made(handle, &places)) {
            return Err(not_whole());
        }
    }
    Ok(())
}

/// Makes these segments whole, as far as there are nodes.
///
/// # Errors
/// The opening could not make a shard that a node could take.
pub(super) async fn strengthen(
    ctx: &Ctx,
    backed: impl Iterator<Item = SegmentIndex>,
) -> Result<(), Failure> {
    for handle in backed {
        // The writer had room for these shards, so the opening may use the reserve. The writer may
        // have written further shards to nodes that are lost now. For those it had no room here.
        let targets = ctx.with(|core| {
            let mut targets = core.place_missing(handle, 0);
            targets.truncate(core.shards_lacking(handle, &[]));
            targets
        });
        let wanted = targets.len();
        let first = rebuild_segment(ctx, handle, targets).await;
        let mut made = first.made;
        for place in first.refused {
            let again = rebuild_after_sync(ctx, handle, place).await?;
            // A node that seemed to have space and has none is as good as lost for this shard.
            made += again.made + again.refused.len();
        }
        if made < wanted {
            return Err(not_whole());
        }
    }
    Ok(())
}

/// Makes the node free slots with a sync, and then makes this shard on it.
async fn rebuild_after_sync(
    ctx: &Ctx,
    handle: SegmentIndex,
    place: (usize, NodeIndex),
) -> Result<Rebuilt, Failure> {
    ctx.call(place.1, RequestBody::ShardSync).await.blame(place.1)?;
    Ok(rebuild_segment(ctx, handle, vec![place]).await)
}

fn not_whole() -> Failure {
    AttemptFailure::SegmentNotWhole.into()
}

impl VolumeCore {
    /// None of these shards of the segment is missing.
    fn all_made(&self, handle: SegmentIndex, places: &[(usize, NodeIndex)]) -> bool {
        let segment = self.segments.get(handle);
        let is_made = |shard: usize| segment.is_some_and(|segment| !segment.is_missing(shard));
        places.iter().all(|(shard, _)| is_made(*shard))
    }

    /// The missing shards of the segment of which nodes have copies in `left`, with these nodes.
    fn places_of_copies(
        &self,
        handle: SegmentIndex,
        left: &BTreeMap<CopyOn, usize>,
    ) -> Vec<(usize, NodeIndex)> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let (first, last) = ((segment.id, NodeIndex(0)), (segment.id, NodeIndex(u16::MAX)));
        let copies = left.range(first..=last).map(|((_, node), shard)| (*shard, *node));
        copies.filter(|(_, node)| !self.has_or_gets_shard(segment, *node)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use fieldstone_proto::{NodeError, ReplyBody, SealMeta, SegmentKind, ShardInfo};

    use crate::script::Script;
    use crate::status::{NodeHealth, VolumePhase};

    /// The shards 4 and 5 are missing.
    const SHARDS: [Option<u16>; 6] = [Some(0), Some(1), Some(2), Some(3), None, None];
    const SHARD_BYTES: u32 = 65536;
    /// The first segment of a script.
    const ID: SegmentId = SegmentId(1);

    fn complete(shard: u8, shard_bytes: u32) -> ShardInfo {
        let meta = SealMeta { shard_bytes, kind: SegmentKind::Data, ..SealMeta::default() };
        ShardInfo { segment: ID, shard: ShardIndex(shard), meta }
    }

    fn open(segment: SegmentId, shard: u8) -> ShardInfo {
        ShardInfo { segment, shard: ShardIndex(shard), meta: SealMeta::default() }
    }

    fn inventory(listed: &[(u16, ShardInfo)]) -> Inventory {
        let mut inventory = Inventory::default();
        for (node, info) in listed {
            inventory.note(NodeIndex(*node), *info);
        }
        inventory
    }

    /// Copies on nodes, with the number of the shard.
    fn copies(of: &[(SegmentId, u16, usize)]) -> BTreeMap<CopyOn, usize> {
        of.iter().map(|(id, node, shard)| ((*id, NodeIndex(*node)), *shard)).collect()
    }

    fn left_on(script: &mut Script, handle: SegmentIndex) -> Vec<u16> {
        script.core(|core| {
            let segment = core.segments.get(handle).expect("it was added");
            segment.left_on.iter().map(|node| node.0).collect()
        })
    }

    /// The end of a task, once there is one.
    type Outcome = Rc<RefCell<Option<Result<(), Failure>>>>;

    #[test]
    fn the_journal_has_records_of_the_chain_between_its_two_ends() {
        let at = |handle: u32| Lsn(u64::from(handle) * 10);
        let link = |handle| ChainSegment { handle, first: at(handle), end: at(handle + 1) };
        let chain = [0, 1, 2, 3].map(link);
        let backed = |start, trimmed| -> Vec<SegmentIndex> {
            backed_segments(&chain, Lsn(start), Lsn(trimmed)).collect()
        };
        assert_eq!(backed(30, 10), [1, 2]);
        assert_eq!(backed(31, 9), [0, 1, 2, 3]);
        assert!(backed(10, 10).is_empty());
    }

    #[test]
    fn one_copy_of_each_missing_shard_stays_and_an_open_one_comes_first() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&SHARDS);
        let inventory = inventory(&[
            (4, complete(4, SHARD_BYTES)),
            (5, open(ID, 4)),
            (6, complete(5, SHARD_BYTES)),
            (7, complete(5, SHARD_BYTES)),
        ]);
        let gone = handle + 1;
        let left = leave_copies(&script.volume.ctx(), [gone, handle].into_iter(), &inventory);
        assert_eq!(left, copies(&[(ID, 5, 4), (ID, 6, 5)]));
        assert_eq!(left_on(&mut script, handle), [5, 6]);
    }

    #[test]
    fn a_copy_that_cannot_become_the_shard_of_its_node_goes() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&SHARDS);
        let left = |listed: &[(u16, ShardInfo)]| {
            leave_copies(&script.volume.ctx(), [handle].into_iter(), &inventory(listed))
        };
        assert!(left(&[(4, open(ID, 3))]).is_empty(), "the shard is not missing");
        assert!(left(&[(4, open(ID, 6))]).is_empty(), "there is no such shard");
        assert!(left(&[(0, open(ID, 4))]).is_empty(), "the node has a valid shard");
        assert!(left(&[(4, complete(4, 4096))]).is_empty(), "it is another form of the segment");
        let two = [(4, open(ID, 4)), (4, complete(5, SHARD_BYTES))];
        assert!(left(&two).is_empty(), "a node deletes all shards of a segment together");
        assert!(left(&[(4, open(SegmentId(2), 4))]).is_empty(), "it is of another segment");
        assert_eq!(left(&[(4, complete(4, SHARD_BYTES))]), copies(&[(ID, 4, 4)]));
        assert_eq!(left_on(&mut script, handle), [4]);
    }

    #[test]
    fn open_copies_go_unless_the_opening_leaves_them() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&SHARDS);
        let outcome = Outcome::default();
        let run = |script: &mut Script| {
            let outcome = Rc::clone(&outcome);
            script.start(move |ctx| async move {
                let inventory = inventory(&[
                    (0, open(ID, 4)),
                    (4, open(ID, 4)),
                    (5, open(ID, 5)),
                    (6, open(SegmentId(2), 5)),
                    (7, complete(5, SHARD_BYTES)),
                ]);
                let (backed, left) = ([handle].into_iter(), copies(&[(ID, 4, 4)]));
                let result = discard_open_copies(&ctx, backed, &inventory, &left).await;
                *outcome.borrow_mut() = Some(result);
            });
            script.sent_one()
        };
        let sent = run(&mut script);
        assert_eq!(sent.node, NodeIndex(5));
        assert_eq!(sent.request.body, RequestBody::ShardDelete { segments: vec![ID] });
        script.done(&sent);
        assert!(script.sent().is_empty());
        assert!(matches!(outcome.take(), Some(Ok(()))));
        let sent = run(&mut script);
        script.answer(&sent, Err(NodeError::Busy));
        assert!(script.sent().is_empty());
        let failure = outcome.take();
        assert!(matches!(failure, Some(Err(Failure::Node(NodeIndex(5), NodeError::Busy)))));
    }

    #[test]
    fn copies_that_became_no_valid_shards_go_at_the_end() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&SHARDS);
        script.core(|core| {
            let segment = core.segments.get_mut(handle).expect("it was added");
            segment.left_on.extend([3, 4, 5].map(NodeIndex));
        });
        let freed = SegmentId(2);
        let left = copies(&[(ID, 3, 4), (ID, 4, 5), (ID, 5, 5), (freed, 6, 5)]);
        script.start(move |ctx| async move { delete_copies(&ctx, &left).await });
        let sent = script.sent_one();
        assert_eq!(sent.node, NodeIndex(4), "the copy on node 3 is valid");
        assert_eq!(sent.request.body, RequestBody::ShardDelete { segments: vec![ID] });
        script.done(&sent);
        let sent = script.sent_one();
        assert_eq!(sent.node, NodeIndex(5));
        script.answer(&sent, Err(NodeError::Busy));
        assert!(script.sent().is_empty());
        assert_eq!(left_on(&mut script, handle), [5], "that node still has its copy");
    }

    #[test]
    fn a_missing_shard_is_made_where_its_copy_lies() {
        let mut script = Script::serving(8);
        let [_, handle, _] = [(); 3].map(|()| script.add_segment(&SHARDS));
        let id = SegmentId(2);
        let of_others = [(SegmentId(1), 7, 4), (SegmentId(3), 0, 4)];
        let left = copies(&[of_others[0], (id, 4, 4), (id, 5, 5), of_others[1]]);
        script.core(|core| {
            let (four, five) = ((4, NodeIndex(4)), (5, NodeIndex(5)));
            assert_eq!(core.places_of_copies(handle, &left), [four, five]);
            assert!(core.places_of_copies(handle + 2, &left).is_empty(), "it is gone");
            assert!(!core.all_made(handle, &[four]) && core.all_made(handle, &[]));
            core.node_mut(NodeIndex(4)).slots.claimed.insert(id, 1);
            assert_eq!(core.places_of_copies(handle, &left), [five]);
            let segment = core.segments.get_mut(handle).expect("it was added");
            segment.shards[5] = Some(NodeIndex(5));
            assert!(core.places_of_copies(handle, &left).is_empty());
            assert!(core.all_made(handle, &[five]) && !core.all_made(handle, &[four, five]));
            assert!(!core.all_made(handle + 2, &[five]), "it is gone");
        });
    }

    /// Nodes answer until the opening sends nothing more. The first `refusals` writes get the
    /// answer `error`. Gives what the opening did with each node, except reading.
    fn go_on(script: &mut Script, refusals: usize, error: &NodeError) -> Vec<(&'static str, u16)> {
        let (mut done, mut refused) = (Vec::new(), 0);
        loop {
            script.do_jobs();
            let sent = script.sent();
            if sent.is_empty() && script.jobs.is_empty() {
                return done;
            }
            for sent in &sent {
                let node = sent.node.0;
                match &sent.request.body {
                    RequestBody::ShardRead { len_bytes, .. } => {
                        let data = vec![0; *len_bytes as usize];
                        script.answer(sent, Ok(ReplyBody::Data(data.into())));
                    }
                    RequestBody::ShardWrite { .. } => {
                        done.push(("write", node));
                        refused += 1;
                        match refused > refusals {
                            true => script.done(sent),
                            false => script.answer(sent, Err(error.clone())),
                        }
                    }
                    RequestBody::ShardSync => {
                        done.push(("sync", node));
                        script.done(sent);
                    }
                    RequestBody::ShardDelete { .. } => {
                        done.push(("delete", node));
                        script.done(sent);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// A segment with a copy of its shard 4 on node 4 that the opening has left, and the renewal of
    /// this copy. See [`go_on`].
    fn renew(copy: ShardInfo, refusals: usize, error: &NodeError) -> Renewal {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&SHARDS);
        script.core(|core| {
            core.life.put_in(VolumePhase::Opening);
            let segment = core.segments.get_mut(handle).expect("it was added");
            segment.left_on.push(NodeIndex(4));
        });
        let outcome = Outcome::default();
        let result = Rc::clone(&outcome);
        script.start(move |ctx| async move {
            let (backed, left) = ([handle].into_iter(), copies(&[(ID, 4, 4)]));
            let renewed = renew_copies(&ctx, backed, &inventory(&[(4, copy)]), &left).await;
            *result.borrow_mut() = Some(renewed);
        });
        let done = go_on(&mut script, refusals, error);
        let made = script.core(|core| core.all_made(handle, &[(4, NodeIndex(4))]));
        let result = outcome.take().expect("it has ended");
        Renewal { done: done.iter().map(|(what, _)| *what).collect(), made, good: result.is_ok() }
    }

    #[derive(Debug, PartialEq, Eq)]
    struct Renewal {
        done: Vec<&'static str>,
        made: bool,
        good: bool,
    }

    #[test]
    fn a_node_without_space_for_both_deletes_its_copy_first() {
        let full = NodeError::NoSpace;
        let copy = complete(4, SHARD_BYTES);
        let at_once = Renewal { done: vec!["write"], made: true, good: true };
        assert_eq!(renew(copy, 0, &full), at_once);
        let after_sync = Renewal { done: vec!["write", "sync", "write"], ..at_once };
        assert_eq!(renew(copy, 1, &full), after_sync);
        let done = vec!["write", "sync", "write", "delete", "sync", "write"];
        let after_deletion = Renewal { done, ..after_sync };
        assert_eq!(renew(copy, 2, &full), after_deletion);
        let never = Renewal { made: false, ..after_deletion };
        assert_eq!(renew(copy, 3, &full), never, "the node is as good as lost");
        let kept = Renewal { done: vec!["write", "sync", "write"], ..never };
        assert_eq!(renew(open(ID, 4), 2, &full), kept, "an open copy takes no room of its own");
        let failed = Renewal { done: vec!["write"], made: false, good: false };
        assert_eq!(renew(copy, 1, &NodeError::Busy), failed);
    }

    /// What the opening does to make a segment whole, and whether it succeeds. See [`go_on`].
    fn strengthened(refusals: usize, error: &NodeError) -> (Vec<&'static str>, usize, bool) {
        strengthened_without(&[], refusals, error)
    }

    /// The same while these nodes are lost.
    fn strengthened_without(
        lost: &[u16],
        refusals: usize,
        error: &NodeError,
    ) -> (Vec<&'static str>, usize, bool) {
        strengthened_among(lost, &[], refusals, error)
    }

    /// The same while some nodes are lost, and others have no room.
    fn strengthened_among(
        lost: &[u16],
        full: &[u16],
        refusals: usize,
        error: &NodeError,
    ) -> (Vec<&'static str>, usize, bool) {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&SHARDS);
        script.core(|core| {
            core.life.put_in(VolumePhase::Opening);
            for node in lost {
                core.node_mut(NodeIndex(*node)).health = NodeHealth::Down;
            }
            for node in full {
                core.node_mut(NodeIndex(*node)).slots.full = true;
            }
        });
        let outcome = Outcome::default();
        let result = Rc::clone(&outcome);
        script.start(move |ctx| async move {
            *result.borrow_mut() = Some(strengthen(&ctx, [handle].into_iter()).await);
        });
        let done = go_on(&mut script, refusals, error);
        let missing =
            script.core(|core| core.segments.get(handle).expect("it was added").missing());
        let good = outcome.take().expect("it has ended").is_ok();
        (done.iter().map(|(what, _)| *what).collect(), missing, good)
    }

    #[test]
    fn an_opening_makes_a_segment_whole_as_far_as_nodes_have_space() {
        let full = NodeError::NoSpace;
        assert_eq!(strengthened(0, &full), (vec!["write", "write"], 0, true));
        let again = vec!["write", "write", "sync", "write"];
        assert_eq!(strengthened(1, &full), (again, 0, true));
        let twice = vec!["write", "write", "sync", "write", "sync", "write"];
        assert_eq!(strengthened(4, &full), (twice, 2, true), "the nodes are as good as lost");
        assert_eq!(strengthened(1, &NodeError::Busy), (vec!["write", "write"], 1, false));
    }

    /// The writer may have had room for the missing shards on the lost nodes only.
    #[test]
    fn an_opening_makes_no_more_shards_than_the_losses_that_may_come_ask_for() {
        let full = NodeError::NoSpace;
        assert_eq!(strengthened_without(&[7], 0, &full), (vec!["write"], 1, true));
        assert_eq!(strengthened_without(&[6, 7], 0, &full), (vec![], 2, true));
    }

    /// Nodes without room do not make up for shards that others take.
    #[test]
    fn an_opening_makes_all_shards_that_nodes_have_room_for() {
        let full = NodeError::NoSpace;
        assert_eq!(strengthened_among(&[], &[4, 5], 0, &full), (vec!["write", "write"], 0, true));
        assert_eq!(strengthened_among(&[], &[4, 5, 6], 0, &full), (vec!["write"], 1, true));
    }
}
