//! Sealing: a closed segment becomes k + m shards on as many nodes.
//!
//! Data blocks keep the checksums that the volume computed when it wrote them, so a read notices a
//! bit that flips anywhere in between. The world makes the checksums of parity together with the
//! parity. If a node fails, its shard stays missing: the segment is degraded, and a rebuild
//! restores the shard later.
//!
//! Until the segment has as many shards as it must (`width`), the volume retries, and the journal
//! keeps the segment's records. If the ring fills up meanwhile, users' changes wait.
//!
//! The segment's blocks stay in memory until it is durable: if syncs fail on so many nodes that
//! fewer than k shards are left, the volume seals the segment again. The ring keeps the same
//! blocks, so the ring bounds this memory.

use fieldstone_accel::Shard;
use fieldstone_proto::{
    BLOCK_BYTES, NodeError, NodeIndex, RequestBody, SealMeta, SegmentId, SegmentKind,
};

use crate::calls::CallResult;
use crate::core::{Ctx, VolumeCore};
use crate::relay_shards::{ShardTarget, ShardsWaiter, ShardsWrite};
use crate::rows::{complete_rows, shard_index};
use crate::segment::{Segment, SegmentIndex, State};
use crate::status::NodeHealth;
use crate::stream::{Streamed, stream_segment};
use fieldstone_tasks::{Awaited, oneshot};

/// Pause before the volume tries failed shards on other nodes.
const RETRY_MS: u64 = 50;

/// How often an opening tries to write a segment.
const OPENING_ATTEMPTS: u64 = 20;
/// How often the volume tries missing shards on nodes that can take them although k are written.
const WHOLE_ATTEMPTS: u64 = 3;
/// Every so many attempts the volume asks full nodes how much room they have now.
const ASK_ATTEMPTS: u64 = 8;

/// Seals a closed segment.
pub async fn seal(ctx: Ctx, handle: SegmentIndex) {
    let Some(meta) = ctx.with(|core| core.seal_meta(handle)) else { return };
    complete_rows(&ctx, handle, meta).await;
    ask_for_room(&ctx, handle).await;
    if ctx.with(|core| core.is_short(handle)) {
        let data = ctx.with(|core| {
            let blocks = core.segments.get(handle)?.shard_bytes / BLOCK_BYTES as u32;
            core.lay_out(handle, 0..blocks)
        });
        let Some(data) = data else { return };
        let streamed = stream_segment(&ctx, handle, &data, meta).await;
        if streamed == Streamed::No || ctx.with(|core| core.is_short(handle)) {
            let shards = match streamed {
                Streamed::AndCoded(shards) => shards,
                _ => ctx.with(|core| core.start_coding(data)).finish().await,
            };
            if !store(&ctx, handle, &shards, meta).await {
                return;
            }
        }
    }
    ctx.with(|core| {
        core.segments.set_state(handle, State::Sealed);
        core.log.stored_at = core.now;
        core.drop_rows(handle);
        if core.segments.get(handle).is_some_and(|segment| segment.missing() > 0) {
            core.start_rebuild();
        }
        core.consider_gc();
    });
}

