//! Calls to nodes: requests that wait for their answers, and nodes that the volume gives up because
//! an answer does not come.
//!
//! Every call ends, and only once: with the node's answer, or with `Unreachable` when the node is
//! not connected, is lost, or has not answered in time. The kind of the waiter decides how it
//! learns the end: a task is woken; the hot paths (reads, the journal, rows) are called with their
//! own numbers.

use std::collections::btree_map;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_proto::{
    Fragments, JournalGen, NodeError, NodeIndex, Pass, Reply, ReplyBody, Request, RequestBody,
    Route, SegmentId, Tag,
};
use slab::Slab;

use crate::core::{Ctx, VolumeCore};
use crate::interface::VolumeAction;
use crate::relay::RelayedAppend;
use crate::relay_shards::RelayedShards;
use crate::status::{NodeHealth, VolumePhase};
use crate::stream::{Stream, StreamedShard};
use fieldstone_tasks::{Awaited, Filler, oneshot};

/// The result of a call to a node.
pub type CallResult = Result<ReplyBody, NodeError>;

/// How long the volume leaves a failed node alone before it tries a new connection.
const RECONNECT_AFTER_MS: u64 = 500;

/// The longest such pause, for a node that fails again and again: each return of a node starts a
/// rebuild, collection and reservations anew.
const RECONNECT_AFTER_MS_MAX: u64 = 8_000;

/// A node that fails sooner than this after it connected counts as failing again and again.
const STEADY_AFTER_MS: u64 = 10_000;

/// With a delay of at least this much, the volume itself was stopped.
const DELAY_MS_MAX: u64 = 200;

/// Bits of a tag that hold its call's key.
const KEY_BITS: u32 = 24;

/// The receiver of a reply.
pub enum Waiter {
    /// A task.
    Task(Filler<CallResult>),
    /// Pieces of a read that lie one behind the other on a shard.
    Read {
        /// The read.
        read: usize,
        /// Number of the first piece in the read. The others follow, k apart.
        piece: usize,
        /// Number of pieces.
        pieces: u32,
        /// Number of blocks.
        blocks: u32,
    },
    /// A record of the journal.
    Append {
        /// The journal that the record went to.
        generation: JournalGen,
        /// Sequence number of the batch.
        batch: u64,
    },
    /// A record of the journal that the nodes pass on to each other.
    Relay(Box<RelayedAppend>),
    /// Shards that the nodes pass on to each other.
    Shards(Box<RelayedShards>),
    /// A data shard whose node contributes to the parity.
    Stream(Box<StreamedShard>),
    /// A pass, over the connection of this session.
    Pass { pass: Pass, session: u64 },
    /// Rows of a detached record.
    Row {
        /// The journal that the record's header went to.
        generation: JournalGen,
        /// Sequence number of the batch.
        batch: u64,
        /// The segment.
        segment: SegmentId,
        /// Number of the shard.
        shard: usize,
    },
}

/// A request that the volume sent, or could not send.
struct NodeCall {
    node: NodeIndex,
    tag: Tag,
    waiter: Waiter,
    /// The segment whose shard the request writes.
    writes: Option<SegmentId>,
    /// The route allows fragments.
    in_fragments: bool,
}

/// The calls that wait for an answer.
#[derive(Default)]
pub struct Calls {
    entries: Slab<NodeCall>,
    made: u64,
    /// Calls to nodes that are not connected, or without a capability. They fail at the next poll.
    unsendable: Vec<Tag>,
    /// Data on its way to nodes that make its parity. A stream ends when its last call does.
    pub streams: Slab<Stream>,
}

impl Calls {
    /// Makes a call. Its tag holds its key and a number that no other call has.
    fn add(
        &mut self,
        node: NodeIndex,
        waiter: Waiter,
        (writes, in_fragments): (Option<SegmentId>, bool),
    ) -> Tag {
        self.made += 1;
        let entry = self.entries.vacant_entry();
        let tag = Tag(self.made << KEY_BITS | entry.key() as u64);
        entry.insert(NodeCall { node, tag, waiter, writes, in_fragments });
        tag
    }

    /// Number of calls made so far.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// True if one of the first `made` calls still waits.
    pub fn wait_for_any_of_first(&self, made: u64) -> bool {
        self.entries.iter().any(|(_, call)| call.tag.0 >> KEY_BITS <= made)
    }

    /// The call with this tag, if it still waits.
    fn get(&self, tag: Tag) -> Option<&NodeCall> {
        self.entries.get(key(tag)).filter(|call| call.tag == tag)
    }

    /// Removes a call that is answered or given up.
    fn take(&mut self, tag: Tag) -> Option<NodeCall> {
        self.get(tag)?;
        Some(self.entries.remove(key(tag)))
    }
}

