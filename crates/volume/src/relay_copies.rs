//! Writes of copies that nodes pass on to each other.
//!
//! With `copies:N` all shards of a segment hold the same bytes, so a write of a shard can take a
//! route like a record ([`relay`](crate::relay)): the volume sends the bytes once, and each node
//! writes its own shard. With any other code each node gets different bytes, and they go flat.
//!
//! - *Order.* The write that seals a shard must come after all other writes to the shard. On the
//!   connection to a node, order sees to that. A write on a route may be overtaken, so sealing
//!   waits until no rows of the segment are on a route.
//! - *A node that was not reached* gets the write from the volume itself, over the connection on
//!   which the volume has announced a new pass before. So each node in the end answers for its
//!   shard, or is lost, as without routes: the volume always knows which node has which shard.
//! - *Room.* The answer of a node reports its free slots, but a node behind the head gives no
//!   answer to the volume. Until the node's next answer, the volume counts the slot that the first
//!   write of a shard took there.

use bytes::Bytes;
use fieldstone_codes::Profile;
use fieldstone_proto::{
    JournalGen, NodeError, NodeIndex, Replica, ReplyBody, RequestBody, Route, SealMeta, SegmentId,
};
use smallvec::SmallVec;

use crate::calls::{CallResult, Waiter};
use crate::core::VolumeCore;
use crate::relay::may_lack;
use crate::rows::shard_index;
use fieldstone_tasks::Filler;

/// A write of the same bytes to several shards of a segment.
#[derive(Clone, Debug)]
pub struct CopiesWrite {
    /// The segment.
    pub segment: SegmentId,
    /// The shards, each with its node and the connection to it.
    pub targets: SmallVec<[(usize, NodeIndex, u64); 8]>,
    /// Where in each shard.
    pub offset_bytes: u32,
    /// CRC-32C of each block.
    pub checksums: Vec<u32>,
    /// Completes the shards.
    pub seal: Option<SealMeta>,
    /// The bytes.
    pub data: Vec<Bytes>,
    /// The first write of the segment: it takes a slot on each node.
    pub first: bool,
}

/// The receiver of the outcomes.
pub enum CopiesWaiter {
    /// Rows of a detached record.
    Rows {
        /// The journal that the record's header went to.
        generation: JournalGen,
        /// Sequence number of the batch.
        batch: u64,
    },
    /// A task. It gets a result for each target, and has to write the shards without one itself.
    Task(Filler<Vec<Option<CallResult>>>),
}

/// A write on its way along a route.
pub struct RelayedCopies {
    route: Route,
    write: CopiesWrite,
    waiter: CopiesWaiter,
}

impl CopiesWrite {
    fn body(&self, shard: usize) -> RequestBody {
        RequestBody::ShardWrite {
            segment: self.segment,
            shard: shard_index(shard),
            offset_bytes: self.offset_bytes,
            checksums: self.checksums.clone(),
            seal: self.seal,
            data_first: false,
        }
    }
}

impl VolumeCore {
    /// The shards of this volume hold the same bytes.
    pub fn has_copies(&self) -> bool {
        matches!(self.shape.profile(), Profile::Copies { .. })
    }

    /// Sends a write along a route through the nodes of its targets. False if there is no such
    /// route now. Then no node is told anything.
    pub fn send_copies(&mut self, write: CopiesWrite, waiter: CopiesWaiter) -> bool {
        let nodes: SmallVec<[NodeIndex; 8]> = write.targets.iter().map(|target| target.1).collect();
        let route = if self.has_copies() { self.route_through(&nodes) } else { None };
        let Some(mut route) = route else { return false };
        for replica in &mut route.replicas {
            let target = write.targets.iter().find(|target| target.1 == replica.node);
            replica.shard = shard_index(target.map_or(0, |target| target.0));
        }
        let head = route.replicas[0].node;
        for replica in &route.replicas[1..] {
            let claimed = &mut self.node_mut(replica.node).slots.claimed;
            *claimed.entry(write.segment).or_default() += 1;
        }
        self.counters.copies_relayed += 1;
        let body = write.body(usize::from(route.replicas[0].shard.0));
        let (sent, data) = (Some(Box::new(route.clone())), write.data.clone());
        let relayed = RelayedCopies { route, write, waiter };
        self.send_along(head, body, sent, data, Waiter::Copies(Box::new(relayed)));
        true
    }

