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

#[cfg(test)]
mod tests {
    use fieldstone_block::{Backend, Nanos, Op};
    use fieldstone_proto::{ReplyBody, crc32c_blocks};

    use super::*;
    use crate::rows::Rows;
    use crate::script::{JOURNAL, Script, Sent, request};
    use crate::status::NodeHealth;

    /// The writes of shards among the requests.
    fn rows(sent: Vec<Sent>) -> Vec<Sent> {
        let of_shard = |sent: &Sent| matches!(sent.request.body, RequestBody::ShardWrite { .. });
        sent.into_iter().filter(of_shard).collect()
    }

    fn shard_of(sent: &Sent) -> usize {
        match sent.request.body {
            RequestBody::ShardWrite { shard, .. } => usize::from(shard.0),
            _ => panic!("{:?}", sent.request.body),
        }
    }

    /// The nodes answer all requests, and the world does all jobs, until the volume sends no more.
    fn settle(script: &mut Script, mut sent: Vec<Sent>) {
        while !sent.is_empty() || !script.jobs.is_empty() {
            sent.iter().for_each(|sent| script.done(sent));
            script.do_jobs();
            sent = script.sent();
        }
    }

    /// The only segment, and its rows.
    fn rows_of(core: &mut VolumeCore) -> (SegmentId, &mut Rows) {
        let handle = core.log.open.expect("rows went there");
        let segment = core.segments.get_mut(handle).expect("it is open");
        (segment.id, segment.rows.as_mut().expect("it has rows"))
    }

    #[test]
    fn the_blocks_of_a_shard_lie_one_behind_the_other_row_by_row() {
        let mut script = Script::serving(8);
        for first in [0u8, 16] {
            let data: Vec<u8> =
                (first..first + 16).flat_map(|block| [block; BLOCK_BYTES]).collect();
            let write = request(Op::Write, u64::from(first), 16);
            let write = fieldstone_block::Request { data: data.into(), ..write };
            script.volume.submit(write, Nanos(0));
            let sent = script.sent();
            let mut shards = Vec::new();
            for sent in &sent {
                let RequestBody::ShardWrite { shard, offset_bytes, checksums, .. } =
                    &sent.request.body
                else {
                    continue;
                };
                // A row has a block on each of the four data shards.
                assert_eq!(*offset_bytes as usize, usize::from(first) / 4 * BLOCK_BYTES);
                let data = sent.request.payload.concat();
                let blocks: Vec<u8> = data.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
                let at = first + shard.0;
                assert_eq!(blocks, [at, at + 4, at + 8, at + 12]);
                assert_eq!(*checksums, crc32c_blocks(&data).into_iter().collect::<Vec<u32>>());
                shards.push(shard.0);
            }
            assert_eq!(shards, [0, 1, 2, 3]);
            settle(&mut script, sent);
        }
        assert_eq!(script.completions.len(), 2);
    }

    #[test]
    fn parity_that_is_made_again_goes_to_the_named_shards_only() {
        let mut script = Script::serving(8);
        script.write(0, 4);
        let sent = script.sent();
        let inputs = rows(sent).iter().map(|sent| sent.request.payload[0].clone()).collect();
        script.do_jobs();
        let parity = rows(script.sent());
        assert_eq!(parity.iter().map(shard_of).collect::<Vec<_>>(), [4, 5]);
        script.core(|core| {
            let generation = core.log.generation;
            let (segment, rows) = rows_of(core);
            assert_eq!(rows.in_coding, 0, "it is on its way");
            rows.in_coding += 1;
            let record = RecordRows { generation, batch: 1, segment, first_row: 0 };
            core.code_rows(record, vec![inputs], SmallVec::from_slice(&[5]));
        });
        script.sent();
        script.do_jobs();
        let again = script.sent_one();
        assert_eq!(again.request.body, parity[1].request.body);
        assert_eq!(again.request.payload.concat(), parity[1].request.payload.concat());
        script.core(|core| assert_eq!(rows_of(core).1.in_coding, 0));
    }

    #[test]
    fn a_row_that_its_node_did_not_take_is_lost_and_moves_the_journal() {
        for (error, full, gives_up) in [
            (NodeError::NoSpace, true, false),
            (NodeError::Busy, false, false),
            (NodeError::Unreachable, false, false),
            (NodeError::Io("broken".into()), false, true),
        ] {
            let mut script = Script::serving(8);
            script.write(0, 16);
            let sent = rows(script.sent());
            let refused = sent.iter().find(|sent| !JOURNAL.contains(&sent.node));
            let refused = refused.expect("the journal is on three nodes");
            let (shard, node) = (shard_of(refused), refused.node);
            script.answer(refused, Err(error.clone()));
            script.core(|core| {
                let (_, rows) = rows_of(core);
                let lost: Vec<usize> = (0..6).filter(|shard| rows.keepers[*shard].lost).collect();
                assert_eq!((lost, rows.intact), (vec![shard], false), "{error}");
                assert!(core.log.journal_move.has_to_move(), "{error}");
                let state = core.node(node);
                assert_eq!(state.slots.full, full, "{error}");
                assert_eq!(state.health == NodeHealth::Down, gives_up, "{error}");
            });
        }
    }

    /// The journal has moved meanwhile, and has the record whole.
    #[test]
    fn an_answer_for_rows_of_an_earlier_journal_does_not_count() {
        let mut script = Script::serving(8);
        script.write(0, 16);
        let mut sent = script.sent();
        let at = sent
            .iter()
            .rposition(|sent| matches!(sent.request.body, RequestBody::ShardWrite { .. }));
        let last = sent.remove(at.expect("it has rows"));
        settle(&mut script, sent);
        let reply = |script: &mut Script, generation, result| {
            script.core(|core| {
                let (segment, _) = rows_of(core);
                core.row_replied(last.node, generation, 1, (segment, shard_of(&last)), result);
            });
            script.sent();
            (script.completions.len(), script.core(|core| core.log.journal_move.has_to_move()))
        };
        let earlier = JournalGen(0);
        assert_eq!(reply(&mut script, earlier, Ok(ReplyBody::Done)), (0, false));
        assert_eq!(reply(&mut script, JournalGen(1), Ok(ReplyBody::Done)), (1, false));
        assert_eq!(reply(&mut script, earlier, Err(NodeError::Unreachable)), (1, false));
        script.core(|core| assert!(!rows_of(core).1.intact, "the node may lack the row"));
    }
}
