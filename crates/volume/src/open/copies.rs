//! Copies of shards that do not count, of segments that the journal still backs.
//!
//! The earlier writer may have died while it wrote the shards of such a segment. Then its data is
//! on fewer nodes than the journal, which this opening is about to give up. So the opening makes
//! the segment whole before that, as far as there are nodes ([`renew_copies`], then
//! [`strengthen`]).
//!
//! A node may have a copy of a missing shard that does not count. The copy may lack only the end of
//! its data, and have rows that few nodes have. So a copy of each missing shard stays until the
//! opening has committed. The node of that copy gets this shard, and no other shard of the segment:
//! it could not delete one of two alone. It stores the new shard beside a complete copy, and over
//! an open one, which has the same bytes as far as it goes. A node without room for both deletes
//! its copy first, so an opening needs no more room than it finds. A node whose disk is full may
//! have no room even then, and counts as lost for this shard. A sync frees the slots of the copies.
//! Then the other missing shards get nodes.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_proto::{Lsn, NodeIndex, RequestBody, SegmentId, ShardIndex};

use super::chain::Link;
use super::recover::Inventory;
use super::{Blame, Failure};
use crate::core::{Core, Ctx};
use crate::rebuild::rebuild_segment;
use crate::segment::{Handle, Segment};

/// The segments of the chain that the journal still backed, by handle.
pub(super) fn backed_links(
    chain: &[Link],
    start: Lsn,
    trimmed: Lsn,
) -> impl Iterator<Item = Handle> + '_ {
    let backed = chain.iter().filter(move |link| link.first < start && link.end > trimmed);
    backed.map(|link| link.handle)
}

/// A shard on one node, by the name of its segment.
pub(super) type CopyOn = (SegmentId, NodeIndex);

/// For each missing shard of these segments: one copy that a node has of it, complete or open, if
/// there is one. The copy stays. All other copies on nodes without a shard that counts go at once,
/// as do all copies on a node with several.
pub(super) fn leave_copies(
    ctx: &Ctx,
    backed: impl Iterator<Item = Handle>,
    inventory: &Inventory,
) -> BTreeMap<CopyOn, usize> {
    ctx.with(|core| {
        let mut left = BTreeMap::new();
        for handle in backed {
            let Some(segment) = core.segments.get_mut(handle) else { continue };
            let copies = inventory.places.get(&segment.id).map_or(&[][..], Vec::as_slice);
            let complete = inventory.listed.get(&segment.id).map_or(&[][..], Vec::as_slice);
            let mut assigned = BTreeSet::new();
            // An open copy has rows. A complete one may have none that is stable.
            let is_open = |node: &NodeIndex| inventory.open.contains(&(*node, segment.id));
            let (open, other): (Vec<&(ShardIndex, NodeIndex)>, Vec<_>) =
                copies.iter().partition(|(_, n)| is_open(n));
            for (shard, node) in open.into_iter().chain(other) {
                let index = usize::from(shard.0);
                let missing = segment.shards.get(index).is_some_and(Option::is_none);
                let alone = copies.iter().filter(|(_, other)| other == node).count() == 1;
                let fits = complete
                    .iter()
                    .filter(|(other, _)| other == node)
                    .all(|(_, info)| segment.fits(info));
                let free = !segment.shards.contains(&Some(*node));
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
    backed: impl Iterator<Item = Handle>,
    inventory: &Inventory,
    left: &BTreeMap<CopyOn, usize>,
) -> Result<(), Failure> {
    let doomed: Vec<CopyOn> = ctx.with(|core| {
        let segments = backed.filter_map(|handle| core.segments.get(handle));
        let of_segment = |segment: &Segment| -> Vec<CopyOn> {
            let open = inventory.open.iter().filter(|(_, id)| *id == segment.id);
            let counts = |node: &NodeIndex| segment.shards.contains(&Some(*node));
            open.filter(|(node, _)| !counts(node)).map(|(node, id)| (*id, *node)).collect()
        };
        segments.flat_map(of_segment).filter(|copy| !left.contains_key(copy)).collect()
    });
    for (id, node) in doomed {
        let body = RequestBody::ShardDelete { segments: vec![id] };
        ctx.call(node, body).await.blame(node)?;
    }
    Ok(())
}

/// Deletes the copies that the opening has left, where they do not count now. A node that does not
/// answer still has its copy.
pub(super) async fn delete_copies(ctx: &Ctx, left: &BTreeMap<CopyOn, usize>) {
    for (id, node) in left.keys() {
        let counts = ctx.with(|core| {
            let segment = core.segments.named(*id);
            segment.is_none_or(|segment| segment.shards.contains(&Some(*node)))
        });
        let body = RequestBody::ShardDelete { segments: vec![*id] };
        if counts || ctx.call(*node, body).await.is_ok() {
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
    backed: impl Iterator<Item = Handle>,
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
            // A sync frees the slots of copies that were written anew.
            ctx.call(place.1, RequestBody::ShardSync).await.blame(place.1)?;
            let mut rebuilt = rebuild_segment(ctx, handle, vec![place]).await;
            let is_open = inventory.open.contains(&(place.1, id));
            if !rebuilt.refused.is_empty() && !is_open {
                let body = RequestBody::ShardDelete { segments: vec![id] };
                ctx.call(place.1, body).await.blame(place.1)?;
                ctx.call(place.1, RequestBody::ShardSync).await.blame(place.1)?;
                rebuilt = rebuild_segment(ctx, handle, vec![place]).await;
            }
            if !rebuilt.refused.is_empty() {
                places.retain(|other| *other != place);
            }
        }
        let made = |core: &mut Core| {
            let segment = core.segments.get(handle);
            let is_there = |(shard, _): &(usize, NodeIndex)| {
                segment.is_some_and(|segment| segment.shards[*shard].is_some())
            };
            places.iter().all(is_there)
        };
        if !ctx.with(made) {
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
    backed: impl Iterator<Item = Handle>,
) -> Result<(), Failure> {
    for handle in backed {
        // The writer had room for the shards, so the opening may use the reserve.
        let targets = ctx.with(|core| core.place_missing(handle, 0));
        let wanted = targets.len();
        let first = rebuild_segment(ctx, handle, targets).await;
        let mut made = first.made;
        for place in first.refused {
            ctx.call(place.1, RequestBody::ShardSync).await.blame(place.1)?;
            let again = rebuild_segment(ctx, handle, vec![place]).await;
            // A node that seemed to have room and has none counts as lost for this shard.
            made += again.made + again.refused.len();
        }
        if made < wanted {
            return Err(not_whole());
        }
    }
    Ok(())
}

fn not_whole() -> Failure {
    Failure::Again("a segment that was being written is not whole".into())
}

impl Core {
    /// The missing shards of the segment of which nodes have copies in `left`, with these nodes.
    fn places_of_copies(
        &self,
        handle: Handle,
        left: &BTreeMap<CopyOn, usize>,
    ) -> Vec<(usize, NodeIndex)> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let (first, last) = ((segment.id, NodeIndex(0)), (segment.id, NodeIndex(u16::MAX)));
        let copies = left.range(first..=last).map(|((_, node), shard)| (*shard, *node));
        copies.filter(|(_, node)| !self.has_or_gets_shard(segment, *node)).collect()
    }
}
