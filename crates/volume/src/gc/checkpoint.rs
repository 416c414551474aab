//! The steps of a checkpoint (its format is in `crate::checkpoint`).
//!
//! The root names the new checkpoint only when the checkpoint's segments, and all data that its map
//! names, are durable. Only after that are the old checkpoint and the dead segments deleted. So the
//! nodes hold one whole checkpoint at any time, and everything that it names. The opening of a
//! volume stores its checkpoint in the same way.

use fieldstone_block::Nanos;
use fieldstone_buf::AlignedBuf;
use fieldstone_proto::{BLOCK_BYTES, Lsn, SealMeta, SegmentId, SegmentKind, crc32c_blocks};

use super::RETRY_MS;
use super::free::free_segments;
use super::worth::SinceCheckpoint;
use crate::coding::{Coding, ShardBuilder};
use crate::core::{Ctx, VolumeCore};
use crate::failure::VolumeFailure;
use crate::seal::store;
use crate::segment::{Segment, SegmentIndex, State};
use crate::status::VolumePhase;
use crate::sync::sync_segments;

/// Writes a checkpoint and frees the segments that it makes superfluous. `clean`: the volume is
/// closing. The caller holds the maintenance lock. Returns false if the volume failed meanwhile.
pub async fn write_checkpoint(ctx: &Ctx, clean: bool) -> bool {
    let (lsn, bytes, dead) = ctx.with(|core| {
        core.close_for_checkpoint();
        core.gc.since_checkpoint = SinceCheckpoint::default();
        let dead: Vec<SegmentIndex> = core
            .segments
            .iter()
            .filter(|(_, s)| s.kind == SegmentKind::Data && s.live_blocks == 0)
            .map(|(handle, _)| handle)
            .collect();
        let blocks = core.shape.size_blocks();
        (core.log.next, crate::checkpoint::encode(&core.map, &core.segments, blocks), dead)
    });
    if !wait_durable(ctx, lsn).await {
        return false;
    }
    let Some(handles) = store_checkpoint(ctx, &bytes).await else { return false };
    let old = name_checkpoint(ctx, lsn, bytes.len() as u64, &handles, clean).await;
    let Some(old) = old else { return false };
    let mut doomed: Vec<SegmentIndex> = dead;
    doomed.extend(
        ctx.with(|core| old.iter().filter_map(|id| core.segments.find(*id)).collect::<Vec<_>>()),
    );
    free_segments(ctx, &doomed).await;
    ctx.with(|core| {
        core.counters.checkpoints += 1;
        core.trim_log(); // records of segments that were not stored
        core.pursue_goal();
        core.shrink_reservation(false);
    });
    true
}

/// Waits until every data segment that begins before `lsn` is durable, except segments that are not
/// to be stored. False if the volume failed meanwhile, or if it closes and the nodes have no room
/// for a segment.
async fn wait_durable(ctx: &Ctx, lsn: Lsn) -> bool {
    let mut without_room_since = None;
    loop {
        let (waiting, over) = ctx.with(|core| {
            let waiting = core.segments.iter().any(|(_, s)| {
                let young = s.state < State::Durable && !s.shelved;
                s.kind == SegmentKind::Data && s.lsn_first < lsn && young
            });
            (waiting, core.life.is_over())
        });
        if !waiting && !over {
            return true;
        }
        if over || ctx.with(|core| core.closes_without_room(&mut without_room_since)) {
            return false;
        }
        sync_segments(ctx).await;
    }
}

