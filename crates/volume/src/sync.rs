//! Syncing: the shards of sealed segments become stable, and the journal forgets the records.
//!
//! A segment is durable when k of its shards are stable. Sealing has seen to it that it has as many
//! as it must (`width`). Every shard that it has lost since then was on a node that was lost since
//! then, or whose sync failed. Such a node is one of the m nodes whose loss the segment survives,
//! until a rebuild has made the shard again. So syncing does not ask for the width once more.

use fieldstone_proto::{NodeError, NodeIndex, RequestBody, SegmentId};
use smallvec::SmallVec;

use crate::calls::CallResult;
use crate::core::{Ctx, VolumeCore};
use crate::seal::seal;
use crate::segment::{SegmentIndex, State};
use crate::status::NodeHealth;

/// Pause before the volume syncs again when no segment became durable.
const RETRY_MS: u64 = 50;

/// Makes sealed segments durable, and forgets the records that are then superfluous.
pub async fn sync_segments_task(ctx: Ctx) {
    sync_segments(&ctx).await;
    ctx.with(|core| core.log.segment_sync.end());
}

/// A segment under sync, and where its shards were when the sync began.
type Synced = (SegmentIndex, SegmentId, SmallVec<[Option<NodeIndex>; 8]>);

/// Makes the segments durable that are sealed now.
pub async fn sync_segments(ctx: &Ctx) {
    let sealed: Vec<Synced> = ctx.with(|core| {
        let sealed = core.segments.iter().filter(|(_, s)| s.state == State::Sealed);
        sealed.map(|(handle, s)| (handle, s.id, s.shards.iter().copied().collect())).collect()
    });
    if sealed.is_empty() {
        // Wait for a segment that is being sealed.
        ctx.sleep_ms(1).await;
        return;
    }
    let mut nodes: Vec<NodeIndex> =
        sealed.iter().flat_map(|(_, _, shards)| shards.iter().flatten().copied()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    // A sync of a node's present life does not tell which data a joining node lost with its power.
    ctx.with(|core| nodes.retain(|node| core.node(*node).health == NodeHealth::Up));
    let sessions = ctx.with(|core| core.sessions_of(&nodes));
    let results = ctx.call_all(&nodes, &RequestBody::ShardSync).await;
    let answers = results.into_iter().zip(sessions).collect();
    let progress = ctx.with(|core| core.synced_segments(&sealed, answers));
    if !progress {
        // Too few shards are left of every segment. A rebuild or a returning node has to help
        // first.
        ctx.sleep_ms(RETRY_MS).await;
    }
}

impl VolumeCore {
    /// The nodes answered the sync of the `sealed` segments, whose shards were then on the nodes
    /// given, in the sessions given. True if at least one of the segments is durable now.
    fn synced_segments(
        &mut self,
        sealed: &[Synced],
        answers: Vec<((NodeIndex, CallResult), u64)>,
    ) -> bool {
        let (mut synced, mut failed) = (Vec::new(), Vec::new());
        for ((node, result), session) in answers {
            let state = self.node(node);
            let Err(error) = result else {
                // A node that was lost since then may be an empty replacement, which has got other
                // shards of the segments: the answer does not cover these.
                if state.link.session == session {
                    synced.push(node);
                }
                continue;
            };
            if state.link.session != session && state.health == NodeHealth::Up {
                // The node was lost and has joined since, and then reported its shards. If the
                // volume forgot these, the node would keep shards that the volume does not know.
                continue;
            }
            failed.push(node);
            if error != NodeError::Unreachable {
                self.give_up_node(node, &format!("sync: {error}"));
            }
        }
        let (k, writable, up) = (self.shape.code().k(), self.writable(), self.up_nodes());
        let mut progress = false;
        for (handle, id, before) in sealed {
            let handle = *handle;
            let Some(segment) = self.segments.get_mut(handle) else { continue };
            if segment.id != *id || segment.state != State::Sealed {
                continue;
            }
            // The sync did not cover shards that reached a node since the sync began.
            let mut stable = 0;
            for (shard, before) in segment.shards.iter_mut().zip(before) {
                match *shard {
                    Some(node) if failed.contains(&node) => *shard = None,
                    Some(node) if synced.contains(&node) && *shard == *before => stable += 1,
                    _ => {}
                }
            }
            let left = segment.shards.len() - segment.missing();
            if stable >= k && writable {
                // A node that has joined since then has reported its shards. A node that is lost or
                // about to join reports them when it joins.
                let counts = |node: &NodeIndex| up.contains(node) || synced.contains(node);
                for shard in &mut segment.shards {
                    *shard = shard.filter(counts);
                }
                segment.contents = None;
                self.segments.set_state(handle, State::Durable);
                self.drop_rows(handle);
                progress = true;
            } else if left < k && segment.contents.is_some() && !self.life.is_opening() {
                // An opening starts over instead, and gives the handle to another segment.
                self.segments.set_state(handle, State::Closed);
                self.spawn_with(move |ctx| seal(ctx, handle));
            }
        }
        self.trim_log();
        self.start_rebuild();
        progress
    }

    /// The segment's shards are stable.
    pub fn is_durable(&self, handle: SegmentIndex) -> bool {
        self.segments.get(handle).is_some_and(|segment| segment.state == State::Durable)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::script::Script;

    /// A sealed segment with its shards on these nodes.
    fn sealed(shards: [Option<u16>; 6]) -> (Script, SegmentIndex) {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&shards);
        script.core(|core| core.segments.set_state(handle, State::Sealed));
        (script, handle)
    }

    fn state(script: &mut Script, handle: SegmentIndex) -> (State, usize) {
        script.core(|core| {
            let segment = core.segments.get(handle).expect("it was added");
            (segment.state, segment.missing())
        })
    }

    /// The state of a segment, and the number of shards that it lacks, after the sync has failed on
    /// so many of its nodes.
    fn after_failures(failures: usize) -> (State, usize) {
        let (mut script, handle) = sealed([0, 1, 2, 3, 4, 5].map(Some));
        script.start(|ctx| async move { sync_segments(&ctx).await });
        for (at, sent) in script.sent().iter().enumerate() {
            assert_eq!(sent.request.body, RequestBody::ShardSync);
            match at < failures {
                true => script.answer(sent, Err(NodeError::Io("broken".into()))),
                false => script.done(sent),
            }
        }
        script.sent();
        state(&mut script, handle)
    }

    #[test]
    fn a_segment_is_durable_as_soon_as_k_of_its_shards_are_stable() {
        assert_eq!(after_failures(0), (State::Durable, 0));
        assert_eq!(after_failures(2), (State::Durable, 2));
        assert_eq!(after_failures(3), (State::Sealed, 3));
    }

    #[test]
    fn a_sync_does_not_cover_a_shard_that_came_after_it_had_begun() {
        let (mut script, handle) = sealed([Some(0), Some(1), Some(2), Some(3), None, None]);
        for (comes, expected) in [(true, State::Sealed), (false, State::Durable)] {
            script.start(|ctx| async move { sync_segments(&ctx).await });
            let sent = script.sent();
            assert_eq!(sent.len(), 4);
            if comes {
                // Both nodes were synced, but before they had these shards.
                script.core(|core| {
                    let segment = core.segments.get_mut(handle).expect("it was added");
                    (segment.shards[2], segment.shards[3]) =
                        (Some(NodeIndex(3)), Some(NodeIndex(2)));
                });
            }
            sent.iter().for_each(|sent| script.done(sent));
            script.sent();
            assert_eq!(state(&mut script, handle).0, expected);
            script.wait_ms(RETRY_MS);
            script.sent();
        }
    }

    #[test]
    fn a_sync_that_gains_nothing_does_not_repeat_at_once() {
        let (mut script, _) = sealed([Some(0), Some(1), Some(2), None, None, None]);
        let ended = Rc::new(Cell::new(false));
        let ends = Rc::clone(&ended);
        script.start(move |ctx| async move {
            sync_segments(&ctx).await;
            ends.set(true);
        });
        for sent in script.sent() {
            script.done(&sent);
        }
        script.sent();
        script.wait_ms(RETRY_MS - 1);
        script.sent();
        assert!(!ended.get());
        script.wait_ms(1);
        script.sent();
        assert!(ended.get());
    }
}
