//! Completing the shards of a closed segment that have rows, and dropping rows that are not needed.

use std::ops::Range;

use fieldstone_proto::{BLOCK_BYTES, NodeError, NodeIndex, RequestBody, SealMeta};
use smallvec::SmallVec;

use super::{Keeper, shard_index};
use crate::coding::Coding;
use crate::core::{Ctx, VolumeCore};
use crate::segment::{Segment, SegmentIndex, State};
use crate::status::NodeHealth;

impl VolumeCore {
    /// Starts to code the runs of rows of a closed segment that are not written yet. Gives the
    /// first row of each run. `None` if the segment has no rows on its shards.
    fn code_rest(&mut self, handle: SegmentIndex) -> Option<Vec<(u32, Coding)>> {
        let segment = self.segments.get(handle)?;
        let rows = segment.rows.as_ref()?;
        let chunk = self.shape.layout().chunk_blocks;
        let total = segment.shard_bytes / BLOCK_BYTES as u32 / chunk;
        let mut runs: Vec<Range<u32>> = Vec::new();
        for row in (0..total).filter(|row| !rows.written[*row as usize]) {
            match runs.last_mut() {
                Some(run) if run.end == row => run.end += 1,
                _ => runs.push(row..row + 1),
            }
        }
        let blocks = |run: &Range<u32>| run.start * chunk..run.end * chunk;
        runs.into_iter()
            .map(|run| Some((run.start, self.code_blocks(handle, blocks(&run))?)))
            .collect()
    }

    /// The shards of the segment that rows were written to, that still exist, and that are not
    /// complete. A segment that is sealed again may have complete ones.
    pub(super) fn shards_with_rows(&self, handle: SegmentIndex) -> Vec<(usize, NodeIndex, u64)> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let keepers = segment.rows.iter().flat_map(|rows| (0usize..).zip(&rows.keepers));
        keepers
            .filter(|(shard, _)| segment.shards[*shard].is_none())
            .filter(|(_, keeper)| self.still_keeps(keeper))
            .map(|(shard, keeper)| (shard, keeper.node, keeper.session))
            .collect()
    }

    /// The shard's keeper did not take some of the shard's rows.
    fn row_lost(&self, handle: SegmentIndex, shard: usize) -> bool {
        let rows = self.segments.get(handle).and_then(|segment| segment.rows.as_ref());
        rows.is_some_and(|rows| rows.keepers[shard].lost)
    }

    pub(super) fn lose_row(&mut self, handle: SegmentIndex, shard: usize) {
        let rows = self.segments.get_mut(handle).and_then(|segment| segment.rows.as_mut());
        if let Some(rows) = rows {
            rows.keepers[shard].lost = true;
            rows.intact = false;
        }
    }

    fn still_keeps(&self, keeper: &Keeper) -> bool {
        !keeper.lost && self.is_connected_since(keeper)
    }

    /// The node has a slot with rows of the segment for one of its shards.
    pub fn keeps_rows(&self, segment: &Segment, node: NodeIndex) -> bool {
        let keepers = segment.rows.iter().flat_map(|rows| &rows.keepers);
        keepers.filter(|keeper| keeper.node == node).any(|keeper| self.still_keeps(keeper))
    }

    /// The best node for a shard of the segment: the node that already has a slot for the shard.
    pub fn row_node(&self, segment: &Segment, shard: usize) -> Option<NodeIndex> {
        let keeper = segment.rows.as_ref().map(|rows| rows.keepers[shard])?;
        let node = self.node(keeper.node);
        let usable =
            node.health == NodeHealth::Up && (!node.slots.full || self.still_keeps(&keeper));
        (usable && !segment.has_shard_on(keeper.node)).then_some(keeper.node)
    }

    /// Rebuild has ended: drops the rows that the volume could not drop meanwhile.
    pub fn drop_left_rows(&mut self) {
        let holds = |s: &Segment| s.rows.is_some() || !s.left_on.is_empty();
        let left = self.segments.iter().filter(|(_, s)| s.state >= State::Sealed && holds(s));
        let left: Vec<SegmentIndex> = left.map(|(handle, _)| handle).collect();
        for handle in left {
            self.drop_rows(handle);
        }
    }

    /// The segment is sealed: deletes rows on nodes that hold none of its shards. Rows stay while
    /// nothing else of their records may be stable: until the shards are durable, or the journal
    /// has the records whole. If the segment lacks shards, the volume moves the journal for that.
    pub fn drop_rows(&mut self, handle: SegmentIndex) {
        let Some(segment) = self.segments.get_mut(handle) else { return };
        if segment.needs_rows() {
            if segment.missing() > 0 {
                self.log.journal_move.request();
            }
            return;
        }
        if self.repair.rebuild.is_running() {
            return; // a rebuild may be writing the shard there; it ends with `drop_left_rows`
        }
        let Some(segment) = self.segments.get_mut(handle) else { return };
        let (id, shards) = (segment.id, segment.shards.clone());
        let rows = segment.rows.take();
        let keepers = rows.iter().flat_map(|rows| &rows.keepers).map(|keeper| keeper.node);
        let mut nodes: SmallVec<[NodeIndex; 8]> = keepers.collect();
        nodes.extend(std::mem::take(&mut segment.left_on));
        for node in nodes {
            if shards.contains(&Some(node)) || self.node(node).health != NodeHealth::Up {
                continue; // when this node joins, the volume compares its shards
            }
            self.delete_leftover(node, id);
        }
    }
}

/// Completes the shards of a closed segment that already have rows.
pub async fn complete_rows(ctx: &Ctx, handle: SegmentIndex, meta: SealMeta) {
    let Some(rest) = ctx.with(|core| core.code_rest(handle)) else { return };
    let mut runs = Vec::with_capacity(rest.len());
    for (first_row, coding) in rest {
        runs.push((first_row, coding.finish().await));
    }
    // The write that seals a shard comes after all other writes to the shard.
    while ctx.with(|core| core.rows_in_coding(handle)) {
        ctx.sleep_ms(1).await;
    }
    let calls: Vec<_> = ctx.with(|core| {
        let over = core.life.is_over();
        let segment = core.segments.get(handle).filter(|_| !over);
        let Some(id) = segment.map(|segment| segment.id) else { return Vec::new() };
        let chunk_bytes = core.shape.layout().chunk_blocks * BLOCK_BYTES as u32;
        let last = runs.len().saturating_sub(1);
        let mut calls = Vec::new();
        for (shard, node, session) in core.shards_with_rows(handle) {
            for (at, (first_row, shards)) in runs.iter().enumerate() {
                let body = RequestBody::ShardWrite {
                    segment: id,
                    shard: shard_index(shard),
                    offset_bytes: first_row * chunk_bytes,
                    checksums: shards[shard].checksums.clone(),
                    seal: (at == last).then_some(meta),
                    data_first: false,
                };
                let call = core.call(node, body, vec![shards[shard].data.clone()]);
                calls.push((shard, node, session, at == last, call));
            }
        }
        calls
    });
    for (shard, node, session, seals, call) in calls {
        let result = call.await;
        ctx.with(|core| match result {
            Ok(_) if !seals => {}
            // The shard lacks rows that the node refused. `row_replied` handled that refusal.
            Err(NodeError::Invalid(_)) if core.row_lost(handle, shard) => {}
            result => {
                if result.is_err() {
                    core.lose_row(handle, shard);
                }
                core.shard_written(handle, shard, (node, session), result.map(|_| ()));
            }
        });
    }
}