    /// The head answered a write that went along a route, or is lost.
    pub fn copies_replied(&mut self, head: NodeIndex, relayed: RelayedCopies, result: CallResult) {
        let RelayedCopies { route, write, waiter } = relayed;
        for replica in &route.replicas[1..] {
            self.end_claim(replica.node, write.segment);
        }
        let results = self.outcomes_of(head, &route, result);
        let mut by_target: Vec<Option<CallResult>> = Vec::with_capacity(write.targets.len());
        for (_, node, session) in &write.targets {
            let at = route.replicas.iter().position(|replica| replica.node == *node);
            let at = at.expect("the route was made of the targets");
            let copy = (at, &route.replicas[at], *session);
            let result = self.note_copy(copy, &write, &results[at]);
            by_target.push(result);
        }
        match waiter {
            CopiesWaiter::Task(filler) => filler.fill(by_target),
            CopiesWaiter::Rows { generation, batch } => {
                self.rows_off_route(write.segment);
                for ((shard, node, _), result) in write.targets.clone().into_iter().zip(by_target) {
                    let waiter = Waiter::Row { generation, batch, segment: write.segment, shard };
                    match result {
                        None => {
                            self.counters.copies_sent_again += 1;
                            self.send(node, write.body(shard), write.data.clone(), waiter);
                        }
                        Some(result) => {
                            let place = (write.segment, shard);
                            self.row_replied(node, generation, batch, place, result);
                        }
                    }
                }
            }
        }
    }

