//! Writes of shards that nodes pass on to each other.
//!
//! The volume sends a write of several shards once, to the head of a route, and the nodes pass it
//! on like a record ([`relay`](crate::relay)). The shards are copies of each other: with `copies:N`
//! all shards of a segment hold the same bytes, so the volume sends these once. Or they are a data
//! shard and the parity shards that its node passes on ([`carry`](crate::carry)): then the message
//! has a part for each shard.
//!
//! - *Order.* The write that seals a shard must come after all other writes to the shard. On the
//!   connection to a node, order sees to that. A write on a route may be overtaken, so sealing
//!   waits until no rows of the segment are on a route.
//! - *A node that was not reached* gets its shard from the volume itself, over the connection on
//!   which the volume has announced a new pass before. So each node in the end answers for its
//!   shard, or is lost, as without routes: the volume always knows which node has which shard.
//! - *A node that was lost* after the head has heard from it may have lost the write as well. Its
//!   shard counts as not written.
//! - *Room.* The answer of a node reports its free slots, but a node behind the head gives no
//!   answer to the volume. Until the node's next answer, the volume counts the slot that the first
//!   write of a shard took there.

use bytes::Bytes;
use fieldstone_codes::Profile;
use fieldstone_proto::{
    Content, JournalGen, NodeError, NodeIndex, Replica, ReplyBody, RequestBody, Route, SealMeta,
    SegmentId,
};
use smallvec::SmallVec;

use crate::calls::{CallResult, Waiter};
use crate::core::VolumeCore;
use crate::relay::{NewForm, may_lack};
use crate::rows::shard_index;
use fieldstone_tasks::Filler;

/// A shard, or a piece of it, on the way to its node.
#[derive(Clone, Debug)]
pub struct ShardTarget {
    /// Number of the shard.
    pub shard: usize,
    /// Its node.
    pub node: NodeIndex,
    /// The connection to the node.
    pub session: u64,
    /// CRC-32C of each block.
    pub checksums: Vec<u32>,
    /// The bytes.
    pub data: Vec<Bytes>,
}

/// A write to several shards of a segment, at the same place in each.
#[derive(Clone, Debug)]
pub struct ShardsWrite {
    /// The segment.
    pub segment: SegmentId,
    /// The shards.
    pub targets: SmallVec<[ShardTarget; 3]>,
    /// Where in each shard.
    pub offset_bytes: u32,
    /// Completes the shards.
    pub seal: Option<SealMeta>,
    /// The first write of the segment: it takes a slot on each node.
    pub first: bool,
}

/// The receiver of the outcomes.
pub enum ShardsWaiter {
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
pub struct RelayedShards {
    route: Route,
    write: ShardsWrite,
    waiter: ShardsWaiter,
}

impl ShardsWrite {
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

    /// Length of what goes to one shard.
    pub fn part_bytes(&self) -> usize {
        self.targets.first().map_or(0, |target| target.data.iter().map(Bytes::len).sum())
    }

    fn target_of(&self, replica: &Replica) -> &ShardTarget {
        let found = self.targets.iter().find(|target| target.node == replica.node);
        found.expect("the route was made of the targets")
    }
}

impl VolumeCore {
    /// The shards of this volume hold the same bytes.
    pub fn has_copies(&self) -> bool {
        matches!(self.shape.profile(), Profile::Copies { .. })
    }

    /// Sends a write along a route through the nodes of its targets.
    pub fn send_shards(&mut self, mut route: Route, write: ShardsWrite, waiter: ShardsWaiter) {
        for replica in &mut route.replicas {
            replica.shard = shard_index(write.target_of(replica).shard);
        }
        for replica in &route.replicas[1..] {
            let claimed = &mut self.node_mut(replica.node).slots.claimed;
            *claimed.entry(write.segment).or_default() += 1;
        }
        if route.content != Content::Parts {
            self.counters.copies_relayed += 1;
        }
        let (mut checksums, mut data) = (Vec::new(), Vec::new());
        for replica in &route.replicas[..route.parts()] {
            let target = write.target_of(replica);
            checksums.extend_from_slice(&target.checksums);
            data.extend_from_slice(&target.data);
        }
        let head = &route.replicas[0];
        let (node, body) = (head.node, write.body(usize::from(head.shard.0), checksums));
        let sent = Some(Box::new(route.clone()));
        let relayed = RelayedShards { route, write, waiter };
        self.send_along(node, body, sent, data, Waiter::Shards(Box::new(relayed)));
    }

    /// The head answered a write that went along a route, or is lost.
    pub fn shards_replied(&mut self, head: NodeIndex, relayed: RelayedShards, result: CallResult) {
        let RelayedShards { route, write, waiter } = relayed;
        for replica in &route.replicas[1..] {
            self.end_claim(replica.node, write.segment);
        }
        if route.content == Content::Parts {
            self.note_new_form(head, NewForm::Parts, &result);
        }
        let results = self.outcomes_of(head, &route, result);
        let mut by_target: Vec<Option<CallResult>> = Vec::with_capacity(write.targets.len());
        for target in &write.targets {
            let at = route.replicas.iter().position(|replica| replica.node == target.node);
            let at = at.expect("the route was made of the targets");
            let shard = (at, &route.replicas[at], target.session);
            let result = self.note_shard(shard, &write, &results[at]);
            match (&route.content, &result) {
                (Content::Parts, None) => self.counters.parities_sent_again += u64::from(at > 0),
                (Content::Parts, Some(_)) => {
                    self.counters.parities_relayed += u64::from(at > 0 && results[at].is_ok());
                }
                (_, None) => self.counters.copies_sent_again += 1,
                (_, Some(_)) => {}
            }
            by_target.push(result);
        }
        match waiter {
            ShardsWaiter::Task(filler) => filler.fill(by_target),
            ShardsWaiter::Rows { generation, batch } => {
                let segment = write.segment;
                self.rows_off_route(segment);
                for (target, result) in write.targets.iter().zip(by_target) {
                    let (node, shard) = (target.node, target.shard);
                    match result {
                        None => {
                            let body = write.body(shard, target.checksums.clone());
                            let waiter = Waiter::Row { generation, batch, segment, shard };
                            self.send(node, body, target.data.clone(), waiter);
                        }
                        Some(result) => {
                            self.row_replied(node, generation, batch, (segment, shard), result);
                        }
                    }
                }
            }
        }
    }

    /// The outcome on the node of this rank, in this session; `None` if the volume has to write to
    /// the node itself. Then no late write can reach the node any more.
    fn note_shard(
        &mut self,
        (rank, replica, session): (usize, &Replica, u64),
        write: &ShardsWrite,
        result: &Result<(), NodeError>,
    ) -> Option<CallResult> {
        let node = replica.node;
        if let Err(error) = result {
            self.note_fenced(node, error);
            if may_lack(error) {
                self.renew_pass(replica);
            }
        }
        let link = &self.node(node).link;
        let same = link.connected && link.session == session;
        match result {
            // The head has counted itself, in the room that its answer tells.
            Ok(()) if rank == 0 => Some(Ok(ReplyBody::Done)),
            // An outcome of an earlier connection says nothing about the node that is there now.
            _ if !same => Some(Err(NodeError::Unreachable)),
            Err(error) if may_lack(error) => None,
            Err(error) => Some(Err(error.clone())),
            Ok(()) => {
                if write.first {
                    let free = &mut self.node_mut(node).slots.free;
                    *free = free.saturating_sub(1);
                }
                Some(Ok(ReplyBody::Done))
            }
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
}
