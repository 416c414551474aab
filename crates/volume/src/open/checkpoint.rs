//! Knowledge about segments before any footer is replayed: the checkpoint, and the nodes' lists.

use fieldstone_buf::join;
use fieldstone_proto::{BLOCK_BYTES, Lsn, NodeIndex, SegmentId, SegmentKind, ShardInfo};

use super::Failure;
use super::chain::ChainSegment;
use super::validate::{Listed, verify_copies};
use crate::core::{Ctx, VolumeCore};
use crate::failure::{AttemptFailure, VolumeFailure};
use crate::map::Location;
use crate::read::read_segment;
use crate::record::{Entry, EntryKind};
use crate::root::Root;
use crate::segment::{Segment, SegmentIndex, State};

/// Reads the checkpoint that the root names, and adds its segments and its map.
pub(super) async fn load_checkpoint(
    ctx: &Ctx,
    root: &Root,
    listed: &Listed,
) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    for id in &root.checkpoint_segments {
        let shards = listed.get(id).map_or(&[][..], Vec::as_slice);
        let shard_bytes = shards.first().map_or(0, |(_, info)| info.meta.shard_bytes);
        let handle = ctx.with(|core| {
            let kind = SegmentKind::Checkpoint;
            core.insert_listed(*id, kind, (Lsn(0), Lsn(0)), shard_bytes, shards)
        });
        // The opening reads the checkpoint in full right away, so the only question is which copy
        // of a shard to read.
        let unproven = ctx.with(|core| {
            let found = core.segments.get(handle).map(|s| s.shards.clone()).unwrap_or_default();
            core.unproven(handle, shards, &found)
        });
        verify_copies(ctx, &unproven).await?;
        let blocks = ctx.with(|core| shard_bytes / BLOCK_BYTES as u32 * core.shape.layout().k);
        let data = read_segment(ctx, handle, 0, blocks)
            .await
            .map_err(|error| AttemptFailure::CheckpointUnreadable { segment: *id, error })?;
        bytes.extend_from_slice(&join(&data));
    }
    if root.checkpoint_bytes == 0 {
        return Ok(());
    }
    let length = usize::try_from(root.checkpoint_bytes).unwrap_or(usize::MAX);
    let bytes = bytes.get(..length).ok_or(AttemptFailure::CheckpointCutShort)?;
    let checkpoint = crate::checkpoint::decode(bytes).map_err(VolumeFailure::Checkpoint)?;
    let unproven = ctx.with(|core| {
        let mut handles = Vec::with_capacity(checkpoint.segments.len());
        let mut unproven = Vec::new();
        for record in &checkpoint.segments {
            let shards = listed.get(&record.id).map_or(&[][..], Vec::as_slice);
            let lsn = (record.lsn_first, record.lsn_end);
            let kind = SegmentKind::Data;
            let handle = core.insert_listed(record.id, kind, lsn, record.shard_bytes, shards);
            unproven.extend(core.unproven(handle, shards, &record.shards));
            handles.push(handle);
        }
        for run in &checkpoint.runs {
            for i in 0..run.count {
                let location = match run.place {
                    None => Location::RESERVED,
                    Some((index, at)) => Location::at(handles[index as usize], at + i),
                };
                core.map.set(run.block + u64::from(i), location);
            }
            if let Some((index, _)) = run.place
                && let Some(segment) = core.segments.get_mut(handles[index as usize])
            {
                segment.live_blocks += run.count;
            }
        }
        unproven
    });
    verify_copies(ctx, &unproven).await?;
    Ok(())
}

impl VolumeCore {
    /// Adds a segment whose shards the nodes have listed. The verification of the unproven ones
    /// decides which of them count.
    pub(super) fn insert_listed(
        &mut self,
        id: SegmentId,
        kind: SegmentKind,
        lsn: (Lsn, Lsn),
        shard_bytes: u32,
        listed: &[(NodeIndex, ShardInfo)],
    ) -> SegmentIndex {
        let mut segment = Segment {
            lsn_first: lsn.0,
            lsn_end: lsn.1,
            shard_bytes,
            ..Segment::new(id, kind, State::Durable, self.shape.layout().width())
        };
        for (node, info) in listed {
            let index = usize::from(info.shard.0);
            if segment.fits(info) && segment.is_missing(index) {
                segment.shards[index] = Some(*node);
            }
        }
        self.segments.insert(segment)
    }

    /// Removes the segments at and after the start of the replay: the replay appends their records
    /// anew.
    pub(super) fn drop_segments_from(&mut self, chain: &[ChainSegment], start: Lsn) {
        for link in chain.iter().filter(|link| link.first >= start) {
            self.segments.remove(link.handle);
        }
    }

    pub(super) fn apply(&mut self, handle: SegmentIndex, entry: &Entry) {
        let blocks = self.shape.size_blocks();
        let end = (entry.block + u64::from(entry.count)).min(blocks);
        match entry.kind {
            EntryKind::Data => {
                for (block, i) in (entry.block..end).zip(0u32..) {
                    let location = Location::at(handle, entry.segment_block + i);
                    let before = self.map.set(block, location);
                    self.forget(before);
                    if let Some(segment) = self.segments.get_mut(handle) {
                        segment.live_blocks += 1;
                    }
                }
            }
            EntryKind::Trim => self.clear_map(entry.block..end, Location::HOLE),
            EntryKind::Reserve => self.clear_map(entry.block..end, Location::RESERVED),
        }
    }
}
