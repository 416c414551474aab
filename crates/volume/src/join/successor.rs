//! Who owns the volume, if a joining node does not have this writer's epoch.
//!
//! The node may have a later epoch than this writer. Then either a newer writer serves the volume,
//! and this one ends. Or an opening fenced the node and ended before it served
//! ([`may_have_successor`]). The volume then goes on without the node, as if it were lost, until
//! the next opening gives all nodes one epoch. It must not fence the node above that opening: other
//! nodes may have a root of the opening that was never committed. With the node's vote the volume
//! would commit later roots, but their epoch is lower, so the next opening would take the wrong
//! one.
//!
//! The node may also be unable to read its record of the volume, or be another node than the volume
//! expects. For the first case the volume asks the other nodes for their epochs
//! ([`count_agreeing`]).

use fieldstone_proto::{
    Epoch, NodeError, NodeIndex, NodeStat, ReplyBody, RequestBody, VolumeSummary,
};

use crate::core::Ctx;
use crate::root::Root;

/// Asks the nodes that are up for their epochs. Returns how many have this writer's epoch. If these
/// are at least `nodes_needed`, no newer writer serves the volume. Without these answers, a writer
/// that does not know yet that it is fenced could replace a record with a newer epoch, when the
/// node cannot read that record.
///
/// # Errors
/// A node has a newer epoch: the volume has failed.
pub(super) async fn count_agreeing(ctx: &Ctx) -> Result<usize, NodeError> {
    let (nodes, epoch) = ctx.with(|core| (core.up_nodes(), core.writer.epoch()));
    // A node refuses a fence with an epoch that it has already.
    let answers = ctx.call_all(&nodes, &RequestBody::Fence { takeover: true }).await;
    let mut agreeing = 0;
    for (_, answer) in answers {
        match answer {
            Err(NodeError::Fenced { current, .. }) if current > epoch => {
                return Err(fenced_out(ctx, current));
            }
            Err(NodeError::Fenced { .. }) => agreeing += 1,
            _ => {}
        }
    }
    Ok(agreeing)
}

/// True if a successor of this writer may have served with the later epoch that a joining node has.
///
/// An opening serves only after nodes have taken a root of its epoch. If the node has such a root,
/// or has removed the volume, there may be a successor. Otherwise some opening has fenced the node
/// and not come further there. That opening may have ended. If it continues, it fences nodes that
/// this writer needs, and this writer learns of its successor from their refusals.
///
/// # Errors
/// The node does not tell its root, or a node that is up has a later epoch: the volume has failed.
pub(super) async fn may_have_successor(ctx: &Ctx, node: NodeIndex) -> Result<bool, NodeError> {
    count_agreeing(ctx).await?;
    let epoch = ctx.with(|core| core.writer.epoch());
    match summary_on(ctx, node).await? {
        None => Ok(true),
        Some(summary) if summary.root_version == 0 => Ok(false),
        Some(summary) => match Root::decode(&summary.root) {
            Ok(root) => Ok(root.put_by > epoch),
            Err(error) => Err(NodeError::Invalid(error.to_string())),
        },
    }
}

/// The node's summary of the volume, if the node knows the volume.
pub(super) async fn summary_on(
    ctx: &Ctx,
    node: NodeIndex,
) -> Result<Option<VolumeSummary>, NodeError> {
    let volume = ctx.with(|core| core.config.volume);
    let ReplyBody::Volumes(volumes) = ctx.call(node, RequestBody::ListVolumes).await? else {
        return Err(NodeError::Invalid("not a list of volumes".into()));
    };
    Ok(volumes.into_iter().find(|summary| summary.volume == volume))
}

/// Another writer has the volume, with the epoch `current`.
pub(super) fn fenced_out(ctx: &Ctx, current: Epoch) -> NodeError {
    ctx.with(|core| {
        core.fence_out(current);
        NodeError::Fenced { sent: core.writer.epoch(), current }
    })
}

/// A different node of the pool may answer in this node's place.
pub(super) fn check_place(node: NodeIndex, stat: &NodeStat) -> Result<(), NodeError> {
    if stat.node == node {
        return Ok(());
    }
    Err(NodeError::Invalid(format!("{} answers in its place", stat.node)))
}

/// For a node that refuses the volume's capability: the identity that it reports.
pub(super) async fn who_answers(ctx: &Ctx, node: NodeIndex) -> String {
    match ctx.call(node, RequestBody::Identify).await {
        Ok(ReplyBody::Stat(stat)) => format!("{} of the pool {}", stat.node, stat.pool),
        _ => "an unknown node".to_owned(),
    }
}
