//! The chain of segments behind the checkpoint, and the position where replay from the journal
//! takes over.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fieldstone_block::BlockError;
use fieldstone_proto::{Lsn, NodeIndex, RequestBody, SegmentId, SegmentKind};

use super::recover::Inventory;
use super::rings::{Records, reach};
use super::validate::{Listed, settle};
use super::{Blame, Failure};
use crate::core::{Core, Ctx};
use crate::exec::{Awaited, all, slot};
use crate::footer::Footer;
use crate::gc::read_footer;
use crate::rebuild::rebuild_segment;
use crate::root::Root;
use crate::segment::{Handle, Segment, epoch_of};
use crate::status::NodeHealth;

/// Most footers that an opening reads at the same time.
const FOOTERS_MAX: usize = 16;

/// A segment of the chain.
pub(super) struct Link {
    pub handle: Handle,
    pub first: Lsn,
    pub end: Lsn,
}

/// Finds the chain of segments behind the checkpoint. The opening verifies all their shards,
/// because no checkpoint names them. A segment that was once durable stays in the chain, no matter
/// how many of its shards are good.
pub(super) async fn find_chain(
    ctx: &Ctx,
    root: &Root,
    listed: &Listed,
    trimmed: Lsn,
) -> Result<Vec<Link>, Failure> {
    let mut by_start: HashMap<Lsn, SegmentId> = HashMap::new();
    for (id, shards) in listed {
        let meta = shards[0].1.meta;
        if epoch_of(*id) == root.epoch
            && meta.kind == SegmentKind::Data
            && meta.lsn_first >= root.checkpoint_lsn
            && ctx.with(|core| core.segments.find(*id).is_none())
        {
            by_start.insert(meta.lsn_first, *id);
        }
    }
    let mut chain = Vec::new();
    let mut doubtful = Vec::new();
    let mut at = root.checkpoint_lsn;
    while let Some(id) = by_start.get(&at) {
        let shards = &listed[id];
        let meta = shards[0].1.meta;
        if meta.lsn_end <= at {
            break;
        }
        let handle = ctx.with(|core| {
            let lsn = (meta.lsn_first, meta.lsn_end);
            let handle = core.insert_listed(*id, meta.kind, lsn, meta.shard_bytes, shards);
            doubtful.extend(core.doubtful(handle, shards, &[]));
            handle
        });
        chain.push(Link { handle, first: at, end: meta.lsn_end });
        at = meta.lsn_end;
    }
    let good = settle(ctx, &doubtful).await?;
    let k = ctx.with(|core| core.code.k());
    let lacks = |link: &Link| good.get(&link.handle).is_none_or(|good| *good < k);
    let broken = chain.iter().position(|link| lacks(link) && link.end > trimmed);
    for link in chain.drain(broken.unwrap_or(chain.len())..) {
        ctx.with(|core| core.segments.remove(link.handle));
    }
    Ok(chain)
}

/// The boundary from which replay reaches furthest; the latest one if several reach as far.
pub(super) fn choose_start(root: &Root, chain: &[Link], records: &Records) -> Lsn {
    let ring = root.geometry.ring_bytes;
    let boundaries = std::iter::once(root.checkpoint_lsn).chain(chain.iter().map(|link| link.end));
    let mut best = (root.checkpoint_lsn, root.checkpoint_lsn);
    for (index, boundary) in boundaries.enumerate() {
        let end = reach(boundary, records, ring);
        if index == 0 || end >= best.1 {
            best = (boundary, end);
        }
    }
    best.0
}

/// Refuses to go back in time: the opening must find everything that was once durable.
pub(super) fn check_nothing_lost(
    root: &Root,
    start: Lsn,
    trimmed: Lsn,
    records: &Records,
) -> Result<(), Failure> {
    let end = reach(start, records, root.geometry.ring_bytes);
    if end < trimmed {
        return Err(Failure::Again(format!(
            "the log is readable up to position {end}, but was stored up to {trimmed}: too many \
             nodes are missing or damaged; bring them back"
        )));
    }
    Ok(())
}

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
pub(super) type Copy = (SegmentId, NodeIndex);