impl VolumeCore {
    /// The volume closes, and for too long the nodes have had no room for the checkpoint or for a
    /// segment that it waits for. `since`: since when. The journal keeps the records that no
    /// checkpoint covers, and the next opening stores their segments.
    pub fn closes_without_room(&self, since: &mut Option<Nanos>) -> bool {
        let segments = self.segments_without_room();
        if !self.life.is_closing() || segments.is_empty() || !self.writable() {
            return false;
        }
        // A node may report room for a moment. The time begins anew when that helped.
        let since = *since.get_or_insert(self.now);
        let long = self.is_too_long(Some(since.max(self.log.stored_at)));
        if long {
            let nodes = self.lacks_room_on(segments[0]);
            let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
            tracing::warn!(
                volume = %self.shape.name(),
                "closes without a checkpoint: no room on {}; the journal keeps what lies in no \
                 checkpoint",
                nodes.join(", ")
            );
        }
        long
    }
}

/// Makes a new segment with a part of a checkpoint, and starts to code it.
fn checkpoint_segment(core: &mut VolumeCore, part: &[u8]) -> (SegmentIndex, Coding, SealMeta) {
    let layout = *core.shape.layout();
    let mut data = AlignedBuf::zeroed(part.len().next_multiple_of(BLOCK_BYTES));
    data[..part.len()].copy_from_slice(part);
    let blocks = u32::try_from(data.len() / BLOCK_BYTES).expect("bounded by a segment");
    let shard_blocks = layout.shard_blocks_for(blocks);
    let mut builder = ShardBuilder::new(layout, shard_blocks);
    builder.put(0, &data, &crc32c_blocks(&data));
    let coding = core.start_coding(builder.finish());
    let shard_bytes = shard_blocks * BLOCK_BYTES as u32;
    let id = core.segments.next_id(core.writer.epoch());
    let kind = SegmentKind::Checkpoint;
    let segment = Segment { shard_bytes, ..Segment::new(id, kind, State::Closed, layout.width()) };
    let handle = core.segments.insert(segment);
    let meta = SealMeta { kind, lsn_first: Lsn(0), lsn_end: Lsn(0), shard_bytes };
    (handle, coding, meta)
}

/// Writes a checkpoint's bytes to new segments and makes them stable. `None` if the volume failed
/// meanwhile.
pub async fn store_checkpoint(ctx: &Ctx, bytes: &[u8]) -> Option<Vec<SegmentIndex>> {
    let capacity = ctx.with(|core| core.shape.layout().segment_blocks() as usize * BLOCK_BYTES);
    let mut handles = Vec::new();
    let mut written = Vec::new();
    for chunk in bytes.chunks(capacity) {
        let (handle, coding, meta) = ctx.with(|core| checkpoint_segment(core, chunk));
        let shards = coding.finish().await;
        if !store(ctx, handle, &shards, meta).await {
            return None;
        }
        ctx.with(|core| {
            core.segments.set_state(handle, State::Sealed);
        });
        handles.push(handle);
        written.push((handle, shards, meta));
    }
    loop {
        sync_segments(ctx).await;
        // No journal has these blocks: if a sync loses them, they are written again from here.
        for (handle, shards, meta) in &written {
            let short = ctx.with(|core| {
                let k = core.shape.code().k();
                core.segments.get(*handle).is_some_and(|s| s.shards.len() - s.missing() < k)
            });
            if short && !store(ctx, *handle, shards, *meta).await {
                return None;
            }
        }
        let (done, over) = ctx.with(|core| {
            let durable = |handle: &SegmentIndex| {
                core.segments.get(*handle).is_some_and(|s| s.state == State::Durable)
            };
            let over = match core.life.phase() {
                VolumePhase::Failed(_) | VolumePhase::Closed => true,
                // Nodes come back only to a volume that serves.
                VolumePhase::Opening => !core.writable(),
                _ => false,
            };
            (handles.iter().all(durable), over)
        });
        if over {
            return None;
        }
        if done {
            return Some(handles);
        }
    }
}

