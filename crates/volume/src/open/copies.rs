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
        // The writer had room for the shards, so the opening may use the reserve.
        let targets = ctx.with(|core| core.place_missing(handle, 0));
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
    Failure::Again("a segment that was being written is not whole".into())
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