    /// The outcome on the node of this rank, in this session; `None` if the volume has to write to
    /// the node itself. Then no late copy can reach the node any more.
    fn note_copy(
        &mut self,
        (rank, replica, session): (usize, &Replica, u64),
        write: &CopiesWrite,
        result: &Result<(), NodeError>,
    ) -> Option<CallResult> {
        let node = replica.node;
        let error = match result {
            Ok(()) => {
                // The head has counted itself, in the room that its answer tells.
                if write.first && rank > 0 {
                    let free = &mut self.node_mut(node).slots.free;
                    *free = free.saturating_sub(1);
                }
                return Some(Ok(ReplyBody::Done));
            }
            Err(error) => error.clone(),
        };
        self.note_fenced(node, &error);
        if !may_lack(&error) {
            return Some(Err(error));
        }
        self.renew_pass(replica);
        let same = self.node(node).link.connected && self.node(node).link.session == session;
        match same {
            true => None,
            false => Some(Err(NodeError::Unreachable)),
        }
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_accel::Job;
    use fieldstone_block::Nanos;
    use fieldstone_proto::{Outcome, Strategy};

    use super::*;
    use crate::relay::Reach;
    use crate::script::{Script, Sent};
    use crate::segment::{Segment, State};

    /// A volume copies:3 on eight nodes, which take writes from each other.
    fn script() -> Script {
        let mut script = Script::serving_in_chunks(8, "copies:3", 0);
        script.core(|core| {
            core.config.replicate = Strategy::Ring;
            core.nodes.iter_mut().for_each(|node| node.relay.reach = Reach::Here);
            let all: Vec<NodeIndex> = (0..8).map(NodeIndex).collect();
            // Announces passes to all nodes but the first.
            assert_eq!(core.route_through(&all), None);
        });
        for sent in script.sent() {
            script.done(&sent);
        }
        script.core(|core| {
            // The head of a route needs no pass; this one may be a later node of another route.
            let route = core.route_through(&[NodeIndex(1), NodeIndex(0)]);
            assert_eq!(route, None);
        });
        for sent in script.sent() {
            script.done(&sent);
        }
        script
    }

    fn is_shard(sent: &Sent) -> bool {
        matches!(sent.request.body, RequestBody::ShardWrite { .. })
    }

    /// The nodes of a routed request's route.
    fn nodes(sent: &Sent) -> Vec<NodeIndex> {
        let route = sent.request.route.as_ref().expect("a route");
        route.replicas.iter().map(|replica| replica.node).collect()
    }

    /// The outcomes of a routed request: `lost` replicas from the end were not reached.
    fn outcomes(sent: &Sent, lost: usize) -> ReplyBody {
        let nodes = nodes(sent);
        let (head, reached) = (nodes[0], nodes.len() - lost);
        let outcome = |(rank, node): (usize, &NodeIndex)| Outcome {
            node: *node,
            result: match rank < reached {
                true => Ok(()),
                false => Err(NodeError::NotPassedOn { from: head, to: *node }),
            },
        };
        ReplyBody::Outcomes(nodes.iter().enumerate().map(outcome).collect())
    }

    #[test]
    fn rows_of_copies_go_once() {
        let mut script = script();
        let before = script.core(|core| core.counters.sent_bytes);
        script.write(0, 8);
        let sent = script.sent();
        let codes = |(_, job): &(_, Job)| matches!(job, Job::Code { .. });
        assert!(!script.jobs.iter().any(codes), "copies need no coding");
        let (shards, headers): (Vec<_>, Vec<_>) = sent.iter().partition(|sent| is_shard(sent));
        assert_eq!((shards.len(), headers.len()), (1, 1));
        let ranks = shards[0].request.route.as_ref().expect("a route").replicas.iter();
        let mut written: Vec<u8> = ranks.map(|replica| replica.shard.0).collect();
        written.sort_unstable();
        assert_eq!(written, [0, 1, 2]);
        let sent_bytes = script.core(|core| core.counters.sent_bytes) - before;
        let payload = |sent: &Sent| sent.request.payload.iter().map(Bytes::len).sum::<usize>();
        assert_eq!(payload(shards[0]), 8 * 4096);
        assert_eq!(sent_bytes, sent.iter().map(payload).sum::<usize>() as u64, "once");
        script.answer(headers[0], Ok(outcomes(headers[0], 0)));
        assert!(script.sent().is_empty() && script.completions.is_empty());
        script.answer(shards[0], Ok(outcomes(shards[0], 0)));
        script.sent();
        assert_eq!(script.completions.len(), 1);
        script.core(|core| assert!(core.nodes.iter().all(|node| node.slots.claimed.is_empty())));
    }

    #[test]
    fn a_row_that_did_not_reach_a_node_goes_there_from_the_volume() {
        let mut script = script();
        script.write(0, 8);
        let sent = script.sent();
        let (shards, headers): (Vec<_>, Vec<_>) = sent.iter().partition(|sent| is_shard(sent));
        script.answer(headers[0], Ok(outcomes(headers[0], 0)));
        script.answer(shards[0], Ok(outcomes(shards[0], 1)));
        let again = script.sent();
        let last = nodes(shards[0])[2];
        assert!(again.iter().all(|sent| sent.node == last));
        assert!(matches!(again[0].request.body, RequestBody::AdmitRelays { .. }));
        assert!(is_shard(&again[1]) && again[1].request.route.is_none());
        assert_eq!(again[1].request.payload, shards[0].request.payload);
        assert!(script.completions.is_empty());
        again.iter().for_each(|sent| script.done(sent));
        script.sent();
        assert_eq!(script.completions.len(), 1);
        script.core(|core| assert!(!core.log.journal_move.has_to_move()));
    }

    #[test]
    fn a_lost_head_moves_the_journal() {
        let mut script = script();
        script.write(0, 8);
        let sent = script.sent();
        let shard = sent.iter().find(|sent| is_shard(sent)).expect("a row");
        script.reconnect(shard.node);
        // The others get the rows from the volume: nothing else tells whether they have a slot.
        let again: Vec<Sent> = script.sent().into_iter().filter(is_shard).collect();
        assert_eq!(again.len(), 2);
        again.iter().for_each(|sent| script.done(sent));
        script.sent();
        script.core(|core| {
            assert!(core.log.journal_move.has_to_move());
            assert!(core.nodes.iter().all(|node| node.slots.claimed.is_empty()));
        });
    }

    #[test]
    fn complete_shards_of_copies_go_once() {
        for lost in [0, 2] {
            let mut script = script();
            let handle = script.add_segment(&[None; 3]);
            script.core(|core| {
                core.segments.set_state(handle, State::Closed);
                let segment = core.segments.get_mut(handle).expect("it was added");
                segment.begun_at = Some(Nanos(1));
            });
            script.start(move |ctx| async move {
                let data = Bytes::from(vec![5; 4096]);
                let checksums = fieldstone_proto::crc32c_blocks(&data);
                let shard = fieldstone_accel::Shard { checksums, data };
                let meta = SealMeta { shard_bytes: 4096, ..SealMeta::default() };
                assert!(crate::seal::store(&ctx, handle, &vec![shard; 3], meta).await);
            });
            let sent = script.sent_one();
            assert!(is_shard(&sent) && nodes(&sent).len() == 3);
            script.answer(&sent, Ok(outcomes(&sent, lost)));
            let again = script.sent();
            assert_eq!(again.iter().filter(|sent| is_shard(sent)).count(), lost);
            again.iter().for_each(|sent| script.done(sent));
            script.sent();
            script.core(|core| {
                assert_eq!(core.segments.get(handle).map(Segment::missing), Some(0));
            });
        }
    }

    /// With a code each node gets different bytes.
    #[test]
    fn rows_of_a_code_go_flat() {
        let mut script = Script::serving(8);
        script.core(|core| {
            core.config.replicate = Strategy::Ring;
            core.nodes.iter_mut().for_each(|node| node.relay.reach = Reach::Here);
        });
        for round in 0..2 {
            script.write(16 * round, 16);
            let sent = script.sent();
            assert!(sent.iter().filter(|s| is_shard(s)).all(|s| s.request.route.is_none()));
            for sent in &sent {
                match sent.request.route {
                    Some(_) => script.answer(sent, Ok(outcomes(sent, 0))),
                    None => script.done(sent),
                }
            }
        }
    }
}