/// For each missing shard of these segments: one copy that a node has of it, complete or open, if
/// there is one. Such a copy stays until the opening has committed, because it may lack only the end
/// of its data, and have rows that few nodes have. Until then the node gets no other shard of the
/// segment: it could not delete one of two alone. All other copies on nodes without a shard that
/// counts go at once, as do all copies on a node with several.
pub(super) fn leave_copies(
    ctx: &Ctx,
    backed: impl Iterator<Item = Handle>,
    inventory: &Inventory,
) -> BTreeMap<Copy, usize> {
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
    left: &BTreeMap<Copy, usize>,
) -> Result<(), Failure> {
    let doomed: Vec<Copy> = ctx.with(|core| {
        let segments = backed.filter_map(|handle| core.segments.get(handle));
        let of_segment = |segment: &Segment| -> Vec<Copy> {
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
pub(super) async fn delete_copies(ctx: &Ctx, left: &BTreeMap<Copy, usize>) {
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

/// Makes these segments whole, as far as there are nodes. The writer may have died while it wrote
/// their shards. Then their data is on fewer nodes than the journal, which this opening is about to
/// give up. So the opening fails if it cannot make a shard that a node could take.
///
/// A shard with a copy in `left` is written to the copy's node, beside the copy or over it. If the
/// node has no room for both, it deletes the copy first.
pub(super) async fn strengthen(
    ctx: &Ctx,
    backed: impl Iterator<Item = Handle>,
    left: &BTreeMap<Copy, usize>,
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
        left: &BTreeMap<Copy, usize>,
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

/// Applies the changes of the segments of the chain that begin before `start`.
pub(super) async fn replay_footers(ctx: &Ctx, chain: &[Link], start: Lsn) -> Result<(), Failure> {
    let replayed: Vec<&Link> = chain.iter().filter(|link| link.first < start).collect();
    for links in replayed.chunks(FOOTERS_MAX) {
        let footers = links.iter().map(|link| start_footer(ctx, link.handle)).collect();
        for (link, footer) in links.iter().zip(all(footers).await) {
            let footer =
                footer.map_err(|error| Failure::Again(format!("replaying segments: {error}")))?;
            ctx.with(|core| {
                for entry in &footer.entries {
                    core.apply(link.handle, entry);
                }
            });
        }
    }
    Ok(())
}

/// Starts to read the footer of a segment.
fn start_footer(ctx: &Ctx, handle: Handle) -> Awaited<Result<Footer, BlockError>> {
    let (filler, awaited) = slot();
    ctx.with(|core| {
        core.spawn_with(move |ctx| async move { filler.fill(read_footer(&ctx, handle).await) });
    });
    awaited
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::{Epoch, JournalGen};

    use super::super::rings::trimmed_up_to;
    use super::*;

    fn root(checkpoint_lsn: Lsn, trimmed: Lsn) -> Root {
        Root {
            put_by: Epoch(0),
            version: 1,
            volume: fieldstone_proto::VolumeId(1),
            epoch: Epoch(1),
            geometry: crate::seam::Geometry {
                size_bytes: 1 << 20,
                shard_bytes: 1 << 16,
                unit_bytes: 4096,
                ring_bytes: 1 << 18,
            },
            generation: JournalGen(2),
            journal_nodes: Vec::new(),
            checkpoint_lsn,
            checkpoint_bytes: 0,
            trimmed,
            checkpoint_segments: Vec::new(),
            clean: false,
            provisioning: crate::seam::Provisioning::Thin,
            name: String::new(),
            profile: String::new(),
        }
    }

    #[test]
    fn an_empty_journal_does_not_hide_that_segments_are_missing() {
        let (first, middle, last) = (Lsn(0x1000), Lsn(0x3000), Lsn(0x7000));
        let (root, records) = (root(first, last), Records::new());
        let trimmed = trimmed_up_to(&root, &records);
        let found = |chain: &[Link]| {
            let start = choose_start(&root, chain, &records);
            check_nothing_lost(&root, start, trimmed, &records).is_ok()
        };
        let link = |first, end| Link { handle: 0, first, end };
        assert!(!found(&[]));
        assert!(!found(&[link(first, middle)]));
        assert!(found(&[link(first, middle), link(middle, last)]));
    }
}
