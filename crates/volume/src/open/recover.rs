//! From the data on the nodes to the state of the volume, and to a new root that names this state.
//!
//! [`find`] only reads. [`recover`] writes the recovered state anew, and deletes garbage.

use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_proto::{Lsn, NodeError, NodeIndex, RequestBody, SegmentId, ShardInfo, VolumeState};

use super::chain::{ChainSegment, check_nothing_lost, choose_start, find_chain, replay_footers};
use super::checkpoint::load_checkpoint;
use super::copies::{
    backed_segments, delete_copies, discard_open_copies, leave_copies, renew_copies, strengthen,
};
use super::detached::ShardLocations;
use super::garbage::{discard_garbage, discard_journals, discard_leftovers, discard_open};
use super::rings::{
    Records, Sources, attach, check_not_cut_short, read_rings, replay_records, sync_rings,
    trimmed_up_to, wait_for_journal,
};
use super::validate::Listed;
use super::{Blame, Failure, check_divides, commit};
use crate::core::Ctx;
use crate::failure::{AttemptFailure, VolumeFailure};
use crate::gc::{free_segments, store_checkpoint};
use crate::interface::Geometry;
use crate::journal::put_root_on;
use crate::rebuild::list_shards;
use crate::reserve::reserve_for_checkpoint;
use crate::root::Root;
use crate::segment::SegmentIndex;
use crate::shape::Shape;

/// How long an opening after a crash waits for missing nodes, which may have data that no other
/// node has.
const PATIENCE_MS: u64 = 20_000;
/// How long it waits if a record of the log lacks blocks that these nodes may have.
const PATIENCE_CUT_SHORT_MS: u64 = 30_000;

/// The volume's data on the nodes.
pub(super) struct NodeContents {
    pub root: Root,
    pub inventory: Inventory,
    /// The log after the checkpoint, as segments.
    pub chain: Vec<ChainSegment>,
    /// The log after the checkpoint, as records of the journal.
    pub records: Records,
    /// The segments that blocks of records come from.
    sources: Sources,
    /// Where the records take over from the chain.
    pub start: Lsn,
    /// Durable segments once held everything before this position.
    trimmed: Lsn,
}

/// Finds the volume's data on the nodes. An opening that began at `began` waits a while for nodes
/// that may have data that no other node has.
pub(super) async fn find(
    ctx: &Ctx,
    states: &[(NodeIndex, VolumeState)],
    began: Option<Nanos>,
) -> Result<NodeContents, Failure> {
    let root = newest_root(ctx, states)?;
    if let Some(began) = began.filter(|_| !root.clean) {
        let until = began.plus(Nanos::from_ms(PATIENCE_MS));
        wait_for_journal(ctx, &root, states, until).await?;
    }
    let profile: fieldstone_codes::Profile = root
        .profile
        .parse()
        .map_err(|error| VolumeFailure::Profile { profile: root.profile.clone(), error })?;
    check_divides(profile, &root.geometry)?;
    ctx.with(|core| {
        // The map of a device of the size that the root says must not take all memory.
        let empty = Geometry { size_bytes: 0, ..root.geometry };
        core.adopt(Shape::new(root.name.clone(), profile, empty));
        if let Some(why) = core.too_large(root.geometry.size_bytes) {
            return Err(VolumeFailure::TooLarge(why));
        }
        core.adopt(Shape::new(root.name.clone(), profile, root.geometry));
        core.reservation.provisioning = root.provisioning;
        Ok(())
    })?;
    let nodes: Vec<NodeIndex> = states.iter().map(|(node, _)| *node).collect();
    let inventory = take_inventory(ctx, &nodes).await?;
    load_checkpoint(ctx, &root, &inventory.listed).await?;
    let mut records = match root.clean {
        true => Records::new(),
        false => read_rings(ctx, &root, states).await?,
    };
    let trimmed = trimmed_up_to(&root, &records);
    let chain = find_chain(ctx, &root, &inventory.listed, trimmed).await?;
    let sources = attach(ctx, &root, &chain, &mut records, &inventory.places).await?;
    let start = choose_start(&root, &chain, &records);
    check_nothing_lost(&root, start, trimmed, &records)?;
    let patience = Nanos::from_ms(PATIENCE_CUT_SHORT_MS);
    let until = began.map_or(Nanos(0), |began| began.plus(patience));
    if ctx.with(|core| nodes.len() < core.nodes.len() && core.now < until) {
        check_not_cut_short(&root, start, &records)?;
    }
    Ok(NodeContents { root, inventory, chain, records, sources, start, trimmed })
}

