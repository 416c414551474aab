//! Parity that the nodes make while they store the data (TriEC; network-accelerated DFS, section
//! VI).
//!
//! With `encode: Client` the world makes the parity of new segments, and the volume sends k + m
//! shards. With [`Encode::Stream`] it sends the k data shards, each with a route to the parity
//! nodes and its column of the code ([`fieldstone_proto::Column`]). The data nodes pass on what
//! they contribute to the parity, and the parity nodes add it up (`node/src/stream.rs`). So the
//! volume sends k / (k + m) of the bytes, and makes no parity.
//!
//! - *What is streamed.* Rows of large writes (`rows`) and complete shards of segments that have no
//!   rows (`seal`), while the volume serves, all nodes of the segment are up and reach each other,
//!   and each parity node has confirmed the volume's pass ([`relay`](crate::relay)). Everything
//!   else goes as with `Client`: the rest of a segment with rows, checkpoints, rebuilds, openings.
//! - *When a parity shard has the bytes.* A parity node answers contributions when those of all k
//!   data shards are in its file. So one data node's word is enough, and the volume counts the
//!   shard as written from then on, if the connection to its node is still the same.
//! - *When a data node reports a parity node that it did not reach, or that gave a sum up:* the
//!   volume announces a new pass to the parity node at once. That ends what the other data nodes
//!   wait for there, and keeps late contributions out. When all data nodes have answered, the
//!   volume makes the parity itself and sends it to the same node, over the connection on which it
//!   announced the pass. So each node in the end answers for its shard, or is lost. An error on the
//!   streamed way costs the node a rest ([`relay`](crate::relay)) and no more: the volume's own
//!   write tells the truth about the node.
//! - *When there was no memory* for a sum or for a contribution to it ([`NodeError::Denied`]), no
//!   late contribution can complete the sum, and no data node waits for it. So the volume makes
//!   this piece itself, with the pass as it is. Other pieces go on. Only a node that denies all the
//!   time rests.
//! - *When a data node is lost*, its own shard is lost as without streams, and the volume makes the
//!   parity itself unless another data node has reported it.
//! - *Order.* The write that seals a shard comes after all other writes to the shard. Contributions
//!   may be overtaken, so sealing waits until no rows of the segment are streamed (`rows`).

use bytes::Bytes;
use fieldstone_accel::Shard;
use fieldstone_codes::Profile;
use fieldstone_proto::{
    Column, Content, Encode, Factors, NodeError, NodeIndex, ReplyBody, RequestBody, Route,
    SealMeta, SegmentId, Strategy,
};
use smallvec::SmallVec;

use crate::calls::{CallResult, Waiter};
use crate::core::{Ctx, VolumeCore};
use crate::relay::{NewForm, Reach};
use crate::rows::{RecordRows, ShardRows, shard_index};
use crate::segment::SegmentIndex;
use crate::shape::columns_for_nodes;
use crate::status::NodeHealth;
use fieldstone_tasks::{Awaited, Filler, oneshot};

/// Nodes can make the parity of this code: a route has room for its parity nodes, and a message for
/// its columns.
#[must_use]
pub fn can_stream(profile: Profile) -> bool {
    columns_for_nodes(&*profile.code()).is_some()
}

/// A parity shard, or a piece of it, that nodes make.
struct StreamedParity {
    shard: usize,
    node: NodeIndex,
    /// The connection to the node when the data was sent.
    session: u64,
    /// A data node has reported that the node has the parity.
    made: bool,
    /// A data node has reported that there was no memory for it.
    denied: bool,
}

/// The receiver of the outcomes of a stream.
enum Receiver {
    /// Rows of a detached record, with what the world needs to make their parity.
    Rows(RecordRows, Vec<Vec<Bytes>>),
    /// A task. It gets a result for each shard, and has to write those without one itself.
    Task(Vec<Option<CallResult>>, Filler<Vec<Option<CallResult>>>),
}

/// Data shards, or the same piece of each, on the way to their nodes, which make the parity.
pub struct Stream {
    segment: SegmentId,
    parity: SmallVec<[StreamedParity; 4]>,
    /// Data nodes that have not answered.
    waiting: usize,
    /// The first write of the segment: it takes a slot on each node.
    first: bool,
    receiver: Receiver,
}

