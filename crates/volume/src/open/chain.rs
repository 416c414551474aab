//! The chain of segments after the checkpoint, and the position where replay from the journal
//! takes over.

use std::collections::HashMap;

use fieldstone_block::BlockError;
use fieldstone_proto::{Lsn, SegmentId, SegmentKind};

use super::Failure;
use super::rings::{Records, reach};
use super::validate::{Listed, verify_copies};
use crate::core::Ctx;
use crate::failure::AttemptFailure;
use crate::footer::Footer;
use crate::gc::read_footer;
use crate::root::Root;
use crate::segment::{SegmentIndex, epoch_of};
use fieldstone_tasks::{Awaited, all, oneshot};

/// Most footers that an opening reads at the same time.
const FOOTERS_MAX: usize = 16;

/// A segment of the chain.
pub(super) struct ChainSegment {
    pub handle: SegmentIndex,
    pub first: Lsn,
    pub end: Lsn,
}

/// Finds the chain of segments after the checkpoint. The opening verifies all their shards,
/// because no checkpoint names them. A segment that was once durable stays in the chain, no matter
/// how many of its shards are good.
pub(super) async fn find_chain(
    ctx: &Ctx,
    root: &Root,
    listed: &Listed,
    trimmed: Lsn,
) -> Result<Vec<ChainSegment>, Failure> {
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
    let mut unproven = Vec::new();
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
            unproven.extend(core.unproven(handle, shards, &[]));
            handle
        });
        chain.push(ChainSegment { handle, first: at, end: meta.lsn_end });
        at = meta.lsn_end;
    }
    let good = verify_copies(ctx, &unproven).await?;
    let k = ctx.with(|core| core.shape.code().k());
    let lacks = |link: &ChainSegment| good.get(&link.handle).is_none_or(|good| *good < k);
    let broken = chain.iter().position(|link| lacks(link) && link.end > trimmed);
    for link in chain.drain(broken.unwrap_or(chain.len())..) {
        ctx.with(|core| core.segments.remove(link.handle));
    }
    Ok(chain)
}

/// The boundary from which replay reaches furthest; the latest one if several reach as far.
pub(super) fn choose_start(root: &Root, chain: &[ChainSegment], records: &Records) -> Lsn {
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
        return Err(AttemptFailure::LogCutShort { end, trimmed }.into());
    }
    Ok(())
}

/// Applies the changes of the segments of the chain that begin before `start`.
pub(super) async fn replay_footers(
    ctx: &Ctx,
    chain: &[ChainSegment],
    start: Lsn,
) -> Result<(), Failure> {
    let replayed: Vec<&ChainSegment> = chain.iter().filter(|link| link.first < start).collect();
    for links in replayed.chunks(FOOTERS_MAX) {
        let footers = links.iter().map(|link| start_footer(ctx, link.handle)).collect();
        for (link, footer) in links.iter().zip(all(footers).await) {
            let footer = footer.map_err(AttemptFailure::Footer)?;
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
fn start_footer(ctx: &Ctx, handle: SegmentIndex) -> Awaited<Result<Footer, BlockError>> {
    let (filler, awaited) = oneshot();
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
            geometry: crate::interface::Geometry {
                size_bytes: 1 << 20,
                shard_bytes: 1 << 16,
                unit_bytes: 4096,
                chunk_bytes: 0,
                ring_bytes: 1 << 18,
            },
            generation: JournalGen(2),
            journal_nodes: Vec::new(),
            checkpoint_lsn,
            checkpoint_bytes: 0,
            trimmed,
            checkpoint_segments: Vec::new(),
            clean: false,
            provisioning: crate::interface::Provisioning::Thin,
            name: String::new(),
            profile: String::new(),
        }
    }

    #[test]
    fn an_empty_journal_does_not_hide_that_segments_are_missing() {
        let (first, middle, last) = (Lsn(0x1000), Lsn(0x3000), Lsn(0x7000));
        let (root, records) = (root(first, last), Records::new());
        let trimmed = trimmed_up_to(&root, &records);
        let found = |chain: &[ChainSegment]| {
            let start = choose_start(&root, chain, &records);
            check_nothing_lost(&root, start, trimmed, &records).is_ok()
        };
        let link = |first, end| ChainSegment { handle: 0, first, end };
        assert!(!found(&[]));
        assert!(!found(&[link(first, middle)]));
        assert!(found(&[link(first, middle), link(middle, last)]));
    }
}
