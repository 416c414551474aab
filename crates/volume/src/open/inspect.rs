//! Inspection of a volume without opening it: it asks nodes, fences none, and writes nothing.
//!
//! A command that shows the state of a volume must not end the writer that serves the volume. So an
//! inspection uses the epochs that the nodes report, reads what an opening would read, and stops.
//! Its result may be out of date: a writer may change everything meanwhile. Nodes with an epoch
//! older than the newest root were away when the volume was last opened. The inspection ignores
//! their data: it is valid only after they have joined.

use fieldstone_proto::{
    Epoch, JournalInfo, NodeError, NodeIndex, ReplyBody, RequestBody, VolumeState, VolumeSummary,
};

use super::chain::replay_footers;
use super::recover::{NodeContents, find};
use super::rings::replay_records;
use super::{Blame, Failure, foreign_node};
use crate::core::{Ctx, VolumeCore};
use crate::map::Location;
use crate::record::EntryKind;
use crate::root::Root;
use crate::status::NodeHealth;

/// Finds out the state of the volume.
pub(super) async fn inspect(ctx: &Ctx, connected: &[NodeIndex]) -> Result<(), Failure> {
    let mut summaries = Vec::new();
    for node in connected {
        if let Some(summary) = summary_of(ctx, *node).await? {
            summaries.push((*node, summary));
        }
    }
    let roots = summaries.iter().filter_map(|(_, summary)| Root::decode(&summary.root).ok());
    let epoch = roots.map(|root| root.put_by).max().unwrap_or_default();
    ctx.take_epoch(epoch).await;
    for (_, summary) in &summaries {
        ctx.await_capability(summary.epoch).await;
    }
    ctx.with(|core| {
        for (node, summary) in &summaries {
            core.node_mut(*node).epoch = summary.epoch;
        }
    });
    let mut states = Vec::new();
    for node in connected {
        let summary = summaries.iter().find(|(known, _)| known == node);
        match summary.filter(|(_, summary)| summary.epoch >= epoch) {
            Some((_, summary)) => states.push((*node, state_of(ctx, *node, summary).await?)),
            None => ctx.with(|core| core.is_behind(*node, summary.map(|(_, s)| s.epoch))),
        }
    }
    let found = find(ctx, &states, None).await?;
    replay_footers(ctx, &found.chain, found.start).await?;
    take_records(ctx, &found);
    ctx.with(|core| {
        let up = |node: &NodeIndex| core.node(*node).health == NodeHealth::Up;
        core.log.nodes = found.root.journal_nodes.iter().copied().filter(up).collect();
        core.committed.set_root(found.root);
        core.life.end_inspection();
        core.attempts.waits_for.clear();
    });
    Ok(())
}

/// A node's summary of the volume, if the node knows the volume.
async fn summary_of(ctx: &Ctx, node: NodeIndex) -> Result<Option<VolumeSummary>, Failure> {
    let volume = ctx.with(|core| core.config.volume);
    let answer = ctx.call(node, RequestBody::ListVolumes).await;
    if let Err(NodeError::Capability(error)) = answer {
        return Err(foreign_node(ctx, node, error).await);
    }
    match answer.blame(node)? {
        ReplyBody::Volumes(volumes) => {
            Ok(volumes.into_iter().find(|s| s.volume == volume && s.is_usable()))
        }
        _ => Err(Failure::Node(node, NodeError::Invalid("not a list of volumes".into()))),
    }
}

/// The state that fencing the node would have reported.
async fn state_of(
    ctx: &Ctx,
    node: NodeIndex,
    summary: &VolumeSummary,
) -> Result<VolumeState, Failure> {
    let stat = match ctx.call(node, RequestBody::Stat).await.blame(node)? {
        ReplyBody::Stat(stat) if stat.node == node => stat,
        ReplyBody::Stat(stat) => {
            let text = format!("{} answers in its place", stat.node);
            return Err(Failure::Node(node, NodeError::Invalid(text)));
        }
        _ => return Err(Failure::Node(node, NodeError::Invalid("not its state".into()))),
    };
    ctx.with(|core| {
        let state = core.node_mut(node);
        state.health = NodeHealth::Up;
        state.stat = stat;
        state.reason.clear();
    });
    // If the root names the node, the node may have a ring.
    let root = Root::decode(&summary.root).ok();
    let ring = root.filter(|root| root.journal_nodes.contains(&node)).map(|root| JournalInfo {
        generation: root.generation,
        ring_bytes: root.geometry.ring_bytes,
    });
    Ok(VolumeState {
        stat,
        epoch_before: summary.epoch,
        root_version: summary.root_version,
        root: summary.root.clone(),
        journals: ring.into_iter().collect(),
    })
}

/// Counts the blocks that only the journal has as used.
fn take_records(ctx: &Ctx, found: &NodeContents) {
    let ring_bytes = found.root.geometry.ring_bytes;
    let replay = replay_records(ctx, found.start, &found.records, ring_bytes);
    ctx.with(|core| {
        let blocks = core.shape.size_blocks();
        for (entry, _) in replay {
            let end = (entry.block + u64::from(entry.count)).min(blocks);
            let to = match entry.kind {
                EntryKind::Trim => Location::HOLE,
                EntryKind::Data | EntryKind::Reserve => Location::RESERVED,
            };
            core.clear_map(entry.block..end, to);
        }
        core.learn_reservations();
    });
}

impl VolumeCore {
    /// A node does not have the last opening of the volume.
    fn is_behind(&mut self, node: NodeIndex, epoch: Option<Epoch>) {
        let reason = match epoch {
            Some(_) => "was away when the volume was last opened",
            None => "has nothing of the volume, or cannot read what it has",
        };
        self.node_mut(node).reason = reason.to_owned();
    }

    /// Computes reservations: a node reports how many more slots the volume may take, not how many
    /// the volume has reserved.
    fn learn_reservations(&mut self) {
        for node in self.up_nodes() {
            let holds = |shards: &[Option<NodeIndex>]| shards.contains(&Some(node));
            let held = self.segments.iter().filter(|(_, segment)| holds(&segment.shards)).count();
            let state = self.node_mut(node);
            let held = u32::try_from(held).unwrap_or(u32::MAX);
            state.slots.reserved = state.slots.free.saturating_add(held);
        }
    }
}
