//! Collection that evens out the volume's shards, for other volumes.
//!
//! A volume needs the same number of slots on each node, and that is enough if its shards lie
//! evenly. CRUSH places them evenly on average only. The node with the most shards sets the number
//! of slots that the volume has to keep on every node. Another volume may lack these slots. Then
//! the volume is *uneven*: new segments avoid the nodes with the most shards, as far as enough
//! other nodes can take them. When collection has nothing else to free, it moves segments away from
//! these nodes, also segments without garbage.
//!
//! One run moves no more segments than there are shards above the goal, and then rests, whether it
//! gained anything or not. The goal is never below an even share. So a volume whose shards lie
//! evenly moves nothing, and a run that gains nothing moves few segments.

use fieldstone_block::Nanos;
use fieldstone_proto::{NodeIndex, SegmentKind};

use super::checkpoint::write_checkpoint;
use super::moving::move_segment;
use crate::core::{Ctx, VolumeCore};
use crate::reserve::refresh_stat;

/// Pause before the next run.
const RESTS_MS: u64 = 10_000;

/// What to do about a volume that is uneven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Uneven {
    /// Shards of data that each node may keep.
    goal: u32,
    /// Shards above the goal, on all nodes that are up.
    above: u32,
}

impl VolumeCore {
    /// The volume is uneven, and other volumes lack the slots that it keeps for this reason.
    fn uneven(&self) -> Option<Uneven> {
        let goal = self.even_goal()?;
        let held = self.lasting_shards();
        let above = |node: NodeIndex| held[usize::from(node.0)].saturating_sub(goal);
        let above = self.up_nodes().into_iter().map(above).sum();
        (above > 0).then_some(Uneven { goal, above })
    }

    /// The shards of data that a node may keep, if other volumes lack slots that this one keeps for
    /// its fullest nodes. Never less than an even share.
    fn even_goal(&self) -> Option<u32> {
        let lacking = self.up_nodes().into_iter().map(|node| self.slots_lacking(node)).max()?;
        if lacking == 0 {
            return None;
        }
        let reserved = self.reservation.slots;
        let kept = reserved.saturating_sub(lacking).max(self.slots_needed());
        let excess = self.slots_to_write().saturating_sub(kept);
        if kept >= reserved || excess == 0 {
            return None;
        }
        let most = self.data_shards().into_iter().max().unwrap_or(0);
        // The next checkpoint deletes dead segments. One that has just moved is among them: if it
        // counted, the share would rise while the new one is placed, and it might go back there.
        let not_spread = self.segments.checkpoints().len() + self.dead_segments().len();
        let segments = self.segments.len() - not_spread;
        let even = self.capacity_params().slots(segments as u64);
        let even = u32::try_from(even).unwrap_or(u32::MAX);
        Some(most.saturating_sub(excess).max(even))
    }

    /// Shards of data on each node.
    fn data_shards(&self) -> Vec<u32> {
        let mut held = vec![0; self.nodes.len()];
        let data = self.segments.iter().filter(|(_, s)| s.kind == SegmentKind::Data);
        for node in data.flat_map(|(_, segment)| segment.shards.iter().flatten()) {
            held[usize::from(node.0)] += 1;
        }
        held
    }

    /// Shards of data on each node that the next checkpoint does not delete.
    fn lasting_shards(&self) -> Vec<u32> {
        let mut held = self.data_shards();
        let dead = self.dead_segments().into_iter().filter_map(|handle| self.segments.get(handle));
        for node in dead.flat_map(|segment| segment.shards.iter().flatten()) {
            held[usize::from(node.0)] -= 1;
        }
        held
    }

