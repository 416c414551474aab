//! The move of a segment's live blocks.
//!
//! The segment's footer lists the blocks of the device that the segment took. The map tells which
//! of these blocks still lie in the segment. Each live block is appended to the log like any write,
//! with the place that it comes from: the log leaves a block behind that a user has overwritten
//! meanwhile.

use fieldstone_block::BlockError;
use fieldstone_buf::join;
use fieldstone_proto::BLOCK_BYTES;

use crate::core::{Ctx, VolumeCore};
use crate::exec::oneshot;
use crate::footer::Footer;
use crate::map::{Location, MapRun};
use crate::read::read_segment;
use crate::record::{Entry, EntryKind};
use crate::segment::SegmentIndex;

/// Blocks that one step of collection moves.
const STEP_BLOCKS: u32 = 64;

/// Appends the live blocks of a segment to the log again.
pub(super) async fn move_segment(ctx: &Ctx, handle: SegmentIndex) -> Result<(), BlockError> {
    let footer = read_footer(ctx, handle).await?;
    let mut waiting = std::collections::VecDeque::new();
    for entry in footer.entries.iter().filter(|entry| entry.kind == EntryKind::Data) {
        let alive: Vec<MapRun> = ctx.with(|core| alive_runs(core, handle, entry));
        for run in alive {
            let Some((_, block)) = run.location.stored() else { continue };
            let data = read_segment(ctx, handle, block, run.count).await?;
            let data = join(&data);
            let (filler, awaited) = oneshot();
            ctx.with(|core| {
                let entry = Entry {
                    kind: EntryKind::Data,
                    block: run.block,
                    count: run.count,
                    segment_block: 0,
                };
                core.queue_internal(entry, data, Some(run.location), filler);
            });
            waiting.push_back(awaited);
            if waiting.len() > 4 {
                waiting.pop_front().expect("not empty").await?;
            }
        }
    }
    for awaited in waiting {
        awaited.await?;
    }
    Ok(())
}

/// The live blocks of an entry, which still lie where the entry says, in runs of at most a step. A
/// block that only a frozen root of the map has is live, too.
fn alive_runs(core: &VolumeCore, handle: SegmentIndex, entry: &Entry) -> Vec<MapRun> {
    let mut runs: Vec<MapRun> = Vec::new();
    for i in 0..entry.count {
        let location = Location::at(handle, entry.segment_block + i);
        let block = entry.block + u64::from(i);
        if !core.map.has(block, location) {
            continue;
        }
        match runs.last_mut() {
            Some(run)
                if run.block + u64::from(run.count) == block
                    && run.location.plus(run.count) == location
                    && run.count < STEP_BLOCKS =>
            {
                run.count += 1;
            }
            _ => runs.push(MapRun { block, count: 1, location }),
        }
    }
    runs
}

/// Reads the footer of a sealed segment.
///
/// # Errors
/// Too few shards are readable, or the footer is damaged.
pub async fn read_footer(ctx: &Ctx, handle: SegmentIndex) -> Result<Footer, BlockError> {
    let gone = || BlockError::Io("the segment is gone".into());
    let (id, total) = ctx
        .with(|core| {
            let segment = core.segments.get(handle)?;
            Some((segment.id, segment.shard_bytes / BLOCK_BYTES as u32 * core.layout.k))
        })
        .ok_or_else(gone)?;
    let bad = |error: crate::codec::FormatError| {
        BlockError::Io(format!("footer of segment {id}: {error}"))
    };
    let last = join(&read_segment(ctx, handle, total.saturating_sub(1), 1).await?);
    let blocks = Footer::blocks_of(&last).map_err(bad)?;
    if blocks > total {
        return Err(BlockError::Io(format!("footer of segment {id}: {blocks} blocks")));
    }
    let bytes = match blocks {
        1 => last,
        _ => join(&read_segment(ctx, handle, total - blocks, blocks).await?),
    };
    let volume = ctx.with(|core| core.config.volume);
    Footer::decode(&bytes, volume, id).map_err(bad)
}
