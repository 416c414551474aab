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
use crate::footer::Footer;
use crate::map::{Location, MapRun};
use crate::read::read_segment;
use crate::record::{Entry, EntryKind};
use crate::segment::SegmentIndex;
use fieldstone_tasks::oneshot;

/// Blocks that one step of collection moves.
const STEP_BLOCKS: u32 = 64;
/// Steps that the log may store while collection reads the next one. Their blocks take at most
/// 1 MiB of memory. The log appends them before users' writes, so with more of them, users' writes
/// would wait for longer.
const STEPS_IN_FLIGHT_MAX: usize = 4;

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
            if waiting.len() > STEPS_IN_FLIGHT_MAX {
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
            Some((segment.id, segment.shard_bytes / BLOCK_BYTES as u32 * core.shape.layout().k))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::RootId;
    use crate::script::Script;

    const SEGMENT: SegmentIndex = 3;

    /// Block 100 of the device and those after it were written to the segment from its block 10 on.
    fn entry(count: u32) -> Entry {
        Entry { kind: EntryKind::Data, block: 100, count, segment_block: 10 }
    }

    /// A volume in which all blocks of the entry are live.
    fn with_live(count: u32) -> Script {
        let mut script = Script::serving(8);
        script.core(|core| {
            for i in 0..count {
                core.map.set(100 + u64::from(i), Location::at(SEGMENT, 10 + i));
            }
        });
        script
    }

    /// The first block of the device, the first block in the segment and the length of each run.
    fn runs(core: &VolumeCore, count: u32) -> Vec<(u64, u32, u32)> {
        let runs = alive_runs(core, SEGMENT, &entry(count));
        let place = |run: &MapRun| run.location.stored().expect("it is live");
        assert!(runs.iter().all(|run| place(run).0 == SEGMENT));
        runs.iter().map(|run| (run.block, place(run).1, run.count)).collect()
    }

    #[test]
    fn blocks_that_lie_elsewhere_now_split_an_entry_into_runs() {
        let mut script = with_live(10);
        script.core(|core| {
            assert_eq!(runs(core, 10), [(100, 10, 10)]);
            core.map.set(100, Location::HOLE);
            core.map.set(103, Location::at(SEGMENT + 1, 13));
            // A later record of the same segment has this block anew.
            core.map.set(104, Location::at(SEGMENT, 40));
            core.map.set(109, Location::RESERVED);
            assert_eq!(runs(core, 10), [(101, 11, 2), (105, 15, 4)]);
            core.map.clear(0..200, Location::HOLE, |_| {});
            assert_eq!(runs(core, 10), []);
        });
    }

    #[test]
    fn a_run_is_no_longer_than_a_step() {
        let mut script = with_live(2 * STEP_BLOCKS + 1);
        script.core(|core| {
            let step = STEP_BLOCKS;
            let first = (100, 10, step);
            let second = (100 + u64::from(step), 10 + step, step);
            let third = (100 + u64::from(2 * step), 10 + 2 * step, 1);
            assert_eq!(runs(core, 2 * step), [first, second]);
            assert_eq!(runs(core, 2 * step + 1), [first, second, third]);
        });
    }

    #[test]
    fn a_block_that_only_a_frozen_root_has_is_live() {
        let mut script = with_live(4);
        script.core(|core| {
            core.map.freeze(RootId(1));
            core.map.set(101, Location::at(SEGMENT + 1, 0));
            core.map.set(102, Location::HOLE);
            assert_eq!(runs(core, 4), [(100, 10, 4)]);
            core.map.thaw(RootId(1), |_| {});
            assert_eq!(runs(core, 4), [(100, 10, 1), (103, 13, 1)]);
        });
    }
}