/// Names a checkpoint in the root. Returns the segments of the old checkpoint. `None` if the volume
/// failed meanwhile. The volume fails if a segment of the new checkpoint is gone: a root that names
/// a part of a checkpoint would make the volume unreadable.
async fn name_checkpoint(
    ctx: &Ctx,
    lsn: Lsn,
    bytes: u64,
    handles: &[SegmentIndex],
    clean: bool,
) -> Option<Vec<SegmentId>> {
    loop {
        let (ids, old) = ctx.with(|core| {
            let ids = core.segments.names(handles);
            if ids.is_none() {
                core.fail(VolumeFailure::NewCheckpointGone);
            }
            let old = core.committed.root().map(|root| root.checkpoint_segments.clone());
            Some((ids?, old.unwrap_or_default()))
        })?;
        let placed = crate::journal::put_root(ctx, |root| {
            root.checkpoint_lsn = lsn;
            root.checkpoint_bytes = bytes;
            root.checkpoint_segments = ids;
            root.clean = clean;
        })
        .await;
        if placed {
            return Some(old);
        }
        if ctx.with(|core| core.life.is_over()) {
            return None;
        }
        ctx.sleep_ms(RETRY_MS).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_proto::{NodeIndex, RequestBody};

    use crate::script::Script;

    const WHOLE: [Option<u16>; 6] = [Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)];

    #[test]
    fn the_root_names_all_segments_of_a_checkpoint() {
        let mut script = Script::serving(8);
        let handles = [script.add_segment(&WHOLE), script.add_segment(&WHOLE)];
        script.core(|core| {
            core.committed.root_mut().checkpoint_segments = vec![SegmentId(9)];
        });
        script.start(move |ctx| async move {
            let old = name_checkpoint(&ctx, Lsn(4096), 7, &handles, true).await;
            assert_eq!(old, Some(vec![SegmentId(9)]));
        });
        let sent = script.sent();
        assert_eq!(sent.len(), 8);
        for sent in &sent {
            assert!(matches!(sent.request.body, RequestBody::PutRoot { .. }));
            script.done(sent);
        }
        assert!(script.sent().is_empty());
        script.core(|core| {
            let root = core.committed.root().expect("it serves");
            assert_eq!(root.checkpoint_segments, [SegmentId(1), SegmentId(2)]);
            assert_eq!((root.checkpoint_lsn, root.checkpoint_bytes), (Lsn(4096), 7));
            assert!(root.clean);
        });
    }

    #[test]
    fn a_volume_names_no_part_of_a_checkpoint() {
        let mut script = Script::serving(8);
        let handles = [script.add_segment(&WHOLE), script.add_segment(&WHOLE)];
        script.core(|core| core.segments.remove(handles[1]));
        script.start(move |ctx| async move {
            let old = name_checkpoint(&ctx, Lsn(4096), 7, &handles, false).await;
            assert_eq!(old, None);
        });
        assert!(script.sent().is_empty());
        script.core(|core| assert!(matches!(core.life.phase(), VolumePhase::Failed(_))));
    }

    /// Whether a volume goes on waiting for a segment for whose shard the last node has no room.
    fn waits_for_room(phase: VolumePhase) -> bool {
        let mut script = Script::serving(6);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        script.core(|core| {
            core.life.put_in(phase);
            core.log.next = Lsn(4096);
            core.segments.set_state(handle, State::Closed);
            core.segments.get_mut(handle).expect("it was added").begun_at = Some(Nanos(1));
            core.node_mut(NodeIndex(5)).slots.free = 0;
        });
        let result = std::rc::Rc::new(std::cell::Cell::new(None));
        let ends = std::rc::Rc::clone(&result);
        script.start(move |ctx| async move { ends.set(Some(write_checkpoint(&ctx, true).await)) });
        for second in 0..60 {
            assert!(script.sent().is_empty());
            assert!(second > 5 || result.get().is_none(), "it waits for some seconds");
            script.wait_ms(1_000);
        }
        assert_ne!(result.get(), Some(true));
        result.get().is_none()
    }

    #[test]
    fn a_volume_closes_without_a_checkpoint_if_nodes_have_no_room() {
        assert!(waits_for_room(VolumePhase::Serving), "room may come");
        assert!(!waits_for_room(VolumePhase::Closing));
    }
}
