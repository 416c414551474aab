//! Sending rows to the data shards, and their parity after them.

use bytes::Bytes;
use fieldstone_buf::join;
use fieldstone_proto::{BLOCK_BYTES, JournalGen, NodeError, NodeIndex, RequestBody, SegmentId};
use smallvec::SmallVec;

use super::{Keeper, RecordRows, ShardRows, shard_index};
use crate::calls::{CallResult, Waiter};
use crate::coding::finish_encoding;
use crate::core::{Ctx, VolumeCore};
use crate::jobs::JobResult;
use crate::relay_copies::{CopiesWaiter, CopiesWrite};
use crate::segment::SegmentIndex;
use fieldstone_tasks::Awaited;

impl VolumeCore {
    /// Writes whole rows of the open segment, from block `first` on, to the data shards. The nodes
    /// make their parity (`stream`), or the volume starts to code them, and their parity follows
    /// ([`send_parity`]). Returns the number of writes of both kinds, which count towards batch
    /// `batch`.
    pub fn send_rows(
        &mut self,
        handle: SegmentIndex,
        first: u32,
        checksums: &[u32],
        batch: u64,
    ) -> u32 {
        let layout = *self.shape.layout();
        let (unit, row) = (layout.unit_blocks as usize, layout.row_blocks() as usize);
        let k = layout.k as usize;
        let segment = self.segments.get(handle).expect("the open segment exists");
        let contents = segment.contents.as_ref().expect("an open segment is in memory");
        let id = segment.id;
        let mut parts_of_shards: Vec<ShardRows> = vec![ShardRows::default(); k];
        let mut inputs_of_rows = Vec::with_capacity(checksums.len() / row);
        for row_at in (0..checksums.len()).step_by(row) {
            let mut inputs = Vec::with_capacity(k);
            for (shard, part) in parts_of_shards.iter_mut().enumerate() {
                let mut parts: SmallVec<[Bytes; 2]> = SmallVec::new();
                for at in (row_at + shard * unit..row_at + row).step_by(k * unit) {
                    let block = first + u32::try_from(at).expect("small");
                    contents.read(block, layout.unit_blocks, |part| parts.push(part));
                    part.checksums.extend_from_slice(&checksums[at..at + unit]);
                }
                let data = join(&parts);
                part.data.push(data.clone());
                inputs.push(data);
            }
            inputs_of_rows.push(inputs);
        }
        let first_row = first / layout.row_blocks();
        let record = RecordRows { generation: self.log.generation, batch, segment: id, first_row };
        let width = u32::try_from(layout.width()).expect("at most 255 shards");
        let segment = self.segments.get_mut(handle).expect("the open segment exists");
        let rows = segment.rows.as_mut().expect("made before the record");
        let count = checksums.len() / row;
        let is_first = !rows.written.contains(&true);
        rows.written[first_row as usize..first_row as usize + count].fill(true);
        rows.in_coding += 1;
        let keepers = rows.keepers.clone();
        if self.send_rows_along(record, &keepers, &parts_of_shards[0], is_first) {
            return width;
        }
        let nodes: SmallVec<[NodeIndex; 8]> = keepers.iter().map(|keeper| keeper.node).collect();
        if let Some(routes) = self.stream_routes(&nodes) {
            let at = (self.row_offset_bytes(record), is_first);
            self.stream_rows(record, routes, (parts_of_shards, inputs_of_rows), at);
            return width;
        }
        let parity = self.start_parity(inputs_of_rows);
        for (shard, (keeper, part)) in keepers.iter().zip(parts_of_shards).enumerate() {
            self.send_shard_rows(record, shard, keeper.node, part);
        }
        let shards = (k..keepers.len()).collect();
        self.spawn_with(move |ctx| send_parity(ctx, record, parity, shards));
        width
    }

    /// Makes parity for the rows of a record, and sends it to these shards.
    pub fn code_rows(
        &mut self,
        record: RecordRows,
        inputs_of_rows: Vec<Vec<Bytes>>,
        shards: SmallVec<[usize; 4]>,
    ) {
        let parity = self.start_parity(inputs_of_rows);
        self.spawn_with(move |ctx| send_parity(ctx, record, parity, shards));
    }

    /// Starts to make parity for rows; gives a job for each row.
    fn start_parity(&mut self, inputs_of_rows: Vec<Vec<Bytes>>) -> Vec<Awaited<JobResult>> {
        inputs_of_rows.into_iter().map(|inputs| self.start_encoding(inputs)).collect()
    }