fn key(tag: Tag) -> usize {
    (tag.0 & ((1 << KEY_BITS) - 1)) as usize
}

impl VolumeCore {
    /// Sends a request. For a node that is not connected, the answer `Unreachable` comes at the
    /// next poll.
    pub fn send(
        &mut self,
        node: NodeIndex,
        body: RequestBody,
        payload: Vec<Bytes>,
        waiter: Waiter,
    ) {
        self.send_along(node, body, None, payload, waiter);
    }

    /// Sends a request, perhaps with a route that begins with the node.
    pub fn send_along(
        &mut self,
        node: NodeIndex,
        body: RequestBody,
        mut route: Option<Box<Route>>,
        payload: Vec<Bytes>,
        waiter: Waiter,
    ) {
        let payload_bytes: usize = payload.iter().map(Bytes::len).sum();
        let in_fragments = self.node(node).link.connected
            && self.may_go_in_fragments(route.as_deref(), payload_bytes);
        if let Some(route) = route.as_mut().filter(|_| in_fragments) {
            route.fragments = Fragments::Allowed(self.config.fragment_bytes);
        }
        let writes = match &body {
            RequestBody::ShardWrite { segment, .. } => Some(*segment),
            _ => None,
        };
        if let Some(segment) = writes {
            *self.node_mut(node).slots.claimed.entry(segment).or_default() += 1;
        }
        let tag = self.calls.add(node, waiter, (writes, in_fragments));
        if matches!(body, RequestBody::Reserve { .. }) {
            self.node_mut(node).slots.asked = Some(tag);
        }
        let capability = self.current_capability(node);
        let Some(capability) = capability.filter(|_| self.node(node).link.connected) else {
            // The call must not fail inside this function: its caller still holds state.
            self.calls.unsendable.push(tag);
            return;
        };
        self.counters.sent_bytes += payload_bytes as u64;
        let now = self.now;
        self.node_mut(node).in_flight.push_back((now, tag));
        let request = Request { tag, capability, body, route, payload };
        self.outbox.act(VolumeAction::Send { node, request });
    }

    /// Answers the calls that the volume could not send.
    pub fn fail_unsendable(&mut self) -> bool {
        let tags = std::mem::take(&mut self.calls.unsendable);
        for tag in &tags {
            self.finish_call(*tag, Err(NodeError::Unreachable));
        }
        !tags.is_empty()
    }

    /// Sends a request whose answer a task awaits.
    pub fn call(
        &mut self,
        node: NodeIndex,
        body: RequestBody,
        payload: Vec<Bytes>,
    ) -> Awaited<CallResult> {
        let (filler, awaited) = oneshot();
        self.send(node, body, payload, Waiter::Task(filler));
        awaited
    }

    /// Takes a node's answer.
    pub fn handle_reply(&mut self, node: NodeIndex, reply: Reply) {
        let more = self.node_mut(node).slots.answered(reply.tag, reply.slots_free);
        if more && self.repair.rebuild.lacks_room {
            self.start_rebuild();
        }
        if self.calls.get(reply.tag).is_none_or(|call| call.node != node) {
            return; // an answer to a call that was given up
        }
        if let Err(error) = &reply.result {
            self.note_fenced(node, error);
            if let NodeError::Capability(error) = error {
                self.note_refusal(node, *error);
            }
        }
        self.finish_call(reply.tag, reply.result);
        self.drop_finished_calls(node);
    }

    /// Ends this writer if a node reports a newer one. A node that joins may have been fenced by an
    /// opening that never served: `join` finds out.
    pub fn note_fenced(&mut self, node: NodeIndex, error: &NodeError) {
        if let NodeError::Fenced { current, .. } = error
            && *current > self.writer.epoch()
            && self.node(node).health == NodeHealth::Up
            && self.life.serves_or_closes()
        {
            self.fence_out(*current);
        }
    }

    fn drop_finished_calls(&mut self, node: NodeIndex) {
        let calls = &self.calls;
        let in_flight = &mut self.nodes[usize::from(node.0)].in_flight;
        while let Some((_, tag)) = in_flight.front() {
            if calls.get(*tag).is_some() {
                break;
            }
            in_flight.pop_front();
        }
    }