/// Brings the volume to the state that its nodes hold, and names this state in a new root.
pub(super) async fn recover(
    ctx: &Ctx,
    states: &[(NodeIndex, VolumeState)],
    began: Nanos,
) -> Result<(), Failure> {
    let found = find(ctx, states, Some(began)).await?;
    ctx.with(|core| {
        let (there, may_be_away) = (states.len(), usize::from(core.config.missing_max));
        if there <= may_be_away {
            tracing::warn!(
                volume = %core.shape.name(),
                "opened with {there} of {} nodes: if the others served while these were away, \
                 what was written then is missing",
                core.nodes.len()
            );
        }
    });
    let NodeContents { mut root, mut inventory, chain, records, sources, start, trimmed } = found;
    let nodes: Vec<NodeIndex> = states.iter().map(|(node, _)| *node).collect();
    agree_on_root(ctx, &mut root, states).await?;
    discard_leftovers(ctx, &root, &mut inventory.listed).await;
    discard_journals(ctx, &root, states).await;
    replay_footers(ctx, &chain, start).await?;
    let highest = highest_lsn(&root, &inventory.listed, &records);
    let replay = replay_records(ctx, start, &records, root.geometry.ring_bytes);
    sync_rings(ctx, &root, states).await?;
    // The new checkpoint names the contents of the old chain. Everything else is garbage.
    let ring = root.geometry.ring_bytes;
    let base = Lsn((highest.0 / ring + 2) * ring);
    ctx.with(|core| core.drop_segments_from(&chain, start));
    let backed = || backed_segments(&chain, start, trimmed);
    let left = leave_copies(ctx, backed(), &inventory);
    // The valid shards may not be stable yet. Other copies of them may be.
    sync_shards(ctx, &nodes).await?;
    // Replayed records are stable in the rings. Their old segments give the room that the replay
    // takes, so an opening of a full pool succeeds any number of times.
    let mut others = inventory.listed.clone();
    for (id, shards) in &mut others {
        shards.retain(|(node, _)| !left.contains_key(&(*id, *node)));
    }
    let garbage = others.iter().filter(|(id, _)| !sources.contains(id));
    let garbage = garbage.map(|(id, shards)| (*id, shards.clone())).collect();
    if let Some((node, error)) = discard_garbage(ctx, &garbage, false).await {
        return Err(error).blame(node);
    }
    discard_open_copies(ctx, backed(), &inventory, &left).await?;
    renew_copies(ctx, backed(), &inventory, &left).await?;
    sync_shards(ctx, &nodes).await?;
    strengthen(ctx, backed()).await?;
    reserve_for_checkpoint(ctx, &inventory.held).await;
    let (bytes, handles) = write_checkpoint(ctx, &nodes).await?;
    let old_checkpoint = root.checkpoint_segments.clone();
    root.checkpoint_lsn = base;
    root.checkpoint_bytes = bytes;
    let names = ctx.with(|core| core.segments.names(&handles));
    root.checkpoint_segments = names.ok_or(AttemptFailure::NewCheckpointGone)?;
    commit(ctx, root, base, Some(replay)).await?;
    let old = ctx.with(|core| {
        old_checkpoint.iter().filter_map(|id| core.segments.find(*id)).collect::<Vec<_>>()
    });
    free_segments(ctx, &old).await;
    delete_copies(ctx, &left).await;
    drop(discard_garbage(ctx, &others, true).await);
    discard_open(ctx, &inventory.open).await;
    Ok(())
}

/// The shards on the nodes.
#[derive(Default)]
pub(super) struct Inventory {
    /// Complete shards.
    pub listed: Listed,
    /// Open shards, which a writer is writing or was writing.
    pub open: Vec<(NodeIndex, SegmentId)>,
    /// The nodes with a shard of a segment, complete or open.
    pub places: ShardLocations,
    /// How many slots the shards take on each node.
    held: BTreeMap<NodeIndex, u32>,
}

impl Inventory {
    /// Notes a shard that a node has listed.
    pub(super) fn note(&mut self, node: NodeIndex, info: ShardInfo) {
        *self.held.entry(node).or_default() += 1;
        self.places.entry(info.segment).or_default().push((info.shard, node));
        if info.is_open() {
            self.open.push((node, info.segment));
        } else {
            self.listed.entry(info.segment).or_default().push((node, info));
        }
    }
}