/// Writes the missing shards of a segment until at least k are written, and as many as there are
/// nodes for. Returns false if the volume failed meanwhile, or if it closes and the nodes have no
/// room for its checkpoint.
pub async fn store(ctx: &Ctx, handle: SegmentIndex, shards: &[Shard], meta: SealMeta) -> bool {
    let mut asked = false;
    let mut refusing = Vec::new();
    let mut without_room_since = None;
    for attempt in 0u64.. {
        let targets = ctx.with(|core| core.place_missing(handle, attempt));
        let sessions: Vec<u64> = ctx
            .with(|core| targets.iter().map(|(_, node)| core.node(*node).link.session).collect());
        let id = ctx.with(|core| {
            let segment = core.segments.get_mut(handle)?;
            segment.sending = true;
            Some(segment.id)
        });
        let results = match id {
            Some(id) => write_shards(ctx, id, &targets, shards, meta).await,
            None => Vec::new(),
        };
        let done = ctx.with(|core| {
            for (((shard, node), result), session) in targets.iter().zip(results).zip(sessions) {
                if result == Err(NodeError::NoSpace) {
                    refusing.push(*node);
                }
                core.shard_written(handle, *shard, (*node, session), result.map(|_| ()));
            }
            if let Some(segment) = core.segments.get_mut(handle) {
                segment.sending = false;
            }
            if attempt.is_multiple_of(ASK_ATTEMPTS) {
                core.clear_leftovers(handle);
            }
            // A node that has made room since then refuses no more.
            refusing.retain(|node| core.node(*node).slots.full);
            if core.segments.get(handle).is_none() || core.life.is_over() {
                return Some(false);
            }
            // A volume also closes without a checkpoint.
            let is_checkpoint = meta.kind == SegmentKind::Checkpoint;
            if is_checkpoint && core.closes_without_room(&mut without_room_since) {
                return Some(false);
            }
            // Lost nodes come back only to a volume that serves. An opening starts over instead.
            if core.life.is_opening() && attempt >= OPENING_ATTEMPTS {
                return Some(false);
            }
            let enough = core.stored(handle) && attempt >= WHOLE_ATTEMPTS;
            let wide = !core.is_narrow(handle, &refusing);
            (wide && (enough || core.stored_well(handle))).then_some(true)
        });
        match done {
            None if attempt % ASK_ATTEMPTS == WHOLE_ATTEMPTS => {
                if !ask_for_room(ctx, handle).await {
                    ctx.sleep_ms(RETRY_MS).await;
                }
            }
            None => ctx.sleep_ms(RETRY_MS).await,
            Some(true) if !asked => {
                asked = true;
                if !ask_for_room(ctx, handle).await {
                    return true;
                }
            }
            Some(done) => return done,
        }
    }
    false
}

/// Shards on a route: their places among the targets, each with the connection to its node, and the
/// results to come.
type OnRoute = (Vec<(usize, u64)>, Awaited<Vec<Option<CallResult>>>);

/// Writes complete shards to their nodes. The nodes pass copies and parity on to each other if they
/// can.
pub async fn write_shards(
    ctx: &Ctx,
    segment: SegmentId,
    targets: &[(usize, NodeIndex)],
    shards: &[Shard],
    meta: SealMeta,
) -> Vec<CallResult> {
    let mut results: Vec<Option<CallResult>> = vec![None; targets.len()];
    let mut calls = Vec::with_capacity(targets.len());
    let call = |core: &mut VolumeCore, at: usize| {
        let (shard, node) = targets[at];
        let body = RequestBody::ShardWrite {
            segment,
            shard: shard_index(shard),
            offset_bytes: 0,
            checksums: shards[shard].checksums.clone(),
            seal: Some(meta),
            data_first: false,
        };
        (at, core.call(node, body, vec![shards[shard].data.clone()]))
    };
    let on_routes = ctx.with(|core| {
        let on_routes = core.send_along_routes(segment, targets, shards, meta);
        let is_on_route = |at: &usize| {
            on_routes.iter().any(|(places, _)| places.iter().any(|(place, _)| place == at))
        };
        calls.extend((0..targets.len()).filter(|at| !is_on_route(at)).map(|at| call(core, at)));
        on_routes
    });
    for (places, awaited) in on_routes {
        for ((at, session), result) in places.into_iter().zip(awaited.await) {
            // The node of an earlier route may be lost by now. Over a new connection the shard
            // would take a slot that the volume does not count.
            let again = ctx.with(|core| {
                let same = core.node(targets[at].1).link.session == session;
                (same && result.is_none()).then(|| call(core, at))
            });
            match again {
                Some(again) => calls.push(again),
                None => results[at] = result,
            }
        }
    }
    for (at, answer) in calls {
        results[at] = Some(answer.await);
    }
    let lost = || Err(NodeError::Unreachable);
    results.into_iter().map(|result| result.unwrap_or_else(lost)).collect()
}