    fn finish_call(&mut self, tag: Tag, result: CallResult) {
        let Some(call) = self.calls.take(tag) else { return };
        if let Some(segment) = call.writes {
            self.end_claim(call.node, segment);
        }
        if call.in_fragments {
            self.note_fragments(call.node, &result);
        }
        match call.waiter {
            Waiter::Task(filler) => filler.fill(result),
            Waiter::Read { read, piece, pieces, blocks } => {
                self.read_replied(call.node, read, ((piece, pieces), blocks), result);
            }
            Waiter::Append { generation, batch } => {
                self.append_replied(call.node, generation, batch, result);
            }
            Waiter::Relay(relayed) => self.relay_replied(call.node, *relayed, result),
            Waiter::Shards(relayed) => self.shards_replied(call.node, *relayed, result),
            Waiter::Stream(streamed) => self.stream_replied(call.node, *streamed, result),
            Waiter::Pass { pass, session } => {
                self.pass_replied(call.node, (pass, session), &result);
            }
            Waiter::Row { generation, batch, segment, shard } => {
                self.row_replied(call.node, generation, batch, (segment, shard), result);
            }
        }
    }

    /// The node answered a write of a shard of the segment.
    pub fn end_claim(&mut self, node: NodeIndex, segment: SegmentId) {
        if let btree_map::Entry::Occupied(mut claim) =
            self.node_mut(node).slots.claimed.entry(segment)
        {
            *claim.get_mut() -= 1;
            if *claim.get() == 0 {
                claim.remove();
            }
        }
    }

    /// The connection to a node is gone, or the volume gives the node up. Every call to the node
    /// fails, and the work that depends on the node moves elsewhere.
    pub fn node_lost(&mut self, node: NodeIndex, reason: &str) {
        let state = self.node_mut(node);
        if !state.link.connected && state.health == NodeHealth::Down {
            return;
        }
        state.link.connected = false;
        state.health = NodeHealth::Down;
        state.reason = reason.to_owned();
        state.link.session += 1;
        state.relay.reset();
        let in_flight = std::mem::take(&mut state.in_flight);
        match self.life.is_opening() {
            true => self.note_loss(node, reason),
            false => self.watch_absence(node),
        }
        for (_, tag) in in_flight {
            self.finish_call(tag, Err(NodeError::Unreachable));
        }
        if self.log.nodes.contains(&node) {
            self.journal_broken();
        } else if self.has_rows(node) {
            // A move under way writes every record whole, so it need not begin anew.
            self.log.journal_move.request();
        }
    }

    /// Gives up a node that answered with an error of its storage, or not at all.
    pub fn give_up_node(&mut self, node: NodeIndex, reason: &str) {
        if !self.node(node).link.connected {
            return;
        }
        if self.life.is_opening() {
            self.leave_out(node, reason.to_owned());
        }
        let after = self.reconnect_after(node);
        self.node_lost(node, reason);
        let sleep = self.sleep(after);
        let session = self.node(node).link.session;
        self.spawn_with(move |ctx| async move {
            sleep.await;
            ctx.with(|core| {
                let closed = *core.life.phase() == VolumePhase::Closed;
                if core.node(node).link.session == session && !closed {
                    core.outbox.act(VolumeAction::Reconnect { node });
                }
            });
        });
    }

    /// How long the volume leaves a node alone that fails now.
    fn reconnect_after(&mut self, node: NodeIndex) -> Nanos {
        let (min, max) =
            (Nanos::from_ms(RECONNECT_AFTER_MS), Nanos::from_ms(RECONNECT_AFTER_MS_MAX));
        let (now, serves) = (self.now, !self.life.is_opening());
        let state = self.node_mut(node);
        let soon = now.since(state.link.connected_at) < Nanos::from_ms(STEADY_AFTER_MS);
        // An opening may depend on this very node, so the pause does not grow in an opening.
        let again = serves && soon;
        let after = if again { state.link.reconnect_after.clamp(min, max) } else { min };
        state.link.reconnect_after = Nanos(after.0 * 2);
        after
    }

    /// The world did not run this volume when it was due: its process was stopped for a while, say.
    /// The nodes may have answered in that time, so the volume does not hold the delay against
    /// them.
    pub fn forgive_own_delay(&mut self, due: Option<Nanos>) {
        let Some(due) = due else { return };
        let delay = self.now.since(due);
        if delay < Nanos::from_ms(DELAY_MS_MAX) {
            return;
        }
        for node in &mut self.nodes {
            for (sent, _) in &mut node.in_flight {
                *sent = sent.plus(delay);
            }
        }
    }

    /// Gives up the nodes that have not answered a call for too long.
    pub fn check_timeouts(&mut self) {
        let limit = self.answer_limit();
        for index in 0..self.config.nodes {
            let node = NodeIndex(index);
            self.drop_finished_calls(node);
            let oldest = self.node(node).in_flight.front().map(|(sent, _)| *sent);
            if oldest.is_some_and(|sent| self.now.since(sent) >= limit) {
                self.node_mut(node).attempt.late = true;
                self.give_up_node(node, "did not answer in time");
            }
        }
    }
}