async fn take_inventory(ctx: &Ctx, nodes: &[NodeIndex]) -> Result<Inventory, Failure> {
    let mut inventory = Inventory::default();
    for node in nodes {
        for info in list_shards(ctx, *node).await.blame(*node)? {
            inventory.note(*node, info);
        }
    }
    Ok(inventory)
}

/// Writes the root that the opening found to all nodes, as a root of this opening.
///
/// The opening deletes nothing before it knows that nothing is lost, now or when the next node
/// comes. A root that only some nodes have may never have been committed, and the root before it
/// still needs segments that this root does not need. An absent node may have a newer root that was
/// never committed. That root must not be the newest one when the node is back, because the opening
/// now deletes the segments that it names.
async fn agree_on_root(
    ctx: &Ctx,
    root: &mut Root,
    states: &[(NodeIndex, VolumeState)],
) -> Result<(), Failure> {
    let encoded = root.encode();
    let everywhere = states.iter().all(|(_, state)| state.root[..] == encoded[..]);
    if everywhere && ctx.with(|core| states.len() == core.nodes.len()) {
        return Ok(());
    }
    ctx.with(|core| {
        // Nodes take only higher versions.
        (root.put_by, root.version) = (core.writer.epoch(), core.committed.next_version());
    });
    let nodes: Vec<NodeIndex> = states.iter().map(|(node, _)| *node).collect();
    match put_root_on(ctx, root, &nodes).await {
        true => Ok(()),
        false => Err(AttemptFailure::FoundRootNotTaken.into()),
    }
}

/// Writes the recovered state to a new checkpoint. Returns its length in bytes, and its segments.
///
/// Later openings trust the shards that the checkpoint names: these shards must be stable, and bad
/// shards must not come back with a power loss.
async fn write_checkpoint(
    ctx: &Ctx,
    nodes: &[NodeIndex],
) -> Result<(u64, Vec<SegmentIndex>), Failure> {
    let bytes = ctx.with(|core| {
        core.gc.since_checkpoint.placement_changed = false;
        let blocks = core.shape.size_blocks();
        crate::checkpoint::encode(&core.map, &core.segments, blocks)
    });
    sync_shards(ctx, nodes).await?;
    let handles =
        store_checkpoint(ctx, &bytes).await.ok_or(AttemptFailure::CheckpointNotWritten)?;
    Ok((bytes.len() as u64, handles))
}

/// Makes the shards on all nodes stable, and deletions too. If a node of `nodes` was lost
/// meanwhile, shards that it listed may be gone.
async fn sync_shards(ctx: &Ctx, nodes: &[NodeIndex]) -> Result<(), Failure> {
    let up = ctx.with(|core| core.up_nodes());
    if nodes.iter().any(|node| !up.contains(node)) {
        return Err(AttemptFailure::NodeLost.into());
    }
    for (node, result) in ctx.call_all(&up, &RequestBody::ShardSync).await {
        result.blame(node)?;
        ctx.with(|core| core.repair.rebuild.note_synced(node));
    }
    Ok(())
}

fn newest_root(ctx: &Ctx, states: &[(NodeIndex, VolumeState)]) -> Result<Root, Failure> {
    let volume = ctx.with(|core| core.config.volume);
    let mut newest: Option<(NodeIndex, Root)> = None;
    for (node, state) in states.iter().filter(|(_, state)| state.root_version > 0) {
        let root = Root::decode(&state.root)
            .map_err(|error| NodeError::Invalid(format!("its root of the volume: {error}")))
            .blame(*node)?;
        if root.volume != volume {
            let text = format!("its root is of volume {}", root.volume);
            return Err(Failure::Node(*node, NodeError::Invalid(text)));
        }
        let newer = |(_, known): &(NodeIndex, Root)| root.rank() > known.rank();
        if newest.as_ref().is_none_or(newer) {
            newest = Some((*node, root));
        }
    }
    let Some((_, root)) = newest else {
        return Err(VolumeFailure::DoesNotExist.into());
    };
    let knowing = states.iter().filter(|(_, state)| state.root_version > 0).count();
    let needed = ctx.with(|core| core.nodes_needed());
    if knowing < needed {
        return Err(AttemptFailure::TooFewKnow { knowing, needed }.into());
    }
    Ok(root)
}