/// Asks each node that had no room for a missing shard of the segment how much room it has now. Its
/// last answer may be as old as the wait for the other shards. The wait for these answers is short,
/// because a node may hang. Returns whether any node had no room.
async fn ask_for_room(ctx: &Ctx, handle: SegmentIndex) -> bool {
    let full = ctx.with(|core| {
        let full = core.full_for(handle);
        for node in &full {
            drop(core.call(*node, RequestBody::Stat, Vec::new()));
        }
        full
    });
    if full.is_empty() {
        return false;
    }
    ctx.sleep_ms(RETRY_MS).await;
    ctx.with(|core| {
        if !core.lacks_room_on(handle).is_empty() {
            full.iter().for_each(|node| core.note_short_at_rest(*node));
        }
    });
    true
}

impl VolumeCore {
    /// Sends complete shards along routes, as far as there are routes now: all copies along one, or
    /// data shards with the parity that their nodes pass on.
    fn send_along_routes(
        &mut self,
        segment: SegmentId,
        targets: &[(usize, NodeIndex)],
        shards: &[Shard],
        meta: SealMeta,
    ) -> Vec<OnRoute> {
        let place = |shard: &usize| targets.iter().position(|(placed, _)| placed == shard);
        let copies = self.has_copies();
        let groups: Vec<Vec<usize>> = match copies {
            true => vec![(0..targets.len()).collect()],
            false if meta.kind == SegmentKind::Data => {
                let places =
                    self.groups().into_iter().map(|group| group.iter().map(place).collect());
                places.collect::<Vec<Option<Vec<usize>>>>().into_iter().flatten().collect()
            }
            false => Vec::new(),
        };
        let mut on_routes = Vec::with_capacity(groups.len());
        for places in groups {
            let nodes: Vec<NodeIndex> = places.iter().map(|at| targets[*at].1).collect();
            let target = |at: &usize| {
                let (shard, node) = targets[*at];
                let session = self.node(node).link.session;
                let Shard { data, checksums } = shards[shard].clone();
                ShardTarget { shard, node, session, checksums, data: vec![data] }
            };
            let targets = places.iter().map(target).collect();
            let (offset_bytes, seal) = (0, Some(meta));
            let write = ShardsWrite { segment, targets, offset_bytes, seal, first: true };
            let route = match copies {
                true => self.route_through(&nodes),
                false => self.route_of_group(&nodes, write.part_bytes()),
            };
            if let Some(route) = route {
                let (filler, awaited) = oneshot();
                let sessions = write.targets.iter().map(|target| target.session);
                let places = places.into_iter().zip(sessions).collect();
                self.send_shards(route, write, ShardsWaiter::Task(filler));
                on_routes.push((places, awaited));
            }
        }
        on_routes
    }

    /// The segment exists, and shards are to be written.
    fn is_short(&mut self, handle: SegmentIndex) -> bool {
        let exists = self.segments.get(handle).is_some();
        exists && (!self.stored_well(handle) || self.is_narrow(handle, &[]))
    }