impl Ctx {
    /// Calls a node and waits for the answer.
    pub async fn call(&self, node: NodeIndex, body: RequestBody) -> CallResult {
        let awaited = self.with(|core| core.call(node, body, Vec::new()));
        awaited.await
    }

    /// Calls several nodes at once and waits for all answers.
    pub async fn call_all(
        &self,
        nodes: &[NodeIndex],
        body: &RequestBody,
    ) -> Vec<(NodeIndex, CallResult)> {
        let calls = self.with(|core| {
            nodes.iter().map(|node| (*node, core.call(*node, body.clone(), Vec::new()))).collect()
        });
        self.wait_all(calls).await
    }

    /// Waits for the answers to several calls that were just made. A node may be lost and come back
    /// before the last answer arrives. An error from such a node tells nothing about its present
    /// state, so the error counts as `Unreachable`.
    pub async fn wait_all(
        &self,
        calls: Vec<(NodeIndex, Awaited<CallResult>)>,
    ) -> Vec<(NodeIndex, CallResult)> {
        let nodes: Vec<(NodeIndex, u64)> = self.with(|core| {
            calls.iter().map(|(node, _)| (*node, core.node(*node).link.session)).collect()
        });
        let results =
            fieldstone_tasks::all(calls.into_iter().map(|(_, call)| call).collect()).await;
        self.with(|core| {
            let answer = |((node, session), result): ((NodeIndex, u64), CallResult)| {
                let outdated = core.node(node).link.session != session;
                let result =
                    if outdated && result.is_err() { Err(NodeError::Unreachable) } else { result };
                (node, result)
            };
            nodes.into_iter().zip(results).map(answer).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::interface::VolumeEvent;
    use crate::script::Script;

    const NODE: NodeIndex = NodeIndex(5);

    /// The results of calls, in the order in which they end.
    type Results = Rc<RefCell<Vec<CallResult>>>;

    /// So many tasks that each call the node once.
    fn callers(script: &mut Script, count: usize) -> Results {
        let results = Results::default();
        for _ in 0..count {
            let results = Rc::clone(&results);
            script.start(move |ctx| async move {
                let result = ctx.call(NODE, RequestBody::Stat).await;
                results.borrow_mut().push(result);
            });
        }
        results
    }

    #[test]
    fn every_call_ends_once_with_the_answer_or_with_the_loss_of_the_node() {
        let mut script = Script::serving(8);
        let results = callers(&mut script, 2);
        let sent = script.sent();
        assert_eq!(sent.len(), 2);
        script.done(&sent[1]);
        script.volume.handle(VolumeEvent::NodeDown(NODE), Nanos(0));
        let ended = [Ok(ReplyBody::Done), Err(NodeError::Unreachable)];
        script.sent();
        assert_eq!(*results.borrow(), ended);
        // A new call takes the place of an old one, and the old answers come late.
        script.volume.handle(VolumeEvent::NodeUp(NODE), Nanos(0));
        let results = callers(&mut script, 1);
        script.sent();
        sent.iter().for_each(|sent| script.done(sent));
        script.sent();
        assert!(results.borrow().is_empty());
    }

    #[test]
    fn a_call_that_cannot_be_sent_fails_only_when_its_caller_is_done() {
        let mut script = Script::serving(8);
        script.core(|core| {
            core.node_mut(NODE).link.connected = false;
            let generation = core.log.generation;
            let body = RequestBody::JournalAppend { generation, lsn: fieldstone_proto::Lsn(0) };
            core.send(NODE, body, Vec::new(), Waiter::Append { generation, batch: 1 });
            assert!(!core.log.journal_move.has_to_move(), "the caller still holds state");
        });
        assert!(script.sent().iter().all(|sent| sent.node != NODE));
        script.core(|core| assert!(core.log.journal_move.has_to_move()));
    }

    #[test]
    fn a_silent_node_is_given_up_but_not_for_a_delay_of_the_volume_itself() {
        let mut script = Script::serving(8);
        let results = callers(&mut script, 1);
        // The volume has something to do after 300 ms, but its process is stopped for 5 s.
        script.start(|ctx| async move { ctx.sleep_ms(300).await });
        script.sent();
        script.wait_ms(5_000);
        script.sent();
        for _ in 0..6 {
            script.wait_ms(100);
            script.sent();
            assert!(results.borrow().is_empty(), "the node had less than a second");
        }
        script.wait_ms(100);
        script.sent();
        assert_eq!(*results.borrow(), [Err(NodeError::Unreachable)]);
        script.core(|core| assert_eq!(core.node(NODE).health, NodeHealth::Down));
    }
}