fn highest_lsn(root: &Root, listed: &Listed, records: &Records) -> Lsn {
    let segments = listed.values().flatten().map(|(_, info)| info.meta.lsn_end).max();
    let newest = records.values().map(|found| found.header.end()).max();
    [Some(root.checkpoint_lsn), segments, newest].into_iter().flatten().max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use fieldstone_proto::Epoch;

    use super::*;
    use crate::script::{Script, Sent};
    use crate::status::{NodeHealth, VolumePhase};

    /// A volume that opens, and a root that its nodes may have.
    fn opening() -> (Script, Root) {
        let mut script = Script::serving(8);
        let root = script.core(|core| {
            core.life.put_in(VolumePhase::Opening);
            core.committed.root().cloned()
        });
        (script, root.expect("it served"))
    }

    /// Nodes with this root.
    fn with(root: &Root, nodes: std::ops::Range<u16>) -> Vec<(NodeIndex, VolumeState)> {
        let state = VolumeState {
            root_version: root.version,
            root: root.encode().into(),
            ..VolumeState::default()
        };
        nodes.map(|node| (NodeIndex(node), state.clone())).collect()
    }

    #[test]
    fn the_root_of_the_latest_writer_is_the_newest_if_enough_nodes_know_the_volume() {
        let (script, root) = opening();
        let ctx = script.volume.ctx();
        // A writer that was cut off counted further than its successor.
        let cut_off = Root { version: 9, ..root.clone() };
        let successor = Root { version: 3, put_by: Epoch(2), ..root };
        let mut states = with(&cut_off, 0..2);
        states.extend(with(&successor, 2..6));
        assert!(newest_root(&ctx, &states).is_ok_and(|newest| newest == successor));
        let few = newest_root(&ctx, &states[1..]);
        let expected = AttemptFailure::TooFewKnow { knowing: 5, needed: 6 };
        assert!(matches!(few, Err(Failure::Again(failure)) if failure == expected));
        let new: Vec<_> = (0..8).map(|node| (NodeIndex(node), VolumeState::default())).collect();
        let none = newest_root(&ctx, &new);
        assert!(matches!(none, Err(Failure::Final(VolumeFailure::DoesNotExist))));
        states[3].1.root = vec![0; 64].into();
        let damaged = newest_root(&ctx, &states);
        assert!(matches!(damaged, Err(Failure::Node(NodeIndex(3), _))), "the node is at fault");
    }

    /// An opening finds the root on these nodes. Gives the requests before anything is deleted, and
    /// how the step ends if the first `taking` nodes take the root.
    fn agree(nodes: std::ops::Range<u16>, taking: usize) -> (Vec<Sent>, bool, Root) {
        let (mut script, root) = opening();
        let result = Rc::new(RefCell::new(None));
        let ends = Rc::clone(&result);
        script.start(move |ctx| async move {
            let (states, mut root) = (with(&root, nodes), root);
            let agreed = agree_on_root(&ctx, &mut root, &states).await;
            *ends.borrow_mut() = Some((agreed.is_ok(), root));
        });
        let sent = script.sent();
        for (at, sent) in sent.iter().enumerate() {
            match at < taking {
                true => script.done(sent),
                false => script.answer(sent, Err(NodeError::Unreachable)),
            }
        }
        script.sent();
        let (agreed, root) = result.take().expect("it has ended");
        (sent, agreed, root)
    }

    /// Then no root that an absent node may still have is newer than what the opening goes on from.
    #[test]
    fn an_opening_that_misses_a_node_first_writes_the_root_anew() {
        let (sent, agreed, root) = agree(0..8, 0);
        assert!(sent.is_empty() && agreed, "all nodes have the very root");
        assert_eq!(root.version, 1);
        let (sent, agreed, root) = agree(0..7, 6);
        let version = 2;
        assert!(sent.iter().all(|s| s.request.body == RequestBody::PutRoot { version }));
        assert_eq!((sent.len(), root.version), (7, version));
        assert!(agreed, "all but two nodes have it");
        let (_, agreed, _) = agree(0..7, 5);
        assert!(!agreed);
    }

    #[test]
    fn shards_count_as_stable_only_if_no_node_was_lost_since_it_listed_them() {
        for lost in [false, true] {
            let (mut script, _) = opening();
            if lost {
                script.core(|core| core.node_mut(NodeIndex(6)).health = NodeHealth::Down);
            }
            let result = Rc::new(RefCell::new(None));
            let ends = Rc::clone(&result);
            script.start(move |ctx| async move {
                let nodes: Vec<NodeIndex> = (0..8).map(NodeIndex).collect();
                *ends.borrow_mut() = Some(sync_shards(&ctx, &nodes).await.is_ok());
            });
            let sent = script.sent();
            assert_eq!(sent.len(), if lost { 0 } else { 8 });
            sent.iter().for_each(|sent| script.done(sent));
            script.sent();
            assert_eq!(result.take(), Some(!lost));
        }
    }
}
