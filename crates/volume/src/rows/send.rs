//! Sending rows to the data shards, and their parity after them.

use bytes::Bytes;
use fieldstone_buf::join;
use fieldstone_proto::{BLOCK_BYTES, JournalGen, NodeError, NodeIndex, RequestBody, SegmentId};
use smallvec::SmallVec;

use super::{Keeper, RecordRows, Rows, ShardRows, shard_index};
use crate::calls::{CallResult, Waiter};
use crate::carry::Group;
use crate::coding::finish_encoding;
use crate::core::{Ctx, VolumeCore};
use crate::jobs::JobResult;
use crate::relay_shards::{ShardTarget, ShardsWaiter, ShardsWrite};
use crate::segment::SegmentIndex;
use fieldstone_tasks::Awaited;

/// Where the parity of a record's rows goes.
struct ParityWay {
    /// These shards go to their nodes alone.
    alone: SmallVec<[usize; 4]>,
    /// These go with data shards that wait for them, to nodes that pass them on (`carry`).
    carried: Vec<(Group, ShardRows)>,
    /// The rows are the first ones of the segment.
    first: bool,
}

impl VolumeCore {
    /// Writes whole rows of the open segment, from block `first` on, to the data shards. The nodes
    /// make their parity (`stream`), or the volume starts to code them, and their parity follows
    /// ([`send_parity`]). Data nodes that pass parity on (`carry`) get their rows with the parity.
    /// Returns the number of writes of both kinds, which count towards batch `batch`.
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
        let part_bytes = parts_of_shards[0].len_bytes();
        if let Some(routes) = self.stream_routes(&nodes, part_bytes) {
            let at = (self.row_offset_bytes(record), is_first);
            self.stream_rows(record, routes, (parts_of_shards, inputs_of_rows), at);
            return width;
        }
        let parity = self.start_parity(inputs_of_rows);
        let mut groups = self.groups_with_routes(&nodes, part_bytes);
        let with_data = |shard: &usize| groups.iter().flatten().any(|other| other == shard);
        let alone = (k..keepers.len()).filter(|shard| !with_data(shard)).collect();
        let mut way = ParityWay { alone, carried: Vec::new(), first: is_first };
        for (shard, (keeper, part)) in keepers.iter().zip(parts_of_shards).enumerate() {
            match groups.iter().position(|group| group[0] == shard) {
                Some(at) => way.carried.push((groups.swap_remove(at), part)),
                None => self.send_shard_rows(record, shard, keeper.node, part),
            }
        }
        self.spawn_with(move |ctx| send_parity(ctx, record, parity, way));
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
        let way = ParityWay { alone: shards, carried: Vec::new(), first: false };
        self.spawn_with(move |ctx| send_parity(ctx, record, parity, way));
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
        let nodes: SmallVec<[NodeIndex; 8]> = keepers.iter().map(|keeper| keeper.node).collect();
        let Some(route) = self.route_through(&nodes) else { return false };
        let parts = keepers.iter().enumerate().map(|target| (target, part.clone()));
        let write = self.rows_write(record, parts, first);
        let RecordRows { generation, batch, .. } = record;
        self.send_shards(route, write, ShardsWaiter::Rows { generation, batch });
        true
    }

    /// The write of a record's rows to these shards.
    fn rows_write<'a>(
        &self,
        record: RecordRows,
        parts: impl Iterator<Item = ((usize, &'a Keeper), ShardRows)>,
        first: bool,
    ) -> ShardsWrite {
        let target = |((shard, keeper), part): ((usize, &Keeper), ShardRows)| ShardTarget {
            shard,
            node: keeper.node,
            session: keeper.session,
            checksums: part.checksums,
            data: part.data,
        };
        let (segment, offset_bytes) = (record.segment, self.row_offset_bytes(record));
        ShardsWrite {
            segment,
            targets: parts.map(target).collect(),
            offset_bytes,
            seal: None,
            first,
        }
    }

    /// Sends rows of a data shard and of its parity shards to the data node, which passes the
    /// parity on. Without a route each shard goes to its own node.
    fn send_group(
        &mut self,
        record: RecordRows,
        keepers: &[Keeper],
        (group, parts): (&Group, Vec<ShardRows>),
        first: bool,
    ) {
        let RecordRows { generation, batch, segment, .. } = record;
        let targets = group.iter().map(|shard| (*shard, &keepers[*shard])).zip(parts);
        let nodes: SmallVec<[NodeIndex; 8]> =
            group.iter().map(|shard| keepers[*shard].node).collect();
        let write = self.rows_write(record, targets, first);
        let there = group.iter().all(|shard| self.is_connected_since(&keepers[*shard]));
        let part_bytes = write.part_bytes();
        let route = if there { self.route_of_group(&nodes, part_bytes) } else { None };
        match route {
            Some(route) => {
                self.rows_on_route(segment);
                self.send_shards(route, write, ShardsWaiter::Rows { generation, batch });
            }
            None => {
                for ShardTarget { shard, checksums, data, .. } in write.targets {
                    let part = ShardRows { data, checksums };
                    self.send_to_keeper(record, shard, &keepers[shard], part);
                }
            }
        }
    }

    /// Rows of the segment are on a route from now on.
    fn rows_on_route(&mut self, segment: SegmentId) {
        if let Some(rows) = self.rows_of(segment) {
            rows.in_coding += 1;
        }
    }

    /// Rows of the segment are not on a route any more.
    pub fn rows_off_route(&mut self, segment: SegmentId) {
        if let Some(rows) = self.rows_of(segment) {
            rows.in_coding = rows.in_coding.saturating_sub(1);
        }
    }

    fn rows_of(&mut self, segment: SegmentId) -> Option<&mut Rows> {
        let handle = self.segments.find(segment)?;
        self.segments.get_mut(handle)?.rows.as_mut()
    }

    /// Sends rows of a shard to its keeper. A keeper that was lost since the volume chose it has
    /// lost the other rows as well, and gets none.
    fn send_to_keeper(
        &mut self,
        record: RecordRows,
        shard: usize,
        keeper: &Keeper,
        part: ShardRows,
    ) {
        let RecordRows { generation, batch, segment, .. } = record;
        if self.is_connected_since(keeper) {
            self.send_shard_rows(record, shard, keeper.node, part);
        } else {
            let lost = Err(NodeError::Unreachable);
            self.row_replied(keeper.node, generation, batch, (segment, shard), lost);
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

    /// The parity of a record's rows is there, and goes this way.
    fn parity_made(&mut self, record: RecordRows, mut parity: Vec<ShardRows>, way: ParityWay) {
        let Some(rows) = self.rows_of(record.segment) else { return };
        rows.in_coding -= 1;
        let keepers = rows.keepers.clone();
        if self.life.is_over() {
            return;
        }
        let k = keepers.len() - parity.len();
        let mut of_shard = |shard: &usize| std::mem::take(&mut parity[shard - k]);
        for (group, of_data) in way.carried {
            let of_parity = group[1..].iter().map(&mut of_shard);
            let parts = std::iter::once(of_data).chain(of_parity).collect();
            self.send_group(record, &keepers, (&group, parts), way.first);
        }
        for shard in way.alone {
            let part = of_shard(&shard);
            self.send_to_keeper(record, shard, &keepers[shard], part);
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

/// Sends the parity of a record's rows this way. `parity` has one job for each row.
async fn send_parity(
    ctx: Ctx,
    record: RecordRows,
    parity: Vec<Awaited<JobResult>>,
    way: ParityWay,
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
    ctx.with(|core| core.parity_made(record, parts_of_shards, way));
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