/// One data shard of a stream.
pub struct StreamedShard {
    stream: usize,
    shard: usize,
    route: Route,
}

/// Where the bytes of a stream go in each shard.
#[derive(Clone, Copy)]
struct Place {
    segment: SegmentId,
    offset_bytes: u32,
    /// Completes the shards.
    seal: Option<SealMeta>,
}

impl Place {
    fn body(&self, shard: usize, checksums: Vec<u32>) -> RequestBody {
        RequestBody::ShardWrite {
            segment: self.segment,
            shard: shard_index(shard),
            offset_bytes: self.offset_bytes,
            checksums,
            seal: self.seal,
            data_first: false,
        }
    }
}

impl VolumeCore {
    /// Who makes the parity of this volume.
    pub fn encodes(&self) -> Encode {
        match self.config.encode {
            Encode::Stream if self.shape.columns().is_some() => Encode::Stream,
            _ => Encode::Client,
        }
    }

    /// The routes of the data shards of a segment whose shards are on `nodes`, or of pieces of
    /// `len_bytes` of these shards, if the nodes can make the parity now. Announces passes that
    /// this needs.
    pub fn stream_routes(&mut self, nodes: &[NodeIndex], len_bytes: usize) -> Option<Vec<Route>> {
        if self.config.encode != Encode::Stream || !self.life.serves() {
            return None;
        }
        let are_tables = self.shape.columns()?.are_tables();
        let (k, width) = (self.shape.code().k(), self.shape.layout().width());
        if nodes.len() != width || !nodes.iter().all(|node| self.may_relay(*node)) {
            return None;
        }
        let (data, parity) = nodes.split_at(k);
        if are_tables && !data.iter().all(|node| self.may_get(*node, NewForm::Table)) {
            return None;
        }
        if !parity.iter().all(|node| self.may_add_up(*node)) {
            return None;
        }
        let here = |node: &NodeIndex| self.node(*node).relay.reach == Reach::Here;
        // A node of another process reaches no node of this one.
        if !data.iter().all(here) && parity.iter().any(here) {
            return None;
        }
        if !self.are_admitted(parity) {
            return None;
        }
        let count = u8::try_from(k).ok()?;
        let chunk_bytes = self.coded_bytes(len_bytes);
        let route = |(index, node): (u8, &NodeIndex)| {
            let replicas = std::iter::once(node).chain(parity);
            let mut replicas: Vec<_> = replicas.map(|node| self.replica(*node)).collect();
            replicas[0].shard = shard_index(usize::from(index));
            for (shard, replica) in (k..).zip(&mut replicas[1..]) {
                replica.shard = shard_index(shard);
            }
            let factors = self.shape.columns()?.get(usize::from(index), chunk_bytes)?;
            let content = Content::Column(Column { index, count, factors });
            let (strategy, wait_ms) = (Strategy::Primary, self.route_wait_ms());
            Some(Route { strategy, rank: 0, wait_ms, replicas, content, ..Route::default() })
        };
        (0..count).zip(data).map(route).collect()
    }

    /// Sends rows of a record to the data nodes, which make the parity. `inputs` has the rows for
    /// the world, in case that they cannot.
    pub fn stream_rows(
        &mut self,
        record: RecordRows,
        routes: Vec<Route>,
        (parts, inputs): (Vec<ShardRows>, Vec<Vec<Bytes>>),
        (offset_bytes, first): (u32, bool),
    ) {
        let place = Place { segment: record.segment, offset_bytes, seal: None };
        let parts = parts.into_iter().map(|part| (part.checksums, part.data)).collect();
        self.send_stream(place, routes, parts, first, Receiver::Rows(record, inputs));
    }