    /// Nodes that could take a missing shard of the segment if they had room.
    fn full_for(&self, handle: SegmentIndex) -> Vec<NodeIndex> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        if segment.missing() == 0 {
            return Vec::new();
        }
        let full = |node: NodeIndex| self.node(node).slots.full || !self.has_room_for_data(node);
        let mut nodes = self.up_nodes();
        nodes.retain(|node| full(*node) && !segment.has_shard_on(*node));
        nodes
    }

    /// A node that was busy has kept rows or a shard of a closed segment that no opening needs. It
    /// gets a shard when it has deleted them.
    fn clear_leftovers(&mut self, handle: SegmentIndex) {
        let segment = self.segments.get(handle).filter(|segment| !segment.needs_rows());
        // An opening deletes the copies that it has left when it has committed.
        let Some(segment) = segment.filter(|_| !self.life.is_opening()) else { return };
        let (id, mut nodes) = (segment.id, segment.left_on.clone());
        let up = |node: NodeIndex| self.node(node).health == NodeHealth::Up;
        nodes.retain(|node| up(*node) && !segment.has_shard_on(*node));
        for node in nodes {
            self.delete_leftover(node, id);
        }
    }

    /// The complete segments whose shards are still to be written.
    pub fn closed_segments(&self) -> Vec<SegmentIndex> {
        let closed = |s: &Segment| s.state == State::Closed && !s.shelved;
        self.segments.iter().filter(|(_, s)| closed(s)).map(|(handle, _)| handle).collect()
    }

    /// The contents of the headers of a closed segment's shards.
    fn seal_meta(&self, handle: SegmentIndex) -> Option<SealMeta> {
        let segment = self.segments.get(handle)?;
        Some(SealMeta {
            kind: SegmentKind::Data,
            lsn_first: segment.lsn_first,
            lsn_end: segment.lsn_end,
            shard_bytes: segment.shard_bytes,
        })
    }

    /// A node answered the write of a shard from the session `session`.
    pub fn shard_written(
        &mut self,
        handle: SegmentIndex,
        shard: usize,
        (node, session): (NodeIndex, u64),
        result: Result<(), NodeError>,
    ) {
        match result {
            // The node was lost after it answered. Its next join reports its shards, and may have
            // deleted this very shard. An error tells nothing about the node's present state.
            _ if self.node(node).link.session != session => {}
            Ok(()) => {
                let Some(segment) = self.segments.get(handle) else { return };
                let (id, other) =
                    (segment.id, segment.shards[shard].filter(|other| *other != node));
                let is_second = segment.shards[shard] != Some(node) && segment.has_shard_on(node);
                let up = other.is_some_and(|other| self.node(other).health == NodeHealth::Up);
                if is_second {
                    // The segment uses no second shard on this node.
                } else if up {
                    // Another node came back with the same shard meanwhile. Only one copy may
                    // exist, so that it is always clear which one is valid.
                    self.delete_leftover(node, id);
                } else if let Some(segment) = self.segments.get_mut(handle) {
                    // A copy on a node that is not up is compared when that node joins.
                    segment.shards[shard] = Some(node);
                }
            }
            Err(NodeError::NoSpace) => self.node_mut(node).slots.full = true,
            Err(NodeError::Unreachable | NodeError::Busy | NodeError::Fenced { .. }) => {}
            Err(error) => self.give_up_node(node, &format!("write: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use fieldstone_block::Nanos;
    use fieldstone_proto::{ReplyBody, crc32c_blocks};

    use crate::node::Node;
    use crate::script::{Script, stat};

    /// Seals a segment on six nodes that have no room for 5 s. Then `roomy` of them have room for
    /// `wait_ms`. Returns the number of shards that are written, if sealing has ended.
    fn sealed_on(roomy: u16, wait_ms: u64) -> Option<usize> {
        let mut script = Script::serving(6);
        let handle = script.add_segment(&[None; 6]);
        let ended = std::rc::Rc::new(std::cell::Cell::new(false));
        let ends = std::rc::Rc::clone(&ended);
        script.core(|core| {
            core.segments.set_state(handle, State::Closed);
            core.segments.get_mut(handle).expect("it was added").begun_at = Some(Nanos(1));
            let full = |node: &mut Node| (node.slots.full, node.slots.reserved) = (true, 0);
            core.nodes.iter_mut().for_each(full);
        });
        script.start(move |ctx| async move {
            let data = Bytes::from(vec![0; BLOCK_BYTES]);
            let shard = Shard { checksums: crc32c_blocks(&data), data };
            let meta = SealMeta { shard_bytes: BLOCK_BYTES as u32, ..SealMeta::default() };
            ends.set(store(&ctx, handle, &vec![shard; 6], meta).await);
        });
        let mut run = |roomy: u16, run_ms: u64| {
            for _ in 0..run_ms / RETRY_MS {
                for sent in script.sent() {
                    let room = if sent.node.0 < roomy { 9 } else { 0 };
                    let reply = match sent.request.body {
                        RequestBody::Stat => ReplyBody::Stat(stat(sent.node)),
                        _ => ReplyBody::Done,
                    };
                    script.answer_with_room(&sent, Ok(reply), room);
                }
                script.wait_ms(RETRY_MS);
            }
        };
        run(0, 5_000);
        run(roomy, wait_ms);
        let missing = script.core(|core| core.segments.get(handle).map(Segment::missing));
        ended.get().then(|| 6 - missing.expect("it was added"))
    }

    /// However long the wait is, the volume relies on no segment that a permitted loss may take.
    #[test]
    fn a_segment_waits_for_room_on_every_node_that_is_up() {
        assert_eq!(sealed_on(6, 1_000), Some(6));
        assert_eq!(sealed_on(5, 60_000), None);
        assert_eq!(sealed_on(3, 60_000), None, "too few to read it");
    }

    /// An answer of an earlier session says nothing about the node that is there now.
    #[test]
    fn an_answer_of_an_earlier_session_changes_no_shard() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        let node = NodeIndex(5);
        let session = script.core(|core| core.node(node).link.session);
        script.reconnect(node);
        script.core(|core| {
            core.shard_written(handle, 5, (node, session), Ok(()));
            core.shard_written(handle, 5, (node, session), Err(NodeError::NoSpace));
            let broken = NodeError::Io("an error of the node that was there".into());
            core.shard_written(handle, 5, (node, session), Err(broken));
            let segment = core.segments.get(handle).expect("it was added");
            assert_eq!(segment.shards[5], None);
            assert!(core.node(node).link.connected && !core.node(node).slots.full);
            let session = core.node(node).link.session;
            core.shard_written(handle, 5, (node, session), Ok(()));
            let segment = core.segments.get(handle).expect("it was added");
            assert_eq!(segment.shards[5], Some(node));
        });
    }

    /// A busy node has kept a shard that it should have deleted. Rebuild repeats the request only
    /// for sealed segments, so sealing repeats it for this one.
    #[test]
    fn a_node_with_a_leftover_is_asked_to_delete_it_and_gets_a_shard() {
        let mut script = Script::serving(6);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        let node = NodeIndex(5);
        script.core(|core| {
            core.segments.set_state(handle, State::Closed);
            let segment = core.segments.get_mut(handle).expect("it was added");
            (segment.begun_at, segment.left_on) = (Some(Nanos(1)), [node].into_iter().collect());
        });
        script.start(move |ctx| async move {
            let data = Bytes::from(vec![0; BLOCK_BYTES]);
            let shard = Shard { checksums: crc32c_blocks(&data), data };
            let meta = SealMeta { shard_bytes: BLOCK_BYTES as u32, ..SealMeta::default() };
            assert!(store(&ctx, handle, &vec![shard; 6], meta).await);
        });
        let deletion = script.sent_one();
        assert!(matches!(deletion.request.body, RequestBody::ShardDelete { .. }));
        script.done(&deletion);
        assert!(script.sent().is_empty());
        script.wait_ms(RETRY_MS);
        let write = script.sent_one();
        assert_eq!(write.node, node);
        assert!(matches!(write.request.body, RequestBody::ShardWrite { .. }));
        script.done(&write);
        assert!(script.sent().is_empty());
        script.core(|core| assert!(!core.is_narrow(handle, &[])));
    }
}