    /// The nodes that new segments avoid because the volume is uneven, or would be with another
    /// shard there: those with more shards than others, the one with the most first.
    pub fn nodes_to_avoid(&self) -> Vec<NodeIndex> {
        let Some(goal) = self.even_goal() else { return Vec::new() };
        let held = self.lasting_shards();
        let held = |node: &NodeIndex| held[usize::from(node.0)];
        let mut nodes = self.up_nodes();
        let least = nodes.iter().map(held).min().unwrap_or(0);
        nodes.retain(|node| held(node) >= goal.max(least + 1));
        nodes.sort_by_key(|node| std::cmp::Reverse(held(node)));
        nodes
    }

    /// The volume is uneven, and may do something about it.
    pub(super) fn may_even_out(&self) -> bool {
        // The volume's own lack of room, of shards, or of a checkpoint comes first.
        let marks = self.marks_at_rest();
        let waits = self.repair.rebuild.lacks_room || self.log.reserving_blocks > 0;
        let low = if waits { marks.high } else { marks.low };
        let own = self.segments_free() < low || self.checkpoint_pays();
        self.life.serves() && !own && !self.gc.evening_rests(self.now) && self.uneven().is_some()
    }
}

/// Moves segments away from the nodes with the most shards, if the volume is uneven.
pub(super) async fn even_out(ctx: &Ctx) {
    if !ctx.with(|core| core.may_even_out()) {
        return;
    }
    // Other volumes may have got their slots since the nodes last told what these volumes lack. A
    // checkpoint deletes dead segments, whose shards would count as data.
    for node in ctx.with(|core| core.up_nodes()) {
        refresh_stat(ctx, node).await;
    }
    if ctx.with(|core| !core.dead_segments().is_empty()) && !write_checkpoint(ctx, false).await {
        return;
    }
    let above = ctx.with(|core| core.uneven().map_or(0, |uneven| uneven.above));
    let mut tried = Vec::new();
    for _ in 0..above {
        let victim = ctx.with(|core| {
            let Uneven { goal, .. } = core.uneven().filter(|_| core.may_even_out())?;
            let held = core.lasting_shards();
            let mut full = core.up_nodes();
            full.retain(|node| held[usize::from(node.0)] > goal);
            let handle = core.victim_even_full(&tried, |segment| {
                full.iter().any(|node| segment.has_shard_on(*node))
            })?;
            core.segments.get(handle).map(|segment| (handle, segment.id))
        });
        let Some((handle, id)) = victim else { break };
        if move_segment(ctx, handle).await.is_err() {
            tried.push(id);
        }
    }
    if ctx.with(|core| core.life.serves() && !core.dead_segments().is_empty()) {
        write_checkpoint(ctx, false).await;
    }
    ctx.with(|core| core.gc.rest_evening_until(core.now.plus(Nanos::from_ms(RESTS_MS))));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use fieldstone_proto::{BLOCK_BYTES, Lsn, NodeError, ReplyBody, RequestBody, SegmentId};

    use super::*;
    use crate::footer::Footer;
    use crate::interface::Provisioning;
    use crate::map::Location;
    use crate::record::{Entry, EntryKind};
    use crate::script::{Script, Sent};
    use crate::segment::SegmentIndex;

    const FULLEST: NodeIndex = NodeIndex(3);

    /// Eight segments of six shards on eight nodes. Node 3 holds a shard of each, the others hold
    /// five or six. The volume has reserved no more than it has to for this reason, and another
    /// volume lacks a slot.
    fn uneven() -> (Script, Vec<SegmentIndex>) {
        uneven_beside(|_| {})
    }

    /// The same, with more segments. Node 3 still holds the most shards.
    fn uneven_beside(more: impl FnOnce(&mut Script)) -> (Script, Vec<SegmentIndex>) {
        let mut script = Script::serving(8);
        let places: [[u16; 6]; 8] = [
            [0, 1, 2, 3, 4, 5],
            [0, 1, 2, 3, 6, 7],
            [4, 5, 6, 3, 7, 0],
            [1, 2, 4, 3, 5, 6],
            [7, 0, 1, 3, 2, 4],
            [5, 6, 7, 3, 0, 1],
            [2, 4, 5, 3, 6, 7],
            [0, 1, 2, 3, 4, 5],
        ];
        let handles = places.iter().map(|nodes| script.add_segment(&nodes.map(Some))).collect();
        more(&mut script);
        script.core(|core| {
            core.reservation.slots = 44;
            let held = core.data_shards();
            assert_eq!(held.iter().max(), Some(&held[usize::from(FULLEST.0)]));
            for (node, held) in core.nodes.iter_mut().zip(held) {
                (node.slots.reserved, node.slots.free) = (44, 44 - held);
            }
            let kept = core.slots_to_write();
            core.reservation.slots = kept;
            core.node_mut(NodeIndex(1)).stat.slots_lacking = 1;
        });
        (script, handles)
    }

    #[test]
    fn a_volume_is_uneven_if_its_fullest_node_keeps_slots_from_others() {
        let (mut script, _) = uneven();
        script.core(|core| {
            // Eight segments of six shards: an even share of eight nodes is six.
            assert_eq!(core.uneven(), Some(Uneven { goal: 7, above: 1 }));
            assert_eq!(core.nodes_to_avoid(), [FULLEST]);
            core.node_mut(NodeIndex(1)).stat.slots_lacking = 9;
            let all = core.uneven().expect("others lack more");
            assert_eq!(all.goal, 6, "never below an even share");
            core.node_mut(NodeIndex(1)).stat.slots_lacking = 0;
            assert_eq!(core.uneven(), None, "no volume lacks slots");
            assert!(core.nodes_to_avoid().is_empty());
        });
    }

    #[test]
    fn a_volume_that_needs_its_slots_or_lies_evenly_moves_nothing_for_others() {
        let (mut script, _) = uneven();
        script.core(|core| {
            core.reservation.provisioning = Provisioning::Thick;
            assert!(core.slots_needed() >= core.reservation.slots, "{}", core.slots_needed());
            assert_eq!(core.uneven(), None);
        });
        let mut script = Script::serving(6);
        for _ in 0..8 {
            script.add_segment(&[0, 1, 2, 3, 4, 5].map(Some));
        }
        script.core(|core| {
            core.nodes.iter_mut().for_each(|node| node.slots.free = node.slots.reserved - 8);
            core.reservation.slots = core.slots_to_write();
            core.nodes.iter_mut().for_each(|node| node.stat.slots_lacking = 5);
            assert!(core.slots_needed() < core.reservation.slots);
            assert_eq!(core.uneven(), None);
            let dead = core.segments.iter().next().map(|(handle, _)| handle).expect("eight");
            core.segments.get_mut(dead).expect("one of them").live_blocks = 0;
            assert_eq!(core.dead_segments().len(), 1);
            assert_eq!(core.uneven(), None, "garbage alone makes no volume uneven");
        });
    }

    #[test]
    fn new_segments_avoid_the_fullest_node_if_enough_others_can_take_them() {
        let (mut script, _) = uneven();
        let handle = script.add_segment(&[None; 6]);
        script.core(|core| {
            assert!(!core.is_tight());
            let on_fullest = |core: &mut VolumeCore| {
                let placed = (0..20).flat_map(|attempt| core.place_missing(handle, attempt));
                placed.filter(|(_, node)| *node == FULLEST).count()
            };
            assert_eq!(on_fullest(core), 0);
            core.node_mut(NodeIndex(1)).stat.slots_lacking = 0;
            assert!(on_fullest(core) > 0, "no volume lacks slots");
            core.node_mut(NodeIndex(1)).stat.slots_lacking = 1;
            for node in [6, 7] {
                core.node_mut(NodeIndex(node)).health = crate::status::NodeHealth::Down;
            }
            assert_eq!(on_fullest(core), 20, "each segment needs all six nodes");
        });
    }

    /// The volume evens out. The nodes tell what other volumes lack, and do all that the volume
    /// asks for; `read` answers the reads. Gives the requests in their order.
    fn run(
        script: &mut Script,
        mut read: impl FnMut(&Sent) -> Result<ReplyBody, NodeError>,
    ) -> Vec<Sent> {
        let done = Rc::new(Cell::new(false));
        let ends = Rc::clone(&done);
        script.start(move |ctx| async move {
            even_out(&ctx).await;
            ends.set(true);
        });
        let mut all = Vec::new();
        for _ in 0..10_000 {
            script.do_jobs();
            for sent in script.sent() {
                let (stat, free) = script.core(|core| {
                    let node = core.node(sent.node);
                    (node.stat, node.slots.free)
                });
                let (result, freed) = match &sent.request.body {
                    RequestBody::Stat => (Ok(ReplyBody::Stat(stat)), 0),
                    RequestBody::ShardRead { .. } => (read(&sent), 0),
                    RequestBody::ShardDelete { segments } => (Ok(ReplyBody::Done), segments.len()),
                    _ => (Ok(ReplyBody::Done), 0),
                };
                let freed = u32::try_from(freed).expect("few");
                script.answer_with_room(&sent, result, free + freed);
                all.push(sent);
            }
            if done.get() {
                return all;
            }
            script.wait_ms(5);
        }
        panic!("it does not end")
    }

    /// What the requests ask for, without repetitions.
    fn steps(sent: &[Sent]) -> Vec<&'static str> {
        let step = |sent: &Sent| match sent.request.body {
            RequestBody::ShardRead { .. } => Some("read"),
            RequestBody::JournalAppend { .. } => Some("append"),
            RequestBody::PutRoot { .. } => Some("root"),
            RequestBody::ShardDelete { .. } => Some("delete"),
            _ => None,
        };
        let mut steps: Vec<&str> = sent.iter().filter_map(step).collect();
        steps.dedup();
        steps
    }

    /// The answer of a node that cannot read now.
    fn unreadable(_: &Sent) -> Result<ReplyBody, NodeError> {
        Err(NodeError::Busy)
    }

    /// Answers the reads of one segment. Its first blocks are the blocks 0 and 1 of the device, and
    /// its last one is the footer.
    fn readable(segment: SegmentId) -> impl Fn(&Sent) -> Result<ReplyBody, NodeError> {
        move |sent| {
            let RequestBody::ShardRead { segment: of, shard, offset_bytes, .. } = sent.request.body
            else {
                panic!("{:?}", sent.request.body)
            };
            assert_eq!(of, segment);
            let entry = Entry { kind: EntryKind::Data, block: 0, count: 2, segment_block: 0 };
            match (shard.0, offset_bytes as usize / BLOCK_BYTES) {
                (0 | 1, 0) => Ok(ReplyBody::Data(vec![9; BLOCK_BYTES].into())),
                (3, 15) => {
                    let (lsn_first, lsn_end) = (Lsn(0), Lsn(0));
                    let volume = fieldstone_proto::VolumeId(0x77);
                    let entries = vec![entry];
                    let footer = Footer { volume, segment, lsn_first, lsn_end, entries };
                    Ok(ReplyBody::Data(footer.encode().into()))
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Blocks 0 and 1 of the device are the only live ones of the first segment. Gives its name.
    fn fill(script: &mut Script, handles: &[SegmentIndex]) -> SegmentId {
        script.core(|core| {
            (0..2).for_each(|at| _ = core.map.set(u64::from(at), Location::at(handles[0], at)));
            for handle in handles {
                core.segments.get_mut(*handle).expect("it was added").live_blocks = 2;
            }
            core.segments.get(handles[0]).expect("it was added").id
        })
    }

    #[test]
    fn one_run_moves_a_segment_off_the_fullest_node_and_rests() {
        let (mut script, handles) = uneven_beside(|script| {
            let more = [[0, 1, 2, 3, 6, 7], [4, 5, 6, 3, 7, 0]];
            let more = more.map(|nodes| script.add_segment(&nodes.map(Some)));
            script.core(|core| {
                for handle in more {
                    core.segments.get_mut(handle).expect("it was added").live_blocks = 3;
                }
            });
            // The segment with the fewest live blocks is on other nodes.
            script.add_segment(&[1, 2, 4, 5, 6, 7].map(Some));
        });
        let id = fill(&mut script, &handles);
        let sent = run(&mut script, readable(id));
        assert_eq!(steps(&sent), ["read", "append", "root", "delete"]);
        script.core(|core| {
            assert_eq!(core.segments.find(id), None);
            assert!(handles[1..].iter().all(|handle| core.segments.get(*handle).is_some()));
            let (new, _) = core.map.get(0).stored().expect("it was moved");
            let new = core.segments.get(new).expect("its blocks are in use");
            assert!(new.missing() == 0 && !new.has_shard_on(FULLEST));
            assert_eq!(core.data_shards()[usize::from(FULLEST.0)], 9, "it was 10");
            let end = core.now.plus(Nanos::from_ms(RESTS_MS));
            assert!(core.gc.evening_rests(Nanos(end.0 - 1)) && !core.gc.evening_rests(end));
        });
    }

    #[test]
    fn one_run_tries_no_more_segments_than_there_are_shards_above_the_goal() {
        let (mut script, _) = uneven();
        script.core(|core| {
            core.node_mut(NodeIndex(1)).stat.slots_lacking = 9;
            assert_eq!(core.uneven(), Some(Uneven { goal: 6, above: 2 }));
        });
        let mut tried = BTreeSet::new();
        let sent = run(&mut script, |sent| {
            if let RequestBody::ShardRead { segment, .. } = sent.request.body {
                tried.insert(segment);
            }
            unreadable(sent)
        });
        assert_eq!(tried.len(), 2);
        assert_eq!(steps(&sent), ["read"]);
        script.core(|core| assert!(core.uneven().is_some() && !core.may_even_out(), "it rests"));
        assert!(steps(&run(&mut script, unreadable)).is_empty());
    }

    #[test]
    fn nothing_moves_if_the_other_volumes_have_their_slots_by_now() {
        let (mut script, _) = uneven();
        script.start(|ctx| async move { even_out(&ctx).await });
        for node in 0..8 {
            let sent = script.sent_one();
            assert_eq!((&sent.request.body, sent.node.0), (&RequestBody::Stat, node));
            let stat = crate::script::stat(sent.node);
            script.answer(&sent, Ok(ReplyBody::Stat(stat)));
        }
        assert!(script.sent().is_empty());
    }

    /// With some ids, the map of the pool would draw the fullest node.
    #[test]
    fn a_move_off_the_fullest_node_does_not_go_back_there() {
        for skipped in 0..12 {
            let (mut script, handles) = uneven_beside(|script| {
                let other = script.add_segment(&[0, 1, 2, 4, 5, 6].map(Some));
                script.core(|core| core.segments.get_mut(other).expect("added").live_blocks = 3);
            });
            let id = fill(&mut script, &handles);
            script.core(|core| {
                for _ in 0..skipped {
                    let _ = core.segments.next_id(fieldstone_proto::Epoch(1));
                }
            });
            run(&mut script, readable(id));
            script.core(|core| assert_eq!(core.data_shards()[3], 7, "{skipped} ids skipped"));
        }
    }

    /// Their shards would count as data.
    #[test]
    fn dead_segments_are_deleted_before_others_move() {
        let (mut script, handles) = uneven_beside(|script| {
            let dead = script.add_segment(&[0, 1, 2, 4, 5, 6].map(Some));
            script.core(|core| core.segments.get_mut(dead).expect("added").live_blocks = 0);
        });
        let id = fill(&mut script, &handles);
        let sent = run(&mut script, readable(id));
        assert_eq!(steps(&sent), ["root", "delete", "read", "append", "root", "delete"]);
    }
}