    fn send_stream(
        &mut self,
        place: Place,
        routes: Vec<Route>,
        parts: Vec<(Vec<u32>, Vec<Bytes>)>,
        first: bool,
        receiver: Receiver,
    ) {
        let Some(route) = routes.first() else { return };
        let mut parity: SmallVec<[StreamedParity; 4]> = SmallVec::new();
        for replica in &route.replicas[1..] {
            let (node, shard) = (replica.node, usize::from(replica.shard.0));
            let session = self.node(node).link.session;
            *self.node_mut(node).slots.claimed.entry(place.segment).or_default() += 1;
            parity.push(StreamedParity { shard, node, session, made: false, denied: false });
        }
        let (segment, waiting) = (place.segment, routes.len());
        let stream =
            self.calls.streams.insert(Stream { segment, parity, waiting, first, receiver });
        for ((shard, route), (checksums, data)) in routes.into_iter().enumerate().zip(parts) {
            let head = route.replicas[0].node;
            let body = place.body(shard, checksums);
            let along = Some(Box::new(route.clone()));
            let waiter = Waiter::Stream(Box::new(StreamedShard { stream, shard, route }));
            self.send_along(head, body, along, data, waiter);
        }
    }

    /// A data node answered, or is lost.
    pub fn stream_replied(&mut self, head: NodeIndex, streamed: StreamedShard, result: CallResult) {
        let StreamedShard { stream: key, shard, route } = streamed;
        if route.column().is_some_and(|column| matches!(column.factors, Factors::Elements(_))) {
            self.note_new_form(head, NewForm::Table, &result);
        }
        let mut outcomes = self.outcomes_of(head, &route, result);
        let own = outcomes.remove(0);
        for (at, (outcome, replica)) in outcomes.iter().zip(&route.replicas[1..]).enumerate() {
            let StreamedParity { made, denied, .. } = &mut self.calls.streams[key].parity[at];
            *made |= outcome.is_ok();
            match outcome {
                Ok(()) => self.note_sum(replica.node),
                Err(NodeError::Denied) => {
                    let is_first = !std::mem::replace(denied, true);
                    if is_first {
                        self.note_denial(replica.node);
                    }
                }
                Err(error) if !*made => {
                    self.note_fenced(replica.node, error);
                    self.renew_pass(replica);
                }
                _ => {}
            }
        }
        if let Err(error) = &own {
            self.note_fenced(head, error);
        }
        let own = own.map(|()| ReplyBody::Done);
        let stream = &mut self.calls.streams[key];
        stream.waiting -= 1;
        let (waiting, segment) = (stream.waiting, stream.segment);
        match &mut stream.receiver {
            Receiver::Rows(record, _) => {
                let RecordRows { generation, batch, .. } = *record;
                self.row_replied(head, generation, batch, (segment, shard), own);
            }
            Receiver::Task(results, _) => results[shard] = Some(own),
        }
        if waiting == 0 {
            self.end_stream(key);
        }
    }

    /// All data nodes have answered or are lost.
    fn end_stream(&mut self, key: usize) {
        let Stream { segment, parity, first, receiver, .. } = self.calls.streams.remove(key);
        let mut results: SmallVec<[(usize, NodeIndex, Option<CallResult>); 4]> = SmallVec::new();
        for StreamedParity { shard, node, session, made, .. } in parity {
            self.end_claim(node, segment);
            let state = self.node_mut(node);
            if made && first {
                state.slots.free = state.slots.free.saturating_sub(1);
            }
            let same = state.health == NodeHealth::Up && state.link.session == session;
            let result = match (same, made) {
                (false, _) => Some(Err(NodeError::Unreachable)),
                (true, true) => Some(Ok(ReplyBody::Done)),
                (true, false) => None,
            };
            self.counters.parities_streamed += u64::from(made);
            self.counters.parities_coded_again += u64::from(result.is_none());
            results.push((shard, node, result));
        }
        match receiver {
            Receiver::Rows(record, inputs) => self.end_row_stream(record, inputs, &results),
            Receiver::Task(mut of_shards, filler) => {
                for (shard, _, result) in results {
                    of_shards[shard] = result;
                }
                filler.fill(of_shards);
            }
        }
    }