    /// Where the rows of a record begin in each shard.
    fn row_offset_bytes(&self, record: RecordRows) -> u32 {
        record.first_row * self.shape.layout().chunk_blocks * BLOCK_BYTES as u32
    }

    /// Sends rows along a route, if the shards are copies and there is a route.
    fn send_rows_along(
        &mut self,
        record: RecordRows,
        keepers: &[Keeper],
        part: &ShardRows,
        first: bool,
    ) -> bool {
        if !self.has_copies() {
            return false;
        }
        let RecordRows { generation, batch, segment, .. } = record;
        let targets = keepers.iter().enumerate();
        let write = CopiesWrite {
            segment,
            targets: targets.map(|(shard, keeper)| (shard, keeper.node, keeper.session)).collect(),
            offset_bytes: self.row_offset_bytes(record),
            checksums: part.checksums.clone(),
            seal: None,
            data: part.data.clone(),
            first,
        };
        self.send_copies(write, CopiesWaiter::Rows { generation, batch })
    }

    /// Rows of the segment are not on a route any more.
    pub fn rows_off_route(&mut self, segment: SegmentId) {
        let Some(handle) = self.segments.find(segment) else { return };
        let rows = self.segments.get_mut(handle).and_then(|segment| segment.rows.as_mut());
        if let Some(rows) = rows {
            rows.in_coding = rows.in_coding.saturating_sub(1);
        }
    }

    fn send_shard_rows(
        &mut self,
        record: RecordRows,
        shard: usize,
        node: NodeIndex,
        part: ShardRows,
    ) {
        let RecordRows { generation, batch, segment, .. } = record;
        let body = RequestBody::ShardWrite {
            segment,
            shard: shard_index(shard),
            offset_bytes: self.row_offset_bytes(record),
            checksums: part.checksums,
            seal: None,
            data_first: false,
        };
        let waiter = Waiter::Row { generation, batch, segment, shard };
        self.send(node, body, part.data, waiter);
    }

    /// The parity of a record's rows is there; it goes to these shards. A keeper that was lost
    /// since the volume wrote the data has lost the other rows as well.
    fn parity_made(
        &mut self,
        record: RecordRows,
        parts_of_shards: Vec<ShardRows>,
        shards: &[usize],
    ) {
        let RecordRows { generation, batch, segment, .. } = record;
        let Some(handle) = self.segments.find(segment) else { return };
        let rows = self.segments.get_mut(handle).and_then(|segment| segment.rows.as_mut());
        let Some(rows) = rows else { return };
        rows.in_coding -= 1;
        let keepers = rows.keepers.clone();
        if self.life.is_over() {
            return;
        }
        let k = keepers.len() - parts_of_shards.len();
        let parts = (k..).zip(keepers.iter().skip(k).zip(parts_of_shards));
        for (shard, (keeper, part)) in parts.filter(|(shard, _)| shards.contains(shard)) {
            if self.is_connected_since(keeper) {
                self.send_shard_rows(record, shard, keeper.node, part);
            } else {
                let lost = Err(NodeError::Unreachable);
                self.row_replied(keeper.node, generation, batch, (segment, shard), lost);
            }
        }
    }

    /// A node answered the write of rows.
    pub fn row_replied(
        &mut self,
        node: NodeIndex,
        generation: JournalGen,
        batch: u64,
        (segment, shard): (SegmentId, usize),
        result: CallResult,
    ) {
        // A moved journal has the record whole.
        let counts = generation == self.log.generation;
        let Err(error) = result else {
            if counts {
                self.row_stored(batch);
            }
            return;
        };
        if let Some(handle) = self.segments.find(segment) {
            self.lose_row(handle, shard);
        }
        if counts {
            self.journal_broken();
        }
        match error {
            NodeError::NoSpace => self.node_mut(node).slots.full = true,
            NodeError::Unreachable | NodeError::Busy | NodeError::Fenced { .. } => {}
            error => self.give_up_node(node, &format!("write: {error}")),
        }
    }
}

/// Sends the parity of a record's rows to `shards`. `parity` has one job for each row.
async fn send_parity(
    ctx: Ctx,
    record: RecordRows,
    parity: Vec<Awaited<JobResult>>,
    shards: SmallVec<[usize; 4]>,
) {
    let mut parts_of_shards: Vec<ShardRows> = Vec::new();
    for row in parity {
        let shards = finish_encoding(row).await;
        parts_of_shards.resize_with(shards.len(), ShardRows::default);
        for (part, shard) in parts_of_shards.iter_mut().zip(shards) {
            part.checksums.extend(shard.checksums);
            part.data.push(shard.data);
        }
    }
    ctx.with(|core| core.parity_made(record, parts_of_shards, &shards));
}
