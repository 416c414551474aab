//! Copies of shards that do not count, of segments that the journal still backs.
//!
//! The earlier writer may have died while it wrote the shards of such a segment. Then its data is
//! on fewer nodes than the journal, which this opening is about to give up. So the opening makes
//! the segment whole before that, as far as there are nodes ([`strengthen`]).
//!
//! A node may have a copy of a missing shard that does not count. The copy may lack only the end of
//! its data, and have rows that few nodes have. So a copy of each missing shard stays until the
//! opening has committed. The node of that copy gets this shard, and no other shard of the segment:
//! it could not delete one of two alone. It stores the new shard beside a complete copy, and over
//! an open one, which has the same bytes as far as it goes. A node without room for both deletes
//! its copy first, so an opening needs no more room than it finds.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_proto::{Lsn, NodeIndex, RequestBody, SegmentId};

use super::chain::Link;
use super::recover::Inventory;
use super::{Blame, Failure};
use crate::core::{Core, Ctx};
use crate::rebuild::rebuild_segment;
use crate::segment::{Handle, Segment};
use crate::status::NodeHealth;

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
            for (shard, node) in copies {
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

/// Makes these segments whole, as far as there are nodes. `left` has the copies that stay.
///
/// # Errors
/// The opening could not make a shard that a node could take.
pub(super) async fn strengthen(
    ctx: &Ctx,
    backed: impl Iterator<Item = Handle>,
    left: &BTreeMap<CopyOn, usize>,
) -> Result<(), Failure> {
    for handle in backed {
        let in_place = ctx.with(|core| core.places_of_copies(handle, left));
        // The writer had room for the shards, so the opening may use the reserve.
        let others = ctx.with(|core| core.places_of_others(handle, &in_place));
        let targets: Vec<_> = in_place.iter().chain(&others).copied().collect();
        let wanted = targets.len();
        let missing = |core: &mut Core| core.segments.get(handle).map_or(0, Segment::missing);
        let before = ctx.with(missing);
        rebuild_segment(ctx, handle, targets).await;
        let refused = ctx.with(|core| core.refused(handle, in_place));
        for (_, node) in &refused {
            let id = ctx.with(|core| core.segments.get(handle).map(|segment| segment.id));
            let body = RequestBody::ShardDelete { segments: id.into_iter().collect() };
            ctx.call(*node, body).await.blame(*node)?;
        }
        if !refused.is_empty() {
            rebuild_segment(ctx, handle, refused).await;
        }
        if before - ctx.with(missing).min(before) < wanted {
            return Err(Failure::Again("a segment that was being written is not whole".into()));
        }
    }
    Ok(())
}

impl Core {
    /// The missing shards of the segment of which nodes have copies in `left`, with these nodes.
    fn places_of_copies(
        &mut self,
        handle: Handle,
        left: &BTreeMap<CopyOn, usize>,
    ) -> Vec<(usize, NodeIndex)> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let (first, last) = ((segment.id, NodeIndex(0)), (segment.id, NodeIndex(u16::MAX)));
        let usable = |node: NodeIndex| {
            self.node(node).health == NodeHealth::Up && !self.has_or_gets_shard(segment, node)
        };
        let copies = left.range(first..=last).map(|((_, node), shard)| (*shard, *node));
        let places: Vec<(usize, NodeIndex)> = copies.filter(|(_, node)| usable(*node)).collect();
        for (_, node) in &places {
            self.node_mut(*node).slots.full = false; // the answer to the write will tell
        }
        places
    }

    /// Nodes for the other missing shards of the segment.
    fn places_of_others(
        &mut self,
        handle: Handle,
        in_place: &[(usize, NodeIndex)],
    ) -> Vec<(usize, NodeIndex)> {
        let placed = self.place_missing(handle, 0);
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let is_in_place = |shard: usize| in_place.iter().any(|(other, _)| *other == shard);
        // Placement may have given nodes to shards that stay in place.
        let mut spare = placed.iter().filter(|(shard, _)| is_in_place(*shard));
        let others =
            (0..segment.shards.len()).filter(|s| segment.shards[*s].is_none() && !is_in_place(*s));
        let own = |shard: usize| placed.iter().find(|(other, _)| *other == shard);
        let place = |shard: usize| Some((shard, own(shard).or_else(|| spare.next())?.1));
        others.filter_map(place).collect()
    }

    /// Those of the shards that their nodes had no room for.
    fn refused(
        &self,
        handle: Handle,
        mut shards: Vec<(usize, NodeIndex)>,
    ) -> Vec<(usize, NodeIndex)> {
        let segment = self.segments.get(handle);
        shards.retain(|(shard, node)| {
            let missing = segment.is_some_and(|segment| segment.shards[*shard].is_none());
            let state = self.node(*node);
            missing && state.slots.full && state.health == NodeHealth::Up
        });
        shards
    }
}