    fn end_row_stream(
        &mut self,
        record: RecordRows,
        inputs: Vec<Vec<Bytes>>,
        results: &[(usize, NodeIndex, Option<CallResult>)],
    ) {
        let RecordRows { generation, batch, segment, .. } = record;
        let mut lacking: SmallVec<[usize; 4]> = SmallVec::new();
        for (shard, node, result) in results {
            match result {
                Some(result) => {
                    let place = (segment, *shard);
                    self.row_replied(*node, generation, batch, place, result.clone());
                }
                None => lacking.push(*shard),
            }
        }
        let over = self.life.is_over();
        match lacking.is_empty() || over {
            true => self.rows_off_route(segment),
            false => self.code_rows(record, inputs, lacking),
        }
    }

    /// Sends the data shards of a closed segment to the nodes that make its parity, if they can
    /// make it now. The result names the shards' nodes and the connections to them.
    fn start_segment_stream(
        &mut self,
        handle: SegmentIndex,
        data: &[Shard],
        seal: SealMeta,
    ) -> Option<SegmentStream> {
        if self.config.encode != Encode::Stream {
            return None;
        }
        let width = self.shape.layout().width();
        let segment = self.segments.get(handle)?;
        if segment.missing() < width || segment.rows.is_some() {
            return None;
        }
        let id = segment.id;
        let placed = self.place_missing(handle, 0);
        if placed.len() < width {
            return None;
        }
        let nodes: Vec<NodeIndex> = placed.iter().map(|(_, node)| *node).collect();
        let routes = self.stream_routes(&nodes, data.first()?.data.len())?;
        let session = |node: &NodeIndex| (*node, self.node(*node).link.session);
        let targets = nodes.iter().map(session).collect();
        let place = Place { segment: id, offset_bytes: 0, seal: Some(seal) };
        let parts = data.iter().map(|shard| (shard.checksums.clone(), vec![shard.data.clone()]));
        let (filler, results) = oneshot();
        let receiver = Receiver::Task(vec![None; width], filler);
        self.send_stream(place, routes, parts.collect(), true, receiver);
        self.segments.get_mut(handle)?.sending = true;
        Some(SegmentStream { place, targets, results })
    }
}

/// A segment whose parity the nodes make.
struct SegmentStream {
    place: Place,
    /// The node of each shard, and the connection to it.
    targets: Vec<(NodeIndex, u64)>,
    results: Awaited<Vec<Option<CallResult>>>,
}

/// What came of the attempt to let nodes make the parity of a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum Streamed {
    /// It is not possible now. Nothing was sent.
    No,
    /// The shards were sent, and the nodes made the parity.
    Yes,
    /// The shards were sent, and the volume had to make some parity itself. These are all shards.
    AndCoded(Vec<Shard>),
}

/// Writes the shards of a closed segment through nodes that make the parity, if they can.
pub async fn stream_segment(
    ctx: &Ctx,
    handle: SegmentIndex,
    data: &[Shard],
    seal: SealMeta,
) -> Streamed {
    let stream = ctx.with(|core| core.start_segment_stream(handle, data, seal));
    let Some(SegmentStream { place, targets, results }) = stream else { return Streamed::No };
    let mut results = results.await;
    let mut streamed = Streamed::Yes;
    if results.iter().any(Option::is_none) {
        let shards = ctx.with(|core| core.start_coding(data.to_vec())).finish().await;
        let lacking = results.iter().enumerate().filter(|(_, result)| result.is_none());
        let calls: Vec<_> = ctx.with(|core| {
            let call = |(shard, _): (usize, &Option<CallResult>)| {
                let (node, session) = targets[shard];
                let Shard { data, checksums } = shards[shard].clone();
                let same = core.node(node).link.session == session;
                let body = place.body(shard, checksums);
                (shard, same.then(|| core.call(node, body, vec![data])))
            };
            lacking.map(call).collect()
        });
        for (shard, call) in calls {
            results[shard] = Some(match call {
                Some(call) => call.await,
                None => Err(NodeError::Unreachable),
            });
        }
        streamed = Streamed::AndCoded(shards);
    }
    ctx.with(|core| {
        for (shard, (target, result)) in targets.iter().zip(results).enumerate() {
            let result = result.unwrap_or(Err(NodeError::Unreachable)).map(|_| ());
            core.shard_written(handle, shard, *target, result);
        }
        if let Some(segment) = core.segments.get_mut(handle) {
            segment.sending = false;
        }
    });
    streamed
}

#[cfg(test)]
mod tests;
